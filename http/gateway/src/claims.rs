//! What proxies claim about a client beside its address: `x-forwarded-proto`, `-host`, `-port`, `-prefix` and the
//! parameters of `forwarded`; and which fields are such claims, so that they do not pass unjudged.
//!
//! Elements are cut at every comma, quoted or not: a quoted comma never stands in a proper host, and a piece with
//! an open quote is believed in nothing. Called by [`crate::client_addr`], which reads the addresses themselves.

use http_wire::fields::{FieldId, FieldSet, Fields};
use http_wire::forwarded::scheme;
use http_wire::head::Scheme;
use http_wire::token::is_token;

use crate::client_addr::{ForwardedSource, PeerTrust};

/// What a trusted chain says beside the address; only values that make sense.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Believed<'a> {
    pub(crate) scheme: Option<Scheme>,
    pub(crate) host: Option<&'a [u8]>,
    /// Digits, 1 to 65535.
    pub(crate) port: Option<&'a [u8]>,
    pub(crate) prefix: Option<&'a [u8]>,
}

impl<'a> Believed<'a> {
    /// Reads the claims at the client's place, `hops` elements from the right.
    pub(crate) fn by(fields: &'a Fields, source: ForwardedSource, hops: usize) -> Self {
        if source == ForwardedSource::Forwarded {
            let element = at_hop(fields, FieldId::Forwarded, hops);
            let parameter = |name| element.and_then(|e| parameter(e, name));
            return Self {
                scheme: parameter(b"proto").and_then(scheme),
                host: parameter(b"host").filter(|h| is_host(h)),
                port: None,
                prefix: None,
            };
        }
        Self {
            scheme: at_hop(fields, FieldId::XForwardedProto, hops).and_then(scheme),
            host: at_hop(fields, FieldId::XForwardedHost, hops).filter(|h| is_host(h)),
            port: at_hop(fields, FieldId::XForwardedPort, hops).filter(|p| is_real_port(p)),
            prefix: at_hop(fields, FieldId::XForwardedPrefix, hops).filter(|p| is_prefix(p)),
        }
    }
}

/// The value of a parameter of one element of `forwarded` (RFC 7239 §4). None when the element is malformed
/// anywhere, names the parameter twice or not at all. Escapes in quoted strings are refused: nothing in a host or
/// scheme needs one.
fn parameter<'a>(element: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    let is_plain = |value: &[u8]| !value.iter().any(|b| matches!(b, b'"' | b'\\'));
    let mut found = None;
    for pair in element.split(|b| *b == b';').map(<[u8]>::trim_ascii) {
        let equals = pair.iter().position(|b| *b == b'=')?;
        let (name, value) = (&pair[..equals], &pair[equals + 1..]);
        let value = match value {
            [b'"', inside @ .., b'"'] => inside,
            bare => bare,
        };
        let is_repeated = name.eq_ignore_ascii_case(wanted) && found.replace(value).is_some();
        if !is_token(name) || !is_plain(value) || is_repeated {
            return None;
        }
    }
    found
}

/// The elements of all lines of a field in order, trimmed.
fn elements(fields: &Fields, id: FieldId) -> impl DoubleEndedIterator<Item = &[u8]> {
    fields.all(id).flat_map(|line| line.split(|b| *b == b',')).map(<[u8]>::trim_ascii)
}

/// The element at the client's place. Proxies that overwrite instead of adding leave fewer elements than hops:
/// then the leftmost is the client's.
fn at_hop(fields: &Fields, id: FieldId, hops: usize) -> Option<&[u8]> {
    elements(fields, id).rev().take(hops.max(1)).last()
}

/// Longest DNS name with a port.
const HOST_BYTES_MAX: usize = 253 + 6;

fn is_host(value: &[u8]) -> bool {
    let is_host_byte =
        |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':' | b'[' | b']');
    !value.is_empty() && value.len() <= HOST_BYTES_MAX && value.iter().all(is_host_byte)
}

fn is_real_port(value: &[u8]) -> bool {
    let is_number = !value.starts_with(b"0") && value.iter().all(u8::is_ascii_digit);
    is_number && std::str::from_utf8(value).is_ok_and(|text| text.parse::<u16>().is_ok())
}

const PREFIX_BYTES_MAX: usize = 1024;

/// A plain path: backends put it before the links they make, so `//host` or dot segments must not pass.
fn is_prefix(value: &[u8]) -> bool {
    let Some(rest) = value.strip_prefix(b"/") else {
        return false;
    };
    let is_fair_segment = |segment: &[u8]| {
        let is_fair = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~');
        segment != b"." && segment != b".." && segment.iter().all(is_fair)
    };
    value.len() <= PREFIX_BYTES_MAX
        && rest.split(|b| *b == b'/').all(is_fair_segment)
        && !value.windows(2).any(|pair| pair == b"//")
}

/// Known fields that only the proxy may write: what [`crate::client_addr`] answers for, and what exchanges tell backends.
/// `x-forwarded-client-cert` is the TLS side's to judge.
pub(crate) const CLAIMS: FieldSet = FieldSet::of(&[
    FieldId::Forwarded,
    FieldId::XDeadlineMs,
    FieldId::XForwardedFor,
    FieldId::XForwardedHost,
    FieldId::XForwardedPort,
    FieldId::XForwardedPrefix,
    FieldId::XForwardedProto,
    FieldId::XMirrored,
    FieldId::XRealIp,
    FieldId::XShardAttempt,
]);

/// Whether the field of another, lower-case name is a claim, too, so that it must not pass as it came: `x-auth-*`, which
/// the gateway vouches for, and names with `_` for `-`, because CGI-style backends cannot tell the two apart.
pub(crate) fn is_claim(name: &[u8], peer_trust: PeerTrust) -> bool {
    // Nearly every other name is out with this.
    if !matches!(name, [b'x', b'-' | b'_', ..]) {
        return false;
    }
    let is_respelled = name.contains(&b'_');
    let is_forwarded = is_spelled_from(name.get(..FORWARDED.len()), FORWARDED);
    (is_forwarded && (is_respelled || peer_trust == PeerTrust::Untrusted))
        || (is_respelled && is_spelled_from(Some(name), b"x-real-ip"))
        || is_spelled_from(name.get(..AUTH.len()), AUTH)
}

const AUTH: &[u8] = b"x-auth-";
const FORWARDED: &[u8] = b"x-forwarded";

fn is_spelled_from(name: Option<&[u8]>, plain: &[u8]) -> bool {
    name.is_some_and(|name| {
        name.len() == plain.len() && name.iter().zip(plain).all(|(a, b)| a == b || (*a == b'_' && *b == b'-'))
    })
}
