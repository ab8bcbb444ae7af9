//! Bytes of a connection to the ends of its responses. Sans-IO.
//!
//! A head that equals the connection's last one byte for byte is not parsed again: equal bytes have one meaning.
//! Bodies are counted, not kept; what is kept between reads is an unfinished head only.

use http_wire::h1::{
    BodyDecoder, Decoded, EndOfInput, HeadLimits, Persistence, ResponseMeta, parse_response,
};
use http_wire::head::{BodyLength, Method, ResponseHead};

use crate::number::{count, length};

/// What the bytes contained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A final response's head is complete and its body has begun or ended.
    Head,
    /// The response to the oldest request is complete.
    End { status: u16, is_last: bool },
    /// The server has agreed to switch protocols; bytes behind it are not HTTP.
    Switched,
}

/// Why the connection is of no more use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    Parse(String),
    /// Bytes where no response is due.
    Unasked,
}

#[derive(Debug)]
enum Body {
    /// Between responses.
    None,
    Exact(u64),
    Decoded(Box<BodyDecoder>),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct ResponseReader {
    limits: HeadLimits,
    head: ResponseHead,
    /// The last final head, its bytes, and what it said.
    memo: Vec<u8>,
    memo_method: Method,
    meta: Option<(ResponseMeta, u16)>,
    /// An unfinished head.
    carry: Vec<u8>,
    body: Body,
    status: u16,
    is_last: bool,
}

impl ResponseReader {
    pub(crate) fn new() -> Self {
        Self {
            limits: HeadLimits::default(),
            head: ResponseHead::default(),
            memo: Vec::new(),
            memo_method: Method::Get,
            meta: None,
            carry: Vec::new(),
            body: Body::None,
            status: 0,
            is_last: false,
        }
    }

    /// Whether a response has begun and not ended.
    #[cfg(test)]
    pub(crate) fn is_within(&self) -> bool {
        !matches!(self.body, Body::None) || !self.carry.is_empty()
    }

    /// Takes bytes. `method` tells the method of the oldest request that waits, None when none does; `event` is
    /// told what happened. Returns what was not taken behind a switch of protocols.
    ///
    /// # Errors
    /// When the connection is of no more use.
    pub(crate) fn feed<'b, S: Sink>(&mut self, bytes: &'b [u8], sink: &mut S) -> Result<&'b [u8], Broken> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match &mut self.body {
                Body::None => match self.feed_head(rest, sink)? {
                    Head::Incomplete => return Ok(&[]),
                    Head::Taken(used) => rest = rest.get(used..).unwrap_or(&[]),
                    Head::Switched(used) => return Ok(rest.get(used..).unwrap_or(&[])),
                },
                Body::Exact(left) => {
                    let used = (*left).min(count(rest.len()));
                    *left -= used;
                    rest = rest.get(length(used)..).unwrap_or(&[]);
                    if *left == 0 {
                        self.end(sink);
                    }
                }
                Body::Decoded(decoder) => {
                    let decoded =
                        decoder.decode(rest).map_err(|error| Broken::Parse(format!("{error:?}")))?;
                    match decoded {
                        Decoded::Data { skip, len } => rest = rest.get(skip + len..).unwrap_or(&[]),
                        // A trailer section that is cut is kept inside the decoder.
                        Decoded::NeedMore { skip: _ } => return Ok(&[]),
                        Decoded::End { skip } => {
                            rest = rest.get(skip..).unwrap_or(&[]);
                            self.end(sink);
                        }
                    }
                }
            }
        }
        if let Body::Decoded(decoder) = &self.body
            && decoder.is_done()
        {
            self.end(sink);
        }
        Ok(&[])
    }

    /// The peer has ended. Whether that completes a response.
    pub(crate) fn on_end<S: Sink>(&mut self, sink: &mut S) -> bool {
        match &self.body {
            Body::Decoded(decoder) if decoder.on_eof() == EndOfInput::Complete => {
                self.end(sink);
                true
            }
            _ => false,
        }
    }

    fn end<S: Sink>(&mut self, sink: &mut S) {
        self.body = Body::None;
        sink.event(Event::End { status: self.status, is_last: self.is_last });
    }

    fn feed_head<S: Sink>(&mut self, bytes: &[u8], sink: &mut S) -> Result<Head, Broken> {
        let Some(method) = sink.method() else { return Err(Broken::Unasked) };
        if self.carry.is_empty()
            && method == self.memo_method
            && bytes.starts_with(&self.memo)
            && let Some((meta, status)) = self.meta
        {
            self.begin(&meta, status, sink);
            return Ok(Head::Taken(meta.head_bytes));
        }
        let before = self.carry.len();
        let parsed = if before == 0 {
            parse_response(bytes, &self.limits, method, &mut self.head)
        } else {
            self.carry.extend_from_slice(bytes);
            parse_response(&self.carry, &self.limits, method, &mut self.head)
        };
        let meta = match parsed {
            Ok(Some(meta)) => meta,
            Ok(None) => {
                if before == 0 {
                    self.carry.extend_from_slice(bytes);
                }
                return Ok(Head::Incomplete);
            }
            Err(error) => return Err(Broken::Parse(format!("{error:?}"))),
        };
        let used = meta.head_bytes - before;
        let whole = if before == 0 { bytes } else { self.carry.as_slice() };
        if self.head.status == 101 {
            self.carry.clear();
            sink.event(Event::Switched);
            return Ok(Head::Switched(used));
        }
        if self.head.is_interim() {
            self.carry.clear();
            return Ok(Head::Taken(used));
        }
        self.memo.clear();
        self.memo.extend_from_slice(whole.get(..meta.head_bytes).unwrap_or(&[]));
        self.memo_method = method;
        self.meta = Some((meta, self.head.status));
        self.carry.clear();
        self.begin(&meta, self.head.status, sink);
        Ok(Head::Taken(used))
    }

    fn begin<S: Sink>(&mut self, meta: &ResponseMeta, status: u16, sink: &mut S) {
        self.status = status;
        self.is_last = meta.persistence == Persistence::Close;
        sink.event(Event::Head);
        match meta.body {
            BodyLength::Empty | BodyLength::Exact(0) => self.end(sink),
            BodyLength::Exact(bytes) => self.body = Body::Exact(bytes),
            length => self.body = Body::Decoded(Box::new(BodyDecoder::new(length, self.limits))),
        }
    }
}

enum Head {
    Incomplete,
    Taken(usize),
    Switched(usize),
}

/// Who hears of the responses, and knows what was asked.
pub(crate) trait Sink {
    /// The method of the oldest request without a response.
    fn method(&self) -> Option<Method>;
    fn event(&mut self, event: Event);
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Log {
        methods: Vec<Method>,
        events: Vec<Event>,
    }

    impl Sink for Log {
        fn method(&self) -> Option<Method> {
            self.methods.first().copied()
        }

        fn event(&mut self, event: Event) {
            if matches!(event, Event::End { .. }) {
                self.methods.remove(0);
            }
            self.events.push(event);
        }
    }

    fn log(methods: &[Method]) -> Log {
        Log { methods: methods.to_vec(), events: Vec::new() }
    }

    fn ends(log: &Log) -> Vec<(u16, bool)> {
        let end = |event: &Event| match event {
            Event::End { status, is_last } => Some((*status, *is_last)),
            _ => None,
        };
        log.events.iter().filter_map(end).collect()
    }

    const STREAM: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello\
        HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nworld\
        HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n\
        HTTP/1.1 404 Not Found\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx: y\r\n\r\n\
        HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n\
        HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
    const METHODS: [Method; 5] = [Method::Get, Method::Get, Method::Get, Method::Head, Method::Get];
    const WANT: [(u16, bool); 5] = [(200, false), (200, false), (404, false), (200, false), (204, true)];

    #[test]
    fn every_split_gives_the_same_responses() {
        for cut in 0..STREAM.len() {
            let (a, b) = STREAM.split_at(cut);
            let mut reader = ResponseReader::new();
            let mut log = log(&METHODS);
            for part in [a, b] {
                reader.feed(part, &mut log).expect("good");
            }
            assert_eq!(ends(&log), WANT, "cut at {cut}");
            assert!(!reader.is_within());
        }
        let mut reader = ResponseReader::new();
        let mut log = log(&METHODS);
        for byte in STREAM {
            reader.feed(std::slice::from_ref(byte), &mut log).expect("good");
        }
        assert_eq!(ends(&log), WANT, "byte by byte");
    }

    #[test]
    fn an_end_completes_only_a_body_that_runs_to_it() {
        let mut reader = ResponseReader::new();
        let mut until_close = log(&[Method::Get]);
        reader.feed(b"HTTP/1.1 200 OK\r\n\r\nabc", &mut until_close).expect("good");
        assert!(reader.is_within() && reader.on_end(&mut until_close));
        assert_eq!(ends(&until_close), [(200, true)]);
        let mut reader = ResponseReader::new();
        let mut cut = log(&[Method::Get]);
        reader.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", &mut cut).expect("good");
        assert!(reader.is_within() && !reader.on_end(&mut cut));
    }

    #[test]
    fn faults_end_the_connection() {
        let mut reader = ResponseReader::new();
        assert_eq!(reader.feed(b"HTTP/1.1 200 OK\r\n", &mut log(&[])), Err(Broken::Unasked));
        assert!(matches!(reader.feed(b"SSH-2.0\r\n\r\n", &mut log(&[Method::Get])), Err(Broken::Parse(_))));
    }

    #[test]
    fn bytes_behind_a_switch_are_handed_back() {
        let mut reader = ResponseReader::new();
        let mut log = log(&[Method::Get]);
        let bytes = b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n\x81\x00";
        assert_eq!(reader.feed(bytes, &mut log), Ok(&b"\x81\x00"[..]));
        assert_eq!(log.events, [Event::Switched]);
    }
}
