//! How an attempt at an endpoint ended, as far as balancing cares.
//!
//! Two origins are told apart: what the endpoint itself said (a response), and what this side saw instead of a
//! response (no connection, a reset, silence). Called by the exchange with every finished attempt.

/// The end of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A response below 500, or a gRPC status that blames nobody or the caller.
    Success,
    /// 500 and other 5xx: the endpoint's own failure.
    ServerError,
    /// 502, 503, 504: the endpoint speaks for something behind it, or has no room.
    GatewayError,
    /// No connection: refused, unreachable, timed out, TLS failed.
    ConnectFailed,
    /// The connection broke before the response was whole.
    Reset,
    /// The endpoint did not answer in time.
    TimedOut,
    /// The client left, or its own deadline passed: says nothing about the endpoint.
    Abandoned,
}

/// Who reported a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The endpoint, by a response.
    Endpoint,
    /// This side, by the lack of one.
    Local,
}

impl Outcome {
    /// The outcome of a response by its HTTP status.
    #[must_use]
    pub const fn of_status(status: u16) -> Self {
        match status {
            502..=504 => Self::GatewayError,
            500.. => Self::ServerError,
            _ => Self::Success,
        }
    }

    /// The outcome of a gRPC call by its status: UNAVAILABLE is a gateway's word; UNKNOWN, INTERNAL and DATA_LOSS are
    /// the server's failures; DEADLINE_EXCEEDED is a time-out; all others are answers.
    #[must_use]
    pub const fn of_grpc_status(status: u32) -> Self {
        match status {
            14 => Self::GatewayError,
            2 | 13 | 15 => Self::ServerError,
            4 => Self::TimedOut,
            _ => Self::Success,
        }
    }

    /// None for what is no failure.
    #[inline]
    #[must_use]
    pub const fn failure(self) -> Option<Origin> {
        match self {
            Self::Success | Self::Abandoned => None,
            Self::ServerError | Self::GatewayError => Some(Origin::Endpoint),
            Self::ConnectFailed | Self::Reset | Self::TimedOut => Some(Origin::Local),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_their_outcome() {
        for (status, outcome) in [
            (100, Outcome::Success),
            (404, Outcome::Success),
            (429, Outcome::Success),
            (500, Outcome::ServerError),
            (501, Outcome::ServerError),
            (502, Outcome::GatewayError),
            (503, Outcome::GatewayError),
            (504, Outcome::GatewayError),
            (507, Outcome::ServerError),
        ] {
            assert_eq!(Outcome::of_status(status), outcome, "{status}");
        }
        for (status, failure) in
            [(0, None), (5, None), (14, Some(Origin::Endpoint)), (4, Some(Origin::Local))]
        {
            assert_eq!(Outcome::of_grpc_status(status).failure(), failure, "grpc {status}");
        }
        assert_eq!(Outcome::Abandoned.failure(), None);
    }
}
