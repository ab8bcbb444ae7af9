//! One slot: a task for the whole run that keeps a connection, or opens one for each request.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use core_runtime::timer;

use crate::core::{Core, Flight};
use crate::h1::H1;
use crate::h2::H2;
use crate::link::{DialError, Link, dial};
use crate::plan::Protocol;
use crate::websocket::WebSocket;

/// Time before another attempt when a connection could not be made.
const RETRY: Duration = Duration::from_millis(50);

/// Runs slot number `slot` to the end of the run.
pub(crate) async fn run(core: Rc<Core>, slot: usize) {
    poll_fn(|cx| {
        core.enlist(slot, cx);
        Poll::Ready(())
    })
    .await;
    let mut dials = slot;
    while !core.is_over() {
        let mut first = None;
        if core.plan.is_fresh {
            core.begun().await;
            first = next(&core, slot).await;
            if first.is_none() {
                break;
            }
        }
        match open(&core, slot, dials).await {
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
    core.alive.set(core.alive.get() - 1);
}

/// Waits for a request for a fresh connection; None at the end of the run.
async fn next(core: &Core, slot: usize) -> Option<Flight> {
    poll_fn(|_cx| match core.take(slot, core.now()) {
        Some(flight) => Poll::Ready(Some(flight)),
        None if core.is_over() => Poll::Ready(None),
        None => Poll::Pending,
    })
    .await
}

async fn open(core: &Core, slot: usize, dials: usize) -> Result<Link, DialError> {
    let target = &core.plan.target;
    let addr = target.addrs[dials % target.addrs.len().max(1)];
    let tls = core.tls_of(slot).map(|context| (context, target.server_name.as_str()));
    let dialed = dial(addr, tls, core.plan.timeout, &core.epoch, &core.buffer).await?;
    core.opened(&dialed);
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
