//! The frames that carry no message: PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE (RFC 9113 §6.3 to §6.9).

use std::time::Duration;

use super::{depends_on, protocol_error, size_error};
use crate::h2::code::ErrorCode;
use crate::h2::connection::{Connection, Events, Fault, StreamFault};
use crate::h2::frame::{self, FrameHead, WINDOW_MAX, flag};
use crate::h2::settings::Role;
use crate::h2::streams::{Half, ResetBy};

impl<T> Connection<T> {
    pub(super) fn priority(
        &mut self,
        frame: FrameHead,
        payload: &[u8],
        now: Duration,
        events: &mut impl Events<Stream = T>,
    ) -> Result<(), Fault> {
        if frame.stream == 0 {
            return Err(protocol_error("PRIORITY on stream 0"));
        }
        let code = match payload.first_chunk::<5>() {
            Some(priority) if payload.len() == 5 => {
                if depends_on(priority) != frame.stream {
                    return Ok(());
                }
                ErrorCode::PROTOCOL_ERROR
            }
            _ => ErrorCode::FRAME_SIZE_ERROR,
        };
        if self.is_idle(frame.stream) {
            // There is no stream to reset yet.
            return Err(Fault::new(code, "a bad PRIORITY on an idle stream"));
        }
        self.stream_error(frame.stream, code, StreamFault::Broken, now, events)
    }

    pub(super) fn peer_reset(
        &mut self,
        frame: FrameHead,
        payload: &[u8],
        events: &mut impl Events<Stream = T>,
    ) -> Result<(), Fault> {
        let code = frame::number(payload).ok_or(size_error("RST_STREAM is four bytes"))?;
        if frame.stream == 0 || self.is_idle(frame.stream) {
            return Err(protocol_error("RST_STREAM on an idle stream"));
        }
        let key = self.streams.find(frame.stream);
        if let Some(stream) =
            key.and_then(|key| self.streams.get_mut(key)).filter(|stream| !stream.is_reset())
        {
            let is_late = stream.receive == Half::Ended && stream.send == Half::Ended;
            // RFC 9113 §8.1: a whole response, and the rest of the request is not wanted.
            let is_whole = self.role == Role::Client
                && stream.receive == Half::Ended
                && ErrorCode(code) == ErrorCode::NO_ERROR;
            stream.reset_by = Some(ResetBy::Peer);
            if !is_late && !is_whole {
                events.failed(&mut stream.user, StreamFault::Reset(ErrorCode(code)));
            }
        }
        Ok(())
    }

    pub(super) fn settings(
        &mut self,
        frame: FrameHead,
        payload: &[u8],
        events: &mut impl Events<Stream = T>,
    ) -> Result<(), Fault> {
        if frame.stream != 0 {
            return Err(protocol_error("SETTINGS on a stream"));
        }
        if frame.has(flag::ACK) {
            self.is_acknowledged = true;
            return if payload.is_empty() { Ok(()) } else { Err(size_error("SETTINGS ACK with a payload")) };
        }
        if !payload.len().is_multiple_of(6) {
            return Err(size_error("SETTINGS is pairs of six bytes"));
        }
        let window_before = self.peer.window_bytes;
        self.peer.take(payload, self.role)?;
        self.is_settled = true;
        self.encoder.set_table_bytes(usize::try_from(self.peer.table_bytes).unwrap_or(usize::MAX));
        let change = i64::from(self.peer.window_bytes) - i64::from(window_before);
        if change != 0 {
            // RFC 9113 §6.9.2: windows may become negative.
            for stream in self.streams.iter_mut() {
                stream.send_window += change;
                if stream.send_window > WINDOW_MAX {
                    return Err(Fault::new(ErrorCode::FLOW_CONTROL_ERROR, "a window beyond all measure"));
                }
                if stream.send_window > 0 && std::mem::take(&mut stream.wants_room) {
                    events.room(&mut stream.user);
                }
            }
        }
        frame::put_settings_ack(&mut self.output);
        Ok(())
    }

    pub(super) fn ping_frame(&mut self, frame: FrameHead, payload: &[u8]) -> Result<(), Fault> {
        let payload: [u8; 8] = payload.try_into().map_err(|_size| size_error("PING is eight bytes"))?;
        if frame.stream != 0 {
            return Err(protocol_error("PING on a stream"));
        }
        if frame.has(flag::ACK) {
            self.pong(payload);
        } else {
            self.put_pong(payload);
        }
        Ok(())
    }

    pub(super) fn goaway(
        &mut self,
        frame: FrameHead,
        payload: &[u8],
        events: &mut impl Events<Stream = T>,
    ) -> Result<(), Fault> {
        if frame.stream != 0 {
            return Err(protocol_error("GOAWAY on a stream"));
        }
        let last = payload.get(..8).and_then(|start| frame::number(start.get(..4)?));
        let last = last.ok_or(size_error("GOAWAY is at least eight bytes"))? & 0x7fff_ffff;
        if self.role == Role::Server {
            // A client that takes no pushes any more: there are none.
            return Ok(());
        }
        // RFC 9113 §6.8: it may be lowered, never raised.
        let last = self.peer_goaway.map_or(last, |before| before.min(last));
        self.peer_goaway = Some(last);
        for stream in self.streams.iter_mut().filter(|stream| stream.id > last && !stream.is_closed()) {
            stream.reset_by = Some(ResetBy::Us);
            events.failed(&mut stream.user, StreamFault::GoneAway);
        }
        Ok(())
    }

    pub(super) fn window_update(
        &mut self,
        frame: FrameHead,
        payload: &[u8],
        now: Duration,
        events: &mut impl Events<Stream = T>,
    ) -> Result<(), Fault> {
        let increment =
            frame::number(payload).ok_or(size_error("WINDOW_UPDATE is four bytes"))? & 0x7fff_ffff;
        if frame.stream == 0 {
            self.send_window += i64::from(increment);
            return match increment {
                0 => Err(protocol_error("a WINDOW_UPDATE of nothing")),
                _ if self.send_window > WINDOW_MAX => {
                    Err(Fault::new(ErrorCode::FLOW_CONTROL_ERROR, "a window beyond all measure"))
                }
                _ => Ok(()),
            };
        }
        if self.is_idle(frame.stream) {
            return Err(protocol_error("WINDOW_UPDATE on an idle stream"));
        }
        let key = self.streams.find(frame.stream);
        let Some(stream) = key.and_then(|key| self.streams.get_mut(key)).filter(|stream| !stream.is_reset())
        else {
            return Ok(());
        };
        stream.send_window += i64::from(increment);
        let code = match increment {
            0 => ErrorCode::PROTOCOL_ERROR,
            _ if stream.send_window > WINDOW_MAX => ErrorCode::FLOW_CONTROL_ERROR,
            _ => {
                if stream.send_window > 0 && !stream.is_in_line && std::mem::take(&mut stream.wants_room) {
                    events.room(&mut stream.user);
                }
                return Ok(());
            }
        };
        self.stream_error(frame.stream, code, StreamFault::Broken, now, events)
    }
}
