//! The data plane of one core, stop by stop: see docs/life-of-a-request.md.

mod chunk;
pub mod conn;
pub mod core;
mod exchange;
mod fault;
mod link;
pub mod log;
pub mod pool;
pub mod reason;
pub mod record;
mod relay;
#[cfg(test)]
mod relay_tests;
mod reply;
pub mod route;
pub mod service;
mod side;
pub mod snapshot;
pub mod survey;
mod tap;
#[cfg(test)]
mod testing;
mod transport;
mod upgrade;
