//! What tests of this crate share: samplers, and HMAC-SHA-256 for cookies, from the SHA-256 of the dev-dependency.

use sha2::{Digest, Sha256};

use crate::sampler::Sampler;
use crate::sticky::{CookieKey, CookieMac};

/// A sampler over weights by slot.
pub(crate) fn sampler(weights: &[u32]) -> Sampler {
    let mut sampler = Sampler::default();
    sampler.rebuild(weights.iter().copied());
    sampler
}

pub(crate) struct Keys {
    pub(crate) current: Option<Vec<u8>>,
    pub(crate) previous: Option<Vec<u8>>,
}

impl CookieMac for Keys {
    fn tag(&self, key: CookieKey, message: &[u8]) -> Option<[u8; 32]> {
        let key = match key {
            CookieKey::Current => self.current.as_ref(),
            CookieKey::Previous => self.previous.as_ref(),
        };
        key.map(|key| hmac_sha256(key, message))
    }
}

/// RFC 2104, for keys of at most a block.
pub(crate) fn hmac_sha256(key: &[u8], message: &[u8]) -> [u8; 32] {
    let pad = |byte: u8| -> Vec<u8> { (0..64).map(|at| key.get(at).copied().unwrap_or(0) ^ byte).collect() };
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize().into()
}
