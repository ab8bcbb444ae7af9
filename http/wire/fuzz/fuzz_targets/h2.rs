//! An HTTP/2 connection of either role: it hears and says the same however the bytes are cut, holds no more than its
//! bounds, and what it decodes of header blocks is encoded to the same.
//! Input: how the bytes are cut and whose they are, bytes behind the preface.

#![no_main]

use std::time::Duration;

use http_wire::fields::{FieldId, Fields};
use http_wire::h2::hpack::{Class, Decoder, Encoder, Indexing, TABLE_BYTES_MAX};
use http_wire::h2::{
    Config, Connection, Events, FrameBudgets, HeadError, HeadLimits, PREFACE, RequestMeta, ResponseMeta, Role,
    StreamFault, StreamKey,
};
use http_wire::head::{BodyLength, RequestHead, ResponseHead, Scheme};
use libfuzzer_sys::fuzz_target;

const NOW: Duration = Duration::from_secs(7);
const STREAMS_MAX: u32 = 5;
const WINDOW_BYTES: u32 = 70_000;

#[derive(Default, PartialEq, Eq, Debug)]
struct Log {
    lines: Vec<String>,
    keys: Vec<StreamKey>,
    data_bytes: usize,
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
        if meta.is_ok() {
            assert!(!head.authority().is_empty() && !head.path().is_empty());
            check(&head.fields);
        }
        assert_ne!(meta, Err(HeadError::Malformed));
        self.lines.push(format!("{} {meta:?} {is_end}", key.id()));
        self.keys.push(key);
        key.id()
    }

    fn response(&mut self, stream: &mut u32, head: &mut ResponseHead, meta: ResponseMeta) {
        assert!((100..1000).contains(&head.status));
        check(&head.fields);
        self.lines.push(format!("{stream} {} {meta:?}", head.status));
    }

    fn data(&mut self, stream: &mut u32, bytes: &[u8]) {
        assert!(!bytes.is_empty());
        self.data_bytes += bytes.len();
        let start = format!("{stream} data ");
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self.lines.last_mut() {
            Some(last) if last.starts_with(&start) => last.push_str(&text),
            _ => self.lines.push(start + &text),
        }
    }

    fn end(&mut self, stream: &mut u32, trailers: Option<Fields>) {
        trailers.iter().for_each(check);
        self.lines.push(format!("{stream} end {}", trailers.map_or(0, |fields| fields.len())));
    }

    fn failed(&mut self, stream: &mut u32, fault: StreamFault) {
        self.lines.push(format!("{stream} {fault:?}"));
    }

    fn room(&mut self, stream: &mut u32) {
        self.lines.push(format!("{stream} room"));
    }
}

/// What reaches an h1 hop: lower-case tokens, values without CTL.
fn check(fields: &Fields) {
    for field in fields.iter() {
        assert!(http_wire::token::is_token(field.name) && !field.name.iter().any(u8::is_ascii_uppercase));
        assert!(http_wire::token::is_field_value(field.value));
        assert_eq!(FieldId::from_lower(field.name), field.id);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&how, bytes)) = data.split_first() else { return };
    let role = if how & 0x80 == 0 { Role::Server } else { Role::Client };
    let whole = run(role, u64::MAX, [bytes]);
    assert_eq!(run(role, u64::MAX, bytes.chunks(usize::from(how & 0x7f) + 1)), whole);
    assert_eq!(run(role, 1, [bytes]), whole);
    recode(bytes);
});

/// `at_once`: streams that the peer may open before it is asked again.
fn run<'a>(role: Role, at_once: u64, pieces: impl IntoIterator<Item = &'a [u8]>) -> (Log, Vec<u8>, bool) {
    let config = Config {
        streams_max: STREAMS_MAX,
        stream_window_bytes: WINDOW_BYTES,
        connection_window_bytes: WINDOW_BYTES,
        frame_bytes_max: 16_384,
        head: HeadLimits { list_bytes_max: 2000, fields_max: 20, target_bytes_max: 1000 },
        extended_connect: true,
        scheme: Scheme::Https,
        budgets: (role == Role::Server).then(FrameBudgets::default),
    };
    let (mut connection, mut log) = (Connection::new(role, config), Log::default());
    let beginning = if role == Role::Server { PREFACE } else { &[] };
    assert!(connection.receive(beginning, NOW, &mut log).is_ok());
    if role == Role::Client {
        let mut head = RequestHead::default();
        head.set_method(b"GET").expect("a token");
        head.set_authority(b"a").expect("short");
        head.set_path(b"/").expect("short");
        for _ in 0..2 {
            connection.send_request(&head, BodyLength::Streamed, false, Scheme::Https, 1).expect("open");
        }
    }
    let is_over = pieces.into_iter().any(|mut piece| {
        while !piece.is_empty() {
            let opened_max = connection.streams_opened().saturating_add(at_once);
            let Ok(taken) = connection.receive_until(opened_max, piece, NOW, &mut log) else { return true };
            assert!(taken > 0);
            piece = &piece[taken..];
        }
        false
    });
    assert!(connection.streams() <= STREAMS_MAX as usize);
    assert!(log.data_bytes <= WINDOW_BYTES as usize, "nothing was given back");
    for key in &log.keys {
        connection.release(*key, 0, NOW);
    }
    assert!(role == Role::Client || connection.streams() == 0);
    (log, connection.output().to_vec(), is_over)
}

/// What a block decodes to is encoded and decoded to the same.
fn recode(block: &[u8]) {
    let mut lines = Vec::new();
    if Decoder::new().decode(block, |line| lines.push((line.class, line.name().to_vec(), line.value().to_vec()))).is_err()
    {
        return;
    }
    let (mut encoder, mut decoder, mut out) = (Encoder::new(), Decoder::new(), Vec::new());
    for (nth, (class, name, value)) in lines.iter().enumerate() {
        let id = if let Class::Field(id) = class { *id } else { FieldId::Other };
        let indexing = [Indexing::Index, Indexing::NameOnly, Indexing::Never][nth % 3];
        encoder.put(id, name, value, indexing, &mut out);
    }
    let mut again = Vec::new();
    let decoded = decoder.decode(&out, |line| again.push((line.class, line.name().to_vec(), line.value().to_vec())));
    assert!(decoded.is_ok() && out.len() < block.len().max(1) * TABLE_BYTES_MAX + TABLE_BYTES_MAX);
    assert_eq!(again, lines);
}
