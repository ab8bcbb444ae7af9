//! The random numbers of one shard: fast, seeded from outside, replayable. Not for secrets.

/// Wyrand (Wang Yi, wyhash, public domain): a 64-bit counter through one wide multiplication. About 1 ns a number.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// Every shard needs a seed of its own, or all of them draw the same endpoints at the same time.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A number of 64 random bits.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0xa076_1d64_78bd_642f);
        let (high, low) = wide_product(self.state, self.state ^ 0xe703_7ed1_a0b4_28db);
        high ^ low
    }

    /// A number below `bound`, 0 for a bound of 0; the bias is below `bound`/2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        below(self.draw(), bound)
    }
}

/// The number below `bound` that 64 random bits stand for.
#[inline]
#[must_use]
pub(crate) fn below(random: u64, bound: u64) -> u64 {
    wide_product(random, bound).0
}

/// The 128-bit product as high and low half. The high half of a random number and a bound is a number below the
/// bound (Lemire, "Fast random integer generation in an interval", 2019); the low half is what is left of the
/// randomness and can be used once more.
#[inline]
pub(crate) fn wide_product(a: u64, b: u64) -> (u64, u64) {
    let product = u128::from(a) * u128::from(b);
    let high = u64::try_from(product >> 64).expect("the upper half of 128 bits has 64");
    (high, a.wrapping_mul(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_draw_equal_numbers_and_others_do_not() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            [rng.draw(), rng.draw(), rng.draw()]
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert_ne!(draw(0), [0; 3]);
    }

    #[test]
    fn every_bit_is_set_half_of_the_time() {
        let mut rng = Rng::new(1);
        let mut ones = [0u32; 64];
        for _ in 0..20_000 {
            let number = rng.draw();
            for (bit, count) in ones.iter_mut().enumerate() {
                *count += u32::from(number >> bit & 1 == 1);
            }
        }
        assert!(ones.iter().all(|count| (9_600..10_400).contains(count)), "{ones:?}");
    }

    #[test]
    fn numbers_below_a_bound_are_even() {
        let mut rng = Rng::new(2);
        assert_eq!(rng.below(0), 0);
        for bound in [1u64, 2, 3, 7, 10] {
            let mut counts = vec![0u64; usize::try_from(bound).unwrap()];
            for _ in 0..10_000 * bound {
                counts[usize::try_from(rng.below(bound)).unwrap()] += 1;
            }
            assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{bound}: {counts:?}");
        }
    }
}
