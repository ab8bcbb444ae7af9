//! C13: HTTP/1.0 on either side, and protocol names that are not ours.

use tests::config::ListenerTls;
use tests::h2peer::H2Origin;
use tests::tls::Authority;
use tests::{Config, End, Listener, Origin, Proxy, client, origin};

use crate::{echo_behind_proxy, refused, untouched};

#[test]
fn c13_an_upstream_that_closes_each_time() {
    for reply in ["HTTP/1.0 200 OK\r\n\r\nhi", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi"] {
        let origin = Origin::scripted(move |connection| {
            if connection.request().is_some() {
                connection.write(reply);
            }
        });
        let proxy = Proxy::start(Config::to(origin.address()));
        let mut client = proxy.connect();
        for number in 0..5 {
            client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
            let response = client.response("GET");
            assert_eq!(
                (response.status, response.text().as_str()),
                (200, "hi"),
                "{reply:?}, request {number}"
            );
            if response.field("connection") == Some("close") {
                client = proxy.connect();
            }
        }
        assert_eq!(origin.connections(), 5, "a 1.0 upstream without keep-alive is not pooled");
    }
}

#[test]
fn c13_transfer_encoding_in_a_1_0_request() {
    let (origin, proxy) = echo_behind_proxy();
    let request =
        "POST / HTTP/1.0\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n";
    refused(&proxy, "TE in 1.0", request.as_bytes(), &[400, 501]);
    untouched(&origin, "TE in 1.0");
}

#[test]
fn c13_a_1_0_client_gets_no_chunks_and_a_close() {
    let origin =
        Origin::replying("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n");
    let proxy = Proxy::start(Config::to(origin.address()));
    for request in ["GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.0\r\nHost: a.example\r\n\r\n"] {
        let mut client = proxy.connect();
        client.send(request);
        let response = client.response("GET");
        assert_eq!((response.status, response.text().as_str()), (200, "hi"), "{request:?}");
        assert_eq!(response.field("transfer-encoding"), None);
        assert_eq!(response.field("connection").map(str::to_ascii_lowercase).as_deref(), Some("close"));
        assert_eq!(client.ending(), End::Closed);
    }
    assert_eq!(origin.faults(), Vec::<String>::new(), "the upstream request has a host all the same");
}

#[test]
fn c13_a_request_without_host_gets_what_the_client_connected_to() {
    let authority = Authority::default();
    let mut secure = Listener::new("secure");
    secure.tls = Some(ListenerTls { leaves: vec![authority.leaf(&["a.example"])], ..Default::default() });
    let origin = origin::echo();
    let h2_origin = H2Origin::echo();
    let of_h1 = Config::to(origin.address());
    let of_h2 = Config::to_h2(h2_origin.address());
    for (config, is_h2) in [(of_h1, false), (of_h2, true)] {
        let proxy = Proxy::start(config.and_listener(secure.clone()));
        let host_seen = |response: tests::Response| {
            assert_eq!(response.status, 200, "{response:?}");
            let seen = response.json();
            if is_h2 {
                return seen["authority"].clone();
            }
            let fields = seen["fields"].as_array().expect("fields").clone();
            fields.into_iter().find(|field| field[0] == "host").expect("a Host")[1].clone()
        };
        let response = client::once(proxy.address(), "GET / HTTP/1.0\r\n\r\n");
        assert_eq!(host_seen(response), proxy.address().to_string());
        let tls = authority.client("a.example", &["http/1.1"]);
        let mut client = tests::RawClient::connect_tls(proxy.listener("secure"), &tls).expect("a handshake");
        client.send("GET / HTTP/1.0\r\n\r\n");
        assert_eq!(host_seen(client.response("GET")), "a.example");
    }
    assert_eq!(origin.faults(), Vec::<String>::new());
}

#[test]
fn c13_a_1_0_client_may_keep_the_connection() {
    let (_origin, proxy) = echo_behind_proxy();
    let mut client = proxy.connect();
    client.send("GET /1 HTTP/1.0\r\nHost: a.example\r\nConnection: keep-alive\r\n\r\n");
    let response = client.response("GET");
    assert_eq!(response.status, 200);
    // Either it is kept, and then it was said, or it is closed.
    if response.field("connection").is_some_and(|value| value.eq_ignore_ascii_case("keep-alive")) {
        client.send("GET /2 HTTP/1.0\r\nHost: a.example\r\nConnection: keep-alive\r\n\r\n");
        assert_eq!(client.response("GET").json()["target"], "/2");
    } else {
        assert_eq!(client.ending(), End::Closed);
    }
}

#[test]
fn c13_protocol_names() {
    let (origin, proxy) = echo_behind_proxy();
    for version in [
        "RTSP/1.0",
        "HTTP/01.1",
        "HTTP/1.01",
        "HTTP/1",
        "HTTP/1.",
        "HTTP/.1",
        "http/1.1",
        "HTTPS/1.1",
        "HTTP/1.1x",
        "HTTP/1 1",
        "HTTP/2.0",
        "HTTP/0.9",
        "HTTP/3.0",
        "HTTP",
        "ICAP/1.0",
    ] {
        let request = format!("GET / {version}\r\nHost: a.example\r\n\r\n");
        refused(&proxy, version, request.as_bytes(), &[400, 505]);
        untouched(&origin, version);
    }
    refused(&proxy, "0.9", b"GET /\r\n\r\n", &[400, 505]);
    untouched(&origin, "0.9");
    // RFC 9110 §2.5: a higher minor version is treated as the highest known; refusing it is the other legal choice.
    let response = client::once(proxy.address(), "GET / HTTP/1.2\r\nHost: a.example\r\n\r\n");
    assert!(matches!(response.status, 200 | 400 | 505), "{response:?}");
}
