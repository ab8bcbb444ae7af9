//! C15: one host for routing, logs and upstream, or a refusal.

use tests::h2peer::H2Origin;
use tests::h2raw::{Frame, H2Conn, code};
use tests::{Config, Proxy, Route, client, origin};

use crate::{echo_behind_proxy, refused, untouched};

#[test]
fn c15_hosts_that_disagree_or_make_no_sense() {
    let (origin, proxy) = echo_behind_proxy();
    for (what, lines) in [
        ("absolute form against host", "GET http://a.example/ HTTP/1.1\r\nHost: b.example"),
        ("two lines", "GET / HTTP/1.1\r\nHost: a.example\r\nHost: a.example"),
        ("two differing lines", "GET / HTTP/1.1\r\nHost: a.example\r\nhost: b.example"),
        ("no host", "GET / HTTP/1.1\r\nX: y"),
        ("empty host", "GET / HTTP/1.1\r\nHost:"),
        ("user in the host", "GET / HTTP/1.1\r\nHost: a@b"),
        ("blank inside", "GET / HTTP/1.1\r\nHost: a b"),
        ("a list", "GET / HTTP/1.1\r\nHost: a.example, b.example"),
        ("a path", "GET / HTTP/1.1\r\nHost: a.example/x"),
        ("port too big", "GET / HTTP/1.1\r\nHost: a.example:65536"),
        ("port no number", "GET / HTTP/1.1\r\nHost: a.example:http"),
        ("open bracket", "GET / HTTP/1.1\r\nHost: [::1"),
        ("8-bit byte", "GET / HTTP/1.1\r\nHost: \u{e9}.example"),
        ("question mark", "GET / HTTP/1.1\r\nHost: a.example?x"),
        ("backslash", "GET / HTTP/1.1\r\nHost: a\\b"),
    ] {
        refused(&proxy, what, format!("{lines}\r\n\r\n").as_bytes(), &[400]);
        untouched(&origin, what);
    }
}

#[test]
fn c15_hosts_that_are_equal_in_meaning() {
    let (origin, proxy) = echo_behind_proxy();
    for request in [
        "GET http://a.example/ HTTP/1.1\r\nHost: A.EXAMPLE",
        "GET http://a.example:80/ HTTP/1.1\r\nHost: a.example",
        "GET / HTTP/1.1\r\nHost: a.example \t",
        "GET / HTTP/1.1\r\nHost: [::1]:8080",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1",
    ] {
        let response = client::once(proxy.address(), format!("{request}\r\n\r\n"));
        assert_eq!(response.status, 200, "{request:?}");
    }
    assert_eq!(origin.faults(), Vec::<String>::new());
}

#[test]
fn c15_the_routed_host_is_the_one_the_upstream_gets() {
    let (one, two) = (origin::echo(), origin::echo());
    let mut config = Config::to(one.address());
    config.clusters.push(tests::Cluster::new("v", &[two.address()]));
    config.routes = vec![
        Route::prefix("a", "/").host("a.example").to("u"),
        Route::prefix("b", "/").host("b.example").to("v"),
    ];
    let proxy = Proxy::start(config);
    for (host, wanted, other) in [("a.example", &one, &two), ("B.example:8080", &two, &one)] {
        let before = other.requests().len();
        assert_eq!(client::get(proxy.address(), host, "/").status, 200);
        let seen = wanted.requests().pop().expect("the right upstream");
        assert!(seen.field("host").is_some_and(|seen| seen.eq_ignore_ascii_case(host)), "{seen:?}");
        assert_eq!(other.requests().len(), before);
    }
}

#[test]
fn c15_h2_authority_and_host() {
    let (origin, proxy) = echo_behind_proxy();
    let pseudo = [(":method", "GET"), (":scheme", "http"), (":path", "/")];
    let with = |more: &[(&'static str, &'static str)]| [pseudo.as_slice(), more].concat();
    let good = [
        with(&[(":authority", "a.example"), ("host", "a.example")]),
        with(&[(":authority", "a.example")]),
        with(&[("host", "a.example")]),
    ];
    for fields in good {
        let mut h2 = H2Conn::client(proxy.connect().into_stream(), &[]);
        h2.send(&Frame::headers(1, true, &fields));
        let response = h2.response(1).expect("an answer");
        assert_eq!(response.status, 200, "{fields:?}");
        assert_eq!(
            origin.requests().pop().expect("a request").field("host"),
            Some("a.example"),
            "{fields:?}"
        );
    }
    let count = origin.requests().len();
    for fields in [
        with(&[(":authority", "a.example"), ("host", "b.example")]),
        with(&[(":authority", "a@b")]),
        with(&[(":authority", "a.example"), ("host", "a.example"), ("host", "b.example")]),
        with(&[]),
    ] {
        let mut h2 = H2Conn::client(proxy.connect().into_stream(), &[]);
        h2.send(&Frame::headers(1, true, &fields));
        match h2.response(1) {
            Ok(response) => assert_eq!(response.status, 400, "{fields:?}"),
            Err(early) => assert_eq!(early.code(), Some(code::PROTOCOL_ERROR), "{fields:?}: {early:?}"),
        }
    }
    assert_eq!(origin.requests().len(), count, "none of these reached the origin");
}

#[test]
fn c15_an_h2_upstream_gets_the_authority() {
    let origin = H2Origin::echo();
    let proxy = Proxy::start(Config::to_h2(origin.address()));
    let echoed = proxy.get("/x").json();
    assert_eq!((&echoed["authority"], &echoed["target"]), (&"a.example".into(), &"/x".into()));
}
