//! What the connections of one core share: the desk, the tally, the clock, one read buffer, the sweep for time-outs.
//!
//! A connection is a slot: a task for the whole run that dials, runs its protocol, and dials again when the
//! connection ends. Invariant: every request that the desk gave out is recorded once, by [`Core::done`] or
//! [`Core::failed`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use core_runtime::clock::Epoch;
use core_runtime::timer;
use tls::{ClientContext, EarlyData};

use crate::h2::Fields;
use crate::link::{Link, Shaken};
use crate::load::{Desk, Take};
use crate::plan::{Load, Plan};
use crate::request::Values;
use crate::tally::{Fault, LATE, Phase, Tally};

/// Bytes of the core's read buffer.
pub(crate) const READ_BYTES: usize = 128 * 1024;
/// First errors of each class that are kept as text.
const TEXTS_MAX: usize = 16;

/// How a connection ended: well, or with a fault and its text.
pub(crate) type End = Result<(), (Fault, String)>;

/// One request on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    /// When it was meant to start.
    pub(crate) intended: Duration,
    pub(crate) sent: Duration,
    /// When the first byte of its answer came; zero before.
    pub(crate) first_byte: Duration,
    /// Its place in the list of requests.
    pub(crate) request: usize,
}

/// See the module.
pub(crate) struct Core {
    pub(crate) plan: Arc<Plan>,
    pub(crate) epoch: Epoch,
    /// Empty on plaintext. Sessions are remembered by context: see [`Core::tls_of`].
    tls: Vec<ClientContext>,
    /// The requests as HTTP/2 sends them.
    pub(crate) fields: Rc<Fields>,
    pub(crate) desk: RefCell<Desk>,
    pub(crate) tally: RefCell<Tally>,
    pub(crate) values: RefCell<Values>,
    pub(crate) buffer: RefCell<Box<[u8]>>,
    /// Waker of each slot's task.
    wakers: RefCell<Vec<Option<Waker>>>,
    /// Counts up when slots are to look for time-outs.
    sweeps: Cell<u64>,
    /// Slots whose task has not ended.
    pub(crate) alive: Cell<usize>,
    /// When requests begin; the warm-up is the time from here to the window.
    begin: Duration,
    /// Slots whose task has been started.
    slots_started: Cell<usize>,
    /// Start and end of what is measured.
    window: (Duration, Duration),
    is_open: bool,
    picked: Cell<u64>,
    /// First texts of errors, by class.
    pub(crate) texts: RefCell<Vec<(Fault, String)>>,
    /// Set when the drain is over: what is in flight is given up.
    is_given_up: Cell<bool>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("alive", &self.alive).finish_non_exhaustive()
    }
}

impl Core {
    pub(crate) fn new(
        plan: Arc<Plan>,
        epoch: Epoch,
        tls: Vec<ClientContext>,
        desk: Desk,
        values: Values,
        slots: usize,
        window: (Duration, Duration),
    ) -> Self {
        let is_open = matches!(plan.load, Load::Open(_));
        let fields = Rc::new(Fields::new(&plan));
        let begin = window.0.saturating_sub(plan.warmup);
        Self {
            begin,
            fields,
            plan,
            epoch,
            tls,
            desk: RefCell::new(desk),
            tally: RefCell::new(Tally::new()),
            values: RefCell::new(values),
            buffer: RefCell::new(vec![0; READ_BYTES].into_boxed_slice()),
            wakers: RefCell::new(vec![None; slots]),
            sweeps: Cell::new(0),
            alive: Cell::new(slots),
            slots_started: Cell::new(0),
            window,
            is_open,
            picked: Cell::new(0),
            texts: RefCell::default(),
            is_given_up: Cell::new(false),
        }
    }

    /// The TLS configuration of a slot. With a connection for each request every slot has one of its own, as far as
    /// there are, because a context keeps eight tickets and each resumes one connection (RFC 8446 §C.4).
    pub(crate) fn tls_of(&self, slot: usize) -> Option<&ClientContext> {
        self.tls.get(slot % self.tls.len().max(1))
    }

    /// The time now, not that of the turn.
    pub(crate) fn now(&self) -> Duration {
        self.epoch.read()
    }

    /// The number of the next slot to start; None when all are.
    pub(crate) fn next_slot(&self) -> Option<usize> {
        let slot = self.slots_started.get();
        let is_there = slot < self.wakers.borrow().len();
        self.slots_started.set(slot + usize::from(is_there));
        is_there.then_some(slot)
    }

    /// Keeps the waker of a slot's task.
    pub(crate) fn enlist(&self, slot: usize, cx: &Context<'_>) {
        if let Some(place) = self.wakers.borrow_mut().get_mut(slot)
            && place.is_none()
        {
            *place = Some(cx.waker().clone());
        }
    }

    pub(crate) fn wake(&self, slot: usize) {
        if let Some(Some(waker)) = self.wakers.borrow().get(slot) {
            waker.wake_by_ref();
        }
    }

    fn wake_all(&self) {
        self.wakers.borrow().iter().flatten().for_each(Waker::wake_by_ref);
    }

    /// Lets every slot look for time-outs, and for the end.
    pub(crate) fn sweep(&self) {
        self.sweeps.set(self.sweeps.get() + 1);
        self.wake_all();
    }

    /// Gives up what is in flight.
    pub(crate) fn give_up(&self) {
        self.is_given_up.set(true);
        self.sweep();
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.is_given_up.get()
    }

    /// Whether a sweep was called since `seen`, which follows.
    pub(crate) fn is_swept(&self, seen: &mut u64) -> bool {
        let sweeps = self.sweeps.get();
        std::mem::replace(seen, sweeps) != sweeps
    }

    /// The next request for a slot; `now` is its sending time when there is one.
    pub(crate) fn take(&self, slot: usize, now: Duration) -> Option<Flight> {
        match self.desk.borrow_mut().take(now, slot) {
            Take::Job(intended) => Some(self.start(intended, now)),
            Take::Wait | Take::Over => None,
        }
    }

    fn start(&self, intended: Duration, now: Duration) -> Flight {
        let picked = self.picked.get();
        self.picked.set(picked + 1);
        let list = &self.plan.target.requests;
        let request = if list.list.len() > 1 { list.pick(picked, &mut self.values.borrow_mut()) } else { 0 };
        Flight { intended, sent: now, first_byte: Duration::ZERO, request }
    }

    /// Says that a request leaves now. Counts it, and how late it is.
    pub(crate) fn sending(&self, flight: &mut Flight, now: Duration) {
        flight.sent = now;
        if flight.intended < self.window.0 {
            return;
        }
        let mut tally = self.tally.borrow_mut();
        tally.counts.started += 1;
        if self.is_open {
            let late = now.saturating_sub(flight.intended);
            tally.record(Phase::Queue, late);
            tally.counts.late += u64::from(late > LATE);
        }
    }

    /// Waits until requests may begin: connections are made before that.
    pub(crate) async fn begun(&self) {
        // A timer may fire a little early, and a request before the beginning would count as warm-up.
        loop {
            let wait = self.begin.saturating_sub(self.now());
            if wait.is_zero() {
                return;
            }
            timer::sleep(wait).await;
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_given_up.get() || self.desk.borrow().is_over(self.now())
    }

    /// An exchange has ended with an answer of `status`.
    pub(crate) fn done(&self, flight: &Flight, now: Duration, status: u16, fault: Option<Fault>) {
        let mut tally = self.tally.borrow_mut();
        tally.counts.in_window += u64::from(now >= self.window.0 && now < self.window.1);
        if flight.intended < self.window.0 {
            return;
        }
        tally.record(Phase::Latency, now.saturating_sub(flight.intended));
        if self.is_open {
            tally.record(Phase::Raw, now.saturating_sub(flight.sent));
        }
        tally.record(Phase::FirstByte, flight.first_byte.saturating_sub(flight.sent));
        if flight.first_byte < now {
            tally.record(Phase::Body, now.saturating_sub(flight.first_byte));
        }
        if let Some(count) = tally.counts.by_status.get_mut(usize::from(status / 100)) {
            *count += 1;
        }
        match fault {
            None if status < 400 => tally.counts.ok += 1,
            None => {
                tally.fault(Fault::Status);
                self.note(Fault::Status, || format!("status {status}"));
            }
            Some(fault) => tally.fault(fault),
        }
    }

    /// A message came for an exchange, `span` after the one before it or the sending.
    pub(crate) fn message(&self, flight: &Flight, span: Duration) {
        if flight.intended < self.window.0 {
            return;
        }
        let mut tally = self.tally.borrow_mut();
        tally.counts.messages += 1;
        tally.record(Phase::Message, span);
    }

    /// An exchange has failed. A time-out counts as a latency: the client waited that long.
    pub(crate) fn failed(&self, flight: &Flight, fault: Fault) {
        if flight.intended < self.window.0 {
            return;
        }
        let mut tally = self.tally.borrow_mut();
        tally.fault(fault);
        if matches!(fault, Fault::Timeout | Fault::Unfinished | Fault::Missed) {
            let waited = self.now().saturating_sub(flight.intended);
            tally.record(Phase::Latency, waited);
        }
    }

    /// A connection was made, in `connect`, with a handshake after it unless on plaintext.
    pub(crate) fn opened(&self, connect: Duration, tls: Option<&Shaken>) {
        let is_measured = self.now() >= self.window.0;
        let mut tally = self.tally.borrow_mut();
        tally.counts.connections += 1;
        if is_measured {
            tally.record(Phase::Connect, connect);
        }
        let Some(shaken) = tls else { return };
        let is_early = shaken.early_data == EarlyData::Accepted;
        tally.counts.tls_full += u64::from(!shaken.is_resumed);
        tally.counts.tls_resumed += u64::from(shaken.is_resumed);
        tally.counts.early_accepted += u64::from(is_early);
        tally.counts.early_refused += u64::from(shaken.early_data == EarlyData::Refused);
        if is_measured {
            let phase = match shaken.is_resumed {
                _ if is_early => Phase::TlsEarly,
                true => Phase::TlsResumed,
                false => Phase::TlsFull,
            };
            tally.record(phase, shaken.span);
        }
    }

    /// A connection failed, and no exchange with it.
    pub(crate) fn connection_failed(&self, fault: Fault) {
        self.tally.borrow_mut().fault(fault);
    }

    /// Keeps the text of an error when its class has few.
    pub(crate) fn note(&self, fault: Fault, text: impl FnOnce() -> String) {
        let mut texts = self.texts.borrow_mut();
        if texts.len() < TEXTS_MAX && !texts.iter().any(|(other, _)| *other == fault) {
            texts.push((fault, text()));
        }
    }

    /// Whether a request that was sent at `sent` has waited for too long.
    pub(crate) fn is_late(&self, sent: Duration, now: Duration) -> bool {
        now.saturating_sub(sent) >= self.plan.timeout
    }

    /// A connection is over: counts its bytes, and what was in flight on it when it did not end well.
    pub(crate) fn close(&self, link: &mut Link, flights: impl ExactSizeIterator<Item = Flight>, end: End) {
        self.moved(link);
        let Err((fault, text)) = end else { return };
        let is_idle = flights.len() == 0;
        // An idle connection that the end of the run closes is no fault.
        if is_idle && fault == Fault::Unfinished {
            return;
        }
        self.note(fault, || text);
        if is_idle {
            self.tally.borrow_mut().fault(fault);
        }
        flights.for_each(|flight| self.failed(&flight, fault));
    }

    /// Adds the bytes that a connection has moved.
    pub(crate) fn moved(&self, link: &mut Link) {
        let mut tally = self.tally.borrow_mut();
        tally.counts.bytes_in += std::mem::take(&mut link.bytes_in);
        tally.counts.bytes_out += std::mem::take(&mut link.bytes_out);
    }
}
