//! The second chance of datagrams: a flow is told by the flow table of the proxy that has it.

use std::time::{Duration, Instant};

use l4_abi::{Decision, UDP, VIP_QUIC};
use l4_load::LoadOptions;
use l4_tests::frame::{Mark, incoming, outer, returned};
use l4_tests::rig::{
    CLIENT4, CLIENT6, LOCAL, OWN4, OWN6, OWNER1, OWNER4, Outcome, PASS, Rig, TX, VIP, VIP4, VIP6, ip,
};
use l4_tests::{Packet, may_run};

use crate::tunnel::{PLAIN, proxy, sent};

/// A datagram of one client, in each family.
fn datagrams() -> [Packet; 2] {
    [Packet::udp(CLIENT4, VIP4, b"a datagram"), Packet::udp(CLIENT6, VIP6, b"a datagram")]
}

/// A datagram as this proxy sends it to owner 1 (by IPv4) or 4 (by IPv6).
fn passed_on(packet: &Packet, v6: bool, mark: Mark) -> Vec<u8> {
    let (from, to) = if v6 { (OWN6.into(), ip(OWNER4)) } else { (OWN4.into(), ip(OWNER1)) };
    returned(&outer(from, to, packet.tos, mark, &packet.ip()), false)
}

#[track_caller]
fn stays(outcome: &Outcome, decision: Decision) {
    assert_eq!((outcome.action, &outcome.counted), (PASS, &vec![(VIP, decision)]));
}

#[track_caller]
fn leaves(outcome: &Outcome, decision: Decision, frame: &[u8]) {
    assert_eq!((outcome.action, &outcome.counted), (TX, &vec![(VIP, decision)]));
    assert_eq!(outcome.frame, frame);
}

#[test]
pub(crate) fn a_flow_that_this_host_had_before_a_change_goes_on_here() {
    if !may_run("a_flow_that_this_host_had_before_a_change_goes_on_here") {
        return;
    }
    for (packet, present) in datagrams().into_iter().flat_map(|packet| [(packet.clone(), 1), (packet, 4)]) {
        let mut rig = proxy();
        stays(&rig.run(&sent(&packet.ip(), false, PLAIN)), Decision::Decapsulated);
        rig.all_rows(VIP, 2, present, LOCAL);
        for v6 in [false, true] {
            // The new owner asks; or a box remembers.
            stays(&rig.run(&sent(&packet.ip(), v6, Mark::Rescued)), Decision::RescueArrived);
            stays(&rig.run(&sent(&packet.ip(), v6, PLAIN)), Decision::Decapsulated);
        }
        // Another flow is none of this host's.
        let mut other = packet.clone();
        other.source.set_port(7);
        let back = passed_on(&other, present == 4, Mark::Returned);
        leaves(&rig.run(&sent(&other.ip(), false, Mark::Rescued)), Decision::Returned, &back);
        leaves(&rig.run(&sent(&other.ip(), true, Mark::Rescued)), Decision::Returned, &back);
    }
}

#[test]
pub(crate) fn a_new_flow_is_asked_for_once_and_begins_where_it_comes_back_to() {
    if !may_run("a_new_flow_is_asked_for_once_and_begins_where_it_comes_back_to") {
        return;
    }
    for packet in datagrams() {
        for (previous, direct) in [(1, false), (4, false), (1, true)] {
            let mut rig = proxy();
            rig.all_rows(VIP, 2, LOCAL, previous);
            // From another box, or from the client itself (this host is a box too).
            let frame = if direct { packet.frame() } else { sent(&packet.ip(), false, PLAIN) };
            let here = if direct { Decision::Local } else { Decision::Decapsulated };
            let question = passed_on(&packet, previous == 4, Mark::Rescued);
            // Until an answer comes, each is a question.
            leaves(&rig.run(&frame), Decision::Rescued, &question);
            leaves(&rig.run(&frame), Decision::Rescued, &question);
            stays(&rig.run(&sent(&packet.ip(), previous == 4, Mark::Returned)), Decision::Decapsulated);
            stays(&rig.run(&frame), if direct { Decision::Local } else { here });
            // Second chances that TCP needs are counted by table; questions are not among them.
            assert_eq!(rig.maps().rescue_counts(VIP).expect("a read").rescued, 0);
        }
    }
}

#[test]
fn a_datagram_makes_two_ways_at_most() {
    if !may_run("a_datagram_makes_two_ways_at_most") {
        return;
    }
    let [packet, _] = datagrams();
    let run = |current, previous, mark| {
        let mut rig = proxy();
        rig.all_rows(VIP, 2, current, previous);
        rig.run(&sent(&packet.ip(), false, mark))
    };
    // Hosts with other tables, a previous owner that is down, no owner at all.
    for (current, previous) in [(1, 2), (1, LOCAL), (LOCAL, 1), (LOCAL, 9), (9, LOCAL), (0, 0)] {
        stays(&run(current, previous, Mark::Returned), Decision::Decapsulated);
    }
    // Asked, though by this host's table it is the present owner.
    stays(&run(LOCAL, 1, Mark::Rescued), Decision::Decapsulated);
    stays(&run(9, LOCAL, Mark::Rescued), Decision::Decapsulated);
    // A box sent it here, though by this host's table it has never owned the row.
    stays(&run(1, 2, PLAIN), Decision::Decapsulated);
    stays(&run(LOCAL, 9, PLAIN), Decision::Decapsulated);
}

#[test]
pub(crate) fn a_flood_of_new_flows_is_not_asked_for() {
    if !may_run("a_flood_of_new_flows_is_not_asked_for") {
        return;
    }
    let mut rig = Rig::with(&LoadOptions { questions_per_cpu_per_s: 0, ..Rig::options() });
    rig.maps().set_trusted(ip("10.9.0.0"), 16).expect("trusted");
    rig.all_rows(VIP, 2, LOCAL, 1);
    for packet in datagrams() {
        let capped = vec![(VIP, Decision::Decapsulated), (VIP, Decision::QuestionCapped)];
        // It is not remembered either, lest an old flow stay where its first datagram was too many.
        for _ in 0..2 {
            let out = rig.run(&sent(&packet.ip(), false, PLAIN));
            assert_eq!((out.action, &out.counted), (PASS, &capped));
        }
    }
}

#[test]
fn questions_take_nothing_from_flows_that_are_remembered() {
    if !may_run("questions_take_nothing_from_flows_that_are_remembered") {
        return;
    }
    // One flow may be remembered in a second, by all that this CPU does.
    let options =
        LoadOptions { inserts_per_cpu_per_s: 1, questions_per_cpu_per_s: 1_000_000, ..Rig::options() };
    let mut rig = Rig::with(&options);
    rig.maps().set_trusted(ip("10.9.0.0"), 16).expect("trusted");
    rig.vip("192.0.2.10:53", UDP, 2, 0);
    rig.all_rows(VIP, 2, LOCAL, 1);
    rig.all_rows(2, 2, 1, 1);
    let [packet, _] = datagrams();
    for _ in 0..50 {
        assert_eq!(rig.run(&sent(&packet.ip(), false, PLAIN)).counted, [(VIP, Decision::Rescued)]);
    }
    let new = Packet::udp(CLIENT4, "192.0.2.10:53", b"another VIP");
    assert_eq!(rig.run(&new.frame()).counted, [(2, Decision::ForwardNew)]);
    // The answers to the questions do: each begins a flow, if there is room for it.
    let returned = sent(&packet.ip(), false, Mark::Returned);
    let deadline = Instant::now() + Duration::from_secs(30);
    let capped = vec![(VIP, Decision::Decapsulated), (VIP, Decision::InsertCapped)];
    let mut other = packet.clone();
    while rig.run(&sent(&other.ip(), false, Mark::Returned)).counted != capped {
        assert!(Instant::now() < deadline, "no second sees two");
        other.source.set_port(other.source.port() + 1);
    }
    // Nor does one that is capped: the flow asks again.
    let asks = rig.run(&sent(&other.ip(), false, PLAIN));
    assert_eq!(asks.counted, [(VIP, Decision::Rescued)]);
    while rig.run(&returned).counted != [(VIP, Decision::Decapsulated)] {
        assert!(Instant::now() < deadline, "no second begins");
    }
    stays(&rig.run(&sent(&packet.ip(), false, PLAIN)), Decision::Decapsulated);
}

#[test]
fn quic_is_told_by_its_connection_ids() {
    if !may_run("quic_is_told_by_its_connection_ids") {
        return;
    }
    let mut rig = proxy();
    rig.vip(VIP4, UDP, VIP, VIP_QUIC);
    rig.all_rows(VIP, 2, LOCAL, 1);
    let [packet, _] = datagrams();
    stays(&rig.run(&sent(&packet.ip(), false, PLAIN)), Decision::Decapsulated);
    stays(&rig.run(&incoming(&packet.ip(), false)), Decision::Local);
}
