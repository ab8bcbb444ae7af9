//! One slot: a task for the whole run that keeps a connection, or opens one for each request.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use core_runtime::{spawn, timer};

use crate::core::{Core, Flight};
use crate::h1::H1;
use crate::h2::H2;
use crate::link::{DialError, Link, Start, dial};
use crate::plan::Protocol;
use crate::websocket::WebSocket;

/// Time before another attempt when a connection could not be made.
const RETRY: Duration = Duration::from_millis(50);

/// Slots of one core whose first connection is being made: a target that is met by thousands of handshakes at one
/// moment holds memory for them ever after, and answers the first ones last.
const OPENING_MAX: usize = 32;

/// Starts the first slots; each starts another one when its first connection is made.
pub(crate) fn start(core: &Rc<Core>) {
    for _ in 0..OPENING_MAX {
        start_next(core);
    }
}

fn start_next(core: &Rc<Core>) {
    if let Some(slot) = core.next_slot() {
        spawn(run(Rc::clone(core), slot));
    }
}

/// Runs slot number `slot` to the end of the run.
async fn run(core: Rc<Core>, slot: usize) {
    poll_fn(|cx| {
        core.enlist(slot, cx);
        Poll::Ready(())
    })
    .await;
    let mut dials = slot;
    let mut is_first = true;
    while !core.is_over() {
        let mut first = None;
        if core.plan.opens_for_requests() {
            if std::mem::replace(&mut is_first, false) {
                start_next(&core);
            }
            core.begun().await;
            first = next(&core, slot).await;
            if first.is_none() {
                break;
            }
        }
        let is_early = first.is_some_and(|flight: Flight| core.plan.is_early(flight.request));
        let opened =
            open(&core, slot, dials, if is_early { Start::EarlyRequest } else { Start::Handshake }).await;
        if std::mem::replace(&mut is_first, false) {
            start_next(&core);
        }
        match opened {
            Ok(link) => {
                core.begun().await;
                speak(&core, slot, link, first).await;
            }
            Err(error) => {
                core.note(error.fault, || error.text);
                match first {
                    Some(mut flight) => {
                        let now = core.now();
                        core.sending(&mut flight, now);
                        core.failed(&flight, error.fault);
                    }
                    None => core.connection_failed(error.fault),
                }
                timer::sleep(RETRY).await;
            }
        }
        dials = dials.wrapping_add(1);
    }
    if is_first {
        start_next(&core);
    }
    core.alive.set(core.alive.get() - 1);
}

/// Waits for a request to open a connection for; None at the end of the run.
async fn next(core: &Core, slot: usize) -> Option<Flight> {
    poll_fn(|_cx| match core.take(slot, core.now()) {
        Some(flight) => Poll::Ready(Some(flight)),
        None if core.is_over() => Poll::Ready(None),
        None => Poll::Pending,
    })
    .await
}

async fn open(core: &Core, slot: usize, dials: usize, start: Start) -> Result<Link, DialError> {
    let target = &core.plan.target;
    let addr = target.addrs[dials % target.addrs.len().max(1)];
    let tls = core.tls_of(slot).map(|context| (context, target.server_name.as_str()));
    let dialed = dial(addr, tls, core.plan.timeout, &core.epoch, &core.buffer, start).await?;
    if !dialed.link.is_opening() {
        core.opened(dialed.connect, dialed.tls.as_ref());
    }
    Ok(dialed.link)
}

async fn speak(core: &Rc<Core>, slot: usize, link: Link, first: Option<Flight>) {
    match &core.plan.protocol {
        Protocol::H1 => {
            let mut connection = H1::new(Rc::clone(core), slot, link, first);
            poll_fn(|cx| connection.poll(cx)).await;
        }
        Protocol::H2 | Protocol::Grpc { .. } => {
            let fields = Rc::clone(&core.fields);
            let mut connection = H2::new(Rc::clone(core), fields, slot, link, first);
            poll_fn(|cx| connection.poll(cx)).await;
        }
        Protocol::WebSocket { .. } => {
            let mut connection = WebSocket::new(Rc::clone(core), slot, link, first);
            poll_fn(|cx| connection.poll(cx)).await;
        }
    }
}
