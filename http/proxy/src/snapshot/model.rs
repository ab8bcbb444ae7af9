//! The immutable configuration of one core: what `compile` makes from resources and what the request path
//! reads. Everything is resolved: names are indices, durations are bounded, patterns are compiled.
//!
//! Invariants (checked by `compile`): every index is in range, weights are not zero, durations and sizes lie
//! in the limits of docs/limits.md. A snapshot is built off the core and handed over whole.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_balance::check::CheckRules;
use http_balance::endpoint::Health;
use http_balance::mirror::MirrorRules;
use http_balance::plan::{Policy, Standing};
use http_balance::retry::RetryRules;
use http_balance::shed::Class;
use http_balance::sticky::{CookieKey, CookieMac};
use http_balance::tables::{Kept, Tables};
use http_balance::{ClusterPlan, EndpointId, EndpointSpec};
use http_gateway::acl::AddressRules;
use http_gateway::body_limit::BodyRate;
use http_gateway::cidr::CidrSet;
use http_gateway::client_addr::ClientAddrRules;
use http_gateway::client_limit::ClientLimit;
use http_gateway::cors::CorsPolicy;
use http_gateway::fields::FieldOps;
use http_gateway::jwt::{TokenPolicy, TokenProvider};
use rustc_hash::FxHashMap;

use crate::route::RouteTable;

/// Index of a series in the statistics frame; stable for a name while the process lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StatId(pub u32);

/// Index into [`Snapshot::clusters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClusterIndex(pub usize);

/// Everything one core needs to serve, for one config version.
#[derive(Debug)]
pub struct Snapshot {
    /// Version of the resources that this was made from.
    pub version: String,
    pub listeners: Vec<ListenerConfig>,
    pub clusters: Vec<ClusterConfig>,
}

/// How new connections are spread over the cores' listening sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Steering {
    /// The kernel's SO_REUSEPORT hash.
    #[default]
    KernelHash,
    /// The core that took the packet (SO_INCOMING_CPU, reuseport BPF).
    IncomingCpu,
    /// Hand-over through the mailbox to the core with the fewest connections.
    LeastLoaded,
}

#[derive(Debug)]
pub struct ListenerConfig {
    pub name: String,
    pub stat: StatId,
    pub address: SocketAddr,
    pub steering: Steering,
    /// Connections of this listener on one core; one more is refused and counted.
    pub connections_max: usize,
    pub proxy_protocol: Option<ProxyProtocolConfig>,
    pub tls: Option<tls::ServerContext>,
    pub tickets: TicketSource,
    /// By the address of the client (after PROXY protocol).
    pub access: AddressRules,
    pub http: HttpConfig,
    pub routes: RouteTable,
    pub access_log: Option<AccessLogConfig>,
    /// Connections are passed on byte by byte; `http` and `routes` then mean nothing.
    pub tcp: Option<TcpConfig>,
}

/// Where the connections of a TCP listener go.
#[derive(Debug, Default)]
pub struct TcpConfig {
    /// By lower-case server name (SNI).
    pub exact: FxHashMap<String, TcpTarget>,
    /// By what follows the `*` of a wildcard, with its dot: `.example.com`. The longest that fits counts.
    pub suffixes: FxHashMap<String, TcpTarget>,
    /// For all other connections; None: they are closed.
    pub default: Option<TcpTarget>,
    /// From accept to the whole ClientHello.
    pub hello_timeout: Duration,
    /// What connections to endpoints begin with; None: the client's own bytes.
    pub proxy_header: Option<ProxyHeader>,
}

/// Versions of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyHeader {
    V1,
    V2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpTarget {
    pub cluster: ClusterIndex,
    /// Without a byte either way.
    pub idle_timeout: Duration,
    /// Age at which a connection is cut; None: never.
    pub age_max: Option<Duration>,
}

impl TcpConfig {
    /// Whether the client's first bytes are needed to choose.
    pub fn goes_by_name(&self) -> bool {
        !self.exact.is_empty() || !self.suffixes.is_empty()
    }

    /// By the lower-case server name that a client asked for.
    pub fn target(&self, server_name: Option<&str>) -> Option<TcpTarget> {
        let Some(name) = server_name else { return self.default };
        let dots = name.match_indices('.').map(|(at, _)| name.get(at..).unwrap_or(""));
        let by_suffix = || dots.filter(|suffix| suffix.len() < name.len());
        let found = self.exact.get(name).or_else(|| by_suffix().find_map(|suffix| self.suffixes.get(suffix)));
        found.copied().or(self.default)
    }
}

/// Where the keys of session tickets come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TicketSource {
    /// No tickets: plaintext, or turned off.
    #[default]
    Off,
    /// The resources hold the keys; they change with the config.
    Resources,
    /// The process made them, and whoever rotates them gives this listener's context the new ones.
    Process,
}

/// PROXY protocol v1/v2 inbound. Peers outside `trusted` are closed.
#[derive(Debug)]
pub struct ProxyProtocolConfig {
    pub trusted: CidrSet,
    pub header_timeout: Duration,
}

/// What to do with `%2F` and `%5C` in a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EscapedSlashes {
    /// Kept as they are, not treated as `/`.
    #[default]
    Keep,
    /// 400.
    Reject,
    /// Decoded, and the client redirected to the decoded path.
    Redirect,
}

/// Client certificate details towards backends (`x-forwarded-client-cert`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertField {
    /// Client-sent fields are removed, none is added.
    #[default]
    Strip,
    /// Client-sent fields are removed, ours is added when the client showed a certificate.
    Replace,
}

/// Per-listener HTTP behaviour and limits; the defaults are in docs/limits.md.
#[derive(Debug)]
pub struct HttpConfig {
    pub client_addr: ClientAddrRules,
    pub client_cert_field: ClientCertField,
    /// Concurrent connections and requests a second per client address.
    pub client_limit: Option<ClientLimit>,
    pub merge_slashes: bool,
    pub escaped_slashes: EscapedSlashes,
    /// Bytes of a request head on the wire (h1) and decoded (h2).
    pub header_bytes_max: usize,
    pub header_count_max: usize,
    /// Bytes of the request line.
    pub request_line_bytes_max: usize,
    /// From the first byte wanted to a whole head.
    pub header_timeout: Duration,
    /// TLS handshake, from accept.
    pub handshake_timeout: Duration,
    /// Between two requests of a connection; control frames do not refresh it.
    pub idle_timeout: Duration,
    /// Without any progress of a body, either way.
    pub body_idle_timeout: Duration,
    /// Age after which a connection is closed at the next safe moment, spread by `age_jitter`; None: never.
    pub connection_age_max: Option<Duration>,
    /// Share of `connection_age_max` and `requests_max` by which each connection's own limit is shortened, 0 to 1.
    pub age_jitter: f32,
    /// Requests per connection; None: no limit.
    pub requests_max: Option<u32>,
    pub h2: H2Config,
    /// Upgrade protocols that are passed on, lower case (`websocket`).
    pub upgrades: Vec<String>,
    /// Bodies for errors that the proxy makes, by status; a route's own page wins.
    pub error_pages: Vec<ErrorPage>,
    /// By [`TokenRule::provider`].
    pub token_providers: Vec<TokenProvider>,
}

impl HttpConfig {
    /// What a route asks of its callers' tokens.
    pub fn token_policy<'a>(&'a self, route: &'a Route) -> Option<TokenPolicy<'a>> {
        let rule = route.token.as_ref()?;
        // `compile` resolved it. An index that is out of range must not open the route, so this is no `get`.
        let provider = &self.token_providers[rule.provider];
        Some(TokenPolicy { provider, scopes: &rule.scopes })
    }
}

/// HTTP/2 towards clients.
#[derive(Debug)]
pub struct H2Config {
    pub streams_max: u32,
    pub stream_window_bytes: u32,
    pub connection_window_bytes: u32,
    pub frame_bytes_max: u32,
    /// RFC 8441.
    pub extended_connect: bool,
    /// Budgets of cheap-to-send, dear-to-handle frames in any window of ten seconds (CVE-2023-44487 and kin).
    pub resets_max: u32,
    pub control_frames_max: u32,
    pub small_data_frames_max: u32,
}

#[derive(Debug)]
pub struct AccessLogConfig {
    /// Number of the process-wide sink, see `StatRegistry::sinks`.
    pub sink: usize,
    /// Share of successful requests that are logged, 0 to 1; errors always are.
    pub success_sample: f32,
    /// The sink's template, compiled; None: JSON with all fields.
    pub template: Option<crate::record::Template>,
}

/// Where access log lines go, and in which form. Equal sinks are one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSink {
    pub target: LogTarget,
    /// Template with `%NAME%` operators; None: JSON with all fields.
    pub template: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    Stdout,
    /// Path of a file that is opened again on a signal.
    File(String),
    /// RFC 5424 to `unix:/dev/log` or `udp:192.0.2.1:514`.
    Syslog {
        address: SyslogAddress,
        tag: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyslogAddress {
    /// Path of a datagram socket.
    Unix(String),
    Udp(SocketAddr),
}

/// One route: what it matched by is in the table, this is what happens then.
#[derive(Debug)]
pub struct Route {
    pub name: String,
    pub stat: StatId,
    pub action: Action,
    /// From the whole request to the response head; None: off (streaming routes).
    pub timeout: Option<Duration>,
    /// Without progress in either direction; None: the listener's `body_idle_timeout`.
    pub idle_timeout: Option<Duration>,
    /// Request body bytes; None: no limit.
    pub body_bytes_max: Option<u64>,
    /// What the client has to send of a body; None: silence alone counts.
    pub body_rate: Option<BodyRate>,
    pub request_fields: FieldOps,
    pub response_fields: FieldOps,
    pub cors: Option<CorsPolicy>,
    pub access: Option<AddressRules>,
    pub client_limit: Option<ClientLimit>,
    pub token: Option<TokenRule>,
    /// Value of `Deprecation` (RFC 9745), e.g. `@1767225600`.
    pub deprecation: Option<String>,
    /// Value of `Sunset` (RFC 8594), an HTTP date.
    pub sunset: Option<String>,
    /// Bodies for errors that the proxy makes, by status.
    pub error_pages: Vec<ErrorPage>,
}

/// Callers show a valid token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRule {
    /// Index among the listener's `token_providers`.
    pub provider: usize,
    /// Each must be the token's.
    pub scopes: Vec<String>,
}

#[derive(Debug)]
pub enum Action {
    Forward(Box<Forward>),
    Redirect(Box<Redirect>),
    Direct(Box<DirectResponse>),
}

#[derive(Debug)]
pub struct Forward {
    pub split: ClusterSplit,
    pub path_rewrite: Option<PathRewrite>,
    pub host_rewrite: Option<HostRewrite>,
    /// What clusters with a hashing policy go by: the first of these that the request has. Without any it goes by
    /// least request.
    pub hash_by: Vec<HashKey>,
    /// The route's own rules; None: those of the cluster's plan. The budget is the cluster's either way.
    pub retry: Option<RetryRules>,
    pub idempotency_key: IdempotencyKey,
    /// What is shed first under strain, where the cluster sheds.
    pub class: Class,
    pub mirror: Option<Box<Mirror>>,
    /// Silence of the first attempt after which a second one starts; None: never.
    pub hedge_after: Option<Duration>,
}

/// Copies of requests for another cluster, which no client waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// None of the route's own.
    pub cluster: ClusterIndex,
    pub rules: MirrorRules,
    /// What the sample goes by; the request's id where there is none.
    pub key: Option<HashKey>,
    /// Lower-case names of fields that are not copied, beside credentials and cookies.
    pub removed_fields: Vec<String>,
    /// From the end of the copied request to that of its response.
    pub timeout: Duration,
}

/// Where a request's key for hashing is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashKey {
    /// Lower-case field name.
    Field(String),
    Cookie(String),
    /// Name of a query parameter, compared as it is on the wire.
    Query(String),
    /// The client, behind trusted proxies.
    ClientAddress,
}

/// Whether a POST that brings Idempotency-Key may be repeated like an idempotent request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdempotencyKey {
    #[default]
    Ignored,
    /// The backends behind the route promise to act once on each key.
    Honoured,
}

/// Weighted choice among clusters, by chance or by hash of something stable.
#[derive(Debug)]
pub struct ClusterSplit {
    /// Never empty; weights are above zero.
    pub entries: Vec<(ClusterIndex, u32)>,
    pub weight_total: u32,
    pub hash_by: Option<SplitKey>,
}

#[derive(Debug)]
pub enum SplitKey {
    /// Lower-case field name.
    Field(String),
    Cookie(String),
}

#[derive(Debug)]
pub enum PathRewrite {
    /// The matched prefix is replaced.
    Prefix(String),
    /// The whole path is replaced.
    Full(String),
    /// Every match is replaced; `\1` stands for a group.
    Regex { pattern: regex::bytes::Regex, substitution: String },
}

#[derive(Debug)]
pub enum HostRewrite {
    Literal(String),
    /// The endpoint's DNS name, for clusters that have one.
    Upstream,
}

#[derive(Debug)]
pub struct Redirect {
    pub status: u16,
    pub https: bool,
    pub host: Option<String>,
    pub port: Option<u16>,
    pub path: Option<PathRewrite>,
    pub strip_query: bool,
}

#[derive(Debug)]
pub struct DirectResponse {
    pub status: u16,
    pub content_type: String,
    pub body: Vec<u8>,
}

#[derive(Clone, Debug)]
pub struct ErrorPage {
    /// 400 to 599.
    pub status: u16,
    pub content_type: String,
    /// Shared by the routes that inherit the page.
    pub body: Bytes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpstreamProtocol {
    #[default]
    Http1,
    Http2,
}

/// A set of endpoints with the same job.
#[derive(Debug)]
pub struct ClusterConfig {
    pub name: String,
    pub stat: StatId,
    pub protocol: UpstreamProtocol,
    pub endpoints: Vec<EndpointConfig>,
    /// Names to resolve; their addresses join `endpoints` at run time.
    pub dns: Vec<DnsTarget>,
    pub connect_timeout: Duration,
    pub tls: Option<tls::ClientContext>,
    /// What a TLS connection asks for; means nothing without `tls`.
    pub server_name: ServerName,
    pub pool: PoolConfig,
    /// Rules, tables, and `endpoints` by position. Endpoints from `dns` are added on the core.
    pub plan: ClusterPlan,
    /// No endpoints any more, but they may still have sessions; the plan says how long.
    pub departed: Vec<EndpointConfig>,
    /// Checks that this process makes itself; None: none.
    pub check: Option<CheckRules>,
    /// Sessions by cookie; None: each request goes where the policy says.
    pub sticky: Option<Box<StickyConfig>>,
    /// Names by the numbers of [`EndpointRole::zone`]; the first is that of none.
    pub zones: Vec<String>,
    pub zone_preference: ZonePreference,
    pub subset: Subset,
}

/// A cluster whose hash tables change with what its names stand for.
#[derive(Debug)]
pub struct Named {
    policy: Policy,
    /// Of the config.
    endpoints: Vec<EndpointConfig>,
}

impl Named {
    /// Its tables once its names stand for these.
    pub(super) fn tables_with(&self, found: &[EndpointConfig], tables: &mut Tables) -> Vec<Kept> {
        let all = self.endpoints.iter().chain(joining(&self.endpoints, found));
        let specs: Vec<_> = all.map(EndpointConfig::spec).collect();
        tables.keep(self.policy, &specs)
    }
}

fn joining<'a>(
    own: &'a [EndpointConfig],
    found: &'a [EndpointConfig],
) -> impl Iterator<Item = &'a EndpointConfig> {
    found.iter().filter(|found| !own.iter().any(|own| own.address == found.address))
}

/// Which part of a cluster's endpoints this core has.
#[derive(Clone, Debug, Default)]
pub enum Subset {
    #[default]
    All,
    /// All of them, although the cluster asks for subsets: the proxy has not been told its place in the fleet.
    WithoutFleet,
    /// Without these, which are other cores' or other proxies'.
    Part { beyond: Vec<EndpointConfig> },
}

impl ClusterConfig {
    /// Found addresses that the config does not name itself.
    pub(crate) fn joining<'a>(
        &'a self,
        found: &'a [EndpointConfig],
    ) -> impl Iterator<Item = &'a EndpointConfig> {
        joining(&self.endpoints, found)
    }

    /// What its hash tables are made over; None where that does not change while the config is the same.
    pub fn named(&self) -> Option<Named> {
        let policy = self.plan.rules.policy;
        let is_hashed = matches!(policy, Policy::RingHash { .. } | Policy::Maglev { .. });
        (is_hashed && !self.dns.is_empty()).then(|| Named { policy, endpoints: self.endpoints.clone() })
    }

    /// The endpoints of the config, those that this core does not keep included.
    pub fn all_endpoints(&self) -> impl Iterator<Item = &EndpointConfig> {
        let beyond = match &self.subset {
            Subset::Part { beyond } => beyond.as_slice(),
            Subset::All | Subset::WithoutFleet => &[],
        };
        self.endpoints.iter().chain(beyond)
    }
}

/// Whether endpoints of the proxy's own zone come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZonePreference {
    #[default]
    Off,
    /// They would, but the proxy has not been told its zone.
    WithoutZone,
    On,
}

/// The cookie of sticky sessions. Their rules and rings are in the plan.
#[derive(Debug)]
pub struct StickyConfig {
    pub cookie: String,
    /// What the tags of this cluster's cookies are bound to.
    pub cluster: EndpointId,
    /// Behind the value in Set-Cookie, without `Secure`.
    pub attributes: String,
    pub current: tls::MacKey,
    pub previous: Option<tls::MacKey>,
}

impl CookieMac for StickyConfig {
    fn tag(&self, key: CookieKey, message: &[u8]) -> Option<[u8; 32]> {
        match key {
            CookieKey::Current => Some(self.current.tag(message)),
            CookieKey::Previous => self.previous.as_ref().map(|key| key.tag(message)),
        }
    }
}

/// The server name of TLS connections to a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ServerName {
    /// [`EndpointConfig::hostname`]; the address for an endpoint that has none.
    #[default]
    Endpoint,
    Fixed(String),
}

#[derive(Clone, Debug)]
pub struct EndpointConfig {
    pub address: SocketAddr,
    pub weight: u32,
    pub stat: StatId,
    /// DNS name for `HostRewrite::Upstream` and as default server name of TLS.
    pub hostname: Option<String>,
    pub role: EndpointRole,
}

/// What an endpoint is used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointRole {
    /// 0 is used first.
    pub priority: u8,
    pub standing: Standing,
    /// From whoever sent the config.
    pub health: Health,
    /// See [`ClusterConfig::zones`]; 0: none is known.
    pub zone: u16,
}

impl EndpointConfig {
    /// Identity in plans: the address alone, so that names and weights may change.
    pub fn id(&self) -> EndpointId {
        EndpointId::of(self.address.to_string().as_bytes())
    }

    /// As a plan has it.
    pub fn spec(&self) -> EndpointSpec {
        let EndpointRole { priority, standing, health, zone } = self.role;
        EndpointSpec { priority, standing, health, zone, ..EndpointSpec::new(self.id(), self.weight) }
    }
}

#[derive(Clone, Debug)]
pub struct DnsTarget {
    pub name: String,
    pub port: u16,
    pub weight: u32,
    pub stat: StatId,
    /// What [`EndpointConfig::hostname`] of its addresses is: `name`, unless the config says otherwise.
    pub hostname: String,
    /// Of each of its addresses.
    pub role: EndpointRole,
    /// Lower bound of the time between two look-ups; TTLs above it are obeyed.
    pub refresh_min: Duration,
    /// How long the last good answer is kept when look-ups fail.
    pub stale_max: Duration,
}

/// Bounds of one core's connections to one endpoint.
#[derive(Clone, Copy, Debug)]
pub struct PoolConfig {
    pub idle_max: usize,
    /// Shorter than the upstream's own limit, so that the proxy closes first.
    pub idle_timeout: Duration,
    pub connections_max: usize,
    pub requests_max: Option<u32>,
    /// h2 only.
    pub h2_connections_max: usize,
    pub h2_streams_max: u32,
    pub h2_ping_interval: Option<Duration>,
    pub h2_ping_timeout: Duration,
}
