//! What the main thread waits for, and the threads that tell it.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use core_runtime::shard::DriverKind;
use http_proxy::survey::Left;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

use crate::drains::{Done, Order, Refusal};
use crate::oplog;
use crate::restart::{self, Bequest};

/// Events that wait; who tells of one more waits, too.
pub(crate) const EVENTS_MAX: usize = 64;
/// How long a successor may take to start before the old process goes on without it.
const SUCCESSOR_PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) enum Event {
    /// One of the signals of [`watch_signals`].
    Signal(i32),
    /// The config directory has changed and come to rest.
    ConfigChanged,
    /// Addresses of DNS names wait to be passed on.
    Resolved,
    /// Results of health checks wait to be passed on.
    Checked,
    /// An operator wants an endpoint drained or back; who asked waits for what became of it.
    Endpoint(Order, SyncSender<Result<Changed, Refusal>>),
    /// A successor wants what this process holds.
    Successor(SyncSender<Bequest>),
    SuccessorReady,
    ShardStarted(usize, DriverKind),
    /// A shard's thread has ended, with what it cut.
    ShardEnded(usize, io::Result<Left>),
}

/// What became of an order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changed {
    pub(crate) done: Done,
    /// Endpoints of the cluster that no operator drains.
    pub(crate) left: usize,
}

/// Signals that would end a process that has no handler for them yet, and that came before [`watch_signals`]: whoever
/// tells a service to load its config again does not know that a successor is on its way.
pub(crate) struct Early([(i32, Arc<AtomicBool>); 2]);

/// Notes SIGHUP and SIGUSR1 from now on.
///
/// # Errors
/// When the handlers cannot be set up.
pub(crate) fn note_early() -> io::Result<Early> {
    let early = [SIGHUP, SIGUSR1].map(|signal| (signal, Arc::new(AtomicBool::new(false))));
    for (signal, has_come) in &early {
        signal_hook::flag::register(*signal, Arc::clone(has_come))?;
    }
    Ok(Early(early))
}

impl Early {
    /// The signals that came, as events; one that [`watch_signals`] told of, too, does no harm twice.
    pub(crate) fn events(&self) -> impl Iterator<Item = Event> {
        let came = self.0.iter().filter(|(_, has_come)| has_come.load(Ordering::Acquire));
        came.map(|(signal, _)| Event::Signal(*signal))
    }
}

/// Turns signals into events.
///
/// # Errors
/// When the handlers or the thread cannot be set up.
pub(crate) fn watch_signals(events: SyncSender<Event>) -> io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
    let forward = move || {
        for signal in signals.forever() {
            if events.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(forward).map(drop)
}

/// Serves successors, one at a time: each gets what the main thread gives, and then says that it serves.
///
/// # Errors
/// When the thread cannot be started.
pub(crate) fn watch_successors(listener: UnixListener, events: SyncSender<Event>) -> io::Result<()> {
    let watch = move || {
        loop {
            let Ok((stream, _)) = listener.accept() else {
                // Out of descriptors, most likely: the next one may have more luck.
                std::thread::park_timeout(Duration::from_millis(100));
                continue;
            };
            match serve_successor(&stream, &events) {
                Ok(()) => {
                    if events.send(Event::SuccessorReady).is_err() {
                        return;
                    }
                }
                Err(error) => {
                    oplog::warn(&format!("a successor did not come up, this process goes on: {error}"))
                }
            }
        }
    };
    std::thread::Builder::new().name("successor".to_owned()).spawn(watch).map(drop)
}

fn serve_successor(stream: &UnixStream, events: &SyncSender<Event>) -> io::Result<()> {
    restart::check_successor(stream)?;
    let (give, take) = sync_channel(1);
    events.send(Event::Successor(give)).map_err(io::Error::other)?;
    let bequest = take.recv().map_err(io::Error::other)?;
    oplog::info(&format!("handing {} listening sockets to a successor", bequest.sockets.len()));
    restart::hand_over(stream, &bequest)?;
    // The successor has its own descriptors now; these must not keep the sockets open.
    drop(bequest);
    restart::wait_until_ready(stream, SUCCESSOR_PATIENCE)
}
