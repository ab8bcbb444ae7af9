//! Errors that the proxy makes itself: problem documents (RFC 9457) for everybody, pages of the config where there
//! are some, and the upstream's own errors untouched.

use std::time::Duration;

use tests::config::ErrorPage;
use tests::h2peer::{H2Client, block_on, request};
use tests::{Config, Origin, Proxy, Response, Route, client, origin};

/// Routes that fail, each in a way of its own: path, status, reason code.
const FAILURES: [(&str, u16, &str); 5] = [
    ("/refused", 503, "upstream_connect_refused"),
    ("/late", 504, "upstream_timeout_first_byte"),
    ("/nonsense", 502, "upstream_bad_status_line"),
    ("/denied", 403, "address_denied"),
    ("/none", 404, "no_route"),
];

fn failing(change: impl FnOnce(&mut Config)) -> (Vec<Origin>, Proxy) {
    let refused = origin::echo().address();
    let late = Origin::scripted(tests::OriginConn::wait_close);
    let nonsense = Origin::replying("NONSENSE\r\n\r\n");
    let own = Origin::replying(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/x-own\r\nContent-Length: 3\r\n\r\nown",
    );
    let mut config = Config::to(refused)
        .and_cluster(tests::Cluster::new("late", &[late.address()]))
        .and_cluster(tests::Cluster::new("nonsense", &[nonsense.address()]))
        .and_cluster(tests::Cluster::new("own", &[own.address()]));
    config.routes = vec![
        Route::prefix("refused", "/refused").to("u"),
        Route::prefix("late", "/late")
            .to("late")
            .having(|route| route.timeout = Some(Duration::from_millis(200))),
        Route::prefix("nonsense", "/nonsense").to("nonsense"),
        Route::prefix("denied", "/denied")
            .to("u")
            .having(|route| route.deny = vec!["127.0.0.0/8".to_owned()]),
        Route::prefix("own", "/own").to("own"),
    ];
    change(&mut config);
    (vec![late, nonsense, own], Proxy::start(config))
}

#[track_caller]
fn is_problem(response: &Response, status: u16, code: &str) {
    assert_eq!(response.status, status, "{code}: {response:?}");
    assert_eq!(response.field("content-type"), Some("application/problem+json"), "{code}");
    let problem = response.json();
    assert_eq!(problem["status"].as_u64(), Some(u64::from(status)), "{code}: {problem}");
    assert_eq!(problem["code"].as_str(), Some(code), "{problem}");
    for key in ["type", "title", "detail"] {
        assert!(problem[key].as_str().is_some_and(|text| !text.is_empty()), "{code}: {key} in {problem}");
    }
    let id = problem["request_id"].as_str();
    assert!(
        id.is_some_and(|id| !id.is_empty()) && id == response.field("x-request-id"),
        "{code}: {response:?}"
    );
}

#[test]
fn errors_are_problem_documents_in_every_version() {
    let (_origins, proxy) = failing(|_| {});
    for (path, status, code) in FAILURES {
        is_problem(&proxy.get(path), status, code);
    }
    block_on(async {
        let mut client = H2Client::connect(proxy.address()).await;
        for (path, status, code) in FAILURES {
            is_problem(&client.get("a.example", path).await.expect("an answer"), status, code);
        }
    });
    // Bytes that are no request at all get one, too.
    let response =
        client::once_h1(proxy.address(), "GET / HTTP/1.1\r\nHost: a.example\r\nBad Name: 1\r\n\r\n");
    is_problem(&response, 400, "bad_field_name");
}

#[test]
fn a_head_request_gets_the_head_of_the_error_only() {
    let (_origins, proxy) = failing(|_| {});
    let mut client = proxy.connect();
    for _ in 0..2 {
        client.send("HEAD /none HTTP/1.1\r\nHost: a.example\r\n\r\n");
        let response = client.response("HEAD");
        assert_eq!((response.status, response.body.len()), (404, 0), "{response:?}");
        assert_eq!(response.field("content-type"), Some("application/problem+json"));
    }
    client.send("GET /own HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(client.response("GET").text(), "own", "the connection is in step");
}

#[test]
fn pages_of_the_config_take_the_place_of_problem_documents() {
    let page = |status: u16, body: &str| ErrorPage::new(status, body);
    let (_origins, proxy) = failing(|config| {
        config.listeners[0].error_pages = vec![
            page(503, "<p>listener</p>"),
            ErrorPage { content_type: Some("text/plain".to_owned()), ..page(404, "lost") },
        ];
        config.routes[0].error_pages = vec![page(503, "<p>route</p>")];
        config.routes[4].error_pages = vec![page(503, "<p>never</p>")];
    });
    for (path, status, kind, body) in [
        ("/refused", 503, "text/html; charset=utf-8", "<p>route</p>"),
        ("/none", 404, "text/plain", "lost"),
        ("/own", 503, "text/x-own", "own"),
    ] {
        let response = proxy.get(path);
        assert_eq!((response.status, response.text().as_str()), (status, body), "{path}");
        assert_eq!(response.field("content-type"), Some(kind), "{path}");
        assert!(response.field("x-request-id").is_some(), "{path}");
    }
    is_problem(&proxy.get("/denied"), 403, "address_denied");
    // gRPC callers get a status, never a page.
    block_on(async {
        let mut client = H2Client::connect(proxy.address()).await;
        let mut head = request("POST", "a.example", "/refused");
        head.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
        let response = client.exchange(head, b"\0\0\0\0\0", None).await.expect("an answer");
        assert_eq!((response.status, response.field("grpc-status")), (200, Some("14")));
        assert!(response.body.is_empty(), "{response:?}");
    });
}
