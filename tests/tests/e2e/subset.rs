//! A core keeps a part of a large cluster, and the fleet together all of it (docs/resilience.md).

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde_json::json;
use tests::{Cluster, Config, Origin, PATIENCE, Proxy, wait_until};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn config(origins: &[Origin], size_min: u32) -> Config {
    let addresses: Vec<_> = origins.iter().map(Origin::address).collect();
    let cluster = Cluster::new("u", &addresses).rule("subset", json!({ "endpoints_min": size_min }));
    Config { cores: 1, ..Config::with(cluster) }
}

/// The endpoints that the proxy's cores know.
fn known(proxy: &Proxy) -> BTreeSet<SocketAddr> {
    let page = proxy.admin("/clusters").json();
    let all = page["clusters"][0]["endpoints"].as_array().cloned().unwrap_or_default();
    all.iter().filter_map(|one| one["address"].as_str()?.parse().ok()).collect()
}

fn requests(origins: &[Origin]) -> Vec<usize> {
    origins.iter().map(|origin| origin.requests().len()).collect()
}

#[test]
fn two_proxies_share_a_cluster_out() {
    let origins: Vec<_> = (0..8).map(|_| Origin::replying(OK)).collect();
    let proxies: Vec<_> = ["0/2", "1/2"]
        .iter()
        .map(|place| Proxy::start_with(config(&origins, 4), &["--fleet", place]))
        .collect();
    let mut of_both = Vec::new();
    for proxy in &proxies {
        let before = requests(&origins);
        for _ in 0..100 {
            assert_eq!(proxy.get("/").status, 200);
        }
        let served: BTreeSet<_> = origins
            .iter()
            .zip(&before)
            .filter(|(origin, before)| origin.requests().len() > **before)
            .map(|(origin, _)| origin.address())
            .collect();
        assert_eq!(served.len(), 4, "four endpoints serve, and each of them");
        assert_eq!(known(proxy), served);
        proxy.wait_metrics("the part is a gauge", |metrics| {
            metrics.sum("shard_cluster_endpoints", &[("cluster", "app/u")]) == 4.0
        });
        of_both.extend(served);
    }
    let different: BTreeSet<_> = of_both.iter().collect();
    assert_eq!((of_both.len(), different.len()), (8, 8), "no endpoint is left out, none has two proxies");
}

#[test]
fn an_endpoint_that_leaves_moves_little_and_costs_no_request() {
    let origins: Vec<_> = (0..9).map(|_| Origin::replying(OK)).collect();
    let mut proxy = Proxy::start_with(config(&origins, 4), &["--fleet", "0/2"]);
    assert_eq!(proxy.get("/").status, 200);
    let before = known(&proxy);
    assert!((4..=5).contains(&before.len()), "{before:?}");
    proxy.reload(config(&origins[..8], 4));
    for _ in 0..100 {
        assert_eq!(proxy.get("/").status, 200);
    }
    wait_until("the endpoints are those of the new config", PATIENCE, || known(&proxy).len() == 4);
    let after = known(&proxy);
    assert!(before.difference(&after).count() <= 2, "{before:?} {after:?}");
}

#[test]
fn health_checks_go_to_the_endpoints_of_all_cores() {
    let origins: Vec<_> = (0..8).map(|_| Origin::replying(OK)).collect();
    let addresses: Vec<_> = origins.iter().map(Origin::address).collect();
    let cluster = Cluster::new("u", &addresses)
        .rule("subset", json!({ "endpoints_min": 2 }))
        .rule("health_check", json!({ "http": "/up", "interval": "100ms" }));
    let config = Config { cores: 2, ..Config::with(cluster) };
    let _proxy = Proxy::start_with(config, &["--fleet", "0/2"]);
    wait_until("every endpoint is checked", PATIENCE, || {
        origins.iter().all(|origin| origin.requests().iter().any(|seen| seen.target == "/up"))
    });
}

#[test]
fn without_a_place_in_the_fleet_a_proxy_uses_all_and_says_so() {
    let origins: Vec<_> = (0..8).map(|_| Origin::replying(OK)).collect();
    let proxy = Proxy::start(config(&origins, 4));
    assert_eq!(proxy.get("/").status, 200);
    assert_eq!(known(&proxy).len(), 8);
    let log = proxy.log();
    assert!(log.contains("`subset` does nothing") && log.contains("--fleet"), "{log}");
}
