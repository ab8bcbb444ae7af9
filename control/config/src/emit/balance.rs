//! Balancing and resilience of a cluster: which field of Envoy's, or which option where it has none, carries which key.
//! What an author does not write is not written either, so that the proxy's defaults hold.

use control_api::defaults::balance::{EJECT_ONE_ENDPOINTS, EJECTION, EJECTION_MAX, SUBSET_ENDPOINTS};
use control_api::envoy::cluster::circuit_breakers::{Thresholds, thresholds::RetryBudget};
use control_api::envoy::cluster::cluster::common_lb_config::ConsistentHashingLbConfig;
use control_api::envoy::cluster::cluster::{
    CommonLbConfig, LbConfig, LbPolicy, LeastRequestLbConfig, RoundRobinLbConfig, SlowStartConfig,
};
use control_api::envoy::cluster::{CircuitBreakers, Cluster, OutlierDetection};
use control_api::envoy::core::RuntimeDouble;
use control_api::envoy::google::BoolValue;
use control_api::envoy::route::route_action::hash_policy::{
    ConnectionProperties, Cookie, Header, PolicySpecifier, QueryParameter,
};
use control_api::envoy::types::Percent;
use control_api::shard::v1::{
    AdaptiveConcurrency, Balance, Breaker, ClusterOptions, LatencyOutlier, OutlierOptions, PeakEwma, Shed,
    SlowStart,
};

use super::{Emitter, count, span};
use crate::yaml::{Node, Value};

/// The keys of `balance` that belong to some policies only.
const OWN_KEYS: [(&str, &[&str]); 5] = [
    ("hash_by", &["ring_hash", "maglev"]),
    ("load_bound_percent", &["ring_hash", "maglev"]),
    ("virtual_nodes", &["ring_hash"]),
    ("tau", &["peak_ewma"]),
    ("failure_penalty", &["peak_ewma"]),
];

impl Emitter<'_> {
    /// Puts the rules of a cluster into its resource and options.
    pub(super) fn balance(&mut self, node: &Node, cluster: &mut Cluster, options: &mut ClusterOptions) {
        self.policy(node, cluster, options);
        slow_start(node, cluster, options);
        cluster.outlier_detection = self.outlier(node, options);
        if let Some(panic) = node.int("panic_percent") {
            common(cluster).healthy_panic_threshold = percent(Some(panic));
        }
        cluster.circuit_breakers = circuit_breakers(node);
        let budget = node.get("retry_budget");
        options.hedge_percent = node.int("hedge_percent");
        options.retry_floor_per_second = budget.and_then(|budget| budget.int("floor_per_second"));
        options.adaptive_concurrency = self.adaptive(node);
        options.breaker = switched(node, "breaker").map(|breaker| Breaker {
            failure_percent: breaker.int("failure_percent"),
            requests_min: breaker.int("requests_min"),
            window: span(breaker.duration("window")),
            open: span(breaker.duration("open")),
            probe_percent: breaker.int("probe_percent"),
            probes: breaker.int("probes"),
        });
        options.shed = self.shed(node);
        cluster.health_checks.extend(self.health_check(node));
    }

    fn policy(&mut self, node: &Node, cluster: &mut Cluster, options: &mut ClusterOptions) {
        let word = policy_word(node);
        if let Some(balance) = node.get("balance") {
            for (key, owners) in OWN_KEYS {
                if let (Some(at), false) = (balance.get(key), owners.contains(&word)) {
                    let owners = owners.join("` or `");
                    let fix = format!("delete it, or write `policy: {owners}`");
                    self.error(at, format!("`{key}` means nothing to `{word}`"), fix);
                }
            }
            if let Some(bound) = balance.int("load_bound_percent") {
                common(cluster).consistent_hashing_lb_config = Some(ConsistentHashingLbConfig {
                    hash_balance_factor: count(Some(bound)),
                    ..Default::default()
                });
            }
            options.ring_virtual_nodes = balance.int("virtual_nodes");
            let ewma = PeakEwma {
                tau: span(balance.duration("tau")),
                failure_penalty: span(balance.duration("failure_penalty")),
            };
            options.peak_ewma = (ewma != PeakEwma::default()).then_some(ewma);
        }
        let (policy, extended) = match word {
            "round_robin" => (LbPolicy::RoundRobin, Balance::ByLbPolicy),
            "random" => (LbPolicy::Random, Balance::ByLbPolicy),
            "ring_hash" => (LbPolicy::RingHash, Balance::ByLbPolicy),
            "maglev" => (LbPolicy::Maglev, Balance::ByLbPolicy),
            "peak_ewma" => (LbPolicy::LeastRequest, Balance::PeakEwma),
            "least_connections" => (LbPolicy::LeastRequest, Balance::LeastConnections),
            _ => (LbPolicy::LeastRequest, Balance::ByLbPolicy),
        };
        cluster.lb_policy = policy.into();
        options.balance = extended.into();
    }

    /// Least endpoints of one core. Not for what gives a key or session one endpoint, whichever core asks.
    pub(super) fn subset(&mut self, node: &Node, has_names: bool) -> Option<u32> {
        let subset = node.get("subset")?;
        let size_min = switched(node, "subset")?.int("endpoints_min").unwrap_or(SUBSET_ENDPOINTS.default);
        let policy = policy_word(node);
        if matches!(policy, "ring_hash" | "maglev") {
            let message =
                format!("`subset` and `{policy}` exclude each other: a key belongs to one endpoint");
            self.error(subset, message, "keep one of the two");
        }
        if node.get("sticky").is_some() {
            let message = "`subset` and `sticky` exclude each other: a session belongs to one endpoint";
            self.error(subset, message, "keep one of the two");
        }
        if has_names {
            self.error(subset, "`subset` cannot go over endpoints given by name", "give addresses");
        }
        Some(size_min)
    }

    fn outlier(&mut self, node: &Node, options: &mut ClusterOptions) -> Option<OutlierDetection> {
        let outlier = node.get("outlier")?;
        if node.flag("outlier") == Some(false) {
            let none = count(Some(0));
            return Some(OutlierDetection {
                enforcing_consecutive_5xx: none,
                enforcing_consecutive_gateway_failure: none,
                enforcing_consecutive_local_origin_failure: none,
                enforcing_success_rate: none,
                ..Default::default()
            });
        }
        if !matches!(outlier.value, Value::Map(_)) {
            return None;
        }
        let (base, longest) = (outlier.duration("ejection"), outlier.duration("ejection_max"));
        if base.unwrap_or(EJECTION.default) > longest.unwrap_or(EJECTION_MAX.default) {
            let at = outlier.get("ejection_max").or(outlier.get("ejection")).unwrap_or(outlier);
            self.error(at, "the first time out is above the longest", "raise `ejection_max`");
        }
        let in_a_row = |key| {
            let given = outlier.int(key);
            // Envoy enforces gateway failures only when it is told so; the others are told for likeness.
            (count(given.filter(|n| *n > 0)), count(Some(if given == Some(0) { 0 } else { 100 })))
        };
        let (consecutive_5xx, enforcing_consecutive_5xx) = in_a_row("consecutive_5xx");
        let (gateway, enforcing_gateway) = in_a_row("consecutive_gateway");
        let (local, enforcing_local) = in_a_row("consecutive_local");
        let success_rate = switched(outlier, "success_rate");
        let rate = |key| count(success_rate.as_ref().and_then(|rate| rate.int(key)));
        let endpoints_min = outlier.int("endpoints_min");
        let own = OutlierOptions {
            log_only: outlier.is_on("log_only"),
            endpoints_min: endpoints_min.filter(|n| *n > 0 && *n != EJECT_ONE_ENDPOINTS.default),
            latency: switched(outlier, "latency").map(|latency| LatencyOutlier {
                median_percent: latency.int("median_percent"),
                endpoints_min: latency.int("endpoints_min"),
                requests_min: latency.int("requests_min"),
            }),
        };
        options.outlier = (own != OutlierOptions::default()).then_some(own);
        Some(OutlierDetection {
            consecutive_5xx,
            enforcing_consecutive_5xx,
            consecutive_gateway_failure: gateway,
            enforcing_consecutive_gateway_failure: enforcing_gateway,
            split_external_local_origin_errors: true,
            consecutive_local_origin_failure: local,
            enforcing_consecutive_local_origin_failure: enforcing_local,
            enforcing_success_rate: count(Some(if success_rate.is_some() { 100 } else { 0 })),
            success_rate_stdev_factor: count(
                success_rate.as_ref().and_then(|rate| rate.int("deviation_percent")).map(|n| n * 10),
            ),
            success_rate_minimum_hosts: rate("endpoints_min"),
            success_rate_request_volume: rate("requests_min"),
            interval: span(outlier.duration("interval")),
            base_ejection_time: span(base),
            max_ejection_time: span(longest),
            max_ejection_percent: count(outlier.int("ejected_percent_max")),
            always_eject_one_host: Some(BoolValue { value: endpoints_min != Some(0) }),
            ..Default::default()
        })
    }

    fn adaptive(&mut self, node: &Node) -> Option<AdaptiveConcurrency> {
        use control_api::defaults::balance::{ADAPTIVE_MAX, ADAPTIVE_MIN};
        let adaptive = switched(node, "adaptive")?;
        let (least, most) = (adaptive.int("in_flight_min"), adaptive.int("in_flight_max"));
        if least.unwrap_or(ADAPTIVE_MIN.default) > most.unwrap_or(ADAPTIVE_MAX.default) {
            let at = adaptive.get("in_flight_max").or(adaptive.get("in_flight_min")).unwrap_or(node);
            self.error(at, "the least cap is above the highest", "raise `in_flight_max`");
        }
        let tolerance_percent = adaptive.int("tolerance_percent");
        Some(AdaptiveConcurrency { in_flight_min: least, in_flight_max: most, tolerance_percent })
    }

    fn shed(&mut self, node: &Node) -> Option<Shed> {
        use control_api::defaults::balance::{
            SHED_CRITICAL_FROM, SHED_FREE_FROM, SHED_SHEDDABLE_FROM, SHED_STANDARD_FROM,
        };
        let shed = switched(node, "shed")?;
        let keys = [
            ("sheddable_from", SHED_SHEDDABLE_FROM),
            ("free_from", SHED_FREE_FROM),
            ("standard_from", SHED_STANDARD_FROM),
            ("critical_from", SHED_CRITICAL_FROM),
        ];
        // Percent here, thousandths on the wire.
        let starts = keys.map(|(key, _)| shed.int(key).map(|percent| percent * 10));
        let effective: Vec<u32> =
            starts.iter().zip(keys).map(|(start, (_, bound))| start.unwrap_or(bound.default)).collect();
        if let Some(at) = effective.windows(2).position(|pair| pair[0] >= pair[1]) {
            let (lower, upper) = (keys[at].0, keys[at + 1].0);
            let place = shed.get(upper).or(shed.get(lower)).unwrap_or(node);
            self.error(place, format!("`{upper}` must be above `{lower}`"), "raise it, or lower the other");
        }
        let [sheddable_from, free_from, standard_from, critical_from] = starts;
        Some(Shed { sheddable_from, free_from, standard_from, critical_from })
    }
}

/// The policy of a cluster, in the words of the key table.
pub(super) fn policy_word(node: &Node) -> &str {
    let written = node.word("balance").or_else(|| node.get("balance")?.word("policy"));
    written.unwrap_or("p2c")
}

/// What requests to a cluster are hashed by; `None` when its policy needs no key.
pub(super) fn hash_key(node: &Node) -> Option<PolicySpecifier> {
    if !matches!(policy_word(node), "ring_hash" | "maglev") {
        return None;
    }
    let by = node.get("balance").and_then(|balance| balance.get("hash_by"));
    let word = |key| by.and_then(|by| by.word(key)).map(str::to_owned);
    Some(if let Some(header_name) = word("header") {
        PolicySpecifier::Header(Header { header_name, ..Default::default() })
    } else if let Some(name) = word("cookie") {
        PolicySpecifier::Cookie(Cookie { name, ..Default::default() })
    } else if let Some(name) = word("query") {
        PolicySpecifier::QueryParameter(QueryParameter { name })
    } else {
        PolicySpecifier::ConnectionProperties(ConnectionProperties { source_ip: true })
    })
}

/// The settings of a rule that `true` or a mapping switches on.
pub(super) fn switched(node: &Node, key: &str) -> Option<Node> {
    let rule = node.get(key)?;
    match rule.value {
        Value::Map(_) => Some(rule.clone()),
        _ => node.is_on(key).then(|| Node::empty_map(rule.at, &rule.path)),
    }
}

fn slow_start(node: &Node, cluster: &mut Cluster, options: &mut ClusterOptions) {
    let Some(written) = node.get("slow_start") else { return };
    let is_off = node.flag("slow_start") == Some(false);
    if !is_off && !matches!(written.value, Value::Map(_)) {
        return;
    }
    let window =
        if is_off { span(Some(std::time::Duration::ZERO)) } else { span(written.duration("window")) };
    let (aggression, floor) = (written.number("aggression"), written.int("floor_percent"));
    let config = || SlowStartConfig {
        slow_start_window: window,
        aggression: aggression.map(|default_value| RuntimeDouble {
            default_value,
            // Envoy asks for a key; nothing is looked up by it here.
            runtime_key: "shard.slow_start.aggression".to_owned(),
        }),
        min_weight_percent: percent(floor),
    };
    match LbPolicy::try_from(cluster.lb_policy) {
        Ok(LbPolicy::LeastRequest) => {
            cluster.lb_config = Some(LbConfig::LeastRequestLbConfig(LeastRequestLbConfig {
                slow_start_config: Some(config()),
                ..Default::default()
            }));
        }
        Ok(LbPolicy::RoundRobin) => {
            let slow_start_config = Some(config());
            cluster.lb_config = Some(LbConfig::RoundRobinLbConfig(RoundRobinLbConfig { slow_start_config }));
        }
        _ => options.slow_start = Some(SlowStart { window, aggression, floor_percent: floor }),
    }
}

fn circuit_breakers(node: &Node) -> Option<CircuitBreakers> {
    let budget = node.get("retry_budget").and_then(|budget| budget.int("percent"));
    let thresholds = Thresholds {
        max_requests: count(node.int("in_flight_max")),
        retry_budget: budget
            .map(|share| RetryBudget { budget_percent: percent(Some(share)), ..Default::default() }),
        ..Default::default()
    };
    (thresholds != Thresholds::default())
        .then(|| CircuitBreakers { thresholds: vec![thresholds], ..Default::default() })
}

pub(super) fn common(cluster: &mut Cluster) -> &mut CommonLbConfig {
    cluster.common_lb_config.get_or_insert_default()
}

fn percent(value: Option<u32>) -> Option<Percent> {
    value.map(|value| Percent { value: value.into() })
}
