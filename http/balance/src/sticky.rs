//! Sticky sessions: the cookie. The rings under whose versions it may have been written are in `generations`.
//!
//! ```text
//!   base64url( 1 | ring version (4) | session id (16) | tag (16) )        50 characters
//!   tag = HMAC-SHA-256( key, "shard sticky 1" | cluster (8) | ring version | session id ), cut to 128 bits
//! ```
//! The session id chooses the endpoint on the ring; the cookie names no endpoint. The current and the previous key are
//! accepted, a cookie of the previous one is written anew. Whatever does not verify (tampered, cut short, of another
//! cluster, replayed after two rotations) is a new session, counted by [`CookieFault`]. The HMAC itself is the caller's:
//! this crate links no cryptography.

use std::time::Duration;

use crate::endpoint::EndpointId;
use crate::hash::mix;
use crate::ring::{RingVersion, VIRTUAL_NODES_DEFAULT};

/// Characters of a cookie value.
pub const COOKIE_LENGTH: usize = 50;

const FORMAT: u8 = 1;
const PAYLOAD_BYTES: usize = 21;
const TAG_BYTES: usize = 16;
const RAW_BYTES: usize = PAYLOAD_BYTES + TAG_BYTES;
const CONTEXT: &[u8; 14] = b"shard sticky 1";

/// Which key a tag is to be made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CookieKey {
    Current,
    Previous,
}

/// HMAC-SHA-256 with the cluster's cookie keys.
pub trait CookieMac {
    /// None when there is no such key.
    fn tag(&self, key: CookieKey, message: &[u8]) -> Option<[u8; 32]>;
}

/// A session, as its cookie says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    pub id: [u8; 16],
    pub ring: RingVersion,
}

/// Why a cookie is not believed; the word for metric labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CookieFault {
    Length,
    Encoding,
    Format,
    /// Tampered with, of another cluster, or of a key that is gone.
    Tag,
}

impl CookieFault {
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Length => "cookie_length",
            Self::Encoding => "cookie_encoding",
            Self::Format => "cookie_format",
            Self::Tag => "cookie_tag",
        }
    }
}

impl Session {
    /// Its place on a ring.
    #[must_use]
    pub fn key(&self) -> u64 {
        let half = |bytes: &[u8]| bytes.iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        mix(half(&self.id[..8]), half(&self.id[8..]))
    }

    /// The session of a cookie value, and the key that it was written with.
    ///
    /// # Errors
    /// The value is not one that this fleet wrote for this cluster within two key periods.
    pub fn decode(
        cookie: &[u8],
        cluster: EndpointId,
        mac: &impl CookieMac,
    ) -> Result<(Self, CookieKey), CookieFault> {
        let text: &[u8; COOKIE_LENGTH] = cookie.try_into().map_err(|_length| CookieFault::Length)?;
        let raw = from_base64url(text).ok_or(CookieFault::Encoding)?;
        if raw[0] != FORMAT {
            return Err(CookieFault::Format);
        }
        let mut session = Self { id: [0; 16], ring: RingVersion(0) };
        session.id.copy_from_slice(&raw[5..PAYLOAD_BYTES]);
        session.ring = RingVersion(raw[1..5].iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)));
        let message = session.message(cluster);
        let verifies = |key| {
            let tag = mac.tag(key, &message)?;
            is_equal(&tag[..TAG_BYTES], &raw[PAYLOAD_BYTES..]).then_some(key)
        };
        let key = verifies(CookieKey::Current).or_else(|| verifies(CookieKey::Previous));
        key.map(|key| (session, key)).ok_or(CookieFault::Tag)
    }

    /// The cookie value, by the current key. None when there is no key.
    #[must_use]
    pub fn encode(&self, cluster: EndpointId, mac: &impl CookieMac) -> Option<[u8; COOKIE_LENGTH]> {
        let tag = mac.tag(CookieKey::Current, &self.message(cluster))?;
        let mut raw = [0; RAW_BYTES];
        raw[0] = FORMAT;
        raw[1..5].copy_from_slice(&self.ring.0.to_be_bytes());
        raw[5..PAYLOAD_BYTES].copy_from_slice(&self.id);
        raw[PAYLOAD_BYTES..].copy_from_slice(&tag[..TAG_BYTES]);
        Some(to_base64url(&raw))
    }

    fn message(&self, cluster: EndpointId) -> [u8; CONTEXT.len() + 8 + 4 + 16] {
        let mut message = [0; CONTEXT.len() + 8 + 4 + 16];
        message[..14].copy_from_slice(CONTEXT);
        message[14..22].copy_from_slice(&cluster.0.to_be_bytes());
        message[22..26].copy_from_slice(&self.ring.0.to_be_bytes());
        message[26..].copy_from_slice(&self.id);
        message
    }
}

/// Takes the same time wherever the first difference is.
fn is_equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn to_base64url(raw: &[u8; RAW_BYTES]) -> [u8; COOKIE_LENGTH] {
    let bit = |at: usize| raw.get(at / 8).map_or(0, |byte| byte >> (7 - at % 8) & 1);
    std::array::from_fn(|at| {
        let sextet = (0..6).fold(0usize, |sum, n| sum << 1 | usize::from(bit(at * 6 + n)));
        ALPHABET[sextet]
    })
}

/// None for a foreign character, and for bits behind the last byte that are not 0: one session has one spelling.
fn from_base64url(text: &[u8; COOKIE_LENGTH]) -> Option<[u8; RAW_BYTES]> {
    let mut raw = [0; RAW_BYTES];
    for (at, character) in text.iter().enumerate() {
        let sextet = ALPHABET.iter().position(|letter| letter == character)?;
        for n in 0..6 {
            let (bit, place) = (sextet >> (5 - n) & 1, at * 6 + n);
            match raw.get_mut(place / 8) {
                Some(byte) => *byte |= u8::try_from(bit).ok()? << (7 - place % 8),
                None if bit == 1 => return None,
                None => {}
            }
        }
    }
    Some(raw)
}

/// How long sessions stay under the ring that they were written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StickyRules {
    /// After a change of the endpoints; also how long a draining endpoint serves its sessions.
    pub overlap: Duration,
    pub virtual_nodes: u32,
}

impl Default for StickyRules {
    fn default() -> Self {
        Self { overlap: Duration::from_secs(30 * 60), virtual_nodes: VIRTUAL_NODES_DEFAULT }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Keys, hmac_sha256};

    const CLUSTER: EndpointId = EndpointId(42);
    const SESSION: Session = Session {
        id: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255],
        ring: RingVersion(0x0102_0304),
    };

    fn keys(current: &[u8], previous: Option<&[u8]>) -> Keys {
        Keys { current: Some(current.to_vec()), previous: previous.map(<[u8]>::to_vec) }
    }

    #[test]
    fn the_test_hmac_is_hmac() {
        // RFC 4231, test case 2.
        let tag = hmac_sha256(b"Jefe", b"what do ya want for nothing?");
        assert_eq!(tag[..4], [0x5b, 0xdc, 0xc1, 0x46]);
    }

    #[test]
    fn a_cookie_comes_back_as_its_session() {
        let cookie = SESSION.encode(CLUSTER, &keys(b"a", None)).unwrap();
        assert!(cookie.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte)));
        assert_eq!(Session::decode(&cookie, CLUSTER, &keys(b"a", None)), Ok((SESSION, CookieKey::Current)));
        assert_eq!(
            Session::decode(&cookie, CLUSTER, &keys(b"b", Some(b"a"))),
            Ok((SESSION, CookieKey::Previous))
        );
        assert_eq!(SESSION.encode(CLUSTER, &Keys { current: None, previous: None }), None);
    }

    #[test]
    fn what_was_tampered_with_or_is_too_old_is_a_new_session() {
        let keys = keys(b"c", Some(b"b"));
        let cookie = SESSION.encode(CLUSTER, &keys).unwrap();
        let decode = |cookie: &[u8]| Session::decode(cookie, CLUSTER, &keys).map(|_| ());
        for at in 0..COOKIE_LENGTH {
            for replacement in [b'A', b'B', b'_', b'9', b'=', b' ', 0] {
                let mut tampered = cookie;
                tampered[at] = replacement;
                assert!(tampered == cookie || decode(&tampered).is_err(), "{at}: {replacement}");
            }
            assert_eq!(decode(&cookie[..at]), Err(CookieFault::Length));
        }
        assert_eq!(decode(&[&cookie[..], b"A"].concat()), Err(CookieFault::Length));
        assert_eq!(decode(b""), Err(CookieFault::Length));
        let of_old_key = SESSION.encode(CLUSTER, &self::keys(b"a", None)).unwrap();
        assert_eq!(decode(&of_old_key), Err(CookieFault::Tag), "two rotations later");
        assert_eq!(
            Session::decode(&cookie, EndpointId(43), &keys),
            Err(CookieFault::Tag),
            "another cluster's"
        );
        let mut next_format = cookie;
        next_format[0] = b'B';
        assert_eq!(decode(&next_format), Err(CookieFault::Format));
    }
}
