//! Who keeps the time: the pacer hands requests to the desk when they are due, a throttle makes a slow reader or
//! sender of a connection.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use core_runtime::timer::{Deadline, poll_sharp};

use crate::core::Core;
use crate::link::{Link, Outbox};
use crate::load::Arrivals;
use crate::number::length;
use crate::tally::Phase;

/// Hands every arrival to the desk at its time; `start` is when the schedule begins.
pub(crate) async fn pacer(core: Rc<Core>, arrivals: Arrivals, start: Duration) {
    let measured_from = start + core.plan.warmup;
    let end = core.desk.borrow().end();
    for arrival in arrivals {
        let intended = start + arrival;
        if intended >= end {
            break;
        }
        let mut now = core.now();
        if intended > now {
            let wake = intended.saturating_sub(core.plan.spin);
            poll_fn(|cx| poll_sharp(cx, wake)).await;
            now = core.now();
            // The kernel wakes a thread tens of microseconds late; who has a core to spare turns that into work.
            while now < intended {
                // Due by the end of this turn: the loop looks for events and does not sleep.
                let this_turn = now;
                poll_fn(|cx| poll_sharp(cx, this_turn)).await;
                now = core.now();
            }
        }
        if core.is_given_up() {
            return;
        }
        let wake = core.desk.borrow_mut().hand_in(intended);
        if intended >= measured_from {
            core.tally.borrow_mut().record(Phase::Pacing, now.saturating_sub(intended));
        }
        if let Some(slot) = wake {
            core.wake(slot);
        }
    }
    // The run lasts as long as it was asked to, also when the schedule has nothing more for it.
    poll_fn(|cx| poll_sharp(cx, end)).await;
    core.desk.borrow_mut().no_more();
    core.sweep();
}

/// How often a throttled direction moves.
const STEP: Duration = Duration::from_millis(10);

/// One direction that moves so many bytes in each step.
#[derive(Debug)]
struct Slow {
    step_bytes: usize,
    left: usize,
    next: Deadline,
}

impl Slow {
    fn new(bytes_per_s: u64) -> Self {
        let step_bytes = length(bytes_per_s / 100).max(1);
        Self { step_bytes, left: step_bytes, next: Deadline::new() }
    }

    /// The bytes that may move now.
    fn poll_left(&mut self, cx: &Context<'_>) -> Poll<usize> {
        if self.left == 0 {
            ready!(self.next.poll_expired(cx));
            self.left = self.step_bytes;
        }
        Poll::Ready(self.left)
    }

    fn took(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
        if self.left == 0 {
            self.next.set_after(STEP);
        }
    }
}

/// Limits what a connection reads and sends in a second; without limits it costs a branch.
#[derive(Debug)]
pub(crate) struct Throttle {
    read: Option<Box<Slow>>,
    send: Option<Box<Slow>>,
}

impl Throttle {
    pub(crate) fn new(read_rate: Option<u64>, send_rate: Option<u64>) -> Self {
        let slow = |rate: u64| Box::new(Slow::new(rate));
        Self { read: read_rate.map(slow), send: send_rate.map(slow) }
    }

    /// The part of the read buffer that may be filled now.
    pub(crate) fn room<'b>(&mut self, cx: &Context<'_>, buffer: &'b mut [u8]) -> Poll<&'b mut [u8]> {
        let Some(slow) = &mut self.read else { return Poll::Ready(buffer) };
        let left = ready!(slow.poll_left(cx));
        let room = left.min(buffer.len());
        Poll::Ready(buffer.get_mut(..room).unwrap_or_default())
    }

    /// So much was read.
    pub(crate) fn took(&mut self, bytes: usize) {
        if let Some(slow) = &mut self.read {
            slow.took(bytes);
        }
    }

    /// Writes all of `out`, or as much of it as may go now.
    pub(crate) fn write(
        &mut self,
        cx: &Context<'_>,
        link: &mut Link,
        out: &mut Outbox,
    ) -> Poll<io::Result<()>> {
        let Some(slow) = &mut self.send else { return link.poll_write(cx, out) };
        while !out.is_empty() {
            let left = ready!(slow.poll_left(cx));
            let before = out.len();
            let written = link.poll_write_some(cx, out, left);
            slow.took(before - out.len());
            ready!(written)?;
        }
        link.poll_write(cx, out)
    }
}
