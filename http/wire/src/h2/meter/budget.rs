//! What a budget is, how it is spent, and what traffic pays for. Used by the meter alone.

use std::time::Duration;

use crate::h2::frame::kind;

/// So many frames in a window, of which `burst` may come at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Sustained: frames per `window`.
    pub frames: u32,
    pub window: Duration,
    /// Frames that may come at once after a quiet time. 0 refuses every frame.
    pub burst: u32,
}

impl Budget {
    /// No window of this length ever sees more than `frames_max` frames: half of them may come at once, the
    /// other half is spread evenly.
    pub const fn at_most(frames_max: u32, window: Duration) -> Self {
        let burst = frames_max.div_ceil(2);
        Self { frames: frames_max - burst, window, burst }
    }
}

/// A `Budget` at work: the generic cell rate algorithm (ITU-T I.371), which is a leaky bucket in one number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Purse {
    /// What one frame costs, in time.
    frame_ns: u64,
    debt_max_ns: u64,
    /// When all debt will be paid off.
    even_at_ns: u64,
}

pub(super) struct Overspent;

impl Purse {
    pub(super) fn new(budget: Budget) -> Self {
        let window_ns = u64::try_from(budget.window.as_nanos()).unwrap_or(u64::MAX);
        // With no sustained rate one frame a window is as slow as this gets.
        let frame_ns =
            if budget.frames == 0 { window_ns } else { window_ns.div_ceil(u64::from(budget.frames)) };
        Self { frame_ns, debt_max_ns: frame_ns.saturating_mul(u64::from(budget.burst)), even_at_ns: 0 }
    }

    pub(super) fn spend(&mut self, frames: u32, now: Duration) -> Result<(), Overspent> {
        let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let cost_ns = self.frame_ns.saturating_mul(u64::from(frames));
        self.even_at_ns = self.even_at_ns.max(now_ns).saturating_add(cost_ns);
        if self.even_at_ns - now_ns > self.debt_max_ns { Err(Overspent) } else { Ok(()) }
    }
}

/// Control frames that traffic pays for. Bounded, so that nothing can be saved up for a flood of its own.
///
/// Not paid for at all: SETTINGS. Not paid for by the number of DATA frames: WINDOW_UPDATE, since a peer that
/// opens its window byte by byte makes us send many frames (CVE-2019-9511); bytes cannot be had like that.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credit {
    /// For PRIORITY, WINDOW_UPDATE and extension frames.
    frames: u32,
    /// Sent, and not yet turned into frames.
    bytes: usize,
    /// For PING: clients measure their bandwidth with one per round trip while data comes in.
    pings: u32,
}

impl Credit {
    const FRAMES_MAX: u32 = 16_384;
    const PINGS_MAX: u32 = 256;
    /// A stream is commonly opened with a PRIORITY or WINDOW_UPDATE and later reprioritised.
    const FRAMES_PER_STREAM: u32 = 4;
    /// A 16 KiB DATA frame pays for 16; honest clients send one or two.
    const BYTES_PER_FRAME: usize = 1024;

    pub(super) fn stream_opened(&mut self) {
        self.frames = Self::FRAMES_MAX.min(self.frames + Self::FRAMES_PER_STREAM);
    }

    pub(super) fn data_sent(&mut self, bytes: usize) {
        self.pings = Self::PINGS_MAX.min(self.pings + 1);
        let bytes = self.bytes.saturating_add(bytes);
        let frames = u32::try_from(bytes / Self::BYTES_PER_FRAME).unwrap_or(u32::MAX);
        self.bytes = bytes % Self::BYTES_PER_FRAME;
        self.frames = Self::FRAMES_MAX.min(self.frames.saturating_add(frames));
    }

    /// Whether a control frame of this kind has been paid for.
    pub(super) fn pays_for(&mut self, kind: u8) -> bool {
        let purse = match kind {
            kind::SETTINGS => return false,
            kind::PING => &mut self.pings,
            // PRIORITY, WINDOW_UPDATE, PRIORITY_UPDATE, and what a client should not or need not send.
            _ => &mut self.frames,
        };
        let left = purse.checked_sub(1);
        *purse = left.unwrap_or(0);
        left.is_some()
    }
}
