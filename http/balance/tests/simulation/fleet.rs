//! Proxies in front of backends, one simulated millisecond at a time.
//!
//! Each proxy has the state that one core of the real one has, its own random numbers and its own arrivals (Poisson).
//! Requests follow the path of the real exchange: admission, pick, attempt, retry, admission again.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use http_balance::admission::{Applicant, Finished, Ticket};
use http_balance::retry::{self, Again, Attempted, BodyState, Failure, Repeatability};
use http_balance::shed::{Class, LoadSign};
use http_balance::{
    Admission, ClusterPlan, ClusterRules, ClusterState, EndpointId, EndpointSpec, Event, Outcome, Pick, Rng,
    Slot,
};

use crate::backend::{Backend, Ending, exponential};

/// Slots of the calendar; no attempt takes longer.
const CALENDAR: usize = 16_384;

pub(crate) struct Proxy {
    pub(crate) state: ClusterState,
    pub(crate) admission: Admission,
    pub(crate) plan: Rc<ClusterPlan>,
    /// Index of the backend, by slot.
    backend_of: Vec<usize>,
    rng: Rng,
    next_arrival_ms: f64,
    pub(crate) events: Vec<Event>,
}

/// An attempt on its way.
struct Flight {
    proxy: usize,
    slot: Slot,
    backend: usize,
    ticket: Ticket,
    began_ms: u32,
    attempt_ms: u32,
    attempts: u32,
    ending: Ending,
}

/// What clients saw since the last [`Fleet::take_report`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) requests: u64,
    pub(crate) attempts: u64,
    pub(crate) failed: u64,
    pub(crate) refused: u64,
    /// Refused and all requests, by class.
    pub(crate) by_class: HashMap<Class, (u64, u64)>,
    /// Requests by latency in milliseconds.
    latencies: Vec<u32>,
}

impl Report {
    /// Milliseconds within which `permille` of the answered requests were done.
    pub(crate) fn percentile(&self, permille: u64) -> u32 {
        let all: u64 = self.latencies.iter().map(|n| u64::from(*n)).sum();
        let mut left = all * permille / 1000;
        let found = self.latencies.iter().position(|n| {
            let is_here = left < u64::from(*n);
            left = left.saturating_sub(u64::from(*n));
            is_here
        });
        u32::try_from(found.unwrap_or(0)).expect("within the calendar")
    }
}

pub(crate) struct Fleet {
    pub(crate) backends: Vec<Backend>,
    pub(crate) proxies: Vec<Proxy>,
    calendar: Vec<Vec<Flight>>,
    pub(crate) now_ms: u32,
    /// Requests per proxy and millisecond.
    pub(crate) rate: f64,
    /// Classes of requests, equally often.
    pub(crate) classes: &'static [Class],
    rng: Rng,
    report: Report,
}

/// Identity of a backend.
pub(crate) fn id(backend: usize) -> EndpointId {
    EndpointId::of(format!("10.{}.{}.{}:8080", backend >> 16, backend >> 8 & 255, backend & 255).as_bytes())
}

/// A plan over all backends, each with its weight.
pub(crate) fn plan(rules: &ClusterRules, weights: &[u32]) -> Rc<ClusterPlan> {
    let specs = weights.iter().enumerate().map(|(at, weight)| EndpointSpec::new(id(at), *weight)).collect();
    Rc::new(ClusterPlan::build(rules.clone(), specs, Vec::new()).expect("a sound plan"))
}

impl Fleet {
    pub(crate) fn new(
        seed: u64,
        proxies: usize,
        backends: Vec<Backend>,
        plan: &Rc<ClusterPlan>,
        rate: f64,
    ) -> Self {
        let mut rng = Rng::new(seed);
        let proxy = |_| Proxy {
            state: ClusterState::new(rng.draw()),
            admission: Admission::default(),
            plan: Rc::clone(plan),
            backend_of: Vec::new(),
            rng: Rng::new(rng.draw()),
            next_arrival_ms: 0.0,
            events: Vec::new(),
        };
        let proxies = (0..proxies).map(proxy).collect();
        let calendar = (0..CALENDAR).map(|_| Vec::new()).collect();
        let mut fleet = Self {
            backends,
            proxies,
            calendar,
            now_ms: 0,
            rate,
            classes: &[Class::Standard],
            rng,
            report: Report::default(),
        };
        for at in 0..fleet.proxies.len() {
            fleet.adopt(at, plan);
        }
        fleet
    }

    pub(crate) fn now(&self) -> Duration {
        Duration::from_millis(u64::from(self.now_ms))
    }

    /// A proxy goes over to another plan.
    pub(crate) fn adopt(&mut self, proxy: usize, plan: &Rc<ClusterPlan>) {
        let now = self.now();
        let ids: HashMap<EndpointId, usize> =
            (0..self.backends.len()).map(|backend| (id(backend), backend)).collect();
        let proxy = &mut self.proxies[proxy];
        proxy.plan = Rc::clone(plan);
        proxy.state.adopt(plan, now, &mut proxy.events);
        proxy.admission.adopt(&plan.rules.admission);
        for (position, spec) in plan.endpoints().iter().enumerate() {
            let slot = proxy.state.slot_at(position).expect("it was adopted");
            if proxy.backend_of.len() <= slot.index() {
                proxy.backend_of.resize(slot.index() + 1, usize::MAX);
            }
            proxy.backend_of[slot.index()] = ids[&spec.id];
        }
    }

    pub(crate) fn run(&mut self, milliseconds: u32) {
        for _ in 0..milliseconds {
            self.step();
        }
    }

    pub(crate) fn take_report(&mut self) -> Report {
        std::mem::take(&mut self.report)
    }

    fn step(&mut self) {
        self.now_ms += 1;
        let ended = std::mem::take(&mut self.calendar[self.now_ms as usize % CALENDAR]);
        for flight in ended {
            self.land(flight);
        }
        for proxy in 0..self.proxies.len() {
            while self.rate > 0.0 && self.proxies[proxy].next_arrival_ms < f64::from(self.now_ms) {
                let gap = exponential(&mut self.proxies[proxy].rng) / self.rate;
                let from = self.proxies[proxy].next_arrival_ms.max(f64::from(self.now_ms - 1));
                self.proxies[proxy].next_arrival_ms = from + gap;
                self.arrive(proxy);
            }
        }
    }

    fn arrive(&mut self, at: usize) {
        let now = self.now();
        self.report.requests += 1;
        let proxy = &mut self.proxies[at];
        let random = proxy.rng.draw();
        let classes = u64::try_from(self.classes.len()).expect("a few");
        let class = self.classes[usize::try_from(proxy.rng.below(classes)).expect("a few")];
        let who = Applicant { class, core_strain: 0, random };
        let admitted = proxy.admission.admit(&proxy.plan.rules.admission, who, now);
        let (refused, all) = self.report.by_class.entry(class).or_default();
        *all += 1;
        match admitted {
            Ok(ticket) => self.attempt(at, ticket, self.now_ms, 1, None),
            Err(_) => {
                *refused += 1;
                self.report.refused += 1;
            }
        }
    }

    fn attempt(&mut self, at: usize, ticket: Ticket, began_ms: u32, attempts: u32, exclude: Option<Slot>) {
        let now = self.now();
        let proxy = &mut self.proxies[at];
        let by = Pick { now, random: proxy.rng.draw(), key: None, exclude };
        match proxy.state.pick(&proxy.plan, by, &mut proxy.events) {
            Ok(slot) => {
                proxy.state.started(slot);
                let backend = proxy.backend_of[slot.index()];
                let ending = self.backends[backend].serve(self.now_ms, &mut self.rng);
                self.report.attempts += 1;
                let attempt_ms = self.now_ms;
                let flight =
                    Flight { proxy: at, slot, backend, ticket, began_ms, attempt_ms, attempts, ending };
                self.calendar[(self.now_ms + ending.after_ms) as usize % CALENDAR].push(flight);
            }
            Err(_) => self.end(at, ticket, began_ms, Outcome::ConnectFailed),
        }
    }

    fn land(&mut self, flight: Flight) {
        let now = self.now();
        self.backends[flight.backend].in_flight -= 1;
        let proxy = &mut self.proxies[flight.proxy];
        let outcome = flight.ending.outcome;
        let latency = Duration::from_millis(u64::from(self.now_ms - flight.attempt_ms));
        let random = proxy.rng.draw();
        proxy.state.finished(&proxy.plan, flight.slot, (outcome, latency), (now, random), &mut proxy.events);
        let failure = match outcome {
            Outcome::ConnectFailed => Failure::Refused,
            Outcome::GatewayError if flight.ending.not_processed => Failure::NotProcessed503,
            _ => Failure::Response,
        };
        if flight.attempts > 1 {
            proxy.admission.retries.reached(outcome != Outcome::ConnectFailed);
        }
        let attempted = Attempted {
            failure,
            repeatability: Repeatability::Idempotent,
            body: BodyState::Untouched,
            attempts: flight.attempts,
            left: None,
        };
        match retry::decide(&proxy.plan.rules.retry, &mut proxy.admission.retries, attempted, now) {
            Ok(Again::Elsewhere | Again::FreshConnection) => {
                let attempts = flight.attempts + 1;
                self.attempt(flight.proxy, flight.ticket, flight.began_ms, attempts, Some(flight.slot));
            }
            Err(_) => self.end(flight.proxy, flight.ticket, flight.began_ms, outcome),
        }
    }

    fn end(&mut self, at: usize, ticket: Ticket, began_ms: u32, outcome: Outcome) {
        let now = self.now();
        let latency_ms = self.now_ms - began_ms;
        let end =
            Finished { outcome, latency: Duration::from_millis(u64::from(latency_ms)), sign: LoadSign::None };
        let proxy = &mut self.proxies[at];
        proxy.admission.finished(&proxy.plan.rules.admission, ticket, end, now);
        if outcome == Outcome::Success {
            let bucket = latency_ms as usize;
            if self.report.latencies.len() <= bucket {
                self.report.latencies.resize(bucket + 1, 0);
            }
            self.report.latencies[bucket] += 1;
        } else {
            self.report.failed += 1;
        }
    }
}
