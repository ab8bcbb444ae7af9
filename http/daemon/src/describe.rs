//! What the process itself keeps of a snapshot once the shards have it: listeners to bind, names of series, DNS
//! names to resolve, and the dump of the admin listener. Nothing secret is among it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use http_balance::generations::{Dropped, GENERATIONS_MAX, RETIRED_POINTS_MAX};
use http_proxy::record::Names;
use http_proxy::snapshot::{
    ClusterConfig, DnsTarget, ListenerConfig, Named, Snapshot, StatId, Steering, Subset, TicketSource,
    ZonePreference,
};
use serde_json::{Value, json};

use crate::drains::Known;
use crate::{health, oplog};

/// A listener as the sockets see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) stat: StatId,
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    pub(crate) steer_by_cpu: bool,
}

/// Names by number, for pages that are not metrics.
#[derive(Debug, Default)]
pub(crate) struct Titles {
    pub(crate) listeners: BTreeMap<u32, String>,
    pub(crate) clusters: BTreeMap<u32, String>,
}

/// One config version, described.
#[derive(Debug)]
pub(crate) struct Description {
    pub(crate) version: String,
    pub(crate) listeners: Vec<Wanted>,
    pub(crate) names: Names,
    pub(crate) titles: Titles,
    /// By cluster.
    pub(crate) dns: Vec<(String, Vec<DnsTarget>)>,
    /// Those whose hash tables are made anew with each answer, by cluster.
    pub(crate) named: Vec<(String, Named)>,
    /// Clusters whose endpoints this process checks.
    pub(crate) checks: Vec<health::Target>,
    /// What an operator may drain, by cluster.
    pub(crate) endpoints: BTreeMap<String, Known>,
    pub(crate) dump: Value,
}

impl Description {
    pub(crate) fn of(snapshot: &Snapshot, digest: &str) -> Self {
        let listeners = snapshot.listeners.iter().map(|listener| Wanted {
            stat: listener.stat,
            name: listener.name.clone(),
            address: listener.address,
            steer_by_cpu: listener.steering == Steering::IncomingCpu,
        });
        let with_names = snapshot.clusters.iter().filter(|cluster| !cluster.dns.is_empty());
        Self {
            version: snapshot.version.clone(),
            listeners: listeners.collect(),
            names: names(snapshot),
            titles: Titles {
                listeners: snapshot.listeners.iter().map(|one| (one.stat.0, one.name.clone())).collect(),
                clusters: snapshot.clusters.iter().map(|one| (one.stat.0, one.name.clone())).collect(),
            },
            dns: with_names.map(|cluster| (cluster.name.clone(), cluster.dns.clone())).collect(),
            named: snapshot.clusters.iter().filter_map(named).collect(),
            checks: snapshot.clusters.iter().filter_map(health_target).collect(),
            endpoints: snapshot.clusters.iter().map(known).collect(),
            dump: dump(snapshot, digest),
        }
    }
}

fn known(cluster: &ClusterConfig) -> (String, Known) {
    let addresses = cluster.all_endpoints().map(|endpoint| endpoint.address).collect();
    (cluster.name.clone(), Known { addresses, has_names: !cluster.dns.is_empty() })
}

fn named(cluster: &ClusterConfig) -> Option<(String, Named)> {
    Some((cluster.name.clone(), cluster.named()?))
}

fn health_target(cluster: &ClusterConfig) -> Option<health::Target> {
    let via = health::Via {
        protocol: cluster.protocol,
        tls: cluster.tls.as_ref().map(tls::ClientContext::share),
        server_name: cluster.server_name.clone(),
    };
    let peers = cluster.all_endpoints().map(health::Peer::of).collect();
    Some(health::Target { cluster: cluster.name.clone(), rules: cluster.check.clone()?, via, peers })
}

/// Only what the config names now: series of what has gone are not shown any more (C44).
fn names(snapshot: &Snapshot) -> Names {
    let mut names = Names::default();
    for listener in &snapshot.listeners {
        names.set_listener(listener.stat, &listener.name);
        listener.routes.routes().for_each(|route| names.set_route(route.stat, &route.name));
    }
    for cluster in &snapshot.clusters {
        names.set_cluster(cluster.stat, &cluster.name);
        for endpoint in cluster.all_endpoints() {
            names.set_endpoint(endpoint.stat, &cluster.name, &endpoint.address.to_string());
        }
        for target in &cluster.dns {
            names.set_endpoint(target.stat, &cluster.name, &format!("{}:{}", target.name, target.port));
        }
    }
    names
}

fn dump(snapshot: &Snapshot, digest: &str) -> Value {
    let listeners: Vec<_> = snapshot.listeners.iter().map(dump_listener).collect();
    let clusters = snapshot.clusters.iter().map(|cluster| {
        json!({
            "name": cluster.name,
            "protocol": format!("{:?}", cluster.protocol).to_ascii_lowercase(),
            "tls": cluster.tls.is_some(),
            "connect_timeout_ms": cluster.connect_timeout.as_millis(),
            "endpoints": cluster.all_endpoints().map(|endpoint| json!({
                "address": endpoint.address.to_string(),
                "weight": endpoint.weight,
            })).collect::<Vec<_>>(),
            "names": cluster.dns.iter().map(|target| json!({
                "name": target.name,
                "port": target.port,
                "weight": target.weight,
            })).collect::<Vec<_>>(),
        })
    });
    json!({
        "version": snapshot.version,
        "digest": digest,
        "listeners": listeners,
        "clusters": clusters.collect::<Vec<_>>(),
    })
}

fn dump_listener(listener: &ListenerConfig) -> Value {
    let tickets = match listener.tickets {
        TicketSource::Off => "off",
        TicketSource::Resources => "config",
        TicketSource::Process => "process",
    };
    json!({
        "name": listener.name,
        "address": listener.address.to_string(),
        "steering": match listener.steering {
            Steering::KernelHash => "kernel",
            Steering::IncomingCpu => "cpu",
            Steering::LeastLoaded => "least_loaded",
        },
        "tls": listener.tls.as_ref().map(|context| json!({ "names": context.name_count(), "tickets": tickets })),
        "proxy_protocol": listener.proxy_protocol.is_some(),
        "connections_max": listener.connections_max,
        "access_log": listener.access_log.is_some(),
        "tcp": listener.tcp.is_some(),
        "routes": listener.routes.routes().map(|route| route.name.as_str()).collect::<Vec<_>>(),
    })
}

/// Tells the operator what is odd about the certificates of a config, and what in it means nothing here.
pub(crate) fn log_warnings(snapshot: &Snapshot) {
    let without_zone = |cluster: &&ClusterConfig| cluster.zone_preference == ZonePreference::WithoutZone;
    for cluster in snapshot.clusters.iter().filter(|c| matches!(c.subset, Subset::WithoutFleet)) {
        oplog::warn(&format!(
            "cluster {}: `subset` does nothing: the place of this proxy is unknown, start it with --fleet",
            cluster.name
        ));
    }
    for cluster in snapshot.clusters.iter().filter(without_zone) {
        oplog::warn(&format!(
            "cluster {}: `zones` does nothing: the zone of this proxy is unknown, start it with --zone",
            cluster.name
        ));
    }
    for listener in &snapshot.listeners {
        for warning in listener.tls.iter().flat_map(tls::ServerContext::warnings) {
            oplog::warn(&format!("listener {:?}: {warning}", listener.name));
        }
    }
}

/// Sessions of these rings go to their place on the present one.
pub(crate) fn warn_of_dropped_rings(cluster: &str, dropped: Dropped) {
    let Dropped { beyond_generations, beyond_points } = dropped;
    for (rings, limit) in [
        (beyond_generations, format!("a cluster keeps at most {GENERATIONS_MAX} rings of the past")),
        (
            beyond_points,
            format!(
                "the rings of the past have at most {RETIRED_POINTS_MAX} points in all clusters together"
            ),
        ),
    ] {
        if rings > 0 {
            oplog::warn(&format!(
                "cluster {cluster}: {rings} ring(s) of sticky sessions were dropped before `overlap` was over: {limit}; \
                 change the endpoints less often, or lower `overlap` or `virtual_nodes`"
            ));
        }
    }
}
