//! HEADERS and CONTINUATION (RFC 9113 §6.2, §6.10): a block is a request, a response head or a trailer section.
//!
//! Every block is decoded, whatever becomes of it: the table has to stay in step.

use std::time::Duration;

use super::{OpenBlock, depends_on, protocol_error, size_error, unpadded};
use crate::h2::code::ErrorCode;
use crate::h2::connection::{Closing, Connection, Events, Fault, StreamFault};
use crate::h2::frame::{FrameHead, flag};
use crate::h2::head::{HeadError, RequestReader, ResponseReader, TrailerReader};
use crate::h2::settings::Role;
use crate::h2::streams::{Half, ResetBy, Stream};
use crate::head::Method;

/// A header block with its continuations. More than that is no head, whatever a listener's limit says.
const BLOCK_BYTES_MAX: usize = 512 * 1024;

const COMPRESSION: Fault = Fault::new(ErrorCode::COMPRESSION_ERROR, "a header block that cannot be decoded");

impl<T> Connection<T> {
    pub(super) fn headers(
        &mut self,
        frame: FrameHead,
        payload: &[u8],
        now: Duration,
        events: &mut impl Events<Stream = T>,
    ) -> Result<(), Fault> {
        if frame.stream == 0 {
            return Err(protocol_error("HEADERS on stream 0"));
        }
        let mut block = unpadded(frame, payload)?;
        let mut depends_on_itself = false;
        if frame.has(flag::PRIORITY) {
            let (priority, rest) =
                block.split_first_chunk::<5>().ok_or(size_error("HEADERS without room for a priority"))?;
            depends_on_itself = depends_on(priority) == frame.stream;
            block = rest;
        }
        let is_end = frame.has(flag::END_STREAM);
        if frame.has(flag::END_HEADERS) {
            return self.block(frame.stream, block, is_end, depends_on_itself, now, events);
        }
        self.input.block =
            Some(OpenBlock { stream: frame.stream, is_end, depends_on_itself, bytes: block.to_vec() });
        Ok(())
    }

    pub(super) fn continuation(
        &mut self,
        frame: FrameHead,
        payload: &[u8],
        now: Duration,
        events: &mut impl Events<Stream = T>,
    ) -> Result<(), Fault> {
        let Some(mut open) = self.input.block.take() else { return Ok(()) };
        if open.bytes.len() + payload.len() > BLOCK_BYTES_MAX {
            return Err(Fault::new(ErrorCode::ENHANCE_YOUR_CALM, "a header block without end"));
        }
        open.bytes.extend_from_slice(payload);
        if frame.has(flag::END_HEADERS) {
            return self.block(open.stream, &open.bytes, open.is_end, open.depends_on_itself, now, events);
        }
        self.input.block = Some(open);
        Ok(())
    }

    /// A whole header block. It is decoded whatever becomes of it: the table has to stay in step.
    pub(super) fn block(
        &mut self,
        id: u32,
        block: &[u8],
        is_end: bool,
        depends_on_itself: bool,
        now: Duration,
        events: &mut impl Events<Stream = T>,
    ) -> Result<(), Fault> {
        if depends_on_itself {
            self.drop_block(block)?;
            self.last_peer_stream = self.last_peer_stream.max(id);
            return self.stream_error(id, ErrorCode::PROTOCOL_ERROR, StreamFault::Broken, now, events);
        }
        let key = self.streams.find(id);
        let Some(stream) = key.and_then(|key| self.streams.get(key)) else {
            return self.block_of_no_stream(id, block, is_end, now, events);
        };
        match (stream.reset_by, stream.receive) {
            (Some(ResetBy::Us), _) => self.drop_block(block),
            (None, Half::Head) => self.response_block(id, block, is_end, now, events),
            (None, Half::Body) => self.trailer_block(id, block, is_end, now, events),
            (Some(ResetBy::Peer), _) | (None, Half::Ended) => {
                self.drop_block(block)?;
                self.stream_error(id, ErrorCode::STREAM_CLOSED, StreamFault::Broken, now, events)
            }
        }
    }

    pub(super) fn block_of_no_stream(
        &mut self,
        id: u32,
        block: &[u8],
        is_end: bool,
        now: Duration,
        events: &mut impl Events<Stream = T>,
    ) -> Result<(), Fault> {
        if self.is_idle(id) {
            if self.role == Role::Client || id.is_multiple_of(2) {
                return Err(protocol_error("HEADERS on a stream that is not the peer's to open"));
            }
            return self.request_block(id, block, is_end, now, events);
        }
        self.drop_block(block)?;
        if self.resets.has(id) || self.role == Role::Client {
            return Ok(());
        }
        Err(Fault::new(ErrorCode::STREAM_CLOSED, "HEADERS on a closed stream"))
    }

    pub(super) fn drop_block(&mut self, block: &[u8]) -> Result<(), Fault> {
        self.decoder.decode(block, |_| {}).map_err(|_bad| COMPRESSION)
    }

    pub(super) fn request_block(
        &mut self,
        id: u32,
        block: &[u8],
        is_end: bool,
        now: Duration,
        events: &mut impl Events<Stream = T>,
    ) -> Result<(), Fault> {
        self.last_peer_stream = id;
        if matches!(self.closing, Closing::After(_)) {
            // RFC 9113 §6.8: it was said that this one will not be served.
            self.drop_block(block)?;
            self.resets.note(id, now);
            return Ok(());
        }
        self.streams_opened += 1;
        let limits = self.config.head;
        let mut reader = RequestReader::new(&mut self.request, &mut self.held, self.config.scheme, limits);
        self.decoder.decode(block, |line| reader.line(&line)).map_err(|_bad| COMPRESSION)?;
        let meta = reader.finish(is_end, self.config.extended_connect);
        // Streams that were reset count until their work has ended (CVE-2023-44487).
        if self.streams.len() >= self.config.streams_max as usize {
            self.put_reset(id, ErrorCode::REFUSED_STREAM);
            self.resets.note(id, now);
            return Ok(());
        }
        if meta == Err(HeadError::Malformed) {
            return self.stream_error(id, ErrorCode::PROTOCOL_ERROR, StreamFault::Broken, now, events);
        }
        let left = meta.ok().and_then(|meta| meta.body.exact());
        // The user's part needs the key, and the key the place.
        let key = self.streams.next_key(id);
        let user = events.request(key, &mut self.request, meta, is_end);
        let inserted = self.streams.insert(Stream {
            id,
            user,
            receive: if is_end { Half::Ended } else { Half::Body },
            send: Half::Head,
            reset_by: None,
            receive_window: self.first_receive_window(),
            taken: 0,
            send_window: i64::from(self.peer.window_bytes),
            left,
            wants_room: false,
            is_in_line: false,
            method: Method::Get,
        });
        debug_assert!(inserted == key, "the place that was foretold");
        Ok(())
    }

    pub(super) fn response_block(
        &mut self,
        id: u32,
        block: &[u8],
        is_end: bool,
        now: Duration,
        events: &mut impl Events<Stream = T>,
    ) -> Result<(), Fault> {
        let mut reader = ResponseReader::new(&mut self.response, self.config.head);
        self.decoder.decode(block, |line| reader.line(&line)).map_err(|_bad| COMPRESSION)?;
        let key = self.streams.find(id);
        let Some(stream) = key.and_then(|key| self.streams.get_mut(key)) else { return Ok(()) };
        match reader.finish(is_end, stream.method) {
            Ok(meta) => {
                if !self.response.is_interim() {
                    stream.receive = if is_end { Half::Ended } else { Half::Body };
                    stream.left = meta.body.exact();
                }
                events.response(&mut stream.user, &mut self.response, meta);
                if is_end {
                    events.end(&mut stream.user, None);
                }
                Ok(())
            }
            Err(error) => {
                let fault = StreamFault::Head(error);
                self.stream_error(id, ErrorCode::PROTOCOL_ERROR, fault, now, events)
            }
        }
    }

    pub(super) fn trailer_block(
        &mut self,
        id: u32,
        block: &[u8],
        is_end: bool,
        now: Duration,
        events: &mut impl Events<Stream = T>,
    ) -> Result<(), Fault> {
        let mut reader = TrailerReader::new(self.config.head);
        self.decoder.decode(block, |line| reader.line(&line)).map_err(|_bad| COMPRESSION)?;
        let key = self.streams.find(id);
        let Some(stream) = key.and_then(|key| self.streams.get_mut(key)) else { return Ok(()) };
        match reader.finish() {
            // RFC 9113 §8.1: trailers end the stream, and the announced length has come.
            Ok(fields) if is_end && stream.left.is_none_or(|left| left == 0) => {
                stream.receive = Half::Ended;
                events.end(&mut stream.user, Some(fields));
                Ok(())
            }
            _ => self.stream_error(id, ErrorCode::PROTOCOL_ERROR, StreamFault::Broken, now, events),
        }
    }
}
