//! The compiler against whole sets of resources: what a small good set becomes, and by what name each bad thing is
//! refused. The set is edited message by message, so that every test says only what it is about.

mod balance;
mod clusters;
mod listeners;
mod mirror;
mod refusals;
mod routes;
mod secrets;
mod sticky;
mod subset;
mod token;
mod zones;

use control_api::envoy::cluster::Cluster;
use control_api::envoy::cluster::cluster::{ClusterDiscoveryType, DiscoveryType, LbPolicy};
use control_api::envoy::core::{
    Address, AggregatedConfigSource, ConfigSource, DataSource, SocketAddress, address, config_source,
    data_source, socket_address,
};
use control_api::envoy::endpoint::lb_endpoint::HostIdentifier;
use control_api::envoy::endpoint::{ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints};
use control_api::envoy::google;
use control_api::envoy::hcm::http_connection_manager::RouteSpecifier;
use control_api::envoy::hcm::{HttpConnectionManager, HttpFilter, http_filter};
use control_api::envoy::listener::{Filter, FilterChain, Listener, filter};
use control_api::envoy::names;
use control_api::envoy::route::route::Action as Chosen;
use control_api::envoy::route::route_action::ClusterSpecifier;
use control_api::envoy::route::route_match::PathSpecifier;
use control_api::envoy::route::{Route, RouteAction, RouteConfiguration, RouteMatch, VirtualHost};
use control_api::envoy::router::Router;
use control_api::shard::v1;
use control_api::{Resources, from_any, to_any};

use super::super::model::Snapshot;
use super::super::stats::StatRegistry;
use super::{Nack, compile};

pub(super) fn address(host: &str, port: u32) -> Option<Address> {
    let socket = SocketAddress {
        address: host.to_owned(),
        port_specifier: Some(socket_address::PortSpecifier::PortValue(port)),
        ..Default::default()
    };
    Some(Address { address: Some(address::Address::SocketAddress(socket)) })
}

pub(super) fn inline(text: &str) -> Option<DataSource> {
    Some(DataSource {
        specifier: Some(data_source::Specifier::InlineString(text.to_owned())),
        ..Default::default()
    })
}

pub(super) fn ads() -> Option<ConfigSource> {
    let ads = config_source::ConfigSourceSpecifier::Ads(AggregatedConfigSource {});
    Some(ConfigSource { config_source_specifier: Some(ads), ..Default::default() })
}

pub(super) fn seconds(seconds: i64) -> Option<google::Duration> {
    Some(google::Duration { seconds, nanos: 0 })
}

pub(super) fn millis(millis: i64) -> Option<google::Duration> {
    let nanos = i32::try_from(millis % 1000 * 1_000_000).expect("below a second");
    Some(google::Duration { seconds: millis / 1000, nanos })
}

pub(super) fn number(value: u32) -> Option<google::UInt32Value> {
    Some(google::UInt32Value { value })
}

pub(super) fn switch(value: bool) -> Option<google::BoolValue> {
    Some(google::BoolValue { value })
}

pub(super) fn endpoint(host: &str, port: u32) -> LbEndpoint {
    let endpoint = Endpoint { address: address(host, port), ..Default::default() };
    LbEndpoint { host_identifier: Some(HostIdentifier::Endpoint(endpoint)), ..Default::default() }
}

pub(super) fn assignment(name: &str, lb_endpoints: Vec<LbEndpoint>) -> ClusterLoadAssignment {
    let endpoints = vec![LocalityLbEndpoints { lb_endpoints, ..Default::default() }];
    ClusterLoadAssignment { cluster_name: name.to_owned(), endpoints, ..Default::default() }
}

pub(super) fn cluster(name: &str) -> Cluster {
    Cluster {
        name: name.to_owned(),
        lb_policy: LbPolicy::LeastRequest as i32,
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Static as i32)),
        load_assignment: Some(assignment(name, vec![endpoint("10.0.0.1", 8080)])),
        ..Default::default()
    }
}

pub(super) fn to_cluster(name: &str) -> RouteAction {
    RouteAction { cluster_specifier: Some(ClusterSpecifier::Cluster(name.to_owned())), ..Default::default() }
}

pub(super) fn route(name: &str, prefix: &str) -> Route {
    let matcher =
        RouteMatch { path_specifier: Some(PathSpecifier::Prefix(prefix.to_owned())), ..Default::default() };
    Route {
        name: name.to_owned(),
        r#match: Some(matcher),
        action: Some(Chosen::Route(to_cluster("backend"))),
        ..Default::default()
    }
}

pub(super) fn virtual_host(name: &str, domain: &str, routes: Vec<Route>) -> VirtualHost {
    VirtualHost { name: name.to_owned(), domains: vec![domain.to_owned()], routes, ..Default::default() }
}

pub(super) fn manager() -> HttpConnectionManager {
    let router = HttpFilter {
        name: names::ROUTER.to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(to_any(&Router::default()))),
        ..Default::default()
    };
    let routes = RouteConfiguration {
        name: "local".to_owned(),
        virtual_hosts: vec![virtual_host("all", "*", vec![route("root", "/")])],
        ..Default::default()
    };
    HttpConnectionManager {
        stat_prefix: "edge".to_owned(),
        http_filters: vec![router],
        use_remote_address: switch(true),
        route_specifier: Some(RouteSpecifier::RouteConfig(routes)),
        ..Default::default()
    }
}

pub(super) fn listener(name: &str, port: u32, manager: &HttpConnectionManager) -> Listener {
    let filter = Filter {
        name: names::HTTP_CONNECTION_MANAGER.to_owned(),
        config_type: Some(filter::ConfigType::TypedConfig(to_any(manager))),
    };
    Listener {
        name: name.to_owned(),
        address: address("127.0.0.1", port),
        filter_chains: vec![FilterChain { filters: vec![filter], ..Default::default() }],
        ..Default::default()
    }
}

/// One listener, one route, one cluster, one endpoint.
pub(super) fn small() -> Resources {
    Resources {
        version: "v1".to_owned(),
        listeners: vec![listener("edge", 8080, &manager())],
        clusters: vec![cluster("backend")],
        ..Default::default()
    }
}

/// Changes the connection manager inside a listener.
pub(super) fn edit_manager(listener: &mut Listener, edit: impl FnOnce(&mut HttpConnectionManager)) {
    let filter = &mut listener.filter_chains[0].filters[0];
    let Some(filter::ConfigType::TypedConfig(any)) = &mut filter.config_type else { panic!("typed") };
    let mut manager: HttpConnectionManager = from_any(any).expect("a connection manager");
    edit(&mut manager);
    *any = to_any(&manager);
}

/// Changes the inline route configuration of the small set.
pub(super) fn edit_routes(resources: &mut Resources, edit: impl FnOnce(&mut RouteConfiguration)) {
    edit_manager(&mut resources.listeners[0], |manager| {
        let Some(RouteSpecifier::RouteConfig(routes)) = &mut manager.route_specifier else {
            panic!("inline")
        };
        edit(routes);
    });
}

/// Changes the one route of the small set.
pub(super) fn edit_route(resources: &mut Resources, edit: impl FnOnce(&mut Route)) {
    edit_routes(resources, |routes| edit(&mut routes.virtual_hosts[0].routes[0]));
}

pub(super) fn edit_action(resources: &mut Resources, edit: impl FnOnce(&mut RouteAction)) {
    edit_route(resources, |route| {
        let Some(Chosen::Route(action)) = &mut route.action else { panic!("a route action") };
        edit(action);
    });
}

pub(super) fn edit_options(listener: &mut Listener, edit: impl FnOnce(&mut v1::ListenerOptions)) {
    let metadata = listener.metadata.get_or_insert_default();
    let any = metadata
        .typed_filter_metadata
        .entry(v1::KEY.to_owned())
        .or_insert_with(|| to_any(&v1::ListenerOptions::default()));
    let mut options: v1::ListenerOptions = from_any(any).expect("listener options");
    edit(&mut options);
    *any = to_any(&options);
}

pub(super) fn compiled(resources: &Resources) -> Snapshot {
    match compile(resources, &mut StatRegistry::new()) {
        Ok(snapshot) => snapshot,
        Err(nacks) => panic!("refused: {nacks:#?}"),
    }
}

/// The refusals as an operator reads them.
pub(super) fn refused(resources: &Resources) -> Vec<String> {
    match compile(resources, &mut StatRegistry::new()) {
        Ok(_) => panic!("should have been refused"),
        Err(nacks) => nacks.iter().map(Nack::to_string).collect(),
    }
}

/// The one refusal.
pub(super) fn refusal(resources: &Resources) -> String {
    let all = refused(resources);
    assert_eq!(all.len(), 1, "{all:#?}");
    all.into_iter().next().expect("one")
}
