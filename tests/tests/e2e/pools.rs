//! C06, C22: what makes a pooled upstream connection unusable, and what may be tried again on a fresh one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tests::h2peer::{H2Client, block_on, request};
use tests::wait::pause;
use tests::{Config, Origin, PATIENCE, Proxy, wait_until};

#[test]
fn c06_bytes_behind_a_response_are_nobody_elses_answer() {
    let origin = Origin::scripted(|connection| {
        let mut first = true;
        while let Some(request) = connection.request() {
            let own = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}",
                request.target.len(),
                request.target
            );
            let poison = if first { "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison" } else { "" };
            first = false;
            if !connection.write(own + poison) {
                return;
            }
        }
    });
    let proxy = Proxy::start(Config::to(origin.address()));
    for number in 0..6 {
        let target = format!("/{number}");
        let response = proxy.get(&target);
        assert_eq!((response.status, response.text()), (200, target));
    }
}

#[test]
fn c06_bytes_on_an_idle_connection_end_it() {
    let idle = Arc::new(AtomicUsize::new(0));
    let origin = Origin::scripted({
        let idle = Arc::clone(&idle);
        move |connection| {
            while connection.request().is_some() {
                connection.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
                if connection.quiet_for(Duration::from_millis(50)) {
                    connection.write("junk junk!\r\n");
                    idle.fetch_add(1, Ordering::Release);
                    connection.wait_close();
                    return;
                }
            }
        }
    });
    let proxy = Proxy::start(Config::to(origin.address()));
    for number in 1..=3 {
        let response = proxy.get("/");
        assert_eq!((response.status, response.text().as_str()), (200, "ok"), "request {number}");
        wait_until("junk on the idle connection", PATIENCE, || idle.load(Ordering::Acquire) >= number);
    }
    assert_eq!(origin.connections(), 3);
}

#[test]
fn c06_extra_client_bytes_are_a_request_of_their_own() {
    let (origin, proxy) = crate::echo_behind_proxy();
    let mut client = proxy.connect();
    client.send("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 2\r\n\r\nokGARBAGE\r\n\r\n");
    let first = client.response("POST");
    assert_eq!((first.status, first.json()["body_bytes"].as_u64()), (200, Some(2)));
    assert_eq!(client.response("GET").status, 400);
    client.expect_close();
    assert!(!origin.received_text().contains("GARBAGE"));
}

/// An origin that answers and closes a little later, as a keep-alive limit does; it logs the ids it saw.
fn closing_origin(reset: bool, gap: Duration) -> Origin {
    Origin::scripted(move |connection| {
        while let Some(request) = connection.request() {
            if !connection.echo(&request) {
                return;
            }
            if connection.quiet_for(gap) {
                if reset {
                    connection.reset();
                }
                return;
            }
        }
    })
}

#[test]
fn c22_an_upstream_that_closes_as_the_next_request_comes() {
    let gap = Duration::from_millis(20);
    for reset in [false, true] {
        let origin = closing_origin(reset, gap);
        let proxy = Proxy::start(Config::to(origin.address()));
        let mut client = proxy.connect();
        let mut served = Vec::new();
        for number in 0..60 {
            let post = number % 2 == 1;
            let request = match post {
                true => {
                    format!("POST /{number} HTTP/1.1\r\nHost: a.example\r\nContent-Length: 8\r\n\r\n12345678")
                }
                false => format!("GET /{number} HTTP/1.1\r\nHost: a.example\r\n\r\n"),
            };
            client.send(request);
            let response = client.response(if post { "POST" } else { "GET" });
            match response.status {
                200 => served.push(format!("/{number}")),
                // A POST of which something was written may not be sent twice (RFC 9110 §9.2.2).
                502 => assert!(post, "request {number}: a GET must be tried again: {response:?}"),
                status => assert_eq!(status, 200, "request {number}"),
            }
            // Meets the close at every offset.
            pause(gap + Duration::from_micros(100 * number));
        }
        let mut posts: Vec<String> = origin
            .requests()
            .iter()
            .filter(|seen| seen.method == "POST")
            .map(|seen| seen.target.clone())
            .collect();
        let all = posts.len();
        posts.sort();
        posts.dedup();
        assert_eq!(posts.len(), all, "no POST arrives twice");
        assert!(served.len() > 50, "a stale connection is the exception, {} of 60 were served", served.len());
    }
}

#[test]
fn c22_the_same_over_one_h2_connection() {
    let gap = Duration::from_millis(20);
    let origin = closing_origin(false, gap);
    let proxy = Proxy::start(Config::to(origin.address()));
    block_on(async {
        let mut client = H2Client::connect(proxy.address()).await;
        for number in 0..30 {
            let response =
                client.get("a.example", &format!("/{number}")).await.expect("an answer, not silence");
            assert_eq!(response.status, 200, "request {number}");
            tokio::time::sleep(gap + Duration::from_micros(150 * number)).await;
        }
        let response = client
            .exchange(request("POST", "a.example", "/post"), b"12345678", None)
            .await
            .expect("an answer");
        assert!(matches!(response.status, 200 | 502), "{response:?}");
    });
}

#[test]
fn c22_a_reused_connection_that_fails_after_the_head_was_read() {
    let reads = Arc::new(AtomicUsize::new(0));
    let origin = Origin::scripted({
        let reads = Arc::clone(&reads);
        move |connection| {
            let Some(request) = connection.request() else {
                return;
            };
            connection.echo(&request);
            // The second request of each connection is read and dropped.
            if connection.request().is_some() {
                reads.fetch_add(1, Ordering::Release);
            }
        }
    });
    let proxy = Proxy::start(Config::to(origin.address()));
    assert_eq!(proxy.get("/1").status, 200);
    let response = proxy.get("/2");
    assert_eq!(
        (response.status, reads.load(Ordering::Acquire)),
        (200, 1),
        "an idempotent request is tried again"
    );
    let post = "POST /3 HTTP/1.1\r\nHost: a.example\r\nContent-Length: 2\r\n\r\nhi";
    let response = tests::client::once(proxy.address(), post);
    assert_eq!(response.status, 502, "a POST that may have been processed is not: {response:?}");
    assert!(response.code().is_some());
    let posts = origin.requests().iter().filter(|seen| seen.method == "POST").count();
    assert_eq!(posts, 1);
}

#[test]
fn an_upstream_that_never_answers_is_tried_once() {
    let origin = Origin::scripted(|connection| drop(connection.request()));
    let proxy = Proxy::start(Config::to(origin.address()));
    let response = proxy.get("/");
    assert_eq!(response.status, 502);
    assert!(origin.requests().len() <= 2, "no endless repetition: {}", origin.requests().len());
}

#[test]
fn a_refused_connection_leaves_the_body_for_the_next_endpoint() {
    let dead = tests::origin::echo();
    let dead_address = dead.address();
    drop(dead);
    let origin = tests::origin::echo();
    let proxy = Proxy::start(
        Config::to(origin.address())
            .cluster(|cluster| cluster.endpoints = vec![dead_address, origin.address()]),
    );
    let body = vec![b'x'; 64_000];
    let mut refused = 0.0;
    for _ in 0..10 {
        let mut client = proxy.connect();
        client.send("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 64000\r\n\r\n").send(&body);
        let response = client.response("POST");
        match response.status {
            503 => refused += 1.0,
            status => assert_eq!((status, response.json()["body_bytes"].as_u64()), (200, Some(64_000))),
        }
    }
    all_but_over_budget(&proxy, refused);
}

/// At least one request was tried again, and none of those that failed had a retry left in the budget.
#[track_caller]
fn all_but_over_budget(proxy: &Proxy, failed: f64) {
    proxy.wait_metrics("every failure is one over the budget", |metrics| {
        metrics.sum("shard_cluster_retries_over_budget_total", &[]) == failed
            && metrics.sum("shard_cluster_retries_total", &[]) >= 1.0
    });
}

#[test]
fn idle_upstream_connections_are_closed_in_time() {
    let (origin, proxy) = {
        let origin = tests::origin::echo();
        let config = Config::to(origin.address())
            .cluster(|cluster| cluster.pool_idle_timeout = Some(Duration::from_secs(1)));
        (origin, Proxy::start(config))
    };
    assert_eq!(proxy.get("/").status, 200);
    wait_until("the idle upstream connection is closed", PATIENCE, || origin.connections_open() == 0);
    assert_eq!(proxy.get("/").status, 200);
}

#[test]
fn c22_an_endpoint_that_dies_without_an_answer_is_not_asked_again() {
    // Fresh connections, each of which is closed once the request has been read.
    let dying = Origin::scripted(|connection| drop(connection.request()));
    let origin = tests::origin::echo();
    let proxy = Proxy::start(
        Config::to(origin.address())
            .cluster(|cluster| cluster.endpoints = vec![dying.address(), origin.address()]),
    );
    let put = "PUT /put HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi";
    let mut failed = 0.0;
    for _ in 0..10 {
        for response in [proxy.get("/get"), tests::client::once(proxy.address(), put)] {
            match response.status {
                502 => failed += 1.0,
                status => assert_eq!(status, 200, "an idempotent request has another endpoint"),
            }
        }
    }
    all_but_over_budget(&proxy, failed);
    let post = put.replace("PUT", "POST");
    let statuses: Vec<u16> = (0..10).map(|_| tests::client::once(proxy.address(), &post).status).collect();
    assert!(statuses.iter().all(|status| matches!(status, 200 | 502)), "{statuses:?}");
    let posts = |origin: &Origin| origin.requests().iter().filter(|seen| seen.method == "POST").count();
    assert_eq!(posts(&dying) + posts(&origin), 10, "no POST is sent twice");
    assert!(dying.requests().len() >= 2, "the dying endpoint had its share");
}
