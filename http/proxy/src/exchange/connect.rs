//! Stop 10: a connection to the endpoint, from the pool or new, and the request's head on it.

use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use http_balance::retry::Failure as Cause;
use http_wire::h1::{Persistence, RequestFraming};
use http_wire::h2::SendError;
use http_wire::head::{BodyLength, Scheme};

use super::{Exchange, Next};
use crate::fault::{self, Phase};
use crate::pool::{self, Fresh, H2Lease, Lease, Ticket};
use crate::reason::Reason;
use crate::side::{Side, SideError};
use crate::snapshot::UpstreamProtocol;
use crate::upgrade;

/// What an attempt holds of the pool.
pub(super) enum Held {
    H1(Ticket),
    H2(H2Lease),
}

impl Exchange<'_> {
    pub(super) fn count_opened(&self, lease: &Lease, opened: Result<&Held, Reason>) {
        let (cluster, endpoint) = (lease.cluster.stat, lease.endpoint.stat);
        let mut stats = self.core.stats.borrow_mut();
        match opened {
            Ok(held) if held.is_reused() => stats.counters.pool_reused += 1,
            Ok(_) => stats.upstream_connect(cluster, endpoint, Ok(())),
            // Nobody knows how the dialling would have gone.
            Err(Reason::ClientReset | Reason::DeadlineExceeded) => {}
            Err(reason) => stats.upstream_connect(cluster, endpoint, Err(reason)),
        }
    }

    /// Gets a connection and puts the request head on it.
    pub(super) async fn open(
        &mut self,
        lease: &Lease,
        fresh: Fresh,
    ) -> Result<(Side, Held), (Reason, Cause)> {
        match lease.protocol() {
            UpstreamProtocol::Http1 => {
                let reused = if fresh == Fresh::No { pool::reuse(lease) } else { None };
                let opened = match reused {
                    Some(reused) => Ok(reused),
                    // Boxed: a request that finds a connection does not carry what dialling needs.
                    None => self.unless_gone(Box::pin(pool::dial_new(lease))).await,
                };
                let (mut side, ticket) = opened.map_err(connect_failed)?;
                upgrade::ask_over_h1(&mut self.request.head, self.core.random(), self.core.random());
                // What follows an upgrade is the tunnel, not a body.
                let is_upgrade = self.request.head.protocol().is_some();
                let framing = RequestFraming {
                    body: if is_upgrade { BodyLength::Empty } else { self.request.body },
                    persistence: Persistence::KeepAlive,
                    te_trailers: self.request.te_trailers,
                };
                let written = side.send_request_head(&self.request.head, framing);
                written.map_err(|error| (fault::upstream(&error, Phase::BeforeHead), Cause::Response))?;
                Ok((Side::H1(side), Held::H1(ticket)))
            }
            UpstreamProtocol::Http2 => self.open_stream(lease).await,
        }
    }

    /// Waits for a connection as long as the client waits (C27): a stream that was reset must not go on as work
    /// (C20).
    pub(super) async fn unless_gone<T>(
        &mut self,
        mut open: Pin<Box<impl Future<Output = Result<T, Reason>>>>,
    ) -> Result<T, Reason> {
        std::future::poll_fn(|cx| {
            if self.downstream.poll_gone(cx).is_ready() {
                return Poll::Ready(Err(Reason::ClientReset));
            }
            if self.timers.response.poll_expired(cx).is_ready() {
                return Poll::Ready(Err(Reason::DeadlineExceeded));
            }
            open.as_mut().poll(cx)
        })
        .await
    }

    pub(super) async fn open_stream(&mut self, lease: &Lease) -> Result<(Side, Held), (Reason, Cause)> {
        let stream = match H2Lease::take_now(lease) {
            Some(stream) => stream,
            None => self.unless_gone(Box::pin(H2Lease::take(lease))).await.map_err(connect_failed)?,
        };
        let is_upgrade = self.request.head.protocol().is_some();
        if is_upgrade {
            self.unless_gone(Box::pin(stream.settled(&lease.settings))).await.map_err(connect_failed)?;
            if !stream.knows_extended_connect() {
                return Err((Reason::UpgradeRefused, Cause::Response));
            }
        }
        let scheme = if lease.settings.config().tls.is_some() { Scheme::Https } else { Scheme::Http };
        let body = if is_upgrade { BodyLength::Streamed } else { self.request.body };
        match stream.send(&self.request.head, body, self.request.te_trailers, scheme) {
            Ok(side) => Ok((Side::H2(side), Held::H2(stream))),
            Err(SendError::Closed | SendError::GoingAway) => {
                Err((Reason::UpstreamGoaway, Cause::BeyondGoaway))
            }
        }
    }
}

impl Held {
    pub(super) fn is_reused(&self) -> bool {
        match self {
            Self::H1(ticket) => ticket.is_reused,
            Self::H2(stream) => stream.is_reused,
        }
    }

    /// Takes note of an error before the response: an HTTP/2 connection that turns streams away gets no new ones. Tells
    /// whether the connection was about to go anyhow, for which its endpoint is not to blame (C22).
    pub(super) fn was_going(&self, error: &SideError) -> bool {
        if let Self::H2(stream) = self
            && matches!(error, SideError::Refused | SideError::GoneAway | SideError::H2Protocol)
        {
            stream.close();
        }
        match error {
            SideError::GoneAway => true,
            SideError::Closed | SideError::Io(_) => self.is_reused(),
            _ => false,
        }
    }

    pub(super) fn connect(&self) -> Option<Duration> {
        match self {
            Self::H1(ticket) => ticket.connect,
            Self::H2(stream) => stream.connect,
        }
    }

    /// Returns an h1 connection to the pool when it is in step; an h2 stream's place is given back by dropping.
    pub(super) fn give_back(self, lease: &Lease, upstream: Side, persistence: Persistence, next: Next) {
        if let (Self::H1(ticket), Side::H1(mut side)) = (self, upstream)
            && next != Next::Abort
            && side.is_reusable(persistence)
        {
            pool::give_back(lease, side, ticket);
        }
    }
}

/// Why no connection came about.
pub(super) fn connect_failed(reason: Reason) -> (Reason, Cause) {
    let cause = match reason {
        Reason::ClientReset | Reason::DeadlineExceeded => Cause::Response,
        Reason::UpstreamConnectRefused => Cause::Refused,
        _ => Cause::Connect,
    };
    (reason, cause)
}
