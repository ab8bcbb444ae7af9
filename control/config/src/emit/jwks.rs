//! A key set as its author gave it (RFC 7517 §5), looked through for what a person can mend. What only arithmetic shows (a
//! point outside its curve) the proxy refuses when it builds the keys.

use std::collections::HashSet;

use control_api::defaults::token::KEYS_MAX;
use serde_json::Value;

use crate::finding::Problem;

/// Members in which the private part of a key stands (RFC 7518 §6.2.2, §6.3.2, §6.4.1; RFC 8037 §2).
const PRIVATE: [&str; 8] = ["d", "k", "p", "q", "dp", "dq", "qi", "oth"];

/// By `kty`: what must be there, and the `crv` and `alg` that are taken.
struct Kind {
    name: &'static str,
    numbers: &'static [&'static str],
    curves: &'static [&'static str],
    algorithms: &'static [&'static str],
}

const KINDS: [Kind; 3] = [
    Kind { name: "EC", numbers: &["x", "y"], curves: &["P-256", "P-384"], algorithms: &["ES256", "ES384"] },
    Kind { name: "OKP", numbers: &["x"], curves: &["Ed25519"], algorithms: &["EdDSA", "Ed25519"] },
    Kind {
        name: "RSA",
        numbers: &["n", "e"],
        curves: &[],
        algorithms: &["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"],
    },
];

/// RFC 7518 §3.3.
const RSA_BYTES_MIN: usize = 2048 / 8;

/// The first thing that is wrong with a key set.
pub(super) fn check(text: &[u8]) -> Result<(), Problem> {
    let set: Value = serde_json::from_slice(text).map_err(|error| {
        let fix = "name a file with a JWK Set (RFC 7517 §5), as the issuer publishes it under its `jwks_uri`";
        Problem::new(format!("the key set is no JSON: {error}"), fix)
    })?;
    let Some(list) = set.get("keys").and_then(Value::as_array) else {
        let fix = "write `{\"keys\": [ … ]}`, as the issuer publishes it under its `jwks_uri`";
        return Err(Problem::new("the key set has no list `keys`", fix));
    };
    let mut ids = HashSet::new();
    let mut count = 0;
    for (at, key) in list.iter().enumerate() {
        let id = key.get("kid").and_then(Value::as_str);
        let shown = id.map_or_else(|| format!("keys[{at}]"), |id| format!("keys[{at}] (kid {id:?})"));
        if !check_key(key, &shown)? {
            continue;
        }
        count += 1;
        if let Some(id) = id
            && !ids.insert(id)
        {
            return Err(Problem::new(format!("{shown} has the kid of another key"), "delete one of the two"));
        }
    }
    match count {
        0 => Err(Problem::new(
            "the key set has no key that verifies signatures",
            "add the public key that the issuer signs tokens with",
        )),
        _ if count > KEYS_MAX => Err(Problem::new(
            format!("the key set has {count} keys that verify, at most {KEYS_MAX} are taken"),
            "leave only the keys that sign tokens now",
        )),
        _ => Ok(()),
    }
}

/// Whether the key verifies; keys for something else are passed over.
fn check_key(key: &Value, shown: &str) -> Result<bool, Problem> {
    let Some(members) = key.as_object() else {
        return Err(Problem::new(format!("{shown} is no object"), "delete it"));
    };
    if let Some(name) = PRIVATE.iter().find(|name| members.contains_key(**name)) {
        return Err(Problem::new(
            format!("{shown} holds the private member `{name}`: a secret has been put into the config"),
            "leave only the public members, and have the issuer replace the key, since others may have read it",
        ));
    }
    let text = |name: &str| members.get(name).and_then(Value::as_str);
    let verifies = members
        .get("key_ops")
        .and_then(Value::as_array)
        .is_none_or(|operations| operations.iter().any(|operation| operation.as_str() == Some("verify")));
    if text("use").is_some_and(|purpose| purpose != "sig") || !verifies {
        return Ok(false);
    }
    let fix = "take EC keys on P-256 or P-384, RSA from 2048 bits, or Ed25519; delete what the issuer no longer uses";
    let wrong = |what: String| Problem::new(format!("{shown} {what}"), fix);
    let found = text("kty").unwrap_or("");
    let kind = KINDS.iter().find(|kind| kind.name == found);
    let kind = kind.ok_or_else(|| wrong(format!("has the kty {found:?}, which verifies nothing here")))?;
    let curve = text("crv").unwrap_or("");
    if !kind.curves.is_empty() && !kind.curves.contains(&curve) {
        return Err(wrong(format!("has the crv {curve:?}, which is not taken")));
    }
    if let Some(algorithm) = text("alg").filter(|algorithm| !kind.algorithms.contains(algorithm)) {
        return Err(wrong(format!("has the alg {algorithm:?}, which is not taken with kty {found}")));
    }
    for name in kind.numbers {
        if text(name).is_none_or(str::is_empty) {
            return Err(wrong(format!("has no `{name}`")));
        }
    }
    // Four letters are three bytes.
    if kind.name == "RSA" && text("n").is_some_and(|n| n.len() * 3 / 4 < RSA_BYTES_MIN) {
        return Err(wrong("is an RSA key of fewer than 2048 bits (RFC 7518 §3.3)".to_owned()));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        check(text.as_bytes()).err().map(|problem| problem.message).unwrap_or_default()
    }

    #[test]
    fn a_set_as_issuers_publish_it_is_taken() {
        let rsa = format!(r#"{{"kty":"RSA","kid":"b","use":"sig","n":"{}","e":"AQAB"}}"#, "x".repeat(342));
        let set = format!(
            r#"{{"keys":[{{"kty":"EC","crv":"P-256","kid":"a","alg":"ES256","x":"A","y":"A"}},{rsa},
               {{"kty":"OKP","crv":"Ed25519","x":"A","key_ops":["verify"]}},
               {{"kty":"RSA","kid":"b","use":"enc","alg":"RSA-OAEP","n":"A","e":"AQAB"}}]}}"#
        );
        assert_eq!(message(&set), "");
    }

    #[test]
    fn what_a_person_can_mend_is_said() {
        let ec = r#""kty":"EC","crv":"P-256","x":"A","y":"A""#;
        let many: Vec<String> = (0..17).map(|_| format!("{{{ec}}}")).collect();
        for (keys, wanted) in [
            ("", "no key that verifies"),
            ("7", "keys[0] is no object"),
            (&format!(r#"{{{ec},"d":"A"}}"#), "keys[0] holds the private member `d`"),
            (
                &format!(r#"{{{ec},"use":"enc","kid":"x","d":"A"}}"#),
                "keys[0] (kid \"x\") holds the private member",
            ),
            (r#"{"kty":"oct","k":"A"}"#, "holds the private member `k`"),
            (r#"{"kty":"oct"}"#, "has the kty \"oct\""),
            (r#"{"kty":"EC","crv":"P-521","x":"A","y":"A"}"#, "has the crv \"P-521\""),
            (r#"{"kty":"EC","crv":"P-256","x":"A"}"#, "has no `y`"),
            (r#"{"kty":"RSA","n":"AAAA","e":"AQAB"}"#, "fewer than 2048 bits"),
            (&format!(r#"{{{ec},"alg":"HS256"}}"#), "has the alg \"HS256\""),
            (
                &format!(r#"{{{ec},"kid":"a"}},{{{ec},"kid":"a"}}"#),
                "keys[1] (kid \"a\") has the kid of another",
            ),
            (&many.join(","), "has 17 keys"),
        ] {
            let found = message(&format!("{{\"keys\":[{keys}]}}"));
            assert!(found.contains(wanted), "{keys}: {found}");
        }
        assert!(message("{").contains("is no JSON"));
        assert!(message("[]").contains("has no list `keys`"));
    }
}
