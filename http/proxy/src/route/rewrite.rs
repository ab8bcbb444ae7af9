//! What becomes of a path on its way to the upstream or into a redirect.
//!
//! A rewrite works on the normalised path without the query. Its result always starts with `/`. The caller checks it
//! again (`path::recheck`): what a pattern keeps of the client's path may form new dot segments (C16).

use regex::bytes::Regex;

use super::pattern::search_pattern;
use crate::snapshot::PathRewrite;

impl PathRewrite {
    /// A rewrite by pattern; `\0` to `\9` in `substitution` stand for groups, `\\` for a backslash.
    ///
    /// # Errors
    /// What is wrong with the pattern or the substitution, as a sentence part.
    pub fn regex(pattern: &str, substitution: &str) -> Result<Self, String> {
        let pattern = search_pattern(pattern)?;
        for piece in pieces(substitution) {
            match piece {
                Piece::Group(group) if group >= pattern.captures_len() => {
                    return Err(format!("has no group {group}, which the substitution names"));
                }
                Piece::Lone => {
                    return Err("is followed by a substitution with a `\\` that no digit follows".to_owned());
                }
                Piece::Group(_) | Piece::Text(_) => {}
            }
        }
        Ok(Self::Regex { pattern, substitution: substitution.to_owned() })
    }

    /// Writes the new path to `out`, which is cleared first. `matched_bytes` is how much of the path the route
    /// matched by ([`super::RouteMatch::matched_bytes`]).
    pub fn apply(&self, path: &[u8], matched_bytes: usize, out: &mut Vec<u8>) {
        out.clear();
        match self {
            Self::Full(text) => out.extend_from_slice(text.as_bytes()),
            Self::Prefix(text) => {
                let rest = path.get(matched_bytes..).unwrap_or(b"");
                // `/api` to `/` makes `/x` of `/api/x`, not `//x`.
                let text = text.as_bytes();
                let text =
                    if rest.starts_with(b"/") { text.strip_suffix(b"/").unwrap_or(text) } else { text };
                out.extend_from_slice(text);
                out.extend_from_slice(rest);
            }
            Self::Regex { pattern, substitution } => substitute(pattern, substitution, path, out),
        }
        if out.first() != Some(&b'/') {
            out.insert(0, b'/');
        }
    }
}

/// Replaces every match. The captures allocate; routes without a pattern pay nothing.
fn substitute(pattern: &Regex, substitution: &str, path: &[u8], out: &mut Vec<u8>) {
    let mut kept_from = 0;
    for captures in pattern.captures_iter(path) {
        let Some(whole) = captures.get(0) else { continue };
        out.extend_from_slice(path.get(kept_from..whole.start()).unwrap_or(b""));
        for piece in pieces(substitution) {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
                Piece::Group(group) => {
                    out.extend_from_slice(captures.get(group).map_or(b"", |g| g.as_bytes()))
                }
                Piece::Lone => {}
            }
        }
        kept_from = whole.end();
    }
    out.extend_from_slice(path.get(kept_from..).unwrap_or(b""));
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece<'a> {
    Text(&'a str),
    Group(usize),
    /// A backslash that means nothing.
    Lone,
}

fn pieces(substitution: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = substitution;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some(escaped) = rest.strip_prefix('\\') else {
            let end = rest.find('\\').unwrap_or(rest.len());
            let (text, after) = rest.split_at(end);
            rest = after;
            return Some(Piece::Text(text));
        };
        let piece = match escaped.as_bytes().first() {
            Some(digit @ b'0'..=b'9') => Piece::Group(usize::from(digit - b'0')),
            Some(b'\\') => Piece::Text("\\"),
            _ => Piece::Lone,
        };
        rest = if piece == Piece::Lone { escaped } else { escaped.get(1..).unwrap_or("") };
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(rewrite: &PathRewrite, path: &str, matched_bytes: usize) -> String {
        let mut out = b"leftover".to_vec();
        rewrite.apply(path.as_bytes(), matched_bytes, &mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn prefixes_and_whole_paths() {
        let prefix = |text: &str| PathRewrite::Prefix(text.to_owned());
        for (rewrite, path, matched, expected) in [
            (prefix("/v2"), "/api/x", 4, "/v2/x"),
            (prefix("/"), "/api/x", 4, "/x"),
            (prefix("/"), "/api", 4, "/"),
            (prefix("/v2/"), "/api/x", 4, "/v2/x"),
            (prefix("/v2"), "/api/x", 5, "/v2x"),
            (prefix("/v2/"), "/api/x", 5, "/v2/x"),
            (prefix("/a"), "/b", 2, "/a"),
            (PathRewrite::Full("/all".to_owned()), "/api/x", 4, "/all"),
        ] {
            assert_eq!(applied(&rewrite, path, matched), expected, "{rewrite:?} on {path}");
        }
    }

    #[test]
    fn patterns_replace_every_match() {
        for (pattern, substitution, path, expected) in [
            ("^/v([0-9]+)/(.*)$", r"/\2/of/\1", "/v3/orders", "/orders/of/3"),
            ("[0-9]", "N", "/a1/b2", "/aN/bN"),
            ("^/old", "", "/old/x", "/x"),
            ("^/old", "", "/old", "/"),
            ("b", r"[\0\\]", "/abc", r"/a[b\]c"),
            ("(x)?y", r"<\1>", "/y", "/<>"),
            ("nothing", "x", "/kept", "/kept"),
        ] {
            let rewrite = PathRewrite::regex(pattern, substitution).expect("valid");
            assert_eq!(applied(&rewrite, path, 0), expected, "{pattern} on {path}");
        }
    }

    #[test]
    fn substitutions_are_checked_at_load() {
        for (pattern, substitution) in [("(a)", r"\2"), ("a", r"\1"), ("a", r"\x"), ("a", "\\"), ("(", "")] {
            assert!(PathRewrite::regex(pattern, substitution).is_err(), "{pattern} {substitution}");
        }
        assert!(PathRewrite::regex("(a)", r"\1\0").is_ok());
    }
}
