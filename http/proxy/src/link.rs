//! An HTTP/2 connection, downstream or upstream: its socket, its codec, and the inboxes of its streams.
//!
//! ```text
//!   socket ──► codec ──► inboxes ──► sides of exchanges
//!   socket ◄── output of the codec ◄── sides of exchanges
//! ```
//! The connection's task reads, hands frames to the codec and writes; sides take from their inbox and put frames into
//! the codec's output. They wake the task for the first frame of a turn, so that all of a turn leave in one write. The
//! task alone keeps the socket: with [`Link::close`] it is gone, whatever exchanges still hold of the link.

mod inbox;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use core_runtime::buf::{BUF_BYTES, Buf};
use core_runtime::clock;
use core_runtime::sync::GatePlace;
use http_wire::fields::Fields;
use http_wire::h2::{Connection, Events, Fault, RequestMeta, ResponseMeta, StreamFault, StreamKey};
use http_wire::h2::{ErrorCode, HeadError, SendError};
use http_wire::head::{RequestHead, ResponseHead};

pub(crate) use self::inbox::{Inbox, Piece};
use crate::core::Core;
use crate::exchange::Request;
use crate::transport::Transport;

/// Reads of one turn; what is left comes in the next, behind everybody else.
const READS_PER_TURN: u32 = 4;
/// Streams that a peer opens in one turn: one read can hold several hundred, each with a RST_STREAM behind it
/// (CVE-2023-44487). What is left comes in the next turn.
pub(crate) const STREAMS_PER_TURN: u32 = 64;
/// Response heads kept for the next ones.
const SPARE_HEADS_MAX: usize = 32;

/// What a connection's task makes of a request: an exchange.
pub(crate) struct Arrival {
    pub(crate) key: StreamKey,
    pub(crate) request: Box<Request>,
    pub(crate) meta: Result<RequestMeta, HeadError>,
    pub(crate) is_end: bool,
}

/// What is left to do for a connection whose peer takes nothing any more.
enum AfterFailedWrite {
    Read,
    ReadNextTurn,
    End,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LinkEnd {
    /// The peer closed, between two frames or not.
    Closed,
    /// It broke the protocol; GOAWAY is on its way.
    Fault(Fault),
    /// The socket failed. What an upstream had sent before was read.
    Broken,
}

pub(crate) struct Link(RefCell<State>);

struct State {
    transport: Option<Transport>,
    /// Bytes that were read and are still to be taken: from before h2 took over, or beyond what a turn may open.
    early: Option<Buf>,
    codec: Connection<Inbox>,
    arrived: Vec<Arrival>,
    spare_heads: Vec<ResponseHead>,
    task: Option<Waker>,
    /// The task will be polled for what has been put into the output.
    is_task_woken: bool,
    /// The last read filled its buffer.
    reads_bulk: bool,
    share: Share,
    /// In the line of those that want to read, on a core with many streams in a turn.
    place: Option<GatePlace>,
}

/// What a connection may still do in a turn, however often its task is polled in it.
#[derive(Clone, Copy, Default)]
struct Share {
    turn: u64,
    reads_left: u32,
    /// Streams that the peer may have opened by the end of the turn.
    opened_max: u64,
}

impl Share {
    fn of_turn(&mut self, opened: u64) -> &mut Self {
        let turn = core_runtime::turn();
        if self.turn != turn {
            let opened_max = opened + u64::from(STREAMS_PER_TURN);
            *self = Self { turn, reads_left: READS_PER_TURN, opened_max };
        }
        self
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}

/// Puts what the codec tells into inboxes. A server's has a core, for its requests.
struct Sorter<'a> {
    core: Option<&'a Core>,
    arrived: &'a mut Vec<Arrival>,
    spare_heads: &'a mut Vec<ResponseHead>,
}

impl Events for Sorter<'_> {
    type Stream = Inbox;

    fn request(
        &mut self,
        key: StreamKey,
        head: &mut RequestHead,
        meta: Result<RequestMeta, HeadError>,
        is_end: bool,
    ) -> Inbox {
        if let Some(core) = self.core {
            let mut request = core.take_request();
            std::mem::swap(head, &mut request.head);
            self.arrived.push(Arrival { key, request, meta, is_end });
        }
        Inbox::default()
    }

    fn response(&mut self, inbox: &mut Inbox, head: &mut ResponseHead, meta: ResponseMeta) {
        let mut kept = self.spare_heads.pop().unwrap_or_default();
        std::mem::swap(head, &mut kept);
        inbox.put_head(kept, meta);
    }

    fn data(&mut self, inbox: &mut Inbox, bytes: &[u8]) {
        inbox.put_data(bytes);
    }

    fn end(&mut self, inbox: &mut Inbox, trailers: Option<Fields>) {
        inbox.put_end(trailers);
    }

    fn failed(&mut self, inbox: &mut Inbox, fault: StreamFault) {
        inbox.fail(fault);
    }

    fn room(&mut self, inbox: &mut Inbox) {
        inbox.wake();
    }
}

impl Link {
    pub(crate) fn new(transport: Transport, early: Option<Buf>, codec: Connection<Inbox>) -> Rc<Self> {
        Rc::new(Self(RefCell::new(State {
            transport: Some(transport),
            early,
            codec,
            arrived: Vec::new(),
            spare_heads: Vec::new(),
            task: None,
            is_task_woken: false,
            reads_bulk: false,
            share: Share::default(),
            place: None,
        })))
    }

    // The connection's task.

    /// Reads what is there and writes what has gathered. Ready when the connection is over; what was put into the
    /// output has left then as far as the socket took it at once.
    pub(crate) fn poll_io(&self, cx: &mut Context<'_>, core: Option<&Core>) -> Poll<LinkEnd> {
        let state = &mut *self.0.borrow_mut();
        if !state.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            state.task = Some(cx.waker().clone());
        }
        state.is_task_woken = false;
        loop {
            let received = state.poll_receive(cx, core);
            let was_congested = state.codec.is_congested();
            let drained = state.poll_drain(cx, core);
            if was_congested && !state.codec.is_congested() {
                // Reading stopped for want of room, and nobody will tell of what had come by then.
                cx.waker().wake_by_ref();
            }
            return match (received, drained) {
                (Poll::Ready(end), _) => Poll::Ready(end),
                (Poll::Pending, Poll::Ready(Err(_gone))) => match state.after_failed_write(core) {
                    AfterFailedWrite::Read => continue,
                    AfterFailedWrite::ReadNextTurn => Poll::Pending,
                    AfterFailedWrite::End => Poll::Ready(LinkEnd::Broken),
                },
                (Poll::Pending, Poll::Ready(Ok(())) | Poll::Pending) => Poll::Pending,
            };
        }
    }

    /// Requests that have come since the last call. `into` is empty and lends its room.
    pub(crate) fn take_arrived(&self, into: &mut Vec<Arrival>) {
        std::mem::swap(&mut self.0.borrow_mut().arrived, into);
    }

    /// Lets `change` at the codec, and sees to it that what it wrote leaves.
    pub(crate) fn with_codec<R>(&self, change: impl FnOnce(&mut Connection<Inbox>) -> R) -> R {
        let state = &mut *self.0.borrow_mut();
        let result = change(&mut state.codec);
        state.wake_task();
        result
    }

    /// Looks at the codec.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&Connection<Inbox>) -> R) -> R {
        look(&self.0.borrow().codec)
    }

    /// Ends the connection for its streams, and lets the socket go.
    pub(crate) fn close(&self, fault: StreamFault) {
        let state = &mut *self.0.borrow_mut();
        state.transport = None;
        state.early = None;
        let State { codec, arrived, spare_heads, .. } = state;
        codec.fail_all(fault, &mut Sorter { core: None, arrived, spare_heads });
    }

    /// Writes what has gathered, then ends our direction.
    pub(crate) fn poll_end(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let state = &mut *self.0.borrow_mut();
        ready!(state.poll_drain(cx, None))?;
        state.transport.as_mut().map_or(Poll::Ready(Ok(())), |transport| transport.poll_end(cx))
    }

    /// Reads and drops what comes until the peer ends or `left_bytes` are used up: a close with unread bytes
    /// would reset the connection and could destroy the GOAWAY on its way.
    pub(crate) fn poll_linger(&self, cx: &mut Context<'_>, left_bytes: &mut usize) -> Poll<()> {
        let state = &mut *self.0.borrow_mut();
        let Some(transport) = &mut state.transport else { return Poll::Ready(()) };
        while *left_bytes > 0 {
            ready!(transport.poll_readable(cx));
            let Some(mut buf) = Buf::try_take() else { break };
            match ready!(transport.poll_read(cx, &mut buf)) {
                Ok(0) | Err(_) => break,
                Ok(got) => *left_bytes = left_bytes.saturating_sub(got),
            }
        }
        Poll::Ready(())
    }

    /// Gives back large buffers; for a connection without streams.
    pub(crate) fn release_buffers(&self) {
        let state = &mut *self.0.borrow_mut();
        state.codec.release_buffers();
        if let Some(transport) = &mut state.transport {
            transport.release_buffers();
        }
    }

    /// Gives back everything that the next stream would find in place; for a connection that has had none for a while.
    pub(crate) fn release_memory(&self) {
        let state = &mut *self.0.borrow_mut();
        state.codec.release_memory(clock::now());
        state.arrived = Vec::new();
        state.spare_heads = Vec::new();
    }

    /// Whether bytes, an end or an error wait to be read. True for a connection that is over.
    pub(crate) fn has_input(&self) -> bool {
        let state = &mut *self.0.borrow_mut();
        state.transport.as_mut().is_none_or(|transport| !transport.is_quiet())
    }

    /// Lets the task look at its connection.
    pub(crate) fn wake_task(&self) {
        if let Some(task) = &self.0.borrow().task {
            task.wake_by_ref();
        }
    }

    // Streams.

    /// The next response head.
    ///
    /// # Errors
    /// Why there will be none.
    pub(crate) fn poll_head(
        &self,
        key: StreamKey,
        cx: &Context<'_>,
        head: &mut ResponseHead,
    ) -> Poll<Result<ResponseMeta, StreamFault>> {
        let state = &mut *self.0.borrow_mut();
        let Some(inbox) = state.codec.user(key) else { return Poll::Ready(Err(StreamFault::Lost)) };
        let Some((mut kept, meta)) = inbox.take_head() else { return inbox.poll_fault(cx).map(Err) };
        std::mem::swap(head, &mut kept);
        if state.spare_heads.len() < SPARE_HEADS_MAX {
            state.spare_heads.push(kept);
        }
        Poll::Ready(Ok(meta))
    }

    /// The next piece of the body. Its credit is given back, since who asks has room for it.
    ///
    /// # Errors
    /// Why there will be none.
    pub(crate) fn poll_piece(&self, key: StreamKey, cx: &Context<'_>) -> Poll<Result<Piece, StreamFault>> {
        let state = &mut *self.0.borrow_mut();
        let Some(inbox) = state.codec.user(key) else { return Poll::Ready(Err(StreamFault::Lost)) };
        let Some(piece) = inbox.take_piece() else { return inbox.poll_fault(cx).map(Err) };
        let taken = piece.len();
        if taken > 0 {
            state.codec.consume(key, taken);
            state.wake_task();
        }
        Poll::Ready(Ok(piece))
    }

    /// Ready when the stream's peer or its connection has given up.
    pub(crate) fn poll_fault(&self, key: StreamKey, cx: &Context<'_>) -> Poll<StreamFault> {
        match self.0.borrow_mut().codec.user(key) {
            Some(inbox) => inbox.poll_fault(cx),
            None => Poll::Ready(StreamFault::Lost),
        }
    }

    /// Bytes of a body that the stream may send; at least one.
    ///
    /// # Errors
    /// `Closed` when nothing can be sent any more.
    pub(crate) fn poll_room(&self, key: StreamKey, cx: &Context<'_>) -> Poll<Result<usize, SendError>> {
        let state = &mut *self.0.borrow_mut();
        match state.codec.room(key) {
            Ok(0) => {
                if let Some(inbox) = state.codec.user(key) {
                    inbox.register(cx);
                }
                Poll::Pending
            }
            room => Poll::Ready(room),
        }
    }

    /// Why the stream cannot go on, as far as that is known.
    pub(crate) fn fault(&self, key: StreamKey) -> Option<StreamFault> {
        self.0.borrow_mut().codec.user(key).and_then(|inbox| inbox.fault())
    }

    /// Resets a stream.
    pub(crate) fn reset(&self, key: StreamKey, code: ErrorCode) {
        self.with_codec(|codec| codec.reset(key, code, clock::now()));
    }

    /// Forgets a stream; one that has not come to its end is reset.
    pub(crate) fn release(&self, key: StreamKey) {
        self.with_codec(|codec| {
            let unread = codec.user(key).map_or(0, |inbox| inbox.unread_bytes());
            codec.release(key, unread, clock::now());
        });
    }
}

impl State {
    /// Sees to it that the task writes the output, or sees that no stream is left.
    fn wake_task(&mut self) {
        if self.is_task_woken || (self.codec.output().is_empty() && self.codec.streams() > 0) {
            return;
        }
        if let Some(task) = &self.task {
            self.is_task_woken = true;
            task.wake_by_ref();
        }
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>, core: Option<&Core>) -> Poll<LinkEnd> {
        let Self { transport, early, codec, arrived, spare_heads, reads_bulk, share, place, .. } = self;
        let Some(transport) = transport else { return Poll::Ready(LinkEnd::Closed) };
        let share = share.of_turn(codec.streams_opened());
        while share.reads_left > 0 {
            // Answers to what is read need room.
            if codec.is_congested() {
                return Poll::Pending;
            }
            if early.is_none() {
                ready!(transport.poll_readable(cx));
            }
            if let Some(core) = core {
                ready!(core.streams.poll_enter(cx, place));
            }
            let mut buf = match early.take() {
                Some(early) => early,
                None => match ready!(poll_buf(transport, cx, *reads_bulk)) {
                    Ok(buf) => buf,
                    Err(_gone) => return Poll::Ready(LinkEnd::Broken),
                },
            };
            if buf.is_empty() {
                return Poll::Ready(LinkEnd::Closed);
            }
            share.reads_left -= 1;
            *reads_bulk = buf.len() >= BUF_BYTES;
            let opened = codec.streams_opened();
            let mut sorter = Sorter { core, arrived, spare_heads };
            match codec.receive_until(share.opened_max, buf.filled(), clock::now(), &mut sorter) {
                Ok(taken) => buf.consume(taken),
                Err(fault) => return Poll::Ready(LinkEnd::Fault(fault)),
            }
            if let Some(core) = core {
                let opened = codec.streams_opened() - opened;
                core.streams
                    .spend(usize::try_from(opened).map_or(usize::MAX, |opened| opened.saturating_sub(1)));
            }
            if !buf.is_empty() {
                *early = Some(buf);
                share.reads_left = 0;
            }
        }
        core_runtime::wake_next_turn(cx);
        Poll::Pending
    }

    /// Nothing can be sent any more. An upstream that has answered and closed with bytes of ours unread (an early
    /// response, a SETTINGS ACK that was on its way) resets the connection: its answer is taken before the end. Of a
    /// client nothing is read that nobody would hear the answer to.
    #[cold]
    fn after_failed_write(&mut self, core: Option<&Core>) -> AfterFailedWrite {
        match &self.transport {
            Some(transport) if core.is_none() && !self.codec.is_mute() => {
                transport.tcp().expect_input();
                self.codec.mute();
                AfterFailedWrite::Read
            }
            Some(_) if core.is_none() && self.share.reads_left == 0 => AfterFailedWrite::ReadNextTurn,
            _ => AfterFailedWrite::End,
        }
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>, core: Option<&Core>) -> Poll<io::Result<()>> {
        let Self { transport, codec, arrived, spare_heads, .. } = self;
        let Some(transport) = transport else { return Poll::Ready(Ok(())) };
        if codec.is_mute() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        while !codec.output().is_empty() {
            let count = ready!(transport.poll_write(cx, codec.output()))?;
            codec.sent(count, &mut Sorter { core, arrived, spare_heads });
        }
        transport.poll_flush(cx)
    }
}

/// One read; an empty buffer is the end.
fn poll_buf(transport: &mut Transport, cx: &mut Context<'_>, is_bulk: bool) -> Poll<io::Result<Buf>> {
    ready!(transport.poll_readable(cx));
    let buf = if is_bulk { Buf::try_take_bulk() } else { Buf::try_take() };
    let mut buf = buf.ok_or(io::ErrorKind::OutOfMemory)?;
    ready!(transport.poll_read(cx, &mut buf))?;
    Poll::Ready(Ok(buf))
}
