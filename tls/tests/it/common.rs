//! Certificates made on the spot, a clock that tests turn, and pumps between two ends in memory.

use std::cell::Cell;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256,
    PKCS_RSA_SHA256, SanType, SignatureAlgorithm,
};
use tls::{
    CertifiedName, ClientContext, ClientContextBuilder, Identity, Plain, SecretBytes, ServedNames,
    ServerContext, ServerContextBuilder, Session, TicketKeys, TlsError, Verification,
};

thread_local! {
    static NOW_S: Cell<u64> = const { Cell::new(1_800_000_000) };
}

/// The clock of all contexts made here.
pub(crate) fn now_s() -> u64 {
    NOW_S.get()
}

pub(crate) fn advance_clock_s(seconds: u64) {
    NOW_S.set(NOW_S.get() + seconds);
}

pub(crate) struct Ca {
    pub(crate) pem: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
}

pub(crate) fn ca(name: &str) -> Ca {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
    let certificate = params.self_signed(&key).expect("a CA");
    Ca { pem: certificate.pem().into_bytes(), issuer: Issuer::new(params, key) }
}

pub(crate) struct Leaf {
    pub(crate) label: String,
    pub(crate) der: Vec<u8>,
    pub(crate) chain_pem: Vec<u8>,
    pub(crate) key_pem: SecretBytes,
}

impl Leaf {
    pub(crate) fn identity(&self) -> Identity<'_> {
        Identity { label: &self.label, chain_pem: &self.chain_pem, key_pem: &self.key_pem }
    }

    pub(crate) fn certified(&self) -> CertifiedName<'_> {
        CertifiedName { identity: self.identity(), names: ServedNames::FromCertificate, client_auth: None }
    }
}

pub(crate) const ECDSA: &SignatureAlgorithm = &PKCS_ECDSA_P256_SHA256;
pub(crate) const RSA: &SignatureAlgorithm = &PKCS_RSA_SHA256;

impl Ca {
    pub(crate) fn leaf(&self, names: &[&str]) -> Leaf {
        self.leaf_with(names, ECDSA, |_| {})
    }

    pub(crate) fn leaf_with(
        &self,
        names: &[&str],
        algorithm: &'static SignatureAlgorithm,
        edit: impl FnOnce(&mut CertificateParams),
    ) -> Leaf {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.subject_alt_names =
            names.iter().map(|n| SanType::DnsName((*n).try_into().expect("ASCII"))).collect();
        edit(&mut params);
        let key = KeyPair::generate_for(algorithm).expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a leaf");
        Leaf {
            label: names.first().copied().unwrap_or("unnamed").to_owned(),
            der: certificate.der().to_vec(),
            chain_pem: certificate.pem().into_bytes(),
            key_pem: SecretBytes::from_vec(key.serialize_pem().into_bytes()),
        }
    }
}

pub(crate) fn builder() -> ServerContextBuilder {
    let mut builder = ServerContextBuilder::new();
    builder.clock = now_s;
    builder
}

/// A context with one certificate and everything at its default.
pub(crate) fn simple_server(leaf: &Leaf, tickets: Option<&TicketKeys>) -> ServerContext {
    let mut builder = builder();
    builder.certificate(&leaf.certified()).expect("a good certificate");
    builder.build(tickets).expect("a context")
}

pub(crate) fn client_builder(ca: &Ca) -> ClientContextBuilder {
    let verification = Verification::Full { roots_pem: ca.pem.clone(), rules: Vec::new() };
    let mut builder = ClientContextBuilder::new("upstream", verification);
    builder.clock = now_s;
    builder.alpn = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    builder
}

pub(crate) fn simple_client(ca: &Ca) -> ClientContext {
    client_builder(ca).build(None).expect("a client context")
}

/// Moves bytes both ways until neither end has any.
pub(crate) fn run(a: &mut Session, b: &mut Session) -> Result<(), TlsError> {
    run_in_pieces(a, b, usize::MAX)
}

/// As [`run`], with every flight cut into pieces. The first failure is the result: it is the cause, and what follows
/// is the alert it led to.
pub(crate) fn run_in_pieces(a: &mut Session, b: &mut Session, piece: usize) -> Result<(), TlsError> {
    let mut result = Ok(());
    while a.wants_write() || b.wants_write() {
        let up = relay(a, b, piece);
        let down = relay(b, a, piece);
        result = result.and(up).and(down);
    }
    result
}

fn relay(from: &mut Session, to: &mut Session, piece: usize) -> Result<(), TlsError> {
    let mut wire = Vec::new();
    from.write_tls(&mut wire);
    for part in wire.chunks_mut(piece) {
        to.read_tls(part)?;
    }
    Ok(())
}

/// A client and a server that have shaken hands.
pub(crate) fn connect(client: &ClientContext, server: &ServerContext, name: &str) -> (Session, Session) {
    let (c, s, result) = try_connect(client, server, name);
    result.expect("a handshake");
    (c, s)
}

pub(crate) fn try_connect(
    client: &ClientContext,
    server: &ServerContext,
    name: &str,
) -> (Session, Session, Result<(), TlsError>) {
    let mut c = Session::client(client, name).expect("a client session");
    let mut s = Session::server(server);
    let result = run(&mut c, &mut s);
    (c, s, result)
}

/// Sends `data` from one end to the other and returns what arrived.
pub(crate) fn transfer(from: &mut Session, to: &mut Session, data: &[u8]) -> Vec<u8> {
    let mut arrived = Vec::new();
    let mut sent = 0;
    while sent < data.len() {
        let taken = from.write_plain(&data[sent..]).expect("writes");
        assert!(taken > 0, "a connected session takes data");
        sent += taken;
        run(from, to).expect("moves");
        let mut part = Vec::new();
        while let Plain::Bytes(_) = to.take_plain(&mut part).expect("reads") {
            arrived.append(&mut part);
        }
    }
    arrived
}
