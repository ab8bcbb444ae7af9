//! Whether a cluster takes a request at all: shedding, in-flight cap and breaker, in this order; and the budgets of its
//! extra attempts. One for each cluster and core; asked before an endpoint is picked, told when the request is over.
//!
//! Invariant: `in_flight` is the number of [`Ticket`]s that are out.

use std::time::Duration;

use crate::breaker::{Breaker, BreakerEvent, BreakerRules, BreakerState, Pass};
use crate::budget::Budget;
use crate::gradient::{Gradient, GradientRules};
use crate::hedge::ClusterMood;
use crate::outcome::Outcome;
use crate::shed::{Class, LoadSign, Overload, ShedRules};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdmissionRules {
    /// Requests in flight to the cluster from this core; the config's cap divided by the cores.
    pub in_flight_max: Option<u32>,
    pub gradient: Option<GradientRules>,
    pub breaker: Option<BreakerRules>,
    pub shed: Option<ShedRules>,
}

/// Why a request is refused at once. HTTP: 503 with Retry-After; gRPC: RESOURCE_EXHAUSTED for the cap and shedding,
/// UNAVAILABLE for the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    BreakerOpen { retry_after: Duration },
    InFlightCap { limit: u32 },
    Shed { class: Class, strain: u32 },
}

impl Refusal {
    /// The word for replies, logs and metric labels.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::BreakerOpen { .. } => "circuit_open",
            Self::InFlightCap { .. } => "in_flight_limit",
            Self::Shed { .. } => "shed",
        }
    }

    /// For Retry-After, at least a second.
    #[must_use]
    pub fn retry_after(self) -> Duration {
        const LEAST: Duration = Duration::from_secs(1);
        match self {
            Self::BreakerOpen { retry_after } => retry_after.max(LEAST),
            Self::InFlightCap { .. } | Self::Shed { .. } => LEAST,
        }
    }
}

/// A request that was let in; goes back with [`Admission::finished`].
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket {
    pass: Pass,
}

/// What a request brings.
#[derive(Clone, Copy, Debug)]
pub struct Applicant {
    pub class: Class,
    /// Strain of the core, in thousandths; see [`crate::shed::CoreStrain`].
    pub core_strain: u32,
    pub random: u64,
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    pub outcome: Outcome,
    /// To the response head.
    pub latency: Duration,
    pub sign: LoadSign,
}

#[derive(Clone, Debug)]
pub struct Admission {
    in_flight: u32,
    gradient: Option<Gradient>,
    breaker: Option<Breaker>,
    overload: Option<Overload>,
    pub retries: Budget,
    pub hedges: Budget,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            in_flight: 0,
            gradient: None,
            breaker: None,
            overload: None,
            retries: Budget::default(),
            hedges: Budget::over(crate::hedge::WINDOW),
        }
    }
}

impl Admission {
    /// Begins with these rules, or goes on with changed ones: a part keeps what it knows while it stays switched on.
    pub fn adopt(&mut self, rules: &AdmissionRules) {
        let fits = |gradient: &Gradient, rules: &GradientRules| gradient.limit() <= rules.limit_max;
        self.gradient = rules.gradient.map(|rules| match self.gradient {
            Some(gradient) if fits(&gradient, &rules) => gradient,
            _ => Gradient::new(&rules),
        });
        self.breaker = rules.breaker.map(|rules| self.breaker.take().unwrap_or_else(|| Breaker::new(&rules)));
        self.overload = rules.shed.map(|_| self.overload.take().unwrap_or_default());
    }

    #[must_use]
    pub const fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// The cap in force; None: none.
    #[inline]
    #[must_use]
    pub fn limit(&self, rules: &AdmissionRules) -> Option<u32> {
        [rules.in_flight_max, self.gradient.as_ref().map(Gradient::limit)].into_iter().flatten().min()
    }

    #[must_use]
    pub fn breaker_state(&self) -> Option<BreakerState> {
        self.breaker.as_ref().map(Breaker::state)
    }

    /// Whether there is room for hedges.
    #[must_use]
    pub fn mood(&self, is_in_panic: bool, strain: u32) -> ClusterMood {
        let is_closed = matches!(self.breaker_state(), None | Some(BreakerState::Closed));
        if is_closed && !is_in_panic && strain <= 750 { ClusterMood::Calm } else { ClusterMood::Strained }
    }

    /// Lets a request in and counts it.
    ///
    /// # Errors
    /// Why not; nothing is counted then, and no endpoint hears of it.
    #[inline]
    pub fn admit(
        &mut self,
        rules: &AdmissionRules,
        who: Applicant,
        now: Duration,
    ) -> Result<Ticket, Refusal> {
        let limit = self.limit(rules);
        // Shedding before the cap: the cap refuses without regard to class, so near it the classes must have gone.
        if let (Some(shed), Some(overload)) = (&rules.shed, &mut self.overload) {
            let strain = who.core_strain.max(overload.strain(self.in_flight, limit, now));
            if shed.sheds(who.class, strain, who.random) {
                return Err(Refusal::Shed { class: who.class, strain });
            }
        }
        if let Some(limit) = limit
            && self.in_flight >= limit
        {
            return Err(Refusal::InFlightCap { limit });
        }
        // The breaker last: a request that it chose as its probe is not refused by anything else.
        let pass = match (&rules.breaker, &mut self.breaker) {
            (Some(rules), Some(breaker)) => breaker
                .admit(rules, now, who.random.rotate_left(32))
                .map_err(|retry_after| Refusal::BreakerOpen { retry_after })?,
            _ => Pass::Normal,
        };
        self.in_flight = self.in_flight.saturating_add(1);
        self.retries.request(now);
        Ok(Ticket { pass })
    }

    /// Takes a request back.
    #[inline]
    pub fn finished(
        &mut self,
        rules: &AdmissionRules,
        ticket: Ticket,
        end: Finished,
        now: Duration,
    ) -> Option<BreakerEvent> {
        debug_assert!(self.in_flight > 0, "a request ends once");
        let changed = self.learn(rules, &ticket, end, now);
        self.in_flight = self.in_flight.saturating_sub(1);
        changed
    }

    /// Learns from a request that goes on: a connection of a TCP cluster that proved well or badly. Its end should then
    /// say nothing more, unless it is worse.
    #[inline]
    pub fn learn(
        &mut self,
        rules: &AdmissionRules,
        ticket: &Ticket,
        end: Finished,
        now: Duration,
    ) -> Option<BreakerEvent> {
        let in_flight = self.in_flight;
        if end.outcome != Outcome::Abandoned {
            if let (Some(rules), Some(gradient)) = (&rules.gradient, &mut self.gradient) {
                gradient.observe(rules, end.latency, in_flight, now);
            }
            if let Some(overload) = &mut self.overload {
                overload.observe(end.sign, end.latency, now);
            }
        }
        let (rules, breaker) = (rules.breaker.as_ref()?, self.breaker.as_mut()?);
        breaker.finished(rules, ticket.pass, end.outcome, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const WHO: Applicant = Applicant { class: Class::Standard, core_strain: 0, random: 7 };
    const FAILED: Finished = Finished { outcome: Outcome::TimedOut, latency: MS, sign: LoadSign::None };

    fn admission(rules: &AdmissionRules) -> Admission {
        let mut admission = Admission::default();
        admission.adopt(rules);
        admission
    }

    #[test]
    fn without_rules_everybody_is_let_in() {
        let rules = AdmissionRules::default();
        let mut admission = admission(&rules);
        for _ in 0..10_000 {
            let strained = Applicant { core_strain: 1000, ..WHO };
            let ticket = admission.admit(&rules, strained, MS).unwrap();
            assert_eq!(admission.finished(&rules, ticket, FAILED, MS), None);
        }
        assert_eq!(admission.in_flight(), 0);
    }

    #[test]
    fn the_cap_refuses_at_once_and_counts_what_is_out() {
        let rules = AdmissionRules { in_flight_max: Some(2), ..AdmissionRules::default() };
        let mut admission = admission(&rules);
        let first = admission.admit(&rules, WHO, MS).unwrap();
        let second = admission.admit(&rules, WHO, MS).unwrap();
        let refusal = admission.admit(&rules, WHO, MS).unwrap_err();
        assert_eq!((refusal, refusal.code()), (Refusal::InFlightCap { limit: 2 }, "in_flight_limit"));
        assert_eq!(refusal.retry_after(), 1000 * MS);
        admission.finished(&rules, first, FAILED, MS);
        let third = admission.admit(&rules, WHO, MS).unwrap();
        assert_eq!(admission.in_flight(), 2);
        admission.finished(&rules, second, FAILED, MS);
        admission.finished(&rules, third, FAILED, MS);
        assert_eq!(admission.in_flight(), 0);
    }

    #[test]
    fn an_open_breaker_refuses_and_survives_a_new_config() {
        let rules = AdmissionRules { breaker: Some(BreakerRules::default()), ..AdmissionRules::default() };
        let mut admission = admission(&rules);
        let mut opened = 0;
        for _ in 0..100 {
            let ticket = admission.admit(&rules, WHO, MS).unwrap();
            opened += usize::from(admission.finished(&rules, ticket, FAILED, MS).is_some());
        }
        assert_eq!(opened, 1);
        admission.adopt(&AdmissionRules { in_flight_max: Some(5), ..rules });
        let refusal = admission.admit(&rules, WHO, 2 * MS).unwrap_err();
        assert_eq!((refusal.code(), refusal.retry_after()), ("circuit_open", 9_999 * MS));
        assert_eq!(admission.mood(false, 0), ClusterMood::Strained);
        admission.adopt(&AdmissionRules::default());
        assert!(admission.admit(&AdmissionRules::default(), WHO, 2 * MS).is_ok(), "switched off");
    }

    #[test]
    fn what_proves_well_counts_before_it_ends() {
        let rules = AdmissionRules { breaker: Some(BreakerRules::default()), ..AdmissionRules::default() };
        let mut admission = admission(&rules);
        let well = Finished { outcome: Outcome::Success, ..FAILED };
        let lasting: Vec<_> = (0..200).map(|_| admission.admit(&rules, WHO, MS).unwrap()).collect();
        for ticket in &lasting {
            assert_eq!(admission.learn(&rules, ticket, well, MS), None);
        }
        for _ in 0..150 {
            let ticket = admission.admit(&rules, WHO, MS).unwrap();
            assert_eq!(admission.finished(&rules, ticket, FAILED, MS), None, "150 of 350");
        }
        assert_eq!(admission.in_flight(), 200);
    }

    #[test]
    fn near_the_cap_the_classes_go_in_order() {
        let rules = AdmissionRules {
            in_flight_max: Some(1000),
            shed: Some(ShedRules::default()),
            ..AdmissionRules::default()
        };
        let mut admission = admission(&rules);
        let mut rng = crate::Rng::new(9);
        let mut first_refused = Vec::new();
        while first_refused.len() < 4 {
            for class in [Class::Sheddable, Class::Free, Class::Standard, Class::Critical] {
                let who = Applicant { class, core_strain: 0, random: rng.draw() };
                let is_refused = admission.admit(&rules, who, MS).is_err();
                if is_refused && !first_refused.contains(&class) {
                    first_refused.push(class);
                }
            }
        }
        assert_eq!(first_refused, [Class::Sheddable, Class::Free, Class::Standard, Class::Critical]);
        let strained = Applicant { class: Class::Sheddable, core_strain: 900, random: 1 };
        assert_eq!(
            self::admission(&rules).admit(&rules, strained, MS),
            Err(Refusal::Shed { class: Class::Sheddable, strain: 900 })
        );
    }
}
