//! Stop 6: one request and its response, retries included. THE list of stops 7 to 12 is [`Exchange::stops`].
//!
//! The connection hands over a request head and its side; what comes back says what the connection may do next.
//! Everything in between (who is calling, route, policies, attempts, the reply to an error) is decided here.

mod attempt;
mod connect;
mod detached;
mod hedge;
mod log_row;
mod mirror;
mod place;
mod prepare;
mod respond;
mod session;

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use core_runtime::clock;
use core_runtime::timer::Deadline;
use http_gateway::chain::{self, Memory, Policies, Refusal, Subject, Verdict};
use http_gateway::client_addr::ClientAddr;
use http_gateway::client_limit::LimitScope;
use http_gateway::jwt::{Identity, TokenPolicy, Unseen};
use http_wire::fields::FieldId;
use http_wire::grpc;
use http_wire::h1::{Persistence, ResponseFraming};
use http_wire::h2::ErrorCode;
use http_wire::head::{BodyLength, Method, RequestHead, ResponseHead, Version};
use http_wire::number::hex_digits;

pub(crate) use self::place::{Done, Place, Work, run_in_place};
pub(crate) use self::respond::INTERIM_RESPONSES_MAX;
use crate::conn::ConnInfo;
use crate::core::{Core, LiveSnapshot};
use crate::pool::{Lease, Settings};
use crate::reason::Reason;
use crate::record::{Outcome, Stage};
use crate::relay::Direction;
use crate::reply::{self, Pages, Reply};
use crate::route::RouteIndex;
use crate::side::{BodyEvent, Side, SideError};
use crate::snapshot::{Action, ErrorPage, ListenerConfig, Route};

/// A request as its connection received it, and the head of its response.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) head: RequestHead,
    /// Filled by the exchange; here, so that both heads go back to the core together.
    pub(crate) response: ResponseHead,
    pub(crate) body: BodyLength,
    /// What the client wants of its connection afterwards.
    pub(crate) persistence: Persistence,
    pub(crate) te_trailers: bool,
    /// When the first byte of the head was seen, and when the last.
    pub(crate) began_at: Duration,
    pub(crate) parsed_at: Duration,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            head: RequestHead::default(),
            response: ResponseHead::default(),
            body: BodyLength::Empty,
            persistence: Persistence::Close,
            te_trailers: false,
            began_at: Duration::ZERO,
            parsed_at: Duration::ZERO,
        }
    }
}

/// Deadlines that a place keeps and each of its exchanges moves.
#[derive(Debug, Default)]
struct Timers {
    response: Deadline,
    idle: Deadline,
}

/// What the connection may do after an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Read the next request.
    KeepAlive,
    /// Close, after the answer has left; unread request bytes are read and dropped for a while.
    Close,
    /// The response was cut: whatever is done, it must not look complete.
    Abort,
}

/// Why the list of stops ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The proxy answers.
    Reply(Box<Reply>),
    /// Nothing can be answered any more.
    Cut(Reason),
}

impl Stop {
    pub(crate) fn reply(reason: Reason) -> Self {
        Self::Reply(Box::new(Reply::refusal(reason)))
    }

    fn reason(&self) -> Reason {
        match self {
            Self::Reply(reply) => reply.reason,
            Self::Cut(reason) => *reason,
        }
    }
}

impl From<http_wire::fields::FieldError> for Stop {
    fn from(_: http_wire::fields::FieldError) -> Self {
        Self::reply(Reason::HeadNotWritable)
    }
}

/// One exchange on its way.
pub(crate) struct Exchange<'a> {
    core: &'a Rc<Core>,
    conn: &'a ConnInfo,
    request: &'a mut Request,
    downstream: &'a mut Side,
    timers: &'a Timers,
    request_id: RequestId,
    client: Option<ClientAddr>,
    outcome: Outcome,
    /// Where the request was routed, for the reply to an error.
    routed: Option<RouteIndex>,
    head_sent: bool,
    /// The request body for the next attempt, from its beginning.
    upload: Option<Direction>,
    /// The last attempt's target, for the log.
    target: Option<(Rc<Settings>, SocketAddr)>,
    /// What the client asked for, where a rewrite has changed the head.
    asked: Option<Box<Asked>>,
    is_recorded: bool,
    /// The request is to be mirrored.
    mirror: Option<Box<mirror::Wish>>,
    /// The session of a cluster with sessions, where its cookie changes.
    new_cookie: Option<session::NewCookie>,
    /// A second attempt that may begin while the first is silent.
    hedge: Option<Box<hedge::Hedge>>,
    /// The attempt whose answer was passed on in place of the first one's.
    winner: Option<Lease>,
    /// Whose the request's token is, where the route asks for one.
    identity: Option<Rc<Identity>>,
}

/// The part of a request head that a route may rewrite.
#[derive(Debug)]
struct Asked {
    host: Vec<u8>,
    path: Vec<u8>,
}

/// 32 hexadecimal digits, or what a trusted client sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestId {
    bytes: [u8; Self::BYTES_MAX],
    len: usize,
}

impl RequestId {
    pub(crate) const BYTES_MAX: usize = 64;

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    fn given(value: &[u8]) -> Option<Self> {
        let fits = (1..=Self::BYTES_MAX).contains(&value.len());
        let is_plain = value.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
        if !fits || !is_plain {
            return None;
        }
        let mut bytes = [0; Self::BYTES_MAX];
        bytes.get_mut(..value.len())?.copy_from_slice(value);
        Some(Self { bytes, len: value.len() })
    }

    fn random(high: u64, low: u64) -> Self {
        let mut bytes = [0; Self::BYTES_MAX];
        bytes[..16].copy_from_slice(&hex_digits(high));
        bytes[16..32].copy_from_slice(&hex_digits(low));
        Self { bytes, len: 32 }
    }
}

/// A policy's refusal as a reply.
fn refused(refusal: Refusal, mut reply: Reply) -> Stop {
    reply.status = refusal.status;
    reply.reason = refusal.cause.into();
    Stop::Reply(Box::new(reply))
}

/// Runs one exchange to its end and records it. What is no request that could be routed is answered and recorded.
async fn run(core: &Rc<Core>, work: &mut Work, timers: &Timers) -> Next {
    let snapshot = core.snapshot_of(work.conn.listener);
    let listener = snapshot.listener(work.conn.listener);
    let refused = work.refused;
    let mut exchange = Exchange::begin(core, work, timers);
    let result = match (refused, listener) {
        (Some(reason), _) => Err(Stop::reply(reason)),
        (None, Some(listener)) => exchange.stops(&snapshot, listener).await,
        // Not unless the listener has gone twice: connections of one that has gone keep its last config.
        (None, None) => Err(Stop::reply(Reason::Draining)),
    };
    let next = match result {
        Ok(next) => next,
        Err(stop) => exchange.stop(stop, listener).await,
    };
    exchange.record(listener);
    next
}

impl<'a> Exchange<'a> {
    fn begin(core: &'a Rc<Core>, work: &'a mut Work, timers: &'a Timers) -> Self {
        let Work { conn, request, downstream, .. } = work;
        let outcome = Outcome {
            listener: conn.listener,
            method: request.head.method,
            protocol: request.head.version,
            ..Outcome::default()
        };
        Self {
            request_id: RequestId::random(core.random(), core.random()),
            core,
            conn,
            request,
            downstream,
            timers,
            client: None,
            outcome,
            routed: None,
            head_sent: false,
            upload: None,
            target: None,
            asked: None,
            is_recorded: false,
            mirror: None,
            new_cookie: None,
            hedge: None,
            winner: None,
            identity: None,
        }
    }

    /// The request path, in order.
    async fn stops(&mut self, snapshot: &Rc<LiveSnapshot>, listener: &ListenerConfig) -> Result<Next, Stop> {
        self.identify(listener)?;
        self.settle_host()?;
        self.check_session(listener)?;
        self.normalise_path(listener)?;
        //  7  route: this core's snapshot, host → path → matches
        let routes = &listener.routes;
        let Some(found) =
            routes.find(&self.request.head, self.request.head.authority(), self.request.head.path())
        else {
            let known = routes.serves_host(self.request.head.authority());
            return Err(Stop::reply(if known { Reason::NoRoute } else { Reason::NoVirtualHost }));
        };
        self.routed = Some(found.index);
        self.outcome.route = Some(found.route.stat);
        //  8  gateway: the policies of the listener, then of the route
        if let Some(unseen) = self.admit(listener, found.route)? {
            // Boxed: a token comes many times, and every other exchange would carry what this needs.
            Box::pin(self.verify_token(listener, found.route, unseen)).await?;
        }
        match &found.route.action {
            Action::Redirect(redirect) => Err(self.redirect(redirect, found.matched_bytes, listener)?),
            Action::Direct(direct) => Err(Stop::Reply(Box::new(Reply {
                status: direct.status,
                content_type: Some(direct.content_type.clone()),
                body: direct.body.clone(),
                ..Reply::default()
            }))),
            //  9 to 11  balance, pool, relay: once per attempt
            Action::Forward(forward) => {
                self.prepare_request(listener, found.route, forward, found.matched_bytes)?;
                self.forward(snapshot, listener, found.route, forward).await
            }
        }
    }

    /// The policies in order. `Some`: all have passed but a token that was not seen before.
    fn admit(&mut self, listener: &ListenerConfig, route: &Route) -> Result<Option<Unseen>, Stop> {
        let of_listener = Policies {
            client_limit: listener
                .http
                .client_limit
                .as_ref()
                .map(|l| (LimitScope::listener(listener.stat.0), l)),
            ..Policies::default()
        };
        let of_route = Policies {
            access: route.access.as_ref(),
            client_limit: route.client_limit.as_ref().map(|l| (LimitScope::route(route.stat.0), l)),
            body_bytes_max: route.body_bytes_max,
            cors: route.cors.as_ref(),
            token: listener.http.token_policy(route),
        };
        let subject = self.subject();
        let (mut limiter, mut tokens) = (self.core.limiter.borrow_mut(), self.core.tokens.borrow_mut());
        let mut memory = Memory { limiter: &mut limiter, tokens: &mut tokens };
        let (mut identity, mut unverified) = (None, None);
        for policies in [of_listener, of_route].iter().filter(|policies| !policies.is_empty()) {
            let mut reply = Reply::default();
            match chain::evaluate(policies, &subject, &mut memory, &mut reply.fields)? {
                Verdict::Continue => {}
                Verdict::Verified(verified) => identity = Some(verified),
                Verdict::Unverified(unseen) => unverified = Some(unseen),
                Verdict::Reply(refusal) => return Err(refused(refusal, reply)),
            }
        }
        self.identity = identity;
        self.outcome.stages.set(Stage::Gateway, clock::now().saturating_sub(self.request.parsed_at));
        Ok(unverified)
    }

    /// The last policy for a token that was not seen before. Signatures take turns: a flood of bad tokens, which cost their
    /// senders nothing, makes no long turn.
    async fn verify_token(
        &mut self,
        listener: &ListenerConfig,
        route: &Route,
        unseen: Unseen,
    ) -> Result<(), Stop> {
        // Only a route that asks for a token has an unseen one.
        let Some(policy) = listener.http.token_policy(route) else {
            return Err(Stop::reply(Reason::Internal));
        };
        let mut place = None;
        std::future::poll_fn(|cx| self.core.verifications.poll_enter(cx, &mut place)).await;
        self.identity = Some(self.verified(&policy, unseen)?);
        self.outcome.stages.set(Stage::Gateway, clock::now().saturating_sub(self.request.parsed_at));
        Ok(())
    }

    fn verified(&self, policy: &TokenPolicy<'_>, unseen: Unseen) -> Result<Rc<Identity>, Stop> {
        let mut reply = Reply::default();
        let (mut limiter, mut tokens) = (self.core.limiter.borrow_mut(), self.core.tokens.borrow_mut());
        let before = tokens.counts().signatures;
        let mut memory = Memory { limiter: &mut limiter, tokens: &mut tokens };
        let verdict = chain::verify_token(policy, unseen, &self.subject(), &mut memory, &mut reply.fields)?;
        // A token that names no key was several signatures' work.
        let more = tokens.counts().signatures.saturating_sub(before + 1);
        self.core.verifications.spend(usize::try_from(more).unwrap_or(usize::MAX));
        match verdict {
            Verdict::Verified(identity) => Ok(identity),
            Verdict::Reply(refusal) => Err(refused(refusal, reply)),
            Verdict::Continue | Verdict::Unverified(_) => Err(Stop::reply(Reason::Internal)),
        }
    }

    /// What policies look at.
    fn subject(&self) -> Subject<'_> {
        Subject {
            client: self.client_ip(),
            head: &self.request.head,
            body: self.request.body,
            now: clock::now(),
            unix_now: clock::unix_time(),
        }
    }

    pub(crate) fn client_ip(&self) -> std::net::IpAddr {
        self.client.as_ref().map_or(self.conn.peer.ip(), |client| client.address)
    }

    /// Ends an exchange that the list of stops did not carry through.
    async fn stop(&mut self, stop: Stop, listener: Option<&ListenerConfig>) -> Next {
        match stop {
            Stop::Reply(mut reply) if !self.head_sent => {
                self.outcome.reason = reply.reason;
                match self.send_reply(&mut reply, listener).await {
                    Ok(next) => next,
                    Err(error) => {
                        self.outcome.reason = crate::fault::downstream(&error);
                        self.abort()
                    }
                }
            }
            Stop::Reply(reply) => {
                self.outcome.reason = reply.reason;
                self.abort()
            }
            Stop::Cut(reason) => {
                self.outcome.reason = reason;
                self.abort()
            }
        }
    }

    /// Makes sure that what was sent of the response does not pass for all of it (C25).
    fn abort(&mut self) -> Next {
        if let Side::H2(side) = self.downstream {
            let client_left = matches!(self.outcome.reason, Reason::ClientReset | Reason::ClientClosed);
            side.reset(if client_left { ErrorCode::CANCEL } else { ErrorCode::INTERNAL_ERROR });
        }
        Next::Abort
    }

    async fn send_reply(
        &mut self,
        reply: &mut Reply,
        listener: Option<&ListenerConfig>,
    ) -> Result<Next, SideError> {
        let route = listener.and_then(|listener| listener.routes.route(self.routed?));
        let none: &[ErrorPage] = &[];
        let pages: Pages<'_> = [
            route.map_or(none, |route| &route.error_pages),
            listener.map_or(none, |listener| &listener.http.error_pages),
        ];
        let request_id = self.request_id;
        reply::dress(reply, &self.request.head, request_id.as_bytes(), &pages, &mut self.request.response)
            .map_err(|_unfit| SideError::NotWritable)?;
        if let Some(route) = route {
            self.finish_response_fields(route).map_err(|_unfit| SideError::NotWritable)?;
        } else {
            let set = self.request.response.fields.set(FieldId::XRequestId, request_id.as_bytes());
            set.map_err(|_unfit| SideError::NotWritable)?;
        }
        let mut date = None;
        if !self.request.response.fields.contains(FieldId::Date) {
            date = Some(http_wire::date::imf_fixdate(clock::unix_time().as_secs()));
        }
        if let Some(date) = date {
            self.request
                .response
                .fields
                .push(FieldId::Date, &date)
                .map_err(|_unfit| SideError::NotWritable)?;
        }
        let length = u64::try_from(reply.body.len()).unwrap_or(u64::MAX);
        let (body, declared) = if self.request.response.fields.contains(FieldId::GrpcStatus) {
            self.outcome.grpc_status = Some(reply.reason.grpc_status().number());
            (BodyLength::Empty, None)
        } else if length == 0 {
            (BodyLength::Empty, Some(0).filter(|_| self.request.response.status != 304))
        } else {
            (BodyLength::Exact(length), None)
        };
        let persistence = self.persistence_after();
        let next = self.send_head(body, declared, persistence)?;
        let sends_body =
            self.request.head.method != Method::Head && !reply.body.is_empty() && body != BodyLength::Empty;
        let end = if sends_body && !matches!(self.request.response.status, 204 | 304) {
            self.outcome.response_bytes = length;
            let body = bytes::Bytes::from(std::mem::take(&mut reply.body));
            BodyEvent::Last(crate::chunk::Chunk::Shared(body))
        } else {
            BodyEvent::End(None)
        };
        self.downstream.send_body(end)?;
        self.flush_within_idle_limit(listener).await?;
        Ok(next)
    }

    /// A client that does not read its reply holds the connection no longer than any other slow reader.
    async fn flush_within_idle_limit(&mut self, listener: Option<&ListenerConfig>) -> Result<(), SideError> {
        let limit = listener.map_or(Duration::from_secs(10), |listener| listener.http.body_idle_timeout);
        self.timers.idle.set_after(limit);
        std::future::poll_fn(|cx| {
            if let std::task::Poll::Ready(result) = self.downstream.poll_flush(cx) {
                return std::task::Poll::Ready(result);
            }
            self.timers.idle.poll_expired(cx).map(|()| Err(SideError::Refuse(Reason::ClientSlow)))
        })
        .await
    }

    /// Whether the connection can go on after a reply: not when request bytes are left unread.
    fn persistence_after(&self) -> Persistence {
        let unread = !self.downstream.has_received_all() && self.request.body != BodyLength::Empty;
        if unread || self.core.is_draining() { Persistence::Close } else { self.request.persistence }
    }

    /// Sends `self.request.response` to the client.
    pub(crate) fn send_head(
        &mut self,
        body: BodyLength,
        declared_length: Option<u64>,
        persistence: Persistence,
    ) -> Result<Next, SideError> {
        let framing = ResponseFraming {
            body,
            declared_length,
            persistence,
            client_version: self.request.head.version,
            request_method: self.request.head.method,
        };
        let sent = self.downstream.send_response_head(&self.request.response, framing)?;
        let response = &self.request.response;
        if !response.is_interim() || response.status == 101 {
            self.head_sent = true;
            self.outcome.status = response.status;
        }
        Ok(match sent.persistence {
            Persistence::KeepAlive => Next::KeepAlive,
            Persistence::Close => Next::Close,
        })
    }

    pub(crate) fn is_grpc(&self) -> bool {
        self.request.head.version == Version::Http2
            && self.request.head.fields.get(FieldId::ContentType).is_some_and(grpc::is_grpc)
    }

    /// Stop 12: counters, stages, log line.
    fn record(&mut self, listener: Option<&ListenerConfig>) {
        self.is_recorded = true;
        let now = clock::now();
        self.outcome
            .stages
            .set(Stage::HeadParse, self.request.parsed_at.saturating_sub(self.request.began_at));
        self.outcome.stages.set(Stage::Total, now.saturating_sub(self.request.began_at));
        self.core.stats.borrow_mut().record(&self.outcome);
        self.end_mirror();
        if let Some(listener) = listener {
            self.log(listener);
        }
    }
}

impl Drop for Exchange<'_> {
    /// An exchange that goes with its core, when the time to drain is over, or with a panic, is recorded all the same.
    fn drop(&mut self) {
        if !self.is_recorded {
            self.outcome.reason = if std::thread::panicking() { Reason::Internal } else { Reason::Draining };
            let snapshot = self.core.snapshot_of(self.conn.listener);
            self.record(snapshot.listener(self.conn.listener));
        }
    }
}
