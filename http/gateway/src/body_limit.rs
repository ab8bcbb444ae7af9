//! The bound on request body bytes: by the announced length before anything is forwarded, and by counting while
//! an unannounced body streams. Called by the chain (announced) and by `relay` (counted).

use http_wire::head::BodyLength;

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
