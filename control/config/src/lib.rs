//! From a config directory to resources: text → checked tree → `control_api::Resources`.
//!
//! Invariants: a config with any error yields no resources; all errors are reported, each with file, line, key, value
//! and fix; every input file is read once, so that the bytes checked are the bytes used; equal inputs make equal
//! versions. Called by the daemons (on start, signal and watch) and by `shardctl check` and `explain`.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::Path;

use control_api::Resources;

mod emit;
mod files;
mod finding;
mod gather;
mod l4;
mod read;
mod rules;
mod schema;
mod suggest;
mod units;
mod yaml;

#[cfg(test)]
mod tests;

pub use finding::ConfigError;
pub use l4::{LoadedL4, load_l4, load_l4_files};

use files::{Files, Role};
use finding::{Findings, Problem};
use gather::Gathered;
use schema::table::{L4, PLATFORM, SERVICE, SINGLE};

/// Where a rule was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourcePlace {
    /// Relative to the config directory.
    pub file: String,
    /// From 1.
    pub line: u32,
    /// Such as `routes[2]`.
    pub key: String,
}

/// The places of rules by `listener:<name>`, `cluster:<resource name>`, `token_provider:<name>` and
/// `route:<service>/<route>` (the names that resources and metrics carry).
pub type SourceMap = BTreeMap<String, SourcePlace>;

/// A config without errors.
#[derive(Debug)]
pub struct Loaded {
    /// Their version is the start of `digest`.
    pub resources: Resources,
    pub warnings: Vec<ConfigError>,
    /// SHA-256 over the paths and bytes of all input files, in hexadecimal.
    pub digest: String,
    pub sources: SourceMap,
}

/// Loads a config directory.
///
/// # Errors
/// Every error of the config, in the order of files and lines; never empty.
pub fn load(dir: &Path) -> Result<Loaded, Vec<ConfigError>> {
    match Files::of_directory(dir) {
        Ok(files) => load_set(files),
        Err(error) => {
            let mut findings = Findings::default();
            let problem = Problem::new(
                format!("the config directory cannot be read: {error}"),
                "name an existing directory that this user may list",
            );
            findings.error_in(&dir.display().to_string(), problem);
            Err(findings.finish().0)
        }
    }
}

/// Loads a config from memory, by path relative to the config directory (`platform/web.yaml`), as when it comes out
/// of a repository or an archive.
///
/// # Errors
/// As [`load`].
pub fn load_files(files: BTreeMap<String, Vec<u8>>) -> Result<Loaded, Vec<ConfigError>> {
    load_set(Files::of_memory(files))
}

/// The JSON Schema of `shard.yaml`, which contains those of the other documents.
pub fn schema() -> serde_json::Value {
    schema::json::document(&SINGLE)
}

/// The JSON Schemas of all documents, by name: `platform` (`platform/*.yaml`), `service`
/// (`services/<name>/service.yaml`), `shard` (`shard.yaml`) and `l4` (the file of shard-l4).
pub fn schemas() -> [(&'static str, serde_json::Value); 4] {
    [&PLATFORM, &SERVICE, &SINGLE, &L4].map(|object| (object.name, schema::json::document(object)))
}

/// The reference of all keys, as docs/config.md.
pub fn reference_markdown() -> String {
    schema::markdown::page()
}

fn load_set(mut files: Files) -> Result<Loaded, Vec<ConfigError>> {
    let mut findings = Findings::default();
    let config = gather(&mut files, &mut findings);
    let Some(config) = config else {
        return Err(findings.finish().0);
    };
    let (mut resources, sources) = emit::emit(&config, &mut files, &mut findings);
    let has_errors = findings.has_errors();
    let (errors, warnings) = findings.finish();
    if has_errors {
        return Err(errors);
    }
    let digest = files.digest();
    resources.version = digest.chars().take(16).collect();
    Ok(Loaded { resources, warnings, digest, sources })
}

/// Reads and checks every document; `None` when one is missing or no YAML, because then nothing can be said about
/// references to it.
fn gather(files: &mut Files, findings: &mut Findings) -> Option<Gathered> {
    let mut config = Gathered::default();
    let documents = files.documents(findings);
    let mut is_whole = !findings.has_errors();
    for (path, role) in documents {
        let file = findings.add_file(&path);
        let contents = match files.read(&path) {
            Ok(contents) => contents,
            Err(problem) => {
                findings.error_in(&path, problem);
                is_whole = false;
                continue;
            }
        };
        let Some(root) =
            text_of(&path, &contents, findings).and_then(|text| yaml::parse(file, text, findings))
        else {
            is_whole = false;
            continue;
        };
        let object = match &role {
            Role::Platform => &PLATFORM,
            Role::Service(_) => &SERVICE,
            Role::Single => &SINGLE,
        };
        schema::check::check_object(&root, object, findings);
        is_whole &= matches!(root.value, yaml::Value::Map(_));
        match role {
            Role::Platform => config.add_platform(&root, findings),
            Role::Service(name) => config.add_service(&name, root, findings),
            Role::Single => config.add_single(&root, findings),
        }
    }
    is_whole.then_some(config)
}

fn text_of<'a>(path: &str, bytes: &'a [u8], findings: &mut Findings) -> Option<&'a str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Some(text),
        Err(error) => {
            let good = bytes.get(..error.valid_up_to()).unwrap_or(&[]);
            let line = good.iter().filter(|b| **b == b'\n').count() + 1;
            let problem = Problem::new(format!("line {line} is not UTF-8"), "save the file as UTF-8");
            findings.error_in(path, problem);
            None
        }
    }
}
