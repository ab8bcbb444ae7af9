//! A fixed-size log-linear histogram of durations (as in Tene's HdrHistogram): plain adds, no allocation.
//!
//! 64 buckets for each power of two nanoseconds, so a value is known to 1.6 % from 64 ns to 18 minutes. Recording is two
//! shifts and three additions.

use std::time::Duration;

const SUB_BITS: u32 = 6;
const SUB_BUCKETS: usize = 1 << SUB_BITS;
/// Values from 2^40 ns on are in the last bucket.
const VALUE_BITS: u32 = 40;
const BUCKETS: usize = SUB_BUCKETS * ((VALUE_BITS - SUB_BITS) as usize + 1);

/// Counts of durations by size, 18 KB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: Box<[u64]>,
    count: u64,
    sum_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS].into_boxed_slice(), count: 0, sum_ns: 0 }
    }
}

/// The bucket of a value: below 64 the value itself, above it the octave and the six bits after its first.
fn bucket_of(ns: u64) -> usize {
    let ns = ns.min((1 << VALUE_BITS) - 1);
    let octave = (u64::BITS - ns.leading_zeros()).saturating_sub(SUB_BITS + 1);
    let sub = usize::try_from(ns >> octave).unwrap_or(SUB_BUCKETS);
    octave as usize * SUB_BUCKETS + sub
}

/// The largest value of a bucket, in nanoseconds.
fn bucket_max_ns(bucket: usize) -> u64 {
    let octave = (bucket / SUB_BUCKETS).saturating_sub(1);
    let sub = u64::try_from(bucket - octave * SUB_BUCKETS).unwrap_or(u64::MAX);
    ((sub + 1) << octave) - 1
}

impl Histogram {
    pub fn record(&mut self, value: Duration) {
        self.record_many(value, 1);
    }

    /// Records the same value `times` times.
    pub fn record_many(&mut self, value: Duration, times: u64) {
        let ns = nanos(value);
        if let Some(count) = self.counts.get_mut(bucket_of(ns)) {
            *count += times;
        }
        self.count += times;
        self.sum_ns = self.sum_ns.wrapping_add(ns.wrapping_mul(times));
    }

    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Of all values, in nanoseconds.
    pub const fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The value that `share` (0 to 1) of all values do not exceed, to 1.6 %; None without values.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let mut left = self.count;
        let wanted = |left: u64| precise(self.count - left) >= share * precise(self.count);
        for (bucket, count) in self.counts.iter().enumerate() {
            left -= count;
            if *count > 0 && wanted(left) {
                return Some(Duration::from_nanos(bucket_max_ns(bucket)));
            }
        }
        None
    }

    /// Values up to each of the rising `bounds_ns`, cumulative, each to 1.6 % of its bound.
    pub fn cumulative<'a>(&'a self, bounds_ns: &'a [u64]) -> impl Iterator<Item = u64> + 'a {
        let (mut bucket, mut sum) = (0, 0);
        bounds_ns.iter().map(move |bound| {
            while let Some(count) = self.counts.get(bucket)
                && bucket_max_ns(bucket) <= *bound
            {
                sum += count;
                bucket += 1;
            }
            sum
        })
    }

    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.count += other.count;
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }

    /// Takes the counts of `other` without allocating.
    pub fn copy_from(&mut self, other: &Self) {
        self.counts.copy_from_slice(&other.counts);
        self.count = other.count;
        self.sum_ns = other.sum_ns;
    }

    /// Hands out every value, as (upper bound of its bucket, how often), and forgets them.
    pub fn drain(&mut self, mut take: impl FnMut(Duration, u64)) {
        for (bucket, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            take(Duration::from_nanos(bucket_max_ns(bucket)), *count);
        }
        self.clear();
    }

    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.count = 0;
        self.sum_ns = 0;
    }
}

fn nanos(value: Duration) -> u64 {
    u64::try_from(value.as_nanos()).unwrap_or(u64::MAX)
}

/// A count as a float; exact below 2^53, where no count gets.
fn precise(count: u64) -> f64 {
    let high = u32::try_from(count >> 32).unwrap_or(u32::MAX);
    let low = u32::try_from(count & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    f64::from(high) * 4_294_967_296.0 + f64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_narrow() {
        let mut next = 0u64;
        for bucket in 0..BUCKETS {
            let max = bucket_max_ns(bucket);
            assert_eq!(bucket_of(next), bucket, "lower edge");
            assert_eq!(bucket_of(max), bucket, "upper edge");
            assert!(max - next <= next / 64, "bucket {bucket} is {next} to {max}");
            next = max + 1;
        }
        assert_eq!(next, 1 << VALUE_BITS);
        for huge in [next, u64::MAX] {
            assert_eq!(bucket_of(huge), BUCKETS - 1);
        }
    }

    #[test]
    fn quantiles_agree_with_sorted_values() {
        let mut rng = Xorshift(3);
        let mut histogram = Histogram::default();
        let mut values: Vec<u64> = (0..50_000).map(|_| rng.below(1 << (6 + rng.clone().below(30)))).collect();
        values.iter().for_each(|ns| histogram.record(Duration::from_nanos(*ns)));
        values.sort_unstable();
        for (share, at) in [(0.5, 24_999), (0.9, 44_999), (0.99, 49_499), (0.999, 49_949), (1.0, 49_999)] {
            let found = u64::try_from(histogram.quantile(share).unwrap().as_nanos()).unwrap();
            let exact = values[at];
            assert!(found >= exact && found <= exact + exact / 60 + 1, "{share}: {found} for {exact}");
        }
        assert_eq!(histogram.count(), 50_000);
        assert_eq!(histogram.sum_ns(), values.iter().sum::<u64>());
        assert_eq!(Histogram::default().quantile(0.5), None);
    }

    #[test]
    fn many_at_once_are_many_one_by_one() {
        let (mut once, mut each) = (Histogram::default(), Histogram::default());
        once.record_many(Duration::from_micros(70), 3);
        (0..3).for_each(|_| each.record(Duration::from_micros(70)));
        assert_eq!(once, each);
    }

    #[derive(Clone)]
    struct Xorshift(u64);

    impl Xorshift {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % bound
        }
    }
}
