//! What a cluster's latency usually is: the reference of adaptive concurrency and of the overload signal.
//!
//! Means of windows of a second. The baseline follows a lower mean by a quarter of the way and a higher one by 1 % a
//! window only, so that a slow-down of minutes stands out against what was usual before, and a lasting change is accepted
//! in the end. The first windows only teach: answers that come early are the quick ones, and a cluster must not be taken
//! for slow because its first second showed no others.

use std::time::Duration;

use crate::time::{micros, narrow};

/// Samples that make a window count; a quiet cluster waits for them.
const SAMPLES_MIN: u32 = 20;
/// Windows before anything is judged.
const LEARNING: u32 = 10;
const WINDOW: Duration = Duration::from_secs(1);
/// For how long the ratio of a window counts after the next one should have ended.
const FRESH: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Baseline {
    samples: u32,
    sum_us: u64,
    ends: Duration,
    baseline_us: u64,
    windows: u32,
    /// Mean of the last window against the baseline then, in percent; 100 before there is one.
    ratio_percent: Option<u32>,
}

impl Baseline {
    /// Takes in a latency; the new ratio in percent when that ends a window.
    #[inline]
    pub fn observe(&mut self, latency: Duration, now: Duration) -> Option<u32> {
        if self.samples == 0 && self.windows == 0 {
            self.ends = now.saturating_add(WINDOW);
        }
        self.samples = self.samples.saturating_add(1);
        self.sum_us = self.sum_us.saturating_add(micros(latency));
        (now >= self.ends && self.samples >= SAMPLES_MIN).then(|| self.close(now))
    }

    /// Mean latency of the last window in percent of the usual one; 100 when nothing is known, and when the last window
    /// is long over: a cluster that gets no requests because it was slow must be tried again.
    #[inline]
    #[must_use]
    pub fn ratio_percent(&self, now: Duration) -> u32 {
        if now > self.ends.saturating_add(FRESH) { 100 } else { self.ratio_percent.unwrap_or(100) }
    }

    fn close(&mut self, now: Duration) -> u32 {
        let mean_us = (self.sum_us / u64::from(self.samples)).max(1);
        (self.samples, self.sum_us, self.ends) = (0, 0, now.saturating_add(WINDOW));
        self.windows = self.windows.saturating_add(1);
        self.baseline_us = if self.windows <= LEARNING {
            mean_us
        } else if mean_us < self.baseline_us {
            self.baseline_us - (self.baseline_us - mean_us) / 4
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
        let seconds_end = seconds.end;
        for second in seconds {
            for n in 0..50u32 {
                baseline.observe(latency_ms * MS, (second * 1000 + n * 20) * MS);
            }
        }
        baseline.ratio_percent(seconds_end * 1000 * MS)
    }

    #[test]
    fn a_slow_down_stands_out_for_minutes_and_a_lasting_change_is_accepted() {
        let mut baseline = Baseline::default();
        assert_eq!(baseline.ratio_percent(MS), 100);
        assert_eq!(run(&mut baseline, 80, 0..30), 100);
        assert!(run(&mut baseline, 3000, 30..33) > 3_500);
        assert!(run(&mut baseline, 3000, 33..93) > 1_500, "after a minute");
        assert!(run(&mut baseline, 3000, 93..600) < 110, "after ten minutes");
        assert!(run(&mut baseline, 80, 600..603) <= 100, "back at once");
    }

    #[test]
    fn few_samples_do_not_judge() {
        let mut baseline = Baseline::default();
        for second in 0..SAMPLES_MIN - 1 {
            assert_eq!(baseline.observe(10 * MS, second * 1000 * MS), None);
        }
        assert_eq!(baseline.observe(10 * MS, 100_000 * MS), Some(100));
        assert_eq!(baseline.observe(9_000 * MS, 200_000 * MS), None);
        assert_eq!(baseline.ratio_percent(200_000 * MS), 100);
    }

    #[test]
    fn the_quick_answers_that_come_first_do_not_judge_the_others() {
        let mut baseline = Baseline::default();
        assert_eq!(run(&mut baseline, 500, 0..1), 100);
        assert_eq!(run(&mut baseline, 3000, 1..8), 100, "learning");
        assert_eq!(run(&mut baseline, 3000, 8..30), 100, "that is what is usual");
    }

    #[test]
    fn without_new_samples_the_ratio_is_forgotten() {
        let mut baseline = Baseline::default();
        run(&mut baseline, 80, 0..15);
        assert!(run(&mut baseline, 3000, 15..17) > 3_000);
        assert!(baseline.ratio_percent(18_000 * MS) > 3_000);
        assert_eq!(baseline.ratio_percent(20_000 * MS), 100);
    }
}
