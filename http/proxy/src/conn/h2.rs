//! An HTTP/2 connection: streams in, one task per exchange, one write per turn.
//!
//! The task of the connection polls the h2 crate, starts exchanges and flushes. It also watches what the crate
//! does not: budgets of cheap frames, idle and age limits that control frames do not refresh (C26), and drain by
//! two GOAWAYs (C28).

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use core_runtime::clock;
use core_runtime::timer::Deadline;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason as H2Reason, RecvStream};
use http_wire::frame_meter::{Budget, Flood, FrameBudgets, FrameMeter};
use http_wire::h1::Persistence;
use http_wire::head::BodyLength;

use super::{ConnInfo, Ready, age_limit, request_limit};
use crate::chunk::Chunk;
use crate::convert;
use crate::core::{Core, LiveSnapshot};
use crate::exchange::{self, Done, Next, Timers, Work};
use crate::h2io::{FrameLedger, H2Io};
use crate::reason::Reason;
use crate::side::{H2Side, Side};
use crate::snapshot::{H2Config, ListenerConfig};

/// Window of the flood budgets.
const FLOOD_WINDOW: Duration = Duration::from_secs(10);
/// CONTINUATION frames in a row (CVE-2024-27316).
const CONTINUATIONS_MAX: u32 = 16;
/// Bytes of one stream that wait in the h2 crate for the client's window.
const SEND_BUFFER_BYTES_MAX: usize = 64 * 1024;
/// How long frames on a stream that we have reset may be on their way; they are dropped quietly meanwhile.
const RESET_MEMORY: Duration = Duration::from_secs(10);
/// Stream errors in the life of a connection, as a multiple of the budget of resets. The crate counts those that no
/// exchange sees, and has no window.
const STREAM_ERRORS_PER_BUDGET: u32 = 16;
/// How long a client may take to see that a connection ends for its age or for being idle.
const GOAWAY_GRACE: Duration = Duration::from_secs(5);
const LIMITS_PERIOD_MIN: Duration = Duration::from_millis(20);
/// After a GOAWAY for an error: how long, and how many bytes, to read and drop so that the client gets it.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 1024 * 1024;

/// What the streams of a connection share with its task.
struct Shared {
    info: Rc<ConnInfo>,
    streams: Cell<u32>,
}

/// Serves a connection to its end and says why it ended.
pub(super) async fn serve(core: &Rc<Core>, snapshot: Rc<LiveSnapshot>, ready: Ready) -> Reason {
    let Some(config) = snapshot.listener(ready.info.listener) else { return Reason::Draining };
    let io = H2Io::new(ready.transport, ready.early, Some(FrameMeter::at_preface(&budgets(&config.http.h2))));
    let deadline = Deadline::new();
    deadline.set_after(config.http.header_timeout);
    let mut handshake = builder(config).handshake::<_, Chunk>(io.clone());
    let connection = poll_fn(|cx| {
        if let Poll::Ready(result) = std::pin::Pin::new(&mut handshake).poll(cx) {
            return Poll::Ready(result.map_err(|_failed| Reason::H2ProtocolError));
        }
        match io.poll_drain(cx) {
            Poll::Ready(Err(_gone)) => return Poll::Ready(Err(Reason::ClientClosed)),
            Poll::Ready(Ok(())) | Poll::Pending => {}
        }
        deadline.poll_expired(cx).map(|()| Err(Reason::HeaderTimeout))
    })
    .await;
    let connection = match connection {
        Ok(connection) => connection,
        Err(reason) => return flood_reason(&io).unwrap_or(reason),
    };
    let mut driver = Driver {
        core,
        shared: Rc::new(Shared { info: ready.info, streams: Cell::new(0) }),
        io: io.clone(),
        connection,
        streams_max: config.http.h2.streams_max,
        header_count_max: config.http.header_count_max,
        streams_seen: 0,
        idle_timeout: config.http.idle_timeout,
        age_limit: age_limit(core, config, clock::now()),
        requests_left: request_limit(core, config).unwrap_or(u32::MAX),
        deadline,
        idle_since: clock::now(),
        goaway_at: None,
        ending: None,
        grace_ends_at: Duration::MAX,
        is_abrupt: false,
    };
    drop(snapshot);
    driver.arm();
    let reason = poll_fn(|cx| driver.poll(cx)).await;
    drop(driver);
    if !matches!(reason, Reason::Ok | Reason::ClientClosed) {
        linger(&io).await;
    }
    reason
}

/// Ends our direction and waits a little for the client to end its own.
async fn linger(io: &H2Io) {
    let deadline = Deadline::new();
    deadline.set_after(LINGER);
    let mut left_bytes = LINGER_BYTES_MAX;
    let mut has_ended = false;
    poll_fn(|cx| {
        if !has_ended {
            match io.poll_end(cx) {
                Poll::Ready(Ok(())) => has_ended = true,
                Poll::Ready(Err(_gone)) => return Poll::Ready(()),
                Poll::Pending => return deadline.poll_expired(cx),
            }
        }
        if io.poll_linger(cx, &mut left_bytes).is_ready() {
            return Poll::Ready(());
        }
        deadline.poll_expired(cx)
    })
    .await;
}

fn builder(config: &ListenerConfig) -> Builder {
    let h2 = &config.http.h2;
    let header_bytes_max = u32::try_from(config.http.header_bytes_max).unwrap_or(u32::MAX);
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(h2.streams_max)
        .initial_window_size(h2.stream_window_bytes)
        .initial_connection_window_size(h2.connection_window_bytes)
        .max_frame_size(h2.frame_bytes_max)
        .max_header_list_size(header_bytes_max)
        .max_send_buffer_size(SEND_BUFFER_BYTES_MAX)
        // Our meter counts resets of both directions; the crate's own bounds stay as a second line.
        .max_concurrent_reset_streams(count(h2.resets_max))
        .reset_stream_duration(RESET_MEMORY)
        .max_local_error_reset_streams(Some(count(h2.resets_max.saturating_mul(STREAM_ERRORS_PER_BUDGET))))
        .max_pending_accept_reset_streams(count(h2.resets_max));
    if h2.extended_connect {
        builder.enable_connect_protocol();
    }
    builder
}

fn count(limit: u32) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

fn budgets(config: &H2Config) -> FrameBudgets {
    let budget = |frames| Budget::at_most(frames, FLOOD_WINDOW);
    FrameBudgets {
        resets: budget(config.resets_max),
        control_frames: budget(config.control_frames_max),
        small_data_frames: budget(config.small_data_frames_max),
        continuations_in_row_max: CONTINUATIONS_MAX,
    }
}

fn flood_reason(io: &H2Io) -> Option<Reason> {
    io.flood().map(|flood| match flood {
        Flood::Resets => Reason::H2FloodResets,
        Flood::ControlFrames => Reason::H2FloodControl,
        Flood::SmallDataFrames => Reason::H2FloodSmallData,
        Flood::Continuations => Reason::H2FloodContinuation,
    })
}

struct Driver<'a> {
    core: &'a Rc<Core>,
    shared: Rc<Shared>,
    io: H2Io,
    connection: Connection<H2Io, Chunk>,
    streams_max: u32,
    header_count_max: usize,
    /// Streams opened when the limits were last looked at.
    streams_seen: u64,
    idle_timeout: Duration,
    age_limit: Option<Duration>,
    requests_left: u32,
    deadline: Deadline,
    idle_since: Duration,
    /// When a client of a process that drains is told so.
    goaway_at: Option<Duration>,
    /// Why the connection takes no new streams any more, once its client has been told.
    ending: Option<Reason>,
    /// When a client that was told, and does not answer the PING behind the first GOAWAY, has had its time.
    grace_ends_at: Duration,
    is_abrupt: bool,
}

impl Driver<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Reason> {
        let over = self.poll_streams(cx);
        if !self.is_abrupt && flood_reason(&self.io).is_some() {
            // GOAWAY says why, then the connection ends whatever is in flight.
            self.is_abrupt = true;
            self.connection.abrupt_shutdown(H2Reason::ENHANCE_YOUR_CALM);
            match self.connection.poll_closed(cx) {
                Poll::Ready(Ok(()) | Err(_)) | Poll::Pending => {}
            }
        }
        let drained = self.io.poll_drain(cx);
        if self.is_abrupt {
            return Poll::Ready(flood_reason(&self.io).unwrap_or(Reason::H2ProtocolError));
        }
        if let Poll::Ready(reason) = over {
            return Poll::Ready(reason);
        }
        if matches!(drained, Poll::Ready(Err(_))) {
            return Poll::Ready(Reason::ClientClosed);
        }
        let over = self.poll_limits(cx);
        if over.is_pending() && self.shared.streams.get() == 0 {
            self.io.release_buffers();
        }
        over
    }

    /// Takes every request that is there, so that one flush serves them all.
    fn poll_streams(&mut self, cx: &mut Context<'_>) -> Poll<Reason> {
        loop {
            match self.connection.poll_accept(cx) {
                // What came in one read with a flood is not begun: its budgets are counted before.
                Poll::Ready(Some(Ok((_, mut respond)))) if self.io.flood().is_some() => {
                    respond.send_reset(H2Reason::ENHANCE_YOUR_CALM);
                    return Poll::Pending;
                }
                Poll::Ready(Some(Ok((request, respond)))) => self.start(request, respond),
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(flood_reason(&self.io).unwrap_or_else(|| self.why_failed(&error)));
                }
                Poll::Ready(None) => return Poll::Ready(self.ending.unwrap_or(Reason::Ok)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn why_failed(&self, error: &h2::Error) -> Reason {
        match error.reason() {
            // The crate's own guards: stream errors that were provoked, and headers beyond all measure.
            Some(H2Reason::ENHANCE_YOUR_CALM) if error.is_library() => Reason::H2FloodResets,
            _ if error.is_io() => self.ending.unwrap_or(Reason::ClientClosed),
            _ => Reason::H2ProtocolError,
        }
    }

    fn start(&mut self, request: http::Request<RecvStream>, mut respond: SendResponse<Chunk>) {
        // Streams that were reset count until their work has ended (CVE-2023-44487).
        let is_late = self.ending.is_some() && clock::now() >= self.grace_ends_at;
        if is_late || self.shared.streams.get() >= self.streams_max {
            return respond.send_reset(H2Reason::REFUSED_STREAM);
        }
        self.requests_left = self.requests_left.saturating_sub(1);
        if self.requests_left == 0 {
            self.end(Reason::ConnectionAgeMax);
        }
        if self.core.has_gone(self.shared.info.listener) {
            self.end(Reason::Draining);
        }
        self.shared.streams.set(self.shared.streams.get() + 1);
        self.shared.info.live.request_started();
        let stream = Stream {
            core: Rc::clone(self.core),
            shared: Rc::clone(&self.shared),
            ledger: self.io.ledger(),
            header_count_max: self.header_count_max,
        };
        core_runtime::spawn(stream.serve(request, respond));
    }

    /// No new streams: GOAWAY with the highest id first, the real one once the client had time to see it.
    fn end(&mut self, reason: Reason) {
        if self.ending.is_none() {
            self.ending = Some(reason);
            self.grace_ends_at = match reason {
                Reason::Draining if self.core.is_draining() => self.core.close_idle_at(),
                _ => clock::now() + GOAWAY_GRACE.min(self.idle_timeout),
            };
            self.connection.graceful_shutdown();
            self.arm();
        }
    }

    fn poll_limits(&mut self, cx: &mut Context<'_>) -> Poll<Reason> {
        if self.goaway_at.is_none() && self.core.draining.poll_wait(cx).is_ready() {
            self.goaway_at = Some(self.core.goaway_at());
            self.arm();
        }
        let is_due = self.goaway_at.is_some_and(|at| at <= clock::now());
        if self.ending.is_none() && (is_due || self.core.has_gone(self.shared.info.listener)) {
            self.end(Reason::Draining);
            cx.waker().wake_by_ref();
        }
        while self.deadline.poll_expired(cx).is_ready() {
            let now = clock::now();
            // Only streams are use: control frames do not keep a connection alive (C26).
            let opened = self.io.streams_opened();
            if self.shared.streams.get() > 0 || self.streams_seen != opened {
                self.streams_seen = opened;
                self.idle_since = now;
            }
            if self.ending.is_none() && self.age_limit.is_some_and(|limit| now >= limit) {
                self.end(Reason::ConnectionAgeMax);
                cx.waker().wake_by_ref();
            }
            if now.saturating_sub(self.idle_since) >= self.idle_timeout {
                self.end(Reason::IdleTimeout);
                cx.waker().wake_by_ref();
            }
            self.arm();
        }
        self.poll_grace(cx)
    }

    /// A client that does not answer the PING gets the last GOAWAY when its time is over and no stream is left.
    fn poll_grace(&mut self, cx: &mut Context<'_>) -> Poll<Reason> {
        let Some(reason) = self.ending else { return Poll::Pending };
        if self.shared.streams.get() > 0 || clock::now() < self.grace_ends_at {
            return Poll::Pending;
        }
        self.connection.abrupt_shutdown(H2Reason::NO_ERROR);
        match self.connection.poll_closed(cx) {
            Poll::Ready(Ok(()) | Err(_)) | Poll::Pending => {}
        }
        Poll::Ready(reason)
    }

    /// Looks at the limits again a few times within the idle time; streams need no timer of their own for it.
    fn arm(&self) {
        let now = clock::now();
        let next = now + (self.idle_timeout / 4).max(LIMITS_PERIOD_MIN);
        let due = match self.ending {
            None => self.age_limit.into_iter().chain(self.goaway_at).min(),
            Some(_) => Some(self.grace_ends_at),
        };
        // What is due already is looked at again after a while: its streams have to end first.
        self.deadline.set(due.filter(|due| *due > now).map_or(next, |due| next.min(due)));
    }
}

/// One request of a connection.
struct Stream {
    core: Rc<Core>,
    shared: Rc<Shared>,
    ledger: FrameLedger,
    header_count_max: usize,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.streams.set(self.shared.streams.get() - 1);
        self.shared.info.live.request_ended();
    }
}

impl Stream {
    async fn serve(self, received: http::Request<RecvStream>, respond: SendResponse<Chunk>) {
        let began_at = clock::now();
        let (parts, receive) = received.into_parts();
        let protocol = parts.extensions.get::<h2::ext::Protocol>().map(h2::ext::Protocol::as_str);
        let mut request = self.core.take_request();
        let scheme = self.shared.info.scheme;
        let limits = convert::RequestLimits { fields_max: self.header_count_max, scheme };
        let meta =
            convert::request_from_h2(&parts, protocol, receive.is_end_stream(), &limits, &mut request.head);
        let downstream = Side::H2(H2Side::downstream(receive, respond, self.ledger.clone()));
        request.body = meta.as_ref().map_or(BodyLength::Empty, |meta| meta.body);
        request.persistence = Persistence::KeepAlive;
        request.te_trailers = meta.as_ref().is_ok_and(|meta| meta.te_trailers);
        request.began_at = began_at;
        request.parsed_at = clock::now();
        drop(parts);
        let conn = Rc::clone(&self.shared.info);
        let work = Work { conn, request, downstream, timers: Timers::default(), refused: meta.err() };
        let Done { next, work } = exchange::run_in_place(&self.core, work).await;
        self.core.give_request(work.request);
        if let (Next::Abort, Side::H2(side)) = (next, &work.downstream)
            && side.has_provoked_reset()
        {
            self.ledger.note_reset_sent();
        }
    }
}
