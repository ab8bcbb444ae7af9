//! Flows of datagrams: each of them must come to the proxy that answered the first one, whatever the fleet does.

use std::io;
use std::net::UdpSocket;
use std::time::Duration;

use l4_abi::{Decision, Row};
use l4_tests::net::{VIP4, VIP6};
use l4_tests::{may_run, note};

use super::fleet::{Fleet, owner_among, vip};

const FLOWS: usize = 120;

/// Every proxy answers datagrams to the VIPs with its number.
fn answer(fleet: &Fleet) {
    for (id, host) in (1_u8..).zip(&fleet.lab.proxies) {
        for address in [VIP4, VIP6] {
            let socket = host.enter(|| UdpSocket::bind(vip(address))).expect("the VIP is on lo");
            // It ends with the process, as the socket never fails.
            host.spawn(move || {
                let mut buffer = [0; 64];
                while let Ok((_, client)) = socket.recv_from(&mut buffer) {
                    if let Err(error) = socket.send_to(&[id], client) {
                        note(&format!("proxy {id}: {error}"));
                    }
                }
            });
        }
    }
}

/// Flows that begin now, half of them over IPv6, with the proxy that answers each.
fn begin(fleet: &Fleet) -> Vec<(UdpSocket, u8)> {
    let one = |index: usize| {
        let (any, address) = if index.is_multiple_of(2) { ("0.0.0.0:0", VIP4) } else { ("[::]:0", VIP6) };
        let socket = UdpSocket::bind(any)?;
        socket.connect(vip(address))?;
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        let id = ask(&socket)?;
        Ok((socket, id))
    };
    let flows: io::Result<Vec<_>> = fleet.lab.client.enter(|| (0..FLOWS).map(one).collect());
    flows.expect("each flow is answered")
}

fn ask(socket: &UdpSocket) -> io::Result<u8> {
    let mut id = [0];
    socket.send(b"who?")?;
    socket.recv(&mut id)?;
    Ok(id[0])
}

/// How many of the flows another proxy answers now.
fn moved(flows: &[(UdpSocket, u8)]) -> usize {
    flows.iter().filter(|(socket, id)| ask(socket).expect("an answer") != *id).count()
}

/// Proxy 3 of three is drained, and a box goes: what it remembered is lost.
fn drain_and_lose_a_box(fleet: &mut Fleet, second_chance: bool) {
    fleet.publish(|row| {
        let current = owner_among(row, 2);
        Row { current, previous: if second_chance { owner_among(row, 3) } else { current } }
    });
    fleet.lab.route_vips(&fleet.lab.boxes[1..]);
}

#[test]
fn datagrams_stay_with_their_proxy_through_a_drain_and_a_lost_box() {
    if !may_run("datagrams_stay_with_their_proxy_through_a_drain_and_a_lost_box") {
        return;
    }
    let mut fleet = Fleet::new(3);
    answer(&fleet);
    let old = begin(&fleet);
    assert!(old.iter().any(|(_, id)| *id == 3), "proxy 3 has a share");
    assert_eq!(fleet.at_proxies(Decision::Rescued), 0, "nobody is asked while rows have one owner");
    drain_and_lose_a_box(&mut fleet, true);
    assert_eq!(moved(&old), 0);
    let (asked, found) = (fleet.at_proxies(Decision::Rescued), fleet.at_proxies(Decision::RescueArrived));
    assert!(asked > 0 && found > 0, "the second chance was needed: {asked} {found}");
    assert_eq!(fleet.at_proxies(Decision::Returned), asked - found);

    // New flows begin elsewhere, though proxy 3 is asked for those of its rows, and stay there.
    let new = begin(&fleet);
    assert!(new.iter().all(|(_, id)| *id < 3), "a drained proxy gets no new flow");
    let returned = fleet.at_proxies(Decision::Returned);
    assert!(returned > 0, "it was asked");
    assert_eq!(moved(&new) + moved(&old), 0);
    assert_eq!(fleet.at_proxies(Decision::Returned), returned, "each new flow is asked for once");
    note(&format!(
        "0 of {} flows moved; {found} datagrams by second chance, {returned} asked in vain",
        2 * FLOWS
    ));
}

/// The guard's own guard.
#[test]
fn datagrams_move_without_a_second_chance() {
    if !may_run("datagrams_move_without_a_second_chance") {
        return;
    }
    let mut fleet = Fleet::new(3);
    answer(&fleet);
    let old = begin(&fleet);
    drain_and_lose_a_box(&mut fleet, false);
    // A third of the rows moved, half of the flows lost their box: a sixth of 120 is 20.
    let moved = moved(&old);
    assert!((5..45).contains(&moved), "{moved}");
}
