//! HTTP/2 connections of one endpoint: a handful, shared by many requests.
//!
//! ```text
//!   take ─► room on a connection ────────────────────────────► H2Lease ─► stream ends ─► first in line, else free
//!     └───► in line ─► dial while places are short ─► joined ─┘
//! ```
//! The connection with the fewest streams takes the next request; those who find no room stand in line, first come
//! first served, and a place is handed to the first of them rather than offered to all. Dialling belongs to the
//! pool, not to a request: a client that leaves does not take the connection of the others with it. Until the
//! peer's SETTINGS have told its limits a connection takes one stream; after a GOAWAY it takes no new one (C19).

mod drive;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use core_runtime::clock;
use core_runtime::sync::Signal;
use core_runtime::timer::Deadline;
use http_wire::h2::SendError;
use http_wire::head::{BodyLength, RequestHead, Scheme};

use super::{Endpoint, Lease, Settings};
use crate::link::{Inbox, Link};
use crate::reason::Reason;
use crate::side::H2Side;

#[derive(Debug)]
struct H2Connection {
    link: Rc<Link>,
    streams: Cell<usize>,
    streams_max: usize,
    /// No new stream: GOAWAY was seen, the connection failed, or it is too old.
    is_closing: Cell<bool>,
    requests: Cell<u32>,
    idle_since: Cell<Duration>,
    /// How long dialling took, for the first stream to report.
    connect: Cell<Option<Duration>>,
    /// The peer's SETTINGS have come (RFC 9113 §3.4).
    is_settled: Cell<bool>,
    settled: Signal,
}

#[derive(Debug, Default)]
pub(super) struct Pool {
    connections: RefCell<Vec<Rc<H2Connection>>>,
    /// Connections on their way: not yet made, or without the peer's SETTINGS.
    pending: Cell<usize>,
    line: RefCell<VecDeque<Rc<Waiting>>>,
}

/// A request that stands in line.
#[derive(Debug)]
struct Waiting {
    settings: Rc<Settings>,
    state: RefCell<Wait>,
}

#[derive(Debug)]
enum Wait {
    InLine(Option<Waker>),
    Called(H2Lease),
    /// The last attempt to connect failed, and no connection is left.
    Refused(Reason),
    Left,
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
        if let Some(stream) = Self::take_now(lease) {
            return Ok(stream);
        }
        let pool = &lease.endpoint.h2;
        if pool.line.borrow().is_empty()
            && let Some(connection) = pool.best()
        {
            connection.link.wake_task();
            core_runtime::yield_now().await;
            if let Some(connection) = pool.best() {
                return Ok(Self::on(connection, &lease.settings, &lease.endpoint));
            }
        }
        Self::in_line(lease).await
    }

    /// A place that is free at once on a connection that needs no look.
    pub(crate) fn take_now(lease: &Lease) -> Option<Self> {
        let pool = &lease.endpoint.h2;
        if !pool.line.borrow().is_empty() {
            return None;
        }
        let connection = pool.best()?;
        // An end or a GOAWAY may have come while it was idle: its task looks first (C19, C22).
        let is_doubtful = connection.streams.get() == 0 && connection.link.has_input();
        (!is_doubtful).then(|| Self::on(connection, &lease.settings, &lease.endpoint))
    }

    async fn in_line(lease: &Lease) -> Result<Self, Reason> {
        let pool = &lease.endpoint.h2;
        let place = InLine::enter(lease);
        pool.dial_for_line(&lease.endpoint);
        let deadline = Deadline::new();
        deadline.set_after(lease.settings.config().connect_timeout);
        poll_fn(|cx| {
            if let Poll::Ready(result) = place.poll(cx) {
                return Poll::Ready(result);
            }
            let is_connecting = pool.pending.get() > 0 && pool.connections.borrow().is_empty();
            let late = if is_connecting { Reason::UpstreamConnectTimeout } else { Reason::UpstreamPoolFull };
            deadline.poll_expired(cx).map(|()| Err(late))
        })
        .await
    }

    fn on(connection: Rc<H2Connection>, settings: &Settings, endpoint: &Rc<Endpoint>) -> Self {
        connection.streams.set(connection.streams.get() + 1);
        let requests = connection.requests.get() + 1;
        connection.requests.set(requests);
        if settings.config().pool.requests_max.is_some_and(|max| requests >= max) {
            connection.is_closing.set(true);
        }
        let connect = connection.connect.take();
        Self { connection, endpoint: Rc::clone(endpoint), is_reused: connect.is_none(), connect }
    }

    /// Sends a request on its stream.
    ///
    /// # Errors
    /// The connection takes no new streams; nothing was sent.
    pub(crate) fn send(
        &self,
        head: &RequestHead,
        body: BodyLength,
        te_trailers: bool,
        scheme: Scheme,
    ) -> Result<Box<H2Side>, SendError> {
        let link = &self.connection.link;
        let sent =
            link.with_codec(|codec| codec.send_request(head, body, te_trailers, scheme, Inbox::default()));
        let key = sent.inspect_err(|_gone| self.close())?;
        Ok(H2Side::upstream(Rc::clone(link), key, body))
    }

    /// Whether the backend knows extended CONNECT (RFC 8441 §3), once it has [`H2Lease::settled`].
    pub(crate) fn knows_extended_connect(&self) -> bool {
        self.connection.link.look(|codec| codec.peer_knows_extended_connect())
    }

    /// Waits for the peer's SETTINGS: only they tell whether it knows extended CONNECT (RFC 8441 §3).
    ///
    /// # Errors
    /// When the connection ends or the connect timeout passes without.
    pub(crate) async fn settled(&self, settings: &Settings) -> Result<(), Reason> {
        let deadline = Deadline::new();
        deadline.set_after(settings.config().connect_timeout);
        poll_fn(|cx| {
            if self.connection.is_settled.get() {
                return Poll::Ready(Ok(()));
            }
            if self.connection.is_closing.get() {
                return Poll::Ready(Err(Reason::UpstreamConnectFailed));
            }
            self.connection.settled.register(cx);
            deadline.poll_expired(cx).map(|()| Err(Reason::UpstreamConnectTimeout))
        })
        .await
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
        if streams == 0 {
            self.connection.idle_since.set(clock::now());
            if self.connection.is_closing.get() {
                self.connection.link.wake_task();
            }
        }
        self.endpoint.h2.call_line(&self.endpoint);
    }
}

impl H2Connection {
    fn has_room(&self) -> bool {
        let streams = self.streams.get();
        let (peer_max, may_open) = self.link.look(|codec| (codec.peer_streams_max(), codec.may_open()));
        let limit = if self.is_settled.get() {
            self.streams_max.min(usize::try_from(peer_max).unwrap_or(usize::MAX))
        } else {
            1
        };
        !self.is_closing.get() && may_open && streams < limit
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

    pub(super) fn idle(&self) -> usize {
        self.connections.borrow().iter().filter(|connection| connection.streams.get() == 0).count()
    }

    /// Gives free places to those in line, in order.
    fn call_line(&self, endpoint: &Rc<Endpoint>) {
        while !self.line.borrow().is_empty() {
            let Some(connection) = self.best() else { return };
            let Some(first) = self.line.borrow_mut().pop_front() else { return };
            let lease = H2Lease::on(connection, &first.settings, endpoint);
            first.settle(Wait::Called(lease));
        }
    }

    /// Dials while the connections that are on their way will not do for those in line. Connections that take
    /// nothing new do not count against the bound: their long streams must not keep new requests out.
    fn dial_for_line(&self, endpoint: &Rc<Endpoint>) {
        loop {
            let line = self.line.borrow();
            let Some(first) = line.front() else { return };
            let config = &first.settings.config().pool;
            let pending = self.pending.get();
            let is_open = |c: &&Rc<H2Connection>| c.is_settled.get() && !c.is_closing.get();
            let open = self.connections.borrow().iter().filter(is_open).count();
            let expected =
                pending.saturating_mul(usize::try_from(config.h2_streams_max).unwrap_or(usize::MAX));
            if line.len() <= expected || open + pending >= config.h2_connections_max {
                return;
            }
            let settings = Rc::clone(&first.settings);
            drop(line);
            self.pending.set(pending + 1);
            core_runtime::spawn(drive::run(settings, Rc::clone(endpoint)));
        }
    }

    /// A connection that was dialled is there; its peer has not spoken yet.
    fn joined(&self, connection: &Rc<H2Connection>, endpoint: &Rc<Endpoint>) {
        self.connections.borrow_mut().push(Rc::clone(connection));
        self.call_line(endpoint);
    }

    /// The peer's SETTINGS have come.
    fn settled(&self, connection: &H2Connection, endpoint: &Rc<Endpoint>) {
        self.pending.set(self.pending.get() - 1);
        connection.is_settled.set(true);
        connection.settled.notify_all();
        self.call_line(endpoint);
        self.dial_for_line(endpoint);
    }

    /// A connection did not come about. Without any other nobody in line can be served.
    fn failed(&self, reason: Reason) {
        self.pending.set(self.pending.get() - 1);
        if self.pending.get() > 0 || !self.connections.borrow().is_empty() {
            return;
        }
        let line = std::mem::take(&mut *self.line.borrow_mut());
        line.iter().for_each(|waiting| waiting.settle(Wait::Refused(reason)));
    }

    /// A connection takes no new streams any more; whoever waited for room on it needs another.
    fn closing(&self, connection: &H2Connection, endpoint: &Rc<Endpoint>) {
        if !connection.is_closing.replace(true) {
            self.dial_for_line(endpoint);
        }
    }

    /// A connection is over, for `reason` when its peer never spoke.
    fn left(&self, connection: &Rc<H2Connection>, endpoint: &Rc<Endpoint>, reason: Reason) {
        connection.is_closing.set(true);
        connection.settled.notify_all();
        self.connections.borrow_mut().retain(|other| !Rc::ptr_eq(other, connection));
        if !connection.is_settled.get() {
            self.failed(reason);
        }
        self.call_line(endpoint);
        self.dial_for_line(endpoint);
    }

    /// Retires connections without streams that were idle for too long.
    pub(super) fn reap_idle(&self, now: Duration, idle_timeout: Duration) {
        for connection in self.connections.borrow().iter() {
            let is_idle = connection.streams.get() == 0;
            if is_idle && now.saturating_sub(connection.idle_since.get()) >= idle_timeout {
                connection.is_closing.set(true);
                connection.link.wake_task();
            }
        }
    }
}

impl Waiting {
    fn settle(&self, outcome: Wait) {
        let before = self.state.replace(outcome);
        debug_assert!(matches!(before, Wait::InLine(_)), "only who is in line is called");
        if let Wait::InLine(Some(waker)) = before {
            waker.wake();
        }
    }
}

/// Leaves the line, and gives back a place that was not taken up, when the request goes away.
struct InLine<'a> {
    waiting: Rc<Waiting>,
    pool: &'a Pool,
}

impl<'a> InLine<'a> {
    fn enter(lease: &'a Lease) -> Self {
        let state = RefCell::new(Wait::InLine(None));
        let waiting = Rc::new(Waiting { settings: Rc::clone(&lease.settings), state });
        lease.endpoint.h2.line.borrow_mut().push_back(Rc::clone(&waiting));
        Self { waiting, pool: &lease.endpoint.h2 }
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<H2Lease, Reason>> {
        let mut state = self.waiting.state.borrow_mut();
        match std::mem::replace(&mut *state, Wait::Left) {
            Wait::Called(lease) => Poll::Ready(Ok(lease)),
            Wait::Refused(reason) => Poll::Ready(Err(reason)),
            Wait::InLine(_) => {
                *state = Wait::InLine(Some(cx.waker().clone()));
                Poll::Pending
            }
            Wait::Left => Poll::Ready(Err(Reason::UpstreamPoolFull)),
        }
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        let state = self.waiting.state.replace(Wait::Left);
        if let Wait::InLine(_) = state {
            self.pool.line.borrow_mut().retain(|other| !Rc::ptr_eq(other, &self.waiting));
        }
        // A lease that nobody took up goes to the next in line by its own drop.
        drop(state);
    }
}
