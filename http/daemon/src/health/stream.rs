//! A blocking connection to an endpoint, over TLS where its cluster asks for it, within one time limit.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use http_proxy::snapshot::{ServerName, UpstreamProtocol};
use tls::{Plain, Session};

use super::{Peer, Via};

/// Of one read.
const PIECE_BYTES: usize = 4096;

pub(super) struct Stream {
    tcp: TcpStream,
    tls: Option<Box<Session>>,
    deadline: Instant,
}

impl Stream {
    /// Connects, and shakes hands where there is TLS.
    ///
    /// # Errors
    /// `TimedOut` at the deadline, `InvalidData` when TLS fails or agrees on another protocol, else what connecting
    /// says.
    pub(super) fn open(peer: &Peer, via: &Via, timeout: Duration) -> io::Result<Self> {
        let deadline = Instant::now() + timeout;
        let tcp = TcpStream::connect_timeout(&peer.address, timeout)?;
        let mut this = Self { tcp, tls: None, deadline };
        let Some(context) = &via.tls else { return Ok(this) };
        let address = || peer.address.ip().to_string();
        let name = match (&via.server_name, &peer.hostname) {
            (ServerName::Fixed(name), _) | (ServerName::Endpoint, Some(name)) => name.clone(),
            (ServerName::Endpoint, None) => address(),
        };
        let mut session = Box::new(Session::client(context, &name).map_err(tls_error)?);
        while session.is_handshaking() {
            this.flush(&mut session)?;
            if session.is_handshaking() && !this.feed(&mut session)? {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        if via.protocol == UpstreamProtocol::Http2 && session.alpn() != Some(b"h2") {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the endpoint does not speak HTTP/2"));
        }
        this.tls = Some(session);
        Ok(this)
    }

    pub(super) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(mut session) = self.tls.take() else { return self.write(bytes) };
        let mut rest = bytes;
        loop {
            let taken = session.write_plain(rest).map_err(tls_error)?;
            rest = rest.get(taken..).unwrap_or(&[]);
            self.flush(&mut session)?;
            if rest.is_empty() {
                break;
            }
            if taken == 0 {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
        self.tls = Some(session);
        Ok(())
    }

    /// Appends what comes; false at the end.
    pub(super) fn receive(&mut self, into: &mut Vec<u8>) -> io::Result<bool> {
        let Some(mut session) = self.tls.take() else {
            let mut piece = [0; PIECE_BYTES];
            let count = self.read(&mut piece)?;
            into.extend_from_slice(piece.get(..count).unwrap_or_default());
            return Ok(count > 0);
        };
        let goes_on = loop {
            match session.take_plain(into).map_err(tls_error)? {
                Plain::Bytes(_) => break true,
                Plain::Closed | Plain::Truncated => break false,
                Plain::Blocked => {
                    self.feed(&mut session)?;
                }
            }
        };
        self.tls = Some(session);
        Ok(goes_on)
    }

    /// Gives one read to the session and sends what it answers; false at the end.
    fn feed(&mut self, session: &mut Session) -> io::Result<bool> {
        let mut piece = [0; PIECE_BYTES];
        let count = self.read(&mut piece)?;
        if count == 0 {
            session.read_eof();
            return Ok(false);
        }
        // Taken whole: plaintext does not wait here.
        let fed = session.read_tls(piece.get_mut(..count).unwrap_or_default());
        // An alert that says why leaves first.
        let flushed = self.flush(session);
        fed.map_err(tls_error)?;
        flushed.map(|()| true)
    }

    fn flush(&mut self, session: &mut Session) -> io::Result<()> {
        let mut sealed = Vec::new();
        while session.wants_write() {
            session.write_tls(&mut sealed);
        }
        self.write(&sealed)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.tcp.set_write_timeout(Some(self.left()?))?;
        self.tcp.write_all(bytes)
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            self.tcp.set_read_timeout(Some(self.left()?))?;
            match self.tcp.read(into) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    /// Sockets take no timeout of zero.
    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

fn tls_error(error: tls::TlsError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
