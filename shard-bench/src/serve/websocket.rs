//! WebSocket of the light target: every message comes back.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use super::Server;
use crate::link::{Got, Link, Outbox};
use crate::websocket::frame::{self, Heard, Reader, opcode};

/// A message that is echoed.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// The value of Sec-WebSocket-Accept for a key (RFC 6455 §4.2.2).
pub(super) fn accept_of(key: &[u8]) -> String {
    let mut sha1 = sha1_smol::Sha1::new();
    sha1.update(key);
    sha1.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    base64(&sha1.digest().bytes())
}

/// RFC 4648 §4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let at = usize::try_from(bits >> (18 - 6 * digit) & 63).unwrap_or(0);
            text.push(if digit <= chunk.len() { char::from(DIGITS[at]) } else { '=' });
        }
    }
    text
}

/// Echoes until the peer closes; `early` bytes came behind the upgrade.
pub(super) async fn run(server: Rc<Server>, mut link: Link, mut out: Outbox, early: Vec<u8>) {
    let mut echo = Echo { reader: Reader::default(), message: Vec::new(), is_over: false };
    if echo.feed(&early, &mut out.bytes) {
        poll_fn(|cx| poll(&server, &mut link, &mut out, &mut echo, cx)).await;
    }
}

struct Echo {
    reader: Reader,
    message: Vec<u8>,
    is_over: bool,
}

impl Echo {
    /// Answers what is complete. False when the connection is of no more use.
    fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        let Self { reader, message, is_over } = self;
        let fed = reader.feed(bytes, |heard| match heard {
            Heard::Message { part, is_last } => {
                message.extend_from_slice(part);
                if is_last {
                    frame::put(opcode::BINARY, message, None, out);
                    message.clear();
                }
            }
            Heard::Ping(payload) => frame::put(opcode::PONG, payload, None, out),
            Heard::Close => {
                frame::put(opcode::CLOSE, &[], None, out);
                *is_over = true;
            }
        });
        fed.is_ok() && message.len() <= MESSAGE_BYTES_MAX
    }
}

fn poll(server: &Server, link: &mut Link, out: &mut Outbox, echo: &mut Echo, cx: &Context<'_>) -> Poll<()> {
    loop {
        match link.poll_write(cx, out) {
            Poll::Ready(Err(_gone)) => return Poll::Ready(()),
            Poll::Ready(Ok(())) if echo.is_over => {
                link.end();
                return Poll::Ready(());
            }
            Poll::Ready(Ok(())) | Poll::Pending => {}
        }
        let mut buffer = server.buffer.borrow_mut();
        match ready!(link.poll_read(cx, &mut buffer, |bytes| echo.feed(bytes, &mut out.bytes))) {
            Ok(Got::Bytes(true)) => {}
            Ok(Got::Bytes(false) | Got::End) | Err(_) => return Poll::Ready(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_rfc() {
        // RFC 6455 §1.3.
        assert_eq!(accept_of(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(base64(b"a"), "YQ==");
        assert_eq!(base64(b"ab"), "YWI=");
    }
}
