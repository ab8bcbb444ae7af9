//! Response heads by family, and how their bodies end.

use super::*;
use crate::fields::FieldId;

const LIMITS: HeadLimits = HeadLimits { request_line_bytes_max: 200, head_bytes_max: 1000, fields_max: 40 };

fn parse(text: &[u8], method: Method) -> Result<Option<(ResponseMeta, ResponseHead)>, ResponseError> {
    let mut head = ResponseHead::default();
    Ok(parse_response(text, &LIMITS, method, &mut head)?.map(|meta| (meta, head)))
}

fn good_to(method: Method, text: &str) -> (ResponseMeta, ResponseHead) {
    let parsed = parse(text.as_bytes(), method).unwrap_or_else(|error| panic!("{text:?}: {error}"));
    parsed.unwrap_or_else(|| panic!("{text:?} is not whole"))
}

fn good(text: &str) -> (ResponseMeta, ResponseHead) {
    good_to(Method::Get, text)
}

fn refused_with(fields: &[&str], want: ResponseError) {
    for field in fields {
        for method in [Method::Get, Method::Head] {
            let text = format!("HTTP/1.1 200 OK\r\nDate: x\r\n{field}\r\nServer: y\r\n\r\n");
            assert_eq!(parse(text.as_bytes(), method).map(|_| ()), Err(want), "{text:?}");
        }
    }
}

#[test]
fn status_lines() {
    for (line, version, status) in [
        ("HTTP/1.1 200 OK", Version::Http11, 200),
        ("HTTP/1.1 200", Version::Http11, 200),
        ("HTTP/1.1 200 ", Version::Http11, 200),
        ("HTTP/1.0 404 Not  Found\t\u{e9}", Version::Http10, 404),
        ("HTTP/1.7 999 x", Version::Http11, 999),
        ("HTTP/1.1 100 Continue", Version::Http11, 100),
    ] {
        let (_, head) = good(&format!("{line}\r\n\r\n"));
        assert_eq!((head.version, head.status), (version, status), "{line}");
    }
    for line in [
        "",
        "HTTP/1.1",
        "HTTP/1.1 ",
        "HTTP/1.1  200 OK",
        "HTTP/1.1 20 OK",
        "HTTP/1.1 2000 OK",
        "HTTP/1.1 099 x",
        "HTTP/1.1 200OK",
        "HTTP/1.1 -20 x",
        "HTTP/2.0 200 OK",
        "HTTP/2 200",
        "HTTP/01.1 200 OK",
        "ICY 200 OK",
        "http/1.1 200 OK",
        " HTTP/1.1 200 OK",
        "HTTP/1.1 200\tOK",
        "HTTP/1.1 200 O\0K",
        "okHTTP/1.1 200 OK",
    ] {
        let text = format!("{line}\r\nContent-Length: 2\r\n\r\n");
        assert_eq!(
            parse(text.as_bytes(), Method::Get).map(|_| ()),
            Err(ResponseError::BadStatusLine),
            "{text:?}"
        );
    }
}

#[test]
fn c01_both_lengths_are_repaired_once_and_the_connection_is_not_used_again() {
    for fields in
        ["Content-Length: 3\r\nTransfer-Encoding: chunked", "Transfer-Encoding: CHUNKED\r\nContent-Length: 3"]
    {
        let (meta, head) = good(&format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n"));
        assert_eq!((meta.body, meta.persistence), (BodyLength::Streamed, Persistence::Close), "{fields}");
        assert!(head.fields.is_empty());
    }
}

#[test]
fn c02_c03_lengths_and_codings() {
    refused_with(
        &[
            "Content-Length:",
            "Content-Length: +5",
            "Content-Length: 5, 6",
            "Content-Length: 5\r\nContent-Length: 6",
            "Content-Length: 0x5",
            "Content-Length: 5 5",
            "Content-Length: 18446744073709551621",
        ],
        ResponseError::BadContentLength,
    );
    for value in [
        "gzip",
        "gzip, chunked",
        "identity",
        "identity, chunked",
        "chunked, chunked",
        "chunked, gzip",
        "chunked;a",
        "",
    ] {
        let text = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: {value}\r\n\r\n");
        assert_eq!(
            parse(text.as_bytes(), Method::Get).map(|_| ()),
            Err(ResponseError::BadTransferEncoding),
            "{value}"
        );
    }
    for fields in ["Content-Length: 5", "Content-Length: 5, 5", "Content-Length: 5\r\ncontent-length:\t005 "]
    {
        assert_eq!(
            good(&format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n")).0.body,
            BodyLength::Exact(5),
            "{fields}"
        );
    }
}

#[test]
fn c04_c05_odd_lines_are_refused() {
    refused_with(&["X: 1\r\n folded", "\tX: 1"], ResponseError::ObsFold);
    refused_with(&["X : 1", ": 1", "X", "Content_Length: 5"], ResponseError::BadFieldName);
    refused_with(&["X: \0", "X: \x7f"], ResponseError::BadFieldValue);
    refused_with(&["X: 1\nY: 2", "\nX: 1"], ResponseError::BareLf);
    refused_with(&["X: 1\rY: 2"], ResponseError::BareCr);
}

#[test]
fn c06_bytes_before_a_response_are_no_empty_lines() {
    for text in ["\r\nHTTP/1.1 200 OK\r\n\r\n", "\nHTTP/1.1 200 OK\r\n\r\n", "\r\n"] {
        assert!(parse(text.as_bytes(), Method::Get).is_err(), "{text:?}");
    }
}

#[test]
fn c08_interim_heads_have_no_body_whatever_they_say() {
    for fields in [
        "",
        "Content-Length: 42\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
    ] {
        for status in [100, 102, 103, 204] {
            let (meta, head) = good(&format!("HTTP/1.1 {status} x\r\n{fields}Link: a\r\n\r\n"));
            assert_eq!((meta.body, meta.declared_length), (BodyLength::Empty, None), "{status} {fields}");
            assert_eq!(head.fields.len(), 1);
            assert_eq!(head.is_interim(), status != 204);
        }
    }
}

#[test]
fn c09_answers_without_a_body_keep_their_announced_length() {
    for (method, status) in
        [(Method::Head, 200), (Method::Head, 404), (Method::Get, 304), (Method::Head, 304)]
    {
        for (field, declared) in
            [("Content-Length: 1234\r\n", Some(1234)), ("Transfer-Encoding: chunked\r\n", None), ("", None)]
        {
            let (meta, head) = good_to(method, &format!("HTTP/1.1 {status} x\r\n{field}\r\n"));
            assert_eq!(
                (meta.body, meta.declared_length),
                (BodyLength::Empty, declared),
                "{method:?} {status} {field}"
            );
            assert_eq!(meta.persistence, Persistence::KeepAlive);
            assert!(
                !head.fields.contains(FieldId::ContentLength)
                    && !head.fields.contains(FieldId::TransferEncoding)
            );
        }
    }
}

#[test]
fn c13_c25_versions_persistence_and_bodies_until_close() {
    use Persistence::{Close, KeepAlive};
    for (text, body, persistence) in [
        ("HTTP/1.1 200 OK\r\n\r\n", BodyLength::UntilClose, Close),
        ("HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n\r\n", BodyLength::UntilClose, Close),
        ("HTTP/1.0 200 OK\r\n\r\n", BodyLength::UntilClose, Close),
        ("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n", BodyLength::Exact(2), Close),
        (
            "HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: Keep-Alive\r\n\r\n",
            BodyLength::Exact(2),
            KeepAlive,
        ),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", BodyLength::Exact(2), KeepAlive),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", BodyLength::Exact(0), Close),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: x, Close\r\n\r\n",
            BodyLength::Streamed,
            Close,
        ),
    ] {
        let (meta, _) = good(text);
        assert_eq!((meta.body, meta.persistence), (body, persistence), "{text:?}");
    }
    let text = b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(parse(text, Method::Get).map(|_| ()), Err(ResponseError::TransferEncodingInHttp10));
}

#[test]
fn c14_hop_by_hop_and_nominated_fields_go() {
    let (_, head) = good(
        "HTTP/1.1 200 OK\r\nConnection: x-hop, Set-Cookie, close\r\nKeep-Alive: timeout=5\r\nUpgrade: h2\r\nProxy-Connection: x\r\n\
         Proxy-Authenticate: x\r\nX-Hop: 1\r\nSet-Cookie: a=b\r\nTrailer: t\r\nContent-Length: 0\r\n\r\n",
    );
    let names: Vec<_> = head.fields.iter().map(|f| f.name).collect();
    assert_eq!(names, [&b"set-cookie"[..], b"trailer"]);
    let text = format!("HTTP/1.1 200 OK\r\nConnection: {}\r\n\r\n", ["x"; 33].join(","));
    assert_eq!(parse(text.as_bytes(), Method::Get).map(|_| ()), Err(ResponseError::TooManyConnectionOptions));
}

#[test]
fn a_101_names_its_protocol_or_is_no_101() {
    let (meta, head) = good(
        "HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Accept: k\r\n\r\nHELLO",
    );
    assert_eq!((head.protocol(), meta.body), (Some(&b"websocket"[..]), BodyLength::Empty));
    assert_eq!(head.fields.len(), 1);
    for fields in
        ["", "Upgrade: websocket\r\n", "Connection: upgrade\r\n", "Connection: upgrade\r\nUpgrade: h2c\r\n"]
    {
        let text = format!("HTTP/1.1 101 x\r\n{fields}\r\n");
        assert_eq!(
            parse(text.as_bytes(), Method::Get).map(|_| ()),
            Err(ResponseError::BadUpgrade),
            "{fields}"
        );
    }
    assert_eq!(
        good("HTTP/1.1 200 OK\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n").1.protocol(),
        None
    );
}

#[test]
fn c17_limits_and_prefixes() {
    let head = |bytes: usize| format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "v".repeat(bytes - 24));
    let whole = head(LIMITS.head_bytes_max);
    assert!(parse(whole.as_bytes(), Method::Get).is_ok_and(|m| m.is_some()));
    for text in [head(LIMITS.head_bytes_max + 1), whole[..800].replace("\r\n", "") + &whole, "H".repeat(300)]
    {
        let got = parse(text.as_bytes(), Method::Get).map(|_| ());
        assert_eq!(got, Err(ResponseError::HeadTooLarge), "{text:?}");
    }
    let fields = format!("HTTP/1.1 200 OK\r\n{}", "A: b\r\n".repeat(LIMITS.fields_max + 1));
    assert_eq!(parse(fields.as_bytes(), Method::Get).map(|_| ()), Err(ResponseError::TooManyFields));
    for text in [
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.0 200\r\nContent-Length: 5\r\nX:y\r\n\r\nhello",
        "HTTP/1.3 204 x\r\nA: b\r\n\r\n",
    ] {
        let (meta, _) = good(text);
        for end in 0..meta.head_bytes {
            assert_eq!(
                parse(&text.as_bytes()[..end], Method::Get).map(|m| m.is_none()),
                Ok(true),
                "{text:?} cut at {end}"
            );
        }
    }
}
