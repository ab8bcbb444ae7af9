//! What comes out: the resources of a config, field by field where it matters.

use control_api::envoy::cluster::{Cluster, cluster::ClusterDiscoveryType};
use control_api::envoy::core::{Metadata, data_source::Specifier};
use control_api::envoy::hcm::HttpConnectionManager;
use control_api::envoy::listener::{Listener, filter};
use control_api::envoy::route::{Route, RouteAction, route, route_action, route_match};
use control_api::envoy::tls::{DownstreamTlsContext, UpstreamTlsContext, secret};
use control_api::envoy::upstream_http::HttpProtocolOptions;
use control_api::envoy::{core, names};
use control_api::from_any;
use control_api::shard::v1::{ClusterOptions, KEY, ListenerOptions, RouteOptions};

use super::{Set, base, loaded, set, with, with_cluster, with_listener, with_routes};
use crate::load_files;

fn listener(keys: &str) -> Listener {
    loaded(with_listener(keys)).resources.listeners.remove(0)
}

fn manager(listener: &Listener) -> HttpConnectionManager {
    match &listener.filter_chains[0].filters[0].config_type {
        Some(filter::ConfigType::TypedConfig(any)) => from_any(any).expect("a connection manager"),
        other => panic!("{other:?}"),
    }
}

fn options<M: prost::Message + prost::Name + Default>(metadata: Option<&Metadata>) -> M {
    let any = metadata.and_then(|m| m.typed_filter_metadata.get(KEY)).expect("options");
    from_any(any).expect("of this type")
}

fn tls_config<M: prost::Message + prost::Name + Default>(socket: &core::TransportSocket) -> M {
    match &socket.config_type {
        Some(core::transport_socket::ConfigType::TypedConfig(any)) => from_any(any).expect("a TLS context"),
        None => panic!("no config"),
    }
}

fn routes(files: Set) -> Vec<Route> {
    let mut loaded = loaded(files);
    loaded.resources.routes.remove(0).virtual_hosts.remove(0).routes
}

fn forward(route: &Route) -> &RouteAction {
    match &route.action {
        Some(route::Action::Route(action)) => action,
        other => panic!("{other:?}"),
    }
}

fn route_options(route: &Route) -> RouteOptions {
    from_any(route.typed_per_filter_config.get(KEY).expect("options")).expect("of this type")
}

#[test]
fn a_plain_listener_leaves_every_default_to_the_proxy() {
    let listener = listener("");
    assert_eq!(listener.metadata, None);
    assert!(listener.listener_filters.is_empty() && listener.filter_chains[0].transport_socket.is_none());
    let manager = manager(&listener);
    assert_eq!(manager.common_http_protocol_options, None);
    assert_eq!(manager.http2_protocol_options, None);
    assert_eq!(manager.use_remote_address.map(|b| b.value), Some(true));
    assert!(manager.access_log.is_empty() && manager.local_reply_config.is_none());
    assert_eq!(manager.http_filters.last().map(|f| f.name.as_str()), Some(names::ROUTER));
}

#[test]
fn limits_reach_the_fields_of_the_contract() {
    let listener = listener(
        "limits: { connections_max: 7, header_bytes_max: 64KiB, header_count_max: 50, request_line_bytes_max: 4KiB, requests_per_connection_max: 9, connection_age_max: 1h, connection_age_jitter: 0.5 }\n\
         timeouts: { handshake: 1s, header: 2s, idle: 3s, body_idle: 1500ms }\n\
         h2: { streams_max: 11, stream_window: 128KiB, connection_window: 2MiB, frame_bytes_max: 32KiB, resets_max: 12, control_frames_max: 13, small_data_frames_max: 14 }\n\
         steering: least_loaded\nmerge_slashes: true\nescaped_slashes: redirect\n",
    );
    let options: ListenerOptions = options(listener.metadata.as_ref());
    assert_eq!(
        (options.connections_max, options.request_line_bytes_max, options.connection_age_jitter),
        (Some(7), Some(4_096), Some(0.5))
    );
    assert_eq!(
        (
            options.h2_resets_max,
            options.h2_control_frames_max,
            options.h2_small_data_frames_max,
            options.h2_frame_bytes_max
        ),
        (Some(12), Some(13), Some(14), Some(32_768))
    );
    assert_eq!(options.steering, 2);
    let seconds = |d: Option<control_api::envoy::google::Duration>| d.map(|d| (d.seconds, d.nanos));
    assert_eq!(seconds(listener.filter_chains[0].transport_socket_connect_timeout), Some((1, 0)));
    let manager = manager(&listener);
    let common = manager.common_http_protocol_options.expect("set");
    assert_eq!(
        (seconds(common.idle_timeout), seconds(common.max_connection_duration)),
        (Some((3, 0)), Some((3_600, 0)))
    );
    assert_eq!(
        (common.max_headers_count.map(|c| c.value), common.max_requests_per_connection.map(|c| c.value)),
        (Some(50), Some(9))
    );
    assert_eq!(
        (seconds(manager.request_headers_timeout), seconds(manager.stream_idle_timeout)),
        (Some((2, 0)), Some((1, 500_000_000)))
    );
    assert_eq!(manager.max_request_headers_kb.map(|c| c.value), Some(64));
    let h2 = manager.http2_protocol_options.expect("set");
    assert_eq!((h2.max_concurrent_streams.map(|c| c.value), h2.allow_connect), (Some(11), false));
    assert_eq!(
        (h2.initial_stream_window_size.map(|c| c.value), h2.initial_connection_window_size.map(|c| c.value)),
        (Some(131_072), Some(2 << 20))
    );
    assert!(manager.merge_slashes);
    assert_eq!(manager.path_with_escaped_slashes_action, 3);
}

#[test]
fn upgrades_bring_extended_connect_unless_told_otherwise() {
    for (keys, is_allowed) in
        [("upgrades: [websocket]", true), ("upgrades: [websocket]\nh2: { extended_connect: false }", false)]
    {
        let allowed = manager(&listener(keys)).http2_protocol_options.is_some_and(|h| h.allow_connect);
        assert_eq!(allowed, is_allowed, "{keys}");
    }
}

#[test]
fn the_client_address_is_by_peer_by_depth_or_by_range() {
    for (keys, is_remote, hops, cidrs) in [
        ("", true, 0, 0),
        ("client_address: { hops: 2 }", true, 2, 0),
        ("client_address: { trusted: [10.0.0.0/8, \"::1\", 192.0.2.7] }", false, 0, 1),
    ] {
        let manager = manager(&listener(keys));
        assert_eq!(manager.use_remote_address.is_some_and(|b| b.value), is_remote, "{keys}");
        assert_eq!(manager.xff_num_trusted_hops, hops, "{keys}");
        assert_eq!(manager.original_ip_detection_extensions.len(), cidrs, "{keys}");
    }
    let keys = "client_address: { trusted: [10.0.0.0/8, \"::1\", 192.0.2.7] }";
    let extension = manager(&listener(keys)).original_ip_detection_extensions.remove(0);
    let config: control_api::envoy::xff::XffConfig =
        from_any(&extension.typed_config.expect("set")).expect("xff");
    let ranges: Vec<(String, Option<u32>)> = config
        .xff_trusted_cidrs
        .expect("set")
        .cidrs
        .into_iter()
        .map(|c| (c.address_prefix, c.prefix_len.map(|l| l.value)))
        .collect();
    let wanted = [("10.0.0.0", 8), ("::1", 128), ("192.0.2.7", 32)];
    assert_eq!(ranges, wanted.map(|(address, length)| (address.to_owned(), Some(length))));
    assert_eq!(config.skip_xff_append.map(|b| b.value), Some(false));
}

#[test]
fn tls_material_travels_inline_in_secrets() {
    let keys = "tls: { certificates: [{ cert: tls/www.pem, key: tls/www.key }], client_ca: tls/www.pem, client_certificate: required, min_version: TLSv1.3, ticket_keys: [tls/ticket.bin], unknown_name: refuse }";
    let mut files = with_listener(keys);
    files.insert("tls/ticket.bin".to_owned(), vec![0x5a; 80]);
    let resources = loaded(files).resources;
    let names: Vec<&str> = resources.secrets.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["certificate:tls/www.pem+tls/www.key", "ca:tls/www.pem", "tickets:tls/ticket.bin"]);
    match resources.secrets.get(names[0]).and_then(|s| s.r#type.as_ref()) {
        Some(secret::Type::TlsCertificate(certificate)) => {
            let key = certificate.private_key.as_ref().and_then(|k| k.specifier.as_ref());
            assert!(
                matches!(key, Some(Specifier::InlineBytes(bytes)) if bytes == super::PRIVATE_KEY.as_bytes())
            );
        }
        other => panic!("{other:?}"),
    }
    let listener = &resources.listeners[0];
    let context: DownstreamTlsContext =
        tls_config(listener.filter_chains[0].transport_socket.as_ref().expect("TLS"));
    assert_eq!(context.require_client_certificate.map(|b| b.value), Some(true));
    let common = context.common_tls_context.expect("set");
    assert_eq!(common.alpn_protocols, ["h2", "http/1.1"]);
    assert_eq!(common.tls_params.map(|p| p.tls_minimum_protocol_version), Some(4));
    let options: ListenerOptions = options(listener.metadata.as_ref());
    assert_eq!(options.unknown_sni, 1);
    assert!(!format!("{resources:?}").contains("AAAA"), "key material in debug output");
}

#[test]
fn upstream_tls_always_checks_a_name() {
    let context = |keys: &str| -> UpstreamTlsContext {
        let cluster = loaded(with_cluster(keys)).resources.clusters.remove(0);
        tls_config(cluster.transport_socket.as_ref().expect("TLS"))
    };
    let by_name = context("tls: { server_name: A.example, ca: tls/www.pem }");
    assert_eq!(
        (by_name.sni.as_str(), by_name.auto_host_sni, by_name.auto_sni_san_validation),
        ("a.example", false, true)
    );
    let by_san = context("tls: { server_name: a.example, names: [b.example] }");
    assert!(!by_san.auto_sni_san_validation);
    let mut files = with_cluster("tls: {}");
    files.extend(set(&[
        ("services/shop/service.yaml", "endpoints: [\"Orders.internal:443\"]\n"),
        ("platform/d.yaml", "defaults: { cluster: { tls: {} } }\n"),
    ]));
    let cluster = loaded(files).resources.clusters.remove(0);
    let by_host: UpstreamTlsContext = tls_config(cluster.transport_socket.as_ref().expect("TLS"));
    assert!(by_host.auto_host_sni && by_host.auto_sni_san_validation && by_host.sni.is_empty());
}

#[test]
fn clusters_are_static_or_by_name() {
    let cluster = |text: &str| -> Cluster {
        loaded(with(&[("services/shop/service.yaml", text)])).resources.clusters.remove(0)
    };
    let is_dns = |c: &Cluster| matches!(c.cluster_discovery_type, Some(ClusterDiscoveryType::Type(1)));
    let fixed = cluster("endpoints: [\"127.0.0.1:1\", { address: \"[::1]:2\", weight: 3 }]\n");
    assert_eq!((fixed.name.as_str(), is_dns(&fixed), fixed.lb_policy), ("shop", false, 1));
    assert_eq!(fixed.typed_extension_protocol_options.len(), 0);
    let weights: Vec<Option<u32>> = fixed.load_assignment.expect("set").endpoints[0]
        .lb_endpoints
        .iter()
        .map(|e| e.load_balancing_weight.map(|w| w.value))
        .collect();
    assert_eq!(weights, [None, Some(3)]);
    let named = cluster(
        "clusters: { a: { endpoints: [\"x.internal:1\"], protocol: http2, dns: { stale_max: 5m }, pool: { idle_max: 3, idle_timeout: 9s, h2_ping_interval: 20s } } }\n",
    );
    assert!(is_dns(&named));
    let options: ClusterOptions = options(named.metadata.as_ref());
    assert_eq!((options.idle_max, options.dns_stale_max.map(|d| d.seconds)), (Some(3), Some(300)));
    let any = named.typed_extension_protocol_options.get(names::UPSTREAM_HTTP).expect("h2");
    let protocol: HttpProtocolOptions = from_any(any).expect("protocol options");
    assert_eq!(
        protocol.common_http_protocol_options.and_then(|c| c.idle_timeout).map(|d| d.seconds),
        Some(9)
    );
}

#[test]
fn routes_come_in_the_order_of_the_contract() {
    let files = with_routes(
        "- { name: root, match: { prefix: / } }\n- { name: long, match: { prefix: /a/b } }\n- { name: pattern, match: { regex: /x.* } }\n- { name: exact, match: { path: /a } }\n- { name: short-get, match: { prefix: /a, methods: [GET, PUT] } }\n- { name: short, match: { prefix: /a } }\n- { name: slash, match: { prefix: /a/ } }",
    );
    let routes = routes(files);
    let names: Vec<&str> = routes.iter().map(|r| r.name.trim_start_matches("shop/")).collect();
    assert_eq!(names, ["exact", "pattern", "long", "slash", "short-get", "short", "root"]);
    let path = |at: usize| routes[at].r#match.as_ref().and_then(|m| m.path_specifier.clone());
    assert_eq!(path(2), Some(route_match::PathSpecifier::PathSeparatedPrefix("/a/b".into())));
    assert_eq!(path(3), Some(route_match::PathSpecifier::Prefix("/a/".into())));
    assert_eq!(path(6), Some(route_match::PathSpecifier::Prefix("/".into())));
}

#[test]
fn policies_come_from_route_service_and_platform_in_this_order() {
    let platform = format!(
        "{}defaults:\n  route:\n    timeout: 9s\n    response_headers: {{ set: {{ x-p: platform, x-s: platform, x-r: platform }} }}\n",
        super::WEB
    );
    let service = "body_max: 1KiB\nresponse_headers: { set: { x-s: service, x-r: service } }\nendpoints: [\"127.0.0.1:1\"]\nroutes:\n  - match: { path: /a }\n    response_headers: { set: { x-r: \"100%\" } }\n  - match: { path: /b }\n    streaming: true\n";
    let routes = routes(with(&[("platform/web.yaml", &platform), ("services/shop/service.yaml", service)]));
    let headers: Vec<(String, String)> = routes[0]
        .response_headers_to_add
        .iter()
        .filter_map(|h| h.header.clone())
        .map(|h| (h.key, h.value))
        .collect();
    let wanted = [("x-r", "100%%"), ("x-s", "service"), ("x-p", "platform")];
    assert_eq!(headers, wanted.map(|(k, v)| (k.to_owned(), v.to_owned())), "a per cent sign is no operator");
    assert_eq!(forward(&routes[0]).timeout.map(|d| d.seconds), Some(9));
    assert_eq!(route_options(&routes[0]).body_bytes_max, Some(1_024));
    assert_eq!(
        forward(&routes[1]).timeout.map(|d| d.seconds),
        Some(0),
        "the default's timeout does not cut a stream"
    );
    assert_eq!(forward(&routes[1]).idle_timeout.map(|d| d.seconds), Some(3_600));
    assert_eq!(
        route_options(&routes[1]).body_bytes_max,
        Some(1_024),
        "an explicit limit holds for streams too"
    );
}

#[test]
fn bodies_are_bounded_unless_the_route_streams() {
    let bounded = routes(base());
    assert_eq!(
        route_options(&bounded[0]).body_bytes_max,
        Some(control_api::defaults::route::BODY_BYTES.default)
    );
    let streaming = routes(with_routes("- streaming: true"));
    assert_eq!(route_options(&streaming[0]).body_bytes_max, Some(0));
}

#[test]
fn splits_rewrites_and_dates() {
    let text = "clusters:\n  a: { endpoints: [\"x.internal:1\"] }\n  b: { endpoints: [\"y.internal:1\"] }\nroutes:\n  - split: [{ cluster: a, weight: 9 }, { cluster: b, weight: 1 }]\n    split_by: { cookie: id }\n    rewrite: { path: /100%25, host_from_endpoint: true }\n    deprecation: 2026-01-01\n    sunset: 2024-02-29\n";
    let routes = routes(with(&[("services/shop/service.yaml", text)]));
    let action = forward(&routes[0]);
    match &action.cluster_specifier {
        Some(route_action::ClusterSpecifier::WeightedClusters(split)) => {
            let sides: Vec<(&str, Option<u32>)> =
                split.clusters.iter().map(|c| (c.name.as_str(), c.weight.map(|w| w.value))).collect();
            assert_eq!(sides, [("shop/a", Some(9)), ("shop/b", Some(1))]);
            assert!(split.random_value_specifier.is_some());
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(action.hash_policy.len(), 1);
    assert_eq!(action.path_rewrite, "/100%%25");
    assert!(matches!(
        action.host_rewrite_specifier,
        Some(route_action::HostRewriteSpecifier::AutoHostRewrite(_))
    ));
    let options = route_options(&routes[0]);
    assert_eq!(
        (options.deprecation.as_str(), options.sunset.as_str()),
        ("@1767225600", "Thu, 29 Feb 2024 00:00:00 GMT")
    );
}

#[test]
fn hosts_with_the_same_services_share_a_virtual_host() {
    let other = "hosts: [a.example, c.example]\nendpoints: [\"127.0.0.1:2\"]\nroutes: [{ match: { prefix: /other } }]\n";
    let shop = "hosts: [a.example, b.example, \"*.d.example\"]\nendpoints: [\"127.0.0.1:1\"]\n";
    let loaded =
        loaded(with(&[("services/other/service.yaml", other), ("services/shop/service.yaml", shop)]));
    let hosts: Vec<(Vec<String>, Vec<String>)> = loaded.resources.routes[0]
        .virtual_hosts
        .iter()
        .map(|host| (host.domains.clone(), host.routes.iter().map(|r| r.name.clone()).collect()))
        .collect();
    let owned = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        hosts,
        [
            (owned(&["c.example"]), owned(&["other/route-1"])),
            (owned(&["a.example"]), owned(&["other/route-1", "shop/default"])),
            (owned(&["*.d.example", "b.example"]), owned(&["shop/default"])),
        ]
    );
    let place = loaded.sources.get("cluster:shop").expect("a source");
    assert_eq!((place.file.as_str(), place.line), ("services/shop/service.yaml", 2));
}

#[test]
fn one_file_says_the_same_as_directories() {
    let platform: String = super::WEB.to_owned();
    let service: String = super::SHOP.lines().map(|line| format!("    {line}\n")).collect();
    let single = load_files(set(&[("shard.yaml", &format!("{platform}services:\n  shop:\n{service}"))]))
        .expect("no errors");
    let split = loaded(base());
    let (mut one, mut other) = (single.resources, split.resources);
    one.version.clear();
    other.version.clear();
    assert_eq!(one, other);
    assert_eq!(single.sources.keys().collect::<Vec<_>>(), split.sources.keys().collect::<Vec<_>>());
}

#[test]
fn doubtful_configs_warn_and_load() {
    let unused = "hosts: [shop.example]\nclusters:\n  a: { endpoints: [\"127.0.0.1:1\"] }\n  b: { endpoints: [\"127.0.0.1:1\"] }\nroutes: [{ cluster: a }]\n";
    let loaded = loaded(with(&[
        ("services/shop/service.yaml", &format!("listeners: [web]\n{unused}")),
        ("platform/idle.yaml", "listeners: { idle: { address: \"127.0.0.1:2\" } }\n"),
    ]));
    let warnings: Vec<&str> = loaded.warnings.iter().map(|w| w.message.as_str()).collect();
    assert_eq!(warnings, ["no service is on the listener `idle`", "no route uses the cluster `shop/b`"]);
    assert!(!loaded.resources.clusters.is_empty());
}
