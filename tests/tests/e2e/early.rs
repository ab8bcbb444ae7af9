//! C24: an upstream that answers before the upload is over.

use tests::h2peer::{H2Client, block_on, collect, request, send_all};
use tests::{Config, End, Origin, Proxy, client};

const REPLY: &str = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nbig";

/// What the upstream does after its early answer.
#[derive(Clone, Copy, Debug)]
enum Then {
    Reset,
    HalfClose,
    StayOpen,
}

fn impatient(then: Then) -> Origin {
    Origin::scripted(move |connection| {
        let Some(request) = connection.head() else {
            return;
        };
        if request.method == "GET" {
            connection.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            return;
        }
        connection.take(1_000);
        connection.write(REPLY);
        match then {
            // Closing with unread data in the socket makes the kernel send RST.
            Then::Reset => {}
            Then::HalfClose => {
                connection.finish_sending();
                connection.wait_close();
            }
            Then::StayOpen => {
                // Unread for a while, so that the proxy's writes get stuck.
                tests::wait::pause(std::time::Duration::from_millis(500));
                connection.wait_close();
            }
        }
    })
}

const UPLOAD: usize = 10_000_000;

#[test]
fn c24_an_h1_client_gets_the_answer() {
    for then in [Then::Reset, Then::HalfClose, Then::StayOpen] {
        let origin = impatient(then);
        let proxy = Proxy::start(Config::to(origin.address()));
        for _ in 0..3 {
            let mut client = proxy.connect();
            client.send(format!("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: {UPLOAD}\r\n\r\n"));
            // The proxy may stop reading and close once it has answered.
            drop(client.try_send(vec![b'x'; UPLOAD]));
            let response = client.response("POST");
            assert_eq!((response.status, response.text().as_str()), (413, "big"), "{then:?}");
            assert_ne!(client.ending(), End::Open, "{then:?}");
        }
        assert_eq!(
            client::get(proxy.address(), "a.example", "/").text(),
            "ok",
            "{then:?}: not on a half-written connection"
        );
    }
}

/// The reset may reach a write of ours before an event tells of the answer.
#[test]
fn c24_an_answer_before_a_reset_is_never_lost() {
    let origin = Origin::scripted(|connection| {
        // Nothing is read: the head is what the close resets for.
        connection.write(REPLY);
    });
    let proxy = Proxy::start(Config::to(origin.address()));
    for round in 0..100 {
        for body in [0, 200_000] {
            let mut client = proxy.connect();
            client.send(format!("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: {body}\r\n\r\n"));
            drop(client.try_send(vec![b'x'; body]));
            let response = client.response("POST");
            assert_eq!(
                (response.status, response.text().as_str()),
                (413, "big"),
                "round {round}, {body} bytes"
            );
            // The next request shall not meet a connection that is about to close.
            origin.wait_closed();
        }
    }
}

#[test]
fn c24_an_h1_client_that_reads_late_still_gets_the_answer() {
    let origin = impatient(Then::Reset);
    let proxy = Proxy::start(Config::to(origin.address()));
    let mut client = proxy.connect();
    client.send("POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n");
    // A lingering close drains for a while: these writes do not destroy the answer in flight.
    for _ in 0..40 {
        if client.try_send(format!("4000\r\n{}\r\n", "x".repeat(0x4000))).is_err() {
            break;
        }
    }
    assert_eq!(client.response("POST").text(), "big");
}

#[test]
fn c24_an_h2_client_gets_the_answer_and_keeps_its_connection() {
    for then in [Then::Reset, Then::HalfClose, Then::StayOpen] {
        let origin = impatient(then);
        let proxy = Proxy::start(Config::to(origin.address()));
        block_on(async {
            let mut client = H2Client::connect(proxy.address()).await;
            for _ in 0..3 {
                let (future, mut stream) =
                    client.open(request("POST", "a.example", "/"), false).await.expect("a stream");
                let body = vec![b'x'; UPLOAD];
                let (sent, response) = tokio::join!(send_all(&mut stream, &body, true), collect(future));
                let response = response.expect("an answer");
                assert_eq!((response.status, response.text().as_str()), (413, "big"), "{then:?}");
                // The rest of the upload is stopped with NO_ERROR (RFC 9113 §8.1) or was taken.
                if let Err(error) = sent {
                    assert_eq!(error.reason(), Some(h2::Reason::NO_ERROR), "{then:?}: {error}");
                }
            }
            let response = client.get("a.example", "/").await.expect("the connection lives");
            assert_eq!(response.text(), "ok", "{then:?}");
        });
    }
}

#[test]
fn c24_expect_and_an_early_answer() {
    let origin = impatient(Then::HalfClose);
    let proxy = Proxy::start(Config::to(origin.address()));
    let mut client = proxy.connect();
    client.send(format!(
        "POST / HTTP/1.1\r\nHost: a.example\r\nExpect: 100-continue\r\nContent-Length: {UPLOAD}\r\n\r\n"
    ));
    drop(client.try_send(vec![b'x'; 1_000]));
    let response = client.response("POST");
    assert_eq!((response.status, response.text().as_str()), (413, "big"));
}
