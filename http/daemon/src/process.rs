//! The running process: one loop on the main thread that obeys signals, successors and timers.
//!
//! ```text
//!   Ready ──SIGTERM, SIGINT, successor ready──► Draining ──all shards ended──► exit 0, or 3 when something was cut
//!     │ ▲                                           │ second signal: cut now
//!     └─┘ SIGHUP, config changed: reload (reload.rs)└──►
//! ```
//! Reloads are coalesced: a burst of signals is one reload, and two are [`RELOAD_INTERVAL_MIN`] apart. A shard that
//! ends by itself leaves its sockets to another one, because the kernel goes on filling their queues.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http_proxy::core::Command;
use http_proxy::pool::{Checked, Resolved};
use http_proxy::snapshot::{DnsTarget, EndpointConfig, StatFamily, StatRegistry};
use http_proxy::survey::Left;
use signal_hook::consts::{SIGHUP, SIGUSR1};

use crate::admin::{self, Admin, Phase, Resolver, Shared, Sources};
use crate::args::Options;
use crate::describe::{self, Description, Wanted};
use crate::dns::{self, DnsSettings, Severity};
use crate::drains::{Drains, Known};
use crate::ended::{Ended, StartError};
use crate::events::Event;
use crate::health::{self, Checker};
use crate::listeners::{Opening, Plan, Sockets};
use crate::log_writer::LogWriter;
use crate::restart::Bequest;
use crate::shards::Shards;
use crate::tickets::Tickets;
use crate::{oplog, sessions, unix_socket};

/// Time between two reloads; what comes in between is one reload.
const RELOAD_INTERVAL_MIN: Duration = Duration::from_millis(250);
/// How often a command that a shard's queue did not take is tried again.
const BACKLOG_INTERVAL: Duration = Duration::from_millis(10);
/// How long new names of clusters keep a start or a reload waiting. A name server that does not answer must not keep the
/// rest of the configuration out.
const NAMES_PATIENCE: Duration = Duration::from_secs(3);
/// With nothing to wait for.
const NO_HURRY: Duration = Duration::from_secs(3600);
/// How long log targets may keep the process at its end.
const LOG_PATIENCE: Duration = Duration::from_secs(5);

/// Endpoints that names resolved to and that no shard has heard of yet, by cluster: the newest counts.
type Arrivals = Arc<Mutex<BTreeMap<String, Vec<EndpointConfig>>>>;

/// Results of health checks that no shard has heard of yet, by cluster.
type Findings = Arc<Mutex<BTreeMap<String, health::Known>>>;

/// All that the main thread holds.
pub(crate) struct Process {
    pub(crate) options: Options,
    pub(crate) registry: StatRegistry,
    pub(crate) tickets: Tickets,
    pub(crate) sockets: Sockets,
    pub(crate) shards: Shards,
    pub(crate) state: Shared,
    pub(crate) log: LogWriter,
    /// Of the config in force.
    pub(crate) digest: String,
    pub(crate) listeners: Vec<Wanted>,
    /// Snapshots that each shard has been told to apply.
    pub(crate) applied: u64,
    /// The config in force was compiled after series had been retired the last time.
    pub(crate) may_retire: bool,
    events: SyncSender<Event>,
    admin: Option<Admin>,
    resolver: Resolver,
    arrivals: Arrivals,
    /// Started with the first cluster that is checked.
    checker: Option<Checker>,
    findings: Findings,
    pub(crate) drains: Drains,
    reload: Wish,
    last_reload: Option<Instant>,
    has_successor: bool,
    cut: Left,
}

/// Whether a reload is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Wish {
    #[default]
    None,
    /// If the files differ from what is in force.
    IfChanged,
    /// By the operator: the files may be the same, but the host's CA bundle may not.
    Always,
}

impl Process {
    #[expect(clippy::too_many_arguments, reason = "the composition root puts together what it has made")]
    pub(crate) fn new(
        options: Options,
        registry: StatRegistry,
        tickets: Tickets,
        sockets: Sockets,
        shards: Shards,
        state: Shared,
        log: LogWriter,
        events: SyncSender<Event>,
        drains: Drains,
    ) -> Self {
        Self {
            options,
            registry,
            tickets,
            sockets,
            shards,
            state,
            log,
            digest: String::new(),
            listeners: Vec::new(),
            applied: 0,
            may_retire: true,
            events,
            admin: None,
            resolver: Arc::default(),
            arrivals: Arc::default(),
            checker: None,
            findings: Arc::default(),
            drains,
            reload: Wish::None,
            last_reload: None,
            has_successor: false,
            cut: Left::default(),
        }
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// Starts the admin listener, if there is one.
    pub(crate) fn start_admin(
        &mut self,
        inherited: Option<(String, std::os::fd::OwnedFd)>,
    ) -> Result<(), StartError> {
        let Some(address) = &self.options.admin else { return Ok(()) };
        let sources = Sources {
            state: Arc::clone(&self.state),
            shards: self.shards.senders(),
            resolver: Arc::clone(&self.resolver),
            events: self.events.clone(),
        };
        let failed = |error| StartError::Address(format!("the admin listener {address}"), error);
        self.admin = Some(admin::start(address, inherited, sources).map_err(failed)?);
        Ok(())
    }

    pub(crate) fn say_ready(&self) {
        for listener in &self.listeners {
            if let Some(address) = self.sockets.address(listener.stat) {
                oplog::info(&format!("listener {:?} on {address}", listener.name));
            }
        }
        let version = admin::lock(&self.state).facts.version.clone();
        oplog::info(&format!("ready: version {version:?}, {} shard(s)", self.shards.count()));
    }

    /// Shows a config on the admin listener, gives the log writer its sinks and the resolver its names, and lets the
    /// shards have the addresses of new names before the config that uses them. Returns what an operator may drain, for
    /// [`Self::adopt_drains`] once the shards have been told of the config.
    #[must_use]
    pub(crate) fn publish(&mut self, description: Description, digest: String) -> BTreeMap<String, Known> {
        let Description { version, listeners, names, titles, dns, named, checks, endpoints, dump } =
            description;
        self.registry.set_named(named);
        self.log.set_sinks(self.registry.sinks());
        {
            let mut state = admin::lock(&self.state);
            state.names = names;
            state.titles = titles;
            state.config = dump;
            state.facts.version = version;
            state.facts.secrets_locked = self.tickets.custody() == tls::Custody::Locked;
            let overflow = |family: StatFamily| (family.label(), self.registry.overflowed(family));
            state.facts.series_overflow = StatFamily::ALL.into_iter().map(overflow).collect();
        }
        self.note_rings();
        self.listeners = listeners;
        self.digest = digest;
        self.check(checks);
        self.resolve(dns);
        self.pass_on_addresses();
        endpoints
    }

    /// Carries out a plan: closes first, so that a listener may change its address or two may swap theirs.
    pub(crate) fn open(&mut self, plan: Plan) {
        let (close, open, groups) = plan.parts();
        close.into_iter().for_each(|listener| self.shards.tell_all(|| Command::Unlisten { listener }));
        self.listen(open);
        self.sockets.commit(groups);
    }

    pub(crate) fn listen(&mut self, open: Vec<Opening>) {
        for Opening { shard, listener, socket } in open {
            self.shards.tell(shard, Command::Listen { listener, socket });
        }
    }

    /// Serves until all shards have ended.
    pub(crate) fn obey(mut self, events: &Receiver<Event>) -> Ended {
        while self.shards.running() > 0 {
            match events.recv_timeout(self.patience()) {
                Ok(event) => self.take(event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            // What has come meanwhile belongs to the same turn: ten SIGHUPs are one reload.
            while let Ok(event) = events.try_recv() {
                self.take(event);
            }
            self.keep_house();
        }
        self.end()
    }

    pub(crate) fn is_draining(&self) -> bool {
        admin::lock(&self.state).phase == Phase::Draining
    }

    fn patience(&self) -> Duration {
        if self.shards.stuck().is_some() {
            return BACKLOG_INTERVAL;
        }
        let now = Instant::now();
        let reload = self.reload_at(now).map(|at| at.saturating_duration_since(now));
        let rotation = self.tickets.due().saturating_duration_since(now);
        reload.unwrap_or(NO_HURRY).min(rotation).min(NO_HURRY)
    }

    fn reload_at(&self, now: Instant) -> Option<Instant> {
        let earliest = self.last_reload.map_or(now, |last| last + RELOAD_INTERVAL_MIN);
        (self.reload != Wish::None).then_some(earliest)
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Signal(SIGHUP) => self.reload = Wish::Always,
            Event::Signal(SIGUSR1) => self.log.reopen(),
            Event::Signal(_) if self.is_draining() => {
                oplog::info("told again: ending at once");
                self.shards.tell_all(|| Command::Cut);
            }
            Event::Signal(_) => self.drain("told by a signal"),
            Event::ConfigChanged if self.reload == Wish::None => self.reload = Wish::IfChanged,
            // Seen by every turn of the loop.
            Event::ConfigChanged | Event::Resolved | Event::Checked | Event::ShardStarted(..) => {}
            Event::Endpoint(order, answer) => {
                // The client may have left.
                match answer.send(self.change_endpoint(&order)) {
                    Ok(()) | Err(_) => {}
                }
            }
            Event::Successor(give) => {
                // The other thread has given up when this fails.
                match give.send(self.bequest()) {
                    Ok(()) | Err(_) => {}
                }
            }
            Event::SuccessorReady => {
                self.has_successor = true;
                // Both have the same admin socket: the successor's answers are the ones that count now.
                if let Some(admin) = self.admin.take() {
                    admin.hand_on();
                }
                self.drain("a successor serves");
            }
            Event::ShardEnded(shard, result) => self.shard_ended(shard, result),
        }
    }

    /// What is not an event: commands that wait, addresses that have come, and what is due.
    fn keep_house(&mut self) {
        self.shards.flush();
        self.pass_on_addresses();
        self.pass_on_findings();
        if self.is_draining() {
            self.reload = Wish::None;
            return;
        }
        let now = Instant::now();
        if self.tickets.due() <= now {
            self.rotate_tickets(now);
        }
        if self.reload_at(now).is_some_and(|at| at <= now) {
            let only_if_changed = std::mem::take(&mut self.reload) == Wish::IfChanged;
            self.reload(only_if_changed);
            self.last_reload = Some(Instant::now());
        }
        admin::lock(&self.state).facts.log_rows_lost = self.log.rows_lost();
    }

    fn rotate_tickets(&mut self, now: Instant) {
        if let Err(error) = self.tickets.rotate(now) {
            oplog::error(&format!("session ticket keys stay as they are: {error}"));
            return;
        }
        for shard in 0..self.shards.count() {
            match self.tickets.keys() {
                Ok(keys) => self.shards.tell(shard, Command::Tickets(keys)),
                Err(error) => oplog::error(&format!("session ticket keys of shard {shard} stay: {error}")),
            }
        }
        admin::lock(&self.state).facts.ticket_rotations += 1;
        oplog::info("session ticket keys were rotated");
    }

    fn bequest(&mut self) -> Bequest {
        if self.is_draining() {
            return Bequest::default();
        }
        let complain = |what: &str, error: &dyn std::fmt::Display| {
            oplog::error(&format!("{what} cannot be handed over: {error}"));
        };
        let sockets = self.sockets.duplicate().unwrap_or_else(|error| {
            complain("listening sockets", &error);
            Vec::new()
        });
        let admin = self.admin.as_ref().and_then(|admin| match admin.bequest() {
            Ok(bequest) => Some(bequest),
            Err(error) => {
                complain("the admin listener", &error);
                None
            }
        });
        let tickets = Some(self.tickets.bequest(Instant::now()));
        let told = sessions::bequest(&self.registry.heritage(self.shards.now()));
        if told.left_out > 0 {
            oplog::warn(&format!(
                "{} ring(s) of sticky sessions are too many to be handed over: their sessions go by the present ring",
                told.left_out
            ));
        }
        Bequest { sockets, admin, tickets, drained: self.drains.bequest(), sessions: told.messages }
    }

    fn drain(&mut self, why: &str) {
        if self.is_draining() {
            return;
        }
        admin::lock(&self.state).phase = Phase::Draining;
        oplog::info(&format!("draining: {why}"));
        // C29: nothing is looked up for a process that ends.
        let resolver = admin::lock(&self.resolver).take();
        if let Some(resolver) = resolver {
            resolver.stop();
        }
        // The shards' descriptors are the last ones now: a socket goes with its shard's last accept, so that nobody
        // connects to a queue that is not read any more.
        self.sockets.release();
        self.shards.tell_all(|| Command::Drain);
    }

    fn shard_ended(&mut self, shard: usize, result: std::io::Result<Left>) {
        self.shards.has_ended(shard);
        admin::lock(&self.state).facts.shards_running = self.shards.running();
        match result {
            Ok(left) => self.cut.add(&left),
            Err(error) => oplog::error(&format!("shard {shard} ended: {error}")),
        }
        if self.is_draining() {
            return;
        }
        let Some(heir) = self.shards.heir(shard) else {
            oplog::error("no shard is left");
            return;
        };
        oplog::error(&format!("shard {heir} takes over the listening sockets of shard {shard}"));
        match self.sockets.of_shard(shard, self.shards.count(), heir) {
            Ok(open) => self.listen(open),
            Err(error) => {
                oplog::error(&format!("listening sockets of shard {shard} are not served: {error}"))
            }
        }
    }

    /// Sets the names to resolve, and waits a little for those that are new; the resolver is started with the first ones.
    fn resolve(&mut self, targets: Vec<(String, Vec<DnsTarget>)>) {
        let known = match self.set_names(targets) {
            None => return,
            Some(known) => known.and_then(|known| match known.recv_timeout(NAMES_PATIENCE) {
                Err(RecvTimeoutError::Disconnected) => Err(dns::Unavailable),
                answer => Ok(answer),
            }),
        };
        match known {
            Ok(Ok(())) => {}
            Ok(Err(_timeout)) => oplog::warn(&format!(
                "names of clusters have no answer after {NAMES_PATIENCE:?}: these clusters refuse requests until they have"
            )),
            Err(error) => oplog::error(&error.to_string()),
        }
    }

    /// `None` when there is no resolver and no need for one.
    fn set_names(
        &mut self,
        targets: Vec<(String, Vec<DnsTarget>)>,
    ) -> Option<Result<Receiver<()>, dns::Unavailable>> {
        let mut resolver = admin::lock(&self.resolver);
        if resolver.is_none() && !targets.is_empty() {
            let (arrivals, events) = (Arc::clone(&self.arrivals), self.events.clone());
            let on_change = move |resolved: Resolved| {
                admin::lock(&arrivals).insert(resolved.cluster, resolved.endpoints);
                // A full queue means that the main thread is about to look anyway.
                match events.try_send(Event::Resolved) {
                    Ok(()) | Err(_) => {}
                }
            };
            let on_event = |event: &dns::Event| match event.severity() {
                Severity::Info => oplog::info(&event.to_string()),
                Severity::Warning => oplog::warn(&event.to_string()),
                Severity::Error => oplog::error(&event.to_string()),
            };
            match dns::start(DnsSettings::default(), on_change, on_event) {
                Ok(handle) => *resolver = Some(handle),
                Err(error) => oplog::error(&format!("the DNS resolver cannot be started: {error}")),
            }
        }
        let resolver = resolver.as_ref()?;
        Some(resolver.set_targets(targets).and_then(|()| resolver.known()))
    }

    /// Sets the clusters to check; the checker is started with the first one.
    fn check(&mut self, targets: Vec<health::Target>) {
        if self.checker.is_none() && !targets.is_empty() {
            let (findings, events) = (Arc::clone(&self.findings), self.events.clone());
            let on_change = move |cluster: &str, known: health::Known| {
                admin::lock(&findings).insert(cluster.to_owned(), known);
                // A full queue means that the main thread is about to look anyway.
                match events.try_send(Event::Checked) {
                    Ok(()) | Err(_) => {}
                }
            };
            let seed = RandomState::new().hash_one(std::process::id());
            match Checker::start(seed, on_change) {
                Ok(checker) => self.checker = Some(checker),
                Err(error) => oplog::error(&format!("health checks cannot be started: {error}")),
            }
        }
        if let Some(checker) = &self.checker {
            checker.set_targets(targets);
        }
    }

    /// Shows what the rings of sticky sessions take, and which went before their time.
    fn note_rings(&mut self) {
        let sessions = &mut admin::lock(&self.state).facts.sessions;
        sessions.points = self.registry.ring_points();
        sessions.versions = self.registry.ring_versions();
        for (cluster, dropped) in self.registry.take_dropped_rings() {
            describe::warn_of_dropped_rings(&cluster, dropped);
            sessions.dropped.add(dropped);
        }
    }

    fn pass_on_findings(&mut self) {
        let findings = std::mem::take(&mut *admin::lock(&self.findings));
        for (cluster, endpoints) in findings {
            self.shards.tell_all(|| {
                Command::Checked(Checked { cluster: cluster.clone(), endpoints: endpoints.clone() })
            });
        }
    }

    fn pass_on_addresses(&mut self) {
        let arrivals = std::mem::take(&mut *admin::lock(&self.arrivals));
        for (cluster, endpoints) in arrivals {
            self.drains.found(&cluster, endpoints.iter().map(|endpoint| endpoint.address).collect());
            if let Some(checker) = &self.checker {
                checker.found(&cluster, endpoints.iter().map(health::Peer::of).collect());
            }
            let generations = self.registry.resolved(&cluster, &endpoints, self.shards.now());
            let tables = self.registry.tables_with(&cluster, &endpoints);
            self.note_rings();
            self.shards.tell_all(|| {
                let (endpoints, generations, tables) =
                    (endpoints.clone(), generations.clone(), tables.clone());
                Command::Resolved(Resolved { cluster: cluster.clone(), endpoints, generations, tables })
            });
        }
    }

    fn end(self) -> Ended {
        let was_draining = self.is_draining();
        if !self.log.finish(LOG_PATIENCE) {
            oplog::error("an access log target does not take its lines; the last ones are lost");
        }
        if let Some(admin) = self.admin {
            admin.end();
        }
        if let Some(path) = self.options.restart_socket.as_ref().filter(|_| !self.has_successor)
            && let Err(error) = unix_socket::remove(path)
        {
            oplog::warn(&format!("{}: {error}", path.display()));
        }
        if !was_draining {
            oplog::error("ended: every shard has ended by itself");
            return Ended::Failed;
        }
        if self.cut.connections() == 0 {
            oplog::info("ended");
            return Ended::Clean;
        }
        let Left { connections_h1, connections_h2, connections_tcp, connections_new, requests } = self.cut;
        oplog::warn(&format!(
            "ended: cut {connections_h1} HTTP/1 and {connections_h2} HTTP/2 connections with {requests} requests in \
             progress, {connections_tcp} TCP connections, and {connections_new} that had not sent anything"
        ));
        // Clients of connections without a request had been told to go, and lose nothing.
        if requests == 0 { Ended::Clean } else { Ended::Cut }
    }
}
