//! Character classes of RFC 9110 §5.6.2 and §5.5, and the two list helpers that every header parser needs.
//! Called by `fields`, the h1 codec and the header policies.

mod block;

pub(crate) use block::{BLOCK_BYTES, Block, first_bits};

const TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0usize;
    while byte < 256 {
        let is_alnum = matches!(byte, 0x30..=0x39 | 0x41..=0x5a | 0x61..=0x7a);
        let is_mark = matches!(
            byte,
            0x21 | 0x23
                | 0x24
                | 0x25
                | 0x26
                | 0x27
                | 0x2a
                | 0x2b
                | 0x2d
                | 0x2e
                | 0x5e
                | 0x5f
                | 0x60
                | 0x7c
                | 0x7e
        );
        table[byte] = is_alnum || is_mark;
        byte += 1;
    }
    table
};

/// Whether `byte` may stand in a token (RFC 9110 §5.6.2).
pub const fn is_token_byte(byte: u8) -> bool {
    TOKEN[byte as usize]
}

/// Whether `bytes` is a non-empty token (RFC 9110 §5.6.2).
pub fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|&b| is_token_byte(b))
}

/// Whether every byte may stand in a field value: HTAB, SP, VCHAR or obs-text (RFC 9110 §5.5).
pub fn is_field_value(bytes: &[u8]) -> bool {
    // Without an early exit the compiler checks 16 bytes at a time; nearly every value is good.
    !bytes.iter().fold(false, |bad, &b| bad | ((b < 0x20) & (b != b'\t')) | (b == 0x7f))
}

/// [`is_field_value`] of the last `len` bytes of `text`, in blocks that may begin before them: in a line that is being
/// built the name stands there, and a short value costs one block.
pub(crate) fn ends_as_field_value(text: &[u8], len: usize) -> bool {
    let (mut rest, mut left) = (text, len);
    while left > 0 {
        let Some((before, block)) = rest.split_last_chunk::<BLOCK_BYTES>() else {
            return is_field_value(rest.get(rest.len().saturating_sub(left)..).unwrap_or(rest));
        };
        let skipped = BLOCK_BYTES.saturating_sub(left);
        if Block::new(*block).controls() >> skipped != 0 {
            return false;
        }
        rest = before;
        left = left.saturating_sub(BLOCK_BYTES);
    }
    true
}

/// Whether every byte is VCHAR (RFC 5234 appendix B.1): no blank, no CTL, nothing from 0x7f on.
pub fn is_visible_ascii(bytes: &[u8]) -> bool {
    !bytes.iter().fold(false, |bad, &b| bad | (b.wrapping_sub(0x21) > 0x7e - 0x21))
}

/// `bytes` without leading and trailing SP and HTAB: optional whitespace of RFC 9110 §5.6.3.
pub fn trim_ows(bytes: &[u8]) -> &[u8] {
    let mut rest = bytes;
    while let [b' ' | b'\t', tail @ ..] = rest {
        rest = tail;
    }
    while let [head @ .., b' ' | b'\t'] = rest {
        rest = head;
    }
    rest
}

/// The elements of a comma-separated list, trimmed; empty ones are left out (RFC 9110 §5.6.1.2). Quoted
/// strings are not honoured: only for lists of tokens.
pub fn list_elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&b| b == b',').map(trim_ows).filter(|element| !element.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_exactly_their_bytes() {
        let marks = b"!#$%&'*+-.^_`|~";
        for byte in 0..=u8::MAX {
            let token = byte.is_ascii_alphanumeric() || marks.contains(&byte);
            assert_eq!(is_token(&[byte]), token, "token {byte:#x}");
            assert_eq!(is_token(&[b'a', byte]), token, "token {byte:#x}");
            let value = byte == b'\t' || (byte >= 0x20 && byte != 0x7f);
            let visible = (0x21..0x7f).contains(&byte);
            // In every position of a long slice, because the check runs in blocks.
            for at in [0, 15, 16, 31, 40] {
                let mut bytes = [b'a'; 41];
                bytes[at] = byte;
                assert_eq!(is_field_value(&bytes), value, "value {byte:#x} at {at}");
                for len in 0..=bytes.len() {
                    let is_seen = at >= bytes.len() - len;
                    assert_eq!(
                        ends_as_field_value(&bytes, len),
                        value || !is_seen,
                        "value {byte:#x} at {at}, last {len}"
                    );
                }
                assert_eq!(ends_as_field_value(&bytes[at..], 41 - at), value, "value {byte:#x}, from {at}");
                assert_eq!(is_visible_ascii(&bytes), visible, "visible {byte:#x} at {at}");
            }
        }
        assert!(!is_token(b""));
        assert!(is_field_value(b"") && is_visible_ascii(b""));
    }

    #[test]
    fn lists_are_cut_at_commas_and_trimmed() {
        let cases: [(&[u8], &[&[u8]]); 5] = [
            (b"", &[]),
            (b" , ,\t,", &[]),
            (b"close", &[b"close"]),
            (b" a ,b\t,, c d ", &[b"a", b"b", b"c d"]),
            (b"a;q=1,b", &[b"a;q=1", b"b"]),
        ];
        for (value, want) in cases {
            assert_eq!(list_elements(value).collect::<Vec<_>>(), want);
        }
    }
}
