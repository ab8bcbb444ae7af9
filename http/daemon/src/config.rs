//! From the config directory to one snapshot for each shard, with every fault in the operator's log.
//!
//! Called at the start and by reloads, on the main thread. A config with a fault yields nothing.

use std::path::Path;
use std::time::Duration;

use control_config::{Loaded, SourceMap};
use http_proxy::snapshot::{Host, Snapshot, StatRegistry, compile_for};
use tls::TicketKeys;

use crate::args::Options;
use crate::oplog;

/// A config that every shard can serve.
#[derive(Debug)]
pub(crate) struct Compiled {
    /// One for each shard; never empty.
    pub(crate) snapshots: Vec<Snapshot>,
    pub(crate) sources: SourceMap,
    pub(crate) digest: String,
}

/// Reads the directory.
///
/// # Errors
/// The number of faults; all are logged.
pub(crate) fn load(dir: &Path) -> Result<Loaded, usize> {
    match control_config::load(dir) {
        Ok(loaded) => {
            loaded.warnings.iter().for_each(|warning| oplog::warn(&format!("config: {warning}")));
            Ok(loaded)
        }
        Err(errors) => {
            errors.iter().for_each(|error| oplog::error(&format!("config: {error}")));
            Err(errors.len())
        }
    }
}

/// Compiles what was read, once for each of `shards`: TLS contexts are a core's own. `now` is by the shards' clocks.
///
/// # Errors
/// The number of faults; all are logged.
pub(crate) fn compile(
    loaded: Loaded,
    registry: &mut StatRegistry,
    tickets: &TicketKeys,
    (shards, now): (usize, Duration),
    options: &Options,
) -> Result<Compiled, usize> {
    let roots = system_roots();
    let cores = u32::try_from(shards).unwrap_or(u32::MAX);
    let system_roots_pem = roots.as_deref();
    let host = Host {
        ticket_keys: Some(tickets),
        system_roots_pem,
        cores,
        core: 0,
        fleet: options.fleet,
        zone: options.zone.as_deref(),
        now,
    };
    let of_core = |core| compile_for(&loaded.resources, &Host { core, ..host }, registry);
    let snapshots = (0..cores).map(of_core).collect();
    match snapshots {
        Ok(snapshots) => Ok(Compiled { snapshots, sources: loaded.sources, digest: loaded.digest }),
        Err(nacks) => {
            let nacks: Vec<_> = nacks;
            nacks.iter().for_each(|nack| oplog::error(&format!("config: {nack}")));
            Err(nacks.len())
        }
    }
}

/// The CA bundle of the host, where Debian, Fedora and Alpine keep it.
fn system_roots() -> Option<Vec<u8>> {
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"]
        .iter()
        .find_map(|path| std::fs::read(path).ok())
}
