//! The control socket (unix, this user only) and the metrics address (loopback): HTTP/1.1, one request a connection.
//!
//! Served between other work by the one thread, with short time limits: a question takes at most a few milliseconds,
//! and no packet waits for it. Only what is public is answered on the metrics address.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use crate::question::{Question, Wrong};

const HEAD_BYTES_MAX: usize = 8 * 1024;
/// For the request, and again for the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(1);

/// An answer.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) status: &'static str,
    pub(crate) content_type: &'static str,
    pub(crate) body: String,
}

impl Page {
    pub(crate) fn text(status: &'static str, body: impl Into<String>) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: body.into() }
    }

    pub(crate) fn json(value: &serde_json::Value) -> Self {
        Self { status: "200 OK", content_type: "application/json", body: format!("{value}\n") }
    }
}

/// Who may ask what at a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Everything,
    PublicOnly,
}

/// Answers one client of the control socket, if one waits.
///
/// # Errors
/// What the system says of the listener; a client's faults are its own.
pub(crate) fn serve_control(listener: &UnixListener, answer: impl FnMut(Question) -> Page) -> io::Result<()> {
    let Some(stream) = accepted(listener.accept().map(|(stream, _)| stream))? else { return Ok(()) };
    let limited = |stream: &UnixStream| {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
        stream.set_write_timeout(Some(CLIENT_TIMEOUT))
    };
    if limited(&stream).is_ok() {
        serve(stream, Reach::Everything, answer);
    }
    Ok(())
}

/// Answers one client of the metrics address, if one waits.
///
/// # Errors
/// As [`serve_control`].
pub(crate) fn serve_metrics(listener: &TcpListener, answer: impl FnMut(Question) -> Page) -> io::Result<()> {
    let Some(stream) = accepted(listener.accept().map(|(stream, _)| stream))? else { return Ok(()) };
    let limited = |stream: &TcpStream| {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
        stream.set_write_timeout(Some(CLIENT_TIMEOUT))
    };
    if limited(&stream).is_ok() {
        serve(stream, Reach::PublicOnly, answer);
    }
    Ok(())
}

fn accepted<S>(result: io::Result<S>) -> io::Result<Option<S>> {
    match result {
        Ok(stream) => Ok(Some(stream)),
        // The client has gone before its turn came.
        Err(error)
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn serve(mut stream: impl Read + Write, reach: Reach, answer: impl FnMut(Question) -> Page) {
    let answered = read_line(&mut stream).and_then(|line| {
        let page = page(&line, reach, answer);
        let head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            page.status,
            page.content_type,
            page.body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(page.body.as_bytes())
    });
    // The client's side of a failure is the client's to see.
    match answered {
        Ok(()) | Err(_) => {}
    }
}

fn page(line: &str, reach: Reach, mut answer: impl FnMut(Question) -> Page) -> Page {
    let mut words = line.split_ascii_whitespace();
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    match Question::parse(method, target) {
        Ok(question) if reach == Reach::Everything || question.is_public() => answer(question),
        Ok(_) => Page::text("403 Forbidden", "ask on the control socket\n"),
        Err(Wrong::NotFound) => Page::text("404 Not Found", "no such page\n"),
        Err(Wrong::Method) => Page::text("405 Method Not Allowed", "not with this method\n"),
        Err(Wrong::Query(what)) => Page::text("400 Bad Request", format!("{what}\n")),
    }
}

/// Reads a request head and returns its first line.
fn read_line(stream: &mut impl Read) -> io::Result<String> {
    let until = Instant::now() + CLIENT_TIMEOUT;
    let mut head = Vec::new();
    let mut part = [0; 1024];
    loop {
        let got = stream.read(&mut part)?;
        let Some(bytes) = part.get(..got).filter(|bytes| !bytes.is_empty()) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        head.extend_from_slice(bytes);
        if head.windows(4).any(|end| end == b"\r\n\r\n") {
            let line = head.split(|byte| *byte == b'\r').next().unwrap_or(&[]);
            return Ok(String::from_utf8_lossy(line).into_owned());
        }
        if head.len() > HEAD_BYTES_MAX || Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(line: &str, reach: Reach) -> &'static str {
        page(line, reach, |question| Page::text("200 OK", format!("{question:?}"))).status
    }

    #[test]
    fn the_metrics_address_answers_public_questions_only() {
        for (line, everything, public) in [
            ("GET /metrics HTTP/1.1", "200 OK", "200 OK"),
            ("GET /ready HTTP/1.1", "200 OK", "200 OK"),
            ("GET /show HTTP/1.1", "200 OK", "403 Forbidden"),
            ("POST /drain HTTP/1.1", "200 OK", "403 Forbidden"),
            ("GET /nothing HTTP/1.1", "404 Not Found", "404 Not Found"),
            ("GET /drain HTTP/1.1", "405 Method Not Allowed", "405 Method Not Allowed"),
            ("GET /flows?max=x HTTP/1.1", "400 Bad Request", "400 Bad Request"),
            ("", "404 Not Found", "404 Not Found"),
        ] {
            assert_eq!(status(line, Reach::Everything), everything, "{line}");
            assert_eq!(status(line, Reach::PublicOnly), public, "{line}");
        }
    }

    #[test]
    fn a_client_is_answered_over_a_socket() {
        let (mut client, server) = UnixStream::pair().expect("a pair of sockets");
        client.write_all(b"GET /ready HTTP/1.1\r\nhost: x\r\n\r\n").expect("written");
        serve(server, Reach::Everything, |_| Page::text("200 OK", "ready\n"));
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nready\n"), "{answer}");
    }
}
