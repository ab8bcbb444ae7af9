//! C17 and limits of sizes and counts over HTTP/1.1: the right status for that request only, and a counter.

use std::time::Duration;

use tests::h2raw::{Frame, H2Conn, request_fields};
use tests::{Config, End, Origin, Proxy, client, origin};

use crate::{echo_behind_proxy, refused, untouched};

#[test]
fn c17_request_heads_over_the_limits() {
    let (origin, proxy) = echo_behind_proxy();
    let get = |lines: &str| format!("GET / HTTP/1.1\r\nHost: a.example\r\n{lines}\r\n");
    let many: String = (0..150).map(|number| format!("X-{number}: 1\r\n")).collect();
    let big_sum: String = (0..80).map(|number| format!("X-{number}: {}\r\n", "y".repeat(900))).collect();
    for (what, request, statuses) in [
        ("one field of 70 kB", get(&format!("X: {}\r\n", "y".repeat(70_000))), &[431_u16][..]),
        ("150 fields", get(&many), &[431]),
        ("72 kB in 80 fields", get(&big_sum), &[431]),
        ("a field name of 70 kB", get(&format!("{}: 1\r\n", "x".repeat(70_000))), &[431]),
        (
            "a request line of 20 kB",
            format!("GET /{} HTTP/1.1\r\nHost: a.example\r\n\r\n", "x".repeat(20_000)),
            &[414],
        ),
        ("an endless method", format!("{}\r\n\r\n", "X".repeat(20_000)), &[400, 414, 501]),
    ] {
        let response = refused(&proxy, what, request.as_bytes(), statuses).expect("checked by refused");
        assert!(response.code().is_some(), "{what}");
        untouched(&origin, what);
    }
    assert_eq!(proxy.get("/").status, 200);
}

#[test]
fn c17_a_head_just_below_the_limits_passes() {
    let (origin, proxy) = echo_behind_proxy();
    let many: String = (0..90).map(|number| format!("X-{number}: {}\r\n", "y".repeat(200))).collect();
    let request = format!("GET /{} HTTP/1.1\r\nHost: a.example\r\n{many}\r\n", "x".repeat(8_000));
    assert_eq!(client::once(proxy.address(), request).status, 200);
    assert_eq!(origin.faults(), Vec::<String>::new());
}

#[test]
fn c17_an_endless_head_is_cut_while_it_comes() {
    let (origin, proxy) = echo_behind_proxy();
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: a.example\r\nX: ");
    let block = vec![b'y'; 64 * 1024];
    let cut = (0..64).any(|_| client.try_send(&block).is_err());
    let status = client.try_response("GET").map(|response| response.status);
    assert!(cut || status == Ok(431), "{status:?}");
    untouched(&origin, "an endless head");
}

#[test]
fn c17_limits_are_configurable() {
    let origin = origin::echo();
    let proxy = Proxy::start(Config::to(origin.address()).listener(|listener| {
        listener.header_kib_max = Some(4);
        listener.header_count_max = Some(10);
        listener.request_line_bytes_max = Some(256);
    }));
    let many: String = (0..12).map(|number| format!("X-{number}: 1\r\n")).collect();
    for (request, status) in [
        (format!("GET / HTTP/1.1\r\nHost: a.example\r\nX: {}\r\n\r\n", "y".repeat(5_000)), 431),
        (format!("GET / HTTP/1.1\r\nHost: a.example\r\n{many}\r\n"), 431),
        (format!("GET /{} HTTP/1.1\r\nHost: a.example\r\n\r\n", "x".repeat(300)), 414),
        (
            format!(
                "GET /{} HTTP/1.1\r\nHost: a.example\r\nX: {}\r\n\r\n",
                "x".repeat(200),
                "y".repeat(3_000)
            ),
            200,
        ),
    ] {
        assert_eq!(client::once(proxy.address(), request).status, status);
    }
}

#[test]
fn c17_one_limit_for_the_target_in_both_versions() {
    let origin = origin::echo();
    let proxy = Proxy::start(
        Config::to(origin.address()).listener(|listener| listener.request_line_bytes_max = Some(256)),
    );
    let around = "GET  HTTP/1.1".len();
    for (length, status) in [(256, 200), (257, 414), (9_000, 414)] {
        let target = format!("/{}", "x".repeat(length - around - 1));
        assert_eq!(client::get_h1(proxy.address(), "a.example", &target).status, status, "{length}");
        let mut client = H2Conn::client(proxy.connect().into_stream(), &[]);
        client.send(&Frame::headers(1, true, &request_fields("GET", "a.example", &target)));
        let response = client.response(1).expect("an answer");
        assert_eq!(response.status, status, "{length} over HTTP/2");
        if status == 414 {
            assert_eq!(response.code().as_deref(), Some("request_line_too_long"));
        }
    }
}

#[test]
fn c17_a_response_head_over_the_limits_is_a_502_with_a_reason() {
    let many: String = (0..300).map(|number| format!("X-{number}: 1\r\n")).collect();
    for (what, lines) in [("100 kB", format!("X: {}\r\n", "y".repeat(100_000))), ("300 fields", many)] {
        let origin = Origin::replying(format!("HTTP/1.1 200 OK\r\n{lines}Content-Length: 2\r\n\r\nok"));
        let proxy = Proxy::start(Config::to(origin.address()));
        let response = proxy.get("/");
        assert_eq!(response.status, 502, "{what}");
        assert!(response.code().is_some(), "{what}");
    }
}

#[test]
fn body_limit_by_length_and_by_counting() {
    let origin = origin::echo();
    let proxy = Proxy::start(Config::to(origin.address()).route(|route| route.body_bytes_max = Some(1_000)));
    let sized = |size: usize| {
        format!("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: {size}\r\n\r\n{}", "x".repeat(size))
    };
    assert_eq!(client::once(proxy.address(), sized(1_000)).status, 200);
    let before = origin.received_text().len();
    assert_eq!(client::once(proxy.address(), sized(1_001)).status, 413);
    assert_eq!(
        origin.received_text().len(),
        before,
        "a length over the limit is refused before anything is forwarded"
    );
    let chunked = |count: usize| {
        let chunk = format!("64\r\n{}\r\n", "x".repeat(100)).repeat(count);
        format!("POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}0\r\n\r\n")
    };
    assert_eq!(client::once(proxy.address(), chunked(10)).status, 200);
    let whole = origin.requests().len();
    let mut client = proxy.connect();
    drop(client.try_send(chunked(100)));
    assert_eq!(client.response("POST").status, 413);
    client.expect_close();
    assert_eq!(origin.requests().len(), whole, "the cut request never looks whole to the origin");
}

#[test]
fn connections_over_the_bound_are_refused_and_counted() {
    let origin = origin::echo();
    let proxy =
        Proxy::start(Config::to(origin.address()).listener(|listener| listener.connections_max = Some(8)));
    let mut held = Vec::new();
    for _ in 0..8 {
        let mut client = proxy.connect();
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        assert_eq!(client.response("GET").status, 200);
        held.push(client);
    }
    let mut ninth = proxy.connect();
    drop(ninth.try_send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"));
    let response = ninth.try_response("GET").ok();
    assert!(response.as_ref().is_none_or(|response| response.status == 503), "{response:?}");
    assert_ne!(ninth.ending(), End::Open);
    held.pop();
    tests::wait_until("a freed place is given away again", tests::PATIENCE, || {
        let mut client = proxy.connect();
        client.try_send("GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n").is_ok()
            && client.try_response("GET").is_ok_and(|response| response.status == 200)
    });
}

#[test]
fn connections_per_client_address() {
    let origin = origin::echo();
    let proxy = Proxy::start(
        Config::to(origin.address()).listener(|listener| listener.client_connections_max = Some(3)),
    );
    let mut held = Vec::new();
    let mut refused = 0;
    for _ in 0..6 {
        let mut client = proxy.connect();
        drop(client.try_send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"));
        match client.try_response("GET") {
            Ok(response) if response.status == 200 => held.push(client),
            other => {
                let status = other.map_or(0, |response| response.status);
                assert!(matches!(status, 0 | 429 | 503), "{status}");
                refused += 1;
            }
        }
    }
    assert_eq!((held.len(), refused), (3, 3));
}

#[test]
fn requests_per_client_address() {
    let origin = origin::echo();
    let proxy = Proxy::start(
        Config::to(origin.address()).listener(|listener| listener.client_requests_per_second = Some(5)),
    );
    let statuses: Vec<u16> = (0..15).map(|_| proxy.get("/").status).collect();
    let served = statuses.iter().filter(|status| **status == 200).count();
    assert!((5..=9).contains(&served), "{statuses:?}");
    assert!(statuses.iter().all(|status| matches!(status, 200 | 429)), "{statuses:?}");
}

#[test]
fn a_connection_has_a_maximum_of_requests_and_of_age() {
    let origin = origin::echo();
    let proxy =
        Proxy::start(Config::to(origin.address()).listener(|listener| listener.requests_max = Some(10)));
    let mut client = proxy.connect();
    let mut served = 0;
    loop {
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        let response = client.response("GET");
        assert_eq!(response.status, 200);
        served += 1;
        if response.field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
            break;
        }
        assert!(served <= 10, "more than the maximum");
    }
    client.expect_close();
    assert!(served >= 5, "jitter shortens a connection's life, {served} is too short");

    let proxy = Proxy::start(
        Config::to(origin.address())
            .listener(|listener| listener.connection_age_max = Some(Duration::from_secs(1))),
    );
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(client.response("GET").status, 200);
    client.patience(Duration::from_secs(5)).expect_close();
}
