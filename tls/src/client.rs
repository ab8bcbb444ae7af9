//! The client side's configuration: whom to trust upstream, what to show, what to resume.
//!
//! One [`ClientContext`] belongs to one core and one cluster. Sessions are kept by server name within the context,
//! so a session of one upstream name is never tried on another, nor under another cluster's trust rules.
#![expect(
    clippy::disallowed_types,
    reason = "rustls takes its parts as Arc; each core has its own, so no count is shared"
)]

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::pki_types::ServerName;
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use crate::Versions;
use crate::error::{ContextError, TlsError};
use crate::provider::{
    KeyExchange, PostQuantum, WallClock, provider, provider_of_groups, system_clock, time_provider,
};
use crate::server::Identity;
use crate::verify::{Verification, server_verifier};

/// Collects what makes a [`ClientContext`].
#[derive(Clone, Debug)]
pub struct ClientContextBuilder {
    /// What errors call it: the cluster's name.
    pub owner: String,
    pub verification: Verification,
    pub versions: Versions,
    /// Most preferred first; empty: no ALPN.
    pub alpn: Vec<Vec<u8>>,
    /// Server names whose sessions are remembered, eight tickets each; 0: no resumption.
    pub session_names_max: usize,
    /// Off by default: a hybrid share costs every upstream handshake a key pair and 1.2 KB.
    pub post_quantum: PostQuantum,
    /// Key exchange groups, most preferred first; empty: the usual ones, and `post_quantum`.
    pub groups: Vec<KeyExchange>,
    /// Whether sessions of [`Session::client_early`](crate::Session::client_early) may send before the handshake's end.
    /// Whoever turns it on answers for requests that arrive twice (RFC 8446 §8).
    pub early_data: bool,
    pub clock: WallClock,
}

impl ClientContextBuilder {
    pub fn new(owner: &str, verification: Verification) -> Self {
        Self {
            owner: owner.to_owned(),
            verification,
            versions: Versions::default(),
            alpn: Vec::new(),
            session_names_max: 32,
            post_quantum: PostQuantum::Off,
            groups: Vec::new(),
            early_data: false,
            clock: system_clock,
        }
    }

    /// Makes the context; `identity` is shown to upstreams that ask for a certificate.
    ///
    /// # Errors
    /// What is wrong with the CAs, the rules or the identity.
    pub fn build(&self, identity: Option<&Identity<'_>>) -> Result<ClientContext, ContextError> {
        let verifier = server_verifier(&self.verification)
            .map_err(|problem| ContextError::Authorities { owner: self.owner.clone(), problem })?;
        let provider = match self.groups.as_slice() {
            [] => provider(self.post_quantum),
            groups => provider_of_groups(groups),
        };
        let config = ClientConfig::builder_with_details(provider, time_provider(self.clock))
            .with_protocol_versions(self.versions.as_rustls()?)?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match identity {
            None => config.with_no_client_auth(),
            Some(identity) => config.with_client_cert_resolver(own_certificate(identity.load()?.0)),
        };
        config.alpn_protocols.clone_from(&self.alpn);
        config.resumption = match self.session_names_max {
            0 => Resumption::disabled(),
            // rustls counts tickets, eight for each name.
            names => Resumption::in_memory_sessions(names.saturating_mul(8)),
        };
        config.enable_early_data = self.early_data;
        Ok(ClientContext { config: Arc::new(config) })
    }
}

fn own_certificate(key: CertifiedKey) -> Arc<dyn ResolvesClientCert> {
    Arc::new(SingleCertAndKey::from(key))
}

/// Everything one core needs to open TLS connections to one cluster.
pub struct ClientContext {
    config: Arc<ClientConfig>,
}

impl ClientContext {
    /// The same context for another thread of the process that does not serve requests.
    pub fn share(&self) -> Self {
        Self { config: Arc::clone(&self.config) }
    }

    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }
}

/// A DNS name or an IP address, as rustls wants it.
pub(crate) fn server_name(name: &str) -> Result<ServerName<'static>, TlsError> {
    let plain = name.strip_prefix('[').and_then(|n| n.strip_suffix(']')).unwrap_or(name);
    ServerName::try_from(plain.to_owned()).ok().ok_or_else(|| TlsError::ServerName(name.to_owned()))
}

impl std::fmt::Debug for ClientContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientContext").field("alpn", &self.config.alpn_protocols).finish_non_exhaustive()
    }
}
