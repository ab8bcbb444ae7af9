//! C29: endpoints given by name. Names of hosts(5) only, because the tests do not own the machine's name server;
//! what a server may answer is the resolver's own tests' matter.

use std::collections::BTreeMap;

use serde_json::json;
use tests::{Cluster, Config, Origin, PATIENCE, Proxy, origin, wait_until};

#[test]
fn a_cluster_by_name_serves_from_the_start() {
    let origin = origin::echo();
    let endpoint = format!("localhost:{}", origin.address().port());
    let proxy = Proxy::start(Config::with(Cluster::named("u", &endpoint)));
    for _ in 0..10 {
        assert_eq!(proxy.get("/").status, 200);
    }
    let request = origin.wait_request(1);
    assert_eq!(request.field("host"), Some("a.example"), "the client's host, not the endpoint's name");
}

#[test]
fn a_name_that_nobody_knows_takes_its_own_cluster_down_only() {
    let origin = origin::echo();
    let mut config = Config::to(origin.address()).and_cluster(Cluster::named("lost", "nowhere.invalid:80"));
    config.routes.push(tests::Route::prefix("lost", "/lost").to("lost"));
    let proxy = Proxy::start(config);
    let response = proxy.get("/lost");
    assert_eq!(response.status, 503, "{response:?}");
    assert_eq!(proxy.get("/").status, 200);
}

#[test]
fn a_reload_moves_a_cluster_from_an_address_to_a_name() {
    let (one, two) = (origin::echo(), origin::echo());
    let config = Config::to(one.address());
    let mut proxy = Proxy::start(config.clone());
    assert_eq!(proxy.get("/").status, 200);
    let endpoint = format!("localhost:{}", two.address().port());
    proxy.reload(config.cluster(|cluster| *cluster = Cluster::named("u", &endpoint)));
    // The name was looked up before the config that uses it came into force: no request meets a cluster without.
    wait_until("the name serves", PATIENCE, || {
        assert_eq!(proxy.get("/").status, 200);
        !two.requests().is_empty()
    });
    let before = one.requests().len();
    for _ in 0..5 {
        assert_eq!(proxy.get("/").status, 200);
    }
    assert_eq!(one.requests().len(), before);
}

/// Where a proxy whose cluster is over these names sends each key. `asker` tells its requests from others.
fn places(origins: &[Origin], balance: &str, asker: &str) -> BTreeMap<u32, usize> {
    let name = |origin: &Origin| format!("localhost:{}", origin.address().port());
    let rule = json!({ "policy": balance, "hash_by": { "header": "x-key" } });
    let cluster = Cluster { dns_endpoints: origins.iter().map(name).collect(), ..Cluster::new("u", &[]) };
    let proxy = Proxy::start(Config::with(cluster.rule("balance", rule)));
    let mut found = BTreeMap::new();
    for round in 0..3 {
        // A connection of its own each, which may be any core's.
        for key in 0..40_u32 {
            let answer = tests::client::once(
                proxy.address(),
                format!(
                    "GET /{asker}/{round} HTTP/1.1\r\nHost: a.example\r\nX-Key: {key}\r\nConnection: close\r\n\r\n"
                ),
            );
            assert_eq!(answer.status, 200);
            let wanted = (format!("/{asker}/{round}"), key.to_string());
            let took = |origin: &Origin| {
                let is_it = |request: &tests::Request| {
                    request.target == wanted.0 && request.field("x-key") == Some(wanted.1.as_str())
                };
                origin.requests().iter().any(is_it)
            };
            let place = origins.iter().position(took).expect("one of them answered");
            assert_eq!(*found.entry(key).or_insert(place), place, "{balance}: the key {key} has moved");
        }
    }
    found
}

#[test]
fn a_key_keeps_its_place_among_endpoints_given_by_name() {
    for balance in ["ring_hash", "maglev"] {
        let origins: Vec<_> = (0..4).map(|_| origin::echo()).collect();
        let found = places(&origins, balance, "first");
        for place in 0..origins.len() {
            let keys = found.values().filter(|at| **at == place).count();
            assert!((1..=30).contains(&keys), "{balance}: {keys} of 40 keys at {place}: {found:?}");
        }
        assert_eq!(found, places(&origins, balance, "second"), "{balance}: proxies agree without talking");
    }
}
