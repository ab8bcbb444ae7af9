//! C50: a mirror gets clean, whole copies, and whatever it does, the primary neither waits nor fails. What it does to
//! latency is measured by load/neighbours; long and streamed bodies are in mirror_bodies.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use tests::config::ClusterTls;
use tests::h2peer::{H2Client, H2Origin, block_on, drain, request};
use tests::message::hash;
use tests::tls::Authority;
use tests::{Cluster, Config, Origin, PATIENCE, Protocol, Proxy, origin, wait_until};

pub(crate) const TO_MIRROR: &[(&str, &str)] = &[("cluster", "app/m")];
const TO_PRIMARY: &[(&str, &str)] = &[("cluster", "app/u")];

/// A proxy in front of `primary`, with copies to the cluster `m` by these rules.
pub(crate) fn mirrored(primary: SocketAddr, mirror: Cluster, mut rules: Value) -> Proxy {
    rules["cluster"] = json!("m");
    let config = Config::to(primary).and_cluster(mirror).route(|route| {
        let own = std::mem::replace(route, tests::Route::prefix("all", "/"));
        *route = own.rule("mirror", rules);
    });
    Proxy::start(config)
}

pub(crate) fn to(address: SocketAddr) -> Cluster {
    Cluster::new("m", &[address])
}

/// Waits until each of `count` requests in the sample has ended, and says how many were answered.
#[track_caller]
pub(crate) fn wait_ends(proxy: &Proxy, count: u32) -> f64 {
    let ends = ["sent", "skipped", "failed"].map(|end| format!("shard_cluster_mirrors_{end}_total"));
    proxy.wait_metrics("every mirror has ended", |metrics| {
        let all: f64 = ends.iter().map(|name| metrics.sum(name, TO_MIRROR)).sum();
        assert!(all <= f64::from(count), "{all} ends of {count} requests");
        all == f64::from(count) && metrics.sum("shard_cluster_mirrors_in_flight", TO_MIRROR) == 0.0
    });
    proxy.metrics().sum("shard_cluster_mirrors_sent_total", TO_MIRROR)
}

pub(crate) fn ended(proxy: &Proxy, end: &str, cause: &str) -> f64 {
    let labels = [TO_MIRROR, &[("cause", cause)]].concat();
    proxy.metrics().sum(&format!("shard_cluster_mirrors_{end}_total"), &labels)
}

/// `count` requests, one after the other, each answered by the primary; and nothing else is known of its cluster.
#[track_caller]
pub(crate) fn all_served(proxy: &Proxy, count: u32) {
    let mut client = proxy.connect();
    for number in 0..count {
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        assert_eq!(client.response("GET").status, 200, "request {number}");
    }
}

#[track_caller]
pub(crate) fn primary_untouched(proxy: &Proxy, count: u32) {
    let wanted = f64::from(count);
    proxy.wait_metrics("every request is counted", |metrics| {
        metrics.sum("shard_cluster_requests_total", TO_PRIMARY) >= wanted
    });
    let metrics = proxy.metrics();
    let of = |name: &str| metrics.sum(name, TO_PRIMARY);
    assert_eq!((of("shard_cluster_requests_total"), of("shard_cluster_attempts_total")), (wanted, wanted));
    for name in ["failures", "retries", "retries_over_budget", "ejections", "refused", "mirrors_sent"] {
        assert_eq!(of(&format!("shard_cluster_{name}_total")), 0.0, "{name}");
    }
    assert_eq!(metrics.sum("shard_cluster_requests_total", TO_MIRROR), 0.0, "mirrors are no exchanges");
}

#[test]
fn a_sample_takes_all_requests_of_a_key_or_none() {
    const USERS: u32 = 300;
    let (primary, mirror) = (origin::echo(), origin::echo());
    let proxy = mirrored(
        primary.address(),
        to(mirror.address()),
        json!({ "percent": 10, "by": { "header": "x-user" } }),
    );
    let mut client = proxy.connect();
    for _ in 0..2 {
        for user in 0..USERS {
            client.send(format!("GET / HTTP/1.1\r\nHost: a.example\r\nX-User: {user}\r\n\r\n"));
            assert_eq!(client.response("GET").status, 200);
        }
    }
    wait_until("the second copy of each", PATIENCE, || {
        let copies = mirror.requests();
        let twice = |user: &str| copies.iter().filter(|copy| copy.field("x-user") == Some(user)).count() == 2;
        !copies.is_empty() && copies.iter().all(|copy| copy.field("x-user").is_some_and(twice))
    });
    let copies = mirror.requests().len();
    assert!((2 * 15..=2 * 50).contains(&copies), "{copies} copies of 600 at 10 %");
    assert_eq!(
        wait_ends(&proxy, u32::try_from(copies).expect("few")),
        f64::from(u32::try_from(copies).expect("few"))
    );
    primary_untouched(&proxy, 2 * USERS);
}

#[test]
fn a_copy_is_clean_and_marked() {
    let (primary, mirror) = (origin::echo(), origin::echo());
    let rules = json!({ "remove_headers": ["x-secret"] });
    let proxy = mirrored(primary.address(), to(mirror.address()), rules);
    let mut client = proxy.connect();
    client.send(
        "GET /p?q=1 HTTP/1.1\r\nHost: a.example\r\nAuthorization: Bearer t\r\nProxy-Authorization: Basic t\r\n\
         Cookie: a=1\r\nCookie: b=2\r\nX-Secret: s\r\nX-Kept: k\r\nX-Mirrored: forged\r\n\r\n",
    );
    assert_eq!(client.response("GET").status, 200);
    let (copy, original) = (mirror.wait_request(1), primary.wait_request(1));
    for name in ["authorization", "proxy-authorization", "cookie", "x-secret"] {
        assert_eq!(copy.field(name), None, "{name}");
    }
    assert_eq!(copy.field("x-mirrored"), Some("true"));
    assert_eq!((copy.target.as_str(), copy.field("host")), ("/p?q=1", Some("a.example")));
    for name in ["x-request-id", "x-forwarded-for", "traceparent", "x-kept"] {
        assert!(copy.field(name).is_some() && copy.field(name) == original.field(name), "{name}");
    }
    assert_eq!(original.field("x-mirrored"), None, "the primary is not told");
    assert_eq!(original.field("authorization"), Some("Bearer t"));
    assert_eq!(original.field("x-secret"), Some("s"));
}

/// Bodies that an h2 mirror got, by their hash, and whether they were marked.
type Bodies = Arc<Mutex<Vec<(String, bool)>>>;

fn h2_mirror() -> (H2Origin, Bodies) {
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&bodies);
    let mirror = H2Origin::start(move |request, mut respond| {
        let seen = Arc::clone(&seen);
        async move {
            let is_marked = request.headers().get("x-mirrored").is_some_and(|value| value == "true");
            let bytes = drain(&mut request.into_body()).await?;
            seen.lock().unwrap_or_else(PoisonError::into_inner).push((hash(&bytes), is_marked));
            respond.send_response(http::Response::new(()), true).map(drop)
        }
    });
    (mirror, bodies)
}

#[test]
fn bodies_arrive_whole_in_the_four_pairings() {
    let primary = origin::echo();
    let h1 = origin::echo();
    let (h2, h2_bodies) = h2_mirror();
    let h1_proxy = mirrored(primary.address(), to(h1.address()), json!({}));
    let over_h2 = Cluster { protocol: Protocol::Http2, ..to(h2.address()) };
    let h2_proxy = mirrored(primary.address(), over_h2, json!({}));
    let bodies: Vec<Vec<u8>> = [0_usize, 1, 4096, 65_535, 65_536, 65_537].map(|size| vec![b'x'; size]).into();
    for proxy in [&h1_proxy, &h2_proxy] {
        let mut client = proxy.connect();
        for body in &bodies {
            let length = body.len();
            client
                .send(format!("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: {length}\r\n\r\n"))
                .send(body);
            assert_eq!(client.response("POST").json()["body_hash"], hash(body));
            client.send(format!(
                "POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n",
                if length == 0 {
                    String::new()
                } else {
                    format!("{length:x}\r\n{}\r\n", String::from_utf8_lossy(body))
                }
            ));
            assert_eq!(client.response("POST").json()["body_hash"], hash(body));
            block_on(async {
                let mut client = H2Client::connect(proxy.address()).await;
                let sent = client.exchange(request("POST", "a.example", "/"), body, None).await;
                assert_eq!(sent.expect("an answer").json()["body_hash"], hash(body));
            });
        }
    }
    let wanted = bodies.len() * 3;
    for proxy in [&h1_proxy, &h2_proxy] {
        assert_eq!(wait_ends(proxy, 18), 18.0);
    }
    let mut expected: Vec<String> = bodies.iter().flat_map(|body| vec![hash(body); 3]).collect();
    expected.sort();
    let copies = h1.requests();
    assert_eq!((copies.len(), h1.faults()), (wanted, Vec::new()));
    assert!(copies.iter().all(|copy| copy.field("x-mirrored") == Some("true")));
    let sorted = |hashes: Vec<String>| {
        let mut hashes = hashes;
        hashes.sort();
        hashes
    };
    assert_eq!(sorted(copies.iter().map(|copy| hash(&copy.body)).collect()), expected);
    let seen = h2_bodies.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(seen.iter().all(|(_, is_marked)| *is_marked));
    assert_eq!(sorted(seen.into_iter().map(|(hash, _)| hash).collect()), expected);
}

#[test]
fn a_body_that_does_not_fit_is_not_mirrored_and_reaches_the_primary() {
    let (primary, mirror) = (origin::echo(), origin::echo());
    let proxy = mirrored(primary.address(), to(mirror.address()), json!({ "buffer_max": "1KiB" }));
    let body = vec![b'y'; 1_000_000];
    let mut client = proxy.connect();
    client.send("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 1000000\r\n\r\n").send(&body);
    assert_eq!(client.response("POST").json()["body_hash"], hash(&body));
    client
        .send("POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\nf4240\r\n")
        .send(&body);
    client.send("\r\n0\r\n\r\n");
    assert_eq!(client.response("POST").json()["body_hash"], hash(&body));
    assert_eq!(wait_ends(&proxy, 2), 0.0);
    assert_eq!(ended(&proxy, "skipped", "buffer_full"), 2.0);
    assert_eq!(mirror.connections(), 0);
}

#[test]
fn an_upload_that_does_not_fit_gives_its_place_back_while_it_goes_on() {
    let (primary, mirror) = (origin::echo(), origin::echo());
    let rules = json!({ "buffer_max": "1KiB", "in_flight_max": 1 });
    let proxy = mirrored(primary.address(), to(mirror.address()), rules);
    let begin = || {
        let mut long = proxy.connect();
        let head = "POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n";
        long.send(format!("{head}401\r\n{}\r\n", "y".repeat(1025)));
        long
    };
    let mut long = begin();
    wait_until("counted at once", PATIENCE, || ended(&proxy, "skipped", "buffer_full") == 1.0);
    proxy.wait_metrics("the place is free", |metrics| {
        metrics.sum("shard_cluster_mirrors_in_flight", TO_MIRROR) == 0.0
            && metrics.sum("shard_cluster_mirror_bytes_held", TO_MIRROR) == 0.0
    });
    let mut other = proxy.connect();
    other.send("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3\r\n\r\nabc");
    assert_eq!(other.response("POST").status, 200);
    assert_eq!(wait_ends(&proxy, 2), 1.0, "the only place was for another");
    long.send("0\r\n\r\n");
    assert_eq!(long.response("POST").status, 200);
    // One that fails later has been counted, too.
    let long = begin();
    wait_until("counted", PATIENCE, || ended(&proxy, "skipped", "buffer_full") == 2.0);
    long.reset();
    proxy.wait_metrics("its exchange is over", |metrics| {
        metrics.sum("shard_cluster_requests_total", TO_PRIMARY) == 3.0
    });
    assert_eq!(wait_ends(&proxy, 3), 1.0);
    assert_eq!(ended(&proxy, "skipped", "buffer_full"), 2.0);
    assert_eq!(mirror.connections(), 1);
}

#[test]
fn a_dead_mirror_does_nothing_to_the_primary() {
    let primary = Origin::replying("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let dead = SocketAddr::from(([127, 0, 0, 1], tests::port::free_port()));
    let proxy = mirrored(primary.address(), to(dead), json!({}));
    all_served(&proxy, 200);
    assert_eq!(wait_ends(&proxy, 200), 0.0);
    let failed = ended(&proxy, "failed", "not_connected");
    assert!(failed >= 5.0, "{failed}");
    assert_eq!(failed + ended(&proxy, "skipped", "unanswered"), 200.0, "it is asked once in a while");
    primary_untouched(&proxy, 200);
}

#[test]
fn a_mirror_that_hangs_fills_its_places_and_nothing_else() {
    let primary = Origin::replying("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    // One takes requests and does not answer, the other does not even read.
    let silent = Origin::scripted(|connection| while connection.request().is_some() {});
    let deaf = Origin::scripted(origin::OriginConn::wait_close);
    for mirror in [&silent, &deaf] {
        let rules = json!({ "timeout": "500ms", "in_flight_max": 4 });
        let proxy = mirrored(primary.address(), to(mirror.address()), rules);
        all_served(&proxy, 100);
        assert_eq!(wait_ends(&proxy, 100), 0.0);
        assert!(ended(&proxy, "failed", "timed_out") >= 4.0);
        let full = ended(&proxy, "skipped", "in_flight_limit");
        assert!(full >= 1.0, "{full} found no place");
        primary_untouched(&proxy, 100);
    }
}

#[test]
fn what_a_mirror_answers_is_dropped_within_bounds() {
    let primary = Origin::replying("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let endless = Origin::scripted(|connection| {
        while connection.request().is_some() {
            if !connection.write("HTTP/1.1 500 No\r\nContent-Length: 100000000\r\n\r\n") {
                return;
            }
            while connection.write(vec![b'z'; 100_000]) {}
        }
    });
    let proxy = mirrored(primary.address(), to(endless.address()), json!({}));
    all_served(&proxy, 10);
    assert_eq!(wait_ends(&proxy, 10) + ended(&proxy, "skipped", "no_endpoint"), 10.0, "answered is answered");
    wait_until("no connection is kept for the rest", PATIENCE, || endless.connections_open() == 0);
    primary_untouched(&proxy, 10);
    let resetting = Origin::scripted(|connection| {
        let _head = connection.head();
        connection.reset();
    });
    let proxy = mirrored(primary.address(), to(resetting.address()), json!({}));
    all_served(&proxy, 10);
    assert_eq!(wait_ends(&proxy, 10), 0.0);
    assert!(ended(&proxy, "failed", "broken") >= 1.0);
    primary_untouched(&proxy, 10);
}

#[test]
fn a_mirror_that_sends_interim_responses_without_end_is_given_up() {
    let primary = origin::echo();
    let mirror = Origin::scripted(|connection| {
        if connection.request().is_some() {
            while connection.write("HTTP/1.1 103 Early Hints\r\n\r\n") {}
        }
    });
    let proxy = mirrored(primary.address(), to(mirror.address()), json!({ "timeout": "30s" }));
    all_served(&proxy, 1);
    wait_until("the mirror is given up", PATIENCE, || ended(&proxy, "failed", "broken") == 1.0);
}

#[test]
fn without_an_answer_there_is_no_copy() {
    let mirror = origin::echo();
    let dead = SocketAddr::from(([127, 0, 0, 1], tests::port::free_port()));
    let proxy = mirrored(dead, to(mirror.address()), json!({}));
    assert_eq!(proxy.get("/").status, 503);
    assert_eq!(wait_ends(&proxy, 1), 0.0);
    assert_eq!(ended(&proxy, "skipped", "unfinished"), 1.0);
    assert_eq!(mirror.connections(), 0);
}

#[test]
fn bandwidth_is_bounded_by_the_second() {
    let (primary, mirror) = (origin::echo(), origin::echo());
    let rules = json!({ "buffer_max": "1KiB", "bandwidth_max": "4KiB" });
    let proxy = mirrored(primary.address(), to(mirror.address()), rules);
    let mut client = proxy.connect();
    let body = [b'b'; 1024];
    for _ in 0..60 {
        client.send("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 1024\r\n\r\n").send(body);
        assert_eq!(client.response("POST").status, 200);
    }
    let sent = wait_ends(&proxy, 60);
    let dropped = ended(&proxy, "skipped", "bandwidth_limit");
    assert!(sent >= 4.0 && dropped >= 1.0 && sent + dropped == 60.0, "{sent} sent, {dropped} dropped");
    assert_eq!(proxy.metrics().sum("shard_cluster_mirror_bytes_total", TO_MIRROR), sent * 1024.0);
    primary_untouched(&proxy, 60);
}

#[test]
fn grpc_calls_are_mirrored_with_their_trailers() {
    let grpc = |status: &'static str| {
        let got = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&got);
        let origin = H2Origin::start(move |request, mut respond| {
            let kept = Arc::clone(&kept);
            async move {
                let mut body = request.into_body();
                let bytes = drain(&mut body).await?;
                let trailers = body.trailers().await?.unwrap_or_default();
                let mark = trailers.get("x-mark").and_then(|mark| mark.to_str().ok()).map(str::to_owned);
                kept.lock().unwrap_or_else(PoisonError::into_inner).push((bytes.len(), mark));
                let head = http::Response::builder().header("content-type", "application/grpc").body(());
                let mut stream = respond.send_response(head.expect("a legal head"), false)?;
                let mut trailers = http::HeaderMap::new();
                trailers.insert("grpc-status", http::HeaderValue::from_static(status));
                stream.send_trailers(trailers)
            }
        });
        (origin, got)
    };
    let ((primary, of_primary), (mirror, of_mirror)) = (grpc("0"), grpc("14"));
    let config = Config::to_h2(primary.address())
        .and_cluster(Cluster { protocol: Protocol::Http2, ..to(mirror.address()) })
        .route(|route| {
            let own = std::mem::replace(route, tests::Route::prefix("all", "/"));
            *route = own.rule("mirror", json!({ "cluster": "m" }));
        });
    let proxy = Proxy::start(config);
    block_on(async {
        let mut client = H2Client::connect(proxy.address()).await;
        let mut head = request("POST", "a.example", "/x");
        head.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
        head.headers_mut().insert("te", http::HeaderValue::from_static("trailers"));
        let mut trailers = http::HeaderMap::new();
        trailers.insert("x-mark", http::HeaderValue::from_static("m"));
        let answer = client.exchange(head, b"\0\0\0\0\0", Some(trailers)).await.expect("an answer");
        assert_eq!(answer.trailer("grpc-status"), Some("0"), "the primary's own");
    });
    assert_eq!(wait_ends(&proxy, 1), 1.0);
    let wanted = vec![(5, Some("m".to_owned()))];
    for got in [of_primary, of_mirror] {
        assert_eq!(*got.lock().unwrap_or_else(PoisonError::into_inner), wanted);
    }
}

#[test]
fn upgrades_are_not_mirrored() {
    let primary = Origin::scripted(|connection| {
        if connection.head().is_some() {
            connection.write(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            );
            connection.wait_close();
        }
    });
    let mirror = origin::echo();
    let config = Config::to(primary.address())
        .and_cluster(to(mirror.address()))
        .listener(|listener| listener.upgrades = vec!["websocket".to_owned()])
        .route(|route| {
            let own = std::mem::replace(route, tests::Route::prefix("all", "/"));
            *route = own.rule("mirror", json!({ "cluster": "m" }));
        });
    let proxy = Proxy::start(config);
    let mut client = proxy.connect();
    client.send("GET /ws HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_eq!(client.response_head().expect("a head").status, 101);
    drop(client);
    assert_eq!(wait_ends(&proxy, 1), 0.0);
    assert_eq!(ended(&proxy, "skipped", "tunnel"), 1.0);
    assert_eq!(mirror.connections(), 0);
}

#[test]
fn a_mirror_behind_tls_gets_copies_and_one_that_is_not_believed_gets_none() {
    let primary = Origin::replying("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let (authority, stranger) = (Authority::default(), Authority::new("stranger"));
    let mirror =
        crate::tls::tls_origin(authority.server(&authority.leaf(&["backend.example"]), &["http/1.1"]));
    for (issuer, sent) in [(&authority, 1.0), (&stranger, 0.0)] {
        let tls = ClusterTls {
            authority: issuer.pem().to_owned(),
            server_name: "backend.example".to_owned(),
            identity: None,
        };
        let cluster = Cluster { tls: Some(tls), ..to(mirror.address()) };
        let proxy = mirrored(primary.address(), cluster, json!({}));
        all_served(&proxy, 1);
        assert_eq!(wait_ends(&proxy, 1), sent);
        assert_eq!(ended(&proxy, "failed", "not_connected"), 1.0 - sent);
        primary_untouched(&proxy, 1);
    }
}
