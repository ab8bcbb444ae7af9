//! Updates that reach the machines at different times: for how many flows a change of the list is one too many, by how far
//! the machines are apart, while the router shifts flows from box to box.
//!
//! Each box and each proxy takes the new table at a moment of its own within the skew. Meanwhile every flow sends a packet in
//! each step, some end and others begin, and in the middle a box is lost. A proxy without the connection sends a packet on
//! once, by the table that it has at that moment.

use std::time::Duration;

use l4_abi::{Row, hash};
use l4_steer::owner::{Owner, OwnerList, OwnerState};
use l4_steer::rollout::{Conflict, Rollout};

use super::{Router, Size, WINDOWS, mix, owner};

/// Steps within the skew, and behind it.
const STEPS: u32 = 20;
const SETTLED_STEPS: u32 = 3;
/// One in so many flows ends in each second, and another begins.
const NEW_ONE_IN: f64 = 10.0;
/// One in so many flows is in no flow table at the beginning: it slept past its idle time.
const SLEEPER_ONE_IN: u64 = 20;
/// The box that is lost.
const LOST: usize = 2;
const BUCKETS: usize = 1_024;

/// The change whose updates are apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    ProxyDrained,
    ProxyAdded,
}

/// Whom a proxy asks that does not have the connection of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asks {
    /// The row's present owner, unless it is that itself; then the previous one. What the program does.
    Present,
    /// Always the previous owner.
    PreviousOnly,
    Nobody,
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) change: Change,
    pub(crate) asks: Asks,
    /// How the router spreads; no box is lost with `None`.
    pub(crate) box_lost: Option<Router>,
    pub(crate) skew: Duration,
}

#[derive(Clone, Copy)]
struct Flow {
    hash: u64,
    holder: u16,
    /// What each box's flow table says; 0 = nothing.
    known: [u16; 8],
}

/// A table before and after, and when each machine changes from one to the other, in steps.
struct Tables {
    before: Vec<Row>,
    after: Vec<Row>,
    boxes: Vec<f64>,
    proxies: Vec<f64>,
}

impl Tables {
    fn row(&self, at: f64, changes: f64, hash: u64) -> Row {
        let rows = if at < changes { &self.before } else { &self.after };
        rows[hash::row(hash)]
    }
}

struct Draws {
    seed: u64,
    count: u64,
}

impl Draws {
    fn next(&mut self) -> u64 {
        self.count += 1;
        mix(self.seed ^ mix(self.count))
    }

    /// A share from 0 to below 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Connections that break, as a share of all flows that there are at a time.
pub(crate) fn broken(size: Size, case: Case) -> f64 {
    assert!(size.boxes == 8, "as many as a flow has places");
    let mut draws = Draws { seed: size.seed, count: 0 };
    let (before, after) = tables(size, case.change);
    let apart = f64::from(STEPS);
    let mut moments = |count: usize| (0..count).map(|_| draws.share() * apart).collect::<Vec<f64>>();
    let (boxes, proxies) = (moments(usize::from(size.boxes)), moments(usize::from(size.proxies) + 2));
    let tables = Tables { before, after, boxes, proxies };
    let mut flows: Vec<Flow> = (0..size.flows)
        .map(|_| {
            let mut flow = begin(draws.next(), -1.0, case, &tables);
            if draws.next().is_multiple_of(SLEEPER_ONE_IN) {
                flow.known = [0; 8];
            }
            flow
        })
        .collect();
    let step_seconds = case.skew.as_secs_f64() / apart;
    let mut broken = 0_usize;
    for step in 0..STEPS + SETTLED_STEPS {
        for flow in &mut flows {
            let at = f64::from(step) + draws.share();
            if step < STEPS && draws.share() < step_seconds / NEW_ONE_IN {
                *flow = begin(draws.next(), at, case, &tables);
            } else if !arrives(flow, at, case, &tables) {
                broken += 1;
                *flow = begin(draws.next(), at, case, &tables);
            }
        }
    }
    broken as f64 / flows.len() as f64
}

/// The rows of a fleet of which a part was deployed within the hour, and those after one more change.
fn tables(size: Size, change: Change) -> (Vec<Row>, Vec<Row>) {
    let mut owners: Vec<Owner> = (1..=size.proxies).map(owner).collect();
    let list = |owners: &[Owner]| OwnerList::new(owners.to_vec()).expect("names and ids differ");
    let mut rollout = Rollout::new(list(&owners), WINDOWS).expect("active proxies");
    let mut now = Duration::ZERO;
    for index in 0..usize::from(size.proxies) / 4 {
        for state in [OwnerState::Draining, OwnerState::Down, OwnerState::Active] {
            owners[index].state = state;
            rollout.propose(list(&owners), Conflict::Refuse, now).expect("the last change has drained");
            now += WINDOWS.drain;
            rollout.tick(now);
        }
    }
    let before = rollout.rows().to_vec();
    match change {
        Change::ProxyDrained => owners[usize::from(size.proxies) / 2].state = OwnerState::Draining,
        Change::ProxyAdded => owners.push(owner(size.proxies + 1)),
    }
    rollout.propose(list(&owners), Conflict::Refuse, now).expect("the last change has drained");
    (before, rollout.rows().to_vec())
}

/// A new flow: its SYN goes where its box's table says.
fn begin(hash: u64, at: f64, case: Case, tables: &Tables) -> Flow {
    let number = box_of(hash, at, case);
    let holder = tables.row(at, tables.boxes[number], hash).current;
    let mut known = [0; 8];
    known[number] = holder;
    Flow { hash, holder, known }
}

/// Whether a packet finds its connection.
fn arrives(flow: &mut Flow, at: f64, case: Case, tables: &Tables) -> bool {
    let number = box_of(flow.hash, at, case);
    let mut to = flow.known[number];
    if to == 0 {
        let row = tables.row(at, tables.boxes[number], flow.hash);
        to = row.current;
        if row.current == row.previous {
            flow.known[number] = to;
        }
    }
    if to == flow.holder {
        return true;
    }
    let row = tables.row(at, tables.proxies[usize::from(to)], flow.hash);
    let asked = match case.asks {
        Asks::Nobody => return false,
        Asks::PreviousOnly if row.current == row.previous => return false,
        Asks::PreviousOnly => row.previous,
        Asks::Present if row.current != to => row.current,
        Asks::Present => row.previous,
    };
    asked == flow.holder
}

fn box_of(hash: u64, at: f64, case: Case) -> usize {
    let draw = usize::try_from(mix(hash) & 0xffff_ffff).expect("32 bits fit");
    let is_lost = at >= f64::from(STEPS) / 2.0;
    match case.box_lost.filter(|_| is_lost) {
        None => draw % BUCKETS % 8,
        // The others, in turn, take the lost one's.
        Some(router) if router == Router::Modulo || draw % BUCKETS % 8 == LOST => {
            let heir = if router == Router::Modulo { draw % 7 } else { draw % BUCKETS / 8 % 7 };
            if heir >= LOST { heir + 1 } else { heir }
        }
        Some(_) => draw % BUCKETS % 8,
    }
}
