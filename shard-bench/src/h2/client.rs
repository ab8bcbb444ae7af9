//! One HTTP/2 connection of the generator.
//!
//! ```text
//!  fill (desk ─► HEADERS, DATA) ─► flush, once for all streams ─► read ─► FrameReader ─► Core::done ─► fill …
//! ```
//! Requests are sent before the peer's SETTINGS have come, as RFC 9113 §3.4 allows; until then at most 100 at once.
//! Windows for what the peer sends are 1 GiB, so that it is the target's pace that is measured.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_wire::h2::hpack::{Decoder, Line};
use rustc_hash::FxHashMap;

use super::encode::{Encoder, Fields};
use super::frame::{self, FrameFault, FrameReader, Frames, Head, flag, kind, setting};
use super::stream::{Stream, decimal};
use crate::core::{Core, End, Flight};
use crate::h1::read_fault;
use crate::link::{Got, Link, Outbox};
use crate::number::length;
use crate::pace::Throttle;
use crate::plan::Protocol;
use crate::tally::Fault;

const WINDOW: u32 = 1 << 30;
/// Streams at once before the peer has told its limit (RFC 9113 §6.5.2 asks for no less than 100).
const STREAMS_BEFORE_SETTINGS: usize = 100;
/// Identifiers are used up to here; then the connection is replaced.
const STREAM_ID_MAX: u32 = (1 << 31) - 3;
/// Bytes that wait for the socket before more bodies are put behind them.
const OUT_BYTES_MAX: usize = 1 << 20;
const CANCEL: u32 = 8;

/// A connection that speaks HTTP/2.
pub(crate) struct H2 {
    slot: usize,
    link: Link,
    out: Outbox,
    reader: FrameReader,
    throttle: Throttle,
    swept: u64,
    /// Not yet found by a sweep with nothing in flight.
    is_lingering: bool,
    state: State,
}

/// What frames change.
struct State {
    core: Rc<Core>,
    fields: Rc<Fields>,
    encoder: Encoder,
    decoder: Decoder,
    streams: FxHashMap<u32, Stream>,
    next_id: u32,
    streams_max: usize,
    /// Streams whose bodies are not sent yet.
    unsent: Vec<u32>,
    window: i64,
    initial_window: i64,
    frame_bytes: usize,
    unreported: usize,
    is_closing: bool,
    /// The peer's first SETTINGS have come.
    is_settled: bool,
    /// Frames that answer frames.
    replies: Vec<u8>,
    /// The last answer's block, its status, and the table's changes then: the same bytes mean the same.
    memo: Vec<u8>,
    memo_status: u16,
    memo_changes: u64,
    now: Duration,
    is_grpc: bool,
    scratch: Vec<u8>,
}

impl H2 {
    /// Over a link that is ready; `first` is a request that it was opened for.
    pub(crate) fn new(
        core: Rc<Core>,
        fields: Rc<Fields>,
        slot: usize,
        link: Link,
        first: Option<Flight>,
    ) -> Self {
        let throttle = Throttle::new(core.plan.read_rate, core.plan.send_rate);
        let mut out = Outbox::default();
        out.bytes.extend_from_slice(frame::PREFACE);
        let settings = [(setting::ENABLE_PUSH, 0), (setting::INITIAL_WINDOW_SIZE, WINDOW)];
        frame::put_settings(&settings, &mut out.bytes);
        let increment = WINDOW - u32::try_from(frame::WINDOW_BYTES).unwrap_or(0);
        frame::put_window_update(0, increment, &mut out.bytes);
        let encoder = Encoder::new(&fields);
        let is_grpc = matches!(core.plan.protocol, Protocol::Grpc { .. });
        let streams_max = core.plan.depth.min(STREAMS_BEFORE_SETTINGS);
        let state = State {
            core,
            fields,
            encoder,
            decoder: Decoder::new(),
            streams: FxHashMap::default(),
            next_id: 1,
            streams_max,
            unsent: Vec::new(),
            window: frame::WINDOW_BYTES,
            initial_window: frame::WINDOW_BYTES,
            frame_bytes: frame::FRAME_BYTES,
            unreported: 0,
            is_closing: false,
            is_settled: false,
            replies: Vec::new(),
            memo: Vec::new(),
            memo_status: 0,
            memo_changes: 0,
            now: Duration::ZERO,
            is_grpc,
            scratch: Vec::new(),
        };
        let mut this = Self {
            slot,
            link,
            out,
            reader: FrameReader::default(),
            throttle,
            swept: 0,
            is_lingering: true,
            state,
        };
        if let Some(flight) = first {
            let now = this.state.core.now();
            this.state.open(flight, now, &mut this.out.bytes);
            this.state.is_closing = this.state.core.plan.is_fresh;
        }
        this
    }

    /// Runs until the connection or the run is over.
    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        match self.poll_io(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(end) => {
                let flights: Vec<Flight> =
                    self.state.streams.drain().map(|(_, stream)| stream.flight).collect();
                self.state.core.close(&mut self.link, flights.into_iter(), end);
                Poll::Ready(())
            }
        }
    }

    fn poll_io(&mut self, cx: &Context<'_>) -> Poll<End> {
        let core = Rc::clone(&self.state.core);
        loop {
            if core.is_swept(&mut self.swept) {
                core.moved(&mut self.link);
                if let Some(end) = self.look_for_the_end() {
                    return Poll::Ready(end);
                }
                self.is_lingering &= !self.state.streams.is_empty();
            }
            if self.link.is_opening() {
                // Bodies are part of what may leave early.
                self.state.send_bodies(&mut self.out.bytes);
                if let Err(end) = ready!(self.link.poll_open(cx, &core, &mut self.out)) {
                    return Poll::Ready(end);
                }
            }
            // What came with the handshake's last bytes was read already.
            let Self { link, state, reader, .. } = self;
            let decrypted = link.take_decrypted(|bytes| {
                state.now = core.now();
                reader.feed(bytes, state)
            });
            if let Some(Err(FrameFault(why))) = decrypted {
                return Poll::Ready(Err((Fault::Protocol, why.to_owned())));
            }
            let state = &mut self.state;
            if state.streams.len() < state.streams_max && !state.is_closing {
                let now = core.now();
                while state.streams.len() < state.streams_max
                    && !state.is_closing
                    && let Some(flight) = core.take(self.slot, now)
                {
                    state.open(flight, now, &mut self.out.bytes);
                }
            }
            if self.is_spent() {
                return Poll::Ready(Ok(()));
            }
            let state = &mut self.state;
            self.out.bytes.append(&mut state.replies);
            if !state.unsent.is_empty() && self.out.len() < OUT_BYTES_MAX {
                state.send_bodies(&mut self.out.bytes);
            }
            let is_full = self.out.len() >= OUT_BYTES_MAX;
            match self.throttle.write(cx, &mut self.link, &mut self.out) {
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err((Fault::Reset, format!("writing: {error}"))));
                }
                // The outbox was the limit, and has room again.
                Poll::Ready(Ok(())) if is_full => continue,
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
            match self.poll_read(cx) {
                Poll::Pending if self.is_spent() => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(end)) => return Poll::Ready(end),
            }
        }
    }

    /// Whether nothing more is to come; a ticket is waited for until the next sweep.
    fn is_spent(&self) -> bool {
        let State { is_closing, streams, .. } = &self.state;
        *is_closing && streams.is_empty() && !(self.is_lingering && self.link.awaits_ticket())
    }

    fn poll_read(&mut self, cx: &Context<'_>) -> Poll<Result<(), End>> {
        let core = Rc::clone(&self.state.core);
        let mut buffer = core.buffer.borrow_mut();
        let Self { reader, state, link, throttle, .. } = self;
        let Poll::Ready(buffer) = throttle.room(cx, &mut buffer) else { return Poll::Pending };
        let mut got = 0;
        let read = link.poll_read(cx, buffer, |bytes| {
            got = bytes.len();
            state.now = core.now();
            reader.feed(bytes, state)
        });
        throttle.took(got);
        let end = match read {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(Got::Bytes(Ok(())))) => return Poll::Ready(Ok(())),
            Poll::Ready(Ok(Got::Bytes(Err(FrameFault(why))))) => Err((Fault::Protocol, why.to_owned())),
            Poll::Ready(Ok(Got::End)) if state.streams.is_empty() => Ok(()),
            Poll::Ready(Ok(Got::End)) => {
                Err((Fault::Closed, "the server closed the connection in the middle of streams".to_owned()))
            }
            Poll::Ready(Err(error)) => Err(read_failed(&error)),
        };
        Poll::Ready(Err(end))
    }

    /// After a sweep: streams whose time is over are reset; the end of the run ends the connection.
    fn look_for_the_end(&mut self) -> Option<End> {
        let state = &mut self.state;
        let core = Rc::clone(&state.core);
        if core.is_given_up() {
            return Some(Err((Fault::Unfinished, "in flight at the end of the run".to_owned())));
        }
        let now = core.now();
        let late: Vec<u32> = state
            .streams
            .iter()
            .filter(|(_, stream)| core.is_late(stream.flight.sent, now))
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            frame::put_reset(id, CANCEL, &mut state.replies);
            core.note(Fault::Timeout, || format!("no answer within {:?}", core.plan.timeout));
            state.fail(id, Fault::Timeout);
        }
        (state.streams.is_empty() && core.is_over()).then_some(Ok(()))
    }
}

fn read_failed(error: &io::Error) -> (Fault, String) {
    (read_fault(error), format!("reading: {error}"))
}

impl State {
    /// Sends a request on a stream of its own.
    fn open(&mut self, mut flight: Flight, now: Duration, out: &mut Vec<u8>) {
        self.core.sending(&mut flight, now);
        let id = self.next_id;
        self.next_id += 2;
        self.is_closing |= self.next_id > STREAM_ID_MAX;
        let mut body = Vec::new();
        let mut values = self.core.values.borrow_mut();
        if let Some(request) = self.core.plan.target.requests.list.get(flight.request) {
            request.body.fill(&mut values, &mut body);
        }
        if let Protocol::Grpc { messages } = self.core.plan.protocol {
            body = grpc_body(&body, messages);
        }
        self.scratch.clear();
        self.encoder.encode(&self.fields, flight.request, body.len(), &mut values, &mut self.scratch);
        values.advance();
        drop(values);
        frame::put_headers(id, body.is_empty(), &self.scratch, out);
        if !body.is_empty() {
            self.unsent.push(id);
        }
        self.streams.insert(id, Stream::new(flight, body, self.initial_window));
    }

    /// Sends as much of the bodies as the windows allow.
    fn send_bodies(&mut self, out: &mut Vec<u8>) {
        let mut at = 0;
        while let Some(id) = self.unsent.get(at).copied() {
            let Some(stream) = self.streams.get_mut(&id) else {
                self.unsent.swap_remove(at);
                continue;
            };
            while stream.unsent() > 0 && out.len() < OUT_BYTES_MAX {
                let allowed = usize::try_from(stream.window.min(self.window)).unwrap_or(0);
                let part = stream.unsent().min(self.frame_bytes).min(allowed);
                if part == 0 {
                    break;
                }
                let is_end = part == stream.unsent();
                frame::put_head(kind::DATA, if is_end { flag::END_STREAM } else { 0 }, id, part, out);
                let from = stream.body_sent;
                out.extend_from_slice(stream.body.get(from..from + part).unwrap_or(&[]));
                stream.body_sent += part;
                let moved = i64::try_from(part).unwrap_or(i64::MAX);
                stream.window -= moved;
                self.window -= moved;
            }
            if stream.unsent() == 0 {
                self.unsent.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }

    fn end(&mut self, id: u32) {
        let Some(stream) = self.streams.remove(&id) else { return };
        let fault = if self.is_grpc { stream.grpc_fault() } else { None };
        if fault.is_some() {
            self.core.note(Fault::Grpc, || match stream.grpc_status {
                Some(code) => format!("grpc-status {code}"),
                None => format!("HTTP status {} without a grpc-status", stream.status),
            });
        }
        self.core.done(&stream.flight, self.now, stream.status, fault);
        if stream.unsent() > 0 {
            // The answer is whole and the request is not: say that the rest will not come (RFC 9113 §8.1).
            frame::put_reset(id, CANCEL, &mut self.replies);
        }
    }

    fn fail(&mut self, id: u32, fault: Fault) {
        if let Some(stream) = self.streams.remove(&id) {
            self.core.failed(&stream.flight, fault);
        }
    }

    fn settings(&mut self, payload: &[u8]) {
        if !std::mem::replace(&mut self.is_settled, true) {
            self.streams_max = self.core.plan.depth;
        }
        for (id, value) in frame::settings(payload) {
            let count = usize::try_from(value).unwrap_or(usize::MAX);
            match id {
                setting::HEADER_TABLE_SIZE => self.encoder.resize(count),
                setting::MAX_CONCURRENT_STREAMS => self.streams_max = count.min(self.core.plan.depth),
                setting::INITIAL_WINDOW_SIZE => {
                    let change = i64::from(value) - self.initial_window;
                    self.initial_window += change;
                    self.streams.values_mut().for_each(|stream| stream.window += change);
                }
                setting::MAX_FRAME_SIZE => self.frame_bytes = count.max(frame::FRAME_BYTES),
                _ => {}
            }
        }
        frame::put_settings_ack(&mut self.replies);
    }

    fn goaway(&mut self, payload: &[u8]) {
        self.core.tally.borrow_mut().counts.goaways += 1;
        self.is_closing = true;
        let last = frame::number(payload) & 0x7fff_ffff;
        let code = frame::number(payload.get(4..).unwrap_or(&[]));
        let lost: Vec<u32> = self.streams.keys().copied().filter(|id| *id > last).collect();
        if code != 0 || !lost.is_empty() {
            self.core.note(Fault::GoAway, || format!("GOAWAY with code {code}, last stream {last}"));
        }
        lost.into_iter().for_each(|id| self.fail(id, Fault::GoAway));
    }
}

impl Frames for State {
    fn data(&mut self, stream: u32, part: &[u8], flow_bytes: usize, is_end: bool) -> Result<(), FrameFault> {
        const REPORT: usize = (WINDOW / 2) as usize;
        self.unreported += flow_bytes;
        if self.unreported > REPORT {
            let bytes = u32::try_from(std::mem::take(&mut self.unreported)).unwrap_or(WINDOW);
            frame::put_window_update(0, bytes, &mut self.replies);
        }
        // Late frames of a stream that was reset count for the connection only.
        let Some(open) = self.streams.get_mut(&stream) else { return Ok(()) };
        open.unreported += flow_bytes;
        if open.unreported > REPORT && !is_end {
            let bytes = u32::try_from(std::mem::take(&mut open.unreported)).unwrap_or(WINDOW);
            frame::put_window_update(stream, bytes, &mut self.replies);
        }
        if self.is_grpc {
            let ended = open.messages.feed(part);
            for _ in 0..ended {
                self.core.message(&open.flight, self.now.saturating_sub(open.last_message));
                open.last_message = self.now;
            }
        }
        if is_end {
            self.end(stream);
        }
        Ok(())
    }

    fn headers(&mut self, stream: u32, block: &[u8], is_end: bool) -> Result<(), FrameFault> {
        let (mut status, mut grpc_status) = (None, None);
        if !self.is_grpc
            && block == self.memo
            && self.decoder.changes() == self.memo_changes
            && !block.is_empty()
        {
            status = Some(self.memo_status);
        } else {
            let before = self.decoder.changes();
            let field = |line: Line<'_>| match line.name() {
                b":status" => status = decimal(line.value()).and_then(|status| u16::try_from(status).ok()),
                b"grpc-status" => grpc_status = decimal(line.value()),
                _ => {}
            };
            self.decoder
                .decode(block, field)
                .map_err(|_hpack| FrameFault("fields that HPACK cannot decode"))?;
            if let Some(status) = status {
                self.memo.clear();
                // A block that changes the table means something else the second time.
                if self.decoder.changes() == before {
                    self.memo.extend_from_slice(block);
                    (self.memo_status, self.memo_changes) = (status, before);
                }
            }
        }
        let Some(open) = self.streams.get_mut(&stream) else { return Ok(()) };
        open.grpc_status = grpc_status.or(open.grpc_status);
        match status {
            Some(100..200) => return Ok(()),
            Some(status) => {
                open.status = status;
                open.flight.first_byte = self.now;
            }
            // Trailers have none.
            None if open.status != 0 => {}
            None => return Err(FrameFault("an answer without :status")),
        }
        if is_end {
            self.end(stream);
        }
        Ok(())
    }

    fn control(&mut self, head: Head, payload: &[u8]) -> Result<(), FrameFault> {
        match head.kind {
            kind::SETTINGS if !head.has(flag::ACK) => self.settings(payload),
            kind::PING if !head.has(flag::ACK) => frame::put_ping_ack(payload, &mut self.replies),
            kind::GOAWAY => self.goaway(payload),
            kind::WINDOW_UPDATE => {
                let increment = i64::from(frame::number(payload) & 0x7fff_ffff);
                match self.streams.get_mut(&head.stream) {
                    _ if head.stream == 0 => self.window += increment,
                    Some(stream) => stream.window += increment,
                    None => {}
                }
            }
            kind::RST_STREAM => {
                self.core.tally.borrow_mut().counts.resets += 1;
                let code = frame::number(payload);
                self.core.note(Fault::StreamReset, || format!("RST_STREAM with code {code}"));
                self.fail(head.stream, Fault::StreamReset);
            }
            _ => {}
        }
        Ok(())
    }
}

/// `messages` messages with gRPC's prefix each.
fn grpc_body(message: &[u8], messages: u32) -> Vec<u8> {
    let mut body = Vec::with_capacity((message.len() + 5) * length(u64::from(messages)));
    let len = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    for _ in 0..messages {
        body.push(0);
        body.extend_from_slice(&len);
        body.extend_from_slice(message);
    }
    body
}
