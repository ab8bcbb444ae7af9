//! Seeded randomness of tests: SplitMix64 (Steele, Lea, Flood 2014), so that a printed seed replays a schedule.

/// A stream of numbers that follows from its seed alone.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `from` to `to`, both included.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.draw() % (to - from + 1)
    }

    /// One of `choices`.
    ///
    /// # Panics
    /// When there is none.
    pub fn choose<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        let at = self.draw() % u64::try_from(choices.len()).expect("a short list");
        &choices[usize::try_from(at).expect("below the length")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            [random.draw(), random.between(3, 9), *random.choose(&[1, 2, 3])]
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert!((3..=9).contains(&draw(7)[1]));
    }
}
