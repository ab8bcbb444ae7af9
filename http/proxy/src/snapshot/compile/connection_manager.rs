//! `HttpConnectionManager`: the HTTP behaviour of a listener.

use control_api::defaults::{h2 as h2_limits, listener as limits};
use control_api::envoy::core::http_protocol_options::HeadersWithUnderscoresAction;
use control_api::envoy::core::{CidrRange, Http2ProtocolOptions, HttpProtocolOptions, TypedExtensionConfig};
use control_api::envoy::cors::Cors;
use control_api::envoy::hcm::http_connection_manager::{
    ForwardClientCertDetails, PathWithEscapedSlashesAction, RouteSpecifier, UpgradeConfig,
};
use control_api::envoy::hcm::{HttpConnectionManager, HttpFilter, Rds, http_filter};
use control_api::envoy::jwt_authn::JwtAuthentication;
use control_api::envoy::names;
use control_api::envoy::route::RouteConfiguration;
use control_api::envoy::router::Router;
use control_api::envoy::xff::XffConfig;
use control_api::shard::v1::ListenerOptions;
use http_gateway::cidr::{Cidr, CidrSet};
use http_gateway::client_addr::{ClientAddrRules, ForwardedSource};
use http_wire::token::is_token;

use super::fault::{Checked, Fault, Within, nothing_else};
use super::policy::{LimitPlace, client_limit};
use super::token::{self, Requirements, Tokens};
use super::{access_log, shard_field, value};
use crate::snapshot::model::{ClientCertField, EscapedSlashes, H2Config, HttpConfig, LogSink};

/// What a connection manager says.
#[derive(Debug)]
pub(super) struct Manager {
    pub(super) http: HttpConfig,
    pub(super) routes: RouteSource,
    pub(super) log: Option<LogSink>,
    /// What routes may require of tokens.
    pub(super) requirements: Requirements,
}

#[derive(Debug)]
pub(super) enum RouteSource {
    Named(String),
    Inline(Box<RouteConfiguration>),
}

/// `handshake_timeout` stands in the filter chain, the rest of the times in the manager.
pub(super) fn manager(
    mut message: HttpConnectionManager,
    options: &ListenerOptions,
    handshake_timeout: std::time::Duration,
) -> Checked<Manager> {
    message.stat_prefix.clear();
    // Shard always does both, so either value asks for what happens anyway.
    message.always_set_request_id_in_response = false;
    message.proxy_100_continue = false;
    value::fixed("normalize_path", message.normalize_path.take(), true)?;
    value::fixed("generate_request_id", message.generate_request_id.take(), true)?;
    if let Some(h1) = message.http_protocol_options.take() {
        nothing_else(&h1).within("http_protocol_options")?;
    }
    let tokens = http_filters(std::mem::take(&mut message.http_filters), options)?;
    let (token_providers, requirements) = tokens.into_parts();
    let routes = match message.route_specifier.take() {
        Some(RouteSpecifier::Rds(rds)) => RouteSource::Named(rds_name(rds).within("rds")?),
        Some(RouteSpecifier::RouteConfig(config)) => RouteSource::Inline(Box::new(config)),
        Some(RouteSpecifier::ScopedRoutes(_)) => return Err(Fault::unsupported("scoped_routes")),
        None => return Err(Fault::new("", "has no routes: give rds or route_config")),
    };
    let log = access_log::sink(std::mem::take(&mut message.access_log))?;
    let error_pages =
        access_log::error_pages(message.local_reply_config.take()).within("local_reply_config")?;
    let common = Common::read(message.common_http_protocol_options.take().unwrap_or_default());
    let common = common.within("common_http_protocol_options")?;
    let h2 = h2(message.http2_protocol_options.take().unwrap_or_default(), options)?;
    let header_kib = value::bounded_u32(
        "max_request_headers_kb",
        message.max_request_headers_kb.take(),
        &limits::HEADER_KIB,
    )?;
    let client_limit = match &options.client_limit {
        Some(limit) => shard_field(client_limit(limit, LimitPlace::Listener).within("client_limit"))?,
        None => None,
    };
    let http = HttpConfig {
        client_addr: client_addr(&mut message)?,
        client_cert_field: client_cert_field(&mut message)?,
        client_limit,
        merge_slashes: std::mem::take(&mut message.merge_slashes),
        escaped_slashes: escaped_slashes(&mut message)?,
        header_bytes_max: count(header_kib) * 1024,
        header_count_max: common.header_count_max,
        request_line_bytes_max: shard_field(value::bounded_count(
            "request_line_bytes_max",
            options.request_line_bytes_max,
            &limits::REQUEST_LINE_BYTES,
        ))?,
        header_timeout: value::bounded_duration(
            "request_headers_timeout",
            message.request_headers_timeout.take(),
            &limits::HEADER_TIMEOUT,
        )?,
        handshake_timeout,
        idle_timeout: common.idle_timeout,
        body_idle_timeout: value::bounded_duration(
            "stream_idle_timeout",
            message.stream_idle_timeout.take(),
            &limits::BODY_IDLE_TIMEOUT,
        )?,
        connection_age_max: common.connection_age_max,
        age_jitter: share("connection_age_jitter", options.connection_age_jitter, &limits::AGE_JITTER)?,
        requests_max: common.requests_max,
        h2,
        upgrades: upgrades(std::mem::take(&mut message.upgrade_configs))?,
        error_pages,
        token_providers,
    };
    nothing_else(&message)?;
    Ok(Manager { http, routes, log, requirements })
}

/// A share of one of `ListenerOptions`; a single float is exact enough for odds.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the value lies between 0 and 1, where rounding is all that can happen"
)]
pub(super) fn share(
    field: &str,
    value: Option<f64>,
    bound: &control_api::defaults::Bound<f64>,
) -> Checked<f32> {
    shard_field(value::bounded(field, value, bound)).map(|share| share as f32)
}

fn count(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

fn rds_name(mut rds: Rds) -> Checked<String> {
    value::from_ads("config_source", rds.config_source.take())?;
    let name = std::mem::take(&mut rds.route_config_name);
    nothing_else(&rds)?;
    Ok(name)
}

/// The router is last. CORS may stand before it, and behind CORS the tokens' providers: in this order, which is the
/// chain's, a preflight needs no token. CORS and router do what they do with or without being listed.
fn http_filters(filters: Vec<HttpFilter>, options: &ListenerOptions) -> Checked<Tokens> {
    const ORDER: [&str; 2] = [names::CORS, names::JWT_AUTHN];
    let count = filters.len();
    if count == 0 {
        return Err(Fault::missing("http_filters"));
    }
    let (mut tokens, mut passed) = (None, 0);
    for (at, mut filter) in filters.into_iter().enumerate() {
        let mut check = || -> Checked<()> {
            let Some(http_filter::ConfigType::TypedConfig(any)) = filter.config_type.take() else {
                return Err(Fault::missing("typed_config"));
            };
            let name = std::mem::take(&mut filter.name);
            nothing_else(&filter)?;
            if at + 1 == count {
                let router: Router = value::extension("typed_config", Some(any))?;
                return nothing_else(&router).within("typed_config");
            }
            let Some(place) = ORDER.iter().position(|known| *known == name) else {
                return Err(Fault::new(
                    "name",
                    format!(
                        "is {name:?}, which is not supported: only {} may precede the router",
                        ORDER.join(" and ")
                    ),
                ));
            };
            if place < passed {
                return Err(Fault::new(
                    "name",
                    format!("stands twice or out of order: {}", ORDER.join(", ")),
                ));
            }
            passed = place + 1;
            if name == names::CORS {
                let Cors {} = value::extension("typed_config", Some(any))?;
            } else {
                let config: JwtAuthentication = value::extension("typed_config", Some(any))?;
                tokens = Some(token::tokens(config, &options.token_providers).within("typed_config")?);
            }
            Ok(())
        };
        check().within_item("http_filters", at)?;
    }
    match tokens {
        None if !options.token_providers.is_empty() => {
            shard_field(Err(Fault::new("token_providers", format!("needs the filter {}", names::JWT_AUTHN))))
        }
        tokens => Ok(tokens.unwrap_or_default()),
    }
}

struct Common {
    idle_timeout: std::time::Duration,
    connection_age_max: Option<std::time::Duration>,
    requests_max: Option<u32>,
    header_count_max: usize,
}

impl Common {
    fn read(mut common: HttpProtocolOptions) -> Checked<Self> {
        let read = Self {
            idle_timeout: value::bounded_duration(
                "idle_timeout",
                common.idle_timeout.take(),
                &limits::IDLE_TIMEOUT,
            )?,
            connection_age_max: value::ranged_duration(
                "max_connection_duration",
                common.max_connection_duration.take(),
                &limits::CONNECTION_AGE,
            )?,
            requests_max: value::ranged(
                "max_requests_per_connection",
                common.max_requests_per_connection.take().map(|n| n.value),
                &limits::REQUESTS_PER_CONNECTION,
            )?,
            header_count_max: value::bounded_count(
                "max_headers_count",
                common.max_headers_count.take().map(|n| n.value),
                &limits::HEADER_COUNT,
            )?,
        };
        if common.headers_with_underscores_action != HeadersWithUnderscoresAction::Allow as i32 {
            return Err(Fault::unsupported("headers_with_underscores_action"));
        }
        nothing_else(&common)?;
        Ok(read)
    }
}

fn h2(mut h2: Http2ProtocolOptions, options: &ListenerOptions) -> Checked<H2Config> {
    let mut read = || -> Checked<[u32; 3]> {
        Ok([
            value::bounded_u32(
                "max_concurrent_streams",
                h2.max_concurrent_streams.take(),
                &h2_limits::STREAMS,
            )?,
            value::bounded_u32(
                "initial_stream_window_size",
                h2.initial_stream_window_size.take(),
                &h2_limits::STREAM_WINDOW_BYTES,
            )?,
            value::bounded_u32(
                "initial_connection_window_size",
                h2.initial_connection_window_size.take(),
                &h2_limits::CONNECTION_WINDOW_BYTES,
            )?,
        ])
    };
    let [streams_max, stream_window_bytes, connection_window_bytes] =
        read().within("http2_protocol_options")?;
    let extended_connect = std::mem::take(&mut h2.allow_connect);
    nothing_else(&h2).within("http2_protocol_options")?;
    let bounded = |field, value, bound| shard_field(value::bounded(field, value, bound));
    Ok(H2Config {
        streams_max,
        stream_window_bytes,
        connection_window_bytes,
        frame_bytes_max: bounded("h2_frame_bytes_max", options.h2_frame_bytes_max, &h2_limits::FRAME_BYTES)?,
        extended_connect,
        resets_max: bounded("h2_resets_max", options.h2_resets_max, &h2_limits::RESETS)?,
        control_frames_max: bounded(
            "h2_control_frames_max",
            options.h2_control_frames_max,
            &h2_limits::CONTROL_FRAMES,
        )?,
        small_data_frames_max: bounded(
            "h2_small_data_frames_max",
            options.h2_small_data_frames_max,
            &h2_limits::SMALL_DATA_FRAMES,
        )?,
    })
}

fn client_addr(message: &mut HttpConnectionManager) -> Checked<ClientAddrRules> {
    let remote = message.use_remote_address.take().is_some_and(|remote| remote.value);
    let hops = value::bounded(
        "xff_num_trusted_hops",
        Some(std::mem::take(&mut message.xff_num_trusted_hops)),
        &limits::XFF_HOPS,
    )?;
    let mut detections = std::mem::take(&mut message.original_ip_detection_extensions);
    match (remote, detections.pop(), detections.is_empty()) {
        (true, None, _) => Ok(ClientAddrRules {
            trusted: CidrSet::default(),
            depth: hops,
            source: ForwardedSource::XForwardedFor,
        }),
        (true, Some(_), _) => {
            Err(Fault::new("original_ip_detection_extensions", "is not supported with use_remote_address"))
        }
        (false, None, _) => {
            Err(Fault::new("use_remote_address", "must be true, or original_ip_detection_extensions set"))
        }
        (false, Some(_), false) => {
            Err(Fault::new("original_ip_detection_extensions", "has more than one entry"))
        }
        (false, Some(_), true) if hops > 0 => {
            Err(Fault::new("xff_num_trusted_hops", "is not supported without use_remote_address"))
        }
        (false, Some(detection), true) => {
            let trusted = xff_cidrs(detection).within_item("original_ip_detection_extensions", 0)?;
            Ok(ClientAddrRules { trusted, depth: 0, source: ForwardedSource::XForwardedFor })
        }
    }
}

fn xff_cidrs(detection: TypedExtensionConfig) -> Checked<CidrSet> {
    let mut config: XffConfig = value::extension("typed_config", detection.typed_config)?;
    let mut read = || -> Checked<CidrSet> {
        value::fixed("skip_xff_append", config.skip_xff_append.take(), false)?;
        let ranges = config.xff_trusted_cidrs.take().unwrap_or_default().cidrs;
        nothing_else(&config)?;
        if ranges.is_empty() {
            return Err(Fault::missing("xff_trusted_cidrs.cidrs"));
        }
        let cidrs = ranges
            .iter()
            .enumerate()
            .map(|(at, range)| cidr(range).within_item("xff_trusted_cidrs.cidrs", at));
        cidrs.collect()
    };
    read().within("typed_config")
}

fn cidr(range: &CidrRange) -> Checked<Cidr> {
    let address = range.address_prefix.parse().map_err(|error| {
        Fault::new(
            "address_prefix",
            format!("is {:?}, it must be an IP literal ({error})", range.address_prefix),
        )
    })?;
    // Envoy reads no length as 0, which here would trust the world.
    let bits = range.prefix_len.ok_or_else(|| Fault::missing("prefix_len"))?.value;
    let bits =
        u8::try_from(bits).map_err(|error| Fault::new("prefix_len", format!("is {bits} ({error})")))?;
    Cidr::new(address, bits).map_err(|error| Fault::new("prefix_len", format!("is refused: {error}")))
}

fn client_cert_field(message: &mut HttpConnectionManager) -> Checked<ClientCertField> {
    let field = "forward_client_cert_details";
    let action = value::choice(field, std::mem::take(&mut message.forward_client_cert_details), |n| {
        ForwardClientCertDetails::try_from(n).ok()
    })?;
    let details = message.set_current_client_cert_details.take();
    match action {
        ForwardClientCertDetails::Sanitize if details.is_some() => {
            Err(Fault::new("set_current_client_cert_details", "is not supported without SANITIZE_SET"))
        }
        ForwardClientCertDetails::Sanitize => Ok(ClientCertField::Strip),
        ForwardClientCertDetails::SanitizeSet => {
            if let Some(mut details) = details {
                // The field always carries these three, beside the hash.
                (details.subject, details.dns, details.uri) = (None, false, false);
                nothing_else(&details).within("set_current_client_cert_details")?;
            }
            Ok(ClientCertField::Replace)
        }
        ForwardClientCertDetails::ForwardOnly
        | ForwardClientCertDetails::AppendForward
        | ForwardClientCertDetails::AlwaysForwardOnly => {
            Err(Fault::new(field, "is not supported: SANITIZE and SANITIZE_SET are"))
        }
    }
}

fn escaped_slashes(message: &mut HttpConnectionManager) -> Checked<EscapedSlashes> {
    use PathWithEscapedSlashesAction as Wanted;
    let field = "path_with_escaped_slashes_action";
    let number = std::mem::take(&mut message.path_with_escaped_slashes_action);
    match value::choice(field, number, |n| Wanted::try_from(n).ok())? {
        Wanted::ImplementationSpecificDefault | Wanted::KeepUnchanged => Ok(EscapedSlashes::Keep),
        Wanted::RejectRequest => Ok(EscapedSlashes::Reject),
        Wanted::UnescapeAndRedirect => Ok(EscapedSlashes::Redirect),
        // Two readers of one path would see two paths.
        Wanted::UnescapeAndForward => Err(Fault::new(field, "is not supported as UNESCAPE_AND_FORWARD")),
    }
}

fn upgrades(configs: Vec<UpgradeConfig>) -> Checked<Vec<String>> {
    if configs.len() > limits::UPGRADES_MAX {
        return Err(Fault::new("upgrade_configs", format!("has more than {} entries", limits::UPGRADES_MAX)));
    }
    let mut protocols = Vec::with_capacity(configs.len());
    for (at, mut config) in configs.into_iter().enumerate() {
        let protocol = std::mem::take(&mut config.upgrade_type).to_ascii_lowercase();
        let enabled = config.enabled.take().is_none_or(|enabled| enabled.value);
        let check = || -> Checked<()> {
            nothing_else(&config)?;
            // A tunnel to anywhere is no upgrade of a request to a route's upstream.
            if protocol == "connect" || !is_token(protocol.as_bytes()) {
                return Err(Fault::new("upgrade_type", format!("is {protocol:?}, which is not supported")));
            }
            Ok(())
        };
        check().within_item("upgrade_configs", at)?;
        if enabled && !protocols.contains(&protocol) {
            protocols.push(protocol);
        }
    }
    Ok(protocols)
}
