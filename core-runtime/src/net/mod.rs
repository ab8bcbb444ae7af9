//! Sockets of one shard: listeners and streams by readiness.

mod listener;
mod pipe;
mod stream;

pub use crate::outbox::POST_BYTES_MAX;
pub use listener::{Accepted, BindOptions, Listener, ListeningSocket};
pub use pipe::{PIPE_BYTES, PIPES_MAX, Pipe, pipes};
pub use stream::{ConnectError, TcpStream};
