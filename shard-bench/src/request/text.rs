//! Text with placeholders: `{seq}` a running number, `{rand:LOW-HIGH}` a random one, `{hex:N}` N random hex digits.
//!
//! Any other pair of braces stays as it is, so that JSON bodies need no escapes. Filled for each request from the
//! core's seeded generator; text without placeholders is one literal and costs a copy.

use crate::number::length;
use crate::rng::Rng;

/// Digits of one `{hex:N}`.
const HEX_DIGITS_MAX: u64 = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Literal(Vec<u8>),
    Sequence,
    Random { low: u64, span: u64 },
    Hex(usize),
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Text(Vec<Piece>);

/// What placeholders are filled from; one for each core.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    sequence: u64,
    step: u64,
    rng: Rng,
}

impl Values {
    /// For core `core` of `cores`, so that `{seq}` is unique over all of them.
    pub(crate) fn new(seed: u64, core: u64, cores: u64) -> Self {
        Self { sequence: core, step: cores, rng: Rng::new(seed ^ 0x7465_7874, core) }
    }

    /// Moves on to the next request.
    pub(crate) fn advance(&mut self) {
        self.sequence += self.step;
    }

    /// A random number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }
}

impl Text {
    /// Bytes that stay as they are.
    pub(crate) fn literal(bytes: &[u8]) -> Self {
        if bytes.is_empty() { Self::default() } else { Self(vec![Piece::Literal(bytes.to_vec())]) }
    }

    /// Reads placeholders.
    ///
    /// # Errors
    /// A placeholder with a bad range, named.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut literal = Vec::new();
        let mut rest = text;
        while let Some((&byte, after)) = rest.split_first() {
            let end = if byte == b'{' { after.iter().position(|b| *b == b'}') } else { None };
            let inner = end.and_then(|end| after.get(..end)).unwrap_or(&[]);
            match (end, placeholder(inner)?) {
                (Some(end), Some(piece)) => {
                    if !literal.is_empty() {
                        pieces.push(Piece::Literal(std::mem::take(&mut literal)));
                    }
                    pieces.push(piece);
                    rest = after.get(end + 1..).unwrap_or(&[]);
                }
                _ => {
                    literal.push(byte);
                    rest = after;
                }
            }
        }
        if !literal.is_empty() {
            pieces.push(Piece::Literal(literal));
        }
        Ok(Self(pieces))
    }

    /// The bytes, when they are always the same.
    pub(crate) fn fixed(&self) -> Option<&[u8]> {
        match self.0.as_slice() {
            [] => Some(&[]),
            [Piece::Literal(bytes)] => Some(bytes),
            _ => None,
        }
    }

    /// Appends the text for the current request.
    pub(crate) fn fill(&self, values: &mut Values, out: &mut Vec<u8>) {
        for piece in &self.0 {
            match piece {
                Piece::Literal(bytes) => out.extend_from_slice(bytes),
                Piece::Sequence => decimal(values.sequence, out),
                Piece::Random { low, span } => decimal(low + values.rng.below(*span), out),
                Piece::Hex(digits) => {
                    for index in 0..*digits {
                        let nibble = values.rng.next() >> (index % 15 * 4) & 15;
                        out.push(b"0123456789abcdef"[length(nibble)]);
                    }
                }
            }
        }
    }
}

/// A placeholder without its braces; None for text that is none.
fn placeholder(inner: &[u8]) -> Result<Option<Piece>, String> {
    let Ok(inner) = std::str::from_utf8(inner) else { return Ok(None) };
    if inner == "seq" {
        return Ok(Some(Piece::Sequence));
    }
    let wrong = |wanted: &str| format!("{{{inner}}}: {wanted}");
    if let Some(range) = inner.strip_prefix("rand:") {
        let wanted = "want {rand:LOW-HIGH} with LOW up to HIGH, such as {rand:1-100}";
        let (low, high) = range.split_once('-').ok_or_else(|| wrong(wanted))?;
        let parse = |text: &str| text.parse::<u64>().map_err(|error| format!("{} ({error})", wrong(wanted)));
        let (low, high) = (parse(low)?, parse(high)?);
        let span = high.checked_sub(low).and_then(|span| span.checked_add(1)).ok_or_else(|| wrong(wanted))?;
        return Ok(Some(Piece::Random { low, span }));
    }
    if let Some(digits) = inner.strip_prefix("hex:") {
        let digits = digits.parse::<u64>().ok().filter(|digits| (1..=HEX_DIGITS_MAX).contains(digits));
        let digits = digits.ok_or_else(|| wrong("want {hex:N} with 1 to 4096 digits"))?;
        return Ok(Some(Piece::Hex(length(digits))));
    }
    Ok(None)
}

/// Appends a number in decimal.
pub(crate) fn decimal(mut value: u64, out: &mut Vec<u8>) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(value % 10).unwrap_or(0);
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(text: &str, values: &mut Values) -> String {
        let mut out = Vec::new();
        Text::parse(text.as_bytes()).expect("good").fill(values, &mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn placeholders_are_filled_and_other_braces_stay() {
        let mut values = Values::new(1, 3, 4);
        assert_eq!(fill("/a/{seq}?x={y}", &mut values), "/a/3?x={y}");
        values.advance();
        assert_eq!(fill("{\"n\":{seq}}", &mut values), "{\"n\":7}");
        for _ in 0..100 {
            let n: u64 = fill("{rand:5-7}", &mut values).parse().expect("a number");
            assert!((5..=7).contains(&n));
        }
        let hex = fill("{hex:20}", &mut values);
        assert!(hex.len() == 20 && hex.bytes().all(|b| b.is_ascii_hexdigit()), "{hex}");
        assert_eq!(Text::parse(b"{}{").expect("good").fixed(), Some(&b"{}{"[..]));
    }

    #[test]
    fn the_seed_decides() {
        let draw = |seed| fill("{hex:32}", &mut Values::new(seed, 0, 1));
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn bad_ranges_are_named() {
        for text in ["{rand:9-1}", "{rand:x-1}", "{rand:1}", "{hex:0}", "{hex:many}"] {
            let error = Text::parse(text.as_bytes()).expect_err("bad");
            assert!(error.starts_with(text), "{error}");
        }
    }

    #[test]
    fn decimals() {
        for value in [0, 9, 10, 12_345, u64::MAX] {
            let mut out = Vec::new();
            decimal(value, &mut out);
            assert_eq!(out, value.to_string().into_bytes());
        }
    }
}
