//! Hedges: a second attempt on another endpoint while the first is silent. The first good answer wins, the other
//! attempt is cut.
//!
//! ```text
//!   waiting ─ due, cluster calm, paid ─► running ─► won: its answer is passed on, the first attempt is cut
//!      │                                    ├─────► failed: the first attempt goes on alone
//!      │                                    └─────► lost: the first attempt has answered
//!      └─ not allowed ─► over
//! ```
//! Invariants: one hedge for an exchange at most, for requests that may be made twice; one with a body waits until all
//! of it has come and is kept for another attempt. None that the cluster's budget has not paid. Dropping it cuts it.
//! Whether and when is decided by `http_balance::hedge`.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use core_runtime::clock;
use core_runtime::timer::Deadline;
use http_balance::hedge::{self, HedgeRules, NoHedge};
use http_balance::retry::BodyState;
use http_balance::shed::LoadSign;
use http_balance::{Outcome, Slot};
use http_wire::fields::{FieldError, FieldId};
use http_wire::head::{BodyLength, Method, RequestHead, ResponseHead};
use http_wire::number::Decimal;

use super::Exchange;
use super::connect::Held;
use super::detached::{Detached, WholeBody};
use crate::core::Core;
use crate::pool::{Cluster, Lease};
use crate::record::HedgeEnd;
use crate::relay::{Direction, REPLAY_BYTES_MAX};
use crate::side::{ResponseInfo, Side};
use crate::snapshot::{Forward, HostRewrite};
use crate::upgrade;

/// The hedge of one exchange.
pub(super) struct Hedge {
    core: Rc<Core>,
    cluster: Rc<Cluster>,
    rules: HedgeRules,
    head: RequestHead,
    body: BodyLength,
    te_trailers: bool,
    is_host_rewritten: bool,
    /// What the endpoint is chosen by.
    key: Option<u64>,
    first: Slot,
    /// The end of the time that the request has.
    ends_at: Option<Duration>,
    due: Deadline,
    state: State,
    began_at: Option<Duration>,
}

enum State {
    Waiting,
    Running(Pin<Box<dyn Future<Output = Option<Box<Won>>>>>),
    Over,
}

/// The answer of a hedge, with all that its attempt holds.
pub(super) struct Won {
    pub(super) lease: Lease,
    pub(super) side: Side,
    pub(super) held: Held,
    pub(super) response: ResponseHead,
    pub(super) info: ResponseInfo,
    pub(super) sent_at: Duration,
}

impl Exchange<'_> {
    /// The hedge of a request whose first attempt goes to `lease`; None: it is not to be made twice.
    pub(super) fn hedge_of(
        &self,
        lease: &Lease,
        forward: &Forward,
        key: Option<u64>,
        left: Option<Duration>,
    ) -> Option<Box<Hedge>> {
        let head = &self.request.head;
        let is_tunnel = head.protocol().is_some() || head.method == Method::Connect;
        let fits = |bytes| usize::try_from(bytes).is_ok_and(|bytes: usize| bytes <= REPLAY_BYTES_MAX);
        let is_kept = self.request.body.exact().is_none_or(fits);
        if is_tunnel || !is_kept || lease.cluster.is_sticky() {
            return None;
        }
        let rules = HedgeRules { delay: forward.hedge_after?, budget: lease.settings.plan().rules.hedges };
        let now = clock::now();
        let at = hedge::due(&rules, self.repeatability(forward), now, left)?;
        lease.cluster.may_be_hedged();
        let due = Deadline::new();
        due.set(at);
        Some(Box::new(Hedge {
            core: Rc::clone(self.core),
            cluster: Rc::clone(&lease.cluster),
            rules,
            head: head.clone(),
            body: self.request.body,
            te_trailers: self.request.te_trailers,
            is_host_rewritten: matches!(forward.host_rewrite, Some(HostRewrite::Upstream)),
            key,
            first: lease.slot,
            ends_at: left.map(|left| now.saturating_add(left)),
            due,
            state: State::Waiting,
            began_at: None,
        }))
    }

    /// Lets go of the hedge, which cuts it, and counts it.
    pub(super) fn end_hedge(&mut self) {
        let Some(hedge) = self.hedge.take() else { return };
        if hedge.began_at.is_some() {
            self.outcome.attempts += 1;
            let end = match hedge.state {
                State::Running(_) => HedgeEnd::Lost,
                State::Over if self.winner.is_some() => HedgeEnd::Won,
                State::Waiting | State::Over => HedgeEnd::Failed,
            };
            self.core.stats.borrow_mut().hedge_ended(hedge.cluster.stat, end);
        }
    }

    /// Waits for the hedge of a first attempt that came to nothing, as long as there is time and a client. `per_try` is
    /// the limit of one attempt.
    pub(super) async fn rest_of_hedge(&mut self, per_try: Option<Duration>) -> Option<Box<Won>> {
        let hedge = self.hedge.as_mut()?;
        // The timers of the relay do not run any more.
        let over = Deadline::new();
        let tried = per_try.zip(hedge.began_at).map(|(limit, began_at)| began_at.saturating_add(limit));
        if let Some(at) = [hedge.ends_at, tried].into_iter().flatten().min() {
            over.set(at);
        }
        poll_fn(|cx| {
            if !matches!(hedge.state, State::Running(_)) {
                return Poll::Ready(None);
            }
            if let Poll::Ready(won) = hedge.poll(None, cx) {
                return Poll::Ready(Some(won));
            }
            let is_over = self.downstream.poll_gone(cx).is_ready()
                || self.timers.response.poll_expired(cx).is_ready()
                || over.poll_expired(cx).is_ready()
                || !matches!(hedge.state, State::Running(_));
            if is_over { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }
}

impl Hedge {
    /// Waits until it is due, begins, and is ready with a good answer; never when there is none. `sent` is what the first
    /// attempt has of the request; None: it has no connection yet.
    pub(super) fn poll(&mut self, sent: Option<&Direction>, cx: &mut Context<'_>) -> Poll<Box<Won>> {
        loop {
            match &mut self.state {
                State::Waiting => {
                    if self.due.poll_expired(cx).is_pending() {
                        return Poll::Pending;
                    }
                    self.state = match sent.map(Direction::replay_state) {
                        _ if self.body == BodyLength::Empty => self.begin(None),
                        Some(BodyState::Gone) => State::Over,
                        // Its first attempt is polled whenever more of it comes.
                        Some(BodyState::Untouched | BodyState::Kept) | None => {
                            match sent.and_then(Direction::whole) {
                                None => return Poll::Pending,
                                whole => self.begin(whole),
                            }
                        }
                    };
                }
                State::Running(answer) => match answer.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(answer) => {
                        self.state = State::Over;
                        if let Some(won) = answer {
                            return Poll::Ready(won);
                        }
                    }
                },
                State::Over => return Poll::Pending,
            }
        }
    }

    #[cold]
    fn begin(&mut self, body: Option<WholeBody>) -> State {
        let Ok(lease) = self.cluster.pick(self.core.random(), self.key, Some(self.first)) else {
            return State::Over;
        };
        // The one that is silent is asked no second time.
        if lease.slot == self.first {
            return State::Over;
        }
        let kept = if body.is_some() { BodyState::Kept } else { BodyState::Untouched };
        match self.cluster.hedge(&self.rules, kept, self.core.strain()) {
            Ok(()) => {}
            Err(NoHedge::BudgetExhausted) => {
                self.core.stats.borrow_mut().hedge_ended(self.cluster.stat, HedgeEnd::OverBudget);
                return State::Over;
            }
            Err(NoHedge::BodyGone | NoHedge::Strained) => return State::Over,
        }
        let mut head = std::mem::take(&mut self.head);
        if self.dress(&mut head, &lease).is_err() {
            return State::Over;
        }
        // There is no hedge in panic.
        let _is_in_panic = self.cluster.count_choice(&lease, &self.core.stats);
        self.began_at = Some(clock::now());
        let detached = Detached {
            core: Rc::clone(&self.core),
            lease,
            head,
            body: self.body,
            te_trailers: self.te_trailers,
        };
        State::Running(Box::pin(answer(detached, body.unwrap_or_default())))
    }

    /// What the head says about this attempt.
    fn dress(&self, head: &mut RequestHead, lease: &Lease) -> Result<(), FieldError> {
        if let Some(host) = lease.endpoint.hostname.as_ref().filter(|_| self.is_host_rewritten) {
            head.set_authority(host.as_bytes())?;
        }
        if let Some(ends_at) = self.ends_at {
            let left = ends_at.saturating_sub(clock::now());
            let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            head.fields.set(FieldId::XDeadlineMs, Decimal::new(left_ms).as_bytes())?;
        }
        // The body is there: nobody waits for a 100.
        head.fields.remove(FieldId::Expect);
        head.fields.set(FieldId::XShardAttempt, b"2")
    }
}

/// The answer, when it is better than none: a failure is not passed on while the first attempt may still succeed.
async fn answer(detached: Detached, body: WholeBody) -> Option<Box<Won>> {
    let sent_at = clock::now();
    let answered = detached.answer(body).await;
    let latency = clock::now().saturating_sub(sent_at);
    let (side, held, response, info) = match answered {
        Ok(answered) => answered,
        Err((_, outcome)) => {
            detached.lease.goes(outcome, latency, LoadSign::None);
            return None;
        }
    };
    let outcome = match upgrade::grpc_status(&response.fields) {
        Some(status) => Outcome::of_grpc_status(u32::from(status)),
        None => Outcome::of_status(response.status),
    };
    if outcome.failure().is_some() {
        detached.lease.goes(outcome, latency, LoadSign::None);
        return None;
    }
    Some(Box::new(Won { lease: detached.lease, side, held, response, info, sent_at }))
}
