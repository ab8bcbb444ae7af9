//! Request heads: the answer does not depend on how the bytes arrive, another parser sees the same head, and
//! what is written for the upstream means the same when it is parsed again.
//! Input: choice of limits, then what a client sends.

#![no_main]

use http_wire::fields::Fields;
use http_wire::h1::{HeadLimits, RequestFraming, RequestMeta, parse_request, write_request_head};
use http_wire::head::{BodyLength, RequestHead, Scheme, Version};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&choice, bytes)) = data.split_first() else {
        return;
    };
    let limits = match choice {
        0 => HeadLimits { request_line_bytes_max: 32, head_bytes_max: 128, fields_max: 4 },
        _ => HeadLimits::default(),
    };
    let scheme = if choice & 1 == 0 { Scheme::Http } else { Scheme::Https };
    let mut head = RequestHead::default();
    let parse = |bytes: &[u8], head: &mut RequestHead| parse_request(bytes, &limits, scheme, head);
    let Ok(parsed) = parse(bytes, &mut head) else {
        for more in [&b"\r\n"[..], b"\r\n\r\n", b" HTTP/1.1\r\nhost: a\r\n\r\n"] {
            assert!(parse(&[bytes, more].concat(), &mut head).is_err(), "more bytes make it good");
        }
        return;
    };
    let Some(meta) = parsed else {
        assert!(bytes.len() < limits.head_bytes_max + 2, "waits for ever");
        return;
    };
    assert!(meta.head_bytes <= bytes.len() && meta.head_bytes <= limits.head_bytes_max + 2);
    assert!(head.fields.len() <= limits.fields_max);
    let mut again = RequestHead::default();
    for cut in (0..meta.head_bytes).rev().take(200) {
        assert_eq!(parse(&bytes[..cut], &mut again), Ok(None), "good, but refused when cut at {cut}");
    }
    assert_eq!(parse(&bytes[..meta.head_bytes], &mut again), Ok(Some(meta)), "looks at what follows");
    same_meaning(&head, &again);
    compare_with_httparse(bytes, &meta, &head);
    // HTTP/1.0 without Host: the proxy puts in what the client connected to.
    if head.authority().is_empty() {
        assert_eq!(head.version, Version::Http10);
        head.set_authority(b"192.0.2.1:80").expect("short");
    }
    write_and_parse_again(&meta, &head);
});

fn same_meaning(a: &RequestHead, b: &RequestHead) {
    assert_eq!(a.method_token(), b.method_token());
    assert_eq!(a.authority(), b.authority());
    assert_eq!((a.path(), a.query()), (b.path(), b.query()));
    assert_eq!(a.protocol(), b.protocol());
    same_fields(&a.fields, &b.fields);
}

fn same_fields(a: &Fields, b: &Fields) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b.iter()) {
        assert_eq!((a.id, a.name, a.value), (b.id, b.name, b.value));
    }
}

/// What is taken here is a whole head of the same length to httparse, with the same method, and with at least
/// the fields that were kept.
fn compare_with_httparse(bytes: &[u8], meta: &RequestMeta, head: &RequestHead) {
    let mut storage = [httparse::EMPTY_HEADER; 300];
    let mut other = httparse::Request::new(&mut storage);
    match other.parse(bytes) {
        // It knows no 1.2.
        Err(httparse::Error::Version) => {}
        Ok(httparse::Status::Complete(length)) => {
            assert_eq!(length, meta.head_bytes);
            assert_eq!(other.method.map(str::as_bytes), Some(head.method_token()));
            for field in head.fields.iter() {
                let is_there = other.headers.iter().any(|h| {
                    h.name.as_bytes().eq_ignore_ascii_case(field.name) && h.value.trim_ascii() == field.value
                });
                assert!(is_there, "{:?} came from nowhere", String::from_utf8_lossy(field.name));
            }
        }
        otherwise => panic!("httparse says {otherwise:?}"),
    }
}

fn write_and_parse_again(meta: &RequestMeta, head: &RequestHead) {
    let framing =
        RequestFraming { body: meta.body, persistence: meta.persistence, te_trailers: meta.te_trailers };
    let mut out = Vec::new();
    write_request_head(&mut out, head, framing).expect("what was parsed can be written");
    let written = out.len();
    out.extend_from_slice(b"GET /next HTTP/1.1\r\n");
    let mut again = RequestHead::default();
    let limits = HeadLimits { request_line_bytes_max: 1 << 20, head_bytes_max: 1 << 20, fields_max: 256 };
    let reparsed = parse_request(&out, &limits, head.scheme, &mut again);
    let reparsed = reparsed.expect("what was written can be parsed").expect("all of it was written");
    assert_eq!(reparsed.head_bytes, written);
    same_meaning(head, &again);
    assert_eq!(again.version, Version::Http11);
    let bytes = |length| match length {
        BodyLength::Empty => BodyLength::Exact(0),
        other => other,
    };
    assert_eq!(bytes(reparsed.body), bytes(meta.body));
    assert_eq!(reparsed.persistence, meta.persistence);
    assert_eq!(reparsed.te_trailers, meta.te_trailers);
    assert_eq!(reparsed.expects_continue, meta.expects_continue);
}
