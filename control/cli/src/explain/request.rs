//! The request that `shardctl explain METHOD URL -H …` asks about, read by the proxy's own head parser, so that
//! what the proxy would refuse is refused here with the same reason.

use http_wire::authority;
use http_wire::h1::{self, HeadLimits, RequestError};
use http_wire::head::{RequestHead, Scheme};

use crate::args::UsageError;

/// A request as an HTTP/1.1 client would write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    method: String,
    pub(super) url: String,
    pub(super) scheme: Scheme,
    /// The URL's port, or its scheme's.
    pub(super) port: u16,
    /// Of the URL.
    host: String,
    /// Path and query, as a client would send them.
    target: String,
    fields: Vec<(String, String)>,
}

impl Question {
    /// `fields` are `NAME:VALUE`; a `host` among them replaces the URL's.
    ///
    /// # Errors
    /// `UsageError` for what no client would send: no http(s) URL, no colon in a header, control bytes.
    pub(super) fn new(method: String, url: String, fields: &[String]) -> Result<Self, UsageError> {
        let (scheme, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (Scheme::Http, rest),
            (_, Some(rest)) => (Scheme::Https, rest),
            _ => return Err(UsageError::new(format!("URL {url}: it must begin with http:// or https://"))),
        };
        let words = [&method, &url].into_iter().chain(fields);
        if let Some(word) = words.into_iter().find(|w| w.chars().any(char::is_control)) {
            return Err(UsageError::new(format!(
                "{}: control characters cannot be sent",
                word.escape_debug()
            )));
        }
        // A client keeps the fragment to itself (RFC 9110 §7.1).
        let rest = rest.split_once('#').map_or(rest, |(sent, _)| sent);
        let (host, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let parsed = authority::parse(host.as_bytes())
            .map_err(|e| UsageError::new(format!("URL {url}: {}", e.as_str())))?;
        let port = parsed.port.unwrap_or(authority::default_port(scheme)).get();
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        let fields = fields.iter().map(|field| {
            let (name, value) = field
                .split_once(':')
                .ok_or_else(|| UsageError::new(format!("-H {field}: NAME:VALUE is wanted")))?;
            Ok((name.to_owned(), value.trim().to_owned()))
        });
        let fields = fields.collect::<Result<Vec<_>, UsageError>>()?;
        let host = host.to_owned();
        Ok(Self { method, url, scheme, port, host, target, fields })
    }

    /// `GET https://…`.
    pub(super) fn line(&self) -> String {
        format!("{} {}", self.method, self.url)
    }

    /// The head as the proxy would see it within `limits`.
    ///
    /// # Errors
    /// The reason for which the proxy would refuse it.
    pub(super) fn head(&self, limits: &HeadLimits) -> Result<RequestHead, RequestError> {
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        if !self.fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            text.push_str(&format!("host: {}\r\n", self.host));
        }
        for (name, value) in &self.fields {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        let mut head = RequestHead::default();
        match h1::parse_request(text.as_bytes(), limits, self.scheme, &mut head)? {
            Some(_) => Ok(head),
            // The text is whole, so only a limit can have stopped the parser before its end.
            None => Err(RequestError::HeadTooLarge),
        }
    }
}

#[cfg(test)]
mod tests {
    use http_wire::h1::HeadLimits;
    use http_wire::head::Scheme;

    use super::Question;

    fn question(method: &str, url: &str, fields: &[&str]) -> Question {
        let fields: Vec<_> = fields.iter().map(|f| (*f).to_owned()).collect();
        Question::new(method.to_owned(), url.to_owned(), &fields).expect("a good question")
    }

    #[test]
    fn urls_are_split_as_a_client_splits_them() {
        for (url, scheme, port, authority, path, query) in [
            ("http://a.example", Scheme::Http, 80, "a.example", "/", None),
            (
                "https://A.example:8443/x/../y?z=1#f",
                Scheme::Https,
                8443,
                "a.example:8443",
                "/x/../y",
                Some("z=1"),
            ),
            ("https://[2001:db8::1]/", Scheme::Https, 443, "[2001:db8::1]", "/", None),
            ("http://a.example?x=/", Scheme::Http, 80, "a.example", "/", Some("x=/")),
        ] {
            let question = question("GET", url, &[]);
            let head = question.head(&HeadLimits::default()).expect("a head");
            assert_eq!((question.scheme, question.port), (scheme, port), "{url}");
            assert_eq!(head.authority(), authority.as_bytes(), "{url}");
            assert_eq!(head.path(), path.as_bytes(), "{url}");
            assert_eq!(head.query(), query.map(str::as_bytes), "{url}");
        }
    }

    #[test]
    fn header_values_reach_the_head_and_host_is_replaced() {
        let question = question("POST", "http://a/", &["Host: b.example", "X-Version:2", "x-empty:"]);
        let head = question.head(&HeadLimits::default()).expect("a head");
        assert_eq!(head.authority(), b"b.example");
        assert_eq!(head.fields.get_name(b"x-version"), Some(&b"2"[..]));
        assert_eq!(head.fields.get_name(b"x-empty"), Some(&b""[..]));
    }

    #[test]
    fn what_the_proxy_would_refuse_keeps_its_reason() {
        for (method, url, fields, code) in [
            ("get", "http://a/", &[][..], "bad_method"),
            ("CONNECT", "http://a/", &[], "connect_unsupported"),
            ("GET", "http://a/", &["host: a", "host: b"], "host_repeated"),
            ("GET", "http://a/", &["bad name: 1"], "bad_field_name"),
            ("POST", "http://a/", &["content-length: +1"], "bad_content_length"),
        ] {
            let refused = question(method, url, fields).head(&HeadLimits::default());
            assert_eq!(refused.map(|_| ()).map_err(|e| e.code()), Err(code), "{method} {fields:?}");
        }
    }

    #[test]
    fn what_no_client_would_send_is_a_usage_error() {
        for (url, field) in [
            ("ftp://a/", "a:b"),
            ("a.example/", "a:b"),
            ("http:///x", "a:b"),
            ("http://u@a/", "a:b"),
            ("http://a/", "no colon"),
            ("http://a/", "a: b\r\nc: d"),
            ("http://a/\n", "a:b"),
        ] {
            let asked = Question::new("GET".to_owned(), url.to_owned(), &[field.to_owned()]);
            assert!(asked.is_err(), "{url:?} {field:?}");
        }
    }
}
