//! Active health checks: whether the endpoints of clusters that ask for it are well, once for the whole process.
//!
//! ```text
//!   config, DNS ──targets──► scheduler ──jobs──► workers: one blocking socket each
//!                               │  ◄──answers──────┘
//!                               └──changes──► main thread ──Command::Checked──► every core
//! ```
//! Not on the cores, so that an endpoint is asked once and not once for each core, and a silent one holds up no
//! request. When to ask and what answers mean is `http_balance::check`. Each check is a new connection: nothing of it
//! can be stale. With all [`WORKERS`] at silent endpoints further checks are late by at most their timeouts.
//! Owned by the main thread.

mod h2;
mod probe;
mod stream;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http_balance::Rng;
use http_balance::check::{Answer, Check, CheckRules, Flip, Others};
use http_balance::endpoint::Health;

use http_proxy::snapshot::{EndpointConfig, ServerName, UpstreamProtocol};

use crate::admin::lock;
use crate::oplog;

/// Checks that run at the same time (docs/resilience.md).
const WORKERS: usize = 32;

/// An endpoint that is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// What HTTP checks ask for, unless the rules name a host.
    pub(crate) hostname: Option<String>,
}

impl Peer {
    pub(crate) fn of(endpoint: &EndpointConfig) -> Self {
        Self { address: endpoint.address, hostname: endpoint.hostname.clone() }
    }
}

/// How an endpoint is spoken to: as requests are.
#[derive(Debug)]
pub(crate) struct Via {
    pub(crate) protocol: UpstreamProtocol,
    pub(crate) tls: Option<tls::ClientContext>,
    pub(crate) server_name: ServerName,
}

#[cfg(test)]
impl Default for Via {
    fn default() -> Self {
        Self { protocol: UpstreamProtocol::Http1, tls: None, server_name: ServerName::Endpoint }
    }
}

/// A cluster whose endpoints are checked.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) cluster: String,
    pub(crate) rules: CheckRules,
    pub(crate) via: Via,
    /// By address; DNS names bring more.
    pub(crate) peers: Vec<Peer>,
}

/// What is known of the endpoints of one cluster.
pub(crate) type Known = Vec<(SocketAddr, Health)>;

/// The running checker.
#[derive(Debug)]
pub(crate) struct Checker {
    orders: Sender<Order>,
}

#[derive(Debug)]
enum Order {
    Targets(Vec<Target>),
    /// Addresses that the names of a cluster stand for.
    Found(String, Vec<Peer>),
    Answered {
        job: Job,
        answer: Answer,
    },
}

#[derive(Clone, Debug)]
struct Job {
    cluster: String,
    peer: Peer,
    rules: Arc<CheckRules>,
    via: Arc<Via>,
}

impl Checker {
    /// Starts the threads; they wait until there are targets. `on_change` gets all that is known of a cluster whenever
    /// some of it has changed, on the checker's thread.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub(crate) fn start(seed: u64, on_change: impl FnMut(&str, Known) + Send + 'static) -> io::Result<Self> {
        let (orders, inbox) = channel();
        let (jobs, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..WORKERS {
            let (queue, answers) = (Arc::clone(&queue), orders.clone());
            std::thread::Builder::new().name("health".to_owned()).spawn(move || work(&queue, &answers))?;
        }
        let schedule = Schedule::new(seed, jobs, on_change);
        std::thread::Builder::new().name("health".to_owned()).spawn(move || schedule.run(&inbox))?;
        Ok(Self { orders })
    }

    /// Replaces the clusters; endpoints that stay under the same rules keep their state.
    pub(crate) fn set_targets(&self, targets: Vec<Target>) {
        self.send(Order::Targets(targets));
    }

    /// Replaces what the names of a cluster stand for.
    pub(crate) fn found(&self, cluster: &str, peers: Vec<Peer>) {
        self.send(Order::Found(cluster.to_owned(), peers));
    }

    fn send(&self, order: Order) {
        if self.orders.send(order).is_err() {
            oplog::error("the health checker has ended");
        }
    }
}

/// Makes checks until the scheduler has ended.
fn work(queue: &Mutex<Receiver<Job>>, answers: &Sender<Order>) {
    loop {
        let job = lock(queue).recv();
        let Ok(job) = job else { return };
        let answer = probe::check(&job.rules, &job.peer, &job.via);
        if answers.send(Order::Answered { job, answer }).is_err() {
            return;
        }
    }
}

/// One endpoint under checks.
#[derive(Debug)]
struct Entry {
    peer: Peer,
    check: Check,
    is_running: bool,
}

#[derive(Debug)]
struct Group {
    rules: Arc<CheckRules>,
    via: Arc<Via>,
    own: Vec<Peer>,
    found: Vec<Peer>,
    entries: BTreeMap<SocketAddr, Entry>,
}

struct Schedule<F> {
    groups: BTreeMap<String, Group>,
    /// What names stand for in clusters that may not be known yet.
    found: BTreeMap<String, Vec<Peer>>,
    /// By time; entries that are gone or were moved are passed over.
    due: BinaryHeap<Reverse<(Duration, String, SocketAddr)>>,
    rng: Rng,
    began: Instant,
    jobs: Sender<Job>,
    on_change: F,
}

impl<F: FnMut(&str, Known)> Schedule<F> {
    fn new(seed: u64, jobs: Sender<Job>, on_change: F) -> Self {
        Self {
            groups: BTreeMap::new(),
            found: BTreeMap::new(),
            due: BinaryHeap::new(),
            rng: Rng::new(seed),
            began: Instant::now(),
            jobs,
            on_change,
        }
    }

    fn run(mut self, inbox: &Receiver<Order>) {
        loop {
            let now = self.began.elapsed();
            self.start_due(now);
            let next = self.due.peek().map(|Reverse((at, ..))| at.saturating_sub(now));
            match inbox.recv_timeout(next.unwrap_or(Duration::from_secs(3600))) {
                Ok(Order::Targets(targets)) => self.set_targets(targets),
                Ok(Order::Found(cluster, peers)) => self.set_found(cluster, peers),
                Ok(Order::Answered { job, answer }) => self.answered(&job, answer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn start_due(&mut self, now: Duration) {
        while let Some(Reverse((at, ..))) = self.due.peek()
            && *at <= now
        {
            let Some(Reverse((at, cluster, address))) = self.due.pop() else { return };
            let Some(group) = self.groups.get_mut(&cluster) else { continue };
            let Some(entry) = group.entries.get_mut(&address) else { continue };
            if entry.is_running || entry.check.due() != at {
                continue;
            }
            let (rules, via) = (Arc::clone(&group.rules), Arc::clone(&group.via));
            let job = Job { cluster, peer: entry.peer.clone(), rules, via };
            // Without workers the process is about to end.
            entry.is_running = self.jobs.send(job).is_ok();
        }
    }

    fn set_targets(&mut self, targets: Vec<Target>) {
        let mut before = std::mem::take(&mut self.groups);
        for Target { cluster, rules, via, peers } in targets {
            let kept = before.remove(&cluster);
            let entries = match kept {
                Some(group) if *group.rules == rules => group.entries,
                Some(_) | None => BTreeMap::new(),
            };
            let found = self.found.get(&cluster).cloned().unwrap_or_default();
            let (rules, via) = (Arc::new(rules), Arc::new(via));
            self.groups.insert(cluster.clone(), Group { rules, via, own: peers, found, entries });
            self.settle(&cluster);
        }
        // Nobody checks these any more: what was said of them is taken back.
        for cluster in before.into_keys() {
            (self.on_change)(&cluster, Vec::new());
        }
    }

    fn set_found(&mut self, cluster: String, peers: Vec<Peer>) {
        if let Some(group) = self.groups.get_mut(&cluster) {
            group.found.clone_from(&peers);
        }
        self.found.insert(cluster.clone(), peers);
        self.settle(&cluster);
    }

    /// Begins with endpoints that are new, lets go of those that have gone, and tells.
    fn settle(&mut self, cluster: &str) {
        let now = self.began.elapsed();
        let Some(group) = self.groups.get_mut(cluster) else { return };
        let wanted: BTreeMap<SocketAddr, &Peer> =
            group.own.iter().chain(&group.found).map(|peer| (peer.address, peer)).collect();
        group.entries.retain(|address, entry| wanted.get(address).is_some_and(|peer| **peer == entry.peer));
        let some_healthy = group.entries.values().any(|entry| entry.check.health() == Health::Healthy);
        let others = if some_healthy { Others::SomeHealthy } else { Others::NoneHealthy };
        for (address, peer) in wanted {
            if !group.entries.contains_key(&address) {
                let check = Check::new(&group.rules, others, now, self.rng.draw());
                self.due.push(Reverse((check.due(), cluster.to_owned(), address)));
                group.entries.insert(address, Entry { peer: peer.clone(), check, is_running: false });
            }
        }
        self.tell(cluster);
    }

    fn answered(&mut self, job: &Job, answer: Answer) {
        let now = self.began.elapsed();
        let Some(group) = self.groups.get_mut(&job.cluster) else { return };
        let Some(entry) = group.entries.get_mut(&job.peer.address) else { return };
        if entry.peer != job.peer || !Arc::ptr_eq(&group.rules, &job.rules) && *group.rules != *job.rules {
            // Of an endpoint that was here before.
            return;
        }
        entry.is_running = false;
        let before = entry.check.health();
        let flip = entry.check.answered(&group.rules, answer, now, self.rng.draw());
        let (after, due) = (entry.check.health(), entry.check.due());
        self.due.push(Reverse((due, job.cluster.clone(), job.peer.address)));
        let who = format!("cluster {}: {}", job.cluster, job.peer.address);
        match flip {
            Some(Flip::Up) => oplog::info(&format!("{who} is healthy")),
            Some(Flip::Down(cause)) => oplog::warn(&format!("{who} is unhealthy: {}", probe::words(cause))),
            None => {}
        }
        if before != after {
            self.tell(&job.cluster);
        }
    }

    fn tell(&mut self, cluster: &str) {
        let Some(group) = self.groups.get(cluster) else { return };
        let known = group.entries.iter().map(|(address, entry)| (*address, entry.check.health()));
        (self.on_change)(cluster, known.collect());
    }
}
