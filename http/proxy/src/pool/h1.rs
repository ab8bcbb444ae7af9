//! Idle HTTP/1 connections of one endpoint, last in first out, and the bound on all of them.
//!
//! A connection is looked at before it is used again: one that was closed, or on which anything came unasked,
//! is dropped (C06, C22).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use core_runtime::clock;
use http_wire::h1::HeadLimits;

use super::{Lease, dial};
use crate::reason::Reason;
use crate::side::H1Side;
use crate::transport::Transport;

/// Bounds of response heads. Backends are trusted more than clients, but not with all memory.
pub(crate) const RESPONSE_LIMITS: HeadLimits =
    HeadLimits { request_line_bytes_max: 8 * 1024, head_bytes_max: 64 * 1024, fields_max: 200 };

#[derive(Debug)]
struct Idle {
    side: Box<H1Side>,
    since: Duration,
    requests: u32,
    count: OpenCount,
}

#[derive(Debug, Default)]
pub(super) struct Pool {
    idle: RefCell<Vec<Idle>>,
    open: Rc<Cell<usize>>,
}

/// Counts one open connection for as long as it lives.
#[derive(Debug)]
pub(crate) struct OpenCount(Rc<Cell<usize>>);

impl OpenCount {
    fn new(open: &Rc<Cell<usize>>) -> Self {
        open.set(open.get() + 1);
        Self(Rc::clone(open))
    }
}

impl Drop for OpenCount {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// What the pool has to know about a connection that a request has taken out.
#[derive(Debug)]
pub(crate) struct Ticket {
    /// Whether it has carried a request before: only then may a failure be the pool's fault (C22).
    pub(crate) is_reused: bool,
    /// What dialling took, for a new one.
    pub(crate) connect: Option<Duration>,
    requests: u32,
    count: OpenCount,
}

/// Takes a pooled connection out that is alive and silent.
pub(crate) fn reuse(lease: &Lease) -> Option<(Box<H1Side>, Ticket)> {
    while let Some(mut idle) = lease.endpoint.h1.pop() {
        if idle.side.is_quiet() {
            let ticket =
                Ticket { is_reused: true, connect: None, requests: idle.requests, count: idle.count };
            return Some((idle.side, ticket));
        }
    }
    None
}

/// Dials a connection that may go to the pool later.
///
/// # Errors
/// `UpstreamPoolFull` at the bound, else why dialling failed.
pub(crate) async fn dial_new(lease: &Lease) -> Result<(Box<H1Side>, Ticket), Reason> {
    let (transport, connect, count) = dial_own(lease).await?;
    let ticket = Ticket { is_reused: false, connect: Some(connect), requests: 0, count };
    Ok((H1Side::new(transport, RESPONSE_LIMITS), ticket))
}

/// Dials a connection for bytes as they are; it counts as one of the endpoint's.
///
/// # Errors
/// `UpstreamPoolFull` at the bound, else why dialling failed.
pub(crate) async fn dial_own(lease: &Lease) -> Result<(Transport, Duration, OpenCount), Reason> {
    let pool = &lease.endpoint.h1;
    if pool.open.get() >= lease.settings.config().pool.connections_max {
        return Err(Reason::UpstreamPoolFull);
    }
    let count = OpenCount::new(&pool.open);
    let (transport, connect) = dial::dial(&lease.settings, &lease.endpoint).await?;
    Ok((transport, connect, count))
}

/// Gives a connection back after a whole exchange, unless it has served its number of requests.
pub(crate) fn give_back(lease: &Lease, mut side: Box<H1Side>, ticket: Ticket) {
    let config = &lease.settings.config().pool;
    let requests = ticket.requests + 1;
    if config.requests_max.is_some_and(|max| requests >= max) {
        return;
    }
    side.release_buffers();
    let entry = Idle { side, since: clock::now(), requests, count: ticket.count };
    let surplus = {
        let mut idle = lease.endpoint.h1.idle.borrow_mut();
        idle.push(entry);
        // The oldest is the least likely to be used again.
        (idle.len() > config.idle_max).then(|| idle.remove(0))
    };
    drop(surplus);
}

/// Whether a connection must be new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fresh {
    Yes,
    No,
}

impl Pool {
    fn pop(&self) -> Option<Idle> {
        self.idle.borrow_mut().pop()
    }

    pub(super) fn open(&self) -> usize {
        self.open.get()
    }

    pub(super) fn idle(&self) -> usize {
        self.idle.borrow().len()
    }

    pub(super) fn reap_idle(&self, now: Duration, idle_timeout: Duration) {
        let due = {
            let mut idle = self.idle.borrow_mut();
            let (keep, due): (Vec<_>, Vec<_>) = std::mem::take(&mut *idle)
                .into_iter()
                .partition(|entry| now.saturating_sub(entry.since) < idle_timeout && !entry.side.is_over());
            *idle = keep;
            due
        };
        // Closed outside the borrow: dropping a socket talks to the reactor.
        drop(due);
    }
}
