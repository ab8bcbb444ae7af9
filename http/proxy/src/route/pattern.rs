//! Regular expressions from config: linear time, bounded size, ASCII classes.
//!
//! Config may come from a feed, so a pattern is bounded twice: its text and the program it compiles to. The
//! engine backtracks never, so a client cannot make a match slow. Used by routing and by path rewrites.

use control_api::defaults::route as limits;
use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::literal::Extractor;

/// Bytes of a pattern's text.
pub const PATTERN_BYTES_MAX: usize = limits::REGEX_BYTES_MAX;
/// Bytes of the compiled program.
const PROGRAM_BYTES_MAX: usize = limits::REGEX_COMPILED_BYTES_MAX;
/// Bytes of the lazily built automaton, per pattern and core.
const CACHE_BYTES_MAX: usize = 256 * 1024;

/// A pattern that must match a whole value.
#[derive(Debug)]
pub struct FullPattern {
    regex: Regex,
    source: String,
    literal_prefix: Vec<u8>,
}

impl FullPattern {
    /// # Errors
    /// What is wrong with the pattern, in one sentence part (`is too long…`, `is not valid: …`).
    pub fn new(source: &str) -> Result<Self, String> {
        check_length(source)?;
        // The bare pattern must stand on its own, so that wrapping it cannot change what its brackets mean.
        let hir = ParserBuilder::new()
            .unicode(false)
            .utf8(false)
            .build()
            .parse(source)
            .map_err(|error| format!("is not valid: {}", one_line(&error.to_string())))?;
        let prefixes = Extractor::new().extract(&hir);
        let literal_prefix = prefixes.longest_common_prefix().unwrap_or(&[]).to_vec();
        let regex = build(&format!(r"\A(?:{source})\z"))?;
        Ok(Self { regex, source: source.to_owned(), literal_prefix })
    }

    pub fn is_match(&self, value: &[u8]) -> bool {
        self.regex.is_match(value)
    }

    /// The pattern as written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Bytes that every matching value begins with; may be empty.
    pub fn literal_prefix(&self) -> &[u8] {
        &self.literal_prefix
    }
}

/// A pattern that may match anywhere in a value, for substitutions.
///
/// # Errors
/// As [`FullPattern::new`].
pub fn search_pattern(source: &str) -> Result<Regex, String> {
    check_length(source)?;
    build(source)
}

fn check_length(source: &str) -> Result<(), String> {
    if source.is_empty() {
        return Err("is empty".to_owned());
    }
    if source.len() > PATTERN_BYTES_MAX {
        return Err(format!("is longer than {PATTERN_BYTES_MAX} bytes"));
    }
    Ok(())
}

fn build(source: &str) -> Result<Regex, String> {
    RegexBuilder::new(source)
        .unicode(false)
        .size_limit(PROGRAM_BYTES_MAX)
        .dfa_size_limit(CACHE_BYTES_MAX)
        .build()
        .map_err(|error| match error {
            regex::Error::CompiledTooBig(limit) => format!("compiles to more than {limit} bytes"),
            other => format!("is not valid: {}", one_line(&other.to_string())),
        })
}

/// The parser draws its errors over several lines; the last one says what is wrong.
fn one_line(text: &str) -> String {
    let last = text.lines().last().unwrap_or(text);
    last.trim().trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_literal_prefix_begins_every_match() {
        for (source, prefix) in [
            ("/users/[0-9]+", "/users/"),
            ("/a(b|c)d", "/a"),
            ("/(api|apps)/x", "/ap"),
            ("^/x", "/x"),
            (".*/x", ""),
            ("(?i)/a", "/"),
            ("/a?b", "/"),
            ("/a*", "/"),
            ("a|b", ""),
        ] {
            let pattern = FullPattern::new(source).expect("valid");
            assert_eq!(pattern.literal_prefix(), prefix.as_bytes(), "{source}");
        }
    }

    #[test]
    fn the_whole_value_must_match() {
        for (source, value, expected) in [
            ("/a", "/a", true),
            ("/a", "/ab", false),
            ("/a|/b", "/bc", false),
            ("/a|/b", "x/a", false),
            (r"/\d+", "/12", true),
            (r"/\d+", "/\u{661}", false),
            ("/a.b", "/a\u{e9}b", false),
            ("/a..b", "/a\u{e9}b", true),
        ] {
            let pattern = FullPattern::new(source).expect("valid");
            assert_eq!(pattern.is_match(value.as_bytes()), expected, "{source} on {value}");
        }
    }

    #[test]
    fn unsafe_patterns_are_refused_with_a_reason() {
        let long = "a".repeat(PATTERN_BYTES_MAX + 1);
        for (source, reason) in [
            ("", "is empty"),
            (long.as_str(), "is longer than"),
            ("a)(b", "is not valid"),
            ("(a", "is not valid"),
            (r"(a)\1", "is not valid"),
            ("a(?=b)", "is not valid"),
            ("(?:[a-z]{1000}){1000}", "compiles to more than"),
        ] {
            let error = FullPattern::new(source).expect_err("must be refused");
            assert!(error.starts_with(reason), "{source:.20}: {error}");
        }
    }
}
