//! What the HTTP/1 codec costs, for an instruction counter: `valgrind --tool=callgrind
//! --toggle-collect='h1_cost::parse_request' target/release/examples/h1_cost 1000`, and the same with the other
//! three functions. Each runs as often as the argument says, on heads like those of a browser and an API.

use std::hint::black_box;

use http_wire::h1::{
    HeadLimits, Persistence, RequestFraming, RequestMeta, ResponseFraming, ResponseMeta, write_request_head,
    write_response_head,
};
use http_wire::head::{Method, RequestHead, ResponseHead, Scheme, Version};

const REQUEST: &[u8] = b"GET /api/v1/items?id=42&page=3 HTTP/1.1\r\nHost: api.example.com\r\n\
    User-Agent: curl/7.88.1\r\nAccept: */*\r\nAccept-Encoding: gzip, deflate, br\r\nAccept-Language: en-US,en;q=0.5\r\n\
    Cookie: session=0123456789abcdef\r\nConnection: keep-alive\r\nX-Client-Trace: 5f2d3c4b5a69788796a5b4c3\r\n\r\n";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nServer: origin\r\nDate: Sun, 29 Nov 2026 22:20:00 GMT\r\n\
    Content-Type: application/octet-stream\r\nContent-Length: 1024\r\nLast-Modified: Sun, 29 Nov 2026 22:20:00 GMT\r\n\
    Connection: keep-alive\r\nETag: \"5f2d3c4b-400\"\r\n\r\n";

fn main() {
    let rounds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1000);
    let limits = HeadLimits::default();
    let (mut request, mut response) = (RequestHead::default(), ResponseHead::default());
    let mut out = Vec::with_capacity(4096);
    for _ in 0..rounds {
        let meta = parse_request(black_box(REQUEST), &limits, &mut request);
        out.clear();
        write_request(&mut out, &request, meta);
        black_box(&out);
        let meta = parse_response(black_box(RESPONSE), &limits, &mut response);
        out.clear();
        write_response(&mut out, &response, meta);
        black_box(&out);
    }
}

#[inline(never)]
fn parse_request(buf: &[u8], limits: &HeadLimits, head: &mut RequestHead) -> RequestMeta {
    let parsed = http_wire::h1::parse_request(buf, limits, Scheme::Http, head);
    parsed.expect("a good request").expect("a whole request")
}

#[inline(never)]
fn parse_response(buf: &[u8], limits: &HeadLimits, head: &mut ResponseHead) -> ResponseMeta {
    let parsed = http_wire::h1::parse_response(buf, limits, Method::Get, head);
    parsed.expect("a good response").expect("a whole response")
}

#[inline(never)]
fn write_request(out: &mut Vec<u8>, head: &RequestHead, meta: RequestMeta) {
    let framing = RequestFraming {
        body: meta.body,
        persistence: Persistence::KeepAlive,
        te_trailers: meta.te_trailers,
    };
    write_request_head(out, head, framing).expect("a head that was parsed can be written");
}

#[inline(never)]
fn write_response(out: &mut Vec<u8>, head: &ResponseHead, meta: ResponseMeta) {
    let framing = ResponseFraming {
        body: meta.body,
        declared_length: meta.declared_length,
        persistence: Persistence::KeepAlive,
        client_version: Version::Http11,
        request_method: Method::Get,
    };
    write_response_head(out, head, framing).expect("a head that was parsed can be written");
}
