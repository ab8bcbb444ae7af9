//! C25: a body that ends too soon never looks whole.

use tests::h2peer::{H2Client, block_on};
use tests::{Config, Origin, Proxy};

/// Reply, whether the upstream resets instead of closing, and whether the body is whole.
const CASES: &[(&str, bool, bool)] = &[
    ("HTTP/1.1 200 OK\r\n\r\nabc", false, true),
    ("HTTP/1.1 200 OK\r\n\r\n", false, true),
    ("HTTP/1.1 200 OK\r\n\r\nabc", true, false),
    ("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", false, false),
    ("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", true, false),
    ("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", false, false),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", false, false),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc", false, false),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n", false, false),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", false, true),
];

fn cutting(reply: &'static str, reset: bool) -> Origin {
    Origin::scripted(move |connection| {
        if connection.request().is_some() {
            connection.write(reply);
            if reset {
                // Lets the bytes leave before the RST overtakes them.
                connection.quiet_for(std::time::Duration::from_millis(50));
                connection.reset();
            }
        }
    })
}

#[test]
fn c25_h1_clients_see_the_cut() {
    for (reply, reset, whole) in CASES {
        let origin = cutting(reply, *reset);
        let proxy = Proxy::start(Config::to(origin.address()));
        let mut client = proxy.connect();
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        let response = client.try_response("GET");
        let seen = response.as_ref().is_ok_and(|response| response.status == 200 && response.complete);
        assert_eq!(seen, *whole, "{reply:?} reset {reset}: {response:?}");
        if !whole {
            client.expect_close();
        }
    }
}

#[test]
fn c25_h2_clients_see_the_cut() {
    for (reply, reset, whole) in CASES {
        let origin = cutting(reply, *reset);
        let proxy = Proxy::start(Config::to(origin.address()));
        block_on(async {
            let mut client = H2Client::connect(proxy.address()).await;
            let response = client.get("a.example", "/").await;
            match response {
                Ok(response) if response.status == 200 => {
                    assert!(whole, "{reply:?} reset {reset}: looked whole")
                }
                Ok(response) => {
                    assert!(!whole && response.status == 502, "{reply:?} reset {reset}: {response:?}")
                }
                Err(error) => {
                    assert!(!whole, "{reply:?} reset {reset}: {error}");
                    assert_eq!(
                        error.reason(),
                        Some(h2::Reason::INTERNAL_ERROR),
                        "{reply:?} reset {reset}: {error}"
                    );
                }
            }
            let next = client.get("a.example", "/").await;
            assert!(next.is_ok() || !whole, "{reply:?}: the connection lives: {next:?}");
        });
    }
}

#[test]
fn c25_nothing_at_all_is_a_502() {
    let origin = Origin::scripted(|connection| drop(connection.request()));
    let proxy = Proxy::start(Config::to(origin.address()));
    let response = proxy.get("/");
    assert_eq!(response.status, 502);
    assert!(response.code().is_some());
}

#[test]
fn c25_a_client_that_cuts_its_upload_never_makes_a_whole_request() {
    let (origin, proxy) = crate::echo_behind_proxy();
    for request in [
        "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 10\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ] {
        let mut client = proxy.connect();
        client.send(request).finish_sending();
        client.expect_close();
        let mut client = proxy.connect();
        client.send(request);
        client.reset();
    }
    tests::wait_until("the upstream connections end", tests::PATIENCE, || origin.connections_open() == 0);
    assert!(origin.requests().is_empty(), "{:?}", origin.requests());
}
