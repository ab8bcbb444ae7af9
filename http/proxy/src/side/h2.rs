//! One HTTP/2 stream as a side, downstream or upstream. The connection's own task reads and writes; here pieces are
//! taken from the stream's inbox and frames put into the connection's output.
//!
//! Credit: received bytes are acknowledged when the relay takes them, which it does only when the other side has
//! room, so one slow stream holds its own window and nothing of the connection's (C18).

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use http_wire::fields::Fields;
use http_wire::h2::{ErrorCode, HeadError, ResponseMeta, SendError, StreamFault, StreamKey};
use http_wire::head::{BodyLength, ResponseHead};

use super::{BodyEvent, SideError};
use crate::chunk::Chunk;
use crate::link::{Link, Piece};
use crate::reason::Reason;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    /// Downstream before the response head.
    Head,
    Body,
    /// END_STREAM has been sent, or the stream was reset.
    Ended,
}

#[derive(Debug)]
pub(crate) struct H2Side {
    link: Rc<Link>,
    key: StreamKey,
    /// The incoming message has ended.
    receive_ended: bool,
    sending: Sending,
    /// A chunk that waits for the peer's window, and whether it ends the stream.
    waiting: Option<(Chunk, StreamEnd)>,
    /// Body bytes still to send by the announced length.
    left_bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamEnd {
    Here,
    Later,
}

impl H2Side {
    /// A request that a client began. `receive_ended`: it has no body.
    pub(crate) fn downstream(link: Rc<Link>, key: StreamKey, receive_ended: bool) -> Box<Self> {
        Box::new(Self { link, key, receive_ended, sending: Sending::Head, waiting: None, left_bytes: None })
    }

    /// A request that was just sent to a backend.
    pub(crate) fn upstream(link: Rc<Link>, key: StreamKey, body: BodyLength) -> Box<Self> {
        Box::new(Self {
            link,
            key,
            receive_ended: false,
            sending: if body == BodyLength::Empty { Sending::Ended } else { Sending::Body },
            waiting: None,
            left_bytes: body.exact(),
        })
    }

    /// Waits for the next response head of a backend, interim ones included.
    pub(crate) fn poll_response_head(
        &mut self,
        cx: &mut Context<'_>,
        head: &mut ResponseHead,
    ) -> Poll<Result<ResponseMeta, SideError>> {
        self.link.poll_head(self.key, cx, head).map_err(SideError::from)
    }

    /// Sends a response head to the client. `body` says what follows, `length` what is announced.
    pub(crate) fn send_response_head(
        &mut self,
        head: &ResponseHead,
        body: BodyLength,
        length: Option<u64>,
    ) -> Result<(), SideError> {
        if self.sending != Sending::Head {
            return Err(SideError::NotWritable);
        }
        let is_end = body == BodyLength::Empty;
        let sent = self.link.with_codec(|codec| codec.send_response(self.key, head, length, is_end));
        sent.map_err(|error| self.why_closed(error))?;
        if !head.is_interim() {
            self.left_bytes = body.exact();
            self.sending = if is_end { Sending::Ended } else { Sending::Body };
        }
        Ok(())
    }

    pub(crate) fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<BodyEvent, SideError>> {
        if self.receive_ended {
            return Poll::Ready(Ok(BodyEvent::End(None)));
        }
        let event = match ready!(self.link.poll_piece(self.key, cx))? {
            Piece::Data(chunk) => return Poll::Ready(Ok(BodyEvent::Data(chunk))),
            Piece::Last(chunk) => BodyEvent::Last(chunk),
            Piece::End(trailers) => BodyEvent::End(trailers.filter(|fields| !fields.is_empty())),
        };
        self.receive_ended = true;
        Poll::Ready(Ok(event))
    }

    pub(crate) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SideError>> {
        while let Some((mut chunk, end)) = self.waiting.take() {
            let room = match self.link.poll_room(self.key, cx) {
                Poll::Ready(room) => room.map_err(|error| self.why_closed(error))?,
                Poll::Pending => {
                    self.waiting = Some((chunk, end));
                    return Poll::Pending;
                }
            };
            if room >= chunk.len() {
                self.send_now(chunk.as_slice(), end)?;
            } else {
                self.send_now(chunk.as_slice().get(..room).unwrap_or(&[]), StreamEnd::Later)?;
                chunk.consume(room);
                self.waiting = Some((chunk, end));
            }
        }
        Poll::Ready(Ok(()))
    }

    fn send_now(&mut self, bytes: &[u8], end: StreamEnd) -> Result<(), SideError> {
        let is_end = end == StreamEnd::Here;
        let sent = self.link.with_codec(|codec| codec.send_data(self.key, bytes, is_end));
        sent.map_err(|error| self.why_closed(error))?;
        if is_end {
            self.sending = Sending::Ended;
        }
        Ok(())
    }

    /// A stream on which nothing can be sent any more; what ended it says why.
    fn why_closed(&self, error: SendError) -> SideError {
        match (error, self.link.fault(self.key)) {
            (SendError::GoingAway, _) => SideError::GoneAway,
            (SendError::Closed, Some(fault)) => fault.into(),
            (SendError::Closed, None) => SideError::Closed,
        }
    }

    pub(crate) fn send_body(&mut self, event: BodyEvent) -> Result<(), SideError> {
        debug_assert!(self.waiting.is_none(), "poll_room said ready");
        match event {
            BodyEvent::Data(chunk) => self.send_data(chunk, StreamEnd::Later),
            BodyEvent::Last(chunk) => self.send_data(chunk, StreamEnd::Here),
            BodyEvent::End(trailers) => self.send_end(trailers),
        }
    }

    fn send_data(&mut self, chunk: Chunk, end: StreamEnd) -> Result<(), SideError> {
        if let Some(left) = &mut self.left_bytes {
            let len = u64::try_from(chunk.len()).map_err(|_wide| SideError::LengthMismatch)?;
            *left = left.checked_sub(len).ok_or(SideError::LengthMismatch)?;
            if end == StreamEnd::Here && *left > 0 {
                return Err(SideError::LengthMismatch);
            }
        }
        // An answer to HEAD or a 304 has ended with its head: the body is not part of it.
        if self.sending != Sending::Body {
            return Ok(());
        }
        let room = self.link.with_codec(|codec| codec.room(self.key));
        if room.map_err(|error| self.why_closed(error))? >= chunk.len() {
            return self.send_now(chunk.as_slice(), end);
        }
        self.waiting = Some((chunk, end));
        Ok(())
    }

    fn send_end(&mut self, trailers: Option<Fields>) -> Result<(), SideError> {
        if self.left_bytes.is_some_and(|left| left > 0) {
            return Err(SideError::LengthMismatch);
        }
        if self.sending != Sending::Body {
            return Ok(());
        }
        self.sending = Sending::Ended;
        let sent = self.link.with_codec(|codec| match &trailers {
            Some(fields) if !fields.is_empty() => codec.send_trailers(self.key, fields),
            _ => codec.send_data(self.key, &[], true),
        });
        sent.map_err(|error| self.why_closed(error))
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SideError>> {
        self.poll_room(cx)
    }

    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.sending == Sending::Ended {
            return Poll::Pending;
        }
        self.link.poll_fault(self.key, cx).map(drop)
    }

    /// Whether the incoming message has been received to its end.
    pub(crate) fn has_received_all(&self) -> bool {
        self.receive_ended
    }

    /// Resets the stream.
    pub(crate) fn reset(&mut self, code: ErrorCode) {
        self.link.reset(self.key, code);
        self.sending = Sending::Ended;
    }

    /// An extended CONNECT was accepted: DATA frames pass both ways until both ended (RFC 8441 §5).
    pub(crate) fn become_tunnel(&mut self) {
        self.left_bytes = None;
    }
}

impl Drop for H2Side {
    fn drop(&mut self) {
        self.link.release(self.key);
    }
}

impl From<StreamFault> for SideError {
    fn from(fault: StreamFault) -> Self {
        match fault {
            StreamFault::Reset(ErrorCode::REFUSED_STREAM) => Self::Refused,
            StreamFault::Reset(_) => Self::Cancelled,
            StreamFault::GoneAway => Self::GoneAway,
            StreamFault::Broken => Self::H2Protocol,
            StreamFault::Head(error) => Self::Refuse(upstream_reason(error)),
            StreamFault::Lost => Self::Closed,
        }
    }
}

/// What is wrong with a backend's head. Those of a request do not come up in a response.
fn upstream_reason(error: HeadError) -> Reason {
    match error {
        HeadError::TooLarge => Reason::UpstreamHeadTooLarge,
        HeadError::TooManyFields => Reason::UpstreamTooManyFields,
        HeadError::BadFieldName => Reason::UpstreamBadFieldName,
        HeadError::BadFieldValue => Reason::UpstreamBadFieldValue,
        HeadError::BadContentLength => Reason::UpstreamBadContentLength,
        HeadError::Malformed
        | HeadError::TargetTooLong
        | HeadError::BadMethod
        | HeadError::BadTarget
        | HeadError::BadHost
        | HeadError::HostMissing
        | HeadError::HostConflict
        | HeadError::ContentTypeRepeated
        | HeadError::ConnectUnsupported => Reason::UpstreamH2ProtocolError,
    }
}
