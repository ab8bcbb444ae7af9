//! Conversions between integers, floats and durations that say how they round.

use std::time::Duration;

/// Rounds to the nearest whole number; 0 below, `u64::MAX` above the range.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float cast saturates")]
pub(crate) fn whole(value: f64) -> u64 {
    value.round() as u64
}

/// As a float; above 2^53 to the nearest one that there is.
pub(crate) fn float(value: u64) -> f64 {
    value as f64
}

/// As a float.
pub(crate) fn float_of(value: usize) -> f64 {
    float(u64::try_from(value).unwrap_or(u64::MAX))
}

/// Nanoseconds, saturated after 584 years.
pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// A span of `seconds`; zero for what is no span, `Duration::MAX` for what is too long.
pub(crate) fn seconds(seconds: f64) -> Duration {
    if seconds.is_nan() || seconds <= 0.0 {
        return Duration::ZERO;
    }
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// `part` of `whole`, 0 when there is no whole.
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { float(part) / float(whole) }
}

/// A count as a length.
pub(crate) fn length(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// A length as a count.
pub(crate) fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
