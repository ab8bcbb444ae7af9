//! One cluster on one core: the mutable state behind every pick.
//!
//! State belongs to endpoints by identity and survives changes of the plan: [`ClusterState::adopt`] gives every endpoint
//! of the new plan the slot that it had. A [`Slot`] stays valid until the endpoint is out of the plan, its
//! last request is over and its sessions' time has passed. There are no timers: what time changes (the end of
//! an ejection, a step of a slow start) happens in the first pick after it is due, for the price of one
//! comparison in all others.
//!
//! Invariants: `loads`, `averages`, `ranks` and `slots` have one entry a slot; a weight of 0 in `loads` is an endpoint
//! that takes no request; the sampler holds exactly the others. Called by the exchange through the pool.

use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::endpoint::{Availability, Drain, DrainCause, EndpointId, Health, Slot, Wanted};
use crate::ewma::{self, PeakEwma};
use crate::hash::mix;
use crate::least_connections;
use crate::levels::LevelShare;
use crate::outcome::Outcome;
use crate::outlier::{self, Cause, EndpointOutlier, Mode};
use crate::p2c::{self, Load};
use crate::plan::{ClusterPlan, EndpointSpec, Policy, Standing};
use crate::round_robin::RoundRobin;
use crate::sampler::Sampler;
use crate::slow_start;
use crate::time::stored;
use crate::{hashing, weights};

/// Something that the operator should see: log line, counter and gauge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// With the numbers that decided; in log-only mode nothing was done.
    Ejected { slot: Slot, cause: Cause, until: Duration, ejected: u32, of: u32, percent_max: u32, mode: Mode },
    /// It would have been, but too many are out.
    NotEjected { slot: Slot, cause: Cause, ejected: u32, of: u32, percent_max: u32 },
    /// Its time is over; it starts slowly.
    Returned { slot: Slot },
    /// Health is ignored from now on, or no more.
    Panic { level: usize, is_on: bool, available: u32, of: u32 },
    /// The slot is free: nothing refers to the endpoint any more.
    Released { slot: Slot },
}

/// Why nothing could be picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoEndpoint {
    /// The plan has none.
    Empty,
    /// None takes requests.
    NoneAvailable,
}

/// What a pick goes by.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pick {
    pub now: Duration,
    /// 64 random bits.
    pub random: u64,
    /// Hash of the request's key, for policies that go by it.
    pub key: Option<u64>,
    /// What a retry has just failed at: avoided where there is another.
    pub exclude: Option<Slot>,
}

/// What is known of one endpoint apart from its load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) spec: EndpointSpec,
    pub(crate) is_planned: bool,
    pub(crate) wanted: Wanted,
    pub(crate) drain: Option<Drain>,
    pub(crate) health: Health,
    pub(crate) outlier: EndpointOutlier,
    /// When its slow start began; None when that is over.
    pub(crate) slow_since: Option<Duration>,
}

/// What `shardctl` shows of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointView {
    pub slot: Slot,
    pub id: EndpointId,
    pub weight: u32,
    /// Part of its weight that slow start leaves, in thousandths.
    pub slow_start: u32,
    pub in_flight: u32,
    /// Part of the requests that it is weighed for now, in millionths; 0: it gets none.
    pub share: u32,
    pub zone: u16,
    pub availability: Availability,
    /// Gets requests although it is not available.
    pub in_panic: bool,
}

#[derive(Debug)]
pub struct ClusterState {
    seed: u64,
    pub(crate) slots: Vec<Option<Known>>,
    pub(crate) loads: Vec<Load>,
    averages: Vec<PeakEwma>,
    ranks: Vec<u64>,
    pub(crate) by_position: Vec<Slot>,
    by_id: FxHashMap<EndpointId, Slot>,
    free: Vec<Slot>,
    sampler: Sampler,
    turn: RoundRobin,
    pub(crate) levels: Vec<LevelShare>,
    pub(crate) in_flight: u64,
    /// Sum over `loads`.
    pub(crate) weight: u64,
    /// When time changes something next.
    due: Duration,
    /// The end of the interval for success rate and latency.
    interval_ends: Duration,
    is_stale: bool,
}

/// Least time between two steps of slow starts, so that many endpoints that start at different moments do not rebuild
/// the weights all the time.
const SLOW_START_TICK: Duration = Duration::from_millis(250);

impl ClusterState {
    /// An empty cluster. Each core has its own `seed`, or all cores go through the endpoints in the same order.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            slots: Vec::new(),
            loads: Vec::new(),
            averages: Vec::new(),
            ranks: Vec::new(),
            by_position: Vec::new(),
            by_id: FxHashMap::default(),
            free: Vec::new(),
            sampler: Sampler::default(),
            turn: RoundRobin::new(seed),
            levels: Vec::new(),
            in_flight: 0,
            weight: 0,
            due: Duration::MAX,
            interval_ends: Duration::MAX,
            is_stale: true,
        }
    }

    /// Goes over to a plan. Endpoints that it names keep what is known of them; those that it does not name drain; new
    /// ones start slowly unless the cluster had none before. O(endpoints), about 0.1 µs each.
    pub fn adopt(&mut self, plan: &ClusterPlan, now: Duration, events: &mut Vec<Event>) {
        let is_first = self.by_position.is_empty();
        for known in self.slots.iter_mut().flatten() {
            known.is_planned = false;
        }
        self.by_position.clear();
        for spec in &plan.endpoints {
            let (slot, is_new) = match self.by_id.get(&spec.id) {
                Some(slot) => (*slot, false),
                None => (self.allot(*spec), true),
            };
            self.by_position.push(slot);
            if let Some(known) = &mut self.slots[slot.index()] {
                let starts = known.take_over(*spec, plan, now) || is_new;
                known.slow_since = if starts && !is_first { Some(now) } else { known.slow_since };
            }
        }
        for known in self.slots.iter_mut().flatten().filter(|known| !known.is_planned) {
            let sessions_until = now.saturating_add(plan.session_overlap());
            known.drain.get_or_insert(Drain { sessions_until, why: DrainCause::Removed }).why =
                DrainCause::Removed;
        }
        self.take_in_departed(plan, now);
        self.interval_ends = match &plan.rules.outlier {
            Some(rules) if rules.success_rate.is_some() || rules.latency.is_some() => {
                self.interval_ends.min(now.saturating_add(rules.interval))
            }
            _ => Duration::MAX,
        };
        self.refresh(plan, now, events);
    }

    fn take_in_departed(&mut self, plan: &ClusterPlan, now: Duration) {
        for (id, sessions_until) in plan.departed.iter().copied().filter(|(_, until)| now < *until) {
            if self.by_id.contains_key(&id) {
                continue;
            }
            let slot = self.allot(EndpointSpec::new(id, 1));
            if let Some(known) = &mut self.slots[slot.index()] {
                known.drain = Some(Drain { sessions_until, why: DrainCause::Removed });
            }
        }
    }

    fn allot(&mut self, spec: EndpointSpec) -> Slot {
        let known = Some(Known::new(spec));
        let rank = mix(spec.id.0, self.seed);
        let slot = if let Some(slot) = self.free.pop() {
            self.slots[slot.index()] = known;
            self.loads[slot.index()] = Load::default();
            self.averages[slot.index()] = PeakEwma::default();
            self.ranks[slot.index()] = rank;
            slot
        } else {
            self.slots.push(known);
            self.loads.push(Load::default());
            self.averages.push(PeakEwma::default());
            self.ranks.push(rank);
            Slot(stored(self.slots.len() - 1))
        };
        self.by_id.insert(spec.id, slot);
        slot
    }

    /// The endpoint for a request. It is counted by [`Self::started`].
    ///
    /// # Errors
    /// There is none; the caller answers 503 at once.
    #[inline]
    pub fn pick(
        &mut self,
        plan: &ClusterPlan,
        by: Pick,
        events: &mut Vec<Event>,
    ) -> Result<Slot, NoEndpoint> {
        self.refresh_if_due(plan, by.now, events);
        let picked = self.choose(plan, &by, by.exclude.map(|slot| slot.0));
        match picked {
            Some(slot) => Ok(Slot(slot)),
            None => self.pick_again(plan, &by),
        }
    }

    /// Another zone is better than the one that failed, and that is better than none.
    #[cold]
    fn pick_again(&mut self, plan: &ClusterPlan, by: &Pick) -> Result<Slot, NoEndpoint> {
        let none = if self.by_position.is_empty() { NoEndpoint::Empty } else { NoEndpoint::NoneAvailable };
        let Some(failed) = by.exclude else { return Err(none) };
        let beyond =
            plan.rules.zones.and_then(|_| weights::pick_beyond_zone(self, plan, failed, (by.now, by.random)));
        beyond.or_else(|| self.choose(plan, by, None).map(Slot)).ok_or(none)
    }

    #[inline]
    fn choose(&mut self, plan: &ClusterPlan, by: &Pick, exclude: Option<u32>) -> Option<u32> {
        match plan.rules.policy {
            Policy::LeastRequest => p2c::pick(&self.sampler, &self.loads, by.random, exclude),
            Policy::RoundRobin => self.turn.pick(&self.sampler, exclude),
            Policy::Random => self.sampler.draw(by.random, exclude),
            Policy::LeastConnections => least_connections::pick(&self.loads, &self.ranks, exclude),
            Policy::PeakEwma(rules) => {
                ewma::pick(&self.sampler, &self.loads, &self.averages, &rules, (by.random, by.now), exclude)
            }
            Policy::RingHash { bound, .. } | Policy::Maglev { bound, .. } => match by.key {
                Some(key) => hashing::pick(self, plan, key, bound, exclude),
                None => p2c::pick(&self.sampler, &self.loads, by.random, exclude),
            },
        }
    }

    /// Counts a request (a stream, a connection of a TCP cluster) that goes to the endpoint.
    #[inline]
    pub fn started(&mut self, slot: Slot) {
        if let Some(load) = self.loads.get_mut(slot.index()) {
            load.in_flight += 1;
            self.in_flight += 1;
        }
    }

    /// Counts an attempt that is over, and learns from how it ended. `latency` is to the response head.
    #[inline]
    pub fn finished(
        &mut self,
        plan: &ClusterPlan,
        slot: Slot,
        (outcome, latency): (Outcome, Duration),
        (now, random): (Duration, u64),
        events: &mut Vec<Event>,
    ) {
        let Some(load) = self.loads.get_mut(slot.index()) else { return };
        debug_assert!(load.in_flight > 0, "an attempt ends once");
        load.in_flight = load.in_flight.saturating_sub(1);
        let is_last = load.in_flight == 0;
        self.in_flight = self.in_flight.saturating_sub(1);
        if self.learn(plan, slot, (outcome, latency), (now, random), events) || !is_last {
            return;
        }
        let drain = self.slots[slot.index()].as_ref().and_then(|known| known.drain);
        if drain.is_none_or(|drain| now >= drain.sessions_until) {
            self.release_over(now, events);
        }
    }

    /// Learns from an attempt that goes on: a connection of a TCP cluster that proved well or badly, and may then live for
    /// days. False: the endpoint is not in the plan, or unknown.
    #[inline]
    pub fn learn(
        &mut self,
        plan: &ClusterPlan,
        slot: Slot,
        (outcome, latency): (Outcome, Duration),
        (now, random): (Duration, u64),
        events: &mut Vec<Event>,
    ) -> bool {
        if let Policy::PeakEwma(rules) = &plan.rules.policy
            && outcome != Outcome::Abandoned
            && let Some(average) = self.averages.get_mut(slot.index())
        {
            let is_failure = outcome.failure().is_some();
            let latency = if is_failure { latency.max(rules.failure_penalty) } else { latency };
            average.observe(rules, latency, now);
        }
        let Some(Some(known)) = self.slots.get_mut(slot.index()) else { return true };
        if !known.is_planned {
            // Nobody checks its health any more: one that is not there has no sessions.
            if let (Outcome::ConnectFailed, Some(drain)) = (outcome, &mut known.drain) {
                drain.sessions_until = drain.sessions_until.min(now);
            }
            return false;
        }
        if let Some(rules) = &plan.rules.outlier
            && known.outlier.ejected().is_none()
            && let Some(cause) = known.outlier.observe(rules, outcome, latency)
        {
            self.eject(plan, slot, cause, (now, random), events);
        }
        true
    }

    #[cold]
    fn eject(
        &mut self,
        plan: &ClusterPlan,
        slot: Slot,
        cause: Cause,
        (now, random): (Duration, u64),
        events: &mut Vec<Event>,
    ) {
        let Some(rules) = &plan.rules.outlier else { return };
        let percent_max = rules.percent_max;
        let serving = || self.slots.iter().flatten().filter(|known| known.drain.is_none());
        let of = stored(serving().count());
        let ejected = stored(serving().filter(|known| known.outlier.ejected().is_some()).count());
        let Some(known) = &mut self.slots[slot.index()] else { return };
        if !outlier::may_eject(rules, of, ejected) {
            known.outlier.reset_counts();
            events.push(Event::NotEjected { slot, cause, ejected, of, percent_max });
            return;
        }
        let mut outlier = known.outlier;
        let until = outlier.eject(rules, cause, now, random);
        let (ejected, mode) = (ejected + 1, rules.mode);
        events.push(Event::Ejected { slot, cause, until, ejected, of, percent_max, mode });
        match rules.mode {
            Mode::Enforce => {
                known.outlier = outlier;
                self.due = self.due.min(until);
                self.is_stale = true;
            }
            Mode::LogOnly => known.outlier.reset_counts(),
        }
    }

    /// What health checks say of an endpoint. One that was unhealthy starts slowly.
    pub fn set_health(&mut self, slot: Slot, health: Health, now: Duration) {
        if let Some(Some(known)) = self.slots.get_mut(slot.index()) {
            known.set_health(health, now);
            self.is_stale = true;
        }
    }

    /// What an operator asks for; it holds until he asks otherwise or the slot is released. One that comes back starts
    /// slowly.
    pub fn ask(&mut self, plan: &ClusterPlan, slot: Slot, wanted: Wanted, now: Duration) {
        if let Some(Some(known)) = self.slots.get_mut(slot.index())
            && known.wanted != wanted
        {
            known.wanted = wanted;
            if known.is_planned && known.settle_drain(plan, now) {
                known.slow_since = Some(now);
            }
            self.is_stale = true;
        }
    }

    #[inline]
    pub(crate) fn refresh_if_due(&mut self, plan: &ClusterPlan, now: Duration, events: &mut Vec<Event>) {
        if self.is_stale || now >= self.due {
            self.refresh(plan, now, events);
        }
    }

    /// Does what time has brought, and computes the weights anew. Picks call it when it is due; views may.
    #[cold]
    pub fn refresh(&mut self, plan: &ClusterPlan, now: Duration, events: &mut Vec<Event>) {
        self.due = Duration::MAX;
        if now >= self.interval_ends {
            self.judge_interval(plan, now, events);
        }
        for (slot, known) in (0..).map(Slot).zip(&mut self.slots) {
            let Some(known) = known else { continue };
            if let Some((until, _)) = known.outlier.ejected() {
                if now >= until {
                    known.outlier.uneject(now);
                    known.slow_since = Some(now);
                    events.push(Event::Returned { slot });
                } else {
                    self.due = self.due.min(until);
                }
            }
            if let Some(since) = known.slow_since {
                let next =
                    plan.rules.slow_start.as_ref().and_then(|s| s.next_change(now.saturating_sub(since)));
                match next {
                    Some(age) => {
                        self.due =
                            self.due.min(since.saturating_add(age).max(now.saturating_add(SLOW_START_TICK)));
                    }
                    None => known.slow_since = None,
                }
            }
        }
        self.release_over(now, events);
        self.due = self.due.min(self.interval_ends);
        weights::apply(self, plan, now, events);
        self.sampler.rebuild(self.loads.iter().map(|load| load.weight));
        self.is_stale = false;
    }

    fn judge_interval(&mut self, plan: &ClusterPlan, now: Duration, events: &mut Vec<Event>) {
        let Some(rules) = &plan.rules.outlier else { return };
        self.interval_ends = now.saturating_add(rules.interval);
        let planned = (0..).zip(&mut self.slots).filter_map(|(at, known)| Some((at, known.as_mut()?)));
        let serving = planned.filter(|(_, known)| known.drain.is_none());
        let candidates = outlier::judge_interval(rules, serving.map(|(at, known)| (at, &mut known.outlier)));
        for (at, cause) in candidates {
            let random = mix(self.ranks[at as usize], crate::time::millis(now));
            self.eject(plan, Slot(at), cause, (now, random), events);
        }
    }

    /// Frees the slots of endpoints that are gone, idle, and without sessions.
    fn release_over(&mut self, now: Duration, events: &mut Vec<Event>) {
        for (slot, entry) in (0..).map(Slot).zip(&mut self.slots) {
            let Some(known) = entry else { continue };
            if known.is_planned || self.loads[slot.index()].in_flight > 0 {
                continue;
            }
            let sessions_until = known.drain.map_or(Duration::ZERO, |drain| drain.sessions_until);
            if now < sessions_until {
                self.due = self.due.min(sessions_until);
                continue;
            }
            self.by_id.remove(&known.spec.id);
            self.free.push(slot);
            *entry = None;
            events.push(Event::Released { slot });
        }
    }

    /// The slot of a plan's position.
    #[inline]
    #[must_use]
    pub fn slot_at(&self, position: usize) -> Option<Slot> {
        self.by_position.get(position).copied()
    }

    #[must_use]
    pub fn slot_of(&self, id: EndpointId) -> Option<Slot> {
        self.by_id.get(&id).copied()
    }

    /// Whether new requests go to the endpoint, panic included.
    #[inline]
    #[must_use]
    pub fn takes_requests(&self, slot: Slot) -> bool {
        self.loads.get(slot.index()).is_some_and(|load| load.weight > 0)
    }

    /// Whether an endpoint lies outside the proxy's zone, where that counts.
    #[inline]
    #[must_use]
    pub fn is_beyond_zone(&self, plan: &ClusterPlan, slot: Slot) -> bool {
        let Some(zones) = plan.rules.zones else { return false };
        let known = self.slots.get(slot.index()).and_then(Option::as_ref);
        known.is_some_and(|known| known.spec.zone != zones.local)
    }

    /// Requests at all endpoints together.
    #[must_use]
    pub const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    #[must_use]
    pub fn is_in_panic(&self) -> bool {
        self.levels.iter().any(|level| level.panic)
    }

    /// One endpoint, as it is. None for a free slot.
    #[must_use]
    pub fn view(&self, plan: &ClusterPlan, slot: Slot, now: Duration) -> Option<EndpointView> {
        let known = self.slots.get(slot.index())?.as_ref()?;
        let load = self.loads.get(slot.index())?;
        let availability = known.availability();
        Some(EndpointView {
            slot,
            id: known.spec.id,
            weight: known.spec.weight,
            slow_start: known.slow_factor(plan, now),
            in_flight: load.in_flight,
            share: weights::share(load.weight, self.weight),
            zone: known.spec.zone,
            availability,
            in_panic: load.weight > 0 && availability != Availability::Available,
        })
    }

    /// All endpoints, those that are on their way out included.
    pub fn views<'a>(
        &'a self,
        plan: &'a ClusterPlan,
        now: Duration,
    ) -> impl Iterator<Item = EndpointView> + 'a {
        (0..stored(self.slots.len())).filter_map(move |at| self.view(plan, Slot(at), now))
    }
}

impl Known {
    fn new(spec: EndpointSpec) -> Self {
        Self {
            spec,
            is_planned: false,
            wanted: Wanted::AsConfigured,
            drain: None,
            health: Health::Unchecked,
            outlier: EndpointOutlier::default(),
            slow_since: None,
        }
    }

    /// Answers whether that brings it back.
    fn take_over(&mut self, spec: EndpointSpec, plan: &ClusterPlan, now: Duration) -> bool {
        let was = std::mem::replace(&mut self.spec, spec);
        self.is_planned = true;
        let comes_back = self.settle_drain(plan, now);
        if spec.health != Health::Unchecked || was.health != Health::Unchecked {
            self.set_health(spec.health, now);
        }
        comes_back
    }

    /// Of one in the plan: it drains while the config or the operator says so. Answers whether that brings it back.
    fn settle_drain(&mut self, plan: &ClusterPlan, now: Duration) -> bool {
        if self.spec.standing == Standing::Draining || self.wanted == Wanted::Drained {
            let sessions_until = now.saturating_add(plan.session_overlap());
            self.drain.get_or_insert(Drain { sessions_until, why: DrainCause::Asked }).why =
                DrainCause::Asked;
            return false;
        }
        self.drain.take().is_some()
    }

    pub(crate) fn availability(&self) -> Availability {
        match (self.drain, self.health, self.outlier.ejected()) {
            (Some(drain), _, _) => Availability::Draining(drain),
            (None, Health::Unhealthy, _) => Availability::Unhealthy,
            (None, _, Some((until, cause))) => Availability::Ejected { until, cause },
            (None, Health::Healthy | Health::Unchecked, None) => Availability::Available,
        }
    }

    /// In thousandths.
    pub(crate) fn slow_factor(&self, plan: &ClusterPlan, now: Duration) -> u32 {
        match (self.slow_since, &plan.rules.slow_start) {
            (Some(since), Some(slow_start)) => slow_start.factor(now.saturating_sub(since)),
            _ => slow_start::FULL,
        }
    }

    fn set_health(&mut self, health: Health, now: Duration) {
        if self.health == Health::Unhealthy && health != Health::Unhealthy {
            self.slow_since = Some(now);
        }
        self.health = health;
    }
}
