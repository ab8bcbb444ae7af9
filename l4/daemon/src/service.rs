//! The running daemon: starts, feeds, reloads, answers, ends. One thread, which waits for signals, clients and the
//! next moment at which something changes by itself.
//!
//! ```text
//!   load file ─► load program ─► write every map ─► attach ─► announce ─► ready ◄─┐
//!        any fault up to here ends the process; packets go on as before           │ SIGHUP, windows, rules
//!                                                   ready ─► drained (shardctl) ──┘
//!                                  SIGTERM ─► withdraw (if the file says so) ─► end; the program stays
//! ```

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, TcpListener};
use std::num::NonZero;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use control_config::load_l4;
use l4_load::{LoadOptions, Mode, Program};
use l4_steer::config::{AttachMode, Config, OnStop};
use l4_steer::owner::OwnerId;
use l4_steer::rollout::{Change, Conflict, Outcome, Rollout};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::announce::{self, Wish};
use crate::args::Options;
use crate::control::{self, Page};
use crate::desired::{self, Desired, Now};
use crate::ended::{StartError, chain};
use crate::question::Question;
use crate::unix_socket::{self, Live};
use crate::{feed, ids, metrics, oplog, pages, privileges};

/// After a write that failed, the next attempt.
const RETRY: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Ready,
    /// The operator has withdrawn the announcement.
    Drained,
}

impl Phase {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Drained => "drained",
        }
    }
}

/// What metrics and pages show of the service itself.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Since the start.
    pub(crate) now: Duration,
    pub(crate) config_version: String,
    pub(crate) phase: Phase,
    pub(crate) is_ready: bool,
    pub(crate) is_announced: bool,
    pub(crate) reloads_applied: u64,
    pub(crate) reloads_refused: u64,
    pub(crate) feed_errors: u64,
    pub(crate) announce_errors: u64,
    pub(crate) rows_moved: u64,
    pub(crate) rows_lost: u64,
    pub(crate) rows_forgotten: u64,
}

/// Everything that the daemon holds.
pub(crate) struct Service {
    pub(crate) config: Config,
    pub(crate) rollout: Rollout,
    /// Of every proxy that was in force since the start.
    pub(crate) addresses: BTreeMap<OwnerId, IpAddr>,
    pub(crate) ids: BTreeMap<String, u32>,
    pub(crate) desired: Desired,
    pub(crate) program: Program,
    /// Name and mode of each interface that the program is attached to.
    pub(crate) interfaces: Vec<(String, &'static str)>,
    pub(crate) facts: Facts,
    tables: feed::Tables,
    start: Instant,
    /// The rollout's count of changes when its rows were last written.
    fed_rows: u64,
    /// When a write or an announcement that failed is tried again.
    retry: Option<Duration>,
}

/// Loads a file and says what is wrong with it.
///
/// # Errors
/// The number of errors.
pub(crate) fn check(file: &Path) -> Result<(), StartError> {
    let config = load(file)?;
    oplog::print(&format!(
        "{}: good, version {}: {} proxies, {} VIPs, {} drop rules\n",
        file.display(),
        config.version,
        config.owners.owners().len(),
        config.vips.len(),
        config.drop_rules.len()
    ));
    Ok(())
}

/// Takes the program off every interface.
///
/// # Errors
/// When the file is wrong or a pin cannot be removed.
pub(crate) fn detach(file: &Path) -> Result<(), StartError> {
    let directory = load(file)?.host.pin_directory;
    let interfaces = l4_load::attached(&directory)?;
    for interface in &interfaces {
        l4_load::detach(&directory, interface)?;
        oplog::info(&format!("{interface}: detached; its packets are not forwarded any more"));
    }
    if interfaces.is_empty() {
        oplog::info(&format!("nothing is attached by way of {}", directory.display()));
    }
    Ok(())
}

fn load(file: &Path) -> Result<Config, StartError> {
    match load_l4(file) {
        Ok(loaded) => {
            loaded.warnings.iter().for_each(|warning| oplog::warn(&warning.to_string()));
            Ok(loaded.config)
        }
        Err(errors) => {
            errors.iter().for_each(|error| oplog::error(&error.to_string()));
            Err(StartError::Config(errors.len()))
        }
    }
}

/// Serves until a signal says to end.
///
/// # Errors
/// Why it could not start; nothing was announced then.
pub(crate) fn run(options: &Options) -> Result<(), StartError> {
    let config = load(&options.config)?;
    let control = listen_control(&options.control)?;
    let metrics = options.metrics.map(listen_metrics).transpose()?;
    let (signals, hangups) = (signal_pipe(&[SIGTERM, SIGINT])?, signal_pipe(&[SIGHUP])?);
    let mut service = Service::start(config)?;
    match privileges::drop_all_but_bpf() {
        Ok(kept) => oplog::info(&format!("rights kept: {kept}")),
        Err(error) => oplog::warn(&format!("no right could be given up: {error}")),
    }
    service.announce();
    service.facts.is_ready = true;
    oplog::info("ready");
    service.wait_for(options, &control, metrics.as_ref(), &signals, &hangups)?;
    service.stop();
    unix_socket::remove(&options.control)
        .map_err(|error| StartError::Address(options.control.display().to_string(), error))
}

fn listen_control(path: &Path) -> Result<UnixListener, StartError> {
    let listener = unix_socket::listen(path, Live::Refuse).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|error| {
        StartError::Address(format!("--control {}: it cannot be listened on", path.display()), error)
    })
}

fn listen_metrics(address: std::net::SocketAddr) -> Result<TcpListener, StartError> {
    let listener = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        oplog::info(&format!("metrics on {}", listener.local_addr()?));
        Ok(listener)
    });
    listener
        .map_err(|error| StartError::Address(format!("--metrics {address}: it cannot be listened on"), error))
}

/// A socket that becomes readable when one of the signals comes.
fn signal_pipe(signals: &[i32]) -> Result<UnixStream, StartError> {
    let failed = |error| StartError::System("signals cannot be watched", error);
    let (read, write) = UnixStream::pair().map_err(failed)?;
    read.set_nonblocking(true).map_err(failed)?;
    for signal in signals {
        let write = write.try_clone().map_err(failed)?;
        signal_hook::low_level::pipe::register(*signal, write).map_err(failed)?;
    }
    Ok(read)
}

impl Service {
    /// Loads the program and fills its maps before it is attached: no packet meets a half-filled table.
    fn start(config: Config) -> Result<Self, StartError> {
        let mut program = Program::load(&load_options(&config))?;
        let tables = feed::Tables::present(program.maps())?;
        let resumed = tables.any().is_some();
        let list = config.owners.clone();
        let rollout = match tables.any() {
            Some(rows) => Rollout::resume(list, config.windows, rows, Duration::ZERO),
            None => Rollout::new(list, config.windows),
        };
        let rollout =
            rollout.map_err(|error| StartError::System("the list of proxies", io::Error::other(error)))?;
        let facts = Facts {
            now: Duration::ZERO,
            config_version: config.version.clone(),
            phase: Phase::Ready,
            is_ready: false,
            is_announced: false,
            reloads_applied: 0,
            reloads_refused: 0,
            feed_errors: 0,
            announce_errors: 0,
            rows_moved: 0,
            rows_lost: 0,
            rows_forgotten: 0,
        };
        let mut service = Self {
            addresses: config.addresses.clone(),
            config,
            rollout,
            ids: BTreeMap::new(),
            desired: Desired::default(),
            program,
            interfaces: Vec::new(),
            facts,
            tables,
            start: Instant::now(),
            fed_rows: 0,
            retry: None,
        };
        let from = if resumed { "the tables in the kernel" } else { "empty maps" };
        oplog::info(&format!("config {}, starting from {from}", service.config.version));
        service.feed()?;
        service.attach()?;
        Ok(service)
    }

    /// Waits for whatever comes first, until a signal says to end.
    fn wait_for(
        &mut self,
        options: &Options,
        control: &UnixListener,
        metrics: Option<&TcpListener>,
        signals: &UnixStream,
        hangups: &UnixStream,
    ) -> Result<(), StartError> {
        let failed = |error| StartError::System("waiting failed", error);
        loop {
            let timeout = self
                .next_change()
                .map(|left| Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 }));
            let mut waits = vec![
                PollFd::new(signals, PollFlags::IN),
                PollFd::new(hangups, PollFlags::IN),
                PollFd::new(control, PollFlags::IN),
            ];
            waits.extend(metrics.map(|listener| PollFd::new(listener, PollFlags::IN)));
            match poll(&mut waits, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
            let is_ready: Vec<bool> = waits.iter().map(|wait| !wait.revents().is_empty()).collect();
            drop(waits);
            self.facts.now = self.start.elapsed();
            if is_ready.first() == Some(&true) {
                return Ok(());
            }
            if is_ready.get(1) == Some(&true) {
                drain(hangups).map_err(failed)?;
                self.reload(&options.config);
            }
            self.tick();
            if is_ready.get(2) == Some(&true) {
                control::serve_control(control, |question| self.answer(question)).map_err(failed)?;
            }
            if let (Some(listener), Some(true)) = (metrics, is_ready.get(3)) {
                control::serve_metrics(listener, |question| self.answer(question)).map_err(failed)?;
            }
        }
    }

    /// How long until something changes by itself.
    fn next_change(&self) -> Option<Duration> {
        let now = self.start.elapsed();
        let ends = [self.rollout.drain_ends(), self.rollout.rescue_ends(), self.retry];
        let left = ends.into_iter().flatten().map(|at| at.saturating_sub(now));
        let rules = desired::next_end(&self.config.drop_rules, clocks()).map(Duration::from_secs);
        left.chain(rules).min()
    }

    /// Does what the time has come for.
    fn tick(&mut self) {
        if let Some(change) = self.rollout.tick(self.facts.now) {
            self.count(change);
            oplog::info(&format!("a window ended; {} rows moved", change.moved));
        }
        let is_retry = self.retry.is_some_and(|at| at <= self.facts.now);
        if is_retry {
            self.retry = None;
        }
        let is_due = self.fed_rows != self.rollout.changes() || self.wanted().differs(&self.desired);
        // What failed waits for its next attempt.
        if is_retry || is_due && self.retry.is_none() {
            self.feed_or_retry();
        }
        if is_retry {
            self.announce();
        }
    }

    /// What the maps must hold now.
    fn wanted(&self) -> Desired {
        desired::desired(&self.config, &self.rollout, &self.addresses, &self.ids, clocks())
    }

    /// Brings the maps to what is wanted.
    fn feed(&mut self) -> l4_load::Result<()> {
        let present = feed::present_ids(self.program.maps())?;
        self.ids = ids::assign(&self.config.vips, &present);
        let wanted = self.wanted();
        let changes = self.rollout.changes();
        let (tables, rows) = (&mut self.tables, self.rollout.rows());
        let written = feed::write(self.program.maps(), &wanted, &self.desired, tables, rows)?;
        if written != feed::Written::default() {
            oplog::info(&format!(
                "written: {} VIP entries, {} proxies, {} tables, {} drop rules",
                written.vips, written.owners, written.tables, written.rules
            ));
        }
        self.desired = wanted;
        self.fed_rows = changes;
        Ok(())
    }

    fn feed_or_retry(&mut self) {
        if let Err(error) = self.feed() {
            self.facts.feed_errors += 1;
            self.retry = Some(self.facts.now + RETRY);
            oplog::error(&format!("the kernel's maps are not up to date, trying again: {}", chain(&error)));
        }
    }

    /// Attaches to every interface of the config; a program that is there already is replaced in one step.
    fn attach(&mut self) -> l4_load::Result<()> {
        let mode = match self.config.host.attach {
            AttachMode::Auto => Mode::Auto,
            AttachMode::Native => Mode::Native,
            AttachMode::Generic => Mode::Generic,
        };
        let mut interfaces = Vec::new();
        for interface in &self.config.host.interfaces {
            let attached = self.program.attach(interface, mode)?;
            let word = match attached.mode {
                Mode::Native => "native",
                Mode::Generic => "generic",
                Mode::Auto => "as before",
            };
            let how = if attached.replaced { "replaced the running program" } else { "attached" };
            oplog::info(&format!("{interface}: {how}, mode {word}"));
            if attached.mode == Mode::Generic && mode == Mode::Auto {
                oplog::warn(&format!(
                    "{interface}: its driver has no native XDP; every packet costs a multiple of what it could"
                ));
            }
            interfaces.push((interface.clone(), word));
        }
        self.interfaces = interfaces;
        for other in l4_load::attached(&self.config.host.pin_directory)? {
            if !self.config.host.interfaces.contains(&other) {
                oplog::warn(&format!(
                    "{other}: still attached, though the file does not name it; `shard-l4 --detach` takes it off"
                ));
            }
        }
        Ok(())
    }

    /// Loads the file again: all of it or nothing.
    fn reload(&mut self, file: &Path) {
        match self.try_reload(file) {
            Ok(()) => {
                self.facts.reloads_applied += 1;
                oplog::info(&format!("config {} is in force", self.config.version));
            }
            Err(why) => {
                self.facts.reloads_refused += 1;
                oplog::error(&format!("reload refused, the old config stays: {why}"));
            }
        }
    }

    fn try_reload(&mut self, file: &Path) -> Result<(), String> {
        let config = load(file).map_err(|error| error.to_string())?;
        // A new program needs rights that the daemon has given up.
        if config.host != self.config.host
            || options_differ(&load_options(&config), &load_options(&self.config))
        {
            return Err("`hash_key`, `flows` and `host` are told to the program when it is loaded; restart the daemon, \
                        which replaces the program in one step and keeps its flows"
                .to_owned());
        }
        let outcome = self
            .rollout
            .propose(config.owners.clone(), Conflict::Wait, self.facts.now)
            .map_err(|error| error.to_string())?;
        self.report(&outcome);
        self.rollout.set_windows(config.windows);
        self.addresses.extend(config.addresses.iter().map(|(id, address)| (*id, *address)));
        self.facts.config_version.clone_from(&config.version);
        self.config = config;
        self.feed_or_retry();
        self.announce();
        Ok(())
    }

    fn report(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Unchanged => {}
            Outcome::Published(change) => {
                self.count(*change);
                oplog::info(&format!(
                    "the proxies changed: {} rows moved, {} of them lost their owner, {} forgot an older one",
                    change.moved, change.lost, change.forgotten
                ));
            }
            Outcome::Waiting { until, urgent } => {
                urgent.iter().for_each(|change| self.count(*change));
                oplog::warn(&format!(
                    "another change of the proxies is draining; this one waits {} s for it",
                    until.saturating_sub(self.facts.now).as_secs()
                ));
            }
        }
    }

    fn count(&mut self, change: Change) {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        self.facts.rows_moved += number(change.moved);
        self.facts.rows_lost += number(change.lost);
        self.facts.rows_forgotten += number(change.forgotten);
    }

    /// Brings the announcement to what the phase wants.
    fn announce(&mut self) {
        let wish = match self.facts.phase {
            Phase::Ready => Wish::Announced,
            Phase::Drained => Wish::Withdrawn,
        };
        match announce::bring(&self.config, wish) {
            Ok(is_changed) => {
                self.facts.is_announced = wish == Wish::Announced && self.config.announce.is_some();
                if is_changed {
                    oplog::info(if self.facts.is_announced { "announced" } else { "withdrawn" });
                }
            }
            Err(error) => {
                self.facts.announce_errors += 1;
                self.retry = Some(self.facts.now + RETRY);
                oplog::error(&format!("the announcement is not as it should be, trying again: {error}"));
            }
        }
    }

    /// What remains to be done before the process ends.
    fn stop(&self) {
        let is_kept = self.config.announce.as_ref().is_none_or(|announce| announce.on_stop == OnStop::Keep);
        if !is_kept {
            match announce::bring(&self.config, Wish::Withdrawn) {
                Ok(_) => oplog::info("withdrawn"),
                Err(error) => oplog::error(&format!("the announcement could not be withdrawn: {error}")),
            }
        }
        oplog::info("ended; the program goes on forwarding");
    }

    fn answer(&mut self, question: Question) -> Page {
        self.facts.now = self.start.elapsed();
        let page = match question {
            Question::Metrics => {
                return match metrics::text(self.program.maps(), &self.rollout, &self.ids, &self.facts) {
                    Ok(text) => {
                        Page { content_type: "text/plain; version=0.0.4", ..Page::text("200 OK", text) }
                    }
                    Err(error) => failed(&error),
                };
            }
            Question::Ready if self.facts.is_ready && self.facts.phase == Phase::Ready => {
                return Page::text("200 OK", "ready\n");
            }
            Question::Ready => return Page::text("503 Service Unavailable", "drained\n"),
            Question::Show => Ok(pages::show(self)),
            Question::Counters => pages::counters(self),
            Question::Flows { max } => pages::flows(self, max),
            Question::Lookup { protocol, source, destination } => {
                pages::lookup(self, protocol, source, destination)
            }
            Question::Trace => Ok(pages::trace(self)),
            Question::SetTrace { one_in } => self.set_trace(one_in),
            Question::Drain => Ok(self.set_phase(Phase::Drained)),
            Question::Undrain => Ok(self.set_phase(Phase::Ready)),
        };
        page.map_or_else(|error| failed(&error), |value| Page::json(&value))
    }

    fn set_trace(&mut self, one_in: u32) -> l4_load::Result<serde_json::Value> {
        let maps = self.program.maps();
        let settings = l4_abi::Settings { trace_one_in: one_in, ..maps.settings()? };
        maps.set_settings(settings)?;
        Ok(serde_json::json!({ "one_in": one_in }))
    }

    fn set_phase(&mut self, phase: Phase) -> serde_json::Value {
        self.facts.phase = phase;
        self.announce();
        serde_json::json!({ "phase": phase.word(), "announced": self.facts.is_announced })
    }
}

fn failed(error: &l4_load::Error) -> Page {
    Page::text("500 Internal Server Error", format!("{}\n", chain(error)))
}

/// What the program itself is told; a change of it needs a new program.
fn load_options(config: &Config) -> LoadOptions {
    LoadOptions {
        pin_dir: Some(config.host.pin_directory.clone()),
        hash_secret: config.hash_secret.0,
        own4: config.host.address4,
        own6: config.host.address6,
        mtu_bytes: config.host.mtu_bytes,
        flows_max: config.flows.entries_max,
        flow_idle: config.flows.idle,
        inserts_per_cpu_per_s: config.flows.inserts_per_second,
        icmp_per_cpu_per_s: config.flows.icmp_per_second,
        syn_cookies_above: config.flows.syn_cookies_above.map(NonZero::get),
    }
}

fn options_differ(a: &LoadOptions, b: &LoadOptions) -> bool {
    let parts = |options: &LoadOptions| {
        (
            options.hash_secret,
            (options.own4, options.own6),
            (options.mtu_bytes, options.flows_max, options.flow_idle),
            (options.inserts_per_cpu_per_s, options.icmp_per_cpu_per_s, options.syn_cookies_above),
        )
    };
    parts(a) != parts(b)
}

/// Takes what a signal wrote.
fn drain(mut signals: &UnixStream) -> io::Result<()> {
    let mut bytes = [0; 64];
    match io::Read::read(&mut signals, &mut bytes) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}

/// The two clocks that drop rules need.
fn clocks() -> Now {
    let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Now { unix_s: i64::try_from(unix_s).unwrap_or(i64::MAX), monotonic_ns: l4_load::monotonic_ns() }
}
