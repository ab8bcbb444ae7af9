//! One bad backend reaches nobody: ejection, retries within their budget, and counts that outlive the config
//! (docs/resilience.md).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use tests::{Cluster, Config, Origin, PATIENCE, Proxy, wait_until};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const UNAVAILABLE: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";

/// Addresses where nobody listens.
fn dead_addresses(count: usize) -> Vec<SocketAddr> {
    let ports = std::iter::repeat_with(tests::port::free_port);
    ports.take(count).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect()
}

/// A proxy on one core before a cluster of these endpoints.
fn before(endpoints: &[SocketAddr]) -> Proxy {
    let mut config = Config::with(Cluster::new("u", endpoints));
    config.cores = 1;
    Proxy::start(config)
}

/// What the admin listener says of an endpoint.
fn endpoint(proxy: &Proxy, address: SocketAddr) -> Value {
    let page = proxy.admin("/clusters").json();
    let clusters = page["clusters"].as_array().cloned().unwrap_or_default();
    let endpoints = clusters.iter().filter_map(|cluster| cluster["endpoints"].as_array()).flatten();
    let found = endpoints.filter(|endpoint| endpoint["address"] == address.to_string().as_str());
    found.cloned().next().unwrap_or(Value::Null)
}

#[test]
fn an_endpoint_that_fails_fast_is_ejected_and_the_others_serve() {
    let sound: Vec<_> = (0..3).map(|_| Origin::replying(OK)).collect();
    let broken = Origin::replying(UNAVAILABLE);
    let mut addresses: Vec<_> = sound.iter().map(Origin::address).collect();
    addresses.push(broken.address());
    let proxy = before(&addresses);
    let mut failed = 0;
    for _ in 0..400 {
        failed += usize::from(proxy.get("/").status == 503);
        if failed == 5 {
            break;
        }
    }
    assert_eq!(failed, 5, "five in a row are what it takes, and no more");
    for number in 0..100 {
        assert_eq!(proxy.get("/").status, 200, "request {number} after the ejection");
    }
    assert_eq!(broken.requests().len(), 5);
    let seen = endpoint(&proxy, broken.address());
    assert_eq!(seen["ejected"]["cause"], "consecutive_gateway", "{seen}");
    let left_ms = seen["ejected"]["left_ms"].as_u64().unwrap_or(0);
    assert!((20_000..=33_000).contains(&left_ms), "30 s and a tenth by chance: {seen}");
    assert_eq!(seen["cores_available"], 0);
    proxy.wait_metrics("the ejection is counted", |metrics| {
        metrics.sum("shard_cluster_ejections_total", &[("cluster", "app/u")]) == 1.0
            && metrics.sum("shard_cluster_endpoints_ejected", &[("cluster", "app/u")]) == 1.0
    });
    wait_until("the log names endpoint and cause", PATIENCE, || {
        let log = proxy.log();
        log.lines().any(|line| {
            line.contains(&broken.address().to_string())
                && line.contains("is ejected")
                && line.contains("consecutive_gateway")
        })
    });
}

#[test]
fn a_dead_endpoint_is_ejected_and_the_others_serve() {
    let sound: Vec<_> = (0..2).map(|_| Origin::replying(OK)).collect();
    let dead = dead_addresses(1);
    let mut addresses: Vec<_> = sound.iter().map(Origin::address).collect();
    addresses.extend(&dead);
    let proxy = before(&addresses);
    wait_until("the dead endpoint is ejected", PATIENCE, || {
        drop(proxy.get("/"));
        dead.iter().all(|address| endpoint(&proxy, *address)["ejected"]["cause"] == "consecutive_local")
    });
    for number in 0..100 {
        assert_eq!(proxy.get("/").status, 200, "request {number} after the ejection");
    }
}

#[test]
fn only_a_part_of_a_cluster_is_ejected() {
    // All four fail. One is 25 %, which is over the bound but the least; the others stay.
    let origins: Vec<_> = (0..4).map(|_| Origin::replying(UNAVAILABLE)).collect();
    let addresses: Vec<_> = origins.iter().map(Origin::address).collect();
    let proxy = before(&addresses);
    for _ in 0..100 {
        assert_eq!(proxy.get("/").status, 503);
    }
    let out = addresses.iter().filter(|address| !endpoint(&proxy, **address)["ejected"].is_null());
    assert_eq!(out.count(), 1);
    proxy.wait_metrics("what was withheld is counted", |metrics| {
        metrics.sum("shard_cluster_ejections_total", &[]) == 1.0
            && metrics.sum("shard_cluster_ejections_withheld_total", &[]) >= 3.0
    });
}

#[test]
fn a_failing_service_gets_no_retry_storm() {
    let proxy = before(&dead_addresses(3));
    let mut client = proxy.connect();
    for _ in 0..400 {
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        assert_eq!(client.response("GET").status, 503);
    }
    proxy.wait_metrics("all requests are counted", |metrics| {
        metrics.sum("shard_cluster_requests_total", &[("cluster", "app/u")]) == 400.0
    });
    let metrics = proxy.metrics();
    let attempts = metrics.sum("shard_cluster_attempts_total", &[("cluster", "app/u")]);
    let denied = metrics.sum("shard_cluster_retries_over_budget_total", &[("cluster", "app/u")]);
    // A tenth, and one more a second.
    assert!(attempts <= 400.0 * 1.1 + 5.0, "{attempts} attempts of 400 requests");
    assert!(denied >= 350.0, "{denied} retries were denied");
}

#[test]
fn requests_in_flight_are_counted_over_a_reload() {
    let is_released = Arc::new(AtomicBool::new(false));
    let origin = Origin::scripted({
        let is_released = Arc::clone(&is_released);
        move |connection| {
            while connection.request().is_some() {
                wait_until("the answer may go", PATIENCE, || is_released.load(Ordering::Acquire));
                if !connection.write(OK) {
                    return;
                }
            }
        }
    });
    let other = Origin::replying(OK);
    let mut proxy = before(&[origin.address()]);
    let mut clients: Vec<_> = (0..4).map(|_| proxy.connect()).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        let _seen = origin.wait_request(at + 1);
    }
    // The second config has one more endpoint, the third does not have the busy one any more.
    for endpoints in [vec![origin.address(), other.address()], vec![other.address()]] {
        let mut config = Config::with(Cluster::new("u", &endpoints));
        config.cores = 1;
        proxy.reload(config);
        wait_until("the cluster is the new one", PATIENCE, || {
            endpoint(&proxy, other.address())["cores"] == 1
        });
        let busy = endpoint(&proxy, origin.address());
        assert_eq!(busy["in_flight"], 4, "{busy}");
    }
    is_released.store(true, Ordering::Release);
    for client in &mut clients {
        assert_eq!(client.response("GET").status, 200);
    }
    wait_until("the endpoint is let go when it is idle", PATIENCE, || {
        endpoint(&proxy, origin.address()).is_null()
    });
    let still = endpoint(&proxy, other.address());
    assert_eq!((still["in_flight"].as_u64(), still["cores_available"].as_u64()), (Some(0), Some(1)));
}
