//! Bearer tokens (RFC 6750) that are JSON Web Tokens (RFC 7519): whether a request shows one that a provider's keys have
//! signed for this gateway, and whose it is.
//!
//! ```text
//!   authorization ─► token ─► its hash ─► seen before?  ── yes ─► its time ─► scopes ─► identity
//!                                             └─ no ─► key ─► signature ─► claims ─┘
//! ```
//! Bytes and time in, verdict out. The two halves are two calls, because the second one costs as much as a TLS
//! handshake's signature: the caller gives it a turn. Invariants: claims are read after the signature held; a token that
//! was seen before allocates nothing; what goes on to backends is fit for a header field. Called by [`crate::chain`].

mod base64url;
mod cache;
mod claims;
mod json;
mod key;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod token;

use std::fmt;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::Duration;

use http_wire::fields::{FieldError, FieldId, Fields};
use http_wire::token::is_field_value;
use tls::VerifyingKey;

pub use self::cache::{TokenCaches, TokenCounts};
use self::claims::Claims;
pub use self::key::{KEY_SET_BYTES_MAX, KEYS_MAX, KeySet, KeySetError};
pub use self::token::TOKEN_BYTES_MAX;

/// Who issues tokens and how they are checked, as the platform says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderConfig {
    pub name: String,
    /// `iss` of its tokens, compared byte by byte (RFC 7519 §4.1.1).
    pub issuer: String,
    /// Names of this gateway, of which a token's `aud` holds one; empty: tokens that name an audience are refused.
    pub audiences: Vec<String>,
    /// A JWK Set.
    pub key_set: String,
    /// How far clocks may differ.
    pub clock_skew: Duration,
    /// `typ` that tokens must have (`at+jwt`, RFC 9068 §4); None: whatever.
    pub token_type: Option<String>,
    /// Tokens that one core remembers.
    pub cache_max: NonZeroU32,
    pub credential: Credential,
}

/// Whether backends see the token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Credential {
    #[default]
    Removed,
    Forwarded,
}

/// What decides over a provider's tokens, as a hash: equal providers have verified the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProviderId([u8; 32]);

/// A provider whose keys are ready.
#[derive(Debug)]
pub struct TokenProvider {
    config: ProviderConfig,
    keys: KeySet,
    id: ProviderId,
}

/// Why a provider is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProviderError {
    /// Empty, or no value of a header field, in which it goes on.
    Issuer,
    Keys(KeySetError),
}

impl fmt::Display for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Issuer => f.write_str("the issuer is empty or holds a control character"),
            Self::Keys(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl std::error::Error for ProviderError {}

impl TokenProvider {
    /// # Errors
    /// What is wrong with the issuer or the keys.
    pub fn new(config: ProviderConfig) -> Result<Self, ProviderError> {
        if config.issuer.is_empty() || !is_field_value(config.issuer.as_bytes()) {
            return Err(ProviderError::Issuer);
        }
        let keys = KeySet::parse(config.key_set.as_bytes()).map_err(ProviderError::Keys)?;
        // The printed form quotes its texts, so that no two configs run together.
        let id = ProviderId(tls::sha256(format!("{config:?}").as_bytes()));
        Ok(Self { config, keys, id })
    }

    pub fn config(&self) -> &ProviderConfig {
        &self.config
    }

    pub fn id(&self) -> ProviderId {
        self.id
    }

    /// Checks a token from its bytes alone (RFC 7515 §5.2, RFC 7519 §7.2, RFC 8725 §3). `now` is since 1970.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn verify(&self, token: &[u8], now: Duration) -> Result<Identity, TokenFault> {
        self.verify_counting(token, now, &mut 0)
    }

    fn verify_counting(
        &self,
        token: &[u8],
        now: Duration,
        signatures: &mut u64,
    ) -> Result<Identity, TokenFault> {
        let parts = token::parse(token)?;
        let scheme = parts.header.scheme.ok_or(TokenFault::KeyUnknown)?;
        let mut candidates = self.keys.candidates(parts.header.key_id.as_deref(), scheme).peekable();
        if candidates.peek().is_none() {
            return Err(TokenFault::KeyUnknown);
        }
        let mut is_signed_by = |key: &VerifyingKey| {
            *signatures += 1;
            key.verify(scheme, parts.signed, &parts.signature).is_ok()
        };
        if !candidates.any(&mut is_signed_by) {
            return Err(TokenFault::SignatureBad);
        }
        if self.config.token_type.as_deref().is_some_and(|wanted| !parts.header.is_of_type(wanted)) {
            return Err(TokenFault::Malformed);
        }
        let claims = Claims::read(&parts.payload)?;
        if claims.issuer.as_deref() != Some(self.config.issuer.as_str()) {
            return Err(TokenFault::IssuerWrong);
        }
        // RFC 7519 §4.1.3: who is not among those named must refuse it; RFC 8725 §3.9.
        let is_for_us = match &claims.audiences {
            Some(named) => named.iter().any(|name| self.config.audiences.contains(name)),
            None => self.config.audiences.is_empty(),
        };
        if !is_for_us {
            return Err(TokenFault::AudienceWrong);
        }
        let identity = Identity {
            subject: claims.subject.into(),
            scopes: claims.scopes.into(),
            expires: claims.expires,
            not_before: claims.not_before,
        };
        self.check_time(&identity, now)?;
        Ok(identity)
    }

    /// RFC 7519 §4.1.4, §4.1.5.
    fn check_time(&self, identity: &Identity, now: Duration) -> Result<(), TokenFault> {
        let skew = self.config.clock_skew;
        if now >= identity.expires.saturating_add(skew) {
            return Err(TokenFault::Expired);
        }
        if now.saturating_add(skew) < identity.not_before {
            return Err(TokenFault::NotYetValid);
        }
        Ok(())
    }
}

/// Whose a token is, and what it is good for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Empty: the token names nobody.
    subject: Box<str>,
    /// Separated by single blanks.
    scopes: Box<str>,
    expires: Duration,
    not_before: Duration,
}

impl Identity {
    pub fn subject(&self) -> &str {
        &self.subject
    }

    pub fn scopes(&self) -> &str {
        &self.scopes
    }

    fn has_scope(&self, wanted: &str) -> bool {
        self.scopes.split(' ').any(|scope| scope == wanted)
    }

    /// Writes what backends learn, `x-auth-*`; client-sent ones are gone already. The token itself stays where the
    /// provider says so.
    ///
    /// # Errors
    /// `FieldError` when the block is full.
    pub fn write(&self, provider: &TokenProvider, fields: &mut Fields) -> Result<(), FieldError> {
        if provider.config.credential == Credential::Removed {
            fields.remove(FieldId::Authorization);
        }
        fields.push_name(b"x-auth-issuer", provider.config.issuer.as_bytes())?;
        for (name, value) in [(&b"x-auth-subject"[..], &self.subject), (b"x-auth-scope", &self.scopes)] {
            if !value.is_empty() {
                fields.push_name(name, value.as_bytes())?;
            }
        }
        Ok(())
    }
}

/// Why a request's token is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenFault {
    /// No bearer token was sent.
    Missing,
    Malformed,
    KeyUnknown,
    SignatureBad,
    Expired,
    NotYetValid,
    IssuerWrong,
    AudienceWrong,
    ScopeMissing,
}

impl TokenFault {
    /// RFC 6750 §3.1. A token for somebody else is an invalid one (RFC 9068 §4), one for too little a valid one.
    pub const fn status(self) -> u16 {
        match self {
            Self::ScopeMissing => 403,
            _ => 401,
        }
    }

    /// What the client is told, without a quote or backslash.
    const fn description(self) -> &'static str {
        match self {
            Self::Missing => "no bearer token",
            Self::Malformed => "the token is malformed",
            Self::KeyUnknown => "the token's key is unknown",
            Self::SignatureBad => "the token's signature is wrong",
            Self::Expired => "the token has expired",
            Self::NotYetValid => "the token is not valid yet",
            Self::IssuerWrong => "the token is another issuer's",
            Self::AudienceWrong => "the token is for another audience",
            Self::ScopeMissing => "the token has not every scope that this needs",
        }
    }
}

/// What a route asks of the tokens of a provider.
#[derive(Clone, Copy, Debug)]
pub struct TokenPolicy<'a> {
    pub provider: &'a TokenProvider,
    /// Each of them must be the token's.
    pub scopes: &'a [String],
}

/// The hash of a token that was not seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unseen(cache::Digest);

/// What is known of a request's token without looking at its signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Verified(Rc<Identity>),
    /// Ask [`TokenPolicy::verify`].
    Unseen(Unseen),
}

impl TokenPolicy<'_> {
    /// Finds the request's token among those that were seen before.
    pub(crate) fn look_up(
        &self,
        fields: &Fields,
        now: Duration,
        caches: &mut TokenCaches,
    ) -> Result<Known, TokenFault> {
        let digest = tls::sha256(bearer(fields)?);
        match caches.find(&self.provider.id, &digest) {
            Some(identity) => {
                self.provider.check_time(&identity, now)?;
                self.check_scopes(&identity)?;
                Ok(Known::Verified(identity))
            }
            None => Ok(Known::Unseen(Unseen(digest))),
        }
    }

    /// Verifies the token of a request of which `look_up` said that it was not seen before.
    pub(crate) fn verify(
        &self,
        fields: &Fields,
        Unseen(digest): Unseen,
        now: Duration,
        caches: &mut TokenCaches,
    ) -> Result<Rc<Identity>, TokenFault> {
        caches.counts.verified += 1;
        let verified = self.provider.verify_counting(bearer(fields)?, now, &mut caches.counts.signatures);
        let identity = Rc::new(verified?);
        caches.insert(&self.provider.id, digest, &identity);
        self.check_scopes(&identity)?;
        Ok(identity)
    }

    fn check_scopes(&self, identity: &Identity) -> Result<(), TokenFault> {
        match self.scopes.iter().all(|wanted| identity.has_scope(wanted)) {
            true => Ok(()),
            false => Err(TokenFault::ScopeMissing),
        }
    }

    /// `www-authenticate` of a refusal (RFC 6750 §3): what this is about, and what was wrong with a token that was sent.
    pub(crate) fn push_challenge(&self, fault: TokenFault, fields: &mut Fields) -> Result<(), FieldError> {
        // Names in resources are free text; a quoted string takes all but these (RFC 9110 §5.6.4).
        let realm: String = self
            .provider
            .config
            .name
            .chars()
            .filter(|c| !c.is_control() && !matches!(c, '"' | '\\'))
            .collect();
        let mut challenge = format!("Bearer realm=\"{realm}\"");
        let error = match fault {
            TokenFault::Missing => None,
            TokenFault::ScopeMissing => Some("insufficient_scope"),
            _ => Some("invalid_token"),
        };
        if let Some(error) = error {
            let description = fault.description();
            challenge.push_str(&format!(", error=\"{error}\", error_description=\"{description}\""));
        }
        if fault == TokenFault::ScopeMissing {
            challenge.push_str(&format!(", scope=\"{}\"", self.scopes.join(" ")));
        }
        fields.push_name(b"www-authenticate", challenge.as_bytes())
    }
}

/// The token of a request, from `authorization` alone (RFC 6750 §2.1): in a query it would be in every log (§5.3).
///
/// # Errors
/// `Missing` without the field and with another scheme, `Malformed` with two, because readers differ in which one counts.
fn bearer(fields: &Fields) -> Result<&[u8], TokenFault> {
    let mut lines = fields.all(FieldId::Authorization);
    let line = lines.next().ok_or(TokenFault::Missing)?;
    if lines.next().is_some() {
        return Err(TokenFault::Malformed);
    }
    // RFC 9110 §11.1: the scheme's case does not count; §11.4: blanks, then the token.
    const SCHEME: &[u8] = b"bearer";
    let (scheme, rest) = line.split_at_checked(SCHEME.len()).ok_or(TokenFault::Missing)?;
    if !scheme.eq_ignore_ascii_case(SCHEME) || rest.first().is_some_and(|byte| *byte != b' ') {
        return Err(TokenFault::Missing);
    }
    let blanks = rest.iter().take_while(|byte| **byte == b' ').count();
    match rest.get(blanks..) {
        Some(token) if (1..=TOKEN_BYTES_MAX).contains(&token.len()) => Ok(token),
        _ => Err(TokenFault::Malformed),
    }
}
