//! A configuration directory as shard-proxy would take it: loaded, then compiled to a snapshot. Used by `check` and
//! `explain`, so that both judge by the daemon's own code and nothing else.

use std::fs;
use std::path::Path;

use control_api::type_url;
use control_config::{ConfigError, SourceMap, SourcePlace};
use http_proxy::snapshot::{self, Host, Nack, Snapshot, StatRegistry};

/// Where Debian and most others keep the CA bundle.
const SYSTEM_ROOTS_PATH: &str = "/etc/ssl/certs/ca-certificates.crt";

/// A configuration without errors.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) snapshot: Snapshot,
    pub(crate) sources: SourceMap,
    pub(crate) warnings: Vec<ConfigError>,
}

/// Loads and compiles a directory.
///
/// # Errors
/// One line for each error of the files; when there are none, one for each resource that the compiler refuses.
pub(crate) fn load(directory: &Path) -> Result<Config, Vec<String>> {
    let loaded =
        control_config::load(directory).map_err(|errors| errors.iter().map(line).collect::<Vec<_>>())?;
    // A host without the bundle fails only those clusters that want it, and the compiler says so.
    let roots = fs::read(SYSTEM_ROOTS_PATH).ok();
    let host = Host { system_roots_pem: roots.as_deref(), ..Host::default() };
    let compiled = snapshot::compile_for(&loaded.resources, &host, &mut StatRegistry::new());
    let snapshot = compiled
        .map_err(|nacks| nacks.iter().map(|nack| refusal(nack, &loaded.sources)).collect::<Vec<_>>())?;
    Ok(Config { snapshot, sources: loaded.sources, warnings: loaded.warnings })
}

/// `file:line:col: key: message (value) — fix`; parts that are empty are left out.
pub(crate) fn line(error: &ConfigError) -> String {
    let mut text = error.file.clone();
    if error.line > 0 {
        text.push_str(&format!(":{}:{}", error.line, error.column));
    }
    if !error.key.is_empty() {
        text.push_str(&format!(": {}", error.key));
    }
    text.push_str(&format!(": {}", error.message));
    if !error.value.is_empty() {
        text.push_str(&format!(" ({})", error.value));
    }
    if !error.fix.is_empty() {
        text.push_str(&format!(" — {}", error.fix));
    }
    text
}

/// A compiler's refusal at the place its resource was written, where the loader knows that.
fn refusal(nack: &Nack, sources: &SourceMap) -> String {
    let key = match nack.type_url {
        type_url::LISTENER => format!("listener:{}", nack.resource),
        type_url::CLUSTER | type_url::ENDPOINTS => format!("cluster:{}", nack.resource),
        _ => String::new(),
    };
    sources.get(&key).map_or_else(|| nack.to_string(), |place| format!("{}: {nack}", shown(place)))
}

/// `file:line (key)`.
pub(crate) fn shown(place: &SourcePlace) -> String {
    format!("{}:{} ({})", place.file, place.line, place.key)
}

#[cfg(test)]
mod tests {
    use control_config::ConfigError;

    use super::line;

    #[test]
    fn only_what_is_known_is_printed() {
        let error = |line, key: &str, value: &str, fix: &str| ConfigError {
            file: "shard.yaml".to_owned(),
            line,
            column: 5,
            key: key.to_owned(),
            value: value.to_owned(),
            message: "is wrong".to_owned(),
            fix: fix.to_owned(),
        };
        for (error, printed) in [
            (error(3, "a.b", "x", "write y"), "shard.yaml:3:5: a.b: is wrong (x) — write y"),
            (error(3, "a.b", "", "write y"), "shard.yaml:3:5: a.b: is wrong — write y"),
            (error(0, "", "", ""), "shard.yaml: is wrong"),
        ] {
            assert_eq!(line(&error), printed);
        }
    }
}
