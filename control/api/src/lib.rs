//! The wire contract between the control plane and the proxy: Envoy's v3 resource types under short names, the
//! `shard.v1` messages for what Envoy has no field for, the container both travel in, and the bounds of every value.
//!
//! Invariants: this crate holds types and constants only; it reads no file and decides nothing. The fields that
//! shard-proxy honours are listed in docs/resources.md; all others are refused by name.
//! Written by control-config (and, over the feed, by any xDS source), read by http-proxy's snapshot compiler.

#![forbid(unsafe_code)]

mod any;
pub mod defaults;
pub mod envoy;
mod resources;
pub mod shard;

pub use any::{AnyError, from_any, to_any};
pub use resources::{Resources, Secrets, type_url};
