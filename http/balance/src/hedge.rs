//! Hedging: a second attempt elsewhere while the first is still silent, the first answer wins (Dean and Barroso 2013).
//!
//! Off unless a route asks for it, for idempotent requests only, and from a budget of its own: when everything is slow
//! the budget is gone after its share and hedging stops by itself.

use std::time::Duration;

use crate::budget::{Budget, BudgetRules};
use crate::retry::{BodyState, Repeatability};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HedgeRules {
    /// Silence after which the second attempt starts; about the route's p95.
    pub delay: Duration,
    pub budget: BudgetRules,
}

/// Whether the cluster has room for doubled work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterMood {
    Calm,
    /// In panic, shedding, or with its breaker not closed.
    Strained,
}

/// When a request that begins now is to be hedged; None: never.
#[must_use]
pub fn due(
    rules: &HedgeRules,
    repeatability: Repeatability,
    now: Duration,
    left: Option<Duration>,
) -> Option<Duration> {
    let fits = left.is_none_or(|left| rules.delay < left);
    (repeatability != Repeatability::Unsafe && fits).then(|| now.saturating_add(rules.delay))
}

/// Whether the second attempt starts, now that it is due and the first is silent. A yes has paid from `budget`.
pub fn start(
    rules: &HedgeRules,
    budget: &mut Budget,
    body: BodyState,
    mood: ClusterMood,
    now: Duration,
) -> bool {
    body != BodyState::Gone && mood == ClusterMood::Calm && budget.take(rules.budget, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const RULES: HedgeRules = HedgeRules { delay: Duration::from_millis(50), budget: BudgetRules::HEDGES };

    #[test]
    fn only_what_may_run_twice_is_hedged() {
        assert_eq!(due(&RULES, Repeatability::Idempotent, SECOND, None), Some(SECOND + RULES.delay));
        assert_eq!(due(&RULES, Repeatability::Keyed, SECOND, Some(SECOND)), Some(SECOND + RULES.delay));
        assert_eq!(due(&RULES, Repeatability::Unsafe, SECOND, None), None);
        assert_eq!(due(&RULES, Repeatability::Idempotent, SECOND, Some(RULES.delay)), None, "no time for it");
    }

    #[test]
    fn hedges_stop_when_everything_is_slow() {
        let mut budget = Budget::default();
        let mut hedged = 0;
        for _ in 0..1000 {
            budget.request(SECOND);
            hedged += u32::from(start(&RULES, &mut budget, BodyState::Untouched, ClusterMood::Calm, SECOND));
        }
        assert_eq!(hedged, 20, "2 %");
        budget.request(9 * SECOND);
        assert!(!start(&RULES, &mut Budget::default(), BodyState::Untouched, ClusterMood::Strained, SECOND));
        assert!(!start(&RULES, &mut Budget::default(), BodyState::Gone, ClusterMood::Calm, SECOND));
    }
}
