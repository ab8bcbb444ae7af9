//! Session tickets: keys that a fleet shares, and the sealing of one ticket.
//!
//! Keys rotate `next → current → previous`: `current` seals, all three open, so a proxy that has rotated a moment
//! earlier or later than its neighbour still resumes the neighbour's sessions. A ticket holds
//!
//! ```text
//! key name (16) │ salt (16) │ nonce (12) │ AES-256-GCM( issued, seconds since 1970 (8) │ session ) + tag (16)
//! ```
//!
//! The sealing key is HMAC-SHA256(ticket key, salt), the salt drawn once per context: each core seals under a key
//! of its own, so the 2³² bound of random GCM nonces (NIST SP 800-38D §8.3) holds per core, not per fleet. The
//! additional data is the tag of the client-auth policy: a ticket won under a name without client certificates
//! does not open under a name that demands them. rustls itself adds that the server name must be equal (RFC 6066
//! §3). Lifetime is checked here; rustls checks it for 0-RTT alone.
#![expect(
    clippy::disallowed_types,
    reason = "rustls takes its ticketer as Arc; the ring is shared inside one core only"
)]

use std::fmt;
use std::sync::Arc;

use rustls::server::ProducesTickets;

use crate::error::{ContextError, TicketKeyError};
use crate::locked::SecretBytes;
use crate::provider::{WallClock, aead, hmac, random, sha256};

const NAME_BYTES: usize = 16;
const SALT_BYTES: usize = 16;
const SECRET_BYTES: usize = 32;
const ISSUED_BYTES: usize = 8;
/// Clocks of two proxies may differ by this much.
const CLOCK_SKEW_S: u64 = 60;
/// RFC 8446 §4.6.1: at most seven days.
const LIFETIME_S_MAX: u64 = 604_800;

/// One ticket key.
#[derive(Debug)]
pub struct TicketKey {
    name: [u8; NAME_BYTES],
    secret: SecretBytes,
}

impl TicketKey {
    /// From 48 or 80 random bytes, the sizes of nginx and HAProxy key files. The first 16 are the public name.
    ///
    /// # Errors
    /// Another length.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TicketKeyError> {
        let length = TicketKeyError::Length { bytes: bytes.len() };
        if !matches!(bytes.len(), 48 | 80) {
            return Err(length);
        }
        let Some((name, material)) = bytes.split_first_chunk::<NAME_BYTES>() else { return Err(length) };
        // Both sizes become one 256-bit secret (RFC 5869 extract, with a label as the salt).
        let extract = hmac::Key::new(hmac::HMAC_SHA256, b"shard session ticket key 1");
        let secret = SecretBytes::from_slice(hmac::sign(&extract, material).as_ref());
        Ok(Self { name: *name, secret })
    }

    /// A fresh key.
    ///
    /// # Errors
    /// When the system gives no randomness.
    pub fn generate() -> Result<Self, TicketKeyError> {
        let mut bytes = SecretBytes::zeroed(80);
        random(bytes.as_mut_slice())?;
        Self::from_bytes(bytes.as_slice())
    }

    /// Another copy, for another core.
    pub fn duplicate(&self) -> Self {
        Self { name: self.name, secret: self.secret.duplicate() }
    }
}

/// The ticket keys of one moment. Every core has its own copy ([`TicketKeys::duplicate`]).
#[derive(Debug)]
pub struct TicketKeys {
    next: Option<TicketKey>,
    current: TicketKey,
    previous: Option<TicketKey>,
}

impl TicketKeys {
    /// # Errors
    /// Two keys with one name.
    pub fn new(
        next: Option<TicketKey>,
        current: TicketKey,
        previous: Option<TicketKey>,
    ) -> Result<Self, TicketKeyError> {
        let keys = Self { next, current, previous };
        let names: Vec<_> = keys.in_order().map(|k| k.name).collect();
        let repeated =
            names.iter().enumerate().any(|(i, name)| names.iter().skip(i + 1).any(|other| other == name));
        if repeated { Err(TicketKeyError::SameName) } else { Ok(keys) }
    }

    /// Keys of this process alone: sessions do not resume elsewhere or after a restart.
    ///
    /// # Errors
    /// When the system gives no randomness.
    pub fn generate() -> Result<Self, TicketKeyError> {
        Self::new(Some(TicketKey::generate()?), TicketKey::generate()?, None)
    }

    /// One step: `next` becomes current, current becomes previous, previous is zeroed and gone. Without a `next`
    /// the new key is current at once, and proxies that lack it cannot open its tickets yet.
    ///
    /// # Errors
    /// When the new key bears the name of one that stays; the keys are then unchanged.
    pub fn rotate(&mut self, new_next: TicketKey) -> Result<(), TicketKeyError> {
        let stays = self.next.as_ref().is_some_and(|k| k.name == new_next.name);
        if stays || self.current.name == new_next.name {
            return Err(TicketKeyError::SameName);
        }
        let (current, next) = match self.next.take() {
            Some(next) => (next, Some(new_next)),
            None => (new_next, None),
        };
        self.previous = Some(std::mem::replace(&mut self.current, current));
        self.next = next;
        Ok(())
    }

    /// Another copy, for another core.
    pub fn duplicate(&self) -> Self {
        Self {
            next: self.next.as_ref().map(TicketKey::duplicate),
            current: self.current.duplicate(),
            previous: self.previous.as_ref().map(TicketKey::duplicate),
        }
    }

    /// The current key first: most tickets are its.
    fn in_order(&self) -> impl Iterator<Item = &TicketKey> {
        std::iter::once(&self.current).chain(&self.previous).chain(&self.next)
    }
}

/// The keys of one context, ready to work: shared by the ticketers of its policies.
pub(crate) struct KeyRing {
    /// In the order of `TicketKeys::in_order`; the first one is current.
    names: Vec<[u8; NAME_BYTES]>,
    /// `SECRET_BYTES` for each name, in one locked page.
    secrets: SecretBytes,
    salt: [u8; SALT_BYTES],
    sealing: aead::LessSafeKey,
}

impl KeyRing {
    pub(crate) fn new(keys: &TicketKeys) -> Result<Self, TicketKeyError> {
        let names: Vec<_> = keys.in_order().map(|k| k.name).collect();
        let mut secrets = SecretBytes::zeroed(names.len() * SECRET_BYTES);
        for (place, key) in secrets.as_mut_slice().chunks_exact_mut(SECRET_BYTES).zip(keys.in_order()) {
            place.copy_from_slice(key.secret.as_slice());
        }
        let mut salt = [0; SALT_BYTES];
        random(&mut salt)?;
        let sealing = derive(keys.current.secret.as_slice(), salt)
            .ok_or(TicketKeyError::Length { bytes: keys.current.secret.len() })?;
        Ok(Self { names, secrets, salt, sealing })
    }

    fn secret_of(&self, name: [u8; NAME_BYTES]) -> Option<&[u8]> {
        let at = self.names.iter().position(|n| *n == name)?;
        self.secrets.as_slice().chunks_exact(SECRET_BYTES).nth(at)
    }
}

fn derive(secret: &[u8], salt: [u8; SALT_BYTES]) -> Option<aead::LessSafeKey> {
    let key = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), &salt);
    aead::UnboundKey::new(&aead::AES_256_GCM, key.as_ref()).ok().map(aead::LessSafeKey::new)
}

/// Seals and opens tickets for one client-auth policy.
pub(crate) struct Ticketer {
    ring: Arc<KeyRing>,
    additional_data: [u8; 32],
    lifetime_s: u32,
    clock: WallClock,
}

impl Ticketer {
    /// `policy` is any description of the rules under which a ticket was won; it is hashed.
    pub(crate) fn new(ring: Arc<KeyRing>, policy: &[u8], lifetime_s: u32, clock: WallClock) -> Self {
        Self { ring, additional_data: sha256(policy), lifetime_s, clock }
    }
}

/// Checks a ticket lifetime in seconds.
pub(crate) fn lifetime_s(seconds: u64) -> Result<u32, ContextError> {
    let in_range = (1..=LIFETIME_S_MAX).contains(&seconds);
    u32::try_from(seconds).ok().filter(|_| in_range).ok_or(ContextError::TicketLifetime { seconds })
}

impl fmt::Debug for Ticketer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticketer")
            .field("keys", &self.ring.names.len())
            .field("lifetime_s", &self.lifetime_s)
            .finish()
    }
}

impl ProducesTickets for Ticketer {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        self.lifetime_s
    }

    fn encrypt(&self, session: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = [0; aead::NONCE_LEN];
        random(&mut nonce).ok()?;
        let mut sealed = Vec::with_capacity(ISSUED_BYTES + session.len() + aead::MAX_TAG_LEN);
        sealed.extend_from_slice(&(self.clock)().to_be_bytes());
        sealed.extend_from_slice(session);
        let additional = aead::Aad::from(self.additional_data);
        let unique = aead::Nonce::assume_unique_for_key(nonce);
        self.ring.sealing.seal_in_place_append_tag(unique, additional, &mut sealed).ok()?;

        let mut ticket = Vec::with_capacity(NAME_BYTES + SALT_BYTES + nonce.len() + sealed.len());
        ticket.extend_from_slice(self.ring.names.first()?);
        ticket.extend_from_slice(&self.ring.salt);
        ticket.extend_from_slice(&nonce);
        ticket.extend_from_slice(&sealed);
        Some(ticket)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_first_chunk::<NAME_BYTES>()?;
        let (salt, rest) = rest.split_first_chunk::<SALT_BYTES>()?;
        let (nonce, sealed) = rest.split_first_chunk::<{ aead::NONCE_LEN }>()?;
        let secret = self.ring.secret_of(*name)?;
        let ours = *salt == self.ring.salt && self.ring.names.first() == Some(name);
        let derived = if ours { None } else { Some(derive(secret, *salt)?) };
        let key = derived.as_ref().unwrap_or(&self.ring.sealing);

        let mut opened = sealed.to_vec();
        let additional = aead::Aad::from(self.additional_data);
        let unique = aead::Nonce::assume_unique_for_key(*nonce);
        let (issued, session) =
            key.open_in_place(unique, additional, &mut opened).ok()?.split_first_chunk::<ISSUED_BYTES>()?;
        let (issued, now) = (u64::from_be_bytes(*issued), (self.clock)());
        let fresh = issued <= now.saturating_add(CLOCK_SKEW_S)
            && now < issued.saturating_add(u64::from(self.lifetime_s));
        fresh.then(|| session.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static NOW_S: Cell<u64> = const { Cell::new(1_000_000) };
    }

    fn now() -> u64 {
        NOW_S.get()
    }

    fn key(seed: u8) -> TicketKey {
        TicketKey::from_bytes(&[seed; 80]).expect("80 bytes")
    }

    fn ticketer(keys: &TicketKeys, policy: &[u8]) -> Ticketer {
        Ticketer::new(Arc::new(KeyRing::new(keys).expect("ring")), policy, 3600, now)
    }

    fn keys(next: u8, current: u8, previous: u8) -> TicketKeys {
        TicketKeys::new(Some(key(next)), key(current), Some(key(previous))).expect("distinct")
    }

    #[test]
    fn three_rotations_and_who_opens_what() {
        let mut rotating = keys(2, 1, 0);
        let ticket = ticketer(&rotating, b"p").encrypt(b"state").expect("sealed");
        let open = |keys: &TicketKeys| ticketer(keys, b"p").decrypt(&ticket).is_some();
        assert!(open(&rotating.duplicate()), "another core with the same keys");
        assert!(open(&keys(1, 7, 8)), "a node that has not rotated yet: our current is its next");
        for (step, opens) in [(3, true), (4, false), (5, false)] {
            rotating.rotate(key(step)).expect("a new name");
            assert_eq!(open(&rotating), opens, "after key {step} came in");
        }
    }

    #[test]
    fn rotation_without_a_next_key_takes_effect_at_once() {
        let mut keys = TicketKeys::new(None, key(1), None).expect("one key");
        let old = ticketer(&keys, b"p").encrypt(b"s").expect("sealed");
        keys.rotate(key(2)).expect("a new name");
        assert_eq!(keys.rotate(key(2)), Err(TicketKeyError::SameName));
        let ring = ticketer(&keys, b"p");
        assert_eq!(ring.decrypt(&old).as_deref(), Some(&b"s"[..]));
        let new = ring.encrypt(b"s").expect("sealed");
        assert_eq!(new.first_chunk::<16>(), Some(&[2; 16]));
    }

    #[test]
    fn another_policy_does_not_open() {
        let keys = keys(2, 1, 0);
        let ticket = ticketer(&keys, b"no client certificates").encrypt(b"state").expect("sealed");
        assert!(ticketer(&keys, b"client certificates required").decrypt(&ticket).is_none());
        assert!(ticketer(&keys, b"no client certificates").decrypt(&ticket).is_some());
    }

    #[test]
    fn lifetime_is_enforced_to_the_second() {
        let keys = keys(2, 1, 0);
        let ring = ticketer(&keys, b"p");
        let issued = NOW_S.get();
        let ticket = ring.encrypt(b"state").expect("sealed");
        for (now, opens) in [
            (issued, true),
            (issued + 3599, true),
            (issued + 3600, false),
            (issued + 1_000_000, false),
            (issued - 60, true),
            (issued - 61, false),
        ] {
            NOW_S.set(now);
            assert_eq!(ring.decrypt(&ticket).is_some(), opens, "at {now}");
        }
        NOW_S.set(issued);
    }

    #[test]
    fn damaged_and_garbage_tickets_do_not_open() {
        let ring = ticketer(&keys(2, 1, 0), b"p");
        let ticket = ring.encrypt(b"state").expect("sealed");
        for at in 0..ticket.len() {
            let mut damaged = ticket.clone();
            damaged[at] ^= 1;
            assert!(ring.decrypt(&damaged).is_none(), "byte {at}");
            assert!(ring.decrypt(&ticket[..at]).is_none(), "cut at {at}");
        }
        assert!(ring.decrypt(&[]).is_none());
        assert!(ring.decrypt(&vec![1; 70_000]).is_none());
    }

    #[test]
    fn key_sizes_and_names() {
        for (bytes, good) in
            [(0, false), (16, false), (47, false), (48, true), (79, false), (80, true), (81, false)]
        {
            let made = TicketKey::from_bytes(&vec![9; bytes]);
            assert_eq!(made.is_ok(), good, "{bytes}");
        }
        assert!(matches!(TicketKeys::new(Some(key(1)), key(1), None), Err(TicketKeyError::SameName)));
        assert!(matches!(TicketKeys::new(None, key(1), Some(key(1))), Err(TicketKeyError::SameName)));
        for seconds in [0, 604_801, u64::MAX] {
            assert!(lifetime_s(seconds).is_err(), "{seconds}");
        }
        assert_eq!(lifetime_s(604_800).ok(), Some(604_800));
    }

    #[test]
    fn nothing_secret_is_printed() {
        let keys = keys(2, 1, 0);
        let text = format!("{keys:?} {:?}", ticketer(&keys, b"p"));
        assert!(text.contains("***"));
        let secret = keys.current.secret.as_slice();
        assert!(!text.contains(&format!("{secret:?}")));
    }
}
