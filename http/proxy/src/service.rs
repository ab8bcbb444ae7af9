//! What one core does from start to end: accept, obey commands, report twice a second, and drain.

use std::rc::Rc;
use std::time::Duration;

use core_runtime::mailbox::Inbox;
use core_runtime::net::ListeningSocket;
use core_runtime::stats::FrameSource;
use core_runtime::sync::Latch;
use core_runtime::{clock, shard, timer};
use rustc_hash::FxHashMap;

use crate::conn::{self, AcceptContext};
use crate::core::{Command, Core};
use crate::record::{Frame, TableSizes};
use crate::snapshot::StatId;

/// Time between two statistics frames.
pub const FRAME_INTERVAL: Duration = Duration::from_millis(500);

/// Runs a core until every sender of commands is gone, or it was told to drain and has nothing left, or
/// `drain_timeout` is over; then what is left is cut.
pub async fn run(
    core: Rc<Core>,
    inbox: Inbox<Command>,
    accept: AcceptContext,
    frames: FrameSource<Box<Frame>>,
    drain_timeout: Duration,
) {
    core_runtime::spawn(report(Rc::clone(&core), frames, accept.clone()));
    let mut listeners: FxHashMap<StatId, Vec<Latch>> = FxHashMap::default();
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
            None => break,
            Some(Command::Apply(snapshot, sizes)) => {
                core.stats.borrow_mut().grow(sizes);
                core.apply(snapshot);
            }
            Some(Command::Resolved(resolved)) => core.clusters.resolved(resolved),
            Some(Command::Adopt { listener, accepted }) => conn::adopt(&core, listener, accepted),
            Some(Command::Listen { listener, socket }) => {
                if let Some(stop) = listen(&core, listener, socket, &accept) {
                    listeners.entry(listener).or_default().push(stop);
                }
            }
            Some(Command::Unlisten { listener }) => {
                listeners.remove(&listener).into_iter().flatten().for_each(|stop| stop.set());
            }
            Some(Command::Drain) => {
                listeners.drain().flat_map(|(_, stops)| stops).for_each(|stop| stop.set());
                if !core.is_draining() {
                    core.drain();
                    core_runtime::spawn(wait_for_drain(Rc::clone(&core), drained.clone(), drain_timeout));
                }
            }
        }
    }
    core.log.flush();
}

fn listen(core: &Rc<Core>, listener: StatId, socket: ListeningSocket, accept: &AcceptContext) -> Option<Latch> {
    // A registration only fails when the process is out of resources; the other cores' sockets still serve.
    let socket = socket.open().ok()?;
    let stop = Latch::new();
    core_runtime::spawn(conn::serve_listener(Rc::clone(core), socket, listener, accept.clone(), stop.clone()));
    Some(stop)
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
    loop {
        timer::sleep(FRAME_INTERVAL).await;
        core.clusters.reap_idle(clock::now());
        core.log.flush();
        core.note_gauges();
        shard::drain_turns(|length, count| core.stats.borrow_mut().turns_of(length, count));
        frames.publish(|frame| frame.copy_from(&core.stats.borrow()));
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
