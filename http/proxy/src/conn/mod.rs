//! Stop 3: a client connection from accept to its end: PROXY protocol, TLS, and which HTTP it speaks, or
//! where its bytes go.
//!
//! ```text
//!   accept ─► listener's bound ─► PROXY header? ─► address rules ─► TLS? ─► client's bound ─► ALPN or preface ─► h1 | h2
//! ```
//! Every refusal is counted by its reason, and every wait has a limit.

mod accept;
mod duplex;
mod h1;
mod h2;
mod tcp;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use core_runtime::buf::Buf;
use core_runtime::clock;
use core_runtime::net::{Accepted, TcpStream};
use core_runtime::sync::TurnGate;
use core_runtime::timer::Deadline;
use http_gateway::acl::Access;
use http_gateway::client_limit::{ConnectionAdmission, ConnectionTicket, LimitScope};
use http_wire::h2 as h2_wire;
use http_wire::head::{Scheme, Version};
use http_wire::proxy_protocol::{self, Header};
use tls::{Handshake, PeerCertificate, PolicyId, Session};

use crate::core::{ConnectionCount, Core, LiveSnapshot};
use crate::reason::Reason;
use crate::record as stats;
use crate::snapshot::{ListenerConfig, ProxyProtocolConfig, StatId};
use crate::survey::LiveConn;
use crate::transport::Transport;

pub use self::accept::AcceptContext;
pub(crate) use self::accept::{Accepting, adopt};

/// What is known of a connection for as long as it lives.
#[derive(Debug)]
pub(crate) struct ConnInfo {
    pub(crate) listener: StatId,
    /// The client's end: of the socket, or of what the PROXY header said.
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) scheme: Scheme,
    pub(crate) tls: Option<TlsInfo>,
    /// The value of `x-forwarded-client-cert`, when the client showed a certificate.
    pub(crate) client_cert: Option<String>,
    pub(crate) opened_at: Duration,
    pub(crate) live: Rc<LiveConn>,
}

/// What the handshake agreed on.
#[derive(Debug)]
pub(crate) struct TlsInfo {
    pub(crate) server_name: Option<String>,
    /// The rules for client certificates that the handshake went by.
    pub(crate) policy: Option<PolicyId>,
    pub(crate) version: &'static str,
    pub(crate) cipher: &'static str,
}

/// A connection that speaks HTTP, with the bytes that were read to find that out.
struct Ready {
    transport: Transport,
    early: Option<Buf>,
    info: Rc<ConnInfo>,
    protocol: Protocol,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    H1,
    H2,
}

/// Serves one accepted connection to its end.
#[expect(clippy::manual_async_fn, reason = "an async fn holds its arguments twice, in each idle connection")]
pub(crate) fn serve(
    core: Rc<Core>,
    snapshot: Rc<LiveSnapshot>,
    listener: StatId,
    accepted: Box<Accepted>,
    count: ConnectionCount,
) -> impl Future<Output = ()> {
    async move {
        let reason = serve_with(&core, snapshot, listener, accepted, &count.live).await;
        count.ends_with(reason);
    }
}

/// `None` when the reason has been counted already, or nothing was wrong. The snapshot is let go once the connection
/// is known: a long-lived one must not keep an old configuration alive (C43).
#[expect(clippy::manual_async_fn, reason = "as above")]
fn serve_with(
    core: &Rc<Core>,
    snapshot: Rc<LiveSnapshot>,
    listener: StatId,
    accepted: Box<Accepted>,
    live: &Rc<LiveConn>,
) -> impl Future<Output = Option<Reason>> {
    async move {
        let Some(config) = snapshot.listener(listener) else { return Some(Reason::Draining) };
        if config.tcp.is_some() {
            return Box::pin(tcp::serve(core, snapshot, listener, accepted, live)).await;
        }
        // Boxed: what a handshake needs between two waits goes when it is done.
        let ready = match Box::pin(begin(core, config, accepted, live)).await {
            Ok(ready) => ready,
            Err(reason @ (Reason::TlsHandshakeFailed | Reason::TlsHandshakeTimeout)) => {
                core.stats.borrow_mut().handshake(config.stat, stats::Handshake::Failed(reason));
                return None;
            }
            Err(reason) => return Some(reason),
        };
        let _place = match Place::take(core, config, &ready.info) {
            Ok(place) => place,
            Err(reason) => return Some(reason),
        };
        let version = match ready.protocol {
            Protocol::H1 => Version::Http11,
            Protocol::H2 => Version::Http2,
        };
        core.stats.borrow_mut().protocol_known(config.stat, version);
        live.is_known(ready.info.peer, version);
        let reason = match ready.protocol {
            Protocol::H1 => h1::serve(core, snapshot, ready).await,
            // Boxed, or every HTTP/1 connection would hold the room that an HTTP/2 one needs.
            Protocol::H2 => Box::pin(h2::serve(core, snapshot, ready)).await,
        };
        (reason != Reason::Ok).then_some(reason)
    }
}

/// A client's place among its connections; given back on drop, whatever ends the connection.
struct Place<'a> {
    core: &'a Core,
    ticket: Option<ConnectionTicket>,
}

impl<'a> Place<'a> {
    fn take(core: &'a Core, config: &ListenerConfig, info: &ConnInfo) -> Result<Self, Reason> {
        let Some(limit) = &config.http.client_limit else { return Ok(Self { core, ticket: None }) };
        let scope = LimitScope::listener(config.stat.0);
        match core.limiter.borrow_mut().connection_opened(scope, limit, info.peer.ip(), clock::now()) {
            ConnectionAdmission::Admitted(ticket) => Ok(Self { core, ticket: Some(ticket) }),
            ConnectionAdmission::Exceeded => Err(Reason::ClientConnectionsExceeded),
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.core.limiter.borrow_mut().connection_closed(ticket);
        }
    }
}

async fn begin(
    core: &Rc<Core>,
    config: &ListenerConfig,
    accepted: Box<Accepted>,
    live: &Rc<LiveConn>,
) -> Result<Box<Ready>, Reason> {
    let (tcp, mut info, early) = greet(config, accepted, live).await?;
    let opened_at = info.opened_at;
    let rotated = core.rotated(config.stat);
    let Some(context) = rotated.as_deref().or(config.tls.as_ref()) else {
        let transport = Transport::Plain(tcp);
        return begin_plain(config, transport, early, info, opened_at).await;
    };
    let mut transport = Transport::tls(tcp, Session::server(context));
    if let Some(bytes) = early {
        transport.feed_early(bytes).map_err(|_failed| Reason::TlsHandshakeFailed)?;
    }
    handshake(&mut transport, &core.handshakes, config.http.handshake_timeout, opened_at).await?;
    let protocol = note_session(core, config, &transport, &mut info);
    Ok(Box::new(Ready { transport, early: None, info: Rc::new(info), protocol }))
}

/// What all listeners begin with: who is it, and may they.
async fn greet(
    config: &ListenerConfig,
    accepted: Box<Accepted>,
    live: &Rc<LiveConn>,
) -> Result<(TcpStream, ConnInfo, Option<Buf>), Reason> {
    let opened_at = clock::now();
    let Accepted { fd, peer: socket_peer, local } = *accepted;
    let tcp = TcpStream::from_fd(fd).map_err(|_out_of_resources| Reason::Internal)?;
    let socket_local = match local {
        Some(local) => local,
        None => tcp.local_addr().map_err(|_gone| Reason::ClientClosed)?,
    };
    let mut info = ConnInfo {
        listener: config.stat,
        peer: socket_peer,
        local: socket_local,
        scheme: Scheme::Http,
        tls: None,
        client_cert: None,
        opened_at,
        live: Rc::clone(live),
    };
    let mut early = None;
    if let Some(rules) = &config.proxy_protocol {
        let (header, rest) = read_proxy_header(&tcp, rules, socket_peer, opened_at).await?;
        if let Header::Proxied { source, destination } = header {
            (info.peer, info.local) = (source, destination);
        }
        early = rest;
    }
    if config.access.check(info.peer.ip()) == Access::Denied {
        return Err(Reason::AddressDenied);
    }
    Ok((tcp, info, early))
}

/// Plaintext: the first bytes tell h1 from h2 with prior knowledge (RFC 9113 §3.3).
async fn begin_plain(
    config: &ListenerConfig,
    mut transport: Transport,
    mut early: Option<Buf>,
    info: ConnInfo,
    opened_at: Duration,
) -> Result<Box<Ready>, Reason> {
    let deadline = Deadline::new();
    deadline.set(opened_at + config.http.header_timeout);
    let protocol = poll_fn(|cx| {
        if let Poll::Ready(result) = poll_preface(&mut transport, &mut early, cx) {
            return Poll::Ready(result.map_err(|_gone| Reason::ClientClosed));
        }
        deadline.poll_expired(cx).map(|()| Err(Reason::HeaderTimeout))
    })
    .await?;
    Ok(Box::new(Ready { transport, early, info: Rc::new(info), protocol }))
}

fn poll_preface(
    transport: &mut Transport,
    early: &mut Option<Buf>,
    cx: &mut Context<'_>,
) -> Poll<io::Result<Protocol>> {
    loop {
        let seen = early.as_ref().map_or(&[][..], Buf::filled);
        let shared = seen.len().min(h2_wire::PREFACE.len());
        if seen.get(..shared) != h2_wire::PREFACE.get(..shared) {
            return Poll::Ready(Ok(Protocol::H1));
        }
        if shared == h2_wire::PREFACE.len() {
            return Poll::Ready(Ok(Protocol::H2));
        }
        ready!(transport.poll_readable(cx));
        let buf = match early {
            Some(buf) => buf,
            None => early.insert(Buf::try_take().ok_or(io::ErrorKind::OutOfMemory)?),
        };
        let got = transport.poll_read(cx, buf);
        if early.as_ref().is_some_and(Buf::is_empty) {
            *early = None;
        }
        if ready!(got)? == 0 {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
    }
}

/// Reads the PROXY header that a trusted peer must send first (C47); gives back what came behind it.
async fn read_proxy_header(
    tcp: &TcpStream,
    rules: &ProxyProtocolConfig,
    peer: SocketAddr,
    opened_at: Duration,
) -> Result<(Header, Option<Buf>), Reason> {
    if !rules.trusted.contains(peer.ip()) {
        return Err(Reason::ProxyProtocolUntrusted);
    }
    let deadline = Deadline::new();
    deadline.set(opened_at + rules.header_timeout);
    let mut buf: Option<Buf> = None;
    poll_fn(|cx| {
        loop {
            if let Some(bytes) = &mut buf
                && let Some((len, header)) =
                    proxy_protocol::parse(bytes.filled()).map_err(|_malformed| Reason::ProxyProtocolBad)?
            {
                bytes.consume(len);
                let rest = buf.take().filter(|rest| !rest.is_empty());
                return Poll::Ready(Ok((header, rest)));
            }
            if tcp.poll_readable(cx).is_pending() {
                return deadline.poll_expired(cx).map(|()| Err(Reason::ProxyProtocolTimeout));
            }
            let into = match &mut buf {
                Some(bytes) => bytes,
                None => buf.insert(Buf::try_take().ok_or(Reason::Internal)?),
            };
            // The longest header is smaller than a buffer, so a full one without a header is no header.
            if into.spare_len() == 0 {
                return Poll::Ready(Err(Reason::ProxyProtocolBad));
            }
            match tcp.try_read_buf(into) {
                Ok(0) => return Poll::Ready(Err(Reason::ProxyProtocolBad)),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_gone) => return Poll::Ready(Err(Reason::ClientClosed)),
            }
        }
    })
    .await
}

/// Each message of the client may cost a signature; how many do in a turn is bounded.
async fn handshake(
    transport: &mut Transport,
    gate: &TurnGate,
    timeout: Duration,
    opened_at: Duration,
) -> Result<(), Reason> {
    let deadline = Deadline::new();
    deadline.set(opened_at + timeout);
    let mut place = None;
    poll_fn(|cx| {
        if transport.poll_readable(cx).is_ready() && gate.poll_enter(cx, &mut place).is_pending() {
            return deadline.poll_expired(cx).map(|()| Err(Reason::TlsHandshakeTimeout));
        }
        if let Poll::Ready(result) = transport.poll_handshake(cx) {
            return Poll::Ready(result.map_err(|_failed| Reason::TlsHandshakeFailed));
        }
        deadline.poll_expired(cx).map(|()| Err(Reason::TlsHandshakeTimeout))
    })
    .await
}

/// Records how the handshake went and keeps what later stops want to know of it.
fn note_session(
    core: &Core,
    config: &ListenerConfig,
    transport: &Transport,
    info: &mut ConnInfo,
) -> Protocol {
    info.scheme = Scheme::Https;
    let Some(session) = transport.session() else { return Protocol::H1 };
    let took = clock::now().saturating_sub(info.opened_at);
    let handshake = match session.handshake() {
        Some(Handshake::Resumed) => stats::Handshake::Resumed(took),
        Some(Handshake::Full | Handshake::FullWithRetry) | None => stats::Handshake::Full(took),
    };
    core.stats.borrow_mut().handshake(config.stat, handshake);
    info.tls = Some(TlsInfo {
        server_name: session.server_name().map(str::to_owned),
        policy: session.policy(),
        version: session.version().unwrap_or(""),
        cipher: session.cipher().unwrap_or(""),
    });
    if config.http.client_cert_field == crate::snapshot::ClientCertField::Replace {
        info.client_cert = session.peer_certificate().map(|certificate| xfcc(&certificate));
    }
    if session.alpn() == Some(b"h2") { Protocol::H2 } else { Protocol::H1 }
}

/// `x-forwarded-client-cert`: who the client proved to be, in the form that Envoy made common.
fn xfcc(certificate: &PeerCertificate<'_>) -> String {
    let mut value = format!("Hash={};Subject={}", certificate.fingerprint(), quoted(&certificate.subject));
    // The names are the certificate's own words: none may end its element and begin another one.
    let mut push = |key: &str, name: &str| {
        let is_plain = !name.contains([',', ';', '=', '"', '\\']);
        value.extend([";", key, "="]);
        if is_plain { value.push_str(name) } else { value.push_str(&quoted(name)) }
    };
    certificate.uris.iter().for_each(|uri| push("URI", uri));
    certificate.dns_names.iter().for_each(|name| push("DNS", name));
    value
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// When a connection has to end for its age: the configured limit, shortened by each connection's own share of the
/// jitter, so that connections that began together do not end together.
pub(crate) fn age_limit(core: &Core, config: &ListenerConfig, opened_at: Duration) -> Option<Duration> {
    let limit = config.http.connection_age_max?;
    Some(opened_at + limit.mul_f32(1.0 - jitter(core, config)))
}

/// The number of requests after which a connection has to end.
pub(crate) fn request_limit(core: &Core, config: &ListenerConfig) -> Option<u32> {
    let limit = u64::from(config.http.requests_max?);
    let spread = Duration::from_secs(limit).mul_f32(config.http.age_jitter.clamp(0.0, 1.0)).as_secs();
    let own = limit - if spread == 0 { 0 } else { core.random() % (spread + 1) };
    Some(u32::try_from(own.max(1)).unwrap_or(u32::MAX))
}

fn jitter(core: &Core, config: &ListenerConfig) -> f32 {
    let thousandths = u16::try_from(core.random() % 1000).unwrap_or(0);
    config.http.age_jitter.clamp(0.0, 1.0) * f32::from(thousandths) / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of what a task keeps between two requests. Of an idle TLS connection they are a tenth
    /// (docs/performance.md), and it is easy to double them: by an argument of an async fn, which is kept twice, or by a
    /// value that is borrowed and then moved.
    const TASK_BYTES_MAX: usize = 512;

    fn task_bytes<A, B, C, D, E, F: Future>(_serve: impl Fn(A, B, C, D, E) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn the_task_of_an_idle_connection_is_small() {
        let bytes = task_bytes(serve);
        assert!(bytes <= TASK_BYTES_MAX, "{bytes} bytes");
    }
}
