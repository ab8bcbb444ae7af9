//! The rings of sticky sessions over time: the present one, and those that cookies may still be written for.
//!
//! A ring is made once for each membership and then shared by all plans, of all cores and of all configs, that need it:
//! 2,000 endpoints are 6 MB and some 25 ms a ring, of which a core of every config would otherwise have up to nine.
//!
//! Invariants: the members of a table are sorted by id; only the first generation of a history is not retired; a table
//! never changes. Owned by the thread that compiles snapshots; cores read what their plan refers to.
#![expect(
    clippy::disallowed_types,
    reason = "tables are shared as immutable values of snapshots; no request clones or drops one"
)]

use std::sync::Arc;
use std::time::Duration;

use crate::endpoint::EndpointId;
use crate::ring::{Member, Ring, RingVersion, VIRTUAL_NODES};
use crate::sticky::{Session, StickyRules};

/// Retired rings that are kept of a cluster at most; the oldest goes first.
pub const GENERATIONS_MAX: usize = 8;

/// Points of the retired rings of all clusters of a process, of 12 bytes each: 240 MB. They are four rings of the
/// largest cluster that a config may have, and 39 of 2,000 endpoints with 256 points each.
pub const RETIRED_POINTS_MAX: usize = 20_000_000;

/// A moment since the epoch of the cores' clocks, or before it: what a predecessor saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Since {
    at: Duration,
    /// So much earlier than `at`.
    earlier: Duration,
}

impl Since {
    #[must_use]
    pub const fn at(at: Duration) -> Self {
        Self { at, earlier: Duration::ZERO }
    }

    /// So long ago.
    #[must_use]
    pub const fn ago(age: Duration, now: Duration) -> Self {
        Self { at: now, earlier: age }
    }

    #[must_use]
    pub fn age(self, now: Duration) -> Duration {
        now.saturating_sub(self.at).saturating_add(self.earlier)
    }

    /// The end of a time that began then; the epoch when it ended before that.
    #[must_use]
    pub fn until(self, time: Duration) -> Duration {
        self.at.saturating_add(time).saturating_sub(self.earlier)
    }
}

/// What a ring is made from: what one process tells the next instead of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// A ring that is made otherwise there is no use: cookies would stand for other endpoints.
    pub version: RingVersion,
    pub virtual_nodes: u32,
    pub members: Vec<Member>,
    /// For how long it has been retired; None: it is the current one.
    pub retired: Option<Duration>,
}

impl Recipe {
    /// None when it gives another ring than it says, such as by a build that hashes otherwise.
    fn table(&self) -> Option<Table> {
        let mut members = self.members.clone();
        members.sort_unstable_by_key(|member| member.id);
        let is_sound = VIRTUAL_NODES.contains(&self.virtual_nodes)
            && members.iter().all(|member| member.weight > 0)
            && members.windows(2).all(|pair| pair[0].id != pair[1].id);
        if !is_sound {
            return None;
        }
        let ring = Ring::new(&members, self.virtual_nodes);
        (ring.version() == self.version).then_some(Table { ring, members, virtual_nodes: self.virtual_nodes })
    }
}

/// A ring and whose it is.
#[derive(Debug)]
struct Table {
    ring: Ring,
    /// By the ring's indices.
    members: Vec<Member>,
    virtual_nodes: u32,
}

/// One ring of a plan.
#[derive(Clone, Debug)]
pub struct Generation {
    table: Arc<Table>,
    /// How many changes its history had seen when it was asked for.
    changes: u64,
    /// None: the current one.
    pub valid_until: Option<Duration>,
}

impl Generation {
    /// What the cookies of its time name.
    #[inline]
    #[must_use]
    pub fn version(&self) -> RingVersion {
        self.table.ring.version()
    }

    /// The endpoint of a session.
    #[inline]
    #[must_use]
    pub fn owner(&self, session: &Session) -> Option<EndpointId> {
        let index = self.table.ring.owner(session.key())?;
        self.table.members.get(index).map(|member| member.id)
    }
}

/// The one of two lists of one cluster's rings that was made later.
#[must_use]
pub fn newer<'a>(a: &'a [Generation], b: &'a [Generation]) -> &'a [Generation] {
    let changes = |list: &[Generation]| list.first().map(|generation| generation.changes);
    if changes(a) >= changes(b) { a } else { b }
}

/// Retired rings that were let go while cookies may still be written for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// There were more than [`GENERATIONS_MAX`].
    pub beyond_generations: u64,
    /// There was no room for their points.
    pub beyond_points: u64,
}

impl Dropped {
    /// Adds those of another time.
    pub fn add(&mut self, other: Self) {
        self.beyond_generations += other.beyond_generations;
        self.beyond_points += other.beyond_points;
    }
}

/// The memberships of one cluster, the current one first.
#[derive(Clone, Debug, Default)]
pub struct RingHistory {
    /// With the time since when they have been retired.
    generations: Vec<(Arc<Table>, Option<Since>)>,
    changes: u64,
}

impl RingHistory {
    /// Takes over the members of a new config; the former ones retire now if they differ. Forgets what retired more
    /// than the overlap ago, and the oldest of more than [`GENERATIONS_MAX`] or of more than `points_max` points.
    /// The same members again change nothing but what time changes.
    pub fn push(
        &mut self,
        rules: &StickyRules,
        mut members: Vec<Member>,
        now: Duration,
        points_max: usize,
    ) -> Dropped {
        members.sort_unstable_by_key(|member| member.id);
        let is_same = |table: &Table| table.virtual_nodes == rules.virtual_nodes && table.members == members;
        let known = self.generations.iter().position(|(table, _)| is_same(table));
        self.changes += u64::from(known != Some(0));
        // What comes back is current again, not retired.
        match known {
            Some(at) => self.generations[..=at].rotate_right(1),
            None => {
                let ring = Ring::new(&members, rules.virtual_nodes);
                let table = Table { ring, members, virtual_nodes: rules.virtual_nodes };
                self.generations.insert(0, (Arc::new(table), None));
            }
        }
        for (at, (_, retired)) in self.generations.iter_mut().enumerate() {
            *retired = (at > 0).then(|| retired.unwrap_or(Since::at(now)));
        }
        self.forget_old(rules, now, points_max)
    }

    /// Goes on from what a predecessor says, the current ring first, as far as this build makes the same rings.
    pub fn inherit(
        &mut self,
        rules: &StickyRules,
        recipes: &[Recipe],
        now: Duration,
        points_max: usize,
    ) -> Dropped {
        let lives = |recipe: &&Recipe| recipe.retired.is_none_or(|age| age < rules.overlap);
        let made = recipes.iter().filter(lives).take(GENERATIONS_MAX + 1).filter_map(|recipe| {
            let since = recipe.retired.map(|age| Since::ago(age, now));
            Some((Arc::new(recipe.table()?), since))
        });
        self.generations = made.collect();
        for (at, (_, retired)) in self.generations.iter_mut().enumerate() {
            // The first one is the present one, if only because that one could not be made again.
            *retired = (at > 0).then(|| retired.unwrap_or(Since::at(now)));
        }
        self.changes += 1;
        self.forget_old(rules, now, points_max)
    }

    /// What a successor makes the same rings from, the current one first.
    #[must_use]
    pub fn recipes(&self, now: Duration) -> Vec<Recipe> {
        let recipe = |(table, retired): &(Arc<Table>, Option<Since>)| Recipe {
            version: table.ring.version(),
            virtual_nodes: table.virtual_nodes,
            members: table.members.clone(),
            retired: retired.map(|since| since.age(now)),
        };
        self.generations.iter().map(recipe).collect()
    }

    fn forget_old(&mut self, rules: &StickyRules, now: Duration, points_max: usize) -> Dropped {
        self.generations.retain(|(_, retired)| retired.is_none_or(|since| since.age(now) < rules.overlap));
        let mut dropped = Dropped::default();
        while self.generations.len() > GENERATIONS_MAX + 1 {
            self.generations.pop();
            dropped.beyond_generations += 1;
        }
        while self.retired_points() > points_max {
            self.generations.pop();
            dropped.beyond_points += 1;
        }
        dropped
    }

    /// The rings for a plan, the current one first.
    #[must_use]
    pub fn rings(&self, rules: &StickyRules) -> Vec<Generation> {
        let generation = |(table, retired): &(Arc<Table>, Option<Since>)| Generation {
            table: Arc::clone(table),
            changes: self.changes,
            valid_until: retired.map(|since| since.until(rules.overlap)),
        };
        self.generations.iter().map(generation).collect()
    }

    /// Of the current ring; None before there is one.
    #[must_use]
    pub fn version(&self) -> Option<RingVersion> {
        self.generations.first().map(|(table, _)| table.ring.version())
    }

    /// Points of the rings that are not the current one.
    #[must_use]
    pub fn retired_points(&self) -> usize {
        self.generations.iter().skip(1).map(|(table, _)| table.ring.len()).sum()
    }

    /// Points of all rings.
    #[must_use]
    pub fn points(&self) -> usize {
        self.generations.iter().map(|(table, _)| table.ring.len()).sum()
    }

    /// Whether sessions may be at an endpoint.
    #[must_use]
    pub fn has(&self, id: EndpointId) -> bool {
        let mut members = self.generations.iter().map(|(table, _)| &table.members);
        members.any(|members| members.binary_search_by_key(&id, |member| member.id).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::tests::members;

    const SECOND: Duration = Duration::from_secs(1);
    const RULES: StickyRules = StickyRules { overlap: Duration::from_secs(100), virtual_nodes: 100 };

    fn push(history: &mut RingHistory, count: usize, now: Duration) -> Dropped {
        history.push(&RULES, members(&vec![1; count]), now, RETIRED_POINTS_MAX)
    }

    fn tables(history: &RingHistory) -> Vec<*const Table> {
        history.rings(&RULES).iter().map(|generation| Arc::as_ptr(&generation.table)).collect()
    }

    #[test]
    fn retired_rings_stay_for_the_overlap_and_no_more_than_eight() {
        let mut history = RingHistory::default();
        push(&mut history, 3, SECOND);
        push(&mut history, 3, 2 * SECOND);
        assert_eq!(history.rings(&RULES).len(), 1, "nothing changed");
        push(&mut history, 4, 10 * SECOND);
        let rings = history.rings(&RULES);
        assert_eq!(rings.iter().map(|g| g.valid_until).collect::<Vec<_>>(), [None, Some(110 * SECOND)]);
        assert_eq!(rings[1].version(), Ring::new(&members(&[1; 3]), 100).version());
        push(&mut history, 3, 20 * SECOND);
        let valid: Vec<_> = history.rings(&RULES).iter().map(|g| g.valid_until).collect();
        assert_eq!(valid, [None, Some(120 * SECOND)], "what came back is current");
        assert_eq!(push(&mut history, 3, 120 * SECOND), Dropped::default(), "its time was over");
        assert_eq!(history.rings(&RULES).len(), 1);
        let dropped: u64 = (4..30).map(|n| push(&mut history, n, 121 * SECOND).beyond_generations).sum();
        assert_eq!((history.rings(&RULES).len(), dropped), (GENERATIONS_MAX + 1, 18));
    }

    #[test]
    fn a_membership_has_one_table_however_often_it_is_asked_for() {
        let mut history = RingHistory::default();
        for (count, now) in [(3, 1), (4, 2), (5, 3)] {
            push(&mut history, count, now * SECOND);
        }
        let before = tables(&history);
        push(&mut history, 5, 4 * SECOND);
        assert_eq!(tables(&history), before, "the next core, the next config");
        push(&mut history, 3, 5 * SECOND);
        assert_eq!(tables(&history), [before[2], before[0], before[1]], "the oldest one came back");
        let valid: Vec<_> = history.rings(&RULES).iter().map(|g| g.valid_until).collect();
        assert_eq!(valid, [None, Some(105 * SECOND), Some(103 * SECOND)]);
    }

    #[test]
    fn of_two_lists_the_later_one_counts() {
        let mut history = RingHistory::default();
        let mut lists = vec![history.rings(&RULES)];
        for (count, now) in [(3, 1), (4, 2), (3, 3)] {
            push(&mut history, count, now * SECOND);
            lists.push(history.rings(&RULES));
        }
        for pair in lists.windows(2) {
            let version = |list: &[Generation]| list.first().map(Generation::version);
            assert_eq!(version(newer(&pair[0], &pair[1])), version(&pair[1]));
            assert_eq!(version(newer(&pair[1], &pair[0])), version(&pair[1]));
        }
    }

    #[test]
    fn a_successor_goes_on_with_the_same_rings_and_what_is_left_of_their_time() {
        let mut history = RingHistory::default();
        for (count, now) in [(3, 1), (4, 10), (5, 70)] {
            push(&mut history, count, now * SECOND);
        }
        let recipes = history.recipes(80 * SECOND);
        let ages: Vec<_> = recipes.iter().map(|recipe| recipe.retired).collect();
        assert_eq!(ages, [None, Some(10 * SECOND), Some(70 * SECOND)]);
        let mut heir = RingHistory::default();
        assert_eq!(heir.inherit(&RULES, &recipes, SECOND, RETIRED_POINTS_MAX), Dropped::default());
        let versions = |history: &RingHistory| -> Vec<_> {
            history.rings(&RULES).iter().map(Generation::version).collect()
        };
        assert_eq!(versions(&heir), versions(&history));
        push(&mut heir, 5, SECOND);
        let valid =
            |heir: &RingHistory| -> Vec<_> { heir.rings(&RULES).iter().map(|g| g.valid_until).collect() };
        assert_eq!(valid(&heir), [None, Some(91 * SECOND), Some(31 * SECOND)]);
        let session = Session { id: [7; 16], ring: recipes[1].version };
        assert_eq!(heir.rings(&RULES)[1].owner(&session), history.rings(&RULES)[1].owner(&session));
        // And its own successor, with the time since then.
        assert_eq!(heir.recipes(11 * SECOND)[2].retired, Some(80 * SECOND));
        push(&mut heir, 6, 31 * SECOND);
        assert_eq!(valid(&heir), [None, Some(131 * SECOND), Some(91 * SECOND)], "the oldest is over");
    }

    #[test]
    fn what_cannot_be_inherited_is_passed_over() {
        let mut history = RingHistory::default();
        push(&mut history, 3, SECOND);
        push(&mut history, 4, 2 * SECOND);
        let good = history.recipes(2 * SECOND);
        let spoilt: [fn(&mut Recipe); 6] = [
            |recipe| recipe.version.0 ^= 1,
            |recipe| recipe.members.truncate(1),
            |recipe| recipe.members[0].weight = 0,
            |recipe| recipe.members[1] = recipe.members[0],
            |recipe| recipe.virtual_nodes = u32::MAX,
            |recipe| recipe.retired = Some(RULES.overlap),
        ];
        for spoil in spoilt {
            let mut recipes = good.clone();
            spoil(&mut recipes[1]);
            let mut heir = RingHistory::default();
            heir.inherit(&RULES, &recipes, SECOND, RETIRED_POINTS_MAX);
            assert_eq!(heir.rings(&RULES).len(), 1);
        }
        let mut heir = RingHistory::default();
        let dropped = heir.inherit(&RULES, &good, SECOND, 299);
        assert_eq!((dropped.beyond_points, heir.retired_points()), (1, 0), "bounded as in any process");
    }

    #[test]
    fn other_virtual_nodes_are_another_ring_and_the_former_stays_valid() {
        let mut history = RingHistory::default();
        push(&mut history, 3, SECOND);
        let finer = StickyRules { virtual_nodes: 200, ..RULES };
        history.push(&finer, members(&[1; 3]), 2 * SECOND, RETIRED_POINTS_MAX);
        let versions: Vec<_> = history.rings(&finer).iter().map(Generation::version).collect();
        let of = |nodes| Ring::new(&members(&[1; 3]), nodes).version();
        assert_eq!(versions, [of(200), of(100)]);
    }

    #[test]
    fn retired_rings_beyond_their_points_go_the_oldest_first_and_are_counted() {
        let mut history = RingHistory::default();
        for (count, now) in [(1, 1), (2, 2), (3, 3), (4, 4)] {
            push(&mut history, count, now * SECOND);
        }
        assert_eq!((history.retired_points(), history.points()), (600, 1000));
        let dropped = history.push(&RULES, members(&[1; 4]), 4 * SECOND, 599);
        assert_eq!(dropped, Dropped { beyond_points: 1, ..Dropped::default() });
        assert_eq!(history.retired_points(), 500);
        assert!(history.has(members(&[1; 4])[3].id) && history.has(members(&[1])[0].id));
        let dropped = history.push(&RULES, members(&[1; 4]), 4 * SECOND, 0);
        assert_eq!(
            (dropped.beyond_points, history.rings(&RULES).len()),
            (2, 1),
            "the current one always stays"
        );
    }
}
