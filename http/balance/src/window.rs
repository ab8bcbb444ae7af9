//! Counts over the last moments: a ring of buckets with running sums. Budgets, breaker and overload use it.
//!
//! Invariant: `sums` is the sum over `buckets`, and all buckets lie within the window that ends at `newest`.

use std::time::Duration;

use crate::time::{millis, narrow};

/// `BUCKETS` buckets of `KINDS` counters each.
#[derive(Clone, Debug)]
pub struct Window<const BUCKETS: usize, const KINDS: usize> {
    width_ms: u64,
    /// Number of the newest bucket since the start of time.
    newest: u64,
    /// When the newest bucket is over.
    ends_ms: u64,
    buckets: [[u32; KINDS]; BUCKETS],
    sums: [u64; KINDS],
}

impl<const BUCKETS: usize, const KINDS: usize> Window<BUCKETS, KINDS> {
    /// A window of `length`, at least one millisecond for each bucket.
    #[must_use]
    pub fn new(length: Duration) -> Self {
        let buckets = u64::try_from(BUCKETS).unwrap_or(u64::MAX).max(1);
        let width_ms = (millis(length) / buckets).max(1);
        let (newest, ends_ms) = (0, width_ms);
        Self { width_ms, newest, ends_ms, buckets: [[0; KINDS]; BUCKETS], sums: [0; KINDS] }
    }

    /// Adds `count` to a kind at `now`. Kinds that do not exist are ignored.
    #[inline]
    pub fn add(&mut self, now: Duration, kind: usize, count: u32) {
        self.advance(now);
        let at = self.place(self.newest);
        if let Some(counter) = self.buckets[at].get_mut(kind) {
            let before = *counter;
            *counter = counter.saturating_add(count);
            self.sums[kind] += u64::from(*counter - before);
        }
    }

    /// The sum of a kind over the window that ends at `now`.
    #[inline]
    pub fn sum(&mut self, now: Duration, kind: usize) -> u64 {
        self.advance(now);
        self.sums.get(kind).copied().unwrap_or(0)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.buckets = [[0; KINDS]; BUCKETS];
        self.sums = [0; KINDS];
    }

    #[inline]
    fn advance(&mut self, now: Duration) {
        if millis(now) >= self.ends_ms {
            self.advance_to(millis(now) / self.width_ms);
        }
    }

    fn advance_to(&mut self, bucket: u64) {
        let steps = bucket - self.newest;
        if steps >= u64::try_from(BUCKETS).unwrap_or(u64::MAX) {
            self.clear();
        } else {
            for stale in self.newest + 1..=bucket {
                let at = self.place(stale);
                for (sum, old) in self.sums.iter_mut().zip(self.buckets[at]) {
                    *sum -= u64::from(old);
                }
                self.buckets[at] = [0; KINDS];
            }
        }
        self.newest = bucket;
        self.ends_ms = (bucket + 1).saturating_mul(self.width_ms);
    }

    #[inline]
    fn place(&self, bucket: u64) -> usize {
        usize::try_from(bucket % u64::try_from(BUCKETS).unwrap_or(1)).unwrap_or(0)
    }
}

/// `part` of `whole` in thousandths, 0 of nothing.
#[inline]
pub(crate) fn permille(part: u64, whole: u64) -> u32 {
    narrow((part.saturating_mul(1000)).checked_div(whole).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn what_is_older_than_the_window_is_forgotten() {
        let mut window = Window::<10, 2>::new(1000 * MS);
        window.add(5 * MS, 0, 3);
        window.add(950 * MS, 0, 4);
        window.add(950 * MS, 1, 1);
        assert_eq!((window.sum(999 * MS, 0), window.sum(999 * MS, 1)), (7, 1));
        assert_eq!(window.sum(1000 * MS, 0), 4, "the first bucket is over a window old");
        assert_eq!(window.sum(1899 * MS, 0), 4);
        assert_eq!(window.sum(1900 * MS, 0), 0);
        window.add(1900 * MS, 0, 1);
        assert_eq!(window.sum(1_000_000 * MS, 0), 0, "after a long silence");
        window.add(1_000_000 * MS, 7, 1);
        assert_eq!(window.sum(1_000_000 * MS, 7), 0, "no such kind");
    }

    #[test]
    fn time_that_seems_to_step_back_counts_as_now() {
        let mut window = Window::<4, 1>::new(40 * MS);
        window.add(100 * MS, 0, 1);
        window.add(50 * MS, 0, 1);
        assert_eq!(window.sum(100 * MS, 0), 2);
    }

    #[test]
    fn sums_equal_a_plain_count() {
        let mut window = Window::<8, 1>::new(80 * MS);
        let mut events: Vec<u32> = Vec::new();
        let mut rng = crate::Rng::new(3);
        let mut now = 0u32;
        for _ in 0..5_000 {
            now += u32::try_from(rng.below(15)).unwrap();
            window.add(now * MS, 0, 1);
            events.push(now);
            let oldest_bucket = (now / 10).saturating_sub(7);
            let expected = events.iter().filter(|at| **at / 10 >= oldest_bucket).count();
            assert_eq!(window.sum(now * MS, 0), u64::try_from(expected).unwrap());
        }
    }
}
