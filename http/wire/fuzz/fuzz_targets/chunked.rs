//! Bodies: the same data, trailers and end however the bytes are cut, the same as a plain decoder finds, and
//! what is written is read back.
//! Input: piece size, then a chunked body and what follows it.

#![no_main]

use http_wire::h1::{
    BodyDecoder, BodyError, CHUNK_END, Decoded, EndOfInput, HeadLimits, write_chunk_header, write_last_chunk,
};
use http_wire::head::BodyLength;
use libfuzzer_sys::fuzz_target;

const TIGHT: HeadLimits = HeadLimits { request_line_bytes_max: 64, head_bytes_max: 256, fields_max: 4 };
/// Trailers are written with a blank that they may not have had.
const WIDE: HeadLimits = HeadLimits { request_line_bytes_max: 64, head_bytes_max: 512, fields_max: 4 };

type Trailers = Vec<(Vec<u8>, Vec<u8>)>;

#[derive(Debug, PartialEq, Eq)]
struct Body {
    data: Vec<u8>,
    /// Bytes of the input that belong to the message; None: it has not ended.
    ended_at: Option<usize>,
    trailers: Trailers,
}

fuzz_target!(|data: &[u8]| {
    let Some((&size, bytes)) = data.split_first() else {
        return;
    };
    let whole = decode(&[bytes], TIGHT);
    let pieces: Vec<&[u8]> = bytes.chunks(usize::from(size) + 1).collect();
    assert_eq!(decode(&pieces, TIGHT), whole, "pieces of {}", usize::from(size) + 1);
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(decode(&single, TIGHT), whole, "single bytes");
    let Ok(body) = whole else {
        return;
    };
    let Some(ended_at) = body.ended_at else {
        return;
    };
    assert_eq!(plain_decode(&bytes[..ended_at]).as_ref(), Some(&body.data));

    let mut decoder = BodyDecoder::new(BodyLength::Streamed, TIGHT);
    let mut ignored = Vec::new();
    feed(&mut decoder, bytes.to_vec(), &mut ignored).expect("it was good before");
    let mut written = Vec::new();
    for part in body.data.chunks(usize::from(size) + 1) {
        write_chunk_header(&mut written, part.len());
        written.extend_from_slice(part);
        written.extend_from_slice(CHUNK_END);
    }
    write_last_chunk(&mut written, decoder.trailers());
    assert_eq!(decode(&[&written], WIDE), Ok(Body { ended_at: Some(written.len()), ..body }));
});

fn decode(pieces: &[&[u8]], limits: HeadLimits) -> Result<Body, BodyError> {
    let mut decoder = BodyDecoder::new(BodyLength::Streamed, limits);
    let (mut data, mut unread, mut given, mut ended_at) = (Vec::new(), Vec::new(), 0, None);
    for piece in pieces {
        given += piece.len();
        unread.extend_from_slice(piece);
        unread = feed(&mut decoder, unread, &mut data)?;
        if decoder.is_done() {
            ended_at.get_or_insert(given - unread.len());
        }
    }
    let expected = if ended_at.is_some() { EndOfInput::Complete } else { EndOfInput::Truncated };
    assert_eq!(decoder.on_eof(), expected);
    let trailers = decoder.trailers().into_iter().flat_map(|fields| fields.iter());
    let trailers = trailers.map(|field| (field.name.to_vec(), field.value.to_vec())).collect();
    Ok(Body { data, ended_at, trailers })
}

/// Decodes all that can be, and returns the rest.
fn feed(decoder: &mut BodyDecoder, mut unread: Vec<u8>, data: &mut Vec<u8>) -> Result<Vec<u8>, BodyError> {
    loop {
        match decoder.decode(&unread)? {
            Decoded::Data { skip, len } => {
                assert!(len > 0);
                data.extend_from_slice(&unread[skip..skip + len]);
                unread.drain(..skip + len);
            }
            Decoded::NeedMore { skip } | Decoded::End { skip } => {
                unread.drain(..skip);
                return Ok(unread);
            }
        }
    }
}

/// RFC 9112 §7.1 in the plainest way, for a body known to be good: the data, if it ends where `bytes` do.
fn plain_decode(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut data = Vec::new();
    let mut rest = bytes;
    loop {
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let line = std::str::from_utf8(rest[..end].split(|&b| b == b';').next()?).ok()?;
        let size = usize::from_str_radix(line.trim_end_matches([' ', '\t']), 16).ok()?;
        rest = &rest[end + 2..];
        if size == 0 {
            break;
        }
        data.extend_from_slice(rest.get(..size)?);
        rest = rest[size..].strip_prefix(b"\r\n")?;
    }
    let is_end_right = rest == b"\r\n" || rest.ends_with(b"\r\n\r\n");
    is_end_right.then_some(data)
}
