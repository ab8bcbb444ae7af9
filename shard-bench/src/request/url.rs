//! The URL of a target.

/// How the target is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    const fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// `scheme://host[:port][/path]`, and ws, wss for http, https.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) scheme: Scheme,
    pub(crate) is_websocket: bool,
    /// Host and port as written.
    pub(crate) authority: String,
    /// Without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// With the query; `/` when there is none.
    pub(crate) path: String,
}

impl Url {
    /// # Errors
    /// What is wrong with it, and the form that is wanted.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("URL {text}: {why}; want http://HOST[:PORT][/PATH] or https://…");
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("no scheme"))?;
        let (scheme, is_websocket) = match scheme {
            "http" => (Scheme::Http, false),
            "https" => (Scheme::Https, false),
            "ws" => (Scheme::Http, true),
            "wss" => (Scheme::Https, true),
            _ => return Err(wrong("unknown scheme")),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.contains('@') {
            return Err(wrong("user names are not supported, use --header"));
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(v6) => {
                let (host, after) = v6.split_once(']').ok_or_else(|| wrong("no ] after ["))?;
                (host, after.strip_prefix(':'))
            }
            None => match authority.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        if host.is_empty() || !host.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(wrong("no good host"));
        }
        let port = match port {
            None => scheme.port(),
            Some(port) => port.parse().map_err(|error| wrong(&format!("port {port}: {error}")))?,
        };
        let path = path.split('#').next().unwrap_or_default();
        if !path.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(wrong("write spaces and other special characters of the path as %XX"));
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { scheme, is_websocket, authority: authority.to_owned(), host: host.to_owned(), port, path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        for (text, scheme, authority, host, port, path) in [
            ("http://a", Scheme::Http, "a", "a", 80, "/"),
            ("https://a.b:8443/x?y=1#z", Scheme::Https, "a.b:8443", "a.b", 8443, "/x?y=1"),
            ("ws://127.0.0.1:1?q", Scheme::Http, "127.0.0.1:1", "127.0.0.1", 1, "/?q"),
            ("https://[::1]:9/", Scheme::Https, "[::1]:9", "::1", 9, "/"),
        ] {
            let url = Url::parse(text).expect(text);
            assert_eq!(
                (url.scheme, url.authority.as_str(), url.host.as_str(), url.port, url.path.as_str()),
                (scheme, authority, host, port, path)
            );
        }
    }

    #[test]
    fn faults_say_what_is_wanted() {
        for text in [
            "a",
            "ftp://a",
            "http://",
            "http://a:99999",
            "http://u@a",
            "http://[::1",
            "http://a/b c",
            "http://:1",
        ] {
            let error = Url::parse(text).expect_err(text);
            assert!(error.contains(text) && error.contains("want http"), "{error}");
        }
    }
}
