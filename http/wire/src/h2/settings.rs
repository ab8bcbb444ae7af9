//! What we tell a peer and what it tells us (RFC 9113 §6.5).

use super::code::ErrorCode;
use super::connection::Fault;
use super::frame::{self, FRAME_BYTES_MAX, FRAME_BYTES_MIN, WINDOW_DEFAULT, WINDOW_MAX};
use super::head::HeadLimits;
use super::meter::FrameBudgets;
use crate::head::Scheme;

/// Which end of the connection we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Server,
    Client,
}

/// What a connection is to be like.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Streams that the peer may have open at once. Servers only.
    pub streams_max: u32,
    /// Credit of one stream, and of all together, in bytes.
    pub stream_window_bytes: u32,
    pub connection_window_bytes: u32,
    /// Payload of a received frame, in bytes: 16,384 to 16,777,215.
    pub frame_bytes_max: u32,
    pub head: HeadLimits,
    /// RFC 8441. Servers only: a client learns it from its peer.
    pub extended_connect: bool,
    /// The scheme by which clients reach us. Servers only.
    pub scheme: Scheme,
    /// What the peer may make us do. None: it is trusted.
    pub budgets: Option<FrameBudgets>,
}

mod id {
    //! Settings (RFC 9113 §6.5.2, RFC 8441 §3).
    pub(super) const HEADER_TABLE_SIZE: u16 = 1;
    pub(super) const ENABLE_PUSH: u16 = 2;
    pub(super) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(super) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(super) const MAX_FRAME_SIZE: u16 = 5;
    pub(super) const MAX_HEADER_LIST_SIZE: u16 = 6;
    pub(super) const ENABLE_CONNECT_PROTOCOL: u16 = 8;
}

impl Config {
    /// The bounded values: a window and a frame have their limits by the protocol.
    pub(super) fn clamped(self) -> Self {
        let window_max = u32::try_from(WINDOW_MAX).unwrap_or(u32::MAX);
        Self {
            stream_window_bytes: self.stream_window_bytes.min(window_max),
            connection_window_bytes: self.connection_window_bytes.clamp(WINDOW_DEFAULT, window_max),
            frame_bytes_max: self.frame_bytes_max.clamp(FRAME_BYTES_MIN, FRAME_BYTES_MAX),
            ..self
        }
    }

    /// Appends our SETTINGS, and the credit of the connection above the default.
    pub(super) fn put(&self, role: Role, out: &mut Vec<u8>) {
        let list_bytes_max = u32::try_from(self.head.list_bytes_max).unwrap_or(u32::MAX);
        let mut settings = [(0, 0); 5];
        let given = match role {
            Role::Server => (id::MAX_CONCURRENT_STREAMS, self.streams_max),
            Role::Client => (id::ENABLE_PUSH, 0),
        };
        settings[0] = given;
        settings[1] = (id::INITIAL_WINDOW_SIZE, self.stream_window_bytes);
        settings[2] = (id::MAX_FRAME_SIZE, self.frame_bytes_max);
        settings[3] = (id::MAX_HEADER_LIST_SIZE, list_bytes_max);
        settings[4] = (id::ENABLE_CONNECT_PROTOCOL, 1);
        let has_last = role == Role::Server && self.extended_connect;
        frame::put_settings(settings.get(..settings.len() - usize::from(!has_last)).unwrap_or(&[]), out);
        let more = self.connection_window_bytes.saturating_sub(WINDOW_DEFAULT);
        if more > 0 {
            frame::put_window_update(0, more, out);
        }
    }
}

/// What the peer has said, or the defaults.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerSettings {
    pub(super) table_bytes: u32,
    pub(super) streams_max: u32,
    pub(super) window_bytes: u32,
    pub(super) extended_connect: bool,
}

impl PeerSettings {
    pub(super) const fn new() -> Self {
        Self {
            table_bytes: 4096,
            streams_max: u32::MAX,
            window_bytes: WINDOW_DEFAULT,
            extended_connect: false,
        }
    }

    /// Takes the payload of a SETTINGS frame; `role` is ours. Unknown settings are ignored, and so are larger frames than
    /// every peer takes: ours are as long as a TLS record.
    pub(super) fn take(&mut self, payload: &[u8], role: Role) -> Result<(), Fault> {
        let protocol = |what| Fault::new(ErrorCode::PROTOCOL_ERROR, what);
        for (id, value) in frame::settings(payload) {
            match id {
                id::HEADER_TABLE_SIZE => self.table_bytes = value,
                id::ENABLE_PUSH if value > 1 || (value == 1 && role == Role::Client) => {
                    return Err(protocol("ENABLE_PUSH out of range"));
                }
                id::MAX_CONCURRENT_STREAMS => self.streams_max = value,
                id::INITIAL_WINDOW_SIZE if i64::from(value) > WINDOW_MAX => {
                    return Err(Fault::new(
                        ErrorCode::FLOW_CONTROL_ERROR,
                        "INITIAL_WINDOW_SIZE out of range",
                    ));
                }
                id::INITIAL_WINDOW_SIZE => self.window_bytes = value,
                id::MAX_FRAME_SIZE if !(FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&value) => {
                    return Err(protocol("MAX_FRAME_SIZE out of range"));
                }
                // RFC 8441 §3: it is not taken back.
                id::ENABLE_CONNECT_PROTOCOL if value > 1 || (value == 0 && self.extended_connect) => {
                    return Err(protocol("ENABLE_CONNECT_PROTOCOL out of range"));
                }
                id::ENABLE_CONNECT_PROTOCOL => self.extended_connect = value == 1,
                _ => {}
            }
        }
        Ok(())
    }
}
