//! Path normalisation against a slow model, and what must hold of every result.
//! Input: policy byte, path, LF, prefix, LF, replacement.

#![no_main]

use http_wire::path::{self, EscapedSlashes, PathOutcome, PathPolicy};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&choice, text)) = data.split_first() else {
        return;
    };
    let policy = policy_of(choice);
    let mut parts = text.splitn(3, |&b| b == b'\n');
    let path = parts.next().unwrap_or(&[]);
    let mut out = b"left over".to_vec();
    let result = path::normalise(path, &policy, &mut out);
    let form = match result {
        Err(_) => {
            assert!(model(path, &policy).is_none(), "refused, but the model takes it");
            return;
        }
        Ok(PathOutcome::Unchanged) => {
            assert!(out.is_empty());
            path
        }
        Ok(PathOutcome::Changed | PathOutcome::Redirect) => {
            assert_ne!(out, path);
            &out
        }
    };
    check_form(form, &policy);
    assert_eq!(Some(form), model(path, &policy).as_deref());
    let is_redirect = result == Ok(PathOutcome::Redirect);
    assert!(!is_redirect || policy.escaped_slashes == EscapedSlashes::Redirect && !form.starts_with(b"//"));

    if let (Some(prefix), Some(replacement)) = (parts.next(), parts.next()) {
        let (mut rewritten, mut scratch) = (Vec::new(), Vec::new());
        if path::replace_prefix(form, prefix, replacement, &policy, &mut rewritten, &mut scratch).is_ok() {
            check_form(&rewritten, &policy);
        }
    }
});

fn policy_of(choice: u8) -> PathPolicy {
    let escaped_slashes = match choice >> 1 & 3 {
        0 => EscapedSlashes::Reject,
        1 => EscapedSlashes::Redirect,
        _ => EscapedSlashes::Keep,
    };
    PathPolicy { escaped_slashes, merge_slashes: choice & 1 == 1 }
}

fn check_form(form: &[u8], policy: &PathPolicy) {
    assert_eq!(form.first(), Some(&b'/'));
    let mut again = Vec::new();
    assert_eq!(path::normalise(form, policy, &mut again), Ok(PathOutcome::Unchanged), "not idempotent");
    assert!(form.split(|&b| b == b'/').all(|segment| segment != b"." && segment != b".."));
    assert!(form.iter().all(|b| b.is_ascii_graphic() && !b"\\?#\"<>[]^`{|}".contains(b)));
    assert!(!(policy.merge_slashes && form.windows(2).any(|pair| pair == b"//")));
    for escape in form.split(|&b| b == b'%').skip(1) {
        let digits = escape.get(..2).expect("an escape has two digits");
        assert!(digits.iter().all(|d| d.is_ascii_digit() || (b'A'..=b'F').contains(d)));
        assert_ne!(digits, b"00");
        let is_slash = digits == b"2F" || digits == b"5C";
        assert!(!is_slash || policy.escaped_slashes == EscapedSlashes::Keep);
    }
}

/// The same rules in the plainest way: decode into symbols, split, drop dot segments, join.
fn model(path: &[u8], policy: &PathPolicy) -> Option<Vec<u8>> {
    let mut symbols: Vec<Vec<u8>> = Vec::new();
    let mut has_escaped_slash = false;
    let mut at = 0;
    while at < path.len() {
        let byte = path[at];
        at += 1;
        let escaped = |b: u8| format!("%{b:02X}").into_bytes();
        match byte {
            b'%' => {
                let digits = path.get(at..at + 2).filter(|d| d.iter().all(u8::is_ascii_hexdigit))?;
                let value = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
                at += 2;
                match (value, policy.escaped_slashes) {
                    (0, _) | (b'/' | b'\\', EscapedSlashes::Reject) => return None,
                    (b'/' | b'\\', EscapedSlashes::Redirect) => {
                        has_escaped_slash = true;
                        symbols.push(b"/".to_vec());
                    }
                    (b'-' | b'.' | b'_' | b'~', _) => symbols.push(vec![value]),
                    _ if value.is_ascii_alphanumeric() => symbols.push(vec![value]),
                    _ => symbols.push(escaped(value)),
                }
            }
            0..=b' ' | 0x7f | b'\\' | b'?' | b'#' => return None,
            0x80.. | b'"' | b'<' | b'>' | b'[' | b']' | b'^' | b'`' | b'{' | b'|' | b'}' => {
                symbols.push(escaped(byte))
            }
            _ => symbols.push(vec![byte]),
        }
    }
    // Path and first symbol have to agree: an escaped slash does not make a path absolute.
    if path.first() != Some(&b'/') {
        return None;
    }
    let mut segments: Vec<Vec<u8>> = Vec::new();
    let all: Vec<Vec<u8>> = symbols[1..].split(|s| s == b"/").map(<[Vec<u8>]>::concat).collect();
    for (index, segment) in all.iter().enumerate() {
        let is_last = index + 1 == all.len();
        match segment.as_slice() {
            b"." => {}
            b".." => {
                segments.pop()?;
            }
            _ if segment.starts_with(b".;") || segment.starts_with(b"..;") => return None,
            b"" if policy.merge_slashes && !is_last => continue,
            _ => {
                segments.push(segment.clone());
                continue;
            }
        }
        if is_last {
            segments.push(Vec::new());
        }
    }
    let mut joined: Vec<u8> = segments.iter().flat_map(|s| [&b"/"[..], s].concat()).collect();
    if joined.is_empty() {
        joined.push(b'/');
    }
    if has_escaped_slash {
        while joined.starts_with(b"//") {
            joined.remove(0);
        }
    }
    Some(joined)
}
