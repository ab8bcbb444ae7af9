//! Stop 11, the way back: interim responses, the head, the body, and what they say about the endpoint.

use std::time::Duration;

use core_runtime::clock;
use http_balance::Outcome;
use http_balance::shed::LoadSign;
use http_gateway::body_limit::BodyMeter;
use http_wire::h1::Persistence;
use http_wire::head::{BodyLength, Version};

use super::attempt::Plan;
use super::{Exchange, Next, Stop};
use crate::fault::{self, Phase};
use crate::pool::Lease;
use crate::reason::Reason;
use crate::record::Stage;
use crate::relay::{Direction, IdleLimits, Relay};
use crate::side::{ResponseInfo, Side, SideError};
use crate::upgrade;

/// Interim responses to one request. RFC 9110 §15.2 has no bound; a 102 every ten seconds is a quarter of an hour.
pub(crate) const INTERIM_RESPONSES_MAX: u32 = 100;

/// With a 503: the backend has more to do than it can. The second is what Envoy says for itself.
const OVERLOADED: [&[u8]; 2] = [b"x-shard-overloaded", b"x-envoy-overloaded"];

impl Exchange<'_> {
    pub(super) fn has_response_field(&self, name: &[u8]) -> bool {
        self.request.response.fields.get_name(name).is_some_and(|value| value != b"false")
    }

    /// What the response says about the backend's load.
    pub(super) fn load_sign(&self) -> LoadSign {
        let is_overloaded = self.request.response.status == 503
            && OVERLOADED.iter().any(|name| self.has_response_field(name));
        if is_overloaded { LoadSign::Overloaded } else { LoadSign::None }
    }

    /// What the response says about the endpoint.
    pub(super) fn response_outcome(&self) -> Outcome {
        match upgrade::grpc_status(&self.request.response.fields) {
            Some(status) if self.is_grpc() => Outcome::of_grpc_status(u32::from(status)),
            _ => Outcome::of_status(self.request.response.status),
        }
    }

    /// From the first response head to the end of the exchange.
    pub(super) async fn pass_response(
        &mut self,
        upstream: &mut Side,
        mut info: ResponseInfo,
        mut upload: Direction,
        (idle, sent_at): (IdleLimits, Duration),
        (lease, plan): (&Lease, Plan<'_>),
    ) -> Result<(Next, ResponseInfo), Stop> {
        let route = plan.route;
        let head_at = clock::now();
        let mut interim_responses = 0;
        while self.request.response.is_interim() && self.request.response.status != 101 {
            interim_responses += 1;
            if interim_responses > INTERIM_RESPONSES_MAX {
                return Err(self.give_up(Reason::UpstreamBadInterim));
            }
            // Boxed: they are rare, and every other exchange would carry what they need.
            Box::pin(self.pass_interim()).await?;
            (info, upload) = Box::pin(self.next_head(upstream, upload, idle, plan)).await?;
        }
        lease.goes(self.response_outcome(), clock::now().saturating_sub(sent_at), self.load_sign());
        let is_tunnel =
            upgrade::accept(&self.request.head, &mut self.request.response).map_err(Stop::reply)?;
        self.finish_response_fields(route)?;
        self.write_cookie(lease)?;
        if self.is_grpc() {
            self.outcome.grpc_status = upgrade::grpc_status(&self.request.response.fields);
        }
        let persistence = if self.core.is_draining() { Persistence::Close } else { self.request.persistence };
        let body = if is_tunnel { BodyLength::Streamed } else { info.body };
        let next = self
            .send_head(body, info.declared_length, persistence)
            .map_err(|error| Stop::reply(fault::upstream(&error, Phase::BeforeHead)))?;
        if is_tunnel {
            upstream.become_tunnel();
            self.downstream.become_tunnel();
        }
        if let Some(wish) = &self.mirror {
            wish.begin(&self.request.head, plan.forward);
        }
        let unlimited = if is_tunnel { BodyMeter::new(None) } else { BodyMeter::new(route.body_bytes_max) };
        let tunnel_idle = IdleLimits { downstream: idle.upstream, upstream: idle.upstream, body_rate: None };
        let limits = if is_tunnel { tunnel_idle } else { idle };
        let mut relay = Relay::new(self.downstream, upstream, upload, unlimited, limits, &self.timers.idle);
        let result = if is_tunnel { Box::pin(relay.until_both_end()).await } else { relay.until_end().await };
        let request_is_over = relay.has_sent_request();
        let grpc_status = relay.response.grpc_status;
        self.outcome.response_bytes = relay.response.bytes;
        self.outcome.request_bytes = relay.request.bytes;
        self.outcome.stages.set(Stage::Body, clock::now().saturating_sub(head_at));
        result.map_err(|error| Stop::Cut(fault::relay(&error, Phase::InBody)))?;
        if let Some(status) = grpc_status.filter(|_| self.is_grpc()) {
            self.outcome.grpc_status = Some(status);
            let outcome = Outcome::of_grpc_status(u32::from(status));
            if outcome.failure().is_some() {
                lease.breaks_off(outcome);
            }
        }
        if is_tunnel {
            info.persistence = Persistence::Close;
            return Ok((Next::Close, info));
        }
        if !request_is_over {
            // C24: the backend answered without the whole request; neither connection is in step any more.
            info.persistence = Persistence::Close;
            return Ok((Next::Close, info));
        }
        Ok((next, info))
    }

    /// Passes an interim response on at once; HTTP/1.0 clients do not know them (RFC 9110 §15.2).
    pub(super) async fn pass_interim(&mut self) -> Result<(), Stop> {
        if self.request.head.version == Version::Http10 {
            return Ok(());
        }
        let cut = |error: SideError| Stop::Cut(fault::downstream(&error));
        self.send_head(BodyLength::Empty, None, Persistence::KeepAlive).map_err(cut)?;
        std::future::poll_fn(|cx| self.downstream.poll_flush(cx)).await.map_err(cut)
    }

    /// Waits for the response head behind an interim one.
    pub(super) async fn next_head(
        &mut self,
        upstream: &mut Side,
        upload: Direction,
        idle: IdleLimits,
        plan: Plan<'_>,
    ) -> Result<(ResponseInfo, Direction), Stop> {
        let route = plan.route;
        let (mirror, asked) = (self.mirror.as_deref(), &self.request.head);
        let method = self.request.head.method;
        let meter = BodyMeter::new(route.body_bytes_max);
        let response = &mut self.request.response;
        let mut relay = Relay::new(self.downstream, upstream, upload, meter, idle, &self.timers.idle);
        let result = relay
            .until_head(&self.timers.response, route.timeout, |side, sent, cx| {
                if let Some(mirror) = mirror {
                    mirror.follow(sent, asked, plan.forward);
                }
                side.poll_response_head(cx, method, response)
            })
            .await;
        let upload = relay.into_upload();
        match result {
            Ok(info) => Ok((info, upload)),
            Err(error) => Err(self.give_up(fault::relay(&error, Phase::BeforeHead))),
        }
    }
}
