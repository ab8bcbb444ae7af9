//! One HTTP/2 stream as a side, downstream or upstream. The connection's own task does the reading and writing;
//! here only frames are handed to and taken from the h2 crate.
//!
//! Credit: received bytes are acknowledged when the relay takes them, which it does only when the other side has
//! room, so one slow stream holds its own window and nothing of the connection's (C18). Capacity is asked for
//! exactly the chunk that waits.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http_wire::fields::Fields;
use http_wire::head::{BodyLength, Method, ResponseHead};

use super::{BodyEvent, SideError};
use crate::chunk::Chunk;
use crate::convert::{self, H2ResponseMeta};
use crate::h2io::FrameLedger;

#[derive(Debug)]
enum Sender {
    /// Downstream before the response head.
    Respond(SendResponse<Chunk>),
    Body(SendStream<Chunk>),
    /// END_STREAM has been sent, or the stream was reset.
    Ended,
}

#[derive(Debug)]
pub(crate) struct H2Side {
    receive: Option<RecvStream>,
    /// The incoming message has ended.
    receive_ended: bool,
    sender: Sender,
    /// Downstream: what tells that the client cancelled, once the head has gone.
    response: Option<ResponseFuture>,
    /// A chunk that waits for the peer's window, and whether it ends the stream.
    waiting: Option<(Chunk, StreamEnd)>,
    /// Body bytes still to send by the announced length.
    left_bytes: Option<u64>,
    /// Where DATA sent to a client is noted.
    ledger: FrameLedger,
    /// The peer broke a rule of the stream, which made the h2 crate reset it.
    has_provoked_reset: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamEnd {
    Here,
    Later,
}

impl H2Side {
    /// A request that a client began.
    pub(crate) fn downstream(
        receive: RecvStream,
        respond: SendResponse<Chunk>,
        ledger: FrameLedger,
    ) -> Box<Self> {
        let receive_ended = receive.is_end_stream();
        Box::new(Self {
            receive: Some(receive),
            receive_ended,
            sender: Sender::Respond(respond),
            response: None,
            waiting: None,
            left_bytes: None,
            ledger,
            has_provoked_reset: false,
        })
    }

    /// A request that was just sent to a backend.
    pub(crate) fn upstream(response: ResponseFuture, send: SendStream<Chunk>, body: BodyLength) -> Box<Self> {
        Box::new(Self {
            receive: None,
            receive_ended: false,
            sender: if body == BodyLength::Empty { Sender::Ended } else { Sender::Body(send) },
            response: Some(response),
            waiting: None,
            left_bytes: exact(body),
            ledger: FrameLedger::default(),
            has_provoked_reset: false,
        })
    }

    /// Waits for the next response head of a backend, interim ones included.
    pub(crate) fn poll_response_head(
        &mut self,
        cx: &mut Context<'_>,
        request_method: Method,
        head: &mut ResponseHead,
    ) -> Poll<Result<H2ResponseMeta, SideError>> {
        let Some(response) = &mut self.response else { return Poll::Ready(Err(SideError::Closed)) };
        if let Poll::Ready(Some(interim)) = response.poll_informational(cx) {
            let (parts, ()) = interim?.into_parts();
            let meta = convert::response_from_h2(&parts, request_method, false, head);
            return Poll::Ready(meta.map_err(SideError::Refuse));
        }
        let (parts, receive) = ready!(Pin::new(response).poll(cx))?.into_parts();
        self.response = None;
        self.receive_ended = receive.is_end_stream();
        let meta = convert::response_from_h2(&parts, request_method, self.receive_ended, head);
        self.receive = Some(receive);
        Poll::Ready(meta.map_err(SideError::Refuse))
    }

    /// Sends a response head to the client. `body` says what follows, `length` what is announced.
    pub(crate) fn send_response_head(
        &mut self,
        head: &ResponseHead,
        body: BodyLength,
        length: Option<u64>,
    ) -> Result<(), SideError> {
        let response = convert::response_to_h2(head, length).map_err(|_unfit| SideError::NotWritable)?;
        let Sender::Respond(respond) = &mut self.sender else { return Err(SideError::NotWritable) };
        if head.is_interim() {
            return respond.send_informational(response).map_err(SideError::from);
        }
        let is_end = body == BodyLength::Empty;
        let send = respond.send_response(response, is_end)?;
        self.left_bytes = exact(body);
        self.sender = if is_end { Sender::Ended } else { Sender::Body(send) };
        Ok(())
    }

    pub(crate) fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<BodyEvent, SideError>> {
        let Some(receive) = &mut self.receive else { return Poll::Ready(Err(SideError::Closed)) };
        if self.receive_ended {
            return Poll::Ready(Ok(BodyEvent::End(None)));
        }
        while let Some(data) = ready!(receive.poll_data(cx)) {
            let data =
                data.inspect_err(|error| self.has_provoked_reset |= error.is_reset() && error.is_library())?;
            receive.flow_control().release_capacity(data.len())?;
            if data.is_empty() {
                continue;
            }
            let chunk = Chunk::Shared(data);
            if receive.is_end_stream() {
                self.receive_ended = true;
                return Poll::Ready(Ok(BodyEvent::Last(chunk)));
            }
            return Poll::Ready(Ok(BodyEvent::Data(chunk)));
        }
        let trailers = ready!(receive.poll_trailers(cx))
            .inspect_err(|error| self.has_provoked_reset |= error.is_reset() && error.is_library())?;
        self.receive_ended = true;
        Poll::Ready(Ok(BodyEvent::End(trailers.as_ref().map(convert::trailers_from_h2))))
    }

    pub(crate) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SideError>> {
        while let Some((mut chunk, end)) = self.waiting.take() {
            let Sender::Body(send) = &mut self.sender else { return Poll::Ready(Err(SideError::Closed)) };
            let capacity = match send.capacity() {
                0 => match send.poll_capacity(cx) {
                    Poll::Ready(Some(capacity)) => capacity?,
                    Poll::Ready(None) => return Poll::Ready(Err(self.why_closed(cx))),
                    Poll::Pending => {
                        self.waiting = Some((chunk, end));
                        return Poll::Pending;
                    }
                },
                capacity => capacity,
            };
            if capacity >= chunk.len() {
                self.send_now(chunk, end)?;
            } else if capacity > 0 {
                let part = chunk.split_to(capacity);
                self.ledger.note_data_sent(part.len());
                send.send_data(part, false)?;
                send.reserve_capacity(chunk.len());
                self.waiting = Some((chunk, end));
            } else {
                self.waiting = Some((chunk, end));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// A stream without capacity for good was reset; the reset says why.
    fn why_closed(&mut self, cx: &mut Context<'_>) -> SideError {
        let Sender::Body(send) = &mut self.sender else { return SideError::Closed };
        match send.poll_reset(cx) {
            Poll::Ready(Ok(_)) => SideError::Cancelled,
            Poll::Ready(Err(error)) => error.into(),
            Poll::Pending => SideError::Closed,
        }
    }

    fn send_now(&mut self, chunk: Chunk, end: StreamEnd) -> Result<(), SideError> {
        let Sender::Body(send) = &mut self.sender else { return Err(SideError::Closed) };
        self.ledger.note_data_sent(chunk.len());
        send.send_data(chunk, end == StreamEnd::Here)?;
        if end == StreamEnd::Here {
            self.sender = Sender::Ended;
        }
        Ok(())
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
        let Sender::Body(send) = &mut self.sender else { return Ok(()) };
        if send.capacity() >= chunk.len() {
            return self.send_now(chunk, end);
        }
        send.reserve_capacity(chunk.len());
        self.waiting = Some((chunk, end));
        Ok(())
    }

    fn send_end(&mut self, trailers: Option<Fields>) -> Result<(), SideError> {
        if self.left_bytes.is_some_and(|left| left > 0) {
            return Err(SideError::LengthMismatch);
        }
        let Sender::Body(send) = &mut self.sender else { return Ok(()) };
        match trailers.filter(|fields| !fields.is_empty()) {
            Some(fields) => {
                let trailers = convert::trailers_to_h2(&fields).map_err(|_unfit| SideError::NotWritable)?;
                send.send_trailers(trailers)?;
            }
            None => send.send_data(Chunk::Shared(Bytes::new()), true)?,
        }
        self.sender = Sender::Ended;
        Ok(())
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SideError>> {
        self.poll_room(cx)
    }

    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let reset = match &mut self.sender {
            Sender::Respond(respond) => respond.poll_reset(cx),
            Sender::Body(send) => send.poll_reset(cx),
            Sender::Ended => return Poll::Pending,
        };
        // Who reset is not told; a peer that gives up says so with one of these codes.
        if let Poll::Ready(Ok(reason)) = &reset {
            let gives_up = matches!(*reason, Reason::NO_ERROR | Reason::CANCEL | Reason::REFUSED_STREAM);
            self.has_provoked_reset |= !gives_up;
        }
        reset.map(drop)
    }

    /// Whether the h2 crate had to reset the stream for what the peer did on it (CVE-2025-8671).
    pub(crate) fn has_provoked_reset(&self) -> bool {
        self.has_provoked_reset
    }

    /// Whether the incoming message has been received to its end.
    pub(crate) fn has_received_all(&self) -> bool {
        self.receive_ended
    }

    /// Resets the stream.
    pub(crate) fn reset(&mut self, reason: Reason) {
        match &mut self.sender {
            Sender::Respond(respond) => respond.send_reset(reason),
            Sender::Body(send) => send.send_reset(reason),
            Sender::Ended => {}
        }
        self.sender = Sender::Ended;
    }

    /// An extended CONNECT was accepted: DATA frames pass both ways until both ended (RFC 8441 §5).
    pub(crate) fn become_tunnel(&mut self) {
        self.left_bytes = None;
    }
}

fn exact(body: BodyLength) -> Option<u64> {
    match body {
        BodyLength::Exact(bytes) => Some(bytes),
        BodyLength::Empty | BodyLength::Streamed | BodyLength::UntilClose => None,
    }
}
