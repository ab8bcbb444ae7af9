//! The connection's task against a peer on a real socket.

use std::future::poll_fn;
use std::io::Write;
use std::net::{TcpListener, TcpStream as StdStream};
use std::os::fd::OwnedFd;
use std::task::Poll;
use std::time::Duration;

use core_runtime::net::TcpStream;
use core_runtime::timer::Deadline;
use http_wire::h2::{Config, Connection, HeadLimits, Role};
use http_wire::head::{BodyLength, RequestHead, ResponseHead, Scheme};

use super::{Inbox, Link, LinkEnd, STREAMS_PER_TURN};
use crate::testing::{on_shard, read_up_to, write_all};
use crate::transport::Transport;

/// A connection whose socket takes `bytes` at once, and its other end.
fn roomy_pair(bytes: usize) -> (TcpStream, TcpStream) {
    let (here, there) = std_pair();
    socket2::SockRef::from(&here).set_send_buffer_size(bytes).expect("the kernel allows it");
    (registered(here), registered(there))
}

fn std_pair() -> (StdStream, StdStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let here = StdStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    let (there, _) = listener.accept().expect("it was connected to");
    (here, there)
}

fn registered(stream: StdStream) -> TcpStream {
    stream.set_nonblocking(true).expect("a socket");
    TcpStream::from_fd(OwnedFd::from(stream)).expect("register")
}

fn codec(role: Role, streams_max: u32) -> Connection<Inbox> {
    let config = Config {
        streams_max,
        stream_window_bytes: 65_535,
        connection_window_bytes: 65_535,
        frame_bytes_max: 16_384,
        head: HeadLimits { list_bytes_max: 4096, fields_max: 10, target_bytes_max: 4096 },
        extended_connect: false,
        scheme: Scheme::Http,
        budgets: None,
    };
    Connection::new(role, config)
}

/// SETTINGS with a stream window of 1 MiB, and as much for the connection.
const ROOMY: &[u8] = b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\x10\0\0\0\0\x04\x08\0\0\0\0\0\0\x10\0\0";
/// The client's preface and its SETTINGS.
const BEGINNING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// GET http://a/ as indexed and literal fields (RFC 7541 section 6), to be put behind the head of a HEADERS frame.
const GET: &[u8] = b"\x82\x84\x86\x41\x01a";
/// 200 without a body (RFC 7541 section 6.1), on the first stream.
const ANSWER: &[u8] = b"\0\0\x01\x01\x05\0\0\0\x01\x88";
const PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\0abcdefgh";
const PONG: &[u8] = b"\0\0\x08\x06\x01\0\0\0\0abcdefgh";

/// What comes while the output is full is read once it has left, though no event tells of it again.
#[test]
fn reading_goes_on_when_a_full_output_has_left_at_once() {
    on_shard(|| async {
        let (here, there) = roomy_pair(1 << 20);
        let link = Link::new(Transport::Plain(here), None, codec(Role::Client, 0));
        write_all(&there, ROOMY).await;
        poll_fn(|cx| {
            assert!(link.poll_io(cx, None).is_pending());
            if link.look(Connection::is_settled) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let mut head = RequestHead::default();
        head.set_authority(b"a").expect("short");
        head.set_path(b"/").expect("short");
        let key = link.with_codec(|codec| {
            let key = codec.send_request(&head, BodyLength::Streamed, false, Scheme::Http, Inbox::default());
            let key = key.expect("the peer takes streams");
            let room = codec.room(key).expect("open");
            codec.send_data(key, &vec![b'x'; room], false).expect("room");
            key
        });
        assert!(link.look(Connection::is_congested));
        write_all(&there, PING).await;
        while !link.has_input() {
            core_runtime::yield_now().await;
        }
        let late = Deadline::new();
        late.set_after(Duration::from_secs(10));
        // The event has come and is not told again. One poll sends everything; the next one has to come by itself.
        let mut polls = 0;
        poll_fn(|cx| {
            polls += 1;
            assert!(late.poll_expired(cx).is_pending(), "nobody reads");
            assert!(link.poll_io(cx, None).is_pending());
            if polls == 1 {
                assert!(link.look(|codec| codec.output().is_empty()), "the socket takes it at once");
            }
            if polls > 1 && link.look(|codec| codec.output().is_empty()) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        let mut got = Vec::new();
        while !got.ends_with(PONG) {
            got.extend(read_up_to(&there, 1).await);
        }
        assert!(got.len() > 128 * 1024);
        link.release(key);
    });
}

/// The upstream answers and closes with bytes of ours unread: its reset reaches our next write before the event that
/// would tell of the answer.
#[test]
fn an_answer_before_a_reset_is_read_though_a_write_fails_first() {
    on_shard(|| async {
        let (here, mut there) = std_pair();
        let link = Link::new(Transport::Plain(registered(here)), None, codec(Role::Client, 0));
        let mut head = RequestHead::default();
        head.set_authority(b"a").expect("short");
        head.set_path(b"/").expect("short");
        let sent = link.with_codec(|codec| {
            codec.send_request(&head, BodyLength::Empty, false, Scheme::Http, Inbox::default())
        });
        let key = sent.expect("a fresh connection takes a stream");
        there.write_all(ROOMY).expect("room");
        poll_fn(|cx| {
            assert!(link.poll_io(cx, None).is_pending());
            if link.look(Connection::is_settled) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        there.write_all(ANSWER).expect("room");
        drop(there);
        link.with_codec(Connection::ping);
        poll_fn(|cx| {
            // No event in between: this very poll writes, fails and reads.
            assert!(matches!(link.poll_io(cx, None), Poll::Ready(LinkEnd::Closed | LinkEnd::Broken)));
            assert!(!link.look(Connection::may_open), "for nobody else");
            let mut head = ResponseHead::default();
            let Poll::Ready(Ok(_)) = link.poll_head(key, cx, &mut head) else { panic!("the answer is lost") };
            assert_eq!(head.status, 200);
            Poll::Ready(())
        })
        .await;
        link.release(key);
    });
}

/// A read that holds more streams than a turn may open is taken turn by turn, without another event.
#[test]
fn a_turn_opens_some_of_the_streams_that_came_at_once() {
    on_shard(|| async {
        let (here, there) = roomy_pair(1 << 16);
        let link = Link::new(Transport::Plain(here), None, codec(Role::Server, 1000));
        let mut bytes = BEGINNING.to_vec();
        for number in 0..300_u32 {
            bytes.extend_from_slice(&[0, 0, 6, 1, 5]);
            bytes.extend_from_slice(&(2 * number + 1).to_be_bytes());
            bytes.extend_from_slice(GET);
        }
        write_all(&there, &bytes).await;
        while !link.has_input() {
            core_runtime::yield_now().await;
        }
        let late = Deadline::new();
        late.set_after(Duration::from_secs(10));
        let (mut turn, mut before, mut turns) = (0, 0, 0);
        poll_fn(|cx| {
            assert!(late.poll_expired(cx).is_pending(), "{before} streams are open, and nothing follows");
            assert!(link.poll_io(cx, None).is_pending());
            // Polled once more, it does nothing more in this turn.
            assert!(link.poll_io(cx, None).is_pending());
            if turn == core_runtime::turn() {
                return Poll::Pending;
            }
            turn = core_runtime::turn();
            let opened = link.look(Connection::streams_opened);
            assert!(opened - before <= u64::from(STREAMS_PER_TURN), "{before} streams, then {opened}");
            turns += u32::from(opened > before);
            before = opened;
            if opened == 300 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        assert_eq!(turns, 300_u32.div_ceil(STREAMS_PER_TURN));
    });
}
