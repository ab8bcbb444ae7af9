//! TCP listeners: the filter chains that come out, and what is refused.

use control_api::envoy::listener::filter;
use control_api::envoy::names;
use control_api::envoy::tcp_proxy::{TcpProxy, tcp_proxy::ClusterSpecifier};
use control_api::from_any;

use super::{Set, loaded, with};
use crate::load_files;

fn config(keys: &str) -> Set {
    let listeners = format!(
        "listeners:\n  web: {{ address: 127.0.0.1:8080 }}\n  db: {{ address: 127.0.0.1:5432, {keys} }}\n"
    );
    with(&[
        ("platform/web.yaml", &listeners),
        (
            "services/sql/service.yaml",
            "clusters:\n  one: { endpoints: [\"127.0.0.1:1\"] }\n  two: { endpoints: [\"127.0.0.1:2\"] }\n",
        ),
    ])
}

#[test]
fn names_become_filter_chains_and_the_service_stays_out_of_http() {
    let keys = "tcp: { cluster: sql/one, server_names: { a.example: sql/two, \"*.b.example\": sql/two }, idle_timeout: 5m }";
    let resources = loaded(config(keys)).resources;
    let listener = resources.listeners.iter().find(|listener| listener.name == "db").expect("the listener");
    assert_eq!(listener.listener_filters[0].name, names::TLS_INSPECTOR);
    let chains: Vec<_> = listener
        .filter_chains
        .iter()
        .map(|chain| {
            let Some(filter::ConfigType::TypedConfig(any)) = &chain.filters[0].config_type else {
                panic!("{chain:?}")
            };
            let proxy: TcpProxy = from_any(any).expect("a TCP proxy");
            assert_eq!(proxy.idle_timeout.map(|time| time.seconds), Some(300));
            let Some(ClusterSpecifier::Cluster(cluster)) = proxy.cluster_specifier else {
                panic!("{chain:?}")
            };
            (
                cluster,
                chain.filter_chain_match.as_ref().map_or_else(Vec::new, |names| names.server_names.clone()),
            )
        })
        .collect();
    let names = vec!["*.b.example".to_owned(), "a.example".to_owned()];
    let sorted: Vec<_> = chains
        .into_iter()
        .map(|(cluster, mut names)| {
            names.sort();
            (cluster, names)
        })
        .collect();
    assert_eq!(sorted, [("sql/two".to_owned(), names), ("sql/one".to_owned(), Vec::new())]);
    assert_eq!(resources.routes.len(), 1, "a TCP listener has no hosts");
    let hosts: Vec<_> = resources.routes[0].virtual_hosts.iter().flat_map(|host| &host.domains).collect();
    assert_eq!(hosts, ["shop.example"], "the database is not served over HTTP");
}

#[test]
fn a_service_that_says_where_http_goes_is_served_both_ways() {
    let both = "name: sql\nlisteners: [web]\nhosts: [sql.example]\nendpoints: [\"127.0.0.1:1\"]\n";
    for service in
        [both, &both.replace("hosts: [sql.example]\n", ""), &both.replace("listeners: [web]\n", "")]
    {
        let mut set = config("tcp: { cluster: sql }");
        set.insert("services/sql/service.yaml".into(), service.as_bytes().to_vec());
        let resources = loaded(set).resources;
        let routes =
            resources.routes.iter().flat_map(|routes| &routes.virtual_hosts).flat_map(|host| &host.routes);
        assert!(routes.into_iter().any(|route| route.name.starts_with("sql/")), "{service}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_by_key() {
    for (keys, message) in [
        ("tcp: {}", "leads nowhere"),
        ("tcp: { cluster: sql/three }", "unknown cluster"),
        ("tcp: { server_names: { \"*\": sql/one } }", "no server name"),
        ("tcp: { cluster: sql/one }, merge_slashes: true", "means nothing on a TCP listener"),
        ("tcp: { cluster: sql/one }, limits: { header_count_max: 10 }", "means nothing on a TCP listener"),
        ("tcp: { cluster: sql/one }, client_limit: { requests_per_second: 9 }", "only `connections` counts"),
    ] {
        let errors = load_files(config(keys)).expect_err(message);
        let error = format!("{errors:?}");
        assert!(error.contains(message), "{keys}: {error}");
    }
}
