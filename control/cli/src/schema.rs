//! `shardctl schema`: prints the JSON Schema of the configuration files, for editors.

use crate::args::{Args, UsageError};
use crate::outcome::Outcome;

pub(crate) const HELP: &str = "\
Usage: shardctl schema [DOCUMENT]

Prints the JSON Schema of a configuration document:
  shard     shard.yaml, everything in one file (the default; holds the other two)
  platform  platform/*.yaml
  service   services/NAME/service.yaml
  l4        the file of shard-l4

In an editor with a YAML language server, name the schema's file in the first line of a document:
  # yaml-language-server: $schema=PATH

Exit code: 0, or 64 for wrong usage.
";

/// Runs the command.
///
/// # Errors
/// `UsageError` for a wrong argument.
pub(crate) fn run(mut args: Args) -> Result<Outcome, UsageError> {
    let wanted = args.positional().unwrap_or_else(|| "shard".to_owned());
    args.finish()?;
    let schemas = control_config::schemas();
    match schemas.iter().find(|(name, _)| *name == wanted) {
        // The alternate form is indented.
        Some((_, schema)) => Ok(Outcome::text(format!("{schema:#}\n"))),
        None => {
            let names: Vec<_> = schemas.iter().map(|(name, _)| *name).collect();
            Err(UsageError::new(format!("unknown document {wanted}: {}", names.join(", "))))
        }
    }
}
