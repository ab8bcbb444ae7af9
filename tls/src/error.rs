//! What can go wrong: building a context (operator's words) and running a session (the peer's doing).
//!
//! [`ContextError`] and [`ContextWarning`] name the certificate and what to do; [`TlsError`] carries a stable
//! reason for counters and logs.

use std::fmt;

use crate::provider::RandomFailed;

/// A context cannot be built.
#[derive(Debug)]
pub enum ContextError {
    /// A certificate and its key cannot be served.
    Certificate {
        label: String,
        problem: CertificateProblem,
    },
    /// A CA bundle or its revocation lists cannot be used.
    Authorities {
        owner: String,
        problem: AuthorityProblem,
    },
    /// A server context without any certificate.
    NoCertificate,
    /// `default_certificate` names a label that was not added.
    UnknownDefault {
        label: String,
    },
    /// Two certificates serve one name with different client authentication.
    ClientAuthConflict {
        name: String,
        labels: [String; 2],
    },
    /// The lowest version is above the highest.
    NoVersion,
    /// A ticket lifetime of zero or above seven days (RFC 8446 §4.6.1).
    TicketLifetime {
        seconds: u64,
    },
    Tickets(TicketKeyError),
    Library(rustls::Error),
}

impl fmt::Display for ContextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certificate { label, problem } => write!(f, "certificate {label:?}: {problem}"),
            Self::Authorities { owner, problem } => write!(f, "trusted CAs of {owner}: {problem}"),
            Self::NoCertificate => f.write_str("a TLS listener needs at least one certificate"),
            Self::UnknownDefault { label } => {
                write!(f, "the default certificate {label:?} is not among the certificates")
            }
            Self::ClientAuthConflict { name, labels: [a, b] } => {
                write!(
                    f,
                    "certificates {a:?} and {b:?} both serve {name:?} but ask for different client authentication"
                )
            }
            Self::NoVersion => f.write_str("the lowest TLS version is above the highest"),
            Self::TicketLifetime { seconds } => {
                write!(f, "a ticket lifetime of {seconds} s: it must lie between 1 s and 604800 s (7 days)")
            }
            Self::Tickets(e) => e.fmt(f),
            Self::Library(e) => write!(f, "TLS configuration: {e}"),
        }
    }
}

impl std::error::Error for ContextError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Certificate { problem, .. } => problem.source(),
            Self::Authorities { problem, .. } => problem.source(),
            Self::Tickets(e) => Some(e),
            Self::Library(e) => Some(e),
            Self::NoCertificate
            | Self::UnknownDefault { .. }
            | Self::ClientAuthConflict { .. }
            | Self::NoVersion
            | Self::TicketLifetime { .. } => None,
        }
    }
}

impl From<rustls::Error> for ContextError {
    fn from(e: rustls::Error) -> Self {
        Self::Library(e)
    }
}

impl From<TicketKeyError> for ContextError {
    fn from(e: TicketKeyError) -> Self {
        Self::Tickets(e)
    }
}

/// Why one certificate cannot be served.
#[derive(Debug)]
pub enum CertificateProblem {
    Pem(PemProblem),
    /// The leaf is not a readable X.509 certificate.
    Unreadable(String),
    /// The key is of a kind or size that the provider does not take.
    Key(rustls::Error),
    /// The key belongs to another certificate.
    KeyMismatch,
    /// The leaf has no DNS name in its subject alternative names, and none was given.
    NoNames,
    /// A name that no client could ever be matched with.
    UnusableName {
        name: String,
        why: &'static str,
    },
}

impl CertificateProblem {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Key(e) => Some(e),
            Self::Pem(_)
            | Self::Unreadable(_)
            | Self::KeyMismatch
            | Self::NoNames
            | Self::UnusableName { .. } => None,
        }
    }
}

impl fmt::Display for CertificateProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pem(p) => p.fmt(f),
            Self::Unreadable(e) => write!(f, "the first certificate of the chain is not readable: {e}"),
            Self::Key(e) => write!(f, "the private key cannot be used: {e}"),
            Self::KeyMismatch => {
                f.write_str("the private key does not belong to the first certificate of the chain")
            }
            Self::NoNames => f.write_str(
                "the certificate holds no DNS name (subjectAltName); list the names it shall serve",
            ),
            Self::UnusableName { name, why } => write!(f, "the name {name:?} can never match: {why}"),
        }
    }
}

/// Why a PEM text is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PemProblem {
    NoCertificate,
    NoKey,
    EncryptedKey,
    Malformed(String),
}

impl fmt::Display for PemProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCertificate => f.write_str("the PEM text holds no certificate"),
            Self::NoKey => f.write_str("the PEM text holds no private key"),
            Self::EncryptedKey => f.write_str("the private key is encrypted; hand it over in the clear"),
            Self::Malformed(e) => write!(f, "malformed PEM: {e}"),
        }
    }
}

/// Why a CA bundle is refused.
#[derive(Debug)]
pub enum AuthorityProblem {
    Pem(PemProblem),
    /// One of the certificates cannot serve as a trust anchor; `index` counts from 0.
    Unusable {
        index: usize,
        error: rustls::Error,
    },
    /// The revocation lists are not readable, or there is no root.
    Verifier(rustls::server::VerifierBuilderError),
    /// A SAN rule that is empty.
    EmptySanRule,
}

impl AuthorityProblem {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unusable { error, .. } => Some(error),
            Self::Verifier(e) => Some(e),
            Self::Pem(_) | Self::EmptySanRule => None,
        }
    }
}

impl fmt::Display for AuthorityProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pem(p) => p.fmt(f),
            Self::Unusable { index, error } => {
                write!(f, "certificate number {} is no CA: {error}", index + 1)
            }
            Self::Verifier(e) => e.fmt(f),
            Self::EmptySanRule => f.write_str("an empty subject alternative name rule matches nothing"),
        }
    }
}

/// Why ticket keys are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TicketKeyError {
    /// A key file is 48 or 80 bytes long.
    Length {
        bytes: usize,
    },
    /// Two of the keys have the same name (their first 16 bytes).
    SameName,
    Random(RandomFailed),
}

impl fmt::Display for TicketKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { bytes } => {
                write!(f, "a ticket key of {bytes} bytes: 48 or 80 random bytes are needed")
            }
            Self::SameName => f.write_str("two ticket keys begin with the same 16 bytes; each needs its own"),
            Self::Random(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for TicketKeyError {}

impl From<RandomFailed> for TicketKeyError {
    fn from(e: RandomFailed) -> Self {
        Self::Random(e)
    }
}

/// A context was built, but somebody should look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextWarning {
    pub label: String,
    pub kind: WarningKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WarningKind {
    /// `notAfter` has passed; seconds since 1970.
    Expired { not_after_unix_s: i64 },
    /// `notBefore` has not come; seconds since 1970.
    NotYetValid { not_before_unix_s: i64 },
    /// An earlier certificate with the same kind of key serves this name already; this one is never chosen.
    NameTaken { name: String, by: String },
    /// A name was given that the certificate does not cover: clients will refuse it.
    NameNotCovered { name: String },
}

impl fmt::Display for ContextWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "certificate {:?}: ", self.label)?;
        match &self.kind {
            WarningKind::Expired { not_after_unix_s } => {
                write!(f, "expired (notAfter {not_after_unix_s} s since 1970)")
            }
            WarningKind::NotYetValid { not_before_unix_s } => {
                write!(f, "not valid yet (notBefore {not_before_unix_s} s since 1970)")
            }
            WarningKind::NameTaken { name, by } => {
                write!(f, "{name:?} is already served by {by:?} with the same kind of key")
            }
            WarningKind::NameNotCovered { name } => {
                write!(f, "does not cover {name:?}, which it is told to serve")
            }
        }
    }
}

/// A session failed. The alert for the peer, where TLS has one, is still to be drained by `write_tls`.
#[derive(Clone, Debug, PartialEq)]
pub enum TlsError {
    /// The client asked for a name that is not served here (RFC 6066 §3, alert 112).
    UnrecognizedName,
    /// The first message is longer than [`crate::session::HELLO_BYTES_MAX`].
    HelloTooLong,
    /// More undecrypted bytes than any sane peer needs: handshake messages cut into crumbs.
    TooManyFragments,
    /// The name of an upstream is neither a DNS name nor an IP address.
    ServerName(String),
    /// TLS itself: what the peer did, or a certificate that was refused.
    Protocol(rustls::Error),
}

impl TlsError {
    /// A stable word for counters and log lines.
    pub fn reason(&self) -> &'static str {
        use rustls::Error as E;
        match self {
            Self::UnrecognizedName => "tls_unrecognized_name",
            Self::HelloTooLong => "tls_hello_too_long",
            Self::TooManyFragments => "tls_too_many_fragments",
            Self::ServerName(_) => "tls_bad_server_name",
            Self::Protocol(E::AlertReceived(_)) => "tls_alert_received",
            Self::Protocol(E::InvalidCertificate(_)) => "tls_certificate_refused",
            Self::Protocol(E::NoCertificatesPresented) => "tls_certificate_missing",
            Self::Protocol(E::NoApplicationProtocol) => "tls_no_common_alpn",
            Self::Protocol(E::PeerIncompatible(_)) => "tls_peer_incompatible",
            Self::Protocol(E::PeerMisbehaved(_)) => "tls_peer_misbehaved",
            Self::Protocol(
                E::PeerSentOversizedRecord | E::InvalidMessage(rustls::InvalidMessage::MessageTooLarge),
            ) => "tls_record_too_long",
            Self::Protocol(
                E::InvalidMessage(_)
                | E::InappropriateMessage { .. }
                | E::InappropriateHandshakeMessage { .. },
            ) => "tls_bad_message",
            Self::Protocol(E::DecryptError) => "tls_decrypt_failed",
            Self::Protocol(_) => "tls_failed",
        }
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnrecognizedName => {
                f.write_str("the client asked for a server name that is not served here")
            }
            Self::HelloTooLong => f.write_str("the client's first message is too long"),
            Self::TooManyFragments => {
                f.write_str("the peer cuts its handshake messages into too many records")
            }
            Self::ServerName(name) => write!(f, "{name:?} is neither a DNS name nor an IP address"),
            Self::Protocol(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for TlsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Protocol(e) => Some(e),
            Self::UnrecognizedName | Self::HelloTooLong | Self::TooManyFragments | Self::ServerName(_) => {
                None
            }
        }
    }
}

impl From<rustls::Error> for TlsError {
    fn from(e: rustls::Error) -> Self {
        Self::Protocol(e)
    }
}
