//! Bearer tokens. The first byte says what the rest is:
//! `t` a token, `m` changes to a good token, `h` a header and `c` claims that are signed, `k` a key set.
//! Nothing panics; only what the key has signed is taken; what is taken is fit for header fields and its time is not over.

#![no_main]

use std::cell::OnceCell;
use std::num::NonZeroU32;
use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use http_gateway::jwt::{Credential, KeySet, ProviderConfig, TokenProvider};
use libfuzzer_sys::fuzz_target;

const NOW: Duration = Duration::from_secs(1_800_000_000);
const HEADER: &str = r#"{"alg":"ES256","kid":"a"}"#;
const CLAIMS: &str = r#"{"iss":"i","aud":"orders","sub":"user-1","scope":"a b","exp":1800000300}"#;

struct Issuer {
    pair: EcdsaKeyPair,
    provider: TokenProvider,
    good: String,
}

thread_local! {
    static ISSUER: OnceCell<Issuer> = const { OnceCell::new() };
}

fn base64url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let mut padded = [0; 4];
        padded[1..=group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes(padded);
        (0..=group.len()).for_each(|n| text.push(char::from(ALPHABET[(bits >> (18 - 6 * n) & 63) as usize])));
    }
    text
}

fn sign(pair: &EcdsaKeyPair, header: &[u8], claims: &[u8]) -> String {
    let signed = format!("{}.{}", base64url(header), base64url(claims));
    let signature = pair.sign(&SystemRandom::new(), signed.as_bytes()).expect("randomness");
    format!("{signed}.{}", base64url(signature.as_ref()))
}

fn issuer() -> Issuer {
    let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("randomness");
    let point = pair.public_key().as_ref();
    let (x, y) = (base64url(&point[1..33]), base64url(&point[33..]));
    let config = ProviderConfig {
        name: "main".into(),
        issuer: "i".into(),
        audiences: vec!["orders".into()],
        key_set: format!(r#"{{"keys":[{{"kty":"EC","crv":"P-256","kid":"a","x":"{x}","y":"{y}"}}]}}"#),
        clock_skew: Duration::from_secs(60),
        token_type: None,
        cache_max: NonZeroU32::MIN,
        credential: Credential::Removed,
    };
    let good = sign(&pair, HEADER.as_bytes(), CLAIMS.as_bytes());
    let provider = TokenProvider::new(config).expect("a good key");
    assert!(provider.verify(good.as_bytes(), NOW).is_ok());
    Issuer { pair, provider, good }
}

/// Changes bytes by threes of place, kind and value.
fn changed(good: &str, changes: &[u8]) -> Vec<u8> {
    let mut token = good.as_bytes().to_vec();
    for change in changes.chunks_exact(4).take(16) {
        let at = usize::from(u16::from_be_bytes([change[0], change[1]])) % token.len().max(1);
        match change[2] % 4 {
            0 if at < token.len() => token[at] = change[3],
            1 => token.insert(at, change[3]),
            2 if at < token.len() => drop(token.remove(at)),
            _ => token.truncate(token.len().saturating_sub(usize::from(change[3] % 8))),
        }
    }
    token
}

fn run(issuer: &Issuer, kind: u8, data: &[u8]) {
    let provider = &issuer.provider;
    let signed = match kind {
        b't' => return assert!(provider.verify(data, NOW).is_err(), "nobody signed this"),
        b'm' => {
            let token = changed(&issuer.good, data);
            let is_same = token == issuer.good.as_bytes();
            return assert_eq!(provider.verify(&token, NOW).is_ok(), is_same, "{token:?}");
        }
        b'k' => return drop(KeySet::parse(data)),
        b'h' => sign(&issuer.pair, data, CLAIMS.as_bytes()),
        b'c' => sign(&issuer.pair, HEADER.as_bytes(), data),
        _ => return,
    };
    for now in [Duration::ZERO, NOW, Duration::MAX] {
        let Ok(identity) = provider.verify(signed.as_bytes(), now) else { continue };
        for value in [identity.subject(), identity.scopes()] {
            assert!(!value.bytes().any(|b| (b < 0x20 && b != b'\t') || b == 0x7f), "{value:?}");
            assert_eq!(value.trim_matches([' ', '\t']), value);
        }
        assert!(now < Duration::MAX, "nothing is for ever");
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, rest)) = data.split_first() else { return };
    ISSUER.with(|cell| run(cell.get_or_init(issuer), *kind, rest));
});
