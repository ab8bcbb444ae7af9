//! The task of one upstream HTTP/2 connection: dials, then reads, writes and pings until it is over. Started by the
//! pool; tells the pool how it goes.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use core_runtime::clock;
use core_runtime::sync::Signal;
use core_runtime::timer::Deadline;
use h2::client::Connection;
use h2::{Ping, PingPong};

use super::H2Connection;
use crate::chunk::Chunk;
use crate::h2io::H2Io;
use crate::pool::{Endpoint, Settings, dial};
use crate::reason::Reason;
use crate::snapshot::PoolConfig;

/// Credit given to backends for one stream (RFC 9113 §6.9). The connection's credit covers all of its streams at
/// once, so that readers that stand still hold up nobody else's response (C18).
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// RFC 9113 §6.9.1.
const WINDOW_BYTES_MAX: u32 = (1 << 31) - 1;
/// Bytes of one stream that wait in the h2 crate for the peer's window.
const SEND_BUFFER_BYTES_MAX: usize = 64 * 1024;
const HEADER_LIST_BYTES_MAX: u32 = 64 * 1024;
/// Streams that we reset and whose late frames are dropped quietly for [`RESET_MEMORY`].
const RESET_STREAMS_MAX: usize = 4096;
const RESET_MEMORY: Duration = Duration::from_secs(10);
/// Overhead of small DATA frames that may wait for a slow reader. The crate ends the connection beyond it, and one
/// slow gRPC client must not do that to the streams of the others.
const SMALL_DATA_OVERHEAD_BYTES_MAX: usize = 64 * 1024 * 1024;

type Link = Connection<H2Io, Chunk>;

/// Dials and runs a connection to its end.
pub(super) async fn run(settings: Rc<Settings>, endpoint: Rc<Endpoint>) {
    let (io, link, shared, mut timers) = match open(&settings, &endpoint).await {
        Ok(opened) => opened,
        Err(reason) => return endpoint.h2.failed(reason),
    };
    drop(settings);
    endpoint.h2.joined(&shared, &endpoint);
    let reason = drive(&io, link, &shared, &endpoint, &mut timers).await;
    endpoint.h2.left(&shared, &endpoint, reason);
    // What the crate still wants to say (GOAWAY) leaves if the socket takes it at once.
    match poll_fn(|cx| Poll::Ready(io.poll_drain(cx))).await {
        Poll::Ready(Ok(()) | Err(io::Error { .. })) | Poll::Pending => {}
    }
}

/// What limits the silence of a peer.
struct Timers {
    /// Until its SETTINGS.
    settle: Deadline,
    keep_alive: KeepAlive,
}

async fn open(
    settings: &Settings,
    endpoint: &Endpoint,
) -> Result<(H2Io, Link, Rc<H2Connection>, Timers), Reason> {
    let config = settings.config();
    let settle = Deadline::new();
    settle.set_after(config.connect_timeout);
    let (transport, connect) = dial::dial(settings, endpoint).await?;
    let io = H2Io::new(transport, None, None);
    // Only writes the preface and SETTINGS into memory.
    let (send, mut link) = builder(&config.pool)
        .handshake::<_, Chunk>(io.clone())
        .await
        .map_err(|_failed| Reason::UpstreamConnectFailed)?;
    let keep_alive = KeepAlive::new(link.ping_pong(), &config.pool);
    let shared = Rc::new(H2Connection {
        send: RefCell::new(send),
        streams: Cell::new(0),
        streams_max: usize::try_from(config.pool.h2_streams_max).unwrap_or(usize::MAX),
        is_closing: Cell::new(false),
        requests: Cell::new(0),
        idle_since: Cell::new(clock::now()),
        connect: Cell::new(Some(connect)),
        is_settled: Cell::new(false),
        settled: Signal::new(),
        input: io.input_probe(),
        wake: Signal::new(),
    });
    Ok((io, link, shared, Timers { settle, keep_alive }))
}

fn builder(config: &PoolConfig) -> h2::client::Builder {
    let connection_window = STREAM_WINDOW_BYTES.saturating_mul(config.h2_streams_max).min(WINDOW_BYTES_MAX);
    let mut builder = h2::client::Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(connection_window)
        .max_send_buffer_size(SEND_BUFFER_BYTES_MAX)
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .max_concurrent_reset_streams(RESET_STREAMS_MAX)
        .reset_stream_duration(RESET_MEMORY)
        // Clients that cancel make us reset; what a backend sends meanwhile is no attack of the backend's.
        .max_local_error_reset_streams(None)
        .data_frame_budget(SMALL_DATA_OVERHEAD_BYTES_MAX)
        .enable_push(false);
    builder
}

/// Reads, writes and pings until the connection is over or is told to retire and has no streams left. Says why, for
/// a connection whose peer never spoke.
async fn drive(
    io: &H2Io,
    mut link: Link,
    shared: &Rc<H2Connection>,
    endpoint: &Rc<Endpoint>,
    timers: &mut Timers,
) -> Reason {
    poll_fn(|cx| {
        shared.wake.register(cx);
        let polled = Pin::new(&mut link).poll(cx);
        let drained = io.poll_drain(cx);
        match (polled, drained) {
            (Poll::Ready(Err(error)), _) if !error.is_io() => {
                return Poll::Ready(Reason::UpstreamH2ProtocolError);
            }
            (Poll::Ready(Ok(()) | Err(_)), _) | (_, Poll::Ready(Err(_))) => {
                return Poll::Ready(Reason::UpstreamConnectFailed);
            }
            (Poll::Pending, Poll::Ready(Ok(())) | Poll::Pending) => {}
        }
        if !shared.is_settled.get() {
            if io.has_first_frame() {
                endpoint.h2.settled(shared, endpoint);
            } else if timers.settle.poll_expired(cx).is_ready() {
                return Poll::Ready(Reason::UpstreamConnectTimeout);
            }
        }
        if timers.keep_alive.poll_silent(cx).is_ready() {
            return Poll::Ready(Reason::UpstreamConnectFailed);
        }
        if shared.error().is_some() {
            // GOAWAY: streams that the peer has seen go on (RFC 9113 §6.8).
            endpoint.h2.closing(shared, endpoint);
        }
        if shared.streams.get() > 0 {
            return Poll::Pending;
        }
        io.release_buffers();
        if shared.is_closing.get() { Poll::Ready(Reason::UpstreamConnectFailed) } else { Poll::Pending }
    })
    .await
}

/// PINGs an upstream connection, so that a dead one is found before a request is lost on it (RFC 9113 §6.7).
struct KeepAlive {
    pings: Option<PingPong>,
    interval: Option<Duration>,
    timeout: Duration,
    deadline: Deadline,
    is_waiting: bool,
}

impl KeepAlive {
    fn new(pings: Option<PingPong>, config: &PoolConfig) -> Self {
        let deadline = Deadline::new();
        if let Some(interval) = config.h2_ping_interval {
            deadline.set_after(interval);
        }
        let (interval, timeout) = (config.h2_ping_interval, config.h2_ping_timeout);
        Self { pings, interval, timeout, deadline, is_waiting: false }
    }

    /// Ready when the peer has not answered in time.
    fn poll_silent(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (Some(pings), Some(interval)) = (&mut self.pings, self.interval) else { return Poll::Pending };
        if self.is_waiting && pings.poll_pong(cx).is_ready() {
            self.is_waiting = false;
            self.deadline.set_after(interval);
        }
        while self.deadline.poll_expired(cx).is_ready() {
            if self.is_waiting || pings.send_ping(Ping::opaque()).is_err() {
                return Poll::Ready(());
            }
            self.is_waiting = true;
            self.deadline.set_after(self.timeout);
            if pings.poll_pong(cx).is_ready() {
                self.is_waiting = false;
                self.deadline.set_after(interval);
            }
        }
        Poll::Pending
    }
}
