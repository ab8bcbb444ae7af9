//! Which certificate a name gets, and what is refused when a context is built (RFC 6066 §3, RFC 9525 §6.3).

use rcgen::date_time_ymd;
use tls::{
    CertificateProblem, CertifiedName, ClientAuth, ClientAuthorities, ContextError, PemProblem, ServedNames,
    ServerContext, Session, UnknownName, Version, Versions, WarningKind,
};

use crate::common::{Ca, ECDSA, Leaf, RSA, builder, ca, client_builder, connect, simple_client};
use crate::hellos::{Hello, SERVER_NAME, SIGNATURE_ALGORITHMS, server_names, sized};

/// What a server answers to a hello.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// The index of the certificate in its first flight.
    Certificate(usize),
    Alert(u8),
}

/// TLS 1.2, where the certificate is to be seen on the wire.
fn old_hello(ca: &Ca, name: &str) -> Hello {
    let mut builder = client_builder(ca);
    builder.versions = Versions { min: Version::Tls12, max: Version::Tls12 };
    let mut session = Session::client(&builder.build(None).expect("client"), name).expect("session");
    let mut wire = Vec::new();
    session.write_tls(&mut wire);
    Hello::parse(&wire)
}

fn answer(server: &ServerContext, hello: &Hello, leaves: &[&Leaf]) -> (Answer, Session) {
    let mut session = Session::server(server);
    let failed = session.read_tls(&mut hello.encode()).is_err();
    let mut wire = Vec::new();
    session.write_tls(&mut wire);
    if failed {
        assert_eq!(wire[0], 21, "an alert record");
        return (Answer::Alert(wire[6]), session);
    }
    let holds = |leaf: &Leaf| wire.windows(leaf.der.len()).any(|w| w == leaf.der);
    let shown: Vec<_> = (0..leaves.len()).filter(|&i| holds(leaves[i])).collect();
    assert_eq!(shown.len(), 1, "one certificate in the flight");
    (Answer::Certificate(shown[0]), session)
}

#[test]
fn sni_to_certificate() {
    use Answer::{Alert, Certificate};
    const ILLEGAL_PARAMETER: u8 = 47;
    const DECODE_ERROR: u8 = 50;
    const UNRECOGNIZED_NAME: u8 = 112;
    let ca = ca("root");
    let names = ["default.example", "a.com", "*.a.com", "*.b.a.com", "other.com"];
    let leaves: Vec<_> = names.iter().map(|n| ca.leaf(&[n])).collect();
    let leaves: Vec<_> = leaves.iter().collect();
    let context = |unknown| {
        let mut builder = builder();
        builder.unknown_name = unknown;
        for leaf in &leaves {
            builder.certificate(&leaf.certified()).expect("good");
        }
        builder.build(None).expect("context")
    };
    let (lenient, strict) = (context(UnknownName::DefaultCertificate), context(UnknownName::Refuse));
    assert_eq!(lenient.name_count(), 5);

    let one = |name: &[u8]| Some(server_names(&[name]));
    let long_name = [&b"a.".repeat(126)[..], b"com"].concat();
    let cases = [
        // The name, the answer with a default, and the answer without.
        (one(b"a.com"), Certificate(1), Certificate(1)),
        (one(b"A.COM"), Certificate(1), Certificate(1)),
        (one(b"a.com."), Certificate(1), Certificate(1)),
        (one(b"x.a.com"), Certificate(2), Certificate(2)),
        (one(b"x.a.com."), Certificate(2), Certificate(2)),
        (one(b"X.a.CoM"), Certificate(2), Certificate(2)),
        (one(b"x.b.a.com"), Certificate(3), Certificate(3)),
        (one(b"b.a.com"), Certificate(2), Certificate(2)),
        (one(b"other.com"), Certificate(4), Certificate(4)),
        (one(b"x.y.a.com"), Certificate(0), Alert(UNRECOGNIZED_NAME)),
        (one(b"y.x.b.a.com"), Certificate(0), Alert(UNRECOGNIZED_NAME)),
        (one(b"x.other.com"), Certificate(0), Alert(UNRECOGNIZED_NAME)),
        (one(b"com"), Certificate(0), Alert(UNRECOGNIZED_NAME)),
        (one(b"xa.com"), Certificate(0), Alert(UNRECOGNIZED_NAME)),
        (one(&b"a".repeat(63)), Certificate(0), Alert(UNRECOGNIZED_NAME)),
        // No name, and what RFC 6066 does not allow as one but old clients send: the default in both.
        (None, Certificate(0), Certificate(0)),
        (one(b"192.0.2.7"), Certificate(0), Certificate(0)),
        (one(b"2001:db8::1"), Certificate(0), Certificate(0)),
        // No names at all: rustls refuses them.
        (one(b"*.a.com"), Alert(ILLEGAL_PARAMETER), Alert(ILLEGAL_PARAMETER)),
        (one("ä.com".as_bytes()), Alert(ILLEGAL_PARAMETER), Alert(ILLEGAL_PARAMETER)),
        (one(b"a..com"), Alert(ILLEGAL_PARAMETER), Alert(ILLEGAL_PARAMETER)),
        (one(b"a.com.."), Alert(ILLEGAL_PARAMETER), Alert(ILLEGAL_PARAMETER)),
        (one(b"a.com\0"), Alert(ILLEGAL_PARAMETER), Alert(ILLEGAL_PARAMETER)),
        (one(&long_name), Alert(ILLEGAL_PARAMETER), Alert(ILLEGAL_PARAMETER)),
        (one(&b"a".repeat(64)), Alert(ILLEGAL_PARAMETER), Alert(ILLEGAL_PARAMETER)),
        (one(b""), Alert(DECODE_ERROR), Alert(DECODE_ERROR)),
        (Some(Vec::new()), Alert(DECODE_ERROR), Alert(DECODE_ERROR)),
        (Some(server_names(&[b"a.com", b"other.com"])), Alert(DECODE_ERROR), Alert(DECODE_ERROR)),
    ];
    let mut hello = old_hello(&ca, "a.com");
    for (extension, with_default, without) in cases {
        hello.set(SERVER_NAME, extension.clone());
        let text = String::from_utf8_lossy(extension.as_deref().unwrap_or(b"none")).into_owned();
        assert_eq!(answer(&lenient, &hello, &leaves).0, with_default, "{text:?} with a default");
        assert_eq!(answer(&strict, &hello, &leaves).0, without, "{text:?} without");
    }
}

#[test]
fn hundreds_of_names_on_few_certificates() {
    let ca = ca("root");
    let names: Vec<_> = (0..300).map(|i| format!("host-{i}.example.com")).collect();
    let leaves: Vec<_> = names
        .chunks(100)
        .map(|chunk| ca.leaf(&chunk.iter().map(String::as_str).collect::<Vec<_>>()))
        .collect();
    let leaves: Vec<_> = leaves.iter().collect();
    let mut builder = builder();
    for leaf in &leaves {
        builder.certificate(&leaf.certified()).expect("good");
    }
    let server = builder.build(None).expect("context");
    assert_eq!(server.name_count(), 300);
    let mut hello = old_hello(&ca, "a.com");
    for (i, name) in names.iter().enumerate().step_by(37) {
        hello.set(SERVER_NAME, Some(server_names(&[name.as_bytes()])));
        assert_eq!(answer(&server, &hello, &leaves).0, Answer::Certificate(i / 100), "{name}");
    }
}

#[test]
fn the_client_chooses_between_rsa_and_ecdsa() {
    let ca = ca("root");
    let ecdsa = ca.leaf(&["a.com"]);
    let rsa = ca.leaf_with(&["a.com"], RSA, |_| {});
    let leaves = [&ecdsa, &rsa];
    // Whichever was added first.
    for order in [[&rsa, &ecdsa], [&ecdsa, &rsa]] {
        let mut builder = builder();
        for leaf in order {
            builder.certificate(&leaf.certified()).expect("good");
        }
        let server = builder.build(None).expect("context");
        assert!(server.warnings().is_empty());
        const SCHEMES_BOTH: &[u8] = &[0x04, 0x03, 0x08, 0x04, 0x04, 0x01];
        const SCHEMES_RSA: &[u8] = &[0x08, 0x04, 0x04, 0x01];
        const SCHEMES_ECDSA: &[u8] = &[0x04, 0x03];
        const SUITES_BOTH: &[u8] = &[0xc0, 0x2b, 0xc0, 0x2f];
        const SUITES_RSA: &[u8] = &[0xc0, 0x2f];
        const SUITES_ECDSA: &[u8] = &[0xc0, 0x2b];
        for (schemes, suites, expected) in [
            (SCHEMES_BOTH, SUITES_BOTH, Answer::Certificate(0)),
            (SCHEMES_BOTH, SUITES_RSA, Answer::Certificate(1)),
            (SCHEMES_BOTH, SUITES_ECDSA, Answer::Certificate(0)),
            (SCHEMES_RSA, SUITES_BOTH, Answer::Certificate(1)),
            (SCHEMES_ECDSA, SUITES_BOTH, Answer::Certificate(0)),
            (SCHEMES_RSA, SUITES_ECDSA, Answer::Alert(40)),
        ] {
            // Under the name, and as the default for clients without one.
            for name in [Some(server_names(&[b"a.com"])), None] {
                let mut hello = old_hello(&ca, "a.com");
                hello.set(SERVER_NAME, name);
                hello.set(SIGNATURE_ALGORITHMS, Some(sized(schemes)));
                hello.cipher_suites = suites.to_vec();
                assert_eq!(answer(&server, &hello, &leaves).0, expected, "{schemes:x?} {suites:x?}");
            }
        }
        // TLS 1.3: the scheme alone decides; a wrong choice would be an alert.
        let mut session = Session::client(&simple_client(&ca), "a.com").expect("session");
        let mut wire = Vec::new();
        session.write_tls(&mut wire);
        for schemes in [SCHEMES_RSA, SCHEMES_ECDSA] {
            let mut hello = Hello::parse(&wire);
            hello.set(SIGNATURE_ALGORITHMS, Some(sized(schemes)));
            let mut session = Session::server(&server);
            session.read_tls(&mut hello.encode()).expect("a certificate for these schemes");
        }
    }
}

#[test]
fn one_session_carries_only_hosts_of_its_client_auth_policy() {
    let (ca, clients) = (ca("root"), ca("clients"));
    let required = ClientAuth::Required(ClientAuthorities {
        roots_pem: clients.pem.clone(),
        ..ClientAuthorities::default()
    });
    let (plain, also, bank) = (ca.leaf(&["plain.com"]), ca.leaf(&["also.com"]), ca.leaf(&["bank.com"]));
    let mut builder = builder();
    builder.unknown_name = UnknownName::Refuse;
    builder.certificate(&plain.certified()).expect("good").certificate(&also.certified()).expect("good");
    builder.certificate(&CertifiedName { client_auth: Some(&required), ..bank.certified() }).expect("good");
    let server = builder.build(None).expect("context");
    let (_, session) = connect(&simple_client(&ca), &server, "plain.com");
    for (host, covered) in [
        ("plain.com", true),
        ("PLAIN.com.", true),
        ("also.com", true),
        ("bank.com", false),
        ("BANK.com", false),
        ("unknown.com", false),
    ] {
        assert_eq!(server.covers(&session, host), covered, "{host}");
    }
    assert!(!server.covers(&Session::server(&server), "plain.com"), "not before the handshake");
}

#[test]
fn bad_certificates_are_refused_by_name() {
    let ca = ca("root");
    let (good, other) = (ca.leaf(&["a.com"]), ca.leaf(&["b.com"]));
    let try_add = |certified: &CertifiedName<'_>| match builder().certificate(certified) {
        Err(ContextError::Certificate { label, problem }) => {
            assert_eq!(label, certified.identity.label);
            problem
        }
        other => panic!("accepted, or another error: {other:?}"),
    };
    let mut mixed = good.certified();
    mixed.identity.key_pem = &other.key_pem;
    assert!(matches!(try_add(&mixed), CertificateProblem::KeyMismatch));

    let mut no_chain = good.certified();
    no_chain.identity.chain_pem = b"";
    assert!(matches!(try_add(&no_chain), CertificateProblem::Pem(PemProblem::NoCertificate)));

    let mut garbage = good.certified();
    garbage.identity.chain_pem = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(matches!(try_add(&garbage), CertificateProblem::Unreadable(_)));

    let mut no_key = good.certified();
    let certificate_as_key = tls::SecretBytes::from_slice(&good.chain_pem);
    no_key.identity.key_pem = &certificate_as_key;
    assert!(matches!(try_add(&no_key), CertificateProblem::Pem(PemProblem::NoKey)));

    let nameless = ca.leaf(&[]);
    assert!(matches!(try_add(&nameless.certified()), CertificateProblem::NoNames));

    for name in ["*", "a.*.com", "*x.com", "*.com", "a b.com"] {
        let leaf = ca.leaf(&["fine.com", name]);
        assert!(
            matches!(try_add(&leaf.certified()), CertificateProblem::UnusableName { name: n, .. } if n == name)
        );
        let given = CertifiedName { names: ServedNames::Given(&[name]), ..good.certified() };
        assert!(matches!(try_add(&given), CertificateProblem::UnusableName { name: n, .. } if n == name));
    }
}

#[test]
fn contexts_that_contradict_themselves_are_refused() {
    let ca = ca("root");
    let (first, second) = (ca.leaf(&["a.com"]), ca.leaf_with(&["a.com"], RSA, |_| {}));
    assert!(matches!(builder().build(None), Err(ContextError::NoCertificate)));

    let mut unknown_default = builder();
    unknown_default.default_certificate = Some("nobody".to_owned());
    unknown_default.certificate(&first.certified()).expect("good");
    assert!(
        matches!(unknown_default.build(None), Err(ContextError::UnknownDefault { label }) if label == "nobody")
    );

    let auth =
        ClientAuth::Optional(ClientAuthorities { roots_pem: ca.pem.clone(), ..ClientAuthorities::default() });
    let mut conflict = builder();
    conflict.certificate(&first.certified()).expect("good");
    conflict.certificate(&CertifiedName { client_auth: Some(&auth), ..second.certified() }).expect("good");
    let conflict = conflict.build(None);
    assert!(matches!(conflict, Err(ContextError::ClientAuthConflict { name, .. }) if name == "a.com"));

    let mut versions = builder();
    versions.versions = Versions { min: Version::Tls13, max: Version::Tls12 };
    versions.certificate(&first.certified()).expect("good");
    assert!(matches!(versions.build(None), Err(ContextError::NoVersion)));

    let mut no_ca = builder();
    no_ca.client_auth = ClientAuth::Required(ClientAuthorities::default());
    no_ca.certificate(&first.certified()).expect("good");
    assert!(matches!(no_ca.build(None), Err(ContextError::Authorities { .. })));
}

#[test]
fn what_works_but_is_odd_is_a_warning() {
    let ca = ca("root");
    let expired = ca.leaf_with(&["a.com"], ECDSA, |p| p.not_after = date_time_ymd(2020, 1, 1));
    let future = ca.leaf_with(&["b.com"], ECDSA, |p| p.not_before = date_time_ymd(3000, 1, 1));
    let again = ca.leaf(&["a.com"]);
    let elsewhere = ca.leaf(&["*.c.com"]);
    let given = CertifiedName { names: ServedNames::Given(&["x.c.com", "d.com"]), ..elsewhere.certified() };
    let mut builder = builder();
    for certified in [&expired.certified(), &future.certified(), &again.certified(), &given] {
        builder.certificate(certified).expect("served all the same");
    }
    let server = builder.build(None).expect("context");
    let mut kinds: Vec<_> = server.warnings().iter().map(|w| (w.label.as_str(), &w.kind)).collect();
    kinds.sort_by_key(|(label, _)| *label);
    assert!(
        matches!(
            kinds.as_slice(),
            [
                ("*.c.com", WarningKind::NameNotCovered { name }),
                ("a.com", WarningKind::Expired { not_after_unix_s: 1_577_836_800 }),
                ("a.com", WarningKind::NameTaken { .. }),
                ("b.com", WarningKind::NotYetValid { .. }),
            ] if name == "d.com"
        ),
        "{kinds:?}"
    );
    for warning in server.warnings() {
        assert!(warning.to_string().contains(&warning.label));
    }
}
