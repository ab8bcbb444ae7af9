//! C20, C26, C28 towards HTTP/2 clients: what counts as use of a connection, what is charged to a client, and that
//! the last GOAWAY arrives.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tests::h2peer::{H2Client, block_on, request, send_all};
use tests::h2raw::{Frame, H2Conn, code, kind, request_fields};
use tests::{Config, Origin, PATIENCE, Proxy, client, origin, wait::pause};

use crate::echo_behind_proxy;

fn h2(proxy: &Proxy) -> H2Conn<client::Stream> {
    let mut connection = H2Conn::client(proxy.connect().into_stream(), &[]);
    assert!(connection.wait(|frame| frame.kind == kind::SETTINGS).is_some(), "the proxy speaks HTTP/2");
    connection
}

const IDLE: Duration = Duration::from_secs(1);

fn with_idle_limit(origin: &Origin) -> Proxy {
    Proxy::start(Config::to(origin.address()).listener(|listener| listener.idle_timeout = Some(IDLE)))
}

#[test]
fn c26_pings_do_not_keep_an_idle_connection() {
    let origin = origin::echo();
    let proxy = with_idle_limit(&origin);
    let mut connection = h2(&proxy);
    let start = Instant::now();
    // The gap is the input here: a client that pings well within the idle limit.
    let mut told = None;
    while start.elapsed() < PATIENCE && told.is_none() {
        pause(IDLE / 10);
        if connection.try_send(&Frame::ping([1; 8])).is_err() {
            break;
        }
        told = connection.wait(|frame| matches!(frame.kind, kind::PING | kind::GOAWAY));
        told = told.filter(|frame| frame.kind == kind::GOAWAY);
    }
    assert_eq!(told.and_then(|frame| frame.error_code()), Some(code::NO_ERROR));
    assert!(start.elapsed() >= IDLE * 9 / 10 && start.elapsed() < IDLE * 4, "{:?}", start.elapsed());
}

#[test]
fn c26_short_requests_keep_a_connection() {
    let origin = origin::echo();
    let proxy = with_idle_limit(&origin);
    let mut connection = h2(&proxy);
    for number in 0..8 {
        let stream = 2 * number + 1;
        connection.send(&Frame::headers(stream, true, &request_fields("GET", "a.example", "/")));
        assert_eq!(connection.response(stream).expect("an answer").status, 200);
        pause(IDLE / 2);
    }
}

#[test]
fn c26_a_head_that_never_ends_is_no_use_of_a_connection() {
    let origin = origin::echo();
    let proxy = with_idle_limit(&origin);
    let mut connection = h2(&proxy);
    let start = Instant::now();
    connection.send(&Frame::new(kind::HEADERS, 0, 1, [0x82]));
    assert!(connection.wait_goaway().is_some(), "the connection is given up");
    while connection.read().is_some() {}
    assert!(start.elapsed() < IDLE * 10, "{:?}", start.elapsed());
}

#[test]
fn c20_a_long_download_is_no_flood_of_window_updates() {
    const SIZE: usize = 20_000_000;
    let origin = Origin::scripted(|connection| {
        while connection.request().is_some() {
            connection.write(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n"));
            connection.write(vec![b'x'; SIZE]);
        }
    });
    let proxy = Proxy::start(
        Config::to(origin.address()).listener(|listener| listener.h2_control_frames_max = Some(100)),
    );
    let mut connection = h2(&proxy);
    connection.send(&Frame::headers(1, true, &request_fields("GET", "a.example", "/")));
    // Two WINDOW_UPDATEs for each DATA frame: more than 2,000 in all.
    assert_eq!(connection.response(1).expect("a whole response").body.len(), SIZE);
}

#[test]
fn c20_responses_that_the_upstream_cuts_are_not_charged_to_the_client() {
    let origin = Origin::scripted(|connection| {
        if let Some(request) = connection.request() {
            if request.target == "/whole" {
                connection.echo(&request);
            } else {
                connection.write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
            }
        }
    });
    let proxy =
        Proxy::start(Config::to(origin.address()).listener(|listener| listener.h2_resets_max = Some(10)));
    let mut connection = h2(&proxy);
    for number in 0..50 {
        let stream = 2 * number + 1;
        connection.send(&Frame::headers(stream, true, &request_fields("GET", "a.example", "/cut")));
        let early = connection.response(stream).expect_err("a cut response");
        assert_eq!(early.code(), Some(code::INTERNAL_ERROR), "C25: {early:?}");
    }
    connection.send(&Frame::headers(101, true, &request_fields("GET", "a.example", "/whole")));
    assert_eq!(connection.response(101).expect("the connection lives").status, 200);
}

#[test]
fn c20_resets_that_a_client_provokes_one_by_one_are_charged_to_it() {
    // CVE-2025-8671: a request that is in progress upstream, then an illegal frame on its stream.
    let origin = Origin::scripted(|connection| {
        if connection.request().is_some() {
            connection.wait_close();
        }
    });
    let proxy =
        Proxy::start(Config::to(origin.address()).listener(|listener| listener.h2_resets_max = Some(20)));
    let mut connection = h2(&proxy);
    let mut told = None;
    for number in 0..200 {
        let stream = 2 * number + 1;
        connection.send(&Frame::headers(stream, true, &request_fields("GET", "a.example", "/")));
        // RFC 9113 §6.9.1: a window beyond 2^31-1 is an error of the stream.
        drop(connection.try_send(&Frame::window_update(stream, 0x7fff_ffff)));
        told = connection.wait_stream(stream).filter(|frame| frame.kind == kind::GOAWAY);
        if told.is_some() {
            break;
        }
    }
    assert_eq!(told.and_then(|frame| frame.error_code()), Some(code::ENHANCE_YOUR_CALM));
    proxy.wait_metrics("the reason is counted", |metrics| {
        metrics.sum("shard_reasons_total", &[("reason", "h2_flood_resets")]) >= 1.0
    });
}

#[test]
fn c20_the_goaway_of_a_flood_arrives_behind_unread_input() {
    let (_origin, proxy) = echo_behind_proxy();
    let mut connection = h2(&proxy);
    let flood: Vec<u8> = (0..20_000).flat_map(|_| Frame::ping([7; 8]).encode()).collect();
    drop(connection.write_bytes(&flood));
    connection.polite = false;
    let goaway = connection.wait_goaway().expect("not lost in a reset");
    assert_eq!(goaway.error_code(), Some(code::ENHANCE_YOUR_CALM));
}

#[test]
fn c28_a_client_that_answers_no_ping_is_let_go_within_the_drain() {
    let origin = origin::echo();
    let mut config = Config::to(origin.address());
    config.drain = Duration::from_secs(4);
    let mut proxy = Proxy::start(config);
    let mut connection = h2(&proxy);
    connection.polite = false;
    connection.send(&Frame::headers(1, true, &request_fields("GET", "a.example", "/")));
    assert_eq!(connection.response(1).expect("an answer").status, 200);
    proxy.process().signal(Signal::TERM);
    let first = connection.wait_goaway().expect("the first GOAWAY");
    assert_eq!(first.last_stream(), Some(0x7fff_ffff));
    // A request that was on its way is still served.
    connection.send(&Frame::headers(3, true, &request_fields("GET", "a.example", "/")));
    let served = connection.wait(|frame| frame.is(kind::HEADERS, 3));
    assert!(served.is_some(), "what comes before the last GOAWAY is served");
    let last = connection.wait_goaway().expect("the last GOAWAY");
    assert_eq!((last.last_stream(), last.error_code()), (Some(3), Some(code::NO_ERROR)));
    assert!(proxy.process().wait(PATIENCE).success());
}

#[test]
fn c08_an_h2_upload_goes_on_after_the_100() {
    let origin = Origin::scripted(|connection| {
        while let Some(request) = connection.head() {
            assert_eq!(request.field("expect"), Some("100-continue"));
            let length = request.field("content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
            connection.write("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
            let Some(body) = connection.take(length) else {
                return;
            };
            let text = body.len().to_string();
            connection.write(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len()));
        }
    });
    let proxy = Proxy::start(Config::to(origin.address()));
    let mut raw = h2(&proxy);
    let mut fields = request_fields("POST", "a.example", "/");
    fields.extend([("expect", "100-continue"), ("content-length", "5")]);
    raw.send(&Frame::headers(1, false, &fields));
    assert!(raw.wait(|frame| frame.is(kind::HEADERS, 1)).is_some(), "the 100 comes before the body");
    let interim = raw.fields(1).expect("a whole block").expect("HPACK");
    assert_eq!(interim.first(), Some(&(":status".to_owned(), "100".to_owned())));
    raw.send(&Frame::data(1, true, "hello"));
    let response = raw.response(1).expect("an answer");
    assert_eq!((response.status, response.text().as_str()), (200, "5"));
    assert!(response.interim.iter().any(|interim| interim.status == 103));
    // And with a body that fills every window on the way.
    block_on(async {
        let mut client = H2Client::connect(proxy.address()).await;
        let mut post = request("POST", "a.example", "/");
        post.headers_mut().insert("expect", http::HeaderValue::from_static("100-continue"));
        post.headers_mut().insert("content-length", http::HeaderValue::from(1_000_000));
        let (future, mut stream) = client.open(post, false).await.expect("a stream");
        send_all(&mut stream, &vec![b'x'; 1_000_000], true).await.expect("an open stream");
        let response = tests::h2peer::collect(future).await.expect("an answer");
        assert_eq!((response.status, response.text().as_str()), (200, "1000000"));
    });
}
