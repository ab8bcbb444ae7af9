//! Drop rules, and the sampled trace.

use std::time::{Duration, Instant};

use l4_abi::{Decision, Rule, Settings, TCP, VIP_RULES, unmapped};
use l4_load::monotonic_ns;
use l4_tests::frame::{ACK, SYN};
use l4_tests::rig::{CLIENT4, CLIENT6, DROP, LOCAL, Rig, TX, VIP, VIP4, VIP6, hash, ip};
use l4_tests::{Packet, may_run};

#[test]
pub(crate) fn a_rule_drops_its_prefix_for_its_vip_until_it_ends() {
    if !may_run("a_rule_drops_its_prefix_for_its_vip_until_it_ends") {
        return;
    }
    let mut rig = Rig::new();
    for (client, outside, vip, other, prefix, bits) in [
        (CLIENT4, "198.51.101.7:1", VIP4, "192.0.2.11:443", "198.51.100.0", 24),
        (CLIENT6, "[2001:db8:2::7]:1", VIP6, "[2001:db8::11]:443", "2001:db8:1::", 48),
    ] {
        let syn = Packet::tcp(client, vip, SYN).frame();
        rig.maps().set_rule(VIP, ip(prefix), bits, Rule::default()).expect("a rule is taken");
        rig.vip(vip, TCP, VIP, 0);
        assert_eq!(rig.run(&syn).action, TX, "the VIP does not look rules up");
        rig.vip(vip, TCP, VIP, VIP_RULES);
        let out = rig.run(&syn);
        assert_eq!((out.action, out.counted), (DROP, vec![(VIP, Decision::DropRule)]));
        let established = rig.run(&Packet::tcp(client, vip, ACK).frame());
        assert_eq!(established.counted, [(VIP, Decision::DropRule)], "rules hold for all packets");
        assert_eq!(rig.run(&Packet::tcp(outside, vip, SYN).frame()).action, TX);
        rig.vip(other, TCP, 2, VIP_RULES);
        rig.all_rows(2, 1, 1, 1);
        assert_eq!(rig.run(&Packet::tcp(client, other, SYN).frame()).action, TX, "another VIP");

        let soon = Rule { expires_ns: monotonic_ns() + 200_000_000, ..Rule::default() };
        rig.maps().set_rule(VIP, ip(prefix), bits, soon).expect("a rule is taken");
        assert_eq!(rig.run(&syn).counted, [(VIP, Decision::DropRule)]);
        let deadline = Instant::now() + Duration::from_secs(10);
        while monotonic_ns() < soon.expires_ns {
            assert!(Instant::now() < deadline, "the clock does not advance");
            std::thread::yield_now();
        }
        let out = rig.run(&syn);
        assert!(out.counted.contains(&(VIP, Decision::RuleExpired)) && out.action == TX, "{out:?}");
        let rules = rig.maps().rules().expect("a read");
        let (key, rule) =
            rules.iter().find(|(key, _)| unmapped(key.address) == ip(prefix)).expect("the rule");
        assert_eq!((key.vip, rule.dropped), (VIP, 1));
        rig.maps().remove_rule(VIP, ip(prefix), bits).expect("removed");
        assert_eq!(rig.run(&syn).counted.len(), 1);
    }
    assert_eq!(rig.maps().rules().expect("a read"), []);
}

#[test]
fn a_rule_with_a_rate_lets_that_much_pass() {
    if !may_run("a_rule_with_a_rate_lets_that_much_pass") {
        return;
    }
    let mut rig = Rig::new();
    rig.vip(VIP4, TCP, VIP, VIP_RULES);
    let rule = Rule { packets_per_s: 20, ..Rule::default() };
    rig.maps().set_rule(VIP, ip("198.51.100.0"), 24, rule).expect("a rule is taken");
    let packet = Packet::tcp(CLIENT4, VIP4, ACK).frame();
    let start = Instant::now();
    let passed = (0..400).filter(|_| rig.run(&packet).action == TX).count();
    let seconds = usize::try_from(start.elapsed().as_secs()).expect("short") + 2;
    assert!((20..=20 * seconds).contains(&passed), "{passed} in less than {seconds} s");
}

#[test]
fn a_long_prefix_is_stronger_than_a_short_one() {
    if !may_run("a_long_prefix_is_stronger_than_a_short_one") {
        return;
    }
    let mut rig = Rig::new();
    rig.vip(VIP4, TCP, VIP, VIP_RULES);
    rig.maps().set_rule(VIP, ip("0.0.0.0"), 0, Rule::default()).expect("a rule is taken");
    let generous = Rule { packets_per_s: 1_000_000, ..Rule::default() };
    rig.maps().set_rule(VIP, ip("198.51.100.7"), 32, generous).expect("a rule is taken");
    assert_eq!(rig.run(&Packet::tcp(CLIENT4, VIP4, SYN).frame()).action, TX);
    assert_eq!(rig.run(&Packet::tcp("198.51.100.8:1", VIP4, SYN).frame()).action, DROP);
}

#[test]
fn decisions_are_sampled_when_the_trace_is_on() {
    if !may_run("decisions_are_sampled_when_the_trace_is_on") {
        return;
    }
    let mut rig = Rig::new();
    let packet = Packet::tcp(CLIENT6, VIP6, SYN).payload(10);
    rig.run(&packet.frame());
    assert_eq!(rig.maps().trace(|_| {}), 0, "off by default");
    rig.maps().set_settings(Settings { trace_one_in: 1, any_port: 0 }).expect("a setting is taken");
    rig.run(&packet.frame());
    rig.all_rows(VIP, 2, LOCAL, LOCAL);
    let other = Packet::tcp(CLIENT4, VIP4, SYN);
    rig.run(&other.frame());
    let mut events = Vec::new();
    assert_eq!(rig.maps().trace(|event| events.push(*event)), 2);
    let ([first, second], []) = events.split_first_chunk::<2>().expect("two events") else {
        unreachable!("two were counted")
    };
    assert_eq!(first.decision, u16::try_from(Decision::ForwardNew as u32).expect("small"));
    assert_eq!((first.vip, first.owner, first.flow), (VIP, 1, hash(&packet)));
    assert_eq!(
        (unmapped(first.source), unmapped(first.destination)),
        (packet.source.ip(), packet.destination.ip())
    );
    assert_eq!(u16::from_be_bytes(first.source_port), packet.source.port());
    assert_eq!(u16::from_be_bytes(first.destination_port), 443);
    assert_eq!((first.protocol, usize::from(first.packet_bytes)), (TCP, packet.ip().len()));
    assert!(first.time_ns <= second.time_ns && second.time_ns <= monotonic_ns());
    assert_eq!(second.decision, u16::try_from(Decision::Local as u32).expect("small"));
    assert_eq!(unmapped(second.source), other.source.ip());
    rig.maps().set_settings(Settings { trace_one_in: 1_000_000, any_port: 0 }).expect("a setting is taken");
    for _ in 0..50 {
        rig.run(&other.frame());
    }
    assert_eq!(rig.maps().trace(|_| {}), 0, "one in a million");
}

/// More keys than one bucket holds, and removals in between: each VIP that is there is found, no other.
#[test]
fn vips_are_found_in_full_buckets() {
    if !may_run("vips_are_found_in_full_buckets") {
        return;
    }
    let mut rig = Rig::new();
    // Ports whose keys share one bucket.
    let bucket = |port| l4_abi::Vip4Key::new([192, 0, 2, 50].into(), port, TCP).bucket();
    let wanted = bucket(1);
    let ports: Vec<u16> = (1..=u16::MAX).filter(|port| bucket(*port) == wanted).take(11).collect();
    assert!(ports.len() > 8, "{ports:?}");
    rig.all_rows(3, 1, LOCAL, LOCAL);
    let key = |port| l4_load::VipKey { address: ip("192.0.2.50"), port, protocol: TCP };
    let mut there = Vec::new();
    let check = |rig: &mut Rig, there: &[u16]| {
        for port in &ports {
            let out = rig.run(&Packet::tcp(CLIENT4, &format!("192.0.2.50:{port}"), SYN).frame());
            let expected = if there.contains(port) { (3, Decision::Local) } else { (0, Decision::NotOurs) };
            assert_eq!(out.counted, [expected], "port {port} of {there:?}");
        }
    };
    for port in &ports {
        rig.maps().set_vip(key(*port), l4_abi::Vip { id: 3, flags: 0 }).expect("a VIP is taken");
        there.push(*port);
        check(&mut rig, &there);
    }
    for index in [0, 4, 1, 7, 3, 2, 0, 2, 1, 0, 0] {
        let port = there.remove(index);
        rig.maps().remove_vip(key(port)).expect("removed");
        check(&mut rig, &there);
    }
}
