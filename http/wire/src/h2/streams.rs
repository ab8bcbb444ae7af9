//! The streams of a connection: a slab, and the way from a stream id to its place.

use std::collections::VecDeque;
use std::time::Duration;

use rustc_hash::{FxHashMap, FxHashSet};

/// A stream, for its user. It stays good until the user releases it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamKey {
    slot: u32,
    id: u32,
}

impl StreamKey {
    /// The number that the stream has on the wire.
    pub const fn id(self) -> u32 {
        self.id
    }
}

/// What is still to come of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    /// Not even its head. An interim response leaves it at that.
    Head,
    Body,
    Ended,
}

/// Whose RST_STREAM ended a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResetBy {
    /// What the peer had sent before it knew is dropped quietly.
    Us,
    /// It has nothing more to say.
    Peer,
}

/// One stream.
#[derive(Debug)]
pub(super) struct Stream<T> {
    pub(super) id: u32,
    pub(super) user: T,
    pub(super) receive: Half,
    pub(super) send: Half,
    /// RST_STREAM has gone or come: nothing passes any more.
    pub(super) reset_by: Option<ResetBy>,
    /// What the peer may still send, and what the user has taken and the peer was not told of, in bytes.
    pub(super) receive_window: i64,
    pub(super) taken: u32,
    pub(super) send_window: i64,
    /// Bytes that the announced length leaves to be received.
    pub(super) left: Option<u64>,
    /// The user waits to be told of room.
    pub(super) wants_room: bool,
    /// It is in the line of those that wait for the connection.
    pub(super) is_in_line: bool,
    /// What it answers to. Clients only.
    pub(super) method: crate::head::Method,
}

impl<T> Stream<T> {
    pub(super) fn is_reset(&self) -> bool {
        self.reset_by.is_some()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_reset() || (self.receive == Half::Ended && self.send == Half::Ended)
    }
}

#[derive(Debug)]
pub(super) struct Streams<T> {
    slots: Vec<Option<Stream<T>>>,
    free: Vec<u32>,
    by_id: FxHashMap<u32, u32>,
}

impl<T> Default for Streams<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), by_id: FxHashMap::default() }
    }
}

impl<T> Streams<T> {
    /// Streams that are open, or held by a user.
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// The key that the next stream will have when its number is `id`.
    pub(super) fn next_key(&self, id: u32) -> StreamKey {
        let slot = self.free.last().copied();
        let slot = slot.unwrap_or_else(|| u32::try_from(self.slots.len()).unwrap_or(u32::MAX));
        StreamKey { slot, id }
    }

    pub(super) fn insert(&mut self, stream: Stream<T>) -> StreamKey {
        let id = stream.id;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        if let Some(place) = self.slots.get_mut(slot as usize) {
            *place = Some(stream);
        }
        self.by_id.insert(id, slot);
        StreamKey { slot, id }
    }

    pub(super) fn find(&self, id: u32) -> Option<StreamKey> {
        self.by_id.get(&id).map(|slot| StreamKey { slot: *slot, id })
    }

    pub(super) fn get(&self, key: StreamKey) -> Option<&Stream<T>> {
        self.slots.get(key.slot as usize)?.as_ref().filter(|stream| stream.id == key.id)
    }

    pub(super) fn get_mut(&mut self, key: StreamKey) -> Option<&mut Stream<T>> {
        self.slots.get_mut(key.slot as usize)?.as_mut().filter(|stream| stream.id == key.id)
    }

    pub(super) fn remove(&mut self, key: StreamKey) -> Option<Stream<T>> {
        let place = self.slots.get_mut(key.slot as usize)?;
        if place.as_ref()?.id != key.id {
            return None;
        }
        self.by_id.remove(&key.id);
        self.free.push(key.slot);
        place.take()
    }

    /// Forgets the places of streams that are gone, if all are.
    pub(super) fn release_memory(&mut self) {
        if self.by_id.is_empty() {
            *self = Self::default();
        }
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Stream<T>> {
        self.slots.iter_mut().flatten()
    }
}

/// Streams that we have reset a short while ago: what was on its way is dropped quietly (RFC 9113 §5.1, closed).
#[derive(Debug, Default)]
pub(super) struct RecentResets {
    ids: FxHashSet<u32>,
    by_age: VecDeque<(Duration, u32)>,
}

impl RecentResets {
    const AGE_MAX: Duration = Duration::from_secs(10);
    const COUNT_MAX: usize = 1024;

    pub(super) fn note(&mut self, id: u32, now: Duration) {
        self.forget(Self::COUNT_MAX - 1, now);
        if self.ids.insert(id) {
            self.by_age.push_back((now, id));
        }
    }

    /// Forgets what is too old, and the oldest above `count_max`.
    fn forget(&mut self, count_max: usize, now: Duration) {
        while let Some((at, oldest)) = self.by_age.front().copied() {
            let is_old = now.saturating_sub(at) >= Self::AGE_MAX;
            if !is_old && self.by_age.len() <= count_max {
                return;
            }
            self.by_age.pop_front();
            self.ids.remove(&oldest);
        }
    }

    /// Gives back the room of what is forgotten.
    pub(super) fn release_memory(&mut self, now: Duration) {
        self.forget(Self::COUNT_MAX, now);
        if self.by_age.is_empty() {
            *self = Self::default();
        }
    }

    pub(super) fn has(&self, id: u32) -> bool {
        self.ids.contains(&id)
    }
}
