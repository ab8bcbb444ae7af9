//! The `Date` field: IMF-fixdate of RFC 9110 §5.6.7, made without allocation. A shard formats it once a
//! second and copies it into heads.

const SECONDS_A_DAY: u64 = 86_400;
/// 9999-12-31T23:59:59Z: the last second with a year of four digits.
const UNIX_S_MAX: u64 = 253_402_300_799;

const DAY_NAMES: [&[u8; 3]; 7] = [b"Thu", b"Fri", b"Sat", b"Sun", b"Mon", b"Tue", b"Wed"];
const MONTH_NAMES: [&[u8; 3]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

/// `Sun, 06 Nov 1994 08:49:37 GMT` for seconds since 1970-01-01T00:00:00Z; later than the year 9999 gives
/// the last second of 9999.
pub fn imf_fixdate(unix_s: u64) -> [u8; 29] {
    let unix_s = unix_s.min(UNIX_S_MAX);
    let (days, second) = (unix_s / SECONDS_A_DAY, unix_s % SECONDS_A_DAY);
    let (year, month, day) = civil_from_days(days);
    let mut text = *b"Thu, 01 Jan 1970 00:00:00 GMT";
    text[0..3].copy_from_slice(named(&DAY_NAMES, days % 7));
    text[5..7].copy_from_slice(&two_digits(day));
    text[8..11].copy_from_slice(named(&MONTH_NAMES, month - 1));
    text[12..14].copy_from_slice(&two_digits(year / 100));
    text[14..16].copy_from_slice(&two_digits(year % 100));
    text[17..19].copy_from_slice(&two_digits(second / 3600));
    text[20..22].copy_from_slice(&two_digits(second / 60 % 60));
    text[23..25].copy_from_slice(&two_digits(second % 60));
    text
}

fn named<'a>(names: &[&'a [u8; 3]], index: u64) -> &'a [u8; 3] {
    let index = usize::try_from(index).unwrap_or(0);
    names.get(index).copied().unwrap_or(b"???")
}

fn two_digits(number: u64) -> [u8; 2] {
    let digit = |n: u64| b"0123456789".get(usize::try_from(n % 10).unwrap_or(0)).copied().unwrap_or(b'?');
    [digit(number / 10), digit(number)]
}

/// Year, month (1 to 12) and day (1 to 31) of a day since 1970-01-01 in the Gregorian calendar. Counts from
/// 0000-03-01, so that the leap day ends a year (H. Hinnant, "chrono-compatible low-level date algorithms").
const fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let (month, carry) = if shifted_month < 10 { (shifted_month + 3, 0) } else { (shifted_month - 9, 1) };
    (era * 400 + year_of_era + carry, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(unix_s: u64) -> String {
        String::from_utf8(imf_fixdate(unix_s).to_vec()).expect("the format is ASCII")
    }

    #[test]
    fn known_instants() {
        let cases = [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (951_868_799, "Tue, 29 Feb 2000 23:59:59 GMT"),
            (1_709_164_800, "Thu, 29 Feb 2024 00:00:00 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
            (UNIX_S_MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
            (u64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ];
        for (unix_s, expected) in cases {
            assert_eq!(text(unix_s), expected);
        }
    }

    /// Walks every day up to the year 2404 against a plain calendar.
    #[test]
    fn every_day_follows_the_one_before() {
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..158_600 {
            assert_eq!(civil_from_days(days), (year, month, day), "day {days}");
            let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let days_in_month = match month {
                2 => 28 + u64::from(is_leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > days_in_month {
                (day, month) = (1, month + 1);
            }
            if month > 12 {
                (month, year) = (1, year + 1);
            }
        }
        assert!(year > 2400);
    }
}
