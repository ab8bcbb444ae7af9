//! HTTP transfers that stop half-way until the test lets them go on, and the server that they talk to.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Longest time that one read or write may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of a transfer, and of its first half.
pub const WHOLE_BYTES: usize = 600_000;
const HALF_BYTES: usize = 100_000;

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Download,
    Upload,
}

/// A transfer whose first half is done.
pub struct Transfer {
    stream: BufReader<TcpStream>,
    kind: Kind,
}

/// Answers `GET /BYTES` with that many bytes and `PUT` with what it received. Each connection
/// carries one request. Runs until the listener fails.
pub fn serve(listener: &TcpListener) {
    while let Ok((stream, _)) = listener.accept() {
        std::thread::spawn(move || {
            // A client that goes away ends its own connection only; the client's side of the test counts it.
            if let Err(error) = answer(stream) {
                crate::note(&format!("server: {error}"));
            }
        });
    }
}

fn answer(stream: TcpStream) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let (request, length) = head(&mut stream)?;
    let mut words = request.split(' ');
    if words.next() == Some("PUT") {
        let sum = receive(&mut stream, 0, length)?;
        return write!(
            stream.get_mut(),
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\nx-sum: {sum}\r\n\r\n"
        );
    }
    let bytes = words.next().and_then(|path| path.trim_start_matches('/').parse().ok()).unwrap_or(0);
    write!(stream.get_mut(), "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {bytes}\r\n\r\n")?;
    stream.get_mut().write_all(&pattern(0, bytes))
}

/// The first line of a head and its content-length.
fn head(stream: &mut BufReader<TcpStream>) -> io::Result<(String, usize)> {
    let mut first = String::new();
    stream.read_line(&mut first)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if line == "\r\n" {
            return Ok((first, length));
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
}

fn pattern(from: usize, bytes: usize) -> Vec<u8> {
    (from..from + bytes).map(|index| u8::try_from(index % 251).unwrap_or(0)).collect()
}

/// Reads bytes `from .. to` of the pattern, checks them and says how many there were.
fn receive(stream: &mut BufReader<TcpStream>, from: usize, to: usize) -> io::Result<usize> {
    let mut buffer = vec![0; to - from];
    stream.read_exact(&mut buffer)?;
    if buffer != pattern(from, to - from) {
        return Err(io::Error::other("the bytes are not those that were sent"));
    }
    Ok(buffer.len())
}

impl Transfer {
    /// Connects and does the first half. Call it in the client's namespace.
    ///
    /// # Errors
    ///
    /// What the connection says.
    pub fn start(vip: SocketAddr, kind: Kind) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&vip, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut stream = BufReader::new(stream);
        match kind {
            Kind::Download => {
                write!(stream.get_mut(), "GET /{WHOLE_BYTES} HTTP/1.1\r\nhost: l4\r\n\r\n")?;
                head(&mut stream)?;
                receive(&mut stream, 0, HALF_BYTES)?;
            }
            Kind::Upload => {
                let head = format!("PUT / HTTP/1.1\r\nhost: l4\r\ncontent-length: {WHOLE_BYTES}\r\n\r\n");
                stream.get_mut().write_all(head.as_bytes())?;
                stream.get_mut().write_all(&pattern(0, HALF_BYTES))?;
            }
        }
        Ok(Self { stream, kind })
    }

    /// Does the rest.
    ///
    /// # Errors
    ///
    /// What the connection says: a reset, an end before its time, other bytes.
    pub fn finish(mut self) -> io::Result<()> {
        if self.kind == Kind::Download {
            return receive(&mut self.stream, HALF_BYTES, WHOLE_BYTES).map(drop);
        }
        self.stream.get_mut().write_all(&pattern(HALF_BYTES, WHOLE_BYTES - HALF_BYTES))?;
        let (status, _) = head(&mut self.stream)?;
        if status.starts_with("HTTP/1.1 200") { Ok(()) } else { Err(io::Error::other(status)) }
    }
}

/// How many transfers broke, with what the first one said.
#[derive(Debug, Default)]
pub struct Broken {
    pub count: usize,
    pub first: Option<String>,
}

/// Finishes transfers and counts those that broke.
///
/// # Panics
///
/// When a thread of its own does.
#[must_use]
pub fn finish(transfers: Vec<Transfer>) -> Broken {
    let mut broken = Broken::default();
    // Several at a time: those that wait for a lost connection must not wait one after the other.
    let mut lots: Vec<Vec<Transfer>> = (0..16).map(|_| Vec::new()).collect();
    for (index, transfer) in transfers.into_iter().enumerate() {
        lots[index % 16].push(transfer);
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = lots
            .into_iter()
            .map(|lot| {
                scope.spawn(|| {
                    lot.into_iter().filter_map(|transfer| transfer.finish().err()).collect::<Vec<_>>()
                })
            })
            .collect();
        for thread in threads {
            for error in thread.join().expect("no panic") {
                broken.count += 1;
                broken.first.get_or_insert_with(|| error.to_string());
            }
        }
    });
    broken
}
