//! Tokens by family: the RFCs' own, malformed ones, wrong signatures, confused algorithms and keys, claims, time, and what
//! is remembered.

use std::num::NonZeroU32;
use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
    RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaEncoding,
    RsaKeyPair,
};
use http_wire::fields::{FieldId, Fields};

use super::base64url::{decode, encode};
use super::testing::*;
use super::*;

fn provider_of(change: impl FnOnce(&mut ProviderConfig)) -> TokenProvider {
    let mut config = config();
    change(&mut config);
    TokenProvider::new(config).unwrap()
}

fn with_keys(keys: &str) -> TokenProvider {
    provider_of(|config| config.key_set = format!("{{\"keys\":[{keys}]}}"))
}

fn fault(token: &str) -> Option<TokenFault> {
    provider().verify(token.as_bytes(), NOW).err()
}

const RFC_PAYLOAD: &str =
    "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";

/// The example's own clock and issuer.
fn verify_rfc(key: &str, token: &str) -> Result<Identity, TokenFault> {
    let provider = provider_of(|config| {
        config.key_set = format!("{{\"keys\":[{key}]}}");
        config.issuer = "joe".into();
        config.audiences.clear();
    });
    provider.verify(token.as_bytes(), Duration::from_secs(1_300_819_379))
}

#[test]
fn rfc_7515_a_3_is_taken() {
    let key = format!(r#"{{"kty":"EC","crv":"P-256","x":"{X}","y":"{Y}"}}"#);
    let token = format!(
        "eyJhbGciOiJFUzI1NiJ9.{RFC_PAYLOAD}.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q"
    );
    let identity = verify_rfc(&key, &token).unwrap();
    assert_eq!(identity.expires, Duration::from_secs(1_300_819_380));
    assert_eq!((identity.subject(), identity.scopes()), ("", ""));
}

#[test]
fn rfc_7515_a_2_is_taken() {
    let key = r#"{"kty":"RSA","n":"ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ","e":"AQAB"}"#;
    let token = format!(
        "eyJhbGciOiJSUzI1NiJ9.{RFC_PAYLOAD}.cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw"
    );
    assert!(verify_rfc(key, &token).is_ok());
}

#[test]
fn rfc_8037_a_4_is_signed_by_its_key() {
    let keys = KeySet::parse(
        br#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#,
    )
    .unwrap();
    let text = b"eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";
    let parts = token::parse(text).unwrap_or_else(|fault| panic!("{fault:?}"));
    assert_eq!(parts.payload, b"Example of Ed25519 signing");
    let scheme = parts.header.scheme.unwrap();
    let key = keys.candidates(None, scheme).next().unwrap();
    assert!(key.verify(scheme, parts.signed, &parts.signature).is_ok());
    // What it says is no set of claims.
    let provider = provider_of(|config| {
        config.key_set =
            r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#
                .into();
    });
    assert_eq!(provider.verify(text, NOW), Err(TokenFault::Malformed));
}

/// A signer of each algorithm: its name, its key as a JWK without `alg`, and how it signs.
type Signer = (&'static str, String, Box<dyn Fn(&[u8]) -> Vec<u8>>);

fn signers() -> Vec<Signer> {
    let random = SystemRandom::new;
    let p384 = EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING).unwrap();
    let point = p384.public_key().as_ref()[1..].to_vec();
    let p384_jwk = format!(
        r#"{{"kty":"EC","crv":"P-384","x":"{}","y":"{}"}}"#,
        encode(&point[..48]),
        encode(&point[48..])
    );
    let ed25519 = Ed25519KeyPair::generate().unwrap();
    let ed25519_jwk =
        format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{}"}}"#, encode(ed25519.public_key().as_ref()));
    let rsa = Rc::new(RsaKeyPair::generate(KeySize::Rsa2048).unwrap());
    // DER (RFC 8017 §A.1.1) of 2048 bits: the heads of a sequence and an integer and a sign before the modulus.
    let rsa_jwk =
        format!(r#"{{"kty":"RSA","n":"{}","e":"AQAB"}}"#, encode(&rsa.public_key().as_ref()[9..265]));
    let mut signers: Vec<Signer> = vec![
        (
            "ES256",
            format!(r#"{{"kty":"EC","crv":"P-256","x":"{X}","y":"{Y}"}}"#),
            Box::new(|text| signature(std::str::from_utf8(text).unwrap())),
        ),
        ("ES384", p384_jwk, Box::new(move |text| p384.sign(&random(), text).unwrap().as_ref().to_vec())),
        ("EdDSA", ed25519_jwk, Box::new(move |text| ed25519.sign(text).as_ref().to_vec())),
    ];
    let paddings: [(&'static str, &'static dyn RsaEncoding); 6] = [
        ("RS256", &RSA_PKCS1_SHA256),
        ("RS384", &RSA_PKCS1_SHA384),
        ("RS512", &RSA_PKCS1_SHA512),
        ("PS256", &RSA_PSS_SHA256),
        ("PS384", &RSA_PSS_SHA384),
        ("PS512", &RSA_PSS_SHA512),
    ];
    for (name, padding) in paddings {
        let rsa = Rc::clone(&rsa);
        let sign = move |text: &[u8]| {
            let mut signature = vec![0; rsa.public_modulus_len()];
            rsa.sign(padding, &SystemRandom::new(), text, &mut signature).unwrap();
            signature
        };
        signers.push((name, rsa_jwk.clone(), Box::new(sign)));
    }
    signers
}

/// Signs by one algorithm under the name of another.
fn signed_as(name: &str, sign: &dyn Fn(&[u8]) -> Vec<u8>) -> String {
    let header = encode(format!(r#"{{"alg":"{name}"}}"#).as_bytes());
    let signed = format!("{header}.{}", encode(claims(&[]).as_bytes()));
    let signature = sign(signed.as_bytes());
    format!("{signed}.{}", encode(&signature))
}

#[test]
fn every_algorithm_is_taken_under_its_own_name_alone() {
    let signers = signers();
    for (name, jwk, sign) in &signers {
        let any = with_keys(jwk);
        let named = |alg: &str| with_keys(&jwk.replacen('{', &format!("{{\"alg\":\"{alg}\","), 1));
        let good = signed_as(name, sign);
        assert_eq!(any.verify(good.as_bytes(), NOW).map(|_| ()), Ok(()), "{name}");
        assert_eq!(named(name).verify(good.as_bytes(), NOW).map(|_| ()), Ok(()), "{name}");
        for (other, ..) in signers.iter().filter(|(other, ..)| other != name) {
            let confused = signed_as(other, sign);
            let found = any.verify(confused.as_bytes(), NOW).unwrap_err();
            assert!(matches!(found, TokenFault::SignatureBad | TokenFault::KeyUnknown), "{name} as {other}");
            let same_kind = jwk == &signers.iter().find(|(of, ..)| of == other).unwrap().1;
            assert_eq!(found == TokenFault::SignatureBad, same_kind, "{name} as {other}");
            if same_kind {
                // A key that says what it is for is for nothing else (RFC 8725 §3.1).
                assert_eq!(named(other).verify(good.as_bytes(), NOW), Err(TokenFault::KeyUnknown));
            }
        }
    }
}

#[test]
fn none_and_hmac_are_no_algorithms() {
    let payload = claims(&[]);
    for alg in [
        "none", "None", "NONE", "HS256", "HS384", "HS512", "es256", "ES256 ", "ES512", "ES256K", "RSA1_5", "",
    ] {
        let token = sign(&format!(r#"{{"alg":"{alg}","kid":"a"}}"#), &payload);
        assert_eq!(fault(&token), Some(TokenFault::KeyUnknown), "{alg:?}");
    }
    // RFC 8725 §2.1: without a signature, or with the public key as the secret.
    let unsigned = format!("{}.{}.", encode(br#"{"alg":"none"}"#), encode(payload.as_bytes()));
    assert_eq!(fault(&unsigned), Some(TokenFault::Malformed));
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, key_set().as_bytes());
    let signed = format!("{}.{}", encode(br#"{"alg":"HS256","kid":"a"}"#), encode(payload.as_bytes()));
    let tag = aws_lc_rs::hmac::sign(&key, signed.as_bytes());
    assert_eq!(fault(&format!("{signed}.{}", encode(tag.as_ref()))), Some(TokenFault::KeyUnknown));
}

#[test]
fn malformed_tokens_are_refused() {
    let good = token();
    assert_eq!(fault(&good), None);
    let [header, payload, signature] = good.split('.').collect::<Vec<_>>()[..] else { panic!("three parts") };
    let long = format!("{header}.{}.{signature}", "A".repeat(TOKEN_BYTES_MAX));
    for bad in [
        "",
        ".",
        "..",
        "...",
        "abc",
        &format!("{header}.{payload}"),
        &format!("{header}.{payload}."),
        &format!("{header}..{signature}"),
        &format!(".{payload}.{signature}"),
        &format!("{good}."),
        &format!(".{good}"),
        &format!("{good}.{signature}.{signature}"),
        &format!("{good} "),
        &format!(" {good}"),
        &format!("{good}\n"),
        &format!("{header}.{payload}.{signature}="),
        &format!("{header}=.{payload}.{signature}"),
        &format!("{header} .{payload}.{signature}"),
        &format!("{header}.{payload}.{}+", &signature[1..]),
        &good.replace('.', "%2E"),
        &format!("\"{good}\""),
        &long,
    ] {
        assert_eq!(fault(bad), Some(TokenFault::Malformed), "{bad}");
    }
    // Other bits behind the last byte are the same bytes to a lenient reader, and another token to a cache or a log.
    let last = signature.bytes().last().unwrap();
    let respelled = (b'A'..=b'z').filter(|byte| *byte != last).map(char::from);
    for byte in respelled {
        let text = format!("{}{byte}", &good[..good.len() - 1]);
        assert!(matches!(fault(&text), Some(TokenFault::Malformed | TokenFault::SignatureBad)), "{text}");
    }
}

#[test]
fn headers_are_objects_that_need_no_extension() {
    let with = |header: &str| fault(&sign(header, &claims(&[])));
    for good in
        [HEADER, r#"{"alg":"ES256"}"#, r#" { "typ":"JWT", "alg":"ES256", "x5u":"https://evil.example" } "#]
    {
        assert_eq!(with(good), None, "{good}");
    }
    for bad in [
        "[]",
        "\"ES256\"",
        "{}",
        r#"{"kid":"a"}"#,
        r#"{"alg":7}"#,
        r#"{"alg":null}"#,
        r#"{"alg":["ES256"]}"#,
        r#"{"alg":"ES256","alg":"ES256"}"#,
        r#"{"alg":"none","alg":"ES256"}"#,
        r#"{"alg":"ES256","\u0061lg":"none"}"#,
        r#"{"alg":"ES256","crit":["exp"]}"#,
        r#"{"alg":"ES256","crit":[]}"#,
        r#"{"alg":"ES256","b64":true}"#,
        r#"{"alg":"ES256","b64":false,"crit":["b64"]}"#,
        r#"{"alg":"ES256","kid":7}"#,
        r#"{"alg":"ES256","typ":7}"#,
        r#"{"alg":"ES256"}{}"#,
        r#"{"alg":"ES256""#,
        &format!(r#"{{"alg":"ES256","x":{}{}}}"#, "[".repeat(2_000), "]".repeat(2_000)),
    ] {
        assert_eq!(with(bad), Some(TokenFault::Malformed), "{bad}");
    }
}

#[test]
fn the_key_id_chooses_and_brings_nothing_along() {
    let (mine, other) = (
        format!(r#"{{"kty":"EC","crv":"P-256","kid":"mine","x":"{X}","y":"{Y}"}}"#),
        signers().remove(1).1.replacen('{', r#"{"kid":"other","#, 1),
    );
    let provider = with_keys(&format!("{other},{mine}"));
    let with = |header: &str| provider.verify(sign(header, &claims(&[])).as_bytes(), NOW).err();
    assert_eq!(with(r#"{"alg":"ES256","kid":"mine"}"#), None);
    assert_eq!(with(r#"{"alg":"ES256"}"#), None, "every key of the kind is tried");
    for kid in ["other", "Mine", "mine ", "", "../mine", "mine\\u0000", "' OR 1=1 --"] {
        assert_eq!(
            with(&format!(r#"{{"alg":"ES256","kid":"{kid}"}}"#)),
            Some(TokenFault::KeyUnknown),
            "{kid}"
        );
    }
    let nameless = with_keys(&mine.replace(r#""kid":"mine","#, ""));
    let named = sign(r#"{"alg":"ES256","kid":"any"}"#, &claims(&[]));
    assert_eq!(
        nameless.verify(named.as_bytes(), NOW).err(),
        None,
        "a key without a name is tried for every token"
    );
    // RFC 8725 §3.10: a key that the token brings is not looked at.
    let brought =
        format!(r#"{{"alg":"ES384","kid":"other","jwk":{{"kty":"EC","crv":"P-256","x":"{X}","y":"{Y}"}}}}"#);
    assert_eq!(with(&brought), Some(TokenFault::SignatureBad));
}

#[test]
fn ecdsa_signatures_are_two_numbers_of_the_curve() {
    let good = token();
    let (signed, text) = good.rsplit_once('.').unwrap();
    let bytes = decode(text.as_bytes()).unwrap();
    let (r, s) = bytes.split_at(32);
    let order = decode(b"_____wAAAAD__________7zm-q2nF56E87nKwvxjJVE").unwrap();
    let zero = [0; 32];
    // SEQUENCE of two INTEGERs, as other formats have it.
    let der = {
        let integer = |n: &[u8]| [&[2, 33, 0][..], n].concat();
        [vec![0x30, 70], integer(r), integer(s)].concat()
    };
    let table: [(&str, Vec<u8>); 14] = [
        ("r is zero", [&zero[..], s].concat()),
        ("s is zero", [r, &zero].concat()),
        ("both are zero", vec![0; 64]),
        ("r is the order", [&order[..], s].concat()),
        ("s is the order", [r, &order].concat()),
        ("both are the order", [&order[..], &order].concat()),
        ("all ones", vec![0xff; 64]),
        ("swapped", [s, r].concat()),
        ("a byte short", bytes[..63].to_vec()),
        ("a byte long", [&bytes[..], &[0]].concat()),
        ("a zero before", [&[0][..], &bytes].concat()),
        ("r alone", r.to_vec()),
        ("DER", der),
        ("twice", [&bytes[..], &bytes].concat()),
    ];
    for (name, signature) in table {
        let token = format!("{signed}.{}", encode(&signature));
        assert_eq!(fault(&token), Some(TokenFault::SignatureBad), "{name}");
    }
    for at in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[at / 8] ^= 1 << (at % 8);
        assert_eq!(
            fault(&format!("{signed}.{}", encode(&flipped))),
            Some(TokenFault::SignatureBad),
            "bit {at}"
        );
    }
    // Another header and payload under the signature.
    let other = sign(HEADER, &claims(&[("sub", "\"root\"")]));
    let (other, _) = other.rsplit_once('.').unwrap();
    assert_eq!(fault(&format!("{other}.{text}")), Some(TokenFault::SignatureBad));
}

#[test]
fn claims_decide_once_the_signature_held() {
    use TokenFault::*;
    /// Claims that replace those of a good token, or take them out.
    type Changes = &'static [(&'static str, &'static str)];
    let table: &[(Changes, Option<TokenFault>)] = &[
        (&[], None),
        (&[("sub", "")], None),
        (&[("scope", "")], None),
        (&[("iat", "99999999999")], None),
        (&[("extra", "{\"a\":[1,{\"b\":null}]}")], None),
        (&[("iss", "")], Some(IssuerWrong)),
        (&[("iss", "\"https://issuer.example/\"")], Some(IssuerWrong)),
        (&[("iss", "\"HTTPS://issuer.example\"")], Some(IssuerWrong)),
        (&[("iss", "[\"https://issuer.example\"]")], Some(Malformed)),
        (&[("aud", "\"carts\"")], None),
        (&[("aud", "[\"x\",\"carts\"]")], None),
        (&[("aud", "")], Some(AudienceWrong)),
        (&[("aud", "\"\"")], Some(AudienceWrong)),
        (&[("aud", "[]")], Some(AudienceWrong)),
        (&[("aud", "\"orders carts\"")], Some(AudienceWrong)),
        (&[("aud", "\"Orders\"")], Some(AudienceWrong)),
        (&[("aud", "[\"orders\",7]")], Some(Malformed)),
        (&[("aud", "7")], Some(Malformed)),
        (&[("aud", "{}")], Some(Malformed)),
        (&[("exp", "")], Some(Malformed)),
        (&[("exp", "null")], Some(Malformed)),
        (&[("exp", "\"9999999999\"")], Some(Malformed)),
        (&[("exp", "99999999999999999999999")], None),
        (&[("exp", "-1")], Some(Expired)),
        (&[("exp", "1e999")], Some(Malformed)),
        (&[("nbf", "99999999999")], Some(NotYetValid)),
        (&[("nbf", "true")], Some(Malformed)),
        (&[("sub", "\"a\\r\\nx-auth-scope: all\"")], Some(Malformed)),
        (&[("scope", "7")], Some(Malformed)),
    ];
    for (changes, expected) in table {
        assert_eq!(fault(&sign(HEADER, &claims(changes))), *expected, "{changes:?}");
    }
    let twice = claims(&[]).replacen('{', "{\"sub\":\"root\",", 1);
    assert_eq!(fault(&sign(HEADER, &twice)), Some(Malformed), "a claim twice");
    for payload in ["[]", "\"a\"", "7", "{", "{}{}", "\u{feff}{}"] {
        assert_eq!(fault(&sign(HEADER, payload)), Some(Malformed), "{payload}");
    }
    // What is wrong inside is not looked at before the signature.
    let bad = format!("{}.{}.{}", encode(HEADER.as_bytes()), encode(b"no json"), encode(&[1; 64]));
    assert_eq!(fault(&bad), Some(SignatureBad));
}

#[test]
fn without_audiences_only_tokens_for_nobody_in_particular_pass() {
    let open = provider_of(|config| config.audiences.clear());
    let verify = |aud| open.verify(sign(HEADER, &claims(&[("aud", aud)])).as_bytes(), NOW).err();
    assert_eq!(verify(""), None);
    assert_eq!(verify("\"orders\""), Some(TokenFault::AudienceWrong));
}

#[test]
fn a_token_type_can_be_asked_for() {
    let provider = provider_of(|config| config.token_type = Some("at+jwt".into()));
    let verify = |typ: &str| {
        let header = format!(r#"{{"alg":"ES256"{typ}}}"#);
        provider.verify(sign(&header, &claims(&[])).as_bytes(), NOW).err()
    };
    for good in ["at+jwt", "AT+JWT", "application/at+jwt"] {
        assert_eq!(verify(&format!(r#","typ":"{good}""#)), None, "{good}");
    }
    assert_eq!(verify(""), Some(TokenFault::Malformed));
    assert_eq!(verify(r#","typ":"JWT""#), Some(TokenFault::Malformed));
}

fn request(lines: &[&str]) -> Fields {
    let mut fields = Fields::new();
    for line in lines {
        fields.push(FieldId::Authorization, line.as_bytes()).unwrap();
    }
    fields
}

/// Both steps, as the request path makes them.
fn ask(
    policy: &TokenPolicy<'_>,
    fields: &Fields,
    now: Duration,
    caches: &mut TokenCaches,
) -> Result<Rc<Identity>, TokenFault> {
    match policy.look_up(fields, now, caches)? {
        Known::Verified(identity) => Ok(identity),
        Known::Unseen(unseen) => policy.verify(fields, unseen, now, caches),
    }
}

fn caches_of(provider: &TokenProvider) -> TokenCaches {
    let mut caches = TokenCaches::default();
    caches.adopt([(provider.id(), provider.config().cache_max)].into_iter());
    caches
}

#[test]
fn the_field_says_bearer_once() {
    let provider = provider();
    let policy = TokenPolicy { provider: &provider, scopes: &[] };
    let good = token();
    let bearer = format!("Bearer {good}");
    for (lines, expected) in [
        (&[bearer.as_str()][..], None),
        (&[&format!("bEARER   {good}")], None),
        (&[], Some(TokenFault::Missing)),
        (&[""], Some(TokenFault::Missing)),
        (&["Basic dTpw"], Some(TokenFault::Missing)),
        (&["Bearerx abc"], Some(TokenFault::Missing)),
        (&[&good], Some(TokenFault::Missing)),
        (&["Bearer"], Some(TokenFault::Malformed)),
        (&["Bearer "], Some(TokenFault::Malformed)),
        (&["Bearer\tabc"], Some(TokenFault::Missing)),
        (&[&format!("Bearer \"{good}\"")], Some(TokenFault::Malformed)),
        (&[&format!("Bearer {good}, Basic dTpw")], Some(TokenFault::Malformed)),
        (&[&format!("Basic dTpw, Bearer {good}")], Some(TokenFault::Missing)),
        (&[&bearer, &bearer], Some(TokenFault::Malformed)),
        (&["Basic dTpw", &bearer], Some(TokenFault::Malformed)),
        (&[&format!("Bearer {}", "a".repeat(TOKEN_BYTES_MAX + 1))], Some(TokenFault::Malformed)),
    ] {
        let found = ask(&policy, &request(lines), NOW, &mut caches_of(&provider)).err();
        assert_eq!(found, expected, "{lines:?}");
    }
}

#[test]
fn a_token_counts_from_its_beginning_to_its_end_with_the_clocks_difference() {
    let (nbf, exp) = (NOW.as_secs() - 10, NOW.as_secs() + 10);
    let payload = claims(&[("nbf", &format!("{nbf}.5")), ("exp", &format!("{exp}.25"))]);
    let fields = request(&[&format!("Bearer {}", sign(HEADER, &payload))]);
    let provider = provider();
    let policy = TokenPolicy { provider: &provider, scopes: &[] };
    let at = |ms: u64| Duration::from_millis(ms);
    let (from, to) = ((nbf - 60) * 1000 + 500, (exp + 60) * 1000 + 250);
    let table = [
        (at(from - 1), Some(TokenFault::NotYetValid)),
        (at(from), None),
        (NOW, None),
        (at(to - 1), None),
        (at(to), Some(TokenFault::Expired)),
        (Duration::MAX, Some(TokenFault::Expired)),
        (Duration::ZERO, Some(TokenFault::NotYetValid)),
    ];
    for (now, expected) in table {
        assert_eq!(ask(&policy, &fields, now, &mut caches_of(&provider)).err(), expected, "{now:?}");
        // The same from the cache.
        let mut caches = caches_of(&provider);
        assert!(ask(&policy, &fields, NOW, &mut caches).is_ok());
        assert_eq!(ask(&policy, &fields, now, &mut caches).err(), expected, "{now:?}");
        assert_eq!((caches.counts().verified, caches.counts().from_cache), (1, 1));
    }
}

#[test]
fn only_what_held_is_remembered_and_only_for_the_same_provider() {
    let provider = provider();
    let policy = TokenPolicy { provider: &provider, scopes: &[] };
    let mut caches = caches_of(&provider);
    let bad = request(&[&format!("Bearer {}", sign(r#"{"alg":"ES256","kid":"b"}"#, &claims(&[])))]);
    for _ in 0..2 {
        assert_eq!(ask(&policy, &bad, NOW, &mut caches), Err(TokenFault::KeyUnknown));
    }
    assert_eq!((caches.tokens(), caches.counts().verified), (0, 2));
    let good = request(&[&format!("Bearer {}", token())]);
    assert!(ask(&policy, &good, NOW, &mut caches).is_ok());
    assert_eq!(caches.tokens(), 1);
    // Whatever of the provider changes, the old verdict is not its own.
    let changes: [fn(&mut ProviderConfig); 5] = [
        |config| config.key_set.push(' '),
        |config| config.issuer.push('x'),
        |config| config.audiences.truncate(1),
        |config| config.token_type = Some("at+jwt".into()),
        |config| config.cache_max = NonZeroU32::MIN,
    ];
    for change in changes {
        let changed = provider_of(change);
        assert_ne!(changed.id(), provider.id());
        let policy = TokenPolicy { provider: &changed, scopes: &[] };
        assert!(matches!(policy.look_up(&good, NOW, &mut caches), Ok(Known::Unseen(_))));
    }
    let same = provider_of(|_| {});
    assert_eq!(same.id(), provider.id(), "a reload that changes nothing keeps the cache");
}

#[test]
fn scopes_are_each_routes_own() {
    let provider = provider();
    let mut caches = caches_of(&provider);
    let fields = request(&[&format!("Bearer {}", token())]);
    let mut ask_for = |scopes: &[&str]| {
        let scopes: Vec<String> = scopes.iter().map(|scope| (*scope).to_owned()).collect();
        ask(&TokenPolicy { provider: &provider, scopes: &scopes }, &fields, NOW, &mut caches).err()
    };
    for _ in 0..2 {
        assert_eq!(ask_for(&["orders.admin"]), Some(TokenFault::ScopeMissing));
        assert_eq!(ask_for(&["orders.read", "orders.write"]), None);
        assert_eq!(ask_for(&["orders.read", "orders"]), Some(TokenFault::ScopeMissing));
        assert_eq!(ask_for(&["orders.read orders.write"]), Some(TokenFault::ScopeMissing));
    }
    assert_eq!(caches.counts().verified, 1, "one token, one verification");
}

#[test]
fn challenges_say_what_rfc_6750_asks() {
    let provider = provider_of(|config| config.name = "a\"b\\c\nd".into());
    let scopes = ["orders.read".to_owned(), "b".to_owned()];
    let policy = TokenPolicy { provider: &provider, scopes: &scopes };
    let challenge = |fault| {
        let mut fields = Fields::new();
        policy.push_challenge(fault, &mut fields).unwrap();
        String::from_utf8(fields.get_name(b"www-authenticate").unwrap().to_vec()).unwrap()
    };
    assert_eq!(challenge(TokenFault::Missing), "Bearer realm=\"abcd\"", "no code without a token");
    assert_eq!(
        challenge(TokenFault::Expired),
        "Bearer realm=\"abcd\", error=\"invalid_token\", error_description=\"the token has expired\""
    );
    let scope = challenge(TokenFault::ScopeMissing);
    assert!(scope.contains("error=\"insufficient_scope\"") && scope.ends_with(", scope=\"orders.read b\""));
}

#[test]
fn backends_learn_who_it_is_and_not_the_token() {
    let identity = identity();
    let written = |credential| {
        let provider = provider_of(|config| config.credential = credential);
        let mut fields = request(&["Bearer x"]);
        identity.write(&provider, &mut fields).unwrap();
        fields
    };
    let fields = written(Credential::Removed);
    assert!(!fields.contains(FieldId::Authorization));
    for (name, value) in [
        (&b"x-auth-subject"[..], &b"user-1"[..]),
        (b"x-auth-issuer", b"https://issuer.example"),
        (b"x-auth-scope", b"orders.read orders.write"),
    ] {
        assert_eq!(fields.get_name(name), Some(value));
    }
    assert!(written(Credential::Forwarded).contains(FieldId::Authorization));
}

#[test]
fn a_key_set_that_cannot_verify_is_refused_by_name() {
    let p256 = format!(r#""kty":"EC","crv":"P-256","x":"{X}","y":"{Y}""#);
    let many: Vec<String> = (0..=KEYS_MAX).map(|n| format!(r#"{{"kid":"{n}",{p256}}}"#)).collect();
    let table: Vec<(String, &str)> = vec![
        ("".into(), "the key set is no JSON object"),
        ("[]".into(), "the key set is no JSON object"),
        ("{}".into(), "the key set has no `keys`"),
        (r#"{"keys":{}}"#.into(), "the key set has a `keys` that is no list"),
        (r#"{"keys":[]}"#.into(), "the key set has no key that verifies"),
        (r#"{"keys":[],"keys":[]}"#.into(), "a member twice"),
        (r#"{"keys":[7]}"#.into(), "keys[0] is no object"),
        (r#"{"keys":[{}]}"#.into(), "keys[0] has no `kty`"),
        (r#"{"keys":[{"kty":"oct","k":"AAAA"}]}"#.into(), "keys[0] holds the private member `k`"),
        (format!(r#"{{"keys":[{{{p256},"d":"AAAA"}}]}}"#), "keys[0] holds the private member `d`"),
        (
            format!(r#"{{"keys":[{{{p256},"use":"enc","d":"AAAA"}}]}}"#),
            "keys[0] holds the private member `d`",
        ),
        (format!(r#"{{"keys":[{{{p256},"use":"enc"}}]}}"#), "has no key that verifies"),
        (format!(r#"{{"keys":[{{{p256},"key_ops":["encrypt"]}}]}}"#), "has no key that verifies"),
        (r#"{"keys":[{"kty":"AKP","pub":"AAAA"}]}"#.into(), "keys[0] has the `kty` \"AKP\""),
        (
            r#"{"keys":[{"kty":"EC","crv":"P-521","x":"AAAA","y":"AAAA"}]}"#.into(),
            "keys[0] has the `crv` \"P-521\"",
        ),
        (r#"{"keys":[{"kty":"OKP","crv":"X25519","x":"AAAA"}]}"#.into(), "keys[0] has the `crv` \"X25519\""),
        (
            r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"AAAA"}]}"#.into(),
            "keys[0] has a coordinate of 3 bytes",
        ),
        (r#"{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB"}]}"#.into(), "keys[0] has 17 bits"),
        (r#"{"keys":[{"kty":"RSA","n":"AQAB"}]}"#.into(), "keys[0] has no `e`"),
        (
            r#"{"keys":[{"kty":"RSA","n":"AQAB=","e":"AQAB"}]}"#.into(),
            "keys[0] has a `n` that is no base64url",
        ),
        (
            format!(r#"{{"keys":[{{{p256},"alg":"RS256"}}]}}"#),
            "keys[0] has the `alg` \"RS256\", which is none of its kind",
        ),
        (
            format!(r#"{{"keys":[{{{p256},"alg":"HS256"}}]}}"#),
            "keys[0] has the `alg` \"HS256\", which is not taken",
        ),
        (format!(r#"{{"keys":[{{{p256},"alg":7}}]}}"#), "keys[0] has a `alg` that is no text"),
        (
            format!(r#"{{"keys":[{{{p256},"kid":"a"}},{{{p256},"kid":"a"}}]}}"#),
            "keys[1] has the `kid` \"a\" of another key",
        ),
        (format!(r#"{{"keys":[{{{}}}]}}"#, p256.replace(X, Y)), "keys[0] is no key of its kind"),
        (format!(r#"{{"keys":[{}]}}"#, many.join(",")), "the key set has more than 16 keys"),
        (" ".repeat(KEY_SET_BYTES_MAX + 1), "the key set is over 256 KiB"),
    ];
    for (text, wanted) in table {
        let found = KeySet::parse(text.as_bytes()).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(found.contains(wanted), "{text}: {found}");
    }
    let most = many[..KEYS_MAX].join(",");
    assert!(KeySet::parse(format!(r#"{{"keys":[{most},{{{p256},"use":"enc"}}]}}"#).as_bytes()).is_ok());
}

#[test]
fn an_issuer_goes_on_in_a_field() {
    for issuer in ["", "a\nb"] {
        let config = ProviderConfig { issuer: issuer.into(), ..config() };
        assert_eq!(TokenProvider::new(config).err(), Some(ProviderError::Issuer));
    }
}
