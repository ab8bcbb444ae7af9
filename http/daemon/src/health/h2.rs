//! One request over HTTP/2, and gRPC's health protocol on it (grpc.health.v1, from the gRPC project's documents).

use std::io;
use std::time::Duration;

use http_wire::fields::{FieldError, FieldId, Fields};
use http_wire::h2::{
    Config, Connection, ErrorCode, Events, HeadError, HeadLimits, RequestMeta, ResponseMeta, Role,
    StreamFault, StreamKey,
};
use http_wire::head::{BodyLength, RequestHead, ResponseHead, Scheme};

use super::stream::Stream;

/// Of an answer; that of a health check is some bytes.
const BODY_BYTES_MAX: usize = 4096;
const WINDOW_BYTES: u32 = 65_535;
const PATH: &[u8] = b"/grpc.health.v1.Health/Check";

/// What came back.
#[derive(Debug, Default)]
pub(super) struct Reply {
    /// None: the connection ended, or the endpoint is going away, without an answer.
    pub(super) status: Option<u16>,
    pub(super) grpc_status: Option<u32>,
    pub(super) body: Vec<u8>,
    /// The endpoint broke the protocol on the stream.
    pub(super) is_broken: bool,
    is_over: bool,
}

impl Events for Reply {
    type Stream = ();

    fn request(
        &mut self,
        _key: StreamKey,
        _head: &mut RequestHead,
        _meta: Result<RequestMeta, HeadError>,
        _is_end: bool,
    ) {
    }

    fn response(&mut self, _stream: &mut (), head: &mut ResponseHead, _meta: ResponseMeta) {
        if !head.is_interim() {
            self.status = Some(head.status);
            self.note(&head.fields);
        }
    }

    fn data(&mut self, _stream: &mut (), bytes: &[u8]) {
        let room = BODY_BYTES_MAX.saturating_sub(self.body.len());
        self.body.extend_from_slice(bytes.get(..room.min(bytes.len())).unwrap_or_default());
        self.is_over |= bytes.len() > room;
    }

    fn end(&mut self, _stream: &mut (), trailers: Option<Fields>) {
        trailers.iter().for_each(|fields| self.note(fields));
        self.is_over = true;
    }

    fn failed(&mut self, _stream: &mut (), fault: StreamFault) {
        self.is_broken = matches!(fault, StreamFault::Broken | StreamFault::Head(_));
        self.is_over = true;
    }

    fn room(&mut self, _stream: &mut ()) {}
}

impl Reply {
    fn note(&mut self, fields: &Fields) {
        let text = fields.get(FieldId::GrpcStatus).and_then(|value| std::str::from_utf8(value).ok());
        self.grpc_status = text.and_then(|text| text.parse().ok()).or(self.grpc_status);
    }
}

/// Sends a request and waits for the whole answer, or for its head when `wants_body` is false.
///
/// # Errors
/// What the stream says; `Other` when the endpoint breaks the protocol.
pub(super) fn ask(
    stream: &mut Stream,
    head: &RequestHead,
    body: &[u8],
    wants_body: bool,
) -> io::Result<Reply> {
    let scheme = if stream.is_tls() { Scheme::Https } else { Scheme::Http };
    let config = Config {
        streams_max: 0,
        stream_window_bytes: WINDOW_BYTES,
        connection_window_bytes: WINDOW_BYTES,
        frame_bytes_max: 16_384,
        head: HeadLimits { list_bytes_max: 64 * 1024, fields_max: 200, target_bytes_max: 0 },
        extended_connect: false,
        scheme,
        budgets: None,
    };
    let mut codec = Connection::new(Role::Client, config);
    let mut reply = Reply::default();
    let length = if body.is_empty() {
        BodyLength::Empty
    } else {
        BodyLength::Exact(body.len().try_into().unwrap_or(0))
    };
    let refused = |_refused| io::Error::other("the stream was refused");
    let key = codec.send_request(head, length, !body.is_empty(), scheme, ()).map_err(refused)?;
    if !body.is_empty() {
        codec.send_data(key, body, true).map_err(refused)?;
    }
    let mut received = Vec::new();
    loop {
        stream.send(codec.output())?;
        codec.sent(codec.output().len(), &mut reply);
        if reply.is_over || (reply.status.is_some() && !wants_body) {
            break;
        }
        received.clear();
        if !stream.receive(&mut received)? {
            return Ok(reply);
        }
        codec.receive(&received, Duration::ZERO, &mut reply).map_err(|fault| io::Error::other(fault.what))?;
    }
    // In order, so that nobody takes the close for a failure. What the endpoint does about it is its affair.
    codec.abort(ErrorCode::NO_ERROR);
    match stream.send(codec.output()) {
        Ok(()) | Err(_) => Ok(reply),
    }
}

/// The request of a gRPC check.
///
/// # Errors
/// For a name that is too long.
pub(super) fn grpc_request(authority: &[u8], service: &str) -> Result<(RequestHead, Vec<u8>), FieldError> {
    let mut head = RequestHead::default();
    head.set_method(b"POST")?;
    head.set_authority(authority)?;
    head.set_path(PATH)?;
    head.fields.push(FieldId::ContentType, b"application/grpc")?;
    // HealthCheckRequest: the service's name is field 1, a string; the empty one is left out.
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(0x0a);
        put_varint(service.len(), &mut message);
        message.extend_from_slice(service.as_bytes());
    }
    let mut body = vec![0];
    body.extend_from_slice(&u32::try_from(message.len()).or(Err(FieldError))?.to_be_bytes());
    body.extend_from_slice(&message);
    Ok((head, body))
}

/// Whether an answer's body is a HealthCheckResponse whose status (field 1, an enumeration) is SERVING, 1.
pub(super) fn is_serving(body: &[u8]) -> bool {
    const SERVING: u64 = 1;
    let Some(([0, length @ ..], mut rest)) = body.split_first_chunk::<5>() else { return false };
    if usize::try_from(u32::from_be_bytes(*length)) != Ok(rest.len()) {
        return false;
    }
    let mut status = 0;
    while !rest.is_empty() {
        let Some((tag, after)) = varint(rest) else { return false };
        let skipped = match tag & 7 {
            0 => {
                let Some((value, after)) = varint(after) else { return false };
                if tag >> 3 == 1 {
                    status = value;
                }
                Some(after)
            }
            1 => after.get(8..),
            2 => varint(after).and_then(|(len, after)| after.get(usize::try_from(len).ok()?..)),
            5 => after.get(4..),
            _ => None,
        };
        let Some(after) = skipped else { return false };
        rest = after;
    }
    status == SERVING
}

/// A number of protobuf's encoding, and what follows it.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    for (at, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f).checked_shl(u32::try_from(7 * at).ok()?)?;
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(at + 1..)?));
        }
    }
    None
}

fn put_varint(value: usize, out: &mut Vec<u8>) {
    let mut left = value;
    while left >= 0x80 {
        out.push(left.to_le_bytes()[0] | 0x80);
        left >>= 7;
    }
    out.push(left.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_word_serving_in_a_whole_message_is_one() {
        for (body, wanted) in [
            (&[0, 0, 0, 0, 2, 8, 1][..], true),
            // A status that is set twice is the last one; unknown fields of every kind are passed over.
            (&[0, 0, 0, 0, 4, 8, 2, 8, 1], true),
            (&[0, 0, 0, 0, 7, 0x12, 1, b'x', 0x1d, 0, 0, 0], false),
            (&[0, 0, 0, 0, 10, 0x12, 1, b'x', 0x1d, 0, 0, 0, 0, 8, 1], true),
            (&[0, 0, 0, 0, 2, 8, 2], false),
            (&[0, 0, 0, 0, 2, 8, 0x81], false),
            (&[0, 0, 0, 0, 0], false),
            // Compressed, cut, too long, no message.
            (&[1, 0, 0, 0, 2, 8, 1], false),
            (&[0, 0, 0, 0, 3, 8, 1], false),
            (&[0, 0, 0, 0, 1, 8, 1], false),
            (&[0, 0, 0, 0], false),
            (&[], false),
        ] {
            assert_eq!(is_serving(body), wanted, "{body:?}");
        }
    }

    #[test]
    fn a_request_names_its_service() {
        let (head, body) = grpc_request(b"a.example:1", "shop").expect("short");
        assert_eq!((head.path(), head.authority()), (PATH, &b"a.example:1"[..]));
        assert_eq!(body, b"\0\0\0\0\x06\x0a\x04shop");
        assert_eq!(grpc_request(b"a.example", "").expect("short").1, b"\0\0\0\0\0");
    }
}
