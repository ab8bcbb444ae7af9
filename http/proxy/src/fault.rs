//! From what went wrong on a side to the one reason that names it. Exhaustive, so that a new error needs a word.

use std::io;

use http_balance::Outcome;

use crate::reason::Reason;
use crate::relay::RelayError;
use crate::side::SideError;

/// How far the response of a backend had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    BeforeHead,
    InBody,
}

/// The backend's side failed.
pub(crate) fn upstream(error: &SideError, phase: Phase) -> Reason {
    let (closed, reset) = match phase {
        Phase::BeforeHead => (Reason::UpstreamClosedBeforeResponse, Reason::UpstreamResetBeforeResponse),
        Phase::InBody => (Reason::UpstreamTruncated, Reason::UpstreamReset),
    };
    match error {
        SideError::Truncated | SideError::Closed => closed,
        SideError::Cancelled => reset,
        SideError::Refused => Reason::UpstreamStreamRefused,
        SideError::GoneAway => Reason::UpstreamGoaway,
        SideError::Body(_) | SideError::LengthMismatch => Reason::UpstreamBadChunk,
        SideError::ResponseHead(error) => Reason::from(*error),
        SideError::Refuse(reason) => *reason,
        SideError::NotWritable => Reason::HeadNotWritable,
        SideError::RequestHead(_) | SideError::OutOfBuffers => Reason::Internal,
        SideError::H2Protocol => Reason::UpstreamH2ProtocolError,
        SideError::Io(error) if error.kind() == io::ErrorKind::InvalidData => Reason::UpstreamTlsFailed,
        SideError::Io(_) => reset,
    }
}

/// The client's side failed.
pub(crate) fn downstream(error: &SideError) -> Reason {
    match error {
        SideError::Truncated => Reason::ClientBodyTruncated,
        SideError::Closed | SideError::GoneAway | SideError::Io(_) => Reason::ClientClosed,
        SideError::Cancelled | SideError::Refused => Reason::ClientReset,
        SideError::Body(error) => Reason::from(*error),
        SideError::RequestHead(error) => Reason::from(*error),
        SideError::Refuse(reason) => *reason,
        // The response did not keep to its own length.
        SideError::LengthMismatch => Reason::UpstreamTruncated,
        SideError::NotWritable => Reason::HeadNotWritable,
        SideError::ResponseHead(_) | SideError::OutOfBuffers => Reason::Internal,
        SideError::H2Protocol => Reason::H2ProtocolError,
    }
}

/// A relay stopped before its end.
pub(crate) fn relay(error: &RelayError, phase: Phase) -> Reason {
    match (error, phase) {
        (RelayError::Downstream(error), _) => downstream(error),
        (RelayError::Upstream(error), phase) => upstream(error, phase),
        (RelayError::BodyTooLarge, _) => Reason::BodyTooLarge,
        (RelayError::BodyTooSlow, _) => Reason::BodyTooSlow,
        (RelayError::DownstreamIdle, Phase::BeforeHead) => Reason::BodyTimeout,
        (RelayError::DownstreamIdle, Phase::InBody) => Reason::ClientSlow,
        (RelayError::UpstreamIdle, _) => Reason::UpstreamTimeoutIdle,
        (RelayError::Deadline, _) => Reason::UpstreamTimeoutFirstByte,
        (RelayError::ClientGone, _) => Reason::ClientReset,
    }
}

/// What an attempt that ended for `reason` says about its endpoint. `is_stale` is a connection that was about to go
/// anyhow, for which the endpoint is not to blame.
pub(crate) fn outcome(reason: Reason, is_stale: bool) -> Outcome {
    match reason {
        _ if is_stale => Outcome::Abandoned,
        Reason::UpstreamConnectRefused
        | Reason::UpstreamConnectFailed
        | Reason::UpstreamConnectTimeout
        | Reason::UpstreamTlsFailed => Outcome::ConnectFailed,
        Reason::UpstreamResetBeforeResponse
        | Reason::UpstreamClosedBeforeResponse
        | Reason::UpstreamStreamRefused
        | Reason::UpstreamGoaway
        | Reason::UpstreamH2ProtocolError
        | Reason::UpstreamReset
        | Reason::UpstreamTruncated => Outcome::Reset,
        Reason::UpstreamTimeoutFirstByte | Reason::UpstreamTimeoutIdle => Outcome::TimedOut,
        Reason::UpstreamBadStatusLine
        | Reason::UpstreamHeadTooLarge
        | Reason::UpstreamTooManyFields
        | Reason::UpstreamBareLf
        | Reason::UpstreamBareCr
        | Reason::UpstreamObsFold
        | Reason::UpstreamBadFieldName
        | Reason::UpstreamBadFieldValue
        | Reason::UpstreamBadContentLength
        | Reason::UpstreamBadTransferEncoding
        | Reason::UpstreamTransferEncodingInHttp10
        | Reason::UpstreamBadUpgrade
        | Reason::UpstreamTooManyConnectionOptions
        | Reason::UpstreamBadChunk
        | Reason::UpstreamBadInterim => Outcome::ServerError,
        // The client's doing, or this proxy's own.
        _ => Outcome::Abandoned,
    }
}
