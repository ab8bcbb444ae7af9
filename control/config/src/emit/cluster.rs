//! Clusters: endpoints, pools, DNS.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use control_api::envoy::cluster::{self, Cluster};
use control_api::envoy::core::{
    Address, HealthStatus, Http1ProtocolOptions, Http2ProtocolOptions, HttpProtocolOptions,
    KeepaliveSettings, SocketAddress, address, socket_address,
};
use control_api::envoy::endpoint::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints, lb_endpoint,
};
use control_api::envoy::names;
use control_api::envoy::route::route_action::hash_policy::PolicySpecifier;
use control_api::envoy::upstream_http::{self, http_protocol_options as upstream};
use control_api::shard::v1::ClusterOptions;

use super::balance::{hash_key, policy_word};
use super::zones::locality;
use super::{Emitter, count, metadata, packed, span};
use crate::finding::Problem;
use crate::suggest::nearest;
use crate::yaml::Node;

/// The clusters of a config by resource name, and which of them are used.
#[derive(Default)]
pub(super) struct Clusters(BTreeMap<String, Known>);

struct Known {
    /// Where it was written.
    node: Node,
    is_used: bool,
    /// Every endpoint has a name of its own, for TLS and `host_from_endpoint`.
    is_named: bool,
    /// What its requests are hashed by.
    hash_key: Option<PolicySpecifier>,
}

impl Emitter<'_> {
    pub(super) fn emit_clusters(&mut self) {
        let config = self.config;
        for service in &config.services {
            let shorthand = service.node.get("endpoints").map(|endpoints| Node {
                value: crate::yaml::Value::Map(
                    service.node.entries().iter().filter(|e| e.key == "endpoints").cloned().collect(),
                ),
                ..Node::empty_map(endpoints.at, &endpoints.path)
            });
            if let Some(own) = shorthand {
                self.emit_cluster(&service.name, &own);
            }
            for entry in service.node.get("clusters").map_or(&[][..], Node::entries) {
                self.emit_cluster(&format!("{}/{}", service.name, entry.key), &entry.value);
            }
        }
    }

    fn emit_cluster(&mut self, name: &str, own: &Node) {
        let node = self.config.cluster(own);
        let localities = self.localities(&node);
        let endpoints = || localities.iter().flat_map(|locality| &locality.lb_endpoints);
        let has_names = endpoints().any(|e| !is_address(e));
        let is_named = endpoints().all(|e| !hostname(e).is_empty());
        let kind = if has_names {
            cluster::cluster::DiscoveryType::StrictDns
        } else {
            cluster::cluster::DiscoveryType::Static
        };
        let transport_socket = node.get("tls").map(|tls| self.upstream_tls(name, tls, is_named));
        let dns = node.get("dns").filter(|_| has_names);
        let mut options = ClusterOptions {
            dns_stale_max: span(dns.and_then(|d| d.duration("stale_max"))),
            ..pool_options(&node)
        };
        let protocol_options = self.protocol_options(&node);
        #[expect(
            deprecated,
            reason = "the DNS cluster extension that replaces two of these fields needs an Envoy of 2025"
        )]
        let mut cluster = Cluster {
            name: name.to_owned(),
            connect_timeout: span(node.duration("connect_timeout")),
            cluster_discovery_type: Some(cluster::cluster::ClusterDiscoveryType::Type(kind.into())),
            load_assignment: Some(ClusterLoadAssignment {
                cluster_name: name.to_owned(),
                endpoints: localities,
                ..Default::default()
            }),
            typed_extension_protocol_options: protocol_options.into_iter().collect(),
            dns_refresh_rate: span(dns.and_then(|d| d.duration("refresh_min"))),
            respect_dns_ttl: has_names,
            transport_socket,
            ..Default::default()
        };
        self.balance(&node, &mut cluster, &mut options);
        options.zones = self.zones(&node, &mut cluster);
        options.subset_endpoints_min = self.subset(&node, has_names);
        options.sticky = self.sticky(&node, policy_word(&node));
        cluster.metadata = metadata(&options);
        self.resources.clusters.push(cluster);
        self.remember("cluster", name, own);
        let known = Known { node: own.clone(), is_used: false, is_named, hash_key: hash_key(&node) };
        self.clusters.0.insert(name.to_owned(), known);
    }

    /// The endpoints of a cluster by priority, which must have no gaps, and zone.
    fn localities(&mut self, node: &Node) -> Vec<LocalityLbEndpoints> {
        let mut levels: BTreeMap<u32, (&Node, BTreeMap<&str, LocalityLbEndpoints>)> = BTreeMap::new();
        for written in node.list("endpoints") {
            let Some(endpoint) = lb_endpoint(written) else { continue };
            let priority = written.int("priority").unwrap_or(0);
            let zone = written.word("zone").unwrap_or_default();
            let (_, zones) = levels.entry(priority).or_insert_with(|| (written, BTreeMap::new()));
            let locality = zones.entry(zone).or_insert_with(|| LocalityLbEndpoints {
                priority,
                locality: locality(zone),
                ..Default::default()
            });
            locality.lb_endpoints.push(endpoint);
        }
        for (wanted, (priority, (written, _))) in (0..).zip(&levels) {
            if wanted != *priority {
                let at = written.get("priority").unwrap_or(written);
                let message = format!("no endpoint has the priority {wanted}");
                self.error(at, message, "number the priorities 0, 1, 2 without gaps");
                break;
            }
        }
        levels.into_values().flat_map(|(_, zones)| zones.into_values()).collect()
    }

    /// Protocol and pool, where they differ from the defaults.
    fn protocol_options(&mut self, node: &Node) -> Option<(String, control_api::envoy::google::Any)> {
        let is_h2 = node.word("protocol") == Some("http2");
        let pool = node.get("pool");
        let ping = pool.and_then(|p| p.duration("h2_ping_interval"));
        if let (Some(timeout), None) = (pool.and_then(|p| p.get("h2_ping_timeout")), ping) {
            self.error(timeout, "a ping timeout without pings", "add `h2_ping_interval`, or delete this key");
        }
        let idle_timeout = span(pool.and_then(|p| p.duration("idle_timeout")));
        let requests_max = count(pool.and_then(|p| p.int("requests_max")));
        if !is_h2 && idle_timeout.is_none() && requests_max.is_none() {
            return None;
        }
        let keepalive = ping.map(|interval| KeepaliveSettings {
            interval: span(Some(interval)),
            timeout: span(Some(
                pool.and_then(|p| p.duration("h2_ping_timeout"))
                    .unwrap_or(control_api::defaults::cluster::H2_PING_TIMEOUT.default),
            )),
            ..Default::default()
        });
        let protocol = if is_h2 {
            upstream::explicit_http_config::ProtocolConfig::Http2ProtocolOptions(Http2ProtocolOptions {
                max_concurrent_streams: count(pool.and_then(|p| p.int("h2_streams_max"))),
                connection_keepalive: keepalive,
                ..Default::default()
            })
        } else {
            upstream::explicit_http_config::ProtocolConfig::HttpProtocolOptions(
                Http1ProtocolOptions::default(),
            )
        };
        let common = HttpProtocolOptions {
            idle_timeout,
            max_requests_per_connection: requests_max,
            ..Default::default()
        };
        let options = upstream_http::HttpProtocolOptions {
            common_http_protocol_options: (common != HttpProtocolOptions::default()).then_some(common),
            upstream_protocol_options: Some(upstream::UpstreamProtocolOptions::ExplicitHttpConfig(
                upstream::ExplicitHttpConfig { protocol_config: Some(protocol) },
            )),
            ..Default::default()
        };
        Some((names::UPSTREAM_HTTP.to_owned(), packed(&options)))
    }

    /// The resource name of a cluster that a service's route names; marks it as used.
    pub(super) fn resolve_cluster(&mut self, service: &str, reference: &Node) -> Option<String> {
        let written = reference.text()?;
        let own = format!("{service}/{written}");
        let known = &mut self.clusters.0;
        let name = if known.contains_key(&own) { own } else { written.to_owned() };
        if let Some(found) = known.get_mut(&name) {
            found.is_used = true;
            return Some(name);
        }
        let prefix = format!("{service}/");
        let local = |name: &str| name.strip_prefix(&prefix).unwrap_or(name).to_owned();
        let names: Vec<String> = known.keys().map(|name| local(name)).collect();
        let fix = match nearest(written, names.iter().map(String::as_str)) {
            Some(name) => format!("did you mean `{name}`?"),
            None => format!("add it under `clusters`; there are {}", listed(&names)),
        };
        self.error(reference, format!("unknown cluster `{written}`"), fix);
        None
    }

    /// The cluster of routes that name none: the service's only one.
    pub(super) fn only_cluster(&mut self, service: &str) -> Option<String> {
        let prefix = format!("{service}/");
        let mut own =
            self.clusters.0.iter_mut().filter(|(name, _)| *name == service || name.starts_with(&prefix));
        let (name, known) = own.next()?;
        if own.next().is_some() {
            return None;
        }
        known.is_used = true;
        Some(name.clone())
    }

    /// What requests to a cluster are hashed by.
    pub(super) fn hash_key_of(&self, name: &str) -> Option<&PolicySpecifier> {
        self.clusters.0.get(name)?.hash_key.as_ref()
    }

    /// Whether every endpoint of a cluster has a name.
    pub(super) fn is_named_cluster(&self, name: &str) -> bool {
        self.clusters.0.get(name).is_some_and(|known| known.is_named)
    }

    /// Warns of clusters that no route names.
    pub(super) fn warn_of_unused(&mut self) {
        for (name, known) in self.clusters.0.iter().filter(|(_, known)| !known.is_used) {
            let problem = Problem::new(
                format!("no route uses the cluster `{name}`"),
                "name it in a route, or delete it",
            );
            self.findings.warn(&known.node, problem);
        }
    }
}

fn listed(names: &[String]) -> String {
    match names {
        [] => "none yet".to_owned(),
        few if few.len() <= 8 => few.join(", "),
        many => format!("{}, … ({} in all)", many[..8].join(", "), many.len()),
    }
}

fn pool_options(node: &Node) -> ClusterOptions {
    let Some(pool) = node.get("pool") else {
        return ClusterOptions::default();
    };
    ClusterOptions {
        idle_max: pool.int("idle_max"),
        connections_max: pool.int("connections_max"),
        h2_connections_max: pool.int("h2_connections_max"),
        ..Default::default()
    }
}

/// An endpoint, written as a text or a mapping.
fn lb_endpoint(node: &Node) -> Option<LbEndpoint> {
    let written = node.text().or_else(|| node.word("address"))?;
    let (host, port) = match written.parse::<SocketAddr>() {
        Ok(address) => (address.ip().to_string(), address.port()),
        Err(_) => {
            let (host, port) = written.rsplit_once(':')?;
            (host.to_ascii_lowercase(), port.parse().ok()?)
        }
    };
    let is_name = host.parse::<std::net::IpAddr>().is_err();
    let hostname = match node.word("hostname") {
        Some(hostname) => hostname.to_ascii_lowercase(),
        None if is_name => host.clone(),
        None => String::new(),
    };
    Some(LbEndpoint {
        load_balancing_weight: count(node.int("weight")),
        health_status: if node.is_on("drain") { HealthStatus::Draining } else { HealthStatus::Unknown }
            .into(),
        host_identifier: Some(lb_endpoint::HostIdentifier::Endpoint(Endpoint {
            address: Some(socket_address(&host, port)),
            hostname,
            ..Default::default()
        })),
        ..Default::default()
    })
}

pub(super) fn socket_address(host: &str, port: u16) -> Address {
    Address {
        address: Some(address::Address::SocketAddress(SocketAddress {
            address: host.to_owned(),
            port_specifier: Some(socket_address::PortSpecifier::PortValue(port.into())),
            ..Default::default()
        })),
    }
}

fn endpoint(entry: &LbEndpoint) -> Option<&Endpoint> {
    match &entry.host_identifier {
        Some(lb_endpoint::HostIdentifier::Endpoint(endpoint)) => Some(endpoint),
        Some(lb_endpoint::HostIdentifier::EndpointName(_)) | None => None,
    }
}

fn hostname(entry: &LbEndpoint) -> &str {
    endpoint(entry).map_or("", |e| e.hostname.as_str())
}

fn is_address(entry: &LbEndpoint) -> bool {
    let address = endpoint(entry).and_then(|e| e.address.as_ref()?.address.as_ref());
    match address {
        Some(address::Address::SocketAddress(socket)) => socket.address.parse::<std::net::IpAddr>().is_ok(),
        _ => false,
    }
}
