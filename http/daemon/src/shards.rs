//! The shards' threads and the ends of their queues, as the main thread has them.
//!
//! Invariant: commands reach a shard in the order in which they were told, whole. A queue that is full (4096
//! commands behind) is tried again with each turn of the main thread instead of losing a config.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use core_runtime::affinity;
use core_runtime::clock::Epoch;
use core_runtime::mailbox::{LoadBoard, Mailbox, SendError, Sender, mailbox};
use core_runtime::shard::{self, DriverKind, ShardConfig};
use core_runtime::stats::{FrameSink, FrameSource, frames};
use http_proxy::conn::AcceptContext;
use http_proxy::core::{Command, Core};
use http_proxy::log::{AccessLog, LogBatch};
use http_proxy::record::{Frame, TableSizes};
use http_proxy::service;
use http_proxy::snapshot::Snapshot;
use http_proxy::survey::Left;

use crate::aggregator;
use crate::args::Options;
use crate::ended::StartError;
use crate::events::Event;
use crate::oplog;

/// Commands that wait for one shard.
const COMMANDS_MAX: usize = 4096;

/// All shards.
#[derive(Debug)]
pub(crate) struct Shards {
    links: Vec<Link>,
    /// Of all shards' clocks.
    epoch: Epoch,
}

#[derive(Debug)]
struct Link {
    sender: Sender<Command>,
    /// What did not fit into the queue.
    backlog: VecDeque<Command>,
    is_running: bool,
}

/// What one shard's thread is made from.
struct Seed {
    index: usize,
    snapshot: Snapshot,
    sizes: TableSizes,
    mailbox: Mailbox<Command>,
    accept: AcceptContext,
    frames: FrameSource<Box<Frame>>,
    random: [u64; 7],
    batches: Sender<LogBatch>,
    graveyard: Sender<Box<Snapshot>>,
    drain_timeout: Duration,
    events: SyncSender<Event>,
    left: SyncSender<Left>,
}

impl Shards {
    /// Starts a shard for each snapshot; each tells when it runs, see [`Shards::wait_started`].
    ///
    /// # Errors
    /// What the system refuses.
    pub(crate) fn start(
        options: &Options,
        snapshots: Vec<Snapshot>,
        sizes: TableSizes,
        batches: &Sender<LogBatch>,
        events: &SyncSender<Event>,
    ) -> Result<(Self, FrameSink<Box<Frame>>), StartError> {
        let failed = |error| StartError::System("starting a shard", error);
        let count = snapshots.len();
        let cpus = affinity::allowed_cpus().map_err(failed)?;
        let epoch = Epoch::start();
        let (sources, sink) = frames(count, || Box::new(Frame::default()));
        let graveyard = aggregator::start_graveyard().map_err(failed)?;
        let queues: io::Result<Vec<_>> = (0..count).map(|_| mailbox(COMMANDS_MAX)).collect();
        let (senders, mailboxes): (Vec<_>, Vec<_>) = queues.map_err(failed)?.into_iter().unzip();
        let accept = AcceptContext { board: LoadBoard::new(count), shards: senders.clone() };
        for (index, ((snapshot, frames), mailbox)) in
            snapshots.into_iter().zip(sources).zip(mailboxes).enumerate()
        {
            let (left, rest) = sync_channel(1);
            let seed = Seed {
                index,
                snapshot,
                sizes,
                mailbox,
                accept: accept.clone(),
                frames,
                random: random().map_err(failed)?,
                batches: batches.clone(),
                graveyard: graveyard.clone(),
                drain_timeout: options.drain_timeout,
                events: events.clone(),
                left,
            };
            let config = ShardConfig {
                index,
                cpu: cpus.get(index % cpus.len().max(1)).copied().filter(|_| count <= cpus.len()),
                driver: options.driver,
                epoch: epoch.clone(),
            };
            let thread = shard::start(config, move |kind| serve(seed, kind)).map_err(failed)?;
            watch(index, thread, rest, events.clone()).map_err(failed)?;
        }
        let link = |sender| Link { sender, backlog: VecDeque::new(), is_running: true };
        Ok((Self { links: senders.into_iter().map(link).collect(), epoch }, sink))
    }

    /// Waits until all shards run, and says on which driver.
    ///
    /// # Errors
    /// When one ends instead.
    pub(crate) fn wait_started(&self, events: &Receiver<Event>) -> Result<Vec<DriverKind>, StartError> {
        const PATIENCE: Duration = Duration::from_secs(30);
        let mut kinds: Vec<Option<DriverKind>> = self.links.iter().map(|_| None).collect();
        while kinds.iter().any(Option::is_none) {
            match events.recv_timeout(PATIENCE) {
                Ok(Event::ShardStarted(index, kind)) => {
                    kinds.iter_mut().skip(index).take(1).for_each(|place| *place = Some(kind.clone()));
                }
                Ok(Event::ShardEnded(_, Err(error))) => {
                    return Err(StartError::System("starting a shard", error));
                }
                Ok(Event::ShardEnded(index, Ok(_))) => {
                    let error = io::Error::other(format!("shard {index} ended at once"));
                    return Err(StartError::System("starting a shard", error));
                }
                Ok(_) => {}
                Err(error) => return Err(StartError::System("starting the shards", io::Error::other(error))),
            }
        }
        Ok(kinds.into_iter().flatten().collect())
    }

    /// The time by the shards' clocks.
    pub(crate) fn now(&self) -> Duration {
        self.epoch.read()
    }

    pub(crate) fn count(&self) -> usize {
        self.links.len()
    }

    pub(crate) fn running(&self) -> usize {
        self.links.iter().filter(|link| link.is_running).count()
    }

    /// A running shard after `shard`, to take over from it.
    pub(crate) fn heir(&self, shard: usize) -> Option<usize> {
        let count = self.count();
        (1..count)
            .map(|step| (shard + step) % count)
            .find(|at| self.links.get(*at).is_some_and(|link| link.is_running))
    }

    pub(crate) fn has_ended(&mut self, shard: usize) {
        if let Some(link) = self.links.get_mut(shard) {
            link.is_running = false;
            link.backlog.clear();
        }
    }

    /// Their queues, for questions of the admin listener.
    pub(crate) fn senders(&self) -> Vec<Sender<Command>> {
        self.links.iter().map(|link| link.sender.clone()).collect()
    }

    pub(crate) fn tell(&mut self, shard: usize, command: Command) {
        if let Some(link) = self.links.get_mut(shard).filter(|link| link.is_running) {
            link.backlog.push_back(command);
            link.flush();
        }
    }

    pub(crate) fn tell_all(&mut self, command: impl Fn() -> Command) {
        (0..self.count()).for_each(|shard| self.tell(shard, command()));
    }

    /// Tries again what did not fit; true when something still does not.
    pub(crate) fn flush(&mut self) -> bool {
        self.links.iter_mut().for_each(Link::flush);
        self.links.iter().any(|link| !link.backlog.is_empty())
    }

    /// The first shard whose queue has been full: it must not get a new config behind the ones that wait.
    pub(crate) fn stuck(&self) -> Option<usize> {
        self.links.iter().position(|link| !link.backlog.is_empty())
    }
}

impl Link {
    fn flush(&mut self) {
        while let Some(command) = self.backlog.pop_front() {
            match self.sender.send(command) {
                Ok(()) => {}
                Err(SendError::Full(command)) => {
                    self.backlog.push_front(command);
                    return;
                }
                // The shard has ended, which the main thread is about to hear.
                Err(SendError::Closed(_)) => self.backlog.clear(),
            }
        }
    }
}

async fn serve(seed: Seed, kind: DriverKind) {
    let inbox = match seed.mailbox.open() {
        Ok(inbox) => inbox,
        Err(error) => {
            oplog::error(&format!("shard {}: {error}", seed.index));
            return;
        }
    };
    let log = AccessLog::new(seed.batches);
    let core = Core::new(seed.index, Box::new(seed.snapshot), seed.sizes, seed.random, log, seed.graveyard);
    // Nobody listens any more when the start has failed.
    match seed.events.send(Event::ShardStarted(seed.index, kind)) {
        Ok(()) | Err(_) => {}
    }
    let left = service::run(core, inbox, seed.accept, seed.frames, seed.drain_timeout).await;
    // The queue holds one, and this is it.
    match seed.left.send(left) {
        Ok(()) | Err(_) => {}
    }
}

/// Tells the main thread when a shard's thread has ended: only then are its sockets closed and its log rows out.
fn watch(
    index: usize,
    thread: JoinHandle<io::Result<()>>,
    left: Receiver<Left>,
    events: SyncSender<Event>,
) -> io::Result<()> {
    let wait = move || {
        let result =
            thread.join().unwrap_or_else(|_panic| Err(io::Error::other("the shard's thread panicked")));
        let result = result.and_then(|()| left.try_recv().map_err(io::Error::other));
        // The main thread may have ended its loop already.
        match events.send(Event::ShardEnded(index, result)) {
            Ok(()) | Err(_) => {}
        }
    };
    std::thread::Builder::new().name(format!("watch-{index}")).spawn(wait).map(drop)
}

/// Fresh randomness for one shard: its draws, its request ids and the key of its client table.
fn random() -> io::Result<[u64; 7]> {
    use std::io::Read as _;
    let mut source = std::fs::File::open("/dev/urandom")?;
    let mut words = [0u64; 7];
    for word in &mut words {
        let mut bytes = [0u8; 8];
        source.read_exact(&mut bytes)?;
        *word = u64::from_ne_bytes(bytes);
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_delays_commands_and_keeps_their_order() {
        let (sender, mailbox) = mailbox(1).expect("a queue");
        let link = Link { sender, backlog: VecDeque::new(), is_running: true };
        let mut shards = Shards { links: vec![link], epoch: Epoch::start() };
        shards.tell(0, Command::Drain);
        assert_eq!(shards.stuck(), None);
        shards.tell(0, Command::Cut);
        shards.tell(0, Command::Drain);
        assert_eq!(shards.stuck(), Some(0));
        for (expected, still) in [("Drain", true), ("Cut", true), ("Drain", false)] {
            let command = mailbox.receive_timeout(Duration::from_secs(5)).expect("open");
            assert_eq!(format!("{:?}", command.expect("a command")), expected);
            assert_eq!(shards.flush(), still && expected == "Drain");
        }
        drop(mailbox);
        shards.tell(0, Command::Cut);
        assert_eq!(shards.stuck(), None, "nobody is there to be told");
    }

    #[test]
    fn the_heir_is_another_running_shard() {
        let link = || {
            let (sender, _mailbox) = mailbox(1).expect("a queue");
            Link { sender, backlog: VecDeque::new(), is_running: true }
        };
        let mut shards = Shards { links: (0..3).map(|_| link()).collect(), epoch: Epoch::start() };
        assert_eq!((shards.heir(0), shards.heir(2)), (Some(1), Some(0)));
        shards.has_ended(1);
        assert_eq!((shards.heir(0), shards.running()), (Some(2), 2));
        shards.has_ended(0);
        shards.has_ended(2);
        assert_eq!((shards.heir(1), shards.running()), (None, 0));
    }
}
