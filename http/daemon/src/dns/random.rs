//! Random numbers of the resolver: message ids that nobody off the path can guess, and jitter.

use std::hash::{BuildHasher as _, RandomState};

/// A counter under the standard library's keyed hash: its 128-bit key comes from the operating system and never
/// leaves the process, so outputs that were seen do not tell the next one.
pub(super) struct Random {
    keys: RandomState,
    counter: u64,
}

impl Random {
    pub(super) fn new() -> Self {
        Self { keys: RandomState::new(), counter: 0 }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.counter = self.counter.wrapping_add(1);
        self.keys.hash_one(self.counter)
    }

    /// All 16 bits of a message id (RFC 5452 §9.2).
    pub(super) fn id(&mut self) -> u16 {
        let [low, high, ..] = self.next().to_le_bytes();
        u16::from_le_bytes([low, high])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_spread_and_differ_between_generators() {
        let (mut one, mut other) = (Random::new(), Random::new());
        let ids: std::collections::BTreeSet<u16> = (0..1000).map(|_| one.id()).collect();
        // 1000 draws of 65,536 leave about 992 different ones.
        assert!(ids.len() > 950, "{}", ids.len());
        assert!((0..8).any(|_| one.next() != other.next()));
    }
}
