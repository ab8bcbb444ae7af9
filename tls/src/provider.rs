//! The crypto provider: one place that knows whether aws-lc-rs or ring is underneath.
//!
//! Owns the order of cipher suites and groups, the hash and random helpers, and the clock that rustls is given.
//! Invariant: both features compile; with both on, aws-lc-rs is used.
#![expect(
    clippy::disallowed_types,
    reason = "rustls takes its provider and clock as Arc; built off the request path"
)]

use std::sync::Arc;

use rustls::SupportedCipherSuite;
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::pki_types::{PrivateKeyDer, UnixTime};
use rustls::sign::SigningKey;
use rustls::time_provider::TimeProvider;

#[cfg(feature = "aws-lc")]
pub(crate) use aws_lc_rs::{aead, digest, hmac, rand, signature};
#[cfg(all(feature = "ring", not(feature = "aws-lc")))]
pub(crate) use ring::{aead, digest, hmac, rand, signature};

#[cfg(feature = "aws-lc")]
use rustls::crypto::aws_lc_rs as backend;
#[cfg(all(feature = "ring", not(feature = "aws-lc")))]
use rustls::crypto::ring as backend;

#[cfg(not(any(feature = "aws-lc", feature = "ring")))]
compile_error!("the tls crate needs one of the features `aws-lc` (default) and `ring`");

/// Seconds since 1970 by the wall clock. Certificates and tickets are judged by it. The daemon hands in the
/// shard's coarse clock; [`system_clock`] reads the kernel's.
pub type WallClock = fn() -> u64;

/// The kernel's wall clock.
pub fn system_clock() -> u64 {
    UnixTime::now().as_secs()
}

#[derive(Debug)]
struct Clock(WallClock);

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs((self.0)())))
    }
}

pub(crate) fn time_provider(clock: WallClock) -> Arc<dyn TimeProvider> {
    Arc::new(Clock(clock))
}

/// Whether X25519MLKEM768 may be negotiated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PostQuantum {
    /// When the client has sent a share for it: never at the price of another round trip.
    #[default]
    Offer,
    Off,
}

/// The provider with suites in order of cost on this processor and with or without the hybrid group.
pub(crate) fn provider(post_quantum: PostQuantum) -> Arc<CryptoProvider> {
    let mut provider = backend::default_provider();
    provider.cipher_suites = cipher_suites();
    provider.kx_groups = kx_groups(post_quantum);
    Arc::new(provider)
}

/// A key exchange group, for clients that choose their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyExchange {
    X25519,
    Secp256r1,
    Secp384r1,
    #[cfg(feature = "aws-lc")]
    X25519MlKem768,
}

/// The provider with exactly these groups, most preferred first.
pub(crate) fn provider_of_groups(groups: &[KeyExchange]) -> Arc<CryptoProvider> {
    use backend::kx_group as group;
    let mut provider = backend::default_provider();
    provider.cipher_suites = cipher_suites();
    provider.kx_groups = groups
        .iter()
        .map(|name| match name {
            KeyExchange::X25519 => group::X25519,
            KeyExchange::Secp256r1 => group::SECP256R1,
            KeyExchange::Secp384r1 => group::SECP384R1,
            #[cfg(feature = "aws-lc")]
            KeyExchange::X25519MlKem768 => group::X25519MLKEM768,
        })
        .collect();
    Arc::new(provider)
}

fn cipher_suites() -> Vec<SupportedCipherSuite> {
    use backend::cipher_suite as suite;
    let (aes, chacha) = (
        [
            suite::TLS13_AES_128_GCM_SHA256,
            suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        ],
        [
            suite::TLS13_CHACHA20_POLY1305_SHA256,
            suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
            suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        ],
    );
    let strong = [
        suite::TLS13_AES_256_GCM_SHA384,
        suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    ];
    let (first, last) = if has_fast_aes() { (aes, chacha) } else { (chacha, aes) };
    first.into_iter().chain(strong).chain(last).collect()
}

fn kx_groups(post_quantum: PostQuantum) -> Vec<&'static dyn SupportedKxGroup> {
    use backend::kx_group as group;
    #[cfg_attr(not(feature = "aws-lc"), expect(unused_mut, reason = "only aws-lc-rs has a group to add"))]
    let mut groups: Vec<&'static dyn SupportedKxGroup> =
        vec![group::X25519, group::SECP256R1, group::SECP384R1];
    #[cfg(feature = "aws-lc")]
    if post_quantum == PostQuantum::Offer {
        groups.insert(0, group::X25519MLKEM768);
    }
    #[cfg(not(feature = "aws-lc"))]
    let (PostQuantum::Offer | PostQuantum::Off) = post_quantum;
    groups
}

/// ChaCha20 is faster than AES-GCM in software, slower than AES instructions.
fn has_fast_aes() -> bool {
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")))]
    return false;
}

/// Parses a private key without copying it on our side of the provider.
pub(crate) fn signing_key(der: &PrivateKeyDer<'_>) -> Result<Arc<dyn SigningKey>, rustls::Error> {
    backend::sign::any_supported_type(der)
}

pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    let hash = digest::digest(&digest::SHA256, bytes);
    for (place, byte) in out.iter_mut().zip(hash.as_ref()) {
        *place = *byte;
    }
    out
}

/// Fills `out` from the provider's random generator.
///
/// # Errors
/// When the operating system gives no entropy.
pub(crate) fn random(out: &mut [u8]) -> Result<(), RandomFailed> {
    use rand::SecureRandom as _;
    rand::SystemRandom::new().fill(out).or(Err(RandomFailed))
}

/// The system's random generator failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomFailed;

impl std::fmt::Display for RandomFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the system's random generator failed")
    }
}

impl std::error::Error for RandomFailed {}
