//! Cross-origin resource sharing (Fetch standard, §3.2): answers preflights and marks responses.
//!
//! The policy is the whole answer: `access-control-*` fields of the backend are replaced, so that two sources can
//! never disagree. An origin is reflected only after it matched, and an open policy never allows credentials.
//! Called by the chain (preflights) and by `exchange` (responses).

use std::fmt;

use http_wire::fields::{FieldError, FieldId, Fields};
use http_wire::head::{Method, RequestHead};
use http_wire::token::is_token;
use regex::bytes::Regex;

/// Which origins a policy serves.
#[derive(Clone, Debug)]
pub enum OriginPattern {
    /// Every origin, `null` too.
    Any,
    /// `https://app.example`, as browsers send it: lower case, no default port, no path.
    Exact(String),
    /// One or more labels between the two parts: `https://*.app.example` is `https://` and `.app.example`.
    Subdomains { prefix: String, suffix: String },
    /// Must match the whole origin.
    Regex(Regex),
}

impl OriginPattern {
    /// `*`, `https://*.app.example`, or an exact origin.
    ///
    /// # Errors
    /// `CorsError::Origin` when the text could never equal an origin that a browser sends.
    pub fn parse(text: &str) -> Result<Self, CorsError> {
        let bad = || CorsError::Origin(text.to_owned());
        match text {
            "*" => return Ok(Self::Any),
            "null" => return Ok(Self::Exact(text.to_owned())),
            _ => {}
        }
        let (scheme, host) = text.split_once("://").ok_or_else(bad)?;
        let is_origin_byte = |b: u8| {
            b.is_ascii_lowercase()
                || b.is_ascii_digit()
                || matches!(b, b'.' | b'-' | b'_' | b':' | b'[' | b']')
        };
        let domain = host.strip_prefix("*.");
        let rest = domain.unwrap_or(host);
        if scheme.is_empty()
            || !scheme
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.'))
        {
            return Err(bad());
        }
        if rest.is_empty() || rest.starts_with('.') || !rest.bytes().all(is_origin_byte) {
            return Err(bad());
        }
        match domain {
            None => Ok(Self::Exact(text.to_owned())),
            Some(domain) => {
                if domain.split_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_err()) {
                    return Err(bad());
                }
                Ok(Self::Subdomains { prefix: format!("{scheme}://"), suffix: format!(".{domain}") })
            }
        }
    }

    /// A pattern over whole origins.
    ///
    /// # Errors
    /// `CorsError::Pattern` when `pattern` is no regular expression or too large.
    pub fn regex(pattern: &str) -> Result<Self, CorsError> {
        Regex::new(&format!("^(?:{pattern})$")).map(Self::Regex).map_err(CorsError::Pattern)
    }

    fn matches(&self, origin: &[u8]) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(exact) => origin == exact.as_bytes(),
            Self::Subdomains { prefix, suffix } => is_between(origin, prefix.as_bytes(), suffix.as_bytes()),
            Self::Regex(regex) => regex.is_match(origin),
        }
    }
}

/// Only label bytes may stand for `*`: `https://evil.example/.app.example` is no subdomain.
fn is_between(origin: &[u8], prefix: &[u8], suffix: &[u8]) -> bool {
    let is_label = |label: &[u8]| {
        !label.is_empty() && label.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    let labels = origin.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(suffix));
    labels.is_some_and(|labels| labels.split(|b| *b == b'.').all(is_label))
}

/// Whether a page may send cookies and read the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Credentials {
    #[default]
    Omit,
    Allow,
}

/// Which request fields a page may set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedFields {
    /// Whatever the preflight asks for.
    Requested,
    /// These names.
    Listed(Vec<String>),
}

/// What an operator writes.
#[derive(Clone, Debug)]
pub struct CorsConfig {
    pub origins: Vec<OriginPattern>,
    pub methods: Vec<String>,
    pub allowed_fields: AllowedFields,
    pub exposed_fields: Vec<String>,
    pub credentials: Credentials,
    /// Seconds a browser may remember a preflight; None: the browser's default.
    pub max_age_s: Option<u32>,
}

/// Why a policy is refused.
#[derive(Debug)]
pub enum CorsError {
    /// Any site could act as the user; Fetch §3.2.5 forbids `*` with credentials for that reason.
    AnyOriginWithCredentials,
    Origin(String),
    Pattern(regex::Error),
    /// A method or field name that is no token.
    Token(String),
}

impl fmt::Display for CorsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AnyOriginWithCredentials => {
                f.write_str("origin `*` cannot allow credentials; list the origins")
            }
            Self::Origin(text) => {
                write!(
                    f,
                    "`{text}` is no origin; write for example https://app.example, lower case and without a path"
                )
            }
            Self::Pattern(_) => f.write_str("an origin pattern is no valid regular expression"),
            Self::Token(text) => write!(f, "`{text}` is no method or header name"),
        }
    }
}

impl std::error::Error for CorsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Pattern(error) => Some(error),
            Self::AnyOriginWithCredentials | Self::Origin(_) | Self::Token(_) => None,
        }
    }
}

/// A checked policy, its field values made.
#[derive(Clone, Debug)]
pub struct CorsPolicy {
    origins: Vec<OriginPattern>,
    /// The answer does not depend on the origin.
    is_open: bool,
    methods: String,
    /// None: reflect what is asked for.
    allowed_fields: Option<String>,
    exposed_fields: String,
    credentials: Credentials,
    max_age: Option<String>,
}

/// What a request is to a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CorsRequest {
    /// No `origin`, or not one that the policy serves: treated as if there were no policy.
    Plain,
    /// A request of a page that may read the answer.
    Actual,
    /// The question of a browser before such a request; it is answered here.
    Preflight,
    /// A preflight from an origin that the policy does not serve.
    PreflightDenied,
}

impl CorsPolicy {
    /// Checks an operator's policy.
    ///
    /// # Errors
    /// `CorsError` for a name that is no token, or an open policy with credentials.
    pub fn new(config: CorsConfig) -> Result<Self, CorsError> {
        let CorsConfig { origins, methods, allowed_fields, exposed_fields, credentials, max_age_s } = config;
        let is_open = origins.iter().any(|o| matches!(o, OriginPattern::Any));
        if is_open && credentials == Credentials::Allow {
            return Err(CorsError::AnyOriginWithCredentials);
        }
        let listed = match &allowed_fields {
            AllowedFields::Requested => [].as_slice(),
            AllowedFields::Listed(names) => names,
        };
        if let Some(bad) =
            methods.iter().chain(listed).chain(&exposed_fields).find(|name| !is_token(name.as_bytes()))
        {
            return Err(CorsError::Token(bad.clone()));
        }
        Ok(Self {
            origins,
            is_open,
            methods: methods.join(", "),
            allowed_fields: match allowed_fields {
                AllowedFields::Requested => None,
                AllowedFields::Listed(names) => Some(names.join(", ")),
            },
            exposed_fields: exposed_fields.join(", "),
            credentials,
            max_age: max_age_s.map(|s| s.to_string()),
        })
    }

    fn serves(&self, origin: &[u8]) -> bool {
        self.origins.iter().any(|pattern| pattern.matches(origin))
    }

    /// Sorts a request. A preflight is OPTIONS with `origin` and `access-control-request-method` (Fetch §3.2.2).
    pub fn classify(&self, head: &RequestHead) -> CorsRequest {
        let Some(origin) = head.fields.get(FieldId::Origin) else {
            return CorsRequest::Plain;
        };
        let is_preflight = head.method == Method::Options && head.fields.get_name(REQUEST_METHOD).is_some();
        match (is_preflight, self.serves(origin)) {
            (true, true) => CorsRequest::Preflight,
            (true, false) => CorsRequest::PreflightDenied,
            (false, true) => CorsRequest::Actual,
            (false, false) => CorsRequest::Plain,
        }
    }

    /// Adds the fields that answer a [`CorsRequest::Preflight`] to `reply`.
    ///
    /// # Errors
    /// `FieldError` when the block would pass 4 GiB.
    pub fn answer_preflight(&self, head: &RequestHead, reply: &mut Fields) -> Result<(), FieldError> {
        self.push_origin(head.fields.get(FieldId::Origin).unwrap_or_default(), reply)?;
        push_unless_empty(reply, b"access-control-allow-methods", self.methods.as_bytes())?;
        match &self.allowed_fields {
            Some(names) => push_unless_empty(reply, b"access-control-allow-headers", names.as_bytes())?,
            None => {
                let asked = head.fields.get_name(REQUEST_FIELDS).unwrap_or_default();
                if asked.split(|b| *b == b',').all(|name| is_token(name.trim_ascii())) {
                    reply.push_name(b"access-control-allow-headers", asked)?;
                }
                reply.push(FieldId::Vary, REQUEST_FIELDS)?;
            }
        }
        match &self.max_age {
            Some(seconds) => reply.push_name(b"access-control-max-age", seconds.as_bytes()),
            None => Ok(()),
        }
    }

    /// Makes the `access-control-*` fields of a response to `request` ours, and marks it as depending on the
    /// origin where it does, also towards callers that sent none (RFC 9111 §4.1: caches).
    ///
    /// # Errors
    /// `FieldError` when the block would pass 4 GiB.
    pub fn mark_response(&self, request: &Fields, response: &mut Fields) -> Result<(), FieldError> {
        response.retain(|field| !field.name.starts_with(b"access-control-"));
        match request.get(FieldId::Origin) {
            Some(origin) if self.serves(origin) => {
                self.push_origin(origin, response)?;
                push_unless_empty(response, b"access-control-expose-headers", self.exposed_fields.as_bytes())
            }
            Some(_) | None => self.push_vary(response),
        }
    }

    fn push_origin(&self, origin: &[u8], out: &mut Fields) -> Result<(), FieldError> {
        out.push_name(b"access-control-allow-origin", if self.is_open { b"*" } else { origin })?;
        if self.credentials == Credentials::Allow {
            out.push_name(b"access-control-allow-credentials", b"true")?;
        }
        self.push_vary(out)
    }

    fn push_vary(&self, out: &mut Fields) -> Result<(), FieldError> {
        let names_origin = |value: &[u8]| {
            value
                .split(|b| *b == b',')
                .any(|n| matches!(n.trim_ascii(), b"*") || n.trim_ascii().eq_ignore_ascii_case(b"origin"))
        };
        if self.is_open || out.all(FieldId::Vary).any(names_origin) {
            return Ok(());
        }
        out.push(FieldId::Vary, b"origin")
    }
}

const REQUEST_METHOD: &[u8] = b"access-control-request-method";
const REQUEST_FIELDS: &[u8] = b"access-control-request-headers";

fn push_unless_empty(out: &mut Fields, name: &[u8], value: &[u8]) -> Result<(), FieldError> {
    if value.is_empty() { Ok(()) } else { out.push_name(name, value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(origins: &[&str], credentials: Credentials) -> CorsPolicy {
        CorsPolicy::new(CorsConfig {
            origins: origins.iter().map(|o| OriginPattern::parse(o).unwrap()).collect(),
            methods: vec!["GET".into(), "PUT".into()],
            allowed_fields: AllowedFields::Listed(vec!["x-a".into(), "content-type".into()]),
            exposed_fields: vec!["x-total".into()],
            credentials,
            max_age_s: Some(600),
        })
        .unwrap()
    }

    fn head(method: &str, lines: &[(&str, &str)]) -> RequestHead {
        let mut head = RequestHead::default();
        head.set_method(method.as_bytes()).unwrap();
        for (name, value) in lines {
            head.fields.push_name(name.as_bytes(), value.as_bytes()).unwrap();
        }
        head
    }

    fn get<'a>(fields: &'a Fields, name: &str) -> Option<&'a str> {
        fields.get_name(name.as_bytes()).map(|v| std::str::from_utf8(v).unwrap())
    }

    #[test]
    fn origins_match_whole_and_never_by_a_part() {
        let table: [(&str, &[&str], &[&str]); 4] = [
            (
                "https://app.example",
                &["https://app.example"],
                &[
                    "http://app.example",
                    "https://app.example.evil",
                    "https://evil-app.example",
                    "https://app.example:444",
                    "https://APP.example",
                    "null",
                    "",
                ],
            ),
            (
                "https://*.app.example",
                &["https://a.app.example", "https://a.b-c.app.example"],
                &[
                    "https://app.example",
                    "https://.app.example",
                    "https://evilapp.example",
                    "https://a..app.example",
                    "https://evil.example/.app.example",
                    "https://evil.example?.app.example",
                    "https://u@.app.example",
                    "http://a.app.example",
                    "https://a.app.example:8443",
                    "https://a.app.example.evil",
                ],
            ),
            (
                "https://*.app.example:8443",
                &["https://a.app.example:8443"],
                &["https://a.app.example", "https://a.app.example:18443", "https://a.app.example:84430"],
            ),
            ("null", &["null"], &["https://null", "NULL"]),
        ];
        for (pattern, served, refused) in table {
            let policy = policy(&[pattern], Credentials::Allow);
            for origin in served {
                assert!(policy.serves(origin.as_bytes()), "{pattern} serves {origin}");
            }
            for origin in refused {
                assert!(!policy.serves(origin.as_bytes()), "{pattern} refuses {origin}");
            }
        }
        let pattern = OriginPattern::regex("https://[a-z]+\\.x\\.example|https://y").unwrap();
        assert!(pattern.matches(b"https://a.x.example") && pattern.matches(b"https://y"));
        assert!(
            !pattern.matches(b"https://a.x.example.evil")
                && !pattern.matches(b"https://yy")
                && !pattern.matches(b"zhttps://y")
        );
    }

    #[test]
    fn requests_are_sorted() {
        let policy = policy(&["https://app.example"], Credentials::Omit);
        let ours = ("origin", "https://app.example");
        let other = ("origin", "https://evil.example");
        let asks = ("access-control-request-method", "PUT");
        let table = [
            (head("GET", &[]), CorsRequest::Plain),
            (head("GET", &[ours]), CorsRequest::Actual),
            (head("GET", &[other]), CorsRequest::Plain),
            (head("OPTIONS", &[ours]), CorsRequest::Actual),
            (head("OPTIONS", &[asks]), CorsRequest::Plain),
            (head("OPTIONS", &[ours, asks]), CorsRequest::Preflight),
            (head("OPTIONS", &[other, asks]), CorsRequest::PreflightDenied),
            (head("GET", &[ours, asks]), CorsRequest::Actual),
        ];
        for (head, expected) in table {
            assert_eq!(policy.classify(&head), expected, "{head:?}");
        }
    }

    #[test]
    fn preflights_are_answered_from_the_policy() {
        let asks = head(
            "OPTIONS",
            &[
                ("origin", "https://app.example"),
                ("access-control-request-method", "PUT"),
                ("access-control-request-headers", "x-other, x-z"),
            ],
        );
        let mut reply = Fields::new();
        policy(&["https://app.example"], Credentials::Allow).answer_preflight(&asks, &mut reply).unwrap();
        assert_eq!(get(&reply, "access-control-allow-origin"), Some("https://app.example"));
        assert_eq!(get(&reply, "access-control-allow-credentials"), Some("true"));
        assert_eq!(get(&reply, "access-control-allow-methods"), Some("GET, PUT"));
        assert_eq!(get(&reply, "access-control-allow-headers"), Some("x-a, content-type"));
        assert_eq!(get(&reply, "access-control-max-age"), Some("600"));
        assert_eq!(get(&reply, "vary"), Some("origin"));

        let open = CorsPolicy::new(CorsConfig {
            origins: vec![OriginPattern::Any],
            methods: vec![],
            allowed_fields: AllowedFields::Requested,
            exposed_fields: vec![],
            credentials: Credentials::Omit,
            max_age_s: None,
        });
        let mut reply = Fields::new();
        let open = open.unwrap();
        open.answer_preflight(&asks, &mut reply).unwrap();
        assert_eq!(get(&reply, "access-control-allow-origin"), Some("*"));
        assert_eq!(get(&reply, "access-control-allow-headers"), Some("x-other, x-z"));
        assert_eq!(get(&reply, "access-control-allow-credentials"), None);
        for bad in ["x-a, <script>", "x a", "x-a,,x-b", "\"x\""] {
            let asks = head(
                "OPTIONS",
                &[
                    ("origin", "https://z"),
                    ("access-control-request-method", "PUT"),
                    ("access-control-request-headers", bad),
                ],
            );
            let mut reply = Fields::new();
            open.answer_preflight(&asks, &mut reply).unwrap();
            assert_eq!(get(&reply, "access-control-allow-headers"), None, "{bad} is not reflected");
        }
    }

    #[test]
    fn the_backends_own_answer_is_replaced() {
        let policy = policy(&["https://app.example"], Credentials::Omit);
        for (origin, allowed) in
            [("https://app.example", Some("https://app.example")), ("https://evil.example", None)]
        {
            let request = head("GET", &[("origin", origin)]);
            let mut response = head(
                "GET",
                &[
                    ("access-control-allow-origin", "*"),
                    ("access-control-allow-credentials", "true"),
                    ("vary", "accept"),
                    ("etag", "x"),
                ],
            )
            .fields;
            policy.mark_response(&request.fields, &mut response).unwrap();
            assert_eq!(get(&response, "access-control-allow-origin"), allowed);
            assert_eq!(get(&response, "access-control-allow-credentials"), None);
            assert_eq!(get(&response, "access-control-expose-headers"), allowed.map(|_| "x-total"));
            let vary: Vec<_> = response.all(FieldId::Vary).collect();
            assert_eq!(vary, [&b"accept"[..], b"origin"]);
        }
        let mut response = head("GET", &[("vary", "Accept, Origin")]).fields;
        policy.mark_response(&Fields::new(), &mut response).unwrap();
        assert_eq!(response.all(FieldId::Vary).count(), 1, "named already");
    }

    #[test]
    fn policies_that_cannot_be_meant_are_refused() {
        for bad in [
            "app.example",
            "https://",
            "https://App.example",
            "https://a/",
            "https://a b",
            "https://*.",
            "https://*.a:x",
            "://a",
            "https://*",
            "https://a*.b",
        ] {
            assert!(matches!(OriginPattern::parse(bad), Err(CorsError::Origin(_))), "{bad}");
        }
        assert!(matches!(OriginPattern::regex("("), Err(CorsError::Pattern(_))));
        let config = |origin, method: &str, credentials| CorsConfig {
            origins: vec![origin],
            methods: vec![method.to_owned()],
            allowed_fields: AllowedFields::Requested,
            exposed_fields: vec![],
            credentials,
            max_age_s: None,
        };
        assert!(matches!(
            CorsPolicy::new(config(OriginPattern::Any, "GET", Credentials::Allow)),
            Err(CorsError::AnyOriginWithCredentials)
        ));
        assert!(matches!(
            CorsPolicy::new(config(OriginPattern::Any, "G T", Credentials::Omit)),
            Err(CorsError::Token(_))
        ));
    }
}
