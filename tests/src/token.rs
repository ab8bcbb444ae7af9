//! An issuer of bearer tokens: a key on P-256, its JWK, and tokens with any claims signed by it (ES256).

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Map, Value, json};

/// A key with its id.
#[derive(Debug)]
pub struct Issuer {
    key_id: String,
    pair: EcdsaKeyPair,
}

impl Issuer {
    /// An issuer with a new key.
    #[must_use]
    pub fn new(key_id: &str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("randomness");
        Self { key_id: key_id.to_owned(), pair }
    }

    /// The public key.
    #[must_use]
    pub fn jwk(&self) -> Value {
        // SEC 1 §2.3.3: a byte for the form, then the coordinates.
        let point = self.pair.public_key().as_ref();
        let (x, y) = (base64url(&point[1..33]), base64url(&point[33..]));
        json!({ "kty": "EC", "crv": "P-256", "use": "sig", "kid": self.key_id, "x": x, "y": y })
    }

    /// A key set of this and other keys.
    #[must_use]
    pub fn key_set(&self, others: &[&Self]) -> String {
        let keys: Vec<Value> = std::iter::once(self).chain(others.iter().copied()).map(Self::jwk).collect();
        json!({ "keys": keys }).to_string()
    }

    /// A good token for five minutes, but for the claims that are changed here; null takes one away.
    #[must_use]
    pub fn token(&self, changes: Value) -> String {
        let mut claims = json!({
            "iss": ISSUER,
            "aud": [AUDIENCE],
            "sub": "user-1",
            "scope": "orders.read",
            "iat": unix_s(),
            "exp": unix_s() + 300,
        });
        let changes: Map<String, Value> = changes.as_object().cloned().unwrap_or_default();
        for (name, value) in changes {
            claims[name.as_str()] = value;
        }
        if let Value::Object(claims) = &mut claims {
            claims.retain(|_, value| !value.is_null());
        }
        self.signed(&json!({ "alg": "ES256", "typ": "JWT", "kid": self.key_id }), &claims)
    }

    /// A token of any header and claims.
    #[must_use]
    pub fn signed(&self, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| base64url(value.to_string().as_bytes());
        let text = format!("{}.{}", part(header), part(claims));
        let signature = self.pair.sign(&SystemRandom::new(), text.as_bytes()).expect("randomness");
        format!("{text}.{}", base64url(signature.as_ref()))
    }
}

/// `iss` of the tokens.
pub const ISSUER: &str = "https://issuer.example";
/// One of `aud`.
pub const AUDIENCE: &str = "orders";

/// The wall clock in seconds.
#[must_use]
pub fn unix_s() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("the clock is past 1970").as_secs()
}

fn base64url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let mut padded = [0; 4];
        padded[1..=group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes(padded);
        for place in 0..=group.len() {
            text.push(char::from(ALPHABET[(bits >> (18 - 6 * place) & 63) as usize]));
        }
    }
    text
}
