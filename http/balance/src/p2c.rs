//! Power of two choices, least requests by weight (Mitzenmacher 2001).
//!
//! Two distinct endpoints are drawn by weight. The first one gets the request unless its load is at least what the
//! second one's would be with the request: `a.in_flight / a.weight >= (b.in_flight + 1) / b.weight`. With equal weights
//! this is plain least-request P2C; without load it is exactly the weights, where comparing `(n + 1) / weight` of both
//! would starve a light endpoint and `n / weight` would flood it.

use crate::sampler::Sampler;

/// What the comparison reads of one slot, packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests (streams, for h2) of this core that are at the endpoint now.
    pub in_flight: u32,
    /// Its weight now; 0 when it takes no requests.
    pub weight: u32,
}

/// The slot for the next request, from 64 random bits, never `exclude`.
#[inline]
#[must_use]
pub fn pick(sampler: &Sampler, loads: &[Load], random: u64, exclude: Option<u32>) -> Option<u32> {
    let (first, second) = sampler.draw_two(random, exclude)?;
    let Some(second) = second else { return Some(first) };
    let (a, b) = (loads[first as usize], loads[second as usize]);
    let load_of_first = u64::from(a.in_flight) * u64::from(b.weight);
    let load_of_second = (u64::from(b.in_flight) + 1) * u64::from(a.weight);
    Some(if load_of_first >= load_of_second { second } else { first })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    fn cluster(weights: &[u32]) -> (Sampler, Vec<Load>) {
        (
            crate::testing::sampler(weights),
            weights.iter().map(|weight| Load { in_flight: 0, weight: *weight }).collect(),
        )
    }

    #[test]
    fn the_two_choices_are_distinct() {
        // The loaded one of two never gets a request: both are compared in every draw, whatever the weights.
        for weights in [[1, 1], [3, 3], [1, 1000], [1000, 1]] {
            let (sampler, mut loads) = cluster(&weights);
            loads[0].in_flight = 1_000_000;
            let mut rng = Rng::new(1);
            assert!((0..10_000).all(|_| pick(&sampler, &loads, rng.draw(), None) == Some(1)), "{weights:?}");
        }
        let (sampler, mut loads) = cluster(&[1, 1, 1]);
        loads[0].in_flight = 9;
        let mut rng = Rng::new(1);
        assert!((0..10_000).all(|_| pick(&sampler, &loads, rng.draw(), None) != Some(0)), "three");
    }

    #[test]
    fn load_settles_in_proportion_to_the_weights() {
        for weights in [&[1u32, 1, 1, 1][..], &[1, 2, 3, 4], &[1, 10]] {
            let (sampler, mut loads) = cluster(weights);
            let mut rng = Rng::new(5);
            for _ in 0..weights.iter().sum::<u32>() * 100 {
                let slot = pick(&sampler, &loads, rng.draw(), None).unwrap();
                loads[slot as usize].in_flight += 1;
            }
            for load in loads {
                let expected = load.weight * 100;
                assert!(load.in_flight.abs_diff(expected) <= expected / 20 + 2, "{weights:?}: {load:?}");
            }
        }
    }

    #[test]
    fn the_longest_queue_stays_short() {
        // One request for each of 1,000 endpoints: a single random choice leaves a maximum of 5 and more, two
        // choices one of about log log n.
        let (sampler, mut loads) = cluster(&[1; 1000]);
        let mut rng = Rng::new(11);
        for _ in 0..1000 {
            let slot = pick(&sampler, &loads, rng.draw(), None).unwrap();
            loads[slot as usize].in_flight += 1;
        }
        assert!(loads.iter().all(|load| load.in_flight <= 4));
    }
}
