//! TCP listeners: bytes passed on both ways with their ends, dead endpoints avoided before anything was passed on, every
//! bound with its reason, drains and hot restarts. TLS by server name is in `tcp_names`.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tests::dir::TempDir;
use tests::port::free_port;
use tests::{Cluster, Config, Listener, PATIENCE, Proxy, wait_until};

/// Serves each connection by `serve`, in a thread of its own, until the test ends.
pub(crate) fn backend(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = Arc::clone(&serve);
            thread::spawn(move || serve(stream));
        }
    });
    address
}

/// Sends back what comes, and ends when its client has ended.
pub(crate) fn echo() -> SocketAddr {
    backend(|mut stream| {
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(got @ 1..) = stream.read(&mut bytes) {
            if stream.write_all(&bytes[..got]).is_err() {
                return;
            }
        }
        // What the client learns of the end is the test's subject.
        drop(stream.shutdown(Shutdown::Write));
    })
}

/// A proxy whose listener `tcp` has these keys, beside one for HTTP.
pub(crate) fn proxy(tcp: &Value, clusters: Vec<Cluster>, change: impl FnOnce(&mut Listener)) -> Proxy {
    Proxy::start(config(tcp, clusters, change))
}

fn config(tcp: &Value, clusters: Vec<Cluster>, change: impl FnOnce(&mut Listener)) -> Config {
    let mut config = Config::with(clusters[0].clone());
    config.clusters = clusters;
    // Connections that wait for a slow machine are not cut.
    config.drain = PATIENCE;
    let mut listener = Listener { tcp: Some(tcp.clone()), ..Listener::new("tcp") };
    change(&mut listener);
    config.listeners.push(listener);
    config
}

/// Everything to one cluster of these endpoints.
fn proxy_to(endpoints: &[SocketAddr]) -> Proxy {
    proxy(&json!({ "cluster": "app/u" }), vec![Cluster::new("u", endpoints)], |_| {})
}

/// A byte there and back: the connection stands.
#[track_caller]
fn ping(mut client: &TcpStream) {
    client.write_all(b"p").expect("the connection is open");
    client.read_exact(&mut [0]).expect("the echo");
}

pub(crate) fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.listener("tcp")).expect("the listener accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
    stream
}

/// Everything until the end; an error when the connection broke.
pub(crate) fn rest(mut stream: &TcpStream) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).map(|_| bytes)
}

pub(crate) fn wait_reason(proxy: &Proxy, reason: &str) {
    proxy.wait_metrics(reason, |metrics| metrics.sum("shard_reasons_total", &[("reason", reason)]) >= 1.0);
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| u8::try_from(at % 251).expect("below 251")).collect()
}

#[test]
fn bytes_and_ends_pass_both_ways() {
    let proxy = proxy_to(&[echo()]);
    for size in [0, 1, 5_000, 8 << 20] {
        let client = connect(&proxy);
        let sent = pattern(size);
        let (mut writer, bytes) = (client.try_clone().expect("a socket"), sent.clone());
        let writing = thread::spawn(move || {
            writer.write_all(&bytes).expect("the backend reads");
            writer.shutdown(Shutdown::Write).expect("the connection is open");
        });
        let got = rest(&client).expect("a clean end");
        writing.join().expect("written");
        assert!(got == sent, "{size} bytes sent, {} came back", got.len());
    }
    proxy.wait_metrics("four TCP connections", |metrics| {
        let by = |name, label: &[(&str, &str)]| metrics.sum(name, label);
        by("shard_listener_connections_by_protocol_total", &[("listener", "tcp"), ("protocol", "tcp")]) == 4.0
            && by("shard_listener_connections", &[("listener", "tcp")]) == 0.0
    });
}

#[test]
fn a_backend_that_ends_first_still_reads() {
    let (tell, told) = mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    let address = backend(move |mut stream| {
        stream.write_all(b"bye").expect("the client is there");
        stream.shutdown(Shutdown::Write).expect("the connection is open");
        let got = rest(&stream).expect("a clean end");
        tell.lock().expect("not poisoned").send(got).expect("the test waits");
    });
    let proxy = proxy_to(&[address]);
    let mut client = connect(&proxy);
    assert_eq!(rest(&client).expect("a clean end"), b"bye");
    let sent = pattern(300_000);
    client.write_all(&sent).expect("the other direction is open");
    client.shutdown(Shutdown::Write).expect("the connection is open");
    assert!(told.recv_timeout(PATIENCE).expect("the backend ends") == sent);
}

#[test]
fn a_reset_is_passed_on_as_a_reset() {
    let proxy = proxy_to(&[backend(|mut stream| {
        let got = stream.read(&mut [0]).expect("a byte");
        assert_eq!(got, 1);
        stream.write_all(b"half of it").expect("the client is there");
        // Closing with bytes unread resets (RFC 2525 §2.17).
        while stream.peek(&mut [0]).is_ok_and(|got| got == 0) {}
    })]);
    let mut client = connect(&proxy);
    client.write_all(b"xy").expect("the listener reads");
    assert!(rest(&client).is_err(), "a cut stream must not look whole");
    wait_reason(&proxy, "upstream_reset");
}

/// Sends until it breaks, and gives what has come by then.
fn send_until_cut(mut stream: TcpStream, bytes: &[u8]) -> Vec<u8> {
    let mut writer = stream.try_clone().expect("a socket");
    let bytes = bytes.to_vec();
    let writing = thread::spawn(move || while writer.write_all(&bytes).is_ok() {});
    let mut got = Vec::new();
    let mut block = [0; 256];
    while let Ok(count @ 1..) = stream.read(&mut block) {
        got.extend_from_slice(&block[..count]);
    }
    // An end leaves the other direction as it is.
    drop(stream.shutdown(Shutdown::Both));
    writing.join().expect("no panic");
    got
}

/// A last word, then a close with bytes unread, which resets (RFC 2525 §2.17): what is sent to the one who has closed
/// fails, often before an event has told of the last word.
fn last_word(mut stream: &TcpStream) {
    stream.read_exact(&mut [0]).expect("a byte");
    while stream.peek(&mut [0]).is_ok_and(|got| got == 0) {}
    stream.write_all(b"too much").expect("the peer is there");
}

const MANY: usize = 300;

#[test]
fn the_last_word_of_a_backend_before_its_reset_is_passed_on() {
    let proxy = proxy_to(&[backend(|stream| last_word(&stream))]);
    for round in 0..MANY {
        let got = send_until_cut(connect(&proxy), &pattern(100));
        assert_eq!(String::from_utf8_lossy(&got), "too much", "round {round}");
    }
}

#[test]
fn the_last_word_of_a_client_before_its_reset_is_passed_on() {
    let (tell, told) = mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    let proxy = proxy_to(&[backend(move |stream| {
        let got = send_until_cut(stream, &pattern(100));
        tell.lock().expect("not poisoned").send(got).expect("the test waits");
    })]);
    for round in 0..MANY {
        let client = connect(&proxy);
        last_word(&client);
        drop(client);
        let got = told.recv_timeout(PATIENCE).expect("the backend ends");
        assert_eq!(String::from_utf8_lossy(&got), "too much", "round {round}");
    }
}

#[test]
fn a_dead_endpoint_is_avoided_before_anything_was_passed_on() {
    let dead = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let proxy = proxy_to(&[dead, echo()]);
    for _ in 0..10 {
        let mut client = connect(&proxy);
        client.write_all(b"hello").expect("the listener reads");
        client.shutdown(Shutdown::Write).expect("the connection is open");
        assert_eq!(rest(&client).expect("a clean end"), b"hello");
    }
    let failures = || proxy.metrics().sum("shard_cluster_connect_failures_total", &[]);
    wait_until("it was tried", PATIENCE, || failures() >= 1.0);
    assert!(failures() <= 5.0, "until it is ejected, it is tried: {}", failures());
}

#[test]
fn a_cluster_without_a_live_endpoint_closes_with_a_reason() {
    let dead = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let proxy = proxy_to(&[dead]);
    let client = connect(&proxy);
    assert!(rest(&client).is_err(), "nothing is no answer");
    wait_reason(&proxy, "upstream_connect_refused");
}

#[test]
fn an_idle_connection_ends_and_a_denied_one_never_begins() {
    let keys = json!({ "cluster": "app/u", "idle_timeout": "1s" });
    let idle = proxy(&keys, vec![Cluster::new("u", &[echo()])], |_| {});
    let client = connect(&idle);
    let start = Instant::now();
    assert!(rest(&client).unwrap_or_default().is_empty());
    assert!(start.elapsed() > Duration::from_millis(800), "{:?}", start.elapsed());
    wait_reason(&idle, "idle_timeout");

    let denying = proxy(&keys, vec![Cluster::new("u", &[echo()])], |listener| {
        listener.deny = vec!["127.0.0.0/8".to_owned()]
    });
    assert!(rest(&connect(&denying)).unwrap_or_default().is_empty());
    wait_reason(&denying, "address_denied");
}

#[test]
fn an_endpoint_that_resets_before_its_first_byte_is_ejected() {
    let bad = backend(|mut stream| {
        // A byte stays unread, so closing resets.
        while stream.peek(&mut [0]).is_ok_and(|got| got == 0) {}
        stream.flush().expect("a socket");
    });
    let proxy = proxy_to(&[bad, echo()]);
    wait_until("the bad one is out", PATIENCE, || {
        let client = connect(&proxy);
        // The bad one's reset may come before the second byte.
        drop((&client).write_all(b"xy"));
        drop((&client).read(&mut [0]));
        proxy.metrics().sum("shard_cluster_ejections_total", &[]) >= 1.0
    });
    for _ in 0..10 {
        ping(&connect(&proxy));
    }
}

#[test]
fn an_endpoint_that_takes_connections_and_says_nothing_is_ejected() {
    let silent = backend(|mut stream| while stream.read(&mut [0; 64]).is_ok_and(|got| got > 0) {});
    let keys = json!({ "cluster": "app/u", "idle_timeout": "1s" });
    let proxy = proxy(&keys, vec![Cluster::new("u", &[silent, echo()])], |_| {});
    wait_until("the silent one is out", PATIENCE, || {
        let clients: Vec<_> = (0..20).map(|_| connect(&proxy)).collect();
        // The silent one's are ended by the idle limit.
        for mut client in &clients {
            client.write_all(b"p").expect("the connection is open");
        }
        for mut client in &clients {
            drop(client.read(&mut [0]));
        }
        proxy.metrics().sum("shard_cluster_ejections_total", &[]) >= 1.0
    });
    assert!(!proxy.endpoint(silent)["ejected"].is_null());
    for _ in 0..10 {
        ping(&connect(&proxy));
    }
}

#[test]
fn a_slow_reader_slows_its_writer_and_nothing_grows() {
    const OFFERED: usize = 256 << 20;
    let (tell, told) = mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    let address = backend(move |mut stream| {
        stream.set_write_timeout(Some(Duration::from_millis(500))).expect("a socket");
        let chunk = vec![7; 1 << 20];
        let mut written = 0;
        while written < OFFERED {
            match stream.write(&chunk) {
                Ok(taken) => written += taken,
                Err(_stuck) => break,
            }
        }
        tell.lock().expect("not poisoned").send(written).expect("the test waits");
    });
    let proxy = proxy_to(&[address]);
    let client = connect(&proxy);
    let mut bytes = vec![0; 1 << 20];
    (&client).read_exact(&mut bytes).expect("it streams");
    let written = told.recv_timeout(PATIENCE).expect("the backend gets stuck");
    assert!(written < OFFERED / 4, "the backend could write {written} bytes that nobody read");
    let metrics = proxy.metrics();
    let (buffers, pipes) = (metrics.sum("shard_core_buffers", &[]), metrics.sum("shard_core_pipes", &[]));
    assert!(buffers <= 4.0 && pipes <= 2.0, "{buffers} buffers, {pipes} pipes");
}

#[test]
fn idle_connections_hold_no_buffer() {
    let proxy = proxy_to(&[echo()]);
    let clients: Vec<_> = (0..50).map(|_| connect(&proxy)).collect();
    clients.iter().for_each(ping);
    // The request for the metrics has one itself.
    proxy.wait_metrics("buffers are given back", |metrics| {
        metrics.sum("shard_core_buffers", &[]) <= 1.0
            && metrics.sum("shard_listener_connections", &[("listener", "tcp")]) == 50.0
    });
}

#[test]
fn bounds_refuse_with_their_reasons() {
    let keys = json!({ "cluster": "app/u" });
    let one = |rule: Option<u32>| {
        let cluster = Cluster::new("u", &[echo()]);
        rule.map_or(cluster.clone(), |max| cluster.rule("in_flight_max", json!(max)))
    };
    let in_flight = proxy(&keys, vec![one(Some(1))], |_| {});
    let by_client = proxy(&keys, vec![one(None)], |listener| listener.client_connections_max = Some(1));
    let listening = proxy(&keys, vec![one(None)], |listener| listener.connections_max = Some(1));
    for (proxy, reason) in [
        (&in_flight, "in_flight_limit"),
        (&by_client, "client_connections_exceeded"),
        (&listening, "connection_limit"),
    ] {
        let first = connect(proxy);
        ping(&first);
        assert!(rest(&connect(proxy)).unwrap_or_default().is_empty(), "{reason}");
        wait_reason(proxy, reason);
        ping(&first);
        drop(first);
        wait_until("the place is free again", PATIENCE, || {
            let mut client = connect(proxy);
            client.write_all(b"p").is_ok() && client.read_exact(&mut [0]).is_ok()
        });
    }
}

#[test]
fn a_proxy_header_says_who_the_client_is() {
    let log = TempDir::new("tcp-proxy-header");
    let path = log.path().join("access.log");
    let keys = json!({ "cluster": "app/u" });
    let proxy = proxy(&keys, vec![Cluster::new("u", &[echo()])], |listener| {
        listener.proxy_protocol = Some(vec!["127.0.0.0/8".to_owned()]);
        listener.access_log = Some(path.display().to_string());
    });
    let mut client = connect(&proxy);
    client.write_all(b"PROXY TCP4 192.0.2.7 192.0.2.1 4711 5432\r\nhello").expect("open");
    client.shutdown(Shutdown::Write).expect("open");
    assert_eq!(rest(&client).expect("a clean end"), b"hello", "the header is not passed on");
    wait_until("the log has its row", PATIENCE, || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        text.contains("\"client\":\"192.0.2.7\"") && text.contains("\"request_bytes\":5")
    });
}

#[test]
fn endpoints_are_told_who_the_client_is() {
    let first_line = backend(|mut stream| {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a line");
            bytes.extend(byte);
        }
        stream.write_all(&bytes).expect("the client is there");
    });
    let keys = json!({ "cluster": "app/u", "send_proxy_protocol": "v1" });
    let by_line = proxy(&keys, vec![Cluster::new("u", &[first_line])], |_| {});
    // A client that waits for the server to speak first.
    let client = connect(&by_line);
    let (own, listener) = (client.local_addr().expect("bound"), by_line.listener("tcp"));
    let line = format!("PROXY TCP4 127.0.0.1 127.0.0.1 {} {}\r\n", own.port(), listener.port());
    assert_eq!(String::from_utf8_lossy(&rest(&client).expect("a clean end")), line);

    // One proxy behind another: what the outer one is told arrives at the origin.
    let origin = tests::origin::echo();
    let mut inner = Config::to(origin.address());
    inner.listeners[0].proxy_protocol = Some(vec!["127.0.0.0/8".to_owned()]);
    let inner = Proxy::start(inner);
    let keys = json!({ "cluster": "app/u", "send_proxy_protocol": "v2" });
    let outer = proxy(&keys, vec![Cluster::new("u", &[inner.address()])], |listener| {
        listener.proxy_protocol = Some(vec!["127.0.0.0/8".to_owned()]);
    });
    let mut client = connect(&outer);
    let header = b"PROXY TCP6 2001:db8::7 2001:db8::1 4711 443\r\n";
    let request = b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
    client.write_all(&[header.as_slice(), request].concat()).expect("open");
    let response = String::from_utf8(rest(&client).expect("a clean end")).expect("text");
    assert!(response.contains("x-forwarded-for") && response.contains("2001:db8::7"), "{response}");
}

#[test]
fn a_drain_takes_no_new_connection_and_lets_the_old_ones_finish() {
    let mut proxy = proxy_to(&[echo()]);
    let client = connect(&proxy);
    ping(&client);
    proxy.process().signal(Signal::TERM);
    let address = proxy.listener("tcp");
    wait_until("new connections are refused", PATIENCE, || TcpStream::connect(address).is_err());
    ping(&client);
    client.shutdown(Shutdown::Write).expect("open");
    assert!(rest(&client).expect("a clean end").is_empty());
    assert!(proxy.process().wait(PATIENCE).success());
}

#[test]
fn what_outlives_a_drain_is_reset_and_counted() {
    let mut config = config(&json!({ "cluster": "app/u" }), vec![Cluster::new("u", &[echo()])], |_| {});
    config.drain = Duration::from_secs(1);
    let mut proxy = Proxy::start(config);
    let client = connect(&proxy);
    ping(&client);
    proxy.process().signal(Signal::TERM);
    assert!(rest(&client).is_err(), "a cut stream must not look whole");
    let status = proxy.process().wait(PATIENCE);
    assert_eq!(status.code(), Some(3), "{status}");
    assert!(proxy.log().contains("1 TCP connections"), "{}", proxy.log());
}

#[test]
fn a_hot_restart_takes_no_connection_away() {
    let mut proxy = proxy_to(&[echo()]);
    let old = connect(&proxy);
    ping(&old);
    let next = proxy.start_beside("next", &[]);
    let mut before = proxy.replace_process(next);
    proxy.wait_ready();
    ping(&old);
    ping(&connect(&proxy));
    old.shutdown(Shutdown::Write).expect("open");
    assert!(rest(&old).expect("a clean end").is_empty());
    assert!(before.wait(PATIENCE).success());
}

#[test]
fn a_reload_changes_where_new_connections_go_and_leaves_the_old() {
    let greet = |word: &'static [u8]| {
        backend(move |mut stream| {
            stream.write_all(word).expect("the client is there");
            while stream.read(&mut [0]).is_ok_and(|got| got > 0) {
                stream.write_all(b"+").expect("the client is there");
            }
        })
    };
    let mut proxy = proxy_to(&[greet(b"a")]);
    let old = connect(&proxy);
    let hear = |mut client: &TcpStream| {
        let mut byte = [0];
        client.read_exact(&mut byte).expect("open");
        byte[0]
    };
    assert_eq!(hear(&old), b'a');
    let mut config = proxy.config().clone();
    config.clusters = vec![Cluster::new("v", &[greet(b"b")])];
    config.routes[0] = config.routes[0].clone().to("v");
    config.listeners[1].tcp = Some(json!({ "cluster": "app/v" }));
    proxy.reload(config);
    assert_eq!(hear(&connect(&proxy)), b'b');
    (&old).write_all(b"?").expect("open");
    assert_eq!(hear(&old), b'+', "its cluster is gone from the config, not its connection");
}
