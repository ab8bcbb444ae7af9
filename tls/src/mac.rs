//! Message authentication with a key in custody, for values that clients carry and bring back.
//!
//! Called by http/proxy for the cookies of sticky sessions.

use crate::locked::SecretBytes;
use crate::provider::hmac;

/// A key of HMAC-SHA-256 (RFC 2104), in pages of its own.
#[derive(Debug)]
pub struct MacKey {
    secret: SecretBytes,
}

impl MacKey {
    /// Of any length; below 32 bytes it is weaker than the hash (RFC 2104 §3).
    #[must_use]
    pub const fn new(secret: SecretBytes) -> Self {
        Self { secret }
    }

    /// The tag of a message. Compare tags in constant time.
    #[must_use]
    pub fn tag(&self, message: &[u8]) -> [u8; 32] {
        // Made for each tag, so that the padded key lies in memory for no longer than that.
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.secret.as_slice());
        let mut tag = [0; 32];
        for (place, byte) in tag.iter_mut().zip(hmac::sign(&key, message).as_ref()) {
            *place = *byte;
        }
        tag
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_those_of_rfc_4231() {
        // Test case 2.
        let key = MacKey::new(SecretBytes::from_slice(b"Jefe"));
        let tag = key.tag(b"what do ya want for nothing?");
        let hex: String = tag.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        assert_ne!(tag, key.tag(b"what do ya want for nothing!"));
    }
}
