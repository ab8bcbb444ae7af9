//! Mirrors: copies of requests for another cluster, which nobody waits for (C50).
//!
//! ```text
//!   sampled ─► Wish ─► the primary answers and the body is whole ─► Copy, a task of its own ─► counted
//!                └───► no answer, no whole body, too long a one, or no room ─► counted
//! ```
//! Invariants: the exchange never waits for a mirror; a mirror shares nothing with it but the core; places, bytes held
//! and bytes a second are bounded by the rules of the route, and what does not fit is dropped. The primary's cluster
//! learns nothing of it, since it is never the mirror's cluster.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use core_runtime::clock;
use core_runtime::timer::Deadline;
use http_balance::Outcome;
use http_balance::admission::Applicant;
use http_balance::mirror::{Dropped, MirrorRules, is_sampled};
use http_balance::shed::{Class, LoadSign};
use http_balance::stable_hash;
use http_wire::fields::{FieldError, FieldId, FieldSet};
use http_wire::head::{BodyLength, Method, RequestHead};
use http_wire::number::Decimal;

use super::detached::{Detached, Lost, LostAt, cut};
use super::{Exchange, Next};
use crate::core::{Core, LiveSnapshot};
use crate::pool::{Admitted, Cluster, Lease};
use crate::record::MirrorEnd;
use crate::relay::{Copied, CopyOwner};
use crate::side::BodyEvent;
use crate::snapshot::{Forward, HostRewrite, Mirror};

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

/// A request in the sample that has not been mirrored yet.
#[derive(Debug)]
pub(super) struct Wish {
    core: Rc<Core>,
    cluster: Rc<Cluster>,
    /// Taken at once where a body is copied, which takes memory.
    place: RefCell<Option<Room>>,
    /// The body is too long, which has been counted.
    is_lost: Cell<bool>,
}

impl CopyOwner for Wish {
    /// A long upload may go on for hours: its place is for others from here on.
    fn is_too_long(&self) {
        drop(self.place.take());
        self.is_lost.set(true);
        self.core.stats.borrow_mut().mirror_ended(self.cluster.stat, MirrorEnd::Dropped(Dropped::Buffer));
    }
}

/// A place among the mirrors of a cluster, until it is dropped.
#[derive(Debug)]
struct Room(Rc<Cluster>);

impl Room {
    fn take(cluster: &Rc<Cluster>, rules: &MirrorRules) -> Result<Self, MirrorEnd> {
        cluster.mirrors.borrow_mut().start(rules, clock::now()).map_err(MirrorEnd::Dropped)?;
        Ok(Self(Rc::clone(cluster)))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.0.mirrors.borrow_mut().finished();
    }
}

impl Mirror {
    /// Bytes of a body that are copied.
    pub(super) fn body_bytes_max(&self) -> usize {
        usize::try_from(self.rules.buffered_bytes_max).unwrap_or(usize::MAX)
    }
}

impl Exchange<'_> {
    /// Whether the request is to be mirrored.
    pub(super) fn sampled(&self, snapshot: &Rc<LiveSnapshot>, mirror: &Mirror) -> Option<Rc<Wish>> {
        let key = mirror.key.as_ref().and_then(|key| key.hash(&self.request.head, self.client_ip()));
        let key = key.unwrap_or_else(|| stable_hash(self.request_id.as_bytes()));
        if !is_sampled(&mirror.rules, key) {
            return None;
        }
        let cluster = self.core.clusters.get(snapshot, mirror.cluster)?;
        let is_tunnel = self.request.head.protocol().is_some() || self.request.head.method == Method::Connect;
        let place = match self.request.body {
            _ if is_tunnel => Err(MirrorEnd::Tunnel),
            BodyLength::Empty => {
                cluster.mirrors.borrow().answers(clock::now()).map(|()| None).map_err(MirrorEnd::Dropped)
            }
            BodyLength::Exact(bytes) if bytes > mirror.rules.buffered_bytes_max => {
                Err(MirrorEnd::Dropped(Dropped::Buffer))
            }
            _ => Room::take(&cluster, &mirror.rules).map(Some),
        };
        match place {
            Ok(place) => {
                let core = Rc::clone(self.core);
                Some(Rc::new(Wish { core, cluster, place: RefCell::new(place), is_lost: Cell::new(false) }))
            }
            Err(end) => {
                self.core.stats.borrow_mut().mirror_ended(cluster.stat, end);
                None
            }
        }
    }

    /// Sends the copy off, or counts why not. The primary has answered.
    pub(super) fn mirror(&mut self, forward: &Forward, copied: Copied) {
        let (Some(wish), Some(mirror)) = (self.mirror.take(), forward.mirror.as_deref()) else { return };
        match self.copy(&wish, (forward, mirror), copied) {
            Ok(copy) => core_runtime::spawn(copy.run()),
            Err(_) if wish.is_lost.get() => {}
            Err(end) => self.core.stats.borrow_mut().mirror_ended(wish.cluster.stat, end),
        }
    }

    /// The exchange is over: a mirror that has not begun has nothing to copy.
    pub(super) fn forget_mirror(&mut self) {
        if let Some(wish) = self.mirror.take().filter(|wish| !wish.is_lost.get()) {
            self.core.stats.borrow_mut().mirror_ended(wish.cluster.stat, MirrorEnd::Unfinished);
        }
    }

    fn copy(
        &self,
        wish: &Wish,
        (forward, mirror): (&Forward, &Mirror),
        copied: Copied,
    ) -> Result<Copy, MirrorEnd> {
        let (bytes, trailers) = match copied {
            Copied::Whole { bytes, trailers } => (bytes, trailers),
            Copied::TooLong => return Err(MirrorEnd::Dropped(Dropped::Buffer)),
            Copied::Cut => return Err(MirrorEnd::Unfinished),
        };
        let cluster = &wish.cluster;
        let room = wish.place.take().map_or_else(|| Room::take(cluster, &mirror.rules), Ok)?;
        let body_bytes = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let fits = cluster.mirrors.borrow_mut().body(&mirror.rules, body_bytes, 0, clock::now());
        fits.map_err(MirrorEnd::Dropped)?;
        let who = Applicant {
            class: Class::Sheddable,
            core_strain: self.core.strain(),
            random: self.core.random(),
        };
        let admitted = cluster.admit(who).map_err(|_refusal| MirrorEnd::Refused)?;
        let key = forward.hash_key(&self.request.head, self.client_ip());
        let lease = cluster.pick(self.core.random(), key, None).map_err(|_none| MirrorEnd::NoEndpoint)?;
        let head = self.copied_head((forward, mirror), &lease).map_err(|_unfit| MirrorEnd::NotWritable)?;
        self.core.stats.borrow_mut().mirror_began(cluster.stat, body_bytes);
        let request = Detached {
            core: Rc::clone(self.core),
            lease,
            head,
            body: self.request.body,
            te_trailers: self.request.te_trailers,
            bytes,
            trailers,
        };
        Ok(Copy { request, admitted, _room: room, timeout: mirror.timeout })
    }

    /// The head without what is the caller's or the primary's own.
    fn copied_head(
        &self,
        (forward, mirror): (&Forward, &Mirror),
        lease: &Lease,
    ) -> Result<RequestHead, FieldError> {
        let mut head = self.request.head.clone();
        if let Some(HostRewrite::Upstream) = forward.host_rewrite {
            let asked = self.asked.as_ref().map(|asked| asked.host.as_slice());
            let own = lease.endpoint.hostname.as_ref().map(String::as_bytes);
            if let Some(host) = own.or(asked) {
                head.set_authority(host)?;
            }
        }
        let listed = |name: &[u8]| mirror.removed_fields.iter().any(|removed| removed.as_bytes() == name);
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
    _room: Room,
    timeout: Duration,
}

/// Why a mirrored request was not answered, and what that says about the endpoint.
type Failure = (MirrorEnd, Outcome);

impl Copy {
    async fn run(mut self) {
        let began_at = clock::now();
        let deadline = Deadline::new();
        deadline.set_after(self.timeout);
        let ended = {
            let mut work = pin!(send(&self.request));
            poll_fn(|cx| {
                if let std::task::Poll::Ready(ended) = work.as_mut().poll(cx) {
                    return std::task::Poll::Ready(ended);
                }
                deadline.poll_expired(cx).map(|()| Err((MirrorEnd::TimedOut, Outcome::TimedOut)))
            })
            .await
        };
        let (end, outcome) = ended.map_or_else(|failure| failure, |outcome| (MirrorEnd::Sent, outcome));
        let Detached { lease, core, .. } = &self.request;
        // A copy that cannot be written is not the mirror's doing.
        if end != MirrorEnd::NotWritable {
            lease.cluster.mirrors.borrow_mut().ended(end == MirrorEnd::Sent, clock::now());
        }
        lease.goes(outcome, clock::now().saturating_sub(began_at), LoadSign::None);
        self.admitted.ends_like(lease);
        core.stats.borrow_mut().mirror_ended(lease.cluster.stat, end);
    }
}

async fn send(request: &Detached) -> Result<Outcome, Failure> {
    let (mut side, held, response, info) = request.answer().await.map_err(failure)?;
    let outcome = Outcome::of_status(response.status);
    let mut left = RESPONSE_BYTES_MAX;
    loop {
        let piece = poll_fn(|cx| side.poll_body(cx)).await;
        match piece.map_err(|error| failure(cut(&error)))? {
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

fn failure((at, outcome): Lost) -> Failure {
    let end = match at {
        LostAt::Connecting => MirrorEnd::NotConnected,
        LostAt::Writing => MirrorEnd::NotWritable,
        LostAt::Waiting => MirrorEnd::Broken,
    };
    (end, outcome)
}
