//! A connection as its user sees it: what is configured, what it tells, and how it ends.

use std::collections::VecDeque;
use std::time::Duration;

use super::code::ErrorCode;
use super::frame::{self, PREFACE, STREAM_ID_MAX, WINDOW_DEFAULT, flag};
use super::head::{HeadError, Held, RequestMeta, ResponseMeta};
use super::hpack::{Decoder, Encoder};
use super::meter::{Flood, FrameMeter};
use super::receive::Input;
use super::settings::{Config, PeerSettings, Role};
use super::streams::{Half, RecentResets, ResetBy, StreamKey, Streams};
use crate::fields::Fields;
use crate::head::{RequestHead, ResponseHead};

/// Bytes that wait to be sent above which no stream may add any.
pub(super) const OUTPUT_BYTES_MAX: usize = 128 * 1024;
/// Room for output that a connection without streams keeps for the next one.
const OUTPUT_BYTES_KEPT: usize = 2 * 1024;

/// Our PINGs: behind a first GOAWAY, and to a silent peer.
pub(super) const PING_SHUTDOWN: [u8; 8] = *b"shutdown";
const PING_ALIVE: [u8; 8] = *b"alive?  ";

/// Why a connection cannot go on (RFC 9113 §5.4.1). GOAWAY has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub code: ErrorCode,
    /// A short English reason for logs.
    pub what: &'static str,
    /// The budget that the peer has overdrawn.
    pub flood: Option<Flood>,
}

impl Fault {
    pub(super) const fn new(code: ErrorCode, what: &'static str) -> Self {
        Self { code, what, flood: None }
    }

    #[cold]
    pub(super) const fn flood(flood: Flood) -> Self {
        Self { code: ErrorCode::ENHANCE_YOUR_CALM, what: flood.as_str(), flood: Some(flood) }
    }
}

/// Why a stream cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFault {
    /// The peer has reset it.
    Reset(ErrorCode),
    /// The peer is going away and did not process it: safe to send again (RFC 9113 §6.8).
    GoneAway,
    /// The peer broke a rule of the stream, and we have reset it.
    Broken,
    /// The same, for what its head says.
    Head(HeadError),
    /// The connection is over.
    Lost,
}

/// Who hears of what a connection receives. Calls come from within [`Connection::receive`] and [`Connection::sent`].
pub trait Events {
    /// What the user keeps with each stream.
    type Stream;

    /// A client's request. Its head may be swapped for another to be filled; with an error it is filled in part, and
    /// the client is owed an answer. `is_end`: there is no body.
    fn request(
        &mut self,
        key: StreamKey,
        head: &mut RequestHead,
        meta: Result<RequestMeta, HeadError>,
        is_end: bool,
    ) -> Self::Stream;

    /// A backend's response head, interim ones included. It may be swapped for another to be filled.
    fn response(&mut self, stream: &mut Self::Stream, head: &mut ResponseHead, meta: ResponseMeta);

    /// Part of a body; never empty. It holds credit until [`Connection::consume`] gives it back.
    fn data(&mut self, stream: &mut Self::Stream, bytes: &[u8]);

    /// The message has ended. Not called for a request that ended with its head.
    fn end(&mut self, stream: &mut Self::Stream, trailers: Option<Fields>);

    /// Nothing more will come or can be sent.
    fn failed(&mut self, stream: &mut Self::Stream, fault: StreamFault);

    /// There is room again for a stream that found none.
    fn room(&mut self, stream: &mut Self::Stream);
}

/// How far a connection is with ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closing {
    No,
    /// The client was told, and may not know yet.
    Announced,
    /// Streams above this one will not be served.
    After(u32),
}

/// One HTTP/2 connection.
#[derive(Debug)]
pub struct Connection<T> {
    pub(super) role: Role,
    pub(super) config: Config,
    pub(super) peer: PeerSettings,
    pub(super) is_settled: bool,
    /// The peer has taken our SETTINGS.
    pub(super) is_acknowledged: bool,
    pub(super) input: Input,
    pub(super) decoder: Decoder,
    pub(super) encoder: Encoder,
    pub(super) streams: Streams<T>,
    pub(super) resets: RecentResets,
    pub(super) meter: Option<FrameMeter>,
    /// Filled by the next block and swapped with its receiver.
    pub(super) request: RequestHead,
    pub(super) response: ResponseHead,
    pub(super) held: Held,
    /// What the peer may still send, and what was taken and not told, in bytes.
    pub(super) receive_window: i64,
    pub(super) taken: u32,
    pub(super) send_window: i64,
    /// Streams that wait for the connection's window or for room in the output.
    pub(super) line: VecDeque<StreamKey>,
    pub(super) output: Vec<u8>,
    pub(super) output_sent: usize,
    pub(super) last_peer_stream: u32,
    pub(super) next_own_stream: u32,
    pub(super) streams_opened: u64,
    pub(super) closing: Closing,
    /// The last stream that the peer will serve, from its GOAWAY.
    pub(super) peer_goaway: Option<u32>,
    pub(super) has_pong: bool,
    /// The peer takes nothing any more; what it sent before may still come.
    pub(super) is_mute: bool,
    pub(super) is_dead: bool,
}

impl<T> Connection<T> {
    /// A connection whose preface and SETTINGS are in the output.
    pub fn new(role: Role, config: Config) -> Self {
        let config = config.clamped();
        let mut output = Vec::new();
        if role == Role::Client {
            output.extend_from_slice(PREFACE);
        }
        config.put(role, &mut output);
        Self {
            role,
            config,
            peer: PeerSettings::new(),
            is_settled: false,
            is_acknowledged: false,
            input: Input::new(role),
            decoder: Decoder::new(),
            encoder: Encoder::new(),
            streams: Streams::default(),
            resets: RecentResets::default(),
            meter: config.budgets.as_ref().map(FrameMeter::new),
            request: RequestHead::default(),
            response: ResponseHead::default(),
            held: Held::default(),
            receive_window: i64::from(config.connection_window_bytes),
            taken: 0,
            send_window: i64::from(WINDOW_DEFAULT),
            line: VecDeque::new(),
            output,
            output_sent: 0,
            last_peer_stream: 0,
            next_own_stream: 1,
            streams_opened: 0,
            closing: Closing::No,
            peer_goaway: None,
            has_pong: false,
            is_mute: false,
            is_dead: false,
        }
    }

    /// Bytes that wait to be sent.
    pub fn output(&self) -> &[u8] {
        self.output.get(self.output_sent..).unwrap_or(&[])
    }

    /// Whether so much waits to be sent that no more should be read: answers to what is read need room too.
    pub fn is_congested(&self) -> bool {
        self.output().len() >= OUTPUT_BYTES_MAX
    }

    /// Takes `count` bytes as sent, and tells streams that waited for their room.
    pub fn sent(&mut self, count: usize, events: &mut impl Events<Stream = T>) {
        self.output_sent += count;
        if self.output_sent >= self.output.len() {
            self.output_sent = 0;
            self.output.clear();
        } else if self.output_sent >= OUTPUT_BYTES_MAX {
            self.output.drain(..self.output_sent);
            self.output_sent = 0;
        }
        self.call_line(events);
    }

    /// Says that the peer takes nothing any more. What waits to be sent is dropped and no stream is opened; what the
    /// peer sent before can still be received.
    pub fn mute(&mut self) {
        self.is_mute = true;
        self.output.clear();
        self.output_sent = 0;
    }

    /// Whether the peer takes nothing any more.
    pub fn is_mute(&self) -> bool {
        self.is_mute
    }

    /// Gives back large buffers; for a connection without streams.
    pub fn release_buffers(&mut self) {
        if self.output.is_empty() && self.output.capacity() > OUTPUT_BYTES_KEPT {
            self.output = Vec::new();
        }
        self.input.release_buffers();
    }

    /// Gives back everything that the next stream would find in place; for a connection that has had none for a while.
    pub fn release_memory(&mut self, now: Duration) {
        if self.output.is_empty() {
            self.output = Vec::new();
        }
        self.input.release_buffers();
        self.decoder.release_buffers();
        self.request = RequestHead::default();
        self.response = ResponseHead::default();
        self.held = Held::default();
        self.line = VecDeque::new();
        self.streams.release_memory();
        self.resets.release_memory(now);
    }

    /// Streams that are open, or still held by a user.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Streams that the peer has opened so far: progress that control frames do not make.
    pub fn streams_opened(&self) -> u64 {
        self.streams_opened
    }

    /// Streams that the peer lets us have open at once.
    pub fn peer_streams_max(&self) -> u32 {
        self.peer.streams_max
    }

    /// Whether the peer knows extended CONNECT (RFC 8441 §3).
    pub fn peer_knows_extended_connect(&self) -> bool {
        self.peer.extended_connect
    }

    /// The peer's SETTINGS have come (RFC 9113 §3.4).
    pub fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Whether we may open a stream: the peer is there and not going away, and there are numbers left.
    pub fn may_open(&self) -> bool {
        !self.is_dead && !self.is_mute && self.peer_goaway.is_none() && self.next_own_stream <= STREAM_ID_MAX
    }

    /// Whether the last GOAWAY has been written and no stream is left.
    pub fn is_over(&self) -> bool {
        self.is_dead || (matches!(self.closing, Closing::After(_)) && self.streams.len() == 0)
    }

    /// Asks the peer for a sign of life.
    pub fn ping(&mut self) {
        self.has_pong = false;
        frame::put_ping(0, PING_ALIVE, &mut self.output);
    }

    /// Whether the sign has come.
    pub fn has_pong(&self) -> bool {
        self.has_pong
    }

    pub(super) fn pong(&mut self, payload: [u8; 8]) {
        match payload {
            PING_ALIVE => self.has_pong = true,
            PING_SHUTDOWN if self.closing == Closing::Announced => self.finish_shutdown(),
            _ => {}
        }
    }

    /// Takes no new streams any more: a GOAWAY that names none first, and a PING whose answer says that the client
    /// has seen it (RFC 9113 §6.8). Then, or when the user says so, the one that names the last.
    pub fn begin_shutdown(&mut self) {
        if self.closing == Closing::No && !self.is_dead {
            self.closing = Closing::Announced;
            frame::put_goaway(STREAM_ID_MAX, ErrorCode::NO_ERROR, &mut self.output);
            frame::put_ping(0, PING_SHUTDOWN, &mut self.output);
        }
    }

    /// Names the last stream that is served.
    pub fn finish_shutdown(&mut self) {
        if !matches!(self.closing, Closing::After(_)) && !self.is_dead {
            self.closing = Closing::After(self.last_peer_stream);
            frame::put_goaway(self.last_peer_stream, ErrorCode::NO_ERROR, &mut self.output);
        }
    }

    /// Ends the connection, whatever is in flight. What comes now is not looked at.
    pub fn abort(&mut self, code: ErrorCode) {
        if !std::mem::replace(&mut self.is_dead, true) {
            frame::put_goaway(self.last_peer_stream, code, &mut self.output);
        }
    }

    /// Tells every stream that the connection is over, and by what fault.
    pub fn fail_all(&mut self, fault: StreamFault, events: &mut impl Events<Stream = T>) {
        self.is_dead = true;
        for stream in self.streams.iter_mut().filter(|stream| !stream.is_closed()) {
            stream.reset_by = Some(ResetBy::Us);
            events.failed(&mut stream.user, fault);
        }
    }

    /// The user's part of a stream.
    pub fn user(&mut self, key: StreamKey) -> Option<&mut T> {
        self.streams.get_mut(key).map(|stream| &mut stream.user)
    }

    /// Gives back the credit of `bytes` that a stream's user has taken (RFC 9113 §6.9). The peer is told in pieces of
    /// half a window.
    pub fn consume(&mut self, key: StreamKey, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        if let Some(stream) = self.streams.get_mut(key)
            && !stream.is_reset()
            && stream.receive != Half::Ended
        {
            stream.taken += bytes;
            if stream.taken >= self.config.stream_window_bytes / 2 {
                let taken = std::mem::take(&mut stream.taken);
                stream.receive_window += i64::from(taken);
                frame::put_window_update(stream.id, taken, &mut self.output);
            }
        }
        self.give_back(bytes);
    }

    /// What a peer may send on a new stream: it may not have read yet that it is less than the default.
    pub(super) fn first_receive_window(&self) -> i64 {
        let told = self.config.stream_window_bytes;
        i64::from(if self.is_acknowledged { told } else { told.max(WINDOW_DEFAULT) })
    }

    /// Gives back credit of the connection.
    pub(super) fn give_back(&mut self, bytes: u32) {
        self.taken += bytes;
        if self.taken >= self.config.connection_window_bytes / 2 && !self.is_dead {
            let taken = std::mem::take(&mut self.taken);
            self.receive_window += i64::from(taken);
            frame::put_window_update(0, taken, &mut self.output);
        }
    }

    /// Forgets a stream. One that has not come to its end is reset: with NO_ERROR when our message is whole and the
    /// peer's is not needed (RFC 9113 §8.1), else with CANCEL. `unread` bytes of its body were not taken.
    pub fn release(&mut self, key: StreamKey, unread: usize, now: Duration) {
        let Some(stream) = self.streams.get(key) else { return };
        if !stream.is_closed() {
            let is_answered = stream.send == Half::Ended && self.role == Role::Server;
            self.reset(key, if is_answered { ErrorCode::NO_ERROR } else { ErrorCode::CANCEL }, now);
        }
        if self.streams.remove(key).is_some_and(|stream| stream.is_in_line) {
            // Or streams that come and go would make the line grow while it stands still.
            self.line.retain(|other| *other != key);
        }
        self.give_back(u32::try_from(unread).unwrap_or(u32::MAX));
    }

    /// Resets a stream. Its user hears nothing of it.
    pub fn reset(&mut self, key: StreamKey, code: ErrorCode, now: Duration) {
        if let Some(stream) = self.streams.get_mut(key)
            && !stream.is_closed()
        {
            stream.reset_by = Some(ResetBy::Us);
            if !self.is_dead {
                frame::put_reset(stream.id, code, &mut self.output);
                self.resets.note(stream.id, now);
            }
        }
    }

    /// Tells those in line that there is room, as far as there is any.
    pub(super) fn call_line(&mut self, events: &mut impl Events<Stream = T>) {
        if self.line.is_empty() || self.send_window <= 0 || self.is_congested() {
            return;
        }
        // Who finds too little stands in line again, behind the others.
        for _ in 0..self.line.len() {
            let Some(key) = self.line.pop_front() else { return };
            if let Some(stream) = self.streams.get_mut(key) {
                stream.is_in_line = false;
                if std::mem::take(&mut stream.wants_room) {
                    events.room(&mut stream.user);
                }
            }
        }
    }

    pub(super) fn put_pong(&mut self, payload: [u8; 8]) {
        frame::put_ping(flag::ACK, payload, &mut self.output);
    }
}
