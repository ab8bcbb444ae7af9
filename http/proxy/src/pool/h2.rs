//! HTTP/2 connections of one endpoint: a handful, shared by many requests.
//!
//! The connection with the fewest streams takes the next request while it has room; then a new one is dialled, up
//! to the bound; then requests wait for a stream to end. After a GOAWAY a connection takes nothing new (C19).

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use core_runtime::clock;
use core_runtime::sync::Signal;
use core_runtime::timer::Deadline;
use h2::client::{Connection, SendRequest};
use h2::{Ping, PingPong};

use super::{Endpoint, Lease, dial};
use crate::chunk::Chunk;
use crate::h2io::H2Io;
use crate::reason::Reason;
use crate::snapshot::PoolConfig;

/// Credit given to backends: enough for fast streams, and bounded memory (RFC 9113 §6.9).
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// Bytes of one stream that wait in the h2 crate for the peer's window.
const SEND_BUFFER_BYTES_MAX: usize = 64 * 1024;
const HEADER_LIST_BYTES_MAX: u32 = 64 * 1024;

#[derive(Debug)]
struct H2Connection {
    send: SendRequest<Chunk>,
    streams: Cell<usize>,
    streams_max: usize,
    /// No new stream: GOAWAY was seen, the connection failed, or it is too old.
    is_closing: Cell<bool>,
    requests: Cell<u32>,
    idle_since: Cell<Duration>,
    /// Tells the connection's task to end when nothing runs on it.
    retire: Signal,
}

#[derive(Debug, Default)]
pub(super) struct Pool {
    connections: RefCell<Vec<Rc<H2Connection>>>,
    dialling: Cell<usize>,
    /// Something changed: a connection came or went, or a stream ended while all were full.
    changed: Signal,
}

/// One stream's place on a connection; given back on drop.
#[derive(Debug)]
pub(crate) struct H2Lease {
    connection: Rc<H2Connection>,
    endpoint: Rc<Endpoint>,
    pub(crate) is_reused: bool,
    pub(crate) connect: Option<Duration>,
}

impl H2Lease {
    /// A place for one stream.
    ///
    /// # Errors
    /// `UpstreamPoolFull` when no stream ended within the connect timeout, else why dialling failed.
    pub(crate) async fn take(lease: &Lease) -> Result<Self, Reason> {
        let config = lease.cluster.config();
        let pool = &lease.endpoint.h2;
        let deadline = Deadline::new();
        deadline.set_after(config.connect_timeout);
        loop {
            if let Some(connection) = pool.best() {
                return Ok(Self::on(connection, lease, None));
            }
            if pool.connections.borrow().len() + pool.dialling.get() < config.pool.h2_connections_max {
                let (connection, connect) = pool.open_one(lease).await?;
                return Ok(Self::on(connection, lease, Some(connect)));
            }
            pool.wait_for_change(&deadline).await?;
        }
    }

    fn on(connection: Rc<H2Connection>, lease: &Lease, connect: Option<Duration>) -> Self {
        connection.streams.set(connection.streams.get() + 1);
        let requests = connection.requests.get() + 1;
        connection.requests.set(requests);
        if lease.cluster.config().pool.requests_max.is_some_and(|max| requests >= max) {
            connection.is_closing.set(true);
        }
        Self { connection, endpoint: Rc::clone(&lease.endpoint), is_reused: connect.is_none(), connect }
    }

    /// Waits until the connection takes a request, and gives its sending handle.
    ///
    /// # Errors
    /// The connection's error; nothing was sent then.
    pub(crate) async fn ready(&self) -> Result<SendRequest<Chunk>, h2::Error> {
        let mut send = self.connection.send.clone();
        let result = poll_fn(|cx| send.poll_ready(cx)).await;
        if result.is_err() {
            self.close();
        }
        result.map(|()| send)
    }

    /// Takes the connection out of use for new streams.
    pub(crate) fn close(&self) {
        self.connection.is_closing.set(true);
    }
}

impl Drop for H2Lease {
    fn drop(&mut self) {
        let streams = self.connection.streams.get() - 1;
        self.connection.streams.set(streams);
        self.connection.idle_since.set(clock::now());
        self.endpoint.h2.changed.notify_one();
        if streams == 0 && self.connection.is_closing.get() {
            self.connection.retire.notify_all();
        }
    }
}

impl H2Connection {
    fn has_room(&self) -> bool {
        let allowed = self.streams_max.min(self.send.current_max_send_streams());
        !self.is_closing.get() && self.streams.get() < allowed
    }
}

impl Pool {
    fn best(&self) -> Option<Rc<H2Connection>> {
        let connections = self.connections.borrow();
        connections.iter().filter(|c| c.has_room()).min_by_key(|c| c.streams.get()).cloned()
    }

    pub(super) fn open(&self) -> usize {
        self.connections.borrow().len()
    }

    async fn wait_for_change(&self, deadline: &Deadline) -> Result<(), Reason> {
        let mut is_registered = false;
        poll_fn(|cx| {
            if deadline.poll_expired(cx).is_ready() {
                return Poll::Ready(Err(Reason::UpstreamPoolFull));
            }
            if std::mem::replace(&mut is_registered, true) {
                return Poll::Ready(Ok(()));
            }
            self.changed.register(cx);
            Poll::Pending
        })
        .await
    }

    async fn open_one(&self, lease: &Lease) -> Result<(Rc<H2Connection>, Duration), Reason> {
        let dialling = Dialling::begin(&self.dialling, &self.changed);
        let (transport, connect) = dial::dial(lease).await?;
        let io = H2Io::new(transport, None, None);
        let (send, mut connection) = h2::client::Builder::new()
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_send_buffer_size(SEND_BUFFER_BYTES_MAX)
            .max_header_list_size(HEADER_LIST_BYTES_MAX)
            .enable_push(false)
            .handshake::<_, Chunk>(io.clone())
            .await
            .map_err(|_failed| Reason::UpstreamConnectFailed)?;
        let config = lease.cluster.config().pool;
        let pings = connection.ping_pong();
        let shared = Rc::new(H2Connection {
            send,
            streams: Cell::new(0),
            streams_max: usize::try_from(config.h2_streams_max).unwrap_or(usize::MAX),
            is_closing: Cell::new(false),
            requests: Cell::new(0),
            idle_since: Cell::new(clock::now()),
            retire: Signal::new(),
        });
        self.connections.borrow_mut().push(Rc::clone(&shared));
        drop(dialling);
        let keep_alive = KeepAlive::new(pings, &config);
        core_runtime::spawn(drive(io, connection, Rc::clone(&shared), Rc::clone(&lease.endpoint), keep_alive));
        Ok((shared, connect))
    }

    /// Retires connections without streams that were idle for too long.
    pub(super) fn reap_idle(&self, now: Duration, idle_timeout: Duration) {
        for connection in self.connections.borrow().iter() {
            let is_idle = connection.streams.get() == 0;
            if is_idle && now.saturating_sub(connection.idle_since.get()) >= idle_timeout {
                connection.is_closing.set(true);
                connection.retire.notify_all();
            }
        }
    }
}

/// Counts a connection that is being dialled, and wakes the waiting when it is decided.
struct Dialling<'a>(&'a Cell<usize>, &'a Signal);

impl<'a> Dialling<'a> {
    fn begin(count: &'a Cell<usize>, changed: &'a Signal) -> Self {
        count.set(count.get() + 1);
        Self(count, changed)
    }
}

impl Drop for Dialling<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
        self.1.notify_all();
    }
}

/// Runs one connection to its end: reads, writes, pings, and leaves the pool.
async fn drive(
    io: H2Io,
    mut connection: Connection<H2Io, Chunk>,
    shared: Rc<H2Connection>,
    endpoint: Rc<Endpoint>,
    mut keep_alive: KeepAlive,
) {
    poll_fn(|cx| {
        let over = std::pin::Pin::new(&mut connection).poll(cx).is_ready();
        let failed = matches!(io.poll_drain(cx), Poll::Ready(Err(_)));
        let silent = keep_alive.poll_silent(cx).is_ready();
        if over || failed || silent {
            return Poll::Ready(());
        }
        shared.retire.register(cx);
        if shared.is_closing.get() && shared.streams.get() == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    shared.is_closing.set(true);
    endpoint.h2.connections.borrow_mut().retain(|other| !Rc::ptr_eq(other, &shared));
    endpoint.h2.changed.notify_all();
    // What the crate still wants to say (GOAWAY) leaves if the socket takes it at once.
    match poll_fn(|cx| Poll::Ready(io.poll_drain(cx))).await {
        Poll::Ready(Ok(()) | Err(io::Error { .. })) | Poll::Pending => {}
    }
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
