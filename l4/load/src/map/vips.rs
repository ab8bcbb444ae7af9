//! The VIPs of one family in their buckets: open addressing by whole buckets, as `l4/xdp/vips.h` searches them.
//!
//! Invariants between two calls: the slots of a bucket are filled from the first on; each key stands in the first
//! bucket, from its own on, that had room, so that every bucket before it is full. Each step in between shows a packet
//! the old VIP or the new one, or for the moment of a move the same VIP twice, never none.

use std::borrow::{Borrow, BorrowMut};

use aya::Pod;
use aya::maps::{Array, MapData, MapError};
use l4_abi::{VIP_BUCKETS, VIP_PROBES, VIP_SLOTS, Vip, Vip4Key, Vip6Key, VipBucket, VipSlot};

use super::Plain;

type Taken<T> = Result<T, MapError>;

/// A family's key.
pub(super) trait Key: Copy + Eq {
    fn bucket(&self) -> u32;
}

impl Key for Vip4Key {
    fn bucket(&self) -> u32 {
        Self::bucket(self)
    }
}

impl Key for Vip6Key {
    fn bucket(&self) -> u32 {
        Self::bucket(self)
    }
}

/// Adds or changes a VIP. [`MapError::OutOfBounds`] when all the buckets that may hold it are full.
pub(super) fn insert<K: Key>(
    map: &mut Array<impl BorrowMut<MapData>, Plain<VipBucket<K>>>,
    key: K,
    vip: Vip,
) -> Taken<()>
where
    Plain<VipBucket<K>>: Pod,
{
    for index in probes(&key) {
        let Plain(mut bucket) = map.get(&index, 0)?;
        let place = bucket.slots.iter().position(|slot| slot.vip.id == 0 || slot.key == key);
        if let Some(place) = place {
            bucket.slots[place] = VipSlot { key, vip };
            return map.set(index, Plain(bucket), 0);
        }
    }
    Err(MapError::OutOfBounds { index: key.bucket(), max_entries: VIP_BUCKETS })
}

/// Removes a VIP; one that is not there is no fault.
pub(super) fn remove<K: Key>(
    map: &mut Array<impl BorrowMut<MapData>, Plain<VipBucket<K>>>,
    key: K,
) -> Taken<()>
where
    Plain<VipBucket<K>>: Pod,
{
    for index in probes(&key) {
        let Plain(bucket) = map.get(&index, 0)?;
        if let Some(place) = bucket.slots.iter().position(|slot| slot.vip.id != 0 && slot.key == key) {
            return fill_gap(map, index, place);
        }
    }
    Ok(())
}

/// Closes the gap at `place`: with the bucket's last slot, or, if it was full, with a VIP that stands behind it for
/// want of room here, whose own gap is closed in turn.
fn fill_gap<K: Key>(
    map: &mut Array<impl BorrowMut<MapData>, Plain<VipBucket<K>>>,
    mut index: u32,
    mut place: usize,
) -> Taken<()>
where
    Plain<VipBucket<K>>: Pod,
{
    loop {
        let Plain(mut bucket) = map.get(&index, 0)?;
        let was_full = bucket.slots[VIP_SLOTS - 1].vip.id != 0;
        if let Some((from, from_place, slot)) = if was_full { stranded(map, index)? } else { None } {
            bucket.slots[place] = slot;
            map.set(index, Plain(bucket), 0)?;
            (index, place) = (from, from_place);
            continue;
        }
        let used = bucket.slots.iter().take_while(|slot| slot.vip.id != 0).count();
        let last = used.max(place + 1) - 1;
        bucket.slots[place] = bucket.slots[last];
        map.set(index, Plain(bucket), 0)?;
        bucket.slots[last].vip = Vip::default();
        return map.set(index, Plain(bucket), 0);
    }
}

/// A VIP in a later bucket that may stand in bucket `index`.
fn stranded<K: Key>(
    map: &Array<impl Borrow<MapData>, Plain<VipBucket<K>>>,
    index: u32,
) -> Taken<Option<(u32, usize, VipSlot<K>)>>
where
    Plain<VipBucket<K>>: Pod,
{
    for distance in 1..VIP_PROBES {
        let later = (index + distance) % VIP_BUCKETS;
        let Plain(bucket) = map.get(&later, 0)?;
        for (place, slot) in bucket.slots.iter().enumerate() {
            // Its search begins at or before `index`, so that it passes there.
            let passes = (later + VIP_BUCKETS - slot.key.bucket()) % VIP_BUCKETS >= distance;
            if slot.vip.id != 0 && passes {
                return Ok(Some((later, place, *slot)));
            }
        }
        if bucket.slots[VIP_SLOTS - 1].vip.id == 0 {
            break;
        }
    }
    Ok(None)
}

/// All VIPs.
pub(super) fn all<K: Key>(map: &Array<impl Borrow<MapData>, Plain<VipBucket<K>>>) -> Taken<Vec<(K, Vip)>>
where
    Plain<VipBucket<K>>: Pod,
{
    let mut vips = Vec::new();
    for index in 0..VIP_BUCKETS {
        let Plain(bucket) = map.get(&index, 0)?;
        vips.extend(bucket.slots.iter().filter(|slot| slot.vip.id != 0).map(|slot| (slot.key, slot.vip)));
    }
    Ok(vips)
}

fn probes<K: Key>(key: &K) -> impl Iterator<Item = u32> + use<K> {
    let first = key.bucket();
    (0..VIP_PROBES).map(move |distance| (first + distance) % VIP_BUCKETS)
}
