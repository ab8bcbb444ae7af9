//! Whom each side trusts, and what the proxy learns about the peer.

use rcgen::{DistinguishedName, DnType, SanType};
use tls::{
    ClientAuth, ClientAuthorities, ContextError, SanKind, SanMatch, SanRule, ServerContext, TlsError,
    Verification,
};

use crate::common::{
    Ca, ECDSA, Leaf, builder, ca, client_builder, connect, simple_client, simple_server, try_connect,
};

fn rule(kind: SanKind, how: SanMatch, text: &str) -> SanRule {
    SanRule { kind, how, text: text.to_owned() }
}

fn mtls(leaf: &Leaf, auth: ClientAuth) -> ServerContext {
    let mut builder = builder();
    builder.client_auth = auth;
    builder.certificate(&leaf.certified()).expect("good");
    builder.build(None).expect("context")
}

fn spiffe(ca: &Ca, id: &str) -> Leaf {
    ca.leaf_with(&["orders.internal"], ECDSA, |p| {
        p.subject_alt_names.push(SanType::URI(id.try_into().expect("ASCII")));
        p.distinguished_name = DistinguishedName::new();
        p.distinguished_name.push(DnType::OrganizationName, "Ex, Inc");
        p.distinguished_name.push(DnType::CommonName, "orders");
    })
}

#[test]
fn client_certificates() {
    let (ca, clients, strangers) = (ca("root"), ca("clients"), ca("strangers"));
    let leaf = ca.leaf(&["a.com"]);
    let trusted =
        |rules| ClientAuthorities { roots_pem: clients.pem.clone(), rules, ..ClientAuthorities::default() };
    let id = "spiffe://example/orders";
    let exact = || vec![rule(SanKind::Uri, SanMatch::Exact, id)];
    let other = || vec![rule(SanKind::Uri, SanMatch::Prefix, "spiffe://elsewhere/")];
    let (good, bad) = (spiffe(&clients, id), spiffe(&strangers, id));
    let none = None;
    let refused = Err("tls_certificate_refused");
    for (auth, shown, expected) in [
        (ClientAuth::None, Some(&good), Ok(false)),
        (ClientAuth::None, none, Ok(false)),
        (ClientAuth::Optional(trusted(Vec::new())), Some(&good), Ok(true)),
        (ClientAuth::Optional(trusted(Vec::new())), none, Ok(false)),
        (ClientAuth::Optional(trusted(Vec::new())), Some(&bad), refused),
        (ClientAuth::Required(trusted(Vec::new())), Some(&good), Ok(true)),
        (ClientAuth::Required(trusted(Vec::new())), none, Err("tls_certificate_missing")),
        (ClientAuth::Required(trusted(Vec::new())), Some(&bad), refused),
        (ClientAuth::Required(trusted(exact())), Some(&good), Ok(true)),
        (ClientAuth::Required(trusted(other())), Some(&good), refused),
        (ClientAuth::Required(trusted([other(), exact()].concat())), Some(&good), Ok(true)),
    ] {
        let server = mtls(&leaf, auth.clone());
        let identity = shown.map(Leaf::identity);
        let client = client_builder(&ca).build(identity.as_ref()).expect("client");
        let (_, s, result) = try_connect(&client, &server, "a.com");
        let got = result.map(|()| s.peer_certificate().is_some()).map_err(|e| e.reason());
        assert_eq!(got, expected, "{auth:?}");
    }
}

#[test]
fn what_the_proxy_learns_of_a_client() {
    let (ca, clients) = (ca("root"), ca("clients"));
    let leaf = ca.leaf(&["a.com"]);
    let identity = spiffe(&clients, "spiffe://example/orders");
    let auth = ClientAuthorities { roots_pem: clients.pem.clone(), ..ClientAuthorities::default() };
    let client = client_builder(&ca).build(Some(&identity.identity())).expect("client");
    let (c, s) = connect(&client, &mtls(&leaf, ClientAuth::Required(auth)), "A.com");
    let seen = s.peer_certificate().expect("shown");
    assert_eq!(seen.subject, "CN=orders,O=Ex\\, Inc");
    assert_eq!(seen.dns_names, ["orders.internal"]);
    assert_eq!(seen.uris, ["spiffe://example/orders"]);
    assert_eq!(seen.der(), identity.der);
    assert_eq!(seen.fingerprint().len(), 64);
    assert_eq!(&seen.fingerprint()[..2], format!("{:02x}", seen.sha256[0]));
    let pem = seen.pem_url_encoded().replace("%0A", "\n").replace("%20", " ");
    let pem = pem.replace("%2B", "+").replace("%2F", "/").replace("%3D", "=");
    assert!(!pem.contains('%'));
    let same = |a: &str, b: &[u8]| a.split_whitespace().eq(String::from_utf8_lossy(b).split_whitespace());
    assert!(same(&pem, &identity.chain_pem), "{pem}");

    assert_eq!((c.server_name(), s.server_name()), (Some("a.com"), Some("a.com")));
    assert_eq!((c.alpn(), s.alpn()), (Some(&b"h2"[..]), Some(&b"h2"[..])));
    assert_eq!((c.version(), s.version()), (Some("TLSv1.3"), Some("TLSv1.3")));
    assert_eq!(s.cipher(), c.cipher());
    assert!(s.cipher().is_some_and(|name| name.starts_with("TLS_")));
    assert_eq!(s.group(), Some("X25519"));
    assert_eq!(c.peer_certificate().expect("always").der(), leaf.der);
}

#[test]
fn upstream_certificates() {
    let (ca, strangers) = (ca("root"), ca("strangers"));
    let id = "spiffe://example/orders";
    let leaf = spiffe(&ca, id);
    let server = simple_server(&leaf, None);
    let full = |roots: &Ca, rules| Verification::Full { roots_pem: roots.pem.clone(), rules };
    let rules_only = |roots: &Ca, rules| Verification::RulesOnly { roots_pem: roots.pem.clone(), rules };
    let exact = || vec![rule(SanKind::Uri, SanMatch::Exact, id)];
    let suffix = || vec![rule(SanKind::Dns, SanMatch::Suffix, ".internal")];
    let wrong = || vec![rule(SanKind::Dns, SanMatch::Suffix, ".external")];
    for (verification, name, good) in [
        (full(&ca, Vec::new()), "orders.internal", true),
        (full(&ca, Vec::new()), "other.internal", false),
        (full(&ca, Vec::new()), "192.0.2.1", false),
        (full(&strangers, Vec::new()), "orders.internal", false),
        (full(&ca, suffix()), "orders.internal", true),
        (full(&ca, wrong()), "orders.internal", false),
        (rules_only(&ca, exact()), "192.0.2.1", true),
        (rules_only(&ca, wrong()), "192.0.2.1", false),
        (rules_only(&strangers, exact()), "192.0.2.1", false),
        (Verification::Off, "192.0.2.1", true),
    ] {
        let mut builder = client_builder(&ca);
        builder.verification = verification.clone();
        let client = builder.build(None).expect("client");
        let (mut c, s, result) = try_connect(&client, &server, name);
        assert_eq!(result.is_ok(), good, "{verification:?} {name}: {result:?}");
        if !good {
            assert_eq!(result.map_err(|e| e.reason()), Err("tls_certificate_refused"));
            assert!(c.write_plain(b"secret").is_err());
            assert!(s.handshake().is_none(), "the server was told");
        }
    }
}

#[test]
fn contexts_without_trust_are_refused() {
    let ca = ca("root");
    for verification in [
        Verification::Full { roots_pem: Vec::new(), rules: Vec::new() },
        Verification::Full { roots_pem: b"garbage".to_vec(), rules: Vec::new() },
        Verification::RulesOnly { roots_pem: ca.pem.clone(), rules: Vec::new() },
        Verification::Full {
            roots_pem: ca.pem.clone(),
            rules: vec![rule(SanKind::Dns, SanMatch::Suffix, "")],
        },
    ] {
        let mut builder = client_builder(&ca);
        builder.verification = verification;
        let refused = builder.build(None);
        assert!(matches!(refused, Err(ContextError::Authorities { owner, .. }) if owner == "upstream"));
    }
    for name in ["", "a b", "*.a.com", "a..b"] {
        let refused = tls::Session::client(&simple_client(&ca), name);
        assert!(matches!(refused, Err(TlsError::ServerName(n)) if n == name), "{name:?}");
    }
}

#[test]
fn nothing_secret_is_printed() {
    let ca = ca("root");
    let leaf = ca.leaf(&["a.com"]);
    let server = simple_server(&leaf, None);
    let (c, s) = connect(&simple_client(&ca), &server, "a.com");
    let text = format!("{:?} {server:?} {:?} {c:?} {s:?}", leaf.certified(), simple_client(&ca));
    assert!(text.contains("key_pem: ***"));
    let key = String::from_utf8_lossy(leaf.key_pem.as_slice()).into_owned();
    let secret = key.lines().nth(1).expect("a line of base64");
    assert!(!text.contains(secret));
}
