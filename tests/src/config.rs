//! A config directory as a test describes it: listeners, clusters, routes, with only what differs from the
//! defaults. `render` turns it into the authoring YAML; no other file of the tests knows that format.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde_json::{Map, Value};

use crate::port::free_port;
use crate::tls::Leaf;

mod render;

/// The whole config. Start with [`Config::to`] and change fields.
#[derive(Clone, Debug)]
pub struct Config {
    /// Reactors.
    pub cores: usize,
    pub admin: SocketAddr,
    pub drain: Duration,
    pub listeners: Vec<Listener>,
    pub clusters: Vec<Cluster>,
    pub routes: Vec<Route>,
    /// More files of the config directory, by path relative to it: what rules name.
    pub more_files: Vec<(String, String)>,
}

/// TLS of a listener.
#[derive(Clone, Debug, Default)]
pub struct ListenerTls {
    pub leaves: Vec<Leaf>,
    /// PEM of the authority of client certificates.
    pub client_authority: Option<String>,
    pub client_required: bool,
    /// A server name that fits no certificate fails the handshake.
    pub unknown_refused: bool,
}

/// One listener. None everywhere means the product's default.
#[derive(Clone, Debug, Default)]
pub struct Listener {
    pub name: String,
    /// 127.0.0.1 without one.
    pub address: Option<IpAddr>,
    pub port: u16,
    pub tls: Option<ListenerTls>,
    /// The keys of `tcp` as they are written; such a listener serves no HTTP.
    pub tcp: Option<Value>,
    /// CIDRs of peers that must send a PROXY header.
    pub proxy_protocol: Option<Vec<String>>,
    /// CIDRs of proxies whose X-Forwarded-For is believed.
    pub trusted_proxies: Vec<String>,
    pub deny: Vec<String>,
    /// `x-forwarded-client-cert` is made from the client's certificate.
    pub client_cert_field: bool,
    pub error_pages: Vec<ErrorPage>,
    pub upgrades: Vec<String>,
    pub access_log: Option<String>,
    /// Lines by template instead of JSON.
    pub access_log_template: Option<String>,
    pub merge_slashes: bool,
    pub escaped_slashes: Option<&'static str>,
    pub extended_connect: bool,
    pub header_timeout: Option<Duration>,
    pub handshake_timeout: Option<Duration>,
    pub proxy_header_timeout: Option<Duration>,
    pub idle_timeout: Option<Duration>,
    pub body_idle_timeout: Option<Duration>,
    pub connection_age_max: Option<Duration>,
    pub connections_max: Option<u32>,
    pub requests_max: Option<u32>,
    pub header_kib_max: Option<u32>,
    pub header_count_max: Option<u32>,
    pub request_line_bytes_max: Option<u32>,
    pub h2_streams_max: Option<u32>,
    pub h2_resets_max: Option<u32>,
    pub h2_control_frames_max: Option<u32>,
    pub h2_small_data_frames_max: Option<u32>,
    pub client_connections_max: Option<u32>,
    pub client_requests_per_second: Option<u32>,
}

/// The body of one error status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorPage {
    pub status: u16,
    pub body: String,
    pub content_type: Option<String>,
}

impl ErrorPage {
    /// A page of the default media type.
    #[must_use]
    pub fn new(status: u16, body: &str) -> Self {
        Self { status, body: body.to_owned(), content_type: None }
    }
}

/// Cross-origin rules of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cors {
    pub origins: Vec<String>,
    pub methods: Vec<String>,
    pub headers: Vec<String>,
    pub expose: Vec<String>,
    pub max_age: Option<Duration>,
    pub credentials: bool,
}

/// What endpoints of a cluster speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    #[default]
    Http1,
    Http2,
}

/// TLS towards a cluster.
#[derive(Clone, Debug, Default)]
pub struct ClusterTls {
    pub authority: String,
    pub server_name: String,
    pub identity: Option<Leaf>,
}

/// One cluster.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    pub name: String,
    pub protocol: Protocol,
    pub endpoints: Vec<SocketAddr>,
    /// Endpoints by DNS name and port, after those by address.
    pub dns_endpoints: Vec<String>,
    pub connect_timeout: Option<Duration>,
    pub pool_idle_timeout: Option<Duration>,
    pub h2_connections_max: Option<u32>,
    pub h2_streams_max: Option<u32>,
    /// Interval of keep-alive PINGs and the time for an answer.
    pub h2_ping: Option<Duration>,
    pub tls: Option<ClusterTls>,
    /// Keys of balancing and resilience as they are written.
    pub rules: Map<String, Value>,
}

/// How a route matches the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Path {
    Prefix(String),
    Exact(String),
    Regex(String),
}

/// What a route does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Cluster names and weights.
    Forward(Vec<(String, u32)>),
    Redirect {
        status: u16,
        host: Option<String>,
        path: Option<String>,
        https: bool,
    },
    Direct {
        status: u16,
        body: String,
    },
}

/// One route. None everywhere means the product's default.
#[derive(Clone, Debug)]
pub struct Route {
    pub name: String,
    pub hosts: Vec<String>,
    pub path: Path,
    pub methods: Vec<String>,
    /// Exact field values.
    pub fields: Vec<(String, String)>,
    /// Exact query parameters.
    pub query: Vec<(String, String)>,
    pub action: Action,
    /// Field name by whose hash the split is made.
    pub hash_field: Option<String>,
    pub prefix_rewrite: Option<String>,
    pub timeout: Option<Duration>,
    /// No request timeout, no body limit.
    pub streaming: bool,
    pub idle_timeout: Option<Duration>,
    pub body_bytes_max: Option<u64>,
    pub request_set: Vec<(String, String)>,
    pub response_set: Vec<(String, String)>,
    pub cors: Option<Cors>,
    pub error_pages: Vec<ErrorPage>,
    pub deny: Vec<String>,
    pub deprecation: Option<String>,
    pub sunset: Option<String>,
    /// Keys of resilience as they are written.
    pub rules: Map<String, Value>,
}

impl Config {
    /// One plain listener `main`, one h1 cluster `u` with `address`, everything routed there.
    #[must_use]
    pub fn to(address: SocketAddr) -> Self {
        Self::with(Cluster::new("u", &[address]))
    }

    /// As [`Self::to`] with an h2 cluster.
    #[must_use]
    pub fn to_h2(address: SocketAddr) -> Self {
        Self::with(Cluster { protocol: Protocol::Http2, ..Cluster::new("u", &[address]) })
    }

    /// One plain listener `main`, everything routed to `cluster`.
    #[must_use]
    pub fn with(cluster: Cluster) -> Self {
        let route = Route::prefix("all", "/").to(&cluster.name);
        Self {
            cores: 1,
            admin: SocketAddr::from(([127, 0, 0, 1], free_port())),
            drain: Duration::from_secs(5),
            listeners: vec![Listener::new("main")],
            clusters: vec![cluster],
            routes: vec![route],
            more_files: Vec::new(),
        }
    }

    /// With a file that a rule names.
    #[must_use]
    pub fn and_file(mut self, path: &str, content: &str) -> Self {
        self.more_files.push((path.to_owned(), content.to_owned()));
        self
    }

    /// Changes the first listener.
    #[must_use]
    pub fn listener(mut self, change: impl FnOnce(&mut Listener)) -> Self {
        change(&mut self.listeners[0]);
        self
    }

    /// Changes the first route.
    #[must_use]
    pub fn route(mut self, change: impl FnOnce(&mut Route)) -> Self {
        change(&mut self.routes[0]);
        self
    }

    /// Changes the first cluster.
    #[must_use]
    pub fn cluster(mut self, change: impl FnOnce(&mut Cluster)) -> Self {
        change(&mut self.clusters[0]);
        self
    }

    /// Adds a listener.
    #[must_use]
    pub fn and_listener(mut self, listener: Listener) -> Self {
        self.listeners.push(listener);
        self
    }

    /// Adds a cluster.
    #[must_use]
    pub fn and_cluster(mut self, cluster: Cluster) -> Self {
        self.clusters.push(cluster);
        self
    }

    /// Adds a route.
    #[must_use]
    pub fn and_route(mut self, route: Route) -> Self {
        self.routes.push(route);
        self
    }

    /// TLS with `leaves` on the first listener.
    #[must_use]
    pub fn tls(self, leaves: &[Leaf]) -> Self {
        self.listener(|listener| {
            listener.tls = Some(ListenerTls { leaves: leaves.to_vec(), ..ListenerTls::default() });
        })
    }

    /// Files of the config directory, by path relative to it.
    #[must_use]
    pub fn files(&self) -> Vec<(String, String)> {
        render::files(self)
    }
}

impl Listener {
    /// A plain listener on a free port of 127.0.0.1.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), port: free_port(), ..Self::default() }
    }
}

impl Cluster {
    /// An h1 cluster with one endpoint by DNS name, such as `localhost:9000`.
    #[must_use]
    pub fn named(name: &str, endpoint: &str) -> Self {
        Self { dns_endpoints: vec![endpoint.to_owned()], ..Self::new(name, &[]) }
    }

    /// An h1 cluster.
    #[must_use]
    pub fn new(name: &str, endpoints: &[SocketAddr]) -> Self {
        Self { name: name.to_owned(), endpoints: endpoints.to_vec(), ..Self::default() }
    }

    /// With a key of balancing or resilience as it is written.
    #[must_use]
    pub fn rule(mut self, key: &str, value: Value) -> Self {
        self.rules.insert(key.to_owned(), value);
        self
    }
}

impl Route {
    fn new(name: &str, path: Path) -> Self {
        Self {
            name: name.to_owned(),
            hosts: vec!["*".to_owned()],
            path,
            methods: Vec::new(),
            fields: Vec::new(),
            query: Vec::new(),
            action: Action::Direct { status: 404, body: String::new() },
            hash_field: None,
            prefix_rewrite: None,
            timeout: None,
            streaming: false,
            idle_timeout: None,
            body_bytes_max: None,
            request_set: Vec::new(),
            response_set: Vec::new(),
            cors: None,
            error_pages: Vec::new(),
            deny: Vec::new(),
            deprecation: None,
            sunset: None,
            rules: Map::new(),
        }
    }

    /// Matches paths below `prefix`, on every host.
    #[must_use]
    pub fn prefix(name: &str, prefix: &str) -> Self {
        Self::new(name, Path::Prefix(prefix.to_owned()))
    }

    /// Matches one path, on every host.
    #[must_use]
    pub fn exact(name: &str, path: &str) -> Self {
        Self::new(name, Path::Exact(path.to_owned()))
    }

    /// Matches whole paths by pattern, on every host.
    #[must_use]
    pub fn regex(name: &str, pattern: &str) -> Self {
        Self::new(name, Path::Regex(pattern.to_owned()))
    }

    /// Only for these hosts.
    #[must_use]
    pub fn host(mut self, host: &str) -> Self {
        self.hosts = vec![host.to_owned()];
        self
    }

    /// With a key of resilience as it is written.
    #[must_use]
    pub fn rule(mut self, key: &str, value: Value) -> Self {
        self.rules.insert(key.to_owned(), value);
        self
    }

    /// Forwards to one cluster.
    #[must_use]
    pub fn to(self, cluster: &str) -> Self {
        self.split(&[(cluster, 1)])
    }

    /// Forwards to clusters by weight.
    #[must_use]
    pub fn split(mut self, clusters: &[(&str, u32)]) -> Self {
        self.action =
            Action::Forward(clusters.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect());
        self
    }

    /// Answers from the config.
    #[must_use]
    pub fn direct(mut self, status: u16, body: &str) -> Self {
        self.action = Action::Direct { status, body: body.to_owned() };
        self
    }

    /// Applies a change.
    #[must_use]
    pub fn having(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}
