//! The session's own rules: bounds, ends, and any way of cutting the byte stream.

use tls::{PLAIN_BYTES_MAX, Plain, PostQuantum, Session, Version, Versions};

use crate::common::{
    builder, ca, client_builder, connect, run, run_in_pieces, simple_client, simple_server, transfer,
};

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from(i * 7 % 251).expect("below 251")).collect()
}

/// Both protocol versions, connected.
fn pairs() -> Vec<(Session, Session)> {
    let ca = ca("root");
    let server = simple_server(&ca.leaf(&["a.com"]), None);
    [Version::Tls13, Version::Tls12]
        .map(|version| {
            let mut client = client_builder(&ca);
            client.versions = Versions { min: version, max: version };
            connect(&client.build(None).expect("client"), &server, "a.com")
        })
        .into()
}

#[test]
fn data_of_any_size_goes_both_ways() {
    for (mut c, mut s) in pairs() {
        for len in [1, 100, 16_384, 16_385, 200_000] {
            let data = bytes(len);
            assert_eq!(transfer(&mut c, &mut s, &data), data, "up {len}");
            assert_eq!(transfer(&mut s, &mut c, &data), data, "down {len}");
            c.release_buffers();
            s.release_buffers();
        }
    }
}

#[test]
fn the_stream_may_be_cut_anywhere() {
    for (mut c, mut s) in pairs() {
        let data = bytes(50_000);
        for piece in [1, 4, 5, 6, 1000, 16_383, 16_406, 16_407, 40_000] {
            assert_eq!(c.write_plain(&data).expect("writes"), data.len());
            let mut wire = Vec::new();
            c.write_tls(&mut wire);
            let mut arrived = Vec::new();
            for part in wire.chunks_mut(piece) {
                assert_eq!(s.read_tls(part).expect("reads"), part.len());
                arrived.extend_from_slice(s.plain());
                s.consume_plain(s.plain().len());
            }
            assert!(arrived == data, "pieces of {piece}");
        }
    }
}

#[test]
fn handshakes_may_be_cut_anywhere() {
    let ca = ca("root");
    let server = simple_server(&ca.leaf(&["a.com"]), None);
    for version in [Version::Tls13, Version::Tls12] {
        let mut client = client_builder(&ca);
        client.versions = Versions { min: version, max: version };
        let client = client.build(None).expect("client");
        for piece in [1, 2, 5, 7, 100] {
            let (mut c, mut s) =
                (Session::client(&client, "a.com").expect("client"), Session::server(&server));
            run_in_pieces(&mut c, &mut s, piece).expect("a handshake");
            assert!(!c.is_handshaking() && !s.is_handshaking(), "{version:?} in pieces of {piece}");
            assert_eq!(transfer(&mut c, &mut s, b"hello"), b"hello");
        }
    }
}

#[test]
fn close_notify_is_told_from_truncation() {
    for (mut c, mut s) in pairs() {
        c.write_plain(b"last words").expect("writes");
        assert!(c.send_close_notify());
        assert!(!c.send_close_notify(), "once");
        assert_eq!(c.write_plain(b"more").expect("no failure"), 0, "nothing after our close_notify");
        run(&mut c, &mut s).expect("moves");
        let mut out = [0; 4];
        assert_eq!(s.read_plain(&mut out).expect("reads"), Plain::Bytes(4));
        assert_eq!(&out, b"last");
        let mut rest = Vec::new();
        assert_eq!(s.take_plain(&mut rest).expect("reads"), Plain::Bytes(6));
        assert_eq!(rest, b" words");
        assert_eq!(s.read_plain(&mut out).expect("reads"), Plain::Closed);
        s.read_eof();
        assert_eq!(
            s.read_plain(&mut out).expect("reads"),
            Plain::Closed,
            "the transport's end changes nothing"
        );
        assert_eq!(s.read_tls(&mut bytes(100)).expect("ignored"), 100, "RFC 8446 §6.1");
        assert!(!s.wants_read());
        // The other direction is still open.
        assert_eq!(transfer(&mut s, &mut c, b"answer"), b"answer");
        assert!(s.send_close_notify());
        run(&mut c, &mut s).expect("moves");
        assert_eq!(c.read_plain(&mut out).expect("reads"), Plain::Closed);
    }
    for (mut c, mut s) in pairs() {
        c.write_plain(b"cut").expect("writes");
        run(&mut c, &mut s).expect("moves");
        s.read_eof();
        let mut out = [0; 16];
        assert_eq!(s.read_plain(&mut out).expect("reads"), Plain::Bytes(3));
        assert_eq!(s.read_plain(&mut out).expect("reads"), Plain::Truncated);
    }
}

#[test]
fn buffers_are_bounded_both_ways() {
    for (mut c, mut s) in pairs() {
        let data = bytes(40_000);
        let mut sent = 0;
        loop {
            match c.write_plain(&data).expect("writes") {
                0 => break,
                taken => sent += taken,
            }
        }
        assert!((60_000..=70_000).contains(&sent), "{sent}");
        let mut wire = Vec::new();
        c.write_tls(&mut wire);
        assert_eq!(s.read_tls(&mut wire).expect("reads"), wire.len());
        c.write_plain(&data).expect("writes");
        wire.clear();
        c.write_tls(&mut wire);
        s.read_tls(&mut wire).expect("reads");
        assert!(s.plain().len() >= PLAIN_BYTES_MAX);
        c.write_plain(b"later").expect("writes");
        wire.clear();
        c.write_tls(&mut wire);
        assert_eq!(s.read_tls(&mut wire).expect("refuses"), 0, "full");
        let waiting = s.plain().len();
        s.consume_plain(waiting);
        assert_eq!(s.read_tls(&mut wire).expect("reads"), wire.len(), "and takes it once there is room");
        assert_eq!(s.plain(), b"later");
    }
}

#[test]
fn nothing_is_written_before_the_handshake() {
    let ca = ca("root");
    let server = simple_server(&ca.leaf(&["a.com"]), None);
    let (mut c, mut s) =
        (Session::client(&simple_client(&ca), "a.com").expect("client"), Session::server(&server));
    assert_eq!(c.write_plain(b"early").expect("no failure"), 0);
    assert_eq!(s.write_plain(b"early").expect("no failure"), 0);
    assert!(!c.send_close_notify() && !s.send_close_notify());
    assert!(c.is_handshaking() && s.is_handshaking() && s.handshake().is_none() && s.version().is_none());
    run(&mut c, &mut s).expect("a handshake all the same");
    assert_eq!(transfer(&mut s, &mut c, b"now"), b"now");
}

#[test]
fn the_hybrid_group_never_costs_a_round_trip() {
    let ca = ca("root");
    let leaf = ca.leaf(&["a.com"]);
    let mut off = builder();
    off.post_quantum = PostQuantum::Off;
    off.certificate(&leaf.certified()).expect("good");
    let (offering, off) = (simple_server(&leaf, None), off.build(None).expect("context"));
    for (wanted, server, group) in [
        (PostQuantum::Offer, &offering, "X25519MLKEM768"),
        (PostQuantum::Offer, &off, "X25519"),
        (PostQuantum::Off, &offering, "X25519"),
    ] {
        let mut client = client_builder(&ca);
        client.post_quantum = wanted;
        let (c, s) = connect(&client.build(None).expect("client"), server, "a.com");
        assert_eq!(s.group(), Some(group));
        assert_eq!(s.handshake(), Some(tls::Handshake::Full), "no HelloRetryRequest");
        assert_eq!(c.handshake(), Some(tls::Handshake::Full));
    }
}

#[test]
fn contexts_and_sessions_move_between_threads() {
    fn is_send<T: Send>() {}
    is_send::<tls::ServerContext>();
    is_send::<tls::ClientContext>();
    is_send::<tls::TicketKeys>();
    is_send::<Session>();
}
