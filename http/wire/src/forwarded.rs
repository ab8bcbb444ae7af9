//! The addresses that proxies in front of us wrote down: `X-Forwarded-For` and `Forwarded` (RFC 7239), read
//! from the nearest hop to the farthest.
//!
//! Only the right end of these lists can be trusted, and only as far as trusted hops reach; whom to trust is
//! the gateway's business. Lines of the same field are one list, joined in order (RFC 9110 §5.2). Whatever is
//! no plain IP address comes out as `Hop::Bad` and ends the walk, so nobody walks past a forgery.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::head::Scheme;
use crate::token::is_token;

/// Hops reported for one request. A longer list ends in `Hop::Bad`.
pub const HOPS_MAX: usize = 64;

/// One entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// Its port, if there was one, is dropped; an IPv4-mapped IPv6 address is given as IPv4.
    Addr(IpAddr),
    /// Empty, `unknown`, obfuscated (RFC 7239 §6.3), malformed, or beyond `HOPS_MAX`. Nothing follows it.
    Bad,
}

/// The hops of `X-Forwarded-For`, right to left. `lines` are the field's values in the order received; a
/// blank line counts as absent.
pub fn x_forwarded_for<'a, I>(lines: I) -> impl Iterator<Item = Hop>
where
    I: IntoIterator<Item = &'a [u8], IntoIter: DoubleEndedIterator>,
{
    let lines = lines.into_iter().rev().filter(|line| !line.trim_ascii().is_empty());
    let entries = lines.flat_map(|line| line.rsplit(|&b| b == b','));
    bounded(entries.map(|entry| node(entry.trim_ascii(), is_port)))
}

/// The hops of `Forwarded` by their `for` parameters, right to left; an element without one is `Hop::Bad`.
/// `lines` as in [`x_forwarded_for`].
pub fn forwarded<'a, I>(lines: I) -> impl Iterator<Item = Hop>
where
    I: IntoIterator<Item = &'a [u8], IntoIter: DoubleEndedIterator>,
{
    let lines = lines.into_iter().rev().filter(|line| !line.trim_ascii().is_empty());
    bounded(
        lines.flat_map(|line| ElementsFromRight::new(line).map(|element| element.map_or(Hop::Bad, for_node))),
    )
}

/// The scheme named by `X-Forwarded-Proto`; None for anything but `http` and `https` (RFC 9110 §4.2).
pub const fn scheme(value: &[u8]) -> Option<Scheme> {
    match value {
        _ if value.eq_ignore_ascii_case(b"http") => Some(Scheme::Http),
        _ if value.eq_ignore_ascii_case(b"https") => Some(Scheme::Https),
        _ => None,
    }
}

fn bounded(hops: impl Iterator<Item = Hop>) -> impl Iterator<Item = Hop> {
    let mut is_over = false;
    let limited = hops.enumerate().map(|(index, hop)| if index < HOPS_MAX { hop } else { Hop::Bad });
    limited.take_while(move |hop| {
        let is_wanted = !is_over;
        is_over |= *hop == Hop::Bad;
        is_wanted
    })
}

/// `IPv4 [":" port]`, `"[" IPv6 "]" [":" port]` or, as X-Forwarded-For has it, a bare IPv6 address.
fn node(text: &[u8], is_port: fn(&[u8]) -> bool) -> Hop {
    let address = match text.strip_prefix(b"[") {
        Some(rest) => bracketed(rest, is_port),
        None => bare(text, is_port),
    };
    address.map_or(Hop::Bad, |address| Hop::Addr(address.to_canonical()))
}

fn bracketed(after_bracket: &[u8], is_port: fn(&[u8]) -> bool) -> Option<IpAddr> {
    let close = memchr::memchr(b']', after_bracket)?;
    let (inside, rest) = after_bracket.split_at(close);
    match rest {
        b"]" => {}
        [b']', b':', port @ ..] if is_port(port) => {}
        _ => return None,
    }
    std::str::from_utf8(inside).ok()?.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
}

fn bare(text: &[u8], is_port: fn(&[u8]) -> bool) -> Option<IpAddr> {
    let mut parts = text.splitn(2, |&b| b == b':');
    let first = std::str::from_utf8(parts.next()?).ok()?;
    // `parse` takes neither leading zeros nor fewer than four parts, which resolvers read in their own way.
    if let Ok(address) = first.parse::<Ipv4Addr>() {
        return parts.next().is_none_or(is_port).then_some(IpAddr::V4(address));
    }
    std::str::from_utf8(text).ok()?.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
}

/// 1 to 65535 in at most five digits.
fn is_port(text: &[u8]) -> bool {
    let is_number = matches!(text.len(), 1..=5) && text.iter().all(u8::is_ascii_digit);
    let port =
        text.iter().fold(0u32, |port, digit| (port * 10 + u32::from(digit.wrapping_sub(b'0'))) & 0xf_ffff);
    is_number && (1..=65_535).contains(&port)
}

/// RFC 7239 §6: a port may be obfuscated although the address is not.
fn is_port_or_obfuscated(text: &[u8]) -> bool {
    let obfuscated = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    is_port(text) || matches!(text, [b'_', rest @ ..] if !rest.is_empty() && rest.iter().all(obfuscated))
}

/// The elements of one line, last first. A line is scanned once from the left, because only that way is it
/// known which commas stand in a quoted string; the last `HOPS_MAX` elements are remembered.
struct ElementsFromRight<'a> {
    line: &'a [u8],
    /// Where elements begin: a ring.
    starts: [usize; HOPS_MAX],
    /// Elements not yet given out.
    count: usize,
    /// Those of them that the ring still holds.
    left: usize,
    /// Where the next element to give out ends.
    end: usize,
    is_broken: bool,
}

impl<'a> ElementsFromRight<'a> {
    fn new(line: &'a [u8]) -> Self {
        let mut elements =
            Self { line, starts: [0; HOPS_MAX], count: 1, left: 0, end: line.len(), is_broken: false };
        let mut quotes = Quotes::default();
        for (at, &byte) in line.iter().enumerate() {
            if quotes.is_outside(byte) && byte == b',' {
                elements.starts[elements.count % HOPS_MAX] = at + 1;
                elements.count += 1;
            }
        }
        // With an open quote no comma can be trusted, not even those of a trusted proxy behind it.
        elements.is_broken = quotes.is_open;
        elements.left = elements.count.min(HOPS_MAX);
        elements
    }
}

impl<'a> Iterator for ElementsFromRight<'a> {
    /// None for a line that cannot be split, and in place of the elements that were not remembered.
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 || self.is_broken {
            let is_cut_short = self.count > 0;
            self.count = 0;
            return is_cut_short.then_some(None);
        }
        self.left -= 1;
        self.count -= 1;
        let start = self.starts[self.count % HOPS_MAX];
        let element = self.line.get(start..self.end);
        self.end = start.saturating_sub(1);
        Some(element)
    }
}

/// Tells what stands in a quoted string (RFC 9110 §5.6.4), byte by byte.
#[derive(Default)]
struct Quotes {
    is_open: bool,
    is_escaped: bool,
}

impl Quotes {
    /// Whether `byte`, the next one, is outside of quotes and no quote itself.
    fn is_outside(&mut self, byte: u8) -> bool {
        if self.is_escaped {
            self.is_escaped = false;
            return false;
        }
        match byte {
            b'"' => {
                self.is_open = !self.is_open;
                false
            }
            b'\\' if self.is_open => {
                self.is_escaped = true;
                false
            }
            _ => !self.is_open,
        }
    }
}

/// The `for` parameter of one element (RFC 7239 §4): `Bad` when it is missing, repeated or malformed.
fn for_node(element: &[u8]) -> Hop {
    let mut quotes = Quotes::default();
    let pairs = element.split(|&b| quotes.is_outside(b) && b == b';');
    let mut hop = None;
    for pair in pairs {
        let pair = pair.trim_ascii();
        if pair.is_empty() {
            continue;
        }
        let Some(equals) = memchr::memchr(b'=', pair) else {
            return Hop::Bad;
        };
        let (name, value) = (&pair[..equals], &pair[equals + 1..]);
        if !is_token(name) {
            return Hop::Bad;
        }
        if name.eq_ignore_ascii_case(b"for") {
            let Some(value) = unquoted(value).filter(|_| hop.is_none()) else {
                return Hop::Bad;
            };
            hop = Some(node_of_forwarded(value));
        }
    }
    hop.unwrap_or(Hop::Bad)
}

/// A token, or what stands between the quotes. No address needs a backslash, so none is decoded.
fn unquoted(value: &[u8]) -> Option<&[u8]> {
    match value {
        [b'"', inside @ .., b'"'] => (!inside.iter().any(|b| matches!(b, b'"' | b'\\'))).then_some(inside),
        // RFC 7239 §4 wants quotes around a colon, senders forget them; `node` judges.
        _ => Some(value),
    }
}

fn node_of_forwarded(value: &[u8]) -> Hop {
    node(value, is_port_or_obfuscated)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk_xff(lines: &[&str]) -> Vec<Hop> {
        x_forwarded_for(lines.iter().map(|l| l.as_bytes())).collect()
    }

    fn walk_forwarded(lines: &[&str]) -> Vec<Hop> {
        forwarded(lines.iter().map(|l| l.as_bytes())).collect()
    }

    fn addr(text: &str) -> Hop {
        Hop::Addr(text.parse().expect(text))
    }

    #[test]
    fn lines_are_one_list_read_from_the_right() {
        assert_eq!(walk_xff(&[]), []);
        assert_eq!(walk_xff(&["", "  "]), []);
        let expected = [addr("127.0.0.9"), addr("7.7.7.7"), addr("6.6.6.6")];
        for lines in [
            &["6.6.6.6", "7.7.7.7, 127.0.0.9"][..],
            &["6.6.6.6,7.7.7.7", "", "127.0.0.9"],
            &["6.6.6.6 ,\t7.7.7.7 , 127.0.0.9"],
        ] {
            assert_eq!(walk_xff(lines), expected, "{lines:?}");
        }
        let lines = ["for=6.6.6.6", "for=7.7.7.7;proto=https, for=127.0.0.9;by=_x"];
        assert_eq!(walk_forwarded(&lines), expected);
    }

    #[test]
    fn address_spellings() {
        // text, address or "" for bad
        let cases = [
            ("1.2.3.4", "1.2.3.4"),
            ("1.2.3.4:55", "1.2.3.4"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:db8::1]:80", "2001:db8::1"),
            ("::ffff:1.2.3.4", "1.2.3.4"),
            ("[::ffff:102:304]:1", "1.2.3.4"),
            ("2001:db8::1", "2001:db8::1"),
            ("unknown", ""),
            ("_hidden", ""),
            ("-", ""),
            ("1.2.3.4:", ""),
            ("1.2.3.4:x", ""),
            ("1.2.3.4:123456", ""),
            ("1.2.3", ""),
            ("01.2.3.4", ""),
            ("1.2.3.4.5", ""),
            ("1.2.3.4/8", ""),
            ("0x7f000001", ""),
            ("[::1", ""),
            ("[::1]x", ""),
            ("[1.2.3.4]", ""),
            ("fe80::1%eth0", ""),
            ("[::1]:", ""),
            ("localhost", ""),
            ("1.2.3.4 5.6.7.8", ""),
            ("\u{ff11}.2.3.4", ""),
        ];
        for (text, expected) in cases {
            let expected = if expected.is_empty() { Hop::Bad } else { addr(expected) };
            assert_eq!(walk_xff(&[text]), [expected], "{text}");
            assert_eq!(walk_forwarded(&[&format!("for=\"{text}\"")]), [expected], "{text}");
            assert_eq!(walk_forwarded(&[&format!("proto=http ; FOR={text};")]), [expected], "{text}");
        }
    }

    #[test]
    fn a_bad_entry_stops_the_walk() {
        for bad in ["unknown", "_x", "", "1.2.3.4:99999999", "1.2.3.4:99999", "1.2.3.4:65536", "1.2.3.4:0"] {
            let line = format!("6.6.6.6, {bad}, 7.7.7.7");
            assert_eq!(walk_xff(&[&line]), [addr("7.7.7.7"), Hop::Bad], "{bad:?}");
            let line = format!("for=6.6.6.6, for={bad}, for=7.7.7.7");
            assert_eq!(walk_forwarded(&[&line]), [addr("7.7.7.7"), Hop::Bad], "{bad:?}");
        }
    }

    #[test]
    fn forwarded_elements() {
        let cases: [(&str, &[&str]); 12] = [
            ("for=\"[2001:db8:cafe::17]:4711\"", &["2001:db8:cafe::17"]),
            ("for=192.0.2.43, for=198.51.100.17", &["198.51.100.17", "192.0.2.43"]),
            ("for=\"1.2.3.4:_port\"", &["1.2.3.4"]),
            ("by=1.1.1.1;for=2.2.2.2;host=\"a,b;for=3.3.3.3\"", &["2.2.2.2"]),
            ("for=1.1.1.1;host=\"q\\\",for=6.6.6.6\"", &["1.1.1.1"]),
            ("by=1.1.1.1", &[""]),
            ("for=1.1.1.1;for=2.2.2.2", &[""]),
            ("for", &[""]),
            ("for =1.1.1.1", &[""]),
            ("for=\"1.1.1.1", &[""]),
            ("for=6.6.6.6\", for=\"7.7.7.7", &[""]),
            ("for=6.6.6.6, for=_a", &[""]),
        ];
        for (line, expected) in cases {
            let expected: Vec<Hop> =
                expected.iter().map(|text| if text.is_empty() { Hop::Bad } else { addr(text) }).collect();
            assert_eq!(walk_forwarded(&[line]), expected, "{line}");
        }
    }

    /// A client cannot hide a trusted proxy's element in a quoted string that it left open.
    #[test]
    fn an_open_quote_spoils_its_line_only() {
        for start in ["for=\"", "x=\"\\", "for=6.6.6.6;a=\"b"] {
            for appended in [", for=9.9.9.9", ", for=\"[2001:db8::9]\""] {
                let line = format!("{start}{appended}");
                assert_eq!(walk_forwarded(&[&line]), [Hop::Bad], "{line}");
                assert_eq!(walk_forwarded(&[&line, "for=8.8.8.8"]), [addr("8.8.8.8"), Hop::Bad], "{line}");
            }
        }
    }

    #[test]
    fn the_number_of_hops_is_bounded() {
        let list = |entry: &str, count: usize| vec![entry; count].join(",");
        for count in [1, HOPS_MAX - 1, HOPS_MAX] {
            assert_eq!(walk_xff(&[&list("1.1.1.1", count)]), vec![addr("1.1.1.1"); count]);
            assert_eq!(walk_forwarded(&[&list("for=1.1.1.1", count)]), vec![addr("1.1.1.1"); count]);
        }
        let mut capped = vec![addr("1.1.1.1"); HOPS_MAX];
        capped.push(Hop::Bad);
        for (entry, walk) in
            [("1.1.1.1", walk_xff as fn(&[&str]) -> Vec<Hop>), ("for=1.1.1.1", walk_forwarded)]
        {
            assert_eq!(walk(&[&list(entry, 200)]), capped, "{entry}");
            let lines = [list(entry, 100), list(entry, 63), list(entry, 1)];
            assert_eq!(walk(&lines.each_ref().map(String::as_str)), capped, "{entry}");
            let lines = [list(entry, 1), list(entry, 64)];
            assert_eq!(walk(&lines.each_ref().map(String::as_str)), capped, "{entry}");
        }
    }

    #[test]
    fn only_two_schemes_are_known() {
        for (value, expected) in [("http", Some(Scheme::Http)), ("HTTPS", Some(Scheme::Https))] {
            assert_eq!(scheme(value.as_bytes()), expected);
        }
        for value in ["", "javascript", "https\t", "https,http", "ws", "http "] {
            assert_eq!(scheme(value.as_bytes()), None, "{value:?}");
        }
    }
}
