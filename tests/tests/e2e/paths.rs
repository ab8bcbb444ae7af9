//! C16: one normalised path is used for routing and policy, and is what the upstream gets.

use tests::{Config, Origin, Proxy, Route, client, origin};

/// `/admin` is refused, everything else goes to the echo.
fn guarded(change: impl FnOnce(&mut tests::Listener)) -> (Origin, Proxy) {
    let origin = origin::echo();
    let config = Config::to(origin.address())
        .listener(change)
        .and_route(Route::prefix("admin", "/admin").direct(403, "no"));
    (origin, Proxy::start(config))
}

#[test]
fn c16_no_spelling_gets_round_the_rule() {
    let (origin, proxy) = guarded(|_| {});
    for target in [
        "/admin",
        "/admin/",
        "/admin/x",
        "/admin?x",
        "/x/../admin",
        "/./admin",
        "/x/%2e%2e/admin",
        "/x/.%2E/admin",
        "/%61dmin",
        "/%61%64min/x",
        "/a/b/../../admin",
        "/admin/../admin",
        "/x/./../admin",
        "/admin/.",
        "/%2e/admin",
    ] {
        let response = client::get(proxy.address(), "a.example", target);
        assert_eq!(response.status, 403, "{target}: {response:?}");
        crate::untouched(&origin, target);
    }
}

#[test]
fn c16_the_upstream_gets_the_path_that_was_routed() {
    let (origin, proxy) = guarded(|_| {});
    for (target, routed) in [
        ("/x/../y", "/y"),
        ("/./y", "/y"),
        ("/y/.", "/y/"),
        ("/y/..", "/"),
        ("/a/b/..", "/a/"),
        ("/%7euser", "/~user"),
        ("/a%2Db", "/a-b"),
        ("/a?x=/../y", "/a?x=/../y"),
        ("/a?%2e%2e", "/a?%2e%2e"),
        ("//y", "//y"),
        ("/a//b", "/a//b"),
        ("/a/%20b", "/a/%20b"),
        ("/a;v=1/b", "/a;v=1/b"),
        ("/a/...", "/a/..."),
        ("/a/..b", "/a/..b"),
    ] {
        let response = client::get(proxy.address(), "a.example", target);
        assert_eq!((response.status, response.json()["target"].as_str()), (200, Some(routed)), "{target}");
    }
    assert_eq!(origin.faults(), Vec::<String>::new());
}

#[test]
fn c16_escaped_slashes_are_not_slashes_and_escapes_are_undone_once() {
    let (origin, proxy) = guarded(|_| {});
    for target in [
        "/admin%2f",
        "/admin%2Fx",
        "/x%2f..%2fadmin",
        "/x%5c..%5cadmin",
        "/..%252fadmin",
        "/%2561dmin",
        "/x%2f%2e%2e/y",
    ] {
        let response = client::get(proxy.address(), "a.example", target);
        if response.status == 200 {
            let seen = response.json()["target"].as_str().expect("a target").to_owned();
            let decoded_once = seen.replace("%2e", ".").replace("%2E", ".");
            assert!(
                !decoded_once.contains("/../") && !seen.starts_with("/admin/"),
                "{target} arrived as {seen}"
            );
            assert!(
                target.contains("%25") == seen.contains("%25"),
                "{target} arrived as {seen}: decoded twice"
            );
        } else {
            assert!(matches!(response.status, 400 | 403), "{target}: {response:?}");
        }
    }
    assert_eq!(origin.faults(), Vec::<String>::new());
}

#[test]
fn c16_paths_that_have_no_meaning() {
    let (origin, proxy) = guarded(|_| {});
    for target in [
        "/..",
        "/../admin",
        "/a/../..",
        "/%2e%2e/admin",
        "/%",
        "/%2",
        "/%zz",
        "/a%00",
        "/admin%00",
        "/x\\..\\admin",
    ] {
        let response = client::get(proxy.address(), "a.example", target);
        assert_eq!(response.status, 400, "{target}: {response:?}");
        crate::untouched(&origin, target);
    }
}

#[test]
fn c16_escaped_controls_stay_escaped() {
    let (origin, proxy) = guarded(|_| {});
    for target in ["/%0d%0aX:y", "/%09", "/%7f", "/%ff"] {
        let response = client::get(proxy.address(), "a.example", target);
        if response.status == 200 {
            let seen = response.json()["target"].as_str().expect("a target").to_owned();
            assert!(seen.eq_ignore_ascii_case(target), "{target} arrived as {seen}");
        } else {
            assert_eq!(response.status, 400, "{target}");
        }
    }
    assert_eq!(origin.faults(), Vec::<String>::new());
}

#[test]
fn c16_merging_slashes_is_a_switch() {
    let (_origin, proxy) = guarded(|listener| listener.merge_slashes = true);
    for target in ["//admin", "///admin//x", "/x/..//admin"] {
        assert_eq!(proxy.get(target).status, 403, "{target}");
    }
    assert_eq!(proxy.get("//a///b?c=//d").json()["target"], "/a/b?c=//d");
}

#[test]
fn c16_escaped_slashes_by_policy() {
    let (origin, proxy) = guarded(|listener| listener.escaped_slashes = Some("reject"));
    for target in ["/a%2fb", "/a%2Fb", "/a%5cb"] {
        assert_eq!(proxy.get(target).status, 400, "{target}");
    }
    crate::untouched(&origin, "escaped slashes");
    let (origin, proxy) = guarded(|listener| listener.escaped_slashes = Some("redirect"));
    let response = proxy.get("/a%2Fb?x=%2F");
    assert!(matches!(response.status, 301 | 302 | 307 | 308), "{response:?}");
    assert!(
        response.field("location").is_some_and(|location| location.ends_with("/a/b?x=%2F")),
        "{response:?}"
    );
    crate::untouched(&origin, "escaped slashes");
}

#[test]
fn c16_a_stripped_prefix_makes_no_new_path() {
    let origin = origin::echo();
    let strip =
        Route::prefix("api", "/api").to("u").having(|route| route.prefix_rewrite = Some("/".to_owned()));
    let mut config = Config::to(origin.address());
    config.routes = vec![strip, Route::prefix("rest", "/").direct(404, "none")];
    let proxy = Proxy::start(config);
    for (target, wanted) in
        [("/api/x", "/x"), ("/api", "/"), ("/api/", "/"), ("/api?q", "/?q"), ("/api/a/../b", "/b")]
    {
        let response = proxy.get(target);
        assert_eq!((response.status, response.json()["target"].as_str()), (200, Some(wanted)), "{target}");
    }
    assert_eq!(proxy.get("/api/../admin").status, 404, "resolved before it is matched");
    for target in ["/api%2f..%2fadmin", "/api/..%2f..%2fadmin", "/api//admin", "/api/%2e%2e/%2e%2e/admin"] {
        let response = proxy.get(target);
        if response.status == 200 {
            let seen = response.json()["target"].as_str().expect("a target").to_owned();
            assert!(!seen.contains("/../") && seen.starts_with('/'), "{target} arrived as {seen}");
        } else {
            assert!(matches!(response.status, 400 | 404), "{target}: {response:?}");
        }
    }
    assert_eq!(origin.faults(), Vec::<String>::new());
}
