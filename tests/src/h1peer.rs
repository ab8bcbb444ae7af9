//! A well-behaved HTTP/1.1 client on tokio, for tests that need many at once: heads and bodies are read strictly,
//! bodies are counted and not kept beyond a bound.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::message::{self, BodyEnd, Response};
use crate::tls::ClientTls;

/// Body bytes that are kept for a look; the rest is counted.
const KEPT_BYTES_MAX: usize = 4096;
const READ_BYTES: usize = 64 * 1024;

/// Anything that carries bytes both ways.
pub trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Wire for T {}

/// A client connection.
pub struct H1Client {
    wire: Box<dyn Wire>,
    buffer: Vec<u8>,
    /// Exchanges that ended whole.
    pub exchanges: u32,
    /// The handshake resumed a session.
    pub is_resumed: bool,
}

/// What became of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BodySeen {
    pub bytes: usize,
    /// Bytes that differ from the expected one.
    pub odd: usize,
}

/// How a body is read.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// The byte that the whole body should consist of, when it should.
    pub byte: Option<u8>,
    /// Pause between two reads.
    pub gap: Duration,
}

impl Reading {
    /// As fast as it comes, whatever it is.
    pub const FAST: Self = Self { byte: None, gap: Duration::ZERO };
}

impl H1Client {
    /// Connects in clear.
    ///
    /// # Errors
    /// What the system says.
    pub async fn connect(address: SocketAddr) -> std::io::Result<Self> {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        Ok(Self::over(Box::new(tcp)))
    }

    /// Connects and shakes hands.
    ///
    /// # Errors
    /// What the system or the handshake says.
    pub async fn connect_tls(address: SocketAddr, tls: &ClientTls) -> std::io::Result<Self> {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        let stream = tokio_rustls::TlsConnector::from(tls.config()).connect(tls.name(), tcp).await?;
        let is_resumed = stream.get_ref().1.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
        Ok(Self { is_resumed, ..Self::over(Box::new(stream)) })
    }

    /// Takes over a connected stream.
    #[must_use]
    pub fn over(wire: Box<dyn Wire>) -> Self {
        Self { wire, buffer: Vec::new(), exchanges: 0, is_resumed: false }
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.wire.write_all(bytes).await?;
        self.wire.flush().await
    }

    /// Ends the client's direction.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn finish(&mut self) -> std::io::Result<()> {
        self.wire.shutdown().await
    }

    /// The final response head; interim ones are skipped. None when the connection ended before any byte of it.
    ///
    /// # Errors
    /// When the connection ended within it, or it is no legal head.
    pub async fn head(&mut self) -> std::io::Result<Option<Response>> {
        loop {
            let Some(bytes) = self.through(b"\r\n\r\n").await? else { return Ok(None) };
            let head = message::parse_head(&bytes).map_err(std::io::Error::other)?;
            let mut words = head.start.splitn(3, ' ');
            let version = words.next().unwrap_or_default().to_owned();
            let status = words.next().and_then(|word| word.parse().ok());
            let status =
                status.ok_or_else(|| std::io::Error::other(format!("status line {:?}", head.start)))?;
            if status >= 200 || status == 101 {
                return Ok(Some(Response { status, version, fields: head.fields, ..Response::default() }));
            }
        }
    }

    /// The body behind `response`, which also gets its trailers and the body's first bytes.
    ///
    /// # Errors
    /// When the connection ended before the body did.
    pub async fn body(
        &mut self,
        method: &str,
        response: &mut Response,
        reading: Reading,
    ) -> std::io::Result<BodySeen> {
        let mut seen = BodySeen::default();
        let end = message::response_body_end(method, response.status, &response.fields)
            .map_err(std::io::Error::other)?;
        match end {
            BodyEnd::Length(length) => self.counted(length, response, reading, &mut seen).await?,
            BodyEnd::Close => return Err(std::io::Error::other("a body without an end of its own")),
            BodyEnd::Chunked => loop {
                let line = self.line().await?;
                let digits = String::from_utf8_lossy(&line).trim_end().to_owned();
                let size = usize::from_str_radix(&digits, 16).map_err(std::io::Error::other)?;
                if size == 0 {
                    self.trailers(response).await?;
                    break;
                }
                self.counted(size, response, reading, &mut seen).await?;
                if self.line().await? != b"\r\n" {
                    return Err(std::io::Error::other("a chunk without its end"));
                }
            },
        }
        response.complete = true;
        self.exchanges += 1;
        Ok(seen)
    }

    /// Exactly `count` bytes.
    ///
    /// # Errors
    /// When the connection ended before.
    pub async fn take(&mut self, count: usize) -> std::io::Result<Vec<u8>> {
        while self.buffer.len() < count {
            self.more_of_it().await?;
        }
        Ok(self.buffer.drain(..count).collect())
    }

    /// One read; 0 at the end of the connection.
    ///
    /// # Errors
    /// When the connection failed.
    pub async fn more(&mut self) -> std::io::Result<usize> {
        self.buffer.reserve(READ_BYTES);
        self.wire.read_buf(&mut self.buffer).await
    }

    async fn trailers(&mut self, response: &mut Response) -> std::io::Result<()> {
        let mut block = b"trailers\r\n".to_vec();
        loop {
            let line = self.line().await?;
            block.extend_from_slice(&line);
            if line == b"\r\n" {
                response.trailers = message::parse_head(&block).map_err(std::io::Error::other)?.fields;
                return Ok(());
            }
        }
    }

    async fn counted(
        &mut self,
        mut left: usize,
        response: &mut Response,
        reading: Reading,
        seen: &mut BodySeen,
    ) -> std::io::Result<()> {
        loop {
            let piece = &self.buffer[..left.min(self.buffer.len())];
            let taken = piece.len();
            seen.bytes += taken;
            if let Some(byte) = reading.byte {
                seen.odd += piece.iter().filter(|found| **found != byte).count();
            }
            let kept = KEPT_BYTES_MAX.saturating_sub(response.body.len()).min(taken);
            response.body.extend_from_slice(&piece[..kept]);
            self.buffer.drain(..taken);
            left -= taken;
            if left == 0 {
                return Ok(());
            }
            if !reading.gap.is_zero() {
                tokio::time::sleep(reading.gap).await;
            }
            self.more_of_it().await?;
        }
    }

    async fn line(&mut self) -> std::io::Result<Vec<u8>> {
        self.through(b"\r\n").await?.ok_or_else(|| ErrorKind::UnexpectedEof.into())
    }

    async fn more_of_it(&mut self) -> std::io::Result<()> {
        if self.more().await? == 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    /// Bytes through `mark`; None when the connection ended before the first of them.
    async fn through(&mut self, mark: &[u8]) -> std::io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(end) = message::end_of(mark, &self.buffer) {
                return Ok(Some(self.buffer.drain(..end).collect()));
            }
            let is_first = self.buffer.is_empty();
            match self.more().await {
                Ok(0) if is_first => return Ok(None),
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                // A connection that is reset before any byte of an answer has ended, too.
                Err(_) if is_first => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}
