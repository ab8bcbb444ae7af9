//! The shard's clock: read once per loop turn, and told to everybody else as a value.
//!
//! Monotonic time is a `Duration` since the process's epoch, the same on every core, so that times can be
//! compared across cores and a simulation can make them up. Wall time is re-anchored once a second.

use std::cell::Cell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quanta::{Clock, Instant};

thread_local! {
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static WALL: Cell<WallAnchor> = const { Cell::new(WallAnchor { mono: Duration::ZERO, unix: Duration::ZERO }) };
}

#[derive(Clone, Copy)]
struct WallAnchor {
    mono: Duration,
    unix: Duration,
}

/// Time between two re-anchorings of wall time to the system's clock.
const WALL_REFRESH: Duration = Duration::from_secs(1);

/// A calibrated counter and the epoch that all cores share.
#[derive(Clone, Debug)]
pub struct Epoch {
    clock: Clock,
    start: Instant,
}

impl Epoch {
    /// Calibrates the time stamp counter (a few milliseconds) and starts the epoch.
    pub fn start() -> Self {
        let clock = Clock::new();
        let start = clock.now();
        Self { clock, start }
    }

    /// Reads the counter: time since the epoch. For threads without a shard; a shard asks [`now`].
    pub fn read(&self) -> Duration {
        self.clock.now().saturating_duration_since(self.start)
    }

    /// Publishes the time of this turn to the calling thread.
    pub(crate) fn tick(&self) -> Duration {
        let now = self.read();
        NOW.set(now);
        let anchor = WALL.get();
        if anchor.unix.is_zero() || now.saturating_sub(anchor.mono) >= WALL_REFRESH {
            WALL.set(WallAnchor { mono: now, unix: system_time() });
        }
        now
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place where wall time is read")]
fn system_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Monotonic time of this loop turn, since the process's epoch.
pub fn now() -> Duration {
    NOW.get()
}

/// Wall time of this loop turn, since the Unix epoch.
pub fn unix_time() -> Duration {
    let anchor = WALL.get();
    anchor.unix + now().saturating_sub(anchor.mono)
}
