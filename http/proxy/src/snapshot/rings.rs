//! What a process remembers of clusters with sticky sessions from config to config: the rings that cookies may still
//! be written for, and the endpoints that may still serve them, whose statistics names must not be given away.
//!
//! Invariant: the retired rings of all clusters have at most `RETIRED_POINTS_MAX` points together.
//! Owned by the thread that compiles snapshots, as a part of `StatRegistry`. A process that takes over from another
//! one begins anew.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use http_balance::EndpointId;
use http_balance::generations::{Dropped, Generation, RETIRED_POINTS_MAX, RingHistory};
use http_balance::ring::Member;
use http_balance::sticky::StickyRules;
use rustc_hash::{FxHashMap, FxHashSet};

#[derive(Debug, Default)]
pub(super) struct Rings {
    pub(super) now: Duration,
    clusters: FxHashMap<String, Remembered>,
    /// What the names of clusters stand for now, with sessions or without.
    found: FxHashMap<String, Vec<Member>>,
    /// Since the last [`Rings::take_dropped`], by cluster.
    dropped: BTreeMap<String, Dropped>,
}

#[derive(Debug, Default)]
struct Remembered {
    history: RingHistory,
    rules: StickyRules,
    /// Those that the config names by address.
    own: Vec<Member>,
    /// With the time since when the config no longer names it; None: it does.
    endpoints: Vec<(SocketAddr, EndpointId, Option<Duration>)>,
    /// Asked for since the last [`Rings::retire_unused`].
    used: bool,
}

/// How a cluster with sessions has its endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Address,
    /// Some of them at least. There is no ring before the names stand for something.
    Name,
}

impl Rings {
    /// The rings of a cluster, the current one first, and the endpoints that have gone but may still have sessions.
    /// Asking again for the same members at the same time changes nothing.
    pub(super) fn of(
        &mut self,
        cluster: &str,
        rules: &StickyRules,
        (by, own): (By, Vec<Member>),
        named: &[(SocketAddr, EndpointId)],
    ) -> (Vec<Generation>, Vec<SocketAddr>) {
        let now = self.now;
        let known = self.clusters.entry(cluster.to_owned()).or_default();
        known.used = true;
        known.rules = *rules;
        known.own = own;
        if by == By::Address || self.found.contains_key(cluster) {
            self.push(cluster, by);
        }
        let Some(known) = self.clusters.get_mut(cluster) else { return (Vec::new(), Vec::new()) };
        let still: FxHashSet<SocketAddr> = named.iter().map(|(address, _)| *address).collect();
        let Remembered { history, endpoints, .. } = known;
        endpoints.retain_mut(|(address, id, gone_at)| {
            let gone_at = *gone_at.get_or_insert(now);
            !still.contains(address) && now < gone_at.saturating_add(rules.overlap) && history.has(*id)
        });
        let gone = endpoints.iter().map(|(address, ..)| *address).collect();
        endpoints.extend(named.iter().map(|(address, id)| (*address, *id, None)));
        (history.rings(rules), gone)
    }

    /// Takes note of what the names of a cluster stand for, and returns its rings, the current one first; none without
    /// sessions. Nothing at all changes no ring: there is nobody to go to.
    pub(super) fn found(&mut self, cluster: &str, members: Vec<Member>) -> Vec<Generation> {
        if members.is_empty() {
            self.found.remove(cluster);
        } else {
            self.found.insert(cluster.to_owned(), members);
            if self.clusters.contains_key(cluster) {
                self.push(cluster, By::Name);
            }
        }
        self.clusters.get(cluster).map(|known| known.history.rings(&known.rules)).unwrap_or_default()
    }

    fn push(&mut self, cluster: &str, by: By) {
        let others = self.clusters.iter().filter(|(name, _)| *name != cluster);
        let taken: usize = others.map(|(_, known)| known.history.retired_points()).sum();
        let room = RETIRED_POINTS_MAX.saturating_sub(taken);
        let Some(known) = self.clusters.get_mut(cluster) else { return };
        let mut members = known.own.clone();
        if by == By::Name {
            let own: FxHashSet<EndpointId> = members.iter().map(|member| member.id).collect();
            let found = self.found.get(cluster).into_iter().flatten();
            members.extend(found.filter(|member| !own.contains(&member.id)));
        }
        let dropped = known.history.push(&known.rules, members, self.now, room);
        if dropped != Dropped::default() {
            self.dropped.entry(cluster.to_owned()).or_default().add(dropped);
        }
    }

    /// Forgets the clusters that nobody asked for since the last call.
    pub(super) fn retire_unused(&mut self) {
        self.clusters.retain(|_, known| std::mem::take(&mut known.used));
    }

    /// Rings that were let go before their time since the last call, by cluster.
    pub(super) fn take_dropped(&mut self) -> BTreeMap<String, Dropped> {
        std::mem::take(&mut self.dropped)
    }

    /// Points of all rings.
    pub(super) fn points(&self) -> usize {
        self.clusters.values().map(|known| known.history.points()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: StickyRules = StickyRules { overlap: Duration::from_secs(100), virtual_nodes: 100 };

    /// With endpoints of the ports up to `count`.
    fn ask(rings: &mut Rings, cluster: &str, count: u16) -> (Vec<Generation>, Vec<SocketAddr>) {
        ask_of(rings, cluster, 1..=count)
    }

    fn ask_of(
        rings: &mut Rings,
        cluster: &str,
        ports: std::ops::RangeInclusive<u16>,
    ) -> (Vec<Generation>, Vec<SocketAddr>) {
        let id = |address: &SocketAddr| EndpointId::of(address.to_string().as_bytes());
        let addresses = ports.map(|port| SocketAddr::from(([10, 0, 0, 1], port)));
        let named: Vec<_> = addresses.map(|address| (address, id(&address))).collect();
        let members = named.iter().map(|(_, id)| Member { id: *id, weight: 1 }).collect();
        rings.of(cluster, &RULES, (By::Address, members), &named)
    }

    #[test]
    fn the_next_core_gets_the_same_rings() {
        let mut rings = Rings::default();
        ask(&mut rings, "a", 3);
        rings.now = Duration::from_secs(1);
        let (generations, gone) = ask(&mut rings, "a", 2);
        assert_eq!((generations.len(), gone.len(), rings.points()), (2, 1, 500));
        let (generations, gone) = ask(&mut rings, "a", 2);
        assert_eq!((generations.len(), gone.len(), rings.points()), (2, 1, 500));
        rings.now = Duration::from_secs(101);
        assert_eq!(ask(&mut rings, "a", 2).1, [], "no ring of the past has it");
    }

    #[test]
    fn rings_that_went_too_early_are_told_once() {
        let mut rings = Rings::default();
        for count in 1..=12 {
            rings.now += Duration::from_secs(1);
            ask(&mut rings, "a", count);
        }
        let dropped = rings.take_dropped();
        assert_eq!(dropped["a"], Dropped { beyond_generations: 3, beyond_points: 0 });
        assert!(rings.take_dropped().is_empty());
    }

    #[test]
    fn an_endpoint_is_forgotten_with_the_last_ring_that_has_it() {
        let mut rings = Rings::default();
        for port in 1..=20 {
            rings.now += Duration::from_secs(1);
            ask_of(&mut rings, "a", port..=port);
        }
        let ports = |gone: Vec<SocketAddr>| gone.iter().map(SocketAddr::port).collect::<Vec<_>>();
        assert_eq!(ports(ask_of(&mut rings, "a", 20..=20).1), (12..=19).collect::<Vec<_>>());
    }

    #[test]
    fn names_bring_members_and_there_is_no_ring_before() {
        let mut rings = Rings::default();
        let member = |n| Member { id: EndpointId(n), weight: 1 };
        let asked = |rings: &mut Rings| rings.of("a", &RULES, (By::Name, vec![member(1)]), &[]).0;
        let version = |list: &[Generation]| list.first().map(Generation::version);
        let of = |ids: &[u64]| {
            let members: Vec<_> = ids.iter().map(|id| member(*id)).collect();
            Some(http_balance::ring::Ring::new(&members, RULES.virtual_nodes).version())
        };
        assert_eq!(version(&asked(&mut rings)), None);
        assert_eq!(version(&rings.found("a", vec![member(2), member(1)])), of(&[1, 2]), "each one once");
        assert_eq!(version(&asked(&mut rings)), of(&[1, 2]), "the next config");
        rings.now += Duration::from_secs(1);
        let list = rings.found("a", vec![member(3)]);
        assert_eq!((version(&list), list.len()), (of(&[1, 3]), 2));
        assert_eq!(version(&rings.found("a", Vec::new())), of(&[1, 3]), "no answer moves nobody");
        assert_eq!(rings.found("plain", vec![member(1)]).len(), 0);
    }

    #[test]
    fn clusters_share_the_room_for_the_past() {
        let mut rings = Rings::default();
        let large = StickyRules { overlap: RULES.overlap, virtual_nodes: 500 };
        let mut ask = |cluster: &str, first: u32| {
            let members = (0..10_000).map(|n| Member { id: EndpointId(u64::from(first + n)), weight: 1 });
            rings.of(cluster, &large, (By::Address, members.collect()), &[]).0.len()
        };
        // 5 million points each.
        let kept: Vec<_> = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2), ("b", 3)]
            .map(|(cluster, first)| ask(cluster, first))
            .into();
        assert_eq!(kept, [1, 2, 3, 1, 2, 3, 3]);
        assert_eq!(rings.take_dropped()["b"], Dropped { beyond_generations: 0, beyond_points: 1 });
    }
}
