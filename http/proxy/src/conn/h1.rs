//! An HTTP/1 connection: one request after the other, in order.
//!
//! ```text
//!   Idle ──first byte──► Head ──parsed──► exchange ──► Idle   (keep-alive)
//!     │ idle limit, drain   │ header limit, malformed   └────► Linger ──► closed
//!     └──► closed           └──► error reply ──► Linger
//! ```

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use core_runtime::clock;
use core_runtime::timer::Deadline;
use http_wire::h1::{HeadLimits, Persistence};
use http_wire::head::BodyLength;

use super::{ConnInfo, Ready, age_limit, request_limit};
use crate::core::{Core, LiveSnapshot};
use crate::exchange::{self, Done, Next, Request, Work};
use crate::reason::Reason;
use crate::side::{H1Side, Side, SideError};
use crate::snapshot::ListenerConfig;

/// After the last answer: how long, and how many bytes, to read and drop so that the client gets the answer.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES_MAX: u64 = 256 * 1024;

/// Why the wait for a request ended without one.
enum NoRequest {
    /// The client closed, or the wait was over.
    Over(Reason),
    /// Something is wrong with the head: answer and close.
    Refuse(Reason),
}

/// Serves a connection to its end and says why it ended.
#[expect(clippy::manual_async_fn, reason = "an async fn holds its arguments twice, in each idle connection")]
pub(super) fn serve(
    core: &Rc<Core>,
    snapshot: Rc<LiveSnapshot>,
    ready: Box<Ready>,
) -> impl Future<Output = Reason> {
    async move {
        let Some(config) = snapshot.listener(ready.info.listener) else { return Reason::Draining };
        let (info, mut side) = begin(config, ready);
        let wait = Deadline::new();
        let age_limit = age_limit(core, config, info.opened_at);
        let requests_max = request_limit(core, config);
        // The head's time goes for the first wait too; after it the limits are those of the configuration then in force.
        let mut patience = Patience { first_byte: config.http.header_timeout, ..Patience::of(config, None) };
        drop(snapshot);
        let mut requests = 0u32;
        let (mut turn, mut place) = (0, None);
        loop {
            let (mut request, refused) = match next_request(core, &patience, &info, &mut side, &wait).await {
                Ok(request) => (request, None),
                Err(NoRequest::Over(reason)) => {
                    linger(&mut side, &wait).await;
                    return reason;
                }
                Err(NoRequest::Refuse(reason)) => (refused_request(core), Some(reason)),
            };
            requests += 1;
            let is_last = requests_max.is_some_and(|max| requests >= max)
                || age_limit.is_some_and(|limit| clock::now() >= limit)
                || core.is_draining()
                || core.has_gone(info.listener);
            if is_last {
                request.persistence = Persistence::Close;
            }
            if refused.is_none() {
                info.live.request_started();
            }
            let work = Work { conn: Rc::clone(&info), request, downstream: Side::H1(side), refused };
            let Done { next, work } = exchange::run_in_place(core, work).await;
            core.give_request(work.request);
            side = match work.downstream {
                Side::H1(side) => side,
                Side::H2(_) => return Reason::Internal,
            };
            if let Some(reason) = refused {
                match next {
                    Next::KeepAlive | Next::Close => linger(&mut side, &wait).await,
                    Next::Abort => cut(&mut side).await,
                }
                return reason;
            }
            info.live.request_ended();
            match next {
                Next::KeepAlive => {
                    // A read can hold hundreds of requests that wait for no backend.
                    if turn == core_runtime::turn() {
                        poll_fn(|cx| core.pipelined.poll_enter(cx, &mut place)).await;
                    }
                    turn = core_runtime::turn();
                    let snapshot = core.snapshot_of(info.listener);
                    let Some(config) = snapshot.listener(info.listener) else { return Reason::Draining };
                    patience = Patience::of(config, age_limit);
                }
                Next::Close => {
                    linger(&mut side, &wait).await;
                    return if is_last { Reason::ConnectionAgeMax } else { Reason::Ok };
                }
                Next::Abort => {
                    cut(&mut side).await;
                    return Reason::ClientClosed;
                }
            }
        }
    }
}

#[expect(clippy::boxed_local, reason = "so that the box is gone when the connection begins")]
fn begin(config: &ListenerConfig, ready: Box<Ready>) -> (Rc<ConnInfo>, Box<H1Side>) {
    let Ready { transport, early, info, protocol: _ } = *ready;
    let mut side = H1Side::new(transport, head_limits(config));
    if let Some(early) = early {
        side.unread(early);
    }
    (info, side)
}

/// Stands for a head that is no request, so that it can be answered and recorded.
fn refused_request(core: &Core) -> Box<Request> {
    let mut request = core.take_request();
    request.body = BodyLength::Empty;
    request.persistence = Persistence::Close;
    request.te_trailers = false;
    request.began_at = clock::now();
    request.parsed_at = request.began_at;
    request
}

fn head_limits(config: &ListenerConfig) -> HeadLimits {
    HeadLimits {
        request_line_bytes_max: config.http.request_line_bytes_max,
        head_bytes_max: config.http.header_bytes_max,
        fields_max: config.http.header_count_max,
    }
}

/// How long a connection waits for its next request.
struct Patience {
    /// Until its first byte.
    first_byte: Duration,
    /// From then until the whole head.
    head: Duration,
    /// When the wait for the first byte ends in any case.
    age_limit: Option<Duration>,
}

impl Patience {
    fn of(config: &ListenerConfig, age_limit: Option<Duration>) -> Self {
        Self { first_byte: config.http.idle_timeout, head: config.http.header_timeout, age_limit }
    }
}

/// Waits for a request: without a buffer for its first byte, then for the whole head.
#[expect(clippy::manual_async_fn, reason = "as above")]
fn next_request(
    core: &Rc<Core>,
    patience: &Patience,
    info: &ConnInfo,
    side: &mut H1Side,
    wait: &Deadline,
) -> impl Future<Output = Result<Box<Request>, NoRequest>> {
    async move {
        wait.set_after(patience.first_byte);
        let mut over = Reason::IdleTimeout;
        if let Some(limit) = patience.age_limit
            && wait.at().is_some_and(|at| limit < at)
        {
            wait.set(limit);
            over = Reason::ConnectionAgeMax;
        }
        let mut is_leaving = false;
        let waited = poll_fn(|cx| {
            match side.poll_begun(cx) {
                Poll::Ready(Ok(true)) => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(false)) => return Poll::Ready(Err(NoRequest::Over(Reason::Ok))),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(head_error(error))),
                Poll::Pending => {}
            }
            if !is_leaving {
                let leave_at = match core.draining.poll_wait(cx) {
                    Poll::Ready(()) => Some(core.close_idle_at()),
                    Poll::Pending => core.has_gone(info.listener).then(|| core.leave_at()),
                };
                if let Some(at) = leave_at {
                    is_leaving = true;
                    over = Reason::Draining;
                    wait.set(wait.at().map_or(at, |idle| idle.min(at)));
                }
            }
            wait.poll_expired(cx).map(|()| Err(NoRequest::Over(over)))
        });
        waited.await?;
        let began_at = clock::now();
        let mut is_timed = false;
        let mut request = core.take_request();
        let meta = poll_fn(|cx| {
            if let Poll::Ready(result) = side.poll_request_head(cx, info.scheme, &mut request.head) {
                return Poll::Ready(result.map_err(head_error));
            }
            if !std::mem::replace(&mut is_timed, true) {
                wait.set(began_at + patience.head);
            }
            wait.poll_expired(cx).map(|()| Err(NoRequest::Refuse(Reason::HeaderTimeout)))
        })
        .await?;
        wait.clear();
        request.body = meta.body;
        request.persistence = meta.persistence;
        request.te_trailers = meta.te_trailers;
        request.began_at = began_at;
        request.parsed_at = clock::now();
        Ok(request)
    }
}

fn head_error(error: SideError) -> NoRequest {
    match error {
        SideError::RequestHead(error) => NoRequest::Refuse(error.into()),
        other => NoRequest::Over(crate::fault::downstream(&other)),
    }
}

/// Ends our direction and waits a little for the client to end its own (RFC 9112 §9.6).
async fn linger(side: &mut H1Side, wait: &Deadline) {
    wait.set_after(LINGER);
    let mut left_bytes = LINGER_BYTES_MAX;
    let mut is_ended = false;
    poll_fn(|cx| {
        if !is_ended {
            match side.poll_end(cx) {
                Poll::Ready(Ok(())) => is_ended = true,
                Poll::Ready(Err(_gone)) => return Poll::Ready(()),
                Poll::Pending => return wait.poll_expired(cx),
            }
        }
        if side.poll_linger(cx, &mut left_bytes).is_ready() {
            return Poll::Ready(());
        }
        wait.poll_expired(cx)
    })
    .await;
}

/// A response was cut. What had been made of it leaves if the socket takes it; a missing last chunk or byte then tells
/// the client. A body that ends with the connection needs RST, or it would look complete (C25).
async fn cut(side: &mut H1Side) {
    poll_fn(|cx| match side.poll_flush(cx) {
        Poll::Ready(Ok(()) | Err(_)) | Poll::Pending => Poll::Ready(()),
    })
    .await;
    if side.ends_by_close() {
        // When the socket is gone already there is nothing left to cut.
        match side.transport().tcp().reset_on_close() {
            Ok(()) | Err(_) => {}
        }
    }
}
