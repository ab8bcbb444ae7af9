//! HTTP/2 as well-behaved clients use it, in all four pairings of versions, in clear and over TLS.

use http::Request;
use tests::h2peer::{H2Client, H2Origin, block_on, collect, drain, request, send_all};
use tests::h2raw::{Frame, H2Conn, flag, kind, request_fields, setting};
use tests::message::hash;
use tests::tls::Authority;
use tests::{Config, Origin, Proxy, origin};

fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|index| u8::try_from(index % 249).expect("below 249")).collect()
}

#[test]
fn the_four_pairings_carry_bodies_byte_for_byte() {
    let h1 = origin::echo();
    let h2 = H2Origin::echo();
    for (upstream, config) in [("h1", Config::to(h1.address())), ("h2", Config::to_h2(h2.address()))] {
        let proxy = Proxy::start(config);
        for size in [0, 1, 16_384, 65_536, 3_000_000] {
            let body = pattern(size);
            let mut client = proxy.connect();
            client
                .send(format!("POST /x?y HTTP/1.1\r\nHost: a.example\r\nContent-Length: {size}\r\n\r\n"))
                .send(&body);
            let from_h1 = client.response("POST");
            let from_h2 = block_on(async {
                let mut client = H2Client::connect(proxy.address()).await;
                client.exchange(request("POST", "a.example", "/x?y"), &body, None).await.expect("an answer")
            });
            for (downstream, response) in [("h1", from_h1), ("h2", from_h2)] {
                assert_eq!(response.status, 200, "{downstream} to {upstream}, {size} bytes");
                let echoed = response.json();
                assert_eq!(echoed["body_hash"], hash(&body), "{downstream} to {upstream}, {size} bytes");
                assert_eq!(echoed["target"], "/x?y");
            }
        }
    }
    assert_eq!(h1.faults(), Vec::<String>::new());
}

/// What is sent at once fills the connection's output; the client's credit for more has to be read all the same.
#[test]
fn a_window_of_any_size_is_opened_again_and_again() {
    let body = pattern(4 << 20);
    let sent = body.clone();
    let origin = Origin::scripted(move |connection| {
        while connection.request().is_some() {
            connection.write(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", sent.len()));
            if !connection.write(&sent) {
                return;
            }
        }
    });
    let proxy = Proxy::start(Config::to(origin.address()));
    for window in [16 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20] {
        let settings = [(setting::INITIAL_WINDOW_SIZE, window)];
        let mut client = H2Conn::client(proxy.connect().into_stream(), &settings);
        client.send(&Frame::window_update(0, 1 << 30));
        client.send(&Frame::headers(1, true, &request_fields("GET", "a.example", "/")));
        let (mut got, mut left) = (0, window);
        while got < body.len() {
            let frame = client.wait(|frame| frame.is(kind::DATA, 1));
            let frame = frame.unwrap_or_else(|| panic!("nothing comes after {got} bytes, window {window}"));
            got += frame.payload.len();
            left -= u32::try_from(frame.payload.len()).expect("a frame is small");
            // The whole of it at once, when nothing is left.
            if left == 0 && got < body.len() {
                left = window;
                client.send(&Frame::window_update(1, window));
            }
        }
    }
}

#[test]
fn big_responses_in_the_four_pairings() {
    let body = pattern(5_000_000);
    let sent = body.clone();
    let h2 = H2Origin::start(move |_request, mut respond| {
        let sent = sent.clone();
        async move {
            let mut stream = respond.send_response(http::Response::new(()), false)?;
            send_all(&mut stream, &sent, true).await
        }
    });
    let sent = body.clone();
    let h1 = Origin::scripted(move |connection| {
        while connection.request().is_some() {
            connection.write(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", sent.len()));
            if !connection.write(&sent) {
                return;
            }
        }
    });
    for (upstream, config) in [("h1", Config::to(h1.address())), ("h2", Config::to_h2(h2.address()))] {
        let proxy = Proxy::start(config);
        let from_h1 = proxy.get("/");
        let from_h2 = block_on(async {
            let mut client = H2Client::connect(proxy.address()).await;
            client.get("a.example", "/").await.expect("an answer")
        });
        for (downstream, response) in [("h1", from_h1), ("h2", from_h2)] {
            assert!(response.complete, "{upstream} to {downstream}");
            assert_eq!(hash(&response.body), hash(&body), "{upstream} to {downstream}");
        }
    }
}

#[test]
fn many_streams_at_once_share_one_connection_and_few_upstream() {
    let h1 = origin::echo();
    let h2 = H2Origin::echo();
    for config in [Config::to(h1.address()), Config::to_h2(h2.address())] {
        let proxy = Proxy::start(config);
        block_on(async {
            let mut client = H2Client::connect(proxy.address()).await;
            let mut open = Vec::new();
            for number in 0..100 {
                let (future, _stream) = client
                    .open(request("GET", "a.example", &format!("/{number}")), true)
                    .await
                    .expect("a stream");
                open.push((number, collect(future)));
            }
            for (number, future) in open {
                let response = future.await.expect("an answer");
                assert_eq!(response.json()["target"], format!("/{number}"));
            }
        });
    }
    assert_eq!(h2.seen().len(), 100);
}

#[test]
fn a_slow_stream_does_not_hold_the_others() {
    let origin = Origin::scripted(|connection| {
        while let Some(request) = connection.request() {
            if request.target == "/slow" && !connection.quiet_for(std::time::Duration::from_millis(1_500)) {
                return;
            }
            if !connection.echo(&request) {
                return;
            }
        }
    });
    let proxy = Proxy::start(Config::to(origin.address()));
    block_on(async {
        let mut client = H2Client::connect(proxy.address()).await;
        let (slow, _stream) =
            client.open(request("GET", "a.example", "/slow"), true).await.expect("a stream");
        let slow = tokio::spawn(collect(slow));
        for number in 0..20 {
            assert_eq!(client.get("a.example", &format!("/{number}")).await.expect("an answer").status, 200);
        }
        assert!(!slow.is_finished(), "twenty quick answers come before the slow one");
        assert_eq!(slow.await.expect("a task").expect("an answer").status, 200);
    });
}

#[test]
fn a_client_that_reads_one_stream_only_does_not_block_it_by_the_others() {
    let body = vec![b'x'; 200_000];
    let origin = Origin::scripted(move |connection| {
        while connection.request().is_some() {
            connection.write(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()));
            if !connection.write(&body) {
                return;
            }
        }
    });
    let proxy = Proxy::start(Config::to(origin.address()));
    let mut h2 = H2Conn::client(proxy.connect().into_stream(), &[]);
    h2.send(&Frame::window_update(0, 10_000_000));
    // Streams 1 and 3 are never given a bigger window than the default.
    for stream in [1, 3, 5] {
        h2.send(&Frame::headers(stream, true, &request_fields("GET", "a.example", "/")));
    }
    let response = h2.response(5).expect("an answer");
    assert_eq!((response.status, response.body.len()), (200, 200_000));
}

#[test]
fn alpn_chooses_and_both_versions_work_over_tls() {
    let origin = origin::echo();
    let authority = Authority::default();
    let proxy = Proxy::start(Config::to(origin.address()).tls(&[authority.leaf(&["a.example"])]));
    let response = block_on(async {
        let mut client =
            H2Client::connect_tls(proxy.address(), &authority.client("a.example", &["h2"])).await;
        client.exchange(request("POST", "a.example", "/x"), &pattern(100_000), None).await.expect("an answer")
    });
    assert_eq!((response.status, response.json()["body_bytes"].as_u64()), (200, Some(100_000)));
    for alpn in [&["http/1.1"][..], &["http/1.1", "h2"], &[], &["unknown", "http/1.1"]] {
        let tls = authority.client("a.example", alpn);
        let mut client = tests::RawClient::connect_tls(proxy.address(), &tls).expect("a handshake");
        let chosen = client.tls().and_then(|tls| tls.alpn_protocol().map(<[u8]>::to_vec));
        if chosen.as_deref() == Some(b"h2") {
            continue;
        }
        client.send("GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n");
        assert_eq!(client.response("GET").status, 200, "{alpn:?}");
    }
    let seen = origin.requests().pop().expect("a request");
    assert_eq!(seen.field("x-forwarded-proto"), Some("https"));
}

#[test]
fn cookies_in_crumbs_are_joined_for_an_h1_upstream() {
    // RFC 9113 §8.2.3.
    let (origin, proxy) = crate::echo_behind_proxy();
    let mut h2 = H2Conn::client(proxy.connect().into_stream(), &[]);
    let mut fields = request_fields("GET", "a.example", "/");
    fields.extend([("cookie", "a=1"), ("x", "y"), ("cookie", "b=2"), ("cookie", "c=3")]);
    h2.send(&Frame::headers(1, true, &fields));
    assert_eq!(h2.response(1).expect("an answer").status, 200);
    assert_eq!(origin.requests()[0].field("cookie"), Some("a=1; b=2; c=3"));
}

#[test]
fn a_cancelled_stream_is_cancelled_upstream() {
    let origin = Origin::scripted(|connection| {
        if connection.request().is_some() {
            connection.wait_close();
        }
    });
    let proxy = Proxy::start(Config::to(origin.address()));
    let mut h2 = H2Conn::client(proxy.connect().into_stream(), &[]);
    h2.send(&Frame::headers(1, true, &request_fields("GET", "a.example", "/")));
    let _seen = origin.wait_request(1);
    h2.send(&Frame::rst(1, tests::h2raw::code::CANCEL));
    tests::wait_until("the upstream connection is given up", tests::PATIENCE, || {
        origin.connections_open() == 0
    });
}

#[test]
fn c10_extended_connect_carries_a_websocket() {
    let origin = Origin::scripted(|connection| {
        let Some(request) = connection.head() else {
            return;
        };
        // RFC 8441 §5: towards HTTP/1.1 it is an ordinary upgrade.
        if request.method == "GET" && request.field("upgrade") == Some("websocket") {
            connection.write(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nHELLO",
            );
            let got = connection.rest();
            connection.write([got, vec![b'u'; 64 * 1024]].concat());
        }
    });
    let proxy = Proxy::start(Config::to(origin.address()).listener(|listener| {
        listener.upgrades = vec!["websocket".to_owned()];
        listener.extended_connect = true;
    }));
    block_on(async {
        let mut client = H2Client::connect(proxy.address()).await;
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
        let first = body.data().await.expect("data").expect("data");
        assert_eq!(&first[..], b"HELLO");
        body.flow_control().release_capacity(first.len()).expect("held");
        stream.send_data("x".into(), true).expect("an open stream");
        let rest = drain(&mut body).await.expect("a clean end");
        assert_eq!(
            (rest.len(), rest.first()),
            (1 + 64 * 1024, Some(&b'x')),
            "END_STREAM is a half-close only"
        );
    });
}

#[test]
fn plain_connect_over_h2_is_refused() {
    let (origin, proxy) = crate::echo_behind_proxy();
    let mut h2 = H2Conn::client(proxy.connect().into_stream(), &[]);
    h2.send(&Frame::headers(1, true, &[(":method", "CONNECT"), (":authority", "a.example:443")]));
    match h2.response(1) {
        Ok(response) => assert!(matches!(response.status, 400 | 405 | 501), "{response:?}"),
        Err(early) => assert!(early.code().is_some(), "{early:?}"),
    }
    crate::untouched(&origin, "CONNECT");
}

#[test]
fn the_settings_say_what_the_limits_are() {
    let origin = origin::echo();
    let proxy =
        Proxy::start(Config::to(origin.address()).listener(|listener| listener.h2_streams_max = Some(5)));
    let mut h2 = H2Conn::client(proxy.connect().into_stream(), &[]);
    let settings = h2.wait(|frame| frame.kind == kind::SETTINGS && !frame.has(flag::ACK)).expect("settings");
    let value = |name: u16| {
        let pair = settings.payload.chunks(6).find(|pair| u16::from_be_bytes([pair[0], pair[1]]) == name)?;
        Some(u32::from_be_bytes([pair[2], pair[3], pair[4], pair[5]]))
    };
    assert_eq!(value(setting::MAX_CONCURRENT_STREAMS), Some(5));
    assert!(
        matches!(value(setting::ENABLE_CONNECT_PROTOCOL), None | Some(0)),
        "extended CONNECT is off by default"
    );
}
