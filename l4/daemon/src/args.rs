//! The command line.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use lexopt::prelude::*;

pub(crate) const HINT: &str = "usage: shard-l4 --config FILE [options]; --help lists them\n";

const HELP: &str = "\
shard-l4: the L4 tier, an XDP program that spreads flows over proxies

usage: shard-l4 --config FILE [options]

  --config FILE          what to forward, and to whom (docs/l4.md, docs/config.md)
  --control PATH         unix socket for shardctl l4; default /run/shard/l4.sock
  --metrics IP:PORT      also serve /metrics and /ready on this loopback address
  --check                load the file, say what is wrong, and exit
  --detach               take the program off all interfaces, and exit: packets are not forwarded any more
  --version, --help

signals: SIGHUP loads the file again, a wrong one changes nothing (hash_key, flows and host need a restart); SIGTERM,
SIGINT withdraw the announcement, where the file says so, and end. The program goes on forwarding until --detach.

exit codes: 0 ended (or: the file is good), 64 wrong usage, 69 an address or socket is not to be had, 71 the kernel
refused something, 78 the file has errors
";

const CONTROL_DEFAULT: &str = "/run/shard/l4.sock";

/// How to serve.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) config: PathBuf,
    pub(crate) control: PathBuf,
    pub(crate) metrics: Option<SocketAddr>,
}

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Serve(Options),
    Check(PathBuf),
    Detach(PathBuf),
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
    let (mut config, mut check, mut detach) = (None, false, false);
    let (mut control, mut metrics) = (PathBuf::from(CONTROL_DEFAULT), None);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("config") => config = Some(PathBuf::from(parser.value()?)),
            Long("control") => control = PathBuf::from(parser.value()?),
            Long("metrics") => {
                let address: SocketAddr = parser.value()?.parse()?;
                if !address.ip().is_loopback() {
                    return Err(UsageError(format!("--metrics {address}: it must be a loopback address")));
                }
                metrics = Some(address);
            }
            Long("check") => check = true,
            Long("detach") => detach = true,
            Long("version") => {
                return Ok(Request::Print(format!("shard-l4 {}\n", env!("CARGO_PKG_VERSION"))));
            }
            Long("help") | Short('h') => return Ok(Request::Print(HELP.to_owned())),
            other => return Err(other.unexpected().into()),
        }
    }
    let config = config.ok_or_else(|| UsageError("--config FILE is missing".to_owned()))?;
    match (check, detach) {
        (true, true) => Err(UsageError("--check and --detach exclude each other".to_owned())),
        (true, false) => Ok(Request::Check(config)),
        (false, true) => Ok(Request::Detach(config)),
        (false, false) => Ok(Request::Serve(Options { config, control, metrics })),
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
        let serve = Options {
            config: PathBuf::from("c"),
            control: PathBuf::from("/tmp/s"),
            metrics: Some(SocketAddr::from(([127, 0, 0, 1], 9902))),
        };
        for (words, request) in [
            (
                &["--config", "c", "--control=/tmp/s", "--metrics", "127.0.0.1:9902"][..],
                Request::Serve(serve),
            ),
            (&["--check", "--config", "c"], Request::Check(PathBuf::from("c"))),
            (&["--detach", "--config", "c"], Request::Detach(PathBuf::from("c"))),
        ] {
            assert_eq!(parse_words(words).expect("a good line"), request);
        }
    }

    #[test]
    fn bad_lines_say_what_is_wrong() {
        for (words, part) in [
            (&[][..], "--config FILE is missing"),
            (&["--config"], "config"),
            (&["--config", "c", "--metrics", "192.0.2.1:1"], "loopback"),
            (&["--config", "c", "--metrics", "x"], "x"),
            (&["--config", "c", "--check", "--detach"], "exclude each other"),
            (&["--config", "c", "--frobnicate"], "frobnicate"),
        ] {
            let error = parse_words(words).expect_err("a bad line");
            assert!(error.0.contains(part), "{words:?}: {error}");
        }
    }
}
