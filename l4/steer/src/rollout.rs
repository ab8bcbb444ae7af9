//! How tables change: each row holds its current and its previous owner, and one planned change is under way at a
//! time. A row forgets its previous owner only when it moves again, or long after the last change.
//!
//! ```text
//!            propose: same list                    propose: planned change
//!            ┌────────┐                    ┌─────────────────────────────────────┐
//!            │        ▼                    │                                     ▼
//!            └──── settled ────────────────┘        ┌── propose: planned ──► draining (until drain_ends)
//!                     ▲                             │    waits or is refused     │   │
//!                     │                             └────────────────────────────┘   │ tick: drain window over
//!                     └──────────── nothing waits ◄──────────────────────────────────┤
//!                                                              draining ◄────────────┘ something waits
//! ```
//!
//! Invariants: a row's previous owner is a proxy that may hold flows of that row, or equal to the current one; rows
//! never name a proxy that is down; the current owners are the Maglev table of the list in force. A proxy that goes
//! down is replaced at once, also while another change drains, and its rows get a window of their own. A proxy that
//! is no longer listed is drained for one window, because its flows are still alive. Called by shard-l4 and the
//! simulation.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use l4_abi::{Row, TABLE_ROWS};

use crate::maglev::{NoActiveOwner, Table};
use crate::owner::{Owner, OwnerId, OwnerList, OwnerState};

/// How long a change takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// The time that one planned change has for itself.
    pub drain: Duration,
    /// How long after the last change a row's previous owner is still asked; at least `drain`. Until then such rows
    /// are not remembered by flow tables, after it flows that are still with a previous owner live in flow tables
    /// alone.
    pub rescue: Duration,
}

/// What a planned change does when another one still drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// It takes the place of what waits, and is applied when the window ends.
    Wait,
    Refuse,
}

/// What became of a proposed list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The list in force says the same.
    Unchanged,
    /// New rows are in force.
    Published(Change),
    /// A change still drains until `until`; what could not wait (proxies that are down) is in `urgent`.
    Waiting { until: Duration, urgent: Option<Change> },
}

/// What a change of the rows did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Rows with a new current owner.
    pub moved: usize,
    /// Moved rows whose former owner is gone, so that its flows cannot be rescued.
    pub lost: usize,
    /// Rows that had another previous owner, still up, which they forgot for a later one.
    pub forgotten: usize,
}

/// Why a list was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A change drains until this time, and [`Conflict::Refuse`] was asked for.
    Draining {
        until: Duration,
    },
    NoActiveOwner(NoActiveOwner),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Draining { .. } => f.write_str(
                "another change is still draining; wait until its window ends, or let this one wait for it",
            ),
            Self::NoActiveOwner(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Refusal {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Draining { .. } => None,
            Self::NoActiveOwner(error) => Some(error),
        }
    }
}

/// The rows of one list of proxies over time. Times are since any fixed start.
#[derive(Clone, Debug)]
pub struct Rollout {
    windows: Windows,
    list: OwnerList,
    /// No longer listed, but asked for their flows until the drain window ends.
    leaving: Vec<Owner>,
    rows: Box<[Row]>,
    /// Grows with every change of the rows.
    changes: u64,
    /// When the next planned change may come; `None` when it may come now.
    drain_ends: Option<Duration>,
    /// When rows forget their previous owners; with `None`, none has another one.
    rescue_ends: Option<Duration>,
    waiting: Option<OwnerList>,
}

impl Rollout {
    /// Starts without a past: no row has another previous owner.
    ///
    /// # Errors
    /// `NoActiveOwner` when no proxy takes new flows.
    pub fn new(list: OwnerList, windows: Windows) -> Result<Self, NoActiveOwner> {
        let table = Table::new(&list)?;
        let rows = table.rows().iter().map(|id| Row { current: id.get(), previous: id.get() }).collect();
        Ok(Self {
            windows,
            list,
            leaving: Vec::new(),
            rows,
            changes: 1,
            drain_ends: None,
            rescue_ends: None,
            waiting: None,
        })
    }

    /// Starts from the rows that were in force before a restart. Whether they had drained is not known, so the window
    /// starts again if any row has a previous owner, be it from before or from this list.
    ///
    /// # Errors
    /// `NoActiveOwner` when no proxy takes new flows.
    pub fn resume(
        list: OwnerList,
        windows: Windows,
        before: &[Row],
        now: Duration,
    ) -> Result<Self, NoActiveOwner> {
        let mut rollout = Self::new(list, windows)?;
        if before.len() == TABLE_ROWS {
            let table = Table::new(&rollout.list)?;
            rollout.rows = before.into();
            rollout.replace(&table);
            rollout.start_windows(now);
        }
        Ok(rollout)
    }

    /// The rows in force, [`TABLE_ROWS`] of them.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Grows whenever the rows may have changed.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// The list in force.
    #[must_use]
    pub fn list(&self) -> &OwnerList {
        &self.list
    }

    /// Everybody who may be sent packets: the proxies of the list that are not down, and those that just left it.
    pub fn reachable(&self) -> impl Iterator<Item = &Owner> {
        self.list.owners().iter().chain(&self.leaving).filter(|owner| owner.state != OwnerState::Down)
    }

    /// When the last change has drained and the next may come; `None` when it may come now.
    #[must_use]
    pub fn drain_ends(&self) -> Option<Duration> {
        self.drain_ends
    }

    /// The list that waits for the end of the window.
    #[must_use]
    pub fn waiting(&self) -> Option<&OwnerList> {
        self.waiting.as_ref()
    }

    /// When rows forget their previous owners; with `None`, none has another one.
    #[must_use]
    pub fn rescue_ends(&self) -> Option<Duration> {
        self.rescue_ends
    }

    /// Changes the length of later windows.
    pub fn set_windows(&mut self, windows: Windows) {
        self.windows = windows;
    }

    /// Proposes a list.
    ///
    /// # Errors
    /// `Refusal`; nothing has changed then.
    pub fn propose(
        &mut self,
        list: OwnerList,
        conflict: Conflict,
        now: Duration,
    ) -> Result<Outcome, Refusal> {
        let table = Table::new(&list).map_err(Refusal::NoActiveOwner)?;
        if list == self.list {
            self.waiting = None;
            return Ok(Outcome::Unchanged);
        }
        let Some(until) = self.drain_ends.filter(|ends| *ends > now) else {
            self.waiting = None;
            return Ok(Outcome::Published(self.adopt(list, &table, now)));
        };
        let urgent = with_downs(&self.list, &list);
        // Without the proxies that went down nobody of the old list may be left; then the new one cannot wait.
        let urgent_table = Table::new(&urgent);
        match urgent_table {
            Ok(urgent_table) if is_planned(&urgent, &list) => {
                if conflict == Conflict::Refuse {
                    return Err(Refusal::Draining { until });
                }
                self.waiting = None;
                let is_urgent = urgent != self.list;
                let change = is_urgent.then(|| self.adopt(urgent, &urgent_table, now));
                // Nothing is left to wait for when the change that drained was about proxies that are down.
                let Some(until) = self.drain_ends else {
                    return Ok(Outcome::Published(self.adopt(list, &table, now)));
                };
                self.waiting = Some(list);
                Ok(Outcome::Waiting { until, urgent: change })
            }
            Ok(_) | Err(NoActiveOwner) => {
                self.waiting = None;
                Ok(Outcome::Published(self.adopt(list, &table, now)))
            }
        }
    }

    /// Lets time pass: ends windows that are over, and then applies the list that waits. `None` when nothing
    /// happened.
    pub fn tick(&mut self, now: Duration) -> Option<Change> {
        let is_over = |ends: Option<Duration>| ends.is_some_and(|ends| ends <= now);
        if !is_over(self.drain_ends) && !is_over(self.rescue_ends) {
            return None;
        }
        self.changes += 1;
        if is_over(self.drain_ends) {
            self.end_drain();
        }
        if is_over(self.rescue_ends) {
            self.rescue_ends = None;
            self.rows.iter_mut().for_each(|row| row.previous = row.current);
        }
        let next = match self.drain_ends {
            None => self.waiting.take(),
            Some(_) => None,
        };
        let next = next.and_then(|list| Table::new(&list).ok().map(|table| (list, table)));
        let change = next.map_or_else(Change::default, |(list, table)| self.adopt(list, &table, now));
        self.check_invariants();
        Some(change)
    }

    /// The proxies that left are not asked any more.
    fn end_drain(&mut self) {
        self.drain_ends = None;
        for left in std::mem::take(&mut self.leaving) {
            for row in self.rows.iter_mut().filter(|row| row.previous == left.id.get()) {
                row.previous = row.current;
            }
        }
    }

    fn adopt(&mut self, list: OwnerList, table: &Table, now: Duration) -> Change {
        if self.drain_ends.is_some_and(|ends| ends <= now) {
            self.end_drain();
        }
        let old = std::mem::replace(&mut self.list, list);
        let left = old.owners().iter().filter(|owner| owner.state != OwnerState::Down);
        self.leaving.extend(left.map(|owner| Owner { state: OwnerState::Draining, ..owner.clone() }));
        let (list, mut seen) = (&self.list, HashSet::new());
        self.leaving.retain(|owner| list.get(owner.id).is_none() && seen.insert(owner.id));
        let change = self.replace(table);
        // Without moved rows nothing drains, and a window that is open stays as it is.
        if change.moved > 0 {
            self.start_windows(now);
        }
        if self.drain_ends.is_none() {
            self.leaving.clear();
        }
        self.check_invariants();
        change
    }

    fn start_windows(&mut self, now: Duration) {
        let is_mixed = self.rows.iter().any(|row| row.previous != row.current);
        self.drain_ends = is_mixed.then(|| now + self.windows.drain);
        self.rescue_ends = is_mixed.then(|| now + self.windows.rescue.max(self.windows.drain));
    }

    /// Takes the table's owners as current; what was current becomes previous where it may still hold flows.
    fn replace(&mut self, table: &Table) -> Change {
        self.changes += 1;
        // By id, because a set is asked 200,000 times below.
        let mut reachable = vec![false; usize::from(OwnerId::MAX) + 1];
        for owner in self.reachable() {
            if let Some(slot) = reachable.get_mut(usize::from(owner.id.get())) {
                *slot = true;
            }
        }
        let up = |id: u16| reachable.get(usize::from(id)).copied().unwrap_or(false);
        let mut change = Change::default();
        for (row, new) in self.rows.iter_mut().zip(table.rows().iter().map(|id| id.get())) {
            let before = *row;
            let had_other = before.previous != before.current && up(before.previous);
            if before.current == new {
                if !up(row.previous) {
                    row.previous = row.current;
                }
                continue;
            }
            change.moved += 1;
            row.current = new;
            let holders = [before.current, before.previous];
            row.previous = holders.into_iter().find(|holder| up(*holder)).unwrap_or(new);
            change.lost += usize::from(!up(before.current));
            change.forgotten +=
                usize::from(had_other && row.previous != before.previous && new != before.previous);
        }
        change
    }

    fn check_invariants(&self) {
        debug_assert_eq!(self.rows.len(), TABLE_ROWS);
        debug_assert!(
            self.rescue_ends.is_some() || self.rows.iter().all(|row| row.previous == row.current),
            "previous owners are forgotten one day"
        );
        debug_assert!(self.waiting.is_none() || self.drain_ends.is_some(), "a list waits for a window");
        debug_assert!(
            self.leaving.is_empty() || self.drain_ends.is_some(),
            "who left, leaves with the window"
        );
    }
}

/// `old`, with those proxies down that are down in `new`.
fn with_downs(old: &OwnerList, new: &OwnerList) -> OwnerList {
    let is_down = |owner: &Owner| new.get(owner.id).is_some_and(|other| other.state == OwnerState::Down);
    let state_of = |owner: &Owner| if is_down(owner) { OwnerState::Down } else { owner.state };
    let owners = old.owners().iter().map(|owner| Owner { state: state_of(owner), ..owner.clone() }).collect();
    OwnerList::new(owners).unwrap_or_else(|_| old.clone())
}

/// Whether going from `urgent` to `new` is more than proxies that are down.
fn is_planned(urgent: &OwnerList, new: &OwnerList) -> bool {
    fn up(list: &OwnerList) -> impl Iterator<Item = &Owner> {
        list.owners().iter().filter(|owner| owner.state != OwnerState::Down)
    }
    !up(urgent).eq(up(new))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(300);
    const WINDOWS: Windows = Windows { drain: WINDOW, rescue: Duration::from_secs(3_600) };
    const AT: fn(u64) -> Duration = Duration::from_secs;

    /// Proxies p0 to p(n-1) with ids from 1; the states of some are given.
    fn list(count: u16, states: &[(u16, OwnerState)]) -> OwnerList {
        let owners = (0..count).map(|at| Owner {
            id: OwnerId::new(at + 1).expect("a small id"),
            name: format!("p{at}"),
            weight: 1,
            state: states.iter().find(|(index, _)| *index == at).map_or(OwnerState::Active, |(_, s)| *s),
        });
        OwnerList::new(owners.collect()).expect("a good list")
    }

    fn without(list: &OwnerList, index: u16) -> OwnerList {
        let left = list.owners().iter().filter(|owner| owner.name != format!("p{index}"));
        OwnerList::new(left.cloned().collect()).expect("a good list")
    }

    /// The id of p`index`.
    fn id(index: u16) -> u16 {
        index + 1
    }

    fn mixed(rollout: &Rollout) -> usize {
        rollout.rows().iter().filter(|row| row.current != row.previous).count()
    }

    #[test]
    fn a_drained_proxy_is_asked_until_the_drain_ends() {
        let mut rollout = Rollout::new(list(10, &[]), WINDOWS).expect("active proxies");
        let before: Vec<Row> = rollout.rows().to_vec();
        let outcome = rollout.propose(list(10, &[(3, OwnerState::Draining)]), Conflict::Wait, AT(10));
        let Ok(Outcome::Published(change)) = outcome else { panic!("{outcome:?}") };
        assert_eq!((change.moved, change.lost, change.forgotten), (mixed(&rollout), 0, 0));
        for (now, was) in rollout.rows().iter().zip(&before) {
            assert_ne!(now.current, id(3));
            assert_eq!(now.previous, was.current);
        }
        assert_eq!(rollout.tick(AT(309)), None);
        assert_eq!(rollout.tick(AT(310)), Some(Change::default()));
        assert_eq!((mixed(&rollout), rollout.drain_ends()), (change.moved, None), "the next change may come");
        assert_eq!(rollout.tick(AT(3_609)), None);
        assert_eq!(rollout.tick(AT(3_610)), Some(Change::default()));
        assert_eq!((mixed(&rollout), rollout.rescue_ends()), (0, None));
        assert!(rollout.reachable().any(|owner| owner.id.get() == id(3)), "flow tables may still name it");
    }

    #[test]
    fn a_second_planned_change_waits_or_is_refused() {
        let mut rollout = Rollout::new(list(10, &[]), WINDOWS).expect("active proxies");
        let first = list(10, &[(3, OwnerState::Draining)]);
        let second = list(10, &[(4, OwnerState::Draining)]);
        rollout.propose(first.clone(), Conflict::Wait, AT(0)).expect("taken");
        let rows = rollout.rows().to_vec();
        assert_eq!(
            rollout.propose(second.clone(), Conflict::Refuse, AT(1)),
            Err(Refusal::Draining { until: WINDOW })
        );
        assert_eq!(rollout.waiting(), None);
        assert_eq!(
            rollout.propose(second.clone(), Conflict::Wait, AT(1)),
            Ok(Outcome::Waiting { until: WINDOW, urgent: None })
        );
        assert_eq!((rollout.rows(), rollout.waiting()), (rows.as_slice(), Some(&second)));
        let change = rollout.tick(WINDOW).expect("the window ended");
        assert!(change.moved > 0 && change.lost == 0 && change.forgotten < change.moved / 5, "{change:?}");
        assert_eq!((rollout.list(), rollout.waiting()), (&second, None));
        assert_eq!(rollout.drain_ends(), Some(WINDOW * 2), "the second change has a window of its own");
        rollout.propose(first.clone(), Conflict::Wait, AT(301)).expect("waits");
        assert_eq!(rollout.propose(second, Conflict::Wait, AT(302)), Ok(Outcome::Unchanged));
        assert_eq!(rollout.waiting(), None, "the last word counts");
    }

    #[test]
    fn a_proxy_that_goes_down_is_replaced_within_a_window() {
        let mut rollout = Rollout::new(list(10, &[]), WINDOWS).expect("active proxies");
        rollout.propose(list(10, &[(3, OwnerState::Draining)]), Conflict::Wait, AT(0)).expect("taken");
        let both = list(10, &[(3, OwnerState::Draining), (4, OwnerState::Down)]);
        let outcome = rollout.propose(both.clone(), Conflict::Refuse, AT(100));
        let Ok(Outcome::Published(change)) = outcome else { panic!("{outcome:?}") };
        assert!(change.lost > 0 && change.lost <= change.moved, "{change:?}");
        assert!(rollout.rows().iter().all(|row| ![row.current, row.previous].contains(&id(4))));
        assert!(rollout.rows().iter().any(|row| row.previous == id(3)), "the drained one is still asked");
        assert_eq!(rollout.drain_ends(), Some(AT(400)));
        assert_eq!(rollout.list(), &both);
    }

    #[test]
    fn what_is_urgent_does_not_wait_with_the_rest() {
        let mut rollout = Rollout::new(list(10, &[]), WINDOWS).expect("active proxies");
        rollout.propose(list(10, &[(3, OwnerState::Draining)]), Conflict::Wait, AT(0)).expect("taken");
        let wanted = list(10, &[(4, OwnerState::Down), (5, OwnerState::Draining)]);
        let outcome = rollout.propose(wanted.clone(), Conflict::Wait, AT(1));
        let Ok(Outcome::Waiting { until, urgent: Some(change) }) = outcome else { panic!("{outcome:?}") };
        assert!(change.lost > 0);
        assert_eq!(until, AT(301));
        assert!(rollout.rows().iter().all(|row| row.current != id(4)));
        assert!(rollout.rows().iter().any(|row| row.current == id(5)), "the drain waits");
        rollout.tick(AT(301)).expect("the window ended");
        assert_eq!(rollout.list(), &wanted);
        assert!(rollout.rows().iter().all(|row| row.current != id(5)));
    }

    #[test]
    fn a_proxy_that_is_no_longer_listed_is_drained() {
        let mut rollout = Rollout::new(list(10, &[]), WINDOWS).expect("active proxies");
        let shorter = without(&list(10, &[]), 3);
        rollout.propose(shorter.clone(), Conflict::Wait, AT(0)).expect("taken");
        assert!(rollout.rows().iter().any(|row| row.previous == id(3)));
        assert!(rollout.reachable().any(|owner| owner.id.get() == id(3)));
        rollout.tick(WINDOW).expect("the window ended");
        assert!(rollout.reachable().all(|owner| owner.id.get() != id(3)));
        assert_eq!(
            rollout.propose(list(10, &[(3, OwnerState::Down)]), Conflict::Wait, WINDOW),
            Ok(Outcome::Published(Change::default())),
            "a proxy that is down has no part in the rows"
        );
        assert_eq!((mixed(&rollout) > 0, rollout.drain_ends()), (true, None), "rows of the others moved too");
    }

    #[test]
    fn a_restart_goes_on_from_the_rows_in_force() {
        let drained = list(10, &[(3, OwnerState::Draining)]);
        let mut first = Rollout::new(list(10, &[]), WINDOWS).expect("active proxies");
        first.propose(drained.clone(), Conflict::Wait, AT(0)).expect("taken");
        let second = Rollout::resume(drained.clone(), WINDOWS, first.rows(), AT(7)).expect("active proxies");
        assert_eq!((second.rows(), second.drain_ends()), (first.rows(), Some(AT(307))));
        first.tick(AT(3_600)).expect("the windows ended");
        let third = Rollout::resume(drained, WINDOWS, first.rows(), AT(7)).expect("active proxies");
        assert_eq!((third.rows(), third.drain_ends()), (first.rows(), None));
        let changed = Rollout::resume(list(9, &[]), WINDOWS, first.rows(), AT(7)).expect("active proxies");
        assert!(mixed(&changed) > 0 && changed.drain_ends() == Some(AT(307)));
        assert!(changed.rows().iter().all(|row| row.previous != id(9)), "its address is not known any more");
    }

    #[test]
    fn a_list_without_active_proxies_changes_nothing() {
        let mut rollout = Rollout::new(list(2, &[]), WINDOWS).expect("active proxies");
        let none = list(2, &[(0, OwnerState::Down), (1, OwnerState::Draining)]);
        assert!(Rollout::new(none.clone(), WINDOWS).is_err());
        assert_eq!(rollout.propose(none, Conflict::Wait, AT(0)), Err(Refusal::NoActiveOwner(NoActiveOwner)));
        assert_eq!(mixed(&rollout), 0);
        // All of the old list go down within a window: the new ones cannot wait.
        rollout.propose(list(2, &[(0, OwnerState::Draining)]), Conflict::Wait, AT(0)).expect("taken");
        let replaced = list(3, &[(0, OwnerState::Down), (1, OwnerState::Down)]);
        let outcome = rollout.propose(replaced, Conflict::Wait, AT(1));
        assert!(matches!(outcome, Ok(Outcome::Published(_))), "{outcome:?}");
        assert!(rollout.rows().iter().all(|row| *row == Row { current: id(2), previous: id(2) }));
    }

    #[test]
    fn random_changes_keep_the_invariants() {
        let seed = 0x5eed_u64;
        let mut state = seed;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut rollout = Rollout::new(list(6, &[]), WINDOWS).expect("active proxies");
        let mut now = AT(0);
        for step in 0..60 {
            now += AT(draw(400));
            rollout.tick(now);
            let states = [OwnerState::Active, OwnerState::Active, OwnerState::Draining, OwnerState::Down];
            let picked: Vec<(u16, OwnerState)> =
                (0..6).map(|at| (at, states[usize::try_from(draw(4)).expect("small")])).collect();
            let wanted = list(6, &picked);
            let outcome = rollout.propose(wanted.clone(), Conflict::Wait, now);
            let table = Table::new(rollout.list()).expect("a list in force has active proxies");
            let up: Vec<u16> = rollout.reachable().map(|owner| owner.id.get()).collect();
            for (row, owner) in rollout.rows().iter().zip(table.rows()) {
                assert_eq!(row.current, owner.get(), "seed {seed:#x} step {step}: {outcome:?}");
                assert!(up.contains(&row.previous), "seed {seed:#x} step {step}: {outcome:?}");
            }
            assert!(mixed(&rollout) == 0 || rollout.rescue_ends().is_some(), "seed {seed:#x} step {step}");
        }
    }
}
