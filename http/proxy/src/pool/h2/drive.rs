//! The task of one upstream HTTP/2 connection: dials, then reads, writes and pings until it is over. Started by the
//! pool; tells the pool how it goes.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use core_runtime::clock;
use core_runtime::sync::Signal;
use core_runtime::timer::Deadline;
use http_wire::h2::{Config, Connection, ErrorCode, HeadLimits, Role, StreamFault};
use http_wire::head::Scheme;

use super::H2Connection;
use crate::link::{Link, LinkEnd};
use crate::pool::{Endpoint, RESPONSE_LIMITS, Settings, dial};
use crate::reason::Reason;
use crate::snapshot::PoolConfig;

/// Credit given to backends for one stream (RFC 9113 §6.9). The connection's credit covers all of its streams at
/// once, so that readers that stand still hold up nobody else's response (C18).
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// RFC 9113 §6.9.1.
const WINDOW_BYTES_MAX: u32 = (1 << 31) - 1;
const HEADER_LIST_BYTES_MAX: usize = 64 * 1024;
/// A payload that fills a buffer of the pool.
const FRAME_BYTES_MAX: u32 = 16_384;

/// Dials and runs a connection to its end.
pub(super) async fn run(settings: Rc<Settings>, endpoint: Rc<Endpoint>) {
    let (shared, mut timers) = match open(&settings, &endpoint).await {
        Ok(opened) => opened,
        Err(reason) => return endpoint.h2.failed(reason),
    };
    drop(settings);
    endpoint.h2.joined(&shared, &endpoint);
    let (reason, fault) = drive(&shared, &endpoint, &mut timers).await;
    endpoint.h2.left(&shared, &endpoint, reason);
    // In order, as far as the socket takes it at once: GOAWAY (RFC 9113 §5.4.1, §6.8), and the end of TLS.
    shared.link.with_codec(|codec| codec.abort(ErrorCode::NO_ERROR));
    poll_fn(|cx| Poll::Ready(shared.link.poll_end(cx).is_ready())).await;
    shared.link.close(fault);
}

/// What limits the silence of a peer.
struct Timers {
    /// Until its SETTINGS.
    settle: Deadline,
    keep_alive: KeepAlive,
}

async fn open(settings: &Settings, endpoint: &Endpoint) -> Result<(Rc<H2Connection>, Timers), Reason> {
    let config = settings.config();
    let settle = Deadline::new();
    settle.set_after(config.connect_timeout);
    let (transport, connect) = dial::dial(settings, endpoint).await?;
    let keep_alive = KeepAlive::new(&config.pool);
    let shared = Rc::new(H2Connection {
        link: Link::new(transport, None, Connection::new(Role::Client, codec_config(&config.pool))),
        streams: Cell::new(0),
        streams_max: usize::try_from(config.pool.h2_streams_max).unwrap_or(usize::MAX),
        is_closing: Cell::new(false),
        requests: Cell::new(0),
        idle_since: Cell::new(clock::now()),
        connect: Cell::new(Some(connect)),
        is_settled: Cell::new(false),
        settled: Signal::new(),
    });
    Ok((shared, Timers { settle, keep_alive }))
}

fn codec_config(config: &PoolConfig) -> Config {
    Config {
        streams_max: 0,
        stream_window_bytes: STREAM_WINDOW_BYTES,
        connection_window_bytes: STREAM_WINDOW_BYTES
            .saturating_mul(config.h2_streams_max)
            .min(WINDOW_BYTES_MAX),
        frame_bytes_max: FRAME_BYTES_MAX,
        head: HeadLimits {
            list_bytes_max: HEADER_LIST_BYTES_MAX,
            fields_max: RESPONSE_LIMITS.fields_max,
            target_bytes_max: 0,
        },
        extended_connect: false,
        scheme: Scheme::Http,
        // Clients that cancel make us reset; what a backend sends meanwhile is no attack of the backend's.
        budgets: None,
    }
}

/// Reads, writes and pings until the connection is over or is told to retire and has no streams left. Says why, for
/// a connection whose peer never spoke, and what the end is for its streams.
async fn drive(
    shared: &Rc<H2Connection>,
    endpoint: &Rc<Endpoint>,
    timers: &mut Timers,
) -> (Reason, StreamFault) {
    let link = &shared.link;
    poll_fn(|cx| {
        match link.poll_io(cx, None) {
            Poll::Ready(LinkEnd::Fault(_)) => {
                return Poll::Ready((Reason::UpstreamH2ProtocolError, StreamFault::Broken));
            }
            Poll::Ready(LinkEnd::Closed | LinkEnd::Broken) => return Poll::Ready(LOST),
            Poll::Pending => {}
        }
        if !shared.is_settled.get() {
            if link.look(Connection::is_settled) {
                endpoint.h2.settled(shared, endpoint);
            } else if timers.settle.poll_expired(cx).is_ready() {
                return Poll::Ready((Reason::UpstreamConnectTimeout, StreamFault::Lost));
            }
        }
        if timers.keep_alive.poll_silent(link, cx).is_ready() {
            return Poll::Ready(LOST);
        }
        if !link.look(Connection::may_open) {
            // GOAWAY: streams that the peer has seen go on (RFC 9113 §6.8).
            endpoint.h2.closing(shared, endpoint);
        }
        if shared.streams.get() > 0 {
            return Poll::Pending;
        }
        link.release_buffers();
        if shared.is_closing.get() { Poll::Ready(LOST) } else { Poll::Pending }
    })
    .await
}

const LOST: (Reason, StreamFault) = (Reason::UpstreamConnectFailed, StreamFault::Lost);

/// PINGs an upstream connection, so that a dead one is found before a request is lost on it (RFC 9113 §6.7).
struct KeepAlive {
    interval: Option<Duration>,
    timeout: Duration,
    deadline: Deadline,
    is_waiting: bool,
}

impl KeepAlive {
    fn new(config: &PoolConfig) -> Self {
        let deadline = Deadline::new();
        if let Some(interval) = config.h2_ping_interval {
            deadline.set_after(interval);
        }
        let (interval, timeout) = (config.h2_ping_interval, config.h2_ping_timeout);
        Self { interval, timeout, deadline, is_waiting: false }
    }

    /// Ready when the peer has not answered in time.
    fn poll_silent(&mut self, link: &Link, cx: &mut Context<'_>) -> Poll<()> {
        let Some(interval) = self.interval else { return Poll::Pending };
        if self.is_waiting && link.look(Connection::has_pong) {
            self.is_waiting = false;
            self.deadline.set_after(interval);
        }
        while self.deadline.poll_expired(cx).is_ready() {
            if self.is_waiting {
                return Poll::Ready(());
            }
            self.is_waiting = true;
            link.with_codec(Connection::ping);
            self.deadline.set_after(self.timeout);
        }
        Poll::Pending
    }
}
