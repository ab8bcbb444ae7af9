//! The proxy of the soak over all its processes: configs that change each second, successors, and what is to hold
//! when the traffic has ended.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use super::Plan;
use super::watch::Life;
use crate::config::{Cluster, Config, Listener, ListenerTls, Protocol, Route};
use crate::metrics::Metrics;
use crate::port::free_port;
use crate::proxy::Proxy;
use crate::tls::Leaf;
use crate::tool::Process;
use crate::wait::{PATIENCE, pause};

/// Longer than any request of the traffic.
const DRAIN: Duration = Duration::from_secs(20);

pub(super) struct Stand {
    proxy: Proxy,
    /// Processes that drain.
    old: Vec<Process>,
    /// A successor that is not ready yet.
    rising: Option<Process>,
    lives: Vec<Life>,
    makings: Makings,
    revision: u64,
    next_reload: Instant,
    next_restart: Instant,
    plan: Plan,
    faults: Vec<String>,
    base_descriptors: usize,
}

/// What all configs of the run have in common.
struct Makings {
    leaf: Leaf,
    backends: Vec<SocketAddr>,
    plain: u16,
    secure: u16,
    extra: u16,
    log: PathBuf,
    admin: SocketAddr,
    shards: usize,
}

impl Makings {
    /// The config of one revision: the same service for the traffic, and something else around it each time.
    fn config(&self, revision: u64) -> Config {
        let mut backends = self.backends.clone();
        let turn = usize::try_from(revision % 3).unwrap_or(0);
        backends.rotate_left(turn);
        // One of three backends is dead or stopped most of the time: more than the default budget of retries is for, and the
        // default ejection would keep one out that is back long since.
        let cluster = |name| {
            Cluster::new(name, &backends)
                .rule("retry_budget", json!({ "percent": 100, "floor_per_second": 1000 }))
                .rule("outlier", json!({ "ejection": "1s", "ejection_max": "1s", "ejected_percent_max": 50 }))
        };
        let one = cluster("one");
        let two = Cluster { protocol: Protocol::Http2, ..cluster("two") };
        let two = Cluster {
            h2_connections_max: Some(if revision.is_multiple_of(2) { 2 } else { 4 }),
            h2_streams_max: Some(100),
            ..two
        };
        let mut config = Config::with(one).and_cluster(two);
        (config.cores, config.admin, config.drain) = (self.shards, self.admin, DRAIN);
        let mark = vec![("x-revision".to_owned(), revision.to_string())];
        config.routes = vec![
            Route::prefix("one", "/one").to("one").having(|route| route.response_set = mark.clone()),
            Route::prefix("two", "/two").to("two").having(|route| route.response_set = mark),
        ];
        if revision.is_multiple_of(2) {
            config.routes.push(Route::exact("extra", "/extra").direct(200, "extra"));
        }
        // Renamed now and then: its connections get one more answer each.
        let name = if (revision / 5).is_multiple_of(2) { "plain" } else { "renamed" };
        let plain = Listener { port: self.plain, ..Listener::new(name) };
        let tls = ListenerTls { leaves: vec![self.leaf.clone()], ..ListenerTls::default() };
        let secure = Listener { port: self.secure, tls: Some(tls), ..Listener::new("secure") };
        config.listeners = vec![plain, secure];
        if revision % 4 >= 2 {
            config.listeners.push(Listener { port: self.extra, ..Listener::new("extra") });
        }
        for listener in &mut config.listeners {
            listener.upgrades = vec!["websocket".to_owned()];
            listener.access_log = Some(self.log.display().to_string());
            listener.access_log_template = Some("%path% %status% %reason% %attempts%".to_owned());
        }
        config
    }
}

impl Stand {
    pub(super) fn start(plan: &Plan, leaf: Leaf, backends: Vec<SocketAddr>) -> Self {
        // The log outlives the proxy's own directory.
        let log = std::env::temp_dir().join(format!("shard-soak-{}-{}.log", std::process::id(), free_port()));
        let makings = Makings {
            leaf,
            backends,
            plain: free_port(),
            secure: free_port(),
            extra: free_port(),
            log,
            admin: SocketAddr::from(([127, 0, 0, 1], free_port())),
            shards: plan.shards,
        };
        let mut proxy = Proxy::start(makings.config(0));
        let pid = proxy.process().pid();
        let now = Instant::now();
        Self {
            proxy,
            old: Vec::new(),
            rising: None,
            lives: vec![Life::new(pid)],
            makings,
            revision: 0,
            next_reload: now + plan.reload_every,
            next_restart: now + plan.restart_every,
            plan: *plan,
            faults: Vec::new(),
            base_descriptors: crate::procfs::usage(pid).map_or(0, |usage| usage.descriptors),
        }
    }

    pub(super) fn plain(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.makings.plain))
    }

    pub(super) fn secure(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.makings.secure))
    }

    /// Does what is due.
    pub(super) fn step(&mut self, now: Instant) {
        if let Some(life) = self.lives.last_mut() {
            life.step();
        }
        self.look_after_old();
        self.look_at_successor();
        if now >= self.next_reload {
            self.next_reload = now + self.plan.reload_every;
            self.revision += 1;
            let config = self.makings.config(self.revision);
            self.proxy.write_config(&config);
            self.proxy.signal(Signal::HUP);
            // Whoever tells the service to reload does not know that a successor is on its way.
            if let Some(rising) = &self.rising
                && crate::procfs::minds(rising.pid(), Signal::HUP.as_raw())
            {
                rising.signal(Signal::HUP);
            }
        }
        if now >= self.next_restart && self.rising.is_none() {
            self.next_restart = now + self.plan.restart_every;
            self.rising = Some(self.proxy.start_beside(&format!("proxy-{}", self.lives.len()), &[]));
        }
    }

    fn look_at_successor(&mut self) {
        let Some(mut rising) = self.rising.take() else { return };
        if let Some(status) = rising.status() {
            self.faults.push(format!("a successor ended with {status}: {}", rising.log()));
        } else if rising.log().contains("ready: version") {
            self.lives.push(Life::new(rising.pid()));
            self.old.push(self.proxy.replace_process(rising));
        } else {
            self.rising = Some(rising);
        }
    }

    fn look_after_old(&mut self) {
        let mut still = Vec::new();
        for mut process in std::mem::take(&mut self.old) {
            match process.status() {
                None => still.push(process),
                Some(status) => self.judge_end(process.pid(), &process.log(), status),
            }
        }
        self.old = still;
    }

    fn judge_end(&mut self, pid: u32, log: &str, status: ExitStatus) {
        if !status.success() {
            self.faults.push(format!("process {pid} ended with {status}:\n{log}"));
        }
        self.judge_log(pid, log);
    }

    fn judge_log(&mut self, pid: u32, log: &str) {
        for line in log.lines() {
            if line.contains("panicked") || line.contains("\"level\":\"error\"") || line.starts_with("error")
            {
                self.faults.push(format!("process {pid} said: {line}"));
            }
        }
    }

    /// Ends the proxy and says how its processes lived, how often it was told to reload, what was wrong, and where the
    /// access log lies.
    pub(super) fn end(mut self) -> (Vec<Life>, u64, Vec<String>, PathBuf) {
        let until = Instant::now() + DRAIN + PATIENCE;
        while (!self.old.is_empty() || self.rising.is_some()) && Instant::now() < until {
            self.look_after_old();
            self.look_at_successor();
            pause(super::STEP);
        }
        for process in &self.old {
            self.faults.push(format!("process {} still drains:\n{}", process.pid(), process.log()));
        }
        self.judge_rest();
        let process = self.proxy.process();
        process.signal(Signal::TERM);
        let status = process.wait(DRAIN + PATIENCE);
        let (pid, log) = (process.pid(), process.log());
        self.judge_end(pid, &log, status);
        (self.lives, self.revision, self.faults, self.makings.log)
    }

    /// Whether the last process holds no more than the first one did before its first client, and its pools of
    /// connections and pipes.
    fn descriptors_left(&mut self) -> Result<(), String> {
        let metrics = self.proxy.metrics();
        let pooled = metrics.sum("shard_core_upstream_connections", &[]);
        let pipes = metrics.sum("shard_core_pipes", &[]);
        let held = crate::procfs::usage(self.proxy.process().pid()).map_or(0, |usage| usage.descriptors);
        let base = self.base_descriptors;
        let surplus = u32::try_from(held.saturating_sub(base)).map_or(f64::MAX, f64::from);
        if surplus <= pooled + 2.0 * pipes + SPARE {
            return Ok(());
        }
        Err(format!(
            "{held} descriptors held with {pooled} pooled connections and {pipes} pipes, {base} at the start"
        ))
    }

    /// The last process, when its clients have gone: it holds what it held before the first one came.
    fn judge_rest(&mut self) {
        let none_left = |metrics: &Metrics| {
            metrics.sum("shard_core_connections", &[]) == 0.0
                && metrics.sum("shard_core_requests", &[]) == 0.0
        };
        self.proxy.wait_metrics("all client connections have ended", none_left);
        // A revision without what comes and goes.
        self.revision = self.revision.next_multiple_of(4) + 4;
        self.proxy.reload(self.makings.config(self.revision));
        let until = Instant::now() + PATIENCE;
        while let Err(fault) = self.descriptors_left() {
            if Instant::now() >= until {
                self.faults.push(fault);
                break;
            }
            pause(Duration::from_millis(100));
        }
        let metrics = self.proxy.metrics();
        for (name, what) in [
            ("shard_log_rows_dropped_total", "log rows dropped"),
            ("shard_log_rows_lost_total", "log rows lost"),
            ("shard_core_buffers", "buffers in use without a client"),
        ] {
            let value = metrics.sum(name, &[]);
            if value > 0.0 {
                self.faults.push(format!("{what}: {value}"));
            }
        }
        let by_method = metrics.sum("shard_requests_total", &[]);
        for name in
            ["shard_responses_total", "shard_requests_by_protocol_total", "shard_log_rows_written_total"]
        {
            let value = metrics.sum(name, &[]);
            if (value - by_method).abs() > 0.5 {
                self.faults.push(format!("{name} is {value}, shard_requests_total {by_method}"));
            }
        }
    }
}

/// Descriptors that may differ from the start: an admin connection, a log file opened again.
const SPARE: f64 = 4.0;
