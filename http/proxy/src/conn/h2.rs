//! An HTTP/2 connection: streams in, one task per exchange, one write per turn.
//!
//! The task of the connection moves bytes between socket and codec and starts exchanges. It also watches idle and age
//! limits that control frames do not refresh (C26), and drain by two GOAWAYs (C28); budgets of cheap frames are the
//! codec's.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use core_runtime::clock;
use core_runtime::timer::Deadline;
use http_wire::h1::Persistence;
use http_wire::h2::{Budget, Config, Connection, Fault, Flood, FrameBudgets, HeadLimits, Role, StreamFault};
use http_wire::head::{BodyLength, Scheme};

use super::{ConnInfo, Ready, age_limit, request_limit};
use crate::core::{Core, LiveSnapshot};
use crate::exchange::{self, Work};
use crate::link::{Arrival, Link, LinkEnd};
use crate::reason::Reason;
use crate::side::{H2Side, Side};
use crate::snapshot::{H2Config, ListenerConfig};

/// Window of the flood budgets.
const FLOOD_WINDOW: Duration = Duration::from_secs(10);
/// CONTINUATION frames in a row (CVE-2024-27316).
const CONTINUATIONS_MAX: u32 = 16;
/// How long a client may take to see that a connection ends for its age or for being idle.
const GOAWAY_GRACE: Duration = Duration::from_secs(5);
/// What else stands in the line of a GET over HTTP/1.1: one limit holds for both versions.
const LINE_BYTES_AROUND_TARGET: usize = "GET  HTTP/1.1".len();
const LIMITS_PERIOD_MIN: Duration = Duration::from_millis(20);
/// After a GOAWAY for an error: how long, and how many bytes, to read and drop so that the client gets it.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 1024 * 1024;

/// Serves a connection to its end and says why it ended.
pub(super) async fn serve(core: &Rc<Core>, snapshot: Rc<LiveSnapshot>, ready: Box<Ready>) -> Reason {
    let Some(config) = snapshot.listener(ready.info.listener) else { return Reason::Draining };
    let codec = Connection::new(Role::Server, codec_config(config, ready.info.scheme));
    let settle = Deadline::new();
    settle.set_after(config.http.header_timeout);
    let mut driver = Driver {
        core,
        info: ready.info,
        link: Link::new(ready.transport, ready.early, codec),
        arrived: Vec::new(),
        settle: Some(settle),
        streams_seen: 0,
        idle_timeout: config.http.idle_timeout,
        age_limit: age_limit(core, config, clock::now()),
        requests_left: request_limit(core, config).unwrap_or(u32::MAX),
        deadline: Deadline::new(),
        idle_since: clock::now(),
        goaway_at: None,
        ending: None,
        grace_ends_at: Duration::MAX,
    };
    drop(snapshot);
    driver.arm();
    let (reason, fault) = poll_fn(|cx| driver.poll(cx)).await;
    if !matches!(reason, Reason::Ok | Reason::ClientClosed) {
        linger(&driver.link).await;
    }
    driver.link.close(fault);
    reason
}

/// Ends our direction and waits a little for the client to end its own.
async fn linger(link: &Link) {
    let deadline = Deadline::new();
    deadline.set_after(LINGER);
    let mut left_bytes = LINGER_BYTES_MAX;
    let mut has_ended = false;
    poll_fn(|cx| {
        if !has_ended {
            match link.poll_end(cx) {
                Poll::Ready(Ok(())) => has_ended = true,
                Poll::Ready(Err(_gone)) => return Poll::Ready(()),
                Poll::Pending => return deadline.poll_expired(cx),
            }
        }
        if link.poll_linger(cx, &mut left_bytes).is_ready() {
            return Poll::Ready(());
        }
        deadline.poll_expired(cx)
    })
    .await;
}

fn codec_config(config: &ListenerConfig, scheme: Scheme) -> Config {
    let h2 = &config.http.h2;
    Config {
        streams_max: h2.streams_max,
        stream_window_bytes: h2.stream_window_bytes,
        connection_window_bytes: h2.connection_window_bytes,
        frame_bytes_max: h2.frame_bytes_max,
        head: HeadLimits {
            list_bytes_max: config.http.header_bytes_max,
            fields_max: config.http.header_count_max,
            target_bytes_max: config.http.request_line_bytes_max.saturating_sub(LINE_BYTES_AROUND_TARGET),
        },
        extended_connect: h2.extended_connect,
        scheme,
        budgets: Some(budgets(h2)),
    }
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

fn fault_reason(fault: &Fault) -> Reason {
    match fault.flood {
        Some(Flood::Resets) => Reason::H2FloodResets,
        Some(Flood::ControlFrames) => Reason::H2FloodControl,
        Some(Flood::SmallDataFrames) => Reason::H2FloodSmallData,
        Some(Flood::Continuations) => Reason::H2FloodContinuation,
        None => Reason::H2ProtocolError,
    }
}

struct Driver<'a> {
    core: &'a Rc<Core>,
    info: Rc<ConnInfo>,
    link: Rc<Link>,
    /// Requests of this turn; empty between two turns.
    arrived: Vec<Arrival>,
    /// Until the client's SETTINGS.
    settle: Option<Deadline>,
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
}

impl Drop for Driver<'_> {
    /// Whatever ends the task: exchanges that hold the link do not keep the socket open.
    fn drop(&mut self) {
        self.link.close(StreamFault::Lost);
    }
}

impl Driver<'_> {
    /// Ready with why the connection ended, and what that is for its streams.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(Reason, StreamFault)> {
        if let Poll::Ready(end) = self.link.poll_io(cx, Some(self.core)) {
            return Poll::Ready(self.ended(end));
        }
        self.start_arrived();
        if let Some(settle) = &self.settle {
            if self.link.look(Connection::is_settled) {
                self.settle = None;
            } else if settle.poll_expired(cx).is_ready() {
                return Poll::Ready((Reason::HeaderTimeout, StreamFault::Lost));
            }
        }
        self.poll_limits(cx);
        let (is_over, streams) = self.link.look(|codec| (codec.is_over(), codec.streams()));
        if is_over {
            return Poll::Ready((self.ending.unwrap_or(Reason::Ok), StreamFault::Lost));
        }
        if streams == 0 {
            self.link.release_buffers();
        }
        Poll::Pending
    }

    fn ended(&self, end: LinkEnd) -> (Reason, StreamFault) {
        match end {
            LinkEnd::Fault(fault) => (fault_reason(&fault), StreamFault::Broken),
            LinkEnd::Closed if self.link.look(Connection::streams) == 0 => {
                (self.ending.unwrap_or(Reason::Ok), StreamFault::Lost)
            }
            LinkEnd::Closed | LinkEnd::Broken => {
                (self.ending.unwrap_or(Reason::ClientClosed), StreamFault::Lost)
            }
        }
    }

    /// Begins every exchange whose request came in this turn and was not taken back in it, so that one flush serves
    /// them all.
    fn start_arrived(&mut self) {
        let mut arrived = std::mem::take(&mut self.arrived);
        self.link.take_arrived(&mut arrived);
        for arrival in arrived.drain(..) {
            let key = arrival.key;
            let side = H2Side::downstream(Rc::clone(&self.link), key, arrival.is_end);
            if self.link.fault(key).is_some() {
                self.core.give_request(arrival.request);
                continue;
            }
            self.requests_left = self.requests_left.saturating_sub(1);
            if self.requests_left == 0 {
                self.end(Reason::ConnectionAgeMax);
            }
            if self.core.has_gone(self.info.listener) {
                self.end(Reason::Draining);
            }
            let stream = Stream::new(Rc::clone(self.core), Rc::clone(&self.info));
            core_runtime::spawn(stream.serve(arrival, side));
        }
        self.arrived = arrived;
    }

    /// No new streams: GOAWAY with the highest id first, the real one once the client had time to see it.
    fn end(&mut self, reason: Reason) {
        if self.ending.is_none() {
            self.ending = Some(reason);
            self.grace_ends_at = match reason {
                Reason::Draining if self.core.is_draining() => self.core.close_idle_at(),
                _ => clock::now() + GOAWAY_GRACE.min(self.idle_timeout),
            };
            self.link.with_codec(Connection::begin_shutdown);
            self.arm();
        }
    }

    fn poll_limits(&mut self, cx: &mut Context<'_>) {
        if self.goaway_at.is_none() && self.core.draining.poll_wait(cx).is_ready() {
            self.goaway_at = Some(self.core.goaway_at());
            self.arm();
        }
        let is_due = self.goaway_at.is_some_and(|at| at <= clock::now());
        if self.ending.is_none() && (is_due || self.core.has_gone(self.info.listener)) {
            self.end(Reason::Draining);
        }
        while self.deadline.poll_expired(cx).is_ready() {
            let now = clock::now();
            // Only streams are use: control frames do not keep a connection alive (C26).
            let (opened, streams) = self.link.look(|codec| (codec.streams_opened(), codec.streams()));
            if streams > 0 || self.streams_seen != opened {
                self.streams_seen = opened;
                self.idle_since = now;
            } else {
                self.arrived = Vec::new();
                self.link.release_memory();
            }
            if self.ending.is_none() && self.age_limit.is_some_and(|limit| now >= limit) {
                self.end(Reason::ConnectionAgeMax);
            }
            if now.saturating_sub(self.idle_since) >= self.idle_timeout {
                self.end(Reason::IdleTimeout);
            }
            self.arm();
        }
        if self.ending.is_some() && clock::now() >= self.grace_ends_at {
            // A client that does not answer the PING is told the last stream when its time is over.
            self.link.with_codec(Connection::finish_shutdown);
        }
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

/// One request of a connection, counted while it runs.
struct Stream {
    core: Rc<Core>,
    info: Rc<ConnInfo>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.info.live.request_ended();
    }
}

impl Stream {
    fn new(core: Rc<Core>, info: Rc<ConnInfo>) -> Self {
        info.live.request_started();
        Self { core, info }
    }

    async fn serve(self, arrival: Arrival, side: Box<H2Side>) {
        let Arrival { mut request, meta, .. } = arrival;
        request.body = meta.map_or(BodyLength::Empty, |meta| meta.body);
        request.persistence = Persistence::KeepAlive;
        request.te_trailers = meta.is_ok_and(|meta| meta.te_trailers);
        request.began_at = clock::now();
        request.parsed_at = request.began_at;
        let work = Work {
            conn: Rc::clone(&self.info),
            request,
            downstream: Side::H2(side),
            refused: meta.err().map(Reason::from),
        };
        let done = exchange::run_in_place(&self.core, work).await;
        self.core.give_request(done.work.request);
    }
}
