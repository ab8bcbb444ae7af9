//! Everything that one core owns: its snapshot, clusters, counters, limits, random numbers and log queue.
//!
//! One value per shard, passed as `Rc`. Nothing in it is shared with another core; what comes from outside comes
//! through the mailbox as a [`Command`] and is applied here between two turns.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::Duration;

use core_runtime::clock;
use core_runtime::mailbox::{SendError, Sender};
use core_runtime::net::{Accepted, ListeningSocket};
use core_runtime::sync::{Latch, TurnGate};
use http_balance::Rng;
use http_balance::shed::CoreStrain;
use http_gateway::client_limit::ClientLimiter;
use http_gateway::jwt::{ProviderId, TokenCaches};
use rustc_hash::FxHashMap;
use tls::{ServerContext, TicketKeys};

use crate::exchange::{Place, Request};
use crate::log::AccessLog;
use crate::pool::Clusters;
use crate::reason::Reason;
use crate::record::{CoreStats, StatTable, TableSizes};
use crate::snapshot::{ListenerConfig, Snapshot, StatId, TicketSource};
use crate::survey::{Generations, Left, LiveConn, LiveConns, Survey, SurveyOf};

/// What a core is told from outside.
#[derive(Debug)]
pub enum Command {
    /// A new configuration, whole, and the sizes of the counter tables that it needs.
    Apply(Box<Snapshot>, TableSizes),
    /// Addresses of a DNS name of a cluster, by cluster and target name.
    Resolved(crate::pool::Resolved),
    /// What health checks say of a cluster's endpoints.
    Checked(crate::pool::Checked),
    /// What an operator drains of a cluster.
    Drained(crate::pool::Drained),
    /// One more listening socket for a listener.
    Listen { listener: StatId, socket: ListeningSocket },
    /// Stop accepting for a listener. Connections that wait in the kernel's queue are taken first, under the
    /// configuration of this moment: this comes before the one that no longer names the listener.
    Unlisten { listener: StatId },
    /// A connection that another core's listener took.
    Adopt { listener: StatId, accepted: Accepted },
    /// Other ticket keys for the listeners whose keys are the process's own.
    Tickets(TicketKeys),
    /// Series whose names have gone: their counters start anew.
    Forget(Vec<(StatTable, StatId)>),
    /// A question of the admin listener.
    Survey { what: SurveyOf, reply: Sender<Survey> },
    /// Stop accepting, finish what is there.
    Drain,
    /// End now, whatever is there.
    Cut,
}

/// Clients whose limits one core remembers.
const LIMITED_CLIENTS_MAX: NonZeroU32 = NonZeroU32::new(65_536).expect("not zero");

/// Messages of TLS handshakes that one turn takes: a turn under 1 ms at 100 to 200 µs for a signature.
const HANDSHAKES_PER_TURN_MAX: usize = 4;
/// Requests of one turn that are looked at although their HTTP/1 connection has seen two answered in it.
pub(crate) const PIPELINED_PER_TURN_MAX: usize = 16;
/// Streams that clients open on a core in one turn; a read that opens none counts as one.
pub(crate) const STREAMS_PER_TURN_MAX: usize = 128;
/// Signatures of tokens that are looked at in one turn: a turn under 1 ms at 60 to 90 µs for ES256.
pub(crate) const VERIFICATIONS_PER_TURN_MAX: usize = 4;

/// How long an idle connection outlives its listener, and over which time such ends are spread.
const LEAVE_AFTER: Duration = Duration::from_millis(500);
const LEAVE_SPREAD: Duration = Duration::from_millis(1500);

/// Requests, and places for exchanges, kept for reuse; about as many exchanges run at once on a busy core.
const REQUESTS_KEPT_MAX: usize = 1024;

/// Tokens of providers that have gone are freed half-second by half-second, so many each time.
const TOKENS_FREED_MAX: usize = 1_000;

/// The token providers of a snapshot, with how many tokens of each a core remembers.
fn providers(snapshot: &Snapshot) -> impl Iterator<Item = (ProviderId, NonZeroU32)> {
    let all = snapshot.listeners.iter().flat_map(|listener| &listener.http.token_providers);
    all.map(|provider| (provider.id(), provider.config().cache_max))
}

/// One core's state.
#[derive(Debug)]
pub struct Core {
    pub(crate) index: usize,
    snapshot: RefCell<Rc<LiveSnapshot>>,
    pub(crate) clusters: Clusters,
    pub(crate) stats: RefCell<CoreStats>,
    pub(crate) limiter: RefCell<ClientLimiter>,
    /// A flood of handshakes must not make long turns.
    pub(crate) handshakes: TurnGate,
    /// Nor must a flood of requests that are answered at once.
    pub(crate) pipelined: TurnGate,
    /// Nor one of streams, whose connections come by turns.
    pub(crate) streams: TurnGate,
    /// Nor one of tokens that were not seen before.
    pub(crate) verifications: TurnGate,
    pub(crate) tokens: RefCell<TokenCaches>,
    rng: RefCell<Rng>,
    /// How busy the reactor is.
    strain: Cell<CoreStrain>,
    /// Set once, when the core begins to drain.
    pub(crate) draining: Latch,
    /// When the drain began and how long it may take.
    drain_window: Cell<(Duration, Duration)>,
    pub(crate) log: AccessLog,
    connections: Cell<usize>,
    pub(crate) live: LiveConns,
    pub(crate) generations: Generations,
    /// Listeners that the configuration no longer names but that have connections, with the last one that did.
    gone: RefCell<FxHashMap<StatId, Rc<LiveSnapshot>>>,
    /// Contexts made since the snapshot was, with newer ticket keys than its own.
    rotated: RefCell<FxHashMap<StatId, Rc<ServerContext>>>,
    /// Where old snapshots go to be freed by the thread that made them.
    graveyard: Sender<Box<Snapshot>>,
    /// Requests that are over, kept for their memory: a waiting connection holds none.
    #[expect(clippy::vec_box, reason = "requests move between here and their tasks, and are large")]
    requests: RefCell<Vec<Box<Request>>>,
    /// Where exchanges ran that are over.
    places: RefCell<Vec<Place>>,
    /// Reused for values that are built and copied at once.
    pub(crate) scratch: RefCell<Vec<u8>>,
}

impl Core {
    /// A core that serves `snapshot`. `seed` is fresh randomness of this core.
    pub fn new(
        index: usize,
        snapshot: Box<Snapshot>,
        sizes: TableSizes,
        seed: [u64; 7],
        log: AccessLog,
        graveyard: Sender<Box<Snapshot>>,
    ) -> Rc<Self> {
        let [rng_seed, limiter_seed @ ..] = seed;
        let mut stats = CoreStats::default();
        stats.grow(sizes);
        let snapshot = Rc::new(LiveSnapshot::new(snapshot, 0, &graveyard));
        let generations = Generations::default();
        generations.note(&snapshot);
        let clusters = Clusters::new(rng_seed);
        clusters.prepare_sticky(&snapshot);
        let mut tokens = TokenCaches::default();
        tokens.adopt(providers(&snapshot));
        Rc::new(Self {
            index,
            snapshot: RefCell::new(snapshot),
            clusters,
            stats: RefCell::new(stats),
            limiter: RefCell::new(ClientLimiter::new(LIMITED_CLIENTS_MAX, limiter_seed)),
            handshakes: TurnGate::new(HANDSHAKES_PER_TURN_MAX),
            pipelined: TurnGate::new(PIPELINED_PER_TURN_MAX),
            streams: TurnGate::new(STREAMS_PER_TURN_MAX),
            verifications: TurnGate::new(VERIFICATIONS_PER_TURN_MAX),
            tokens: RefCell::new(tokens),
            rng: RefCell::new(Rng::new(rng_seed)),
            strain: Cell::default(),
            draining: Latch::new(),
            drain_window: Cell::new((Duration::ZERO, Duration::ZERO)),
            log,
            connections: Cell::new(0),
            live: LiveConns::default(),
            generations,
            gone: RefCell::default(),
            rotated: RefCell::default(),
            graveyard,
            requests: RefCell::default(),
            places: RefCell::default(),
            scratch: RefCell::default(),
        })
    }

    /// The configuration of new requests.
    pub(crate) fn snapshot(&self) -> Rc<LiveSnapshot> {
        Rc::clone(&self.snapshot.borrow())
    }

    /// Takes over a new configuration: one pointer. Clusters find their old connections when they are first used.
    pub fn apply(&self, snapshot: Box<Snapshot>) {
        let number = self.snapshot.borrow().number() + 1;
        let new = Rc::new(LiveSnapshot::new(snapshot, number, &self.graveyard));
        self.clusters.forget_missing(&new);
        self.clusters.prepare_sticky(&new);
        self.tokens.borrow_mut().adopt(providers(&new));
        self.rotated.borrow_mut().clear();
        self.note_gone(&new);
        self.generations.note(&new);
        self.stats.borrow_mut().counters.snapshots_applied += 1;
        drop(self.snapshot.replace(new));
    }

    fn note_gone(&self, new: &Snapshot) {
        let old = self.snapshot();
        let mut gone = self.gone.borrow_mut();
        gone.retain(|listener, _| new.listener(*listener).is_none());
        for listener in old.listeners.iter().filter(|listener| new.listener(listener.stat).is_none()) {
            gone.insert(listener.stat, Rc::clone(&old));
            // Idle connections of a listener that has gone wait for nothing else.
            core_runtime::sync::wake_all();
        }
    }

    /// Lets go of listeners that have no connections any more.
    pub(crate) fn forget_gone(&self) {
        let stats = self.stats.borrow();
        let is_busy = |listener| {
            stats.listener(listener).is_some_and(|row| row.connections_accepted > row.connections_closed)
        };
        self.gone.borrow_mut().retain(|listener, _| is_busy(*listener));
    }

    /// Whether the configuration no longer names a listener: its connections are to end when they are next idle.
    pub(crate) fn has_gone(&self, listener: StatId) -> bool {
        self.gone.borrow().contains_key(&listener)
    }

    /// The configuration of new requests on connections of a listener: the one in force, or of a listener that has
    /// gone the last one that had it.
    pub(crate) fn snapshot_of(&self, listener: StatId) -> Rc<LiveSnapshot> {
        self.gone.borrow().get(&listener).cloned().unwrap_or_else(|| self.snapshot())
    }

    /// Gives the listeners that have the process's ticket keys contexts with these. Where the system has no
    /// randomness for one, its old keys go on.
    pub(crate) fn rotate_tickets(&self, keys: &TicketKeys) {
        let snapshot = self.snapshot();
        let mut rotated = self.rotated.borrow_mut();
        for listener in snapshot.listeners.iter().filter(|listener| listener.tickets == TicketSource::Process)
        {
            if let Some(Ok(context)) = listener.tls.as_ref().map(|context| context.with_ticket_keys(keys)) {
                rotated.insert(listener.stat, Rc::new(context));
            }
        }
    }

    /// The TLS context of a listener where its ticket keys are newer than the snapshot.
    pub(crate) fn rotated(&self, listener: StatId) -> Option<Rc<ServerContext>> {
        self.rotated.borrow().get(&listener).cloned()
    }

    /// What is open on this core.
    pub(crate) fn left(&self) -> Left {
        self.live.left()
    }

    /// A request whose heads are empty, with memory from earlier use when there is some.
    pub(crate) fn take_request(&self) -> Box<Request> {
        self.requests.borrow_mut().pop().unwrap_or_default()
    }

    /// Gives a request back for the next one.
    pub(crate) fn give_request(&self, mut request: Box<Request>) {
        let mut requests = self.requests.borrow_mut();
        if requests.len() < REQUESTS_KEPT_MAX {
            request.head.clear();
            request.response.clear();
            requests.push(request);
        }
    }

    /// Room for an exchange.
    pub(crate) fn take_place(&self) -> Place {
        self.places.borrow_mut().pop().unwrap_or_else(Place::new)
    }

    /// Gives the room back for the next exchange.
    pub(crate) fn give_place(&self, place: Place) {
        let mut places = self.places.borrow_mut();
        if places.len() < REQUESTS_KEPT_MAX {
            places.push(place);
        }
    }

    pub(crate) fn random(&self) -> u64 {
        self.rng.borrow_mut().draw()
    }

    /// Takes in how busy the reactor was in the last span.
    pub(crate) fn observe_strain(&self, busy: Duration, span: Duration) {
        /// What the smoothing is made for.
        const STEP: Duration = Duration::from_millis(100);
        let mut strain = self.strain.get();
        let steps = (span.as_millis() / STEP.as_millis()).clamp(1, 100);
        for _ in 0..steps {
            strain.observe(busy, span);
        }
        self.strain.set(strain);
    }

    /// In thousandths.
    pub(crate) fn strain(&self) -> u32 {
        self.strain.get().strain()
    }

    /// Whether new work should be turned away gently.
    pub fn is_draining(&self) -> bool {
        self.draining.is_set()
    }

    /// Begins to drain, for at most `timeout`.
    pub fn drain(&self, timeout: Duration) {
        self.drain_window.set((clock::now(), timeout));
        self.draining.set();
    }

    /// When an HTTP/2 connection is told of a drain: spread over the first quarter of the window, so that clients do not
    /// all connect anew at once (C28).
    pub(crate) fn goaway_at(&self) -> Duration {
        let (began_at, timeout) = self.drain_window.get();
        began_at + self.share_of(timeout / 4)
    }

    /// When an idle connection of a listener that has gone is closed: not at once, since a request may be on its way, and
    /// a client that sends one before is told to close with its answer.
    pub(crate) fn leave_at(&self) -> Duration {
        clock::now() + LEAVE_AFTER + self.share_of(LEAVE_SPREAD)
    }

    /// A random part of a time.
    fn share_of(&self, whole: Duration) -> Duration {
        let whole_ms = u64::try_from(whole.as_millis()).unwrap_or(u64::MAX).max(1);
        Duration::from_millis(self.random() % whole_ms)
    }

    /// When an idle connection is closed by a drain: spread over the second quarter of the window. Closing at once
    /// would meet requests that are on their way; a client that sends one before is told to close with its answer
    /// (C28, C30).
    pub(crate) fn close_idle_at(&self) -> Duration {
        let (began_at, timeout) = self.drain_window.get();
        began_at + timeout / 4 + self.share_of(timeout / 4)
    }

    /// Brings the gauges of the statistics up to date.
    pub(crate) fn note_gauges(&self) {
        let wide = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let mut stats = self.stats.borrow_mut();
        let mut in_flight = 0;
        self.clusters.news.take_counts(|cluster, events| stats.cluster_events(cluster, events));
        self.clusters.for_each(|cluster| {
            let condition = cluster.condition();
            in_flight += condition.in_flight;
            stats.cluster_condition(cluster.stat, condition);
        });
        let (open, idle) = self.clusters.connections();
        let limiter = self.limiter.borrow();
        let (written, dropped) = self.log.counts();
        stats.gauges.connections = wide(self.connections());
        stats.gauges.requests = in_flight;
        stats.gauges.upstream_connections = wide(open);
        stats.gauges.upstream_connections_idle = wide(idle);
        stats.gauges.buffers_in_use = wide(core_runtime::buf::usage().0);
        stats.gauges.pipes = wide(core_runtime::net::pipes());
        stats.gauges.clients = wide(limiter.clients());
        let mut tokens = self.tokens.borrow_mut();
        tokens.free_some(TOKENS_FREED_MAX);
        stats.gauges.tokens = wide(tokens.tokens());
        stats.gauges.snapshots = wide(self.generations.count());
        stats.counters.log_rows_written = written;
        stats.counters.log_rows_dropped = dropped;
        stats.counters.clients_evicted_early = limiter.counts().evicted_early;
        stats.counters.clients_untracked = limiter.counts().untracked;
        stats.counters.tokens_verified = tokens.counts().verified;
        stats.counters.tokens_from_cache = tokens.counts().from_cache;
    }

    /// Connections that are open now.
    pub fn connections(&self) -> usize {
        self.connections.get()
    }

    /// Counts a connection of a listener from now until the count is dropped.
    pub(crate) fn connection_opened(
        self: &Rc<Self>,
        listener: StatId,
        peer: SocketAddr,
        waited: Duration,
    ) -> ConnectionCount {
        self.connections.set(self.connections.get() + 1);
        self.stats.borrow_mut().connection_accepted(listener, waited);
        let live = self.live.open(listener, peer);
        ConnectionCount { core: Rc::clone(self), listener, reason: Cell::new(None), live }
    }
}

/// A snapshot in use. The last holder sends it back to the thread that made it: freeing a large one here would
/// be a long turn.
#[derive(Debug)]
pub(crate) struct LiveSnapshot {
    /// `None` only while dropping.
    snapshot: Option<Box<Snapshot>>,
    number: u64,
    graveyard: Sender<Box<Snapshot>>,
}

impl LiveSnapshot {
    fn new(snapshot: Box<Snapshot>, number: u64, graveyard: &Sender<Box<Snapshot>>) -> Self {
        Self { snapshot: Some(snapshot), number, graveyard: graveyard.clone() }
    }

    /// Rises with every snapshot that this core applies.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl std::ops::Deref for LiveSnapshot {
    type Target = Snapshot;

    fn deref(&self) -> &Snapshot {
        self.snapshot.as_deref().expect("taken only by drop")
    }
}

impl Drop for LiveSnapshot {
    fn drop(&mut self) {
        if let Some(snapshot) = self.snapshot.take() {
            // A full queue or an ended thread means that it is freed here after all.
            match self.graveyard.send(snapshot) {
                Ok(()) | Err(SendError::Full(_) | SendError::Closed(_)) => {}
            }
        }
    }
}

/// Counts one connection for as long as it lives, whatever ends it.
#[derive(Debug)]
pub(crate) struct ConnectionCount {
    core: Rc<Core>,
    listener: StatId,
    reason: Cell<Option<Reason>>,
    /// What the admin listener shows of it.
    pub(crate) live: Rc<LiveConn>,
}

impl ConnectionCount {
    /// Why the connection ends, when that has not been counted otherwise.
    pub(crate) fn ends_with(&self, reason: Option<Reason>) {
        self.reason.set(reason);
    }
}

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.core.connections.set(self.core.connections.get() - 1);
        self.core.live.close(&self.live);
        self.core.stats.borrow_mut().connection_closed(self.listener, self.reason.get());
    }
}

impl Snapshot {
    /// A listener by the identity that stays the same over snapshots.
    pub(crate) fn listener(&self, stat: StatId) -> Option<&ListenerConfig> {
        self.listeners.iter().find(|listener| listener.stat == stat)
    }
}
