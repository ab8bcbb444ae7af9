//! When requests are meant to start: rates in stages, bursts, a recorded trace. Pure: times from the start of the run.
//!
//! A stage's rate runs straight from `from` to `to`, so that N(t), the number of arrivals up to t, is a quadratic in
//! each stage; an arrival with number n happens at the t with N(t) = n. Constant arrivals have the numbers 1, 2, 3 …,
//! Poisson arrivals the running sums of exponential gaps (a time-changed unit Poisson process; Çinlar, "Introduction
//! to Stochastic Processes", 1975). A core takes every n-th constant arrival, or a Poisson process of an n-th of
//! the rate. Called by the pacer of each core.

use std::sync::Arc;
use std::time::Duration;

use crate::number::{float, float_of, nanos, seconds};
use crate::rng::Rng;

/// A part of a run in which the rate runs straight from one value to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stage {
    pub(crate) length: Duration,
    /// Requests per second at its start and at its end.
    pub(crate) from: f64,
    pub(crate) to: f64,
}

impl Stage {
    /// Arrivals in it.
    fn arrivals(&self) -> f64 {
        self.length.as_secs_f64() * f64::midpoint(self.from, self.to)
    }

    /// Seconds from its start to its `n`-th arrival: the root of from·t + k/2·t² = n, in the form that divides by
    /// the sum of two numbers of one sign.
    fn time_of(&self, n: f64) -> f64 {
        let slope = (self.to - self.from) / self.length.as_secs_f64();
        let speed = (self.from * self.from + 2.0 * slope * n).max(0.0).sqrt();
        2.0 * n / (self.from + speed)
    }
}

/// Requests that start at one moment, again and again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Burst {
    pub(crate) size: u64,
    pub(crate) every: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spacing {
    Constant,
    Poisson,
}

/// All that says when requests start in an open loop.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Schedule {
    pub(crate) stages: Vec<Stage>,
    pub(crate) spacing: Spacing,
    pub(crate) burst: Option<Burst>,
    /// Start times from a file, rising; then stages and bursts are empty.
    pub(crate) trace: Option<Arc<[Duration]>>,
}

impl Schedule {
    /// Where the last stage or the trace ends.
    pub(crate) fn length(&self) -> Duration {
        let staged = self.stages.iter().map(|stage| stage.length).sum();
        self.trace.as_ref().and_then(|trace| trace.last().copied()).map_or(staged, |last| last.max(staged))
    }

    /// Requests that are meant to start in [from, to), on average for Poisson arrivals.
    pub(crate) fn expected(&self, from: Duration, to: Duration) -> f64 {
        if let Some(trace) = &self.trace {
            return float_of(trace.iter().filter(|at| (from..to).contains(*at)).count());
        }
        let steady = self.arrivals_until(to) - self.arrivals_until(from);
        let bursts = self.burst.map_or(0.0, |burst| {
            let until = |at: Duration| nanos(at).div_ceil(nanos(burst.every).max(1));
            float((until(to) - until(from)) * burst.size)
        });
        steady + bursts
    }

    /// N(t).
    fn arrivals_until(&self, t: Duration) -> f64 {
        let mut left = t;
        let mut sum = 0.0;
        for stage in &self.stages {
            let part = left.min(stage.length).as_secs_f64();
            if part > 0.0 {
                let slope = (stage.to - stage.from) / stage.length.as_secs_f64();
                sum += part * (stage.from + 0.5 * slope * part);
            }
            left = left.saturating_sub(stage.length);
        }
        sum
    }

    /// Puts a stage of the first rate in front, for a warm-up.
    pub(crate) fn warmed_up(mut self, warmup: Duration) -> Self {
        if let (Some(first), false) = (self.stages.first().copied(), warmup.is_zero()) {
            self.stages.insert(0, Stage { length: warmup, from: first.from, to: first.from });
        }
        self
    }
}

/// The start times of one core, rising.
#[derive(Debug)]
pub(crate) struct Arrivals {
    schedule: Schedule,
    cores: u64,
    rng: Rng,
    /// The number of the next arrival of the stages; not whole for Poisson.
    n: f64,
    /// The stage of the next arrival, its start, and N at its start.
    stage: usize,
    stage_start: f64,
    stage_n: f64,
    steady: Option<Duration>,
    /// The next burst, and this core's requests left in it.
    burst_at: Duration,
    burst_left: u64,
    burst_share: u64,
    trace_at: usize,
}

impl Arrivals {
    /// Those of core number `core` of `cores`.
    pub(crate) fn new(schedule: &Schedule, core: u64, cores: u64, seed: u64) -> Self {
        let cores = cores.max(1);
        let burst_share =
            schedule.burst.map_or(0, |burst| burst.size / cores + u64::from(core < burst.size % cores));
        let mut this = Self {
            schedule: schedule.clone(),
            cores,
            rng: Rng::new(seed, core),
            n: 0.0,
            stage: 0,
            stage_start: 0.0,
            stage_n: 0.0,
            steady: None,
            burst_at: Duration::ZERO,
            burst_left: burst_share,
            burst_share,
            trace_at: usize::try_from(core).unwrap_or(usize::MAX),
        };
        this.n = match schedule.spacing {
            // The first is due at once: arrival number n at N(t) = n - 1.
            Spacing::Constant => float(core),
            Spacing::Poisson => float(cores) * this.rng.exponential(),
        };
        this.steady = this.steady_time();
        this
    }

    /// The time of arrival number `n`; None behind the last stage.
    fn steady_time(&mut self) -> Option<Duration> {
        loop {
            let stage = self.schedule.stages.get(self.stage)?;
            let within = self.n - self.stage_n;
            if within < stage.arrivals() {
                return Some(seconds(
                    self.stage_start + if within > 0.0 { stage.time_of(within) } else { 0.0 },
                ));
            }
            self.stage_n += stage.arrivals();
            self.stage_start += stage.length.as_secs_f64();
            self.stage += 1;
        }
    }

    fn next_steady(&mut self) -> Option<Duration> {
        let now = self.steady?;
        let gap = match self.schedule.spacing {
            Spacing::Constant => 1.0,
            Spacing::Poisson => self.rng.exponential(),
        };
        self.n += gap * float(self.cores);
        self.steady = self.steady_time();
        Some(now)
    }

    fn next_of_burst(&mut self, burst: Burst) -> Option<Duration> {
        let now = self.burst_at;
        if now >= self.schedule.length() || self.burst_share == 0 {
            return None;
        }
        self.burst_left -= 1;
        if self.burst_left == 0 {
            self.burst_left = self.burst_share;
            self.burst_at += burst.every;
        }
        Some(now)
    }
}

impl Iterator for Arrivals {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        if let Some(trace) = &self.schedule.trace {
            let at = trace.get(self.trace_at).copied();
            self.trace_at = self.trace_at.saturating_add(usize::try_from(self.cores).unwrap_or(usize::MAX));
            return at;
        }
        match self.schedule.burst {
            Some(burst) if self.steady.is_none_or(|steady| self.burst_at <= steady) => {
                self.next_of_burst(burst).or_else(|| self.next_steady())
            }
            _ => self.next_steady(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(length_s: u64, from: f64, to: f64) -> Stage {
        Stage { length: Duration::from_secs(length_s), from, to }
    }

    fn schedule(stages: Vec<Stage>, spacing: Spacing) -> Schedule {
        Schedule { stages, spacing, burst: None, trace: None }
    }

    fn all(schedule: &Schedule, cores: u64) -> Vec<Duration> {
        let mut times: Vec<_> =
            (0..cores).flat_map(|core| Arrivals::new(schedule, core, cores, 7).collect::<Vec<_>>()).collect();
        times.sort();
        times
    }

    #[test]
    fn constant_arrivals_are_evenly_spaced_over_all_cores() {
        let plan = schedule(vec![stage(2, 250.0, 250.0)], Spacing::Constant);
        for cores in [1, 2, 3] {
            let times = all(&plan, cores);
            assert_eq!(times.len(), 500, "{cores} cores");
            for (k, at) in times.iter().enumerate() {
                let want = Duration::from_millis(4) * u32::try_from(k).expect("few");
                assert!(at.abs_diff(want) < Duration::from_micros(1), "{cores} cores: {k} at {at:?}");
            }
        }
    }

    #[test]
    fn fractional_rates_and_ramps_have_the_right_count() {
        let slow = schedule(vec![stage(100, 0.5, 0.5)], Spacing::Constant);
        assert_eq!(all(&slow, 1).len(), 50);
        // 0 → 100/s in 10 s are 500; then 5 s of nothing; then 100 → 50/s in 2 s are 150.
        let plan = schedule(
            vec![stage(10, 0.0, 100.0), stage(5, 0.0, 0.0), stage(2, 100.0, 50.0)],
            Spacing::Constant,
        );
        let times = all(&plan, 2);
        assert!((649..=651).contains(&times.len()), "{}", times.len());
        assert!(!times.iter().any(|at| (10_001..14_999).contains(&at.as_millis())), "the gap is empty");
        let half = times.iter().filter(|at| at.as_secs() < 5).count();
        assert!((123..=127).contains(&half), "a quarter of a ramp lies in its first half: {half}");
        assert!((plan.expected(Duration::ZERO, plan.length()) - 650.0).abs() < 1e-6);
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_its_variance() {
        let plan = schedule(vec![stage(100, 200.0, 200.0)], Spacing::Poisson);
        let times = all(&plan, 2);
        let total = float_of(times.len());
        assert!((total - 20_000.0).abs() < 600.0, "four standard deviations: {total}");
        let mut each = vec![0.0; 1000];
        for at in &times {
            each[usize::try_from(at.as_millis() / 100).expect("small")] += 1.0;
        }
        let mean = total / 1000.0;
        let variance = each.iter().map(|n| (n - mean) * (n - mean)).sum::<f64>() / 1000.0;
        assert!((variance / mean - 1.0).abs() < 0.2, "variance {variance} of mean {mean}");
    }

    #[test]
    fn bursts_come_on_top() {
        let mut plan = schedule(vec![stage(3, 10.0, 10.0)], Spacing::Constant);
        plan.burst = Some(Burst { size: 5, every: Duration::from_secs(1) });
        for cores in [1, 2] {
            let times = all(&plan, cores);
            assert_eq!(times.len(), 45, "{cores} cores");
            assert_eq!(times.iter().filter(|at| at.as_millis() == 1000).count(), 6);
            for core in 0..cores {
                let own: Vec<_> = Arrivals::new(&plan, core, cores, 7).collect();
                assert!(own.is_sorted(), "{own:?}");
            }
        }
        assert!((plan.expected(Duration::ZERO, Duration::from_secs(3)) - 45.0).abs() < 1e-6);
    }

    #[test]
    fn a_trace_is_replayed_and_shared() {
        let trace: Arc<[Duration]> = (0..7).map(Duration::from_millis).collect();
        let plan =
            Schedule { stages: Vec::new(), spacing: Spacing::Constant, burst: None, trace: Some(trace) };
        assert_eq!(all(&plan, 3), (0..7).map(Duration::from_millis).collect::<Vec<_>>());
    }
}
