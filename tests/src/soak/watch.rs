//! Memory and descriptors of one proxy process over its life.

use std::time::{Duration, Instant};

use crate::procfs;

/// Time between two samples.
const EVERY: Duration = Duration::from_millis(500);
/// Age from which memory should be flat: pools, tables and the allocator have grown to their size.
const WARM_UP: Duration = Duration::from_secs(15);
/// A life in which a leak shows beside the noise of what is in flight, and the growth that is none: a third of a per cent
/// of the whole in a minute. Soaks with few hot restarts have such lives.
const LONG_LIFE: Duration = Duration::from_secs(240);
const GROWTH_MAX: f64 = 4096.0;

#[derive(Clone, Copy, Debug)]
struct Sample {
    age: Duration,
    resident_bytes: u64,
    descriptors: usize,
}

/// One proxy process.
#[derive(Clone, Debug)]
pub struct Life {
    pub pid: u32,
    started: Instant,
    samples: Vec<Sample>,
}

impl Life {
    pub(super) fn new(pid: u32) -> Self {
        Self { pid, started: Instant::now(), samples: Vec::new() }
    }

    pub(super) fn step(&mut self) {
        let age = self.started.elapsed();
        if self.samples.last().is_some_and(|last| age < last.age + EVERY) {
            return;
        }
        if let Some(usage) = procfs::usage(self.pid) {
            let (resident_bytes, descriptors) = (usage.resident_bytes, usage.descriptors);
            self.samples.push(Sample { age, resident_bytes, descriptors });
        }
    }

    /// The largest resident memory.
    #[must_use]
    pub fn resident_bytes_max(&self) -> u64 {
        self.samples.iter().map(|sample| sample.resident_bytes).max().unwrap_or(0)
    }

    #[must_use]
    pub fn descriptors_max(&self) -> usize {
        self.samples.iter().map(|sample| sample.descriptors).max().unwrap_or(0)
    }

    /// Growth after the warm-up in bytes a second: median of the last third over median of the first third. None for
    /// a process that did not live long enough to tell.
    #[must_use]
    pub fn growth_per_second(&self) -> Option<f64> {
        let warm: Vec<&Sample> = self.samples.iter().filter(|sample| sample.age >= WARM_UP).collect();
        let third = warm.len() / 3;
        if third < 10 {
            return None;
        }
        let (early, late) = (&warm[..third], &warm[warm.len() - third..]);
        let seconds = middle(late, |sample| sample.age.as_secs_f64())
            - middle(early, |sample| sample.age.as_secs_f64());
        let bytes = |sample: &Sample| u32::try_from(sample.resident_bytes / 1024).map_or(f64::MAX, f64::from);
        Some((middle(late, bytes) - middle(early, bytes)) * 1024.0 / seconds)
    }

    /// What is wrong with the memory of a long life.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let is_long = self.samples.last().is_some_and(|last| last.age >= LONG_LIFE);
        let growth = self.growth_per_second().filter(|growth| is_long && *growth > GROWTH_MAX)?;
        Some(format!("process {}: memory grows by {growth:.0} bytes a second", self.pid))
    }
}

fn middle(samples: &[&Sample], value: impl Fn(&Sample) -> f64) -> f64 {
    let mut values: Vec<f64> = samples.iter().map(|sample| value(sample)).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

impl std::fmt::Display for Life {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let last = self.samples.last().map_or(Duration::ZERO, |sample| sample.age);
        write!(
            f,
            "process {}: {last:.0?}, up to {} KiB and {} descriptors",
            self.pid,
            self.resident_bytes_max() / 1024,
            self.descriptors_max()
        )?;
        match self.growth_per_second() {
            Some(growth) => write!(f, ", {:.1} KiB/s after {WARM_UP:?}", growth / 1024.0),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(resident: impl Fn(u32) -> u64) -> Life {
        life_of(120, resident)
    }

    fn life_of(seconds: u32, resident: impl Fn(u32) -> u64) -> Life {
        let sample = |second: u32| Sample {
            age: Duration::from_secs(u64::from(second)),
            resident_bytes: resident(second),
            descriptors: 1,
        };
        Life { samples: (0..seconds).map(sample).collect(), ..Life::new(1) }
    }

    #[test]
    fn growth_is_told_from_a_warm_up_and_from_noise() {
        let flat = life(|second| 50 << 20 | u64::from(second % 7) << 16);
        assert!(flat.growth_per_second().expect("long enough").abs() < 2000.0);
        let warming = life(|second| u64::from(second.min(14)) << 20);
        assert!(warming.growth_per_second().expect("long enough").abs() < 1.0);
        let leaking = life(|second| u64::from(second) << 14);
        let growth = leaking.growth_per_second().expect("long enough");
        assert!((16_000.0..17_000.0).contains(&growth), "{growth}");
    }

    #[test]
    fn only_a_long_life_that_grows_is_at_fault() {
        let leaking = |second: u32| u64::from(second) << 13;
        assert_eq!(life_of(200, leaking).fault(), None, "too short to tell");
        assert!(life_of(300, leaking).fault().is_some_and(|fault| fault.contains("8192 bytes a second")));
        assert_eq!(life_of(300, |second| 80 << 20 | u64::from(second % 11) << 16).fault(), None);
    }
}
