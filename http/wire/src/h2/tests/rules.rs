//! Frames that break the rules of RFC 9113: which error, and whose.

use super::*;

fn data(stream: u32, is_end: bool, bytes: &[u8]) -> Vec<u8> {
    raw(kind::DATA, if is_end { flag::END_STREAM } else { 0 }, stream, bytes)
}

fn reset(stream: u32) -> Vec<u8> {
    raw(kind::RST_STREAM, 0, stream, &[0, 0, 0, 8])
}

fn update(stream: u32, by: u32) -> Vec<u8> {
    raw(kind::WINDOW_UPDATE, 0, stream, &by.to_be_bytes())
}

/// The code by which a server ends the connection, if it does.
fn connection_error(bytes: &[u8]) -> Option<&'static str> {
    let (mut server, mut log) = server();
    let fault = server.receive(bytes, NOW, &mut log).err()?;
    let frames = sent(&mut server, &mut log);
    let goaway = frames.last().expect("a last frame");
    assert_eq!((goaway.0, &goaway.3[4..]), (kind::GOAWAY, &fault.code.0.to_be_bytes()[..]));
    assert_eq!(server.receive(&headers(99, true, &GET), NOW, &mut log), Ok(()), "it is not looked at");
    assert!(server.output().is_empty() && server.is_over());
    Some(fault.code.name())
}

#[test]
fn errors_that_end_the_connection() {
    let open = headers(1, false, &POST);
    let whole = headers(1, true, &GET);
    let after = |first: &[u8], then: Vec<u8>| [first, &then].concat();
    for (bytes, want) in [
        (after(&open, data(0, false, b"x")), "PROTOCOL_ERROR"),
        (data(1, false, b"x"), "PROTOCOL_ERROR"),
        (data(2, false, b"x"), "PROTOCOL_ERROR"),
        (raw(kind::DATA, flag::PADDED, 1, b""), "FRAME_SIZE_ERROR"),
        (after(&open, raw(kind::DATA, flag::PADDED, 1, b"\x03ab")), "PROTOCOL_ERROR"),
        (headers(0, true, &GET), "PROTOCOL_ERROR"),
        (headers(2, true, &GET), "PROTOCOL_ERROR"),
        (raw(kind::HEADERS, flag::END_HEADERS | flag::PRIORITY, 1, b"abc"), "FRAME_SIZE_ERROR"),
        (raw(kind::HEADERS, flag::END_HEADERS, 1, &[0xff]), "COMPRESSION_ERROR"),
        (after(&whole, raw(kind::HEADERS, flag::END_HEADERS, 1, &[0xff])), "COMPRESSION_ERROR"),
        (raw(kind::CONTINUATION, flag::END_HEADERS, 1, b""), "PROTOCOL_ERROR"),
        (after(&raw(kind::HEADERS, 0, 1, b""), raw(kind::PING, 0, 0, &[0; 8])), "PROTOCOL_ERROR"),
        (after(&raw(kind::HEADERS, 0, 1, b""), raw(kind::CONTINUATION, 0, 3, b"")), "PROTOCOL_ERROR"),
        (raw(kind::PRIORITY, 0, 0, &[0; 5]), "PROTOCOL_ERROR"),
        (raw(kind::PRIORITY, 0, 1, &[0; 4]), "FRAME_SIZE_ERROR"),
        (raw(kind::PRIORITY, 0, 3, &[0, 0, 0, 3, 0]), "PROTOCOL_ERROR"),
        (reset(0), "PROTOCOL_ERROR"),
        (reset(1), "PROTOCOL_ERROR"),
        (after(&open, raw(kind::RST_STREAM, 0, 1, &[0; 3])), "FRAME_SIZE_ERROR"),
        (raw(kind::SETTINGS, 0, 1, b""), "PROTOCOL_ERROR"),
        (raw(kind::SETTINGS, 0, 0, &[0; 5]), "FRAME_SIZE_ERROR"),
        (raw(kind::SETTINGS, flag::ACK, 0, &[0; 6]), "FRAME_SIZE_ERROR"),
        (raw(kind::SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 2]), "PROTOCOL_ERROR"),
        (raw(kind::SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0]), "FLOW_CONTROL_ERROR"),
        (raw(kind::SETTINGS, 0, 0, &[0, 5, 0, 0, 0x3f, 0xff]), "PROTOCOL_ERROR"),
        (raw(kind::SETTINGS, 0, 0, &[0, 5, 1, 0, 0, 0]), "PROTOCOL_ERROR"),
        (raw(kind::SETTINGS, 0, 0, &[0, 8, 0, 0, 0, 2]), "PROTOCOL_ERROR"),
        (raw(kind::SETTINGS, 0, 0, &[0, 8, 0, 0, 0, 1, 0, 8, 0, 0, 0, 0]), "PROTOCOL_ERROR"),
        (
            [&open[..], &update(1, 0x7fff_0000), &raw(kind::SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0, 0])]
                .concat(),
            "FLOW_CONTROL_ERROR",
        ),
        (raw(kind::PUSH_PROMISE, flag::END_HEADERS, 1, &[0; 4]), "PROTOCOL_ERROR"),
        (raw(kind::PING, 0, 0, &[0; 7]), "FRAME_SIZE_ERROR"),
        (raw(kind::PING, 0, 1, &[0; 8]), "PROTOCOL_ERROR"),
        (raw(kind::GOAWAY, 0, 1, &[0; 8]), "PROTOCOL_ERROR"),
        (raw(kind::GOAWAY, 0, 0, &[0; 7]), "FRAME_SIZE_ERROR"),
        (update(0, 0), "PROTOCOL_ERROR"),
        (update(0, 0x7fff_ffff), "FLOW_CONTROL_ERROR"),
        (update(1, 1), "PROTOCOL_ERROR"),
        (raw(kind::WINDOW_UPDATE, 0, 0, &[0; 5]), "FRAME_SIZE_ERROR"),
        (raw(kind::DATA, 0, 1, &[0; 16_385]), "FRAME_SIZE_ERROR"),
        (raw(0x77, 0, 0, &[0; 16_385]), "FRAME_SIZE_ERROR"),
    ] {
        assert_eq!(connection_error(&bytes), Some(want), "{:?}", &bytes[..bytes.len().min(40)]);
    }
    // The first frame is SETTINGS, behind the preface.
    for beginning in [&b"PRI * HTTP/2.0\r\n\r\nXX"[..], b"GET / HTTP/1.1\r\n"] {
        let mut server = Connection::<u32>::new(Role::Server, config());
        assert!(server.receive(beginning, NOW, &mut Log::default()).is_err());
    }
    for first in [raw(kind::PING, 0, 0, &[0; 8]), raw(kind::SETTINGS, flag::ACK, 0, b"")] {
        let mut server = Connection::<u32>::new(Role::Server, config());
        assert!(server.receive(&[PREFACE, &first].concat(), NOW, &mut Log::default()).is_err());
    }
}

/// The code by which a server resets stream 1, and what its user heard last.
fn stream_error(bytes: &[u8]) -> (String, String) {
    let (mut server, mut log) = server();
    assert_eq!(server.receive(bytes, NOW, &mut log), Ok(()));
    let frames = sent(&mut server, &mut log);
    let resets: Vec<_> = frames.iter().filter(|frame| frame.0 == kind::RST_STREAM && frame.2 == 1).collect();
    let [reset] = resets.as_slice() else { panic!("{frames:?}") };
    let code = ErrorCode(frame::number(&reset.3).expect("four bytes"));
    // The connection goes on.
    assert_eq!(server.receive(&headers(9, true, &GET), NOW, &mut log), Ok(()));
    let mut heard = log.take();
    assert_eq!(heard.pop().as_deref(), Some("9 request GET a.example/ Empty end"));
    (code.name().to_owned(), heard.pop().unwrap_or_default())
}

#[test]
fn errors_that_end_a_stream() {
    let open = headers(1, false, &POST);
    let announced = headers(1, false, &[&POST[..], &[("content-length", "3")]].concat());
    let whole = headers(1, true, &GET);
    let itself = |stream: u32| [&stream.to_be_bytes()[..], &[0]].concat();
    let depends =
        raw(kind::HEADERS, flag::END_HEADERS | flag::PRIORITY, 1, &[itself(1), block(&GET)].concat());
    for (bytes, want) in [
        ([&whole[..], &data(1, false, b"x")].concat(), "STREAM_CLOSED"),
        ([&whole[..], &headers(1, true, &[("x", "y")])].concat(), "STREAM_CLOSED"),
        ([&open[..], &reset(1), &data(1, false, b"x")].concat(), "STREAM_CLOSED"),
        ([&open[..], &reset(1), &headers(1, true, &[("x", "y")])].concat(), "STREAM_CLOSED"),
        ([&announced[..], &data(1, false, b"abcd")].concat(), "PROTOCOL_ERROR"),
        ([&announced[..], &data(1, true, b"ab")].concat(), "PROTOCOL_ERROR"),
        ([&announced[..], &data(1, false, b"ab"), &data(1, true, b"")].concat(), "PROTOCOL_ERROR"),
        ([&announced[..], &headers(1, true, &[("x", "y")])].concat(), "PROTOCOL_ERROR"),
        ([&open[..], &update(1, 0)].concat(), "PROTOCOL_ERROR"),
        ([&open[..], &update(1, 0x7fff_ffff)].concat(), "FLOW_CONTROL_ERROR"),
        ([&open[..], &raw(kind::PRIORITY, 0, 1, &[0; 6])].concat(), "FRAME_SIZE_ERROR"),
        ([&open[..], &raw(kind::PRIORITY, 0, 1, &itself(1))].concat(), "PROTOCOL_ERROR"),
        (depends, "PROTOCOL_ERROR"),
    ] {
        assert_eq!(stream_error(&bytes).0, want, "{bytes:?}");
    }
}

#[test]
fn what_is_allowed_is_no_error() {
    let (mut server, mut log) = server();
    let bytes = [
        raw(kind::PRIORITY, 0, 7, &[0; 5]),
        raw(0x77, 0xff, 3, b"unknown"),
        raw(kind::SETTINGS, 0, 0, &[0, 0x77, 0, 0, 0, 1]),
        raw(kind::GOAWAY, 0, 0, &[0; 20]),
        headers(1, false, &POST),
        raw(kind::DATA, flag::PADDED, 1, b"\x02ab\0\0"),
        raw(kind::DATA, flag::PADDED | flag::END_STREAM, 1, b"\0c"),
        // A stream that has ended may still be given credit or be reset.
        update(1, 5),
        reset(1),
        raw(kind::PRIORITY, 0, 1, &[0; 5]),
    ];
    server.receive(&bytes.concat(), NOW, &mut log).expect("good");
    assert_eq!(
        log.take(),
        ["1 request POST a.example/ Streamed", "1 data abc", "1 end", "1 failed Reset(CANCEL(8))"]
    );
}

#[test]
fn streams_beyond_the_limit_are_refused_and_the_table_stays_in_step() {
    let (mut server, mut log) = server();
    for stream in 0..12 {
        // Each block puts a line into the table, and refers to the one before.
        let mut lines = block(&GET);
        lines.extend_from_slice(if stream == 0 { &[0x40, 1, b'n', 1, b'v'] } else { &[0xbe] });
        let bytes = raw(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 2 * stream + 1, &lines);
        server.receive(&bytes, NOW, &mut log).expect("good");
    }
    assert_eq!((log.take().len(), server.streams()), (10, 10));
    let refused: Vec<u32> = sent(&mut server, &mut log)
        .iter()
        .filter(|frame| frame.0 == kind::RST_STREAM && frame.3 == [0, 0, 0, 7])
        .map(|frame| frame.2)
        .collect();
    assert_eq!(refused, [21, 23]);
    // A stream that the client has reset counts until its user lets it go (CVE-2023-44487).
    server.receive(&[reset(1), headers(25, true, &GET)].concat(), NOW, &mut log).expect("good");
    assert_eq!(log.take(), ["1 failed Reset(CANCEL(8))"]);
    server.release(log.keys[0], 0, NOW);
    server.receive(&headers(27, true, &GET), NOW, &mut log).expect("good");
    assert_eq!(log.take(), ["27 request GET a.example/ Empty end"]);
}

#[test]
fn what_opens_too_many_streams_at_once_is_taken_in_parts() {
    let (mut server, mut log) = server();
    let bytes: Vec<u8> =
        (0..6).flat_map(|nth| [headers(2 * nth + 1, true, &GET), reset(2 * nth + 1)].concat()).collect();
    let both = bytes.len() / 6;
    // What takes the second stream back comes with it.
    assert_eq!(server.receive_until(2, &bytes, NOW, &mut log).expect("good"), 2 * both);
    assert_eq!((server.streams_opened(), log.take().len()), (2, 4));
    assert_eq!(server.receive_until(2, &bytes[2 * both..], NOW, &mut log).expect("good"), 0);
    // Cut by the end of the bytes, it takes them all, and the frame that has begun goes on.
    let (part, rest) = bytes[2 * both..].split_at(both + 3);
    assert_eq!(server.receive_until(3, part, NOW, &mut log).expect("good"), part.len());
    assert_eq!(server.receive_until(3, rest, NOW, &mut log).expect("good"), both - 3);
    assert_eq!((server.streams_opened(), log.take().len()), (4, 4));
    assert_eq!(server.receive_until(9, &rest[both - 3..], NOW, &mut log).expect("good"), 2 * both);
    assert_eq!((server.streams_opened(), log.take().len()), (6, 4));
}

#[test]
fn what_a_peer_provokes_is_paid_from_its_budget() {
    // Each frame makes us reset the stream (CVE-2025-8671).
    let (mut server, mut log) = server();
    let fault = (0..1000).find_map(|nth| {
        let stream = 2 * nth + 1;
        let bytes = [headers(stream, false, &POST), update(stream, 0)].concat();
        let fault = server.receive(&bytes, NOW, &mut log).err();
        log.keys.drain(..).for_each(|key| server.release(key, 0, NOW));
        fault
    });
    assert_eq!(fault.and_then(|fault| fault.flood), Some(Flood::Resets));
    // What was on its way when we reset is dropped, and costs nothing.
    let (mut server, mut log) = super::server();
    server.receive(&headers(1, false, &POST), NOW, &mut log).expect("good");
    server.release(log.keys[0], 0, NOW);
    for _ in 0..1000 {
        server.receive(&[data(1, false, &[0; 100]), update(1, 0)].concat(), NOW, &mut log).expect("quiet");
    }
    let kinds: Vec<u8> = sent(&mut server, &mut log).iter().map(|frame| frame.0).collect();
    assert_eq!(kinds, [kind::RST_STREAM, kind::WINDOW_UPDATE], "its credit comes back to the connection");
    // For ten seconds, and not by the user's wish to save memory.
    server.release_memory(NOW + Duration::from_secs(9));
    server.receive(&data(1, false, b"x"), NOW, &mut log).expect("quiet");
    assert!(server.output().is_empty());
    server.release_memory(NOW + Duration::from_secs(10));
    server.receive(&data(1, false, b"x"), NOW, &mut log).expect("a stream error");
    assert_eq!(sent(&mut server, &mut log)[0].3, [0, 0, 0, 5], "STREAM_CLOSED");
}

#[test]
fn a_header_block_has_an_end() {
    // Within the budget of CONTINUATIONs, and beyond the bound of a peer without budgets.
    let mut client = Connection::<u32>::new(Role::Client, Config { budgets: None, ..config() });
    let mut log = Log::default();
    let mut bytes = raw(kind::SETTINGS, 0, 0, b"");
    bytes.extend(raw(kind::HEADERS, 0, 1, &[0x88; 16_000]));
    client.receive(&bytes, NOW, &mut log).expect("more may come");
    let fault = (0..1000)
        .find_map(|_| client.receive(&raw(kind::CONTINUATION, 0, 1, &[0x88; 16_000]), NOW, &mut log).err());
    assert_eq!(fault.map(|fault| fault.code), Some(ErrorCode::ENHANCE_YOUR_CALM));
    let (mut server, mut log) = server();
    let mut bytes = raw(kind::HEADERS, 0, 1, b"");
    bytes.extend(raw(kind::CONTINUATION, 0, 1, b"").repeat(17));
    let fault = server.receive(&bytes, NOW, &mut log).expect_err("too many");
    assert_eq!(fault.flood, Some(Flood::Continuations));
}

#[test]
fn a_peer_keeps_to_its_windows() {
    for (stream_bytes, connection_bytes, want) in
        [(70_000, 1 << 30, "1 failed Broken"), (1 << 30, 70_000, "FLOW_CONTROL_ERROR")]
    {
        let config = Config {
            stream_window_bytes: stream_bytes,
            connection_window_bytes: connection_bytes,
            ..config()
        };
        let (mut server, mut log) = (Connection::<u32>::new(Role::Server, config), Log::default());
        let mut bytes = [PREFACE, &raw(kind::SETTINGS, 0, 0, b""), &headers(1, false, &POST)].concat();
        // 65,600 bytes fit, 82,000 do not.
        (0..4).for_each(|_| bytes.extend(data(1, false, &[b'x'; 16_384])));
        server.receive(&bytes, NOW, &mut log).expect("within the windows");
        log.take();
        let result = server.receive(&data(1, false, &[b'x'; 16_384]), NOW, &mut log);
        let got = result.map_or_else(|fault| fault.code.name().to_owned(), |()| log.take().join("; "));
        assert_eq!(got, want);
    }
}
