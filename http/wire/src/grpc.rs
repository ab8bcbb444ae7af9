//! What a proxy has to know of gRPC over HTTP/2 (the gRPC project's PROTOCOL-HTTP2.md, cited as §): who
//! speaks it, the deadline that a client sends, and how an error made here is said to it.
//!
//! Called by exchange (deadline, errors) and by the record stop (status in logs and metrics).

use std::time::Duration;

/// Status codes by name (the gRPC project's statuscodes.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    Ok = 0,
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Status {
    /// The value of `grpc-status`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "0",
            Self::Cancelled => "1",
            Self::Unknown => "2",
            Self::InvalidArgument => "3",
            Self::DeadlineExceeded => "4",
            Self::NotFound => "5",
            Self::AlreadyExists => "6",
            Self::PermissionDenied => "7",
            Self::ResourceExhausted => "8",
            Self::FailedPrecondition => "9",
            Self::Aborted => "10",
            Self::OutOfRange => "11",
            Self::Unimplemented => "12",
            Self::Internal => "13",
            Self::Unavailable => "14",
            Self::DataLoss => "15",
            Self::Unauthenticated => "16",
        }
    }

    /// What a client makes of an HTTP status that came without a grpc-status (the gRPC project's
    /// http-grpc-status-mapping.md): for logs and metrics of answers by upstreams that speak no gRPC.
    pub const fn from_http(status: u16) -> Self {
        match status {
            400 => Self::Internal,
            401 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 => Self::Unimplemented,
            429 | 502 | 503 | 504 => Self::Unavailable,
            _ => Self::Unknown,
        }
    }

    /// What to send in place of an HTTP error that the proxy itself would have answered with. Finer than
    /// `from_http`: a timeout is a deadline, a limit is exhaustion.
    pub const fn for_own_reply(http_status: u16) -> Self {
        match http_status {
            401 => Self::Unauthenticated,
            403 | 421 => Self::PermissionDenied,
            404 | 405 | 415 | 501 => Self::Unimplemented,
            408 | 504 => Self::DeadlineExceeded,
            413 | 429 | 431 => Self::ResourceExhausted,
            502 | 503 => Self::Unavailable,
            400 | 414 | 500 => Self::Internal,
            _ => Self::Unknown,
        }
    }
}

/// Whether a content type is gRPC's: `application/grpc`, alone or followed by `+codec` or by parameters
/// (§Requests). `application/grpc-web` is another protocol.
pub fn is_grpc(content_type: &[u8]) -> bool {
    const NAME: &[u8] = b"application/grpc";
    let Some((name, rest)) = content_type.split_at_checked(NAME.len()) else {
        return false;
    };
    name.eq_ignore_ascii_case(NAME) && matches!(rest.first(), None | Some(b'+' | b';' | b' ' | b'\t'))
}

/// The value of `grpc-timeout`: one to eight digits and a unit (§Requests). None when it is malformed; a
/// client that sends zero has no time left.
pub fn parse_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let amount = digits.iter().fold(0u64, |sum, &d| sum * 10 + u64::from(d - b'0'));
    match unit {
        // Eight digits of hours are far from overflow.
        b'H' => Some(Duration::from_secs(amount * 3600)),
        b'M' => Some(Duration::from_secs(amount * 60)),
        b'S' => Some(Duration::from_secs(amount)),
        b'm' => Some(Duration::from_millis(amount)),
        b'u' => Some(Duration::from_micros(amount)),
        b'n' => Some(Duration::from_nanos(amount)),
        _ => None,
    }
}

/// Appends a `grpc-timeout` value in the finest unit that fits eight digits, rounded down, so that the
/// upstream never believes to have more time than there is.
pub fn write_timeout(timeout: Duration, out: &mut Vec<u8>) {
    const AMOUNT_MAX: u128 = 99_999_999;
    let nanos = timeout.as_nanos();
    let units: [(u128, u8); 6] = [
        (1, b'n'),
        (1_000, b'u'),
        (1_000_000, b'm'),
        (1_000_000_000, b'S'),
        (60_000_000_000, b'M'),
        (3_600_000_000_000, b'H'),
    ];
    let fitting = units.into_iter().find(|(nanos_each, _)| nanos / nanos_each <= AMOUNT_MAX);
    let (nanos_each, unit) = fitting.unwrap_or((3_600_000_000_000, b'H'));
    let mut amount = (nanos / nanos_each).min(AMOUNT_MAX);
    let mut digits = [0u8; 8];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(amount % 10).unwrap_or(0);
        amount /= 10;
        if amount == 0 || at == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
    out.push(unit);
}

/// Appends `text` as the value of `grpc-message`: bytes outside 0x20 to 0x7E and `%` become escapes
/// (§Responses, Percent-Encoded).
pub fn encode_message(text: &str, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        if matches!(byte, 0x20..=0x7e) && byte != b'%' {
            out.push(byte);
        } else {
            let (high, low) = (HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 0x0f)]);
            out.extend_from_slice(&[b'%', high, low]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_types() {
        for yes in [
            "application/grpc",
            "Application/gRPC",
            "application/grpc+proto",
            "application/grpc+json",
            "application/grpc;charset=utf-8",
            "application/grpc ; a=b",
        ] {
            assert!(is_grpc(yes.as_bytes()), "{yes}");
        }
        for no in [
            "",
            "application/grp",
            "application/grpc-web",
            "application/grpc-web+proto",
            "application/grpcx",
            "text/grpc",
            "application/json",
        ] {
            assert!(!is_grpc(no.as_bytes()), "{no}");
        }
    }

    #[test]
    fn timeouts() {
        let cases = [
            ("1H", Some(Duration::from_secs(3600))),
            ("2M", Some(Duration::from_secs(120))),
            ("3S", Some(Duration::from_secs(3))),
            ("250m", Some(Duration::from_millis(250))),
            ("4u", Some(Duration::from_micros(4))),
            ("5n", Some(Duration::from_nanos(5))),
            ("0n", Some(Duration::ZERO)),
            ("00000001S", Some(Duration::from_secs(1))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("100000000n", None),
            ("000000001S", None),
            ("", None),
            ("S", None),
            ("1", None),
            ("1s", None),
            ("1h", None),
            ("-1S", None),
            ("+1S", None),
            ("1.5S", None),
            ("1 S", None),
            ("1SS", None),
            ("\u{661}S", None),
        ];
        for (value, expected) in cases {
            assert_eq!(parse_timeout(value.as_bytes()), expected, "{value}");
        }
    }

    #[test]
    fn a_written_timeout_is_never_longer() {
        let mut nanos: u128 = 0;
        while nanos < 10u128.pow(22) {
            let timeout = Duration::new(
                u64::try_from(nanos / 1_000_000_000).expect("fits"),
                u32::try_from(nanos % 1_000_000_000).expect("fits"),
            );
            let mut text = Vec::new();
            write_timeout(timeout, &mut text);
            let read = parse_timeout(&text).expect("what is written can be read");
            assert!(read <= timeout, "{timeout:?}");
            let is_close = read.as_nanos() * 1_000 >= timeout.as_nanos() * 999;
            assert!(is_close || text == b"99999999H", "{timeout:?} became {read:?}");
            nanos = nanos * 3 + 1;
        }
        let mut text = Vec::new();
        write_timeout(Duration::MAX, &mut text);
        assert_eq!(text, b"99999999H");
    }

    #[test]
    fn messages_are_printable_ascii() {
        for (text, expected) in [
            ("plain text, ~ok", "plain text, ~ok"),
            ("100%", "100%25"),
            ("a\r\nb\tc\0", "a%0D%0Ab%09c%00"),
            ("käse \u{1f980}", "k%C3%A4se %F0%9F%A6%80"),
            ("\u{7f}", "%7F"),
        ] {
            let mut out = Vec::new();
            encode_message(text, &mut out);
            assert_eq!(String::from_utf8_lossy(&out), expected);
        }
    }

    #[test]
    fn own_errors_have_the_codes_that_clients_act_on() {
        // C41: unreachable 14, timeout 4, no route 12, auth 16 and 7, limit 8, internal 13.
        let cases = [
            (502, "14"),
            (503, "14"),
            (504, "4"),
            (408, "4"),
            (404, "12"),
            (401, "16"),
            (403, "7"),
            (429, "8"),
            (500, "13"),
            (400, "13"),
        ];
        for (http, code) in cases {
            assert_eq!(Status::for_own_reply(http).as_str(), code, "{http}");
        }
        for (http, code) in [
            (400, "13"),
            (401, "16"),
            (403, "7"),
            (404, "12"),
            (429, "14"),
            (502, "14"),
            (503, "14"),
            (504, "14"),
            (418, "2"),
            (200, "2"),
        ] {
            assert_eq!(Status::from_http(http).as_str(), code, "{http}");
        }
    }

    #[test]
    fn names_and_numbers_agree() {
        use Status::{
            Aborted, AlreadyExists, Cancelled, DataLoss, DeadlineExceeded, FailedPrecondition, Internal,
        };
        use Status::{
            InvalidArgument, NotFound, Ok, OutOfRange, PermissionDenied, ResourceExhausted, Unauthenticated,
        };
        use Status::{Unavailable, Unimplemented, Unknown};
        let all = [
            Ok,
            Cancelled,
            Unknown,
            InvalidArgument,
            DeadlineExceeded,
            NotFound,
            AlreadyExists,
            PermissionDenied,
            ResourceExhausted,
            FailedPrecondition,
            Aborted,
            OutOfRange,
            Unimplemented,
            Internal,
            Unavailable,
            DataLoss,
            Unauthenticated,
        ];
        for (number, status) in all.into_iter().enumerate() {
            assert_eq!(status.as_str(), number.to_string());
            assert_eq!(usize::from(status as u8), number);
        }
    }
}
