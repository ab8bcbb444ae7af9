//! What clients of the control socket and of the metrics address get.

use super::{Phase, Service};
use crate::control::Page;
use crate::ended::chain;
use crate::question::Question;
use crate::{metrics, pages};

impl Service {
    /// The page that answers a question.
    pub(super) fn answer(&mut self, question: Question) -> Page {
        self.facts.now = self.start.elapsed();
        let page = match question {
            Question::Metrics => {
                return match metrics::text(self.program.maps(), &self.rollout, &self.ids, &self.facts) {
                    Ok(text) => {
                        Page { content_type: "text/plain; version=0.0.4", ..Page::text("200 OK", text) }
                    }
                    Err(error) => failed(&error),
                };
            }
            Question::Ready if self.facts.is_ready && self.facts.phase == Phase::Ready => {
                return Page::text("200 OK", "ready\n");
            }
            Question::Ready => return Page::text("503 Service Unavailable", "drained\n"),
            Question::Show => Ok(pages::show(self)),
            Question::Counters => pages::counters(self),
            Question::Flows { max } => pages::flows(self, max),
            Question::Lookup { protocol, source, destination } => {
                pages::lookup(self, protocol, source, destination)
            }
            Question::Trace => Ok(pages::trace(self)),
            Question::SetTrace { one_in } => self.set_trace(one_in),
            Question::Drain => Ok(self.set_phase(Phase::Drained)),
            Question::Undrain => Ok(self.set_phase(Phase::Ready)),
        };
        page.map_or_else(|error| failed(&error), |value| Page::json(&value))
    }

    fn set_trace(&mut self, one_in: u32) -> l4_load::Result<serde_json::Value> {
        let maps = self.program.maps();
        let settings = l4_abi::Settings { trace_one_in: one_in, ..maps.settings()? };
        maps.set_settings(settings)?;
        Ok(serde_json::json!({ "one_in": one_in }))
    }

    fn set_phase(&mut self, phase: Phase) -> serde_json::Value {
        self.facts.phase = phase;
        self.announce();
        serde_json::json!({ "phase": phase.word(), "announced": self.facts.is_announced })
    }
}

fn failed(error: &l4_load::Error) -> Page {
    Page::text("500 Internal Server Error", format!("{}\n", chain(error)))
}
