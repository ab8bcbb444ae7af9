//! Character classes on 16 bytes at a time.
//!
//! A head of 8 fields and 290 bytes costs 2,900 instructions with these and cost 5,400 with httparse (2,200 of
//! them) and loops over bytes behind it; one with Host alone costs 870. Shown by callgrind on the example
//! `h1_cost` of this crate. `wide` gives the vectors without `unsafe`.

use wide::u8x16;

/// Bytes in a block.
pub(crate) const BLOCK_BYTES: usize = 16;

const INDEX: u8x16 = u8x16::new([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);

/// 16 bytes. A set of them is a bit mask, bit 0 for the first byte.
#[derive(Clone, Copy)]
pub(crate) struct Block(u8x16);

impl Block {
    #[inline]
    pub(crate) const fn new(bytes: [u8; BLOCK_BYTES]) -> Self {
        Self(u8x16::new(bytes))
    }

    /// The block at `at`, filled up with blanks behind the end of `text`.
    #[inline]
    pub(crate) fn at(text: &[u8], at: usize) -> Self {
        let rest = text.get(at..).unwrap_or(&[]);
        match rest.first_chunk() {
            Some(bytes) => Self::new(*bytes),
            None => Self::padded(rest),
        }
    }

    #[cold]
    fn padded(rest: &[u8]) -> Self {
        let mut bytes = [b' '; BLOCK_BYTES];
        if let Some(start) = bytes.get_mut(..rest.len()) {
            start.copy_from_slice(rest);
        }
        Self::new(bytes)
    }

    /// Where `byte` is.
    #[inline]
    pub(crate) fn find(self, byte: u8) -> u32 {
        self.0.simd_eq(u8x16::splat(byte)).to_bitmask()
    }

    /// CTL bytes other than HTAB (RFC 5234 appendix B.1): line ends, and what no head may hold.
    #[inline]
    pub(crate) fn controls(self) -> u32 {
        let low = self.0.simd_le(u8x16::splat(0x1f)) & !self.0.simd_eq(u8x16::splat(b'\t'));
        (low | self.0.simd_eq(u8x16::splat(0x7f))).to_bitmask()
    }

    /// Bytes that no request target has: everything but VCHAR, and `#` (RFC 9112 §3.2).
    #[inline]
    pub(crate) fn not_in_target(self) -> u32 {
        let visible = self.0.simd_ge(u8x16::splat(0x21)) & self.0.simd_le(u8x16::splat(0x7e));
        (!visible | self.0.simd_eq(u8x16::splat(b'#'))).to_bitmask()
    }

    /// Bytes that are no lower-case letter, digit or `-`. Nearly every lowered field name has none.
    #[inline]
    pub(crate) fn not_plain_name(self) -> u32 {
        let letter = self.0.simd_ge(u8x16::splat(b'a')) & self.0.simd_le(u8x16::splat(b'z'));
        let digit = self.0.simd_ge(u8x16::splat(b'0')) & self.0.simd_le(u8x16::splat(b'9'));
        (!(letter | digit | self.0.simd_eq(u8x16::splat(b'-')))).to_bitmask()
    }

    /// With ASCII letters among the first `len` bytes in lower case.
    #[inline]
    pub(crate) fn lower(self, len: usize) -> Self {
        let upper = self.0.simd_ge(u8x16::splat(b'A')) & self.0.simd_le(u8x16::splat(b'Z')) & first(len);
        Self(self.0 | (upper & u8x16::splat(0x20)))
    }

    /// The first `len` bytes as a number, the first byte lowest.
    #[inline]
    pub(crate) fn key(self, len: usize) -> u128 {
        u128::from_le_bytes((self.0 & first(len)).to_array())
    }

    #[inline]
    pub(crate) fn to_bytes(self) -> [u8; BLOCK_BYTES] {
        self.0.to_array()
    }
}

/// The set of the first `len` bytes, for masks of [`Block::find`] and its like.
#[inline]
pub(crate) const fn first_bits(len: usize) -> u32 {
    if len >= BLOCK_BYTES { 0xffff } else { (1 << len) - 1 }
}

#[inline]
fn first(len: usize) -> u8x16 {
    INDEX.simd_lt(u8x16::splat(u8::try_from(len).unwrap_or(u8::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits_where(bytes: &[u8; BLOCK_BYTES], class: impl Fn(u8) -> bool) -> u32 {
        bytes.iter().enumerate().map(|(i, &b)| u32::from(class(b)) << i).sum()
    }

    #[test]
    fn every_byte_in_every_place_is_classed_as_the_plain_definition_says() {
        for byte in 0..=u8::MAX {
            for place in 0..BLOCK_BYTES {
                let mut bytes = *b"Aa-z09 \t:#\r\n~\x7f\x80\xff";
                bytes[place] = byte;
                let block = Block::new(bytes);
                assert_eq!(block.find(byte), bits_where(&bytes, |b| b == byte));
                assert_eq!(
                    block.controls(),
                    bits_where(&bytes, |b| b.is_ascii_control() && b != b'\t'),
                    "{bytes:?}"
                );
                assert_eq!(
                    block.not_in_target(),
                    bits_where(&bytes, |b| !b.is_ascii_graphic() || b == b'#'),
                    "{bytes:?}"
                );
                let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
                assert_eq!(block.not_plain_name(), bits_where(&bytes, |b| !plain(b)), "{bytes:?}");
            }
        }
    }

    #[test]
    fn lowering_and_keys_stop_at_their_length() {
        let bytes = *b"ABCxyz[@`{Z-0A\xc1\x0d";
        for len in 0..=BLOCK_BYTES {
            let mut want = bytes;
            want[..len].make_ascii_lowercase();
            let block = Block::new(bytes).lower(len);
            assert_eq!(block.to_bytes(), want);
            let mut key = [0; BLOCK_BYTES];
            key[..len].copy_from_slice(&want[..len]);
            assert_eq!(block.key(len), u128::from_le_bytes(key));
            assert_eq!(first_bits(len).count_ones() as usize, len);
        }
    }

    #[test]
    fn behind_the_end_there_are_blanks() {
        for len in 0..20 {
            let text = vec![b'x'; len];
            for at in 0..25 {
                let here = len.saturating_sub(at).min(BLOCK_BYTES);
                assert_eq!(Block::at(&text, at).find(b'x'), first_bits(here), "{len} {at}");
            }
        }
    }
}
