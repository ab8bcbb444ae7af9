//! From a server name to what is served under it: the certificates and the client-auth policy.
//!
//! Rules (RFC 6066 §3, RFC 9525 §6.3): an exact name wins over a wildcard; `*` stands for exactly one label, the
//! leftmost; case does not matter and one trailing dot is ignored; no name, or an IP literal, gets the default.
//! Invariants: keys are lower case without a trailing dot; every index lies inside `entries`; there is a default.
//! A lookup hashes the name and its parent, whatever the number of names. Built by the server context, read by
//! the resolver (per full handshake) and by the proxy's Host check.
#![expect(
    clippy::disallowed_types,
    reason = "rustls wants certified keys as Arc; one core owns them, so no count is shared"
)]

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use rustc_hash::FxBuildHasher;
use rustls::sign::CertifiedKey;
use rustls::{SignatureAlgorithm, SignatureScheme};

/// Longest DNS name in text form (RFC 1035 §2.3.4).
const NAME_BYTES_MAX: usize = 253;
/// Longest label (RFC 1035 §2.3.4).
const LABEL_BYTES_MAX: usize = 63;

/// Which client-auth policy holds for a name: an index into the server context's list. Two names with equal ids
/// have the same rules for client certificates, so one session may carry requests for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicyId(pub(crate) usize);

/// What to do with a client that asks for a name nobody serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownName {
    /// Serve the default certificate, under the default's policy.
    #[default]
    DefaultCertificate,
    /// Refuse with the alert `unrecognized_name` (RFC 6066 §3).
    Refuse,
}

/// A name to serve: normalised, and known to be matchable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ServedName {
    Exact(Box<str>),
    /// The parent: `a.com` for `*.a.com`.
    Wildcard(Box<str>),
}

impl ServedName {
    /// # Errors
    /// Why no client could be matched with `name`.
    pub(crate) fn parse(name: &str) -> Result<Self, &'static str> {
        let (wildcard, rest) = match name.strip_prefix("*.") {
            Some(parent) => (true, parent),
            None => (false, name),
        };
        if rest.contains('*') {
            return Err("`*` may only be the whole leftmost label");
        }
        let mut buffer = [0; NAME_BYTES_MAX];
        let Some(plain) = normalise(rest, &mut buffer) else {
            return Err("it is not a DNS name (ASCII letters, digits, `-`, `_`; labels of 1 to 63 bytes)");
        };
        if wildcard && !plain.contains('.') {
            return Err("clients accept a wildcard only above at least two labels");
        }
        Ok(if wildcard { Self::Wildcard(plain.into()) } else { Self::Exact(plain.into()) })
    }

    /// Whether a certificate with this name in it covers `other`.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Wildcard(parent), Self::Exact(name)) => {
                name.split_once('.').is_some_and(|(_, rest)| rest == &**parent)
            }
            (a, b) => a == b,
        }
    }
}

impl fmt::Display for ServedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Wildcard(parent) => write!(f, "*.{parent}"),
        }
    }
}

/// Lower case, without one trailing dot; None when it is not a DNS name.
pub(crate) fn normalise<'b>(name: &str, buffer: &'b mut [u8; NAME_BYTES_MAX]) -> Option<&'b str> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let place = buffer.get_mut(..name.len())?;
    place.copy_from_slice(name.as_bytes());
    place.make_ascii_lowercase();
    let legal = place.split(|&b| b == b'.').all(|label| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && label.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    });
    if legal { std::str::from_utf8(place).ok() } else { None }
}

/// What is served under a name.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Cheapest signature first; one per kind of key.
    keys: Vec<Arc<CertifiedKey>>,
    pub(crate) policy: PolicyId,
}

impl Entry {
    pub(crate) fn new(mut keys: Vec<Arc<CertifiedKey>>, policy: PolicyId) -> Self {
        keys.sort_by_key(|k| signing_cost(k.key.algorithm()));
        Self { keys, policy }
    }

    /// The first key that can make a signature the client takes. rustls has already cut `schemes` down to those
    /// that go with a common TLS 1.2 cipher suite. Without any, the last one: rustls then sends the right alert.
    fn choose(&self, schemes: &[SignatureScheme]) -> Option<&Arc<CertifiedKey>> {
        match self.keys.as_slice() {
            [only] => Some(only),
            keys => keys.iter().find(|k| k.key.choose_scheme(schemes).is_some()).or(keys.last()),
        }
    }
}

/// ECDSA and Ed25519 sign in about 12 µs to RSA-2048's 400 µs.
fn signing_cost(algorithm: SignatureAlgorithm) -> u8 {
    match algorithm {
        SignatureAlgorithm::ECDSA => 0,
        SignatureAlgorithm::ED25519 => 1,
        SignatureAlgorithm::RSA => 2,
        _ => 3,
    }
}

/// All names of a server context.
#[derive(Debug)]
pub(crate) struct NameTable {
    exact: HashMap<Box<str>, usize, FxBuildHasher>,
    /// By parent.
    wildcard: HashMap<Box<str>, usize, FxBuildHasher>,
    entries: Vec<Entry>,
    default: Entry,
    unknown: UnknownName,
}

impl NameTable {
    pub(crate) fn new(default: Entry, unknown: UnknownName) -> Self {
        Self {
            exact: HashMap::default(),
            wildcard: HashMap::default(),
            entries: Vec::new(),
            default,
            unknown,
        }
    }

    pub(crate) fn push(&mut self, entry: Entry) -> usize {
        self.entries.push(entry);
        self.entries.len() - 1
    }

    pub(crate) fn serve(&mut self, name: ServedName, entry: usize) {
        assert!(entry < self.entries.len(), "push the entry first");
        match name {
            ServedName::Exact(name) => self.exact.insert(name, entry),
            ServedName::Wildcard(parent) => self.wildcard.insert(parent, entry),
        };
    }

    /// The entry for what a client asked for; None: refuse it.
    pub(crate) fn lookup(&self, name: Option<&str>) -> Option<&Entry> {
        let Some(name) = name else { return Some(&self.default) };
        let mut buffer = [0; NAME_BYTES_MAX];
        let found = normalise(name, &mut buffer).and_then(|name| {
            let parent = || name.split_once('.').map(|(_, parent)| parent);
            self.exact.get(name).or_else(|| self.wildcard.get(parent()?))
        });
        match (found, self.unknown) {
            (Some(&entry), _) => self.entries.get(entry),
            (None, UnknownName::DefaultCertificate) => Some(&self.default),
            (None, UnknownName::Refuse) => None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.exact.len() + self.wildcard.len()
    }
}

/// Gives rustls the certificate, for names of one policy only.
///
/// The session has read the name before and chosen the rustls configuration (and so the client-auth rules) by it.
/// Should the two readings ever differ, the policy differs or nothing does: a name of another policy gets no
/// certificate here, so no session can come about under the wrong rules.
#[derive(Debug)]
pub(crate) struct PolicyResolver {
    pub(crate) names: Arc<NameTable>,
    pub(crate) policy: PolicyId,
}

impl rustls::server::ResolvesServerCert for PolicyResolver {
    fn resolve(&self, hello: rustls::server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let entry = self.names.lookup(hello.server_name())?;
        if entry.policy != self.policy {
            return None;
        }
        entry.choose(hello.signature_schemes()).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_names_are_refused() {
        let long_label = format!("{}.com", "a".repeat(64));
        let long_name = format!("{}com", "abc.".repeat(63));
        for bad in [
            "",
            ".",
            "*",
            "*.",
            "*.com",
            "a.*.com",
            "*a.com",
            "a*.com",
            "*.*.com",
            "**.a.com",
            "a..com",
            ".a.com",
            "a.com..",
            "ä.com",
            "a b.com",
            "a.com/",
            long_label.as_str(),
            long_name.as_str(),
        ] {
            assert!(ServedName::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn usable_names_are_normalised() {
        for (given, kept) in [
            ("a.com", "a.com"),
            ("A.COM.", "a.com"),
            ("*.A.com", "*.a.com"),
            ("*.b.a.com.", "*.b.a.com"),
            ("localhost", "localhost"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("_acme.x_y.com", "_acme.x_y.com"),
        ] {
            assert_eq!(ServedName::parse(given).map(|n| n.to_string()), Ok(kept.to_owned()));
        }
    }

    #[test]
    fn coverage_is_one_label() {
        for (certificate, name, covered) in [
            ("a.com", "a.com", true),
            ("*.a.com", "x.a.com", true),
            ("*.a.com", "*.a.com", true),
            ("*.a.com", "a.com", false),
            ("*.a.com", "x.y.a.com", false),
            ("*.b.a.com", "*.a.com", false),
            ("x.a.com", "*.a.com", false),
        ] {
            let parse = |n| ServedName::parse(n).expect("usable");
            assert_eq!(parse(certificate).covers(&parse(name)), covered, "{certificate} {name}");
        }
    }
}
