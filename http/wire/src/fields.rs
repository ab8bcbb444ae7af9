//! Header fields as a flat list over one byte arena.
//!
//! Invariants: names are lower case; a name or value never holds CR, LF or NUL (the parsers refuse them and
//! `push` turns them into `FieldError`); each entry's bytes in the arena are exactly a line, `name: value` and CRLF, so
//! that a run of untouched fields leaves for the next hop in one copy. A block is cleared and reused, so a
//! connection that is warm allocates nothing for its heads. Replacing fields again and again does not let the
//! arena grow: dead bytes are squeezed out once they outweigh the live ones.
//! Used by the h1 and h2 codecs, routing and every policy.

mod id;
mod received;

pub(crate) use id::is_imitation;
pub use id::{FieldId, FieldSet, may_be_trailer};
pub(crate) use received::{Keep, LineError};

use crate::token::{ends_as_field_value, is_token};

/// More bytes than this are no header block, whatever the limits of the listener say.
pub const FIELDS_BYTES_MAX: usize = 1 << 20;
/// More fields than this are no header block, whatever the limits of the listener say.
pub const FIELDS_COUNT_MAX: usize = 4096;

/// Dead bytes below this are not worth a copy.
const DEAD_BYTES_KEPT: usize = 4096;

/// A place in a byte arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub at: u32,
    pub len: u32,
}

impl Span {
    /// The bytes of this span; empty when the span does not lie inside `arena`.
    pub fn of(self, arena: &[u8]) -> &[u8] {
        let at = self.at as usize;
        arena.get(at..at + self.len as usize).unwrap_or(&[])
    }
}

/// Bytes between name and value: colon and blank.
const PLAIN_GAP: u8 = 2;
const LINE_END: &[u8; 2] = b"\r\n";

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: u32,
    value_len: u32,
    name_len: u16,
    id: FieldId,
    /// [`PLAIN_GAP`], or 1 when the sender left the blank out.
    gap: u8,
}

impl Entry {
    fn name(self, arena: &[u8]) -> &[u8] {
        Span { at: self.at, len: u32::from(self.name_len) }.of(arena)
    }

    fn value(self, arena: &[u8]) -> &[u8] {
        Span { at: self.at + u32::from(self.name_len) + u32::from(self.gap), len: self.value_len }.of(arena)
    }

    const fn line_bytes(self) -> usize {
        self.name_len as usize + self.gap as usize + self.value_len as usize + 2
    }

    fn field(self, arena: &[u8]) -> Field<'_> {
        Field { id: self.id, name: self.name(arena), value: self.value(arena) }
    }
}

/// One field as seen by a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    pub id: FieldId,
    /// Lower case.
    pub name: &'a [u8],
    /// Without leading or trailing blanks when it came from a wire.
    pub value: &'a [u8],
}

/// A name or value that must not reach a wire: CTL bytes, an empty name, or a block over
/// [`FIELDS_BYTES_MAX`] or [`FIELDS_COUNT_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldError;

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("field name or value may not be sent")
    }
}

impl std::error::Error for FieldError {}

/// An ordered list of header or trailer fields. Order and repetition are kept.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    arena: Vec<u8>,
    entries: Vec<Entry>,
    /// Ids of the entries, so that asking for an absent field costs one test.
    present: FieldSet,
    /// Arena bytes that no entry owns.
    dead_bytes: usize,
}

impl Fields {
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets all fields, keeps the memory.
    pub fn clear(&mut self) {
        self.arena.clear();
        self.entries.clear();
        self.present = FieldSet::EMPTY;
        self.dead_bytes = 0;
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Field<'_>> + ExactSizeIterator {
        self.entries.iter().map(|e| e.field(&self.arena))
    }

    /// The first value of a known field.
    pub fn get(&self, id: FieldId) -> Option<&[u8]> {
        if !self.present.has(id) {
            return None;
        }
        let entry = self.entries.iter().find(|e| e.id == id)?;
        Some(entry.value(&self.arena))
    }

    /// The first value of a field by its lower-case name.
    pub fn get_name(&self, name: &[u8]) -> Option<&[u8]> {
        let entry = self.entries.iter().find(|e| e.name(&self.arena) == name)?;
        Some(entry.value(&self.arena))
    }

    /// All values of a known field, in order.
    pub fn all(&self, id: FieldId) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.entries.iter().filter(move |e| e.id == id).map(|e| e.value(&self.arena))
    }

    pub fn contains(&self, id: FieldId) -> bool {
        self.present.has(id)
    }

    /// Appends a known field.
    ///
    /// # Errors
    /// `FieldError` when the value holds a CTL byte other than HTAB (RFC 9110 §5.5), when `id` is `Other`, or
    /// when the list is full.
    pub fn push(&mut self, id: FieldId, value: &[u8]) -> Result<(), FieldError> {
        let start = id.line_start();
        if start.len == 0 {
            return Err(FieldError);
        }
        let at = self.begin_line(start.len + value.len() + LINE_END.len())?;
        self.arena.extend_from_slice(&start.bytes);
        self.arena.truncate(at + start.len);
        self.end_line(id, at, start.len - usize::from(PLAIN_GAP), value)
    }

    /// Appends a field by name in any case; the name is stored lower case.
    ///
    /// # Errors
    /// `FieldError` when the name is no token, the value holds a CTL byte (RFC 9110 §5.1, §5.5) or the list is
    /// full.
    pub fn push_name(&mut self, name: &[u8], value: &[u8]) -> Result<(), FieldError> {
        if !is_token(name) {
            return Err(FieldError);
        }
        let at = self.begin_line(name.len() + value.len() + usize::from(PLAIN_GAP) + LINE_END.len())?;
        self.arena.extend_from_slice(name);
        let stored = self.arena.get_mut(at..).unwrap_or(&mut []);
        stored.make_ascii_lowercase();
        let id = FieldId::from_lower(stored);
        self.arena.extend_from_slice(b": ");
        self.end_line(id, at, name.len(), value)
    }

    /// Appends a line `name: value CRLF` of a lower-case name and a value that have been checked.
    pub(crate) fn push_line(&mut self, id: FieldId, name_len: usize, line: &[u8]) -> Result<(), FieldError> {
        let at = self.begin_line(line.len())?;
        self.arena.extend_from_slice(line);
        let value_len = line.len().saturating_sub(name_len + usize::from(PLAIN_GAP) + LINE_END.len());
        self.add_entry(id, at, name_len, value_len).inspect_err(|_full| self.arena.truncate(at))
    }

    /// Makes room for a line and returns where it begins.
    fn begin_line(&mut self, line_bytes: usize) -> Result<usize, FieldError> {
        if self.dead_bytes > DEAD_BYTES_KEPT && self.dead_bytes > self.arena.len() / 2 {
            self.squeeze();
        }
        let at = self.arena.len();
        if line_bytes > FIELDS_BYTES_MAX - at.min(FIELDS_BYTES_MAX) {
            return Err(FieldError);
        }
        self.arena.reserve(line_bytes);
        Ok(at)
    }

    /// Completes the line at `at`, which has its name and gap, and records it. On an error the line is gone.
    fn end_line(&mut self, id: FieldId, at: usize, name_len: usize, value: &[u8]) -> Result<(), FieldError> {
        self.arena.extend_from_slice(value);
        let is_fit = ends_as_field_value(&self.arena, value.len());
        self.arena.extend_from_slice(LINE_END);
        let added = if is_fit { self.add_entry(id, at, name_len, value.len()) } else { Err(FieldError) };
        if added.is_err() {
            self.arena.truncate(at);
        }
        added
    }

    /// Records the line at `at`, whose bytes are `name: value CRLF`.
    fn add_entry(&mut self, id: FieldId, at: usize, name: usize, value: usize) -> Result<(), FieldError> {
        if self.entries.len() >= FIELDS_COUNT_MAX {
            return Err(FieldError);
        }
        let word = |number: usize| u32::try_from(number).or(Err(FieldError));
        let name_len = u16::try_from(name).or(Err(FieldError))?;
        self.entries.push(Entry { at: word(at)?, value_len: word(value)?, name_len, id, gap: PLAIN_GAP });
        self.present.add(id);
        Ok(())
    }

    /// Moves the live lines together. Costs one pass over them and happens only when more than half of the
    /// arena is dead, so that the cost of a byte stays constant however often fields are replaced.
    fn squeeze(&mut self) {
        let mut fresh = Vec::with_capacity(self.arena.capacity());
        for entry in &mut self.entries {
            let at = entry.at as usize;
            let line = self.arena.get(at..at + entry.line_bytes()).unwrap_or(&[]);
            entry.at = u32::try_from(fresh.len()).unwrap_or(u32::MAX);
            fresh.extend_from_slice(line);
        }
        self.arena = fresh;
        self.dead_bytes = 0;
    }

    /// Removes every field with this id.
    pub fn remove(&mut self, id: FieldId) {
        if !self.present.has(id) {
            return;
        }
        let dead_bytes = &mut self.dead_bytes;
        self.entries.retain(|e| {
            let keep = e.id != id;
            *dead_bytes += if keep { 0 } else { e.line_bytes() };
            keep
        });
        self.present.take_out(id);
    }

    /// Removes every field whose id is in `ids`, and those others whose lower-case name `is_out` wants out.
    pub fn remove_all(&mut self, ids: FieldSet, mut is_out: impl FnMut(&[u8]) -> bool) {
        const OTHER: FieldSet = FieldSet::of(&[FieldId::Other]);
        if self.present.meets(ids.with(OTHER)) {
            self.retain(|field| !(ids.has(field.id) || (field.id == FieldId::Other && is_out(field.name))));
        }
    }

    /// Removes every field with this lower-case name.
    pub fn remove_name(&mut self, name: &[u8]) {
        self.retain(|field| field.name != name);
    }

    /// Keeps the fields for which `keep` says so.
    pub fn retain(&mut self, mut keep: impl FnMut(Field<'_>) -> bool) {
        let Self { arena, entries, present, dead_bytes } = self;
        *present = FieldSet::EMPTY;
        entries.retain(|e| {
            let keep = keep(e.field(arena));
            if keep {
                present.add(e.id);
            } else {
                *dead_bytes += e.line_bytes();
            }
            keep
        });
    }

    /// Replaces all fields with this id by one value.
    ///
    /// # Errors
    /// As [`Fields::push`]; the old fields are gone either way.
    pub fn set(&mut self, id: FieldId, value: &[u8]) -> Result<(), FieldError> {
        self.remove(id);
        self.push(id, value)
    }

    /// Replaces all fields with this name (any case) by one value.
    ///
    /// # Errors
    /// As [`Fields::push_name`]; the old fields are gone either way.
    pub fn set_name(&mut self, name: &[u8], value: &[u8]) -> Result<(), FieldError> {
        self.retain(|field| !field.name.eq_ignore_ascii_case(name));
        self.push_name(name, value)
    }

    #[cfg(test)]
    pub(crate) fn capacities(&self) -> [usize; 2] {
        [self.arena.capacity(), self.entries.capacity()]
    }

    /// Upper bound of what [`Fields::write_lines`] appends, in bytes.
    pub(crate) fn wire_bytes_max(&self) -> usize {
        self.arena.len() - self.dead_bytes
    }

    /// Appends `name: value CRLF` for each field that is not in `left_out`. Neighbours in the arena, which the
    /// fields of a parsed head are, go in one copy.
    pub(crate) fn write_lines(&self, left_out: FieldSet, out: &mut Vec<u8>) {
        let (mut run_at, mut run_end) = (0, 0);
        for entry in &self.entries {
            if left_out.has(entry.id) {
                continue;
            }
            let at = entry.at as usize;
            if at != run_end {
                out.extend_from_slice(self.arena.get(run_at..run_end).unwrap_or(&[]));
                run_at = at;
            }
            run_end = at + entry.line_bytes();
        }
        out.extend_from_slice(self.arena.get(run_at..run_end).unwrap_or(&[]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(fields: &Fields) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("test names and values are text");
        fields.iter().map(|f| (text(f.name), text(f.value))).collect()
    }

    fn wire(fields: &Fields, left_out: FieldSet) -> String {
        let mut out = Vec::new();
        fields.write_lines(left_out, &mut out);
        assert!(out.len() <= fields.wire_bytes_max());
        String::from_utf8(out).expect("test names and values are text")
    }

    #[test]
    fn order_repetition_and_lower_case_are_kept() {
        let mut fields = Fields::new();
        for (name, value) in [
            ("Set-Cookie", "a=1"),
            ("X-Thing", ""),
            ("SET-COOKIE", "b=2"),
            ("a-name-of-more-than-16-BYTES", "v"),
        ] {
            fields.push_name(name.as_bytes(), value.as_bytes()).expect(name);
        }
        assert_eq!(fields.all(FieldId::SetCookie).collect::<Vec<_>>(), [b"a=1", b"b=2"]);
        assert_eq!(fields.get_name(b"x-thing"), Some(&b""[..]));
        assert_eq!(
            wire(&fields, FieldSet::EMPTY),
            "set-cookie: a=1\r\nx-thing: \r\nset-cookie: b=2\r\na-name-of-more-than-16-bytes: v\r\n"
        );
        assert_eq!(
            wire(&fields, FieldSet::of(&[FieldId::SetCookie])),
            "x-thing: \r\na-name-of-more-than-16-bytes: v\r\n"
        );
    }

    #[test]
    fn what_must_not_reach_a_wire_is_refused_and_leaves_no_trace() {
        let mut fields = Fields::new();
        fields.push(FieldId::Date, b"today").expect("a good value");
        let before = listing(&fields);
        for value in ["a\rb", "a\nb", "a\0b", "\x7f", "\r\nx: y", "0123456789abcdef\n"] {
            assert_eq!(fields.push(FieldId::Server, value.as_bytes()), Err(FieldError), "{value:?}");
            assert_eq!(fields.push_name(b"x", value.as_bytes()), Err(FieldError), "{value:?}");
        }
        for name in ["", " x", "x ", "x:y", "x\r", "x\u{e9}"] {
            assert_eq!(fields.push_name(name.as_bytes(), b"v"), Err(FieldError), "{name:?}");
        }
        assert_eq!(fields.push(FieldId::Other, b"v"), Err(FieldError));
        assert_eq!(fields.push_name(&[b'n'; 70_000], b"v"), Err(FieldError));
        assert_eq!(listing(&fields), before);
        assert!(!fields.contains(FieldId::Server) && wire(&fields, FieldSet::EMPTY) == "date: today\r\n");
    }

    #[test]
    fn presence_follows_every_change() {
        let mut fields = Fields::new();
        let expect = |fields: &Fields, ids: &[FieldId]| {
            for id in [FieldId::Other, FieldId::Via, FieldId::Date, FieldId::Server] {
                assert_eq!(fields.contains(id), ids.contains(&id), "{id:?}");
                assert_eq!(fields.get(id).is_some(), ids.contains(&id), "{id:?}");
            }
        };
        expect(&fields, &[]);
        fields.push(FieldId::Via, b"a").expect("good");
        fields.push(FieldId::Date, b"b").expect("good");
        fields.push_name(b"q", b"c").expect("good");
        expect(&fields, &[FieldId::Other, FieldId::Via, FieldId::Date]);
        fields.remove(FieldId::Via);
        expect(&fields, &[FieldId::Other, FieldId::Date]);
        fields.retain(|f| f.name == b"date");
        expect(&fields, &[FieldId::Date]);
        fields.set(FieldId::Date, b"d").expect("good");
        fields.set_name(b"SERVER", b"e").expect("good");
        expect(&fields, &[FieldId::Date, FieldId::Server]);
        fields.remove_name(b"date");
        expect(&fields, &[FieldId::Server]);
        fields.clear();
        expect(&fields, &[]);
    }

    #[test]
    fn replacing_for_ever_does_not_grow_the_arena() {
        let mut fields = Fields::new();
        fields.push(FieldId::Host, b"first").expect("good");
        for round in 0..20_000 {
            fields.set(FieldId::XRequestId, format!("request-{round:060}").as_bytes()).expect("good");
            assert!(fields.arena.len() < 4 * DEAD_BYTES_KEPT);
        }
        assert_eq!(fields.len(), 2);
        assert_eq!(fields.get(FieldId::Host), Some(&b"first"[..]));
        assert_eq!(fields.get(FieldId::XRequestId), Some(format!("request-{:060}", 19_999).as_bytes()));
    }

    #[test]
    fn count_and_bytes_are_bounded() {
        let mut fields = Fields::new();
        for _ in 0..FIELDS_COUNT_MAX {
            fields.push(FieldId::Via, b"1").expect("below the bound");
        }
        assert_eq!(fields.push(FieldId::Via, b"1"), Err(FieldError));
        fields.clear();
        assert_eq!(fields.push(FieldId::Via, &vec![b'v'; FIELDS_BYTES_MAX]), Err(FieldError));
        fields.push(FieldId::Via, &vec![b'v'; FIELDS_BYTES_MAX - 7]).expect("exactly at the bound");
        assert_eq!(fields.push(FieldId::Via, b""), Err(FieldError));
        assert_eq!(fields.len(), 1);
    }
}
