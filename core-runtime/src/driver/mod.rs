//! How a shard waits for the kernel: io_uring with multishot polls, or epoll where rings are refused.
//!
//! Both deliver the same edge-triggered readiness to `io`, so nothing above this module differs.

mod epoll;
mod ring;

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use crate::io::Token;

/// Which driver a shard runs on, and why it is not the ring where it is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverKind {
    Ring,
    /// The reason is the error of the ring's setup, or the operator's choice.
    Epoll {
        reason: String,
    },
}

/// What the operator asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverChoice {
    /// A ring where the kernel allows one, else epoll.
    #[default]
    Auto,
    Ring,
    Epoll,
}

pub(crate) enum Driver {
    Ring(Box<ring::Ring>),
    Epoll(epoll::Epoll),
}

impl Driver {
    pub(crate) fn new(choice: DriverChoice) -> io::Result<(Self, DriverKind)> {
        match choice {
            DriverChoice::Epoll => Self::epoll("chosen by the operator".to_owned()),
            DriverChoice::Ring => Ok((Self::Ring(Box::new(ring::Ring::new()?)), DriverKind::Ring)),
            DriverChoice::Auto => match ring::Ring::new() {
                Ok(ring) => Ok((Self::Ring(Box::new(ring)), DriverKind::Ring)),
                Err(error) => Self::epoll(format!("io_uring is refused: {error}")),
            },
        }
    }

    fn epoll(reason: String) -> io::Result<(Self, DriverKind)> {
        Ok((Self::Epoll(epoll::Epoll::new()?), DriverKind::Epoll { reason }))
    }

    pub(crate) fn register(&mut self, fd: RawFd, token: Token) -> io::Result<()> {
        match self {
            Self::Ring(ring) => ring.register(fd, token),
            Self::Epoll(epoll) => epoll.register(fd, token),
        }
    }

    pub(crate) fn deregister(&mut self, fd: RawFd, token: Token) -> io::Result<()> {
        match self {
            Self::Ring(ring) => ring.deregister(token),
            Self::Epoll(epoll) => epoll.deregister(fd),
        }
    }

    /// Submits what is queued and waits for events: at most `timeout`, not at all for zero, without end for None.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Ring(ring) => ring.wait(timeout),
            Self::Epoll(epoll) => epoll.wait(timeout),
        }
    }

    /// Takes the next event that the last wait brought.
    pub(crate) fn next_event(&mut self) -> Option<(Token, crate::io::Events)> {
        match self {
            Self::Ring(ring) => ring.next_event(),
            Self::Epoll(epoll) => epoll.next_event(),
        }
    }
}

/// The poll bits that every registration asks for; both drivers use the same numbers (poll.h, epoll.h).
fn interest() -> u32 {
    (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP).cast_unsigned()
}

fn events_from_bits(bits: u32) -> crate::io::Events {
    let has = |flag: i32| bits & flag.cast_unsigned() != 0;
    crate::io::Events {
        readable: has(libc::EPOLLIN),
        writable: has(libc::EPOLLOUT),
        ended: has(libc::EPOLLRDHUP) || has(libc::EPOLLHUP) || has(libc::EPOLLERR),
        failed: has(libc::EPOLLHUP) || has(libc::EPOLLERR),
    }
}
