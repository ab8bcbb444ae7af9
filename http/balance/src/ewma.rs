//! Peak EWMA: of two draws the one with the smaller expected wait, latency × requests in flight (Finagle's balancer).
//!
//! A slow answer counts at once, quick ones only with time, so that a stalling endpoint is left fast and trusted
//! slowly. Without answers the average fades, so that a slow endpoint is tried again. A failure counts as
//! [`EwmaRules::failure_penalty`], or an endpoint that fails fast would look best of all.
//!
//! The decay is `tau / (tau + age)`, the first-order form of `exp(-age / tau)`: integers, one division, and at
//! the ages that matter within a few per cent of it.

use std::time::Duration;

use crate::p2c::Load;
use crate::sampler::Sampler;
use crate::time::{micros, narrow};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EwmaRules {
    /// Time in which an old average loses half of its weight.
    pub tau: Duration,
    /// Latency that a failed attempt counts as, when it took less.
    pub failure_penalty: Duration,
}

impl Default for EwmaRules {
    fn default() -> Self {
        Self { tau: Duration::from_secs(10), failure_penalty: Duration::from_secs(1) }
    }
}

/// Latency of one endpoint, as this core saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeakEwma {
    average_us: u32,
    /// Of the last answer, in milliseconds since start, wrapping.
    seen_ms: u32,
}

/// What an endpoint that never answered is taken for: better than a known slow one, worse than a known quick one.
const UNKNOWN_US: u64 = 5_000;

impl PeakEwma {
    /// Takes in the latency of an answer.
    #[inline]
    pub fn observe(&mut self, rules: &EwmaRules, latency: Duration, now: Duration) {
        let sample = narrow(micros(latency)).max(1);
        if sample >= self.average_us {
            self.average_us = sample;
        } else {
            let (tau, age) = (micros(rules.tau).max(1), self.age_us(now));
            let weighed = u64::from(self.average_us) * tau + u64::from(sample) * age;
            self.average_us = narrow(weighed / (tau + age));
        }
        self.seen_ms = wrapping_millis(now);
    }

    /// Expected latency now, in microseconds; None before the first answer.
    #[inline]
    #[must_use]
    pub fn expected_us(&self, rules: &EwmaRules, now: Duration) -> Option<u64> {
        let tau = micros(rules.tau).max(1);
        (self.average_us > 0).then(|| (u64::from(self.average_us) * tau / (tau + self.age_us(now))).max(1))
    }

    #[inline]
    fn age_us(&self, now: Duration) -> u64 {
        u64::from(wrapping_millis(now).wrapping_sub(self.seen_ms)) * 1000
    }
}

#[inline]
fn wrapping_millis(now: Duration) -> u32 {
    u32::try_from(crate::time::millis(now) & u64::from(u32::MAX)).unwrap_or(0)
}

/// The slot for the next request, from 64 random bits, never `exclude`.
#[inline]
#[must_use]
pub fn pick(
    sampler: &Sampler,
    loads: &[Load],
    averages: &[PeakEwma],
    rules: &EwmaRules,
    (random, now): (u64, Duration),
    exclude: Option<u32>,
) -> Option<u32> {
    let (first, second) = sampler.draw_two(random, exclude)?;
    let Some(second) = second else { return Some(first) };
    let cost = |slot: u32| {
        let (load, average) = (loads[slot as usize], averages[slot as usize]);
        let latency = average.expected_us(rules, now).unwrap_or(UNKNOWN_US);
        (u128::from(latency) * (u128::from(load.in_flight) + 1), u128::from(load.weight))
    };
    let ((a, a_weight), (b, b_weight)) = (cost(first), cost(second));
    Some(if a * b_weight > b * a_weight { second } else { first })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    const MS: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_peak_counts_at_once_and_fades_slowly() {
        let (rules, mut average) = (EwmaRules::default(), PeakEwma::default());
        assert_eq!(average.expected_us(&rules, SECOND), None);
        average.observe(&rules, 10 * MS, SECOND);
        average.observe(&rules, 900 * MS, SECOND + MS);
        assert_eq!(average.expected_us(&rules, SECOND + MS), Some(900_000));
        average.observe(&rules, 10 * MS, SECOND + 2 * MS);
        assert!(
            average.expected_us(&rules, SECOND + 2 * MS) > Some(890_000),
            "one quick answer changes little"
        );
        let later = average.expected_us(&rules, 11 * SECOND).unwrap();
        assert!((400_000..500_000).contains(&later), "half after tau without answers: {later}");
        for tenth in 0..600u32 {
            average.observe(&rules, 10 * MS, 11 * SECOND + tenth * 100 * MS);
        }
        assert!(average.expected_us(&rules, 71 * SECOND) < Some(20_000), "trusted again: {average:?}");
    }

    #[test]
    fn the_clock_may_wrap() {
        let (rules, mut average) = (EwmaRules::default(), PeakEwma::default());
        let wrap = Duration::from_millis(u64::from(u32::MAX));
        average.observe(&rules, 10 * MS, wrap - MS);
        average.observe(&rules, 9 * MS, wrap + 2 * MS);
        let expected = average.expected_us(&rules, wrap + 3 * MS).unwrap();
        assert!((9_990..=10_000).contains(&expected), "{expected}");
    }

    #[test]
    fn a_slow_endpoint_gets_little_and_a_busy_one_less() {
        let mut sampler = Sampler::default();
        sampler.rebuild([1, 1, 1].into_iter());
        let (rules, now) = (EwmaRules::default(), SECOND);
        let mut averages = [PeakEwma::default(); 3];
        for (average, latency) in averages.iter_mut().zip([10 * MS, 10 * MS, 500 * MS]) {
            average.observe(&rules, latency, now);
        }
        let mut loads = [Load { in_flight: 0, weight: 1 }; 3];
        let mut rng = Rng::new(1);
        let mut counts = |loads: &[Load]| {
            let mut counts = [0; 3];
            for _ in 0..3_000 {
                counts
                    [pick(&sampler, loads, &averages, &rules, (rng.draw(), now), None).unwrap() as usize] +=
                    1;
            }
            counts
        };
        assert_eq!(counts(&loads)[2], 0);
        loads[0].in_flight = 100;
        let [busy, free, slow] = counts(&loads);
        assert!(free > 1_900 && busy == 0 && slow > 0, "{busy} {free} {slow}");
        assert!(pick(&sampler, &loads, &averages, &rules, (5, now), Some(1)).is_some());
    }
}
