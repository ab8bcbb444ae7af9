//! Host and port of a request: the value of `Host`, of `:authority` and of an absolute-form target.
//!
//! Stricter than RFC 3986 where leniency lets two parsers see two hosts: no userinfo, no percent escapes, no
//! comma, no empty label, no IPv6 zone, no IPvFuture, and a name whose last label is a number must be a
//! whole IPv4 address. The h1 and h2 head parsers call `parse` once; after that only `host_without_port`
//! runs on the hot path.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;

use crate::head::Scheme;

/// A host name longer than this cannot be resolved (RFC 1035 §2.3.4, plus the trailing dot).
pub const HOST_BYTES_MAX: usize = 255;

/// What stands before the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host<'a> {
    /// As sent: any case, perhaps with a trailing dot.
    Name(&'a [u8]),
    V4(Ipv4Addr),
    V6(Ipv6Addr),
}

/// A checked `host [":" port]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authority<'a> {
    pub host: Host<'a>,
    pub port: Option<NonZeroU16>,
}

/// Why an authority was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthorityError {
    /// http and https need a host (RFC 9110 §4.2.1).
    Empty,
    TooLong,
    /// Userinfo (RFC 9110 §4.2.4), a blank, an escape or another byte that no host name has.
    BadByte,
    /// `a..b`, `.a`, or `a..`.
    EmptyLabel,
    /// The last label is a number, but the whole is no IPv4 address: `1.2.3`, `127.1`, `0x7f.0x1`.
    BadV4,
    /// No closing bracket, a zone, or no IPv6 address inside.
    BadV6,
    /// Not 1 to 65535 in plain decimal.
    BadPort,
}

impl AuthorityError {
    /// A short English reason for logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "host is empty",
            Self::TooLong => "host is too long",
            Self::BadByte => "host holds a byte that no host name has",
            Self::EmptyLabel => "host name has an empty label",
            Self::BadV4 => "host ends in a number but is no IPv4 address",
            Self::BadV6 => "host is no bracketed IPv6 address",
            Self::BadPort => "port is not 1 to 65535",
        }
    }
}

/// Parses `host [":" port]` (RFC 3986 §3.2.2, §3.2.3 without userinfo).
///
/// # Errors
/// The first rule that the bytes break.
pub fn parse(bytes: &[u8]) -> Result<Authority<'_>, AuthorityError> {
    if bytes.first() == Some(&b'[') {
        return parse_bracketed(bytes);
    }
    let colon = bytes.iter().position(|&b| b == b':');
    let (host, port) = bytes.split_at(colon.unwrap_or(bytes.len()));
    let host = parse_name(host)?;
    Ok(Authority { host, port: parse_port(port)? })
}

fn parse_bracketed(bytes: &[u8]) -> Result<Authority<'_>, AuthorityError> {
    let close = bytes.iter().position(|&b| b == b']').ok_or(AuthorityError::BadV6)?;
    let (host, port) = bytes.split_at(close + 1);
    let inside = host.get(1..close).unwrap_or(&[]);
    // `Ipv6Addr` takes no zone: RFC 6874 zones mean nothing outside the sender's machine.
    let address = std::str::from_utf8(inside).ok().and_then(|text| text.parse::<Ipv6Addr>().ok());
    let address = address.ok_or(AuthorityError::BadV6)?;
    Ok(Authority { host: Host::V6(address), port: parse_port(port)? })
}

fn parse_name(name: &[u8]) -> Result<Host<'_>, AuthorityError> {
    if name.is_empty() {
        return Err(AuthorityError::Empty);
    }
    if name.len() > HOST_BYTES_MAX {
        return Err(AuthorityError::TooLong);
    }
    if !name.iter().all(|&b| is_name_byte(b)) {
        return Err(AuthorityError::BadByte);
    }
    let relative = without_trailing_dot(name);
    if relative.split(|&b| b == b'.').any(<[u8]>::is_empty) {
        return Err(AuthorityError::EmptyLabel);
    }
    if !ends_in_number(relative) {
        return Ok(Host::Name(name));
    }
    // RFC 3986 §3.2.2: an IPv4 address where the syntax allows one. Everything else that ends in a number
    // is an address to some resolvers (`inet_aton`: octal, hex, fewer parts) and a name to others.
    let address = std::str::from_utf8(relative).ok().and_then(|text| text.parse::<Ipv4Addr>().ok());
    address.map(Host::V4).ok_or(AuthorityError::BadV4)
}

/// reg-name of RFC 3986 §3.2.2 without escapes, and without the comma of two merged Host lines.
const fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'-' | b'.' | b'_' | b'~')
        || matches!(byte, b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b';' | b'=')
}

fn ends_in_number(name: &[u8]) -> bool {
    let last = name.rsplit(|&b| b == b'.').next().unwrap_or(&[]);
    let hex = last.strip_prefix(b"0x").or_else(|| last.strip_prefix(b"0X"));
    match hex {
        Some(digits) => digits.iter().all(u8::is_ascii_hexdigit),
        None => !last.is_empty() && last.iter().all(u8::is_ascii_digit),
    }
}

/// `bytes` is empty or begins with the colon.
fn parse_port(bytes: &[u8]) -> Result<Option<NonZeroU16>, AuthorityError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let digits = bytes.strip_prefix(b":").ok_or(AuthorityError::BadPort)?;
    // RFC 3986 §3.2.3 would allow an empty port and leading zeros; both only help to hide a difference.
    let is_plain = matches!(digits, [b'1'..=b'9', rest @ ..] if rest.iter().all(u8::is_ascii_digit));
    if !is_plain || digits.len() > 5 {
        return Err(AuthorityError::BadPort);
    }
    let number = digits.iter().fold(0u32, |sum, &d| sum * 10 + u32::from(d - b'0'));
    let port = u16::try_from(number).ok().and_then(NonZeroU16::new);
    port.map(Some).ok_or(AuthorityError::BadPort)
}

/// The port that a scheme implies (RFC 9110 §4.2.1, §4.2.2).
pub const fn default_port(scheme: Scheme) -> NonZeroU16 {
    const HTTP: NonZeroU16 = NonZeroU16::new(80).expect("80 is not zero");
    const HTTPS: NonZeroU16 = NonZeroU16::new(443).expect("443 is not zero");
    match scheme {
        Scheme::Http => HTTP,
        Scheme::Https => HTTPS,
    }
}

/// Whether `a` and `b` name the same origin under `scheme`: case, a trailing dot, the spelling of an IPv6
/// address and the default port make no difference (RFC 9110 §4.2.3). False when one of them does not parse.
pub fn equal_ignoring_default_port(a: &[u8], b: &[u8], scheme: Scheme) -> bool {
    let (Ok(a), Ok(b)) = (parse(a), parse(b)) else {
        return false;
    };
    let port = |authority: &Authority<'_>| authority.port.unwrap_or(default_port(scheme));
    port(&a) == port(&b) && same_host(a.host, b.host)
}

fn same_host(a: Host<'_>, b: Host<'_>) -> bool {
    match (a, b) {
        (Host::Name(a), Host::Name(b)) => {
            without_trailing_dot(a).eq_ignore_ascii_case(without_trailing_dot(b))
        }
        (a, b) => a == b,
    }
}

/// The host to match virtual hosts and certificates by: no port, no trailing dot, an IPv6 address with its
/// brackets. Expects bytes that `parse` took; of others it returns some part.
pub fn host_without_port(authority: &[u8]) -> &[u8] {
    let host_ends = match authority.first() {
        Some(b'[') => authority.iter().position(|&b| b == b']').map(|close| close + 1),
        _ => authority.iter().rposition(|&b| b == b':'),
    };
    let host = authority.get(..host_ends.unwrap_or(authority.len())).unwrap_or(authority);
    without_trailing_dot(host)
}

fn without_trailing_dot(name: &[u8]) -> &[u8] {
    match name {
        [relative @ .., b'.'] if !relative.is_empty() => relative,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port_of(text: &str) -> Option<u16> {
        parse(text.as_bytes()).expect(text).port.map(NonZeroU16::get)
    }

    #[test]
    fn names_addresses_and_ports_are_told_apart() {
        for name in [
            "a",
            "A.Example",
            "a.example.",
            "x_y.a",
            "xn--bcher-kva.example",
            "a-b.c~d",
            "0.0.0.0=5000",
            "1.2.3.4a",
        ] {
            assert_eq!(
                parse(name.as_bytes()),
                Ok(Authority { host: Host::Name(name.as_bytes()), port: None })
            );
            for (port, number) in [(":1", 1), (":80", 80), (":65535", 65535)] {
                let with_port = format!("{name}{port}");
                assert_eq!(port_of(&with_port), Some(number));
                assert_eq!(parse(with_port.as_bytes()).map(|a| a.host), Ok(Host::Name(name.as_bytes())));
            }
        }
        for (text, address) in
            [("127.0.0.1", [127, 0, 0, 1]), ("255.255.255.255:443", [255; 4]), ("1.2.3.4.", [1, 2, 3, 4])]
        {
            assert_eq!(parse(text.as_bytes()).map(|a| a.host), Ok(Host::V4(address.into())), "{text}");
        }
        for text in ["[::1]", "[2001:db8::1]", "[::ffff:1.2.3.4]"] {
            let inside: Ipv6Addr = text[1..text.len() - 1].parse().expect(text);
            assert_eq!(parse(text.as_bytes()), Ok(Authority { host: Host::V6(inside), port: None }));
            assert_eq!(port_of(&format!("{text}:8443")), Some(8443));
        }
    }

    #[test]
    fn what_two_parsers_could_read_two_ways_is_refused() {
        use AuthorityError::{BadByte, BadPort, BadV4, BadV6, Empty, EmptyLabel};
        let cases: [(&str, AuthorityError); 42] = [
            ("", Empty),
            (":80", Empty),
            ("a@b", BadByte),
            ("user:pw@a", BadPort),
            ("a ", BadByte),
            (" a", BadByte),
            ("a\t", BadByte),
            ("a b", BadByte),
            ("a,b", BadByte),
            ("a/b", BadByte),
            ("a?b", BadByte),
            ("a#b", BadByte),
            ("a\\b", BadByte),
            ("a%41", BadByte),
            ("a\0", BadByte),
            ("bücher", BadByte),
            ("a..b", EmptyLabel),
            ("a..", EmptyLabel),
            (".a", EmptyLabel),
            (".", EmptyLabel),
            ("1.2.3", BadV4),
            ("1.2.3.4.5", BadV4),
            ("127.1", BadV4),
            ("256.1.1.1", BadV4),
            ("01.2.3.4", BadV4),
            ("0x7f.0.0.0x1", BadV4),
            ("a.0x", BadV4),
            ("2130706433", BadV4),
            ("::1", Empty),
            ("a:b:c", BadPort),
            ("[::1", BadV6),
            ("[]", BadV6),
            ("[::1%25eth0]", BadV6),
            ("[::1%eth0]", BadV6),
            ("[v1.a]", BadV6),
            ("[1.2.3.4]", BadV6),
            ("[::1]80", BadPort),
            ("a:", BadPort),
            ("a:0", BadPort),
            ("a:65536", BadPort),
            ("a:080", BadPort),
            ("a:+80", BadPort),
        ];
        for (text, error) in cases {
            assert_eq!(parse(text.as_bytes()), Err(error), "{text:?}");
        }
    }

    #[test]
    fn a_name_has_a_limit() {
        let label = "a".repeat(HOST_BYTES_MAX);
        assert!(parse(label.as_bytes()).is_ok());
        assert_eq!(parse(format!("{label}a").as_bytes()), Err(AuthorityError::TooLong));
    }

    #[test]
    fn equality_ignores_case_default_port_and_trailing_dot() {
        let equal = [
            ("a.example", "A.Example", Scheme::Http),
            ("a.example:80", "a.example", Scheme::Http),
            ("a.example", "a.example:443", Scheme::Https),
            ("a.example.", "a.example", Scheme::Https),
            ("[::1]", "[0:0::1]:80", Scheme::Http),
            ("127.0.0.1:8080", "127.0.0.1:8080", Scheme::Http),
        ];
        for (a, b, scheme) in equal {
            assert!(equal_ignoring_default_port(a.as_bytes(), b.as_bytes(), scheme), "{a} {b}");
            assert!(equal_ignoring_default_port(b.as_bytes(), a.as_bytes(), scheme), "{b} {a}");
        }
        let different = [
            ("a.example", "b.example", Scheme::Http),
            ("a.example:80", "a.example", Scheme::Https),
            ("a.example:443", "a.example", Scheme::Http),
            ("a.example:81", "a.example", Scheme::Http),
            ("a.example", "a.example..", Scheme::Http),
            ("a@b", "a@b", Scheme::Http),
            ("", "", Scheme::Http),
            ("[::ffff:127.0.0.1]", "127.0.0.1", Scheme::Http),
        ];
        for (a, b, scheme) in different {
            assert!(!equal_ignoring_default_port(a.as_bytes(), b.as_bytes(), scheme), "{a} {b}");
        }
    }

    #[test]
    fn the_matching_host_loses_port_and_dot() {
        let cases = [
            ("a.example", "a.example"),
            ("a.example:8443", "a.example"),
            ("a.example.:8443", "a.example"),
            ("a.example.", "a.example"),
            ("[::1]:443", "[::1]"),
            ("[::1]", "[::1]"),
            ("1.2.3.4:80", "1.2.3.4"),
            ("", ""),
            (".", "."),
            ("[", "["),
        ];
        for (authority, host) in cases {
            assert_eq!(host_without_port(authority.as_bytes()), host.as_bytes(), "{authority}");
        }
    }
}
