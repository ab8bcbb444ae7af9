//! The HTTP/2 codec (RFC 9113): one connection's frames, streams, windows and header blocks, for either end.
//!
//! Sans-IO: [`Connection`] takes the bytes that came and appends the bytes that shall leave to a vector of its own;
//! heads go straight between HPACK and [`crate::head`], without a map of strings between them. What a peer may make
//! us do or hold is bounded here: header blocks, streams, windows, frames by budgets ([`FrameBudgets`]).
//!
//! ```text
//!  bytes in ─► receive ─► frames ─► streams ─► Events: request, response, data, trailers, reset, room
//!  send_request / send_response / send_data / send_trailers / reset ─► frames ─► output ─► bytes out
//! ```
//! Called by http/proxy's HTTP/2 connections, downstream and upstream. Decision 0009 says why it is ours.

mod code;
mod connection;
mod frame;
mod head;
pub mod hpack;
mod meter;
mod receive;
mod send;
mod settings;
mod streams;

#[cfg(test)]
mod tests;

pub use code::ErrorCode;
pub use connection::{Connection, Events, Fault, StreamFault};
pub use frame::PREFACE;
pub use head::{HeadError, HeadLimits, RequestMeta, ResponseMeta};
pub use meter::{Budget, Flood, FrameBudgets};
pub use send::SendError;
pub use settings::{Config, Role};
pub use streams::StreamKey;
