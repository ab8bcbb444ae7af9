//! C17, C20, C21 over HTTP/2: header bombs, floods and injection. The connection or the stream pays, nobody else.

use std::time::{Duration, Instant};

use tests::h2raw::{Early, Frame, H2Conn, code, field_block, flag, kind, request_fields};
use tests::{Config, Origin, Proxy, client, origin};

use crate::echo_behind_proxy;

fn h2(proxy: &Proxy) -> H2Conn<client::Stream> {
    let mut connection = H2Conn::client(proxy.connect().into_stream(), &[]);
    assert!(connection.wait(|frame| frame.kind == kind::SETTINGS).is_some(), "the proxy speaks HTTP/2");
    connection
}

/// The proxy still serves others.
#[track_caller]
fn serves(proxy: &Proxy) {
    assert_eq!(proxy.get("/after").status, 200, "others are served");
}

#[test]
fn c21_fields_that_would_become_lines_on_the_h1_side() {
    let (origin, proxy) = echo_behind_proxy();
    let base = request_fields("GET", "a.example", "/");
    let with = |name: &'static str, value: &'static str| {
        let mut fields = base.clone();
        fields.push((name, value));
        fields
    };
    let pseudo = |name: &str, value: &'static str| {
        base.iter().map(|(key, old)| (*key, if *key == name { value } else { *old })).collect::<Vec<_>>()
    };
    let mut twice = base.clone();
    twice.insert(0, (":path", "/other"));
    let mut late = base.clone();
    late.insert(0, ("x", "y"));
    let cases = [
        ("CR LF in a value", with("foo", "a\r\nTransfer-Encoding: chunked")),
        ("LF in a value", with("foo", "a\nb")),
        ("CR in a value", with("foo", "a\rb")),
        ("NUL in a value", with("foo", "a\0b")),
        ("CR LF in a name", with("foo\r\nx", "a")),
        ("colon in a name", with("foo:bar", "a")),
        ("blank in a name", with("foo bar", "a")),
        ("empty name", with("", "a")),
        ("upper case", with("Foo", "1")),
        ("leading blank in a value", with("foo", " a")),
        ("request in the path", pseudo(":path", "/x HTTP/1.1\r\nHost: e")),
        ("blank in the path", pseudo(":path", "/ a")),
        ("empty path", pseudo(":path", "")),
        ("path without a slash", pseudo(":path", "x")),
        ("asterisk for GET", pseudo(":path", "*")),
        ("blank in the method", pseudo(":method", "GE T")),
        ("empty method", pseudo(":method", "")),
        ("URI in the scheme", pseudo(":scheme", "http://e/?")),
        ("CR LF in the authority", pseudo(":authority", "a.example\r\nX: y")),
        ("blank in the authority", pseudo(":authority", "a b")),
        ("transfer-encoding", with("transfer-encoding", "chunked")),
        ("connection", with("connection", "x")),
        ("keep-alive", with("keep-alive", "1")),
        ("proxy-connection", with("proxy-connection", "keep-alive")),
        ("upgrade", with("upgrade", "websocket")),
        ("te other than trailers", with("te", "gzip")),
        ("second path", twice),
        ("pseudo after a field", late),
        ("unknown pseudo", with(":unknown", "x")),
        ("response pseudo", with(":status", "200")),
        ("no method", base[1..].to_vec()),
        ("no path", base[..3].to_vec()),
        ("a length that is not the body's", with("content-length", "5")),
        ("a length that is no number", with("content-length", "+0")),
        ("two lengths", [with("content-length", "0"), vec![("content-length", "1")]].concat()),
        ("two content types", [with("content-type", "a/a"), vec![("content-type", "b/b")]].concat()),
        ("an underscore for a dash", with("content_length", "5")),
        ("an underscore in a name that the proxy vouches for", with("x_forwarded_for", "1.2.3.4")),
    ];
    for (what, fields) in cases {
        let mut connection = h2(&proxy);
        connection.send(&Frame::headers(1, true, &fields));
        match connection.response(1) {
            Ok(response) => assert_eq!(response.status, 400, "{what}: {response:?}"),
            Err(early) => {
                let code = early.code();
                assert!(
                    matches!(code, Some(code::PROTOCOL_ERROR | code::COMPRESSION_ERROR)),
                    "{what}: {early:?}"
                );
            }
        }
        crate::untouched(&origin, what);
    }
}

#[test]
fn c21_fields_that_would_become_lines_in_trailers() {
    let (origin, proxy) = echo_behind_proxy();
    for (name, value) in [("x", "a\r\nY: b"), ("x\r\ny", "a"), ("X", "a"), ("connection", "x")] {
        let mut connection = h2(&proxy);
        connection.send(&Frame::headers(1, false, &request_fields("POST", "a.example", "/")));
        connection.send(&Frame::data(1, false, "hi"));
        connection.send(&Frame::headers(1, true, &[(name, value)]));
        match connection.response(1) {
            Ok(response) => assert!(matches!(response.status, 400 | 502), "{name:?}: {response:?}"),
            Err(early) => assert!(early.code().is_some() || early == Early::Closed, "{name:?}: {early:?}"),
        }
        assert!(origin.requests().is_empty(), "{name:?}: the origin saw a whole request");
    }
    assert_eq!(origin.faults(), Vec::<String>::new());
}

#[test]
fn c21_te_trailers_is_legal() {
    let (_origin, proxy) = echo_behind_proxy();
    let mut connection = h2(&proxy);
    let mut fields = request_fields("GET", "a.example", "/");
    fields.push(("te", "trailers"));
    connection.send(&Frame::headers(1, true, &fields));
    assert_eq!(connection.response(1).expect("an answer").status, 200);
}

#[test]
fn c17_an_oversize_head_costs_its_stream_only() {
    let (origin, proxy) = echo_behind_proxy();
    let long = "y".repeat(60_000);
    let many: Vec<(String, String)> =
        (0..500).map(|number| (format!("x-{number}"), "1".to_owned())).collect();
    let mut heads =
        vec![request_fields("GET", "a.example", "/big"), request_fields("GET", "a.example", "/many")];
    heads[0].push(("x", &long));
    heads[1].extend(many.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    for fields in heads {
        let mut connection = h2(&proxy);
        connection.send(&Frame::headers(1, true, &request_fields("GET", "a.example", "/before")));
        let block = field_block(&fields);
        let pieces: Vec<&[u8]> = block.chunks(16_000).collect();
        for (index, piece) in pieces.iter().enumerate() {
            let last = index + 1 == pieces.len();
            let ends = if last { flag::END_HEADERS } else { 0 };
            let frame = if index == 0 {
                Frame::new(kind::HEADERS, flag::END_STREAM | ends, 3, *piece)
            } else {
                Frame::new(kind::CONTINUATION, ends, 3, *piece)
            };
            connection.send(&frame);
        }
        connection.send(&Frame::headers(5, true, &request_fields("GET", "a.example", "/after")));
        assert_eq!(connection.response(1).expect("the stream before").status, 200);
        assert_eq!(connection.response(3).expect("the refusal").status, 431);
        assert_eq!(connection.response(5).expect("the stream after").status, 200);
    }
    assert!(origin.requests().iter().all(|request| matches!(request.target.as_str(), "/before" | "/after")));
}

#[test]
fn c17_a_small_block_that_decodes_to_a_big_head() {
    let (origin, proxy) = echo_behind_proxy();
    let mut connection = h2(&proxy);
    // One literal with incremental indexing (RFC 7541 §6.2.1) of 3 kB, then thousands of references to it.
    let mut block = field_block(&request_fields("GET", "a.example", "/"));
    let value = "y".repeat(3_000);
    let mut literal = field_block(&[("x", &value)]);
    literal[0] = 0x40;
    block.extend(literal);
    block.extend(std::iter::repeat_n(0xbe, 5_000));
    connection.send(&Frame::new(kind::HEADERS, flag::END_STREAM | flag::END_HEADERS, 1, block));
    match connection.response(1) {
        Ok(response) => assert_eq!(response.status, 431),
        Err(early) => assert!(early.code().is_some(), "{early:?}"),
    }
    crate::untouched(&origin, "a header bomb");
    serves(&proxy);
}

/// Floods with `frames` (repeated), until the proxy ends the connection. Returns the GOAWAY code.
fn flood(
    connection: &mut H2Conn<client::Stream>,
    count: u32,
    frames: impl Fn(u32) -> Vec<Frame>,
) -> Option<u32> {
    for number in 0..count {
        let bytes: Vec<u8> = frames(number).iter().flat_map(Frame::encode).collect();
        if connection.write_bytes(&bytes).is_err() {
            break;
        }
    }
    connection.polite = false;
    connection.wait_goaway().and_then(|frame| frame.error_code())
}

/// Floods must end in ENHANCE_YOUR_CALM, or in a close whose GOAWAY the RST overtook.
#[track_caller]
fn calmed(what: &str, code: Option<u32>) {
    assert!(matches!(code, Some(code::ENHANCE_YOUR_CALM) | None), "{what}: {code:?}");
}

#[test]
fn c20_rapid_reset_is_cut_and_little_reaches_the_origin() {
    // CVE-2023-44487.
    let origin = Origin::scripted(|connection| {
        while connection.request().is_some() && connection.quiet_for(Duration::from_millis(200)) {}
    });
    let proxy =
        Proxy::start(Config::to(origin.address()).listener(|listener| listener.h2_resets_max = Some(200)));
    let mut connection = h2(&proxy);
    let code = flood(&mut connection, 10_000, |number| {
        let stream = 2 * number + 1;
        vec![
            Frame::headers(stream, true, &request_fields("GET", "a.example", "/")),
            Frame::rst(stream, code::CANCEL),
        ]
    });
    calmed("rapid reset", code);
    assert!(connection.read().is_none(), "the connection is closed");
    assert!(origin.requests().len() < 1_000, "{} requests reached the origin", origin.requests().len());
    proxy.wait_metrics("the flood has a counter", |metrics| {
        metrics.sum("shard_reasons_total", &[("reason", "h2_flood_resets")]) >= 1.0
    });
}

#[test]
fn c20_resets_that_the_peer_provokes_count_too() {
    // CVE-2025-8671: a WINDOW_UPDATE of 0 makes the server reset the stream.
    let origin = origin::echo();
    let proxy =
        Proxy::start(Config::to(origin.address()).listener(|listener| listener.h2_resets_max = Some(200)));
    let mut connection = h2(&proxy);
    let code = flood(&mut connection, 10_000, |number| {
        let stream = 2 * number + 1;
        vec![
            Frame::headers(stream, false, &request_fields("POST", "a.example", "/")),
            Frame::window_update(stream, 0),
        ]
    });
    // RFC 9113 §6.9: increment 0 may also be answered as a connection error.
    assert!(matches!(code, Some(code::ENHANCE_YOUR_CALM | code::PROTOCOL_ERROR) | None), "{code:?}");
    serves(&proxy);
}

#[test]
fn c20_a_request_that_is_taken_back_in_the_same_write_is_not_begun() {
    let (origin, proxy) = echo_behind_proxy();
    let mut connection = h2(&proxy);
    let mut burst = Vec::new();
    for number in 0..20 {
        let stream = 2 * number + 1;
        burst.extend(Frame::headers(stream, true, &request_fields("GET", "a.example", "/")).encode());
        burst.extend(Frame::rst(stream, code::CANCEL).encode());
    }
    connection.write_bytes(&burst).expect("the proxy reads");
    connection.send(&Frame::ping([7; 8]));
    assert!(connection.wait(|frame| frame.kind == kind::PING).is_some(), "the burst has been read");
    crate::untouched(&origin, "twenty requests that were taken back");
    connection.send(&Frame::headers(101, true, &request_fields("GET", "a.example", "/page")));
    assert_eq!(connection.response(101).expect("the connection lives").status, 200);
}

#[test]
fn c20_a_browser_that_cancels_a_page_survives() {
    let (_origin, proxy) = echo_behind_proxy();
    let mut connection = h2(&proxy);
    for number in 0..100 {
        let stream = 2 * number + 1;
        connection.send(&Frame::headers(stream, true, &request_fields("GET", "a.example", "/")));
        connection.send(&Frame::rst(stream, code::CANCEL));
    }
    connection.send(&Frame::headers(201, true, &request_fields("GET", "a.example", "/page")));
    assert_eq!(connection.response(201).expect("the connection lives").status, 200);
}

#[test]
fn c20_control_frame_floods() {
    let origin = origin::echo();
    let proxy = Proxy::start(Config::to(origin.address()).listener(|listener| {
        listener.h2_control_frames_max = Some(500);
        listener.h2_small_data_frames_max = Some(1_000);
    }));
    let mut connection = h2(&proxy);
    calmed("PING (CVE-2019-9512)", flood(&mut connection, 20_000, |_| vec![Frame::ping([7; 8])]));
    let mut connection = h2(&proxy);
    calmed("SETTINGS (CVE-2019-9515)", flood(&mut connection, 20_000, |_| vec![Frame::settings(&[])]));
    let mut connection = h2(&proxy);
    connection.send(&Frame::headers(1, false, &request_fields("POST", "a.example", "/")));
    calmed("empty DATA (CVE-2019-9518)", flood(&mut connection, 20_000, |_| vec![Frame::data(1, false, "")]));
    let mut connection = h2(&proxy);
    connection.send(&Frame::headers(1, false, &request_fields("POST", "a.example", "/")));
    calmed("one-byte DATA", flood(&mut connection, 30_000, |_| vec![Frame::data(1, false, "x")]));
    let mut connection = h2(&proxy);
    calmed(
        "PRIORITY (CVE-2019-9513)",
        flood(&mut connection, 20_000, |_| vec![Frame::new(kind::PRIORITY, 0, 1, [0, 0, 0, 3, 9])]),
    );
    serves(&proxy);
}

#[test]
fn c17_a_continuation_flood_is_cut() {
    // CVE-2024-27316 and its kin.
    let (origin, proxy) = echo_behind_proxy();
    let mut connection = h2(&proxy);
    connection.send(&Frame::new(
        kind::HEADERS,
        flag::END_STREAM,
        1,
        field_block(&request_fields("GET", "a.example", "/")),
    ));
    let start = Instant::now();
    let code = flood(&mut connection, 20_000, |_| {
        vec![Frame::new(kind::CONTINUATION, 0, 1, field_block(&[("x", "y")]))]
    });
    assert!(
        matches!(
            code,
            Some(
                code::ENHANCE_YOUR_CALM
                    | code::PROTOCOL_ERROR
                    | code::COMPRESSION_ERROR
                    | code::FRAME_SIZE_ERROR
            ) | None
        ),
        "{code:?}"
    );
    assert!(connection.read().is_none(), "the connection is closed");
    assert!(start.elapsed() < Duration::from_secs(10));
    crate::untouched(&origin, "a CONTINUATION flood");
    let mut connection = h2(&proxy);
    connection.send(&Frame::new(
        kind::HEADERS,
        flag::END_STREAM,
        1,
        field_block(&request_fields("GET", "a.example", "/")),
    ));
    calmed(
        "empty CONTINUATION",
        flood(&mut connection, 20_000, |_| vec![Frame::new(kind::CONTINUATION, 0, 1, "")]),
    );
    serves(&proxy);
}

#[test]
fn frames_that_break_the_protocol_end_the_connection() {
    let (_origin, proxy) = echo_behind_proxy();
    let get = Frame::headers(1, true, &request_fields("GET", "a.example", "/"));
    let cases: [(&str, Vec<Frame>, &[u32]); 9] = [
        ("DATA on stream 0", vec![Frame::data(0, true, "x")], &[code::PROTOCOL_ERROR]),
        (
            "HEADERS on stream 0",
            vec![Frame::headers(0, true, &request_fields("GET", "a", "/"))],
            &[code::PROTOCOL_ERROR],
        ),
        (
            "an even stream",
            vec![Frame::headers(2, true, &request_fields("GET", "a.example", "/"))],
            &[code::PROTOCOL_ERROR],
        ),
        (
            "a stream id that falls",
            vec![Frame { stream: 5, ..get.clone() }, Frame { stream: 3, ..get.clone() }],
            &[code::PROTOCOL_ERROR, code::STREAM_CLOSED],
        ),
        (
            "a frame over the size",
            vec![Frame::new(kind::DATA, 0, 1, vec![0; 70_000])],
            &[code::FRAME_SIZE_ERROR],
        ),
        (
            "SETTINGS of 5 bytes",
            vec![Frame::new(kind::SETTINGS, 0, 0, [0; 5])],
            &[code::FRAME_SIZE_ERROR, code::PROTOCOL_ERROR],
        ),
        (
            "PUSH_PROMISE from a client",
            vec![Frame::new(kind::PUSH_PROMISE, flag::END_HEADERS, 1, [0, 0, 0, 2])],
            &[code::PROTOCOL_ERROR],
        ),
        (
            "CONTINUATION alone",
            vec![Frame::new(kind::CONTINUATION, flag::END_HEADERS, 1, "")],
            &[code::PROTOCOL_ERROR],
        ),
        ("window overflow", vec![Frame::window_update(0, 0x7fff_ffff)], &[code::FLOW_CONTROL_ERROR]),
    ];
    for (what, frames, codes) in cases {
        let mut connection = h2(&proxy);
        for frame in frames {
            drop(connection.try_send(&frame));
        }
        let code = connection.wait_goaway().and_then(|frame| frame.error_code());
        assert!(code.is_some_and(|code| codes.contains(&code)), "{what}: {code:?}");
    }
    serves(&proxy);
}

#[test]
fn more_streams_than_allowed_are_refused_one_by_one() {
    let origin = Origin::scripted(|connection| {
        if connection.request().is_some() {
            connection.wait_close();
        }
    });
    let proxy =
        Proxy::start(Config::to(origin.address()).listener(|listener| listener.h2_streams_max = Some(4)));
    let mut connection = h2(&proxy);
    for stream in [1, 3, 5, 7, 9] {
        connection.send(&Frame::headers(stream, true, &request_fields("GET", "a.example", "/")));
    }
    match connection.response(9) {
        Err(early) => {
            assert!(matches!(early.code(), Some(code::REFUSED_STREAM | code::PROTOCOL_ERROR)), "{early:?}")
        }
        Ok(response) => assert_eq!(response.status, 0, "must be refused: {response:?}"),
    }
}
