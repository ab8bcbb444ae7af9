//! THE duplex loop: the request body goes up while the response comes down, with bounded memory both ways.
//!
//! ```text
//!   downstream ──poll_body──► pump(request)  ──send_body──► upstream
//!   downstream ◄──send_body── pump(response) ◄──poll_body── upstream
//! ```
//! Written once for h1, h2 and tunnels. A pump takes a piece only when the other side has room, and flushes when its
//! source has nothing more for now, so head and first body bytes leave in one write. The response may begin and
//! even end while the request is still being sent (C24).

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use core_runtime::clock;
use core_runtime::sync::{self, GatePlace};
use core_runtime::timer::Deadline;
use http_gateway::body_limit::{BodyMeter, BodyRate, RateWatch};
use http_wire::fields::Fields;

use http_balance::retry::BodyState;

use crate::chunk::Chunk;
use crate::side::{BodyEvent, Side, SideError};
use crate::tap::Tap;
use crate::upgrade;

/// Body bytes kept for a second attempt. A longer request is not sent again.
pub(crate) const REPLAY_BYTES_MAX: usize = 64 * 1024;

/// One direction of an exchange.
#[derive(Debug, Default)]
pub(crate) struct Direction {
    pub(crate) bytes: u64,
    has_ended: bool,
    has_flushed: bool,
    /// The sink stopped taking; what is left will not be sent.
    gave_up: bool,
    /// Its place among those that move much.
    line: Option<GatePlace>,
    /// `None` when nobody will ask for it. Boxed, because most requests have no body.
    replay: Option<Box<Replay>>,
    /// A mirror of the request, which is shown the body.
    tap: Option<Rc<Tap>>,
    /// What an attempt before this one took from the source, to be sent first; the next piece is the last here.
    again: Vec<BodyEvent>,
    /// `grpc-status` of the trailers.
    pub(crate) grpc_status: Option<u8>,
}

/// What was taken from a source, as long as it is short enough to be sent twice (C19, C23).
#[derive(Debug)]
enum Replay {
    Kept {
        bytes: Vec<u8>,
        end: Option<Option<Fields>>,
    },
    /// Too long.
    Lost,
}

impl Replay {
    const fn new() -> Self {
        Self::Kept { bytes: Vec::new(), end: None }
    }

    fn is_kept(kept: Option<&Self>) -> bool {
        matches!(kept, Some(Self::Kept { .. }))
    }

    fn note(&mut self, event: &BodyEvent) {
        let Self::Kept { bytes, end } = self else { return };
        match event {
            BodyEvent::Data(chunk) | BodyEvent::Last(chunk) => {
                if bytes.len() + chunk.len() > REPLAY_BYTES_MAX {
                    *self = Self::Lost;
                    return;
                }
                bytes.extend_from_slice(chunk.as_slice());
                if matches!(event, BodyEvent::Last(_)) {
                    *end = Some(None);
                }
            }
            BodyEvent::End(trailers) => *end = Some(trailers.clone()),
        }
    }
}

impl Direction {
    /// A direction without a body.
    pub(crate) fn ended() -> Self {
        Self { has_ended: true, ..Self::default() }
    }

    /// A request body that may have to be sent twice.
    pub(crate) fn replayable() -> Self {
        Self { replay: Some(Box::new(Replay::new())), ..Self::default() }
    }

    /// The same, shown to a mirror as well.
    pub(crate) fn tapped(self, tap: Rc<Tap>) -> Self {
        Self { tap: Some(tap), ..self }
    }

    /// Whether everything has been taken from the source.
    pub(crate) const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The same direction from its beginning, for another attempt; `None` when too much of it is gone.
    pub(crate) fn again(self) -> Option<Self> {
        let tap = self.tap.inspect(|tap| tap.restart());
        match self.replay.map(|replay| *replay) {
            Some(Replay::Kept { bytes, end, .. }) => {
                let mut again: Vec<BodyEvent> = end.map(BodyEvent::End).into_iter().collect();
                if !bytes.is_empty() {
                    again.push(BodyEvent::Data(Chunk::Shared(bytes.into())));
                }
                Some(Self { again, tap, ..Self::default() })
            }
            Some(Replay::Lost) | None if self.bytes > 0 => None,
            Some(Replay::Lost) | None => Some(Self { has_ended: self.has_ended, tap, ..Self::default() }),
        }
    }

    /// The whole body, where all of it has come and is kept.
    pub(crate) fn whole(&self) -> Option<(Bytes, Option<Fields>)> {
        match self.replay.as_deref() {
            Some(Replay::Kept { bytes, end: Some(trailers), .. }) => {
                Some((Bytes::copy_from_slice(bytes), trailers.clone()))
            }
            Some(Replay::Kept { end: None, .. } | Replay::Lost) | None => None,
        }
    }

    /// The same, whole, once another attempt than the one that it was for has sent it.
    pub(crate) fn sent_otherwise(self) -> Self {
        Self { bytes: self.bytes, tap: self.tap, has_flushed: true, ..Self::ended() }
    }

    /// What is left of the body for another attempt.
    pub(crate) fn replay_state(&self) -> BodyState {
        match self.replay.as_deref() {
            _ if self.bytes == 0 => BodyState::Untouched,
            Some(Replay::Kept { .. }) => BodyState::Kept,
            Some(Replay::Lost) | None => BodyState::Gone,
        }
    }

    /// The backend has begun to answer: there will be no other attempt.
    pub(crate) fn settled(self) -> Self {
        Self { replay: None, ..self }
    }

    fn is_over(&self) -> bool {
        self.has_ended && self.has_flushed
    }

    fn poll_next(
        &mut self,
        source: &mut Side,
        sink: &Side,
        cx: &mut Context<'_>,
    ) -> Poll<Result<BodyEvent, SideError>> {
        match self.again.pop() {
            Some(event) => Poll::Ready(Ok(event)),
            // What may have to be sent twice, or goes to a mirror, has to be seen.
            None if Replay::is_kept(self.replay.as_deref())
                || self.tap.as_ref().is_some_and(|tap| tap.is_open()) =>
            {
                source.poll_body(cx)
            }
            None => source.poll_body_for(sink, cx),
        }
    }
}

/// Where a relay stopped.
#[derive(Debug)]
pub(crate) enum RelayError {
    Downstream(SideError),
    Upstream(SideError),
    /// The request body is over the route's limit.
    BodyTooLarge,
    /// The client sends its body, but too slowly.
    BodyTooSlow,
    /// The client sent nothing, or took nothing, for too long.
    DownstreamIdle,
    /// The backend sent nothing, or took nothing, for too long.
    UpstreamIdle,
    /// The time for the whole exchange until the response head is over.
    Deadline,
    /// The client cancelled.
    ClientGone,
}

/// Which end of a pump failed.
enum PumpError {
    Source(SideError),
    Sink(SideError),
    TooLarge,
}

/// How long each kind of silence may last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdleLimits {
    pub(crate) downstream: Duration,
    pub(crate) upstream: Duration,
    /// What the client has to send of a body.
    pub(crate) body_rate: Option<BodyRate>,
}

/// Both directions of one attempt.
#[derive(Debug)]
pub(crate) struct Relay<'a> {
    pub(crate) downstream: &'a mut Side,
    pub(crate) upstream: &'a mut Side,
    pub(crate) request: Direction,
    pub(crate) response: Direction,
    pub(crate) meter: BodyMeter,
    pub(crate) idle: IdleLimits,
    /// Wakes the task to look whether one side has been silent for too long.
    pub(crate) idle_deadline: &'a Deadline,
    progress_at: Duration,
    rate: RateWatch,
    /// What the upload ended with when the backend stopped reading; the response may still come.
    upload_error: Option<SideError>,
}

/// Bytes that one pump moves before it stands in line behind all others that move much, fewer in a turn in which many
/// pumps have moved some: with a hundred readers of large responses a turn would take a second else, and every small
/// request with it.
pub(crate) const BYTES_PER_PASS: usize = 128 * 1024;
/// What a piece counts at least: small ones cost more than their bytes.
const PIECE_COST_MIN: usize = 4096;

/// Moves pieces from `source` to `sink` until one of them has to wait or the message has ended and left.
fn pump(
    source: &mut Side,
    sink: &mut Side,
    direction: &mut Direction,
    meter: &mut BodyMeter,
    cx: &mut Context<'_>,
) -> (Poll<Result<(), PumpError>>, u32) {
    let mut moved = 0;
    let mut left = if direction.line.is_none() {
        sync::free_bytes().clamp(PIECE_COST_MIN, BYTES_PER_PASS)
    } else if sync::poll_bulk(cx, &mut direction.line).is_pending() {
        return (Poll::Pending, moved);
    } else {
        BYTES_PER_PASS
    };
    while !direction.has_ended {
        match sink.poll_room(cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return (Poll::Ready(Err(PumpError::Sink(error))), moved),
            Poll::Pending => return (Poll::Pending, moved),
        }
        if left == 0 {
            if sync::poll_bulk(cx, &mut direction.line).is_pending() {
                break;
            }
            left = BYTES_PER_PASS;
        }
        let event = match direction.poll_next(source, sink, cx) {
            Poll::Ready(Ok(event)) => event,
            Poll::Ready(Err(error)) => return (Poll::Ready(Err(PumpError::Source(error))), moved),
            Poll::Pending => break,
        };
        moved += 1;
        if let BodyEvent::Data(chunk) | BodyEvent::Last(chunk) = &event {
            let cost = chunk.len().max(PIECE_COST_MIN);
            left = left.saturating_sub(cost);
            sync::spend_free_bytes(cost);
            direction.bytes += u64::try_from(chunk.len()).unwrap_or(u64::MAX);
            if meter.arrived(chunk.len()).is_err() {
                return (Poll::Ready(Err(PumpError::TooLarge)), moved);
            }
        }
        if let Some(replay) = &mut direction.replay {
            replay.note(&event);
        }
        if let Some(tap) = &direction.tap {
            tap.give(&event);
        }
        if let BodyEvent::End(Some(trailers)) = &event {
            direction.grpc_status = upgrade::grpc_status(trailers);
        }
        direction.has_ended = !matches!(event, BodyEvent::Data(_));
        if let Err(error) = sink.send_body(event) {
            return (Poll::Ready(Err(PumpError::Sink(error))), moved);
        }
    }
    let flushed = sink.poll_flush(cx);
    direction.has_flushed = direction.has_ended && matches!(flushed, Poll::Ready(Ok(())));
    let result = match flushed {
        Poll::Ready(Err(error)) => Poll::Ready(Err(PumpError::Sink(error))),
        Poll::Ready(Ok(())) if direction.has_ended => Poll::Ready(Ok(())),
        Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
    };
    (result, moved)
}

impl<'a> Relay<'a> {
    pub(crate) fn new(
        downstream: &'a mut Side,
        upstream: &'a mut Side,
        request: Direction,
        meter: BodyMeter,
        idle: IdleLimits,
        idle_deadline: &'a Deadline,
    ) -> Self {
        Self {
            downstream,
            upstream,
            request,
            response: Direction::default(),
            meter,
            idle,
            idle_deadline,
            progress_at: clock::now(),
            rate: RateWatch::default(),
            upload_error: None,
        }
    }

    /// Sends the request on while it waits for what `poll_head` looks for on the upstream side; it is shown the request
    /// as far as it has come.
    ///
    /// # Errors
    /// The first thing that went wrong. A backend that stops reading is only an error once it does not answer
    /// either.
    ///
    /// `response_timeout` runs from the moment at which the backend has the whole request (C27); `deadline` may
    /// be armed already, for a caller that set a limit of its own.
    pub(crate) async fn until_head<T>(
        &mut self,
        deadline: &Deadline,
        response_timeout: Option<Duration>,
        mut poll_head: impl FnMut(&mut Side, &Direction, &mut Context<'_>) -> Poll<Result<T, SideError>>,
    ) -> Result<T, RelayError> {
        let mut is_armed = false;
        poll_fn(|cx| {
            self.poll_upload(cx)?;
            if self.request.is_over() && !std::mem::replace(&mut is_armed, true) {
                arm_no_later(deadline, response_timeout);
            }
            match poll_head(self.upstream, &self.request, cx) {
                Poll::Ready(Ok(head)) => {
                    self.note_progress(1);
                    return Poll::Ready(Ok(head));
                }
                Poll::Ready(Err(error)) => {
                    let first = self.upload_error.take().unwrap_or(error);
                    return Poll::Ready(Err(RelayError::Upstream(first)));
                }
                Poll::Pending => {}
            }
            if self.downstream.poll_gone(cx).is_ready() {
                return Poll::Ready(Err(RelayError::ClientGone));
            }
            if deadline.poll_expired(cx).is_ready() {
                return Poll::Ready(Err(RelayError::Deadline));
            }
            self.poll_idle(cx)
        })
        .await
    }

    /// Passes the response on to its end, and the rest of the request as long as the backend takes it.
    ///
    /// # Errors
    /// The first thing that went wrong; the response has then been cut.
    pub(crate) async fn until_end(&mut self) -> Result<(), RelayError> {
        poll_fn(|cx| {
            self.poll_upload(cx)?;
            let mut unlimited = BodyMeter::new(None);
            let (result, moved) =
                pump(self.upstream, self.downstream, &mut self.response, &mut unlimited, cx);
            self.note_progress(moved);
            match result {
                Poll::Ready(Ok(())) => return Poll::Ready(Ok(())),
                Poll::Ready(Err(PumpError::Sink(error))) => {
                    return Poll::Ready(Err(RelayError::Downstream(error)));
                }
                Poll::Ready(Err(PumpError::Source(error))) => {
                    return Poll::Ready(Err(RelayError::Upstream(error)));
                }
                Poll::Ready(Err(PumpError::TooLarge)) | Poll::Pending => {}
            }
            if self.downstream.poll_gone(cx).is_ready() {
                return Poll::Ready(Err(RelayError::ClientGone));
            }
            self.poll_idle(cx)
        })
        .await
    }

    /// Passes bytes both ways until both directions have ended (tunnels: Upgrade, extended CONNECT).
    ///
    /// # Errors
    /// The first thing that went wrong.
    pub(crate) async fn until_both_end(&mut self) -> Result<(), RelayError> {
        self.request = Direction::default();
        poll_fn(|cx| {
            let mut unlimited = BodyMeter::new(None);
            let (up, moved_up) = pump(self.downstream, self.upstream, &mut self.request, &mut unlimited, cx);
            let (down, moved_down) =
                pump(self.upstream, self.downstream, &mut self.response, &mut unlimited, cx);
            self.note_progress(moved_up + moved_down);
            match (up, down) {
                (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => return Poll::Ready(Ok(())),
                (Poll::Ready(Err(PumpError::Source(error))), _)
                | (_, Poll::Ready(Err(PumpError::Sink(error)))) => {
                    return Poll::Ready(Err(RelayError::Downstream(error)));
                }
                (Poll::Ready(Err(PumpError::Sink(error))), _)
                | (_, Poll::Ready(Err(PumpError::Source(error)))) => {
                    return Poll::Ready(Err(RelayError::Upstream(error)));
                }
                _ => {}
            }
            if self.downstream.poll_gone(cx).is_ready() {
                return Poll::Ready(Err(RelayError::ClientGone));
            }
            self.poll_idle(cx)
        })
        .await
    }

    /// Moves the request on. Only the client's faults are errors here; the backend's are remembered.
    fn poll_upload(&mut self, cx: &mut Context<'_>) -> Result<(), RelayError> {
        if self.request.is_over() || self.request.gave_up {
            return Ok(());
        }
        let (result, moved) = pump(self.downstream, self.upstream, &mut self.request, &mut self.meter, cx);
        self.note_progress(moved);
        match result {
            Poll::Ready(Err(PumpError::Source(error))) => Err(RelayError::Downstream(error)),
            Poll::Ready(Err(PumpError::TooLarge)) => Err(RelayError::BodyTooLarge),
            Poll::Ready(Err(PumpError::Sink(error))) => {
                self.upload_error = Some(error);
                self.request.gave_up = true;
                Ok(())
            }
            Poll::Ready(Ok(())) | Poll::Pending => Ok(()),
        }
    }

    fn note_progress(&mut self, moved: u32) {
        if moved > 0 {
            self.progress_at = clock::now();
        }
    }

    /// When nothing has moved for a while: finds out who is silent, and whether that side's limit is over.
    fn poll_idle<T>(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, RelayError>> {
        let mut due = self.progress_at + self.idle.upstream.min(self.idle.downstream);
        let rate_due = self.idle.body_rate.map_or(Duration::MAX, |rate| self.rate_due(&rate, cx));
        while self.idle_deadline.poll_until(due.min(rate_due), cx).is_ready() {
            if rate_due <= clock::now() {
                return Poll::Ready(Err(RelayError::BodyTooSlow));
            }
            let takes_more = self.upstream.poll_room(cx).is_ready() && !self.request.gave_up;
            let client_is_silent =
                (takes_more && !self.request.is_over()) || self.downstream.poll_room(cx).is_pending();
            let (limit, error) = if client_is_silent {
                (self.idle.downstream, RelayError::DownstreamIdle)
            } else {
                (self.idle.upstream, RelayError::UpstreamIdle)
            };
            due = self.progress_at + limit;
            if due <= clock::now() {
                return Poll::Ready(Err(error));
            }
        }
        Poll::Pending
    }

    /// When the client has to have sent more of its body.
    fn rate_due(&mut self, rate: &BodyRate, cx: &mut Context<'_>) -> Duration {
        let is_waited_for =
            !self.request.has_ended && !self.request.gave_up && self.upstream.poll_room(cx).is_ready();
        if !is_waited_for {
            self.rate.pause();
            return Duration::MAX;
        }
        self.rate.due(rate, self.request.bytes, clock::now())
    }

    /// The state of the upload, for a relay that goes on with it.
    pub(crate) fn into_upload(self) -> Direction {
        Direction { gave_up: self.request.gave_up || self.upload_error.is_some(), ..self.request }
    }

    /// Whether the whole request has been sent.
    pub(crate) fn has_sent_request(&self) -> bool {
        self.request.is_over() && !self.request.gave_up
    }
}

/// Arms a deadline for `timeout` from now, unless it is armed for earlier.
fn arm_no_later(deadline: &Deadline, timeout: Option<Duration>) {
    if let Some(at) = timeout.map(|timeout| clock::now() + timeout)
        && deadline.at().is_none_or(|armed| at < armed)
    {
        deadline.set(at);
    }
}
