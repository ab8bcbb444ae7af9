//! Tests under load against the built binaries: the soak in short, restarts under new connections, floods, idle
//! connections; and what a request costs. One at a time, since each measures.
#![expect(clippy::tests_outside_test_module, reason = "this whole crate is a test target")]

mod floods;
mod idle;
mod instructions;
mod neighbours;
mod restart;
mod soak;

use std::sync::{Mutex, MutexGuard, PoisonError};

static MACHINE: Mutex<()> = Mutex::new(());

/// The machine for one test alone.
fn alone() -> MutexGuard<'static, ()> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}
