//! The byte stream that the h2 crate reads and writes: bytes in from the transport, bytes out into memory.
//!
//! The crate flushes after every frame that it makes. Here a flush is free: frames gather in `outgoing`, and the
//! connection's task writes them in one go when it has polled the crate for this turn. Received bytes pass a
//! frame meter first (downstream), which bounds what a peer may make us do before the crate looks at it.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use core_runtime::buf::{Buf, Scratch};
use core_runtime::clock;
use http_wire::frame_meter::{Flood, FrameMeter};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::transport::Transport;

/// Frames above which the crate has to wait for the socket.
const OUTGOING_BYTES_MAX: usize = 128 * 1024;

#[derive(Debug)]
struct State {
    transport: Transport,
    /// Bytes read before h2 took over.
    early: Option<Buf>,
    outgoing: Option<Scratch>,
    outgoing_sent: usize,
    meter: Option<FrameMeter>,
    flood: Option<Flood>,
}

/// Shared by the h2 crate, which moves bytes, and the connection's task, which flushes and looks at the meter.
#[derive(Clone, Debug)]
pub(crate) struct H2Io(Rc<RefCell<State>>);

impl H2Io {
    pub(crate) fn new(transport: Transport, early: Option<Buf>, meter: Option<FrameMeter>) -> Self {
        Self(Rc::new(RefCell::new(State { transport, early, outgoing: None, outgoing_sent: 0, meter, flood: None })))
    }

    /// Writes what has gathered, as far as the socket takes it.
    pub(crate) fn poll_drain(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().poll_drain(cx)
    }

    /// The budget that the peer has overdrawn.
    pub(crate) fn flood(&self) -> Option<Flood> {
        self.0.borrow().flood
    }

    /// Streams that the peer has opened so far: progress that control frames do not make (C26).
    pub(crate) fn streams_opened(&self) -> u64 {
        self.0.borrow().meter.as_ref().map_or(0, |meter| meter.counts().streams_opened)
    }

    /// Counts a reset that the peer made us send (CVE-2025-8671).
    pub(crate) fn note_reset_sent(&self) {
        let mut state = self.0.borrow_mut();
        let result = state.meter.as_mut().map(|meter| meter.note_reset_sent(clock::now()));
        if let Some(Err(flood)) = result {
            state.flood = Some(flood);
        }
    }

    /// Gives back memory before a wait of unknown length.
    pub(crate) fn release_buffers(&self) {
        self.0.borrow_mut().transport.release_buffers();
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
        let mut state = self.0.borrow_mut();
        ready!(state.poll_drain(cx))?;
        state.transport.poll_end(cx)
    }
}
