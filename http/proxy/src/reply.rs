//! Responses that the proxy makes itself: errors as problem documents (RFC 9457), gRPC statuses, error pages,
//! redirects, direct responses and preflights.

use std::fmt::Write as _;

use http_wire::fields::{FieldError, FieldId, Fields};
use http_wire::grpc;
use http_wire::head::{RequestHead, ResponseHead};
use http_wire::number::Decimal;

use crate::reason::Reason;
use crate::snapshot::ErrorPage;

/// A response with its whole body.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) reason: Reason,
    /// What the reply must carry besides: `retry-after`, `location`, the preflight's fields.
    pub(crate) fields: Fields,
    pub(crate) content_type: Option<String>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    /// The reply to a refused request; its body is made when it is known who asked.
    pub(crate) fn refusal(reason: Reason) -> Self {
        Self { status: reason.status().unwrap_or(500), reason, ..Self::default() }
    }
}

/// The error pages that apply, the route's before the listener's.
pub(crate) type Pages<'a> = [&'a [ErrorPage]; 2];

/// Fills `head` and returns the body for an error reply: gRPC callers get a status, others the page of the config
/// or a problem document.
///
/// # Errors
/// `FieldError` when a field is not fit for a head, which only a bug can cause.
pub(crate) fn dress(
    reply: &mut Reply,
    request: &RequestHead,
    request_id: &[u8],
    pages: &Pages<'_>,
    head: &mut ResponseHead,
) -> Result<(), FieldError> {
    head.clear();
    head.status = reply.status;
    for field in reply.fields.iter() {
        head.fields.push_name(field.name, field.value)?;
    }
    let is_error = reply.status >= 400 && reply.body.is_empty();
    if is_error
        && let Some(content_type) = request.fields.get(FieldId::ContentType)
        && grpc::is_grpc(content_type)
    {
        return dress_grpc(reply, content_type, head);
    }
    if is_error {
        let page = pages.iter().flat_map(|pages| pages.iter()).find(|page| page.status == reply.status);
        match page {
            Some(page) => {
                reply.content_type = Some(page.content_type.clone());
                reply.body = page.body.to_vec();
            }
            None => {
                reply.content_type = Some("application/problem+json".to_owned());
                reply.body = problem(reply.reason, reply.status, request_id);
            }
        }
    }
    if let Some(content_type) = &reply.content_type {
        head.fields.push(FieldId::ContentType, content_type.as_bytes())?;
    }
    Ok(())
}

/// A gRPC status without a message: everything is in the head (gRPC over HTTP/2, "Trailers-Only").
fn dress_grpc(reply: &mut Reply, content_type: &[u8], head: &mut ResponseHead) -> Result<(), FieldError> {
    head.status = 200;
    head.fields.push(FieldId::ContentType, content_type)?;
    let status = Decimal::new(u64::from(reply.reason.grpc_status().number()));
    head.fields.push(FieldId::GrpcStatus, status.as_bytes())?;
    let mut message = Vec::new();
    grpc::encode_message(reply.reason.title(), &mut message);
    head.fields.push(FieldId::GrpcMessage, &message)
}

/// The problem document. All words are ours or hexadecimal, so nothing needs escaping.
fn problem(reason: Reason, status: u16, request_id: &[u8]) -> Vec<u8> {
    let mut text = String::new();
    let request_id: String = String::from_utf8_lossy(request_id)
        .chars()
        .filter(|c| c.is_ascii_graphic() && !matches!(c, '"' | '\\'))
        .collect();
    let written = writeln!(
        text,
        "{{\"type\":\"about:blank\",\"title\":\"{}\",\"status\":{status},\"code\":\"{}\",\"detail\":\"{}\",\
         \"request_id\":\"{request_id}\"}}",
        reason.title(),
        reason.code(),
        detail(reason),
    );
    debug_assert!(written.is_ok(), "writing to a String does not fail");
    text.into_bytes()
}

/// The first sentence of the explanation, without what a client should not be told about the inside.
fn detail(reason: Reason) -> String {
    let explanation = reason.explanation();
    let end = explanation.find(". ").map_or(explanation.len(), |at| at + 1);
    explanation.get(..end).unwrap_or(explanation).replace(['"', '\\'], "'")
}
