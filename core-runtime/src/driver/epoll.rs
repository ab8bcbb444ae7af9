//! The fallback driver: one edge-triggered epoll set.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use super::{events_from_bits, interest};
use crate::io::{Events, Token};
use crate::sys;

const EVENTS_PER_WAIT: usize = 512;

pub(crate) struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
    next: usize,
    filled: usize,
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        let empty = libc::epoll_event { events: 0, u64: 0 };
        Ok(Self { fd: sys::epoll_create()?, events: vec![empty; EVENTS_PER_WAIT], next: 0, filled: 0 })
    }

    pub(crate) fn register(&mut self, fd: RawFd, token: Token) -> io::Result<()> {
        let events = interest() | libc::EPOLLET.cast_unsigned();
        sys::epoll_add(self.fd.as_raw_fd(), fd, events, token.to_u64())
    }

    /// Closing the descriptor would do, but for one that was duplicated.
    pub(crate) fn deregister(&mut self, fd: RawFd) -> io::Result<()> {
        sys::epoll_del(self.fd.as_raw_fd(), fd)
    }

    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        // Rounded up, or the loop would spin through the last part of a millisecond.
        let timeout_ms = match timeout {
            None => -1,
            Some(time) => i32::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX),
        };
        self.next = 0;
        self.filled = 0;
        match sys::epoll_wait(self.fd.as_raw_fd(), &mut self.events, timeout_ms) {
            Ok(filled) => self.filled = filled,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    pub(crate) fn next_event(&mut self) -> Option<(Token, Events)> {
        if self.next == self.filled {
            return None;
        }
        let event = self.events.get(self.next)?;
        self.next += 1;
        Some((Token::from_u64(event.u64), events_from_bits(event.events)))
    }
}
