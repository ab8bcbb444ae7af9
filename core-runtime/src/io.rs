//! Readiness of registered descriptors: the table between the driver and the sockets.
//!
//! A slot is edge-triggered: the driver sets a flag when the kernel reports an event, the socket clears it when
//! a call would block (or a read came back short). Events carry the slot's generation, so that a late one
//! for a closed descriptor is dropped.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::buf::Scratch;
use crate::driver::Driver;
use crate::outbox::{self, Outgoing, Sent};

/// What the kernel reported for a descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Events {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The peer ended its direction, or the socket failed: a read will not block any more.
    pub(crate) ended: bool,
    /// Both directions are over: reset, or shut down twice.
    pub(crate) failed: bool,
}

/// Identifies a registration in completion events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl Token {
    pub(crate) fn to_u64(self) -> u64 {
        (u64::from(self.generation) << 32) | u64::from(self.slot)
    }

    pub(crate) fn from_u64(raw: u64) -> Self {
        let low = u32::try_from(raw & u64::from(u32::MAX)).expect("masked to 32 bits");
        let high = u32::try_from(raw >> 32).expect("shifted to 32 bits");
        Self { slot: low, generation: high }
    }
}

#[derive(Debug, Default)]
pub(crate) struct State {
    readable: Cell<bool>,
    writable: Cell<bool>,
    ended: Cell<bool>,
    failed: Cell<bool>,
    read_waker: RefCell<Option<Waker>>,
    write_waker: RefCell<Option<Waker>>,
    pub(crate) outgoing: Outgoing,
}

impl State {
    /// Sends what was posted, or goes on with it. A failure is found by the next read or write.
    pub(crate) fn send(&self, fd: RawFd) {
        match self.outgoing.send(fd) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable.set(false),
            Err(_kept) => {
                self.readable.set(true);
                self.writable.set(true);
                wake(&self.read_waker);
                wake(&self.write_waker);
            }
        }
    }
}

struct Slot {
    generation: u32,
    state: Option<Rc<State>>,
    fd: RawFd,
}

#[derive(Default)]
struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

thread_local! {
    static TABLE: RefCell<Table> = RefCell::default();
    static DRIVER: RefCell<Option<Driver>> = const { RefCell::new(None) };
}

/// Gives the calling thread its driver; the one it had before is dropped.
pub(crate) fn install(driver: Option<Driver>) {
    DRIVER.with(|slot| *slot.borrow_mut() = driver);
}

/// Runs `f` with this thread's driver.
///
/// # Errors
/// `NotConnected` on a thread that is no shard.
pub(crate) fn with_driver<T>(f: impl FnOnce(&mut Driver) -> io::Result<T>) -> io::Result<T> {
    DRIVER.with(|slot| match slot.borrow_mut().as_mut() {
        Some(driver) => f(driver),
        None => Err(io::Error::new(io::ErrorKind::NotConnected, "no reactor on this thread")),
    })
}

/// Marks a registration ready and wakes who waits for it. Stale tokens are ignored.
pub(crate) fn deliver(token: Token, events: Events) {
    let found = TABLE.with(|table| {
        let table = table.borrow();
        let slot = table.slots.get(usize::try_from(token.slot).ok()?)?;
        if slot.generation == token.generation {
            slot.state.clone().map(|state| (state, slot.fd))
        } else {
            None
        }
    });
    let Some((state, fd)) = found else { return };
    if events.ended {
        state.ended.set(true);
    }
    if events.failed {
        state.failed.set(true);
    }
    if events.readable || events.ended {
        state.readable.set(true);
        wake(&state.read_waker);
    }
    if events.writable || events.ended {
        state.writable.set(true);
        if state.outgoing.state() == Sent::Some {
            state.send(fd);
        }
        wake(&state.write_waker);
    }
}

/// The descriptor of a live registration, for a driver that has to arm it again.
pub(crate) fn descriptor(token: Token) -> Option<RawFd> {
    TABLE.with(|table| {
        let table = table.borrow();
        let slot = table.slots.get(usize::try_from(token.slot).ok()?)?;
        (slot.generation == token.generation && slot.state.is_some()).then_some(slot.fd)
    })
}

fn wake(waker: &RefCell<Option<Waker>>) {
    let taken = waker.borrow_mut().take();
    if let Some(waker) = taken {
        waker.wake();
    }
}

/// A descriptor that is registered with this thread's driver; closed on drop.
#[derive(Debug)]
pub(crate) struct Registered {
    fd: OwnedFd,
    token: Token,
    state: Rc<State>,
}

impl Registered {
    /// Registers a non-blocking descriptor. `writable` says whether a write can be tried at once.
    pub(crate) fn new(fd: OwnedFd, writable: bool) -> io::Result<Self> {
        let state = Rc::new(State { writable: Cell::new(writable), ..State::default() });
        let token = TABLE.with(|table| {
            let mut table = table.borrow_mut();
            let index = match table.free.pop() {
                Some(index) => index,
                None => {
                    let index = u32::try_from(table.slots.len()).map_err(io::Error::other)?;
                    table.slots.push(Slot { generation: 0, state: None, fd: -1 });
                    index
                }
            };
            let slot = &mut table.slots[index as usize];
            slot.state = Some(Rc::clone(&state));
            slot.fd = fd.as_raw_fd();
            io::Result::Ok(Token { slot: index, generation: slot.generation })
        })?;
        let this = Self { fd, token, state };
        with_driver(|driver| driver.register(this.fd.as_raw_fd(), this.token))?;
        Ok(this)
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Whether the peer's end of stream or an error is known to wait in the socket.
    pub(crate) fn is_ended(&self) -> bool {
        self.state.ended.get()
    }

    /// Whether events have told that the connection is over in both directions.
    pub(crate) fn has_failed(&self) -> bool {
        self.state.failed.get()
    }

    /// Whether a read is worth a system call.
    pub(crate) fn is_readable(&self) -> bool {
        self.state.readable.get()
    }

    pub(crate) fn poll_readable(&self, cx: &Context<'_>) -> Poll<()> {
        poll_flag(&self.state.readable, &self.state.read_waker, cx)
    }

    pub(crate) fn poll_writable(&self, cx: &Context<'_>) -> Poll<()> {
        poll_flag(&self.state.writable, &self.state.write_waker, cx)
    }

    /// Runs a read-like call and keeps the readable flag true to its result: cleared when it would block, and
    /// when it came back short (epoll(7), question 9), unless an end is known to follow.
    pub(crate) fn read_with(
        &self,
        room: usize,
        call: impl FnOnce(RawFd) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let result = call(self.fd());
        match &result {
            Ok(got) if *got < room && !self.state.ended.get() => self.state.readable.set(false),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.state.readable.set(false);
                if let Some(fault) = self.state.outgoing.fault() {
                    return Err(fault);
                }
            }
            _ => {}
        }
        result
    }

    /// Runs a write-like call behind what was posted, and clears the writable flag when it would block.
    pub(crate) fn write_with(&self, call: impl FnOnce(RawFd) -> io::Result<usize>) -> io::Result<usize> {
        let result = self.state.outgoing.send(self.fd()).and_then(|()| call(self.fd()));
        if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            self.state.writable.set(false);
        }
        result
    }

    /// Takes bytes to send when the turn ends; gives them back when earlier ones wait.
    pub(crate) fn post(&self, bytes: Scratch) -> Result<(), Scratch> {
        outbox::post(self.fd(), &self.state, bytes)
    }

    /// Sends what was posted, as much as the socket takes.
    pub(crate) fn send_posted(&self) {
        if self.state.outgoing.state() != Sent::All {
            self.state.send(self.fd());
        }
    }

    /// What was posted.
    pub(crate) fn outgoing(&self) -> &Outgoing {
        &self.state.outgoing
    }

    /// Lets the next read try, whatever events have told: for callers that know better.
    pub(crate) fn set_readable(&self) {
        self.state.readable.set(true);
    }

    /// Marks the descriptor unreadable: for callers that saw `WouldBlock` themselves.
    pub(crate) fn clear_readable(&self) {
        if !self.state.ended.get() {
            self.state.readable.set(false);
        }
    }

    /// Takes the descriptor out of the reactor, to move it to another thread.
    pub(crate) fn into_fd(self) -> io::Result<OwnedFd> {
        self.send_posted();
        // The registration ends with `self`; the duplicate is a descriptor of its own for the same socket.
        self.fd.try_clone()
    }
}

fn poll_flag(flag: &Cell<bool>, waker: &RefCell<Option<Waker>>, cx: &Context<'_>) -> Poll<()> {
    if flag.get() {
        return Poll::Ready(());
    }
    let mut slot = waker.borrow_mut();
    if !slot.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
        *slot = Some(cx.waker().clone());
    }
    Poll::Pending
}

impl Drop for Registered {
    fn drop(&mut self) {
        // What the socket does not take now goes with it.
        self.send_posted();
        // Without a driver (the shard is gone) the kernel has dropped the registration with the ring.
        let _no_driver: io::Result<()> =
            with_driver(|driver| driver.deregister(self.fd.as_raw_fd(), self.token));
        TABLE.with(|table| {
            let mut table = table.borrow_mut();
            let Some(slot) = table.slots.get_mut(self.token.slot as usize) else {
                return;
            };
            slot.state = None;
            slot.fd = -1;
            // 31 bits, so that a token never equals the driver's own marks.
            slot.generation = (slot.generation + 1) & 0x7fff_ffff;
            table.free.push(self.token.slot);
        });
    }
}
