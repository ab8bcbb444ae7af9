//! Objectives such as `p99<5ms,err<0.1%,rate>1000`, and whether a run meets them.

use crate::cli::values::{rate, span};
use crate::number::nanos;
use crate::report::units::{percent_text, span_text};
use crate::run::Outcome;
use crate::tally::Phase;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Objective {
    /// A percentile of the latency stays below so many nanoseconds.
    Latency { percentile: f64, below_ns: u64 },
    /// The share of failed requests stays below this, 0 to 1.
    Errors { below: f64 },
    /// Answers a second stay above this.
    Rate { above: f64 },
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Slo(Vec<(String, Objective)>);

impl Slo {
    /// # Errors
    /// The objective that is not understood.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        text.split(',')
            .map(str::trim)
            .map(|part| Ok((part.to_owned(), objective(part)?)))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// One line for each objective, and whether all of them hold.
    pub(crate) fn judge(&self, outcome: &Outcome) -> (String, bool) {
        let mut text = String::new();
        let mut all = true;
        for (wanted, objective) in &self.0 {
            let (got, holds) = objective.check(outcome);
            all &= holds;
            let verdict = if holds { "met" } else { "NOT MET" };
            text.push_str(&format!("SLO {wanted}: {verdict} ({got})\n"));
        }
        (text, all)
    }
}

impl Objective {
    fn check(self, outcome: &Outcome) -> (String, bool) {
        match self {
            Self::Latency { percentile, below_ns } => {
                let latency = outcome.tally.histogram(Phase::Latency);
                let got = latency.value_at_quantile(percentile / 100.0);
                // Without a single value nothing is shown to be fast.
                (span_text(got), !latency.is_empty() && got < below_ns)
            }
            Self::Errors { below } => (percent_text(outcome.error_share()), outcome.error_share() < below),
            Self::Rate { above } => (format!("{:.1}", outcome.rate()), outcome.rate() > above),
        }
    }
}

fn objective(part: &str) -> Result<Objective, String> {
    let wrong = |why: &str| {
        format!("--slo {part}: {why}; want p99<5ms, max<1s, err<0.1% or rate>1000, separated by commas")
    };
    let at = part.find(['<', '>']).ok_or_else(|| wrong("no < or >"))?;
    let (name, rest) = part.split_at(at);
    let (sign, value) = rest.split_at(1);
    let percentile = match name {
        "max" => Some(100.0),
        name => {
            name.strip_prefix('p').and_then(|p| p.parse::<f64>().ok()).filter(|p| (0.0..=100.0).contains(p))
        }
    };
    match (name, sign, percentile) {
        (_, "<", Some(percentile)) => {
            let below_ns = nanos(span(value).map_err(|why| wrong(&why))?);
            Ok(Objective::Latency { percentile, below_ns })
        }
        ("err" | "errors", "<", None) => {
            let (number, unit) = value.strip_suffix('%').map_or((value, 1.0), |number| (number, 0.01));
            let share = number.parse::<f64>().map_err(|error| wrong(&format!("{value}: {error}")))?;
            Ok(Objective::Errors { below: share * unit })
        }
        ("rate", ">", None) => Ok(Objective::Rate { above: rate(value).map_err(|why| wrong(&why))? }),
        _ => Err(wrong("not understood")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objectives_parse_or_are_named() {
        let slo = Slo::parse("p99<5ms, max<1s,err<0.1%,rate>1k").expect("good");
        let kinds: Vec<_> = slo.0.iter().map(|(_, objective)| *objective).collect();
        assert_eq!(
            kinds,
            [
                Objective::Latency { percentile: 99.0, below_ns: 5_000_000 },
                Objective::Latency { percentile: 100.0, below_ns: 1_000_000_000 },
                Objective::Errors { below: 0.001 },
                Objective::Rate { above: 1000.0 },
            ]
        );
        for text in ["p99", "p99>5ms", "p101<1s", "err>1%", "rate<5", "q<1", "p99<fast", "err<x%"] {
            let error = Slo::parse(text).expect_err(text);
            assert!(error.contains(text) && error.contains("want"), "{error}");
        }
    }
}
