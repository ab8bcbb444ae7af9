//! `shardctl admin`: a thin client of shard-proxy's admin listener. Prints what the daemon answers, unchanged.

pub(crate) mod client;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::args::{Args, UsageError};
use crate::outcome::{Code, Outcome};

use client::{AdminAddress, Bounds};

/// The advised place of the socket, asked when no option names another; shard-proxy has none unless told.
pub(crate) const SOCKET_DEFAULT: &str = "/run/shard/admin.sock";
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);
const TIMEOUT_SECONDS_MAX: u64 = 300;
/// A config dump of thousands of routes fits; a daemon gone mad does not fill the terminal's memory.
const BODY_BYTES_MAX: usize = 256 * 1024 * 1024;
pub(crate) const BOUNDS_DEFAULT: Bounds = Bounds { timeout: TIMEOUT_DEFAULT, body_bytes_max: BODY_BYTES_MAX };

pub(crate) const HELP: &str = "\
Usage: shardctl admin [--socket PATH | --address IP:PORT] [--timeout SECONDS] WHAT

Asks the admin listener of a running shard-proxy and prints its answer.

WHAT is one of:
  metrics      Prometheus metrics
  ready        Whether the proxy takes traffic: exit code 0 yes, 1 no
  config       The configuration that is live
  connections  Open connections
  clusters     Endpoints: weight, requests in flight, connections, ejected for how long and why
  generations  Configurations that connections still hold

Options:
  --socket PATH      The socket of shard-proxy --admin unix:PATH (default: /run/shard/admin.sock)
  --address IP:PORT  A loopback address instead of a socket
  --timeout SECONDS  For the whole exchange, 1 to 300 (default: 5)

Exit code: 0 answered, 1 the daemon answered with an error status, 64 wrong usage, 69 not reachable.
";

/// Runs the command.
///
/// # Errors
/// `UsageError` for a wrong argument.
pub(crate) fn run(mut args: Args) -> Result<Outcome, UsageError> {
    let socket = args.value("--socket")?;
    let address = args.value_parsed::<SocketAddr>("--address", "an address such as 127.0.0.1:9901")?;
    let seconds = args.value_parsed::<u64>("--timeout", "a number of seconds")?;
    let what = args.positional().ok_or_else(|| UsageError::new("what to ask for is missing"))?;
    args.finish()?;
    let path = match what.as_str() {
        "metrics" => "/metrics",
        "ready" => "/ready",
        "config" => "/config",
        "connections" => "/connections",
        "clusters" => "/clusters",
        "generations" => "/generations",
        other => {
            return Err(UsageError::new(format!(
                "unknown question {other}: metrics, ready, config, connections, clusters or generations"
            )));
        }
    };
    let address = match (socket, address) {
        (Some(_), Some(_)) => {
            return Err(UsageError::new("--socket and --address exclude each other"));
        }
        (None, Some(address)) if !address.ip().is_loopback() => {
            return Err(UsageError::new(format!(
                "--address {address}: the admin listener is on loopback only"
            )));
        }
        (None, Some(address)) => AdminAddress::Loopback(address),
        (socket, None) => AdminAddress::Socket(PathBuf::from(socket.as_deref().unwrap_or(SOCKET_DEFAULT))),
    };
    let timeout = match seconds {
        None => TIMEOUT_DEFAULT,
        Some(seconds @ 1..=TIMEOUT_SECONDS_MAX) => Duration::from_secs(seconds),
        Some(seconds) => {
            return Err(UsageError::new(format!(
                "--timeout {seconds}: 1 to {TIMEOUT_SECONDS_MAX} is wanted"
            )));
        }
    };
    let bounds = Bounds { timeout, ..BOUNDS_DEFAULT };
    Ok(match client::ask(&address, "GET", path, bounds) {
        Ok(reply) if (200..300).contains(&reply.status) => {
            Outcome { code: Code::Success, out: reply.body, err: String::new() }
        }
        Ok(reply) => {
            let err = format!("shardctl: {address} answered {} to {path}\n", reply.status);
            Outcome { code: Code::Failure, out: reply.body, err }
        }
        Err(error) => Outcome::complaint(Code::Unavailable, &format!("{address}: {error}")),
    })
}
