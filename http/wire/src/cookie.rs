//! Looks up one cookie of a request. No allocation, no policy: the value is an opaque run of bytes.
//!
//! Tolerant, because browsers are (RFC 6265 §5.4 leaves the server to cope): blanks around pairs, empty
//! pairs and pairs without `=` are skipped. Bounded, because a client may send as many pairs as fit a head.
//! Called by routing (hash by cookie) and by session affinity.

/// Pairs looked at in one request; a cookie behind them is not found.
pub const PAIRS_MAX: usize = 256;

/// The value of the first cookie called `name`, over all Cookie lines in order (HTTP/2 splits them,
/// RFC 9113 §8.2.3). Names are case-sensitive; double quotes stay part of the value (RFC 6265 §4.1.1).
pub fn find<'a>(lines: impl IntoIterator<Item = &'a [u8]>, name: &[u8]) -> Option<&'a [u8]> {
    if name.is_empty() {
        return None;
    }
    let pairs = lines.into_iter().flat_map(|line| line.split(|&b| b == b';'));
    pairs.take(PAIRS_MAX).find_map(|pair| value_if_named(pair, name))
}

fn value_if_named<'a>(pair: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let equals = memchr::memchr(b'=', pair)?;
    let (found, value) = pair.split_at(equals);
    let value = value.get(1..)?;
    (found.trim_ascii() == name).then(|| value.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_text<'a>(lines: &[&'a str], name: &str) -> Option<&'a str> {
        let found = find(lines.iter().map(|l| l.as_bytes()), name.as_bytes());
        found.map(|value| std::str::from_utf8(value).expect("test values are text"))
    }

    #[test]
    fn a_cookie_is_found_wherever_it_stands() {
        let cases: [(&[&str], &str, Option<&str>); 15] = [
            (&["sid=1"], "sid", Some("1")),
            (&["a=b; sid=1"], "sid", Some("1")),
            (&["a=b;sid=1;c=d"], "sid", Some("1")),
            (&["a=b", "sid=1"], "sid", Some("1")),
            (&["  sid = 1 ; x=y"], "sid", Some("1")),
            (&["sid=1; sid=2"], "sid", Some("1")),
            (&["sid=a=b=c"], "sid", Some("a=b=c")),
            (&["sid=\"q\""], "sid", Some("\"q\"")),
            (&["sid="], "sid", Some("")),
            (&["sid"], "sid", None),
            (&["SID=1"], "sid", None),
            (&["xsid=1; sidx=2"], "sid", None),
            (&["; ;; sid=1"], "sid", Some("1")),
            (&["=1"], "", None),
            (&[], "sid", None),
        ];
        for (lines, name, value) in cases {
            assert_eq!(find_text(lines, name), value, "{lines:?}");
        }
    }

    #[test]
    fn the_search_ends() {
        let behind = |pairs: usize| format!("{}sid=1", "a=b;".repeat(pairs));
        assert_eq!(find_text(&[&behind(PAIRS_MAX - 1)], "sid"), Some("1"));
        assert_eq!(find_text(&[&behind(PAIRS_MAX)], "sid"), None);
        let lines = vec!["a=b"; PAIRS_MAX];
        assert_eq!(find_text(&[&lines[..], &["sid=1"]].concat(), "sid"), None);
    }
}
