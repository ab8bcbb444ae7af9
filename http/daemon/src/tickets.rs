//! Session ticket keys of the process: made at the first start, replaced in turn, handed to a successor.
//!
//! Listeners whose config holds no keys use these. Each key is kept as its 80 random bytes, because that is what a
//! successor can be given; it lives in locked pages and is never printed. Keys stay over reloads, so a reload costs
//! no session, and a successor goes on with the same keys and the same date of the next rotation.

use std::fs::File;
use std::io::{self, Read as _};
use std::time::{Duration, Instant};

use tls::{Custody, SecretBytes, TicketKey, TicketKeyError, TicketKeys};

const KEY_BYTES: usize = 80;
/// First word of the message to a successor.
const WORD: &str = "tickets";

/// `next` opens already what `current` will seal after the rotation; `previous` still opens what it has sealed.
#[derive(Debug)]
pub(crate) struct Tickets {
    next: SecretBytes,
    current: SecretBytes,
    previous: Option<SecretBytes>,
    period: Duration,
    due: Instant,
}

impl Tickets {
    /// Fresh keys.
    ///
    /// # Errors
    /// When the system gives no randomness.
    pub(crate) fn generate(period: Duration, now: Instant) -> io::Result<Self> {
        Ok(Self { next: fresh()?, current: fresh()?, previous: None, period, due: now + period })
    }

    /// The keys for one core.
    ///
    /// # Errors
    /// Two keys of one name: not unless randomness repeats itself.
    pub(crate) fn keys(&self) -> Result<TicketKeys, TicketKeyError> {
        let key = |bytes: &SecretBytes| TicketKey::from_bytes(bytes.as_slice());
        TicketKeys::new(
            Some(key(&self.next)?),
            key(&self.current)?,
            self.previous.as_ref().map(key).transpose()?,
        )
    }

    /// When the next rotation is due.
    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    /// `next` becomes current, current becomes previous.
    ///
    /// # Errors
    /// When the system gives no randomness; the keys stay as they are, to be tried again after a minute.
    pub(crate) fn rotate(&mut self, now: Instant) -> io::Result<()> {
        const TRY_AGAIN: Duration = Duration::from_secs(60);
        self.due = now + TRY_AGAIN.min(self.period);
        let new = fresh()?;
        self.due = now + self.period;
        let current = std::mem::replace(&mut self.next, new);
        self.previous = Some(std::mem::replace(&mut self.current, current));
        Ok(())
    }

    /// Whether the kernel keeps the keys out of swap.
    pub(crate) fn custody(&self) -> Custody {
        self.current.custody()
    }

    /// The message to a successor: seconds until the rotation, then the keys in hexadecimal.
    pub(crate) fn bequest(&self, now: Instant) -> SecretBytes {
        let head = format!("{WORD} {}", self.due.saturating_duration_since(now).as_secs());
        let keys = [Some(&self.next), Some(&self.current), self.previous.as_ref()];
        let keys: Vec<_> = keys.into_iter().flatten().collect();
        let mut message = SecretBytes::zeroed(head.len() + keys.len() * (1 + 2 * KEY_BYTES));
        let mut place = message.as_mut_slice().iter_mut();
        let digits = keys.iter().flat_map(|key| {
            let digits = key.as_slice().iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
            std::iter::once(b' ').chain(digits)
        });
        head.bytes().chain(digits).zip(place.by_ref()).for_each(|(byte, place)| *place = byte);
        message
    }

    /// Takes over what [`Tickets::bequest`] wrote; None when it is something else. A rotation is never further away
    /// than `period`.
    pub(crate) fn inherited(message: &SecretBytes, period: Duration, now: Instant) -> Option<Self> {
        let mut words = message.as_slice().split(|byte| *byte == b' ');
        if words.next()? != WORD.as_bytes() {
            return None;
        }
        let seconds: u64 = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
        let (next, current) = (key_of(words.next()?)?, key_of(words.next()?)?);
        let previous = match words.next() {
            Some(word) => Some(key_of(word)?),
            None => None,
        };
        let due = now + Duration::from_secs(seconds).min(period);
        words.next().is_none().then_some(Self { next, current, previous, period, due })
    }
}

/// Whether a message of the restart socket is about ticket keys.
pub(crate) fn is_bequest(text: &str) -> bool {
    text.split(' ').next() == Some(WORD)
}

fn fresh() -> io::Result<SecretBytes> {
    let mut key = SecretBytes::zeroed(KEY_BYTES);
    File::open("/dev/urandom")?.read_exact(key.as_mut_slice())?;
    Ok(key)
}

const fn digit(half: u8) -> u8 {
    match half {
        0..=9 => b'0' + half,
        _ => b'a' + half - 10,
    }
}

fn key_of(digits: &[u8]) -> Option<SecretBytes> {
    if digits.len() != 2 * KEY_BYTES {
        return None;
    }
    let value = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let mut key = SecretBytes::zeroed(KEY_BYTES);
    for (place, pair) in key.as_mut_slice().iter_mut().zip(digits.chunks_exact(2)) {
        let [high, low] = pair else { return None };
        *place = (value(*high)? << 4) | value(*low)?;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(100);

    #[test]
    fn a_successor_has_the_same_keys_and_the_same_date() {
        let start = Instant::now();
        let mut old = Tickets::generate(PERIOD, start).expect("randomness");
        for rotations in 0..3 {
            let now = start + Duration::from_secs(40);
            let new = Tickets::inherited(&old.bequest(now), PERIOD, now).expect("its own message");
            assert_eq!(new.next.as_slice(), old.next.as_slice());
            assert_eq!(new.current.as_slice(), old.current.as_slice());
            let previous = |keys: &Tickets| keys.previous.as_ref().map(|key| key.as_slice().to_vec());
            assert_eq!(previous(&new), previous(&old), "after {rotations} rotations");
            assert_eq!(new.due, now + (old.due - now).min(PERIOD));
            old.rotate(start).expect("randomness");
        }
    }

    #[test]
    fn rotation_moves_the_keys_up() {
        let start = Instant::now();
        let mut keys = Tickets::generate(PERIOD, start).expect("randomness");
        let (next, current) = (keys.next.as_slice().to_vec(), keys.current.as_slice().to_vec());
        keys.rotate(start + PERIOD).expect("randomness");
        assert_eq!(keys.current.as_slice(), next);
        assert_eq!(keys.previous.as_ref().map(SecretBytes::as_slice), Some(current.as_slice()));
        assert_ne!(keys.next.as_slice(), next);
        assert_eq!(keys.due(), start + PERIOD * 2);
        keys.keys().expect("three names");
    }

    #[test]
    fn other_messages_are_not_keys() {
        let now = Instant::now();
        let good = Tickets::generate(PERIOD, now).expect("randomness").bequest(now);
        let text = String::from_utf8(good.as_slice().to_vec()).expect("ASCII");
        let key = "ab".repeat(KEY_BYTES);
        for bad in [
            String::new(),
            "end".to_owned(),
            text.replacen("tickets", "ticket", 1),
            text.replacen("tickets ", "tickets x", 1),
            text.chars().take(text.len() - 1).collect(),
            format!("{text} {key} {key}"),
            format!("{text} {}", "zz".repeat(KEY_BYTES)),
            "tickets 5".to_owned(),
        ] {
            assert!(
                Tickets::inherited(&SecretBytes::from_slice(bad.as_bytes()), PERIOD, now).is_none(),
                "{bad}"
            );
        }
        assert!(Tickets::inherited(&good, PERIOD, now).is_some());
        assert!(is_bequest(&text) && !is_bequest("end") && !is_bequest("0 tickets"));
        assert!(!format!("{good:?}").contains(&text));
    }
}
