//! Keys of bearer tokens: who issues them, and what a route asks of them.

use control_api::defaults::token;

use super::super::Presence::{Optional, OptionalOr, Required};
use super::super::{Field, Kind, Object, durations, ints};
use super::NONE;
use super::texts::*;

pub(super) static TOKEN_PROVIDER: Object = Object {
    name: "token_provider",
    doc: "Who issues bearer tokens (JSON Web Tokens, RFC 7519), and how they are checked. Tokens come in `authorization` alone, have an `exp`, and are signed by ES256, ES384, RS256 to RS512, PS256 to PS512 or EdDSA.",
    fields: &[&[
        field!("issuer", Kind::Text(&ISSUER), Required, "The tokens' `iss`."),
        field!(
            "audiences",
            list!(&Kind::Text(&AUDIENCE), token::AUDIENCES_MAX),
            OptionalOr("tokens that name an audience are refused"),
            "A token's `aud` must hold one of them."
        ),
        field!(
            "keys",
            Kind::Text(&KEY_SET),
            Required,
            "The issuer's public keys, a JWK Set (RFC 7517). A changed file is taken in by a reload, and tokens of keys that have gone are refused from then on."
        ),
        field!("type", Kind::Text(&TOKEN_TYPE), OptionalOr("any"), "The tokens' `typ`."),
        field!(
            "clock_skew",
            durations(token::CLOCK_SKEW),
            Optional,
            "How far the issuer's clock may differ, in whole seconds."
        ),
        field!("cache_max", ints(token::CACHE), Optional, "Verified tokens that one core remembers."),
        field!(
            "forward",
            Kind::Bool,
            OptionalOr("`false`"),
            "Passes the token on to backends, which otherwise learn only `x-auth-subject`, `x-auth-issuer` and `x-auth-scope`."
        ),
    ]],
    groups: &[],
};

pub(super) static TOKEN: Object = Object {
    name: "token",
    doc: "What callers have to show. Without a valid token the answer is 401, without a scope 403.",
    fields: &[&[
        field!(
            "provider",
            Kind::Text(&NAME),
            OptionalOr("the platform's only one"),
            "One of `token_providers`."
        ),
        field!(
            "scopes",
            list!(&Kind::Text(&SCOPE), token::SCOPES_MAX),
            NONE,
            "Each must be in the token's `scope` or `scp`."
        ),
    ]],
    groups: &[],
};
