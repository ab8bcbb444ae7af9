//! Slow start: an endpoint that is new or came back gets a share that grows over a window.
//!
//! The factor is `max(floor, (age / window) ^ (1 / aggression))`, as in Envoy's `slow_start_config`: aggression 1 is a
//! straight line, above 1 rises early, below 1 late. It is kept as a table of [`STEPS`] steps in thousandths, so that
//! the core computes no powers. Each return to health starts a window of its own (C33); the factor never falls within
//! a window and is never 0.

use std::time::Duration;

use crate::time::{millis, narrow};

/// Steps of the curve; the share changes that often in a window.
pub const STEPS: u32 = 60;

/// Full share, in thousandths.
pub const FULL: u32 = 1000;

#[derive(Clone, Debug, PartialEq)]
pub struct SlowStart {
    window: Duration,
    /// Factor at the end of each step but the last, in thousandths.
    curve: Vec<u32>,
}

impl Default for SlowStart {
    /// 10 % to 100 % over 60 s on a straight line.
    fn default() -> Self {
        Self::new(Duration::from_secs(60), 1.0, 100)
    }
}

impl SlowStart {
    /// A curve over `window`. `floor` is in thousandths, raised to 1 and cut at 1000; an aggression that is not above 0
    /// counts as 1.
    #[must_use]
    pub fn new(window: Duration, aggression: f64, floor: u32) -> Self {
        let exponent = if aggression > 0.0 { aggression.recip() } else { 1.0 };
        let factor = |step: u32| {
            let progress = f64::from(step) / f64::from(STEPS);
            whole_permille(progress.powf(exponent)).clamp(floor.clamp(1, FULL), FULL)
        };
        Self { window, curve: (0..STEPS).map(factor).collect() }
    }

    /// The factor at an age, in thousandths.
    #[must_use]
    pub fn factor(&self, age: Duration) -> u32 {
        self.curve.get(self.step(age) as usize).copied().unwrap_or(FULL)
    }

    /// The age at which the factor changes next; None when it is full.
    #[must_use]
    pub fn next_change(&self, age: Duration) -> Option<Duration> {
        let next = self.step(age) + 1;
        // Rounded up: at that time the step has really changed.
        (next <= STEPS).then(|| {
            let ms = millis(self.window).saturating_mul(u64::from(next)).div_ceil(u64::from(STEPS));
            Duration::from_millis(ms.max(millis(age).saturating_add(1)))
        })
    }

    fn step(&self, age: Duration) -> u32 {
        let step = millis(age).saturating_mul(u64::from(STEPS)).checked_div(millis(self.window));
        narrow(step.unwrap_or(u64::MAX)).min(STEPS)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the share lies in 0 to 1, and a float-to-integer cast saturates"
)]
fn whole_permille(share: f64) -> u32 {
    (share * f64::from(FULL)).round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_share_rises_from_the_floor_to_full() {
        let slow = SlowStart::default();
        assert_eq!(slow.factor(Duration::ZERO), 100);
        assert_eq!(slow.factor(30 * SECOND), 500);
        assert!(slow.factor(59 * SECOND) >= 950);
        assert_eq!(slow.factor(60 * SECOND), FULL);
        assert_eq!(slow.factor(Duration::MAX), FULL);
        let factors: Vec<u32> = (0..700u32).map(|tenth| slow.factor(SECOND * tenth / 10)).collect();
        assert!(factors.is_sorted() && factors[0] > 0, "{factors:?}");
    }

    #[test]
    fn curve_and_floor_are_the_users_and_never_zero() {
        let early = SlowStart::new(20 * SECOND, 2.0, 100);
        assert!((490..=510).contains(&early.factor(5 * SECOND)), "sqrt(0.25): {}", early.factor(5 * SECOND));
        let late = SlowStart::new(20 * SECOND, 0.5, 0);
        assert_eq!(late.factor(Duration::ZERO), 1, "a floor of 0 is not nothing");
        assert_eq!(late.factor(10 * SECOND), 250);
        assert_eq!(SlowStart::new(20 * SECOND, f64::NAN, 5000).factor(Duration::ZERO), FULL);
        assert_eq!(SlowStart::new(Duration::ZERO, 1.0, 1).factor(Duration::ZERO), FULL, "no window");
    }

    #[test]
    fn every_change_is_announced() {
        for window in [7, 1000, 20_000, 60_000] {
            let slow = SlowStart::new(Duration::from_millis(window), 1.0, 10);
            let (mut age, mut steps) = (Duration::ZERO, 0);
            while let Some(next) = slow.next_change(age) {
                assert!(next > age && slow.factor(next) >= slow.factor(age), "{window}: {age:?} {next:?}");
                (age, steps) = (next, steps + 1);
            }
            assert_eq!(slow.factor(age), FULL);
            assert!(
                steps <= STEPS && age >= Duration::from_millis(window),
                "{window}: {steps} steps to {age:?}"
            );
        }
    }
}
