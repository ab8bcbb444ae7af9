//! C28: SIGTERM. Requests in flight finish, idle connections end at a safe moment, and what outlives the drain time
//! is cut and counted.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tests::h2peer::{H2Client, block_on, collect, request};
use tests::h2raw::{Frame, H2Conn, code, request_fields};
use tests::{Config, End, Origin, PATIENCE, Proxy, origin, wait_until};

/// Answers after `delay`.
fn slow_origin(delay: Duration) -> Origin {
    Origin::scripted(move |connection| {
        while let Some(request) = connection.request() {
            if !connection.quiet_for(delay) || !connection.echo(&request) {
                return;
            }
        }
    })
}

#[test]
fn c28_an_idle_proxy_ends_at_once_with_success() {
    let (_origin, proxy) = crate::echo_behind_proxy();
    assert_eq!(proxy.get("/").status, 200);
    let start = Instant::now();
    let status = proxy.stop();
    assert!(status.success(), "{status}");
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
}

#[test]
fn c28_requests_in_flight_finish_and_h1_is_told_to_close() {
    let origin = slow_origin(Duration::from_millis(800));
    let mut proxy = Proxy::start(Config::to(origin.address()));
    let mut busy = proxy.connect();
    busy.send("GET /slow HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let _seen = origin.wait_request(1);
    proxy.process().signal(Signal::TERM);
    let response = busy.response("GET");
    assert_eq!((response.status, response.json()["target"].as_str()), (200, Some("/slow")));
    assert_eq!(response.field("connection").map(str::to_ascii_lowercase).as_deref(), Some("close"));
    assert_eq!(busy.ending(), End::Closed);
    assert!(proxy.process().wait(PATIENCE).success());
}

#[test]
fn c28_an_idle_h1_connection_is_closed_not_reset() {
    let (_origin, mut proxy) = crate::echo_behind_proxy();
    let mut idle = proxy.connect();
    idle.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(idle.response("GET").status, 200);
    proxy.process().signal(Signal::TERM);
    assert_eq!(idle.ending(), End::Closed);
    assert!(proxy.process().wait(PATIENCE).success());
}

#[test]
fn c28_h2_gets_two_goaways_and_its_streams_finish() {
    let origin = slow_origin(Duration::from_millis(800));
    let mut proxy = Proxy::start(Config::to(origin.address()));
    let mut idle = H2Conn::client(proxy.connect().into_stream(), &[]);
    let mut busy = H2Conn::client(proxy.connect().into_stream(), &[]);
    busy.send(&Frame::headers(1, true, &request_fields("GET", "a.example", "/slow")));
    let _seen = origin.wait_request(1);
    assert!(idle.read().is_some(), "settings");
    proxy.process().signal(Signal::TERM);
    let goaway = idle.wait_goaway().expect("an idle connection is told, too");
    assert_eq!(goaway.error_code(), Some(code::NO_ERROR));
    // RFC 9113 §6.8: first 2^31-1, the real last stream after a round trip.
    let first = busy.wait_goaway().expect("a GOAWAY");
    assert_eq!((first.last_stream(), first.error_code()), (Some(0x7fff_ffff), Some(code::NO_ERROR)));
    let response = busy.response(1);
    let whole = response.as_ref().is_ok_and(|response| response.status == 200);
    let after = if whole { response } else { busy.response(1) };
    assert!(
        after.as_ref().is_ok_and(|response| response.status == 200),
        "the stream in flight finishes: {after:?}"
    );
    assert!(proxy.process().wait(PATIENCE).success());
}

#[test]
fn c28_a_client_that_honours_goaway_loses_nothing() {
    let origin = slow_origin(Duration::from_millis(20));
    let mut proxy = Proxy::start(Config::to(origin.address()));
    let address = proxy.address();
    block_on(async {
        let mut client = H2Client::connect(address).await;
        let mut open = Vec::new();
        for number in 0..100 {
            if number == 30 {
                proxy.process().signal(Signal::TERM);
            }
            match client.open(request("GET", "a.example", &format!("/{number}")), true).await {
                Ok((future, _stream)) => open.push(tokio::spawn(collect(future))),
                // After GOAWAY no new stream is opened.
                Err(_) => break,
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut failed = 0;
        for task in open {
            match task.await.expect("a task ends") {
                Ok(response) => assert_eq!(response.status, 200),
                // Above the last stream id: not processed, safe to repeat.
                Err(error) if error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM) => {}
                Err(_) => failed += 1,
            }
        }
        assert_eq!(failed, 0, "requests lost in a graceful shutdown");
    });
    assert!(proxy.process().wait(PATIENCE).success());
}

#[test]
fn c28_what_outlives_the_drain_time_is_cut() {
    let origin = Origin::scripted(|connection| {
        if connection.request().is_some() {
            connection.wait_close();
        }
    });
    let mut config = Config::to(origin.address()).route(|route| route.streaming = true);
    config.drain = Duration::from_secs(1);
    let mut proxy = Proxy::start(config);
    let mut stuck = proxy.connect();
    stuck.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let _seen = origin.wait_request(1);
    proxy.process().signal(Signal::TERM);
    let start = Instant::now();
    proxy.process().wait(Duration::from_secs(6));
    assert!(start.elapsed() >= Duration::from_millis(800), "in-flight work gets its drain time");
    assert_ne!(stuck.ending(), End::Open);
}

/// A proxy with a request that never ends, and the client that waits for it.
fn stuck(drain: Duration) -> (Origin, Proxy, tests::RawClient) {
    let origin = Origin::scripted(|connection| {
        if connection.request().is_some() {
            connection.wait_close();
        }
    });
    let mut config = Config::to(origin.address()).route(|route| route.streaming = true);
    config.drain = drain;
    let proxy = Proxy::start(config);
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let _seen = origin.wait_request(1);
    (origin, proxy, client)
}

#[test]
fn what_is_cut_is_counted_in_log_and_exit_code() {
    let (_origin, mut proxy, mut client) = stuck(Duration::from_secs(1));
    proxy.process().signal(Signal::TERM);
    let status = proxy.process().wait(PATIENCE);
    assert_eq!(status.code(), Some(3), "{status}");
    let log = proxy.log();
    assert!(log.contains("cut 1 HTTP/1 and 0 HTTP/2 connections with 1 requests in progress"), "{log}");
    assert_ne!(client.ending(), End::Open);
}

#[test]
fn a_second_signal_ends_at_once() {
    let (_origin, mut proxy, _client) = stuck(Duration::from_secs(600));
    proxy.process().signal(Signal::TERM);
    wait_until("the drain has begun", PATIENCE, || proxy.log().contains("draining"));
    assert_eq!(proxy.admin("/ready").status, 503);
    proxy.process().signal(Signal::TERM);
    let status = proxy.process().wait(PATIENCE);
    assert_eq!(status.code(), Some(3), "{status}");
}

#[test]
fn a_draining_proxy_takes_no_new_connections_and_its_port_is_free() {
    let (_origin, mut proxy, _client) = stuck(Duration::from_secs(600));
    let address = proxy.address();
    proxy.process().signal(Signal::TERM);
    // Not accepted into a queue that nobody reads: refused.
    wait_until("connections are refused", PATIENCE, || std::net::TcpStream::connect(address).is_err());
    std::net::TcpListener::bind(address).expect("another process may listen there");
    proxy.process().signal(Signal::TERM);
    proxy.process().wait(PATIENCE);
}

#[test]
fn the_port_is_closed_with_the_end_of_the_process() {
    for driver in ["ring", "epoll"] {
        let origin = origin::echo();
        let mut config = Config::to(origin.address());
        config.cores = 2;
        let proxy = Proxy::start_with(config, &["--driver", driver]);
        let address = proxy.address();
        assert_eq!(proxy.get("/").status, 200);
        assert!(proxy.stop().success());
        let open = std::net::TcpStream::connect(address).is_ok();
        assert!(!open, "{driver}: the kernel still holds the listening socket after the end");
    }
}

#[test]
fn c28_goaways_are_spread() {
    let origin = origin::echo();
    let mut config = Config::to(origin.address());
    config.drain = Duration::from_secs(8);
    let mut proxy = Proxy::start(config);
    let clients: Vec<_> = (0..10)
        .map(|_| {
            let mut client = H2Conn::client(proxy.connect().into_stream(), &[]);
            assert!(client.read().is_some(), "settings");
            std::thread::spawn(move || client.wait_goaway().map(|_| Instant::now()))
        })
        .collect();
    proxy.process().signal(Signal::TERM);
    let told: Vec<Instant> =
        clients.into_iter().filter_map(|client| client.join().expect("a client ends")).collect();
    assert_eq!(told.len(), 10, "all are told");
    let (first, last) = (told.iter().min(), told.iter().max());
    let spread = last.zip(first).map(|(last, first)| *last - *first);
    // By chance under this once in a million runs: ten of them over two seconds.
    assert!(spread.is_some_and(|spread| spread > Duration::from_millis(300)), "{spread:?}");
    assert!(proxy.process().wait(PATIENCE).success());
}
