//! Tests of the duplex loop between two h1 sides on real sockets.

use std::future::poll_fn;
use std::time::Duration;

use core_runtime::net::TcpStream;
use core_runtime::timer::Deadline;
use http_gateway::body_limit::BodyMeter;
use http_wire::h1::{Persistence, RequestFraming, ResponseFraming};
use http_wire::head::{BodyLength, Method, RequestHead, ResponseHead, Scheme, Version};

use crate::relay::{Direction, IdleLimits, Relay, RelayError};
use crate::side::{Side, SideError};
use crate::testing::{h1_side, on_shard, paced, read_up_to, write_all};

struct Rig {
    downstream: Side,
    upstream: Side,
    client: TcpStream,
    backend: TcpStream,
    response: Deadline,
    idle: Deadline,
}

/// A request of `length` whose head has been passed on; the body is still to come.
async fn rig(length: BodyLength) -> Rig {
    let (mut down, client) = h1_side().await;
    let (mut up, backend) = h1_side().await;
    let field = match length {
        BodyLength::Exact(bytes) => format!("Content-Length: {bytes}\r\n"),
        _ => "Transfer-Encoding: chunked\r\n".to_owned(),
    };
    write_all(&client, format!("POST / HTTP/1.1\r\nHost: h\r\n{field}\r\n").as_bytes()).await;
    let mut head = RequestHead::default();
    poll_fn(|cx| down.poll_request_head(cx, Scheme::Http, &mut head)).await.expect("a head");
    let framing = RequestFraming { body: length, persistence: Persistence::KeepAlive, te_trailers: false };
    up.send_request_head(&head, framing).expect("written");
    Rig {
        downstream: Side::H1(down),
        upstream: Side::H1(up),
        client,
        backend,
        response: Deadline::new(),
        idle: Deadline::new(),
    }
}

fn limits(downstream_ms: u64, upstream_ms: u64) -> IdleLimits {
    IdleLimits {
        downstream: Duration::from_millis(downstream_ms),
        upstream: Duration::from_millis(upstream_ms),
        body_rate: None,
    }
}

fn relay<'a>(
    downstream: &'a mut Side,
    upstream: &'a mut Side,
    idle_deadline: &'a Deadline,
    idle: IdleLimits,
    body_bytes_max: Option<u64>,
) -> Relay<'a> {
    Relay::new(
        downstream,
        upstream,
        Direction::default(),
        BodyMeter::new(body_bytes_max),
        idle,
        idle_deadline,
    )
}

async fn until_head(
    relay: &mut Relay<'_>,
    deadline: &Deadline,
    timeout: Duration,
) -> Result<u16, RelayError> {
    let mut head = ResponseHead::default();
    relay
        .until_head(deadline, Some(timeout), |side, _, cx| {
            side.poll_response_head(cx, Method::Post, &mut head)
        })
        .await?;
    Ok(head.status)
}

const LONG: Duration = Duration::from_secs(20);

#[test]
fn an_upload_passes_and_the_answer_comes_back() {
    on_shard(|| async {
        let mut rig = rig(BodyLength::Exact(200_000)).await;
        let (client, backend) = (rig.client, rig.backend);
        core_runtime::spawn(async move {
            write_all(&client, &vec![b'u'; 200_000]).await;
            std::future::pending::<()>().await;
        });
        core_runtime::spawn(async move {
            let head = b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 200000\r\n\r\n";
            let got = read_up_to(&backend, head.len() + 200_000).await;
            assert!(got.starts_with(head) && got.len() == head.len() + 200_000);
            write_all(&backend, b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n").await;
            std::future::pending::<()>().await;
        });
        let mut relay =
            relay(&mut rig.downstream, &mut rig.upstream, &rig.idle, limits(20_000, 20_000), None);
        assert_eq!(until_head(&mut relay, &rig.response, LONG).await.expect("an answer"), 201);
        assert!(relay.has_sent_request());
        assert_eq!(relay.request.bytes, 200_000);
    });
}

#[test]
fn an_early_answer_is_not_lost_when_the_backend_stops_reading() {
    // C24: the answer counts, whatever becomes of the upload.
    on_shard(|| async {
        let mut rig = rig(BodyLength::Exact(50_000_000)).await;
        let (client, backend) = (rig.client, rig.backend);
        core_runtime::spawn(async move {
            for _ in 0..5_000 {
                if client.try_write(&[b'u'; 10_000]).is_err() {
                    poll_fn(|cx| client.poll_writable(cx)).await;
                }
            }
        });
        core_runtime::spawn(async move {
            read_up_to(&backend, 1_000).await;
            write_all(&backend, b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig").await;
            std::future::pending::<()>().await;
        });
        let mut relay =
            relay(&mut rig.downstream, &mut rig.upstream, &rig.idle, limits(20_000, 20_000), None);
        assert_eq!(until_head(&mut relay, &rig.response, LONG).await.expect("the early answer"), 413);
        assert!(!relay.has_sent_request(), "the upload was not finished");
    });
}

#[test]
fn the_silent_side_is_the_one_that_is_named() {
    // (bytes the client sends of 10, who is to blame)
    for (sent, blames_client) in [(4usize, true), (10, false)] {
        on_shard(move || async move {
            let mut rig = rig(BodyLength::Exact(10)).await;
            write_all(&rig.client, &b"0123456789"[..sent]).await;
            let mut relay = relay(&mut rig.downstream, &mut rig.upstream, &rig.idle, limits(40, 60), None);
            let error = until_head(&mut relay, &rig.response, LONG).await.expect_err("silence");
            assert_eq!(matches!(error, RelayError::DownstreamIdle), blames_client, "{error:?}");
            assert_eq!(matches!(error, RelayError::UpstreamIdle), !blames_client, "{error:?}");
        });
    }
}

#[test]
fn the_response_timeout_runs_from_the_whole_request() {
    // C27: a slow upload does not eat the backend's time.
    on_shard(|| async {
        let mut rig = rig(BodyLength::Exact(4)).await;
        let client = rig.client;
        core_runtime::spawn(async move {
            for byte in b"slow" {
                paced(Duration::from_millis(30)).await;
                write_all(&client, &[*byte]).await;
            }
            std::future::pending::<()>().await;
        });
        let began = core_runtime::clock::now();
        let mut relay =
            relay(&mut rig.downstream, &mut rig.upstream, &rig.idle, limits(20_000, 20_000), None);
        let error =
            until_head(&mut relay, &rig.response, Duration::from_millis(50)).await.expect_err("no answer");
        assert!(matches!(error, RelayError::Deadline), "{error:?}");
        assert!(
            core_runtime::clock::now() - began >= Duration::from_millis(170),
            "120 ms of upload came first"
        );
    });
}

#[test]
fn a_body_over_the_limit_stops_the_upload() {
    on_shard(|| async {
        let mut rig = rig(BodyLength::Streamed).await;
        write_all(&rig.client, b"5\r\nhello\r\n6\r\n world\r\n").await;
        let mut relay =
            relay(&mut rig.downstream, &mut rig.upstream, &rig.idle, limits(20_000, 20_000), Some(8));
        let error = until_head(&mut relay, &rig.response, LONG).await.expect_err("11 bytes of 8");
        assert!(matches!(error, RelayError::BodyTooLarge), "{error:?}");
    });
}

#[test]
fn a_client_that_resets_ends_the_wait() {
    on_shard(|| async {
        let mut rig = rig(BodyLength::Exact(2)).await;
        write_all(&rig.client, b"ok").await;
        rig.client.reset_on_close().expect("linger");
        let client = rig.client;
        core_runtime::spawn(async move {
            paced(Duration::from_millis(20)).await;
            drop(client);
        });
        let mut relay =
            relay(&mut rig.downstream, &mut rig.upstream, &rig.idle, limits(20_000, 20_000), None);
        let error = until_head(&mut relay, &rig.response, LONG).await.expect_err("gone");
        assert!(matches!(error, RelayError::ClientGone | RelayError::Downstream(_)), "{error:?}");
    });
}

#[test]
fn a_slow_reader_bounds_what_is_read_from_the_backend() {
    on_shard(|| async {
        let mut rig = rig(BodyLength::Exact(0)).await;
        let backend = rig.backend;
        let sent = std::rc::Rc::new(std::cell::Cell::new(0usize));
        let counter = std::rc::Rc::clone(&sent);
        core_runtime::spawn(async move {
            write_all(&backend, b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n").await;
            loop {
                match backend.try_write(&[b'd'; 65_536]) {
                    Ok(taken) => counter.set(counter.get() + taken),
                    Err(_full) => poll_fn(|cx| backend.poll_writable(cx)).await,
                }
            }
        });
        let before = core_runtime::buf::usage().0;
        let mut relay = relay(&mut rig.downstream, &mut rig.upstream, &rig.idle, limits(200, 20_000), None);
        assert_eq!(until_head(&mut relay, &rig.response, LONG).await.expect("a head"), 200);
        let framing = ResponseFraming {
            body: BodyLength::Exact(1_000_000_000),
            declared_length: None,
            persistence: Persistence::KeepAlive,
            client_version: Version::Http11,
            request_method: Method::Post,
        };
        let mut head = ResponseHead::default();
        head.status = 200;
        relay.downstream.send_response_head(&head, framing).expect("written");
        // The client reads nothing: the relay must stop, and say who is slow.
        let error = relay.until_end().await.expect_err("nobody reads");
        assert!(matches!(error, RelayError::DownstreamIdle), "{error:?}");
        assert!(core_runtime::buf::usage().0 - before <= 3, "a few buffers, whatever the backend sends");
        assert!(sent.get() < 64 << 20, "the rest waits in the backend");
    });
}

#[test]
fn a_short_body_can_be_sent_twice_and_a_long_one_cannot() {
    // C23: the second attempt sends every byte, or there is none.
    for (length, can_again) in [(5_000usize, true), (64 * 1024, true), (64 * 1024 + 1, false)] {
        on_shard(move || async move {
            let mut rig = rig(BodyLength::Exact(u64::try_from(length).expect("small"))).await;
            let (client, backend) = (rig.client, rig.backend);
            core_runtime::spawn(async move {
                write_all(&client, &vec![b'r'; length]).await;
                std::future::pending::<()>().await;
            });
            core_runtime::spawn(async move {
                read_up_to(&backend, length).await;
            });
            let request = Direction::replayable();
            let meter = BodyMeter::new(None);
            let (down, up) = (&mut rig.downstream, &mut rig.upstream);
            let mut first = Relay::new(down, up, request, meter, limits(20_000, 20_000), &rig.idle);
            let error = until_head(&mut first, &rig.response, LONG).await.expect_err("the backend closed");
            assert!(matches!(error, RelayError::Upstream(_)), "{error:?}");
            let Some(again) = first.into_upload().again() else {
                assert!(!can_again, "{length} bytes are few enough to keep");
                return;
            };
            assert!(can_again, "{length} bytes are too many to keep");

            let (mut up, backend) = h1_side().await;
            let mut head = RequestHead::default();
            head.set_method(b"POST").expect("a method");
            head.set_path(b"/").expect("fits");
            head.set_authority(b"h").expect("fits");
            let body = BodyLength::Exact(u64::try_from(length).expect("small"));
            let framing = RequestFraming { body, persistence: Persistence::KeepAlive, te_trailers: false };
            up.send_request_head(&head, framing).expect("written");
            core_runtime::spawn(async move {
                let head = format!("POST / HTTP/1.1\r\nhost: h\r\ncontent-length: {length}\r\n\r\n");
                let got = read_up_to(&backend, head.len() + length).await;
                assert_eq!(got.len(), head.len() + length);
                assert!(got[head.len()..].iter().all(|byte| *byte == b'r'));
                write_all(&backend, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
                std::future::pending::<()>().await;
            });
            let mut up = Side::H1(up);
            let meter = BodyMeter::new(None);
            let down = &mut rig.downstream;
            let mut second = Relay::new(down, &mut up, again, meter, limits(20_000, 20_000), &rig.idle);
            assert_eq!(until_head(&mut second, &rig.response, LONG).await.expect("an answer"), 200);
        });
    }
}

/// A body that shows every byte that is lost, doubled or moved.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at ^ at >> 8 ^ at >> 16) & 0xff).expect("masked")).collect()
}

/// A response whose head has been passed on to the client; gives the rig back with the backend still to send.
async fn answered(length: usize) -> Rig {
    let mut rig = rig(BodyLength::Exact(0)).await;
    let mut head = ResponseHead::default();
    (head.status, head.version) = (200, Version::Http11);
    let bytes = u64::try_from(length).expect("short");
    write_all(&rig.backend, format!("HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\n\r\n").as_bytes()).await;
    let mut received = ResponseHead::default();
    poll_fn(|cx| rig.upstream.poll_response_head(cx, Method::Get, &mut received)).await.expect("a head");
    let framing = ResponseFraming {
        body: BodyLength::Exact(bytes),
        declared_length: None,
        persistence: Persistence::KeepAlive,
        client_version: Version::Http11,
        request_method: Method::Get,
    };
    rig.downstream.send_response_head(&head, framing).expect("written");
    rig
}

#[test]
fn long_bodies_pass_whole_through_the_kernel() {
    // Around the length from which pipes are used, and far beyond what pipe and socket hold.
    for length in [32 * 1024 - 1, 32 * 1024, 300_001, 5_000_000] {
        on_shard(move || async move {
            let mut rig = answered(length).await;
            let (client, backend) = (rig.client, rig.backend);
            let body = pattern(length);
            let expected = body.clone();
            core_runtime::spawn(async move {
                write_all(&backend, &body).await;
                std::future::pending::<()>().await;
            });
            let seen = std::rc::Rc::new(std::cell::Cell::new(false));
            let is_whole = std::rc::Rc::clone(&seen);
            core_runtime::spawn(async move {
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
                let got = read_up_to(&client, head.len() + length).await;
                is_whole.set(got.strip_prefix(head.as_bytes()).is_some_and(|body| body == expected));
                std::future::pending::<()>().await;
            });
            let mut relay =
                relay(&mut rig.downstream, &mut rig.upstream, &rig.idle, limits(20_000, 20_000), None);
            relay.request = Direction::ended();
            relay.until_end().await.expect("the whole body");
            assert_eq!(relay.response.bytes, u64::try_from(length).expect("short"));
            while !seen.get() {
                core_runtime::yield_now().await;
            }
        });
    }
}

#[test]
fn a_long_body_that_breaks_off_is_no_whole_one() {
    on_shard(|| async {
        let mut rig = answered(1_000_000).await;
        let (client, backend) = (rig.client, rig.backend);
        core_runtime::spawn(async move {
            write_all(&backend, &pattern(400_000)).await;
            backend.shutdown_write().expect("connected");
            std::future::pending::<()>().await;
        });
        core_runtime::spawn(async move {
            read_up_to(&client, 1_000_000).await;
        });
        let mut relay =
            relay(&mut rig.downstream, &mut rig.upstream, &rig.idle, limits(20_000, 20_000), None);
        relay.request = Direction::ended();
        let error = relay.until_end().await.expect_err("600,000 bytes are missing");
        assert!(matches!(error, RelayError::Upstream(SideError::Truncated)), "{error:?}");
    });
}
