//! What a verified token says (RFC 7519 §4): who issued it, for whom, about whom, from when until when, and for what.
//!
//! A claim of another type than the specification's makes the token malformed, whatever the policy asks for. Text that
//! goes on to backends in a header field is fit for one, or the token is refused.

use std::time::Duration;

use http_wire::token::is_field_value;
use serde_json::Value;

use super::TokenFault;
use super::json::Object;

/// The claims that a policy may look at.
pub(super) struct Claims {
    pub(super) issuer: Option<String>,
    /// None: the token names no audience.
    pub(super) audiences: Option<Vec<String>>,
    /// Empty: it names nobody. Else a field value.
    pub(super) subject: String,
    /// Separated by blanks; a field value.
    pub(super) scopes: String,
    /// Since 1970.
    pub(super) expires: Duration,
    pub(super) not_before: Duration,
}

impl Claims {
    pub(super) fn read(payload: &[u8]) -> Result<Self, TokenFault> {
        let claims = Object::parse(payload).ok_or(TokenFault::Malformed)?;
        let text = |name: &str| claims.text(name).ok_or(TokenFault::Malformed);
        let date = |name: &str| claims.get(name).map(date).transpose();
        let subject = match text("sub")? {
            None => String::new(),
            Some(subject) if is_plain(subject) => subject.to_owned(),
            Some(_) => return Err(TokenFault::Malformed),
        };
        Ok(Self {
            issuer: text("iss")?.map(str::to_owned),
            audiences: claims.get("aud").map(texts).transpose()?,
            subject,
            scopes: scopes(&claims)?,
            // A token that never ends cannot be taken back (RFC 8725 leaves it open; here it is refused).
            expires: date("exp")?.ok_or(TokenFault::Malformed)?,
            not_before: date("nbf")?.unwrap_or_default(),
        })
    }
}

/// A NumericDate (RFC 7519 §2): seconds since 1970, perhaps with a fraction. Before 1970 is 1970, and what no duration
/// holds is the end of time.
fn date(value: &Value) -> Result<Duration, TokenFault> {
    let seconds = match value {
        Value::Number(number) => number.as_f64().ok_or(TokenFault::Malformed)?,
        _ => return Err(TokenFault::Malformed),
    };
    Ok(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX))
}

/// One text or a list of texts (RFC 7519 §4.1.3).
fn texts(value: &Value) -> Result<Vec<String>, TokenFault> {
    let text = |value: &Value| value.as_str().map(str::to_owned).ok_or(TokenFault::Malformed);
    match value {
        Value::Array(list) => list.iter().map(text).collect(),
        one => Ok(vec![text(one)?]),
    }
}

/// `scope` of RFC 8693 §4.2, separated by blanks, and `scp`, which other issuers use; either may be a list.
fn scopes(claims: &Object) -> Result<String, TokenFault> {
    let mut scopes = String::new();
    for name in ["scope", "scp"] {
        let listed = claims.get(name).map(texts).transpose()?.unwrap_or_default();
        for scope in listed.iter().flat_map(|list| list.split(' ')).filter(|scope| !scope.is_empty()) {
            // RFC 6749 §3.3: scope-token.
            let is_token = scope.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\'));
            if !is_token {
                return Err(TokenFault::Malformed);
            }
            if !scopes.is_empty() {
                scopes.push(' ');
            }
            scopes.push_str(scope);
        }
    }
    Ok(scopes)
}

/// A subject that means the same to whoever reads it out of a header field: no control byte, which could begin another
/// field, and no blank at an end, which readers drop.
fn is_plain(subject: &str) -> bool {
    let bytes = subject.as_bytes();
    let is_blank = |end: Option<&u8>| end.is_none_or(|byte| matches!(byte, b' ' | b'\t'));
    is_field_value(bytes) && !is_blank(bytes.first()) && !is_blank(bytes.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Claims, TokenFault> {
        Claims::read(json.as_bytes())
    }

    #[test]
    fn dates_may_be_fractional_and_far() {
        for (text, expected) in [
            ("0", Duration::ZERO),
            ("-5", Duration::ZERO),
            ("1300819380", Duration::from_secs(1_300_819_380)),
            ("1300819380.5", Duration::from_millis(1_300_819_380_500)),
            ("1.3e9", Duration::from_secs(1_300_000_000)),
            ("1e30", Duration::MAX),
            ("18446744073709551616", Duration::MAX),
        ] {
            let claims = read(&format!(r#"{{"exp":{text},"nbf":{text}}}"#)).unwrap();
            assert_eq!((claims.expires, claims.not_before), (expected, expected), "{text}");
        }
        for bad in ["\"1300819380\"", "null", "true", "[]", "{}", "NaN", "Infinity", "1e999"] {
            for name in ["exp", "nbf"] {
                let text = format!(r#"{{"exp":1,"{name}":{bad}}}"#).replace(r#""exp":1,"exp""#, r#""exp""#);
                assert!(read(&text).is_err(), "{text}");
            }
        }
        assert!(read("{}").is_err(), "without an end");
    }

    #[test]
    fn scopes_of_either_claim_and_form_are_one_list() {
        for (members, expected) in [
            (r#""scope":"a b""#, "a b"),
            (r#""scope":" a  b ""#, "a b"),
            (r#""scope":"""#, ""),
            (r#""scp":["a","b"]"#, "a b"),
            (r#""scp":"a b","scope":["c"]"#, "c a b"),
            (r#""x":1"#, ""),
        ] {
            assert_eq!(read(&format!(r#"{{"exp":1,{members}}}"#)).unwrap().scopes, expected, "{members}");
        }
        for bad in
            [r#""scope":1"#, r#""scp":[1]"#, r#""scope":"a\tb""#, r#""scope":"a\u0000""#, r#""scp":["\""]"#]
        {
            assert!(read(&format!(r#"{{"exp":1,{bad}}}"#)).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_subject_is_a_field_value_or_the_token_is_refused() {
        for (sub, is_taken) in [
            (r#""user-1""#, true),
            (r#""auth0|Jörg A.""#, true),
            (r#""a\r\nx-auth-scope: all""#, false),
            (r#""a\u0000""#, false),
            (r#"" a""#, false),
            (r#""a\t""#, false),
            (r#""""#, false),
            ("7", false),
            ("null", false),
        ] {
            assert_eq!(read(&format!(r#"{{"exp":1,"sub":{sub}}}"#)).is_ok(), is_taken, "{sub}");
        }
    }
}
