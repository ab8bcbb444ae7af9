//! Bytes waiting to be written to one connection, in order: staged bytes, one body chunk, bytes behind it.
//!
//! Heads, chunk framing and small bodies are copied together, so that a typical message leaves in one write; a
//! large chunk is written from where it was read. Bounded: one chunk, and [`STAGED_BYTES_MAX`] beside it.

use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use core_runtime::buf::Scratch;

use crate::chunk::Chunk;
use crate::transport::Transport;

/// Chunks up to this size are copied behind the head: cheaper than a second element in the write.
const COPY_BYTES_MAX: usize = 4096;
/// Staged bytes above which no more is taken before a flush.
const STAGED_BYTES_MAX: usize = 16 * 1024;

#[derive(Debug, Default)]
pub(crate) struct Output {
    staged: Option<Scratch>,
    staged_sent: usize,
    chunk: Option<Chunk>,
    behind: Option<Scratch>,
    behind_sent: usize,
}

impl Output {
    pub(crate) fn is_empty(&self) -> bool {
        self.staged.is_none() && self.chunk.is_none() && self.behind.is_none()
    }

    /// Whether another piece may be added before a flush.
    pub(crate) fn has_room(&self) -> bool {
        self.chunk.is_none() && self.staged.as_ref().is_none_or(|staged| staged.len() < STAGED_BYTES_MAX)
    }

    /// Where bytes that are made here (heads, framing) are appended.
    pub(crate) fn stage(&mut self) -> &mut Vec<u8> {
        let place = if self.chunk.is_some() { &mut self.behind } else { &mut self.staged };
        place.get_or_insert_with(Scratch::take)
    }

    /// Adds body bytes: copied when small, else taken as they are.
    pub(crate) fn push(&mut self, chunk: Chunk) {
        let is_piped = matches!(chunk, Chunk::Piped(_));
        debug_assert!(!is_piped || self.chunk.is_none(), "a piped chunk is taken when there is room");
        if !is_piped && (self.chunk.is_some() || chunk.len() <= COPY_BYTES_MAX) {
            self.stage().extend_from_slice(chunk.as_slice());
        } else {
            self.chunk = Some(chunk);
        }
    }

    /// Hands everything to the transport, which may still hold some of it.
    pub(crate) fn poll_write(
        &mut self,
        transport: &mut Transport,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.is_empty() {
            if self.chunk.is_none() && self.staged_sent == 0 && transport.post(&mut self.staged) {
                return Poll::Ready(Ok(()));
            }
            let staged = self.staged.as_ref().and_then(|s| s.get(self.staged_sent..)).unwrap_or(&[]);
            let behind = self.behind.as_ref().and_then(|s| s.get(self.behind_sent..)).unwrap_or(&[]);
            let sent = match &mut self.chunk {
                None => ready!(transport.poll_write(cx, staged))?,
                Some(Chunk::Piped(_)) if !staged.is_empty() => ready!(transport.poll_write(cx, staged))?,
                Some(Chunk::Piped(pipe)) => ready!(transport.poll_splice_out(cx, pipe))?,
                Some(chunk) => {
                    let slices = [IoSlice::new(staged), IoSlice::new(chunk.as_slice()), IoSlice::new(behind)];
                    ready!(transport.poll_write_vectored(cx, &slices))?
                }
            };
            self.advance(sent);
        }
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, mut sent: usize) {
        if let Some(staged) = &self.staged {
            let step = sent.min(staged.len() - self.staged_sent);
            self.staged_sent += step;
            sent -= step;
            if self.staged_sent == staged.len() {
                self.staged = None;
                self.staged_sent = 0;
            }
        }
        if let Some(chunk) = &mut self.chunk {
            let step = sent.min(chunk.len());
            chunk.consume(step);
            sent -= step;
            if chunk.is_empty() {
                self.chunk = None;
            }
        }
        if let Some(behind) = &self.behind {
            self.behind_sent += sent;
            if self.behind_sent == behind.len() {
                self.behind = None;
                self.behind_sent = 0;
            }
        }
        if self.chunk.is_none() && self.behind.is_some() {
            // What stood behind the chunk is now at the front.
            self.staged = self.behind.take();
            self.staged_sent = std::mem::take(&mut self.behind_sent);
        }
    }
}
