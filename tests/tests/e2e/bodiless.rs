//! C09: answers without a body (HEAD, 204, 304) and the connection that serves on.

use std::time::Duration;

use tests::config::{Action, Cors};
use tests::h2raw::{Frame, H2Conn, request_fields};
use tests::{Config, Origin, Proxy, Route};

type Case = (&'static str, &'static str, &'static str, u16);

/// Method, target, what the origin replies, status.
const CASES: &[Case] = &[
    ("HEAD", "/head-chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 200),
    ("HEAD", "/head-length", "HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n", 200),
    ("HEAD", "/head-none", "HTTP/1.1 200 OK\r\n\r\n", 200),
    ("GET", "/304-length", "HTTP/1.1 304 Not Modified\r\nContent-Length: 1234\r\n\r\n", 304),
    ("GET", "/304-chunked", "HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n", 304),
    ("GET", "/304", "HTTP/1.1 304 Not Modified\r\nETag: \"v\"\r\n\r\n", 304),
    ("GET", "/204", "HTTP/1.1 204 No Content\r\n\r\n", 204),
    ("GET", "/204-length", "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", 204),
];

/// Replies by target; the client then uses the same connection for another request.
fn origin_with(cases: &'static [Case]) -> Origin {
    Origin::scripted(move |connection| {
        while let Some(request) = connection.request() {
            let reply = cases.iter().find(|case| case.1 == request.target).map(|case| case.2);
            if !connection.write(reply.unwrap_or("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nafter")) {
                return;
            }
        }
    })
}

#[test]
fn c09_no_body_is_read_or_written() {
    let origin = origin_with(CASES);
    let proxy = Proxy::start(Config::to(origin.address()));
    for (method, target, _, status) in CASES {
        let mut client = proxy.connect();
        client.send(format!("{method} {target} HTTP/1.1\r\nHost: a.example\r\n\r\n"));
        let response = client.response(method);
        assert_eq!(response.status, *status, "{target}");
        assert_eq!(response.field("transfer-encoding").filter(|_| *status == 204), None, "{target}");
        if *status == 204 {
            // RFC 9110 §8.6: no Content-Length in a 204.
            assert_eq!(response.field("content-length"), None, "{target}");
        }
        if *target == "/head-length" {
            assert_eq!(response.field("content-length"), Some("1234"));
        }
        if *status == 304 {
            assert_ne!(response.field("content-length"), Some("0"), "{target}: nothing of the kind was said");
        }
        client.send("GET /next HTTP/1.1\r\nHost: a.example\r\n\r\n");
        assert_eq!(client.response("GET").text(), "after", "after {target}");
    }
    assert_eq!(origin.faults(), Vec::<String>::new());
}

#[test]
fn c09_bytes_behind_a_bodiless_answer_poison_nothing() {
    for reply in [
        "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\n\r\nhello",
        "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\nhello",
    ] {
        let origin = Origin::scripted(move |connection| {
            while let Some(request) = connection.request() {
                let reply = if request.target == "/odd" {
                    reply
                } else {
                    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nafter"
                };
                if !connection.write(reply) {
                    return;
                }
            }
        });
        let proxy = Proxy::start(Config::to(origin.address()));
        let mut client = proxy.connect();
        client.send("GET /odd HTTP/1.1\r\nHost: a.example\r\n\r\n");
        let response = client.response("GET");
        assert!(matches!(response.status, 204 | 304), "{reply:?}: {response:?}");
        assert_eq!(response.field("transfer-encoding"), None, "{reply:?}");
        client.send("GET /next HTTP/1.1\r\nHost: a.example\r\n\r\n");
        assert_eq!(client.response("GET").text(), "after", "{reply:?}");
        assert_eq!(origin.connections(), 2, "{reply:?}: the connection with stray bytes must not be reused");
    }
}

#[test]
fn c09_head_of_a_page_that_the_proxy_makes_has_no_body() {
    let origin = origin_with(&[]);
    let address = origin.address();
    drop(origin);
    let proxy = Proxy::start(Config::to(address));
    let mut client = proxy.connect();
    for _ in 0..2 {
        client.send("HEAD / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        let response = client.response("HEAD");
        assert!(matches!(response.status, 502 | 503), "{response:?}");
    }
}

/// The stream has to end with the head, or with an empty frame behind it: a stream without an end is an error to every client.
#[test]
fn c09_over_h2_a_stream_without_a_body_ends() {
    let origin = origin_with(CASES);
    let proxy = Proxy::start(Config::to(origin.address()));
    let mut client = H2Conn::client(proxy.connect().into_stream(), &[]);
    for (number, (method, target, reply, status)) in (0u32..).zip(CASES) {
        let stream = number * 2 + 1;
        client.send(&Frame::headers(stream, true, &request_fields(method, "a.example", target)));
        let response = client.response(stream).expect(target);
        assert_eq!((response.status, response.body.len()), (*status, 0), "{target}");
        let announced = reply.contains("1234").then_some("1234");
        assert_eq!(response.field("content-length"), announced, "{target}");
    }
}

#[test]
fn c09_what_the_proxy_itself_says_in_a_head_ends_the_stream() {
    let redirect = Action::Redirect { status: 308, host: None, path: Some("/new".to_owned()), https: false };
    let cors = Cors {
        origins: vec!["https://app.example".to_owned()],
        methods: vec!["PUT".to_owned()],
        headers: Vec::new(),
        expose: Vec::new(),
        max_age: Some(Duration::from_secs(1)),
        credentials: false,
    };
    let origin = origin_with(&[]);
    let mut config = Config::to(origin.address()).route(|route| route.cors = Some(cors));
    for own in [
        Route::prefix("redirect", "/old").having(|route| route.action = redirect),
        Route::exact("empty", "/empty").direct(200, ""),
        Route::exact("none", "/none").direct(204, ""),
        Route::exact("unchanged", "/unchanged").direct(304, ""),
        Route::exact("text", "/text").direct(200, "text"),
    ] {
        config = config.and_route(own);
    }
    config.routes.reverse();
    let proxy = Proxy::start(config);
    let preflight = [("origin", "https://app.example"), ("access-control-request-method", "PUT")];
    let table: [(&str, &str, u16, Option<&str>, &str); 9] = [
        ("GET", "/old/x", 308, Some("0"), ""),
        ("HEAD", "/old/x", 308, Some("0"), ""),
        ("GET", "/empty", 200, Some("0"), ""),
        ("GET", "/none", 204, None, ""),
        ("GET", "/unchanged", 304, None, ""),
        ("GET", "/text", 200, Some("4"), "text"),
        ("HEAD", "/text", 200, Some("4"), ""),
        ("OPTIONS", "/", 204, None, ""),
        ("GET", "/after", 200, Some("5"), "after"),
    ];
    let mut client = H2Conn::client(proxy.connect().into_stream(), &[]);
    for (number, (method, target, status, length, body)) in (0u32..).zip(table) {
        let stream = number * 2 + 1;
        let mut fields = request_fields(method, "a.example", target);
        fields.extend(preflight.iter().filter(|_| method == "OPTIONS"));
        client.send(&Frame::headers(stream, true, &fields));
        let response = client.response(stream).unwrap_or_else(|early| panic!("{method} {target}: {early:?}"));
        assert_eq!((response.status, response.text()), (status, body.to_owned()), "{method} {target}");
        assert_eq!(response.field("content-length"), length, "{method} {target}");
    }
}
