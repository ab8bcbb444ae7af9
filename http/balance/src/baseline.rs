//! What a cluster's latency usually is: the reference of adaptive concurrency and of the overload signal.
//!
//! Means of short windows; the baseline follows a lower mean at once and a higher one by 1 % a window only, so that a
//! slow-down of minutes stands out against what was usual before, and a lasting change is accepted in the end.

use std::time::Duration;

use crate::time::{micros, narrow};

/// Samples that make a window count; a quiet cluster waits for them.
const SAMPLES_MIN: u32 = 20;
const WINDOW: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Baseline {
    samples: u32,
    sum_us: u64,
    ends: Duration,
    baseline_us: u64,
    /// Mean of the last window against the baseline then, in percent; 100 before there is one.
    ratio_percent: Option<u32>,
}

impl Baseline {
    /// Takes in a latency; the new ratio in percent when that ends a window.
    #[inline]
    pub fn observe(&mut self, latency: Duration, now: Duration) -> Option<u32> {
        self.samples = self.samples.saturating_add(1);
        self.sum_us = self.sum_us.saturating_add(micros(latency));
        (now >= self.ends && self.samples >= SAMPLES_MIN).then(|| self.close(now))
    }

    /// Mean latency of the last window in percent of the usual one; 100 before anything is known.
    #[inline]
    #[must_use]
    pub fn ratio_percent(&self) -> u32 {
        self.ratio_percent.unwrap_or(100)
    }

    fn close(&mut self, now: Duration) -> u32 {
        let mean_us = (self.sum_us / u64::from(self.samples)).max(1);
        (self.samples, self.sum_us, self.ends) = (0, 0, now.saturating_add(WINDOW));
        self.baseline_us = if self.baseline_us == 0 || mean_us < self.baseline_us {
            mean_us
        } else {
            mean_us.min(self.baseline_us + self.baseline_us.div_ceil(100))
        };
        let ratio = narrow(mean_us.saturating_mul(100) / self.baseline_us);
        self.ratio_percent = Some(ratio);
        ratio
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn run(baseline: &mut Baseline, latency_ms: u32, seconds: std::ops::Range<u32>) -> u32 {
        for second in seconds {
            for n in 0..50u32 {
                baseline.observe(latency_ms * MS, (second * 1000 + n * 20) * MS);
            }
        }
        baseline.ratio_percent()
    }

    #[test]
    fn a_slow_down_stands_out_for_minutes_and_a_lasting_change_is_accepted() {
        let mut baseline = Baseline::default();
        assert_eq!(baseline.ratio_percent(), 100);
        assert_eq!(run(&mut baseline, 80, 0..30), 100);
        assert!(run(&mut baseline, 3000, 30..33) > 3_500);
        assert!(run(&mut baseline, 3000, 33..93) > 1_500, "after a minute");
        assert!(run(&mut baseline, 3000, 93..600) < 110, "after ten minutes");
        assert_eq!(run(&mut baseline, 80, 600..603), 100, "back at once");
    }

    #[test]
    fn few_samples_do_not_judge() {
        let mut baseline = Baseline::default();
        for second in 0..SAMPLES_MIN - 1 {
            assert_eq!(baseline.observe(10 * MS, second * 1000 * MS), None);
        }
        assert_eq!(baseline.observe(10 * MS, 100_000 * MS), Some(100));
        assert_eq!(baseline.observe(9_000 * MS, 200_000 * MS), None);
        assert_eq!(baseline.ratio_percent(), 100);
    }
}
