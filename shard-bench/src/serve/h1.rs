//! HTTP/1.1 of the light target: heads in, prepared answers out, all that is ready in one write.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use http_wire::fields::FieldId;
use http_wire::h1::{BodyDecoder, Decoded, HeadLimits, Persistence, RequestMeta, parse_request};
use http_wire::head::{BodyLength, Method, RequestHead, Scheme};

use super::Server;
use super::websocket::{self, accept_of};
use crate::link::{Got, Link, Outbox};

/// Answers that wait for a slow reader, before no more requests are read.
const OUT_BYTES_MAX: usize = 4 << 20;

/// One connection.
pub(super) struct H1 {
    server: Rc<Server>,
    link: Link,
    requests: Requests,
    out: Outbox,
}

/// The requests' bytes to answers.
struct Requests {
    server: Rc<Server>,
    limits: HeadLimits,
    head: RequestHead,
    carry: Vec<u8>,
    /// The last head and what it asked for: equal bytes are not parsed again.
    memo: Vec<u8>,
    meta: Option<(RequestMeta, Rc<[u8]>)>,
    body: Option<Box<BodyDecoder>>,
    /// The answer that waits for the request's body.
    held: Option<Rc<[u8]>>,
    /// The request being read is the connection's last one.
    is_last: bool,
    is_over: bool,
    /// Bytes behind an upgrade to WebSocket.
    upgraded: Option<Vec<u8>>,
}

impl H1 {
    pub(super) fn new(server: Rc<Server>, link: Link) -> Self {
        let requests = Requests {
            server: Rc::clone(&server),
            limits: HeadLimits::default(),
            head: RequestHead::default(),
            carry: Vec::new(),
            memo: Vec::new(),
            meta: None,
            body: None,
            held: None,
            is_last: false,
            is_over: false,
            upgraded: None,
        };
        Self { server, link, requests, out: Outbox::default() }
    }

    /// Runs to the end of the connection; `first` was read already.
    pub(super) async fn run(mut self, first: &[u8]) {
        if self.requests.feed(first, &mut self.out.bytes) {
            poll_fn(|cx| self.poll(cx)).await;
        }
        if let Some(early) = self.requests.upgraded {
            websocket::run(self.server, self.link, self.out, early).await;
        }
    }

    fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        loop {
            if self.requests.upgraded.is_some() {
                return Poll::Ready(());
            }
            match self.link.poll_write(cx, &mut self.out) {
                Poll::Ready(Err(_gone)) => return Poll::Ready(()),
                Poll::Pending if self.out.len() > OUT_BYTES_MAX => return Poll::Pending,
                Poll::Ready(Ok(())) if self.requests.is_over => {
                    self.link.end();
                    return Poll::Ready(());
                }
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
            let mut buffer = self.server.buffer.borrow_mut();
            let read =
                self.link.poll_read(cx, &mut buffer, |bytes| self.requests.feed(bytes, &mut self.out.bytes));
            match ready!(read) {
                Ok(Got::Bytes(true)) => {}
                Ok(Got::Bytes(false) | Got::End) | Err(_) => return Poll::Ready(()),
            }
        }
    }
}

impl Requests {
    /// Answers what is complete. False when the connection is of no more use.
    fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        let mut rest = bytes;
        while !rest.is_empty() && !self.is_over && self.upgraded.is_none() {
            if let Some(decoder) = &mut self.body {
                match decoder.decode(rest) {
                    Ok(Decoded::Data { skip, len }) => rest = rest.get(skip + len..).unwrap_or(&[]),
                    Ok(Decoded::NeedMore { .. }) => return true,
                    Ok(Decoded::End { skip }) => {
                        rest = rest.get(skip..).unwrap_or(&[]);
                        self.body = None;
                    }
                    Err(_broken) => return false,
                }
                if self.body.as_ref().is_none_or(|decoder| decoder.is_done()) {
                    self.body = None;
                    out.extend_from_slice(self.held.take().as_deref().unwrap_or(&[]));
                    self.is_over = self.is_last;
                }
                continue;
            }
            match self.feed_head(rest, out) {
                Some(0) => return true,
                Some(used) => {
                    rest = rest.get(used..).unwrap_or(&[]);
                    if let Some(early) = &mut self.upgraded {
                        early.extend_from_slice(rest);
                    }
                }
                None => return false,
            }
        }
        true
    }

    /// Takes one head and answers it; 0 when it is not complete, None when it is none.
    fn feed_head(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        if self.carry.is_empty() && bytes.starts_with(&self.memo) && self.meta.is_some() {
            let (meta, answer) = self.meta.as_ref()?;
            if meta.body == BodyLength::Empty {
                out.extend_from_slice(answer);
                self.is_over = meta.persistence == Persistence::Close;
                return Some(meta.head_bytes);
            }
            let (meta, answer) = (*meta, Rc::clone(answer));
            self.answer(&meta, answer, out);
            return Some(meta.head_bytes);
        }
        let before = self.carry.len();
        let parsed = if before == 0 {
            parse_request(bytes, &self.limits, Scheme::Http, &mut self.head)
        } else {
            self.carry.extend_from_slice(bytes);
            parse_request(&self.carry, &self.limits, Scheme::Http, &mut self.head)
        };
        let Ok(parsed) = parsed else {
            out.extend_from_slice(
                b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
            );
            self.is_over = true;
            return Some(bytes.len());
        };
        let Some(meta) = parsed else {
            if before == 0 {
                self.carry.extend_from_slice(bytes);
            }
            return Some(0);
        };
        if self.head.protocol() == Some(b"websocket") {
            let accept = accept_of(self.head.fields.get_name(b"sec-websocket-key").unwrap_or(&[]));
            out.extend_from_slice(
                b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n",
            );
            out.extend_from_slice(format!("sec-websocket-accept: {accept}\r\n\r\n").as_bytes());
            self.upgraded = Some(Vec::new());
            return Some(meta.head_bytes - before);
        }
        let whole = if before == 0 { bytes } else { self.carry.as_slice() };
        let mut answer = self.server.answer(self.server.size_of(self.head.path()));
        if self.head.method == Method::Head {
            let end = answer.windows(4).position(|four| four == b"\r\n\r\n").map_or(0, |at| at + 4);
            answer = answer.get(..end).unwrap_or(&[]).into();
        }
        self.memo.clear();
        self.memo.extend_from_slice(whole.get(..meta.head_bytes).unwrap_or(&[]));
        self.carry.clear();
        self.answer(&meta, Rc::clone(&answer), out);
        self.meta = Some((meta, answer));
        Some(meta.head_bytes - before)
    }

    /// Answers now, or when the request's body is whole: a slow sender is to see what it costs.
    fn answer(&mut self, meta: &RequestMeta, answer: Rc<[u8]>, out: &mut Vec<u8>) {
        self.is_last = meta.persistence == Persistence::Close;
        let decoder = BodyDecoder::new(meta.body, self.limits);
        if decoder.is_done() {
            out.extend_from_slice(&answer);
            self.is_over = self.is_last;
        } else {
            // The last head that was read is this one, or has the same bytes.
            if self.head.fields.contains(FieldId::Expect) {
                out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
            }
            self.body = Some(Box::new(decoder));
            self.held = Some(answer);
        }
    }
}
