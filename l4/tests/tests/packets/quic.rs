//! Connection ids that name a proxy, as l4-steer encodes them.

use l4_abi::{Decision, QuicConfig, ServerIdKey, UDP, VIP_QUIC};
use l4_steer::owner::OwnerId;
use l4_steer::quic_lb::{Codec, Key, Layout};
use l4_tests::rig::{CLIENT4, CLIENT6, OWNER4, Rig, TX, VIP, VIP4, VIP6, hash, ip};
use l4_tests::{Packet, may_run};

const KEY: [u8; 16] = *b"connection ids!!";
/// The proxy that the ids name; the rows belong to proxy 1.
const NAMED: u16 = 4;

/// A rig that knows ids of this layout.
fn rig(layout: &Layout, config: &QuicConfig) -> Rig {
    let mut rig = Rig::new();
    rig.vip(VIP4, UDP, VIP, VIP_QUIC);
    rig.vip(VIP6, UDP, VIP, VIP_QUIC);
    rig.maps().set_quic(VIP, layout.codepoint, config).expect("a config is taken");
    let id = layout.server_id(OwnerId::new(NAMED).expect("an id")).expect("it fits");
    let mut key = ServerIdKey {
        vip: VIP,
        config: layout.codepoint,
        bytes: layout.server_id_bytes,
        zero: [0; 2],
        id: [0; 16],
    };
    key.id[..id.as_slice().len()].copy_from_slice(id.as_slice());
    rig.maps().set_server_id(key, NAMED).expect("an id is taken");
    rig
}

/// Packets with a connection id: short header, and long header of version 1.
fn packets(id: &[u8]) -> [Vec<u8>; 2] {
    let short = [&[0x43], id, &[0xaa; 24]].concat();
    let length = u8::try_from(id.len()).expect("at most 20");
    let long = [&[0xc3, 0, 0, 0, 1, length], id, &[0], &[0xaa; 24]].concat();
    [short, long]
}

/// Where the outer IPv6 header goes to.
fn goes_to(frame: &[u8]) -> std::net::IpAddr {
    let octets: [u8; 16] = frame[14 + 24..14 + 40].try_into().expect("an IPv6 header");
    octets.into()
}

#[test]
pub(crate) fn an_id_is_stronger_than_addresses_and_rows() {
    if !may_run("an_id_is_stronger_than_addresses_and_rows") {
        return;
    }
    let plain = |server_id_bytes, nonce_bytes| {
        let layout = Layout { codepoint: 2, server_id_bytes, nonce_bytes, key: None };
        (layout, QuicConfig::plain(server_id_bytes, nonce_bytes))
    };
    let encrypted = |server_id_bytes: u8| {
        let nonce_bytes = 16 - server_id_bytes;
        let layout = Layout { codepoint: 5, server_id_bytes, nonce_bytes, key: Some(Key(KEY)) };
        (layout, QuicConfig::encrypted(&KEY, server_id_bytes))
    };
    for (layout, config) in [plain(1, 4), plain(2, 6), plain(15, 4), encrypted(2), encrypted(12)] {
        let mut rig = rig(&layout, &config);
        let codec = Codec::new(layout).expect("a layout");
        let server = layout.server_id(OwnerId::new(NAMED).expect("an id")).expect("it fits");
        for nonce in 0..20_u8 {
            let nonce = vec![nonce.wrapping_mul(37); usize::from(layout.nonce_bytes)];
            let id = codec.encode(&server, &nonce).expect("lengths fit");
            for payload in packets(id.as_slice()) {
                for (client, vip) in [(CLIENT4, VIP4), (CLIENT6, VIP6), ("203.0.113.5:9", VIP4)] {
                    let datagram = Packet::udp(client, vip, &payload);
                    let out = rig.run(&datagram.frame());
                    assert_eq!(
                        (out.action, out.counted),
                        (TX, vec![(VIP, Decision::ForwardQuic)]),
                        "{layout:?}"
                    );
                    assert_eq!(goes_to(&out.frame), ip(OWNER4));
                    assert_eq!(rig.maps().flow(hash(&datagram)).expect("a read"), None);
                }
            }
        }
    }
}

#[test]
fn an_id_that_names_nobody_is_hashed() {
    if !may_run("an_id_that_names_nobody_is_hashed") {
        return;
    }
    let layout = Layout { codepoint: 2, server_id_bytes: 2, nonce_bytes: 6, key: None };
    let mut rig = rig(&layout, &QuicConfig::plain(2, 6));
    let codec = Codec::new(layout).expect("a layout");
    let id = |number: u16| {
        let server = layout.server_id(OwnerId::new(number).expect("an id")).expect("it fits");
        codec.encode(&server, &[1; 6]).expect("lengths fit").as_slice().to_vec()
    };
    let [_, long] = packets(&id(NAMED));
    let mut long_but_short_id = long.clone();
    long_but_short_id[5] = 8;
    let mut other_codepoint = id(NAMED);
    other_codepoint[0] = 3 << 5 | 8;
    let mut unroutable = id(NAMED);
    unroutable[0] |= 7 << 5;
    let cases = [
        ("unknown server", packets(&id(9))[0].clone()),
        ("another codepoint", packets(&other_codepoint)[0].clone()),
        ("unroutable", packets(&unroutable)[0].clone()),
        ("a long header whose id is too short", long_but_short_id),
        ("cut within the id", packets(&id(NAMED))[0][..3].to_vec()),
        ("one byte", vec![0x43]),
        ("empty", Vec::new()),
    ];
    for (index, (name, payload)) in cases.into_iter().enumerate() {
        let datagram = Packet::udp(&format!("198.51.100.9:{}", 1000 + index), VIP4, &payload);
        let out = rig.run(&datagram.frame());
        assert_eq!((out.action, out.counted), (TX, vec![(VIP, Decision::ForwardNew)]), "{name}");
    }
    // Of a proxy that is down, too.
    rig.owner(NAMED, l4_abi::Owner::default());
    let datagram = Packet::udp(CLIENT4, VIP4, &packets(&id(NAMED))[0]);
    assert_eq!(rig.run(&datagram.frame()).counted, [(VIP, Decision::ForwardNew)]);
}
