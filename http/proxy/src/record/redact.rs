//! Secrets that clients put into URLs do not reach the log.
//!
//! A value is replaced when its parameter's name is on the list below, compared after percent-decoding, in any
//! case and with `-` and `_` as the same. Names rather than values decide: a value that merely looks harmless may
//! be a key. `authorization` and `cookie` are not fields of a log line at all.

use super::escape::Value;

/// Parameters that carry credentials, lower case, with `_`, sorted.
const SECRET_NAMES: &[&str] = &[
    "access_key",
    "access_token",
    "api_key",
    "api_token",
    "apikey",
    "assertion",
    "auth",
    "auth_token",
    "authorization",
    "awsaccesskeyid",
    "bearer",
    "client_assertion",
    "client_secret",
    "code",
    "code_verifier",
    "credential",
    "credentials",
    "id_token",
    "jwt",
    "key",
    "pass",
    "passwd",
    "password",
    "private_key",
    "pwd",
    "refresh_token",
    "samlresponse",
    "secret",
    "session",
    "session_id",
    "sessionid",
    "sid",
    "sig",
    "signature",
    "ticket",
    "token",
    "x_amz_credential",
    "x_amz_security_token",
    "x_amz_signature",
    "x_api_key",
    "x_goog_credential",
    "x_goog_signature",
];

/// Stands in the place of a secret.
const REDACTED: &[u8] = b"[redacted]";

/// Longest name that is looked at; longer ones are on no list.
const NAME_BYTES_MAX: usize = 32;

/// Whether the parameter's value is a secret.
fn is_secret(name: &[u8]) -> bool {
    let mut plain = [0u8; NAME_BYTES_MAX];
    let mut len = 0;
    let mut rest = name;
    while let [first, tail @ ..] = rest {
        let (byte, tail) = match (first, tail) {
            (b'%', [high, low, tail @ ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, tail),
                _ => (b'%', &rest[1..]),
            },
            (byte, _) => (*byte, tail),
        };
        let Some(slot) = plain.get_mut(len) else {
            return false;
        };
        *slot = if byte == b'-' { b'_' } else { byte.to_ascii_lowercase() };
        len += 1;
        rest = tail;
    }
    // `token[]` and `user[password]` as PHP and Rails write them.
    let plain = &plain[..len];
    plain
        .split(|b| matches!(b, b'[' | b']' | b'.'))
        .any(|part| SECRET_NAMES.binary_search_by(|name| name.as_bytes().cmp(part)).is_ok())
}

const fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// Writes a query without its secrets.
pub(crate) fn push_query(out: &mut Value<'_>, query: &[u8]) {
    // `&` separates, and `;` does for some backends.
    for pair in query.split_inclusive(|b| matches!(b, b'&' | b';')) {
        let (body, separator) = match pair {
            [body @ .., b'&' | b';'] => (body, &pair[body.len()..]),
            body => (body, &[][..]),
        };
        match body.iter().position(|b| *b == b'=') {
            Some(equals) if is_secret(&body[..equals]) => {
                out.push(&body[..=equals]);
                out.push(REDACTED);
            }
            Some(_) | None => out.push(body),
        }
        out.push(separator);
    }
}

/// Writes a URL as in `referer`: without user name and password, secrets of its query and fragment replaced.
pub(crate) fn push_url(out: &mut Value<'_>, url: &[u8]) {
    let query_at = url.iter().position(|b| matches!(b, b'?' | b'#')).unwrap_or(url.len());
    let (base, tail) = url.split_at(query_at);
    let host_at = base.windows(3).position(|w| w == b"://").map_or(0, |at| at + 3);
    let (scheme, rest) = base.split_at(host_at);
    let authority_len = rest.iter().position(|b| *b == b'/').unwrap_or(rest.len());
    out.push(scheme);
    match rest[..authority_len].iter().rposition(|b| *b == b'@') {
        Some(at) if host_at > 0 => {
            out.push(REDACTED);
            out.push(&rest[at..]);
        }
        Some(_) | None => out.push(rest),
    }
    // A fragment may be a query of its own (`#access_token=…` of OAuth's implicit grant).
    for part in tail.split_inclusive(|b| matches!(b, b'?' | b'#')) {
        match part {
            [body @ .., mark @ (b'?' | b'#')] => {
                push_query(out, body);
                out.push(std::slice::from_ref(mark));
            }
            body => push_query(out, body),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Value<'_>)) -> String {
        let mut out = Vec::new();
        let mut value = Value::new(&mut out, 10_000);
        write(&mut value);
        value.finish();
        String::from_utf8(out).unwrap()
    }

    fn query(text: &str) -> String {
        written(|out| push_query(out, text.as_bytes()))
    }

    #[test]
    fn every_listed_name_is_redacted_in_every_spelling() {
        assert!(SECRET_NAMES.is_sorted());
        for name in SECRET_NAMES {
            assert!(
                name.len() <= NAME_BYTES_MAX && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
                "{name}"
            );
            let encoded: String = name.bytes().map(|b| format!("%{b:02X}")).collect();
            let first_encoded = format!("%{:02x}{}", name.as_bytes()[0], &name[1..]);
            for spelling in [
                (*name).to_owned(),
                name.to_uppercase(),
                name.replace('_', "-"),
                encoded,
                first_encoded,
                format!("user[{name}]"),
                format!("{name}[]"),
            ] {
                for (before, after) in [("", ""), ("a=1&", "&b=2"), ("a=1;", ";b=2"), ("a&", "&b")] {
                    let text = query(&format!("{before}{spelling}=s3cr3t{after}"));
                    assert_eq!(text, format!("{before}{spelling}=[redacted]{after}"));
                }
            }
        }
    }

    #[test]
    fn other_parameters_stay_as_they_are() {
        for text in [
            "", "a=1", "tokens=1", "monkey=1", "a=token", "token", "=x", "&&", "a=1&=&;b", "%=1", "%zz=1",
            "%7", "a=b=c",
        ] {
            assert_eq!(query(text), text);
        }
        let long = format!("{}=1", "token".repeat(20));
        assert_eq!(query(&long), long);
        assert_eq!(query("token=a=b==&x=1"), "token=[redacted]&x=1");
        assert_eq!(query("token="), "token=[redacted]");
    }

    #[test]
    fn urls_lose_passwords_and_tokens() {
        let table = [
            ("https://a.example/x?b=1", "https://a.example/x?b=1"),
            ("https://user:pw@a.example/x", "https://[redacted]@a.example/x"),
            ("https://u@p@a.example", "https://[redacted]@a.example"),
            ("https://a.example/@me", "https://a.example/@me"),
            (
                "https://a.example/cb#access_token=abc&state=1",
                "https://a.example/cb#access_token=[redacted]&state=1",
            ),
            (
                "https://a.example/?code=abc#id_token=x?token=y",
                "https://a.example/?code=[redacted]#id_token=[redacted]?token=[redacted]",
            ),
            ("/x?token=abc", "/x?token=[redacted]"),
            ("about:blank", "about:blank"),
            ("", ""),
        ];
        for (url, text) in table {
            assert_eq!(written(|out| push_url(out, url.as_bytes())), text, "{url}");
        }
    }
}
