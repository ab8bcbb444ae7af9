//! Routes: what actions become, how levels merge, what is refused.

use std::time::Duration;

use control_api::Resources;
use control_api::envoy::core::header_value_option::HeaderAppendAction;
use control_api::envoy::core::{HeaderValue, HeaderValueOption};
use control_api::envoy::cors::CorsPolicy as CorsMessage;
use control_api::envoy::matcher::string_matcher::MatchPattern;
use control_api::envoy::matcher::{RegexMatchAndSubstitute, RegexMatcher, StringMatcher};
use control_api::envoy::names;
use control_api::envoy::route::header_matcher::HeaderMatchSpecifier;
use control_api::envoy::route::query_parameter_matcher::QueryParameterMatchSpecifier;
use control_api::envoy::route::redirect_action::{PathRewriteSpecifier, SchemeRewriteSpecifier};
use control_api::envoy::route::route::Action as Chosen;
use control_api::envoy::route::route_action::hash_policy::{self, PolicySpecifier};
use control_api::envoy::route::route_action::{ClusterSpecifier, HashPolicy, HostRewriteSpecifier};
use control_api::envoy::route::route_match::PathSpecifier;
use control_api::envoy::route::weighted_cluster::{ClusterWeight, RandomValueSpecifier};
use control_api::envoy::route::{
    DirectResponseAction, HeaderMatcher, QueryParameterMatcher, RedirectAction, RouteAction, RouteMatch,
    WeightedCluster,
};
use control_api::shard::v1;
use control_api::to_any;
use http_gateway::body_limit::BodyRate;
use http_gateway::fields::Variables;
use http_wire::fields::Fields;
use http_wire::head::{RequestHead, Version};

use super::{
    cluster, compiled, edit_action, edit_route, edit_routes, inline, millis, number, refusal, route, seconds,
    small, switch, virtual_host,
};
use crate::snapshot::model::{Action, ClusterIndex, HostRewrite, PathRewrite, Route, SplitKey};

/// The one route of a set.
fn only(resources: &Resources, look: impl FnOnce(&Route)) {
    look(compiled(resources).listeners[0].routes.routes().next().expect("one route"));
}

fn pattern(regex: &str) -> RegexMatcher {
    RegexMatcher { regex: regex.to_owned(), ..Default::default() }
}

fn text(pattern: MatchPattern) -> StringMatcher {
    StringMatcher { match_pattern: Some(pattern), ..Default::default() }
}

fn set(key: &str, value: &str, action: HeaderAppendAction) -> HeaderValueOption {
    let header = HeaderValue { key: key.to_owned(), value: value.to_owned(), ..Default::default() };
    HeaderValueOption { header: Some(header), append_action: action as i32, ..Default::default() }
}

#[test]
fn timeouts_have_a_default_an_end_and_an_off() {
    for (wire, expected) in [
        (None, Some(Duration::from_secs(15))),
        (seconds(0), None),
        (millis(1), Some(Duration::from_millis(1))),
        (seconds(30), Some(Duration::from_secs(30))),
    ] {
        let mut resources = small();
        edit_action(&mut resources, |a| a.timeout = wire);
        only(&resources, |route| assert_eq!(route.timeout, expected, "{wire:?}"));
    }
    for wire in [millis(30_001), seconds(-1)] {
        let mut resources = small();
        edit_action(&mut resources, |a| a.timeout = wire);
        assert!(refusal(&resources).contains("routes[0].route.timeout is"), "{wire:?}");
    }
    let mut resources = small();
    edit_action(&mut resources, |a| a.idle_timeout = seconds(0));
    assert!(refusal(&resources).contains("route.idle_timeout is 0ns, it must lie between"));
}

fn entry(name: &str, weight: Option<control_api::envoy::google::UInt32Value>) -> ClusterWeight {
    ClusterWeight { name: name.to_owned(), weight, ..Default::default() }
}

fn weighted(clusters: Vec<ClusterWeight>, by_hash: Option<bool>) -> Option<ClusterSpecifier> {
    let random_value_specifier = by_hash
        .map(|value| RandomValueSpecifier::UseHashPolicy(control_api::envoy::google::BoolValue { value }));
    let weighted = WeightedCluster { clusters, random_value_specifier, ..Default::default() };
    Some(ClusterSpecifier::WeightedClusters(weighted))
}

fn policy(specifier: PolicySpecifier) -> Vec<HashPolicy> {
    vec![HashPolicy { policy_specifier: Some(specifier), ..Default::default() }]
}

fn by_cookie(name: &str) -> Vec<HashPolicy> {
    policy(PolicySpecifier::Cookie(hash_policy::Cookie { name: name.to_owned(), ..Default::default() }))
}

fn three_clusters() -> Resources {
    let mut resources = small();
    resources.clusters.extend([cluster("canary"), cluster("off")]);
    resources
}

#[test]
fn splits_keep_their_weights_and_leave_nothing_to_weight_0() {
    let mut resources = three_clusters();
    edit_action(&mut resources, |a| {
        a.cluster_specifier = weighted(
            vec![entry("backend", number(90)), entry("off", number(0)), entry("canary", number(10))],
            Some(true),
        );
        a.hash_policy = policy(PolicySpecifier::Header(hash_policy::Header {
            header_name: "X-User".to_owned(),
            ..Default::default()
        }));
    });
    only(&resources, |route| {
        let Action::Forward(forward) = &route.action else { panic!("forwards") };
        assert_eq!(forward.split.entries, [(ClusterIndex(0), 90), (ClusterIndex(1), 10)]);
        assert_eq!(forward.split.weight_total, 100);
        assert!(matches!(&forward.split.hash_by, Some(SplitKey::Field(name)) if name == "x-user"));
    });
}

#[test]
fn splits_are_refused_by_field() {
    let refused = [
        (weighted(vec![entry("backend", number(0))], None), vec![], "needs a cluster with a weight above 0"),
        (weighted(vec![], None), vec![], "needs a cluster with a weight above 0"),
        (
            weighted(vec![entry("nowhere", number(1))], None),
            vec![],
            "weighted_clusters.clusters[0].name names the unknown cluster \"nowhere\"",
        ),
        (
            weighted(vec![entry("backend", None)], None),
            vec![],
            "weighted_clusters.clusters[0].weight is required",
        ),
        (
            weighted(vec![entry("backend", number(1_000_001))], None),
            vec![],
            "it must lie between 0 and 1000000",
        ),
        (weighted(vec![entry("backend", number(1))], Some(true)), vec![], "must have exactly one entry"),
        (
            weighted(vec![entry("backend", number(1))], Some(true)),
            by_cookie("a b"),
            "hash_policy[0].cookie.name is \"a b\"",
        ),
        (
            Some(ClusterSpecifier::Cluster("nowhere".into())),
            vec![],
            "route.cluster names the unknown cluster \"nowhere\"",
        ),
        (Some(ClusterSpecifier::ClusterHeader("x".into())), vec![], "route.cluster_header is not supported"),
        (None, vec![], "route.cluster is required"),
    ];
    for (specifier, hash_policy, expected) in refused {
        let mut resources = three_clusters();
        edit_action(&mut resources, |a| (a.cluster_specifier, a.hash_policy) = (specifier, hash_policy));
        let refusal = refusal(&resources);
        assert!(refusal.contains(expected), "{refusal}");
    }
}

#[test]
fn rewrites_are_one_of_three_and_paths() {
    let regex = |pattern_text: &str, substitution: &str| {
        Some(RegexMatchAndSubstitute {
            pattern: Some(pattern(pattern_text)),
            substitution: substitution.to_owned(),
        })
    };
    type Edit<'a> = &'a dyn Fn(&mut RouteAction);
    let accepted: [(Edit<'_>, &str); 4] = [
        (&|a| a.prefix_rewrite = "/v2".into(), "Some(Prefix(\"/v2\"))"),
        (&|a| a.path_rewrite = "/100%%".into(), "Some(Full(\"/100%\"))"),
        (&|a| a.regex_rewrite = regex("^/a/(.*)$", r"/\1"), "Some(Regex"),
        (&|_| {}, "None"),
    ];
    for (edit, expected) in accepted {
        let mut resources = small();
        edit_action(&mut resources, edit);
        only(&resources, |route| {
            let Action::Forward(forward) = &route.action else { panic!("forwards") };
            let shown = format!("{:?}", forward.path_rewrite);
            assert!(shown.starts_with(expected), "{shown}");
        });
    }
    let refused: [(Edit<'_>, &str); 9] = [
        (&|a| (a.prefix_rewrite, a.path_rewrite) = ("/a".into(), "/b".into()), "has more than one of"),
        (&|a| (a.prefix_rewrite, a.regex_rewrite) = ("/a".into(), regex("a", "b")), "has more than one of"),
        (&|a| a.prefix_rewrite = "v2".into(), "prefix_rewrite is \"v2\""),
        (&|a| a.prefix_rewrite = "/a b".into(), "prefix_rewrite is \"/a b\""),
        (&|a| a.prefix_rewrite = "/a\r\nx: y".into(), "prefix_rewrite is"),
        (&|a| a.prefix_rewrite = "/a?b".into(), "prefix_rewrite is"),
        (&|a| a.path_rewrite = "/%REQ(x)%".into(), "holds a format operator"),
        (&|a| a.regex_rewrite = regex("(", "b"), "regex_rewrite.pattern.regex is not valid"),
        (&|a| a.regex_rewrite = regex("a", r"\1"), "has no group 1"),
    ];
    for (edit, expected) in refused {
        let mut resources = small();
        edit_action(&mut resources, edit);
        let refusal = refusal(&resources);
        assert!(refusal.contains(expected), "{refusal}");
    }
    let mut resources = small();
    edit_action(&mut resources, |a| a.prefix_rewrite = "/a".into());
    edit_route(&mut resources, |t| {
        t.r#match.get_or_insert_default().path_specifier = Some(PathSpecifier::SafeRegex(pattern("/.*")))
    });
    assert!(refusal(&resources).contains("prefix_rewrite is not supported with safe_regex"));
}

#[test]
fn hosts_are_rewritten_to_a_literal_or_the_upstreams_name() {
    for (specifier, expected) in [
        (HostRewriteSpecifier::HostRewriteLiteral("Inner.Example:81".into()), Some("inner.example:81")),
        (
            HostRewriteSpecifier::AutoHostRewrite(control_api::envoy::google::BoolValue { value: true }),
            Some("upstream"),
        ),
        (HostRewriteSpecifier::AutoHostRewrite(control_api::envoy::google::BoolValue { value: false }), None),
    ] {
        let mut resources = small();
        edit_action(&mut resources, |a| a.host_rewrite_specifier = Some(specifier));
        only(&resources, |route| {
            let Action::Forward(forward) = &route.action else { panic!("forwards") };
            let shown = forward.host_rewrite.as_ref().map(|rewrite| match rewrite {
                HostRewrite::Literal(host) => host.as_str(),
                HostRewrite::Upstream => "upstream",
            });
            assert_eq!(shown, expected);
        });
    }
    let mut resources = small();
    edit_action(&mut resources, |a| {
        a.host_rewrite_specifier = Some(HostRewriteSpecifier::HostRewriteLiteral("a\r\nb".into()))
    });
    assert!(refusal(&resources).contains("host_rewrite_literal is \"a\\r\\nb\", which is no host"));
}

#[test]
fn redirects_say_where_and_never_to_themselves() {
    let with = |redirect: RedirectAction| {
        let mut resources = small();
        edit_route(&mut resources, |t| t.action = Some(Chosen::Redirect(redirect)));
        resources
    };
    let full = RedirectAction {
        host_redirect: "B.example".into(),
        port_redirect: 8443,
        response_code: 4,
        strip_query: true,
        scheme_rewrite_specifier: Some(SchemeRewriteSpecifier::SchemeRedirect("https".into())),
        path_rewrite_specifier: Some(PathRewriteSpecifier::PathRedirect("/new".into())),
    };
    only(&with(full.clone()), |route| {
        let Action::Redirect(redirect) = &route.action else { panic!("redirects") };
        assert_eq!(
            (redirect.status, redirect.https, redirect.port, redirect.strip_query),
            (308, true, Some(8443), true)
        );
        assert_eq!(redirect.host.as_deref(), Some("b.example"));
        assert!(matches!(&redirect.path, Some(PathRewrite::Full(path)) if path == "/new"));
    });
    for (redirect, expected) in [
        (RedirectAction::default(), "would redirect for ever"),
        (RedirectAction { response_code: 9, ..full.clone() }, "response_code is not supported"),
        (RedirectAction { port_redirect: 65_536, ..full.clone() }, "port_redirect is 65536"),
        (RedirectAction { host_redirect: "a/b".into(), ..full.clone() }, "host_redirect is \"a/b\""),
        (
            RedirectAction {
                scheme_rewrite_specifier: Some(SchemeRewriteSpecifier::SchemeRedirect("ftp".into())),
                ..full.clone()
            },
            "only `https` is supported",
        ),
        (
            RedirectAction {
                path_rewrite_specifier: Some(PathRewriteSpecifier::PathRedirect("//a\nb".into())),
                ..full
            },
            "path_redirect is",
        ),
    ] {
        let refusal = refusal(&with(redirect));
        assert!(refusal.contains(expected), "{refusal}");
    }
}

#[test]
fn direct_responses_take_their_content_type_from_the_header_operations() {
    let with = |status, body: &str, options: Vec<HeaderValueOption>| {
        let mut resources = small();
        edit_route(&mut resources, |t| {
            t.action = Some(Chosen::DirectResponse(DirectResponseAction {
                status,
                body: inline(body),
                ..Default::default()
            }));
            t.response_headers_to_add = options;
        });
        resources
    };
    use HeaderAppendAction::OverwriteIfExistsOrAdd as Overwrite;
    for (options, content_type, ops_left) in [
        (vec![], "text/plain", false),
        (vec![set("Content-Type", "text/html", Overwrite)], "text/html", false),
        (vec![set("content-type", "text/html", Overwrite), set("x-a", "1", Overwrite)], "text/html", true),
    ] {
        only(&with(200, "hello", options), |route| {
            let Action::Direct(direct) = &route.action else { panic!("answers") };
            assert_eq!(
                (direct.status, direct.content_type.as_str(), &direct.body[..]),
                (200, content_type, &b"hello"[..])
            );
            assert_eq!(!route.response_fields.is_empty(), ops_left);
        });
    }
    for (status, body, expected) in [
        (199, "", "status must lie between 200 and 599"),
        (600, "", "status must lie between 200 and 599"),
        (204, "x", "body is not possible with status 204"),
        (200, &*"x".repeat(65_537), "body has 65537 bytes"),
    ] {
        let refusal = refusal(&with(status, body, vec![]));
        assert!(refusal.contains(expected), "{refusal}");
    }
}

#[test]
fn header_operations_apply_from_the_route_outwards() {
    use HeaderAppendAction::{AppendIfExistsOrAdd as Append, OverwriteIfExistsOrAdd as Overwrite};
    let mut resources = small();
    edit_routes(&mut resources, |config| {
        config.request_headers_to_add =
            vec![set("x-level", "config", Append), set("x-last", "config", Overwrite)];
        config.request_headers_to_remove = vec!["x-client".into()];
        config.virtual_hosts[0].request_headers_to_add = vec![set("x-level", "host", Append)];
        config.virtual_hosts[0].routes[0].request_headers_to_add =
            vec![set("x-level", "route", Append), set("x-last", "route", Overwrite)];
    });
    only(&resources, |route| {
        let mut fields = Fields::new();
        fields.push_name(b"x-client", b"1").expect("valid");
        let variables = Variables {
            client: "192.0.2.1".parse().expect("an address"),
            request_id: b"id",
            protocol: Version::Http11,
            host: b"a",
        };
        route.request_fields.apply(&variables, &mut fields, &mut Vec::new()).expect("fits");
        let shown: Vec<_> = fields
            .iter()
            .map(|f| format!("{}: {}", String::from_utf8_lossy(f.name), String::from_utf8_lossy(f.value)))
            .collect();
        assert_eq!(shown, ["x-level: route", "x-level: host", "x-level: config", "x-last: config"]);
        assert!(route.response_fields.is_empty());
    });
    for (option, expected) in [
        (set("content-length", "1", Append), "request_headers_to_add[0].header.key is refused"),
        (set("a b", "1", Append), "request_headers_to_add[0].header.key is refused"),
        (set("x", "a\r\nb", Append), "request_headers_to_add[0].header.value is refused"),
        (set("x", "%NOPE%", Append), "request_headers_to_add[0].header.value is refused"),
        (set("x", "", Append), "header.value is empty"),
        (
            set("x", "1", HeaderAppendAction::OverwriteIfExists),
            "request_headers_to_add[0].append_action is not supported",
        ),
        (
            HeaderValueOption { keep_empty_value: true, ..set("x", "1", Append) },
            "keep_empty_value is not supported",
        ),
    ] {
        let mut resources = small();
        edit_route(&mut resources, |t| t.request_headers_to_add = vec![option]);
        let refusal = refusal(&resources);
        assert!(refusal.contains(expected), "{refusal}");
    }
}

fn cors(origins: Vec<StringMatcher>) -> CorsMessage {
    CorsMessage {
        allow_origin_string_match: origins,
        allow_methods: "GET, PUT".into(),
        max_age: "60".into(),
        ..Default::default()
    }
}

#[test]
fn policies_of_the_inner_level_win_field_by_field() {
    let options = |bytes, sunset: &str, pages: Vec<(u32, &str)>| {
        let error_pages = pages
            .into_iter()
            .map(|(status, body)| v1::ErrorPage { status, body: body.into(), ..Default::default() })
            .collect();
        to_any(&v1::RouteOptions {
            body_bytes_max: bytes,
            sunset: sunset.into(),
            error_pages,
            ..Default::default()
        })
    };
    let mut resources = small();
    edit_routes(&mut resources, |config| {
        config.typed_per_filter_config.insert(
            v1::KEY.into(),
            options(Some(10), "Sun, 06 Nov 1994 08:49:37 GMT", vec![(503, "outer"), (404, "outer")]),
        );
        config
            .typed_per_filter_config
            .insert(names::CORS.into(), to_any(&cors(vec![text(MatchPattern::Exact("*".into()))])));
        let host = &mut config.virtual_hosts[0];
        host.typed_per_filter_config.insert(v1::KEY.into(), options(Some(0), "", vec![(503, "inner")]));
    });
    only(&resources, |route| {
        assert_eq!(route.body_bytes_max, None, "0 lifts the outer limit");
        assert_eq!(route.sunset.as_deref(), Some("Sun, 06 Nov 1994 08:49:37 GMT"));
        assert!(route.cors.is_some());
        let mut pages: Vec<_> = route.error_pages.iter().map(|p| (p.status, &p.body[..])).collect();
        pages.sort();
        assert_eq!(pages, [(404, &b"outer"[..]), (503, b"inner")]);
    });
}

#[test]
fn a_body_rate_is_bytes_in_a_window_and_an_inner_level_lifts_it() {
    let rate = |bytes_per_second_min, window| {
        let body_rate = Some(v1::BodyRate { bytes_per_second_min, window });
        to_any(&v1::RouteOptions { body_rate, ..Default::default() })
    };
    let mut resources = small();
    only(&resources, |route| assert_eq!(route.body_rate, None, "off"));
    edit_routes(&mut resources, |config| {
        config.typed_per_filter_config.insert(v1::KEY.into(), rate(None, None));
    });
    let ten = Duration::from_secs(10);
    only(&resources, |route| assert_eq!(route.body_rate, Some(BodyRate { bytes: 5000, window: ten })));
    edit_routes(&mut resources, |config| {
        config.typed_per_filter_config.insert(v1::KEY.into(), rate(Some(3), seconds(1)));
    });
    let second = Duration::from_secs(1);
    only(&resources, |route| assert_eq!(route.body_rate, Some(BodyRate { bytes: 3, window: second })));
    edit_routes(&mut resources, |config| {
        config.virtual_hosts[0].typed_per_filter_config.insert(v1::KEY.into(), rate(Some(0), None));
    });
    only(&resources, |route| assert_eq!(route.body_rate, None));
}

#[test]
fn policies_are_checked_at_every_level() {
    let refused = |options: v1::RouteOptions, expected: &str| {
        let mut resources = small();
        edit_route(&mut resources, |t| {
            t.typed_per_filter_config.insert(v1::KEY.into(), to_any(&options));
        });
        let refusal = refusal(&resources);
        assert!(
            refusal.contains(&format!("routes[0].typed_per_filter_config[\"shard.v1\"].{expected}")),
            "{refusal}"
        );
    };
    let unset = v1::RouteOptions::default;
    let limit = |connections_max, requests_per_second, requests_burst| {
        Some(v1::ClientLimit { connections_max, requests_per_second, requests_burst })
    };
    refused(v1::RouteOptions { body_bytes_max: Some((1 << 40) + 1), ..unset() }, "body_bytes_max is");
    let rate = |bytes_per_second_min, window| v1::RouteOptions {
        body_rate: Some(v1::BodyRate { bytes_per_second_min, window }),
        ..unset()
    };
    refused(rate(Some(1 << 31), None), "body_rate.bytes_per_second_min is");
    refused(rate(None, seconds(0)), "body_rate.window is");
    refused(
        v1::RouteOptions { client_limit: limit(1, 0, 0), ..unset() },
        "client_limit.connections_max is not supported on a route",
    );
    refused(
        v1::RouteOptions { client_limit: limit(0, 0, 5), ..unset() },
        "client_limit.requests_burst needs requests_per_second",
    );
    refused(
        v1::RouteOptions {
            access: Some(v1::AddressRules { allow: vec!["x".into()], deny: vec![] }),
            ..unset()
        },
        "access.allow[0] is \"x\"",
    );
    for bad in ["1767225600", "@", "@x", "@+1", "@1 ", "@1234567890123456"] {
        refused(v1::RouteOptions { deprecation: bad.into(), ..unset() }, "deprecation is");
    }
    for bad in [
        "tomorrow",
        "Mon, 06 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:37 CET",
        "Sun, 6 Nov 1994 08:49:37 GMT",
        "Wed, 31 Feb 2024 00:00:00 GMT",
    ] {
        refused(v1::RouteOptions { sunset: bad.into(), ..unset() }, "sunset is");
    }
    refused(
        v1::RouteOptions {
            error_pages: vec![v1::ErrorPage { status: 200, ..Default::default() }],
            ..unset()
        },
        "error_pages[0].status",
    );
    for good in ["@0", "@1767225600", "@-5"] {
        let mut resources = small();
        edit_route(&mut resources, |t| {
            t.typed_per_filter_config
                .insert(v1::KEY.into(), to_any(&v1::RouteOptions { deprecation: good.into(), ..unset() }));
        });
        only(&resources, |route| assert_eq!(route.deprecation.as_deref(), Some(good)));
    }
}

#[test]
fn cors_policies_admit_the_origins_that_they_name() {
    let pattern_of = |matcher: StringMatcher| {
        let mut resources = small();
        edit_route(&mut resources, |t| {
            t.typed_per_filter_config.insert(names::CORS.into(), to_any(&cors(vec![matcher])));
        });
        resources
    };
    let admits = |matcher: StringMatcher, origin: &str| {
        let mut found = false;
        only(&pattern_of(matcher), |route| {
            let (mut request, mut response) = (Fields::new(), Fields::new());
            request.push_name(b"origin", origin.as_bytes()).expect("valid");
            route.cors.as_ref().expect("set").mark_response(&request, &mut response).expect("fits");
            found = response.get_name(b"access-control-allow-origin").is_some();
        });
        found
    };
    for (matcher, origin, expected) in [
        (MatchPattern::Exact("https://a.example".into()), "https://a.example", true),
        (MatchPattern::Exact("https://a.example".into()), "https://b.example", false),
        (MatchPattern::Prefix("https://a.".into()), "https://a.example", true),
        (MatchPattern::Prefix("https://a.".into()), "https://ab.example", false),
        (MatchPattern::Suffix(".a.example".into()), "https://x.a.example", true),
        (MatchPattern::Suffix(".a.example".into()), "https://xaaexample", false),
        (MatchPattern::SafeRegex(pattern("https://[a-z]+[.]example")), "https://a.example", true),
        (MatchPattern::SafeRegex(pattern("https://[a-z]+[.]example")), "https://a.example.evil", false),
    ] {
        let label = format!("{matcher:?} on {origin}");
        assert_eq!(admits(text(matcher), origin), expected, "{label}");
    }
    for (matcher, expected) in [
        (text(MatchPattern::Exact("https://*.a.example".into())), "use `*` alone"),
        (text(MatchPattern::Contains("a".into())), "contains is not supported"),
        (
            StringMatcher { ignore_case: true, ..text(MatchPattern::Exact("*".into())) },
            "ignore_case is not supported",
        ),
    ] {
        let refusal = refusal(&pattern_of(matcher));
        assert!(refusal.contains(expected), "{refusal}");
    }
    let mut resources = small();
    edit_route(&mut resources, |t| {
        let open = CorsMessage {
            allow_credentials: switch(true),
            ..cors(vec![text(MatchPattern::Exact("*".into()))])
        };
        t.typed_per_filter_config.insert(names::CORS.into(), to_any(&open));
    });
    assert!(refusal(&resources).contains("cannot allow credentials"));
}

#[test]
fn matches_arrive_in_the_table() {
    let mut resources = small();
    edit_routes(&mut resources, |config| {
        let mut canary = route("canary", "/");
        canary.r#match = Some(RouteMatch {
            path_specifier: Some(PathSpecifier::PathSeparatedPrefix("/api".into())),
            headers: vec![HeaderMatcher {
                name: "X-Canary".into(),
                header_match_specifier: Some(HeaderMatchSpecifier::StringMatch(StringMatcher {
                    ignore_case: true,
                    match_pattern: Some(MatchPattern::Exact("YES".into())),
                })),
                ..Default::default()
            }],
            query_parameters: vec![QueryParameterMatcher {
                name: "v".into(),
                query_parameter_match_specifier: Some(QueryParameterMatchSpecifier::PresentMatch(true)),
            }],
            ..Default::default()
        });
        config.virtual_hosts[0].routes.insert(0, canary);
    });
    let snapshot = compiled(&resources);
    for (path, query, canary, expected) in [
        ("/api/x", Some("v"), "yes", "canary"),
        ("/apis", Some("v"), "yes", "root"),
        ("/api", None, "yes", "root"),
        ("/api", Some("v"), "no", "root"),
    ] {
        let mut head = RequestHead::default();
        head.set_query(query.map(str::as_bytes)).expect("short");
        head.fields.push_name(b"x-canary", canary.as_bytes()).expect("valid");
        let found = snapshot.listeners[0]
            .routes
            .find(&head, b"any.example", path.as_bytes())
            .expect("root is always there");
        assert_eq!(found.route.name, expected, "{path} {query:?} {canary}");
    }
}

#[test]
fn names_and_domains_are_used_once_and_unnamed_routes_get_one() {
    let mut resources = small();
    edit_routes(&mut resources, |config| config.virtual_hosts[0].routes[0].name.clear());
    only(&resources, |route| assert_eq!(route.name, "all/0"));
    type Edit<'a> = &'a dyn Fn(&mut control_api::envoy::route::RouteConfiguration);
    let refused: [(Edit<'_>, &str); 5] = [
        (
            &|c| c.virtual_hosts[0].routes.push(route("root", "/x")),
            "virtual_hosts[0].routes[1].name \"root\" is used twice",
        ),
        (
            &|c| c.virtual_hosts.push(virtual_host("b", "*", vec![])),
            "domain `*` is already served by virtual host `all`",
        ),
        (&|c| c.virtual_hosts.push(virtual_host("all", "b", vec![])), "the name is used twice"),
        (&|c| c.virtual_hosts[0].domains.clear(), "virtual_hosts[0].domains is required"),
        (
            &|c| {
                let mut bad = route("bad", "/");
                bad.r#match = Some(RouteMatch {
                    path_specifier: Some(PathSpecifier::SafeRegex(pattern("("))),
                    ..Default::default()
                });
                c.virtual_hosts[0].routes.push(bad);
            },
            "virtual_hosts[0] is refused: virtual host `all`, route `bad`: pattern `(` is not valid",
        ),
    ];
    for (edit, expected) in refused {
        let mut resources = small();
        edit_routes(&mut resources, edit);
        let refusal = refusal(&resources);
        assert!(refusal.contains(expected), "{refusal}");
    }
}
