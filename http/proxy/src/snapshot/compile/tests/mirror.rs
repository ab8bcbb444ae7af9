//! Mirrors of routes: what Envoy's policy and our options become, and what is refused.

use std::time::Duration;

use control_api::envoy::core::RuntimeFractionalPercent;
use control_api::envoy::mutation::HeaderMutation;
use control_api::envoy::mutation::header_mutation::Action as Change;
use control_api::envoy::route::route_action::RequestMirrorPolicy;
use control_api::envoy::types::FractionalPercent;
use control_api::envoy::types::fractional_percent::DenominatorType;
use control_api::shard::v1;
use control_api::{Resources, to_any};
use http_balance::mirror::MirrorRules;
use http_balance::stable_hash;

use super::{cluster, compiled, edit_action, edit_route, refusal, seconds, small};
use crate::snapshot::model::{Action, ClusterIndex, HashKey, Mirror};

fn policy() -> RequestMirrorPolicy {
    RequestMirrorPolicy {
        cluster: "backend".to_owned(),
        disable_shadow_host_suffix_append: true,
        ..Default::default()
    }
}

fn fraction(numerator: u32, denominator: DenominatorType) -> Option<RuntimeFractionalPercent> {
    let default_value = Some(FractionalPercent { numerator, denominator: denominator.into() });
    Some(RuntimeFractionalPercent { default_value, ..Default::default() })
}

/// The small set with a second cluster, a mirror to it, and options.
fn mirrored(edit: impl FnOnce(&mut RequestMirrorPolicy), options: Option<v1::MirrorOptions>) -> Resources {
    let mut resources = small();
    resources.clusters.push(cluster("shadow"));
    let mut mirror = RequestMirrorPolicy { cluster: "shadow".to_owned(), ..policy() };
    edit(&mut mirror);
    edit_action(&mut resources, |action| action.request_mirror_policies = vec![mirror]);
    if options.is_some() {
        let options = v1::RouteOptions { mirror: options, ..Default::default() };
        edit_route(&mut resources, |route| {
            route.typed_per_filter_config.insert(v1::KEY.to_owned(), to_any(&options));
        });
    }
    resources
}

fn mirror(resources: &Resources) -> Option<Mirror> {
    let snapshot = compiled(resources);
    let route = snapshot.listeners[0].routes.routes().next().expect("one route");
    let Action::Forward(forward) = &route.action else { panic!("forwards") };
    forward.mirror.as_deref().cloned()
}

#[test]
fn a_policy_alone_takes_every_default() {
    let rules = MirrorRules {
        sample: 1_000_000,
        salt: stable_hash(b"root"),
        in_flight_max: 128,
        bytes_per_second_max: 64 << 20,
        buffered_bytes_max: 1 << 20,
    };
    let wanted = Mirror {
        cluster: ClusterIndex(1),
        rules,
        key: None,
        removed_fields: Vec::new(),
        timeout: Duration::from_secs(5),
    };
    assert_eq!(mirror(&mirrored(|_| {}, None)), Some(wanted));
    let options = v1::RouteOptions { mirror: Some(v1::MirrorOptions::default()), ..Default::default() };
    let mut resources = small();
    edit_route(&mut resources, |route| {
        route.typed_per_filter_config.insert(v1::KEY.to_owned(), to_any(&options));
    });
    assert_eq!(mirror(&resources), None, "options without a policy mirror nothing");
}

#[test]
fn shares_fields_and_options_arrive() {
    let options = v1::MirrorOptions {
        key_query: "user".to_owned(),
        buffer_bytes_max: Some(0),
        timeout: seconds(2),
        in_flight_max: Some(3),
        bytes_per_second_max: Some(2048),
        ..Default::default()
    };
    let edit = |policy: &mut RequestMirrorPolicy| {
        policy.runtime_fraction = fraction(25, DenominatorType::TenThousand);
        policy.request_headers_mutations =
            vec![HeaderMutation { action: Some(Change::Remove("X-A".to_owned())) }];
    };
    let found = mirror(&mirrored(edit, Some(options))).expect("set");
    assert_eq!((found.rules.sample, found.rules.in_flight_max), (2_500, 3));
    assert_eq!((found.rules.bytes_per_second_max, found.rules.buffered_bytes_max), (2048, 0));
    assert_eq!((found.key, found.timeout), (Some(HashKey::Query("user".to_owned())), Duration::from_secs(2)));
    assert_eq!(found.removed_fields, ["x-a"]);
    for (share, wanted) in [
        (fraction(1, DenominatorType::Hundred), 10_000),
        (fraction(7, DenominatorType::Million), 7),
        (fraction(0, DenominatorType::Hundred), 0),
    ] {
        assert_eq!(
            mirror(&mirrored(|p| p.runtime_fraction = share, None)).map(|m| m.rules.sample),
            Some(wanted)
        );
    }
}

#[test]
fn what_a_policy_may_not_say_is_refused_by_field() {
    type Edit = fn(&mut RequestMirrorPolicy);
    let cases: [(Edit, &str); 8] = [
        (|p| p.cluster.clear(), "[0].cluster is required"),
        (|p| p.cluster = "nobody".to_owned(), "[0].cluster names the unknown cluster"),
        (|p| p.cluster = "backend".to_owned(), "[0].cluster is \"backend\", which the route itself"),
        (|p| p.disable_shadow_host_suffix_append = false, "disable_shadow_host_suffix_append must be true"),
        (
            |p| p.runtime_fraction = Some(RuntimeFractionalPercent::default()),
            "runtime_fraction.default_value is required",
        ),
        (
            |p| p.runtime_fraction = fraction(101, DenominatorType::Hundred),
            "default_value is more than the whole",
        ),
        (|p| p.host_rewrite_literal = "x".to_owned(), "[0].host_rewrite_literal is not supported"),
        (
            |p| {
                let remove = Change::Remove("content-length".to_owned());
                p.request_headers_mutations = vec![HeaderMutation { action: Some(remove) }];
            },
            "request_headers_mutations[0].remove is \"content-length\", which cannot be removed",
        ),
    ];
    for (edit, expected) in cases {
        let refusal = refusal(&mirrored(edit, None));
        assert!(refusal.contains(expected), "{refusal}\nwanted: {expected}");
    }
    let mut twice = mirrored(|_| {}, None);
    edit_action(&mut twice, |action| {
        let first = action.request_mirror_policies[0].clone();
        action.request_mirror_policies.push(first);
    });
    assert!(refusal(&twice).contains("request_mirror_policies has more than one entry"));
}

#[test]
fn options_out_of_range_are_refused_by_field() {
    let unset = v1::MirrorOptions::default;
    let cases = [
        (v1::MirrorOptions { in_flight_max: Some(0), ..unset() }, "in_flight_max is 0"),
        (v1::MirrorOptions { buffer_bytes_max: Some((16 << 20) + 1), ..unset() }, "buffer_bytes_max is"),
        (v1::MirrorOptions { timeout: seconds(61), ..unset() }, "timeout is 61s"),
        (v1::MirrorOptions { bytes_per_second_max: Some(1023), ..unset() }, "bytes_per_second_max is 1023"),
        (
            v1::MirrorOptions { key_header: "a b".to_owned(), ..unset() },
            "key_header is \"a b\", which is no name",
        ),
        (
            v1::MirrorOptions { key_cookie: "a".to_owned(), key_client_address: true, ..unset() },
            "has more than one key",
        ),
    ];
    for (options, expected) in cases {
        let refusal = refusal(&mirrored(|_| {}, Some(options)));
        assert!(refusal.contains(expected) && refusal.contains("mirror"), "{refusal}\nwanted: {expected}");
    }
}
