//! Stop 2: from the listening socket to a task, or a counted refusal.

use std::rc::Rc;
use std::time::Duration;

use core_runtime::clock;
use core_runtime::mailbox::{LoadBoard, SendError, Sender};
use core_runtime::net::{Accepted, Listener};
use core_runtime::sync::Latch;
use core_runtime::timer;

use super::serve;
use crate::core::{Command, Core};
use crate::reason::Reason;
use crate::snapshot::{StatId, Steering};

/// Pause when the process has run out of descriptors: the connection waits in the kernel's queue meanwhile.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(50);
/// Connections that one socket takes in a turn; the rest waits in the kernel's queue until everybody else has been
/// served, so that a flood of connections does not make long turns (docs/threat-model.md).
const ACCEPTS_PER_TURN_MAX: u32 = 16;
/// Connections by which another shard must be ahead before a hand-over is worth it.
const STEERING_LEAD: u32 = 2;

/// What accepting needs to know of the other shards.
#[derive(Clone, Debug)]
pub struct AcceptContext {
    pub board: LoadBoard,
    /// By shard number.
    pub shards: Vec<Sender<Command>>,
}

/// A listening socket at work.
#[derive(Debug)]
pub(crate) struct Accepting {
    listener: Rc<Listener>,
    stat: StatId,
    context: AcceptContext,
    stop: Latch,
}

impl Accepting {
    /// Accepts until [`Accepting::end`].
    pub(crate) fn start(core: &Rc<Core>, listener: Listener, stat: StatId, context: AcceptContext) -> Self {
        let this = Self { listener: Rc::new(listener), stat, context, stop: Latch::new() };
        let (listener, context, stop) = (Rc::clone(&this.listener), this.context.clone(), this.stop.clone());
        core_runtime::spawn(accept_each(Rc::clone(core), listener, stat, context, stop));
        this
    }

    /// Takes what waits in the kernel's queue, since those clients have connected (C30), and closes the socket.
    pub(crate) fn end(self, core: &Rc<Core>) {
        self.stop.set();
        while let Ok(Some(accepted)) = self.listener.try_accept() {
            // Kept here: the others may be about to end.
            adopt(core, self.stat, accepted, Duration::ZERO);
        }
    }
}

async fn accept_each(
    core: Rc<Core>,
    listener: Rc<Listener>,
    stat: StatId,
    context: AcceptContext,
    stop: Latch,
) {
    let mut taken = 0;
    // When the queue was first seen not to be empty: how long its connections have waited at most.
    let mut ready_since: Option<Duration> = None;
    loop {
        if taken == ACCEPTS_PER_TURN_MAX {
            core_runtime::next_turn().await;
            taken = 0;
        }
        let accepted = std::future::poll_fn(|cx| {
            if stop.poll_wait(cx).is_ready() {
                return std::task::Poll::Ready(None);
            }
            let accepted = listener.poll_accept(cx);
            if accepted.is_pending() {
                (taken, ready_since) = (0, None);
            }
            accepted.map(Some)
        })
        .await;
        taken += 1;
        let waited = clock::now().saturating_sub(*ready_since.get_or_insert_with(clock::now));
        match accepted {
            None => return,
            Some(Ok(accepted)) => place(&core, stat, accepted, waited, &context),
            Some(Err(_exhausted)) => {
                core.stats.borrow_mut().connection_refused(stat, Reason::ConnectionLimit);
                timer::sleep(EXHAUSTED_PAUSE).await;
            }
        }
    }
}

/// Keeps a new connection, or hands it to the shard with the fewest.
fn place(core: &Rc<Core>, stat: StatId, accepted: Accepted, waited: Duration, context: &AcceptContext) {
    let steering = core.snapshot().listener(stat).map(|listener| listener.steering);
    let target = match steering {
        Some(Steering::LeastLoaded) => context.board.least_loaded(core.index, STEERING_LEAD),
        _ => core.index,
    };
    let accepted = match context.shards.get(target) {
        Some(shard) if target != core.index => {
            match shard.send(Command::Adopt { listener: stat, accepted }) {
                Ok(()) => return,
                // The other one is busier than it looked, or gone: keep it.
                Err(
                    SendError::Full(Command::Adopt { accepted, .. })
                    | SendError::Closed(Command::Adopt { accepted, .. }),
                ) => accepted,
                Err(SendError::Full(_) | SendError::Closed(_)) => return,
            }
        }
        _ => accepted,
    };
    adopt(core, stat, accepted, waited);
    context.board.publish(core.index, u32::try_from(core.connections()).unwrap_or(u32::MAX));
}

/// Starts serving a connection on this shard, within the listener's bound. It has waited for `waited` since the shard
/// saw that the queue was not empty.
pub(crate) fn adopt(core: &Rc<Core>, stat: StatId, accepted: Accepted, waited: Duration) {
    let snapshot = core.snapshot();
    let Some(config) = snapshot.listener(stat) else { return };
    let mut stats = core.stats.borrow_mut();
    let active =
        stats.listener(stat).map_or(0, |row| row.connections_accepted.saturating_sub(row.connections_closed));
    if active >= u64::try_from(config.connections_max).unwrap_or(u64::MAX) {
        stats.connection_refused(stat, Reason::ConnectionLimit);
        return;
    }
    drop(stats);
    let count = core.connection_opened(stat, accepted.peer, waited);
    core_runtime::spawn(serve(Rc::clone(core), snapshot, stat, Box::new(accepted), count));
}
