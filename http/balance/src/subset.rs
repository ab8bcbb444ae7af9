//! Deterministic subsetting: a core keeps connections to some of many endpoints, and each endpoint is kept by about the
//! same number of cores.
//!
//! Cores are taken in rounds. In each round the endpoints, in an order of that round's own, are cut into equal slices,
//! one for each core of the round: a whole round covers every endpoint exactly once (the idea of Google's SRE book,
//! chapter 20). The order is by hash of identity and round, not by a shuffle of positions: an endpoint that comes or goes
//! changes each slice by one member at most, as long as the number of slices stays.

use std::collections::BTreeMap;

use crate::endpoint::EndpointId;
use crate::hash::mix;
use crate::time::{narrow, stored};

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

/// The members of a fleet, and which of them asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership {
    /// From 0, without gaps.
    pub member: u32,
    /// All of them; not 0.
    pub members: u32,
}

/// Indices of the endpoints that one member of a fleet takes, rising. Endpoints of different groups (priorities, zones)
/// are taken by themselves, each group by its part of `size_min`, so that a subset is made up as the whole is. Subsets
/// are larger than that where the members are too few to cover every endpoint.
#[must_use]
pub fn subset_of_groups<G: Ord + Copy>(
    who: Membership,
    size_min: u32,
    endpoints: &[(EndpointId, G)],
) -> Vec<usize> {
    let mut groups: BTreeMap<G, Vec<usize>> = BTreeMap::new();
    for (at, (_, group)) in endpoints.iter().enumerate() {
        groups.entry(*group).or_default().push(at);
    }
    let mut chosen = Vec::new();
    for places in groups.into_values() {
        let count = stored(places.len());
        let part = u64::from(size_min) * u64::from(count);
        let part = narrow(part.div_ceil(u64::from(stored(endpoints.len()))));
        // The least size with no more slices than members.
        let size_min = part.max(count / who.members.saturating_add(1) + 1);
        let ids: Vec<EndpointId> = places.iter().map(|at| endpoints[*at].0).collect();
        let within = subset(SubsetRules { member: who.member, size_min }, &ids);
        chosen.extend(within.into_iter().map(|at| places[at]));
    }
    chosen.sort_unstable();
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_is_cut_by_itself_and_a_small_fleet_still_covers_all() {
        // 600 in one zone, 200 in another, 10 of a second priority.
        let group = |at: usize| {
            if at < 600 {
                (0, 1)
            } else if at < 800 {
                (0, 2)
            } else {
                (1, 1)
            }
        };
        let listed: Vec<_> = endpoints(810).into_iter().enumerate().map(|(at, id)| (id, group(at))).collect();
        for (members, size_min) in [(160, 81), (8, 81), (4, 81), (1, 81)] {
            let mut kept = vec![0; listed.len()];
            for member in 0..members {
                let chosen = subset_of_groups(Membership { member, members }, size_min, &listed);
                let of = |wanted| chosen.iter().filter(|at| listed[**at].1 == wanted).count();
                let found = [of((0, 1)), of((0, 2)), of((1, 1))];
                if members >= 10 {
                    assert!((60..=67).contains(&found[0]) && (20..=23).contains(&found[1]), "{found:?}");
                }
                assert!(found[2] >= 1, "{found:?}");
                chosen.into_iter().for_each(|at| kept[at] += 1);
            }
            assert!(kept.iter().all(|times| *times > 0), "{members} members cover everything");
            for wanted in [(0, 1), (0, 2)] {
                let of = |at: &usize| listed[*at].1 == wanted;
                let times = || (0..listed.len()).filter(of).map(|at| kept[at]);
                let (least, most) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
                assert!(most - least <= 1, "{members} {wanted:?}: {least} to {most}");
            }
        }
    }

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
