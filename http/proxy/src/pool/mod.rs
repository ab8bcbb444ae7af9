//! This core's clusters at work: endpoints, their connections, and who is busy how much.
//!
//! A [`Cluster`] lives as long as its name is in the config; what is known of its endpoints, with their open
//! connections and requests in flight, passes from snapshot to snapshot. Everything is made on first use, so applying
//! a snapshot costs nothing per endpoint.

mod cluster;
mod dial;
mod h1;
mod h2;
mod news;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use http_balance::endpoint::Health;
use http_balance::generations::Generation;
use http_balance::tables::Kept;
use http_balance::{EndpointId, mix};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::core::LiveSnapshot;
use crate::snapshot::{ClusterConfig, ClusterIndex, EndpointConfig, StatId};

pub use self::cluster::Condition;
pub(crate) use self::cluster::{Admitted, Cluster, Lease, Seat, Settings};
pub(crate) use self::h1::{Fresh, OpenCount, RESPONSE_LIMITS, Ticket, dial_new, dial_own, give_back, reuse};
pub(crate) use self::h2::H2Lease;
pub use self::news::LINES_MAX;
pub(crate) use self::news::News;

/// Addresses that a DNS name of a cluster stands for now.
#[derive(Debug)]
pub struct Resolved {
    pub cluster: String,
    pub endpoints: Vec<EndpointConfig>,
    /// The rings of its sessions with these, see [`crate::snapshot::StatRegistry::resolved`].
    pub generations: Vec<Generation>,
    /// Its hash tables with these, see [`crate::snapshot::StatRegistry::tables_with`].
    pub tables: Vec<Kept>,
}

/// What health checks say of the endpoints of a cluster; those that are not named are not checked.
#[derive(Debug)]
pub struct Checked {
    pub cluster: String,
    pub endpoints: Vec<(SocketAddr, Health)>,
}

/// Endpoints that an operator drains at the same time.
pub const DRAINED_MAX: usize = 1024;

/// The endpoints of a cluster that an operator drains, all of them.
#[derive(Debug)]
pub struct Drained {
    pub cluster: String,
    pub addresses: Vec<SocketAddr>,
}

/// All clusters of this core, by name.
#[derive(Debug)]
pub(crate) struct Clusters {
    by_name: RefCell<FxHashMap<String, Rc<Cluster>>>,
    resolved: RefCell<FxHashMap<String, Resolved>>,
    checked: RefCell<FxHashMap<String, FxHashMap<SocketAddr, Health>>>,
    /// Only clusters of which something is drained.
    drained: RefCell<FxHashMap<String, FxHashSet<SocketAddr>>>,
    pub(crate) news: Rc<News>,
    seed: u64,
}

/// One address of a cluster, with this core's connections to it.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    pub(crate) hostname: Option<String>,
    pub(crate) stat: StatId,
    h1: h1::Pool,
    h2: h2::Pool,
}

impl Clusters {
    /// Each core has its own `seed`, or all cores go through the endpoints in the same order.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            by_name: RefCell::default(),
            resolved: RefCell::default(),
            checked: RefCell::default(),
            drained: RefCell::default(),
            news: Rc::default(),
            seed,
        }
    }

    /// The running form of a cluster of a snapshot, at least as new as that.
    pub(crate) fn get(&self, snapshot: &Rc<LiveSnapshot>, index: ClusterIndex) -> Option<Rc<Cluster>> {
        let config = snapshot.clusters.get(index.0)?;
        let known = self.by_name.borrow().get(&config.name).cloned();
        match known {
            Some(cluster) if cluster.settings().snapshot.number() >= snapshot.number() => Some(cluster),
            before => Some(self.install(snapshot, index, config, before)),
        }
    }

    fn install(
        &self,
        snapshot: &Rc<LiveSnapshot>,
        index: ClusterIndex,
        config: &ClusterConfig,
        before: Option<Rc<Cluster>>,
    ) -> Rc<Cluster> {
        let resolved = self.resolved.borrow();
        let resolved = resolved.get(&config.name);
        let found = resolved.map_or(&[][..], |resolved| &resolved.endpoints);
        let settings = Settings::new(Rc::clone(snapshot), index, resolved);
        if let Some(cluster) = before {
            cluster.change(settings, found);
            self.tell_state(&cluster, &config.name);
            return cluster;
        }
        let EndpointId(name) = EndpointId::of(config.name.as_bytes());
        let cluster = Cluster::new(settings, found, Rc::clone(&self.news), mix(self.seed, name));
        self.tell_state(&cluster, &config.name);
        self.by_name.borrow_mut().insert(config.name.clone(), Rc::clone(&cluster));
        cluster
    }

    /// Makes the clusters with sessions before their first request: an endpoint that a later config does not name must
    /// be known then, or its sessions would move on the cores that never saw it.
    pub(crate) fn prepare_sticky(&self, snapshot: &Rc<LiveSnapshot>) {
        for (at, config) in snapshot.clusters.iter().enumerate().filter(|(_, config)| config.sticky.is_some())
        {
            if !self.by_name.borrow().contains_key(&config.name) {
                self.install(snapshot, ClusterIndex(at), config, None);
            }
        }
    }

    /// Takes over what health checks say.
    pub(crate) fn checked(&self, checked: Checked) {
        let Checked { cluster: name, endpoints } = checked;
        let cluster = self.by_name.borrow().get(&name).cloned();
        let before = self.checked.borrow_mut().insert(name.clone(), endpoints.into_iter().collect());
        let Some(cluster) = cluster else { return };
        let checked = self.checked.borrow();
        let Some(now) = checked.get(&name) else { return };
        let gone = before.iter().flatten().filter(|(address, _)| !now.contains_key(*address));
        let gone = gone.map(|(address, _)| (*address, Health::Unchecked));
        cluster.set_health(gone.chain(now.iter().map(|(address, health)| (*address, *health))));
    }

    /// Takes over what an operator drains.
    pub(crate) fn drained(&self, drained: Drained) {
        let Drained { cluster: name, addresses } = drained;
        let addresses: FxHashSet<_> = addresses.into_iter().collect();
        if let Some(cluster) = self.by_name.borrow().get(&name) {
            cluster.set_drained(&addresses);
        }
        if addresses.is_empty() {
            self.drained.borrow_mut().remove(&name);
        } else {
            self.drained.borrow_mut().insert(name, addresses);
        }
    }

    /// Endpoints that are new to a cluster may have been checked or drained already.
    fn tell_state(&self, cluster: &Cluster, name: &str) {
        if let Some(drained) = self.drained.borrow().get(name) {
            cluster.set_drained(drained);
        }
        if let Some(checked) = self.checked.borrow().get(name) {
            cluster.set_health(checked.iter().map(|(address, health)| (*address, *health)));
        }
    }

    /// Takes over what a name stands for.
    pub(crate) fn resolved(&self, resolved: Resolved) {
        let before = self.by_name.borrow().get(&resolved.cluster).cloned();
        self.resolved.borrow_mut().insert(resolved.cluster.clone(), resolved);
        if let Some(before) = before {
            let settings = before.settings();
            self.install(&settings.snapshot, settings.index, settings.config(), Some(before));
        }
    }

    /// Drops the clusters that a new snapshot no longer names; requests in flight keep theirs to the end.
    pub(crate) fn forget_missing(&self, snapshot: &LiveSnapshot) {
        let named: FxHashSet<&str> = snapshot.clusters.iter().map(|c| c.name.as_str()).collect();
        self.by_name.borrow_mut().retain(|name, _| named.contains(name.as_str()));
        self.resolved.borrow_mut().retain(|name, _| named.contains(name.as_str()));
        self.checked.borrow_mut().retain(|name, _| named.contains(name.as_str()));
        self.drained.borrow_mut().retain(|name, _| named.contains(name.as_str()));
        let stats: FxHashSet<StatId> = snapshot.clusters.iter().map(|c| c.stat).collect();
        self.news.forget(|cluster| stats.contains(&cluster));
    }

    /// Moves clusters that nobody has used since the configuration changed over to the new one, so that they do
    /// not keep the old one alive (C43). A part of them at a time: a turn stays short.
    pub(crate) fn catch_up(&self, snapshot: &Rc<LiveSnapshot>) {
        const ENDPOINTS_AT_A_TIME: usize = 1000;
        let is_late = |cluster: &&Rc<Cluster>| !Rc::ptr_eq(&cluster.settings().snapshot, snapshot);
        let late: Vec<_> = self.by_name.borrow().values().filter(is_late).cloned().collect();
        if late.is_empty() {
            return;
        }
        let places: FxHashMap<&str, usize> =
            snapshot.clusters.iter().enumerate().map(|(at, config)| (config.name.as_str(), at)).collect();
        let mut endpoints = 0;
        for cluster in late {
            let settings = cluster.settings();
            if let Some(&at) = places.get(settings.config().name.as_str())
                && let Some(config) = snapshot.clusters.get(at)
            {
                endpoints += config.endpoints.len();
                self.install(snapshot, ClusterIndex(at), config, Some(cluster));
            }
            if endpoints >= ENDPOINTS_AT_A_TIME {
                return;
            }
        }
    }

    /// Does what is due without a request: idle connections, and endpoints whose time has come.
    pub(crate) fn tend(&self, now: Duration) {
        for cluster in self.all() {
            cluster.reap_idle(now);
            if cluster.needs_refresh() {
                cluster.refresh();
            }
        }
    }

    fn all(&self) -> Vec<Rc<Cluster>> {
        self.by_name.borrow().values().cloned().collect()
    }

    /// Calls `visit` for every cluster in use.
    pub(crate) fn for_each(&self, visit: impl FnMut(&Rc<Cluster>)) {
        self.all().iter().for_each(visit);
    }

    /// Upstream connections that are open, and those of them without a request.
    pub(crate) fn connections(&self) -> (usize, usize) {
        let (mut open, mut idle) = (0, 0);
        for cluster in self.by_name.borrow().values() {
            cluster.for_each_endpoint(|endpoint| {
                let (h1, h2) = endpoint.connections();
                open += h1 + h2;
                idle += endpoint.connections_idle();
            });
        }
        (open, idle)
    }
}

impl Endpoint {
    fn new(config: &EndpointConfig) -> Self {
        Self {
            address: config.address,
            hostname: config.hostname.clone(),
            stat: config.stat,
            h1: h1::Pool::default(),
            h2: h2::Pool::default(),
        }
    }

    /// The same endpoint without its connections.
    fn unconnected(&self) -> Self {
        Self {
            address: self.address,
            hostname: self.hostname.clone(),
            stat: self.stat,
            h1: h1::Pool::default(),
            h2: h2::Pool::default(),
        }
    }

    /// Whether its connections serve what `wanted` says.
    fn is(&self, wanted: &EndpointConfig) -> bool {
        self.address == wanted.address && self.hostname == wanted.hostname && self.stat == wanted.stat
    }

    /// Open connections of this core: HTTP/1 (idle ones included) and HTTP/2.
    pub(crate) fn connections(&self) -> (usize, usize) {
        (self.h1.open(), self.h2.open())
    }

    /// Open connections of this core without a request.
    fn connections_idle(&self) -> usize {
        self.h1.idle() + self.h2.idle()
    }

    fn reap_idle(&self, now: Duration, idle_timeout: Duration) {
        self.h1.reap_idle(now, idle_timeout);
        self.h2.reap_idle(now, idle_timeout);
    }
}
