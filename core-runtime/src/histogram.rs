//! A fixed-size log-linear histogram of durations in microseconds: plain adds, no allocation.
//!
//! 16 linear steps per power of two, so a bucket is at most 6.25 % wide. HDR idea: Tene, "HdrHistogram".

use std::time::Duration;

const STEP_BITS: u32 = 4;
const STEPS: usize = 1 << STEP_BITS;
/// Powers of two above the linear part; the last bucket takes everything from about 71 minutes.
const POWERS: usize = 28;
/// Number of buckets.
pub const BUCKETS: usize = (POWERS + 1) * STEPS;

/// Counts of durations.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum_us: u64,
    max_us: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

/// The bucket of a value in microseconds.
fn bucket_of(us: u64) -> usize {
    if us < STEPS as u64 {
        return usize::try_from(us).unwrap_or(0);
    }
    let power = 63 - us.leading_zeros();
    let shift = power - STEP_BITS;
    let step = usize::try_from((us >> shift) & (STEPS as u64 - 1)).unwrap_or(0);
    ((shift as usize + 1) * STEPS + step).min(BUCKETS - 1)
}

/// The exclusive upper bound of a bucket in microseconds.
pub fn bucket_limit_us(bucket: usize) -> u64 {
    let (group, step) = (bucket / STEPS, (bucket % STEPS) as u64);
    if group == 0 {
        step + 1
    } else {
        (STEPS as u64 + step + 1) << (group - 1)
    }
}

impl Histogram {
    pub fn new() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            count: 0,
            sum_us: 0,
            max_us: 0,
        }
    }

    /// Adds one duration; below a microsecond counts as the first bucket.
    pub fn record(&mut self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.counts[bucket_of(us)] += 1;
        self.count += 1;
        self.sum_us = self.sum_us.saturating_add(us);
        self.max_us = self.max_us.max(us);
    }

    /// Adds another histogram's counts.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
        self.max_us = self.max_us.max(other.max_us);
    }

    /// Takes over another histogram's counts without allocating.
    pub fn copy_from(&mut self, other: &Self) {
        self.counts.copy_from_slice(&other.counts);
        self.count = other.count;
        self.sum_us = other.sum_us;
        self.max_us = other.max_us;
    }

    /// Forgets all counts.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.count = 0;
        self.sum_us = 0;
        self.max_us = 0;
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn sum_us(&self) -> u64 {
        self.sum_us
    }

    pub fn max_us(&self) -> u64 {
        self.max_us
    }

    /// Counts by bucket; see [`bucket_limit_us`].
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// The smallest bucket limit in microseconds that at least `share` (0 to 1) of the values lie below; 0 when empty.
    pub fn quantile_us(&self, share: f64) -> u64 {
        let mut seen = 0u64;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen > 0 && as_f64(seen) >= share * as_f64(self.count) {
                return bucket_limit_us(bucket).min(self.max_us.max(1));
            }
        }
        0
    }
}

/// Counts stay far below 2^53, where f64 is exact.
#[expect(
    clippy::cast_precision_loss,
    reason = "a count above 2^53 would take centuries"
)]
fn as_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        let mut previous = 0;
        for bucket in 0..BUCKETS {
            let limit = bucket_limit_us(bucket);
            assert!(limit > previous, "limits rise");
            assert_eq!(bucket_of(previous), bucket, "the lower bound is inside");
            assert_eq!(bucket_of(limit - 1), bucket, "the last value is inside");
            previous = limit;
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_within_a_bucket_of_the_truth() {
        let mut histogram = Histogram::new();
        for us in 1..=10_000u64 {
            histogram.record(Duration::from_micros(us));
        }
        for (share, truth) in [(0.5, 5_000u64), (0.99, 9_900), (0.999, 9_990)] {
            let got = histogram.quantile_us(share);
            assert!(
                got >= truth && got <= truth + truth / 15,
                "p{share}: {got} for {truth}"
            );
        }
        assert_eq!(histogram.count(), 10_000);
    }
}
