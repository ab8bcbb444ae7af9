//! Budgets for HTTP/2 frames that are cheap to send and dear to handle.
//!
//! The connection tells the meter of every frame that comes, before it looks into it. The meter counts; it judges no
//! syntax. Guards, each a `Budget`:
//!
//! - resets that the peer sends (rapid reset, CVE-2023-44487) and resets that it makes us send (MadeYouReset,
//!   CVE-2025-8671) out of one purse;
//! - PING, SETTINGS, PRIORITY, WINDOW_UPDATE and unknown frames (CVE-2019-9512, -9515, -9513, -9511);
//! - CONTINUATION frames in a row (CVE-2024-27316 and kin);
//! - DATA frames with little or nothing in them (CVE-2019-9518, and the 1-byte DATA flood).
//!
//! Control frames that honest clients send in step with the traffic are paid for by that traffic, so a long
//! download or a busy gRPC channel runs into no budget: see `Credit`.
//! A `Flood` ends the connection with GOAWAY ENHANCE_YOUR_CALM.

mod budget;
#[cfg(test)]
mod tests;

use std::time::Duration;

use budget::{Credit, Overspent, Purse};

use super::frame::kind;

pub use budget::Budget;

/// DATA frames with fewer bytes are small.
const SMALL_DATA_BYTES: usize = 64;
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

/// A frame that has come, as far as the meter looks at it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) is_stream_end: bool,
    pub(super) stream_id: u32,
    /// Of DATA: its payload without padding, in bytes.
    pub(super) content_bytes: usize,
}

/// Counts the frames of one direction of one connection.
#[derive(Clone, Debug)]
pub(super) struct FrameMeter {
    stream_id_max: u32,
    continuations_in_row: u32,
    continuations_in_row_max: u32,
    resets: Purse,
    control_frames: Purse,
    small_data_frames: Purse,
    credit: Credit,
}

impl FrameMeter {
    pub(super) fn new(budgets: &FrameBudgets) -> Self {
        Self {
            stream_id_max: 0,
            continuations_in_row: 0,
            continuations_in_row_max: budgets.continuations_in_row_max,
            resets: Purse::new(budgets.resets),
            control_frames: Purse::new(budgets.control_frames),
            small_data_frames: Purse::new(budgets.small_data_frames),
            credit: Credit::default(),
        }
    }

    /// A stream error made us send RST_STREAM: a peer can provoke that at will (CVE-2025-8671), so it costs
    /// as much as one that the peer sends. Cancellations of our own making are not to be noted.
    ///
    /// # Errors
    /// As [`FrameMeter::note`].
    pub(super) fn note_reset_sent(&mut self, now: Duration) -> Result<(), Flood> {
        self.resets.spend(1, now).map_err(|Overspent| Flood::Resets)
    }

    /// A DATA frame with `bytes` of content went out. It pays for the peer's WINDOW_UPDATEs and for a PING;
    /// without these calls a long download runs into the budget.
    pub(super) fn note_data_sent(&mut self, bytes: usize) {
        self.credit.data_sent(bytes);
    }

    /// Counts a frame that has come. `now` is the shard's time and never goes back.
    ///
    /// # Errors
    /// The budget that is overspent; the connection is to end.
    pub(super) fn note(&mut self, frame: Frame, now: Duration) -> Result<(), Flood> {
        let continuations_before = std::mem::take(&mut self.continuations_in_row);
        match frame.kind {
            kind::DATA => self.spend_on_data(frame, now),
            kind::HEADERS => {
                if frame.stream_id > self.stream_id_max {
                    self.stream_id_max = frame.stream_id;
                    self.credit.stream_opened();
                }
                Ok(())
            }
            kind::CONTINUATION => {
                self.continuations_in_row = continuations_before.saturating_add(1);
                if self.continuations_in_row > self.continuations_in_row_max {
                    return Err(Flood::Continuations);
                }
                Ok(())
            }
            kind::RST_STREAM => self.resets.spend(1, now).map_err(|Overspent| Flood::Resets),
            control if self.credit.pays_for(control) => Ok(()),
            _ => self.control_frames.spend(1, now).map_err(|Overspent| Flood::ControlFrames),
        }
    }

    fn spend_on_data(&mut self, frame: Frame, now: Duration) -> Result<(), Flood> {
        if frame.is_stream_end || frame.content_bytes >= SMALL_DATA_BYTES {
            return Ok(());
        }
        let weight = if frame.content_bytes == 0 { EMPTY_DATA_WEIGHT } else { 1 };
        self.small_data_frames.spend(weight, now).map_err(|Overspent| Flood::SmallDataFrames)
    }
}
