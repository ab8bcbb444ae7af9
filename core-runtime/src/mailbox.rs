//! The one door between cores: bounded queues with an eventfd that wakes the receiving shard.
//!
//! In: immutable snapshots and commands. Out: statistics frames, log records, things to be freed where they were
//! made. Nothing on the request path waits here; a full queue is a counted outcome for the sender.
#![expect(clippy::disallowed_types, reason = "this file is where cores are allowed to meet")]

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::task::{Context, Poll};

use crate::io::Registered;
use crate::sys;

/// Why a message was not taken; it comes back.
#[derive(Debug)]
pub enum SendError<T> {
    Full(T),
    /// The receiver is gone.
    Closed(T),
}

/// Every sender of a mailbox is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

/// The sending end: any thread.
#[derive(Debug)]
pub struct Sender<T> {
    /// `None` only while dropping.
    queue: Option<SyncSender<T>>,
    wake: Arc<OwnedFd>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), wake: Arc::clone(&self.wake) }
    }
}

impl<T> Sender<T> {
    /// Puts a message into the queue and wakes the receiver; never waits.
    ///
    /// # Errors
    /// Gives the message back when the queue is full or nobody receives any more.
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        let Some(queue) = &self.queue else {
            return Err(SendError::Closed(message));
        };
        queue.try_send(message).map_err(|error| match error {
            TrySendError::Full(message) => SendError::Full(message),
            TrySendError::Disconnected(message) => SendError::Closed(message),
        })?;
        self.wake();
        Ok(())
    }

    fn wake(&self) {
        // EAGAIN means that the counter is at its maximum: the receiver is about to wake anyway.
        match sys::write_fd(self.wake.as_raw_fd(), &1u64.to_ne_bytes()) {
            Ok(_) | Err(_) => {}
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // The queue first, so that the woken receiver finds it closed.
        self.queue = None;
        self.wake();
    }
}

/// The receiving end before it is bound to its shard: can be moved to the shard's thread.
#[derive(Debug)]
pub struct Mailbox<T> {
    queue: Receiver<T>,
    wake: OwnedFd,
}

/// A bounded queue of at most `bound` messages.
///
/// # Errors
/// What `eventfd` says.
pub fn mailbox<T>(bound: usize) -> io::Result<(Sender<T>, Mailbox<T>)> {
    let (sender, receiver) = sync_channel(bound);
    let wake = sys::eventfd()?;
    let twin = wake.try_clone()?;
    Ok((Sender { queue: Some(sender), wake: Arc::new(twin) }, Mailbox { queue: receiver, wake }))
}

impl<T> Mailbox<T> {
    /// Waits for the next message on a plain thread.
    ///
    /// # Errors
    /// When every sender is gone.
    pub fn receive_or_closed(&self) -> Result<T, Closed> {
        self.queue.recv().map_err(|_disconnected| Closed)
    }

    /// Waits for the next message on a plain thread, at most `timeout`; `None` when it is over.
    ///
    /// # Errors
    /// When every sender is gone.
    pub fn receive_timeout(&self, timeout: std::time::Duration) -> Result<Option<T>, Closed> {
        match self.queue.recv_timeout(timeout) {
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Closed),
        }
    }

    /// Registers the wake-up with the calling thread's reactor.
    ///
    /// # Errors
    /// When the thread is no shard or the registration fails.
    pub fn open(self) -> io::Result<Inbox<T>> {
        Ok(Inbox { queue: self.queue, wake: Registered::new(self.wake, false)? })
    }
}

/// The receiving end on its shard.
#[derive(Debug)]
pub struct Inbox<T> {
    queue: Receiver<T>,
    wake: Registered,
}

impl<T> Inbox<T> {
    /// The next message; `None` when every sender is gone.
    pub async fn receive(&self) -> Option<T> {
        poll_fn(|cx| self.poll_receive(cx)).await
    }

    /// The next message; `Ready(None)` when every sender is gone.
    pub fn poll_receive(&self, cx: &Context<'_>) -> Poll<Option<T>> {
        loop {
            match self.queue.try_recv() {
                Ok(message) => return Poll::Ready(Some(message)),
                Err(TryRecvError::Disconnected) => return Poll::Ready(None),
                Err(TryRecvError::Empty) => {}
            }
            if self.wake.poll_readable(cx).is_pending() {
                return Poll::Pending;
            }
            self.drain_wake();
            // A message sent between the look and the drain would be missed without a second look.
        }
    }

    fn drain_wake(&self) {
        let mut count = [0u8; 8];
        // Eight bytes or WouldBlock: both leave the counter at zero and the flag to the next event.
        match self.wake.read_with(9, |fd| sys::read_fd(fd, &mut count)) {
            Ok(_) | Err(_) => {}
        }
    }
}

/// The number of open connections of each shard, for steering new ones to the least loaded. Written by the
/// owner on accept and close, read by others on accept: never on the request path.
#[derive(Clone, Debug)]
pub struct LoadBoard(Arc<Vec<AtomicU32>>);

impl LoadBoard {
    pub fn new(shards: usize) -> Self {
        Self(Arc::new((0..shards).map(|_| AtomicU32::new(0)).collect()))
    }

    /// Publishes a shard's number of connections.
    pub fn publish(&self, shard: usize, connections: u32) {
        if let Some(slot) = self.0.get(shard) {
            slot.store(connections, Ordering::Relaxed);
        }
    }

    /// The shard with the fewest connections; `own` wins a tie, or a lead of fewer than `lead` connections.
    pub fn least_loaded(&self, own: usize, lead: u32) -> usize {
        let load = |shard: usize| self.0.get(shard).map_or(u32::MAX, |slot| slot.load(Ordering::Relaxed));
        let best = (0..self.0.len()).min_by_key(|&shard| load(shard)).unwrap_or(own);
        if load(best).saturating_add(lead) < load(own) { best } else { own }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_gives_the_message_back() {
        let (sender, mailbox) = mailbox::<u8>(1).expect("eventfd");
        sender.send(1).expect("room for one");
        assert!(matches!(sender.send(2), Err(SendError::Full(2))));
        drop(mailbox);
        assert!(matches!(sender.send(3), Err(SendError::Closed(3))));
    }

    #[test]
    fn the_least_loaded_shard_needs_a_lead() {
        let board = LoadBoard::new(3);
        board.publish(0, 10);
        board.publish(1, 4);
        board.publish(2, 9);
        assert_eq!(board.least_loaded(0, 4), 1);
        assert_eq!(board.least_loaded(2, 8), 2, "a small lead is not worth a hand-over");
        assert_eq!(board.least_loaded(1, 0), 1);
    }
}
