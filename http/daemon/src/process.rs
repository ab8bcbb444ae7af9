//! The process from start to end: load, bind, start the shards, obey signals, drain.

use std::fmt;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use control_api::Resources;
use core_runtime::clock::Epoch;
use core_runtime::mailbox::{LoadBoard, Mailbox, SendError, Sender, mailbox};
use core_runtime::shard::{self, DriverKind, ShardConfig};
use core_runtime::stats::{FrameSink, FrameSource, frames};
use core_runtime::affinity;
use http_proxy::conn::AcceptContext;
use http_proxy::core::{Command, Core};
use http_proxy::log::{AccessLog, LogBatch};
use http_proxy::record::{Aggregate, Frame, Names};
use http_proxy::service;
use http_proxy::snapshot::{Host, Snapshot, StatRegistry, compile_for};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use tls::TicketKeys;

use crate::admin::{self, Phase, Shared};
use crate::args::Options;
use crate::listeners::Sockets;
use crate::log_writer::{self, Order};
use crate::oplog;
use crate::restart::{self, Predecessor};

/// Why the process could not start.
#[derive(Debug)]
pub(crate) enum StartError {
    /// The config has this many errors, all logged.
    Config(usize),
    Io(&'static str, io::Error),
    Tickets(tls::TicketKeyError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(errors) => write!(f, "the config has {errors} error(s); nothing was started"),
            Self::Io(doing, error) => write!(f, "{doing}: {error}"),
            Self::Tickets(error) => write!(f, "session ticket keys: {error}"),
        }
    }
}

/// Commands that wait for one shard.
const COMMANDS_MAX: usize = 4096;
/// Old snapshots that wait to be freed.
const GRAVES_MAX: usize = 256;
/// How long a successor may take to start before the old process goes on without it.
const SUCCESSOR_PATIENCE: Duration = Duration::from_secs(60);

/// What the main thread waits for.
enum Event {
    Signal(i32),
    Successor(UnixStream),
    SuccessorReady,
    /// A shard's thread has ended.
    ShardEnded(usize, io::Result<()>),
}

struct Process {
    options: Options,
    registry: StatRegistry,
    tickets: TicketKeys,
    sockets: Sockets,
    shards: Vec<Sender<Command>>,
    state: Shared,
    log_orders: SyncSender<Order>,
    /// Names and addresses of the listeners in force, by number of their series.
    listening: Vec<(http_proxy::snapshot::StatId, String, std::net::SocketAddr)>,
}

pub(crate) fn run(options: Options) -> Result<(), StartError> {
    let resources = load(&options).map_err(StartError::Config)?;
    let count = match options.shards {
        Some(count) => count,
        None => affinity::allowed_cpus().map_err(|e| StartError::Io("cpu affinity", e))?.len(),
    };
    let mut registry = StatRegistry::new();
    let tickets = TicketKeys::generate().map_err(StartError::Tickets)?;
    let snapshots = compile_each(&resources, &mut registry, &tickets, count).map_err(StartError::Config)?;
    if options.check {
        oplog::info("the config is good");
        return Ok(());
    }
    if let Err(error) = tls::forbid_core_dumps() {
        oplog::warn(&format!("core dumps could not be forbidden: {error}"));
    }
    let (sockets, predecessor) = take_over(&options)?;
    let (batches, log_orders) = log_writer::start().map_err(|e| StartError::Io("log writer", e))?;
    let state = Arc::new(Mutex::new(admin::State {
        aggregate: Aggregate::new(count),
        names: Names::default(),
        phase: Phase::Starting,
        config: serde_json::Value::Null,
        process_metrics: String::new(),
    }));
    let (events_in, events) = sync_channel(64);
    let started = Shards::start(&options, count, snapshots, &registry, batches, &events_in)?;
    spawn_aggregator(started.sink, Arc::clone(&state)).map_err(|e| StartError::Io("aggregator", e))?;
    let mut process = Process {
        registry,
        tickets,
        sockets,
        shards: started.shards,
        state,
        log_orders,
        listening: Vec::new(),
        options,
    };
    process.begin(&resources, predecessor, &events_in)?;
    process.obey(&events, started.threads);
    Ok(())
}

fn load(options: &Options) -> Result<Resources, usize> {
    match control_config::load(&options.config) {
        Ok(loaded) => {
            loaded.warnings.iter().for_each(|warning| oplog::warn(&format!("config: {warning}")));
            Ok(loaded.resources)
        }
        Err(errors) => {
            errors.iter().for_each(|error| oplog::error(&format!("config: {error}")));
            Err(errors.len())
        }
    }
}

fn compile_each(
    resources: &Resources,
    registry: &mut StatRegistry,
    tickets: &TicketKeys,
    count: usize,
) -> Result<Vec<Snapshot>, usize> {
    let roots = system_roots();
    let host = Host { ticket_keys: Some(tickets), system_roots_pem: roots.as_deref() };
    (0..count)
        .map(|_| compile_for(resources, &host, registry))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|nacks| {
            nacks.iter().for_each(|nack| oplog::error(&format!("config: {nack}")));
            nacks.len()
        })
}

/// The CA bundle of the host, where Debian, Fedora and Alpine keep it.
fn system_roots() -> Option<Vec<u8>> {
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"]
        .iter()
        .find_map(|path| std::fs::read(path).ok())
}

fn take_over(options: &Options) -> Result<(Sockets, Option<Predecessor>), StartError> {
    let Some(path) = &options.restart_socket else { return Ok((Sockets::default(), None)) };
    match restart::take_over(path).map_err(|e| StartError::Io("taking over from the old process", e))? {
        Some((sockets, predecessor)) => {
            oplog::info(&format!("took over {} listening sockets", sockets.iter().count()));
            Ok((sockets, Some(predecessor)))
        }
        None => Ok((Sockets::default(), None)),
    }
}

/// The shards' threads and the ends of their queues.
struct Shards {
    shards: Vec<Sender<Command>>,
    threads: Vec<JoinHandle<()>>,
    sink: FrameSink<Box<Frame>>,
}

/// What one shard's thread is made from.
struct Seed {
    index: usize,
    snapshot: Snapshot,
    sizes: http_proxy::record::TableSizes,
    mailbox: Mailbox<Command>,
    accept: AcceptContext,
    frames: FrameSource<Box<Frame>>,
    random: [u64; 7],
    batches: Sender<LogBatch>,
    graveyard: Sender<Box<Snapshot>>,
    drain_timeout: Duration,
}

impl Shards {
    fn start(
        options: &Options,
        count: usize,
        snapshots: Vec<Snapshot>,
        registry: &StatRegistry,
        batches: Sender<LogBatch>,
        events: &SyncSender<Event>,
    ) -> Result<Self, StartError> {
        let failed = |error| StartError::Io("starting a shard", error);
        let cpus = affinity::allowed_cpus().map_err(failed)?;
        let epoch = Epoch::start();
        let (sources, sink) = frames(count, || Box::new(Frame::default()));
        let graveyard = spawn_graveyard().map_err(failed)?;
        let (senders, mailboxes): (Vec<_>, Vec<_>) =
            (0..count).map(|_| mailbox(COMMANDS_MAX)).collect::<io::Result<Vec<_>>>().map_err(failed)?.into_iter().unzip();
        let accept = AcceptContext { board: LoadBoard::new(count), shards: senders.clone() };
        let mut threads = Vec::new();
        for (index, ((snapshot, frames), mailbox)) in snapshots.into_iter().zip(sources).zip(mailboxes).enumerate() {
            let seed = Seed {
                index,
                snapshot,
                sizes: service::table_sizes(registry),
                mailbox,
                accept: accept.clone(),
                frames,
                random: seed().map_err(failed)?,
                batches: batches.clone(),
                graveyard: graveyard.clone(),
                drain_timeout: options.drain_timeout,
            };
            let config = ShardConfig {
                index,
                cpu: cpus.get(index % cpus.len().max(1)).copied().filter(|_| count <= cpus.len()),
                driver: options.driver,
                epoch: epoch.clone(),
            };
            let thread = shard::start(config, move |kind| serve_shard(seed, kind)).map_err(failed)?;
            threads.push(watch(index, thread, events.clone()).map_err(failed)?);
        }
        Ok(Self { shards: senders, threads, sink })
    }
}

async fn serve_shard(seed: Seed, kind: DriverKind) {
    if let DriverKind::Epoll { reason } = &kind
        && seed.index == 0
    {
        oplog::warn(&format!("running on epoll: {reason}"));
    }
    let inbox = match seed.mailbox.open() {
        Ok(inbox) => inbox,
        Err(error) => {
            oplog::error(&format!("shard {}: {error}", seed.index));
            return;
        }
    };
    let log = AccessLog::new(seed.batches);
    let core = Core::new(seed.index, Box::new(seed.snapshot), seed.sizes, seed.random, log, seed.graveyard);
    service::run(core, inbox, seed.accept, seed.frames, seed.drain_timeout).await;
}

/// Tells the main thread when a shard's thread ends.
fn watch(index: usize, thread: JoinHandle<io::Result<()>>, events: SyncSender<Event>) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(format!("watch-{index}")).spawn(move || {
        let result = thread.join().unwrap_or_else(|_panic| Err(io::Error::other("the shard's thread panicked")));
        // The main thread may have ended its loop already.
        match events.send(Event::ShardEnded(index, result)) {
            Ok(()) | Err(_) => {}
        }
    })
}

/// Frees old snapshots off the shards.
fn spawn_graveyard() -> io::Result<Sender<Box<Snapshot>>> {
    let (sender, graves) = mailbox::<Box<Snapshot>>(GRAVES_MAX)?;
    let dig = move || {
        while let Ok(snapshot) = graves.receive_or_closed() {
            drop(snapshot);
        }
    };
    std::thread::Builder::new().name("graveyard".to_owned()).spawn(dig)?;
    Ok(sender)
}

/// Fresh randomness for one shard: its draws, its request ids and the key of its client table.
fn seed() -> io::Result<[u64; 7]> {
    use std::io::Read as _;
    let mut source = std::fs::File::open("/dev/urandom")?;
    let mut words = [0u64; 7];
    for word in &mut words {
        let mut bytes = [0u8; 8];
        source.read_exact(&mut bytes)?;
        *word = u64::from_ne_bytes(bytes);
    }
    Ok(words)
}

fn spawn_aggregator(sink: FrameSink<Box<Frame>>, state: Shared) -> io::Result<()> {
    let aggregate = move || {
        loop {
            // Shards report twice a second; a minute of silence is no reason to stop listening.
            let Some(mut filled) = sink.receive(Duration::from_secs(60)) else { continue };
            let before = {
                let mut state = admin::lock(&state);
                let fresh = std::mem::take(&mut filled.frame);
                state.aggregate.accept(filled.shard, fresh)
            };
            if let Some(frame) = before {
                filled.frame = frame;
            }
            sink.give_back(filled);
        }
    };
    std::thread::Builder::new().name("aggregator".to_owned()).spawn(aggregate).map(drop)
}

impl Process {
    /// Binds, lets the shards accept, and says so.
    fn begin(
        &mut self,
        resources: &Resources,
        predecessor: Option<Predecessor>,
        events: &SyncSender<Event>,
    ) -> Result<(), StartError> {
        let snapshot = compile_each(resources, &mut self.registry, &self.tickets, 1).map_err(StartError::Config)?;
        let Some(snapshot) = snapshot.first() else { return Ok(()) };
        self.sockets.drop_unused(self.shards.len(), |name| snapshot.listeners.iter().any(|l| l.name == name));
        self.listen(snapshot).map_err(|e| StartError::Io("binding", e))?;
        self.publish(snapshot);
        if let Some(address) = &self.options.admin {
            let bound = admin::start(address, Arc::clone(&self.state));
            let bound = bound.map_err(|e| StartError::Io("the admin listener", e))?;
            oplog::info(&format!("admin listener on {bound}"));
        }
        spawn_signals(events.clone()).map_err(|e| StartError::Io("signals", e))?;
        admin::lock(&self.state).phase = Phase::Ready;
        if let Some(predecessor) = predecessor {
            predecessor.ready();
        }
        if let Some(path) = &self.options.restart_socket {
            let listener = restart::listen(path).map_err(|e| StartError::Io("the restart socket", e))?;
            spawn_successor_watch(listener, events.clone()).map_err(|e| StartError::Io("the restart socket", e))?;
        }
        for (_, name, _) in &self.listening {
            if let Some(address) = self.sockets.address(name) {
                oplog::info(&format!("listener {name:?} on {address}"));
            }
        }
        oplog::info(&format!("ready: version {:?}, {} shard(s)", snapshot.version, self.shards.len()));
        Ok(())
    }

    /// Brings the listening sockets in line with a snapshot: new ones are opened, old ones closed.
    fn listen(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        let wanted: Vec<_> = snapshot.listeners.iter().map(|l| (l.stat, l.name.clone(), l.address)).collect();
        let gone: Vec<_> = self.listening.iter().filter(|old| !wanted.contains(old)).cloned().collect();
        for (stat, name, _) in &gone {
            self.tell_all(|| Command::Unlisten { listener: *stat });
            self.sockets.close(name);
        }
        for config in &snapshot.listeners {
            let key = (config.stat, config.name.clone(), config.address);
            if self.listening.contains(&key) {
                continue;
            }
            for shard in 0..self.shards.len() {
                let socket = self.sockets.open(config, shard)?;
                self.tell(shard, Command::Listen { listener: config.stat, socket });
            }
        }
        self.listening = wanted;
        Ok(())
    }

    fn tell(&self, shard: usize, command: Command) {
        let Some(sender) = self.shards.get(shard) else { return };
        match sender.send(command) {
            Ok(()) => {}
            Err(SendError::Full(command)) => {
                oplog::error(&format!("shard {shard} does not take commands; lost {command:.40?}"));
            }
            Err(SendError::Closed(_)) => {}
        }
    }

    fn tell_all(&self, command: impl Fn() -> Command) {
        (0..self.shards.len()).for_each(|shard| self.tell(shard, command()));
    }

    /// Shows a snapshot on the admin listener and gives its log sinks to the writer.
    fn publish(&self, snapshot: &Snapshot) {
        let mut state = admin::lock(&self.state);
        for listener in &snapshot.listeners {
            state.names.set_listener(listener.stat, &listener.name);
            listener.routes.routes().for_each(|route| state.names.set_route(route.stat, &route.name));
        }
        for cluster in &snapshot.clusters {
            state.names.set_cluster(cluster.stat, &cluster.name);
            for endpoint in &cluster.endpoints {
                state.names.set_endpoint(endpoint.stat, &cluster.name, &endpoint.address.to_string());
            }
        }
        state.config = describe(snapshot);
        drop(state);
        log_writer::order(&self.log_orders, Order::Sinks(self.registry.sinks().to_vec()));
    }

    fn obey(mut self, events: &Receiver<Event>, threads: Vec<JoinHandle<()>>) {
        let mut running = self.shards.len();
        let mut successor: Option<UnixStream> = None;
        while running > 0 {
            let event = match events.recv_timeout(Duration::from_secs(3600)) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            match event {
                Event::Signal(SIGHUP) => self.reload(),
                Event::Signal(SIGUSR1) => log_writer::order(&self.log_orders, Order::Reopen),
                Event::Signal(_) => self.drain("told by a signal"),
                Event::Successor(stream) => match restart::hand_over(&stream, &self.sockets) {
                    Ok(()) => successor = Some(stream),
                    Err(error) => oplog::warn(&format!("hand-over refused: {error}")),
                },
                Event::SuccessorReady if successor.take().is_some() => self.drain("a successor serves"),
                Event::SuccessorReady => {}
                Event::ShardEnded(index, result) => {
                    running -= 1;
                    if let Err(error) = result {
                        oplog::error(&format!("shard {index} ended: {error}"));
                    }
                }
            }
        }
        for thread in threads {
            // Watchers end with their shards; a panic in one has nothing left to harm.
            match thread.join() {
                Ok(()) | Err(_) => {}
            }
        }
        oplog::info("ended");
    }

    fn drain(&self, why: &str) {
        let mut state = admin::lock(&self.state);
        if state.phase != Phase::Draining {
            oplog::info(&format!("draining: {why}"));
        }
        state.phase = Phase::Draining;
        drop(state);
        self.tell_all(|| Command::Drain);
    }

    /// Loads the config again. A wrong one changes nothing.
    fn reload(&mut self) {
        let Ok(resources) = load(&self.options) else {
            oplog::error("reload refused; the old config stays");
            return;
        };
        let compiled = compile_each(&resources, &mut self.registry, &self.tickets, self.shards.len());
        let Ok(snapshots) = compiled else {
            oplog::error("reload refused; the old config stays");
            return;
        };
        let Some(first) = snapshots.first() else { return };
        self.publish(first);
        let sizes = service::table_sizes(&self.registry);
        // A listener must be known to the shards before its sockets come.
        let described = describe_listeners(first);
        for (shard, snapshot) in snapshots.into_iter().enumerate() {
            self.tell(shard, Command::Apply(Box::new(snapshot), sizes));
        }
        if let Err(error) = self.relisten(&resources, &described) {
            oplog::error(&format!("reload: {error}; the other listeners serve the new config"));
        }
        oplog::info(&format!("config {:?} is in force", resources.version));
    }

    fn relisten(&mut self, resources: &Resources, described: &[String]) -> io::Result<()> {
        let same = described.len() == self.listening.len()
            && self.listening.iter().all(|(_, name, address)| described.contains(&format!("{name} {address}")));
        if same {
            return Ok(());
        }
        let compiled = compile_each(resources, &mut self.registry, &self.tickets, 1);
        match compiled.ok().and_then(|mut snapshots| snapshots.pop()) {
            Some(snapshot) => self.listen(&snapshot),
            None => Ok(()),
        }
    }
}

fn describe_listeners(snapshot: &Snapshot) -> Vec<String> {
    snapshot.listeners.iter().map(|l| format!("{} {}", l.name, l.address)).collect()
}

/// The configuration in force, without anything secret.
fn describe(snapshot: &Snapshot) -> serde_json::Value {
    let listeners: Vec<_> = snapshot
        .listeners
        .iter()
        .map(|l| {
            serde_json::json!({
                "name": l.name,
                "address": l.address.to_string(),
                "tls": l.tls.is_some(),
                "routes": l.routes.routes().map(|route| route.name.as_str()).collect::<Vec<_>>(),
            })
        })
        .collect();
    let clusters: Vec<_> = snapshot
        .clusters
        .iter()
        .map(|c| {
            serde_json::json!({
                "name": c.name,
                "endpoints": c.endpoints.iter().map(|e| e.address.to_string()).collect::<Vec<_>>(),
                "names": c.dns.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(),
            })
        })
        .collect();
    serde_json::json!({ "version": snapshot.version, "listeners": listeners, "clusters": clusters })
}

fn spawn_signals(events: SyncSender<Event>) -> io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
    let forward = move || {
        for signal in signals.forever() {
            if events.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(forward).map(drop)
}

/// Waits for successors: one at a time, each hears the sockets and then says that it serves.
fn spawn_successor_watch(listener: UnixListener, events: SyncSender<Event>) -> io::Result<()> {
    let watch = move || {
        while let Ok((stream, _)) = listener.accept() {
            let Ok(twin) = stream.try_clone() else { continue };
            if events.send(Event::Successor(twin)).is_err() {
                return;
            }
            match restart::wait_until_ready(&stream, SUCCESSOR_PATIENCE) {
                Ok(()) => {
                    if events.send(Event::SuccessorReady).is_err() {
                        return;
                    }
                }
                Err(error) => oplog::warn(&format!("a successor did not come up: {error}")),
            }
        }
    };
    std::thread::Builder::new().name("successor".to_owned()).spawn(watch).map(drop)
}
