//! Request heads (RFC 9112 §3, §5, §6, §9): from bytes to a [`RequestHead`] with end-to-end fields only.
//!
//! Everything that two parsers could read in two ways is refused: a request that passes here has one length,
//! one host and one meaning.

use super::hop::{CONNECTION_OPTIONS_MAX, ContentLength, HopFields, TransferCoding};
use super::scan::{LineFault, Lines, OddVersion, read_field_lines, read_odd_version};
use super::target::store_target;
use super::{HeadLimits, Persistence, RequestError};
use crate::authority;
use crate::fields::{FieldId, FieldSet, Keep};
use crate::head::{BodyLength, Method, RequestHead, Scheme, Version};
use crate::token::{BLOCK_BYTES, Block};

/// What the head says about its message and its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestMeta {
    /// Bytes of the buffer that the head takes, a tolerated empty line before it included.
    pub head_bytes: usize,
    /// `Empty` without a length, `Exact` (also of 0) or `Streamed`.
    pub body: BodyLength,
    /// What the client wants after this exchange.
    pub persistence: Persistence,
    /// `Expect: 100-continue` from HTTP/1.1 (RFC 9110 §10.1.1). The field stays in the head, so that the next
    /// hop decides; from HTTP/1.0 it is ignored and removed.
    pub expects_continue: bool,
    /// `TE: trailers` (RFC 9110 §10.1.4).
    pub te_trailers: bool,
}

/// Parses one request head at the start of `buf` into `head`, whose former content is lost either way.
/// `None` means that the head is incomplete and within its limits. `scheme` is how the client reached us.
///
/// # Errors
/// See [`RequestError`]: answer its status and close the connection.
pub fn parse_request(
    buf: &[u8],
    limits: &HeadLimits,
    scheme: Scheme,
    head: &mut RequestHead,
) -> Result<Option<RequestMeta>, RequestError> {
    head.clear();
    head.scheme = scheme;
    // RFC 9112 §2.2: one empty line before a request line is tolerated; some clients end a body with it.
    let (lead_bytes, text) = match buf {
        [b'\r', b'\n', text @ ..] => (2, text),
        [] | [b'\r'] => return Ok(None),
        text => (0, text),
    };
    match text {
        [b'\n', ..] => return Err(RequestError::BareLf),
        [b'\r', ..] => {
            return Err(if lead_bytes == 0 { RequestError::BareCr } else { RequestError::BadMethod });
        }
        _ => {}
    }
    let mut lines = Lines::new(text);
    let Some(line) = lines.next_line()? else {
        return incomplete(text, limits.request_line_bytes_max, limits);
    };
    if line.len > limits.request_line_bytes_max {
        return Err(RequestError::RequestLineTooLong);
    }
    let target_authority = read_request_line(text, line.len, head)?;
    let block_at = lines.bytes_read();
    let Some(seen) = read_fields(&mut lines, limits, head)? else {
        return incomplete(text, usize::MAX, limits);
    };
    let block = text.get(block_at..lines.bytes_read()).unwrap_or(&[]);
    let meta = judge(&seen, block, target_authority, head)?;
    Ok(Some(RequestMeta { head_bytes: lead_bytes + lines.bytes_read(), ..meta }))
}

/// A head without its end: refused as soon as it cannot become a good one any more. `line_bytes_max` bounds
/// what is there as long as the request line has no end.
#[cold]
fn incomplete(
    text: &[u8],
    line_bytes_max: usize,
    limits: &HeadLimits,
) -> Result<Option<RequestMeta>, RequestError> {
    // The CR of a line of exactly the limit may be there.
    if text.len() > line_bytes_max.saturating_add(1) {
        return Err(RequestError::RequestLineTooLong);
    }
    if text.len() >= limits.head_bytes_max {
        return Err(RequestError::HeadTooLarge);
    }
    Ok(None)
}

/// RFC 9112 §3: method SP target SP version, single spaces. `text` begins with the line of `len` bytes.
fn read_request_line<'a>(
    text: &'a [u8],
    len: usize,
    head: &mut RequestHead,
) -> Result<Option<(&'a [u8], Scheme)>, RequestError> {
    let line = text.get(..len).unwrap_or(text);
    let method_len = match Block::at(text, 0).find(b' ').trailing_zeros() as usize {
        found if found < BLOCK_BYTES && found < len => found,
        _ => line.iter().position(|&b| b == b' ').ok_or(RequestError::BadMethod)?,
    };
    set_method(line.get(..method_len).unwrap_or(&[]), head)?;
    let target_and_version = line.get(method_len + 1..).unwrap_or(&[]);
    let target_len = match target_and_version.split_last_chunk::<9>() {
        Some((target, b" HTTP/1.1")) => target.len(),
        Some((target, b" HTTP/1.0")) => {
            head.version = Version::Http10;
            target.len()
        }
        _ => strip_odd_version(target_and_version)?.len(),
    };
    store_target(text.get(method_len + 1..).unwrap_or(&[]), target_len, head)
}

/// The target before a version that is neither 1.0 nor 1.1 but may be read as 1.1.
#[cold]
fn strip_odd_version(target_and_version: &[u8]) -> Result<&[u8], RequestError> {
    let space = target_and_version.iter().rposition(|&b| b == b' ').ok_or(RequestError::BadVersion)?;
    let (target, version) = target_and_version.split_at(space);
    match read_odd_version(version.get(1..).unwrap_or(&[])) {
        // RFC 9110 §6.2.
        OddVersion::LaterMinor => Ok(target),
        OddVersion::OtherMajor => Err(RequestError::VersionUnsupported),
        OddVersion::Malformed => Err(RequestError::BadVersion),
    }
}

fn set_method(token: &[u8], head: &mut RequestHead) -> Result<(), RequestError> {
    head.set_method(token).or(Err(RequestError::BadMethod))?;
    if head.method == Method::Extension && token.iter().any(u8::is_ascii_lowercase) {
        return Err(RequestError::BadMethod);
    }
    Ok(())
}

/// Fields that are more to a request than a line to pass on.
const WATCHED: FieldSet =
    FieldSet::WRITTEN_BY_CODEC.with(FieldSet::of(&[FieldId::ContentType, FieldId::Expect]));

/// The fields that say something about this hop, and how often the ones came that may come once.
#[derive(Default)]
struct Seen<'a> {
    hop: HopFields<'a>,
    host: Option<&'a [u8]>,
    hosts: u32,
    content_types: u32,
    expects_continue: bool,
}

fn read_fields<'a>(
    lines: &mut Lines<'a>,
    limits: &HeadLimits,
    head: &mut RequestHead,
) -> Result<Option<Seen<'a>>, RequestError> {
    let version = head.version;
    let mut seen = Seen::default();
    let whole = read_field_lines(lines, limits, &mut head.fields, WATCHED, |id, value| {
        match id {
            FieldId::Host => {
                seen.hosts += 1;
                seen.host = Some(value);
                return Keep::Out;
            }
            FieldId::ContentType => seen.content_types += 1,
            FieldId::Expect if version == Version::Http10 => return Keep::Out,
            FieldId::Expect => seen.expects_continue |= value.eq_ignore_ascii_case(b"100-continue"),
            _ => return seen.hop.take(id, value),
        }
        Keep::Field
    })?;
    Ok(whole.map(|()| seen))
}

/// Everything that can be said only when all fields have been seen.
fn judge(
    seen: &Seen<'_>,
    block: &[u8],
    target_authority: Option<(&[u8], Scheme)>,
    head: &mut RequestHead,
) -> Result<RequestMeta, RequestError> {
    if seen.content_types > 1 {
        return Err(RequestError::ContentTypeRepeated);
    }
    if seen.hop.options_count > CONNECTION_OPTIONS_MAX {
        return Err(RequestError::TooManyConnectionOptions);
    }
    let body = body_length(&seen.hop, head.version)?;
    store_authority(seen, target_authority, head)?;
    seen.hop.remove_nominated(block, &mut head.fields);
    // RFC 9110 §7.8 lets us ignore an Upgrade. With a body it would have to wait for the body's end, and no
    // protocol in use asks for that.
    if matches!(body, BodyLength::Empty | BodyLength::Exact(0))
        && let Some(protocol) = seen.hop.upgrade_protocol(head.version)
    {
        head.set_protocol(protocol).or(Err(RequestError::HeadTooLarge))?;
    }
    Ok(RequestMeta {
        head_bytes: 0,
        body,
        persistence: seen.hop.persistence(head.version),
        expects_continue: seen.expects_continue,
        te_trailers: seen.hop.te_trailers,
    })
}

/// RFC 9112 §6.3 for requests, each doubt an error (§6.1, §11.2).
fn body_length(hop: &HopFields<'_>, version: Version) -> Result<BodyLength, RequestError> {
    let length = match hop.content_length {
        ContentLength::Absent => None,
        ContentLength::Once(bytes) => Some(bytes),
        ContentLength::Repeated(_) => return Err(RequestError::ContentLengthRepeated),
        ContentLength::Bad => return Err(RequestError::BadContentLength),
    };
    match (hop.coding, length) {
        (TransferCoding::Absent, None) => Ok(BodyLength::Empty),
        (TransferCoding::Absent, Some(bytes)) => Ok(BodyLength::Exact(bytes)),
        _ if version == Version::Http10 => Err(RequestError::TransferEncodingInHttp10),
        (_, Some(_)) => Err(RequestError::LengthConflict),
        (TransferCoding::Chunked, None) => Ok(BodyLength::Streamed),
        (TransferCoding::OtherThenChunked, None) => Err(RequestError::TransferCodingUnsupported),
        (TransferCoding::Other | TransferCoding::Bad, None) => Err(RequestError::BadTransferEncoding),
    }
}

/// RFC 9112 §3.2, §3.2.2: one value for routing, logs and the next hop. A target with an authority decides,
/// but a Host that says something else is an attack or a mistake.
fn store_authority(
    seen: &Seen<'_>,
    target_authority: Option<(&[u8], Scheme)>,
    head: &mut RequestHead,
) -> Result<(), RequestError> {
    match (seen.hosts, head.version) {
        (0, Version::Http10) | (1, _) => {}
        (0, _) => return Err(RequestError::HostMissing),
        _ => return Err(RequestError::HostRepeated),
    }
    if let (Some(host), None) = (seen.host, target_authority)
        && head.is_checked_host(host)
    {
        return head.set_checked_authority(host).or(Err(RequestError::HeadTooLarge));
    }
    if let Some(host) = seen.host {
        authority::parse(host).or(Err(RequestError::BadHost))?;
        if let Some((authority, scheme)) = target_authority
            && !authority::equal_ignoring_default_port(authority, host, scheme)
        {
            return Err(RequestError::HostConflict);
        }
        if !host.iter().any(u8::is_ascii_uppercase) {
            head.remember_checked_host(host);
        }
    }
    let authority = target_authority.map(|(authority, _)| authority).or(seen.host).unwrap_or(&[]);
    head.set_authority(authority).or(Err(RequestError::HeadTooLarge))
}

impl From<LineFault> for RequestError {
    fn from(fault: LineFault) -> Self {
        match fault {
            LineFault::BareLf => Self::BareLf,
            LineFault::BareCr => Self::BareCr,
            LineFault::ObsFold => Self::ObsFold,
            LineFault::BadFieldName => Self::BadFieldName,
            LineFault::BadFieldValue => Self::BadFieldValue,
            LineFault::TooManyFields => Self::TooManyFields,
            LineFault::TooLarge => Self::HeadTooLarge,
            LineFault::ControlByte => Self::BadRequestLine,
        }
    }
}

#[cfg(test)]
mod tests;
