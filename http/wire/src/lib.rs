//! HTTP on bytes: heads, the HTTP/1 and HTTP/2 codecs, paths, addresses, the PROXY protocol. No
//! socket, clock or random source; everything takes bytes and time and returns bytes, events and errors.
//!
//! Network input never panics here: every parser has vectors in its file and a target in `http/wire/fuzz`.

pub mod authority;
pub mod cookie;
pub mod date;
pub mod fields;
pub mod forwarded;
pub mod grpc;
pub mod h1;
pub mod h2;
pub mod head;
pub mod number;
pub mod path;
pub mod proxy_protocol;
pub mod token;
pub mod trace;
