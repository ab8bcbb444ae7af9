//! Who an endpoint is, and what keeps it from taking requests.

use std::time::Duration;

use crate::hash::stable_hash;

/// Identity of an endpoint: the hash of its text, such as `10.0.0.1:8080`. The same on every core and proxy and over
/// every change of the config, whatever the order of the endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId(pub u64);

impl EndpointId {
    #[must_use]
    pub fn of(text: &[u8]) -> Self {
        Self(stable_hash(text))
    }
}

/// Handle of an endpoint in the state of one core. It stays valid over config changes as long as requests are at the
/// endpoint or the config names it; a slot that was let go is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

impl Slot {
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What health checks say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// Nobody checks: taken as healthy.
    #[default]
    Unchecked,
    Healthy,
    Unhealthy,
}

/// How far an endpoint is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// Sessions pinned to it may go on until then.
    pub sessions_until: Duration,
    pub why: DrainCause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainCause {
    /// The config names it no more.
    Removed,
    /// The config or an operator says so.
    Asked,
}

/// What an operator wants of an endpoint while the process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// It drains, whatever the config says.
    Drained,
    /// It does what the config says.
    AsConfigured,
}

/// Why an endpoint gets no new requests, the strongest reason first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    Available,
    Draining(Drain),
    Unhealthy,
    Ejected { until: Duration, cause: crate::outlier::Cause },
}

/// What open connections to an endpoint should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionAdvice {
    Keep,
    /// No new request; an idle one is closed (h1) or gets GOAWAY (h2), a busy one when it becomes idle.
    CloseWhenIdle,
    /// As above, but pinned sessions may still use it.
    SessionsOnly,
}

impl Availability {
    #[must_use]
    pub fn advice(&self, now: Duration) -> ConnectionAdvice {
        match self {
            Self::Draining(drain) if now < drain.sessions_until => ConnectionAdvice::SessionsOnly,
            Self::Draining(_) => ConnectionAdvice::CloseWhenIdle,
            Self::Available | Self::Unhealthy | Self::Ejected { .. } => ConnectionAdvice::Keep,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draining_connections_close_after_the_sessions_time() {
        let second = Duration::from_secs(1);
        let draining = Availability::Draining(Drain { sessions_until: 5 * second, why: DrainCause::Asked });
        assert_eq!(draining.advice(second), ConnectionAdvice::SessionsOnly);
        assert_eq!(draining.advice(5 * second), ConnectionAdvice::CloseWhenIdle);
        assert_eq!(Availability::Unhealthy.advice(second), ConnectionAdvice::Keep);
    }
}
