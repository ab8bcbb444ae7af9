//! The circuit breaker of one cluster on one core.
//!
//! ```text
//!            over 50 % of at least 100 in 10 s fail              10 s are over
//!   Closed ────────────────────────────────────────► Open ───────────────────────► Probing
//!     ▲                                                ▲                             │ 5 % pass
//!     │            most probes succeed                 │       most probes fail      │
//!     └────────────────────────────────────────────────┴─────────────────────────────┘
//! ```
//! Failures are 5xx, connect failures, resets and time-outs; a client that leaves counts for nothing. When a quiet
//! cluster would wait long for 5 %, one request a second is a probe.

use std::time::Duration;

use crate::outcome::Outcome;
use crate::rng::below;
use crate::window::Window;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerRules {
    /// Share of failures above which it opens.
    pub failure_percent: u32,
    /// Finished requests in the window below which it never opens.
    pub requests_min: u32,
    pub window: Duration,
    pub open: Duration,
    /// Share of requests that pass while probing.
    pub probe_percent: u32,
    /// Finished probes that decide.
    pub probes: u32,
}

impl BreakerRules {
    /// Over 50 % of at least 100 in 10 s; open for 10 s; then 5 %, five of which decide.
    pub const DEFAULT: Self = Self {
        failure_percent: 50,
        requests_min: 100,
        window: Duration::from_secs(10),
        open: Duration::from_secs(10),
        probe_percent: 5,
        probes: 5,
    };
}

impl Default for BreakerRules {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    Closed,
    Open { until: Duration },
    Probing { finished: u32, failed: u32, last_probe: Duration },
}

/// A request that the breaker let pass; goes back to it with the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    Normal,
    Probe,
}

/// A change of state, to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerEvent {
    Opened {
        failed: u64,
        of: u64,
    },
    /// Most probes failed.
    StaysOpen,
    Closed,
}

const FINISHED: usize = 0;
const FAILED: usize = 1;

/// Longest wait between two probes of a quiet cluster.
const PROBE_GAP: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct Breaker {
    state: BreakerState,
    window: Window<10, 2>,
}

impl Breaker {
    #[must_use]
    pub fn new(rules: &BreakerRules) -> Self {
        Self { state: BreakerState::Closed, window: Window::new(rules.window) }
    }

    #[must_use]
    pub const fn state(&self) -> BreakerState {
        self.state
    }

    /// Whether a request passes; `random` chooses the probes.
    ///
    /// # Errors
    /// How long a client should wait, for Retry-After.
    #[inline]
    pub fn admit(&mut self, rules: &BreakerRules, now: Duration, random: u64) -> Result<Pass, Duration> {
        match self.state {
            BreakerState::Closed => Ok(Pass::Normal),
            BreakerState::Open { until } if now < until => Err(until - now),
            BreakerState::Open { .. } => {
                self.state = BreakerState::Probing { finished: 0, failed: 0, last_probe: now };
                Ok(Pass::Probe)
            }
            BreakerState::Probing { finished, failed, last_probe } => {
                let is_late = now.saturating_sub(last_probe) >= PROBE_GAP;
                if is_late || below(random, 100) < u64::from(rules.probe_percent) {
                    self.state = BreakerState::Probing { finished, failed, last_probe: now };
                    Ok(Pass::Probe)
                } else {
                    Err(PROBE_GAP)
                }
            }
        }
    }

    /// Takes in the end of a request that passed.
    #[inline]
    pub fn finished(
        &mut self,
        rules: &BreakerRules,
        pass: Pass,
        outcome: Outcome,
        now: Duration,
    ) -> Option<BreakerEvent> {
        if outcome == Outcome::Abandoned {
            return None;
        }
        let failure = u32::from(outcome.failure().is_some());
        match (self.state, pass) {
            (BreakerState::Closed, _) => {
                self.window.add(now, FINISHED, 1);
                self.window.add(now, FAILED, failure);
                // Only a failure can tip the share.
                (failure > 0).then(|| self.judge(rules, now)).flatten()
            }
            (BreakerState::Probing { finished, failed, last_probe }, Pass::Probe) => {
                let (finished, failed) = (finished + 1, failed + failure);
                self.state = BreakerState::Probing { finished, failed, last_probe };
                (finished >= rules.probes).then(|| self.end_probing(rules, now, failed * 2 > finished))
            }
            // What was sent before it opened, and probes of an earlier round, decide nothing any more.
            (BreakerState::Open { .. }, _) | (BreakerState::Probing { .. }, Pass::Normal) => None,
        }
    }

    fn judge(&mut self, rules: &BreakerRules, now: Duration) -> Option<BreakerEvent> {
        let (of, failed) = (self.window.sum(now, FINISHED), self.window.sum(now, FAILED));
        let tips =
            of >= u64::from(rules.requests_min) && failed * 100 > of * u64::from(rules.failure_percent);
        tips.then(|| {
            self.state = BreakerState::Open { until: now.saturating_add(rules.open) };
            BreakerEvent::Opened { failed, of }
        })
    }

    fn end_probing(&mut self, rules: &BreakerRules, now: Duration, most_failed: bool) -> BreakerEvent {
        self.window.clear();
        if most_failed {
            self.state = BreakerState::Open { until: now.saturating_add(rules.open) };
            BreakerEvent::StaysOpen
        } else {
            self.state = BreakerState::Closed;
            BreakerEvent::Closed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const RULES: BreakerRules = BreakerRules::DEFAULT;

    fn run(
        breaker: &mut Breaker,
        outcomes: impl IntoIterator<Item = Outcome>,
        now: Duration,
    ) -> Option<BreakerEvent> {
        outcomes.into_iter().find_map(|outcome| breaker.finished(&RULES, Pass::Normal, outcome, now))
    }

    #[test]
    fn more_than_half_of_at_least_a_hundred() {
        let mut breaker = Breaker::new(&RULES);
        assert_eq!(run(&mut breaker, [Outcome::TimedOut; 99], MS), None, "99 are too few");
        assert_eq!(
            run(&mut breaker, [Outcome::TimedOut], MS),
            Some(BreakerEvent::Opened { failed: 100, of: 100 })
        );
        let mut half = Breaker::new(&RULES);
        let alternating = [Outcome::Success, Outcome::ServerError].into_iter().cycle().take(1000);
        assert_eq!(run(&mut half, alternating, MS), None, "half is not more than half");
        assert!(matches!(
            run(&mut half, [Outcome::Reset], MS),
            Some(BreakerEvent::Opened { failed: 501, of: 1001 })
        ));
        let mut abandoned = Breaker::new(&RULES);
        assert_eq!(run(&mut abandoned, [Outcome::Abandoned; 1000], MS), None);
    }

    #[test]
    fn old_failures_are_forgotten() {
        let mut breaker = Breaker::new(&RULES);
        assert_eq!(run(&mut breaker, [Outcome::ServerError; 60], MS), None);
        assert_eq!(run(&mut breaker, [Outcome::ServerError; 60], 11_000 * MS), None);
    }

    fn open(now: Duration) -> Breaker {
        let mut breaker = Breaker::new(&RULES);
        assert!(run(&mut breaker, [Outcome::ServerError; 100], now).is_some());
        breaker
    }

    #[test]
    fn open_for_ten_seconds_then_five_per_cent() {
        let mut breaker = open(MS);
        assert_eq!(breaker.admit(&RULES, 2 * MS, 0), Err(9_999 * MS));
        assert_eq!(breaker.finished(&RULES, Pass::Normal, Outcome::Success, 3 * MS), None, "sent before");
        let mut rng = crate::Rng::new(1);
        assert_eq!(breaker.admit(&RULES, 10_001 * MS, u64::MAX), Ok(Pass::Probe));
        let passed = (0..10_000).filter(|_| breaker.admit(&RULES, 10_002 * MS, rng.draw()).is_ok()).count();
        assert!((400..600).contains(&passed), "{passed}");
        assert_eq!(breaker.admit(&RULES, 10_500 * MS, u64::MAX), Err(PROBE_GAP));
        assert_eq!(breaker.admit(&RULES, 11_500 * MS, u64::MAX), Ok(Pass::Probe), "a quiet second");
    }

    #[test]
    fn probes_decide() {
        for (failures, event) in
            [(0, BreakerEvent::Closed), (2, BreakerEvent::Closed), (3, BreakerEvent::StaysOpen)]
        {
            let mut breaker = open(MS);
            assert_eq!(breaker.admit(&RULES, 11_000 * MS, 0), Ok(Pass::Probe));
            let mut last = None;
            for probe in 0..5 {
                let outcome = if probe < failures { Outcome::ConnectFailed } else { Outcome::Success };
                assert_eq!(last, None);
                last = breaker.finished(&RULES, Pass::Probe, outcome, 11_000 * MS);
            }
            assert_eq!(last, Some(event), "{failures} of 5 failed");
            let admitted = breaker.admit(&RULES, 11_001 * MS, u64::MAX);
            assert_eq!(admitted.is_ok(), event == BreakerEvent::Closed);
        }
    }
}
