//! The immutable configuration of one core, and its making from resources.

mod compile;
#[cfg(test)]
mod limits_page;
mod model;
mod rings;
mod shown;
mod stats;

pub use self::compile::{Host, Nack, compile, compile_for};
pub use self::model::*;
pub use self::rings::{Heritage, Home};
pub use self::stats::{KeptRings, LOG_SINKS_MAX, OVERFLOW, OVERFLOW_NAME, StatFamily, StatRegistry};
