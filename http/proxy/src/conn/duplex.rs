//! Copying between two connections, both ways at once, until both have ended: what a TCP listener does with bytes.
//!
//! ```text
//!   from ── read ──► one buffer, or a pipe of the kernel ── write ──► to      twice, once a direction
//! ```
//! A direction holds at most one buffer and is only read when that is empty, so a slow reader slows its writer and
//! nothing grows. An end is passed on as an end and leaves the other direction alone (RFC 9293 §3.6). While bytes come
//! faster than a buffer takes them, a direction between two plain sockets goes through the kernel. While it waits for
//! bytes, a direction holds no memory. A peer that takes nothing any more may have said something before its reset: the
//! direction from it goes on until it is read to its end.

use std::io;
use std::task::{Context, Poll, ready};

use core_runtime::buf::{BUF_BYTES, Buf};
use core_runtime::net::{PIPE_BYTES, Pipe};

use crate::transport::Transport;

/// A read of this many bytes says that more are there, and that a pipe is worth its calls.
const LONG_READ_BYTES: usize = BUF_BYTES;
/// Bytes of one direction in a turn; then the others on this core are served first. Keeps a turn well below 1 ms.
const TURN_BYTES_MAX: u64 = 512 * 1024;

/// What broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// Where the bytes come from.
    From,
    /// Where they go.
    To,
    /// Neither: this core has no buffer left.
    Buffers,
}

/// One direction.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// Bytes of our own in front of those of the peer.
    ahead: Option<Buf>,
    buf: Option<Buf>,
    pipe: Option<Pipe>,
    read_was_long: bool,
    has_ended: bool,
    is_over: bool,
    /// Where the bytes go takes none any more.
    is_refused: bool,
    /// Of the peer's, passed on so far.
    pub(super) bytes: u64,
}

impl Flow {
    /// A direction that begins with bytes of our own, then with such of the peer that were read already.
    pub(super) fn starting_with(ahead: Option<Buf>, buf: Option<Buf>) -> Self {
        Self { ahead, buf, ..Self::default() }
    }

    /// Moves what can be moved; ready when the end has been passed on or something broke. After [`Broken::To`] what
    /// came from there before is readable, and the task is woken to read it.
    pub(super) fn poll(
        &mut self,
        from: &mut Transport,
        to: &mut Transport,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Broken>> {
        if self.is_refused {
            return Poll::Ready(Err(Broken::To));
        }
        let polled = self.poll_moving(from, to, cx);
        if let Poll::Ready(Err(Broken::To)) = polled {
            (self.ahead, self.buf, self.pipe) = (None, None, None);
            self.is_refused = true;
            to.tcp().expect_input();
            cx.waker().wake_by_ref();
        }
        polled
    }

    fn poll_moving(
        &mut self,
        from: &mut Transport,
        to: &mut Transport,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Broken>> {
        let bytes_before = self.bytes;
        while !self.is_over {
            ready!(self.poll_pass_on(to, cx)).map_err(|_gone| Broken::To)?;
            if self.has_ended {
                ready!(to.poll_end(cx)).map_err(|_gone| Broken::To)?;
                self.is_over = true;
                break;
            }
            if let Poll::Ready(Err(_gone)) = to.poll_flush(cx) {
                return Poll::Ready(Err(Broken::To));
            }
            if self.bytes - bytes_before >= TURN_BYTES_MAX {
                core_runtime::wake_next_turn(cx);
                return Poll::Pending;
            }
            let taken = match from.poll_readable(cx) {
                Poll::Ready(()) => self.poll_take(from, to.is_plain(), cx),
                Poll::Pending => Poll::Pending,
            };
            let Poll::Ready(taken) = taken else {
                (self.buf, self.pipe) = (None, None);
                from.release_buffers();
                return Poll::Pending;
            };
            let got = taken.map_err(|error| match error.kind() {
                io::ErrorKind::OutOfMemory => Broken::Buffers,
                _ => Broken::From,
            })?;
            self.has_ended = got == 0;
            self.read_was_long = got >= LONG_READ_BYTES;
        }
        Poll::Ready(Ok(()))
    }

    /// Writes what is held; what is empty afterwards is given back.
    fn poll_pass_on(&mut self, to: &mut Transport, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(ahead) = self.ahead.as_mut().filter(|ahead| !ahead.is_empty()) {
            let sent = ready!(to.poll_write(cx, ahead.filled()))?;
            ahead.consume(sent);
        }
        self.ahead = None;
        while let Some(pipe) = self.pipe.as_mut().filter(|pipe| !pipe.is_empty()) {
            self.bytes += wide(ready!(to.poll_splice_out(cx, pipe))?);
        }
        while let Some(buf) = self.buf.as_mut().filter(|buf| !buf.is_empty()) {
            let sent = ready!(to.poll_write(cx, buf.filled()))?;
            buf.consume(sent);
            self.bytes += wide(sent);
        }
        (self.buf, self.pipe) = (None, None);
        Poll::Ready(Ok(()))
    }

    fn poll_take(
        &mut self,
        from: &mut Transport,
        to_is_plain: bool,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.read_was_long && to_is_plain && from.is_plain() {
            self.pipe = Pipe::try_take();
            if let Some(pipe) = &mut self.pipe {
                return from.poll_splice_in(cx, pipe, PIPE_BYTES);
            }
        }
        let buf = self.buf.insert(Buf::try_take().ok_or(io::ErrorKind::OutOfMemory)?);
        from.poll_read(cx, buf)
    }
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
