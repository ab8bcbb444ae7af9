//! The byte stream of one connection: TCP, or TLS over it. Reads go through the core's one read buffer, so that an
//! idle connection holds none and the bytes stay in the cache; what a connection writes in a turn leaves in one call, in a row
//! with that of the others.

mod dial;

pub(crate) use dial::{DialError, Dialed, Shaken, Start, dial, tls_context};

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use core_runtime::buf::Scratch;
use core_runtime::net::TcpStream;
use tls::{EarlyData, Session};

use crate::core::{Core, End};
use crate::tally::Fault;

/// Ciphertext above which sealing waits for the socket.
const SEALED_BYTES_MAX: usize = 256 * 1024;

/// Bytes on their way out.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pub(crate) bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    fn rest(&self) -> &[u8] {
        self.bytes.get(self.sent..).unwrap_or(&[])
    }

    fn start(&self, limit: usize) -> &[u8] {
        self.rest().get(..limit.min(self.len())).unwrap_or(&[])
    }

    /// Gives everything to the reactor, to be sent when the turn ends, if it takes it.
    fn post(&mut self, tcp: &TcpStream) -> Option<usize> {
        if self.sent > 0 || self.bytes.is_empty() {
            return None;
        }
        let mut whole = Scratch::take();
        std::mem::swap(&mut *whole, &mut self.bytes);
        let len = whole.len();
        match tcp.post(whole) {
            Ok(()) => Some(len),
            Err(mut refused) => {
                std::mem::swap(&mut *refused, &mut self.bytes);
                None
            }
        }
    }

    fn advance(&mut self, sent: usize) {
        self.sent += sent;
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        }
    }
}

#[derive(Debug)]
struct TlsSide {
    session: Session,
    sealed: Outbox,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Link {
    tcp: TcpStream,
    tls: Option<Box<TlsSide>>,
    /// Bytes on the wire.
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    opening: Option<Box<Opening>>,
}

/// A connection whose handshake takes early data along.
#[derive(Debug)]
struct Opening {
    connect: Duration,
    /// When the connection was made.
    connected: Duration,
    early_bytes: usize,
}

/// What a read brought.
#[derive(Debug)]
pub(crate) enum Got<T> {
    Bytes(T),
    /// A clean end, for TLS with close_notify.
    End,
}

impl Link {
    pub(crate) fn plain(tcp: TcpStream) -> Self {
        Self { tcp, tls: None, bytes_in: 0, bytes_out: 0, opening: None }
    }

    pub(crate) fn tls(tcp: TcpStream, session: Session) -> Self {
        let side = TlsSide { session, sealed: Outbox::default() };
        Self { tls: Some(Box::new(side)), ..Self::plain(tcp) }
    }

    /// Its handshake waits for [`Link::poll_open`].
    fn early(tcp: TcpStream, session: Session, opening: Opening) -> Self {
        Self { opening: Some(Box::new(opening)), ..Self::tls(tcp, session) }
    }

    /// Whether the handshake is still to be made, by [`Link::poll_open`].
    pub(crate) fn is_opening(&self) -> bool {
        self.opening.is_some()
    }

    /// Whether early data was accepted and the ticket for the next connection's has not come. A server sends it when it has
    /// read the end of the handshake, which may be after its answer.
    pub(crate) fn awaits_ticket(&self) -> bool {
        self.session()
            .is_some_and(|session| session.early_data() == EarlyData::Accepted && session.tickets() == 0)
    }

    pub(crate) fn session(&self) -> Option<&Session> {
        self.tls.as_ref().map(|side| &side.session)
    }

    /// Hands what can be read now, through `buffer`, to `take`.
    pub(crate) fn poll_read<T>(
        &mut self,
        cx: &Context<'_>,
        buffer: &mut [u8],
        take: impl FnOnce(&[u8]) -> T,
    ) -> Poll<io::Result<Got<T>>> {
        loop {
            ready!(self.tcp.poll_readable(cx));
            let got = match self.tcp.try_read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Poll::Ready(Err(error)),
                Ok(got) => got,
            };
            self.bytes_in += crate::number::count(got);
            let bytes = buffer.get_mut(..got).unwrap_or_default();
            let Some(side) = &mut self.tls else {
                return Poll::Ready(Ok(if got == 0 { Got::End } else { Got::Bytes(take(bytes)) }));
            };
            if got == 0 {
                return Poll::Ready(Ok(Got::End));
            }
            let fed = side.session.read_tls(bytes).map_err(tls_error);
            // Replies such as a key update, and the alert of a failure, leave if the socket takes them.
            if side.session.wants_write()
                && let Poll::Ready(Err(error)) = self.poll_drain(cx)
            {
                return Poll::Ready(Err(error));
            }
            fed?;
            let Some(side) = &mut self.tls else { continue };
            let plain = side.session.plain();
            if !plain.is_empty() {
                let len = plain.len();
                let taken = take(plain);
                side.session.consume_plain(len);
                return Poll::Ready(Ok(Got::Bytes(taken)));
            }
            if !side.session.wants_read() {
                return Poll::Ready(Ok(Got::End));
            }
        }
    }

    /// Writes all of `out`.
    pub(crate) fn poll_write(&mut self, cx: &Context<'_>, out: &mut Outbox) -> Poll<io::Result<()>> {
        self.poll_write_some(cx, out, usize::MAX)
    }

    /// Writes up to `limit` bytes of `out`.
    pub(crate) fn poll_write_some(
        &mut self,
        cx: &Context<'_>,
        out: &mut Outbox,
        mut limit: usize,
    ) -> Poll<io::Result<()>> {
        while !out.is_empty() && limit > 0 {
            let moved = match &mut self.tls {
                None => {
                    if limit >= out.len()
                        && let Some(posted) = out.post(&self.tcp)
                    {
                        self.bytes_out += crate::number::count(posted);
                        break;
                    }
                    let sent = ready!(write(&self.tcp, cx, out.start(limit)))?;
                    self.bytes_out += crate::number::count(sent);
                    sent
                }
                Some(side) => {
                    let taken = side.session.write_plain(out.start(limit)).map_err(tls_error)?;
                    if taken == 0 {
                        if !side.session.wants_write() && side.sealed.is_empty() {
                            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
                        }
                        ready!(self.poll_drain(cx))?;
                    }
                    taken
                }
            };
            out.advance(moved);
            limit -= moved;
        }
        self.poll_drain(cx)
    }

    /// Writes ciphertext that waits.
    fn poll_drain(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let Some(side) = &mut self.tls else { return Poll::Ready(Ok(())) };
        loop {
            if side.session.wants_write() && side.sealed.bytes.len() < SEALED_BYTES_MAX {
                side.session.write_tls(&mut side.sealed.bytes);
            }
            if let Some(posted) = side.sealed.post(&self.tcp) {
                self.bytes_out += crate::number::count(posted);
                continue;
            }
            if side.sealed.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let sent = ready!(write(&self.tcp, cx, side.sealed.rest()))?;
            self.bytes_out += crate::number::count(sent);
            side.sealed.advance(sent);
        }
    }

    /// Drives a TLS handshake to its end.
    fn poll_handshake(&mut self, cx: &Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<()>> {
        loop {
            let drained = self.poll_drain(cx)?;
            let Some(side) = &mut self.tls else { return Poll::Ready(Ok(())) };
            if !side.session.is_handshaking() {
                return drained.map(Ok);
            }
            ready!(self.tcp.poll_readable(cx));
            let got = match self.tcp.try_read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Poll::Ready(Err(error)),
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Ok(got) => got,
            };
            self.bytes_in += crate::number::count(got);
            if let Err(failure) = side.session.read_tls(buffer.get_mut(..got).unwrap_or_default()) {
                // The alert leaves if the socket takes it.
                return match self.poll_drain(cx) {
                    Poll::Ready(Ok(()) | Err(_)) | Poll::Pending => Poll::Ready(Err(tls_error(failure))),
                };
            }
        }
    }

    /// Makes the handshake that takes the beginning of `out` along as early data. What was accepted is taken off `out`; all of
    /// it stays when it was refused.
    pub(crate) fn poll_open(
        &mut self,
        cx: &Context<'_>,
        core: &Core,
        out: &mut Outbox,
    ) -> Poll<Result<(), End>> {
        let failed = |why: String| Err(Err((Fault::Tls, format!("TLS handshake with early data: {why}"))));
        let (Some(side), Some(opening)) = (&mut self.tls, &mut self.opening) else {
            return Poll::Ready(Ok(()));
        };
        if side.session.early_data() == EarlyData::Possible {
            match side.session.write_early(out.rest()) {
                Ok(taken) => opening.early_bytes = taken,
                Err(error) => return Poll::Ready(failed(error.to_string())),
            }
        }
        if let Err(error) = ready!(self.poll_handshake(cx, &mut core.buffer.borrow_mut())) {
            return Poll::Ready(failed(dial::chain(&error)));
        }
        if let (Some(side), Some(opening)) = (&self.tls, self.opening.take()) {
            let shaken = Shaken::new(&side.session, core.now().saturating_sub(opening.connected));
            if shaken.early_data == EarlyData::Accepted {
                out.advance(opening.early_bytes);
            }
            core.opened(opening.connect, Some(&shaken));
        }
        Poll::Ready(Ok(()))
    }

    /// Drives a TLS handshake to its end; nothing to do on plain TCP.
    ///
    /// # Errors
    /// What the socket or the session says.
    pub(crate) async fn handshake(&mut self, buffer: &RefCell<Box<[u8]>>) -> io::Result<()> {
        poll_fn(|cx| self.poll_handshake(cx, &mut buffer.borrow_mut())).await
    }

    /// Ends the sending direction.
    pub(crate) fn end(&mut self) {
        if let Some(side) = &mut self.tls
            && side.session.send_close_notify()
        {
            let cx = Context::from_waker(Waker::noop());
            // An alert that the socket does not take at once is lost with the connection.
            match self.poll_drain(&cx) {
                Poll::Ready(Ok(()) | Err(_)) | Poll::Pending => {}
            }
        }
        match self.tcp.shutdown_write() {
            Ok(()) | Err(_) => {}
        }
    }

    /// Plaintext that came with the handshake's last bytes.
    pub(crate) fn take_decrypted<T>(&mut self, take: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let side = self.tls.as_mut()?;
        let len = side.session.plain().len();
        if len == 0 {
            return None;
        }
        let taken = take(side.session.plain());
        side.session.consume_plain(len);
        Some(taken)
    }
}

fn write(tcp: &TcpStream, cx: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    loop {
        ready!(tcp.poll_writable(cx));
        match tcp.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return Poll::Ready(other),
        }
    }
}

fn tls_error(error: tls::TlsError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
