//! Active health checks: when to ask an endpoint, and what its answers mean.
//!
//! ```text
//!   New ──first answer decides──► Healthy ◄──2 passes in a row── Unhealthy
//!                                    └────3 failures in a row──────▲
//! ```
//! The caller has the sockets: it asks [`Check::due`], makes the check, and brings the answer. A connection that closes
//! without an answer, or GOAWAY, is no answer: the check is made again on a new connection and only failing there
//! counts (C52). Redirects are not followed. Answers to requests never change this state, and this state is never
//! changed by ejection: both must agree that an endpoint is fit.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::endpoint::Health;
use crate::rng::below;
use crate::time::millis;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckKind {
    /// GET `path`; passes by status.
    Http { path: String, host: Option<String>, statuses: Vec<RangeInclusive<u16>> },
    /// `grpc.health.v1.Health/Check`; passes on SERVING.
    Grpc { service: String },
    /// A connection, and an answer that begins with `expect` when `send` is not empty.
    Tcp { send: Vec<u8>, expect: Vec<u8> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckRules {
    pub kind: CheckKind,
    pub interval: Duration,
    pub timeout: Duration,
    /// Part of the interval by which each check may be earlier or later, 0 to 100.
    pub jitter_percent: u32,
    pub unhealthy_threshold: u32,
    pub healthy_threshold: u32,
}

impl CheckRules {
    /// Every 5 s ± 10 %, 2 s to answer, three failures down, two passes up.
    #[must_use]
    pub const fn new(kind: CheckKind) -> Self {
        Self {
            kind,
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            jitter_percent: 10,
            unhealthy_threshold: 3,
            healthy_threshold: 2,
        }
    }
}

/// What came of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Pass,
    Fail(FailCause),
    /// The connection went away in an orderly way before an answer.
    Interrupted,
}

/// The word for logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailCause {
    ConnectFailed,
    /// The TLS handshake failed, or the session broke.
    TlsFailed,
    TimedOut,
    /// An HTTP status out of range, redirects included.
    Status(u16),
    NotServing,
    WrongAnswer,
}

impl CheckKind {
    /// The answer that an HTTP status is.
    #[must_use]
    pub fn answer_of_status(&self, status: u16) -> Answer {
        match self {
            Self::Http { statuses, .. } if statuses.iter().any(|range| range.contains(&status)) => {
                Answer::Pass
            }
            Self::Http { .. } | Self::Grpc { .. } | Self::Tcp { .. } => {
                Answer::Fail(FailCause::Status(status))
            }
        }
    }
}

/// What is known of the cluster when an endpoint joins it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// Some are healthy: the new one has to pass a check first.
    SomeHealthy,
    /// None is known to be, as at start: the new one is used until a check fails.
    NoneHealthy,
}

/// A flip of state, to be told with its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flip {
    Up,
    Down(FailCause),
}

/// The checks of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    health: Health,
    is_new: bool,
    /// Answers in a row that speak against the state.
    against: u32,
    was_interrupted: bool,
    due: Duration,
}

impl Check {
    /// The first check comes at a random moment of the first interval, so that a thousand endpoints are not asked at
    /// once; one that waits to be used, within a tenth of it.
    #[must_use]
    pub fn new(rules: &CheckRules, others: Others, now: Duration, random: u64) -> Self {
        let (health, spread) = match others {
            Others::SomeHealthy => (Health::Unhealthy, rules.interval / 10),
            Others::NoneHealthy => (Health::Unchecked, rules.interval),
        };
        let due = now.saturating_add(random_part(spread, random));
        Self { health, is_new: true, against: 0, was_interrupted: false, due }
    }

    #[must_use]
    pub const fn health(&self) -> Health {
        self.health
    }

    /// When the next check begins.
    #[must_use]
    pub const fn due(&self) -> Duration {
        self.due
    }

    /// Takes in the answer of a check that ended now.
    pub fn answered(
        &mut self,
        rules: &CheckRules,
        answer: Answer,
        now: Duration,
        random: u64,
    ) -> Option<Flip> {
        let cause = match answer {
            Answer::Interrupted if !self.was_interrupted => {
                self.was_interrupted = true;
                self.due = now;
                return None;
            }
            // Twice without an answer: a new connection is not answered either.
            Answer::Interrupted => Some(FailCause::WrongAnswer),
            Answer::Fail(cause) => Some(cause),
            Answer::Pass => None,
        };
        self.was_interrupted = false;
        let jitter = rules.interval * rules.jitter_percent.min(100) / 100;
        self.due =
            now.saturating_add(rules.interval - jitter).saturating_add(random_part(jitter * 2, random));
        let is_against = (self.health == Health::Unhealthy) == cause.is_none();
        self.against = if is_against { self.against + 1 } else { 0 };
        let threshold = match cause {
            _ if self.is_new => 1,
            None => rules.healthy_threshold,
            Some(_) => rules.unhealthy_threshold,
        };
        if self.is_new && !is_against {
            self.health = if cause.is_none() { Health::Healthy } else { Health::Unhealthy };
        }
        self.is_new = false;
        (is_against && self.against >= threshold).then(|| {
            self.against = 0;
            match cause {
                None => {
                    self.health = Health::Healthy;
                    Flip::Up
                }
                Some(cause) => {
                    self.health = Health::Unhealthy;
                    Flip::Down(cause)
                }
            }
        })
    }
}

fn random_part(whole: Duration, random: u64) -> Duration {
    Duration::from_millis(below(random, millis(whole).saturating_add(1)))
}

/// Reports of several checkers about one endpoint, 2 of 3 for instance. A checker that is silent has no vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Votes<const CHECKERS: usize> {
    last: [Option<(Health, Duration)>; CHECKERS],
    decided: Health,
    decided_at: Duration,
}

impl<const CHECKERS: usize> Default for Votes<CHECKERS> {
    fn default() -> Self {
        Self { last: [None; CHECKERS], decided: Health::Unchecked, decided_at: Duration::ZERO }
    }
}

impl<const CHECKERS: usize> Votes<CHECKERS> {
    /// Takes in a report. One of a checker that does not exist is ignored.
    pub fn report(&mut self, checker: usize, health: Health, now: Duration) {
        if let Some(vote) = self.last.get_mut(checker) {
            *vote = Some((health, now));
        }
    }

    /// What most of all checkers say; without such a majority what they said last, for `hold` at most. `vote_max` is
    /// the age at which a report is silence.
    pub fn decide(&mut self, vote_max: Duration, hold: Duration, now: Duration) -> Health {
        let fresh = self.last.iter().flatten().filter(|(_, at)| now.saturating_sub(*at) <= vote_max);
        let (mut up, mut down) = (0, 0);
        for (health, _) in fresh {
            match health {
                Health::Healthy => up += 1,
                Health::Unhealthy => down += 1,
                Health::Unchecked => {}
            }
        }
        if up * 2 > CHECKERS || down * 2 > CHECKERS {
            self.decided = if up > down { Health::Healthy } else { Health::Unhealthy };
            self.decided_at = now;
        } else if now.saturating_sub(self.decided_at) > hold {
            self.decided = Health::Unchecked;
        }
        self.decided
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const FAIL: Answer = Answer::Fail(FailCause::TimedOut);

    fn rules() -> CheckRules {
        CheckRules::new(CheckKind::Http {
            path: "/healthz".to_owned(),
            host: None,
            statuses: vec![200..=299],
        })
    }

    /// Flips by position of the answer.
    fn flips(others: Others, answers: &[Answer]) -> Vec<(usize, Flip)> {
        let mut check = Check::new(&rules(), others, SECOND, 0);
        let flip = |(at, answer): (usize, &Answer)| Some((at, check.answered(&rules(), *answer, SECOND, 0)?));
        answers.iter().enumerate().filter_map(flip).collect()
    }

    #[test]
    fn three_down_two_up_and_the_first_at_once() {
        use Answer::Pass;
        use Others::{NoneHealthy, SomeHealthy};
        let down = Flip::Down(FailCause::TimedOut);
        assert_eq!(flips(SomeHealthy, &[Pass]), [(0, Flip::Up)]);
        assert_eq!(flips(SomeHealthy, &[FAIL, Pass, Pass]), [(2, Flip::Up)]);
        assert_eq!(flips(NoneHealthy, &[FAIL]), [(0, down)]);
        assert_eq!(flips(NoneHealthy, &[Pass, FAIL, FAIL, Pass, FAIL, FAIL, FAIL]), [(6, down)]);
        assert_eq!(flips(NoneHealthy, &[FAIL, Pass, FAIL, Pass, Pass, Pass]), [(0, down), (4, Flip::Up)]);
        let mut check = Check::new(&rules(), NoneHealthy, SECOND, 0);
        assert_eq!(check.health(), Health::Unchecked, "used until a check fails");
        check.answered(&rules(), Pass, SECOND, 0);
        assert_eq!(check.health(), Health::Healthy);
        assert_eq!(Check::new(&rules(), SomeHealthy, SECOND, 0).health(), Health::Unhealthy);
    }

    #[test]
    fn a_closed_connection_is_no_failure_and_asked_again_at_once() {
        let mut check = Check::new(&rules(), Others::NoneHealthy, SECOND, 0);
        check.answered(&rules(), Answer::Pass, SECOND, 0);
        for round in 0..10 {
            assert_eq!(
                check.answered(&rules(), Answer::Interrupted, SECOND, 0),
                None,
                "GOAWAY in round {round}"
            );
            assert_eq!(check.due(), SECOND);
            assert_eq!(check.answered(&rules(), Answer::Pass, SECOND, 0), None);
        }
        let mut flips = 0;
        for _ in 0..6 {
            flips += usize::from(check.answered(&rules(), Answer::Interrupted, SECOND, 0).is_some());
        }
        assert_eq!((flips, check.health()), (1, Health::Unhealthy), "but never an answer is a failure");
    }

    #[test]
    fn statuses_and_redirects() {
        let kind = rules().kind;
        assert_eq!(kind.answer_of_status(204), Answer::Pass);
        for status in [199, 302, 404, 500] {
            assert_eq!(kind.answer_of_status(status), Answer::Fail(FailCause::Status(status)));
        }
    }

    #[test]
    fn checks_are_spread_over_the_interval() {
        let (rules, mut rng) = (rules(), crate::Rng::new(4));
        let mut tenths = [0; 10];
        for _ in 0..1000 {
            let mut check = Check::new(&rules, Others::NoneHealthy, SECOND, rng.draw());
            let wait = check.due() - SECOND;
            assert!(wait <= rules.interval);
            tenths[usize::try_from(wait.as_millis() / 501).unwrap()] += 1;
            check.answered(&rules, Answer::Pass, 10 * SECOND, rng.draw());
            let gap = check.due() - 10 * SECOND;
            assert!((4_500..=5_500).contains(&gap.as_millis()), "{gap:?}");
        }
        assert!(tenths.iter().all(|count| (60..150).contains(count)), "{tenths:?}");
    }

    #[test]
    fn two_of_three_decide_and_silence_is_no_vote() {
        use Health::{Healthy, Unchecked, Unhealthy};
        let (vote_max, hold) = (5 * SECOND, 60 * SECOND);
        let mut votes = Votes::<3>::default();
        assert_eq!(votes.decide(vote_max, hold, SECOND), Unchecked);
        votes.report(0, Healthy, SECOND);
        votes.report(1, Healthy, SECOND);
        votes.report(2, Unhealthy, SECOND);
        assert_eq!(votes.decide(vote_max, hold, SECOND), Healthy);
        votes.report(0, Healthy, 10 * SECOND);
        votes.report(1, Unhealthy, 10 * SECOND);
        assert_eq!(votes.decide(vote_max, hold, 10 * SECOND), Healthy, "A up, B down, C silent: as before");
        votes.report(2, Unhealthy, 11 * SECOND);
        assert_eq!(votes.decide(vote_max, hold, 11 * SECOND), Unhealthy);
        assert_eq!(votes.decide(vote_max, hold, 30 * SECOND), Unhealthy, "all silent: held");
        assert_eq!(votes.decide(vote_max, hold, 72 * SECOND), Unchecked, "but not for ever");
        votes.report(9, Healthy, 72 * SECOND);
    }
}
