//! Passive health: which endpoint is put aside for its failures, and for how long.
//!
//! ```text
//!   counting ── 5 in a row, or an outlier of the interval ──► may one more go? ── no ──► counting (told)
//!      ▲                                                            │ yes
//!      └── slow start ◄── time is over: 30 s, 60 s, … up to the cap ┘
//! ```
//! What the endpoint answers (5xx, and 502–504 of them) and what this side sees instead of an answer (connect failure,
//! reset, time-out) are counted apart. At most a share of the cluster may be out, decided by what it would be AFTER the
//! ejection (C31); a tiny cluster may lose one all the same, a cluster of one never unless asked for. Time doubles with
//! each repeat and is forgiven one step for each stretch of health.

use std::time::Duration;

use crate::outcome::{Origin, Outcome};
use crate::time::{micros, narrow};
use crate::window::permille;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutlierRules {
    /// Any 5xx in a row; None: not a cause.
    pub consecutive_5xx: Option<u32>,
    /// 502, 503, 504 in a row.
    pub consecutive_gateway: Option<u32>,
    /// Connect failures, resets and time-outs in a row.
    pub consecutive_local: Option<u32>,
    pub base_ejection: Duration,
    pub ejection_max: Duration,
    /// Share of a cluster that may be out, 0 to 100.
    pub percent_max: u32,
    pub tiny: TinyCluster,
    pub mode: Mode,
    /// Endpoints that answer far less well than the others.
    pub success_rate: Option<SuccessRateRules>,
    /// Endpoints that answer far slower than the others.
    pub latency: Option<LatencyRules>,
    /// How often the two are judged.
    pub interval: Duration,
}

impl Default for OutlierRules {
    fn default() -> Self {
        Self {
            consecutive_5xx: Some(5),
            consecutive_gateway: Some(5),
            consecutive_local: Some(5),
            base_ejection: Duration::from_secs(30),
            ejection_max: Duration::from_secs(300),
            percent_max: 20,
            tiny: TinyCluster::AtLeastOne { endpoints_min: 2 },
            mode: Mode::Enforce,
            success_rate: None,
            latency: None,
            interval: Duration::from_secs(10),
        }
    }
}

/// What `percent_max` means where it is less than one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TinyCluster {
    /// The share decides alone: of four endpoints none goes at 20 %.
    ShareOnly,
    /// One may go in clusters of at least so many endpoints; 1 also empties a cluster of one.
    AtLeastOne { endpoints_min: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Enforce,
    /// Decisions are told and not carried out.
    LogOnly,
}

/// An endpoint is an outlier when its success rate is below the mean by more than so many standard deviations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuccessRateRules {
    /// Thousandths of a standard deviation.
    pub deviations_permille: u32,
    /// Endpoints that are judged at all.
    pub endpoints_min: u32,
    /// Requests in the interval that make an endpoint judged.
    pub requests_min: u32,
}

impl Default for SuccessRateRules {
    fn default() -> Self {
        Self { deviations_permille: 1900, endpoints_min: 5, requests_min: 100 }
    }
}

/// An endpoint is an outlier when its mean latency is above the median of all by this factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyRules {
    /// Percent of the median, such as 300.
    pub median_percent: u32,
    pub endpoints_min: u32,
    pub requests_min: u32,
}

impl Default for LatencyRules {
    fn default() -> Self {
        Self { median_percent: 300, endpoints_min: 5, requests_min: 50 }
    }
}

/// Why an endpoint was put aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    Consecutive5xx,
    ConsecutiveGateway,
    ConsecutiveLocal,
    SuccessRate,
    Latency,
}

impl Cause {
    /// The word for logs and metric labels.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Consecutive5xx => "consecutive_5xx",
            Self::ConsecutiveGateway => "consecutive_gateway",
            Self::ConsecutiveLocal => "consecutive_local",
            Self::SuccessRate => "success_rate",
            Self::Latency => "latency",
        }
    }
}

/// What one core knows of one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointOutlier {
    in_a_row_5xx: u16,
    in_a_row_gateway: u16,
    in_a_row_local: u16,
    /// Doublings that the next ejection starts from.
    repeats: u16,
    ejected: Option<(Duration, Cause)>,
    /// Since when it has not been ejected.
    returned_at: Duration,
    interval: IntervalCount,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct IntervalCount {
    requests: u32,
    successes: u32,
    latency_us: u64,
}

impl EndpointOutlier {
    /// Until when it is out, and why.
    #[inline]
    #[must_use]
    pub const fn ejected(&self) -> Option<(Duration, Cause)> {
        self.ejected
    }

    /// Takes in an outcome; a cause when that makes the endpoint a candidate for ejection.
    #[inline]
    pub fn observe(&mut self, rules: &OutlierRules, outcome: Outcome, latency: Duration) -> Option<Cause> {
        if outcome == Outcome::Abandoned {
            return None;
        }
        if rules.success_rate.is_some() || rules.latency.is_some() {
            self.interval.requests = self.interval.requests.saturating_add(1);
            self.interval.successes += u32::from(outcome == Outcome::Success);
            self.interval.latency_us = self.interval.latency_us.saturating_add(micros(latency));
        }
        match outcome.failure() {
            None => {
                (self.in_a_row_5xx, self.in_a_row_gateway, self.in_a_row_local) = (0, 0, 0);
                None
            }
            Some(Origin::Local) => {
                self.in_a_row_local = self.in_a_row_local.saturating_add(1);
                reached(self.in_a_row_local, rules.consecutive_local, Cause::ConsecutiveLocal)
            }
            Some(Origin::Endpoint) => {
                // It answered, so the way to it is sound.
                self.in_a_row_local = 0;
                self.in_a_row_5xx = self.in_a_row_5xx.saturating_add(1);
                let is_gateway = outcome == Outcome::GatewayError;
                self.in_a_row_gateway = if is_gateway { self.in_a_row_gateway.saturating_add(1) } else { 0 };
                reached(self.in_a_row_gateway, rules.consecutive_gateway, Cause::ConsecutiveGateway)
                    .or_else(|| reached(self.in_a_row_5xx, rules.consecutive_5xx, Cause::Consecutive5xx))
            }
        }
    }

    /// Puts it aside. `random` shortens or lengthens nothing below the rule's time: it adds up to a tenth, so that not
    /// all cores let the endpoint back in the same moment. Returns the end.
    pub fn eject(&mut self, rules: &OutlierRules, cause: Cause, now: Duration, random: u64) -> Duration {
        self.forgive(rules, now);
        let doubled =
            rules.base_ejection.saturating_mul(1u32.checked_shl(self.repeats.into()).unwrap_or(u32::MAX));
        let time = doubled.min(rules.ejection_max);
        let jitter = Duration::from_millis(crate::rng::below(random, crate::time::millis(time) / 10 + 1));
        self.repeats = if doubled < rules.ejection_max { self.repeats + 1 } else { self.repeats };
        let until = now.saturating_add(time).saturating_add(jitter);
        self.ejected = Some((until, cause));
        self.reset_counts();
        until
    }

    /// Lets it back; whoever calls gives it a slow start.
    pub fn uneject(&mut self, now: Duration) {
        self.ejected = None;
        self.returned_at = now;
        self.reset_counts();
    }

    /// A refused ejection starts counting again, or it would be told with every request.
    pub fn reset_counts(&mut self) {
        (self.in_a_row_5xx, self.in_a_row_gateway, self.in_a_row_local) = (0, 0, 0);
    }

    /// One doubling less for each base time of health.
    fn forgive(&mut self, rules: &OutlierRules, now: Duration) {
        let healthy_ms = crate::time::millis(now.saturating_sub(self.returned_at));
        let steps = healthy_ms.checked_div(crate::time::millis(rules.base_ejection)).unwrap_or(0);
        self.repeats = self.repeats.saturating_sub(u16::try_from(steps).unwrap_or(u16::MAX));
    }
}

#[inline]
fn reached(in_a_row: u16, limit: Option<u32>, cause: Cause) -> Option<Cause> {
    limit.is_some_and(|limit| u32::from(in_a_row) >= limit).then_some(cause)
}

/// Whether one more of `endpoints` (not draining) may go when `ejected` are out already.
#[must_use]
pub fn may_eject(rules: &OutlierRules, endpoints: u32, ejected: u32) -> bool {
    let within_share = (u64::from(ejected) + 1) * 100 <= u64::from(rules.percent_max) * u64::from(endpoints);
    // A cluster of one is emptied only by who asks for exactly that.
    let may_empty = endpoints > 1
        || matches!(rules.tiny, TinyCluster::AtLeastOne { endpoints_min } if endpoints_min <= 1);
    let first_of_tiny =
        matches!(rules.tiny, TinyCluster::AtLeastOne { endpoints_min } if endpoints >= endpoints_min);
    may_empty && (within_share || ejected == 0 && rules.percent_max > 0 && first_of_tiny)
}

/// Judges the interval that ends now over all endpoints that are in; answers candidates by index and begins the next
/// interval.
pub fn judge_interval<'a>(
    rules: &OutlierRules,
    endpoints: impl Iterator<Item = (u32, &'a mut EndpointOutlier)>,
) -> Vec<(u32, Cause)> {
    let mut counts = Vec::new();
    for (index, endpoint) in endpoints {
        let count = std::mem::take(&mut endpoint.interval);
        if endpoint.ejected.is_none() && count.requests > 0 {
            counts.push((index, count));
        }
    }
    let mut candidates = Vec::new();
    if let Some(rule) = rules.success_rate {
        candidates
            .extend(below_the_others(rule, &counts).into_iter().map(|index| (index, Cause::SuccessRate)));
    }
    if let Some(rule) = rules.latency {
        let slow = slower_than_the_others(rule, &counts);
        let is_new = |index: &u32| !candidates.iter().any(|(known, _)| known == index);
        let slow: Vec<_> = slow.into_iter().filter(is_new).collect();
        candidates.extend(slow.into_iter().map(|index| (index, Cause::Latency)));
    }
    candidates
}

fn below_the_others(rule: SuccessRateRules, counts: &[(u32, IntervalCount)]) -> Vec<u32> {
    let rates: Vec<(u32, u64)> = counts
        .iter()
        .filter(|(_, count)| count.requests >= rule.requests_min)
        .map(|(index, count)| (*index, permille(count.successes.into(), count.requests.into()).into()))
        .collect();
    let judged = u64::try_from(rates.len()).unwrap_or(u64::MAX);
    if judged == 0 || judged < u64::from(rule.endpoints_min) {
        return Vec::new();
    }
    // In micro-units of the rate, whose squares fit.
    let scaled = |rate: u64| rate * 1000;
    let mean = rates.iter().map(|(_, rate)| scaled(*rate)).sum::<u64>() / judged;
    let variance = rates.iter().map(|(_, rate)| scaled(*rate).abs_diff(mean).pow(2)).sum::<u64>() / judged;
    let allowed = variance.isqrt() * u64::from(rule.deviations_permille) / 1000;
    rates.into_iter().filter(|(_, rate)| scaled(*rate) + allowed < mean).map(|(index, _)| index).collect()
}

fn slower_than_the_others(rule: LatencyRules, counts: &[(u32, IntervalCount)]) -> Vec<u32> {
    let mut means: Vec<(u64, u32)> = counts
        .iter()
        .filter(|(_, count)| count.requests >= rule.requests_min.max(1))
        .map(|(index, count)| (count.latency_us / u64::from(count.requests), *index))
        .collect();
    means.sort_unstable();
    let Some((median, _)) = means.get(means.len() / 2).copied() else { return Vec::new() };
    if narrow(u64::try_from(means.len()).unwrap_or(u64::MAX)) < rule.endpoints_min {
        return Vec::new();
    }
    let limit = median.saturating_mul(u64::from(rule.median_percent)) / 100;
    means.into_iter().filter(|(mean, _)| *mean > limit).map(|(_, index)| index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);

    fn first_cause(rules: &OutlierRules, outcomes: &[Outcome]) -> Option<(usize, Cause)> {
        let mut endpoint = EndpointOutlier::default();
        let mut observed = outcomes.iter().map(|outcome| endpoint.observe(rules, *outcome, MS)).enumerate();
        observed.find_map(|(at, cause)| Some((at, cause?)))
    }

    #[test]
    fn five_in_a_row_and_of_one_kind() {
        use Outcome::{Abandoned, ConnectFailed, GatewayError, Reset, ServerError, Success, TimedOut};
        let rules = OutlierRules::default();
        assert_eq!(first_cause(&rules, &[ServerError; 9]), Some((4, Cause::Consecutive5xx)));
        assert_eq!(first_cause(&rules, &[GatewayError; 9]), Some((4, Cause::ConsecutiveGateway)));
        let local = [ConnectFailed, Reset, TimedOut, ConnectFailed, Reset];
        assert_eq!(first_cause(&rules, &local), Some((4, Cause::ConsecutiveLocal)));
        let mixed = [GatewayError, ServerError, GatewayError, ServerError, GatewayError];
        assert_eq!(first_cause(&rules, &mixed), Some((4, Cause::Consecutive5xx)), "5xx includes 502");
        let told_apart =
            [ConnectFailed, ServerError, ConnectFailed, ServerError, ConnectFailed, ConnectFailed];
        assert_eq!(first_cause(&rules, &told_apart), None, "an answer ends a row of local failures");
        let nearly = [ServerError, ServerError, ServerError, ServerError, Success, ServerError];
        assert_eq!(first_cause(&rules, &nearly), None);
        let clients_left =
            [ServerError, Abandoned, ServerError, Abandoned, ServerError, ServerError, ServerError];
        assert_eq!(first_cause(&rules, &clients_left), Some((6, Cause::Consecutive5xx)), "neutral");
        let off = OutlierRules { consecutive_5xx: None, consecutive_gateway: None, ..rules };
        assert_eq!(first_cause(&off, &[GatewayError; 100]), None);
    }

    /// How many of a cluster go when every endpoint fails (C31).
    fn ejected_of(endpoints: u32, percent_max: u32, tiny: TinyCluster) -> u32 {
        let rules = OutlierRules { percent_max, tiny, ..OutlierRules::default() };
        let mut ejected = 0;
        for _ in 0..endpoints {
            ejected += u32::from(may_eject(&rules, endpoints, ejected));
        }
        ejected
    }

    #[test]
    fn the_share_after_the_ejection_decides() {
        let one = TinyCluster::AtLeastOne { endpoints_min: 2 };
        for (percent, share_only, at_least_one) in [
            (0, [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]),
            (10, [0, 0, 0, 0, 1], [0, 1, 1, 1, 1]),
            (20, [0, 0, 0, 1, 2], [0, 1, 1, 1, 2]),
            (34, [0, 0, 1, 1, 3], [0, 1, 1, 1, 3]),
            (50, [0, 1, 1, 2, 5], [0, 1, 1, 2, 5]),
            (67, [0, 1, 2, 3, 6], [0, 1, 2, 3, 6]),
            (100, [0, 2, 3, 5, 10], [0, 2, 3, 5, 10]),
        ] {
            let sizes = [1, 2, 3, 5, 10];
            assert_eq!(
                sizes.map(|n| ejected_of(n, percent, TinyCluster::ShareOnly)),
                share_only,
                "{percent} %"
            );
            assert_eq!(sizes.map(|n| ejected_of(n, percent, one)), at_least_one, "{percent} %, at least one");
        }
        assert_eq!(ejected_of(1, 20, TinyCluster::AtLeastOne { endpoints_min: 1 }), 1, "asked for");
        assert_eq!(ejected_of(4, 20, TinyCluster::AtLeastOne { endpoints_min: 5 }), 0);
    }

    #[test]
    fn time_doubles_to_the_cap_and_is_forgiven() {
        let (rules, mut endpoint, mut now) = (OutlierRules::default(), EndpointOutlier::default(), SECOND);
        for expected in [30, 60, 120, 240, 300, 300] {
            let until = endpoint.eject(&rules, Cause::Consecutive5xx, now, 0);
            assert_eq!((until - now).as_secs(), expected);
            assert_eq!(endpoint.ejected(), Some((until, Cause::Consecutive5xx)));
            now = until;
            endpoint.uneject(now);
            assert_eq!(endpoint.ejected(), None);
        }
        now += 60 * SECOND;
        assert_eq!(
            (endpoint.eject(&rules, Cause::Latency, now, 0) - now).as_secs(),
            120,
            "two steps forgiven"
        );
        let until = endpoint.ejected().unwrap().0;
        endpoint.uneject(until);
        now = until + 86_400 * SECOND;
        let longest = endpoint.eject(&rules, Cause::Latency, now, u64::MAX) - now;
        assert!(
            (33 * SECOND - MS..=33 * SECOND).contains(&longest),
            "all forgiven, with a tenth: {longest:?}"
        );
    }

    fn judged(rules: &OutlierRules, endpoints: &[(u32, u32, Duration)]) -> Vec<(u32, Cause)> {
        let mut states = vec![EndpointOutlier::default(); endpoints.len()];
        for (state, (successes, failures, latency)) in states.iter_mut().zip(endpoints) {
            for _ in 0..*successes {
                state.observe(rules, Outcome::Success, *latency);
            }
            for _ in 0..*failures {
                state.observe(rules, Outcome::ServerError, *latency);
            }
        }
        let found = judge_interval(rules, (0..).zip(&mut states));
        assert_eq!(judge_interval(rules, (0..).zip(&mut states)), [], "the interval is over");
        found
    }

    #[test]
    fn an_interval_finds_who_fails_more_often_than_the_others() {
        let rules =
            OutlierRules { success_rate: Some(SuccessRateRules::default()), ..OutlierRules::default() };
        let mut endpoints = vec![(99, 1, MS); 10];
        assert_eq!(judged(&rules, &endpoints), []);
        endpoints[3] = (60, 40, MS);
        assert_eq!(judged(&rules, &endpoints), [(3, Cause::SuccessRate)]);
        endpoints[3] = (30, 20, MS);
        assert_eq!(judged(&rules, &endpoints), [], "too few requests");
        assert_eq!(judged(&rules, &[(99, 1, MS), (0, 100, MS)]), [], "too few endpoints to compare");
        assert_eq!(judged(&rules, &vec![(50, 50, MS); 10]), [], "all are bad alike");
    }

    #[test]
    fn an_interval_finds_who_is_slower_than_the_others() {
        let rules = OutlierRules { latency: Some(LatencyRules::default()), ..OutlierRules::default() };
        let mut endpoints = vec![(50, 0, 10 * MS); 10];
        endpoints[7] = (50, 0, 29 * MS);
        assert_eq!(judged(&rules, &endpoints), []);
        endpoints[7] = (50, 0, 31 * MS);
        assert_eq!(judged(&rules, &endpoints), [(7, Cause::Latency)]);
        assert_eq!(judged(&rules, &endpoints[6..]), [], "too few endpoints to compare");
        assert_eq!(judged(&rules, &[]), []);
    }
}
