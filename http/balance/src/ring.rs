//! Consistent hashing on a ring of virtual nodes (Karger 1997), with several probes a key (Appleton and O'Reilly 2015).
//!
//! Each endpoint has up to [`VIRTUAL_NODES`] points, fewer by its weight against the heaviest, one at least. A key asks
//! [`PROBES`] places of the ring and takes the point that is nearest to its place: that evens out the gaps, whose
//! spread makes one endpoint's share of a plain ring of 256 points vary by 6 %; with three probes it is 2.8 %. Removing
//! an endpoint moves its own keys and no other, because all that remains is as near as before.
//!
//! The table depends on the identities and weights of the members and on nothing else: not on their order, not on the
//! unit of the weights, not on the machine (C34). Its version is a digest of exactly that, so proxies agree on it
//! without talking.

use std::ops::RangeInclusive;

use crate::endpoint::EndpointId;
use crate::hash::mix;
use crate::time::{narrow, stored};

/// Points of the heaviest endpoint: what may be configured.
pub const VIRTUAL_NODES: RangeInclusive<u32> = 100..=500;
/// Points of the heaviest endpoint unless configured.
pub const VIRTUAL_NODES_DEFAULT: u32 = 256;
const PROBES: u64 = 3;

/// Which members, with which weights, a table was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RingVersion(pub u32);

/// One endpoint of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    pub id: EndpointId,
    /// Not 0.
    pub weight: u32,
}

#[derive(Clone, Debug)]
pub struct Ring {
    version: RingVersion,
    /// Places on a circle of 2^32, sorted.
    points: Vec<u32>,
    /// Index into the members, by point.
    owners: Vec<u32>,
    /// First point at or behind each `n << guide_shift`.
    guide: Vec<u32>,
    guide_shift: u32,
}

impl Ring {
    /// A table over `members`, whose indices it answers with. About 12 bytes a point: 6 MB for 2,000 endpoints.
    #[must_use]
    pub fn new(members: &[Member], virtual_nodes: u32) -> Self {
        let heaviest = members.iter().map(|member| member.weight).max().unwrap_or(1).max(1);
        let mut points: Vec<(u32, EndpointId, u32)> = Vec::new();
        for (index, member) in members.iter().enumerate() {
            for node in 0..nodes_of(member.weight, heaviest, virtual_nodes) {
                points.push((place(mix(member.id.0, u64::from(node) + 1)), member.id, stored(index)));
            }
        }
        points.sort_unstable();
        let guide_bits = points.len().max(2).ilog2();
        let mut ring = Self {
            version: version(members, heaviest, virtual_nodes),
            owners: points.iter().map(|(_, _, owner)| *owner).collect(),
            points: points.into_iter().map(|(point, _, _)| point).collect(),
            guide: Vec::new(),
            guide_shift: u32::BITS - guide_bits,
        };
        let mut at = 0;
        for bucket in 0..1u32 << guide_bits {
            while ring.points.get(at).is_some_and(|point| *point < bucket << ring.guide_shift) {
                at += 1;
            }
            ring.guide.push(stored(at));
        }
        ring
    }

    #[must_use]
    pub fn version(&self) -> RingVersion {
        self.version
    }

    /// Its points.
    #[must_use]
    pub fn len(&self) -> usize {
        self.points.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// Index of the member that a key's hash belongs to. None only of an empty ring.
    #[inline]
    #[must_use]
    pub fn owner(&self, key: u64) -> Option<usize> {
        let nearest = (0..PROBES).filter_map(|probe| self.next_point(place(mix(key, probe)))).min()?;
        self.owners.get(nearest.1).map(|owner| *owner as usize)
    }

    /// Distance and index of the first point at or behind a place, around the ring.
    #[inline]
    fn next_point(&self, place: u32) -> Option<(u32, usize)> {
        let mut at = *self.guide.get((place >> self.guide_shift) as usize)? as usize;
        while self.points.get(at).is_some_and(|point| *point < place) {
            at += 1;
        }
        let at = if at == self.points.len() { 0 } else { at };
        Some((self.points.get(at)?.wrapping_sub(place), at))
    }
}

fn place(hash: u64) -> u32 {
    narrow(hash >> 32)
}

fn nodes_of(weight: u32, heaviest: u32, virtual_nodes: u32) -> u32 {
    let share = (u64::from(virtual_nodes) * u64::from(weight)).div_ceil(u64::from(heaviest));
    narrow(share).max(1)
}

/// A sum over the members, so that their order does not count.
fn version(members: &[Member], heaviest: u32, virtual_nodes: u32) -> RingVersion {
    let sum = members.iter().fold(0u64, |sum, member| {
        let nodes = nodes_of(member.weight, heaviest, virtual_nodes);
        sum.wrapping_add(mix(member.id.0, u64::from(nodes)))
    });
    RingVersion(narrow(mix(sum, u64::from(virtual_nodes)) >> 32))
}

/// Tests of all hash tables: the cases of C34.
#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn members(weights: &[u32]) -> Vec<Member> {
        let name = |at: usize| EndpointId::of(format!("10.0.0.{at}:8080").as_bytes());
        weights.iter().enumerate().map(|(at, weight)| Member { id: name(at), weight: *weight }).collect()
    }

    /// Owners of `keys` keys by identity.
    pub(crate) fn owners<T>(
        members: &[Member],
        table: &T,
        owner: impl Fn(&T, u64) -> Option<usize>,
        keys: u64,
    ) -> Vec<EndpointId> {
        (0..keys).map(|key| members[owner(table, mix(key, 77)).unwrap()].id).collect()
    }

    /// The same members in another order, with another unit of weight.
    pub(crate) fn listed_otherwise(members: &[Member]) -> Vec<Member> {
        let mut other: Vec<Member> =
            members.iter().map(|member| Member { id: member.id, weight: member.weight * 250 }).collect();
        other.reverse();
        other.swap(1, 5);
        other
    }

    /// Checks that each member has its part by weight of the owners, within so many per cent of it.
    pub(crate) fn assert_shares(members: &[Member], owners: &[EndpointId], percent: usize) {
        let weights: u32 = members.iter().map(|member| member.weight).sum();
        for member in members {
            let found = owners.iter().filter(|id| **id == member.id).count();
            let expected = owners.len() * member.weight as usize / weights as usize;
            assert!(found.abs_diff(expected) < expected * percent / 100, "{member:?}: {found} of {expected}");
        }
    }

    fn ring_owners(members: &[Member], keys: u64) -> Vec<EndpointId> {
        owners(members, &Ring::new(members, VIRTUAL_NODES_DEFAULT), Ring::owner, keys)
    }

    pub(crate) fn digest(owners: &[EndpointId]) -> u64 {
        owners.iter().fold(0, |digest, id| mix(digest ^ id.0, 1))
    }

    #[test]
    fn the_table_is_fixed_for_ever() {
        let members = members(&[1, 1, 2, 3, 1, 1, 5, 1, 1, 4]);
        assert_eq!(digest(&ring_owners(&members, 1000)), 0x1263_0c78_167b_042f);
        assert_eq!(Ring::new(&members, VIRTUAL_NODES_DEFAULT).version(), RingVersion(690_797_173));
    }

    #[test]
    fn order_and_unit_of_weights_do_not_count() {
        let listed = members(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let other = listed_otherwise(&listed);
        assert_eq!(ring_owners(&listed, 10_000), ring_owners(&other, 10_000));
        assert_eq!(Ring::new(&listed, 100).version(), Ring::new(&other, 100).version());
        assert_ne!(Ring::new(&listed, 100).version(), Ring::new(&listed, 101).version());
        assert_ne!(Ring::new(&listed, 100).version(), Ring::new(&listed[1..], 100).version());
    }

    #[test]
    fn a_removed_member_moves_its_own_keys_only() {
        for removed in 0..5 {
            let before = members(&[3, 1, 1, 2, 4]);
            let mut after = before.clone();
            after.remove(removed);
            // The heaviest gives the unit: without it the number of points would change for all.
            if removed == 4 {
                continue;
            }
            let pairs = ring_owners(&before, 20_000).into_iter().zip(ring_owners(&after, 20_000));
            let moved_others = pairs.filter(|(old, new)| old != new && *old != before[removed].id).count();
            assert_eq!(moved_others, 0, "without {removed}");
        }
    }

    #[test]
    fn shares_follow_the_weights() {
        let members = members(&[1, 1, 2, 4, 4]);
        assert_shares(&members, &ring_owners(&members, 120_000), 15);
    }

    #[test]
    fn a_changed_weight_moves_about_the_difference() {
        let (before, after) = (members(&[2; 10]), members(&[1, 2, 2, 2, 2, 2, 2, 2, 2, 2]));
        let pairs = ring_owners(&before, 100_000).into_iter().zip(ring_owners(&after, 100_000));
        let moved = pairs.filter(|(old, new)| old != new).count();
        assert!((3_500..6_500).contains(&moved), "5 % of the keys lose their endpoint, {moved} moved");
    }

    #[test]
    fn the_lightest_still_has_keys_and_the_empty_ring_none() {
        let members = members(&[1, 1000]);
        let light = ring_owners(&members, 100_000).iter().filter(|id| **id == members[0].id).count();
        assert!(light > 0);
        assert_eq!(Ring::new(&[], 256).owner(1), None);
        assert_eq!(Ring::new(&members[..1], 100).owner(u64::MAX), Some(0));
    }
}
