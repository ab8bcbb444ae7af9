//! Sockets of one shard: listeners and streams by readiness.

mod listener;
mod stream;

pub use listener::{Accepted, BindOptions, Listener, ListeningSocket};
pub use stream::{ConnectError, TcpStream};
