//! Paths by family (C16).

use super::*;

const KEEP: PathPolicy = PathPolicy { escaped_slashes: EscapedSlashes::Keep, merge_slashes: false };
const KEEP_MERGE: PathPolicy = PathPolicy { escaped_slashes: EscapedSlashes::Keep, merge_slashes: true };
const REJECT: PathPolicy = PathPolicy { escaped_slashes: EscapedSlashes::Reject, merge_slashes: false };
const REDIRECT: PathPolicy = PathPolicy { escaped_slashes: EscapedSlashes::Redirect, merge_slashes: false };

/// The normal form, whether it was made or found.
fn normal(path: &str, policy: PathPolicy) -> Result<String, PathError> {
    let mut out = Vec::new();
    let outcome = normalise(path.as_bytes(), &policy, &mut out)?;
    let bytes = if outcome == PathOutcome::Unchanged { path.as_bytes() } else { &out };
    Ok(String::from_utf8(bytes.to_vec()).expect("a normal path is ASCII"))
}

#[test]
fn dot_segments_are_resolved_as_in_rfc_3986() {
    let cases = [
        ("/", "/"),
        ("/.", "/"),
        ("/./", "/"),
        ("/a/.", "/a/"),
        ("/a/./b", "/a/b"),
        ("/a/..", "/"),
        ("/a/../", "/"),
        ("/a/../b", "/b"),
        ("/a/b/../..", "/"),
        ("/a/b/c/./../../g", "/a/g"),
        ("/x/../admin", "/admin"),
        ("/./admin", "/admin"),
        ("/a//../b", "/a/b"),
        ("/a/../../b", "!above"),
        ("/..", "!above"),
        ("/../", "!above"),
        ("/.../a", "/.../a"),
        ("/..a/.b/c../d.", "/..a/.b/c../d."),
        ("/.well-known/x", "/.well-known/x"),
    ];
    for (path, expected) in cases {
        for spelling in
            [path.to_owned(), path.replace('.', "%2e"), path.replace('.', "%2E"), path.replace("..", ".%2e")]
        {
            let expected =
                if expected == "!above" { Err(PathError::AboveRoot) } else { Ok(expected.to_owned()) };
            assert_eq!(normal(&spelling, KEEP), expected, "{spelling}");
        }
    }
}

#[test]
fn unreserved_escapes_are_decoded_once_and_others_get_upper_hex() {
    for byte in 1..=u8::MAX {
        let normal_form =
            if is_unreserved(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
        for escape in [format!("%{byte:02x}"), format!("%{byte:02X}")] {
            assert_eq!(normal(&format!("/a{escape}b"), KEEP), Ok(format!("/a{normal_form}b")));
            // Never twice.
            assert_eq!(normal(&format!("/%25{escape}"), KEEP), Ok(format!("/%25{normal_form}")));
        }
    }
    assert_eq!(normal("/%252e%252e/x", KEEP), Ok("/%252e%252e/x".to_owned()));
    assert_eq!(normal("/..%252fadmin", KEEP), Ok("/..%252fadmin".to_owned()));
    assert_eq!(normal("/%61dmin", KEEP), Ok("/admin".to_owned()));
}

#[test]
fn bare_bytes_outside_the_grammar_are_escaped_or_refused() {
    let refused = |b: u8| b <= b' ' || matches!(b, 0x7f | b'\\' | b'?' | b'#');
    let escaped =
        |b: u8| b >= 0x80 || matches!(b, b'"' | b'<' | b'>' | b'[' | b']' | b'^' | b'`' | b'{' | b'|' | b'}');
    for byte in 0..=u8::MAX {
        let mut out = Vec::new();
        let result = normalise(&[b'/', b'x', byte], &KEEP, &mut out);
        if refused(byte) {
            assert_eq!(result, Err(PathError::BadByte), "{byte}");
        } else if byte == b'%' {
            assert_eq!(result, Err(PathError::BadEscape));
        } else if escaped(byte) {
            assert_eq!((result, out), (Ok(PathOutcome::Changed), format!("/x%{byte:02X}").into_bytes()));
        } else {
            assert_eq!((result, out), (Ok(PathOutcome::Unchanged), Vec::new()), "{byte}");
        }
    }
}

#[test]
fn bad_paths_are_refused_under_every_policy() {
    let cases = [
        ("", PathError::NotAbsolute),
        ("a", PathError::NotAbsolute),
        ("*", PathError::NotAbsolute),
        ("%2f", PathError::NotAbsolute),
        ("/admin%00", PathError::EscapedNul),
        ("/%", PathError::BadEscape),
        ("/%2", PathError::BadEscape),
        ("/%zz", PathError::BadEscape),
        ("/%2%66", PathError::BadEscape),
        ("/%u002f", PathError::BadEscape),
        ("/x\\..\\admin", PathError::BadByte),
        ("/a b", PathError::BadByte),
        ("/a\r\nb", PathError::BadByte),
        ("/a?b", PathError::BadByte),
        ("/a/..;/admin", PathError::DotWithParameter),
        ("/a/%2e%2e;x=y/admin", PathError::DotWithParameter),
        ("/a/.;/b", PathError::DotWithParameter),
        ("/..;", PathError::DotWithParameter),
    ];
    for (path, error) in cases {
        for policy in [KEEP, KEEP_MERGE, REJECT, REDIRECT] {
            assert_eq!(normal(path, policy), Err(error), "{path}");
        }
    }
}

#[test]
fn parameters_stay() {
    assert_eq!(normal("/admin;a=b/c;d", KEEP), Ok("/admin;a=b/c;d".to_owned()));
    assert_eq!(normal("/a;../%62", KEEP), Ok("/a;../b".to_owned()));
}

#[test]
fn slashes_merge_only_when_asked() {
    let cases = [
        ("//admin", "/admin"),
        ("///", "/"),
        ("/a//b///c//", "/a/b/c/"),
        ("/a//./b", "/a/b"),
        ("/a/.//b", "/a/b"),
        ("/a//../b", "/b"),
        ("//a/..//b", "/b"),
    ];
    for (path, merged) in cases {
        assert_eq!(normal(path, KEEP_MERGE), Ok(merged.to_owned()), "{path}");
    }
    for path in ["//admin", "///", "/a//b///c//"] {
        assert_eq!(normal(path, KEEP), Ok(path.to_owned()));
    }
}

#[test]
fn escaped_slashes_follow_the_policy() {
    // path, kept, redirected to
    let cases = [
        ("/admin%2f", "/admin%2F", "/admin/"),
        ("/a%2Fb", "/a%2Fb", "/a/b"),
        ("/a%5cb", "/a%5Cb", "/a/b"),
        ("/x%2f..%2fadmin", "/x%2F..%2Fadmin", "/admin"),
        ("/api%2f..%2fadmin", "/api%2F..%2Fadmin", "/admin"),
        ("/%2fevil.example", "/%2Fevil.example", "/evil.example"),
        ("/%5cevil.example", "/%5Cevil.example", "/evil.example"),
        ("//evil.example/%2f", "//evil.example/%2F", "/evil.example//"),
        ("/a/..%2f/evil.example", "/a/..%2F/evil.example", "/evil.example"),
    ];
    for (path, kept, target) in cases {
        assert_eq!(normal(path, KEEP), Ok(kept.to_owned()), "{path}");
        assert_eq!(normal(path, REJECT), Err(PathError::EscapedSlash), "{path}");
        let mut out = Vec::new();
        assert_eq!(normalise(path.as_bytes(), &REDIRECT, &mut out), Ok(PathOutcome::Redirect));
        assert_eq!(String::from_utf8_lossy(&out), target, "{path}");
    }
    assert_eq!(normal("/..%2f", REDIRECT), Err(PathError::AboveRoot));
}

#[test]
fn an_upper_case_escape_alone_changes_nothing() {
    let mut out = b"left over".to_vec();
    assert_eq!(normalise(b"/a%2Fb%20c", &KEEP, &mut out), Ok(PathOutcome::Unchanged));
    assert!(out.is_empty());
}

/// Every path of up to six pieces from an alphabet of troublemakers.
#[test]
fn results_are_normal_and_hold_nothing_dangerous() {
    let pieces = ["/", ".", "%2e", "%2f", "a", "%25", ";"];
    let mut paths = vec![String::from("/")];
    let (mut from, mut made, mut changed) = (0, 0, 0);
    for _ in 0..5 {
        let until = paths.len();
        for at in from..until {
            for piece in pieces {
                paths.push(format!("{}{piece}", paths[at]));
            }
        }
        from = until;
    }
    for path in &paths {
        for policy in [KEEP, KEEP_MERGE, REJECT, REDIRECT] {
            let mut out = Vec::new();
            let Ok(outcome) = normalise(path.as_bytes(), &policy, &mut out) else {
                continue;
            };
            made += 1;
            changed += usize::from(outcome != PathOutcome::Unchanged);
            let form = if outcome == PathOutcome::Unchanged { path.as_bytes() } else { &out };
            let mut again = Vec::new();
            assert_eq!(normalise(form, &policy, &mut again), Ok(PathOutcome::Unchanged), "{path} {policy:?}");
            assert!(form.split(|&b| b == b'/').all(|s| s != b"." && s != b".."), "{path} {policy:?}");
            assert!(!(policy.merge_slashes && form.windows(2).any(|w| w == b"//")), "{path}");
        }
    }
    assert!(made > 10_000 && changed > 10_000, "the test has to test something: {made} {changed}");
}

#[test]
fn a_prefix_is_replaced_and_the_result_is_normal() {
    // path, prefix, replacement, result
    let cases = [
        ("/foo/bar", "/foo", "/xyz", "/xyz/bar"),
        ("/foo/bar", "/foo", "/xyz/", "/xyz/bar"),
        ("/foo/bar", "/foo/", "/xyz", "/xyz/bar"),
        ("/foo/bar", "/foo/", "/xyz/", "/xyz/bar"),
        ("/foo", "/foo", "/xyz", "/xyz"),
        ("/foo", "/foo/", "/xyz/", "/xyz/"),
        ("/foo/", "/foo", "/xyz", "/xyz/"),
        ("/foo/bar", "/foo", "", "/bar"),
        ("/foo/bar", "/foo", "/", "/bar"),
        ("/foo/", "/foo", "", "/"),
        ("/foo", "/foo", "", "/"),
        ("/foo", "/foo", "/", "/"),
        ("/bar", "/", "/xyz", "/xyz/bar"),
        ("/foox", "/foo", "/xyz", "/xyzx"),
        ("/foox", "/foo", "/", "/x"),
        ("/foo;p=1/b", "/foo", "/c", "/c;p=1/b"),
        ("/foo/bar", "/foo", "/a b", "!BadByte"),
        ("/foo/bar", "/foo", "/..", "!AboveRoot"),
        ("/foo..", "/foo", "/", "!AboveRoot"),
        ("/foo./x", "/foo", "/a/", "/a./x"),
        ("/foo/bar", "/foo", "/a/../b", "/b/bar"),
        ("/api%2F..%2Fadmin", "/api", "/", "/%2F..%2Fadmin"),
        ("/foo", "/bar", "/", "!NotPrefix"),
    ];
    let (mut out, mut scratch) = (Vec::new(), Vec::new());
    for (path, prefix, replacement, expected) in cases {
        let result = replace_prefix(
            path.as_bytes(),
            prefix.as_bytes(),
            replacement.as_bytes(),
            &KEEP,
            &mut out,
            &mut scratch,
        );
        let result = match result {
            Ok(()) => String::from_utf8_lossy(&out).into_owned(),
            Err(error) => format!("!{error:?}"),
        };
        assert_eq!(result, expected, "{path} {prefix} {replacement}");
    }
}

#[test]
fn a_rewritten_path_is_checked_again() {
    let mut scratch = Vec::new();
    let mut check = |path: &str, policy: PathPolicy| {
        let mut bytes = path.as_bytes().to_vec();
        recheck(&mut bytes, &policy, &mut scratch).map(|()| String::from_utf8_lossy(&bytes).into_owned())
    };
    assert_eq!(check("/a/../b", KEEP), Ok("/b".to_owned()));
    assert_eq!(check("/ok", KEEP), Ok("/ok".to_owned()));
    assert_eq!(check("ok", KEEP), Err(PathError::NotAbsolute));
    assert_eq!(check("/a%2fb", KEEP), Ok("/a%2Fb".to_owned()));
    assert_eq!(check("/a%2fb", REJECT), Err(PathError::EscapedSlash));
    assert_eq!(check("/a%2fb", REDIRECT), Err(PathError::EscapedSlash));
}
