//! TLS for the data plane: sans-IO sessions on rustls, certificates by SNI, tickets, key custody.
//!
//! - [`ServerContext`] and [`ClientContext`] are the immutable configuration of one core for one listener or
//!   cluster; they are built off the core and say what is wrong in the operator's words.
//! - [`Session`] is one connection in either role: bytes in, bytes out. It owns no socket and no timer; the one
//!   clock it sees is the [`WallClock`] of its context, for certificates and tickets.
//! - [`TicketKeys`] rotate; equal keys on other cores and hosts make sessions resume there.
//! - [`SecretBytes`] holds every private key and ticket key on its way in; [`MacKey`] signs what clients bring back.
//! - [`VerifyingKey`] checks what others have signed.
//!
//! Called by http/proxy and http/gateway on the request path, and by shard-bench. Imports nothing of ours. Feature `aws-lc` (the
//! default) or `ring` picks the cryptography.

mod certificate;
mod client;
mod error;
mod hello;
mod locked;
mod mac;
mod machine;
mod names;
mod pem;
mod provider;
mod server;
mod session;
mod signature;
mod ticket;
mod verify;

pub use certificate::{PeerCertificate, SanKind, SanMatch, SanRule};
pub use client::{ClientContext, ClientContextBuilder};
pub use error::{
    AuthorityProblem, CertificateProblem, ContextError, ContextWarning, PemProblem, TicketKeyError, TlsError,
    WarningKind,
};
pub use hello::{FirstBytes, first_look};
pub use locked::{Custody, SecretBytes, forbid_core_dumps};
pub use mac::MacKey;
pub use names::{PolicyId, UnknownName};
pub use provider::{KeyExchange, PostQuantum, RandomFailed, WallClock, system_clock};
pub use server::{CertifiedName, Identity, ServedNames, ServerContext, ServerContextBuilder};
pub use session::{EarlyData, HELLO_BYTES_MAX, Handshake, PLAIN_BYTES_MAX, Plain, Session};
pub use signature::{BadSignature, PublicKeyProblem, PublicNumbers, SignatureScheme, VerifyingKey, sha256};
pub use ticket::{TicketKey, TicketKeys};
pub use verify::{ClientAuth, ClientAuthorities, Verification};

/// A protocol version. Older ones do not exist here (RFC 8996).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    Tls12,
    Tls13,
}

/// The lowest and the highest version to negotiate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    pub min: Version,
    pub max: Version,
}

impl Default for Versions {
    fn default() -> Self {
        Self { min: Version::Tls12, max: Version::Tls13 }
    }
}

impl Versions {
    fn as_rustls(self) -> Result<&'static [&'static rustls::SupportedProtocolVersion], ContextError> {
        use rustls::version::{TLS12, TLS13};
        static BOTH: [&rustls::SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
        let [newer, older] = &BOTH;
        match (self.min, self.max) {
            (Version::Tls12, Version::Tls13) => Ok(&BOTH),
            (Version::Tls13, Version::Tls13) => Ok(std::slice::from_ref(newer)),
            (Version::Tls12, Version::Tls12) => Ok(std::slice::from_ref(older)),
            (Version::Tls13, Version::Tls12) => Err(ContextError::NoVersion),
        }
    }
}
