//! C12: trailers, with and without an announced length, over every pairing of versions.

use http::HeaderMap;
use tests::h2peer::{H2Client, H2Origin, block_on, drain, request, send_all};
use tests::{Config, Origin, Proxy, origin};

fn checksum() -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "abc".parse().expect("a legal value"));
    trailers
}

#[test]
fn c12_h2_to_h1_with_a_length_succeeds_without_them() {
    let origin = origin::echo();
    let proxy = Proxy::start(Config::to(origin.address()));
    let response = block_on(async {
        let mut client = H2Client::connect(proxy.address()).await;
        let mut post = request("POST", "a.example", "/");
        post.headers_mut().insert("content-length", 4.into());
        client.exchange(post, b"ping", Some(checksum())).await.expect("an answer")
    });
    assert_eq!((response.status, response.json()["body_bytes"].as_u64()), (200, Some(4)));
    assert_eq!(origin.faults(), Vec::<String>::new());
}

#[test]
fn c12_h2_to_h1_without_a_length_is_chunked() {
    let origin = origin::echo();
    let proxy = Proxy::start(Config::to(origin.address()));
    let response = block_on(async {
        let mut client = H2Client::connect(proxy.address()).await;
        client
            .exchange(request("POST", "a.example", "/"), b"ping", Some(checksum()))
            .await
            .expect("an answer")
    });
    assert_eq!((response.status, response.json()["body_bytes"].as_u64()), (200, Some(4)));
    let request = origin.requests().pop().expect("a request");
    assert_eq!(request.field("transfer-encoding"), Some("chunked"));
}

#[test]
fn c12_h2_to_h2_they_pass_both_ways() {
    let origin = H2Origin::start(|request, mut respond| async move {
        let mut body = request.into_body();
        let bytes = drain(&mut body).await?;
        let sum = body.trailers().await?.and_then(|trailers| trailers.get("x-sum").cloned());
        let mut stream = respond.send_response(http::Response::new(()), false)?;
        send_all(&mut stream, &bytes, false).await?;
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", sum.unwrap_or_else(|| http::HeaderValue::from_static("none")));
        stream.send_trailers(trailers)
    });
    let proxy = Proxy::start(Config::to_h2(origin.address()));
    for length in [None, Some(4)] {
        let response = block_on(async {
            let mut client = H2Client::connect(proxy.address()).await;
            let mut post = request("POST", "a.example", "/");
            if let Some(length) = length {
                post.headers_mut().insert("content-length", http::HeaderValue::from(length));
            }
            client.exchange(post, b"ping", Some(checksum())).await.expect("an answer")
        });
        assert_eq!(
            (response.status, response.text().as_str(), response.trailer("x-sum")),
            (200, "ping", Some("abc"))
        );
    }
}

#[test]
fn c12_h2_origin_with_headers_and_trailers_only() {
    // Behind a body of no bytes, too, whose length is known before.
    let origin = H2Origin::start(|request, mut respond| async move {
        let mut head = http::Response::new(());
        if request.uri().path() == "/length" {
            head.headers_mut().insert("content-length", http::HeaderValue::from(0));
        }
        let mut stream = respond.send_response(head, false)?;
        stream.send_trailers(checksum())
    });
    let proxy = Proxy::start(Config::to_h2(origin.address()));
    for target in ["/", "/length"] {
        let response = block_on(async {
            let mut client = H2Client::connect(proxy.address()).await;
            client.get("a.example", target).await.expect("an answer")
        });
        let seen = (response.status, response.body.len(), response.trailer("x-sum"));
        assert_eq!(seen, (200, 0, Some("abc")), "{target}");
        let response = proxy.get(target);
        assert_eq!((response.status, response.body.len(), response.complete), (200, 0, true), "{target}");
    }
}

#[test]
fn c12_h1_chunked_trailers_keep_framing_names_out() {
    let origin = origin::echo();
    let proxy = Proxy::start(Config::to(origin.address()));
    let mut client = proxy.connect();
    for trailers in [
        "X-T: 1\r\nContent-Length: 0\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Host: evil\r\nX-T: 1\r\n",
        "Authorization: x\r\n",
        "X-Forwarded-For: 6.6.6.6\r\n",
    ] {
        client.send(format!("POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n{trailers}\r\n"));
        let response = client.response("POST");
        assert_eq!(response.status, 200, "{trailers:?}");
        let request = origin.requests().pop().expect("a request");
        let names: Vec<String> = request.trailers.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
        assert!(names.iter().all(|name| name == "x-t"), "{trailers:?} passed as {names:?}");
        assert_eq!(request.field("host"), Some("a.example"));
    }
}

#[test]
fn c12_h1_response_trailers_reach_an_h2_client() {
    let origin = Origin::replying(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n2\r\nhi\r\n0\r\nX-T: 1\r\nContent-Length: 7\r\n\r\n",
    );
    let proxy = Proxy::start(Config::to(origin.address()));
    let response = block_on(async {
        let mut client = H2Client::connect(proxy.address()).await;
        client.get("a.example", "/").await.expect("an answer")
    });
    assert_eq!((response.status, response.text().as_str()), (200, "hi"));
    assert_eq!(response.trailer("content-length"), None);
    assert!(matches!(response.trailer("x-t"), Some("1") | None), "passed or dropped, not changed");
}
