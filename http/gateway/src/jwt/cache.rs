//! The verified tokens of one core, by the hash of the whole token, so that a token is verified once and then looked up.
//!
//! ```text
//!   by_digest ──► entry          stalest ◄──► … ◄──► freshest, one doubly linked list
//! ```
//! Invariants: only tokens whose signature and claims held enter, so nobody without a signing key can push others out;
//! a token enters the cache of the provider that took it and is found there alone; a provider whose keys or rules have
//! changed has another identity, and with it an empty cache; a cache holds at most its provider's bound, and finding,
//! entering and leaving cost the same whatever it holds. Whether a token's time is over is not kept: the caller asks
//! each time.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::num::NonZeroU32;
use std::rc::Rc;

use super::{Identity, ProviderId};

/// SHA-256 of a token.
pub(super) type Digest = [u8; 32];

/// No entry: the end of the list.
const NONE: usize = usize::MAX;

#[derive(Debug)]
struct Entry {
    digest: Digest,
    identity: Rc<Identity>,
    staler: usize,
    fresher: usize,
}

#[derive(Debug)]
struct Cache {
    entries_max: usize,
    by_digest: HashMap<Digest, usize, BuildHasherDefault<FirstBytes>>,
    entries: Vec<Entry>,
    stalest: usize,
    freshest: usize,
}

impl Cache {
    fn new(entries_max: NonZeroU32) -> Self {
        Self {
            entries_max: usize::try_from(entries_max.get()).unwrap_or(usize::MAX),
            by_digest: HashMap::default(),
            entries: Vec::new(),
            stalest: NONE,
            freshest: NONE,
        }
    }

    fn find(&mut self, digest: &Digest) -> Option<Rc<Identity>> {
        let at = *self.by_digest.get(digest)?;
        if at != self.freshest {
            self.unlink(at);
            self.link(at);
        }
        self.entries.get(at).map(|entry| Rc::clone(&entry.identity))
    }

    /// Takes in a token that `find` did not find.
    fn insert(&mut self, digest: Digest, identity: Rc<Identity>) {
        let entry = Entry { digest, identity, staler: NONE, fresher: NONE };
        let at = if self.entries.len() < self.entries_max {
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            let at = self.stalest;
            self.unlink(at);
            if let Some(place) = self.entries.get_mut(at) {
                self.by_digest.remove(&place.digest);
                *place = entry;
            }
            at
        };
        self.by_digest.insert(digest, at);
        self.link(at);
    }

    fn unlink(&mut self, at: usize) {
        let Some((staler, fresher)) = self.entries.get(at).map(|entry| (entry.staler, entry.fresher)) else {
            return;
        };
        match self.entries.get_mut(staler) {
            Some(entry) => entry.fresher = fresher,
            None => self.stalest = fresher,
        }
        match self.entries.get_mut(fresher) {
            Some(entry) => entry.staler = staler,
            None => self.freshest = staler,
        }
    }

    fn link(&mut self, at: usize) {
        let before = self.freshest;
        if let Some(entry) = self.entries.get_mut(at) {
            (entry.staler, entry.fresher) = (before, NONE);
        }
        match self.entries.get_mut(before) {
            Some(entry) => entry.fresher = at,
            None => self.stalest = at,
        }
        self.freshest = at;
    }
}

/// A digest is as good as random in every bit, and none that a stranger chose is ever inserted.
#[derive(Debug, Default)]
struct FirstBytes(u64);

impl Hasher for FirstBytes {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_ne_bytes(*first);
        }
    }

    /// The length of an array, which is the same for all.
    fn write_usize(&mut self, _: usize) {}
}

/// How often the caches spared a verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// Tokens whose signature was looked at.
    pub verified: u64,
    /// Tokens that were found.
    pub from_cache: u64,
    /// Signatures that were looked at: of a token that names no key, one for each key of its kind.
    pub signatures: u64,
}

/// The caches of one core, one for each provider of its snapshot.
#[derive(Debug, Default)]
pub struct TokenCaches {
    caches: Vec<(ProviderId, Cache)>,
    /// What providers that have gone had verified, until it is freed.
    retired: Vec<Vec<Entry>>,
    pub(super) counts: TokenCounts,
}

impl TokenCaches {
    /// Keeps the caches of these providers, and retires those of all others: what their keys had verified is never found
    /// again.
    pub fn adopt(&mut self, providers: impl Iterator<Item = (ProviderId, NonZeroU32)>) {
        let mut old = std::mem::take(&mut self.caches);
        for (id, entries_max) in providers {
            if self.caches.iter().any(|(known, _)| *known == id) {
                continue;
            }
            let kept = old.iter().position(|(known, _)| *known == id).map(|at| old.swap_remove(at));
            self.caches.push(kept.unwrap_or_else(|| (id, Cache::new(entries_max))));
        }
        self.retired.extend(old.into_iter().map(|(_, cache)| cache.entries).filter(|old| !old.is_empty()));
    }

    /// Frees up to `count` retired entries: all at once would make a long turn.
    pub fn free_some(&mut self, count: usize) {
        if let Some(entries) = self.retired.last_mut() {
            entries.truncate(entries.len().saturating_sub(count));
        }
        self.retired.pop_if(|entries| entries.is_empty());
    }

    pub fn counts(&self) -> TokenCounts {
        self.counts
    }

    /// Tokens that are remembered.
    pub fn tokens(&self) -> usize {
        self.caches.iter().map(|(_, cache)| cache.entries.len()).sum()
    }

    pub(super) fn find(&mut self, provider: &ProviderId, digest: &Digest) -> Option<Rc<Identity>> {
        let found = self.cache(provider)?.find(digest);
        self.counts.from_cache += u64::from(found.is_some());
        found
    }

    /// Nothing is kept for a provider that the snapshot has no more: the request began under an older one.
    pub(super) fn insert(&mut self, provider: &ProviderId, digest: Digest, identity: &Rc<Identity>) {
        if let Some(cache) = self.cache(provider)
            // Two requests with one token may have waited for their turn together.
            && cache.find(&digest).is_none()
        {
            cache.insert(digest, Rc::clone(identity));
        }
    }

    fn cache(&mut self, provider: &ProviderId) -> Option<&mut Cache> {
        self.caches.iter_mut().find(|(id, _)| id == provider).map(|(_, cache)| cache)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(n: u32) -> Digest {
        let mut digest = [0; 32];
        // The same first bytes for many, so that they meet in the table.
        digest[..4].copy_from_slice(&(n % 3).to_le_bytes());
        digest[28..].copy_from_slice(&n.to_le_bytes());
        digest
    }

    fn identity(n: u32) -> Rc<Identity> {
        Rc::new(Identity { subject: n.to_string().into(), ..Identity::default() })
    }

    const A: ProviderId = ProviderId([1; 32]);
    const B: ProviderId = ProviderId([2; 32]);

    fn caches(entries_max: u32) -> TokenCaches {
        let mut caches = TokenCaches::default();
        caches.adopt([(A, NonZeroU32::new(entries_max).unwrap())].into_iter());
        caches
    }

    #[test]
    fn random_use_agrees_with_a_list_by_last_use() {
        for entries_max in [1, 2, 7, 64] {
            let mut caches = caches(entries_max);
            let mut model: Vec<u32> = Vec::new();
            let mut x = u64::from(entries_max);
            for _ in 0..5_000 {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let n = u32::try_from(x >> 40).unwrap() % (entries_max * 2);
                let found = caches.find(&A, &digest(n));
                assert_eq!(found.is_some(), model.contains(&n), "{n}");
                match found {
                    Some(found) => assert_eq!(*found.subject, *n.to_string()),
                    None => caches.insert(&A, digest(n), &identity(n)),
                }
                model.retain(|other| *other != n);
                model.push(n);
                if model.len() > usize::try_from(entries_max).unwrap() {
                    model.remove(0);
                }
                assert_eq!(caches.tokens(), model.len());
            }
        }
    }

    #[test]
    fn a_token_is_its_providers_and_goes_with_it() {
        let mut caches = caches(10);
        caches.insert(&A, digest(1), &identity(1));
        caches.insert(&B, digest(2), &identity(2));
        assert!(caches.find(&B, &digest(1)).is_none() && caches.find(&B, &digest(2)).is_none());
        let both = [(B, NonZeroU32::MIN), (A, NonZeroU32::MIN), (A, NonZeroU32::MIN)];
        caches.adopt(both.into_iter());
        assert!(caches.find(&A, &digest(1)).is_some(), "an unchanged provider keeps its tokens");
        caches.adopt([(B, NonZeroU32::MIN)].into_iter());
        caches.adopt([(A, NonZeroU32::MIN)].into_iter());
        assert!(caches.find(&A, &digest(1)).is_none());
    }

    #[test]
    fn what_has_gone_is_freed_bit_by_bit() {
        let mut caches = caches(10);
        let token = identity(1);
        (0..5).for_each(|n| caches.insert(&A, digest(n), &token));
        caches.adopt(std::iter::empty());
        assert_eq!((caches.tokens(), Rc::strong_count(&token)), (0, 6));
        for left in [4, 2, 1, 1] {
            caches.free_some(2);
            assert_eq!(Rc::strong_count(&token), left);
        }
        assert!(caches.retired.is_empty());
    }
}
