//! Tests of the h1 side on real sockets, by family.

use std::future::poll_fn;
use std::task::Poll;

use http_wire::fields::Fields;
use http_wire::h1::{Persistence, RequestFraming, ResponseFraming};
use http_wire::head::{BodyLength, Method, RequestHead, ResponseHead, Scheme, Version};

use super::{BodyEvent, H1Side, SideError};
use crate::chunk::Chunk;
use crate::testing::{h1_side, on_shard, read_up_to, write_all};

async fn read_request(side: &mut H1Side) -> RequestHead {
    let mut head = RequestHead::default();
    let meta = poll_fn(|cx| side.poll_request_head(cx, Scheme::Http, &mut head)).await;
    meta.expect("a good head");
    head
}

/// Waits until something unread is there, in the buffer or by an event.
async fn input(side: &H1Side) {
    poll_fn(|cx| if side.has_input() { Poll::Ready(()) } else { side.transport().poll_readable(cx) }).await;
}

/// The body as bytes, and whether it ended well.
async fn read_body(side: &mut H1Side) -> Result<(Vec<u8>, Option<Fields>), SideError> {
    let mut bytes = Vec::new();
    loop {
        match poll_fn(|cx| side.poll_body(cx)).await? {
            BodyEvent::Data(chunk) => bytes.extend_from_slice(chunk.as_slice()),
            BodyEvent::Last(chunk) => {
                bytes.extend_from_slice(chunk.as_slice());
                return Ok((bytes, None));
            }
            BodyEvent::End(trailers) => return Ok((bytes, trailers)),
        }
    }
}

fn chunk(bytes: &[u8]) -> Chunk {
    Chunk::Shared(bytes::Bytes::copy_from_slice(bytes))
}

#[test]
fn requests_on_one_connection_come_apart_wherever_they_are_cut() {
    let wire = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello\
        POST /b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nx-sum: 1\r\n\r\n\
        GET /c HTTP/1.1\r\nHost: h\r\n\r\n";
    for cut in (1..wire.len()).step_by(7) {
        on_shard(move || async move {
            let (mut side, client) = h1_side().await;
            core_runtime::spawn(async move {
                write_all(&client, &wire[..cut]).await;
                core_runtime::yield_now().await;
                write_all(&client, &wire[cut..]).await;
                std::future::pending::<()>().await;
            });
            assert_eq!(read_request(&mut side).await.path(), b"/a");
            assert_eq!(read_body(&mut side).await.expect("whole").0, b"hello");
            assert_eq!(read_request(&mut side).await.path(), b"/b");
            let (body, trailers) = read_body(&mut side).await.expect("whole");
            assert_eq!(body, b"abcde");
            assert_eq!(trailers.expect("one trailer").get_name(b"x-sum"), Some(&b"1"[..]));
            assert_eq!(read_request(&mut side).await.path(), b"/c");
            assert!(read_body(&mut side).await.expect("whole").0.is_empty());
            assert!(!side.has_input(), "cut at {cut}: nothing is left over");
        });
    }
}

#[test]
fn a_body_that_breaks_off_is_truncated_and_a_head_that_does_is_too() {
    for (wire, is_head) in [
        (&b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nhell"[..], false),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhell\r\n", false),
        (b"POST / HTTP/1.1\r\nHost: h\r\nCont", true),
    ] {
        on_shard(move || async move {
            let (mut side, client) = h1_side().await;
            write_all(&client, wire).await;
            client.shutdown_write().expect("shutdown");
            let error = if is_head {
                let mut head = RequestHead::default();
                poll_fn(|cx| side.poll_request_head(cx, Scheme::Http, &mut head)).await.expect_err("cut")
            } else {
                read_request(&mut side).await;
                read_body(&mut side).await.expect_err("cut")
            };
            assert!(matches!(error, SideError::Truncated), "{error:?}");
        });
    }
}

#[test]
fn a_quiet_end_is_no_error() {
    on_shard(|| async {
        let (mut side, client) = h1_side().await;
        drop(client);
        let begun = poll_fn(|cx| side.poll_begun(cx)).await;
        assert!(matches!(begun, Ok(false)), "{begun:?}");
    });
}

#[test]
fn head_and_small_body_leave_in_one_piece_and_lengths_are_kept() {
    on_shard(|| async {
        let (mut side, backend) = h1_side().await;
        let mut head = RequestHead::default();
        head.set_method(b"POST").expect("a method");
        head.set_authority(b"h").expect("fits");
        head.set_path(b"/p").expect("fits");
        let framing = |body| RequestFraming { body, persistence: Persistence::KeepAlive, te_trailers: false };
        side.send_request_head(&head, framing(BodyLength::Exact(5))).expect("written");
        side.send_body(BodyEvent::Last(chunk(b"hello"))).expect("as announced");
        poll_fn(|cx| side.poll_flush(cx)).await.expect("flushed");
        let expected = b"POST /p HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n\r\nhello";
        assert_eq!(read_up_to(&backend, expected.len()).await, expected);

        side.send_request_head(&head, framing(BodyLength::Exact(5))).expect("written");
        let over = side.send_body(BodyEvent::Data(chunk(b"too long")));
        assert!(matches!(over, Err(SideError::LengthMismatch)), "more than announced");
        let (mut side, _backend) = h1_side().await;
        side.send_request_head(&head, framing(BodyLength::Exact(5))).expect("written");
        side.send_body(BodyEvent::Data(chunk(b"abc"))).expect("a part");
        let short = side.send_body(BodyEvent::End(None));
        assert!(matches!(short, Err(SideError::LengthMismatch)), "less than announced");
    });
}

#[test]
fn a_streamed_response_is_chunked_and_a_large_piece_is_not_copied_out_of_order() {
    on_shard(|| async {
        let (mut side, client) = h1_side().await;
        let mut head = ResponseHead::default();
        head.status = 200;
        let framing = ResponseFraming {
            body: BodyLength::Streamed,
            declared_length: None,
            persistence: Persistence::KeepAlive,
            client_version: Version::Http11,
            request_method: Method::Get,
        };
        side.send_response_head(&head, framing).expect("written");
        let large = vec![b'x'; 10_000];
        for piece in [&b"ab"[..], &large, b"cd"] {
            poll_fn(|cx| side.poll_room(cx)).await.expect("room");
            side.send_body(BodyEvent::Data(chunk(piece))).expect("taken");
        }
        side.send_body(BodyEvent::End(None)).expect("taken");
        poll_fn(|cx| side.poll_flush(cx)).await.expect("flushed");
        let mut expected =
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n2710\r\n".to_vec();
        expected.extend_from_slice(&large);
        expected.extend_from_slice(b"\r\n2\r\ncd\r\n0\r\n\r\n");
        let got = read_up_to(&client, expected.len()).await;
        assert!(got == expected, "{:?}", String::from_utf8_lossy(&got[..got.len().min(120)]));
    });
}

#[test]
fn bytes_behind_a_response_forbid_reuse() {
    // C06: the second response would be the next client's.
    for (tail, reusable) in [(&b""[..], true), (b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison", false)]
    {
        on_shard(move || async move {
            let (mut side, backend) = h1_side().await;
            write_all(&backend, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
            write_all(&backend, tail).await;
            let mut head = ResponseHead::default();
            let meta =
                poll_fn(|cx| side.poll_response_head(cx, Method::Get, &mut head)).await.expect("a head");
            assert_eq!(read_body(&mut side).await.expect("whole").0, b"ok");
            // Whether the rest has come with the same read or is on its way, it is seen once an event has told.
            if !reusable {
                input(&side).await;
            }
            assert_eq!(side.is_reusable(meta.persistence), reusable);
        });
    }
}

#[test]
fn an_idle_connection_that_was_closed_is_not_quiet() {
    on_shard(|| async {
        let (mut side, backend) = h1_side().await;
        assert!(side.is_quiet());
        drop(backend);
        input(&side).await;
        assert!(!side.is_quiet());
        assert!(side.is_over());
    });
}

#[test]
fn waiting_holds_no_buffer() {
    on_shard(|| async {
        let (mut side, _client) = h1_side().await;
        let before = core_runtime::buf::usage().0;
        poll_fn(|cx| {
            assert!(side.poll_begun(cx).is_pending(), "nothing was sent");
            // As after an event of bytes that were read already.
            side.transport().tcp().expect_input();
            assert!(side.poll_begun(cx).is_pending(), "an event without a byte begins nothing");
            Poll::Ready(())
        })
        .await;
        assert_eq!(core_runtime::buf::usage().0, before);
    });
}
