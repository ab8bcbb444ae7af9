//! Waiting inside one shard: no atomics, no locks.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// A flag that many tasks can wait for; once set it stays set.
#[derive(Clone, Debug, Default)]
pub struct Latch(Rc<LatchState>);

#[derive(Debug, Default)]
struct LatchState {
    is_set: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

impl Latch {
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the flag and wakes everybody.
    pub fn set(&self) {
        self.0.is_set.set(true);
        let waiting = std::mem::take(&mut *self.0.waiting.borrow_mut());
        waiting.into_iter().for_each(Waker::wake);
    }

    pub fn is_set(&self) -> bool {
        self.0.is_set.get()
    }

    /// Waits until the flag is set.
    pub async fn wait(&self) {
        poll_fn(|cx| self.poll_wait(cx)).await;
    }

    /// Ready once the flag is set.
    pub fn poll_wait(&self, cx: &Context<'_>) -> Poll<()> {
        if self.is_set() {
            return Poll::Ready(());
        }
        let mut waiting = self.0.waiting.borrow_mut();
        if !waiting.iter().any(|w| w.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

/// Wakes tasks that wait for "something changed"; a wait started before the signal sees it.
#[derive(Debug, Default)]
pub struct Signal {
    waiting: RefCell<Vec<Waker>>,
}

impl Signal {
    pub const fn new() -> Self {
        Self {
            waiting: RefCell::new(Vec::new()),
        }
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
            if waiting.is_empty() {
                None
            } else {
                Some(waiting.remove(0))
            }
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
