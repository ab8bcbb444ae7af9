//! Two ends talking to each other, and one end against frames that break the rules.

mod heads;
mod rules;
mod talk;

use std::time::Duration;

use super::frame::{self, FrameHead, HEAD_BYTES, flag, kind};
use super::*;
use crate::fields::Fields;
use crate::head::{RequestHead, ResponseHead, Scheme};

const NOW: Duration = Duration::from_secs(1000);

/// Writes down what an end hears. The user's part of a stream is its number.
#[derive(Default)]
struct Log {
    lines: Vec<String>,
    keys: Vec<StreamKey>,
    heads: Vec<RequestHead>,
}

fn listing(fields: &Fields) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let lines: Vec<String> =
        fields.iter().map(|field| format!("{}={}", text(field.name), text(field.value))).collect();
    lines.join(",")
}

impl Log {
    fn add(&mut self, line: String) {
        self.lines.push(line);
    }

    /// What was heard since the last call.
    fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }
}

impl Events for Log {
    type Stream = u32;

    fn request(
        &mut self,
        key: StreamKey,
        head: &mut RequestHead,
        meta: Result<RequestMeta, HeadError>,
        is_end: bool,
    ) -> u32 {
        let end = if is_end { " end" } else { "" };
        match meta {
            Ok(meta) => self.add(format!(
                "{} request {} {}{} {:?}{end}",
                key.id(),
                String::from_utf8_lossy(head.method_token()),
                String::from_utf8_lossy(head.authority()),
                String::from_utf8_lossy(head.path()),
                meta.body
            )),
            Err(error) => self.add(format!("{} request {error:?}{end}", key.id())),
        }
        self.keys.push(key);
        self.heads.push(std::mem::take(head));
        key.id()
    }

    fn response(&mut self, stream: &mut u32, head: &mut ResponseHead, meta: ResponseMeta) {
        self.add(format!("{stream} response {} {:?} {}", head.status, meta.body, listing(&head.fields)));
    }

    fn data(&mut self, stream: &mut u32, bytes: &[u8]) {
        // Where the bytes were cut says nothing.
        let start = format!("{stream} data ");
        let text = String::from_utf8_lossy(bytes).into_owned();
        match self.lines.last_mut() {
            Some(last) if last.starts_with(&start) => last.push_str(&text),
            _ => self.add(start + &text),
        }
    }

    fn end(&mut self, stream: &mut u32, trailers: Option<Fields>) {
        let trailers = trailers.map_or(String::new(), |fields| format!(" {}", listing(&fields)));
        self.add(format!("{stream} end{trailers}"));
    }

    fn failed(&mut self, stream: &mut u32, fault: StreamFault) {
        self.add(format!("{stream} failed {fault:?}"));
    }

    fn room(&mut self, stream: &mut u32) {
        self.add(format!("{stream} room"));
    }
}

fn config() -> Config {
    Config {
        streams_max: 10,
        stream_window_bytes: 100_000,
        connection_window_bytes: 200_000,
        frame_bytes_max: 16_384,
        head: HeadLimits { list_bytes_max: 4000, fields_max: 10, target_bytes_max: 3000 },
        extended_connect: true,
        scheme: Scheme::Https,
        budgets: Some(FrameBudgets::default()),
    }
}

/// A server that has had a client's preface and SETTINGS, with nothing in its output.
fn server() -> (Connection<u32>, Log) {
    let (mut server, mut log) = (Connection::new(Role::Server, config()), Log::default());
    let mut bytes = PREFACE.to_vec();
    frame::put_settings(&[], &mut bytes);
    server.receive(&bytes, NOW, &mut log).expect("a good beginning");
    sent(&mut server, &mut log);
    (server, log)
}

/// Frames of the output: kind, flags, stream, payload. The output is taken as sent.
fn sent(end: &mut Connection<u32>, log: &mut Log) -> Vec<(u8, u8, u32, Vec<u8>)> {
    let output = end.output().to_vec();
    end.sent(output.len(), log);
    let mut rest = output.strip_prefix(PREFACE).unwrap_or(&output);
    let mut frames = Vec::new();
    while let Some((head, after)) = rest.split_first_chunk::<HEAD_BYTES>() {
        let head = FrameHead::read(*head);
        let (payload, after) = after.split_at(head.len);
        frames.push((head.kind, head.flags, head.stream, payload.to_vec()));
        rest = after;
    }
    frames
}

/// The bytes of a frame.
fn raw(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put_head(kind, flags, stream, payload.len(), &mut out);
    out.extend_from_slice(payload);
    out
}

/// A block of literals that touch no table.
fn block(lines: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in lines {
        out.push(0);
        for text in [name, value] {
            // Lengths from 127 on take more than a byte.
            let len = text.len();
            match u8::try_from(len) {
                Ok(short) if short < 127 => out.push(short),
                _ => {
                    out.push(127);
                    let mut left = len - 127;
                    while left >= 128 {
                        out.push(u8::try_from(left & 0x7f).expect("seven bits") | 0x80);
                        left >>= 7;
                    }
                    out.push(u8::try_from(left).expect("seven bits"));
                }
            }
            out.extend_from_slice(text.as_bytes());
        }
    }
    out
}

const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "https"), (":path", "/"), (":authority", "a.example")];
const POST: [(&str, &str); 4] =
    [(":method", "POST"), (":scheme", "https"), (":path", "/"), (":authority", "a.example")];

fn headers(stream: u32, is_end: bool, lines: &[(&str, &str)]) -> Vec<u8> {
    let end = if is_end { flag::END_STREAM } else { 0 };
    raw(kind::HEADERS, flag::END_HEADERS | end, stream, &block(lines))
}
