//! Lines to header blocks (RFC 7541 §6), with the table that the peer keeps of them.
//!
//! A line that the peer's table holds is one or two bytes. Heads of a connection are alike, so that a line mostly stands
//! behind the one before it in the table too; else it is found by a hash of its text, which is compared with all of the
//! table's at once: they are some tens.

use super::{ENTRY_OVERHEAD_BYTES, TABLE_BYTES_MAX, put_integer, put_string, table};
use crate::fields::FieldId;

/// Whether the peer is to keep a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexing {
    /// It will come again.
    Index,
    /// Its value is new each time: the peer keeps the name alone.
    NameOnly,
    /// No table on the way may hold it (RFC 7541 §7.1.3).
    Never,
}

/// Lines above this size would drive most others out of the table.
const ENTRY_BYTES_MAX: usize = TABLE_BYTES_MAX / 4;

#[derive(Debug)]
struct Entry {
    text: Box<[u8]>,
    name_len: usize,
}

impl Entry {
    fn size(&self) -> usize {
        self.text.len() + ENTRY_OVERHEAD_BYTES
    }

    fn is(&self, name: &[u8], value: &[u8]) -> bool {
        self.text.split_at_checked(self.name_len) == Some((name, value))
    }
}

/// The sending end's state of one connection.
#[derive(Debug)]
pub struct Encoder {
    /// Oldest first.
    entries: Vec<Entry>,
    /// Hashes of the entries' lines and names, in the same order.
    line_hashes: Vec<u32>,
    name_hashes: Vec<u32>,
    /// Where the next line is looked for first.
    guess: usize,
    bytes: usize,
    bytes_max: usize,
    /// The least that `bytes_max` was since the last block, if the peer has to be told of a change.
    told: Option<usize>,
}

impl Default for Encoder {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            line_hashes: Vec::new(),
            name_hashes: Vec::new(),
            guess: 0,
            bytes: 0,
            bytes_max: TABLE_BYTES_MAX,
            told: None,
        }
    }
}

impl Encoder {
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the peer's SETTINGS_HEADER_TABLE_SIZE, in bytes (RFC 7541 §4.2).
    pub fn set_table_bytes(&mut self, bytes: usize) {
        let bytes = bytes.min(TABLE_BYTES_MAX);
        if bytes != self.bytes_max {
            self.told = Some(self.told.map_or(bytes, |least| least.min(bytes)));
            self.bytes_max = bytes;
            self.shrink_for(0);
        }
    }

    /// Begins a block: says what has changed of the table's size.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        self.guess = 0;
        if let Some(least) = self.told.take() {
            if least < self.bytes_max {
                put_integer(0x20, 5, least, out);
            }
            put_integer(0x20, 5, self.bytes_max, out);
        }
    }

    /// Appends a line of the static table.
    pub fn put_static(&mut self, index: u8, out: &mut Vec<u8>) {
        debug_assert!((1..=table::STATIC_LEN).contains(&usize::from(index)), "an index of the static table");
        out.push(0x80 | index);
    }

    /// Appends a line. `name` is lower case; it is that of `id`, if that is not `Other`.
    pub fn put(&mut self, id: FieldId, name: &[u8], value: &[u8], indexing: Indexing, out: &mut Vec<u8>) {
        let static_name = table::index_of_name(id, name);
        self.put_named(static_name, name, value, indexing, out);
    }

    /// Appends a line that the peer does not keep, of a name of the static table and a value in parts.
    pub(in crate::h2) fn put_joined(&mut self, static_name: usize, value: &[&[u8]], out: &mut Vec<u8>) {
        put_integer(0, 4, static_name, out);
        put_integer(0, 7, value.iter().map(|part| part.len()).sum(), out);
        value.iter().for_each(|part| out.extend_from_slice(part));
    }

    /// Appends a line whose name may be in the static table, at `static_name`.
    pub fn put_named(
        &mut self,
        static_name: Option<usize>,
        name: &[u8],
        value: &[u8],
        indexing: Indexing,
        out: &mut Vec<u8>,
    ) {
        let (mut name_hash, mut line_hash) = (0, 0);
        let mut named = static_name;
        if indexing == Indexing::Index {
            if self.entries.get(self.guess).is_some_and(|entry| entry.is(name, value)) {
                return self.put_index(self.guess, out);
            }
            name_hash = hash(0, name);
            line_hash = hash(name_hash, value);
            if let Some(at) = self.find(&self.line_hashes, line_hash, |entry| entry.is(name, value)) {
                return self.put_index(at, out);
            }
        }
        if named.is_none() {
            let is_named = |entry: &Entry| entry.text.get(..entry.name_len) == Some(name);
            let at = if self.entries.get(self.guess).is_some_and(is_named) {
                Some(self.guess)
            } else {
                name_hash = hash(0, name);
                self.find(&self.name_hashes, name_hash, is_named)
            };
            if let Some(at) = at {
                named = Some(self.index_of(at));
                self.guess = at + 1;
            }
        }
        let size = name.len() + value.len() + ENTRY_OVERHEAD_BYTES;
        let is_small = size <= ENTRY_BYTES_MAX.min(self.bytes_max);
        // A line kept for its name has no hash of its own: nobody looks for it.
        let is_kept = is_small
            && match indexing {
                Indexing::Index => true,
                Indexing::NameOnly => named.is_none(),
                Indexing::Never => false,
            };
        match (is_kept, indexing) {
            (true, _) => put_integer(0x40, 6, named.unwrap_or(0), out),
            (false, Indexing::Never) => put_integer(0x10, 4, named.unwrap_or(0), out),
            (false, _) => put_integer(0, 4, named.unwrap_or(0), out),
        }
        if named.is_none() {
            put_string(name, out);
        }
        put_string(value, out);
        if is_kept {
            self.insert(name, value, line_hash, name_hash);
        }
    }

    /// Appends the entry at a place as an index, and guesses that the next line stands behind it.
    fn put_index(&mut self, at: usize, out: &mut Vec<u8>) {
        put_integer(0x80, 7, self.index_of(at), out);
        self.guess = at + 1;
    }

    /// The peer counts from the newest.
    fn index_of(&self, at: usize) -> usize {
        table::STATIC_LEN + self.entries.len() - at
    }

    /// The place of the newest entry with this hash that `is` confirms.
    fn find(&self, hashes: &[u32], wanted: u32, is: impl Fn(&Entry) -> bool) -> Option<usize> {
        // No early exit: the compiler compares several at a time.
        let is_there = hashes.iter().fold(false, |found, hash| found | (*hash == wanted));
        if !is_there {
            return None;
        }
        let is_it = |at: &usize| hashes.get(*at) == Some(&wanted) && self.entries.get(*at).is_some_and(&is);
        (0..hashes.len()).rev().find(is_it)
    }

    fn insert(&mut self, name: &[u8], value: &[u8], line_hash: u32, name_hash: u32) {
        let entry = Entry { text: [name, value].concat().into_boxed_slice(), name_len: name.len() };
        self.shrink_for(entry.size());
        self.bytes += entry.size();
        self.entries.push(entry);
        self.line_hashes.push(line_hash);
        self.name_hashes.push(name_hash);
        self.guess = self.entries.len();
    }

    /// Evicts from the old end until `bytes` more fit (RFC 7541 §4.3, §4.4).
    fn shrink_for(&mut self, bytes: usize) {
        let mut evicted = 0;
        for entry in &self.entries {
            if self.bytes + bytes <= self.bytes_max {
                break;
            }
            self.bytes -= entry.size();
            evicted += 1;
        }
        if evicted == 0 {
            return;
        }
        self.guess = self.guess.saturating_sub(evicted);
        self.entries.drain(..evicted);
        self.line_hashes.drain(..evicted);
        self.name_hashes.drain(..evicted);
    }

    #[cfg(test)]
    pub(super) fn table_bytes(&self) -> usize {
        self.bytes
    }
}

/// A hash of `seed` and `bytes`; what it finds is compared, so that only its speed counts.
fn hash(seed: u32, bytes: &[u8]) -> u32 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let (words, rest) = bytes.as_chunks::<8>();
    let mut state = u64::from(seed) ^ (bytes.len() as u64);
    for word in words {
        state = (state.rotate_left(23) ^ u64::from_le_bytes(*word)).wrapping_mul(FACTOR);
    }
    let mut last = [0; 8];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    state = (state.rotate_left(23) ^ u64::from_le_bytes(last)).wrapping_mul(FACTOR);
    let [.., a, b, c, d] = state.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
