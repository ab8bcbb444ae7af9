//! A small seeded random generator (Vigna's splitmix64): the same seed gives the same run.

use crate::number::float;

/// splitmix64; a period of 2^64, ample for arrivals and templates, not for secrets.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// A stream of its own for each pair of seed and `stream` (a core, a connection).
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut rng = Self(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        rng.next();
        rng
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform below `bound` (Lemire's multiplication, its bias below 2^-32 for the bounds used here); 0 for 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// Uniform in (0, 1].
    pub(crate) fn unit(&mut self) -> f64 {
        let bits = self.next() >> 11;
        (float(bits) + 1.0) / float(1 << 53)
    }

    /// Exponentially distributed with mean 1: the gap between Poisson arrivals.
    pub(crate) fn exponential(&mut self) -> f64 {
        -self.unit().ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_decides_and_streams_differ() {
        let draw = |seed, stream| {
            let mut rng = Rng::new(seed, stream);
            [rng.next(), rng.next()]
        };
        assert_eq!(draw(7, 1), draw(7, 1));
        assert_ne!(draw(7, 1), draw(7, 2));
        assert_ne!(draw(7, 1), draw(8, 1));
    }

    #[test]
    fn means_are_what_they_should_be() {
        let mut rng = Rng::new(1, 0);
        let count = 100_000;
        let mean = |mut draw: Box<dyn FnMut() -> f64>| (0..count).map(|_| draw()).sum::<f64>() / 100_000.0;
        let mut other = rng.clone();
        let uniform = mean(Box::new(move || float(other.below(10))));
        assert!((uniform - 4.5).abs() < 0.05, "{uniform}");
        let gap = mean(Box::new(move || rng.exponential()));
        assert!((gap - 1.0).abs() < 0.02, "{gap}");
    }
}
