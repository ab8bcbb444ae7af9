//! C46: who the client is, from the peer and what trusted proxies in front say.

use tests::{Config, Origin, Proxy, client, origin};

fn trusting(cidrs: &[&str]) -> (Origin, Proxy) {
    let origin = origin::echo();
    let cidrs = cidrs.iter().map(|cidr| (*cidr).to_owned()).collect();
    let proxy =
        Proxy::start(Config::to(origin.address()).listener(|listener| listener.trusted_proxies = cidrs));
    (origin, proxy)
}

#[track_caller]
fn seen_with(origin: &Origin, proxy: &Proxy, lines: &str) -> tests::Request {
    let request = format!("GET / HTTP/1.1\r\nHost: a.example\r\n{lines}Connection: close\r\n\r\n");
    assert_eq!(client::once(proxy.address(), request).status, 200, "{lines:?}");
    origin.requests().pop().expect("a request")
}

/// The last address of what the upstream is told: the client as the proxy sees it comes first when nothing before it
/// is trusted.
fn hops(request: &tests::Request) -> Vec<String> {
    let lines = tests::message::all(&request.fields, "x-forwarded-for");
    lines.join(",").split(',').map(|hop| hop.trim().to_owned()).collect()
}

#[test]
fn c46_an_untrusted_peer_is_the_client_whatever_it_says() {
    let (origin, proxy) = trusting(&["10.0.0.0/8"]);
    for lines in [
        "",
        "X-Forwarded-For: 6.6.6.6\r\n",
        "X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: 7.7.7.7, 127.0.0.9\r\n",
        "X-Forwarded-For: unknown\r\nForwarded: for=6.6.6.6\r\n",
        "x-forwarded-for: 10.0.0.1\r\n",
    ] {
        let seen = seen_with(&origin, &proxy, lines);
        assert_eq!(hops(&seen), ["127.0.0.1"], "{lines:?}");
        assert!(seen.field("forwarded").is_none_or(|value| !value.contains("6.6.6.6")), "{lines:?}");
    }
    let seen = seen_with(
        &origin,
        &proxy,
        "X-Forwarded-Proto: https\r\nX-Forwarded-Host: evil\r\nX-Forwarded-Port: 1\r\nX-Forwarded-Prefix: /e\r\nX-Real-IP: 6.6.6.6\r\n",
    );
    assert_eq!(
        (seen.field("x-forwarded-proto"), seen.field("x-forwarded-host")),
        (Some("http"), Some("a.example"))
    );
    assert!(
        seen.fields.iter().all(|(_, value)| !value.contains("6.6.6.6") && value != "/e"),
        "{:?}",
        seen.fields
    );
}

#[test]
fn c46_a_trusted_peer_is_believed_from_the_right() {
    let (origin, proxy) = trusting(&["127.0.0.0/8"]);
    // The address rule is what shows which one was taken: only 7.7.7.7 is denied on this route.
    for (lines, client) in [
        ("X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: 7.7.7.7, 127.0.0.9\r\n", "7.7.7.7"),
        ("X-Forwarded-For: 7.7.7.7\r\n", "7.7.7.7"),
        ("X-Forwarded-For: 6.6.6.6, 7.7.7.7\r\n", "7.7.7.7"),
        ("X-Forwarded-For: 7.7.7.7:1234\r\n", "7.7.7.7"),
        ("X-Forwarded-For:  7.7.7.7 ,\t127.0.0.2\r\n", "7.7.7.7"),
        ("X-Forwarded-For: [2001:db8::1]:80, 127.0.0.2\r\n", "2001:db8::1"),
        ("X-Forwarded-For: 2001:DB8::1\r\n", "2001:db8::1"),
    ] {
        let seen = seen_with(&origin, &proxy, lines);
        let hops = hops(&seen);
        assert_eq!(hops.last().map(String::as_str), Some("127.0.0.1"), "{lines:?}: the peer is appended");
        assert!(hops.iter().any(|hop| hop.contains(client)), "{lines:?}: {hops:?}");
    }
}

#[test]
fn c46_the_client_found_is_the_one_of_the_rules() {
    let origin = origin::echo();
    let proxy = Proxy::start(
        Config::to(origin.address())
            .listener(|listener| listener.trusted_proxies = vec!["127.0.0.0/8".to_owned()])
            .route(|route| route.deny = vec!["7.7.7.7/32".to_owned(), "2001:db8::/32".to_owned()]),
    );
    for (lines, status) in [
        ("X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: 7.7.7.7, 127.0.0.9\r\n", 403),
        ("X-Forwarded-For: 7.7.7.7, 8.8.8.8\r\n", 200),
        ("X-Forwarded-For: 7.7.7.7:55\r\n", 403),
        ("X-Forwarded-For: [2001:db8::1]:80\r\n", 403),
        ("X-Forwarded-For: ::ffff:7.7.7.7\r\n", 403),
        ("", 200),
        // A token that is no address stops the walk: what stands left of it is hearsay.
        ("X-Forwarded-For: 7.7.7.7, unknown\r\n", 200),
        ("X-Forwarded-For: 7.7.7.7, , 127.0.0.9\r\n", 200),
        ("X-Forwarded-For: 7.7.7.7, 127.0.0.1:99999\r\n", 200),
    ] {
        let request = format!("GET / HTTP/1.1\r\nHost: a.example\r\n{lines}\r\n");
        assert_eq!(client::once(proxy.address(), request).status, status, "{lines:?}");
    }
}

#[test]
fn c46_two_hundred_hops_are_bounded() {
    let (origin, proxy) = trusting(&["127.0.0.0/8"]);
    let long = format!("X-Forwarded-For: 6.6.6.6{}\r\n", ", 127.0.0.1".repeat(200));
    let seen = seen_with(&origin, &proxy, &long);
    assert!(!hops(&seen).is_empty());
    assert_eq!(origin.faults(), Vec::<String>::new());
}

#[test]
fn c46_protocol_from_a_trusted_peer_is_one_of_two_words() {
    let (origin, proxy) = trusting(&["127.0.0.0/8"]);
    for (value, passed) in [
        ("https", "https"),
        ("http", "http"),
        ("HTTPS", "https"),
        ("javascript", "http"),
        ("https\t", "https"),
        ("https,http", "http"),
        ("", "http"),
    ] {
        let seen = seen_with(&origin, &proxy, &format!("X-Forwarded-Proto: {value}\r\n"));
        let proto = tests::message::all(&seen.fields, "x-forwarded-proto");
        assert_eq!(proto.len(), 1, "{value:?}");
        assert!(proto[0] == passed || proto[0] == "http", "{value:?} passed as {proto:?}");
    }
}
