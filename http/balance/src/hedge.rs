//! Hedging: a second attempt elsewhere while the first is still silent, the first answer wins (Dean and Barroso 2013).
//!
//! Off unless a route asks for it, for idempotent requests only, and from a budget of its own: when everything is slow
//! the budget is gone after its share and hedging stops by itself. The budget counts the requests that may be hedged.
//! Called by the exchange.

use std::time::Duration;

use crate::budget::{Budget, BudgetRules};
use crate::retry::{BodyState, Repeatability};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HedgeRules {
    /// Silence after which the second attempt starts; about the route's p95.
    pub delay: Duration,
    pub budget: BudgetRules,
}

/// What the budget looks back on: longer than that of retries, because its share is small.
pub const WINDOW: Duration = Duration::from_secs(10);

/// Why a silent attempt is not hedged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoHedge {
    /// Too much of the body was taken.
    BodyGone,
    Strained,
    BudgetExhausted,
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

/// Starts the second attempt, now that it is due and the first is silent; it has been paid for.
///
/// # Errors
/// Why there is none; the budget is asked last, so that a no costs nothing.
pub fn start(
    rules: &HedgeRules,
    budget: &mut Budget,
    body: BodyState,
    mood: ClusterMood,
    now: Duration,
) -> Result<(), NoHedge> {
    if body == BodyState::Gone {
        return Err(NoHedge::BodyGone);
    }
    if mood == ClusterMood::Strained {
        return Err(NoHedge::Strained);
    }
    if budget.take(rules.budget, now) { Ok(()) } else { Err(NoHedge::BudgetExhausted) }
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
        let mut budget = Budget::over(WINDOW);
        let at =
            |budget: &mut Budget, now| start(&RULES, budget, BodyState::Untouched, ClusterMood::Calm, now);
        let mut hedged = 0;
        for _ in 0..1000 {
            budget.request(SECOND);
            hedged += u32::from(at(&mut budget, SECOND).is_ok());
        }
        assert_eq!(hedged, 20, "2 %");
        assert_eq!(at(&mut budget, SECOND), Err(NoHedge::BudgetExhausted));
        let fresh = || {
            let mut budget = Budget::over(WINDOW);
            (0..1000).for_each(|_| budget.request(SECOND));
            budget
        };
        let (untouched, calm) = (BodyState::Untouched, ClusterMood::Calm);
        let strained = start(&RULES, &mut fresh(), untouched, ClusterMood::Strained, SECOND);
        assert_eq!(strained, Err(NoHedge::Strained));
        assert_eq!(start(&RULES, &mut fresh(), BodyState::Gone, calm, SECOND), Err(NoHedge::BodyGone));
    }

    #[test]
    fn a_quiet_core_hedges_now_and_then() {
        let mut budget = Budget::over(WINDOW);
        let mut hedged = 0;
        // Eleven requests a second for a minute: 2 % of 105 in each window.
        for n in 0..660 {
            let now = SECOND + n * Duration::from_millis(90);
            budget.request(now);
            hedged +=
                u32::from(start(&RULES, &mut budget, BodyState::Untouched, ClusterMood::Calm, now).is_ok());
        }
        assert!((8..=12).contains(&hedged), "{hedged} of 660");
    }
}
