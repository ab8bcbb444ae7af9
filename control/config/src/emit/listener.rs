//! Listeners: address, TLS, the HTTP connection manager and its limits.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use control_api::envoy::accesslog::{AccessLog, access_log};
use control_api::envoy::core::{
    CidrRange, Http2ProtocolOptions, HttpProtocolOptions, SubstitutionFormatString, TypedExtensionConfig,
    substitution_format_string,
};
use control_api::envoy::cors::Cors;
use control_api::envoy::file_log::{FileAccessLog, file_access_log};
use control_api::envoy::google::Any;
use control_api::envoy::hcm::{
    HttpConnectionManager, HttpFilter, Rds, http_connection_manager as manager, http_filter,
};
use control_api::envoy::listener::{Filter, FilterChain, Listener, ListenerFilter, filter, listener_filter};
use control_api::envoy::names;
use control_api::envoy::proxy_protocol::ProxyProtocol;
use control_api::envoy::router::Router;
use control_api::envoy::stream_log::{StdoutAccessLog, stdout_access_log};
use control_api::envoy::xff::{XffConfig, XffTrustedCidrs};
use control_api::shard::v1::{ClientLimit, ListenerOptions, Steering, SyslogAccessLog, UnknownSni};

use super::cluster::socket_address;
use super::pages::local_reply;
use super::policy::{address_rules, client_limit};
use super::{Emitter, ads, count, inline_string, metadata, on, packed, span};
use crate::yaml::Node;

impl Emitter<'_> {
    pub(super) fn emit_listeners(&mut self) {
        let config = self.config;
        let mut bound: BTreeMap<SocketAddr, &Node> = BTreeMap::new();
        for entry in &config.listeners {
            let node = config.listener(&entry.value);
            let Some(address) = node.word("address").and_then(|a| a.parse::<SocketAddr>().ok()) else {
                continue;
            };
            // Port 0 is a port of the kernel's choice, different each time.
            if let Some(first) = bound.get(&address).filter(|_| address.port() != 0) {
                let message = format!("the address is already bound in {}", self.findings.place_of(first));
                self.error(
                    entry.value.get("address").unwrap_or(&entry.value),
                    message,
                    "choose another port or address",
                );
            }
            bound.insert(address, &entry.value);
            let listener = match entry.value.get("tcp") {
                Some(tcp) => self.tcp_listener((&entry.key, address), &entry.value, &node, tcp),
                None => self.listener(&entry.key, address, &node),
            };
            self.resources.listeners.push(listener);
            self.remember("listener", &entry.key, &entry.value);
        }
        if config.listeners.is_empty() && !config.is_listeners_refused {
            let problem = crate::finding::Problem::new(
                "no listener",
                "add `listeners: { web: { address: \"0.0.0.0:8080\" } }` to a file under platform/",
            );
            self.findings.error_in("platform", problem);
        }
    }

    fn listener(&mut self, name: &str, address: SocketAddr, node: &Node) -> Listener {
        let proxy_protocol = node.get("proxy_protocol");
        let mut options = listener_options(node);
        options.token_providers = self.tokens.options.clone();
        let manager = self.connection_manager(name, node);
        let timeouts = node.get("timeouts");
        Listener {
            name: name.to_owned(),
            address: Some(socket_address(&address.ip().to_string(), address.port())),
            listener_filters: proxy_protocol.map(|_| proxy_protocol_filter()).into_iter().collect(),
            listener_filters_timeout: span(proxy_protocol.and_then(|p| p.duration("timeout"))),
            filter_chains: vec![FilterChain {
                filters: vec![Filter {
                    name: names::HTTP_CONNECTION_MANAGER.to_owned(),
                    config_type: Some(filter::ConfigType::TypedConfig(packed(&manager))),
                }],
                transport_socket: node.get("tls").map(|tls| self.downstream_tls(tls)),
                transport_socket_connect_timeout: span(timeouts.and_then(|t| t.duration("handshake"))),
                ..Default::default()
            }],
            metadata: metadata(&options),
            ..Default::default()
        }
    }

    fn connection_manager(&mut self, name: &str, node: &Node) -> HttpConnectionManager {
        let limits = node.get("limits");
        let timeouts = node.get("timeouts");
        let upgrades = node.strings("upgrades");
        let detection = node.get("client_address").map(|c| c.strings("trusted")).filter(|t| !t.is_empty());
        let client_cert_header = match node.word("client_cert_header") {
            Some("replace") => manager::ForwardClientCertDetails::SanitizeSet,
            _ => manager::ForwardClientCertDetails::Sanitize,
        };
        let pages = self.error_pages(node.list("error_pages"));
        HttpConnectionManager {
            stat_prefix: name.to_owned(),
            route_specifier: Some(manager::RouteSpecifier::Rds(Rds {
                config_source: Some(ads()),
                route_config_name: name.to_owned(),
            })),
            http_filters: self.http_filters(),
            use_remote_address: on(detection.is_none()),
            xff_num_trusted_hops: node.get("client_address").and_then(|c| c.int("hops")).unwrap_or(0),
            original_ip_detection_extensions: detection.iter().map(|cidrs| xff_extension(cidrs)).collect(),
            common_http_protocol_options: common_options(limits, timeouts),
            max_request_headers_kb: count(limits.and_then(|l| self.header_kib(l))),
            request_headers_timeout: span(timeouts.and_then(|t| t.duration("header"))),
            stream_idle_timeout: span(timeouts.and_then(|t| t.duration("body_idle"))),
            http2_protocol_options: h2_options(node.get("h2"), !upgrades.is_empty()),
            merge_slashes: node.is_on("merge_slashes"),
            path_with_escaped_slashes_action: escaped_slashes(node).into(),
            forward_client_cert_details: client_cert_header.into(),
            set_current_client_cert_details: cert_details(client_cert_header),
            upgrade_configs: upgrades.into_iter().map(upgrade).collect(),
            access_log: node.get("access_log").and_then(|log| self.access_log(log)).into_iter().collect(),
            local_reply_config: local_reply(pages),
            always_set_request_id_in_response: true,
            ..Default::default()
        }
    }

    /// In the proxy's own order: a preflight carries no token.
    fn http_filters(&self) -> Vec<HttpFilter> {
        let mut filters = vec![http_filter(names::CORS, packed(&Cors::default()))];
        filters.extend(self.tokens.filter.clone().map(|config| http_filter(names::JWT_AUTHN, config)));
        filters.push(http_filter(names::ROUTER, packed(&Router::default())));
        filters
    }

    /// Envoy counts a head in whole KiB.
    fn header_kib(&mut self, limits: &Node) -> Option<u32> {
        let bytes = limits.small_size("header_bytes_max")?;
        if !bytes.is_multiple_of(1_024)
            && let Some(node) = limits.get("header_bytes_max")
        {
            let fix = format!("write `{}KiB`", bytes.div_ceil(1_024));
            self.error(node, "not a whole number of KiB", fix);
        }
        Some(bytes / 1_024)
    }

    pub(super) fn access_log(&mut self, log: &Node) -> Option<AccessLog> {
        let to = log.word("to").unwrap_or("stdout");
        for (key, target) in [("path", "file"), ("address", "syslog"), ("tag", "syslog")] {
            match (log.get(key), to == target) {
                (Some(node), false) => self.error(
                    node,
                    format!("`{key}` is for `to: {target}`"),
                    format!("delete it, or write `to: {target}`"),
                ),
                (None, true) if key != "tag" => {
                    self.error(log, format!("`to: {target}` needs `{key}`"), format!("add `{key}`"))
                }
                _ => {}
            }
        }
        let template = log.word("template");
        let format = template.map(|template| SubstitutionFormatString {
            format: Some(substitution_format_string::Format::TextFormatSource(inline_string(template))),
            ..Default::default()
        });
        let (name, config) = match to {
            "none" => return None,
            "file" => (
                names::FILE_ACCESS_LOG,
                packed(&FileAccessLog {
                    path: log.word("path")?.to_owned(),
                    access_log_format: format.map(file_access_log::AccessLogFormat::LogFormat),
                }),
            ),
            "syslog" => (
                "shard.access_loggers.syslog",
                packed(&SyslogAccessLog {
                    address: log.word("address")?.to_owned(),
                    tag: log.word("tag").unwrap_or("").to_owned(),
                    template: template.unwrap_or("").to_owned(),
                }),
            ),
            _ => (
                names::STDOUT_ACCESS_LOG,
                packed(&StdoutAccessLog {
                    access_log_format: format.map(stdout_access_log::AccessLogFormat::LogFormat),
                }),
            ),
        };
        Some(AccessLog {
            name: name.to_owned(),
            config_type: Some(access_log::ConfigType::TypedConfig(config)),
            ..Default::default()
        })
    }
}

pub(super) fn listener_options(node: &Node) -> ListenerOptions {
    let limits = node.get("limits");
    let h2 = node.get("h2");
    let steering = match node.word("steering") {
        Some("cpu") => Steering::IncomingCpu,
        Some("least_loaded") => Steering::LeastLoaded,
        _ => Steering::KernelHash,
    };
    let unknown_sni = match node.get("tls").and_then(|t| t.word("unknown_name")) {
        Some("refuse") => UnknownSni::Refuse,
        _ => UnknownSni::DefaultCertificate,
    };
    ListenerOptions {
        steering: steering.into(),
        connections_max: limits.and_then(|l| l.int("connections_max")),
        access: address_rules(node.get("access")),
        proxy_protocol_trusted_cidrs: node
            .get("proxy_protocol")
            .map(|p| p.strings("trusted"))
            .unwrap_or_default(),
        request_line_bytes_max: limits.and_then(|l| l.small_size("request_line_bytes_max")),
        connection_age_jitter: limits.and_then(|l| l.number("connection_age_jitter")),
        h2_resets_max: h2.and_then(|h| h.int("resets_max")),
        h2_control_frames_max: h2.and_then(|h| h.int("control_frames_max")),
        h2_small_data_frames_max: h2.and_then(|h| h.int("small_data_frames_max")),
        h2_frame_bytes_max: h2.and_then(|h| h.small_size("frame_bytes_max")),
        client_limit: node.get("client_limit").map(|limit| ClientLimit {
            connections_max: limit.int("connections").unwrap_or(0),
            ..client_limit(limit)
        }),
        access_log_success_sample: node.get("access_log").and_then(|log| log.number("success_sample")),
        unknown_sni: unknown_sni.into(),
        send_proxy_protocol: 0,
        token_providers: Vec::new(),
    }
}

fn common_options(limits: Option<&Node>, timeouts: Option<&Node>) -> Option<HttpProtocolOptions> {
    let options = HttpProtocolOptions {
        idle_timeout: span(timeouts.and_then(|t| t.duration("idle"))),
        max_connection_duration: span(limits.and_then(|l| l.duration("connection_age_max"))),
        max_headers_count: count(limits.and_then(|l| l.int("header_count_max"))),
        max_requests_per_connection: count(limits.and_then(|l| l.int("requests_per_connection_max"))),
        ..Default::default()
    };
    (options != HttpProtocolOptions::default()).then_some(options)
}

fn h2_options(h2: Option<&Node>, has_upgrades: bool) -> Option<Http2ProtocolOptions> {
    let options = Http2ProtocolOptions {
        max_concurrent_streams: count(h2.and_then(|h| h.int("streams_max"))),
        initial_stream_window_size: count(h2.and_then(|h| h.small_size("stream_window"))),
        initial_connection_window_size: count(h2.and_then(|h| h.small_size("connection_window"))),
        allow_connect: h2.and_then(|h| h.flag("extended_connect")).unwrap_or(has_upgrades),
        ..Default::default()
    };
    (options != Http2ProtocolOptions::default()).then_some(options)
}

fn escaped_slashes(node: &Node) -> manager::PathWithEscapedSlashesAction {
    match node.word("escaped_slashes") {
        Some("reject") => manager::PathWithEscapedSlashesAction::RejectRequest,
        Some("redirect") => manager::PathWithEscapedSlashesAction::UnescapeAndRedirect,
        _ => manager::PathWithEscapedSlashesAction::KeepUnchanged,
    }
}

fn cert_details(mode: manager::ForwardClientCertDetails) -> Option<manager::SetCurrentClientCertDetails> {
    (mode == manager::ForwardClientCertDetails::SanitizeSet).then(|| manager::SetCurrentClientCertDetails {
        subject: on(true),
        dns: true,
        uri: true,
        ..Default::default()
    })
}

fn upgrade(protocol: String) -> manager::UpgradeConfig {
    manager::UpgradeConfig { upgrade_type: protocol, ..Default::default() }
}

fn http_filter(name: &str, config: Any) -> HttpFilter {
    HttpFilter {
        name: name.to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(config)),
        ..Default::default()
    }
}

pub(super) fn proxy_protocol_filter() -> ListenerFilter {
    ListenerFilter {
        name: names::PROXY_PROTOCOL.to_owned(),
        config_type: Some(listener_filter::ConfigType::TypedConfig(packed(&ProxyProtocol::default()))),
        ..Default::default()
    }
}

fn xff_extension(cidrs: &[String]) -> TypedExtensionConfig {
    let config = XffConfig {
        xff_trusted_cidrs: Some(XffTrustedCidrs {
            cidrs: cidrs.iter().filter_map(|text| cidr_range(text)).collect(),
        }),
        skip_xff_append: Some(control_api::envoy::google::BoolValue { value: false }),
        ..Default::default()
    };
    TypedExtensionConfig { name: names::XFF.to_owned(), typed_config: Some(packed(&config)) }
}

fn cidr_range(text: &str) -> Option<CidrRange> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, length.parse().ok()?),
        None if text.contains(':') => (text, 128),
        None => (text, 32),
    };
    Some(CidrRange { address_prefix: address.to_owned(), prefix_len: count(Some(length)) })
}
