//! Stops 9 to 11: choose a cluster and an endpoint, get a connection, relay; and once more where that is safe.
//!
//! Safe means that no backend can have acted on the request twice (C19, C22, C23): the connection could not be
//! made; the backend said that it did not look at it; or the connection died before any byte of an answer, and the
//! request is idempotent or none of it was written. What was taken of the body must be whole: up to 64 KiB of it are
//! kept. The second attempt goes to another endpoint where there is one, since the first may be down; after a dead pooled
//! connection it dials, since another one may be as dead.

use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use core_runtime::clock;
use http_gateway::body_limit::BodyMeter;
use http_wire::fields::FieldId;
use http_wire::h1::{Persistence, RequestFraming};
use http_wire::head::{BodyLength, Method, Scheme, Version};
use http_wire::number::Decimal;

use super::{Exchange, Next, Stop};
use crate::core::LiveSnapshot;
use crate::fault::{self, Phase};
use crate::pool::{self, Fresh, H2Lease, Lease, Ticket};
use crate::reason::Reason;
use crate::record::Stage;
use crate::relay::{Direction, IdleLimits, Relay, RelayError};
use crate::side::{H2Side, ResponseInfo, Side, SideError};
use crate::snapshot::{Forward, HostRewrite, ListenerConfig, Route, UpstreamProtocol};
use crate::upgrade;

/// Attempts of one exchange, the first included.
const ATTEMPTS_MAX: u32 = 2;

/// What an attempt holds of the pool.
enum Held {
    H1(Ticket),
    H2(H2Lease),
}

/// An attempt that came to nothing.
struct Failure {
    reason: Reason,
    retry: Retry,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retry {
    No,
    /// The endpoint could not be reached, or died.
    Elsewhere,
    /// The pooled connection was dead; its endpoint may be, too.
    Stale,
}

impl Failure {
    fn of_connect(reason: Reason) -> Self {
        let is_over = matches!(reason, Reason::ClientReset | Reason::DeadlineExceeded);
        Self { reason, retry: if is_over { Retry::No } else { Retry::Elsewhere } }
    }
}

impl Exchange<'_> {
    pub(super) async fn forward(
        &mut self,
        snapshot: &Rc<LiveSnapshot>,
        listener: &ListenerConfig,
        route: &Route,
        forward: &Forward,
    ) -> Result<Next, Stop> {
        self.arm_deadline(route)?;
        let key_hash = forward.split.key_hash(&self.request.head);
        let index = forward.split.pick(self.core.random(), key_hash);
        let cluster =
            self.core.clusters.get(snapshot, index).ok_or_else(|| Stop::reply(Reason::NoEndpoint))?;
        self.outcome.cluster = Some(cluster.config().stat);
        let (mut exclude, mut fresh) = (None, Fresh::No);
        loop {
            //  9  balance: cluster → endpoint
            let lease = cluster.pick(self.core.random(), exclude).map_err(Stop::reply)?;
            self.outcome.endpoint = Some(lease.endpoint.stat);
            self.target = Some((Rc::clone(&cluster), lease.endpoint.address));
            self.outcome.attempts += 1;
            if self.outcome.attempts > 1 {
                let number = Decimal::new(u64::from(self.outcome.attempts));
                self.request.head.fields.set(FieldId::XShardAttempt, number.as_bytes())?;
            }
            let failure = match self.attempt(&lease, listener, route, forward, fresh).await? {
                Ok(next) => return Ok(next),
                Err(failure) => failure,
            };
            match failure.retry {
                Retry::Elsewhere if self.outcome.attempts < ATTEMPTS_MAX => {}
                Retry::Stale if self.outcome.attempts < ATTEMPTS_MAX => {
                    self.core.stats.borrow_mut().counters.pool_stale += 1;
                    fresh = Fresh::Yes;
                }
                _ => return Err(self.give_up(failure.reason)),
            }
            exclude = Some(lease.index);
        }
    }

    fn give_up(&self, reason: Reason) -> Stop {
        if self.head_sent || reason.status().is_none() { Stop::Cut(reason) } else { Stop::reply(reason) }
    }

    /// Arms the caller's own limit and tells backends what remains.
    fn arm_deadline(&mut self, route: &Route) -> Result<(), Stop> {
        self.timers.response.clear();
        let caller = self.caller_timeout()?;
        if let Some(limit) = caller {
            self.timers.response.set(self.request.began_at + limit);
        }
        let spent = clock::now().saturating_sub(self.request.began_at);
        let left =
            [route.timeout, caller.map(|limit| limit.saturating_sub(spent))].into_iter().flatten().min();
        if let Some(left) = left {
            let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            self.request.head.fields.set(FieldId::XDeadlineMs, Decimal::new(left_ms).as_bytes())?;
        }
        Ok(())
    }

    /// One attempt at one endpoint. The outer error ends the exchange, the inner one may be tried again.
    async fn attempt(
        &mut self,
        lease: &Lease,
        listener: &ListenerConfig,
        route: &Route,
        forward: &Forward,
        fresh: Fresh,
    ) -> Result<Result<Next, Failure>, Stop> {
        if let (Some(HostRewrite::Upstream), Some(host)) = (&forward.host_rewrite, &lease.endpoint.hostname) {
            self.request.head.set_authority(host.as_bytes())?;
        }
        // 10  pool: reuse this core's upstream connection or dial
        let pool_started = clock::now();
        let opened = self.open(lease, fresh).await;
        self.count_opened(lease, opened.as_ref().map(|(_, held)| held).map_err(|failure| failure.reason));
        let (mut upstream, held) = match opened {
            Ok(opened) => opened,
            Err(failure) => return Ok(Err(failure)),
        };
        let connect = held.connect();
        let waited = clock::now().saturating_sub(pool_started).saturating_sub(connect.unwrap_or_default());
        self.outcome.stages.set(Stage::PoolWait, waited);
        if let Some(connect) = connect {
            self.outcome.stages.set(Stage::Connect, connect);
        }
        // 11  relay: ONE duplex loop, bounded both ways
        let result = self.relay(&mut upstream, &held, listener, route).await;
        match result {
            Ok(Ok((next, info))) => {
                held.give_back(lease, upstream, info.persistence, next);
                Ok(Ok(next))
            }
            Ok(Err(failure)) => Ok(Err(failure)),
            Err(stop) => Err(stop),
        }
    }

    fn count_opened(&self, lease: &Lease, opened: Result<&Held, Reason>) {
        let (cluster, endpoint) = (lease.cluster.config().stat, lease.endpoint.stat);
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
    async fn open(&mut self, lease: &Lease, fresh: Fresh) -> Result<(Side, Held), Failure> {
        match lease.protocol() {
            UpstreamProtocol::Http1 => {
                let opened = self.unless_gone(pool::check_out(lease, fresh)).await;
                let (mut side, ticket) = opened.map_err(Failure::of_connect)?;
                upgrade::ask_over_h1(&mut self.request.head, self.core.random(), self.core.random());
                // What follows an upgrade is the tunnel, not a body.
                let is_upgrade = self.request.head.protocol().is_some();
                let framing = RequestFraming {
                    body: if is_upgrade { BodyLength::Empty } else { self.request.body },
                    persistence: Persistence::KeepAlive,
                    te_trailers: self.request.te_trailers,
                };
                let written = side.send_request_head(&self.request.head, framing);
                written.map_err(|error| Failure {
                    reason: fault::upstream(&error, Phase::BeforeHead),
                    retry: Retry::No,
                })?;
                Ok((Side::H1(side), Held::H1(ticket)))
            }
            UpstreamProtocol::Http2 => self.open_stream(lease).await,
        }
    }

    /// Waits for a connection as long as the client waits (C27): a stream that was reset must not go on as work
    /// (C20).
    async fn unless_gone<T>(&mut self, open: impl Future<Output = Result<T, Reason>>) -> Result<T, Reason> {
        let mut open = std::pin::pin!(open);
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

    async fn open_stream(&mut self, lease: &Lease) -> Result<(Side, Held), Failure> {
        let stream = self.unless_gone(H2Lease::take(lease)).await.map_err(Failure::of_connect)?;
        let dead = |_error: h2::Error| Failure { reason: Reason::UpstreamGoaway, retry: Retry::Stale };
        let mut send = stream.sender().map_err(dead)?;
        let is_upgrade = self.request.head.protocol().is_some();
        if is_upgrade {
            self.unless_gone(stream.settled(&lease.cluster)).await.map_err(Failure::of_connect)?;
        }
        if is_upgrade && !send.is_extended_connect_protocol_enabled() {
            return Err(Failure { reason: Reason::UpgradeRefused, retry: Retry::No });
        }
        let scheme = if lease.cluster.config().tls.is_some() { Scheme::Https } else { Scheme::Http };
        let body = if is_upgrade { BodyLength::Streamed } else { self.request.body };
        let request =
            crate::convert::request_to_h2(&self.request.head, body, self.request.te_trailers, scheme)
                .map_err(|_unfit| Failure { reason: Reason::HeadNotWritable, retry: Retry::No })?;
        match send.send_request(request, body == BodyLength::Empty) {
            Ok((response, sender)) => {
                Ok((Side::H2(H2Side::upstream(response, sender, body)), Held::H2(stream)))
            }
            Err(error) => {
                stream.close();
                Err(dead(error))
            }
        }
    }

    /// Relays the request up and the response down.
    async fn relay(
        &mut self,
        upstream: &mut Side,
        held: &Held,
        listener: &ListenerConfig,
        route: &Route,
    ) -> Result<Result<(Next, ResponseInfo), Failure>, Stop> {
        let idle = IdleLimits {
            downstream: listener.http.body_idle_timeout,
            upstream: route.idle_timeout.unwrap_or(listener.http.body_idle_timeout),
        };
        // A tunnel's bytes are not a request body: nothing may pass before the backend agrees (C07).
        let has_no_body = self.request.body == BodyLength::Empty || self.request.head.protocol().is_some();
        let request = match self.upload.take() {
            Some(again) => again,
            None if has_no_body => Direction::ended(),
            None => Direction::replayable(),
        };
        let sent_at = clock::now();
        let meter = BodyMeter::new(route.body_bytes_max);
        let (downstream, timers, method) = (&mut *self.downstream, self.timers, self.request.head.method);
        let method = if method == Method::Connect { Method::Get } else { method };
        let response = &mut self.request.response;
        let mut relay = Relay::new(downstream, upstream, request, meter, idle, &timers.idle);
        let result = relay
            .until_head(&timers.response, route.timeout, |side, cx| {
                side.poll_response_head(cx, method, response)
            })
            .await;
        let upload = relay.into_upload();
        self.outcome.request_bytes = upload.bytes;
        let info = match result {
            Ok(info) => info,
            Err(error) => return self.failed_before_head(&error, held, upload, upstream),
        };
        let upload = upload.settled();
        self.outcome.stages.set(Stage::FirstByte, clock::now().saturating_sub(sent_at));
        self.pass_response(upstream, info, upload, idle, route).await.map(Ok)
    }

    /// Tells whether an attempt that brought no response head may be made again.
    fn failed_before_head(
        &mut self,
        error: &RelayError,
        held: &Held,
        upload: Direction,
        upstream: &Side,
    ) -> Result<Result<(Next, ResponseInfo), Failure>, Stop> {
        let reason = match error {
            RelayError::Deadline if self.caller_deadline_passed() => Reason::DeadlineExceeded,
            error => fault::relay(error, Phase::BeforeHead),
        };
        let RelayError::Upstream(side_error) = error else { return Err(self.give_up(reason)) };
        let was_not_processed = matches!(side_error, SideError::Refused | SideError::GoneAway);
        let is_dead_connection = matches!(side_error, SideError::Closed | SideError::Io(_))
            && (self.request.head.method.is_idempotent() || !upstream.has_written());
        if let Held::H2(stream) = held
            && (was_not_processed || matches!(side_error, SideError::H2(_)))
        {
            stream.close();
        }
        if was_not_processed || is_dead_connection {
            self.upload = upload.again();
        }
        let retry = match self.upload {
            Some(_) if held.is_reused() => Retry::Stale,
            Some(_) => Retry::Elsewhere,
            None => Retry::No,
        };
        Ok(Err(Failure { reason, retry }))
    }

    fn caller_deadline_passed(&self) -> bool {
        let limit = self.caller_timeout().ok().flatten();
        limit.is_some_and(|limit| clock::now() >= self.request.began_at + limit)
    }

    /// From the first response head to the end of the exchange.
    async fn pass_response(
        &mut self,
        upstream: &mut Side,
        mut info: ResponseInfo,
        mut upload: Direction,
        idle: IdleLimits,
        route: &Route,
    ) -> Result<(Next, ResponseInfo), Stop> {
        let head_at = clock::now();
        while self.request.response.is_interim() && self.request.response.status != 101 {
            self.pass_interim().await?;
            (info, upload) = self.next_head(upstream, upload, idle, route).await?;
        }
        let is_tunnel =
            upgrade::accept(&self.request.head, &mut self.request.response).map_err(Stop::reply)?;
        self.finish_response_fields(route)?;
        if self.is_grpc() {
            self.outcome.grpc_status = upgrade::grpc_status(&self.request.response);
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
        let unlimited = if is_tunnel { BodyMeter::new(None) } else { BodyMeter::new(route.body_bytes_max) };
        let tunnel_idle = IdleLimits { downstream: idle.upstream, upstream: idle.upstream };
        let limits = if is_tunnel { tunnel_idle } else { idle };
        let mut relay = Relay::new(self.downstream, upstream, upload, unlimited, limits, &self.timers.idle);
        let result = if is_tunnel { relay.until_both_end().await } else { relay.until_end().await };
        let request_is_over = relay.has_sent_request();
        self.outcome.response_bytes = relay.response.bytes;
        self.outcome.request_bytes = relay.request.bytes;
        self.outcome.stages.set(Stage::Body, clock::now().saturating_sub(head_at));
        result.map_err(|error| Stop::Cut(fault::relay(&error, Phase::InBody)))?;
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
    async fn pass_interim(&mut self) -> Result<(), Stop> {
        if self.request.head.version == Version::Http10 {
            return Ok(());
        }
        let cut = |error: SideError| Stop::Cut(fault::downstream(&error));
        self.send_head(BodyLength::Empty, None, Persistence::KeepAlive).map_err(cut)?;
        std::future::poll_fn(|cx| self.downstream.poll_flush(cx)).await.map_err(cut)
    }

    /// Waits for the response head behind an interim one.
    async fn next_head(
        &mut self,
        upstream: &mut Side,
        upload: Direction,
        idle: IdleLimits,
        route: &Route,
    ) -> Result<(ResponseInfo, Direction), Stop> {
        let method = self.request.head.method;
        let meter = BodyMeter::new(route.body_bytes_max);
        let response = &mut self.request.response;
        let mut relay = Relay::new(self.downstream, upstream, upload, meter, idle, &self.timers.idle);
        let result = relay
            .until_head(&self.timers.response, route.timeout, |side, cx| {
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

impl Held {
    fn is_reused(&self) -> bool {
        match self {
            Self::H1(ticket) => ticket.is_reused,
            Self::H2(stream) => stream.is_reused,
        }
    }

    fn connect(&self) -> Option<Duration> {
        match self {
            Self::H1(ticket) => ticket.connect,
            Self::H2(stream) => stream.connect,
        }
    }

    /// Returns an h1 connection to the pool when it is in step; an h2 stream's place is given back by dropping.
    fn give_back(self, lease: &Lease, upstream: Side, persistence: Persistence, next: Next) {
        if let (Self::H1(ticket), Side::H1(mut side)) = (self, upstream)
            && next != Next::Abort
            && side.is_reusable(persistence)
        {
            pool::give_back(lease, side, ticket);
        }
    }
}
