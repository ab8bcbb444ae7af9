//! One look-up over the wire, blocking: A and AAAA at the same time, server after server, UDP and then TCP.
//!
//! Invariants: each try has its own socket, so a random source port, and two random ids (RFC 5452 §9.2); the
//! socket is connected, so the kernel drops what another address sends; a look-up ends after [`LOOKUP_MAX`],
//! whatever the servers do. Called by the workers of `resolver`.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::message::{self, Answer, Family, LookupError, QueryName, Reply};
use super::random::Random;

/// All tries of one look-up together.
pub(super) const LOOKUP_MAX: Duration = Duration::from_secs(15);

/// How long the answer of one family waits for the other's (the resolution delay of RFC 8305 §3, with more room
/// because nobody waits for it).
const OTHER_FAMILY_MAX: Duration = Duration::from_millis(500);

/// Port of the probe that asks the routing table; nothing is sent to it.
const DISCARD: u16 = 9;

/// Whom to ask, and how patiently.
#[derive(Clone, Debug)]
pub(super) struct Servers {
    pub(super) addresses: Vec<SocketAddr>,
    /// For one server.
    pub(super) timeout: Duration,
    /// Rounds over all servers.
    pub(super) attempts: u32,
}

/// What became of a look-up.
#[derive(Debug)]
pub(super) struct Lookup {
    pub(super) v4: Result<Answer, LookupError>,
    pub(super) v6: Result<Answer, LookupError>,
    /// The server that answered last, by its place.
    pub(super) server: Option<usize>,
}

pub(super) struct Client {
    random: Random,
    buffer: Vec<u8>,
    stop: Arc<AtomicBool>,
}

/// One family of a look-up.
struct Part {
    family: Family,
    result: Result<Answer, LookupError>,
    wants: Wants,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wants {
    /// A reply to the datagram with this id.
    Datagram(u16),
    /// To be asked again over TCP.
    Stream,
    /// A server that knows better.
    Server,
    Nothing,
}

impl Client {
    /// `stop`, once set, keeps the client from sending anything more.
    pub(super) fn new(stop: Arc<AtomicBool>) -> Self {
        Self { random: Random::new(), buffer: vec![0; usize::from(u16::MAX)], stop }
    }

    /// Asks the servers for all addresses of `name`, from the one at place `first` on.
    pub(super) fn look_up(&mut self, name: &QueryName, servers: &Servers, first: usize) -> Lookup {
        let part = |family| Part { family, result: Err(LookupError::Stopped), wants: Wants::Server };
        let mut parts = [part(Family::V4), part(Family::V6)];
        let mut end = Instant::now() + LOOKUP_MAX;
        let mut answered_by = None;
        let places = (0..servers.addresses.len()).cycle().skip(first).take(servers.addresses.len());
        let rounds = (0..servers.attempts.max(1)).flat_map(|_| places.clone());
        for place in rounds {
            let Some(server) = servers.addresses.get(place).copied() else { break };
            if Instant::now() >= end || self.stop.load(Ordering::Acquire) {
                break;
            }
            let before = wanting(&parts);
            if let Err(error) = self.ask(name, server, servers.timeout, &mut end, &mut parts) {
                fail(&mut parts, server, &error);
            }
            if wanting(&parts) < before {
                answered_by = Some(place);
            }
            if wanting(&parts) == 0 {
                break;
            }
        }
        let [v4, v6] = parts;
        let mut lookup = Lookup { v4: v4.result, v6: v6.result, server: answered_by };
        lookup.prefer_routable(is_routable);
        lookup
    }

    /// Asks one server for the families that are still wanted. `end` comes nearer when the first addresses are there.
    fn ask(
        &mut self,
        name: &QueryName,
        server: SocketAddr,
        timeout: Duration,
        end: &mut Instant,
        parts: &mut [Part; 2],
    ) -> io::Result<()> {
        self.ask_over_udp(name, server, Instant::now() + timeout, end, parts)?;
        for part in parts.iter_mut().filter(|part| part.wants == Wants::Stream) {
            if self.stop.load(Ordering::Acquire) {
                break;
            }
            let until = (Instant::now() + timeout).min(*end);
            let id = self.random.id();
            let reply = exchange_over_tcp(server, &message::query(name, part.family, id), until)?;
            match message::read(&reply, name, part.family, id, server) {
                Reply::Answer(result) => part.take(result),
                Reply::Foreign | Reply::Truncated => part.take(Err(LookupError::Unusable { server })),
            }
        }
        Ok(())
    }

    fn ask_over_udp(
        &mut self,
        name: &QueryName,
        server: SocketAddr,
        until: Instant,
        end: &mut Instant,
        parts: &mut [Part; 2],
    ) -> io::Result<()> {
        let socket = UdpSocket::bind(any_of(server.ip()))?;
        socket.connect(server)?;
        for part in parts.iter_mut().filter(|part| part.wants == Wants::Server) {
            let id = self.random.id();
            part.wants = Wants::Datagram(id);
            socket.send(&message::query(name, part.family, id))?;
        }
        let mut ignored = 0;
        while parts.iter().any(|part| matches!(part.wants, Wants::Datagram(_))) {
            let Some(wait) = left(until.min(*end)) else { break };
            socket.set_read_timeout(Some(wait))?;
            let bytes = match socket.recv(&mut self.buffer) {
                Ok(bytes) => self.buffer.get(..bytes).unwrap_or_default(),
                Err(error) if passes(&error) => continue,
                Err(error) => return Err(error),
            };
            if !deliver(bytes, name, server, parts) {
                ignored += 1;
            }
            if parts.iter().any(|part| matches!(part.result, Ok(Answer::Addresses { .. }))) {
                *end = (*end).min(Instant::now() + OTHER_FAMILY_MAX);
            }
        }
        for part in parts.iter_mut().filter(|part| matches!(part.wants, Wants::Datagram(_))) {
            part.take(Err(LookupError::Timeout { server, ignored }));
        }
        Ok(())
    }
}

/// Families without an answer.
fn wanting(parts: &[Part; 2]) -> usize {
    parts.iter().filter(|part| part.wants != Wants::Nothing).count()
}

/// Gives a datagram to the part whose reply it is.
fn deliver(bytes: &[u8], name: &QueryName, server: SocketAddr, parts: &mut [Part; 2]) -> bool {
    for part in parts {
        let Wants::Datagram(id) = part.wants else { continue };
        match message::read(bytes, name, part.family, id, server) {
            Reply::Foreign => {}
            Reply::Truncated => {
                part.wants = Wants::Stream;
                return true;
            }
            Reply::Answer(result) => {
                part.take(result);
                return true;
            }
        }
    }
    false
}

impl Part {
    fn take(&mut self, result: Result<Answer, LookupError>) {
        self.wants = if result.is_ok() { Wants::Nothing } else { Wants::Server };
        self.result = result;
    }
}

impl Lookup {
    /// Leaves out addresses that this host has no route to, if it has one to another of them: on a host without
    /// IPv6, half of the endpoints of a dual-stack name would be dead (RFC 6724 §6, rule 1).
    fn prefer_routable(&mut self, is_routable: impl Fn(IpAddr) -> bool) {
        let (Ok(Answer::Addresses { addresses: v4, .. }), Ok(Answer::Addresses { addresses: v6, .. })) =
            (&mut self.v4, &mut self.v6)
        else {
            return;
        };
        let routable = |list: &[IpAddr]| list.iter().copied().filter(|a| is_routable(*a)).collect::<Vec<_>>();
        let (routable_v4, routable_v6) = (routable(v4), routable(v6));
        match (routable_v4.is_empty(), routable_v6.is_empty()) {
            (true, true) => {}
            (true, false) => (self.v4, *v6) = (Ok(Answer::NoAddress), routable_v6),
            (false, true) => (self.v6, *v4) = (Ok(Answer::NoAddress), routable_v4),
            (false, false) => (*v4, *v6) = (routable_v4, routable_v6),
        }
    }
}

/// Whether the routing table knows a way; sends nothing.
fn is_routable(address: IpAddr) -> bool {
    let probe = UdpSocket::bind(any_of(address)).and_then(|socket| socket.connect((address, DISCARD)));
    !probe.is_err_and(|error| {
        error.raw_os_error() == Some(libc::EAFNOSUPPORT)
            || matches!(
                error.kind(),
                io::ErrorKind::NetworkUnreachable
                    | io::ErrorKind::HostUnreachable
                    | io::ErrorKind::AddrNotAvailable
                    | io::ErrorKind::InvalidInput
            )
    })
}

/// RFC 7766 §8: two bytes of length, both ways, sent with the message in one write.
fn exchange_over_tcp(server: SocketAddr, query: &[u8], until: Instant) -> io::Result<Vec<u8>> {
    let wait = || left(until).ok_or_else(|| io::Error::from(io::ErrorKind::TimedOut));
    let mut stream = TcpStream::connect_timeout(&server, wait()?)?;
    let length = u16::try_from(query.len()).map_err(io::Error::other)?;
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend_from_slice(query);
    stream.set_write_timeout(Some(wait()?))?;
    stream.write_all(&framed)?;
    let mut length = [0; 2];
    read_until(&mut stream, &mut length, until)?;
    let mut reply = vec![0; usize::from(u16::from_be_bytes(length))];
    read_until(&mut stream, &mut reply, until)?;
    Ok(reply)
}

/// Fills `out`; a server that sends a byte now and then gains no time.
fn read_until(stream: &mut TcpStream, mut out: &mut [u8], until: Instant) -> io::Result<()> {
    while !out.is_empty() {
        let wait = left(until).ok_or_else(|| io::Error::from(io::ErrorKind::TimedOut))?;
        stream.set_read_timeout(Some(wait))?;
        match stream.read(out) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => out = out.get_mut(bytes..).unwrap_or_default(),
            Err(error) if passes(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The same failure for all families that wait for this server.
fn fail(parts: &mut [Part; 2], server: SocketAddr, error: &io::Error) {
    for part in parts.iter_mut().filter(|part| part.wants != Wants::Nothing) {
        let error = error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error);
        part.take(Err(LookupError::Network { server, error }));
    }
}

fn left(until: Instant) -> Option<Duration> {
    until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
}

/// Errors after which the deadline decides.
fn passes(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn any_of(peer: IpAddr) -> SocketAddr {
    match peer {
        IpAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        IpAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(list: &[&str]) -> Result<Answer, LookupError> {
        let addresses: Vec<IpAddr> = list.iter().map(|a| a.parse().expect("an address")).collect();
        Ok(if addresses.is_empty() {
            Answer::NoAddress
        } else {
            Answer::Addresses { addresses, ttl: Duration::from_secs(1) }
        })
    }

    #[test]
    fn addresses_without_a_route_give_way_to_others() {
        for (v4, v6, routes, kept_v4, kept_v6) in [
            (&["10.0.0.1"][..], &["fd00::1"][..], "10.0.0.1", &["10.0.0.1"][..], &[][..]),
            (&["10.0.0.1"], &["fd00::1"], "fd00::1", &[], &["fd00::1"]),
            (&["10.0.0.1"], &["fd00::1"], "", &["10.0.0.1"], &["fd00::1"]),
            (&["10.0.0.1", "10.0.0.2"], &["fd00::1"], "10.0.0.2 fd00::1", &["10.0.0.2"], &["fd00::1"]),
            (&["10.0.0.1"], &[], "", &["10.0.0.1"], &[]),
            (&[], &["fd00::1"], "", &[], &["fd00::1"]),
        ] {
            let mut lookup = Lookup { v4: addresses(v4), v6: addresses(v6), server: None };
            lookup.prefer_routable(|address| routes.split(' ').any(|route| route == address.to_string()));
            let (kept_v4, kept_v6) = (addresses(kept_v4).ok(), addresses(kept_v6).ok());
            assert_eq!((lookup.v4.ok(), lookup.v6.ok()), (kept_v4, kept_v6), "{v4:?} {v6:?} {routes}");
        }
    }

    #[test]
    fn this_host_has_a_route_to_itself() {
        assert!(is_routable(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    }
}
