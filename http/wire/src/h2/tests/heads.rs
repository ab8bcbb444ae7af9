//! What is a message, what is malformed, and what deserves an answer (cases C15, C21).

use super::*;
use crate::fields::FieldId;
use crate::head::BodyLength;

/// What a server makes of a request of these lines.
fn judge(lines: &[(&str, &str)], is_end: bool) -> String {
    let (mut server, mut log) = server();
    let result = server.receive(&headers(1, is_end, lines), NOW, &mut log);
    assert_eq!(result, Ok(()), "a stream's fault is none of the connection: {lines:?}");
    let frames = sent(&mut server, &mut log);
    match (log.take().as_slice(), frames.as_slice()) {
        ([line], []) => line.clone(),
        ([], [(kind::RST_STREAM, 0, 1, code)]) => format!("reset {:?}", frame::number(code)),
        other => panic!("{other:?}"),
    }
}

fn with<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    GET.iter().copied().chain(more.iter().copied()).collect()
}

const RESET: &str = "reset Some(1)";

#[test]
fn requests_are_taken_refused_or_malformed() {
    let good = "1 request GET a.example/ Empty end";
    for (more, want) in [
        (&[("x", "y")][..], good),
        (&[("x", "")], good),
        (&[("te", "trailers")], good),
        (&[("te", "Trailers")], good),
        (&[("content-length", "0")], good),
        (&[("host", "a.example")], good),
        (&[("host", "A.example:443")], good),
        (&[("x", " y")], "1 request BadFieldValue end"),
        (&[("x", "y\t")], "1 request BadFieldValue end"),
        (&[("x_forwarded_for", "1")], "1 request BadFieldName end"),
        (&[("content-length", "1")], "1 request BadContentLength end"),
        (&[("content-length", "+1")], "1 request BadContentLength end"),
        (&[("content-length", "")], "1 request BadContentLength end"),
        (&[("content-length", "18446744073709551616")], "1 request BadContentLength end"),
        (&[("content-length", "0"), ("content-length", "1")], "1 request BadContentLength end"),
        (&[("content-type", "a"), ("content-type", "b")], "1 request ContentTypeRepeated end"),
        (&[("host", "b.example")], "1 request HostConflict end"),
        (&[("host", "a.example"), ("host", "b.example")], "1 request HostConflict end"),
        (&[("a", "1"); 11], "1 request TooManyFields end"),
        (&[("X", "y")], RESET),
        (&[("x", "a\r\nb: c")], RESET),
        (&[("x", "a\0")], RESET),
        (&[("x y", "z")], RESET),
        (&[("", "z")], RESET),
        (&[("connection", "close")], RESET),
        (&[("keep-alive", "1")], RESET),
        (&[("proxy-connection", "close")], RESET),
        (&[("transfer-encoding", "chunked")], RESET),
        (&[("upgrade", "websocket")], RESET),
        (&[("te", "trailers, gzip")], RESET),
        (&[("x", "y"), (":path", "/")], RESET),
        (&[(":path", "/")], RESET),
        (&[(":status", "200")], RESET),
        (&[(":any", "200")], RESET),
        (&[(":protocol", "websocket")], RESET),
    ] {
        assert_eq!(judge(&with(more), true), want, "{more:?}");
    }
    assert_eq!(judge(&with(&[("content-length", "7")]), false), "1 request GET a.example/ Exact(7)");
    assert_eq!(judge(&GET, false), "1 request GET a.example/ Streamed");
    let long = "v".repeat(4000);
    assert_eq!(judge(&with(&[("x", &long)]), true), "1 request TooLarge end");
}

#[test]
fn pseudo_fields_say_what_a_request_is() {
    let lines = |method, scheme, path, authority| {
        let all = [(":method", method), (":scheme", scheme), (":path", path), (":authority", authority)];
        all.into_iter().filter(|(_, value)| *value != "-").collect::<Vec<_>>()
    };
    for (method, scheme, path, authority, want) in [
        ("PURGE", "https", "/", "a.example", "1 request PURGE a.example/ Empty end"),
        ("OPTIONS", "https", "*", "a.example", "1 request OPTIONS a.example* Empty end"),
        ("GET", "https", "/?a=/b?c", "A.Example:8443", "1 request GET a.example:8443/ Empty end"),
        ("GET", "coap+tcp", "/", "a.example", "1 request GET a.example/ Empty end"),
        ("GET", "https", "*", "a.example", "1 request BadTarget end"),
        ("GET", "https", "a", "a.example", "1 request BadTarget end"),
        ("GET", "https", "http://b/", "a.example", "1 request BadTarget end"),
        ("GET", "https", "/a b", "a.example", "1 request BadTarget end"),
        ("GET", "https", "/a#b", "a.example", "1 request BadTarget end"),
        ("GET", "https", "/0123456789abcdef\u{e9}", "a.example", "1 request BadTarget end"),
        ("G T", "https", "/", "a.example", "1 request BadMethod end"),
        ("", "https", "/", "a.example", "1 request BadMethod end"),
        ("GET", "https", "/", "-", "1 request HostMissing end"),
        ("GET", "https", "/", "", "1 request HostMissing end"),
        ("GET", "https", "/", "user@a.example", "1 request BadHost end"),
        ("GET", "https", "/", "a.example:0", "1 request BadHost end"),
        ("CONNECT", "-", "-", "a.example:443", "1 request ConnectUnsupported end"),
        ("-", "https", "/", "a.example", RESET),
        ("GET", "-", "/", "a.example", RESET),
        ("GET", "", "/", "a.example", RESET),
        ("GET", "1https", "/", "a.example", RESET),
        ("GET", "https", "-", "a.example", RESET),
        ("GET", "https", "", "a.example", RESET),
    ] {
        assert_eq!(judge(&lines(method, scheme, path, authority), true), want, "{method} {path} {authority}");
    }
    let websocket: Vec<_> =
        [&lines("CONNECT", "https", "/chat", "a.example")[..], &[(":protocol", "websocket")]].concat();
    assert_eq!(judge(&websocket, false), "1 request CONNECT a.example/chat Streamed");
}

#[test]
fn a_request_passes_from_h2_to_h2_as_it_was() {
    let (mut server, mut log) = server();
    let lines = with(&[
        ("x-custom", "1"),
        ("accept", "*/*"),
        ("cookie", "a=1"),
        ("x-custom", ""),
        ("cookie", "b=2"),
        ("te", "trailers"),
    ]);
    server.receive(&headers(1, true, &lines), NOW, &mut log).expect("good");
    let mut head = log.heads.pop().expect("a request");
    assert_eq!(head.fields.get(FieldId::Cookie), Some(&b"a=1; b=2"[..]));
    head.set_query(Some(b"y=?")).expect("short");
    head.fields.push_name(b"connection", b"close").expect("a policy may do that");
    let (mut client, mut client_log) = (Connection::new(Role::Client, config()), Log::default());
    sent(&mut client, &mut client_log);
    client.send_request(&head, BodyLength::Exact(3), true, Scheme::Http, 1).expect("open");
    let frames = sent(&mut client, &mut client_log);
    let [(kind::HEADERS, flag::END_HEADERS, 1, sent_block)] = frames.as_slice() else { panic!("{frames:?}") };
    let mut seen = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let decoded = hpack::Decoder::new()
        .decode(sent_block, |line| seen.push(format!("{}={}", text(line.name()), text(line.value()))));
    decoded.expect("our own");
    assert_eq!(
        seen,
        [
            ":method=GET",
            ":scheme=http",
            ":authority=a.example",
            ":path=/?y=?",
            "x-custom=1",
            "accept=*/*",
            "x-custom=",
            "cookie=a=1; b=2",
            "content-length=3",
            "te=trailers",
        ]
    );
}

#[test]
fn an_upgrade_becomes_an_extended_connect_without_a_key() {
    let mut head = RequestHead::default();
    head.set_method(b"GET").expect("a token");
    head.set_authority(b"a.example").expect("short");
    head.set_path(b"/ws").expect("short");
    head.set_protocol(b"websocket").expect("a token");
    head.fields.push(FieldId::SecWebsocketKey, b"dGhlIHNhbXBsZSBub25jZQ==").expect("a value");
    head.fields.push(FieldId::SecWebsocketVersion, b"13").expect("a value");
    let (mut client, mut client_log) = (Connection::new(Role::Client, config()), Log::default());
    client.send_request(&head, BodyLength::Streamed, false, Scheme::Https, 1).expect("open");
    let (mut server, mut log) = (Connection::new(Role::Server, config()), Log::default());
    server.receive(client.output(), NOW, &mut log).expect("good");
    assert_eq!(log.take(), ["1 request CONNECT a.example/ws Streamed"]);
    let received = log.heads.pop().expect("a request");
    assert_eq!(received.protocol(), Some(&b"websocket"[..]));
    assert_eq!(listing(&received.fields), "sec-websocket-version=13");
    sent(&mut client, &mut client_log);
}

#[test]
fn responses_are_taken_or_malformed() {
    let judge = |lines: &[(&str, &str)], is_end: bool, method: &[u8]| {
        let (mut client, mut log) = (Connection::new(Role::Client, config()), Log::default());
        let mut head = RequestHead::default();
        head.set_method(method).expect("a token");
        head.set_authority(b"a.example").expect("short");
        head.set_path(b"/").expect("short");
        client.send_request(&head, BodyLength::Empty, false, Scheme::Https, 1).expect("open");
        sent(&mut client, &mut log);
        let bytes = [raw(kind::SETTINGS, 0, 0, b""), headers(1, is_end, lines)].concat();
        client.receive(&bytes, NOW, &mut log).expect("the connection goes on");
        log.take().join("; ")
    };
    let ok = (":status", "200");
    for (lines, is_end, want) in [
        (&[ok, ("x", "y")][..], true, "1 response 200 Empty x=y; 1 end"),
        (&[ok], false, "1 response 200 Streamed "),
        (&[ok, ("content-length", "5")], false, "1 response 200 Exact(5) "),
        (&[ok, ("content-length", "0")], true, "1 response 200 Empty ; 1 end"),
        (&[(":status", "304"), ("content-length", "5")], true, "1 response 304 Empty ; 1 end"),
        (&[(":status", "103"), ("link", "a")], false, "1 response 103 Empty link=a"),
        (&[(":status", "799")], true, "1 response 799 Empty ; 1 end"),
        (&[ok, ("content-length", "5")], true, "1 failed Head(Malformed)"),
        (&[ok, ("content-length", "x")], true, "1 failed Head(BadContentLength)"),
        (&[ok, ("x", "y ")], true, "1 failed Head(BadFieldValue)"),
        (&[(":status", "103")], true, "1 failed Head(Malformed)"),
        (&[(":status", "101")], false, "1 failed Head(Malformed)"),
        (&[(":status", "99")], true, "1 failed Head(Malformed)"),
        (&[(":status", "2000")], true, "1 failed Head(Malformed)"),
        (&[(":status", "+20")], true, "1 failed Head(Malformed)"),
        (&[("x", "y")], true, "1 failed Head(Malformed)"),
        (&[ok, (":path", "/")], true, "1 failed Head(Malformed)"),
        (&[ok, ("transfer-encoding", "chunked")], true, "1 failed Head(Malformed)"),
    ] {
        assert_eq!(judge(lines, is_end, b"GET"), want, "{lines:?}");
    }
    let many = [&[ok][..], &[("a", "b"); 11]].concat();
    assert_eq!(judge(&many, true, b"GET"), "1 failed Head(TooManyFields)");
    assert_eq!(judge(&[ok, ("content-length", "5")], true, b"HEAD"), "1 response 200 Empty ; 1 end");
}

#[test]
fn trailers_do_not_frame_route_or_vouch() {
    let (mut server, mut log) = server();
    let names = [
        "x-sum",
        "grpc-status",
        "content-length",
        "host",
        "authorization",
        "x-forwarded-for",
        "x_forwarded_for",
    ];
    let lines: Vec<_> = names.iter().map(|name| (*name, "0")).collect();
    let bytes = [headers(1, false, &POST), headers(1, true, &lines)].concat();
    server.receive(&bytes, NOW, &mut log).expect("good");
    assert_eq!(log.take(), ["1 request POST a.example/ Streamed", "1 end x-sum=0,grpc-status=0"]);
    // Not the end, a pseudo-header field, a field of the connection.
    for (lines, is_end) in
        [(&[("x", "y")][..], false), (&[(":path", "/")], true), (&[("connection", "x")], true)]
    {
        let (mut server, mut log) = super::server();
        let bytes = [headers(1, false, &POST), headers(1, is_end, lines)].concat();
        server.receive(&bytes, NOW, &mut log).expect("the connection goes on");
        assert_eq!(log.take().last().map(String::as_str), Some("1 failed Broken"), "{lines:?}");
    }
}
