//! C28, C30: SIGTERM and hot restart. Requests in flight finish, idle connections end at a safe moment, and no
//! connection is lost while the listening sockets change hands.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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

/// Clients that send requests without pause until stopped, and count what went wrong.
struct Load {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    failures: Vec<std::thread::JoinHandle<Vec<String>>>,
}

impl Load {
    fn start(address: std::net::SocketAddr, keep_alive: bool, clients: usize) -> Self {
        let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let failures = (0..clients)
            .map(|_| {
                let (stop, served) = (Arc::clone(&stop), Arc::clone(&served));
                std::thread::spawn(move || hammer(address, keep_alive, &stop, &served))
            })
            .collect();
        Self { stop, served, failures }
    }

    fn served(&self) -> usize {
        self.served.load(Ordering::Acquire)
    }

    fn finish(self) -> Vec<String> {
        self.stop.store(true, Ordering::Release);
        self.failures.into_iter().flat_map(|thread| thread.join().expect("a client thread ends")).collect()
    }
}

fn hammer(
    address: std::net::SocketAddr,
    keep_alive: bool,
    stop: &AtomicBool,
    served: &AtomicUsize,
) -> Vec<String> {
    let mut failures = Vec::new();
    let connection = if keep_alive { "keep-alive" } else { "close" };
    let request = format!("GET / HTTP/1.1\r\nHost: a.example\r\nConnection: {connection}\r\n\r\n");
    let mut kept = None;
    while !stop.load(Ordering::Acquire) {
        let fresh = kept.is_none();
        let Some(mut client) = kept.take().or_else(|| connect(address)) else {
            failures.push("connect".to_owned());
            continue;
        };
        let sent = client.try_send(&request);
        match sent.map_err(|error| error.to_string()).and_then(|()| client.try_response("GET")) {
            Ok(response) if response.status == 200 => {
                served.fetch_add(1, Ordering::AcqRel);
                if keep_alive
                    && response.field("connection").is_none_or(|value| !value.eq_ignore_ascii_case("close"))
                {
                    kept = Some(client);
                }
            }
            Ok(response) => failures.push(format!("status {}", response.status)),
            // A kept connection may be closed at any time; every client tries again on a fresh one.
            Err(error) if !fresh && error.contains("Closed after \"\"") => {}
            Err(error) => failures.push(format!("fresh {fresh}: {error}")),
        }
    }
    failures
}

fn connect(address: std::net::SocketAddr) -> Option<tests::RawClient> {
    let tcp = std::net::TcpStream::connect(address).ok()?;
    tcp.set_read_timeout(Some(PATIENCE)).ok()?;
    Some(tests::RawClient::over(tests::client::Stream::Plain(tcp)))
}

#[test]
fn c30_hot_restart_under_load_loses_nothing() {
    let origin = origin::echo();
    let mut config = Config::to(origin.address());
    config.cores = 2;
    config.drain = Duration::from_secs(2);
    let mut proxy = Proxy::start(config);
    let loads = [Load::start(proxy.address(), false, 3), Load::start(proxy.address(), true, 3)];
    for round in 0..3 {
        let before: Vec<usize> = loads.iter().map(Load::served).collect();
        proxy.hot_restart();
        wait_until(&format!("both kinds of client are served after restart {round}"), PATIENCE, || {
            loads.iter().zip(&before).all(|(load, before)| load.served() > before + 20)
        });
    }
    for load in loads {
        let failures = load.finish();
        assert!(failures.is_empty(), "{} failures, first {:?}", failures.len(), failures.first());
    }
}
