//! A request on its way apart from its exchange: a mirror's copy, or a hedge. It owns all that it needs.
//!
//! Invariant: the lease is counted until this is dropped; what an attempt says about its endpoint is for the caller to
//! tell.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Context;

use bytes::Bytes;
use http_balance::Outcome;
use http_wire::fields::Fields;
use http_wire::h1::{Persistence, RequestFraming};
use http_wire::h2::SendError;
use http_wire::head::{BodyLength, RequestHead, ResponseHead, Scheme};

use super::connect::Held;
use super::respond::INTERIM_RESPONSES_MAX;
use crate::chunk::Chunk;
use crate::core::Core;
use crate::fault::{self, Phase};
use crate::pool::{self, H2Lease, Lease};
use crate::reason::Reason;
use crate::side::{BodyEvent, ResponseInfo, Side, SideError};
use crate::snapshot::UpstreamProtocol;

/// A request; its body is the caller's.
#[derive(Debug)]
pub(super) struct Detached {
    pub(super) core: Rc<Core>,
    pub(super) lease: Lease,
    pub(super) head: RequestHead,
    pub(super) body: BodyLength,
    pub(super) te_trailers: bool,
}

/// A body that has come to its end, with its trailers.
pub(super) type WholeBody = (Bytes, Option<Fields>);

/// Where a request was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LostAt {
    Connecting,
    /// Its head does not fit the protocol.
    Writing,
    Waiting,
}

/// Why there is no answer, and what that says about the endpoint.
pub(super) type Lost = (LostAt, Outcome);

impl Detached {
    /// Sends everything and waits for the head of the final response.
    pub(super) async fn answer(
        &self,
        whole: WholeBody,
    ) -> Result<(Side, Held, ResponseHead, ResponseInfo), Lost> {
        let (mut side, held) = self.open().await?;
        self.send_body(&mut side, whole).await.map_err(|error| lost(&held, &error))?;
        let head = self.final_head(&mut side, |_, _| {}).await;
        let (response, info) = head.map_err(|error| lost(&held, &error))?;
        Ok((side, held, response, info))
    }

    /// Waits for the head of the final response, and polls `meanwhile`.
    pub(super) async fn final_head(
        &self,
        side: &mut Side,
        mut meanwhile: impl FnMut(&mut Side, &mut Context<'_>),
    ) -> Result<(ResponseHead, ResponseInfo), SideError> {
        let mut response = ResponseHead::default();
        let mut interim_responses = 0;
        loop {
            let info = poll_fn(|cx| {
                meanwhile(side, cx);
                side.poll_response_head(cx, self.head.method, &mut response)
            })
            .await?;
            if !response.is_interim() {
                return Ok((response, info));
            }
            interim_responses += 1;
            if interim_responses > INTERIM_RESPONSES_MAX {
                return Err(SideError::Refuse(Reason::UpstreamBadInterim));
            }
        }
    }

    /// Gets a connection and puts the request head on it.
    pub(super) async fn open(&self) -> Result<(Side, Held), Lost> {
        match self.lease.protocol() {
            UpstreamProtocol::Http1 => {
                let opened = match pool::reuse(&self.lease) {
                    Some(reused) => Ok(reused),
                    None => pool::dial_new(&self.lease).await,
                };
                self.count_opened(opened.as_ref().map(|(_, ticket)| ticket.is_reused).map_err(|r| *r));
                let (mut side, ticket) = opened.map_err(not_connected)?;
                let framing = RequestFraming {
                    body: self.body,
                    persistence: Persistence::KeepAlive,
                    te_trailers: self.te_trailers,
                };
                side.send_request_head(&self.head, framing).map_err(|_unfit| NOT_WRITABLE)?;
                Ok((Side::H1(side), Held::H1(ticket)))
            }
            UpstreamProtocol::Http2 => {
                let opened = H2Lease::take(&self.lease).await;
                self.count_opened(opened.as_ref().map(|stream| stream.is_reused).map_err(|r| *r));
                let stream = opened.map_err(not_connected)?;
                let is_tls = self.lease.settings.config().tls.is_some();
                let scheme = if is_tls { Scheme::Https } else { Scheme::Http };
                let side = stream.send(&self.head, self.body, self.te_trailers, scheme).map_err(gone)?;
                Ok((Side::H2(side), Held::H2(stream)))
            }
        }
    }

    fn count_opened(&self, opened: Result<bool, Reason>) {
        let mut stats = self.core.stats.borrow_mut();
        match opened {
            Ok(true) => stats.counters.pool_reused += 1,
            Ok(false) => {
                stats.upstream_connect(self.lease.cluster.stat, self.lease.endpoint.stat, Ok(()));
            }
            Err(reason) => {
                stats.upstream_connect(self.lease.cluster.stat, self.lease.endpoint.stat, Err(reason));
            }
        }
    }

    async fn send_body(&self, side: &mut Side, (bytes, trailers): WholeBody) -> Result<(), SideError> {
        if self.body != BodyLength::Empty {
            if !bytes.is_empty() {
                poll_fn(|cx| side.poll_room(cx)).await?;
                side.send_body(BodyEvent::Data(Chunk::Shared(bytes)))?;
            }
            poll_fn(|cx| side.poll_room(cx)).await?;
            side.send_body(BodyEvent::End(trailers))?;
        }
        poll_fn(|cx| side.poll_flush(cx)).await
    }
}

const NOT_WRITABLE: Lost = (LostAt::Writing, Outcome::Abandoned);

fn not_connected(reason: Reason) -> Lost {
    (LostAt::Connecting, fault::outcome(reason, false))
}

fn gone(_error: SendError) -> Lost {
    (LostAt::Waiting, Outcome::Abandoned)
}

/// No response head has come.
pub(super) fn lost(held: &Held, error: &SideError) -> Lost {
    let reason = fault::upstream(error, Phase::BeforeHead);
    (LostAt::Waiting, fault::outcome(reason, held.was_going(error)))
}

/// The body of a response broke off.
pub(super) fn cut(error: &SideError) -> Lost {
    (LostAt::Waiting, fault::outcome(fault::upstream(error, Phase::InBody), false))
}
