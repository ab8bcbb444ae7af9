//! Floods of SYNs from made-up clients: transfers that are under way, and connections that come meanwhile.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv6Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use l4_abi::Decision;
use l4_load::{LoadOptions, Mode};
use l4_tests::net::{VIP4, VIP6, ip};
use l4_tests::transfer::finish;
use l4_tests::{Packet, frame, may_run, note};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::fleet::{Fleet, vip};

#[test]
fn a_flood_leaves_transfers_alive() {
    if may_run("a_flood_leaves_transfers_alive") {
        [VIP4, VIP6].into_iter().for_each(transfers_in_a_flood_to);
    }
}

/// The transfers go over both families.
fn transfers_in_a_flood_to(flooded: &'static str) {
    let mut fleet = Fleet::new(3);
    let transfers = fleet.start(48);
    let before = fleet.at_boxes(Decision::ForwardFlow);
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let broken = std::thread::scope(|scope| {
        scope.spawn(|| fleet.lab.client.enter(|| flood(flooded, None, &stop, &sent)));
        // Ten times as many packets as the flow tables hold, before the transfers go on.
        let deadline = Instant::now() + Duration::from_secs(60);
        while sent.load(Ordering::Relaxed) < 2 * 8192 * 10 {
            assert!(Instant::now() < deadline, "the flood does not flow");
            std::thread::yield_now();
        }
        let broken = finish(transfers);
        stop.store(true, Ordering::Relaxed);
        broken
    });
    let useful = fleet.at_boxes(Decision::ForwardFlow) - before;
    let new = fleet.at_boxes(Decision::ForwardNew);
    let stateless = fleet.at_boxes(Decision::ForwardStateless);
    note(&format!(
        "flood of {} SYNs to {flooded} ({new} remembered, {stateless} beyond the budget); {useful} packets of transfers by flow table",
        sent.load(Ordering::Relaxed)
    ));
    assert_eq!(broken.count, 0, "{broken:?}");
    assert!(useful > 1000, "confirmed flows are not replaced by the flood: {useful}");
}

/// SYNs from made-up clients until told to stop: so many a second, or as fast as one thread can.
fn flood(address: &str, per_second: Option<u64>, stop: &AtomicBool, sent: &AtomicU64) {
    let (to, is_v6) = (vip(address), address == VIP6);
    // IPPROTO_RAW: the header is the sender's.
    let socket =
        Socket::new(Domain::for_address(to), Type::RAW, Some(Protocol::from(255))).expect("root may");
    let from = if is_v6 { "[::1]:1" } else { "1.1.1.1:1" };
    // The socket's address has no port: for IPv6 it would be a protocol.
    let address = SockAddr::from(SocketAddr::new(to.ip(), 0));
    let start = Instant::now();
    let mut round = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        if per_second.is_some_and(|rate| u64::from(round) * 1000 > rate * millis(start.elapsed())) {
            std::thread::park_timeout(Duration::from_millis(1));
            continue;
        }
        let [_, a, b, c] = round.to_be_bytes();
        round = round.wrapping_add(1);
        let source = if is_v6 {
            SocketAddr::from((
                Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, u16::from(a), u16::from_be_bytes([b, c])),
                1024,
            ))
        } else {
            SocketAddr::from(([172, 16 + a % 16, b, c], 1024))
        };
        let packet = Packet { source, ..Packet::tcp(from, &to.to_string(), frame::SYN) };
        // A full queue drops the packet: no fault of a flood.
        if socket.send_to(&packet.ip(), &address).is_ok() {
            sent.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// New connections a second, and for how long.
const VISITS_PER_SECOND: u32 = 200;
const VISIT_SECONDS: u32 = 3;
/// A visit that takes this long has lost a packet: SYNs are repeated after a second.
const LATE: Duration = Duration::from_millis(900);
const LOST: Duration = Duration::from_secs(3);

/// Who answers SYNs in a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cookies {
    /// Nobody: each SYN takes a place of the listener's.
    Off,
    /// The kernels of the proxies.
    Kernel,
    /// The boxes.
    Boxes,
}

/// What became of the visits, and of the flood.
#[derive(Debug)]
struct Outcome {
    late: usize,
    lost: usize,
    /// Packets a second that came to the boxes, of visits alone.
    packets_per_second: u64,
    syns_sent: u64,
    /// Packets that boxes sent on to proxies, and SYNs that they answered.
    forwarded: u64,
    answered: u64,
}

/// Visits the VIPs at a steady rate, whatever becomes of them, beside a flood of so many SYNs a second.
fn visits(address: &'static str, cookies: Cookies, flood_per_second: u64) -> Outcome {
    let mut fleet = Fleet::tuned(3, Mode::Native, None, |_, options| match cookies {
        Cookies::Boxes => LoadOptions { syn_cookies_above: Some(100), ..options },
        Cookies::Off | Cookies::Kernel => options,
    });
    if cookies == Cookies::Off {
        fleet.lab.proxies.iter().for_each(|proxy| proxy.sysctl("net/ipv4/tcp_syncookies", "0"));
    }
    // Made-up clients do not answer, nor does the router for them.
    ip(Some(&fleet.lab.router), "route add blackhole 172.16.0.0/12\nroute add blackhole fd99::/16\n");
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let took = std::thread::scope(|scope| {
        if flood_per_second > 0 {
            scope.spawn(|| fleet.lab.client.enter(|| flood(address, Some(flood_per_second), &stop, &sent)));
            // A second of it alone, for queues to fill.
            while sent.load(Ordering::Relaxed) < flood_per_second {
                std::thread::yield_now();
            }
        }
        let took = fleet.lab.client.enter(|| visit_all(vip(address)));
        stop.store(true, Ordering::Relaxed);
        took
    });
    let syns_sent = sent.load(Ordering::Relaxed);
    let (boxes, _) = fleet.spread();
    let forwarded = boxes.iter().sum::<u64>();
    Outcome {
        late: took.iter().flatten().filter(|time| **time >= LATE).count(),
        lost: took.iter().filter(|time| time.is_none()).count(),
        packets_per_second: forwarded / u64::from(VISIT_SECONDS),
        syns_sent,
        forwarded,
        answered: fleet.at_boxes(Decision::CookieSent),
    }
}

/// How long each visit took from the moment at which it was due; `None` for those that failed.
fn visit_all(address: SocketAddr) -> Vec<Option<Duration>> {
    let start = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..VISITS_PER_SECOND * VISIT_SECONDS)
            .map(|index| {
                let due = start + Duration::from_secs(1) * index / VISITS_PER_SECOND;
                while let Some(left) =
                    due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
                {
                    std::thread::park_timeout(left);
                }
                scope.spawn(move || visit(address).ok().map(|()| due.elapsed()))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn visit(address: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, LOST)?;
    stream.set_read_timeout(Some(LOST))?;
    stream.write_all(b"GET /1000 HTTP/1.1\r\nhost: l4\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    if answer.len() > 1000 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// The loss of honest connections in a flood of ten times their own packets; figures in docs/l4.md.
#[test]
fn visitors_get_through_a_flood_of_ten_times_their_packets() {
    if may_run("visitors_get_through_a_flood_of_ten_times_their_packets") {
        [VIP4, VIP6].into_iter().for_each(visitors_in_a_flood);
    }
}

fn visitors_in_a_flood(address: &'static str) {
    let all = VISITS_PER_SECOND * VISIT_SECONDS;
    let quiet = visits(address, Cookies::Off, 0);
    assert_eq!(quiet.lost, 0, "{quiet:?}");
    let flood_per_second = quiet.packets_per_second * 10;
    note(&format!("{address}, no flood, of {all} visits: {quiet:?}"));
    let [off, kernel, boxes] = [Cookies::Off, Cookies::Kernel, Cookies::Boxes].map(|cookies| {
        let outcome = visits(address, cookies, flood_per_second);
        note(&format!(
            "{address}, {flood_per_second} SYNs a second, cookies {cookies:?}, of {all} visits: {outcome:?}"
        ));
        outcome
    });
    let all = usize::try_from(all).expect("small");
    // Without cookies the flood takes the listeners' places: the test is able to fail.
    assert!(off.late + off.lost > all / 5, "{off:?}");
    for outcome in [&kernel, &boxes] {
        assert_eq!(outcome.lost, 0, "{outcome:?}");
    }
    // How soon the kernels of three proxies answer a flood is the machine's matter.
    assert!(boxes.late <= quiet.late + all / 20, "{boxes:?}");
    // What boxes answer does not come to the proxies. The SYNs have no options, so that the answer is longer.
    assert!(boxes.answered > boxes.syns_sent * 9 / 10, "{boxes:?}");
    assert!(boxes.forwarded < kernel.forwarded / 4, "{boxes:?} {kernel:?}");
}
