//! The Huffman code of HPACK (RFC 7541 appendix B). It is canonical: codes of one length follow each other in the
//! order of their symbols, so that the lengths say everything.
//!
//! Codes of up to eight bits, which all that is common in field lines have, are found by one look into a table; longer
//! ones by their length.

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
/// Codes up to this length are in [`SHORT`].
const SHORT_BITS: u32 = 8;

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

/// For each eight bits: the symbol that they begin with, and how many of them it takes; 0 when it takes more.
static SHORT: [(u8, u8); 256] = short();

const fn short() -> [(u8, u8); 256] {
    let code = canonical();
    let mut table = [(0, 0); 256];
    let mut bits = 1u8;
    while bits as u32 <= SHORT_BITS {
        let mut nth = 0;
        while nth < code.count[bits as usize] {
            let symbol = code.symbols[code.start[bits as usize] + nth as usize];
            let first = ((code.first[bits as usize] + nth) as usize) << (SHORT_BITS - bits as u32);
            let mut tail = 0;
            while tail < 1 << (SHORT_BITS - bits as u32) {
                table[first + tail] = (symbol, bits);
                tail += 1;
            }
            nth += 1;
        }
        bits += 1;
    }
    table
}

/// Appends the decoded text; None for a code that is none, or padding that is not (RFC 7541 §5.2).
pub(super) fn decode(bytes: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let mut rest = bytes.iter();
    // The last `have` bits of `bits` are to be decoded.
    let (mut bits, mut have) = (0u64, 0u32);
    loop {
        while have <= u64::BITS - 8 {
            let Some(byte) = rest.next() else { break };
            bits = (bits << 8) | u64::from(*byte);
            have += 8;
        }
        // Filled up with ones, as the padding is.
        let next =
            if have >= SHORT_BITS { bits >> (have - SHORT_BITS) } else { !(!bits << (SHORT_BITS - have)) };
        let (symbol, len) = SHORT[usize::from(next.to_le_bytes()[0])];
        if len != 0 && u32::from(len) <= have {
            out.push(symbol);
            have -= u32::from(len);
            continue;
        }
        if have < SHORT_BITS {
            // The rest is less than a byte of the end mark, which is all ones.
            let mask = (1 << have) - 1;
            return (bits & mask == mask).then_some(());
        }
        let (symbol, len) = long(bits, have)?;
        out.push(symbol);
        have -= len;
    }
}

/// The symbol of more than eight bits that the last `have` bits of `bits` begin with, and its length.
#[cold]
fn long(bits: u64, have: u32) -> Option<(u8, u32)> {
    for len in SHORT_BITS + 1..=have.min(30) {
        let code = (bits >> (have - len)) & ((1 << len) - 1);
        let index = u32::try_from(code).ok()?.wrapping_sub(CODE.first[len as usize]);
        if index < CODE.count[len as usize] {
            let at = CODE.start[len as usize] + index as usize;
            return Some((*CODE.symbols.get(at)?, len));
        }
    }
    None
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
        assert_eq!(text(&[0x00, 0x00]), None, "padding must be ones");
        assert_eq!(text(&[0xff, 0xff]), None, "more than seven bits of padding");
    }
}
