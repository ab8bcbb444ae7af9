//! `shardctl check DIR`: loads and compiles a configuration directory and prints every error and warning.

use std::path::Path;

use crate::args::{Args, UsageError};
use crate::config::{self, Config};
use crate::outcome::{Code, Outcome, count};

pub(crate) const HELP: &str = "\
Usage: shardctl check DIR

Loads and compiles a configuration directory as shard-proxy does, and prints every error and every
warning as
  file:line:col: key: message (value) — fix
and a summary in the last line.

Exit code: 0 good (warnings are allowed), 1 errors, 64 wrong usage.
";

/// Runs the command.
///
/// # Errors
/// `UsageError` for a wrong argument.
pub(crate) fn run(mut args: Args) -> Result<Outcome, UsageError> {
    let directory =
        args.positional().ok_or_else(|| UsageError::new("the configuration directory is missing"))?;
    args.finish()?;
    Ok(match config::load(Path::new(&directory)) {
        Ok(config) => Outcome::text(good(&directory, &config)),
        Err(errors) => {
            let lines: String = errors.iter().map(|error| format!("{error}\n")).collect();
            let out = format!("{lines}{directory}: {}\n", count(errors.len(), "error"));
            Outcome { code: Code::Failure, out: out.into_bytes(), err: String::new() }
        }
    })
}

fn good(directory: &str, config: &Config) -> String {
    let Config { snapshot, warnings, .. } = config;
    let lines: String =
        warnings.iter().map(|warning| format!("warning: {}\n", config::line(warning))).collect();
    let routes: usize = snapshot.listeners.iter().map(|listener| listener.routes.len()).sum();
    format!(
        "{lines}{directory}: good, version {}: {}, {}, {}, {}\n",
        snapshot.version,
        count(snapshot.listeners.len(), "listener"),
        count(routes, "route"),
        count(snapshot.clusters.len(), "cluster"),
        count(warnings.len(), "warning"),
    )
}
