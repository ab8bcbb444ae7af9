//! Priority shedding: which requests are refused when the core or a cluster has too much to do.
//!
//! Strain is a number in thousandths; above 750 classes are shed one by one, each from nothing to all of it before the
//! next one loses a single request:
//! ```text
//!   750 ── sheddable ── 800 ── free ── 860 ── standard ── 940 ── critical ── 1000
//! ```
//! The core's strain is the busy share of its reactor, a cluster's comes from [`Overload`]; the greater one counts. A
//! retry that a client marks as such is sheddable whatever its route says: the first attempts of others come first.

use std::time::Duration;

use crate::baseline::Baseline;
use crate::rng::below;
use crate::window::{Window, permille};

/// Class of a request, by its route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    Critical,
    #[default]
    Standard,
    Free,
    Sheddable,
}

/// Whether a client says that it has asked before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAttempt {
    First,
    Retry,
}

impl Class {
    /// The class that counts for one request.
    #[must_use]
    pub const fn of_request(self, attempt: ClientAttempt) -> Self {
        match attempt {
            ClientAttempt::First => self,
            ClientAttempt::Retry => Self::Sheddable,
        }
    }

    /// The word for logs and metric labels.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Standard => "standard",
            Self::Free => "free",
            Self::Sheddable => "sheddable",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShedRules {
    /// Where sheddable, free, standard and critical begin to be shed; rising, each class is gone where the next begins
    /// and the last one at 1000. In thousandths of strain.
    pub starts: [u32; 4],
}

impl Default for ShedRules {
    fn default() -> Self {
        Self { starts: [750, 800, 860, 940] }
    }
}

impl ShedRules {
    /// Part of a class that is shed, in thousandths.
    #[inline]
    #[must_use]
    pub fn fraction(&self, class: Class, strain: u32) -> u32 {
        let rank = match class {
            Class::Sheddable => 0,
            Class::Free => 1,
            Class::Standard => 2,
            Class::Critical => 3,
        };
        let start = self.starts[rank];
        let end = self.starts.get(rank + 1).copied().unwrap_or(1000).max(start + 1);
        (strain.saturating_sub(start) * 1000 / (end - start)).min(1000)
    }

    /// Whether a request is refused, by 64 random bits.
    #[inline]
    #[must_use]
    pub fn sheds(&self, class: Class, strain: u32, random: u64) -> bool {
        strain > self.starts[0] && below(random, 1000) < u64::from(self.fraction(class, strain))
    }
}

/// The busy share of a core, smoothed over about a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreStrain {
    /// Thousandths, times 256.
    smooth: u32,
}

impl CoreStrain {
    /// Takes in how much of a span of about 100 ms the reactor was busy.
    pub fn observe(&mut self, busy: Duration, span: Duration) {
        let share = permille(crate::time::micros(busy), crate::time::micros(span).max(1)).min(1000);
        self.smooth = self.smooth - self.smooth / 8 + share * 256 / 8;
    }

    /// In thousandths.
    #[inline]
    #[must_use]
    pub const fn strain(&self) -> u32 {
        self.smooth / 256
    }
}

/// How strained a cluster is by its own signs: responses that say so, latency against its usual one, and requests in
/// flight against the cap. The worst sign counts.
#[derive(Clone, Debug)]
pub struct Overload {
    baseline: Baseline,
    responses: Window<5, 2>,
}

const ALL: usize = 0;
const OVERLOADED: usize = 1;

/// What responses and latency can show at most: critical requests go on, and show when it is over.
const SIGN_MAX: u32 = 940;

/// Responses in the window below which their share says nothing.
const RESPONSES_MIN: u64 = 20;

impl Default for Overload {
    fn default() -> Self {
        Self { baseline: Baseline::default(), responses: Window::new(Duration::from_secs(1)) }
    }
}

/// What a response said about load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadSign {
    None,
    /// 503 with the overload header.
    Overloaded,
}

impl Overload {
    /// Takes in a response.
    #[inline]
    pub fn observe(&mut self, sign: LoadSign, latency: Duration, now: Duration) {
        self.responses.add(now, ALL, 1);
        match sign {
            LoadSign::Overloaded => self.responses.add(now, OVERLOADED, 1),
            // What was turned away says nothing about how long work takes.
            LoadSign::None => {
                self.baseline.observe(latency, now);
            }
        }
    }

    /// Strain in thousandths, on the scale of [`ShedRules`].
    #[must_use]
    pub fn strain(&mut self, in_flight: u32, cap: Option<u32>, now: Duration) -> u32 {
        let all = self.responses.sum(now, ALL);
        let overloaded =
            if all < RESPONSES_MIN { 0 } else { permille(self.responses.sum(now, OVERLOADED), all) };
        // One response in a hundred that says so is where shedding begins, a half where all but the critical is shed.
        let by_responses = ramp(overloaded, 10, 500).min(SIGN_MAX);
        // Twice the usual latency is where it begins, five times where all but the critical is shed.
        let by_latency = ramp(self.baseline.ratio_percent(now), 200, 500).min(SIGN_MAX);
        let by_in_flight =
            cap.map_or(0, |cap| ramp(permille(in_flight.into(), cap.max(1).into()), 800, 1000));
        by_responses.max(by_latency).max(by_in_flight)
    }
}

/// 0 up to `start`, then 750 to 1000 at `end`.
fn ramp(value: u32, start: u32, end: u32) -> u32 {
    if value <= start { 0 } else { (750 + (value - start).min(end - start) * 250 / (end - start)).min(1000) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const ORDER: [Class; 4] = [Class::Sheddable, Class::Free, Class::Standard, Class::Critical];

    #[test]
    fn classes_go_in_order_and_rise_with_strain() {
        let rules = ShedRules::default();
        for strain in 0..=1100 {
            let shed = ORDER.map(|class| rules.fraction(class, strain));
            assert!(strain > 750 || shed == [0; 4], "{strain}: {shed:?}");
            for pair in shed.windows(2) {
                assert!(pair[1] == 0 || pair[0] == 1000, "{strain}: {shed:?}");
            }
            for (now, next) in shed.iter().zip(ORDER.map(|class| rules.fraction(class, strain + 1))) {
                assert!(*now <= next, "{strain}");
            }
        }
        assert_eq!(ORDER.map(|class| rules.fraction(class, 1000)), [1000; 4]);
        let mut rng = crate::Rng::new(3);
        let shed = (0..10_000).filter(|_| rules.sheds(Class::Sheddable, 775, rng.draw())).count();
        assert!((4_700..5_300).contains(&shed), "half: {shed}");
        assert!((0..1000).all(|_| !rules.sheds(Class::Critical, 900, rng.draw())));
    }

    #[test]
    fn marked_retries_are_sheddable() {
        assert_eq!(Class::Critical.of_request(ClientAttempt::Retry), Class::Sheddable);
        assert_eq!(Class::Critical.of_request(ClientAttempt::First), Class::Critical);
    }

    #[test]
    fn a_core_is_strained_after_a_second_and_not_by_one_turn() {
        let mut core = CoreStrain::default();
        core.observe(100 * MS, 100 * MS);
        assert!(core.strain() < 200);
        for _ in 0..40 {
            core.observe(95 * MS, 100 * MS);
        }
        assert!((930..=950).contains(&core.strain()), "{}", core.strain());
        core.observe(MS, Duration::ZERO);
        assert!(core.strain() <= 1000);
    }

    #[test]
    fn each_sign_of_a_cluster_counts() {
        let mut overload = Overload::default();
        for n in 0..1_500u32 {
            overload.observe(LoadSign::None, 10 * MS, n * 10 * MS);
        }
        assert_eq!(overload.strain(5, Some(100), 15_000 * MS), 0);
        assert_eq!(overload.strain(5_000, None, 15_000 * MS), 0, "no cap");
        assert_eq!(overload.strain(90, Some(100), 15_000 * MS), 875);
        let mut refusing = overload.clone();
        for n in 0..100u32 {
            let sign = if n % 4 == 0 { LoadSign::Overloaded } else { LoadSign::None };
            refusing.observe(sign, 10 * MS, (15_000 + n) * MS);
        }
        assert!(
            (800..830).contains(&refusing.strain(0, None, 15_100 * MS)),
            "{}",
            refusing.strain(0, None, 15_100 * MS)
        );
        assert_eq!(refusing.strain(0, None, 25_000 * MS), 0, "forgotten");
        for n in 0..200u32 {
            overload.observe(LoadSign::None, 40 * MS, (15_000 + n * 10) * MS);
        }
        assert!(
            (890..930).contains(&overload.strain(0, None, 17_000 * MS)),
            "{}",
            overload.strain(0, None, 17_000 * MS)
        );
    }
}
