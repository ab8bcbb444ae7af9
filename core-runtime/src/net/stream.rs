//! A connected TCP socket: wait until it is ready, then move bytes into memory that the caller owns.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::pipe::Pipe;
use crate::buf::{Buf, Scratch};
use crate::io::Registered;
use crate::outbox::{self, POST_BYTES_MAX, Sent};
use crate::sys;
use crate::timer::Deadline;

/// A stream that belongs to one shard.
#[derive(Debug)]
pub struct TcpStream {
    io: Registered,
}

/// Why a connect failed.
#[derive(Debug)]
pub enum ConnectError {
    /// No answer within the time allowed.
    TimedOut,
    /// Refused, unreachable, out of descriptors or ports.
    Io(io::Error),
}

impl TcpStream {
    /// Connects within `timeout`.
    ///
    /// # Errors
    /// `TimedOut`, or what the kernel said.
    pub async fn connect(addr: SocketAddr, timeout: Duration) -> Result<Self, ConnectError> {
        let fd = sys::stream_socket(&addr).map_err(ConnectError::Io)?;
        set_no_delay(&fd).map_err(ConnectError::Io)?;
        sys::connect(&fd, &addr).map_err(ConnectError::Io)?;
        let stream = Self { io: Registered::new(fd, false).map_err(ConnectError::Io)? };
        let deadline = Deadline::new();
        deadline.set_after(timeout);
        poll_fn(|cx| {
            if stream.io.poll_writable(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            deadline.poll_expired(cx).map(|()| Err(ConnectError::TimedOut))
        })
        .await?;
        sys::take_error(stream.io.fd()).map_err(ConnectError::Io)?;
        Ok(stream)
    }

    /// Takes over a connection that a [`super::Listener`] accepted; it has TCP_NODELAY from there.
    ///
    /// # Errors
    /// When the registration with the reactor fails.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { io: Registered::new(fd, true)? })
    }

    /// Takes the socket out of the reactor, to hand it to another shard.
    ///
    /// # Errors
    /// When the descriptor cannot be duplicated.
    pub fn into_fd(self) -> io::Result<OwnedFd> {
        self.io.into_fd()
    }

    /// Ready when a read is worth a call: bytes, the end, or an error wait.
    pub fn poll_readable(&self, cx: &Context<'_>) -> Poll<()> {
        self.io.poll_readable(cx)
    }

    /// Whether [`TcpStream::poll_readable`] would be ready.
    pub fn is_readable(&self) -> bool {
        self.io.is_readable()
    }

    /// Lets the next read try, whatever events have told: a write that failed may be the first sign of a reset, and
    /// what came before it can still be read.
    pub fn expect_input(&self) {
        self.io.set_readable();
    }

    /// Ready when a write is worth a call.
    pub fn poll_writable(&self, cx: &Context<'_>) -> Poll<()> {
        self.io.poll_writable(cx)
    }

    /// Whether the peer has closed its direction or the socket failed, as far as events have told.
    pub fn is_ended(&self) -> bool {
        self.io.is_ended()
    }

    /// Whether the connection is over in both directions (reset), as far as events have told.
    pub fn has_failed(&self) -> bool {
        self.io.has_failed()
    }

    /// Reads what is there into `into`; 0 is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` when nothing waits, else what the socket says.
    pub fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        self.io.read_with(into.len(), |fd| sys::recv(fd, into))
    }

    /// Reads what is there into the room of a buffer; 0 is the end of the stream.
    ///
    /// # Errors
    /// As [`TcpStream::try_read`].
    pub fn try_read_buf(&self, buf: &mut Buf) -> io::Result<usize> {
        let got = self.try_read(buf.spare_mut())?;
        buf.commit(got);
        Ok(got)
    }

    /// Writes as much as the socket takes.
    ///
    /// # Errors
    /// `WouldBlock` when it takes nothing, else what the socket says.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let_posts_go_first(bytes.len());
        self.io.write_with(|fd| sys::send(fd, bytes))
    }

    /// Writes as much of the slices, in order, as the socket takes.
    ///
    /// # Errors
    /// As [`TcpStream::try_write`].
    pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let_posts_go_first(slices.iter().map(|slice| slice.len()).sum());
        self.io.write_with(|fd| sys::send_vectored(fd, slices))
    }

    /// Takes bytes that the reactor sends when the turn ends, in a row with those of other sockets. Whatever is written
    /// later comes behind them. That they are lost is told by the next read or write. At most 32 KiB.
    ///
    /// # Errors
    /// The bytes, when they are too many, earlier ones have not left, or a post before them was lost.
    pub fn post(&self, bytes: Scratch) -> Result<(), Scratch> {
        if bytes.len() > POST_BYTES_MAX { Err(bytes) } else { self.io.post(bytes) }
    }

    /// Ready when everything that was posted has left or leaves with this turn.
    ///
    /// # Errors
    /// What the socket said when it was sent.
    pub fn poll_posted(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        match self.io.outgoing().state() {
            Sent::WithTheTurn => Poll::Ready(Ok(())),
            Sent::All => Poll::Ready(self.io.outgoing().fault().map_or(Ok(()), Err)),
            Sent::Some => self.poll_sent(cx),
        }
    }

    /// Ready when the socket has everything that was posted.
    ///
    /// # Errors
    /// What the socket said when it was sent.
    pub fn poll_sent(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.io.outgoing().state() != Sent::All {
                ready!(self.io.poll_writable(cx));
            }
            match self.io.write_with(|_fd| Ok(0)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return Poll::Ready(other.map(drop)),
            }
        }
    }

    /// Whether the socket took only a part of what was posted.
    pub fn is_full(&self) -> bool {
        self.io.outgoing().state() == Sent::Some
    }

    /// Whether a post was lost without a byte of it having left.
    pub fn has_lost_post(&self) -> bool {
        self.io.outgoing().has_lost_all()
    }

    #[cfg(test)]
    pub(crate) fn io_state(&self) -> Sent {
        self.io.outgoing().state()
    }

    /// Moves up to `bytes_max` received bytes into an empty pipe without copying them; 0 is the end of the stream.
    ///
    /// # Errors
    /// As [`TcpStream::try_read`].
    pub fn try_splice_in(&self, pipe: &mut Pipe, bytes_max: usize) -> io::Result<usize> {
        // A short count may be the pipe's limit, so only "would block" says that nothing more waits.
        self.io.read_with(0, |fd| pipe.fill(fd, bytes_max))
    }

    /// Sends bytes of a pipe, as many as the socket takes.
    ///
    /// # Errors
    /// As [`TcpStream::try_write`].
    pub fn try_splice_out(&self, pipe: &mut Pipe) -> io::Result<usize> {
        let_posts_go_first(usize::MAX);
        self.io.write_with(|fd| pipe.drain(fd))
    }

    /// Whether an idle connection is fit for another request: alive, with nothing to read. Costs a system call
    /// only when an event came in since the last read.
    pub fn is_quiet(&self) -> bool {
        if self.is_full() || self.io.outgoing().fault().is_some() {
            return false;
        }
        if !self.io.is_readable() {
            return true;
        }
        match sys::peek(self.io.fd()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.io.clear_readable();
                !self.io.is_ended()
            }
            Ok(_) | Err(_) => false,
        }
    }

    /// Ends the sending direction (FIN), behind what was posted as far as the socket takes it.
    ///
    /// # Errors
    /// What the kernel says, e.g. when the peer has reset the connection.
    pub fn shutdown_write(&self) -> io::Result<()> {
        self.io.send_posted();
        sys::shutdown_write(self.io.fd())
    }

    /// Makes the coming close send RST instead of FIN.
    ///
    /// # Errors
    /// What `setsockopt` says.
    pub fn reset_on_close(&self) -> io::Result<()> {
        sys::set_linger(&BorrowedRaw(self.io.fd()), 0)
    }

    /// The local address.
    ///
    /// # Errors
    /// What `getsockname` says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        sys::local_addr(&BorrowedRaw(self.io.fd()))
    }
}

/// Short messages of other connections do not wait behind a long write in the same turn.
fn let_posts_go_first(bytes: usize) {
    if bytes > POST_BYTES_MAX {
        outbox::send_all();
    }
}

/// A descriptor number for calls that ask for `AsRawFd`.
struct BorrowedRaw(std::os::fd::RawFd);

impl std::os::fd::AsRawFd for BorrowedRaw {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0
    }
}

fn set_no_delay(fd: &OwnedFd) -> io::Result<()> {
    sys::set_int_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)
}
