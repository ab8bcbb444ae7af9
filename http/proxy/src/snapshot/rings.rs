//! What a process remembers of clusters with sticky sessions from config to config: the rings that cookies may still
//! be written for, and the endpoints that may still serve them, whose statistics names must not be given away.
//!
//! Invariant: the retired rings of all clusters have at most `RETIRED_POINTS_MAX` points together.
//! Owned by the thread that compiles snapshots, as a part of `StatRegistry`. A process that takes over from another
//! one goes on with what that one remembered ([`Heritage`]).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use http_balance::EndpointId;
use http_balance::generations::{Dropped, Generation, RETIRED_POINTS_MAX, Recipe, RingHistory, Since};
use http_balance::ring::{Member, RingVersion};
use http_balance::sticky::StickyRules;
use rustc_hash::{FxHashMap, FxHashSet};

#[derive(Clone, Debug, Default)]
pub(super) struct Rings {
    pub(super) now: Duration,
    clusters: FxHashMap<String, Remembered>,
    /// What the names of clusters stand for now, with sessions or without.
    found: FxHashMap<String, Vec<Present>>,
    /// Since the last [`Rings::take_dropped`], by cluster.
    dropped: BTreeMap<String, Dropped>,
    /// Of a predecessor, until the first config has taken what it has clusters for.
    inherited: FxHashMap<String, Heritage>,
}

#[derive(Clone, Debug, Default)]
struct Remembered {
    history: RingHistory,
    rules: StickyRules,
    /// Those that the config names by address.
    own: Vec<Present>,
    /// Those that are neither in the config nor found now.
    gone: Vec<(Home, EndpointId, Since)>,
    /// Asked for since the last [`Rings::retire_unused`].
    used: bool,
}

/// Where sessions are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    pub address: SocketAddr,
    pub hostname: Option<String>,
    /// Name of its statistics within the cluster; None: the address.
    pub series: Option<String>,
}

/// An endpoint of a cluster now.
#[derive(Clone, Debug)]
pub(super) struct Present {
    pub(super) home: Home,
    pub(super) id: EndpointId,
    /// None: it gets no new sessions.
    pub(super) weight: Option<u32>,
}

/// What one process leaves to the next of a cluster's sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heritage {
    /// The current one first.
    pub rings: Vec<Recipe>,
    /// With the time for which the cluster has not had them; None: it has them.
    pub homes: Vec<(Home, Option<Duration>)>,
}

/// How a cluster with sessions has its endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Address,
    /// Some of them at least. There is no ring before the names stand for something.
    Name,
}

/// An endpoint that has gone but may still have sessions, with the end of their time.
pub(super) type Gone = (Home, Duration);

impl Home {
    fn id(&self) -> EndpointId {
        EndpointId::of(self.address.to_string().as_bytes())
    }
}

impl Rings {
    /// Takes over from a predecessor, before the first config.
    pub(super) fn inherit(&mut self, inherited: impl Iterator<Item = (String, Heritage)>) {
        self.inherited = inherited.collect();
    }

    /// What a successor goes on with, by cluster.
    pub(super) fn heritage(&self) -> BTreeMap<String, Heritage> {
        let heritage = |(cluster, known): (&String, &Remembered)| {
            let found = self.found.get(cluster);
            let present = known.own.iter().chain(found.into_iter().flatten());
            let present = present.map(|endpoint| (endpoint.home.clone(), None));
            let gone = known.gone.iter().map(|(home, _, since)| (home.clone(), Some(since.age(self.now))));
            let heritage =
                Heritage { rings: known.history.recipes(self.now), homes: present.chain(gone).collect() };
            (cluster.clone(), heritage)
        };
        self.clusters.iter().map(heritage).collect()
    }

    /// The rings of a cluster, the current one first, and the endpoints that have gone but may still have sessions.
    /// Asking again for the same members at the same time changes nothing.
    pub(super) fn of(
        &mut self,
        cluster: &str,
        rules: &StickyRules,
        (by, own): (By, Vec<Present>),
    ) -> (Vec<Generation>, Vec<Gone>) {
        let room = self.room(cluster);
        let known = self.clusters.entry(cluster.to_owned()).or_default();
        if let Some(Heritage { rings, homes }) = self.inherited.remove(cluster) {
            let dropped = known.history.inherit(rules, &rings, self.now, room);
            note_dropped(&mut self.dropped, cluster, dropped);
            let gone = |(home, age): (Home, Option<Duration>)| {
                let id = home.id();
                (home, id, Since::ago(age.unwrap_or_default(), self.now))
            };
            known.gone = homes.into_iter().map(gone).collect();
        }
        known.used = true;
        known.rules = *rules;
        let before = std::mem::replace(&mut known.own, own);
        if by == By::Address || self.is_found(cluster) {
            self.push(cluster, by);
        }
        self.settle(cluster, before);
        let Some(known) = self.clusters.get(cluster) else { return (Vec::new(), Vec::new()) };
        let gone = known.gone.iter().map(|(home, _, since)| (home.clone(), since.until(rules.overlap)));
        (known.history.rings(rules), gone.collect())
    }

    /// Takes note of what the names of a cluster stand for, and returns its rings, the current one first; none without
    /// sessions. Nothing at all changes no ring: there is nobody to go to.
    pub(super) fn found(&mut self, cluster: &str, found: Vec<Present>) -> Vec<Generation> {
        let before = if found.is_empty() {
            self.found.remove(cluster)
        } else {
            self.found.insert(cluster.to_owned(), found)
        };
        if self.clusters.contains_key(cluster) {
            if self.is_found(cluster) {
                self.push(cluster, By::Name);
            }
            self.settle(cluster, before.unwrap_or_default());
        }
        self.clusters.get(cluster).map(|known| known.history.rings(&known.rules)).unwrap_or_default()
    }

    /// Whether the names of a cluster stand for something that takes new sessions.
    fn is_found(&self, cluster: &str) -> bool {
        let mut found = self.found.get(cluster).into_iter().flatten();
        found.any(|endpoint| endpoint.weight.is_some())
    }

    fn push(&mut self, cluster: &str, by: By) {
        let room = self.room(cluster);
        let Some(known) = self.clusters.get_mut(cluster) else { return };
        let found = self.found.get(cluster).filter(|_| by == By::Name);
        let mut seen = FxHashSet::default();
        let all = known.own.iter().chain(found.into_iter().flatten());
        let members = all.filter(|endpoint| seen.insert(endpoint.id));
        let members =
            members.filter_map(|endpoint| Some(Member { id: endpoint.id, weight: endpoint.weight? }));
        let dropped = known.history.push(&known.rules, members.collect(), self.now, room);
        note_dropped(&mut self.dropped, cluster, dropped);
    }

    /// Points that retired rings of a cluster may have.
    fn room(&self, cluster: &str) -> usize {
        let others = self.clusters.iter().filter(|(name, _)| *name != cluster);
        let taken: usize = others.map(|(_, known)| known.history.retired_points()).sum();
        RETIRED_POINTS_MAX.saturating_sub(taken)
    }

    /// Notes which of those before are gone, and forgets the gone that are back, or have no sessions any more.
    fn settle(&mut self, cluster: &str, before: Vec<Present>) {
        let now = self.now;
        let Some(Remembered { history, rules, own, gone, .. }) = self.clusters.get_mut(cluster) else {
            return;
        };
        let found = self.found.get(cluster);
        let present: FxHashSet<EndpointId> =
            own.iter().chain(found.into_iter().flatten()).map(|endpoint| endpoint.id).collect();
        gone.retain(|(_, id, since)| {
            !present.contains(id) && since.age(now) < rules.overlap && history.has(*id)
        });
        let known: FxHashSet<EndpointId> = gone.iter().map(|(_, id, _)| *id).collect();
        let left = before.into_iter().filter(|endpoint| {
            !present.contains(&endpoint.id) && !known.contains(&endpoint.id) && history.has(endpoint.id)
        });
        gone.extend(left.map(|endpoint| (endpoint.home, endpoint.id, Since::at(now))));
    }

    /// Forgets the clusters that nobody asked for since the last call.
    pub(super) fn retire_unused(&mut self) {
        self.clusters.retain(|_, known| std::mem::take(&mut known.used));
        self.inherited = FxHashMap::default();
    }

    /// Rings that were let go before their time since the last call, by cluster.
    pub(super) fn take_dropped(&mut self) -> BTreeMap<String, Dropped> {
        std::mem::take(&mut self.dropped)
    }

    /// The current ring of each cluster that has one.
    pub(super) fn versions(&self) -> BTreeMap<String, RingVersion> {
        let version =
            |(cluster, known): (&String, &Remembered)| Some((cluster.clone(), known.history.version()?));
        self.clusters.iter().filter_map(version).collect()
    }

    /// Points of all rings.
    pub(super) fn points(&self) -> usize {
        self.clusters.values().map(|known| known.history.points()).sum()
    }
}

fn note_dropped(all: &mut BTreeMap<String, Dropped>, cluster: &str, dropped: Dropped) {
    if dropped != Dropped::default() {
        all.entry(cluster.to_owned()).or_default().add(dropped);
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
        let (generations, gone) = rings.of(cluster, &RULES, (By::Address, ports.map(present).collect()));
        (generations, gone.into_iter().map(|(home, _)| home.address).collect())
    }

    fn present(port: u16) -> Present {
        let address = SocketAddr::from(([10, 0, 0, 1], port));
        let home = Home { address, hostname: None, series: None };
        Present { id: home.id(), home, weight: Some(1) }
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
        let asked = |rings: &mut Rings| rings.of("a", &RULES, (By::Name, vec![present(1)])).0;
        let version = |list: &[Generation]| list.first().map(Generation::version);
        let of = |ports: &[u16]| {
            let members = ports.iter().map(|port| Member { id: present(*port).id, weight: 1 });
            let members: Vec<_> = members.collect();
            Some(http_balance::ring::Ring::new(&members, RULES.virtual_nodes).version())
        };
        assert_eq!(version(&asked(&mut rings)), None);
        assert_eq!(version(&rings.found("a", vec![present(2), present(1)])), of(&[1, 2]), "each one once");
        assert_eq!(version(&asked(&mut rings)), of(&[1, 2]), "the next config");
        rings.now += Duration::from_secs(1);
        let list = rings.found("a", vec![present(3)]);
        assert_eq!((version(&list), list.len()), (of(&[1, 3]), 2));
        let gone = |rings: &mut Rings| -> Vec<u16> {
            let (_, gone) = rings.of("a", &RULES, (By::Name, vec![present(1)]));
            gone.into_iter().map(|(home, _)| home.address.port()).collect()
        };
        assert_eq!(gone(&mut rings), [2], "what the name no longer stands for has sessions");
        assert_eq!(version(&rings.found("a", Vec::new())), of(&[1, 3]), "no answer moves nobody");
        assert_eq!(gone(&mut rings), [2, 3]);
        assert_eq!(rings.found("plain", vec![present(1)]).len(), 0);
    }

    #[test]
    fn a_successor_goes_on_with_rings_and_homes() {
        let mut rings = Rings::default();
        ask(&mut rings, "a", 3);
        rings.now = Duration::from_secs(10);
        ask(&mut rings, "a", 2);
        ask(&mut rings, "b", 1);
        rings.now = Duration::from_secs(50);
        let heritage = rings.heritage();
        let ages: Vec<_> = heritage["a"].homes.iter().map(|(_, age)| *age).collect();
        assert_eq!(ages, [None, None, Some(Duration::from_secs(40))]);
        let mut heir = Rings::default();
        heir.inherit(heritage.into_iter());
        // Another config than the predecessor's: its current ring retires, too.
        let (of_heir, gone) = heir.of("a", &RULES, (By::Address, [2, 4].map(present).into()));
        let gone: Vec<_> = gone.iter().map(|(home, until)| (home.address.port(), until.as_secs())).collect();
        assert_eq!(gone, [(1, 100), (3, 60)]);
        let until: Vec<_> = of_heir.iter().map(|generation| generation.valid_until).collect();
        assert_eq!(until, [None, Some(Duration::from_secs(100)), Some(Duration::from_secs(60))]);
        let versions = |list: &[Generation]| list.iter().map(Generation::version).collect::<Vec<_>>();
        assert_eq!(versions(&of_heir[1..]), versions(&ask(&mut rings, "a", 2).0));
        // What no config has taken is forgotten with the next one.
        heir.retire_unused();
        heir.retire_unused();
        assert_eq!(ask(&mut heir, "b", 2).0.len(), 1);
    }

    #[test]
    fn clusters_share_the_room_for_the_past() {
        let mut rings = Rings::default();
        let large = StickyRules { overlap: RULES.overlap, virtual_nodes: 500 };
        let mut ask = |cluster: &str, first: u32| {
            let numbered = |n| Present { id: EndpointId(u64::from(first + n)), ..present(1) };
            rings.of(cluster, &large, (By::Address, (0..10_000).map(numbered).collect())).0.len()
        };
        // 5 million points each.
        let kept: Vec<_> = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2), ("b", 3)]
            .map(|(cluster, first)| ask(cluster, first))
            .into();
        assert_eq!(kept, [1, 2, 3, 1, 2, 3, 3]);
        assert_eq!(rings.take_dropped()["b"], Dropped { beyond_generations: 0, beyond_points: 1 });
    }
}
