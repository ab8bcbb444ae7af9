//! Mirrors: copies of requests for another cluster, which nobody waits for (C50).
//!
//! ```text
//!   sampled ─► Wish ─► the primary has answered, or has some of a body that still comes ─► Copy, a task of its own ─► counted
//!                └───► no answer, or no room ─► counted
//! ```
//! Invariants: the exchange never waits for a mirror; a mirror shares nothing with it but the core and the body, which
//! goes through a [`Tap`]; places, bytes held and bytes a second are bounded by the rules of the route, and what does not
//! fit is dropped. The primary's cluster learns nothing of it, since it is never the mirror's cluster.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use core_runtime::clock;
use core_runtime::sync::{self, GatePlace};
use core_runtime::timer::Deadline;
use http_balance::Outcome;
use http_balance::admission::Applicant;
use http_balance::mirror::{Dropped, is_sampled};
use http_balance::shed::{Class, LoadSign};
use http_balance::stable_hash;
use http_wire::fields::{FieldError, FieldId, FieldSet};
use http_wire::head::{BodyLength, Method, RequestHead};
use http_wire::number::Decimal;

use super::detached::{Detached, Lost, LostAt, cut, lost};
use super::{Exchange, Next};
use crate::core::{Core, LiveSnapshot};
use crate::pool::{Admitted, Lease};
use crate::record::MirrorEnd;
use crate::relay::{BYTES_PER_PASS, Direction};
use crate::side::{BodyEvent, Side, SideError};
use crate::snapshot::{Forward, HostRewrite, Mirror};
use crate::tap::Tap;

/// Bytes of a mirror's answer that are read, so that its connection can be used again; a longer answer is cut.
const RESPONSE_BYTES_MAX: usize = 256 * 1024;

/// Never copied: who the caller is, and what belongs to the primary's attempt.
const REMOVED: FieldSet = FieldSet::of(&[
    FieldId::Authorization,
    FieldId::ProxyAuthorization,
    FieldId::Cookie,
    FieldId::XForwardedClientCert,
    FieldId::XShardAttempt,
    FieldId::Expect,
]);

/// A request in the sample.
#[derive(Debug)]
pub(super) struct Wish {
    core: Rc<Core>,
    tap: Rc<Tap>,
    body: BodyLength,
    te_trailers: bool,
    /// What the client asked for, where a rewrite has changed the head.
    host: Option<Box<[u8]>>,
    /// What the endpoint is chosen by.
    key: Option<u64>,
}

impl Exchange<'_> {
    /// Whether the request is to be mirrored.
    pub(super) fn sampled(
        &self,
        snapshot: &Rc<LiveSnapshot>,
        forward: &Forward,
        mirror: &Mirror,
    ) -> Option<Box<Wish>> {
        let key = mirror.key.as_ref().and_then(|key| key.hash(&self.request.head, self.client_ip()));
        let key = key.unwrap_or_else(|| stable_hash(self.request_id.as_bytes()));
        if !is_sampled(&mirror.rules, key) {
            return None;
        }
        let cluster = self.core.clusters.get(snapshot, mirror.cluster)?;
        let is_tunnel = self.request.head.protocol().is_some() || self.request.head.method == Method::Connect;
        let tap = if is_tunnel {
            Err(MirrorEnd::Tunnel)
        } else {
            Tap::new(self.core, &cluster, mirror.rules, self.request.body)
        };
        match tap {
            Ok(tap) => Some(Box::new(Wish {
                core: Rc::clone(self.core),
                tap,
                body: self.request.body,
                te_trailers: self.request.te_trailers,
                host: self.asked.as_ref().map(|asked| asked.host.as_slice().into()),
                key: forward.hash_key(&self.request.head, self.client_ip()),
            })),
            Err(end) => {
                self.core.stats.borrow_mut().mirror_ended(cluster.stat, end);
                None
            }
        }
    }

    /// The exchange is over.
    pub(super) fn end_mirror(&mut self) {
        if let Some(wish) = self.mirror.take() {
            wish.tap.source_ended();
        }
    }
}

impl Wish {
    pub(super) fn tap(&self) -> Rc<Tap> {
        Rc::clone(&self.tap)
    }

    /// The primary has been sent the request as far as `sent`. A body that is whole waits for the primary's answer; one
    /// that is still coming may take its time, and is streamed.
    #[inline(never)]
    pub(super) fn follow(&self, sent: &Direction, head: &RequestHead, forward: &Forward) {
        if sent.bytes > 0 && !sent.has_ended() {
            self.begin(head, forward);
        }
    }

    /// Sends the mirror off, the first time, or counts why not. `head` is what the primary has got.
    #[inline(never)]
    pub(super) fn begin(&self, head: &RequestHead, forward: &Forward) {
        if let Some(mirror) = forward.mirror.as_deref().filter(|_| self.tap.is_waiting()) {
            match self.copy(head, forward, mirror) {
                Ok(copy) => core_runtime::spawn(copy.run()),
                Err(end) => self.tap.end(end),
            }
        }
    }

    fn copy(&self, head: &RequestHead, forward: &Forward, mirror: &Mirror) -> Result<Copy, MirrorEnd> {
        self.tap.begin()?;
        let cluster = self.tap.cluster();
        let who = Applicant {
            class: Class::Sheddable,
            core_strain: self.core.strain(),
            random: self.core.random(),
        };
        let admitted = cluster.admit(who).map_err(|_refusal| MirrorEnd::Refused)?;
        let lease =
            cluster.pick(self.core.random(), self.key, None).map_err(|_none| MirrorEnd::NoEndpoint)?;
        let head =
            self.copied_head(head, (forward, mirror), &lease).map_err(|_unfit| MirrorEnd::NotWritable)?;
        let request = Detached {
            core: Rc::clone(&self.core),
            lease,
            head,
            body: self.body,
            te_trailers: self.te_trailers,
        };
        Ok(Copy { request, admitted, tap: self.tap(), timeout: mirror.timeout })
    }

    /// The head without what is the caller's or the primary's own.
    fn copied_head(
        &self,
        head: &RequestHead,
        (forward, mirror): (&Forward, &Mirror),
        lease: &Lease,
    ) -> Result<RequestHead, FieldError> {
        let mut head = head.clone();
        if let Some(HostRewrite::Upstream) = forward.host_rewrite {
            let own = lease.endpoint.hostname.as_ref().map(String::as_bytes);
            if let Some(host) = own.or(self.host.as_deref()) {
                head.set_authority(host)?;
            }
        }
        let listed = |name: &[u8]| {
            name.starts_with(b"x-auth-")
                || mirror.removed_fields.iter().any(|removed| removed.as_bytes() == name)
        };
        head.fields.remove_all(REMOVED, listed);
        let timeout_ms = u64::try_from(mirror.timeout.as_millis()).unwrap_or(u64::MAX);
        head.fields.set(FieldId::XDeadlineMs, Decimal::new(timeout_ms).as_bytes())?;
        head.fields.set(FieldId::XMirrored, b"true")?;
        Ok(head)
    }
}

/// A mirrored request on its way.
#[derive(Debug)]
struct Copy {
    request: Detached,
    admitted: Admitted,
    tap: Rc<Tap>,
    /// From the end of the request to that of the answer.
    timeout: Duration,
}

/// Why a mirrored request was not answered, and what that says about the endpoint.
type Failure = (MirrorEnd, Outcome);

impl Copy {
    async fn run(mut self) {
        let began_at = clock::now();
        let deadline = Deadline::new();
        let mut is_armed = false;
        let ended = {
            let mut work = pin!(send(&self.request, &self.tap));
            poll_fn(|cx| {
                if let Poll::Ready(end) = self.tap.poll_over(cx) {
                    return Poll::Ready(Err((end, Outcome::Abandoned)));
                }
                if let Poll::Ready(ended) = work.as_mut().poll(cx) {
                    return Poll::Ready(ended);
                }
                // An upload takes as long as the client does, whose limits are the primary's.
                if self.tap.is_whole() && !std::mem::replace(&mut is_armed, true) {
                    deadline.set_after(self.timeout);
                }
                deadline.poll_expired(cx).map(|()| Err((MirrorEnd::TimedOut, Outcome::TimedOut)))
            })
            .await
        };
        let (end, outcome) = ended.map_or_else(|failure| failure, |outcome| (MirrorEnd::Sent, outcome));
        let Detached { lease, .. } = &self.request;
        match end {
            MirrorEnd::Sent => lease.cluster.mirrors.borrow_mut().ended(true, clock::now()),
            // None of the mirror's doing.
            MirrorEnd::NotWritable
            | MirrorEnd::Aborted
            | MirrorEnd::Cut(Dropped::Bandwidth | Dropped::Memory) => {}
            _ => lease.cluster.mirrors.borrow_mut().ended(false, clock::now()),
        }
        lease.goes(outcome, clock::now().saturating_sub(began_at), LoadSign::None);
        self.admitted.ends_like(lease);
        self.tap.end(end);
    }
}

/// Sends the body as it comes, and reads the answer to its end, which may come before that of the body.
async fn send(request: &Detached, tap: &Tap) -> Result<Outcome, Failure> {
    let (mut side, held) = request.open().await.map_err(failure)?;
    let mut upload = Upload::new(tap, request.body);
    let head = request.final_head(&mut side, |side, cx| upload.poll(side, cx)).await;
    let (response, info) =
        head.map_err(|error| failure(lost(&held, upload.error.as_ref().unwrap_or(&error))))?;
    let outcome = Outcome::of_status(response.status);
    let mut left = RESPONSE_BYTES_MAX;
    loop {
        let piece = poll_fn(|cx| {
            upload.poll(&mut side, cx);
            side.poll_body(cx)
        });
        match piece.await.map_err(|error| failure(cut(&error)))? {
            BodyEvent::Data(chunk) => match left.checked_sub(chunk.len()) {
                Some(rest) => left = rest,
                None => return Ok(outcome),
            },
            BodyEvent::Last(_) | BodyEvent::End(_) => break,
        }
    }
    held.give_back(&request.lease, side, info.persistence, Next::KeepAlive);
    Ok(outcome)
}

/// The body on its way from the tap to the mirror.
struct Upload<'a> {
    tap: &'a Tap,
    has_ended: bool,
    /// Everything has left, or the mirror takes no more.
    is_over: bool,
    error: Option<SideError>,
    /// Its place among those that move much.
    line: Option<GatePlace>,
}

impl<'a> Upload<'a> {
    fn new(tap: &'a Tap, body: BodyLength) -> Self {
        Self { tap, has_ended: body == BodyLength::Empty, is_over: false, error: None, line: None }
    }

    fn poll(&mut self, side: &mut Side, cx: &mut Context<'_>) {
        if self.is_over {
            return;
        }
        match self.poll_send(side, cx) {
            Poll::Ready(Ok(())) => self.is_over = true,
            Poll::Ready(Err(error)) => {
                // It may have answered all the same.
                self.tap.stop();
                self.is_over = true;
                self.error = Some(error);
            }
            Poll::Pending => {}
        }
    }

    fn poll_send(&mut self, side: &mut Side, cx: &mut Context<'_>) -> Poll<Result<(), SideError>> {
        if self.line.is_some() {
            ready!(sync::poll_bulk(cx, &mut self.line));
        }
        let mut left = BYTES_PER_PASS;
        while !self.has_ended {
            ready!(side.poll_room(cx))?;
            if left == 0 {
                if sync::poll_bulk(cx, &mut self.line).is_pending() {
                    break;
                }
                left = BYTES_PER_PASS;
            }
            let Some(event) = self.tap.take() else { break };
            if let BodyEvent::Data(chunk) | BodyEvent::Last(chunk) = &event {
                left = left.saturating_sub(chunk.len());
            }
            self.has_ended = !matches!(event, BodyEvent::Data(_));
            side.send_body(event)?;
        }
        let flushed = side.poll_flush(cx)?;
        if self.has_ended { flushed.map(Ok) } else { Poll::Pending }
    }
}

fn failure((at, outcome): Lost) -> Failure {
    let end = match at {
        LostAt::Connecting => MirrorEnd::NotConnected,
        LostAt::Writing => MirrorEnd::NotWritable,
        LostAt::Waiting => MirrorEnd::Broken,
    };
    (end, outcome)
}
