//! ICMP: errors follow the flow that they quote, "too big" is made, echo is answered.

use std::net::IpAddr;

use l4_abi::{Decision, Row, VIP_ECHO, VIP_GUE};
use l4_load::LoadOptions;
use l4_tests::frame::{ACK, Mark, SYN, checksum, icmp, incoming, outer, returned};
use l4_tests::rig::{CLIENT4, CLIENT6, DROP, OWN4, OWNER1, OWNER2, PASS, Rig, TX, VIP, VIP4, VIP6, hash, ip};
use l4_tests::{Packet, may_run};

/// What the client's side answers to a packet of the proxy: an error that quotes `quoted` bytes behind the IP header.
fn error_about(flow: &Packet, router: IpAddr, quoted: usize) -> Vec<u8> {
    let reply = Packet { source: flow.destination, destination: flow.source, ..flow.clone() };
    let (header, kind, code) = if router.is_ipv4() { (20, 3, 4) } else { (40, 2, 0) };
    icmp(router, flow.destination.ip(), kind, code, [0, 0, 5, 0], &reply.ip()[..header + quoted])
}

#[test]
pub(crate) fn errors_follow_the_flow_that_they_quote() {
    if !may_run("errors_follow_the_flow_that_they_quote") {
        return;
    }
    let mut rig = Rig::new();
    let mut owners = std::collections::HashSet::new();
    for port in 40_000..40_020 {
        for (client, vip, router) in
            [("198.51.100.7", VIP4, "203.0.113.1"), ("[2001:db8:1::7]", VIP6, "2001:db8:ff::1")]
        {
            let alternating = |row: usize| if row.is_multiple_of(2) { 1 } else { 2 };
            rig.rows(VIP, 1, |row| Row { current: alternating(row), previous: alternating(row) });
            let syn = Packet::tcp(&format!("{client}:{port}"), vip, SYN).payload(30);
            // By row, from a box that never saw the flow.
            let first = alternating(l4_abi::hash::row(hash(&syn)));
            let error = error_about(&syn, ip(router), 8);
            let expect = |owner: u16| {
                let address = if owner == 1 { OWNER1 } else { OWNER2 };
                returned(&outer(OWN4.into(), ip(address), 0, Mark::Plain { label: 0 }, &error), false)
            };
            let out = rig.run(&incoming(&error, false));
            assert_eq!((out.action, &out.counted), (TX, &vec![(VIP, Decision::ForwardIcmp)]));
            assert_eq!(out.frame, expect(first));
            assert_eq!(rig.maps().flow(hash(&syn)).expect("a read"), None, "errors are not remembered");
            // By flow table, after the row changed hands; full quotes too.
            rig.run(&syn.frame());
            rig.rows(VIP, 2, |row| Row { current: 3 - alternating(row), previous: alternating(row) });
            assert_eq!(rig.run(&incoming(&error, false)).frame, expect(first));
            let error = error_about(&syn, ip(router), 40);
            assert_eq!(rig.run(&incoming(&error, false)).counted, [(VIP, Decision::ForwardIcmp)]);
            owners.insert(first);
        }
    }
    assert_eq!(owners.len(), 2);
}

#[test]
fn errors_that_quote_nothing_of_ours_are_passed_and_made_up_ones_dropped() {
    if !may_run("errors_that_quote_nothing_of_ours_are_passed_and_made_up_ones_dropped") {
        return;
    }
    let mut rig = Rig::new();
    for (client, vip, other, router) in [
        (CLIENT4, VIP4, "192.0.2.10:80", "203.0.113.1"),
        (CLIENT6, VIP6, "[2001:db8::10]:80", "2001:db8:ff::1"),
    ] {
        let flow = Packet::tcp(client, vip, ACK).payload(30);
        let elsewhere = error_about(&Packet::tcp(client, other, ACK), ip(router), 8);
        assert_eq!(rig.run(&incoming(&elsewhere, false)).counted, [(0, Decision::NotOurs)]);
        // Seven bytes do not hold both ports and what follows.
        let short = error_about(&flow, ip(router), 7);
        assert_eq!(rig.run(&incoming(&short, false)).counted, [(0, Decision::NotOurs)]);
        // The quoted packet was not sent by the address that the error is for.
        let mut foreign = error_about(&flow, ip(router), 8);
        let quoted_source = if ip(router).is_ipv4() { 20 + 8 + 12 } else { 40 + 8 + 8 };
        foreign[quoted_source] ^= 1;
        let out = rig.run(&incoming(&foreign, false));
        assert_eq!((out.action, out.counted), (DROP, vec![(0, Decision::DropBad)]));
        // A quote cut at each byte.
        let whole = incoming(&error_about(&flow, ip(router), 8), false);
        for bytes in 34..whole.len() {
            assert_eq!(
                rig.run(&whole[..bytes]).action,
                DROP,
                "{bytes} bytes: its length contradicts the frame"
            );
        }
    }
    // The header says that the quote ends before its eight bytes do; the frame goes on.
    for (client, vip, router, length) in
        [(CLIENT4, VIP4, "203.0.113.1", 3), (CLIENT6, VIP6, "2001:db8:ff::1", 5)]
    {
        let mut padded = error_about(&Packet::tcp(client, vip, ACK), ip(router), 8);
        padded[length] -= 1;
        let out = rig.run(&incoming(&padded, false));
        assert_eq!((out.action, out.counted), (PASS, vec![(0, Decision::NotOurs)]), "{router}");
    }
    let router: IpAddr = ip("203.0.113.1");
    let redirect =
        icmp(router, ip("192.0.2.10"), 5, 1, [10, 0, 0, 1], &Packet::tcp(VIP4, CLIENT4, ACK).ip()[..28]);
    assert_eq!(rig.run(&incoming(&redirect, false)).counted, [(0, Decision::NotOurs)]);
}

#[test]
pub(crate) fn a_packet_that_does_not_fit_is_answered_with_the_size_that_does() {
    if !may_run("a_packet_that_does_not_fit_is_answered_with_the_size_that_does") {
        return;
    }
    let mut rig = Rig::with(&LoadOptions { mtu_bytes: 1500, icmp_per_cpu_per_s: 1000, ..Rig::options() });
    for (vlan, gue) in [(false, 0), (true, VIP_GUE)] {
        rig.vip(VIP4, l4_abi::TCP, VIP, gue);
        rig.vip(VIP6, l4_abi::TCP, VIP, gue);
        let overhead = if gue == 0 { 20 } else { 28 };
        for (client, vip, header, kind, code) in [(CLIENT4, VIP4, 20, 3, 4), (CLIENT6, VIP6, 40, 2, 0)] {
            let fits = 1500 - overhead;
            let packet = Packet { vlan, ..Packet::tcp(client, vip, ACK).payload(fits - header - 20) };
            assert_eq!(rig.run(&packet.frame()).action, TX);
            let packet = Packet { vlan, ..Packet::tcp(client, vip, ACK).payload(fits + 1 - header - 20) };
            let out = rig.run(&packet.frame());
            assert_eq!((out.action, out.counted), (TX, vec![(VIP, Decision::TooBigSent)]));
            let mtu = u16::try_from(fits).expect("small").to_be_bytes();
            let quote = &packet.ip()[..header + 8];
            let expected =
                icmp(packet.destination.ip(), packet.source.ip(), kind, code, [0, 0, mtu[0], mtu[1]], quote);
            assert_eq!(out.frame, returned(&expected, vlan));
        }
    }
}

#[test]
pub(crate) fn a_packet_that_may_be_fragmented_is_dropped_and_errors_are_rationed() {
    if !may_run("a_packet_that_may_be_fragmented_is_dropped_and_errors_are_rationed") {
        return;
    }
    let mut rig = Rig::with(&LoadOptions { mtu_bytes: 1500, icmp_per_cpu_per_s: 5, ..Rig::options() });
    let no_df = Packet { fragment: 0, ..Packet::tcp(CLIENT4, VIP4, ACK).payload(1460) };
    assert_eq!(rig.run(&no_df.frame()).counted, [(VIP, Decision::TooBigDropped)]);
    for (client, vip) in [(CLIENT4, VIP4), (CLIENT6, VIP6)] {
        let whole = Packet::tcp(client, vip, ACK).payload(1460).frame();
        let (mut sent, start) = (0, std::time::Instant::now());
        for _ in 0..200 {
            let out = rig.run(&whole);
            match out.counted[..] {
                [(VIP, Decision::TooBigSent)] => sent += 1,
                ref other => assert_eq!(other, [(VIP, Decision::TooBigDropped)]),
            }
        }
        // Five for each begun second and each CPU that the runs moved over; the first family may have left none.
        let seconds = 2 + usize::try_from(start.elapsed().as_secs()).expect("short");
        let cpus = std::thread::available_parallelism().expect("a count").get();
        assert!((0..=5 * seconds * cpus).contains(&sent), "{sent} of 200");
        assert!(sent > 0 || vip == VIP6);
    }
}

#[test]
pub(crate) fn echo_is_answered_where_the_config_says_so() {
    if !may_run("echo_is_answered_where_the_config_says_so") {
        return;
    }
    let mut rig = Rig::new();
    for (client, vip, any, protocol, kinds) in [
        ("198.51.100.7", "192.0.2.10", "192.0.2.10:0", 1, (8, 0)),
        ("2001:db8:1::7", "2001:db8::10", "[2001:db8::10]:0", 58, (128, 129)),
    ] {
        for body in [&b"ping"[..], &[0xff; 32], &[0; 56]] {
            let request = icmp(ip(client), ip(vip), kinds.0, 0, [1, 2, 3, 4], body);
            let out = rig.run(&incoming(&request, true));
            if body == b"ping" {
                assert_eq!((out.action, out.counted), (PASS, vec![(0, Decision::NotOurs)]));
                assert_eq!(out.frame, incoming(&request, true));
                rig.vip(any, protocol, VIP, VIP_ECHO);
            }
            let out = rig.run(&incoming(&request, true));
            assert_eq!((out.action, &out.counted), (TX, &vec![(VIP, Decision::EchoAnswered)]));
            let reply = icmp(ip(vip), ip(client), kinds.1, 0, [1, 2, 3, 4], body);
            let header = if protocol == 1 { 20 } else { 40 };
            // The answer keeps the request's TTL and DSCP, which the builder sets alike.
            assert_eq!(&out.frame[18 + header..], &reply[header..]);
            if protocol == 1 {
                assert_eq!(checksum(&out.frame[18..38]), 0);
            }
            assert_eq!(out.frame, returned(&reply, true));
        }
    }
}
