//! HTTP/2 (RFC 9113), as lean as a load generator needs it: frames and HPACK without a socket, and the client.
//!
//! Not the `h2` crate, which the proxy uses: it allocates header maps, stream entries and buffers for each request,
//! and a generator must cost far less than what it measures (docs/shard-bench.md has the figures). The light target
//! of `shard-bench serve` speaks through the same frames; `just bench-peers` sets the client against shard-proxy (which is
//! the `h2` crate), HAProxy, nginx and Envoy.

mod client;
mod encode;
pub(crate) mod frame;
pub(crate) mod hpack;
mod huffman;
mod stream;

pub(crate) use client::H2;
pub(crate) use encode::{Fields, literal};
