//! `mirror` of routes: Envoy's policy for what it has fields for, options for the rest.

use control_api::envoy::mutation::header_mutation::Action;
use control_api::envoy::route::route;
use control_api::envoy::route::route_action::RequestMirrorPolicy;
use control_api::from_any;
use control_api::shard::v1::{KEY, MirrorOptions, RouteOptions};

use super::{Set, errors_of, loaded, shown, with};

/// A service with two clusters and a route to the first of them with these keys of `mirror`.
fn mirrored(keys: &str) -> Set {
    with(&[(
        "services/shop/service.yaml",
        &format!(
            "clusters:\n  main: {{ endpoints: [\"127.0.0.1:1\"] }}\n  next: {{ endpoints: [\"127.0.0.1:2\"] }}\n\
             routes:\n  - {{ cluster: main, mirror: {{ {keys} }} }}\n"
        ),
    )])
}

fn found(keys: &str) -> (RequestMirrorPolicy, Option<MirrorOptions>) {
    let route = loaded(mirrored(keys)).resources.routes.remove(0).virtual_hosts.remove(0).routes.remove(0);
    let options: RouteOptions =
        from_any(route.typed_per_filter_config.get(KEY).expect("body_max is always there"))
            .expect("of this type");
    let Some(route::Action::Route(mut action)) = route.action else { panic!("a route action") };
    assert_eq!(action.request_mirror_policies.len(), 1);
    (action.request_mirror_policies.remove(0), options.mirror)
}

#[test]
fn a_cluster_alone_writes_nothing_else() {
    let (policy, options) = found("cluster: next");
    let plain = RequestMirrorPolicy {
        cluster: "shop/next".to_owned(),
        disable_shadow_host_suffix_append: true,
        ..Default::default()
    };
    assert_eq!((policy, options), (plain, None));
}

#[test]
fn every_key_has_its_place() {
    let (policy, options) = found(
        "cluster: shop/next, percent: 0.5, by: { cookie: sid }, remove_headers: [x-a, x-b], buffer_max: 8KiB, \
         timeout: 2s, in_flight_max: 7, bandwidth_max: 1MiB",
    );
    let share = policy.runtime_fraction.and_then(|fraction| fraction.default_value).expect("set");
    assert_eq!((share.numerator, share.denominator), (5_000, 2), "millionths");
    let removed: Vec<_> =
        policy.request_headers_mutations.into_iter().map(|mutation| mutation.action).collect();
    assert_eq!(removed, ["x-a", "x-b"].map(|name| Some(Action::Remove(name.to_owned()))));
    let options = options.expect("set");
    assert_eq!((options.key_cookie.as_str(), options.timeout.map(|t| t.seconds)), ("sid", Some(2)));
    let bounds = (options.buffer_bytes_max, options.in_flight_max, options.bytes_per_second_max);
    assert_eq!(bounds, (Some(8 << 10), Some(7), Some(1 << 20)));
    let by = |by: &str| found(&format!("cluster: next, by: {by}")).1.expect("set");
    assert!(by("client_address").key_client_address);
    assert_eq!(by("{ header: x-u }").key_header, "x-u");
    assert_eq!(by("{ query: u }").key_query, "u");
}

#[test]
fn what_cannot_be_mirrored_is_an_error_with_a_way_out() {
    for (keys, message) in [
        ("cluster: main", "the route itself sends requests to `shop/main`"),
        ("cluster: nxt", "did you mean `next`?"),
        ("percent: 1", "the key `cluster` is missing"),
        ("cluster: next, percent: 101", "percent"),
        ("cluster: next, buffer_max: 17MiB", "buffer_max"),
        ("cluster: next, remove_headers: [content-length]", "remove_headers"),
    ] {
        let errors = shown(&errors_of(mirrored(keys)));
        assert!(errors.contains(message), "{keys}: {errors}");
    }
    let redirect = "endpoints: [\"127.0.0.1:1\"]\nroutes:\n  - { redirect: { https: true }, mirror: { cluster: shop } }\n";
    let errors = shown(&errors_of(with(&[("services/shop/service.yaml", redirect)])));
    assert!(errors.contains("only requests that go to a cluster are mirrored"), "{errors}");
}
