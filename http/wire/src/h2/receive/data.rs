//! DATA (RFC 9113 §6.1): windows, announced lengths, and whose bytes they are.

use std::time::Duration;

use super::{OpenData, protocol_error};
use crate::h2::code::ErrorCode;
use crate::h2::connection::{Connection, Events, Fault, StreamFault};
use crate::h2::frame::{FrameHead, flag};
use crate::h2::streams::{Half, ResetBy, Stream};

impl<T> Connection<T> {
    pub(super) fn begin_data(
        &mut self,
        frame: FrameHead,
        content_bytes: usize,
        now: Duration,
        events: &mut impl Events<Stream = T>,
    ) -> Result<(), Fault> {
        let is_end = frame.has(flag::END_STREAM);
        self.input.data = Some(OpenData { key: None, is_end });
        if frame.stream == 0 || self.is_idle(frame.stream) {
            return Err(protocol_error("DATA on an idle stream"));
        }
        let flow_bytes = u32::try_from(frame.len).unwrap_or(u32::MAX);
        self.receive_window -= i64::from(flow_bytes);
        if self.receive_window < 0 {
            return Err(Fault::new(ErrorCode::FLOW_CONTROL_ERROR, "DATA beyond the connection's window"));
        }
        let key = self.streams.find(frame.stream);
        let stream = key.and_then(|key| self.streams.get_mut(key));
        let wanted = match stream {
            Some(Stream { reset_by: Some(ResetBy::Us), .. }) => Ok(()),
            Some(Stream { reset_by: Some(ResetBy::Peer), .. }) => Err(ErrorCode::STREAM_CLOSED),
            Some(stream) => stream.admit_data(flow_bytes, content_bytes, is_end).map(|()| {
                self.input.data = Some(OpenData { key, is_end });
                // Padding is taken as it comes.
                stream.taken += flow_bytes - u32::try_from(content_bytes).unwrap_or(flow_bytes);
            }),
            None if self.resets.has(frame.stream) => Ok(()),
            None => Err(ErrorCode::STREAM_CLOSED),
        };
        let content_bytes = u32::try_from(content_bytes).unwrap_or(flow_bytes);
        let is_wanted = self.input.data.is_some_and(|data| data.key.is_some());
        self.give_back(if is_wanted { flow_bytes - content_bytes } else { flow_bytes });
        match wanted {
            Ok(()) => Ok(()),
            Err(code) => self.stream_error(frame.stream, code, StreamFault::Broken, now, events),
        }
    }

    pub(super) fn take_data(&mut self, data: OpenData, part: &[u8], events: &mut impl Events<Stream = T>) {
        if part.is_empty() {
            return;
        }
        let Some(key) = data.key else { return };
        match self.streams.get_mut(key) {
            Some(stream) if !stream.is_reset() => events.data(&mut stream.user, part),
            // It went away between two parts.
            _ => self.give_back(u32::try_from(part.len()).unwrap_or(u32::MAX)),
        }
    }

    pub(super) fn finish_data(
        &mut self,
        data: OpenData,
        now: Duration,
        events: &mut impl Events<Stream = T>,
    ) -> Result<(), Fault> {
        self.input.data = None;
        let Some(key) = data.key.filter(|_| data.is_end) else { return Ok(()) };
        let Some(stream) = self.streams.get_mut(key).filter(|stream| !stream.is_reset()) else {
            return Ok(());
        };
        if stream.left.is_some_and(|left| left > 0) {
            let id = stream.id;
            return self.stream_error(id, ErrorCode::PROTOCOL_ERROR, StreamFault::Broken, now, events);
        }
        stream.receive = Half::Ended;
        events.end(&mut stream.user, None);
        Ok(())
    }
}

impl<T> Stream<T> {
    /// Takes DATA into account: for the windows with its padding, for the announced length without.
    pub(super) fn admit_data(
        &mut self,
        flow_bytes: u32,
        content_bytes: usize,
        is_end: bool,
    ) -> Result<(), ErrorCode> {
        match self.receive {
            Half::Head => return Err(ErrorCode::PROTOCOL_ERROR),
            Half::Ended => return Err(ErrorCode::STREAM_CLOSED),
            Half::Body => {}
        }
        self.receive_window -= i64::from(flow_bytes);
        if self.receive_window < 0 {
            return Err(ErrorCode::FLOW_CONTROL_ERROR);
        }
        if let Some(left) = &mut self.left {
            let content_bytes = u64::try_from(content_bytes).unwrap_or(u64::MAX);
            *left = left.checked_sub(content_bytes).ok_or(ErrorCode::PROTOCOL_ERROR)?;
            if is_end && *left > 0 {
                return Err(ErrorCode::PROTOCOL_ERROR);
            }
        }
        Ok(())
    }
}
