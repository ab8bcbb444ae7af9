//! Path normalisation: the one form of a path that routing, policies, logs and the upstream all see.
//!
//! What comes out holds only `pchar` and `/` (RFC 3986 §3.3), no dot segment, no escape of an unreserved
//! byte, and upper-case hex in the escapes that stay. Every escape is decoded at most once, because a result
//! is never decoded again: `%252f` stays `%252f`. The query is not looked at.
//!
//! Invariant: `normalise` of its own result is `Unchanged`. Rewrites go through `recheck` or
//! `replace_prefix`, so what leaves a rewrite obeys the same rules.

use class::{ESCAPE, PLAIN, class_of, hex_value, upper_hex};

/// What to do with `%2F` and `%5C`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EscapedSlashes {
    /// They stay escapes and separate nothing.
    #[default]
    Keep,
    /// `PathError::EscapedSlash`.
    Reject,
    /// Both become `/`, and the client is sent to the path so made.
    Redirect,
}

/// The choices that a listener has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathPolicy {
    pub escaped_slashes: EscapedSlashes,
    /// `//` becomes `/`. Off for object stores, whose keys may hold `//`.
    pub merge_slashes: bool,
}

/// Where the normal form is.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathOutcome {
    /// The path was normal already; the output buffer is empty.
    Unchanged,
    /// In the output buffer.
    Changed,
    /// In the output buffer, and the client has to ask again for it. It begins with exactly one slash, so it
    /// can stand in `Location` as it is.
    Redirect,
}

/// Why a path was refused; each is a 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathError {
    /// No leading slash.
    NotAbsolute,
    /// A control byte, a blank, `?`, `#`, or a backslash: some servers take `\` for `/`.
    BadByte,
    /// `%` without two hex digits.
    BadEscape,
    /// `%00` ends the path for servers written in C.
    EscapedNul,
    /// `..` at the root.
    AboveRoot,
    /// `..;x` and `.;x`: servlet containers drop the parameter and then see a dot segment.
    DotWithParameter,
    /// `%2F` or `%5C` where the policy rejects it, or in a rewritten path where it does not keep it.
    EscapedSlash,
    /// `replace_prefix` was given a path that does not begin with the prefix.
    NotPrefix,
}

impl PathError {
    /// A short English reason for logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotAbsolute => "path does not begin with a slash",
            Self::BadByte => "path holds a byte that is not allowed",
            Self::BadEscape => "path holds an incomplete percent escape",
            Self::EscapedNul => "path holds %00",
            Self::AboveRoot => "path climbs above the root",
            Self::DotWithParameter => "path holds a dot segment with a parameter",
            Self::EscapedSlash => "path holds an escaped slash",
            Self::NotPrefix => "path does not begin with the prefix to replace",
        }
    }
}

/// Brings `path` (without its query) into normal form. `out` is cleared first and filled only when something
/// has to change; then it is at most three times as long as `path`.
///
/// # Errors
/// `PathError`; `out` is then without meaning.
pub fn normalise(path: &[u8], policy: &PathPolicy, out: &mut Vec<u8>) -> Result<PathOutcome, PathError> {
    out.clear();
    if path.first() != Some(&b'/') {
        return Err(PathError::NotAbsolute);
    }
    if is_plainly_normal(path, policy.merge_slashes) {
        return Ok(PathOutcome::Unchanged);
    }
    let mut writer = Writer { out, segment_at: 0, merge_slashes: policy.merge_slashes };
    let has_escaped_slash = writer.write_all(path, policy.escaped_slashes)?;
    if has_escaped_slash && policy.escaped_slashes == EscapedSlashes::Redirect {
        // `Location: //host/` names another host (RFC 3986 §4.2).
        let leading = out.iter().take_while(|&&b| b == b'/').count();
        out.drain(..leading.saturating_sub(1));
        return Ok(PathOutcome::Redirect);
    }
    if out == path {
        out.clear();
        return Ok(PathOutcome::Unchanged);
    }
    Ok(PathOutcome::Changed)
}

/// One pass that answers the common case: nothing to decode, merge or resolve. May say false for a path that
/// is normal (one with an upper-case escape), never true for one that is not.
fn is_plainly_normal(path: &[u8], merge_slashes: bool) -> bool {
    let mut rest = path;
    while let Some((&byte, after)) = rest.split_first() {
        if byte == b'/' {
            match after {
                [b'/', ..] if merge_slashes => return false,
                [b'.'] | [b'.', b'.' | b'/' | b';', ..] => return false,
                _ => {}
            }
        } else if class_of(byte) != PLAIN {
            return false;
        }
        rest = after;
    }
    true
}

/// Appends to `out`, whose last segment begins at `segment_at`, behind a slash.
struct Writer<'a> {
    out: &'a mut Vec<u8>,
    segment_at: usize,
    merge_slashes: bool,
}

impl Writer<'_> {
    /// True when an escaped slash was met and let through.
    fn write_all(&mut self, path: &[u8], escaped: EscapedSlashes) -> Result<bool, PathError> {
        let mut has_escaped_slash = false;
        let mut rest = path;
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            if byte == b'/' {
                self.slash()?;
                continue;
            }
            match class_of(byte) {
                PLAIN => self.out.push(byte),
                ESCAPE if byte == b'%' => {
                    let (value, after) = decode(rest)?;
                    rest = after;
                    if value == b'/' || value == b'\\' {
                        has_escaped_slash = true;
                        self.escaped_slash(value, escaped)?;
                    } else if is_unreserved(value) {
                        // RFC 3986 §6.2.2.2. A dot made here counts as a dot.
                        self.out.push(value);
                    } else {
                        self.escape(value);
                    }
                }
                // RFC 3986 §2.1: not allowed bare, harmless once escaped; raw UTF-8, `|`, `"` and the like.
                ESCAPE => self.escape(byte),
                _ => return Err(PathError::BadByte),
            }
        }
        self.end_segment()?;
        Ok(has_escaped_slash)
    }

    fn escaped_slash(&mut self, value: u8, escaped: EscapedSlashes) -> Result<(), PathError> {
        match escaped {
            EscapedSlashes::Keep => self.escape(value),
            EscapedSlashes::Reject => return Err(PathError::EscapedSlash),
            EscapedSlashes::Redirect => self.slash()?,
        }
        Ok(())
    }

    fn slash(&mut self) -> Result<(), PathError> {
        let is_segment_gone = self.end_segment()?;
        let is_doubled = self.merge_slashes && self.out.last() == Some(&b'/');
        if !is_segment_gone && !is_doubled {
            self.out.push(b'/');
        }
        self.segment_at = self.out.len();
        Ok(())
    }

    /// RFC 3986 §5.2.4 for the segment that just ended. True when it was a dot segment: then `out` ends in
    /// the slash that now precedes the next one.
    fn end_segment(&mut self) -> Result<bool, PathError> {
        match self.out.get(self.segment_at..).unwrap_or(&[]) {
            b"." => self.out.truncate(self.segment_at),
            b".." => {
                // The slash before this segment does not belong to the parent.
                let parent = self.out.get(..self.segment_at.saturating_sub(1)).unwrap_or(&[]);
                let slash = memchr::memrchr(b'/', parent).ok_or(PathError::AboveRoot)?;
                self.out.truncate(slash + 1);
            }
            [b'.', b';', ..] | [b'.', b'.', b';', ..] => return Err(PathError::DotWithParameter),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn escape(&mut self, byte: u8) {
        self.out.extend_from_slice(&[b'%', upper_hex(byte >> 4), upper_hex(byte & 0x0f)]);
    }
}

/// The byte that an escape stands for, and what follows its two digits.
fn decode(after_percent: &[u8]) -> Result<(u8, &[u8]), PathError> {
    let [high, low, rest @ ..] = after_percent else {
        return Err(PathError::BadEscape);
    };
    let high = hex_value(*high).ok_or(PathError::BadEscape)?;
    let low = hex_value(*low).ok_or(PathError::BadEscape)?;
    match high << 4 | low {
        0 => Err(PathError::EscapedNul),
        value => Ok((value, rest)),
    }
}

const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Normalises a path that a rewrite just made, in place. `scratch` is memory to work in.
///
/// # Errors
/// As [`normalise`]; besides, an escaped slash is refused unless the policy keeps it: after routing nobody
/// can be redirected.
pub fn recheck(path: &mut Vec<u8>, policy: &PathPolicy, scratch: &mut Vec<u8>) -> Result<(), PathError> {
    let escaped_slashes = match policy.escaped_slashes {
        EscapedSlashes::Keep => EscapedSlashes::Keep,
        EscapedSlashes::Reject | EscapedSlashes::Redirect => EscapedSlashes::Reject,
    };
    let policy = PathPolicy { escaped_slashes, ..*policy };
    match normalise(path, &policy, scratch)? {
        PathOutcome::Unchanged => {}
        PathOutcome::Changed | PathOutcome::Redirect => std::mem::swap(path, scratch),
    }
    Ok(())
}

/// Replaces `prefix` at the start of `path` and rechecks the result, which goes to `out`.
///
/// A trailing slash of `prefix` is not part of what is replaced, and exactly one slash joins `replacement`
/// to what remains: `/foo` to `/xyz/` makes `/xyz/bar` of `/foo/bar`; to `/` or nothing it makes `/bar`.
/// Where nothing remains the replacement is taken as written (`/` for an empty one).
///
/// # Errors
/// `NotPrefix`, or as [`recheck`].
pub fn replace_prefix(
    path: &[u8],
    prefix: &[u8],
    replacement: &[u8],
    policy: &PathPolicy,
    out: &mut Vec<u8>,
    scratch: &mut Vec<u8>,
) -> Result<(), PathError> {
    let prefix = prefix.strip_suffix(b"/").unwrap_or(prefix);
    let rest = path.strip_prefix(prefix).ok_or(PathError::NotPrefix)?;
    let head = match rest {
        [] => replacement,
        _ => replacement.strip_suffix(b"/").unwrap_or(replacement),
    };
    out.clear();
    out.extend_from_slice(head);
    out.extend_from_slice(rest);
    if out.first() != Some(&b'/') {
        out.insert(0, b'/');
    }
    recheck(out, policy, scratch)
}

/// One table look-up a byte.
mod class {
    /// Stays as it is: `pchar` of RFC 3986 §3.3 but for escapes. The slash has its own branch.
    pub(super) const PLAIN: u8 = 0;
    /// `%` itself, or a byte that has to be escaped.
    pub(super) const ESCAPE: u8 = 1;
    /// Never allowed.
    const REFUSE: u8 = 2;

    const CLASS: [u8; 256] = {
        let mut table = [ESCAPE; 256];
        let mut byte = 0usize;
        while byte < 256 {
            let is_unreserved =
                matches!(byte, 0x30..=0x39 | 0x41..=0x5a | 0x61..=0x7a | 0x2d | 0x2e | 0x5f | 0x7e);
            let is_sub_delim = matches!(byte, 0x21 | 0x24 | 0x26..=0x2c | 0x3b | 0x3d);
            let is_colon_or_at = matches!(byte, 0x3a | 0x40);
            let is_backslash_query_or_fragment = matches!(byte, 0x5c | 0x3f | 0x23);
            if is_unreserved || is_sub_delim || is_colon_or_at {
                table[byte] = PLAIN;
            } else if byte <= 0x20 || byte == 0x7f || is_backslash_query_or_fragment {
                table[byte] = REFUSE;
            }
            byte += 1;
        }
        table
    };

    pub(super) fn class_of(byte: u8) -> u8 {
        CLASS[usize::from(byte)]
    }

    pub(super) const fn hex_value(digit: u8) -> Option<u8> {
        match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            b'A'..=b'F' => Some(digit - b'A' + 10),
            _ => None,
        }
    }

    /// `nibble` is below 16.
    pub(super) const fn upper_hex(nibble: u8) -> u8 {
        if nibble < 10 { b'0' + nibble } else { b'A' + nibble - 10 }
    }
}

#[cfg(test)]
mod tests;
