//! Bearer tokens: providers and requirements reach the snapshot, and what shard does not do is refused by name.

use std::time::Duration;

use control_api::envoy::hcm::{HttpFilter, http_filter};
use control_api::envoy::jwt_authn::jwt_provider::JwksSourceSpecifier;
use control_api::envoy::jwt_authn::jwt_requirement::RequiresType;
use control_api::envoy::jwt_authn::per_route_config::RequirementSpecifier;
use control_api::envoy::jwt_authn::{
    JwtAuthentication, JwtCacheConfig, JwtClaimToHeader, JwtHeader, JwtProvider, JwtRequirement,
    PerRouteConfig, RemoteJwks, RequirementRule,
};
use control_api::envoy::names;
use control_api::envoy::route::RouteConfiguration;
use control_api::shard::v1;
use control_api::{Resources, to_any};
use http_gateway::jwt::Credential;

use super::{
    compiled, edit_manager, edit_options, edit_route, edit_routes, inline, listener, manager, refusal, small,
};
use super::{route, virtual_host};
use crate::snapshot::Snapshot;

/// The key of RFC 7515 §A.3.
const KEY_SET: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","kid":"a","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;

fn provider() -> JwtProvider {
    JwtProvider {
        issuer: "https://issuer.example".to_owned(),
        audiences: vec!["orders".to_owned()],
        require_expiration: true,
        jwks_source_specifier: inline(KEY_SET).map(JwksSourceSpecifier::LocalJwks),
        ..Default::default()
    }
}

fn requirement(kind: RequiresType) -> JwtRequirement {
    JwtRequirement { requires_type: Some(kind) }
}

fn authentication() -> JwtAuthentication {
    let main = requirement(RequiresType::ProviderName("main".to_owned()));
    JwtAuthentication {
        providers: [("main".to_owned(), provider())].into(),
        requirement_map: [("staff".to_owned(), main)].into(),
        ..Default::default()
    }
}

fn filter(name: &str, config: control_api::envoy::google::Any) -> HttpFilter {
    HttpFilter {
        name: name.to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(config)),
        ..Default::default()
    }
}

/// The small set with the filter, and its route under the requirement `staff`.
fn with(edit: impl FnOnce(&mut JwtAuthentication)) -> Resources {
    let mut authentication = authentication();
    edit(&mut authentication);
    let mut resources = small();
    edit_manager(&mut resources.listeners[0], |manager| {
        manager.http_filters.insert(0, filter(names::JWT_AUTHN, to_any(&authentication)));
    });
    require(&mut resources, RequirementSpecifier::RequirementName("staff".to_owned()));
    resources
}

fn require(resources: &mut Resources, specifier: RequirementSpecifier) {
    let config = PerRouteConfig { requirement_specifier: Some(specifier) };
    edit_route(resources, |route| {
        route.typed_per_filter_config.insert(names::JWT_AUTHN.to_owned(), to_any(&config));
    });
}

fn with_provider(edit: impl FnOnce(&mut JwtProvider)) -> Resources {
    with(|authentication| edit(authentication.providers.get_mut("main").expect("there")))
}

fn with_scopes(resources: &mut Resources, scopes: &[&str]) {
    let scopes = scopes.iter().map(|scope| (*scope).to_owned()).collect();
    let options = v1::RouteOptions { token: Some(v1::TokenOptions { scopes }), ..Default::default() };
    edit_route(resources, |route| {
        route.typed_per_filter_config.insert(v1::KEY.to_owned(), to_any(&options));
    });
}

/// Scopes of the policy of the one route; None without a policy.
fn policy(snapshot: &Snapshot) -> Option<(String, Vec<String>)> {
    let listener = &snapshot.listeners[0];
    let route = listener.routes.routes().next().expect("one");
    let policy = listener.http.token_policy(route)?;
    Some((policy.provider.config().name.clone(), policy.scopes.to_vec()))
}

#[test]
fn unset_is_the_documented_default() {
    let snapshot = compiled(&with(|_| {}));
    let config = snapshot.listeners[0].http.token_providers[0].config();
    assert_eq!((config.clock_skew, config.cache_max.get()), (Duration::from_secs(60), 10_000));
    assert_eq!((config.credential, &config.token_type), (Credential::Removed, &None));
    assert_eq!(policy(&snapshot), Some(("main".to_owned(), vec![])));
    let plain = compiled(&small());
    assert!(plain.listeners[0].http.token_providers.is_empty() && policy(&plain).is_none());
}

#[test]
fn every_field_reaches_the_snapshot() {
    let mut resources = with_provider(|provider| {
        provider.forward = true;
        provider.clock_skew_seconds = 5;
        provider.jwt_cache_config = Some(JwtCacheConfig { jwt_cache_size: 7, ..Default::default() });
        provider.from_headers =
            vec![JwtHeader { name: "Authorization".into(), value_prefix: "Bearer ".into() }];
        provider.claim_to_headers = vec![JwtClaimToHeader {
            header_name: "x-auth-subject".into(),
            claim_name: "sub".into(),
            ..Default::default()
        }];
    });
    edit_options(&mut resources.listeners[0], |options| {
        let (name, token_type) = ("main".to_owned(), "at+jwt".to_owned());
        options.token_providers = vec![v1::TokenProviderOptions { name, token_type }];
    });
    with_scopes(&mut resources, &["a", "b"]);
    let snapshot = compiled(&resources);
    let config = snapshot.listeners[0].http.token_providers[0].config();
    assert_eq!((config.issuer.as_str(), config.audiences.len()), ("https://issuer.example", 1));
    assert_eq!((config.clock_skew, config.cache_max.get()), (Duration::from_secs(5), 7));
    assert_eq!((config.credential, config.token_type.as_deref()), (Credential::Forwarded, Some("at+jwt")));
    assert_eq!(policy(&snapshot), Some(("main".to_owned(), vec!["a".to_owned(), "b".to_owned()])));
}

#[test]
fn the_most_specific_level_decides() {
    let mut resources = with(|_| {});
    require(&mut resources, RequirementSpecifier::Disabled(true));
    with_scopes(&mut resources, &["a"]);
    assert_eq!(policy(&compiled(&resources)), None, "lifted, scopes and all");
    let mut resources = with(|_| {});
    let config = PerRouteConfig {
        requirement_specifier: Some(RequirementSpecifier::RequirementName("staff".to_owned())),
    };
    edit_routes(&mut resources, |routes| {
        routes.virtual_hosts[0].routes[0].typed_per_filter_config.clear();
        routes.typed_per_filter_config.insert(names::JWT_AUTHN.to_owned(), to_any(&config));
    });
    with_scopes(&mut resources, &["a"]);
    assert_eq!(policy(&compiled(&resources)), Some(("main".to_owned(), vec!["a".to_owned()])));
}

#[test]
fn the_filter_stands_between_cors_and_router() {
    let order = |filters: &[&str]| {
        let mut resources = small();
        edit_manager(&mut resources.listeners[0], |manager| {
            let router = manager.http_filters.pop().expect("a router");
            for name in filters {
                let config = match *name {
                    names::JWT_AUTHN => to_any(&authentication()),
                    _ => to_any(&control_api::envoy::cors::Cors::default()),
                };
                manager.http_filters.push(filter(name, config));
            }
            manager.http_filters.push(router);
        });
        resources
    };
    compiled(&order(&[names::CORS, names::JWT_AUTHN]));
    for wrong in [
        &[names::JWT_AUTHN, names::CORS][..],
        &[names::JWT_AUTHN, names::JWT_AUTHN],
        &[names::CORS, names::CORS],
    ] {
        assert!(
            refusal(&order(wrong)).contains("http_filters[1].name stands twice or out of order"),
            "{wrong:?}"
        );
    }
    assert!(
        refusal(&order(&["x"])).contains("only envoy.filters.http.cors and envoy.filters.http.jwt_authn may")
    );
}

#[track_caller]
fn refused_at(resources: &Resources, place: &str, message: &str) {
    let found = refusal(resources);
    assert!(found.contains(&format!("http_filters[0].typed_config.{place}{message}")), "{message}: {found}");
}

#[test]
fn what_a_provider_cannot_have_is_refused_by_name() {
    let cases: [(Resources, &str); 14] = [
        (with_provider(|p| p.issuer.clear()), "issuer must have 1 to"),
        (with_provider(|p| p.require_expiration = false), "require_expiration must be true"),
        (with_provider(|p| p.from_params.push("t".into())), "from_params is not supported"),
        (with_provider(|p| p.from_cookies.push("t".into())), "from_cookies is not supported"),
        (with_provider(|p| p.payload_in_metadata = "x".into()), "payload_in_metadata is not supported"),
        (with_provider(|p| p.max_lifetime = super::seconds(1)), "max_lifetime is not supported"),
        (with_provider(|p| p.subjects = Some(Default::default())), "subjects is not supported"),
        (with_provider(|p| p.clock_skew_seconds = 601), "clock_skew_seconds is 601s"),
        (
            with_provider(|p| {
                p.from_headers.push(JwtHeader { name: "x-token".into(), value_prefix: String::new() })
            }),
            "from_headers[0] is not supported",
        ),
        (
            with_provider(|p| {
                p.claim_to_headers.push(JwtClaimToHeader {
                    header_name: "x-user".into(),
                    claim_name: "sub".into(),
                    ..Default::default()
                });
            }),
            "claim_to_headers[0] is not supported",
        ),
        (
            with_provider(|p| {
                p.jwks_source_specifier = Some(JwksSourceSpecifier::RemoteJwks(RemoteJwks::default()))
            }),
            "remote_jwks is not supported",
        ),
        (with_provider(|p| p.jwks_source_specifier = None), "local_jwks is required"),
        (
            with_provider(|p| p.jwks_source_specifier = inline("{}").map(JwksSourceSpecifier::LocalJwks)),
            "local_jwks is refused: the key set has no `keys`",
        ),
        (
            with_provider(|p| {
                p.jwt_cache_config = Some(JwtCacheConfig { jwt_cache_size: 1, jwt_max_token_size: 1 });
            }),
            "jwt_cache_config.jwt_max_token_size is not supported",
        ),
    ];
    for (resources, message) in cases {
        refused_at(&resources, "providers[\"main\"].", message);
    }
}

#[test]
fn what_the_filter_cannot_have_is_refused_by_name() {
    let cases: [(Resources, &str); 5] = [
        (with(|a| a.providers.clear()), "providers is required"),
        (with(|a| a.rules.push(RequirementRule::default())), "rules is not supported"),
        (with(|a| a.bypass_cors_preflight = true), "bypass_cors_preflight is not"),
        (
            with(|a| {
                let any = requirement(RequiresType::AllowMissing(Default::default()));
                a.requirement_map.insert("x".into(), any);
            }),
            "requirement_map[\"x\"] is not supported: only provider_name is",
        ),
        (
            with(|a| {
                let other = requirement(RequiresType::ProviderName("other".into()));
                a.requirement_map.insert("x".into(), other);
            }),
            "requirement_map[\"x\"].provider_name names the unknown provider \"other\"",
        ),
    ];
    for (resources, message) in cases {
        refused_at(&resources, "", message);
    }
}

#[test]
fn a_route_is_never_open_by_mistake() {
    let mut unknown = with(|_| {});
    require(&mut unknown, RequirementSpecifier::RequirementName("stuff".to_owned()));
    assert!(refusal(&unknown).contains("requirement_name names \"stuff\""), "{}", refusal(&unknown));
    let mut alone = small();
    require(&mut alone, RequirementSpecifier::RequirementName("staff".to_owned()));
    assert!(refusal(&alone).contains("which no listener filter of these routes has"), "{}", refusal(&alone));
    let mut scopes = small();
    with_scopes(&mut scopes, &["a"]);
    assert!(refusal(&scopes).contains("token.scopes needs a requirement_name"), "{}", refusal(&scopes));
    let mut half = with(|_| {});
    require(&mut half, RequirementSpecifier::Disabled(false));
    assert!(refusal(&half).contains("disabled must be true"), "{}", refusal(&half));
    for bad in ["", "a b", "a\"b"] {
        let mut resources = with(|_| {});
        with_scopes(&mut resources, &["a", bad]);
        assert!(refusal(&resources).contains("token.scopes[1] must have"), "{bad:?}");
    }
    let mut options = with(|_| {});
    edit_options(&mut options.listeners[0], |options| {
        options.token_providers =
            vec![v1::TokenProviderOptions { name: "other".into(), ..Default::default() }];
    });
    assert!(refusal(&options).contains("token_providers[0].name names no provider"), "{}", refusal(&options));
}

#[test]
fn a_configuration_of_no_listener_waits_for_its_names() {
    let mut resources = small();
    let mut host = virtual_host("h", "*", vec![route("r", "/")]);
    let config = PerRouteConfig {
        requirement_specifier: Some(RequirementSpecifier::RequirementName("later".to_owned())),
    };
    host.typed_per_filter_config.insert(names::JWT_AUTHN.to_owned(), to_any(&config));
    resources.routes.push(RouteConfiguration {
        name: "later".to_owned(),
        virtual_hosts: vec![host],
        ..Default::default()
    });
    compiled(&resources);
    let mut manager = manager();
    manager.route_specifier = Some(control_api::envoy::hcm::http_connection_manager::RouteSpecifier::Rds(
        control_api::envoy::hcm::Rds { config_source: super::ads(), route_config_name: "later".to_owned() },
    ));
    resources.listeners.push(listener("late", 8081, &manager));
    assert!(
        refusal(&resources).contains("requirement_name names \"later\""),
        "a listener without the filter"
    );
}
