//! Frames (RFC 9113 §4, §6): their heads, and writing each kind.

use super::code::ErrorCode;

/// What a client's connection begins with (RFC 9113 §3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(super) const HEAD_BYTES: usize = 9;
/// The payload that every peer takes (RFC 9113 §4.2).
pub(super) const FRAME_BYTES_MIN: u32 = 16_384;
/// The largest SETTINGS_MAX_FRAME_SIZE (RFC 9113 §6.5.2).
pub(super) const FRAME_BYTES_MAX: u32 = (1 << 24) - 1;
/// The largest window (RFC 9113 §6.9.1), and the largest stream id.
pub(super) const WINDOW_MAX: i64 = (1 << 31) - 1;
pub(super) const STREAM_ID_MAX: u32 = (1 << 31) - 1;
/// The window of a stream and of the connection until told otherwise (RFC 9113 §6.9.2).
pub(super) const WINDOW_DEFAULT: u32 = 65_535;

pub(super) mod kind {
    //! Types of frames (RFC 9113 §6).
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const PRIORITY: u8 = 2;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PUSH_PROMISE: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

pub(super) mod flag {
    //! Flags of frames (RFC 9113 §6).
    pub(crate) const ACK: u8 = 1;
    pub(crate) const END_STREAM: u8 = 1;
    pub(crate) const END_HEADERS: u8 = 4;
    pub(crate) const PADDED: u8 = 8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub(super) len: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl FrameHead {
    pub(super) const fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(super) const fn read(bytes: [u8; HEAD_BYTES]) -> Self {
        let [a, b, c, kind, flags, s0, s1, s2, s3] = bytes;
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        Self { len, kind, flags, stream: u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]) }
    }

    /// The nine bytes. `len` has to fit into three of them.
    pub(super) fn bytes(self) -> [u8; HEAD_BYTES] {
        let [.., a, b, c] = self.len.to_be_bytes();
        let [s0, s1, s2, s3] = self.stream.to_be_bytes();
        [a, b, c, self.kind, self.flags, s0, s1, s2, s3]
    }
}

/// Appends a head; the payload of `len` bytes follows.
pub(super) fn put_head(kind: u8, flags: u8, stream: u32, len: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&FrameHead { len, kind, flags, stream }.bytes());
}

pub(super) fn put_settings(settings: &[(u16, u32)], out: &mut Vec<u8>) {
    put_head(kind::SETTINGS, 0, 0, settings.len() * 6, out);
    for (id, value) in settings {
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

pub(super) fn put_settings_ack(out: &mut Vec<u8>) {
    put_head(kind::SETTINGS, flag::ACK, 0, 0, out);
}

pub(super) fn put_ping(flags: u8, payload: [u8; 8], out: &mut Vec<u8>) {
    put_head(kind::PING, flags, 0, payload.len(), out);
    out.extend_from_slice(&payload);
}

pub(super) fn put_window_update(stream: u32, increment: u32, out: &mut Vec<u8>) {
    put_head(kind::WINDOW_UPDATE, 0, stream, 4, out);
    out.extend_from_slice(&increment.to_be_bytes());
}

pub(super) fn put_reset(stream: u32, code: ErrorCode, out: &mut Vec<u8>) {
    put_head(kind::RST_STREAM, 0, stream, 4, out);
    out.extend_from_slice(&code.0.to_be_bytes());
}

pub(super) fn put_goaway(last_stream: u32, code: ErrorCode, out: &mut Vec<u8>) {
    put_head(kind::GOAWAY, 0, 0, 8, out);
    out.extend_from_slice(&last_stream.to_be_bytes());
    out.extend_from_slice(&code.0.to_be_bytes());
}

/// Makes the block that was appended from `at` on, behind room for one head, a HEADERS frame and the CONTINUATION
/// frames it needs (RFC 9113 §4.3).
pub(super) fn finish_headers(
    at: usize,
    stream: u32,
    is_end: bool,
    payload_bytes_max: usize,
    out: &mut Vec<u8>,
) {
    let block_at = at + HEAD_BYTES;
    let end_stream = if is_end { flag::END_STREAM } else { 0 };
    let len = out.len().saturating_sub(block_at);
    let first_len = len.min(payload_bytes_max);
    let end_headers = if first_len == len { flag::END_HEADERS } else { 0 };
    let flags = end_stream | end_headers;
    let head = FrameHead { len: first_len, kind: kind::HEADERS, flags, stream }.bytes();
    if let Some(place) = out.get_mut(at..block_at) {
        place.copy_from_slice(&head);
    }
    if first_len == len {
        return;
    }
    let rest = out.split_off(block_at + first_len);
    let mut parts = rest.chunks(payload_bytes_max).peekable();
    while let Some(part) = parts.next() {
        let flags = if parts.peek().is_none() { flag::END_HEADERS } else { 0 };
        put_head(kind::CONTINUATION, flags, stream, part.len(), out);
        out.extend_from_slice(part);
    }
}

/// The value of a payload of four bytes, such as an error code or an increment.
pub(super) fn number(payload: &[u8]) -> Option<u32> {
    payload.try_into().ok().map(u32::from_be_bytes)
}

/// Pairs of a SETTINGS payload.
pub(super) fn settings(payload: &[u8]) -> impl Iterator<Item = (u16, u32)> + '_ {
    payload
        .as_chunks::<6>()
        .0
        .iter()
        .map(|[a, b, c, d, e, f]| (u16::from_be_bytes([*a, *b]), u32::from_be_bytes([*c, *d, *e, *f])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_go_both_ways() {
        for head in [
            FrameHead { len: 0, kind: kind::SETTINGS, flags: 0, stream: 0 },
            FrameHead { len: 16_384, kind: kind::DATA, flags: flag::END_STREAM, stream: 0x7fff_ffff },
            FrameHead { len: 0xff_ffff, kind: 0xee, flags: 0xff, stream: 1 },
        ] {
            assert_eq!(FrameHead::read(head.bytes()), head);
        }
        // The reserved bit is ignored (RFC 9113 §4.1).
        assert_eq!(FrameHead::read([0, 0, 1, 0, 0, 0x80, 0, 0, 5]).stream, 5);
    }

    #[test]
    fn a_long_block_is_cut_into_continuations() {
        for (len, frames) in [(0, 1), (10, 1), (20, 2), (25, 3)] {
            let mut out = vec![0; HEAD_BYTES];
            out.extend((0..len).map(|n: u8| n));
            finish_headers(0, 3, true, 10, &mut out);
            let (mut rest, mut seen, mut block) = (out.as_slice(), 0, Vec::new());
            while let Some((head, after)) = rest.split_first_chunk() {
                let head = FrameHead::read(*head);
                let (payload, after) = after.split_at(head.len);
                block.extend_from_slice(payload);
                assert_eq!(head.kind, if seen == 0 { kind::HEADERS } else { kind::CONTINUATION });
                assert_eq!(head.has(flag::END_STREAM), seen == 0);
                assert_eq!(head.has(flag::END_HEADERS), after.is_empty());
                (rest, seen) = (after, seen + 1);
            }
            assert_eq!((seen, block), (frames, (0..len).collect()), "{len} bytes");
        }
    }
}
