//! What the tests and the bench of the XDP program share: frames made byte by byte, and a rig that holds one loaded
//! program with a small fleet in its maps.
//!
//! Where the kernel refuses BPF the tests are skipped, each with a line on standard error and the count so far.

pub mod frame;
mod loss;
pub mod net;
mod pins;
pub mod rig;
mod tags;
pub mod tap;
pub mod transfer;

use std::io::Write as _;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use frame::{Packet, VLAN};
pub use loss::Loss;
pub use pins::Pins;
pub use rig::Rig;
pub use tags::Tags;
pub use tap::Tap;

static SKIPPED: AtomicUsize = AtomicUsize::new(0);

/// Why this machine cannot run the program, if rights or features are missing. What else may be wrong with the program is
/// for the tests to find.
static REFUSAL: LazyLock<Option<String>> = LazyLock::new(|| {
    let error = l4_load::Program::load(&l4_load::LoadOptions::default()).err()?;
    error.is_of_the_machine().then(|| chain(&error))
});

/// Whether the kernel lets this process use the program; says loudly that `test` is skipped if not.
#[must_use]
pub fn may_run(test: &str) -> bool {
    let Some(error) = &*REFUSAL else { return true };
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    note(&format!("SKIPPED {test}: {error} ({count} skipped in this binary so far)"));
    false
}

/// A line on standard error, past the test harness, which swallows the output of a test that passes.
pub fn note(text: &str) {
    // Nothing is left to say it with when standard error is closed.
    drop(writeln!(std::io::stderr(), "{text}"));
}

/// Reports the whole chain of an error.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text.push_str(": ");
        text.push_str(&error.to_string());
        next = error.source();
    }
    text
}
