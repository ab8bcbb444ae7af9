//! Weighted draws of slots, without replacement.
//!
//! A draw is a search in the running sums of the weights, which a guide table (Chen and Asau 1974) cuts to a step or
//! two, and no search at all when the weights are equal. Running sums rather than an alias table, because cutting out
//! the first choice and the excluded slot is exact on them: no rejection loop, no bias.
//!
//! Invariants: `ends` rises strictly, its last element is `total`; points are below `total`; `place_of` and `slot_of`
//! are inverse on the slots that can be drawn. Used by random, round robin, P2C and peak EWMA.

use crate::rng::wide_product;
use crate::time::{narrow, stored};

/// The slots of one cluster that can be drawn, by weight.
#[derive(Clone, Debug, Default)]
pub struct Sampler {
    /// Running sums of the draw weights, by place.
    ends: Vec<u32>,
    /// For each 2^`guide_shift` of the sums the place where they begin.
    guide: Vec<u32>,
    guide_shift: u32,
    slot_of: Vec<u32>,
    /// By slot; `NO_PLACE` for one that cannot be drawn.
    place_of: Vec<u32>,
    total: u32,
    /// All draw weights are 1, so a draw is a place.
    is_uniform: bool,
}

const NO_PLACE: u32 = u32::MAX;

/// Draw weights are scaled to a sum of about this, so that one 64-bit random number is enough for two draws with a
/// bias below 2^-16.
const DRAW_TOTAL_MAX: u64 = 1 << 24;

/// A place and the part of the sums that it covers.
#[derive(Clone, Copy)]
struct Cut {
    start: u32,
    width: u32,
}

impl Sampler {
    /// Takes over the weights by slot; 0 is never drawn. O(slots), at most 2^24.
    pub fn rebuild(&mut self, weights: impl Iterator<Item = u32> + Clone) {
        self.ends.clear();
        self.slot_of.clear();
        self.place_of.clear();
        let drawn = || weights.clone().filter(|weight| *weight > 0);
        let sum: u64 = drawn().map(u64::from).sum();
        let lightest = drawn().min().unwrap_or(1);
        self.is_uniform = drawn().all(|weight| weight == lightest);
        let divisor = narrow(sum.div_ceil(DRAW_TOTAL_MAX)).max(1);
        let mut total = 0u32;
        for (slot, weight) in weights.enumerate() {
            if weight == 0 {
                self.place_of.push(NO_PLACE);
                continue;
            }
            total += if self.is_uniform { 1 } else { (weight / divisor).max(1) };
            self.place_of.push(stored(self.ends.len()));
            self.ends.push(total);
            self.slot_of.push(stored(slot));
        }
        self.total = total;
        self.rebuild_guide();
    }

    /// Slots that can be drawn.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Whether all weights are equal.
    #[must_use]
    pub fn is_uniform(&self) -> bool {
        self.is_uniform
    }

    /// One slot by weight from 64 random bits, never `exclude`.
    #[inline]
    #[must_use]
    pub fn draw(&self, random: u64, exclude: Option<u32>) -> Option<u32> {
        let mut cuts = Cuts::default();
        self.exclude(exclude, &mut cuts);
        let left = self.total - cuts.width();
        let point = narrow(wide_product(random, u64::from(left)).0);
        (left > 0).then(|| self.slot_of[self.place_at(cuts.shift(point)) as usize])
    }

    /// Two distinct slots by weight from 64 random bits, neither of them `exclude`; only one when there is no more.
    #[inline]
    #[must_use]
    pub fn draw_two(&self, random: u64, exclude: Option<u32>) -> Option<(u32, Option<u32>)> {
        if exclude.is_some() {
            return self.draw_two_without(random, exclude);
        }
        // As below for the one cut that there is; the common case in a straight line saves a third of the time.
        let (point, rest) = wide_product(random, u64::from(self.total));
        if self.total == 0 {
            return None;
        }
        let first_place = self.place_at(narrow(point));
        let first = self.slot_of[first_place as usize];
        let cut = self.cut(first_place);
        let left = self.total - cut.width;
        if left == 0 {
            return Some((first, None));
        }
        let point = narrow(wide_product(rest, u64::from(left)).0);
        let point = if point >= cut.start { point + cut.width } else { point };
        Some((first, Some(self.slot_of[self.place_at(point) as usize])))
    }

    fn draw_two_without(&self, random: u64, exclude: Option<u32>) -> Option<(u32, Option<u32>)> {
        let mut cuts = Cuts::default();
        self.exclude(exclude, &mut cuts);
        let left = self.total - cuts.width();
        if left == 0 {
            return None;
        }
        let (point, rest) = wide_product(random, u64::from(left));
        let first_place = self.place_at(cuts.shift(narrow(point)));
        let first = self.slot_of[first_place as usize];
        let first_cut = self.cut(first_place);
        let left = left - first_cut.width;
        if left == 0 {
            return Some((first, None));
        }
        cuts.add(first_cut);
        let (point, _) = wide_product(rest, u64::from(left));
        Some((first, Some(self.slot_of[self.place_at(cuts.shift(narrow(point))) as usize])))
    }

    #[inline]
    fn exclude(&self, exclude: Option<u32>, cuts: &mut Cuts) {
        let place = exclude.and_then(|slot| self.place_of.get(slot as usize)).copied();
        if let Some(place) = place
            && place != NO_PLACE
        {
            cuts.add(self.cut(place));
        }
    }

    #[inline]
    fn place_at(&self, point: u32) -> u32 {
        if self.is_uniform {
            return point;
        }
        let mut place = self.guide[(point >> self.guide_shift) as usize];
        while self.ends[place as usize] <= point {
            place += 1;
        }
        place
    }

    #[inline]
    fn cut(&self, place: u32) -> Cut {
        if self.is_uniform {
            return Cut { start: place, width: 1 };
        }
        let start = match place.checked_sub(1) {
            Some(before) => self.ends[before as usize],
            None => 0,
        };
        Cut { start, width: self.ends[place as usize] - start }
    }

    /// About as many entries as places, so that a draw passes one or two places on average whatever the weights.
    fn rebuild_guide(&mut self) {
        self.guide.clear();
        if self.is_uniform {
            return;
        }
        let places_log2 = self.ends.len().next_power_of_two().ilog2();
        let total_log2 = u32::BITS - self.total.leading_zeros();
        self.guide_shift = total_log2.saturating_sub(places_log2 + 1);
        let mut place = 0u32;
        for bucket in 0..=(self.total - 1) >> self.guide_shift {
            while self.ends[place as usize] <= bucket << self.guide_shift {
                place += 1;
            }
            self.guide.push(place);
        }
    }
}

/// Up to two places that a draw must not hit, in rising order.
#[derive(Default)]
struct Cuts {
    cuts: [Option<Cut>; 2],
}

impl Cuts {
    #[inline]
    fn add(&mut self, cut: Cut) {
        self.cuts = match self.cuts {
            [Some(other), _] if other.start <= cut.start => [Some(other), Some(cut)],
            [other, _] => [Some(cut), other],
        };
    }

    #[inline]
    fn width(&self) -> u32 {
        self.cuts.iter().flatten().map(|cut| cut.width).sum()
    }

    /// The point of the whole range for a point of the range without the cuts.
    #[inline]
    fn shift(&self, point: u32) -> u32 {
        self.cuts
            .iter()
            .flatten()
            .fold(point, |point, cut| if point >= cut.start { point + cut.width } else { point })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;
    use crate::testing::sampler;

    /// Within five standard deviations of a binomial draw.
    fn assert_shares(counts: &[u32], weights: &[u32], what: &str) {
        let draws: f64 = counts.iter().map(|n| f64::from(*n)).sum();
        let sum: f64 = weights.iter().map(|w| f64::from(*w)).sum();
        for (slot, (count, weight)) in counts.iter().zip(weights).enumerate() {
            let share = f64::from(*weight) / sum;
            let (expected, allowed) = (draws * share, 5.0 * (draws * share * (1.0 - share)).sqrt() + 1.0);
            let found = f64::from(*count);
            assert!(
                (found - expected).abs() <= allowed,
                "{what}: {slot} got {found}, not {expected} ± {allowed}"
            );
        }
    }

    fn first_draws(sampler: &Sampler, slots: usize, exclude: Option<u32>) -> Vec<u32> {
        let mut rng = Rng::new(42);
        let mut counts = vec![0; slots];
        for _ in 0..100_000 {
            let random = rng.draw();
            let (first, second) = sampler.draw_two(random, exclude).unwrap();
            assert_ne!(Some(first), second);
            assert!(second.is_none() || second != exclude);
            assert_eq!(sampler.draw(random, exclude), Some(first), "one draw is the first of two");
            counts[first as usize] += 1;
        }
        counts
    }

    #[test]
    fn shares_are_the_weights() {
        let families: [&[u32]; 8] = [
            &[1],
            &[1, 1],
            &[1, 99],
            &[1, 2, 3, 4],
            &[7; 50],
            &[0, 5, 0, 5, 1],
            &[1, 1_000_000],
            &[4_000_000_000, 2_000_000_000, 2_000_000_000],
        ];
        for weights in families {
            assert_shares(
                &first_draws(&sampler(weights), weights.len(), None),
                weights,
                &format!("{weights:?}"),
            );
        }
    }

    #[test]
    fn an_excluded_slot_gets_nothing_and_the_others_keep_their_proportion() {
        for weights in [&[1u32, 2, 3, 4][..], &[5, 5, 5], &[9, 1]] {
            for excluded in 0..weights.len() {
                let mut left = weights.to_vec();
                left[excluded] = 0;
                let counts = first_draws(&sampler(weights), weights.len(), Some(stored(excluded)));
                assert_shares(&counts, &left, &format!("{weights:?} without {excluded}"));
            }
        }
        assert_eq!(sampler(&[1]).draw(7, Some(0)), None);
        assert_eq!(sampler(&[1]).draw_two(7, Some(0)), None);
        assert_eq!(sampler(&[1]).draw(7, Some(99)), Some(0), "no such slot");
        assert_eq!(sampler(&[0, 1]).draw(7, Some(0)), Some(1), "was never drawn anyhow");
        assert_eq!(sampler(&[]).draw_two(1, None), None);
        assert_eq!(sampler(&[0, 0]).draw(1, None), None);
    }

    #[test]
    fn every_random_number_draws() {
        for weights in [&[1u32][..], &[1, 1], &[1, 2], &[u32::MAX, 1, u32::MAX]] {
            for random in [0, 1, u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1, u64::from(u32::MAX), 1 << 32]
            {
                let sampler = sampler(weights);
                assert!(sampler.draw(random, None).is_some(), "{weights:?} {random}");
                let second = sampler.draw_two(random, None).unwrap().1;
                assert_eq!(second.is_some(), weights.len() > 1, "{weights:?} {random}");
            }
        }
    }
}
