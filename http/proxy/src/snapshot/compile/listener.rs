//! `Listener`, and its one filter chain.

use control_api::defaults::listener as limits;
use control_api::envoy::core::socket_address::Protocol;
use control_api::envoy::hcm::HttpConnectionManager;
use control_api::envoy::listener::{FilterChain, Listener, ListenerFilter, filter, listener_filter};
use control_api::envoy::names;
use control_api::envoy::proxy_protocol::ProxyProtocol;
use control_api::shard::v1::{ListenerOptions, Steering as SteeringOption, UnknownSni};
use http_gateway::acl::AddressRules;

use super::connection_manager::{self, Manager};
use super::fault::{Checked, Fault, Within, nothing_else};
use super::policy;
use super::tcp::{self as tcp, TcpParts};
use super::tls::{self, TlsSources};
use super::{shard_field, shard_options, value};
use crate::snapshot::model::{ProxyProtocolConfig, Steering, TicketSource};

/// A listener, but for its routes and the numbers that the registry gives.
#[derive(Debug)]
pub(super) struct ListenerParts {
    pub(super) name: String,
    pub(super) address: std::net::SocketAddr,
    pub(super) steering: Steering,
    pub(super) connections_max: usize,
    pub(super) proxy_protocol: Option<ProxyProtocolConfig>,
    pub(super) tls: Option<::tls::ServerContext>,
    pub(super) tickets: TicketSource,
    pub(super) access: AddressRules,
    pub(super) success_sample: f32,
    /// Of a TCP listener the defaults, and its access log.
    pub(super) manager: Manager,
    pub(super) tcp: Option<TcpParts>,
}

/// Where the connection manager stands in a listener: the front of its faults' paths.
pub(super) const MANAGER: &str = "filter_chains[0].filters[0].typed_config";

pub(super) fn listener(message: &Listener, sources: &TlsSources<'_>) -> Checked<ListenerParts> {
    let mut message = message.clone();
    let name = std::mem::take(&mut message.name);
    value::name("name", &name)?;
    let options: ListenerOptions = shard_options(message.metadata.take())?;
    if let Some(control_api::envoy::core::address::Address::SocketAddress(socket)) =
        message.address.as_mut().and_then(|address| address.address.as_mut())
        && socket.protocol != Protocol::Tcp as i32
    {
        return Err(Fault::unsupported("address.socket_address.protocol"));
    }
    let address = value::ip_and_port("address", message.address.take())?;
    value::fixed("enable_reuse_port", message.enable_reuse_port.take(), true)?;
    value::fixed("bind_to_port", message.bind_to_port.take(), true)?;
    let header_timeout = value::bounded_duration(
        "listener_filters_timeout",
        message.listener_filters_timeout.take(),
        &limits::PROXY_HEADER_TIMEOUT,
    )?;
    let mut filters = std::mem::take(&mut message.listener_filters);
    let inspects = tcp::take_inspector(&mut filters)?;
    let proxy_protocol =
        proxy_protocol(filters, &options)?.map(|trusted| ProxyProtocolConfig { trusted, header_timeout });
    let chains = std::mem::take(&mut message.filter_chains);
    nothing_else(&message)?;
    let (chain, tcp) = if chains.iter().any(tcp::is_tcp) {
        let (manager, tcp) = tcp::chains(chains, &options, inspects, header_timeout)?;
        (Chain { tls: None, tickets: TicketSource::Off, manager }, Some(tcp))
    } else {
        (http_chain(chains, &options, inspects, sources)?, None)
    };
    let steering = value::choice("steering", options.steering, |n| SteeringOption::try_from(n).ok());
    let steering = match shard_field(steering)? {
        SteeringOption::KernelHash => Steering::KernelHash,
        SteeringOption::IncomingCpu => Steering::IncomingCpu,
        SteeringOption::LeastLoaded => Steering::LeastLoaded,
    };
    let access = match &options.access {
        Some(rules) => shard_field(policy::address_rules(rules).within("access"))?,
        None => AddressRules::default(),
    };
    Ok(ListenerParts {
        name,
        address,
        steering,
        connections_max: shard_field(value::bounded_count(
            "connections_max",
            options.connections_max,
            &limits::CONNECTIONS,
        ))?,
        proxy_protocol,
        tls: chain.tls,
        tickets: chain.tickets,
        access,
        success_sample: connection_manager::share(
            "access_log_success_sample",
            options.access_log_success_sample,
            &limits::ACCESS_LOG_SUCCESS_SAMPLE,
        )?,
        manager: chain.manager,
        tcp,
    })
}

/// The trusted peers, when the PROXY protocol is on.
fn proxy_protocol(
    filters: Vec<ListenerFilter>,
    options: &ListenerOptions,
) -> Checked<Option<http_gateway::cidr::CidrSet>> {
    let field = "proxy_protocol_trusted_cidrs";
    let count = filters.len();
    let Some(mut filter) = filters.into_iter().next() else {
        if options.proxy_protocol_trusted_cidrs.is_empty() {
            return Ok(None);
        }
        return shard_field(Err(Fault::new(
            field,
            format!("needs the listener filter {}", names::PROXY_PROTOCOL),
        )));
    };
    if count > 1 {
        return Err(Fault::new("listener_filters", "has more than one entry"));
    }
    let mut check = || -> Checked<()> {
        let Some(listener_filter::ConfigType::TypedConfig(any)) = filter.config_type.take() else {
            return Err(Fault::missing("typed_config"));
        };
        filter.name.clear();
        nothing_else(&filter)?;
        let config: ProxyProtocol = value::extension("typed_config", Some(any))?;
        nothing_else(&config).within("typed_config")
    };
    check().within_item("listener_filters", 0)?;
    if options.proxy_protocol_trusted_cidrs.is_empty() {
        // Whoever may send the header chooses the client address.
        return shard_field(Err(Fault::missing(field)));
    }
    shard_field(policy::cidrs(field, &options.proxy_protocol_trusted_cidrs)).map(Some)
}

struct Chain {
    tls: Option<::tls::ServerContext>,
    tickets: TicketSource,
    manager: Manager,
}

/// The only chain of a listener that serves HTTP.
fn http_chain(
    mut chains: Vec<FilterChain>,
    options: &ListenerOptions,
    inspects: bool,
    sources: &TlsSources<'_>,
) -> Checked<Chain> {
    let (Some(chain), true) = (chains.pop(), chains.is_empty()) else {
        return Err(Fault::new("filter_chains", "must have exactly one entry"));
    };
    if inspects {
        return Err(Fault::new("listener_filters", "inspects TLS, which only TCP listeners do"));
    }
    if shard_field(tcp::proxy_header(options))?.is_some() {
        let message = "means nothing on an HTTP listener: connections to endpoints are shared";
        return shard_field(Err(Fault::new("send_proxy_protocol", message)));
    }
    filter_chain(chain, options, sources).within_item("filter_chains", 0)
}

fn filter_chain(
    mut chain: FilterChain,
    options: &ListenerOptions,
    sources: &TlsSources<'_>,
) -> Checked<Chain> {
    chain.name.clear();
    let handshake_timeout = value::bounded_duration(
        "transport_socket_connect_timeout",
        chain.transport_socket_connect_timeout.take(),
        &limits::HANDSHAKE_TIMEOUT,
    )?;
    let unknown_sni =
        shard_field(value::choice("unknown_sni", options.unknown_sni, |n| UnknownSni::try_from(n).ok()))?;
    let (tls, tickets) = match chain.transport_socket.take() {
        Some(socket) => {
            let (context, tickets) = tls::server(socket, unknown_sni, sources).within("transport_socket")?;
            (Some(context), tickets)
        }
        None if unknown_sni == UnknownSni::DefaultCertificate => (None, TicketSource::Off),
        None => return shard_field(Err(Fault::new("unknown_sni", "means nothing on a plaintext listener"))),
    };
    let mut filters = std::mem::take(&mut chain.filters);
    nothing_else(&chain)?;
    let (Some(mut filter), true) = (filters.pop(), filters.is_empty()) else {
        return Err(Fault::new("filters", "must have exactly one entry"));
    };
    let any = match filter.config_type.take() {
        Some(filter::ConfigType::TypedConfig(any)) => any,
        Some(filter::ConfigType::ConfigDiscovery(_)) => {
            return Err(Fault::unsupported("filters[0].config_discovery"));
        }
        None => return Err(Fault::missing("filters[0].typed_config")),
    };
    filter.name.clear();
    nothing_else(&filter).within_item("filters", 0)?;
    let message: HttpConnectionManager =
        value::extension("typed_config", Some(any)).within_item("filters", 0)?;
    let manager = connection_manager::manager(message, options, handshake_timeout);
    Ok(Chain { tls, tickets, manager: manager.within("typed_config").within_item("filters", 0)? })
}
