//! HTTP/2 of the light target: every request is answered when its stream has ended, gRPC with what it sent.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use rustc_hash::FxHashMap;

use super::Server;
use crate::h2::frame::{self, FrameFault, FrameReader, Frames, Head, flag, kind, setting};
use crate::h2::literal;
use crate::link::{Got, Link, Outbox};
use crate::number::count;
use http_wire::h2::hpack::{Decoder, Line};

/// Streams at once that a client may open.
const STREAMS_MAX: u32 = 1024;
const OUT_BYTES_MAX: usize = 1 << 20;
/// Bytes of a request that are echoed at most.
const ECHO_BYTES_MAX: usize = 4 << 20;
/// Given back to the client when half of it is used up.
const WINDOW: u32 = 16 << 20;
/// `:status: 200`, an entry of the static table.
const STATUS_200: u8 = 0x88;

/// One connection.
pub(super) struct H2 {
    link: Link,
    out: Outbox,
    reader: FrameReader,
    state: State,
    /// Of the client's preface, how much is still to come.
    preface_left: usize,
}

struct State {
    server: Rc<Server>,
    decoder: Decoder,
    streams: FxHashMap<u32, Stream>,
    /// Streams with bytes to send.
    ready: Vec<u32>,
    window: i64,
    initial_window: i64,
    unreported: usize,
    replies: Vec<u8>,
    is_over: bool,
}

#[derive(Default)]
struct Stream {
    size: usize,
    window: i64,
    /// What a gRPC request sent.
    echo: Option<Vec<u8>>,
    sent: usize,
}

impl H2 {
    /// `preface_left` bytes of the preface have not been read.
    pub(super) fn new(server: Rc<Server>, link: Link, preface_left: usize) -> Self {
        let mut out = Outbox::default();
        let settings =
            [(setting::MAX_CONCURRENT_STREAMS, STREAMS_MAX), (setting::INITIAL_WINDOW_SIZE, WINDOW)];
        frame::put_settings(&settings, &mut out.bytes);
        frame::put_window_update(0, WINDOW, &mut out.bytes);
        let state = State {
            server,
            decoder: Decoder::new(),
            streams: FxHashMap::default(),
            ready: Vec::new(),
            window: frame::WINDOW_BYTES,
            initial_window: frame::WINDOW_BYTES,
            unreported: 0,
            replies: Vec::new(),
            is_over: false,
        };
        Self { link, out, reader: FrameReader::default(), state, preface_left }
    }

    /// Takes bytes that were read before this connection was known to speak HTTP/2.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<(), FrameFault> {
        let skip = self.preface_left.min(bytes.len());
        self.preface_left -= skip;
        self.reader.feed(bytes.get(skip..).unwrap_or(&[]), &mut self.state)
    }

    pub(super) async fn run(mut self) {
        poll_fn(|cx| self.poll(cx)).await;
    }

    fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        let Self { link, reader, state, preface_left, .. } = self;
        let early = link.take_decrypted(|bytes| feed(reader, state, preface_left, bytes));
        if early.is_some_and(|fed| fed.is_err()) {
            return Poll::Ready(());
        }
        loop {
            self.out.bytes.append(&mut self.state.replies);
            self.state.send(&mut self.out);
            let is_full = self.out.len() >= OUT_BYTES_MAX;
            match self.link.poll_write(cx, &mut self.out) {
                Poll::Ready(Err(_gone)) => return Poll::Ready(()),
                // The outbox was the limit, and has room again.
                Poll::Ready(Ok(())) if is_full => continue,
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
            if self.state.is_over && self.state.streams.is_empty() {
                return Poll::Ready(());
            }
            let server = Rc::clone(&self.state.server);
            let mut buffer = server.buffer.borrow_mut();
            let Self { link, reader, state, preface_left, .. } = self;
            match ready!(link.poll_read(cx, &mut buffer, |bytes| feed(reader, state, preface_left, bytes))) {
                Ok(Got::Bytes(Ok(()))) => {}
                Ok(Got::Bytes(Err(_)) | Got::End) | Err(_) => return Poll::Ready(()),
            }
        }
    }
}

fn feed(
    reader: &mut FrameReader,
    state: &mut State,
    preface_left: &mut usize,
    bytes: &[u8],
) -> Result<(), FrameFault> {
    let skip = (*preface_left).min(bytes.len());
    *preface_left -= skip;
    reader.feed(bytes.get(skip..).unwrap_or(&[]), state)
}

impl State {
    /// The request of a stream is complete.
    fn answer(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let mut block = vec![STATUS_200];
        if stream.echo.is_some() {
            literal(0, 4, "content-type", b"application/grpc", &mut block);
        } else {
            literal(0, 4, "content-length", stream.size.to_string().as_bytes(), &mut block);
        }
        let is_end = stream.echo.is_none() && stream.size == 0;
        frame::put_headers(id, is_end, &block, &mut self.replies);
        if is_end {
            self.streams.remove(&id);
        } else {
            self.ready.push(id);
        }
    }

    /// Sends bodies as far as the windows and the outbox allow.
    fn send(&mut self, out: &mut Outbox) {
        let mut at = 0;
        while let Some(id) = self.ready.get(at).copied() {
            let Some(stream) = self.streams.get_mut(&id) else {
                self.ready.swap_remove(at);
                continue;
            };
            let size = stream.echo.as_ref().map_or(stream.size, Vec::len);
            while stream.sent < size && out.len() < OUT_BYTES_MAX {
                let allowed = usize::try_from(stream.window.min(self.window)).unwrap_or(0);
                let part = (size - stream.sent).min(frame::FRAME_BYTES).min(allowed);
                if part == 0 {
                    break;
                }
                let is_end = stream.echo.is_none() && stream.sent + part == size;
                let end = if is_end { flag::END_STREAM } else { 0 };
                frame::put_head(kind::DATA, end, id, part, &mut out.bytes);
                match &stream.echo {
                    Some(echo) => {
                        out.bytes.extend_from_slice(echo.get(stream.sent..stream.sent + part).unwrap_or(&[]));
                    }
                    None => out.bytes.resize(out.bytes.len() + part, b'x'),
                }
                stream.sent += part;
                let moved = i64::try_from(part).unwrap_or(i64::MAX);
                stream.window -= moved;
                self.window -= moved;
            }
            if stream.sent < size {
                at += 1;
                continue;
            }
            if stream.echo.is_some() {
                let mut block = Vec::new();
                literal(0, 4, "grpc-status", b"0", &mut block);
                frame::put_headers(id, true, &block, &mut out.bytes);
            }
            self.ready.swap_remove(at);
            self.streams.remove(&id);
        }
    }
}

impl Frames for State {
    fn data(&mut self, stream: u32, part: &[u8], flow_bytes: usize, is_end: bool) -> Result<(), FrameFault> {
        self.unreported += flow_bytes;
        if count(self.unreported) > u64::from(WINDOW / 2) {
            let bytes = u32::try_from(std::mem::take(&mut self.unreported)).unwrap_or(WINDOW);
            frame::put_window_update(0, bytes, &mut self.replies);
        }
        if flow_bytes > 0 && !is_end {
            frame::put_window_update(stream, u32::try_from(flow_bytes).unwrap_or(WINDOW), &mut self.replies);
        }
        if let Some(Stream { echo: Some(echo), .. }) = self.streams.get_mut(&stream) {
            if echo.len() + part.len() > ECHO_BYTES_MAX {
                return Err(FrameFault("a request that is too long to be echoed"));
            }
            echo.extend_from_slice(part);
        }
        if is_end {
            self.answer(stream);
        }
        Ok(())
    }

    fn headers(&mut self, stream: u32, block: &[u8], is_end: bool) -> Result<(), FrameFault> {
        let server = Rc::clone(&self.server);
        let (mut size, mut is_grpc) = (None, false);
        let field = |line: Line<'_>| match line.name() {
            b":path" => size = Some(server.size_of(line.value())),
            b"content-type" => is_grpc = line.value().starts_with(b"application/grpc"),
            _ => {}
        };
        self.decoder.decode(block, field).map_err(|_hpack| FrameFault("fields that HPACK cannot decode"))?;
        if let Some(size) = size {
            let echo = is_grpc.then(Vec::new);
            self.streams.insert(stream, Stream { size, window: self.initial_window, echo, sent: 0 });
        }
        if is_end {
            self.answer(stream);
        }
        Ok(())
    }

    fn control(&mut self, head: Head, payload: &[u8]) -> Result<(), FrameFault> {
        match head.kind {
            kind::SETTINGS if !head.has(flag::ACK) => {
                for (id, value) in frame::settings(payload) {
                    if id == setting::INITIAL_WINDOW_SIZE {
                        let change = i64::from(value) - self.initial_window;
                        self.initial_window += change;
                        self.streams.values_mut().for_each(|stream| stream.window += change);
                    }
                }
                frame::put_settings_ack(&mut self.replies);
            }
            kind::PING if !head.has(flag::ACK) => frame::put_ping_ack(payload, &mut self.replies),
            kind::WINDOW_UPDATE => {
                let increment = i64::from(frame::number(payload) & 0x7fff_ffff);
                match self.streams.get_mut(&head.stream) {
                    _ if head.stream == 0 => self.window += increment,
                    Some(stream) => stream.window += increment,
                    None => {}
                }
            }
            kind::RST_STREAM => drop(self.streams.remove(&head.stream)),
            kind::GOAWAY => self.is_over = true,
            _ => {}
        }
        Ok(())
    }
}
