//! The end-to-end tests' harness: starts the built binaries with a config directory, plays clients and upstreams
//! down to the byte and the frame, waits for conditions with a deadline. It imports none of the product's code, so
//! that no fault is shared by the product and its judge.
//!
//! `cargo test` of the workspace does not build the binaries; `./test` and `.ci/run` do, and [`proxy::binary`]
//! says so when one is missing.
#![expect(clippy::panic, reason = "a harness fails the test that called it")]

pub mod callers;
pub mod client;
pub mod config;
pub mod dir;
pub mod h1peer;
pub mod h2peer;
pub mod h2raw;
pub mod idle;
pub mod message;
pub mod metrics;
pub mod origin;
pub mod port;
pub mod procfs;
pub mod proxy;
pub mod random;
pub mod soak;
pub mod steady;
pub mod tls;
pub mod token;
pub mod tool;
pub mod wait;

pub use client::{End, RawClient};
pub use config::{Cluster, Config, Listener, Protocol, Route};
pub use message::Response;
pub use origin::{Origin, OriginConn, Request};
pub use proxy::Proxy;
pub use wait::{PATIENCE, wait_for, wait_until};

/// A line for whoever reads the output of a failing test.
pub fn note(text: &str) {
    use std::io::Write;
    // Nothing is left to say it with when standard error is closed.
    drop(writeln!(std::io::stderr(), "{text}"));
}
