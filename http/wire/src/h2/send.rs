//! What leaves: heads, data, trailers.

use super::code::ErrorCode;
use super::connection::{Connection, OUTPUT_BYTES_MAX};
use super::frame::{self, FRAME_BYTES_MIN, HEAD_BYTES, flag, kind};
use super::head::{self, RequestForm};
use super::settings::Role;
use super::streams::{Half, Stream, StreamKey};
use crate::fields::Fields;
use crate::head::{BodyLength, RequestHead, ResponseHead, Scheme};

/// What was to be sent cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The stream was reset or has ended, or the connection has.
    Closed,
    /// The peer takes no new streams. Nothing was sent.
    GoingAway,
}

impl<T> Connection<T> {
    /// Opens a stream with a request. An upgrade becomes an extended CONNECT (RFC 8441 §4).
    ///
    /// # Errors
    /// `GoingAway` when [`Connection::may_open`] says no.
    pub fn send_request(
        &mut self,
        head: &RequestHead,
        body: BodyLength,
        te_trailers: bool,
        scheme: Scheme,
        user: T,
    ) -> Result<StreamKey, SendError> {
        debug_assert!(self.role == Role::Client, "servers answer");
        if !self.may_open() {
            return Err(SendError::GoingAway);
        }
        let id = self.next_own_stream;
        self.next_own_stream += 2;
        let is_end = body == BodyLength::Empty;
        let at = self.begin_headers();
        head::put_request(
            head,
            RequestForm { body, te_trailers, scheme },
            &mut self.encoder,
            &mut self.output,
        );
        self.finish_headers(at, id, is_end);
        Ok(self.streams.insert(Stream {
            id,
            user,
            receive: Half::Head,
            send: if is_end { Half::Ended } else { Half::Body },
            reset_by: None,
            receive_window: self.first_receive_window(),
            taken: 0,
            send_window: i64::from(self.peer.window_bytes),
            left: None,
            wants_room: false,
            is_in_line: false,
            method: head.method,
        }))
    }

    /// Sends a response head, interim ones included. `length` is what is announced of the body.
    ///
    /// # Errors
    /// `Closed` when the client has reset the stream, or has had its head.
    pub fn send_response(
        &mut self,
        key: StreamKey,
        head: &ResponseHead,
        length: Option<u64>,
        is_end: bool,
    ) -> Result<(), SendError> {
        let stream =
            self.streams.get_mut(key).filter(|stream| !stream.is_reset()).ok_or(SendError::Closed)?;
        if stream.send != Half::Head {
            return Err(SendError::Closed);
        }
        if !head.is_interim() {
            stream.send = if is_end { Half::Ended } else { Half::Body };
        }
        let at = self.begin_headers();
        head::put_response(head, length, &mut self.encoder, &mut self.output);
        self.finish_headers(at, key.id(), is_end && !head.is_interim());
        Ok(())
    }

    /// Bytes that the stream may send now. When there are none its user is told of room later, once.
    ///
    /// # Errors
    /// `Closed` when nothing can be sent any more.
    pub fn room(&mut self, key: StreamKey) -> Result<usize, SendError> {
        let free = OUTPUT_BYTES_MAX.saturating_sub(self.output().len());
        let stream =
            self.streams.get_mut(key).filter(|stream| !stream.is_reset()).ok_or(SendError::Closed)?;
        if stream.send != Half::Body {
            return Err(SendError::Closed);
        }
        let window = usize::try_from(stream.send_window.min(self.send_window)).unwrap_or(0);
        let room = window.min(free);
        if room == 0 {
            stream.wants_room = true;
            if stream.send_window > 0 && !std::mem::replace(&mut stream.is_in_line, true) {
                self.line.push_back(key);
            }
        }
        Ok(room)
    }

    /// Sends bytes of a body, not more than there is [`Connection::room`] for.
    ///
    /// # Errors
    /// `Closed` when nothing can be sent any more.
    pub fn send_data(&mut self, key: StreamKey, bytes: &[u8], is_end: bool) -> Result<(), SendError> {
        let stream =
            self.streams.get_mut(key).filter(|stream| !stream.is_reset()).ok_or(SendError::Closed)?;
        if stream.send != Half::Body {
            return Err(SendError::Closed);
        }
        let count = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
        debug_assert!(count == 0 || count <= stream.send_window.min(self.send_window), "there is room");
        stream.send_window -= count;
        self.send_window -= count;
        if is_end {
            stream.send = Half::Ended;
        }
        let frame_bytes = FRAME_BYTES_MIN as usize;
        let mut rest = bytes;
        loop {
            let (part, after) = rest.split_at(rest.len().min(frame_bytes));
            rest = after;
            let flags = if is_end && rest.is_empty() { flag::END_STREAM } else { 0 };
            frame::put_head(kind::DATA, flags, key.id(), part.len(), &mut self.output);
            self.output.extend_from_slice(part);
            if rest.is_empty() {
                break;
            }
        }
        if let Some(meter) = &mut self.meter {
            meter.note_data_sent(bytes.len());
        }
        Ok(())
    }

    /// Ends a message with trailer fields.
    ///
    /// # Errors
    /// `Closed` when nothing can be sent any more.
    pub fn send_trailers(&mut self, key: StreamKey, fields: &Fields) -> Result<(), SendError> {
        let stream =
            self.streams.get_mut(key).filter(|stream| !stream.is_reset()).ok_or(SendError::Closed)?;
        if stream.send != Half::Body {
            return Err(SendError::Closed);
        }
        stream.send = Half::Ended;
        let at = self.begin_headers();
        head::put_trailers(fields, &mut self.encoder, &mut self.output);
        self.finish_headers(at, key.id(), true);
        Ok(())
    }

    /// Leaves room for a frame's head; where that is.
    fn begin_headers(&mut self) -> usize {
        let at = self.output.len();
        self.output.extend_from_slice(&[0; HEAD_BYTES]);
        at
    }

    fn finish_headers(&mut self, at: usize, stream: u32, is_end: bool) {
        frame::finish_headers(at, stream, is_end, FRAME_BYTES_MIN as usize, &mut self.output);
    }

    /// Writes a reset of a stream that no user holds.
    pub(super) fn put_reset(&mut self, id: u32, code: ErrorCode) {
        frame::put_reset(id, code, &mut self.output);
    }
}
