//! Bearer tokens: the platform's providers as a filter of every HTTP listener, with their key sets inline, and what routes
//! require of them.
//!
//! Services only name a provider: issuer, audiences and keys are the platform's alone.

use control_api::defaults::token::{CLOCK_SKEW, KEY_SET_BYTES_MAX, PROVIDERS_MAX};
use control_api::envoy::google::Any;
use control_api::envoy::jwt_authn::jwt_provider::JwksSourceSpecifier;
use control_api::envoy::jwt_authn::jwt_requirement::RequiresType;
use control_api::envoy::jwt_authn::per_route_config::RequirementSpecifier;
use control_api::envoy::jwt_authn::{
    JwtAuthentication, JwtCacheConfig, JwtClaimToHeader, JwtHeader, JwtProvider, JwtRequirement,
    PerRouteConfig,
};
use control_api::shard::v1::{TokenOptions, TokenProviderOptions};
use prost::{Message, Name};

use super::balance::switched;
use super::jwks;
use super::{Emitter, inline_string};
use crate::finding::Problem;
use crate::suggest::nearest;
use crate::yaml::Node;

/// The providers as listeners carry them.
#[derive(Default)]
pub(super) struct Tokens {
    /// None without providers.
    pub(super) filter: Option<Any>,
    pub(super) options: Vec<TokenProviderOptions>,
}

/// Claims that backends see, and where.
const SHOWN: [(&str, &str); 3] =
    [("x-auth-issuer", "iss"), ("x-auth-subject", "sub"), ("x-auth-scope", "scope")];

impl Emitter<'_> {
    pub(super) fn emit_token_providers(&mut self) {
        let config = self.config;
        let mut parts: Vec<JwtAuthentication> = Vec::new();
        for entry in &config.token_providers {
            let provider = self.token_provider(&entry.value);
            let requires = RequiresType::ProviderName(entry.key.clone());
            let requirement = JwtRequirement { requires_type: Some(requires) };
            parts.push(JwtAuthentication {
                providers: [(entry.key.clone(), provider)].into(),
                requirement_map: [(entry.key.clone(), requirement)].into(),
                ..Default::default()
            });
            if let Some(token_type) = entry.value.word("type") {
                let (name, token_type) = (entry.key.clone(), token_type.to_owned());
                self.tokens.options.push(TokenProviderOptions { name, token_type });
            }
            self.remember("token_provider", &entry.key, &entry.value);
        }
        if let Some(one_more) = config.token_providers.get(PROVIDERS_MAX) {
            self.error(&one_more.value, format!("more than {PROVIDERS_MAX} token providers"), "delete some");
        }
        self.tokens.filter = (!parts.is_empty()).then(|| joined(&parts));
    }

    fn token_provider(&mut self, node: &Node) -> JwtProvider {
        let key_set = node.get("keys").and_then(|file| self.key_set(file));
        if let Some(written) = node.get("clock_skew")
            && node.duration("clock_skew").is_some_and(|skew| skew.subsec_nanos() > 0)
        {
            self.error(written, "not a whole number of seconds", "write for example `60s`");
        }
        let skew = node.duration("clock_skew").unwrap_or(CLOCK_SKEW.default);
        JwtProvider {
            issuer: node.word("issuer").unwrap_or("").to_owned(),
            audiences: node.strings("audiences"),
            require_expiration: true,
            forward: node.is_on("forward"),
            // Said, because an Envoy that is not told looks into the query, too.
            from_headers: vec![JwtHeader {
                name: "authorization".to_owned(),
                value_prefix: "Bearer ".to_owned(),
            }],
            clock_skew_seconds: u32::try_from(skew.as_secs()).unwrap_or(u32::MAX),
            jwt_cache_config: node
                .int("cache_max")
                .map(|size| JwtCacheConfig { jwt_cache_size: size, ..Default::default() }),
            claim_to_headers: SHOWN
                .iter()
                .map(|(header, claim)| JwtClaimToHeader {
                    header_name: (*header).to_owned(),
                    claim_name: (*claim).to_owned(),
                    ..Default::default()
                })
                .collect(),
            jwks_source_specifier: key_set.map(|text| JwksSourceSpecifier::LocalJwks(inline_string(&text))),
            ..Default::default()
        }
    }

    fn key_set(&mut self, file: &Node) -> Option<String> {
        let contents = self.read_file(file)?;
        let checked = if contents.len() > KEY_SET_BYTES_MAX {
            Err(Problem::new("the key set is over 256 KiB", "leave only the keys that sign tokens now"))
        } else {
            jwks::check(&contents)
        };
        match checked {
            Ok(()) => String::from_utf8(contents.to_vec()).ok(),
            Err(problem) => {
                self.findings.error(file, problem);
                None
            }
        }
    }

    /// What a route says to the filter; None when neither it nor an outer level says anything.
    pub(super) fn token_requirement(&mut self, node: &Node) -> Option<PerRouteConfig> {
        let written = node.get("token")?;
        let specifier = match switched(node, "token") {
            None => {
                // Without the filter there is nothing to switch off.
                self.tokens.filter.as_ref()?;
                RequirementSpecifier::Disabled(true)
            }
            Some(token) => RequirementSpecifier::RequirementName(self.token_provider_of(written, &token)?),
        };
        Some(PerRouteConfig { requirement_specifier: Some(specifier) })
    }

    fn token_provider_of(&mut self, written: &Node, token: &Node) -> Option<String> {
        let config = self.config;
        let known = || config.token_providers.iter().map(|entry| entry.key.as_str());
        let listed = || known().collect::<Vec<_>>().join(", ");
        let Some(named) = token.get("provider") else {
            let mut all = known();
            return match (all.next(), all.next()) {
                (Some(only), None) => Some(only.to_owned()),
                (None, _) => {
                    self.error(written, "the platform has no token provider", PROVIDER_HINT);
                    None
                }
                (Some(_), Some(_)) => {
                    let fix = format!("add `provider`, one of {}", listed());
                    self.error(written, "the platform has several token providers", fix);
                    None
                }
            };
        };
        let name = named.text()?;
        if known().any(|known| known == name) {
            return Some(name.to_owned());
        }
        let fix = match (nearest(name, known()), known().next()) {
            (Some(near), _) => format!("did you mean `{near}`?"),
            (None, Some(_)) => format!("the token providers are {}", listed()),
            (None, None) => PROVIDER_HINT.to_owned(),
        };
        self.error(named, format!("unknown token provider `{name}`"), fix);
        None
    }
}

/// Scopes that a route's callers need.
pub(super) fn token_options(node: &Node) -> Option<TokenOptions> {
    let token = switched(node, "token")?;
    let scopes = token.strings("scopes");
    (!scopes.is_empty()).then_some(TokenOptions { scopes })
}

const PROVIDER_HINT: &str = "add `token_providers: { main: { issuer: …, audiences: […], keys: keys/main.jwks.json } }` to a file under platform/";

/// One message of many: encoded one behind the other they are merged (protobuf, "last one wins"), in an order that does
/// not change from load to load as that of a map does.
fn joined(parts: &[JwtAuthentication]) -> Any {
    let value = parts.iter().flat_map(Message::encode_to_vec).collect();
    Any { type_url: JwtAuthentication::type_url(), value }
}
