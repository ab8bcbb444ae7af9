//! Stops 9 to 11: choose a cluster and an endpoint, get a connection (`connect`), relay until the response begins
//! (`respond` passes it on); and once more where that is safe.
//!
//! Whether a failed attempt is made again is decided by `http_balance::retry`; here is what it goes by: how the attempt
//! failed, and what is left of the request. What was taken of the body must be whole: up to 64 KiB of it are kept. The
//! second attempt goes to another endpoint where there is one, since the first may be down; after a dead pooled
//! connection it dials, since another one may be as dead.

use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use core_runtime::clock;
use http_balance::admission::{Applicant, Refusal};
use http_balance::retry::{
    Again, Attempted, BodyState, Failure as Cause, NoRetry, Repeatability, RetryRules,
};
use http_balance::shed::{Class, ClientAttempt, LoadSign};
use http_balance::{Outcome, Slot};
use http_gateway::body_limit::BodyMeter;
use http_wire::fields::FieldId;
use http_wire::head::{BodyLength, Method};
use http_wire::number::Decimal;

use super::connect::Held;
use super::hedge::{Hedge, Won};
use super::{Exchange, Next, Stop};
use crate::core::LiveSnapshot;
use crate::fault::{self, Phase};
use crate::pool::{Cluster, Fresh, Lease};
use crate::reason::Reason;
use crate::record::Stage;
use crate::relay::{Direction, IdleLimits, Relay, RelayError};
use crate::reply::Reply;
use crate::side::{ResponseInfo, Side, SideError};
use crate::snapshot::{Forward, HostRewrite, IdempotencyKey, ListenerConfig, Route};

/// An attempt that came to nothing.
struct Failure {
    reason: Reason,
    /// Where another one goes that has been decided; None: there is none.
    again: Option<Again>,
}

/// How the relay of one attempt ended.
enum Relayed {
    Answered(Next, ResponseInfo),
    Failed(Failure),
    /// Its hedge was quicker; with the request, which the hedge has sent.
    Overtaken(Box<Won>, Box<Direction>),
}

/// What all attempts of an exchange go by.
#[derive(Clone, Copy)]
pub(super) struct Plan<'a> {
    pub(super) listener: &'a ListenerConfig,
    pub(super) route: &'a Route,
    pub(super) forward: &'a Forward,
}

/// What the wait for a response head brings.
enum Heard {
    First(ResponseInfo),
    Hedge(Box<Won>),
}

/// With a 503: the backend has not acted on the request.
const NOT_PROCESSED: &[u8] = b"x-shard-not-processed";

impl Exchange<'_> {
    pub(super) async fn forward(
        &mut self,
        snapshot: &Rc<LiveSnapshot>,
        listener: &ListenerConfig,
        route: &Route,
        forward: &Forward,
    ) -> Result<Next, Stop> {
        let plan = Plan { listener, route, forward };
        self.arm_deadline(route)?;
        let key_hash = forward.split.key_hash(&self.request.head);
        let index = forward.split.pick(self.core.random(), key_hash);
        let cluster =
            self.core.clusters.get(snapshot, index).ok_or_else(|| Stop::reply(Reason::NoEndpoint))?;
        self.outcome.cluster = Some(cluster.stat);
        let who = Applicant {
            class: self.class(&cluster, forward),
            core_strain: self.core.strain(),
            random: self.core.random(),
        };
        let mut admitted = cluster.admit(who).map_err(refused)?;
        self.mirror = forward.mirror.as_deref().and_then(|mirror| self.sampled(snapshot, forward, mirror));
        let key = forward.hash_key(&self.request.head, self.client_ip());
        let (mut failed, mut fresh) = (None, Fresh::No);
        loop {
            //  9  balance: cluster → endpoint
            let lease = self.choose(&cluster, key, failed)?;
            self.outcome.endpoint = Some(lease.endpoint.stat);
            self.target = Some((Rc::clone(&lease.settings), lease.endpoint.address));
            self.outcome.attempts += 1;
            self.outcome.is_in_panic |= cluster.count_choice(&lease, &self.core.stats);
            if self.outcome.attempts > 1 {
                let number = Decimal::new(u64::from(self.outcome.attempts));
                self.request.head.fields.set(FieldId::XShardAttempt, number.as_bytes())?;
            }
            if self.outcome.attempts == 1 && forward.hedge_after.is_some() {
                self.hedge = self.hedge_of(&lease, forward, key, self.time_left(route)?);
            }
            let is_retry = failed.is_some();
            let result = self.attempt(&lease, plan, fresh).await;
            admitted.ends_like(self.winner.as_ref().unwrap_or(&lease));
            self.end_hedge();
            let result = result?;
            if is_retry {
                let is_lost =
                    |failure: &Failure| fault::outcome(failure.reason, false) == Outcome::ConnectFailed;
                cluster.retried(!result.as_ref().is_err_and(is_lost));
            }
            let failure = match result {
                Ok(next) => return Ok(next),
                Err(failure) => failure,
            };
            match failure.again {
                Some(Again::Elsewhere) => {}
                Some(Again::FreshConnection) => {
                    self.core.stats.borrow_mut().counters.pool_stale += 1;
                    fresh = Fresh::Yes;
                }
                None => return Err(self.give_up(failure.reason)),
            }
            failed = failure.again.map(|again| (lease.slot, again));
        }
    }

    /// The endpoint of an attempt. In clusters with sessions it is the session's, also when only a connection `failed`.
    fn choose(
        &mut self,
        cluster: &Rc<Cluster>,
        key: Option<u64>,
        failed: Option<(Slot, Again)>,
    ) -> Result<Lease, Stop> {
        if cluster.is_sticky() {
            let lease = match failed {
                None => self.place(cluster),
                Some((slot, Again::FreshConnection)) => cluster.stay(slot),
                Some((_, Again::Elsewhere)) => None,
            };
            if let Some(lease) = lease {
                return Ok(lease);
            }
        }
        cluster.pick(self.core.random(), key, failed.map(|(slot, _)| slot)).map_err(Stop::reply)
    }

    /// The class that counts: a retry of the caller's own comes behind the first attempts of others.
    fn class(&self, cluster: &Cluster, forward: &Forward) -> Class {
        if !cluster.sheds() {
            return forward.class;
        }
        // gRPC proposal A6; other callers have no common word for it.
        let attempts = self.request.head.fields.get_name(b"grpc-previous-rpc-attempts");
        let is_retry = attempts.is_some_and(|attempts| attempts != b"0");
        forward.class.of_request(if is_retry { ClientAttempt::Retry } else { ClientAttempt::First })
    }

    /// Decides whether a failed attempt is made again; a yes has been paid for.
    fn decide(&self, (lease, plan): (&Lease, Plan<'_>), failure: Cause, body: BodyState) -> Option<Again> {
        let attempted = Attempted {
            failure,
            repeatability: self.repeatability(plan.forward),
            body,
            attempts: self.outcome.attempts,
            left: self.timers.response.at().map(|at| at.saturating_sub(clock::now())),
        };
        match lease.cluster.retry(&retry_rules(lease, plan), attempted) {
            Ok(again) => Some(again),
            Err(NoRetry::BudgetExhausted) => {
                self.core.stats.borrow_mut().retry_over_budget(lease.cluster.stat);
                None
            }
            Err(_) => None,
        }
    }

    /// The attempt failed before anything was taken of the request's body; what an attempt before took is kept.
    fn failed_unsent(&self, lease: &Lease, plan: Plan<'_>, reason: Reason, cause: Cause) -> Failure {
        lease.goes(fault::outcome(reason, cause == Cause::BeyondGoaway), Duration::ZERO, LoadSign::None);
        Failure { reason, again: self.decide((lease, plan), cause, BodyState::Kept) }
    }

    pub(super) fn repeatability(&self, forward: &Forward) -> Repeatability {
        let head = &self.request.head;
        let is_keyed = || {
            forward.idempotency_key == IdempotencyKey::Honoured
                && head.method == Method::Post
                && head.fields.get_name(b"idempotency-key").is_some_and(|key| !key.is_empty())
        };
        if head.method.is_idempotent() {
            Repeatability::Idempotent
        } else if is_keyed() {
            Repeatability::Keyed
        } else {
            Repeatability::Unsafe
        }
    }

    pub(super) fn give_up(&self, reason: Reason) -> Stop {
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

    /// What the route and the caller leave for the response, as it was told to the backend.
    fn time_left(&self, route: &Route) -> Result<Option<Duration>, Stop> {
        let spent = clock::now().saturating_sub(self.request.began_at);
        let caller = self.caller_timeout()?.map(|limit| limit.saturating_sub(spent));
        Ok([route.timeout, caller].into_iter().flatten().min())
    }

    /// One attempt at one endpoint. The outer error ends the exchange, the inner one may be tried again.
    async fn attempt(
        &mut self,
        lease: &Lease,
        plan: Plan<'_>,
        fresh: Fresh,
    ) -> Result<Result<Next, Failure>, Stop> {
        if let (Some(HostRewrite::Upstream), Some(host)) =
            (&plan.forward.host_rewrite, &lease.endpoint.hostname)
        {
            self.request.head.set_authority(host.as_bytes())?;
        }
        // 10  pool: reuse this core's upstream connection or dial
        let pool_started = clock::now();
        let opened = match self.hedge.take() {
            None => self.open(lease, fresh).await,
            Some(mut hedge) => {
                let first = first_of(Box::pin(self.open(lease, fresh)), &mut hedge).await;
                self.hedge = Some(hedge);
                match first {
                    Ok(opened) => opened,
                    Err(won) => {
                        // A hedge that begins before there is a connection has no body.
                        let won = (won, Direction::ended());
                        return Box::pin(self.overtaken(won, pool_started, (lease, plan))).await.map(Ok);
                    }
                }
            }
        };
        self.count_opened(lease, opened.as_ref().map(|(_, held)| held).map_err(|failed| failed.0));
        let (mut upstream, held) = match opened {
            Ok(opened) => opened,
            Err((reason, cause)) => {
                let failure = self.failed_unsent(lease, plan, reason, cause);
                return self.hedge_or(failure, lease, plan).await;
            }
        };
        let connect = held.connect();
        let waited = clock::now().saturating_sub(pool_started).saturating_sub(connect.unwrap_or_default());
        self.outcome.stages.set(Stage::PoolWait, waited);
        if let Some(connect) = connect {
            self.outcome.stages.set(Stage::Connect, connect);
        }
        // 11  relay: ONE duplex loop, bounded both ways
        match self.relay(&mut upstream, &held, lease, plan).await {
            Ok(Relayed::Answered(next, info)) => {
                held.give_back(lease, upstream, info.persistence, next);
                Ok(Ok(next))
            }
            Ok(Relayed::Failed(failure)) => self.hedge_or(failure, lease, plan).await,
            Ok(Relayed::Overtaken(won, upload)) => {
                // Cut before the other answer is passed on.
                drop((upstream, held));
                Box::pin(self.overtaken((won, *upload), pool_started, (lease, plan))).await.map(Ok)
            }
            Err(stop) => {
                blame(lease, &stop);
                Err(stop)
            }
        }
    }

    /// After a first attempt that came to nothing: the retry that has been decided, or what its hedge brings.
    async fn hedge_or(
        &mut self,
        failure: Failure,
        lease: &Lease,
        plan: Plan<'_>,
    ) -> Result<Result<Next, Failure>, Stop> {
        if failure.again.is_some() {
            return Ok(Err(failure));
        }
        let per_try = retry_rules(lease, plan).per_try_timeout;
        let upload = self.upload.take().unwrap_or_else(Direction::ended);
        match self.rest_of_hedge(per_try).await {
            Some(won) => Box::pin(self.pass_hedge(won, upload, plan)).await.map(Ok),
            None => Ok(Err(failure)),
        }
    }

    /// Passes on the answer of a hedge that came before that of `lease`, which says about as much of its endpoint as a
    /// timeout does.
    async fn overtaken(
        &mut self,
        (won, upload): (Box<Won>, Direction),
        began_at: Duration,
        (lease, plan): (&Lease, Plan<'_>),
    ) -> Result<Next, Stop> {
        lease.goes(Outcome::TimedOut, clock::now().saturating_sub(began_at), LoadSign::None);
        self.pass_hedge(won, upload, plan).await
    }

    /// Passes on the answer of a hedge, which has sent the request.
    async fn pass_hedge(&mut self, won: Box<Won>, upload: Direction, plan: Plan<'_>) -> Result<Next, Stop> {
        let Won { lease, mut side, held, response, info, sent_at } = *won;
        self.request.response = response;
        self.outcome.endpoint = Some(lease.endpoint.stat);
        self.target = Some((Rc::clone(&lease.settings), lease.endpoint.address));
        self.outcome.stages.set(Stage::FirstByte, clock::now().saturating_sub(sent_at));
        let idle = idle_limits(plan);
        let passed = self.pass_response(&mut side, info, upload, (idle, sent_at), (&lease, plan)).await;
        let next = match passed {
            Ok((next, info)) => {
                held.give_back(&lease, side, info.persistence, next);
                Ok(next)
            }
            Err(stop) => {
                blame(&lease, &stop);
                Err(stop)
            }
        };
        self.winner = Some(lease);
        next
    }

    /// Relays the request up and the response down.
    async fn relay(
        &mut self,
        upstream: &mut Side,
        held: &Held,
        lease: &Lease,
        plan: Plan<'_>,
    ) -> Result<Relayed, Stop> {
        let route = plan.route;
        let idle = idle_limits(plan);
        // A tunnel's bytes are not a request body: nothing may pass before the backend agrees (C07).
        let has_no_body = self.request.body == BodyLength::Empty || self.request.head.protocol().is_some();
        let request = match self.upload.take() {
            Some(again) => again,
            None if has_no_body => Direction::ended(),
            None => match &self.mirror {
                Some(mirror) => Direction::replayable().tapped(mirror.tap()),
                None => Direction::replayable(),
            },
        };
        let per_try = retry_rules(lease, plan).per_try_timeout;
        let timeout = [route.timeout, per_try].into_iter().flatten().min();
        let sent_at = clock::now();
        let meter = BodyMeter::new(route.body_bytes_max);
        let (downstream, timers, method) = (&mut *self.downstream, self.timers, self.request.head.method);
        let method = if method == Method::Connect { Method::Get } else { method };
        let (response, hedge) = (&mut self.request.response, &mut self.hedge);
        let (mirror, head) = (self.mirror.as_deref(), &self.request.head);
        let mut relay = Relay::new(downstream, upstream, request, meter, idle, &timers.idle);
        let result = relay
            .until_head(&timers.response, timeout, |side, sent, cx| {
                if let Some(mirror) = mirror {
                    mirror.follow(sent, head, plan.forward);
                }
                let head = side.poll_response_head(cx, method, response);
                match hedge {
                    Some(hedge) if head.is_pending() => {
                        hedge.poll(Some(sent), cx).map(|won| Ok(Heard::Hedge(won)))
                    }
                    _ => head.map_ok(Heard::First),
                }
            })
            .await;
        let upload = relay.into_upload();
        self.outcome.request_bytes = upload.bytes;
        let info = match result {
            Ok(Heard::First(info)) => info,
            Ok(Heard::Hedge(won)) => {
                return Ok(Relayed::Overtaken(won, Box::new(upload.sent_otherwise())));
            }
            Err(error) => {
                let is_per_try = per_try.is_some() && per_try == timeout && timeout != route.timeout;
                let tried = if is_per_try { per_try } else { None };
                return self
                    .failed_before_head((&error, tried), held, (lease, plan), (upload, upstream))
                    .map(Relayed::Failed);
            }
        };
        if self.request.response.status == 503 && self.has_response_field(NOT_PROCESSED) {
            lease.goes(Outcome::GatewayError, clock::now().saturating_sub(sent_at), self.load_sign());
            // Where it is not made again the response is passed on.
            let again = self.decide((lease, plan), Cause::NotProcessed503, upload.replay_state());
            if again.is_some() {
                self.upload = upload.again();
                return Ok(Relayed::Failed(Failure { reason: Reason::Ok, again }));
            }
        }
        self.end_hedge();
        let upload = upload.settled();
        self.outcome.stages.set(Stage::FirstByte, clock::now().saturating_sub(sent_at));
        let passed = self.pass_response(upstream, info, upload, (idle, sent_at), (lease, plan)).await;
        passed.map(|(next, info)| Relayed::Answered(next, info))
    }

    /// Tells whether an attempt that brought no response head may be made again. `tried` is the limit of one attempt,
    /// when that is what may have passed.
    fn failed_before_head(
        &mut self,
        (error, tried): (&RelayError, Option<Duration>),
        held: &Held,
        (lease, plan): (&Lease, Plan<'_>),
        (upload, upstream): (Direction, &Side),
    ) -> Result<Failure, Stop> {
        let reason = match error {
            RelayError::Deadline if self.caller_deadline_passed() => Reason::DeadlineExceeded,
            error => fault::relay(error, Phase::BeforeHead),
        };
        let mut was_going = false;
        let cause = match error {
            RelayError::Deadline if tried.is_some() && reason != Reason::DeadlineExceeded => {
                lease.goes(Outcome::TimedOut, tried.unwrap_or_default(), LoadSign::None);
                self.rearm_deadline(plan.route);
                Cause::PerTryTimeout
            }
            RelayError::Upstream(error) => {
                was_going = held.was_going(error);
                match error {
                    SideError::Refused => Cause::RefusedStream,
                    SideError::GoneAway => Cause::BeyondGoaway,
                    SideError::Closed | SideError::Io(_) => {
                        match (held.is_reused(), upstream.has_written()) {
                            (true, false) => Cause::StaleUnwritten,
                            (true, true) => Cause::StaleWritten,
                            (false, true) => Cause::Reset,
                            // As good as no connection: nothing was sent.
                            (false, false) => Cause::Connect,
                        }
                    }
                    _ => Cause::Response,
                }
            }
            _ => {
                lease.goes(fault::outcome(reason, false), Duration::ZERO, LoadSign::None);
                return Err(self.give_up(reason));
            }
        };
        if cause != Cause::PerTryTimeout {
            lease.goes(fault::outcome(reason, was_going), Duration::ZERO, LoadSign::None);
        }
        let again = self.decide((lease, plan), cause, upload.replay_state());
        self.upload = match (&again, &self.hedge) {
            (Some(_), _) => upload.again(),
            // The hedge has sent the same, which a mirror may get.
            (None, Some(_)) => Some(upload.sent_otherwise()),
            (None, None) => None,
        };
        Ok(Failure { reason, again })
    }

    /// Puts the limits of the whole exchange in place of that of one attempt.
    fn rearm_deadline(&self, route: &Route) {
        let caller = self.caller_timeout().ok().flatten().map(|limit| self.request.began_at + limit);
        let all = route.timeout.map(|timeout| self.request.parsed_at + timeout);
        self.timers.response.clear();
        if let Some(by) = [caller, all].into_iter().flatten().min() {
            self.timers.response.set(by);
        }
    }

    fn caller_deadline_passed(&self) -> bool {
        let limit = self.caller_timeout().ok().flatten();
        limit.is_some_and(|limit| clock::now() >= self.request.began_at + limit)
    }
}

/// Waits for the first attempt or its hedge, the first one where both are ready.
async fn first_of<T>(mut first: Pin<Box<impl Future<Output = T>>>, hedge: &mut Hedge) -> Result<T, Box<Won>> {
    std::future::poll_fn(|cx| match first.as_mut().poll(cx) {
        Poll::Ready(opened) => Poll::Ready(Ok(opened)),
        Poll::Pending => hedge.poll(None, cx).map(Err),
    })
    .await
}

/// Tells an endpoint's attempt what ended it after its response began, where that is the endpoint's doing.
fn blame(lease: &Lease, stop: &Stop) {
    let outcome = fault::outcome(stop.reason(), false);
    if outcome != Outcome::Abandoned {
        lease.breaks_off(outcome);
    }
}

fn idle_limits(plan: Plan<'_>) -> IdleLimits {
    let downstream = plan.listener.http.body_idle_timeout;
    let upstream = plan.route.idle_timeout.unwrap_or(downstream);
    IdleLimits { downstream, upstream, body_rate: plan.route.body_rate }
}

/// The reply to a request that its cluster does not take.
#[cold]
fn refused(refusal: Refusal) -> Stop {
    let reason = match refusal {
        Refusal::BreakerOpen { .. } => Reason::CircuitOpen,
        Refusal::InFlightCap { .. } => Reason::InFlightLimit,
        Refusal::Shed { .. } => Reason::Shed,
    };
    let mut reply = Reply::refusal(reason);
    // Rounded up: who comes back in time is not refused again.
    let wait = refusal.retry_after();
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    match reply.fields.set(FieldId::RetryAfter, Decimal::new(seconds).as_bytes()) {
        Ok(()) => Stop::Reply(Box::new(reply)),
        Err(unfit) => Stop::from(unfit),
    }
}

/// The route's rules where it has some; the budget is always the cluster's.
fn retry_rules(lease: &Lease, plan: Plan<'_>) -> RetryRules {
    let of_cluster = lease.settings.plan().rules.retry;
    plan.forward.retry.map_or(of_cluster, |of_route| RetryRules { budget: of_cluster.budget, ..of_route })
}
