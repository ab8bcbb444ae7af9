//! This core's clusters at work: endpoints, their connections, and who is busy how much.
//!
//! A [`Cluster`] belongs to one snapshot; its [`Endpoint`]s, with their open connections and requests in flight,
//! pass on to the next snapshot's cluster of the same name when the way to connect has not changed. Everything
//! is made on first use, so applying a snapshot costs nothing per endpoint.

mod dial;
mod h1;
mod h2;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::balance::{Availability, Balancer, EndpointIndex, EndpointState};
use crate::core::LiveSnapshot;
use crate::reason::Reason;
use crate::snapshot::{ClusterConfig, ClusterIndex, EndpointConfig, StatId, UpstreamProtocol};

pub(crate) use self::h1::{Fresh, RESPONSE_LIMITS, Ticket, check_out, give_back};
pub(crate) use self::h2::H2Lease;

/// Addresses that a DNS name of a cluster stands for now.
#[derive(Debug)]
pub struct Resolved {
    pub cluster: String,
    pub endpoints: Vec<EndpointConfig>,
}

/// All clusters of this core, by name.
#[derive(Debug, Default)]
pub(crate) struct Clusters {
    by_name: RefCell<FxHashMap<String, Rc<Cluster>>>,
    resolved: RefCell<FxHashMap<String, Vec<EndpointConfig>>>,
}

/// One cluster of one snapshot.
#[derive(Debug)]
pub(crate) struct Cluster {
    snapshot: Rc<LiveSnapshot>,
    index: ClusterIndex,
    balancer: RefCell<Balancer>,
    endpoints: Vec<Rc<Endpoint>>,
}

/// One address of a cluster, with this core's connections to it.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    pub(crate) hostname: Option<String>,
    pub(crate) stat: StatId,
    in_flight: Cell<u32>,
    /// The cluster that balances it now, and its place there.
    place: RefCell<(Weak<Cluster>, EndpointIndex)>,
    h1: h1::Pool,
    h2: h2::Pool,
}

/// A request at an endpoint: counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) cluster: Rc<Cluster>,
    pub(crate) endpoint: Rc<Endpoint>,
    pub(crate) index: EndpointIndex,
}

impl Clusters {
    /// The running form of a cluster of a snapshot.
    pub(crate) fn get(&self, snapshot: &Rc<LiveSnapshot>, index: ClusterIndex) -> Option<Rc<Cluster>> {
        let config = snapshot.clusters.get(index.0)?;
        let known = self.by_name.borrow().get(&config.name).cloned();
        match known {
            Some(cluster) if Rc::ptr_eq(&cluster.snapshot, snapshot) => Some(cluster),
            before => Some(self.install(snapshot, index, config, before.as_deref())),
        }
    }

    fn install(
        &self,
        snapshot: &Rc<LiveSnapshot>,
        index: ClusterIndex,
        config: &ClusterConfig,
        before: Option<&Cluster>,
    ) -> Rc<Cluster> {
        let resolved = self.resolved.borrow();
        let found = resolved.get(&config.name).map_or(&[][..], Vec::as_slice);
        let cluster = Cluster::build(Rc::clone(snapshot), index, config, found, before);
        self.by_name.borrow_mut().insert(config.name.clone(), Rc::clone(&cluster));
        cluster
    }

    /// Takes over what a name stands for; the cluster is rebuilt on its next use.
    pub(crate) fn resolved(&self, resolved: Resolved) {
        let before = self.by_name.borrow().get(&resolved.cluster).cloned();
        self.resolved.borrow_mut().insert(resolved.cluster, resolved.endpoints);
        if let Some(before) = before
            && let Some(config) = before.snapshot.clusters.get(before.index.0)
        {
            self.install(&before.snapshot, before.index, config, Some(&before));
        }
    }

    /// Drops the clusters that a new snapshot no longer names; requests in flight keep theirs to the end.
    pub(crate) fn forget_missing(&self, snapshot: &LiveSnapshot) {
        let named: rustc_hash::FxHashSet<&str> = snapshot.clusters.iter().map(|c| c.name.as_str()).collect();
        self.by_name.borrow_mut().retain(|name, _| named.contains(name.as_str()));
        self.resolved.borrow_mut().retain(|name, _| named.contains(name.as_str()));
    }

    /// Moves clusters that nobody has used since the configuration changed over to the new one, so that they do
    /// not keep the old one alive (C43). A part of them at a time: a turn stays short.
    pub(crate) fn catch_up(&self, snapshot: &Rc<LiveSnapshot>) {
        const ENDPOINTS_AT_A_TIME: usize = 1000;
        let late: Vec<_> = {
            let by_name = self.by_name.borrow();
            by_name.values().filter(|cluster| !Rc::ptr_eq(&cluster.snapshot, snapshot)).cloned().collect()
        };
        if late.is_empty() {
            return;
        }
        let places: FxHashMap<&str, usize> =
            snapshot.clusters.iter().enumerate().map(|(at, config)| (config.name.as_str(), at)).collect();
        let mut endpoints = 0;
        for cluster in late {
            if let Some(&at) = places.get(cluster.config().name.as_str())
                && let Some(config) = snapshot.clusters.get(at)
            {
                endpoints += config.endpoints.len();
                self.install(snapshot, ClusterIndex(at), config, Some(&cluster));
            }
            if endpoints >= ENDPOINTS_AT_A_TIME {
                return;
            }
        }
    }

    /// Closes connections that were idle for too long or that the backend has closed.
    pub(crate) fn reap_idle(&self, now: Duration) {
        for cluster in self.by_name.borrow().values() {
            let idle_timeout = cluster.config().pool.idle_timeout;
            for endpoint in &cluster.endpoints {
                endpoint.h1.reap_idle(now, idle_timeout);
                endpoint.h2.reap_idle(now, idle_timeout);
            }
        }
    }

    /// Calls `visit` for every endpoint in use.
    pub(crate) fn for_each_endpoint(&self, mut visit: impl FnMut(&ClusterConfig, &Endpoint)) {
        for cluster in self.by_name.borrow().values() {
            cluster.endpoints.iter().for_each(|endpoint| visit(cluster.config(), endpoint));
        }
    }
}

impl Cluster {
    fn build(
        snapshot: Rc<LiveSnapshot>,
        index: ClusterIndex,
        config: &ClusterConfig,
        resolved: &[EndpointConfig],
        before: Option<&Self>,
    ) -> Rc<Self> {
        let inherit = before.filter(|before| config.connects_like(before.config()));
        let old: FxHashMap<SocketAddr, &Rc<Endpoint>> =
            inherit.iter().flat_map(|before| &before.endpoints).map(|e| (e.address, e)).collect();
        let configs = config.endpoints.iter().chain(resolved);
        let (endpoints, weights): (Vec<_>, Vec<_>) = configs
            .map(|wanted| {
                let kept = old
                    .get(&wanted.address)
                    .filter(|e| e.hostname == wanted.hostname && e.stat == wanted.stat);
                (kept.map_or_else(|| Rc::new(Endpoint::new(wanted)), |e| Rc::clone(e)), wanted.weight)
            })
            .unzip();
        let states = endpoints.iter().zip(weights).map(|(endpoint, weight)| EndpointState {
            in_flight: endpoint.in_flight.get(),
            weight,
            availability: Availability::Available,
        });
        let balancer = RefCell::new(Balancer::new(states));
        Rc::new_cyclic(|this: &Weak<Self>| {
            for (at, endpoint) in endpoints.iter().enumerate() {
                *endpoint.place.borrow_mut() = (Weak::clone(this), EndpointIndex(at));
            }
            Self { snapshot, index, balancer, endpoints }
        })
    }

    pub(crate) fn config(&self) -> &ClusterConfig {
        self.snapshot.clusters.get(self.index.0).expect("the index was looked up when the cluster was built")
    }

    /// Chooses an endpoint, another one than `exclude` where there is a choice, and counts a request there.
    ///
    /// # Errors
    /// `NoEndpoint` when the cluster is empty, `NoHealthyEndpoint` when none takes requests.
    pub(crate) fn pick(
        self: &Rc<Self>,
        random: u64,
        exclude: Option<EndpointIndex>,
    ) -> Result<Lease, Reason> {
        let index = {
            let balancer = self.balancer.borrow();
            balancer.pick(random, exclude).or_else(|| balancer.pick(random, None))
        };
        let Some((index, endpoint)) = index.and_then(|at| Some((at, self.endpoints.get(at.0)?))) else {
            return Err(if self.endpoints.is_empty() {
                Reason::NoEndpoint
            } else {
                Reason::NoHealthyEndpoint
            });
        };
        endpoint.in_flight.set(endpoint.in_flight.get() + 1);
        endpoint.at_place(Balancer::request_started);
        Ok(Lease { cluster: Rc::clone(self), endpoint: Rc::clone(endpoint), index })
    }
}

impl ClusterConfig {
    /// Whether connections made for `other` may serve this config. TLS contexts cannot be compared, so a cluster
    /// with TLS always dials anew: a changed trust must not be passed by on an old connection.
    fn connects_like(&self, other: &Self) -> bool {
        self.protocol == other.protocol && self.tls.is_none() && other.tls.is_none()
    }
}

impl Endpoint {
    fn new(config: &EndpointConfig) -> Self {
        Self {
            address: config.address,
            hostname: config.hostname.clone(),
            stat: config.stat,
            in_flight: Cell::new(0),
            place: RefCell::new((Weak::new(), EndpointIndex(0))),
            h1: h1::Pool::default(),
            h2: h2::Pool::default(),
        }
    }

    /// Counts at the balancer that has the endpoint now. A request may outlive the cluster that it began with, and be
    /// tried again: its start and its end must be counted at the same place.
    fn at_place(&self, count: impl FnOnce(&mut Balancer, EndpointIndex)) {
        let (cluster, index) = &*self.place.borrow();
        if let Some(cluster) = cluster.upgrade() {
            count(&mut cluster.balancer.borrow_mut(), *index);
        }
    }

    /// Requests of this core that are at the endpoint now.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.get()
    }

    /// Whether its cluster sends it new requests.
    pub(crate) fn is_available(&self) -> bool {
        let (cluster, index) = &*self.place.borrow();
        let state = cluster.upgrade().and_then(|cluster| cluster.balancer.borrow().state(*index));
        state.is_some_and(|state| state.availability == Availability::Available)
    }

    /// Open connections of this core: HTTP/1 (idle ones included) and HTTP/2.
    pub(crate) fn connections(&self) -> (usize, usize) {
        (self.h1.open(), self.h2.open())
    }

    /// Open connections of this core without a request.
    pub(crate) fn connections_idle(&self) -> usize {
        self.h1.idle() + self.h2.idle()
    }
}

impl Lease {
    pub(crate) fn protocol(&self) -> UpstreamProtocol {
        self.cluster.config().protocol
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.endpoint.in_flight.set(self.endpoint.in_flight.get().saturating_sub(1));
        self.endpoint.at_place(Balancer::request_ended);
    }
}
