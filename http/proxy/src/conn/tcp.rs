//! A connection of a TCP listener: passed on byte by byte to an endpoint of a cluster. Where TLS goes through, only the
//! ClientHello is looked at, for the server name, and passed on like everything else.
//!
//! ```text
//!   greet ─► client's place ─► ClientHello? ─► target ─► admit ─► pick ─► dial ─► duplex until both ends have ended
//!                                                          └── once more, elsewhere ──┘
//! ```
//! It counts as one request in flight of its cluster and endpoint for as long as it lives; whether the endpoint does well
//! is told with its first byte, and not days later. A dial that fails is tried again on another endpoint within the
//! cluster's retry rules, since nothing was passed on yet. What ends otherwise than by both sides' ends is reset towards
//! both, so that a cut stream never looks whole. It keeps no snapshot (C43).

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use core_runtime::buf::Buf;
use core_runtime::clock;
use core_runtime::net::{Accepted, TcpStream};
use core_runtime::timer::Deadline;
use http_balance::Outcome as Balanced;
use http_balance::admission::{Applicant, Refusal};
use http_balance::retry::{Attempted, BodyState, Failure, NoRetry, Repeatability};
use http_balance::shed::{Class, LoadSign};
use http_wire::proxy_protocol::{Header, V1_BYTES_MAX, write_v1, write_v2};
use tls::FirstBytes;

use super::duplex::{Broken, Flow};
use super::{ConnInfo, Place, greet};
use crate::core::{Core, LiveSnapshot};
use crate::fault;
use crate::pool::{Admitted, Cluster, OpenCount, Seat, dial_own};
use crate::reason::Reason;
use crate::record::{LogRow, Outcome, Stage, is_sampled, write_json};
use crate::route::hash_key::hash_of;
use crate::snapshot::{ProxyHeader, StatId, TcpConfig};
use crate::survey::LiveConn;
use crate::transport::Transport;

/// Serves one accepted connection to its end, and says why that was; `None`: both sides were done.
pub(super) async fn serve(
    core: &Rc<Core>,
    snapshot: Rc<LiveSnapshot>,
    listener: StatId,
    accepted: Box<Accepted>,
    live: &Rc<LiveConn>,
) -> Option<Reason> {
    let config = snapshot.listener(listener)?;
    let rules = config.tcp.as_ref()?;
    let (tcp, info, mut early) = match greet(config, accepted, live).await {
        Ok(greeted) => greeted,
        Err(reason) => return Some(reason),
    };
    let _place = match Place::take(core, config, &info) {
        Ok(place) => place,
        Err(reason) => return Some(reason),
    };
    core.stats.borrow_mut().tcp_opened(listener);
    live.is_tcp(info.peer);
    let mut record = Record::new(core, listener, info.peer, info.opened_at, Rc::clone(live));
    let mut client = Ending::cut(Transport::Plain(tcp));
    let reason = match choose(client.transport.tcp(), rules, &mut early, &mut record).await {
        Ok(target) => match core.clusters.get(&snapshot, target.cluster) {
            Some(cluster) => {
                let header = rules.proxy_header;
                drop(snapshot);
                let limits = (target.idle_timeout, target.age_max.map(|age| info.opened_at + age));
                match proxy_header(header, &info) {
                    Ok(ahead) => {
                        let up = Flow::starting_with(ahead, early);
                        pass_on(core, &cluster, &mut client, up, limits, &mut record).await
                    }
                    Err(reason) => reason,
                }
            }
            None => Reason::Internal,
        },
        Err(reason) => reason,
    };
    record.outcome.reason = reason;
    drop((record, client));
    (reason != Reason::Ok).then_some(reason)
}

/// What tells the endpoint who the client is.
fn proxy_header(version: Option<ProxyHeader>, info: &ConnInfo) -> Result<Option<Buf>, Reason> {
    let Some(version) = version else { return Ok(None) };
    let header = Header::Proxied { source: info.peer, destination: info.local };
    let mut bytes = Vec::with_capacity(V1_BYTES_MAX);
    match version {
        ProxyHeader::V1 => write_v1(&header, &mut bytes),
        ProxyHeader::V2 => write_v2(&header, &mut bytes),
    }
    let mut buf = Buf::try_take().ok_or(Reason::Internal)?;
    let taken = buf.extend(&bytes);
    debug_assert_eq!(taken, bytes.len(), "a header is far smaller than a buffer");
    Ok(Some(buf))
}

/// Finds out where a connection goes, by its server name where that counts.
async fn choose(
    tcp: &TcpStream,
    rules: &TcpConfig,
    early: &mut Option<Buf>,
    record: &mut Record<'_>,
) -> Result<crate::snapshot::TcpTarget, Reason> {
    if !rules.goes_by_name() {
        return rules.default.ok_or(Reason::Internal);
    }
    let deadline = Deadline::new();
    deadline.set(record.opened_at + rules.hello_timeout);
    let mut needed = 1;
    let seen = poll_fn(|cx| match poll_hello(tcp, early, &mut needed, cx) {
        Poll::Ready(seen) => Poll::Ready(seen),
        Poll::Pending => deadline.poll_expired(cx).map(|()| Err(Reason::ClientHelloTimeout)),
    })
    .await?;
    match seen {
        FirstBytes::Hello { server_name } => {
            let target = rules.target(server_name.as_deref());
            record.server_name = server_name;
            target.ok_or(Reason::ServerNameUnknown)
        }
        FirstBytes::NotTls | FirstBytes::Incomplete { .. } => rules.default.ok_or(Reason::ClientHelloBad),
    }
}

/// Reads until the ClientHello is whole, or will not become one. `needed` keeps one that comes in small pieces from
/// being parsed anew with each.
fn poll_hello(
    tcp: &TcpStream,
    early: &mut Option<Buf>,
    needed: &mut usize,
    cx: &Context<'_>,
) -> Poll<Result<FirstBytes, Reason>> {
    loop {
        if let Some(bytes) = early.as_ref().filter(|bytes| bytes.filled().len() >= *needed) {
            match tls::first_look(bytes.filled()) {
                // What does not fit in the buffer is not waited for.
                FirstBytes::Incomplete { bytes_needed } if bytes_needed > bytes.len() + bytes.spare_len() => {
                    return Poll::Ready(Ok(FirstBytes::NotTls));
                }
                FirstBytes::Incomplete { bytes_needed } => *needed = bytes_needed,
                seen => return Poll::Ready(Ok(seen)),
            }
        }
        if tcp.poll_readable(cx).is_pending() {
            return Poll::Pending;
        }
        let into = match early {
            Some(bytes) => bytes,
            None => early.insert(Buf::try_take().ok_or(Reason::Internal)?),
        };
        let got = tcp.try_read_buf(into);
        if early.as_ref().is_some_and(Buf::is_empty) {
            *early = None;
        }
        match got {
            Ok(0) => return Poll::Ready(Err(Reason::ClientClosed)),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_gone) => return Poll::Ready(Err(Reason::ClientReset)),
        }
    }
}

/// A side of the connection. Unless it has come to its end, dropping it resets: also when the core cuts it.
struct Ending {
    transport: Transport,
    is_whole: bool,
}

impl Ending {
    /// To be reset, as far as is known.
    const fn cut(transport: Transport) -> Self {
        Self { transport, is_whole: false }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if !self.is_whole {
            // A socket that cannot be told is gone already.
            match self.transport.tcp().reset_on_close() {
                Ok(()) | Err(_) => {}
            }
        }
    }
}

/// An endpoint reached, and what counts it.
struct Reached {
    upstream: Ending,
    seat: Seat,
    _open: OpenCount,
}

async fn pass_on(
    core: &Core,
    cluster: &Rc<Cluster>,
    client: &mut Ending,
    mut up: Flow,
    (idle_timeout, ends_at): (Duration, Option<Duration>),
    record: &mut Record<'_>,
) -> Reason {
    record.cluster_is(cluster);
    let who = Applicant { class: Class::Standard, core_strain: core.strain(), random: core.random() };
    let mut admitted = match cluster.admit(who) {
        Ok(admitted) => admitted,
        Err(Refusal::BreakerOpen { .. }) => return Reason::CircuitOpen,
        Err(Refusal::InFlightCap { .. }) => return Reason::InFlightLimit,
        Err(Refusal::Shed { .. }) => return Reason::Shed,
    };
    let Reached { mut upstream, seat, _open } = match reach(core, cluster, &mut admitted, record).await {
        Ok(reached) => reached,
        Err(reason) => return reason,
    };
    let mut down = Flow::default();
    let (idle, age) = (Deadline::new(), Deadline::new());
    if let Some(at) = ends_at {
        age.set(at);
    }
    idle.set_after(idle_timeout);
    let mut moved = 0;
    let reason = poll_fn(|cx| {
        let upwards = up.poll(&mut client.transport, &mut upstream.transport, cx);
        let downwards = down.poll(&mut upstream.transport, &mut client.transport, cx);
        if down.bytes > 0 && record.outcome.response_bytes == 0 {
            seat.proves();
            admitted.proves();
        }
        (record.outcome.request_bytes, record.outcome.response_bytes) = (up.bytes, down.bytes);
        if let Some(reason) = ended(upwards, downwards) {
            return Poll::Ready(reason);
        }
        if moved != up.bytes + down.bytes {
            moved = up.bytes + down.bytes;
            idle.set_after(idle_timeout);
        }
        if ends_at.is_some() && age.poll_expired(cx).is_ready() {
            return Poll::Ready(Reason::ConnectionAgeMax);
        }
        idle.poll_expired(cx).map(|()| Reason::IdleTimeout)
    })
    .await;
    // Until the endpoint has said something nothing is known of it; later an end may well be meant.
    if down.bytes == 0 && reason != Reason::Ok {
        seat.breaks_off(match reason {
            Reason::UpstreamReset => Balanced::Reset,
            Reason::IdleTimeout if up.bytes > 0 => Balanced::TimedOut,
            _ => Balanced::Abandoned,
        });
        admitted.ends_like(&seat);
    }
    (client.is_whole, upstream.is_whole) = (reason == Reason::Ok, reason == Reason::Ok);
    reason
}

/// Why the connection is over by what its directions say. One that is refused is no end yet: the other brings what its
/// peer had said before.
fn ended(upwards: Poll<Result<(), Broken>>, downwards: Poll<Result<(), Broken>>) -> Option<Reason> {
    match (upwards, downwards) {
        (Poll::Ready(Err(Broken::Buffers)), _) | (_, Poll::Ready(Err(Broken::Buffers))) => {
            Some(Reason::Internal)
        }
        (Poll::Ready(Err(Broken::From)), _) | (Poll::Ready(_), Poll::Ready(Err(Broken::To))) => {
            Some(Reason::ClientReset)
        }
        (_, Poll::Ready(Err(Broken::From))) | (Poll::Ready(Err(Broken::To)), Poll::Ready(_)) => {
            Some(Reason::UpstreamReset)
        }
        (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Some(Reason::Ok),
        _ => None,
    }
}

/// Picks an endpoint and connects, more than once within the cluster's retry rules.
async fn reach(
    core: &Core,
    cluster: &Rc<Cluster>,
    admitted: &mut Admitted,
    record: &mut Record<'_>,
) -> Result<Reached, Reason> {
    let key = Some(hash_of(record.peer.ip()));
    let mut exclude = None;
    loop {
        let lease = cluster.pick(core.random(), key, exclude)?;
        record.outcome.attempts += 1;
        record.outcome.endpoint = Some(lease.endpoint.stat);
        record.endpoint = Some(lease.endpoint.address);
        record.outcome.is_in_panic |= cluster.count_choice(&lease, &core.stats);
        let dialled = dial_own(&lease).await;
        let result = dialled.as_ref().map(|_| ()).map_err(|reason| *reason);
        core.stats.borrow_mut().upstream_connect(cluster.stat, lease.endpoint.stat, result);
        if record.outcome.attempts > 1 {
            let is_lost = |reason| fault::outcome(reason, false) == Balanced::ConnectFailed;
            cluster.retried(!result.is_err_and(is_lost));
        }
        let reason = match dialled {
            Ok((upstream, connect, open)) => {
                record.outcome.stages.set(Stage::Connect, connect);
                lease.goes(Balanced::Success, connect, LoadSign::None);
                admitted.ends_like(&lease);
                return Ok(Reached { upstream: Ending::cut(upstream), seat: lease.seat, _open: open });
            }
            Err(reason) => reason,
        };
        lease.goes(fault::outcome(reason, false), Duration::ZERO, LoadSign::None);
        admitted.ends_like(&lease);
        let attempted = Attempted {
            failure: match reason {
                Reason::UpstreamConnectRefused => Failure::Refused,
                _ => Failure::Connect,
            },
            repeatability: Repeatability::Unsafe,
            body: BodyState::Untouched,
            attempts: record.outcome.attempts,
            left: None,
        };
        match cluster.retry(&lease.settings.plan().rules.retry, attempted) {
            Ok(_) => exclude = Some(lease.slot),
            Err(refused) => {
                if refused == NoRetry::BudgetExhausted {
                    core.stats.borrow_mut().retry_over_budget(cluster.stat);
                }
                return Err(reason);
            }
        }
    }
}

/// What is known of a connection; counted and logged when it is dropped, whatever ends it.
struct Record<'a> {
    core: &'a Core,
    peer: SocketAddr,
    opened_at: Duration,
    live: Rc<LiveConn>,
    server_name: Option<Box<str>>,
    cluster: Option<String>,
    endpoint: Option<SocketAddr>,
    outcome: Outcome,
}

impl<'a> Record<'a> {
    fn new(
        core: &'a Core,
        listener: StatId,
        peer: SocketAddr,
        opened_at: Duration,
        live: Rc<LiveConn>,
    ) -> Self {
        live.request_started();
        // Unless something else is said, it was cut with its core.
        let outcome = Outcome { listener, reason: Reason::Draining, ..Outcome::default() };
        Self { core, peer, opened_at, live, server_name: None, cluster: None, endpoint: None, outcome }
    }

    fn cluster_is(&mut self, cluster: &Cluster) {
        self.cluster = Some(cluster.settings().config().name.clone());
        self.outcome.cluster = Some(cluster.stat);
    }

    fn log(&self) {
        let snapshot = self.core.snapshot_of(self.outcome.listener);
        let Some(listener) = snapshot.listener(self.outcome.listener) else { return };
        let (Some(config), true) = (&listener.access_log, self.core.log.is_on()) else { return };
        if self.outcome.reason.is_success() && !is_sampled(config.success_sample, self.core.random()) {
            return;
        }
        let client: IpAddr = self.peer.ip();
        let row = LogRow {
            time_unix_ms: u64::try_from(clock::unix_time().as_millis()).unwrap_or(u64::MAX),
            outcome: &self.outcome,
            core: u16::try_from(self.core.index).unwrap_or(u16::MAX),
            request_id: b"",
            trace_id: None,
            client,
            listener: &listener.name,
            route: None,
            cluster: self.cluster.as_deref(),
            endpoint: self.endpoint,
            protocol: "TCP",
            method: b"",
            host: b"",
            path: b"",
            query: None,
            user_agent: None,
            referer: None,
            tls_version: None,
            tls_cipher: None,
            server_name: self.server_name.as_deref().map(str::as_bytes),
            detail: None,
        };
        self.core.log.row(config.sink, |out| match &config.template {
            Some(template) => template.write(out, &row),
            None => write_json(out, &row),
        });
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        self.live.request_ended();
        self.outcome.stages.set(Stage::Total, clock::now().saturating_sub(self.opened_at));
        self.core.stats.borrow_mut().tcp_closed(&self.outcome);
        self.log();
    }
}
