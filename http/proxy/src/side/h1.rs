//! An HTTP/1 connection as a side: head and body bytes in, head and body bytes out, one message at a time.
//!
//! While nothing is expected it holds no buffer. Bytes behind a message stay in `input`: the next pipelined
//! request of a client, or the proof that an upstream connection must not be used again (C06).

use std::task::{Context, Poll, ready};

use core_runtime::buf::{BUF_BYTES, Buf};
use core_runtime::net::Pipe;
use http_wire::fields::Fields;
use http_wire::h1::{
    self, BodyDecoder, Decoded, EndOfInput, HeadLimits, HeadProgress, Persistence, RequestFraming,
    RequestMeta, ResponseFraming, ResponseMeta, SentResponse,
};
use http_wire::head::{BodyLength, Method, RequestHead, ResponseHead, Scheme};

use super::output::Output;
use super::{BodyEvent, SideError};
use crate::chunk::Chunk;
use crate::transport::Transport;

/// How the message that is being sent is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// No body may follow; body events are swallowed (an answer to HEAD, a 304).
    Nothing,
    Exact {
        left_bytes: u64,
    },
    Chunked,
    /// As it comes; the end is the end of the connection's sending direction.
    Raw,
}

/// What has gone out of the message that is being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    Nothing,
    /// Its beginning, which may have been posted and lost.
    Once,
    More,
}

/// Rests of bodies below it are copied: two calls more cost as much as the copy.
const PIPED_BYTES_MIN: usize = 32 * 1024;

#[derive(Debug)]
pub(crate) struct H1Side {
    transport: Transport,
    limits: HeadLimits,
    input: Option<Buf>,
    /// The last read filled its buffer: the message is long, and the next read takes a bulk buffer.
    is_bulk: bool,
    progress: HeadProgress,
    decoder: BodyDecoder,
    output: Output,
    framing: Framing,
    /// `End` was taken and, for `Raw`, FIN is still to be sent.
    end_wanted: bool,
    written: Written,
    /// The message that is being sent is the last of the connection.
    is_last: bool,
}

impl H1Side {
    pub(crate) fn new(transport: Transport, limits: HeadLimits) -> Box<Self> {
        Box::new(Self {
            transport,
            limits,
            input: None,
            is_bulk: false,
            progress: HeadProgress::default(),
            decoder: BodyDecoder::new(BodyLength::Empty, limits),
            output: Output::default(),
            framing: Framing::Nothing,
            end_wanted: false,
            written: Written::Nothing,
            is_last: false,
        })
    }

    pub(crate) fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Bytes that were read before the connection became HTTP (behind a PROXY header).
    pub(crate) fn unread(&mut self, buf: Buf) {
        debug_assert!(self.input.is_none(), "bytes are put back before the first read");
        self.input = (!buf.is_empty()).then_some(buf);
    }

    /// Whether bytes behind the current message have been read already.
    pub(crate) fn has_input(&self) -> bool {
        self.input.as_ref().is_some_and(|input| !input.is_empty())
    }

    /// Ready with the first byte of a message (true) or the end of the stream (false). Holds no buffer while waiting.
    ///
    /// That the socket is readable says less: an event may be of bytes that were read already, and a TLS record may hold
    /// none of a message (a key update) or not be there to its end.
    pub(crate) fn poll_begun(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, SideError>> {
        if self.has_input() {
            return Poll::Ready(Ok(true));
        }
        let filled = self.poll_fill(cx);
        if filled.is_pending() {
            // The wait may be long, and a record that brought nothing has left its buffers.
            self.release_buffers();
        }
        filled.map(|filled| match filled {
            // Between messages an end without close_notify cuts nothing off (RFC 9112 §9.8).
            Ok(0) | Err(SideError::Truncated) => Ok(false),
            other => other.map(|_bytes| true),
        })
    }

    /// Reads a request head.
    pub(crate) fn poll_request_head(
        &mut self,
        cx: &mut Context<'_>,
        scheme: Scheme,
        head: &mut RequestHead,
    ) -> Poll<Result<RequestMeta, SideError>> {
        let limits = self.limits;
        loop {
            if let Some(bytes) = self.head_bytes_due()
                && let Some(meta) =
                    h1::parse_request(bytes, &limits, scheme, head).map_err(SideError::RequestHead)?
            {
                self.begin_message(meta.head_bytes, meta.body);
                return Poll::Ready(Ok(meta));
            }
            if ready!(self.poll_fill(cx))? == 0 {
                return Poll::Ready(Err(self.ended()));
            }
        }
    }

    /// Reads a response head, interim ones included.
    pub(crate) fn poll_response_head(
        &mut self,
        cx: &mut Context<'_>,
        request_method: Method,
        head: &mut ResponseHead,
    ) -> Poll<Result<ResponseMeta, SideError>> {
        let limits = self.limits;
        loop {
            if let Some(bytes) = self.head_bytes_due()
                && let Some(meta) = h1::parse_response(bytes, &limits, request_method, head)
                    .map_err(SideError::ResponseHead)?
            {
                self.begin_message(meta.head_bytes, meta.body);
                return Poll::Ready(Ok(meta));
            }
            if ready!(self.poll_fill(cx))? == 0 {
                return Poll::Ready(Err(self.ended()));
            }
        }
    }

    /// What an end means where a head is due.
    fn ended(&self) -> SideError {
        if self.has_input() { SideError::Truncated } else { SideError::Closed }
    }

    /// The bytes to parse as a head, when the last read brought something that can complete it.
    fn head_bytes_due(&mut self) -> Option<&[u8]> {
        let input = self.input.as_ref()?;
        let bytes = input.filled();
        (!bytes.is_empty() && self.progress.is_due(bytes, &self.limits)).then_some(bytes)
    }

    fn begin_message(&mut self, head_bytes: usize, body: BodyLength) {
        if let Some(input) = &mut self.input {
            input.consume(head_bytes);
        }
        self.drop_empty_input();
        self.progress = HeadProgress::default();
        self.decoder = BodyDecoder::new(body, self.limits);
    }

    /// Reads into `input`; 0 is the end of the stream.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, SideError>> {
        if self.input.is_none() {
            ready!(self.transport.poll_readable(cx));
            let buf = if self.is_bulk { Buf::try_take_bulk() } else { Buf::try_take() };
            self.input = Some(buf.ok_or(SideError::OutOfBuffers)?);
        }
        let Some(input) = &mut self.input else { return Poll::Ready(Err(SideError::OutOfBuffers)) };
        if input.spare_len() == 0 {
            input.compact();
        }
        if input.spare_len() == 0 {
            // Only a head longer than a pooled buffer gets here: its own limit bounds the larger one.
            let mut larger =
                Buf::try_take_large(self.limits.head_bytes_max + BUF_BYTES).ok_or(SideError::OutOfBuffers)?;
            larger.extend(input.filled());
            *input = larger;
        }
        let result = self.transport.poll_read(cx, input);
        if let Poll::Ready(Ok(_)) = result {
            self.is_bulk = input.spare_len() == 0;
        }
        self.drop_empty_input();
        result.map_err(SideError::from)
    }

    fn drop_empty_input(&mut self) {
        if self.input.as_ref().is_some_and(Buf::is_empty) {
            self.input = None;
        }
    }

    pub(crate) fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<BodyEvent, SideError>> {
        loop {
            if self.decoder.is_done() {
                return Poll::Ready(Ok(BodyEvent::End(self.decoder.trailers().cloned())));
            }
            let unread = self.input.as_ref().map_or(&[][..], Buf::filled);
            match self.decoder.decode(unread).map_err(SideError::Body)? {
                Decoded::Data { skip, len } => {
                    let chunk = self.take_data(skip, len)?;
                    let is_last = self.decoder.is_done();
                    return Poll::Ready(Ok(if is_last {
                        BodyEvent::Last(chunk)
                    } else {
                        BodyEvent::Data(chunk)
                    }));
                }
                Decoded::NeedMore { skip } => self.skip_input(skip),
                Decoded::End { skip } => {
                    self.skip_input(skip);
                    continue;
                }
            }
            if ready!(self.poll_fill(cx))? == 0 {
                return Poll::Ready(match self.decoder.on_eof() {
                    EndOfInput::Complete => {
                        self.decoder = BodyDecoder::new(BodyLength::Empty, self.limits);
                        Ok(BodyEvent::End(None))
                    }
                    EndOfInput::Truncated => Err(SideError::Truncated),
                });
            }
        }
    }

    /// Whether pieces may be handed over in pipes: nothing looks at them on their way to the socket.
    pub(crate) fn takes_pipes(&self) -> bool {
        self.transport.is_plain() && matches!(self.framing, Framing::Exact { .. })
    }

    /// As [`H1Side::poll_body`], for a sink that takes pipes: the rest of a long body with a known length passes through
    /// the kernel. 1 MB bodies, S6 of the comparison bench.
    pub(crate) fn poll_body_or_pipe(&mut self, cx: &mut Context<'_>) -> Poll<Result<BodyEvent, SideError>> {
        let left_bytes = self.decoder.exact_left_bytes().and_then(|left| usize::try_from(left).ok());
        let Some(left_bytes) = left_bytes.filter(|left| *left >= PIPED_BYTES_MIN) else {
            return self.poll_body(cx);
        };
        if self.input.is_some() || !self.transport.is_plain() {
            return self.poll_body(cx);
        }
        ready!(self.transport.poll_readable(cx));
        let Some(mut pipe) = Pipe::try_take() else { return self.poll_body(cx) };
        let moved = ready!(self.transport.poll_splice_in(cx, &mut pipe, left_bytes))?;
        if moved == 0 {
            return Poll::Ready(Err(SideError::Truncated));
        }
        self.decoder.note_taken(u64::try_from(moved).unwrap_or(u64::MAX));
        let chunk = Chunk::Piped(pipe);
        Poll::Ready(Ok(if self.decoder.is_done() { BodyEvent::Last(chunk) } else { BodyEvent::Data(chunk) }))
    }

    fn skip_input(&mut self, count: usize) {
        if let Some(input) = &mut self.input {
            input.consume(count);
        }
        self.drop_empty_input();
    }

    /// Takes `len` data bytes behind `skip` bytes of framing: the whole buffer when nothing follows, else a copy.
    fn take_data(&mut self, skip: usize, len: usize) -> Result<Chunk, SideError> {
        let Some(mut input) = self.input.take() else { return Err(SideError::OutOfBuffers) };
        input.consume(skip);
        if input.len() == len {
            return Ok(Chunk::Pooled(input));
        }
        let mut piece = Buf::try_take_large(len).ok_or(SideError::OutOfBuffers)?;
        let copied = piece.extend(input.filled().get(..len).unwrap_or(&[]));
        debug_assert_eq!(copied, len, "the piece was made large enough");
        input.consume(copied);
        self.input = Some(input);
        Ok(Chunk::Pooled(piece))
    }

    /// Begins a request to an upstream.
    pub(crate) fn send_request_head(
        &mut self,
        head: &RequestHead,
        framing: RequestFraming,
    ) -> Result<(), SideError> {
        h1::write_request_head(self.output.stage(), head, framing)
            .map_err(|_refused| SideError::NotWritable)?;
        self.framing = framing_for(framing.body);
        self.end_wanted = false;
        self.written = Written::Nothing;
        Ok(())
    }

    /// Begins a response to a client, interim ones included.
    pub(crate) fn send_response_head(
        &mut self,
        head: &ResponseHead,
        framing: ResponseFraming,
    ) -> Result<SentResponse, SideError> {
        let sent = h1::write_response_head(self.output.stage(), head, framing)
            .map_err(|_refused| SideError::NotWritable)?;
        self.framing = framing_for(sent.body);
        self.end_wanted = false;
        self.is_last = sent.persistence == Persistence::Close && !head.is_interim();
        Ok(sent)
    }

    /// From here on bytes pass as they are, both ways (RFC 9110 §7.8).
    pub(crate) fn become_tunnel(&mut self) {
        self.framing = Framing::Raw;
        self.end_wanted = false;
        self.decoder = BodyDecoder::new(BodyLength::UntilClose, self.limits);
    }

    pub(crate) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SideError>> {
        if self.output.has_room() && !self.transport.tcp().is_full() {
            return Poll::Ready(Ok(()));
        }
        self.poll_write_out(cx)
    }

    fn poll_write_out(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SideError>> {
        let was_waiting = !self.output.is_empty();
        let mut result = self.output.poll_write(&mut self.transport, cx);
        if matches!(result, Poll::Ready(Ok(()))) {
            if self.is_last && matches!(self.framing, Framing::Nothing | Framing::Exact { left_bytes: 0 }) {
                self.transport.end_behind();
            }
            result = self.transport.poll_flush(cx);
        }
        if was_waiting && !matches!(result, Poll::Ready(Err(_))) {
            self.written = match self.written {
                Written::Nothing => Written::Once,
                Written::Once | Written::More => Written::More,
            };
        }
        result.map_err(SideError::from)
    }

    pub(crate) fn send_body(&mut self, event: BodyEvent) -> Result<(), SideError> {
        match event {
            BodyEvent::Data(chunk) => self.send_data(chunk),
            BodyEvent::Last(chunk) => {
                self.send_data(chunk)?;
                self.send_end(None)
            }
            BodyEvent::End(trailers) => self.send_end(trailers.as_ref()),
        }
    }

    fn send_data(&mut self, chunk: Chunk) -> Result<(), SideError> {
        match self.framing {
            Framing::Nothing => {}
            Framing::Exact { left_bytes } => {
                let len = u64::try_from(chunk.len()).map_err(|_wide| SideError::LengthMismatch)?;
                let left_bytes = left_bytes.checked_sub(len).ok_or(SideError::LengthMismatch)?;
                self.framing = Framing::Exact { left_bytes };
                self.output.push(chunk);
            }
            Framing::Chunked => {
                h1::write_chunk_header(self.output.stage(), chunk.len());
                self.output.push(chunk);
                self.output.stage().extend_from_slice(h1::CHUNK_END);
            }
            Framing::Raw => self.output.push(chunk),
        }
        Ok(())
    }

    fn send_end(&mut self, trailers: Option<&Fields>) -> Result<(), SideError> {
        match self.framing {
            // Trailers have no place behind a length; the message is whole without them (C12).
            Framing::Nothing | Framing::Exact { left_bytes: 0 } => {}
            Framing::Exact { .. } => return Err(SideError::LengthMismatch),
            Framing::Chunked => h1::write_last_chunk(self.output.stage(), trailers),
            Framing::Raw => self.end_wanted = true,
        }
        if self.framing != Framing::Raw {
            self.framing = Framing::Nothing;
        }
        Ok(())
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SideError>> {
        ready!(self.poll_write_out(cx))?;
        if self.end_wanted {
            ready!(self.transport.poll_end(cx))?;
            self.end_wanted = false;
        }
        Poll::Ready(Ok(()))
    }

    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let tcp = self.transport.tcp();
        if tcp.has_failed() {
            return Poll::Ready(());
        }
        // Registers for the next event; what is readable now stays for the body or the next request.
        match tcp.poll_readable(cx) {
            Poll::Ready(()) | Poll::Pending => Poll::Pending,
        }
    }

    /// Whether an upstream connection can take another request: the message has ended, nothing came behind it,
    /// nothing waits to be written, and the peer is still there.
    pub(crate) fn is_reusable(&mut self, meta_persistence: Persistence) -> bool {
        meta_persistence == Persistence::KeepAlive
            && self.decoder.is_done()
            && matches!(self.framing, Framing::Nothing | Framing::Exact { left_bytes: 0 })
            && self.output.is_empty()
            && !self.has_input()
            && self.transport.is_quiet()
    }

    /// Gives back memory before a wait of unknown length.
    pub(crate) fn release_buffers(&mut self) {
        self.transport.release_buffers();
    }

    /// Whether events have told that an idle connection was closed or has failed.
    pub(crate) fn is_over(&self) -> bool {
        self.transport.tcp().is_ended()
    }

    /// Whether an idle pooled connection is still alive and silent.
    pub(crate) fn is_quiet(&mut self) -> bool {
        !self.has_input() && self.transport.is_quiet()
    }

    /// Whether the end of the response that is being sent is the end of the connection, so that only a reset can say
    /// that it was cut.
    pub(crate) fn ends_by_close(&self) -> bool {
        self.framing == Framing::Raw
    }

    /// Whether the socket took any byte of the request that is being sent.
    pub(crate) fn has_written(&self) -> bool {
        match self.written {
            Written::Nothing => false,
            Written::Once => !self.transport.tcp().has_lost_post(),
            Written::More => true,
        }
    }

    /// Whether the incoming message has been received to its end.
    pub(crate) fn has_received_all(&self) -> bool {
        self.decoder.is_done()
    }

    /// Ends the sending direction, then reads and drops what still comes until the peer ends too: a close with
    /// unread bytes would reset the connection and could destroy the answer on its way (RFC 9112 §9.6).
    pub(crate) fn poll_linger(&mut self, cx: &mut Context<'_>, left_bytes: &mut u64) -> Poll<()> {
        loop {
            self.input = None;
            match ready!(self.poll_fill(cx)) {
                Ok(0) | Err(_) => return Poll::Ready(()),
                Ok(got) => {
                    let got = u64::try_from(got).unwrap_or(u64::MAX);
                    *left_bytes = left_bytes.saturating_sub(got);
                    if *left_bytes == 0 {
                        return Poll::Ready(());
                    }
                }
            }
        }
    }

    /// Sends FIN (and close_notify).
    pub(crate) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SideError>> {
        ready!(self.poll_write_out(cx))?;
        self.transport.poll_end(cx).map_err(SideError::from)
    }
}

fn framing_for(body: BodyLength) -> Framing {
    match body {
        BodyLength::Empty => Framing::Nothing,
        BodyLength::Exact(left_bytes) => Framing::Exact { left_bytes },
        BodyLength::Streamed => Framing::Chunked,
        BodyLength::UntilClose => Framing::Raw,
    }
}
