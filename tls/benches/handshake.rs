//! Server-side CPU of handshakes and records: `cargo bench -p tls`. One core, no socket; the client's share of the
//! work is left out. Figures to compare within one run on one machine only.
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::time::{Duration, Instant};

use tls::{Handshake, PostQuantum, ServerContext, Session, TicketKeys, Version, Versions};

use crate::common::{ECDSA, RSA, ca, client_builder, connect, simple_server};

#[path = "../tests/it/common.rs"]
#[expect(dead_code, reason = "shared with the tests, which use all of it")]
mod common;

const ROUNDS: u32 = 2_000;

/// Time that the server spends in one handshake, and how it came about.
fn server_share(client: &tls::ClientContext, server: &ServerContext) -> (Duration, Option<Handshake>) {
    let mut spent = Duration::ZERO;
    let mut c = Session::client(client, "a.com").expect("client");
    let mut s = Session::server(server);
    let mut wire = Vec::new();
    loop {
        wire.clear();
        c.write_tls(&mut wire);
        let start = Instant::now();
        s.read_tls(&mut wire).expect("reads");
        wire.clear();
        let written = s.write_tls(&mut wire);
        spent += start.elapsed();
        c.read_tls(&mut wire).expect("reads");
        if written == 0 && !c.wants_write() {
            return (spent, s.handshake());
        }
    }
}

fn main() {
    let root = ca("root");
    let keys = || TicketKeys::generate().expect("keys");
    for (name, algorithm, version, post_quantum, names) in [
        ("full, P-256, TLS 1.3", ECDSA, Version::Tls13, PostQuantum::Off, 0),
        ("full, P-256, TLS 1.3, X25519MLKEM768", ECDSA, Version::Tls13, PostQuantum::Offer, 0),
        ("resumed, TLS 1.3", ECDSA, Version::Tls13, PostQuantum::Off, 32),
        ("full, P-256, TLS 1.2", ECDSA, Version::Tls12, PostQuantum::Off, 0),
        ("resumed, TLS 1.2", ECDSA, Version::Tls12, PostQuantum::Off, 32),
        ("full, RSA-2048, TLS 1.3", RSA, Version::Tls13, PostQuantum::Off, 0),
    ] {
        let server = simple_server(&root.leaf_with(&["a.com"], algorithm, |_| {}), Some(&keys()));
        let mut client = client_builder(&root);
        client.versions = Versions { min: version, max: version };
        client.post_quantum = post_quantum;
        client.session_names_max = names;
        let client = client.build(None).expect("client");
        server_share(&client, &server);
        let mut spent = Duration::ZERO;
        let mut last = None;
        for _ in 0..ROUNDS {
            let (one, kind) = server_share(&client, &server);
            spent += one;
            last = kind;
        }
        let kind = last.expect("a handshake");
        println!("{name:40} {:8.1} us ({kind:?})", spent.as_secs_f64() * 1e6 / f64::from(ROUNDS));
    }
    let server = simple_server(&root.leaf(&["a.com"]), None);
    let (mut c, mut s) = connect(&client_builder(&root).build(None).expect("client"), &server, "a.com");
    for len in [200_usize, 16_384] {
        let data = vec![7; len];
        let (mut wire, mut plain) = (Vec::new(), Vec::new());
        let (mut sealing, mut opening) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            s.write_plain(&data).expect("writes");
            wire.clear();
            s.write_tls(&mut wire);
            sealing += start.elapsed();
            let start = Instant::now();
            c.read_tls(&mut wire).expect("reads");
            plain.clear();
            c.take_plain(&mut plain).expect("reads");
            opening += start.elapsed();
        }
        let each = |t: Duration| t.as_secs_f64() * 1e6 / f64::from(ROUNDS);
        println!("record of {len:6} bytes: seal {:6.2} us, open {:6.2} us", each(sealing), each(opening));
    }
}
