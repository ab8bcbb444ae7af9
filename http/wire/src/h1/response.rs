//! Response heads (RFC 9112 §4, §6.3, §9.3): from bytes to a [`ResponseHead`] with end-to-end fields only.
//!
//! As strict as the request side where framing is concerned; where RFC 9112 lets a recipient repair (both
//! lengths, repeated length, a length on a bodiless answer) it repairs and says whether the connection may be
//! used again.

use super::hop::{CONNECTION_OPTIONS_MAX, ContentLength, HopFields, TransferCoding};
use super::scan::{LineFault, Lines, OddVersion, read_field_lines, read_odd_version};
use super::{HeadLimits, Persistence, ResponseError};
use crate::fields::FieldSet;
use crate::head::{BodyLength, Method, ResponseHead, Version};

/// What the head says about its message and its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseMeta {
    /// Bytes of the buffer that the head takes.
    pub head_bytes: usize,
    /// How the body on this connection ends. `Empty` for 1xx, 204, 304 and every answer to HEAD: bytes that
    /// follow such a head belong to no message, and the connection must not be used again.
    pub body: BodyLength,
    /// The Content-Length of an answer to HEAD or of a 304, which announces a body that is not there
    /// (RFC 9110 §8.6).
    pub declared_length: Option<u64>,
    /// Whether the connection may carry another exchange once the body has ended.
    pub persistence: Persistence,
}

/// Parses one response head at the start of `buf` into `head`, whose former content is lost either way. After
/// an interim head (1xx other than 101) the next head follows. After a 101, whose protocol is in
/// `head.protocol()`, the connection no longer speaks HTTP. `None` means incomplete and within the limits.
///
/// `request_method` is the method of the request that this answers; CONNECT is never sent.
///
/// # Errors
/// See [`ResponseError`]: answer 502 and close the upstream connection.
pub fn parse_response(
    buf: &[u8],
    limits: &HeadLimits,
    request_method: Method,
    head: &mut ResponseHead,
) -> Result<Option<ResponseMeta>, ResponseError> {
    head.clear();
    let mut lines = Lines::new(buf);
    let Some(line) = lines.next_line()? else {
        return incomplete(buf, limits.request_line_bytes_max, limits);
    };
    if line.len > limits.request_line_bytes_max {
        return Err(ResponseError::HeadTooLarge);
    }
    (head.version, head.status) = read_status_line(buf.get(..line.len).unwrap_or(buf))?;
    let (version, block_at) = (head.version, lines.bytes_read());
    let mut hop = HopFields::default();
    let take = |id, value| hop.take(id, value);
    if read_field_lines(&mut lines, limits, &mut head.fields, FieldSet::WRITTEN_BY_CODEC, take)?.is_none() {
        return incomplete(buf, usize::MAX, limits);
    }
    if hop.options_count > CONNECTION_OPTIONS_MAX {
        return Err(ResponseError::TooManyConnectionOptions);
    }
    hop.remove_nominated(buf.get(block_at..lines.bytes_read()).unwrap_or(&[]), &mut head.fields);
    if head.status == 101 {
        let protocol = hop.upgrade_protocol(version).ok_or(ResponseError::BadUpgrade)?;
        head.set_protocol(protocol).or(Err(ResponseError::HeadTooLarge))?;
    }
    let framing = frame(&hop, head.status, version, request_method)?;
    Ok(Some(ResponseMeta { head_bytes: lines.bytes_read(), ..framing }))
}

/// A head without its end: refused as soon as it cannot become a good one any more.
#[cold]
fn incomplete(
    buf: &[u8],
    line_bytes_max: usize,
    limits: &HeadLimits,
) -> Result<Option<ResponseMeta>, ResponseError> {
    if buf.len() > line_bytes_max.saturating_add(1) || buf.len() >= limits.head_bytes_max {
        return Err(ResponseError::HeadTooLarge);
    }
    Ok(None)
}

/// RFC 9112 §4: version SP 3DIGIT, then SP and a reason that nobody reads. The SP before an empty reason is
/// often left out.
fn read_status_line(line: &[u8]) -> Result<(Version, u16), ResponseError> {
    let (version, rest) = line.split_first_chunk::<8>().ok_or(ResponseError::BadStatusLine)?;
    let version = match version {
        b"HTTP/1.1" => Version::Http11,
        b"HTTP/1.0" => Version::Http10,
        odd if read_odd_version(odd) == OddVersion::LaterMinor => Version::Http11,
        _ => return Err(ResponseError::BadStatusLine),
    };
    match rest {
        [b' ', a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9']
        | [b' ', a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', b' ', ..] => {
            let digit = |byte: &u8| u16::from(byte - b'0');
            Ok((version, digit(a) * 100 + digit(b) * 10 + digit(c)))
        }
        _ => Err(ResponseError::BadStatusLine),
    }
}

/// RFC 9112 §6.3 for responses.
fn frame(
    hop: &HopFields<'_>,
    status: u16,
    version: Version,
    request_method: Method,
) -> Result<ResponseMeta, ResponseError> {
    let length = match hop.content_length {
        ContentLength::Absent => None,
        // RFC 9110 §8.6: identical values may be read as one.
        ContentLength::Once(bytes) | ContentLength::Repeated(bytes) => Some(bytes),
        ContentLength::Bad => return Err(ResponseError::BadContentLength),
    };
    // RFC 9112 §6.1: faulty framing in 1.0, even where a Content-Length would help.
    if hop.coding != TransferCoding::Absent && version == Version::Http10 {
        return Err(ResponseError::TransferEncodingInHttp10);
    }
    let persistence = hop.persistence(version);
    let meta = |body, persistence| ResponseMeta { head_bytes: 0, body, declared_length: None, persistence };
    // Item 1: these have no body whatever their fields say. A wrong length on them is dropped, on 1xx and 204
    // because it is not allowed there at all (RFC 9110 §8.6, RFC 9112 §6.1).
    if status < 200 || status == 204 {
        return Ok(meta(BodyLength::Empty, persistence));
    }
    if status == 304 || request_method == Method::Head {
        let declared_length = length.filter(|_| hop.coding == TransferCoding::Absent);
        return Ok(ResponseMeta { declared_length, ..meta(BodyLength::Empty, persistence) });
    }
    match (hop.coding, length) {
        // Item 3: Transfer-Encoding overrides, and the peer is not to be trusted with a second message.
        (TransferCoding::Chunked, Some(_)) => Ok(meta(BodyLength::Streamed, Persistence::Close)),
        (TransferCoding::Chunked, None) => Ok(meta(BodyLength::Streamed, persistence)),
        (TransferCoding::Absent, Some(bytes)) => Ok(meta(BodyLength::Exact(bytes), persistence)),
        // Item 8.
        (TransferCoding::Absent, None) => Ok(meta(BodyLength::UntilClose, Persistence::Close)),
        // Item 4 would read until close, but a coding that we cannot undo cannot be passed on either.
        _ => Err(ResponseError::BadTransferEncoding),
    }
}

impl From<LineFault> for ResponseError {
    fn from(fault: LineFault) -> Self {
        match fault {
            LineFault::BareLf => Self::BareLf,
            LineFault::BareCr => Self::BareCr,
            LineFault::ObsFold => Self::ObsFold,
            LineFault::BadFieldName => Self::BadFieldName,
            LineFault::BadFieldValue => Self::BadFieldValue,
            LineFault::TooManyFields => Self::TooManyFields,
            LineFault::TooLarge => Self::HeadTooLarge,
            LineFault::ControlByte => Self::BadStatusLine,
        }
    }
}

#[cfg(test)]
mod tests;
