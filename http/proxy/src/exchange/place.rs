//! Where exchanges run: futures of some kilobytes, used again and again.
//!
//! The future of an exchange holds everything between two waits of stops 6 to 12. Inside the connection's own future it
//! would be there while the connection is idle, 3.7 KB of 10; made for each exchange it would be an allocation and a
//! copy per request. So it is made once, goes from exchange to exchange in a loop, and waits in the core's pool
//! meanwhile, with the exchange's time limits, so that an idle connection has none of its own in the wheel. A place whose
//! exchange did not end, because its task was dropped or panicked, goes with it.

use std::cell::RefCell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use super::{Next, Request, Timers};
use crate::conn::ConnInfo;
use crate::core::Core;
use crate::reason::Reason;
use crate::side::Side;

/// What an exchange works on; lent by the connection and given back with [`Done`].
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) conn: Rc<ConnInfo>,
    pub(crate) request: Box<Request>,
    pub(crate) downstream: Side,
    /// Why there is nothing to route, only to answer.
    pub(crate) refused: Option<Reason>,
}

/// How an exchange ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) next: Next,
    pub(crate) work: Work,
}

/// The door between a place and who uses it.
enum Slot {
    Empty,
    Begun(Rc<Core>, Work),
    Ended(Done),
}

/// Room for one exchange.
pub(crate) struct Place {
    slot: Rc<RefCell<Slot>>,
    exchanges: Pin<Box<dyn Future<Output = ()>>>,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").finish_non_exhaustive()
    }
}

impl Place {
    pub(crate) fn new() -> Self {
        let slot = Rc::new(RefCell::new(Slot::Empty));
        Self { exchanges: Box::pin(run_each(Rc::clone(&slot))), slot }
    }
}

async fn run_each(slot: Rc<RefCell<Slot>>) {
    let timers = Timers::default();
    loop {
        let (core, mut work) = poll_fn(|_| match slot.replace(Slot::Empty) {
            Slot::Begun(core, work) => Poll::Ready((core, work)),
            // Polled right behind the last exchange, whose end nobody has seen yet.
            other => {
                slot.replace(other);
                Poll::Pending
            }
        })
        .await;
        let next = super::run(&core, &mut work, &timers).await;
        timers.response.clear();
        timers.idle.clear();
        slot.replace(Slot::Ended(Done { next, work }));
    }
}

/// Runs one exchange to its end in a place of the core's.
pub(crate) async fn run_in_place(core: &Rc<Core>, work: Work) -> Done {
    let mut place = core.take_place();
    place.slot.replace(Slot::Begun(Rc::clone(core), work));
    let done = poll_fn(|cx| {
        // It never ends; it says in the slot that an exchange has.
        match place.exchanges.as_mut().poll(cx) {
            Poll::Ready(()) | Poll::Pending => {}
        }
        match place.slot.replace(Slot::Empty) {
            Slot::Ended(done) => Poll::Ready(done),
            Slot::Empty | Slot::Begun(..) => Poll::Pending,
        }
    })
    .await;
    core.give_place(place);
    done
}
