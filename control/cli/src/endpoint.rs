//! `shardctl endpoint`: takes one endpoint of a running shard-proxy out of service and back, without a change of its
//! config.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::admin::client::{self, AdminAddress};
use crate::admin::{BOUNDS_DEFAULT, SOCKET_DEFAULT};
use crate::args::{Args, UsageError};
use crate::outcome::{Code, Outcome};

pub(crate) const HELP: &str = "\
Usage: shardctl endpoint drain|resume CLUSTER ADDRESS [--socket PATH]

drain   The endpoint gets no new request on any core; its requests in flight end, its sticky
        sessions go on for the overlap of its cluster, its idle connections close.
resume  The endpoint is what the config says again, and starts slowly.

CLUSTER as `shardctl admin clusters` names it, such as shop/backend; ADDRESS is IP:PORT. A drain
holds over reloads for as long as the config names the endpoint, and over hot restarts; it is gone
when the process ends for good. To keep it, write `drain: true` into the config.

Options:
  --socket PATH  The socket of shard-proxy --admin unix:PATH (default: /run/shard/admin.sock)

Exit code: 0 done, or it was so already, 1 the daemon refused, 64 wrong usage, 69 not reachable.
";

/// Runs the command.
///
/// # Errors
/// `UsageError` for a wrong argument.
pub(crate) fn run(mut args: Args) -> Result<Outcome, UsageError> {
    let socket = args.value("--socket")?;
    let mut word =
        |name: &str| args.positional().ok_or_else(|| UsageError::new(format!("{name} is missing")));
    let (action, cluster, address) = (word("drain or resume")?, word("CLUSTER")?, word("ADDRESS")?);
    args.finish()?;
    if !matches!(action.as_str(), "drain" | "resume") {
        return Err(UsageError::new(format!("unknown action {action}: drain or resume")));
    }
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"?&#".contains(&byte);
    if cluster.is_empty() || !cluster.bytes().all(is_plain) {
        return Err(UsageError::new(format!("{cluster:?} is no name of a cluster")));
    }
    let address: SocketAddr = address
        .parse()
        .map_err(|error| UsageError::new(format!("{address}: IP:PORT is wanted ({error})")))?;
    let path = format!("/endpoints/{action}?cluster={cluster}&address={address}");
    let daemon = AdminAddress::Socket(PathBuf::from(socket.as_deref().unwrap_or(SOCKET_DEFAULT)));
    Ok(match client::ask(&daemon, "POST", &path, BOUNDS_DEFAULT) {
        Ok(reply) if (200..300).contains(&reply.status) => {
            Outcome { code: Code::Success, out: reply.body, err: String::new() }
        }
        Ok(reply) => {
            let why = String::from_utf8_lossy(&reply.body).trim_end().to_owned();
            Outcome::complaint(Code::Failure, &format!("{daemon} refused ({}): {why}", reply.status))
        }
        Err(error) => Outcome::complaint(Code::Unavailable, &format!("{daemon}: {error}")),
    })
}
