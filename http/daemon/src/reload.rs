//! Loading the config again: all of it or nothing.
//!
//! ```text
//!   load ─► compile for each shard ─► bind what is new ─► close what has gone, apply, open
//!     any fault up to here changes nothing ─┘
//! ```
//! The order on each shard: connections that wait at a listener that goes are taken under the old config; a new
//! listener is known before its sockets come.

use control_config::Loaded;
use http_proxy::core::Command;
use http_proxy::record::StatTable;
use http_proxy::service;
use http_proxy::snapshot::StatFamily;

use crate::admin;
use crate::config::{self, Compiled};
use crate::describe::{self, Description};
use crate::oplog;
use crate::process::Process;
use crate::start::place_of;

impl Process {
    /// Loads the config again. A wrong one changes nothing, and neither does the same one when only a changed one
    /// is wanted.
    pub(crate) fn reload(&mut self, only_if_changed: bool) {
        match self.try_reload(only_if_changed) {
            Ok(None) => {}
            Ok(Some(version)) => {
                admin::lock(&self.state).facts.reloads_applied += 1;
                oplog::info(&format!("config {version:?} is in force"));
            }
            Err(why) => {
                admin::lock(&self.state).facts.reloads_refused += 1;
                oplog::error(&format!("reload refused, the old config stays: {why}"));
            }
        }
    }

    /// The version that is in force now, None when nothing had to be done.
    fn try_reload(&mut self, only_if_changed: bool) -> Result<Option<String>, String> {
        if let Some(shard) = self.shards.stuck() {
            return Err(format!("shard {shard} has not taken the one before"));
        }
        let loaded = config::load(&self.options.config).map_err(wrong)?;
        if only_if_changed && loaded.digest == self.digest {
            return Ok(None);
        }
        self.retire_series();
        let rings = self.registry.keep_rings();
        self.go_over_to(loaded).inspect_err(|_| self.registry.restore_rings(rings)).map(Some)
    }

    /// Compiles and applies a config. On an error the old one stays in force.
    fn go_over_to(&mut self, loaded: Loaded) -> Result<String, String> {
        let keys = self.tickets.keys().map_err(|error| format!("session ticket keys: {error}"))?;
        let shards = (self.shards.count(), self.shards.now());
        let Compiled { snapshots, sources, digest } =
            config::compile(loaded, &mut self.registry, &keys, shards, &self.options).map_err(wrong)?;
        let described = snapshots.first().map(|first| {
            describe::log_warnings(first);
            Description::of(first, &digest)
        });
        let description = described.ok_or("there are no shards")?;
        let plan = self.sockets.plan(&description.listeners, self.shards.count()).map_err(|mut error| {
            error.place = place_of(&sources, &error.listener);
            error.to_string()
        })?;
        let version = description.version.clone();
        // Sinks and names first: lines and counters of the new config may come at once.
        let endpoints = self.publish(description, digest);
        let (close, open, groups) = plan.parts();
        close.into_iter().for_each(|listener| self.shards.tell_all(|| Command::Unlisten { listener }));
        let sizes = service::table_sizes(&self.registry);
        for (shard, snapshot) in snapshots.into_iter().enumerate() {
            self.shards.tell(shard, Command::Apply(Box::new(snapshot), sizes));
        }
        self.adopt_drains(endpoints);
        self.applied += 1;
        self.may_retire = true;
        self.listen(open);
        self.sockets.commit(groups);
        Ok(version)
    }

    /// Frees the series of names that the config in force does not have, once no core holds an older one. Where old
    /// connections keep an older config alive, this waits for a later reload.
    fn retire_series(&mut self) {
        let applied = self.applied;
        let only_current = {
            let state = admin::lock(&self.state);
            let mut cores = state.aggregate.cores();
            cores.all(|stats| {
                stats.is_some_and(|stats| {
                    stats.gauges.snapshots == 1 && stats.counters.snapshots_applied == applied
                })
            })
        };
        if !only_current || !std::mem::take(&mut self.may_retire) {
            return;
        }
        let retired: Vec<_> =
            self.registry.retire_unused().into_iter().map(|(family, id)| (table(family), id)).collect();
        if !retired.is_empty() {
            self.shards.tell_all(|| Command::Forget(retired.clone()));
        }
    }
}

fn wrong(errors: usize) -> String {
    format!("the config has {errors} error(s)")
}

const fn table(family: StatFamily) -> StatTable {
    match family {
        StatFamily::Listener => StatTable::Listener,
        StatFamily::Route => StatTable::Route,
        StatFamily::Cluster => StatTable::Cluster,
        StatFamily::Endpoint => StatTable::Endpoint,
    }
}
