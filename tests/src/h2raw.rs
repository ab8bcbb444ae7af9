//! HTTP/2 frame by frame (RFC 9113), for peers that misbehave: a client or an origin that sends any frame in any
//! order. Field blocks are written as plain literals, so that a test may put any byte into them; they are read
//! with a decoder that is not the product's.

use std::io::{Read, Write};

use crate::message::{FieldLines, Response};

/// The client's connection preface, RFC 9113 §3.4.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Frame types, RFC 9113 §6.
pub mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// Frame flags, RFC 9113 §6.
pub mod flag {
    pub const END_STREAM: u8 = 1;
    pub const ACK: u8 = 1;
    pub const END_HEADERS: u8 = 4;
}

/// Error codes, RFC 9113 §7.
pub mod code {
    pub const NO_ERROR: u32 = 0;
    pub const PROTOCOL_ERROR: u32 = 1;
    pub const INTERNAL_ERROR: u32 = 2;
    pub const FLOW_CONTROL_ERROR: u32 = 3;
    pub const STREAM_CLOSED: u32 = 5;
    pub const FRAME_SIZE_ERROR: u32 = 6;
    pub const REFUSED_STREAM: u32 = 7;
    pub const CANCEL: u32 = 8;
    pub const COMPRESSION_ERROR: u32 = 9;
    pub const ENHANCE_YOUR_CALM: u32 = 11;
}

/// Settings, RFC 9113 §6.5.2.
pub mod setting {
    pub const ENABLE_PUSH: u16 = 2;
    pub const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub const INITIAL_WINDOW_SIZE: u16 = 4;
    pub const MAX_FRAME_SIZE: u16 = 5;
    pub const ENABLE_CONNECT_PROTOCOL: u16 = 8;
}

/// One frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    #[must_use]
    pub fn new(kind: u8, flags: u8, stream: u32, payload: impl Into<Vec<u8>>) -> Self {
        Self { kind, flags, stream, payload: payload.into() }
    }

    #[must_use]
    pub fn settings(pairs: &[(u16, u32)]) -> Self {
        let mut payload = Vec::new();
        for (name, value) in pairs {
            payload.extend_from_slice(&name.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        }
        Self::new(kind::SETTINGS, 0, 0, payload)
    }

    /// HEADERS with `END_HEADERS`.
    #[must_use]
    pub fn headers(stream: u32, end_stream: bool, fields: &[(&str, &str)]) -> Self {
        let flags = flag::END_HEADERS | if end_stream { flag::END_STREAM } else { 0 };
        Self::new(kind::HEADERS, flags, stream, field_block(fields))
    }

    #[must_use]
    pub fn data(stream: u32, end_stream: bool, payload: impl Into<Vec<u8>>) -> Self {
        Self::new(kind::DATA, if end_stream { flag::END_STREAM } else { 0 }, stream, payload)
    }

    #[must_use]
    pub fn rst(stream: u32, code: u32) -> Self {
        Self::new(kind::RST_STREAM, 0, stream, code.to_be_bytes())
    }

    #[must_use]
    pub fn ping(payload: [u8; 8]) -> Self {
        Self::new(kind::PING, 0, 0, payload)
    }

    #[must_use]
    pub fn goaway(last_stream: u32, code: u32) -> Self {
        let mut payload = last_stream.to_be_bytes().to_vec();
        payload.extend_from_slice(&code.to_be_bytes());
        Self::new(kind::GOAWAY, 0, 0, payload)
    }

    #[must_use]
    pub fn window_update(stream: u32, increment: u32) -> Self {
        Self::new(kind::WINDOW_UPDATE, 0, stream, increment.to_be_bytes())
    }

    /// The frame on the wire.
    ///
    /// # Panics
    /// When the payload is longer than 2^24-1 bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).expect("a payload below 16 MiB");
        let mut bytes = length.to_be_bytes()[1..].to_vec();
        bytes.push(self.kind);
        bytes.push(self.flags);
        bytes.extend_from_slice(&self.stream.to_be_bytes());
        bytes.extend_from_slice(&self.payload);
        bytes
    }

    /// The error code of a `RST_STREAM` or GOAWAY.
    #[must_use]
    pub fn error_code(&self) -> Option<u32> {
        let at = match self.kind {
            kind::RST_STREAM => 0,
            kind::GOAWAY => 4,
            _ => return None,
        };
        Some(u32::from_be_bytes(self.payload.get(at..at + 4)?.try_into().ok()?))
    }

    /// The last stream id of a GOAWAY.
    #[must_use]
    pub fn last_stream(&self) -> Option<u32> {
        let bytes = self.payload.get(..4).filter(|_| self.kind == kind::GOAWAY)?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?))
    }

    #[must_use]
    pub fn is(&self, kind: u8, stream: u32) -> bool {
        self.kind == kind && self.stream == stream
    }

    #[must_use]
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// A field block of plain literals without indexing (RFC 7541 §6.2.2): names and values as given, legal or not.
#[must_use]
pub fn field_block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            integer(text.len(), &mut block);
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// RFC 7541 §5.1 with a prefix of seven bits, the eighth (Huffman) zero.
fn integer(mut value: usize, into: &mut Vec<u8>) {
    let byte = |value: usize| u8::try_from(value).expect("seven bits");
    if value < 127 {
        into.push(byte(value));
        return;
    }
    into.push(127);
    value -= 127;
    while value >= 128 {
        into.push(byte(value % 128) | 128);
        value /= 128;
    }
    into.push(byte(value));
}

/// The usual four pseudo fields of a request.
#[must_use]
pub fn request_fields<'a>(method: &'a str, authority: &'a str, path: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![(":method", method), (":scheme", "http"), (":authority", authority), (":path", path)]
}

/// Why an exchange has no whole response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Early {
    /// `RST_STREAM` of the stream, or GOAWAY.
    Frame(Frame),
    /// The connection ended, or the read time limit passed.
    Closed,
    /// A field block that is no HPACK.
    Garbled(String),
}

impl Early {
    /// The error code of the frame, when it was one.
    #[must_use]
    pub fn code(&self) -> Option<u32> {
        match self {
            Self::Frame(frame) => frame.error_code(),
            Self::Closed | Self::Garbled(_) => None,
        }
    }
}

/// A connection at frame level, either side.
pub struct H2Conn<S> {
    stream: S,
    decoder: loona_hpack::Decoder<'static>,
    /// Answer SETTINGS and PING by themselves; on unless a test wants to be rude.
    pub polite: bool,
    /// Frames read so far that no caller has taken.
    unread: Vec<Frame>,
    /// The field block that is being read.
    block: Vec<u8>,
    /// Decoded field blocks that no caller has taken, by stream. Blocks change the decoder's table, so that each is
    /// decoded as it arrives, whoever waits for it (RFC 7541 §2.2).
    heads: Vec<(u32, Result<FieldLines, String>)>,
}

impl<S: Read + Write> H2Conn<S> {
    /// Wraps a stream on which nothing has been sent.
    #[must_use]
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            decoder: loona_hpack::Decoder::new(),
            polite: true,
            unread: Vec::new(),
            block: Vec::new(),
            heads: Vec::new(),
        }
    }

    /// Sends preface and settings as a client.
    ///
    /// # Panics
    /// When the peer is gone.
    #[must_use]
    #[track_caller]
    pub fn client(stream: S, settings: &[(u16, u32)]) -> Self {
        let mut connection = Self::new(stream);
        let mut bytes = PREFACE.to_vec();
        bytes.extend_from_slice(&Frame::settings(settings).encode());
        connection.write_bytes(&bytes).expect("the connection takes bytes");
        connection
    }

    /// Reads the preface and sends settings as a server. None when the peer closed or speaks something else.
    #[must_use]
    pub fn server(stream: S, settings: &[(u16, u32)]) -> Option<Self> {
        let mut connection = Self::new(stream);
        let mut preface = [0; PREFACE.len()];
        connection.stream.read_exact(&mut preface).ok()?;
        (preface == PREFACE).then_some(())?;
        connection.try_send(&Frame::settings(settings)).ok()?;
        Some(connection)
    }

    /// Sends one frame.
    ///
    /// # Panics
    /// When the peer is gone; see [`Self::try_send`].
    #[track_caller]
    pub fn send(&mut self, frame: &Frame) {
        self.try_send(frame).expect("the connection takes frames");
    }

    /// Sends one frame.
    ///
    /// # Errors
    /// When the peer is gone.
    pub fn try_send(&mut self, frame: &Frame) -> std::io::Result<()> {
        self.write_bytes(&frame.encode())
    }

    /// Sends bytes that need not be frames.
    ///
    /// # Errors
    /// When the peer is gone.
    pub fn write_bytes(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    /// The next frame from the wire. None at the end of the connection or when the read time limit is over.
    pub fn read(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
        let mut payload = vec![0; usize::try_from(length).ok()?];
        self.stream.read_exact(&mut payload).ok()?;
        let frame = Frame { kind: head[3], flags: head[4], stream, payload };
        if matches!(frame.kind, kind::HEADERS | kind::CONTINUATION) {
            self.field_block_part(&frame);
        }
        if self.polite && !frame.has(flag::ACK) {
            let reply = match frame.kind {
                kind::SETTINGS => Some(Frame::new(kind::SETTINGS, flag::ACK, 0, Vec::new())),
                kind::PING => Some(Frame::new(kind::PING, flag::ACK, 0, frame.payload.clone())),
                _ => None,
            };
            // A peer that has closed meanwhile shows at the next read.
            if let Some(reply) = reply {
                drop(self.try_send(&reply));
            }
        }
        Some(frame)
    }

    /// The next frame that `wanted` accepts; others are kept for later calls. None as for [`Self::read`].
    pub fn wait(&mut self, mut wanted: impl FnMut(&Frame) -> bool) -> Option<Frame> {
        if let Some(at) = self.unread.iter().position(&mut wanted) {
            return Some(self.unread.remove(at));
        }
        loop {
            let frame = self.read()?;
            if wanted(&frame) {
                return Some(frame);
            }
            self.unread.push(frame);
        }
    }

    /// The next frame of `stream`, or a GOAWAY.
    pub fn wait_stream(&mut self, stream: u32) -> Option<Frame> {
        self.wait(|frame| frame.stream == stream || frame.kind == kind::GOAWAY)
    }

    /// Waits for a GOAWAY; None when the connection ends without.
    pub fn wait_goaway(&mut self) -> Option<Frame> {
        self.wait(|frame| frame.kind == kind::GOAWAY)
    }

    fn field_block_part(&mut self, frame: &Frame) {
        self.block.extend_from_slice(&frame.payload);
        if frame.has(flag::END_HEADERS) {
            let block = std::mem::take(&mut self.block);
            let fields = self.decode(&block);
            self.heads.push((frame.stream, fields));
        }
    }

    fn decode(&mut self, block: &[u8]) -> Result<FieldLines, String> {
        let pairs = self.decoder.decode(block).map_err(|error| format!("HPACK: {error:?}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(pairs.iter().map(|(name, value)| (text(name), text(value))).collect())
    }

    /// The fields of the oldest HEADERS of `stream` that nobody has asked for, once its block has arrived whole.
    ///
    /// # Errors
    /// When the block is no HPACK.
    pub fn fields(&mut self, stream: u32) -> Option<Result<FieldLines, String>> {
        let at = self.heads.iter().position(|(owner, _)| *owner == stream)?;
        Some(self.heads.remove(at).1)
    }

    /// Collects the response of one stream. Windows are opened as data arrives.
    ///
    /// # Errors
    /// What ended it early.
    pub fn response(&mut self, stream: u32) -> Result<Response, Early> {
        let mut response = Response { version: "HTTP/2".to_owned(), ..Response::default() };
        loop {
            let frame = self.wait_stream(stream).ok_or(Early::Closed)?;
            let end = frame.has(flag::END_STREAM);
            match frame.kind {
                kind::HEADERS => self.headers_frame(frame, &mut response)?,
                kind::DATA => {
                    let length = u32::try_from(frame.payload.len()).expect("a payload below 16 MiB");
                    response.body.extend_from_slice(&frame.payload);
                    // A peer that has closed meanwhile shows at the next read.
                    let opened = length == 0 || self.try_send(&Frame::window_update(0, length)).is_ok();
                    if opened && length > 0 && !end {
                        drop(self.try_send(&Frame::window_update(stream, length)));
                    }
                }
                kind::RST_STREAM | kind::GOAWAY => return Err(Early::Frame(frame)),
                _ => continue,
            }
            if end {
                response.complete = true;
                return Ok(response);
            }
        }
    }

    fn headers_frame(&mut self, frame: Frame, response: &mut Response) -> Result<(), Early> {
        let stream = frame.stream;
        let mut last = frame;
        while !last.has(flag::END_HEADERS) {
            last = self.wait(|next| next.is(kind::CONTINUATION, stream)).ok_or(Early::Closed)?;
        }
        let fields = self.fields(stream).ok_or(Early::Closed)?.map_err(Early::Garbled)?;
        let status =
            fields.iter().find(|(name, _)| name == ":status").and_then(|(_, value)| value.parse().ok());
        let fields: FieldLines = fields.into_iter().filter(|(name, _)| !name.starts_with(':')).collect();
        match status {
            Some(status @ 100..=199) => {
                response.interim.push(Response { status, fields, ..Response::default() });
            }
            Some(status) => (response.status, response.fields) = (status, fields),
            None => response.trailers = fields,
        }
        Ok(())
    }

    /// The stream below.
    #[must_use]
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// The stream below.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_decode_to_what_was_written() {
        let long = "x".repeat(70_000);
        let fields = [("a", "1"), ("b", long.as_str()), ("UPPER\r\n", "")];
        let mut decoder = loona_hpack::Decoder::new();
        let decoded = decoder.decode(&field_block(&fields)).expect("HPACK");
        let expected: Vec<(Vec<u8>, Vec<u8>)> = fields
            .iter()
            .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
            .collect();
        assert_eq!(decoded, expected);
    }

    #[test]
    fn frames_have_the_layout_of_the_rfc() {
        let bytes = Frame::rst(5, code::CANCEL).encode();
        assert_eq!(bytes, [0, 0, 4, 3, 0, 0, 0, 0, 5, 0, 0, 0, 8]);
    }
}
