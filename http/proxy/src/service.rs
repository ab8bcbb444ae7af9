//! What one core does from start to end: accept, obey commands, report twice a second, and drain.

use std::rc::Rc;
use std::time::Duration;

use core_runtime::mailbox::Inbox;
use core_runtime::stats::FrameSource;
use core_runtime::sync::Latch;
use core_runtime::{clock, shard, timer};
use rustc_hash::FxHashMap;

use crate::conn::{self, AcceptContext, Accepting};
use crate::core::{Command, Core};
use crate::record::{Frame, TableSizes};
use crate::snapshot::StatId;
use crate::survey::Left;

/// Time between two statistics frames.
pub const FRAME_INTERVAL: Duration = Duration::from_millis(500);

/// Runs a core until every sender of commands is gone, or it was told to drain and has nothing left, or
/// `drain_timeout` is over; then what is left is cut. Returns what that is.
pub async fn run(
    core: Rc<Core>,
    inbox: Inbox<Command>,
    accept: AcceptContext,
    frames: FrameSource<Box<Frame>>,
    drain_timeout: Duration,
) -> Left {
    core_runtime::spawn(report(Rc::clone(&core), frames, accept.clone()));
    let mut listeners: FxHashMap<StatId, Vec<Accepting>> = FxHashMap::default();
    let drained = Latch::new();
    loop {
        let command = std::future::poll_fn(|cx| {
            if let std::task::Poll::Ready(command) = inbox.poll_receive(cx) {
                return std::task::Poll::Ready(command);
            }
            drained.poll_wait(cx).map(|()| None)
        })
        .await;
        match command {
            None | Some(Command::Cut) => break,
            Some(Command::Apply(snapshot, sizes)) => {
                core.stats.borrow_mut().grow(sizes);
                core.apply(snapshot);
            }
            Some(Command::Resolved(resolved)) => core.clusters.resolved(resolved),
            Some(Command::Checked(checked)) => core.clusters.checked(checked),
            Some(Command::Drained(drained)) => core.clusters.drained(drained),
            Some(Command::Adopt { listener, accepted }) => {
                conn::adopt(&core, listener, accepted, Duration::ZERO)
            }
            Some(Command::Listen { listener, socket }) => {
                // A registration only fails when the process is out of resources; the other cores still serve.
                if let Ok(socket) = socket.open() {
                    let accepting = Accepting::start(&core, socket, listener, accept.clone());
                    listeners.entry(listener).or_default().push(accepting);
                }
            }
            Some(Command::Unlisten { listener }) => {
                listeners.remove(&listener).into_iter().flatten().for_each(|accepting| accepting.end(&core));
            }
            Some(Command::Tickets(keys)) => core.rotate_tickets(&keys),
            Some(Command::Forget(series)) => {
                let mut stats = core.stats.borrow_mut();
                series.into_iter().for_each(|(table, id)| stats.forget(table, id));
            }
            Some(Command::Survey { what, reply }) => core.survey(what, &reply),
            Some(Command::Drain) => {
                listeners.drain().flat_map(|(_, all)| all).for_each(|accepting| accepting.end(&core));
                if !core.is_draining() {
                    core.drain(drain_timeout);
                    core_runtime::spawn(wait_for_drain(Rc::clone(&core), drained.clone(), drain_timeout));
                }
            }
        }
    }
    // The rows of what is cut follow when the log is dropped with the core.
    core.log.flush();
    core.left()
}

async fn wait_for_drain(core: Rc<Core>, drained: Latch, timeout: Duration) {
    const LOOK_AGAIN: Duration = Duration::from_millis(20);
    let until = clock::now() + timeout;
    while core.connections() > 0 && clock::now() < until {
        timer::sleep(LOOK_AGAIN).await;
    }
    drained.set();
}

/// The core's half of the aggregator's beat, and its housekeeping.
async fn report(core: Rc<Core>, frames: FrameSource<Box<Frame>>, accept: AcceptContext) {
    let mut observed_at = clock::now();
    loop {
        timer::sleep(FRAME_INTERVAL).await;
        core.clusters.tend(clock::now());
        core.clusters.catch_up(&core.snapshot());
        core.forget_gone();
        core.log.flush();
        core.note_gauges();
        let mut busy = Duration::ZERO;
        shard::drain_turns(|length, count| {
            busy += length * u32::try_from(count).unwrap_or(u32::MAX);
            core.stats.borrow_mut().turns_of(length, count);
        });
        let now = clock::now();
        core.observe_strain(busy, now.saturating_sub(std::mem::replace(&mut observed_at, now)));
        frames.publish(|frame| {
            frame.copy_from(&core.stats.borrow());
            core.clusters.news.take_lines(frame.news_mut());
        });
        accept.board.publish(core.index, u32::try_from(core.connections()).unwrap_or(u32::MAX));
    }
}

/// Sizes of a core's counter tables for what a registry has numbered so far.
pub fn table_sizes(registry: &crate::snapshot::StatRegistry) -> TableSizes {
    use crate::snapshot::StatFamily;
    TableSizes {
        listeners: registry.len(StatFamily::Listener),
        routes: registry.len(StatFamily::Route),
        clusters: registry.len(StatFamily::Cluster),
        endpoints: registry.len(StatFamily::Endpoint),
    }
}
