//! A piece of a body on its way: the pooled buffer that it was read into, the bytes that h2 gave us, or a pipe in the
//! kernel.
//!
//! Moving a chunk never copies. It is the `Buf` type of the h2 crate's send side.

use bytes::{Buf as _, Bytes};
use core_runtime::buf::Buf;
use core_runtime::net::Pipe;

#[derive(Debug)]
pub(crate) enum Chunk {
    Pooled(Buf),
    Shared(Bytes),
    /// Only for sinks that take pipes: its bytes are nowhere in this process.
    Piped(Pipe),
}

impl Chunk {
    /// The bytes; none of a pipe's.
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Pooled(buf) => buf.filled(),
            Self::Shared(bytes) => bytes,
            Self::Piped(_) => &[],
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Piped(pipe) => pipe.len(),
            in_memory => in_memory.as_slice().len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops `count` bytes from the front.
    pub(crate) fn consume(&mut self, count: usize) {
        match self {
            Self::Pooled(buf) => buf.consume(count),
            Self::Shared(bytes) => bytes.advance(count),
            // What left a pipe is gone from it already.
            Self::Piped(_) => {}
        }
    }

    /// Takes the first `count` bytes off as a chunk of their own, without copying.
    pub(crate) fn split_to(&mut self, count: usize) -> Self {
        let mut bytes = match std::mem::replace(self, Self::Shared(Bytes::new())) {
            Self::Pooled(buf) => Bytes::from_owner(Owner(buf)),
            Self::Shared(bytes) => bytes,
            Self::Piped(_) => Bytes::new(),
        };
        let front = bytes.split_to(count.min(bytes.len()));
        *self = Self::Shared(bytes);
        Self::Shared(front)
    }
}

/// Keeps a pooled buffer alive under a `Bytes`; it goes back to the pool with the last part.
struct Owner(Buf);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        self.0.filled()
    }
}

impl bytes::Buf for Chunk {
    fn remaining(&self) -> usize {
        self.as_slice().len()
    }

    fn chunk(&self) -> &[u8] {
        self.as_slice()
    }

    fn advance(&mut self, count: usize) {
        self.consume(count);
    }
}
