//! What a core holds at this moment, for the admin listener: connections, endpoints, config generations.
//!
//! A core answers between two turns of its request path, and an answer is bounded by [`ROWS_MAX`] rows, so that
//! asking never makes a long turn; what is beyond it is counted as left off. Rows are plain values: whoever asked
//! turns them into text on a thread of its own.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use core_runtime::clock;
use core_runtime::mailbox::{SendError, Sender};
use http_balance::cluster::EndpointView;
use http_balance::endpoint::Availability;
use http_wire::head::Version;

pub use crate::pool::Condition;

use crate::core::{Core, LiveSnapshot};
use crate::snapshot::StatId;

/// Rows in one answer of one core.
pub const ROWS_MAX: usize = 2000;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SurveyOf {
    Connections,
    Endpoints,
    Generations,
}

/// The answer of one core.
#[derive(Debug)]
pub struct Survey {
    pub core: usize,
    pub rows: SurveyRows,
    /// Rows beyond [`ROWS_MAX`].
    pub left_off: usize,
}

#[derive(Debug)]
pub enum SurveyRows {
    Connections(Vec<ConnectionRow>),
    Endpoints(Vec<EndpointRow>),
    Generations(Vec<GenerationRow>),
}

/// What a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoken {
    H1,
    H2,
    /// Whatever its ends agree on.
    Tcp,
}

/// One open client connection.
#[derive(Clone, Debug)]
pub struct ConnectionRow {
    pub listener: StatId,
    /// The client; of the PROXY header where there is one.
    pub peer: SocketAddr,
    /// None while it is not known: handshake, or nothing received yet.
    pub protocol: Option<Spoken>,
    pub age: Duration,
    /// Requests begun since the connection was accepted.
    pub requests: u64,
    /// Of these, the ones in progress.
    pub in_flight: u32,
}

/// One endpoint that this core has used.
#[derive(Clone, Debug)]
pub struct EndpointRow {
    pub cluster: StatId,
    pub address: SocketAddr,
    pub hostname: Option<String>,
    /// Share of the requests, and the part of it that slow start leaves, in thousandths.
    pub weight: u32,
    pub slow_start: u32,
    /// Part of the requests that it is weighed for on this core, in millionths.
    pub share: u32,
    /// Empty: none is known.
    pub zone: String,
    pub in_flight: u32,
    pub connections_h1: usize,
    pub connections_h2: usize,
    pub state: EndpointState,
    /// Gets requests although it is not available.
    pub in_panic: bool,
    /// How its whole cluster is.
    pub condition: Condition,
}

/// Whether an endpoint takes new requests, and why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointState {
    Available,
    Draining,
    Unhealthy,
    /// For `left` from now on; `cause` is the word of the rule.
    Ejected {
        left: Duration,
        cause: &'static str,
    },
}

impl EndpointState {
    fn of(view: &EndpointView, now: Duration) -> Self {
        match view.availability {
            Availability::Available => Self::Available,
            Availability::Draining(_) => Self::Draining,
            Availability::Unhealthy => Self::Unhealthy,
            Availability::Ejected { until, cause } => {
                Self::Ejected { left: until.saturating_sub(now), cause: cause.code() }
            }
        }
    }
}

/// One configuration that something on this core still uses.
#[derive(Clone, Debug)]
pub struct GenerationRow {
    pub version: String,
    /// Connections, clusters and exchanges that hold it; the current one is also held by the core itself.
    pub holders: usize,
    pub is_current: bool,
}

/// An open connection as the core remembers it; the connection's own task keeps it up to date.
#[derive(Debug)]
pub(crate) struct LiveConn {
    place: usize,
    listener: StatId,
    peer: Cell<SocketAddr>,
    protocol: Cell<Option<Spoken>>,
    opened_at: Duration,
    requests: Cell<u64>,
    in_flight: Cell<u32>,
}

impl LiveConn {
    pub(crate) fn is_known(&self, peer: SocketAddr, protocol: Version) {
        self.peer.set(peer);
        self.protocol.set(Some(match protocol {
            Version::Http10 | Version::Http11 => Spoken::H1,
            Version::Http2 => Spoken::H2,
        }));
    }

    /// Its bytes are passed on as they are.
    pub(crate) fn is_tcp(&self, peer: SocketAddr) {
        self.peer.set(peer);
        self.protocol.set(Some(Spoken::Tcp));
    }

    pub(crate) fn request_started(&self) {
        self.requests.set(self.requests.get() + 1);
        self.in_flight.set(self.in_flight.get() + 1);
    }

    pub(crate) fn request_ended(&self) {
        self.in_flight.set(self.in_flight.get().saturating_sub(1));
    }
}

/// All open connections of a core.
#[derive(Debug, Default)]
pub(crate) struct LiveConns {
    rows: RefCell<Vec<Option<Rc<LiveConn>>>>,
    free: RefCell<Vec<usize>>,
}

impl LiveConns {
    pub(crate) fn open(&self, listener: StatId, peer: SocketAddr) -> Rc<LiveConn> {
        let mut rows = self.rows.borrow_mut();
        let place = self.free.borrow_mut().pop().unwrap_or(rows.len());
        let conn = Rc::new(LiveConn {
            place,
            listener,
            peer: Cell::new(peer),
            protocol: Cell::new(None),
            opened_at: clock::now(),
            requests: Cell::new(0),
            in_flight: Cell::new(0),
        });
        match rows.get_mut(place) {
            Some(row) => *row = Some(Rc::clone(&conn)),
            None => rows.push(Some(Rc::clone(&conn))),
        }
        conn
    }

    pub(crate) fn close(&self, conn: &LiveConn) {
        if let Some(row) = self.rows.borrow_mut().get_mut(conn.place) {
            *row = None;
            self.free.borrow_mut().push(conn.place);
        }
    }

    /// What is open: connections by protocol, and the requests in progress on them.
    pub(crate) fn left(&self) -> Left {
        let mut left = Left::default();
        for conn in self.rows.borrow().iter().flatten() {
            match conn.protocol.get() {
                Some(Spoken::H2) => left.connections_h2 += 1,
                Some(Spoken::H1) => left.connections_h1 += 1,
                Some(Spoken::Tcp) => left.connections_tcp += 1,
                None => left.connections_new += 1,
            }
            left.requests += u64::from(conn.in_flight.get());
        }
        left
    }
}

/// What was still open when a core ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    pub connections_h1: u64,
    pub connections_h2: u64,
    pub connections_tcp: u64,
    /// In the handshake, or nothing received yet.
    pub connections_new: u64,
    /// Requests in progress, tunnels among them.
    pub requests: u64,
}

impl Left {
    pub const fn connections(&self) -> u64 {
        self.connections_h1 + self.connections_h2 + self.connections_tcp + self.connections_new
    }

    pub const fn add(&mut self, other: &Self) {
        self.connections_h1 += other.connections_h1;
        self.connections_h2 += other.connections_h2;
        self.connections_tcp += other.connections_tcp;
        self.connections_new += other.connections_new;
        self.requests += other.requests;
    }
}

/// The configurations that are alive on a core.
#[derive(Debug, Default)]
pub(crate) struct Generations(RefCell<Vec<Weak<LiveSnapshot>>>);

impl Generations {
    pub(crate) fn note(&self, snapshot: &Rc<LiveSnapshot>) {
        let mut all = self.0.borrow_mut();
        all.retain(|generation| generation.strong_count() > 0);
        all.push(Rc::downgrade(snapshot));
    }

    pub(crate) fn count(&self) -> usize {
        self.0.borrow().iter().filter(|generation| generation.strong_count() > 0).count()
    }
}

impl Core {
    /// Answers a question of the admin listener.
    pub(crate) fn survey(&self, what: SurveyOf, reply: &Sender<Survey>) {
        let (rows, left_off) = match what {
            SurveyOf::Connections => self.survey_connections(),
            SurveyOf::Endpoints => self.survey_endpoints(),
            SurveyOf::Generations => self.survey_generations(),
        };
        match reply.send(Survey { core: self.index, rows, left_off }) {
            // Who asked has stopped waiting.
            Ok(()) | Err(SendError::Full(_) | SendError::Closed(_)) => {}
        }
    }

    fn survey_connections(&self) -> (SurveyRows, usize) {
        let now = clock::now();
        let all = self.live.rows.borrow();
        let open = || all.iter().flatten();
        let rows: Vec<_> = open()
            .take(ROWS_MAX)
            .map(|conn| ConnectionRow {
                listener: conn.listener,
                peer: conn.peer.get(),
                protocol: conn.protocol.get(),
                age: now.saturating_sub(conn.opened_at),
                requests: conn.requests.get(),
                in_flight: conn.in_flight.get(),
            })
            .collect();
        let left_off = self.connections().saturating_sub(rows.len());
        (SurveyRows::Connections(rows), left_off)
    }

    fn survey_endpoints(&self) -> (SurveyRows, usize) {
        let (mut rows, mut left_off) = (Vec::new(), 0);
        let now = clock::now();
        self.clusters.for_each(|cluster| {
            let condition = cluster.condition();
            cluster.for_each_view(|endpoint, zone, view| {
                if rows.len() >= ROWS_MAX {
                    left_off += 1;
                    return;
                }
                let (connections_h1, connections_h2) = endpoint.connections();
                rows.push(EndpointRow {
                    cluster: cluster.stat,
                    condition,
                    address: endpoint.address,
                    hostname: endpoint.hostname.clone(),
                    weight: view.weight,
                    slow_start: view.slow_start,
                    share: view.share,
                    zone: zone.to_owned(),
                    in_flight: view.in_flight,
                    connections_h1,
                    connections_h2,
                    state: EndpointState::of(&view, now),
                    in_panic: view.in_panic,
                });
            });
        });
        (SurveyRows::Endpoints(rows), left_off)
    }

    fn survey_generations(&self) -> (SurveyRows, usize) {
        let current = self.snapshot();
        let all = self.generations.0.borrow();
        let alive: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
        let rows = alive.iter().take(ROWS_MAX).map(|generation| GenerationRow {
            version: generation.version.clone(),
            // Not the ones of this function.
            holders: Rc::strong_count(generation) - 1 - usize::from(Rc::ptr_eq(generation, &current)),
            is_current: Rc::ptr_eq(generation, &current),
        });
        (SurveyRows::Generations(rows.collect()), alive.len().saturating_sub(ROWS_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn places_are_used_again_and_what_is_left_is_counted_by_kind() {
        let live = LiveConns::default();
        let conns: Vec<_> = (1..=4).map(|port| live.open(StatId(1), address(port))).collect();
        let [h1, h2, fresh, gone] = conns.as_slice() else { panic!("four connections") };
        h1.is_known(address(9), Version::Http11);
        h2.is_known(address(9), Version::Http2);
        h2.request_started();
        h2.request_started();
        h1.request_started();
        h1.request_ended();
        live.close(gone);
        let left =
            Left { connections_h1: 1, connections_h2: 1, connections_new: 1, requests: 2, ..Left::default() };
        assert_eq!((live.left(), left.connections()), (left, 3));
        let again = live.open(StatId(1), address(5));
        assert_eq!((again.place, live.rows.borrow().len()), (3, 4));
        live.close(fresh);
        live.close(&again);
        assert_eq!(live.left().connections(), 2);
    }
}
