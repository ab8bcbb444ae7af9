//! Numbers, addresses and times, written digit by digit: the formatting machinery of the standard library made up two
//! thirds of a log line's cost (`cargo bench -p http-proxy --bench record`) and 1,000 instructions of each request.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};

/// The decimal digits of one number, without allocation.
#[derive(Clone, Copy, Debug)]
pub struct Decimal {
    digits: [u8; Self::DIGITS_MAX],
    at: usize,
}

impl Decimal {
    /// Digits of `u64::MAX`.
    pub const DIGITS_MAX: usize = 20;

    pub fn new(number: u64) -> Self {
        let mut digits = [b'0'; Self::DIGITS_MAX];
        let mut at = Self::DIGITS_MAX;
        let mut rest = number;
        while rest >= 10 {
            at -= 2;
            [digits[at], digits[at + 1]] = two_digits(rest % 100);
            rest /= 100;
        }
        if rest > 0 || at == Self::DIGITS_MAX {
            at -= 1;
            digits[at] = digit(rest);
        }
        Self { digits, at }
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.digits.get(self.at..).unwrap_or(&[])
    }
}

/// 1*DIGIT that fits into 63 bits, so that sums of two never overflow. Leading zeros are digits.
pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    let mut number = 0u64;
    for digit in digits {
        let value = digit.wrapping_sub(b'0');
        if value > 9 {
            return None;
        }
        number = number.checked_mul(10)?.checked_add(u64::from(value))?;
    }
    i64::try_from(number).is_ok().then_some(number)
}

/// Appends a decimal number.
pub fn push_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(Decimal::new(number).as_bytes());
}

/// Appends the last `N` decimal digits of a number.
fn push_padded<const N: usize>(out: &mut Vec<u8>, number: u64) {
    let mut digits = [0u8; N];
    let mut rest = number;
    for slot in digits.iter_mut().rev() {
        *slot = digit(rest % 10);
        rest /= 10;
    }
    out.extend_from_slice(&digits);
}

fn digit(number: u64) -> u8 {
    b'0' + u8::try_from(number).unwrap_or(0)
}

/// Of a number below 100.
fn two_digits(number: u64) -> [u8; 2] {
    /// 00 to 99.
    static PAIRS: [[u8; 2]; 100] = {
        let mut pairs = [[b'0'; 2]; 100];
        let mut at = 1;
        while at < 100 {
            let [tens, ones] = pairs[at - 1];
            pairs[at] = if ones == b'9' { [tens + 1, b'0'] } else { [tens, ones + 1] };
            at += 1;
        }
        pairs
    };
    PAIRS[usize::try_from(number).map_or(0, |number| number % 100)]
}

/// Appends an address.
pub fn push_address(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => {
            let mut text = [b'.'; 16];
            let mut len = 0;
            for octet in v4.octets() {
                if octet >= 100 {
                    text[len] = b'0' + octet / 100;
                    len += 1;
                }
                if octet >= 10 {
                    text[len] = b'0' + octet / 10 % 10;
                    len += 1;
                }
                text[len] = b'0' + octet % 10;
                len += 2;
            }
            // All but the last dot. A copy of one size is quicker than one of the right size.
            let end = out.len() + len - 1;
            out.extend_from_slice(&text);
            out.truncate(end);
        }
        IpAddr::V6(v6) => write!(out, "{v6}").expect("a Vec takes every byte"),
    }
}

/// The 16 lower-case hexadecimal digits of a number, eight at a time.
pub fn hex_digits(number: u64) -> [u8; 16] {
    let mut text = [0; 16];
    let halves = [number >> 32, number & 0xffff_ffff];
    for (eight, half) in text.as_chunks_mut::<8>().0.iter_mut().zip(halves) {
        *eight = eight_hex_digits(half);
    }
    text
}

/// The digits of a number below 2^32. Each nibble goes into a byte of its own; all bytes are then made digits at once.
const fn eight_hex_digits(number: u64) -> [u8; 8] {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let pairs = (number | number << 16) & 0x0000_ffff_0000_ffff;
    let bytes = (pairs | pairs << 8) & 0x00ff_00ff_00ff_00ff;
    let nibbles = (bytes | bytes << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    // 1 in each byte that is 10 or more.
    let letters = (nibbles + 6 * ONES) >> 4 & ONES;
    (nibbles + b'0' as u64 * ONES + letters * (b'a' - b'0' - 10) as u64).to_be_bytes()
}

/// Appends an address and port.
pub fn push_socket_address(out: &mut Vec<u8>, address: SocketAddr) {
    match address {
        SocketAddr::V4(v4) => {
            push_address(out, IpAddr::V4(*v4.ip()));
            out.push(b':');
            push_number(out, u64::from(v4.port()));
        }
        SocketAddr::V6(v6) => write!(out, "{v6}").expect("a Vec takes every byte"),
    }
}

/// Appends `2026-01-31T23:59:59.999Z` for milliseconds since 1970, by the civil calendar's 400-year cycle (Hinnant,
/// "chrono-Compatible Low-Level Date Algorithms").
pub fn push_time(out: &mut Vec<u8>, unix_ms: u64) {
    let (seconds, ms) = (unix_ms / 1000, unix_ms % 1000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01; years begin in March, so the leap day is the last.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    push_padded::<4>(out, year);
    out.push(b'-');
    push_padded::<2>(out, month);
    out.push(b'-');
    push_padded::<2>(out, day);
    out.push(b'T');
    push_padded::<2>(out, second / 3600);
    out.push(b':');
    push_padded::<2>(out, second / 60 % 60);
    out.push(b':');
    push_padded::<2>(out, second % 60);
    out.push(b'.');
    push_padded::<3>(out, ms);
    out.push(b'Z');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_is_what_the_standard_library_writes() {
        let mut word = 0x9e37_79b9_7f4a_7c15;
        let random = (0..10_000).map(|_| random(&mut word));
        for number in [0, 9, 10, 15, 16, u64::MAX, 0x0123_4567_89ab_cdef, 1 << 63].into_iter().chain(random) {
            assert_eq!(hex_digits(number), *format!("{number:016x}").as_bytes());
        }
    }

    fn random(word: &mut u64) -> u64 {
        *word ^= *word << 13;
        *word ^= *word >> 7;
        *word ^= *word << 17;
        *word
    }

    fn written(push: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        push(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn numbers_and_addresses_are_those_of_the_standard_library() {
        let mut word = 3u64;
        for bits in 0..64 {
            for number in [1 << bits, (1 << bits) - 1, random(&mut word) >> bits] {
                assert_eq!(written(|out| push_number(out, number)), number.to_string());
            }
        }
        for text in ["0.0.0.0", "255.255.255.255", "10.0.200.1", "::", "2001:db8::1"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(written(|out| push_address(out, address)), text);
            let socket = SocketAddr::new(address, 8080);
            assert_eq!(written(|out| push_socket_address(out, socket)), socket.to_string());
        }
    }

    #[test]
    fn times_follow_the_calendar() {
        let table = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_164_800_001, "2024-02-29T00:00:00.001Z"),
            (1_735_689_599_000, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ];
        for (unix_ms, text) in table {
            assert_eq!(written(|out| push_time(out, unix_ms)), text);
        }
    }
}
