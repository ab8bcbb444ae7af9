//! Message bodies (RFC 9112 §6.3, §7): what of the received bytes is data and where the message ends.
//!
//! The decoder copies no data. It looks at the caller's unread bytes and answers how many bytes of framing to
//! drop and how many bytes of data follow; the caller drops both and asks again. Only a trailer section, which
//! has to be whole to be parsed, is kept inside, bounded by the limits for heads.

use memchr::memchr;

use super::chunk::ChunkFraming;
use super::scan::{LineFault, Lines, read_field_lines};
use super::{BodyError, HeadLimits};
use crate::fields::{FieldId, FieldSet, Fields, Keep, may_be_trailer};
use crate::head::BodyLength;

/// What the unread bytes begin with. The caller drops `skip` bytes in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// `skip` bytes of framing, then `len` bytes of data (never 0), all of them in the buffer.
    Data { skip: usize, len: usize },
    /// Nothing but framing; more bytes have to be read.
    NeedMore { skip: usize },
    /// The message has ended behind `skip` bytes. Trailers, if any, are in [`BodyDecoder::trailers`].
    End { skip: usize },
}

/// What it means that the peer has sent FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndOfInput {
    /// The body has ended here or before.
    Complete,
    /// Bytes that were announced are missing: to the other side the message must not look complete.
    Truncated,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Done,
    Exact {
        left_bytes: u64,
    },
    UntilClose,
    ChunkFraming,
    ChunkData {
        left_bytes: u64,
    },
    /// Behind the line of the last chunk.
    TrailerStart,
    /// CR of the empty line seen, no trailer before it.
    FinalLf,
    TrailerLines,
}

#[derive(Debug, Default)]
struct Trailers {
    section: Vec<u8>,
    fields: Fields,
}

/// Decodes the body of one message.
#[derive(Debug)]
pub struct BodyDecoder {
    state: State,
    framing: ChunkFraming,
    limits: HeadLimits,
    /// Only messages with trailers pay for this.
    trailers: Option<Box<Trailers>>,
}

impl BodyDecoder {
    /// A decoder for a body that is delimited by `length`; `limits` bound its trailer section.
    pub const fn new(length: BodyLength, limits: HeadLimits) -> Self {
        let state = match length {
            BodyLength::Empty | BodyLength::Exact(0) => State::Done,
            BodyLength::Exact(left_bytes) => State::Exact { left_bytes },
            BodyLength::Streamed => State::ChunkFraming,
            BodyLength::UntilClose => State::UntilClose,
        };
        Self { state, framing: ChunkFraming::new(), limits, trailers: None }
    }

    /// Whether the last byte of the message has been seen.
    pub const fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Bytes that a body with an announced length still lacks; `None` for every other framing.
    pub const fn exact_left_bytes(&self) -> Option<u64> {
        match self.state {
            State::Exact { left_bytes } => Some(left_bytes),
            _ => None,
        }
    }

    /// Notes that `count` bytes of a body with an announced length were taken without being shown to the decoder.
    pub const fn note_taken(&mut self, count: u64) {
        if let State::Exact { left_bytes } = self.state {
            let left_bytes = left_bytes.saturating_sub(count);
            self.state = if left_bytes == 0 { State::Done } else { State::Exact { left_bytes } };
        }
    }

    /// Fields behind a chunked body, without those that must not be there (RFC 9110 §6.5.1); `None` when
    /// nothing is left. Complete once `decode` has returned `End`.
    pub fn trailers(&self) -> Option<&Fields> {
        let trailers = self.trailers.as_ref().filter(|_| self.is_done())?;
        (!trailers.fields.is_empty()).then_some(&trailers.fields)
    }

    /// What FIN after all bytes that were decoded means.
    pub const fn on_eof(&self) -> EndOfInput {
        match self.state {
            // RFC 9112 §6.3 item 8.
            State::Done | State::UntilClose => EndOfInput::Complete,
            // RFC 9112 §8: an announced length not reached, or no last chunk with its empty line.
            State::Exact { .. }
            | State::ChunkFraming
            | State::ChunkData { .. }
            | State::TrailerStart
            | State::FinalLf
            | State::TrailerLines => EndOfInput::Truncated,
        }
    }

    /// Looks at `buf`, the bytes behind everything that earlier calls told to drop. After `End` it returns
    /// `End { skip: 0 }`: what follows belongs to the next message.
    ///
    /// # Errors
    /// See [`BodyError`]. The connection is of no more use, and the decoder must not be asked again.
    pub fn decode(&mut self, buf: &[u8]) -> Result<Decoded, BodyError> {
        let mut at = 0;
        loop {
            let rest = buf.get(at..).unwrap_or(&[]);
            if !matches!(self.state, State::Done) && rest.is_empty() {
                return Ok(Decoded::NeedMore { skip: at });
            }
            match self.state {
                State::Done => return Ok(Decoded::End { skip: at }),
                State::UntilClose => {
                    return Ok(Decoded::Data { skip: at, len: rest.len() });
                }
                State::Exact { left_bytes } => {
                    let (len, left_bytes) = share(rest, left_bytes);
                    self.state = if left_bytes == 0 { State::Done } else { State::Exact { left_bytes } };
                    return Ok(Decoded::Data { skip: at, len });
                }
                State::ChunkData { left_bytes } => {
                    let (len, left_bytes) = share(rest, left_bytes);
                    self.state = State::ChunkData { left_bytes };
                    if left_bytes == 0 {
                        self.framing.end_data();
                        self.state = State::ChunkFraming;
                    }
                    return Ok(Decoded::Data { skip: at, len });
                }
                State::ChunkFraming => {
                    let (read, size) = self.framing.read(rest)?;
                    at += read;
                    match size {
                        Some(0) => self.state = State::TrailerStart,
                        Some(left_bytes) => self.state = State::ChunkData { left_bytes },
                        None => {}
                    }
                }
                State::TrailerStart if rest.first() == Some(&b'\r') => {
                    at += 1;
                    self.state = State::FinalLf;
                }
                State::FinalLf => {
                    if rest.first() != Some(&b'\n') {
                        return Err(BodyError::BareCr);
                    }
                    at += 1;
                    self.state = State::Done;
                }
                State::TrailerStart | State::TrailerLines => {
                    self.state = State::TrailerLines;
                    at += self.read_trailer_line(rest)?;
                }
            }
        }
    }

    /// Keeps the bytes of `rest` up to the end of a line, and ends the message at the empty line.
    fn read_trailer_line(&mut self, rest: &[u8]) -> Result<usize, BodyError> {
        let trailers = self.trailers.get_or_insert_default();
        let read = memchr(b'\n', rest).map_or(rest.len(), |lf| lf + 1);
        let part = rest.get(..read).unwrap_or(rest);
        if trailers.section.len() + part.len() > self.limits.head_bytes_max {
            return Err(BodyError::TrailersTooLarge);
        }
        trailers.section.extend_from_slice(part);
        if trailers.section.ends_with(b"\n") && !trailers.section.ends_with(b"\r\n") {
            return Err(BodyError::BareLf);
        }
        if trailers.section.ends_with(b"\r\n\r\n") {
            parse_trailers(trailers, &self.limits)?;
            self.state = State::Done;
        }
        Ok(read)
    }
}

/// How many of `rest` belong to `left_bytes`, and what is left of those then.
fn share(rest: &[u8], left_bytes: u64) -> (usize, u64) {
    // Where usize is smaller than u64, what does not fit is more than the buffer in any case.
    let len = usize::try_from(left_bytes).map_or(rest.len(), |left| left.min(rest.len()));
    (len, left_bytes - u64::try_from(len).unwrap_or(left_bytes))
}

/// RFC 9112 §7.1.2 and RFC 9110 §6.5.1: what must not stand in a trailer is discarded, never merged.
#[cold]
fn parse_trailers(trailers: &mut Trailers, limits: &HeadLimits) -> Result<(), BodyError> {
    let Trailers { section, fields } = trailers;
    let mut lines = Lines::new(section);
    match read_field_lines(&mut lines, limits, fields, FieldSet::EMPTY, |_, _| Keep::Field) {
        Ok(Some(())) => {}
        Err(LineFault::BareLf) => return Err(BodyError::BareLf),
        Err(LineFault::BareCr) => return Err(BodyError::BareCr),
        Err(LineFault::TooManyFields | LineFault::TooLarge) => {
            return Err(BodyError::TrailersTooLarge);
        }
        _ => return Err(BodyError::BadTrailer),
    }
    fields.retain(|field| may_be_trailer(field.id, field.name));
    debug_assert!(!fields.contains(FieldId::ContentLength), "a trailer that frames was kept");
    Ok(())
}

#[cfg(test)]
mod tests;
