//! TCP listeners: Envoy's `tcp_proxy`, one filter chain for each cluster that server names lead to.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use control_api::defaults::tcp::SERVER_NAMES_MAX;
use control_api::envoy::listener::{
    Filter, FilterChain, FilterChainMatch, Listener, ListenerFilter, filter, listener_filter,
};
use control_api::envoy::names;
use control_api::envoy::tcp_proxy::{TcpProxy, tcp_proxy};
use control_api::envoy::tls_inspector::TlsInspector;
use control_api::shard::v1::SendProxyProtocol;

use super::cluster::socket_address;
use super::listener::{listener_options, proxy_protocol_filter};
use super::{Emitter, metadata, packed, span};
use crate::yaml::Node;

/// Keys of a listener that say something about HTTP or about ending TLS.
const HTTP_KEYS: [&str; 9] = [
    "tls",
    "client_address",
    "client_cert_header",
    "timeouts",
    "h2",
    "merge_slashes",
    "escaped_slashes",
    "upgrades",
    "error_pages",
];

impl Emitter<'_> {
    /// `own` is the listener as written, `node` with the platform's defaults, of which those about HTTP do not count.
    pub(super) fn tcp_listener(
        &mut self,
        (name, address): (&str, SocketAddr),
        own: &Node,
        node: &Node,
        tcp: &Node,
    ) -> Listener {
        self.refuse_http_keys(own);
        let chains = self.filter_chains(name, node, tcp);
        let proxy_protocol = node.get("proxy_protocol");
        let has_names = chains.iter().any(|chain| chain.filter_chain_match.is_some());
        let mut options = listener_options(node);
        options.unknown_sni = 0;
        options.send_proxy_protocol = match tcp.word("send_proxy_protocol") {
            Some("v1") => SendProxyProtocol::SendV1.into(),
            Some("v2") => SendProxyProtocol::SendV2.into(),
            _ => SendProxyProtocol::SendNothing.into(),
        };
        options.request_line_bytes_max = None;
        options.connection_age_jitter = None;
        (options.h2_resets_max, options.h2_control_frames_max) = (None, None);
        (options.h2_small_data_frames_max, options.h2_frame_bytes_max) = (None, None);
        // The platform's default rates are for HTTP.
        if let Some(limit) = &mut options.client_limit {
            (limit.requests_per_second, limit.requests_burst) = (0, 0);
        }
        let timeout = if has_names { tcp.duration("hello_timeout") } else { None };
        let proxy_timeout = proxy_protocol.and_then(|p| p.duration("timeout"));
        Listener {
            name: name.to_owned(),
            address: Some(socket_address(&address.ip().to_string(), address.port())),
            listener_filters: proxy_protocol
                .map(|_| proxy_protocol_filter())
                .into_iter()
                .chain(has_names.then(tls_inspector_filter))
                .collect(),
            // Envoy has one time for all that comes before the first filter.
            listener_filters_timeout: span(timeout.max(proxy_timeout)),
            filter_chains: chains,
            metadata: metadata(&options),
            ..Default::default()
        }
    }

    fn refuse_http_keys(&mut self, own: &Node) {
        for key in HTTP_KEYS {
            if let Some(written) = own.get(key) {
                let message = format!("`{key}` means nothing on a TCP listener");
                self.error(written, message, "delete the key, or `tcp` when the listener is to serve HTTP");
            }
        }
        for (group, known) in [("limits", "connections_max"), ("client_limit", "connections")] {
            for entry in
                own.get(group).map_or(&[][..], Node::entries).iter().filter(|entry| entry.key != known)
            {
                let message = format!("`{}` means nothing on a TCP listener", entry.key);
                self.error(&entry.value, message, format!("delete the key; only `{known}` counts"));
            }
        }
    }

    fn filter_chains(&mut self, name: &str, node: &Node, tcp: &Node) -> Vec<FilterChain> {
        let named = tcp.get("server_names").map_or(&[][..], Node::entries);
        let default = tcp.get("cluster");
        if named.is_empty() && default.is_none() {
            self.error(tcp, "leads nowhere", "add `cluster`, or `server_names` with their clusters");
        }
        if named.len() > SERVER_NAMES_MAX {
            let message = format!("{} server names, at most {SERVER_NAMES_MAX} are allowed", named.len());
            self.error(tcp, message, "split the listener");
        }
        let mut by_cluster: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for entry in named {
            if entry.key == "*" {
                self.error(&entry.value, "`*` is no server name", "write the cluster as `cluster`");
            } else if let Some(cluster) = self.resolve_cluster("", &entry.value) {
                by_cluster.entry(cluster).or_default().push(entry.key.to_ascii_lowercase());
            }
        }
        let default = default.and_then(|reference| self.resolve_cluster("", reference));
        self.tcp_clusters.extend(by_cluster.keys().chain(&default).cloned());
        let log = node.get("access_log").and_then(|log| self.access_log(log));
        let chain = |cluster: String, server_names: Vec<String>| FilterChain {
            filter_chain_match: (!server_names.is_empty())
                .then(|| FilterChainMatch { server_names, ..Default::default() }),
            filters: vec![Filter {
                name: names::TCP_PROXY.to_owned(),
                config_type: Some(filter::ConfigType::TypedConfig(packed(&TcpProxy {
                    stat_prefix: name.to_owned(),
                    cluster_specifier: Some(tcp_proxy::ClusterSpecifier::Cluster(cluster)),
                    idle_timeout: span(tcp.duration("idle_timeout")),
                    max_downstream_connection_duration: span(tcp.duration("connection_age_max")),
                    access_log: log.clone().into_iter().collect(),
                    ..Default::default()
                }))),
            }],
            ..Default::default()
        };
        let mut chains: Vec<_> =
            by_cluster.into_iter().map(|(cluster, names)| chain(cluster, names)).collect();
        chains.extend(default.map(|cluster| chain(cluster, Vec::new())));
        chains
    }
}

fn tls_inspector_filter() -> ListenerFilter {
    ListenerFilter {
        name: names::TLS_INSPECTOR.to_owned(),
        config_type: Some(listener_filter::ConfigType::TypedConfig(packed(&TlsInspector::default()))),
        ..Default::default()
    }
}
