//! SYN cookies on single frames: what a box answers, and which cookies a proxy with a listener takes. That the kernel
//! then makes a connection of it is in e2e/cookies.rs.

use std::hash::Hasher as _;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use l4_abi::hash::cookie_key;
use l4_abi::{Decision, TCP};
use l4_load::LoadOptions;
use l4_tests::frame::{ACK, Mark, SYN, checksum, incoming, outer, returned};
use l4_tests::rig::{
    CLIENT4, CLIENT6, DROP, LOCAL, OWN4, OWNER1, OWNER2, PASS, Rig, SECRET, TX, VIP, VIP4, VIP6, hash, ip,
};
use l4_tests::{Packet, Tap, VLAN, may_run};
use rustix::time::{DynamicClockId, clock_gettime_dynamic};

fn rig(above: u32) -> Rig {
    Rig::with(&LoadOptions { syn_cookies_above: Some(above), ..Rig::options() })
}

/// A SYN with these TCP options, a multiple of four bytes.
fn syn(v6: bool, options: &[u8]) -> Vec<u8> {
    incoming(&syn_packet(v6, options), false)
}

fn syn_packet(v6: bool, options: &[u8]) -> Vec<u8> {
    let (client, vip) = if v6 { (CLIENT6, VIP6) } else { (CLIENT4, VIP4) };
    let packet = Packet { payload: options.to_vec(), ..Packet::tcp(client, vip, SYN) };
    let mut ip = packet.ip();
    let doff = u8::try_from(5 + options.len() / 4).expect("at most 15") << 4;
    let at = if v6 { 52 } else { 32 };
    ip[at] = doff;
    ip
}

/// The TCP header of an answer, whose lengths and checksums are right, and which goes back to where the SYN came from.
fn answered(frame: &[u8]) -> Vec<u8> {
    assert_eq!(frame[..12], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    let ip = &frame[if frame[12..16] == VLAN { 18 } else { 14 }..];
    let v6 = ip[0] >> 4 == 6;
    let (tcp, mut sum) = if v6 {
        assert_eq!(usize::from(u16::from_be_bytes([ip[4], ip[5]])), ip.len() - 40);
        (&ip[40..], ip[8..40].to_vec())
    } else {
        assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
        assert_eq!(checksum(&ip[..20]), 0);
        (&ip[20..], ip[12..20].to_vec())
    };
    sum.extend([0, 6, 0, 32]);
    sum.extend(tcp);
    assert_eq!(checksum(&sum), 0, "the checksum of TCP is right");
    tcp.to_vec()
}

#[test]
pub(crate) fn an_answer_repeats_what_the_client_offers() {
    if !may_run("an_answer_repeats_what_the_client_offers") {
        return;
    }
    let offers: [(&[u8], &[u8]); 4] = [
        (&[], &[1, 1, 1, 1, 1, 1, 1, 1]),
        (&[2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 9], &[1, 1, 4, 2, 1, 3, 3, 7]),
        (&[2, 4, 5, 180, 1, 3, 3, 2], &[1, 1, 1, 1, 1, 3, 3, 7]),
        // A length beyond the header ends the list.
        (&[4, 2, 1, 1, 3, 9, 9, 9], &[1, 1, 4, 2, 1, 1, 1, 1]),
    ];
    for v6 in [false, true] {
        let mut rig = rig(0);
        for ((offer, answer), vlan) in offers.iter().flat_map(|offer| [(offer, false), (offer, true)]) {
            let outcome = rig.run(&incoming(&syn_packet(v6, offer), vlan));
            assert_eq!(outcome.frame[12..14] == VLAN[..2], vlan, "the tag stays");
            assert_eq!(
                (outcome.action, outcome.counted),
                (TX, vec![(VIP, Decision::CookieSent)]),
                "{offer:?}"
            );
            let tcp = answered(&outcome.frame);
            assert_eq!(tcp[..4], [1, 187, 0x9c, 0x40], "the ports change places");
            assert_eq!(tcp[8..14], [0, 0, 0, 2, 0x80, SYN | ACK]);
            let mss: u16 = if v6 { 1440 } else { 1460 };
            assert_eq!(tcp[20..24], [2, 4, mss.to_be_bytes()[0], mss.to_be_bytes()[1]]);
            assert_eq!(&tcp[24..], *answer, "{offer:?}");
        }
    }
}

#[test]
fn cookies_hang_on_the_client_and_the_key() {
    if !may_run("cookies_hang_on_the_client_and_the_key") {
        return;
    }
    let cookie = |rig: &mut Rig, source: &str| {
        let tcp = answered(&rig.run(&Packet::tcp(source, VIP4, SYN).frame()).frame);
        u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]])
    };
    let options = LoadOptions { hash_secret: [9; 16], syn_cookies_above: Some(0), ..Rig::options() };
    let (mut one, mut other) = (rig(0), Rig::with(&options));
    let cookies = [
        cookie(&mut one, CLIENT4),
        cookie(&mut one, "198.51.100.7:40001"),
        cookie(&mut one, "198.51.100.8:40000"),
        cookie(&mut other, CLIENT4),
    ];
    let mut macs: Vec<u32> = cookies.iter().map(|cookie| cookie >> 9).collect();
    macs.sort_unstable();
    macs.dedup();
    assert_eq!(macs.len(), 4, "{cookies:?}");
}

#[test]
fn few_syns_pass_and_so_do_those_that_a_cookie_cannot_hold() {
    if !may_run("few_syns_pass_and_so_do_those_that_a_cookie_cannot_hold") {
        return;
    }
    let mut few = rig(1_000_000);
    assert_eq!(few.run(&syn(false, &[])).counted, [(VIP, Decision::ForwardNew)]);
    let mut none = rig(0);
    let small = none.run(&syn(false, &[2, 4, 1, 0]));
    assert_eq!(small.counted, [(VIP, Decision::ForwardNew)], "segments of 256 bytes");
    // A header that claims more than there is: what is not there is not offered.
    let mut short = syn(false, &[]);
    short[14 + 32] = 0xf0;
    let outcome = none.run(&short);
    assert_eq!((outcome.action, outcome.counted), (TX, vec![(VIP, Decision::CookieSent)]));
    assert_eq!(answered(&outcome.frame)[24..], [1; 8]);
}

#[test]
pub(crate) fn a_syn_that_has_nowhere_to_go_is_not_answered() {
    if !may_run("a_syn_that_has_nowhere_to_go_is_not_answered") {
        return;
    }
    let mut rig = rig(0);
    rig.vip("192.0.2.11:443", TCP, 5, 0);
    let tableless = rig.run(&Packet::tcp(CLIENT4, "192.0.2.11:443", SYN).frame());
    assert_eq!((tableless.action, tableless.counted), (DROP, vec![(5, Decision::DropNoOwner)]));
    // Rows of nobody, and of a proxy that is down.
    for owner in [0, 9] {
        rig.all_rows(VIP, 2, owner, 1);
        for v6 in [false, true] {
            let outcome = rig.run(&syn(v6, &[]));
            assert_eq!((outcome.action, outcome.counted), (DROP, vec![(VIP, Decision::DropNoOwner)]));
        }
    }
    rig.all_rows(VIP, 3, 1, 1);
    assert_eq!(rig.run(&syn(false, &[])).counted, [(VIP, Decision::CookieSent)]);
}

#[test]
fn an_answered_client_goes_by_its_row_and_not_by_an_earlier_connection() {
    if !may_run("an_answered_client_goes_by_its_row_and_not_by_an_earlier_connection") {
        return;
    }
    for (client, vip) in [(CLIENT4, VIP4), (CLIENT6, VIP6)] {
        let mut rig = rig(0);
        let packet = Packet::tcp(client, vip, ACK).payload(9);
        let sent_to = |owner| {
            let label = u32::try_from(hash(&packet) & 0xf_ffff).expect("20 bits");
            returned(&outer(OWN4.into(), ip(owner), packet.tos, Mark::Plain { label }, &packet.ip()), false)
        };
        assert_eq!(rig.run(&packet.frame()).counted, [(VIP, Decision::ForwardNew)]);
        rig.all_rows(VIP, 2, 2, 1);
        let known = rig.run(&packet.frame());
        assert_eq!((known.counted, known.frame), (vec![(VIP, Decision::ForwardFlow)], sent_to(OWNER1)));
        // Another client's SYN changes nothing for this one.
        let mut other = Packet::tcp(client, vip, SYN);
        other.source.set_port(7);
        assert_eq!(rig.run(&other.frame()).counted, [(VIP, Decision::CookieSent)]);
        assert_eq!(rig.run(&packet.frame()).frame, sent_to(OWNER1));
        assert_eq!(rig.run(&Packet::tcp(client, vip, SYN).frame()).counted, [(VIP, Decision::CookieSent)]);
        let moved = rig.run(&packet.frame());
        assert_eq!((moved.counted, moved.frame), (vec![(VIP, Decision::ForwardFlow)], sent_to(OWNER2)));
        // Nothing was remembered of the other one.
        let other = Packet { tcp_flags: ACK, ..other };
        assert_eq!(rig.run(&other.frame()).counted, [(VIP, Decision::ForwardStateless)]);
    }
}

/// A listener of this host behind a VIP whose rows are this host's, and one client of it.
struct Proxy {
    rig: Rig,
    vip: SocketAddr,
    client: SocketAddr,
    listener: TcpListener,
}

/// Of the VIP of [`Proxy`].
const LISTENED: u32 = 2;
/// The client's initial sequence number.
const FIRST: u32 = 0x89ab_cdef;
/// Window scale 7, SACK, the largest class of MSS.
const OFFER: u32 = 7 << 5 | 1 << 4 | 3 << 2;

impl Proxy {
    fn new(v6: bool) -> Self {
        let (listen, client) =
            if v6 { ("[::1]:0", "[2001:db8::9]:1009") } else { ("127.0.0.1:0", "127.9.9.9:1009") };
        let listener = TcpListener::bind(listen).expect("loopback");
        let vip = listener.local_addr().expect("bound");
        let mut rig = rig(1_000_000);
        rig.maps().set_trusted(ip("10.9.0.0"), 16).expect("trusted");
        rig.vip(&vip.to_string(), TCP, LISTENED, 0);
        rig.all_rows(LISTENED, 1, LOCAL, LOCAL);
        Self { rig, vip, client: client.parse().expect("an address"), listener }
    }

    /// A client that has not been here; what a known one repeats is told from what it says first.
    fn new_client(&mut self) {
        self.client.set_port(self.client.port() + 1);
    }

    /// The packet that brings a cookie back.
    fn ack(&self, cookie: u32) -> Vec<u8> {
        numbered(self.client, self.vip, ACK, FIRST.wrapping_add(1), cookie.wrapping_add(1))
    }

    fn cookie(&self, period: u32) -> u32 {
        cookie(self.client, self.vip, FIRST, period, OFFER | period & 3)
    }

    /// What is decided of a packet that comes straight from its client.
    fn decided(&mut self, packet: &[u8]) -> Decision {
        let outcome = self.rig.run(&incoming(packet, false));
        assert_eq!(outcome.counted.len(), 1, "{:?}", outcome.counted);
        assert_eq!(outcome.counted[0].0, LISTENED);
        let decision = outcome.counted[0].1;
        assert_eq!(outcome.action, if decision == Decision::CookieEarly { DROP } else { PASS });
        decision
    }

    /// What is due to a packet that acknowledges what is no good cookie.
    fn due(&self, acknowledged: u32) -> Decision {
        let is_answered = is_of_tuple(self.client, self.vip, acknowledged, period());
        if is_answered { Decision::CookieEarly } else { Decision::Local }
    }
}

/// A TCP packet with these numbers; its checksum is left wrong, as XDP does not look at it.
fn numbered(source: SocketAddr, destination: SocketAddr, flags: u8, seq: u32, ack: u32) -> Vec<u8> {
    let mut ip = Packet { source, destination, ..Packet::tcp(CLIENT4, VIP4, flags) }.payload(3).ip();
    let at = if source.is_ipv6() { 40 } else { 20 };
    ip[at + 4..at + 8].copy_from_slice(&seq.to_be_bytes());
    ip[at + 8..at + 12].copy_from_slice(&ack.to_be_bytes());
    ip
}

/// Says that the header has a word of options.
fn with_options(mut ip: Vec<u8>) -> Vec<u8> {
    let at = if ip[0] >> 4 == 6 { 40 } else { 20 };
    ip[at + 12] = 6 << 4;
    ip
}

/// What cookies of a tuple are made of, by the standard library's SipHash-2-4.
#[expect(deprecated, reason = "the standard library has SipHash-2-4 under this name only")]
fn cookie_hash(client: SocketAddr, vip: SocketAddr, period: u32, meta: u32) -> u64 {
    let [one, two] = cookie_key(&SECRET);
    let mut hasher = std::hash::SipHasher::new_with_keys(one, two);
    let mut bytes = [client.port().to_be_bytes(), vip.port().to_be_bytes()].concat();
    bytes.extend(period.to_le_bytes());
    for address in [client.ip(), vip.ip()] {
        match address {
            IpAddr::V4(address) => bytes.extend(address.octets()),
            IpAddr::V6(address) => bytes.extend(address.octets()),
        }
    }
    bytes.extend(&meta.to_le_bytes()[..2]);
    hasher.write(&bytes);
    hasher.finish()
}

fn cookie(client: SocketAddr, vip: SocketAddr, first: u32, period: u32, meta: u32) -> u32 {
    let hash = cookie_hash(client, vip, period, meta);
    let part = |shift: u32| u32::try_from(hash >> shift & 0xffff).expect("16 bits");
    let beginning = (part(0) | 1).wrapping_mul(first).wrapping_add(part(16)) & 0xffff;
    beginning << 16 | part(57) << 9 | meta
}

/// Whether the lower bits of a cookie, which do not hang on the client's number, are of this tuple and the period that they
/// name, `now` or one beside it.
fn is_of_tuple(client: SocketAddr, vip: SocketAddr, cookie: u32, now: u32) -> bool {
    let meta = cookie & 0x1ff;
    let period = (now - 1..=now + 1).find(|period| period & 3 == meta & 3);
    period.is_some_and(|period| cookie_hash(client, vip, period, meta) >> 57 == u64::from(cookie >> 9 & 0x7f))
}

/// The period of cookies that begins now: 2^36 ns of atomic time.
fn period() -> u32 {
    let now = clock_gettime_dynamic(DynamicClockId::Tai).expect("Linux has it");
    let ns = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
    u32::try_from(ns >> 36).expect("before the year 11000")
}

#[test]
fn a_cookie_that_comes_back_is_vouched_for_in_front_of_the_frame() {
    if !may_run("a_cookie_that_comes_back_is_vouched_for_in_front_of_the_frame") {
        return;
    }
    for v6 in [false, true] {
        let mut proxy = Proxy::new(v6);
        // A box of the same fleet makes the cookie.
        let mut boxed = rig(0);
        boxed.vip(&proxy.vip.to_string(), TCP, LISTENED, 0);
        boxed.all_rows(LISTENED, 1, 1, 1);
        for vlan in [false, true] {
            // Box and proxy in one, and two machines.
            for tunnelled in [false, true] {
                proxy.new_client();
                let begin = numbered(proxy.client, proxy.vip, SYN, FIRST, 0);
                let tcp = answered(&boxed.run(&incoming(&begin, false)).frame);
                let cookie = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
                let packet = proxy.ack(cookie);
                let around = outer(ip("10.9.1.1"), OWN4.into(), 0, Mark::Plain { label: 0 }, &packet);
                let outcome = proxy.rig.run(&incoming(if tunnelled { &around } else { &packet }, vlan));
                assert_eq!(
                    (outcome.action, outcome.counted),
                    (PASS, vec![(LISTENED, Decision::CookieAccepted)]),
                    "v6 {v6}, tag {vlan}"
                );
                let (grant, frame) = outcome.frame.split_at(12);
                assert_eq!(grant, [0x5ec0_0c1e, cookie & 0x1ff, LISTENED].map(u32::to_le_bytes).concat());
                assert_eq!(frame, incoming(&packet, vlan));
            }
        }
    }
}

#[test]
fn a_cookie_expires_after_one_to_two_periods() {
    if !may_run("a_cookie_expires_after_one_to_two_periods") {
        return;
    }
    for v6 in [false, true] {
        let mut proxy = Proxy::new(v6);
        // A second time if a period ends meanwhile.
        let decided = loop {
            let now = period();
            let decided: Vec<_> = (now - 6..=now + 5)
                .map(|at| {
                    proxy.new_client();
                    let made = proxy.cookie(at);
                    (i64::from(at) - i64::from(now), proxy.due(made), proxy.decided(&proxy.ack(made)))
                })
                .collect();
            if period() == now {
                break decided;
            }
        };
        for (age, due, decision) in decided {
            // The next one too: a box whose clock is ahead.
            let expected = if (-1..=1).contains(&age) { Decision::CookieAccepted } else { due };
            assert_eq!(decision, expected, "v6 {v6}, made {age} periods from now");
        }
    }
}

#[test]
pub(crate) fn forged_cookies_are_packets_without_a_connection() {
    if !may_run("forged_cookies_are_packets_without_a_connection") {
        return;
    }
    for v6 in [false, true] {
        let mut proxy = Proxy::new(v6);
        let (client, vip) = (proxy.client, proxy.vip);
        let good = proxy.cookie(period());
        let (seq, ack) = (FIRST.wrapping_add(1), good.wrapping_add(1));
        for bit in 0..32 {
            let forged = good ^ 1 << bit;
            assert_eq!(proxy.decided(&proxy.ack(forged)), proxy.due(forged), "bit {bit}");
        }
        // Those of the beginning are the sixteen upper ones; with the others alone, a segment is one that came early.
        assert_eq!(proxy.due(good ^ 1 << 15), Decision::Local);
        assert_eq!(proxy.due(good ^ 1 << 16), Decision::CookieEarly);
        let moved = SocketAddr::new(client.ip(), client.port() + 1);
        let other = SocketAddr::new(vip.ip(), client.port());
        let forged = [
            ("a reset", numbered(client, vip, ACK | 4, seq, ack)),
            ("not an ACK", numbered(client, vip, 1, seq, ack)),
            ("with options", with_options(numbered(client, vip, ACK, seq, ack))),
        ];
        for (what, packet) in forged {
            assert_eq!(proxy.decided(&packet), Decision::Local, "{what}");
        }
        for stranger in [moved, other] {
            let is_answered = is_of_tuple(stranger, vip, good, period());
            let due = if is_answered { Decision::CookieEarly } else { Decision::Local };
            assert_eq!(proxy.decided(&numbered(stranger, vip, ACK, seq, ack)), due, "{stranger}");
        }
        // Last: what comes behind a good one stays, whatever it is.
        assert_eq!(proxy.decided(&proxy.ack(good)), Decision::CookieAccepted);
        // A good cookie for a port on which nobody listens.
        let deaf = SocketAddr::new(vip.ip(), 1);
        proxy.rig.vip(&deaf.to_string(), TCP, LISTENED, 0);
        let now = period();
        let cookie = cookie(client, deaf, FIRST, now, OFFER | now & 3);
        let packet = numbered(client, deaf, ACK, seq, cookie.wrapping_add(1));
        let outcome = proxy.rig.run(&incoming(&packet, false));
        let counted = vec![(LISTENED, Decision::Local), (LISTENED, Decision::CookieFailed)];
        assert_eq!((outcome.action, outcome.counted), (PASS, counted), "no listener");
    }
}

/// The client's ACK and its first segment are lost, and what it sent behind them comes.
#[test]
pub(crate) fn what_comes_before_the_first_segment_is_dropped_for_a_while() {
    if !may_run("what_comes_before_the_first_segment_is_dropped_for_a_while") {
        return;
    }
    for v6 in [false, true] {
        let mut proxy = Proxy::new(v6);
        for (vlan, tunnelled) in [(false, false), (true, false), (false, true), (true, true)] {
            proxy.new_client();
            let good = proxy.cookie(period());
            let sent = |proxy: &mut Proxy, ahead: u32, payload: &[u8]| {
                let seq = FIRST.wrapping_add(1 + ahead);
                let mut packet = numbered(proxy.client, proxy.vip, ACK, seq, good.wrapping_add(1));
                let bytes = packet.len();
                packet[bytes - 3..].copy_from_slice(payload);
                let around = outer(ip("10.9.1.1"), OWN4.into(), 0, Mark::Plain { label: 0 }, &packet);
                proxy.rig.run(&incoming(if tunnelled { &around } else { &packet }, vlan))
            };
            // All that it may send before it hears more: the window of the answer.
            for ahead in [1, 3, 1460, 2920, 0x8000, 0xffff] {
                let early = sent(&mut proxy, ahead, b"two");
                let dropped = (DROP, vec![(LISTENED, Decision::CookieEarly)]);
                assert_eq!((early.action, early.counted), dropped, "{ahead}, v6 {v6}, tag {vlan}");
            }
            let first = sent(&mut proxy, 0, b"one");
            assert_eq!((first.action, first.counted), (PASS, vec![(LISTENED, Decision::CookieAccepted)]));
            assert_eq!(first.frame[..4], 0x5ec0_0c1e_u32.to_le_bytes(), "vouched for");
        }
    }
}

/// No number within the window of the answer is taken for the first, whatever the first and the tuple are.
#[test]
fn a_later_segment_is_never_taken_for_the_first() {
    let (client, vip) = (CLIENT4.parse().expect("an address"), VIP4.parse().expect("an address"));
    for (first, period) in [(0, 7), (FIRST, 8), (u32::MAX - 5, 9), (0x7fff_ff00, 10)] {
        let good = cookie(client, vip, first, period, OFFER);
        for ahead in 1..=0xffff {
            assert_ne!(cookie(client, vip, first.wrapping_add(ahead), period, OFFER), good, "{ahead}");
        }
    }
}

/// A crash: the client has been acknowledged, its server has not spoken, and nobody knows the connection any more.
#[test]
fn a_connection_that_is_gone_is_reset_soon() {
    if !may_run("a_connection_that_is_gone_is_reset_soon") {
        return;
    }
    for v6 in [false, true] {
        let mut proxy = Proxy::new(v6);
        let good = proxy.cookie(period());
        let segment = |proxy: &Proxy, ahead: u32| {
            let seq = FIRST.wrapping_add(1 + ahead);
            numbered(proxy.client, proxy.vip, ACK, seq, good.wrapping_add(1))
        };
        let start = Instant::now();
        let (one, other) = (segment(&proxy, 100_000), segment(&proxy, 101_460));
        while proxy.decided(&one) == Decision::CookieEarly {
            assert!(start.elapsed() < Duration::from_secs(10), "dropped for ever");
        }
        let took = start.elapsed();
        assert!(took > Duration::from_secs(2), "{took:?}: a client that repeats after a second is too late");
        assert_eq!(proxy.decided(&other), Decision::Local);
        // Another connection from the same port is waited for anew, unless the few bits that are remembered are alike.
        let mut firsts =
            (1..).map(|more| cookie(proxy.client, proxy.vip, FIRST + more, period(), OFFER | period() & 3));
        let new = firsts.find(|new| (new ^ good) >> 20 != 0).expect("one in 4,096 is alike");
        let next = numbered(proxy.client, proxy.vip, ACK, FIRST.wrapping_sub(5000), new.wrapping_add(1));
        assert_eq!(proxy.decided(&next), Decision::CookieEarly);
    }
}

/// In a drain somebody else may have the connection, and is asked first.
#[test]
fn a_later_segment_is_sent_to_the_previous_owner_before_it_is_taken_for_early() {
    if !may_run("a_later_segment_is_sent_to_the_previous_owner_before_it_is_taken_for_early") {
        return;
    }
    for v6 in [false, true] {
        let mut proxy = Proxy::new(v6);
        let good = proxy.cookie(period());
        let later = numbered(proxy.client, proxy.vip, ACK, FIRST.wrapping_add(1461), good.wrapping_add(1));
        proxy.rig.all_rows(LISTENED, 2, LOCAL, 1);
        assert_eq!(proxy.rig.run(&incoming(&later, false)).counted, [(LISTENED, Decision::Rescued)]);
        // Here is who is asked.
        let asked = incoming(&outer(ip("10.9.1.1"), OWN4.into(), 0, Mark::Rescued, &later), false);
        let outcome = proxy.rig.run(&asked);
        assert_eq!((outcome.action, outcome.counted), (DROP, vec![(LISTENED, Decision::CookieEarly)]));
    }
}

/// The bits of the tuple are those of each segment of a connection whose server has not spoken yet.
#[test]
fn a_later_segment_of_a_connection_that_is_here_is_not_early() {
    if !may_run("a_later_segment_of_a_connection_that_is_here_is_not_early") {
        return;
    }
    for v6 in [false, true] {
        let mut proxy = Proxy::new(v6);
        let stream = TcpStream::connect(proxy.vip).expect("loopback");
        let later = |proxy: &Proxy| {
            let acknowledged = proxy.cookie(period()).wrapping_add(1);
            numbered(proxy.client, proxy.vip, ACK, FIRST.wrapping_add(1461), acknowledged)
        };
        assert_eq!(proxy.decided(&later(&proxy)), Decision::CookieEarly, "nobody's");
        proxy.client = stream.local_addr().expect("bound");
        assert_eq!(proxy.decided(&later(&proxy)), Decision::Local);
    }
}

/// A test run does not hand packets on to the stack, so that each runs as if in one poll with those before.
#[test]
fn what_follows_an_ack_in_one_poll_stays_without_being_a_second_one() {
    if !may_run("what_follows_an_ack_in_one_poll_stays_without_being_a_second_one") {
        return;
    }
    for v6 in [false, true] {
        let mut proxy = Proxy::new(v6);
        // A drain: without a socket, packets are sent to the previous owner.
        proxy.rig.all_rows(LISTENED, 2, LOCAL, 1);
        let poll = Duration::from_millis(8);
        let deadline = Instant::now() + Duration::from_secs(30);
        let (ack, next) = loop {
            assert!(Instant::now() < deadline, "two packets are never run within {poll:?}");
            proxy.new_client();
            let good = proxy.cookie(period());
            let ack = proxy.ack(good);
            let (seq, acked) = (FIRST.wrapping_add(4), good.wrapping_add(1));
            let next = numbered(proxy.client, proxy.vip, ACK, seq, acked);
            let start = Instant::now();
            let accepted = proxy.decided(&ack);
            let outcome = proxy.rig.run(&incoming(&ack, false));
            if start.elapsed() < poll {
                assert_eq!(accepted, Decision::CookieAccepted);
                assert_eq!((outcome.action, outcome.counted), (PASS, vec![(LISTENED, Decision::Local)]));
                assert_eq!(outcome.frame, incoming(&ack, false), "nothing in front of the frame");
                break (ack, next);
            }
        };
        assert_eq!(proxy.decided(&next), Decision::Local, "the second segment");
        let stranger = numbered(SocketAddr::new(proxy.client.ip(), 7), proxy.vip, ACK, 1, 2);
        assert_eq!(proxy.rig.run(&incoming(&stranger, false)).counted, [(LISTENED, Decision::Rescued)]);
        // Nothing came of it: what the client repeats is looked at anew; and what it goes on with does not stay for ever.
        while proxy.decided(&ack) != Decision::CookieAccepted {
            assert!(Instant::now() < deadline, "a repeated segment is not looked at");
        }
        while proxy.rig.run(&incoming(&next, false)).counted != [(LISTENED, Decision::Rescued)] {
            assert!(Instant::now() < deadline, "remembered too long");
        }
    }
}

/// An earlier connection from the client's port is ended behind XDP (e2e/ports.rs), unless it is the one that the cookie
/// stands for: that is told by the numbers on both sides.
#[test]
pub(crate) fn an_old_connection_is_told_from_the_cookies_own() {
    if !may_run("an_old_connection_is_told_from_the_cookies_own") {
        return;
    }
    for (v6, is_open) in [(false, true), (true, true), (false, false), (true, false)] {
        let mut proxy = Proxy::new(v6);
        let tap = Tap::open();
        let mut stream = TcpStream::connect(proxy.vip).expect("loopback");
        proxy.client = stream.local_addr().expect("bound");
        let (client_first, server_first) = tap.beginnings(proxy.client, proxy.vip);
        let accepted = proxy.listener.accept().expect("a connection").0;
        let held = if is_open {
            Some((accepted, stream))
        } else {
            // The server ends it first, so that its half stays.
            drop(accepted);
            assert_eq!(stream.read(&mut [0]).expect("it ends"), 0);
            None
        };
        // A client that began at `first`, and whether its cookie is beyond what the server had said, or far before it.
        let ack = |first: u32| {
            let now = period();
            let good = cookie(proxy.client, proxy.vip, first, now, OFFER | now & 3);
            let beyond = server_first.wrapping_add(2).wrapping_sub(good.wrapping_add(1)) >= 1 << 28;
            let seq = first.wrapping_add(1);
            (beyond, incoming(&numbered(proxy.client, proxy.vip, ACK, seq, good.wrapping_add(1)), false))
        };
        let earlier = |wanted: bool| {
            let mut acks = (0..1000).map(|before| ack(client_first.wrapping_sub(before)));
            acks.find(|(beyond, _)| *beyond == wanted).expect("one in 16 is near").1
        };
        let later = ack(client_first.wrapping_add(2)).1;
        let deadline = Instant::now() + Duration::from_secs(30);
        // Once the connection is in TIME_WAIT, if it has ended.
        while proxy.rig.run(&later).counted != [(LISTENED, Decision::CookieDisplaced)] {
            assert!(Instant::now() < deadline, "{:?}", proxy.rig.run(&later));
        }
        for packet in [later, earlier(true)] {
            let outcome = proxy.rig.run(&packet);
            let displaced = vec![(LISTENED, Decision::CookieDisplaced)];
            assert_eq!((outcome.action, outcome.counted), (PASS, displaced));
            let (grant, frame) = outcome.frame.split_at(12);
            assert_eq!(grant[..4], 0x5ec0_0c1e_u32.to_le_bytes());
            assert_eq!(frame, packet);
        }
        let own = earlier(false);
        let outcome = proxy.rig.run(&own);
        let local = vec![(LISTENED, Decision::Local)];
        assert_eq!((outcome.action, outcome.counted, outcome.frame), (PASS, local, own));
        // Nor does a packet without the cookie.
        let forged = proxy.ack(proxy.cookie(period()) ^ 1 << 20);
        assert_eq!(proxy.decided(&forged), Decision::Local);
        drop(held);
    }
}
