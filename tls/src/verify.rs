//! Whom to trust: client certificates on the server side, server certificates on the client side.
//!
//! rustls and webpki do the verifying; this adds rules over subject alternative names and the description of a
//! policy that goes into tickets. Called by the context builders, and by rustls during full handshakes.
#![expect(clippy::disallowed_types, reason = "rustls takes its verifiers as Arc; each core has its own")]

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
};

use crate::certificate::{SanKind, SanMatch, SanRule, rules_hold};
use crate::error::AuthorityProblem;
use crate::pem;
use crate::provider::{PostQuantum, provider};

/// Whether clients show a certificate.
#[derive(Clone, Debug, Default)]
pub enum ClientAuth {
    /// None is asked for.
    #[default]
    None,
    /// One is asked for; a client may have none, but a bad one is refused.
    Optional(ClientAuthorities),
    /// No session without one.
    Required(ClientAuthorities),
}

/// Whose client certificates are good.
#[derive(Clone, Debug, Default)]
pub struct ClientAuthorities {
    /// Trusted CAs.
    pub roots_pem: Vec<u8>,
    /// Revocation lists for all certificates of a chain; empty: none are checked. A certificate whose CA is not
    /// among the lists is accepted.
    pub revocation_pem: Vec<u8>,
    /// One of these must hold; empty: any certificate of the CAs is good.
    pub rules: Vec<SanRule>,
}

impl ClientAuth {
    /// All that makes this policy what it is, unambiguously: equal bytes mean equal rules. Tickets are bound to it,
    /// so a change of CA, rule or revocation list also ends old sessions.
    pub(crate) fn description(&self) -> Result<Vec<u8>, AuthorityProblem> {
        let (mode, authorities) = match self {
            Self::None => return Ok(b"none".to_vec()),
            Self::Optional(a) => (&b"optional"[..], a),
            Self::Required(a) => (&b"required"[..], a),
        };
        let mut roots = pem::certificates(&authorities.roots_pem).map_err(AuthorityProblem::Pem)?;
        roots.sort_by(|a, b| a.as_ref().cmp(b.as_ref()));
        let mut out = mode.to_vec();
        let mut push = |part: &[u8]| {
            out.extend_from_slice(&part.len().to_be_bytes());
            out.extend_from_slice(part);
        };
        push(&roots.len().to_be_bytes());
        roots.iter().for_each(|root| push(root));
        push(&authorities.revocation_pem);
        for rule in &authorities.rules {
            if rule.text.is_empty() {
                return Err(AuthorityProblem::EmptySanRule);
            }
            push(&[
                match rule.kind {
                    SanKind::Dns => 0,
                    SanKind::Uri => 1,
                },
                match rule.how {
                    SanMatch::Exact => 0,
                    SanMatch::Prefix => 1,
                    SanMatch::Suffix => 2,
                },
            ]);
            push(rule.text.as_bytes());
        }
        Ok(out)
    }

    /// The verifier for rustls; None when no certificate is asked for.
    pub(crate) fn verifier(&self) -> Result<Option<Arc<dyn ClientCertVerifier>>, AuthorityProblem> {
        let (authorities, optional) = match self {
            Self::None => return Ok(None),
            Self::Optional(a) => (a, true),
            Self::Required(a) => (a, false),
        };
        let roots = root_store(&authorities.roots_pem)?;
        let lists = pem::revocation_lists(&authorities.revocation_pem).map_err(AuthorityProblem::Pem)?;
        let mut builder =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider(PostQuantum::Off))
                .with_crls(lists)
                .allow_unknown_revocation_status();
        if optional {
            builder = builder.allow_unauthenticated();
        }
        let inner = builder.build().map_err(AuthorityProblem::Verifier)?;
        if authorities.rules.is_empty() {
            return Ok(Some(inner));
        }
        Ok(Some(Arc::new(ClientRules { inner, rules: authorities.rules.clone() })))
    }
}

pub(crate) fn root_store(roots_pem: &[u8]) -> Result<RootCertStore, AuthorityProblem> {
    let mut roots = RootCertStore::empty();
    for (index, root) in pem::certificates(roots_pem).map_err(AuthorityProblem::Pem)?.into_iter().enumerate()
    {
        roots.add(root).map_err(|error| AuthorityProblem::Unusable { index, error })?;
    }
    Ok(roots)
}

fn check_rules(rules: &[SanRule], leaf: &CertificateDer<'_>) -> Result<(), Error> {
    if rules_hold(rules, leaf) {
        Ok(())
    } else {
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }
}

/// The CAs' verdict, and then the SAN rules.
#[derive(Debug)]
struct ClientRules {
    inner: Arc<dyn ClientCertVerifier>,
    rules: Vec<SanRule>,
}

impl ClientCertVerifier for ClientRules {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(leaf, intermediates, now)?;
        check_rules(&self.rules, leaf)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, leaf, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, leaf, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// How an upstream's certificate is verified.
#[derive(Clone, Debug)]
pub enum Verification {
    /// Chain to one of the roots, for the server name, and one of the rules (none: no further rule).
    Full { roots_pem: Vec<u8>, rules: Vec<SanRule> },
    /// Chain to one of the roots and one of the rules, whatever the server name: workload identities (SPIFFE).
    RulesOnly { roots_pem: Vec<u8>, rules: Vec<SanRule> },
    /// Any certificate. Only for tests by explicit config.
    Off,
}

/// The verifier of a client context.
pub(crate) fn server_verifier(
    verification: &Verification,
) -> Result<Arc<dyn ServerCertVerifier>, AuthorityProblem> {
    let algorithms = provider(PostQuantum::Off).signature_verification_algorithms;
    let (roots_pem, rules, by_name) = match verification {
        Verification::Off => return Ok(Arc::new(Upstream { algorithms, check: UpstreamCheck::Off })),
        Verification::Full { roots_pem, rules } => (roots_pem, rules, true),
        Verification::RulesOnly { roots_pem, rules } => (roots_pem, rules, false),
    };
    if rules.iter().any(|r| r.text.is_empty()) || (!by_name && rules.is_empty()) {
        return Err(AuthorityProblem::EmptySanRule);
    }
    let roots = Arc::new(root_store(roots_pem)?);
    let check = if by_name {
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider(PostQuantum::Off));
        let verifier = verifier.build().map_err(AuthorityProblem::Verifier)?;
        UpstreamCheck::Name { verifier, rules: rules.clone() }
    } else {
        UpstreamCheck::Rules { roots, rules: rules.clone() }
    };
    Ok(Arc::new(Upstream { algorithms, check }))
}

#[derive(Debug)]
struct Upstream {
    algorithms: WebPkiSupportedAlgorithms,
    check: UpstreamCheck,
}

#[derive(Debug)]
enum UpstreamCheck {
    Name { verifier: Arc<WebPkiServerVerifier>, rules: Vec<SanRule> },
    Rules { roots: Arc<RootCertStore>, rules: Vec<SanRule> },
    Off,
}

impl ServerCertVerifier for Upstream {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match &self.check {
            UpstreamCheck::Off => {}
            UpstreamCheck::Name { verifier, rules } => {
                verifier.verify_server_cert(leaf, intermediates, name, ocsp, now)?;
                check_rules(rules, leaf)?;
            }
            UpstreamCheck::Rules { roots, rules } => {
                let parsed = ParsedCertificate::try_from(leaf)?;
                verify_server_cert_signed_by_trust_anchor(
                    &parsed,
                    roots,
                    intermediates,
                    now,
                    self.algorithms.all,
                )?;
                check_rules(rules, leaf)?;
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, leaf, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, leaf, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
