//! Client to owner: flow table, rows, both families, both encapsulations, what is remembered.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use l4_abi::{Decision, Owner, Row, TCP, UDP, VIP_GUE, hash};
use l4_load::LoadOptions;
use l4_tests::frame::{ACK, Mark, SYN, gue, outer, outer_of, returned};
use l4_tests::rig::{
    CLIENT4, CLIENT6, DROP, LOCAL, OWN4, OWN6, OWNER1, OWNER2, OWNER4, PASS, Rig, TX, VIP, VIP4, VIP6,
    hash as flow_hash, ip,
};
use l4_tests::{Packet, may_run};

/// The frame that carries `packet` in IPv4 to `owner`.
fn to_owner4(owner: &str, packet: &Packet) -> Vec<u8> {
    let inner = packet.ip();
    returned(&outer(OWN4.into(), ip(owner), packet.tos, Mark::Plain { label: 0 }, &inner), packet.vlan)
}

/// The same in IPv6; the flow label is the hash's.
fn to_owner6(owner: &str, packet: &Packet) -> Vec<u8> {
    let label = u32::try_from(flow_hash(packet) & 0xf_ffff).expect("20 bits");
    let inner = packet.ip();
    returned(&outer(OWN6.into(), ip(owner), packet.tos, Mark::Plain { label }, &inner), packet.vlan)
}

#[test]
fn what_is_not_for_a_vip_is_passed_untouched() {
    if !may_run("what_is_not_for_a_vip_is_passed_untouched") {
        return;
    }
    let mut rig = Rig::new();
    let packets = [
        Packet::tcp(CLIENT4, "192.0.2.10:80", SYN),
        Packet::tcp(CLIENT4, "192.0.2.11:443", SYN),
        Packet::tcp(CLIENT6, "[2001:db8::10]:80", SYN),
        Packet::udp(CLIENT6, "[2001:db8::11]:443", b"x"),
    ];
    for frame in packets.iter().map(Packet::frame).chain([arp()]) {
        let out = rig.run(&frame);
        assert_eq!((out.action, &out.counted), (PASS, &vec![(0, Decision::NotOurs)]));
        assert_eq!(out.frame, frame);
    }
}

fn arp() -> Vec<u8> {
    let mut frame = vec![0xff; 12];
    frame.extend([0x08, 0x06]);
    frame.extend([0; 46]);
    frame
}

#[test]
pub(crate) fn a_syn_is_remembered_and_its_flow_stays_with_its_owner() {
    if !may_run("a_syn_is_remembered_and_its_flow_stays_with_its_owner") {
        return;
    }
    let mut rig = Rig::new();
    for (client, vip) in [(CLIENT4, VIP4), (CLIENT6, VIP6)] {
        rig.all_rows(VIP, 1, 1, 1);
        let syn = Packet::tcp(client, vip, SYN);
        let out = rig.run(&syn.frame());
        assert_eq!((out.action, out.counted), (TX, vec![(VIP, Decision::ForwardNew)]));
        assert_eq!(out.frame, to_owner4(OWNER1, &syn));
        // The entry stands at the hash that l4-abi computes.
        let flow = rig.maps().flow(flow_hash(&syn)).expect("a read").expect("an entry");
        assert_eq!((flow.owner, flow.confirmed), (1, false));
        let age = rig.maps().flow_age(&flow).expect("a read");
        assert!(age < Duration::from_secs(2), "{age:?}");

        rig.all_rows(VIP, 2, 2, 1);
        let data = Packet::tcp(client, vip, ACK).payload(700);
        let out = rig.run(&data.frame());
        assert_eq!((out.action, out.counted), (TX, vec![(VIP, Decision::ForwardFlow)]));
        assert_eq!(out.frame, to_owner4(OWNER1, &data));
        // A new connection from the same port goes to the present owner.
        let out = rig.run(&syn.frame());
        assert_eq!((out.action, out.counted), (TX, vec![(VIP, Decision::ForwardNew)]));
        assert_eq!(out.frame, to_owner4(OWNER2, &syn));
    }
}

#[test]
fn a_flow_that_began_elsewhere_is_remembered_only_if_nobody_else_can_have_it() {
    if !may_run("a_flow_that_began_elsewhere_is_remembered_only_if_nobody_else_can_have_it") {
        return;
    }
    let mut rig = Rig::new();
    let data = Packet::tcp(CLIENT4, VIP4, ACK).payload(9);
    rig.all_rows(VIP, 2, 2, 1);
    for _ in 0..2 {
        let out = rig.run(&data.frame());
        assert_eq!((out.action, out.counted), (TX, vec![(VIP, Decision::ForwardStateless)]));
        assert_eq!(out.frame, to_owner4(OWNER2, &data));
    }
    assert_eq!(rig.maps().flow(flow_hash(&data)).expect("a read"), None);
    rig.all_rows(VIP, 3, 2, 2);
    assert_eq!(rig.run(&data.frame()).counted, [(VIP, Decision::ForwardNew)]);
    assert_eq!(rig.run(&data.frame()).counted, [(VIP, Decision::ForwardFlow)]);
}

#[test]
fn each_row_is_the_one_that_the_hash_names() {
    if !may_run("each_row_is_the_one_that_the_hash_names") {
        return;
    }
    let mut rig = Rig::new();
    let owner_of = |row: usize| u16::try_from(1 + row % 2).expect("1 or 2");
    rig.rows(VIP, 2, |row| Row { current: owner_of(row), previous: owner_of(row) });
    let mut seen = HashSet::new();
    for port in 40_000..40_040 {
        for (client, vip) in [("198.51.100.7", VIP4), ("[2001:db8:1::7]", VIP6)] {
            let syn = Packet::tcp(&format!("{client}:{port}"), vip, SYN);
            let owner = owner_of(hash::row(flow_hash(&syn)));
            seen.insert(owner);
            let address = if owner == 1 { OWNER1 } else { OWNER2 };
            assert_eq!(rig.run(&syn.frame()).frame, to_owner4(address, &syn), "port {port}");
        }
    }
    assert_eq!(seen.len(), 2);
}

#[test]
fn any_family_goes_in_any_tunnel_with_or_without_a_tag() {
    if !may_run("any_family_goes_in_any_tunnel_with_or_without_a_tag") {
        return;
    }
    let mut rig = Rig::new();
    for (client, vip) in [(CLIENT4, VIP4), (CLIENT6, VIP6)] {
        for packet in [Packet::tcp(client, vip, SYN), Packet::tcp(client, vip, SYN).vlan()] {
            rig.all_rows(VIP, 1, 1, 1);
            assert_eq!(rig.run(&packet.frame()).frame, to_owner4(OWNER1, &packet));
            rig.all_rows(VIP, 2, 4, 4);
            assert_eq!(rig.run(&packet.frame()).frame, to_owner6(OWNER4, &packet));
        }
    }
}

#[test]
fn gue_carries_the_inner_packet_behind_udp() {
    if !may_run("gue_carries_the_inner_packet_behind_udp") {
        return;
    }
    let mut rig = Rig::new();
    for (client, vip) in [(CLIENT4, VIP4), (CLIENT6, VIP6)] {
        rig.vip(vip, TCP, VIP, VIP_GUE);
        for vlan in [false, true] {
            let packet = Packet { vlan, ..Packet::tcp(client, vip, SYN).payload(100) };
            let flow = flow_hash(&packet);
            let port = 0xc000 | u16::try_from(flow >> 48 & 0x3fff).expect("14 bits");
            let label = u32::try_from(flow & 0xf_ffff).expect("20 bits");
            for (owner, own, address) in [(1, IpAddr::from(OWN4), OWNER1), (4, OWN6.into(), OWNER4)] {
                rig.all_rows(VIP, 1, owner, owner);
                let udp = gue(port, &packet.ip());
                let expected = outer_of(own, ip(address), 17, packet.tos, Mark::Plain { label }, &udp);
                assert_eq!(rig.run(&packet.frame()).frame, returned(&expected, vlan));
            }
        }
    }
}

#[test]
fn padding_behind_the_packet_stays_outside() {
    if !may_run("padding_behind_the_packet_stays_outside") {
        return;
    }
    let mut rig = Rig::new();
    let syn = Packet::tcp(CLIENT4, VIP4, SYN);
    let mut frame = syn.frame();
    frame.extend([0; 6]);
    let mut expected = to_owner4(OWNER1, &syn);
    expected.extend([0; 6]);
    assert_eq!(rig.run(&frame).frame, expected);
}

#[test]
fn a_packet_for_this_host_is_passed_as_it_is() {
    if !may_run("a_packet_for_this_host_is_passed_as_it_is") {
        return;
    }
    let mut rig = Rig::new();
    rig.all_rows(VIP, 1, LOCAL, LOCAL);
    for packet in [
        Packet::tcp(CLIENT4, VIP4, SYN),
        Packet::tcp(CLIENT4, VIP4, ACK),
        Packet::tcp(CLIENT6, VIP6, SYN).vlan(),
        Packet::udp(CLIENT6, VIP6, b"x"),
    ] {
        let out = rig.run(&packet.frame());
        assert_eq!((out.action, out.counted), (PASS, vec![(VIP, Decision::Local)]));
        assert_eq!(out.frame, packet.frame());
    }
}

#[test]
fn an_owner_that_is_down_is_passed_over() {
    if !may_run("an_owner_that_is_down_is_passed_over") {
        return;
    }
    let mut rig = Rig::new();
    let syn = Packet::tcp(CLIENT4, VIP4, SYN);
    let data = Packet::tcp(CLIENT4, VIP4, ACK);
    assert_eq!(rig.run(&syn.frame()).frame, to_owner4(OWNER1, &syn));
    rig.all_rows(VIP, 2, 2, 1);
    rig.owner(1, Owner::default());
    // The flow table still names owner 1.
    let out = rig.run(&data.frame());
    assert_eq!((out.frame, out.counted), (to_owner4(OWNER2, &data), vec![(VIP, Decision::ForwardStateless)]));
    rig.owner(2, Owner::default());
    assert_eq!(rig.run(&data.frame()).counted, [(VIP, Decision::DropNoOwner)]);
    // A VIP without a table.
    rig.vip("192.0.2.77:1", TCP, 5, 0);
    assert_eq!(
        rig.run(&Packet::tcp(CLIENT4, "192.0.2.77:1", SYN).frame()).counted,
        [(5, Decision::DropNoOwner)]
    );
}

#[test]
pub(crate) fn inserts_end_at_the_budget_and_forwarding_does_not() {
    if !may_run("inserts_end_at_the_budget_and_forwarding_does_not") {
        return;
    }
    let mut rig = Rig::with(&LoadOptions { inserts_per_cpu_per_s: 10, ..Rig::options() });
    let mut remembered = 0;
    let start = Instant::now();
    for port in 1..=400 {
        let (client, vip) = if port % 2 == 0 { ("198.51.100.9", VIP4) } else { ("[2001:db8:1::9]", VIP6) };
        let syn = Packet::tcp(&format!("{client}:{port}"), vip, SYN);
        let out = rig.run(&syn.frame());
        assert_eq!(out.frame, to_owner4(OWNER1, &syn));
        if out.counted == [(VIP, Decision::ForwardNew)] {
            remembered += 1;
        } else {
            let capped = [(VIP, Decision::ForwardStateless), (VIP, Decision::InsertCapped)];
            assert_eq!(out.counted, capped);
        }
    }
    // Ten for each begun second and each CPU that the runs moved over.
    let seconds = 1 + usize::try_from(start.elapsed().as_secs()).expect("short");
    let cpus = std::thread::available_parallelism().expect("a count").get();
    assert!((10..=10 * (seconds + 1) * cpus).contains(&remembered), "{remembered} in {seconds} s");
}

#[test]
fn a_flow_that_slept_too_long_is_forgotten() {
    if !may_run("a_flow_that_slept_too_long_is_forgotten") {
        return;
    }
    let mut rig = Rig::with(&LoadOptions { flow_idle: Duration::from_secs(1), ..Rig::options() });
    let syn = Packet::tcp(CLIENT4, VIP4, SYN);
    let data = Packet::tcp(CLIENT4, VIP4, ACK);
    rig.run(&syn.frame());
    rig.all_rows(VIP, 2, 2, 1);
    assert_eq!(rig.run(&data.frame()).counted, [(VIP, Decision::ForwardFlow)]);
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let flow = rig.maps().flow(flow_hash(&syn)).expect("a read").expect("an entry");
        if rig.maps().flow_age(&flow).expect("a read") > Duration::from_secs(1) {
            break;
        }
        assert!(Instant::now() < deadline, "the kernel's ticks do not advance");
        std::thread::yield_now();
    }
    assert_eq!(rig.run(&data.frame()).counted, [(VIP, Decision::ForwardStateless)]);
}

#[test]
fn udp_flows_are_forwarded_and_remembered_like_tcp() {
    if !may_run("udp_flows_are_forwarded_and_remembered_like_tcp") {
        return;
    }
    let mut rig = Rig::new();
    for (client, vip) in [(CLIENT4, VIP4), (CLIENT6, VIP6)] {
        rig.all_rows(VIP, 1, 1, 1);
        let datagram = Packet::udp(client, vip, b"hello");
        let out = rig.run(&datagram.frame());
        assert_eq!(
            (out.frame, out.counted),
            (to_owner4(OWNER1, &datagram), vec![(VIP, Decision::ForwardNew)])
        );
        rig.all_rows(VIP, 2, 2, 1);
        let out = rig.run(&datagram.frame());
        assert_eq!(
            (out.frame, out.counted),
            (to_owner4(OWNER1, &datagram), vec![(VIP, Decision::ForwardFlow)])
        );
    }
}

#[test]
fn a_vip_of_all_ports_yields_to_a_vip_of_one() {
    if !may_run("a_vip_of_all_ports_yields_to_a_vip_of_one") {
        return;
    }
    let mut rig = Rig::new();
    rig.vip("192.0.2.10:0", TCP, 2, 0);
    rig.all_rows(2, 1, 2, 2);
    let other = Packet::tcp(CLIENT4, "192.0.2.10:8080", SYN);
    assert_eq!(rig.run(&other.frame()).counted, [(0, Decision::NotOurs)], "the setting is off");
    rig.maps().set_settings(l4_abi::Settings { any_port: 1, trace_one_in: 0 }).expect("a setting is taken");
    assert_eq!(rig.run(&other.frame()).frame, to_owner4(OWNER2, &other));
    let exact = Packet::tcp(CLIENT4, VIP4, SYN);
    assert_eq!(rig.run(&exact.frame()).frame, to_owner4(OWNER1, &exact));
}

#[test]
fn counters_of_owners_add_up() {
    if !may_run("counters_of_owners_add_up") {
        return;
    }
    let mut rig = Rig::new();
    let data = Packet::tcp(CLIENT4, VIP4, ACK).payload(60);
    for _ in 0..3 {
        rig.run(&data.frame());
    }
    let counts = rig.maps().owner_counts(1).expect("a read");
    assert_eq!((counts.packets, counts.bytes), (3, 300));
    assert_eq!(rig.maps().vip_counts(VIP).expect("a read").forwarded_bytes, 300);
    assert_eq!(rig.maps().owner_counts(2).expect("a read").packets, 0);
}

#[test]
fn maps_give_back_what_they_took() {
    if !may_run("maps_give_back_what_they_took") {
        return;
    }
    let mut rig = Rig::new();
    let mut vips = rig.maps().vips().expect("a read");
    vips.sort_by_key(|(key, _)| *key);
    let named: Vec<_> =
        vips.iter().map(|(key, vip)| (key.address.to_string(), key.port, key.protocol, vip.id)).collect();
    let expected = [("192.0.2.10", TCP), ("192.0.2.10", UDP), ("2001:db8::10", TCP), ("2001:db8::10", UDP)];
    assert_eq!(named, expected.map(|(address, protocol)| (address.to_owned(), 443, protocol, VIP)));
    for (key, _) in vips {
        rig.maps().remove_vip(key).expect("removed");
    }
    assert_eq!(rig.maps().vips().expect("a read"), []);
    // The entry of the address is gone with its last VIP.
    let fragment = Packet { fragment: 0x2000, ..Packet::tcp(CLIENT4, VIP4, ACK) };
    assert_eq!(rig.run(&fragment.frame()).counted, [(0, Decision::NotOurs)]);
    let (version, rows) = rig.maps().table(VIP).expect("a read").expect("a table");
    assert_eq!((version, rows.len()), (1, l4_abi::TABLE_ROWS));
    assert!(rows.iter().all(|row| *row == Row { current: 1, previous: 1 }));
    assert_eq!(rig.maps().table(9).expect("a read"), None);
    assert_eq!(rig.maps().owner(1).expect("a read"), Owner::remote(ip(OWNER1)));
    assert!(rig.maps().swap_table(VIP, 2, &[]).is_err());
}

#[test]
pub(crate) fn what_finds_no_room_for_its_header_is_dropped() {
    if !may_run("what_finds_no_room_for_its_header_is_dropped") {
        return;
    }
    let small = LoadOptions { mtu_bytes: 1000, icmp_per_cpu_per_s: 1000, ..Rig::options() };
    let (mut rig, mut cookies) =
        (Rig::with(&small), Rig::with(&LoadOptions { syn_cookies_above: Some(0), ..Rig::options() }));
    for (client, vip) in [(CLIENT4, VIP4), (CLIENT6, VIP6)] {
        let packet = Packet::tcp(client, vip, SYN);
        for flags in [0, VIP_GUE] {
            rig.vip(vip, TCP, VIP, flags);
            for owner in [1, 4] {
                rig.all_rows(VIP, 1, owner, owner);
                assert_eq!(rig.run(&packet.frame()).action, TX);
                let out = rig.run_without_room(&packet.frame());
                assert_eq!((out.action, out.counted), (DROP, vec![(VIP, Decision::DropError)]), "{client}");
            }
        }
        // Nor for the answer to a large one, or for that to a SYN, which is tried to be sent on then.
        let large = Packet::tcp(client, vip, ACK).payload(1000).frame();
        let out = rig.run_without_room(&large);
        assert_eq!((out.action, out.counted), (DROP, vec![(VIP, Decision::TooBigDropped)]));
        let out = cookies.run_without_room(&packet.frame());
        assert_eq!((out.action, out.counted), (DROP, vec![(VIP, Decision::DropError)]));
        // What needs none passes.
        let other = Packet { destination: packet.source, ..packet };
        assert_eq!(rig.run_without_room(&other.frame()).counted, [(0, Decision::NotOurs)]);
    }
}
