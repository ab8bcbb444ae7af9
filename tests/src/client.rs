//! A blocking HTTP/1.1 client at byte level: it sends what it is told, however wrong, and reads what comes.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::SockRef;

use crate::h2raw::{Frame, H2Conn};
use crate::message::{self, BodyEnd, FieldLines, Response};
use crate::tls::ClientTls;
use crate::wait::{PATIENCE, pause};

/// A client connection, plain or TLS.
pub enum Stream {
    Plain(TcpStream),
    Tls(Box<rustls::StreamOwned<rustls::ClientConnection, TcpStream>>),
}

impl Stream {
    /// The socket below.
    #[must_use]
    pub fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) => tcp,
            Self::Tls(tls) => &tls.sock,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.read(into),
            Self::Tls(tls) => tls.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.write(bytes),
            Self::Tls(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::Plain(tcp) => tcp.flush(),
            Self::Tls(tls) => tls.flush(),
        }
    }
}

/// How a connection ended, as the client saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// FIN.
    Closed,
    /// RST.
    Reset,
    /// Neither within the read time limit.
    Open,
}

/// One client connection with the bytes that were read ahead.
pub struct RawClient {
    stream: Stream,
    buffer: Vec<u8>,
    end: Option<End>,
}

impl RawClient {
    /// Connects in clear.
    ///
    /// # Panics
    /// When nobody listens.
    #[must_use]
    #[track_caller]
    pub fn connect(address: SocketAddr) -> Self {
        let tcp = TcpStream::connect(address).unwrap_or_else(|error| panic!("connect to {address}: {error}"));
        Self::over(Stream::Plain(prepared(tcp)))
    }

    /// Connects and shakes hands.
    ///
    /// # Errors
    /// The TLS fault, also when the server refuses the client's certificate or name.
    #[track_caller]
    pub fn connect_tls(address: SocketAddr, tls: &ClientTls) -> std::io::Result<Self> {
        let tcp = TcpStream::connect(address).unwrap_or_else(|error| panic!("connect to {address}: {error}"));
        let mut tcp = prepared(tcp);
        let mut connection = tls.connection();
        while connection.is_handshaking() {
            connection.complete_io(&mut tcp)?;
        }
        Ok(Self::over(Stream::Tls(Box::new(rustls::StreamOwned::new(connection, tcp)))))
    }

    /// Takes over a connected stream.
    #[must_use]
    pub fn over(stream: Stream) -> Self {
        Self { stream, buffer: Vec::new(), end: None }
    }

    /// The stream, for protocols other than HTTP/1; read-ahead bytes are lost.
    #[must_use]
    pub fn into_stream(self) -> Stream {
        self.stream
    }

    /// The TLS session, when there is one.
    #[must_use]
    pub fn tls(&self) -> Option<&rustls::ClientConnection> {
        match &self.stream {
            Stream::Plain(_) => None,
            Stream::Tls(tls) => Some(&tls.conn),
        }
    }

    /// Sends bytes in one write.
    ///
    /// # Panics
    /// When the connection is closed; see [`Self::try_send`].
    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.try_send(bytes).expect("the connection takes bytes");
        self
    }

    /// Sends bytes in one write.
    ///
    /// # Errors
    /// When the peer has closed or reset the connection.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.stream.write_all(bytes.as_ref())?;
        self.stream.flush()
    }

    /// Sends pieces with `gap` between them, so that the peer reads each on its own. Stops quietly when the peer
    /// closes, which is what slow-client tests wait for.
    pub fn send_paced(&mut self, pieces: &[&[u8]], gap: Duration) -> &mut Self {
        for piece in pieces {
            if self.try_send(piece).is_err() {
                break;
            }
            pause(gap);
        }
        self
    }

    /// How long a read may wait from now on.
    pub fn patience(&mut self, limit: Duration) -> &mut Self {
        self.stream.tcp().set_read_timeout(Some(limit)).expect("a positive time limit");
        self
    }

    /// Half-closes: FIN after what was sent.
    pub fn finish_sending(&mut self) -> &mut Self {
        if let Stream::Tls(tls) = &mut self.stream {
            tls.conn.send_close_notify();
            tls.flush().expect("the connection takes bytes");
        }
        self.stream.tcp().shutdown(Shutdown::Write).expect("the connection is open");
        self
    }

    /// Closes with RST.
    pub fn reset(self) {
        SockRef::from(self.stream.tcp()).set_linger(Some(Duration::ZERO)).expect("a TCP socket");
    }

    /// The whole answer to a request with `method`: interim responses, head, body, trailers. What is missing
    /// because the connection ended shows in `complete`.
    ///
    /// # Panics
    /// When not even a head arrives, or when the bytes are no legal HTTP.
    #[track_caller]
    pub fn response(&mut self, method: &str) -> Response {
        self.try_response(method).unwrap_or_else(|error| panic!("no response to {method}: {error}"))
    }

    /// As [`Self::response`].
    ///
    /// # Errors
    /// Says what came instead of a head.
    pub fn try_response(&mut self, method: &str) -> Result<Response, String> {
        let mut interim = Vec::new();
        loop {
            let mut response = self.response_head()?;
            if (100..=199).contains(&response.status) && response.status != 101 {
                interim.push(response);
                continue;
            }
            let end = message::response_body_end(method, response.status, &response.fields)?;
            if response.status == 101 {
                response.complete = true;
            } else {
                self.read_body(end, &mut response)?;
            }
            response.interim = interim;
            return Ok(response);
        }
    }

    /// One response head, interim or final, without its body.
    ///
    /// # Errors
    /// Says what came instead.
    pub fn response_head(&mut self) -> Result<Response, String> {
        let Some(bytes) = self.take_through(b"\r\n\r\n") else {
            let got = String::from_utf8_lossy(&self.buffer);
            return Err(format!("connection {:?} after {got:?}", self.end.unwrap_or(End::Open)));
        };
        let head = message::parse_head(&bytes)?;
        let mut words = head.start.splitn(3, ' ');
        let version = words.next().unwrap_or_default().to_owned();
        let status = words.next().and_then(|word| word.parse().ok());
        let status = status.ok_or_else(|| format!("no status line: {:?}", head.start))?;
        Ok(Response { status, version, fields: head.fields, ..Response::default() })
    }

    fn read_body(&mut self, end: BodyEnd, response: &mut Response) -> Result<(), String> {
        match end {
            BodyEnd::Length(length) => {
                response.complete = self.fill(length);
                let taken = length.min(self.buffer.len());
                response.body = self.buffer.drain(..taken).collect();
            }
            BodyEnd::Close => {
                response.body = self.rest();
                response.complete = self.end == Some(End::Closed);
            }
            BodyEnd::Chunked => self.read_chunks(response)?,
        }
        Ok(())
    }

    /// RFC 9112 §7.1, read strictly.
    fn read_chunks(&mut self, response: &mut Response) -> Result<(), String> {
        loop {
            let Some(line) = self.take_through(b"\r\n") else {
                return Ok(());
            };
            let digits = String::from_utf8_lossy(&line[..line.len() - 2]).into_owned();
            let size = usize::from_str_radix(&digits, 16)
                .map_err(|error| format!("chunk size {digits:?}: {error}"))?;
            if size == 0 {
                return self.read_trailers(response);
            }
            if !self.fill(size + 2) {
                let taken = size.min(self.buffer.len());
                response.body.extend(self.buffer.drain(..taken));
                return Ok(());
            }
            response.body.extend(self.buffer.drain(..size));
            let crlf: Vec<u8> = self.buffer.drain(..2).collect();
            if crlf != b"\r\n" {
                return Err(format!("chunk ends with {crlf:?}"));
            }
        }
    }

    fn read_trailers(&mut self, response: &mut Response) -> Result<(), String> {
        let mut block = b"trailers\r\n".to_vec();
        loop {
            let Some(line) = self.take_through(b"\r\n") else {
                return Ok(());
            };
            block.extend_from_slice(&line);
            if line == b"\r\n" {
                response.trailers = message::parse_head(&block)?.fields;
                response.complete = true;
                return Ok(());
            }
        }
    }

    /// Bytes up to and including `mark`; None when the connection ends or the time is up before.
    pub fn take_through(&mut self, mark: &[u8]) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = message::end_of(mark, &self.buffer) {
                return Some(self.buffer.drain(..end).collect());
            }
            if !self.read_more() {
                return None;
            }
        }
    }

    /// Exactly `count` bytes; None when the connection ends or the time is up before.
    pub fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        self.fill(count).then(|| self.buffer.drain(..count).collect())
    }

    /// All bytes up to the end of the connection (or until nothing comes for the read time limit).
    pub fn rest(&mut self) -> Vec<u8> {
        while self.read_more() {}
        std::mem::take(&mut self.buffer)
    }

    /// What happens to the connection next when nothing more is sent: unread bytes are dropped.
    pub fn ending(&mut self) -> End {
        self.rest();
        self.end.unwrap_or(End::Open)
    }

    /// The server closes the connection, gently or not.
    ///
    /// # Panics
    /// When it stays open.
    #[track_caller]
    pub fn expect_close(&mut self) {
        let end = self.ending();
        assert_ne!(end, End::Open, "the connection should be closed");
    }

    fn fill(&mut self, count: usize) -> bool {
        while self.buffer.len() < count {
            if !self.read_more() {
                return false;
            }
        }
        true
    }

    /// One read into the buffer. False at the end of the connection and when the time is up.
    fn read_more(&mut self) -> bool {
        let mut block = [0; 16 * 1024];
        match self.stream.read(&mut block) {
            Ok(0) => self.end = Some(End::Closed),
            Ok(count) => {
                self.buffer.extend_from_slice(&block[..count]);
                return true;
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => {}
                // rustls says this when the socket closes without close_notify.
                ErrorKind::UnexpectedEof => self.end = Some(End::Closed),
                _ => self.end = Some(End::Reset),
            },
        }
        false
    }
}

fn prepared(tcp: TcpStream) -> TcpStream {
    tcp.set_nodelay(true).expect("a TCP socket");
    tcp.set_read_timeout(Some(PATIENCE)).expect("a positive time limit");
    tcp.set_write_timeout(Some(PATIENCE)).expect("a positive time limit");
    tcp
}

/// One request on a connection of its own; the connection is closed afterwards. With `SHARD_TEST_DOWNSTREAM=h2` in the
/// environment it goes over HTTP/2 where it means the same there.
///
/// # Panics
/// When there is no response.
#[must_use]
#[track_caller]
pub fn once(address: SocketAddr, request: impl AsRef<[u8]>) -> Response {
    let request = request.as_ref();
    if std::env::var_os("SHARD_TEST_DOWNSTREAM").is_some_and(|version| version == "h2")
        && let Some((fields, body)) = as_h2(request)
    {
        let mut client = H2Conn::client(RawClient::connect(address).into_stream(), &[]);
        let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
        client.send(&Frame::headers(1, body.is_empty(), &fields));
        if !body.is_empty() {
            client.send(&Frame::data(1, true, body));
        }
        return client.response(1).unwrap_or_else(|early| panic!("no response over HTTP/2: {early:?}"));
    }
    once_h1(address, request)
}

/// As [`once`], over HTTP/1.1 whatever the environment says.
///
/// # Panics
/// When there is no response.
#[must_use]
#[track_caller]
pub fn once_h1(address: SocketAddr, request: impl AsRef<[u8]>) -> Response {
    let request = request.as_ref();
    let method = request.split(|byte| *byte == b' ').next().unwrap_or_default();
    let method = String::from_utf8_lossy(method).into_owned();
    RawClient::connect(address).send(request).response(&method)
}

/// A plain HTTP/1.1 request, with one host, a short body by length and nothing about its connection but `close`, as HTTP/2
/// has it.
fn as_h2(request: &[u8]) -> Option<(FieldLines, Vec<u8>)> {
    let end = message::end_of(b"\r\n\r\n", request)?;
    let (head, body) = (std::str::from_utf8(request.get(..end)?).ok()?, request.get(end..)?);
    let mut lines = head.trim_end().split("\r\n");
    let [method, target, "HTTP/1.1"] = lines.next()?.split(' ').collect::<Vec<_>>()[..] else { return None };
    // One frame each.
    if !target.starts_with('/') || method == "CONNECT" || request.len() > 16_000 {
        return None;
    }
    let (mut host, mut length, mut fields) = (None, 0, Vec::new());
    for line in lines {
        let (name, value) = line.split_once(':')?;
        let (name, value) = (name.to_ascii_lowercase(), value.trim());
        match &*name {
            "host" if host.is_some() => return None,
            "host" => host = Some(value.to_owned()),
            "connection" if value.eq_ignore_ascii_case("close") => {}
            "content-length" => {
                length = value.parse().ok()?;
                fields.push((name, value.to_owned()));
            }
            "connection" | "transfer-encoding" | "upgrade" | "expect" | "te" | "keep-alive"
            | "proxy-connection" => {
                return None;
            }
            _ => fields.push((name, value.to_owned())),
        }
    }
    let pseudo = [(":method", method), (":scheme", "http"), (":authority", &*host?), (":path", target)];
    let mut all: FieldLines =
        pseudo.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    all.extend(fields);
    (length == body.len()).then(|| (all, body.to_vec()))
}

/// `GET target` for `host`, then the connection is closed.
#[must_use]
#[track_caller]
pub fn get(address: SocketAddr, host: &str, target: &str) -> Response {
    once(address, get_request(host, target))
}

/// As [`get`], over HTTP/1.1 whatever the environment says.
#[must_use]
#[track_caller]
pub fn get_h1(address: SocketAddr, host: &str, target: &str) -> Response {
    once_h1(address, get_request(host, target))
}

fn get_request(host: &str, target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
}
