//! One cluster as this core knows it for as long as its name lives: who is busy, ejected, draining, and whether the
//! cluster takes a request at all.
//!
//! ```text
//!   Cluster ── settings ──► Settings: one snapshot's config and plan, changed whole
//!      ├── state, admission        of http_balance, over all snapshots
//!      └── endpoints by Slot ────► Endpoint: connections, over all snapshots that connect alike
//! ```
//! Invariants: a slot of the plan has its endpoint; the state is only ever shown the plan that it adopted last. What
//! happens to endpoints is told to [`News`] at once, so that a slot that is used again is never taken for the old one.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use core_runtime::clock;
use http_balance::admission::{Admission, Applicant, Finished, Refusal, Ticket};
use http_balance::breaker::BreakerState;
use http_balance::cluster::EndpointView;
use http_balance::endpoint::{Availability, ConnectionAdvice, Health, Wanted};
use http_balance::generations::newer;
use http_balance::hashing::Placed;
use http_balance::hedge::{self, HedgeRules, NoHedge};
use http_balance::mirror::MirrorRoom;
use http_balance::retry::{self, Again, Attempted, BodyState, NoRetry, RetryRules};
use http_balance::shed::LoadSign;
use http_balance::sticky::Session;
use http_balance::tables::Tables;
use http_balance::{ClusterPlan, ClusterState, EndpointId, Event, NoEndpoint, Outcome, Pick, Slot, mix};
use rustc_hash::FxHashSet;

use super::news::News;
use super::{Endpoint, Resolved};
use crate::core::LiveSnapshot;
use crate::reason::Reason;
use crate::record::CoreStats;
use crate::snapshot::{ClusterConfig, ClusterIndex, EndpointConfig, StatId, UpstreamProtocol};

/// A cluster as one snapshot has it.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(super) snapshot: Rc<LiveSnapshot>,
    pub(super) index: ClusterIndex,
    /// With the addresses that its names stand for; None: the snapshot's own plan.
    found: Option<ClusterPlan>,
}

#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) stat: StatId,
    settings: RefCell<Rc<Settings>>,
    state: RefCell<ClusterState>,
    admission: RefCell<Admission>,
    endpoints: RefCell<Vec<Option<Rc<Endpoint>>>>,
    events: RefCell<Vec<Event>>,
    news: Rc<News>,
    seed: u64,
    /// What mirrors to this cluster take.
    pub(crate) mirrors: RefCell<MirrorRoom>,
    /// Some endpoint may be ejected: counting them all is only worth it then.
    may_have_ejected: Cell<bool>,
}

/// An attempt at an endpoint: counted until it is dropped, with how it ended.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) settings: Rc<Settings>,
    pub(crate) endpoint: Rc<Endpoint>,
    pub(crate) seat: Seat,
}

/// The count of an attempt, without the config that it was made by: what a long-lived connection keeps (C43).
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) cluster: Rc<Cluster>,
    pub(crate) slot: Slot,
    end: Cell<Finished>,
}

impl std::ops::Deref for Lease {
    type Target = Seat;

    fn deref(&self) -> &Seat {
        &self.seat
    }
}

/// A request that its cluster let in: counted until it is dropped, with the end of its last attempt.
#[derive(Debug)]
pub(crate) struct Admitted {
    cluster: Rc<Cluster>,
    ticket: Option<Ticket>,
    end: Finished,
}

/// Nobody has learnt anything yet.
const UNKNOWN: Finished =
    Finished { outcome: Outcome::Abandoned, latency: Duration::ZERO, sign: LoadSign::None };

/// How a cluster is on one core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    pub in_flight: u64,
    /// That this core balances over, out or not.
    pub endpoints: u64,
    /// Endpoints that are out for their failures.
    pub ejected: u64,
    pub is_in_panic: bool,
    /// Open or probing.
    pub breaker_is_open: bool,
    /// Mirrored requests, and those whose body is being copied.
    pub mirrors: u64,
    /// Body bytes that wait for them.
    pub mirror_bytes_held: u64,
}

impl Settings {
    /// With the addresses that names stand for, and the rings with these.
    pub(super) fn new(snapshot: Rc<LiveSnapshot>, index: ClusterIndex, resolved: Option<&Resolved>) -> Self {
        let mut settings = Self { snapshot, index, found: None };
        if let Some(resolved) = resolved.filter(|resolved| !resolved.endpoints.is_empty()) {
            settings.found = settings.plan_with(resolved);
        }
        settings
    }

    pub(crate) fn config(&self) -> &ClusterConfig {
        self.snapshot.clusters.get(self.index.0).expect("the index was looked up when the settings were made")
    }

    pub(crate) fn plan(&self) -> &ClusterPlan {
        self.found.as_ref().unwrap_or(&self.config().plan)
    }

    /// None when it cannot be balanced, which the compile has excluded for everything but the number of addresses.
    fn plan_with(&self, resolved: &Resolved) -> Option<ClusterPlan> {
        let config = self.config();
        let mut specs = config.plan.endpoints().to_vec();
        specs.extend(config.joining(&resolved.endpoints).map(EndpointConfig::spec));
        // Names may have changed after the config was made, or before.
        let generations = newer(config.plan.generations(), &resolved.generations).to_vec();
        let mut tables = Tables::with(&resolved.tables);
        let plan =
            ClusterPlan::build_shared(config.plan.rules.clone(), specs, generations, &mut tables).ok()?;
        Some(plan.with_departed(config.plan.departed().to_vec()))
    }

    /// Whether connections made for `other` may serve this config. TLS contexts cannot be compared, so a cluster
    /// with TLS always dials anew: a changed trust must not be passed by on an old connection.
    fn connects_like(&self, other: &Self) -> bool {
        if Rc::ptr_eq(&self.snapshot, &other.snapshot) {
            return true;
        }
        let (config, other) = (self.config(), other.config());
        config.protocol == other.protocol && config.tls.is_none() && other.tls.is_none()
    }
}

impl Cluster {
    pub(super) fn new(settings: Settings, found: &[EndpointConfig], news: Rc<News>, seed: u64) -> Rc<Self> {
        let cluster = Self {
            stat: settings.config().stat,
            settings: RefCell::new(Rc::new(settings)),
            state: RefCell::new(ClusterState::new(seed)),
            admission: RefCell::default(),
            endpoints: RefCell::default(),
            events: RefCell::default(),
            news,
            seed,
            mirrors: RefCell::default(),
            may_have_ejected: Cell::new(false),
        };
        cluster.adopt(found);
        Rc::new(cluster)
    }

    /// Goes over to another snapshot, or other addresses.
    pub(super) fn change(&self, settings: Settings, found: &[EndpointConfig]) {
        let before = self.settings.replace(Rc::new(settings));
        if !self.settings().connects_like(&before) {
            // Anew, but there: an endpoint that the config no longer names may still have sessions.
            let anew = |old: &Option<Rc<Endpoint>>| old.as_ref().map(|old| Rc::new(old.unconnected()));
            let anew: Vec<_> = self.endpoints.borrow().iter().map(anew).collect();
            let old = self.endpoints.replace(anew);
            drop(old);
        }
        self.adopt(found);
    }

    fn adopt(&self, found: &[EndpointConfig]) {
        let settings = self.settings();
        let (config, plan) = (settings.config(), settings.plan());
        self.admission.borrow_mut().adopt(&plan.rules.admission);
        self.with_state(&settings, |state, events| state.adopt(plan, clock::now(), events));
        let state = self.state.borrow();
        let mut endpoints = self.endpoints.borrow_mut();
        let mut replaced = Vec::new();
        let found: &[_] = if settings.found.is_some() { found } else { &[] };
        for (position, wanted) in config.endpoints.iter().chain(config.joining(found)).enumerate() {
            let Some(slot) = state.slot_at(position) else { continue };
            if endpoints.len() <= slot.index() {
                endpoints.resize(slot.index() + 1, None);
            }
            let Some(place) = endpoints.get_mut(slot.index()) else { continue };
            if !place.as_ref().is_some_and(|endpoint| endpoint.is(wanted)) {
                replaced.push(place.replace(Rc::new(Endpoint::new(wanted))));
            }
        }
        // Where the state has just taken them in.
        for departed in &config.departed {
            let Some(slot) = state.slot_of(departed.id()) else { continue };
            if endpoints.len() <= slot.index() {
                endpoints.resize(slot.index() + 1, None);
            }
            if let Some(place) = endpoints.get_mut(slot.index()) {
                place.get_or_insert_with(|| Rc::new(Endpoint::new(departed)));
            }
        }
        drop((state, endpoints));
        // Closed outside the borrows: dropping a socket talks to the reactor.
        drop(replaced);
    }

    pub(crate) fn settings(&self) -> Rc<Settings> {
        Rc::clone(&self.settings.borrow())
    }

    /// Takes in what health checks say; where a cluster is checked, that counts more than what its config brings.
    pub(super) fn set_health(&self, healths: impl Iterator<Item = (SocketAddr, Health)>) {
        let settings = self.settings();
        let now = clock::now();
        self.with_state(&settings, |state, events| {
            for (address, health) in healths {
                let id = EndpointId::of(address.to_string().as_bytes());
                let Some(slot) = state.slot_of(id) else { continue };
                state.set_health(slot, health, now);
            }
            state.refresh(settings.plan(), now, events);
        });
    }

    /// Takes in which endpoints an operator drains, and which no more.
    pub(super) fn set_drained(&self, drained: &FxHashSet<SocketAddr>) {
        let settings = self.settings();
        let (plan, now) = (settings.plan(), clock::now());
        let wanted = |(slot, endpoint): (Slot, &Option<Rc<Endpoint>>)| {
            let is_drained = drained.contains(&endpoint.as_ref()?.address);
            Some((slot, if is_drained { Wanted::Drained } else { Wanted::AsConfigured }))
        };
        let all: Vec<_> = (0..).map(Slot).zip(self.endpoints.borrow().iter()).filter_map(wanted).collect();
        self.with_state(&settings, |state, events| {
            all.into_iter().for_each(|(slot, wanted)| state.ask(plan, slot, wanted, now));
            state.refresh(plan, now, events);
        });
    }

    /// Lets a request in.
    ///
    /// # Errors
    /// Why the cluster takes none now.
    pub(crate) fn admit(self: &Rc<Self>, who: Applicant) -> Result<Admitted, Refusal> {
        let settings = self.settings.borrow();
        let rules = &settings.plan().rules.admission;
        let ticket = self.admission.borrow_mut().admit(rules, who, clock::now())?;
        Ok(Admitted { cluster: Rc::clone(self), ticket: Some(ticket), end: UNKNOWN })
    }

    /// Whether priorities count here.
    pub(crate) fn sheds(&self) -> bool {
        self.settings.borrow().plan().rules.admission.shed.is_some()
    }

    /// Chooses an endpoint and counts an attempt there.
    ///
    /// # Errors
    /// `NoEndpoint` when the cluster is empty, `NoHealthyEndpoint` when none takes requests.
    pub(crate) fn pick(
        self: &Rc<Self>,
        random: u64,
        key: Option<u64>,
        exclude: Option<Slot>,
    ) -> Result<Lease, Reason> {
        let settings = self.settings();
        let by = Pick { now: clock::now(), random, key, exclude };
        let picked = self.with_state(&settings, |state, events| {
            let picked = state.pick(settings.plan(), by, events);
            picked.inspect(|slot| state.started(*slot))
        });
        let slot = picked.map_err(|none| match none {
            NoEndpoint::Empty => Reason::NoEndpoint,
            NoEndpoint::NoneAvailable => Reason::NoHealthyEndpoint,
        })?;
        self.lease(settings, slot).ok_or(Reason::Internal)
    }

    /// Finds the endpoint of a session, or of a new one when there is none, and counts an attempt there. None where no
    /// place on the ring takes requests: there may be an endpoint for a request without a session.
    pub(crate) fn place(
        self: &Rc<Self>,
        session: Option<Session>,
        random: (u64, u64),
    ) -> Option<(Lease, Placed)> {
        let settings = self.settings();
        let placed = self.with_state(&settings, |state, events| {
            state.place(settings.plan(), session, random, clock::now(), events)
        });
        let placed = placed.ok()?;
        Some((self.counted(settings, placed.slot)?, placed))
    }

    /// Counts one more attempt at an endpoint. None when it is gone.
    pub(crate) fn stay(self: &Rc<Self>, slot: Slot) -> Option<Lease> {
        self.counted(self.settings(), slot)
    }

    fn counted(self: &Rc<Self>, settings: Rc<Settings>, slot: Slot) -> Option<Lease> {
        let lease = self.lease(settings, slot)?;
        self.state.borrow_mut().started(slot);
        Some(lease)
    }

    /// Of an attempt that has been counted.
    fn lease(self: &Rc<Self>, settings: Rc<Settings>, slot: Slot) -> Option<Lease> {
        let endpoint = self.endpoint(slot)?;
        let seat = Seat { cluster: Rc::clone(self), slot, end: Cell::new(UNKNOWN) };
        Some(Lease { settings, endpoint, seat })
    }

    /// Counts what an attempt's endpoint was chosen beyond: the proxy's zone, and health. Says whether it was health.
    pub(crate) fn count_choice(&self, lease: &Lease, stats: &RefCell<CoreStats>) -> bool {
        let (state, plan) = (self.state.borrow(), lease.settings.plan());
        if plan.rules.zones.is_some() && state.is_beyond_zone(plan, lease.slot) {
            stats.borrow_mut().left_zone(self.stat);
        }
        let is_in_panic = state.is_in_panic();
        if is_in_panic {
            stats.borrow_mut().chose_in_panic(self.stat);
        }
        is_in_panic
    }

    /// Whether requests have sessions here.
    pub(crate) fn is_sticky(&self) -> bool {
        self.settings.borrow().config().sticky.is_some()
    }

    /// Decides about another attempt; a yes has been paid for, where it has a price.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn retry(&self, rules: &RetryRules, attempted: Attempted) -> Result<Again, NoRetry> {
        retry::decide(rules, &mut self.admission.borrow_mut().retries, attempted, clock::now())
    }

    /// How an attempt after the first went: whether it got through to an endpoint.
    pub(crate) fn retried(&self, is_reached: bool) {
        self.admission.borrow_mut().retries.reached(is_reached);
    }

    /// Counts a request that may be hedged.
    pub(crate) fn may_be_hedged(&self) {
        self.admission.borrow_mut().hedges.request(clock::now());
    }

    /// Decides whether a silent attempt is hedged; a yes has been paid for.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn hedge(&self, rules: &HedgeRules, body: BodyState, core_strain: u32) -> Result<(), NoHedge> {
        let is_in_panic = self.state.borrow().is_in_panic();
        let mut admission = self.admission.borrow_mut();
        let mood = admission.mood(is_in_panic, core_strain);
        hedge::start(rules, &mut admission.hedges, body, mood, clock::now())
    }

    fn endpoint(&self, slot: Slot) -> Option<Rc<Endpoint>> {
        self.endpoints.borrow().get(slot.index())?.clone()
    }

    fn attempt_ended(&self, slot: Slot, end: Finished) {
        let (now, random) = self.moment();
        let settings = self.settings();
        self.with_state(&settings, |state, events| {
            state.finished(settings.plan(), slot, (end.outcome, end.latency), (now, random), events);
        });
    }

    fn attempt_proved(&self, slot: Slot, end: Finished) {
        let (now, random) = self.moment();
        let settings = self.settings();
        self.with_state(&settings, |state, events| {
            state.learn(settings.plan(), slot, (end.outcome, end.latency), (now, random), events);
        });
    }

    /// Now, and a number that only spreads the ends of ejections.
    fn moment(&self) -> (Duration, u64) {
        let now = clock::now();
        (now, mix(self.seed, u64::try_from(now.as_nanos()).unwrap_or(0)))
    }

    /// Works on the state, and tells what happened by it.
    fn with_state<T>(
        &self,
        settings: &Settings,
        work: impl FnOnce(&mut ClusterState, &mut Vec<Event>) -> T,
    ) -> T {
        let mut events = self.events.borrow_mut();
        let done = work(&mut self.state.borrow_mut(), &mut events);
        if !events.is_empty() {
            self.tell(settings, &mut events);
        }
        done
    }

    #[cold]
    fn tell(&self, settings: &Settings, events: &mut Vec<Event>) {
        let config = settings.config();
        for event in events.drain(..) {
            let address = |slot: Slot| self.endpoint(slot).map(|endpoint| endpoint.address);
            match event {
                Event::Released { slot } => {
                    let gone = self.endpoints.borrow_mut().get_mut(slot.index()).and_then(Option::take);
                    drop(gone);
                    continue;
                }
                Event::Ejected { .. } => self.may_have_ejected.set(true),
                Event::NotEjected { .. } | Event::Returned { .. } | Event::Panic { .. } => {}
            }
            self.news.of_endpoints(config, event, address);
        }
    }

    /// How it is now.
    pub(crate) fn condition(&self) -> Condition {
        let settings = self.settings();
        let (state, admission) = (self.state.borrow(), self.admission.borrow());
        let mut ejected = 0;
        if self.may_have_ejected.get() {
            let views = state.views(settings.plan(), clock::now());
            ejected = views.filter(|view| matches!(view.availability, Availability::Ejected { .. })).count();
            self.may_have_ejected.set(ejected > 0);
        }
        Condition {
            in_flight: u64::from(admission.in_flight()),
            endpoints: u64::try_from(settings.plan().endpoints().len()).unwrap_or(u64::MAX),
            ejected: u64::try_from(ejected).unwrap_or(u64::MAX),
            is_in_panic: state.is_in_panic(),
            breaker_is_open: !matches!(admission.breaker_state(), None | Some(BreakerState::Closed)),
            mirrors: u64::from(self.mirrors.borrow().in_flight()),
            mirror_bytes_held: self.mirrors.borrow().held_bytes(),
        }
    }

    /// Brings back what time has brought back, although no request asks.
    pub(super) fn refresh(&self) {
        let settings = self.settings();
        self.with_state(&settings, |state, events| state.refresh(settings.plan(), clock::now(), events));
    }

    pub(super) fn needs_refresh(&self) -> bool {
        self.may_have_ejected.get()
    }

    /// Every endpoint with its zone and what the state knows of it, those on their way out included.
    pub(crate) fn for_each_view(&self, mut visit: impl FnMut(&Endpoint, &str, EndpointView)) {
        let settings = self.settings();
        let zones = &settings.config().zones;
        let views: Vec<_> = self.state.borrow().views(settings.plan(), clock::now()).collect();
        for view in views {
            if let Some(endpoint) = self.endpoint(view.slot) {
                let zone = zones.get(usize::from(view.zone)).map_or("", String::as_str);
                visit(&endpoint, zone, view);
            }
        }
    }

    pub(super) fn for_each_endpoint(&self, visit: impl FnMut(&Rc<Endpoint>)) {
        self.endpoints.borrow().iter().flatten().for_each(visit);
    }

    /// Closes connections that were idle for too long, that the backend has closed, or whose endpoint drains.
    pub(super) fn reap_idle(&self, now: Duration) {
        let settings = self.settings();
        let idle_timeout = settings.config().pool.idle_timeout;
        let endpoints: Vec<_> = {
            let (state, endpoints) = (self.state.borrow(), self.endpoints.borrow());
            let limit = |slot| {
                let view = (!state.takes_requests(slot)).then(|| state.view(settings.plan(), slot, now));
                let advice = view.flatten().map(|view| view.availability.advice(now));
                if advice == Some(ConnectionAdvice::CloseWhenIdle) { Duration::ZERO } else { idle_timeout }
            };
            let open = (0..).map(Slot).zip(endpoints.iter()).filter_map(|(slot, endpoint)| {
                let endpoint = endpoint.as_ref().filter(|endpoint| endpoint.connections() != (0, 0))?;
                Some((Rc::clone(endpoint), limit(slot)))
            });
            open.collect()
        };
        for (endpoint, limit) in endpoints {
            endpoint.reap_idle(now, limit);
        }
    }
}

impl Admitted {
    /// The request ends as this attempt did, unless there is another.
    pub(crate) fn ends_like(&mut self, seat: &Seat) {
        self.end = seat.end.get();
    }

    /// What is known of its end counts now; the request goes on.
    pub(crate) fn proves(&mut self) {
        let Some(ticket) = &self.ticket else { return };
        let end = std::mem::replace(&mut self.end, UNKNOWN);
        let settings = self.cluster.settings();
        let rules = &settings.plan().rules.admission;
        let changed = self.cluster.admission.borrow_mut().learn(rules, ticket, end, clock::now());
        if let Some(event) = changed {
            self.cluster.news.of_breaker(settings.config(), event);
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        let settings = self.cluster.settings();
        let rules = &settings.plan().rules.admission;
        let changed = self.cluster.admission.borrow_mut().finished(rules, ticket, self.end, clock::now());
        if let Some(event) = changed {
            self.cluster.news.of_breaker(settings.config(), event);
        }
    }
}

impl Lease {
    pub(crate) fn protocol(&self) -> UpstreamProtocol {
        self.settings.config().protocol
    }
}

impl Seat {
    /// How the attempt goes, as far as it is known; the last word counts.
    pub(crate) fn goes(&self, outcome: Outcome, latency: Duration, sign: LoadSign) {
        self.end.set(Finished { outcome, latency, sign });
    }

    /// What is known of the attempt counts now; it goes on, and its end is told anew.
    pub(crate) fn proves(&self) {
        self.cluster.attempt_proved(self.slot, self.end.replace(UNKNOWN));
    }

    /// The attempt fails after its response began.
    pub(crate) fn breaks_off(&self, outcome: Outcome) {
        self.end.set(Finished { outcome, ..self.end.get() });
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.cluster.attempt_ended(self.slot, self.end.get());
    }
}
