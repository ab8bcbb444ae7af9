//! C42: what shard does not support is refused by name, and one bad resource does not hide or blame another.

use control_api::Resources;
use control_api::envoy::core::{
    HeaderValue, HeaderValueOption, HttpProtocolOptions, Metadata, TypedExtensionConfig,
};
use control_api::envoy::hcm::http_connection_manager::{ForwardClientCertDetails, UpgradeConfig};
use control_api::envoy::listener as ls;
use control_api::envoy::route as rt;
use control_api::envoy::route::route::Action as Chosen;
use control_api::envoy::route::route_match::PathSpecifier;

use super::{
    cluster, compiled, edit_action, edit_manager, edit_route, edit_routes, listener, manager, number,
    refusal, refused, seconds, small, switch,
};
use crate::snapshot::{StatFamily, StatRegistry, compile};

type Edit = fn(&mut Resources);

const MANAGER: &str = "Listener \"edge\": filter_chains[0].filters[0].typed_config";
const HOST: &str =
    "Listener \"edge\": filter_chains[0].filters[0].typed_config.route_config.virtual_hosts[0]";

fn check(table: &[(Edit, String)]) {
    for (edit, expected) in table {
        let mut resources = small();
        edit(&mut resources);
        assert_eq!(refusal(&resources), format!("{expected} is not supported"));
    }
}

#[test]
fn listener_fields_that_shard_lacks() {
    let at = |field: &str| format!("Listener \"edge\": {field}");
    check(&[
        (|r| r.listeners[0].stat_prefix = "x".into(), at("stat_prefix")),
        (|r| r.listeners[0].drain_type = 1, at("drain_type")),
        (|r| r.listeners[0].use_original_dst = switch(false), at("use_original_dst")),
        (|r| r.listeners[0].freebind = switch(true), at("freebind")),
        (|r| r.listeners[0].transparent = switch(true), at("transparent")),
        (|r| r.listeners[0].tcp_backlog_size = number(1), at("tcp_backlog_size")),
        (
            |r| r.listeners[0].per_connection_buffer_limit_bytes = number(1),
            at("per_connection_buffer_limit_bytes"),
        ),
        (
            |r| r.listeners[0].default_filter_chain = Some(ls::FilterChain::default()),
            at("default_filter_chain"),
        ),
        (|r| r.listeners[0].additional_addresses = vec![Default::default()], at("additional_addresses")),
        (|r| r.listeners[0].socket_options = vec![Default::default()], at("socket_options")),
        (|r| r.listeners[0].udp_listener_config = Some(Default::default()), at("udp_listener_config")),
        (|r| r.listeners[0].enable_mptcp = true, at("enable_mptcp")),
        (
            |r| r.listeners[0].continue_on_listener_filters_timeout = true,
            at("continue_on_listener_filters_timeout"),
        ),
        (
            |r| r.listeners[0].filter_chains[0].filter_chain_match = Some(ls::FilterChainMatch::default()),
            at("filter_chains[0].filter_chain_match"),
        ),
        (
            |r| {
                let metadata = Metadata {
                    filter_metadata: [("x".to_owned(), Default::default())].into(),
                    ..Default::default()
                };
                r.listeners[0].metadata = Some(metadata);
            },
            at("metadata.filter_metadata"),
        ),
    ]);
}

#[test]
fn connection_manager_fields_that_shard_lacks() {
    let at = |field: &str| format!("{MANAGER}.{field}");
    check(&[
        (|r| edit_manager(&mut r.listeners[0], |m| m.server_name = "x".into()), at("server_name")),
        (|r| edit_manager(&mut r.listeners[0], |m| m.codec_type = 1), at("codec_type")),
        (|r| edit_manager(&mut r.listeners[0], |m| m.add_user_agent = switch(true)), at("add_user_agent")),
        (|r| edit_manager(&mut r.listeners[0], |m| m.tracing = Some(Default::default())), at("tracing")),
        (|r| edit_manager(&mut r.listeners[0], |m| m.request_timeout = seconds(1)), at("request_timeout")),
        (|r| edit_manager(&mut r.listeners[0], |m| m.drain_timeout = seconds(1)), at("drain_timeout")),
        (|r| edit_manager(&mut r.listeners[0], |m| m.via = "x".into()), at("via")),
        (|r| edit_manager(&mut r.listeners[0], |m| m.skip_xff_append = true), at("skip_xff_append")),
        (
            |r| edit_manager(&mut r.listeners[0], |m| m.strip_matching_host_port = true),
            at("strip_matching_host_port"),
        ),
        (
            |r| edit_manager(&mut r.listeners[0], |m| m.http3_protocol_options = Some(Default::default())),
            at("http3_protocol_options"),
        ),
        (
            |r| {
                edit_manager(&mut r.listeners[0], |m| {
                    let common =
                        HttpProtocolOptions { max_stream_duration: seconds(1), ..Default::default() };
                    m.common_http_protocol_options = Some(common);
                })
            },
            at("common_http_protocol_options.max_stream_duration"),
        ),
        (
            |r| {
                edit_manager(&mut r.listeners[0], |m| {
                    m.http2_protocol_options.get_or_insert_default().allow_metadata = true
                })
            },
            at("http2_protocol_options.allow_metadata"),
        ),
        (
            |r| {
                edit_manager(&mut r.listeners[0], |m| {
                    m.http_protocol_options.get_or_insert_default().accept_http_10 = true
                })
            },
            at("http_protocol_options.accept_http_10"),
        ),
        (
            |r| {
                edit_manager(&mut r.listeners[0], |m| {
                    let filters = vec![m.http_filters[0].clone()];
                    m.upgrade_configs = vec![UpgradeConfig {
                        upgrade_type: "websocket".into(),
                        filters,
                        ..Default::default()
                    }];
                })
            },
            at("upgrade_configs[0].filters"),
        ),
        (
            |r| edit_manager(&mut r.listeners[0], |m| m.http_filters[0].is_optional = true),
            at("http_filters[0].is_optional"),
        ),
    ]);
}

#[test]
fn route_fields_that_shard_lacks() {
    let of_config = |field: &str| format!("{MANAGER}.route_config.{field}");
    let of_host = |field: &str| format!("{HOST}.{field}");
    let of_route = |field: &str| format!("{HOST}.routes[0].{field}");
    check(&[
        (
            |r| edit_routes(r, |c| c.internal_only_headers = vec!["x".into()]),
            of_config("internal_only_headers"),
        ),
        (|r| edit_routes(r, |c| c.vhds = Some(Default::default())), of_config("vhds")),
        (
            |r| edit_routes(r, |c| c.most_specific_header_mutations_wins = true),
            of_config("most_specific_header_mutations_wins"),
        ),
        (|r| edit_routes(r, |c| c.virtual_hosts[0].require_tls = 2), of_host("require_tls")),
        (
            |r| edit_routes(r, |c| c.virtual_hosts[0].retry_policy = Some(Default::default())),
            of_host("retry_policy"),
        ),
        (
            |r| edit_routes(r, |c| c.virtual_hosts[0].rate_limits = vec![Default::default()]),
            of_host("rate_limits"),
        ),
        (|r| edit_route(r, |t| t.metadata = Some(Default::default())), of_route("metadata")),
        (|r| edit_route(r, |t| t.decorator = Some(Default::default())), of_route("decorator")),
        (
            |r| {
                edit_route(r, |t| {
                    t.typed_per_filter_config.insert("envoy.filters.http.lua".into(), Default::default());
                })
            },
            of_route("typed_per_filter_config[\"envoy.filters.http.lua\"]"),
        ),
        (
            |r| {
                edit_route(r, |t| {
                    t.r#match.get_or_insert_default().runtime_fraction = Some(Default::default())
                })
            },
            of_route("match.runtime_fraction"),
        ),
        (
            |r| edit_route(r, |t| t.r#match.get_or_insert_default().grpc = Some(Default::default())),
            of_route("match.grpc"),
        ),
        (
            |r| {
                edit_route(r, |t| {
                    let connect = PathSpecifier::ConnectMatcher(rt::route_match::ConnectMatcher {});
                    t.r#match.get_or_insert_default().path_specifier = Some(connect);
                })
            },
            of_route("match.connect_matcher"),
        ),
        (
            |r| edit_route(r, |t| t.action = Some(Chosen::NonForwardingAction(Default::default()))),
            of_route("non_forwarding_action"),
        ),
    ]);
}

#[test]
fn action_fields_that_shard_lacks() {
    let of_route = |field: &str| format!("{HOST}.routes[0].{field}");
    check(&[
        (|r| edit_action(r, |a| a.hedge_policy = Some(Default::default())), of_route("route.hedge_policy")),
        (|r| edit_action(r, |a| a.priority = 1), of_route("route.priority")),
        (
            |r| edit_action(r, |a| a.max_stream_duration = Some(Default::default())),
            of_route("route.max_stream_duration"),
        ),
        (
            |r| edit_action(r, |a| a.path_rewrite_policy = Some(TypedExtensionConfig::default())),
            of_route("route.path_rewrite_policy"),
        ),
        (
            |r| {
                edit_route(r, |t| {
                    let header = HeaderValue { key: "x".into(), value: "y".into(), raw_value: vec![1] };
                    t.request_headers_to_add =
                        vec![HeaderValueOption { header: Some(header), ..Default::default() }];
                })
            },
            of_route("request_headers_to_add[0].header.raw_value"),
        ),
    ]);
}

#[test]
fn cluster_fields_that_shard_lacks() {
    let at = |field: &str| format!("Cluster \"backend\": {field}");
    check(&[
        (|r| r.clusters[0].alt_stat_name = "x".into(), at("alt_stat_name")),
        (|r| r.clusters[0].upstream_bind_config = Some(Default::default()), at("upstream_bind_config")),
        (|r| r.clusters[0].dns_lookup_family = 1, at("dns_lookup_family")),
        (
            |r| {
                r.clusters[0].typed_extension_protocol_options.insert("x".into(), Default::default());
            },
            at("typed_extension_protocol_options[\"x\"]"),
        ),
        (
            |r| {
                r.clusters[0].load_assignment.as_mut().expect("set").endpoints[0].load_balancing_weight =
                    number(1)
            },
            at("load_assignment.endpoints[0].load_balancing_weight"),
        ),
        (
            |r| {
                r.clusters[0].load_assignment.as_mut().expect("set").endpoints[0].lb_endpoints[0].metadata =
                    Some(Default::default())
            },
            at("load_assignment.endpoints[0].lb_endpoints[0].metadata"),
        ),
        (
            |r| r.clusters[0].load_assignment.as_mut().expect("set").policy = Some(Default::default()),
            at("load_assignment.policy"),
        ),
    ]);
}

#[test]
fn either_value_of_what_shard_always_does_is_accepted() {
    let mut resources = small();
    resources.listeners[0].enable_reuse_port = switch(true);
    resources.listeners[0].bind_to_port = switch(true);
    edit_manager(&mut resources.listeners[0], |m| {
        m.normalize_path = switch(true);
        m.generate_request_id = switch(true);
        m.always_set_request_id_in_response = true;
        m.proxy_100_continue = true;
    });
    edit_routes(&mut resources, |c| {
        c.validate_clusters = switch(true);
        c.ignore_port_in_host_matching = true;
        c.max_direct_response_body_size_bytes = number(65_536);
    });
    edit_action(&mut resources, |a| a.append_x_forwarded_host = true);
    compiled(&resources);
    for (edit, field) in [
        ((|r| r.listeners[0].bind_to_port = switch(false)) as Edit, "bind_to_port"),
        (|r| edit_manager(&mut r.listeners[0], |m| m.normalize_path = switch(false)), "normalize_path"),
        (|r| edit_routes(r, |c| c.validate_clusters = switch(false)), "validate_clusters"),
    ] {
        let mut resources = small();
        edit(&mut resources);
        let refusal = refusal(&resources);
        assert!(
            refusal.contains(&format!("{field} is not supported as false: shard always has true")),
            "{refusal}"
        );
    }
}

#[test]
fn each_bad_resource_is_named_and_no_good_one_is_blamed() {
    let mut resources = small();
    resources.clusters.push(cluster("broken"));
    resources.clusters[1].lb_policy = 6;
    resources.listeners.push(listener("second", 8081, &manager()));
    edit_manager(&mut resources.listeners[1], |m| m.via = "x".into());
    // A route to the broken cluster is fine: the cluster's own refusal is enough.
    edit_action(&mut resources, |a| *a = super::to_cluster("broken"));
    let all = refused(&resources);
    assert_eq!(all.len(), 2, "{all:#?}");
    assert!(all[0].starts_with("Cluster \"broken\": lb_policy is not supported"), "{all:#?}");
    assert!(
        all[1].starts_with("Listener \"second\": filter_chains[0].filters[0].typed_config.via"),
        "{all:#?}"
    );
}

#[test]
fn names_are_used_once() {
    let mut resources = small();
    resources.clusters.push(cluster("backend"));
    resources.listeners.push(listener("edge", 8081, &manager()));
    let all = refused(&resources);
    assert_eq!(
        all,
        [
            "Cluster \"backend\": name is used by two resources",
            "Listener \"edge\": name is used by two resources"
        ]
    );
    let mut resources = small();
    resources.listeners.push(listener("second", 8080, &manager()));
    assert_eq!(
        refusal(&resources),
        "Listener \"second\": address is 127.0.0.1:8080, which another listener has"
    );
    for name in ["", "a\nb", &"x".repeat(129)] {
        let mut resources = small();
        resources.listeners[0].name = name.to_owned();
        assert!(refusal(&resources).contains(": name must have 1 to 128 bytes"), "{name:?}");
    }
}

#[test]
fn a_refused_set_leaves_the_next_one_unharmed_and_numbers_stay() {
    let mut stats = StatRegistry::new();
    let first = compile(&small(), &mut stats).expect("a good set");
    let mut bad = small();
    bad.listeners[0].stat_prefix = "x".into();
    compile(&bad, &mut stats).expect_err("a bad set");
    let mut other = small();
    other.clusters.insert(0, cluster("another"));
    let second = compile(&other, &mut stats).expect("a good set");
    assert_eq!(first.clusters[0].stat, second.clusters[1].stat);
    assert_eq!(first.clusters[0].endpoints[0].stat, second.clusters[1].endpoints[0].stat);
    assert_eq!(first.listeners[0].stat, second.listeners[0].stat);
    assert_eq!(
        stats.name(StatFamily::Endpoint, first.clusters[0].endpoints[0].stat),
        Some("backend/10.0.0.1:8080")
    );
    assert_eq!(
        stats.name(StatFamily::Route, first.listeners[0].routes.routes().next().expect("one").stat),
        Some("root")
    );
}

#[test]
fn client_certificates_are_stripped_or_replaced_only() {
    use ForwardClientCertDetails as Details;
    for (details, accepted) in [
        (Details::Sanitize, true),
        (Details::SanitizeSet, true),
        (Details::ForwardOnly, false),
        (Details::AppendForward, false),
        (Details::AlwaysForwardOnly, false),
    ] {
        let mut resources = small();
        edit_manager(&mut resources.listeners[0], |m| m.forward_client_cert_details = details as i32);
        assert_eq!(compile(&resources, &mut StatRegistry::new()).is_ok(), accepted, "{details:?}");
    }
}
