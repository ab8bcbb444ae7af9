//! Adaptive concurrency: an in-flight cap that follows latency (the gradient of Netflix's concurrency-limits).
//!
//! Once a window: `limit × gradient + √limit`, the gradient being the usual latency (with a tolerance) over the present
//! one, between a half and one. The root leaves room to try a higher limit; the limit rises only when it is used.

use std::time::Duration;

use crate::baseline::Baseline;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GradientRules {
    pub limit_min: u32,
    pub limit_max: u32,
    /// Latency in percent of the usual one up to which nothing is done.
    pub tolerance_percent: u32,
}

impl Default for GradientRules {
    fn default() -> Self {
        Self { limit_min: 10, limit_max: 1_000, tolerance_percent: 150 }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Gradient {
    limit: u32,
    baseline: Baseline,
    /// Most in flight since the limit last changed.
    peak: u32,
}

impl Gradient {
    /// Begins with the highest limit: a proxy that starts must not refuse what is usual.
    #[must_use]
    pub fn new(rules: &GradientRules) -> Self {
        Self { limit: rules.limit_max, baseline: Baseline::default(), peak: 0 }
    }

    /// Requests that may be in flight now.
    #[inline]
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// Takes in a finished request and how many were in flight with it.
    #[inline]
    pub fn observe(&mut self, rules: &GradientRules, latency: Duration, in_flight: u32, now: Duration) {
        self.peak = self.peak.max(in_flight);
        if let Some(ratio_percent) = self.baseline.observe(latency, now) {
            self.adapt(rules, ratio_percent);
        }
    }

    fn adapt(&mut self, rules: &GradientRules, ratio_percent: u32) {
        let gradient_percent =
            (rules.tolerance_percent.saturating_mul(100) / ratio_percent.max(1)).clamp(50, 100);
        let scaled = u64::from(self.limit) * u64::from(gradient_percent) / 100;
        let wanted = u32::try_from(scaled).unwrap_or(u32::MAX).saturating_add(self.limit.isqrt());
        let is_used = self.peak.saturating_mul(2) >= self.limit;
        if wanted < self.limit || is_used {
            self.limit = wanted.clamp(rules.limit_min, rules.limit_max.max(rules.limit_min));
        }
        self.peak = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const RULES: GradientRules = GradientRules { limit_min: 10, limit_max: 1000, tolerance_percent: 150 };

    /// A second of 100 answers each.
    fn run(gradient: &mut Gradient, latency_ms: u32, in_flight: u32, seconds: std::ops::Range<u32>) -> u32 {
        for second in seconds {
            for n in 0..100u32 {
                gradient.observe(&RULES, latency_ms * MS, in_flight, (second * 1000 + n * 10) * MS);
            }
        }
        gradient.limit()
    }

    #[test]
    fn the_limit_falls_with_a_slow_down_and_comes_back() {
        let mut gradient = Gradient::new(&RULES);
        assert_eq!(run(&mut gradient, 80, 50, 0..15), 1000, "usual latency");
        assert_eq!(run(&mut gradient, 110, 50, 15..17), 1000, "within the tolerance");
        let limit = run(&mut gradient, 3000, 500, 17..27);
        assert!(limit < 30, "from 80 ms to 3 s in ten seconds: {limit}");
        assert!(run(&mut gradient, 3000, 500, 27..50) >= RULES.limit_min);
        let limit = run(&mut gradient, 80, 2000, 50..110);
        assert!(limit > 500, "a minute later: {limit}");
    }

    #[test]
    fn an_unused_limit_does_not_rise() {
        let mut gradient = Gradient::new(&RULES);
        run(&mut gradient, 80, 50, 0..15);
        let low = run(&mut gradient, 3000, 500, 15..25);
        assert!(run(&mut gradient, 80, 1, 25..50) <= low);
    }
}
