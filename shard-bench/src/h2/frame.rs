//! HTTP/2 frames (RFC 9113 §4, §6): writing them, and reading them out of a stream of bytes.
//!
//! The payload of DATA is handed on as it comes; every other frame is handed on whole, from the caller's bytes where
//! it lies in them in one piece.

/// RFC 9113 §3.4.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(crate) const HEAD_BYTES: usize = 9;
/// Ours: the default, and the least that a peer may set (RFC 9113 §6.5.2).
pub(crate) const FRAME_BYTES: usize = 16_384;
/// The window of a stream and of the connection until told otherwise (RFC 9113 §6.9.2).
pub(crate) const WINDOW_BYTES: i64 = 65_535;
/// A block of fields with its continuations.
const BLOCK_BYTES_MAX: usize = 256 * 1024;

pub(crate) mod kind {
    //! Types of frames (RFC 9113 §6).
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

pub(crate) mod flag {
    //! Flags of frames.
    pub(crate) const ACK: u8 = 1;
    pub(crate) const END_STREAM: u8 = 1;
    pub(crate) const END_HEADERS: u8 = 4;
    pub(crate) const PADDED: u8 = 8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

pub(crate) mod setting {
    //! Settings (RFC 9113 §6.5.2).
    pub(crate) const HEADER_TABLE_SIZE: u16 = 1;
    pub(crate) const ENABLE_PUSH: u16 = 2;
    pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(crate) const MAX_FRAME_SIZE: u16 = 5;
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) len: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

impl Head {
    pub(crate) const fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn read(bytes: [u8; HEAD_BYTES]) -> Self {
        let [a, b, c, kind, flags, s0, s1, s2, s3] = bytes;
        let len = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        Self { len, kind, flags, stream: u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]) }
    }
}

/// Appends a head; the payload of `len` bytes follows.
pub(crate) fn put_head(kind: u8, flags: u8, stream: u32, len: usize, out: &mut Vec<u8>) {
    let [_, a, b, c] = u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes();
    let [s0, s1, s2, s3] = stream.to_be_bytes();
    out.extend_from_slice(&[a, b, c, kind, flags, s0, s1, s2, s3]);
}

pub(crate) fn put_settings(settings: &[(u16, u32)], out: &mut Vec<u8>) {
    put_head(kind::SETTINGS, 0, 0, settings.len() * 6, out);
    for (id, value) in settings {
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

pub(crate) fn put_settings_ack(out: &mut Vec<u8>) {
    put_head(kind::SETTINGS, flag::ACK, 0, 0, out);
}

pub(crate) fn put_ping_ack(payload: &[u8], out: &mut Vec<u8>) {
    put_head(kind::PING, flag::ACK, 0, payload.len(), out);
    out.extend_from_slice(payload);
}

pub(crate) fn put_window_update(stream: u32, increment: u32, out: &mut Vec<u8>) {
    put_head(kind::WINDOW_UPDATE, 0, stream, 4, out);
    out.extend_from_slice(&increment.to_be_bytes());
}

pub(crate) fn put_reset(stream: u32, code: u32, out: &mut Vec<u8>) {
    put_head(kind::RST_STREAM, 0, stream, 4, out);
    out.extend_from_slice(&code.to_be_bytes());
}

/// Appends a block of fields as HEADERS and what CONTINUATION it needs.
pub(crate) fn put_headers(stream: u32, is_end: bool, block: &[u8], out: &mut Vec<u8>) {
    let mut parts = block.chunks(FRAME_BYTES);
    let first = parts.next().unwrap_or(&[]);
    let is_whole = |at: usize| if at >= block.len() { flag::END_HEADERS } else { 0 };
    let end = if is_end { flag::END_STREAM } else { 0 };
    let mut at = first.len();
    put_head(kind::HEADERS, end | is_whole(at), stream, first.len(), out);
    out.extend_from_slice(first);
    for part in parts {
        at += part.len();
        put_head(kind::CONTINUATION, is_whole(at), stream, part.len(), out);
        out.extend_from_slice(part);
    }
}

/// The value of a payload of four bytes, such as an error code or an increment.
pub(crate) fn number(payload: &[u8]) -> u32 {
    payload.first_chunk::<4>().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// Pairs of a SETTINGS payload.
pub(crate) fn settings(payload: &[u8]) -> impl Iterator<Item = (u16, u32)> + '_ {
    payload
        .as_chunks::<6>()
        .0
        .iter()
        .map(|[a, b, c, d, e, f]| (u16::from_be_bytes([*a, *b]), u32::from_be_bytes([*c, *d, *e, *f])))
}

/// The peer broke the protocol; the text says how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameFault(pub(crate) &'static str);

/// Who hears of frames.
pub(crate) trait Frames {
    /// Part of a DATA payload; `flow_bytes` count for flow control. `is_end` ends the stream.
    ///
    /// # Errors
    /// What breaks the protocol.
    fn data(&mut self, stream: u32, part: &[u8], flow_bytes: usize, is_end: bool) -> Result<(), FrameFault>;

    /// A whole block of fields.
    ///
    /// # Errors
    /// What breaks the protocol.
    fn headers(&mut self, stream: u32, block: &[u8], is_end: bool) -> Result<(), FrameFault>;

    /// Any other frame.
    ///
    /// # Errors
    /// What breaks the protocol.
    fn control(&mut self, head: Head, payload: &[u8]) -> Result<(), FrameFault>;
}

/// Cuts a stream of bytes into frames.
#[derive(Debug, Default)]
pub(crate) struct FrameReader {
    /// Of a head that is cut.
    head_bytes: Vec<u8>,
    head: Option<Head>,
    /// Bytes of the payload that are to come.
    left: usize,
    payload: Vec<u8>,
    /// Fields whose CONTINUATION is to come: stream, END_STREAM, and the block so far.
    block: Option<(u32, bool, Vec<u8>)>,
}

impl FrameReader {
    /// Takes all of `bytes`.
    ///
    /// # Errors
    /// What breaks the protocol; the connection is of no more use.
    pub(crate) fn feed(&mut self, bytes: &[u8], frames: &mut impl Frames) -> Result<(), FrameFault> {
        let mut rest = bytes;
        loop {
            let head = match self.head {
                Some(head) => head,
                None => match self.read_head(&mut rest)? {
                    Some(head) => head,
                    None => return Ok(()),
                },
            };
            let streams = head.kind == kind::DATA && !head.has(flag::PADDED);
            if streams {
                let (part, after) = rest.split_at(self.left.min(rest.len()));
                self.left -= part.len();
                rest = after;
                let is_end = self.left == 0 && head.has(flag::END_STREAM);
                if !part.is_empty() || is_end {
                    frames.data(head.stream, part, part.len(), is_end)?;
                }
                if self.left > 0 {
                    return Ok(());
                }
            } else if self.payload.is_empty() && rest.len() >= self.left {
                let (payload, after) = rest.split_at(self.left);
                rest = after;
                self.whole(head, payload, frames)?;
            } else {
                let (part, after) = rest.split_at(self.left.min(rest.len()));
                self.payload.extend_from_slice(part);
                self.left -= part.len();
                rest = after;
                if self.left > 0 {
                    return Ok(());
                }
                let mut payload = std::mem::take(&mut self.payload);
                self.whole(head, &payload, frames)?;
                payload.clear();
                self.payload = payload;
            }
            self.head = None;
        }
    }

    fn read_head(&mut self, rest: &mut &[u8]) -> Result<Option<Head>, FrameFault> {
        let bytes = if self.head_bytes.is_empty() && rest.len() >= HEAD_BYTES {
            let (head, after) = rest.split_first_chunk::<HEAD_BYTES>().ok_or(FrameFault("a short head"))?;
            *rest = after;
            *head
        } else {
            let (part, after) = rest.split_at((HEAD_BYTES - self.head_bytes.len()).min(rest.len()));
            self.head_bytes.extend_from_slice(part);
            *rest = after;
            let Some(head) = self.head_bytes.first_chunk::<HEAD_BYTES>().copied() else { return Ok(None) };
            self.head_bytes.clear();
            head
        };
        let head = Head::read(bytes);
        if bytes.starts_with(b"HTTP/1.") {
            return Err(FrameFault("the target answers in HTTP/1; use --protocol h1"));
        }
        if head.len > FRAME_BYTES {
            return Err(FrameFault("a frame above SETTINGS_MAX_FRAME_SIZE"));
        }
        self.left = head.len;
        self.head = Some(head);
        Ok(Some(head))
    }

    fn whole(&mut self, head: Head, payload: &[u8], frames: &mut impl Frames) -> Result<(), FrameFault> {
        match (head.kind, &mut self.block) {
            (kind::CONTINUATION, Some((stream, is_end, block))) if *stream == head.stream => {
                if block.len() + payload.len() > BLOCK_BYTES_MAX {
                    return Err(FrameFault("fields without end"));
                }
                block.extend_from_slice(payload);
                if head.has(flag::END_HEADERS) {
                    frames.headers(*stream, block, *is_end)?;
                    self.block = None;
                }
                Ok(())
            }
            (kind::CONTINUATION, _) | (_, Some(_)) => {
                Err(FrameFault("a frame between HEADERS and CONTINUATION"))
            }
            (kind::DATA, None) => {
                frames.data(head.stream, unpadded(head, payload)?, payload.len(), head.has(flag::END_STREAM))
            }
            (kind::HEADERS, None) => {
                let mut block = unpadded(head, payload)?;
                if head.has(flag::PRIORITY) {
                    block = block.get(5..).ok_or(FrameFault("HEADERS without room for a priority"))?;
                }
                let is_end = head.has(flag::END_STREAM);
                if head.has(flag::END_HEADERS) {
                    return frames.headers(head.stream, block, is_end);
                }
                self.block = Some((head.stream, is_end, block.to_vec()));
                Ok(())
            }
            (_, None) => frames.control(head, payload),
        }
    }
}

/// A payload without its padding (RFC 9113 §6.1).
fn unpadded(head: Head, payload: &[u8]) -> Result<&[u8], FrameFault> {
    if !head.has(flag::PADDED) {
        return Ok(payload);
    }
    let (padding, rest) = payload.split_first().ok_or(FrameFault("a padded frame without padding"))?;
    let len = rest.len().checked_sub(usize::from(*padding)).ok_or(FrameFault("more padding than payload"))?;
    Ok(rest.get(..len).unwrap_or(&[]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Log(Vec<String>);

    impl Frames for Log {
        fn data(&mut self, stream: u32, part: &[u8], _flow: usize, is_end: bool) -> Result<(), FrameFault> {
            // Parts depend on where the bytes were cut; their sum does not.
            let text = String::from_utf8_lossy(part).into_owned();
            match self.0.last_mut() {
                Some(last) if last.starts_with(&format!("data {stream} ")) => last.push_str(&text),
                _ => self.0.push(format!("data {stream} {text}")),
            }
            if is_end {
                self.0.push(format!("end {stream}"));
            }
            Ok(())
        }

        fn headers(&mut self, stream: u32, block: &[u8], is_end: bool) -> Result<(), FrameFault> {
            self.0.push(format!("headers {stream} {} {is_end}", block.len()));
            Ok(())
        }

        fn control(&mut self, head: Head, payload: &[u8]) -> Result<(), FrameFault> {
            self.0.push(format!("{} {} {payload:?}", head.kind, head.stream));
            Ok(())
        }
    }

    fn stream() -> Vec<u8> {
        let mut out = Vec::new();
        put_settings(&[(setting::ENABLE_PUSH, 0)], &mut out);
        put_headers(1, false, &[7; 40_000], &mut out);
        put_head(kind::DATA, 0, 1, 5, &mut out);
        out.extend_from_slice(b"hello");
        put_head(kind::DATA, flag::PADDED | flag::END_STREAM, 1, 6, &mut out);
        out.extend_from_slice(b"\x02abc\0\0");
        put_window_update(0, 9, &mut out);
        put_head(kind::DATA, flag::END_STREAM, 3, 0, &mut out);
        out
    }

    #[test]
    fn every_split_gives_the_same_frames() {
        let bytes = stream();
        let mut whole = Log::default();
        FrameReader::default().feed(&bytes, &mut whole).expect("good");
        assert_eq!(
            whole.0,
            [
                "4 0 [0, 2, 0, 0, 0, 0]",
                "headers 1 40000 false",
                "data 1 helloabc",
                "end 1",
                "8 0 [0, 0, 0, 9]",
                "data 3 ",
                "end 3"
            ]
        );
        for step in [1, 2, 3, 7, 8, 9, 10, 1000, 16_384, 16_393] {
            let mut log = Log::default();
            let mut reader = FrameReader::default();
            for part in bytes.chunks(step) {
                reader.feed(part, &mut log).expect("good");
            }
            assert_eq!(log.0, whole.0, "in steps of {step}");
        }
    }

    #[test]
    fn what_breaks_the_protocol() {
        let fault = |make: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = Vec::new();
            make(&mut bytes);
            FrameReader::default().feed(&bytes, &mut Log::default())
        };
        assert!(fault(&|out| put_head(kind::DATA, 0, 1, 20_000, out)).is_err());
        assert!(fault(&|out| put_head(kind::CONTINUATION, 0, 1, 0, out)).is_err());
        assert!(
            fault(&|out| {
                put_head(kind::HEADERS, 0, 1, 0, out);
                put_window_update(0, 1, out);
            })
            .is_err()
        );
        assert!(
            fault(&|out| {
                put_head(kind::HEADERS, flag::PADDED, 1, 2, out);
                out.extend_from_slice(&[9, 0]);
            })
            .is_err()
        );
    }
}
