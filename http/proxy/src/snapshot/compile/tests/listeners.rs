//! Listeners: defaults, ranges, who the client is, the PROXY protocol, logs and error pages.

use std::net::IpAddr;
use std::time::Duration;

use control_api::Resources;
use control_api::defaults::{Bound, Range, h2, listener as limits};
use control_api::envoy::accesslog::access_log_filter::FilterSpecifier;
use control_api::envoy::accesslog::{
    AccessLog, AccessLogFilter, ComparisonFilter, StatusCodeFilter, access_log,
};
use control_api::envoy::core::substitution_format_string::Format;
use control_api::envoy::core::{CidrRange, RuntimeUInt32, SubstitutionFormatString, TypedExtensionConfig};
use control_api::envoy::file_log::{FileAccessLog, file_access_log};
use control_api::envoy::google;
use control_api::envoy::hcm::http_connection_manager::{
    PathWithEscapedSlashesAction, RouteSpecifier, UpgradeConfig,
};
use control_api::envoy::hcm::{LocalReplyConfig, Rds, ResponseMapper};
use control_api::envoy::listener::{ListenerFilter, listener_filter};
use control_api::envoy::proxy_protocol::ProxyProtocol;
use control_api::envoy::route::RouteConfiguration;
use control_api::envoy::xff::{XffConfig, XffTrustedCidrs};
use control_api::shard::v1;
use control_api::to_any;
use http_gateway::acl::Access;
use http_wire::fields::Fields;

use super::{
    ads, compiled, edit_manager, edit_options, inline, listener, number, refusal, route, small, switch,
    virtual_host,
};
use crate::snapshot::model::{EscapedSlashes, LogSink, LogTarget, Steering, SyslogAddress};
use crate::snapshot::{HttpConfig, StatRegistry, compile};

fn http(resources: &Resources) -> HttpConfig {
    compiled(resources).listeners.into_iter().next().expect("one").http
}

#[test]
fn unset_means_the_default_of_the_contract() {
    let snapshot = compiled(&small());
    assert_eq!(snapshot.version, "v1");
    let listener = &snapshot.listeners[0];
    assert_eq!(listener.address, "127.0.0.1:8080".parse().expect("an address"));
    assert_eq!(listener.connections_max, usize::try_from(limits::CONNECTIONS.default).expect("fits"));
    assert_eq!(listener.steering, Steering::KernelHash);
    assert!(listener.proxy_protocol.is_none() && listener.tls.is_none() && listener.access_log.is_none());
    let http = &listener.http;
    assert_eq!(http.header_bytes_max, 32 * 1024);
    assert_eq!(http.header_count_max, 100);
    assert_eq!(http.request_line_bytes_max, 8 * 1024);
    assert_eq!(http.header_timeout, limits::HEADER_TIMEOUT.default);
    assert_eq!(http.handshake_timeout, limits::HANDSHAKE_TIMEOUT.default);
    assert_eq!(http.idle_timeout, limits::IDLE_TIMEOUT.default);
    assert_eq!(http.body_idle_timeout, limits::BODY_IDLE_TIMEOUT.default);
    assert_eq!((http.connection_age_max, http.requests_max, http.client_limit), (None, None, None));
    assert_eq!(http.h2.streams_max, h2::STREAMS.default);
    assert_eq!(http.h2.resets_max, h2::RESETS.default);
    assert_eq!(http.h2.frame_bytes_max, 16_384);
    assert!(!http.h2.extended_connect && !http.merge_slashes && http.upgrades.is_empty());
}

/// Sets a number in a set of resources and reads what it became.
type Number = (fn(&mut Resources, u32), fn(&HttpConfig) -> u32, Bound<u32>);

fn size(n: usize) -> u32 {
    u32::try_from(n).expect("small")
}

fn numbers() -> [Number; 10] {
    [
        (
            |r, n| edit_manager(&mut r.listeners[0], |m| m.max_request_headers_kb = number(n)),
            |h| size(h.header_bytes_max) / 1024,
            limits::HEADER_KIB,
        ),
        (
            |r, n| {
                edit_manager(&mut r.listeners[0], |m| {
                    m.common_http_protocol_options.get_or_insert_default().max_headers_count = number(n)
                })
            },
            |h| size(h.header_count_max),
            limits::HEADER_COUNT,
        ),
        (
            |r, n| {
                edit_manager(&mut r.listeners[0], |m| {
                    m.http2_protocol_options.get_or_insert_default().max_concurrent_streams = number(n)
                })
            },
            |h| h.h2.streams_max,
            h2::STREAMS,
        ),
        (
            |r, n| {
                edit_manager(&mut r.listeners[0], |m| {
                    m.http2_protocol_options.get_or_insert_default().initial_stream_window_size = number(n)
                })
            },
            |h| h.h2.stream_window_bytes,
            h2::STREAM_WINDOW_BYTES,
        ),
        (
            |r, n| {
                edit_manager(&mut r.listeners[0], |m| {
                    m.http2_protocol_options.get_or_insert_default().initial_connection_window_size =
                        number(n)
                })
            },
            |h| h.h2.connection_window_bytes,
            h2::CONNECTION_WINDOW_BYTES,
        ),
        (
            |r, n| edit_options(&mut r.listeners[0], |o| o.request_line_bytes_max = Some(n)),
            |h| size(h.request_line_bytes_max),
            limits::REQUEST_LINE_BYTES,
        ),
        (
            |r, n| edit_options(&mut r.listeners[0], |o| o.h2_resets_max = Some(n)),
            |h| h.h2.resets_max,
            h2::RESETS,
        ),
        (
            |r, n| edit_options(&mut r.listeners[0], |o| o.h2_control_frames_max = Some(n)),
            |h| h.h2.control_frames_max,
            h2::CONTROL_FRAMES,
        ),
        (
            |r, n| edit_options(&mut r.listeners[0], |o| o.h2_small_data_frames_max = Some(n)),
            |h| h.h2.small_data_frames_max,
            h2::SMALL_DATA_FRAMES,
        ),
        (
            |r, n| edit_options(&mut r.listeners[0], |o| o.h2_frame_bytes_max = Some(n)),
            |h| h.h2.frame_bytes_max,
            h2::FRAME_BYTES,
        ),
    ]
}

#[test]
fn numbers_hold_at_both_ends_of_their_range_and_not_beyond() {
    for (at, (set, get, bound)) in numbers().into_iter().enumerate() {
        for value in [bound.min, bound.max] {
            let mut resources = small();
            set(&mut resources, value);
            assert_eq!(get(&http(&resources)), value, "row {at}");
        }
        for value in [bound.min - 1, bound.max + 1] {
            let mut resources = small();
            set(&mut resources, value);
            let refusal = refusal(&resources);
            assert!(
                refusal.contains(&format!("is {value}, it must lie between {} and {}", bound.min, bound.max)),
                "row {at}: {refusal}"
            );
        }
    }
}

type Time = (fn(&mut Resources, Option<google::Duration>), fn(&HttpConfig) -> Duration, Range<Duration>);

fn on_wire(duration: Duration) -> Option<google::Duration> {
    let seconds = i64::try_from(duration.as_secs()).expect("small");
    Some(google::Duration { seconds, nanos: i32::try_from(duration.subsec_nanos()).expect("below 2^31") })
}

#[test]
fn times_hold_at_both_ends_of_their_range_and_not_beyond() {
    let of = |bound: Bound<Duration>| Range { min: bound.min, max: bound.max };
    let table: [Time; 5] = [
        (
            |r, d| edit_manager(&mut r.listeners[0], |m| m.request_headers_timeout = d),
            |h| h.header_timeout,
            of(limits::HEADER_TIMEOUT),
        ),
        (
            |r, d| edit_manager(&mut r.listeners[0], |m| m.stream_idle_timeout = d),
            |h| h.body_idle_timeout,
            of(limits::BODY_IDLE_TIMEOUT),
        ),
        (
            |r, d| {
                edit_manager(&mut r.listeners[0], |m| {
                    m.common_http_protocol_options.get_or_insert_default().idle_timeout = d
                })
            },
            |h| h.idle_timeout,
            of(limits::IDLE_TIMEOUT),
        ),
        (
            |r, d| {
                edit_manager(&mut r.listeners[0], |m| {
                    m.common_http_protocol_options.get_or_insert_default().max_connection_duration = d
                })
            },
            |h| h.connection_age_max.expect("set"),
            limits::CONNECTION_AGE,
        ),
        (
            |r, d| r.listeners[0].filter_chains[0].transport_socket_connect_timeout = d,
            |h| h.handshake_timeout,
            of(limits::HANDSHAKE_TIMEOUT),
        ),
    ];
    let step = Duration::from_nanos(1);
    for (at, (set, get, range)) in table.into_iter().enumerate() {
        for value in [range.min, range.max] {
            let mut resources = small();
            set(&mut resources, on_wire(value));
            assert_eq!(get(&http(&resources)), value, "row {at}");
        }
        for value in [range.min - step, range.max + step, Duration::ZERO] {
            let mut resources = small();
            set(&mut resources, on_wire(value));
            assert!(refusal(&resources).contains("it must lie between"), "row {at}: {value:?}");
        }
    }
}

#[test]
fn shares_are_between_their_bounds() {
    for (value, accepted) in
        [(0.0, true), (0.9, true), (0.91, false), (-0.1, false), (f64::NAN, false), (f64::INFINITY, false)]
    {
        let mut resources = small();
        edit_options(&mut resources.listeners[0], |o| o.connection_age_jitter = Some(value));
        assert_eq!(compile(&resources, &mut StatRegistry::new()).is_ok(), accepted, "{value}");
    }
}

#[test]
fn the_client_is_the_peer_or_told_by_trusted_hops() {
    let xff = |prefix: &str, prefix_len| {
        let cidrs = vec![CidrRange { address_prefix: prefix.to_owned(), prefix_len }];
        let config = XffConfig {
            xff_trusted_cidrs: Some(XffTrustedCidrs { cidrs }),
            skip_xff_append: switch(false),
            ..Default::default()
        };
        TypedExtensionConfig { name: "xff".to_owned(), typed_config: Some(to_any(&config)) }
    };
    let mut fields = Fields::new();
    fields.push_name(b"x-forwarded-for", b"6.6.6.6, 7.7.7.7").expect("valid");
    let peer: IpAddr = "10.0.0.9".parse().expect("an address");
    let client = |r: &Resources| http(r).client_addr.derive(peer, &fields).address.to_string();
    assert_eq!(client(&small()), "10.0.0.9");
    let mut by_hops = small();
    edit_manager(&mut by_hops.listeners[0], |m| m.xff_num_trusted_hops = 2);
    assert_eq!(client(&by_hops), "6.6.6.6");
    let mut by_cidr = small();
    edit_manager(&mut by_cidr.listeners[0], |m| {
        m.use_remote_address = None;
        m.original_ip_detection_extensions = vec![xff("10.0.0.0", number(8))];
    });
    assert_eq!(client(&by_cidr), "7.7.7.7");
    type Edit<'a> = &'a dyn Fn(&mut control_api::envoy::hcm::HttpConnectionManager);
    let refused: [(Edit<'_>, &str); 6] = [
        (&|m| m.use_remote_address = None, "use_remote_address must be true"),
        (&|m| m.xff_num_trusted_hops = 33, "it must lie between 0 and 32"),
        (
            &|m| m.original_ip_detection_extensions = vec![xff("10.0.0.0", number(8))],
            "not supported with use_remote_address",
        ),
        (
            &|m| {
                m.use_remote_address = None;
                m.original_ip_detection_extensions = vec![xff("10.0.0.0", None)];
            },
            "prefix_len is required",
        ),
        (
            &|m| {
                m.use_remote_address = None;
                m.original_ip_detection_extensions = vec![xff("example.com", number(8))];
            },
            "must be an IP literal",
        ),
        (
            &|m| {
                m.use_remote_address = None;
                m.original_ip_detection_extensions = vec![TypedExtensionConfig {
                    name: "x".into(),
                    typed_config: Some(to_any(&XffConfig::default())),
                }];
            },
            "xff_trusted_cidrs.cidrs is required",
        ),
    ];
    for (edit, expected) in refused {
        let mut resources = small();
        edit_manager(&mut resources.listeners[0], edit);
        let refusal = refusal(&resources);
        assert!(refusal.contains(expected), "{refusal}");
    }
}

#[test]
fn the_proxy_protocol_needs_both_its_filter_and_its_trusted_peers() {
    let filter = || ListenerFilter {
        name: "envoy.filters.listener.proxy_protocol".to_owned(),
        config_type: Some(listener_filter::ConfigType::TypedConfig(to_any(&ProxyProtocol::default()))),
        ..Default::default()
    };
    let with = |filters: usize, cidrs: &[&str]| {
        let mut resources = small();
        resources.listeners[0].listener_filters = (0..filters).map(|_| filter()).collect();
        edit_options(&mut resources.listeners[0], |o| {
            o.proxy_protocol_trusted_cidrs = cidrs.iter().map(|c| (*c).to_owned()).collect()
        });
        resources
    };
    let snapshot = compiled(&with(1, &["10.0.0.0/8", "192.0.2.7"]));
    let config = snapshot.listeners[0].proxy_protocol.as_ref().expect("on");
    assert!(config.trusted.contains("10.9.9.9".parse().expect("an address")));
    assert!(!config.trusted.contains("192.0.2.8".parse().expect("an address")));
    assert_eq!(config.header_timeout, limits::PROXY_HEADER_TIMEOUT.default);
    for (resources, expected) in [
        (with(0, &["10.0.0.0/8"]), "needs the listener filter"),
        (with(1, &[]), "proxy_protocol_trusted_cidrs is required"),
        (with(2, &["10.0.0.0/8"]), "listener_filters has more than one entry"),
        (with(1, &["10.0.0.0/33"]), "proxy_protocol_trusted_cidrs[0] is \"10.0.0.0/33\""),
    ] {
        let refusal = refusal(&resources);
        assert!(refusal.contains(expected), "{refusal}");
    }
}

#[test]
fn options_of_the_listener_arrive() {
    let mut resources = small();
    edit_options(&mut resources.listeners[0], |o| {
        o.steering = v1::Steering::LeastLoaded as i32;
        o.connections_max = Some(7);
        o.access = Some(v1::AddressRules { allow: vec!["10.0.0.0/8".into()], deny: vec!["10.0.0.1".into()] });
        o.client_limit =
            Some(v1::ClientLimit { connections_max: 3, requests_per_second: 5, requests_burst: 0 });
    });
    edit_manager(&mut resources.listeners[0], |m| {
        m.path_with_escaped_slashes_action = PathWithEscapedSlashesAction::RejectRequest as i32;
        m.merge_slashes = true;
        m.upgrade_configs = vec![
            UpgradeConfig { upgrade_type: "WebSocket".into(), ..Default::default() },
            UpgradeConfig { upgrade_type: "other".into(), enabled: switch(false), ..Default::default() },
        ];
    });
    let snapshot = compiled(&resources);
    let listener = &snapshot.listeners[0];
    assert_eq!((listener.steering, listener.connections_max), (Steering::LeastLoaded, 7));
    for (address, access) in
        [("10.0.0.1", Access::Denied), ("10.0.0.2", Access::Allowed), ("192.0.2.1", Access::Denied)]
    {
        assert_eq!(listener.access.check(address.parse().expect("an address")), access, "{address}");
    }
    let limit = listener.http.client_limit.expect("set");
    let rate = limit.requests.expect("set");
    assert_eq!((limit.connections_max, rate.per_second.get(), rate.burst.get()), (Some(3), 5, 5));
    assert_eq!(listener.http.escaped_slashes, EscapedSlashes::Reject);
    assert!(listener.http.merge_slashes);
    assert_eq!(listener.http.upgrades, ["websocket"]);
}

#[test]
fn named_route_configurations_are_shared_and_must_exist() {
    let rds = |name: &str| {
        Some(RouteSpecifier::Rds(Rds { config_source: ads(), route_config_name: name.to_owned() }))
    };
    let mut resources = small();
    resources.listeners.push(listener("second", 8081, &super::manager()));
    for listener in &mut resources.listeners {
        edit_manager(listener, |m| m.route_specifier = rds("shop"));
    }
    let all: Vec<_> = super::refused(&resources);
    assert!(
        all.iter().all(|nack| nack.contains("names the unknown RouteConfiguration \"shop\""))
            && all.len() == 2,
        "{all:?}"
    );
    resources.routes = vec![RouteConfiguration {
        name: "shop".to_owned(),
        virtual_hosts: vec![virtual_host("all", "*", vec![route("root", "/")])],
        ..Default::default()
    }];
    let snapshot = compiled(&resources);
    let stats: Vec<_> =
        snapshot.listeners.iter().map(|l| l.routes.routes().next().expect("one").stat).collect();
    assert_eq!(stats[0], stats[1], "one name, one series");
    resources.routes[0].vhds = Some(Default::default());
    assert_eq!(refusal(&resources), "RouteConfiguration \"shop\": vhds is not supported", "told once");
    resources.routes[0].vhds = None;
    resources.routes.push(RouteConfiguration {
        name: "unused".into(),
        vhds: Some(Default::default()),
        ..Default::default()
    });
    assert_eq!(refusal(&resources), "RouteConfiguration \"unused\": vhds is not supported");
}

fn log(config: google::Any) -> AccessLog {
    AccessLog {
        name: "any".to_owned(),
        config_type: Some(access_log::ConfigType::TypedConfig(config)),
        ..Default::default()
    }
}

fn file_log(path: &str, template: Option<&str>) -> AccessLog {
    let format = template.map(|text| {
        let format = Some(Format::TextFormatSource(inline(text).expect("a source")));
        file_access_log::AccessLogFormat::LogFormat(SubstitutionFormatString { format, ..Default::default() })
    });
    log(to_any(&FileAccessLog { path: path.to_owned(), access_log_format: format }))
}

#[test]
fn logs_have_targets_that_equal_listeners_share() {
    let syslog = |address: &str| {
        log(to_any(&v1::SyslogAccessLog { address: address.to_owned(), ..Default::default() }))
    };
    let mut resources = small();
    let logs = [
        file_log("/var/log/a.log", None),
        file_log("/var/log/a.log", Some("%status%")),
        log(to_any(&control_api::envoy::stream_log::StdoutAccessLog::default())),
        syslog("unix:/dev/log"),
        syslog("udp:192.0.2.1:514"),
        file_log("/var/log/a.log", None),
    ];
    resources.listeners = (9000..)
        .zip(logs)
        .map(|(port, log)| {
            let mut listener = listener(&format!("l{port}"), port, &super::manager());
            edit_manager(&mut listener, |m| m.access_log = vec![log]);
            listener
        })
        .collect();
    edit_options(&mut resources.listeners[0], |o| o.access_log_success_sample = Some(0.25));
    let mut stats = StatRegistry::new();
    let snapshot = compile(&resources, &mut stats).expect("a good set");
    let numbers: Vec<_> =
        snapshot.listeners.iter().map(|l| l.access_log.as_ref().expect("set").sink).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 0]);
    let syslog = |address| LogTarget::Syslog { address, tag: "shard-proxy".to_owned() };
    let file = || LogTarget::File("/var/log/a.log".to_owned());
    assert_eq!(
        stats.sinks(),
        [
            LogSink { target: file(), template: None },
            LogSink { target: file(), template: Some("%status%".to_owned()) },
            LogSink { target: LogTarget::Stdout, template: None },
            LogSink { target: syslog(SyslogAddress::Unix("/dev/log".to_owned())), template: None },
            LogSink {
                target: syslog(SyslogAddress::Udp("192.0.2.1:514".parse().expect("an address"))),
                template: None
            },
        ]
    );
    let samples: Vec<_> =
        snapshot.listeners.iter().map(|l| l.access_log.as_ref().expect("set").success_sample).collect();
    assert_eq!(samples[..2], [0.25, 1.0]);
    for (log, expected) in [
        (file_log("relative.log", None), "must be an absolute path"),
        (log(to_any(&ProxyProtocol::default())), "which is not supported here"),
        (
            log(to_any(&v1::SyslogAccessLog { address: "tcp:1.2.3.4:5".into(), ..Default::default() })),
            "typed_config.address is",
        ),
        (
            AccessLog { filter: Some(Default::default()), ..file_log("/a", None) },
            "access_log[0].filter is not supported",
        ),
    ] {
        let mut resources = small();
        edit_manager(&mut resources.listeners[0], |m| m.access_log = vec![log]);
        let refusal = refusal(&resources);
        assert!(refusal.contains(expected), "{refusal}");
    }
}

#[test]
fn error_pages_are_one_for_each_status() {
    let mapper = |status: u32, op: i32| ResponseMapper {
        filter: Some(AccessLogFilter {
            filter_specifier: Some(FilterSpecifier::StatusCodeFilter(StatusCodeFilter {
                comparison: Some(ComparisonFilter {
                    op,
                    value: Some(RuntimeUInt32 { default_value: status, runtime_key: "unused".to_owned() }),
                }),
            })),
        }),
        body: inline("<h1>sorry</h1>"),
        body_format_override: Some(SubstitutionFormatString {
            content_type: "text/html".to_owned(),
            format: Some(Format::TextFormatSource(inline("%LOCAL_REPLY_BODY%").expect("a source"))),
            ..Default::default()
        }),
        ..Default::default()
    };
    let with = |mappers: Vec<ResponseMapper>| {
        let mut resources = small();
        edit_manager(&mut resources.listeners[0], |m| {
            m.local_reply_config = Some(LocalReplyConfig { mappers, ..Default::default() })
        });
        resources
    };
    let pages = http(&with(vec![mapper(503, 0), mapper(400, 0)])).error_pages;
    let shown: Vec<_> = pages.iter().map(|p| (p.status, p.content_type.as_str(), &p.body[..])).collect();
    assert_eq!(shown, [(503, "text/html", &b"<h1>sorry</h1>"[..]), (400, "text/html", b"<h1>sorry</h1>")]);
    for (mappers, expected) in [
        (vec![mapper(503, 0), mapper(503, 0)], "which has a page already"),
        (vec![mapper(200, 0)], "status must lie between 400 and 599"),
        (vec![mapper(600, 0)], "status must lie between 400 and 599"),
        (vec![mapper(503, 1)], "comparison.op is not supported"),
        (
            vec![ResponseMapper { status_code: number(500), ..mapper(503, 0) }],
            "mappers[0].status_code is not supported",
        ),
        (
            vec![ResponseMapper { body: inline(&"x".repeat(65_537)), ..mapper(503, 0) }],
            "body has 65537 bytes",
        ),
    ] {
        let refusal = refusal(&with(mappers));
        assert!(refusal.contains(expected), "{refusal}");
    }
}
