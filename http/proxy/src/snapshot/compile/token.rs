//! Bearer tokens: `JwtAuthentication` of a listener to providers with keys, and what routes require of them.
//!
//! The subset is what this gateway does without exception: tokens from `authorization` alone, signatures by keys that are
//! here, an end of validity. A message that asks for less, or for more, is refused by the field.

use std::num::NonZeroU32;
use std::time::Duration;

use control_api::defaults::token as limits;
use control_api::envoy::core::DataSource;
use control_api::envoy::jwt_authn::jwt_provider::JwksSourceSpecifier;
use control_api::envoy::jwt_authn::jwt_requirement::RequiresType;
use control_api::envoy::jwt_authn::per_route_config::RequirementSpecifier;
use control_api::envoy::jwt_authn::{
    JwtAuthentication, JwtCacheConfig, JwtClaimToHeader, JwtHeader, JwtProvider, JwtRequirement,
    PerRouteConfig,
};
use control_api::shard::v1::{TokenOptions, TokenProviderOptions};
use http_gateway::jwt::{Credential, ProviderConfig, ProviderError, TokenProvider};
use rustc_hash::FxHashMap;

use super::fault::{Checked, Fault, Within, nothing_else};
use super::{shard_field, value};
use crate::snapshot::model::TokenRule;

/// The providers of a listener, and by which names routes require a token of one.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    pub(super) providers: Vec<TokenProvider>,
    requirements: Requirements,
}

/// Index of the provider by the name of the requirement.
pub(super) type Requirements = FxHashMap<String, usize>;

impl Tokens {
    /// Both parts, for the listener and for its routes.
    pub(super) fn into_parts(self) -> (Vec<TokenProvider>, Requirements) {
        (self.providers, self.requirements)
    }
}

/// Reads the filter's config.
pub(super) fn tokens(mut filter: JwtAuthentication, options: &[TokenProviderOptions]) -> Checked<Tokens> {
    let mut messages: Vec<(String, JwtProvider)> =
        std::mem::take(&mut filter.providers).into_iter().collect();
    let mut requirements: Vec<(String, JwtRequirement)> =
        std::mem::take(&mut filter.requirement_map).into_iter().collect();
    nothing_else(&filter)?;
    // Maps have no order; equal messages make equal snapshots.
    messages.sort_by(|(a, _), (b, _)| a.cmp(b));
    requirements.sort_by(|(a, _), (b, _)| a.cmp(b));
    if messages.is_empty() {
        return Err(Fault::missing("providers"));
    }
    if messages.len() > limits::PROVIDERS_MAX {
        return Err(Fault::new("providers", format!("has more than {} entries", limits::PROVIDERS_MAX)));
    }
    if let Some(at) = options.iter().position(|option| messages.iter().all(|(name, _)| *name != option.name))
    {
        let fault = Fault::new("name", "names no provider of the listener");
        return shard_field(Err(fault).within_item("token_providers", at));
    }
    let mut tokens = Tokens::default();
    for (name, message) in messages {
        let built = value::name("", &name).and_then(|()| provider(&name, message, options));
        tokens.providers.push(built.within_key("providers", &name)?);
    }
    for (name, requirement) in requirements {
        let at = required(requirement, &tokens.providers).within_key("requirement_map", &name)?;
        tokens.requirements.insert(name, at);
    }
    Ok(tokens)
}

fn provider(
    name: &str,
    mut message: JwtProvider,
    options: &[TokenProviderOptions],
) -> Checked<TokenProvider> {
    let issuer = std::mem::take(&mut message.issuer);
    bounded_text("issuer", &issuer, limits::ISSUER_BYTES_MAX)?;
    let audiences = std::mem::take(&mut message.audiences);
    if audiences.len() > limits::AUDIENCES_MAX {
        return Err(Fault::new("audiences", format!("has more than {} entries", limits::AUDIENCES_MAX)));
    }
    for (at, audience) in audiences.iter().enumerate() {
        bounded_text("", audience, limits::AUDIENCE_BYTES_MAX).within_item("audiences", at)?;
    }
    if !std::mem::take(&mut message.require_expiration) {
        return Err(Fault::new(
            "require_expiration",
            "must be true: a token that never ends is always refused",
        ));
    }
    from_authorization(std::mem::take(&mut message.from_headers))?;
    shown_claims(std::mem::take(&mut message.claim_to_headers))?;
    let key_set = match message.jwks_source_specifier.take() {
        Some(JwksSourceSpecifier::LocalJwks(source)) => key_set(source)?,
        Some(JwksSourceSpecifier::RemoteJwks(_)) => {
            return Err(Fault::new(
                "remote_jwks",
                "is not supported: keys come with the config, as local_jwks",
            ));
        }
        None => return Err(Fault::missing("local_jwks")),
    };
    // 0 is Envoy's "unset", and its default.
    let skew_s = u64::from(std::mem::take(&mut message.clock_skew_seconds));
    let clock_skew = (skew_s > 0).then(|| Duration::from_secs(skew_s));
    let config = ProviderConfig {
        name: name.to_owned(),
        issuer,
        audiences,
        key_set,
        clock_skew: value::bounded("clock_skew_seconds", clock_skew, &limits::CLOCK_SKEW)?,
        token_type: options
            .iter()
            .find(|option| option.name == name && !option.token_type.is_empty())
            .map(|option| option.token_type.clone()),
        cache_max: cache_max(message.jwt_cache_config.take())?,
        credential: match std::mem::take(&mut message.forward) {
            true => Credential::Forwarded,
            false => Credential::Removed,
        },
    };
    nothing_else(&message)?;
    TokenProvider::new(config).map_err(|error| match error {
        ProviderError::Issuer => Fault::new("issuer", "must be set and hold no control character"),
        ProviderError::Keys(error) => Fault::new("local_jwks", format!("is refused: {error}")),
    })
}

fn bounded_text(field: &str, text: &str, bytes_max: usize) -> Checked<()> {
    if text.is_empty() || text.len() > bytes_max || text.chars().any(char::is_control) {
        return Err(Fault::new(field, format!("must have 1 to {bytes_max} bytes and no control character")));
    }
    Ok(())
}

/// Unset, or the one place that tokens are taken from, as Envoy is told not to look into the query.
fn from_authorization(headers: Vec<JwtHeader>) -> Checked<()> {
    for (at, mut header) in headers.into_iter().enumerate() {
        let is_the_one = header.name.eq_ignore_ascii_case("authorization")
            && matches!(header.value_prefix.as_str(), "Bearer " | "Bearer");
        if at > 0 || !is_the_one {
            let fault: Checked<()> =
                Err(Fault::new("", "is not supported: tokens come in \"authorization\" behind \"Bearer \""));
            return fault.within_item("from_headers", at);
        }
        (header.name, header.value_prefix) = (String::new(), String::new());
        nothing_else(&header).within_item("from_headers", at)?;
    }
    Ok(())
}

/// Fields of which each always goes to backends, so that an Envoy can be told the same.
fn shown_claims(claims: Vec<JwtClaimToHeader>) -> Checked<()> {
    const SHOWN: [(&str, &str); 3] =
        [("x-auth-issuer", "iss"), ("x-auth-subject", "sub"), ("x-auth-scope", "scope")];
    for (at, mut claim) in claims.into_iter().enumerate() {
        let (header, name) = (std::mem::take(&mut claim.header_name), std::mem::take(&mut claim.claim_name));
        nothing_else(&claim).within_item("claim_to_headers", at)?;
        if !SHOWN.contains(&(header.as_str(), name.as_str())) {
            let message =
                "is not supported: iss, sub and scope go to x-auth-issuer, x-auth-subject and x-auth-scope";
            let fault: Checked<()> = Err(Fault::new("", message));
            return fault.within_item("claim_to_headers", at);
        }
    }
    Ok(())
}

fn key_set(source: DataSource) -> Checked<String> {
    let bytes = value::inline("local_jwks", Some(source), limits::KEY_SET_BYTES_MAX)?;
    String::from_utf8(bytes)
        .map_err(|error| Fault::new("local_jwks", format!("is no UTF-8 text ({})", error.utf8_error())))
}

fn cache_max(config: Option<JwtCacheConfig>) -> Checked<NonZeroU32> {
    let field = "jwt_cache_config.jwt_cache_size";
    let mut config = config.unwrap_or_default();
    let size = std::mem::take(&mut config.jwt_cache_size);
    nothing_else(&config).within("jwt_cache_config")?;
    // 0 is Envoy's "unset", too.
    let size = value::bounded(field, (size > 0).then_some(size), &limits::CACHE)?;
    NonZeroU32::new(size).ok_or_else(|| Fault::missing(field))
}

/// The provider of which a requirement asks a token, and nothing else.
fn required(requirement: JwtRequirement, providers: &[TokenProvider]) -> Checked<usize> {
    match requirement.requires_type {
        Some(RequiresType::ProviderName(name)) => {
            let at = providers.iter().position(|provider| provider.config().name == name);
            at.ok_or_else(|| Fault::new("provider_name", format!("names the unknown provider {name:?}")))
        }
        Some(_) => Err(Fault::new("", "is not supported: only provider_name is")),
        None => Err(Fault::missing("provider_name")),
    }
}

/// What a level says about tokens.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenLevel {
    requirement: Requirement,
    scopes: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Requirement {
    #[default]
    Unsaid,
    Off,
    Named(String),
}

impl TokenLevel {
    pub(super) fn set_requirement(&mut self, config: PerRouteConfig) -> Checked<()> {
        self.requirement = match config.requirement_specifier {
            Some(RequirementSpecifier::Disabled(true)) => Requirement::Off,
            Some(RequirementSpecifier::RequirementName(name)) => Requirement::Named(name),
            Some(RequirementSpecifier::Disabled(false)) => {
                return Err(Fault::new("disabled", "must be true where it is set"));
            }
            None => return Err(Fault::missing("requirement_name")),
        };
        Ok(())
    }

    pub(super) fn set_scopes(&mut self, options: TokenOptions) -> Checked<()> {
        if options.scopes.len() > limits::SCOPES_MAX {
            return Err(Fault::new("scopes", format!("has more than {} entries", limits::SCOPES_MAX)));
        }
        for (at, scope) in options.scopes.iter().enumerate() {
            // RFC 6749 §3.3: a scope is never two, nor does it end the challenge that names it.
            let is_token = scope.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\'));
            if scope.is_empty() || scope.len() > limits::SCOPE_BYTES_MAX || !is_token {
                let message = format!(
                    "must have 1 to {} printable characters, no blank, `\"` or `\\`",
                    limits::SCOPE_BYTES_MAX
                );
                let fault: Checked<()> = Err(Fault::new("", message));
                return fault.within_item("scopes", at);
            }
        }
        self.scopes = options.scopes;
        Ok(())
    }

    /// What holds for a route. Without `requirements` nobody knows its listener yet, and any name may be right.
    pub(super) fn rule(&self, requirements: Option<&Requirements>) -> Checked<Option<TokenRule>> {
        match (&self.requirement, requirements) {
            (Requirement::Off, _) => Ok(None),
            (Requirement::Unsaid, _) if self.scopes.is_empty() => Ok(None),
            // Else a route would be open that somebody took for guarded.
            (Requirement::Unsaid, _) => Err(Fault::new(
                "typed_per_filter_config[\"shard.v1\"].token.scopes",
                "needs a requirement_name of envoy.filters.http.jwt_authn",
            )),
            (Requirement::Named(_), None) => Ok(None),
            (Requirement::Named(name), Some(requirements)) => match requirements.get(name) {
                Some(at) => Ok(Some(TokenRule { provider: *at, scopes: self.scopes.clone() })),
                None => Err(Fault::new(
                    "typed_per_filter_config[\"envoy.filters.http.jwt_authn\"].requirement_name",
                    format!("names {name:?}, which no listener filter of these routes has"),
                )),
            },
        }
    }
}
