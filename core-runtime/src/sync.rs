//! Waiting inside one shard: no atomics, no locks.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::exec;

/// Lets every task of the calling shard look at what it waits for: for changes that happen a few times in its life.
pub fn wake_all() {
    exec::wake_all();
}

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

/// Lets a few tasks a turn do what takes long; the others follow in later turns, first come first served. What the
/// kernel reports meanwhile runs before them, so that a crowd at the gate does not make everybody else wait for it.
#[derive(Clone, Debug)]
pub struct TurnGate(Rc<Gate>);

#[derive(Debug)]
struct Gate {
    per_turn: usize,
    /// The turn that `entered` counts.
    turn: Cell<u64>,
    entered: Cell<usize>,
    line: RefCell<VecDeque<(GatePlace, Waker)>>,
    /// A task calls those in the line.
    has_caller: Cell<bool>,
}

/// A place in a gate's line; set once its task may pass.
#[derive(Clone, Debug, Default)]
pub struct GatePlace(Rc<Cell<bool>>);

impl TurnGate {
    pub fn new(per_turn: usize) -> Self {
        let (turn, entered, line) = (Cell::new(0), Cell::new(0), RefCell::default());
        Self(Rc::new(Gate { per_turn, turn, entered, line, has_caller: Cell::new(false) }))
    }

    /// Ready when the calling task may pass. `place` is the caller's for one passage: `None` at first, and again after.
    pub fn poll_enter(&self, cx: &Context<'_>, place: &mut Option<GatePlace>) -> Poll<()> {
        match place {
            Some(called) if called.0.get() => {
                *place = None;
                return Poll::Ready(());
            }
            Some(_) => return Poll::Pending,
            None => {}
        }
        let gate = &self.0;
        if gate.line.borrow().is_empty() && gate.room() > 0 {
            gate.entered.set(gate.entered.get() + 1);
            return Poll::Ready(());
        }
        let own = place.insert(GatePlace::default()).clone();
        gate.line.borrow_mut().push_back((own, cx.waker().clone()));
        if !gate.has_caller.replace(true) {
            exec::spawn(call_each_turn(Rc::clone(gate)));
        }
        Poll::Pending
    }

    /// Takes note that who passed did the work of `count` more.
    pub fn spend(&self, count: usize) {
        let left = self.0.room();
        self.0.entered.set(self.0.entered.get() + count.min(left));
    }
}

/// Passes through the gate for bulk work in a turn; one is some 100 KiB in and out: 50 µs, several times that into memory
/// that a socket's buffer has not had yet.
const BULK_PER_TURN: usize = 2;
/// Bytes that a turn moves before everybody with more has to stand in line.
const FREE_BYTES_PER_TURN: usize = 256 * 1024;

thread_local! {
    static BULK: TurnGate = TurnGate::new(BULK_PER_TURN);
    /// The turn, and what is left of its free bytes.
    static FREE_BYTES: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
}

/// What may still be moved in this turn without passing the gate, in bytes.
pub fn free_bytes() -> usize {
    let turn = exec::turn();
    match FREE_BYTES.get() {
        (of, left) if of == turn => left,
        _ => FREE_BYTES_PER_TURN,
    }
}

/// Takes note of bytes that were moved.
pub fn spend_free_bytes(bytes: usize) {
    FREE_BYTES.set((exec::turn(), free_bytes().saturating_sub(bytes)));
}

/// [`TurnGate::poll_enter`] of the shard's gate for whatever moves many bytes.
pub fn poll_bulk(cx: &Context<'_>, place: &mut Option<GatePlace>) -> Poll<()> {
    BULK.with(|gate| gate.poll_enter(cx, place))
}

impl Gate {
    /// How many more may pass in this turn.
    fn room(&self) -> usize {
        let turn = exec::turn();
        if self.turn.replace(turn) != turn {
            self.entered.set(0);
        }
        self.per_turn.saturating_sub(self.entered.get())
    }
}

/// Nobody is in a line that nobody calls: when the caller's shard ends, its tasks do, too.
struct Caller(Rc<Gate>);

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.line.borrow_mut().clear();
        self.0.has_caller.set(false);
    }
}

async fn call_each_turn(gate: Rc<Gate>) {
    let caller = Caller(gate);
    let gate = &caller.0;
    loop {
        exec::next_turn().await;
        while gate.room() > 0 {
            let Some((place, waker)) = gate.line.borrow_mut().pop_front() else { return };
            gate.entered.set(gate.entered.get() + 1);
            place.0.set(true);
            waker.wake();
            // It may spend more than one passage.
            exec::yield_now().await;
        }
        if gate.line.borrow().is_empty() {
            return;
        }
    }
}
