//! `shardctl l4`: asks a running shard-l4 over its control socket and shows the answer as a table, or as it came.

mod view;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread::park_timeout;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::admin::client::{self, AdminAddress, Bounds};
use crate::args::{Args, UsageError};
use crate::outcome::{Code, Outcome};

/// The daemon's default of `--control`.
const SOCKET_DEFAULT: &str = "/run/shard/l4.sock";
const TIMEOUT: Duration = Duration::from_secs(10);
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;
const FLOWS_MAX: u32 = 10_000;
const TRACE_SECONDS_MAX: u64 = 60;
/// Between two questions of a trace; the kernel's ring holds what comes meanwhile.
const TRACE_PAUSE: Duration = Duration::from_millis(200);

pub(crate) const HELP: &str = "\
Usage: shardctl l4 [--socket PATH] [--json] WHAT

Asks a running shard-l4.

WHAT is one of:
  show                 What is in force: proxies with their rows, VIPs, windows, interfaces
  counters             Packets by VIP and decision, by proxy, and by drop rule
  flows [--max N]      Remembered flows, at most N (default: 100, up to 10000)
  lookup PROTOCOL SOURCE DESTINATION
                       Where a packet of this flow would go, such as
                       lookup tcp 198.51.100.7:40000 192.0.2.80:443
  trace [--one-in N] [--seconds S]
                       Samples one decision in N (default: 1000) for S seconds (default: 2), and
                       shows them; sampling is off before and after
  drain [--undo]       Withdraws the box's announcement; packets that still come are forwarded
  metrics              Prometheus metrics
  ready                Whether the box is ready and not drained: exit code 0 yes, 1 no

Options:
  --socket PATH  The socket of shard-l4 --control PATH (default: /run/shard/l4.sock)
  --json         The answer as the daemon gave it

Exit code: 0 answered, 1 the daemon answered with an error status, 64 wrong usage, 69 not reachable.
";

/// A question with what is known of its answer.
struct Question {
    method: &'static str,
    path: String,
    view: fn(&Value) -> String,
}

/// Runs the command.
///
/// # Errors
/// `UsageError` for a wrong argument.
pub(crate) fn run(mut args: Args) -> Result<Outcome, UsageError> {
    let socket = args.value("--socket")?;
    let is_json = args.flag("--json");
    let daemon = Daemon(AdminAddress::Socket(PathBuf::from(socket.as_deref().unwrap_or(SOCKET_DEFAULT))));
    let what = args.positional().ok_or_else(|| UsageError::new("what to ask for is missing"))?;
    if what == "trace" {
        let one_in = args.value_parsed::<u32>("--one-in", "a number of packets")?.unwrap_or(1_000);
        let seconds = args.value_parsed::<u64>("--seconds", "a number of seconds")?.unwrap_or(2);
        args.finish()?;
        if one_in == 0 || !(1..=TRACE_SECONDS_MAX).contains(&seconds) {
            return Err(UsageError::new(format!(
                "--one-in {one_in} --seconds {seconds}: at least 1, and 1 to {TRACE_SECONDS_MAX} are wanted"
            )));
        }
        return Ok(daemon.trace(one_in, Duration::from_secs(seconds), is_json));
    }
    let question = question(&what, &mut args)?;
    args.finish()?;
    Ok(daemon.ask(&question).unwrap_or_else(|failed| failed).shown(is_json, question.view))
}

fn question(what: &str, args: &mut Args) -> Result<Question, UsageError> {
    let get = |path: &str, view| Question { method: "GET", path: path.to_owned(), view };
    Ok(match what {
        "show" => get("/show", view::show),
        "counters" => get("/counters", view::counters),
        "metrics" => get("/metrics", view::plain),
        "ready" => get("/ready", view::plain),
        "flows" => {
            let max = args.value_parsed::<u32>("--max", "a number of flows")?.unwrap_or(100);
            if !(1..=FLOWS_MAX).contains(&max) {
                return Err(UsageError::new(format!("--max {max}: 1 to {FLOWS_MAX} is wanted")));
            }
            get(&format!("/flows?max={max}"), view::flows)
        }
        "lookup" => {
            let mut word =
                |name: &str| args.positional().ok_or_else(|| UsageError::new(format!("{name} is missing")));
            let (protocol, source, destination) = (word("PROTOCOL")?, word("SOURCE")?, word("DESTINATION")?);
            if !matches!(protocol.as_str(), "tcp" | "udp") {
                return Err(UsageError::new(format!("{protocol}: tcp or udp is wanted")));
            }
            let address = |text: &str| {
                let parsed = text.parse::<SocketAddr>();
                parsed.map_err(|error| UsageError::new(format!("{text}: IP:PORT is wanted ({error})")))
            };
            let (source, destination) = (address(&source)?, address(&destination)?);
            let path = format!("/lookup?protocol={protocol}&source={source}&destination={destination}");
            get(&path, view::lookup)
        }
        "drain" => {
            let path = if args.flag("--undo") { "/undrain" } else { "/drain" };
            Question { method: "POST", path: path.to_owned(), view: view::lookup }
        }
        other => {
            return Err(UsageError::new(format!(
                "unknown question {other}: show, counters, flows, lookup, trace, drain, metrics or ready"
            )));
        }
    })
}

/// An answer that is still as it came.
struct Answer(Outcome);

impl Answer {
    /// As a table, where it is a good answer and a table is wanted.
    fn shown(self, is_json: bool, view: fn(&Value) -> String) -> Outcome {
        let Outcome { code, out, err } = self.0;
        let value = match (code, is_json) {
            (Code::Success, false) => serde_json::from_slice::<Value>(&out).ok(),
            _ => None,
        };
        let out = value.map_or(out, |value| view(&value).into_bytes());
        Outcome { code, out, err }
    }
}

struct Daemon(AdminAddress);

impl Daemon {
    /// Both sides are an answer: what the daemon said, or what to tell instead.
    fn ask(&self, question: &Question) -> Result<Answer, Answer> {
        let bounds = Bounds { timeout: TIMEOUT, body_bytes_max: BODY_BYTES_MAX };
        match client::ask(&self.0, question.method, &question.path, bounds) {
            Ok(reply) if (200..300).contains(&reply.status) => {
                Ok(Answer(Outcome { code: Code::Success, out: reply.body, err: String::new() }))
            }
            Ok(reply) => {
                let err = format!("shardctl: {} answered {} to {}\n", self.0, reply.status, question.path);
                Err(Answer(Outcome { code: Code::Failure, out: reply.body, err }))
            }
            Err(error) => Err(Answer(Outcome::complaint(Code::Unavailable, &format!("{}: {error}", self.0)))),
        }
    }

    /// Switches sampling on, collects, and switches it off again, also when collecting failed.
    fn trace(&self, one_in: u32, time: Duration, is_json: bool) -> Outcome {
        let set = |one_in: u32| Question {
            method: "POST",
            path: format!("/trace?one_in={one_in}"),
            view: view::plain,
        };
        let events = Question { method: "GET", path: "/trace".to_owned(), view: view::trace };
        // What an earlier trace left in the ring is not of this one.
        if let Err(failed) = self.ask(&events).and_then(|_| self.ask(&set(one_in))) {
            return failed.0;
        }
        let until = Instant::now() + time;
        let mut shown = Outcome::text("");
        loop {
            let is_last = Instant::now() >= until;
            let failed = match self.ask(&events) {
                Ok(answer) => {
                    shown.out.extend(answer.shown(is_json, events.view).out);
                    None
                }
                Err(failed) => Some(failed.0),
            };
            if is_last || failed.is_some() {
                let off = self.ask(&set(0)).err().map(|failed| failed.0);
                return failed.or(off).unwrap_or(shown);
            }
            park_timeout(TRACE_PAUSE);
        }
    }
}
