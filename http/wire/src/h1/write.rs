//! From heads and lengths to bytes (RFC 9112 §3, §4, §6, §7): the only place that writes HTTP/1 framing.
//!
//! `Content-Length`, `Transfer-Encoding`, `Connection`, `Upgrade`, `TE` and `Host` are written from what the
//! codec knows; fields with these names are left out even when a policy put them into the list, so a message
//! never has two lengths. Everything goes into the caller's buffer in a few copies; on an error the buffer is
//! as it was.

use super::{Persistence, WriteError};
use crate::fields::{FieldSet, Fields};
use crate::head::{BodyLength, Method, RequestHead, ResponseHead, Version};
use crate::number::push_number;
use crate::token::{BLOCK_BYTES, Block, first_bits, is_token};

/// What follows the data of a chunk.
pub const CHUNK_END: &[u8] = b"\r\n";

/// How a request is to be framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestFraming {
    pub body: BodyLength,
    /// `Close` asks the upstream to close after this exchange.
    pub persistence: Persistence,
    /// Whether to announce `TE: trailers`.
    pub te_trailers: bool,
}

/// Appends the head of `head` for an HTTP/1.1 upstream, with `head.protocol()` as an upgrade.
///
/// # Errors
/// See [`WriteError`]; `out` is unchanged then.
pub fn write_request_head(
    out: &mut Vec<u8>,
    head: &RequestHead,
    framing: RequestFraming,
) -> Result<(), WriteError> {
    let length = match framing.body {
        // RFC 9110 §8.6: a method that is about content says when there is none.
        BodyLength::Empty if matches!(head.method, Method::Post | Method::Put | Method::Patch) => {
            Length::Bytes(0)
        }
        BodyLength::Empty => Length::Absent,
        BodyLength::Exact(bytes) => Length::Bytes(bytes),
        BodyLength::Streamed => Length::Chunked,
        BodyLength::UntilClose => return Err(WriteError::BodyUntilClose),
    };
    let start = out.len();
    if let Err(error) = write_request_line(out, head) {
        out.truncate(start);
        return Err(error);
    }
    head.fields.write_lines(FieldSet::WRITTEN_BY_CODEC, out);
    write_length(out, length);
    if framing.te_trailers {
        out.extend_from_slice(b"te: trailers\r\n");
    }
    let te = framing.te_trailers.then_some(&b"te"[..]);
    let close = (framing.persistence == Persistence::Close).then_some(&b"close"[..]);
    write_connection(out, [close, te], head.protocol());
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// Appends the request line and the Host line and checks what it has appended: whatever made these bytes (h2,
/// a rewrite, a template), they cannot end a line or a word (RFC 9113 §10.3).
fn write_request_line(out: &mut Vec<u8>, head: &RequestHead) -> Result<(), WriteError> {
    let (path, query, authority) = (head.path(), head.query(), head.authority());
    let method = head.method_token();
    if head.method == Method::Connect || (head.method == Method::Extension && !is_token(method)) {
        return Err(WriteError::BadMethod);
    }
    if path.first() != Some(&b'/') && (path != b"*" || query.is_some()) {
        return Err(WriteError::BadTarget);
    }
    let target_bytes = path.len() + query.map_or(0, <[u8]>::len) + authority.len();
    out.reserve(head.fields.wire_bytes_max() + target_bytes + 256);
    out.extend_from_slice(method);
    out.push(b' ');
    let target_at = out.len();
    out.extend_from_slice(path);
    if let Some(query) = query {
        out.push(b'?');
        out.extend_from_slice(query);
    }
    let target_end = out.len();
    out.extend_from_slice(b" HTTP/1.1\r\nhost: ");
    let authority_at = out.len();
    out.extend_from_slice(authority);
    let authority_end = out.len();
    out.extend_from_slice(b"\r\n");
    if !is_visible(out, target_at, target_end) {
        return Err(WriteError::BadTarget);
    }
    if !is_visible(out, authority_at, authority_end) {
        return Err(WriteError::BadAuthority);
    }
    Ok(())
}

/// Whether all of `out[at..end]` may stand in a request target.
fn is_visible(out: &[u8], mut at: usize, end: usize) -> bool {
    let mut bad = 0;
    while at < end {
        bad |= Block::at(out, at).not_in_target() & first_bits(end - at);
        at += BLOCK_BYTES;
    }
    bad == 0
}

/// How a response is to be framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseFraming {
    /// How the body is delimited where it comes from.
    pub body: BodyLength,
    /// The length to announce on an answer without its body: HEAD and 304 (RFC 9110 §8.6).
    pub declared_length: Option<u64>,
    /// Whether this connection to the client goes on after the exchange.
    pub persistence: Persistence,
    /// What the client speaks.
    pub client_version: Version,
    /// The method of the request that is answered.
    pub request_method: Method,
}

/// What has been put on the wire, for whoever writes the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentResponse {
    /// How the body must be written: nothing, exactly that many bytes, in chunks, or as it is until close.
    pub body: BodyLength,
    /// `Close` when the connection must be closed after this message.
    pub persistence: Persistence,
}

/// Appends the head of `head`, in the form that the client's version allows. A 101 takes its protocol from
/// `head.protocol()`. Interim responses must not be written to HTTP/1.0 clients at all (RFC 9110 §15.2).
///
/// # Errors
/// See [`WriteError`]; `out` is unchanged then.
pub fn write_response_head(
    out: &mut Vec<u8>,
    head: &ResponseHead,
    framing: ResponseFraming,
) -> Result<SentResponse, WriteError> {
    if !(100..=999).contains(&head.status) {
        return Err(WriteError::BadStatus);
    }
    let protocol =
        if head.status == 101 { Some(head.protocol().ok_or(WriteError::BadUpgrade)?) } else { None };
    let (length, sent) = plan_response(head, framing);
    out.reserve(head.fields.wire_bytes_max() + 256);
    write_status_line(out, head.status);
    head.fields.write_lines(FieldSet::WRITTEN_BY_CODEC, out);
    write_length(out, length);
    let option = match (head.is_interim(), sent.persistence, framing.client_version) {
        (true, ..) => None,
        (_, Persistence::Close, _) => Some(&b"close"[..]),
        // RFC 9112 §9.3: HTTP/1.0 assumes close.
        (_, Persistence::KeepAlive, Version::Http10) => Some(&b"keep-alive"[..]),
        (_, Persistence::KeepAlive, _) => None,
    };
    write_connection(out, [option, None], protocol);
    out.extend_from_slice(b"\r\n");
    Ok(sent)
}

fn write_status_line(out: &mut Vec<u8>, status: u16) {
    // What nearly every answer begins with.
    if status == 200 {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        return;
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    push_number(out, u64::from(status));
    out.push(b' ');
    out.extend_from_slice(reason_phrase(status));
    out.extend_from_slice(b"\r\n");
}

/// RFC 9112 §6.3 from the sender's side.
fn plan_response(head: &ResponseHead, framing: ResponseFraming) -> (Length, SentResponse) {
    let sent = |body| SentResponse { body, persistence: framing.persistence };
    // RFC 9110 §8.6, RFC 9112 §6.1: no length of any kind on 1xx and 204.
    if head.is_interim() || head.status == 204 {
        return (Length::Absent, sent(BodyLength::Empty));
    }
    if head.status == 304 || framing.request_method == Method::Head {
        let length = match (framing.declared_length, framing.body) {
            (Some(bytes), _) => Length::Bytes(bytes),
            // A response made for GET and sent for HEAD.
            (None, BodyLength::Exact(bytes)) if head.status != 304 => Length::Bytes(bytes),
            (None, _) => Length::Absent,
        };
        return (length, sent(BodyLength::Empty));
    }
    match framing.body {
        BodyLength::Empty => (Length::Bytes(0), sent(BodyLength::Empty)),
        BodyLength::Exact(bytes) => (Length::Bytes(bytes), sent(framing.body)),
        // RFC 9112 §6.1: no Transfer-Encoding to HTTP/1.0. The end is the close.
        BodyLength::Streamed | BodyLength::UntilClose if framing.client_version == Version::Http10 => {
            (Length::Absent, SentResponse { body: BodyLength::UntilClose, persistence: Persistence::Close })
        }
        // Chunks even where the upstream delimits by close: the client's connection survives, and a truncated
        // body cannot look complete.
        BodyLength::Streamed | BodyLength::UntilClose => (Length::Chunked, sent(BodyLength::Streamed)),
    }
}

/// The length field to write.
#[derive(Clone, Copy)]
enum Length {
    Absent,
    Bytes(u64),
    Chunked,
}

fn write_length(out: &mut Vec<u8>, length: Length) {
    match length {
        Length::Absent => {}
        Length::Bytes(bytes) => {
            out.extend_from_slice(b"content-length: ");
            push_number(out, bytes);
            out.extend_from_slice(b"\r\n");
        }
        Length::Chunked => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
    }
}

/// One `Connection` line for everything that needs one, and the `Upgrade` that belongs to it.
fn write_connection(out: &mut Vec<u8>, options: [Option<&[u8]>; 2], protocol: Option<&[u8]>) {
    if let ([None, None], None) = (options, protocol) {
        return;
    }
    let upgrade = protocol.map(|_| &b"upgrade"[..]);
    let mut separator: &[u8] = b"connection: ";
    for option in options.into_iter().chain([upgrade]).flatten() {
        out.extend_from_slice(separator);
        out.extend_from_slice(option);
        separator = b", ";
    }
    if separator == b", " {
        out.extend_from_slice(b"\r\n");
    }
    if let Some(protocol) = protocol {
        out.extend_from_slice(b"upgrade: ");
        out.extend_from_slice(protocol);
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends the size line of a chunk of `len` bytes. Behind the data comes [`CHUNK_END`]. A chunk of 0 bytes
/// would end the body: for 0 nothing is written, and neither must the data and its end be.
pub fn write_chunk_header(out: &mut Vec<u8>, len: usize) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    debug_assert!(len > 0, "a chunk without data ends the body");
    if len == 0 {
        return;
    }
    let mut line = [0; 18];
    line[16..].copy_from_slice(b"\r\n");
    let mut at = 16;
    let mut rest = len;
    while rest > 0 {
        at -= 1;
        line[at] = DIGITS[rest % 16];
        rest /= 16;
    }
    out.extend_from_slice(&line[at..]);
}

/// Appends the last chunk and the trailer section. Fields that must not be trailers are left out.
pub fn write_last_chunk(out: &mut Vec<u8>, trailers: Option<&Fields>) {
    out.extend_from_slice(b"0\r\n");
    if let Some(trailers) = trailers {
        trailers.write_lines(FieldSet::NOT_IN_TRAILERS, out);
    }
    out.extend_from_slice(b"\r\n");
}

/// The phrase of RFC 9110 §15 (and RFC 6585) for people who read wires; nothing else reads it.
const fn reason_phrase(status: u16) -> &'static [u8] {
    match status {
        100 => b"Continue",
        101 => b"Switching Protocols",
        103 => b"Early Hints",
        200 => b"OK",
        201 => b"Created",
        202 => b"Accepted",
        204 => b"No Content",
        206 => b"Partial Content",
        301 => b"Moved Permanently",
        302 => b"Found",
        303 => b"See Other",
        304 => b"Not Modified",
        307 => b"Temporary Redirect",
        308 => b"Permanent Redirect",
        400 => b"Bad Request",
        401 => b"Unauthorized",
        403 => b"Forbidden",
        404 => b"Not Found",
        405 => b"Method Not Allowed",
        408 => b"Request Timeout",
        409 => b"Conflict",
        410 => b"Gone",
        411 => b"Length Required",
        412 => b"Precondition Failed",
        413 => b"Content Too Large",
        414 => b"URI Too Long",
        415 => b"Unsupported Media Type",
        416 => b"Range Not Satisfiable",
        417 => b"Expectation Failed",
        421 => b"Misdirected Request",
        422 => b"Unprocessable Content",
        429 => b"Too Many Requests",
        431 => b"Request Header Fields Too Large",
        500 => b"Internal Server Error",
        501 => b"Not Implemented",
        502 => b"Bad Gateway",
        503 => b"Service Unavailable",
        504 => b"Gateway Timeout",
        505 => b"HTTP Version Not Supported",
        _ => b"",
    }
}

#[cfg(test)]
mod tests;
