//! The JSON document of a run. docs/shard-bench.md describes every key; a change that a reader could trip over
//! counts [`VERSION`] up.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::health::Warning;
use crate::number::{count, float};
use crate::plan::{Load, Plan};
use crate::run::Outcome;
use crate::tally::{Fault, Phase};

/// What `schema` says.
pub(crate) const SCHEMA: &str = "shard-bench/run";
pub(crate) const VERSION: u32 = 1;

/// Percentiles that are kept.
pub(crate) const PERCENTILES: [f64; 26] = [
    0.0, 5.0, 10.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 70.0, 75.0, 80.0, 85.0, 90.0, 92.5, 95.0, 97.5, 99.0,
    99.5, 99.75, 99.9, 99.95, 99.99, 99.995, 99.999, 100.0,
];

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Document {
    pub(crate) schema: String,
    pub(crate) version: u32,
    pub(crate) tool: String,
    pub(crate) plan: PlanPart,
    pub(crate) tls: Option<TlsPart>,
    pub(crate) measured_s: f64,
    pub(crate) was_stopped: bool,
    pub(crate) rate_per_s: f64,
    pub(crate) requests: RequestsPart,
    pub(crate) statuses: BTreeMap<String, u64>,
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) error_texts: BTreeMap<String, String>,
    pub(crate) connections: ConnectionsPart,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) phases: BTreeMap<String, PhasePart>,
    pub(crate) seconds: Vec<SecondPart>,
    pub(crate) generator: GeneratorPart,
    pub(crate) target: Option<TargetPart>,
    pub(crate) warnings: Vec<Warning>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PlanPart {
    pub(crate) target: String,
    pub(crate) protocol: String,
    /// `open` or `closed`.
    pub(crate) r#loop: String,
    /// Requests a second of the schedule on average; None in a closed loop.
    pub(crate) target_rate_per_s: Option<f64>,
    pub(crate) connections: u64,
    pub(crate) depth: u64,
    pub(crate) is_connection_per_request: bool,
    pub(crate) cores: u64,
    pub(crate) warmup_s: f64,
    pub(crate) duration_s: f64,
    pub(crate) timeout_s: f64,
    pub(crate) seed: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TlsPart {
    pub(crate) version: String,
    pub(crate) cipher: String,
    pub(crate) group: String,
    pub(crate) alpn: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RequestsPart {
    pub(crate) expected: Option<u64>,
    pub(crate) started: u64,
    pub(crate) ok: u64,
    pub(crate) failed: u64,
    pub(crate) in_window: u64,
    pub(crate) late: u64,
    pub(crate) messages: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ConnectionsPart {
    pub(crate) opened: u64,
    pub(crate) tls_full: u64,
    pub(crate) tls_resumed: u64,
    #[serde(default)]
    pub(crate) early_data_accepted: u64,
    #[serde(default)]
    pub(crate) early_data_refused: u64,
    pub(crate) goaways: u64,
    pub(crate) resets: u64,
}

/// A distribution, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PhasePart {
    pub(crate) count: u64,
    pub(crate) mean_us: f64,
    pub(crate) stdev_us: f64,
    pub(crate) min_us: f64,
    pub(crate) max_us: f64,
    /// Pairs of percentile and value.
    pub(crate) percentiles: Vec<(f64, f64)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SecondPart {
    pub(crate) ended: u64,
    pub(crate) failed: u64,
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
    pub(crate) target_cpu_s: Option<f64>,
    pub(crate) target_resident_bytes: Option<u64>,
    pub(crate) generator_cpu_s: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct GeneratorPart {
    pub(crate) cpu_s: f64,
    pub(crate) cpu_us_per_request: f64,
    /// 0 to 1, of all its cores.
    pub(crate) busy: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TargetPart {
    pub(crate) pid: u32,
    pub(crate) cpu_s: f64,
    pub(crate) cpu_us_per_request: f64,
    pub(crate) resident_bytes_before: u64,
    pub(crate) resident_bytes_after: u64,
    pub(crate) processes: u64,
}

impl Document {
    pub(crate) fn new(outcome: &Outcome, warnings: Vec<Warning>) -> Self {
        let counts = &outcome.tally.counts;
        let labels = ["0xx", "1xx", "2xx", "3xx", "4xx", "5xx"];
        let statuses = labels.iter().zip(counts.by_status).filter(|(_, n)| *n > 0);
        let errors = Fault::ALL.iter().zip(counts.faults).filter(|(_, n)| *n > 0);
        let texts = outcome.texts.iter().map(|(fault, text)| (fault.name().to_owned(), text.clone()));
        let phases = Phase::ALL.iter().map(|phase| (phase, outcome.tally.histogram(*phase)));
        Self {
            schema: SCHEMA.to_owned(),
            version: VERSION,
            tool: format!("shard-bench {}", env!("CARGO_PKG_VERSION")),
            plan: plan_part(&outcome.plan, outcome),
            tls: outcome.preflight.tls.clone().map(|[version, cipher, group, alpn]| TlsPart {
                version,
                cipher,
                group,
                alpn,
            }),
            measured_s: outcome.measured.as_secs_f64(),
            was_stopped: outcome.was_stopped,
            rate_per_s: outcome.rate(),
            requests: RequestsPart {
                expected: outcome.expected,
                started: counts.started,
                ok: counts.ok,
                failed: counts.failed(),
                in_window: counts.in_window,
                late: counts.late,
                messages: counts.messages,
            },
            statuses: statuses.map(|(label, n)| ((*label).to_owned(), n)).collect(),
            errors: errors.map(|(fault, n)| (fault.name().to_owned(), n)).collect(),
            error_texts: texts.collect(),
            connections: ConnectionsPart {
                opened: counts.connections,
                tls_full: counts.tls_full,
                tls_resumed: counts.tls_resumed,
                early_data_accepted: counts.early_accepted,
                early_data_refused: counts.early_refused,
                goaways: counts.goaways,
                resets: counts.resets,
            },
            bytes_in: counts.bytes_in,
            bytes_out: counts.bytes_out,
            phases: phases
                .filter(|(_, histogram)| !histogram.is_empty())
                .map(|(phase, histogram)| (phase.name().to_owned(), phase_part(histogram)))
                .collect(),
            seconds: second_parts(outcome),
            generator: GeneratorPart {
                cpu_s: outcome.generator_cpu.as_secs_f64(),
                cpu_us_per_request: outcome.generator_cpu_us(),
                busy: outcome.generator_busy(),
            },
            target: target_part(outcome),
            warnings,
        }
    }

    /// A phase that has values.
    pub(crate) fn phase(&self, phase: Phase) -> Option<&PhasePart> {
        self.phases.get(phase.name())
    }
}

impl PhasePart {
    /// The value at one of [`PERCENTILES`], in microseconds.
    pub(crate) fn at(&self, percentile: f64) -> f64 {
        let found = self.percentiles.iter().find(|(p, _)| (p - percentile).abs() < 1e-9);
        found.map_or(f64::NAN, |(_, us)| *us)
    }
}

fn plan_part(plan: &Plan, outcome: &Outcome) -> PlanPart {
    let seconds = outcome.measured.as_secs_f64();
    PlanPart {
        target: plan.target.label.clone(),
        protocol: plan.protocol.name().to_owned(),
        r#loop: if matches!(plan.load, Load::Open(_)) { "open" } else { "closed" }.to_owned(),
        target_rate_per_s: outcome.expected.filter(|_| seconds > 0.0).map(|n| float(n) / seconds),
        connections: count(plan.connections),
        depth: count(plan.depth),
        is_connection_per_request: plan.is_fresh,
        cores: count(plan.cores.len()),
        warmup_s: plan.warmup.as_secs_f64(),
        duration_s: plan.duration.as_secs_f64(),
        timeout_s: plan.timeout.as_secs_f64(),
        seed: plan.seed,
    }
}

fn us(ns: u64) -> f64 {
    float(ns) / 1e3
}

fn phase_part(histogram: &Histogram<u64>) -> PhasePart {
    let value = |percentile: f64| us(histogram.value_at_quantile(percentile / 100.0));
    PhasePart {
        count: histogram.len(),
        mean_us: histogram.mean() / 1e3,
        stdev_us: histogram.stdev() / 1e3,
        min_us: us(histogram.min()),
        max_us: us(histogram.max()),
        percentiles: PERCENTILES.iter().map(|percentile| (*percentile, value(*percentile))).collect(),
    }
}

fn second_parts(outcome: &Outcome) -> Vec<SecondPart> {
    let mut before = outcome.target.map(|(before, _)| before.cpu_ns);
    let part = |second: &crate::run::Second| {
        let [p50_us, p90_us, p99_us, p999_us, max_us] = second.latency_ns.map(us);
        let cpu_ns = second.target.map(|usage| usage.cpu_ns);
        let target_cpu_s = before.zip(cpu_ns).map(|(before, now)| float(now.saturating_sub(before)) / 1e9);
        before = cpu_ns.or(before);
        SecondPart {
            ended: second.counts.ended(),
            failed: second.counts.failed(),
            p50_us,
            p90_us,
            p99_us,
            p999_us,
            max_us,
            target_cpu_s,
            target_resident_bytes: second.target.map(|usage| usage.resident_bytes),
            generator_cpu_s: float(second.generator_cpu_ns) / 1e9,
        }
    };
    outcome.seconds.iter().map(part).collect()
}

fn target_part(outcome: &Outcome) -> Option<TargetPart> {
    let (before, after) = outcome.target?;
    Some(TargetPart {
        pid: outcome.plan.target.pid?,
        cpu_s: float(after.cpu_ns.saturating_sub(before.cpu_ns)) / 1e9,
        cpu_us_per_request: outcome.target_cpu_us()?,
        resident_bytes_before: before.resident_bytes,
        resident_bytes_after: after.resident_bytes,
        processes: after.processes,
    })
}
