//! Header blocks to lines (RFC 7541 §3.2, §6).

use std::collections::VecDeque;

use super::line::{Class, Line, class_of_line, class_of_name};
use super::{TABLE_BYTES_MAX, huffman, table};

/// The block cannot be decoded: a connection error (RFC 9113 §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HpackError;

/// Room for a line that is kept for the next one.
const TEXT_BYTES_KEPT: usize = 8 * 1024;

/// A line of the dynamic table.
#[derive(Debug)]
struct Entry {
    text: Box<[u8]>,
    name_len: usize,
    class: Class,
}

impl Entry {
    fn line(&self) -> Line<'_> {
        Line { text: &self.text, name_len: self.name_len, class: self.class }
    }
}

/// The receiving end's state of one connection.
#[derive(Debug, Default)]
pub struct Decoder {
    table: VecDeque<Entry>,
    table_bytes: usize,
    /// How much less than [`TABLE_BYTES_MAX`] the peer uses.
    unused_bytes: usize,
    /// The line that is being put together.
    text: Vec<u8>,
    changes: u64,
}

/// How an index and what follows it are coded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Literal {
    Indexed,
    NotIndexed,
}

impl Decoder {
    pub fn new() -> Self {
        Self::default()
    }

    /// Hands every line of a block to `line`, in order.
    ///
    /// The work is bounded by the bytes of the block; what the lines take together is not, since a byte may stand for
    /// a line of the table. The receiver counts [`Line::size`].
    ///
    /// # Errors
    /// [`HpackError`]; the connection is lost.
    pub fn decode(&mut self, block: &[u8], mut line: impl FnMut(Line<'_>)) -> Result<(), HpackError> {
        let mut rest = block;
        // Changes of the table's size stand in front of all lines (RFC 7541 §4.2, §6.3).
        while let Some(0x20..0x40) = rest.first() {
            let (bytes, after) = integer(rest, 5)?;
            self.unused_bytes = TABLE_BYTES_MAX.checked_sub(bytes).ok_or(HpackError)?;
            self.shrink_for(0);
            self.changes += 1;
            rest = after;
        }
        while let Some(first) = rest.first() {
            rest = match first {
                // Indexed (RFC 7541 §6.1).
                0x80.. => {
                    let (index, after) = integer(rest, 7)?;
                    line(self.line(index).ok_or(HpackError)?);
                    after
                }
                // Literal with indexing (§6.2.1), without, and never (§6.2.2, §6.2.3).
                0x40..0x80 => self.literal(rest, Literal::Indexed, &mut line)?,
                0x20..0x40 => return Err(HpackError),
                0..0x20 => self.literal(rest, Literal::NotIndexed, &mut line)?,
            };
        }
        if self.text.capacity() > TEXT_BYTES_KEPT {
            self.text = Vec::new();
        }
        Ok(())
    }

    /// Changes of the table so far: a block that makes none means the same again until there is one.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Gives back memory before a wait of unknown length.
    pub fn release_buffers(&mut self) {
        self.text = Vec::new();
    }

    fn line(&self, index: usize) -> Option<Line<'_>> {
        match index.checked_sub(table::STATIC_LEN + 1) {
            None => table::line(index),
            Some(at) => self.table.get(at).map(Entry::line),
        }
    }

    fn literal<'b>(
        &mut self,
        bytes: &'b [u8],
        kind: Literal,
        line: &mut impl FnMut(Line<'_>),
    ) -> Result<&'b [u8], HpackError> {
        let (index, mut rest) = integer(bytes, if kind == Literal::Indexed { 6 } else { 4 })?;
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        let of_name = if index == 0 {
            rest = string(rest, &mut text)?;
            class_of_name(&text)
        } else {
            let named = self.line(index).ok_or(HpackError)?;
            text.extend_from_slice(named.name());
            // What is malformed by its value may be good with another.
            if named.class == Class::Malformed { class_of_name(&text) } else { named.class }
        };
        let name_len = text.len();
        text.extend_from_slice(b": ");
        rest = string(rest, &mut text)?;
        let class = class_of_line(of_name, text.get(name_len + 2..).unwrap_or(&[]));
        text.extend_from_slice(b"\r\n");
        let decoded = Line { text: &text, name_len, class };
        line(decoded);
        if kind == Literal::Indexed {
            self.insert(decoded);
        }
        self.text = text;
        Ok(rest)
    }

    fn insert(&mut self, line: Line<'_>) {
        self.changes += 1;
        // An entry larger than the table empties it, and is not put in (RFC 7541 §4.4).
        self.shrink_for(line.size());
        if line.size() <= TABLE_BYTES_MAX - self.unused_bytes {
            self.table_bytes += line.size();
            let entry = Entry { text: line.text.into(), name_len: line.name_len, class: line.class };
            self.table.push_front(entry);
        }
    }

    /// Evicts from the old end until `bytes` more fit (RFC 7541 §4.3, §4.4).
    fn shrink_for(&mut self, bytes: usize) {
        while self.table_bytes + bytes > TABLE_BYTES_MAX - self.unused_bytes {
            let Some(entry) = self.table.pop_back() else { return };
            self.table_bytes -= entry.line().size();
        }
    }

    #[cfg(test)]
    pub(super) fn table_bytes(&self) -> usize {
        self.table_bytes
    }
}

/// Reads an integer with a prefix of `bits` (RFC 7541 §5.1), and what follows it. Above 2^28 none is of use.
pub(super) fn integer(bytes: &[u8], bits: u32) -> Result<(usize, &[u8]), HpackError> {
    let (first, mut rest) = bytes.split_first().ok_or(HpackError)?;
    let mask = (1usize << bits) - 1;
    let mut value = usize::from(*first) & mask;
    if value < mask {
        return Ok((value, rest));
    }
    for shift in (0..28).step_by(7) {
        let (byte, more) = rest.split_first().ok_or(HpackError)?;
        rest = more;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok((value, rest));
        }
    }
    Err(HpackError)
}

/// Appends the string that `bytes` begins with (RFC 7541 §5.2). It is at most 8/5 of its bytes on the wire.
fn string<'b>(bytes: &'b [u8], out: &mut Vec<u8>) -> Result<&'b [u8], HpackError> {
    let is_huffman = bytes.first().is_some_and(|first| first & 0x80 != 0);
    let (len, rest) = integer(bytes, 7)?;
    let (text, rest) = rest.split_at_checked(len).ok_or(HpackError)?;
    if is_huffman {
        huffman::decode(text, out).ok_or(HpackError)?;
    } else {
        out.extend_from_slice(text);
    }
    Ok(rest)
}
