//! SYN cookies on single frames: what a box answers. That a proxy takes the cookie needs a listener: e2e/cookies.rs.

use l4_abi::Decision;
use l4_load::LoadOptions;
use l4_tests::frame::{ACK, SYN, checksum, incoming};
use l4_tests::rig::{CLIENT4, CLIENT6, Rig, TX, VIP, VIP4, VIP6};
use l4_tests::{Packet, may_run};

fn rig(above: u32) -> Rig {
    Rig::with(&LoadOptions { syn_cookies_above: Some(above), ..Rig::options() })
}

/// A SYN with these TCP options, a multiple of four bytes.
fn syn(v6: bool, options: &[u8]) -> Vec<u8> {
    let (client, vip) = if v6 { (CLIENT6, VIP6) } else { (CLIENT4, VIP4) };
    let packet = Packet { payload: options.to_vec(), ..Packet::tcp(client, vip, SYN) };
    let mut ip = packet.ip();
    let doff = u8::try_from(5 + options.len() / 4).expect("at most 15") << 4;
    let at = if v6 { 52 } else { 32 };
    ip[at] = doff;
    incoming(&ip, packet.vlan)
}

/// The TCP header of an answer, whose lengths and checksums are right.
fn answered(frame: &[u8]) -> Vec<u8> {
    let ip = &frame[14..];
    let v6 = ip[0] >> 4 == 6;
    let (tcp, mut sum) = if v6 {
        assert_eq!(usize::from(u16::from_be_bytes([ip[4], ip[5]])), ip.len() - 40);
        (&ip[40..], ip[8..40].to_vec())
    } else {
        assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
        assert_eq!(checksum(&ip[..20]), 0);
        (&ip[20..], ip[12..20].to_vec())
    };
    sum.extend([0, 6, 0, 32]);
    sum.extend(tcp);
    assert_eq!(checksum(&sum), 0, "the checksum of TCP is right");
    tcp.to_vec()
}

#[test]
fn an_answer_repeats_what_the_client_offers() {
    if !may_run("an_answer_repeats_what_the_client_offers") {
        return;
    }
    let offers: [(&[u8], &[u8]); 4] = [
        (&[], &[1, 1, 1, 1, 1, 1, 1, 1]),
        (&[2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 9], &[1, 1, 4, 2, 1, 3, 3, 7]),
        (&[2, 4, 5, 180, 1, 3, 3, 2], &[1, 1, 1, 1, 1, 3, 3, 7]),
        // A length beyond the header ends the list.
        (&[4, 2, 1, 1, 3, 9, 9, 9], &[1, 1, 4, 2, 1, 1, 1, 1]),
    ];
    for v6 in [false, true] {
        let mut rig = rig(0);
        for (offer, answer) in offers {
            let outcome = rig.run(&syn(v6, offer));
            assert_eq!(
                (outcome.action, outcome.counted),
                (TX, vec![(VIP, Decision::CookieSent)]),
                "{offer:?}"
            );
            let tcp = answered(&outcome.frame);
            assert_eq!(tcp[..4], [1, 187, 0x9c, 0x40], "the ports change places");
            assert_eq!(tcp[8..14], [0, 0, 0, 2, 0x80, SYN | ACK]);
            let mss: u16 = if v6 { 1440 } else { 1460 };
            assert_eq!(tcp[20..24], [2, 4, mss.to_be_bytes()[0], mss.to_be_bytes()[1]]);
            assert_eq!(&tcp[24..], answer, "{offer:?}");
        }
    }
}

#[test]
fn cookies_hang_on_the_client_and_the_key() {
    if !may_run("cookies_hang_on_the_client_and_the_key") {
        return;
    }
    let cookie = |rig: &mut Rig, source: &str| {
        let tcp = answered(&rig.run(&Packet::tcp(source, VIP4, SYN).frame()).frame);
        u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]])
    };
    let options = LoadOptions { hash_secret: [9; 16], syn_cookies_above: Some(0), ..Rig::options() };
    let (mut one, mut other) = (rig(0), Rig::with(&options));
    let cookies = [
        cookie(&mut one, CLIENT4),
        cookie(&mut one, "198.51.100.7:40001"),
        cookie(&mut one, "198.51.100.8:40000"),
        cookie(&mut other, CLIENT4),
    ];
    let mut macs: Vec<u32> = cookies.iter().map(|cookie| cookie >> 9).collect();
    macs.sort_unstable();
    macs.dedup();
    assert_eq!(macs.len(), 4, "{cookies:?}");
}

#[test]
fn few_syns_pass_and_so_do_those_that_a_cookie_cannot_hold() {
    if !may_run("few_syns_pass_and_so_do_those_that_a_cookie_cannot_hold") {
        return;
    }
    let mut few = rig(1_000_000);
    assert_eq!(few.run(&syn(false, &[])).counted, [(VIP, Decision::ForwardNew)]);
    let mut none = rig(0);
    let small = none.run(&syn(false, &[2, 4, 1, 0]));
    assert_eq!(small.counted, [(VIP, Decision::ForwardNew)], "segments of 256 bytes");
    // A header that claims more than there is: what is not there is not offered.
    let mut short = syn(false, &[]);
    short[14 + 32] = 0xf0;
    let outcome = none.run(&short);
    assert_eq!((outcome.action, outcome.counted), (TX, vec![(VIP, Decision::CookieSent)]));
    assert_eq!(answered(&outcome.frame)[24..], [1; 8]);
}
