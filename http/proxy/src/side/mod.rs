//! One side of an exchange, whatever protocol version it speaks: the relay's only view of a message.
//!
//! ```text
//!             receives                      sends
//!  downstream request body ──► relay ──► request head + body   upstream
//!  downstream response head + body ◄── relay ◄── response body upstream
//! ```
//! A side hands out body events and takes them. Heads are written by the exchange through the role's own
//! functions. `H1Side` is a whole connection, `H2Side` one stream of one.

mod h1;
#[cfg(test)]
mod h1_tests;
mod h2;
mod output;

use std::io;
use std::task::{Context, Poll};

use http_wire::fields::Fields;
use http_wire::h1::{BodyError, Persistence, RequestError, ResponseError, ResponseFraming, SentResponse};
use http_wire::head::{BodyLength, Method, ResponseHead};

use crate::chunk::Chunk;

pub(crate) use self::h1::H1Side;
pub(crate) use self::h2::H2Side;

/// A piece of a message body.
#[derive(Debug)]
pub(crate) enum BodyEvent {
    /// Never empty; more may follow.
    Data(Chunk),
    /// Never empty; the message ends behind it, without trailers. No `End` follows.
    Last(Chunk),
    /// The end, with trailer fields if there were any. Comes once.
    End(Option<Fields>),
}

/// Why a side cannot go on. Whether it is the client's or the backend's fault depends on which side it is.
#[derive(Debug)]
pub(crate) enum SideError {
    /// The message broke off: an end before the announced length or the last chunk (C25).
    Truncated,
    /// The peer closed where a message was due.
    Closed,
    /// The peer cancelled its stream (h2).
    Cancelled,
    /// The peer refused the stream without looking at it: safe to send again (RFC 9113 §8.7).
    Refused,
    /// The peer is going away and did not process the stream (RFC 9113 §6.8).
    GoneAway,
    /// Framing that is not allowed.
    Body(BodyError),
    RequestHead(RequestError),
    ResponseHead(ResponseError),
    /// A head whose meaning is refused, with the reason.
    Refuse(crate::reason::Reason),
    /// More or fewer body bytes than the head announced, found while writing.
    LengthMismatch,
    /// A head or trailer that this side's protocol cannot carry.
    NotWritable,
    /// The core's buffers are used up.
    OutOfBuffers,
    /// The peer broke the rules of HTTP/2.
    H2Protocol,
    Io(io::Error),
}

impl From<io::Error> for SideError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Truncated,
            io::ErrorKind::OutOfMemory => Self::OutOfBuffers,
            _ => Self::Io(error),
        }
    }
}

/// What a response head says about its message, whatever the version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseInfo {
    pub(crate) body: BodyLength,
    /// The length that a bodiless response (HEAD, 304) announces.
    pub(crate) declared_length: Option<u64>,
    pub(crate) persistence: Persistence,
}

#[derive(Debug)]
pub(crate) enum Side {
    /// Boxed, both: sides move between task, place and pool with every request, and are large.
    H1(Box<H1Side>),
    H2(Box<H2Side>),
}

impl Side {
    /// The next response head of a backend, interim ones included.
    pub(crate) fn poll_response_head(
        &mut self,
        cx: &mut Context<'_>,
        request_method: Method,
        head: &mut ResponseHead,
    ) -> Poll<Result<ResponseInfo, SideError>> {
        match self {
            Self::H1(side) => side.poll_response_head(cx, request_method, head).map_ok(|meta| ResponseInfo {
                body: meta.body,
                declared_length: meta.declared_length,
                persistence: meta.persistence,
            }),
            Self::H2(side) => side.poll_response_head(cx, head).map_ok(|meta| ResponseInfo {
                body: meta.body,
                declared_length: meta.declared_length,
                persistence: Persistence::KeepAlive,
            }),
        }
    }

    /// Begins a response to a client, interim ones included. What comes back says how the body has to follow.
    pub(crate) fn send_response_head(
        &mut self,
        head: &ResponseHead,
        framing: ResponseFraming,
    ) -> Result<SentResponse, SideError> {
        match self {
            Self::H1(side) => side.send_response_head(head, framing),
            Self::H2(side) => {
                let (body, length) = plan_h2_response(head, framing);
                side.send_response_head(head, body, length)?;
                Ok(SentResponse { body, persistence: framing.persistence })
            }
        }
    }

    /// From here on bytes pass as they are, both ways.
    pub(crate) fn become_tunnel(&mut self) {
        match self {
            Self::H1(side) => side.become_tunnel(),
            Self::H2(side) => side.become_tunnel(),
        }
    }

    /// Whether the peer can have seen any of the request that this side sends.
    pub(crate) fn has_written(&self) -> bool {
        match self {
            Self::H1(side) => side.has_written(),
            Self::H2(_) => true,
        }
    }

    /// Whether the message that this side receives has come to its end.
    pub(crate) fn has_received_all(&self) -> bool {
        match self {
            Self::H1(side) => side.has_received_all(),
            Self::H2(side) => side.has_received_all(),
        }
    }

    /// The next piece of the message that this side receives.
    pub(crate) fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<BodyEvent, SideError>> {
        match self {
            Self::H1(side) => side.poll_body(cx),
            Self::H2(side) => side.poll_body(cx),
        }
    }

    /// The next piece for `sink`, which may take it in a pipe.
    pub(crate) fn poll_body_for(
        &mut self,
        sink: &Self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<BodyEvent, SideError>> {
        match (self, sink) {
            (Self::H1(source), Self::H1(sink)) if sink.takes_pipes() => source.poll_body_or_pipe(cx),
            (source, _) => source.poll_body(cx),
        }
    }

    /// Ready when [`Side::send_body`] may be called once more.
    pub(crate) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SideError>> {
        match self {
            Self::H1(side) => side.poll_room(cx),
            Self::H2(side) => side.poll_room(cx),
        }
    }

    /// Takes a piece of the message that this side sends.
    pub(crate) fn send_body(&mut self, event: BodyEvent) -> Result<(), SideError> {
        match self {
            Self::H1(side) => side.send_body(event),
            Self::H2(side) => side.send_body(event),
        }
    }

    /// Ready when everything taken has left for the peer.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SideError>> {
        match self {
            Self::H1(side) => side.poll_flush(cx),
            Self::H2(side) => side.poll_flush(cx),
        }
    }

    /// Ready when the peer has given up on this exchange: reset, cancelled, or (h1) failed. A half-closed client
    /// has not given up.
    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::H1(side) => side.poll_gone(cx),
            Self::H2(side) => side.poll_gone(cx),
        }
    }
}

/// What follows a response head over HTTP/2, and the length that it announces (RFC 9110 §6.4.1, §8.6). A body of no bytes
/// does not end the stream: trailers may come.
fn plan_h2_response(head: &ResponseHead, framing: ResponseFraming) -> (BodyLength, Option<u64>) {
    if head.is_interim() {
        return (framing.body, None);
    }
    if head.status == 204 {
        return (BodyLength::Empty, None);
    }
    if head.status == 304 || framing.request_method == Method::Head {
        // Of a body that is made for GET and is not sent, but for a 304, whose own body is none.
        let made = framing.body.exact().filter(|_| head.status != 304);
        return (BodyLength::Empty, framing.declared_length.or(made));
    }
    (framing.body, framing.body.exact().or(framing.declared_length))
}
