//! Budgets for HTTP/2 frames that are cheap to send and dear to handle.
//!
//! The meter is fed every byte that a connection receives, before the h2 crate sees it, and looks only at
//! the nine bytes of each frame head (RFC 9113 §4.1). It counts; it judges no syntax: a malformed frame is
//! the h2 crate's affair. Guards, each a `Budget`:
//!
//! - resets that the peer sends (rapid reset, CVE-2023-44487) and resets that it makes us send (MadeYouReset,
//!   CVE-2025-8671) out of one purse;
//! - PING, SETTINGS, PRIORITY, WINDOW_UPDATE and unknown frames (CVE-2019-9512, -9515, -9513, -9511);
//! - CONTINUATION frames in a row (CVE-2024-27316 and kin);
//! - DATA frames with little or nothing in them (CVE-2019-9518, and the 1-byte DATA flood).
//!
//! Control frames that honest clients send in step with the traffic are paid for by that traffic, so a long
//! download or a busy gRPC channel runs into no budget: see `Credit`.
//! The connection owns one meter per h2 connection and answers a `Flood` with GOAWAY ENHANCE_YOUR_CALM.

mod budget;
#[cfg(test)]
mod tests;

use std::time::Duration;

use budget::{Credit, Overspent, Purse};

pub use budget::Budget;

/// Bytes of the client's connection preface (RFC 9113 §3.4).
const PREFACE_BYTES: usize = 24;
/// Bytes of a frame head (RFC 9113 §4.1). Padded DATA is read one byte further, for its pad length (§6.1).
const HEAD_BYTES: usize = 9;

const FLAG_END_STREAM: u8 = 0x01;
const FLAG_PADDED: u8 = 0x08;

/// DATA frames with fewer bytes are small.
const SMALL_DATA_BYTES: u32 = 64;
/// An empty DATA frame without END_STREAM serves no purpose (CVE-2019-9518); it costs as much as this many
/// small ones.
const EMPTY_DATA_WEIGHT: u32 = 10;

/// The budgets of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameBudgets {
    /// RST_STREAM, received and sent together. A browser that leaves a page cancels about 100 streams at once.
    pub resets: Budget,
    /// SETTINGS, PING, PRIORITY, WINDOW_UPDATE and frames of other types, less those that traffic pays for.
    pub control_frames: Budget,
    /// DATA frames under 64 bytes without END_STREAM. gRPC streams of tiny messages are made of them.
    pub small_data_frames: Budget,
    /// CONTINUATION frames behind one HEADERS frame.
    pub continuations_in_row_max: u32,
}

impl Default for FrameBudgets {
    fn default() -> Self {
        let window = Duration::from_secs(10);
        Self {
            resets: Budget { frames: 300, window, burst: 300 },
            control_frames: Budget { frames: 2_000, window, burst: 1_000 },
            small_data_frames: Budget { frames: 30_000, window, burst: 10_000 },
            continuations_in_row_max: 16,
        }
    }
}

/// Which budget was overspent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flood {
    Resets,
    ControlFrames,
    SmallDataFrames,
    Continuations,
}

impl Flood {
    /// A short English reason for logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Resets => "too many stream resets",
            Self::ControlFrames => "too many control frames",
            Self::SmallDataFrames => "too many small DATA frames",
            Self::Continuations => "too many CONTINUATION frames",
        }
    }
}

/// Frames received so far. The idle timer looks at `streams_opened` and `data_bytes`, which control frames do
/// not move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameCounts {
    /// HEADERS frames with a stream id above all before. Meaningful on the server side.
    pub streams_opened: u64,
    /// All HEADERS frames, trailers included.
    pub headers_frames: u64,
    pub data_frames: u64,
    /// Content of DATA frames, without padding.
    pub data_bytes: u64,
    pub resets_received: u64,
    pub resets_sent: u64,
    pub control_frames: u64,
}

/// Scans the frame heads of one direction of one connection.
#[derive(Clone, Debug)]
pub struct FrameMeter {
    /// Bytes of a frame that still have to pass.
    payload_left: usize,
    /// A head that was split over reads; `head_have` bytes of it are there, never more than `HEAD_BYTES`.
    head: [u8; HEAD_BYTES],
    head_have: usize,
    stream_id_max: u32,
    continuations_in_row: u32,
    continuations_in_row_max: u32,
    resets: Purse,
    control_frames: Purse,
    small_data_frames: Purse,
    credit: Credit,
    counts: FrameCounts,
    flood: Option<Flood>,
}

impl FrameMeter {
    /// A meter for bytes that begin with a frame.
    pub fn new(budgets: &FrameBudgets) -> Self {
        Self {
            payload_left: 0,
            head: [0; HEAD_BYTES],
            head_have: 0,
            stream_id_max: 0,
            continuations_in_row: 0,
            continuations_in_row_max: budgets.continuations_in_row_max,
            resets: Purse::new(budgets.resets),
            control_frames: Purse::new(budgets.control_frames),
            small_data_frames: Purse::new(budgets.small_data_frames),
            credit: Credit::default(),
            counts: FrameCounts::default(),
            flood: None,
        }
    }

    /// A meter for bytes that begin with the client's 24-byte preface, which is skipped unseen.
    pub fn at_preface(budgets: &FrameBudgets) -> Self {
        Self { payload_left: PREFACE_BYTES, ..Self::new(budgets) }
    }

    pub const fn counts(&self) -> &FrameCounts {
        &self.counts
    }

    /// Counts the frames that begin in `bytes`, the next bytes of the connection. `now` is the shard's time
    /// and never goes back.
    ///
    /// # Errors
    /// `Flood`, now and on every later call.
    pub fn feed(&mut self, bytes: &[u8], now: Duration) -> Result<(), Flood> {
        if let Some(flood) = self.flood {
            return Err(flood);
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.payload_left > 0 {
                let passed = self.payload_left.min(rest.len());
                self.payload_left -= passed;
                rest = rest.get(passed..).unwrap_or(&[]);
                continue;
            }
            let Some((head, after)) = self.take_head(rest) else {
                break;
            };
            rest = after;
            self.payload_left = head.payload_left;
            let spent = self.spend_on(&head, now);
            self.note(spent)?;
        }
        Ok(())
    }

    /// A stream error made us send RST_STREAM: a peer can provoke that at will (CVE-2025-8671), so it costs
    /// as much as one that the peer sends. Cancellations of our own making are not to be noted.
    ///
    /// # Errors
    /// As [`FrameMeter::feed`].
    pub fn note_reset_sent(&mut self, now: Duration) -> Result<(), Flood> {
        if let Some(flood) = self.flood {
            return Err(flood);
        }
        self.counts.resets_sent += 1;
        let spent = self.resets.spend(1, now).map_err(|Overspent| Flood::Resets);
        self.note(spent)
    }

    /// A DATA frame with `bytes` of content went out. It pays for the peer's WINDOW_UPDATEs and for a PING;
    /// without these calls a long download runs into the budget.
    pub fn note_data_sent(&mut self, bytes: usize) {
        self.credit.data_sent(bytes);
    }

    fn note(&mut self, spent: Result<(), Flood>) -> Result<(), Flood> {
        self.flood = spent.err();
        spent
    }

    /// The next frame head, and the bytes behind it. None: all bytes were kept, and more are needed.
    fn take_head<'a>(&mut self, bytes: &'a [u8]) -> Option<(Head, &'a [u8])> {
        if self.head_have == 0
            && let Some((head, after)) = bytes.split_first_chunk::<HEAD_BYTES>()
            && !is_padded_data(head)
        {
            return Some((Head::of(head, None), after));
        }
        let mut rest = bytes;
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            if self.head_have == HEAD_BYTES {
                self.head_have = 0;
                return Some((Head::of(&self.head, Some(byte)), rest));
            }
            self.head[self.head_have] = byte;
            self.head_have += 1;
            if self.head_have == HEAD_BYTES && !is_padded_data(&self.head) {
                self.head_have = 0;
                return Some((Head::of(&self.head, None), rest));
            }
        }
        None
    }

    fn spend_on(&mut self, head: &Head, now: Duration) -> Result<(), Flood> {
        let continuations_before = std::mem::take(&mut self.continuations_in_row);
        match head.kind {
            Kind::Data => return self.spend_on_data(head, now),
            Kind::Headers => {
                self.counts.headers_frames += 1;
                if head.stream_id > self.stream_id_max {
                    self.stream_id_max = head.stream_id;
                    self.counts.streams_opened += 1;
                    self.credit.stream_opened();
                }
            }
            Kind::Continuation => {
                self.continuations_in_row = continuations_before.saturating_add(1);
                if self.continuations_in_row > self.continuations_in_row_max {
                    return Err(Flood::Continuations);
                }
            }
            Kind::RstStream => {
                self.counts.resets_received += 1;
                return self.resets.spend(1, now).map_err(|Overspent| Flood::Resets);
            }
            Kind::Settings | Kind::Ping | Kind::Other => {
                self.counts.control_frames += 1;
                if !self.credit.pays_for(head.kind) {
                    return self.control_frames.spend(1, now).map_err(|Overspent| Flood::ControlFrames);
                }
            }
        }
        Ok(())
    }

    fn spend_on_data(&mut self, head: &Head, now: Duration) -> Result<(), Flood> {
        self.counts.data_frames += 1;
        self.counts.data_bytes += u64::from(head.content_bytes);
        if head.is_stream_end || head.content_bytes >= SMALL_DATA_BYTES {
            return Ok(());
        }
        let weight = if head.content_bytes == 0 { EMPTY_DATA_WEIGHT } else { 1 };
        self.small_data_frames.spend(weight, now).map_err(|Overspent| Flood::SmallDataFrames)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Data,
    Headers,
    RstStream,
    Settings,
    Ping,
    Continuation,
    /// PRIORITY, WINDOW_UPDATE, PRIORITY_UPDATE, and what a client should not or need not send.
    Other,
}

/// What is wanted of a frame head.
#[derive(Clone, Copy, Debug)]
struct Head {
    kind: Kind,
    is_stream_end: bool,
    stream_id: u32,
    /// Length less padding.
    content_bytes: u32,
    /// Bytes of the frame behind the part of it that was read as head.
    payload_left: usize,
}

impl Head {
    /// RFC 9113 §4.1. `pad_bytes` is there when the pad length was read as part of the head.
    fn of(head: &[u8; HEAD_BYTES], pad_bytes: Option<u8>) -> Self {
        let [l2, l1, l0, kind, flags, s3, s2, s1, s0] = *head;
        let payload_bytes = u32::from_be_bytes([0, l2, l1, l0]);
        let padding = pad_bytes.map_or(0, |pad| u32::from(pad) + 1);
        Self {
            kind: match kind {
                0 => Kind::Data,
                1 => Kind::Headers,
                3 => Kind::RstStream,
                4 => Kind::Settings,
                6 => Kind::Ping,
                9 => Kind::Continuation,
                _ => Kind::Other,
            },
            is_stream_end: flags & FLAG_END_STREAM != 0,
            stream_id: u32::from_be_bytes([s3, s2, s1, s0]) & 0x7fff_ffff,
            content_bytes: payload_bytes.saturating_sub(padding),
            payload_left: payload_bytes.saturating_sub(u32::from(pad_bytes.is_some())) as usize,
        }
    }
}

/// DATA whose content is known only with its pad length; one of length 0 is broken and has none.
fn is_padded_data(head: &[u8; HEAD_BYTES]) -> bool {
    let [l2, l1, l0, kind, flags, ..] = *head;
    kind == 0 && flags & FLAG_PADDED != 0 && (l2 | l1 | l0) != 0
}
