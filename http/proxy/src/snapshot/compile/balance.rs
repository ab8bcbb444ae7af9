//! Balancing and resilience of a cluster: from Envoy's fields, and the options of `shard.v1` for what Envoy has no type
//! for, to the rules of `http_balance`. Unset is that crate's default; what it cannot do is refused by name.

use control_api::defaults::{Bound, balance as limits};
use control_api::envoy::cluster::circuit_breakers::Thresholds;
use control_api::envoy::cluster::cluster::{CommonLbConfig, LbConfig, LbPolicy, SlowStartConfig};
use control_api::envoy::cluster::{CircuitBreakers, Cluster, OutlierDetection};
use control_api::envoy::google;
use control_api::envoy::types::Percent;
use control_api::shard::v1;
use http_balance::ClusterRules;
use http_balance::admission::AdmissionRules;
use http_balance::breaker::BreakerRules;
use http_balance::budget::BudgetRules;
use http_balance::ewma::EwmaRules;
use http_balance::gradient::GradientRules;
use http_balance::outlier::{LatencyRules, Mode, OutlierRules, SuccessRateRules, TinyCluster};
use http_balance::plan::{LoadBound, Policy};
use http_balance::retry::RetryRules;
use http_balance::shed::ShedRules;
use http_balance::slow_start::SlowStart;

use super::fault::{Checked, Fault, Within, nothing_else};
use super::{shard_field, value};

/// Takes everything about balancing out of `message`. `cores` share the cap on requests in flight.
pub(super) fn rules(
    message: &mut Cluster,
    options: &v1::ClusterOptions,
    cores: u32,
) -> Checked<ClusterRules> {
    let lb_policy = std::mem::take(&mut message.lb_policy);
    let lb_policy = value::choice("lb_policy", lb_policy, |n| LbPolicy::try_from(n).ok())?;
    let lb = lb_config(lb_policy, message.lb_config.take())?;
    let common = message.common_lb_config.take().unwrap_or_default();
    let (panic_percent, bound) = common_lb(common, lb_policy).within("common_lb_config")?;
    let caps = circuit_breakers(message.circuit_breakers.take()).within("circuit_breakers")?;
    let floor_per_second = value::bounded(
        "retry_floor_per_second",
        options.retry_floor_per_second,
        &limits::RETRY_FLOOR_PER_SECOND,
    );
    let budget =
        BudgetRules { percent: caps.retry_percent, floor_per_second: shard_field(floor_per_second)? };
    Ok(ClusterRules {
        policy: policy(lb_policy, lb.rows, bound, options)?,
        slow_start: slow_start(lb_policy, lb.slow_start, options.slow_start.as_ref())?,
        outlier: outlier(message.outlier_detection.take(), options.outlier.as_ref())?,
        panic_percent,
        zones: None,
        admission: AdmissionRules {
            // Rounded up: every core may have one.
            in_flight_max: caps.in_flight_max.map(|cap| cap.div_ceil(cores.max(1))),
            ..shard_field(admission(options))?
        },
        retry: RetryRules { budget, ..RetryRules::default() },
        hedges: BudgetRules { percent: shard_field(hedge_percent(options))?, ..BudgetRules::HEDGES },
        sticky: None,
    })
}

fn hedge_percent(options: &v1::ClusterOptions) -> Checked<u32> {
    value::bounded("hedge_percent", options.hedge_percent, &limits::HEDGE_PERCENT)
}

/// What `lb_config` says.
#[derive(Default)]
struct LbSettings {
    rows: Option<u32>,
    slow_start: Option<(&'static str, SlowStartConfig)>,
}

fn lb_config(policy: LbPolicy, config: Option<LbConfig>) -> Checked<LbSettings> {
    let (name, wanted) = match &config {
        None => return Ok(LbSettings::default()),
        Some(LbConfig::LeastRequestLbConfig(_)) => ("least_request_lb_config", LbPolicy::LeastRequest),
        Some(LbConfig::RoundRobinLbConfig(_)) => ("round_robin_lb_config", LbPolicy::RoundRobin),
        Some(LbConfig::RingHashLbConfig(_)) => ("ring_hash_lb_config", LbPolicy::RingHash),
        Some(LbConfig::MaglevLbConfig(_)) => ("maglev_lb_config", LbPolicy::Maglev),
        Some(LbConfig::OriginalDstLbConfig(_)) => return Err(Fault::unsupported("original_dst_lb_config")),
    };
    if policy != wanted {
        let given = policy.as_str_name();
        return Err(Fault::new(name, format!("is not supported with the lb_policy {given}")));
    }
    let read = || -> Checked<LbSettings> {
        match config {
            Some(LbConfig::LeastRequestLbConfig(mut least)) => {
                if least.choice_count.take().is_some_and(|count| count.value != 2) {
                    return Err(Fault::new("choice_count", "is not supported: shard always compares 2"));
                }
                let slow_start = least.slow_start_config.take().map(|slow| (name, slow));
                nothing_else(&least)?;
                Ok(LbSettings { slow_start, rows: None })
            }
            Some(LbConfig::RoundRobinLbConfig(mut turn)) => {
                let slow_start = turn.slow_start_config.take().map(|slow| (name, slow));
                nothing_else(&turn)?;
                Ok(LbSettings { slow_start, rows: None })
            }
            Some(LbConfig::MaglevLbConfig(mut maglev)) => {
                let rows = maglev.table_size.take().map(|rows| u32::try_from(rows.value).unwrap_or(u32::MAX));
                nothing_else(&maglev)?;
                let rows = value::bounded("table_size", rows, &limits::MAGLEV_ROWS)?;
                // That it is a prime is for the plan to check.
                Ok(LbSettings { rows: Some(rows), slow_start: None })
            }
            Some(LbConfig::RingHashLbConfig(ring)) => {
                // Sizes of a ring are counted otherwise here: ring_virtual_nodes of the options.
                nothing_else(&ring).map(|()| LbSettings::default())
            }
            Some(LbConfig::OriginalDstLbConfig(_)) | None => Ok(LbSettings::default()),
        }
    };
    read().within(name)
}

/// Panic threshold and bounded load.
fn common_lb(mut common: CommonLbConfig, policy: LbPolicy) -> Checked<(u32, Option<LoadBound>)> {
    let panic_percent =
        percent("healthy_panic_threshold", common.healthy_panic_threshold.take(), &limits::PANIC_PERCENT)?;
    let hashing = common.consistent_hashing_lb_config.take();
    nothing_else(&common)?;
    let mut hashing = match hashing {
        None => return Ok((panic_percent, None)),
        Some(_) if !matches!(policy, LbPolicy::RingHash | LbPolicy::Maglev) => {
            return Err(Fault::new(
                "consistent_hashing_lb_config",
                "needs the lb_policy RING_HASH or MAGLEV",
            ));
        }
        Some(hashing) => hashing,
    };
    let mut bound = || -> Checked<Option<LoadBound>> {
        let factor = hashing.hash_balance_factor.take().map(|factor| factor.value);
        nothing_else(&hashing)?;
        // Envoy's word for "no bound".
        let factor = factor.filter(|factor| *factor > 0);
        Ok(value::ranged("hash_balance_factor", factor, &limits::LOAD_BOUND_PERCENT)?.map(LoadBound))
    };
    Ok((panic_percent, bound().within("consistent_hashing_lb_config")?))
}

fn policy(
    lb_policy: LbPolicy,
    rows: Option<u32>,
    bound: Option<LoadBound>,
    options: &v1::ClusterOptions,
) -> Checked<Policy> {
    let own = value::choice("balance", options.balance, |n| v1::Balance::try_from(n).ok());
    let own = shard_field(own)?;
    let refuse = |field, message| shard_field(Err(Fault::new(field, message)));
    if own != v1::Balance::ByLbPolicy && lb_policy != LbPolicy::LeastRequest {
        return refuse("balance", "needs the lb_policy LEAST_REQUEST");
    }
    if options.peak_ewma.is_some() && own != v1::Balance::PeakEwma {
        return refuse("peak_ewma", "needs balance PEAK_EWMA");
    }
    if options.ring_virtual_nodes.is_some() && lb_policy != LbPolicy::RingHash {
        return refuse("ring_virtual_nodes", "needs the lb_policy RING_HASH");
    }
    Ok(match (lb_policy, own) {
        (LbPolicy::LeastRequest, v1::Balance::ByLbPolicy) => Policy::LeastRequest,
        (LbPolicy::LeastRequest, v1::Balance::LeastConnections) => Policy::LeastConnections,
        (LbPolicy::LeastRequest, v1::Balance::PeakEwma) => {
            Policy::PeakEwma(shard_field(ewma(options.peak_ewma.as_ref()).within("peak_ewma"))?)
        }
        (LbPolicy::RoundRobin, _) => Policy::RoundRobin,
        (LbPolicy::Random, _) => Policy::Random,
        (LbPolicy::RingHash, _) => {
            let nodes = options.ring_virtual_nodes;
            let nodes = value::bounded("ring_virtual_nodes", nodes, &limits::RING_VIRTUAL_NODES);
            Policy::RingHash { virtual_nodes: shard_field(nodes)?, bound }
        }
        (LbPolicy::Maglev, _) => Policy::Maglev { rows: rows.unwrap_or(limits::MAGLEV_ROWS.default), bound },
        (LbPolicy::ClusterProvided | LbPolicy::LoadBalancingPolicyConfig, _) => {
            let known = "LEAST_REQUEST, ROUND_ROBIN, RANDOM, RING_HASH and MAGLEV are";
            return Err(Fault::new(
                "lb_policy",
                format!("is not supported as {}: {known}", lb_policy.as_str_name()),
            ));
        }
    })
}

fn ewma(own: Option<&v1::PeakEwma>) -> Checked<EwmaRules> {
    let own = own.cloned().unwrap_or_default();
    Ok(EwmaRules {
        tau: value::bounded_duration("tau", own.tau, &limits::EWMA_TAU)?,
        failure_penalty: value::bounded_duration(
            "failure_penalty",
            own.failure_penalty,
            &limits::EWMA_FAILURE_PENALTY,
        )?,
    })
}

/// From the place that the policy has for it; a window of 0 is "off".
fn slow_start(
    policy: LbPolicy,
    envoy: Option<(&'static str, SlowStartConfig)>,
    own: Option<&v1::SlowStart>,
) -> Checked<Option<SlowStart>> {
    let read = |window, aggression: Option<f64>, floor: Checked<u32>, fields: [&str; 2]| {
        let window = match value::duration(fields[0], window)? {
            Some(std::time::Duration::ZERO) => return Ok(None),
            window => value::bounded(fields[0], window, &limits::SLOW_START_WINDOW)?,
        };
        let aggression = value::bounded(fields[1], aggression, &limits::SLOW_START_AGGRESSION)?;
        Ok(Some(SlowStart::new(window, aggression, floor? * 10)))
    };
    match (envoy, own) {
        (_, Some(_)) if matches!(policy, LbPolicy::LeastRequest | LbPolicy::RoundRobin) => {
            let message = "is not supported with this lb_policy: use the slow_start_config of its lb_config";
            shard_field(Err(Fault::new("slow_start", message)))
        }
        (None, None) => Ok(Some(SlowStart::default())),
        (_, Some(own)) => {
            let floor = value::bounded("floor_percent", own.floor_percent, &limits::SLOW_START_FLOOR_PERCENT);
            let fields = ["window", "aggression"];
            shard_field(read(own.window, own.aggression, floor, fields).within("slow_start"))
        }
        (Some((config, mut slow)), None) => {
            let mut all = || {
                let window = slow.slow_start_window.take();
                let aggression = slow.aggression.take().map(|a| a.default_value);
                let floor = slow.min_weight_percent.take();
                nothing_else(&slow)?;
                let floor = percent("min_weight_percent", floor, &limits::SLOW_START_FLOOR_PERCENT);
                read(window, aggression, floor, ["slow_start_window", "aggression"])
            };
            all().within("slow_start_config").within(config)
        }
    }
}

/// None when nothing is a cause of ejection.
fn outlier(
    detection: Option<OutlierDetection>,
    own: Option<&v1::OutlierOptions>,
) -> Checked<Option<OutlierRules>> {
    let mut rules = match detection {
        None => OutlierRules::default(),
        Some(detection) => outlier_detection(detection).within("outlier_detection")?,
    };
    let own = own.cloned().unwrap_or_default();
    if own.log_only {
        rules.mode = Mode::LogOnly;
    }
    let read_own = || -> Checked<(u32, Option<LatencyRules>)> {
        let endpoints_min = value::bounded("endpoints_min", own.endpoints_min, &limits::EJECT_ONE_ENDPOINTS)?;
        if own.endpoints_min.is_some() && rules.tiny == TinyCluster::ShareOnly {
            return Err(Fault::new("endpoints_min", "needs outlier_detection.always_eject_one_host"));
        }
        Ok((
            endpoints_min,
            own.latency.as_ref().map(|latency| latency_rules(latency).within("latency")).transpose()?,
        ))
    };
    let (endpoints_min, latency) = shard_field(read_own().within("outlier"))?;
    rules.latency = latency;
    if let TinyCluster::AtLeastOne { endpoints_min: least } = &mut rules.tiny {
        *least = endpoints_min;
    }
    let in_a_row = [rules.consecutive_5xx, rules.consecutive_gateway, rules.consecutive_local];
    let is_off = in_a_row == [None; 3] && rules.success_rate.is_none() && rules.latency.is_none();
    Ok((!is_off).then_some(rules))
}

fn latency_rules(latency: &v1::LatencyOutlier) -> Checked<LatencyRules> {
    Ok(LatencyRules {
        median_percent: value::bounded(
            "median_percent",
            latency.median_percent,
            &limits::LATENCY_MEDIAN_PERCENT,
        )?,
        endpoints_min: value::bounded("endpoints_min", latency.endpoints_min, &limits::OUTLIER_ENDPOINTS)?,
        requests_min: value::bounded("requests_min", latency.requests_min, &limits::LATENCY_REQUESTS)?,
    })
}

/// What is enforced follows Envoy where it is unset; times and counts follow shard.
fn outlier_detection(mut given: OutlierDetection) -> Checked<OutlierRules> {
    let in_a_row = |field, count: Option<google::UInt32Value>, enforced: bool| {
        let count = value::bounded_u32(field, count, &limits::CONSECUTIVE)?;
        Ok(enforced.then_some(count))
    };
    let enforced_5xx =
        is_enforced("enforcing_consecutive_5xx", given.enforcing_consecutive_5xx.take(), true)?;
    let gateway = given.enforcing_consecutive_gateway_failure.take();
    let enforced_gateway = is_enforced("enforcing_consecutive_gateway_failure", gateway, false)?;
    let local = given.enforcing_consecutive_local_origin_failure.take();
    let enforced_local = is_enforced("enforcing_consecutive_local_origin_failure", local, true)?;
    let enforced_rate = is_enforced("enforcing_success_rate", given.enforcing_success_rate.take(), true)?;
    // Shard always tells the two apart, so either value asks for what happens anyway.
    given.split_external_local_origin_errors = false;
    let rate = SuccessRateRules {
        deviations_permille: value::bounded_u32(
            "success_rate_stdev_factor",
            given.success_rate_stdev_factor.take(),
            &limits::SUCCESS_RATE_DEVIATIONS,
        )?,
        endpoints_min: value::bounded_u32(
            "success_rate_minimum_hosts",
            given.success_rate_minimum_hosts.take(),
            &limits::OUTLIER_ENDPOINTS,
        )?,
        requests_min: value::bounded_u32(
            "success_rate_request_volume",
            given.success_rate_request_volume.take(),
            &limits::SUCCESS_RATE_REQUESTS,
        )?,
    };
    let base_ejection =
        value::bounded_duration("base_ejection_time", given.base_ejection_time.take(), &limits::EJECTION)?;
    let ejection_max =
        value::bounded_duration("max_ejection_time", given.max_ejection_time.take(), &limits::EJECTION_MAX)?;
    if ejection_max < base_ejection {
        return Err(Fault::new(
            "max_ejection_time",
            format!("is below base_ejection_time, {base_ejection:?}"),
        ));
    }
    let rules = OutlierRules {
        consecutive_5xx: in_a_row("consecutive_5xx", given.consecutive_5xx.take(), enforced_5xx)?,
        consecutive_gateway: in_a_row(
            "consecutive_gateway_failure",
            given.consecutive_gateway_failure.take(),
            enforced_gateway,
        )?,
        consecutive_local: in_a_row(
            "consecutive_local_origin_failure",
            given.consecutive_local_origin_failure.take(),
            enforced_local,
        )?,
        base_ejection,
        ejection_max,
        percent_max: value::bounded_u32(
            "max_ejection_percent",
            given.max_ejection_percent.take(),
            &limits::EJECTED_PERCENT,
        )?,
        tiny: match given.always_eject_one_host.take() {
            Some(one) if !one.value => TinyCluster::ShareOnly,
            _ => OutlierRules::default().tiny,
        },
        mode: Mode::Enforce,
        success_rate: enforced_rate.then_some(rate),
        latency: None,
        interval: value::bounded_duration("interval", given.interval.take(), &limits::OUTLIER_INTERVAL)?,
    };
    nothing_else(&given)?;
    Ok(rules)
}

/// Envoy enforces by chance; shard always or never.
fn is_enforced(field: &str, value: Option<google::UInt32Value>, unset: bool) -> Checked<bool> {
    match value.map(|value| value.value) {
        None => Ok(unset),
        Some(0) => Ok(false),
        Some(100) => Ok(true),
        Some(other) => Err(Fault::new(field, format!("is {other}, it must be 0 or 100"))),
    }
}

/// What `circuit_breakers` caps.
struct Caps {
    in_flight_max: Option<u32>,
    retry_percent: u32,
}

fn circuit_breakers(breakers: Option<CircuitBreakers>) -> Checked<Caps> {
    let mut breakers = breakers.unwrap_or_default();
    let thresholds = std::mem::take(&mut breakers.thresholds);
    nothing_else(&breakers)?;
    if thresholds.len() > 1 {
        return Err(Fault::new("thresholds", "has several entries: shard has one for all requests"));
    }
    let mut all = thresholds.into_iter().next().unwrap_or_default();
    let mut caps = || -> Checked<Caps> {
        let in_flight_max = all.max_requests.take().map(|requests| requests.value);
        let in_flight_max = value::ranged("max_requests", in_flight_max, &limits::IN_FLIGHT)?;
        let mut budget = all.retry_budget.take().unwrap_or_default();
        nothing_else::<Thresholds>(&all)?;
        let share = percent("budget_percent", budget.budget_percent.take(), &limits::RETRY_BUDGET_PERCENT);
        let retry_percent =
            share.and_then(|share| nothing_else(&budget).map(|()| share)).within("retry_budget")?;
        Ok(Caps { in_flight_max, retry_percent })
    };
    caps().within_item("thresholds", 0)
}

/// Everything but the cap on requests in flight.
fn admission(options: &v1::ClusterOptions) -> Checked<AdmissionRules> {
    Ok(AdmissionRules {
        in_flight_max: None,
        gradient: options
            .adaptive_concurrency
            .as_ref()
            .map(|own| gradient(own).within("adaptive_concurrency"))
            .transpose()?,
        breaker: options.breaker.as_ref().map(|own| breaker(own).within("breaker")).transpose()?,
        shed: options.shed.as_ref().map(|own| shed(own).within("shed")).transpose()?,
    })
}

fn gradient(own: &v1::AdaptiveConcurrency) -> Checked<GradientRules> {
    let limit_min = value::bounded("in_flight_min", own.in_flight_min, &limits::ADAPTIVE_MIN)?;
    let limit_max = value::bounded("in_flight_max", own.in_flight_max, &limits::ADAPTIVE_MAX)?;
    if limit_max < limit_min {
        return Err(Fault::new("in_flight_max", format!("is {limit_max}, below in_flight_min, {limit_min}")));
    }
    let tolerance_percent =
        value::bounded("tolerance_percent", own.tolerance_percent, &limits::ADAPTIVE_TOLERANCE_PERCENT)?;
    Ok(GradientRules { limit_min, limit_max, tolerance_percent })
}

fn breaker(own: &v1::Breaker) -> Checked<BreakerRules> {
    Ok(BreakerRules {
        failure_percent: value::bounded(
            "failure_percent",
            own.failure_percent,
            &limits::BREAKER_FAILURE_PERCENT,
        )?,
        requests_min: value::bounded("requests_min", own.requests_min, &limits::BREAKER_REQUESTS)?,
        window: value::bounded_duration("window", own.window, &limits::BREAKER_WINDOW)?,
        open: value::bounded_duration("open", own.open, &limits::BREAKER_OPEN)?,
        probe_percent: value::bounded("probe_percent", own.probe_percent, &limits::BREAKER_PROBE_PERCENT)?,
        probes: value::bounded("probes", own.probes, &limits::BREAKER_PROBES)?,
    })
}

fn shed(own: &v1::Shed) -> Checked<ShedRules> {
    let starts = [
        value::bounded("sheddable_from", own.sheddable_from, &limits::SHED_SHEDDABLE_FROM)?,
        value::bounded("free_from", own.free_from, &limits::SHED_FREE_FROM)?,
        value::bounded("standard_from", own.standard_from, &limits::SHED_STANDARD_FROM)?,
        value::bounded("critical_from", own.critical_from, &limits::SHED_CRITICAL_FROM)?,
    ];
    if starts.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(Fault::new("", format!("has {starts:?}, it must rise from class to class")));
    }
    Ok(ShedRules { starts })
}

/// Whole per cent of a range.
fn percent(field: &str, given: Option<Percent>, bound: &Bound<u32>) -> Checked<u32> {
    let Some(given) = given.map(|percent| percent.value) else { return Ok(bound.default) };
    let whole = (0..=100_u32).find(|whole| (f64::from(*whole) - given).abs() < 1e-9);
    let whole = whole.ok_or_else(|| {
        Fault::new(
            field,
            format!("is {given}, it must be a whole number from {} to {}", bound.min, bound.max),
        )
    })?;
    value::bounded(field, Some(whole), bound)
}
