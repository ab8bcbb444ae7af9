//! A hierarchical timer wheel per shard, and the lazy [`Deadline`] that a connection moves for free.
//!
//! Four levels of 64 slots, one tick = 1 ms, up to about 4.6 h; longer deadlines are re-armed at that horizon.
//! Moving a deadline later is one store: the entry stays where it is and is put back when it fires early
//! (a request therefore costs no timer operation). Varghese and Lauck, "Hashed and hierarchical timing
//! wheels", 1987.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::clock;

const LEVELS: usize = 4;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const HORIZON_TICKS: u64 = (1 << (SLOT_BITS * 4)) - 1;
const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Entry {
    /// What the owner wants; `None` while disarmed.
    deadline: Option<Duration>,
    /// The tick that the entry is filed under; it fires or is put back then.
    filed: u64,
    /// The slot list that the entry is in, as level * SLOTS + slot; `NONE` when in no list.
    list: u32,
    next: u32,
    previous: u32,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct Wheel {
    entries: Vec<Entry>,
    free: Vec<u32>,
    heads: [u32; LEVELS * SLOTS],
    occupied: [u64; LEVELS],
    /// All ticks up to and including this one have fired.
    tick: u64,
}

thread_local! {
    static WHEEL: RefCell<Wheel> = const { RefCell::new(Wheel::new()) };
}

/// Nanoseconds of a tick.
const TICK_NS: u32 = 1_000_000;

// In seconds and the rest, because a division of 128-bit numbers is a call of 70 instructions.
fn tick_of(time: Duration) -> u64 {
    time.as_secs().saturating_mul(1000).saturating_add(u64::from(time.subsec_nanos() / TICK_NS))
}

/// The first tick at which `time` has passed.
fn tick_after(time: Duration) -> u64 {
    time.as_secs().saturating_mul(1000).saturating_add(u64::from(time.subsec_nanos().div_ceil(TICK_NS)))
}

impl Wheel {
    const fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            heads: [NONE; LEVELS * SLOTS],
            occupied: [0; LEVELS],
            tick: 0,
        }
    }

    fn allocate(&mut self) -> u32 {
        let blank = Entry { deadline: None, filed: 0, list: NONE, next: NONE, previous: NONE, waker: None };
        if let Some(index) = self.free.pop() {
            self.entries[index as usize] = blank;
            return index;
        }
        let index = u32::try_from(self.entries.len()).expect("fewer than 4 billion deadlines");
        self.entries.push(blank);
        index
    }

    /// Puts an entry into the list for `tick`, or the nearest one that is still to come.
    fn link(&mut self, index: u32, tick: u64) {
        let tick = tick.max(self.tick + 1).min(self.tick + HORIZON_TICKS);
        // The level is the highest group of bits in which `tick` differs from now.
        let differing = 63 - (tick ^ self.tick).leading_zeros();
        let level = ((differing / SLOT_BITS) as usize).min(LEVELS - 1);
        let slot = usize::try_from((tick >> (SLOT_BITS * u32::try_from(level).expect("4 levels"))) & 63)
            .expect("masked to 6 bits");
        let list = level * SLOTS + slot;
        let head = self.heads[list];
        if head != NONE {
            self.entries[head as usize].previous = index;
        }
        let entry = &mut self.entries[index as usize];
        entry.filed = tick;
        entry.list = u32::try_from(list).expect("256 lists");
        entry.next = head;
        entry.previous = NONE;
        self.heads[list] = index;
        self.occupied[level] |= 1 << slot;
    }

    fn unlink(&mut self, index: u32) {
        let Entry { list, next, previous, .. } = self.entries[index as usize];
        if list == NONE {
            return;
        }
        if next != NONE {
            self.entries[next as usize].previous = previous;
        }
        if previous == NONE {
            self.heads[list as usize] = next;
            if next == NONE {
                self.occupied[list as usize / SLOTS] &= !(1 << (list as usize % SLOTS));
            }
        } else {
            self.entries[previous as usize].next = next;
        }
        self.entries[index as usize].list = NONE;
    }

    fn set(&mut self, index: u32, deadline: Duration) {
        let entry = &mut self.entries[index as usize];
        let tick = tick_after(deadline);
        entry.deadline = Some(deadline);
        if entry.list == NONE || tick < entry.filed {
            self.unlink(index);
            self.link(index, tick);
        }
    }

    /// The next tick at which a list has to be looked at.
    fn next_tick(&self) -> Option<u64> {
        let mut earliest: Option<u64> = None;
        for level in 0..LEVELS {
            let shift = SLOT_BITS * u32::try_from(level).expect("4 levels");
            let occupied = self.occupied[level];
            if occupied == 0 {
                continue;
            }
            let here = self.tick >> shift;
            let position = u32::try_from(here & 63).expect("masked to 6 bits");
            // Slots after the current one come first, then the ones that wrapped round.
            let distance = occupied.rotate_right(position + 1).trailing_zeros() + 1;
            let tick = (here + u64::from(distance)) << shift;
            earliest = Some(earliest.map_or(tick, |e| e.min(tick)));
        }
        earliest
    }

    /// Takes all entries of the lists that are due at `tick`, from the coarse levels down.
    fn take_due(&mut self, tick: u64, due: &mut Vec<u32>) {
        for level in (0..LEVELS).rev() {
            let shift = SLOT_BITS * u32::try_from(level).expect("4 levels");
            if tick & ((1 << shift) - 1) != 0 {
                continue;
            }
            let slot = usize::try_from((tick >> shift) & 63).expect("masked to 6 bits");
            let mut index = std::mem::replace(&mut self.heads[level * SLOTS + slot], NONE);
            self.occupied[level] &= !(1 << slot);
            while index != NONE {
                let entry = &mut self.entries[index as usize];
                entry.list = NONE;
                due.push(index);
                index = entry.next;
            }
        }
    }

    /// Moves to `now`, re-arms entries whose deadline has moved on, and collects the wakers of the others.
    fn advance(&mut self, now: Duration, wakers: &mut Vec<Waker>) {
        let target = tick_of(now);
        let mut due = Vec::new();
        while let Some(tick) = self.next_tick().filter(|&tick| tick <= target) {
            self.tick = tick;
            self.take_due(tick, &mut due);
            for index in due.drain(..) {
                let entry = &mut self.entries[index as usize];
                match entry.deadline {
                    Some(deadline) if deadline > now => self.link(index, tick_after(deadline)),
                    Some(_) => wakers.extend(entry.waker.take()),
                    None => {}
                }
            }
        }
        self.tick = self.tick.max(target);
    }
}

/// The one wait of a shard that is finer than a tick; see [`poll_sharp`].
#[derive(Debug)]
struct Sharp {
    at: Duration,
    waker: Waker,
}

thread_local! {
    static SHARP: RefCell<Option<Sharp>> = const { RefCell::new(None) };
}

/// Ready once this turn's time has reached `at`, as exactly as the kernel wakes the thread and not to a tick of the
/// wheel: for the pacing of a load generator. A shard has one such wait; a later one takes its place.
pub fn poll_sharp(cx: &Context<'_>, at: Duration) -> Poll<()> {
    if clock::now() >= at {
        return Poll::Ready(());
    }
    SHARP.with(|sharp| *sharp.borrow_mut() = Some(Sharp { at, waker: cx.waker().clone() }));
    Poll::Pending
}

/// Fires what is due.
pub(crate) fn advance(now: Duration) {
    let mut wakers = Vec::new();
    SHARP.with(|sharp| {
        let due = sharp.borrow_mut().take_if(|sharp| sharp.at <= now);
        wakers.extend(due.map(|sharp| sharp.waker));
    });
    WHEEL.with(|wheel| wheel.borrow_mut().advance(now, &mut wakers));
    wakers.into_iter().for_each(Waker::wake);
}

/// How long the loop may wait for the kernel before a timer is due.
pub(crate) fn until_next(now: Duration) -> Option<Duration> {
    let tick = WHEEL.with(|wheel| wheel.borrow().next_tick()).map(Duration::from_millis);
    let sharp = SHARP.with(|sharp| sharp.borrow().as_ref().map(|sharp| sharp.at));
    Some(tick.into_iter().chain(sharp).min()?.saturating_sub(now))
}

/// A point in time that its owner moves at will; cheap to push further into the future.
///
/// Only the task that polled last is woken.
#[derive(Debug)]
pub struct Deadline {
    entry: Cell<u32>,
}

impl Default for Deadline {
    fn default() -> Self {
        Self::new()
    }
}

impl Deadline {
    /// A disarmed deadline; takes no room in the wheel until it is set.
    pub const fn new() -> Self {
        Self { entry: Cell::new(NONE) }
    }

    /// Arms it for a time since the epoch.
    pub fn set(&self, at: Duration) {
        WHEEL.with(|wheel| {
            let mut wheel = wheel.borrow_mut();
            if self.entry.get() == NONE {
                self.entry.set(wheel.allocate());
            }
            wheel.set(self.entry.get(), at);
        });
    }

    /// Arms it for `after` from this turn's time.
    pub fn set_after(&self, after: Duration) {
        self.set(clock::now().saturating_add(after));
    }

    /// Disarms it: it will not fire. The entry leaves the wheel when its old time comes.
    pub fn clear(&self) {
        if self.entry.get() != NONE {
            WHEEL.with(|wheel| wheel.borrow_mut().entries[self.entry.get() as usize].deadline = None);
        }
    }

    /// The time it is armed for.
    pub fn at(&self) -> Option<Duration> {
        if self.entry.get() == NONE {
            return None;
        }
        WHEEL.with(|wheel| wheel.borrow().entries[self.entry.get() as usize].deadline)
    }

    /// Whether it is armed and its time has come.
    pub fn is_expired(&self) -> bool {
        self.at().is_some_and(|at| at <= clock::now())
    }

    /// Ready once its time has come; a disarmed deadline is never ready.
    pub fn poll_expired(&self, cx: &Context<'_>) -> Poll<()> {
        if self.entry.get() == NONE {
            return Poll::Pending;
        }
        WHEEL.with(|wheel| {
            let mut wheel = wheel.borrow_mut();
            let index = self.entry.get();
            let entry = &mut wheel.entries[index as usize];
            if entry.deadline.is_some_and(|at| at <= clock::now()) {
                return Poll::Ready(());
            }
            if !entry.waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
                entry.waker = Some(cx.waker().clone());
            }
            if let (Some(at), NONE) = (entry.deadline, entry.list) {
                wheel.link(index, tick_after(at));
            }
            Poll::Pending
        })
    }
}

impl Deadline {
    /// Ready once `due` has passed; until then the task is woken by `due`. For an owner that knows its due time by
    /// itself and moves it often: an earlier arming is left as it is, and costs one wake too many at its old time.
    pub fn poll_until(&self, due: Duration, cx: &Context<'_>) -> Poll<()> {
        if due <= clock::now() {
            return Poll::Ready(());
        }
        WHEEL.with(|wheel| {
            let mut wheel = wheel.borrow_mut();
            if self.entry.get() == NONE {
                self.entry.set(wheel.allocate());
            }
            let index = self.entry.get();
            let entry = &mut wheel.entries[index as usize];
            if !entry.waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
                entry.waker = Some(cx.waker().clone());
            }
            if entry.list == NONE || entry.deadline.is_none_or(|at| at > due) {
                wheel.set(index, due);
            }
        });
        Poll::Pending
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        let index = self.entry.get();
        if index == NONE {
            return;
        }
        // The wheel is a thread local; at thread exit it may be gone first, and then there is nothing to undo.
        let _gone: Result<(), std::thread::AccessError> = WHEEL.try_with(|wheel| {
            let mut wheel = wheel.borrow_mut();
            wheel.unlink(index);
            let entry = &mut wheel.entries[index as usize];
            entry.deadline = None;
            entry.waker = None;
            wheel.free.push(index);
        });
    }
}

/// Waits for a span of time.
pub async fn sleep(span: Duration) {
    let deadline = Deadline::new();
    deadline.set_after(span);
    poll_fn(|cx| deadline.poll_expired(cx)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fires_at(wheel: &mut Wheel, index: u32, from: u64, to: u64) -> Option<u64> {
        for ms in from..=to {
            wheel.entries[index as usize].waker = Some(Waker::noop().clone());
            let mut wakers = Vec::new();
            wheel.advance(Duration::from_millis(ms), &mut wakers);
            if !wakers.is_empty() {
                return Some(ms);
            }
        }
        None
    }

    #[test]
    fn a_deadline_fires_in_its_millisecond_on_every_level() {
        for start in [0u64, 1, 63, 64, 4095, 4097, 262_143, 1_000_001] {
            for span in [1u64, 2, 63, 64, 65, 127, 128, 4095, 4096, 4097, 70_000] {
                let mut wheel = Wheel::new();
                wheel.advance(Duration::from_millis(start), &mut Vec::new());
                let index = wheel.allocate();
                wheel.set(index, Duration::from_millis(start + span));
                let fired = fires_at(&mut wheel, index, start + span.saturating_sub(3), start + span + 3);
                assert_eq!(fired, Some(start + span), "start {start} span {span}");
            }
        }
    }

    #[test]
    fn moving_a_deadline_later_costs_no_relink_and_still_fires_late() {
        let mut wheel = Wheel::new();
        let index = wheel.allocate();
        wheel.set(index, Duration::from_millis(10));
        let list = wheel.entries[index as usize].list;
        wheel.set(index, Duration::from_millis(500));
        assert_eq!(wheel.entries[index as usize].list, list, "the entry stayed where it was");
        assert_eq!(fires_at(&mut wheel, index, 1, 600), Some(500));
    }

    #[test]
    fn moving_a_deadline_earlier_fires_early() {
        let mut wheel = Wheel::new();
        let index = wheel.allocate();
        wheel.set(index, Duration::from_millis(5_000));
        wheel.set(index, Duration::from_millis(20));
        assert_eq!(fires_at(&mut wheel, index, 1, 100), Some(20));
    }

    #[test]
    fn jumps_over_many_slots_lose_nothing() {
        // A xorshift walk of arming and jumping; every deadline must have fired by the jump that passes it.
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let mut wheel = Wheel::new();
        let mut armed: Vec<(u32, u64)> = Vec::new();
        let mut now = 0u64;
        for _ in 0..20_000 {
            let at = now + 1 + random() % 300_000;
            let index = wheel.allocate();
            wheel.set(index, Duration::from_millis(at));
            wheel.entries[index as usize].waker = Some(Waker::noop().clone());
            armed.push((index, at));
            now += random() % 1_000;
            wheel.advance(Duration::from_millis(now), &mut Vec::new());
            armed.retain(|&(index, at)| {
                let waiting = wheel.entries[index as usize].waker.is_some();
                assert_eq!(waiting, at > now, "deadline {at} at {now}");
                waiting
            });
        }
    }
}
