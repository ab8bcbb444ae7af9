//! The resolver's thread: it owns the table, gives names that are due to its workers and reports what they find.
//!
//! Invariants: only this thread sees the table, so reports come in order; at most [`WORKERS`] look-ups run, and at
//! most [`FAILING_WORKERS`] of them for names that failed the last time, so that names which work never wait for
//! names known to be slow. Bound: a name that is due waits only while all workers are busy with names that became
//! slow in this moment, which takes [`LOOKUP_MAX`](super::client::LOOKUP_MAX) for each eight of them.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use http_proxy::pool::Resolved;
use http_proxy::snapshot::DnsTarget;

use super::client::{Client, Lookup, Servers};
use super::conf::{Hosts, ResolvConf, Watched};
use super::message::{Answer, LookupError, QueryName};
use super::random::Random;
use super::table::{Due, Table};
use super::{DnsSettings, Event, NameState};

/// Look-ups at the same time.
const WORKERS: usize = 8;

/// Those of them that may be busy with names whose last look-up failed.
const FAILING_WORKERS: usize = WORKERS / 2;

/// How long an entry of the hosts file, or an address that stands for itself, is taken for granted.
const LOCAL_TTL: Duration = Duration::from_secs(10);

const WORKER_STACK_BYTES: usize = 256 << 10;

/// Bounds of what resolv.conf may ask for.
const TIMEOUT_MAX: Duration = Duration::from_secs(5);
const ATTEMPTS_MAX: u32 = 5;

/// When nobody says otherwise.
const TIMEOUT: Duration = Duration::from_secs(2);
const ATTEMPTS: u32 = 2;

/// What the thread is told.
pub(super) enum Order {
    Targets(Vec<(String, Vec<DnsTarget>)>),
    State(Sender<Vec<NameState>>),
    /// Tell when every name has been looked up once.
    Known(Sender<()>),
    Done {
        worker: usize,
        name: String,
        lookup: Lookup,
    },
    Stop,
}

struct Job {
    name: String,
    query: QueryName,
    servers: Servers,
    first: usize,
}

struct Worker {
    jobs: Sender<Job>,
    state: WorkerState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WorkerState {
    Idle,
    Busy,
    /// With a name whose last look-up failed.
    BusyWithFailing,
}

/// Who knows a name.
enum Source {
    Servers(QueryName),
    /// An address that stands for itself, the hosts file, or nobody because no server could be asked for it.
    Here(Lookup),
}

pub(super) struct Resolver {
    settings: DnsSettings,
    resolv_conf: Watched<ResolvConf>,
    hosts: Watched<Hosts>,
    table: Table,
    workers: Vec<Worker>,
    random: Random,
    /// Place of the server that answered last: a dead one is not asked first for ever.
    first_server: usize,
    orders: Receiver<Order>,
    /// Who waits for [`Order::Known`].
    waiting: Vec<Sender<()>>,
}

impl Resolver {
    /// Starts the workers; they end when the resolver is dropped, and send nothing more once `stop` is set.
    pub(super) fn new(
        settings: DnsSettings,
        orders: Receiver<Order>,
        done: &Sender<Order>,
        stop: &Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let workers = (0..WORKERS).map(|number| start_worker(number, done.clone(), Arc::clone(stop)));
        Ok(Self {
            resolv_conf: Watched::new(settings.resolv_conf.clone()),
            hosts: Watched::new(settings.hosts.clone()),
            table: Table::new(settings.pace),
            workers: workers.collect::<io::Result<_>>()?,
            random: Random::new(),
            first_server: 0,
            orders,
            waiting: Vec::new(),
            settings,
        })
    }

    /// Runs until it is told to stop or nobody is left who could.
    pub(super) fn run(mut self, mut on_change: impl FnMut(Resolved), mut on_event: impl FnMut(&Event)) {
        loop {
            self.dispatch();
            let now = Instant::now();
            let (resolved, events) = self.table.settle(now);
            events.iter().for_each(&mut on_event);
            resolved.into_iter().for_each(&mut on_change);
            if self.table.is_known() {
                // Who asked may have given up.
                self.waiting.drain(..).for_each(|asker| match asker.send(()) {
                    Ok(()) | Err(_) => {}
                });
            }
            let order = match self.table.next_wake(now) {
                Some(at) => self.orders.recv_timeout(at.saturating_duration_since(Instant::now())),
                None => self.orders.recv().map_err(RecvTimeoutError::from),
            };
            match order {
                Ok(Order::Targets(targets)) => self.table.set_targets(targets, Instant::now()),
                Ok(Order::State(reply)) => match reply.send(self.table.state(Instant::now())) {
                    // Who asked may have given up.
                    Ok(()) | Err(_) => {}
                },
                Ok(Order::Known(asker)) => self.waiting.push(asker),
                Ok(Order::Done { worker, name, lookup }) => self.done(worker, &name, lookup),
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Gives names that are due to idle workers, or answers them here.
    fn dispatch(&mut self) {
        loop {
            let Some(worker) = self.workers.iter().position(|worker| worker.state == WorkerState::Idle)
            else {
                return;
            };
            let failing =
                self.workers.iter().filter(|worker| worker.state == WorkerState::BusyWithFailing).count();
            let Some(due) = self.table.take_due(Instant::now(), failing < FAILING_WORKERS) else { return };
            match self.source(&due.name) {
                Source::Servers(query) => self.give(worker, due, query),
                Source::Here(lookup) => {
                    self.table.apply(&due.name, lookup, Instant::now(), self.random.next())
                }
            }
        }
    }

    fn give(&mut self, worker: usize, due: Due, query: QueryName) {
        let job = Job { name: due.name, query, servers: self.servers(), first: self.first_server };
        let Some(worker) = self.workers.get_mut(worker) else { return };
        worker.state = if due.failing { WorkerState::BusyWithFailing } else { WorkerState::Busy };
        if let Err(unsent) = worker.jobs.send(job) {
            // The worker is dead, which takes a bug: it stays busy for ever, and the name goes to another.
            let lookup = failed(LookupError::Stopped);
            self.table.apply(&unsent.0.name, lookup, Instant::now(), self.random.next());
        }
    }

    fn done(&mut self, worker: usize, name: &str, lookup: Lookup) {
        if let Some(worker) = self.workers.get_mut(worker) {
            worker.state = WorkerState::Idle;
        }
        self.first_server = lookup.server.unwrap_or(self.first_server);
        self.table.apply(name, lookup, Instant::now(), self.random.next());
    }

    fn source(&mut self, name: &str) -> Source {
        let literal = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        let known = match literal.parse::<IpAddr>() {
            Ok(address) => Some(vec![address]),
            Err(_) => self.hosts.get().get(name),
        };
        if let Some(addresses) = known {
            let (v4, v6) = addresses.into_iter().partition(IpAddr::is_ipv4);
            return Source::Here(Lookup { v4: Ok(local_answer(v4)), v6: Ok(local_answer(v6)), server: None });
        }
        match QueryName::parse(name) {
            Ok(query) => Source::Servers(query),
            Err(error) => Source::Here(failed(LookupError::Name(error))),
        }
    }

    fn servers(&mut self) -> Servers {
        let settings = &self.settings;
        if !settings.servers.is_empty() {
            return Servers {
                addresses: settings.servers.clone(),
                timeout: settings.timeout.unwrap_or(TIMEOUT),
                attempts: settings.attempts.unwrap_or(ATTEMPTS),
            };
        }
        let conf = self.resolv_conf.get();
        Servers {
            addresses: conf.servers.clone(),
            timeout: settings
                .timeout
                .or(conf.timeout)
                .unwrap_or(TIMEOUT)
                .clamp(Duration::from_millis(1), TIMEOUT_MAX),
            attempts: settings.attempts.or(conf.attempts).unwrap_or(ATTEMPTS).clamp(1, ATTEMPTS_MAX),
        }
    }
}

fn start_worker(number: usize, done: Sender<Order>, stop: Arc<AtomicBool>) -> io::Result<Worker> {
    let (jobs, inbox) = channel::<Job>();
    let builder = thread::Builder::new().name(format!("dns-{number}")).stack_size(WORKER_STACK_BYTES);
    builder.spawn(move || {
        let mut client = Client::new(stop);
        while let Ok(job) = inbox.recv() {
            let lookup = client.look_up(&job.query, &job.servers, job.first);
            if done.send(Order::Done { worker: number, name: job.name, lookup }).is_err() {
                return;
            }
        }
    })?;
    Ok(Worker { jobs, state: WorkerState::Idle })
}

fn local_answer(addresses: Vec<IpAddr>) -> Answer {
    if addresses.is_empty() { Answer::NoAddress } else { Answer::Addresses { addresses, ttl: LOCAL_TTL } }
}

fn failed(error: LookupError) -> Lookup {
    // The first of the two is what is reported.
    Lookup { v4: Err(error), v6: Err(LookupError::Stopped), server: None }
}
