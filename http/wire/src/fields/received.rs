//! Fields from a received block: one copy of the block, then names lowered and lines admitted in place.
//!
//! Two steps, because a scan knows where the block ends only when it has seen every line: `note_line` for
//! each line, then `take_block` once. Called by the h1 codec for heads and trailer sections.

use super::{Entry, FieldId, FieldSet, Fields, PLAIN_GAP, is_imitation};
use crate::token::{BLOCK_BYTES, Block, first_bits, is_token, trim_ows};

/// What becomes of a field line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// It is a field of the list.
    Field,
    /// Represented elsewhere, or gone.
    Out,
}

/// What is wrong with a field line that has no CTL bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineError {
    /// The line begins with a blank (RFC 9112 §5.2).
    Fold,
    /// No colon, or no token before it (RFC 9112 §5.1).
    BadName,
    /// The list is full.
    Full,
}

impl Fields {
    /// Notes a line of the block that is to come: `len` bytes at `at` in it, without its CRLF.
    #[inline]
    pub(crate) fn note_line(&mut self, at: usize, len: usize) -> Result<(), LineError> {
        let (Ok(at), Ok(value_len)) = (u32::try_from(at), u32::try_from(len)) else {
            return Err(LineError::Full);
        };
        self.entries.push(Entry { at, value_len, name_len: 0, id: FieldId::Other, gap: 0 });
        Ok(())
    }

    /// Makes the noted lines of `block` fields, except for those that are `watched` and that `keep` does not
    /// want; it gets the id and the value of each watched line, in order. The scan has checked that each noted
    /// line ends in CRLF and holds no CTL but HTAB.
    #[inline]
    pub(crate) fn take_block<'a>(
        &mut self,
        block: &'a [u8],
        watched: FieldSet,
        mut keep: impl FnMut(FieldId, &'a [u8]) -> Keep,
    ) -> Result<(), LineError> {
        debug_assert!(self.arena.is_empty(), "a block comes into an empty list");
        if block.len() > super::FIELDS_BYTES_MAX || self.entries.len() > super::FIELDS_COUNT_MAX {
            return Err(LineError::Full);
        }
        let Self { arena, entries, present, dead_bytes } = self;
        arena.reserve(block.len() + BLOCK_BYTES);
        arena.extend_from_slice(block);
        // So that a whole block can be read at every place of the last line.
        arena.extend_from_slice(&[b' '; BLOCK_BYTES]);
        let (arena, entries) = (arena.as_mut_slice(), entries.as_mut_slice());
        let mut found = FieldSet::EMPTY;
        let mut live_bytes = 0;
        let mut kept = 0;
        for index in 0..entries.len() {
            let (at, len) = (entries[index].at as usize, entries[index].value_len as usize);
            let (id, name_len) = lower_name(arena, at, len)?;
            // The noted line lies inside the block, and `lower_name` found its colon inside the line.
            let after_colon = &block[at + name_len + 1..at + len];
            let (value, gap) = match value_of_plain(after_colon) {
                Some(value) => (value, PLAIN_GAP),
                None => straighten(arena, at + name_len + 1, after_colon),
            };
            if watched.has(id) && keep(id, value) == Keep::Out {
                continue;
            }
            let (Ok(name_len), Ok(value_len)) = (u16::try_from(name_len), u32::try_from(value.len())) else {
                return Err(LineError::Full);
            };
            let entry = Entry { at: entries[index].at, value_len, name_len, id, gap };
            found.add(id);
            live_bytes += entry.line_bytes();
            // `kept` never runs ahead of `index`.
            entries[kept] = entry;
            kept += 1;
        }
        *present = found;
        *dead_bytes = arena.len().saturating_sub(live_bytes);
        self.entries.truncate(kept);
        Ok(())
    }
}

/// Finds the name of the line of `len` bytes at `at` and lowers it. Returns its id and its length.
#[inline(always)]
fn lower_name(arena: &mut [u8], at: usize, len: usize) -> Result<(FieldId, usize), LineError> {
    let Some(bytes) = arena.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) else {
        return Err(LineError::BadName);
    };
    let block = Block::new(*bytes);
    let colons = block.find(b':');
    let name_len = colons.trailing_zeros() as usize;
    if colons == 0 || name_len >= len || name_len == 0 {
        return lower_long_name(arena, at, len);
    }
    let lowered = block.lower(name_len);
    *bytes = lowered.to_bytes();
    let id = FieldId::from_key(name_len, lowered.key(name_len));
    if id == FieldId::Other && lowered.not_plain_name() & first_bits(name_len) != 0 {
        check_token(arena, at, name_len)?;
    }
    Ok((id, name_len))
}

/// As `lower_name`, for names that do not end in the first block and for lines without one.
#[inline(never)]
fn lower_long_name(arena: &mut [u8], at: usize, len: usize) -> Result<(FieldId, usize), LineError> {
    let mut name_len = 0;
    let mut odd = 0;
    loop {
        let Some(bytes) = arena.get_mut(at + name_len..).and_then(|rest| rest.first_chunk_mut()) else {
            return Err(name_error(arena, at));
        };
        let block = Block::new(*bytes);
        let part_len = (block.find(b':').trailing_zeros() as usize).min(BLOCK_BYTES);
        // A colon behind the line is no colon of this line.
        if name_len + part_len >= len {
            return Err(name_error(arena, at));
        }
        let lowered = block.lower(part_len);
        *bytes = lowered.to_bytes();
        odd |= lowered.not_plain_name() & first_bits(part_len);
        name_len += part_len;
        if part_len < BLOCK_BYTES {
            break;
        }
    }
    if odd != 0 || name_len == 0 {
        check_token(arena, at, name_len)?;
    }
    let id = FieldId::from_lower(arena.get(at..at + name_len).unwrap_or(&[]));
    Ok((id, name_len))
}

/// For names with bytes that are unusual but may be legal.
#[cold]
fn check_token(arena: &[u8], at: usize, name_len: usize) -> Result<(), LineError> {
    let Some(name) = arena.get(at..at + name_len).filter(|name| is_token(name)) else {
        return Err(name_error(arena, at));
    };
    if is_imitation(name) { Err(LineError::BadName) } else { Ok(()) }
}

#[cold]
fn name_error(arena: &[u8], at: usize) -> LineError {
    match arena.get(at) {
        Some(b' ' | b'\t') => LineError::Fold,
        _ => LineError::BadName,
    }
}

/// The value in what follows the colon, if its blanks are the usual ones: one before, none behind.
#[inline(always)]
fn value_of_plain(after_colon: &[u8]) -> Option<&[u8]> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    match after_colon {
        [b' ', value @ ..] if !value.first().is_some_and(is_blank) && !value.last().is_some_and(is_blank) => {
            Some(value)
        }
        _ => None,
    }
}

/// The value of a line with odd blanks (RFC 9110 §5.5 takes them off), and its distance from the name. In the
/// arena the blanks go too, so that the next hop sees `name: value`, or `name:value` where there was none.
#[cold]
fn straighten<'a>(arena: &mut [u8], colon_end: usize, after_colon: &'a [u8]) -> (&'a [u8], u8) {
    let value = trim_ows(after_colon);
    let has_blank = matches!(after_colon.first(), Some(b' ' | b'\t'));
    let blank: &[u8] = if has_blank { b" " } else { b"" };
    // It fits: at most one blank stays of those that were there, and the CRLF of the line follows them.
    let parts = blank.iter().chain(value).chain(b"\r\n");
    for (byte, straight) in arena.get_mut(colon_end..).unwrap_or(&mut []).iter_mut().zip(parts) {
        *byte = *straight;
    }
    (value, if has_blank { PLAIN_GAP } else { PLAIN_GAP - 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(block: &str, watched: FieldSet) -> Result<Fields, LineError> {
        let mut fields = Fields::new();
        let mut at = 0;
        for line in block.split_terminator("\r\n").take_while(|line| !line.is_empty()) {
            fields.note_line(at, line.len())?;
            at += line.len() + 2;
        }
        fields.take_block(block.as_bytes(), watched, |_, _| Keep::Out)?;
        Ok(fields)
    }

    #[test]
    fn names_of_every_length_keep_their_values() {
        // Lengths around the block size, names with odd but legal bytes, and the last line of the block.
        for len in 1..70 {
            for odd in ["", "~", "|", "x_"] {
                let name: String = odd.chars().chain(std::iter::repeat('N')).take(len).collect();
                for (gap, behind) in [(": ", ""), (":", ""), (":\t", ""), (":  ", " "), (": ", "\t ")] {
                    for value in ["", "v", "a: b"] {
                        let line = format!("{name}{gap}{value}{behind}\r\n");
                        for block in [format!("{line}\r\n"), format!("A: 1\r\n{line}B: 2\r\n\r\n")] {
                            let fields =
                                take(&block, FieldSet::EMPTY).unwrap_or_else(|e| panic!("{block:?}: {e:?}"));
                            assert_eq!(
                                fields.get_name(name.to_ascii_lowercase().as_bytes()),
                                Some(value.as_bytes()),
                                "{block:?}"
                            );
                            let mut wire = Vec::new();
                            fields.write_lines(FieldSet::EMPTY, &mut wire);
                            let again =
                                take(&format!("{}\r\n", String::from_utf8_lossy(&wire)), FieldSet::EMPTY)
                                    .expect("our own");
                            assert!(fields.iter().eq(again.iter()), "{block:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn lines_without_a_name_are_refused_in_every_place() {
        let families = [
            (
                LineError::Fold,
                &[" x: y", "\tx: y", " ", "\t", "  more", " averylongnamethatspansblocks: 1"][..],
            ),
            (
                LineError::BadName,
                &[
                    ":",
                    ": v",
                    "x",
                    "x y: z",
                    "x : y",
                    "averylongnamethatspansblocks",
                    "averylongnamethatspan blocks: 1",
                ],
            ),
            (
                LineError::BadName,
                &["a\u{e9}: b", "(a): b", "a;b: c", "a\tb: c", "\"a\": b", "a/b: c", "{: 1"],
            ),
            (
                LineError::BadName,
                &[
                    "Content_Length: 5",
                    "transfer_encoding: gzip",
                    "X_Forwarded-For: 1",
                    "x_auth_user: a",
                    "x-forwarded_client-cert: 1",
                ],
            ),
        ];
        for (want, lines) in families {
            for line in lines {
                for block in [format!("{line}\r\n\r\n"), format!("A: b\r\n{line}\r\nC: d\r\n\r\n")] {
                    assert_eq!(take(&block, FieldSet::EMPTY).map(|f| f.len()), Err(want), "{block:?}");
                }
            }
        }
        // Not every underscore is an imitation.
        for line in ["x_y: 1", "HOST_: a", "my_cookie: a"] {
            assert_eq!(take(&format!("{line}\r\n\r\n"), FieldSet::EMPTY).map(|f| f.len()), Ok(1), "{line}");
        }
    }

    #[test]
    fn watched_fields_are_asked_for_and_leave_without_a_trace() {
        let block = "Via: 1\r\nHost: a\r\nX: y\r\nHOST:b\r\nDate: d\r\n\r\n";
        let fields = take(block, FieldSet::of(&[FieldId::Host])).expect("a good block");
        assert_eq!(fields.len(), 3);
        assert!(!fields.contains(FieldId::Host));
        let mut wire = Vec::new();
        fields.write_lines(FieldSet::EMPTY, &mut wire);
        assert_eq!(wire, b"via: 1\r\nx: y\r\ndate: d\r\n");
        assert_eq!(fields.wire_bytes_max(), wire.len());
    }
}
