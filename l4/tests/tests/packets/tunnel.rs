//! Arrivals from other boxes, and the second chance on real sockets of this host.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

use l4_abi::{Decision, TCP};
use l4_tests::frame::{ACK, Mark, SYN, gue, icmp, incoming, outer, outer_of, returned};
use l4_tests::rig::{
    CLIENT4, CLIENT6, DROP, LOCAL, OWN4, OWN6, OWNER1, OWNER4, PASS, Rig, TX, VIP, VIP4, VIP6, ip,
};
use l4_tests::{Packet, may_run};

/// The box that sends to this host in these tests.
pub(crate) const BOX4: &str = "10.9.1.1";
const BOX6: &str = "fd00::1:1";
pub(crate) const PLAIN: Mark = Mark::Plain { label: 77 };

/// A rig that owns all rows and trusts the boxes.
pub(crate) fn proxy() -> Rig {
    let mut rig = Rig::new();
    rig.maps().set_trusted(ip("10.9.0.0"), 16).expect("trusted");
    rig.maps().set_trusted(ip("fd00::"), 64).expect("trusted");
    rig.all_rows(VIP, 1, LOCAL, LOCAL);
    rig
}

/// `inner` as the box sends it to this host.
pub(crate) fn sent(inner: &[u8], v6: bool, mark: Mark) -> Vec<u8> {
    let (from, to) = if v6 { (ip(BOX6), OWN6.into()) } else { (ip(BOX4), IpAddr::from(OWN4)) };
    incoming(&outer(from, to, 0, mark, inner), false)
}

#[test]
fn what_a_box_sends_is_unpacked_and_passed() {
    if !may_run("what_a_box_sends_is_unpacked_and_passed") {
        return;
    }
    let mut rig = proxy();
    for packet in [
        Packet::tcp(CLIENT4, VIP4, SYN),
        Packet::tcp(CLIENT4, VIP4, ACK).payload(500),
        Packet::tcp(CLIENT6, VIP6, ACK).payload(500),
        Packet::udp(CLIENT6, VIP6, b"x"),
    ] {
        for v6 in [false, true] {
            let out = rig.run(&sent(&packet.ip(), v6, PLAIN));
            assert_eq!((out.action, out.counted), (PASS, vec![(VIP, Decision::Decapsulated)]));
            assert_eq!(out.frame, packet.frame());
        }
        for (from, to) in [(ip(BOX4), IpAddr::from(OWN4)), (ip(BOX6), OWN6.into())] {
            for vlan in [false, true] {
                let frame = incoming(&outer_of(from, to, 17, 0, PLAIN, &gue(50_000, &packet.ip())), vlan);
                let out = rig.run(&frame);
                assert_eq!((out.action, out.counted), (PASS, vec![(VIP, Decision::Decapsulated)]));
                assert_eq!(out.frame, incoming(&packet.ip(), vlan));
            }
        }
    }
}

#[test]
fn strangers_may_not_tunnel() {
    if !may_run("strangers_may_not_tunnel") {
        return;
    }
    let mut rig = proxy();
    let inner = Packet::tcp(CLIENT4, VIP4, SYN).ip();
    for (from, to) in [(ip("10.10.0.1"), IpAddr::from(OWN4)), (ip("fd01::1"), OWN6.into())] {
        for frame in [outer(from, to, 0, PLAIN, &inner), outer_of(from, to, 17, 0, PLAIN, &gue(1, &inner))] {
            let out = rig.run(&incoming(&frame, false));
            assert_eq!((out.action, out.counted), (DROP, vec![(0, Decision::DropUntrusted)]));
        }
    }
    rig.maps().remove_trusted(ip("10.9.0.0"), 16).expect("removed");
    assert_eq!(rig.run(&sent(&inner, false, PLAIN)).counted, [(0, Decision::DropUntrusted)]);
    // Encapsulated for another host's address: not ours.
    let other = outer(ip(BOX6), ip("fd00::9"), 0, PLAIN, &inner);
    assert_eq!(rig.run(&incoming(&other, false)).counted, [(0, Decision::NotOurs)]);
}

#[test]
fn only_packets_for_vips_come_out_of_a_tunnel() {
    if !may_run("only_packets_for_vips_come_out_of_a_tunnel") {
        return;
    }
    let mut rig = proxy();
    let inner = Packet::tcp(CLIENT4, VIP4, SYN).ip();
    let nested4 = outer(ip(BOX4), OWN4.into(), 0, PLAIN, &inner);
    let nested6 = outer(ip(BOX6), OWN6.into(), 0, PLAIN, &inner);
    let elsewhere = Packet::tcp(CLIENT4, "192.0.2.10:22", SYN).ip();
    let ping = icmp(ip("198.51.100.7"), ip("192.0.2.10"), 8, 0, [0; 4], b"ping");
    let nonsense = vec![0x00; 60];
    for inner in [nested4, nested6, elsewhere, ping, nonsense] {
        for v6 in [false, true] {
            let out = rig.run(&sent(&inner, v6, PLAIN));
            assert_eq!((out.action, out.counted), (DROP, vec![(0, Decision::DropInner)]), "{inner:02x?}");
        }
    }
    // Cut inside the inner packet: the outer lengths still agree with the frame.
    for bytes in 1..40 {
        let out = rig.run(&sent(&inner[..bytes], false, PLAIN));
        assert_eq!(out.action, DROP, "{bytes}");
    }
    let fragment = Packet { fragment: 0x2000, ..Packet::udp(CLIENT4, VIP4, b"12345678") };
    assert_eq!(rig.run(&sent(&fragment.ip(), false, PLAIN)).counted, [(VIP, Decision::DropFragment)]);
}

#[test]
fn congestion_marked_outside_is_marked_inside() {
    if !may_run("congestion_marked_outside_is_marked_inside") {
        return;
    }
    let mut rig = proxy();
    for (inner_ecn, expected) in [(0, 0), (1, 3), (2, 3), (3, 3)] {
        for (client, vip) in [(CLIENT4, VIP4), (CLIENT6, VIP6)] {
            let packet = Packet { tos: 0xb8 | inner_ecn, ..Packet::tcp(client, vip, SYN) };
            let marked = Packet { tos: 0xb8 | expected, ..packet.clone() };
            let frame = incoming(&outer(ip(BOX4), OWN4.into(), 0xb8 | 3, PLAIN, &packet.ip()), false);
            assert_eq!(rig.run(&frame).frame, marked.frame(), "ECN {inner_ecn}");
        }
    }
}

/// A connection over loopback between real sockets: what the socket lookup of a test run finds.
struct Connection {
    listener: TcpListener,
    client: TcpStream,
    _accepted: TcpStream,
}

impl Connection {
    fn new(address: &str) -> Self {
        let listener = TcpListener::bind(address).expect("loopback");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (accepted, _) = listener.accept().expect("connected");
        Self { listener, client, _accepted: accepted }
    }

    fn vip(&self) -> SocketAddr {
        self.listener.local_addr().expect("bound")
    }

    /// The rig of a proxy whose VIP is the listener; owner 1 had the rows before.
    fn rig(&self, current: u16, previous: u16) -> Rig {
        let mut rig = proxy();
        rig.vip(&self.vip().to_string(), TCP, 2, 0);
        rig.all_rows(2, 7, current, previous);
        rig
    }

    /// A packet of the connection.
    fn packet(&self, flags: u8) -> Packet {
        let client = self.client.local_addr().expect("connected");
        Packet::tcp(&client.to_string(), &self.vip().to_string(), flags).payload(5)
    }

    /// A packet of a connection that is not here, to the same listener.
    fn stray(&self, flags: u8) -> Packet {
        let client = if self.vip().is_ipv4() { "127.9.9.9:9" } else { "[2001:db8::9]:9" };
        Packet::tcp(client, &self.vip().to_string(), flags).payload(5)
    }
}

#[test]
fn a_packet_without_a_socket_goes_once_to_the_previous_owner() {
    if !may_run("a_packet_without_a_socket_goes_once_to_the_previous_owner") {
        return;
    }
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let mut here = Connection::new(address);
        here.client.write_all(b"x").expect("connected");
        let mut rig = here.rig(LOCAL, 1);
        let own = here.packet(ACK);
        let out = rig.run(&sent(&own.ip(), false, PLAIN));
        assert_eq!(
            (out.action, out.counted),
            (PASS, vec![(2, Decision::Decapsulated)]),
            "its socket is here"
        );
        let stray = here.stray(ACK);
        let rescued = returned(&outer(OWN4.into(), ip(OWNER1), stray.tos, Mark::Rescued, &stray.ip()), false);
        // From another box, and from the client itself (this host is a box too).
        for (frame, local) in [(sent(&stray.ip(), true, PLAIN), false), (stray.frame(), true)] {
            let out = rig.run(&frame);
            assert_eq!((out.action, out.counted), (TX, vec![(2, Decision::Rescued)]), "local {local}");
            assert_eq!(out.frame, rescued);
        }
        // A SYN begins a connection here.
        let out = rig.run(&sent(&here.stray(SYN).ip(), false, PLAIN));
        assert_eq!((out.action, out.counted), (PASS, vec![(2, Decision::Decapsulated)]));
        let counts = rig.maps().rescue_counts(2).expect("a read");
        assert_eq!((counts.version, counts.rescued, counts.reset), (7, 2, 0));
        // In IPv6 tunnels the mark is the flow label.
        rig.all_rows(2, 8, LOCAL, 4);
        let out = rig.run(&sent(&stray.ip(), false, PLAIN));
        let rescued = returned(&outer(OWN6.into(), ip(OWNER4), stray.tos, Mark::Rescued, &stray.ip()), false);
        assert_eq!(out.frame, rescued);
        let counts = rig.maps().rescue_counts(2).expect("a read");
        assert_eq!((counts.version, counts.rescued), (8, 1), "counted by version");
    }
}

#[test]
pub(crate) fn a_rescued_packet_is_never_sent_on() {
    if !may_run("a_rescued_packet_is_never_sent_on") {
        return;
    }
    for here in ["127.0.0.1:0", "[::1]:0"].map(Connection::new) {
        for (current, previous) in [(1, LOCAL), (LOCAL, 1), (1, 2)] {
            let mut rig = here.rig(current, previous);
            for v6 in [false, true] {
                let out = rig.run(&sent(&here.packet(ACK).ip(), v6, Mark::Rescued));
                assert_eq!((out.action, out.counted), (PASS, vec![(2, Decision::RescueArrived)]));
                assert_eq!(out.frame, here.packet(ACK).frame());
                let out = rig.run(&sent(&here.stray(ACK).ip(), v6, Mark::Rescued));
                assert_eq!((out.action, out.counted), (PASS, vec![(2, Decision::Reset)]));
            }
            let in_gue = gue(9, &here.stray(ACK).ip());
            let udp_gue = outer_of(ip(BOX4), OWN4.into(), 17, 0, Mark::Rescued, &in_gue);
            assert_eq!(rig.run(&incoming(&udp_gue, false)).counted, [(2, Decision::Reset)]);
        }
    }
}

#[test]
fn without_another_owner_a_stray_packet_stays() {
    if !may_run("without_another_owner_a_stray_packet_stays") {
        return;
    }
    let here = Connection::new("127.0.0.1:0");
    // No change drains: nobody is asked.
    let mut rig = here.rig(LOCAL, LOCAL);
    assert_eq!(rig.run(&sent(&here.stray(ACK).ip(), false, PLAIN)).counted, [(2, Decision::Decapsulated)]);
    // Nobody was the owner before; or who was is down; or this host was, and who is now is down or nobody.
    for (current, previous) in [(LOCAL, 0), (LOCAL, 9), (9, LOCAL), (0, LOCAL)] {
        let mut rig = here.rig(current, previous);
        let out = rig.run(&sent(&here.stray(ACK).ip(), false, PLAIN));
        assert_eq!((out.action, out.counted), (PASS, vec![(2, Decision::Reset)]), "{current} {previous}");
        assert_eq!(rig.maps().rescue_counts(2).expect("a read").reset, 1);
    }
}

/// By this host's table the row is another's: the sender's is newer, or older, or a box remembers a flow that ended.
#[test]
fn a_host_that_does_not_own_the_row_asks_who_does() {
    if !may_run("a_host_that_does_not_own_the_row_asks_who_does") {
        return;
    }
    for here in ["127.0.0.1:0", "[::1]:0"].map(Connection::new) {
        // A settled row; one that was this host's; one that has been others' twice.
        for previous in [1, LOCAL, 2] {
            let mut rig = here.rig(1, previous);
            let own = rig.run(&sent(&here.packet(ACK).ip(), false, PLAIN));
            assert_eq!((own.action, own.counted), (PASS, vec![(2, Decision::Decapsulated)]));
            let stray = here.stray(ACK);
            let goes = rig.run(&sent(&stray.ip(), true, PLAIN));
            assert_eq!((goes.action, goes.counted), (TX, vec![(2, Decision::Rescued)]), "{previous}");
            let to_present = outer(OWN4.into(), ip(OWNER1), stray.tos, Mark::Rescued, &stray.ip());
            assert_eq!(goes.frame, returned(&to_present, false));
            let begins = rig.run(&sent(&here.stray(SYN).ip(), false, PLAIN));
            assert_eq!((begins.action, begins.counted), (PASS, vec![(2, Decision::Decapsulated)]));
        }
    }
}

#[test]
fn errors_get_a_second_chance_too() {
    if !may_run("errors_get_a_second_chance_too") {
        return;
    }
    let here = Connection::new("127.0.0.1:0");
    let mut rig = here.rig(LOCAL, 1);
    let about = |packet: Packet| {
        let reply = Packet { source: packet.destination, destination: packet.source, ..packet };
        icmp(ip("127.7.7.7"), here.vip().ip(), 3, 4, [0, 0, 5, 0], &reply.ip()[..28])
    };
    let stays = rig.run(&sent(&about(here.packet(ACK)), false, PLAIN));
    assert_eq!((stays.action, stays.counted), (PASS, vec![(2, Decision::Decapsulated)]));
    let goes = rig.run(&sent(&about(here.stray(ACK)), false, PLAIN));
    assert_eq!((goes.action, goes.counted), (TX, vec![(2, Decision::Rescued)]));
}
