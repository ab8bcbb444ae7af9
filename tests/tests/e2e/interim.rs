//! C08: `Expect: 100-continue` and interim responses.

use std::time::{Duration, Instant};

use tests::{Config, Origin, Proxy};

/// "At once" for an interim response: far below the 200 ms of a delayed write, with room for a busy machine.
const AT_ONCE: Duration = Duration::from_millis(100);

/// An origin that sends 100 itself, reads the body, then answers with its length.
fn continuing() -> Origin {
    Origin::scripted(|connection| {
        while let Some(request) = connection.head() {
            let length: usize =
                request.field("content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
            if request.field("expect").is_some() && !connection.write("HTTP/1.1 100 Continue\r\n\r\n") {
                return;
            }
            let Some(body) = connection.take(length) else {
                return;
            };
            let text = body.len().to_string();
            if !connection.write(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len())) {
                return;
            }
        }
    })
}

#[test]
fn c08_the_body_flows_after_the_100() {
    let origin = continuing();
    let proxy = Proxy::start(Config::to(origin.address()));
    for expect in ["100-continue", "100-CONTINUE", "100-Continue"] {
        let mut client = proxy.connect();
        for _ in 0..2 {
            client.send(format!(
                "POST / HTTP/1.1\r\nHost: a.example\r\nExpect: {expect}\r\nContent-Length: 100000\r\n\r\n"
            ));
            let start = Instant::now();
            let interim = client.response_head().expect("an interim response");
            assert_eq!(interim.status, 100, "{expect}");
            assert!(start.elapsed() < AT_ONCE, "{expect}: the 100 took {:?}", start.elapsed());
            assert_eq!((interim.field("content-length"), interim.field("transfer-encoding")), (None, None));
            client.send(vec![b'x'; 100_000]);
            let response = client.response("POST");
            assert_eq!((response.status, response.text().as_str()), (200, "100000"), "{expect}");
        }
    }
}

#[test]
fn c08_a_body_that_does_not_wait_is_fine() {
    let origin = continuing();
    let proxy = Proxy::start(Config::to(origin.address()));
    let mut client = proxy.connect();
    client
        .send("POST / HTTP/1.1\r\nHost: a.example\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello");
    let response = client.response("POST");
    assert_eq!((response.status, response.text().as_str()), (200, "5"));
}

#[test]
fn c08_other_expectations_fail() {
    // RFC 9110 §10.1.1: an expectation that cannot be met may be answered with 417.
    let (origin, proxy) = crate::echo_behind_proxy();
    let request = "POST / HTTP/1.1\r\nHost: a.example\r\nExpect: miracles\r\nContent-Length: 0\r\n\r\n";
    let response = tests::client::once(proxy.address(), request);
    assert!(matches!(response.status, 200 | 417), "{response:?}");
    assert_eq!(origin.faults(), Vec::<String>::new());
}

#[test]
fn c08_a_1_0_client_gets_no_interim_response() {
    let origin = continuing();
    let proxy = Proxy::start(Config::to(origin.address()));
    let mut client = proxy.connect();
    client
        .send("POST / HTTP/1.0\r\nHost: a.example\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello");
    let response = client.response("POST");
    assert_eq!((response.status, response.interim.len(), response.text().as_str()), (200, 0, "5"));
}

#[test]
fn c08_interim_responses_pass_in_order_without_framing_fields() {
    let origin = Origin::scripted(|connection| {
        while connection.request().is_some() {
            let alive = connection.write("HTTP/1.1 102 Processing\r\n\r\n")
                && connection.write(
                    "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\nContent-Length: 42\r\n\r\n",
                )
                && connection.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            if !alive {
                return;
            }
        }
    });
    let proxy = Proxy::start(Config::to(origin.address()));
    let mut client = proxy.connect();
    for _ in 0..2 {
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        let response = client.response("GET");
        assert_eq!((response.status, response.text().as_str()), (200, "ok"));
        let hints = response.interim.iter().find(|interim| interim.status == 103).expect("early hints pass");
        assert_eq!(hints.field("link"), Some("</a.css>; rel=preload"));
        assert!(response.interim.iter().all(|interim| interim.field("content-length").is_none()));
    }
}

#[test]
fn c08_as_many_interim_responses_as_a_backend_needs() {
    let origin = Origin::scripted(|connection| {
        while connection.request().is_some() {
            for _ in 0..100 {
                connection.write("HTTP/1.1 102 Processing\r\n\r\n");
            }
            connection.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let proxy = Proxy::start(Config::to(origin.address()));
    let response = proxy.get("/");
    assert_eq!((response.status, response.interim.len(), response.text().as_str()), (200, 100, "ok"));
}

#[test]
fn c08_endless_interim_responses_are_cut() {
    let origin = Origin::scripted(|connection| {
        if connection.request().is_some() {
            while connection.write("HTTP/1.1 103 Early Hints\r\n\r\n") {}
        }
    });
    let proxy = Proxy::start(Config::to(origin.address()));
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let response = client.response("GET");
    assert_eq!((response.status, response.interim.len()), (502, 100));
    assert_eq!(response.code().as_deref(), Some("upstream_bad_interim"));
}

#[test]
fn c08_a_final_answer_instead_of_the_100() {
    let origin = Origin::scripted(|connection| {
        if connection.head().is_some() {
            connection.write("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno");
            connection.wait_close();
        }
    });
    let proxy = Proxy::start(Config::to(origin.address()));
    let mut client = proxy.connect();
    client.send(
        "POST / HTTP/1.1\r\nHost: a.example\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n",
    );
    let response = client.response("POST");
    assert_eq!((response.status, response.text().as_str()), (401, "no"));
}
