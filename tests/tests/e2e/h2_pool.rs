//! HTTP/2 connections towards upstreams: who shares one, who waits, who must not suffer for others; and WebSockets
//! as extended CONNECT (RFC 8441) in the pairings that end at an HTTP/2 upstream.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::Request;
use tests::h2peer::{H2Client, H2Origin, block_on, collect, drain, request, send_all};
use tests::h2raw::{Frame, H2Conn, code, flag, kind, setting};
use tests::{Config, Origin, PATIENCE, Proxy, wait_until};

type Upstream = H2Conn<TcpStream>;

/// An origin at frame level: `script` runs for each connection after the prefaces.
fn frames(settings: &'static [(u16, u32)], script: impl Fn(&mut Upstream) + Send + Sync + 'static) -> Origin {
    Origin::scripted(move |connection| {
        let stream = connection.stream().try_clone().expect("a descriptor is free");
        if let Some(mut h2) = H2Conn::server(stream, settings) {
            script(&mut h2);
        }
    })
}

fn answer(h2: &mut Upstream, stream: u32) -> bool {
    h2.try_send(&Frame::headers(stream, true, &[(":status", "200")])).is_ok()
}

#[test]
fn a_burst_at_the_start_shares_one_connection() {
    let origin = frames(&[], |h2| {
        while let Some(frame) = h2.wait(|frame| frame.kind == kind::HEADERS) {
            answer(h2, frame.stream);
        }
    });
    let proxy = Proxy::start(Config::to_h2(origin.address()));
    block_on(async {
        let mut client = H2Client::connect(proxy.address()).await;
        let mut waiting = Vec::new();
        for _ in 0..50 {
            let (future, _stream) =
                client.open(request("GET", "a.example", "/"), true).await.expect("a stream");
            waiting.push(future);
        }
        for future in waiting {
            assert_eq!(collect(future).await.expect("an answer").status, 200);
        }
    });
    assert_eq!(origin.connections(), 1, "fifty requests have room on one connection");
}

#[test]
fn a_connection_over_its_streams_gets_a_second_one_beside_it() {
    let open = Arc::new(AtomicUsize::new(0));
    let origin = frames(&[(setting::MAX_CONCURRENT_STREAMS, 2)], {
        let open = Arc::clone(&open);
        move |h2| {
            // Nobody is answered before all four are there: one connection alone would never get so far.
            let mut here = Vec::new();
            while let Some(frame) = h2.wait(|frame| frame.kind == kind::HEADERS) {
                here.push(frame.stream);
                open.fetch_add(1, Ordering::AcqRel);
                if here.len() == 2 {
                    break;
                }
            }
            wait_until("all four are there", PATIENCE, || open.load(Ordering::Acquire) == 4);
            for stream in here {
                answer(h2, stream);
            }
            while h2.read().is_some() {}
        }
    });
    let proxy = Proxy::start(Config::to_h2(origin.address()));
    block_on(async {
        let mut client = H2Client::connect(proxy.address()).await;
        let mut waiting = Vec::new();
        for _ in 0..4 {
            let (future, _stream) =
                client.open(request("GET", "a.example", "/"), true).await.expect("a stream");
            waiting.push(future);
        }
        for future in waiting {
            assert_eq!(collect(future).await.expect("an answer").status, 200);
        }
    });
    assert_eq!(origin.connections(), 2);
}

#[test]
fn a_client_that_leaves_the_line_does_not_take_the_place_of_the_next() {
    let origin = frames(&[(setting::MAX_CONCURRENT_STREAMS, 1)], |h2| {
        // The first request is held until the others stand in line; /go ends it.
        let Some(first) = h2.wait(|frame| frame.kind == kind::HEADERS) else {
            return;
        };
        tests::wait::pause(Duration::from_millis(500));
        answer(h2, first.stream);
        while let Some(frame) = h2.wait(|frame| frame.kind == kind::HEADERS) {
            answer(h2, frame.stream);
        }
    });
    let mut config = Config::to_h2(origin.address());
    config.clusters[0].h2_connections_max = Some(1);
    let proxy = Proxy::start(config);
    block_on(async {
        let mut client = H2Client::connect(proxy.address()).await;
        let get = || request("GET", "a.example", "/");
        let (first, _stream) = client.open(get(), true).await.expect("a stream");
        // In line: two that leave, and two that stay behind them.
        let (second, mut reset) = client.open(get(), true).await.expect("a stream");
        let (third, _stream) = client.open(get(), true).await.expect("a stream");
        let (fourth, mut reset_too) = client.open(get(), true).await.expect("a stream");
        let (fifth, _stream) = client.open(get(), true).await.expect("a stream");
        reset.send_reset(h2::Reason::CANCEL);
        reset_too.send_reset(h2::Reason::CANCEL);
        drop((second, fourth));
        for future in [first, third, fifth] {
            assert_eq!(collect(future).await.expect("an answer").status, 200);
        }
    });
    assert_eq!(origin.connections(), 1);
}

#[test]
fn c20_a_request_that_was_reset_in_line_never_reaches_the_upstream() {
    let seen = Arc::new(AtomicUsize::new(0));
    let origin = frames(&[(setting::MAX_CONCURRENT_STREAMS, 1)], {
        let seen = Arc::clone(&seen);
        move |h2| {
            while let Some(frame) = h2.wait(|frame| frame.kind == kind::HEADERS) {
                if seen.fetch_add(1, Ordering::AcqRel) == 0 {
                    tests::wait::pause(Duration::from_millis(500));
                }
                answer(h2, frame.stream);
            }
        }
    });
    let mut config = Config::to_h2(origin.address());
    config.clusters[0].h2_connections_max = Some(1);
    let proxy = Proxy::start(config);
    block_on(async {
        let mut client = H2Client::connect(proxy.address()).await;
        let get = || request("GET", "a.example", "/");
        let (first, _stream) = client.open(get(), true).await.expect("a stream");
        for _ in 0..20 {
            let (_future, mut stream) = client.open(get(), true).await.expect("a stream");
            stream.send_reset(h2::Reason::CANCEL);
        }
        assert_eq!(collect(first).await.expect("an answer").status, 200);
        assert_eq!(client.get("a.example", "/last").await.expect("an answer").status, 200);
    });
    assert_eq!(seen.load(Ordering::Acquire), 2, "the first and the last");
}

#[test]
fn c18_readers_that_stand_still_do_not_hold_up_the_response_of_another() {
    const BIG: usize = 2_000_000;
    let origin = H2Origin::start(|request, mut respond| async move {
        let size = if request.uri().path() == "/big" { BIG } else { 2 };
        let mut stream = respond.send_response(http::Response::new(()), false)?;
        send_all(&mut stream, &vec![b'x'; size], true).await
    });
    let proxy = Proxy::start(Config::to_h2(origin.address()));
    block_on(async {
        let mut still = H2Client::connect(proxy.address()).await;
        let mut held = Vec::new();
        for _ in 0..40 {
            let (future, _stream) =
                still.open(request("GET", "a.example", "/big"), true).await.expect("a stream");
            // The head is read, the body is not: its windows fill up.
            held.push(future.await.expect("a head"));
        }
        for _ in 0..5 {
            let mut other = H2Client::connect(proxy.address()).await;
            let quick = other.get("a.example", "/quick");
            let quick = tokio::time::timeout(Duration::from_secs(10), quick).await.expect("no stall");
            assert_eq!(quick.expect("an answer").body.len(), 2);
        }
        // They can still be read to their ends, together: they share the client's own window.
        let readers: Vec<_> = held
            .into_iter()
            .map(|response| tokio::spawn(async move { drain(&mut response.into_body()).await }))
            .collect();
        for reader in readers {
            assert_eq!(reader.await.expect("a task").expect("a whole body").len(), BIG);
        }
    });
}

#[test]
fn c24_an_h2_upstream_that_answers_early_and_stops_the_upload() {
    let origin = frames(&[], |h2| {
        while let Some(frame) = h2.wait(|frame| frame.kind == kind::HEADERS) {
            // RFC 9113 §8.1: a whole response, then RST_STREAM with NO_ERROR.
            let reply = [
                Frame::headers(frame.stream, false, &[(":status", "413"), ("content-length", "3")]),
                Frame::data(frame.stream, true, "big"),
                Frame::rst(frame.stream, code::NO_ERROR),
            ];
            drop(h2.write_bytes(&reply.iter().flat_map(Frame::encode).collect::<Vec<u8>>()));
        }
    });
    let proxy = Proxy::start(Config::to_h2(origin.address()));
    for _ in 0..3 {
        let mut h1 = proxy.connect();
        h1.send("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 10000000\r\n\r\n");
        drop(h1.try_send(vec![b'x'; 10_000_000]));
        let response = h1.response("POST");
        assert_eq!((response.status, response.text().as_str()), (413, "big"));
        let response = block_on(async {
            let mut client = H2Client::connect(proxy.address()).await;
            client
                .exchange(request("POST", "a.example", "/"), &vec![b'x'; 10_000_000], None)
                .await
                .expect("an answer")
        });
        assert_eq!((response.status, response.text().as_str()), (413, "big"));
    }
    assert_eq!(origin.connections(), 1, "the connection stays in use");
}

#[test]
fn c24_an_h2_upstream_that_answers_early_and_closes() {
    let origin = frames(&[], |h2| {
        if let Some(frame) = h2.wait(|frame| frame.kind == kind::HEADERS) {
            let reply = [
                Frame::headers(frame.stream, false, &[(":status", "413"), ("content-length", "3")]),
                Frame::data(frame.stream, true, "big"),
            ];
            // What comes of the upload by then is unread, so that the close resets.
            drop(h2.write_bytes(&reply.iter().flat_map(Frame::encode).collect::<Vec<u8>>()));
        }
    });
    let proxy = Proxy::start(Config::to_h2(origin.address()));
    for round in 0..100 {
        let mut h1 = proxy.connect();
        h1.send("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 200000\r\n\r\n");
        drop(h1.try_send(vec![b'x'; 200_000]));
        let response = h1.response("POST");
        assert_eq!((response.status, response.text().as_str()), (413, "big"), "round {round}");
        origin.wait_closed();
    }
}

#[test]
fn an_upstream_that_speaks_http_1_is_a_502_at_once() {
    let origin = Origin::scripted(|connection| {
        connection.write("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        connection.wait_close();
    });
    let proxy = Proxy::start(Config::to_h2(origin.address()));
    let start = Instant::now();
    assert_eq!(proxy.get("/").status, 502);
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
}

#[test]
fn an_upstream_that_says_nothing_is_a_timeout_and_then_dialled_anew() {
    let origin = Origin::scripted(|connection| connection.wait_close());
    let mut config = Config::to_h2(origin.address());
    config.clusters[0].connect_timeout = Some(Duration::from_secs(1));
    let proxy = Proxy::start(config);
    assert!(matches!(proxy.get("/").status, 502 | 504), "nothing has answered");
    wait_until("the silent connection is given up", PATIENCE, || origin.connections_open() == 0);
    assert!(matches!(proxy.get("/").status, 502 | 504), "nothing has answered");
    assert!(origin.connections() >= 2);
}

#[test]
fn an_upstream_that_does_not_answer_pings_is_left() {
    let origin = frames(&[], |h2| {
        while let Some(frame) = h2.wait(|frame| frame.kind == kind::HEADERS) {
            answer(h2, frame.stream);
            h2.polite = false;
        }
    });
    let mut config = Config::to_h2(origin.address());
    config.clusters[0].h2_ping = Some(Duration::from_secs(1));
    let proxy = Proxy::start(config);
    assert_eq!(proxy.get("/").status, 200);
    wait_until("the dead connection is found", PATIENCE, || origin.connections_open() == 0);
}

#[test]
fn c22_a_post_does_not_go_out_on_a_connection_that_the_upstream_has_closed() {
    let origin = frames(&[], |h2| {
        if let Some(frame) = h2.wait(|frame| frame.kind == kind::HEADERS) {
            answer(h2, frame.stream);
        }
    });
    let proxy = Proxy::start(Config::to_h2(origin.address()));
    for round in 1..=20 {
        let post = "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(tests::client::once(proxy.address(), post).status, 200, "round {round}");
        origin.wait_closed();
    }
}

const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
/// RFC 6455 §1.3 works this example.
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

fn upgrading(origin: &Origin) -> Proxy {
    Proxy::start(Config::to_h2(origin.address()).listener(|listener| {
        listener.upgrades = vec!["websocket".to_owned()];
        listener.extended_connect = true;
    }))
}

/// Takes an extended CONNECT, echoes its DATA, ends when the client ends.
fn websocket(h2: &mut Upstream) {
    while let Some(head) = h2.wait(|frame| frame.kind == kind::HEADERS) {
        let fields = h2.fields(head.stream).expect("a whole block").expect("HPACK");
        let value = |name: &str| {
            fields.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str()).unwrap_or("")
        };
        let legal = (value(":method"), value(":protocol"), value(":path"), value(":authority"))
            == ("CONNECT", "websocket", "/ws", "a.example")
            && !value(":scheme").is_empty()
            && value("sec-websocket-version") == "13"
            && !fields.iter().any(|(name, _)| {
                matches!(name.as_str(), "sec-websocket-key" | "upgrade" | "connection" | "content-length")
            });
        if !legal || head.has(flag::END_STREAM) {
            drop(h2.try_send(&Frame::headers(head.stream, true, &[(":status", "400")])));
            continue;
        }
        drop(h2.try_send(&Frame::headers(head.stream, false, &[(":status", "200")])));
        drop(h2.try_send(&Frame::data(head.stream, false, "HELLO")));
        while let Some(data) = h2.wait(|frame| frame.is(kind::DATA, head.stream)) {
            let end = data.has(flag::END_STREAM);
            drop(h2.try_send(&Frame::data(head.stream, end, data.payload)));
            if end {
                break;
            }
        }
    }
}

#[test]
fn c10_a_websocket_from_h1_to_an_h2_upstream() {
    let origin = frames(&[(setting::ENABLE_CONNECT_PROTOCOL, 1)], websocket);
    let proxy = upgrading(&origin);
    // The very first request on a fresh connection must wait for the SETTINGS that allow it.
    for _ in 0..3 {
        let mut client = proxy.connect();
        client.send(format!(
            "GET /ws HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        ));
        let response = client.response_head().expect("an answer");
        assert_eq!((response.status, response.field("sec-websocket-accept")), (101, Some(ACCEPT)));
        assert_eq!(response.field("upgrade").map(str::to_ascii_lowercase).as_deref(), Some("websocket"));
        assert_eq!(client.take(5).as_deref(), Some(&b"HELLO"[..]));
        client.send("over there");
        assert_eq!(client.take(10).as_deref(), Some(&b"over there"[..]));
        client.finish_sending();
        assert_eq!(client.rest(), b"", "the end comes back as an end");
    }
}

#[test]
fn c10_a_websocket_from_h2_to_an_h2_upstream() {
    let origin = frames(&[(setting::ENABLE_CONNECT_PROTOCOL, 1)], websocket);
    let proxy = upgrading(&origin);
    block_on(async {
        let mut client = H2Client::connect(proxy.address()).await;
        for _ in 0..3 {
            let mut connect = Request::builder()
                .method("CONNECT")
                .uri("http://a.example/ws")
                .header("sec-websocket-version", "13")
                .body(())
                .expect("a legal head");
            connect.extensions_mut().insert(h2::ext::Protocol::from_static("websocket"));
            let (future, mut stream) = client.open(connect, false).await.expect("a stream");
            let response = future.await.expect("an answer");
            assert_eq!(response.status(), 200);
            let mut body = response.into_body();
            send_all(&mut stream, b"over there", true).await.expect("an open stream");
            assert_eq!(drain(&mut body).await.expect("a clean end"), b"HELLOover there");
        }
    });
}

#[test]
fn c10_an_h2_upstream_without_extended_connect_refuses_a_websocket() {
    let origin = frames(&[], websocket);
    let proxy = upgrading(&origin);
    let response = tests::client::once(
        proxy.address(),
        format!(
            "GET /ws HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        ),
    );
    assert!(matches!(response.status, 400 | 501 | 502), "{response:?}");
}
