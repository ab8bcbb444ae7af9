//! A piece of a body on its way: the pooled buffer that it was read into, bytes of their own, or a pipe in the kernel.
//!
//! Moving a chunk never copies.

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
}
