//! C50: request bodies go to a mirror while they come, whatever their length, within bounds, and never at the primary's
//! cost: a mirror that does not keep up, breaks off or answers early is let go, and a client that leaves takes it along.

use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use h2::SendStream;
use serde_json::json;
use tests::h2peer::{H2Client, H2Origin, block_on, request};
use tests::message::hash;
use tests::{Cluster, Config, Origin, PATIENCE, Protocol, Proxy, RawClient, Route, origin, wait_until};

use crate::mirror::{TO_MIRROR, all_served, ended, mirrored, primary_untouched, to, wait_ends};

const LONG: usize = 10_000_000;
const CHUNKED: &str = "POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n";

fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// Bytes that are all different from their neighbours, so that none can be lost or doubled unseen.
fn body(len: usize) -> Vec<u8> {
    (0..len.div_ceil(4)).flat_map(|n| u32::try_from(n).expect("small").to_le_bytes()).take(len).collect()
}

/// What an h2 origin has of its only request.
#[derive(Debug, Default)]
struct Got {
    bytes: Vec<u8>,
    trailers: Option<http::HeaderMap>,
    is_whole: bool,
    is_broken: bool,
}

/// When an origin begins to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    AtOnce,
    AtTheEnd,
}

fn h2_origin() -> (H2Origin, Arc<Mutex<Got>>) {
    h2_origin_that(Answers::AtTheEnd)
}

/// An h2 origin that keeps what comes as it comes, and answers as gRPC does.
fn h2_origin_that(answers: Answers) -> (H2Origin, Arc<Mutex<Got>>) {
    let got = Arc::new(Mutex::new(Got::default()));
    let kept = Arc::clone(&got);
    let origin = H2Origin::start(move |request, mut respond| {
        let kept = Arc::clone(&kept);
        async move {
            let head = || {
                let head = http::Response::builder().header("content-type", "application/grpc");
                head.body(()).expect("a legal head")
            };
            let begun = match answers {
                Answers::AtOnce => Some(respond.send_response(head(), false)?),
                Answers::AtTheEnd => None,
            };
            let mut body = request.into_body();
            while let Some(piece) = body.data().await {
                let Ok(piece) = piece else {
                    look(&kept).is_broken = true;
                    return Ok(());
                };
                body.flow_control().release_capacity(piece.len())?;
                look(&kept).bytes.extend_from_slice(&piece);
            }
            look(&kept).trailers = body.trailers().await?;
            look(&kept).is_whole = true;
            let mut stream = match begun {
                Some(stream) => stream,
                None => respond.send_response(head(), false)?,
            };
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
            stream.send_trailers(trailers)
        }
    });
    (origin, got)
}

fn look(got: &Mutex<Got>) -> std::sync::MutexGuard<'_, Got> {
    got.lock().unwrap_or_else(PoisonError::into_inner)
}

fn over_h2(origin: &H2Origin) -> Cluster {
    Cluster { protocol: Protocol::Http2, ..to(origin.address()) }
}

/// How many bytes an h1 origin has got, heads and framing included.
fn received(origin: &Origin) -> usize {
    origin.received().iter().map(Vec::len).sum()
}

fn in_flight(proxy: &Proxy) -> f64 {
    proxy.metrics().sum("shard_cluster_mirrors_in_flight", TO_MIRROR)
}

#[test]
fn a_long_body_arrives_whole() {
    let body = body(LONG);
    let (h1, (h2, h2_got)) = (origin::echo(), h2_origin());
    for mirror in [to(h1.address()), over_h2(&h2)] {
        let primary = origin::echo();
        // As much as the body: how fast the mirror is makes no difference.
        let proxy = mirrored(primary.address(), mirror, json!({ "buffer_max": "16MiB" }));
        let mut client = proxy.connect();
        client
            .send(format!("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: {LONG}\r\n\r\n"))
            .send(&body);
        assert_eq!(client.response("POST").json()["body_hash"], hash(&body));
        assert_eq!(wait_ends(&proxy, 1), 1.0);
        let metrics = proxy.metrics();
        assert_eq!(metrics.sum("shard_cluster_mirror_bytes_total", TO_MIRROR), 10_000_000.0);
        assert_eq!(metrics.sum("shard_cluster_mirror_bytes_held", TO_MIRROR), 0.0);
        primary_untouched(&proxy, 1);
    }
    assert_eq!(hash(&h1.wait_request(1).body), hash(&body));
    assert_eq!(hash(&look(&h2_got).bytes), hash(&body));
}

#[test]
fn an_upload_is_streamed_and_longer_than_what_is_held() {
    // Each piece is at the mirror before the next is sent, while the primary has no more than that either.
    let body = body(40 * 64 * 1024);
    let (primary, mirror) = (origin::echo(), origin::echo());
    let proxy = mirrored(primary.address(), to(mirror.address()), json!({ "buffer_max": "128KiB" }));
    let mut client = proxy.connect();
    client.send(CHUNKED);
    for (number, piece) in body.chunks(64 * 1024).enumerate() {
        client.send(chunk(piece));
        let sent = (number + 1) * piece.len();
        wait_until("both have the piece", PATIENCE, || received(&primary) > sent && received(&mirror) > sent);
    }
    assert_eq!(
        (primary.requests().len(), mirror.requests().len()),
        (0, 0),
        "nobody has been told of the end"
    );
    client.send("0\r\n\r\n");
    assert_eq!(client.response("POST").json()["body_hash"], hash(&body));
    assert_eq!(wait_ends(&proxy, 1), 1.0);
    let copy = mirror.wait_request(1);
    assert_eq!((hash(&copy.body), copy.field("x-mirrored")), (hash(&body), Some("true")));
    assert_eq!(mirror.faults(), Vec::<String>::new());
    primary_untouched(&proxy, 1);
}

/// A call whose messages are sent one by one.
async fn call(client: &mut H2Client) -> (h2::client::ResponseFuture, SendStream<Bytes>) {
    let mut head = request("POST", "a.example", "/x");
    head.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
    head.headers_mut().insert("te", http::HeaderValue::from_static("trailers"));
    client.open(head, false).await.expect("a stream")
}

#[test]
fn messages_of_a_grpc_stream_reach_the_mirror_one_by_one() {
    for answers in [Answers::AtTheEnd, Answers::AtOnce] {
        grpc_stream(answers);
    }
}

/// A client's stream to a primary that answers at its end, and a mirror that answers at some time.
fn grpc_stream(answers: Answers) {
    let ((primary, of_primary), (mirror, of_mirror)) = (h2_origin(), h2_origin_that(answers));
    let config = Config::to_h2(primary.address()).and_cluster(over_h2(&mirror)).route(|route| {
        let own = std::mem::replace(route, Route::prefix("all", "/"));
        *route = own.rule("mirror", json!({ "cluster": "m" }));
    });
    let proxy = Proxy::start(config);
    block_on(async {
        let mut client = H2Client::connect(proxy.address()).await;
        let (answer, mut messages) = call(&mut client).await;
        for number in 1..=5_usize {
            messages.send_data(Bytes::from(format!("\0\0\0\0\u{1}{number}")), false).expect("open");
            // The client's connection has to be driven meanwhile.
            tokio::task::spawn_blocking({
                let (of_primary, of_mirror) = (Arc::clone(&of_primary), Arc::clone(&of_mirror));
                move || {
                    wait_until("both have the message", PATIENCE, || {
                        look(&of_primary).bytes.len() == 6 * number
                            && look(&of_mirror).bytes.len() == 6 * number
                    });
                }
            })
            .await
            .expect("both have it");
        }
        let mut trailers = http::HeaderMap::new();
        trailers.insert("x-mark", http::HeaderValue::from_static("m"));
        messages.send_trailers(trailers).expect("open");
        let answer = tests::h2peer::collect(answer).await.expect("an answer");
        assert_eq!(answer.trailer("grpc-status"), Some("0"));
    });
    assert_eq!(wait_ends(&proxy, 1), 1.0);
    for got in [of_primary, of_mirror] {
        let got = look(&got);
        let mark = got.trailers.as_ref().and_then(|trailers| trailers.get("x-mark"));
        assert_eq!(
            (got.bytes.len(), got.is_whole, mark.map(http::HeaderValue::as_bytes)),
            (30, true, Some(&b"m"[..]))
        );
    }
}

#[test]
fn a_client_that_leaves_takes_the_mirror_along() {
    let (h1, (h2, h2_got)) = (origin::echo(), h2_origin());
    for mirror in [to(h1.address()), over_h2(&h2)] {
        let primary = origin::echo();
        let proxy = mirrored(primary.address(), mirror, json!({}));
        let framing = ["Transfer-Encoding: chunked\r\n\r\n100\r\nhalf", "Content-Length: 10\r\n\r\nhalf"];
        for (at, framing) in framing.into_iter().enumerate() {
            let before = h1.received_text().matches("half").count();
            look(&h2_got).is_broken = false;
            look(&h2_got).bytes.clear();
            let mut client = proxy.connect();
            client.send(format!("POST / HTTP/1.1\r\nHost: a.example\r\n{framing}"));
            wait_until("the mirror has the half", PATIENCE, || {
                h1.received_text().matches("half").count() > before || look(&h2_got).bytes == b"half"
            });
            client.reset();
            wait_until("it is told", PATIENCE, || h1.connections_open() == 0 || look(&h2_got).is_broken);
            wait_until("it is counted", PATIENCE, || {
                ended(&proxy, "failed", "aborted") == f64::from(u32::try_from(at + 1).expect("small"))
            });
        }
        assert_eq!(wait_ends(&proxy, 2), 0.0);
    }
    assert!(h1.requests().is_empty() && !look(&h2_got).is_whole, "no half passes for a whole");
}

#[test]
fn a_client_that_cancels_its_stream_takes_the_mirror_along() {
    let (primary, (mirror, got)) = (origin::echo(), h2_origin());
    let proxy = mirrored(primary.address(), over_h2(&mirror), json!({}));
    block_on(async {
        let mut client = H2Client::connect(proxy.address()).await;
        let (_answer, mut messages) = call(&mut client).await;
        messages.send_data(Bytes::from_static(b"half"), false).expect("open");
        let seen = Arc::clone(&got);
        tokio::task::spawn_blocking(move || {
            wait_until("the mirror has the half", PATIENCE, || look(&seen).bytes == b"half");
        })
        .await
        .expect("it has");
        messages.send_reset(h2::Reason::CANCEL);
        tokio::task::spawn_blocking(move || {
            wait_until("it is told", PATIENCE, || look(&got).is_broken);
        })
        .await
        .expect("it is");
    });
    assert_eq!(wait_ends(&proxy, 1), 0.0);
    assert_eq!(ended(&proxy, "failed", "aborted"), 1.0);
}

/// A client that has sent the first half of `body`, known to be at the primary.
fn half_sent(proxy: &Proxy, primary: &Origin, body: &[u8]) -> RawClient {
    let mut client = proxy.connect();
    let half = body.len() / 2;
    client.send(format!("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: {}\r\n\r\n", body.len()));
    client.send(&body[..half]);
    wait_until("the primary has the half", PATIENCE, || received(primary) > half);
    client
}

#[test]
fn a_mirror_that_never_reads_is_given_up() {
    // Nobody accepts: what the kernel takes is all that it gets.
    let deaf = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let body = body(15_000_000);
    let primary = origin::echo();
    let proxy =
        mirrored(primary.address(), to(deaf.local_addr().expect("bound")), json!({ "timeout": "60s" }));
    let mut client = half_sent(&proxy, &primary, &body);
    client.send(&body[body.len() / 2..]);
    assert_eq!(client.response("POST").json()["body_hash"], hash(&body), "the primary has all of it");
    assert_eq!(wait_ends(&proxy, 1), 0.0);
    assert_eq!(ended(&proxy, "failed", "behind") + ended(&proxy, "skipped", "buffer_full"), 1.0);
    assert_eq!(proxy.metrics().sum("shard_cluster_mirror_bytes_held", TO_MIRROR), 0.0);
    primary_untouched(&proxy, 1);
}

#[test]
fn a_mirror_that_resets_in_the_middle_is_let_go() {
    let body = body(1_000_000);
    let primary = origin::echo();
    let mirror = Origin::scripted(|connection| {
        if connection.head().is_some() && connection.take(100_000).is_some() {
            connection.reset();
        }
    });
    let proxy = mirrored(primary.address(), to(mirror.address()), json!({}));
    let mut client = half_sent(&proxy, &primary, &body);
    wait_until("counted while the upload goes on", PATIENCE, || ended(&proxy, "failed", "broken") == 1.0);
    assert_eq!(in_flight(&proxy), 0.0);
    client.send(&body[body.len() / 2..]);
    assert_eq!(client.response("POST").json()["body_hash"], hash(&body));
    assert_eq!(wait_ends(&proxy, 1), 0.0);
    primary_untouched(&proxy, 1);
}

#[test]
fn a_mirror_that_answers_early_has_answered() {
    let body = body(1_000_000);
    let primary = origin::echo();
    let mirror = Origin::scripted(|connection| {
        if connection.head().is_some() && connection.write("HTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\nno") {
            connection.wait_close();
        }
    });
    let proxy = mirrored(primary.address(), to(mirror.address()), json!({}));
    let mut client = half_sent(&proxy, &primary, &body);
    assert_eq!(wait_ends(&proxy, 1), 1.0, "before the upload has ended");
    wait_until("out of step, its connection is closed", PATIENCE, || mirror.connections_open() == 0);
    client.send(&body[body.len() / 2..]);
    assert_eq!(client.response("POST").json()["body_hash"], hash(&body));
    primary_untouched(&proxy, 1);
}

#[test]
fn a_mirror_that_answers_byte_by_byte_has_its_time() {
    let primary = Origin::replying("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let mirror = Origin::scripted(|connection| {
        let answer = connection
            .head()
            .is_some_and(|_| connection.write("HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n"));
        while answer && connection.quiet_for(Duration::from_millis(50)) && connection.write("z") {}
    });
    let proxy = mirrored(primary.address(), to(mirror.address()), json!({ "timeout": "500ms" }));
    all_served(&proxy, 4);
    assert_eq!(wait_ends(&proxy, 4), 0.0);
    assert_eq!(ended(&proxy, "failed", "timed_out"), 4.0);
    primary_untouched(&proxy, 4);
}

#[test]
fn a_retry_of_the_primary_shows_the_mirror_nothing_twice() {
    let primary = Origin::scripted(|connection| {
        if connection.index == 0 {
            if connection.head().is_some() && connection.take(10_000).is_some() {
                connection.reset();
            }
            return;
        }
        while let Some(request) = connection.request() {
            connection.echo(&request);
        }
    });
    let mirror = origin::echo();
    let proxy = mirrored(primary.address(), to(mirror.address()), json!({}));
    let body = body(30_000);
    let mut client = proxy.connect();
    client.send(CHUNKED.replace("POST", "PUT")).send(chunk(&body[..10_000]));
    wait_until("the mirror has begun", PATIENCE, || received(&mirror) > 10_000);
    wait_until("the second attempt has it", PATIENCE, || {
        primary.connections() == 2 && received(&primary) > 20_000
    });
    client.send(chunk(&body[10_000..])).send("0\r\n\r\n");
    assert_eq!(client.response("PUT").json()["body_hash"], hash(&body));
    assert_eq!(wait_ends(&proxy, 1), 1.0);
    assert_eq!(hash(&mirror.wait_request(1).body), hash(&body));
}
