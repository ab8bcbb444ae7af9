//! The simulated process behind an endpoint: how long it takes, and how it fails.

use http_balance::{Outcome, Rng};

/// What the process does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    Works,
    /// Answers 500 within a millisecond: the black hole.
    FailsFast,
    /// Answers 503 with the header that says that nothing was processed.
    Refuses,
    /// Nobody listens.
    Down,
}

#[derive(Clone, Debug)]
pub(crate) struct Backend {
    pub(crate) behaviour: Behaviour,
    /// Requests that it works on without slowing down.
    pub(crate) capacity: f64,
    /// Mean, exponentially distributed.
    pub(crate) service_ms: f64,
    /// Just started: three times as slow at first, as before after [`WARM_UP_MS`].
    pub(crate) started_ms: Option<u32>,
    pub(crate) in_flight: u32,
    /// Attempts that reached it.
    pub(crate) attempts: u64,
}

const WARM_UP_MS: u32 = 30_000;

/// How an attempt will end: after so many milliseconds, with an outcome.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    pub(crate) after_ms: u32,
    pub(crate) outcome: Outcome,
    /// Nothing was processed, and the response says so.
    pub(crate) not_processed: bool,
}

impl Backend {
    pub(crate) fn new(capacity: f64, service_ms: f64) -> Self {
        Self {
            behaviour: Behaviour::Works,
            capacity,
            service_ms,
            started_ms: None,
            in_flight: 0,
            attempts: 0,
        }
    }

    /// Takes an attempt in.
    pub(crate) fn serve(&mut self, now_ms: u32, rng: &mut Rng) -> Ending {
        self.attempts += 1;
        self.in_flight += 1;
        let quick = |outcome, not_processed| Ending { after_ms: 1, outcome, not_processed };
        match self.behaviour {
            Behaviour::Works => {
                let crowding = (f64::from(self.in_flight) / self.capacity).max(1.0);
                let ms = exponential(rng) * self.service_ms * crowding * self.coldness(now_ms);
                Ending { after_ms: whole_ms(ms), outcome: Outcome::Success, not_processed: false }
            }
            Behaviour::FailsFast => quick(Outcome::ServerError, false),
            Behaviour::Refuses => quick(Outcome::GatewayError, true),
            Behaviour::Down => quick(Outcome::ConnectFailed, true),
        }
    }

    fn coldness(&self, now_ms: u32) -> f64 {
        let age = self.started_ms.map_or(WARM_UP_MS, |at| (now_ms - at).min(WARM_UP_MS));
        1.0 + 2.0 * (1.0 - f64::from(age) / f64::from(WARM_UP_MS))
    }
}

/// With the mean 1.
pub(crate) fn exponential(rng: &mut Rng) -> f64 {
    let uniform = f64::from(u32::try_from(rng.draw() >> 32).expect("half of 64 bits")) / f64::from(u32::MAX);
    -(1.0 - uniform).max(1e-9).ln()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a duration of the simulation is positive and small, and the cast saturates"
)]
pub(crate) fn whole_ms(ms: f64) -> u32 {
    ms.ceil().clamp(1.0, 16_000.0) as u32
}
