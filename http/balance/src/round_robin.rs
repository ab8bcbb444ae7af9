//! Round robin: equal weights in turn, other weights in a sequence that is as even as the weights allow.
//!
//! Turn `n` takes the point `n × φ` of the weights laid end to end, φ being the golden ratio's fraction: the most even
//! of all such sequences (three-distance theorem), with constant cost at any number of endpoints, where a smooth
//! weighted round robin pays for each. Every run of turns gives each endpoint its share to within a few requests.

use crate::sampler::Sampler;

/// The turn of one cluster on one core.
#[derive(Clone, Debug)]
pub struct RoundRobin {
    turn: u64,
}

/// 2^64 divided by the golden ratio; odd, so that the sequence visits every point.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl RoundRobin {
    /// Cores start at different turns, or all of them begin with the same endpoint.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { turn: seed }
    }

    /// The next slot in turn, never `exclude`.
    #[inline]
    pub fn pick(&mut self, sampler: &Sampler, exclude: Option<u32>) -> Option<u32> {
        self.turn = self.turn.wrapping_add(1);
        let places = u64::try_from(sampler.len()).unwrap_or(u64::MAX);
        if places == 0 {
            return None;
        }
        let point = if sampler.is_uniform() {
            // The middle of the place whose turn it is.
            (u64::MAX / places).wrapping_mul(self.turn % places).wrapping_add(u64::MAX / places / 2)
        } else {
            self.turn.wrapping_mul(GOLDEN)
        };
        let slot = sampler.draw(point, None)?;
        if Some(slot) == exclude { sampler.draw(point, exclude) } else { Some(slot) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sampler;

    #[test]
    fn equal_weights_take_strict_turns() {
        for endpoints in [1u32, 2, 3, 7, 2_000] {
            let sampler = sampler(&vec![5; usize::try_from(endpoints).unwrap()]);
            let mut turns = RoundRobin::new(0);
            for turn in 1..3 * endpoints {
                assert_eq!(turns.pick(&sampler, None), Some(turn % endpoints), "of {endpoints}");
            }
        }
    }

    #[test]
    fn mixed_weights_are_even_in_every_run() {
        for weights in [&[1u32, 2][..], &[1, 2, 3, 4], &[1, 100], &[5, 5, 1]] {
            let (sampler, sum) = (sampler(weights), f64::from(weights.iter().sum::<u32>()));
            let mut turns = RoundRobin::new(99);
            let mut counts = vec![0u32; weights.len()];
            for run in 1..=5_000u32 {
                counts[turns.pick(&sampler, None).unwrap() as usize] += 1;
                for (count, weight) in counts.iter().zip(weights) {
                    let expected = f64::from(run) * f64::from(*weight) / sum;
                    assert!(
                        (f64::from(*count) - expected).abs() <= 4.0,
                        "{weights:?} after {run}: {counts:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_excluded_slot_is_passed_over() {
        for weights in [&[1u32, 1][..], &[1, 3]] {
            let mut turns = RoundRobin::new(0);
            assert!((0..100).all(|_| turns.pick(&sampler(weights), Some(1)) == Some(0)));
        }
        assert_eq!(RoundRobin::new(0).pick(&sampler(&[1]), Some(0)), None);
        assert_eq!(RoundRobin::new(0).pick(&sampler(&[]), None), None);
    }
}
