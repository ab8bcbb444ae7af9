//! Version-neutral message heads: what h1 and h2 both parse into and both write from.
//!
//! A head is owned by one connection or stream, cleared and reused. `target` bytes live in the head's own
//! arena, which is bounded by [`TARGET_BYTES_MAX`]. Framing (how the body ends) is apart from the fields,
//! because h1 and h2 frame differently; so are host and upgrade: a head's `fields` are end to end.

use crate::fields::{FieldError, Fields, Span};
use crate::token::is_token;

/// Bound of method, authority, path, query and protocol together, rewrites included.
pub const TARGET_BYTES_MAX: usize = 1 << 20;

fn store(arena: &mut Vec<u8>, bytes: &[u8]) -> Result<Span, FieldError> {
    if bytes.len() > TARGET_BYTES_MAX - arena.len().min(TARGET_BYTES_MAX) {
        return Err(FieldError);
    }
    let at = u32::try_from(arena.len()).or(Err(FieldError))?;
    let len = u32::try_from(bytes.len()).or(Err(FieldError))?;
    arena.extend_from_slice(bytes);
    Ok(Span { at, len })
}

fn store_lower(arena: &mut Vec<u8>, bytes: &[u8]) -> Result<Span, FieldError> {
    let span = store(arena, bytes)?;
    if let Some(stored) = arena.get_mut(span.at as usize..) {
        stored.make_ascii_lowercase();
    }
    Ok(span)
}

/// The protocol version a message was received with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    Http10,
    #[default]
    Http11,
    Http2,
}

/// Request methods (RFC 9110 §9). The set with names of its own is also the set of metric labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Method {
    #[default]
    Get,
    Head,
    Post,
    Put,
    Delete,
    Options,
    Patch,
    Trace,
    Connect,
    /// A token outside the set; its bytes are in the head.
    Extension,
}

impl Method {
    /// The method of an exact, case-sensitive token (RFC 9110 §9.1).
    pub fn from_token(token: &[u8]) -> Self {
        match token {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"OPTIONS" => Self::Options,
            b"PATCH" => Self::Patch,
            b"TRACE" => Self::Trace,
            b"CONNECT" => Self::Connect,
            _ => Self::Extension,
        }
    }

    /// The token; `other` for an extension method, so that a label set stays closed.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Options => "OPTIONS",
            Self::Patch => "PATCH",
            Self::Trace => "TRACE",
            Self::Connect => "CONNECT",
            Self::Extension => "other",
        }
    }

    /// Idempotent by RFC 9110 §9.2.2.
    pub const fn is_idempotent(self) -> bool {
        matches!(self, Self::Get | Self::Head | Self::Put | Self::Delete | Self::Options | Self::Trace)
    }
}

/// How the body of a received or sent message is delimited (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// No body bytes at all.
    Empty,
    /// Exactly this many bytes.
    Exact(u64),
    /// Chunked in h1, END_STREAM in h2: the end is announced in band.
    Streamed,
    /// Until the sender closes: h1 responses only.
    UntilClose,
}

impl BodyLength {
    /// The length, where it is known beforehand; in bytes.
    pub const fn exact(self) -> Option<u64> {
        match self {
            Self::Exact(bytes) => Some(bytes),
            Self::Empty | Self::Streamed | Self::UntilClose => None,
        }
    }
}

/// The scheme by which the client reached the proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheme {
    #[default]
    Http,
    Https,
}

impl Scheme {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// A request head.
#[derive(Clone, Debug, Default)]
pub struct RequestHead {
    pub method: Method,
    pub version: Version,
    pub scheme: Scheme,
    pub fields: Fields,
    arena: Vec<u8>,
    method_token: Span,
    authority: Span,
    path: Span,
    query: Option<Span>,
    protocol: Option<Span>,
    checked_host: Vec<u8>,
}

impl RequestHead {
    /// Forgets the message, keeps the memory.
    pub fn clear(&mut self) {
        self.method = Method::Get;
        self.version = Version::Http11;
        self.fields.clear();
        self.arena.clear();
        self.method_token = Span::default();
        self.authority = Span::default();
        self.path = Span::default();
        self.query = None;
        self.protocol = None;
    }

    /// The method as sent.
    pub fn method_token(&self) -> &[u8] {
        match self.method {
            Method::Extension => self.method_token.of(&self.arena),
            known => known.label().as_bytes(),
        }
    }

    /// # Errors
    /// `FieldError` when `token` is no token or the head would pass [`TARGET_BYTES_MAX`].
    pub fn set_method(&mut self, token: &[u8]) -> Result<(), FieldError> {
        self.method = Method::from_token(token);
        if self.method == Method::Extension {
            if !is_token(token) {
                return Err(FieldError);
            }
            self.method_token = store(&mut self.arena, token)?;
        }
        Ok(())
    }

    /// Host and optional port, lower case; the one value used for routing, logs and the upstream.
    pub fn authority(&self) -> &[u8] {
        self.authority.of(&self.arena)
    }

    /// # Errors
    /// `FieldError` when the head would pass [`TARGET_BYTES_MAX`].
    pub fn set_authority(&mut self, authority: &[u8]) -> Result<(), FieldError> {
        self.authority = store_lower(&mut self.arena, authority)?;
        Ok(())
    }

    /// Whether `host` is byte for byte the host that was last remembered as checked. This survives `clear`:
    /// clients ask for one host again and again, and to check and lower it costs a quarter of a whole parse.
    pub(crate) fn is_checked_host(&self, host: &[u8]) -> bool {
        // Nothing is remembered at first, and an empty host is never good.
        !host.is_empty() && self.checked_host == host
    }

    /// Takes a host that is good and lower case for [`RequestHead::is_checked_host`].
    pub(crate) fn remember_checked_host(&mut self, host: &[u8]) {
        self.checked_host.clear();
        self.checked_host.extend_from_slice(host);
    }

    /// Takes the authority, which has been checked, for [`RequestHead::is_checked_host`].
    pub(crate) fn remember_authority(&mut self) {
        self.checked_host.clear();
        self.checked_host.extend_from_slice(self.authority.of(&self.arena));
    }

    /// As `set_authority`, for a host that is remembered as checked and so is lower case.
    pub(crate) fn set_checked_authority(&mut self, host: &[u8]) -> Result<(), FieldError> {
        self.authority = store(&mut self.arena, host)?;
        Ok(())
    }

    /// What the buffers of this head can hold without growing.
    #[cfg(test)]
    pub(crate) fn capacities(&self) -> [usize; 4] {
        let [arena, entries] = self.fields.capacities();
        [arena, entries, self.arena.capacity(), self.checked_host.capacity()]
    }

    /// The path without the query. `*` for OPTIONS in asterisk form, empty for CONNECT.
    pub fn path(&self) -> &[u8] {
        self.path.of(&self.arena)
    }

    /// # Errors
    /// `FieldError` when the head would pass [`TARGET_BYTES_MAX`].
    pub fn set_path(&mut self, path: &[u8]) -> Result<(), FieldError> {
        self.path = store(&mut self.arena, path)?;
        Ok(())
    }

    /// The query without its `?`.
    pub fn query(&self) -> Option<&[u8]> {
        self.query.map(|q| q.of(&self.arena))
    }

    /// # Errors
    /// `FieldError` when the head would pass [`TARGET_BYTES_MAX`].
    pub fn set_query(&mut self, query: Option<&[u8]>) -> Result<(), FieldError> {
        self.query = match query {
            Some(bytes) => Some(store(&mut self.arena, bytes)?),
            None => None,
        };
        Ok(())
    }

    /// Stores path and query of an origin-form target in one copy: the path ends before the first `?`
    /// (RFC 3986 §3.3). `query_at` is the place of that `?`.
    ///
    /// # Errors
    /// `FieldError` when the head would pass [`TARGET_BYTES_MAX`].
    pub(crate) fn set_target(&mut self, target: &[u8], query_at: Option<usize>) -> Result<(), FieldError> {
        let whole = store(&mut self.arena, target)?;
        self.path = whole;
        self.query = None;
        if let Some(query_at) = query_at.and_then(|at| u32::try_from(at).ok())
            && let Some(query_len) = whole.len.checked_sub(query_at + 1)
        {
            self.path.len = query_at;
            self.query = Some(Span { at: whole.at + query_at + 1, len: query_len });
        }
        Ok(())
    }

    /// The protocol that the client asks to switch to, lower case: `:protocol` of an extended CONNECT
    /// (RFC 8441 §4), or the one taken from `Upgrade` in HTTP/1.1 (RFC 9110 §7.8).
    pub fn protocol(&self) -> Option<&[u8]> {
        self.protocol.map(|p| p.of(&self.arena))
    }

    /// # Errors
    /// `FieldError` when `protocol` is no token or the head would pass [`TARGET_BYTES_MAX`].
    pub fn set_protocol(&mut self, protocol: &[u8]) -> Result<(), FieldError> {
        if !is_token(protocol) {
            return Err(FieldError);
        }
        self.protocol = Some(store_lower(&mut self.arena, protocol)?);
        Ok(())
    }

    /// Forgets the wish to switch protocols: a server may ignore it (RFC 9110 §7.8).
    pub fn clear_protocol(&mut self) {
        self.protocol = None;
    }
}

/// A response head, interim (1xx) ones included.
#[derive(Clone, Debug, Default)]
pub struct ResponseHead {
    /// 100 to 999.
    pub status: u16,
    pub version: Version,
    pub fields: Fields,
    arena: Vec<u8>,
    protocol: Option<Span>,
}

impl ResponseHead {
    /// Forgets the message, keeps the memory.
    pub fn clear(&mut self) {
        self.status = 0;
        self.version = Version::Http11;
        self.fields.clear();
        self.arena.clear();
        self.protocol = None;
    }

    pub const fn is_interim(&self) -> bool {
        self.status >= 100 && self.status < 200
    }

    /// The protocol that a 101 switches to, lower case (RFC 9110 §15.2.2).
    pub fn protocol(&self) -> Option<&[u8]> {
        self.protocol.map(|p| p.of(&self.arena))
    }

    /// # Errors
    /// `FieldError` when `protocol` is no token or the head would pass [`TARGET_BYTES_MAX`].
    pub fn set_protocol(&mut self, protocol: &[u8]) -> Result<(), FieldError> {
        if !is_token(protocol) {
            return Err(FieldError);
        }
        self.protocol = Some(store_lower(&mut self.arena, protocol)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_keep_their_bytes_whatever_the_order_of_setting() {
        let mut head = RequestHead::default();
        head.set_path(b"/old").expect("short");
        head.set_target(b"/a/b?q=1?2", Some(4)).expect("short");
        head.set_authority(b"A.Example:8080").expect("short");
        head.set_method(b"PURGE").expect("a token");
        head.set_protocol(b"WebSocket").expect("a token");
        assert_eq!((head.path(), head.query()), (&b"/a/b"[..], Some(&b"q=1?2"[..])));
        assert_eq!((head.authority(), head.method_token()), (&b"a.example:8080"[..], &b"PURGE"[..]));
        assert_eq!(head.protocol(), Some(&b"websocket"[..]));
        for (target, query_at, path, query) in [
            ("/?", Some(1), "/", Some("")),
            ("?x", Some(0), "", Some("x")),
            ("/a", None, "/a", None),
            ("/a", Some(9), "/a", None),
        ] {
            head.set_target(target.as_bytes(), query_at).expect("short");
            assert_eq!((head.path(), head.query()), (path.as_bytes(), query.map(str::as_bytes)), "{target}");
        }
        head.clear();
        assert!(
            head.path().is_empty()
                && head.query().is_none()
                && head.authority().is_empty()
                && head.protocol().is_none()
        );
    }

    #[test]
    fn rewrites_are_bounded() {
        let mut head = RequestHead::default();
        let path = vec![b'/'; TARGET_BYTES_MAX / 4];
        for _ in 0..4 {
            head.set_path(&path).expect("below the bound");
        }
        assert_eq!(head.set_path(b"/"), Err(FieldError));
        assert_eq!(head.path(), path);
        assert_eq!(head.set_method(b"GE T"), Err(FieldError));
    }
}
