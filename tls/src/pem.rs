//! Reading PEM (RFC 7468): certificate chains, CA bundles, and private keys that never touch unlocked memory.
//!
//! A private key is decoded straight into [`SecretBytes`]; the decoder of other crates leaves copies of the base64
//! text in freed heap memory. Called by the context builders only, never on the request path.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

use crate::error::PemProblem;
use crate::locked::SecretBytes;

/// All certificates of a PEM text, in order; other sections are passed over.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemProblem> {
    let mut found = Vec::new();
    for item in CertificateDer::pem_slice_iter(pem) {
        found.push(item.map_err(|e| PemProblem::Malformed(e.to_string()))?);
    }
    if found.is_empty() { Err(PemProblem::NoCertificate) } else { Ok(found) }
}

/// All revocation lists of a PEM text; none is fine.
pub(crate) fn revocation_lists(pem: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, PemProblem> {
    CertificateRevocationListDer::pem_slice_iter(pem)
        .map(|item| item.map_err(|e| PemProblem::Malformed(e.to_string())))
        .collect()
}

/// A decoded private key and how it is encoded.
#[derive(Debug)]
pub(crate) struct PrivateKey {
    der: SecretBytes,
    encoding: KeyEncoding,
}

#[derive(Clone, Copy, Debug)]
enum KeyEncoding {
    Pkcs8,
    Pkcs1,
    Sec1,
}

impl PrivateKey {
    /// The key, borrowed from locked memory.
    pub(crate) fn der(&self) -> PrivateKeyDer<'_> {
        let bytes = self.der.as_slice();
        match self.encoding {
            KeyEncoding::Pkcs8 => PrivateKeyDer::Pkcs8(bytes.into()),
            KeyEncoding::Pkcs1 => PrivateKeyDer::Pkcs1(bytes.into()),
            KeyEncoding::Sec1 => PrivateKeyDer::Sec1(bytes.into()),
        }
    }
}

const KEY_LABELS: [(&[u8], KeyEncoding); 3] = [
    (b"PRIVATE KEY", KeyEncoding::Pkcs8),
    (b"RSA PRIVATE KEY", KeyEncoding::Pkcs1),
    (b"EC PRIVATE KEY", KeyEncoding::Sec1),
];

/// The first private key of a PEM text.
pub(crate) fn private_key(pem: &SecretBytes) -> Result<PrivateKey, PemProblem> {
    let mut lines = pem.as_slice().split(|&b| b == b'\n').map(<[u8]>::trim_ascii);
    while let Some(line) = lines.next() {
        let Some(label) = line.strip_prefix(b"-----BEGIN ").and_then(|l| l.strip_suffix(b"-----")) else {
            continue;
        };
        if label == b"ENCRYPTED PRIVATE KEY" {
            return Err(PemProblem::EncryptedKey);
        }
        let Some((_, encoding)) = KEY_LABELS.iter().find(|(known, _)| *known == label) else { continue };
        let mut der = SecretBytes::zeroed(pem.len());
        let mut decoder = Base64::default();
        for body in lines.by_ref() {
            if body.starts_with(b"-----END ") {
                let len = decoder.written;
                decoder.finish()?;
                der.truncate(len);
                return Ok(PrivateKey { der, encoding: *encoding });
            }
            if body.starts_with(b"Proc-Type:") {
                return Err(PemProblem::EncryptedKey);
            }
            decoder.feed(body, der.as_mut_slice())?;
        }
        return Err(PemProblem::Malformed("no END line after the private key".to_owned()));
    }
    Err(PemProblem::NoKey)
}

/// A base64 decoder (RFC 4648 §4) without tables, so that its memory accesses do not depend on the secret.
#[derive(Default)]
struct Base64 {
    bits: u32,
    bit_count: u32,
    padding: usize,
    digits: usize,
    written: usize,
}

impl Base64 {
    fn feed(&mut self, text: &[u8], out: &mut [u8]) -> Result<(), PemProblem> {
        for &byte in text {
            if byte == b'=' {
                self.padding += 1;
                continue;
            }
            let value = sextet(byte).filter(|_| self.padding == 0);
            let Some(value) = value else {
                return Err(PemProblem::Malformed(
                    "the private key holds a byte that is not base64".to_owned(),
                ));
            };
            self.digits += 1;
            self.bits = (self.bits << 6) | value;
            self.bit_count += 6;
            if self.bit_count >= 8 {
                self.bit_count -= 8;
                let octet = (self.bits >> self.bit_count) & 0xff;
                self.bits &= (1 << self.bit_count) - 1;
                let Some(place) = out.get_mut(self.written) else {
                    return Err(PemProblem::Malformed("the private key is too long".to_owned()));
                };
                *place = u8::try_from(octet).unwrap_or(0);
                self.written += 1;
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<(), PemProblem> {
        let whole = (self.digits + self.padding).is_multiple_of(4) && self.padding <= 2 && self.bits == 0;
        if whole && self.written > 0 {
            Ok(())
        } else {
            Err(PemProblem::Malformed("the private key's base64 text is cut off".to_owned()))
        }
    }
}

fn sextet(byte: u8) -> Option<u32> {
    let value = match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_of(text: &str) -> Result<Vec<u8>, String> {
        private_key(&SecretBytes::from_slice(text.as_bytes()))
            .map(|k| k.der.as_slice().to_vec())
            .map_err(|e| e.to_string())
    }

    #[test]
    fn keys_decode_like_the_reference_decoder() {
        for len in 1..200_usize {
            let der: Vec<u8> =
                (0..len).map(|i| u8::try_from((i * 37 + len) % 256).expect("a byte")).collect();
            let text = base64(&der);
            let pem = format!("junk\n-----BEGIN PRIVATE KEY-----\r\n{text}\r\n-----END PRIVATE KEY-----\n");
            assert_eq!(key_of(&pem).expect("decodes"), der, "{len}");
            let reference = PrivateKeyDer::from_pem_slice(pem.as_bytes()).expect("reference decodes");
            assert_eq!(reference.secret_der(), der);
        }
    }

    #[test]
    fn bad_keys_are_told_apart() {
        let wrap =
            |label: &str, body: &str| format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n");
        for (text, part) in [
            (String::new(), "no private key"),
            (wrap("CERTIFICATE", "AAAA"), "no private key"),
            (wrap("ENCRYPTED PRIVATE KEY", "AAAA"), "encrypted"),
            (wrap("RSA PRIVATE KEY", "Proc-Type: 4,ENCRYPTED\nAAAA"), "encrypted"),
            (wrap("EC PRIVATE KEY", "AA*A"), "not base64"),
            (wrap("EC PRIVATE KEY", "AA=A"), "not base64"),
            (wrap("EC PRIVATE KEY", "AAAAA"), "cut off"),
            (wrap("EC PRIVATE KEY", ""), "cut off"),
            ("-----BEGIN PRIVATE KEY-----\nAAAA\n".to_owned(), "no END line"),
        ] {
            let error = key_of(&text).expect_err(&text);
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }

    fn base64(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for chunk in bytes.chunks(3) {
            let word =
                chunk.iter().fold(0_usize, |w, b| (w << 8) | usize::from(*b)) << (8 * (3 - chunk.len()));
            for i in 0..4 {
                let digit = DIGITS[(word >> (18 - 6 * i)) & 63];
                text.push(if i <= chunk.len() { char::from(digit) } else { '=' });
            }
            if text.len() % 65 == 64 {
                text.push('\n');
            }
        }
        text
    }
}
