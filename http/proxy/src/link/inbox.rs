//! What has come on a stream and nobody has taken yet. Bounded by the stream's window; a crowd of small pieces is kept
//! as one, so that they cost no more memory than their bytes.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use core_runtime::buf::Buf;
use http_wire::fields::Fields;
use http_wire::h2::{ResponseMeta, StreamFault};
use http_wire::head::ResponseHead;

use crate::chunk::Chunk;
use crate::exchange::INTERIM_RESPONSES_MAX;

/// A piece up to this size has a vector of its own size, larger ones a pooled buffer.
const SMALL_BYTES_MAX: usize = 4096;
/// As many heads as an exchange passes on: it gives up before it misses one of those that are dropped here.
const LATER_HEADS_MAX: usize = INTERIM_RESPONSES_MAX as usize;

/// What a stream hands out of a body.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Never empty; more may follow.
    Data(Chunk),
    /// Never empty; the body ends behind it.
    Last(Chunk),
    End(Option<Fields>),
}

impl Piece {
    /// Bytes of body.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Data(chunk) | Self::Last(chunk) => chunk.len(),
            Self::End(_) => 0,
        }
    }
}

#[derive(Debug)]
enum Stored {
    Small(Vec<u8>),
    Pooled(Buf),
}

#[derive(Debug, Default)]
pub(crate) struct Inbox {
    head: Option<(ResponseHead, ResponseMeta)>,
    /// Those behind an interim one that nobody has taken yet.
    later_heads: VecDeque<(ResponseHead, ResponseMeta)>,
    pieces: VecDeque<Stored>,
    /// The message has ended, with these trailers.
    end: Option<Option<Fields>>,
    fault: Option<StreamFault>,
    /// The exchange that holds the stream.
    waker: Option<Waker>,
}

impl Inbox {
    pub(super) fn put_head(&mut self, head: ResponseHead, meta: ResponseMeta) {
        if self.head.is_none() {
            self.head = Some((head, meta));
        } else if self.later_heads.len() < LATER_HEADS_MAX {
            self.later_heads.push_back((head, meta));
        }
        self.wake();
    }

    pub(super) fn put_data(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        match self.pieces.back_mut() {
            Some(Stored::Small(small)) if small.len() + rest.len() <= SMALL_BYTES_MAX => {
                small.extend_from_slice(rest);
                rest = &[];
            }
            Some(Stored::Pooled(buf)) => {
                let taken = buf.extend(rest);
                rest = rest.get(taken..).unwrap_or(&[]);
            }
            Some(Stored::Small(_)) | None => {}
        }
        while !rest.is_empty() {
            let large = if rest.len() > SMALL_BYTES_MAX { Buf::try_take() } else { None };
            // Without a buffer memory is as bounded: by the window.
            let Some(mut buf) = large else {
                self.pieces.push_back(Stored::Small(rest.to_vec()));
                break;
            };
            let taken = buf.extend(rest);
            rest = rest.get(taken..).unwrap_or(&[]);
            self.pieces.push_back(Stored::Pooled(buf));
        }
        self.wake();
    }

    pub(super) fn put_end(&mut self, trailers: Option<Fields>) {
        self.end = Some(trailers);
        self.wake();
    }

    pub(super) fn fail(&mut self, fault: StreamFault) {
        self.fault = Some(fault);
        self.wake();
    }

    pub(super) fn wake(&mut self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }

    pub(super) fn register(&mut self, cx: &Context<'_>) {
        if !self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
        }
    }

    pub(super) fn take_head(&mut self) -> Option<(ResponseHead, ResponseMeta)> {
        std::mem::replace(&mut self.head, self.later_heads.pop_front())
    }

    /// The next piece, of what came before a fault too.
    pub(super) fn take_piece(&mut self) -> Option<Piece> {
        let Some(stored) = self.pieces.pop_front() else { return self.end.take().map(Piece::End) };
        let chunk = match stored {
            Stored::Small(small) => Chunk::Shared(Bytes::from(small)),
            Stored::Pooled(buf) => Chunk::Pooled(buf),
        };
        if self.pieces.is_empty() && matches!(self.end, Some(None)) {
            self.end = None;
            return Some(Piece::Last(chunk));
        }
        Some(Piece::Data(chunk))
    }

    pub(super) fn unread_bytes(&self) -> usize {
        let len = |stored: &Stored| match stored {
            Stored::Small(small) => small.len(),
            Stored::Pooled(buf) => buf.len(),
        };
        self.pieces.iter().map(len).sum()
    }

    pub(super) fn fault(&self) -> Option<StreamFault> {
        self.fault
    }

    pub(super) fn poll_fault(&mut self, cx: &Context<'_>) -> Poll<StreamFault> {
        match self.fault {
            Some(fault) => Poll::Ready(fault),
            None => {
                self.register(cx);
                Poll::Pending
            }
        }
    }
}
