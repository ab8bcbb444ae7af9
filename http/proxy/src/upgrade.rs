//! Upgrades across versions: HTTP/1.1 `Upgrade` and the extended CONNECT of HTTP/2 are one thing here (RFC 8441).
//!
//! A head that asks carries `protocol()`. Towards h1 it becomes a GET with `Upgrade`, towards h2 an extended CONNECT;
//! the answer is turned back into what the client's version expects.

use http_wire::fields::{FieldId, Fields};
use http_wire::head::{RequestHead, ResponseHead, Version};

use crate::reason::Reason;

/// RFC 6455 §1.3.
const WEBSOCKET_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Completes a request that asks for a protocol before it goes to an h1 backend: an extended CONNECT becomes a GET,
/// and a WebSocket one gets the key that h2 does not have (RFC 8441 §5).
pub(crate) fn ask_over_h1(head: &mut RequestHead, high: u64, low: u64) {
    if head.protocol().is_none() || head.version != Version::Http2 {
        return;
    }
    let set = head.set_method(b"GET");
    debug_assert!(set.is_ok(), "GET is a token");
    if !head.fields.contains(FieldId::SecWebsocketKey) {
        let nonce = ((u128::from(high) << 64) | u128::from(low)).to_be_bytes();
        let pushed = head.fields.push(FieldId::SecWebsocketKey, base64(&nonce).as_bytes());
        debug_assert!(pushed.is_ok(), "base64 is a field value");
    }
}

/// Decides whether a response opens the tunnel that the request asked for, and gives it the form of the client's
/// version. False: an ordinary response.
///
/// # Errors
/// `UpstreamBadUpgrade` when the backend switches to what nobody asked for (C07).
pub(crate) fn accept(request: &RequestHead, response: &mut ResponseHead) -> Result<bool, Reason> {
    let is_agreed = match (response.version, response.status) {
        (Version::Http2, 200..=299) => request.protocol().is_some(),
        (_, 101) => {
            if request.protocol().is_none() || request.protocol() != response.protocol() {
                return Err(Reason::UpstreamBadUpgrade);
            }
            true
        }
        _ => false,
    };
    if !is_agreed {
        return Ok(false);
    }
    if request.version == Version::Http2 {
        response.status = 200;
        response.fields.remove(FieldId::SecWebsocketAccept);
    } else if response.version == Version::Http2 {
        response.status = 101;
        let protocol = request.protocol().unwrap_or(b"websocket");
        response.set_protocol(protocol).map_err(|_not_a_token| Reason::UpstreamBadUpgrade)?;
        if let Some(key) = request.fields.get(FieldId::SecWebsocketKey) {
            let accept = websocket_accept(key);
            let pushed = response.fields.set(FieldId::SecWebsocketAccept, accept.as_bytes());
            pushed.map_err(|_bad| Reason::UpstreamBadUpgrade)?;
        }
    }
    Ok(true)
}

/// RFC 6455 §4.2.2: the proof that the key was read.
fn websocket_accept(key: &[u8]) -> String {
    let mut hash = sha1_smol::Sha1::new();
    hash.update(key);
    hash.update(WEBSOCKET_GUID);
    base64(&hash.digest().bytes())
}

/// RFC 4648 §4.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word =
            group.iter().fold(0u32, |word, byte| (word << 8) | u32::from(*byte)) << (8 * (3 - group.len()));
        for place in 0..4 {
            let index = usize::try_from((word >> (18 - 6 * place)) & 63).unwrap_or(0);
            text.push(if place <= group.len() { char::from(ALPHABET[index]) } else { '=' });
        }
    }
    text
}

/// `grpc-status` of trailers, or of the head of a response that is only a head (gRPC over HTTP/2, "Trailers-Only").
pub(crate) fn grpc_status(fields: &Fields) -> Option<u8> {
    let value = fields.get(FieldId::GrpcStatus)?;
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads_every_length() {
        for (bytes, text) in [
            (&b""[..], ""),
            (b"f", "Zg=="),
            (b"fo", "Zm8="),
            (b"foo", "Zm9v"),
            (b"foob", "Zm9vYg=="),
            (b"fooba", "Zm9vYmE="),
        ] {
            assert_eq!(base64(bytes), text);
        }
    }

    #[test]
    fn the_accept_value_is_the_one_of_the_rfc() {
        // RFC 6455 §1.3 works this example.
        assert_eq!(websocket_accept(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    fn response(status: u16) -> ResponseHead {
        let mut head = ResponseHead::default();
        head.status = status;
        head
    }

    #[test]
    fn a_switch_that_nobody_asked_for_is_refused() {
        let request = RequestHead::default();
        assert_eq!(accept(&request, &mut response(101)), Err(Reason::UpstreamBadUpgrade));
        let mut asked = RequestHead::default();
        asked.set_protocol(b"websocket").expect("a token");
        let mut other = response(101);
        other.set_protocol(b"irc").expect("a token");
        assert_eq!(accept(&asked, &mut other), Err(Reason::UpstreamBadUpgrade));
        other.set_protocol(b"websocket").expect("a token");
        assert_eq!(accept(&asked, &mut other), Ok(true));
        assert_eq!(
            accept(&asked, &mut response(200)),
            Ok(false),
            "a 200 leaves the connection in HTTP (C07)"
        );
    }
}
