//! Request heads by family: what is refused and why, what is taken and as what.

use super::super::testing::Random;
use super::super::{BodyDecoder, Decoded};
use super::*;

const LIMITS: HeadLimits = HeadLimits { request_line_bytes_max: 200, head_bytes_max: 1000, fields_max: 40 };

fn parse(text: &[u8]) -> Result<Option<(RequestMeta, RequestHead)>, RequestError> {
    let mut head = RequestHead::default();
    Ok(parse_request(text, &LIMITS, Scheme::Http, &mut head)?.map(|meta| (meta, head)))
}

fn good(text: &str) -> (RequestMeta, RequestHead) {
    let parsed = parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text:?}: {error}"));
    parsed.unwrap_or_else(|| panic!("{text:?} is not whole"))
}

/// Each of these fields added to a good request gives this error, before and behind the good fields.
fn refused_with(fields: &[&str], want: RequestError) {
    for field in fields {
        for text in [
            format!("POST / HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n0\r\n\r\n"),
            format!("POST / HTTP/1.1\r\n{field}\r\nHost: a\r\n\r\n0\r\n\r\n"),
            format!("POST / HTTP/1.1\r\nHost: a\r\nX-Long: {}\r\n{field}\r\nDate: b\r\n\r\n", "v".repeat(70)),
        ] {
            assert_eq!(parse(text.as_bytes()).map(|_| ()), Err(want), "{text:?}");
        }
    }
}

fn line_refused_with(lines: &[&str], want: RequestError) {
    for line in lines {
        let text = format!("{line}\r\nHost: a.example\r\n\r\n");
        assert_eq!(parse(text.as_bytes()).map(|_| ()), Err(want), "{text:?}");
    }
}

fn names(head: &RequestHead) -> Vec<String> {
    head.fields.iter().map(|f| String::from_utf8_lossy(f.name).into_owned()).collect()
}

#[test]
fn c01_two_kinds_of_length_are_refused_in_both_orders() {
    refused_with(
        &[
            "Content-Length: 0\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: chunked\r\nContent-Length: 0",
            "Transfer-Encoding: identity\r\nContent-Length: 1",
            "Transfer-Encoding: gzip, chunked\r\nContent-Length: 1",
            "Transfer-Encoding:\r\nContent-Length: 1",
            "TRANSFER-ENCODING: chunked\r\nX: y\r\ncontent-length: 5",
        ],
        RequestError::LengthConflict,
    );
}

#[test]
fn c02_content_length_is_one_plain_number() {
    refused_with(
        &[
            "Content-Length:",
            "Content-Length: \t",
            "Content-Length: +5",
            "Content-Length: -0",
            "Content-Length: 5 5",
            "Content-Length: 0x5",
            "Content-Length: 5,6",
            "Content-Length: 5,",
            "Content-Length: 18446744073709551621",
            "Content-Length: 9223372036854775808",
            "Content-Length:\r\nContent-Length: 5",
            "Content-Length: 5\r\nContent-Length: 6",
            "Content-Length: five",
            "Content-Length: 1_0",
            "Content-Length: \u{a0}5",
        ],
        RequestError::BadContentLength,
    );
    refused_with(
        &[
            "Content-Length: 5, 5",
            "Content-Length: 5\r\nContent-Length: 5",
            "Content-Length: 5\r\ncontent-length: 05",
        ],
        RequestError::ContentLengthRepeated,
    );
    for (value, bytes) in
        [("0", 0), ("5", 5), ("00005", 5), (" 5 ", 5), ("9223372036854775807", i64::MAX.unsigned_abs())]
    {
        let (meta, head) = good(&format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {value}\r\n\r\n"));
        assert_eq!(meta.body, BodyLength::Exact(bytes), "{value}");
        assert!(head.fields.is_empty());
    }
}

#[test]
fn c03_transfer_encoding_is_chunked_or_an_error() {
    refused_with(
        &[
            "Transfer-Encoding: identity, chunked",
            "Transfer-Encoding: identity",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip",
            "Transfer-Encoding: chunked, gzip",
            "Transfer-Encoding: chunked, chunked",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: chunked;",
            "Transfer-Encoding: chunked;a=b",
            "Transfer-Encoding: \"chunked\"",
            "Transfer-Encoding: xchunked",
            "Transfer-Encoding: chunkedchunked",
            "Transfer-Encoding: chun ked",
            "Transfer-Encoding: chunked,",
            "Transfer-Encoding: ,chunked",
            "Transfer-Encoding:",
            "Transfer-Encoding: \u{a0}chunked",
            "Transfer-Encoding: gzip",
        ],
        RequestError::BadTransferEncoding,
    );
    refused_with(
        &["Transfer-Encoding: gzip, chunked", "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked"],
        RequestError::TransferCodingUnsupported,
    );
    refused_with(
        &["Transfer-Encoding: \x0bchunked", "Transfer-Encoding: chunked\x0c"],
        RequestError::BadFieldValue,
    );
    refused_with(&["Transfer_Encoding: chunked", "Content_Length: 5"], RequestError::BadFieldName);
    for value in ["chunked", "CHUNKED", "\tchunked", "chunked \t", "Chunked"] {
        let (meta, head) = good(&format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:{value}\r\n\r\n"));
        assert_eq!(meta.body, BodyLength::Streamed, "{value:?}");
        assert!(head.fields.is_empty());
    }
}

#[test]
fn c05_odd_header_lines_are_refused() {
    use RequestError::{BadFieldName, BadFieldValue, BareCr, BareLf, ObsFold};
    refused_with(
        &["X: 1\r\n\tTransfer-Encoding: chunked", "X: 1\r\n more", "X: 1\r\n \t", " X: 1", "\tX: 1"],
        ObsFold,
    );
    refused_with(&["Transfer-Encoding\r\n : chunked", "X", "X\r\nY: 1"], BadFieldName);
    refused_with(
        &[
            "Transfer-Encoding : chunked",
            "X\t: 1",
            ":",
            ": 1",
            ":\r\nContent-Length: 27",
            "X\0: 1",
            "X\u{e9}: 1",
            "X Y: 1",
            "X\x7f: 1",
        ],
        BadFieldName,
    );
    refused_with(&["X: a\0b", "X: a\x07b", "X: \x7f", "X: a\x1b[2J", "X:\x0c"], BadFieldValue);
    refused_with(&["X: a\rb", "X\r: 1", "X: 1\r\r", "\rX: 1"], BareCr);
    refused_with(&["X: a\nTransfer-Encoding: chunked", "X:\n", "\nX: 1", "X: 1\n"], BareLf);
}

#[test]
fn bare_line_ends_are_refused_in_every_line() {
    let whole =
        "GET / HTTP/1.1\r\nHost: a\r\nX: 0123456789012345678901234567890123456789012345678901234\r\n\r\n";
    good(whole);
    for (at, _) in whole.match_indices("\r\n") {
        let mut without_cr = whole.to_owned();
        without_cr.remove(at);
        assert_eq!(parse(without_cr.as_bytes()).map(|_| ()), Err(RequestError::BareLf), "CR gone at {at}");
        // Where only the last LF is gone, the head is not whole.
        let mut without_lf = whole.to_owned();
        without_lf.remove(at + 1);
        let want = if at + 2 == whole.len() { Ok(()) } else { Err(RequestError::BareCr) };
        assert_eq!(parse(without_lf.as_bytes()).map(|m| assert!(m.is_none())), want, "LF gone at {at}");
    }
}

#[test]
fn an_empty_line_before_the_request_is_tolerated_once() {
    let (meta, head) = good("\r\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((meta.head_bytes, head.path()), (30, &b"/x"[..]));
    for (text, want) in [
        ("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", RequestError::BadMethod),
        ("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", RequestError::BareLf),
        ("\r\n\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", RequestError::BareLf),
        ("\rGET / HTTP/1.1\r\nHost: a\r\n\r\n", RequestError::BareCr),
    ] {
        assert_eq!(parse(text.as_bytes()).map(|_| ()), Err(want), "{text:?}");
    }
}

#[test]
fn c08_expect_counts_in_any_case_but_not_from_http_1_0() {
    for value in ["100-continue", "100-CONTINUE", "100-Continue"] {
        let fields = format!("Host: a\r\nExpect: {value}\r\nContent-Length: 9\r\n\r\n");
        let (meta, head) = good(&format!("POST / HTTP/1.1\r\n{fields}"));
        assert!(meta.expects_continue && head.fields.contains(FieldId::Expect), "{value}");
        let (meta, head) = good(&format!("POST / HTTP/1.0\r\n{fields}"));
        assert!(!meta.expects_continue && head.fields.is_empty(), "{value}");
    }
    assert!(!good("POST / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\n\r\n").0.expects_continue);
}

#[test]
fn c11_targets_have_the_form_that_their_method_allows() {
    line_refused_with(
        &["CONNECT a.example:443 HTTP/1.1", "CONNECT / HTTP/1.1", "CONNECT * HTTP/1.0"],
        RequestError::ConnectUnsupported,
    );
    line_refused_with(
        &[
            "GET a.example:80 HTTP/1.1",
            "GET admin HTTP/1.1",
            "GET * HTTP/1.1",
            "OPTIONS ** HTTP/1.1",
            "OPTIONS *? HTTP/1.1",
            "GET ?q HTTP/1.1",
            "GET ftp://a.example/ HTTP/1.1",
            "GET http:/a.example/ HTTP/1.1",
            "GET http:a.example HTTP/1.1",
            "GET //a.example:80#x HTTP/1.1",
            "GET /a#b HTTP/1.1",
            "GET /a?b#c HTTP/1.1",
            "GET http://a.example#b HTTP/1.1",
            "GET http://a.example/?q#b HTTP/1.1",
            "GET /a b HTTP/1.1",
            "GET  / HTTP/1.1",
            "GET /  HTTP/1.1",
            "GET /\u{e9} HTTP/1.1",
            "GET /0123456789abcdef0123456789abcde\u{e9} HTTP/1.1",
            "GET /a\tb HTTP/1.1",
            "GET  HTTP/1.1",
        ],
        RequestError::BadTarget,
    );
    line_refused_with(&["GET / HTTP/1.1 ", "GET / ", "GET /", "GET / HTTP/1.1\t"], RequestError::BadVersion);
    line_refused_with(
        &[
            "get / HTTP/1.1",
            "Get / HTTP/1.1",
            "G@T / HTTP/1.1",
            " / HTTP/1.1",
            "GET\t/ HTTP/1.1",
            "GET",
            "",
            "GET: / HTTP/1.1",
            "x-y / HTTP/1.1",
        ],
        RequestError::BadMethod,
    );
    line_refused_with(
        &["GET /\x7f HTTP/1.1", "GET\0 / HTTP/1.1", "\x16\x03\x01 / HTTP/1.1"],
        RequestError::BadRequestLine,
    );
}

#[test]
fn targets_are_split_and_not_touched() {
    for (target, path, query) in [
        ("/", "/", None),
        ("/?", "/", Some("")),
        ("/a/../b//c%2f?x=/?&y", "/a/../b//c%2f", Some("x=/?&y")),
        ("//a.example/x", "//a.example/x", None),
        ("/\"<>\\^`{|}", "/\"<>\\^`{|}", None),
        ("/0123456789abcdef?0123456789abcdef", "/0123456789abcdef", Some("0123456789abcdef")),
        ("http://a.example", "/", None),
        ("HTTP://A.example?q", "/", Some("q")),
        ("http://a.example/p?q", "/p", Some("q")),
        ("http://a.example:80/p", "/p", None),
    ] {
        let (_, head) = good(&format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n\r\n"));
        assert_eq!((head.path(), head.query()), (path.as_bytes(), query.map(str::as_bytes)), "{target}");
    }
    for target in ["*", "http://a.example"] {
        let (_, head) = good(&format!("OPTIONS {target} HTTP/1.1\r\nHost: a.example\r\n\r\n"));
        assert_eq!(head.path(), b"*", "{target}");
    }
    for method in ["GET", "HEAD", "PURGE", "M-SEARCH", "-X", "A", "PROPPATCHPROPPATCH", "V1"] {
        let (_, head) = good(&format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(head.method_token(), method.as_bytes());
    }
}

#[test]
fn c13_versions_and_what_they_imply() {
    line_refused_with(
        &[
            "GET / RTSP/1.0",
            "GET / ICE/1.0",
            "GET / HTTP/01.1",
            "GET / HTTP/1.01",
            "GET / http/1.1",
            "GET / HTTP/1",
            "GET / HTTP1.1",
            "GET / HTTP/a.1",
        ],
        RequestError::BadVersion,
    );
    line_refused_with(
        &["GET / HTTP/2.0", "GET / HTTP/0.9", "GET / HTTP/5.6", "PRI * HTTP/2.0"],
        RequestError::VersionUnsupported,
    );
    for version in ["HTTP/1.1", "HTTP/1.2", "HTTP/1.9"] {
        let (meta, head) = good(&format!("GET / {version}\r\nHost: a\r\n\r\n"));
        assert_eq!((head.version, meta.persistence), (Version::Http11, Persistence::KeepAlive), "{version}");
    }
    let (meta, head) = good("GET / HTTP/1.0\r\n\r\n");
    assert_eq!((head.version, meta.persistence), (Version::Http10, Persistence::Close));
    assert_eq!((meta.body, head.authority()), (BodyLength::Empty, &b""[..]));
    let (meta, _) = good("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n");
    assert_eq!(meta.persistence, Persistence::KeepAlive);
    for fields in [
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 3",
        "Transfer-Encoding: x",
    ] {
        let text = format!("POST / HTTP/1.0\r\n{fields}\r\n\r\n");
        assert_eq!(parse(text.as_bytes()).map(|_| ()), Err(RequestError::TransferEncodingInHttp10), "{text}");
    }
    let (_, head) = good("GET / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_eq!(head.protocol(), None);
}

#[test]
fn c14_nominated_fields_go_and_protected_ones_stay() {
    let (meta, head) = good(
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: close, x-forwarded-FOR, X-Real-Ip, Authorization, Host, Content-Length\r\n\
         X-Forwarded-For: 1.1.1.1\r\nx-real-ip: 2.2.2.2\r\nAuthorization: b\r\nContent-Length: 3\r\nX-Keep: k\r\n\r\n",
    );
    assert_eq!(names(&head), ["authorization", "x-keep"]);
    assert_eq!(
        (meta.body, meta.persistence, head.authority()),
        (BodyLength::Exact(3), Persistence::Close, &b"a"[..])
    );
    // Several lines, any order, blanks and empty elements.
    let (_, head) = good(
        "GET / HTTP/1.1\r\nX-A: 1\r\nConnection: x-a\r\nHost: a\r\nCONNECTION:\t,X-B ,\r\nconnection: x-c,x-d\r\n\
         X-B: 1\r\nX-b: 2\r\nX-C: 3\r\nX-E: 4\r\nX-AA: 5\r\n\r\n",
    );
    assert_eq!(names(&head), ["x-e", "x-aa"]);
    for (options, is_good) in [(CONNECTION_OPTIONS_MAX, true), (CONNECTION_OPTIONS_MAX + 1, false)] {
        let text =
            format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: {}\r\n\r\n", vec!["x"; options].join(","));
        let want = if is_good { Ok(()) } else { Err(RequestError::TooManyConnectionOptions) };
        assert_eq!(parse(text.as_bytes()).map(|_| ()), want);
    }
}

#[test]
fn hop_by_hop_fields_never_stay() {
    let (meta, head) = good(
        "GET / HTTP/1.1\r\nHost: a\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nTE: gzip, Trailers\r\n\
         Proxy-Authorization: x\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\nConnection: upgrade, http2-settings, te\r\n\
         Trailer: x\r\nAccept: b\r\n\r\n",
    );
    assert_eq!(names(&head), ["trailer", "accept"]);
    assert!(meta.te_trailers);
    assert_eq!(head.protocol(), None);
}

#[test]
fn upgrades_are_the_head_s_protocol_unless_there_is_a_body() {
    let fields = "Host: a\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Key: x\r\n";
    let (_, head) = good(&format!("GET / HTTP/1.1\r\n{fields}\r\n"));
    assert_eq!(head.protocol(), Some(&b"websocket"[..]));
    assert_eq!(names(&head), ["sec-websocket-key"]);
    for length in ["Content-Length: 3", "Transfer-Encoding: chunked"] {
        let (_, head) = good(&format!("POST / HTTP/1.1\r\n{fields}{length}\r\n\r\n"));
        assert_eq!(head.protocol(), None, "{length}");
    }
}

#[test]
fn c15_one_host_and_no_other() {
    for (fields, want) in [
        ("", RequestError::HostMissing),
        ("Host: a\r\nHost: b\r\n", RequestError::HostRepeated),
        ("Host: a\r\nHost: a\r\n", RequestError::HostRepeated),
        ("Host:\r\n", RequestError::BadHost),
        ("Host: a@b\r\n", RequestError::BadHost),
        ("Host: a b\r\n", RequestError::BadHost),
        ("Host: a,b\r\n", RequestError::BadHost),
        ("Host: a/b\r\n", RequestError::BadHost),
        ("Host: a:b\r\n", RequestError::BadHost),
        ("Host: a:80:90\r\n", RequestError::BadHost),
        ("Host: [::1\r\n", RequestError::BadHost),
    ] {
        let text = format!("GET / HTTP/1.1\r\nX: y\r\n{fields}\r\n");
        assert_eq!(parse(text.as_bytes()).map(|_| ()), Err(want), "{text:?}");
    }
    for (target, host, want) in [
        ("http://a.example/", "b.example", Err(RequestError::HostConflict)),
        ("http://a.example:8080/", "a.example", Err(RequestError::HostConflict)),
        ("https://a.example/", "a.example:80", Err(RequestError::HostConflict)),
        ("http://a.example/", "a.example@b", Err(RequestError::BadHost)),
        ("http://u:p@a.example/", "a.example", Err(RequestError::BadHost)),
        ("http:///x", "a.example", Err(RequestError::BadHost)),
        ("http://a.example/", "A.EXAMPLE:80", Ok("a.example")),
        ("http://A.example:80/", "a.example", Ok("a.example:80")),
        ("https://a.example:443/", "a.example", Ok("a.example:443")),
        ("http://[::1]:8080/", "[::1]:8080", Ok("[::1]:8080")),
        ("/", "A.Example \t", Ok("a.example")),
    ] {
        let text = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let got = parse(text.as_bytes()).map(|parsed| parsed.expect("a whole head").1.authority().to_vec());
        assert_eq!(got, want.map(|authority| authority.as_bytes().to_vec()), "{text:?}");
    }
    // A host that was good before does not make the next one good.
    let mut head = RequestHead::default();
    for (host, is_good) in
        [("a", true), ("a", true), ("a b", false), ("a b", false), ("b", true), ("a", true)]
    {
        let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(
            parse_request(text.as_bytes(), &LIMITS, Scheme::Http, &mut head).is_ok(),
            is_good,
            "{host}"
        );
    }
}

#[test]
fn c17_limits_hold_before_and_after_the_end_has_arrived() {
    let line = |bytes: usize| format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "p".repeat(bytes - 14));
    assert!(parse(line(LIMITS.request_line_bytes_max).as_bytes()).is_ok_and(|m| m.is_some()));
    for text in [line(LIMITS.request_line_bytes_max + 1), format!("GET /{}", "p".repeat(300))] {
        assert_eq!(parse(text.as_bytes()).map(|_| ()), Err(RequestError::RequestLineTooLong));
    }
    let head = |bytes: usize| format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "v".repeat(bytes - 32));
    assert!(parse(head(LIMITS.head_bytes_max).as_bytes()).is_ok_and(|m| m.is_some()));
    for text in [head(LIMITS.head_bytes_max + 1), format!("GET / HTTP/1.1\r\nX: {}", "v".repeat(1000))] {
        assert_eq!(parse(text.as_bytes()).map(|_| ()), Err(RequestError::HeadTooLarge));
    }
    let fields = |count: usize, end: &str| {
        format!("GET / HTTP/1.1\r\nHost: a\r\n{}{end}", "A: b\r\n".repeat(count - 1))
    };
    assert!(parse(fields(LIMITS.fields_max, "\r\n").as_bytes()).is_ok_and(|m| m.is_some()));
    for end in ["\r\n", ""] {
        assert_eq!(
            parse(fields(LIMITS.fields_max + 1, end).as_bytes()).map(|_| ()),
            Err(RequestError::TooManyFields)
        );
    }
    assert_eq!((RequestError::RequestLineTooLong.status(), RequestError::TooManyFields.status()), (414, 431));
    // A body behind the head counts for nothing.
    let with_body = format!("{}{}", head(LIMITS.head_bytes_max), "\0\n\r".repeat(5000));
    assert!(
        parse(with_body.as_bytes())
            .is_ok_and(|m| m.is_some_and(|(meta, _)| meta.head_bytes == LIMITS.head_bytes_max))
    );
}

#[test]
fn a_refused_or_incomplete_head_has_no_fields() {
    let mut head = RequestHead::default();
    for text in [
        "GET /p HTTP/1.1\r\nHost: a\r\nX: y\r\n",
        "GET /p HTTP/1.1\r\nX: y\r\n Z\r\n\r\n",
        "GET /p HTTP/1.1\r\nX: y\r\n\n",
    ] {
        assert!(!matches!(parse_request(text.as_bytes(), &LIMITS, Scheme::Http, &mut head), Ok(Some(_))));
        assert_eq!((head.fields.len(), head.path()), (0, &b"/p"[..]), "{text:?}");
    }
}

#[test]
fn two_content_types_are_two_meanings() {
    refused_with(
        &["Content-Type: a/b\r\nContent-Type: c/d", "content-type: a/b\r\nContent-Type: a/b"],
        RequestError::ContentTypeRepeated,
    );
}

const MESSAGES: [&str; 6] = [
    "GET /a?b HTTP/1.1\r\nHost: a.example\r\nUser-Agent: x\r\nAccept: */*\r\n\r\n",
    "\r\nPOST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\nX-Odd:\tblank \r\nContent-Type: t/t\r\n\r\nhello world",
    "POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: x-y, close\r\nX-Y: z\r\n\r\n5;a=b\r\nhello\r\n0\r\nX-T: 1\r\n\r\n",
    "GET http://[2001:db8::1]:8080/ HTTP/1.1\r\nHost: [2001:DB8::1]:8080\r\nx-0123456789-0123456789-0123456789: v\r\n\r\n",
    "OPTIONS * HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    "GET / HTTP/1.7\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: foo\r\n\r\n",
];

/// Everything that a parse says about a message.
fn told(meta: RequestMeta, head: &RequestHead) -> String {
    let fields: Vec<_> = head
        .fields
        .iter()
        .map(|f| (String::from_utf8_lossy(f.name), String::from_utf8_lossy(f.value)))
        .collect();
    format!(
        "{meta:?} {:?} {:?} {:?} {:?} {:?} {fields:?}",
        head.method_token(),
        head.authority(),
        head.path(),
        head.query(),
        head.protocol()
    )
}

#[test]
fn every_prefix_is_incomplete_and_what_follows_changes_nothing() {
    for text in MESSAGES {
        let (meta, head) = good(text);
        let whole = told(meta, &head);
        for end in 0..meta.head_bytes {
            assert_eq!(
                parse(&text.as_bytes()[..end]).map(|m| m.is_none()),
                Ok(true),
                "{text:?} cut at {end}"
            );
        }
        for behind in ["", "G", "\0\0\0\0", "\n\n\n", "\r\n\r\n", MESSAGES[0]] {
            let mut longer = text.as_bytes()[..meta.head_bytes].to_vec();
            longer.extend_from_slice(behind.as_bytes());
            let (meta, head) = parse(&longer).expect("as good as before").expect("as whole as before");
            assert_eq!(told(meta, &head), whole);
        }
    }
}

#[test]
fn a_used_head_gives_what_a_fresh_one_gives_and_allocates_nothing_new() {
    let mut used = RequestHead::default();
    let mut warm = None;
    for round in 0..50 {
        for text in MESSAGES {
            let meta = parse_request(text.as_bytes(), &LIMITS, Scheme::Http, &mut used)
                .expect("good")
                .expect("whole");
            let (fresh_meta, fresh) = good(text);
            assert_eq!(told(meta, &used), told(fresh_meta, &fresh));
        }
        if round == 1 {
            warm = Some(used.capacities());
        }
    }
    assert_eq!(Some(used.capacities()), warm);
}

/// Whatever the bytes, the parser gives an answer, and an accepted head comes out of our writer as a head that
/// parses to the same.
#[test]
fn mutated_messages_are_refused_or_unambiguous() {
    let mut random = Random::new(0x0dd5_eed5);
    let pieces: [&[u8]; 16] = [
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b" ",
        b"\t",
        b":",
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Host: b\r\n",
        b",",
        b"chunked",
        b"\x7f",
        b"\xff",
        b"HTTP/1.1",
        b"Connection: host, x\r\n",
    ];
    let mut accepted = 0;
    for _ in 0..30_000 {
        let mut text = MESSAGES[random.below(MESSAGES.len())].as_bytes().to_vec();
        for _ in 0..=random.below(3) {
            let at = random.below(text.len() + 1);
            let cut = random.below(3).min(text.len() - at);
            let piece = pieces[random.below(pieces.len())];
            text.splice(
                at..at + cut,
                piece.iter().copied().take(if random.below(3) == 0 { 0 } else { piece.len() }),
            );
        }
        let Ok(Some((meta, head))) = parse(&text) else {
            continue;
        };
        accepted += 1;
        let context = format!("{:?} ({random:?})", String::from_utf8_lossy(&text));
        for field in head.fields.iter() {
            assert!(!FieldSet::WRITTEN_BY_CODEC.has(field.id), "{context}");
        }
        let framing = super::super::RequestFraming {
            body: meta.body,
            persistence: meta.persistence,
            te_trailers: false,
        };
        let mut wire = Vec::new();
        super::super::write_request_head(&mut wire, &head, framing)
            .unwrap_or_else(|e| panic!("{e} {context}"));
        if head.authority().is_empty() {
            continue;
        }
        let (again_meta, again) =
            parse(&wire).unwrap_or_else(|e| panic!("{e} {context}")).expect("our own head is whole");
        assert!(head.fields.iter().eq(again.fields.iter()), "{context}");
        assert_eq!(
            (head.path(), head.query(), head.authority()),
            (again.path(), again.query(), again.authority()),
            "{context}"
        );
        assert_eq!(again_meta.head_bytes, wire.len(), "{context}");
        if meta.body != BodyLength::Empty {
            assert_eq!(again_meta.body, meta.body, "{context}");
        }
        let mut body = BodyDecoder::new(meta.body, LIMITS);
        if let Ok(Decoded::Data { skip, len }) = body.decode(&text[meta.head_bytes..]) {
            assert!(skip + len <= text.len() - meta.head_bytes, "{context}");
        }
    }
    assert!(accepted > 3000, "only {accepted} of the mutated messages were still good");
}
