//! What the proxy reads out of X.509 certificates: names, validity, subject and fingerprint.
//!
//! Our own certificates are read when a context is built, a peer's after rustls has verified it; nothing here
//! decides about trust. Used by the context builders, the SAN rules and the proxy's `x-forwarded-client-cert`.

use std::fmt::Write as _;

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

use crate::provider::sha256;

/// What a server context needs to know of its own leaf.
#[derive(Debug)]
pub(crate) struct LeafFacts {
    pub(crate) dns_names: Vec<String>,
    pub(crate) not_before_unix_s: i64,
    pub(crate) not_after_unix_s: i64,
}

impl LeafFacts {
    /// # Errors
    /// What the parser says.
    pub(crate) fn read(der: &[u8]) -> Result<Self, String> {
        let certificate = parse(der)?;
        Ok(Self {
            dns_names: names_of(&certificate, dns_name),
            not_before_unix_s: certificate.validity().not_before.timestamp(),
            not_after_unix_s: certificate.validity().not_after.timestamp(),
        })
    }
}

/// A peer's verified certificate. Made on demand; keep it per connection, not per request.
#[derive(Clone, Debug)]
pub struct PeerCertificate<'s> {
    /// The subject in RFC 4514 form, most specific part first: `CN=orders,O=Example`.
    pub subject: String,
    /// DNS names of the subject alternative name extension, as they stand there.
    pub dns_names: Vec<String>,
    /// URIs of the subject alternative name extension (SPIFFE ids).
    pub uris: Vec<String>,
    /// SHA-256 of the DER encoding.
    pub sha256: [u8; 32],
    /// `notAfter`, seconds since 1970.
    pub not_after_unix_s: i64,
    der: &'s [u8],
}

impl<'s> PeerCertificate<'s> {
    /// None when the certificate cannot be read (rustls would have refused it before).
    pub(crate) fn read(der: &'s [u8]) -> Option<Self> {
        let certificate = parse(der).ok()?;
        Some(Self {
            subject: distinguished_name(certificate.subject()),
            dns_names: names_of(&certificate, dns_name),
            uris: names_of(&certificate, uri),
            sha256: sha256(der),
            not_after_unix_s: certificate.validity().not_after.timestamp(),
            der,
        })
    }

    /// The DER encoding.
    pub fn der(&self) -> &'s [u8] {
        self.der
    }

    /// The fingerprint in lower-case hex (`Hash=` of `x-forwarded-client-cert`).
    pub fn fingerprint(&self) -> String {
        hex(&self.sha256)
    }

    /// The certificate as PEM, percent-encoded (`Cert=` of `x-forwarded-client-cert`).
    pub fn pem_url_encoded(&self) -> String {
        let mut out = String::with_capacity(self.der.len() * 3 / 2 + 80);
        out.push_str("-----BEGIN%20CERTIFICATE-----%0A");
        for line in self.der.chunks(48) {
            for chunk in line.chunks(3) {
                push_base64_group(&mut out, chunk);
            }
            out.push_str("%0A");
        }
        out.push_str("-----END%20CERTIFICATE-----%0A");
        out
    }
}

fn push_base64_group(out: &mut String, chunk: &[u8]) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let octet = |i: usize| chunk.get(i).copied().map_or(0, usize::from);
    let word = (octet(0) << 16) | (octet(1) << 8) | octet(2);
    for place in 0..4 {
        let digit = DIGITS.get((word >> (18 - 6 * place)) & 63).copied();
        match digit.filter(|_| place <= chunk.len()) {
            Some(b'+') => out.push_str("%2B"),
            Some(b'/') => out.push_str("%2F"),
            Some(digit) => out.push(char::from(digit)),
            None => out.push_str("%3D"),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 2);
    for nibble in bytes.iter().flat_map(|b| [b >> 4, b & 15]) {
        out.extend(char::from_digit(u32::from(nibble), 16));
    }
    out
}

fn parse(der: &[u8]) -> Result<X509Certificate<'_>, String> {
    let (_, certificate) = X509Certificate::from_der(der).map_err(|e| e.to_string())?;
    Ok(certificate)
}

fn dns_name<'a>(name: &GeneralName<'a>) -> Option<&'a str> {
    if let GeneralName::DNSName(name) = name { Some(name) } else { None }
}

fn uri<'a>(name: &GeneralName<'a>) -> Option<&'a str> {
    if let GeneralName::URI(uri) = name { Some(uri) } else { None }
}

fn names_of(
    certificate: &X509Certificate<'_>,
    pick: for<'a> fn(&GeneralName<'a>) -> Option<&'a str>,
) -> Vec<String> {
    let Ok(Some(extension)) = certificate.subject_alternative_name() else { return Vec::new() };
    extension.value.general_names.iter().filter_map(pick).map(str::to_owned).collect()
}

/// Which names of a certificate a rule looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SanKind {
    /// Compared without case.
    Dns,
    /// Compared byte for byte.
    Uri,
}

/// How a rule's text is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SanMatch {
    Exact,
    Prefix,
    Suffix,
}

/// A rule over a peer's subject alternative names; a list of rules holds when one of them does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SanRule {
    pub kind: SanKind,
    pub how: SanMatch,
    pub text: String,
}

impl SanRule {
    fn matches(&self, name: &str) -> bool {
        let (name, text) = (name.as_bytes(), self.text.as_bytes());
        let part = match self.how {
            SanMatch::Exact => Some(name),
            SanMatch::Prefix => name.get(..text.len()),
            SanMatch::Suffix => name.len().checked_sub(text.len()).and_then(|at| name.get(at..)),
        };
        part.is_some_and(|part| match self.kind {
            SanKind::Dns => part.eq_ignore_ascii_case(text),
            SanKind::Uri => part == text,
        })
    }
}

/// Whether one of `rules` holds for the certificate; no rules always hold.
pub(crate) fn rules_hold(rules: &[SanRule], der: &[u8]) -> bool {
    if rules.is_empty() {
        return true;
    }
    let Ok(certificate) = parse(der) else { return false };
    let (dns, uris) = (names_of(&certificate, dns_name), names_of(&certificate, uri));
    rules.iter().any(|rule| {
        let names = match rule.kind {
            SanKind::Dns => &dns,
            SanKind::Uri => &uris,
        };
        names.iter().any(|name| rule.matches(name))
    })
}

/// RFC 4514: the last RDN first, special characters escaped.
fn distinguished_name(name: &X509Name<'_>) -> String {
    let rdns: Vec<_> = name.iter_rdn().collect();
    let mut out = String::new();
    for rdn in rdns.into_iter().rev() {
        for (i, attribute) in rdn.iter().enumerate() {
            if !out.is_empty() {
                out.push(if i == 0 { ',' } else { '+' });
            }
            push_attribute(&mut out, attribute);
        }
    }
    out
}

/// RFC 4514 §3 and the attribute types of RFC 4519 that occur in certificates.
const ATTRIBUTE_NAMES: [(&str, &str); 12] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.4", "SN"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "STREET"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
];

fn push_attribute(out: &mut String, attribute: &AttributeTypeAndValue<'_>) {
    let oid = attribute.attr_type().to_id_string();
    let name = ATTRIBUTE_NAMES.iter().find(|(known, _)| *known == oid).map_or(oid.as_str(), |(_, name)| name);
    out.push_str(name);
    out.push('=');
    let Ok(value) = attribute.as_str() else {
        out.push('#');
        out.push_str(&hex(attribute.as_slice()));
        return;
    };
    let last = value.chars().count().saturating_sub(1);
    for (i, c) in value.chars().enumerate() {
        match c {
            ' ' | '#' if i == 0 => out.push('\\'),
            ' ' if i == last => out.push('\\'),
            ',' | '+' | '"' | '\\' | '<' | '>' | ';' | '=' => out.push('\\'),
            c if c.is_control() => {
                // RFC 4514 §2.4: control bytes as hex pairs, so that a log line or a header field stays whole.
                let mut utf8 = [0; 4];
                for byte in c.encode_utf8(&mut utf8).bytes() {
                    write!(out, "\\{byte:02X}").expect("a String takes every write");
                }
                continue;
            }
            _ => {}
        }
        out.push(c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn san_rules() {
        use SanKind::{Dns, Uri};
        use SanMatch::{Exact, Prefix, Suffix};
        for (kind, how, text, name, holds) in [
            (Dns, Exact, "orders.example.com", "Orders.Example.com", true),
            (Dns, Exact, "orders.example.com", "xorders.example.com", false),
            (Dns, Suffix, ".example.com", "orders.EXAMPLE.com", true),
            (Dns, Suffix, ".example.com", "example.com", false),
            (Dns, Suffix, ".example.com", "m", false),
            (Uri, Exact, "spiffe://a/b", "spiffe://a/b", true),
            (Uri, Exact, "spiffe://a/b", "spiffe://a/B", false),
            (Uri, Prefix, "spiffe://a/", "spiffe://a/b", true),
            (Uri, Prefix, "spiffe://a/", "spiffe://ab", false),
            (Uri, Prefix, "spiffe://é/", "spiffe://e", false),
        ] {
            let rule = SanRule { kind, how, text: text.to_owned() };
            assert_eq!(rule.matches(name), holds, "{rule:?} {name}");
        }
    }

    #[test]
    fn base64_groups_are_url_safe() {
        for (bytes, text) in [
            (&b"\xfb\xff\xbf"[..], "%2B%2F%2B%2F"),
            (b"\0\0\0", "AAAA"),
            (b"M", "TQ%3D%3D"),
            (b"Ma", "TWE%3D"),
            (b"Man", "TWFu"),
        ] {
            let mut out = String::new();
            push_base64_group(&mut out, bytes);
            assert_eq!(out, text);
        }
    }
}
