//! One pinned reactor per core: the loop, its sockets, buffers, timers, the mailbox and statistics frames.
//!
//! A [`shard::Shard`] is one thread with one ring (or one epoll set). Everything handed out here belongs to the
//! thread that made it. The model is readiness: a socket says when reading or writing can go on, then the
//! caller moves bytes with a plain non-blocking call into memory it owns. Short messages may be posted instead: then
//! the reactor owns and sends them. The kernel never holds our memory, so dropping a future at any point is safe, and
//! an idle connection holds no buffer but the rest of a post that its peer does not take.
//!
//! All `unsafe` of the data plane is in `sys`, `waker` and `driver::ring`.

pub mod affinity;
pub mod buf;
pub mod clock;
mod driver;
mod exec;
pub mod handover;
pub mod histogram;
mod io;
pub mod mailbox;
pub mod net;
mod outbox;
pub mod shard;
pub mod stats;
pub mod sync;
mod sys;
mod task_waker;
pub mod timer;

pub use exec::{next_turn, poll_turn_end, spawn, turn, turn_end, wake_next_turn, yield_now};
