//! Another file: all of it or nothing, and what it does to rows.

use std::path::Path;

use l4_steer::rollout::{Change, Conflict, Outcome};

use super::Service;
use super::start::{load, load_options};
use crate::oplog;

impl Service {
    /// Loads the file again: all of it or nothing.
    pub(super) fn reload(&mut self, file: &Path) {
        match self.try_reload(file) {
            Ok(()) => {
                self.facts.reloads_applied += 1;
                oplog::info(&format!("config {} is in force", self.config.version));
            }
            Err(why) => {
                self.facts.reloads_refused += 1;
                oplog::error(&format!("reload refused, the old config stays: {why}"));
            }
        }
    }

    fn try_reload(&mut self, file: &Path) -> Result<(), String> {
        let config = load(file).map_err(|error| error.to_string())?;
        // A new program needs rights that the daemon has given up.
        if config.host != self.config.host || load_options(&config) != load_options(&self.config) {
            return Err("`hash_key`, `flows` and `host` are told to the program when it is loaded; restart the daemon, \
                        which replaces the program in one step and keeps its flows"
                .to_owned());
        }
        let outcome = self
            .rollout
            .propose(config.owners.clone(), Conflict::Wait, self.facts.now)
            .map_err(|error| error.to_string())?;
        self.report(&outcome);
        self.rollout.set_windows(config.windows);
        self.addresses.extend(config.addresses.iter().map(|(id, address)| (*id, *address)));
        self.facts.config_version.clone_from(&config.version);
        self.config = config;
        self.feed_or_retry();
        self.announce();
        Ok(())
    }

    fn report(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Unchanged => {}
            Outcome::Published(change) => {
                self.count(*change);
                oplog::info(&format!(
                    "the proxies changed: {} rows moved, {} of them lost their owner, {} forgot an older one",
                    change.moved, change.lost, change.forgotten
                ));
            }
            Outcome::Waiting { until, urgent } => {
                urgent.iter().for_each(|change| self.count(*change));
                oplog::warn(&format!(
                    "another change of the proxies is draining; this one waits {} s for it",
                    until.saturating_sub(self.facts.now).as_secs()
                ));
            }
        }
    }

    pub(super) fn count(&mut self, change: Change) {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        self.facts.rows_moved += number(change.moved);
        self.facts.rows_lost += number(change.lost);
        self.facts.rows_forgotten += number(change.forgotten);
    }
}
