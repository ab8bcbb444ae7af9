//! Hedges: a second attempt while the first is silent, within a budget (docs/resilience.md).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tests::h2peer::{H2Client, H2Origin, block_on, request};
use tests::wait::pause;
use tests::{Cluster, Config, Origin, PATIENCE, Protocol, Proxy, wait_until};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// An origin that takes `time` for each answer, and counts the answers that nobody took any more.
fn slow(time: Duration) -> (Origin, Arc<AtomicUsize>) {
    let cut = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&cut);
    let origin = Origin::scripted(move |connection| {
        while connection.request().is_some() {
            if !connection.quiet_for(time) {
                counter.fetch_add(1, Ordering::AcqRel);
                return;
            }
            if !connection.write(OK) {
                return;
            }
        }
    });
    (origin, cut)
}

/// A proxy on one core before a cluster in which a silent attempt is hedged after `after`.
fn hedging(mut cluster: Cluster, percent: u32, after: Option<&str>) -> Proxy {
    cluster = cluster.rule("hedge_percent", json!(percent));
    let config = Config::with(cluster).route(|all| {
        if let Some(after) = after {
            all.rules.insert("hedge".to_owned(), json!({ "after": after }));
        }
    });
    Proxy::start(Config { cores: 1, ..config })
}

/// Endpoints drawn by chance, and none taken out: what is slow stays in.
fn by_chance(endpoints: &[SocketAddr]) -> Cluster {
    Cluster::new("u", endpoints).rule("balance", json!("random")).rule("outlier", json!(false))
}

fn of(proxy: &Proxy, name: &str) -> f64 {
    proxy.metrics().sum(&format!("shard_cluster_{name}_total"), &[("cluster", "app/u")])
}

fn hedges(proxy: &Proxy, end: &str) -> f64 {
    proxy.metrics().sum("shard_cluster_hedges_total", &[("cluster", "app/u"), ("end", end)])
}

/// 200 requests from ten clients; their latencies, rising.
fn latencies(proxy: &Proxy) -> Vec<Duration> {
    let ask = || {
        let mut client = proxy.connect();
        let mut each = || {
            let began = Instant::now();
            client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
            assert_eq!(client.response("GET").status, 200);
            began.elapsed()
        };
        (0..20).map(|_| each()).collect::<Vec<_>>()
    };
    let mut all: Vec<Duration> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..10).map(|_| scope.spawn(ask)).collect();
        clients.into_iter().flat_map(|client| client.join().expect("a client ends")).collect()
    });
    all.sort_unstable();
    all
}

#[test]
fn p99_falls_with_one_slow_endpoint_of_three() {
    let sound: Vec<_> = (0..2).map(|_| Origin::replying(OK)).collect();
    let (slow, cut) = slow(Duration::from_millis(600));
    let endpoints = [sound[0].address(), sound[1].address(), slow.address()];
    let p99 = |latencies: &[Duration]| latencies[latencies.len() * 99 / 100];
    let plain = p99(&latencies(&hedging(by_chance(&endpoints), 50, None)));
    let proxy = hedging(by_chance(&endpoints), 50, Some("50ms"));
    let hedged = p99(&latencies(&proxy));
    proxy.wait_metrics("every request is counted", |metrics| {
        metrics.sum("shard_cluster_requests_total", &[("cluster", "app/u")]) == 200.0
    });
    let (won, attempts) = (hedges(&proxy, "won"), of(&proxy, "attempts"));
    tests::note(&format!(
        "one slow endpoint of three (600 ms), hedged after 50 ms: p99 {plain:?} without, {hedged:?} with; {won} won"
    ));
    assert!(plain >= Duration::from_millis(500), "{plain:?} without hedges");
    assert!(hedged <= Duration::from_millis(400), "{hedged:?} with hedges");
    assert!(won >= 20.0, "{won} hedges won");
    let all: f64 = ["won", "lost", "failed"].iter().map(|end| hedges(&proxy, end)).sum();
    assert_eq!(attempts, 200.0 + all, "each hedge is an attempt");
    let marked = sound.iter().flat_map(Origin::requests);
    let marked = marked.filter(|seen| seen.field("x-shard-attempt") == Some("2")).count();
    assert!(marked >= 20, "{marked} second attempts");
    wait_until("the losers are cut", PATIENCE, || cut.load(Ordering::Acquire) >= 20);
}

#[test]
fn when_everything_is_slow_the_budget_holds() {
    let origins: Vec<_> = (0..2).map(|_| slow(Duration::from_millis(40)).0).collect();
    let endpoints: Vec<_> = origins.iter().map(Origin::address).collect();
    let proxy = hedging(by_chance(&endpoints), 2, Some("5ms"));
    assert_eq!(latencies(&proxy).len(), 200);
    proxy.wait_metrics("every request is counted", |metrics| {
        metrics.sum("shard_cluster_requests_total", &[("cluster", "app/u")]) == 200.0
    });
    let attempts = of(&proxy, "attempts");
    tests::note(&format!("everything is slow: {attempts} attempts of 200 requests under a budget of 2 %"));
    assert!((200.0..=204.0).contains(&attempts), "{attempts} attempts of 200 requests");
    assert!(of(&proxy, "hedges_over_budget") >= 150.0);
}

#[test]
fn only_what_may_be_made_twice_is_hedged() {
    let (origins, _cut): (Vec<_>, Vec<_>) = (0..2).map(|_| slow(Duration::from_millis(100))).unzip();
    let endpoints: Vec<_> = origins.iter().map(Origin::address).collect();
    let proxy = hedging(by_chance(&endpoints), 50, Some("10ms"));
    let mut client = proxy.connect();
    for _ in 0..10 {
        client.send("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(client.response("POST").status, 200);
        client.send("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 2\r\n\r\nhi");
        assert_eq!(client.response("POST").status, 200);
    }
    proxy.wait_metrics("none is hedged", |metrics| {
        metrics.sum("shard_cluster_attempts_total", &[("cluster", "app/u")]) == 20.0
    });
    for _ in 0..10 {
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        assert_eq!(client.response("GET").status, 200);
    }
    proxy.wait_metrics("these are", |metrics| {
        metrics.sum("shard_cluster_attempts_total", &[("cluster", "app/u")]) >= 33.0
    });
}

/// An origin that tells what it got of each request after `time`, of `/quick` at once.
fn slow_echo(time: Duration) -> Origin {
    Origin::scripted(move |connection| {
        while let Some(request) = connection.request() {
            let is_slow = request.target != "/quick";
            if is_slow && !connection.quiet_for(time) || !connection.echo(&request) {
                return;
            }
        }
    })
}

#[test]
fn a_body_is_sent_twice_when_it_is_whole_and_small_enough() {
    let origins = [slow_echo(Duration::from_millis(150)), slow_echo(Duration::from_millis(150))];
    let proxy = hedging(by_chance(&origins.each_ref().map(Origin::address)), 50, Some("10ms"));
    let mut client = proxy.connect();
    let mut put = |body: &[u8]| {
        client.send(format!("PUT / HTTP/1.1\r\nHost: a.example\r\nContent-Length: {}\r\n\r\n", body.len()));
        client.send(body);
        let response = client.response("PUT");
        assert_eq!(response.json()["body_hash"], tests::message::hash(body));
    };
    // Too long to be kept.
    (0..5).for_each(|_| put(&[b'x'; 65_537]));
    let ended = |requests: f64| {
        proxy.wait_metrics("all are counted", |metrics| {
            metrics.sum("shard_cluster_requests_total", &[("cluster", "app/u")]) == requests
        });
        of(&proxy, "attempts")
    };
    assert_eq!(ended(5.0), 5.0);
    (0..10u8).for_each(|n| put(&[n; 65_536]));
    let before = ended(15.0);
    assert!(before >= 19.0, "{before}");
}

#[test]
fn a_body_that_is_still_coming_is_not_hedged() {
    let origins = [slow_echo(Duration::from_millis(600)), slow_echo(Duration::from_millis(600))];
    let proxy = hedging(by_chance(&origins.each_ref().map(Origin::address)), 50, Some("100ms"));
    // The budget is a half of the requests so far.
    (0..4).for_each(|_| assert_eq!(proxy.get("/quick").status, 200));
    let begun = || origins.iter().map(|origin| origin.received_text().matches("half").count()).sum::<usize>();
    let mut client = proxy.connect();
    client.send("PUT / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n");
    // The gap is the input: well beyond the delay of a hedge.
    pause(Duration::from_millis(300));
    assert_eq!(begun(), 1);
    client.send("4\r\nrest\r\n0\r\n\r\n");
    assert_eq!(client.response("PUT").json()["body_hash"], tests::message::hash(b"halfrest"));
    wait_until("it is hedged then", PATIENCE, || begun() == 2);
}

#[test]
fn a_hedge_saves_a_request_whose_first_attempt_dies() {
    // Ends each connection 150 ms after the request, without an answer, while the hedge waits for its own.
    let dying = Origin::scripted(|connection| {
        if connection.request().is_some() {
            pause(Duration::from_millis(150));
        }
    });
    let late: Vec<_> = (0..2).map(|_| slow(Duration::from_millis(90)).0).collect();
    let cluster = by_chance(&[dying.address(), late[0].address(), late[1].address()]);
    // Without other retries.
    let config = Config::with(cluster.rule("hedge_percent", json!(50))).route(|all| {
        all.rules.insert("hedge".to_owned(), json!({ "after": "120ms" }));
        all.rules.insert("retries".to_owned(), json!(0));
    });
    let proxy = Proxy::start(Config { cores: 1, ..config });
    let mut client = proxy.connect();
    let mut saved = 0;
    for _ in 0..30 {
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        saved += usize::from(client.response("GET").status == 200);
    }
    // The budget is a half of the requests so far, a third of which need it: the first ones may have none.
    assert!(saved >= 25, "{saved} of 30 are answered");
    proxy.wait_metrics("some hedges won", |metrics| {
        metrics.sum("shard_cluster_hedges_total", &[("end", "won")]) >= 3.0
    });
}

#[test]
fn a_hedge_that_outlives_its_first_attempt_is_mirrored_and_counted_whole() {
    let dying = Origin::scripted(|connection| {
        if connection.request().is_some() {
            pause(Duration::from_millis(150));
        }
    });
    let late: Vec<_> = (0..2).map(|_| slow_echo(Duration::from_millis(90))).collect();
    let copies = tests::origin::echo();
    let cluster = by_chance(&[dying.address(), late[0].address(), late[1].address()]);
    let config = Config::with(cluster.rule("hedge_percent", json!(50)))
        .and_cluster(Cluster::new("m", &[copies.address()]))
        .route(|all| {
            all.rules.insert("hedge".to_owned(), json!({ "after": "120ms" }));
            all.rules.insert("retries".to_owned(), json!(0));
            all.rules.insert("mirror".to_owned(), json!({ "cluster": "m" }));
        });
    let proxy = Proxy::start(Config { cores: 1, ..config });
    let mut client = proxy.connect();
    let body = [b'x'; 1000];
    let mut saved = 0u32;
    for _ in 0..30 {
        client.send("PUT / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 1000\r\n\r\n");
        client.send(body);
        let response = client.response("PUT");
        saved += u32::from(response.status == 200);
    }
    proxy.wait_metrics("some hedges won", |metrics| {
        metrics.sum("shard_cluster_hedges_total", &[("end", "won")]) >= 3.0
    });
    let to_mirror = [("cluster", "app/m")];
    proxy.wait_metrics("every request that was answered is mirrored, and no other", |metrics| {
        let skipped =
            metrics.sum("shard_cluster_mirrors_skipped_total", &[to_mirror[0], ("cause", "unfinished")]);
        let sent = metrics.sum("shard_cluster_mirrors_sent_total", &to_mirror);
        (sent, skipped) == (f64::from(saved), f64::from(30 - saved))
    });
    let copies = copies.requests();
    assert!(copies.iter().all(|copy| copy.body == body), "each copy has the whole body");
    let bytes = |metrics: &tests::metrics::Metrics| metrics.sum("shard_route_request_bytes_total", &[]);
    proxy.wait_metrics("the bytes of every request are counted", |metrics| bytes(metrics) == 30_000.0);
}

#[test]
fn an_endpoint_that_is_always_overtaken_is_ejected() {
    let sound: Vec<_> = (0..2).map(|_| Origin::replying(OK)).collect();
    let (silent, _cut) = slow(Duration::from_secs(1));
    // A third of the requests need what the budget allows for a half: hardly one is left to the silent one, whose answer
    // would be a success.
    let endpoints = [sound[0].address(), sound[1].address(), silent.address()];
    let cluster = Cluster::new("u", &endpoints).rule("balance", json!("random"));
    let proxy = hedging(cluster, 50, Some("10ms"));
    let mut client = proxy.connect();
    wait_until("it is ejected", PATIENCE, || {
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        assert_eq!(client.response("GET").status, 200);
        of(&proxy, "ejections") == 1.0
    });
    assert!(hedges(&proxy, "won") >= 5.0);
}

#[test]
fn streams_of_http2_are_hedged_and_reset() {
    let reset = Arc::new(AtomicUsize::new(0));
    let silent = H2Origin::start({
        let reset = Arc::clone(&reset);
        move |_request, mut respond| {
            let reset = Arc::clone(&reset);
            async move {
                let reason = std::future::poll_fn(|cx| respond.poll_reset(cx)).await?;
                assert_eq!(reason, h2::Reason::CANCEL);
                reset.fetch_add(1, Ordering::AcqRel);
                Ok(())
            }
        }
    });
    let sound: Vec<_> = (0..2).map(|_| H2Origin::echo()).collect();
    let cluster = Cluster {
        protocol: Protocol::Http2,
        ..by_chance(&[silent.address(), sound[0].address(), sound[1].address()])
    };
    let proxy = hedging(cluster, 50, Some("20ms"));
    let answered = block_on(async {
        let mut client = H2Client::connect(proxy.address()).await;
        let mut answered = 0;
        for _ in 0..100 {
            if answered >= 20 && hedges(&proxy, "won") >= 3.0 {
                break;
            }
            let answer = client.exchange(request("PUT", "a.example", "/"), b"body", None);
            // The budget is a half of the last ten seconds' requests: where chance sends many to the silent one at first,
            // some have none.
            if let Ok(answer) = tokio::time::timeout(Duration::from_secs(2), answer).await {
                let answer = answer.expect("an answer");
                assert_eq!(
                    (answer.status, &answer.json()["body_hash"]),
                    (200, &json!(tests::message::hash(b"body")))
                );
                answered += 1;
            }
        }
        answered
    });
    assert!(answered >= 20, "{answered} of 100 are answered");
    proxy.wait_metrics("hedges won", |metrics| {
        metrics.sum("shard_cluster_hedges_total", &[("end", "won")]) >= 3.0
    });
    wait_until("the loser's stream is reset", PATIENCE, || reset.load(Ordering::Acquire) >= 3);
}

#[test]
fn a_hedge_has_no_more_time_than_its_request() {
    // Four answers earn the budget of a hedge. The next one breaks off after a while; its hedge is silent.
    let asked = Arc::new(AtomicUsize::new(0));
    let origins: Vec<_> = (0..2)
        .map(|_| {
            let asked = Arc::clone(&asked);
            Origin::scripted(move |connection| {
                while connection.request().is_some() {
                    match asked.fetch_add(1, Ordering::AcqRel) {
                        0..4 => assert!(connection.write(OK)),
                        4 => {
                            connection.quiet_for(Duration::from_millis(300));
                            return connection.reset();
                        }
                        _ => return connection.wait_close(),
                    }
                }
            })
        })
        .collect();
    let addresses: Vec<_> = origins.iter().map(Origin::address).collect();
    let config = Config::with(by_chance(&addresses).rule("hedge_percent", json!(50))).route(|all| {
        all.timeout = Some(Duration::from_millis(1500));
        all.rules.insert("hedge".to_owned(), json!({ "after": "50ms" }));
        all.rules.insert("retries".to_owned(), json!(0));
    });
    let proxy = Proxy::start(Config { cores: 1, ..config });
    for _ in 0..4 {
        assert_eq!(proxy.get("/").status, 200);
    }
    let began = Instant::now();
    assert!(proxy.get("/").status >= 500);
    let took = began.elapsed();
    assert_eq!(asked.load(Ordering::Acquire), 6, "a first attempt and a hedge");
    assert!(took < Duration::from_secs(10), "it waits for the silent hedge: {took:?}");
}
