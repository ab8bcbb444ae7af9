//! WebSocket (RFC 6455): a connection upgrades once, then each request is a message that one message answers.
//!
//! The answer's `Sec-WebSocket-Accept` is not checked: what is measured is a target that is trusted to speak it.

pub(crate) mod frame;

use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_wire::head::Method;

use crate::core::{Core, End, Flight};
use crate::h1::{Broken, Event, ResponseReader, Sink, read_fault};
use crate::link::{Got, Link, Outbox};
use crate::pace::Throttle;
use crate::plan::Protocol;
use crate::tally::Fault;
use frame::{Heard, Reader, opcode};

/// One connection.
pub(crate) struct WebSocket {
    core: Rc<Core>,
    slot: usize,
    link: Link,
    out: Outbox,
    upgrade: Option<Box<Upgrade>>,
    upgrade_sent: Duration,
    first: Option<Flight>,
    reader: Reader,
    flights: VecDeque<Flight>,
    is_closing: bool,
    swept: u64,
    throttle: Throttle,
    scratch: Vec<u8>,
}

/// The HTTP/1.1 part at the beginning.
struct Upgrade {
    reader: ResponseReader,
    outcome: Option<Result<(), u16>>,
}

struct Outcome<'a>(&'a mut Option<Result<(), u16>>);

impl Sink for Outcome<'_> {
    fn method(&self) -> Option<Method> {
        Some(Method::Get)
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Head => {}
            Event::Switched => *self.0 = Some(Ok(())),
            Event::End { status, .. } => *self.0 = Some(Err(status)),
        }
    }
}

impl WebSocket {
    /// Over a link that is ready; `first` is a request that was taken for a fresh connection.
    pub(crate) fn new(core: Rc<Core>, slot: usize, link: Link, first: Option<Flight>) -> Self {
        let mut out = Outbox::default();
        let throttle = Throttle::new(core.plan.read_rate, core.plan.send_rate);
        if let Some(request) = core.plan.target.requests.list.first() {
            let mut values = core.values.borrow_mut();
            request.write_h1(&mut values, &mut Vec::new(), &mut out.bytes);
            // Before the empty line.
            out.bytes.truncate(out.bytes.len().saturating_sub(2));
        }
        out.bytes.extend_from_slice(
            b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
              sec-websocket-key: c2hhcmQtYmVuY2gtLS0tLQ==\r\n\r\n",
        );
        let upgrade = Some(Box::new(Upgrade { reader: ResponseReader::new(), outcome: None }));
        let upgrade_sent = core.now();
        let (reader, flights) = (Reader::default(), VecDeque::new());
        Self {
            core,
            slot,
            link,
            out,
            upgrade,
            upgrade_sent,
            first,
            reader,
            flights,
            is_closing: false,
            swept: 0,
            throttle,
            scratch: Vec::new(),
        }
    }

    /// Runs until the connection or the run is over.
    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        match self.poll_io(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(end) => {
                let mut flights = std::mem::take(&mut self.flights);
                flights.extend(self.first.take());
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
            }
            if self.upgrade.is_none() {
                self.fill();
            }
            if self.is_closing && self.flights.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if let Poll::Ready(Err(error)) = self.throttle.write(cx, &mut self.link, &mut self.out) {
                return Poll::Ready(Err((Fault::Reset, format!("writing: {error}"))));
            }
            match self.poll_read(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(end)) => return Poll::Ready(end),
            }
        }
    }

    fn fill(&mut self) {
        let Protocol::WebSocket { message } = &self.core.plan.protocol else { return };
        let now = self.core.now();
        while self.flights.len() < self.core.plan.depth && !self.is_closing {
            let taken = self.first.take().or_else(|| self.core.take(self.slot, now));
            let Some(mut flight) = taken else { return };
            self.core.sending(&mut flight, now);
            let mut values = self.core.values.borrow_mut();
            let mask = u32::try_from(values.below(u64::from(u32::MAX))).unwrap_or(0).to_be_bytes();
            self.scratch.clear();
            message.fill(&mut values, &mut self.scratch);
            values.advance();
            drop(values);
            frame::put(opcode::TEXT, &self.scratch, Some(mask), &mut self.out.bytes);
            self.flights.push_back(flight);
            self.is_closing = self.core.plan.is_fresh;
        }
    }

    fn poll_read(&mut self, cx: &Context<'_>) -> Poll<Result<(), End>> {
        let core = Rc::clone(&self.core);
        let mut buffer = core.buffer.borrow_mut();
        let Self { link, throttle, upgrade, reader, flights, out, is_closing, .. } = self;
        let Poll::Ready(buffer) = throttle.room(cx, &mut buffer) else { return Poll::Pending };
        let mut got = 0;
        let read = link.poll_read(cx, buffer, |bytes| {
            got = bytes.len();
            let frames = match upgrade {
                None => bytes,
                Some(part) => {
                    let rest = part.reader.feed(bytes, &mut Outcome(&mut part.outcome)).map_err(broken)?;
                    match part.outcome {
                        None => return Ok(()),
                        Some(Ok(())) => *upgrade = None,
                        Some(Err(status)) => {
                            return Err((Fault::Status, format!("the upgrade was answered with {status}")));
                        }
                    }
                    rest
                }
            };
            let now = core.now();
            let heard = |heard: Heard<'_>| match heard {
                Heard::Message { is_last, .. } => message(&core, flights, now, is_last),
                Heard::Ping(payload) => frame::put(opcode::PONG, payload, Some([0; 4]), &mut out.bytes),
                Heard::Close => *is_closing = true,
            };
            reader.feed(frames, heard).map_err(|frame::Broken(why)| (Fault::Protocol, why.to_owned()))
        });
        throttle.took(got);
        Poll::Ready(match read {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(Got::Bytes(Ok(())))) => Ok(()),
            Poll::Ready(Ok(Got::Bytes(Err(fault)))) => Err(Err(fault)),
            Poll::Ready(Ok(Got::End)) if self.flights.is_empty() && self.upgrade.is_none() => Err(Ok(())),
            Poll::Ready(Ok(Got::End)) => {
                Err(Err((Fault::Closed, "the server closed the connection before its message".to_owned())))
            }
            Poll::Ready(Err(error)) => Err(Err((read_fault(&error), format!("reading: {error}")))),
        })
    }

    fn look_for_the_end(&self) -> Option<End> {
        let core = &self.core;
        if core.is_given_up() {
            return Some(Err((Fault::Unfinished, "in flight at the end of the run".to_owned())));
        }
        let oldest = match (&self.upgrade, self.flights.front()) {
            (Some(_), _) => Some(self.upgrade_sent),
            (None, flight) => flight.map(|flight| flight.sent),
        };
        if oldest.is_some_and(|sent| core.is_late(sent, core.now())) {
            return Some(Err((Fault::Timeout, format!("no message within {:?}", core.plan.timeout))));
        }
        (self.flights.is_empty() && self.first.is_none() && core.is_over()).then_some(Ok(()))
    }
}

fn broken(broken: Broken) -> (Fault, String) {
    match broken {
        Broken::Unasked => (Fault::Protocol, "bytes that no request asked for".to_owned()),
        Broken::Parse(why) => (Fault::Protocol, format!("the answer to the upgrade: {why}")),
    }
}

/// Part of an answer, or its end. What nobody asked for is counted and dropped.
fn message(core: &Core, flights: &mut VecDeque<Flight>, now: Duration, is_last: bool) {
    let Some(flight) = flights.front_mut() else { return };
    if flight.first_byte.is_zero() {
        flight.first_byte = now;
    }
    if !is_last {
        return;
    }
    if let Some(flight) = flights.pop_front() {
        core.message(&flight, now.saturating_sub(flight.sent));
        core.done(&flight, now, 200, None);
    }
}
