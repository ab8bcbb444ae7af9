//! Any bytes as the beginning of a TLS connection: what a session makes of them does not depend on how they arrive,
//! and the name that picks the rules for client certificates is the name that rustls sees.
//! Input: where to cut, then what a client sends.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::server::Acceptor;
use tls::{
    CertifiedName, ClientAuth, ClientAuthorities, Identity, PolicyId, SecretBytes, ServedNames,
    ServerContext, ServerContextBuilder, Session,
};

/// Names with and without client certificates, one of them a wildcard.
static CONTEXT: LazyLock<ServerContext> = LazyLock::new(|| {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let root = params.self_signed(&key).expect("a root").pem().into_bytes();
    let issuer = Issuer::new(params, key);
    let required =
        ClientAuth::Required(ClientAuthorities { roots_pem: root, ..ClientAuthorities::default() });
    let mut builder = ServerContextBuilder::new();
    for (names, client_auth) in [
        (["open.example", "*.open.example"], None),
        (["mutual.example", "*.mutual.example"], Some(&required)),
    ] {
        let params = CertificateParams::new(names.map(str::to_owned)).expect("names");
        let key = KeyPair::generate().expect("a key");
        let chain = params.signed_by(&key, &issuer).expect("a leaf").pem().into_bytes();
        let key = SecretBytes::from_vec(key.serialize_pem().into_bytes());
        let identity = Identity { label: names[0], chain_pem: &chain, key_pem: &key };
        let certified = CertifiedName { identity, names: ServedNames::FromCertificate, client_auth };
        builder.certificate(&certified).expect("a good certificate");
    }
    builder.build(None).expect("a context")
});

#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    failure: Option<String>,
    server_name: Option<String>,
    policy: Option<PolicyId>,
}

/// What a session makes of the bytes in these pieces.
fn outcome(pieces: &[&[u8]]) -> Outcome {
    let mut session = Session::server(&CONTEXT);
    let mut failure = None;
    for piece in pieces {
        let mut piece = piece.to_vec();
        match session.read_tls(&mut piece) {
            Ok(taken) => assert_eq!(taken, piece.len(), "nothing was decrypted that could wait"),
            Err(error) => {
                assert_eq!(
                    session.read_tls(&mut []).map_err(|again| again.to_string()),
                    Err(error.to_string())
                );
                failure = Some(error.to_string());
                break;
            }
        }
    }
    let mut out = Vec::new();
    session.write_tls(&mut out);
    assert!(!session.wants_write() && out.len() < 64 * 1024);
    Outcome { failure, server_name: session.server_name().map(str::to_owned), policy: session.policy() }
}

/// In pieces, a byte with which no record begins may be judged together with the rest of a record's header.
fn same_or_late(mut pieces: Vec<&[u8]>, whole: &Outcome) {
    let outcome_of_pieces = outcome(&pieces);
    if outcome_of_pieces == *whole {
        return;
    }
    let is_waiting = outcome_of_pieces.failure.is_none() && outcome_of_pieces.policy.is_none();
    assert!(is_waiting, "{} pieces: {outcome_of_pieces:?}, {whole:?}", pieces.len());
    pieces.push(&[0; 5]);
    let later = outcome(&pieces);
    assert!(later.failure.is_some() || later.policy.is_some(), "waits for ever");
}

fuzz_target!(|data: &[u8]| {
    let Some((&cut, bytes)) = data.split_first() else {
        return;
    };
    let whole = outcome(&[bytes]);
    let (head, tail) = bytes.split_at(usize::from(cut).min(bytes.len()));
    same_or_late(vec![head, tail], &whole);
    if bytes.len() < 600 {
        same_or_late(bytes.chunks(1).collect(), &whole);
    }

    let mut acceptor = Acceptor::default();
    let mut rest = bytes;
    let mut seen = Ok(None);
    while !rest.is_empty() && matches!(seen, Ok(None)) {
        if acceptor.read_tls(&mut rest).is_err() {
            return;
        }
        seen = acceptor.accept();
    }
    match seen {
        Ok(None) => {}
        // It judges at once; the session waits for the whole message first, which is bounded.
        Err(_) => {
            assert!(whole.failure.is_some() || whole.policy.is_none(), "rustls refuses this: {whole:?}")
        }
        Ok(Some(accepted)) if whole.failure.is_none() => {
            let name = accepted.client_hello().server_name().map(|name| {
                let name = name.to_ascii_lowercase();
                name.strip_suffix('.').unwrap_or(&name).to_owned()
            });
            assert_eq!(whole.server_name, name);
            if let Some(name) = name {
                assert_eq!(whole.policy, CONTEXT.policy_of(&name));
            }
        }
        Ok(Some(_)) => {}
    }
});
