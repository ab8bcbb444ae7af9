//! TCP listeners: filter chains with Envoy's `tcp_proxy`, told apart by server name.

use std::time::Duration;

use control_api::defaults::tcp as limits;
use control_api::envoy::accesslog::AccessLog;
use control_api::envoy::hcm::http_connection_manager::RouteSpecifier;
use control_api::envoy::hcm::{HttpConnectionManager, HttpFilter, http_filter};
use control_api::envoy::listener::{FilterChain, ListenerFilter, filter, listener_filter};
use control_api::envoy::names;
use control_api::envoy::route::RouteConfiguration;
use control_api::envoy::router::Router;
use control_api::envoy::tcp_proxy::{TcpProxy, tcp_proxy::ClusterSpecifier};
use control_api::envoy::tls_inspector::TlsInspector;
use control_api::shard::v1::{ListenerOptions, SendProxyProtocol};
use control_api::to_any;

use super::action::ClusterPlaces;
use super::connection_manager::{self, Manager};
use super::fault::{Checked, Fault, Within, nothing_else};
use super::{shard_field, value};
use crate::snapshot::model::{ProxyHeader, TcpConfig, TcpTarget};

/// The chains of a listener before their clusters are looked up.
#[derive(Debug)]
pub(super) struct TcpParts {
    chains: Vec<Chain>,
    hello_timeout: Duration,
    proxy_header: Option<ProxyHeader>,
}

#[derive(Debug)]
struct Chain {
    /// Empty: the one for all other connections.
    server_names: Vec<String>,
    cluster: String,
    idle_timeout: Duration,
    age_max: Option<Duration>,
}

/// Whether a chain passes TCP on.
pub(super) fn is_tcp(chain: &FilterChain) -> bool {
    let is_tcp_proxy = |any: &control_api::envoy::google::Any| {
        any.type_url.rsplit('/').next() == Some(<TcpProxy as prost::Name>::full_name().as_str())
    };
    chain.filters.iter().any(|filter| match &filter.config_type {
        Some(filter::ConfigType::TypedConfig(any)) => is_tcp_proxy(any),
        _ => false,
    })
}

/// Takes the TLS inspector out of the listener's filters; whether it was there.
pub(super) fn take_inspector(filters: &mut Vec<ListenerFilter>) -> Checked<bool> {
    let Some(at) = filters.iter().position(|filter| filter.name == names::TLS_INSPECTOR) else {
        return Ok(false);
    };
    let mut filter = filters.remove(at);
    let mut check = || -> Checked<()> {
        let Some(listener_filter::ConfigType::TypedConfig(any)) = filter.config_type.take() else {
            return Err(Fault::missing("typed_config"));
        };
        filter.name.clear();
        nothing_else(&filter)?;
        let config: TlsInspector = value::extension("typed_config", Some(any))?;
        nothing_else(&config).within("typed_config")
    };
    check().within_item("listener_filters", at)?;
    Ok(true)
}

/// Reads all chains. The access log is the same in each; what HTTP listeners have beside is at its defaults.
pub(super) fn chains(
    messages: Vec<FilterChain>,
    options: &ListenerOptions,
    inspects: bool,
    hello_timeout: Duration,
) -> Checked<(Manager, TcpParts)> {
    if options.client_limit.as_ref().is_some_and(|limit| limit.requests_per_second > 0) {
        return shard_field(Err(Fault::unsupported("client_limit.requests_per_second")));
    }
    let proxy_header = shard_field(proxy_header(options))?;
    let mut log: Option<Vec<AccessLog>> = None;
    let mut chains = Vec::with_capacity(messages.len());
    for (at, message) in messages.into_iter().enumerate() {
        let (chain, own_log) = chain(message).within_item("filter_chains", at)?;
        if log.as_ref().is_some_and(|log| *log != own_log) {
            let fault = Fault::new("access_log", "differs from that of the first chain");
            return Err(fault).within_item("filter_chains", at);
        }
        log.get_or_insert(own_log);
        chains.push(chain);
    }
    if chains.iter().any(|chain| !chain.server_names.is_empty()) != inspects {
        let message =
            format!("must have {} when chains match server names, and only then", names::TLS_INSPECTOR);
        return Err(Fault::new("listener_filters", message));
    }
    let router = HttpFilter {
        name: names::ROUTER.to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(to_any(&Router::default()))),
        ..Default::default()
    };
    // Serves nobody; a listener has one, and its access log is read with it.
    let routes = RouteConfiguration { name: "none".to_owned(), ..Default::default() };
    let manager = HttpConnectionManager {
        route_specifier: Some(RouteSpecifier::RouteConfig(routes)),
        http_filters: vec![router],
        access_log: log.unwrap_or_default(),
        use_remote_address: Some(control_api::envoy::google::BoolValue { value: true }),
        ..Default::default()
    };
    let handshake = control_api::defaults::listener::HANDSHAKE_TIMEOUT.default;
    let manager = connection_manager::manager(manager, options, handshake)
        .within("typed_config")
        .within_item("filters", 0)
        .within_item("filter_chains", 0)?;
    Ok((manager, TcpParts { chains, hello_timeout, proxy_header }))
}

/// What endpoints are told of the client.
pub(super) fn proxy_header(options: &ListenerOptions) -> Checked<Option<ProxyHeader>> {
    let known = |n| SendProxyProtocol::try_from(n).ok();
    Ok(match value::choice("send_proxy_protocol", options.send_proxy_protocol, known)? {
        SendProxyProtocol::SendNothing => None,
        SendProxyProtocol::SendV1 => Some(ProxyHeader::V1),
        SendProxyProtocol::SendV2 => Some(ProxyHeader::V2),
    })
}

fn chain(mut message: FilterChain) -> Checked<(Chain, Vec<AccessLog>)> {
    message.name.clear();
    let mut server_names = Vec::new();
    if let Some(mut condition) = message.filter_chain_match.take() {
        server_names = std::mem::take(&mut condition.server_names);
        nothing_else(&condition).within("filter_chain_match")?;
    }
    let mut filters = std::mem::take(&mut message.filters);
    nothing_else(&message)?;
    let (Some(mut filter), true) = (filters.pop(), filters.is_empty()) else {
        return Err(Fault::new("filters", "must have exactly one entry"));
    };
    let Some(filter::ConfigType::TypedConfig(any)) = filter.config_type.take() else {
        return Err(Fault::missing("filters[0].typed_config"));
    };
    filter.name.clear();
    nothing_else(&filter).within_item("filters", 0)?;
    let mut proxy: TcpProxy = value::extension("typed_config", Some(any)).within_item("filters", 0)?;
    let mut read = || -> Checked<_> {
        proxy.stat_prefix.clear();
        let cluster = match proxy.cluster_specifier.take() {
            Some(ClusterSpecifier::Cluster(cluster)) => cluster,
            Some(ClusterSpecifier::WeightedClusters(_)) => {
                return Err(Fault::unsupported("weighted_clusters"));
            }
            None => return Err(Fault::missing("cluster")),
        };
        let idle_timeout =
            value::bounded_duration("idle_timeout", proxy.idle_timeout.take(), &limits::IDLE_TIMEOUT)?;
        let age_max = value::ranged_duration(
            "max_downstream_connection_duration",
            proxy.max_downstream_connection_duration.take(),
            &limits::CONNECTION_AGE,
        )?;
        let log = std::mem::take(&mut proxy.access_log);
        nothing_else(&proxy)?;
        Ok((cluster, idle_timeout, age_max, log))
    };
    let (cluster, idle_timeout, age_max, log) = read().within("typed_config").within_item("filters", 0)?;
    Ok((Chain { server_names, cluster, idle_timeout, age_max }, log))
}

/// Looks the clusters up and files the names.
pub(super) fn config(parts: &TcpParts, places: &ClusterPlaces) -> Checked<TcpConfig> {
    let mut config = TcpConfig {
        hello_timeout: parts.hello_timeout,
        proxy_header: parts.proxy_header,
        ..TcpConfig::default()
    };
    for (at, chain) in parts.chains.iter().enumerate() {
        config.file(chain, places).within_item("filter_chains", at)?;
    }
    if config.exact.len() + config.suffixes.len() > limits::SERVER_NAMES_MAX {
        let message = format!("match more than {} server names", limits::SERVER_NAMES_MAX);
        return Err(Fault::new("filter_chains", message));
    }
    Ok(config)
}

impl TcpConfig {
    fn file(&mut self, chain: &Chain, places: &ClusterPlaces) -> Checked<()> {
        let Some(&cluster) = places.get(&chain.cluster) else {
            let message = format!("names the unknown cluster {:?}", chain.cluster);
            return Err(Fault::new("cluster", message)).within("typed_config").within_item("filters", 0);
        };
        let target = TcpTarget { cluster, idle_timeout: chain.idle_timeout, age_max: chain.age_max };
        if chain.server_names.is_empty() && self.default.replace(target).is_some() {
            return Err(Fault::new("filter_chain_match", "is empty, as in another chain"));
        }
        for name in &chain.server_names {
            let suffix = name.strip_prefix('*');
            let rest = suffix.map_or(name.as_str(), |suffix| suffix.strip_prefix('.').unwrap_or(""));
            let is_plain =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
            if rest.is_empty() || !rest.bytes().all(is_plain) {
                let message =
                    format!("has {name:?}: wanted is a lower-case DNS name, with `*.` in front or not");
                return Err(Fault::new("filter_chain_match.server_names", message));
            }
            let before = match suffix {
                Some(suffix) => self.suffixes.insert(suffix.to_owned(), target),
                None => self.exact.insert(name.clone(), target),
            };
            if before.is_some() {
                let message = format!("has {name:?}, which stands twice");
                return Err(Fault::new("filter_chain_match.server_names", message));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use control_api::envoy::listener::{Filter, FilterChainMatch};
    use control_api::envoy::tcp_proxy::tcp_proxy::WeightedCluster;
    use control_api::shard::v1::ClientLimit;

    use super::*;
    use crate::snapshot::model::ClusterIndex;

    /// Server names and their cluster.
    type Named<'a> = (&'a [&'a str], &'a str);

    fn parts(chains: &[Named<'_>]) -> TcpParts {
        let chain = |(names, cluster): &Named<'_>| Chain {
            server_names: names.iter().map(|name| (*name).to_owned()).collect(),
            cluster: (*cluster).to_owned(),
            idle_timeout: Duration::from_secs(60),
            age_max: None,
        };
        TcpParts {
            chains: chains.iter().map(chain).collect(),
            hello_timeout: Duration::from_secs(5),
            proxy_header: None,
        }
    }

    fn places() -> ClusterPlaces {
        ["a", "b", "c", "rest"]
            .iter()
            .enumerate()
            .map(|(at, name)| ((*name).to_owned(), ClusterIndex(at)))
            .collect()
    }

    #[test]
    fn the_exact_name_counts_then_the_longest_suffix_then_the_rest() {
        let chains: [Named<'_>; 4] = [
            (&["a.example", "x.b.example"], "a"),
            (&["*.b.example"], "b"),
            (&["*.example"], "c"),
            (&[], "rest"),
        ];
        let config = config(&parts(&chains), &places()).expect("valid");
        for (name, cluster) in [
            (Some("a.example"), 0),
            (Some("x.b.example"), 0),
            (Some("y.b.example"), 1),
            (Some("y.x.b.example"), 1),
            (Some("b.example"), 2),
            (Some("example"), 3),
            (Some("other"), 3),
            (None, 3),
        ] {
            let target = config.target(name).map(|target| target.cluster);
            assert_eq!(target, Some(ClusterIndex(cluster)), "{name:?}");
        }
        let strict = super::config(&parts(&chains[..1]), &places()).expect("valid");
        assert_eq!((strict.target(Some("b.example")), strict.target(None)), (None, None));
    }

    #[test]
    fn a_name_stands_once_and_is_a_name() {
        let cases: [(&[Named<'_>], &str); 6] = [
            (&[(&["a.example"], "a"), (&["a.example"], "b")], "twice"),
            (&[(&["*.a.example", "*.a.example"], "a")], "twice"),
            (&[(&[], "a"), (&[], "b")], "as in another chain"),
            (&[(&["A.example"], "a")], "lower-case"),
            (&[(&["*"], "a")], "lower-case"),
            (&[(&["a.example"], "nobody")], "unknown cluster"),
        ];
        for (chains, message) in cases {
            let fault = config(&parts(chains), &places()).expect_err(message);
            assert!(fault.message.contains(message), "{message}: {fault:?}");
        }
    }

    fn message(server_names: &[&str], specifier: ClusterSpecifier) -> FilterChain {
        let names: Vec<String> = server_names.iter().map(|name| (*name).to_owned()).collect();
        let proxy = TcpProxy {
            stat_prefix: "tcp".to_owned(),
            cluster_specifier: Some(specifier),
            ..TcpProxy::default()
        };
        FilterChain {
            filter_chain_match: (!names.is_empty())
                .then(|| FilterChainMatch { server_names: names, ..FilterChainMatch::default() }),
            filters: vec![Filter {
                name: names::TCP_PROXY.to_owned(),
                config_type: Some(filter::ConfigType::TypedConfig(to_any(&proxy))),
            }],
            ..FilterChain::default()
        }
    }

    #[test]
    fn what_envoy_has_beside_is_refused_by_name() {
        let plain = || ClusterSpecifier::Cluster("a".to_owned());
        let options = ListenerOptions::default();
        let rated = ListenerOptions {
            client_limit: Some(ClientLimit { requests_per_second: 9, ..ClientLimit::default() }),
            ..ListenerOptions::default()
        };
        let weighted = ClusterSpecifier::WeightedClusters(WeightedCluster::default());
        let read = |message, options, inspects| {
            chains(vec![message], options, inspects, Duration::from_secs(1))
                .map(|(_, parts)| parts.chains.len())
        };
        assert_eq!(read(message(&["a.example"], plain()), &options, true).ok(), Some(1));
        assert_eq!(read(message(&[], plain()), &options, false).ok(), Some(1));
        for (message, options, inspects, path) in [
            (message(&["a.example"], plain()), &options, false, "listener_filters"),
            (message(&[], plain()), &options, true, "listener_filters"),
            (message(&[], weighted), &options, false, "weighted_clusters"),
            (message(&[], plain()), &rated, false, "client_limit.requests_per_second"),
        ] {
            let fault = read(message, options, inspects).expect_err(path);
            assert!(format!("{fault:?}").contains(path), "{path}: {fault:?}");
        }
    }
}
