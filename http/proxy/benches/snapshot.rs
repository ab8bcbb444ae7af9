//! Time from resources to a snapshot: 5,000 routes and 50,000 endpoints, which every core compiles for itself.
//!
//! The budget to serving is 1 s for the whole, keys included; compiling may take a third of it. `cargo bench -p
//! http-proxy --bench snapshot`; with `SHARD_BENCH_SMOKE=1` once. Exit code 1: over 1 s.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use control_api::envoy::cluster::Cluster;
use control_api::envoy::cluster::cluster::{ClusterDiscoveryType, DiscoveryType, EdsClusterConfig, LbPolicy};
use control_api::envoy::core::{
    Address, AggregatedConfigSource, ConfigSource, SocketAddress, address, config_source, socket_address,
};
use control_api::envoy::endpoint::lb_endpoint::HostIdentifier;
use control_api::envoy::endpoint::{ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints};
use control_api::envoy::google::BoolValue;
use control_api::envoy::hcm::http_connection_manager::RouteSpecifier;
use control_api::envoy::hcm::{HttpConnectionManager, HttpFilter, Rds, http_filter};
use control_api::envoy::listener::{Filter, FilterChain, Listener, filter};
use control_api::envoy::names;
use control_api::envoy::route::route::Action;
use control_api::envoy::route::route_action::ClusterSpecifier;
use control_api::envoy::route::route_match::PathSpecifier;
use control_api::envoy::route::{Route, RouteAction, RouteConfiguration, RouteMatch, VirtualHost};
use control_api::envoy::router::Router;
use control_api::{Resources, to_any};
use http_proxy::snapshot::{StatRegistry, compile};

const HOSTS: u32 = 300;
const ROUTES: u32 = 5_000;
const CLUSTERS: u32 = 500;
const ENDPOINTS: u32 = 50_000;
const BUDGET: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    // The time of one round, on a machine that may be busy with other things, judges nothing.
    let is_smoke = std::env::var_os("SHARD_BENCH_SMOKE").is_some();
    let rounds = if is_smoke { 1 } else { 10 };
    let resources = resources();
    let mut stats = StatRegistry::new();
    let mut worst = Duration::ZERO;
    for round in 0..rounds {
        let start = Instant::now();
        let snapshot = compile(black_box(&resources), &mut stats).expect("the bench's resources are valid");
        let took = start.elapsed();
        worst = worst.max(took);
        let routes: usize = snapshot.listeners.iter().map(|l| l.routes.len()).sum();
        let endpoints: usize = snapshot.clusters.iter().map(|c| c.endpoints.len()).sum();
        println!(
            "round {round}: {routes} routes, {endpoints} endpoints in {:.1} ms",
            took.as_secs_f64() * 1e3
        );
    }
    if worst > BUDGET && !is_smoke {
        println!("FAILED: over {BUDGET:?}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn ads() -> Option<ConfigSource> {
    let ads = config_source::ConfigSourceSpecifier::Ads(AggregatedConfigSource {});
    Some(ConfigSource { config_source_specifier: Some(ads), ..Default::default() })
}

fn address(host: String, port: u32) -> Option<Address> {
    let port_specifier = Some(socket_address::PortSpecifier::PortValue(port));
    let socket = SocketAddress { address: host, port_specifier, ..Default::default() };
    Some(Address { address: Some(address::Address::SocketAddress(socket)) })
}

fn resources() -> Resources {
    let cluster = |n: u32| Cluster {
        name: format!("cluster-{n}"),
        lb_policy: LbPolicy::LeastRequest as i32,
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Eds as i32)),
        eds_cluster_config: Some(EdsClusterConfig { eds_config: ads(), ..Default::default() }),
        ..Default::default()
    };
    let endpoint = |n: u32| {
        let host = format!("10.{}.{}.{}", n >> 16, (n >> 8) & 255, n & 255);
        let endpoint = Endpoint { address: address(host, 8080), ..Default::default() };
        LbEndpoint { host_identifier: Some(HostIdentifier::Endpoint(endpoint)), ..Default::default() }
    };
    let assignment = |n: u32| {
        let each = ENDPOINTS / CLUSTERS;
        let lb_endpoints = (n * each..(n + 1) * each).map(endpoint).collect();
        let endpoints = vec![LocalityLbEndpoints { lb_endpoints, ..Default::default() }];
        ClusterLoadAssignment { cluster_name: format!("cluster-{n}"), endpoints, ..Default::default() }
    };
    Resources {
        version: "bench".to_owned(),
        listeners: vec![listener()],
        routes: vec![route_configuration()],
        clusters: (0..CLUSTERS).map(cluster).collect(),
        endpoints: (0..CLUSTERS).map(assignment).collect(),
        ..Default::default()
    }
}

fn route_configuration() -> RouteConfiguration {
    let route = |n: u32| {
        let path = match n % 10 {
            0 => PathSpecifier::Path(format!("/exact-{n}")),
            _ => PathSpecifier::PathSeparatedPrefix(format!("/resource-{n}")),
        };
        let cluster = ClusterSpecifier::Cluster(format!("cluster-{}", n % CLUSTERS));
        Route {
            name: format!("route-{n}"),
            r#match: Some(RouteMatch { path_specifier: Some(path), ..Default::default() }),
            action: Some(Action::Route(RouteAction {
                cluster_specifier: Some(cluster),
                ..Default::default()
            })),
            ..Default::default()
        }
    };
    let host = |n: u32| VirtualHost {
        name: format!("host-{n}"),
        domains: vec![format!("host-{n}.example")],
        routes: (0..ROUTES).filter(|r| r % HOSTS == n).map(route).collect(),
        ..Default::default()
    };
    RouteConfiguration {
        name: "all".to_owned(),
        virtual_hosts: (0..HOSTS).map(host).collect(),
        ..Default::default()
    }
}

fn listener() -> Listener {
    let router = HttpFilter {
        name: names::ROUTER.to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(to_any(&Router::default()))),
        ..Default::default()
    };
    let manager = HttpConnectionManager {
        http_filters: vec![router],
        use_remote_address: Some(BoolValue { value: true }),
        route_specifier: Some(RouteSpecifier::Rds(Rds {
            config_source: ads(),
            route_config_name: "all".to_owned(),
        })),
        ..Default::default()
    };
    let filter = Filter {
        name: names::HTTP_CONNECTION_MANAGER.to_owned(),
        config_type: Some(filter::ConfigType::TypedConfig(to_any(&manager))),
    };
    Listener {
        name: "edge".to_owned(),
        address: address("127.0.0.1".to_owned(), 8080),
        filter_chains: vec![FilterChain { filters: vec![filter], ..Default::default() }],
        ..Default::default()
    }
}
