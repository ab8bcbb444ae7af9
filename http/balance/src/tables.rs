//! Hash tables of clusters that go by a request's key, made once for all cores and for every later config that has the
//! same members.
//!
//! Invariants: the members of a table are sorted by id; a table never changes and lives as long as a plan has it, or who
//! keeps it for others. Owned by the thread that compiles snapshots; cores read what their plan refers to.
#![expect(
    clippy::disallowed_types,
    reason = "tables are shared as immutable values of snapshots; no request clones or drops one"
)]

use std::hash::BuildHasher;
use std::sync::{Arc, Weak};

use rustc_hash::FxBuildHasher;

use crate::maglev::Maglev;
use crate::plan::{EndpointSpec, Policy, levels};
use crate::ring::{Member, Ring};
use crate::time::stored;

/// All tables that some plan has.
#[derive(Debug, Default)]
pub struct Tables {
    /// By a digest of shape and members.
    known: Vec<(u64, Weak<Shared>)>,
}

/// A table on its way to the [`Tables`] of another thread.
#[derive(Clone, Debug)]
pub struct Kept(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    shape: Shape,
    members: Vec<Member>,
    owners: Owners,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Shape {
    Ring { virtual_nodes: u32 },
    Maglev { rows: u32 },
}

#[derive(Debug)]
enum Owners {
    Ring(Ring),
    Maglev(Maglev),
}

/// A hash table over the endpoints of one priority of a plan.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    shared: Arc<Shared>,
    /// Positions in the plan, by the table's indices.
    positions: Vec<u32>,
}

impl Table {
    /// Position of the endpoint that a key belongs to.
    #[inline]
    pub(crate) fn owner(&self, key: u64) -> Option<u32> {
        let index = match &self.shared.owners {
            Owners::Ring(ring) => ring.owner(key),
            Owners::Maglev(maglev) => maglev.owner(key),
        };
        self.positions.get(index?).copied()
    }

    /// All positions, from one that depends on the key.
    pub(crate) fn walk(&self, key: u64) -> impl Iterator<Item = u32> + '_ {
        let start = usize::try_from(crate::rng::below(key, u64::try_from(self.positions.len()).unwrap_or(0)));
        let (behind, before) = self.positions.split_at(start.unwrap_or(0).min(self.positions.len()));
        before.iter().chain(behind).copied()
    }
}

impl Tables {
    /// Those that another thread has made; what they do not hold is made here.
    #[must_use]
    pub fn with(kept: &[Kept]) -> Self {
        let known = kept.iter().map(|Kept(shared)| (shared.digest(), Arc::downgrade(shared)));
        Self { known: known.collect() }
    }

    /// The tables of a plan over these endpoints, for [`Self::with`]; none for policies without any.
    pub fn keep(&mut self, policy: Policy, endpoints: &[EndpointSpec]) -> Vec<Kept> {
        self.of_all(policy, endpoints).into_iter().map(|table| Kept(table.shared)).collect()
    }

    /// The tables of a plan, by priority; none for policies without any.
    pub(crate) fn of_all(&mut self, policy: Policy, endpoints: &[EndpointSpec]) -> Vec<Table> {
        (0..levels(endpoints)).filter_map(|level| self.of(policy, endpoints, level)).collect()
    }

    /// The table over the endpoints of one priority; None for policies without one.
    fn of(&mut self, policy: Policy, endpoints: &[EndpointSpec], level: usize) -> Option<Table> {
        let shape = match policy {
            Policy::RingHash { virtual_nodes, .. } => Shape::Ring { virtual_nodes },
            Policy::Maglev { rows, .. } => Shape::Maglev { rows },
            Policy::LeastRequest
            | Policy::RoundRobin
            | Policy::Random
            | Policy::LeastConnections
            | Policy::PeakEwma(_) => return None,
        };
        let of_level = |(_, endpoint): &(usize, &EndpointSpec)| usize::from(endpoint.priority) == level;
        let mut all: Vec<_> = endpoints.iter().enumerate().filter(of_level).collect();
        all.sort_unstable_by_key(|(_, endpoint)| endpoint.id);
        let (positions, members) = all
            .into_iter()
            .map(|(at, endpoint)| (stored(at), Member { id: endpoint.id, weight: endpoint.weight }))
            .unzip();
        Some(Table { shared: self.shared(shape, members), positions })
    }

    fn shared(&mut self, shape: Shape, members: Vec<Member>) -> Arc<Shared> {
        let digest = digest(shape, &members);
        let same = |shared: &Arc<Shared>| shared.shape == shape && shared.members == members;
        let alike = self.known.iter().filter(|(known, _)| *known == digest);
        if let Some(shared) = alike.filter_map(|(_, shared)| shared.upgrade()).find(same) {
            return shared;
        }
        self.known.retain(|(_, shared)| shared.strong_count() > 0);
        let owners = match shape {
            Shape::Ring { virtual_nodes } => Owners::Ring(Ring::new(&members, virtual_nodes)),
            Shape::Maglev { rows } => Owners::Maglev(Maglev::new(&members, rows)),
        };
        let shared = Arc::new(Shared { shape, members, owners });
        self.known.push((digest, Arc::downgrade(&shared)));
        shared
    }
}

impl Shared {
    fn digest(&self) -> u64 {
        digest(self.shape, &self.members)
    }
}

fn digest(shape: Shape, members: &[Member]) -> u64 {
    FxBuildHasher.hash_one((shape, members))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::EndpointId;
    use crate::maglev::ROWS_DEFAULT;
    use crate::plan::ClusterRules;
    use crate::{ClusterPlan, mix};

    const RING: Policy = Policy::RingHash { virtual_nodes: 100, bound: None };
    const MAGLEV: Policy = Policy::Maglev { rows: ROWS_DEFAULT, bound: None };

    fn plan(tables: &mut Tables, policy: Policy, endpoints: Vec<EndpointSpec>) -> ClusterPlan {
        let rules = ClusterRules { policy, ..ClusterRules::default() };
        ClusterPlan::build_shared(rules, endpoints, Vec::new(), tables).unwrap()
    }

    fn specs(count: u64) -> Vec<EndpointSpec> {
        (1..=count).map(|n| EndpointSpec::new(EndpointId(mix(n, 5)), 1)).collect()
    }

    fn first(plan: &ClusterPlan) -> *const Shared {
        Arc::as_ptr(&plan.tables[0].shared)
    }

    #[test]
    fn the_same_endpoints_have_one_table_in_whatever_order() {
        for policy in [RING, MAGLEV] {
            let mut tables = Tables::default();
            let one = plan(&mut tables, policy, specs(20));
            let mut reversed = specs(20);
            reversed.reverse();
            let other = plan(&mut tables, policy, reversed);
            assert_eq!(first(&one), first(&other));
            for key in 0..1000 {
                let id = |plan: &ClusterPlan| {
                    let position = plan.tables[0].owner(mix(key, 9)).unwrap();
                    plan.endpoints()[position as usize].id
                };
                assert_eq!(id(&one), id(&other), "by identity, not by position");
                let walked = |plan: &ClusterPlan| {
                    let walk = plan.tables[0].walk(mix(key, 9));
                    walk.map(|position| plan.endpoints()[position as usize].id).collect::<Vec<_>>()
                };
                assert_eq!(walked(&one), walked(&other));
            }
        }
    }

    #[test]
    fn a_table_that_was_made_elsewhere_is_used_where_it_fits() {
        let rules = ClusterRules { policy: RING, ..ClusterRules::default() };
        let two_levels = || -> Vec<EndpointSpec> {
            specs(5)
                .into_iter()
                .zip([0, 1, 0, 1, 0])
                .map(|(spec, priority)| EndpointSpec { priority, ..spec })
                .collect()
        };
        let kept = Tables::default().keep(RING, &two_levels());
        assert_eq!(kept.len(), 2);
        let made = |endpoints| {
            let mut tables = Tables::with(&kept);
            ClusterPlan::build_shared(rules.clone(), endpoints, Vec::new(), &mut tables).unwrap()
        };
        let plan = made(two_levels());
        for (table, Kept(shared)) in plan.tables.iter().zip(&kept) {
            assert!(Arc::ptr_eq(&table.shared, shared));
        }
        let other = made(specs(5));
        assert!(kept.iter().all(|Kept(shared)| !Arc::ptr_eq(shared, &other.tables[0].shared)));
        assert!(Tables::default().keep(Policy::LeastRequest, &specs(5)).is_empty());
    }

    #[test]
    fn other_members_weights_and_shapes_are_other_tables_and_go_with_their_last_plan() {
        let mut tables = Tables::default();
        let ring = plan(&mut tables, RING, specs(3));
        let finer = Policy::RingHash { virtual_nodes: 101, bound: None };
        let mut heavier = specs(3);
        heavier[0].weight = 2;
        let others = [
            plan(&mut tables, MAGLEV, specs(3)),
            plan(&mut tables, finer, specs(3)),
            plan(&mut tables, RING, specs(4)),
            plan(&mut tables, RING, heavier),
        ];
        assert!(others.iter().all(|other| first(other) != first(&ring)));
        assert_eq!(tables.known.len(), 5);
        drop(others);
        assert_eq!(first(&plan(&mut tables, RING, specs(3))), first(&ring));
        let two_levels = specs(2).into_iter().zip(0..);
        let two_levels = two_levels.map(|(spec, priority)| EndpointSpec { priority, ..spec }).collect();
        assert_eq!(plan(&mut tables, RING, two_levels).tables.len(), 2);
        assert_eq!(tables.known.iter().filter(|(_, shared)| shared.strong_count() > 0).count(), 1);
        assert!(tables.known.len() <= 3, "what no plan has is let go");
    }
}
