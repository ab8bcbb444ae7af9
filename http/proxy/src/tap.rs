//! A request body on its way to a mirror: pieces that the relay has passed on to the primary and the mirror has not taken.
//!
//! ```text
//!   Waiting ── begin ──► Begun ── answered, failed, too slow, source broke off ──► Over
//!      └─ no room, source broke off, nobody takes it ──────────────────────────────►
//! ```
//! Invariants: giving never waits and never fails, so the primary does not know whether anybody listens; what the rules of
//! the mirror or the room of its cluster do not hold ends the mirror instead; each ends once, which is counted, and gives
//! its place and its bytes back then. Given by `relay`, taken by `exchange/mirror`.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use core_runtime::clock;
use http_balance::mirror::MirrorRules;
use http_wire::fields::Fields;
use http_wire::head::BodyLength;

use crate::chunk::Chunk;
use crate::core::Core;
use crate::pool::Cluster;
use crate::record::MirrorEnd;
use crate::side::BodyEvent;

/// Bytes that a mirror takes at once.
const PIECE_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct Tap {
    core: Rc<Core>,
    cluster: Rc<Cluster>,
    rules: MirrorRules,
    flow: RefCell<Flow>,
}

#[derive(Debug)]
struct Flow {
    stage: Stage,
    /// Among the mirrors of its cluster.
    has_place: bool,
    queued: BytesMut,
    /// The end of the body, with its trailers, until it is taken.
    end: Option<Option<Fields>>,
    /// Nothing more is wanted: all of the body has come, or the mirror takes no more of it.
    is_whole: bool,
    /// Bytes given in all.
    given: u64,
    /// The same of the primary's present attempt, which begins again with the first byte.
    seen: u64,
    reader: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    Begun,
    Over(MirrorEnd),
}

impl Tap {
    /// For a body that a mirror in `cluster` may get. One that has a body takes its place at once, since it takes memory.
    ///
    /// # Errors
    /// There is no room, which has not been counted.
    pub(crate) fn new(
        core: &Rc<Core>,
        cluster: &Rc<Cluster>,
        rules: MirrorRules,
        body: BodyLength,
    ) -> Result<Rc<Self>, MirrorEnd> {
        let has_body = body != BodyLength::Empty;
        let now = clock::now();
        let mut room = cluster.mirrors.borrow_mut();
        let taken = if has_body { room.start(&rules, now) } else { room.answers(now) };
        taken.map_err(MirrorEnd::Dropped)?;
        let flow = RefCell::new(Flow {
            stage: Stage::Waiting,
            has_place: has_body,
            queued: BytesMut::new(),
            end: None,
            is_whole: !has_body,
            given: 0,
            seen: 0,
            reader: None,
        });
        Ok(Rc::new(Self { core: Rc::clone(core), cluster: Rc::clone(cluster), rules, flow }))
    }

    pub(crate) fn cluster(&self) -> &Rc<Cluster> {
        &self.cluster
    }

    /// Whether the relay has to see the rest of the body.
    pub(crate) fn is_open(&self) -> bool {
        let flow = self.flow.borrow();
        !flow.is_whole && !matches!(flow.stage, Stage::Over(_))
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.flow.borrow().stage == Stage::Waiting
    }

    /// Whether no more of the body will come.
    pub(crate) fn is_whole(&self) -> bool {
        self.flow.borrow().is_whole
    }

    /// Copies a piece that the primary gets. What an attempt before this one has shown is known. Never inlined: requests
    /// without a mirror do not carry it.
    #[inline(never)]
    pub(crate) fn give(&self, event: &BodyEvent) {
        if !self.is_open() {
            return;
        }
        if let BodyEvent::Data(chunk) | BodyEvent::Last(chunk) = event
            && let Err(end) = self.queue(chunk.as_slice())
        {
            self.end(end);
            return;
        }
        let mut flow = self.flow.borrow_mut();
        flow.end = match event {
            BodyEvent::Data(_) => None,
            BodyEvent::Last(_) => Some(None),
            BodyEvent::End(trailers) => Some(trailers.clone()),
        };
        flow.is_whole = flow.end.is_some();
        let reader = flow.reader.take();
        drop(flow);
        reader.into_iter().for_each(Waker::wake);
    }

    fn queue(&self, bytes: &[u8]) -> Result<(), MirrorEnd> {
        let mut flow = self.flow.borrow_mut();
        let known = usize::try_from(flow.given.saturating_sub(flow.seen)).unwrap_or(usize::MAX);
        flow.seen = flow.seen.saturating_add(as_u64(bytes.len()));
        let new = bytes.get(known..).unwrap_or(&[]);
        if new.is_empty() {
            return Ok(());
        }
        let (more, queued) = (as_u64(new.len()), as_u64(flow.queued.len()));
        let held = self.cluster.mirrors.borrow_mut().hold(&self.rules, more, queued, clock::now());
        held.map_err(|dropped| match flow.stage {
            Stage::Waiting => MirrorEnd::Dropped(dropped),
            Stage::Begun | Stage::Over(_) => MirrorEnd::Cut(dropped),
        })?;
        flow.queued.extend_from_slice(new);
        flow.given = flow.given.saturating_add(more);
        Ok(())
    }

    /// Another attempt of the primary shows the body from its beginning.
    pub(crate) fn restart(&self) {
        self.flow.borrow_mut().seen = 0;
    }

    /// The mirror is about to be sent.
    ///
    /// # Errors
    /// There is no room for it.
    pub(crate) fn begin(&self) -> Result<(), MirrorEnd> {
        let mut flow = self.flow.borrow_mut();
        if !flow.has_place {
            self.cluster.mirrors.borrow_mut().start(&self.rules, clock::now()).map_err(MirrorEnd::Dropped)?;
            flow.has_place = true;
        }
        flow.stage = Stage::Begun;
        Ok(())
    }

    /// The next piece for the mirror; None: there is none now.
    pub(crate) fn take(&self) -> Option<BodyEvent> {
        let mut flow = self.flow.borrow_mut();
        if flow.queued.is_empty() {
            return flow.end.take().map(BodyEvent::End);
        }
        let len = flow.queued.len().min(PIECE_BYTES_MAX);
        let piece = Chunk::Shared(flow.queued.split_to(len).freeze());
        self.cluster.mirrors.borrow_mut().let_go(as_u64(len));
        self.core.stats.borrow_mut().mirror_took(self.cluster.stat, as_u64(len));
        if flow.queued.is_empty() && matches!(flow.end, Some(None)) {
            flow.end = None;
            return Some(BodyEvent::Last(piece));
        }
        Some(BodyEvent::Data(piece))
    }

    /// The mirror takes no more of the body, but may still answer.
    pub(crate) fn stop(&self) {
        let mut flow = self.flow.borrow_mut();
        flow.is_whole = true;
        let queued = std::mem::take(&mut flow.queued);
        self.cluster.mirrors.borrow_mut().let_go(as_u64(queued.len()));
    }

    /// Ready when the mirror has been ended from this side. The calling task is woken for that and for every piece.
    pub(crate) fn poll_over(&self, cx: &Context<'_>) -> Poll<MirrorEnd> {
        let mut flow = self.flow.borrow_mut();
        if let Stage::Over(end) = flow.stage {
            return Poll::Ready(end);
        }
        if !flow.reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker())) {
            flow.reader = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// The exchange is over: a mirror that has not begun has nothing to copy, and one whose body is not whole breaks off
    /// like the body did.
    pub(crate) fn source_ended(&self) {
        if self.is_waiting() {
            self.end(MirrorEnd::Unfinished);
        } else if self.is_open() {
            self.end(MirrorEnd::Aborted);
        }
    }

    /// Ends the mirror, the first time, and counts how.
    pub(crate) fn end(&self, end: MirrorEnd) {
        let mut flow = self.flow.borrow_mut();
        if matches!(flow.stage, Stage::Over(_)) {
            return;
        }
        flow.stage = Stage::Over(end);
        let queued = std::mem::take(&mut flow.queued);
        let has_place = std::mem::take(&mut flow.has_place);
        let reader = flow.reader.take();
        drop(flow);
        let mut room = self.cluster.mirrors.borrow_mut();
        room.let_go(as_u64(queued.len()));
        if has_place {
            room.finished();
        }
        drop(room);
        self.core.stats.borrow_mut().mirror_ended(self.cluster.stat, end);
        reader.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Tap {
    /// A mirror that goes with its core is cut.
    fn drop(&mut self) {
        self.end(MirrorEnd::Aborted);
    }
}

fn as_u64(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
