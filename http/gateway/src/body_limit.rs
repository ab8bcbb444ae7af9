//! The bounds on request bodies. Bytes: by the announced length before anything is forwarded, and by counting while an
//! unannounced body streams. Rate: by windows (C26 in the project's case list). Called by the chain (announced) and by
//! `relay` (counted).

use std::time::Duration;

use http_wire::head::BodyLength;

/// The least that a client has to send of a body: so many bytes in each window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyRate {
    pub bytes: u64,
    pub window: Duration,
}

/// How far a body has come, window by window. A window ends as soon as its bytes have come, and the next one begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct RateWatch {
    /// When the present window began, and how many bytes there were.
    window: Option<(Duration, u64)>,
}

impl RateWatch {
    /// By when the next bytes have to be there, of a body of which `bytes` have come. The first window begins with the
    /// first byte.
    pub fn due(&mut self, rate: &BodyRate, bytes: u64, now: Duration) -> Duration {
        if bytes == 0 {
            return Duration::MAX;
        }
        let (began, before) = *self.window.get_or_insert((now, bytes));
        if bytes - before < rate.bytes {
            return began.saturating_add(rate.window);
        }
        self.window = Some((now, bytes));
        now.saturating_add(rate.window)
    }

    /// The client is not waited for: the next window begins when it is again.
    pub fn pause(&mut self) {
        self.window = None;
    }
}

/// The body is longer than the route allows; the answer is 413 (RFC 9110 §15.5.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyTooLarge;

/// Counts body bytes down to a route's bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyMeter {
    bytes_left: u64,
}

impl BodyMeter {
    /// `None`: no bound.
    pub const fn new(body_bytes_max: Option<u64>) -> Self {
        // Nothing that fits a wire counts 2^64 bytes.
        Self {
            bytes_left: match body_bytes_max {
                Some(max) => max,
                None => u64::MAX,
            },
        }
    }

    /// Checks the length a head announces; streamed bodies pass here and are counted.
    ///
    /// # Errors
    /// `BodyTooLarge` when the announced length is over the bound.
    pub const fn announced(&self, length: BodyLength) -> Result<(), BodyTooLarge> {
        match length {
            BodyLength::Exact(bytes) if bytes > self.bytes_left => Err(BodyTooLarge),
            BodyLength::Exact(_) | BodyLength::Empty | BodyLength::Streamed | BodyLength::UntilClose => {
                Ok(())
            }
        }
    }

    /// Counts `bytes` that arrived.
    ///
    /// # Errors
    /// `BodyTooLarge` for the first byte over the bound and for each one after it.
    pub fn arrived(&mut self, bytes: usize) -> Result<(), BodyTooLarge> {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        match self.bytes_left.checked_sub(bytes) {
            Some(left) => {
                self.bytes_left = left;
                Ok(())
            }
            None => {
                self.bytes_left = 0;
                Err(BodyTooLarge)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_window_has_its_bytes_or_is_over() {
        let second = Duration::from_secs(1);
        let rate = BodyRate { bytes: 100, window: 10 * second };
        let mut watch = RateWatch::default();
        assert_eq!(watch.due(&rate, 0, second), Duration::MAX, "silence before the body is the idle limit's");
        assert_eq!(watch.due(&rate, 1, 2 * second), 12 * second);
        assert_eq!(watch.due(&rate, 100, 11 * second), 12 * second, "99 of 100");
        assert_eq!(watch.due(&rate, 101, 11 * second), 21 * second);
        assert_eq!(watch.due(&rate, 102, 20 * second), 21 * second, "what came before is no credit");
        watch.pause();
        assert_eq!(watch.due(&rate, 102, 30 * second), 40 * second);
    }

    #[test]
    fn announced_lengths_pass_up_to_the_bound() {
        for max in [0u64, 1, 1000, u64::MAX - 1] {
            let meter = BodyMeter::new(Some(max));
            assert_eq!(meter.announced(BodyLength::Exact(max)), Ok(()));
            assert_eq!(meter.announced(BodyLength::Exact(max + 1)), Err(BodyTooLarge));
            assert_eq!(meter.announced(BodyLength::Streamed), Ok(()));
            assert_eq!(meter.announced(BodyLength::Empty), Ok(()));
        }
        assert_eq!(BodyMeter::new(None).announced(BodyLength::Exact(u64::MAX)), Ok(()));
    }

    #[test]
    fn counted_bytes_pass_up_to_the_bound_however_they_are_cut() {
        for piece in [1usize, 3, 7, 10] {
            let mut meter = BodyMeter::new(Some(10));
            let mut sent = 0;
            while sent + piece <= 10 {
                assert_eq!(meter.arrived(piece), Ok(()), "piece {piece} at {sent}");
                sent += piece;
            }
            assert_eq!(meter.arrived(10 - sent), Ok(()));
            assert_eq!(meter.arrived(0), Ok(()));
            assert_eq!(meter.arrived(1), Err(BodyTooLarge));
        }
        let mut over = BodyMeter::new(Some(10));
        assert_eq!(over.arrived(11), Err(BodyTooLarge));
        assert_eq!(over.arrived(1), Err(BodyTooLarge), "a meter does not recover");
    }
}
