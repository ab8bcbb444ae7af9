//! What the loader has to say about a config: errors and warnings, each with its place and the way out.
//!
//! Invariants: a finding names a file, line, key, value and fix; values are shortened and never key material
//! (keys are only ever given by path). All findings of a config are collected; nothing stops at the first.

use std::fmt;

use crate::yaml::Node;

/// Index into the file set of one load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FileId(pub(crate) u32);

/// A place in the config; line and column count from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) file: FileId,
    pub(crate) line: u32,
    pub(crate) column: u32,
}

/// One thing that is wrong (or, as a warning, doubtful) in a config, with the way out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigError {
    /// Relative to the config directory.
    pub file: String,
    /// From 1; 0 when the finding concerns a whole file or directory.
    pub line: u32,
    /// In characters, from 1; 0 as for `line`.
    pub column: u32,
    /// Path of the key, such as `listeners.web.address`; empty for a whole file.
    pub key: String,
    /// The value as written, shortened.
    pub value: String,
    /// What is wrong, without the place.
    pub message: String,
    /// What to write instead.
    pub fix: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        if !self.value.is_empty() {
            write!(f, ": `{}`", self.value)?;
        }
        write!(f, ": {}; fix: {}", self.message, self.fix)
    }
}

impl std::error::Error for ConfigError {}

/// A rule's objection to a value: what is wrong and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) message: String,
    pub(crate) fix: String,
}

impl Problem {
    pub(crate) fn new(message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { message: message.into(), fix: fix.into() }
    }
}

/// Findings beyond this many are counted, not kept: a broken generator must not fill the memory.
const FINDINGS_MAX: usize = 1_000;

/// Characters of a value that a finding shows.
const VALUE_CHARS_MAX: usize = 80;

/// The findings of one load, errors and warnings apart.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    files: Vec<String>,
    errors: Vec<ConfigError>,
    warnings: Vec<ConfigError>,
}

impl Findings {
    /// Registers a file by its path relative to the config directory.
    pub(crate) fn add_file(&mut self, path: &str) -> FileId {
        let id = u32::try_from(self.files.len()).unwrap_or(u32::MAX);
        self.files.push(path.to_owned());
        FileId(id)
    }

    /// The relative path of a file.
    pub(crate) fn file(&self, id: FileId) -> &str {
        usize::try_from(id.0).ok().and_then(|at| self.files.get(at)).map_or("", String::as_str)
    }

    /// `file:line` of a node, for messages that name a second place.
    pub(crate) fn place_of(&self, node: &Node) -> String {
        format!("{}:{}", self.file(node.at.file), node.at.line)
    }

    pub(crate) fn has_errors(&self) -> bool {
        !self.errors.is_empty()
    }

    /// An error about the value of a node.
    pub(crate) fn error(&mut self, node: &Node, problem: Problem) {
        let found = self.describe(node.at, &node.path, &node.shown(), problem);
        push_bounded(&mut self.errors, found);
    }

    /// A doubt about the value of a node; the config loads all the same.
    pub(crate) fn warn(&mut self, node: &Node, problem: Problem) {
        let found = self.describe(node.at, &node.path, &node.shown(), problem);
        push_bounded(&mut self.warnings, found);
    }

    /// An error at a place that no node stands for (a key, a syntax error).
    pub(crate) fn error_at(&mut self, at: Place, key: &str, value: &str, problem: Problem) {
        let found = self.describe(at, key, value, problem);
        push_bounded(&mut self.errors, found);
    }

    /// An error about a whole file or directory.
    pub(crate) fn error_in(&mut self, file: &str, problem: Problem) {
        let found = ConfigError {
            file: printable(file),
            line: 0,
            column: 0,
            key: String::new(),
            value: String::new(),
            message: problem.message,
            fix: problem.fix,
        };
        push_bounded(&mut self.errors, found);
    }

    fn describe(&self, at: Place, key: &str, value: &str, problem: Problem) -> ConfigError {
        ConfigError {
            file: self.file(at.file).to_owned(),
            line: at.line,
            column: at.column,
            key: printable(key),
            value: shortened(value),
            message: problem.message,
            fix: problem.fix,
        }
    }

    /// Errors and warnings, each in file order and without repetition (defaults are checked by every user).
    pub(crate) fn finish(self) -> (Vec<ConfigError>, Vec<ConfigError>) {
        (in_order(self.errors), in_order(self.warnings))
    }
}

fn push_bounded(findings: &mut Vec<ConfigError>, found: ConfigError) {
    if findings.len() < FINDINGS_MAX && !findings.contains(&found) {
        findings.push(found);
    }
}

fn in_order(mut findings: Vec<ConfigError>) -> Vec<ConfigError> {
    findings.sort();
    findings.dedup();
    findings
}

/// Keys come from the author too: an error stays on one line.
fn printable(key: &str) -> String {
    let show = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    key.chars().map(show).collect()
}

fn shortened(value: &str) -> String {
    let mut shown: String =
        value.chars().take(VALUE_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if value.chars().nth(VALUE_CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}
