//! Hostile tunnels: encapsulated packets from outside, from themselves, cut, longer than what they come in, nested, and with
//! outer headers that the program does not follow.

use std::net::IpAddr;

use l4_abi::Decision;
use l4_tests::frame::{ACK, Ip4, Mark, SYN, gue, incoming, ip6, outer, outer_of};
use l4_tests::rig::{CLIENT4, CLIENT6, DROP, OWN4, OWN6, Outcome, PASS, Rig, VIP, VIP4, VIP6, ip};
use l4_tests::{Packet, may_run};

use crate::tunnel::{BOX4, PLAIN, proxy, sent};

const BOX6: &str = "fd00::1:1";

/// Where tunnels of each family come from and go to.
fn ends() -> [(IpAddr, IpAddr); 2] {
    [(ip(BOX4), OWN4.into()), (ip(BOX6), OWN6.into())]
}

/// What a flow of each family sends.
fn inner() -> [Packet; 2] {
    [Packet::tcp(CLIENT4, VIP4, ACK).payload(20), Packet::tcp(CLIENT6, VIP6, ACK).payload(20)]
}

/// Runs a packet without and with a VLAN tag, which changes nothing.
fn run(rig: &mut Rig, packet: &[u8]) -> Outcome {
    let plain = rig.run(&incoming(packet, false));
    let tagged = rig.run(&incoming(packet, true));
    assert_eq!((tagged.action, &tagged.counted), (plain.action, &plain.counted), "{packet:02x?}");
    plain
}

#[test]
pub(crate) fn strangers_may_not_tunnel_whatever_they_write() {
    if !may_run("strangers_may_not_tunnel_whatever_they_write") {
        return;
    }
    let mut rig = proxy();
    let strangers = [
        "10.10.0.1",    // beside the trusted prefix
        "192.0.2.10",   // the VIP
        "198.51.100.7", // the client of what is inside
        "127.0.0.1",
        "255.255.255.255",
        "fd01::1",
        "2001:db8::10",
        "::",
        "::1",
        // A trusted IPv4 address as a v4-mapped and as a v4-compatible one.
        "::ffff:10.9.1.1",
        "::10.9.1.1",
        "ff02::1",
    ];
    for (from, inner) in strangers.iter().flat_map(|from| inner().map(|inner| (ip(from), inner))) {
        let to = if from.is_ipv4() { IpAddr::from(OWN4) } else { OWN6.into() };
        for mark in [PLAIN, Mark::Rescued, Mark::Returned] {
            for packet in
                [outer(from, to, 0, mark, &inner.ip()), outer_of(from, to, 17, 0, mark, &gue(9, &inner.ip()))]
            {
                let out = run(&mut rig, &packet);
                assert_eq!(
                    (out.action, out.counted),
                    (DROP, vec![(0, Decision::DropUntrusted)]),
                    "{from} {mark:?}"
                );
            }
        }
    }
}

#[test]
fn tunnels_to_other_addresses_are_left_to_the_stack() {
    if !may_run("tunnels_to_other_addresses_are_left_to_the_stack") {
        return;
    }
    let mut rig = proxy();
    for inner in inner() {
        // To a VIP, which takes TCP and UDP of its ports only; to a neighbour.
        for (from, to) in
            [(BOX4, "192.0.2.10"), (BOX6, "2001:db8::10"), (BOX4, "10.9.0.101"), (BOX6, "fd00::101")]
        {
            for packet in [
                outer(ip(from), ip(to), 0, PLAIN, &inner.ip()),
                outer_of(ip(from), ip(to), 17, 0, PLAIN, &gue(9, &inner.ip())),
            ] {
                let out = run(&mut rig, &packet);
                assert_eq!((out.action, out.counted), (PASS, vec![(0, Decision::NotOurs)]), "{to}");
            }
        }
        // GUE is UDP to its port, not TCP; to another port it is a datagram of the host's.
        let mut other_port = gue(9, &inner.ip());
        other_port[3] ^= 1;
        let own = format!("{OWN4}:6080");
        for packet in [
            outer_of(ip(BOX4), OWN4.into(), 17, 0, PLAIN, &other_port),
            Packet::tcp("10.9.1.1:9", &own, ACK).payload(60).ip(),
        ] {
            assert_eq!(run(&mut rig, &packet).counted, [(0, Decision::NotOurs)]);
        }
    }
}

#[test]
fn tunnels_with_options_or_in_fragments_are_left_to_the_stack() {
    if !may_run("tunnels_with_options_or_in_fragments_are_left_to_the_stack") {
        return;
    }
    let mut rig = proxy();
    let inner = Packet::tcp(CLIENT4, VIP4, ACK).payload(20).ip();
    let around = |fragment, options: &[u8]| {
        let header = Ip4 { tos: 0, ttl: 64, fragment, options, id: 0x5ec0 };
        header.around([10, 9, 1, 1].into(), OWN4, 4, &inner)
    };
    let extended = |next, rest: &[u8]| {
        let payload = [&[4, 0][..], rest, &inner].concat();
        ip6("fd00::1:1".parse().expect("an address"), OWN6, next, 0, 0x5_ec0d, 64, &payload)
    };
    for packet in [
        around(0x4000, &[1, 1, 1, 1]),
        around(0x2000, &[]),
        around(0x0003, &[]),
        extended(60, &[1, 4, 0, 0, 0, 0]),
        extended(44, &[0, 1, 0, 0, 0, 9]),
    ] {
        let out = run(&mut rig, &packet);
        assert_eq!((out.action, out.counted), (PASS, vec![(0, Decision::NotOurs)]), "{packet:02x?}");
    }
}

#[test]
pub(crate) fn what_does_not_fit_in_its_tunnel_is_dropped() {
    if !may_run("what_does_not_fit_in_its_tunnel_is_dropped") {
        return;
    }
    let mut rig = proxy();
    for (from, to) in ends() {
        for inner in inner().map(|inner| inner.ip()) {
            for in_gue in [false, true] {
                let around = |inner: &[u8]| {
                    if in_gue {
                        outer_of(from, to, 17, 0, PLAIN, &gue(9, inner))
                    } else {
                        outer(from, to, 0, PLAIN, inner)
                    }
                };
                let whole = around(&inner);
                assert_eq!(run(&mut rig, &whole).counted, [(VIP, Decision::Decapsulated)]);
                // Cut before it was put in: the outer lengths agree with the frame.
                for bytes in 1..inner.len() {
                    for vlan in [false, true] {
                        let out = rig.run(&incoming(&around(&inner[..bytes]), vlan));
                        assert_eq!(out.action, DROP, "{bytes} of {inner:02x?}");
                        let [(0, Decision::DropBad | Decision::DropInner)] = out.counted[..] else {
                            unreachable!("{bytes} of {inner:02x?}: {:?}", out.counted)
                        };
                    }
                }
                // Cut afterwards: they do not.
                for bytes in 1..whole.len() {
                    let out = run(&mut rig, &whole[..bytes]);
                    assert_eq!((out.action, out.counted), (DROP, vec![(0, Decision::DropBad)]), "{bytes}");
                }
                // The outer header ends before the inner packet does; what is behind it is in the frame all the same.
                let mut short = around(&inner[..inner.len() - 1]);
                short.push(0);
                let out = run(&mut rig, &short);
                assert_eq!((out.action, out.counted), (DROP, vec![(0, Decision::DropBad)]), "{from}");
            }
        }
    }
}

#[test]
pub(crate) fn tunnels_in_tunnels_are_dropped() {
    if !may_run("tunnels_in_tunnels_are_dropped") {
        return;
    }
    let mut rig = proxy();
    for inner in inner() {
        for ((from, to), (far, near)) in
            ends().into_iter().flat_map(|end| ends().map(|inner_end| (end, inner_end)))
        {
            let twice = [
                outer(far, near, 0, PLAIN, &inner.ip()),
                outer_of(far, near, 17, 0, Mark::Rescued, &gue(9, &inner.ip())),
            ];
            for nested in twice {
                // A third one around it, too.
                for packet in [
                    outer(from, to, 0, PLAIN, &nested),
                    outer_of(from, to, 17, 0, PLAIN, &gue(9, &nested)),
                    outer(from, to, 0, PLAIN, &outer(far, near, 0, PLAIN, &nested)),
                ] {
                    let out = run(&mut rig, &packet);
                    assert_eq!((out.action, out.counted), (DROP, vec![(0, Decision::DropInner)]));
                }
            }
        }
    }
}

#[test]
fn what_is_inside_obeys_the_rules_for_vips() {
    if !may_run("what_is_inside_obeys_the_rules_for_vips") {
        return;
    }
    let mut rig = proxy();
    let options = Packet { options: vec![1; 4], ..Packet::tcp(CLIENT4, VIP4, SYN) }.ip();
    let fragment4 = Packet { fragment: 0x2000, ..Packet::udp(CLIENT4, VIP4, b"12345678") }.ip();
    let (source, vip) = ("2001:db8:1::7", "2001:db8::10");
    let extended = |next: u8, header: [u8; 8]| {
        let tcp = &Packet::tcp(CLIENT6, VIP6, SYN).ip()[40..];
        let address = |text: &str| text.parse().expect("an address");
        ip6(address(source), address(vip), next, 0, 0, 60, &[&header, tcp].concat())
    };
    let mut bad_length = Packet::tcp(CLIENT4, VIP4, ACK).ip();
    bad_length[3] = 0x27;
    for (inner, counted) in [
        (options, (VIP, Decision::DropOptions)),
        (extended(60, [6, 0, 1, 4, 0, 0, 0, 0]), (VIP, Decision::DropOptions)),
        (fragment4, (VIP, Decision::DropFragment)),
        (extended(44, [6, 0, 0, 1, 0, 0, 0, 9]), (VIP, Decision::DropFragment)),
        (bad_length, (0, Decision::DropBad)),
        (Packet::udp(CLIENT6, "[2001:db8::10]:9", b"x").ip(), (0, Decision::DropInner)),
    ] {
        for v6 in [false, true] {
            let out = rig.run(&sent(&inner, v6, PLAIN));
            assert_eq!((out.action, out.counted), (DROP, vec![counted]), "{inner:02x?}");
        }
    }
}
