//! Which route a request takes and what it does to it.

use tests::config::{Action, Path};
use tests::{Cluster, Config, Proxy, Route, client, origin};

fn named(name: &str) -> Route {
    Route::prefix(name, "/").direct(200, name)
}

fn having(routes: Vec<Route>) -> Proxy {
    let mut config = Config::to(([127, 0, 0, 1], 9).into());
    config.routes = routes;
    Proxy::start(config)
}

#[test]
fn hosts_exact_then_longest_wildcard_then_any() {
    let proxy = having(vec![
        named("any"),
        named("exact").host("a.example"),
        named("wild").host("*.a.example"),
        named("longer").host("*.b.a.example"),
    ]);
    for (host, route) in [
        ("a.example", "exact"),
        ("A.Example:8080", "exact"),
        ("a.example.", "exact"),
        ("x.a.example", "wild"),
        ("x.y.a.example", "wild"),
        ("x.b.a.example", "longer"),
        ("b.a.example", "wild"),
        ("xa.example", "any"),
        ("other", "any"),
        ("127.0.0.1", "any"),
    ] {
        assert_eq!(client::get(proxy.address(), host, "/").text(), route, "{host}");
    }
}

#[test]
fn an_unknown_host_or_path_is_a_404_with_its_reason() {
    let proxy = having(vec![Route::prefix("a", "/a").direct(200, "a").host("a.example")]);
    let response = client::get(proxy.address(), "b.example", "/");
    assert_eq!((response.status, response.code().as_deref()), (404, Some("no_virtual_host")));
    let response = client::get(proxy.address(), "a.example", "/b");
    assert_eq!((response.status, response.code().as_deref()), (404, Some("no_route")));
}

#[test]
fn paths_exact_then_regex_then_longest_prefix() {
    let direct =
        |name: &str, path: Path| Route::prefix(name, "/").direct(200, name).having(|route| route.path = path);
    let proxy = having(vec![
        direct("root", Path::Prefix("/".to_owned())),
        direct("v1", Path::Prefix("/v1".to_owned())),
        direct("orders", Path::Prefix("/v1/orders".to_owned())),
        direct("exact", Path::Exact("/v1/orders/special".to_owned())),
        direct("regex", Path::Regex("/v[0-9]+/orders/[a-z]+".to_owned())),
    ]);
    for (path, route) in [
        ("/", "root"),
        ("/v10", "root"),
        ("/v1", "v1"),
        ("/v1/", "v1"),
        ("/v1/x?y", "v1"),
        ("/v1/orders", "orders"),
        ("/v1/orders/7", "orders"),
        ("/v1/ordersx", "v1"),
        ("/v1/orders/special", "exact"),
        ("/v1/orders/other", "regex"),
        ("/v2/orders/other", "regex"),
        ("/v1/orders/other/more", "orders"),
    ] {
        assert_eq!(client::get(proxy.address(), "a.example", path).text(), route, "{path}");
    }
}

#[test]
fn methods_fields_and_query_narrow_a_route() {
    let proxy = having(vec![
        named("post").having(|route| route.methods = vec!["POST".to_owned(), "PUT".to_owned()]),
        named("canary").having(|route| route.fields = vec![("x-canary".to_owned(), "yes".to_owned())]),
        named("v2").having(|route| route.query = vec![("version".to_owned(), "2".to_owned())]),
        named("rest"),
    ]);
    for (request, route) in [
        ("POST / HTTP/1.1\r\nContent-Length: 0", "post"),
        ("PUT / HTTP/1.1\r\nContent-Length: 0\r\nX-Canary: yes", "post"),
        ("GET / HTTP/1.1\r\nX-CANARY: yes", "canary"),
        ("GET / HTTP/1.1\r\nX-Canary: yes!", "rest"),
        ("GET /?version=2 HTTP/1.1", "v2"),
        ("GET /?a=b&version=2&c HTTP/1.1", "v2"),
        ("GET /?version=22 HTTP/1.1", "rest"),
        ("GET /?xversion=2 HTTP/1.1", "rest"),
    ] {
        let response = client::once(proxy.address(), format!("{request}\r\nHost: a.example\r\n\r\n"));
        assert_eq!(response.text(), route, "{request}");
    }
}

#[test]
fn a_split_keeps_its_shares() {
    let (stable, canary) = (origin::echo(), origin::echo());
    let mut config = Config::to(stable.address()).and_cluster(Cluster::new("canary", &[canary.address()]));
    config.routes = vec![Route::prefix("split", "/").split(&[("u", 90), ("canary", 10)])];
    let proxy = Proxy::start(config);
    let mut client = proxy.connect();
    for _ in 0..2_000 {
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        assert_eq!(client.response("GET").status, 200);
    }
    let share = canary.requests().len();
    // 200 wanted; four standard deviations (13.4 each) either way.
    assert!((146..=254).contains(&share), "{share} of 2000");
}

#[test]
fn a_split_by_hash_is_stable() {
    let (one, two) = (origin::echo(), origin::echo());
    let mut config = Config::to(one.address()).and_cluster(Cluster::new("v", &[two.address()]));
    config.routes = vec![
        Route::prefix("split", "/")
            .split(&[("u", 50), ("v", 50)])
            .having(|route| route.hash_field = Some("x-user".to_owned())),
    ];
    let proxy = Proxy::start(config);
    let mut sides = std::collections::BTreeSet::new();
    for user in 0..40 {
        let before = one.requests().len();
        for _ in 0..3 {
            let request =
                format!("GET / HTTP/1.1\r\nHost: a.example\r\nX-User: {user}\r\nConnection: close\r\n\r\n");
            assert_eq!(client::once(proxy.address(), request).status, 200);
        }
        let gained = one.requests().len() - before;
        assert!(gained == 0 || gained == 3, "user {user} was torn: {gained} of 3");
        sides.insert(gained);
    }
    assert_eq!(sides.len(), 2, "both sides are used");
}

#[test]
fn endpoints_share_the_load() {
    let origins: Vec<_> = (0..3).map(|_| origin::echo()).collect();
    let addresses: Vec<_> = origins.iter().map(tests::Origin::address).collect();
    let proxy = Proxy::start(Config::with(Cluster::new("u", &addresses)));
    for _ in 0..300 {
        assert_eq!(proxy.get("/").status, 200);
    }
    for origin in &origins {
        let share = origin.requests().len();
        assert!((40..=180).contains(&share), "{share} of 300 over three endpoints");
    }
}

#[test]
fn redirects() {
    let redirect = |status, host: Option<&str>, path: Option<&str>, https| Action::Redirect {
        status,
        host: host.map(str::to_owned),
        path: path.map(str::to_owned),
        https,
    };
    let proxy = having(vec![
        Route::prefix("https", "/").having(|route| route.action = redirect(301, None, None, true)),
        Route::prefix("host", "/h")
            .having(|route| route.action = redirect(308, Some("b.example"), None, false)),
        Route::prefix("path", "/p").having(|route| route.action = redirect(302, None, Some("/new"), false)),
    ]);
    for (path, status, location) in [
        ("/x?y=z", 301, "https://a.example/x?y=z"),
        ("/h/1?q", 308, "http://b.example/h/1?q"),
        ("/p/1?q", 302, "/new?q"),
    ] {
        let response = client::get(proxy.address(), "a.example", path);
        assert_eq!(response.status, status, "{path}");
        let seen = response.field("location").unwrap_or_default();
        assert!(seen == location || seen.ends_with(&format!("a.example{location}")), "{path}: {seen}");
    }
    let response = client::get(proxy.address(), "a.example", "/%0d%0aSet-Cookie:x");
    assert!(response.field("set-cookie").is_none(), "{response:?}");
}

#[test]
fn field_operations_on_both_ways() {
    let origin = origin::echo();
    let proxy = Proxy::start(Config::to(origin.address()).route(|route| {
        route.request_set = vec![("x-tenant".to_owned(), "blue".to_owned())];
        route.response_set = vec![("x-served-by".to_owned(), "shard".to_owned())];
        route.deprecation = Some("2026-01-31".to_owned());
        route.sunset = Some("2027-01-31".to_owned());
    }));
    let response = client::once(
        proxy.address(),
        "GET / HTTP/1.1\r\nHost: a.example\r\nX-Tenant: red\r\nx-tenant: green\r\n\r\n",
    );
    let seen = origin.requests().pop().expect("a request");
    assert_eq!(tests::message::all(&seen.fields, "x-tenant"), ["blue"]);
    assert_eq!(response.field("x-served-by"), Some("shard"));
    assert_eq!(response.field("sunset"), Some("Sun, 31 Jan 2027 00:00:00 GMT"));
    assert_eq!(response.field("deprecation"), Some("@1769817600"));
}

#[test]
fn the_remaining_time_is_told_to_the_backend() {
    let origin = origin::echo();
    let proxy = Proxy::start(
        Config::to(origin.address()).route(|route| route.timeout = Some(std::time::Duration::from_secs(7))),
    );
    assert_eq!(proxy.get("/").status, 200);
    let seen = origin.requests().pop().expect("a request");
    let rest: u64 = seen.field("x-deadline-ms").and_then(|value| value.parse().ok()).expect("x-deadline-ms");
    assert!((5_000..=7_000).contains(&rest), "{rest}");
}

#[test]
fn a_trace_is_continued_or_begun() {
    let (origin, proxy) = crate::echo_behind_proxy();
    let id = "4bf92f3577b34da6a3ce929d0e0e4736";
    let request =
        format!("GET / HTTP/1.1\r\nHost: a.example\r\ntraceparent: 00-{id}-00f067aa0ba902b7-01\r\n\r\n");
    assert_eq!(client::once(proxy.address(), request).status, 200);
    let seen = origin.requests().pop().expect("a request");
    assert!(
        seen.field("traceparent").is_some_and(|value| value.contains(id)),
        "{:?}",
        seen.field("traceparent")
    );
    for bad in [
        "",
        "traceparent: nonsense\r\n",
        "traceparent: 00-00000000000000000000000000000000-0000000000000000-00\r\n",
    ] {
        assert_eq!(
            client::once(proxy.address(), format!("GET / HTTP/1.1\r\nHost: a.example\r\n{bad}\r\n")).status,
            200
        );
        let seen = origin.requests().pop().expect("a request");
        let parts: Vec<usize> =
            seen.field("traceparent").unwrap_or_default().split('-').map(str::len).collect();
        assert_eq!(parts, [2, 32, 16, 2], "{bad:?}: a new trace begins: {:?}", seen.field("traceparent"));
    }
}
