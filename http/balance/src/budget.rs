//! A budget of extra attempts: at most a share of the last moment's requests, with a small floor.
//!
//! The window is short on purpose: what was not used in calm minutes must not be spent at once when everything fails,
//! for that burst is the retry storm. Retries and hedges have a budget each. Counted per core and cluster.
//!
//! The requests that pay are those of a little less than the window, the extra attempts that they pay for those of a little
//! more. So no window ever holds more extra attempts than its share, although the first ones of an outage are paid by
//! the requests before it and arrivals differ by chance; and a budget that is spent at once at the beginning is not there
//! again before the window is over. What is spent in the long run is 19 twenty-firsts of the share.

use std::time::Duration;

use crate::window::Window;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetRules {
    /// Extra attempts for each hundred requests.
    pub percent: u32,
    /// Extra attempts a second that are always allowed, so that a quiet cluster can retry at all.
    pub floor_per_second: u32,
}

impl BudgetRules {
    /// 10 %, and ten a second: an endpoint that dies costs five failures until it is ejected, and in a quiet cluster none of
    /// them, nor those of a second one, is to reach a client.
    pub const RETRIES: Self = Self { percent: 10, floor_per_second: 10 };
    /// 2 %, and none beyond. Over [`crate::hedge::WINDOW`], or a core with a few requests a second would have none.
    pub const HEDGES: Self = Self { percent: 2, floor_per_second: 0 };
}

/// Buckets of a window.
const BUCKETS: u32 = 20;

#[derive(Clone, Debug)]
pub struct Budget {
    /// Over a bucket less than the window.
    requests: Window<19, 1>,
    /// Over a bucket more.
    extras: Window<21, 1>,
    /// The last extra attempt did not get through to an endpoint either.
    is_elsewhere_dead: bool,
}

impl Default for Budget {
    fn default() -> Self {
        Self::over(Duration::from_secs(1))
    }
}

impl Budget {
    /// A share of the requests of the last `window`.
    #[must_use]
    pub fn over(window: Duration) -> Self {
        let bucket = window / BUCKETS;
        Self {
            requests: Window::new(window - bucket),
            extras: Window::new(window + bucket),
            is_elsewhere_dead: false,
        }
    }

    /// Counts a request, once however many attempts it has.
    #[inline]
    pub fn request(&mut self, now: Duration) {
        self.requests.add(now, 0, 1);
    }

    /// How an extra attempt went: whether it got through to an endpoint.
    #[inline]
    pub fn reached(&mut self, is_reached: bool) {
        self.is_elsewhere_dead = !is_reached;
    }

    /// Whether the last extra attempt got through. Then it is one endpoint that is gone and not the service.
    #[inline]
    #[must_use]
    pub const fn is_elsewhere_alive(&self) -> bool {
        !self.is_elsewhere_dead
    }

    /// Takes one extra attempt from the budget, or says no.
    pub fn take(&mut self, rules: BudgetRules, now: Duration) -> bool {
        let share = self.requests.sum(now, 0) * u64::from(rules.percent) / 100;
        let allowed = self.extras.sum(now, 0) < share.max(u64::from(rules.floor_per_second));
        if allowed {
            self.extras.add(now, 0, 1);
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_storm_is_held_to_the_share_in_every_second() {
        for per_ms in [1u32, 7] {
            let (mut budget, mut taken) = (Budget::default(), Vec::new());
            // A calm minute, then everything fails.
            for ms in 0..70_000u32 {
                let mut extras = 0;
                for _ in 0..per_ms {
                    budget.request(ms * MS);
                    extras += u32::from(ms >= 60_000 && budget.take(BudgetRules::RETRIES, ms * MS));
                }
                taken.push(extras);
            }
            for second in taken[60_000..].windows(1000) {
                let retries: u32 = second.iter().sum();
                assert!(
                    retries <= per_ms * 95,
                    "{retries} retries in a second of {} requests",
                    per_ms * 1000
                );
            }
            let all: u32 = taken.iter().sum();
            assert!(all >= per_ms * 900, "the budget can be used: {all}");
        }
    }

    #[test]
    fn a_quiet_cluster_has_its_floor() {
        let mut budget = Budget::default();
        let mut taken = 0;
        for second in 0..10u32 {
            budget.request(second * 1100 * MS);
            for _ in 0..13 {
                taken += u32::from(budget.take(BudgetRules::RETRIES, second * 1100 * MS));
            }
        }
        assert_eq!(taken, 100);
        assert!(!Budget::default().take(BudgetRules::HEDGES, MS), "hedges have no floor");
    }
}
