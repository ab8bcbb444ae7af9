//! Response heads: the answer does not depend on how the bytes arrive, another parser sees the same head, and
//! what is written for the client means the same when it is parsed again.
//! Input: choice of method and limits, then what an upstream sends.

#![no_main]

use http_wire::h1::{
    HeadLimits, Persistence, ResponseFraming, ResponseMeta, parse_response, write_response_head,
};
use http_wire::head::{BodyLength, Method, ResponseHead, Version};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&choice, bytes)) = data.split_first() else {
        return;
    };
    let limits = match choice >> 1 {
        0 => HeadLimits { request_line_bytes_max: 32, head_bytes_max: 128, fields_max: 4 },
        _ => HeadLimits::default(),
    };
    let method = if choice & 1 == 0 { Method::Get } else { Method::Head };
    let mut head = ResponseHead::default();
    let parse = |bytes: &[u8], head: &mut ResponseHead| parse_response(bytes, &limits, method, head);
    let Ok(parsed) = parse(bytes, &mut head) else {
        for more in [&b"\r\n"[..], b"\r\n\r\n", b" 200 OK\r\n\r\n"] {
            assert!(parse(&[bytes, more].concat(), &mut head).is_err(), "more bytes make it good");
        }
        return;
    };
    let Some(meta) = parsed else {
        assert!(bytes.len() < limits.head_bytes_max, "waits for ever");
        return;
    };
    assert!(meta.head_bytes <= bytes.len() && meta.head_bytes <= limits.head_bytes_max);
    assert!(head.fields.len() <= limits.fields_max);
    let is_bodiless = method == Method::Head || matches!(head.status, 100..=199 | 204 | 304);
    assert!(!is_bodiless || meta.body == BodyLength::Empty);
    assert!(meta.body != BodyLength::UntilClose || meta.persistence == Persistence::Close);
    let mut again = ResponseHead::default();
    for cut in (0..meta.head_bytes).rev().take(200) {
        assert_eq!(parse(&bytes[..cut], &mut again), Ok(None), "good, but refused when cut at {cut}");
    }
    assert_eq!(parse(&bytes[..meta.head_bytes], &mut again), Ok(Some(meta)), "looks at what follows");
    same_meaning(&head, &again);
    compare_with_httparse(bytes, &meta, &head);
    for client_version in [Version::Http10, Version::Http11] {
        write_and_parse_again(&meta, &head, method, client_version);
    }
});

fn same_meaning(a: &ResponseHead, b: &ResponseHead) {
    assert_eq!((a.status, a.protocol()), (b.status, b.protocol()));
    assert_eq!(a.fields.len(), b.fields.len());
    for (a, b) in a.fields.iter().zip(b.fields.iter()) {
        assert_eq!((a.id, a.name, a.value), (b.id, b.name, b.value));
    }
}

/// What is taken here is a whole head of the same length and status to httparse.
fn compare_with_httparse(bytes: &[u8], meta: &ResponseMeta, head: &ResponseHead) {
    let mut storage = [httparse::EMPTY_HEADER; 300];
    let mut other = httparse::Response::new(&mut storage);
    match other.parse(bytes) {
        // It knows no 1.2, and reads reason phrases.
        Err(httparse::Error::Version | httparse::Error::Status) => {}
        Ok(httparse::Status::Complete(length)) => {
            assert_eq!(length, meta.head_bytes);
            assert_eq!(other.code, Some(head.status));
        }
        otherwise => panic!("httparse says {otherwise:?}"),
    }
}

fn write_and_parse_again(
    meta: &ResponseMeta,
    head: &ResponseHead,
    request_method: Method,
    client_version: Version,
) {
    let framing = ResponseFraming {
        body: meta.body,
        declared_length: meta.declared_length,
        persistence: meta.persistence,
        client_version,
        request_method,
    };
    let mut out = Vec::new();
    let sent = write_response_head(&mut out, head, framing).expect("what was parsed can be written");
    let written = out.len();
    out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    let mut again = ResponseHead::default();
    let limits = HeadLimits { request_line_bytes_max: 1 << 20, head_bytes_max: 1 << 20, fields_max: 256 };
    let reparsed = parse_response(&out, &limits, request_method, &mut again);
    let reparsed = reparsed.expect("what was written can be parsed").expect("all of it was written");
    assert_eq!(reparsed.head_bytes, written);
    same_meaning(head, &again);
    let bytes = |length| match length {
        BodyLength::Empty => BodyLength::Exact(0),
        other => other,
    };
    assert_eq!(bytes(reparsed.body), bytes(sent.body));
    assert_eq!(reparsed.declared_length, meta.declared_length);
    assert!(client_version != Version::Http10 || sent.body != BodyLength::Streamed);
    if !head.is_interim() {
        assert_eq!(reparsed.persistence, sent.persistence);
    }
}
