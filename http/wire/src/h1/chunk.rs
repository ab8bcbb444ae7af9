//! The framing between chunks (RFC 9112 §7.1), one byte at a time, so that a cut anywhere changes nothing.
//!
//! ```text
//!                  ┌────────────── CRLF after data ──────────────┐
//!                  ▼                                             │
//!  Size ─ hexdig ─► Size ─ ";" ─► Extension … ─ CR ─► SizeLf ─ LF ┴─► Data(n)   n > 0
//!                    └────────────── CR ─────────────► SizeLf ─ LF ──► Trailers  n = 0
//! ```
//! A bare LF is refused in every place, because a peer that sees an extension where we see a line end finds
//! its chunks elsewhere. Extensions are checked, counted and dropped: they are hop by hop, and nobody
//! uses them but attackers.

use super::BodyError;
use crate::token::is_token_byte;

/// Longest size line, extensions included, without its line end. Room for the signatures that object stores
/// put there.
pub const CHUNK_LINE_BYTES_MAX: u32 = 512;

/// Framing that a body may hold beyond 16 bytes a chunk and twice its data (CVE-2023-39326: extensions that
/// make a receiver read megabytes for a few bytes of data).
pub const CHUNK_OVERHEAD_BYTES_MAX: u64 = 16 * 1024;

/// Hexadecimal digits of a size, leading zeros included.
const SIZE_DIGITS_MAX: u8 = 16;

/// What the next byte of framing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    Size,
    SizeLf,
    DataCr,
    DataLf,
    /// After `;`: blanks, then the name.
    ExtensionStart,
    ExtensionName,
    /// Blanks after a name: `=` or `;` must follow.
    ExtensionNameEnd,
    /// After `=`: blanks, then a token or a quoted string.
    ExtensionValueStart,
    ExtensionValue,
    ExtensionQuoted,
    ExtensionEscape,
    /// Behind a whole value.
    ExtensionEnd,
    /// Blanks behind a value: only `;` may follow.
    ExtensionGap,
}

/// The framing between two chunks' data.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkFraming {
    expect: Expect,
    digits: u8,
    size_bytes: u64,
    line_bytes: u32,
    excess_bytes: u64,
}

impl ChunkFraming {
    pub(super) const fn new() -> Self {
        Self { expect: Expect::Size, digits: 0, size_bytes: 0, line_bytes: 0, excess_bytes: 0 }
    }

    /// The data of a chunk has been read: its CRLF comes next.
    pub(super) const fn end_data(&mut self) {
        self.expect = Expect::DataCr;
    }

    /// Takes bytes from the start of `framing` up to the end of a size line. Returns how many and, at that
    /// end, the chunk's size, which is 0 for the last one.
    pub(super) fn read(&mut self, framing: &[u8]) -> Result<(usize, Option<u64>), BodyError> {
        for (at, &byte) in framing.iter().enumerate() {
            if self.step(byte)? {
                return Ok((at + 1, Some(self.end_line()?)));
            }
        }
        Ok((framing.len(), None))
    }

    /// Whether `byte` ends a size line.
    fn step(&mut self, byte: u8) -> Result<bool, BodyError> {
        match self.expect {
            Expect::Size => self.step_size(byte)?,
            Expect::SizeLf if byte == b'\n' => return Ok(true),
            Expect::DataLf if byte == b'\n' => self.expect = Expect::Size,
            Expect::SizeLf | Expect::DataLf => return Err(BodyError::BareCr),
            Expect::DataCr => match byte {
                b'\r' => self.expect = Expect::DataLf,
                b'\n' => return Err(BodyError::BareLf),
                _ => return Err(BodyError::BadChunkEnd),
            },
            _ => self.step_extension(byte)?,
        }
        Ok(false)
    }

    fn step_size(&mut self, byte: u8) -> Result<(), BodyError> {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            b'\n' => return Err(BodyError::BareLf),
            _ if self.digits == 0 => return Err(BodyError::BadChunkSize),
            b'\r' => {
                self.expect = Expect::SizeLf;
                return Ok(());
            }
            b';' => {
                self.expect = Expect::ExtensionStart;
                return self.count_line_byte();
            }
            _ => return Err(BodyError::BadChunkSize),
        };
        // RFC 9112 §7.1: large sizes must not overflow. 16 digits fill 64 bits; the top bit is refused below.
        if self.digits == SIZE_DIGITS_MAX {
            return Err(BodyError::BadChunkSize);
        }
        self.digits += 1;
        self.size_bytes = (self.size_bytes << 4) | u64::from(digit);
        self.count_line_byte()
    }

    /// RFC 9112 §7.1.1: `*( BWS ";" BWS name [ BWS "=" BWS value ] )`; no blank before the line end.
    fn step_extension(&mut self, byte: u8) -> Result<(), BodyError> {
        let is_blank = matches!(byte, b' ' | b'\t');
        let is_token = is_token_byte(byte);
        self.expect = match (self.expect, byte) {
            (_, b'\n') => return Err(BodyError::BareLf),
            (Expect::ExtensionStart, _) if is_blank => Expect::ExtensionStart,
            (Expect::ExtensionStart | Expect::ExtensionName, _) if is_token => Expect::ExtensionName,
            (Expect::ExtensionName | Expect::ExtensionNameEnd, b'=') => Expect::ExtensionValueStart,
            (Expect::ExtensionName | Expect::ExtensionNameEnd, _) if is_blank => Expect::ExtensionNameEnd,
            (Expect::ExtensionValueStart, _) if is_blank => Expect::ExtensionValueStart,
            (Expect::ExtensionValueStart, b'"') => Expect::ExtensionQuoted,
            (Expect::ExtensionValueStart | Expect::ExtensionValue, _) if is_token => Expect::ExtensionValue,
            (Expect::ExtensionQuoted, b'"') => Expect::ExtensionEnd,
            (Expect::ExtensionQuoted, b'\\') => Expect::ExtensionEscape,
            // RFC 9110 §5.6.4: HTAB, SP, VCHAR and obs-text, escaped or not.
            (Expect::ExtensionQuoted | Expect::ExtensionEscape, b'\t' | b' '..=b'~' | 0x80..) => {
                Expect::ExtensionQuoted
            }
            (Expect::ExtensionValue | Expect::ExtensionEnd | Expect::ExtensionGap, _) if is_blank => {
                Expect::ExtensionGap
            }
            (
                Expect::ExtensionName
                | Expect::ExtensionNameEnd
                | Expect::ExtensionValue
                | Expect::ExtensionEnd
                | Expect::ExtensionGap,
                b';',
            ) => Expect::ExtensionStart,
            (Expect::ExtensionName | Expect::ExtensionValue | Expect::ExtensionEnd, b'\r') => {
                self.expect = Expect::SizeLf;
                return Ok(());
            }
            _ => return Err(BodyError::BadChunkExtension),
        };
        self.count_line_byte()
    }

    const fn count_line_byte(&mut self) -> Result<(), BodyError> {
        if self.line_bytes == CHUNK_LINE_BYTES_MAX {
            return Err(BodyError::ChunkLineTooLong);
        }
        self.line_bytes += 1;
        Ok(())
    }

    fn end_line(&mut self) -> Result<u64, BodyError> {
        let size_bytes = self.size_bytes;
        if i64::try_from(size_bytes).is_err() {
            return Err(BodyError::BadChunkSize);
        }
        let allowed_bytes = size_bytes.saturating_mul(2).saturating_add(16);
        self.excess_bytes = (self.excess_bytes + u64::from(self.line_bytes)).saturating_sub(allowed_bytes);
        if self.excess_bytes > CHUNK_OVERHEAD_BYTES_MAX {
            return Err(BodyError::ChunkOverhead);
        }
        *self = Self { excess_bytes: self.excess_bytes, ..Self::new() };
        Ok(size_bytes)
    }
}
