//! Balancing and resilience: which field each key becomes, and that unwritten keys become none.

use control_api::envoy::cluster::Cluster;
use control_api::envoy::cluster::cluster::LbConfig;
use control_api::envoy::core::health_check::{HealthChecker, payload::Payload};
use control_api::envoy::google::UInt32Value;
use control_api::envoy::route::route_action::hash_policy::PolicySpecifier;
use control_api::envoy::route::{Route, RouteAction, route};
use control_api::from_any;
use control_api::shard::v1::{Balance, ClusterOptions, KEY, PriorityClass, RouteOptions, Shed};

use super::{Set, errors_of, loaded, with, with_cluster, with_routes};

fn cluster(keys: &str) -> Cluster {
    loaded(with_cluster(keys)).resources.clusters.remove(0)
}

fn options(cluster: &Cluster) -> ClusterOptions {
    let metadata = cluster.metadata.as_ref();
    let any = metadata.and_then(|m| m.typed_filter_metadata.get(KEY));
    any.map(|any| from_any(any).expect("of this type")).unwrap_or_default()
}

fn first_route(files: Set) -> Route {
    loaded(files).resources.routes.remove(0).virtual_hosts.remove(0).routes.remove(0)
}

fn action(route: &Route) -> &RouteAction {
    match &route.action {
        Some(route::Action::Route(action)) => action,
        other => panic!("{other:?}"),
    }
}

fn value(count: Option<UInt32Value>) -> Option<u32> {
    count.map(|count| count.value)
}

fn seconds(duration: Option<control_api::envoy::google::Duration>) -> Option<i64> {
    duration.map(|duration| duration.seconds)
}

#[test]
fn a_plain_cluster_leaves_every_rule_to_the_proxy() {
    for keys in
        ["", "outlier: true\nslow_start: true\nbreaker: false\nadaptive: false\nshed: false\nbalance: p2c\n"]
    {
        let cluster = cluster(keys);
        assert_eq!(cluster.lb_policy, 1, "LEAST_REQUEST");
        assert_eq!((&cluster.metadata, &cluster.lb_config, &cluster.common_lb_config), (&None, &None, &None));
        assert_eq!((&cluster.outlier_detection, &cluster.circuit_breakers), (&None, &None));
        assert!(cluster.health_checks.is_empty());
    }
    let route = first_route(with_routes("- cluster: main"));
    assert_eq!((&action(&route).retry_policy, action(&route).hash_policy.len()), (&None, 0));
}

#[test]
fn policies_are_words_of_envoy_or_options() {
    for (keys, lb_policy, balance) in [
        ("balance: round_robin", 0, Balance::ByLbPolicy),
        ("balance: p2c", 1, Balance::ByLbPolicy),
        ("balance: ring_hash", 2, Balance::ByLbPolicy),
        ("balance: random", 3, Balance::ByLbPolicy),
        ("balance: maglev", 5, Balance::ByLbPolicy),
        ("balance: { policy: maglev }", 5, Balance::ByLbPolicy),
        ("balance: peak_ewma", 1, Balance::PeakEwma),
        ("balance: least_connections", 1, Balance::LeastConnections),
    ] {
        let cluster = cluster(keys);
        assert_eq!((cluster.lb_policy, options(&cluster).balance), (lb_policy, balance.into()), "{keys}");
    }
    let ring = cluster("balance: { policy: ring_hash, virtual_nodes: 300, load_bound_percent: 130 }");
    assert_eq!(options(&ring).ring_virtual_nodes, Some(300));
    let hashing = ring.common_lb_config.expect("set").consistent_hashing_lb_config.expect("set");
    assert_eq!(value(hashing.hash_balance_factor), Some(130));
    let ewma = options(&cluster("balance: { policy: peak_ewma, tau: 3s, failure_penalty: 2s }"));
    let ewma = ewma.peak_ewma.expect("set");
    assert_eq!((seconds(ewma.tau), seconds(ewma.failure_penalty)), (Some(3), Some(2)));
}

#[test]
fn slow_start_goes_where_the_policy_has_a_place_for_it() {
    let keys = "slow_start: { window: 30s, floor_percent: 20, aggression: 2 }\n";
    let least = cluster(keys);
    let Some(LbConfig::LeastRequestLbConfig(config)) = least.lb_config else {
        panic!("{:?}", least.lb_config)
    };
    let slow = config.slow_start_config.expect("set");
    assert_eq!(seconds(slow.slow_start_window), Some(30));
    assert_eq!(slow.aggression.map(|a| a.default_value), Some(2.0));
    assert_eq!(slow.min_weight_percent.map(|p| p.value), Some(20.0));
    let turn = cluster(&format!("{keys}balance: round_robin\n"));
    assert!(matches!(turn.lb_config, Some(LbConfig::RoundRobinLbConfig(_))));
    let ring = cluster(&format!("{keys}balance: ring_hash\n"));
    let slow = options(&ring).slow_start.expect("set");
    assert_eq!((seconds(slow.window), slow.aggression, slow.floor_percent), (Some(30), Some(2.0), Some(20)));
    assert_eq!(ring.lb_config, None);
    let off = cluster("slow_start: false\nbalance: random\n");
    assert_eq!(seconds(options(&off).slow_start.expect("set").window), Some(0));
}

#[test]
fn hedges_are_an_option_of_the_route_and_a_budget_of_the_cluster() {
    let after = |keys: &str| {
        let route = first_route(with_routes(&format!("- {{ cluster: main, {keys} }}")));
        let options = route.typed_per_filter_config.get(KEY).expect("options");
        let options: RouteOptions = from_any(options).expect("of this type");
        options.hedge_after.map(|after| (after.seconds, after.nanos))
    };
    assert_eq!(after("hedge: { after: 30ms }"), Some((0, 30_000_000)));
    assert_eq!(after("hedge: true"), Some((0, 100_000_000)));
    assert_eq!(after("hedge: false"), Some((0, 0)), "what an outer level has on is off here");
    assert_eq!(after("retries: 0"), None);
    assert_eq!(options(&cluster("hedge_percent: 5")).hedge_percent, Some(5));
}

#[test]
fn subsets_are_an_option_of_the_cluster() {
    for (keys, wanted) in [
        ("subset: { endpoints_min: 50 }", Some(50)),
        ("subset: true", Some(100)),
        ("subset: false", None),
        ("", None),
    ] {
        assert_eq!(options(&cluster(keys)).subset_endpoints_min, wanted, "{keys}");
    }
    for (keys, message) in [
        ("subset: true\nbalance: ring_hash", "`subset` and `ring_hash` exclude"),
        ("subset: true\nsticky: { keys: [tls/www.key] }", "`subset` and `sticky` exclude"),
    ] {
        let errors = errors_of(with_cluster(keys));
        assert!(errors.iter().any(|error| error.message.contains(message)), "{keys}: {errors:?}");
    }
}

#[test]
fn ejection_is_told_to_envoy_too() {
    let cluster = cluster(
        "outlier: { consecutive_5xx: 7, consecutive_gateway: 0, success_rate: { deviation_percent: 150, endpoints_min: 4, requests_min: 20 }, latency: { median_percent: 400, endpoints_min: 6, requests_min: 30 }, interval: 20s, ejection: 10s, ejection_max: 1m, ejected_percent_max: 30, endpoints_min: 3, log_only: true }\n",
    );
    let outlier = cluster.outlier_detection.clone().expect("set");
    assert_eq!(
        (value(outlier.consecutive_5xx), value(outlier.enforcing_consecutive_5xx)),
        (Some(7), Some(100))
    );
    assert_eq!(value(outlier.enforcing_consecutive_gateway_failure), Some(0));
    assert_eq!(value(outlier.enforcing_consecutive_local_origin_failure), Some(100));
    assert_eq!(
        (value(outlier.enforcing_success_rate), value(outlier.success_rate_stdev_factor)),
        (Some(100), Some(1_500))
    );
    assert_eq!(
        (value(outlier.success_rate_minimum_hosts), value(outlier.success_rate_request_volume)),
        (Some(4), Some(20))
    );
    assert_eq!(
        [outlier.interval, outlier.base_ejection_time, outlier.max_ejection_time].map(seconds),
        [Some(20), Some(10), Some(60)]
    );
    assert_eq!(value(outlier.max_ejection_percent), Some(30));
    assert_eq!(outlier.always_eject_one_host.map(|one| one.value), Some(true));
    let own = options(&cluster).outlier.expect("set");
    assert_eq!((own.log_only, own.endpoints_min), (true, Some(3)));
    let latency = own.latency.expect("set");
    assert_eq!(
        (latency.median_percent, latency.endpoints_min, latency.requests_min),
        (Some(400), Some(6), Some(30))
    );
}

#[test]
fn ejection_is_off_in_envoys_words() {
    let cluster = cluster("outlier: false");
    let off = cluster.outlier_detection.clone().expect("set");
    for enforcing in [
        off.enforcing_consecutive_5xx,
        off.enforcing_consecutive_gateway_failure,
        off.enforcing_consecutive_local_origin_failure,
        off.enforcing_success_rate,
    ] {
        assert_eq!(value(enforcing), Some(0));
    }
    assert_eq!(options(&cluster).outlier, None);
}

#[test]
fn caps_budgets_and_breakers() {
    let cluster = cluster(
        "panic_percent: 0\nin_flight_max: 200\nretry_budget: { percent: 20, floor_per_second: 3 }\nadaptive: { in_flight_min: 5, in_flight_max: 50, tolerance_percent: 200 }\nbreaker: { failure_percent: 40, requests_min: 50, window: 5s, open: 20s, probe_percent: 10, probes: 3 }\nshed: { sheddable_from: 70 }\n",
    );
    let panic = cluster.common_lb_config.clone().and_then(|common| common.healthy_panic_threshold);
    assert_eq!(panic.map(|percent| percent.value), Some(0.0));
    let thresholds = &cluster.circuit_breakers.as_ref().expect("set").thresholds;
    assert_eq!((thresholds.len(), value(thresholds[0].max_requests)), (1, Some(200)));
    let budget = thresholds[0].retry_budget.and_then(|budget| budget.budget_percent);
    assert_eq!(budget.map(|percent| percent.value), Some(20.0));
    let own = options(&cluster);
    assert_eq!(own.retry_floor_per_second, Some(3));
    let adaptive = own.adaptive_concurrency.expect("set");
    assert_eq!(
        (adaptive.in_flight_min, adaptive.in_flight_max, adaptive.tolerance_percent),
        (Some(5), Some(50), Some(200))
    );
    let breaker = own.breaker.expect("set");
    assert_eq!((breaker.failure_percent, breaker.requests_min), (Some(40), Some(50)));
    assert_eq!((seconds(breaker.window), seconds(breaker.open)), (Some(5), Some(20)));
    assert_eq!((breaker.probe_percent, breaker.probes), (Some(10), Some(3)));
    assert_eq!(own.shed, Some(Shed { sheddable_from: Some(700), ..Shed::default() }), "in thousandths");
}

#[test]
fn a_platform_default_is_laid_under_the_settings_of_a_cluster() {
    let platform =
        format!("{}defaults: {{ cluster: {{ outlier: {{ ejection: 5s }}, breaker: true }} }}\n", super::WEB);
    let service = "clusters:\n  main: { endpoints: [\"127.0.0.1:1\"], outlier: { consecutive_5xx: 3 }, breaker: false }\n";
    let files = with(&[("platform/web.yaml", &platform), ("services/shop/service.yaml", service)]);
    let cluster = loaded(files).resources.clusters.remove(0);
    let outlier = cluster.outlier_detection.clone().expect("set");
    assert_eq!((value(outlier.consecutive_5xx), seconds(outlier.base_ejection_time)), (Some(3), Some(5)));
    assert_eq!(options(&cluster).breaker, None);
}

#[test]
fn checks_carry_what_envoy_requires() {
    let check = |keys: &str| cluster(&format!("health_check: {keys}")).health_checks.remove(0);
    let short = check("/healthz");
    assert_eq!((seconds(short.interval), seconds(short.timeout)), (Some(5), Some(2)));
    assert_eq!(
        (value(short.unhealthy_threshold), value(short.healthy_threshold), short.interval_jitter_percent),
        (Some(3), Some(2), 10)
    );
    let Some(HealthChecker::HttpHealthCheck(http)) = short.health_checker else { panic!("HTTP") };
    assert_eq!((http.path.as_str(), http.host.as_str(), http.expected_statuses.len()), ("/healthz", "", 0));
    let long = check(
        "{ http: /up, host: Shop.Internal, statuses: [200, 300-302], interval: 1s, timeout: 500ms, jitter_percent: 0, unhealthy_after: 1, healthy_after: 9 }",
    );
    let Some(HealthChecker::HttpHealthCheck(http)) = long.health_checker else { panic!("HTTP") };
    let ranges: Vec<(i64, i64)> = http.expected_statuses.iter().map(|r| (r.start, r.end)).collect();
    assert_eq!(
        (http.host.as_str(), ranges.as_slice()),
        ("shop.internal", [(200, 201), (300, 303)].as_slice())
    );
    assert_eq!((value(long.unhealthy_threshold), value(long.healthy_threshold)), (Some(1), Some(9)));
    let Some(HealthChecker::GrpcHealthCheck(grpc)) = check("{ grpc: \"\" }").health_checker else {
        panic!("gRPC")
    };
    assert_eq!(grpc.service_name, "");
    let tcp = check("{ tcp: true, send: PING, expect: PONG }").health_checker;
    let Some(HealthChecker::TcpHealthCheck(tcp)) = tcp else { panic!("TCP") };
    assert_eq!(tcp.send.and_then(|send| send.payload), Some(Payload::Binary(b"PING".to_vec())));
    assert_eq!(tcp.receive.len(), 1);
}

#[test]
fn endpoints_are_grouped_by_priority_and_may_drain() {
    let text = "endpoints:\n  - { address: \"127.0.0.1:1\", priority: 1 }\n  - \"127.0.0.1:2\"\n  - { address: \"127.0.0.1:3\", drain: true }\n";
    let cluster = loaded(with(&[("services/shop/service.yaml", text)])).resources.clusters.remove(0);
    let levels = cluster.load_assignment.expect("set").endpoints;
    let shown: Vec<(u32, Vec<i32>)> = levels
        .iter()
        .map(|level| (level.priority, level.lb_endpoints.iter().map(|e| e.health_status).collect()))
        .collect();
    assert_eq!(shown, [(0, vec![0, 3]), (1, vec![0])]);
}

#[test]
fn routes_carry_the_key_of_their_cluster() {
    let keyed = |hash_by: &str| {
        let text = format!(
            "clusters:\n  main:\n    endpoints: [\"127.0.0.1:1\"]\n    balance: {{ policy: maglev{hash_by} }}\n"
        );
        let route = first_route(with(&[("services/shop/service.yaml", &text)]));
        let mut policies = action(&route).hash_policy.clone();
        assert_eq!(policies.len(), 1);
        policies.remove(0).policy_specifier.expect("a key")
    };
    assert!(matches!(keyed(""), PolicySpecifier::ConnectionProperties(by) if by.source_ip));
    assert!(matches!(keyed(", hash_by: client_address"), PolicySpecifier::ConnectionProperties(_)));
    assert!(
        matches!(keyed(", hash_by: { header: x-u }"), PolicySpecifier::Header(h) if h.header_name == "x-u")
    );
    assert!(
        matches!(keyed(", hash_by: { cookie: c }"), PolicySpecifier::Cookie(c) if c.name == "c" && c.ttl.is_none())
    );
    assert!(matches!(keyed(", hash_by: { query: q }"), PolicySpecifier::QueryParameter(q) if q.name == "q"));
    let split = "clusters:\n  a: { endpoints: [\"127.0.0.1:1\"], balance: { policy: ring_hash, hash_by: { cookie: c } } }\n  b: { endpoints: [\"127.0.0.1:2\"] }\nroutes:\n  - { split: [{ cluster: a, weight: 1 }, { cluster: b, weight: 1 }], split_by: { cookie: c } }\n";
    let route = first_route(with(&[("services/shop/service.yaml", split)]));
    assert_eq!(action(&route).hash_policy.len(), 1, "one key for both");
}

#[test]
fn retries_and_classes_of_routes() {
    let route = first_route(with_routes(
        "- { cluster: main, retries: { max: 2, per_try_timeout: 3s, on_timeout: true, idempotency_key: true }, priority_class: critical }",
    ));
    let policy = action(&route).retry_policy.clone().expect("set");
    assert_eq!(policy.retry_on, "connect-failure,refused-stream,reset");
    assert_eq!((value(policy.num_retries), seconds(policy.per_try_timeout)), (Some(2), Some(3)));
    let options: RouteOptions =
        from_any(route.typed_per_filter_config.get(KEY).expect("set")).expect("of this type");
    assert_eq!((options.retry_on_timeout, options.retry_with_idempotency_key), (Some(true), Some(true)));
    assert_eq!(options.priority_class, Some(PriorityClass::Critical.into()));
    let none = first_route(with_routes("- { cluster: main, retries: 0 }"));
    assert_eq!(value(action(&none).retry_policy.clone().expect("set").num_retries), Some(0));
}
