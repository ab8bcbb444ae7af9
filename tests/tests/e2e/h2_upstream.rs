//! C18, C19 and other doings of HTTP/2 upstreams, frame by frame.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tests::h2peer::{H2Client, block_on, collect, request, send_all};
use tests::h2raw::{Frame, H2Conn, code, flag, kind, setting};
use tests::{Config, Origin, PATIENCE, Proxy, wait_until};

pub(crate) type Upstream = H2Conn<TcpStream>;

/// An origin at frame level: `script` runs for each connection after the prefaces.
pub(crate) fn frames(
    settings: &'static [(u16, u32)],
    script: impl Fn(&mut Upstream, usize) + Send + Sync + 'static,
) -> Origin {
    Origin::scripted(move |connection| {
        let index = connection.index;
        let stream = connection.stream().try_clone().expect("a descriptor is free");
        if let Some(mut h2) = H2Conn::server(stream, settings) {
            script(&mut h2, index);
        }
    })
}

/// Answers one stream with 200 and `body`.
pub(crate) fn answer(h2: &mut Upstream, stream: u32, body: &str) -> bool {
    h2.try_send(&Frame::headers(stream, false, &[(":status", "200")])).is_ok()
        && h2.try_send(&Frame::data(stream, true, body)).is_ok()
}

/// Answers every stream as it ends, until the connection does.
fn serve(h2: &mut Upstream) {
    while let Some(frame) =
        h2.wait(|frame| matches!(frame.kind, kind::HEADERS | kind::DATA) && frame.has(flag::END_STREAM))
    {
        if !answer(h2, frame.stream, "ok") {
            return;
        }
    }
}

#[test]
fn c18_a_paused_upload_does_not_sit_on_the_connection_window() {
    let (done, max) = (Arc::new(AtomicBool::new(false)), 65_535);
    let origin = frames(&[], {
        let done = Arc::clone(&done);
        move |h2, _| {
            // The connection window is opened only when it is exactly used up; streams are answered as they end.
            let mut used = 0;
            let mut ended: Vec<u32> = Vec::new();
            while let Some(frame) = h2.wait(|frame| matches!(frame.kind, kind::DATA | kind::HEADERS)) {
                if frame.kind == kind::DATA {
                    used += frame.payload.len();
                    if used == max {
                        used = 0;
                        let grant = u32::try_from(max).expect("16 bits");
                        drop(h2.try_send(&Frame::window_update(0, grant)));
                        drop(h2.try_send(&Frame::window_update(frame.stream, grant)));
                    }
                }
                if frame.has(flag::END_STREAM) {
                    ended.push(frame.stream);
                    // Before the answer, which may be read before this thread runs again.
                    done.store(true, Ordering::Release);
                    answer(h2, frame.stream, "ok");
                }
            }
        }
    });
    let proxy = Proxy::start(Config::to_h2(origin.address()));
    block_on(async {
        let mut first = H2Client::connect(proxy.address()).await;
        let (slow, mut upload) =
            first.open(request("POST", "a.example", "/a"), false).await.expect("a stream");
        send_all(&mut upload, &vec![b'a'; 65_534], false).await.expect("an open stream");
        let mut second = H2Client::connect(proxy.address()).await;
        let quick = second.exchange(request("POST", "a.example", "/b"), b"0123456789", None);
        let quick =
            tokio::time::timeout(Duration::from_secs(10), quick).await.expect("no stall").expect("an answer");
        assert_eq!((quick.status, done.load(Ordering::Acquire)), (200, true));
        send_all(&mut upload, b"", true).await.expect("an open stream");
        assert_eq!(collect(slow).await.expect("an answer").status, 200);
    });
}

#[test]
fn c19_after_a_goaway_on_an_idle_connection_a_fresh_one_is_used() {
    let origin = frames(&[], |h2, index| {
        if index > 0 {
            return serve(h2);
        }
        let Some(frame) = h2.wait(|frame| frame.kind == kind::HEADERS) else {
            return;
        };
        let last = [
            Frame::headers(frame.stream, false, &[(":status", "200")]),
            Frame::data(frame.stream, true, "ok"),
            Frame::goaway(0x7fff_ffff, code::NO_ERROR),
        ];
        // In one write: a request on its way could not know of a later GOAWAY.
        drop(h2.write_bytes(&last.iter().flat_map(Frame::encode).collect::<Vec<u8>>()));
        // The socket stays open and nobody answers any more.
        while h2.read().is_some() {}
    });
    let proxy = Proxy::start(
        Config::to_h2(origin.address()).route(|route| route.timeout = Some(Duration::from_secs(3))),
    );
    for number in 0..10 {
        assert_eq!(proxy.get(&format!("/{number}")).status, 200, "request {number}");
    }
}

#[test]
fn c19_streams_above_the_last_id_are_tried_again_whatever_their_method() {
    let connections = Arc::new(AtomicUsize::new(0));
    let origin = frames(&[], {
        let connections = Arc::clone(&connections);
        move |h2, index| {
            connections.fetch_add(1, Ordering::AcqRel);
            if index > 0 {
                return serve(h2);
            }
            // Takes what comes until it is quiet: how many streams share this connection is the pool's choice.
            let ended = |frame: &Frame| {
                frame.has(flag::END_STREAM) && matches!(frame.kind, kind::HEADERS | kind::DATA)
            };
            let mut open = Vec::new();
            while let Some(frame) = h2.wait(ended) {
                open.push(frame.stream);
                let quiet = Some(Duration::from_millis(300));
                h2.stream().set_read_timeout(quiet).expect("a positive time limit");
            }
            h2.stream().set_read_timeout(None).expect("no time limit");
            open.sort_unstable();
            // First the polite one, then the real last id: only the first half was processed.
            let processed = &open[..open.len() / 2];
            drop(h2.try_send(&Frame::goaway(0x7fff_ffff, code::NO_ERROR)));
            drop(h2.try_send(&Frame::goaway(processed.last().copied().unwrap_or(0), code::NO_ERROR)));
            for stream in processed {
                answer(h2, *stream, "ok");
            }
            while h2.read().is_some() {}
        }
    });
    let proxy = Proxy::start(Config::to_h2(origin.address()));
    block_on(async {
        let mut client = H2Client::connect(proxy.address()).await;
        let mut waiting = Vec::new();
        for number in 0..4 {
            let head = request("POST", "a.example", &format!("/{number}"));
            let (future, mut stream) = client.open(head, false).await.expect("a stream");
            send_all(&mut stream, b"body", true).await.expect("an open stream");
            waiting.push(tokio::spawn(collect(future)));
        }
        for task in waiting {
            let response = task.await.expect("a task").expect("an answer");
            assert_eq!((response.status, response.text().as_str()), (200, "ok"));
        }
    });
    assert!(connections.load(Ordering::Acquire) >= 2);
}

#[test]
fn a_refused_stream_is_tried_again() {
    let refused = Arc::new(AtomicUsize::new(0));
    let origin = frames(&[], {
        let refused = Arc::clone(&refused);
        move |h2, _| {
            while let Some(frame) = h2.wait(|frame| frame.kind == kind::HEADERS) {
                if refused.fetch_add(1, Ordering::AcqRel) == 0 {
                    drop(h2.try_send(&Frame::rst(frame.stream, code::REFUSED_STREAM)));
                } else {
                    answer(h2, frame.stream, "ok");
                }
            }
        }
    });
    let proxy = Proxy::start(Config::to_h2(origin.address()));
    assert_eq!(proxy.get("/").status, 200);
    assert_eq!(refused.load(Ordering::Acquire), 2);
}

#[test]
fn resets_become_a_502_before_the_head_and_a_cut_after_it() {
    let origin = frames(&[], |h2, _| {
        let mut number = 0;
        while let Some(frame) = h2.wait(|frame| frame.kind == kind::HEADERS) {
            if number % 2 == 1 {
                drop(h2.try_send(&Frame::headers(
                    frame.stream,
                    false,
                    &[(":status", "200"), ("content-length", "10")],
                )));
                drop(h2.try_send(&Frame::data(frame.stream, false, "abc")));
            }
            drop(h2.try_send(&Frame::rst(frame.stream, code::INTERNAL_ERROR)));
            number += 1;
        }
    });
    let proxy = Proxy::start(Config::to_h2(origin.address()));
    let post = "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\n\r\n";
    let before = tests::client::once(proxy.address(), post);
    assert_eq!(before.status, 502, "{before:?}");
    let after = proxy.connect().send(post).try_response("POST");
    // The head may be lost with the connection that is cut.
    assert!(after.as_ref().map_or(true, |after| after.status == 502 || !after.complete), "{after:?}");
}

#[test]
fn c08_bad_interim_heads_of_an_h2_upstream() {
    let origin = frames(&[], |h2, _| {
        while let Some(frame) = h2.wait(|frame| frame.kind == kind::HEADERS) {
            // RFC 9113 §8.1: an interim response with END_STREAM is malformed.
            drop(h2.try_send(&Frame::headers(frame.stream, true, &[(":status", "100")])));
        }
    });
    let proxy = Proxy::start(Config::to_h2(origin.address()));
    let response = proxy.get("/");
    assert_eq!(response.status, 502, "{response:?}");
}

#[test]
fn c08_interim_heads_of_an_h2_upstream_pass() {
    let origin = frames(&[], |h2, _| {
        while let Some(frame) = h2.wait(|frame| frame.kind == kind::HEADERS) {
            drop(h2.try_send(&Frame::headers(
                frame.stream,
                false,
                &[(":status", "103"), ("link", "</a.css>")],
            )));
            answer(h2, frame.stream, "ok");
        }
    });
    let proxy = Proxy::start(Config::to_h2(origin.address()));
    let response = proxy.get("/");
    assert_eq!((response.status, response.text().as_str()), (200, "ok"));
    assert!(response.interim.iter().all(|interim| interim.status == 103));
}

#[test]
fn malformed_heads_of_an_h2_upstream_are_a_502() {
    for fields in [
        vec![("x", "y")],
        vec![(":status", "2000")],
        vec![(":status", "99")],
        vec![(":status", "200"), ("Upper", "x")],
        vec![(":status", "200"), ("x", "a\r\nb: c")],
        vec![(":status", "200"), ("connection", "close")],
        vec![(":status", "200"), (":status", "200")],
        vec![(":status", "200"), ("transfer-encoding", "chunked")],
    ] {
        let shown = format!("{fields:?}");
        let origin = frames(&[], move |h2, _| {
            while let Some(frame) = h2.wait(|frame| frame.kind == kind::HEADERS) {
                drop(h2.try_send(&Frame::headers(frame.stream, true, &fields)));
            }
        });
        let proxy = Proxy::start(Config::to_h2(origin.address()));
        let response = proxy.get("/");
        assert_eq!(response.status, 502, "{shown}: {response:?}");
    }
}

#[test]
fn an_upstream_limit_of_one_stream_is_obeyed() {
    let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let origin = frames(&[(setting::MAX_CONCURRENT_STREAMS, 1)], {
        let (open, most) = (Arc::clone(&open), Arc::clone(&most));
        move |h2, _| {
            while let Some(frame) = h2.wait(|frame| frame.kind == kind::HEADERS) {
                most.fetch_max(open.fetch_add(1, Ordering::AcqRel) + 1, Ordering::AcqRel);
                tests::wait::pause(Duration::from_millis(20));
                open.fetch_sub(1, Ordering::AcqRel);
                answer(h2, frame.stream, "ok");
            }
        }
    });
    let proxy = Proxy::start(Config::to_h2(origin.address()));
    block_on(async {
        let mut client = H2Client::connect(proxy.address()).await;
        let mut waiting = Vec::new();
        for _ in 0..12 {
            let (future, _stream) =
                client.open(request("GET", "a.example", "/"), true).await.expect("a stream");
            waiting.push(tokio::spawn(collect(future)));
        }
        for task in waiting {
            assert_eq!(task.await.expect("a task").expect("an answer").status, 200);
        }
    });
    // A handful of connections of one stream each.
    assert!(most.load(Ordering::Acquire) <= origin.connections(), "more streams than the upstream allows");
    assert!(origin.connections() <= 8, "{} connections", origin.connections());
}

#[test]
fn an_upstream_that_closes_all_its_connections_is_dialled_again() {
    let origin = frames(&[], |h2, _| serve(h2));
    let proxy = Proxy::start(Config::to_h2(origin.address()));
    for _ in 0..5 {
        assert_eq!(proxy.get("/").status, 200);
        origin.close_connections();
        wait_until("the connections are gone", PATIENCE, || origin.connections_open() == 0);
    }
}
