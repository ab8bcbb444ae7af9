//! The bounds of the histograms that Prometheus gets, and the coarse histogram of table rows, which counts by them.
//! Stages are counted by the fine [`Histogram`] of the runtime.

use std::time::Duration;

pub use core_runtime::histogram::Histogram;

/// Upper bounds of the stage histograms that Prometheus gets, in nanoseconds.
pub const STAGE_BOUNDS_NS: [u64; 26] = [
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    75_000,
    100_000,
    150_000,
    250_000,
    500_000,
    750_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
];

/// Upper bounds of the histograms in table rows, in nanoseconds.
pub const ROW_BOUNDS_NS: [u64; 12] = [
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    1_000_000_000,
    5_000_000_000,
    30_000_000_000,
];

/// A histogram over [`ROW_BOUNDS_NS`], 120 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoarseHistogram {
    /// By bound, not cumulative; the last one is for values over all bounds.
    counts: [u64; ROW_BOUNDS_NS.len() + 1],
    sum_ns: u64,
}

impl CoarseHistogram {
    pub fn record(&mut self, value: Duration) {
        let ns = nanos(value);
        // Most values are small, so the search is a short walk.
        let at = ROW_BOUNDS_NS.iter().position(|bound| ns <= *bound).unwrap_or(ROW_BOUNDS_NS.len());
        self.counts[at] += 1;
        self.sum_ns = self.sum_ns.wrapping_add(ns);
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub const fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Values up to each of [`ROW_BOUNDS_NS`], cumulative.
    pub fn cumulative(&self) -> impl Iterator<Item = u64> {
        self.counts[..ROW_BOUNDS_NS.len()].iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        })
    }

    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }
}

fn nanos(value: Duration) -> u64 {
    u64::try_from(value.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_balance::Rng;

    #[test]
    fn cumulative_counts_rise_to_the_total() {
        let mut histogram = Histogram::default();
        let mut coarse = CoarseHistogram::default();
        let mut rng = Rng::new(9);
        let values: Vec<u64> = (0..20_000).map(|_| rng.below(20_000_000_000)).collect();
        for ns in &values {
            histogram.record(Duration::from_nanos(*ns));
            coarse.record(Duration::from_nanos(*ns));
        }
        for (bound, found) in STAGE_BOUNDS_NS.iter().zip(histogram.cumulative(&STAGE_BOUNDS_NS)) {
            let low = values.iter().filter(|ns| **ns <= bound - bound / 60).count();
            let high = values.iter().filter(|ns| **ns <= *bound).count();
            assert!(
                (low..=high).contains(&usize::try_from(found).unwrap()),
                "{bound}: {found}, not {low} to {high}"
            );
        }
        for (bound, found) in ROW_BOUNDS_NS.iter().zip(coarse.cumulative()) {
            assert_eq!(
                usize::try_from(found).unwrap(),
                values.iter().filter(|ns| *ns <= bound).count(),
                "{bound}"
            );
        }
        assert_eq!(coarse.count(), 20_000);
        assert!(STAGE_BOUNDS_NS.is_sorted() && ROW_BOUNDS_NS.is_sorted());
    }

    #[test]
    fn adding_is_the_same_as_recording_together() {
        let (mut a, mut b, mut both) = (Histogram::default(), Histogram::default(), Histogram::default());
        let (mut small_a, mut small_b, mut small_both) =
            (CoarseHistogram::default(), CoarseHistogram::default(), CoarseHistogram::default());
        for ms in 0..1000u64 {
            let value = Duration::from_millis(ms);
            let (fine, coarse) = if ms % 3 == 0 { (&mut a, &mut small_a) } else { (&mut b, &mut small_b) };
            fine.record(value);
            coarse.record(value);
            both.record(value);
            small_both.record(value);
        }
        a.add(&b);
        small_a.add(&small_b);
        assert_eq!((&a, small_a), (&both, small_both));
        b.copy_from(&both);
        assert_eq!(b, both);
        b.clear();
        assert_eq!(b, Histogram::default());
    }
}
