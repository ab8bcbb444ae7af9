//! Bearer tokens: who is let in, what the others are told, what backends learn, and keys that change under traffic.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use serde_json::{Value, json};
use tests::config::Cors;
use tests::h2peer::{H2Client, block_on, request};
use tests::token::{AUDIENCE, ISSUER, Issuer, unix_s};
use tests::{Cluster, Config, PATIENCE, Proxy, Response, Route, client, origin, wait_until};

const KEYS: &str = "keys/main.jwks.json";

/// The platform's provider by its usual rules and others.
fn with_provider(config: Config, key_set: &str, more: Value) -> Config {
    let mut provider = json!({ "issuer": ISSUER, "audiences": [AUDIENCE], "keys": KEYS });
    for (key, value) in more.as_object().into_iter().flatten() {
        provider[key.as_str()] = value.clone();
    }
    let platform = json!({ "token_providers": { "main": provider } });
    config.and_file("platform/tokens.yaml", &platform.to_string()).and_file(KEYS, key_set)
}

/// `/` needs a token, `/write` also a scope, `/open` none.
fn guarded(address: SocketAddr, key_set: &str) -> Config {
    let config = Config::to(address).route(|route| {
        *route = Route::prefix("all", "/").to("u").rule("token", json!({ "provider": "main" }));
    });
    let write = Route::prefix("write", "/write")
        .to("u")
        .rule("token", json!({ "scopes": ["orders.write", "orders.read"] }));
    let open = Route::prefix("open", "/open").to("u").rule("token", json!(false));
    with_provider(config.and_route(write).and_route(open), key_set, json!({}))
}

fn ask(proxy: &Proxy, target: &str, lines: &str) -> Response {
    client::once(
        proxy.address(),
        format!("GET {target} HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n{lines}\r\n"),
    )
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

#[track_caller]
fn refused(response: &Response, status: u16, code: &str, error: Option<&str>) {
    assert_eq!((response.status, response.code().as_deref()), (status, Some(code)), "{response:?}");
    let challenge = response.field("www-authenticate").unwrap_or_default();
    assert!(challenge.starts_with("Bearer realm=\"main\""), "{challenge}");
    match error {
        None => assert!(!challenge.contains("error"), "{challenge}"),
        Some(error) => assert!(challenge.contains(&format!("error=\"{error}\"")), "{challenge}"),
    }
}

#[test]
fn only_valid_tokens_pass_and_the_others_are_told_why() {
    let (origin, issuer, stranger) = (origin::echo(), Issuer::new("a"), Issuer::new("a"));
    let proxy = Proxy::start(guarded(origin.address(), &issuer.key_set(&[])));
    let invalid = Some("invalid_token");
    refused(&ask(&proxy, "/", ""), 401, "token_missing", None);
    refused(&ask(&proxy, "/", "Authorization: Basic dTpw\r\n"), 401, "token_missing", None);
    let good = issuer.token(json!({}));
    refused(&ask(&proxy, &format!("/?access_token={good}"), ""), 401, "token_missing", None);
    for (token, code) in [
        ("abc".to_owned(), "token_malformed"),
        (format!("{good}="), "token_malformed"),
        (format!("{good}, Basic dTpw"), "token_malformed"),
        (issuer.token(json!({ "exp": null })), "token_malformed"),
        (issuer.token(json!({ "sub": "a\r\nx-auth-scope: all" })), "token_malformed"),
        (Issuer::new("b").token(json!({})), "token_key_unknown"),
        (issuer.signed(&json!({ "alg": "none" }), &json!({ "exp": unix_s() + 60 })), "token_key_unknown"),
        (stranger.token(json!({})), "token_signature_bad"),
        (issuer.token(json!({ "exp": unix_s() - 61 })), "token_expired"),
        (issuer.token(json!({ "nbf": unix_s() + 120 })), "token_not_yet_valid"),
        (issuer.token(json!({ "iss": "https://evil.example" })), "token_issuer_wrong"),
        (issuer.token(json!({ "aud": "payments" })), "token_audience_wrong"),
    ] {
        refused(&ask(&proxy, "/", &bearer(&token)), 401, code, invalid);
    }
    let twice = format!("{}{}", bearer(&good), bearer(&good));
    refused(&ask(&proxy, "/", &twice), 401, "token_malformed", invalid);
    crate::untouched(&origin, "every refused token");
    assert_eq!(ask(&proxy, "/", &bearer(&good)).status, 200);
    let late = issuer.token(json!({ "exp": unix_s() - 10 }));
    assert_eq!(ask(&proxy, "/", &bearer(&late)).status, 200, "within the clock skew");
    assert_eq!(ask(&proxy, "/open", "").status, 200, "a route that lifts it");
}

#[test]
fn a_scope_is_asked_for_by_route() {
    let (origin, issuer) = (origin::echo(), Issuer::new("a"));
    let proxy = Proxy::start(guarded(origin.address(), &issuer.key_set(&[])));
    let few = issuer.token(json!({}));
    for _ in 0..2 {
        let response = ask(&proxy, "/write", &bearer(&few));
        refused(&response, 403, "scope_missing", Some("insufficient_scope"));
        let challenge = response.field("www-authenticate").unwrap_or_default();
        assert!(challenge.ends_with("scope=\"orders.write orders.read\""), "{challenge}");
    }
    assert_eq!(ask(&proxy, "/", &bearer(&few)).status, 200, "the same token is good elsewhere");
    for claims in [
        json!({ "scope": "orders.read orders.write" }),
        json!({ "scope": null, "scp": ["orders.write", "orders.read"] }),
    ] {
        assert_eq!(ask(&proxy, "/write", &bearer(&issuer.token(claims))).status, 200);
    }
}

#[test]
fn backends_learn_who_it_is_and_never_the_token() {
    let (origin, issuer) = (origin::echo(), Issuer::new("a"));
    let proxy = Proxy::start(guarded(origin.address(), &issuer.key_set(&[])));
    let token = issuer.token(json!({}));
    let forged = "X-Auth-Subject: root\r\nx-auth-scope: all\r\nX-Auth-Role: admin\r\n";
    // Twice: verified, and seen before.
    for number in 1..=2 {
        assert_eq!(ask(&proxy, "/", &format!("{forged}{}", bearer(&token))).status, 200);
        let seen = origin.wait_request(number);
        assert_eq!(seen.field("authorization"), None);
        let of = |name: &str| tests::message::all(&seen.fields, name);
        assert_eq!(of("x-auth-subject"), ["user-1"]);
        assert_eq!(of("x-auth-issuer"), [ISSUER]);
        assert_eq!(of("x-auth-scope"), ["orders.read"]);
        assert!(of("x-auth-role").is_empty());
        assert!(!format!("{seen:?}").contains(&token), "nowhere");
    }
    // Without a subject and scope nobody is named, and least of all by the client.
    let nobody = issuer.token(json!({ "sub": null, "scope": null }));
    assert_eq!(ask(&proxy, "/", &format!("{forged}{}", bearer(&nobody))).status, 200);
    let seen = origin.wait_request(3);
    assert_eq!((seen.field("x-auth-subject"), seen.field("x-auth-scope")), (None, None));
    // A route without tokens passes on what is not its own, and still no identity that nobody verified.
    assert_eq!(ask(&proxy, "/open", &format!("{forged}{}", bearer(&token))).status, 200);
    let seen = origin.wait_request(4);
    assert!(seen.field("authorization").is_some() && seen.field("x-auth-subject").is_none());
}

#[test]
fn a_provider_may_pass_the_token_on_and_ask_for_a_type() {
    let (origin, issuer) = (origin::echo(), Issuer::new("a"));
    let config = Config::to(origin.address()).route(|route| {
        *route = Route::prefix("all", "/").to("u").rule("token", json!(true));
    });
    let more = json!({ "forward": true, "type": "at+jwt", "clock_skew": "1s", "cache_max": 1 });
    let proxy = Proxy::start(with_provider(config, &issuer.key_set(&[]), more));
    refused(
        &ask(&proxy, "/", &bearer(&issuer.token(json!({})))),
        401,
        "token_malformed",
        Some("invalid_token"),
    );
    let header = json!({ "alg": "ES256", "typ": "at+jwt", "kid": "a" });
    let claims =
        |sub: u32, exp| json!({ "iss": ISSUER, "aud": AUDIENCE, "sub": sub.to_string(), "exp": exp });
    for number in 0..3 {
        let token = issuer.signed(&header, &claims(number % 2, unix_s() + 60));
        assert_eq!(ask(&proxy, "/", &bearer(&token)).status, 200);
        let seen = origin.requests().pop().expect("a request");
        assert_eq!(seen.field("authorization"), Some(format!("Bearer {token}").as_str()));
    }
    let late = issuer.signed(&header, &claims(1, unix_s() - 10));
    refused(&ask(&proxy, "/", &bearer(&late)), 401, "token_expired", Some("invalid_token"));
    proxy.wait_metrics("one token is remembered", |metrics| metrics.sum("shard_core_tokens", &[]) == 1.0);
}

#[test]
fn a_token_is_verified_once() {
    let (origin, issuer) = (origin::echo(), Issuer::new("a"));
    let proxy = Proxy::start(guarded(origin.address(), &issuer.key_set(&[])));
    let lines = bearer(&issuer.token(json!({})));
    let mut client = proxy.connect();
    for _ in 0..20 {
        client.send(format!("GET / HTTP/1.1\r\nHost: a.example\r\n{lines}\r\n"));
        assert_eq!(client.response("GET").status, 200);
    }
    proxy.wait_metrics("a verification and nineteen look-ups", |metrics| {
        metrics.sum("shard_tokens_from_cache_total", &[]) == 19.0
    });
    assert_eq!(proxy.metrics().sum("shard_tokens_verified_total", &[]), 1.0);
    assert_eq!(proxy.metrics().sum("shard_core_tokens", &[]), 1.0);
}

#[test]
fn a_preflight_needs_no_token_and_a_plain_options_does() {
    let (origin, issuer) = (origin::echo(), Issuer::new("a"));
    let cors =
        Cors { origins: vec!["https://app.example".into()], methods: vec!["PUT".into()], ..Cors::default() };
    let config = guarded(origin.address(), &issuer.key_set(&[])).route(|route| route.cors = Some(cors));
    let proxy = Proxy::start(config);
    let options = |lines: &str| {
        let head = "OPTIONS / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n";
        client::once(proxy.address(), format!("{head}{lines}\r\n"))
    };
    let preflight = "Origin: https://app.example\r\nAccess-Control-Request-Method: PUT\r\n";
    assert_eq!(options(preflight).status, 204);
    let actual = ask(&proxy, "/", "Origin: https://app.example\r\n");
    refused(&actual, 401, "token_missing", None);
    assert_eq!(
        actual.field("access-control-allow-origin"),
        Some("https://app.example"),
        "the page may read it"
    );
    refused(&options(""), 401, "token_missing", None);
    crate::untouched(&origin, "OPTIONS");
}

/// Adds a field.
fn set(request: &mut http::Request<()>, name: &'static str, value: &str) {
    request.headers_mut().append(name, value.parse().expect("a field value"));
}

#[test]
fn grpc_callers_get_a_status() {
    let (origin, issuer) = (origin::echo(), Issuer::new("a"));
    let proxy = Proxy::start(guarded(origin.address(), &issuer.key_set(&[])));
    let few = issuer.token(json!({}));
    for (path, token, status) in
        [("/s/M", None, "16"), ("/s/M", Some("abc"), "16"), ("/write/M", Some(&*few), "7")]
    {
        let response = block_on(async {
            let mut client = H2Client::connect(proxy.address()).await;
            let mut request = request("POST", "a.example", path);
            set(&mut request, "content-type", "application/grpc");
            if let Some(token) = token {
                set(&mut request, "authorization", &format!("Bearer {token}"));
            }
            client.exchange(request, b"", None).await
        });
        let response = response.expect("an answer");
        assert_eq!(response.status, 200);
        assert_eq!(response.field("grpc-status"), Some(status), "{path} {token:?}");
    }
    crate::untouched(&origin, "gRPC without a token");
}

#[test]
fn h2_requests_show_tokens_too() {
    let (origin, issuer) = (origin::echo(), Issuer::new("a"));
    let proxy = Proxy::start(guarded(origin.address(), &issuer.key_set(&[])));
    let good = format!("Bearer {}", issuer.token(json!({})));
    let good = good.as_str();
    let cases: [(&[&str], u16); 3] = [(&[], 401), (&[good], 200), (&[good, good], 401)];
    for (lines, status) in cases {
        let found = block_on(async {
            let mut client = H2Client::connect(proxy.address()).await;
            let mut request = request("GET", "a.example", "/");
            lines.iter().for_each(|line| set(&mut request, "authorization", line));
            client.exchange(request, b"", None).await
        });
        assert_eq!(found.expect("an answer").status, status, "{} fields", lines.len());
    }
    let seen = origin.wait_request(1);
    assert_eq!((seen.field("authorization"), seen.field("x-auth-subject")), (None, Some("user-1")));
}

#[test]
fn copies_and_second_attempts_carry_no_token() {
    let (issuer, mirror) = (Issuer::new("a"), origin::echo());
    let (refusing, origin) = (
        tests::Origin::replying(
            "HTTP/1.1 503 No\r\nx-shard-not-processed: true\r\nContent-Length: 0\r\n\r\n",
        ),
        origin::echo(),
    );
    let config = Config::with(Cluster::new("u", &[refusing.address(), origin.address()]))
        .and_cluster(Cluster::new("m", &[mirror.address()]))
        .route(|route| {
            *route = Route::prefix("all", "/")
                .to("u")
                .rule("token", json!({ "provider": "main" }))
                .rule("mirror", json!({ "cluster": "m" }));
        });
    let proxy = Proxy::start(with_provider(config, &issuer.key_set(&[]), json!({})));
    let lines = bearer(&issuer.token(json!({})));
    for _ in 0..4 {
        ask(&proxy, "/", &lines);
    }
    let copy = mirror.wait_request(1);
    for name in ["authorization", "x-auth-subject", "x-auth-issuer", "x-auth-scope"] {
        assert_eq!(copy.field(name), None, "{name} of the copy");
    }
    let seen: Vec<_> = refusing.requests().into_iter().chain(origin.requests()).collect();
    assert!(seen.len() >= 4);
    for request in seen {
        assert_eq!(request.field("authorization"), None);
        assert_eq!(tests::message::all(&request.fields, "x-auth-subject"), ["user-1"]);
    }
}

#[test]
fn keys_rotate_under_traffic_without_a_dropped_request() {
    let (origin, old, new) = (origin::echo(), Issuer::new("2026-01"), Issuer::new("2026-02"));
    let config = |key_set: &str| guarded(origin.address(), key_set);
    let mut proxy = Proxy::start(config(&old.key_set(&[])));
    let (before, after) = (bearer(&old.token(json!({}))), bearer(&new.token(json!({}))));
    refused(&ask(&proxy, "/", &after), 401, "token_key_unknown", Some("invalid_token"));
    let (stop, address) = (AtomicBool::new(false), proxy.address());
    let head = |lines: &str| format!("GET / HTTP/1.1\r\nHost: a.example\r\n{lines}\r\n");
    let (overlap, requests) = std::thread::scope(|scope| {
        // One client with the old token until it is taken out of use; no answer but 200 before.
        let steady = scope.spawn(|| {
            let mut client = tests::RawClient::connect(address);
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                client.send(head(&before));
                assert_eq!(client.response("GET").status, 200, "request {count}");
                count += 1;
            }
            count
        });
        proxy.reload(config(&old.key_set(&[&new])));
        let overlap = ask(&proxy, "/", &after).status;
        wait_until("traffic goes on", PATIENCE, || origin.requests().len() > 50);
        stop.store(true, Ordering::Relaxed);
        (overlap, steady.join().expect("every answer was 200"))
    });
    assert_eq!((overlap, requests > 0), (200, true));
    proxy.reload(config(&new.key_set(&[])));
    // It was remembered, and is no more.
    refused(&ask(&proxy, "/", &before), 401, "token_key_unknown", Some("invalid_token"));
    assert_eq!(ask(&proxy, "/", &after).status, 200);
    proxy.wait_metrics("only the new key's token is remembered", |m| m.sum("shard_core_tokens", &[]) == 1.0);
}

#[test]
fn a_bad_key_set_changes_nothing_and_is_explained() {
    let (origin, issuer) = (origin::echo(), Issuer::new("a"));
    let good = guarded(origin.address(), &issuer.key_set(&[]));
    let mut proxy = Proxy::start(good);
    let lines = bearer(&issuer.token(json!({})));
    let mut private = issuer.jwk();
    private["d"] = json!("AAAA");
    for (key_set, told) in [
        (json!({ "keys": [private] }).to_string(), "a secret has been put into the config"),
        ("no json".to_owned(), "is no JSON"),
        // Only the arithmetic shows it.
        (
            issuer
                .key_set(&[])
                .replace("\"x\":", "\"y2\":")
                .replace("\"y\":", "\"x\":")
                .replace("\"y2\":", "\"y\":"),
            "numbers lie outside the group",
        ),
    ] {
        proxy.dir().write(&format!("config/{KEYS}"), &key_set);
        proxy.process().signal(Signal::HUP);
        wait_until("the refusal is in the log", PATIENCE, || proxy.log().contains(told));
        assert_eq!(ask(&proxy, "/", &lines).status, 200);
    }
}

#[test]
fn a_flood_of_bad_tokens_is_refused_and_not_remembered() {
    let (origin, issuer, stranger) = (origin::echo(), Issuer::new("a"), Issuer::new("a"));
    let proxy = Proxy::start(guarded(origin.address(), &issuer.key_set(&[])));
    let bad = format!("GET / HTTP/1.1\r\nHost: a.example\r\n{}\r\n", bearer(&stranger.token(json!({}))));
    let mut clients: Vec<_> = (0..64).map(|_| proxy.connect()).collect();
    for client in &mut clients {
        client.send(bad.repeat(4));
    }
    for client in &mut clients {
        for _ in 0..4 {
            assert_eq!(client.response("GET").code().as_deref(), Some("token_signature_bad"));
        }
    }
    let lines = bearer(&issuer.token(json!({})));
    assert_eq!(ask(&proxy, "/", &lines).status, 200);
    proxy.wait_metrics("each was looked at", |m| m.sum("shard_tokens_verified_total", &[]) == 257.0);
    assert_eq!(proxy.metrics().sum("shard_core_tokens", &[]), 1.0, "none of them is remembered");
}
