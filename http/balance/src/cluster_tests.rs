//! The cluster as a whole: change of plans, ejection, panic, slow start, hashing and sessions (C31 to C34).

use std::time::Duration;

use crate::cluster::{ClusterState, Event, NoEndpoint, Pick};
use crate::endpoint::{Availability, EndpointId, Health, Slot, Wanted};
use crate::generations::{RETIRED_POINTS_MAX, RingHistory};
use crate::hashing::SessionFate;
use crate::levels::{WHOLE, ZoneRules};
use crate::outcome::Outcome;
use crate::plan::{ClusterPlan, ClusterRules, EndpointSpec, LoadBound, Policy, Standing};
use crate::ring::Member;
use crate::slow_start::SlowStart;
use crate::sticky::{Session, StickyRules};
use crate::{Rng, mix, weights};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A cluster with its plan, clock and random numbers.
struct Bed {
    plan: ClusterPlan,
    state: ClusterState,
    rng: Rng,
    now: Duration,
    events: Vec<Event>,
}

fn specs(count: u64) -> Vec<EndpointSpec> {
    (0..count).map(|n| EndpointSpec::new(EndpointId(mix(n, 5)), 1)).collect()
}

fn plan(rules: ClusterRules, endpoints: Vec<EndpointSpec>) -> ClusterPlan {
    ClusterPlan::build(rules, endpoints, Vec::new()).unwrap()
}

fn with_policy(policy: Policy) -> ClusterRules {
    ClusterRules { policy, ..ClusterRules::default() }
}

const RING: Policy = Policy::RingHash { virtual_nodes: 100, bound: None };
const MAGLEV: Policy = Policy::Maglev { rows: 65_537, bound: None };

fn all_policies() -> [Policy; 7] {
    let ewma = Policy::PeakEwma(crate::ewma::EwmaRules::default());
    [Policy::LeastRequest, Policy::RoundRobin, Policy::Random, Policy::LeastConnections, ewma, RING, MAGLEV]
}

impl Bed {
    fn new(plan: ClusterPlan) -> Self {
        let mut bed =
            Self { plan, state: ClusterState::new(7), rng: Rng::new(3), now: SECOND, events: Vec::new() };
        bed.state.adopt(&bed.plan, bed.now, &mut bed.events);
        bed
    }

    fn adopt(&mut self, plan: ClusterPlan) {
        self.plan = plan;
        self.state.adopt(&self.plan, self.now, &mut self.events);
    }

    fn pick(&mut self, exclude: Option<Slot>) -> Result<Slot, NoEndpoint> {
        let (random, key) = (self.rng.draw(), Some(self.rng.draw()));
        self.state.pick(&self.plan, Pick { now: self.now, random, key, exclude }, &mut self.events)
    }

    fn end(&mut self, slot: Slot, outcome: Outcome) {
        let random = self.rng.draw();
        self.state.finished(&self.plan, slot, (outcome, MS), (self.now, random), &mut self.events);
    }

    fn request(&mut self, outcome_of: impl Fn(Slot) -> Outcome) -> Option<Slot> {
        let slot = self.pick(None).ok()?;
        self.state.started(slot);
        self.end(slot, outcome_of(slot));
        Some(slot)
    }

    fn fail(&mut self, slot: Slot, times: u32) {
        for _ in 0..times {
            self.state.started(slot);
            self.end(slot, Outcome::ConnectFailed);
        }
    }

    /// Requests by slot; all succeed.
    fn counts(&mut self, requests: u32) -> Vec<u32> {
        let mut counts = vec![0; 64];
        for _ in 0..requests {
            if let Some(slot) = self.request(|_| Outcome::Success) {
                counts[slot.index()] += 1;
            }
        }
        counts
    }

    fn availability(&self, slot: Slot) -> Option<Availability> {
        self.state.view(&self.plan, slot, self.now).map(|view| view.availability)
    }
}

#[test]
fn every_policy_uses_every_endpoint_and_spares_who_is_out() {
    for policy in all_policies() {
        let mut bed = Bed::new(plan(with_policy(policy), specs(5)));
        let held = |bed: &mut Bed| {
            let mut counts = [0; 5];
            for _ in 0..500 {
                let slot = bed.pick(None).unwrap();
                bed.state.started(slot);
                counts[slot.index()] += 1;
            }
            counts
        };
        assert!(held(&mut bed).iter().all(|count| *count > 40), "{policy:?}");
        bed.state.set_health(Slot(1), Health::Unhealthy, SECOND);
        bed.state.ask(&bed.plan, Slot(3), Wanted::Drained, SECOND);
        let counts = held(&mut bed);
        assert!(counts[1] == 0 && counts[3] == 0 && counts[0] > 100, "{policy:?}: {counts:?}");
        for _ in 0..100 {
            assert!(![Some(Slot(1)), Some(Slot(3)), Some(Slot(2))].contains(&bed.pick(Some(Slot(2))).ok()));
        }
    }
}

#[test]
fn the_last_one_is_picked_again_rather_than_none() {
    for policy in all_policies() {
        let mut bed = Bed::new(plan(with_policy(policy), specs(1)));
        assert_eq!(bed.pick(Some(Slot(0))), Ok(Slot(0)), "{policy:?}");
        bed.state.ask(&bed.plan, Slot(0), Wanted::Drained, SECOND);
        assert_eq!(bed.pick(None), Err(NoEndpoint::NoneAvailable), "{policy:?}");
        assert_eq!(
            Bed::new(plan(with_policy(policy), vec![])).pick(None),
            Err(NoEndpoint::Empty),
            "{policy:?}"
        );
    }
}

#[test]
fn state_survives_any_order_of_a_new_plan() {
    let mut bed = Bed::new(plan(ClusterRules::default(), specs(10)));
    let (busy, ejected) = (bed.state.slot_at(2).unwrap(), bed.state.slot_at(7).unwrap());
    bed.state.started(busy);
    bed.fail(ejected, 5);
    let ids = [specs(10)[2].id, specs(10)[7].id];
    let mut others = specs(12);
    others.reverse();
    bed.adopt(plan(ClusterRules::default(), others));
    assert_eq!(ids.map(|id| bed.state.slot_of(id)), [Some(busy), Some(ejected)]);
    assert_eq!(bed.state.view(&bed.plan, busy, bed.now).unwrap().in_flight, 1);
    assert!(matches!(bed.availability(ejected), Some(Availability::Ejected { .. })));
    bed.end(busy, Outcome::Success);
    assert_eq!(bed.state.in_flight(), 0);
}

#[test]
fn a_removed_endpoint_ends_its_requests_and_then_its_slot() {
    let mut bed = Bed::new(plan(ClusterRules::default(), specs(3)));
    let gone = bed.state.slot_at(0).unwrap();
    bed.state.started(gone);
    bed.state.started(gone);
    bed.adopt(plan(ClusterRules::default(), specs(3)[1..].to_vec()));
    assert!((0..100).all(|_| bed.pick(None) != Ok(gone)));
    bed.end(gone, Outcome::Success);
    assert!(!bed.events.contains(&Event::Released { slot: gone }));
    bed.end(gone, Outcome::Success);
    assert!(bed.events.contains(&Event::Released { slot: gone }));
    let mut more = specs(3)[1..].to_vec();
    more.push(EndpointSpec::new(EndpointId(1), 1));
    bed.adopt(plan(ClusterRules::default(), more));
    assert_eq!(bed.state.slot_of(EndpointId(1)), Some(gone), "the slot is used again");
    assert_eq!(bed.state.view(&bed.plan, gone, bed.now).unwrap().in_flight, 0);
}

#[test]
fn ejected_by_its_failures_and_back_slowly() {
    let mut bed = Bed::new(plan(ClusterRules::default(), specs(10)));
    bed.fail(Slot(4), 5);
    let Some(Event::Ejected { slot, until, ejected: 1, of: 10, .. }) = bed.events.first().copied() else {
        panic!("{:?}", bed.events)
    };
    assert_eq!(slot, Slot(4));
    assert_eq!(bed.counts(1000)[4], 0);
    bed.now = until;
    let share = bed.counts(10_000)[4];
    assert!(bed.events.contains(&Event::Returned { slot: Slot(4) }));
    assert!((60..180).contains(&share), "a tenth of a fair 1,000 at first: {share}");
    bed.now += 30 * SECOND;
    assert!((400..650).contains(&bed.counts(10_000)[4]), "half after half of the window");
    bed.now += 31 * SECOND;
    assert!(bed.counts(10_000)[4] > 850);
}

#[test]
fn tiny_clusters_under_every_failure() {
    for (endpoints, ejected_most) in [(1u64, 0), (2, 1), (3, 1), (5, 1)] {
        let mut bed = Bed::new(plan(ClusterRules::default(), specs(endpoints)));
        for _ in 0..200 {
            bed.request(|_| Outcome::ServerError);
        }
        let out = bed
            .state
            .views(&bed.plan, bed.now)
            .filter(|v| matches!(v.availability, Availability::Ejected { .. }));
        assert_eq!(out.count(), ejected_most, "of {endpoints}");
        assert!(bed.pick(None).is_ok(), "{endpoints}: somebody is always asked");
        assert!(!bed.state.is_in_panic(), "ejection alone never leads there");
    }
}

#[test]
fn panic_spreads_over_all_but_who_drains_for_every_policy() {
    for policy in [Policy::LeastRequest, RING, MAGLEV, Policy::RoundRobin] {
        let mut bed = Bed::new(plan(with_policy(policy), specs(4)));
        bed.state.ask(&bed.plan, Slot(3), Wanted::Drained, SECOND);
        bed.state.set_health(Slot(0), Health::Unhealthy, SECOND);
        let counts = bed.counts(300);
        assert!(!bed.state.is_in_panic() && counts[0] == 0 && counts[3] == 0, "{policy:?}: {counts:?}");
        bed.state.set_health(Slot(1), Health::Unhealthy, SECOND);
        let counts = bed.counts(600);
        assert!(bed.state.is_in_panic());
        assert!(counts[..3].iter().all(|count| *count > 100) && counts[3] == 0, "{policy:?}: {counts:?}");
        let on = Event::Panic { level: 0, is_on: true, available: 1, of: 3 };
        assert_eq!(bed.events.iter().filter(|event| **event == on).count(), 1, "told once");
        bed.state.set_health(Slot(2), Health::Unhealthy, SECOND);
        assert!(bed.counts(100)[..3].iter().all(|count| *count > 0), "{policy:?}: none is healthy");
        bed.state.set_health(Slot(0), Health::Healthy, SECOND);
        bed.state.set_health(Slot(1), Health::Healthy, SECOND);
        assert_eq!(bed.counts(100)[2], 0);
        assert!(matches!(bed.events.last(), Some(Event::Panic { is_on: false, .. })));
        for slot in 0..3 {
            bed.state.ask(&bed.plan, Slot(slot), Wanted::Drained, SECOND);
        }
        assert_eq!(bed.pick(None), Err(NoEndpoint::NoneAvailable), "draining is not revived by panic");
    }
}

/// A 20 s window with the given weights; answers the share of the first endpoint in per cent of its fair one.
fn slow_bed(weights: [u32; 2]) -> Bed {
    let mut endpoints = specs(2);
    for (endpoint, weight) in endpoints.iter_mut().zip(weights) {
        endpoint.weight = weight;
    }
    let rules = ClusterRules {
        slow_start: Some(SlowStart::new(20 * SECOND, 1.0, 100)),
        policy: Policy::Random,
        ..ClusterRules::default()
    };
    let mut bed = Bed::new(plan(rules.clone(), endpoints[1..].to_vec()));
    bed.adopt(plan(rules, endpoints));
    bed
}

#[test]
fn slow_start_rises_without_a_burst_whatever_the_weights() {
    for weights in [[1, 1], [100, 1], [1, 100]] {
        let mut bed = slow_bed(weights);
        let new = bed.state.slot_at(0).unwrap();
        let factor = |bed: &mut Bed| {
            bed.pick(None).unwrap();
            let weight = |slot: Slot| f64::from(bed.state.loads[slot.index()].weight);
            let other = bed.state.slot_at(1).unwrap();
            weight(new) / weight(other) * f64::from(weights[1]) / f64::from(weights[0])
        };
        let mut last = factor(&mut bed);
        assert!((0.09..=0.11).contains(&last), "the floor: {last}");
        for _ in 0..200 {
            bed.now += 100 * MS;
            let next = factor(&mut bed);
            assert!(next >= last && next <= 1.0, "{weights:?}: {last} to {next}");
            last = next;
        }
        bed.now += SECOND;
        assert!((0.99..=1.0).contains(&factor(&mut bed)), "full at the end");
        // Down for longer than the window, and back: from the floor again.
        bed.state.set_health(new, Health::Unhealthy, bed.now);
        bed.now += 60 * SECOND;
        bed.state.set_health(new, Health::Healthy, bed.now);
        assert!((0.09..=0.11).contains(&factor(&mut bed)));
    }
}

#[test]
fn all_new_together_share_evenly() {
    let mut bed = slow_bed([1, 1]);
    for slot in [Slot(0), Slot(1)] {
        bed.state.set_health(slot, Health::Unhealthy, bed.now);
        bed.state.set_health(slot, Health::Healthy, bed.now);
    }
    let counts = bed.counts(2000);
    assert!(counts[0].abs_diff(1000) < 150 && counts[0] + counts[1] == 2000, "{counts:?}");
}

#[test]
fn flapping_and_returning_start_over() {
    let mut bed = slow_bed([1, 1]);
    let new = bed.state.slot_at(0).unwrap();
    for _ in 0..5 {
        bed.now += 5 * SECOND;
        bed.state.set_health(new, Health::Unhealthy, bed.now);
        bed.state.set_health(new, Health::Healthy, bed.now);
        assert_eq!(bed.state.view(&bed.plan, new, bed.now).unwrap().slow_start, 100);
    }
    // Removed and added again with the same address while a request is still there.
    bed.now += 30 * SECOND;
    bed.state.started(new);
    let (rules, all) = (bed.plan.rules.clone(), bed.plan.endpoints().to_vec());
    bed.adopt(plan(rules.clone(), all[1..].to_vec()));
    bed.adopt(plan(rules.clone(), all.clone()));
    assert_eq!(bed.state.slot_of(all[0].id), Some(new));
    assert_eq!(bed.state.view(&bed.plan, new, bed.now).unwrap().slow_start, 100);
    let mut draining = all.clone();
    draining[0].standing = Standing::Draining;
    bed.adopt(plan(rules.clone(), draining));
    assert!(!bed.state.takes_requests(new));
    bed.now += 60 * SECOND;
    bed.adopt(plan(rules, all));
    assert_eq!(bed.state.view(&bed.plan, new, bed.now).unwrap().slow_start, 100, "back from draining");
}

#[test]
fn log_only_tells_and_does_nothing() {
    let outlier = crate::outlier::OutlierRules { mode: crate::outlier::Mode::LogOnly, ..Default::default() };
    let mut bed =
        Bed::new(plan(ClusterRules { outlier: Some(outlier), ..ClusterRules::default() }, specs(10)));
    bed.fail(Slot(4), 5);
    assert!(matches!(bed.events[..], [Event::Ejected { slot: Slot(4), .. }]));
    assert_eq!(bed.availability(Slot(4)), Some(Availability::Available));
    assert!(bed.counts(1000)[4] > 50);
}

#[test]
fn an_interval_ejects_the_slow_one() {
    let latency = Some(crate::outlier::LatencyRules::default());
    let outlier = crate::outlier::OutlierRules { latency, ..Default::default() };
    let mut bed =
        Bed::new(plan(ClusterRules { outlier: Some(outlier), ..ClusterRules::default() }, specs(10)));
    for n in 0..2000u32 {
        let slot = bed.pick(None).unwrap();
        bed.state.started(slot);
        let latency = if slot == Slot(6) { 90 * MS } else { 10 * MS };
        let ended = (Outcome::Success, latency);
        bed.state.finished(&bed.plan, slot, ended, (bed.now, u64::from(n)), &mut bed.events);
        bed.now += 6 * MS;
    }
    assert!(matches!(bed.availability(Slot(6)), Some(Availability::Ejected { .. })), "{:?}", bed.events);
    assert_eq!(bed.events.len(), 1);
}

#[test]
fn keys_keep_their_endpoint_and_spill_when_it_is_full() {
    for unbounded in [RING, MAGLEV] {
        let mut bed = Bed::new(plan(with_policy(unbounded), specs(10)));
        let by = |key| Pick { now: SECOND, random: 1, key: Some(key), exclude: None };
        let mut owner = |key| bed.state.pick(&bed.plan, by(key), &mut bed.events).unwrap();
        assert!((0..100).all(|key| owner(key) == owner(key)));
    }
    let bound = Some(LoadBound(125));
    for policy in [Policy::RingHash { virtual_nodes: 256, bound }, Policy::Maglev { rows: 65_537, bound }] {
        let mut bed = Bed::new(plan(with_policy(policy), specs(10)));
        let mut counts = [0u32; 10];
        for _ in 0..1000 {
            // One key only: a hot one.
            let by = Pick { now: SECOND, random: 1, key: Some(12345), exclude: None };
            let slot = bed.state.pick(&bed.plan, by, &mut bed.events).unwrap();
            bed.state.started(slot);
            counts[slot.index()] += 1;
        }
        let most = counts.iter().max().unwrap();
        assert!((120..=126).contains(most), "{policy:?}: {counts:?}");
        assert!(counts.iter().filter(|count| **count > 0).count() >= 8, "{counts:?}");
    }
}

#[test]
fn keys_of_an_ejected_endpoint_spread_and_come_back() {
    let mut bed = Bed::new(plan(with_policy(RING), specs(10)));
    let owners = |bed: &mut Bed| -> Vec<Slot> {
        let by = |key| Pick { now: bed.now, random: 1, key: Some(mix(key, 9)), exclude: None };
        (0..5_000).map(|key| bed.state.pick(&bed.plan, by(key), &mut bed.events).unwrap()).collect()
    };
    let before = owners(&mut bed);
    bed.state.set_health(Slot(3), Health::Unhealthy, SECOND);
    let during = owners(&mut bed);
    let moved: Vec<_> = before.iter().zip(&during).filter(|(old, new)| old != new).collect();
    assert!(moved.iter().all(|(old, _)| **old == Slot(3)) && moved.len() > 300);
    let mut heirs: Vec<_> = moved.iter().map(|(_, new)| **new).collect();
    heirs.sort_unstable();
    heirs.dedup();
    assert_eq!(heirs.len(), 9, "spread over all others");
    bed.state.set_health(Slot(3), Health::Healthy, SECOND);
    assert_eq!(owners(&mut bed), before);
}

/// A sticky cluster whose plans come from one history.
struct StickyBed {
    bed: Bed,
    history: RingHistory,
}

const STICKY: StickyRules = StickyRules { overlap: Duration::from_secs(600), virtual_nodes: 100 };

fn sticky_plan(history: &mut RingHistory, endpoints: Vec<EndpointSpec>, now: Duration) -> ClusterPlan {
    let serving = endpoints.iter().filter(|endpoint| endpoint.standing == Standing::Serving);
    let members = serving.map(|e| Member { id: e.id, weight: e.weight }).collect();
    history.push(&STICKY, members, now, RETIRED_POINTS_MAX);
    let rules = ClusterRules { sticky: Some(STICKY), ..ClusterRules::default() };
    ClusterPlan::build(rules, endpoints, history.rings(&STICKY)).unwrap()
}

impl StickyBed {
    fn new(count: u64) -> Self {
        let mut history = RingHistory::default();
        let bed = Bed::new(sticky_plan(&mut history, specs(count), SECOND));
        Self { bed, history }
    }

    fn adopt(&mut self, endpoints: Vec<EndpointSpec>) {
        let plan = sticky_plan(&mut self.history, endpoints, self.bed.now);
        self.bed.adopt(plan);
    }

    fn place(&mut self, session: Option<Session>) -> (Slot, SessionFate, Option<Session>) {
        let random = (self.bed.rng.draw(), self.bed.rng.draw());
        let bed = &mut self.bed;
        let placed = bed.state.place(&bed.plan, session, random, bed.now, &mut bed.events).unwrap();
        (placed.slot, placed.fate, placed.rewrite)
    }

    /// New sessions at one slot.
    fn sessions_at(&mut self, slot: Slot, count: usize) -> Vec<Session> {
        let mut sessions = Vec::new();
        while sessions.len() < count {
            let (at, fate, session) = self.place(None);
            assert_eq!(fate, SessionFate::New);
            sessions.extend(session.filter(|_| at == slot));
        }
        sessions
    }
}

#[test]
fn sessions_stay_and_are_renewed_when_the_ring_changes() {
    let mut bed = StickyBed::new(5);
    let sessions: Vec<_> =
        (0..500).map(|_| bed.place(None)).map(|(slot, _, session)| (slot, session.unwrap())).collect();
    for (slot, session) in &sessions {
        assert_eq!(bed.place(Some(*session)), (*slot, SessionFate::Kept, None));
    }
    bed.adopt(specs(6));
    let mut renewed = 0;
    for (slot, session) in &sessions {
        let (now_at, fate, rewrite) = bed.place(Some(*session));
        assert_eq!(now_at, *slot, "{fate:?}");
        if let Some(rewrite) = rewrite {
            assert_eq!((rewrite.id, fate), (session.id, SessionFate::Renewed));
            assert_eq!(bed.place(Some(rewrite)), (*slot, SessionFate::Kept, None));
            renewed += 1;
        }
    }
    assert!((350..480).contains(&renewed), "five sixths have the same place on both rings: {renewed}");
    // The overlap is over: those that have another place on the present ring go there.
    bed.bed.now += 601 * SECOND;
    bed.adopt(specs(6));
    let fates: Vec<_> = sessions.iter().map(|(_, session)| bed.place(Some(*session))).collect();
    assert!(fates.iter().all(|(_, fate, rewrite)| *fate == SessionFate::RingExpired && rewrite.is_some()));
}

#[test]
fn a_draining_endpoint_keeps_its_sessions_for_the_overlap() {
    let mut bed = StickyBed::new(5);
    let slot = bed.bed.state.slot_at(2).unwrap();
    let sessions = bed.sessions_at(slot, 50);
    // Taken out of the config: it drains.
    let mut left = specs(5);
    left.remove(2);
    bed.adopt(left.clone());
    bed.bed.now += 300 * SECOND;
    for session in &sessions {
        assert_eq!(bed.place(Some(*session)), (slot, SessionFate::Kept, None));
    }
    for _ in 0..200 {
        assert_ne!(bed.place(None).0, slot, "no new session");
        assert_ne!(bed.bed.pick(None), Ok(slot));
    }
    bed.bed.now += 301 * SECOND;
    for session in &sessions {
        let (now_at, fate, rewrite) = bed.place(Some(*session));
        assert!(now_at != slot && fate == SessionFate::RingExpired && rewrite.is_some(), "{fate:?}");
    }
    assert!(bed.bed.events.contains(&Event::Released { slot }));
}

/// Nobody checks the health of one that the config does not have, and a process that was told of it by another knows none.
#[test]
fn sessions_leave_a_removed_endpoint_that_cannot_be_reached() {
    let mut bed = StickyBed::new(5);
    let slot = bed.bed.state.slot_at(2).unwrap();
    let sessions = bed.sessions_at(slot, 20);
    let mut left = specs(5);
    left.remove(2);
    bed.adopt(left);
    for outcome in [Outcome::Success, Outcome::ServerError, Outcome::TimedOut] {
        assert_eq!(bed.place(Some(sessions[0])).0, slot);
        bed.bed.state.started(slot);
        bed.bed.end(slot, outcome);
    }
    assert_eq!(bed.place(Some(sessions[0])).0, slot, "it answers");
    bed.bed.state.started(slot);
    bed.bed.end(slot, Outcome::ConnectFailed);
    for session in sessions {
        let (now_at, _, rewrite) = bed.place(Some(session));
        assert!(now_at != slot && rewrite.is_some());
    }
}

#[test]
fn what_an_operator_drains_keeps_its_sessions_for_the_overlap_whatever_the_config_says() {
    let mut bed = StickyBed::new(5);
    let slot = bed.bed.state.slot_at(2).unwrap();
    let sessions = bed.sessions_at(slot, 50);
    bed.bed.state.ask(&bed.bed.plan, slot, Wanted::Drained, bed.bed.now);
    bed.bed.now += 300 * SECOND;
    // Asking again does not begin the overlap anew, and neither does another plan with the endpoint in it.
    bed.bed.state.ask(&bed.bed.plan, slot, Wanted::Drained, bed.bed.now);
    bed.adopt(specs(5));
    for session in &sessions {
        assert_eq!(bed.place(Some(*session)), (slot, SessionFate::Kept, None));
    }
    // Out of the config and in again.
    let mut left = specs(5);
    left.remove(2);
    bed.adopt(left);
    bed.adopt(specs(5));
    for _ in 0..200 {
        assert!(bed.place(None).0 != slot && bed.bed.pick(None) != Ok(slot), "nothing new");
    }
    bed.bed.now += 301 * SECOND;
    let (moved_to, fate, rewrite) = bed.place(Some(sessions[0]));
    assert!(moved_to != slot && fate == SessionFate::EndpointGone && rewrite.is_some(), "{fate:?}");
    // Resumed, it starts slowly.
    bed.bed.state.ask(&bed.bed.plan, slot, Wanted::AsConfigured, bed.bed.now);
    assert_eq!(bed.bed.availability(slot), Some(Availability::Available));
    let slow_since = bed.bed.state.slots[slot.index()].and_then(|known| known.slow_since);
    assert_eq!(slow_since, Some(bed.bed.now));
    assert_eq!(bed.place(Some(sessions[1])).0, slot);
}

#[test]
fn resuming_does_not_undo_a_drain_of_the_config() {
    let draining = |standing| {
        let mut all = specs(3);
        all[0].standing = standing;
        plan(ClusterRules::default(), all)
    };
    let mut bed = Bed::new(draining(Standing::Draining));
    let slot = bed.state.slot_at(0).unwrap();
    for wanted in [Wanted::Drained, Wanted::AsConfigured] {
        bed.state.ask(&bed.plan, slot, wanted, bed.now);
        assert!(matches!(bed.availability(slot), Some(Availability::Draining(_))), "{wanted:?}");
    }
    bed.adopt(draining(Standing::Serving));
    assert_eq!(bed.availability(slot), Some(Availability::Available));
}

#[test]
fn sessions_leave_an_unhealthy_endpoint_at_once_and_do_not_return() {
    let mut bed = StickyBed::new(5);
    let slot = bed.bed.state.slot_at(2).unwrap();
    for session in bed.sessions_at(slot, 20) {
        let now = bed.bed.now;
        bed.bed.state.set_health(slot, Health::Unhealthy, now);
        let (moved_to, fate, rewrite) = bed.place(Some(session));
        assert!(moved_to != slot && fate == SessionFate::EndpointGone);
        bed.bed.state.set_health(slot, Health::Healthy, now);
        assert_eq!(bed.place(rewrite), (moved_to, SessionFate::Kept, None), "the cookie was written anew");
    }
    // Unhealthy while it drains: at once, too.
    let session = bed.sessions_at(slot, 1)[0];
    let mut left = specs(5);
    left.remove(2);
    bed.adopt(left);
    assert_eq!(bed.place(Some(session)).0, slot);
    bed.bed.state.set_health(slot, Health::Unhealthy, bed.bed.now);
    assert_ne!(bed.place(Some(session)).0, slot);
}

#[test]
fn a_ring_that_nobody_knows_is_too_old() {
    let mut bed = StickyBed::new(3);
    let session = Session { id: [9; 16], ring: crate::ring::RingVersion(1) };
    let (_, fate, rewrite) = bed.place(Some(session));
    assert_eq!((fate, rewrite.map(|session| session.id)), (SessionFate::RingExpired, Some([9; 16])));
    for slot in 0..3 {
        bed.bed.state.ask(&bed.bed.plan, Slot(slot), Wanted::Drained, SECOND);
    }
    let bed = &mut bed.bed;
    let placed = bed.state.place(&bed.plan, None, (1, 2), SECOND, &mut bed.events);
    assert_eq!(placed, Err(NoEndpoint::NoneAvailable));
}

#[test]
fn sessions_see_ejections_end_without_any_other_pick() {
    let mut bed = StickyBed::new(5);
    bed.bed.fail(Slot(2), 5);
    let placed_there = |bed: &mut StickyBed| (0..500).any(|_| bed.place(None).0 == Slot(2));
    assert!(!placed_there(&mut bed));
    bed.bed.now += 34 * SECOND;
    assert!(placed_there(&mut bed));
}

#[test]
fn a_retry_leaves_the_zone_when_the_one_that_failed_was_alone_there() {
    for policy in [Policy::LeastRequest, Policy::RoundRobin, Policy::Random, Policy::LeastConnections] {
        let zones = Some(ZoneRules { local: 1, origin_share: WHOLE / 3 });
        let rules = ClusterRules { zones, ..with_policy(policy) };
        let in_zone =
            |at: usize, spec: EndpointSpec| EndpointSpec { zone: if at == 0 { 1 } else { 2 }, ..spec };
        let all = specs(3).into_iter().enumerate().map(|(at, spec)| in_zone(at, spec)).collect();
        let mut bed = Bed::new(plan(rules, all));
        let local = bed.state.slot_at(0).unwrap();
        let mut beyond = [0; 3];
        for _ in 0..100 {
            assert_eq!(bed.pick(None), Ok(local), "{policy:?}");
            let other = bed.pick(Some(local)).unwrap();
            assert!(
                bed.state.is_beyond_zone(&bed.plan, other) && !bed.state.is_beyond_zone(&bed.plan, local)
            );
            beyond[other.index()] += 1;
        }
        assert!(beyond[1] > 20 && beyond[2] > 20, "{policy:?}: {beyond:?}");
        // What is out is no way out either.
        for position in [1, 2] {
            let slot = bed.state.slot_at(position).unwrap();
            bed.state.set_health(slot, Health::Unhealthy, bed.now);
        }
        assert_eq!(bed.pick(Some(local)), Ok(local), "the one that failed is better than none");
    }
}

#[test]
fn a_retry_beyond_the_zone_goes_by_level_weight_and_slow_start() {
    let zones = Some(ZoneRules { local: 1, origin_share: WHOLE / 8 });
    let slow_start = Some(SlowStart::new(100 * SECOND, 1.0, 100));
    let rules = ClusterRules { zones, slow_start, ..with_policy(Policy::LeastRequest) };
    let spec = |n: u64, weight: u32, zone: u16, priority: u8| EndpointSpec {
        zone,
        priority,
        ..EndpointSpec::new(EndpointId(mix(n, 5)), weight)
    };
    // The first level: a lone local one, two that are out, and two of the weights 1 and 3 elsewhere.
    let mut all =
        vec![spec(0, 1, 1, 0), spec(1, 1, 2, 0), spec(2, 3, 3, 0), spec(3, 1, 2, 0), spec(4, 1, 2, 0)];
    all.extend([spec(5, 1, 2, 1), spec(6, 1, 3, 1)]);
    let mut bed = Bed::new(plan(rules.clone(), all.clone()));
    // A new one of the weight 4, at half of its slow start.
    all.push(spec(7, 4, 2, 1));
    bed.adopt(plan(rules, all));
    bed.now += 50 * SECOND;
    let slots: Vec<_> = (0..8).map(|position| bed.state.slot_at(position).unwrap()).collect();
    for out in [3, 4] {
        bed.state.set_health(slots[out], Health::Unhealthy, bed.now);
    }
    // 3 of 5: 84 % of the requests are the first level's.
    const DRAWS: u32 = 100_000;
    let mut counts = [0u32; 8];
    assert_eq!(bed.pick(None).map(|_| ()), Ok(()), "brings the weights up to date");
    for _ in 0..DRAWS {
        let by = (bed.now, bed.rng.draw());
        let slot = weights::pick_beyond_zone(&bed.state, &bed.plan, slots[0], by).unwrap();
        counts[slots.iter().position(|known| *known == slot).unwrap()] += 1;
    }
    let half = f64::from(bed.state.view(&bed.plan, slots[7], bed.now).unwrap().slow_start) / 1000.0;
    assert!((0.5..0.6).contains(&half), "{half}");
    let second = 0.16 / (2.0 + 4.0 * half);
    let expected = [0.0, 0.21, 0.63, 0.0, 0.0, second, second, 4.0 * half * second];
    for (at, (count, share)) in counts.iter().zip(expected).enumerate() {
        let found = f64::from(*count) / f64::from(DRAWS);
        assert!((found - share).abs() < 0.01, "{at}: {found}, not {share}: {counts:?}");
    }
}

#[test]
fn what_proves_well_counts_before_it_ends() {
    // Connections that live for days: failures between them are not in a row.
    let rules =
        ClusterRules { outlier: Some(crate::outlier::OutlierRules::default()), ..ClusterRules::default() };
    let mut bed = Bed::new(plan(rules, specs(3)));
    let slot = bed.pick(None).unwrap();
    for _ in 0..20 {
        bed.state.started(slot);
        let random = bed.rng.draw();
        let end = (Outcome::Success, MS);
        assert!(bed.state.learn(&bed.plan, slot, end, (bed.now, random), &mut bed.events));
        bed.fail(slot, 1);
    }
    assert_eq!(bed.events, []);
    assert_eq!(bed.state.view(&bed.plan, slot, bed.now).map(|view| view.in_flight), Some(20));
    bed.fail(slot, 5);
    assert!(matches!(bed.events[..], [Event::Ejected { .. }]), "{:?}", bed.events);
}
