//! Wakers for tasks of one thread: a plain reference count, no atomics.
//!
//! `Waker` is `Send`, so a library could carry one to another thread. Every entry point therefore compares the
//! thread that made the task with the calling one and aborts the process on a mismatch: a stop, never a race.
#![expect(unsafe_code, reason = "a RawWaker over Rc")]

use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::task::{RawWaker, RawWakerVTable, Waker};

use crate::exec::{Task, thread_mark};

/// A waker that puts `task` on its own thread's ready queue.
pub(crate) fn waker(task: &Rc<Task>) -> Waker {
    let data = Rc::into_raw(Rc::clone(task)).cast::<()>();
    // SAFETY: the vtable's functions take `data` as the Rc<Task> that it is and keep its count balanced.
    unsafe { Waker::from_raw(RawWaker::new(data, &VTABLE)) }
}

static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, drop_waker);

/// Borrows the task behind `data` without touching its count.
///
/// # Safety
/// `data` came from `Rc::into_raw` in [`waker`] or [`clone`], and its count is still held.
unsafe fn borrow(data: *const ()) -> ManuallyDrop<Rc<Task>> {
    // SAFETY: the caller promises that `data` is a live Rc<Task>; ManuallyDrop keeps its count.
    let task = ManuallyDrop::new(unsafe { Rc::from_raw(data.cast::<Task>()) });
    if task.thread != thread_mark() {
        std::process::abort();
    }
    task
}

unsafe fn clone(data: *const ()) -> RawWaker {
    // SAFETY: the waker machinery calls this with data of a live waker.
    let task = unsafe { borrow(data) };
    RawWaker::new(Rc::into_raw(Rc::clone(&task)).cast(), &VTABLE)
}

unsafe fn wake(data: *const ()) {
    // SAFETY: `wake` consumes the waker, so its count passes to this Rc.
    let task = ManuallyDrop::into_inner(unsafe { borrow(data) });
    Task::schedule(&task);
}

unsafe fn wake_by_ref(data: *const ()) {
    // SAFETY: the waker machinery calls this with data of a live waker.
    let task = unsafe { borrow(data) };
    Task::schedule(&task);
}

unsafe fn drop_waker(data: *const ()) {
    // SAFETY: dropping the waker gives its count back through this Rc.
    drop(ManuallyDrop::into_inner(unsafe { borrow(data) }));
}
