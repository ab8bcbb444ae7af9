//! Which requests are mirrored, and when a mirror must not be made.
//!
//! The sample is by hash of a stable key, so that all requests of a user are mirrored or none. A mirror that has no room
//! is dropped and counted; it never waits, and the primary never waits for it (C50). A mirror cluster that answers nothing
//! is left alone for a while, so that the core's time goes to the primary and not to connections that nobody accepts.

use std::time::Duration;

use crate::hash::mix;
use crate::time::millis;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorRules {
    /// Sampled part of the keys, in millionths.
    pub sample: u32,
    /// Two mirrors with different salts sample independently.
    pub salt: u64,
    pub in_flight_max: u32,
    /// Request bodies a second, per core.
    pub bytes_per_second_max: u64,
    /// Bytes of one request body that are held for a mirror that takes it more slowly than the primary.
    pub buffered_bytes_max: u64,
}

/// Whether a key is in the sample.
#[inline]
#[must_use]
pub fn is_sampled(rules: &MirrorRules, key: u64) -> bool {
    mix(key, rules.salt ^ 0x6d69_7272_6f72) % 1_000_000 < u64::from(rules.sample)
}

/// Why a sampled request is not mirrored, or not to its end; the word for metric labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dropped {
    InFlight,
    Bandwidth,
    /// The mirror's own bytes.
    Buffer,
    /// The bytes of all mirrors of the cluster.
    Memory,
    /// The last mirrors came to nothing, one after the other.
    Unanswered,
}

impl Dropped {
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::InFlight => "in_flight_limit",
            Self::Bandwidth => "bandwidth_limit",
            Self::Buffer => "buffer_full",
            Self::Memory => "memory_limit",
            Self::Unanswered => "unanswered",
        }
    }
}

/// What the mirrors of one cluster take of one core. Places are one count, whoever takes them; bandwidth is counted for
/// each limit apart, so that routes with different ones do not take each other's.
#[derive(Clone, Debug, Default)]
pub struct MirrorRoom {
    in_flight: u32,
    held_bytes: u64,
    buckets: Vec<Bucket>,
    unanswered_in_a_row: u32,
    /// No mirror before.
    paused_until: Duration,
}

/// Body bytes that one core holds for all mirrors of a cluster.
pub const HELD_BYTES_MAX: u64 = 16 << 20;

/// Mirrors without an answer, one after the other, that make a pause. As many as eject an endpoint.
const UNANSWERED_MAX: u32 = 5;

/// After it every mirror is tried again until one more comes to nothing.
const PAUSE: Duration = Duration::from_secs(1);

/// Limits of which bandwidth is remembered; those of one config are few, and old ones go first.
const BUCKETS_MAX: usize = 16;

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Its limit, a second.
    bytes_max: u64,
    /// Bytes that may be sent now; refilled by time, at most a second's worth. It starts full.
    bytes: u64,
    filled_ms: u64,
}

impl MirrorRoom {
    /// Takes a place for one mirror; given back with [`Self::finished`].
    ///
    /// # Errors
    /// The last ones came to nothing, no place, or not a byte of bandwidth left.
    pub fn start(&mut self, rules: &MirrorRules, now: Duration) -> Result<(), Dropped> {
        self.answers(now)?;
        if self.in_flight >= rules.in_flight_max {
            return Err(Dropped::InFlight);
        }
        if self.bucket(rules, now).bytes == 0 {
            return Err(Dropped::Bandwidth);
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Takes `bytes` more of the body of a mirror that holds `buffered` unsent; given back with [`Self::let_go`].
    ///
    /// # Errors
    /// The mirror is to be cut.
    pub fn hold(
        &mut self,
        rules: &MirrorRules,
        bytes: u64,
        buffered: u64,
        now: Duration,
    ) -> Result<(), Dropped> {
        if buffered.saturating_add(bytes) > rules.buffered_bytes_max {
            return Err(Dropped::Buffer);
        }
        let held_bytes = self.held_bytes.saturating_add(bytes);
        if held_bytes > HELD_BYTES_MAX {
            return Err(Dropped::Memory);
        }
        let bucket = self.bucket(rules, now);
        bucket.bytes = bucket.bytes.checked_sub(bytes).ok_or(Dropped::Bandwidth)?;
        self.held_bytes = held_bytes;
        Ok(())
    }

    /// Bytes that were held have been sent, or are dropped.
    pub fn let_go(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.held_bytes, "{bytes} of {} held", self.held_bytes);
        self.held_bytes = self.held_bytes.saturating_sub(bytes);
    }

    /// Whether mirrors are worth a try.
    ///
    /// # Errors
    /// The last ones came to nothing.
    pub fn answers(&self, now: Duration) -> Result<(), Dropped> {
        if now < self.paused_until { Err(Dropped::Unanswered) } else { Ok(()) }
    }

    /// A mirror that was sent has been answered, or has come to nothing.
    pub fn ended(&mut self, is_answered: bool, now: Duration) {
        if is_answered {
            (self.unanswered_in_a_row, self.paused_until) = (0, Duration::ZERO);
            return;
        }
        self.unanswered_in_a_row = self.unanswered_in_a_row.saturating_add(1);
        if self.unanswered_in_a_row >= UNANSWERED_MAX {
            self.paused_until = now.saturating_add(PAUSE);
        }
    }

    /// A mirror is over, however.
    pub fn finished(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    #[must_use]
    pub const fn in_flight(&self) -> u32 {
        self.in_flight
    }

    #[must_use]
    pub const fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// The bucket of a limit, filled up to now. The one that was used last stands last.
    fn bucket(&mut self, rules: &MirrorRules, now: Duration) -> &mut Bucket {
        let bytes_max = rules.bytes_per_second_max;
        let known = self.buckets.iter().position(|bucket| bucket.bytes_max == bytes_max);
        let mut bucket = match known {
            Some(at) => self.buckets.remove(at),
            None => Bucket { bytes_max, bytes: bytes_max, filled_ms: millis(now) },
        };
        let elapsed_ms = millis(now).saturating_sub(bucket.filled_ms);
        let earned = bytes_max.saturating_mul(elapsed_ms) / 1000;
        // Shorter spans than one byte takes are left to add up.
        if earned > 0 {
            bucket.bytes = bucket.bytes.saturating_add(earned).min(bytes_max);
            bucket.filled_ms = millis(now);
        }
        if self.buckets.len() >= BUCKETS_MAX {
            self.buckets.remove(0);
        }
        self.buckets.push(bucket);
        let last = self.buckets.len() - 1;
        &mut self.buckets[last]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const RULES: MirrorRules = MirrorRules {
        sample: 100_000,
        salt: 1,
        in_flight_max: 2,
        bytes_per_second_max: 1000,
        buffered_bytes_max: 600,
    };

    #[test]
    fn a_tenth_is_a_tenth_of_the_keys_and_stable() {
        let keys = (0..100_000u64).map(|n| crate::stable_hash(&n.to_le_bytes()));
        let sampled: Vec<u64> = keys.clone().filter(|key| is_sampled(&RULES, *key)).collect();
        assert!(sampled.len().abs_diff(10_000) < 300, "{}", sampled.len());
        assert!(sampled.iter().all(|key| is_sampled(&RULES, *key)));
        let wider = MirrorRules { sample: 200_000, ..RULES };
        assert!(sampled.iter().all(|key| is_sampled(&wider, *key)), "a larger sample keeps the smaller one");
        let other = MirrorRules { salt: 2, ..RULES };
        let both = sampled.iter().filter(|key| is_sampled(&other, **key)).count();
        assert!(both.abs_diff(1000) < 200, "independent: {both}");
        assert!(keys.clone().all(|key| is_sampled(&MirrorRules { sample: 1_000_000, ..RULES }, key)));
        assert!(!keys.clone().any(|key| is_sampled(&MirrorRules { sample: 0, ..RULES }, key)));
    }

    #[test]
    fn a_low_limit_takes_nothing_of_a_high_one() {
        let mut room = MirrorRoom::default();
        let high = MirrorRules { bytes_per_second_max: 100_000, buffered_bytes_max: 100_000, ..RULES };
        assert_eq!(room.hold(&high, 40_000, 0, MS), Ok(()));
        assert_eq!(room.hold(&RULES, 600, 0, MS), Ok(()));
        assert_eq!(room.hold(&high, 60_000, 0, MS), Ok(()), "what the high one has left");
        assert_eq!(room.hold(&RULES, 401, 0, MS), Err(Dropped::Bandwidth));
        for limit in 1..100 {
            let other = MirrorRules { bytes_per_second_max: limit, ..RULES };
            assert_eq!(room.hold(&other, limit.min(600), 0, MS), Ok(()));
        }
        assert!(room.buckets.len() <= BUCKETS_MAX);
    }

    #[test]
    fn who_never_answers_is_asked_once_in_a_while() {
        let mut room = MirrorRoom::default();
        let mut asked = 0;
        for ms in 0..10_000 {
            if room.start(&RULES, ms * MS).is_ok() {
                asked += 1;
                room.ended(false, ms * MS);
                room.finished();
            }
        }
        assert_eq!(asked, 5 + 9, "five, then one in each second");
        assert_eq!(room.start(&RULES, 10_000 * MS), Err(Dropped::Unanswered));
        let again = 20_000 * MS;
        assert_eq!(room.start(&RULES, again), Ok(()));
        room.ended(true, again);
        for _ in 0..4 {
            room.ended(false, again);
        }
        assert_eq!(room.start(&RULES, again), Ok(()), "one answer, and five more have to fail");
        room.ended(false, again);
        assert_eq!(room.answers(again), Err(Dropped::Unanswered));
        room.ended(true, again);
        assert_eq!(room.answers(again), Ok(()), "an answer that was on its way ends the pause");
    }

    #[test]
    fn room_is_bounded_and_comes_back() {
        let mut room = MirrorRoom::default();
        assert_eq!(room.start(&RULES, MS), Ok(()));
        assert_eq!(room.start(&RULES, MS), Ok(()));
        assert_eq!(room.start(&RULES, MS), Err(Dropped::InFlight));
        assert_eq!(room.hold(&RULES, 601, 0, MS), Err(Dropped::Buffer));
        assert_eq!(room.hold(&RULES, 500, 101, MS), Err(Dropped::Buffer));
        assert_eq!(room.hold(&RULES, 500, 100, MS), Ok(()));
        assert_eq!(room.hold(&RULES, 500, 0, MS), Ok(()));
        assert_eq!(room.hold(&RULES, 1, 0, MS), Err(Dropped::Bandwidth));
        room.finished();
        assert_eq!(room.start(&RULES, MS), Err(Dropped::Bandwidth));
        assert_eq!(room.hold(&RULES, 100, 0, 101 * MS), Ok(()), "a tenth of a second earns a tenth");
        assert_eq!(room.hold(&RULES, 1, 0, 101 * MS), Err(Dropped::Bandwidth));
        assert_eq!(room.hold(&RULES, 600, 0, 60_000 * MS), Ok(()));
        assert_eq!(
            room.hold(&RULES, 401, 0, 60_000 * MS),
            Err(Dropped::Bandwidth),
            "no more than a second's worth"
        );
        room.finished();
        assert_eq!(room.in_flight(), 0);
        let held = room.held_bytes();
        room.let_go(held);
        assert_eq!((held, room.held_bytes()), (500 + 500 + 100 + 600, 0), "what was refused is not held");
    }

    #[test]
    fn what_all_mirrors_hold_is_bounded() {
        let wide = MirrorRules {
            bytes_per_second_max: 4 * HELD_BYTES_MAX,
            buffered_bytes_max: HELD_BYTES_MAX / 4,
            ..RULES
        };
        let mut room = MirrorRoom::default();
        for _ in 0..4 {
            assert_eq!(room.hold(&wide, HELD_BYTES_MAX / 4, 0, MS), Ok(()));
        }
        assert_eq!(room.hold(&wide, 1, 0, MS), Err(Dropped::Memory));
        room.let_go(1);
        assert_eq!(room.hold(&wide, 1, 0, MS), Ok(()));
        assert_eq!(room.held_bytes(), HELD_BYTES_MAX);
    }
}
