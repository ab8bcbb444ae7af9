//! Waiting for conditions. Tests never sleep for a guessed time: they wait until something holds, and fail with
//! its name when it does not hold within a limit. Called by the rest of the harness and by every test.

use std::time::{Duration, Instant};

/// How long a thing that should happen at once may take on a busy two-core machine.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// Time between two looks at a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Waits until `condition` holds.
///
/// # Panics
/// When it does not hold within `limit`; the message names `what`.
#[track_caller]
pub fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    wait_for(what, limit, || condition().then_some(()));
}

/// Waits until `probe` gives a value and returns it.
///
/// # Panics
/// When it gives none within `limit`; the message names `what`.
#[track_caller]
pub fn wait_for<T>(what: &str, limit: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        pause(POLL_INTERVAL);
    }
}

/// Lets time pass where time itself is the input: the gap between two writes of a slow peer, the quiet of an
/// idle connection. Not a way to wait for somebody else's work; that is [`wait_until`].
pub fn pause(time: Duration) {
    let end = Instant::now() + time;
    while let Some(rest) = end.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero()) {
        std::thread::park_timeout(rest);
    }
}
