//! A name server that says what it is told to: UDP and TCP on one loopback port.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use domain::base::iana::Rcode;
use domain::base::{Message, MessageBuilder, Name, Rtype};
use domain::rdata::{A, Aaaa, Cname};

/// What the server says to a question for an A record.
#[derive(Clone)]
pub(super) enum Say {
    /// Last bytes of 127.0.0.x, TTL in seconds.
    A(Vec<u8>, u32),
    Code(Rcode),
    Empty,
    /// CNAMEs from the name along these, then an address of the last one.
    Chain(Vec<&'static str>, u8),
    /// Truncated over UDP, the addresses over TCP.
    OverTcp(Vec<u8>),
    /// Replies that must not count, with 127.0.0.66, and then 127.0.0.x.
    AfterForgeries(u8),
    /// The question and the owner come back in upper case.
    UpperCase(u8),
    /// 127.0.0.x at once; a question for an AAAA record stays without a reply.
    OnlyV4(u8),
    Nothing,
}

type Zone = Arc<Mutex<HashMap<String, Say>>>;

pub(super) struct Server {
    pub(super) address: SocketAddr,
    zone: Zone,
    /// Questions for an A record, by whatever transport.
    asked: Arc<AtomicUsize>,
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    pub(super) fn start() -> Self {
        // The kernel gives out UDP ports whose TCP twin may be taken.
        let (udp, tcp) = std::iter::repeat_with(|| {
            let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a UDP port");
            let tcp = TcpListener::bind(udp.local_addr().expect("an address"));
            (udp, tcp)
        })
        .take(100)
        .find_map(|(udp, tcp)| Some((udp, tcp.ok()?)))
        .expect("a port free for both");
        let mut server = Self {
            address: udp.local_addr().expect("an address"),
            zone: Zone::default(),
            asked: Arc::default(),
            end: Arc::default(),
            threads: Vec::new(),
        };
        let (zone, asked, end) = server.shared();
        server.threads.push(std::thread::spawn(move || serve_udp(&udp, &zone, &asked, &end)));
        let (zone, asked, end) = server.shared();
        server.threads.push(std::thread::spawn(move || serve_tcp(&tcp, &zone, &asked, &end)));
        server
    }

    fn shared(&self) -> (Zone, Arc<AtomicUsize>, Arc<AtomicBool>) {
        (Arc::clone(&self.zone), Arc::clone(&self.asked), Arc::clone(&self.end))
    }

    pub(super) fn say(&self, name: &str, say: Say) {
        self.zone.lock().expect("the zone").insert(name.to_owned(), say);
    }

    pub(super) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end.store(true, Ordering::SeqCst);
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a UDP port");
        socket.send_to(&[0], self.address).expect("a wake-up");
        drop(TcpStream::connect(self.address));
        for thread in self.threads.drain(..) {
            assert!(thread.join().is_ok() || std::thread::panicking(), "the name server panicked");
        }
    }
}

fn serve_udp(socket: &UdpSocket, zone: &Zone, asked: &AtomicUsize, end: &AtomicBool) {
    let mut buffer = [0; 4096];
    while let Ok((bytes, peer)) = socket.recv_from(&mut buffer) {
        if end.load(Ordering::SeqCst) {
            return;
        }
        for (reply, strange_source) in replies(&buffer[..bytes], zone, asked, Transport::Udp) {
            if strange_source {
                let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a UDP port");
                other.send_to(&reply, peer).expect("a reply from elsewhere");
            } else {
                // The client may have closed its socket.
                drop(socket.send_to(&reply, peer));
            }
        }
    }
}

fn serve_tcp(listener: &TcpListener, zone: &Zone, asked: &AtomicUsize, end: &AtomicBool) {
    for stream in listener.incoming() {
        if end.load(Ordering::SeqCst) {
            return;
        }
        let mut stream = stream.expect("a connection");
        let mut length = [0; 2];
        stream.read_exact(&mut length).expect("the length");
        let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut query).expect("the query");
        for (reply, _) in replies(&query, zone, asked, Transport::Tcp) {
            let length = u16::try_from(reply.len()).expect("a reply below 64 KiB").to_be_bytes();
            // In three pieces: a stream has no messages.
            for piece in [&length[..1], &length[1..], &reply] {
                stream.write_all(piece).expect("the client reads");
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Transport {
    Udp,
    Tcp,
}

/// What a reply is made of.
struct Reply {
    id: u16,
    name: Name<Vec<u8>>,
    kind: Rtype,
    code: Rcode,
    truncated: bool,
    cnames: Vec<Name<Vec<u8>>>,
    addresses: Vec<u8>,
    ttl: u32,
}

impl Reply {
    fn build(&self) -> Vec<u8> {
        let mut message = MessageBuilder::new_vec();
        message.header_mut().set_id(self.id);
        message.header_mut().set_qr(true);
        message.header_mut().set_tc(self.truncated);
        message.header_mut().set_rcode(self.code);
        let mut message = message.question();
        message.push((&self.name, self.kind)).expect("room");
        let mut message = message.answer();
        let mut owner = &self.name;
        for cname in &self.cnames {
            message.push((owner, self.ttl, Cname::new(cname))).expect("room");
            owner = cname;
        }
        for last in &self.addresses {
            if self.kind == Rtype::A {
                message.push((owner, self.ttl, A::new(Ipv4Addr::new(127, 0, 0, *last)))).expect("room");
            } else {
                message.push((owner, self.ttl, Aaaa::new(Ipv6Addr::LOCALHOST))).expect("room");
            }
        }
        message.finish()
    }
}

/// Datagrams to send, and whether from another port.
fn replies(query: &[u8], zone: &Zone, asked: &AtomicUsize, transport: Transport) -> Vec<(Vec<u8>, bool)> {
    let message = Message::from_octets(query).expect("a message");
    let question = message.sole_question().expect("one question");
    let name: Name<Vec<u8>> = Name::from_chars(question.qname().to_string().chars()).expect("a name");
    let plain = Reply {
        id: message.header().id(),
        name,
        kind: question.qtype(),
        code: Rcode::NOERROR,
        truncated: false,
        cnames: Vec::new(),
        addresses: Vec::new(),
        ttl: 0,
    };
    let asked_for = plain.name.to_string();
    let say = zone.lock().expect("the zone").get(&asked_for).cloned().unwrap_or(Say::Code(Rcode::NXDOMAIN));
    if plain.kind != Rtype::A {
        return match say {
            Say::Code(code) => vec![(Reply { code, ..plain }.build(), false)],
            Say::Nothing | Say::OnlyV4(_) => Vec::new(),
            _ => vec![(plain.build(), false)],
        };
    }
    asked.fetch_add(1, Ordering::SeqCst);
    let reply = match say {
        Say::A(addresses, ttl) => Reply { addresses, ttl, ..plain },
        Say::OnlyV4(last) => Reply { addresses: vec![last], ..plain },
        Say::Code(code) => Reply { code, ..plain },
        Say::Empty => plain,
        Say::Chain(names, last) => {
            let cnames = names.iter().map(|name| Name::from_chars(name.chars()).expect("a name")).collect();
            Reply { cnames, addresses: vec![last], ..plain }
        }
        Say::OverTcp(_) if transport == Transport::Udp => Reply { truncated: true, ..plain },
        Say::OverTcp(addresses) => Reply { addresses, ..plain },
        Say::UpperCase(last) => {
            let name = Name::from_chars(asked_for.to_ascii_uppercase().chars()).expect("a name");
            Reply { name, addresses: vec![last], ..plain }
        }
        Say::AfterForgeries(last) => return forgeries(plain, last),
        Say::Nothing => return Vec::new(),
    };
    vec![(reply.build(), false)]
}

fn forgeries(plain: Reply, last: u8) -> Vec<(Vec<u8>, bool)> {
    let good = Reply { addresses: vec![last], ..plain };
    let bad = || Reply { name: good.name.clone(), cnames: Vec::new(), addresses: vec![66], ..good };
    let other = Name::from_chars("other.test".chars()).expect("a name");
    let mut query = bad().build();
    query[2] &= 0x7f;
    vec![
        (Reply { id: good.id ^ 1, ..bad() }.build(), false),
        (Reply { name: other, ..bad() }.build(), false),
        (Reply { kind: Rtype::AAAA, ..bad() }.build(), false),
        (query, false),
        (vec![0; 3], false),
        (bad().build(), true),
        (good.build(), false),
    ]
}
