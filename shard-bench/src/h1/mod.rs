//! One HTTP/1.1 connection: requests out, up to the pipelining depth, responses in.
//!
//! ```text
//!  fill (desk ─► outbox) ─► flush ─► read ─► ResponseReader ─► Core::done ─► fill …
//! ```

mod response;

pub(crate) use response::{Broken, Event, ResponseReader, Sink};

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_wire::head::Method;

use crate::core::{Core, End, Flight};
use crate::link::{Got, Link, Outbox};
use crate::pace::Throttle;
use crate::tally::Fault;

/// A connection that speaks HTTP/1.1.
pub(crate) struct H1 {
    core: Rc<Core>,
    slot: usize,
    link: Link,
    out: Outbox,
    reader: ResponseReader,
    flights: VecDeque<Flight>,
    /// No request any more: the server has said that it closes.
    is_closing: bool,
    /// Not yet found by a sweep with nothing in flight.
    is_lingering: bool,
    swept: u64,
    throttle: Throttle,
    scratch: RefCell<Vec<u8>>,
}

/// What the reader tells while it reads.
struct Ends<'a> {
    core: &'a Core,
    flights: &'a mut VecDeque<Flight>,
    now: Duration,
    is_closing: &'a mut bool,
}

impl Sink for Ends<'_> {
    fn method(&self) -> Option<Method> {
        let flight = self.flights.front()?;
        self.core.plan.target.requests.list.get(flight.request).map(|request| request.method)
    }

    fn event(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Head | Event::Switched => {
                if let Some(flight) = self.flights.front_mut()
                    && flight.first_byte.is_zero()
                {
                    flight.first_byte = now;
                }
            }
            Event::End { status, is_last } => {
                *self.is_closing |= is_last;
                if let Some(flight) = self.flights.pop_front() {
                    self.core.done(&flight, now, status, None);
                }
            }
        }
    }
}

impl H1 {
    /// Over a link that is ready; `first` is a request that it was opened for.
    pub(crate) fn new(core: Rc<Core>, slot: usize, link: Link, first: Option<Flight>) -> Self {
        let throttle = Throttle::new(core.plan.read_rate, core.plan.send_rate);
        let mut this = Self {
            core,
            slot,
            link,
            out: Outbox::default(),
            reader: ResponseReader::new(),
            flights: VecDeque::new(),
            is_closing: false,
            is_lingering: true,
            swept: 0,
            throttle,
            scratch: RefCell::default(),
        };
        if let Some(flight) = first {
            let now = this.core.now();
            this.push(flight, now);
            this.is_closing = this.core.plan.is_fresh;
        }
        this
    }

    fn push(&mut self, mut flight: Flight, now: Duration) {
        self.core.sending(&mut flight, now);
        if let Some(request) = self.core.plan.target.requests.list.get(flight.request) {
            let mut values = self.core.values.borrow_mut();
            request.write_h1(&mut values, &mut self.scratch.borrow_mut(), &mut self.out.bytes);
            values.advance();
        }
        self.flights.push_back(flight);
    }

    /// Runs until the connection or the run is over.
    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        match self.poll_io(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(end) => {
                let flights = std::mem::take(&mut self.flights);
                self.core.close(&mut self.link, flights.into_iter(), end);
                Poll::Ready(())
            }
        }
    }

    fn poll_io(&mut self, cx: &Context<'_>) -> Poll<End> {
        let core = Rc::clone(&self.core);
        loop {
            if core.is_swept(&mut self.swept) {
                core.moved(&mut self.link);
                if let Some(end) = self.look_for_the_end() {
                    return Poll::Ready(end);
                }
                self.is_lingering &= !self.flights.is_empty();
            }
            if self.link.is_opening()
                && let Err(end) = ready!(self.poll_open(cx))
            {
                return Poll::Ready(end);
            }
            if self.flights.len() < core.plan.depth && !self.is_closing {
                let now = core.now();
                while self.flights.len() < core.plan.depth
                    && let Some(flight) = core.take(self.slot, now)
                {
                    self.push(flight, now);
                }
            }
            if self.is_spent() {
                return Poll::Ready(Ok(()));
            }
            if let Poll::Ready(Err(error)) = self.throttle.write(cx, &mut self.link, &mut self.out) {
                return Poll::Ready(Err((Fault::Reset, format!("writing: {error}"))));
            }
            match self.poll_read(cx) {
                Poll::Pending if self.is_spent() => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(end)) => return Poll::Ready(end),
            }
        }
    }

    /// Whether nothing more is to come; a ticket is waited for until the next sweep.
    fn is_spent(&self) -> bool {
        self.is_closing && self.flights.is_empty() && !(self.is_lingering && self.link.awaits_ticket())
    }

    /// Makes a handshake with early data, and reads the answer if that came with its last bytes.
    fn poll_open(&mut self, cx: &Context<'_>) -> Poll<Result<(), End>> {
        let core = Rc::clone(&self.core);
        ready!(self.link.poll_open(cx, &core, &mut self.out))?;
        let Self { reader, flights, is_closing, link, .. } = self;
        let read = link.take_decrypted(|bytes| {
            let mut ends = Ends { core: &core, flights, now: core.now(), is_closing };
            reader.feed(bytes, &mut ends).map(drop)
        });
        Poll::Ready(read.unwrap_or(Ok(())).map_err(broken))
    }

    fn poll_read(&mut self, cx: &Context<'_>) -> Poll<Result<(), End>> {
        let core = Rc::clone(&self.core);
        let mut buffer = core.buffer.borrow_mut();
        let Self { reader, flights, is_closing, link, throttle, .. } = self;
        let Poll::Ready(buffer) = throttle.room(cx, &mut buffer) else { return Poll::Pending };
        let mut got = 0;
        let read = link.poll_read(cx, buffer, |bytes| {
            got = bytes.len();
            let mut ends = Ends { core: &core, flights, now: core.now(), is_closing };
            reader.feed(bytes, &mut ends).map(drop)
        });
        throttle.took(got);
        let end = match read {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(Got::Bytes(Ok(())))) => return Poll::Ready(Ok(())),
            Poll::Ready(Ok(Got::Bytes(Err(fault)))) => broken(fault),
            Poll::Ready(Ok(Got::End)) => {
                let mut ends = Ends { core: &core, flights, now: core.now(), is_closing };
                reader.on_end(&mut ends);
                if flights.is_empty() {
                    Ok(())
                } else {
                    Err((Fault::Closed, "the server closed the connection before its response".to_owned()))
                }
            }
            Poll::Ready(Err(error)) => Err((read_fault(&error), format!("reading: {error}"))),
        };
        Poll::Ready(Err(end))
    }

    /// After a sweep: a time-out of the oldest request, or the end of the run.
    fn look_for_the_end(&self) -> Option<End> {
        let core = &self.core;
        if core.is_given_up() {
            return Some(Err((Fault::Unfinished, "in flight at the end of the run".to_owned())));
        }
        let now = core.now();
        if self.flights.front().is_some_and(|flight| core.is_late(flight.sent, now)) {
            return Some(Err((Fault::Timeout, format!("no answer within {:?}", core.plan.timeout))));
        }
        (self.flights.is_empty() && core.is_over()).then_some(Ok(()))
    }
}

fn broken(fault: Broken) -> End {
    Err(match fault {
        Broken::Unasked => (Fault::Protocol, "bytes that no request asked for".to_owned()),
        Broken::Parse(why) => (Fault::Protocol, format!("response: {why}")),
    })
}

/// The class of a failed read.
pub(crate) fn read_fault(error: &io::Error) -> Fault {
    match error.kind() {
        io::ErrorKind::InvalidData => Fault::Tls,
        _ => Fault::Reset,
    }
}
