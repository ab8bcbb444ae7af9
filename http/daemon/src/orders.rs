//! Orders of an operator about single endpoints, from the admin listener to every core.
//!
//! ```text
//!   shardctl endpoint ─► admin thread ─Event::Endpoint─► main thread: drains.rs ─Command::Drained─► every core
//!                             ◄──────────what became of it──────┘
//! ```
//! The cores get all that is drained of a cluster each time, so that none can miss one.

use std::collections::BTreeMap;

use http_proxy::core::Command;
use http_proxy::pool::Drained;

use crate::drains::{Action, Done, Known, Order, Refusal};
use crate::events::Changed;
use crate::process::Process;
use crate::{admin, oplog};

impl Process {
    /// Goes over to the endpoints of another config, of which the cores have been told: none that it does not have gets
    /// a request for being forgotten here.
    pub(crate) fn adopt_drains(&mut self, endpoints: BTreeMap<String, Known>) {
        for (cluster, address) in self.drains.adopt(endpoints) {
            oplog::info(&format!(
                "cluster {cluster}: the config no longer has {address}, which an operator drained"
            ));
            self.tell_drained(&cluster);
        }
        admin::lock(&self.state).facts.drained.clone_from(self.drains.drained());
    }

    /// Drains an endpoint or takes it back, on every core.
    pub(crate) fn change_endpoint(&mut self, order: &Order) -> Result<Changed, Refusal> {
        if self.is_draining() {
            return Err(Refusal::Ending);
        }
        let done = self.drains.obey(order)?;
        let Order { action, cluster, address } = order;
        let left = self.drains.left(cluster);
        if done == Done::Changed {
            self.tell_drained(cluster);
            admin::lock(&self.state).facts.drained.clone_from(self.drains.drained());
            match action {
                Action::Drain if left == 0 => oplog::warn(&format!(
                    "cluster {cluster}: {address} drains, an operator asked for it; no other endpoint is left"
                )),
                Action::Drain => {
                    oplog::info(&format!("cluster {cluster}: {address} drains, an operator asked for it"));
                }
                Action::Resume => oplog::info(&format!("cluster {cluster}: an operator resumed {address}")),
            }
        }
        Ok(Changed { done, left })
    }

    fn tell_drained(&mut self, cluster: &str) {
        let addresses = self.drains.of(cluster);
        self.shards.tell_all(|| {
            Command::Drained(Drained { cluster: cluster.to_owned(), addresses: addresses.clone() })
        });
    }

    /// Tells the cores of a new process what its predecessor left.
    pub(crate) fn pass_on_drains(&mut self) {
        let clusters: Vec<_> = self.drains.drained().keys().cloned().collect();
        clusters.iter().for_each(|cluster| self.tell_drained(cluster));
    }
}
