//! The executor of one shard: a ready queue, and a late queue that runs when the ready one is empty.
//!
//! ```text
//!  wake ──► ready ──► poll ──► pending ──┐         turn_end().await ──► late ──► ready, once per turn
//!             ▲                          │
//!             └──────────── wake ────────┘         next_turn().await ──► behind what the kernel reports for the next turn
//! ```
//! A task lives as long as the shard holds it in `tasks`; a panic ends the task, not the shard, and is counted.
//! Called by `shard` (the loop) and by everybody through [`spawn`], [`yield_now`] and [`turn_end`].

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::task_waker::waker;

type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

/// One spawned future.
pub(crate) struct Task {
    future: RefCell<Option<LocalFuture>>,
    queued: Cell<bool>,
    slot: Cell<usize>,
    /// [`thread_mark`] of the thread that owns the task.
    pub(crate) thread: usize,
}

impl Task {
    /// Puts the task on the ready queue unless it is there already.
    pub(crate) fn schedule(task: &Rc<Self>) {
        if !task.queued.replace(true) {
            // A task that is woken while the thread's locals are being destroyed has nobody to run it.
            let _gone: Result<(), std::thread::AccessError> =
                EXEC.try_with(|exec| exec.ready.borrow_mut().push_back(Rc::clone(task)));
        }
    }
}

#[derive(Default)]
struct Exec {
    ready: RefCell<VecDeque<Rc<Task>>>,
    late: RefCell<Vec<Waker>>,
    next: RefCell<Vec<Waker>>,
    turn: Cell<u64>,
    tasks: RefCell<Vec<Option<Rc<Task>>>>,
    free: RefCell<Vec<usize>>,
    panics: Cell<u64>,
}

thread_local! {
    static EXEC: Exec = Exec::default();
    static MARK: u8 = const { 0 };
}

/// A number that differs between live threads: the address of a thread local.
pub(crate) fn thread_mark() -> usize {
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

/// Starts a future on the calling thread's shard. It first runs in this turn or the next one.
pub fn spawn(future: impl Future<Output = ()> + 'static) {
    // Boxed before anything else: a future is kilobytes, and each call that passes it on by value would copy it.
    spawn_boxed(Box::pin(future));
}

fn spawn_boxed(future: LocalFuture) {
    EXEC.with(|exec| {
        let slot = exec.free.borrow_mut().pop().unwrap_or_else(|| {
            exec.tasks.borrow_mut().push(None);
            exec.tasks.borrow().len() - 1
        });
        let task = Rc::new(Task {
            future: RefCell::new(Some(future)),
            queued: Cell::new(false),
            slot: Cell::new(slot),
            thread: thread_mark(),
        });
        exec.tasks.borrow_mut()[slot] = Some(Rc::clone(&task));
        Task::schedule(&task);
    });
}

/// Puts every task of this thread's shard on the ready queue.
pub(crate) fn wake_all() {
    EXEC.with(|exec| exec.tasks.borrow().iter().flatten().for_each(Task::schedule));
}

/// Lets every other ready task run once before the caller goes on, in the same turn.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Waits until no other task is ready in this turn: the place for one flush of all that the turn produced.
pub async fn turn_end() {
    let mut waited = false;
    poll_fn(|cx| poll_turn_end(cx, &mut waited)).await;
}

/// [`turn_end`] for hand-written futures: `Pending` once, then `Ready` when the ready queue has run dry.
pub fn poll_turn_end(cx: &Context<'_>, waited: &mut bool) -> Poll<()> {
    if std::mem::replace(waited, true) {
        return Poll::Ready(());
    }
    EXEC.with(|exec| exec.late.borrow_mut().push(cx.waker().clone()));
    Poll::Pending
}

/// Waits until the kernel has been asked for events: work that comes in any amount lets the rest go first in each turn.
pub async fn next_turn() {
    let mut waited = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        wake_next_turn(cx);
        Poll::Pending
    })
    .await;
}

/// [`next_turn`] for hand-written futures: has the task polled in the next turn. One that wakes itself is polled again in
/// this one, before the kernel is asked for what others have sent.
pub fn wake_next_turn(cx: &Context<'_>) {
    EXEC.with(|exec| exec.next.borrow_mut().push(cx.waker().clone()));
}

/// Number of this thread's turn.
pub fn turn() -> u64 {
    EXEC.with(|exec| exec.turn.get())
}

/// Whether the loop has something to run without waiting for the kernel.
pub(crate) fn has_ready() -> bool {
    let is_empty = |wakers: &RefCell<Vec<Waker>>| wakers.borrow().is_empty();
    EXEC.with(|exec| !exec.ready.borrow().is_empty() || !is_empty(&exec.late) || !is_empty(&exec.next))
}

/// Panics of tasks on this thread since its start.
pub(crate) fn panics() -> u64 {
    EXEC.with(|exec| exec.panics.get())
}

/// Runs what is ready now, then the late queue. Tasks that become ready meanwhile run too, up to a bound
/// that keeps the ring served; the rest waits for the next turn.
pub(crate) fn run_turn() {
    const POLLS_PER_TURN_MAX: usize = 4096;
    EXEC.with(|exec| {
        exec.turn.set(exec.turn.get() + 1);
        let next = std::mem::take(&mut *exec.next.borrow_mut());
        next.into_iter().for_each(Waker::wake);
        let mut left = POLLS_PER_TURN_MAX;
        loop {
            while left > 0 {
                let Some(task) = exec.ready.borrow_mut().pop_front() else {
                    break;
                };
                left -= 1;
                poll_task(exec, &task);
            }
            let late = std::mem::take(&mut *exec.late.borrow_mut());
            if late.is_empty() || left == 0 {
                *exec.late.borrow_mut() = late;
                return;
            }
            late.into_iter().for_each(Waker::wake);
        }
    });
}

fn poll_task(exec: &Exec, task: &Rc<Task>) {
    task.queued.set(false);
    let Some(mut future) = task.future.borrow_mut().take() else {
        return;
    };
    let waker = waker(task);
    let mut cx = Context::from_waker(&waker);
    match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx))) {
        Ok(Poll::Pending) => *task.future.borrow_mut() = Some(future),
        Ok(Poll::Ready(())) => retire(exec, task),
        Err(_reported_by_the_panic_hook) => {
            exec.panics.set(exec.panics.get() + 1);
            retire(exec, task);
        }
    }
}

fn retire(exec: &Exec, task: &Task) {
    let slot = task.slot.get();
    let held = exec.tasks.borrow_mut()[slot].take();
    debug_assert!(held.is_some(), "a task retires once");
    exec.free.borrow_mut().push(slot);
}

/// Drops every task of this thread, so that futures release what they own while the driver still exists.
pub(crate) fn drop_all() {
    EXEC.with(|exec| {
        loop {
            let tasks = std::mem::take(&mut *exec.tasks.borrow_mut());
            if tasks.is_empty() {
                break;
            }
            for task in tasks.into_iter().flatten() {
                let future = task.future.borrow_mut().take();
                drop(future);
            }
        }
        exec.free.borrow_mut().clear();
        exec.late.borrow_mut().clear();
        exec.next.borrow_mut().clear();
        exec.ready.borrow_mut().clear();
    });
}
