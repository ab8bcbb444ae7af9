//! Tokens for tests, signed by the key of RFC 7515 §A.3.

use std::num::NonZeroU32;
use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};

use super::base64url::{decode, encode};
use super::{Credential, Identity, ProviderConfig, TokenProvider};

pub(crate) const NOW: Duration = Duration::from_secs(1_800_000_000);

pub(super) const X: &str = "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU";
pub(super) const Y: &str = "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0";
const D: &str = "jpsQnnGQmL-YBIffH1136cspYG6-0iY7X1fCE9-E9LI";

pub(super) fn key_set() -> String {
    format!(r#"{{"keys":[{{"kty":"EC","crv":"P-256","kid":"a","x":"{X}","y":"{Y}"}}]}}"#)
}

pub(super) fn config() -> ProviderConfig {
    ProviderConfig {
        name: "main".into(),
        issuer: "https://issuer.example".into(),
        audiences: vec!["orders".into(), "carts".into()],
        key_set: key_set(),
        clock_skew: Duration::from_secs(60),
        token_type: None,
        cache_max: NonZeroU32::new(100).unwrap(),
        credential: Credential::Removed,
    }
}

pub(crate) fn provider() -> TokenProvider {
    TokenProvider::new(config()).unwrap()
}

pub(super) fn signature(signed: &str) -> Vec<u8> {
    let bytes = |text: &str| decode(text.as_bytes()).unwrap();
    let point = [vec![4], bytes(X), bytes(Y)].concat();
    let pair =
        EcdsaKeyPair::from_private_key_and_public_key(&ECDSA_P256_SHA256_FIXED_SIGNING, &bytes(D), &point);
    let signature = pair.unwrap().sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
    signature.as_ref().to_vec()
}

/// A token of any header and payload with a good signature.
pub(super) fn sign(header: &str, payload: &str) -> String {
    let signed = format!("{}.{}", encode(header.as_bytes()), encode(payload.as_bytes()));
    format!("{signed}.{}", encode(&signature(&signed)))
}

pub(super) const HEADER: &str = r#"{"alg":"ES256","kid":"a"}"#;

/// The claims of a good token, to which more can be added, or which can be replaced.
pub(super) fn claims(changes: &[(&str, &str)]) -> String {
    let exp = (NOW.as_secs() + 300).to_string();
    let mut members = vec![
        ("iss", "\"https://issuer.example\""),
        ("aud", "\"orders\""),
        ("sub", "\"user-1\""),
        ("scope", "\"orders.read orders.write\""),
        ("exp", exp.as_str()),
    ];
    for (name, value) in changes {
        members.retain(|(known, _)| known != name);
        if !value.is_empty() {
            members.push((name, value));
        }
    }
    let members: Vec<String> = members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!("{{{}}}", members.join(","))
}

pub(crate) fn token() -> String {
    sign(HEADER, &claims(&[]))
}

pub(crate) fn identity() -> Identity {
    Identity {
        subject: "user-1".into(),
        scopes: "orders.read orders.write".into(),
        expires: NOW + Duration::from_secs(300),
        not_before: Duration::ZERO,
    }
}
