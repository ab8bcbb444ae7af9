//! Whether a failed attempt is made again. Once, on another endpoint, never when it could do a thing twice.
//!
//! A request that cannot have been acted on may go again whatever its method: no connection was made, the backend
//! refused the stream, or its GOAWAY excludes it (C19, C23). Otherwise the method must be idempotent, or a POST must
//! bring an Idempotency-Key to a route that declares it. The body must be whole: untouched, or kept in the bounded
//! buffer. All but streams that GOAWAY excludes, pooled connections found dead, and refused connections while retries get
//! through pay from the budget: it bounds work that is done twice, and these made none (docs/decisions/0008).

use std::time::Duration;

use crate::budget::{Budget, BudgetRules};

/// How an attempt failed before any byte of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection was made; nothing was sent.
    Connect,
    /// Nobody listened.
    Refused,
    /// RST_STREAM REFUSED_STREAM (RFC 9113 §8.7).
    RefusedStream,
    /// GOAWAY with a last stream below this one (RFC 9113 §6.8).
    BeyondGoaway,
    /// A pooled connection turned out closed before anything of this request was written (C22).
    StaleUnwritten,
    /// The same, but some of the request was written.
    StaleWritten,
    /// A fresh connection was reset before the response.
    Reset,
    /// 503 with the header that says that the request was not processed.
    NotProcessed503,
    /// No answer within the per-try timeout.
    PerTryTimeout,
    /// A response other than that: it is passed on.
    Response,
}

/// What the method allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeatability {
    /// GET, HEAD, PUT, DELETE, OPTIONS (RFC 9110 §9.2.2).
    Idempotent,
    /// A POST with Idempotency-Key on a route that declares it.
    Keyed,
    Unsafe,
}

/// What is left of the request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyState {
    /// None, or nothing of it was taken yet.
    Untouched,
    /// What was taken is kept whole.
    Kept,
    /// More than the buffer was taken.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryRules {
    /// Attempts after the first.
    pub retries_max: u32,
    pub budget: BudgetRules,
    /// Wait for the response of one attempt; None: what the deadline leaves.
    pub per_try_timeout: Option<Duration>,
    /// A per-try timeout is a reason to try again (idempotent requests only). Off, as it doubles the load on slow ones.
    pub on_timeout: OnTimeout,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnTimeout {
    #[default]
    GiveUp,
    Retry,
}

impl Default for RetryRules {
    fn default() -> Self {
        Self {
            retries_max: 1,
            budget: BudgetRules::RETRIES,
            per_try_timeout: None,
            on_timeout: OnTimeout::GiveUp,
        }
    }
}

/// The facts about a failed attempt.
#[derive(Clone, Copy, Debug)]
pub struct Attempted {
    pub failure: Failure,
    pub repeatability: Repeatability,
    pub body: BodyState,
    /// Attempts so far, this one included.
    pub attempts: u32,
    /// Time until the deadline; None without one.
    pub left: Option<Duration>,
}

/// Where the next attempt goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// Another endpoint where there is one.
    Elsewhere,
    /// A new connection; the endpoint is not to blame.
    FreshConnection,
}

/// Why there is no other attempt; the word for logs and metric labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoRetry {
    NotRetryable,
    AttemptsUsed,
    NotIdempotent,
    BodyTooLarge,
    DeadlinePassed,
    BudgetExhausted,
}

impl NoRetry {
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::NotRetryable => "not_retryable",
            Self::AttemptsUsed => "attempts_used",
            Self::NotIdempotent => "not_idempotent",
            Self::BodyTooLarge => "body_too_large_to_replay",
            Self::DeadlinePassed => "deadline_passed",
            Self::BudgetExhausted => "retry_budget_exhausted",
        }
    }
}

impl Failure {
    /// No backend can have acted on the request.
    const fn is_unprocessed(self) -> bool {
        matches!(
            self,
            Self::Connect | Self::Refused | Self::RefusedStream | Self::BeyondGoaway | Self::StaleUnwritten
        )
    }

    /// The fault of a connection that was about to go (C19), or of one endpoint and not the cluster: not paid from the
    /// budget.
    const fn is_free(self, budget: &Budget) -> bool {
        match self {
            Self::BeyondGoaway | Self::StaleUnwritten | Self::StaleWritten => true,
            Self::Refused => budget.is_elsewhere_alive(),
            _ => false,
        }
    }
}

/// Decides; a yes has paid from `budget`.
///
/// # Errors
/// Why not, the most basic reason first; the budget is asked last, so that a no costs nothing.
pub fn decide(
    rules: &RetryRules,
    budget: &mut Budget,
    attempted: Attempted,
    now: Duration,
) -> Result<Again, NoRetry> {
    let Attempted { failure, repeatability, body, attempts, left } = attempted;
    let again = match failure {
        Failure::Response => return Err(NoRetry::NotRetryable),
        Failure::PerTryTimeout if rules.on_timeout == OnTimeout::GiveUp => return Err(NoRetry::NotRetryable),
        Failure::BeyondGoaway | Failure::StaleUnwritten | Failure::StaleWritten => Again::FreshConnection,
        Failure::Connect
        | Failure::Refused
        | Failure::RefusedStream
        | Failure::Reset
        | Failure::NotProcessed503
        | Failure::PerTryTimeout => Again::Elsewhere,
    };
    if attempts > rules.retries_max {
        return Err(NoRetry::AttemptsUsed);
    }
    if repeatability == Repeatability::Unsafe && !failure.is_unprocessed() {
        return Err(NoRetry::NotIdempotent);
    }
    if body == BodyState::Gone {
        return Err(NoRetry::BodyTooLarge);
    }
    if left.is_some_and(|left| left.is_zero()) {
        return Err(NoRetry::DeadlinePassed);
    }
    if !failure.is_free(budget) && !budget.take(rules.budget, now) {
        return Err(NoRetry::BudgetExhausted);
    }
    Ok(again)
}

/// Time for the next attempt: the per-try timeout inside the deadline; None: no limit.
#[must_use]
pub fn try_timeout(rules: &RetryRules, left: Option<Duration>) -> Option<Duration> {
    [rules.per_try_timeout, left].into_iter().flatten().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const GET: Attempted = Attempted {
        failure: Failure::Reset,
        repeatability: Repeatability::Idempotent,
        body: BodyState::Untouched,
        attempts: 1,
        left: None,
    };

    fn decided(attempted: Attempted) -> Result<Again, NoRetry> {
        decide(&RetryRules::default(), &mut Budget::default(), attempted, SECOND)
    }

    #[test]
    fn every_failure_by_method() {
        use Again::{Elsewhere, FreshConnection};
        use NoRetry::{NotIdempotent, NotRetryable};
        for (failure, idempotent, post) in [
            (Failure::Connect, Ok(Elsewhere), Ok(Elsewhere)),
            (Failure::Refused, Ok(Elsewhere), Ok(Elsewhere)),
            (Failure::RefusedStream, Ok(Elsewhere), Ok(Elsewhere)),
            (Failure::BeyondGoaway, Ok(FreshConnection), Ok(FreshConnection)),
            (Failure::StaleUnwritten, Ok(FreshConnection), Ok(FreshConnection)),
            (Failure::StaleWritten, Ok(FreshConnection), Err(NotIdempotent)),
            (Failure::Reset, Ok(Elsewhere), Err(NotIdempotent)),
            (Failure::NotProcessed503, Ok(Elsewhere), Err(NotIdempotent)),
            (Failure::PerTryTimeout, Err(NotRetryable), Err(NotRetryable)),
            (Failure::Response, Err(NotRetryable), Err(NotRetryable)),
        ] {
            assert_eq!(decided(Attempted { failure, ..GET }), idempotent, "GET {failure:?}");
            let keyed = Attempted { failure, repeatability: Repeatability::Keyed, ..GET };
            assert_eq!(decided(keyed), idempotent, "POST with a key, {failure:?}");
            let unsafe_post = Attempted { failure, repeatability: Repeatability::Unsafe, ..GET };
            assert_eq!(decided(unsafe_post), post, "POST {failure:?}");
        }
    }

    #[test]
    fn one_retry_with_the_whole_body_inside_the_deadline() {
        assert_eq!(decided(Attempted { attempts: 2, ..GET }), Err(NoRetry::AttemptsUsed));
        assert_eq!(decided(Attempted { body: BodyState::Gone, ..GET }), Err(NoRetry::BodyTooLarge));
        assert_eq!(decided(Attempted { body: BodyState::Kept, ..GET }), Ok(Again::Elsewhere));
        assert_eq!(decided(Attempted { left: Some(Duration::ZERO), ..GET }), Err(NoRetry::DeadlinePassed));
        let rules = RetryRules {
            per_try_timeout: Some(2 * SECOND),
            on_timeout: OnTimeout::Retry,
            ..RetryRules::default()
        };
        assert_eq!(try_timeout(&rules, Some(SECOND)), Some(SECOND));
        assert_eq!(try_timeout(&rules, None), Some(2 * SECOND));
        assert_eq!(try_timeout(&RetryRules::default(), None), None);
        let timed_out = Attempted { failure: Failure::PerTryTimeout, ..GET };
        assert_eq!(decide(&rules, &mut Budget::default(), timed_out, SECOND), Ok(Again::Elsewhere));
    }

    #[test]
    fn the_budget_is_asked_last_and_not_for_connections_that_go() {
        let (rules, mut budget) = (RetryRules::default(), Budget::default());
        for _ in 0..10 {
            let refused = Attempted { body: BodyState::Gone, ..GET };
            assert_eq!(decide(&rules, &mut budget, refused, SECOND), Err(NoRetry::BodyTooLarge));
            let going = Attempted { failure: Failure::BeyondGoaway, ..GET };
            assert_eq!(decide(&rules, &mut budget, going, SECOND), Ok(Again::FreshConnection));
        }
        for _ in 0..rules.budget.floor_per_second {
            assert_eq!(decide(&rules, &mut budget, GET, SECOND), Ok(Again::Elsewhere), "the floor");
        }
        assert_eq!(decide(&rules, &mut budget, GET, SECOND), Err(NoRetry::BudgetExhausted));
    }

    #[test]
    fn refused_connections_are_free_while_retries_get_through() {
        let (rules, mut budget) = (RetryRules::default(), Budget::default());
        let refused = Attempted { failure: Failure::Refused, ..GET };
        let again = |budget: &mut Budget| decide(&rules, budget, refused, SECOND);
        for _ in 0..100 {
            assert_eq!(again(&mut budget), Ok(Again::Elsewhere));
            budget.reached(true);
        }
        budget.reached(false);
        for _ in 0..rules.budget.floor_per_second {
            assert_eq!(again(&mut budget), Ok(Again::Elsewhere), "the floor");
        }
        assert_eq!(again(&mut budget), Err(NoRetry::BudgetExhausted), "all seem to be gone");
        budget.reached(true);
        assert_eq!(again(&mut budget), Ok(Again::Elsewhere), "one is there again");
    }
}
