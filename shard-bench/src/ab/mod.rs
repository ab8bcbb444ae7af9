//! A against B: two targets in turns on the same cores, their ratios, and what those show.
//!
//! A round is a short run of both; the order swaps from round to round (AB BA AB …), so that drift of the machine
//! hits both alike. Ratios are taken within a round. The figure for a metric is the median of its ratios, and its
//! interval a percentile bootstrap over rounds (Efron, "Bootstrap methods: another look at the jackknife", 1979).

pub(crate) mod process;

use std::fmt::Write as _;
use std::sync::Arc;

use core_runtime::clock::Epoch;
use serde::{Deserialize, Serialize};

use crate::number::{count, length};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::report::document::Document;
use crate::report::units::{count_text, span_of_us};
use crate::rng::Rng;
use crate::run::{self, Failed, Keep, Outcome};
use crate::tally::Phase;

/// What `schema` says.
pub(crate) const SCHEMA: &str = "shard-bench/ab";
pub(crate) const VERSION: u32 = 1;
/// Resamples of the bootstrap.
const RESAMPLES: usize = 2_000;
/// The least rounds that an interval is worth anything with.
const ROUNDS_MIN: usize = 5;

/// Metrics, in the order of the table.
pub(crate) const METRICS: [&str; 8] = ["p50", "p90", "p99", "p99.9", "max", "cpu", "rate", "errors"];

/// One metric of both targets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ratio {
    pub(crate) metric: String,
    /// Medians over rounds: microseconds, answers a second, or failed requests.
    pub(crate) a: f64,
    pub(crate) b: f64,
    /// The median of B / A in each round, and its 95 % interval.
    pub(crate) ratio: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// `faster`, `slower` or `no difference shown`, for B.
    pub(crate) verdict: String,
    pub(crate) rounds: Vec<f64>,
}

/// The JSON document of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Comparison {
    pub(crate) schema: String,
    pub(crate) version: u32,
    pub(crate) rounds: u64,
    pub(crate) seed: u64,
    /// A ratio has to differ from 1 by more than this.
    pub(crate) threshold: f64,
    pub(crate) judged: Vec<String>,
    pub(crate) verdict: String,
    pub(crate) ratios: Vec<Ratio>,
    /// All rounds of each target together.
    pub(crate) a: Document,
    pub(crate) b: Document,
}

const FASTER: &str = "faster";
const SLOWER: &str = "slower";
const SAME: &str = "no difference shown";

/// What one round showed of one target, by [`METRICS`]; None where there is no figure.
type Figures = [Option<f64>; METRICS.len()];

fn figures(outcome: &Outcome) -> Figures {
    let latency = outcome.tally.histogram(Phase::Latency);
    let at = |share: f64| {
        (!latency.is_empty()).then(|| crate::number::float(latency.value_at_quantile(share)) / 1e3)
    };
    [
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        at(1.0),
        outcome.target_cpu_us().filter(|us| *us > 0.0),
        Some(outcome.rate()).filter(|rate| *rate > 0.0),
        Some(outcome.error_share()),
    ]
}

/// Runs the rounds. Plans differ in their targets only.
///
/// # Errors
/// The target that could not be measured, and why.
pub(crate) fn compare(
    plans: &[Arc<Plan>; 2],
    rounds: u64,
    threshold: f64,
    judged: &[String],
    progress: &mut Progress,
) -> Result<(Comparison, [Outcome; 2]), (usize, Failed)> {
    let epoch = Epoch::start();
    let mut seen: Vec<[Figures; 2]> = Vec::new();
    let mut sums: [Option<Outcome>; 2] = [None, None];
    for round in 0..rounds {
        let mut pair: [Figures; 2] = Default::default();
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for side in order {
            let plan = &plans[side];
            progress.set_prefix(format!("round {}/{rounds} {} ", round + 1, ["A", "B"][side]));
            let outcome =
                run::run(plan, &epoch, Keep::default(), progress).map_err(|failed| (side, failed))?;
            pair[side] = figures(&outcome);
            match &mut sums[side] {
                Some(sum) => sum.absorb(outcome),
                empty => *empty = Some(outcome),
            }
        }
        seen.push(pair);
        if plans.iter().any(|plan| plan.stop.load(std::sync::atomic::Ordering::Relaxed)) {
            break;
        }
    }
    progress.clear();
    let [Some(a), Some(b)] = sums else {
        return Err((0, Failed::Generator("no round was run".to_owned())));
    };
    let seed = plans[0].seed;
    let ratios = ratios(&seen, threshold, seed);
    let verdict = overall(&ratios, judged);
    let document = |outcome: &Outcome| Document::new(outcome, crate::health::examine(outcome, 0.05));
    let comparison = Comparison {
        schema: SCHEMA.to_owned(),
        version: VERSION,
        rounds: count(seen.len()),
        seed,
        threshold,
        judged: judged.to_vec(),
        verdict: verdict.to_owned(),
        ratios,
        a: document(&a),
        b: document(&b),
    };
    Ok((comparison, [a, b]))
}

fn ratios(seen: &[[Figures; 2]], threshold: f64, seed: u64) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    for (index, metric) in METRICS.iter().enumerate() {
        let side = |side: usize| -> Vec<f64> { seen.iter().filter_map(|pair| pair[side][index]).collect() };
        let (a, b) = (side(0), side(1));
        // Errors are shares that are zero most of the time: shown, never a ratio.
        let each: Vec<f64> = seen
            .iter()
            .filter_map(|pair| Some((pair[0][index]?, pair[1][index]?)))
            .filter(|(a, b)| *a > 0.0 && *b > 0.0)
            .map(|(a, b)| b / a)
            .collect();
        if each.is_empty() || each.len() < seen.len().div_ceil(2) {
            continue;
        }
        let (low, high) = interval(&each, seed);
        let ratio = median(&each);
        let more_is_better = *metric == "rate";
        let verdict = verdict_of(ratio, low, high, threshold, more_is_better, each.len());
        ratios.push(Ratio {
            metric: (*metric).to_owned(),
            a: median(&a),
            b: median(&b),
            ratio,
            low,
            high,
            verdict: verdict.to_owned(),
            rounds: each,
        });
    }
    ratios
}

/// The middle of the values; NaN for none.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.get(middle), middle.checked_sub(1).and_then(|below| sorted.get(below))) {
        (Some(upper), Some(lower)) if sorted.len().is_multiple_of(2) => f64::midpoint(*lower, *upper),
        (Some(value), _) => *value,
        (None, _) => f64::NAN,
    }
}

/// The 2.5 % and 97.5 % of the medians of resamples.
fn interval(values: &[f64], seed: u64) -> (f64, f64) {
    let mut rng = Rng::new(seed, 0x6162);
    let bound = count(values.len());
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let sample: Vec<f64> = values.iter().map(|_| values[length(rng.below(bound))]).collect();
            median(&sample)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let at = |share: usize| medians.get(RESAMPLES * share / 1000).copied().unwrap_or(f64::NAN);
    (at(25), at(975))
}

fn verdict_of(
    ratio: f64,
    low: f64,
    high: f64,
    threshold: f64,
    more_is_better: bool,
    rounds: usize,
) -> &'static str {
    if rounds < ROUNDS_MIN || (low <= 1.0 && high >= 1.0) || (ratio - 1.0).abs() <= threshold {
        return SAME;
    }
    if (ratio > 1.0) == more_is_better { FASTER } else { SLOWER }
}

/// Slower when one judged metric is, faster when one is and none is slower.
fn overall(ratios: &[Ratio], judged: &[String]) -> &'static str {
    let is = |wanted: &str| ratios.iter().any(|r| judged.contains(&r.metric) && r.verdict == wanted);
    match (is(SLOWER), is(FASTER)) {
        (true, _) => SLOWER,
        (false, true) => FASTER,
        (false, false) => SAME,
    }
}

impl Comparison {
    pub(crate) fn is_slower(&self) -> bool {
        self.verdict == SLOWER
    }

    /// The table for people.
    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let written = self.write(&mut text);
        debug_assert!(written.is_ok());
        text
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "A  {}\nB  {}", self.a.plan.target, self.b.plan.target)?;
        writeln!(
            out,
            "{} rounds of {:.1} s each in turns, {} loop, seed {}; a difference counts above {:.1} %\n",
            self.rounds,
            self.a.plan.duration_s,
            self.a.plan.r#loop,
            self.seed,
            self.threshold * 100.0
        )?;
        writeln!(out, "{:8}{:>12}{:>12}{:>8}   {:17}B is", "", "A", "B", "B/A", "95 % interval")?;
        for ratio in &self.ratios {
            let value = |value: f64| match ratio.metric.as_str() {
                "rate" => count_text(crate::number::whole(value)),
                "errors" => crate::report::units::percent_text(value),
                _ => span_of_us(value),
            };
            let mark = if self.judged.contains(&ratio.metric) { " *" } else { "" };
            writeln!(
                out,
                "{:8}{:>12}{:>12}{:>8.3}   {:.3} … {:.3}    {}{mark}",
                ratio.metric,
                value(ratio.a),
                value(ratio.b),
                ratio.ratio,
                ratio.low,
                ratio.high,
                ratio.verdict
            )?;
        }
        for (side, document) in [("A", &self.a), ("B", &self.b)] {
            for warning in &document.warnings {
                writeln!(out, "WARNING {side} {}: {}", warning.code, warning.text)?;
            }
        }
        if count(ROUNDS_MIN) > self.rounds {
            writeln!(
                out,
                "WARNING few_rounds: under {ROUNDS_MIN} rounds show no difference, whatever it is"
            )?;
        }
        writeln!(
            out,
            "\nverdict (by {}): B is {}",
            self.judged.join(", "),
            match self.verdict.as_str() {
                SAME => "not shown to differ",
                other => other,
            }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds whose B is `factor` of A, with the noise of this machine.
    fn rounds(factor: f64, noise: f64, seed: u64) -> Vec<[Figures; 2]> {
        let mut rng = Rng::new(seed, 0);
        let mut figure = |factor: f64| {
            let value = 100.0 * factor * (1.0 + noise * (rng.unit() - 0.5));
            [
                Some(value),
                Some(value),
                Some(value),
                Some(value),
                Some(value),
                None,
                Some(1e6 / value),
                Some(0.0),
            ]
        };
        (0..12).map(|_| [figure(1.0), figure(factor)]).collect()
    }

    fn verdicts(factor: f64, seed: u64) -> (String, String) {
        let ratios = ratios(&rounds(factor, 0.1, seed), 0.03, seed);
        let of = |metric: &str| ratios.iter().find(|r| r.metric == metric).map(|r| r.verdict.clone());
        (of("p50").expect("there"), of("rate").expect("there"))
    }

    #[test]
    fn differences_are_found_and_no_others() {
        let mut wrong = 0;
        for seed in 0..40 {
            assert_eq!(verdicts(1.2, seed), (SLOWER.to_owned(), SLOWER.to_owned()), "seed {seed}");
            assert_eq!(verdicts(0.8, seed), (FASTER.to_owned(), FASTER.to_owned()), "seed {seed}");
            wrong += u32::from(verdicts(1.0, seed).0 != SAME);
        }
        assert!(wrong <= 5, "{wrong} of 40 controls without a difference showed one");
    }

    #[test]
    fn the_overall_verdict_goes_by_what_is_judged() {
        let seen = rounds(1.2, 0.01, 1);
        let ratios = ratios(&seen, 0.03, 1);
        assert_eq!(overall(&ratios, &["p99".to_owned()]), SLOWER);
        assert_eq!(overall(&ratios, &["cpu".to_owned()]), SAME, "there is no figure for it");
        let few = super::ratios(&seen[..3], 0.03, 1);
        assert_eq!(overall(&few, &["p99".to_owned()]), SAME, "three rounds show nothing");
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }
}
