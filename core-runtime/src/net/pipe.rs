//! Bytes that pass through the kernel from socket to socket: pipes, pooled per core.
//!
//! A long plaintext body that nobody looks at is moved by splice(2): its pages change hands and are never copied into
//! this process. The pool is bounded; past [`PIPES_MAX`] pipes in use, or without descriptors, [`Pipe::try_take`] says no
//! and the caller copies. A pipe that still holds bytes when it is dropped is closed with them.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::sys;

/// What one pipe holds, as far as the kernel lets a process have that much.
pub const PIPE_BYTES: usize = 256 * 1024;
/// Pipes of one core, in use and free. Each takes two descriptors.
pub const PIPES_MAX: usize = 64;

thread_local! {
    static FREE: RefCell<Vec<Ends>> = const { RefCell::new(Vec::new()) };
    static LIVE: Cell<usize> = const { Cell::new(0) };
}

#[derive(Debug)]
struct Ends {
    read: OwnedFd,
    write: OwnedFd,
}

/// A pipe and how many bytes are in it.
#[derive(Debug)]
pub struct Pipe {
    /// `None` only while dropping.
    ends: Option<Ends>,
    filled: usize,
}

/// Pipes of this core, in use and free.
pub fn pipes() -> usize {
    LIVE.get()
}

impl Pipe {
    /// An empty pipe, or `None` when this core has as many as it may, or the process no descriptors.
    pub fn try_take() -> Option<Self> {
        if let Some(ends) = FREE.with(|free| free.borrow_mut().pop()) {
            return Some(Self { ends: Some(ends), filled: 0 });
        }
        if LIVE.get() >= PIPES_MAX {
            return None;
        }
        let (read, write) = sys::pipe().ok()?;
        // A smaller pipe takes more calls, no more.
        match sys::set_pipe_bytes(&write, PIPE_BYTES) {
            Ok(()) | Err(_) => {}
        }
        LIVE.set(LIVE.get() + 1);
        Some(Self { ends: Some(Ends { read, write }), filled: 0 })
    }

    /// Bytes in the pipe.
    pub fn len(&self) -> usize {
        self.filled
    }

    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Moves up to `bytes_max` bytes from a socket into the empty pipe; 0 is the end of the stream.
    pub(super) fn fill(&mut self, socket: i32, bytes_max: usize) -> io::Result<usize> {
        debug_assert_eq!(
            self.filled, 0,
            "would block means that the socket is empty, not that the pipe is full"
        );
        let Some(ends) = &self.ends else { return Err(io::ErrorKind::BrokenPipe.into()) };
        let moved = sys::splice(socket, ends.write.as_raw_fd(), bytes_max.min(PIPE_BYTES))?;
        self.filled += moved;
        Ok(moved)
    }

    /// Moves bytes from the pipe into a socket.
    pub(super) fn drain(&mut self, socket: i32) -> io::Result<usize> {
        let Some(ends) = &self.ends else { return Err(io::ErrorKind::BrokenPipe.into()) };
        let moved = sys::splice(ends.read.as_raw_fd(), socket, self.filled)?;
        self.filled -= moved.min(self.filled);
        Ok(moved)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let Some(ends) = self.ends.take() else { return };
        // At thread exit the pool may be gone first; then the pipe is closed, too.
        let is_kept = self.filled == 0 && FREE.try_with(|free| free.borrow_mut().push(ends)).is_ok();
        if !is_kept {
            match LIVE.try_with(|live| live.set(live.get().saturating_sub(1))) {
                Ok(()) | Err(_) => {}
            }
        }
    }
}
