//! An HTTP/2 stream that stalls, on either side, costs itself: it is reset when its limit is over, under a reason of its
//! own, and its neighbours on the same connection go on before and after.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use tests::h2raw::{Frame, H2Conn, code, flag, kind, request_fields, setting};
use tests::metrics::Metrics;
use tests::{Config, Origin, PATIENCE, Proxy, Route, client};

use crate::h2_upstream::{Upstream, answer, frames};

/// `body_idle_timeout` of the listener, and with it `idle_timeout` of the route.
const LIMIT: Duration = Duration::from_secs(1);
const STALLED: u32 = 1;

fn impatient(mut config: Config) -> Config {
    config = config.listener(|listener| listener.body_idle_timeout = Some(LIMIT));
    config.cores = 1;
    config
}

fn h2(proxy: &Proxy, settings: &[(u16, u32)]) -> H2Conn<client::Stream> {
    let mut connection = H2Conn::client(proxy.connect().into_stream(), settings);
    assert!(connection.wait(|frame| frame.kind == kind::SETTINGS).is_some(), "the proxy speaks HTTP/2");
    connection
}

fn get(h2: &mut H2Conn<client::Stream>, stream: u32, path: &str) {
    h2.send(&Frame::headers(stream, true, &request_fields("GET", "a.example", path)));
}

/// Asks for one small response after another on the stalled stream's connection until that one is over, and twice more.
/// Answers how the stalled one ended.
#[track_caller]
fn neighbours_go_on(h2: &mut H2Conn<client::Stream>, is_end: impl Fn(&Frame) -> bool) -> Frame {
    let (start, mut stream, mut ended, mut after) = (Instant::now(), STALLED, None, 0);
    while after < 2 {
        stream += 2;
        get(h2, stream, "/small");
        h2.send(&Frame::window_update(stream, 2_000));
        // What comes of the stalled stream meanwhile is kept for later.
        loop {
            let frame = h2.wait(|frame| {
                frame.stream == stream
                    || frame.kind == kind::GOAWAY
                    || frame.stream == STALLED && is_end(frame)
            });
            let frame = frame.expect("the connection goes on");
            assert!(!matches!(frame.kind, kind::GOAWAY), "{frame:?}");
            if frame.stream == STALLED {
                let took = start.elapsed();
                assert!(took >= LIMIT * 9 / 10, "it was reset after {took:?}");
                ended = Some(frame);
                continue;
            }
            assert_ne!(frame.kind, kind::RST_STREAM, "a neighbour on stream {stream}: {frame:?}");
            if frame.has(flag::END_STREAM) {
                break;
            }
        }
        after += u32::from(ended.is_some());
        assert!(start.elapsed() < PATIENCE, "the stalled stream is never given up");
        tests::wait::pause(LIMIT / 20);
    }
    ended.expect("the loop ends after it")
}

fn is_reset(frame: &Frame) -> bool {
    frame.kind == kind::RST_STREAM
}

/// One stream ended for `reason`, and all others well.
#[track_caller]
fn counted(proxy: &Proxy, reason: &str) {
    proxy.wait_metrics(reason, |metrics: &Metrics| {
        metrics.sum("shard_reasons_total", &[("reason", reason)]) == 1.0
    });
    let metrics = proxy.metrics();
    let all = |reason: &str| metrics.sum("shard_reasons_total", &[("reason", reason)]);
    assert_eq!(metrics.sum("shard_reasons_total", &[]) - all("ok"), 1.0, "and nothing else went wrong");
}

/// The paths that an upstream of these tests knows.
fn path_of(h2: &mut Upstream, stream: u32) -> String {
    let fields = h2.fields(stream).expect("a head").expect("HPACK");
    fields.into_iter().find(|(name, _)| name == ":path").expect("a path").1
}

/// Answers `/small` by a few bytes, `/stall` by the first bytes of a body that goes no further, and takes all uploads
/// but gives no window for them. It ends when a stream was reset and the connection ends.
fn stalling(settings: &'static [(u16, u32)]) -> Origin {
    frames(settings, |h2: &mut H2Conn<TcpStream>, _| {
        while let Some(frame) = h2.wait(|frame| matches!(frame.kind, kind::HEADERS | kind::RST_STREAM)) {
            if frame.kind == kind::RST_STREAM {
                assert_eq!(frame.error_code(), Some(code::CANCEL), "{frame:?}");
                continue;
            }
            let is_alive = match path_of(h2, frame.stream).as_str() {
                "/stall" => {
                    let head = Frame::headers(frame.stream, false, &[(":status", "200")]);
                    h2.try_send(&head).is_ok()
                        && h2.try_send(&Frame::data(frame.stream, false, "begun")).is_ok()
                }
                "/upload" => true,
                _ => answer(h2, frame.stream, "ok"),
            };
            if !is_alive {
                return;
            }
        }
    })
}

#[test]
fn a_client_that_gives_a_stream_no_window() {
    let origin =
        Origin::replying(format!("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{}", "x".repeat(1000)));
    let proxy = Proxy::start(impatient(Config::to(origin.address())));
    let mut h2 = h2(&proxy, &[(setting::INITIAL_WINDOW_SIZE, 10)]);
    get(&mut h2, STALLED, "/");
    let ended = neighbours_go_on(&mut h2, is_reset);
    assert_eq!(ended.error_code(), Some(code::INTERNAL_ERROR));
    counted(&proxy, "client_slow");
}

#[test]
fn a_client_that_gives_no_window_for_the_proxys_own_answer() {
    let config = Config::to(Origin::replying("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").address())
        .and_route(Route::prefix("own", "/own").direct(200, &"x".repeat(1000)))
        .and_route(Route::prefix("small", "/small").direct(200, "x"));
    let proxy = Proxy::start(impatient(config));
    let mut h2 = h2(&proxy, &[(setting::INITIAL_WINDOW_SIZE, 10)]);
    get(&mut h2, STALLED, "/own");
    neighbours_go_on(&mut h2, is_reset);
    counted(&proxy, "client_slow");
}

#[test]
fn a_client_whose_upload_stops() {
    let origin = stalling(&[]);
    let proxy = Proxy::start(impatient(Config::to_h2(origin.address())));
    let mut h2 = h2(&proxy, &[]);
    h2.send(&Frame::headers(STALLED, false, &request_fields("POST", "a.example", "/upload")));
    h2.send(&Frame::data(STALLED, false, "half"));
    neighbours_go_on(&mut h2, |frame| frame.kind == kind::HEADERS);
    let head = h2.fields(STALLED).expect("a head").expect("HPACK");
    assert!(head.contains(&(":status".to_owned(), "408".to_owned())), "{head:?}");
    counted(&proxy, "body_timeout");
    assert_eq!(origin.connections(), 1, "the backend's connection goes on");
}

#[test]
fn a_backend_that_stops_within_a_body() {
    let origin = stalling(&[]);
    let proxy = Proxy::start(impatient(Config::to_h2(origin.address())));
    let mut h2 = h2(&proxy, &[]);
    get(&mut h2, STALLED, "/stall");
    let ended = neighbours_go_on(&mut h2, is_reset);
    assert_eq!(ended.error_code(), Some(code::INTERNAL_ERROR));
    counted(&proxy, "upstream_timeout_idle");
    assert_eq!(origin.connections(), 1, "the backend's connection goes on");
}

#[test]
fn a_backend_that_gives_an_upload_no_window() {
    let origin = stalling(&[(setting::INITIAL_WINDOW_SIZE, 10)]);
    let proxy = Proxy::start(impatient(Config::to_h2(origin.address())));
    let mut h2 = h2(&proxy, &[]);
    h2.send(&Frame::headers(STALLED, false, &request_fields("POST", "a.example", "/upload")));
    h2.send(&Frame::data(STALLED, true, "x".repeat(1000)));
    neighbours_go_on(&mut h2, |frame| frame.kind == kind::HEADERS);
    let head = h2.fields(STALLED).expect("a head").expect("HPACK");
    assert!(head.contains(&(":status".to_owned(), "504".to_owned())), "{head:?}");
    counted(&proxy, "upstream_timeout_idle");
    assert_eq!(origin.connections(), 1, "the backend's connection goes on");
}
