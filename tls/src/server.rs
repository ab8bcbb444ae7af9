//! The server side's configuration: certificates, names, client authentication, tickets.
//!
//! One [`ServerContext`] belongs to one core: the certified keys and rustls configurations in it are counted
//! references, so two cores that shared one would contend on the counts. Build one per core from the same bytes;
//! equal ticket keys make the sessions of one core resume on another. Invariants: every policy id that the name
//! table gives out has a configuration; a configuration hands out certificates for names of its policy only.
//! Built off the core by the snapshot's compile step, read by [`crate::Session`] and the proxy's Host check.
#![expect(
    clippy::disallowed_types,
    reason = "rustls takes its parts as Arc; each core has its own, so no count is shared"
)]

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, NoServerSessionStorage};
use rustls::sign::CertifiedKey;

use crate::certificate::LeafFacts;
use crate::error::{CertificateProblem, ContextError, ContextWarning, WarningKind};
use crate::locked::SecretBytes;
use crate::names::{Entry, NameTable, PolicyId, PolicyResolver, ServedName, UnknownName};
use crate::provider::{PostQuantum, WallClock, provider, signing_key, system_clock, time_provider};
use crate::session::Session;
use crate::ticket::{KeyRing, TicketKeys, Ticketer, lifetime_s};
use crate::verify::ClientAuth;
use crate::{Versions, pem};

/// A chain and its key, on the way in.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    /// What errors and warnings call it: the resource's name or the file.
    pub label: &'a str,
    /// Leaf first, then the intermediates.
    pub chain_pem: &'a [u8],
    pub key_pem: &'a SecretBytes,
}

impl Identity<'_> {
    /// The key pair in rustls's form and the facts of its leaf.
    pub(crate) fn load(&self) -> Result<(CertifiedKey, LeafFacts), ContextError> {
        let problem = |problem| ContextError::Certificate { label: self.label.to_owned(), problem };
        let chain = pem::certificates(self.chain_pem).map_err(|e| problem(CertificateProblem::Pem(e)))?;
        let leaf =
            chain.first().map(|leaf| LeafFacts::read(leaf)).unwrap_or(Err("an empty chain".to_owned()));
        let facts = leaf.map_err(|e| problem(CertificateProblem::Unreadable(e)))?;
        let key = pem::private_key(self.key_pem).map_err(|e| problem(CertificateProblem::Pem(e)))?;
        let key = signing_key(&key.der()).map_err(|e| problem(CertificateProblem::Key(e)))?;
        let certified = CertifiedKey::new(chain, key);
        match certified.keys_match() {
            Ok(()) => Ok((certified, facts)),
            Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => Ok((certified, facts)),
            Err(rustls::Error::InconsistentKeys(_)) => Err(problem(CertificateProblem::KeyMismatch)),
            Err(e) => Err(problem(CertificateProblem::Key(e))),
        }
    }
}

/// A certificate and the names it serves.
#[derive(Clone, Copy, Debug)]
pub struct CertifiedName<'a> {
    pub identity: Identity<'a>,
    pub names: ServedNames<'a>,
    /// Client authentication under these names, where it differs from the builder's.
    pub client_auth: Option<&'a ClientAuth>,
}

/// Which names a certificate is served under.
#[derive(Clone, Copy, Debug, Default)]
pub enum ServedNames<'a> {
    /// The DNS names of the leaf's subjectAltName.
    #[default]
    FromCertificate,
    /// Exact names and `*.parent`; an empty list serves as the default only.
    Given(&'a [&'a str]),
}

/// Collects what makes a [`ServerContext`]. One builder makes one context.
#[derive(Debug)]
pub struct ServerContextBuilder {
    pub versions: Versions,
    /// Most preferred first; empty: no ALPN.
    pub alpn: Vec<Vec<u8>>,
    /// For names whose certificate says nothing of its own.
    pub client_auth: ClientAuth,
    pub unknown_name: UnknownName,
    /// Label of the certificate for clients that name none; None: the first one added.
    pub default_certificate: Option<String>,
    /// How long a ticket is good. Ticket keys must not rotate faster than this.
    pub ticket_lifetime: Duration,
    /// TLS 1.3 tickets after each handshake. A ticket is good for one connection (RFC 8446 §C.4), so two let a client
    /// open connections side by side; each costs about 2 µs.
    pub tickets_per_handshake: u8,
    pub post_quantum: PostQuantum,
    pub clock: WallClock,
    loaded: Vec<Loaded>,
    policies: Vec<Policy>,
    warnings: Vec<ContextWarning>,
}

#[derive(Debug)]
struct Loaded {
    label: String,
    key: Arc<CertifiedKey>,
    names: Vec<ServedName>,
    /// None: the builder's.
    policy: Option<PolicyId>,
}

/// Rules for client certificates, and their description for tickets.
#[derive(Debug)]
struct Policy {
    description: Vec<u8>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl Default for ServerContextBuilder {
    fn default() -> Self {
        Self {
            versions: Versions::default(),
            alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            client_auth: ClientAuth::None,
            unknown_name: UnknownName::default(),
            default_certificate: None,
            ticket_lifetime: Duration::from_secs(12 * 3600),
            tickets_per_handshake: 2,
            post_quantum: PostQuantum::default(),
            clock: system_clock,
            loaded: Vec::new(),
            policies: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

impl ServerContextBuilder {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a certificate. Of several with one name and one kind of key the first is served.
    ///
    /// # Errors
    /// [`ContextError::Certificate`] with what is wrong; an expired one is only a warning.
    pub fn certificate(&mut self, certified: &CertifiedName<'_>) -> Result<&mut Self, ContextError> {
        let label = certified.identity.label.to_owned();
        let (key, facts) = certified.identity.load()?;
        let names = self.names_of(certified, &facts)?;
        let policy = match certified.client_auth {
            Some(auth) => Some(policy_id(&mut self.policies, auth, &label)?),
            None => None,
        };
        self.warn_of_validity(&label, &facts);
        self.loaded.push(Loaded { label, key: Arc::new(key), names, policy });
        Ok(self)
    }

    fn names_of(
        &mut self,
        certified: &CertifiedName<'_>,
        facts: &LeafFacts,
    ) -> Result<Vec<ServedName>, ContextError> {
        let label = certified.identity.label;
        let parse_all = |names: &mut dyn Iterator<Item = &str>| -> Result<Vec<_>, ContextError> {
            names
                .map(|name| {
                    ServedName::parse(name).map_err(|why| ContextError::Certificate {
                        label: label.to_owned(),
                        problem: CertificateProblem::UnusableName { name: name.to_owned(), why },
                    })
                })
                .collect()
        };
        match certified.names {
            ServedNames::FromCertificate if facts.dns_names.is_empty() => Err(ContextError::Certificate {
                label: label.to_owned(),
                problem: CertificateProblem::NoNames,
            }),
            ServedNames::FromCertificate => parse_all(&mut facts.dns_names.iter().map(String::as_str)),
            ServedNames::Given(given) => {
                let names = parse_all(&mut given.iter().copied())?;
                let covering: Vec<_> =
                    facts.dns_names.iter().filter_map(|n| ServedName::parse(n).ok()).collect();
                for name in names.iter().filter(|name| !covering.iter().any(|c| c.covers(name))) {
                    let kind = WarningKind::NameNotCovered { name: name.to_string() };
                    self.warnings.push(ContextWarning { label: label.to_owned(), kind });
                }
                Ok(names)
            }
        }
    }

    fn warn_of_validity(&mut self, label: &str, facts: &LeafFacts) {
        let now = i64::try_from((self.clock)()).unwrap_or(i64::MAX);
        let kind = if facts.not_after_unix_s < now {
            WarningKind::Expired { not_after_unix_s: facts.not_after_unix_s }
        } else if facts.not_before_unix_s > now {
            WarningKind::NotYetValid { not_before_unix_s: facts.not_before_unix_s }
        } else {
            return;
        };
        self.warnings.push(ContextWarning { label: label.to_owned(), kind });
    }

    /// Makes the context. Without ticket keys no session resumes.
    ///
    /// # Errors
    /// What the whole cannot be: no certificate, contradictory client authentication, bad versions or lifetime.
    pub fn build(mut self, tickets: Option<&TicketKeys>) -> Result<ServerContext, ContextError> {
        let lifetime_s = lifetime_s(self.ticket_lifetime.as_secs())?;
        let default_policy = policy_id(&mut self.policies, &self.client_auth, "the listener")?;
        let names = Arc::new(self.name_table(default_policy)?);
        let mut policies = Vec::with_capacity(self.policies.len());
        for (id, policy) in self.policies.iter().enumerate() {
            let make = |post_quantum| self.rustls_config(PolicyId(id), policy, &names, post_quantum);
            let classic = Arc::new(make(PostQuantum::Off)?);
            let full = match self.post_quantum {
                PostQuantum::Offer => Arc::new(make(PostQuantum::Offer)?),
                PostQuantum::Off => Arc::clone(&classic),
            };
            policies.push(PolicyConfigs { description: policy.description.clone(), full, classic });
        }
        let shared = Arc::new(ServerShared { names, policies });
        let context = ServerContext {
            shared,
            warnings: self.warnings,
            lifetime_s,
            tickets_per_handshake: usize::from(self.tickets_per_handshake),
            clock: self.clock,
        };
        match tickets {
            Some(keys) => context.with_ticket_keys(keys),
            None => Ok(context),
        }
    }

    fn name_table(&mut self, default_policy: PolicyId) -> Result<NameTable, ContextError> {
        let policy_of = |loaded: &Loaded| loaded.policy.unwrap_or(default_policy);
        // Certificates by name: one for each kind of key.
        let mut served: BTreeMap<String, (ServedName, Vec<usize>)> = BTreeMap::new();
        for (index, loaded) in self.loaded.iter().enumerate() {
            for name in &loaded.names {
                let (_, holders) =
                    served.entry(name.to_string()).or_insert_with(|| (name.clone(), Vec::new()));
                let others = || holders.iter().filter_map(|&i| self.loaded.get(i));
                if let Some(other) = others().find(|o| policy_of(o) != policy_of(loaded)) {
                    let labels = [other.label.clone(), loaded.label.clone()];
                    return Err(ContextError::ClientAuthConflict { name: name.to_string(), labels });
                }
                let kind = loaded.key.key.algorithm();
                if let Some(other) = others().find(|o| o.key.key.algorithm() == kind) {
                    let kind = WarningKind::NameTaken { name: name.to_string(), by: other.label.clone() };
                    self.warnings.push(ContextWarning { label: loaded.label.clone(), kind });
                } else {
                    holders.push(index);
                }
            }
        }
        let entry_of = |holders: &[usize]| {
            let certs: Vec<_> = holders.iter().filter_map(|&i| self.loaded.get(i)).collect();
            let policy = certs.first().map_or(default_policy, |first| policy_of(first));
            Entry::new(certs.iter().map(|c| Arc::clone(&c.key)).collect(), policy)
        };
        let default = self.default_index()?;
        // The default's sibling (RSA beside ECDSA) stands in for it too, when they share its names.
        let siblings = served.values().map(|(_, holders)| holders).find(|holders| holders.contains(&default));
        let default = entry_of(siblings.map_or(std::slice::from_ref(&default), Vec::as_slice));
        let mut table = NameTable::new(default, self.unknown_name);
        let mut entries: HashMap<Vec<usize>, usize> = HashMap::new();
        for (name, holders) in served.into_values() {
            let entry = match entries.get(&holders) {
                Some(&entry) => entry,
                None => {
                    let entry = table.push(entry_of(&holders));
                    entries.insert(holders, entry);
                    entry
                }
            };
            table.serve(name, entry);
        }
        Ok(table)
    }

    fn default_index(&self) -> Result<usize, ContextError> {
        match &self.default_certificate {
            _ if self.loaded.is_empty() => Err(ContextError::NoCertificate),
            None => Ok(0),
            Some(label) => {
                let found = self.loaded.iter().position(|l| l.label == *label);
                found.ok_or_else(|| ContextError::UnknownDefault { label: label.clone() })
            }
        }
    }

    fn rustls_config(
        &self,
        id: PolicyId,
        policy: &Policy,
        names: &Arc<NameTable>,
        post_quantum: PostQuantum,
    ) -> Result<ServerConfig, ContextError> {
        let resolver = PolicyResolver { names: Arc::clone(names), policy: id };
        let mut config =
            ServerConfig::builder_with_details(provider(post_quantum), time_provider(self.clock))
                .with_protocol_versions(self.versions.as_rustls()?)?
                .with_client_cert_verifier(Arc::clone(&policy.verifier))
                .with_cert_resolver(Arc::new(resolver));
        // Our order is by cost on this processor: many clients put AES-256 first for no need.
        config.ignore_client_order = true;
        config.alpn_protocols.clone_from(&self.alpn);
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        config.cert_compression_cache = Arc::new(rustls::compress::CompressionCache::Disabled);
        Ok(config)
    }
}

fn policy_id(policies: &mut Vec<Policy>, auth: &ClientAuth, owner: &str) -> Result<PolicyId, ContextError> {
    let problem = |problem| ContextError::Authorities { owner: owner.to_owned(), problem };
    let description = auth.description().map_err(problem)?;
    if let Some(known) = policies.iter().position(|p| p.description == description) {
        return Ok(PolicyId(known));
    }
    let verifier = match auth.verifier().map_err(problem)? {
        Some(verifier) => verifier,
        None => Arc::new(NoClientAuth),
    };
    policies.push(Policy { description, verifier });
    Ok(PolicyId(policies.len() - 1))
}

/// What sessions need of a context until the ClientHello is there.
#[derive(Debug)]
pub(crate) struct ServerShared {
    pub(crate) names: Arc<NameTable>,
    policies: Vec<PolicyConfigs>,
}

/// One policy's configurations: with the hybrid group, and without for clients whom it would cost a round trip.
#[derive(Debug)]
struct PolicyConfigs {
    description: Vec<u8>,
    full: Arc<ServerConfig>,
    classic: Arc<ServerConfig>,
}

impl ServerShared {
    pub(crate) fn config(&self, policy: PolicyId, post_quantum: PostQuantum) -> Option<Arc<ServerConfig>> {
        let configs = self.policies.get(policy.0)?;
        Some(Arc::clone(match post_quantum {
            PostQuantum::Offer => &configs.full,
            PostQuantum::Off => &configs.classic,
        }))
    }
}

/// Everything one core needs to take TLS connections on one listener. Immutable.
pub struct ServerContext {
    pub(crate) shared: Arc<ServerShared>,
    warnings: Vec<ContextWarning>,
    lifetime_s: u32,
    tickets_per_handshake: usize,
    clock: WallClock,
}

impl ServerContext {
    /// The same context with other ticket keys: for a rotation. Certificates and names are shared with the old one,
    /// so it must stay on the same core.
    ///
    /// # Errors
    /// When the system gives no randomness.
    pub fn with_ticket_keys(&self, keys: &TicketKeys) -> Result<Self, ContextError> {
        let ring = Arc::new(KeyRing::new(keys)?);
        let policies = self.shared.policies.iter().map(|policy| {
            let ticketer =
                Arc::new(Ticketer::new(Arc::clone(&ring), &policy.description, self.lifetime_s, self.clock));
            let renew = |config: &Arc<ServerConfig>| {
                let mut config = ServerConfig::clone(config);
                config.ticketer = Arc::clone(&ticketer) as Arc<dyn rustls::server::ProducesTickets>;
                config.send_tls13_tickets = self.tickets_per_handshake;
                // RFC 9149: a client that asks for fewer, or none, costs no more than it asks for.
                config.max_tls13_tickets = self.tickets_per_handshake;
                Arc::new(config)
            };
            PolicyConfigs {
                description: policy.description.clone(),
                full: renew(&policy.full),
                classic: renew(&policy.classic),
            }
        });
        let shared = ServerShared { names: Arc::clone(&self.shared.names), policies: policies.collect() };
        Ok(Self {
            shared: Arc::new(shared),
            warnings: self.warnings.clone(),
            lifetime_s: self.lifetime_s,
            tickets_per_handshake: self.tickets_per_handshake,
            clock: self.clock,
        })
    }

    /// What the operator should look at; empty when all is well.
    pub fn warnings(&self) -> &[ContextWarning] {
        &self.warnings
    }

    /// The client-auth policy under `host` (no port); None when the name is refused here.
    pub fn policy_of(&self, host: &str) -> Option<PolicyId> {
        self.shared.names.lookup(Some(host)).map(|entry| entry.policy)
    }

    /// Whether a request for `host` may come over `session`: the rules for client certificates are those that the
    /// handshake went by. Otherwise the answer is 421 (RFC 9110 §15.5.20).
    pub fn covers(&self, session: &Session, host: &str) -> bool {
        session.policy().is_some_and(|policy| self.policy_of(host) == Some(policy))
    }

    /// How many names (wildcards count one) have a certificate.
    pub fn name_count(&self) -> usize {
        self.shared.names.len()
    }
}

impl std::fmt::Debug for ServerContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerContext")
            .field("names", &self.name_count())
            .field("policies", &self.shared.policies.len())
            .field("ticket_lifetime_s", &self.lifetime_s)
            .finish_non_exhaustive()
    }
}
