//! Between our heads and the `http` crate's types that h2 speaks.
//!
//! From h2 to us everything that could be read in two ways on an h1 hop is refused here, whatever the h2 crate
//! checked before (RFC 9113 §8.2, §8.3; cases C15, C21). From us to h2 nothing can fail but for a bug in a
//! field made here, which becomes an internal fault and not a panic.

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri};
use http_wire::authority;
use http_wire::fields::{FieldError, FieldId, Fields};
use http_wire::head::{BodyLength, Method, RequestHead, ResponseHead, Scheme, Version};

use crate::reason::Reason;

/// What an h2 head says beside its fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct H2RequestMeta {
    pub(crate) body: BodyLength,
    pub(crate) te_trailers: bool,
}

/// Fills `head` from an h2 request.
///
/// # Errors
/// The reason for a 400.
pub(crate) fn request_from_h2(
    parts: &http::request::Parts,
    protocol: Option<&str>,
    body_ended: bool,
    scheme: Scheme,
    head: &mut RequestHead,
) -> Result<H2RequestMeta, Reason> {
    head.clear();
    head.version = Version::Http2;
    head.scheme = scheme;
    head.set_method(parts.method.as_str().as_bytes()).map_err(|_not_a_token| Reason::BadMethod)?;
    set_h2_target(parts, protocol, head)?;
    let mut length = None;
    let mut te_trailers = false;
    let mut host = None;
    for (name, value) in &parts.headers {
        let value = value.as_bytes();
        match FieldId::from_lower(name.as_str().as_bytes()) {
            FieldId::ContentLength => set_length(&mut length, value).map_err(|()| Reason::BadContentLength)?,
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

fn push_name(fields: &mut Fields, name: &str, value: &[u8]) -> Result<(), Reason> {
    fields.push_name(name.as_bytes(), value).map_err(|_bad| Reason::BadFieldValue)
}

fn set_h2_target(parts: &http::request::Parts, protocol: Option<&str>, head: &mut RequestHead) -> Result<(), Reason> {
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
    let mut length = None;
    for (name, value) in &parts.headers {
        let value = value.as_bytes();
        match FieldId::from_lower(name.as_str().as_bytes()) {
            FieldId::ContentLength => set_length(&mut length, value).map_err(|()| Reason::UpstreamBadContentLength)?,
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

/// Trailer fields from h2. Framing and routing fields are discarded (RFC 9110 §6.5.1).
pub(crate) fn trailers_from_h2(trailers: &HeaderMap) -> Fields {
    let mut fields = Fields::new();
    for (name, value) in trailers {
        let is_framing = matches!(
            FieldId::from_lower(name.as_str().as_bytes()),
            FieldId::ContentLength
                | FieldId::TransferEncoding
                | FieldId::Connection
                | FieldId::Host
                | FieldId::Te
                | FieldId::Trailer
                | FieldId::Upgrade
        );
        // A value that may not stand in h1 is dropped with the field: trailers are optional by nature.
        if !is_framing && fields.push_name(name.as_str().as_bytes(), value.as_bytes()).is_err() {
            continue;
        }
    }
    fields
}

/// Fields for h2.
///
/// # Errors
/// `FieldError` for a name or value that h2 cannot carry.
pub(crate) fn fields_to_h2(fields: &Fields, into: &mut HeaderMap) -> Result<(), FieldError> {
    into.reserve(fields.len());
    for field in fields.iter() {
        let name = HeaderName::from_bytes(field.name).map_err(|_bad| FieldError)?;
        let value = HeaderValue::from_bytes(field.value).map_err(|_bad| FieldError)?;
        into.append(name, value);
    }
    Ok(())
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
    let mut target = Vec::with_capacity(head.path().len() + head.query().map_or(0, |query| query.len() + 1));
    target.extend_from_slice(head.path());
    if let Some(query) = head.query() {
        target.push(b'?');
        target.extend_from_slice(query);
    }
    let uri = Uri::builder()
        .scheme(upstream_scheme.as_str())
        .authority(Authority::from_maybe_shared(Bytes::copy_from_slice(head.authority())).map_err(|_bad| FieldError)?)
        .path_and_query(PathAndQuery::from_maybe_shared(Bytes::from(target)).map_err(|_bad| FieldError)?)
        .build()
        .map_err(|_bad| FieldError)?;
    let mut request = Request::new(());
    *request.uri_mut() = uri;
    *request.version_mut() = http::Version::HTTP_2;
    *request.method_mut() = http::Method::from_bytes(head.method_token()).map_err(|_bad| FieldError)?;
    if let Some(protocol) = head.protocol() {
        let protocol = std::str::from_utf8(protocol).map_err(|_bad| FieldError)?;
        request.extensions_mut().insert(h2::ext::Protocol::from(protocol));
        *request.method_mut() = http::Method::CONNECT;
    }
    fields_to_h2(&head.fields, request.headers_mut())?;
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
    fields_to_h2(&head.fields, response.headers_mut())?;
    // RFC 9110 §8.6: no length on an interim or 204 response.
    if let Some(bytes) = length.filter(|_| !matches!(head.status, 100..=199 | 204)) {
        response.headers_mut().insert(http::header::CONTENT_LENGTH, HeaderValue::from(bytes));
    }
    Ok(response)
}
