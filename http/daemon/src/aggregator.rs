//! The threads that take in what shards give out: statistics frames, and snapshots to be freed.

use std::io;
use std::time::Duration;

use core_runtime::mailbox::{Sender, mailbox};
use core_runtime::stats::FrameSink;
use http_proxy::record::{Frame, NewsLevel, NewsLine};
use http_proxy::snapshot::Snapshot;

use crate::admin::{self, Shared};
use crate::oplog;

/// Old snapshots that wait to be freed.
const GRAVES_MAX: usize = 256;

/// Adds up the frames of all shards until they have ended.
///
/// # Errors
/// When the thread cannot be started.
pub(crate) fn start(sink: FrameSink<Box<Frame>>, state: Shared) -> io::Result<()> {
    /// Shards report twice a second; one that is silent is no reason to stop listening.
    const SILENCE: Duration = Duration::from_secs(60);
    let aggregate = move || {
        while let Ok(filled) = sink.receive(SILENCE) {
            let Some(mut filled) = filled else { continue };
            let mut fresh = std::mem::take(&mut filled.frame);
            fresh.news_mut().drain(..).for_each(|line| tell(filled.shard, &line));
            let before = admin::lock(&state).aggregate.accept(filled.shard, fresh);
            if let Some(frame) = before {
                filled.frame = frame;
            }
            sink.give_back(filled);
        }
    };
    std::thread::Builder::new().name("aggregator".to_owned()).spawn(aggregate).map(drop)
}

fn tell(shard: usize, line: &NewsLine) {
    let text = format!("shard {shard}: {}", line.text);
    match line.level {
        NewsLevel::Info => oplog::info(&text),
        NewsLevel::Warn => oplog::warn(&text),
        NewsLevel::Error => oplog::error(&text),
    }
}

/// Frees old snapshots off the shards.
///
/// # Errors
/// When the thread or its queue cannot be made.
pub(crate) fn start_graveyard() -> io::Result<Sender<Box<Snapshot>>> {
    let (sender, graves) = mailbox::<Box<Snapshot>>(GRAVES_MAX)?;
    let dig = move || {
        while let Ok(snapshot) = graves.receive_or_closed() {
            drop(snapshot);
        }
    };
    std::thread::Builder::new().name("graveyard".to_owned()).spawn(dig)?;
    Ok(sender)
}
