//! One way through the fleet: transfers, path MTU, a flood, a replaced program.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use l4_abi::Decision;
use l4_tests::net::{VIP4, ip};
use l4_tests::transfer::{Kind, finish};
use l4_tests::{Packet, Pins, frame, may_run, note};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::fleet::{Fleet, attach, load, options, vip};

#[test]
fn transfers_reach_all_proxies_over_both_boxes() {
    if !may_run("transfers_reach_all_proxies_over_both_boxes") {
        return;
    }
    let mut fleet = Fleet::new(3);
    let transfers = fleet.start(48);
    let broken = finish(transfers);
    assert_eq!(broken.count, 0, "{broken:?}");
    let (boxes, owners) = fleet.spread();
    note(&format!("packets by box {boxes:?}, by owner {owners:?}"));
    assert!(boxes.iter().chain(&owners).all(|packets| *packets > 100), "{boxes:?} {owners:?}");
    // One for each connection, and for each SYN that a busy machine made the client send twice.
    let new = fleet.at_boxes(Decision::ForwardNew);
    assert!((48..60).contains(&new), "{new}");
    assert_eq!(fleet.at_boxes(Decision::ForwardStateless), 0);
    assert!(fleet.at_proxies(Decision::Decapsulated) > 0);
    assert_eq!(fleet.at_proxies(Decision::Rescued) + fleet.at_proxies(Decision::Reset), 0);
}

#[test]
fn frag_needed_reaches_the_owner_of_the_flow() {
    if !may_run("frag_needed_reaches_the_owner_of_the_flow") {
        return;
    }
    let mut fleet = Fleet::new(3);
    // Towards the client only 1,380 bytes fit, which neither end knows. (A veth drops longer packets on the way in too:
    // no uploads here.)
    let far = fleet.lab.client.router_end();
    // All errors go to one address, the VIP's; the router's ration for it would stretch the test.
    fleet.lab.router.sysctl("net/ipv4/icmp_ratelimit", "0");
    fleet.lab.router.sysctl("net/ipv6/icmp/ratelimit", "0");
    ip(Some(&fleet.lab.router), &format!("link set {far} mtu 1380\n"));
    let broken = finish(fleet.start_each(24, |_| Kind::Download));
    assert_eq!(broken.count, 0, "{broken:?}");
    let forwarded = fleet.at_boxes(Decision::ForwardIcmp);
    note(&format!("{forwarded} errors followed the flow that they quote"));
    assert!(forwarded >= 10, "each download needs one: {forwarded}");
}

#[test]
fn uploads_learn_what_fits_where_the_outer_header_does_not() {
    if !may_run("uploads_learn_what_fits_where_the_outer_header_does_not") {
        return;
    }
    // The program believes that links to the owners carry 1,500 bytes, as a fleet without larger frames has them.
    let mut fleet = Fleet::with(3, 1500, None);
    let broken = finish(fleet.start(24));
    assert_eq!(broken.count, 0, "{broken:?}");
    assert!(fleet.at_boxes(Decision::TooBigSent) >= 10, "each upload is told");
}

#[test]
fn a_flood_leaves_transfers_alive() {
    if !may_run("a_flood_leaves_transfers_alive") {
        return;
    }
    let mut fleet = Fleet::new(3);
    let transfers = fleet.start(48);
    let before = fleet.at_boxes(Decision::ForwardFlow);
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let broken = std::thread::scope(|scope| {
        scope.spawn(|| fleet.lab.client.enter(|| flood(&stop, &sent)));
        // Ten times as many packets as the flow tables hold, before the transfers go on.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while sent.load(Ordering::Relaxed) < 2 * 8192 * 10 {
            assert!(std::time::Instant::now() < deadline, "the flood does not flow");
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
        "flood of {} SYNs ({new} remembered, {stateless} beyond the budget); {useful} packets of transfers by flow table",
        sent.load(Ordering::Relaxed)
    ));
    assert_eq!(broken.count, 0, "{broken:?}");
    assert!(useful > 1000, "confirmed flows are not replaced by the flood: {useful}");
}

/// SYNs from made-up clients, as fast as one thread can, until told to stop.
fn flood(stop: &AtomicBool, sent: &AtomicU64) {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP)).expect("root may");
    socket.set_header_included_v4(true).expect("a raw socket");
    let to = SockAddr::from(vip(VIP4));
    let mut round = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        let [_, a, b, c] = round.to_be_bytes();
        round = round.wrapping_add(1);
        let source = SocketAddr::from(([172, 16 + a % 16, b, c], 1024));
        let packet = Packet { source, ..Packet::tcp("1.1.1.1:1", &format!("{VIP4}:80"), frame::SYN) };
        // A full queue drops the packet: no fault of a flood.
        if socket.send_to(&packet.ip(), &to).is_ok() {
            sent.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_restart_and_a_new_program_lose_nothing() {
    if !may_run("a_restart_and_a_new_program_lose_nothing") {
        return;
    }
    let pins = Pins::new();
    let mut fleet = Fleet::with(3, 1600, Some(pins.path()));
    let transfers = fleet.start(40);
    let remembered = fleet.at_boxes(Decision::ForwardNew);
    // The daemons end: links and maps are pinned, so that packets are still forwarded.
    fleet.boxes().clear();
    let more = fleet.start(40);
    let folders: Vec<_> = fleet.lab.boxes.iter().map(|host| pins.path().join(host.router_end())).collect();
    let maps = l4_load::Maps::open(&folders[0]).expect("pinned maps");
    assert_eq!(maps.vips().expect("a read").len(), 2);
    assert_eq!(l4_load::attached(&folders[0]).expect("a read"), ["e0"]);
    let broken = std::thread::scope(|scope| {
        let finishing = scope.spawn(move || finish(transfers.into_iter().chain(more).collect()));
        // New programs take over again and again while packets flow.
        let mut replaced = 0;
        while !finishing.is_finished() || replaced < 4 {
            for (host, folder) in fleet.lab.boxes.iter().zip(&folders) {
                let mut program = load(&options(host, 1600, Some(folder.clone())));
                assert!(host.enter(|| attach(&mut program, "e0")).replaced);
                replaced += 1;
            }
        }
        note(&format!("{replaced} replacements under traffic"));
        finishing.join().expect("no panic")
    });
    assert_eq!(broken.count, 0, "{broken:?}");
    let hosts = fleet.lab.boxes.clone();
    for (host, folder) in hosts.iter().zip(&folders) {
        let program = load(&options(host, 1600, Some(folder.clone())));
        fleet.boxes().push(program);
    }
    // Counters outlived the programs; and so did flows, or each of the 80 would have been remembered once more. Some
    // room is for SYNs that a busy machine made the client send twice.
    let new = fleet.at_boxes(Decision::ForwardNew) - remembered;
    assert!((40..80).contains(&new), "{new} flows remembered for 40 new ones");
    assert_eq!(fleet.at_boxes(Decision::ForwardStateless), 0);
    for (host, folder) in fleet.lab.boxes.iter().zip(&folders) {
        assert!(host.enter(|| l4_load::detach(folder, "e0")).expect("detached"));
        assert!(!l4_load::detach(folder, "e0").expect("it is gone"));
    }
}
