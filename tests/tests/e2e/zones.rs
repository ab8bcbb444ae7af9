//! The proxy's own zone comes first, as far as it goes (docs/resilience.md).

use std::net::SocketAddr;

use serde_json::{Value, json};
use tests::{Cluster, Config, Origin, PATIENCE, Proxy, wait_until};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A proxy in zone `a` on one core, before endpoints in these zones.
fn in_zone_a(endpoints: &[(SocketAddr, &str)], zones: Value) -> Proxy {
    Proxy::start_with(config(endpoints, zones), &["--zone", "a"])
}

fn config(endpoints: &[(SocketAddr, &str)], zones: Value) -> Config {
    let written = endpoints.iter().map(|(address, zone)| json!({ "address": address, "zone": zone }));
    let cluster = Cluster::new("u", &[])
        .rule("endpoints", json!(written.collect::<Vec<_>>()))
        .rule("zones", zones)
        .rule("slow_start", json!(false));
    Config { cores: 1, ..Config::with(cluster) }
}

fn beyond(proxy: &Proxy) -> f64 {
    proxy.metrics().sum("shard_cluster_attempts_beyond_zone_total", &[("cluster", "app/u")])
}

fn counted(proxy: &Proxy, requests: f64) {
    proxy.wait_metrics("the requests are counted", |metrics| {
        metrics.sum("shard_cluster_requests_total", &[("cluster", "app/u")]) == requests
    });
}

#[test]
fn requests_stay_in_the_zone_while_it_can_carry_them() {
    let origins: Vec<_> = (0..4).map(|_| Origin::replying(OK)).collect();
    let zones = ["a", "b", "a", "b"];
    let all: Vec<_> = origins.iter().map(Origin::address).zip(zones).collect();
    let proxy = in_zone_a(&all, json!(true));
    for _ in 0..100 {
        assert_eq!(proxy.get("/").status, 200);
    }
    for (origin, zone) in origins.iter().zip(zones) {
        let (served, seen) = (origin.requests().len(), proxy.endpoint(origin.address()));
        assert_eq!(seen["zone"], zone, "{seen}");
        if zone == "a" {
            assert!(served >= 30, "{served} of 100 in zone a");
            assert_eq!(seen["share_percent"], 50.0, "{seen}");
        } else {
            assert_eq!((served, seen["share_percent"].as_f64()), (0, Some(0.0)), "{seen}");
        }
    }
    counted(&proxy, 100.0);
    assert_eq!(beyond(&proxy), 0.0);
}

#[test]
fn what_a_small_zone_cannot_carry_goes_to_the_others() {
    // A quarter of the endpoints for a half of the requests: half of those stay.
    let origins: Vec<_> = (0..4).map(|_| Origin::replying(OK)).collect();
    let all: Vec<_> = origins.iter().map(Origin::address).zip(["a", "b", "b", "b"]).collect();
    let proxy = in_zone_a(&all, json!({ "traffic": { "a": 50, "b": 50 } }));
    for _ in 0..400 {
        assert_eq!(proxy.get("/").status, 200);
    }
    let local = origins[0].requests().len();
    println!("a zone with a quarter of the endpoints and half of the requests keeps {local} of 400");
    assert!((150..=250).contains(&local), "{local} of 400");
    counted(&proxy, 400.0);
    assert_eq!(beyond(&proxy), f64::from(400 - u32::try_from(local).expect("at most 400")));
}

#[test]
fn the_death_of_the_zones_only_endpoint_costs_no_request() {
    let (local, remote) = (Origin::replying(OK), Origin::replying(OK));
    let proxy = in_zone_a(&[(local.address(), "a"), (remote.address(), "b")], json!(true));
    assert_eq!(proxy.get("/").status, 200);
    assert_eq!((local.requests().len(), remote.requests().len()), (1, 0));
    let address = local.address();
    drop(local);
    for number in 0..100 {
        assert_eq!(proxy.get("/").status, 200, "request {number}");
    }
    wait_until("it is ejected", PATIENCE, || !proxy.endpoint(address)["ejected"].is_null());
    assert_eq!(proxy.endpoint(remote.address())["share_percent"], 100.0);
    assert_eq!(remote.requests().len(), 100);
}

#[test]
fn without_a_zone_of_its_own_a_proxy_uses_all_and_says_so() {
    let (one, other) = (Origin::replying(OK), Origin::replying(OK));
    let proxy = Proxy::start(config(&[(one.address(), "a"), (other.address(), "b")], json!(true)));
    for _ in 0..50 {
        assert_eq!(proxy.get("/").status, 200);
    }
    assert!(one.requests().len() >= 10 && other.requests().len() >= 10);
    let log = proxy.log();
    assert!(log.contains("`zones` does nothing") && log.contains("--zone"), "{log}");
}

#[test]
fn a_reload_changes_the_shares() {
    let (one, other) = (Origin::replying(OK), Origin::replying(OK));
    let all = [(one.address(), "a"), (other.address(), "b")];
    let mut proxy = in_zone_a(&all, json!(true));
    assert_eq!(proxy.get("/").status, 200);
    proxy.reload(config(&all, json!(false)));
    wait_until("zones no longer count", PATIENCE, || {
        assert_eq!(proxy.get("/").status, 200);
        !other.requests().is_empty()
    });
}
