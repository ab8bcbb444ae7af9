//! The backend of the soak: HTTP/1.1 and HTTP/2 with prior knowledge on one port, in one thread. It writes one line
//! to its journal when it has read a request's head, before it does anything else, so that the soak knows after a
//! kill what this process had received. Usage: `soak_backend PORT NAME JOURNAL`.
//!
//! The path says what is wanted, `/CLUSTER/WHAT/ID`, and the query how:
//! `echo` answers with the id, the number of body bytes and their sum; `down?bytes=N&pieces=P&gap=MS` sends a body of
//! N bytes in P pieces; `grpc` answers as `echo` and ends with trailers; `tunnel` upgrades and echoes bytes.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tests::message::{self, BodyEnd};
use tests::soak::Ask;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0";

struct Backend {
    name: String,
    journal: std::fs::File,
}

impl Backend {
    fn note(&self, ask: &Ask) -> std::io::Result<()> {
        (&self.journal).write_all(format!("{} {}\n", ask.id, ask.what).as_bytes())
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [port, name, journal] = arguments.as_slice() else {
        tests::note("usage: soak_backend PORT NAME JOURNAL");
        return ExitCode::FAILURE;
    };
    match serve(port, name, journal) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tests::note(&format!("soak_backend {name}: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn serve(port: &str, name: &str, journal: &str) -> std::io::Result<()> {
    let port: u16 = port.parse().map_err(std::io::Error::other)?;
    let journal = std::fs::File::options().create(true).append(true).open(journal)?;
    let backend = Rc::new(Backend { name: name.to_owned(), journal });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port))).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let backend = Rc::clone(&backend);
            tokio::task::spawn_local(async move {
                // A proxy that goes away in the middle is no fault of ours.
                drop(connection(stream, &backend).await);
            });
        }
    })
}

async fn connection(stream: TcpStream, backend: &Rc<Backend>) -> std::io::Result<()> {
    let mut first = [0; H2_PREFACE.len()];
    loop {
        let seen = stream.peek(&mut first).await?;
        if first[..seen] != H2_PREFACE[..seen] {
            return H1 { stream, buffer: Vec::new() }.serve(backend).await;
        }
        if seen == first.len() {
            return h2(stream, backend).await.map_err(std::io::Error::other);
        }
        if seen == 0 {
            return Ok(());
        }
    }
}

/// Bytes of a request body, counted.
#[derive(Default)]
struct Body {
    bytes: u64,
    sum: u64,
}

impl Body {
    fn add(&mut self, piece: &[u8]) {
        self.bytes += u64::try_from(piece.len()).unwrap_or(u64::MAX);
        self.sum += piece.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    }

    fn text(&self, ask: &Ask) -> String {
        format!("{} {} {}\n", ask.id, self.bytes, self.sum)
    }
}

struct H1 {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl H1 {
    async fn serve(mut self, backend: &Backend) -> std::io::Result<()> {
        while let Some(head) = self.through(b"\r\n\r\n").await? {
            let head = message::parse_head(&head).map_err(std::io::Error::other)?;
            let target = head.start.split(' ').nth(1).unwrap_or_default();
            let ask =
                Ask::parse(target).ok_or_else(|| std::io::Error::other(format!("what is {target}?")))?;
            backend.note(&ask)?;
            let mut body = Body::default();
            match message::request_body_end(&head.fields).map_err(std::io::Error::other)? {
                BodyEnd::Length(length) => self.counted(length, &mut body).await?,
                BodyEnd::Chunked => self.chunks(&mut body).await?,
                BodyEnd::Close => return Ok(()),
            }
            let from = format!("x-backend: {}\r\n", backend.name);
            match ask.what.as_str() {
                "tunnel" => {
                    let head = format!(
                        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{from}\r\n"
                    );
                    self.stream.write_all(head.as_bytes()).await?;
                    return self.tunnel().await;
                }
                "down" => self.download(&ask, &from).await?,
                "grpc" => {
                    let text = body.text(&ask);
                    let reply = format!(
                        "HTTP/1.1 200 OK\r\ncontent-type: application/grpc\r\n{from}trailer: grpc-status\r\n\
                         transfer-encoding: chunked\r\n\r\n{:x}\r\n{text}\r\n0\r\ngrpc-status: 0\r\nx-id: {}\r\n\r\n",
                        text.len(),
                        ask.id
                    );
                    self.stream.write_all(reply.as_bytes()).await?;
                }
                _ => {
                    let text = body.text(&ask);
                    let reply =
                        format!("HTTP/1.1 200 OK\r\n{from}content-length: {}\r\n\r\n{text}", text.len());
                    self.stream.write_all(reply.as_bytes()).await?;
                }
            }
        }
        Ok(())
    }

    async fn download(&mut self, ask: &Ask, from: &str) -> std::io::Result<()> {
        let head = format!("HTTP/1.1 200 OK\r\n{from}content-length: {}\r\n\r\n", ask.bytes);
        self.stream.write_all(head.as_bytes()).await?;
        for piece in ask.pieces() {
            self.stream.write_all(&piece).await?;
            tokio::time::sleep(Duration::from_millis(ask.gap_ms)).await;
        }
        Ok(())
    }

    async fn tunnel(&mut self) -> std::io::Result<()> {
        let early = std::mem::take(&mut self.buffer);
        self.stream.write_all(&early).await?;
        let mut block = vec![0; 16 * 1024];
        loop {
            let count = self.stream.read(&mut block).await?;
            if count == 0 {
                return self.stream.shutdown().await;
            }
            self.stream.write_all(&block[..count]).await?;
        }
    }

    async fn chunks(&mut self, body: &mut Body) -> std::io::Result<()> {
        let ended = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        loop {
            let line = self.through(b"\r\n").await?.ok_or_else(ended)?;
            let digits = String::from_utf8_lossy(&line).trim().to_owned();
            let size = usize::from_str_radix(&digits, 16).map_err(std::io::Error::other)?;
            if size == 0 {
                while self.through(b"\r\n").await?.ok_or_else(ended)? != b"\r\n" {}
                return Ok(());
            }
            self.counted(size, body).await?;
            self.counted(2, &mut Body::default()).await?;
        }
    }

    async fn counted(&mut self, mut left: usize, body: &mut Body) -> std::io::Result<()> {
        loop {
            let taken = left.min(self.buffer.len());
            body.add(&self.buffer[..taken]);
            self.buffer.drain(..taken);
            left -= taken;
            if left == 0 {
                return Ok(());
            }
            if self.more().await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    async fn through(&mut self, mark: &[u8]) -> std::io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(end) = message::end_of(mark, &self.buffer) {
                return Ok(Some(self.buffer.drain(..end).collect()));
            }
            if self.more().await? == 0 {
                return Ok(None);
            }
        }
    }

    async fn more(&mut self) -> std::io::Result<usize> {
        self.buffer.reserve(16 * 1024);
        self.stream.read_buf(&mut self.buffer).await
    }
}

async fn h2(stream: TcpStream, backend: &Rc<Backend>) -> Result<(), h2::Error> {
    let mut connection = h2::server::Builder::new()
        .max_concurrent_streams(200)
        .initial_window_size(1 << 20)
        .initial_connection_window_size(1 << 22)
        .handshake::<_, Bytes>(stream)
        .await?;
    while let Some(request) = connection.accept().await {
        let (request, respond) = request?;
        let backend = Rc::clone(backend);
        tokio::task::spawn_local(async move { drop(h2_stream(request, respond, &backend).await) });
    }
    Ok(())
}

async fn h2_stream(
    request: http::Request<h2::RecvStream>,
    mut respond: h2::server::SendResponse<Bytes>,
    backend: &Backend,
) -> Result<(), h2::Error> {
    let (head, mut receive) = request.into_parts();
    let target = head.uri.path_and_query().map(http::uri::PathAndQuery::as_str).unwrap_or_default();
    let Some(ask) = Ask::parse(target) else {
        respond.send_reset(h2::Reason::PROTOCOL_ERROR);
        return Ok(());
    };
    if backend.note(&ask).is_err() {
        respond.send_reset(h2::Reason::INTERNAL_ERROR);
        return Ok(());
    }
    let mut body = Body::default();
    while let Some(piece) = receive.data().await {
        let piece = piece?;
        receive.flow_control().release_capacity(piece.len())?;
        body.add(&piece);
    }
    let response = http::Response::builder().header("x-backend", &backend.name);
    let response = if ask.what == "grpc" {
        response.header("content-type", "application/grpc").body(())
    } else {
        response.body(())
    };
    let mut stream = respond.send_response(response.expect("a legal head"), false)?;
    match ask.what.as_str() {
        "down" => {
            for piece in ask.pieces() {
                tests::h2peer::send_all(&mut stream, &piece, false).await?;
                tokio::time::sleep(Duration::from_millis(ask.gap_ms)).await;
            }
            tests::h2peer::send_all(&mut stream, b"", true).await
        }
        "grpc" => {
            tests::h2peer::send_all(&mut stream, body.text(&ask).as_bytes(), false).await?;
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
            trailers.insert("x-id", http::HeaderValue::from(ask.id));
            stream.send_trailers(trailers)
        }
        _ => tests::h2peer::send_all(&mut stream, body.text(&ask).as_bytes(), true).await,
    }
}
