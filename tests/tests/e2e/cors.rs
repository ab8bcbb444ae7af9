//! Cross-origin rules of a route, as a browser would ask (Fetch standard §3.2).

use std::time::Duration;

use tests::config::Cors;
use tests::{Config, Origin, Proxy, Response, client};

fn rules() -> Cors {
    let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Cors {
        origins: list(&["https://app.example", "https://*.partner.example"]),
        methods: list(&["GET", "PUT"]),
        headers: list(&["x-tenant", "content-type"]),
        expose: list(&["x-total"]),
        max_age: Some(Duration::from_secs(600)),
        credentials: true,
    }
}

/// An origin whose own answers allow everybody, which is not its to say.
fn behind(cors: Cors) -> (Origin, Proxy) {
    let origin = Origin::replying(
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nAccess-Control-Allow-Origin: *\r\nVary: Accept\r\n\r\nok",
    );
    let proxy = Proxy::start(Config::to(origin.address()).route(|route| route.cors = Some(cors)));
    (origin, proxy)
}

fn ask(proxy: &Proxy, method: &str, lines: &str) -> Response {
    client::once(
        proxy.address(),
        format!("{method} /x HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n{lines}\r\n"),
    )
}

const PREFLIGHT: &str = "Access-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: x-tenant\r\n";

#[track_caller]
fn has(response: &Response, fields: &[(&str, Option<&str>)]) {
    for (name, value) in fields {
        assert_eq!(response.field(name), *value, "{name} of {response:?}");
    }
}

/// Whether caches are told that the answer depends on who asked.
fn varies(response: &Response) -> bool {
    tests::message::all(&response.fields, "vary")
        .iter()
        .any(|value| value.split(',').any(|name| name.trim().eq_ignore_ascii_case("origin")))
}

#[test]
fn a_preflight_is_answered_and_the_backend_not_asked() {
    let (origin, proxy) = behind(rules());
    for from in ["https://app.example", "https://eu.partner.example"] {
        let response = ask(&proxy, "OPTIONS", &format!("Origin: {from}\r\n{PREFLIGHT}"));
        assert_eq!((response.status, response.body.len()), (204, 0), "{from}");
        has(
            &response,
            &[
                ("access-control-allow-origin", Some(from)),
                ("access-control-allow-credentials", Some("true")),
                ("access-control-allow-methods", Some("GET, PUT")),
                ("access-control-allow-headers", Some("x-tenant, content-type")),
                ("access-control-max-age", Some("600")),
            ],
        );
        assert!(varies(&response), "{response:?}");
    }
    let denied = ask(&proxy, "OPTIONS", &format!("Origin: https://evil.example\r\n{PREFLIGHT}"));
    has(&denied, &[("access-control-allow-origin", None), ("access-control-allow-methods", None)]);
    crate::untouched(&origin, "preflights");
}

#[test]
fn an_actual_request_is_marked_for_its_origin_only() {
    let (origin, proxy) = behind(rules());
    let response = ask(&proxy, "GET", "Origin: https://app.example\r\n");
    assert_eq!((response.status, response.text().as_str()), (200, "ok"));
    has(
        &response,
        &[
            ("access-control-allow-origin", Some("https://app.example")),
            ("access-control-allow-credentials", Some("true")),
            ("access-control-expose-headers", Some("x-total")),
        ],
    );
    assert_eq!(tests::message::all(&response.fields, "access-control-allow-origin").len(), 1);
    assert!(varies(&response), "{response:?}");
    for lines in
        ["", "Origin: https://evil.example\r\n", "Origin: null\r\n", "Origin: https://app.example.evil\r\n"]
    {
        let response = ask(&proxy, "GET", lines);
        assert_eq!(response.status, 200, "{lines:?}: the browser decides, not the proxy");
        has(&response, &[("access-control-allow-origin", None), ("access-control-allow-credentials", None)]);
        assert!(varies(&response), "{lines:?}: a cache must not mix them up");
    }
    // OPTIONS without the question of a preflight is a request like any other.
    assert_eq!(ask(&proxy, "OPTIONS", "Origin: https://app.example\r\n").text(), "ok");
    assert_eq!(origin.requests().len(), 6);
}

#[test]
fn an_open_policy_allows_everybody_and_no_credentials() {
    let open = Cors { origins: vec!["*".to_owned()], methods: vec!["GET".to_owned()], ..Cors::default() };
    let (_origin, proxy) = behind(open);
    let response = ask(&proxy, "GET", "Origin: https://any.example\r\n");
    has(&response, &[("access-control-allow-origin", Some("*")), ("access-control-allow-credentials", None)]);
    let response = ask(&proxy, "OPTIONS", &format!("Origin: https://any.example\r\n{PREFLIGHT}"));
    assert_eq!(response.status, 204);
    has(&response, &[("access-control-allow-origin", Some("*")), ("access-control-allow-credentials", None)]);
}

#[test]
fn an_error_of_the_proxy_can_be_read_by_the_page_too() {
    let proxy =
        Proxy::start(Config::to(tests::origin::echo().address()).route(|route| route.cors = Some(rules())));
    let response = ask(&proxy, "GET", "Origin: https://app.example\r\n");
    assert_eq!(response.status, 503, "the endpoint is gone: {response:?}");
    has(&response, &[("access-control-allow-origin", Some("https://app.example"))]);
}
