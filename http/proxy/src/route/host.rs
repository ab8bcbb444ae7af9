//! From a request's authority to a virtual host, at a cost that does not grow with the number of hosts.
//!
//! Order: the exact domain, the longest `*suffix`, the longest `prefix*`, then `*`. A `*` stands for one or
//! more bytes and may span labels (`*.example` serves `a.b.example`), as Envoy defines it; certificates are
//! stricter, see the tls crate. The port of the authority and one trailing dot are ignored, unless a domain
//! names a port itself. Keys come from config, so their hash need not resist a client.

use rustc_hash::FxHashMap;

/// Bytes of a domain (RFC 1035 §2.3.4 allows 255).
const DOMAIN_BYTES_MAX: usize = 255;

#[derive(Debug, Default)]
pub(super) struct HostIndex {
    exact: FxHashMap<Box<[u8]>, u32>,
    suffixes: Wildcards,
    prefixes: Wildcards,
    any: Option<u32>,
    /// Some domain names a port, so authorities are looked up with theirs too.
    names_ports: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum InsertError {
    BadDomain,
    /// The virtual host that has it already.
    Taken(u32),
}

impl HostIndex {
    /// Gives a domain to a virtual host. [`HostIndex::finish`] must follow the last one.
    pub(super) fn insert(&mut self, domain: &str, virtual_host: u32) -> Result<(), InsertError> {
        let lower = domain.to_ascii_lowercase();
        if lower == "*" {
            return match self.any.replace(virtual_host) {
                None => Ok(()),
                Some(other) => Err(InsertError::Taken(other)),
            };
        }
        let (map, text, ends_host) = if let Some(suffix) = lower.strip_prefix('*') {
            (&mut self.suffixes.hosts, suffix, true)
        } else if let Some(prefix) = lower.strip_suffix('*') {
            (&mut self.prefixes.hosts, prefix, false)
        } else {
            (&mut self.exact, lower.as_str(), true)
        };
        let is_host = |b: u8| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b);
        if text.is_empty() || text.len() > DOMAIN_BYTES_MAX || !text.bytes().all(is_host) {
            return Err(InsertError::BadDomain);
        }
        let bare = without_port(text.as_bytes());
        let names_port = ends_host && bare.len() != text.len();
        let key = if ends_host && !names_port { without_dot(bare) } else { text.as_bytes() };
        self.names_ports |= names_port;
        match map.insert(key.into(), virtual_host) {
            None => Ok(()),
            Some(other) => Err(InsertError::Taken(other)),
        }
    }

    pub(super) fn finish(&mut self) {
        self.suffixes.finish();
        self.prefixes.finish();
    }

    /// The virtual host for a lower-case authority.
    pub(super) fn find(&self, authority: &[u8]) -> Option<u32> {
        let bare = without_port(authority);
        let host = without_dot(bare);
        let with_port = self.names_ports && bare.len() != authority.len();
        let in_class = |find: &dyn Fn(&[u8]) -> Option<u32>| {
            let by_port = if with_port { find(authority) } else { None };
            by_port.or_else(|| find(host))
        };
        in_class(&|text| self.exact.get(text).copied())
            .or_else(|| in_class(&|text| self.suffixes.find(text, |len| text.get(text.len() - len..))))
            .or_else(|| in_class(&|text| self.prefixes.find(text, |len| text.get(..len))))
            .or(self.any)
    }
}

/// Domains with a `*` at one end, by the text at the other end.
#[derive(Debug, Default)]
struct Wildcards {
    hosts: FxHashMap<Box<[u8]>, u32>,
    /// The lengths that occur, longest first.
    lengths: Box<[WildcardLength]>,
}

#[derive(Debug)]
struct WildcardLength {
    bytes: usize,
    /// Every text of this length begins with a dot, so that other places need no look-up.
    dotted: bool,
}

impl Wildcards {
    fn finish(&mut self) {
        let mut lengths: Vec<WildcardLength> = Vec::new();
        for text in self.hosts.keys() {
            let dotted = text.starts_with(b".");
            match lengths.iter_mut().find(|l| l.bytes == text.len()) {
                Some(length) => length.dotted &= dotted,
                None => lengths.push(WildcardLength { bytes: text.len(), dotted }),
            }
        }
        lengths.sort_by_key(|l| std::cmp::Reverse(l.bytes));
        self.lengths = lengths.into();
    }

    fn find<'a>(&self, host: &'a [u8], end_of: impl Fn(usize) -> Option<&'a [u8]>) -> Option<u32> {
        // The star stands for at least one byte.
        for length in self.lengths.iter().filter(|l| l.bytes < host.len()) {
            let text = end_of(length.bytes)?;
            if length.dotted && text.first() != Some(&b'.') {
                continue;
            }
            if let Some(virtual_host) = self.hosts.get(text) {
                return Some(*virtual_host);
            }
        }
        None
    }
}

/// Cuts `:port` off; a colon inside the brackets of an IPv6 literal is no port (RFC 3986 §3.2).
fn without_port(authority: &[u8]) -> &[u8] {
    let Some(colon) = authority.iter().rposition(|&b| !b.is_ascii_digit()) else {
        return authority;
    };
    match authority.split_at_checked(colon) {
        Some((host, rest)) if rest.first() == Some(&b':') => host,
        _ => authority,
    }
}

fn without_dot(host: &[u8]) -> &[u8] {
    match host.strip_suffix(b".") {
        Some(bare) if !bare.is_empty() => bare,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(domains: &[&str]) -> HostIndex {
        let mut index = HostIndex::default();
        for (at, domain) in domains.iter().enumerate() {
            index.insert(domain, u32::try_from(at).expect("few")).expect("valid domain");
        }
        index.finish();
        index
    }

    const DOMAINS: [&str; 13] = [
        "*",
        "a.com",
        "*.a.com",
        "*.b.a.com",
        "*-x.a.com",
        "api.*",
        "api.v1.*",
        "a.com:8443",
        "*.a.com:8443",
        "[::1]",
        "Shop.Example",
        "dot.example.",
        "x*",
    ];

    #[test]
    fn precedence_by_family() {
        let hosts = index(&DOMAINS);
        for (authority, domain) in [
            // Exact beats wildcard; wildcards need at least one byte in the star's place.
            ("a.com", "a.com"),
            ("x.a.com", "*.a.com"),
            (".a.com", "*"),
            ("b.a.com", "*.a.com"),
            // The longest suffix wins, over several labels, label-aligned or not.
            ("c.b.a.com", "*.b.a.com"),
            ("d.c.b.a.com", "*.b.a.com"),
            ("y-x.a.com", "*-x.a.com"),
            ("z.y-x.a.com", "*-x.a.com"),
            ("-x.a.com", "*.a.com"),
            // A suffix beats a prefix; the longest prefix wins.
            ("api.a.com", "*.a.com"),
            ("api.org", "api.*"),
            ("api.v1.org", "api.v1.*"),
            ("api.", "*"),
            ("xa", "x*"),
            // Ports: named by the domain, or ignored.
            ("a.com:8443", "a.com:8443"),
            ("a.com:80", "a.com"),
            ("a.com:", "a.com"),
            ("x.a.com:8443", "*.a.com:8443"),
            ("x.a.com:1", "*.a.com"),
            ("c.b.a.com:8443", "*.a.com:8443"),
            // IPv6 literals, case in config, one trailing dot.
            ("[::1]", "[::1]"),
            ("[::1]:443", "[::1]"),
            ("[::2]:443", "*"),
            ("shop.example", "Shop.Example"),
            ("a.com.", "a.com"),
            ("a.com.:80", "a.com"),
            ("a.com..", "*"),
            ("dot.example", "dot.example."),
            ("dot.example.", "dot.example."),
            // Odd input only ever falls through.
            ("", "*"),
            (".", "*"),
            (":", "*"),
            ("80", "*"),
        ] {
            let found = hosts.find(authority.as_bytes()).and_then(|at| DOMAINS.get(at as usize));
            assert_eq!(found, Some(&domain), "authority {authority:?}");
        }
    }

    #[test]
    fn without_a_star_an_unknown_host_has_no_virtual_host() {
        let hosts = index(&["a.com", "*.b.com"]);
        for authority in ["b.com", "c.com", "xa.com", "a.com.x", ""] {
            assert_eq!(hosts.find(authority.as_bytes()), None, "authority {authority:?}");
        }
    }

    #[test]
    fn bad_and_repeated_domains_are_refused() {
        let mut hosts = HostIndex::default();
        for domain in ["", "a*b", "**", "*.*", "a b", "a/b", "é.com", &"a".repeat(256)] {
            assert_eq!(hosts.insert(domain, 0), Err(InsertError::BadDomain), "domain {domain:?}");
        }
        for (first, second) in
            [("a.com", "A.COM"), ("*.a.com", "*.A.com"), ("a.*", "A.*"), ("*", "*"), ("d.", "d")]
        {
            let mut hosts = HostIndex::default();
            assert_eq!(hosts.insert(first, 3), Ok(()));
            assert_eq!(hosts.insert(second, 4), Err(InsertError::Taken(3)), "{first} then {second}");
        }
    }
}
