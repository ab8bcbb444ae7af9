//! Untrusted bytes inside a log line: bounded, escaped, and always one line of valid UTF-8.
//!
//! Rules, for JSON strings and template values alike:
//! - `"` and `\` get a backslash before them;
//! - control characters, C1 ones included, line and paragraph separators, and characters that reorder or hide text
//!   in a terminal or editor become `\uXXXX`;
//! - a byte that is not part of valid UTF-8 becomes `\u00XX` of its value;
//! - past its bound a value ends in `…+N`, where N is the number of bytes left out.
//!
//! So whatever a client sends, a line stays one line and a JSON reader gets it back.

use std::io::Write as _;

/// Writes one value, piece by piece, within its bound.
pub(crate) struct Value<'a> {
    out: &'a mut Vec<u8>,
    left_bytes: usize,
    dropped_bytes: usize,
}

impl<'a> Value<'a> {
    /// A value of up to `bytes_max` source bytes at the end of `out`.
    pub(crate) fn new(out: &'a mut Vec<u8>, bytes_max: usize) -> Self {
        Self { out, left_bytes: bytes_max, dropped_bytes: 0 }
    }

    /// Adds a piece. Pieces must not be cut within a character.
    pub(crate) fn push(&mut self, piece: &[u8]) {
        // Nothing follows what was dropped, or the mark would lie about where it was.
        let fits = if self.dropped_bytes > 0 { 0 } else { boundary(piece, self.left_bytes) };
        let (kept, dropped) = piece.split_at(fits);
        self.left_bytes -= kept.len();
        self.dropped_bytes += dropped.len();
        // Nearly every value is plain as a whole, and then this is one scan and one copy.
        let (plain, rest) = kept.split_at(plain_len(kept));
        self.out.extend_from_slice(plain);
        for chunk in rest.utf8_chunks() {
            push_text(self.out, chunk.valid());
            for byte in chunk.invalid() {
                push_code(self.out, u32::from(*byte));
            }
        }
    }

    /// Ends the value, with the mark where something was left out.
    pub(crate) fn finish(self) {
        if self.dropped_bytes > 0 {
            write!(self.out, "…+{}", self.dropped_bytes).expect("a Vec takes every byte");
        }
    }
}

/// How many bytes at the start surely stand for themselves. Whole blocks without a branch, so that the compiler
/// makes vector code of them.
fn plain_len(bytes: &[u8]) -> usize {
    let is_special = |b: u8| !(0x20..=0x7e).contains(&b) || b == b'"' || b == b'\\';
    let blocks = bytes.chunks_exact(16);
    let tail = blocks.remainder();
    let plain_blocks =
        blocks.take_while(|block| !block.iter().fold(false, |any, b| any | is_special(*b))).count();
    let plain = plain_blocks * 16;
    if plain + tail.len() == bytes.len() && !tail.iter().any(|b| is_special(*b)) {
        bytes.len()
    } else {
        plain
    }
}

/// Escapes `bytes` to the end of `out`, at most `bytes_max` of them.
pub(crate) fn write_escaped(out: &mut Vec<u8>, bytes: &[u8], bytes_max: usize) {
    let mut value = Value::new(out, bytes_max);
    value.push(bytes);
    value.finish();
}

/// The largest cut at or below `max` that does not split a character.
fn boundary(bytes: &[u8], max: usize) -> usize {
    if bytes.len() <= max {
        return bytes.len();
    }
    let is_continuation = |at: usize| bytes.get(at).is_some_and(|b| b & 0xc0 == 0x80);
    // A character has at most three continuation bytes; more of them in a row are no character.
    (0..=3).filter_map(|back| max.checked_sub(back)).find(|at| !is_continuation(*at)).unwrap_or(max)
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    let mut plain_from = 0;
    for (at, character) in text.char_indices() {
        let is_mark = matches!(character, '"' | '\\');
        if !is_mark && !is_hidden(character) {
            continue;
        }
        out.extend_from_slice(&text.as_bytes()[plain_from..at]);
        if is_mark {
            out.push(b'\\');
            plain_from = at;
        } else {
            push_code(out, u32::from(character));
            plain_from = at + character.len_utf8();
        }
    }
    out.extend_from_slice(&text.as_bytes()[plain_from..]);
}

/// Characters that end a line, move the cursor, or change how the text around them looks.
const fn is_hidden(character: char) -> bool {
    matches!(character,
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

/// `\uXXXX`; every hidden character lies in the basic plane.
fn push_code(out: &mut Vec<u8>, code: u32) {
    write!(out, "\\u{code:04x}").expect("a Vec takes every byte");
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_balance::Rng;

    fn escaped(bytes: &[u8], bytes_max: usize) -> String {
        let mut out = Vec::new();
        write_escaped(&mut out, bytes, bytes_max);
        String::from_utf8(out).expect("valid UTF-8")
    }

    /// What a JSON reader gets: text as it is, each invalid byte as the character of its value.
    fn expected(bytes: &[u8]) -> String {
        bytes
            .utf8_chunks()
            .flat_map(|c| c.valid().chars().chain(c.invalid().iter().map(|b| char::from(*b))))
            .collect()
    }

    #[test]
    fn special_bytes_have_one_fixed_form() {
        let table: [(&[u8], &str); 12] = [
            (b"plain /path?x=1", "plain /path?x=1"),
            (b"a\" b", "a\\\" b"),
            (b"\\", "\\\\"),
            (b"a\r\nFAKE", "a\\u000d\\u000aFAKE"),
            (b"\x7f\x00\x1b[2J", "\\u007f\\u0000\\u001b[2J"),
            (b"\xff\xfe", "\\u00ff\\u00fe"),
            ("é€😀".as_bytes(), "é€😀"),
            (b"\xed\xa0\x80", "\\u00ed\\u00a0\\u0080"),
            ("\u{85}\u{9b}".as_bytes(), "\\u0085\\u009b"),
            ("\u{2028}\u{202e}\u{feff}".as_bytes(), "\\u2028\\u202e\\ufeff"),
            (b"\xe2\x82", "\\u00e2\\u0082"),
            (b"", ""),
        ];
        for (bytes, text) in table {
            assert_eq!(escaped(bytes, 100), text, "{bytes:?}");
        }
    }

    #[test]
    fn long_values_are_cut_at_a_character_and_marked() {
        assert_eq!(escaped(&[b'a'; 64_000], 10), "aaaaaaaaaa…+63990");
        assert_eq!(escaped(b"aaaaaaaaaa", 10), "aaaaaaaaaa");
        for (max, text) in
            [(0, "…+6"), (1, "…+6"), (2, "é…+4"), (3, "é…+4"), (4, "éé…+2"), (5, "éé…+2"), (6, "ééé")]
        {
            assert_eq!(escaped("ééé".as_bytes(), max), text, "{max}");
        }
        assert_eq!(
            escaped(&[0x80; 9], 5),
            "\\u0080\\u0080\\u0080\\u0080\\u0080…+4",
            "no character to keep whole"
        );
        let mut out = Vec::new();
        let mut value = Value::new(&mut out, 5);
        for piece in [&b"abc"[..], b"defg", b"h"] {
            value.push(piece);
        }
        value.finish();
        assert_eq!(out, "abcde…+3".as_bytes());
    }

    #[test]
    fn random_bytes_come_back_through_a_json_reader() {
        let mut rng = Rng::new(17);
        for round in 0..4_000 {
            let len = rng.below(60);
            let alphabet: &[u8] =
                b"\"\\\n\r\t\x00\x7f\x80\xbf\xc3\xa9\xe2\x80\xa8\xed\xa0\xf0\x9f\x98\x80\xff a";
            let bytes: Vec<u8> = (0..len)
                .map(|_| match round % 2 {
                    0 => u8::try_from(rng.below(256)).unwrap(),
                    _ => {
                        alphabet[usize::try_from(rng.below(u64::try_from(alphabet.len()).unwrap())).unwrap()]
                    }
                })
                .collect();
            let text = escaped(&bytes, 1000);
            assert!(!text.chars().any(is_hidden), "{bytes:?}");
            let read: String = serde_json::from_str(&format!("\"{text}\"")).expect("valid JSON");
            assert_eq!(read, expected(&bytes), "{bytes:?}");
        }
    }
}
