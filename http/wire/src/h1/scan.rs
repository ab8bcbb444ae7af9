//! Lines: where those of a head end, and that nothing in them is a control byte.
//!
//! Every line ends in CRLF. A bare LF or CR is refused wherever it stands (RFC 9112 §2.2): two systems that
//! disagree on line ends disagree on where a message ends.

use memchr::memchr;

use super::HeadLimits;
use crate::fields::{FieldId, FieldSet, Fields, Keep, LineError};
use crate::token::{BLOCK_BYTES, Block};

/// Says when it is worth to parse an incomplete head again, so that a head which arrives byte by byte costs
/// one parse per line and not one per byte.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadProgress {
    seen_bytes: usize,
}

impl HeadProgress {
    /// Whether `buf`, which starts where the head starts and grows from call to call, holds a line end that
    /// the last call did not see, or is so long that a limit may be passed.
    pub fn is_due(&mut self, buf: &[u8], limits: &HeadLimits) -> bool {
        let fresh = buf.get(self.seen_bytes..).unwrap_or(buf);
        self.seen_bytes = buf.len();
        memchr(b'\n', fresh).is_some() || buf.len() > limits.request_line_bytes_max.min(limits.head_bytes_max)
    }
}

/// What is wrong with a line of a head or of a trailer section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineFault {
    BareLf,
    BareCr,
    ObsFold,
    BadFieldName,
    BadFieldValue,
    TooManyFields,
    TooLarge,
    /// In a start line.
    ControlByte,
}

impl From<LineError> for LineFault {
    fn from(error: LineError) -> Self {
        match error {
            LineError::Fold => Self::ObsFold,
            LineError::BadName => Self::BadFieldName,
            LineError::Full => Self::TooLarge,
        }
    }
}

/// Bytes that are looked at together; the bits of one word.
const STRIDE_BYTES: usize = 64;

/// Walks over the lines of `text`.
///
/// Each stride is judged as a whole: LF stands exactly where the byte before is CR, and there is no other
/// control byte. The first byte that breaks this is remembered; lines before it are still good, because a
/// head may end before it and a body may hold anything.
pub(super) struct Lines<'a> {
    text: &'a [u8],
    /// Where the next line begins.
    line_at: usize,
    stride_at: usize,
    /// Good line ends (their LF) of the current stride that have not been handed out.
    line_ends: u64,
    /// The first bad byte, when the current stride holds it; the end of `text` when only its LF is missing.
    bad_at: Option<usize>,
    /// Whether the byte before the next stride is CR.
    cr_carried: u64,
}

/// A line without its CRLF.
#[derive(Clone, Copy)]
pub(super) struct Line {
    pub(super) at: usize,
    pub(super) len: usize,
}

impl<'a> Lines<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        let mut lines = Self { text, line_at: 0, stride_at: 0, line_ends: 0, bad_at: None, cr_carried: 0 };
        lines.read_stride();
        lines
    }

    /// Where the next line begins: bytes seen so far, CRLF included.
    pub(super) const fn bytes_read(&self) -> usize {
        self.line_at
    }

    /// The next whole line, or `None` when its end is not there yet.
    #[inline(always)]
    pub(super) fn next_line(&mut self) -> Result<Option<Line>, LineFault> {
        if self.line_ends == 0 && !self.next_strides()? {
            return Ok(None);
        }
        let lf = self.stride_at + self.line_ends.trailing_zeros() as usize;
        self.line_ends &= self.line_ends - 1;
        let line = Line { at: self.line_at, len: lf - 1 - self.line_at };
        self.line_at = lf + 1;
        Ok(Some(line))
    }

    /// Goes on to the next stride with a line end; false when there is none. Apart from `next_line`, so that
    /// the usual step costs no call.
    #[inline(never)]
    fn next_strides(&mut self) -> Result<bool, LineFault> {
        while self.line_ends == 0 {
            if let Some(bad_at) = self.bad_at {
                return if bad_at >= self.text.len() { Ok(false) } else { Err(self.fault_at(bad_at)) };
            }
            self.stride_at += STRIDE_BYTES;
            if self.stride_at >= self.text.len() {
                return Ok(false);
            }
            self.read_stride();
        }
        Ok(true)
    }

    fn read_stride(&mut self) {
        let Controls { cr, lf, any } = stride_controls(self.text, self.stride_at);
        let bad = (lf ^ (cr << 1 | self.cr_carried)) | (any & !(cr | lf));
        self.cr_carried = cr >> (STRIDE_BYTES - 1);
        self.line_ends = lf;
        if bad != 0 {
            let first = bad.trailing_zeros();
            self.line_ends &= (1 << first) - 1;
            self.bad_at = Some(self.stride_at + first as usize);
        }
    }

    #[cold]
    fn fault_at(&self, at: usize) -> LineFault {
        let line = self.text.get(self.line_at..at).unwrap_or(&[]);
        match self.text.get(at) {
            _ if line.last() == Some(&b'\r') => LineFault::BareCr,
            Some(b'\n') => LineFault::BareLf,
            _ if self.line_at == 0 => LineFault::ControlByte,
            _ if line.contains(&b':') => LineFault::BadFieldValue,
            _ => LineFault::BadFieldName,
        }
    }
}

struct Controls {
    cr: u64,
    lf: u64,
    /// All control bytes but HTAB, these two included.
    any: u64,
}

/// The control bytes of the stride at `at`. A head mostly ends where the buffer ends, so the last stride is
/// read as the last 64 bytes of the buffer and shifted into place.
#[inline]
fn stride_controls(text: &[u8], at: usize) -> Controls {
    if let Some(stride) = text.get(at..).and_then(|rest| rest.first_chunk()) {
        return controls_of(stride);
    }
    let rest = text.get(at..).unwrap_or(&[]);
    if let Some(last) = text.last_chunk::<STRIDE_BYTES>() {
        let seen_bytes = STRIDE_BYTES - rest.len();
        let Controls { cr, lf, any } = controls_of(last);
        return match seen_bytes {
            STRIDE_BYTES => Controls { cr: 0, lf: 0, any: 0 },
            _ => Controls { cr: cr >> seen_bytes, lf: lf >> seen_bytes, any: any >> seen_bytes },
        };
    }
    let mut stride = [b' '; STRIDE_BYTES];
    if let Some(start) = stride.get_mut(..rest.len()) {
        start.copy_from_slice(rest);
    }
    controls_of(&stride)
}

#[inline]
fn controls_of(stride: &[u8; STRIDE_BYTES]) -> Controls {
    let blocks = [0, 1, 2, 3].map(|index| Block::at(stride, index * BLOCK_BYTES));
    let join = |set: fn(&Block) -> u32| {
        let [a, b, c, d] = [0, 1, 2, 3].map(|index: usize| u64::from(set(&blocks[index])));
        a | b << 16 | c << 32 | d << 48
    };
    Controls {
        cr: join(|block| block.find(b'\r')),
        lf: join(|block| block.find(b'\n')),
        any: join(|block| block.controls()),
    }
}

/// Reads field lines up to the empty line and makes fields of them, except for those that are `watched` and
/// that `keep` does not want. `None` means that the empty line is not there yet; `fields` is empty then, and
/// after an error.
#[inline]
pub(super) fn read_field_lines<'a>(
    lines: &mut Lines<'a>,
    limits: &HeadLimits,
    fields: &mut Fields,
    watched: FieldSet,
    keep: impl FnMut(FieldId, &'a [u8]) -> Keep,
) -> Result<Option<()>, LineFault> {
    fields.clear();
    let block_at = lines.line_at;
    let taken = match note_lines(lines, limits, fields) {
        Ok(true) => {
            let block = lines.text.get(block_at..lines.line_at).unwrap_or(&[]);
            fields.take_block(block, watched, keep).map(Some).map_err(LineFault::from)
        }
        Ok(false) => Ok(None),
        Err(fault) => Err(fault),
    };
    if !matches!(taken, Ok(Some(()))) {
        fields.clear();
    }
    taken
}

/// Notes the lines up to the empty one; false when that is not there yet.
#[inline(always)]
fn note_lines(lines: &mut Lines<'_>, limits: &HeadLimits, fields: &mut Fields) -> Result<bool, LineFault> {
    let block_at = lines.line_at;
    loop {
        let Some(line) = lines.next_line()? else {
            return Ok(false);
        };
        if line.len == 0 {
            break;
        }
        if fields.len() >= limits.fields_max {
            return Err(LineFault::TooManyFields);
        }
        fields.note_line(line.at - block_at, line.len)?;
    }
    if lines.line_at > limits.head_bytes_max {
        return Err(LineFault::TooLarge);
    }
    Ok(true)
}

/// How an HTTP version reads that is neither 1.0 nor 1.1 (RFC 9112 §2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OddVersion {
    /// `HTTP/1.x` with a later x: to be read as 1.1 (RFC 9110 §6.2).
    LaterMinor,
    OtherMajor,
    Malformed,
}

/// Reads a version token.
#[cold]
pub(super) fn read_odd_version(token: &[u8]) -> OddVersion {
    match token {
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'0'..=b'9'] => OddVersion::LaterMinor,
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => OddVersion::OtherMajor,
        _ => OddVersion::Malformed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_that_drips_in_is_parsed_once_per_line() {
        let limits = HeadLimits::default();
        let head = b"GET / HTTP/1.1\r\nHost: a\r\nA: b\r\n\r\n";
        let mut progress = HeadProgress::default();
        let due = (1..=head.len()).filter(|&end| progress.is_due(&head[..end], &limits)).count();
        assert_eq!(due, 4);
        // Over the limit it is due at once, so that the parser can refuse.
        assert!(progress.is_due(&vec![b'a'; limits.request_line_bytes_max + 1], &limits));
    }

    /// What `Lines` is to do, written without blocks and strides.
    fn plain_lines(text: &[u8]) -> (Vec<(usize, usize)>, Option<LineFault>) {
        let (mut found, mut line_at, mut at) = (Vec::new(), 0, 0);
        while let Some(&byte) = text.get(at) {
            match (byte, text.get(at + 1)) {
                (b'\r', Some(b'\n')) => {
                    found.push((line_at, at - line_at));
                    line_at = at + 2;
                    at += 1;
                }
                (b'\r', None) => return (found, None),
                (b'\r', Some(_)) => return (found, Some(LineFault::BareCr)),
                (b'\n', _) => return (found, Some(LineFault::BareLf)),
                (other, _) if other.is_ascii_control() && other != b'\t' => {
                    let line = &text[line_at..at];
                    let in_field =
                        if line.contains(&b':') { LineFault::BadFieldValue } else { LineFault::BadFieldName };
                    return (found, Some(if line_at == 0 { LineFault::ControlByte } else { in_field }));
                }
                _ => {}
            }
            at += 1;
        }
        (found, None)
    }

    #[test]
    fn lines_are_found_across_all_block_borders() {
        let mut random = super::super::testing::Random::new(0x51ed_270b);
        let pieces: [&[u8]; 9] = [
            b"a",
            b"abcdefgh: ",
            b"\r\n",
            b"\r\n",
            b"\r\n",
            b"0123456789012345678901234567890",
            b"\t ",
            b"\xff",
            b"x: y",
        ];
        let faults: [&[u8]; 5] = [b"\n", b"\r", b"\0", b"\x7f", b"\x1b"];
        for round in 0..20_000 {
            let mut text = Vec::new();
            for _ in 0..random.below(24) {
                text.extend_from_slice(pieces[random.below(pieces.len())]);
            }
            if round % 3 == 0 {
                let at = random.below(text.len() + 1);
                text.splice(at..at, faults[random.below(faults.len())].iter().copied());
            }
            let mut lines = Lines::new(&text);
            let mut found = Vec::new();
            let fault = loop {
                match lines.next_line() {
                    Ok(Some(line)) => found.push((line.at, line.len)),
                    Ok(None) => break None,
                    Err(fault) => break Some(fault),
                }
            };
            assert_eq!((found, fault), plain_lines(&text), "{text:?} ({random:?})");
        }
    }

    #[test]
    fn version_tokens() {
        use OddVersion::{LaterMinor, Malformed, OtherMajor};
        for (token, want) in [
            ("HTTP/1.2", LaterMinor),
            ("HTTP/1.9", LaterMinor),
            ("HTTP/2.0", OtherMajor),
            ("HTTP/0.9", OtherMajor),
            ("HTTP/01.1", Malformed),
            ("HTTP/1.10", Malformed),
            ("HTTP/1,1", Malformed),
            ("HTTP/2", Malformed),
            ("http/1.2", Malformed),
            ("RTSP/1.0", Malformed),
            ("HTTP/1.2 ", Malformed),
            ("", Malformed),
        ] {
            assert_eq!(read_odd_version(token.as_bytes()), want, "{token:?}");
        }
    }
}
