//! Keys of balancing and resilience, from the author's file to the plan that the proxy decides by.

use std::os::unix::fs::PermissionsExt;

use http_proxy::snapshot::{
    Action, ClusterConfig, Forward, HashKey, Host, Snapshot, StatRegistry, compile_for,
};
use tests::dir::TempDir;

use crate::compiled;

fn config(cluster: &str, route: &str) -> TempDir {
    let dir = TempDir::new("balance");
    let text = format!(
        "listeners: {{ web: {{ address: 127.0.0.1:8080 }} }}\nservices:\n  shop:\n    clusters:\n      main: {{ endpoints: [\"127.0.0.1:1\", \"127.0.0.1:2\"]{cluster} }}\n    routes: [{{ cluster: main{route} }}]\n"
    );
    dir.write("shard.yaml", text);
    dir
}

fn cluster(keys: &str) -> ClusterConfig {
    compiled(config(keys, "").path()).clusters.remove(0)
}

#[track_caller]
fn with_forward(snapshot: &Snapshot, look: impl FnOnce(&Forward)) {
    let route = snapshot.listeners[0].routes.routes().next().expect("one route");
    match &route.action {
        Action::Forward(forward) => look(forward),
        other => panic!("{other:?}"),
    }
}

/// What a rule says of itself where a key differs from the default, and nowhere else.
#[test]
fn every_key_of_a_cluster_changes_its_rules() {
    let plain = format!("{:?}", cluster("").plan.rules);
    for keys in [
        "balance: round_robin",
        "balance: random",
        "balance: least_connections",
        "balance: peak_ewma",
        "balance: { policy: peak_ewma, tau: 5s }",
        "balance: ring_hash",
        "balance: { policy: ring_hash, virtual_nodes: 300 }",
        "balance: { policy: ring_hash, load_bound_percent: 125 }",
        "balance: maglev",
        "slow_start: false",
        "slow_start: { window: 30s, floor_percent: 50 }",
        "slow_start: { aggression: 2 }",
        "outlier: false",
        "outlier: { consecutive_5xx: 3 }",
        "outlier: { consecutive_gateway: 0 }",
        "outlier: { consecutive_local: 3 }",
        "outlier: { success_rate: true }",
        "outlier: { latency: true }",
        "outlier: { interval: 5s }",
        "outlier: { ejection: 5s }",
        "outlier: { ejection_max: 50s }",
        "outlier: { ejected_percent_max: 50 }",
        "outlier: { endpoints_min: 3 }",
        "outlier: { endpoints_min: 0 }",
        "outlier: { log_only: true }",
        "panic_percent: 0",
        "in_flight_max: 9",
        "adaptive: true",
        "breaker: true",
        "shed: true",
        "retry_budget: { percent: 0 }",
        "retry_budget: { floor_per_second: 5 }",
    ] {
        let changed = format!("{:?}", cluster(&format!(", {keys}")).plan.rules);
        assert_ne!(changed, plain, "{keys} changes nothing");
    }
    for keys in [
        "balance: p2c",
        "slow_start: true",
        "slow_start: { window: 60s, floor_percent: 10, aggression: 1 }",
        "outlier: true",
        "outlier: { consecutive_5xx: 5, consecutive_gateway: 5, consecutive_local: 5, success_rate: false, latency: false, interval: 10s, ejection: 30s, ejection_max: 5m, ejected_percent_max: 20, endpoints_min: 2, log_only: false }",
        "panic_percent: 50",
        "adaptive: false",
        "breaker: false",
        "shed: false",
        "retry_budget: { percent: 10, floor_per_second: 10 }",
    ] {
        let same = format!("{:?}", cluster(&format!(", {keys}")).plan.rules);
        assert_eq!(same, plain, "{keys} is the documented default");
    }
}

#[test]
fn switched_on_rules_have_their_documented_defaults() {
    for (short, long) in [
        ("adaptive: true", "adaptive: { in_flight_min: 10, in_flight_max: 1000, tolerance_percent: 150 }"),
        (
            "breaker: true",
            "breaker: { failure_percent: 50, requests_min: 100, window: 10s, open: 10s, probe_percent: 5, probes: 5 }",
        ),
        ("shed: true", "shed: { sheddable_from: 75, free_from: 80, standard_from: 86, critical_from: 94 }"),
        (
            "outlier: { success_rate: true }",
            "outlier: { success_rate: { deviation_percent: 190, endpoints_min: 5, requests_min: 100 } }",
        ),
        (
            "outlier: { latency: true }",
            "outlier: { latency: { median_percent: 300, endpoints_min: 5, requests_min: 50 } }",
        ),
        ("balance: peak_ewma", "balance: { policy: peak_ewma, tau: 10s, failure_penalty: 1s }"),
        ("balance: ring_hash", "balance: { policy: ring_hash, hash_by: client_address, virtual_nodes: 256 }"),
    ] {
        let rules = |keys: &str| cluster(&format!(", {keys}")).plan.rules;
        assert_eq!(rules(short), rules(long), "{short}");
    }
}

#[test]
fn a_key_for_hashing_reaches_the_route() {
    for (hash_by, wanted) in [
        ("client_address", HashKey::ClientAddress),
        ("{ header: x-user }", HashKey::Field("x-user".to_owned())),
        ("{ cookie: id }", HashKey::Cookie("id".to_owned())),
        ("{ query: id }", HashKey::Query("id".to_owned())),
    ] {
        let dir = config(&format!(", balance: {{ policy: maglev, hash_by: {hash_by} }}"), "");
        with_forward(&compiled(dir.path()), |forward| assert_eq!(forward.hash_by, [wanted]));
    }
}

#[test]
fn every_key_of_a_route_changes_it() {
    let shown = |keys: &str| {
        let mut text = String::new();
        with_forward(&compiled(config("", keys).path()), |forward| text = format!("{forward:?}"));
        text
    };
    let plain = shown("");
    for keys in [
        "retries: 0",
        "retries: { max: 2 }",
        "retries: { per_try_timeout: 1s }",
        "retries: { idempotency_key: true }",
        "priority_class: sheddable",
        "priority_class: critical",
    ] {
        assert_ne!(shown(&format!(", {keys}")), plain, "{keys} changes nothing");
    }
    let on_timeout = shown(", retries: { per_try_timeout: 1s, on_timeout: true }");
    assert_ne!(on_timeout, shown(", retries: { per_try_timeout: 1s }"));
    assert_eq!(shown(", priority_class: standard"), plain);
}

#[test]
fn a_grpc_check_needs_a_cluster_that_speaks_http2() {
    for (check, protocol, is_fit) in [
        ("/healthz", "http1", true),
        ("{ tcp: true }", "http1", true),
        ("/healthz", "http2", true),
        ("{ grpc: \"\" }", "http2", true),
        ("{ grpc: \"\" }", "http1", false),
    ] {
        let dir = config(&format!(", protocol: {protocol}, health_check: {check}"), "");
        let loaded = control_config::load(dir.path()).expect("the loader takes it");
        match compile_for(&loaded.resources, &Host::default(), &mut StatRegistry::default()) {
            Ok(snapshot) => assert!(is_fit && snapshot.clusters[0].check.is_some(), "{check} {protocol}"),
            Err(nacks) => {
                let line = nacks[0].to_string();
                assert!(!is_fit, "{line}");
                let words = "Cluster \"shop/main\": health_checks[0].grpc_health_check needs a cluster that speaks HTTP/2";
                assert!(line.contains(words), "{line}");
            }
        }
    }
}

#[test]
fn every_key_of_sticky_sessions_reaches_the_cluster() {
    let sticky = |keys: &str| {
        let dir = config(&format!(", sticky: {{ {keys} }}"), "");
        for (file, bytes) in [("keys/new", vec![1; 32]), ("keys/old", vec![2; 64])] {
            let key = dir.write(file, bytes);
            std::fs::set_permissions(key, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
        }
        let cluster = compiled(dir.path()).clusters.remove(0);
        let cookie = cluster.sticky.expect("sessions are on");
        let rules = cluster.plan.rules.sticky.expect("sessions are on");
        format!("{} {} {} {rules:?}", cookie.cookie, cookie.attributes, cookie.previous.is_some())
    };
    let plain = sticky("keys: [keys/new]");
    for keys in [
        "keys: [keys/new, keys/old]",
        "keys: [keys/new], cookie: sid",
        "keys: [keys/new], path: /shop",
        "keys: [keys/new], max_age: 1h",
        "keys: [keys/new], overlap: 1m",
        "keys: [keys/new], virtual_nodes: 100",
    ] {
        assert_ne!(sticky(keys), plain, "{keys} changes nothing");
    }
    assert_eq!(sticky("keys: [keys/new], path: /, overlap: 30m, virtual_nodes: 256"), plain);
    assert!(cluster("").sticky.is_none(), "off");
}
