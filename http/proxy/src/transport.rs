//! The byte stream of one connection: TCP as it is, or TLS over it.
//!
//! Poll-style and cancellation safe. A read of 0 is a clean end: for TLS that is a close_notify, and an end without
//! one is `UnexpectedEof`, because a cut message must not pass for a whole one (RFC 8446 §6.1).

use std::io::{self, IoSlice};
use std::task::{Context, Poll, Waker, ready};

use core_runtime::buf::{Buf, Scratch};
use core_runtime::net::{Pipe, TcpStream};
use tls::{Plain, Session};

#[derive(Debug)]
pub(crate) enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
}

/// A TLS session and the socket below it: most of what an idle connection holds.
#[derive(Debug)]
pub(crate) struct TlsStream {
    tcp: TcpStream,
    session: Session,
    /// Ciphertext on its way to the socket.
    sealed: Option<Scratch>,
    sealed_sent: usize,
}

/// Ciphertext above which no more plaintext is taken before the socket took some.
const SEALED_BYTES_MAX: usize = 64 * 1024;

pub(crate) fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Reads into the room of `buf`, waiting for readiness; 0 is the end.
fn poll_read_tcp(tcp: &TcpStream, cx: &Context<'_>, buf: &mut Buf) -> Poll<io::Result<usize>> {
    loop {
        ready!(tcp.poll_readable(cx));
        match tcp.try_read_buf(buf) {
            Err(error) if would_block(&error) => {}
            other => return Poll::Ready(other),
        }
    }
}

impl Transport {
    pub(crate) fn tls(tcp: TcpStream, session: Session) -> Self {
        Self::Tls(Box::new(TlsStream { tcp, session, sealed: None, sealed_sent: 0 }))
    }

    pub(crate) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) => tcp,
            Self::Tls(stream) => &stream.tcp,
        }
    }

    pub(crate) fn session(&self) -> Option<&Session> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => Some(&stream.session),
        }
    }

    /// Ready when taking a buffer for a read may be worth it.
    pub(crate) fn poll_readable(&self, cx: &Context<'_>) -> Poll<()> {
        match self {
            Self::Tls(stream) if !stream.session.wants_read() => Poll::Ready(()),
            _ => self.tcp().poll_readable(cx),
        }
    }

    /// Reads plaintext into the room of `buf`; 0 is a clean end.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut Buf) -> Poll<io::Result<usize>> {
        debug_assert!(buf.spare_len() > 0, "a read needs room");
        match self {
            Self::Plain(tcp) => poll_read_tcp(tcp, cx, buf),
            Self::Tls(stream) => stream.poll_read(cx, buf),
        }
    }

    /// Writes some of `bytes`.
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(tcp) => poll_write_tcp(tcp, cx, |tcp| tcp.try_write(bytes)),
            Self::Tls(stream) => stream.poll_write(cx, bytes),
        }
    }

    /// Hands plain bytes over, to leave when the turn ends; what is left is to be written.
    pub(crate) fn post(&mut self, bytes: &mut Option<Scratch>) -> bool {
        match self {
            Self::Plain(tcp) => post(tcp, bytes),
            Self::Tls(_) => false,
        }
    }

    /// Writes some of the slices, in order. Empty slices are allowed, not all of them.
    pub(crate) fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(tcp) => poll_write_tcp(tcp, cx, |tcp| tcp.try_write_vectored(slices)),
            Self::Tls(stream) => {
                let mut taken = 0;
                for slice in slices.iter().filter(|slice| !slice.is_empty()) {
                    match stream.poll_write(cx, slice)? {
                        Poll::Ready(step) => {
                            taken += step;
                            if step < slice.len() {
                                break;
                            }
                        }
                        Poll::Pending if taken == 0 => return Poll::Pending,
                        Poll::Pending => break,
                    }
                }
                Poll::Ready(Ok(taken))
            }
        }
    }

    /// Whether bytes may pass through the kernel as they are.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// Moves received bytes into an empty pipe; 0 is the end. Only for plain TCP.
    pub(crate) fn poll_splice_in(
        &mut self,
        cx: &mut Context<'_>,
        pipe: &mut Pipe,
        bytes_max: usize,
    ) -> Poll<io::Result<usize>> {
        let Self::Plain(tcp) = self else { return Poll::Ready(Err(io::ErrorKind::Unsupported.into())) };
        loop {
            ready!(tcp.poll_readable(cx));
            match tcp.try_splice_in(pipe, bytes_max) {
                Err(error) if would_block(&error) => {}
                other => return Poll::Ready(other),
            }
        }
    }

    /// Sends bytes of a pipe. Only for plain TCP.
    pub(crate) fn poll_splice_out(
        &mut self,
        cx: &mut Context<'_>,
        pipe: &mut Pipe,
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(tcp) => poll_write_tcp(tcp, cx, |tcp| tcp.try_splice_out(pipe)),
            Self::Tls(_) => Poll::Ready(Err(io::ErrorKind::Unsupported.into())),
        }
    }

    /// Ready when everything that was written has left or leaves with this turn.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(tcp) => tcp.poll_posted(cx),
            Self::Tls(stream) => stream.poll_drain(cx),
        }
    }

    /// Takes ciphertext that was read before there was a session (behind a PROXY header).
    pub(crate) fn feed_early(&mut self, mut bytes: Buf) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(stream) => stream.session.read_tls(bytes.filled_mut()).map(drop).map_err(tls_error),
        }
    }

    /// Drives a TLS handshake to its end; nothing to do on plain TCP.
    pub(crate) fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Tls(stream) => stream.poll_handshake(cx),
        }
    }

    /// Says that nothing will be written behind what was: TLS then ends in the same flush.
    pub(crate) fn end_behind(&mut self) {
        if let Self::Tls(stream) = self
            && stream.session.send_close_notify()
        {
            stream.seal();
        }
    }

    /// Ends the sending direction: close_notify where there is TLS, then FIN.
    pub(crate) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end_behind();
        if let Self::Tls(stream) = self {
            ready!(stream.poll_drain(cx))?;
        }
        ready!(self.tcp().poll_sent(cx))?;
        Poll::Ready(self.tcp().shutdown_write())
    }

    /// Gives back memory before a wait of unknown length.
    pub(crate) fn release_buffers(&mut self) {
        if let Self::Tls(stream) = self {
            stream.session.release_buffers();
        }
    }

    /// Whether an idle connection is fit for another request: alive, and nothing unasked has come.
    pub(crate) fn is_quiet(&mut self) -> bool {
        match self {
            Self::Plain(tcp) => tcp.is_quiet(),
            Self::Tls(stream) => stream.is_quiet(),
        }
    }
}

/// Hands bytes over, to leave when the turn ends.
fn post(tcp: &TcpStream, bytes: &mut Option<Scratch>) -> bool {
    let Some(whole) = bytes.take() else { return false };
    match tcp.post(whole) {
        Ok(()) => true,
        Err(refused) => {
            *bytes = Some(refused);
            false
        }
    }
}

fn poll_write_tcp(
    tcp: &TcpStream,
    cx: &Context<'_>,
    mut write: impl FnMut(&TcpStream) -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(tcp.poll_writable(cx));
        match write(tcp) {
            Err(error) if would_block(&error) => {}
            other => return Poll::Ready(other),
        }
    }
}

impl TlsStream {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut Buf) -> Poll<io::Result<usize>> {
        loop {
            match self.session.read_plain(buf.spare_mut()).map_err(tls_error)? {
                Plain::Bytes(got) => {
                    buf.commit(got);
                    return Poll::Ready(Ok(got));
                }
                Plain::Closed => return Poll::Ready(Ok(0)),
                Plain::Truncated => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Plain::Blocked => ready!(self.poll_receive(cx))?,
            }
        }
    }

    /// Feeds one read of ciphertext, or its end, to the session and passes on what the session answers by itself. Behind
    /// plaintext that waits for an answer (tickets, when the first request comes with the end of the handshake) it
    /// leaves with that answer, in one write.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.tcp.poll_readable(cx));
        let mut sealed = Buf::try_take().ok_or(io::ErrorKind::OutOfMemory)?;
        if ready!(poll_read_tcp(&self.tcp, cx, &mut sealed))? == 0 {
            self.session.read_eof();
            return Poll::Ready(Ok(()));
        }
        // The session takes everything unless plaintext waits, and this is only called when none does.
        let fed = self.session.read_tls(sealed.filled_mut());
        if fed.is_ok() && !self.session.plain().is_empty() {
            return Poll::Ready(Ok(()));
        }
        // What cannot leave is told by the next write: the peer's bytes may come before its reset. When the session
        // failed, the alert that says why has gone out if the socket took it.
        drop(self.poll_drain(cx));
        Poll::Ready(fed.map(drop).map_err(tls_error))
    }

    /// Tickets and key updates may wait in the socket of a live session: they are taken in here. Application
    /// data that nobody asked for, an end or an error is not quiet.
    fn is_quiet(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        while self.session.wants_read() && self.tcp.is_readable() {
            if matches!(self.poll_receive(&mut cx), Poll::Ready(Err(_))) {
                return false;
            }
        }
        self.session.wants_read()
    }

    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if !self.session.is_handshaking() && !self.session.plain().is_empty() {
                return Poll::Ready(Ok(()));
            }
            let drained = self.poll_drain(cx)?;
            if !self.session.is_handshaking() {
                return drained.map(Ok);
            }
            if !self.session.wants_read() {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            ready!(self.poll_receive(cx))?;
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let taken = self.session.write_plain(bytes).map_err(tls_error)?;
            self.seal();
            if taken > 0 || bytes.is_empty() {
                return Poll::Ready(Ok(taken));
            }
            if self.sealed.is_none() {
                // Nothing waits and nothing is taken: the session has ended its sending direction.
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            ready!(self.poll_drain(cx))?;
        }
    }

    /// Moves ciphertext from the session to the outgoing bytes while those are few.
    fn seal(&mut self) {
        let waiting = self.sealed.as_ref().map_or(0, |sealed| sealed.len() - self.sealed_sent);
        if self.session.wants_write() && waiting < SEALED_BYTES_MAX {
            self.session.write_tls(self.sealed.get_or_insert_with(Scratch::take));
        }
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            self.seal();
            if self.sealed_sent == 0 && post(&self.tcp, &mut self.sealed) {
                continue;
            }
            let Some(sealed) = &self.sealed else { return self.tcp.poll_posted(cx) };
            let rest = sealed.get(self.sealed_sent..).unwrap_or(&[]);
            if rest.is_empty() {
                self.sealed = None;
                self.sealed_sent = 0;
                continue;
            }
            self.sealed_sent += ready!(poll_write_tcp(&self.tcp, cx, |tcp| tcp.try_write(rest)))?;
        }
    }
}

fn tls_error(error: tls::TlsError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A size class of the allocator; the next one is a fifth larger.
    const TLS_STREAM_BYTES_MAX: usize = 1280;

    #[test]
    fn a_tls_stream_fills_its_block() {
        let bytes = size_of::<TlsStream>();
        assert!(bytes <= TLS_STREAM_BYTES_MAX, "{bytes} bytes");
    }
}
