//! Times as plain integers, for divisions that a [`Duration`] makes dear.

use std::time::Duration;

/// Whole milliseconds.
#[inline]
pub(crate) const fn millis(time: Duration) -> u64 {
    time.as_secs().saturating_mul(1000).saturating_add(time.subsec_millis() as u64)
}

/// Whole microseconds.
#[inline]
pub(crate) const fn micros(time: Duration) -> u64 {
    time.as_secs().saturating_mul(1_000_000).saturating_add(time.subsec_micros() as u64)
}

/// A count that is known to be small, as the smaller type; at its end when it is not.
#[inline]
pub(crate) fn narrow(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// An index or length as an integer that can be stored.
#[inline]
pub(crate) fn stored(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
