//! Heads to header blocks. Nothing can fail here: a head holds only what may be sent.

use crate::fields::{Field, FieldId, FieldSet, Fields};
use crate::h2::hpack::{Encoder, Indexing};
use crate::head::{BodyLength, RequestHead, ResponseHead, Scheme};
use crate::number::Decimal;

/// What h2 says in other ways or not at all (RFC 9113 §8.2.2), even when a policy has put it into the list.
const NOT_SENT: FieldSet = FieldSet::WRITTEN_BY_CODEC;
/// A WebSocket over h2 has no key (RFC 8441 §5).
const NOT_SENT_WITH_PROTOCOL: FieldSet = NOT_SENT.with(FieldSet::of(&[FieldId::SecWebsocketKey]));

/// Fields whose values are new with each message, or with each client of a connection that many share: in the peer's
/// table they would only drive out what comes again (RFC 7541 §7.1.3 lets an encoder choose).
const NAME_ONLY: FieldSet = FieldSet::of(&[
    FieldId::ContentLength,
    FieldId::Cookie,
    FieldId::Forwarded,
    FieldId::GrpcTimeout,
    FieldId::SetCookie,
    FieldId::Traceparent,
    FieldId::Tracestate,
    FieldId::XDeadlineMs,
    FieldId::XForwardedFor,
    FieldId::XRealIp,
    FieldId::XRequestId,
]);

fn indexing(field: &Field<'_>) -> Indexing {
    match field.id {
        FieldId::Authorization => Indexing::Never,
        FieldId::Other => match field.name {
            b"age"
            | b"content-range"
            | b"etag"
            | b"if-match"
            | b"if-modified-since"
            | b"if-none-match"
            | b"if-range"
            | b"if-unmodified-since"
            | b"last-modified"
            | b"location"
            | b"range" => Indexing::NameOnly,
            _ => Indexing::Index,
        },
        id if NAME_ONLY.has(id) => Indexing::NameOnly,
        _ => Indexing::Index,
    }
}

fn put_fields(fields: &Fields, left_out: FieldSet, encoder: &mut Encoder, out: &mut Vec<u8>) {
    for field in fields.iter().filter(|field| !left_out.has(field.id)) {
        encoder.put(field.id, field.name, field.value, indexing(&field), out);
    }
}

fn put_length(bytes: u64, encoder: &mut Encoder, out: &mut Vec<u8>) {
    let value = Decimal::new(bytes);
    encoder.put(FieldId::ContentLength, b"content-length", value.as_bytes(), Indexing::NameOnly, out);
}

/// Indices of the static table (RFC 7541 appendix A).
mod index {
    pub(super) const AUTHORITY: usize = 1;
    pub(super) const METHOD: usize = 2;
    pub(super) const METHOD_GET: u8 = 2;
    pub(super) const METHOD_POST: u8 = 3;
    pub(super) const PATH: usize = 4;
    pub(super) const PATH_ROOT: u8 = 4;
    pub(super) const SCHEME_HTTP: u8 = 6;
    pub(super) const SCHEME_HTTPS: u8 = 7;
    pub(super) const STATUS: usize = 8;
}

/// What a request says beside its head.
#[derive(Clone, Copy, Debug)]
pub(in crate::h2) struct RequestForm {
    pub(in crate::h2) body: BodyLength,
    pub(in crate::h2) te_trailers: bool,
    pub(in crate::h2) scheme: Scheme,
}

/// Appends the block of a request. An upgrade becomes an extended CONNECT (RFC 8441 §4).
pub(in crate::h2) fn put_request(
    head: &RequestHead,
    form: RequestForm,
    encoder: &mut Encoder,
    out: &mut Vec<u8>,
) {
    encoder.begin(out);
    let method: &[u8] = if head.protocol().is_some() { b"CONNECT" } else { head.method_token() };
    match method {
        b"GET" => encoder.put_static(index::METHOD_GET, out),
        b"POST" => encoder.put_static(index::METHOD_POST, out),
        token => encoder.put_named(Some(index::METHOD), b":method", token, Indexing::Index, out),
    }
    encoder.put_static(
        match form.scheme {
            Scheme::Http => index::SCHEME_HTTP,
            Scheme::Https => index::SCHEME_HTTPS,
        },
        out,
    );
    encoder.put_named(Some(index::AUTHORITY), b":authority", head.authority(), Indexing::Index, out);
    match (head.path(), head.query()) {
        (b"/", None) => encoder.put_static(index::PATH_ROOT, out),
        (path, None) => encoder.put_named(Some(index::PATH), b":path", path, Indexing::NameOnly, out),
        (path, Some(query)) => {
            encoder.put_joined(index::PATH, &[path, b"?", query], out);
        }
    }
    let mut left_out = NOT_SENT;
    if let Some(protocol) = head.protocol() {
        encoder.put_named(None, b":protocol", protocol, Indexing::Index, out);
        left_out = NOT_SENT_WITH_PROTOCOL;
    }
    put_fields(&head.fields, left_out, encoder, out);
    if let BodyLength::Exact(bytes) = form.body {
        put_length(bytes, encoder, out);
    }
    if form.te_trailers {
        encoder.put(FieldId::Te, b"te", b"trailers", Indexing::Index, out);
    }
}

/// Appends the block of a response, final or interim. `length` is what is announced of its body.
pub(in crate::h2) fn put_response(
    head: &ResponseHead,
    length: Option<u64>,
    encoder: &mut Encoder,
    out: &mut Vec<u8>,
) {
    encoder.begin(out);
    match head.status {
        200 => encoder.put_static(8, out),
        204 => encoder.put_static(9, out),
        206 => encoder.put_static(10, out),
        304 => encoder.put_static(11, out),
        400 => encoder.put_static(12, out),
        404 => encoder.put_static(13, out),
        500 => encoder.put_static(14, out),
        status => {
            let digits = Decimal::new(u64::from(status));
            encoder.put_named(Some(index::STATUS), b":status", digits.as_bytes(), Indexing::Index, out);
        }
    }
    put_fields(&head.fields, NOT_SENT, encoder, out);
    // RFC 9110 §8.6: no length on an interim or 204 response.
    if let Some(bytes) = length.filter(|_| !matches!(head.status, 100..=199 | 204)) {
        put_length(bytes, encoder, out);
    }
}

/// Appends the block of trailer fields.
pub(in crate::h2) fn put_trailers(fields: &Fields, encoder: &mut Encoder, out: &mut Vec<u8>) {
    encoder.begin(out);
    put_fields(fields, NOT_SENT, encoder, out);
}
