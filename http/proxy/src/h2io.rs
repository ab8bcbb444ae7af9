//! The byte stream that the h2 crate reads and writes: bytes in from the transport, bytes out into memory.
//!
//! The crate flushes after every frame that it makes. Here a flush is free: frames gather in `outgoing`, and the
//! connection's task writes them in one go when it has polled the crate for this turn. Received bytes pass a
//! frame meter first (downstream), which bounds what a peer may make us do before the crate looks at it.
//!
//! The connection's task alone keeps the socket: streams hold a [`FrameLedger`], so that a connection that is
//! over is closed at once, whatever its exchanges still wait for.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};

use core_runtime::buf::{Buf, Scratch};
use core_runtime::clock;
use http_wire::frame_meter::{Flood, FrameMeter};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::transport::Transport;

/// Frames above which the crate has to wait for the socket.
const OUTGOING_BYTES_MAX: usize = 128 * 1024;
/// RFC 9113 §4.1.
const FRAME_HEAD_BYTES: u64 = 9;

#[derive(Debug)]
struct State {
    transport: Transport,
    /// Bytes read before h2 took over.
    early: Option<Buf>,
    outgoing: Option<Scratch>,
    outgoing_sent: usize,
    meter: Option<FrameMeter>,
    flood: Option<Flood>,
    /// Bytes received, and how many of them the peer's first frame takes once its length is known.
    received_bytes: u64,
    first_frame_bytes: Option<u64>,
}

/// Shared by the h2 crate, which moves bytes, and the connection's task, which flushes and looks at the meter.
#[derive(Clone, Debug)]
pub(crate) struct H2Io(Rc<RefCell<State>>);

impl H2Io {
    pub(crate) fn new(transport: Transport, early: Option<Buf>, meter: Option<FrameMeter>) -> Self {
        Self(Rc::new(RefCell::new(State {
            transport,
            early,
            outgoing: None,
            outgoing_sent: 0,
            meter,
            flood: None,
            received_bytes: 0,
            first_frame_bytes: None,
        })))
    }

    /// For a look at whether something has come.
    pub(crate) fn input_probe(&self) -> InputProbe {
        InputProbe(Rc::downgrade(&self.0))
    }

    /// What a stream may tell the connection's meter.
    pub(crate) fn ledger(&self) -> FrameLedger {
        FrameLedger(Rc::downgrade(&self.0))
    }

    /// Writes what has gathered, as far as the socket takes it.
    pub(crate) fn poll_drain(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().poll_drain(cx)
    }

    /// Writes what has gathered, then ends our direction.
    pub(crate) fn poll_end(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().poll_end(cx)
    }

    /// The budget that the peer has overdrawn.
    pub(crate) fn flood(&self) -> Option<Flood> {
        self.0.borrow().flood
    }

    /// Streams that the peer has opened so far: progress that control frames do not make (C26).
    pub(crate) fn streams_opened(&self) -> u64 {
        self.0.borrow().meter.as_ref().map_or(0, |meter| meter.counts().streams_opened)
    }

    /// Whether the peer's first frame, which is SETTINGS (RFC 9113 §3.4), has been handed to the h2 crate.
    pub(crate) fn has_first_frame(&self) -> bool {
        let state = self.0.borrow();
        state.first_frame_bytes.is_some_and(|bytes| state.received_bytes >= bytes)
    }

    /// Reads and drops what comes until the peer ends or `left_bytes` are used up: a close with unread bytes
    /// would reset the connection and could destroy the GOAWAY on its way.
    pub(crate) fn poll_linger(&self, cx: &mut Context<'_>, left_bytes: &mut usize) -> Poll<()> {
        let mut state = self.0.borrow_mut();
        state.early = None;
        while *left_bytes > 0 {
            ready!(state.transport.poll_readable(cx));
            let Some(mut buf) = Buf::try_take() else { break };
            match ready!(state.transport.poll_read(cx, &mut buf)) {
                Ok(0) | Err(_) => break,
                Ok(got) => *left_bytes = left_bytes.saturating_sub(got),
            }
        }
        Poll::Ready(())
    }

    /// Gives back memory before a wait of unknown length.
    pub(crate) fn release_buffers(&self) {
        self.0.borrow_mut().transport.release_buffers();
    }
}

/// Tells whether a connection has unread input. Does not keep it open.
#[derive(Debug)]
pub(crate) struct InputProbe(Weak<RefCell<State>>);

impl InputProbe {
    /// Whether bytes, an end or an error wait to be read. True for a connection that is over.
    pub(crate) fn waits(&self) -> bool {
        self.0.upgrade().is_none_or(|state| !state.borrow_mut().transport.is_quiet())
    }
}

/// A stream's door to the meter of its connection, for as long as that lives.
#[derive(Clone, Debug, Default)]
pub(crate) struct FrameLedger(Weak<RefCell<State>>);

impl FrameLedger {
    /// Counts a reset that the peer made us send (CVE-2025-8671).
    pub(crate) fn note_reset_sent(&self) {
        self.with_meter(|meter, flood| {
            if let Err(overspent) = meter.note_reset_sent(clock::now()) {
                *flood = Some(overspent);
            }
        });
    }

    /// Counts the content of a DATA frame on its way to the peer, which pays for the peer's WINDOW_UPDATEs.
    pub(crate) fn note_data_sent(&self, bytes: usize) {
        self.with_meter(|meter, _| meter.note_data_sent(bytes));
    }

    fn with_meter(&self, note: impl FnOnce(&mut FrameMeter, &mut Option<Flood>)) {
        if let Some(state) = self.0.upgrade() {
            let state = &mut *state.borrow_mut();
            if let Some(meter) = &mut state.meter {
                note(meter, &mut state.flood);
            }
        }
    }
}

impl State {
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(outgoing) = &self.outgoing {
            let rest = outgoing.get(self.outgoing_sent..).unwrap_or(&[]);
            if !rest.is_empty() {
                self.outgoing_sent += ready!(self.transport.poll_write(cx, rest))?;
                continue;
            }
            self.outgoing = None;
            self.outgoing_sent = 0;
        }
        self.transport.poll_flush(cx)
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        self.transport.poll_end(cx)
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let waiting = self.outgoing.as_ref().map_or(0, |outgoing| outgoing.len() - self.outgoing_sent);
        if waiting < OUTGOING_BYTES_MAX { Poll::Ready(Ok(())) } else { self.poll_drain(cx) }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut buf = match self.early.take() {
            Some(early) => early,
            None => {
                ready!(self.transport.poll_readable(cx));
                let mut buf = Buf::try_take().ok_or(io::ErrorKind::OutOfMemory)?;
                ready!(self.transport.poll_read(cx, &mut buf))?;
                buf
            }
        };
        let taken = buf.len().min(into.remaining());
        let bytes = buf.filled().get(..taken).unwrap_or(&[]);
        if let Some(meter) = &mut self.meter
            && let Err(flood) = meter.feed(bytes, clock::now())
        {
            self.flood = Some(flood);
            return Poll::Ready(Err(io::Error::other(flood.as_str())));
        }
        if self.first_frame_bytes.is_none()
            && let [l2, l1, l0, ..] = *bytes
        {
            self.first_frame_bytes = Some(FRAME_HEAD_BYTES + u64::from(u32::from_be_bytes([0, l2, l1, l0])));
        }
        self.received_bytes += u64::try_from(taken).unwrap_or(u64::MAX);
        into.put_slice(bytes);
        buf.consume(taken);
        self.early = (!buf.is_empty()).then_some(buf);
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for H2Io {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().poll_read(cx, into)
    }
}

impl AsyncWrite for H2Io {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.0.borrow_mut();
        ready!(state.poll_room(cx))?;
        state.outgoing.get_or_insert_with(Scratch::take).extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.0.borrow_mut();
        ready!(state.poll_room(cx))?;
        let outgoing = state.outgoing.get_or_insert_with(Scratch::take);
        let before = outgoing.len();
        slices.iter().for_each(|slice| outgoing.extend_from_slice(slice));
        Poll::Ready(Ok(outgoing.len() - before))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().poll_end(cx)
    }
}
