//! Statistics frames: a core copies its counters into a frame that it got back from the aggregator.
//!
//! Two frames per core go round for ever, so nothing is allocated and the aggregator never reads core memory.
//! When the aggregator is late the core keeps counting and the next frame holds the sum: nothing is lost.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};

use crate::mailbox::Closed;

/// A frame on its way, with the number of the core that filled it.
#[derive(Debug)]
pub struct Filled<F> {
    pub shard: usize,
    pub frame: F,
}

/// The core's end.
#[derive(Debug)]
pub struct FrameSource<F> {
    shard: usize,
    empty: Receiver<F>,
    filled: SyncSender<Filled<F>>,
}

/// The aggregator's end for all cores.
#[derive(Debug)]
pub struct FrameSink<F> {
    filled: Receiver<Filled<F>>,
    empty: Vec<SyncSender<F>>,
}

/// Frames per core that go round.
const FRAMES_PER_SHARD: usize = 2;

/// Sets up the rounds for `shards` cores; `new_frame` makes the empty frames.
pub fn frames<F>(shards: usize, mut new_frame: impl FnMut() -> F) -> (Vec<FrameSource<F>>, FrameSink<F>) {
    let (filled_in, filled) = sync_channel(shards * FRAMES_PER_SHARD);
    let (mut sources, mut empties) = (Vec::new(), Vec::new());
    for shard in 0..shards {
        let (give, empty) = sync_channel(FRAMES_PER_SHARD);
        for _ in 0..FRAMES_PER_SHARD {
            let room = give.try_send(new_frame());
            debug_assert!(room.is_ok(), "the queue was made for this many");
        }
        sources.push(FrameSource { shard, empty, filled: filled_in.clone() });
        empties.push(give);
    }
    (sources, FrameSink { filled, empty: empties })
}

impl<F> FrameSource<F> {
    /// Fills a frame and sends it; false when the aggregator holds all of them.
    pub fn publish(&self, fill: impl FnOnce(&mut F)) -> bool {
        let mut frame = match self.empty.try_recv() {
            Ok(frame) => frame,
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => return false,
        };
        fill(&mut frame);
        match self.filled.try_send(Filled { shard: self.shard, frame }) {
            Ok(()) => true,
            // The aggregator is gone: the process is ending.
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }
}

impl<F> FrameSink<F> {
    /// Waits for the next filled frame; `None` when the time is over.
    ///
    /// # Errors
    /// When every core is gone.
    pub fn receive(&self, timeout: std::time::Duration) -> Result<Option<Filled<F>>, Closed> {
        match self.filled.recv_timeout(timeout) {
            Ok(filled) => Ok(Some(filled)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Closed),
        }
    }

    /// Gives a frame back to its core.
    pub fn give_back(&self, filled: Filled<F>) {
        if let Some(empty) = self.empty.get(filled.shard) {
            // A full queue cannot be (the frame came from it); a closed one means that the core ended.
            match empty.try_send(filled.frame) {
                Ok(()) | Err(TrySendError::Disconnected(_) | TrySendError::Full(_)) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_go_round_and_a_late_aggregator_loses_nothing() {
        let (sources, sink) = frames(1, || 0u64);
        let mut counter = 0u64;
        for expected in [true, true, false, false] {
            counter += 5;
            assert_eq!(sources[0].publish(|frame| *frame = counter), expected);
        }
        let wait = std::time::Duration::from_secs(1);
        for expected in [5, 10] {
            let filled = sink.receive(wait).expect("a core lives").expect("a frame is there");
            assert_eq!(filled.frame, expected);
            sink.give_back(filled);
        }
        assert!(sources[0].publish(|frame| *frame = counter));
        let last = sink.receive(wait).expect("a core lives").expect("a frame is there");
        assert_eq!(last.frame, 20);
        drop(sources);
        assert!(sink.receive(wait).is_err(), "all cores are gone");
    }
}
