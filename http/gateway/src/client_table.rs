//! The bounded table behind [`crate::client_limit`]: clients by key, in order of last sight.
//!
//! ```text
//!   buckets[hash] ──► entry ──► entry          one singly linked chain a bucket
//!   stalest ◄──► … ◄──► freshest               one doubly linked list over the clients without connections
//! ```
//! Invariants: an entry is in the list exactly when it has no open connection; indices stored in buckets, chains
//! and list are below `entries.len()`; nothing is allocated after `new`.
//! Hashing is keyed, so that which clients share a chain cannot be computed from outside (hash flooding,
//! CVE-2011-4815 and kin).

use std::num::NonZeroU32;

/// A client within a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) scope: u64,
    pub(crate) client: u64,
}

/// The place of a client; valid until the next eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(u32);

/// No entry: the end of a chain or of the list.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: Key,
    full_at_ns: u64,
    connections: u32,
    chain_next: u32,
    staler: u32,
    fresher: u32,
}

/// Multiply-add-shift over 128 bits with secret odd multipliers. The family is strongly universal: two keys meet
/// in a bucket with chance 1/buckets, whatever keys an attacker picks (Dietzfelbinger, STACS 1996).
#[derive(Clone, Copy, Debug)]
struct KeyedHash {
    scope_multiplier: u128,
    client_multiplier: u128,
    addend: u128,
    shift: u32,
}

impl KeyedHash {
    fn new(seed: [u64; 6], buckets_log2: u32) -> Self {
        let [a, b, c, d, e, f] = seed;
        let wide = |hi: u64, lo: u64| u128::from(hi) << 64 | u128::from(lo);
        Self {
            scope_multiplier: wide(a, b) | 1,
            client_multiplier: wide(c, d) | 1,
            addend: wide(e, f),
            shift: 128 - buckets_log2,
        }
    }

    fn bucket(&self, key: Key) -> usize {
        let scope = self.scope_multiplier.wrapping_mul(u128::from(key.scope));
        let client = self.client_multiplier.wrapping_mul(u128::from(key.client));
        let sum = scope.wrapping_add(client).wrapping_add(self.addend);
        // At least one bit is left of the shift, and at most 32: `new` takes 2 to 2^32 buckets.
        usize::try_from(sum >> self.shift).expect("at most 32 bits are left")
    }
}

#[derive(Debug)]
pub(crate) struct ClientTable {
    hash: KeyedHash,
    buckets: Box<[u32]>,
    entries: Vec<Entry>,
    entries_max: usize,
    stalest: u32,
    freshest: u32,
    /// The place that `evict_stalest` emptied, for the next `insert`.
    vacant: u32,
}

impl ClientTable {
    pub(crate) fn new(clients_max: NonZeroU32, seed: [u64; 6]) -> Self {
        // `NONE` is no index, so the last value of u32 is not to be had.
        let entries_max = clients_max.get().min(NONE - 1);
        let buckets_log2 = (u32::BITS - entries_max.leading_zeros()).max(1);
        Self {
            hash: KeyedHash::new(seed, buckets_log2),
            buckets: vec![NONE; 1 << buckets_log2].into_boxed_slice(),
            entries: Vec::with_capacity(entries_max as usize),
            entries_max: entries_max as usize,
            stalest: NONE,
            freshest: NONE,
            vacant: NONE,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - usize::from(self.vacant != NONE)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() == self.entries_max
    }

    fn entry(&self, index: u32) -> &Entry {
        &self.entries[index as usize]
    }

    fn entry_mut(&mut self, index: u32) -> &mut Entry {
        &mut self.entries[index as usize]
    }

    pub(crate) fn find(&self, key: Key) -> Option<Slot> {
        let mut index = self.buckets[self.hash.bucket(key)];
        while index != NONE {
            let entry = self.entry(index);
            if entry.key == key {
                return Some(Slot(index));
            }
            index = entry.chain_next;
        }
        None
    }

    /// Adds a client that `find` did not find, as the freshest. The table must not be full.
    pub(crate) fn insert(&mut self, key: Key) -> Slot {
        debug_assert!(!self.is_full(), "evict before insert");
        debug_assert!(self.find(key).is_none(), "a client has one place");
        let bucket = self.hash.bucket(key);
        let chain_next = self.buckets[bucket];
        let entry = Entry { key, full_at_ns: 0, connections: 0, chain_next, staler: NONE, fresher: NONE };
        let index = if self.vacant == NONE {
            let index = u32::try_from(self.entries.len()).expect("entries_max is below 2^32");
            self.entries.push(entry);
            index
        } else {
            let index = std::mem::replace(&mut self.vacant, NONE);
            *self.entry_mut(index) = entry;
            index
        };
        self.buckets[bucket] = index;
        self.link_freshest(index);
        Slot(index)
    }

    /// Forgets the client without connections that was seen longest ago; the time at which its bucket is full.
    /// None when every client has connections.
    pub(crate) fn evict_stalest(&mut self) -> Option<u64> {
        let index = self.stalest;
        if index == NONE {
            return None;
        }
        debug_assert_eq!(self.vacant, NONE, "one place is emptied at a time");
        self.unlink(index);
        let evicted = *self.entry(index);
        let bucket = self.hash.bucket(evicted.key);
        if self.buckets[bucket] == index {
            self.buckets[bucket] = evicted.chain_next;
        } else {
            let mut before = self.buckets[bucket];
            while self.entry(before).chain_next != index {
                before = self.entry(before).chain_next;
            }
            self.entry_mut(before).chain_next = evicted.chain_next;
        }
        self.vacant = index;
        Some(evicted.full_at_ns)
    }

    /// Marks a client as just seen.
    pub(crate) fn touch(&mut self, Slot(index): Slot) {
        if self.entry(index).connections == 0 && self.freshest != index {
            self.unlink(index);
            self.link_freshest(index);
        }
    }

    pub(crate) fn connections(&self, Slot(index): Slot) -> u32 {
        self.entry(index).connections
    }

    pub(crate) fn add_connection(&mut self, Slot(index): Slot) {
        if self.entry(index).connections == 0 {
            self.unlink(index);
        }
        self.entry_mut(index).connections += 1;
    }

    pub(crate) fn remove_connection(&mut self, Slot(index): Slot) {
        debug_assert!(self.entry(index).connections > 0, "a ticket is handed back once");
        let left = self.entry(index).connections.saturating_sub(1);
        self.entry_mut(index).connections = left;
        if left == 0 {
            self.link_freshest(index);
        }
    }

    pub(crate) fn full_at_ns(&self, Slot(index): Slot) -> u64 {
        self.entry(index).full_at_ns
    }

    pub(crate) fn set_full_at_ns(&mut self, Slot(index): Slot, full_at_ns: u64) {
        self.entry_mut(index).full_at_ns = full_at_ns;
    }

    fn link_freshest(&mut self, index: u32) {
        let staler = std::mem::replace(&mut self.freshest, index);
        let entry = self.entry_mut(index);
        (entry.staler, entry.fresher) = (staler, NONE);
        match staler {
            NONE => self.stalest = index,
            neighbour => self.entry_mut(neighbour).fresher = index,
        }
    }

    fn unlink(&mut self, index: u32) {
        let Entry { staler, fresher, .. } = *self.entry(index);
        match staler {
            NONE => self.stalest = fresher,
            neighbour => self.entry_mut(neighbour).fresher = fresher,
        }
        match fresher {
            NONE => self.freshest = staler,
            neighbour => self.entry_mut(neighbour).staler = staler,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn table(clients_max: u32) -> ClientTable {
        ClientTable::new(NonZeroU32::new(clients_max).unwrap(), [11, 22, 33, 44, 55, 66])
    }

    /// Every chain, list and pin agrees with every other.
    fn check_invariants(table: &ClientTable) {
        let chained: usize = (0..table.buckets.len())
            .map(|bucket| {
                let mut count = 0;
                let mut index = table.buckets[bucket];
                while index != NONE {
                    assert_eq!(table.hash.bucket(table.entry(index).key), bucket);
                    (index, count) = (table.entry(index).chain_next, count + 1);
                }
                count
            })
            .sum();
        assert_eq!(chained, table.len());
        let (mut listed, mut index, mut before) = (0, table.stalest, NONE);
        while index != NONE {
            let entry = table.entry(index);
            assert_eq!((entry.connections, entry.staler), (0, before));
            (before, index, listed) = (index, entry.fresher, listed + 1);
        }
        assert_eq!(before, table.freshest);
        let pinned = table.entries.iter().filter(|e| e.connections > 0).count();
        assert_eq!(listed + pinned, table.len());
    }

    #[test]
    fn random_use_agrees_with_a_map() {
        for clients_max in [1u32, 2, 5, 64] {
            let mut table = table(clients_max);
            let mut connections: HashMap<u64, u32> = HashMap::new();
            let mut x = u64::from(clients_max);
            for _ in 0..5_000 {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let client = (x >> 40) % (u64::from(clients_max) * 2);
                let key = Key { scope: client % 3, client };
                let slot = table.find(key);
                if connections.get(&client).is_some_and(|n| *n > 0) {
                    assert!(slot.is_some(), "a pinned client is found");
                }
                let slot = slot.or_else(|| {
                    if table.is_full() {
                        table.evict_stalest()?;
                    }
                    Some(table.insert(key))
                });
                let Some(slot) = slot else {
                    assert!(
                        connections.values().filter(|n| **n > 0).count()
                            == usize::try_from(clients_max).unwrap()
                    );
                    let (&client, _) = connections.iter().find(|(_, n)| **n > 0).unwrap();
                    let slot = table.find(Key { scope: client % 3, client }).unwrap();
                    table.remove_connection(slot);
                    *connections.get_mut(&client).unwrap() -= 1;
                    continue;
                };
                table.touch(slot);
                let count = connections.entry(client).or_default();
                assert_eq!(table.connections(slot), *count);
                if x & 1 == 0 {
                    table.add_connection(slot);
                    *count += 1;
                } else if *count > 0 {
                    table.remove_connection(slot);
                    *count -= 1;
                }
                check_invariants(&table);
            }
            assert!(table.len() <= usize::try_from(clients_max).unwrap());
        }
    }

    #[test]
    fn neighbouring_addresses_spread_over_the_buckets() {
        let hash = KeyedHash::new(
            [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb, 7, 8, 9],
            10,
        );
        let mut load = vec![0u32; 1024];
        for client in 0..8 * 1024u64 {
            load[hash.bucket(Key { scope: 2, client: 0xffff_ffff_0a00_0000 | client })] += 1;
        }
        assert!(load.iter().all(|n| *n <= 40), "longest chain {:?}", load.iter().max());
    }
}
