//! Packets that are cut, contradict themselves, or carry what the program does not follow.

use l4_abi::{Decision, TCP, UDP, VIP_HASH_ADDRESSES};
use l4_tests::frame::{ACK, Ip4, SYN, icmp, incoming, ip6};
use l4_tests::rig::{CLIENT4, CLIENT6, DROP, OWNER1, PASS, Rig, TX, VIP, VIP4, VIP6, ip};
use l4_tests::{Packet, VLAN, may_run};

#[test]
fn packets_cut_at_every_byte_never_leave_and_never_break_the_program() {
    if !may_run("packets_cut_at_every_byte_never_leave_and_never_break_the_program") {
        return;
    }
    let mut rig = Rig::new();
    for packet in [
        Packet::tcp(CLIENT4, VIP4, ACK).payload(20),
        Packet::tcp(CLIENT6, VIP6, ACK).payload(20),
        Packet::tcp(CLIENT6, VIP6, ACK).payload(20).vlan(),
        Packet::udp(CLIENT4, VIP4, b"twenty bytes of data"),
        Packet::udp(CLIENT6, VIP6, b"twenty bytes of data"),
        Packet::udp(CLIENT4, VIP4, b"twenty bytes of data").vlan(),
    ] {
        let frame = packet.frame();
        // The kernel's test run wants a whole Ethernet header.
        for bytes in 14..frame.len() {
            let out = rig.run(&frame[..bytes]);
            let decision = out.counted[0].1;
            assert!(
                out.action == DROP && decision == Decision::DropBad
                    || out.action == PASS && decision == Decision::NotOurs && bytes < 18,
                "{bytes} bytes of {packet:?}: {out:?}"
            );
        }
        assert_eq!(rig.run(&frame).action, TX);
    }
}

#[test]
fn contradictory_lengths_are_dropped() {
    if !may_run("contradictory_lengths_are_dropped") {
        return;
    }
    let mut rig = Rig::new();
    let v4 = Packet::tcp(CLIENT4, VIP4, ACK).payload(40).frame();
    let v6 = Packet::tcp(CLIENT6, VIP6, ACK).payload(40).frame();
    let udp = Packet::udp(CLIENT4, VIP4, b"data").frame();
    let udp6 = Packet::udp(CLIENT6, VIP6, b"data").frame();
    let ping = |from, to, kind| incoming(&icmp(from, to, kind, 0, [0; 4], b"ping"), false);
    let ping4 = ping(ip("198.51.100.7"), ip("192.0.2.10"), 8);
    let ping6 = ping(ip("2001:db8:1::7"), ip("2001:db8::10"), 128);
    let cases: [(&str, &[u8], usize, &[u8]); 16] = [
        ("IPv4 longer than the frame", &v4, 16, &[0x01, 0x00]),
        ("IPv4 shorter than its header", &v4, 16, &[0x00, 0x13]),
        ("IPv4 without room for TCP", &v4, 16, &[0x00, 0x27]),
        ("IPv4 header of 16 bytes", &v4, 14, &[0x44]),
        ("version 6 in an IPv4 frame", &v4, 14, &[0x65]),
        ("TCP header of 16 bytes", &v4, 14 + 20 + 12, &[0x40]),
        ("IPv6 longer than the frame", &v6, 18, &[0x01, 0x00]),
        ("version 4 in an IPv6 frame", &v6, 14, &[0x40]),
        ("IPv4 without room for UDP", &udp, 16, &[0x00, 0x1b]),
        ("IPv4 without room for ICMP", &ping4, 16, &[0x00, 0x1b]),
        ("IPv6 without room for TCP", &v6, 18, &[0x00, 0x13]),
        ("IPv6 without a payload", &v6, 18, &[0x00, 0x00]),
        ("TCP header of 16 bytes in IPv6", &v6, 14 + 40 + 12, &[0x40]),
        ("version 5 in an IPv6 frame", &v6, 14, &[0x50]),
        ("IPv6 without room for UDP", &udp6, 18, &[0x00, 0x07]),
        ("IPv6 without room for ICMPv6", &ping6, 18, &[0x00, 0x07]),
    ];
    for (name, frame, at, bytes) in cases {
        let mut frame = frame.to_vec();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        let tagged = [&frame[..12], &VLAN, &frame[12..]].concat();
        for frame in [frame, tagged] {
            let out = rig.run(&frame);
            assert_eq!((out.action, out.counted), (DROP, vec![(0, Decision::DropBad)]), "{name}");
        }
    }
}

#[test]
pub(crate) fn options_and_extension_headers_are_dropped_for_vips_only() {
    if !may_run("options_and_extension_headers_are_dropped_for_vips_only") {
        return;
    }
    let mut rig = Rig::new();
    let options = vec![0x83, 7, 4, 10, 0, 0, 1, 0];
    let packet = Packet { options: options.clone(), ..Packet::tcp(CLIENT4, VIP4, SYN) };
    let out = rig.run(&packet.frame());
    assert_eq!((out.action, out.counted), (DROP, vec![(VIP, Decision::DropOptions)]));
    let other = Packet { options, ..Packet::tcp(CLIENT4, "192.0.2.99:443", SYN) };
    assert_eq!(rig.run(&other.frame()).counted, [(0, Decision::NotOurs)]);

    let tcp = &Packet::tcp(CLIENT6, VIP6, SYN).ip()[40..];
    for header in [0, 43, 60, 51, 135] {
        let extension = [&[6, 0, 1, 4, 0, 0, 0, 0], tcp].concat();
        let ip = ip6(v6(CLIENT6), v6(VIP6), header, 0, 0, 60, &extension);
        let out = rig.run(&incoming(&ip, false));
        assert_eq!((out.action, out.counted), (DROP, vec![(VIP, Decision::DropOptions)]), "header {header}");
        let ip = ip6(v6(CLIENT6), v6("[2001:db8::99]:1"), header, 0, 0, 60, &extension);
        assert_eq!(rig.run(&incoming(&ip, false)).counted, [(0, Decision::NotOurs)], "header {header}");
    }
    // The first header decides, whatever hides behind it or however little of it there is; ICMP is no exception.
    let chain = [&[44, 0, 1, 4, 0, 0, 0, 0, 6, 0, 0, 1, 0, 0, 0, 9], tcp].concat();
    for payload in [&chain[..], &chain[..8], &[0xff; 8], &[]] {
        let packet = ip6(v6(CLIENT6), v6(VIP6), 0, 0, 0, 60, payload);
        for vlan in [false, true] {
            let out = rig.run(&incoming(&packet, vlan));
            assert_eq!(
                (out.action, out.counted),
                (DROP, vec![(VIP, Decision::DropOptions)]),
                "{payload:02x?}"
            );
        }
    }
    let ping = Ip4 { tos: 0, ttl: 9, fragment: 0x2000, options: &[0; 40], id: 1 };
    let ping =
        ping.around([198, 51, 100, 7].into(), [192, 0, 2, 10].into(), 1, &[8, 0, 0xf7, 0xff, 0, 0, 0, 0]);
    assert_eq!(rig.run(&incoming(&ping, true)).counted, [(VIP, Decision::DropOptions)]);
    // Headers that claim more than there is.
    let mut long = Packet::tcp(CLIENT4, VIP4, SYN).frame();
    long[14] = 0x4f;
    assert_eq!(rig.run(&long).counted, [(VIP, Decision::DropOptions)]);
}

/// Protocols that no VIP takes: no next header, ESP, GRE, SCTP, HIP, and what is not assigned.
#[test]
fn other_protocols_are_left_to_the_stack() {
    if !may_run("other_protocols_are_left_to_the_stack") {
        return;
    }
    let mut rig = Rig::new();
    for protocol in [59, 50, 47, 132, 139, 140, 253, 255] {
        for payload in [&[0; 24][..], &[]] {
            let header = Ip4 { tos: 0, ttl: 9, fragment: 0, options: &[], id: 1 };
            let four = header.around([198, 51, 100, 7].into(), [192, 0, 2, 10].into(), protocol, payload);
            let six = ip6(v6(CLIENT6), v6(VIP6), protocol, 0, 0, 60, payload);
            for packet in [four, six] {
                let frame = incoming(&packet, false);
                let out = rig.run(&frame);
                assert_eq!((out.action, out.counted), (PASS, vec![(0, Decision::NotOurs)]), "{protocol}");
                assert_eq!(out.frame, frame, "untouched");
            }
        }
    }
}

fn v6(text: &str) -> std::net::Ipv6Addr {
    text.parse::<std::net::SocketAddrV6>().map(|address| *address.ip()).expect("an IPv6 address with a port")
}

/// First and last fragment of a datagram, IPv4 and IPv6.
fn fragments(client: &str, vip: &str, protocol: u8) -> [Vec<u8>; 2] {
    let whole = Packet { protocol, ..Packet::tcp(client, vip, ACK) }.payload(48);
    let ip = whole.ip();
    if whole.source.is_ipv4() {
        let part = |fragment: u16, payload: &[u8]| {
            let header = Ip4 { tos: 0, ttl: 9, fragment, options: &[], id: 99 };
            let (std::net::IpAddr::V4(source), std::net::IpAddr::V4(destination)) =
                (whole.source.ip(), whole.destination.ip())
            else {
                unreachable!("both are IPv4")
            };
            incoming(&header.around(source, destination, protocol, payload), false)
        };
        return [part(0x2000, &ip[20..44]), part(3, &ip[44..])];
    }
    let part = |offset: u16, payload: &[u8]| {
        let header = [&[protocol, 0], &offset.to_be_bytes()[..], &[0, 0, 0, 9], payload].concat();
        incoming(&ip6(v6(client), v6(vip), 44, 0, 0, 9, &header), false)
    };
    [part(1, &ip[40..64]), part(24, &ip[64..])]
}

#[test]
pub(crate) fn fragments_are_dropped_unless_their_vip_hashes_addresses_alone() {
    if !may_run("fragments_are_dropped_unless_their_vip_hashes_addresses_alone") {
        return;
    }
    let mut rig = Rig::new();
    for (client, vip, protocol) in
        [(CLIENT4, VIP4, TCP), (CLIENT4, VIP4, UDP), (CLIENT6, VIP6, TCP), (CLIENT6, VIP6, UDP)]
    {
        for fragment in fragments(client, vip, protocol) {
            let out = rig.run(&fragment);
            assert_eq!((out.action, out.counted), (DROP, vec![(VIP, Decision::DropFragment)]));
        }
    }
    for fragment in fragments(CLIENT4, "192.0.2.99:443", UDP) {
        assert_eq!(rig.run(&fragment).counted, [(0, Decision::NotOurs)]);
    }
    // Half of the rows to each owner: a fragment in another row than its whole packets would be noticed.
    for (any, address) in [("192.0.2.10:0", "192.0.2.10:9"), ("[2001:db8::10]:0", "[2001:db8::10]:9")] {
        rig.vip(any, UDP, 2, VIP_HASH_ADDRESSES);
        rig.maps()
            .set_settings(l4_abi::Settings { any_port: 1, trace_one_in: 0 })
            .expect("a setting is taken");
        rig.rows(2, 1, |row| {
            let owner = if row % 2 == 0 { 1 } else { 2 };
            l4_abi::Row { current: owner, previous: owner }
        });
        for host in 1..20 {
            let client = if any.starts_with('[') {
                format!("[2001:db8:1::{host}]:5")
            } else {
                format!("10.0.0.{host}:5")
            };
            let whole = rig.run(&Packet::udp(&client, address, b"x").frame());
            let owner = owner_address(&whole.frame);
            assert_eq!(whole.action, TX);
            for fragment in fragments(&client, address, UDP) {
                let out = rig.run(&fragment);
                assert_eq!((out.action, owner_address(&out.frame)), (TX, owner.clone()), "{client}");
            }
        }
    }
    assert!(rig.maps().owner_counts(1).expect("a read").packets > 10, "{OWNER1} and the other get some");
    assert!(rig.maps().owner_counts(2).expect("a read").packets > 10);
}

/// Destination of the outer IPv4 header.
fn owner_address(frame: &[u8]) -> Vec<u8> {
    frame[30..34].to_vec()
}

/// A seeded storm of spoiled packets: the program must return a verdict for each, and count each exactly once.
#[test]
fn spoiled_packets_get_one_verdict_each() {
    if !may_run("spoiled_packets_get_one_verdict_each") {
        return;
    }
    let mut rig = Rig::new();
    rig.maps().set_trusted(ip("10.9.0.0"), 16).expect("trusted");
    let seed = 20_261_130_u64;
    println!("seed {seed}");
    let mut state = seed;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % u64::try_from(below).expect("small")).expect("small")
    };
    let inner = Packet::tcp(CLIENT4, VIP4, ACK).payload(30).ip();
    let tunnel = |to: std::net::IpAddr, from: &str| {
        let mark = l4_tests::frame::Mark::Rescued;
        incoming(&l4_tests::frame::outer(ip(from), to, 3, mark, &inner), false)
    };
    let frames = [
        Packet::tcp(CLIENT4, VIP4, ACK).payload(30).frame(),
        Packet::tcp(CLIENT6, VIP6, SYN).payload(30).frame(),
        Packet::udp(CLIENT4, VIP4, b"data").vlan().frame(),
        tunnel(l4_tests::rig::OWN4.into(), OWNER1),
        tunnel(l4_tests::rig::OWN6.into(), "fd00::4"),
    ];
    for round in 0..4_000 {
        let mut frame = frames[random(frames.len())].clone();
        for _ in 0..=random(4) {
            let at = 12 + random(frame.len() - 12);
            frame[at] = u8::try_from(random(256)).expect("a byte");
        }
        frame.truncate(14 + random(frame.len() - 13).max(20));
        let out = rig.run(&frame);
        assert!((DROP..=TX).contains(&out.action), "round {round}: {frame:02x?}");
        let remarks = [Decision::InsertCapped, Decision::RuleExpired];
        let decisions = out.counted.iter().filter(|(_, decision)| !remarks.contains(decision)).count();
        assert_eq!(decisions, 1, "round {round}: {:?} for {frame:02x?}", out.counted);
    }
}
