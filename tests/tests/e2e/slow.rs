//! C26: slow or silent clients. Each limit is its own, is small here, and is met within a margin.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::json;
use tests::client::Stream;
use tests::h2raw::{Frame, H2Conn, flag, kind};
use tests::metrics::Metrics;
use tests::tls::Authority;
use tests::{Config, End, Origin, Proxy, RawClient, origin};

/// How far behind its limit a close may come on a busy machine.
const SLACK: Duration = Duration::from_millis(1_500);

fn impatient(origin: &Origin) -> Config {
    Config::to(origin.address()).listener(|listener| {
        listener.header_timeout = Some(Duration::from_millis(500));
        listener.handshake_timeout = Some(Duration::from_millis(500));
        listener.idle_timeout = Some(Duration::from_secs(1));
        listener.body_idle_timeout = Some(Duration::from_secs(1));
    })
}

/// Runs `wait` and checks that it ends at `limit`, not before nine tenths of it.
#[track_caller]
fn ends_at(what: &str, limit: Duration, wait: impl FnOnce()) {
    let start = Instant::now();
    wait();
    let took = start.elapsed();
    assert!(
        took >= limit.mul_f32(0.9) && took <= limit.mul_f32(1.1) + SLACK,
        "{what}: {limit:?} wanted, took {took:?}"
    );
}

#[test]
fn c26_a_silent_connection() {
    let origin = origin::echo();
    let proxy = Proxy::start(impatient(&origin));
    let mut client = proxy.connect();
    ends_at("silence", Duration::from_millis(500), || client.expect_close());
}

type ClientStream = rustls::StreamOwned<rustls::ClientConnection, std::net::TcpStream>;
type Act = fn(&mut ClientStream);

/// A readable socket is no byte of a head: an idle connection stays idle to its limit, and is answered nothing. What ends
/// it, the client without close_notify too, is no cut message.
#[test]
fn c26_records_without_a_byte_of_a_head_begin_none() {
    let origin = origin::echo();
    let authority = Authority::default();
    let proxy = Proxy::start(impatient(&origin).tls(&[authority.leaf(&["a.example"])]));
    let tls = authority.client("a.example", &["http/1.1"]);
    let kinds: [(&str, Act); 2] = [
        ("a key update", |stream| {
            stream.conn.refresh_traffic_keys().expect("TLS 1.3");
            stream.conn.write_tls(&mut stream.sock).expect("the connection is open");
        }),
        ("the beginning of a record", |stream| {
            stream.sock.write_all(&[23, 3, 3, 0]).expect("the connection is open");
        }),
    ];
    for (what, send) in kinds {
        let mut client = RawClient::connect_tls(proxy.address(), &tls).expect("the handshake succeeds");
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        assert_eq!(client.response("GET").status, 200, "{what}");
        let Stream::Tls(mut stream) = client.into_stream() else { panic!("a TLS client") };
        send(&mut stream);
        let mut client = RawClient::over(Stream::Tls(stream));
        ends_at(what, Duration::from_secs(1), || {
            assert_eq!(String::from_utf8_lossy(&client.rest()), "", "{what}");
            client.expect_close();
        });
    }
    let mut client = RawClient::connect_tls(proxy.address(), &tls).expect("the handshake succeeds");
    client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(client.response("GET").status, 200);
    drop(client);
    let all_gone = |metrics: &Metrics| {
        metrics.sum("shard_listener_connections_accepted_total", &[]) > 2.5
            && metrics.sum("shard_core_connections", &[]) < 0.5
    };
    proxy.wait_metrics("three connections have come and gone", all_gone);
    let metrics = proxy.metrics();
    for reason in ["client_body_truncated", "header_timeout"] {
        assert!(metrics.sum("shard_reasons_total", &[("reason", reason)]) < 0.5, "{reason}");
    }
}

#[test]
fn c26_a_head_of_one_byte_at_a_time() {
    let origin = origin::echo();
    let proxy = Proxy::start(impatient(&origin));
    let mut client = proxy.connect();
    let bytes = "GET / HTTP/1.1\r\nHost: a.example\r\nX: 0123456789012345678901234567890123456789\r\n\r\n";
    let pieces: Vec<&[u8]> = bytes.as_bytes().chunks(1).collect();
    ends_at("a slow head", Duration::from_millis(500), || {
        client.send_paced(&pieces[..6], Duration::from_millis(100));
        client.expect_close();
    });
    crate::untouched(&origin, "a slow head");
    let mut client = proxy.connect();
    client.send("GET / HT");
    let response = client.try_response("GET");
    assert!(response.as_ref().map_or(true, |response| response.status == 408), "{response:?}");
}

#[test]
fn c26_a_head_that_is_slow_after_a_keep_alive_request() {
    let origin = origin::echo();
    let proxy = Proxy::start(impatient(&origin));
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(client.response("GET").status, 200);
    client.send("GET / HTTP/1.1\r\n");
    ends_at("a slow second head", Duration::from_millis(500), || client.expect_close());
}

#[test]
fn c26_an_idle_keep_alive_connection() {
    let origin = origin::echo();
    let proxy = Proxy::start(impatient(&origin));
    let mut client = proxy.connect();
    for _ in 0..3 {
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        assert_eq!(client.response("GET").status, 200);
        tests::wait::pause(Duration::from_millis(600));
    }
    let start = Instant::now();
    assert_eq!(client.ending(), End::Closed, "an idle connection is closed with FIN");
    assert!(start.elapsed() < SLACK + Duration::from_secs(1));
}

#[test]
fn c26_a_body_that_stops() {
    let origin = origin::echo();
    let proxy = Proxy::start(impatient(&origin));
    let mut client = proxy.connect();
    client.send("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 100\r\n\r\nhalf");
    let start = Instant::now();
    let response = client.try_response("POST");
    assert!(response.as_ref().map_or(true, |response| response.status == 408), "{response:?}");
    client.expect_close();
    let took = start.elapsed();
    assert!(took > Duration::from_millis(900) && took < Duration::from_secs(1) + SLACK, "{took:?}");
    // A body that goes on, slowly, is served.
    let mut client = proxy.connect();
    client.send("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\n");
    client.send_paced(&[b"h".as_slice(), b"e", b"l", b"l", b"o"], Duration::from_millis(400));
    assert_eq!(client.response("POST").status, 200);
}

/// Every route asks for 100 bytes of a body in a second.
fn with_rate(config: Config) -> Config {
    config.route(|all| {
        all.rules.insert("body_rate".to_owned(), json!({ "min": "100B", "window": "1s" }));
    })
}

#[track_caller]
fn wait_too_slow(proxy: &Proxy, count: f64) {
    proxy.wait_metrics("bodies that dribble are counted", |metrics| {
        metrics.sum("shard_reasons_total", &[("reason", "body_too_slow")]) == count
    });
}

#[test]
fn c26_a_body_that_dribbles() {
    let origin = origin::echo();
    let proxy = Proxy::start(with_rate(impatient(&origin)));
    let mut client = proxy.connect();
    client.send("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5000\r\n\r\n");
    // A byte in 100 ms: never silent, and never done.
    client.send_paced(&[b"x".as_slice(); 15], Duration::from_millis(100));
    assert_eq!(client.response("POST").status, 408);
    wait_too_slow(&proxy, 1.0);
    // Four times as fast as it has to be.
    let mut client = proxy.connect();
    client.send("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 1000\r\n\r\n");
    let block = [b'x'; 100];
    client.send_paced(&[block.as_slice(); 10], Duration::from_millis(250));
    assert_eq!(client.response("POST").status, 200);
    wait_too_slow(&proxy, 1.0);
}

#[test]
fn c26_an_h2_body_that_dribbles_costs_its_stream_only() {
    let origin = origin::echo();
    let proxy = Proxy::start(with_rate(impatient(&origin)));
    let mut h2 = H2Conn::client(proxy.connect().into_stream(), &[]);
    h2.send(&Frame::headers(1, false, &tests::h2raw::request_fields("POST", "a.example", "/")));
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1_500) {
        h2.send(&Frame::data(1, false, [b'x']));
        tests::wait::pause(Duration::from_millis(100));
    }
    wait_too_slow(&proxy, 1.0);
    let response = h2.response(1).expect("an answer on the stream");
    assert_eq!(response.status, 408);
    h2.send(&Frame::headers(3, true, &tests::h2raw::request_fields("GET", "a.example", "/")));
    assert_eq!(h2.response(3).expect("the connection lives").status, 200);
}

#[test]
fn c26_a_backend_that_takes_its_time_is_not_the_clients_fault() {
    // Takes the head, and the body three seconds later.
    let origin = Origin::scripted(|connection| {
        if connection.head().is_some() {
            tests::wait::pause(Duration::from_secs(3));
            if connection.take(32 << 20).is_none() {
                return;
            }
            connection.write("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    let config = Config::to(origin.address()).route(|all| {
        all.rules.insert("body_max".to_owned(), json!("64MiB"));
    });
    let proxy = Proxy::start(with_rate(config));
    let mut client = proxy.connect();
    let body = vec![b'x'; 32 << 20];
    client.send(format!("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: {}\r\n\r\n", body.len()));
    client.send(body);
    assert_eq!(client.response("POST").status, 200);
    wait_too_slow(&proxy, 0.0);
}

#[test]
fn c26_tls_clients_that_say_nothing_or_one_byte() {
    let origin = origin::echo();
    let authority = Authority::default();
    let proxy = Proxy::start(impatient(&origin).tls(&[authority.leaf(&["a.example"])]));
    for bytes in [b"".as_slice(), b"\x16", b"\x16\x03\x01\x02"] {
        let mut client = proxy.connect();
        client.send(bytes);
        ends_at("a handshake that stops", Duration::from_millis(500), || client.expect_close());
    }
    let mut client = RawClient::connect_tls(proxy.address(), &authority.client("a.example", &["http/1.1"]))
        .expect("a handshake");
    client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(client.response("GET").status, 200);
}

#[test]
fn c26_h2_connections_without_a_stream() {
    let origin = origin::echo();
    let proxy = Proxy::start(impatient(&origin));
    // PING does not refresh the idle limit.
    let mut h2 = H2Conn::client(proxy.connect().into_stream(), &[]);
    let start = Instant::now();
    while h2.try_send(&Frame::ping([0; 8])).is_ok() && start.elapsed() < Duration::from_secs(8) {
        tests::wait::pause(Duration::from_millis(100));
        if h2.read().is_none() {
            break;
        }
    }
    let lived = start.elapsed();
    assert!(lived < Duration::from_secs(1) + SLACK, "a connection with nothing but PING lived {lived:?}");
    // The preface alone, and half of it.
    for bytes in [tests::h2raw::PREFACE, &tests::h2raw::PREFACE[..10]] {
        let mut client = proxy.connect();
        client.send(bytes);
        client.patience(Duration::from_secs(5)).expect_close();
    }
}

#[test]
fn c26_h2_headers_that_never_end() {
    let origin = origin::echo();
    let proxy = Proxy::start(impatient(&origin));
    let mut h2 = H2Conn::client(proxy.connect().into_stream(), &[]);
    let block = tests::h2raw::field_block(&tests::h2raw::request_fields("GET", "a.example", "/"));
    h2.send(&Frame::new(kind::HEADERS, flag::END_STREAM, 1, block));
    let start = Instant::now();
    while h2.read().is_some() {}
    assert!(start.elapsed() < Duration::from_secs(1) + SLACK, "{:?}", start.elapsed());
    crate::untouched(&origin, "HEADERS without END_HEADERS");
}

#[test]
fn c26_a_client_that_does_not_read() {
    let origin = Origin::scripted(|connection| {
        if connection.request().is_some() {
            connection.write("HTTP/1.1 200 OK\r\nContent-Length: 200000000\r\n\r\n");
            let block = vec![b'x'; 1 << 20];
            for _ in 0..200 {
                if !connection.write(&block) {
                    return;
                }
            }
        }
    });
    let proxy = Proxy::start(impatient(&origin));
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    // The client takes nothing: the upstream side ends when the body-idle limit has passed.
    tests::wait_until("the upstream connection is given up", Duration::from_secs(10), || {
        origin.connections() == 1 && origin.connections_open() == 0
    });
}

/// Each response leaves in one piece while there is room; together they fill every buffer on the way.
#[test]
fn c26_a_client_that_does_not_read_its_short_responses() {
    const RESPONSES: usize = 8_000;
    let body = "x".repeat(8 << 10);
    let origin = Origin::replying(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    let proxy = Proxy::start(impatient(&origin));
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n".repeat(RESPONSES));
    proxy.wait_metrics("the client is given up", |metrics| {
        metrics.sum("shard_reasons_total", &[("reason", "client_slow")]) >= 1.0
    });
    let metrics = proxy.metrics();
    let count = |reason: &str| metrics.sum("shard_reasons_total", &[("reason", reason)]);
    assert!(count("ok") > 100.0, "{} responses before the buffers were full", count("ok"));
    assert!(count("upstream_timeout_idle") < 1.0, "the backend is not to blame");
    assert!(count("ok") + count("client_slow") < 8_000.0, "the rest was not asked for");
}

#[test]
fn c26_slow_clients_do_not_slow_others() {
    let origin = origin::echo();
    let proxy = Proxy::start(Config::to(origin.address()));
    let slow: Vec<RawClient> = (0..200)
        .map(|_| {
            let mut client = proxy.connect();
            client.send("GET / HTTP/1.1\r\nHost: a.exam");
            client
        })
        .collect();
    let start = Instant::now();
    let mut client = proxy.connect();
    for _ in 0..50 {
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        assert_eq!(client.response("GET").status, 200);
    }
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?} with {} slow clients",
        start.elapsed(),
        slow.len()
    );
}
