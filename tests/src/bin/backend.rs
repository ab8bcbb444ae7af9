//! A small HTTP/1.1 backend for demos and tests: answers every request with its own id and counts what it
//! served. Usage: `backend PORT ID`. `GET /count` says the number of requests so far; `GET /bytes/N` sends N bytes;
//! after `GET /delay/N` answers take N milliseconds. Of the standard library alone: `demo` and the suites compile this file
//! by itself.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Largest body of `GET /bytes/N`.
const BODY_BYTES_MAX: usize = 64 << 20;

#[derive(Default)]
struct Backend {
    id: String,
    served: AtomicU64,
    delay_ms: AtomicU64,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [port, id] = arguments.as_slice() else {
        return failed("usage: backend PORT ID");
    };
    let listener = match port
        .parse()
        .map_err(std::io::Error::other)
        .and_then(|port: u16| TcpListener::bind(("127.0.0.1", port)))
    {
        Ok(listener) => listener,
        Err(error) => return failed(&format!("port {port}: {error}")),
    };
    let backend = Arc::new(Backend { id: id.clone(), ..Backend::default() });
    for stream in listener.incoming().filter_map(Result::ok) {
        let backend = Arc::clone(&backend);
        std::thread::spawn(move || {
            // A client that goes away in the middle is no fault of ours.
            drop(serve(&stream, &backend));
        });
    }
    ExitCode::SUCCESS
}

fn failed(text: &str) -> ExitCode {
    // Nothing is left to say it with when standard error is closed.
    drop(writeln!(std::io::stderr(), "backend: {text}"));
    ExitCode::FAILURE
}

/// Serves one connection until either side has enough.
fn serve(stream: &TcpStream, backend: &Backend) -> std::io::Result<()> {
    let id = &backend.id;
    stream.set_nodelay(true)?;
    let mut writer = stream;
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let target = line.split(' ').nth(1).unwrap_or("/").to_owned();
        let (length, close) = skip_fields(&mut reader)?;
        match length {
            Length::Bytes(count) => skip(&mut reader, count)?,
            Length::Chunked => skip_chunks(&mut reader)?,
        }
        let body = if target == "/count" {
            format!("{}\n", backend.served.load(Ordering::Relaxed)).into_bytes()
        } else if let Some(delay_ms) = target.strip_prefix("/delay/").and_then(|text| text.parse().ok()) {
            backend.delay_ms.store(delay_ms, Ordering::Relaxed);
            Vec::new()
        } else {
            backend.served.fetch_add(1, Ordering::Relaxed);
            let delay = Duration::from_millis(backend.delay_ms.load(Ordering::Relaxed));
            let end = Instant::now() + delay;
            while let Some(rest) = end.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero()) {
                std::thread::park_timeout(rest);
            }
            body(&target, id)
        };
        let end = if close { "Connection: close\r\n" } else { "" };
        let mut reply =
            format!("HTTP/1.1 200 OK\r\nX-Backend: {id}\r\n{end}Content-Length: {}\r\n\r\n", body.len())
                .into_bytes();
        reply.extend_from_slice(&body);
        writer.write_all(&reply)?;
        if close {
            return Ok(());
        }
    }
}

enum Length {
    Bytes(u64),
    Chunked,
}

/// Reads the field lines of a request: its body length and whether it is the last one.
fn skip_fields(reader: &mut impl BufRead) -> std::io::Result<(Length, bool)> {
    let (mut length, mut close) = (Length::Bytes(0), false);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim_end().is_empty() {
            return Ok((length, close));
        }
        let lower = line.trim_end().to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = Length::Bytes(value.trim().parse().unwrap_or(0));
        } else if lower == "transfer-encoding: chunked" {
            length = Length::Chunked;
        }
        close |= lower == "connection: close";
    }
}

fn skip(reader: &mut impl Read, count: u64) -> std::io::Result<()> {
    match std::io::copy(&mut reader.take(count), &mut std::io::sink())? {
        read if read == count => Ok(()),
        _ => Err(std::io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Reads a chunked body and its trailers (RFC 9112 §7.1).
fn skip_chunks(reader: &mut impl BufRead) -> std::io::Result<()> {
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let size = line.split(';').next().unwrap_or_default().trim_end();
        match u64::from_str_radix(size, 16).map_err(std::io::Error::other)? {
            0 => return skip_fields(reader).map(drop),
            size => skip(reader, size + 2)?,
        }
    }
}

fn body(target: &str, id: &str) -> Vec<u8> {
    match target.strip_prefix("/bytes/").and_then(|count| count.parse::<usize>().ok()) {
        Some(count) => vec![b'.'; count.min(BODY_BYTES_MAX)],
        None => format!("backend {id} answers {target}\n").into_bytes(),
    }
}
