//! A line a second on a terminal's standard error; nothing where there is no terminal. Called by the main thread.

use std::io::{self, IsTerminal, Write};

use crate::report::units::{count_text, span_text};
use crate::run::Second;

/// See the module.
#[derive(Debug)]
pub(crate) struct Progress {
    is_on: bool,
    prefix: String,
}

impl Progress {
    /// On a terminal, unless `is_quiet`.
    pub(crate) fn new(is_quiet: bool) -> Self {
        Self { is_on: !is_quiet && io::stderr().is_terminal(), prefix: String::new() }
    }

    /// Says what the following lines belong to.
    pub(crate) fn set_prefix(&mut self, prefix: String) {
        self.prefix = prefix;
    }

    /// A second is over.
    pub(crate) fn second(&mut self, second: u64, row: &Second) {
        if !self.is_on {
            return;
        }
        let [p50, _, p99, _, max] = row.latency_ns.map(span_text);
        let line = format!(
            "\r\x1b[K{}{:>4} s  {:>9}/s  p50 {p50}  p99 {p99}  max {max}  errors {}",
            self.prefix,
            second + 1,
            count_text(row.counts.ended()),
            row.counts.failed(),
        );
        // A terminal that has gone away is no reason to end the run.
        self.is_on = io::stderr().lock().write_all(line.as_bytes()).is_ok();
    }

    /// Clears the line.
    pub(crate) fn clear(&mut self) {
        if self.is_on {
            self.is_on = io::stderr().lock().write_all(b"\r\x1b[K").is_ok();
        }
    }
}
