//! Whether the generator itself did what it was asked to: a figure from one that did not is no figure.

use serde::{Deserialize, Serialize};

use crate::number::{float, nanos, ratio};
use crate::plan::EarlyRequests;
use crate::report::units::{percent_text, span_text};
use crate::run::Outcome;
use crate::tally::{Fault, LATE, Phase};

/// Something that the reader of a result has to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Warning {
    /// Stable: for scripts.
    pub(crate) code: String,
    pub(crate) text: String,
    /// Whether the run was not what was asked for, which sets the exit code.
    pub(crate) is_failure: bool,
}

/// A share of the target rate that may be missing.
pub(crate) const RATE_TOLERANCE: f64 = 0.01;
/// A share of starts that the generator may hand in late.
const LATE_SHARE: f64 = 0.01;
const BUSY_SHARE: f64 = 0.9;

/// All that is to be said of a run.
pub(crate) fn examine(outcome: &Outcome, rate_tolerance: f64) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |code: &str, is_failure: bool, text: String| {
        warnings.push(Warning { code: code.to_owned(), text, is_failure });
    };
    let counts = &outcome.tally.counts;
    if outcome.was_stopped {
        warn("stopped", true, "the run was stopped before its end".to_owned());
    }
    if let Some(expected) = outcome.expected {
        let got = counts.in_window;
        // Poisson arrivals vary by the root of their number.
        let slack = rate_tolerance * float(expected) + 4.0 * float(expected).sqrt();
        if float(got) + slack < float(expected) {
            let missing = percent_text(1.0 - ratio(got, expected));
            let text = format!("the target rate was not reached by {missing}: {got} answers of {expected}");
            warn("rate_not_reached", true, text);
        }
        let missed = counts.faults[Fault::Missed as usize];
        if missed > 0 {
            let text = format!(
                "{missed} requests were due and never started, because no connection was free; they count in the \
                 latency with the time that they waited. More --connections or --depth if the target is not the limit"
            );
            warn("missed_starts", true, text);
        }
        let pacing = outcome.tally.histogram(Phase::Pacing);
        let late = 1.0 - pacing.quantile_below(nanos(LATE));
        if !pacing.is_empty() && late > LATE_SHARE {
            let text = format!(
                "the generator was late: {} of all starts came more than {} after their time (99 %: {})",
                percent_text(late),
                span_text(nanos(LATE)),
                span_text(pacing.value_at_quantile(0.99)),
            );
            warn("generator_late", true, text);
        }
        let queued = ratio(counts.late, counts.started);
        if queued > LATE_SHARE && late <= LATE_SHARE {
            let text = format!(
                "{} of all requests waited more than {} for a free connection; the latency holds that wait",
                percent_text(queued),
                span_text(nanos(LATE)),
            );
            warn("connections_busy", false, text);
        }
    }
    let busy = outcome.generator_busy();
    if busy > BUSY_SHARE {
        let text = format!(
            "the generator used {} of its {} core(s): it may be the limit, not the target",
            percent_text(busy),
            outcome.plan.cores.len()
        );
        warn("generator_busy", false, text);
    }
    let offers_early = outcome.plan.tls.early_data != EarlyRequests::None;
    if offers_early && counts.connections > 0 && counts.early_accepted == 0 {
        let text = match counts.early_refused {
            0 => "no early data was sent: no connection followed another with a ticket that allows it (--fresh opens one \
                  for each request; the target's tickets have to allow it)"
                .to_owned(),
            refused => format!("the target refused the early data of all {refused} connections that had some"),
        };
        warn("early_data_unused", true, text);
    }
    if counts.ended() > 0 && counts.ok == 0 {
        warn("no_success", true, "not one request succeeded".to_owned());
    }
    warnings
}
