//! W3C Trace Context (the W3C's "Trace Context", cited as §): checks a client's `traceparent`, or begins one.
//!
//! A valid `traceparent` is passed on byte for byte, with every `tracestate` line untouched. An invalid or
//! repeated one is replaced by a new one, and then `tracestate` has to go, because it belonged to the other
//! (§3.2.1, §4.2). The proxy makes no spans of its own, so it never changes the parent id.

use crate::number::hex_digits;

/// Bytes of a version 00 `traceparent`.
pub const TRACEPARENT_BYTES: usize = 55;

/// The parts of a `traceparent` that every version has (§3.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// Never zero.
    pub trace_id: u128,
    /// Never zero.
    pub parent_id: u64,
    /// Bit 0: the caller records this trace.
    pub flags: u8,
}

impl TraceParent {
    /// Bit 0 of `flags`.
    pub const SAMPLED: u8 = 1;

    /// Checks a `traceparent` value. Version 00 has to be exactly 55 bytes; a later one has to begin like it
    /// and may go on behind a `-` (§3.2.4). None when it is to be replaced.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (known, rest) = value.split_first_chunk::<TRACEPARENT_BYTES>()?;
        let is_separated = [2, 35, 52].iter().all(|&at| known.get(at) == Some(&b'-'));
        let version = hex(known.get(0..2)?)?;
        let is_length_right = match version {
            0 => rest.is_empty(),
            0xff => false,
            _ => matches!(rest, [] | [b'-', ..]),
        };
        if !is_separated || !is_length_right {
            return None;
        }
        let trace_id = hex(known.get(3..35)?)?;
        let parent_id = u64::try_from(hex(known.get(36..52)?)?).ok()?;
        let flags = u8::try_from(hex(known.get(53..55)?)?).ok()?;
        (trace_id != 0 && parent_id != 0).then_some(Self { trace_id, parent_id, flags })
    }

    /// The request's trace when exactly one valid `traceparent` line is there (§3.2).
    pub fn from_lines<'a>(lines: impl IntoIterator<Item = &'a [u8]>) -> Option<Self> {
        let mut lines = lines.into_iter();
        let parent = Self::parse(lines.next()?)?;
        lines.next().is_none().then_some(parent)
    }

    /// Begins a trace from random numbers, not recorded. Zero is no id (§3.2.2.3, §3.2.2.4), so it becomes 1.
    pub const fn begin(random_trace_id: u128, random_parent_id: u64) -> Self {
        Self {
            trace_id: if random_trace_id == 0 { 1 } else { random_trace_id },
            parent_id: if random_parent_id == 0 { 1 } else { random_parent_id },
            flags: 0,
        }
    }

    /// The value in version 00.
    pub fn to_bytes(self) -> [u8; TRACEPARENT_BYTES] {
        let half = |number: u128| u64::try_from(number & u128::from(u64::MAX)).unwrap_or(0);
        let mut text = [b'-'; TRACEPARENT_BYTES];
        text[0..2].copy_from_slice(b"00");
        text[3..19].copy_from_slice(&hex_digits(half(self.trace_id >> 64)));
        text[19..35].copy_from_slice(&hex_digits(half(self.trace_id)));
        text[36..52].copy_from_slice(&hex_digits(self.parent_id));
        text[53..55].copy_from_slice(&hex_digits(u64::from(self.flags))[14..]);
        text
    }
}

/// Lower-case hex only (§3.2.2: HEXDIGLC). At most 32 digits.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0u128, |sum, &digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(sum << 4 | u128::from(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_good_one_is_read_and_written_back() {
        let parent = TraceParent::parse(GOOD.as_bytes()).expect("the example of the standard");
        assert_eq!(parent.trace_id, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
        assert_eq!(parent.parent_id, 0xb7ad_6b71_6920_3331);
        assert_eq!(parent.flags & TraceParent::SAMPLED, 1);
        assert_eq!(parent.to_bytes(), *GOOD.as_bytes());
    }

    #[test]
    fn later_versions_may_go_on_behind_a_dash() {
        for tail in ["", "-", "-more", "-00-11"] {
            for version in ["01", "cc", "fe"] {
                let value = format!("{version}{}{tail}", &GOOD[2..]);
                assert!(TraceParent::parse(value.as_bytes()).is_some(), "{value}");
            }
            let value = format!("ff{}{tail}", &GOOD[2..]);
            assert_eq!(TraceParent::parse(value.as_bytes()), None, "{value}");
        }
        for value in
            [format!("{GOOD}-"), format!("{GOOD}-more"), format!("01{}x", &GOOD[2..]), format!("{GOOD} ")]
        {
            assert_eq!(TraceParent::parse(value.as_bytes()), None, "{value}");
        }
    }

    #[test]
    fn malformed_ones_are_refused() {
        for at in 0..GOOD.len() {
            assert_eq!(TraceParent::parse(&GOOD.as_bytes()[..at]), None);
            for byte in [b'g', b'A', b' ', b'_', 0, 0xff] {
                let mut bent = GOOD.as_bytes().to_vec();
                bent[at] = byte;
                assert_eq!(TraceParent::parse(&bent), None, "{at}");
            }
        }
        for zero in [
            format!("00-{}-b7ad6b7169203331-01", "0".repeat(32)),
            format!("00-{}-{}-01", "1".repeat(32), "0".repeat(16)),
        ] {
            assert_eq!(TraceParent::parse(zero.as_bytes()), None);
        }
    }

    #[test]
    fn only_a_single_line_counts() {
        let good = GOOD.as_bytes();
        assert!(TraceParent::from_lines([good]).is_some());
        assert_eq!(TraceParent::from_lines([good, good]), None);
        assert_eq!(TraceParent::from_lines([]), None);
        assert_eq!(TraceParent::from_lines([&b"junk"[..], good]), None);
    }

    #[test]
    fn what_is_begun_is_valid() {
        for (trace, parent) in [(0, 0), (1, u64::MAX), (u128::MAX, 1)] {
            let begun = TraceParent::begin(trace, parent);
            assert_eq!(TraceParent::parse(&begun.to_bytes()), Some(begun));
        }
    }
}
