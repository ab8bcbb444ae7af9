//! C01–C05, C11: whatever could be framed or read two ways is refused, and nothing of it reaches an upstream.

use tests::{Config, Origin, Proxy, client};

use crate::{echo_behind_proxy, refused, untouched};

/// A request that would do harm if the next hop saw it as a request of its own.
const EVIL: &str = "GET /evil HTTP/1.1\r\nHost: a.example\r\n\r\n";

/// Statuses for messages that are refused as malformed or not understood.
const MALFORMED: &[u16] = &[400, 501, 505];

/// Sends each request on its own connection; all are refused and the origin receives not one byte.
#[track_caller]
fn all_refused(cases: &[(&str, String)]) {
    let (origin, proxy) = echo_behind_proxy();
    for (what, bytes) in cases {
        let response = refused(&proxy, what, bytes.as_bytes(), MALFORMED).expect("checked by refused");
        assert!(response.code().is_some(), "{what}: a reason code, not {:?}", response.text());
        untouched(&origin, what);
    }
}

fn post(fields: &str, body: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n{body}")
}

#[test]
fn c01_two_length_fields() {
    let body = format!("1f\r\n{EVIL}\r\n0\r\n\r\n");
    all_refused(&[
        ("CL then TE", post("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n", &body)),
        ("TE then CL", post("Transfer-Encoding: chunked\r\nContent-Length: 0\r\n", &body)),
        ("TE and CL of the body", post("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n")),
        (
            "CL with other fields between",
            post("Content-Length: 4\r\nA: b\r\ntransfer-encoding: CHUNKED\r\n", &body),
        ),
    ]);
}

#[test]
fn c01_two_length_fields_in_a_response() {
    // RFC 9112 §6.3: a response with both may be read by TE, must lose its CL, and ends the connection's use.
    for fields in
        ["Content-Length: 5\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 5"]
    {
        let origin = Origin::replying(format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n2\r\nok\r\n0\r\n\r\n"));
        let proxy = Proxy::start(Config::to(origin.address()));
        for _ in 0..2 {
            let response = client::get(proxy.address(), "a.example", "/");
            match response.status {
                200 => assert_eq!((response.text().as_str(), response.complete), ("ok", true)),
                status => assert_eq!(status, 502),
            }
        }
        assert_eq!(origin.connections(), 2, "the upstream connection must not be pooled");
    }
}

#[test]
fn c02_lengths_that_are_no_digits() {
    let two = |first: &str, second: &str| {
        post(&format!("Content-Length:{first}\r\nContent-Length:{second}\r\n"), "hello")
    };
    let mut cases = vec![
        ("empty beside a good one", two("", " 5")),
        ("good one beside an empty", two(" 5", "")),
        ("differing", two(" 5", " 6")),
        ("differing, first zero", two(" 0", " 5")),
    ];
    for value in [
        "",
        "5,6",
        "5, 6",
        "+5",
        "-5",
        "-0",
        "5 5",
        "0x5",
        "5.0",
        "five",
        "5;",
        "\"5\"",
        ",",
        "5,",
        "18446744073709551621",
        "99999999999999999999999",
        "\u{b}5",
        "5\u{0}",
    ] {
        cases.push(("value", post(&format!("Content-Length: {value}\r\n"), "hello")));
    }
    let (origin, proxy) = echo_behind_proxy();
    for (what, bytes) in &cases {
        refused(&proxy, &format!("{what}: {bytes:?}"), bytes.as_bytes(), &[400, 413]);
        untouched(&origin, what);
    }
}

#[test]
fn c02_lengths_with_one_meaning() {
    let (origin, proxy) = echo_behind_proxy();
    let cases = [
        ("leading zeros", "Content-Length: 00005\r\n"),
        ("the same in two lines", "Content-Length: 5\r\nContent-Length: 5\r\n"),
        ("the same in a list", "Content-Length: 5, 5\r\n"),
        ("white space", "Content-Length: \t 5 \t\r\n"),
    ];
    for (what, fields) in cases {
        let response = client::once(proxy.address(), post(fields, "hello"));
        // Refusing a repetition is as right as collapsing it (RFC 9110 §8.6).
        if response.status != 400 {
            assert_eq!(response.status, 200, "{what}");
            let request = origin.requests().pop().expect("an echoed request");
            assert_eq!(
                (request.field("content-length"), request.body.as_slice()),
                (Some("5"), b"hello".as_slice()),
                "{what}"
            );
        }
        assert_eq!(origin.faults(), Vec::<String>::new(), "{what}");
    }
}

#[test]
fn c03_transfer_encodings_other_than_chunked() {
    let tail = format!("0\r\n\r\n{EVIL}");
    let mut cases = Vec::new();
    for value in [
        "identity",
        "identity, chunked",
        "gzip",
        "gzip, chunked",
        "chunked, gzip",
        "chunked, chunked",
        "chunked, identity",
        "\u{b}chunked",
        "chunked\u{b}",
        "chunked;",
        "chunked; q=1",
        "",
        ",",
        "chunked,",
        ", chunked",
        "xchunked",
        "chunke",
        "\"chunked\"",
        "chunked chunked",
        "'chunked'",
        "chunked\u{0}",
        "c\u{68}unked\u{a0}",
        "\u{ff}",
    ] {
        cases.push(("value", post(&format!("Transfer-Encoding: {value}\r\n"), &tail)));
    }
    for (first, second) in [
        ("chunked", "gzip"),
        ("gzip", "chunked"),
        ("chunked", "chunked"),
        ("chunked", ""),
        ("", "chunked"),
        ("identity", "chunked"),
    ] {
        cases.push((
            "two lines",
            post(&format!("Transfer-Encoding: {first}\r\nTransfer-Encoding: {second}\r\n"), &tail),
        ));
    }
    let (origin, proxy) = echo_behind_proxy();
    for (what, bytes) in &cases {
        refused(&proxy, &format!("{what}: {bytes:?}"), bytes.as_bytes(), MALFORMED);
        untouched(&origin, what);
    }
}

#[test]
fn c03_chunked_in_any_case_with_white_space() {
    let (origin, proxy) = echo_behind_proxy();
    for value in ["CHUNKED", "Chunked", "\tchunked", "  chunked  \t"] {
        let response = client::once(
            proxy.address(),
            post(&format!("Transfer-Encoding:{value}\r\n"), "2\r\nhi\r\n0\r\n\r\n"),
        );
        assert_eq!((response.status, response.json()["body_bytes"].as_u64()), (200, Some(2)), "{value:?}");
    }
    assert_eq!(origin.faults(), Vec::<String>::new());
}

#[test]
fn c04_bare_line_ends_and_odd_sizes_in_chunks() {
    let (origin, proxy) = echo_behind_proxy();
    for body in [
        "5\nhello\r\n0\r\n\r\n",
        "5;x\nhello\r\n0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "5\r\nhello\r\n0\n\n",
        "0\n\n",
        "0\r\n\n",
        "5;a=\n45\r\nhello\r\n0\r\n\r\n",
        "5\rhello\r\n0\r\n\r\n",
        "5\r\nhello\r0\r\n\r\n",
        "5\r\nhelloXX0\r\n\r\n",
        "\r\n5\r\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "-5\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "5 5\r\nhello\r\n0\r\n\r\n",
        "g\r\nhello\r\n0\r\n\r\n",
        ";\r\nhello\r\n0\r\n\r\n",
        "\r\n\r\n",
        "10000000000000005\r\nhello\r\n0\r\n\r\n",
        "fffffffffffffffff\r\n",
        "5;a\rb\r\nhello\r\n0\r\n\r\n",
        "5;\u{0}\r\nhello\r\n0\r\n\r\n",
        "5\r\nhello\r\n0\r\nX: y\nZ: 1\r\n\r\n",
        "5\r\nhello\r\n0\r\n X: y\r\n\r\n",
    ] {
        let mut client = proxy.connect();
        client.send(post("Transfer-Encoding: chunked\r\n", &format!("{body}{EVIL}")));
        let response = client.try_response("POST");
        let status = response.as_ref().map_or(0, |response| response.status);
        // Headers may be on their way upstream before the body turns out bad: the exchange ends, never as a 200.
        assert!(matches!(status, 0 | 400 | 502), "{body:?}: {response:?}");
        client.expect_close();
        let targets: Vec<String> = origin.requests().into_iter().map(|request| request.target).collect();
        assert!(targets.is_empty(), "{body:?}: the origin read whole requests {targets:?}");
        assert!(!origin.received_text().contains("/evil"), "{body:?}: the second request got through");
    }
}

#[test]
fn c04_chunk_extensions_are_dropped() {
    let (origin, proxy) = echo_behind_proxy();
    let body = "5;name=value\r\nhello\r\n3 ; a=\"b;c\"\r\nabc\r\n0;last\r\n\r\n";
    let response = client::once(proxy.address(), post("Transfer-Encoding: chunked\r\n", body));
    if response.status == 200 {
        assert_eq!(response.json()["body_bytes"], 8);
        let text = origin.received_text();
        assert!(!text.contains("name=value") && !text.contains("last"), "{text:?}");
    } else {
        assert_eq!(response.status, 400);
    }
    assert_eq!(origin.faults(), Vec::<String>::new());
}

#[test]
fn c04_bad_chunks_from_upstream_are_no_whole_response() {
    for body in [
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "0\n\n",
        "zz\r\nhello\r\n0\r\n\r\n",
        "5\r\nhelloX\r\n0\r\n\r\n",
    ] {
        let origin = Origin::replying(format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}"));
        let proxy = Proxy::start(Config::to(origin.address()));
        let mut client = proxy.connect();
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        let response = client.try_response("GET");
        let whole = response.as_ref().is_ok_and(|response| response.status == 200 && response.complete);
        assert!(!whole, "{body:?}: {response:?}");
    }
}

#[test]
fn c05_shapes_of_field_lines() {
    let get = |lines: &str| format!("GET / HTTP/1.1\r\nHost: a.example\r\n{lines}\r\n\r\n");
    all_refused(&[
        ("fold before the colon", get("Transfer-Encoding\r\n : chunked")),
        ("space before the colon", get("Transfer-Encoding : chunked")),
        ("tab before the colon", get("Content-Length\t: 5")),
        ("fold that hides a field", get("X: 1\r\n\tTransfer-Encoding: chunked")),
        ("fold with a space", get("X: 1\r\n more")),
        (
            "fold of the first field",
            "GET / HTTP/1.1\r\n Host: a.example\r\nHost: a.example\r\n\r\n".to_owned(),
        ),
        ("empty name", get(":\r\nContent-Length: 27")),
        ("empty name with value", get(": x")),
        ("line of blanks", get("X: 1\r\n \t\r\nContent-Length: 5")),
        ("no colon", get("Content-Length 5")),
        ("NUL in a value", get("X: a\u{0}b")),
        ("bare CR in a value", get("X: a\rContent-Length: 5")),
        ("bare LF in a value", get("X: a\nContent-Length: 5")),
        ("NUL in a name", get("X\u{0}: a")),
        ("control in a name", get("X\u{1}Y: a")),
        ("bracket in a name", get("[X]: a")),
        ("8-bit byte in a name", get("X\u{e9}: a")),
        ("bare LF line ends", "GET / HTTP/1.1\nHost: a.example\n\n".to_owned()),
        ("bare LF at the end", "GET / HTTP/1.1\r\nHost: a.example\r\n\n".to_owned()),
    ]);
}

#[test]
fn c05_bad_response_heads_are_a_502() {
    for head in [
        "HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\n: x\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
        "HTTP/1.1 99 Low\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 2000 High\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        "ICY 200 OK\r\nContent-Length: 2\r\n\r\nok",
        "nonsense\r\n\r\n",
        "\0\0\0\0\r\n\r\n",
    ] {
        let origin = Origin::replying(head);
        let proxy = Proxy::start(Config::to(origin.address()));
        let response = proxy.get("/");
        assert_eq!(response.status, 502, "{head:?}: {response:?}");
        assert!(response.code().is_some(), "{head:?}");
    }
}

#[test]
fn c05_a_folded_response_field_is_joined_or_refused() {
    let origin = Origin::replying("HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\nok");
    let proxy = Proxy::start(Config::to(origin.address()));
    let response = proxy.get("/");
    match response.status {
        200 => assert_eq!(response.field("x"), Some("a b")),
        status => assert_eq!(status, 502),
    }
}

#[test]
fn c11_targets_and_methods_that_do_not_belong_together() {
    let get = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n\r\n");
    all_refused(&[
        ("authority-form for GET", get("a.example:80")),
        ("no leading slash", get("admin")),
        ("asterisk for GET", get("*")),
        ("two asterisks", "OPTIONS ** HTTP/1.1\r\nHost: a.example\r\n\r\n".to_owned()),
        ("other scheme", get("ftp://a.example/")),
        ("userinfo", get("http://u:p@a.example/")),
        ("no host in the URI", get("http:///x")),
        ("fragment", get("/a#b")),
        ("empty target", "GET  HTTP/1.1\r\nHost: a.example\r\n\r\n".to_owned()),
        ("blank in the target", get("/a b")),
        ("tab as separator", "GET\t/\tHTTP/1.1\r\nHost: a.example\r\n\r\n".to_owned()),
        ("two blanks", "GET  / HTTP/1.1\r\nHost: a.example\r\n\r\n".to_owned()),
        ("control in the target", get("/a\u{1}b")),
        ("8-bit byte in the target", get("/\u{e9}")),
        ("method with a colon", "GE:T / HTTP/1.1\r\nHost: a.example\r\n\r\n".to_owned()),
        ("leading blank", " GET / HTTP/1.1\r\nHost: a.example\r\n\r\n".to_owned()),
    ]);
}

#[test]
fn c11_connect_is_refused() {
    let (origin, proxy) = echo_behind_proxy();
    for request in [
        "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n",
        "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\nContent-Length: 4\r\n\r\nevil",
        "CONNECT /x HTTP/1.1\r\nHost: a.example\r\n\r\n",
    ] {
        refused(&proxy, request, request.as_bytes(), &[400, 405, 501]);
        untouched(&origin, request);
    }
}

#[test]
fn what_follows_a_refused_request_is_not_served() {
    let (origin, proxy) = echo_behind_proxy();
    let bytes = format!("GET / HTTP/1.1\r\nHost: a.example\r\nBad Name: x\r\n\r\n{EVIL}{EVIL}");
    refused(&proxy, "pipelined behind a bad one", bytes.as_bytes(), &[400]);
    untouched(&origin, "pipelined behind a bad one");
}
