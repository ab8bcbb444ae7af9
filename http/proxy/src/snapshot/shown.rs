//! The rules of a cluster in a few lines for operators, as `shardctl explain` prints them.

use http_balance::outlier::{Mode, OutlierRules, TinyCluster};
use http_balance::plan::{LoadBound, Policy};
use http_balance::retry::{OnTimeout, RetryRules};

use super::model::{ClusterConfig, Forward, HashKey, IdempotencyKey, Mirror};

impl ClusterConfig {
    /// Lines with a label each, in the order in which a request meets them.
    #[must_use]
    pub fn rules_in_short(&self) -> Vec<(&'static str, String)> {
        let rules = &self.plan.rules;
        let mut lines = Vec::new();
        let admission = &rules.admission;
        let mut admits = Vec::new();
        if let Some(cap) = admission.in_flight_max {
            admits.push(format!("at most {cap} in flight"));
        }
        if let Some(gradient) = admission.gradient {
            admits
                .push(format!("adaptive, {} to {} in flight a core", gradient.limit_min, gradient.limit_max));
        }
        if let Some(breaker) = admission.breaker {
            admits.push(format!(
                "breaker over {} % of at least {} in {:?}, open {:?}",
                breaker.failure_percent, breaker.requests_min, breaker.window, breaker.open
            ));
        }
        if let Some(shed) = admission.shed {
            let starts = shed.starts.map(|start| start.to_string()).join(", ");
            admits.push(format!("sheds from a strain of {starts}"));
        }
        if !admits.is_empty() {
            lines.push(("admits", admits.join("; ")));
        }
        let mut balance = policy(rules.policy);
        if let Some(slow_start) = &rules.slow_start {
            let floor = slow_start.factor(std::time::Duration::ZERO) / 10;
            balance.push_str(&format!(", slow start from {floor} %"));
        }
        if rules.panic_percent > 0 {
            balance.push_str(&format!(", panic below {} %", rules.panic_percent));
        }
        lines.push(("balance", balance));
        if let (Some(sticky), Some(cookie)) = (rules.sticky, &self.sticky) {
            let keys = if cookie.previous.is_some() { "two keys" } else { "one key" };
            lines.push((
                "sessions",
                format!(
                    "cookie {}, {keys}, ring of {} points an endpoint, overlap {:?}",
                    cookie.cookie, sticky.virtual_nodes, sticky.overlap
                ),
            ));
        }
        if let Some(outlier) = &rules.outlier {
            lines.push(("ejects", ejects(outlier)));
        }
        lines.push(("retries", retries(&rules.retry)));
        lines
    }
}

impl Forward {
    /// The route's own part of those rules; a key for hashing only counts in clusters that hash.
    #[must_use]
    pub fn rules_in_short(&self) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        if !self.hash_by.is_empty() {
            let keys: Vec<String> = self.hash_by.iter().map(key).collect();
            lines.push(("hash by", keys.join(", else ")));
        }
        if let Some(retry) = &self.retry {
            lines.push(("attempts", attempts(retry)));
        }
        if self.idempotency_key == IdempotencyKey::Honoured {
            lines.push(("attempts", "a POST with Idempotency-Key may be repeated".to_owned()));
        }
        lines.extend(self.mirror.as_deref().map(|mirror| ("mirrors", mirrored(mirror))));
        lines
    }
}

fn mirrored(mirror: &Mirror) -> String {
    let rules = mirror.rules;
    let (whole, part) = (rules.sample / 10_000, rules.sample % 10_000);
    let share = if part == 0 { whole.to_string() } else { format!("{whole}.{part:04}") };
    format!(
        "{share} % by {}, up to {} bytes of a body held, {:?} each; at most {} at a time and {} bytes a second and core",
        mirror.key.as_ref().map_or_else(|| "request id".to_owned(), key),
        rules.buffered_bytes_max,
        mirror.timeout,
        rules.in_flight_max,
        rules.bytes_per_second_max
    )
}

fn key(key: &HashKey) -> String {
    match key {
        HashKey::Field(name) => format!("the field {name}"),
        HashKey::Cookie(name) => format!("the cookie {name}"),
        HashKey::Query(name) => format!("the query parameter {name}"),
        HashKey::ClientAddress => "the client's address".to_owned(),
    }
}

fn policy(policy: Policy) -> String {
    let bounded = |bound: Option<LoadBound>| {
        bound.map_or_else(String::new, |LoadBound(percent)| format!(", at most {percent} % of a fair share"))
    };
    match policy {
        Policy::LeastRequest => "the less busy of two".to_owned(),
        Policy::RoundRobin => "in turn".to_owned(),
        Policy::Random => "by chance".to_owned(),
        Policy::LeastConnections => "the fewest connections".to_owned(),
        Policy::PeakEwma(_) => "the shorter expected wait of two".to_owned(),
        Policy::RingHash { virtual_nodes, bound } => {
            format!("ring of {virtual_nodes} points an endpoint{}", bounded(bound))
        }
        Policy::Maglev { rows, bound } => format!("Maglev of {rows} rows{}", bounded(bound)),
    }
}

fn ejects(outlier: &OutlierRules) -> String {
    let in_a_row = [
        (outlier.consecutive_5xx, "5xx"),
        (outlier.consecutive_gateway, "gateway errors"),
        (outlier.consecutive_local, "connect failures, resets or time-outs"),
    ];
    let mut causes: Vec<String> = in_a_row
        .iter()
        .filter_map(|(count, what)| count.map(|count| format!("{count} {what} in a row")))
        .collect();
    if outlier.success_rate.is_some() {
        causes.push("success rate".to_owned());
    }
    if outlier.latency.is_some() {
        causes.push("latency".to_owned());
    }
    let least = match outlier.tiny {
        TinyCluster::ShareOnly => String::new(),
        TinyCluster::AtLeastOne { endpoints_min } => format!(", one from {endpoints_min} endpoints on"),
    };
    let mode = match outlier.mode {
        Mode::Enforce => "",
        Mode::LogOnly => "; log only",
    };
    format!(
        "after {}: {:?}, doubled up to {:?}, at most {} %{least}{mode}",
        causes.join(", "),
        outlier.base_ejection,
        outlier.ejection_max,
        outlier.percent_max
    )
}

fn retries(retry: &RetryRules) -> String {
    let budget = retry.budget;
    format!(
        "{}; {} % of the requests, at least {} a second and core",
        attempts(retry),
        budget.percent,
        budget.floor_per_second
    )
}

fn attempts(retry: &RetryRules) -> String {
    let mut line = match retry.retries_max {
        0 => "no retry".to_owned(),
        1 => "1 retry".to_owned(),
        more => format!("{more} retries"),
    };
    if let Some(timeout) = retry.per_try_timeout {
        line.push_str(&format!(", {timeout:?} an attempt"));
    }
    if retry.on_timeout == OnTimeout::Retry {
        line.push_str(", also after a time-out");
    }
    line
}
