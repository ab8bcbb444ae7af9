//! Values with units: durations, sizes, dates. Each has one way to be written, shown in every objection.

use std::time::Duration;

use crate::finding::Problem;

const DURATION_FIX: &str = "write a whole number with ms, s, m, h or d, such as `30s`";
const SIZE_FIX: &str = "write a whole number with B, KiB, MiB or GiB, such as `64KiB`";
const DATE_FIX: &str = "write a UTC date such as `2027-01-31` or `2027-01-31T12:00:00Z`";

/// Reads `250ms`, `30s`, `5m`, `1h`, `7d`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, Problem> {
    let bad = |message: &str| Problem::new(message, DURATION_FIX);
    let (number, unit) = split_unit(text).ok_or_else(|| bad("not a duration"))?;
    let ms_per_unit: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "" => return Err(bad("a duration without a unit")),
        _ => return Err(bad("not a unit of time")),
    };
    number.checked_mul(ms_per_unit).map(Duration::from_millis).ok_or_else(|| bad("too long"))
}

/// Writes a duration as [`parse_duration`] reads it, in the largest unit that fits.
pub(crate) fn show_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    for (unit, per_unit) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)] {
        if ms >= per_unit && ms.is_multiple_of(per_unit) {
            return format!("{}{unit}", ms / per_unit);
        }
    }
    if ms == 0 { "0s".to_owned() } else { format!("{ms}ms") }
}

/// Reads `512B`, `64KiB`, `16MiB`, `1GiB`.
pub(crate) fn parse_size(text: &str) -> Result<u64, Problem> {
    let bad = |message: &str| Problem::new(message, SIZE_FIX);
    let (number, unit) = split_unit(text).ok_or_else(|| bad("not a size"))?;
    let bytes_per_unit: u64 = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        "" => return Err(bad("a size without a unit")),
        _ => return Err(bad("not a unit of size")),
    };
    number.checked_mul(bytes_per_unit).ok_or_else(|| bad("too large"))
}

/// Writes a size as [`parse_size`] reads it, in the largest unit that fits.
pub(crate) fn show_size(bytes: u64) -> String {
    for (unit, per_unit) in [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes >= per_unit && bytes.is_multiple_of(per_unit) {
            return format!("{}{unit}", bytes / per_unit);
        }
    }
    format!("{bytes}B")
}

fn split_unit(text: &str) -> Option<(u64, &str)> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at_checked(digits)?;
    Some((number.parse().ok()?, unit))
}

/// A moment in UTC, to the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UtcDate {
    pub(crate) unix_s: i64,
}

/// Reads `2027-01-31` or `2027-01-31T12:00:00Z`, years 1970 to 9999.
pub(crate) fn parse_date(text: &str) -> Result<UtcDate, Problem> {
    read_date(text).ok_or_else(|| Problem::new("not a date", DATE_FIX))
}

fn read_date(text: &str) -> Option<UtcDate> {
    let (date, time) = match text.split_once('T') {
        Some((date, time)) => (date, time.strip_suffix('Z')?),
        None => (text, "00:00:00"),
    };
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
    let in_range = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=days_in_month(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    in_range.then(|| UtcDate {
        unix_s: days_from_civil(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second,
    })
}

fn numbers(text: &str, separator: char, widths: [usize; 3]) -> Option<[i64; 3]> {
    let mut parts = text.split(separator);
    let mut read = [0; 3];
    for (number, width) in read.iter_mut().zip(widths) {
        let part = parts.next()?;
        if part.len() != width || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(read)
}

const fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970-01-01 in the proleptic Gregorian calendar; years from 1970.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let leap_days_before = |y: i64| y / 4 - y / 100 + y / 400;
    let whole_years = (year - 1970) * 365 + leap_days_before(year - 1) - leap_days_before(1969);
    let whole_months: i64 = (1..month).map(|m| days_in_month(year, m)).sum();
    whole_years + whole_months + day - 1
}

impl UtcDate {
    /// The value of `Deprecation` (RFC 9745 §2.1, a structured date).
    pub(crate) fn structured(self) -> String {
        format!("@{}", self.unix_s)
    }

    /// An IMF-fixdate (RFC 9110 §5.6.7).
    pub(crate) fn imf_fixdate(self) -> String {
        const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
        const MONTHS: [&str; 12] =
            ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let (days, second) = (self.unix_s / 86_400, self.unix_s % 86_400);
        let (mut year, mut day) = (1970, days);
        let year_days = |y| 337 + days_in_month(y, 2);
        while day >= year_days(year) {
            day -= year_days(year);
            year += 1;
        }
        let mut month = 1;
        while day >= days_in_month(year, month) {
            day -= days_in_month(year, month);
            month += 1;
        }
        let name = |names: &[&'static str], at: i64| {
            usize::try_from(at).ok().and_then(|at| names.get(at).copied()).unwrap_or("")
        };
        format!(
            "{}, {:02} {} {year} {:02}:{:02}:{:02} GMT",
            name(&WEEKDAYS, days % 7),
            day + 1,
            name(&MONTHS, month - 1),
            second / 3_600,
            second / 60 % 60,
            second % 60
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_and_write_in_their_units() {
        for (text, ms, shown) in [
            ("0s", 0, "0s"),
            ("1ms", 1, "1ms"),
            ("1500ms", 1_500, "1500ms"),
            ("60s", 60_000, "1m"),
            ("90m", 5_400_000, "90m"),
            ("24h", 86_400_000, "1d"),
            ("7d", 604_800_000, "7d"),
        ] {
            let duration = parse_duration(text).expect(text);
            assert_eq!(duration, Duration::from_millis(ms), "{text}");
            assert_eq!(show_duration(duration), shown, "{text}");
            assert_eq!(parse_duration(shown), Ok(duration), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_with_an_example() {
        for text in [
            "",
            "s",
            "30",
            "30 s",
            "1.5s",
            "-1s",
            "30S",
            "1h30m",
            "99999999999999999999s",
            "18446744073709551615d",
        ] {
            let problem = parse_duration(text).expect_err(text);
            assert!(problem.fix.contains("30s"), "{problem:?}");
        }
    }

    #[test]
    fn sizes_read_and_write_in_their_units() {
        for (text, bytes, shown) in [
            ("0B", 0, "0B"),
            ("1000B", 1_000, "1000B"),
            ("1024B", 1_024, "1KiB"),
            ("64KiB", 65_536, "64KiB"),
            ("16MiB", 16 << 20, "16MiB"),
            ("2GiB", 2 << 30, "2GiB"),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
            assert_eq!(show_size(bytes), shown);
        }
        for text in ["", "64", "64K", "64KB", "64kib", "-1B", "1.5MiB", "18446744073709551615GiB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn dates_become_seconds_and_fixdates() {
        for (text, unix_s, fixdate) in [
            ("1970-01-01", 0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            ("1994-11-06T08:49:37Z", 784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            ("2024-02-29", 1_709_164_800, "Thu, 29 Feb 2024 00:00:00 GMT"),
            ("2026-01-01", 1_767_225_600, "Thu, 01 Jan 2026 00:00:00 GMT"),
            ("2100-03-01", 4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
        ] {
            let date = parse_date(text).expect(text);
            assert_eq!((date.unix_s, date.imf_fixdate().as_str()), (unix_s, fixdate));
        }
        for text in [
            "",
            "2026",
            "2026-1-1",
            "2025-02-29",
            "2100-02-29",
            "2026-13-01",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00+01:00",
        ] {
            assert!(parse_date(text).is_err(), "{text}");
        }
    }
}
