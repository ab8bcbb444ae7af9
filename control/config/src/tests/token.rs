//! Bearer tokens: the filter and the requirements that they become, and what an author is told.

use std::collections::BTreeMap;

use control_api::envoy::core::data_source::Specifier;
use control_api::envoy::hcm::{HttpConnectionManager, http_filter};
use control_api::envoy::jwt_authn::jwt_provider::JwksSourceSpecifier;
use control_api::envoy::jwt_authn::per_route_config::RequirementSpecifier;
use control_api::envoy::jwt_authn::{JwtAuthentication, PerRouteConfig};
use control_api::envoy::listener::filter;
use control_api::envoy::names;
use control_api::from_any;
use control_api::shard::v1::{KEY, ListenerOptions, RouteOptions};

use super::{Set, errors_of, loaded, with};
use crate::Loaded;

const KEY_SET: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","kid":"a","x":"AAAA","y":"AAAA"}]}"#;

const MAIN: &str = "token_providers:\n  main: { issuer: \"https://issuer.example\", audiences: [orders], keys: keys/main.jwks.json }\n";

fn with_tokens(platform: &str, service: &str) -> Set {
    let shop = format!("hosts: [shop.example]\nendpoints: [\"127.0.0.1:9000\"]\n{service}");
    with(&[
        ("platform/tokens.yaml", platform),
        ("services/shop/service.yaml", &shop),
        ("keys/main.jwks.json", KEY_SET),
        ("keys/private.jwks.json", &KEY_SET.replace("\"x\"", "\"d\":\"AAAA\",\"x\"")),
        ("keys/broken.jwks.json", "{"),
    ])
}

fn filter_of(loaded: &Loaded) -> Option<JwtAuthentication> {
    let filters = &loaded.resources.listeners[0].filter_chains[0].filters;
    let Some(filter::ConfigType::TypedConfig(any)) = &filters[0].config_type else { panic!("a manager") };
    let manager: HttpConnectionManager = from_any(any).expect("of this type");
    let names: Vec<&str> = manager.http_filters.iter().map(|filter| filter.name.as_str()).collect();
    let Some(at) = names.iter().position(|name| *name == names::JWT_AUTHN) else {
        assert_eq!(names, [names::CORS, names::ROUTER]);
        return None;
    };
    assert_eq!(names, [names::CORS, names::JWT_AUTHN, names::ROUTER], "a preflight is answered before");
    let Some(http_filter::ConfigType::TypedConfig(any)) = &manager.http_filters[at].config_type else {
        panic!("a config")
    };
    Some(from_any(any).expect("of this type"))
}

/// By route: what it requires, and which scopes.
fn requirements(loaded: &Loaded) -> BTreeMap<String, (Option<RequirementSpecifier>, Vec<String>)> {
    let routes = loaded.resources.routes.iter().flat_map(|r| &r.virtual_hosts).flat_map(|host| &host.routes);
    let read = routes.map(|route| {
        let config = route.typed_per_filter_config.get(names::JWT_AUTHN);
        let config = config.map(|any| from_any::<PerRouteConfig>(any).expect("of this type"));
        let options = route.typed_per_filter_config.get(KEY);
        let options = options.map(|any| from_any::<RouteOptions>(any).expect("of this type"));
        let scopes = options.and_then(|options| options.token).map(|token| token.scopes);
        (route.name.clone(), (config.and_then(|c| c.requirement_specifier), scopes.unwrap_or_default()))
    });
    read.collect()
}

#[test]
fn a_provider_becomes_a_filter_of_every_http_listener() {
    let platform = "token_providers:\n  main: { issuer: i, audiences: [a, b], keys: keys/main.jwks.json, clock_skew: 5s, \
                    cache_max: 7, forward: true, type: at+jwt }\n  other: { issuer: j, keys: ./keys/main.jwks.json }\n";
    let loaded = loaded(with_tokens(platform, ""));
    let filter = filter_of(&loaded).expect("a filter");
    let main = &filter.providers["main"];
    assert_eq!(
        (main.issuer.as_str(), main.audiences.as_slice()),
        ("i", &["a".to_owned(), "b".to_owned()][..])
    );
    assert_eq!((main.clock_skew_seconds, main.forward, main.require_expiration), (5, true, true));
    assert_eq!(main.jwt_cache_config.map(|cache| cache.jwt_cache_size), Some(7));
    assert_eq!((main.from_headers.len(), main.from_params.len()), (1, 0));
    let Some(JwksSourceSpecifier::LocalJwks(source)) = &main.jwks_source_specifier else {
        panic!("a key set")
    };
    assert_eq!(source.specifier, Some(Specifier::InlineString(KEY_SET.to_owned())));
    assert_eq!(filter.providers["other"].clock_skew_seconds, 60, "Envoy's own default, said");
    assert_eq!(filter.requirement_map.len(), 2);
    let metadata = loaded.resources.listeners[0].metadata.as_ref().expect("options");
    let options: ListenerOptions = from_any(&metadata.typed_filter_metadata[KEY]).expect("of this type");
    let types: Vec<_> =
        options.token_providers.iter().map(|p| (p.name.as_str(), p.token_type.as_str())).collect();
    assert_eq!(types, [("main", "at+jwt")]);
    assert!(loaded.sources.contains_key("token_provider:main"));
    assert_eq!(filter_of(&self::loaded(with(&[]))), None, "without providers nothing is there");
}

#[test]
fn equal_configs_make_equal_resources() {
    let platform: String = (0..9)
        .map(|n| format!("  p{n}: {{ issuer: i, keys: keys/main.jwks.json }}\n"))
        .fold("token_providers:\n".to_owned(), |all, line| all + &line);
    let bytes = || loaded(with_tokens(&platform, "")).resources.listeners[0].filter_chains.clone();
    let first = bytes();
    (0..5).for_each(|_| assert_eq!(bytes(), first));
}

#[test]
fn routes_inherit_and_lift_what_the_service_asks() {
    let service = "token: { provider: main, scopes: [orders.read] }\nroutes:\n  - match: { path: /a }\n    name: a\n  \
                   - match: { path: /b }\n    name: b\n    token: { scopes: [orders.write] }\n  \
                   - match: { path: /c }\n    name: c\n    token: false\n  - match: { path: /d }\n    name: d\n    token: true\n";
    let found = requirements(&loaded(with_tokens(MAIN, service)));
    let main = || Some(RequirementSpecifier::RequirementName("main".to_owned()));
    let scopes = |list: &[&str]| list.iter().map(|scope| (*scope).to_owned()).collect::<Vec<_>>();
    assert_eq!(found["shop/a"], (main(), scopes(&["orders.read"])));
    assert_eq!(found["shop/b"], (main(), scopes(&["orders.write"])));
    assert_eq!(found["shop/c"], (Some(RequirementSpecifier::Disabled(true)), scopes(&[])));
    assert_eq!(found["shop/d"], (main(), scopes(&[])));
    let defaults = format!("{MAIN}defaults: {{ route: {{ token: true }} }}\n");
    assert_eq!(requirements(&loaded(with_tokens(&defaults, "")))["shop/default"], (main(), scopes(&[])));
    let silent = requirements(&loaded(with_tokens("hosts: { shop.example: [shop] }\n", "token: false\n")));
    assert_eq!(silent["shop/default"], (None, scopes(&[])), "nothing to lift without providers");
}

/// Loads it and looks for an error that begins with its place, says what is wrong and which way is out.
#[track_caller]
fn told(platform: &str, service: &str, place: &str, message: &str, fix: &str) {
    let errors = errors_of(with_tokens(platform, &format!("{service}\n")));
    let is_told = |error: &crate::ConfigError| {
        let text = error.to_string();
        text.starts_with(place) && error.message.contains(message) && error.fix.contains(fix)
    };
    assert!(errors.iter().any(is_told), "{message}: {errors:?}");
}

#[test]
fn mistakes_of_a_provider_are_told_with_the_way_out() {
    let provider = |keys: &str| format!("token_providers:\n  main: {{ issuer: i, {keys} }}\n");
    for (platform, message, fix) in [
        (provider("audiences: [a]"), "the key `keys` is missing", "add `keys`"),
        (provider("keys: keys/none"), "keys/none cannot be read", "create it"),
        (provider("keys: ../x"), "not a path inside", "without `..`"),
        (provider("keys: keys/broken.jwks.json"), "the key set is no JSON", "JWK Set"),
        (provider("keys: keys/private.jwks.json"), "a secret has been put into", "replace the key"),
        (provider("keys: keys/main.jwks.json, clock_skew: 1500ms"), "whole number of seconds", "60s"),
        (provider("keys: keys/main.jwks.json, clock_skew: 0s"), "below the least", "1s"),
        (provider("keys: keys/main.jwks.json, cache_max: 0"), "below the least", "1 to"),
        (provider("keys: keys/main.jwks.json, exp: false"), "unknown key", ""),
        (provider("keys: keys/main.jwks.json, audiences: [\"\"]"), "not a text of a token", "as it stands"),
    ] {
        told(&platform, "", "platform/tokens.yaml:2", message, fix);
    }
}

#[test]
fn mistakes_of_a_service_are_told_with_the_way_out() {
    let two = format!("{MAIN}  other: {{ issuer: j, keys: keys/main.jwks.json }}\n");
    for (platform, service, message, fix) in [
        (MAIN.into(), "token: { provider: mian }", "unknown token provider `mian`", "did you mean `main`?"),
        (MAIN.into(), "token: { scopes: [\"a b\"] }", "not a scope", "without blanks"),
        (MAIN.into(), "token: yes", "expected", "`true` or `false`"),
        (two, "token: true", "several token providers", "one of main, other"),
        ("hosts: { shop.example: [shop] }\n".into(), "token: true", "has no token provider", "platform/"),
        (
            "hosts: { shop.example: [shop] }\n".into(),
            "token: { provider: x }",
            "unknown token provider",
            "platform/",
        ),
        // What is the platform's a service cannot say.
        (MAIN.into(), MAIN, "unknown key", ""),
        (MAIN.into(), "token: { issuer: j }", "unknown key", ""),
    ] {
        told(&platform, service, "services/shop/service.yaml:3", message, fix);
    }
}
