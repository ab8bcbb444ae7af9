//! The keys of a token provider: a JWK Set (RFC 7517 §5) to keys that verify.
//!
//! Invariants: a set holds public keys only, each with numbers that make a key, at most [`KEYS_MAX`], no key id twice.
//! A key is for the scheme that it names, or else for those of its kind: the token chooses among these, and among no
//! others (RFC 8725 §3.1, §3.2).

use std::fmt;

use serde_json::Value;
use tls::{PublicNumbers, SignatureScheme, VerifyingKey};

use super::base64url;
use super::json::Object;

/// Keys of a set that can verify. A token without a key id costs as many verifications as there are keys of its kind.
pub const KEYS_MAX: usize = 16;

/// Bytes of a set.
pub const KEY_SET_BYTES_MAX: usize = 256 * 1024;

/// The keys of a provider.
#[derive(Debug)]
pub struct KeySet {
    keys: Vec<Key>,
}

#[derive(Debug)]
struct Key {
    id: Option<String>,
    key: VerifyingKey,
}

/// What is wrong with a set: a sentence that begins with the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySetError {
    /// Index in `keys`; None: the set itself.
    pub at: Option<usize>,
    /// A sentence part that follows the place.
    pub problem: String,
}

impl fmt::Display for KeySetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(at) => write!(f, "keys[{at}] {}", self.problem),
            None => write!(f, "the key set {}", self.problem),
        }
    }
}

impl std::error::Error for KeySetError {}

impl KeySet {
    /// Reads a JWK Set.
    ///
    /// # Errors
    /// The first thing that is wrong with it. Keys that are for encryption are passed over; whatever else this gateway
    /// cannot verify by is refused, so that nobody waits for its tokens to be taken.
    pub fn parse(text: &[u8]) -> Result<Self, KeySetError> {
        let whole = |problem: &str| KeySetError { at: None, problem: problem.to_owned() };
        if text.len() > KEY_SET_BYTES_MAX {
            return Err(whole("is over 256 KiB"));
        }
        let set = Object::parse(text).ok_or_else(|| whole("is no JSON object, or has a member twice"))?;
        let list = match set.get("keys") {
            Some(Value::Array(list)) => list,
            Some(_) => return Err(whole("has a `keys` that is no list")),
            None => return Err(whole("has no `keys` (RFC 7517 §5)")),
        };
        let mut keys: Vec<Key> = Vec::new();
        for (at, value) in list.iter().enumerate() {
            let Some(key) = key(value).map_err(|problem| KeySetError { at: Some(at), problem })? else {
                continue;
            };
            if key.id.is_some() && keys.iter().any(|other| other.id == key.id) {
                let problem = format!("has the `kid` {:?} of another key", key.id.unwrap_or_default());
                return Err(KeySetError { at: Some(at), problem });
            }
            if keys.len() == KEYS_MAX {
                return Err(whole("has more than 16 keys that verify"));
            }
            keys.push(key);
        }
        if keys.is_empty() {
            return Err(whole("has no key that verifies signatures"));
        }
        Ok(Self { keys })
    }

    /// The keys that a token may have been signed by: the one that it names and those without a name, or all of the scheme
    /// when it names none.
    pub(super) fn candidates<'a>(
        &'a self,
        id: Option<&'a str>,
        scheme: SignatureScheme,
    ) -> impl Iterator<Item = &'a VerifyingKey> {
        let is_meant = move |key: &&Key| match (id, key.id.as_deref()) {
            (Some(id), Some(own)) => id == own,
            (None, _) | (_, None) => true,
        };
        self.keys.iter().filter(is_meant).map(|key| &key.key).filter(move |key| key.takes(scheme))
    }
}

/// Members in which the private part of a key stands (RFC 7518 §6.2.2, §6.3.2, §6.4.1; RFC 8037 §2).
const PRIVATE: [&str; 8] = ["d", "k", "p", "q", "dp", "dq", "qi", "oth"];

/// A key; None when it is for something else than signatures.
fn key(value: &Value) -> Result<Option<Key>, String> {
    let Value::Object(members) = value else { return Err("is no object".to_owned()) };
    if let Some(name) = PRIVATE.iter().find(|name| members.contains_key(**name)) {
        return Err(format!("holds the private member `{name}`: only public keys may be here"));
    }
    let text = |name: &str| match members.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(_) => Err(format!("has a `{name}` that is no text")),
    };
    // RFC 7517 §4.2, §4.3.
    let can_verify = match members.get("key_ops") {
        None => true,
        Some(Value::Array(operations)) => operations.iter().any(|o| o.as_str() == Some("verify")),
        Some(_) => return Err("has a `key_ops` that is no list".to_owned()),
    };
    if text("use")?.is_some_and(|purpose| purpose != "sig") || !can_verify {
        return Ok(None);
    }
    let number = |name: &str| {
        let text = text(name)?.ok_or_else(|| format!("has no `{name}`"))?;
        base64url::decode(text.as_bytes())
            .filter(|bytes| !bytes.is_empty())
            .ok_or_else(|| format!("has a `{name}` that is no base64url"))
    };
    let kind = text("kty")?.ok_or("has no `kty`")?;
    let curve = text("crv")?;
    let (first, second) = match kind {
        "EC" => (number("x")?, number("y")?),
        "OKP" => (number("x")?, Vec::new()),
        "RSA" => (number("n")?, number("e")?),
        _ => return Err(format!("has the `kty` {kind:?}: EC, RSA and OKP verify")),
    };
    let numbers = match (kind, curve) {
        ("RSA", _) => PublicNumbers::Rsa { n: &first, e: &second },
        ("EC", Some("P-256")) => PublicNumbers::P256 { x: &first, y: &second },
        ("EC", Some("P-384")) => PublicNumbers::P384 { x: &first, y: &second },
        ("OKP", Some("Ed25519")) => PublicNumbers::Ed25519 { x: &first },
        (_, Some(curve)) => {
            return Err(format!("has the `crv` {curve:?}: P-256, P-384 and Ed25519 are taken"));
        }
        (_, None) => return Err("has no `crv`".to_owned()),
    };
    let algorithm = text("alg")?;
    let only = match algorithm.map(|name| scheme(name).ok_or(name)) {
        None => None,
        Some(Ok(scheme)) => Some(scheme),
        Some(Err(name)) => return Err(format!("has the `alg` {name:?}, which is not taken")),
    };
    let key = VerifyingKey::new(&numbers, only).map_err(|problem| problem.to_string())?;
    if only.is_some_and(|only| !key.takes(only)) {
        return Err(format!("has the `alg` {:?}, which is none of its kind", algorithm.unwrap_or("")));
    }
    Ok(Some(Key { id: text("kid")?.map(str::to_owned), key }))
}

/// The scheme of an `alg` (RFC 7518 §3.1, RFC 8037 §3.1). `none` and HMAC have none: with a public key, anybody could
/// make them (RFC 8725 §2.1).
pub(super) fn scheme(algorithm: &str) -> Option<SignatureScheme> {
    Some(match algorithm {
        "ES256" => SignatureScheme::Es256,
        "ES384" => SignatureScheme::Es384,
        "RS256" => SignatureScheme::Rs256,
        "RS384" => SignatureScheme::Rs384,
        "RS512" => SignatureScheme::Rs512,
        "PS256" => SignatureScheme::Ps256,
        "PS384" => SignatureScheme::Ps384,
        "PS512" => SignatureScheme::Ps512,
        // The second name is that of RFC 9864 §2.2.
        "EdDSA" | "Ed25519" => SignatureScheme::Ed25519,
        _ => return None,
    })
}
