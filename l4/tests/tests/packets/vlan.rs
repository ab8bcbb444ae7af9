//! A VLAN tag changes nothing but the frame that it is in: each path, without one and with one. What has other tags than
//! one of 802.1Q is none of the program's.

use l4_abi::{Decision, Rule, TCP, VIP_ECHO, VIP_GUE, VIP_RULES};
use l4_load::LoadOptions;
use l4_tests::frame::{ACK, Mark, SYN, icmp, incoming, outer};
use l4_tests::rig::{CLIENT4, CLIENT6, LOCAL, OWN4, OWN6, PASS, Rig, TX, VIP, VIP4, VIP6, ip};
use l4_tests::{Packet, VLAN, may_run};

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// Steers to owner 1 by row and to another for the rest, with a rule, and small packets only.
fn rig() -> Rig {
    let mut rig = Rig::with(&LoadOptions { mtu_bytes: 1000, icmp_per_cpu_per_s: 1000, ..Rig::options() });
    for (prefix, bits) in [("10.9.0.0", 16), ("fd00::", 64)] {
        rig.maps().set_trusted(ip(prefix), bits).expect("trusted");
    }
    for (id, port, flags) in [(3, 8001, VIP_RULES), (4, 8002, VIP_GUE), (5, 8003, 0)] {
        for address in ["192.0.2.10", "[2001:db8::10]"] {
            rig.vip(&format!("{address}:{port}"), TCP, id, flags);
        }
    }
    rig.vip("192.0.2.10:0", ICMP, VIP, VIP_ECHO);
    rig.vip("[2001:db8::10]:0", ICMPV6, VIP, VIP_ECHO);
    for client in ["198.51.100.0", "2001:db8:1::"] {
        rig.maps().set_rule(3, ip(client), 24, Rule::default()).expect("a rule is taken");
    }
    rig.all_rows(3, 1, 1, 1);
    // By IPv6, with a previous owner; and this host.
    rig.all_rows(4, 1, 4, 5);
    rig.all_rows(5, 1, LOCAL, 1);
    rig
}

/// One packet for each path and family, with the decision that shows which.
fn packets() -> Vec<(Vec<u8>, Decision)> {
    let mut all = Vec::new();
    for (client, vip, host, own) in [
        (CLIENT4, VIP4, "192.0.2.10", OWN4.into()),
        (CLIENT6, VIP6, "[2001:db8::10]", std::net::IpAddr::from(OWN6)),
    ] {
        let to = |port: u16, flags: u8| Packet::tcp(client, &format!("{host}:{port}"), flags);
        let own_address: std::net::IpAddr = host.trim_matches(['[', ']']).parse().expect("an address");
        let (from, v6) = (to(1, 0).source.ip(), own_address.is_ipv6());
        let reply =
            Packet { source: to(443, ACK).destination, destination: to(443, ACK).source, ..to(443, ACK) };
        let quote = &reply.ip()[..if v6 { 48 } else { 28 }];
        let tunnel_from = if v6 { ip("fd00::1:1") } else { ip("10.9.1.1") };
        let tunnelled = |mark: Mark| outer(tunnel_from, own, 0, mark, &to(8003, ACK).payload(9).ip());
        let too_big = if v6 { Packet::tcp(client, vip, ACK) } else { to(443, ACK) }.payload(1000);
        all.extend([
            (Packet::tcp(client, vip, SYN).ip(), Decision::ForwardNew),
            (Packet::tcp(client, vip, ACK).payload(9).ip(), Decision::ForwardFlow),
            (to(8002, ACK).payload(9).ip(), Decision::ForwardStateless),
            (to(8001, SYN).ip(), Decision::DropRule),
            (to(8003, SYN).ip(), Decision::Local),
            (to(8003, ACK).payload(9).ip(), Decision::Rescued),
            (to(22, SYN).ip(), Decision::NotOurs),
            (too_big.ip(), Decision::TooBigSent),
            (tunnelled(Mark::Plain { label: 1 }), Decision::Rescued),
            (tunnelled(Mark::Rescued), Decision::Reset),
            (
                icmp(from, own_address, if v6 { 2 } else { 3 }, if v6 { 0 } else { 4 }, [0, 0, 5, 0], quote),
                Decision::ForwardIcmp,
            ),
            (icmp(from, own_address, if v6 { 128 } else { 8 }, 0, [0; 4], b"ping"), Decision::EchoAnswered),
            (
                outer(ip("10.10.0.1"), OWN4.into(), 0, Mark::Rescued, &to(8003, ACK).ip()),
                Decision::DropUntrusted,
            ),
        ]);
    }
    let fragment = Packet { fragment: 0x2000, ..Packet::udp(CLIENT4, VIP4, b"12345678") };
    let options = Packet { options: vec![1; 4], ..Packet::tcp(CLIENT4, VIP4, SYN) };
    all.push((fragment.ip(), Decision::DropFragment));
    all.push((options.ip(), Decision::DropOptions));
    all.push((Packet::udp(CLIENT4, VIP4, b"x").ip(), Decision::ForwardNew));
    all
}

#[test]
fn each_path_is_the_same_with_a_tag() {
    if !may_run("each_path_is_the_same_with_a_tag") {
        return;
    }
    let (mut plain, mut tagged) = (rig(), rig());
    for (packet, decision) in packets() {
        let without = plain.run(&incoming(&packet, false));
        let mut with = tagged.run(&incoming(&packet, true));
        assert!(without.counted.iter().any(|(_, found)| *found == decision), "{decision:?}: {without:?}");
        assert_eq!(with.frame[12..16], VLAN, "{decision:?}: the tag stays");
        with.frame.drain(12..16);
        assert_eq!(with, without, "{decision:?}");
    }
    // Cut at each byte, the one with a tag is as bad as the one without.
    let whole = incoming(&Packet::tcp(CLIENT6, VIP6, ACK).payload(9).ip(), true);
    for bytes in 18..whole.len() {
        let with = tagged.run(&whole[..bytes]);
        let without = plain.run(&[&whole[..12], &whole[16..bytes]].concat());
        assert_eq!((with.action, with.counted), (without.action, without.counted), "{bytes} bytes");
    }
}

/// A frame whose IP packet stands behind these tags.
fn behind(tags: &[[u8; 4]], packet: &[u8]) -> Vec<u8> {
    let plain = incoming(packet, false);
    [&plain[..12], &tags.concat(), &plain[12..]].concat()
}

#[test]
fn one_tag_passes_whatever_its_number_and_priority() {
    if !may_run("one_tag_passes_whatever_its_number_and_priority") {
        return;
    }
    let mut rig = rig();
    let mut client = 1;
    // A priority tag (VLAN 0), with drop eligibility, VLAN 1, the highest with the highest priority.
    for tag in [[0x81, 0, 0x60, 0], [0x81, 0, 0x10, 0], [0x81, 0, 0, 1], [0x81, 0, 0xef, 0xff]] {
        for (source, vip) in [(CLIENT4, VIP4), (CLIENT6, VIP6)] {
            let mut packet = Packet::tcp(source, vip, SYN);
            packet.source.set_port(client);
            client += 1;
            let out = rig.run(&behind(&[tag], &packet.ip()));
            assert_eq!((out.action, out.counted), (TX, vec![(VIP, Decision::ForwardNew)]), "{tag:02x?}");
            assert_eq!(out.frame[12..16], tag, "it stays as it is");
            assert_eq!(out.frame[out.frame.len() - packet.ip().len()..], packet.ip());
        }
    }
}

#[test]
fn other_tags_are_left_to_the_stack() {
    if !may_run("other_tags_are_left_to_the_stack") {
        return;
    }
    const CUSTOMER: [u8; 4] = [0x81, 0, 0, 100];
    const PRIORITY: [u8; 4] = [0x81, 0, 0x60, 0];
    const SERVICE: [u8; 4] = [0x88, 0xa8, 0, 200];
    const OLD_SERVICE: [u8; 4] = [0x91, 0, 0, 200];
    let mut rig = rig();
    let tunnelled =
        outer(ip("10.9.1.1"), OWN4.into(), 0, Mark::Rescued, &Packet::tcp(CLIENT4, VIP4, ACK).ip());
    let stacks: [&[[u8; 4]]; 7] = [
        &[SERVICE],
        &[OLD_SERVICE],
        &[SERVICE, CUSTOMER],
        &[CUSTOMER, CUSTOMER],
        &[PRIORITY, CUSTOMER],
        &[CUSTOMER, SERVICE],
        &[SERVICE, CUSTOMER, CUSTOMER],
    ];
    for tags in stacks {
        for packet in
            [Packet::tcp(CLIENT4, VIP4, SYN).ip(), Packet::tcp(CLIENT6, VIP6, SYN).ip(), tunnelled.clone()]
        {
            let frame = behind(tags, &packet);
            let out = rig.run(&frame);
            assert_eq!((out.action, out.counted), (PASS, vec![(0, Decision::NotOurs)]), "{tags:02x?}");
            assert_eq!(out.frame, frame, "untouched");
            // Cut within the tags and just behind them.
            for bytes in 14..14 + tags.len() * 4 {
                assert_eq!(rig.run(&frame[..bytes]).action, PASS, "{tags:02x?} at {bytes}");
            }
        }
    }
}
