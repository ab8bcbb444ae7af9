//! From resources to a [`Snapshot`]: the only reader of the wire contract (docs/resources.md).
//!
//! Resources are not trusted, whoever wrote them: every range is checked here, every name resolved, every pattern
//! compiled. What shard does not support is refused by name: a reader takes the fields that it knows out of its own
//! copy of the message, and `fault::nothing_else` refuses what is left (C42). All resources are read to the end, so
//! one answer names a fault of each bad one; any fault means no snapshot, and the old one stays.
//! Called off the cores, once for each core, because each has its own TLS contexts.

mod access_log;
mod action;
mod balance;
mod check;
mod cluster;
mod connection_manager;
mod fault;
mod fields;
mod listener;
mod matches;
mod mirror;
mod policy;
mod routes;
mod sticky;
mod subset;
mod tcp;
#[cfg(test)]
mod tests;
mod tls;
mod token;
mod value;
mod zones;

use std::fmt;
use std::time::Duration;

use ::tls::TicketKeys;
use control_api::envoy::core::Metadata;
use control_api::envoy::route::RouteConfiguration;
use control_api::shard::v1;
use control_api::{Resources, type_url};
use rustc_hash::{FxHashMap, FxHashSet};

use self::action::ClusterPlaces;
use self::cluster::Assignments;
use self::connection_manager::RouteSource;
use self::fault::{Checked, Fault, Within, nothing_else};
use self::listener::{ListenerParts, MANAGER};
use self::tls::TlsSources;
use super::model::{AccessLogConfig, ClusterIndex, ListenerConfig, Snapshot, TcpConfig};
use super::stats::{LOG_SINKS_MAX, StatFamily, StatRegistry};
use crate::record::Template;
use crate::route::RouteTable;

/// A refusal of one resource, as it goes back to whoever sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nack {
    /// One of [`control_api::type_url`].
    pub type_url: &'static str,
    /// The resource's name.
    pub resource: String,
    /// Path of the field in the resource; empty when the whole is meant.
    pub field: String,
    /// What is wrong with it, a sentence part that follows the field: `is not supported`.
    pub message: String,
}

impl fmt::Display for Nack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.type_url.rsplit('.').next().unwrap_or(self.type_url);
        let space = if self.field.is_empty() { "" } else { " " };
        write!(f, "{kind} {:?}: {}{space}{}", self.resource, self.field, self.message)
    }
}

impl std::error::Error for Nack {}

/// What a snapshot needs beside the resources.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host<'a> {
    /// Ticket keys for listeners whose config has none; the same for every core, or sessions resume only where they
    /// began. None: such listeners give no tickets until somebody gives them keys.
    pub ticket_keys: Option<&'a TicketKeys>,
    /// The CA bundle of the host, PEM, for clusters that trust it.
    pub system_roots_pem: Option<&'a [u8]>,
    /// Cores that share what is bounded for the process; 0 counts as 1.
    pub cores: u32,
    /// The number of the core among them, from 0.
    pub core: u32,
    /// The number of the proxy, from 0, and how many there are; None: clusters are balanced over whole.
    pub fleet: Option<(u32, u32)>,
    /// The zone that the proxy runs in; None: clusters go over all zones alike.
    pub zone: Option<&'a str>,
    /// Since the epoch of the cores' clocks.
    pub now: Duration,
}

/// Builds the snapshot of one core, with names numbered by `stats`. As [`compile_for`] on a host without keys or CAs.
///
/// # Errors
/// A [`Nack`] for each resource that is at fault, with its first fault.
pub fn compile(resources: &Resources, stats: &mut StatRegistry) -> Result<Snapshot, Vec<Nack>> {
    compile_for(resources, &Host::default(), stats)
}

/// Builds the snapshot of one core. Equal resources give equal numbers, whatever the core, and equal snapshots but for
/// the subsets of endpoints.
///
/// # Errors
/// A [`Nack`] for each resource that is at fault, with its first fault.
pub fn compile_for(
    resources: &Resources,
    host: &Host<'_>,
    stats: &mut StatRegistry,
) -> Result<Snapshot, Vec<Nack>> {
    stats.at(host.now);
    let mut nacks = Nacks::default();
    nacks.refuse_repeated(resources);
    for secret in resources.secrets.iter() {
        nacks.keep(type_url::SECRET, &secret.name, tls::check_secret(secret.r#type.as_ref()));
    }
    for assignment in &resources.endpoints {
        nacks.keep(type_url::ENDPOINTS, &assignment.cluster_name, cluster::check_assignment(assignment));
    }
    let sources = TlsSources {
        secrets: &resources.secrets,
        process_tickets: host.ticket_keys,
        system_roots_pem: host.system_roots_pem,
    };
    let assignments: Assignments<'_> =
        resources.endpoints.iter().map(|a| (a.cluster_name.as_str(), a)).collect();
    let mut clusters = Vec::with_capacity(resources.clusters.len());
    let mut places = ClusterPlaces::default();
    for message in &resources.clusters {
        // A cluster at fault keeps its place, so that routes to it are not blamed.
        places.insert(message.name.clone(), ClusterIndex(clusters.len()));
        let built = cluster::cluster(message, &assignments, &sources, host, stats);
        clusters.extend(nacks.keep(type_url::CLUSTER, &message.name, built));
    }
    let listeners = listeners(resources, &sources, &places, stats, &mut nacks);
    if nacks.list.is_empty() {
        Ok(Snapshot { version: resources.version.clone(), listeners, clusters })
    } else {
        Err(nacks.list)
    }
}

fn listeners(
    resources: &Resources,
    sources: &TlsSources<'_>,
    places: &ClusterPlaces,
    stats: &mut StatRegistry,
    nacks: &mut Nacks,
) -> Vec<ListenerConfig> {
    let configs: FxHashMap<&str, &RouteConfiguration> =
        resources.routes.iter().map(|r| (r.name.as_str(), r)).collect();
    let mut addresses = FxHashSet::default();
    let mut named = FxHashSet::default();
    let mut listeners = Vec::with_capacity(resources.listeners.len());
    for message in &resources.listeners {
        let built = listener::listener(message, sources).and_then(|parts| {
            if !addresses.insert(parts.address) {
                return Err(Fault::new(
                    "address",
                    format!("is {}, which another listener has", parts.address),
                ));
            }
            Ok(parts)
        });
        let Some(parts) = nacks.keep(type_url::LISTENER, &message.name, built) else { continue };
        let tcp = match &parts.tcp {
            None => Some(None),
            Some(chains) => {
                nacks.keep(type_url::LISTENER, &message.name, tcp::config(chains, places).map(Some))
            }
        };
        let Some(tcp) = tcp else { continue };
        let routes = match &parts.manager.routes {
            RouteSource::Inline(config) => {
                let built = routes::table(config, places, Some(&parts.manager.requirements), stats);
                let built = built.within("route_config").within(MANAGER);
                nacks.keep(type_url::LISTENER, &message.name, built)
            }
            RouteSource::Named(name) => match configs.get(name.as_str()) {
                Some(config) => {
                    named.insert(name.clone());
                    let built = routes::table(config, places, Some(&parts.manager.requirements), stats);
                    nacks.keep(type_url::ROUTES, name, built)
                }
                None => {
                    let fault = Fault::new(
                        "rds.route_config_name",
                        format!("names the unknown RouteConfiguration {name:?}"),
                    );
                    nacks.keep(type_url::LISTENER, &message.name, Err(fault).within(MANAGER))
                }
            },
        };
        let built = routes.map(|routes| finished(parts, routes, tcp, stats));
        listeners.extend(built.and_then(|built| nacks.keep(type_url::LISTENER, &message.name, built)));
    }
    // Nobody serves these yet; a fault in one is still the sender's to know now.
    for config in resources.routes.iter().filter(|config| !named.contains(&config.name)) {
        let mut scratch = StatRegistry::with_series_max(|_| 0);
        nacks.keep(type_url::ROUTES, &config.name, routes::table(config, places, None, &mut scratch));
    }
    listeners
}

fn finished(
    parts: ListenerParts,
    routes: RouteTable,
    tcp: Option<TcpConfig>,
    stats: &mut StatRegistry,
) -> Checked<ListenerConfig> {
    let access_log = match &parts.manager.log {
        None => None,
        Some(sink) => {
            let number = stats.sink(sink).ok_or_else(|| {
                let message =
                    format!("is one target too many: a process writes at most {LOG_SINKS_MAX} in its life");
                Fault::new("access_log", message).within(MANAGER)
            })?;
            let template = sink.template.as_deref().map(Template::parse).transpose();
            let template =
                template.map_err(|error| Fault::new("access_log", error.to_string()).within(MANAGER))?;
            Some(AccessLogConfig { sink: number, success_sample: parts.success_sample, template })
        }
    };
    Ok(ListenerConfig {
        stat: stats.id(StatFamily::Listener, &parts.name),
        name: parts.name,
        address: parts.address,
        steering: parts.steering,
        connections_max: parts.connections_max,
        proxy_protocol: parts.proxy_protocol,
        tls: parts.tls,
        tickets: parts.tickets,
        access: parts.access,
        http: parts.manager.http,
        routes,
        access_log,
        tcp,
    })
}

#[derive(Default)]
struct Nacks {
    list: Vec<Nack>,
}

impl Nacks {
    /// The value, or None and a nack. A route configuration that two listeners use is refused once.
    fn keep<T>(&mut self, type_url: &'static str, resource: &str, built: Checked<T>) -> Option<T> {
        match built {
            Ok(value) => Some(value),
            Err(Fault { field, message }) => {
                let nack = Nack { type_url, resource: resource.to_owned(), field, message };
                if !self.list.contains(&nack) {
                    self.list.push(nack);
                }
                None
            }
        }
    }

    fn refuse_repeated(&mut self, resources: &Resources) {
        let lists: [(&'static str, Vec<&str>); 4] = [
            (type_url::CLUSTER, resources.clusters.iter().map(|r| r.name.as_str()).collect()),
            (type_url::ENDPOINTS, resources.endpoints.iter().map(|r| r.cluster_name.as_str()).collect()),
            (type_url::ROUTES, resources.routes.iter().map(|r| r.name.as_str()).collect()),
            (type_url::LISTENER, resources.listeners.iter().map(|r| r.name.as_str()).collect()),
        ];
        for (type_url, names) in lists {
            let mut seen = FxHashSet::default();
            for name in names.into_iter().filter(|name| !seen.insert(*name)) {
                self.keep::<()>(type_url, name, Err(Fault::new("name", "is used by two resources")));
            }
        }
    }
}

const OPTIONS: &str = "metadata.typed_filter_metadata[\"shard.v1\"]";

/// The options of a listener or cluster; all unset when the metadata is.
fn shard_options<M>(metadata: Option<Metadata>) -> Checked<M>
where
    M: prost::Message + prost::Name + Default,
{
    let Some(mut metadata) = metadata else { return Ok(M::default()) };
    let any = metadata.typed_filter_metadata.remove(v1::KEY);
    nothing_else(&metadata).within("metadata")?;
    match any {
        None => Ok(M::default()),
        Some(any) => shard_field(value::extension("", Some(any))),
    }
}

/// Puts the place of the options in front of a fault in one of them.
fn shard_field<T>(checked: Checked<T>) -> Checked<T> {
    checked.within(OPTIONS)
}
