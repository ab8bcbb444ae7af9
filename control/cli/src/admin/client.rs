//! One blocking HTTP/1.1 request without a body over a unix socket or loopback TCP, bounded in bytes and time.
//!
//! Invariants: one request per connection (`Connection: close`); the deadline covers connect, send and the whole
//! answer; head, header count and body have fixed bounds; an answer cut short is an error, never a short success.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Bytes of a response head.
const HEAD_BYTES_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 64;
const READ_BYTES: usize = 64 * 1024;
/// A chunk-size line: 16 hex digits, an extension, CR LF (RFC 9112 §7.1).
const SIZE_LINE_BYTES_MAX: usize = 256;

/// Where the admin listener is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AdminAddress {
    Socket(PathBuf),
    Loopback(SocketAddr),
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Loopback(address) => address.fmt(f),
        }
    }
}

/// What an exchange may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// From connect to the last byte.
    pub(crate) timeout: Duration,
    pub(crate) body_bytes_max: usize,
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum ClientError {
    /// Nobody listens, or the socket's permissions forbid it.
    Connect(io::Error),
    /// The deadline passed.
    Timeout,
    /// The connection broke.
    Transfer(io::Error),
    /// The answer is no HTTP/1.1, or is cut short.
    Malformed(&'static str),
    /// The head or the body is over its bound.
    TooLarge(&'static str),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => {
                write!(f, "cannot connect: {error}; is the daemon running, and is this its address?")
            }
            Self::Timeout => f.write_str("no whole answer in time"),
            Self::Transfer(error) => write!(f, "the connection broke: {error}"),
            Self::Malformed(what) => write!(f, "not an answer of an admin listener: {what}"),
            Self::TooLarge(what) => write!(f, "{what} is too large"),
        }
    }
}

/// Sends a request (GET, or POST without a body) for `path` and reads the whole answer.
///
/// # Errors
/// `ClientError`; no partial answer is handed out.
pub(crate) fn ask(
    address: &AdminAddress,
    method: &str,
    path: &str,
    bounds: Bounds,
) -> Result<Reply, ClientError> {
    let deadline = Instant::now() + bounds.timeout;
    let mut stream = Stream::connect(address, bounds.timeout)?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nuser-agent: shardctl\r\nconnection: close\r\n\r\n"
    );
    stream.limit(deadline)?;
    stream.write_all(request.as_bytes()).map_err(transfer)?;
    let mut reader = Reader { stream, deadline, bytes: Vec::new() };
    loop {
        let head = reader.head()?;
        // Interim answers precede the final one (RFC 9110 §15.2).
        if !(100..200).contains(&head.status) {
            let body = reader.body(&head, bounds.body_bytes_max)?;
            return Ok(Reply { status: head.status, body });
        }
    }
}

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    fn connect(address: &AdminAddress, timeout: Duration) -> Result<Self, ClientError> {
        match address {
            AdminAddress::Socket(path) => {
                UnixStream::connect(path).map(Self::Unix).map_err(ClientError::Connect)
            }
            AdminAddress::Loopback(address) => {
                TcpStream::connect_timeout(address, timeout).map(Self::Tcp).map_err(ClientError::Connect)
            }
        }
    }

    /// Lets no single call outlive the deadline.
    fn limit(&self, deadline: Instant) -> Result<(), ClientError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ClientError::Timeout);
        }
        let set = match self {
            Self::Unix(s) => s.set_read_timeout(Some(left)).and_then(|()| s.set_write_timeout(Some(left))),
            Self::Tcp(s) => s.set_read_timeout(Some(left)).and_then(|()| s.set_write_timeout(Some(left))),
        };
        set.map_err(ClientError::Transfer)
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Unix(s) => s.write_all(bytes),
            Self::Tcp(s) => s.write_all(bytes),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(s) => s.read(bytes),
            Self::Tcp(s) => s.read(bytes),
        }
    }
}

fn transfer(error: io::Error) -> ClientError {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => ClientError::Timeout,
        _ => ClientError::Transfer(error),
    }
}

/// How the body of the answer ends (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Exact(usize),
    Chunked,
    UntilClose,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    status: u16,
    framing: Framing,
}

/// Bytes that came and are not yet used.
struct Reader {
    stream: Stream,
    deadline: Instant,
    bytes: Vec<u8>,
}

impl Reader {
    /// Reads once; false at the end of the stream.
    fn fill(&mut self) -> Result<bool, ClientError> {
        self.stream.limit(self.deadline)?;
        let used = self.bytes.len();
        self.bytes.resize(used + READ_BYTES, 0);
        let read = loop {
            match self.stream.read(self.bytes.get_mut(used..).unwrap_or_default()) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.bytes.truncate(used + read.as_ref().copied().unwrap_or(0));
        Ok(read.map_err(transfer)? > 0)
    }

    fn head(&mut self) -> Result<Head, ClientError> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
            let mut response = httparse::Response::new(&mut headers);
            match response.parse(&self.bytes) {
                Ok(httparse::Status::Complete(length)) => {
                    let status = response.code.ok_or(ClientError::Malformed("no status"))?;
                    let framing = framing(status, response.headers)?;
                    self.bytes.drain(..length);
                    return Ok(Head { status, framing });
                }
                Ok(httparse::Status::Partial) if self.bytes.len() >= HEAD_BYTES_MAX => {
                    return Err(ClientError::TooLarge("the head"));
                }
                Ok(httparse::Status::Partial) => {
                    if !self.fill()? {
                        return Err(ClientError::Malformed("it ended inside the head"));
                    }
                }
                Err(httparse::Error::TooManyHeaders) => {
                    return Err(ClientError::TooLarge("the head"));
                }
                Err(_) => return Err(ClientError::Malformed("the head is no HTTP/1.1")),
            }
        }
    }

    fn body(mut self, head: &Head, bytes_max: usize) -> Result<Vec<u8>, ClientError> {
        const CUT: ClientError = ClientError::Malformed("it ended inside the body");
        match head.framing {
            Framing::Exact(length) if length > bytes_max => Err(ClientError::TooLarge("the body")),
            Framing::Exact(length) => {
                while self.bytes.len() < length {
                    if !self.fill()? {
                        return Err(CUT);
                    }
                }
                self.bytes.truncate(length);
                Ok(self.bytes)
            }
            Framing::UntilClose => {
                while self.bytes.len() <= bytes_max {
                    if !self.fill()? {
                        return Ok(self.bytes);
                    }
                }
                Err(ClientError::TooLarge("the body"))
            }
            Framing::Chunked => {
                let mut body = Vec::new();
                loop {
                    let size = self.chunk_size()?;
                    // The trailer section that may follow the last chunk is of no interest, the connection closes.
                    if size == 0 {
                        return Ok(body);
                    }
                    if size > bytes_max - body.len() {
                        return Err(ClientError::TooLarge("the body"));
                    }
                    while self.bytes.len() < size + 2 {
                        if !self.fill()? {
                            return Err(CUT);
                        }
                    }
                    body.extend(self.bytes.drain(..size));
                    if self.bytes.drain(..2).ne(*b"\r\n") {
                        return Err(ClientError::Malformed("a chunk without its end"));
                    }
                }
            }
        }
    }

    fn chunk_size(&mut self) -> Result<usize, ClientError> {
        loop {
            match httparse::parse_chunk_size(&self.bytes) {
                Ok(httparse::Status::Complete((used, size))) => {
                    self.bytes.drain(..used);
                    return usize::try_from(size).or(Err(ClientError::TooLarge("a chunk")));
                }
                Ok(httparse::Status::Partial) if self.bytes.len() > SIZE_LINE_BYTES_MAX => {
                    return Err(ClientError::Malformed("an endless chunk size"));
                }
                Ok(httparse::Status::Partial) => {
                    if !self.fill()? {
                        return Err(ClientError::Malformed("it ended before the last chunk"));
                    }
                }
                Err(_) => return Err(ClientError::Malformed("a bad chunk size")),
            }
        }
    }
}

/// The framing of an answer to GET; both length fields together, or two lengths, are refused (RFC 9112 §6.1).
fn framing(status: u16, headers: &[httparse::Header<'_>]) -> Result<Framing, ClientError> {
    let values = |name: &str| -> Vec<&[u8]> {
        headers.iter().filter(|h| h.name.eq_ignore_ascii_case(name)).map(|h| h.value).collect()
    };
    let (lengths, codings) = (values("content-length"), values("transfer-encoding"));
    if (100..200).contains(&status) || status == 204 || status == 304 {
        return Ok(Framing::Exact(0));
    }
    match (lengths.as_slice(), codings.as_slice()) {
        ([], []) => Ok(Framing::UntilClose),
        ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") => Ok(Framing::Chunked),
        ([length], []) => {
            let digits = std::str::from_utf8(length).ok().filter(|l| l.bytes().all(|b| b.is_ascii_digit()));
            let length = digits.and_then(|l| l.parse().ok());
            length.map(Framing::Exact).ok_or(ClientError::Malformed("a bad content-length"))
        }
        _ => Err(ClientError::Malformed("its length can be read two ways")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;
    use std::time::Duration;

    use super::{AdminAddress, Bounds, ClientError, Reply, ask};

    const BOUNDS: Bounds = Bounds { timeout: Duration::from_secs(10), body_bytes_max: 64 };

    /// One exchange with a server that sends `pieces`, then closes.
    fn exchange(pieces: &[&[u8]], bounds: Bounds) -> (Result<Reply, ClientError>, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = AdminAddress::Loopback(listener.local_addr().expect("a bound address"));
        thread::scope(|scope| {
            let server = scope.spawn(move || {
                let (mut stream, _) = listener.accept().expect("the client");
                let mut request = Vec::new();
                let mut byte = [0];
                while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n == 1) {
                    request.push(byte[0]);
                }
                for piece in pieces {
                    // The client may have turned away from a bad answer already.
                    if stream.write_all(piece).is_err() {
                        break;
                    }
                }
                request
            });
            let reply = ask(&address, "GET", "/metrics", bounds);
            (reply, server.join().expect("the server"))
        })
    }

    #[test]
    fn every_framing_yields_the_same_answer() {
        let answers: [&[&[u8]]; 5] = [
            &[b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"],
            &[b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n"],
            &[b"HTTP/1.1 200 OK\r\n\r\nhello"],
            &[b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"],
            &[b"HT", b"TP/1.1 200 OK\r\ncontent-", b"length: 5\r\n\r", b"\nhel", b"lo"],
        ];
        for pieces in answers {
            let (reply, request) = exchange(pieces, BOUNDS);
            assert_eq!(reply.expect("an answer"), Reply { status: 200, body: b"hello".to_vec() });
            assert!(request.starts_with(b"GET /metrics HTTP/1.1\r\nhost: "), "{request:?}");
        }
    }

    #[test]
    fn an_answer_cut_short_or_framed_two_ways_is_refused() {
        let answers: [&[u8]; 9] = [
            b"",
            b"HTTP/1.1 200 OK\r\ncontent-le",
            b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\nhello",
            b"SSH-2.0-OpenSSH\r\n",
        ];
        for answer in answers {
            let (reply, _) = exchange(&[answer], BOUNDS);
            assert!(
                matches!(reply, Err(ClientError::Malformed(_))),
                "{reply:?} to {:?}",
                String::from_utf8_lossy(answer)
            );
        }
    }

    #[test]
    fn heads_and_bodies_over_their_bounds_are_refused() {
        let body = "x".repeat(65);
        let answers = [
            format!("HTTP/1.1 200 OK\r\ncontent-length: 65\r\n\r\n{body}"),
            format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n41\r\n{body}\r\n0\r\n\r\n"),
            format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n{body}"),
            format!("HTTP/1.1 200 OK\r\n\r\n{body}"),
            format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(200_000)),
        ];
        for answer in &answers {
            let (reply, _) = exchange(&[answer.as_bytes()], BOUNDS);
            assert!(matches!(reply, Err(ClientError::TooLarge(_))), "{reply:?}");
        }
    }

    #[test]
    fn nobody_listening_is_told_from_a_silent_daemon() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = AdminAddress::Loopback(listener.local_addr().expect("a bound address"));
        let short = Bounds { timeout: Duration::from_millis(50), ..BOUNDS };
        assert!(
            matches!(ask(&address, "GET", "/ready", short), Err(ClientError::Timeout)),
            "the kernel accepts, nobody answers"
        );
        drop(listener);
        assert!(matches!(ask(&address, "GET", "/ready", BOUNDS), Err(ClientError::Connect(_))));
        let absent = AdminAddress::Socket("/nonexistent/admin.sock".into());
        assert!(matches!(ask(&absent, "GET", "/ready", BOUNDS), Err(ClientError::Connect(_))));
    }
}
