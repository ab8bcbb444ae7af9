//! C07, C10: Upgrade. Tunnel mode begins with the upstream's 101 and not before; then bytes and half-closes pass
//! both ways untouched.

use std::time::Duration;

use tests::{Config, End, Origin, Proxy, origin};

const UPGRADE: &str =
    "GET /ws HTTP/1.1\r\nHost: a.example\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n";

fn proxy_for(origin: &Origin) -> Proxy {
    Proxy::start(Config::to(origin.address()).listener(|listener| {
        listener.upgrades = vec!["websocket".to_owned()];
    }))
}

/// Answers an upgrade with 101 and runs `then` on the tunnel.
fn upgrading(then: impl Fn(&mut tests::OriginConn) + Send + Sync + 'static) -> Origin {
    Origin::scripted(move |connection| {
        if connection.head().is_some() {
            connection.write(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            );
            then(connection);
        }
    })
}

#[test]
fn c07_a_200_to_an_upgrade_stays_http() {
    let origin = origin::echo();
    let proxy = Proxy::start(
        Config::to(origin.address())
            .listener(|listener| listener.upgrades = vec!["websocket".to_owned()])
            .and_route(tests::Route::prefix("admin", "/admin").direct(403, "no")),
    );
    let mut client = proxy.connect();
    client.send(format!("{UPGRADE}GET /admin HTTP/1.1\r\nHost: a.example\r\n\r\n"));
    let first = client.response("GET");
    assert_eq!((first.status, first.json()["target"].as_str()), (200, Some("/ws")));
    assert_eq!(client.response("GET").status, 403, "the second request goes through routing");
    assert!(!origin.received_text().contains("/admin"));
    assert_eq!(origin.faults(), Vec::<String>::new());
}

#[test]
fn c07_upgrades_that_are_not_configured_are_plain_requests() {
    let origin = origin::echo();
    let proxy = proxy_for(&origin);
    for upgrade in ["foo", "h2c", "TLS/1.0", "HTTP/2.0"] {
        let mut client = proxy.connect();
        client.send(format!(
            "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: upgrade\r\nUpgrade: {upgrade}\r\n\r\n"
        ));
        let response = client.response("GET");
        if response.status == 200 {
            let request = origin.requests().pop().expect("a request");
            assert_eq!(request.field("upgrade"), None, "{upgrade} must not pass");
        } else {
            assert!(matches!(response.status, 400 | 403 | 501), "{upgrade}: {response:?}");
        }
    }
}

#[test]
fn c07_an_upgrade_with_a_body_is_refused_or_finished_first() {
    let origin = origin::echo();
    let proxy = proxy_for(&origin);
    let mut client = proxy.connect();
    let body = "GET /evil HTTP/1.1\r\nHost: b\r\n\r\n";
    client.send(format!(
        "POST /ws HTTP/1.1\r\nHost: a.example\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    let response = client.response("POST");
    assert!(matches!(response.status, 200 | 400 | 501), "{response:?}");
    assert!(origin.requests().iter().all(|request| request.target != "/evil"));
    assert_eq!(origin.faults(), Vec::<String>::new());
}

#[test]
fn c07_a_101_that_nobody_asked_for_is_a_502() {
    let (_origin, proxy) = crate::reply_behind_proxy(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
    );
    assert_eq!(proxy.get("/").status, 502);
    let origin =
        Origin::replying("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n");
    let proxy = proxy_for(&origin);
    let mut client = proxy.connect();
    client.send(UPGRADE);
    assert_eq!(client.response("GET").status, 502, "the upstream switched to something else");
}

#[test]
fn c10_the_first_frame_in_the_segment_of_the_101() {
    let origin = Origin::scripted(|connection| {
        if connection.head().is_some() {
            connection.write(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nHELLO",
            );
            connection.wait_close();
        }
    });
    let proxy = proxy_for(&origin);
    let mut client = proxy.connect();
    client.send(UPGRADE);
    let response = client.response("GET");
    assert_eq!(response.status, 101);
    assert_eq!(response.field("upgrade"), Some("websocket"));
    assert_eq!(client.take(5).as_deref(), Some(b"HELLO".as_slice()));
}

#[test]
fn c10_bytes_sent_right_behind_the_upgrade_arrive_after_the_101() {
    let origin = upgrading(|connection| {
        let got = connection.take(5).unwrap_or_default();
        connection.write(got);
        connection.wait_close();
    });
    let proxy = proxy_for(&origin);
    let mut client = proxy.connect();
    client.send(format!("{UPGRADE}early"));
    assert_eq!(client.response("GET").status, 101);
    assert_eq!(client.take(5).as_deref(), Some(b"early".as_slice()));
}

#[test]
fn c10_a_half_close_of_the_client_leaves_the_other_way_open() {
    let origin = upgrading(|connection| {
        let got = connection.rest();
        connection.write([got, vec![b'u'; 64 * 1024]].concat());
    });
    let proxy = proxy_for(&origin);
    let mut client = proxy.connect();
    client.send(UPGRADE);
    assert_eq!(client.response("GET").status, 101);
    client.send("x").finish_sending();
    let bytes = client.rest();
    assert_eq!((bytes.len(), bytes.first()), (1 + 64 * 1024, Some(&b'x')));
    assert_eq!(client.ending(), End::Closed);
}

#[test]
fn c10_a_half_close_of_the_upstream_leaves_the_other_way_open() {
    let origin = upgrading(|connection| {
        connection.write("bye");
        connection.finish_sending();
        connection.wait_close();
    });
    let proxy = proxy_for(&origin);
    let mut client = proxy.connect();
    client.send(UPGRADE);
    assert_eq!(client.response("GET").status, 101);
    assert_eq!(client.rest(), b"bye");
    client.send(vec![b'c'; 64 * 1024]).finish_sending();
    tests::wait_until("all bytes reach the upstream", tests::PATIENCE, || {
        origin.received()[0].iter().filter(|byte| **byte == b'c').count() >= 64 * 1024
    });
}

#[test]
fn c10_a_reset_of_either_side_ends_both() {
    let origin = upgrading(tests::OriginConn::wait_close);
    let proxy = proxy_for(&origin);
    let mut client = proxy.connect();
    client.send(UPGRADE);
    assert_eq!(client.response("GET").status, 101);
    client.reset();
    tests::wait_until("the upstream side ends", tests::PATIENCE, || origin.connections_open() == 0);

    let origin = upgrading(|connection| {
        connection.take(1);
        connection.reset();
    });
    let proxy = proxy_for(&origin);
    let mut client = proxy.connect();
    client.send(UPGRADE);
    assert_eq!(client.response("GET").status, 101);
    client.send("x");
    assert_ne!(client.ending(), End::Open);
}

#[test]
fn c10_a_quiet_tunnel_ends_at_its_idle_limit_and_no_sooner() {
    let origin = upgrading(tests::OriginConn::wait_close);
    let proxy = Proxy::start(
        Config::to(origin.address())
            .listener(|listener| listener.upgrades = vec!["websocket".to_owned()])
            .route(|route| {
                route.timeout = Some(Duration::from_millis(300));
                route.idle_timeout = Some(Duration::from_secs(2));
            }),
    );
    let mut client = proxy.connect();
    client.send(UPGRADE);
    assert_eq!(client.response("GET").status, 101);
    let start = std::time::Instant::now();
    client.send_paced(&[b"1".as_slice(), b"2", b"3"], Duration::from_millis(900));
    assert_ne!(client.ending(), End::Open);
    let lived = start.elapsed();
    assert!(lived > Duration::from_millis(3_500), "traffic keeps a tunnel alive, it lived {lived:?}");
}

#[test]
fn c10_big_transfers_both_ways_at_once() {
    let origin = upgrading(|connection| {
        while let Some(block) = connection.take(10_000) {
            if !connection.write(&block) {
                return;
            }
        }
    });
    let proxy = proxy_for(&origin);
    let mut client = proxy.connect();
    client.send(UPGRADE);
    assert_eq!(client.response("GET").status, 101);
    for number in 0..200_u8 {
        let block = vec![number; 10_000];
        client.send(&block);
        assert_eq!(client.take(10_000).as_deref(), Some(block.as_slice()), "block {number}");
    }
}
