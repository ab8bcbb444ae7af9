//! Clusters: where endpoints come from, pools and protocols.

use std::time::Duration;

use control_api::defaults::cluster as limits;
use control_api::envoy::cluster::Cluster;
use control_api::envoy::cluster::cluster::{ClusterDiscoveryType, DiscoveryType, EdsClusterConfig, LbPolicy};
use control_api::envoy::core::{
    Http1ProtocolOptions, Http2ProtocolOptions, HttpProtocolOptions as Common, KeepaliveSettings, Metadata,
};
use control_api::envoy::endpoint::lb_endpoint::HostIdentifier;
use control_api::envoy::names;
use control_api::envoy::upstream_http::HttpProtocolOptions;
use control_api::envoy::upstream_http::http_protocol_options::explicit_http_config::ProtocolConfig;
use control_api::envoy::upstream_http::http_protocol_options::{ExplicitHttpConfig, UpstreamProtocolOptions};
use control_api::shard::v1;
use control_api::{Resources, to_any};

use super::{ads, assignment, cluster, compiled, endpoint, number, refusal, refused, seconds, small};
use crate::snapshot::model::UpstreamProtocol;
use crate::snapshot::{ClusterConfig, EndpointConfig, StatRegistry, compile};

fn with(edit: impl FnOnce(&mut Cluster)) -> Resources {
    let mut resources = small();
    edit(&mut resources.clusters[0]);
    resources
}

fn first(resources: &Resources) -> ClusterConfig {
    compiled(resources).clusters.into_iter().next().expect("one")
}

fn dns(edit: impl FnOnce(&mut Cluster)) -> Resources {
    with(|c| {
        c.cluster_discovery_type = Some(ClusterDiscoveryType::Type(DiscoveryType::StrictDns as i32));
        edit(c);
    })
}

fn eds(service_name: &str) -> Resources {
    with(|c| {
        c.cluster_discovery_type = Some(ClusterDiscoveryType::Type(DiscoveryType::Eds as i32));
        c.eds_cluster_config =
            Some(EdsClusterConfig { eds_config: ads(), service_name: service_name.to_owned() });
        c.load_assignment = None;
    })
}

#[test]
fn unset_means_the_default_of_the_contract() {
    let cluster = first(&small());
    assert_eq!(cluster.protocol, UpstreamProtocol::Http1);
    assert_eq!(cluster.connect_timeout, limits::CONNECT_TIMEOUT.default);
    assert_eq!(cluster.pool.idle_timeout, limits::IDLE_TIMEOUT.default);
    assert_eq!(cluster.pool.idle_max, usize::try_from(limits::IDLE_CONNECTIONS.default).expect("fits"));
    assert_eq!(cluster.pool.connections_max, usize::try_from(limits::CONNECTIONS.default).expect("fits"));
    assert_eq!(
        cluster.pool.h2_connections_max,
        usize::try_from(limits::H2_CONNECTIONS.default).expect("fits")
    );
    assert_eq!(cluster.pool.h2_streams_max, limits::H2_STREAMS.default);
    assert_eq!((cluster.pool.requests_max, cluster.pool.h2_ping_interval), (None, None));
    let endpoint = &cluster.endpoints[0];
    assert_eq!(
        (endpoint.address.to_string().as_str(), endpoint.weight, &endpoint.hostname),
        ("10.0.0.1:8080", 1, &None)
    );
}

#[test]
fn a_ring_over_names_is_made_once_for_all_cores() {
    let named = |policy: LbPolicy| {
        move |c: &mut Cluster| {
            c.lb_policy = policy.into();
            let endpoints = vec![endpoint("192.0.2.1", 80), endpoint("backend.example", 80)];
            c.load_assignment = Some(assignment("x", endpoints));
        }
    };
    let tables = |resources: &Resources| {
        let (cluster, mut registry) = (first(resources), StatRegistry::new());
        registry.set_named(cluster.named().map(|named| (cluster.name.clone(), named)));
        let found = ["192.0.2.1:80", "192.0.2.2:80"].map(|address| {
            let address = address.parse().expect("an address");
            EndpointConfig { address, ..cluster.endpoints[0].clone() }
        });
        let made = registry.tables_with(&cluster.name, &found).len();
        assert_eq!(registry.tables_with("another", &found).len(), 0);
        registry.set_named([]);
        assert_eq!(registry.tables_with(&cluster.name, &found).len(), 0, "the config has it no more");
        made
    };
    assert_eq!(tables(&dns(named(LbPolicy::RingHash))), 1);
    assert_eq!(tables(&dns(named(LbPolicy::LeastRequest))), 0, "there is no table");
    let fixed = |c: &mut Cluster| c.lb_policy = LbPolicy::RingHash.into();
    assert_eq!(tables(&with(fixed)), 0, "the snapshot's plan has it");
}

#[test]
fn names_are_resolved_only_where_the_type_says_so() {
    let named = |c: &mut Cluster| {
        let mut second = endpoint("Backend.Example.", 81);
        second.load_balancing_weight = number(7);
        c.load_assignment = Some(assignment("x", vec![endpoint("192.0.2.1", 80), second]));
    };
    let cluster = first(&dns(named));
    assert_eq!(cluster.endpoints.len(), 1);
    let target = &cluster.dns[0];
    assert_eq!((target.name.as_str(), target.port, target.weight), ("backend.example.", 81, 7));
    assert_eq!(target.refresh_min, limits::DNS_REFRESH_MIN.default);
    assert_eq!(target.stale_max, limits::DNS_STALE_MAX.default);
    let refusal = refusal(&with(named));
    assert!(
        refusal.contains("address.socket_address.address is \"Backend.Example.\", it must be an IP literal"),
        "{refusal}"
    );
    for bad in ["a b", "a..b", "", &"x".repeat(70), "-", "a/b"] {
        let accepted = compile(
            &dns(|c| c.load_assignment = Some(assignment("x", vec![endpoint(bad, 80)]))),
            &mut StatRegistry::new(),
        )
        .is_ok();
        assert_eq!(accepted, bad == "-", "{bad:?}");
    }
}

#[test]
fn eds_clusters_take_their_assignment_or_start_empty() {
    let mut resources = eds("");
    assert!(first(&resources).endpoints.is_empty(), "none yet");
    resources.endpoints = vec![
        assignment("backend", vec![endpoint("10.0.0.7", 80)]),
        assignment("service", vec![endpoint("10.0.0.8", 80)]),
    ];
    assert_eq!(first(&resources).endpoints[0].address.to_string(), "10.0.0.7:80");
    let mut by_service = eds("service");
    by_service.endpoints.clone_from(&resources.endpoints);
    assert_eq!(first(&by_service).endpoints[0].address.to_string(), "10.0.0.8:80");
    resources.endpoints[0].endpoints[0].lb_endpoints.push(endpoint("not-an-ip", 80));
    let refusal = refusal(&resources);
    let expected = "ClusterLoadAssignment \"backend\": endpoints[0].lb_endpoints[1].endpoint.address.socket_address.address is \"not-an-ip\"";
    assert!(refusal.starts_with(expected), "{refusal}");
}

#[test]
fn kinds_of_cluster_and_their_parts_go_together() {
    for (resources, expected) in [
        (with(|c| c.load_assignment = None), "load_assignment is required"),
        (
            with(|c| c.eds_cluster_config = Some(EdsClusterConfig::default())),
            "eds_cluster_config is not supported without type EDS",
        ),
        (with(|c| c.cluster_discovery_type = Some(ClusterDiscoveryType::Type(4))), "type is not supported"),
        (with(|c| c.cluster_discovery_type = Some(ClusterDiscoveryType::Type(99))), "type has the value 99"),
        (
            with(|c| {
                c.cluster_discovery_type = Some(ClusterDiscoveryType::Type(DiscoveryType::Eds as i32));
                c.eds_cluster_config = Some(EdsClusterConfig { eds_config: ads(), ..Default::default() });
            }),
            "load_assignment is not supported with type EDS",
        ),
    ] {
        let refusal = refusal(&resources);
        assert!(refusal.contains(expected), "{refusal}");
    }
}

#[test]
fn endpoints_are_checked_one_by_one() {
    let two =
        |second| with(|c| c.load_assignment = Some(assignment("x", vec![endpoint("10.0.0.1", 80), second])));
    let weighted = |weight| {
        let mut made = endpoint("10.0.0.2", 80);
        made.load_balancing_weight = number(weight);
        made
    };
    let unhealthy = |status| {
        let mut made = endpoint("10.0.0.2", 80);
        made.health_status = status;
        made
    };
    for (resources, expected) in [
        (two(endpoint("10.0.0.1", 80)), "endpoint.address is 10.0.0.1:80, which the cluster has already"),
        (two(endpoint("10.0.0.2", 0)), "port_value must not be 0"),
        (two(endpoint("10.0.0.2", 65_536)), "port_value is 65536"),
        (two(weighted(0)), "load_balancing_weight is 0"),
        (two(weighted(1_000_001)), "load_balancing_weight is 1000001"),
        (two(unhealthy(5)), "health_status is not supported"),
        (two(unhealthy(6)), "health_status is not supported"),
    ] {
        let refusal = refusal(&resources);
        assert!(
            refusal.contains("load_assignment.endpoints[0].lb_endpoints[1]") && refusal.contains(expected),
            "{refusal}"
        );
    }
    let mut named = endpoint("10.0.0.2", 80);
    if let Some(HostIdentifier::Endpoint(inner)) = &mut named.host_identifier {
        inner.hostname = "two.example".to_owned();
    }
    named.health_status = 1;
    assert_eq!(first(&two(named)).endpoints[1].hostname.as_deref(), Some("two.example"));
    let many = (0..=limits::ENDPOINTS_MAX)
        .map(|n| endpoint("10.0.0.1", u32::try_from(n).expect("small") + 1))
        .collect();
    let refusal = refusal(&with(|c| c.load_assignment = Some(assignment("x", many))));
    assert!(refusal.contains("has 10001 endpoints, at most 10000"), "{refusal}");
}

fn protocol(config: ProtocolConfig, common: Option<Common>) -> impl FnOnce(&mut Cluster) {
    let options = HttpProtocolOptions {
        common_http_protocol_options: common,
        upstream_protocol_options: Some(UpstreamProtocolOptions::ExplicitHttpConfig(ExplicitHttpConfig {
            protocol_config: Some(config),
        })),
        ..Default::default()
    };
    move |c| {
        c.typed_extension_protocol_options.insert(names::UPSTREAM_HTTP.to_owned(), to_any(&options));
    }
}

#[test]
fn protocols_and_pools_arrive() {
    let h2 = Http2ProtocolOptions {
        max_concurrent_streams: number(9),
        connection_keepalive: Some(KeepaliveSettings {
            interval: seconds(5),
            timeout: seconds(2),
            ..Default::default()
        }),
        ..Default::default()
    };
    let common =
        Common { idle_timeout: seconds(11), max_requests_per_connection: number(1000), ..Default::default() };
    let mut resources = with(protocol(ProtocolConfig::Http2ProtocolOptions(h2), Some(common)));
    let options = v1::ClusterOptions {
        idle_max: Some(0),
        connections_max: Some(3),
        h2_connections_max: Some(2),
        ..Default::default()
    };
    resources.clusters[0].metadata = Some(Metadata {
        typed_filter_metadata: [(v1::KEY.to_owned(), to_any(&options))].into(),
        ..Default::default()
    });
    let cluster = first(&resources);
    let pool = &cluster.pool;
    assert_eq!(cluster.protocol, UpstreamProtocol::Http2);
    assert_eq!(
        (pool.idle_max, pool.connections_max, pool.h2_connections_max, pool.h2_streams_max),
        (0, 3, 2, 9)
    );
    assert_eq!((pool.idle_timeout, pool.requests_max), (Duration::from_secs(11), Some(1000)));
    assert_eq!(
        (pool.h2_ping_interval, pool.h2_ping_timeout),
        (Some(Duration::from_secs(5)), Duration::from_secs(2))
    );
}

#[test]
fn protocols_are_refused_by_field() {
    let h1 = Http1ProtocolOptions::default();
    assert_eq!(
        first(&with(protocol(ProtocolConfig::HttpProtocolOptions(h1), None))).protocol,
        UpstreamProtocol::Http1
    );
    for (config, expected) in [
        (
            ProtocolConfig::HttpProtocolOptions(Http1ProtocolOptions {
                accept_http_10: true,
                ..Default::default()
            }),
            "explicit_http_config.http_protocol_options.accept_http_10 is not supported",
        ),
        (
            ProtocolConfig::Http2ProtocolOptions(Http2ProtocolOptions {
                allow_connect: true,
                ..Default::default()
            }),
            "explicit_http_config.http2_protocol_options.allow_connect is not supported",
        ),
        (
            ProtocolConfig::Http3ProtocolOptions(Default::default()),
            "explicit_http_config.http3_protocol_options is not supported",
        ),
        (
            ProtocolConfig::Http2ProtocolOptions(Http2ProtocolOptions {
                max_concurrent_streams: number(0),
                ..Default::default()
            }),
            "explicit_http_config.http2_protocol_options.max_concurrent_streams is 0",
        ),
    ] {
        let refusal = refusal(&with(protocol(config, None)));
        assert!(refusal.contains(expected), "{refusal}");
    }
}

#[test]
fn options_of_the_cluster_are_checked() {
    let mut resources = small();
    let options = v1::ClusterOptions { h2_connections_max: Some(65), ..Default::default() };
    resources.clusters[0].metadata = Some(Metadata {
        typed_filter_metadata: [(v1::KEY.to_owned(), to_any(&options))].into(),
        ..Default::default()
    });
    assert!(refusal(&resources).contains("typed_filter_metadata[\"shard.v1\"].h2_connections_max is 65"));
}

#[test]
fn a_cluster_at_fault_is_told_beside_a_listener_at_fault() {
    let mut resources = small();
    resources.clusters.push(cluster("second"));
    resources.clusters[1].connect_timeout = seconds(31);
    resources.listeners[0].enable_mptcp = true;
    let all = refused(&resources);
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all[0].starts_with("Cluster \"second\": connect_timeout is 31s"), "{all:?}");
}
