//! HTTP/2 (RFC 9113), as lean as a load generator needs it: frames and requests without a socket, and the client.
//!
//! HPACK's decoder and tables are those of http/wire. The rest of its codec is for a proxy: heads, limits, budgets and
//! streams that say why they failed, where a generator sends the same few blocks again and again and must cost far less
//! than what it measures (docs/shard-bench.md has the figures). The light target of `shard-bench serve` speaks through the
//! same frames; `just bench-peers` sets the client against shard-proxy, HAProxy, nginx and Envoy.

mod client;
mod encode;
pub(crate) mod frame;
mod stream;

pub(crate) use client::H2;
pub(crate) use encode::{Fields, literal};
