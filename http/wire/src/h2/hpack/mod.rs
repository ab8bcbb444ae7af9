//! HPACK (RFC 7541): header blocks to field lines and back, each end with its dynamic table.
//!
//! A decoded line is handed out as `name: value CRLF`, which is how [`crate::fields::Fields`] keeps it, and with what
//! its name means: for a field that the table holds both were found out when it went in.

mod decoder;
mod encoder;
mod huffman;
mod line;
mod table;

pub use decoder::{Decoder, HpackError};
pub use encoder::{Encoder, Indexing};
pub use line::{Class, Line, Pseudo};
pub use table::{STATIC_LEN, static_index, static_index_of_name};

/// RFC 7541 §4.1: what an entry counts beside its text.
pub const ENTRY_OVERHEAD_BYTES: usize = 32;
/// SETTINGS_HEADER_TABLE_SIZE of either side until told otherwise (RFC 9113 §6.5.2), and all that we use.
pub const TABLE_BYTES_MAX: usize = 4096;

/// Appends an integer with a prefix of `bits` below the pattern (RFC 7541 §5.1).
#[inline]
pub fn put_integer(pattern: u8, bits: u32, value: usize, out: &mut Vec<u8>) {
    let mask = (1usize << bits) - 1;
    let low = |value: usize| value.to_le_bytes()[0];
    if value < mask {
        out.push(pattern | low(value));
        return;
    }
    out.push(pattern | low(mask));
    put_rest(value - mask, out);
}

#[inline(never)]
fn put_rest(value: usize, out: &mut Vec<u8>) {
    let low = |value: usize| value.to_le_bytes()[0];
    let mut left = value;
    while left >= 0x80 {
        out.push(low(left & 0x7f) | 0x80);
        left >>= 7;
    }
    out.push(low(left));
}

/// Appends a string as it is (RFC 7541 §5.2). Huffman coding would save the peer a third of the bytes of what is not in
/// its table yet, at ten instructions a byte on both ends.
pub fn put_string(text: &[u8], out: &mut Vec<u8>) {
    put_integer(0, 7, text.len(), out);
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests;
