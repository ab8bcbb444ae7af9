//! Balancing and resilience: every field reaches the plan, unset is the crate's default, and what shard cannot do is
//! refused by name.

use std::time::Duration;

use control_api::envoy::cluster::circuit_breakers::{Thresholds, thresholds::RetryBudget};
use control_api::envoy::cluster::cluster::common_lb_config::ConsistentHashingLbConfig;
use control_api::envoy::cluster::cluster::{
    LbConfig, LbPolicy, LeastRequestLbConfig, MaglevLbConfig, RingHashLbConfig, SlowStartConfig,
};
use control_api::envoy::cluster::{CircuitBreakers, Cluster, OutlierDetection};
use control_api::envoy::core::health_check::{HealthChecker, HttpHealthCheck};
use control_api::envoy::core::{HealthCheck, Metadata, RuntimeDouble};
use control_api::envoy::google::UInt64Value;
use control_api::envoy::route::route_action::HashPolicy;
use control_api::envoy::route::route_action::hash_policy::{
    ConnectionProperties, Cookie, PolicySpecifier, QueryParameter,
};
use control_api::envoy::route::{HedgePolicy, RetryPolicy, RouteAction};
use control_api::envoy::types::{Int64Range, Percent};
use control_api::shard::v1;
use control_api::{Resources, to_any};
use http_balance::ClusterRules;
use http_balance::breaker::BreakerRules;
use http_balance::check::{CheckKind, CheckRules};
use http_balance::endpoint::Health;
use http_balance::ewma::EwmaRules;
use http_balance::gradient::GradientRules;
use http_balance::outlier::{LatencyRules, Mode, OutlierRules, SuccessRateRules, TinyCluster};
use http_balance::plan::{LoadBound, Policy, Standing};
use http_balance::retry::{OnTimeout, RetryRules};
use http_balance::shed::{Class, ShedRules};
use http_balance::slow_start::SlowStart;

use super::super::{check, compile_for};
use super::{compiled, edit_action, edit_route, endpoint, number, refusal, seconds, small, switch};
use crate::snapshot::model::{Action, HashKey, IdempotencyKey, UpstreamProtocol};
use crate::snapshot::{Host, StatRegistry};

fn with(edit: impl FnOnce(&mut Cluster)) -> Resources {
    let mut resources = small();
    edit(&mut resources.clusters[0]);
    resources
}

fn rules(edit: impl FnOnce(&mut Cluster)) -> ClusterRules {
    compiled(&with(edit)).clusters.remove(0).plan.rules
}

fn own(options: v1::ClusterOptions) -> impl FnOnce(&mut Cluster) {
    move |c| {
        c.metadata = Some(Metadata {
            typed_filter_metadata: [(v1::KEY.to_owned(), to_any(&options))].into(),
            ..Default::default()
        });
    }
}

fn percent(value: f64) -> Option<Percent> {
    Some(Percent { value })
}

type EditCluster = Box<dyn FnOnce(&mut Cluster)>;

/// Each edit is refused with the words.
fn refused<const N: usize>(cases: [(EditCluster, &str); N]) {
    for (edit, expected) in cases {
        let refusal = refusal(&with(edit));
        assert!(refusal.contains(expected), "{refusal}\nwanted: {expected}");
    }
}

/// What the one route of a set says about retries and keys.
struct Found {
    hash_by: Vec<HashKey>,
    is_split_by_key: bool,
    retry: Option<RetryRules>,
    class: Class,
    idempotency_key: IdempotencyKey,
    hedge_after: Option<Duration>,
}

fn forward(resources: &Resources) -> Found {
    let snapshot = compiled(resources);
    let route = snapshot.listeners[0].routes.routes().next().expect("one route");
    let Action::Forward(forward) = &route.action else { panic!("forwards") };
    Found {
        hash_by: forward.hash_by.clone(),
        is_split_by_key: forward.split.hash_by.is_some(),
        retry: forward.retry,
        class: forward.class,
        idempotency_key: forward.idempotency_key,
        hedge_after: forward.hedge_after,
    }
}

#[test]
fn unset_is_the_default_of_the_crate() {
    assert_eq!(rules(|_| {}), ClusterRules::default());
    // Named policies and switched-on options without a value hold them, too.
    let named = rules(own(v1::ClusterOptions {
        balance: v1::Balance::PeakEwma.into(),
        adaptive_concurrency: Some(v1::AdaptiveConcurrency::default()),
        breaker: Some(v1::Breaker::default()),
        shed: Some(v1::Shed::default()),
        outlier: Some(v1::OutlierOptions {
            latency: Some(v1::LatencyOutlier::default()),
            ..Default::default()
        }),
        ..Default::default()
    }));
    assert_eq!(named.policy, Policy::PeakEwma(EwmaRules::default()));
    assert_eq!(named.admission.gradient, Some(GradientRules::default()));
    assert_eq!(named.admission.breaker, Some(BreakerRules::default()));
    assert_eq!(named.admission.shed, Some(ShedRules::default()));
    assert_eq!(named.outlier.and_then(|outlier| outlier.latency), Some(LatencyRules::default()));
    let slow = SlowStartConfig::default();
    let config = LeastRequestLbConfig { slow_start_config: Some(slow), ..Default::default() };
    let least = rules(|c| c.lb_config = Some(LbConfig::LeastRequestLbConfig(config)));
    assert_eq!(least.slow_start, Some(SlowStart::default()));
}

#[test]
fn policies_and_their_settings_arrive() {
    let by = |policy: LbPolicy| rules(|c| c.lb_policy = policy.into()).policy;
    assert_eq!(by(LbPolicy::RoundRobin), Policy::RoundRobin);
    assert_eq!(by(LbPolicy::Random), Policy::Random);
    let nodes = http_balance::ring::VIRTUAL_NODES_DEFAULT;
    assert_eq!(by(LbPolicy::RingHash), Policy::RingHash { virtual_nodes: nodes, bound: None });
    assert_eq!(
        by(LbPolicy::Maglev),
        Policy::Maglev { rows: http_balance::maglev::ROWS_DEFAULT, bound: None }
    );
    let least = rules(own(v1::ClusterOptions {
        balance: v1::Balance::LeastConnections.into(),
        ..Default::default()
    }));
    assert_eq!(least.policy, Policy::LeastConnections);
    let ewma = v1::PeakEwma { tau: seconds(3), failure_penalty: seconds(2) };
    let ewma = rules(own(v1::ClusterOptions {
        balance: v1::Balance::PeakEwma.into(),
        peak_ewma: Some(ewma),
        ..Default::default()
    }));
    let wanted = EwmaRules { tau: Duration::from_secs(3), failure_penalty: Duration::from_secs(2) };
    assert_eq!(ewma.policy, Policy::PeakEwma(wanted));
    let bounded = |c: &mut Cluster| {
        let hashing = ConsistentHashingLbConfig { hash_balance_factor: number(125), ..Default::default() };
        c.common_lb_config.get_or_insert_default().consistent_hashing_lb_config = Some(hashing);
    };
    let ring = rules(|c| {
        own(v1::ClusterOptions { ring_virtual_nodes: Some(300), ..Default::default() })(c);
        c.lb_policy = LbPolicy::RingHash.into();
        bounded(c);
    });
    assert_eq!(ring.policy, Policy::RingHash { virtual_nodes: 300, bound: Some(LoadBound(125)) });
    let maglev = rules(|c| {
        c.lb_policy = LbPolicy::Maglev.into();
        c.lb_config =
            Some(LbConfig::MaglevLbConfig(MaglevLbConfig { table_size: Some(UInt64Value { value: 101 }) }));
        bounded(c);
    });
    assert_eq!(maglev.policy, Policy::Maglev { rows: 101, bound: Some(LoadBound(125)) });
}

#[test]
fn policies_are_refused_by_field() {
    let balance = |balance: v1::Balance| v1::ClusterOptions { balance: balance.into(), ..Default::default() };
    let ring = |c: &mut Cluster| c.lb_policy = LbPolicy::RingHash.into();
    let maglev = |value: u64| {
        Box::new(move |c: &mut Cluster| {
            c.lb_policy = LbPolicy::Maglev.into();
            c.lb_config =
                Some(LbConfig::MaglevLbConfig(MaglevLbConfig { table_size: Some(UInt64Value { value }) }));
        })
    };
    refused([
        (
            Box::new(|c| c.lb_policy = LbPolicy::ClusterProvided.into()),
            "lb_policy is not supported as CLUSTER_PROVIDED",
        ),
        (Box::new(|c| c.lb_policy = 4), "lb_policy has the value 4, which is not supported"),
        (
            Box::new(|c| c.load_balancing_policy = Some(Default::default())),
            "load_balancing_policy is not supported",
        ),
        (Box::new(|c| c.lb_subset_config = Some(Default::default())), "lb_subset_config is not supported"),
        (
            Box::new(|c| c.lb_config = Some(LbConfig::RingHashLbConfig(RingHashLbConfig::default()))),
            "ring_hash_lb_config is not supported with the lb_policy LEAST_REQUEST",
        ),
        (
            Box::new(move |c| {
                ring(c);
                let config = RingHashLbConfig { hash_function: 1, ..Default::default() };
                c.lb_config = Some(LbConfig::RingHashLbConfig(config));
            }),
            "ring_hash_lb_config.hash_function is not supported",
        ),
        (
            Box::new(|c| {
                let config = LeastRequestLbConfig { choice_count: number(3), ..Default::default() };
                c.lb_config = Some(LbConfig::LeastRequestLbConfig(config));
            }),
            "least_request_lb_config.choice_count is not supported: shard always compares 2",
        ),
        (maglev(100), "maglev_lb_config.table_size is 100, it must lie between 101 and"),
        (maglev(65_536), "maglev_lb_config.table_size is refused: 65536 rows; give a prime"),
        (
            Box::new(move |c| {
                own(balance(v1::Balance::PeakEwma))(c);
                ring(c);
            }),
            "[\"shard.v1\"].balance needs the lb_policy LEAST_REQUEST",
        ),
        (
            Box::new(own(v1::ClusterOptions {
                peak_ewma: Some(v1::PeakEwma::default()),
                ..Default::default()
            })),
            "peak_ewma needs balance PEAK_EWMA",
        ),
        (
            Box::new(own(v1::ClusterOptions { ring_virtual_nodes: Some(256), ..Default::default() })),
            "ring_virtual_nodes needs the lb_policy RING_HASH",
        ),
        (
            Box::new(own(v1::ClusterOptions {
                slow_start: Some(v1::SlowStart::default()),
                ..Default::default()
            })),
            "slow_start is not supported with this lb_policy: use the slow_start_config",
        ),
    ]);
}

#[test]
fn slow_start_and_panic_arrive_or_are_refused() {
    let config = |slow_start_window, aggression: f64, floor: f64| {
        let aggression = RuntimeDouble { default_value: aggression, runtime_key: "any".to_owned() };
        let slow = SlowStartConfig {
            slow_start_window,
            aggression: Some(aggression),
            min_weight_percent: percent(floor),
        };
        let least = LeastRequestLbConfig { slow_start_config: Some(slow), ..Default::default() };
        Some(LbConfig::LeastRequestLbConfig(least))
    };
    let slow = rules(|c| c.lb_config = config(seconds(30), 2.0, 20.0)).slow_start;
    assert_eq!(slow, Some(SlowStart::new(Duration::from_secs(30), 2.0, 200)));
    assert_eq!(
        rules(|c| c.lb_config = config(seconds(0), 1.0, 10.0)).slow_start,
        None,
        "a window of 0 is off"
    );
    let random = rules(|c| {
        let slow = v1::SlowStart { window: seconds(30), aggression: Some(0.5), floor_percent: Some(1) };
        own(v1::ClusterOptions { slow_start: Some(slow), ..Default::default() })(c);
        c.lb_policy = LbPolicy::Random.into();
    });
    assert_eq!(random.slow_start, Some(SlowStart::new(Duration::from_secs(30), 0.5, 10)));
    let panic = |value: f64| {
        move |c: &mut Cluster| {
            c.common_lb_config.get_or_insert_default().healthy_panic_threshold = percent(value)
        }
    };
    assert_eq!((rules(panic(0.0)).panic_percent, rules(panic(70.0)).panic_percent), (0, 70));
    let at = "least_request_lb_config.slow_start_config";
    for (edit, expected) in [
        (config(seconds(3_601), 1.0, 10.0), format!("{at}.slow_start_window is 3601s")),
        (config(seconds(1), 0.0, 10.0), format!("{at}.aggression is 0.0, it must lie between 0.1 and 10.0")),
        (
            config(seconds(1), 1.0, 0.0),
            format!("{at}.min_weight_percent is 0, it must lie between 1 and 100"),
        ),
        (
            config(seconds(1), 1.0, 12.5),
            format!("{at}.min_weight_percent is 12.5, it must be a whole number"),
        ),
    ] {
        let refusal = refusal(&with(|c| c.lb_config = edit));
        assert!(refusal.contains(&expected), "{refusal}");
    }
    refused([
        (
            Box::new(panic(101.0)),
            "common_lb_config.healthy_panic_threshold is 101, it must be a whole number from 0",
        ),
        (
            Box::new(|c| {
                let hashing = ConsistentHashingLbConfig::default();
                c.common_lb_config.get_or_insert_default().consistent_hashing_lb_config = Some(hashing);
            }),
            "consistent_hashing_lb_config needs the lb_policy RING_HASH or MAGLEV",
        ),
    ]);
}

fn outlier(detection: OutlierDetection) -> Option<OutlierRules> {
    rules(|c| c.outlier_detection = Some(detection)).outlier
}

#[test]
fn an_empty_outlier_detection_enforces_what_envoy_would() {
    let wanted = OutlierRules {
        consecutive_gateway: None,
        success_rate: Some(SuccessRateRules::default()),
        ..OutlierRules::default()
    };
    assert_eq!(outlier(OutlierDetection::default()), Some(wanted));
    let never = OutlierDetection {
        enforcing_consecutive_5xx: number(0),
        enforcing_consecutive_local_origin_failure: number(0),
        enforcing_success_rate: number(0),
        ..Default::default()
    };
    assert_eq!(outlier(never), None, "nothing is a cause");
}

#[test]
fn outlier_detection_arrives() {
    let found = rules(|c| {
        let latency =
            v1::LatencyOutlier { median_percent: Some(400), endpoints_min: Some(6), requests_min: Some(30) };
        let beside = v1::OutlierOptions { log_only: true, endpoints_min: Some(3), latency: Some(latency) };
        own(v1::ClusterOptions { outlier: Some(beside), ..Default::default() })(c);
        c.outlier_detection = Some(OutlierDetection {
            consecutive_5xx: number(7),
            consecutive_gateway_failure: number(8),
            enforcing_consecutive_gateway_failure: number(100),
            split_external_local_origin_errors: true,
            consecutive_local_origin_failure: number(9),
            success_rate_stdev_factor: number(1_500),
            success_rate_minimum_hosts: number(4),
            success_rate_request_volume: number(20),
            interval: seconds(20),
            base_ejection_time: seconds(11),
            max_ejection_time: seconds(60),
            max_ejection_percent: number(30),
            ..Default::default()
        });
    });
    let wanted = OutlierRules {
        consecutive_5xx: Some(7),
        consecutive_gateway: Some(8),
        consecutive_local: Some(9),
        base_ejection: Duration::from_secs(11),
        ejection_max: Duration::from_secs(60),
        percent_max: 30,
        tiny: TinyCluster::AtLeastOne { endpoints_min: 3 },
        mode: Mode::LogOnly,
        success_rate: Some(SuccessRateRules {
            deviations_permille: 1_500,
            endpoints_min: 4,
            requests_min: 20,
        }),
        latency: Some(LatencyRules { median_percent: 400, endpoints_min: 6, requests_min: 30 }),
        interval: Duration::from_secs(20),
    };
    assert_eq!(found.outlier, Some(wanted));
    let share = OutlierDetection { always_eject_one_host: switch(false), ..Default::default() };
    assert_eq!(outlier(share).map(|rules| rules.tiny), Some(TinyCluster::ShareOnly));
}

#[test]
fn outlier_detection_is_refused_by_field() {
    let given = |detection: OutlierDetection| {
        Box::new(move |c: &mut Cluster| c.outlier_detection = Some(detection)) as EditCluster
    };
    let unset = OutlierDetection::default;
    refused([
        (
            given(OutlierDetection { enforcing_consecutive_5xx: number(50), ..unset() }),
            "outlier_detection.enforcing_consecutive_5xx is 50, it must be 0 or 100",
        ),
        (
            given(OutlierDetection { consecutive_5xx: number(0), ..unset() }),
            "outlier_detection.consecutive_5xx is 0, it must lie between 1 and 1000",
        ),
        (
            given(OutlierDetection { base_ejection_time: seconds(400), ..unset() }),
            "outlier_detection.max_ejection_time is below base_ejection_time, 400s",
        ),
        (
            given(OutlierDetection { failure_percentage_threshold: number(85), ..unset() }),
            "outlier_detection.failure_percentage_threshold is not supported",
        ),
        (
            given(OutlierDetection { max_ejection_time_jitter: seconds(1), ..unset() }),
            "outlier_detection.max_ejection_time_jitter is not supported",
        ),
        (
            Box::new(|c| {
                c.outlier_detection =
                    Some(OutlierDetection { always_eject_one_host: switch(false), ..Default::default() });
                let beside = v1::OutlierOptions { endpoints_min: Some(3), ..Default::default() };
                own(v1::ClusterOptions { outlier: Some(beside), ..Default::default() })(c);
            }),
            "outlier.endpoints_min needs outlier_detection.always_eject_one_host",
        ),
    ]);
}

fn breakers(edit: impl FnOnce(&mut Thresholds)) -> impl FnOnce(&mut Cluster) {
    let mut thresholds = Thresholds::default();
    edit(&mut thresholds);
    move |c| {
        c.circuit_breakers = Some(CircuitBreakers { thresholds: vec![thresholds], ..Default::default() });
    }
}

#[test]
fn caps_are_shared_by_the_cores() {
    let resources = with(breakers(|t| t.max_requests = number(10)));
    for (cores, part) in [(0, 10), (1, 10), (4, 3), (16, 1)] {
        let host = Host { cores, ..Host::default() };
        let snapshot = compile_for(&resources, &host, &mut StatRegistry::new()).expect("a good set");
        assert_eq!(snapshot.clusters[0].plan.rules.admission.in_flight_max, Some(part), "{cores} cores");
    }
}

#[test]
fn budgets_breakers_and_classes_arrive() {
    let found = rules(|c| {
        own(v1::ClusterOptions {
            retry_floor_per_second: Some(3),
            adaptive_concurrency: Some(v1::AdaptiveConcurrency {
                in_flight_min: Some(5),
                in_flight_max: Some(50),
                tolerance_percent: Some(200),
            }),
            breaker: Some(v1::Breaker {
                failure_percent: Some(40),
                requests_min: Some(50),
                window: seconds(5),
                open: seconds(20),
                probe_percent: Some(10),
                probes: Some(3),
            }),
            shed: Some(v1::Shed { sheddable_from: Some(700), ..Default::default() }),
            ..Default::default()
        })(c);
        breakers(|t| {
            t.retry_budget = Some(RetryBudget { budget_percent: percent(20.0), ..Default::default() });
        })(c);
    });
    assert_eq!((found.retry.budget.percent, found.retry.budget.floor_per_second), (20, 3));
    let gradient = GradientRules { limit_min: 5, limit_max: 50, tolerance_percent: 200 };
    assert_eq!(found.admission.gradient, Some(gradient));
    let breaker = BreakerRules {
        failure_percent: 40,
        requests_min: 50,
        window: Duration::from_secs(5),
        open: Duration::from_secs(20),
        probe_percent: 10,
        probes: 3,
    };
    assert_eq!(found.admission.breaker, Some(breaker));
    assert_eq!(found.admission.shed, Some(ShedRules { starts: [700, 800, 860, 940] }));
}

#[test]
fn caps_and_budgets_are_refused_by_field() {
    let at = "circuit_breakers.thresholds[0]";
    for (edit, expected) in [
        (Thresholds { max_requests: number(0), ..Default::default() }, ".max_requests is 0"),
        (
            Thresholds { max_connections: number(9), ..Default::default() },
            ".max_connections is not supported",
        ),
        (Thresholds { max_retries: number(3), ..Default::default() }, ".max_retries is not supported"),
        (Thresholds { priority: 1, ..Default::default() }, ".priority is not supported"),
        (
            Thresholds {
                retry_budget: Some(RetryBudget { min_retry_concurrency: number(3), ..Default::default() }),
                ..Default::default()
            },
            ".retry_budget.min_retry_concurrency is not supported",
        ),
    ] {
        let refusal = refusal(&with(breakers(|t| *t = edit)));
        assert!(refusal.contains(&format!("{at}{expected}")), "{refusal}");
    }
    let options = v1::ClusterOptions::default;
    let adaptive =
        v1::AdaptiveConcurrency { in_flight_min: Some(9), in_flight_max: Some(8), ..Default::default() };
    let shed = v1::Shed { free_from: Some(900), ..Default::default() };
    let breaker = v1::Breaker { failure_percent: Some(100), ..Default::default() };
    refused([
        (
            Box::new(|c| {
                let thresholds = vec![Thresholds::default(); 2];
                c.circuit_breakers = Some(CircuitBreakers { thresholds, ..Default::default() });
            }),
            "circuit_breakers.thresholds has several entries",
        ),
        (
            Box::new(|c| {
                let per_host_thresholds = vec![Thresholds::default()];
                c.circuit_breakers = Some(CircuitBreakers { per_host_thresholds, ..Default::default() });
            }),
            "circuit_breakers.per_host_thresholds is not supported",
        ),
        (
            Box::new(own(v1::ClusterOptions { adaptive_concurrency: Some(adaptive), ..options() })),
            "adaptive_concurrency.in_flight_max is 8, below in_flight_min, 9",
        ),
        (
            Box::new(own(v1::ClusterOptions { shed: Some(shed), ..options() })),
            "shed has [750, 900, 860, 940], it must rise",
        ),
        (
            Box::new(own(v1::ClusterOptions { breaker: Some(breaker), ..options() })),
            "breaker.failure_percent is 100, it must lie between 1 and 99",
        ),
    ]);
}

#[test]
fn endpoints_have_a_priority_a_standing_and_health() {
    let snapshot = compiled(&with(|c| {
        let assignment = c.load_assignment.as_mut().expect("static");
        let mut second = assignment.endpoints[0].clone();
        second.priority = 1;
        second.lb_endpoints = (0..5)
            .map(|status| {
                let mut made = endpoint("10.0.0.2", 80 + u32::try_from(status).expect("small"));
                made.health_status = status;
                made
            })
            .collect();
        assignment.endpoints.push(second);
    }));
    let specs = snapshot.clusters[0].plan.endpoints();
    let shown: Vec<(u8, Standing, Health)> =
        specs.iter().map(|s| (s.priority, s.standing, s.health)).collect();
    let serving = |health| (1, Standing::Serving, health);
    assert_eq!(
        shown,
        [
            (0, Standing::Serving, Health::Unchecked),
            serving(Health::Unchecked),
            serving(Health::Healthy),
            serving(Health::Unhealthy),
            (1, Standing::Draining, Health::Unchecked),
            serving(Health::Unhealthy),
        ]
    );
    let level = |priority: u32| {
        with(|c| c.load_assignment.as_mut().expect("static").endpoints[0].priority = priority)
    };
    let gap = refusal(&level(1));
    assert!(gap.contains("load_assignment has no endpoint of the priority 0"), "{gap}");
    let high = refusal(&level(8));
    assert!(high.contains("endpoints[0].priority is 8, it must lie between 0 and 7"), "{high}");
}

#[test]
fn checks_that_cannot_be_made_are_refused() {
    let rules = |kind| CheckRules::new(kind);
    let http = rules(CheckKind::Http { path: "/".to_owned(), host: None, statuses: vec![200..=200] });
    let tcp = rules(CheckKind::Tcp { send: b"PING".to_vec(), expect: Vec::new() });
    let grpc = rules(CheckKind::Grpc { service: String::new() });
    for check in [&http, &tcp, &grpc] {
        assert_eq!(check::is_fit(check, UpstreamProtocol::Http2), Ok(()));
    }
    for check in [&http, &tcp] {
        assert_eq!(check::is_fit(check, UpstreamProtocol::Http1), Ok(()));
    }
    assert!(check::is_fit(&grpc, UpstreamProtocol::Http1).is_err());
}

#[test]
fn checks_are_read_or_refused_by_field() {
    let check = |edit: &dyn Fn(&mut HealthCheck, &mut HttpHealthCheck)| {
        let mut http = HttpHealthCheck { path: "/up".to_owned(), ..Default::default() };
        let mut made = HealthCheck { interval_jitter_percent: 10, ..Default::default() };
        edit(&mut made, &mut http);
        made.health_checker.get_or_insert(HealthChecker::HttpHealthCheck(http));
        check::rules(vec![made])
    };
    let kind = CheckKind::Http { path: "/up".to_owned(), host: None, statuses: vec![200..=200] };
    assert_eq!(check(&|_, _| {}), Ok(Some(CheckRules::new(kind))), "unset is the crate's default");
    let found = check(&|made, http| {
        (made.interval, made.timeout) = (seconds(1), seconds(3));
        (made.unhealthy_threshold, made.healthy_threshold) = (number(7), number(8));
        http.host = "shop.internal".to_owned();
        http.expected_statuses = vec![Int64Range { start: 200, end: 300 }];
    });
    let kind = CheckKind::Http {
        path: "/up".to_owned(),
        host: Some("shop.internal".to_owned()),
        statuses: vec![200..=299],
    };
    let mut wanted = CheckRules::new(kind);
    (wanted.interval, wanted.timeout) = (Duration::from_secs(1), Duration::from_secs(3));
    (wanted.unhealthy_threshold, wanted.healthy_threshold) = (7, 8);
    assert_eq!(found, Ok(Some(wanted)));
    type Edit = fn(&mut HealthCheck, &mut HttpHealthCheck);
    let cases: [(Edit, &str); 7] = [
        (|_, http| http.path = "up".to_owned(), "http_health_check.path is \"up\""),
        (|_, http| http.host = "a b".to_owned(), "http_health_check.host is \"a b\""),
        (|_, http| http.method = 2, "http_health_check.method is not supported"),
        (
            |_, http| http.expected_statuses = vec![Int64Range { start: 300, end: 200 }],
            "expected_statuses[0] is 300 to 200, which is empty",
        ),
        (|made, _| made.interval = seconds(0), "health_checks[0].interval is 0ns"),
        (|made, _| made.alt_port = number(1), "health_checks[0].alt_port is not supported"),
        (
            |made, _| made.health_checker = Some(HealthChecker::CustomHealthCheck(Default::default())),
            "custom_health_check is not supported",
        ),
    ];
    for (edit, expected) in cases {
        let fault = check(&edit).expect_err(expected).to_string();
        assert!(fault.contains(expected), "{fault}");
    }
}

fn routed(edit: impl FnOnce(&mut RouteAction)) -> Resources {
    let mut resources = small();
    edit_action(&mut resources, edit);
    resources
}

fn keyed(specifier: PolicySpecifier, terminal: bool) -> HashPolicy {
    HashPolicy { policy_specifier: Some(specifier), terminal }
}

#[test]
fn keys_for_hashing_arrive_in_order() {
    let cookie = || PolicySpecifier::Cookie(Cookie { name: "c".to_owned(), ..Default::default() });
    let query = || PolicySpecifier::QueryParameter(QueryParameter { name: "q".to_owned() });
    let client = |source_ip| PolicySpecifier::ConnectionProperties(ConnectionProperties { source_ip });
    let policies = vec![keyed(cookie(), true), keyed(query(), true), keyed(client(true), false)];
    let forward = forward(&routed(|a| a.hash_policy = policies));
    let wanted = [HashKey::Cookie("c".to_owned()), HashKey::Query("q".to_owned()), HashKey::ClientAddress];
    assert_eq!(forward.hash_by, wanted);
    assert!(!forward.is_split_by_key);
    for (policies, expected) in [
        (vec![keyed(cookie(), false), keyed(query(), false)], "hash_policy[0].terminal must be true"),
        (vec![keyed(client(false), false)], "hash_policy[0].connection_properties.source_ip must be true"),
        (
            vec![keyed(PolicySpecifier::QueryParameter(QueryParameter { name: "a&b".to_owned() }), false)],
            "hash_policy[0].query_parameter.name is \"a&b\"",
        ),
        (
            vec![keyed(
                PolicySpecifier::Cookie(Cookie {
                    name: "c".to_owned(),
                    ttl: seconds(5),
                    ..Default::default()
                }),
                false,
            )],
            "hash_policy[0].cookie.ttl is not supported",
        ),
    ] {
        let refusal = refusal(&routed(|a| a.hash_policy = policies));
        assert!(refusal.contains(expected), "{refusal}");
    }
}

fn retrying(edit: impl FnOnce(&mut RetryPolicy)) -> Resources {
    let mut policy =
        RetryPolicy { retry_on: "reset, connect-failure,refused-stream".to_owned(), ..Default::default() };
    edit(&mut policy);
    routed(|a| a.retry_policy = Some(policy))
}

#[test]
fn retries_and_classes_of_routes_arrive() {
    assert_eq!(forward(&small()).retry, None, "the cluster's rules hold");
    assert_eq!(forward(&retrying(|_| {})).retry, Some(RetryRules::default()));
    let mut resources = retrying(|policy| {
        policy.num_retries = number(3);
        policy.per_try_timeout = seconds(2);
    });
    let options = v1::RouteOptions {
        priority_class: Some(v1::PriorityClass::Free.into()),
        retry_on_timeout: Some(true),
        retry_with_idempotency_key: Some(true),
        hedge_after: seconds(1),
        ..Default::default()
    };
    edit_route(&mut resources, |route| {
        route.typed_per_filter_config.insert(v1::KEY.to_owned(), to_any(&options));
    });
    let found = forward(&resources);
    let wanted = RetryRules {
        retries_max: 3,
        per_try_timeout: Some(Duration::from_secs(2)),
        on_timeout: OnTimeout::Retry,
        ..RetryRules::default()
    };
    assert_eq!((found.retry, found.class), (Some(wanted), Class::Free));
    assert_eq!(found.idempotency_key, IdempotencyKey::Honoured);
    assert_eq!(found.hedge_after, Some(Duration::from_secs(1)));
    edit_action(&mut resources, |a| a.retry_policy = None);
    let refusal = refusal(&resources);
    assert!(refusal.contains("per_try_timeout is required by retry_on_timeout"), "{refusal}");
}

#[test]
fn hedges_have_bounds_and_zero_is_off() {
    let with_hedge = |after| {
        let mut resources = small();
        let options = v1::RouteOptions { hedge_after: after, ..Default::default() };
        edit_route(&mut resources, |route| {
            route.typed_per_filter_config.insert(v1::KEY.to_owned(), to_any(&options));
        });
        resources
    };
    assert_eq!(forward(&with_hedge(seconds(0))).hedge_after, None);
    assert_eq!(forward(&with_hedge(None)).hedge_after, None);
    let refusal_of_long = refusal(&with_hedge(seconds(11)));
    assert!(refusal_of_long.contains("hedge_after is 11s"), "{refusal_of_long}");
    let percent = |hedge_percent| own(v1::ClusterOptions { hedge_percent, ..Default::default() });
    assert_eq!(rules(percent(Some(7))).hedges.percent, 7);
    refused([(Box::new(percent(Some(51))), "hedge_percent is 51, it must lie between 1 and 50")]);
}

#[test]
fn retries_and_hedges_are_refused_by_field() {
    type Edit = fn(&mut RetryPolicy);
    let cases: [(Edit, &str); 6] = [
        (
            |p| p.retry_on = "5xx".to_owned(),
            "retry_policy.retry_on has the cause \"5xx\", which is not supported",
        ),
        (|p| p.retry_on = "reset".to_owned(), "retry_policy.retry_on lacks \"connect-failure\""),
        (|p| p.retry_on = String::new(), "retry_policy.retry_on lacks"),
        (|p| p.num_retries = number(6), "retry_policy.num_retries is 6, it must lie between 0 and 5"),
        (|p| p.per_try_timeout = seconds(31), "retry_policy.per_try_timeout is 31s"),
        (|p| p.retriable_status_codes = vec![503], "retry_policy.retriable_status_codes is not supported"),
    ];
    for (edit, expected) in cases {
        let refusal = refusal(&retrying(edit));
        assert!(refusal.contains(expected), "{refusal}");
    }
    let hedging = routed(|a| a.hedge_policy = Some(HedgePolicy::default()));
    assert!(refusal(&hedging).contains("route.hedge_policy is not supported"));
}
