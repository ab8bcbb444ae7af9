//! The product under test: `shard-proxy` as a process with a config directory, an admin listener and a log. It is
//! started from the target directory of the running test and must have been built before (`cargo build -p
//! http-daemon`, which `./test` does); a binary older than its sources is reported.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use rustix::process::Signal;

use crate::client::{self, RawClient};
use crate::config::Config;
use crate::dir::TempDir;
use crate::message::Response;
use crate::metrics::Metrics;
use crate::tool::Process;
use crate::wait::{PATIENCE, wait_for, wait_until};

/// How to get the binaries that tests start.
const BUILD_HINT: &str =
    "build it with: cargo build -p http-daemon -p control-cli -p l4-daemon (./test does)";

/// A running `shard-proxy`.
#[derive(Debug)]
pub struct Proxy {
    // Order matters: the process ends before its directory goes.
    process: Process,
    dir: TempDir,
    config: Config,
    /// Hot restarts so far.
    generation: usize,
}

impl Proxy {
    /// Writes the config, starts the binary, waits until it is ready.
    ///
    /// # Panics
    /// When the binary is missing, ends early, or is not ready in time; its log is printed.
    #[must_use]
    #[track_caller]
    pub fn start(config: Config) -> Self {
        Self::start_with(config, &[])
    }

    /// As [`Self::start`], with more command-line arguments.
    #[must_use]
    #[track_caller]
    pub fn start_with(config: Config, arguments: &[&str]) -> Self {
        Self::start_by(Command::new(binary("shard-proxy")), config, arguments)
    }

    /// As [`Self::start_with`], run by another program such as valgrind, which gets arguments of its own first.
    #[must_use]
    #[track_caller]
    pub fn start_under(tool: &Path, tool_arguments: &[&str], config: Config, arguments: &[&str]) -> Self {
        let mut command = Command::new(tool);
        command.args(tool_arguments).arg(binary("shard-proxy"));
        Self::start_by(command, config, arguments)
    }

    #[track_caller]
    fn start_by(command: Command, config: Config, arguments: &[&str]) -> Self {
        let dir = TempDir::new("proxy");
        write_config(&dir, &config);
        let process = spawn(command, &dir, &config, "shard-proxy", arguments);
        let mut proxy = Self { process, dir, config, generation: 0 };
        proxy.wait_ready();
        proxy
    }

    /// Waits until the admin listener says that this process serves.
    #[track_caller]
    pub fn wait_ready(&mut self) {
        let admin = self.config.admin;
        let pid = format!("pid {}", self.process.pid());
        wait_until("shard-proxy is ready", PATIENCE, || {
            if let Some(status) = self.process.status() {
                panic!("shard-proxy ended with {status} before it was ready ({pid})");
            }
            try_get(admin, "/ready").is_some_and(|response| response.status == 200)
        });
    }

    /// Address of the first listener.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.config.listeners[0].port))
    }

    /// Address of a listener by name.
    ///
    /// # Panics
    /// When the config has none of that name.
    #[must_use]
    #[track_caller]
    pub fn listener(&self, name: &str) -> SocketAddr {
        let listener = self.config.listeners.iter().find(|listener| listener.name == name);
        SocketAddr::from(([127, 0, 0, 1], listener.expect("a listener of the config").port))
    }

    /// The config directory.
    #[must_use]
    pub fn config_dir(&self) -> PathBuf {
        self.dir.path().join("config")
    }

    /// A directory that lives as long as the proxy.
    #[must_use]
    pub fn dir(&self) -> &TempDir {
        &self.dir
    }

    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    #[must_use]
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Sends a signal to the process.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// What the process wrote.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// A client connection to the first listener.
    #[must_use]
    #[track_caller]
    pub fn connect(&self) -> RawClient {
        RawClient::connect(self.address())
    }

    /// `GET target` for host `a.example` on the first listener.
    #[must_use]
    #[track_caller]
    pub fn get(&self, target: &str) -> Response {
        client::get(self.address(), "a.example", target)
    }

    /// A page of the admin listener.
    #[must_use]
    #[track_caller]
    pub fn admin(&self, target: &str) -> Response {
        client::get_h1(self.config.admin, "localhost", target)
    }

    /// What the admin page of clusters says of an endpoint; null before a core has used its cluster.
    #[must_use]
    #[track_caller]
    pub fn endpoint(&self, address: SocketAddr) -> serde_json::Value {
        let page = self.admin("/clusters").json();
        let clusters = page["clusters"].as_array().cloned().unwrap_or_default();
        let mut endpoints = clusters.iter().filter_map(|cluster| cluster["endpoints"].as_array()).flatten();
        let found = endpoints.find(|endpoint| endpoint["address"] == address.to_string().as_str());
        found.cloned().unwrap_or_default()
    }

    /// The metrics of this moment. They are at most one aggregator window (500 ms) behind.
    #[must_use]
    #[track_caller]
    pub fn metrics(&self) -> Metrics {
        Metrics::parse(&self.admin("/metrics").text())
    }

    /// Waits until a condition on the metrics holds.
    #[track_caller]
    pub fn wait_metrics(&self, what: &str, condition: impl Fn(&Metrics) -> bool) {
        wait_until(what, PATIENCE, || {
            try_get(self.config.admin, "/metrics")
                .is_some_and(|response| condition(&Metrics::parse(&response.text())))
        });
    }

    /// The config version that is live.
    #[must_use]
    #[track_caller]
    pub fn version(&self) -> String {
        let value = self.admin("/config").json();
        value.get("version").and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
    }

    /// Writes another config with the same admin address, sends SIGHUP and waits until it is live.
    #[track_caller]
    pub fn reload(&mut self, mut config: Config) {
        config.admin = self.config.admin;
        let before = self.version();
        let applied = |metrics: &Metrics| metrics.sum("shard_snapshots_applied_total", &[]);
        let applied_before = applied(&self.metrics());
        write_config(&self.dir, &config);
        let cores = f64::from(u32::try_from(config.cores).expect("a number of cores"));
        self.config = config;
        self.process.signal(Signal::HUP);
        wait_until("the new config is live", PATIENCE, || self.version() != before);
        self.wait_metrics("all cores have applied the new config", |metrics| {
            applied(metrics) >= applied_before + cores
        });
    }

    /// Starts a second process with the same arguments, which takes over all sockets, and waits until the old one
    /// has ended.
    #[track_caller]
    pub fn hot_restart(&mut self) {
        let status = self.hot_restart_ending();
        assert!(status.success(), "the old process ended with {status}");
    }

    /// As [`Self::hot_restart`], with another number of reactors.
    #[track_caller]
    pub fn hot_restart_with_cores(&mut self, cores: usize) {
        self.config.cores = cores;
        self.hot_restart();
    }

    /// As [`Self::hot_restart`]; returns how the old process ended.
    #[track_caller]
    pub fn hot_restart_ending(&mut self) -> ExitStatus {
        self.generation += 1;
        let next = spawn(
            Command::new(binary("shard-proxy")),
            &self.dir,
            &self.config,
            &format!("shard-proxy-{}", self.generation),
            &[],
        );
        let mut old = std::mem::replace(&mut self.process, next);
        let status = old.wait(self.config.drain + PATIENCE);
        self.wait_ready();
        status
    }

    /// Starts another process with the arguments of this one and more, next to it.
    #[must_use]
    #[track_caller]
    pub fn start_beside(&self, name: &str, arguments: &[&str]) -> Process {
        spawn(Command::new(binary("shard-proxy")), &self.dir, &self.config, name, arguments)
    }

    /// Takes a process that [`Self::start_beside`] started, and that has taken over, for the current one; returns the
    /// one before.
    pub fn replace_process(&mut self, process: Process) -> Process {
        std::mem::replace(&mut self.process, process)
    }

    /// Writes a config without telling the process.
    #[track_caller]
    pub fn write_config(&self, config: &Config) {
        write_config(&self.dir, config);
    }

    /// SIGTERM, then waits for the end.
    ///
    /// # Panics
    /// When the process outlives its drain time.
    #[track_caller]
    pub fn stop(mut self) -> ExitStatus {
        self.process.signal(Signal::TERM);
        self.process.wait(self.config.drain + PATIENCE)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let log = self.process.log();
        let crashed = log.contains("panicked at");
        if crashed && !std::thread::panicking() {
            panic!("shard-proxy panicked:\n{log}");
        }
    }
}

/// One request that may fail, for polling.
fn try_get(address: SocketAddr, target: &str) -> Option<Response> {
    let tcp = std::net::TcpStream::connect(address).ok()?;
    tcp.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    let mut client = RawClient::over(client::Stream::Plain(tcp));
    let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    client.try_send(request).ok()?;
    client.try_response("GET").ok()
}

fn write_config(dir: &TempDir, config: &Config) {
    for (path, content) in config.files() {
        dir.write(&format!("config/{path}"), content);
    }
}

/// What belongs to the process and not to the config directory.
fn process_arguments(dir: &TempDir, config: &Config) -> Vec<String> {
    let pairs = [
        ("--shards", config.cores.to_string()),
        ("--admin", config.admin.to_string()),
        ("--drain-timeout", config.drain.as_secs().max(1).to_string()),
        ("--restart-socket", dir.path().join("restart.sock").display().to_string()),
    ];
    pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
}

fn spawn(mut command: Command, dir: &TempDir, config: &Config, name: &str, arguments: &[&str]) -> Process {
    command
        .arg("--config")
        .arg(dir.path().join("config"))
        .args(process_arguments(dir, config))
        .args(arguments);
    command.current_dir(dir.path());
    Process::start(name, dir, &mut command)
}

/// Path of a binary of this workspace, built for the profile of the running test. `SHARD_BIN_DIR` names another
/// folder.
///
/// # Panics
/// When it has not been built.
#[must_use]
#[track_caller]
pub fn binary(name: &str) -> PathBuf {
    static WARNED: OnceLock<()> = OnceLock::new();
    let path = bin_dir().join(name);
    assert!(path.is_file(), "{} does not exist: {BUILD_HINT}", path.display());
    if let Some(newer) = newer_source(&path) {
        WARNED
            .get_or_init(|| crate::note(&format!("{name} is older than {}: {BUILD_HINT}", newer.display())));
    }
    path
}

fn bin_dir() -> PathBuf {
    if let Some(folder) = std::env::var_os("SHARD_BIN_DIR") {
        return folder.into();
    }
    let own = std::env::current_exe().expect("a running program has a path");
    let folder = own.parent().expect("a file lies in a folder");
    // Tests lie in target/PROFILE/deps, programs beside the product's.
    if folder.ends_with("deps") { folder.parent().expect("target/PROFILE").into() } else { folder.into() }
}

/// The first source file that is newer than the binary, by cargo's own list beside it.
fn newer_source(binary: &Path) -> Option<PathBuf> {
    let built: SystemTime = binary.metadata().ok()?.modified().ok()?;
    let list = std::fs::read_to_string(binary.with_extension("d")).ok()?;
    let sources = list.split_once(": ")?.1.split_whitespace().map(PathBuf::from);
    sources
        .into_iter()
        .find(|source| source.metadata().and_then(|data| data.modified()).is_ok_and(|time| time > built))
}

/// Polls the log of a proxy, or any file, for a line.
///
/// # Panics
/// When it does not appear in time.
#[must_use]
#[track_caller]
pub fn wait_line(path: &Path, what: &str) -> String {
    wait_for(&format!("a line with {what:?} in {}", path.display()), PATIENCE, || {
        let text = String::from_utf8_lossy(&std::fs::read(path).ok()?).into_owned();
        text.lines().find(|line| line.contains(what)).map(str::to_owned)
    })
}
