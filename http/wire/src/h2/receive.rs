//! What comes: bytes to frames, frames to what they mean for the connection and its streams.
//!
//! A frame's payload is looked at where it lies; only one that is cut by the end of the caller's bytes is gathered,
//! and the payload of DATA not even then. A connection error writes GOAWAY and ends everything (RFC 9113 §5.4.1), a
//! stream error writes RST_STREAM and costs the peer a reset of its budget (§5.4.2, CVE-2025-8671).

mod blocks;
mod control;
mod data;

use std::time::Duration;

use super::code::ErrorCode;
use super::connection::{Connection, Events, Fault, StreamFault};
use super::frame::{FRAME_BYTES_MIN, FrameHead, HEAD_BYTES, PREFACE, flag, kind};
use super::meter::Frame;
use super::settings::Role;
use super::streams::{ResetBy, StreamKey};

/// A header block whose CONTINUATION is to come.
#[derive(Debug)]
struct OpenBlock {
    stream: u32,
    is_end: bool,
    depends_on_itself: bool,
    bytes: Vec<u8>,
}

/// DATA whose payload is coming in parts.
#[derive(Clone, Copy, Debug)]
struct OpenData {
    /// None: nobody wants it.
    key: Option<StreamKey>,
    is_end: bool,
}

/// Where in the stream of bytes we are.
#[derive(Debug)]
pub(super) struct Input {
    preface: &'static [u8],
    head: [u8; HEAD_BYTES],
    head_have: usize,
    frame: Option<FrameHead>,
    /// Payload of `frame` that is to come.
    left: usize,
    gathered: Vec<u8>,
    data: Option<OpenData>,
    block: Option<OpenBlock>,
    has_settings: bool,
}

impl Input {
    pub(super) const fn new(role: Role) -> Self {
        Self {
            preface: match role {
                Role::Server => PREFACE,
                Role::Client => &[],
            },
            head: [0; HEAD_BYTES],
            head_have: 0,
            frame: None,
            left: 0,
            gathered: Vec::new(),
            data: None,
            block: None,
            has_settings: false,
        }
    }

    pub(super) fn release_buffers(&mut self) {
        if self.gathered.is_empty() {
            self.gathered = Vec::new();
        }
    }

    /// Takes the client's preface off (RFC 9113 §3.4).
    fn skip_preface<'b>(&mut self, bytes: &'b [u8]) -> Result<&'b [u8], Fault> {
        let count = self.preface.len().min(bytes.len());
        let (wanted, rest) = self.preface.split_at(count);
        let (got, after) = bytes.split_at(count);
        if wanted != got {
            return Err(Fault::new(ErrorCode::PROTOCOL_ERROR, "no HTTP/2 preface"));
        }
        self.preface = rest;
        Ok(after)
    }

    /// Whether `rest` begins with the whole head of a frame of this kind.
    fn is_before(&self, kind: u8, rest: &[u8]) -> bool {
        let head = rest.first_chunk().filter(|_| self.head_have == 0);
        head.is_some_and(|head| FrameHead::read(*head).kind == kind)
    }

    /// The head of the frame that `rest` begins with or goes on with; None: more bytes are needed.
    fn take_head(&mut self, rest: &mut &[u8]) -> Option<FrameHead> {
        if self.head_have == 0
            && let Some((head, after)) = rest.split_first_chunk()
        {
            *rest = after;
            return Some(FrameHead::read(*head));
        }
        let count = (HEAD_BYTES - self.head_have).min(rest.len());
        let (part, after) = rest.split_at(count);
        *rest = after;
        for byte in part {
            self.head[self.head_have] = *byte;
            self.head_have += 1;
        }
        if self.head_have < HEAD_BYTES {
            return None;
        }
        self.head_have = 0;
        Some(FrameHead::read(self.head))
    }
}

fn protocol_error(what: &'static str) -> Fault {
    Fault::new(ErrorCode::PROTOCOL_ERROR, what)
}

fn size_error(what: &'static str) -> Fault {
    Fault::new(ErrorCode::FRAME_SIZE_ERROR, what)
}

impl<T> Connection<T> {
    /// Takes all of `bytes`, the next ones of the connection. `now` is the shard's time and never goes back.
    ///
    /// # Errors
    /// [`Fault`]: GOAWAY has been written; what comes later is not looked at.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        now: Duration,
        events: &mut impl Events<Stream = T>,
    ) -> Result<(), Fault> {
        self.receive_until(u64::MAX, bytes, now, events).map(drop)
    }

    /// [`Connection::receive`] that stops before a HEADERS frame once the peer has opened `opened_max` streams since the
    /// connection began, so that what takes a stream back at once still comes with it. Returns how many of `bytes` it took;
    /// the rest is to come again. A frame that an earlier call has begun is finished whatever it is.
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub fn receive_until(
        &mut self,
        opened_max: u64,
        bytes: &[u8],
        now: Duration,
        events: &mut impl Events<Stream = T>,
    ) -> Result<usize, Fault> {
        if self.is_dead {
            return Ok(bytes.len());
        }
        let result = self.receive_frames(opened_max, bytes, now, events);
        match result {
            Ok(_taken) => self.call_line(events),
            Err(fault) => self.abort(fault.code),
        }
        result
    }

    fn receive_frames(
        &mut self,
        opened_max: u64,
        bytes: &[u8],
        now: Duration,
        events: &mut impl Events<Stream = T>,
    ) -> Result<usize, Fault> {
        let mut rest = if self.input.preface.is_empty() { bytes } else { self.input.skip_preface(bytes)? };
        loop {
            let frame = match self.input.frame {
                Some(frame) => frame,
                None => {
                    if self.streams_opened >= opened_max && self.input.is_before(kind::HEADERS, rest) {
                        return Ok(bytes.len() - rest.len());
                    }
                    let Some(frame) = self.input.take_head(&mut rest) else { return Ok(bytes.len()) };
                    self.check_head(frame)?;
                    self.input.left = frame.len;
                    self.input.frame = Some(frame);
                    if frame.kind == kind::DATA && !frame.has(flag::PADDED) {
                        self.note_frame(frame, frame.len, now)?;
                        self.begin_data(frame, frame.len, now, events)?;
                    }
                    frame
                }
            };
            let (part, after) = rest.split_at(self.input.left.min(rest.len()));
            self.input.left -= part.len();
            let is_whole = self.input.left == 0;
            rest = after;
            if let Some(data) = self.input.data {
                self.take_data(data, part, events);
                if is_whole {
                    self.finish_data(data, now, events)?;
                }
            } else if is_whole && self.input.gathered.is_empty() {
                self.frame(frame, part, now, events)?;
            } else {
                self.input.gathered.extend_from_slice(part);
                if is_whole {
                    let mut gathered = std::mem::take(&mut self.input.gathered);
                    self.frame(frame, &gathered, now, events)?;
                    gathered.clear();
                    self.input.gathered = gathered;
                }
            }
            if !is_whole {
                return Ok(bytes.len());
            }
            self.input.frame = None;
        }
    }

    /// What has to hold before a payload is taken.
    fn check_head(&mut self, frame: FrameHead) -> Result<(), Fault> {
        if !std::mem::replace(&mut self.input.has_settings, true)
            && (frame.kind != kind::SETTINGS || frame.has(flag::ACK))
        {
            return Err(protocol_error("the first frame is not SETTINGS"));
        }
        if frame.len > self.config.frame_bytes_max.max(FRAME_BYTES_MIN) as usize {
            return Err(size_error("a frame above SETTINGS_MAX_FRAME_SIZE"));
        }
        match &self.input.block {
            Some(block) if frame.kind != kind::CONTINUATION || frame.stream != block.stream => {
                Err(protocol_error("a frame between HEADERS and its CONTINUATION"))
            }
            None if frame.kind == kind::CONTINUATION => Err(protocol_error("CONTINUATION without HEADERS")),
            _ => Ok(()),
        }
    }

    /// Counts a frame against the peer's budgets.
    fn note_frame(&mut self, frame: FrameHead, content_bytes: usize, now: Duration) -> Result<(), Fault> {
        let Some(meter) = &mut self.meter else { return Ok(()) };
        let frame = Frame {
            kind: frame.kind,
            is_stream_end: frame.has(flag::END_STREAM),
            stream_id: frame.stream,
            content_bytes,
        };
        meter.note(frame, now).map_err(Fault::flood)
    }

    fn frame(
        &mut self,
        frame: FrameHead,
        payload: &[u8],
        now: Duration,
        events: &mut impl Events<Stream = T>,
    ) -> Result<(), Fault> {
        if frame.kind == kind::DATA {
            // Padded: now its content is known.
            let content = unpadded(frame, payload)?;
            self.note_frame(frame, content.len(), now)?;
            self.begin_data(frame, content.len(), now, events)?;
            let Some(data) = self.input.data else { return Ok(()) };
            self.take_data(data, content, events);
            return self.finish_data(data, now, events);
        }
        self.note_frame(frame, 0, now)?;
        match frame.kind {
            kind::HEADERS => self.headers(frame, payload, now, events),
            kind::CONTINUATION => self.continuation(frame, payload, now, events),
            kind::PRIORITY => self.priority(frame, payload, now, events),
            kind::RST_STREAM => self.peer_reset(frame, payload, events),
            kind::SETTINGS => self.settings(frame, payload, events),
            kind::PUSH_PROMISE => Err(protocol_error("PUSH_PROMISE, which nobody allowed")),
            kind::PING => self.ping_frame(frame, payload),
            kind::GOAWAY => self.goaway(frame, payload, events),
            kind::WINDOW_UPDATE => self.window_update(frame, payload, now, events),
            // RFC 9113 §5.5: what is unknown is ignored.
            _ => Ok(()),
        }
    }

    /// Whether the peer could have used this stream: one that is neither open nor ever was is an error.
    fn is_idle(&self, id: u32) -> bool {
        match (self.role, id % 2) {
            (Role::Server, 1) => id > self.last_peer_stream,
            (Role::Client, 1) => id >= self.next_own_stream,
            // Nobody opens streams with even numbers: there is no push.
            _ => true,
        }
    }

    /// Resets a stream for what the peer did on it.
    fn stream_error(
        &mut self,
        id: u32,
        code: ErrorCode,
        fault: StreamFault,
        now: Duration,
        events: &mut impl Events<Stream = T>,
    ) -> Result<(), Fault> {
        let open = self.streams.find(id);
        if let Some(stream) = open.and_then(|key| self.streams.get_mut(key))
            && !stream.is_reset()
        {
            stream.reset_by = Some(ResetBy::Us);
            events.failed(&mut stream.user, fault);
        }
        self.put_reset(id, code);
        self.resets.note(id, now);
        match &mut self.meter {
            Some(meter) => meter.note_reset_sent(now).map_err(Fault::flood),
            None => Ok(()),
        }
    }
}

/// The stream that a priority names (RFC 9113 §5.3.2).
fn depends_on(priority: &[u8; 5]) -> u32 {
    let [a, b, c, d, _weight] = *priority;
    u32::from_be_bytes([a & 0x7f, b, c, d])
}

/// A payload without its padding (RFC 9113 §6.1).
fn unpadded(frame: FrameHead, payload: &[u8]) -> Result<&[u8], Fault> {
    if !frame.has(flag::PADDED) {
        return Ok(payload);
    }
    let (padding, rest) = payload.split_first().ok_or(size_error("a padded frame without padding"))?;
    let len = rest.len().checked_sub(usize::from(*padding));
    let len = len.ok_or(protocol_error("more padding than payload"))?;
    Ok(rest.get(..len).unwrap_or(&[]))
}
