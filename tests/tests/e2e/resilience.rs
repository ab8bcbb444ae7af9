//! One bad backend reaches nobody: ejection, retries within their budget, and counts that outlive the config
//! (docs/resilience.md).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tests::dir::TempDir;
use tests::h2peer::{H2Client, H2Origin, block_on, drain, request};
use tests::{Cluster, Config, Origin, PATIENCE, Protocol, Proxy, Route, wait_until};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const UNAVAILABLE: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";

/// Addresses where nobody listens.
fn dead_addresses(count: usize) -> Vec<SocketAddr> {
    let ports = std::iter::repeat_with(tests::port::free_port);
    ports.take(count).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect()
}

/// A proxy on one core before a cluster of these endpoints.
fn before(endpoints: &[SocketAddr]) -> Proxy {
    on_one_core(Config::with(Cluster::new("u", endpoints)))
}

fn on_one_core(mut config: Config) -> Proxy {
    config.cores = 1;
    Proxy::start(config)
}

/// An origin that answers when it is told to.
fn held(is_released: &Arc<AtomicBool>) -> Origin {
    let is_released = Arc::clone(is_released);
    Origin::scripted(move |connection| {
        while connection.request().is_some() {
            wait_until("the answer may go", PATIENCE, || is_released.load(Ordering::Acquire));
            if !connection.write(OK) {
                return;
            }
        }
    })
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
    let seen = proxy.endpoint(broken.address());
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
fn a_grpc_status_in_trailers_is_an_outcome() {
    let answering = |status: &'static str| {
        H2Origin::start(move |request, mut respond| async move {
            drain(&mut request.into_body()).await?;
            let head = http::Response::builder().header("content-type", "application/grpc").body(());
            let mut stream = respond.send_response(head.expect("a legal head"), false)?;
            stream.send_data(bytes::Bytes::from_static(b"\0\0\0\0\0"), false)?;
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", http::HeaderValue::from_static(status));
            stream.send_trailers(trailers)
        })
    };
    let (sound, failing) = (answering("0"), answering("14"));
    let proxy = on_one_core(Config::with(Cluster {
        protocol: Protocol::Http2,
        ..Cluster::new("u", &[sound.address(), failing.address()])
    }));
    let mut failed = 0;
    block_on(async {
        let mut client = H2Client::connect(proxy.address()).await;
        for _ in 0..100 {
            let mut head = request("POST", "a.example", "/x");
            head.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
            let answer = client.exchange(head, b"\0\0\0\0\0", None).await.expect("an answer");
            failed += usize::from(answer.trailer("grpc-status") == Some("14"));
        }
    });
    assert_eq!(failed, 5, "UNAVAILABLE five times in a row is what it takes");
    let seen = proxy.endpoint(failing.address());
    assert_eq!(seen["ejected"]["cause"], "consecutive_gateway", "{seen}");
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
        dead.iter().all(|address| proxy.endpoint(*address)["ejected"]["cause"] == "consecutive_local")
    });
    for number in 0..100 {
        assert_eq!(proxy.get("/").status, 200, "request {number} after the ejection");
    }
}

#[test]
fn a_second_dead_endpoint_that_may_not_be_ejected_costs_no_request() {
    let sound = Origin::replying(OK);
    let dead = dead_addresses(2);
    let proxy = before(&[sound.address(), dead[0], dead[1]]);
    let is_ejected = |address: &SocketAddr| !proxy.endpoint(*address)["ejected"].is_null();
    wait_until("one of them is ejected", PATIENCE, || {
        drop(proxy.get("/"));
        dead.iter().any(is_ejected)
    });
    let mut client = proxy.connect();
    let mut failed = 0;
    for _ in 0..400 {
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        failed += usize::from(client.response("GET").status != 200);
    }
    assert_eq!(failed, 0, "a third of a cluster is all that may be ejected, the rest is retried");
    assert_eq!(dead.iter().filter(|address| is_ejected(address)).count(), 1);
    proxy.wait_metrics("the retries are counted", |metrics| {
        let of = |name: &str| metrics.sum(name, &[("cluster", "app/u")]);
        of("shard_cluster_attempts_total") > of("shard_cluster_requests_total") + 50.0
            && of("shard_cluster_retries_over_budget_total") == 0.0
    });
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
    let out = addresses.iter().filter(|address| !proxy.endpoint(**address)["ejected"].is_null());
    assert_eq!(out.count(), 1);
    proxy.wait_metrics("what was withheld is counted", |metrics| {
        metrics.sum("shard_cluster_ejections_total", &[]) == 1.0
            && metrics.sum("shard_cluster_ejections_withheld_total", &[]) >= 3.0
    });
}

#[test]
fn a_failing_service_gets_no_retry_storm() {
    // Without the floor, which is by the second: how long this takes is the machine's business.
    let budget = json!({ "percent": 10, "floor_per_second": 1 });
    let cluster = Cluster::new("u", &dead_addresses(3)).rule("retry_budget", budget);
    let proxy = on_one_core(Config::with(cluster));
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
    // A tenth, and one a second at least.
    assert!(attempts <= 400.0 * 1.1 + 5.0, "{attempts} attempts of 400 requests");
    assert!(denied >= 350.0, "{denied} retries were denied");
}

#[test]
fn requests_in_flight_are_counted_over_a_reload() {
    let is_released = Arc::new(AtomicBool::new(false));
    let origin = held(&is_released);
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
        wait_until("the cluster is the new one", PATIENCE, || proxy.endpoint(other.address())["cores"] == 1);
        let busy = proxy.endpoint(origin.address());
        assert_eq!(busy["in_flight"], 4, "{busy}");
    }
    is_released.store(true, Ordering::Release);
    for client in &mut clients {
        assert_eq!(client.response("GET").status, 200);
    }
    wait_until("the endpoint is let go when it is idle", PATIENCE, || {
        proxy.endpoint(origin.address()).is_null()
    });
    let still = proxy.endpoint(other.address());
    assert_eq!((still["in_flight"].as_u64(), still["cores_available"].as_u64()), (Some(0), Some(1)));
}

#[test]
fn a_killed_endpoint_is_ejected_and_comes_back() {
    let sound = Origin::replying(OK);
    let killed = Origin::replying(OK);
    let address = killed.address();
    let cluster = Cluster::new("u", &[sound.address(), address])
        .rule("outlier", json!({ "ejection": "1s" }))
        .rule("slow_start", json!({ "window": "1s" }));
    let proxy = on_one_core(Config::with(cluster));
    wait_until("both serve", PATIENCE, || {
        assert_eq!(proxy.get("/").status, 200);
        !killed.requests().is_empty()
    });
    drop(killed);
    wait_until("it is ejected", PATIENCE, || {
        drop(proxy.get("/"));
        proxy.endpoint(address)["ejected"]["cause"] == "consecutive_local"
    });
    let again = Origin::scripted_at(
        address,
        |connection| {
            while connection.request().is_some() && connection.write(OK) {}
        },
    );
    wait_until("it serves again", PATIENCE, || {
        drop(proxy.get("/"));
        !again.requests().is_empty()
    });
    wait_until("the log says so", PATIENCE, || proxy.log().contains("is back and starts slowly"));
    wait_until("it has its full share again", PATIENCE, || {
        assert_eq!(proxy.get("/").status, 200);
        proxy.endpoint(address)["slow_start_percent"] == 100
    });
}

#[test]
fn below_half_of_its_endpoints_a_cluster_is_in_panic() {
    let broken: Vec<_> = (0..2).map(|_| Origin::replying(UNAVAILABLE)).collect();
    let sound = Origin::replying(OK);
    let addresses: Vec<_> = broken.iter().chain([&sound]).map(Origin::address).collect();
    let cluster = Cluster::new("u", &addresses).rule("outlier", json!({ "ejected_percent_max": 100 }));
    let dir = TempDir::new("panic");
    let access_log = dir.path().join("access.log");
    let shown = access_log.display().to_string();
    let config = Config::with(cluster).listener(|listener| listener.access_log = Some(shown));
    let proxy = on_one_core(config);
    proxy_in_panic(&proxy);
    let seen: Vec<_> = broken.iter().map(|origin| origin.requests().len()).collect();
    wait_until("the ejected ones serve, too", PATIENCE, || {
        drop(proxy.get("/"));
        broken.iter().zip(&seen).all(|(origin, seen)| origin.requests().len() > *seen)
    });
    wait_until("the log says so", PATIENCE, || proxy.log().contains("health is ignored"));
    let before = proxy.log().matches("health is ignored").count();
    drop(proxy.get("/in-panic"));
    let lines = || std::fs::read_to_string(&access_log).unwrap_or_default();
    wait_until("so does the line of each request", PATIENCE, || {
        lines().lines().any(|line| line.contains("\"/in-panic\"") && line.contains("\"panic\":true"))
    });
    let first = lines().lines().next().map(str::to_owned).unwrap_or_default();
    assert!(!first.contains("\"panic\""), "only in panic: {first}");
    assert!(proxy.metrics().sum("shard_cluster_attempts_in_panic_total", &[("cluster", "app/u")]) >= 1.0);
    assert_eq!(proxy.log().matches("health is ignored").count(), before, "and the operator is told once");
    assert!(proxy.log().contains("1 of 3 are out, up to 100 % may be"), "with the numbers that decided");
}

#[track_caller]
fn proxy_in_panic(proxy: &Proxy) {
    wait_until("the cluster is in panic", PATIENCE, || {
        drop(proxy.get("/"));
        proxy.metrics().sum("shard_cluster_panic_cores", &[("cluster", "app/u")]) == 1.0
    });
}

/// How long the quickest of 100 refusals takes; every one must have this code.
fn quickest_refusal(proxy: &Proxy, code: &str) -> Duration {
    let mut client = proxy.connect();
    let refusals = (0..100).map(|_| {
        let began = Instant::now();
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        let response = client.response("GET");
        let took = began.elapsed();
        assert_eq!((response.status, response.code().as_deref()), (503, Some(code)));
        let wait = response.field("retry-after").and_then(|seconds| seconds.parse::<u64>().ok());
        assert!(wait.is_some_and(|wait| (1..=30).contains(&wait)), "{response:?}");
        took
    });
    refusals.min().unwrap_or(Duration::MAX)
}

#[test]
fn a_cluster_at_its_cap_refuses_at_once() {
    let is_released = Arc::new(AtomicBool::new(false));
    let origin = held(&is_released);
    let cluster = Cluster::new("u", &[origin.address()]).rule("in_flight_max", json!(2));
    let proxy = on_one_core(Config::with(cluster));
    let mut clients: Vec<_> = (0..2).map(|_| proxy.connect()).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        let _seen = origin.wait_request(at + 1);
    }
    let quickest = quickest_refusal(&proxy, "in_flight_limit");
    tests::note(&format!("quickest refusal at the cap: {quickest:?}"));
    // The aim is 1 ms; other programs run beside the tests.
    assert!(quickest < Duration::from_millis(10), "{quickest:?}");
    assert_eq!(origin.requests().len(), 2);
    is_released.store(true, Ordering::Release);
    for client in &mut clients {
        assert_eq!(client.response("GET").status, 200);
    }
    assert_eq!(proxy.get("/").status, 200, "there is room again");
    proxy.wait_metrics("refusals are counted by cause", |metrics| {
        metrics.sum("shard_cluster_refused_total", &[("cause", "in_flight_limit")]) == 100.0
    });
}

#[test]
fn an_open_breaker_refuses_at_once() {
    let origin = Origin::replying(UNAVAILABLE);
    let cluster = Cluster::new("u", &[origin.address()])
        .rule("outlier", json!(false))
        .rule("breaker", json!({ "requests_min": 10, "open": "30s" }));
    let proxy = on_one_core(Config::with(cluster));
    for number in 0..10 {
        let response = proxy.get("/");
        assert_eq!((response.status, response.code()), (503, None), "request {number} is the origin's own");
    }
    let quickest = quickest_refusal(&proxy, "circuit_open");
    tests::note(&format!("quickest refusal of the breaker: {quickest:?}"));
    assert!(quickest < Duration::from_millis(10), "{quickest:?}");
    assert_eq!(origin.requests().len(), 10);
    proxy.wait_metrics("the breaker is open", |metrics| {
        metrics.sum("shard_cluster_breaker_opens_total", &[]) == 1.0
            && metrics.sum("shard_cluster_breaker_open_cores", &[]) == 1.0
    });
}

#[test]
fn near_the_cap_the_lower_classes_are_shed() {
    let is_released = Arc::new(AtomicBool::new(false));
    let origin = held(&is_released);
    let cluster =
        Cluster::new("u", &[origin.address()]).rule("in_flight_max", json!(10)).rule("shed", json!(true));
    let route =
        |class: &str| Route::exact(class, &format!("/{class}")).to("u").rule("priority_class", json!(class));
    let config = Config::with(cluster).and_route(route("sheddable")).and_route(route("free"));
    let proxy = on_one_core(config.route(|all| {
        all.rules.insert("priority_class".to_owned(), json!("critical"));
    }));
    let mut clients: Vec<_> = (0..9).map(|_| proxy.connect()).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        let _seen = origin.wait_request(at + 1);
    }
    for _ in 0..20 {
        for class in ["sheddable", "free"] {
            let response = proxy.get(&format!("/{class}"));
            assert_eq!((response.status, response.code().as_deref()), (503, Some("shed")), "{class}");
        }
    }
    let mut last = proxy.connect();
    last.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let _seen = origin.wait_request(10);
    is_released.store(true, Ordering::Release);
    for client in clients.iter_mut().chain([&mut last]) {
        assert_eq!(client.response("GET").status, 200, "no critical one is shed");
    }
}

#[test]
fn a_503_that_was_not_acted_on_goes_elsewhere() {
    let full = Origin::replying(
        "HTTP/1.1 503 Service Unavailable\r\nx-shard-not-processed: true\r\nContent-Length: 4\r\n\r\nfull",
    );
    let sound = Origin::replying(OK);
    let cluster = Cluster::new("u", &[full.address(), sound.address()])
        .rule("outlier", json!(false))
        .rule("retry_budget", json!({ "percent": 100, "floor_per_second": 1000 }));
    let keyed = Route::exact("keyed", "/keyed").to("u").rule("retries", json!({ "idempotency_key": true }));
    let proxy = on_one_core(Config::with(cluster).and_route(keyed));
    let post = |target: &str| {
        let head = format!("POST {target} HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n");
        tests::client::once(proxy.address(), head + "Idempotency-Key: 7\r\nContent-Length: 2\r\n\r\nhi")
    };
    let mut passed_on = 0;
    for _ in 0..20 {
        assert_eq!(proxy.get("/").status, 200);
        assert_eq!(post("/keyed").status, 200);
        let response = post("/plain");
        if response.status == 503 {
            assert_eq!(response.text(), "full", "the origin's own answer");
            passed_on += 1;
        }
    }
    assert!(passed_on > 0, "a POST is not repeated where nothing says that it may be");
    let attempts: Vec<_> =
        sound.requests().iter().filter_map(|seen| seen.field("x-shard-attempt").map(str::to_owned)).collect();
    assert!(!attempts.is_empty() && attempts.iter().all(|attempt| attempt == "2"), "{attempts:?}");
}

#[test]
fn health_checks_take_an_endpoint_out_and_in() {
    let is_well = Arc::new(AtomicBool::new(true));
    let checked = Origin::scripted({
        let is_well = Arc::clone(&is_well);
        move |connection| {
            while let Some(request) = connection.request() {
                let is_ill = request.target == "/up" && !is_well.load(Ordering::Acquire);
                if !connection.write(if is_ill { UNAVAILABLE } else { OK }) {
                    return;
                }
            }
        }
    });
    let other = Origin::replying(OK);
    let cluster = Cluster::new("u", &[checked.address(), other.address()])
        .rule("slow_start", json!(false))
        .rule("health_check", json!({ "http": "/up", "interval": "100ms", "timeout": "5s" }));
    let proxy = on_one_core(Config::with(cluster));
    let served = || checked.requests().iter().filter(|seen| seen.target == "/").count();
    wait_until("both serve", PATIENCE, || {
        assert_eq!(proxy.get("/").status, 200);
        served() > 0
    });
    is_well.store(false, Ordering::Release);
    wait_until("it is unhealthy", PATIENCE, || proxy.endpoint(checked.address())["cores_unhealthy"] == 1);
    let before = served();
    for _ in 0..40 {
        assert_eq!(proxy.get("/").status, 200);
    }
    assert_eq!(served(), before, "an unhealthy endpoint gets no request");
    is_well.store(true, Ordering::Release);
    wait_until("it serves again", PATIENCE, || {
        assert_eq!(proxy.get("/").status, 200);
        served() > before
    });
    let log = proxy.log();
    assert!(
        log.contains("is unhealthy: it answers with the status 503") && log.contains("is healthy"),
        "{log}"
    );
}
