//! The options of `run` and `ab`, as words give them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use core_runtime::shard::DriverChoice;
use lexopt::prelude::*;
use tls::{KeyExchange, Versions};

use super::values;
use crate::load::{Burst, Spacing, Stage};
use crate::plan::EarlyRequests;
use crate::slo::Slo;

/// Help for the options that `run` and `ab` share.
pub(crate) const HELP: &str = "\
Load:
  -c, --connections N      Connections over all cores (64)
  -m, --depth N            Requests at once on a connection: h2 streams, h1 pipelining (1)
  -d, --duration SPAN      Measured time (10s); -n, --requests N ends it earlier
      --warmup SPAN        Before it, not counted (1s; none with -n)
      --rate R             Open loop: R requests a second over all cores; without it a closed loop
      --stages LIST        Open loop in steps and ramps: 10s:1000,30s:1000-5000
      --burst SIZE/SPAN    SIZE requests at once every SPAN, on top of --rate or alone
      --trace FILE         Open loop at the times in FILE, in seconds, one a line
      --arrivals KIND      constant (default) or poisson
      --spin SPAN          Stop sleeping so long before each start: exact starts for CPU (0; 100us will do)
      --fresh              A new connection for each request
      --timeout SPAN       For connecting and for each answer (10s)
      --drain SPAN         Wait for answers after the end (the time-out, at most 10s)
      --slow-read B, --slow-send B
                           Bytes a second on each connection
Requests:
      --protocol P         h1 (default), h2 (prior knowledge on http), grpc, websocket
  -X, --method M           (GET, or POST with --body)
  -H, --header 'N: V'      Repeatable
      --body TEXT|@FILE    gRPC and WebSocket: the message
      --requests-from FILE METHOD PATH [BODY] on each line, its headers below, indented; --shuffle takes them at random
      --grpc-messages N    Messages on each gRPC stream (1)
      --seed N             Of arrivals, placeholders and order (1)
                           Placeholders: {seq} {rand:1-100} {hex:16}
Target:
      --connect-to ADDR    Connect there, whatever the URL says; repeatable
      --server-name NAME   For SNI and the certificate
      --allow-remote       A target that is not on loopback
      --cacert FILE        Trust these CAs; --insecure trusts anybody
      --cert FILE, --key FILE
                           Client certificate
      --tls V              1.2 or 1.3 only; --groups LIST; --no-resume: full handshakes only
      --early-data         A resumed connection's first request leaves with the ClientHello (0-RTT) where
                           the ticket allows it; --early-data-unsafe: whatever its method
      --pid PID            Read CPU and memory of this process tree
Generator:
  -t, --threads N          (1); --cpus LIST pins one thread to each CPU
      --driver D           auto (default), ring, epoll
Results:
      --json F, --csv F, --hdr F, --html F
      --label TEXT         What reports call this run (the URL)
      --slo LIST           p99<5ms,err<0.1%,rate>1000: exit code 1 when one does not hold
      --rate-tolerance P   The target rate may be missed by this without a failure (1%)
  -q, --quiet              No progress on a terminal
";

/// See the module.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) words: Vec<String>,
    pub(crate) connections: u64,
    pub(crate) depth: u64,
    pub(crate) duration: Option<Duration>,
    pub(crate) warmup: Option<Duration>,
    pub(crate) requests: Option<u64>,
    pub(crate) rate: Option<f64>,
    pub(crate) stages: Option<Vec<Stage>>,
    pub(crate) burst: Option<Burst>,
    pub(crate) trace: Option<PathBuf>,
    pub(crate) spacing: Spacing,
    pub(crate) is_fresh: bool,
    pub(crate) timeout: Duration,
    pub(crate) drain: Option<Duration>,
    pub(crate) spin: Duration,
    pub(crate) read_rate: Option<u64>,
    pub(crate) send_rate: Option<u64>,
    pub(crate) protocol: Option<String>,
    pub(crate) method: Option<String>,
    pub(crate) headers: Vec<String>,
    pub(crate) body: Option<String>,
    pub(crate) requests_from: Option<PathBuf>,
    pub(crate) is_shuffled: bool,
    pub(crate) grpc_messages: u64,
    pub(crate) seed: u64,
    pub(crate) connect_to: Vec<String>,
    pub(crate) server_name: Option<String>,
    pub(crate) allow_remote: bool,
    pub(crate) cacert: Option<PathBuf>,
    pub(crate) insecure: bool,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) versions: Versions,
    pub(crate) groups: Vec<KeyExchange>,
    pub(crate) resume: bool,
    pub(crate) early_data: EarlyRequests,
    pub(crate) pids: Vec<u32>,
    pub(crate) threads: u64,
    pub(crate) cpus: Option<Vec<usize>>,
    pub(crate) driver: DriverChoice,
    pub(crate) label: Option<String>,
    pub(crate) json: Option<PathBuf>,
    pub(crate) csv: Option<PathBuf>,
    pub(crate) hdr: Option<PathBuf>,
    pub(crate) html: Option<PathBuf>,
    pub(crate) slo: Slo,
    pub(crate) rate_tolerance: f64,
    pub(crate) is_quiet: bool,
    pub(crate) wants_help: bool,
    pub(crate) rounds: u64,
    pub(crate) judge: Vec<String>,
    pub(crate) threshold: f64,
    pub(crate) start: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            words: Vec::new(),
            connections: 64,
            depth: 1,
            duration: None,
            warmup: None,
            requests: None,
            rate: None,
            stages: None,
            burst: None,
            trace: None,
            spacing: Spacing::Constant,
            is_fresh: false,
            timeout: Duration::from_secs(10),
            drain: None,
            spin: Duration::ZERO,
            read_rate: None,
            send_rate: None,
            protocol: None,
            method: None,
            headers: Vec::new(),
            body: None,
            requests_from: None,
            is_shuffled: false,
            grpc_messages: 1,
            seed: 1,
            connect_to: Vec::new(),
            server_name: None,
            allow_remote: false,
            cacert: None,
            insecure: false,
            cert: None,
            key: None,
            versions: Versions::default(),
            groups: Vec::new(),
            resume: true,
            early_data: EarlyRequests::None,
            pids: Vec::new(),
            threads: 1,
            cpus: None,
            driver: DriverChoice::Auto,
            label: None,
            json: None,
            csv: None,
            hdr: None,
            html: None,
            slo: Slo::default(),
            rate_tolerance: crate::health::RATE_TOLERANCE,
            is_quiet: false,
            wants_help: false,
            rounds: 10,
            judge: Vec::new(),
            threshold: 0.03,
            start: Vec::new(),
        }
    }
}

impl Options {
    /// Reads the words behind the command.
    ///
    /// # Errors
    /// The option and what is wrong with it.
    pub(crate) fn parse(words: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let mut parser = lexopt::Parser::from_args(words);
        let mut options = Self::default();
        while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
            match argument {
                Short('h') | Long("help") => options.wants_help = true,
                Value(word) => options.words.push(word.string().map_err(|error| error.to_string())?),
                Short(letter) => {
                    let name = match letter {
                        'c' => "connections",
                        'm' => "depth",
                        'd' => "duration",
                        'n' => "requests",
                        'X' => "method",
                        'H' => "header",
                        't' => "threads",
                        'q' => "quiet",
                        _ => return Err(format!("unknown option -{letter}")),
                    };
                    options.take(name, &mut parser)?;
                }
                Long(name) => {
                    let name = name.to_owned();
                    options.take(&name, &mut parser)?;
                }
            }
        }
        Ok(options)
    }

    fn take(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<(), String> {
        if self.take_flag(name) {
            return Ok(());
        }
        if !VALUED.contains(&name) {
            return Err(format!("unknown option --{name}"));
        }
        let value = parser.value().and_then(|value| value.string()).map_err(|error| error.to_string())?;
        let at = |why: String| format!("--{name}: {why}");
        if self.take_text(name, &value) {
            return Ok(());
        }
        self.take_number(name, &value).map_err(at)
    }

    fn take_flag(&mut self, name: &str) -> bool {
        if let "early-data" | "early-data-unsafe" = name {
            // Unsafe includes safe, in any order.
            if self.early_data != EarlyRequests::All {
                self.early_data = if name == "early-data" { EarlyRequests::Safe } else { EarlyRequests::All };
            }
            return true;
        }
        let flag = match name {
            "fresh" => &mut self.is_fresh,
            "shuffle" => &mut self.is_shuffled,
            "allow-remote" => &mut self.allow_remote,
            "insecure" => &mut self.insecure,
            "quiet" => &mut self.is_quiet,
            "no-resume" => {
                self.resume = false;
                return true;
            }
            _ => return false,
        };
        *flag = true;
        true
    }

    fn take_text(&mut self, name: &str, value: &str) -> bool {
        let text = Some(value.to_owned());
        let path = Some(PathBuf::from(value));
        match name {
            "header" => self.headers.push(value.to_owned()),
            "connect-to" => self.connect_to.push(value.to_owned()),
            "start" => self.start.push(value.to_owned()),
            "judge" => self.judge.extend(value.split(',').map(str::to_owned)),
            "protocol" => self.protocol = text,
            "label" => self.label = text,
            "method" => self.method = text,
            "body" => self.body = text,
            "server-name" => self.server_name = text,
            "trace" => self.trace = path,
            "requests-from" => self.requests_from = path,
            "cacert" => self.cacert = path,
            "cert" => self.cert = path,
            "key" => self.key = path,
            "json" => self.json = path,
            "csv" => self.csv = path,
            "hdr" => self.hdr = path,
            "html" => self.html = path,
            _ => return false,
        }
        true
    }

    fn take_number(&mut self, name: &str, value: &str) -> Result<(), String> {
        let pid = || value.parse::<u32>().map_err(|error| format!("{value}: {error}"));
        match name {
            "connections" => self.connections = values::count(value)?,
            "depth" => self.depth = values::count(value)?,
            "duration" => self.duration = Some(values::span(value)?),
            "warmup" => self.warmup = Some(values::span(value)?),
            "requests" => self.requests = Some(values::count(value)?),
            "rate" => self.rate = Some(values::rate(value)?),
            "stages" => self.stages = Some(values::stages(value)?),
            "burst" => self.burst = Some(values::burst(value)?),
            "timeout" => self.timeout = values::span(value)?,
            "spin" => self.spin = values::span(value)?,
            "drain" => self.drain = Some(values::span(value)?),
            "slow-read" => self.read_rate = Some(values::byte_rate(value)?),
            "slow-send" => self.send_rate = Some(values::byte_rate(value)?),
            "grpc-messages" => self.grpc_messages = values::count(value)?,
            "seed" => self.seed = value.parse().map_err(|error| format!("{value}: {error}"))?,
            "groups" => self.groups = values::groups(value)?,
            "pid" => self.pids.push(pid()?),
            "threads" => self.threads = values::count(value)?,
            "cpus" => self.cpus = Some(values::cpus(value)?),
            "slo" => self.slo = Slo::parse(value)?,
            "rounds" => self.rounds = values::count(value)?,
            "rate-tolerance" => self.rate_tolerance = share(value)?,
            "threshold" => self.threshold = share(value)?,
            "arrivals" => {
                self.spacing = match value {
                    "constant" => Spacing::Constant,
                    "poisson" => Spacing::Poisson,
                    _ => return Err(format!("{value}: want constant or poisson")),
                }
            }
            "tls" => self.versions = values::tls_version(value)?,
            _ => self.driver = values::driver(value)?,
        }
        Ok(())
    }
}

/// A percentage as a share.
fn share(value: &str) -> Result<f64, String> {
    let number = value.strip_suffix('%').unwrap_or(value).parse::<f64>();
    match number {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err(format!("{value}: want a percentage, such as 1%")),
    }
}

/// Options that take a value.
const VALUED: &[&str] = &[
    "connections",
    "depth",
    "duration",
    "warmup",
    "requests",
    "rate",
    "stages",
    "burst",
    "trace",
    "arrivals",
    "timeout",
    "drain",
    "spin",
    "slow-read",
    "slow-send",
    "protocol",
    "method",
    "header",
    "body",
    "requests-from",
    "grpc-messages",
    "seed",
    "connect-to",
    "server-name",
    "cacert",
    "cert",
    "key",
    "tls",
    "groups",
    "pid",
    "threads",
    "cpus",
    "driver",
    "label",
    "json",
    "csv",
    "hdr",
    "html",
    "slo",
    "rate-tolerance",
    "rounds",
    "judge",
    "threshold",
    "start",
];
