//! Flows of datagrams: each of them must come to the proxy that answered the first one, whatever the fleet does.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use l4_abi::{Decision, QuicConfig, Row, ServerIdKey, Settings, UDP, VIP_HASH_ADDRESSES, VIP_QUIC};
use l4_steer::owner::OwnerId;
use l4_steer::quic_lb::{Codec, Key, Layout};
use l4_tests::net::{VIP4, VIP6, ip};
use l4_tests::{Pins, may_run, note};

use super::fleet::{Fleet, PORT, VIP, attach, load, options, owner_among, vip};

const FLOWS: usize = 120;

/// Every proxy answers datagrams to a port of the VIPs with its number.
fn answer(fleet: &Fleet, port: u16) {
    for (id, host) in (1_u8..).zip(&fleet.lab.proxies) {
        for address in [VIP4, VIP6] {
            let socket = host.enter(|| UdpSocket::bind((vip(address).ip(), port))).expect("the VIP is on lo");
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
        let socket = connected(any, vip(address))?;
        let id = ask(&socket)?;
        Ok((socket, id))
    };
    let flows: io::Result<Vec<_>> = fleet.lab.client.enter(|| (0..FLOWS).map(one).collect());
    flows.expect("each flow is answered")
}

fn connected(from: impl ToSocketAddrs, to: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(from)?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    Ok(socket)
}

fn ask(socket: &UdpSocket) -> io::Result<u8> {
    say(socket, b"who?")
}

/// Sends a datagram and says which proxy answers.
fn say(socket: &UdpSocket, what: &[u8]) -> io::Result<u8> {
    let mut id = [0];
    socket.send(what)?;
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
    answer(&fleet, PORT);
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
    answer(&fleet, PORT);
    let old = begin(&fleet);
    drain_and_lose_a_box(&mut fleet, false);
    // A third of the rows moved, half of the flows lost their box: a sixth of 120 is 20.
    let moved = moved(&old);
    assert!((5..45).contains(&moved), "{moved}");
}

/// Any lost datagram is an answer that does not come.
#[test]
fn a_replaced_program_loses_no_packet() {
    if !may_run("a_replaced_program_loses_no_packet") {
        return;
    }
    const REPLACEMENTS: usize = 12;
    let pins = Pins::new();
    let fleet = Fleet::with(3, 1600, Some(pins.path()));
    answer(&fleet, PORT);
    let stop = AtomicBool::new(false);
    let (asked, lost) = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let flows = begin(&fleet);
            let (mut asked, mut lost) = (0, 0);
            while !stop.load(Ordering::Relaxed) {
                for (socket, id) in &flows {
                    asked += 1;
                    lost += usize::from(!ask(socket).is_ok_and(|answered| answered == *id));
                }
            }
            (asked, lost)
        });
        for index in 0..REPLACEMENTS {
            let host = &fleet.lab.boxes[index % fleet.lab.boxes.len()];
            let mut program = load(&options(host, 1600, Some(pins.path().join(host.router_end()))));
            assert!(host.enter(|| attach(&mut program, "e0")).replaced);
        }
        stop.store(true, Ordering::Relaxed);
        asking.join().expect("no panic")
    });
    note(&format!("{lost} of {asked} datagrams lost by {REPLACEMENTS} replacements"));
    assert_eq!(lost, 0);
    assert!(asked > 1000, "{asked}");
}

/// A client's address changes with each datagram; the id in it does not.
#[test]
fn connection_ids_find_their_proxy_from_any_address() {
    if !may_run("connection_ids_find_their_proxy_from_any_address") {
        return;
    }
    let mut fleet = Fleet::new(3);
    answer(&fleet, PORT);
    fleet.set_vips(UDP, PORT, VIP_QUIC);
    let plain = Layout { codepoint: 1, server_id_bytes: 2, nonce_bytes: 6, key: None };
    let encrypted = Layout { codepoint: 4, server_id_bytes: 8, nonce_bytes: 8, key: Some(Key([5; 16])) };
    let server = |layout: &Layout, id| layout.server_id(OwnerId::new(id).expect("an id")).expect("it fits");
    for maps in fleet.maps() {
        maps.set_quic(VIP, 1, &QuicConfig::plain(2, 6)).expect("a config is taken");
        maps.set_quic(VIP, 4, &QuicConfig::encrypted(&[5; 16], 8)).expect("a config is taken");
        for (layout, id) in
            [&plain, &encrypted].into_iter().flat_map(|layout| [(layout, 1), (layout, 2), (layout, 3)])
        {
            let bytes = layout.server_id_bytes;
            let mut key =
                ServerIdKey { vip: VIP, config: layout.codepoint, bytes, zero: [0; 2], id: [0; 16] };
            let name = server(layout, id);
            key.id[..name.as_slice().len()].copy_from_slice(name.as_slice());
            maps.set_server_id(key, id).expect("an id is taken");
        }
    }
    let mut sent = 0;
    for active in [3, 2] {
        // Rows do not matter, nor that proxy 3 has none any more.
        fleet.publish(|row| Row { current: owner_among(row, active), previous: owner_among(row, 3) });
        for layout in [plain, encrypted] {
            let codec = Codec::new(layout).expect("a layout");
            for (id, nonce) in (1_u8..=3).flat_map(|id| (0..8_u8).map(move |nonce| (id, nonce))) {
                let nonce = vec![nonce * 31; usize::from(layout.nonce_bytes)];
                let name = codec.encode(&server(&layout, id.into()), &nonce).expect("lengths fit");
                let short = [&[0x43], name.as_slice(), &[0xaa; 24]].concat();
                for (any, address) in [("0.0.0.0:0", VIP4), ("[::]:0", VIP6)] {
                    let answered = fleet.lab.client.enter(|| say(&connected(any, vip(address))?, &short));
                    assert_eq!(answered.expect("an answer"), id, "{layout:?} to {address}");
                    sent += 1;
                }
            }
        }
    }
    assert_eq!(fleet.at_boxes(Decision::ForwardQuic), sent);
    note(&format!("{sent} datagrams from as many ports, each at the proxy that its connection id names"));
}

/// Datagrams of three packets each, from eight addresses of a family.
#[test]
fn fragments_come_together_at_one_proxy() {
    if !may_run("fragments_come_together_at_one_proxy") {
        return;
    }
    const ANY_PORT: u16 = 5353;
    let mut fleet = Fleet::new(3);
    answer(&fleet, ANY_PORT);
    fleet.set_vips(UDP, 0, VIP_HASH_ADDRESSES);
    for maps in fleet.maps() {
        maps.set_settings(Settings { trace_one_in: 0, any_port: 1 }).expect("a setting is taken");
    }
    let mut proxies = [false; 4];
    for host in 10..18 {
        let (four, six) = (format!("10.1.1.{host}"), format!("fd00:1:1::{host}"));
        ip(Some(&fleet.lab.client), &format!("addr add {four}/24 dev e0\naddr add {six}/64 dev e0 nodad\n"));
        for (from, address) in [(four, VIP4), (six, VIP6)] {
            let ids: io::Result<Vec<u8>> = fleet.lab.client.enter(|| {
                (0..3)
                    .map(|_| {
                        let from: std::net::IpAddr = from.parse().map_err(io::Error::other)?;
                        let to = SocketAddr::new(vip(address).ip(), ANY_PORT);
                        say(&connected((from, 0), to)?, &[7; 4000])
                    })
                    .collect()
            });
            let ids = ids.expect("each is answered");
            assert!(ids.iter().all(|id| *id == ids[0]), "all ports of one client: {ids:?}");
            proxies[usize::from(ids[0])] = true;
        }
    }
    assert_eq!(proxies, [false, true, true, true], "clients are spread");
    // Two families, eight clients, three datagrams of three packets.
    assert_eq!(fleet.at_boxes(Decision::ForwardStateless), 2 * 8 * 3 * 3);
    assert_eq!(fleet.at_boxes(Decision::DropFragment), 0);
}
