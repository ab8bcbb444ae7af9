//! One way through the fleet: transfers, path MTU, a replaced program.

use l4_abi::{Decision, TCP, VIP_GUE};
use l4_tests::net::ip;
use l4_tests::transfer::{Kind, finish};
use l4_tests::{Pins, may_run, note};

use super::fleet::{Fleet, PORT, attach, load, options};

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
fn transfers_go_in_udp_where_the_vip_says_so() {
    if !may_run("transfers_go_in_udp_where_the_vip_says_so") {
        return;
    }
    let mut fleet = Fleet::new(3);
    fleet.set_vips(TCP, PORT, VIP_GUE);
    let transfers = fleet.start(48);
    let broken = finish(transfers);
    assert_eq!(broken.count, 0, "{broken:?}");
    let (boxes, owners) = fleet.spread();
    assert!(boxes.iter().chain(&owners).all(|packets| *packets > 100), "{boxes:?} {owners:?}");
    assert!(fleet.at_proxies(Decision::Decapsulated) >= owners.iter().sum::<u64>());
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
    assert_eq!(maps.vips().expect("a read").len(), 4, "TCP and UDP, both families");
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
