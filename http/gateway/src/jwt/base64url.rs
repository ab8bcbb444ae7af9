//! Base64url without padding (RFC 7515 §2), strictly: a text has one spelling, so that a token has one.

/// The bytes that `text` stands for. None for any byte outside the alphabet, padding and blanks included, for a length
/// that no bytes have, and for bits behind the last byte that are not zero (RFC 4648 §3.5).
pub(super) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.chunks(4) {
        let mut bits = 0u32;
        for byte in group {
            bits = bits << 6 | value(*byte)?;
        }
        match group.len() {
            4 => bytes.extend(bits.to_be_bytes().into_iter().skip(1)),
            3 if bits & 0b11 == 0 => bytes.extend((bits >> 2).to_be_bytes().into_iter().skip(2)),
            2 if bits & 0b1111 == 0 => bytes.extend((bits >> 4).to_be_bytes().into_iter().skip(3)),
            _ => return None,
        }
    }
    Some(bytes)
}

fn value(byte: u8) -> Option<u32> {
    let value = match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'-' => 62,
        b'_' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

#[cfg(test)]
pub(super) fn encode(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let mut padded = [0; 4];
        padded[1..=group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes(padded);
        for place in 0..=group.len() {
            text.push(char::from(ALPHABET[(bits >> (18 - 6 * place) & 63) as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_comes_back() {
        let bytes: Vec<u8> = (0..=255).chain([0, 255, 254, 1]).collect();
        for len in 0..bytes.len() {
            let text = encode(&bytes[..len]);
            assert_eq!(decode(text.as_bytes()).as_deref(), Some(&bytes[..len]), "{text}");
        }
        assert_eq!(decode(b"-_-_"), Some(vec![0xfb, 0xff, 0xbf]));
    }

    #[test]
    fn a_text_has_one_spelling() {
        for bad in ["A", "AAAAA", "AA==", "AA=", "AB", "AAB", "A A", "AA\n", "+A", "/A", "AA.A", "\u{e9}"] {
            assert_eq!(decode(bad.as_bytes()), None, "{bad:?}");
        }
        let spellings = (0..=255u8).filter(|last| decode(&[b'A', *last]).is_some()).count();
        assert_eq!(spellings, 4, "of two letters the second has two bits to say");
    }
}
