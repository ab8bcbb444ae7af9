//! `Cluster` and `ClusterLoadAssignment`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use control_api::defaults::{balance as balance_limits, cluster as limits};
use control_api::envoy::cluster::Cluster;
use control_api::envoy::cluster::cluster::{ClusterDiscoveryType, DiscoveryType};
use control_api::envoy::core::{Address, HealthStatus, Http1ProtocolOptions, Http2ProtocolOptions};
use control_api::envoy::endpoint::lb_endpoint::HostIdentifier;
use control_api::envoy::endpoint::{ClusterLoadAssignment, LbEndpoint, LocalityLbEndpoints};
use control_api::envoy::names;
use control_api::envoy::upstream_http::HttpProtocolOptions;
use control_api::envoy::upstream_http::http_protocol_options::UpstreamProtocolOptions;
use control_api::envoy::upstream_http::http_protocol_options::explicit_http_config::ProtocolConfig;
use control_api::shard::v1;
use http_balance::endpoint::Health;
use http_balance::generations::Generation;
use http_balance::plan::{PlanError, Standing};
use http_balance::tables::Tables;
use http_balance::{ClusterPlan, ClusterRules};
use rustc_hash::{FxHashMap, FxHashSet};

use super::fault::{Checked, Fault, Within, nothing_else};
use super::tls::{self, TlsSources};
use super::zones::{self, Zones};
use super::{Host, OPTIONS, balance, check, shard_options, sticky, subset, value};
use crate::snapshot::model::{
    ClusterConfig, DnsTarget, EndpointConfig, EndpointRole, PoolConfig, ServerName, UpstreamProtocol,
};
use crate::snapshot::stats::{StatFamily, StatRegistry};

/// The load assignments of EDS clusters by name.
pub(super) type Assignments<'a> = FxHashMap<&'a str, &'a ClusterLoadAssignment>;

pub(super) fn cluster(
    message: &Cluster,
    assignments: &Assignments<'_>,
    sources: &TlsSources<'_>,
    host: &Host<'_>,
    stats: &mut StatRegistry,
) -> Checked<ClusterConfig> {
    let mut message = message.clone();
    let name = std::mem::take(&mut message.name);
    value::name("name", &name)?;
    let options: v1::ClusterOptions = shard_options(message.metadata.take())?;
    let zones_wanted = zones::wanted(&mut message, &options)?;
    let mut rules = balance::rules(&mut message, &options, host.cores)?;
    let sticky = sticky::read(&name, &options, rules.policy, sources.secrets)?;
    rules.sticky = sticky.as_ref().map(|(rules, _)| *rules);
    let check = check::rules(std::mem::take(&mut message.health_checks))?;
    let mut dns = dns_options(&mut message, &options)?;
    let resolution = resolution(&mut message)?;
    let local = message.load_assignment.take();
    let found = assigned(&name, &resolution, local.as_ref(), assignments)?;
    dns.names_allowed = matches!(resolution, Resolution::Dns);
    let mut zones = Zones::default();
    let (mut endpoints, dns) = match found {
        Some(assignment) => {
            let read = endpoints(assignment, &name, &dns, &mut zones, stats);
            // A fault in an EDS assignment is reported with that resource; here it is as good as none.
            match resolution {
                Resolution::Eds { .. } => read.unwrap_or_default(),
                Resolution::Static | Resolution::Dns => read.within("load_assignment")?,
            }
        }
        None => (Vec::new(), Vec::new()),
    };
    let connect_timeout =
        value::bounded_duration("connect_timeout", message.connect_timeout.take(), &limits::CONNECT_TIMEOUT)?;
    let (protocol, pool) = protocol_and_pool(&mut message, &options)?;
    let (tls, server_name) = match message.transport_socket.take() {
        Some(socket) => {
            let (context, name) = tls::client(socket, &name, protocol, sources).within("transport_socket")?;
            (Some(context), name)
        }
        None => (None, ServerName::default()),
    };
    nothing_else(&message)?;
    if let Some(check) = &check {
        check::is_fit(check, protocol).within_item("health_checks", 0)?;
    }
    let (zone_preference, zone_rules) =
        zones::rules(zones_wanted, host.zone, &mut zones, (rules.policy, rules.sticky.is_some()))?;
    rules.zones = zone_rules;
    let kind = (rules.policy, rules.sticky.is_some(), !dns.is_empty());
    let subset = subset::take(&mut endpoints, subset::size_min(&options, kind)?, host);
    let stat = stats.id(StatFamily::Cluster, &name);
    let (generations, departed) = sticky::rings(&name, &rules, (&endpoints, &dns), stats);
    let until = departed.iter().map(|(endpoint, until)| (endpoint.id(), *until)).collect();
    let plan = plan(rules, (&endpoints, &dns), generations, &mut stats.tables)?.with_departed(until);
    Ok(ClusterConfig {
        name,
        stat,
        protocol,
        endpoints,
        dns,
        connect_timeout,
        tls,
        server_name,
        pool,
        plan,
        departed: departed.into_iter().map(|(endpoint, _)| endpoint).collect(),
        check,
        sticky: sticky.map(|(_, cookie)| Box::new(cookie)),
        zones: zones.into_names(),
        zone_preference,
        subset,
    })
}

/// The plan over the endpoints that are known here; a core adds those that it finds by name.
fn plan(
    rules: ClusterRules,
    (endpoints, dns): (&[EndpointConfig], &[DnsTarget]),
    generations: Vec<Generation>,
    tables: &mut Tables,
) -> Checked<ClusterPlan> {
    let priorities = endpoints.iter().map(|e| e.role.priority).chain(dns.iter().map(|d| d.role.priority));
    let priorities: FxHashSet<u8> = priorities.collect();
    if let Some(gap) = (0..).take(priorities.len()).find(|wanted| !priorities.contains(wanted)) {
        let message = format!("has no endpoint of the priority {gap}: number the priorities without gaps");
        return Err(Fault::new("load_assignment", message));
    }
    let specs = endpoints.iter().map(EndpointConfig::spec).collect();
    ClusterPlan::build_shared(rules, specs, generations, tables).map_err(|error| {
        let field = match error {
            PlanError::Rows { .. } => "maglev_lb_config.table_size",
            PlanError::VirtualNodes { .. }
            | PlanError::LoadBound { .. }
            | PlanError::Duplicate { .. }
            | PlanError::WeightZero { .. }
            | PlanError::TooManyEndpoints { .. } => "load_assignment",
        };
        Fault::new(field, format!("is refused: {error}"))
    })
}

/// How a cluster learns its endpoints.
enum Resolution {
    Static,
    Dns,
    Eds { service_name: String },
}

/// Where the endpoints are written; None: nobody has said yet.
fn assigned<'a>(
    cluster: &str,
    resolution: &Resolution,
    local: Option<&'a ClusterLoadAssignment>,
    assignments: &Assignments<'a>,
) -> Checked<Option<&'a ClusterLoadAssignment>> {
    match (resolution, local) {
        (Resolution::Eds { .. }, Some(_)) => {
            Err(Fault::new("load_assignment", "is not supported with type EDS"))
        }
        (Resolution::Eds { service_name }, None) => {
            let wanted = if service_name.is_empty() { cluster } else { service_name.as_str() };
            Ok(assignments.get(wanted).copied())
        }
        (Resolution::Static | Resolution::Dns, None) => Err(Fault::missing("load_assignment")),
        (Resolution::Static | Resolution::Dns, Some(local)) => Ok(Some(local)),
    }
}

fn resolution(message: &mut Cluster) -> Checked<Resolution> {
    let kind = match message.cluster_discovery_type.take() {
        None => DiscoveryType::Static,
        Some(ClusterDiscoveryType::Type(number)) => {
            value::choice("type", number, |n| DiscoveryType::try_from(n).ok())?
        }
        Some(ClusterDiscoveryType::ClusterType(_)) => return Err(Fault::unsupported("cluster_type")),
    };
    let eds = message.eds_cluster_config.take();
    match kind {
        DiscoveryType::Eds => {
            let mut eds = eds.ok_or_else(|| Fault::missing("eds_cluster_config"))?;
            value::from_ads("eds_config", eds.eds_config.take()).within("eds_cluster_config")?;
            let service_name = std::mem::take(&mut eds.service_name);
            nothing_else(&eds).within("eds_cluster_config")?;
            Ok(Resolution::Eds { service_name })
        }
        DiscoveryType::Static | DiscoveryType::StrictDns if eds.is_some() => {
            Err(Fault::new("eds_cluster_config", "is not supported without type EDS"))
        }
        DiscoveryType::Static => Ok(Resolution::Static),
        DiscoveryType::StrictDns => Ok(Resolution::Dns),
        DiscoveryType::LogicalDns | DiscoveryType::OriginalDst => {
            Err(Fault::new("type", "is not supported: STATIC, STRICT_DNS and EDS are"))
        }
    }
}

/// How names are resolved.
struct DnsOptions {
    names_allowed: bool,
    refresh_min: Duration,
    stale_max: Duration,
}

#[expect(
    deprecated,
    reason = "the newer place of these two is an extension that Envoy itself maps back to them"
)]
fn dns_options(message: &mut Cluster, options: &v1::ClusterOptions) -> Checked<DnsOptions> {
    let refresh_min = value::bounded_duration(
        "dns_refresh_rate",
        message.dns_refresh_rate.take(),
        &limits::DNS_REFRESH_MIN,
    )?;
    // Shard always obeys a TTL above the bound, so either value asks for what happens anyway.
    message.respect_dns_ttl = false;
    let stale_max = value::bounded_duration("dns_stale_max", options.dns_stale_max, &limits::DNS_STALE_MAX);
    let stale_max = stale_max.within(OPTIONS)?;
    Ok(DnsOptions { names_allowed: false, refresh_min, stale_max })
}

fn protocol_and_pool(
    message: &mut Cluster,
    options: &v1::ClusterOptions,
) -> Checked<(UpstreamProtocol, PoolConfig)> {
    let mut http = HttpProtocolOptions::default();
    for (key, any) in std::mem::take(&mut message.typed_extension_protocol_options) {
        if key != names::UPSTREAM_HTTP {
            let fault: Checked<_> = Err(Fault::unsupported(""));
            return fault.within_key("typed_extension_protocol_options", &key);
        }
        http = value::extension("", Some(any)).within_key("typed_extension_protocol_options", &key)?;
    }
    let read = upstream_http(http).within_key("typed_extension_protocol_options", names::UPSTREAM_HTTP)?;
    let bounds = || -> Checked<(usize, usize, usize)> {
        Ok((
            value::bounded_count("idle_max", options.idle_max, &limits::IDLE_CONNECTIONS)?,
            value::bounded_count("connections_max", options.connections_max, &limits::CONNECTIONS)?,
            value::bounded_count("h2_connections_max", options.h2_connections_max, &limits::H2_CONNECTIONS)?,
        ))
    };
    let (idle_max, connections_max, h2_connections_max) = bounds().within(OPTIONS)?;
    let pool = PoolConfig {
        idle_max,
        idle_timeout: read.idle_timeout,
        connections_max,
        requests_max: read.requests_max,
        h2_connections_max,
        h2_streams_max: read.h2.streams_max,
        h2_ping_interval: read.h2.ping_interval,
        h2_ping_timeout: read.h2.ping_timeout,
    };
    Ok((read.protocol, pool))
}

struct UpstreamHttp {
    protocol: UpstreamProtocol,
    idle_timeout: Duration,
    requests_max: Option<u32>,
    h2: UpstreamH2,
}

struct UpstreamH2 {
    streams_max: u32,
    ping_interval: Option<Duration>,
    ping_timeout: Duration,
}

fn upstream_http(mut http: HttpProtocolOptions) -> Checked<UpstreamHttp> {
    let mut common = http.common_http_protocol_options.take().unwrap_or_default();
    let mut read_common = || -> Checked<(Duration, Option<u32>)> {
        let idle =
            value::bounded_duration("idle_timeout", common.idle_timeout.take(), &limits::IDLE_TIMEOUT)?;
        let requests = common.max_requests_per_connection.take().map(|n| n.value);
        let requests =
            value::ranged("max_requests_per_connection", requests, &limits::REQUESTS_PER_CONNECTION)?;
        nothing_else(&common)?;
        Ok((idle, requests))
    };
    let (idle_timeout, requests_max) = read_common().within("common_http_protocol_options")?;
    let explicit = match http.upstream_protocol_options.take() {
        None => None,
        Some(UpstreamProtocolOptions::ExplicitHttpConfig(explicit)) => Some(
            explicit.protocol_config.ok_or_else(|| Fault::missing("explicit_http_config.protocol_config"))?,
        ),
        Some(UpstreamProtocolOptions::UseDownstreamProtocolConfig(_)) => {
            return Err(Fault::unsupported("use_downstream_protocol_config"));
        }
        Some(UpstreamProtocolOptions::AutoConfig(_)) => return Err(Fault::unsupported("auto_config")),
    };
    nothing_else(&http)?;
    let (protocol, h2) = match explicit {
        None => (UpstreamProtocol::Http1, h2_options(Http2ProtocolOptions::default())),
        Some(ProtocolConfig::HttpProtocolOptions(h1)) => {
            nothing_else::<Http1ProtocolOptions>(&h1).within("explicit_http_config.http_protocol_options")?;
            (UpstreamProtocol::Http1, h2_options(Http2ProtocolOptions::default()))
        }
        Some(ProtocolConfig::Http2ProtocolOptions(h2)) => (UpstreamProtocol::Http2, h2_options(h2)),
        Some(ProtocolConfig::Http3ProtocolOptions(_)) => {
            return Err(Fault::unsupported("explicit_http_config.http3_protocol_options"));
        }
    };
    let h2 = h2.within("explicit_http_config.http2_protocol_options")?;
    Ok(UpstreamHttp { protocol, idle_timeout, requests_max, h2 })
}

fn h2_options(mut h2: Http2ProtocolOptions) -> Checked<UpstreamH2> {
    let streams_max =
        value::bounded_u32("max_concurrent_streams", h2.max_concurrent_streams.take(), &limits::H2_STREAMS)?;
    let mut keepalive = h2.connection_keepalive.take().unwrap_or_default();
    nothing_else(&h2)?;
    let mut pings = || -> Checked<(Option<Duration>, Duration)> {
        let interval =
            value::ranged_duration("interval", keepalive.interval.take(), &limits::H2_PING_INTERVAL)?;
        let timeout = value::bounded_duration("timeout", keepalive.timeout.take(), &limits::H2_PING_TIMEOUT)?;
        nothing_else(&keepalive)?;
        Ok((interval, timeout))
    };
    let (ping_interval, ping_timeout) = pings().within("connection_keepalive")?;
    Ok(UpstreamH2 { streams_max, ping_interval, ping_timeout })
}

/// Checks an EDS assignment by itself; what its cluster makes of it comes later.
pub(super) fn check_assignment(assignment: &ClusterLoadAssignment) -> Checked<()> {
    value::name("cluster_name", &assignment.cluster_name)?;
    let ip_only = DnsOptions { names_allowed: false, refresh_min: Duration::ZERO, stale_max: Duration::ZERO };
    let mut scratch = StatRegistry::with_series_max(|_| 0);
    endpoints(assignment, "", &ip_only, &mut Zones::default(), &mut scratch).map(|_| ())
}

type Targets = (Vec<EndpointConfig>, Vec<DnsTarget>);

fn endpoints(
    assignment: &ClusterLoadAssignment,
    cluster: &str,
    dns: &DnsOptions,
    zones: &mut Zones,
    stats: &mut StatRegistry,
) -> Checked<Targets> {
    if !assignment.named_endpoints.is_empty() {
        return Err(Fault::unsupported("named_endpoints"));
    }
    if assignment.policy.is_some() {
        return Err(Fault::unsupported("policy"));
    }
    let total: usize = assignment.endpoints.iter().map(|locality| locality.lb_endpoints.len()).sum();
    if total > limits::ENDPOINTS_MAX {
        return Err(Fault::new(
            "endpoints",
            format!("has {total} endpoints, at most {} are allowed", limits::ENDPOINTS_MAX),
        ));
    }
    let mut targets = (Vec::with_capacity(total), Vec::new());
    let mut seen = FxHashSet::default();
    for (at, locality) in assignment.endpoints.iter().enumerate() {
        let priority = value::bounded("priority", Some(locality.priority), &balance_limits::PRIORITY);
        let priority = priority.within_item("endpoints", at)?;
        // Region and part of the zone mean nothing here, and say nothing that a request could be sent wrong by.
        let zone = locality.locality.as_ref().map_or("", |locality| locality.zone.as_str());
        if !zone.is_empty() {
            value::name("locality.zone", zone).within_item("endpoints", at)?;
        }
        let zone = if locality.lb_endpoints.is_empty() { 0 } else { zones.number(zone) };
        let rest = LocalityLbEndpoints {
            locality: None,
            lb_endpoints: Vec::new(),
            metadata: locality.metadata.clone(),
            load_balancing_weight: locality.load_balancing_weight,
            priority: 0,
            proximity: locality.proximity,
            lb_config: locality.lb_config.clone(),
        };
        nothing_else(&rest).within_item("endpoints", at)?;
        for (place, endpoint) in locality.lb_endpoints.iter().enumerate() {
            add_endpoint(endpoint, cluster, (priority, zone, dns), stats, &mut targets, &mut seen)
                .within_item("lb_endpoints", place)
                .within_item("endpoints", at)?;
        }
    }
    Ok(targets)
}

fn add_endpoint(
    message: &LbEndpoint,
    cluster: &str,
    (priority, zone, dns): (u32, u16, &DnsOptions),
    stats: &mut StatRegistry,
    targets: &mut Targets,
    seen: &mut FxHashSet<(String, u16)>,
) -> Checked<()> {
    let mut message = message.clone();
    let weight = value::bounded_u32(
        "load_balancing_weight",
        message.load_balancing_weight.take(),
        &limits::ENDPOINT_WEIGHT,
    )?;
    let role = role(std::mem::take(&mut message.health_status), priority, zone)?;
    let mut endpoint = match message.host_identifier.take() {
        Some(HostIdentifier::Endpoint(endpoint)) => endpoint,
        Some(HostIdentifier::EndpointName(_)) => return Err(Fault::unsupported("endpoint_name")),
        None => return Err(Fault::missing("endpoint")),
    };
    nothing_else(&message)?;
    let address: Option<Address> = endpoint.address.take();
    let hostname = std::mem::take(&mut endpoint.hostname);
    nothing_else(&endpoint).within("endpoint")?;
    let (host, port) = value::host_and_port("address", address).within("endpoint")?;
    if port == 0 {
        return Err(Fault::new("endpoint.address.socket_address.port_value", "must not be 0"));
    }
    let hostname = (!hostname.is_empty()).then_some(hostname);
    let stat = |stats: &mut StatRegistry, address: &dyn std::fmt::Display| {
        stats.id(StatFamily::Endpoint, &StatRegistry::endpoint_name(cluster, address))
    };
    let key = match host.parse::<IpAddr>() {
        Ok(ip) => {
            let address = SocketAddr::new(ip, port);
            let stat = stat(stats, &address);
            targets.0.push(EndpointConfig { address, weight, stat, hostname, role });
            (ip.to_string(), port)
        }
        Err(_) if dns.names_allowed && is_dns_name(&host) => {
            let name = host.to_ascii_lowercase();
            let stat = stat(stats, &format_args!("{name}:{port}"));
            targets.1.push(DnsTarget {
                name: name.clone(),
                port,
                weight,
                stat,
                hostname: hostname.unwrap_or_else(|| name.clone()),
                role,
                refresh_min: dns.refresh_min,
                stale_max: dns.stale_max,
            });
            (name, port)
        }
        Err(error) => {
            let wanted = if dns.names_allowed {
                "an IP literal or a DNS name"
            } else {
                "an IP literal in this type of cluster"
            };
            let message = format!("is {host:?}, it must be {wanted} ({error})");
            return Err(Fault::new("endpoint.address.socket_address.address", message));
        }
    };
    if !seen.insert(key) {
        return Err(Fault::new(
            "endpoint.address",
            format!("is {host}:{port}, which the cluster has already"),
        ));
    }
    Ok(())
}

fn role(health_status: i32, priority: u32, zone: u16) -> Checked<EndpointRole> {
    let (standing, health) = match HealthStatus::try_from(health_status) {
        Ok(HealthStatus::Unknown) => (Standing::Serving, Health::Unchecked),
        Ok(HealthStatus::Healthy) => (Standing::Serving, Health::Healthy),
        Ok(HealthStatus::Unhealthy | HealthStatus::Timeout) => (Standing::Serving, Health::Unhealthy),
        Ok(HealthStatus::Draining) => (Standing::Draining, Health::Unchecked),
        Ok(HealthStatus::Degraded) | Err(_) => {
            let known = "UNKNOWN, HEALTHY, UNHEALTHY, TIMEOUT and DRAINING are";
            return Err(Fault::new("health_status", format!("is not supported: {known}")));
        }
    };
    // The bound of priorities is far below.
    Ok(EndpointRole { priority: u8::try_from(priority).unwrap_or(u8::MAX), standing, health, zone })
}

/// Letters, digits, `-` and `_` in labels of 1 to 63 bytes, 253 bytes in all (RFC 1035 §2.3.4), one trailing dot.
fn is_dns_name(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let label = |l: &str| {
        (1..=63).contains(&l.len()) && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    name.len() <= 253 && name.split('.').all(label)
}
