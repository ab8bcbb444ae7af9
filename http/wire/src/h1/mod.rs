//! The HTTP/1 codec: bytes to heads and body events, heads and chunks to bytes (RFC 9112).
//!
//! Sans-IO: it sees the caller's buffer and says how much of it to drop. What it hands out is unambiguous by
//! construction: one length, one host, no hop-by-hop field, no fold, no bare line end; everything else is an
//! error with one cause. Heads are version neutral, so relay and policies never see HTTP/1 syntax.
//!
//! ```text
//!  parse_request ──► RequestHead + RequestMeta ──► BodyDecoder::new(meta.body) ──► Data… End ──► next head
//!  parse_response ─► ResponseHead + ResponseMeta ─► (the same)
//!  write_request_head / write_response_head ──► write_chunk_header, data, CHUNK_END … write_last_chunk
//! ```
//! Called by http/proxy's connection and relay code, for both sides of the proxy.

mod body;
mod chunk;
mod error;
mod hop;
mod request;
mod response;
mod scan;
mod target;
mod write;

#[cfg(test)]
mod testing;

pub use body::{BodyDecoder, Decoded, EndOfInput};
pub use chunk::{CHUNK_LINE_BYTES_MAX, CHUNK_OVERHEAD_BYTES_MAX};
pub use error::{BodyError, RequestError, ResponseError, WriteError};
pub use hop::CONNECTION_OPTIONS_MAX;
pub use request::{RequestMeta, parse_request};
pub use response::{ResponseMeta, parse_response};
pub use scan::HeadProgress;
pub use write::{
    CHUNK_END, RequestFraming, ResponseFraming, SentResponse, write_chunk_header, write_last_chunk,
    write_request_head, write_response_head,
};

/// Bounds of a head; a trailer section obeys the last two as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// The request line or status line without its line end; over it a request gets 414.
    pub request_line_bytes_max: usize,
    /// The whole head with start line and empty line; over it a request gets 431. The caller's buffer must
    /// take at least this much.
    pub head_bytes_max: usize,
    /// Field lines; over it a request gets 431. At most [`crate::fields::FIELDS_COUNT_MAX`] has effect.
    pub fields_max: usize,
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self { request_line_bytes_max: 8 * 1024, head_bytes_max: 32 * 1024, fields_max: 100 }
    }
}

/// What a connection is good for after the current message (RFC 9112 §9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    KeepAlive,
    Close,
}
