//! Certificates and TLS clients of the tests: a private authority, leaf certificates by name, rustls clients.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};

/// A certificate authority that lives as long as the test.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A leaf certificate with its key, both PEM.
#[derive(Clone, Debug)]
pub struct Leaf {
    pub certificate_pem: String,
    pub key_pem: String,
}

/// What kind of key a leaf has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    EcdsaP256,
    Rsa2048,
}

impl Default for Authority {
    fn default() -> Self {
        Self::new("shard tests")
    }
}

impl Authority {
    /// A new authority called `name`.
    ///
    /// # Panics
    /// Never with a usable random source.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().expect("a P-256 key can be made");
        let pem = params.self_signed(&key).expect("own key, own name").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// The authority's own certificate.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A leaf for DNS names and addresses, ECDSA P-256.
    #[must_use]
    pub fn leaf(&self, names: &[&str]) -> Leaf {
        self.leaf_with(names, KeyKind::EcdsaP256)
    }

    /// A leaf for DNS names and addresses with a chosen kind of key.
    ///
    /// # Panics
    /// When a name is neither.
    #[must_use]
    pub fn leaf_with(&self, names: &[&str], kind: KeyKind) -> Leaf {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names.clone()).expect("names or addresses");
        params.distinguished_name.push(DnType::CommonName, names.first().cloned().unwrap_or_default());
        let algorithm = match kind {
            KeyKind::EcdsaP256 => &rcgen::PKCS_ECDSA_P256_SHA256,
            KeyKind::Rsa2048 => &rcgen::PKCS_RSA_SHA256,
        };
        let key = KeyPair::generate_for(algorithm).expect("the provider makes such keys");
        let certificate = params.signed_by(&key, &self.issuer).expect("an authority signs");
        Leaf { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() }
    }

    /// A client's certificate: common name, one DNS name, URIs.
    ///
    /// # Panics
    /// When a URI is not ASCII.
    #[must_use]
    pub fn identity(&self, common_name: &str, dns_name: &str, uris: &[&str]) -> Leaf {
        let mut params = CertificateParams::new(vec![dns_name.to_owned()]).expect("a DNS name");
        params.distinguished_name.push(DnType::CommonName, common_name);
        let uris = uris.iter().map(|uri| SanType::URI((*uri).try_into().expect("ASCII")));
        params.subject_alt_names.extend(uris);
        let key = KeyPair::generate().expect("a P-256 key can be made");
        let certificate = params.signed_by(&key, &self.issuer).expect("an authority signs");
        Leaf { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() }
    }

    /// A client that trusts this authority, offers `alpn` and asks for `name`.
    #[must_use]
    pub fn client(&self, name: &str, alpn: &[&str]) -> ClientTls {
        ClientTls::new(&self.pem, name, alpn, None)
    }

    /// As [`Self::client`], showing a certificate.
    #[must_use]
    pub fn client_with(&self, name: &str, alpn: &[&str], identity: &Leaf) -> ClientTls {
        ClientTls::new(&self.pem, name, alpn, Some(identity))
    }

    /// A server configuration that shows `leaf` (for origins behind the proxy).
    ///
    /// # Panics
    /// Never with leaves of this module.
    #[must_use]
    pub fn server(&self, leaf: &Leaf, alpn: &[&str]) -> Arc<rustls::ServerConfig> {
        let builder = rustls::ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider knows TLS 1.3")
            .with_no_client_auth();
        let (chain, key) = chain_and_key(leaf);
        let mut config = builder.with_single_cert(chain, key).expect("certificate and key belong together");
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

/// A client's side of TLS: trust, names, and the session cache that all its connections share.
#[derive(Clone)]
pub struct ClientTls {
    config: Arc<rustls::ClientConfig>,
    name: ServerName<'static>,
}

impl ClientTls {
    fn new(authority_pem: &str, name: &str, alpn: &[&str], identity: Option<&Leaf>) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate(authority_pem)).expect("an authority's certificate");
        let builder = rustls::ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider knows TLS 1.3")
            .with_root_certificates(roots);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(leaf) => {
                let (chain, key) = chain_and_key(leaf);
                builder.with_client_auth_cert(chain, key).expect("certificate and key belong together")
            }
        };
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        let name = ServerName::try_from(name.to_owned()).expect("a DNS name or an address");
        Self { config: Arc::new(config), name }
    }

    /// A new session.
    #[must_use]
    pub fn connection(&self) -> rustls::ClientConnection {
        rustls::ClientConnection::new(Arc::clone(&self.config), self.name.clone())
            .expect("a valid configuration")
    }

    /// The configuration, for asynchronous clients.
    #[must_use]
    pub fn config(&self) -> Arc<rustls::ClientConfig> {
        Arc::clone(&self.config)
    }

    /// The name that is asked for.
    #[must_use]
    pub fn name(&self) -> ServerName<'static> {
        self.name.clone()
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn certificate(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM from this module")
}

fn chain_and_key(leaf: &Leaf) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let key = PrivateKeyDer::from_pem_slice(leaf.key_pem.as_bytes()).expect("PEM from this module");
    (vec![certificate(&leaf.certificate_pem)], key)
}
