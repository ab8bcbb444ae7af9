//! The desk of one core: connections with room ask it for the next request.
//!
//! ```text
//!  closed loop   take ─► Job at once, until the end or the bound
//!  open loop     pacer ─► due ─► take ─► Job                nothing due: the connection is parked, and woken
//!                                                           by the pacer, the one that waits longest first
//! ```
//! Pure: time is an argument. Invariant: a connection is parked once at most.

use std::collections::VecDeque;
use std::time::Duration;

/// What a connection is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// Start a request that was meant to start at this time.
    Job(Duration),
    /// Nothing now; the connection is woken.
    Wait,
    /// Nothing any more.
    Over,
}

#[derive(Debug)]
enum Mode {
    Closed,
    Open { due: VecDeque<Duration>, parked: VecDeque<usize>, is_parked: Vec<bool>, has_ended: bool },
}

const GRACE: Duration = Duration::from_millis(50);

/// See the module.
#[derive(Debug)]
pub(crate) struct Desk {
    mode: Mode,
    /// What was meant to start before this time is warm-up and does not count.
    measured_from: Duration,
    /// No start at or after this time.
    end: Duration,
    /// Requests that may still start.
    left: u64,
}

impl Desk {
    /// A closed loop until `end` with at most `requests` requests.
    pub(crate) fn closed(measured_from: Duration, end: Duration, requests: u64) -> Self {
        Self { mode: Mode::Closed, measured_from, end, left: requests }
    }

    /// An open loop for `connections` connections.
    pub(crate) fn open(measured_from: Duration, end: Duration, requests: u64, connections: usize) -> Self {
        let mode = Mode::Open {
            due: VecDeque::new(),
            parked: VecDeque::new(),
            is_parked: vec![false; connections],
            has_ended: false,
        };
        Self { mode, measured_from, end, left: requests }
    }

    /// The next request for connection number `connection`.
    pub(crate) fn take(&mut self, now: Duration, connection: usize) -> Take {
        if now >= self.last_start() || self.left == 0 {
            return Take::Over;
        }
        let intended = match &mut self.mode {
            Mode::Closed => now,
            Mode::Open { due, parked, is_parked, has_ended } => match due.pop_front() {
                Some(intended) => intended,
                None if *has_ended => return Take::Over,
                None => {
                    if let Some(flag) = is_parked.get_mut(connection)
                        && !std::mem::replace(flag, true)
                    {
                        parked.push_back(connection);
                    }
                    return Take::Wait;
                }
            },
        };
        self.left -= u64::from(intended >= self.measured_from);
        Take::Job(intended)
    }

    /// The pacer: a request is due. Returns the connection to wake.
    pub(crate) fn hand_in(&mut self, intended: Duration) -> Option<usize> {
        let Mode::Open { due, parked, is_parked, .. } = &mut self.mode else { return None };
        due.push_back(intended);
        let connection = parked.pop_front()?;
        if let Some(flag) = is_parked.get_mut(connection) {
            *flag = false;
        }
        Some(connection)
    }

    /// The pacer has no more requests.
    pub(crate) fn no_more(&mut self) {
        if let Mode::Open { has_ended, .. } = &mut self.mode {
            *has_ended = true;
        }
    }

    /// No request starts from `now` on: the run ends early.
    pub(crate) fn close(&mut self, now: Duration) {
        self.end = self.end.min(now);
    }

    /// Whether no request will start any more.
    pub(crate) fn is_over(&self, now: Duration) -> bool {
        let is_drained = match &self.mode {
            Mode::Closed => false,
            Mode::Open { due, has_ended, .. } => *has_ended && due.is_empty(),
        };
        now >= self.last_start() || self.left == 0 || is_drained
    }

    /// What was due before the end may start a little after it: the last arrivals are not missed by a hair.
    fn last_start(&self) -> Duration {
        match &self.mode {
            Mode::Closed => self.end,
            Mode::Open { .. } => self.end + GRACE,
        }
    }

    /// The starts that were due and that no connection took, without those of the warm-up.
    pub(crate) fn missed(&self) -> impl Iterator<Item = Duration> + '_ {
        let due = match &self.mode {
            Mode::Closed => None,
            Mode::Open { due, .. } => Some(due.iter().copied()),
        };
        due.into_iter().flatten().filter(|intended| *intended >= self.measured_from)
    }

    /// The last moment of the run.
    pub(crate) fn end(&self) -> Duration {
        self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_closed_loop_ends_by_time_or_by_count() {
        let mut desk = Desk::closed(ms(1), ms(10), 2);
        assert_eq!(desk.take(ms(0), 0), Take::Job(ms(0)), "warm-up");
        assert_eq!(desk.take(ms(1), 0), Take::Job(ms(1)));
        assert_eq!(desk.take(ms(10), 0), Take::Over);
        assert_eq!(desk.take(ms(2), 0), Take::Job(ms(2)));
        assert_eq!(desk.take(ms(3), 0), Take::Over, "two was the bound");
    }

    #[test]
    fn parked_connections_are_woken_in_turn_and_once() {
        let mut desk = Desk::open(ms(0), ms(100), u64::MAX, 2);
        assert_eq!(desk.take(ms(0), 1), Take::Wait);
        assert_eq!(desk.take(ms(0), 0), Take::Wait);
        assert_eq!(desk.take(ms(0), 1), Take::Wait);
        assert_eq!(desk.hand_in(ms(1)), Some(1));
        assert_eq!(desk.hand_in(ms(2)), Some(0));
        assert_eq!(desk.hand_in(ms(3)), None, "nobody else waits");
        assert_eq!(desk.take(ms(3), 1), Take::Job(ms(1)));
        assert_eq!(desk.take(ms(3), 0), Take::Job(ms(2)));
        assert_eq!(desk.missed().collect::<Vec<_>>(), [ms(3)]);
        desk.no_more();
        assert!(!desk.is_over(ms(3)), "one is left");
        assert_eq!(desk.take(ms(4), 0), Take::Job(ms(3)));
        assert_eq!(desk.take(ms(4), 0), Take::Over);
        assert!(desk.is_over(ms(4)));
    }
}
