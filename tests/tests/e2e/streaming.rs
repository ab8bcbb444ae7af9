//! C27: timeouts and streams. A request timeout covers the time to the response head, nothing more; back-pressure
//! holds both ways; memory stays bounded.

use std::time::{Duration, Instant};

use tests::{Config, Origin, Proxy};

/// Sends a head at once, then `events` lines, one each `gap`.
fn events(events: usize, gap: Duration) -> Origin {
    Origin::scripted(move |connection| {
        while connection.request().is_some() {
            connection.write(
                "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
            );
            for number in 0..events {
                if !connection.quiet_for(gap) {
                    return;
                }
                let line = format!("data: {number}\n\n");
                if !connection.write(format!("{:x}\r\n{line}\r\n", line.len())) {
                    return;
                }
            }
            connection.write("0\r\n\r\n");
        }
    })
}

#[test]
fn c27_a_request_timeout_does_not_cut_a_stream() {
    let origin = events(10, Duration::from_millis(200));
    let proxy = Proxy::start(
        Config::to(origin.address()).route(|route| route.timeout = Some(Duration::from_millis(500))),
    );
    let response = proxy.get("/");
    assert_eq!((response.status, response.complete), (200, true));
    assert_eq!(response.text().matches("data:").count(), 10);
}

#[test]
fn c27_each_event_is_passed_on_at_once() {
    let gap = Duration::from_millis(150);
    let origin = events(5, gap);
    let proxy = Proxy::start(Config::to(origin.address()).route(|route| route.streaming = true));
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let head = client.response_head().expect("a head");
    assert_eq!(head.status, 200);
    let mut last = Instant::now();
    for number in 0..5 {
        let bytes = client.take_through(format!("data: {number}\n\n").as_bytes()).expect("an event");
        assert!(!String::from_utf8_lossy(&bytes).contains(&format!("data: {}", number + 1)));
        let waited = last.elapsed();
        last = Instant::now();
        assert!(waited < gap * 4, "event {number} took {waited:?}: it was held back");
    }
}

#[test]
fn c27_an_answer_that_never_comes_is_a_504_that_names_its_timer() {
    let origin = Origin::scripted(|connection| {
        if connection.request().is_some() {
            connection.wait_close();
        }
    });
    let limit = Duration::from_millis(600);
    let proxy = Proxy::start(Config::to(origin.address()).route(|route| route.timeout = Some(limit)));
    let start = Instant::now();
    let response = proxy.get("/");
    let took = start.elapsed();
    assert_eq!(response.status, 504);
    assert_eq!(response.code().as_deref(), Some("upstream_timeout_first_byte"));
    assert!(took >= limit.mul_f32(0.9) && took < limit + Duration::from_millis(1_500), "{took:?}");
    tests::wait_until("the upstream is told", tests::PATIENCE, || origin.connections_open() == 0);
}

#[test]
fn c27_the_wait_for_an_answer_begins_when_the_request_is_whole() {
    let origin = tests::origin::echo();
    let proxy = Proxy::start(
        Config::to(origin.address()).route(|route| route.timeout = Some(Duration::from_millis(500))),
    );
    let mut client = proxy.connect();
    client.send("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 8\r\n\r\n");
    let pieces: Vec<&[u8]> = b"12345678".chunks(1).collect();
    client.send_paced(&pieces, Duration::from_millis(150));
    let response = client.response("POST");
    assert_eq!((response.status, response.json()["body_bytes"].as_u64()), (200, Some(8)));
}

#[test]
fn c27_a_quiet_stream_ends_at_its_idle_limit() {
    let origin = Origin::scripted(|connection| {
        if connection.request().is_some() {
            connection.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n");
            connection.wait_close();
        }
    });
    let proxy = Proxy::start(
        Config::to(origin.address()).route(|route| route.idle_timeout = Some(Duration::from_secs(1))),
    );
    let start = Instant::now();
    let response = proxy.get("/");
    assert_eq!((response.status, response.complete, response.text().as_str()), (200, false, "hi"));
    let took = start.elapsed();
    assert!(took > Duration::from_millis(900) && took < Duration::from_millis(3_000), "{took:?}");
}

#[test]
fn c27_back_pressure_reaches_the_upstream() {
    const BLOCK: usize = 1 << 20;
    let origin = Origin::scripted(|connection| {
        if connection.request().is_some() {
            connection.write(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", BLOCK * 100));
            let block = vec![b'x'; BLOCK];
            for _ in 0..100 {
                if !connection.write(&block) {
                    return;
                }
            }
        }
    });
    let proxy = {
        let config = Config::to(origin.address()).route(|route| route.streaming = true);
        Proxy::start(config)
    };
    let mut proxy = proxy;
    let pid = proxy.process().pid();
    let before = resident_kib(pid);
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    // Nothing is read for a while: the proxy must not buffer what the upstream could send.
    tests::wait::pause(Duration::from_millis(700));
    let grown = resident_kib(pid).saturating_sub(before);
    assert!(grown < 8 * 1024, "{grown} KiB buffered for one client that does not read");
    let response = client.response("GET");
    assert_eq!((response.body.len(), response.complete), (BLOCK * 100, true));
}

/// Resident memory of a process, KiB.
fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("the kernel says VmRSS");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number of KiB")
}

#[test]
fn c27_upload_back_pressure_reaches_the_client() {
    let origin = Origin::scripted(|connection| {
        if connection.head().is_some() {
            // Reads nothing until the proxy gives up.
            tests::wait::pause(Duration::from_millis(800));
            connection.take(50_000_000);
            connection.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let mut proxy = Proxy::start(Config::to(origin.address()).route(|route| {
        route.streaming = true;
    }));
    let pid = proxy.process().pid();
    let before = resident_kib(pid);
    let mut client = proxy.connect();
    client.send("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 50000000\r\n\r\n");
    client.send(vec![b'x'; 50_000_000]);
    let grown = resident_kib(pid).saturating_sub(before);
    assert!(grown < 8 * 1024, "{grown} KiB buffered for one upload");
    assert_eq!(client.response("POST").text(), "ok");
}
