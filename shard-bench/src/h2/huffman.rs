//! The Huffman code of HPACK (RFC 7541 Appendix B). It is canonical: codes of one length follow each other in the
//! order of their symbols, so that the lengths say everything.

/// Bits of the code of each byte.
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28,
    28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6,
    6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7,
    8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7,
    15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24,
    23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23,
    23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26,
    26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20,
    21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27,
    27, 27, 26,
];

const BITS_MAX: usize = 30;

/// For each length: its first code, how many codes there are, and where their symbols begin in `SYMBOLS`.
struct Canonical {
    first: [u32; BITS_MAX + 1],
    count: [u32; BITS_MAX + 1],
    start: [usize; BITS_MAX + 1],
    symbols: [u8; 256],
}

static CODE: Canonical = canonical();

const fn canonical() -> Canonical {
    let mut code = Canonical {
        first: [0; BITS_MAX + 1],
        count: [0; BITS_MAX + 1],
        start: [0; BITS_MAX + 1],
        symbols: [0; 256],
    };
    let mut next = 0;
    let mut at = 0;
    let mut bits = 1;
    while bits <= BITS_MAX {
        next <<= 1;
        code.first[bits] = next;
        code.start[bits] = at;
        let mut symbol = 0u8;
        loop {
            if LENGTHS[symbol as usize] as usize == bits {
                code.symbols[at] = symbol;
                at += 1;
                next += 1;
                code.count[bits] += 1;
            }
            if symbol == u8::MAX {
                break;
            }
            symbol += 1;
        }
        bits += 1;
    }
    code
}

/// Appends the decoded text; None for a code that is none, or padding that is not (RFC 7541 §5.2).
pub(crate) fn decode(bytes: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let (mut code, mut bits) = (0u32, 0usize);
    for byte in bytes {
        for shift in (0..8).rev() {
            code = (code << 1) | u32::from(byte >> shift & 1);
            bits += 1;
            if bits > BITS_MAX {
                return None;
            }
            let index = code.wrapping_sub(CODE.first[bits]);
            if index < CODE.count[bits] {
                out.push(*CODE.symbols.get(CODE.start[bits] + index as usize)?);
                (code, bits) = (0, 0);
            }
        }
    }
    // The rest is less than a byte of the end mark, which is all ones.
    (bits < 8 && code == (1 << bits) - 1).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> Option<String> {
        let mut out = Vec::new();
        decode(bytes, &mut out)?;
        String::from_utf8(out).ok()
    }

    #[test]
    fn examples_of_the_rfc() {
        // RFC 7541 Appendix C.4 and C.6.
        for (bytes, want) in [
            (
                &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff][..],
                "www.example.com",
            ),
            (&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf], "no-cache"),
            (&[0x64, 0x02], "302"),
            (&[0xae, 0xc3, 0x77, 0x1a, 0x4b], "private"),
            (&[], ""),
        ] {
            assert_eq!(text(bytes).as_deref(), Some(want));
        }
        assert_eq!(text(&[0x00, 0x00]), Some("000".to_owned()).filter(|_| false), "padding must be ones");
        assert_eq!(text(&[0xff, 0xff]), None, "more than seven bits of padding");
    }
}
