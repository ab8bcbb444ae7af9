//! Resumption: across cores, across rotations, never across client-auth policies or names (RFC 8446 §4.6.1, §8.1;
//! RFC 6066 §3).
#![expect(clippy::disallowed_types, reason = "a rustls client store has to be Sync")]

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

use rustls::client::{ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, NamedGroup, RootCertStore};
use tls::{
    CertifiedName, ClientAuth, ClientAuthorities, Handshake, ServerContext, Session, TicketKey, TicketKeys,
    Version, Versions,
};

use crate::common::{
    Ca, Leaf, advance_clock_s, builder, ca, client_builder, connect, simple_server, transfer,
};

const VERSIONS: [Version; 2] = [Version::Tls13, Version::Tls12];

fn only(version: Version) -> Versions {
    Versions { min: version, max: version }
}

fn key(seed: u8) -> TicketKey {
    TicketKey::from_bytes(&[seed; 80]).expect("80 bytes")
}

fn keys() -> TicketKeys {
    TicketKeys::new(Some(key(2)), key(1), Some(key(0))).expect("distinct names")
}

/// A store that offers any session to any server, as a hostile client would.
#[derive(Debug, Default)]
struct OneForAll {
    tls13: Mutex<Vec<Tls13ClientSessionValue>>,
    tls12: Mutex<Option<Tls12ClientSessionValue>>,
}

impl ClientSessionStore for OneForAll {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        *self.tls12.lock().expect("unpoisoned") = Some(value);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.tls12.lock().expect("unpoisoned").clone()
    }

    fn remove_tls12_session(&self, _: &ServerName<'_>) {}

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.tls13.lock().expect("unpoisoned").push(value);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'_>) -> Option<Tls13ClientSessionValue> {
        self.tls13.lock().expect("unpoisoned").pop()
    }
}

/// A rustls client with that store, and a certificate to show.
fn hostile_client(ca: &Ca, identity: &Leaf, version: Version) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&ca.pem).expect("pem")).expect("a root");
    let version = match version {
        Version::Tls12 => &rustls::version::TLS12,
        Version::Tls13 => &rustls::version::TLS13,
    };
    let chain = vec![CertificateDer::from_pem_slice(&identity.chain_pem).expect("pem")];
    let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_slice()).expect("pem");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .expect("versions")
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .expect("identity");
    config.resumption = Resumption::store(Arc::new(OneForAll::default()));
    config.enable_early_data = true;
    Arc::new(config)
}

/// A session with that client, hands shaken.
fn raw_connect(
    config: &Arc<ClientConfig>,
    server: &ServerContext,
    name: &str,
) -> (ClientConnection, Session) {
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let mut client = ClientConnection::new(Arc::clone(config), name).expect("a client");
    assert!(client.early_data().is_none(), "no early data is ever offered");
    let mut session = Session::server(server);
    exchange(&mut client, &mut session);
    (client, session)
}

/// Moves bytes until neither end has any.
fn exchange(client: &mut ClientConnection, session: &mut Session) {
    while client.wants_write() || session.wants_write() {
        let mut wire = Vec::new();
        client.write_tls(&mut wire).expect("a Vec takes all");
        session.read_tls(&mut wire).expect("the server agrees");
        let mut wire = Vec::new();
        session.write_tls(&mut wire);
        let mut rest = wire.as_slice();
        while !rest.is_empty() {
            client.read_tls(&mut rest).expect("reads");
            client.process_new_packets().expect("the client agrees");
        }
    }
}

/// Shakes hands and returns how, as the server saw it.
fn shake(config: &Arc<ClientConfig>, server: &ServerContext, name: &str) -> Handshake {
    let (mut client, mut session) = raw_connect(config, server, name);
    client.writer().write_all(b"x").expect("the session works");
    exchange(&mut client, &mut session);
    assert_eq!(session.plain(), b"x");
    let kind = session.handshake().expect("done");
    assert_eq!(kind == Handshake::Resumed, client.handshake_kind() == Some(HandshakeKind::Resumed));
    kind
}

#[test]
fn key_updates_are_answered() {
    let ca = ca("root");
    let leaf = ca.leaf(&["a.com"]);
    let config = hostile_client(&ca, &leaf, Version::Tls13);
    let (mut client, mut session) = raw_connect(&config, &simple_server(&leaf, Some(&keys())), "a.com");
    for round in 0..3 {
        // RFC 8446 §4.6.3: the answer goes out before the next data, under the old keys.
        client.refresh_traffic_keys().expect("TLS 1.3");
        client.writer().write_all(b"up").expect("writes");
        exchange(&mut client, &mut session);
        assert_eq!(session.plain(), b"up", "{round}");
        session.consume_plain(2);
        assert_eq!(session.write_plain(b"down").expect("writes"), 4);
        exchange(&mut client, &mut session);
        let mut out = [0; 8];
        assert_eq!(client.reader().read(&mut out).expect("reads"), 4);
        assert_eq!(&out[..4], b"down", "{round}");
    }
}

fn with_auth(leaf: &Leaf, auth: ClientAuth) -> ServerContext {
    let mut builder = builder();
    builder.client_auth = auth;
    builder.certificate(&leaf.certified()).expect("good");
    builder.build(Some(&keys())).expect("context")
}

fn authorities(ca: &Ca) -> ClientAuthorities {
    ClientAuthorities { roots_pem: ca.pem.clone(), ..ClientAuthorities::default() }
}

#[test]
fn a_session_of_one_core_resumes_on_another() {
    let ca = ca("root");
    let leaf = ca.leaf(&["a.com"]);
    for version in VERSIONS {
        let mut client = client_builder(&ca);
        client.versions = only(version);
        let client = client.build(None).expect("client");
        let cores: Vec<_> = (0..3).map(|_| simple_server(&leaf, Some(&keys()))).collect();
        for (i, core) in cores.iter().chain(&cores).enumerate() {
            let (mut c, mut s) = connect(&client, core, "a.com");
            let expected = if i == 0 { Handshake::Full } else { Handshake::Resumed };
            assert_eq!((c.handshake(), s.handshake()), (Some(expected), Some(expected)), "{version:?} {i}");
            assert_eq!(transfer(&mut c, &mut s, b"hello"), b"hello");
        }
        let stranger = simple_server(&leaf, Some(&TicketKeys::generate().expect("keys")));
        assert_eq!(connect(&client, &stranger, "a.com").1.handshake(), Some(Handshake::Full), "other keys");
        let (_, s) = connect(&client, &simple_server(&leaf, None), "a.com");
        assert_eq!(s.handshake(), Some(Handshake::Full), "a server without tickets");
    }
}

#[test]
fn rotation_keeps_sessions_for_two_steps() {
    let ca = ca("root");
    let leaf = ca.leaf(&["a.com"]);
    for version in VERSIONS {
        for (steps, expected) in [(0, Handshake::Resumed), (1, Handshake::Resumed), (2, Handshake::Full)] {
            let client = hostile_client(&ca, &leaf, version);
            let mut keys = keys();
            let mut server = simple_server(&leaf, Some(&keys));
            assert_eq!(shake(&client, &server, "a.com"), Handshake::Full);
            for step in 0..steps {
                keys.rotate(key(10 + step)).expect("a new name");
                server = server.with_ticket_keys(&keys).expect("context");
            }
            assert_eq!(shake(&client, &server, "a.com"), expected, "{version:?} after {steps}");
        }
    }
}

#[test]
fn a_neighbour_that_has_rotated_first_is_understood() {
    let ca = ca("root");
    let leaf = ca.leaf(&["a.com"]);
    let mut rotated = keys();
    rotated.rotate(key(3)).expect("a new name");
    let (early, late) = (simple_server(&leaf, Some(&rotated)), simple_server(&leaf, Some(&keys())));
    for (first, second) in [(&early, &late), (&late, &early)] {
        let client = hostile_client(&ca, &leaf, Version::Tls13);
        assert_eq!(shake(&client, first, "a.com"), Handshake::Full);
        assert_eq!(shake(&client, second, "a.com"), Handshake::Resumed);
    }
}

#[test]
fn a_ticket_ends_with_its_lifetime() {
    let ca = ca("root");
    let leaf = ca.leaf(&["a.com"]);
    for version in VERSIONS {
        let server = simple_server(&leaf, Some(&keys()));
        // The client's own clock stands still, so it goes on offering.
        for (age_s, expected) in [(12 * 3600 - 1, Handshake::Resumed), (12 * 3600, Handshake::Full)] {
            let client = hostile_client(&ca, &leaf, version);
            assert_eq!(shake(&client, &server, "a.com"), Handshake::Full);
            advance_clock_s(age_s);
            assert_eq!(shake(&client, &server, "a.com"), expected, "{version:?} at {age_s} s");
        }
    }
}

#[test]
fn a_ticket_is_good_for_its_client_auth_policy_only() {
    let (ca, clients, others) = (ca("root"), ca("clients"), ca("others"));
    let (leaf, identity) = (ca.leaf(&["a.com"]), clients.leaf(&["client"]));
    let policies = [
        ("none", with_auth(&leaf, ClientAuth::None)),
        ("optional", with_auth(&leaf, ClientAuth::Optional(authorities(&clients)))),
        ("required", with_auth(&leaf, ClientAuth::Required(authorities(&clients)))),
    ];
    for version in VERSIONS {
        for (from, first) in &policies {
            for (to, second) in &policies {
                let client = hostile_client(&ca, &identity, version);
                assert_eq!(shake(&client, first, "a.com"), Handshake::Full);
                // Same name, same certificate, same ticket keys: only the policy differs.
                let expected = if from == to { Handshake::Resumed } else { Handshake::Full };
                assert_eq!(shake(&client, second, "a.com"), expected, "{version:?} from {from} to {to}");
            }
        }
        // A changed CA set is another policy: the certificate may no longer be good.
        let both = [clients.pem.clone(), others.pem.clone()].concat();
        let wider = ClientAuthorities { roots_pem: both, ..ClientAuthorities::default() };
        let client = hostile_client(&ca, &identity, version);
        shake(&client, &policies[2].1, "a.com");
        assert_eq!(shake(&client, &with_auth(&leaf, ClientAuth::Required(wider)), "a.com"), Handshake::Full);
    }
}

#[test]
fn a_ticket_is_good_for_its_name_only() {
    let (ca, clients) = (ca("root"), ca("clients"));
    let identity = clients.leaf(&["client"]);
    let required = ClientAuth::Required(authorities(&clients));
    // foo and bar on one wildcard certificate, bar with client certificates.
    let leaf = ca.leaf(&["*.a.com"]);
    let named = |names, client_auth| CertifiedName {
        names: tls::ServedNames::Given(names),
        client_auth,
        ..leaf.certified()
    };
    let mut builder = builder();
    builder.certificate(&named(&["foo.a.com", "baz.a.com"], None)).expect("good");
    builder.certificate(&named(&["bar.a.com"], Some(&required))).expect("good");
    let server = builder.build(Some(&keys())).expect("context");
    for version in VERSIONS {
        for (from, to) in [("foo", "bar"), ("bar", "foo"), ("foo", "baz")] {
            let client = hostile_client(&ca, &identity, version);
            assert_eq!(shake(&client, &server, &format!("{from}.a.com")), Handshake::Full);
            assert_eq!(shake(&client, &server, &format!("{to}.a.com")), Handshake::Full, "{from} to {to}");
        }
        let client = hostile_client(&ca, &identity, version);
        shake(&client, &server, "bar.a.com");
        assert_eq!(shake(&client, &server, "bar.a.com"), Handshake::Resumed, "its own name");
    }
}

#[test]
fn a_resumed_session_knows_the_client_certificate() {
    let (ca, clients) = (ca("root"), ca("clients"));
    let (leaf, identity) = (ca.leaf(&["a.com"]), clients.leaf(&["client.example"]));
    let server = with_auth(&leaf, ClientAuth::Required(authorities(&clients)));
    for version in VERSIONS {
        let mut client = client_builder(&ca);
        client.versions = only(version);
        let client = client.build(Some(&identity.identity())).expect("client");
        for expected in [Handshake::Full, Handshake::Resumed] {
            let (_, s) = connect(&client, &server, "a.com");
            assert_eq!(s.handshake(), Some(expected));
            assert_eq!(s.peer_certificate().expect("shown").der(), identity.der);
        }
    }
}

#[test]
fn upstream_sessions_are_kept_by_server_name() {
    let ca = ca("root");
    let leaf = ca.leaf(&["a.com", "b.com"]);
    let server = simple_server(&leaf, Some(&keys()));
    for version in VERSIONS {
        let mut client = client_builder(&ca);
        client.versions = only(version);
        let client = client.build(None).expect("client");
        for (name, expected) in [
            ("a.com", Handshake::Full),
            ("b.com", Handshake::Full),
            ("a.com", Handshake::Resumed),
            ("b.com", Handshake::Resumed),
        ] {
            assert_eq!(connect(&client, &server, name).0.handshake(), Some(expected), "{version:?} {name}");
        }
        let mut forgetful = client_builder(&ca);
        (forgetful.versions, forgetful.session_names_max) = (only(version), 0);
        let forgetful = forgetful.build(None).expect("client");
        for _ in 0..2 {
            assert_eq!(connect(&forgetful, &server, "a.com").0.handshake(), Some(Handshake::Full));
        }
    }
}
