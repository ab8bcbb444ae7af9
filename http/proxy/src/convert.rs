//! Between our heads and the `http` crate's types that h2 speaks.
//!
//! From h2 to us everything that could be read in two ways on an h1 hop is refused here, whatever the h2 crate
//! checked before (RFC 9113 §8.2, §8.3; cases C15, C21). From us to h2 nothing can fail but for a bug in a
//! field made here, which becomes an internal fault and not a panic.

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri};
use http_wire::authority;
use http_wire::fields::{Field, FieldError, FieldId, FieldSet, Fields, may_be_trailer};
use http_wire::head::{BodyLength, Method, RequestHead, ResponseHead, Scheme, Version};

use crate::pool::RESPONSE_LIMITS;
use crate::reason::Reason;

/// What a connection knows of its requests beforehand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestLimits {
    pub(crate) fields_max: usize,
    pub(crate) scheme: Scheme,
}

/// What an h2 head says beside its fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct H2RequestMeta {
    pub(crate) body: BodyLength,
    pub(crate) te_trailers: bool,
}

/// Fills `head` from an h2 request.
///
/// # Errors
/// The reason for a 400 or 431.
pub(crate) fn request_from_h2(
    parts: &http::request::Parts,
    protocol: Option<&str>,
    body_ended: bool,
    limits: &RequestLimits,
    head: &mut RequestHead,
) -> Result<H2RequestMeta, Reason> {
    head.clear();
    head.version = Version::Http2;
    head.scheme = limits.scheme;
    // The bytes are bounded by the h2 crate, which answers 431 by itself.
    if parts.headers.len() > limits.fields_max {
        return Err(Reason::TooManyFields);
    }
    head.set_method(parts.method.as_str().as_bytes()).map_err(|_not_a_token| Reason::BadMethod)?;
    set_h2_target(parts, protocol, head)?;
    let mut length = None;
    let mut te_trailers = false;
    let mut host = None;
    for (name, value) in &parts.headers {
        let value = value.as_bytes();
        if has_outer_blank(value) {
            return Err(Reason::BadFieldValue);
        }
        match FieldId::from_lower(name.as_str().as_bytes()) {
            FieldId::ContentLength => {
                set_length(&mut length, value).map_err(|()| Reason::BadContentLength)?
            }
            FieldId::Host if host.is_some_and(|first| first != value) => return Err(Reason::HostConflict),
            FieldId::Host => host = Some(value),
            FieldId::Te if value.eq_ignore_ascii_case(b"trailers") => te_trailers = true,
            // RFC 9113 §8.2.2: connection-specific fields make a message malformed.
            FieldId::Connection
            | FieldId::KeepAlive
            | FieldId::ProxyConnection
            | FieldId::TransferEncoding
            | FieldId::Upgrade
            | FieldId::Te => return Err(Reason::BadFieldName),
            FieldId::Cookie => {}
            FieldId::Other => push_name(&mut head.fields, name.as_str(), value)?,
            id => head.fields.push(id, value).map_err(|_bad| Reason::BadFieldValue)?,
        }
    }
    join_cookies(&parts.headers, &mut head.fields)?;
    settle_authority(host, head)?;
    let body = match (body_ended, length) {
        (true, None | Some(0)) => BodyLength::Empty,
        (true, Some(_)) => return Err(Reason::BadContentLength),
        (false, Some(bytes)) => BodyLength::Exact(bytes),
        (false, None) => BodyLength::Streamed,
    };
    Ok(H2RequestMeta { body, te_trailers })
}

/// RFC 9113 §8.2.1: a value that begins or ends with a blank makes a message malformed.
fn has_outer_blank(value: &[u8]) -> bool {
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    is_blank(value.first()) || is_blank(value.last())
}

fn push_name(fields: &mut Fields, name: &str, value: &[u8]) -> Result<(), Reason> {
    fields.push_name(name.as_bytes(), value).map_err(|_bad| Reason::BadFieldValue)
}

fn set_h2_target(
    parts: &http::request::Parts,
    protocol: Option<&str>,
    head: &mut RequestHead,
) -> Result<(), Reason> {
    let bad = |_: FieldError| Reason::BadTarget;
    if let Some(authority) = parts.uri.authority() {
        head.set_authority(authority.as_str().as_bytes()).map_err(bad)?;
    }
    if head.method == Method::Connect && protocol.is_none() {
        return Err(Reason::ConnectUnsupported);
    }
    if let Some(protocol) = protocol {
        head.set_protocol(protocol.as_bytes()).map_err(bad)?;
    }
    let path = parts.uri.path().as_bytes();
    let is_legal = path.first() == Some(&b'/') || (path == b"*" && head.method == Method::Options);
    if !is_legal || path.iter().any(|byte| !byte.is_ascii_graphic()) {
        return Err(Reason::BadTarget);
    }
    head.set_path(path).map_err(bad)?;
    let query = parts.uri.query().map(str::as_bytes);
    if query.is_some_and(|query| query.iter().any(|byte| !byte.is_ascii_graphic())) {
        return Err(Reason::BadTarget);
    }
    head.set_query(query).map_err(bad)
}

/// One value for routing, logs and the upstream: `:authority`, and a `host` must agree (RFC 9113 §8.3.1).
fn settle_authority(host: Option<&[u8]>, head: &mut RequestHead) -> Result<(), Reason> {
    match host {
        Some(host) if head.authority().is_empty() => {
            head.set_authority(host).map_err(|_too_long| Reason::BadHost)?;
        }
        Some(host) if !authority::equal_ignoring_default_port(head.authority(), host, head.scheme) => {
            return Err(Reason::HostConflict);
        }
        _ => {}
    }
    if head.authority().is_empty() {
        return Err(Reason::HostMissing);
    }
    authority::parse(head.authority()).map(drop).map_err(|_malformed| Reason::BadHost)
}

/// Several cookie fields become one again before they leave h2 (RFC 9113 §8.2.3).
fn join_cookies(headers: &HeaderMap, fields: &mut Fields) -> Result<(), Reason> {
    let mut crumbs = headers.get_all(http::header::COOKIE).iter();
    let Some(first) = crumbs.next() else { return Ok(()) };
    let result = match crumbs.next() {
        None => fields.push(FieldId::Cookie, first.as_bytes()),
        Some(second) => {
            let mut joined = first.as_bytes().to_vec();
            for crumb in std::iter::once(second).chain(crumbs) {
                joined.extend_from_slice(b"; ");
                joined.extend_from_slice(crumb.as_bytes());
            }
            fields.push(FieldId::Cookie, &joined)
        }
    };
    result.map_err(|_bad| Reason::BadFieldValue)
}

/// Content-Length is digits, and repeated ones agree (RFC 9110 §8.6).
fn set_length(length: &mut Option<u64>, value: &[u8]) -> Result<(), ()> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(());
    }
    let text = std::str::from_utf8(value).map_err(drop)?;
    let bytes: u64 = text.parse().map_err(drop)?;
    if length.is_some_and(|known| known != bytes) {
        return Err(());
    }
    *length = Some(bytes);
    Ok(())
}

/// What an h2 response head says beside its fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct H2ResponseMeta {
    pub(crate) body: BodyLength,
    /// `content-length` of a response that has no body by rule (HEAD, 304).
    pub(crate) declared_length: Option<u64>,
}

/// Fills `head` from an h2 response, interim ones included.
///
/// # Errors
/// The reason for a 502.
pub(crate) fn response_from_h2(
    parts: &http::response::Parts,
    request_method: Method,
    body_ended: bool,
    head: &mut ResponseHead,
) -> Result<H2ResponseMeta, Reason> {
    head.clear();
    head.status = parts.status.as_u16();
    head.version = Version::Http2;
    if parts.headers.len() > RESPONSE_LIMITS.fields_max {
        return Err(Reason::UpstreamTooManyFields);
    }
    let mut length = None;
    for (name, value) in &parts.headers {
        let value = value.as_bytes();
        if has_outer_blank(value) {
            return Err(Reason::UpstreamBadFieldValue);
        }
        match FieldId::from_lower(name.as_str().as_bytes()) {
            FieldId::ContentLength => {
                set_length(&mut length, value).map_err(|()| Reason::UpstreamBadContentLength)?
            }
            FieldId::Connection
            | FieldId::KeepAlive
            | FieldId::ProxyConnection
            | FieldId::TransferEncoding
            | FieldId::Upgrade => return Err(Reason::UpstreamH2ProtocolError),
            FieldId::Other => {
                let pushed = head.fields.push_name(name.as_str().as_bytes(), value);
                pushed.map_err(|_bad| Reason::UpstreamBadFieldValue)?;
            }
            id => head.fields.push(id, value).map_err(|_bad| Reason::UpstreamBadFieldValue)?,
        }
    }
    let bodiless = request_method == Method::Head || matches!(head.status, 100..=199 | 204 | 304);
    let body = match (bodiless || body_ended, length) {
        (true, _) => BodyLength::Empty,
        (false, Some(bytes)) => BodyLength::Exact(bytes),
        (false, None) => BodyLength::Streamed,
    };
    Ok(H2ResponseMeta { body, declared_length: length })
}

/// Trailer fields from h2. What a trailer section must not carry is discarded (RFC 9110 §6.5.1).
pub(crate) fn trailers_from_h2(trailers: &HeaderMap) -> Fields {
    let mut fields = Fields::new();
    for (name, value) in trailers {
        let name = name.as_str().as_bytes();
        // A value that may not stand in h1 is dropped with the field: trailers are optional by nature.
        if may_be_trailer(FieldId::from_lower(name), name)
            && fields.push_name(name, value.as_bytes()).is_err()
        {
            continue;
        }
    }
    fields
}

/// What h2 says in other ways or not at all (RFC 9113 §8.2.2), even when a policy has put it into the list.
const NOT_IN_H2: FieldSet = FieldSet::WRITTEN_BY_CODEC;
/// A WebSocket over h2 has no key (RFC 8441 §5).
const NOT_IN_H2_UPGRADE: FieldSet = NOT_IN_H2.with(FieldSet::of(&[FieldId::SecWebsocketKey]));

/// The bytes of a head, copied once. Its parts share the memory, so that a head costs the same few allocations
/// whatever the number of its fields.
struct Arena {
    bytes: Bytes,
    taken: usize,
}

impl Arena {
    fn of(fields: &Fields, before: &[&[u8]]) -> Self {
        let room = before.iter().map(|part| part.len()).sum::<usize>();
        let mut bytes =
            Vec::with_capacity(room + fields.iter().map(|field| field.value.len()).sum::<usize>());
        before.iter().for_each(|part| bytes.extend_from_slice(part));
        fields.iter().for_each(|field| bytes.extend_from_slice(field.value));
        Self { bytes: Bytes::from(bytes), taken: 0 }
    }

    /// The next `len` bytes, in the order in which they were put in.
    fn take(&mut self, len: usize) -> Bytes {
        let from = self.taken;
        self.taken = (from + len).min(self.bytes.len());
        self.bytes.slice(from..self.taken)
    }

    fn fields_to_h2(
        &mut self,
        fields: &Fields,
        left_out: FieldSet,
        into: &mut HeaderMap,
    ) -> Result<(), FieldError> {
        into.reserve(fields.len());
        for field in fields.iter() {
            let value = self.take(field.value.len());
            if left_out.has(field.id) {
                continue;
            }
            let mut value = HeaderValue::from_maybe_shared(value).map_err(|_bad| FieldError)?;
            value.set_sensitive(ALWAYS_NEW.has(field.id));
            into.append(header_name(field)?, value);
        }
        Ok(())
    }
}

/// A name for the `http` crate, without an allocation or a search where it is well known.
fn header_name(field: Field<'_>) -> Result<HeaderName, FieldError> {
    match known_name(field.id) {
        Some(name) => Ok(name.clone()),
        None => HeaderName::from_bytes(field.name).map_err(|_bad| FieldError),
    }
}

macro_rules! known_names {
    ($($id:ident)+) => {
        fn known_name(id: FieldId) -> Option<&'static HeaderName> {
            match id {
                $(FieldId::$id => {
                    static NAME: HeaderName = HeaderName::from_static(FieldId::$id.name());
                    Some(&NAME)
                })+
                FieldId::Other => None,
            }
        }
    };
}

known_names! {
    Accept Authorization Connection ContentLength ContentType Cookie Date Deprecation Expect Forwarded
    GrpcAcceptEncoding GrpcEncoding GrpcMessage GrpcStatus GrpcTimeout Host Http2Settings KeepAlive Origin
    ProxyAuthenticate ProxyAuthorization ProxyConnection RetryAfter SecWebsocketAccept SecWebsocketKey
    SecWebsocketVersion Server SetCookie Te Traceparent Tracestate Trailer TransferEncoding Upgrade
    UserAgent Vary Via XDeadlineMs XForwardedClientCert XForwardedFor XForwardedHost XForwardedPort
    XForwardedPrefix XForwardedProto XMirrored XRealIp XRequestId XShardAttempt
}

/// Fields whose values are new with each message: kept out of the peer's HPACK table, where they would only drive out
/// what comes again (RFC 7541 §7.1.3 lets an encoder choose).
const ALWAYS_NEW: FieldSet = FieldSet::of(&[FieldId::Traceparent, FieldId::XRequestId]);

/// Trailer fields for h2.
///
/// # Errors
/// `FieldError` for a name or value that h2 cannot carry.
pub(crate) fn trailers_to_h2(fields: &Fields) -> Result<HeaderMap, FieldError> {
    let mut map = HeaderMap::new();
    Arena::of(fields, &[]).fields_to_h2(fields, NOT_IN_H2, &mut map)?;
    Ok(map)
}

/// A request for an h2 upstream. An upgrade becomes an extended CONNECT (RFC 8441 §4).
///
/// # Errors
/// `FieldError` for a target or field that h2 cannot carry.
pub(crate) fn request_to_h2(
    head: &RequestHead,
    body: BodyLength,
    te_trailers: bool,
    upstream_scheme: Scheme,
) -> Result<Request<()>, FieldError> {
    let (mark, query): (&[u8], &[u8]) = head.query().map_or((b"", b""), |query| (b"?", query));
    let mut arena = Arena::of(&head.fields, &[head.authority(), head.path(), mark, query]);
    let mut uri = http::uri::Parts::default();
    uri.scheme = Some(match upstream_scheme {
        Scheme::Http => http::uri::Scheme::HTTP,
        Scheme::Https => http::uri::Scheme::HTTPS,
    });
    let authority = arena.take(head.authority().len());
    uri.authority = Some(Authority::from_maybe_shared(authority).map_err(|_bad| FieldError)?);
    let target = arena.take(head.path().len() + mark.len() + query.len());
    uri.path_and_query = Some(PathAndQuery::from_maybe_shared(target).map_err(|_bad| FieldError)?);
    let mut request = Request::new(());
    *request.uri_mut() = Uri::from_parts(uri).map_err(|_bad| FieldError)?;
    *request.version_mut() = http::Version::HTTP_2;
    let mut left_out = NOT_IN_H2;
    if let Some(protocol) = head.protocol() {
        let protocol = std::str::from_utf8(protocol).map_err(|_bad| FieldError)?;
        request.extensions_mut().insert(h2::ext::Protocol::from(protocol));
        *request.method_mut() = http::Method::CONNECT;
        left_out = NOT_IN_H2_UPGRADE;
    } else {
        *request.method_mut() = http::Method::from_bytes(head.method_token()).map_err(|_bad| FieldError)?;
    }
    arena.fields_to_h2(&head.fields, left_out, request.headers_mut())?;
    if let BodyLength::Exact(bytes) = body {
        request.headers_mut().insert(http::header::CONTENT_LENGTH, HeaderValue::from(bytes));
    }
    if te_trailers {
        request.headers_mut().insert(http::header::TE, HeaderValue::from_static("trailers"));
    }
    Ok(request)
}

/// A response, final or interim, for an h2 client.
///
/// # Errors
/// `FieldError` for a field that h2 cannot carry.
pub(crate) fn response_to_h2(head: &ResponseHead, length: Option<u64>) -> Result<Response<()>, FieldError> {
    let mut response = Response::new(());
    *response.status_mut() = http::StatusCode::from_u16(head.status).map_err(|_bad| FieldError)?;
    *response.version_mut() = http::Version::HTTP_2;
    Arena::of(&head.fields, &[]).fields_to_h2(&head.fields, NOT_IN_H2, response.headers_mut())?;
    // RFC 9110 §8.6: no length on an interim or 204 response.
    if let Some(bytes) = length.filter(|_| !matches!(head.status, 100..=199 | 204)) {
        response.headers_mut().insert(http::header::CONTENT_LENGTH, HeaderValue::from(bytes));
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(fields: &[(&str, &str)]) -> http::request::Parts {
        let mut request = Request::builder().uri("http://a.example/x?y");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a legal request").into_parts().0
    }

    fn refusal(fields: &[(&str, &str)], body_ended: bool) -> Option<Reason> {
        let limits = RequestLimits { fields_max: 5, scheme: Scheme::Http };
        request_from_h2(&parts(fields), None, body_ended, &limits, &mut RequestHead::default()).err()
    }

    #[test]
    fn what_is_malformed_in_h2_goes_no_further() {
        for (fields, body_ended, wanted) in [
            (&[("x", "y")][..], true, None),
            (&[("x", " y")], true, Some(Reason::BadFieldValue)),
            (&[("x", "y\t")], true, Some(Reason::BadFieldValue)),
            (&[("connection", "x")], true, Some(Reason::BadFieldName)),
            (&[("transfer-encoding", "chunked")], true, Some(Reason::BadFieldName)),
            (&[("te", "trailers")], true, None),
            (&[("te", "trailers, gzip")], true, Some(Reason::BadFieldName)),
            (&[("content-length", "0")], true, None),
            (&[("content-length", "1")], true, Some(Reason::BadContentLength)),
            (&[("content-length", "1")], false, None),
            (&[("content-length", "1"), ("content-length", "2")], false, Some(Reason::BadContentLength)),
            (&[("content-length", "+1")], false, Some(Reason::BadContentLength)),
            (&[("host", "a.example:80")], true, None),
            (&[("host", "b.example")], true, Some(Reason::HostConflict)),
            (&[("a", "1"), ("b", "1"), ("c", "1"), ("d", "1"), ("e", "1")], true, None),
            (
                &[("a", "1"), ("b", "1"), ("c", "1"), ("d", "1"), ("e", "1"), ("e", "2")],
                true,
                Some(Reason::TooManyFields),
            ),
        ] {
            assert_eq!(refusal(fields, body_ended), wanted, "{fields:?}");
        }
    }

    #[test]
    fn a_request_passes_from_h2_to_h2_as_it_was() {
        let limits = RequestLimits { fields_max: 50, scheme: Scheme::Http };
        let mut head = RequestHead::default();
        let fields =
            [("x-custom", "1"), ("accept", "*/*"), ("cookie", "a=1"), ("x-custom", ""), ("cookie", "b=2")];
        request_from_h2(&parts(&fields), None, true, &limits, &mut head).expect("a legal request");
        head.fields.push_name(b"connection", b"close").expect("a policy may do that");
        let sent = request_to_h2(&head, BodyLength::Empty, true, Scheme::Https).expect("h2 can carry it");
        assert_eq!(sent.uri().to_string(), "https://a.example/x?y");
        let values = |name: &str| -> Vec<&[u8]> {
            sent.headers().get_all(name).iter().map(HeaderValue::as_bytes).collect()
        };
        assert_eq!(values("x-custom"), [&b"1"[..], b""]);
        assert_eq!(values("accept"), [b"*/*"]);
        assert_eq!(values("cookie"), [b"a=1; b=2"]);
        assert_eq!(values("te"), [b"trailers"]);
        assert!(values("connection").is_empty(), "connection-specific fields never reach h2");
    }

    #[test]
    fn an_upgrade_becomes_an_extended_connect_without_a_key() {
        let mut head = RequestHead::default();
        head.set_method(b"GET").expect("a token");
        head.set_authority(b"a.example").expect("short");
        head.set_path(b"/ws").expect("short");
        head.set_protocol(b"websocket").expect("a token");
        head.fields.push(FieldId::SecWebsocketKey, b"dGhlIHNhbXBsZSBub25jZQ==").expect("a value");
        head.fields.push(FieldId::SecWebsocketVersion, b"13").expect("a value");
        let sent = request_to_h2(&head, BodyLength::Streamed, false, Scheme::Http).expect("h2 can carry it");
        assert_eq!(sent.method(), http::Method::CONNECT);
        assert_eq!(
            sent.extensions().get::<h2::ext::Protocol>().map(h2::ext::Protocol::as_str),
            Some("websocket")
        );
        assert_eq!(sent.headers().get("sec-websocket-version").map(HeaderValue::as_bytes), Some(&b"13"[..]));
        assert!(!sent.headers().contains_key("sec-websocket-key"));
    }

    #[test]
    fn trailers_do_not_frame_route_or_vouch() {
        let mut map = HeaderMap::new();
        for name in
            ["x-sum", "grpc-status", "content-length", "host", "authorization", "x-forwarded-for", "te"]
        {
            map.append(HeaderName::from_static(name), HeaderValue::from_static("0"));
        }
        let fields = trailers_from_h2(&map);
        let names: Vec<&[u8]> = fields.iter().map(|field| field.name).collect();
        assert_eq!(names, [&b"x-sum"[..], b"grpc-status"]);
        assert_eq!(trailers_to_h2(&fields).expect("h2 can carry them").len(), 2);
    }
}
