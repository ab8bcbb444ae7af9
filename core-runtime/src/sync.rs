//! Waiting inside one shard: no atomics, no locks.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::exec;

/// A flag that many tasks can wait for; once set it stays set.
///
/// A wait leaves nothing behind: setting the flag wakes every task of the shard, which happens a few times in its
/// life, while connections begin and end to wait with every request.
#[derive(Clone, Debug, Default)]
pub struct Latch(Rc<Cell<bool>>);

impl Latch {
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the flag and wakes everybody.
    pub fn set(&self) {
        if !self.0.replace(true) {
            exec::wake_all();
        }
    }

    pub fn is_set(&self) -> bool {
        self.0.get()
    }

    /// Waits until the flag is set.
    pub async fn wait(&self) {
        poll_fn(|cx| self.poll_wait(cx)).await;
    }

    /// Ready once the flag is set; the calling task is polled again then.
    pub fn poll_wait(&self, _cx: &Context<'_>) -> Poll<()> {
        if self.is_set() { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Wakes tasks that wait for "something changed"; a wait started before the signal sees it.
#[derive(Debug, Default)]
pub struct Signal {
    waiting: RefCell<Vec<Waker>>,
}

impl Signal {
    pub const fn new() -> Self {
        Self { waiting: RefCell::new(Vec::new()) }
    }

    /// Wakes everybody who registered since the last call.
    pub fn notify_all(&self) {
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Wakes the one that registered first.
    pub fn notify_one(&self) {
        let first = {
            let mut waiting = self.waiting.borrow_mut();
            if waiting.is_empty() { None } else { Some(waiting.remove(0)) }
        };
        if let Some(waker) = first {
            waker.wake();
        }
    }

    /// Registers the calling task for the next signal.
    pub fn register(&self, cx: &Context<'_>) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|w| w.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
    }
}
