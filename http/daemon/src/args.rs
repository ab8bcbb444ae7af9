//! The command line.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use control_api::defaults::NAME_BYTES_MAX;
use core_runtime::shard::DriverChoice;
use lexopt::prelude::*;

pub(crate) const HINT: &str = "usage: shard-proxy --config DIR [options]; --help lists them\n";

const HELP: &str = "\
shard-proxy: io_uring thread-per-core L7 proxy

usage: shard-proxy --config DIR [options]

  --config DIR             config directory (docs/config.md)
  --shards N               number of reactors; default: one per CPU that the process may use
  --driver KIND            auto (default), ring or epoll
  --admin ADDRESS          metrics, readiness, config dump: unix:PATH, or 127.0.0.1:PORT; default: none
  --restart-socket PATH    hot restart: take over the sockets of the process that listens there, then listen there
  --drain-timeout SECONDS  how long requests in flight may take after SIGTERM; default 30
  --watch                  look at the config directory each second, and load it when it has changed
  --ticket-rotation SECONDS
                           age at which the process replaces its session ticket keys; default 43200
  --zone NAME              zone that this proxy runs in, for clusters with `zones` (docs/resilience.md)
  --fleet NUMBER/COUNT     number of this proxy, from 0, and how many there are, for clusters with `subset`; all of them
                           with as many shards
  --check                  load the config, say what is wrong, and exit
  --version, --help

signals: SIGTERM, SIGINT drain and end, a second one ends at once; SIGHUP loads the config again; SIGUSR1 opens
log files again

exit codes: 0 ended with nothing cut (or: the config is good), 1 failed while running, 3 requests were cut at the end
of the drain time, 64 wrong usage, 69 an address or socket is not to be had, 71 the system refused something,
78 the config has errors
";

/// How to serve.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) config: PathBuf,
    pub(crate) shards: Option<usize>,
    pub(crate) driver: DriverChoice,
    pub(crate) admin: Option<String>,
    pub(crate) restart_socket: Option<PathBuf>,
    pub(crate) drain_timeout: Duration,
    pub(crate) watch: bool,
    pub(crate) ticket_rotation: Duration,
    pub(crate) zone: Option<String>,
    /// Number of this proxy, from 0, and how many there are.
    pub(crate) fleet: Option<(u32, u32)>,
    pub(crate) check: bool,
}

/// What the command line asks for.
#[derive(Debug)]
pub(crate) enum Request {
    Serve(Box<Options>),
    Print(String),
}

#[derive(Debug)]
pub(crate) struct UsageError(String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<lexopt::Error> for UsageError {
    fn from(error: lexopt::Error) -> Self {
        Self(error.to_string())
    }
}

pub(crate) fn parse() -> Result<Request, UsageError> {
    parse_from(lexopt::Parser::from_env())
}

fn parse_from(mut parser: lexopt::Parser) -> Result<Request, UsageError> {
    const HOUR_S: u64 = 3600;
    let mut config = None;
    let mut options = Options {
        config: PathBuf::new(),
        shards: None,
        driver: DriverChoice::Auto,
        admin: None,
        restart_socket: None,
        drain_timeout: Duration::from_secs(30),
        watch: false,
        ticket_rotation: Duration::from_secs(12 * HOUR_S),
        zone: None,
        fleet: None,
        check: false,
    };
    while let Some(argument) = parser.next()? {
        match argument {
            Long("config") => config = Some(PathBuf::from(parser.value()?)),
            Long("shards") => {
                let count = number("--shards", parser.value()?.parse()?, 1, 1024)?;
                options.shards = Some(usize::try_from(count).unwrap_or(usize::MAX));
            }
            Long("driver") => options.driver = driver(&parser.value()?.string()?)?,
            Long("admin") => options.admin = Some(parser.value()?.string()?),
            Long("restart-socket") => options.restart_socket = Some(PathBuf::from(parser.value()?)),
            Long("drain-timeout") => {
                let seconds = number("--drain-timeout", parser.value()?.parse()?, 0, 24 * HOUR_S)?;
                options.drain_timeout = Duration::from_secs(seconds);
            }
            Long("watch") => options.watch = true,
            Long("ticket-rotation") => {
                let seconds = number("--ticket-rotation", parser.value()?.parse()?, 1, 7 * 24 * HOUR_S)?;
                options.ticket_rotation = Duration::from_secs(seconds);
            }
            Long("zone") => options.zone = Some(zone(parser.value()?.string()?)?),
            Long("fleet") => options.fleet = Some(fleet(&parser.value()?.string()?)?),
            Long("check") => options.check = true,
            Long("version") => {
                return Ok(Request::Print(format!("shard-proxy {}\n", env!("CARGO_PKG_VERSION"))));
            }
            Long("help") | Short('h') => return Ok(Request::Print(HELP.to_owned())),
            other => return Err(other.unexpected().into()),
        }
    }
    options.config = config.ok_or_else(|| UsageError("--config DIR is missing".to_owned()))?;
    Ok(Request::Serve(Box::new(options)))
}

fn number(option: &str, given: u64, min: u64, max: u64) -> Result<u64, UsageError> {
    if (min..=max).contains(&given) {
        return Ok(given);
    }
    Err(UsageError(format!("{option} {given}: must be {min} to {max}")))
}

fn zone(name: String) -> Result<String, UsageError> {
    if !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.chars().any(char::is_control) {
        return Ok(name);
    }
    Err(UsageError(format!("--zone {name:?}: must have 1 to {NAME_BYTES_MAX} bytes, no control characters")))
}

fn fleet(given: &str) -> Result<(u32, u32), UsageError> {
    const PROXIES_MAX: u32 = 10_000;
    let read = given.split_once('/').and_then(|(n, of)| Some((n.parse().ok()?, of.parse().ok()?)));
    read.filter(|(number, count)| number < count && *count <= PROXIES_MAX).ok_or_else(|| {
        let wanted =
            format!("must be NUMBER/COUNT, such as 0/3 to 2/3 for three proxies, at most {PROXIES_MAX}");
        UsageError(format!("--fleet {given}: {wanted}"))
    })
}

fn driver(word: &str) -> Result<DriverChoice, UsageError> {
    match word {
        "auto" => Ok(DriverChoice::Auto),
        "ring" => Ok(DriverChoice::Ring),
        "epoll" => Ok(DriverChoice::Epoll),
        other => Err(UsageError(format!("--driver {other}: must be auto, ring or epoll"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(words: &[&str]) -> Result<Request, UsageError> {
        parse_from(lexopt::Parser::from_args(words.iter()))
    }

    #[test]
    fn good_lines_are_taken() {
        let Ok(Request::Serve(options)) = parse_words(&[
            "--config",
            "c",
            "--shards=2",
            "--driver",
            "epoll",
            "--drain-timeout",
            "5",
            "--watch",
            "--ticket-rotation=60",
            "--zone=eu-1a",
            "--fleet=2/3",
        ]) else {
            panic!("a good line");
        };
        assert_eq!((options.shards, options.driver), (Some(2), DriverChoice::Epoll));
        assert_eq!(options.drain_timeout, Duration::from_secs(5));
        assert_eq!((options.zone.as_deref(), options.fleet), (Some("eu-1a"), Some((2, 3))));
        assert_eq!((options.watch, options.ticket_rotation), (true, Duration::from_secs(60)));
    }

    #[test]
    fn bad_lines_say_what_is_wrong() {
        for (words, part) in [
            (&[][..], "--config DIR is missing"),
            (&["--config"], "config"),
            (&["--config", "c", "--shards", "0"], "must be 1 to"),
            (&["--config", "c", "--shards", "many"], "many"),
            (&["--config", "c", "--driver", "kqueue"], "must be auto, ring or epoll"),
            (&["--config", "c", "--drain-timeout", "86401"], "must be 0 to 86400"),
            (&["--config", "c", "--ticket-rotation", "0"], "must be 1 to"),
            (&["--config", "c", "--fleet", "3/3"], "such as 0/3"),
            (&["--config", "c", "--fleet", "3"], "such as 0/3"),
            (&["--config", "c", "--zone", ""], "must have 1 to"),
            (&["--config", "c", "--frobnicate"], "frobnicate"),
            (&["stray"], "stray"),
        ] {
            let error = parse_words(words).expect_err("a bad line");
            assert!(error.0.contains(part), "{words:?}: {error}");
        }
    }
}
