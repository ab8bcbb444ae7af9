//! Which endpoint of a cluster gets the next request: power of two choices, least requests by weight.
//!
//! Two distinct endpoints are drawn by weight. The first one gets the request unless its load is at least what
//! the second one's would be with the request: `a.in_flight / a.weight >= (b.in_flight + 1) / b.weight`. With
//! equal weights this is plain least-request P2C (Mitzenmacher 2001); without load it is exactly the weights,
//! where comparing `(n + 1) / weight` of both would starve a light endpoint and `n / weight` would flood it.
//!
//! A draw is a search in the running sums of the weights of available endpoints, which a guide table (Chen and
//! Asau 1974) cuts to a step or two, and no search at all when the weights are equal. Running sums rather than an
//! alias table, because cutting out the first choice and the excluded endpoint is exact on them: no rejection
//! loop, no bias. At 2,000 endpoints of mixed weights a pick takes 16 ns, without the guide 40:
//! `cargo bench -p http-proxy --bench balance`.
//!
//! Invariants: `ends` rises strictly, its last element is `total`; points are below `total`; `slot_of` and `endpoint_of` are inverse on
//! available endpoints. Owned by one core; called by `exchange`; other balancers will stand beside this one.

mod rng;

pub use rng::Rng;
use rng::wide_product;

/// Index of an endpoint within its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointIndex(pub usize);

/// Whether an endpoint takes requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Availability {
    #[default]
    Available,
    /// Told to finish what it has (removed from the config, or the backend said so).
    Draining,
    /// Failed its health checks.
    Unhealthy,
    /// Taken out for its errors, for a time.
    Ejected,
}

/// What the balancer knows of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointState {
    /// Requests of this core that are at the endpoint now.
    pub in_flight: u32,
    /// Share among the endpoints, not 0. A slow start lowers it for a time.
    pub weight: u32,
    pub availability: Availability,
}

/// What the comparison reads, packed.
#[derive(Clone, Copy, Debug)]
struct Load {
    in_flight: u32,
    weight: u32,
}

/// The balancer of one cluster on one core.
#[derive(Clone, Debug)]
pub struct Balancer {
    loads: Vec<Load>,
    availability: Vec<Availability>,
    /// Running sums of the draw weights, by slot.
    ends: Vec<u32>,
    /// For each 2^`guide_shift` of the sums the slot where they begin.
    guide: Vec<u32>,
    guide_shift: u32,
    endpoint_of: Vec<u32>,
    /// By endpoint; `NO_SLOT` when it is not available.
    slot_of: Vec<u32>,
    total: u32,
    /// All draw weights are 1, so a draw is a slot.
    is_uniform: bool,
}

const NO_SLOT: u32 = u32::MAX;

/// Draw weights are scaled to a sum of about this, so that one 64-bit random number is enough for both draws with
/// a bias below 2^-16.
const DRAW_TOTAL_MAX: u64 = 1 << 24;

/// A slot and the part of the sums that it covers.
#[derive(Clone, Copy)]
struct Cut {
    start: u32,
    width: u32,
}

impl Balancer {
    /// A balancer over a cluster's endpoints, at most 2^24, in the cluster's order. States may be carried over
    /// from an older balancer.
    pub fn new(states: impl IntoIterator<Item = EndpointState>) -> Self {
        let (loads, availability): (Vec<_>, Vec<_>) = states
            .into_iter()
            .map(|s| (Load { in_flight: s.in_flight, weight: s.weight.max(1) }, s.availability))
            .unzip();
        let endpoints = loads.len();
        let mut balancer = Self {
            loads,
            availability,
            ends: Vec::with_capacity(endpoints),
            guide: Vec::new(),
            guide_shift: 0,
            endpoint_of: Vec::with_capacity(endpoints),
            slot_of: vec![NO_SLOT; endpoints],
            total: 0,
            is_uniform: true,
        };
        balancer.rebuild();
        balancer
    }

    /// Endpoints of the cluster, available or not.
    pub fn len(&self) -> usize {
        self.loads.len()
    }

    pub fn is_empty(&self) -> bool {
        self.loads.is_empty()
    }

    /// Endpoints that take requests.
    pub fn available(&self) -> usize {
        self.ends.len()
    }

    /// None for an index that is not of this cluster.
    pub fn state(&self, EndpointIndex(at): EndpointIndex) -> Option<EndpointState> {
        let (load, availability) = (self.loads.get(at)?, self.availability.get(at)?);
        Some(EndpointState { in_flight: load.in_flight, weight: load.weight, availability: *availability })
    }

    /// Counts a request that goes to the endpoint.
    pub fn request_started(&mut self, EndpointIndex(at): EndpointIndex) {
        if let Some(load) = self.loads.get_mut(at) {
            load.in_flight = load.in_flight.saturating_add(1);
        }
    }

    /// Counts a request that left the endpoint, however it ended.
    pub fn request_ended(&mut self, EndpointIndex(at): EndpointIndex) {
        if let Some(load) = self.loads.get_mut(at) {
            debug_assert!(load.in_flight > 0, "a request ends once");
            load.in_flight = load.in_flight.saturating_sub(1);
        }
    }

    /// O(endpoints): for changes of health, not for requests.
    pub fn set_availability(&mut self, EndpointIndex(at): EndpointIndex, availability: Availability) {
        if let Some(old) = self.availability.get_mut(at)
            && std::mem::replace(old, availability) != availability
        {
            self.rebuild();
        }
    }

    /// O(endpoints). A weight of 0 counts as 1; an endpoint that must get nothing is not available.
    pub fn set_weight(&mut self, EndpointIndex(at): EndpointIndex, weight: u32) {
        if let Some(load) = self.loads.get_mut(at)
            && std::mem::replace(&mut load.weight, weight.max(1)) != weight.max(1)
        {
            self.rebuild();
        }
    }

    /// Draws an endpoint from `random`, 64 random bits. Never `exclude`, which a retry sets to what failed. None
    /// when no (other) endpoint is available.
    pub fn pick(&self, random: u64, exclude: Option<EndpointIndex>) -> Option<EndpointIndex> {
        let excluded = exclude.and_then(|EndpointIndex(at)| self.slot_of.get(at)).copied();
        let mut cuts = Cuts::default();
        if let Some(slot) = excluded
            && slot != NO_SLOT
        {
            cuts.add(self.cut(slot));
        }
        let left = self.total - cuts.width();
        if left == 0 {
            return None;
        }
        let (point, rest) = wide_product(random, u64::from(left));
        let first_slot = self.slot_at(cuts.shift(low_word(point)));
        let first = self.endpoint_of[first_slot as usize];

        let first_cut = self.cut(first_slot);
        let left = left - first_cut.width;
        if left == 0 {
            return Some(EndpointIndex(first as usize));
        }
        cuts.add(first_cut);
        let (point, _) = wide_product(rest, u64::from(left));
        let second = self.endpoint_of[self.slot_at(cuts.shift(low_word(point))) as usize];

        let (a, b) = (self.loads[first as usize], self.loads[second as usize]);
        let load_of_first = u64::from(a.in_flight) * u64::from(b.weight);
        let load_of_second = (u64::from(b.in_flight) + 1) * u64::from(a.weight);
        let choice = if load_of_first >= load_of_second { second } else { first };
        Some(EndpointIndex(choice as usize))
    }

    fn slot_at(&self, point: u32) -> u32 {
        if self.is_uniform {
            return point;
        }
        let mut slot = self.guide[(point >> self.guide_shift) as usize];
        while self.ends[slot as usize] <= point {
            slot += 1;
        }
        slot
    }

    fn cut(&self, slot: u32) -> Cut {
        if self.is_uniform {
            return Cut { start: slot, width: 1 };
        }
        let start = match slot.checked_sub(1) {
            Some(before) => self.ends[before as usize],
            None => 0,
        };
        Cut { start, width: self.ends[slot as usize] - start }
    }

    fn rebuild(&mut self) {
        self.ends.clear();
        self.endpoint_of.clear();
        self.slot_of.fill(NO_SLOT);
        let available = || {
            let pairs = self.loads.iter().zip(&self.availability);
            pairs
                .enumerate()
                .filter(|(_, (_, a))| **a == Availability::Available)
                .map(|(at, (load, _))| (at, load.weight))
        };
        let sum: u64 = available().map(|(_, weight)| u64::from(weight)).sum();
        let lightest = available().map(|(_, weight)| weight).min().unwrap_or(1);
        self.is_uniform = available().all(|(_, weight)| weight == lightest);
        let divisor = u32::try_from(sum.div_ceil(DRAW_TOTAL_MAX)).unwrap_or(u32::MAX).max(1);
        let mut total = 0u32;
        for (at, weight) in available() {
            total += if self.is_uniform { 1 } else { (weight / divisor).max(1) };
            self.slot_of[at] = u32::try_from(self.ends.len()).expect("at most 2^24 endpoints");
            self.ends.push(total);
            self.endpoint_of.push(u32::try_from(at).expect("at most 2^24 endpoints"));
        }
        self.total = total;
        self.rebuild_guide();
    }

    /// About as many entries as slots, so that a draw passes one or two slots on average whatever the weights.
    fn rebuild_guide(&mut self) {
        self.guide.clear();
        if self.is_uniform {
            return;
        }
        let slots_log2 = self.ends.len().next_power_of_two().ilog2();
        let total_log2 = u32::BITS - self.total.leading_zeros();
        self.guide_shift = total_log2.saturating_sub(slots_log2 + 1);
        let mut slot = 0u32;
        for bucket in 0..=(self.total - 1) >> self.guide_shift {
            while self.ends[slot as usize] <= bucket << self.guide_shift {
                slot += 1;
            }
            self.guide.push(slot);
        }
    }
}

/// Up to two slots that a draw must not hit, in rising order.
#[derive(Default)]
struct Cuts {
    cuts: [Option<Cut>; 2],
}

impl Cuts {
    fn add(&mut self, cut: Cut) {
        self.cuts = match self.cuts {
            [Some(other), _] if other.start <= cut.start => [Some(other), Some(cut)],
            [other, _] => [Some(cut), other],
        };
    }

    fn width(&self) -> u32 {
        self.cuts.iter().flatten().map(|cut| cut.width).sum()
    }

    /// The point of the whole range for a point of the range without the cuts.
    fn shift(&self, point: u32) -> u32 {
        self.cuts.iter().flatten().fold(
            point,
            |point, cut| {
                if point >= cut.start { point + cut.width } else { point }
            },
        )
    }
}

fn low_word(point: u64) -> u32 {
    u32::try_from(point).expect("a draw is below a 32-bit total")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(in_flight: u32, weight: u32) -> EndpointState {
        EndpointState { in_flight, weight, availability: Availability::Available }
    }

    fn balancer(weights: &[u32]) -> Balancer {
        Balancer::new(weights.iter().map(|w| state(0, *w)))
    }

    fn counts(balancer: &Balancer, draws: u32, exclude: Option<EndpointIndex>) -> Vec<u32> {
        let mut rng = Rng::new(42);
        let mut counts = vec![0; balancer.len()];
        for _ in 0..draws {
            counts[balancer.pick(rng.draw(), exclude).unwrap().0] += 1;
        }
        counts
    }

    /// Within five standard deviations of a binomial draw.
    fn assert_shares(counts: &[u32], shares: &[f64], what: &str) {
        let draws: f64 = counts.iter().map(|n| f64::from(*n)).sum();
        for (at, (count, share)) in counts.iter().zip(shares).enumerate() {
            let (expected, allowed) = (draws * share, 5.0 * (draws * share * (1.0 - share)).sqrt() + 1.0);
            let found = f64::from(*count);
            assert!(
                (found - expected).abs() <= allowed,
                "{what}: endpoint {at} got {found}, not {expected} ± {allowed}"
            );
        }
    }

    #[test]
    fn without_load_the_shares_are_the_weights() {
        let families: [&[u32]; 7] = [
            &[1],
            &[1, 1],
            &[1, 99],
            &[1, 2, 3, 4],
            &[7; 50],
            &[1, 1_000_000],
            &[4_000_000_000, 2_000_000_000, 2_000_000_000],
        ];
        for weights in families {
            let sum: f64 = weights.iter().map(|w| f64::from(*w)).sum();
            let shares: Vec<f64> = weights.iter().map(|w| f64::from(*w) / sum).collect();
            assert_shares(&counts(&balancer(weights), 200_000, None), &shares, &format!("{weights:?}"));
        }
    }

    #[test]
    fn an_excluded_endpoint_gets_nothing_and_the_others_keep_their_proportion() {
        for weights in [&[1u32, 2, 3, 4][..], &[5, 5, 5], &[9, 1]] {
            for excluded in 0..weights.len() {
                let sum: f64 = weights
                    .iter()
                    .enumerate()
                    .filter(|(at, _)| *at != excluded)
                    .map(|(_, w)| f64::from(*w))
                    .sum();
                let share = |(at, w): (usize, &u32)| {
                    if at == excluded { 0.0 } else { f64::from(*w) / sum }
                };
                let shares: Vec<f64> = weights.iter().enumerate().map(share).collect();
                let counts = counts(&balancer(weights), 100_000, Some(EndpointIndex(excluded)));
                assert_eq!(counts[excluded], 0);
                assert_shares(&counts, &shares, &format!("{weights:?} without {excluded}"));
            }
        }
        assert_eq!(balancer(&[1]).pick(7, Some(EndpointIndex(0))), None);
        assert_eq!(
            balancer(&[1]).pick(7, Some(EndpointIndex(99))),
            Some(EndpointIndex(0)),
            "not of this cluster"
        );
    }

    #[test]
    fn the_two_choices_are_distinct() {
        // The loaded one of two never gets a request: both are compared in every draw, whatever the weights.
        for (a, b) in [(1, 1), (3, 3), (1, 1000), (1000, 1)] {
            let balancer = Balancer::new([state(1_000_000, a), state(0, b)]);
            assert_eq!(counts(&balancer, 10_000, None)[0], 0, "weights {a}, {b}");
        }
        // With three, the loaded one is only hit if it were drawn twice.
        let three = Balancer::new([state(9, 1), state(0, 1), state(0, 1)]);
        assert_eq!(counts(&three, 10_000, None)[0], 0);
    }

    #[test]
    fn load_settles_in_proportion_to_the_weights() {
        for weights in [&[1u32, 1, 1, 1][..], &[1, 2, 3, 4], &[1, 10]] {
            let mut balancer = balancer(weights);
            let mut rng = Rng::new(5);
            let sum: u32 = weights.iter().sum();
            for _ in 0..sum * 100 {
                let endpoint = balancer.pick(rng.draw(), None).unwrap();
                balancer.request_started(endpoint);
            }
            for (at, weight) in weights.iter().enumerate() {
                let in_flight = balancer.state(EndpointIndex(at)).unwrap().in_flight;
                let expected = weight * 100;
                assert!(
                    in_flight.abs_diff(expected) <= expected / 20 + 2,
                    "{weights:?}: {at} has {in_flight}"
                );
            }
        }
    }

    #[test]
    fn p2c_keeps_the_longest_queue_short() {
        // One request for each of 1,000 endpoints: a single random choice leaves a maximum of 5 and more, two
        // choices one of about log log n.
        let mut balancer = balancer(&[1; 1000]);
        let mut rng = Rng::new(11);
        for _ in 0..1000 {
            let endpoint = balancer.pick(rng.draw(), None).unwrap();
            balancer.request_started(endpoint);
        }
        let longest = (0..1000).filter_map(|at| balancer.state(EndpointIndex(at))).map(|s| s.in_flight).max();
        assert!(longest <= Some(4), "{longest:?}");
    }

    #[test]
    fn only_available_endpoints_are_drawn() {
        let mut balancer = balancer(&[1, 2, 3, 4, 5]);
        for (at, availability) in
            [(1, Availability::Draining), (2, Availability::Unhealthy), (4, Availability::Ejected)]
        {
            balancer.set_availability(EndpointIndex(at), availability);
        }
        assert_eq!(balancer.available(), 2);
        assert_shares(&counts(&balancer, 100_000, None), &[0.2, 0.0, 0.0, 0.8, 0.0], "two of five");
        balancer.set_availability(EndpointIndex(0), Availability::Unhealthy);
        assert_eq!(balancer.pick(1, Some(EndpointIndex(3))), None, "the only one left is excluded");
        assert_eq!(
            balancer.pick(1, Some(EndpointIndex(0))),
            Some(EndpointIndex(3)),
            "excluding the unavailable"
        );
        balancer.set_availability(EndpointIndex(3), Availability::Unhealthy);
        assert_eq!(balancer.pick(1, None), None);
        balancer.set_availability(EndpointIndex(2), Availability::Available);
        assert_eq!(balancer.pick(u64::MAX, None), Some(EndpointIndex(2)));
        assert_eq!(Balancer::new([]).pick(1, None), None);
    }

    #[test]
    fn a_weight_can_be_lowered_and_raised() {
        let mut balancer = balancer(&[10, 10]);
        balancer.set_weight(EndpointIndex(0), 1);
        assert_shares(&counts(&balancer, 100_000, None), &[1.0 / 11.0, 10.0 / 11.0], "slow start");
        balancer.set_weight(EndpointIndex(0), 10);
        assert_shares(&counts(&balancer, 100_000, None), &[0.5, 0.5], "warm");
    }

    #[test]
    fn every_random_number_yields_an_endpoint() {
        for weights in [&[1u32][..], &[1, 1], &[1, 2], &[u32::MAX, 1, u32::MAX]] {
            let balancer = balancer(weights);
            for random in [0, 1, u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1, u64::from(u32::MAX), 1 << 32]
            {
                assert!(balancer.pick(random, None).is_some(), "{weights:?} {random}");
                assert_eq!(
                    balancer.pick(random, Some(EndpointIndex(0))).is_some(),
                    weights.len() > 1,
                    "{weights:?} {random}"
                );
            }
        }
    }
}
