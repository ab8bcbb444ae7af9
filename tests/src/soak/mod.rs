//! The soak: mixed traffic against backends that die, stand still and come back, under a proxy whose config changes
//! each second and which is replaced by a successor again and again. [`run`] does it and reports; a report without
//! faults means that no request failed which the proxy could have saved, that memory and descriptors are flat, and
//! that what clients, backends and the access log tell is the same.
//!
//! The seed fixes the schedule of the blows and what each worker asks for, not the order in which they meet.

mod ask;
mod fleet;
mod judge;
mod stand;
mod traffic;
mod watch;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub use self::ask::Ask;
use self::fleet::Fleet;
use self::judge::{Evidence, Logged, Verdict};
use self::stand::Stand;
use self::traffic::Traffic;
pub use self::watch::Life;
use crate::tls::Authority;
use crate::wait::pause;

/// What is asked of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub length: Duration,
    pub seed: u64,
    /// Time between two hot restarts; none when longer than the run.
    pub restart_every: Duration,
    pub reload_every: Duration,
    pub backends: usize,
    pub shards: usize,
}

impl Plan {
    /// A run of `length` with a reload each second.
    #[must_use]
    pub fn new(length: Duration, seed: u64, restart_every: Duration) -> Self {
        Self { length, seed, restart_every, reload_every: Duration::from_secs(1), backends: 3, shards: 2 }
    }
}

/// What a run brought.
#[derive(Debug)]
pub struct Report {
    pub plan: Plan,
    pub served: u64,
    pub requests_per_second: u64,
    pub excused: BTreeMap<String, u64>,
    pub repeated: u64,
    pub kills: usize,
    pub stops: u32,
    pub reloads: u64,
    pub handshakes: u64,
    pub resumed: u64,
    /// Each proxy process.
    pub lives: Vec<Life>,
    pub faults: Vec<String>,
}

/// Controller's step.
const STEP: Duration = Duration::from_millis(5);

/// Runs the soak on the built binaries.
///
/// # Panics
/// When the stand does not come up or goes down.
#[must_use]
pub fn run(plan: Plan) -> Report {
    let started = Instant::now();
    let mut fleet = Fleet::start(plan.backends, plan.seed, started);
    let authority = Authority::default();
    let mut stand = Stand::start(&plan, authority.leaf(&["a.example"]), fleet.addresses());
    let (events, received) = channel();
    let traffic = Arc::new(Traffic {
        started,
        stop: AtomicBool::new(false),
        ids: AtomicU64::new(1),
        plain: stand.plain(),
        secure: stand.secure(),
        authority,
        events: Mutex::new(events),
        resumed: AtomicU64::new(0),
        handshakes: AtomicU64::new(0),
    });
    let threads: Vec<_> = (0..2)
        .map(|half: usize| {
            let traffic = Arc::clone(&traffic);
            let seed = plan.seed ^ u64::try_from(half + 1).unwrap_or(1);
            std::thread::spawn(move || traffic::run(&traffic, half, seed))
        })
        .collect();
    let began = Instant::now();
    let until = began + plan.length;
    while Instant::now() < until && threads.iter().all(|thread| !thread.is_finished()) {
        let now = Instant::now();
        fleet.step(now);
        stand.step(now);
        pause(STEP);
    }
    fleet.calm();
    traffic.stop.store(true, Ordering::Release);
    let mut faults = Vec::new();
    for thread in threads {
        if thread.join().is_err() {
            faults.push("a thread of clients panicked".to_owned());
        }
    }
    let took = began.elapsed();
    let (handshakes, resumed) =
        (traffic.handshakes.load(Ordering::Relaxed), traffic.resumed.load(Ordering::Relaxed));
    drop(traffic);
    let (lives, reloads, stand_faults, log) = stand.end();
    faults.extend(stand_faults);
    let logged = logged(&log);
    if faults.is_empty()
        && let Err(error) = std::fs::remove_file(&log)
    {
        faults.push(format!("{}: {error}", log.display()));
    }
    let evidence = Evidence {
        events: received.into_iter().collect(),
        kills: fleet.kills.clone(),
        received: fleet.received(),
        logged,
    };
    let verdict = evidence.judge();
    report(plan, took, verdict, (lives, reloads, faults), &fleet, (handshakes, resumed))
}

fn report(
    plan: Plan,
    took: Duration,
    verdict: Verdict,
    (lives, reloads, mut faults): (Vec<Life>, u64, Vec<String>),
    fleet: &Fleet,
    (handshakes, resumed): (u64, u64),
) -> Report {
    faults.extend(verdict.faults);
    faults.extend(lives.iter().filter_map(Life::fault));
    let served: u64 = verdict.served.values().sum();
    for (kind, count) in &verdict.served {
        crate::note(&format!("{count:>9} {kind:?} served"));
    }
    Report {
        plan,
        served,
        requests_per_second: served / took.as_secs().max(1),
        excused: verdict.excused,
        repeated: verdict.repeated,
        kills: fleet.kills.len(),
        stops: fleet.stops,
        reloads,
        handshakes,
        resumed,
        lives,
        faults,
    }
}

/// Reads the access log of all proxy processes.
fn logged(path: &Path) -> BTreeMap<u64, Logged> {
    let mut logged: BTreeMap<u64, Logged> = BTreeMap::new();
    let text = std::fs::read(path).unwrap_or_default();
    for line in String::from_utf8_lossy(&text).lines() {
        let mut words = line.split(' ');
        let ask = words.next().and_then(Ask::parse);
        let status = words.next().and_then(|word| word.parse().ok());
        let (Some(ask), Some(status)) = (ask, status) else { continue };
        let row = logged.entry(ask.id).or_default();
        row.rows += 1;
        row.status = status;
        row.reason = words.next().unwrap_or_default().to_owned();
    }
    logged
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Plan { length, seed, backends, shards, .. } = self.plan;
        writeln!(f, "soak of {length:?}, seed {seed}, {shards} shards, {backends} backends")?;
        writeln!(f, "{} requests served ({} a second)", self.served, self.requests_per_second)?;
        writeln!(
            f,
            "{} handshakes, {} resumed; {} kills, {} stops, {} reloads, {} proxy processes",
            self.handshakes,
            self.resumed,
            self.kills,
            self.stops,
            self.reloads,
            self.lives.len()
        )?;
        writeln!(f, "{} repeated on a new connection", self.repeated)?;
        for (what, count) in &self.excused {
            writeln!(f, "{count} failed with their backend: {what}")?;
        }
        for life in &self.lives {
            writeln!(f, "{life}")?;
        }
        const SHOWN: usize = 20;
        writeln!(f, "{} faults", self.faults.len())?;
        for fault in self.faults.iter().take(SHOWN) {
            writeln!(f, "  {fault}")?;
        }
        Ok(())
    }
}
