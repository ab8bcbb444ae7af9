//! Signatures of others: public keys by their numbers, the nine schemes of JSON Web Signatures that are worth having
//! (RFC 7518 §3.1 without HMAC and `none`, RFC 8037), and the hash under which a verified text is remembered.
//!
//! A [`VerifyingKey`] is parsed and checked once, off the request path. Which scheme a key takes follows from its kind,
//! never from the message. Called by http/gateway for bearer tokens; the key holds nothing secret.

use std::fmt;

use crate::provider::signature as backend;

/// How a message was signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureScheme {
    /// ECDSA on P-256 with SHA-256; the signature is r and s, 32 bytes each (RFC 7518 §3.4).
    Es256,
    /// ECDSA on P-384 with SHA-384.
    Es384,
    /// RSASSA-PKCS1-v1_5 (RFC 7518 §3.3).
    Rs256,
    Rs384,
    Rs512,
    /// RSASSA-PSS with a salt as long as the hash (RFC 7518 §3.5).
    Ps256,
    Ps384,
    Ps512,
    /// Ed25519 (RFC 8037 §3.1).
    Ed25519,
}

impl SignatureScheme {
    const RSA: [Self; 6] = [Self::Rs256, Self::Rs384, Self::Rs512, Self::Ps256, Self::Ps384, Self::Ps512];
}

/// A public key as its numbers, big-endian.
#[derive(Clone, Copy, Debug)]
pub enum PublicNumbers<'a> {
    P256 {
        x: &'a [u8],
        y: &'a [u8],
    },
    P384 {
        x: &'a [u8],
        y: &'a [u8],
    },
    /// Modulus and exponent.
    Rsa {
        n: &'a [u8],
        e: &'a [u8],
    },
    Ed25519 {
        x: &'a [u8],
    },
}

/// Why numbers make no key. A sentence part that follows the key's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublicKeyProblem {
    /// A coordinate has another length than the curve's (RFC 7518 §6.2.1.2, RFC 8037 §2).
    Length {
        bytes: usize,
        wanted: usize,
    },
    /// RFC 7518 §3.3: 2048 bits or more.
    RsaTooShort {
        bits: usize,
    },
    RsaTooLong {
        bits: usize,
    },
    /// Even, below 3 or above 33 bits.
    RsaExponent,
    /// No point of the curve, or otherwise refused by the provider.
    Refused,
}

impl fmt::Display for PublicKeyProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { bytes, wanted } => {
                write!(f, "has a coordinate of {bytes} bytes, its curve's have {wanted}")
            }
            Self::RsaTooShort { bits } => {
                write!(f, "has {bits} bits, RSA needs {RSA_BITS_MIN} or more (RFC 7518 §3.3)")
            }
            Self::RsaTooLong { bits } => write!(f, "has {bits} bits, at most {RSA_BITS_MAX} are taken"),
            Self::RsaExponent => f.write_str("has an exponent that is even, below 3 or above 33 bits"),
            Self::Refused => f.write_str("is no key of its kind: its numbers lie outside the group"),
        }
    }
}

impl std::error::Error for PublicKeyProblem {}

/// The signature is not the key's over this message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadSignature;

const RSA_BITS_MIN: usize = 2048;
/// What both providers verify; four times the time of 4096 bits already.
const RSA_BITS_MAX: usize = 8192;
const RSA_EXPONENT_BITS_MAX: usize = 33;

#[cfg(feature = "aws-lc")]
type Parsed = backend::ParsedPublicKey;
#[cfg(all(feature = "ring", not(feature = "aws-lc")))]
type Parsed = backend::UnparsedPublicKey<Vec<u8>>;

/// A public key, ready to verify by each of its schemes.
#[derive(Debug)]
pub struct VerifyingKey {
    by_scheme: Vec<(SignatureScheme, Parsed)>,
}

impl VerifyingKey {
    /// A key for the schemes of its kind: one, or six of an RSA key. `only` leaves one of them.
    ///
    /// # Errors
    /// What is wrong with the numbers. A scheme that the kind has not makes a key that takes none.
    pub fn new(numbers: &PublicNumbers<'_>, only: Option<SignatureScheme>) -> Result<Self, PublicKeyProblem> {
        let (schemes, bytes): (&[SignatureScheme], Vec<u8>) = match *numbers {
            PublicNumbers::P256 { x, y } => (&[SignatureScheme::Es256], point::<32>(x, y)?),
            PublicNumbers::P384 { x, y } => (&[SignatureScheme::Es384], point::<48>(x, y)?),
            PublicNumbers::Ed25519 { x } => (&[SignatureScheme::Ed25519], coordinate::<32>(x)?.to_vec()),
            PublicNumbers::Rsa { n, e } => (&SignatureScheme::RSA, rsa_public_key(n, e)?),
        };
        let wanted = schemes.iter().filter(|scheme| only.is_none_or(|only| only == **scheme));
        let by_scheme = wanted.map(|scheme| Ok((*scheme, parsed(*scheme, &bytes)?)));
        Ok(Self { by_scheme: by_scheme.collect::<Result<_, _>>()? })
    }

    /// Whether the key is for a scheme.
    #[must_use]
    pub fn takes(&self, scheme: SignatureScheme) -> bool {
        self.by_scheme.iter().any(|(own, _)| *own == scheme)
    }

    /// Checks a signature.
    ///
    /// # Errors
    /// `BadSignature` when it is not this key's over `message` by `scheme`.
    pub fn verify(
        &self,
        scheme: SignatureScheme,
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), BadSignature> {
        let (_, key) = self.by_scheme.iter().find(|(own, _)| *own == scheme).ok_or(BadSignature)?;
        #[cfg(feature = "aws-lc")]
        let verified = key.verify_sig(message, signature);
        #[cfg(all(feature = "ring", not(feature = "aws-lc")))]
        let verified = key.verify(message, signature);
        verified.or(Err(BadSignature))
    }
}

/// SHA-256 (FIPS 180-4).
#[must_use]
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    crate::provider::sha256(bytes)
}

#[cfg(feature = "aws-lc")]
fn parsed(scheme: SignatureScheme, bytes: &[u8]) -> Result<Parsed, PublicKeyProblem> {
    // Parsing costs several microseconds, which no request should pay, and finds points outside the curve.
    use backend as of;
    let key = match scheme {
        SignatureScheme::Es256 => Parsed::new(&of::ECDSA_P256_SHA256_FIXED, bytes),
        SignatureScheme::Es384 => Parsed::new(&of::ECDSA_P384_SHA384_FIXED, bytes),
        SignatureScheme::Rs256 => Parsed::new(&of::RSA_PKCS1_2048_8192_SHA256, bytes),
        SignatureScheme::Rs384 => Parsed::new(&of::RSA_PKCS1_2048_8192_SHA384, bytes),
        SignatureScheme::Rs512 => Parsed::new(&of::RSA_PKCS1_2048_8192_SHA512, bytes),
        SignatureScheme::Ps256 => Parsed::new(&of::RSA_PSS_2048_8192_SHA256, bytes),
        SignatureScheme::Ps384 => Parsed::new(&of::RSA_PSS_2048_8192_SHA384, bytes),
        SignatureScheme::Ps512 => Parsed::new(&of::RSA_PSS_2048_8192_SHA512, bytes),
        SignatureScheme::Ed25519 => Parsed::new(&of::ED25519, bytes),
    };
    key.or(Err(PublicKeyProblem::Refused))
}

#[cfg(all(feature = "ring", not(feature = "aws-lc")))]
fn parsed(scheme: SignatureScheme, bytes: &[u8]) -> Result<Parsed, PublicKeyProblem> {
    // This provider looks at a key only when it verifies: a point outside the curve makes every signature bad.
    use backend as of;
    let algorithm: &'static dyn backend::VerificationAlgorithm = match scheme {
        SignatureScheme::Es256 => &of::ECDSA_P256_SHA256_FIXED,
        SignatureScheme::Es384 => &of::ECDSA_P384_SHA384_FIXED,
        SignatureScheme::Rs256 => &of::RSA_PKCS1_2048_8192_SHA256,
        SignatureScheme::Rs384 => &of::RSA_PKCS1_2048_8192_SHA384,
        SignatureScheme::Rs512 => &of::RSA_PKCS1_2048_8192_SHA512,
        SignatureScheme::Ps256 => &of::RSA_PSS_2048_8192_SHA256,
        SignatureScheme::Ps384 => &of::RSA_PSS_2048_8192_SHA384,
        SignatureScheme::Ps512 => &of::RSA_PSS_2048_8192_SHA512,
        SignatureScheme::Ed25519 => &of::ED25519,
    };
    Ok(Parsed::new(algorithm, bytes.to_vec()))
}

fn coordinate<const BYTES: usize>(bytes: &[u8]) -> Result<[u8; BYTES], PublicKeyProblem> {
    let problem = PublicKeyProblem::Length { bytes: bytes.len(), wanted: BYTES };
    bytes.try_into().or(Err(problem))
}

/// The uncompressed form (SEC 1 §2.3.3).
fn point<const BYTES: usize>(x: &[u8], y: &[u8]) -> Result<Vec<u8>, PublicKeyProblem> {
    let (x, y) = (coordinate::<BYTES>(x)?, coordinate::<BYTES>(y)?);
    Ok([&[0x04], &x[..], &y[..]].concat())
}

/// `RSAPublicKey` in DER (RFC 8017 §A.1.1).
fn rsa_public_key(n: &[u8], e: &[u8]) -> Result<Vec<u8>, PublicKeyProblem> {
    let (n, e) = (without_zeros(n), without_zeros(e));
    let bits = bits_of(n);
    if bits < RSA_BITS_MIN {
        return Err(PublicKeyProblem::RsaTooShort { bits });
    }
    if bits > RSA_BITS_MAX {
        return Err(PublicKeyProblem::RsaTooLong { bits });
    }
    let is_odd = e.last().is_some_and(|last| last % 2 == 1);
    if !is_odd || e == [1] || bits_of(e) > RSA_EXPONENT_BITS_MAX {
        return Err(PublicKeyProblem::RsaExponent);
    }
    let (mut key, mut numbers) = (Vec::new(), Vec::new());
    for number in [n, e] {
        let sign: &[u8] = if number.first().is_some_and(|first| *first >= 0x80) { &[0] } else { &[] };
        push_der(0x02, &[sign, number].concat(), &mut numbers);
    }
    push_der(0x30, &numbers, &mut key);
    Ok(key)
}

/// One element; lengths up to 2^16, which bounds of the numbers keep (X.690 §8.1.3).
fn push_der(tag: u8, content: &[u8], out: &mut Vec<u8>) {
    let [.., high, low] = content.len().to_be_bytes();
    out.push(tag);
    match (high, low) {
        (0, 0..0x80) => out.push(low),
        (0, _) => out.extend([0x81, low]),
        _ => out.extend([0x82, high, low]),
    }
    out.extend_from_slice(content);
}

fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.get(zeros..).unwrap_or(&[])
}

fn bits_of(number: &[u8]) -> usize {
    let unused = number.first().map_or(0, |first| first.leading_zeros() as usize);
    number.len() * 8 - unused
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }

    #[test]
    fn ed25519_is_that_of_rfc_8032() {
        // §7.1, test 2.
        let x = hex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c");
        let signature = hex(
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        );
        let key = VerifyingKey::new(&PublicNumbers::Ed25519 { x: &x }, None).unwrap();
        assert_eq!(key.verify(SignatureScheme::Ed25519, &[0x72], &signature), Ok(()));
        assert_eq!(key.verify(SignatureScheme::Ed25519, &[0x73], &signature), Err(BadSignature));
        assert!(!key.takes(SignatureScheme::Es256));
        assert_eq!(key.verify(SignatureScheme::Es256, &[0x72], &signature), Err(BadSignature));
    }

    #[test]
    fn rsa_keys_have_between_2048_and_8192_bits_and_an_odd_exponent() {
        let modulus = |bits: usize| {
            let mut n = vec![0xff; bits / 8];
            n[0] = 0x80;
            n
        };
        let problem =
            |bits, e: &[u8]| VerifyingKey::new(&PublicNumbers::Rsa { n: &modulus(bits), e }, None).err();
        let f4 = [1, 0, 1];
        assert_eq!(problem(2048, &f4), None);
        assert_eq!(problem(1024, &f4), Some(PublicKeyProblem::RsaTooShort { bits: 1024 }));
        assert_eq!(problem(8200, &f4), Some(PublicKeyProblem::RsaTooLong { bits: 8200 }));
        for e in [&[][..], &[0], &[1], &[2], &[1, 0, 0], &[4, 0, 0, 0, 1]] {
            assert_eq!(problem(2048, e), Some(PublicKeyProblem::RsaExponent), "{e:?}");
        }
        let mut padded = vec![0; 300];
        padded.extend(modulus(1024));
        let short = VerifyingKey::new(&PublicNumbers::Rsa { n: &padded, e: &f4 }, None).err();
        assert_eq!(short, Some(PublicKeyProblem::RsaTooShort { bits: 1024 }), "zeros are no bits");
    }

    #[test]
    fn coordinates_have_the_length_of_their_curve() {
        for (bytes, wanted) in [(31, 32), (33, 32), (0, 32)] {
            let x = vec![1; bytes];
            let found = VerifyingKey::new(&PublicNumbers::P256 { x: &x, y: &[1; 32] }, None).err();
            assert_eq!(found, Some(PublicKeyProblem::Length { bytes, wanted }));
        }
        let found = VerifyingKey::new(&PublicNumbers::P384 { x: &[1; 48], y: &[1; 32] }, None).err();
        assert_eq!(found, Some(PublicKeyProblem::Length { bytes: 32, wanted: 48 }));
    }

    #[cfg(feature = "aws-lc")]
    #[test]
    fn a_point_outside_the_curve_is_no_key() {
        let found = VerifyingKey::new(&PublicNumbers::P256 { x: &[1; 32], y: &[1; 32] }, None).err();
        assert_eq!(found, Some(PublicKeyProblem::Refused));
    }

    #[test]
    fn one_scheme_may_be_all_that_a_key_takes() {
        let mut n = vec![0xff; 256];
        n[0] = 0x80;
        let numbers = PublicNumbers::Rsa { n: &n, e: &[1, 0, 1] };
        let any = VerifyingKey::new(&numbers, None).unwrap();
        assert!(SignatureScheme::RSA.iter().all(|scheme| any.takes(*scheme)));
        let one = VerifyingKey::new(&numbers, Some(SignatureScheme::Ps256)).unwrap();
        assert!(one.takes(SignatureScheme::Ps256) && !one.takes(SignatureScheme::Rs256));
    }
}
