//! Bodies by family; the same bytes in every cut give the same data.

use super::super::testing::Random;
use super::super::{CHUNK_LINE_BYTES_MAX, CHUNK_OVERHEAD_BYTES_MAX};
use super::*;

const LIMITS: HeadLimits = HeadLimits { request_line_bytes_max: 100, head_bytes_max: 400, fields_max: 5 };

/// What came out of a body.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    data: Vec<u8>,
    /// Bytes of the input that the message took, when it ended.
    taken_bytes: Option<usize>,
    trailers: Vec<(String, String)>,
    at_eof: EndOfInput,
}

/// Feeds `parts` one after the other, as reads would bring them, keeping what the decoder leaves.
fn run<'a>(length: BodyLength, parts: impl IntoIterator<Item = &'a [u8]>) -> Result<Outcome, BodyError> {
    let mut decoder = BodyDecoder::new(length, LIMITS);
    let (mut unread, mut data, mut taken_bytes, mut ended) = (Vec::new(), Vec::new(), 0, false);
    for part in parts {
        unread.extend_from_slice(part);
        while !ended {
            let decoded = decoder.decode(&unread)?;
            let (skip, len) = match decoded {
                Decoded::Data { skip, len } => (skip, len),
                Decoded::NeedMore { skip } | Decoded::End { skip } => (skip, 0),
            };
            data.extend_from_slice(&unread[skip..skip + len]);
            unread.drain(..skip + len);
            taken_bytes += skip + len;
            match decoded {
                Decoded::Data { len, .. } => assert!(len > 0, "data without bytes"),
                Decoded::NeedMore { .. } => {
                    assert!(unread.is_empty(), "asks for more and leaves bytes");
                    break;
                }
                Decoded::End { .. } => ended = true,
            }
        }
    }
    assert!(!ended || decoder.is_done());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let trailers = decoder
        .trailers()
        .into_iter()
        .flat_map(|t| t.iter().map(|f| (text(f.name), text(f.value))).collect::<Vec<_>>());
    Ok(Outcome {
        data,
        taken_bytes: ended.then_some(taken_bytes),
        trailers: trailers.collect(),
        at_eof: decoder.on_eof(),
    })
}

fn chunked(text: &str) -> Result<Outcome, BodyError> {
    run(BodyLength::Streamed, [text.as_bytes()])
}

/// Whole, and byte by byte.
fn refused_with(bodies: &[&str], want: BodyError) {
    for body in bodies {
        assert_eq!(chunked(body), Err(want), "{body:?}");
        assert_eq!(run(BodyLength::Streamed, body.as_bytes().chunks(1)), Err(want), "{body:?}");
    }
}

#[test]
fn c04_every_bare_line_end_is_refused() {
    refused_with(
        &[
            "5\nhello\r\n0\r\n\r\n",
            "5;x\nhello\r\n0\r\n\r\n",
            "5\r\nhello\n0\r\n\r\n",
            "0\n\n",
            "5;a=\n45\r\n",
            "5;a=\"\n\"\r\n",
            "5;a=\"\\\n",
            "5; \n",
        ],
        BodyError::BareLf,
    );
    refused_with(&["0\r\n\n", "0\r\nX: y\n\r\n", "0\r\nX: y\r\n\n"], BodyError::BareLf);
    refused_with(
        &[
            "5\rhello",
            "5\r\r\nhello",
            "5;x\rhello",
            "5\r\nhello\rx",
            "5\r\nhello\r\r\n",
            "0\r\n\rX",
            "0\r\nX: y\rz\r\n\r\n",
        ],
        BodyError::BareCr,
    );
}

#[test]
fn sizes_are_hexadecimal_digits_and_fit() {
    refused_with(
        &[
            "\r\nhello",
            "+5\r\nhello",
            "-5\r\nhello",
            "0x5\r\nhello",
            "5_0\r\n",
            "g\r\n",
            " 5\r\nhello",
            "5 \r\nhello",
            "5\t\r\n",
            "5 ;x\r\n",
            ";x\r\n",
            "3 \n",
            "5\u{a0}\r\n",
            "10000000000000000\r\n",
            "00000000000000005\r\n",
            "8000000000000000\r\n",
            "ffffffffffffffff\r\n",
        ],
        BodyError::BadChunkSize,
    );
    for (body, data) in [
        ("5\r\nhello\r\n0\r\n\r\n", "hello"),
        ("A\r\n0123456789\r\n000\r\n\r\n", "0123456789"),
        ("0000000000000001\r\nx\r\n1\r\ny\r\n0000\r\n\r\n", "xy"),
        ("1a\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\n\r\n", "abcdefghijklmnopqrstuvwxyz"),
        ("0\r\n\r\n", ""),
    ] {
        let outcome = chunked(&format!("{body}NEXT")).expect(body);
        assert_eq!(
            (outcome.data, outcome.taken_bytes),
            (data.as_bytes().to_vec(), Some(body.len())),
            "{body:?}"
        );
    }
    // The largest size that fits is a size; nobody will send that much.
    assert_eq!(chunked("7fffffffffffffff\r\nabc").map(|o| o.data), Ok(b"abc".to_vec()));
    refused_with(&["5\r\nhelloX\r\n", "5\r\nhello0\r\n\r\n", "1\r\nab\r\n"], BodyError::BadChunkEnd);
}

#[test]
fn extensions_are_checked_and_dropped() {
    for extension in [
        ";a",
        ";a=b",
        ";a=\"b\"",
        ";a=\"\"",
        ";a=\"b \\\" \\\\ ;\t\u{e9}\"",
        "; a ; b = c",
        ";a=b;c=\"d\";e",
        ";a\t=\tb",
        ";a=\"b\" ;c",
        ";chunk-signature=0123abc",
    ] {
        let outcome = chunked(&format!("5{extension}\r\nhello\r\n0{extension}\r\n\r\n"));
        assert_eq!(
            outcome.map(|o| (o.data, o.at_eof)),
            Ok((b"hello".to_vec(), EndOfInput::Complete)),
            "{extension}"
        );
    }
    let bad = [
        ";",
        "; ",
        ";;",
        ";a;",
        ";=b",
        ";a=",
        ";a=;b",
        ";a=\"b",
        ";a=\"b\"c",
        ";a b",
        ";a=b c",
        ";a ",
        ";a=b ",
        ";a=\"b\" ",
        ";a=\"\0\"",
        ";a=\"\x7f\"",
        ";(",
        ";a=\u{e9}",
    ];
    for extension in bad {
        let got = chunked(&format!("5{extension}\r\nhello\r\n0\r\n\r\n"));
        assert_eq!(got, Err(BodyError::BadChunkExtension), "{extension:?}");
    }
}

#[test]
fn framing_is_bounded_by_line_and_by_data() {
    let line = |bytes: u32| {
        format!("1;{}\r\nx\r\n0\r\n\r\n", "a".repeat(usize::try_from(bytes).expect("small") - 2))
    };
    assert!(chunked(&line(CHUNK_LINE_BYTES_MAX)).is_ok());
    assert_eq!(chunked(&line(CHUNK_LINE_BYTES_MAX + 1)), Err(BodyError::ChunkLineTooLong));
    // CVE-2023-39326: a long extension for each byte of data.
    let line_bytes = u64::from(CHUNK_LINE_BYTES_MAX);
    let flood = line(CHUNK_LINE_BYTES_MAX).replace("0\r\n\r\n", "").repeat(100);
    let outcome = run(BodyLength::Streamed, [flood.as_bytes()]);
    assert_eq!(outcome, Err(BodyError::ChunkOverhead));
    let harmless_chunks = usize::try_from(CHUNK_OVERHEAD_BYTES_MAX / (line_bytes - 18)).expect("small");
    let one = flood.len() / 100;
    assert!(run(BodyLength::Streamed, [&flood.as_bytes()[..one * harmless_chunks]]).is_ok());
    // Small chunks without extensions, and extensions that are paid for by data, may go on for ever.
    let small = "1\r\nx\r\n".repeat(50_000) + "0\r\n\r\n";
    assert_eq!(chunked(&small).map(|o| o.data.len()), Ok(50_000));
    let signed = format!("400;chunk-signature={}\r\n{}\r\n", "f".repeat(64), "x".repeat(1024)).repeat(200)
        + "0\r\n\r\n";
    assert_eq!(chunked(&signed).map(|o| o.data.len()), Ok(200 * 1024));
}

#[test]
fn c12_trailers_are_kept_unless_they_frame_or_route() {
    let outcome = chunked(
        "0\r\nX-T: 1\r\nContent-Length: 0\r\nHOST: evil\r\ntransfer-encoding:chunked\r\nx-sum:\t2 \r\nAuthorization: x\r\n\r\n",
    );
    assert_eq!(outcome, Err(BodyError::TrailersTooLarge), "six fields, five allowed");
    for (section, want) in [
        ("X-T: 1\r\n", vec![("x-t", "1")]),
        ("X-T: 1\r\nx-sum:\t2 \r\n", vec![("x-t", "1"), ("x-sum", "2")]),
        ("Content-Length: 0\r\nX-T: 1\r\n", vec![("x-t", "1")]),
        ("Transfer-Encoding: chunked\r\nHost: evil\r\nAuthorization: x\r\nX-Forwarded-For: 1\r\n", vec![]),
        ("Grpc-Status: 0\r\n", vec![("grpc-status", "0")]),
        ("", vec![]),
    ] {
        let body = format!("3\r\nabc\r\n0\r\n{section}\r\n");
        let outcome = chunked(&format!("{body}GET / HTTP/1.1\r\n")).expect(section);
        let got: Vec<_> = outcome.trailers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!((got, outcome.taken_bytes), (want, Some(body.len())), "{section:?}");
    }
    refused_with(
        &[
            "0\r\nX\r\n\r\n",
            "0\r\n: v\r\n\r\n",
            "0\r\nX : v\r\n\r\n",
            "0\r\nX: 1\r\n fold\r\n\r\n",
            "0\r\n X: 1\r\n\r\n",
            "0\r\nX: \0\r\n\r\n",
            "0\r\nGET / HTTP/1.1\r\n\r\n",
        ],
        BodyError::BadTrailer,
    );
    let long = format!("0\r\nX: {}", "v".repeat(LIMITS.head_bytes_max));
    assert_eq!(chunked(&long), Err(BodyError::TrailersTooLarge));
    assert_eq!(run(BodyLength::Streamed, long.as_bytes().chunks(7)), Err(BodyError::TrailersTooLarge));
}

#[test]
fn c25_an_end_of_input_is_clean_only_where_the_message_ends() {
    use EndOfInput::{Complete, Truncated};
    for (length, body, want) in [
        (BodyLength::Empty, "", Complete),
        (BodyLength::Exact(0), "", Complete),
        (BodyLength::Exact(3), "abc", Complete),
        (BodyLength::Exact(10), "abc", Truncated),
        (BodyLength::Exact(10), "", Truncated),
        (BodyLength::UntilClose, "", Complete),
        (BodyLength::UntilClose, "abc", Complete),
        (BodyLength::Streamed, "", Truncated),
        (BodyLength::Streamed, "3\r\nab", Truncated),
        (BodyLength::Streamed, "3\r\nabc\r\n", Truncated),
        (BodyLength::Streamed, "3\r\nabc\r\n0\r\n", Truncated),
        (BodyLength::Streamed, "3\r\nabc\r\n0\r\nX: y\r\n", Truncated),
        (BodyLength::Streamed, "3\r\nabc\r\n0\r\n\r", Truncated),
        (BodyLength::Streamed, "3\r\nabc\r\n0\r\n\r\n", Complete),
        (BodyLength::Streamed, "0\r\nX: y\r\n\r\n", Complete),
    ] {
        let outcome = run(length, [body.as_bytes()]).expect(body);
        assert_eq!(outcome.at_eof, want, "{length:?} {body:?}");
    }
}

#[test]
fn lengths_take_their_bytes_and_no_more() {
    for (length, input, data, taken_bytes) in [
        (BodyLength::Empty, "NEXT", "", Some(0)),
        (BodyLength::Exact(0), "NEXT", "", Some(0)),
        (BodyLength::Exact(3), "abcNEXT", "abc", Some(3)),
        (BodyLength::Exact(9), "abc", "abc", None),
        (BodyLength::UntilClose, "abcNEXT", "abcNEXT", None),
    ] {
        let outcome = run(length, [input.as_bytes()]).expect(input);
        assert_eq!(
            (outcome.data, outcome.taken_bytes),
            (data.as_bytes().to_vec(), taken_bytes),
            "{length:?}"
        );
    }
}

#[test]
fn after_the_end_there_is_only_the_end() {
    let mut decoder = BodyDecoder::new(BodyLength::Exact(1), LIMITS);
    assert_eq!(decoder.decode(b"xGET"), Ok(Decoded::Data { skip: 0, len: 1 }));
    for buf in [&b"GET"[..], b"", b"\0"] {
        assert_eq!(decoder.decode(buf), Ok(Decoded::End { skip: 0 }));
    }
}

/// A chunked body made of random chunks, extensions and trailers, and what it holds.
fn random_body(random: &mut Random) -> (Vec<u8>, Vec<u8>) {
    let (mut wire, mut data) = (Vec::new(), Vec::new());
    for _ in 0..random.below(6) {
        let longest = [3, 20, 300][random.below(3)];
        let len = 1 + random.below(longest);
        let extension = ["", ";a", ";a=b", ";a=\"x;\\\"y\"", "; n = v"][random.below(5)];
        let zeros = "0".repeat(random.below(3));
        let size = if random.below(2) == 0 { format!("{len:x}") } else { format!("{len:X}") };
        wire.extend_from_slice(format!("{zeros}{size}{extension}\r\n").as_bytes());
        // Data that looks like framing.
        let chunk: Vec<u8> = (0..len).map(|_| b"\r\n05;x"[random.below(6)]).collect();
        wire.extend_from_slice(&chunk);
        wire.extend_from_slice(b"\r\n");
        data.extend_from_slice(&chunk);
    }
    wire.extend_from_slice(b"0\r\n");
    for index in 0..random.below(4) {
        wire.extend_from_slice(format!("X-{index}: {}\r\n", "t".repeat(random.below(40))).as_bytes());
    }
    wire.extend_from_slice(b"\r\n");
    (wire, data)
}

#[test]
fn every_cut_gives_the_same_body() {
    let mut random = Random::new(0x00c0_ffee);
    for _ in 0..400 {
        let (wire, data) = random_body(&mut random);
        let mut input = wire.clone();
        input.extend_from_slice(b"NEXT");
        let whole = run(BodyLength::Streamed, [&input[..]]).unwrap_or_else(|e| panic!("{e} ({random:?})"));
        assert_eq!((&whole.data, whole.taken_bytes), (&data, Some(wire.len())), "{random:?}");
        // In two at every place, and in many at random ones.
        for cut in 0..input.len() {
            let (a, b) = input.split_at(cut);
            assert_eq!(run(BodyLength::Streamed, [a, b]).as_ref(), Ok(&whole), "cut at {cut} ({random:?})");
        }
        for _ in 0..10 {
            let mut parts = Vec::new();
            let mut rest = &input[..];
            while !rest.is_empty() {
                let (part, tail) = rest.split_at(1 + random.below(rest.len().min(9)));
                parts.push(part);
                rest = tail;
            }
            assert_eq!(run(BodyLength::Streamed, parts).as_ref(), Ok(&whole), "{random:?}");
        }
    }
}

#[test]
fn damaged_bodies_are_judged_alike_in_every_cut() {
    let mut random = Random::new(0xbad_b0d5);
    for _ in 0..3000 {
        let (mut wire, _) = random_body(&mut random);
        let at = random.below(wire.len());
        match random.below(3) {
            0 => wire[at] = b"\r\n\0;g 0"[random.below(7)],
            1 => wire.insert(at, b"\r\n\0;g 0"[random.below(7)]),
            _ => drop(wire.remove(at)),
        }
        let whole = run(BodyLength::Streamed, [&wire[..]]);
        assert_eq!(
            run(BodyLength::Streamed, wire.chunks(1)),
            whole,
            "{:?} ({random:?})",
            String::from_utf8_lossy(&wire)
        );
    }
}
