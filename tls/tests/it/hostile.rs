//! Bytes that no honest peer sends. Each must end in an error with a reason, an alert where TLS has one, and never
//! in a panic or in memory without bound.

use tls::{HELLO_BYTES_MAX, Session, TlsError, Version, Versions};

use crate::common::{ca, client_builder, connect, run, simple_client, simple_server};
use crate::hellos::sized;

fn hello() -> (Session, Vec<u8>, tls::ServerContext) {
    let ca = ca("root");
    let server = simple_server(&ca.leaf(&["a.com"]), None);
    let mut client = Session::client(&simple_client(&ca), "a.com").expect("client");
    let mut wire = Vec::new();
    client.write_tls(&mut wire);
    (client, wire, server)
}

/// Reads until the failure, checks that it stays, and returns it with what was left to write.
fn failure(session: &mut Session, wire: &mut [u8]) -> (TlsError, Vec<u8>) {
    let error = session.read_tls(wire).expect_err("refused");
    assert_eq!(session.read_tls(&mut [22, 3, 3]), Err(error.clone()), "the failure stays");
    assert_eq!(session.write_plain(b"x"), Err(error.clone()));
    assert_eq!(session.read_plain(&mut [0; 8]), Err(error.clone()));
    assert!(!session.send_close_notify() && !session.wants_read());
    let mut alert = Vec::new();
    session.write_tls(&mut alert);
    (error, alert)
}

#[test]
fn garbage_instead_of_a_hello() {
    let (_, _, server) = hello();
    for (garbage, reason, alert) in [
        (&b"GET / HTTP/1.1\r\nHost: a.com\r\n\r\n"[..], "tls_bad_message", 50),
        (&[0; 64], "tls_bad_message", 50),
        (&[0xff; 64], "tls_bad_message", 50),
        // SSL 2 hello.
        (&[0x80, 0x2e, 1, 3, 1, 0, 0x15, 0, 0, 0, 0x10, 1, 0], "tls_bad_message", 50),
        // Application data and an alert first.
        (&[23, 3, 3, 0, 3, 1, 2, 3], "tls_bad_message", 10),
        // A ServerHello from the client.
        (&[22, 3, 3, 0, 4, 2, 0, 0, 0], "tls_bad_message", 50),
        (&[22, 3, 3, 0, 4, 1, 0, 0, 0], "tls_bad_message", 50),
        // A record length that does not exist.
        (&[22, 3, 3, 0xff, 0xff, 1], "tls_record_too_long", 50),
    ] {
        let mut session = Session::server(&server);
        let (error, wire) = failure(&mut session, &mut garbage.to_vec());
        assert_eq!(error.reason(), reason, "{garbage:x?}: {error}");
        assert_eq!(wire, [21, 3, 3, 0, 2, 2, alert], "{garbage:x?}");
    }
}

#[test]
fn a_hello_byte_by_byte_and_cut_short() {
    let (mut client, wire, server) = hello();
    let mut session = Session::server(&server);
    for (at, byte) in wire.iter().enumerate() {
        assert!(!session.wants_write(), "silent before byte {at}");
        session.read_tls(&mut [*byte]).expect("reads");
    }
    run(&mut client, &mut session).expect("a handshake");
    for at in 0..wire.len() {
        let mut session = Session::server(&server);
        session.read_tls(&mut wire[..at].to_vec()).expect("reads");
        session.read_eof();
        assert!(session.is_handshaking() && !session.wants_write());
        assert_eq!(session.read_plain(&mut [0]), Ok(tls::Plain::Truncated));
    }
}

#[test]
fn every_byte_of_a_hello_flipped() {
    let (_, wire, server) = hello();
    let (mut refused, mut silent) = (0, 0);
    for at in 0..wire.len() {
        for flip in [0x01, 0x80] {
            let mut bad = wire.clone();
            bad[at] ^= flip;
            let mut session = Session::server(&server);
            if session.read_tls(&mut bad).is_err() {
                refused += 1;
                // rustls has no alert for a handshake message that ends in the middle of a record.
                silent += i32::from(!session.wants_write());
            }
        }
    }
    assert!(refused > 20 && silent < 3, "{refused} refused, {silent} of them without an alert");
}

#[test]
fn hellos_without_end() {
    let (_, _, server) = hello();
    // A message that claims 16 MB, in whole records and in crumbs.
    for size in [1, 50, 16_000] {
        let mut session = Session::server(&server);
        let mut record = vec![22, 3, 1];
        record.extend(sized(&vec![0; size]));
        let mut first = record.clone();
        first[5] = 1;
        let mut fed = 0;
        let error = loop {
            let mut wire = if fed == 0 && size > 4 {
                let mut first = first.clone();
                first[6] = 0xff;
                first
            } else if fed == 0 {
                first.clone()
            } else {
                vec![22, 3, 1, 0, 1, 0xff]
            };
            fed += wire.len();
            assert!(fed < 2 * HELLO_BYTES_MAX, "{size}: still reading after {fed}");
            if let Err(error) = session.read_tls(&mut wire) {
                break error;
            }
        };
        assert_eq!(error, TlsError::HelloTooLong);
        let mut alert = Vec::new();
        session.write_tls(&mut alert);
        assert_eq!(alert, [21, 3, 3, 0, 2, 2, 50]);
    }
}

#[test]
fn damage_after_the_handshake() {
    let ca = ca("root");
    let server = simple_server(&ca.leaf(&["a.com"]), None);
    let client = simple_client(&ca);
    for (case, reason) in [
        ("flipped", "tls_decrypt_failed"),
        ("repeated", "tls_decrypt_failed"),
        ("oversized", "tls_record_too_long"),
        ("plain alert", "tls_decrypt_failed"),
        ("unknown type", "tls_bad_message"),
    ] {
        let (mut c, mut s) = connect(&client, &server, "a.com");
        c.write_plain(b"first").expect("writes");
        let mut wire = Vec::new();
        c.write_tls(&mut wire);
        let mut copy = wire.clone();
        match case {
            "flipped" => *copy.last_mut().expect("a record") ^= 1,
            "repeated" => copy.extend_from_slice(&wire),
            "oversized" => copy = vec![23, 3, 3, 0x48, 0x00, 1, 2, 3],
            "plain alert" => copy = vec![21, 3, 3, 0, 2, 1, 0],
            _ => copy = vec![99, 3, 3, 0, 1, 0],
        }
        let error = s.read_tls(&mut copy).expect_err(case);
        assert_eq!(error.reason(), reason, "{case}: {error}");
        assert_eq!(s.plain(), if case == "repeated" { &b"first"[..] } else { b"" }, "what was good is kept");
        // The alert arrives encrypted and tells the other end.
        let mut alert = Vec::new();
        assert!(s.write_tls(&mut alert) > 0, "{case}");
        let told = c.read_tls(&mut alert).expect_err("a fatal alert");
        assert_eq!(told.reason(), "tls_alert_received", "{case}");
    }
}

#[test]
fn alerts_end_the_session_on_both_sides() {
    let ca = ca("root");
    let strangers = crate::common::ca("strangers");
    let server = simple_server(&ca.leaf(&["a.com"]), None);
    let mut c = Session::client(&simple_client(&strangers), "a.com").expect("client");
    let mut s = Session::server(&server);
    let cause = run(&mut c, &mut s).expect_err("an unknown CA");
    assert_eq!(cause.reason(), "tls_certificate_refused");
    let told = s.read_tls(&mut []).expect_err("the alert came");
    assert_eq!(told.reason(), "tls_alert_received");
}

#[test]
fn handshake_messages_in_crumbs_are_bounded() {
    let ca = ca("root");
    let server = simple_server(&ca.leaf(&["a.com"]), None);
    let mut client = client_builder(&ca);
    client.versions = Versions { min: Version::Tls12, max: Version::Tls12 };
    let mut client = Session::client(&client.build(None).expect("client"), "a.com").expect("client");
    let mut wire = Vec::new();
    client.write_tls(&mut wire);
    let mut session = Session::server(&server);
    session.read_tls(&mut wire).expect("a hello");
    // A ClientKeyExchange of 65,534 bytes, one byte a record.
    let message = [&[16, 0, 0xff, 0xfe][..], &[0; 65_000]].concat();
    let mut fed = 0;
    let error = message.iter().find_map(|byte| {
        fed += 6;
        session.read_tls(&mut [22, 3, 3, 0, 1, *byte]).err()
    });
    assert_eq!(error, Some(TlsError::TooManyFragments));
    assert!(fed < 100_000, "{fed}");
}
