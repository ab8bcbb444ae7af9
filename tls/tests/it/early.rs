//! Early data of a client (RFC 8446 §2.3, §4.2.10) against rustls's own server, which can accept it and refuse it.
#![expect(clippy::disallowed_types, reason = "rustls takes its configuration as Arc")]

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ServerSessionMemoryCache, StoresServerSessions};
use rustls::{ServerConfig, ServerConnection};
use tls::{ClientContext, EarlyData, Handshake, Session, Version, Versions};

use crate::common::{Ca, Leaf, ca, client_builder};

/// A server that takes so many bytes of early data, with the sessions of `store`.
fn server(leaf: &Leaf, early_bytes_max: u32, store: &Arc<dyn StoresServerSessions>) -> Arc<ServerConfig> {
    let chain = CertificateDer::from_pem_slice(&leaf.chain_pem).expect("pem");
    let key = PrivateKeyDer::from_pem_slice(leaf.key_pem.as_slice()).expect("pem");
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)
        .expect("a certificate");
    config.max_early_data_size = early_bytes_max;
    config.session_storage = Arc::clone(store);
    Arc::new(config)
}

fn store() -> Arc<dyn StoresServerSessions> {
    ServerSessionMemoryCache::new(16)
}

fn client(ca: &Ca, early_data: bool, versions: Versions) -> ClientContext {
    let mut builder = client_builder(ca);
    builder.alpn = Vec::new();
    builder.early_data = early_data;
    builder.versions = versions;
    builder.build(None).expect("a client context")
}

/// Moves everything both ways and returns what the server has read as early data and after it.
fn run(c: &mut Session, s: &mut ServerConnection) -> (Vec<u8>, Vec<u8>) {
    let (mut early, mut later) = (Vec::new(), Vec::new());
    while c.wants_write() || s.wants_write() {
        let mut wire = Vec::new();
        c.write_tls(&mut wire);
        let mut rest = wire.as_slice();
        while !rest.is_empty() {
            s.read_tls(&mut rest).expect("memory");
            s.process_new_packets().expect("good records");
            if let Some(mut data) = s.early_data() {
                data.read_to_end(&mut early).expect("memory");
            }
            // Blocked when nothing has come.
            let _blocked = s.reader().read_to_end(&mut later);
        }
        let mut wire = Vec::new();
        while s.wants_write() {
            s.write_tls(&mut wire).expect("memory");
        }
        c.read_tls(&mut wire).expect("good records");
    }
    (early, later)
}

/// Leaves tickets of `config` in `context`.
fn warm(context: &ClientContext, config: &Arc<ServerConfig>) {
    let mut c = Session::client_early(context, "a.com").expect("client");
    assert_eq!(c.early_data(), EarlyData::Unavailable, "no ticket yet");
    assert_eq!(c.write_early(b"too early").expect("no failure"), 0);
    let mut s = ServerConnection::new(Arc::clone(config)).expect("server");
    run(&mut c, &mut s);
    assert_eq!((c.handshake(), c.early_data()), (Some(Handshake::Full), EarlyData::Unavailable));
}

/// Resumes with `data` as early data: how much was taken, and both ends after the handshake.
fn resume(
    context: &ClientContext,
    config: &Arc<ServerConfig>,
    data: &[u8],
) -> (usize, Session, ServerConnection, Vec<u8>) {
    let mut c = Session::client_early(context, "a.com").expect("client");
    assert_eq!(c.early_data(), EarlyData::Possible);
    let taken = c.write_early(data).expect("no failure");
    assert_eq!(c.early_data(), EarlyData::Offered);
    assert_eq!(c.write_early(data).expect("no failure"), 0, "once");
    let mut s = ServerConnection::new(Arc::clone(config)).expect("server");
    let (early, later) = run(&mut c, &mut s);
    assert!(later.is_empty() && !c.is_handshaking());
    (taken, c, s, early)
}

fn send(c: &mut Session, s: &mut ServerConnection, data: &[u8]) -> Vec<u8> {
    assert_eq!(c.write_plain(data).expect("writes"), data.len());
    run(c, s).1
}

#[test]
fn accepted_early_data_is_the_beginning_of_the_stream() {
    let ca = ca("root");
    let config = server(&ca.leaf(&["a.com"]), 20_000, &store());
    let context = client(&ca, true, Versions::default());
    warm(&context, &config);
    let (taken, mut c, mut s, early) = resume(&context, &config, b"GET / ");
    assert_eq!((taken, early.as_slice()), (6, &b"GET / "[..]));
    assert_eq!((c.early_data(), c.handshake()), (EarlyData::Accepted, Some(Handshake::Resumed)));
    assert_eq!(send(&mut c, &mut s, b"HTTP/1.1"), b"HTTP/1.1");
    assert!(c.tickets() > 0, "for the next one");
    s.writer().write_all(b"200").expect("memory");
    run(&mut c, &mut s);
    assert_eq!(c.plain(), b"200");
    // More than a record, and than the ticket allows.
    let data = [b'x'; 50_000];
    let (taken, mut c, mut s, early) = resume(&context, &config, &data);
    assert_eq!((taken, early.len(), c.early_data()), (20_000, 20_000, EarlyData::Accepted));
    assert_eq!(send(&mut c, &mut s, &data[taken..]).len(), 30_000);
}

#[test]
fn refused_early_data_is_told_and_the_connection_goes_on() {
    let ca = ca("root");
    let leaf = ca.leaf(&["a.com"]);
    let shared = store();
    let giver = server(&leaf, 20_000, &shared);
    // One does not know the session and skips early data. The other knows it, and sees it offered to another name.
    let context = client(&ca, true, Versions::default());
    warm(&context, &giver);
    let stranger = server(&leaf, 20_000, &store());
    let (taken, mut c, mut s, early) = resume(&context, &stranger, b"GET / ");
    assert!(taken == 6 && early.is_empty());
    assert_eq!((c.early_data(), c.handshake()), (EarlyData::Refused, Some(Handshake::Full)));
    assert_eq!(send(&mut c, &mut s, b"GET / "), b"GET / ");
}

#[test]
fn nobody_offers_early_data_unasked() {
    let ca = ca("root");
    let leaf = ca.leaf(&["a.com"]);
    let tls12 = Versions { min: Version::Tls12, max: Version::Tls12 };
    for (what, early_bytes_max, wanted, versions) in [
        ("the server gives none", 0, true, Versions::default()),
        ("the context wants none", 20_000, false, Versions::default()),
        ("TLS 1.2 has none", 20_000, true, tls12),
    ] {
        let config = server(&leaf, early_bytes_max, &store());
        let context = client(&ca, wanted, versions);
        warm(&context, &config);
        let mut c = Session::client_early(&context, "a.com").expect("client");
        assert_eq!(c.write_early(b"x").expect("no failure"), 0, "{what}");
        let mut s = ServerConnection::new(Arc::clone(&config)).expect("server");
        run(&mut c, &mut s);
        assert_eq!(
            (c.early_data(), c.handshake()),
            (EarlyData::Unavailable, Some(Handshake::Resumed)),
            "{what}"
        );
    }
}

#[test]
fn early_data_that_is_possible_need_not_be_sent() {
    let ca = ca("root");
    let config = server(&ca.leaf(&["a.com"]), 20_000, &store());
    let context = client(&ca, true, Versions::default());
    warm(&context, &config);
    let mut c = Session::client_early(&context, "a.com").expect("client");
    assert_eq!(c.early_data(), EarlyData::Possible);
    let mut s = ServerConnection::new(Arc::clone(&config)).expect("server");
    run(&mut c, &mut s);
    assert_eq!(c.handshake(), Some(Handshake::Resumed));
    assert_eq!(send(&mut c, &mut s, b"GET /"), b"GET /");
}
