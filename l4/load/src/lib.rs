//! The kernel side's door: loads the XDP program, attaches and replaces it, pins its maps and reads and writes them
//! by the types of l4-abi. What goes into the maps is decided by l4-steer; the daemon calls both.
//!
//! Pins live below one folder of a bpffs: `abi-N/MAP` for the maps of layout N, `link-INTERFACE` and, with SYN cookies,
//! `cookies-INTERFACE` for each attachment.
//! They outlive the process, so that forwarding goes on while the daemon restarts; a new program takes the maps over
//! and its replacement in the link is one atomic step of the kernel. `unsafe` stands in `map/pod.rs` alone.

mod cookies;
mod error;
mod features;
mod map;
mod options;
mod program;

pub use error::Error;
pub use map::{Maps, VipKey, monotonic_ns, prefix};
pub use options::LoadOptions;
pub use program::{Attached, Mode, Program, Ran, Size, attached, detach, probe};

/// What every fallible function here returns.
pub type Result<T> = std::result::Result<T, Error>;
