//! The authoring format: the only file of the tests that knows it. Values are written as JSON, which is YAML too.
//!
//! Routes are grouped by their hosts into services, because hosts belong to a service; the first service, `app`,
//! owns all clusters and certificates lie under `tls/`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{Action, Cluster, Config, Cors, ErrorPage, Listener, ListenerTls, Path, Protocol, Route};

/// Name of the service that owns the clusters.
const OWNER: &str = "app";

/// Files by path relative to the config directory.
pub(super) fn files(config: &Config) -> Vec<(String, String)> {
    let mut files = config.more_files.clone();
    let listeners: Map<String, Value> =
        config.listeners.iter().map(|one| (one.name.clone(), listener(one, &mut files))).collect();
    push(&mut files, "platform/listeners.yaml", &json!({ "listeners": listeners }));
    for (index, (hosts, routes)) in by_hosts(&config.routes).into_iter().enumerate() {
        let name = if index == 0 { OWNER.to_owned() } else { format!("{OWNER}-{index}") };
        let mut service = Map::new();
        service.insert("hosts".to_owned(), json!(hosts));
        if index == 0 {
            let clusters: Map<String, Value> =
                config.clusters.iter().map(|one| (one.name.clone(), cluster(one, &mut files))).collect();
            service.insert("clusters".to_owned(), Value::Object(clusters));
        }
        service.insert("routes".to_owned(), routes.iter().map(|one| route(one)).collect());
        push(&mut files, &format!("services/{name}/service.yaml"), &Value::Object(service));
    }
    files
}

fn push(files: &mut Vec<(String, String)>, path: &str, value: &Value) {
    let text = serde_json::to_string_pretty(value).expect("a value of strings and numbers");
    files.push((path.to_owned(), text + "\n"));
}

/// Routes grouped by equal host lists, in order of first appearance.
fn by_hosts(routes: &[Route]) -> Vec<(Vec<String>, Vec<&Route>)> {
    let mut groups: Vec<(Vec<String>, Vec<&Route>)> = Vec::new();
    for route in routes {
        match groups.iter_mut().find(|(hosts, _)| *hosts == route.hosts) {
            Some((_, group)) => group.push(route),
            None => groups.push((route.hosts.clone(), vec![route])),
        }
    }
    groups
}

/// An object that takes only what is set.
#[derive(Default)]
struct Set(Map<String, Value>);

impl Set {
    fn put(&mut self, key: &str, value: Option<impl Into<Value>>) -> &mut Self {
        if let Some(value) = value {
            self.0.insert(key.to_owned(), value.into());
        }
        self
    }

    /// Puts a sub-object unless it is empty.
    fn nest(&mut self, key: &str, inner: &mut Set) -> &mut Self {
        let inner = std::mem::take(&mut inner.0);
        self.put(key, (!inner.is_empty()).then_some(Value::Object(inner)))
    }

    fn value(&mut self) -> Value {
        Value::Object(std::mem::take(&mut self.0))
    }
}

fn time(duration: Option<Duration>) -> Option<String> {
    duration.map(|duration| format!("{}ms", duration.as_millis()))
}

fn some(list: &[String]) -> Option<Value> {
    (!list.is_empty()).then(|| json!(list))
}

fn pairs(list: &[(String, String)]) -> Option<Value> {
    let map: Map<String, Value> = list.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    (!map.is_empty()).then_some(Value::Object(map))
}

fn pages(list: &[ErrorPage]) -> Option<Value> {
    let page = |page: &ErrorPage| {
        Set::default()
            .put("status", Some(page.status))
            .put("body", Some(page.body.clone()))
            .put("content_type", page.content_type.clone())
            .value()
    };
    (!list.is_empty()).then(|| list.iter().map(page).collect())
}

fn cors(cors: &Cors) -> Value {
    Set::default()
        .put("origins", some(&cors.origins))
        .put("methods", some(&cors.methods))
        .put("headers", some(&cors.headers))
        .put("expose", some(&cors.expose))
        .put("max_age", cors.max_age.map(|age| format!("{}s", age.as_secs())))
        .put("credentials", cors.credentials.then_some(true))
        .value()
}

fn listener(listener: &Listener, files: &mut Vec<(String, String)>) -> Value {
    let mut set = Set::default();
    let address = listener.address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    set.put("address", Some(SocketAddr::new(address, listener.port).to_string()))
        .put("tls", listener.tls.as_ref().map(|one| tls(&listener.name, one, files)))
        .put("tcp", listener.tcp.clone())
        .put("merge_slashes", listener.merge_slashes.then_some(true))
        .put("escaped_slashes", listener.escaped_slashes)
        .put("upgrades", some(&listener.upgrades));
    let proxy_protocol = listener.proxy_protocol.as_ref().map(|trusted| {
        Set::default()
            .put("trusted", Some(json!(trusted)))
            .put("timeout", time(listener.proxy_header_timeout))
            .value()
    });
    set.put("proxy_protocol", proxy_protocol)
        .put("client_address", some(&listener.trusted_proxies).map(|trusted| json!({ "trusted": trusted })))
        .put("access", some(&listener.deny).map(|deny| json!({ "deny": deny })))
        .put("client_cert_header", listener.client_cert_field.then_some("replace"))
        .put("error_pages", pages(&listener.error_pages))
        .put("access_log", listener.access_log.as_ref().map(|path| access_log(path, listener)));
    set.nest(
        "client_limit",
        Set::default()
            .put("connections", listener.client_connections_max)
            .put("requests_per_second", listener.client_requests_per_second),
    );
    set.nest(
        "limits",
        Set::default()
            .put("connections_max", listener.connections_max)
            .put("header_bytes_max", listener.header_kib_max.map(|kib| format!("{kib}KiB")))
            .put("header_count_max", listener.header_count_max)
            .put("request_line_bytes_max", listener.request_line_bytes_max.map(|bytes| format!("{bytes}B")))
            .put("requests_per_connection_max", listener.requests_max)
            .put("connection_age_max", time(listener.connection_age_max)),
    );
    set.nest(
        "timeouts",
        Set::default()
            .put("handshake", time(listener.handshake_timeout))
            .put("header", time(listener.header_timeout))
            .put("idle", time(listener.idle_timeout))
            .put("body_idle", time(listener.body_idle_timeout)),
    );
    set.nest(
        "h2",
        Set::default()
            .put("streams_max", listener.h2_streams_max)
            .put("extended_connect", listener.extended_connect.then_some(true))
            .put("resets_max", listener.h2_resets_max)
            .put("control_frames_max", listener.h2_control_frames_max)
            .put("small_data_frames_max", listener.h2_small_data_frames_max),
    );
    set.value()
}

fn access_log(path: &str, listener: &Listener) -> Value {
    Set::default()
        .put("to", Some("file"))
        .put("path", Some(path))
        .put("template", listener.access_log_template.clone())
        .value()
}

fn tls(listener: &str, tls: &ListenerTls, files: &mut Vec<(String, String)>) -> Value {
    let mut certificates = Vec::new();
    for (index, leaf) in tls.leaves.iter().enumerate() {
        let (cert, key) = (format!("tls/{listener}-{index}.pem"), format!("tls/{listener}-{index}.key"));
        files.push((cert.clone(), leaf.certificate_pem.clone()));
        files.push((key.clone(), leaf.key_pem.clone()));
        certificates.push(json!({ "cert": cert, "key": key }));
    }
    let authority = tls.client_authority.as_ref().map(|pem| {
        let path = format!("tls/{listener}-clients.pem");
        files.push((path.clone(), pem.clone()));
        path
    });
    let wish = authority.as_ref().map(|_| if tls.client_required { "required" } else { "optional" });
    Set::default()
        .put("certificates", Some(certificates))
        .put("client_ca", authority)
        .put("client_certificate", wish)
        .put("unknown_name", tls.unknown_refused.then_some("refuse"))
        .value()
}

fn cluster(cluster: &Cluster, files: &mut Vec<(String, String)>) -> Value {
    let addresses = cluster.endpoints.iter().map(|address| json!(address.to_string()));
    let endpoints: Vec<Value> =
        addresses.chain(cluster.dns_endpoints.iter().map(|name| json!(name))).collect();
    let tls = cluster.tls.as_ref().map(|tls| {
        let ca = format!("tls/upstream-{}.pem", cluster.name);
        files.push((ca.clone(), tls.authority.clone()));
        let identity = tls.identity.as_ref().map(|leaf| {
            let (cert, key) = (
                format!("tls/upstream-{}-cert.pem", cluster.name),
                format!("tls/upstream-{}.key", cluster.name),
            );
            files.push((cert.clone(), leaf.certificate_pem.clone()));
            files.push((key.clone(), leaf.key_pem.clone()));
            (cert, key)
        });
        Set::default()
            .put("server_name", Some(tls.server_name.clone()))
            .put("ca", Some(ca))
            .put("cert", identity.as_ref().map(|(cert, _)| cert.clone()))
            .put("key", identity.map(|(_, key)| key))
            .value()
    });
    let mut set = Set::default();
    set.put("endpoints", Some(endpoints))
        .put("protocol", (cluster.protocol == Protocol::Http2).then_some("http2"))
        .put("connect_timeout", time(cluster.connect_timeout))
        .put("tls", tls)
        .nest("pool", &mut pool(cluster));
    set.0.extend(cluster.rules.clone());
    set.value()
}

fn pool(cluster: &Cluster) -> Set {
    let mut set = Set::default();
    set.put("idle_timeout", time(cluster.pool_idle_timeout))
        .put("h2_connections_max", cluster.h2_connections_max)
        .put("h2_streams_max", cluster.h2_streams_max)
        .put("h2_ping_interval", time(cluster.h2_ping))
        .put("h2_ping_timeout", time(cluster.h2_ping));
    set
}

fn route(route: &Route) -> Value {
    let mut set = Set::default();
    set.put("name", Some(route.name.clone()));
    let (key, path) = match &route.path {
        Path::Prefix(path) => ("prefix", path),
        Path::Exact(path) => ("path", path),
        Path::Regex(pattern) => ("regex", pattern),
    };
    set.nest(
        "match",
        Set::default()
            .put(key, Some(path.clone()))
            .put("methods", some(&route.methods))
            .put("headers", pairs(&route.fields))
            .put("query", pairs(&route.query)),
    );
    action(route, &mut set);
    set.put("split_by", route.hash_field.as_ref().map(|name| json!({ "header": name })))
        .put("rewrite", route.prefix_rewrite.as_ref().map(|prefix| json!({ "prefix": prefix })))
        .put("timeout", time(route.timeout).filter(|_| !route.streaming))
        .put("streaming", route.streaming.then_some(true))
        .put("idle_timeout", time(route.idle_timeout))
        .put("body_max", route.body_bytes_max.map(|bytes| format!("{bytes}B")))
        .put("request_headers", pairs(&route.request_set).map(|set| json!({ "set": set })))
        .put("response_headers", pairs(&route.response_set).map(|set| json!({ "set": set })))
        .put("cors", route.cors.as_ref().map(cors))
        .put("error_pages", pages(&route.error_pages))
        .put("access", some(&route.deny).map(|deny| json!({ "deny": deny })))
        .put("deprecation", route.deprecation.clone())
        .put("sunset", route.sunset.clone());
    set.0.extend(route.rules.clone());
    set.value()
}

fn action(route: &Route, set: &mut Set) {
    let qualified = |name: &str| format!("{OWNER}/{name}");
    match &route.action {
        Action::Forward(clusters) => match clusters.as_slice() {
            [(name, _)] => {
                set.put("cluster", Some(qualified(name)));
            }
            many => {
                let split =
                    many.iter().map(|(name, weight)| json!({ "cluster": qualified(name), "weight": weight }));
                set.put("split", Some(split.collect::<Vec<_>>()));
            }
        },
        Action::Redirect { status, host, path, https } => {
            let redirect = Set::default()
                .put("status", Some(*status))
                .put("host", host.clone())
                .put("path", path.clone())
                .put("https", https.then_some(true))
                .value();
            set.put("redirect", Some(redirect));
        }
        Action::Direct { status, body } => {
            let body = Some(body.clone()).filter(|body| !body.is_empty());
            set.put("respond", Some(Set::default().put("status", Some(*status)).put("body", body).value()));
        }
    }
}
