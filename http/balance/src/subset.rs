//! Deterministic subsetting: a core keeps connections to some of many endpoints, and each endpoint is kept by about the
//! same number of cores.
//!
//! Cores are taken in rounds. In each round the endpoints, in an order of that round's own, are cut into equal slices,
//! one for each core of the round: a whole round covers every endpoint exactly once (the idea of Google's SRE book,
//! chapter 20). The order is by hash of identity and round, not by a shuffle of positions: an endpoint that comes or goes
//! changes each slice by one member at most, as long as the number of slices stays.

use crate::endpoint::EndpointId;
use crate::hash::mix;

/// Which subset a core takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubsetRules {
    /// Number of the core among all cores of all proxies, from 0 without gaps.
    pub member: u32,
    /// Least endpoints in a subset; not 0.
    pub size_min: u32,
}

/// Indices of the endpoints in the core's subset, rising. All of them when there are not more than two subsets' worth.
#[must_use]
pub fn subset(rules: SubsetRules, endpoints: &[EndpointId]) -> Vec<usize> {
    let slices = endpoints.len() / (rules.size_min.max(1) as usize);
    if slices < 2 {
        return (0..endpoints.len()).collect();
    }
    let (round, slice) = (rules.member as usize / slices, rules.member as usize % slices);
    let salt = u64::try_from(round).unwrap_or(u64::MAX).wrapping_add(1);
    let mut order: Vec<usize> = (0..endpoints.len()).collect();
    order.sort_unstable_by_key(|at| (mix(endpoints[*at].0, salt), endpoints[*at]));
    let start = |slice: usize| slice * endpoints.len() / slices;
    let mut chosen = order[start(slice)..start(slice + 1)].to_vec();
    chosen.sort_unstable();
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(count: u32) -> Vec<EndpointId> {
        (0..count).map(|n| EndpointId::of(&n.to_le_bytes())).collect()
    }

    #[test]
    fn whole_rounds_cover_each_endpoint_equally() {
        for (members, count, size_min) in [(160, 2000, 100), (160, 2000, 25), (12, 37, 9), (100, 1000, 10)] {
            let endpoints = endpoints(count);
            let slices = count / size_min;
            let mut kept = vec![0u32; endpoints.len()];
            for member in 0..members {
                let subset = subset(SubsetRules { member, size_min }, &endpoints);
                assert!(subset.len() >= size_min as usize && subset.len() <= 2 * size_min as usize);
                subset.into_iter().for_each(|at| kept[at] += 1);
            }
            let expected = members / slices..=members.div_ceil(slices);
            assert!(kept.iter().all(|n| expected.contains(n)), "{members} {count} {size_min}: {kept:?}");
        }
    }

    #[test]
    fn a_change_of_one_endpoint_changes_a_subset_by_one() {
        let before = endpoints(2050);
        for removed in [0usize, 999, 2049] {
            let mut after = before.clone();
            after.remove(removed);
            for member in [0, 7, 19, 100, 159] {
                let ids = |list: &[EndpointId]| -> Vec<EndpointId> {
                    subset(SubsetRules { member, size_min: 100 }, list)
                        .into_iter()
                        .map(|at| list[at])
                        .collect()
                };
                let (old, new) = (ids(&before), ids(&after));
                let gone = old.iter().filter(|id| !new.contains(id)).count();
                let come = new.iter().filter(|id| !old.contains(id)).count();
                assert!(gone <= 2 && come <= 2, "member {member}: {gone} gone, {come} new");
            }
        }
    }

    #[test]
    fn order_does_not_count_and_few_endpoints_are_all_taken() {
        let listed = endpoints(500);
        let mut reversed = listed.clone();
        reversed.reverse();
        let rules = SubsetRules { member: 3, size_min: 50 };
        let mut a: Vec<_> = subset(rules, &listed).into_iter().map(|at| listed[at]).collect();
        let mut b: Vec<_> = subset(rules, &reversed).into_iter().map(|at| reversed[at]).collect();
        a.sort_unstable();
        b.sort_unstable();
        assert_eq!(a, b);
        assert_eq!(subset(SubsetRules { member: 9, size_min: 300 }, &listed).len(), 500);
        assert_eq!(subset(SubsetRules { member: 9, size_min: 0 }, &[]), Vec::<usize>::new());
    }
}
