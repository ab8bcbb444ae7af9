//! HTTP/1.1 as every client uses it: keep-alive, pipelining, bodies both ways, HEAD, identity of bytes.

use std::time::Duration;

use tests::message::hash;
use tests::{Config, End, Origin, Proxy, client};

use crate::{echo_behind_proxy, reply_behind_proxy};

#[test]
fn a_connection_serves_many_requests_and_so_does_the_upstream_one() {
    let (origin, proxy) = echo_behind_proxy();
    let mut client = proxy.connect();
    for number in 0..50 {
        client.send(format!("GET /{number}?q=%20 HTTP/1.1\r\nHost: a.example\r\n\r\n"));
        let response = client.response("GET");
        assert_eq!(response.status, 200);
        assert_eq!(response.json()["target"], format!("/{number}?q=%20"));
    }
    assert_eq!(origin.connections(), 1, "the upstream connection is reused");
    assert_eq!(origin.faults(), Vec::<String>::new());
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let (_origin, proxy) = echo_behind_proxy();
    let mut client = proxy.connect();
    let mut bytes = String::new();
    for number in 0..20 {
        bytes += &match number % 3 {
            0 => format!("GET /{number} HTTP/1.1\r\nHost: a.example\r\n\r\n"),
            1 => format!("POST /{number} HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3\r\n\r\nabc"),
            _ => format!(
                "PUT /{number} HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
            ),
        };
    }
    client.send(bytes);
    for number in 0..20 {
        let echoed = client.response("GET").json();
        assert_eq!(echoed["target"], format!("/{number}"));
        assert_eq!(echoed["body_bytes"], if number % 3 == 0 { 0 } else { 3 });
    }
}

#[test]
fn a_request_may_arrive_in_pieces_of_any_size() {
    let (_origin, proxy) = echo_behind_proxy();
    let request = "POST /x HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3\r\nabc\r\n0\r\n\r\n";
    for size in [1, 2, 7, 40] {
        let mut client = proxy.connect();
        let pieces: Vec<&[u8]> = request.as_bytes().chunks(size).collect();
        client.send_paced(&pieces, Duration::from_micros(300));
        let echoed = client.response("POST").json();
        assert_eq!(echoed["body_hash"], hash(b"helloabc"), "pieces of {size}");
    }
}

#[test]
fn bodies_arrive_byte_for_byte() {
    let (_origin, proxy) = echo_behind_proxy();
    let mut client = proxy.connect();
    for size in [0, 1, 4_095, 65_536, 3_000_000] {
        let body: Vec<u8> =
            (0..size).map(|index: usize| u8::try_from(index % 251).expect("below 251")).collect();
        client.send(format!("POST /sized HTTP/1.1\r\nHost: a.example\r\nContent-Length: {size}\r\n\r\n"));
        client.send(&body);
        let echoed = client.response("POST").json();
        assert_eq!((&echoed["body_bytes"], &echoed["body_hash"]), (&size.into(), &hash(&body).into()));

        client.send("POST /chunked HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n");
        for piece in body.chunks(10_000) {
            client.send(format!("{:x}\r\n", piece.len())).send(piece).send("\r\n");
        }
        client.send("0\r\n\r\n");
        let echoed = client.response("POST").json();
        assert_eq!((&echoed["body_bytes"], &echoed["body_hash"]), (&size.into(), &hash(&body).into()));
    }
}

#[test]
fn response_bodies_arrive_byte_for_byte_however_framed() {
    let body: Vec<u8> =
        (0..2_000_000_usize).map(|index| u8::try_from(index % 253).expect("below 253")).collect();
    let sent = body.clone();
    let origin = Origin::scripted(move |connection| {
        while let Some(request) = connection.request() {
            let alive = match request.target.as_str() {
                "/length" => {
                    connection.write(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", sent.len()))
                        && connection.write(&sent)
                }
                "/chunked" => {
                    connection.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                        && sent.chunks(77_777).all(|piece| {
                            connection.write(format!("{:X}\r\n", piece.len()))
                                && connection.write(piece)
                                && connection.write("\r\n")
                        })
                        && connection.write("0\r\n\r\n")
                }
                _ => {
                    connection.write("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
                    connection.write(&sent);
                    false
                }
            };
            if !alive {
                return;
            }
        }
    });
    let proxy = Proxy::start(Config::to(origin.address()));
    for target in ["/length", "/chunked", "/close"] {
        let response = client::get(proxy.address(), "a.example", target);
        assert!(response.complete, "{target}");
        assert_eq!(hash(&response.body), hash(&body), "{target}");
    }
}

#[test]
fn close_is_honoured_in_both_directions() {
    let (_origin, proxy) = echo_behind_proxy();
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: a.example\r\nConnection: Close\r\n\r\n");
    let response = client.response("GET");
    assert_eq!(response.field("connection").map(str::to_ascii_lowercase).as_deref(), Some("close"));
    assert_eq!(client.ending(), End::Closed);

    // An upstream that closes is no reason to close the client's connection.
    let (_origin, proxy) =
        reply_behind_proxy("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok");
    let mut client = proxy.connect();
    for _ in 0..2 {
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        let response = client.response("GET");
        assert_eq!(
            (response.status, response.text().as_str(), response.field("connection")),
            (200, "ok", None)
        );
    }
}

#[test]
fn empty_lines_before_a_request_are_forgiven() {
    // RFC 9112 §2.2: a server should ignore at least one empty line before the request line.
    let (_origin, proxy) = echo_behind_proxy();
    let mut client = proxy.connect();
    client.send("\r\nGET /a HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(client.response("GET").status, 200);
}

#[test]
fn each_exchange_has_one_request_id_on_both_sides() {
    let (origin, proxy) = echo_behind_proxy();
    let first = proxy.get("/1");
    let second = proxy.get("/2");
    let id = first.field("x-request-id").expect("a request id").to_owned();
    assert!(!id.is_empty());
    assert_ne!(Some(id.as_str()), second.field("x-request-id"));
    let requests = origin.requests();
    assert_eq!(requests[0].field("x-request-id"), Some(id.as_str()));
}

#[test]
fn methods_are_passed_as_they_are() {
    let (_origin, proxy) = echo_behind_proxy();
    for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND", "M-SEARCH"] {
        let request = format!("{method} /m HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(client::once(proxy.address(), request).json()["method"], method);
    }
}

#[test]
fn an_absolute_target_is_served_in_origin_form() {
    let (_origin, proxy) = echo_behind_proxy();
    let request = "GET http://a.example/x?y HTTP/1.1\r\nHost: a.example\r\n\r\n";
    let echoed = client::once(proxy.address(), request).json();
    assert_eq!(echoed["target"], "/x?y");
}

#[test]
fn a_dead_upstream_is_a_502_or_503_with_a_reason() {
    let origin = tests::origin::echo();
    let address = origin.address();
    drop(origin);
    let proxy = Proxy::start(Config::to(address));
    let response = proxy.get("/");
    assert!(matches!(response.status, 502 | 503), "{response:?}");
    assert_eq!(response.field("content-type"), Some("application/problem+json"));
    assert!(response.code().is_some_and(|code| !code.is_empty()), "{}", response.text());
    let body = response.json();
    assert_eq!(body["request_id"].as_str(), response.field("x-request-id"));
}
