//! What goes on the wire, by family.

use super::super::{BodyDecoder, Decoded, HeadLimits, parse_request, parse_response};
use super::*;
use crate::fields::FieldId;
use crate::head::Scheme;

fn request(method: &str, path: &str, query: Option<&str>, authority: &str) -> RequestHead {
    let mut head = RequestHead::default();
    head.set_method(method.as_bytes()).expect("a token");
    head.set_path(path.as_bytes()).expect("short");
    head.set_query(query.map(str::as_bytes)).expect("short");
    head.set_authority(authority.as_bytes()).expect("short");
    head
}

const PLAIN: RequestFraming =
    RequestFraming { body: BodyLength::Empty, persistence: Persistence::KeepAlive, te_trailers: false };

fn request_text(head: &RequestHead, framing: RequestFraming) -> Result<String, WriteError> {
    let mut out = b"before".to_vec();
    let result = write_request_head(&mut out, head, framing);
    let text = String::from_utf8(out.split_off("before".len())).expect("test heads are text");
    if result.is_err() {
        assert!(text.is_empty(), "something was written before the error");
    }
    result.map(|()| text)
}

#[test]
fn requests_say_their_length_in_one_way() {
    for (method, body, want) in [
        ("GET", BodyLength::Empty, ""),
        ("DELETE", BodyLength::Empty, ""),
        ("POST", BodyLength::Empty, "content-length: 0\r\n"),
        ("PUT", BodyLength::Empty, "content-length: 0\r\n"),
        ("PATCH", BodyLength::Empty, "content-length: 0\r\n"),
        ("GET", BodyLength::Exact(0), "content-length: 0\r\n"),
        ("POST", BodyLength::Exact(1_234_567_890_123), "content-length: 1234567890123\r\n"),
        ("POST", BodyLength::Exact(u64::MAX), "content-length: 18446744073709551615\r\n"),
        ("GET", BodyLength::Streamed, "transfer-encoding: chunked\r\n"),
    ] {
        let head = request(method, "/", None, "a");
        let got = request_text(&head, RequestFraming { body, ..PLAIN });
        assert_eq!(got, Ok(format!("{method} / HTTP/1.1\r\nhost: a\r\n{want}\r\n")));
    }
    let head = request("POST", "/", None, "a");
    assert_eq!(
        request_text(&head, RequestFraming { body: BodyLength::UntilClose, ..PLAIN }),
        Err(WriteError::BodyUntilClose)
    );
}

#[test]
fn connection_options_share_one_line() {
    let mut head = request("GET", "/x", Some("y=z"), "a.example:81");
    head.fields.push_name(b"Accept", b"*/*").expect("good");
    let start = "GET /x?y=z HTTP/1.1\r\nhost: a.example:81\r\naccept: */*\r\n";
    for (persistence, te_trailers, want) in [
        (Persistence::KeepAlive, false, ""),
        (Persistence::Close, false, "connection: close\r\n"),
        (Persistence::KeepAlive, true, "te: trailers\r\nconnection: te\r\n"),
        (Persistence::Close, true, "te: trailers\r\nconnection: close, te\r\n"),
    ] {
        assert_eq!(
            request_text(&head, RequestFraming { persistence, te_trailers, ..PLAIN }),
            Ok(format!("{start}{want}\r\n"))
        );
    }
    head.set_protocol(b"websocket").expect("a token");
    for (te_trailers, want) in [
        (false, "connection: upgrade\r\nupgrade: websocket\r\n"),
        (true, "te: trailers\r\nconnection: te, upgrade\r\nupgrade: websocket\r\n"),
    ] {
        assert_eq!(
            request_text(&head, RequestFraming { te_trailers, ..PLAIN }),
            Ok(format!("{start}{want}\r\n"))
        );
    }
}

#[test]
fn c21_what_would_end_a_line_or_a_word_is_not_written() {
    use WriteError::{BadAuthority, BadMethod, BadTarget};
    for (method, path, query, authority, want) in [
        ("CONNECT", "/", None, "a", BadMethod),
        ("GET", "", None, "a", BadTarget),
        ("GET", "x", None, "a", BadTarget),
        ("GET", "/x HTTP/1.1\r\nHost: e", None, "a", BadTarget),
        ("GET", "/ a", None, "a", BadTarget),
        ("GET", "/\0", None, "a", BadTarget),
        ("GET", "/\u{e9}", None, "a", BadTarget),
        ("GET", "/", Some("a b"), "a", BadTarget),
        ("GET", "/", Some("a\nb"), "a", BadTarget),
        ("OPTIONS", "*", Some(""), "a", BadTarget),
        ("OPTIONS", "**", None, "a", BadTarget),
        ("GET", "/", None, "a\r\nx: y", BadAuthority),
        ("GET", "/", None, "a b", BadAuthority),
        ("GET", "/", None, "a\tb", BadAuthority),
    ] {
        assert_eq!(
            request_text(&request(method, path, query, authority), PLAIN),
            Err(want),
            "{path:?} {query:?} {authority:?}"
        );
    }
    assert!(request_text(&request("OPTIONS", "*", None, "a"), PLAIN).is_ok());
    let mut unset = request("GET", "/", None, "a");
    unset.method = Method::Extension;
    assert_eq!(request_text(&unset, PLAIN), Err(BadMethod));
    for (status, protocol, want) in [
        (99, None, WriteError::BadStatus),
        (1000, None, WriteError::BadStatus),
        (101, None, WriteError::BadUpgrade),
    ] {
        assert_eq!(response_text(&response(status, protocol), FRAMING).map(|_| ()), Err(want));
    }
}

#[test]
fn framing_fields_from_policies_are_left_out() {
    let reserved = [
        FieldId::Connection,
        FieldId::ContentLength,
        FieldId::TransferEncoding,
        FieldId::Host,
        FieldId::KeepAlive,
        FieldId::Upgrade,
        FieldId::Te,
        FieldId::ProxyConnection,
        FieldId::ProxyAuthorization,
        FieldId::Http2Settings,
    ];
    let mut head = request("GET", "/", None, "a");
    let mut answer = response(200, None);
    for fields in [&mut head.fields, &mut answer.fields] {
        fields.push(FieldId::Via, b"1").expect("good");
        for id in reserved {
            fields.push(id, b"5").expect("good");
        }
        fields.push(FieldId::Date, b"2").expect("good");
    }
    assert_eq!(
        request_text(&head, PLAIN).as_deref(),
        Ok("GET / HTTP/1.1\r\nhost: a\r\nvia: 1\r\ndate: 2\r\n\r\n")
    );
    let (text, _) = response_text(&answer, FRAMING).expect("good");
    assert_eq!(text, "HTTP/1.1 200 OK\r\nvia: 1\r\ndate: 2\r\ncontent-length: 0\r\n\r\n");
}

fn response(status: u16, protocol: Option<&str>) -> ResponseHead {
    let mut head = ResponseHead::default();
    head.status = status;
    if let Some(protocol) = protocol {
        head.set_protocol(protocol.as_bytes()).expect("a token");
    }
    head
}

const FRAMING: ResponseFraming = ResponseFraming {
    body: BodyLength::Empty,
    declared_length: None,
    persistence: Persistence::KeepAlive,
    client_version: Version::Http11,
    request_method: Method::Get,
};

fn response_text(
    head: &ResponseHead,
    framing: ResponseFraming,
) -> Result<(String, SentResponse), WriteError> {
    let mut out = b"before".to_vec();
    let result = write_response_head(&mut out, head, framing);
    let text = String::from_utf8(out.split_off("before".len())).expect("test heads are text");
    if result.is_err() {
        assert!(text.is_empty(), "something was written before the error");
    }
    result.map(|sent| (text, sent))
}

#[test]
fn c09_c13_lengths_follow_status_method_and_version() {
    use BodyLength::{Empty, Exact, Streamed, UntilClose};
    const CHUNKED: &str = "transfer-encoding: chunked\r\n";
    const CLOSE: &str = "connection: close\r\n";
    const KEEP: &str = "connection: keep-alive\r\n";
    let (get, head, v10, v11) = (Method::Get, Method::Head, Version::Http10, Version::Http11);
    for (status, method, version, body, declared, want, sent) in [
        (200, get, v11, Exact(3), None, "content-length: 3\r\n", Exact(3)),
        (200, get, v11, Empty, None, "content-length: 0\r\n", Empty),
        (200, get, v11, Streamed, None, CHUNKED, Streamed),
        (200, get, v11, UntilClose, None, CHUNKED, Streamed),
        (200, get, v10, Exact(3), None, &format!("content-length: 3\r\n{KEEP}"), Exact(3)),
        (200, get, v10, Streamed, None, CLOSE, UntilClose),
        (200, get, v10, UntilClose, None, CLOSE, UntilClose),
        (200, head, v11, Empty, Some(1234), "content-length: 1234\r\n", Empty),
        (200, head, v11, Empty, None, "", Empty),
        (200, head, v11, Exact(7), None, "content-length: 7\r\n", Empty),
        (200, head, v11, Streamed, None, "", Empty),
        (304, get, v11, Empty, Some(1234), "content-length: 1234\r\n", Empty),
        (304, get, v11, Empty, None, "", Empty),
        (304, get, v11, Exact(5), None, "", Empty),
        (204, get, v11, Empty, Some(5), "", Empty),
        (204, get, v11, Streamed, None, "", Empty),
        (204, get, v11, Exact(5), None, "", Empty),
        (100, get, v11, Empty, Some(42), "", Empty),
        (103, get, v11, Streamed, None, "", Empty),
        (205, get, v11, Empty, None, "content-length: 0\r\n", Empty),
    ] {
        let framing = ResponseFraming {
            body,
            declared_length: declared,
            client_version: version,
            request_method: method,
            ..FRAMING
        };
        let (text, got) = response_text(&response(status, None), framing).expect("good");
        let fields = text.split_once("\r\n").expect("a status line").1;
        assert_eq!(fields, format!("{want}\r\n"), "{status} {method:?} {version:?} {body:?}");
        assert_eq!(got.body, sent, "{status} {method:?} {version:?} {body:?}");
        let must_close = sent == UntilClose;
        assert_eq!(got.persistence, if must_close { Persistence::Close } else { Persistence::KeepAlive });
        // A client of ours reads it the same way.
        let mut read = ResponseHead::default();
        let meta = parse_response(text.as_bytes(), &HeadLimits::default(), method, &mut read)
            .expect("good")
            .expect("whole");
        let agree = match (sent, meta.body) {
            (Empty, Exact(0)) => true,
            (sent, read) => sent == read,
        };
        assert!(agree, "{text:?} was read as {:?}", meta.body);
    }
    let closing = ResponseFraming { persistence: Persistence::Close, body: Exact(1), ..FRAMING };
    let (text, sent) = response_text(&response(599, None), closing).expect("good");
    assert_eq!(
        (&*text, sent.persistence),
        ("HTTP/1.1 599 \r\ncontent-length: 1\r\nconnection: close\r\n\r\n", Persistence::Close)
    );
    // An interim head says nothing about the connection.
    assert_eq!(
        response_text(&response(100, None), closing).expect("good").0,
        "HTTP/1.1 100 Continue\r\n\r\n"
    );
    let (text, _) = response_text(&response(101, Some("websocket")), FRAMING).expect("good");
    assert_eq!(text, "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n");
}

#[test]
fn chunks_come_back_as_they_were() {
    let mut trailers = Fields::new();
    for (name, value) in [("x-sum", "1"), ("content-length", "5"), ("host", "evil"), ("grpc-status", "0")] {
        trailers.push_name(name.as_bytes(), value.as_bytes()).expect("good");
    }
    for (given, want) in
        [(None, ""), (Some(&trailers), "x-sum: 1\r\ngrpc-status: 0\r\n"), (Some(&Fields::new()), "")]
    {
        let mut out = Vec::new();
        let mut data = Vec::new();
        for len in [1, 9, 15, 16, 17, 255, 256, 4096, 65_535, 65_536, 1_000_000] {
            write_chunk_header(&mut out, len);
            out.resize(out.len() + len, b'x');
            data.resize(data.len() + len, b'x');
            out.extend_from_slice(CHUNK_END);
        }
        write_last_chunk(&mut out, given);
        assert!(out.ends_with(format!("0\r\n{want}\r\n").as_bytes()));
        let mut decoder = BodyDecoder::new(BodyLength::Streamed, HeadLimits::default());
        let (mut rest, mut got) = (&out[..], 0);
        loop {
            match decoder.decode(rest).expect("our own chunks") {
                Decoded::Data { skip, len } => {
                    got += len;
                    rest = &rest[skip + len..];
                }
                Decoded::NeedMore { .. } => panic!("the body does not end"),
                Decoded::End { skip } => {
                    assert_eq!(skip, rest.len());
                    break;
                }
            }
        }
        assert_eq!(got, data.len());
        assert_eq!(decoder.trailers().map_or(0, Fields::len), want.matches("\r\n").count());
    }
}

#[test]
fn a_forwarded_head_keeps_its_fields_and_gains_what_was_pushed() {
    let text = "GET /a HTTP/1.1\r\nHost: A.example\r\nUser-Agent: x\r\nConnection: close, x-h\r\nX-H: 1\r\nX-Tight:1\r\nAccept: \t*/* \r\n\r\n";
    let mut head = RequestHead::default();
    parse_request(text.as_bytes(), &HeadLimits::default(), Scheme::Http, &mut head)
        .expect("good")
        .expect("whole");
    head.fields.set(FieldId::UserAgent, b"y").expect("good");
    head.fields.push(FieldId::XRequestId, b"id-1").expect("good");
    assert_eq!(
        request_text(&head, PLAIN).as_deref(),
        Ok(
            "GET /a HTTP/1.1\r\nhost: a.example\r\nx-tight:1\r\naccept: */*\r\nuser-agent: y\r\nx-request-id: id-1\r\n\r\n"
        )
    );
}
