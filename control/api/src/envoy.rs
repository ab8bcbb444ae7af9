//! Envoy's v3 messages (from the `envoy-types` crate) under one short module tree, and the extension names that
//! go with them. Only what docs/resources.md lists is honoured, but the whole types are here, so that a reader can
//! see and name a field that it refuses.

pub use envoy_types::pb::google::protobuf as google;

/// `envoy.config.accesslog.v3`
pub use envoy_types::pb::envoy::config::accesslog::v3 as accesslog;
/// `envoy.config.cluster.v3`
pub use envoy_types::pb::envoy::config::cluster::v3 as cluster;
/// `envoy.config.common.mutation_rules.v3`
pub use envoy_types::pb::envoy::config::common::mutation_rules::v3 as mutation;
/// `envoy.config.core.v3`
pub use envoy_types::pb::envoy::config::core::v3 as core;
/// `envoy.config.endpoint.v3`
pub use envoy_types::pb::envoy::config::endpoint::v3 as endpoint;
/// `envoy.config.listener.v3`
pub use envoy_types::pb::envoy::config::listener::v3 as listener;
/// `envoy.config.route.v3`
pub use envoy_types::pb::envoy::config::route::v3 as route;

/// `envoy.extensions.access_loggers.file.v3`
pub use envoy_types::pb::envoy::extensions::access_loggers::file::v3 as file_log;
/// `envoy.extensions.access_loggers.stream.v3`
pub use envoy_types::pb::envoy::extensions::access_loggers::stream::v3 as stream_log;
/// `envoy.extensions.filters.http.cors.v3`
pub use envoy_types::pb::envoy::extensions::filters::http::cors::v3 as cors;
/// `envoy.extensions.filters.http.jwt_authn.v3`
pub use envoy_types::pb::envoy::extensions::filters::http::jwt_authn::v3 as jwt_authn;
/// `envoy.extensions.filters.http.router.v3`
pub use envoy_types::pb::envoy::extensions::filters::http::router::v3 as router;
/// `envoy.extensions.filters.listener.proxy_protocol.v3`
pub use envoy_types::pb::envoy::extensions::filters::listener::proxy_protocol::v3 as proxy_protocol;
/// `envoy.extensions.filters.listener.tls_inspector.v3`
pub use envoy_types::pb::envoy::extensions::filters::listener::tls_inspector::v3 as tls_inspector;
/// `envoy.extensions.filters.network.http_connection_manager.v3`
pub use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
/// `envoy.extensions.filters.network.tcp_proxy.v3`
pub use envoy_types::pb::envoy::extensions::filters::network::tcp_proxy::v3 as tcp_proxy;
/// `envoy.extensions.http.original_ip_detection.xff.v3`
pub use envoy_types::pb::envoy::extensions::http::original_ip_detection::xff::v3 as xff;
/// `envoy.extensions.transport_sockets.tls.v3`
pub use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3 as tls;
/// `envoy.extensions.upstreams.http.v3`
pub use envoy_types::pb::envoy::extensions::upstreams::http::v3 as upstream_http;

/// `envoy.type.matcher.v3`
pub use envoy_types::pb::envoy::r#type::matcher::v3 as matcher;
/// `envoy.type.v3`
pub use envoy_types::pb::envoy::r#type::v3 as types;

/// The names by which Envoy registers the extensions that shard accepts.
pub mod names {
    pub const HTTP_CONNECTION_MANAGER: &str = "envoy.filters.network.http_connection_manager";
    pub const TCP_PROXY: &str = "envoy.filters.network.tcp_proxy";
    pub const TLS_INSPECTOR: &str = "envoy.filters.listener.tls_inspector";
    pub const PROXY_PROTOCOL: &str = "envoy.filters.listener.proxy_protocol";
    pub const TLS: &str = "envoy.transport_sockets.tls";
    pub const ROUTER: &str = "envoy.filters.http.router";
    /// Also the key of a CORS policy in `typed_per_filter_config`.
    pub const CORS: &str = "envoy.filters.http.cors";
    /// Also the key of a route's requirement in `typed_per_filter_config`.
    pub const JWT_AUTHN: &str = "envoy.filters.http.jwt_authn";
    pub const XFF: &str = "envoy.http.original_ip_detection.xff";
    pub const FILE_ACCESS_LOG: &str = "envoy.access_loggers.file";
    pub const STDOUT_ACCESS_LOG: &str = "envoy.access_loggers.stdout";
    /// Key of the upstream protocol in `Cluster.typed_extension_protocol_options`.
    pub const UPSTREAM_HTTP: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
}
