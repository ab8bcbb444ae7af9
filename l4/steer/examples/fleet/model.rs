//! A fleet of L4 boxes and proxies with its flows, as a seeded model: what each event breaks, by way of steering.
//!
//! What is modelled: the router's choice of a box (modulo or resilient hashing), each box's flow table, the rows (the
//! product's own [`Rollout`] for Maglev), second chance, flows that end between events and flows that sleep past the
//! flow table's idle time. What is not: packets that cross a change on the wire; boxes that learn of a change at
//! different times are skew.rs's. Every flow sends one packet after each event; a flow that meets a proxy which does not hold it is
//! broken, counted, and opened anew.

use std::time::Duration;

use l4_abi::{TABLE_ROWS, hash};
use l4_steer::owner::{Owner, OwnerId, OwnerList, OwnerState};
use l4_steer::rollout::{Conflict, Rollout, Windows};

#[path = "skew.rs"]
pub(crate) mod skew;

const WINDOWS: Windows = Windows { drain: Duration::from_secs(300), rescue: Duration::from_secs(3_600) };
/// Points of a proxy on the ring.
const RING_POINTS: u64 = 100;
/// Buckets of the router's resilient next-hop group.
const BUCKETS: usize = 1_024;

/// The size of a fleet, and how its flows behave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) boxes: u8,
    pub(crate) proxies: u16,
    pub(crate) flows: usize,
    pub(crate) seed: u64,
}

/// One in so many flows outlives the whole run; of the others nine in ten end between two events.
const LONG_ONE_IN: u64 = 5;
/// One in so many flows sleeps past the flow tables' idle time between two events.
const SLEEPER_ONE_IN: u64 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    Maglev,
    Ring,
    Modulo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Router {
    Modulo,
    Resilient,
}

/// A way of steering.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    pub(crate) name: &'static str,
    pub(crate) spread: Spread,
    pub(crate) has_flow_table: bool,
    pub(crate) has_second_chance: bool,
}

/// What happens to the fleet, as it is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    ProxyDrained,
    BoxLostInDrain,
    WindowEnds,
    ProxyRestarts,
    ProxyReturns,
    BoxLost,
    BoxReturns,
    ProxyCrashes,
    ProxyAdded,
}

impl Event {
    pub(crate) const ALL: [Self; 9] = [
        Self::ProxyDrained,
        Self::BoxLostInDrain,
        Self::WindowEnds,
        Self::ProxyRestarts,
        Self::ProxyReturns,
        Self::BoxLost,
        Self::BoxReturns,
        Self::ProxyCrashes,
        Self::ProxyAdded,
    ];

    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::ProxyDrained => "proxy drained",
            Self::BoxLostInDrain => "box lost in a drain",
            Self::WindowEnds => "drain window ends",
            Self::ProxyRestarts => "drained proxy restarts",
            Self::ProxyReturns => "proxy returns",
            Self::BoxLost => "box lost",
            Self::BoxReturns => "box returns",
            Self::ProxyCrashes => "proxy crashes",
            Self::ProxyAdded => "proxy added",
        }
    }
}

/// What one event did to the flows, as counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) event: Event,
    pub(crate) flows: usize,
    /// The proxy that held them is gone: no steering can help.
    pub(crate) cut: usize,
    /// Sent to a proxy that did not hold them.
    pub(crate) broken: usize,
    /// Sent to the right proxy by second chance.
    pub(crate) rescued: usize,
}

#[derive(Clone, Copy)]
struct Flow {
    hash: u64,
    holder: u16,
    /// A bit for each box whose flow table knows the flow.
    known: u8,
    is_long: bool,
}

/// SplitMix64 (Steele et al., 2014): a well mixed number for each number.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

fn low(x: u64) -> usize {
    usize::try_from(x & 0xffff_ffff).expect("32 bits fit")
}

struct Fleet {
    policy: Policy,
    router: Router,
    owners: Vec<Owner>,
    rollout: Rollout,
    /// Current owner by row, where the spread is not Maglev's.
    simple_rows: Vec<u16>,
    is_box_up: Vec<bool>,
    buckets: Vec<u8>,
    flows: Vec<Flow>,
    now: Duration,
    seed: u64,
    draws: u64,
    measured: Vec<Measured>,
}

/// Runs all events over one fleet: every proxy is deployed in turn, in the middle of which a box is lost, then single
/// losses and an addition.
pub(crate) fn run(size: Size, policy: Policy, router: Router) -> Vec<Measured> {
    let owners: Vec<Owner> = (1..=size.proxies).map(owner).collect();
    let list = OwnerList::new(owners.clone()).expect("names and ids differ");
    let rollout = Rollout::new(list, WINDOWS).expect("active proxies");
    let holder = 1;
    let flows = (0..size.flows).map(|_| Flow { hash: 0, holder, known: 0, is_long: false }).collect();
    let mut fleet = Fleet {
        policy,
        router,
        owners,
        rollout,
        simple_rows: Vec::new(),
        is_box_up: vec![true; usize::from(size.boxes)],
        buckets: Vec::new(),
        flows,
        now: Duration::ZERO,
        seed: size.seed,
        draws: 0,
        measured: Vec::new(),
    };
    fleet.spread_simple_rows();
    fleet.spread_buckets();
    for index in 0..size.flows {
        fleet.open(index);
    }
    fleet.deploy_all(size);
    fleet.lose_and_add(size);
    fleet.measured
}

fn owner(id: u16) -> Owner {
    let state = OwnerState::Active;
    Owner { id: OwnerId::new(id).expect("an id"), name: format!("proxy-{id}"), weight: 1, state }
}

impl Fleet {
    fn deploy_all(&mut self, size: Size) {
        let middle = usize::from(size.proxies) / 2;
        for index in 0..usize::from(size.proxies) {
            self.live_on();
            self.set_state(index, OwnerState::Draining);
            self.packets(Event::ProxyDrained);
            self.live_on();
            if index == middle {
                self.set_box(2, false);
                self.packets(Event::BoxLostInDrain);
            }
            self.end_window();
            self.set_state(index, OwnerState::Down);
            self.packets(Event::ProxyRestarts);
            self.set_state(index, OwnerState::Active);
            self.packets(Event::ProxyReturns);
            self.live_on();
            self.end_window();
            if index == middle {
                self.set_box(2, true);
                self.packets(Event::BoxReturns);
            }
        }
    }

    fn lose_and_add(&mut self, size: Size) {
        self.live_on();
        self.set_box(5, false);
        self.packets(Event::BoxLost);
        self.live_on();
        self.set_box(5, true);
        self.packets(Event::BoxReturns);
        self.live_on();
        self.set_state(7, OwnerState::Down);
        self.packets(Event::ProxyCrashes);
        self.end_window();
        self.live_on();
        self.owners.push(owner(size.proxies + 1));
        self.publish();
        self.packets(Event::ProxyAdded);
    }

    /// Flows end and begin, and some sleep until the flow tables forget them.
    fn live_on(&mut self) {
        for index in 0..self.flows.len() {
            let draw = self.draw();
            if !self.flows[index].is_long && !draw.is_multiple_of(10) {
                self.open(index);
            } else if (draw >> 32).is_multiple_of(SLEEPER_ONE_IN) {
                self.flows[index].known = 0;
            }
        }
    }

    /// A new flow: its SYN goes to the current owner, and into the box's flow table.
    fn open(&mut self, index: usize) {
        let draw = self.draw();
        let hash = draw;
        let holder = self.rows_of(hash).0;
        let known = self.flow_table_bit(hash);
        self.flows[index] = Flow { hash, holder, known, is_long: draw.is_multiple_of(LONG_ONE_IN) };
    }

    /// Every flow sends a packet.
    fn packets(&mut self, event: Event) {
        let (mut cut, mut broken, mut rescued) = (0, 0, 0);
        let is_up: Vec<bool> = (0..=OwnerId::MAX)
            .map(|id| self.owners.iter().any(|owner| owner.id.get() == id && owner.state != OwnerState::Down))
            .collect();
        for index in 0..self.flows.len() {
            let flow = self.flows[index];
            if !is_up[usize::from(flow.holder)] {
                cut += 1;
                self.open(index);
                continue;
            }
            let bit = self.flow_table_bit(flow.hash);
            if flow.known & bit != 0 {
                continue;
            }
            let (current, previous) = self.rows_of(flow.hash);
            if current == flow.holder {
                // Where a previous owner may hold the flow, a miss must not be remembered.
                if !self.policy.has_second_chance || current == previous {
                    self.flows[index].known |= bit;
                }
            } else if self.policy.has_second_chance && previous == flow.holder {
                rescued += 1;
            } else {
                broken += 1;
                self.open(index);
            }
        }
        self.measured.push(Measured { event, flows: self.flows.len(), cut, broken, rescued });
    }

    /// Current and previous owner of a flow.
    fn rows_of(&self, hash: u64) -> (u16, u16) {
        let row = hash::row(hash);
        if self.policy.spread == Spread::Maglev {
            let row = self.rollout.rows()[row];
            (row.current, row.previous)
        } else {
            (self.simple_rows[row], self.simple_rows[row])
        }
    }

    fn flow_table_bit(&self, hash: u64) -> u8 {
        if self.policy.has_flow_table { 1 << self.box_of(hash) } else { 0 }
    }

    /// The router hashes with a key of its own.
    fn box_of(&self, hash: u64) -> u8 {
        self.buckets[low(mix(hash)) % self.buckets.len()]
    }

    fn set_state(&mut self, index: usize, state: OwnerState) {
        self.owners[index].state = state;
        self.publish();
    }

    fn publish(&mut self) {
        let list = OwnerList::new(self.owners.clone()).expect("names and ids differ");
        self.rollout.propose(list, Conflict::Refuse, self.now).expect("the last change has drained");
        self.spread_simple_rows();
    }

    fn end_window(&mut self) {
        self.now += WINDOWS.drain;
        self.rollout.tick(self.now);
        self.packets(Event::WindowEnds);
    }

    fn set_box(&mut self, number: u8, is_up: bool) {
        self.is_box_up[usize::from(number)] = is_up;
        // Its memory is empty when it returns.
        self.flows.iter_mut().for_each(|flow| flow.known &= !(1 << number));
        self.spread_buckets();
    }

    fn spread_buckets(&mut self) {
        let up: Vec<u8> =
            (0..).zip(&self.is_box_up).filter(|(_, is_up)| **is_up).map(|(number, _)| number).collect();
        if self.router == Router::Modulo {
            self.buckets = up;
            return;
        }
        if self.buckets.is_empty() {
            self.buckets = up.iter().copied().cycle().take(BUCKETS).collect();
        }
        let mut heirs = up.iter().copied().cycle();
        let is_up = &self.is_box_up;
        for bucket in self.buckets.iter_mut().filter(|bucket| !is_up[usize::from(**bucket)]) {
            *bucket = heirs.next().expect("a box is up");
        }
        // A box that returns takes its share from each of the others.
        let share = BUCKETS / up.len();
        for number in up {
            let mut missing = share.saturating_sub(self.buckets.iter().filter(|b| **b == number).count());
            let mut at = 0;
            while missing > 0 {
                let bucket = self.buckets[at];
                if self.buckets.iter().filter(|b| **b == bucket).count() > share {
                    self.buckets[at] = number;
                    missing -= 1;
                }
                at = (at + 7) % BUCKETS;
            }
        }
    }

    fn spread_simple_rows(&mut self) {
        let active: Vec<u16> = self
            .owners
            .iter()
            .filter(|owner| owner.state == OwnerState::Active)
            .map(|owner| owner.id.get())
            .collect();
        self.simple_rows = match self.policy.spread {
            Spread::Maglev => Vec::new(),
            Spread::Modulo => (0..TABLE_ROWS).map(|row| active[row % active.len()]).collect(),
            Spread::Ring => ring(&active),
        };
    }

    fn draw(&mut self) -> u64 {
        self.draws += 1;
        mix(self.seed ^ mix(self.draws))
    }
}

/// A ring of points: a row belongs to the next point at or after its own.
fn ring(active: &[u16]) -> Vec<u16> {
    let mut points: Vec<(u64, u16)> = active
        .iter()
        .flat_map(|id| (0..RING_POINTS).map(|point| (mix(u64::from(*id) << 32 | point), *id)))
        .collect();
    points.sort_unstable();
    let owner_of = |row: u64| {
        let at = points.partition_point(|(place, _)| *place < mix(row ^ 0x5eed));
        points[at % points.len()].1
    };
    (0..).take(TABLE_ROWS).map(owner_of).collect()
}

/// The ways that are compared; the first is the product's.
pub(crate) const POLICIES: [Policy; 6] = [
    Policy {
        name: "shard: Maglev, flow table, second chance",
        spread: Spread::Maglev,
        has_flow_table: true,
        has_second_chance: true,
    },
    Policy {
        name: "shard without flow table (as in a flood)",
        spread: Spread::Maglev,
        has_flow_table: false,
        has_second_chance: true,
    },
    Policy {
        name: "Maglev, flow table, no second chance",
        spread: Spread::Maglev,
        has_flow_table: true,
        has_second_chance: false,
    },
    Policy { name: "ring, flow table", spread: Spread::Ring, has_flow_table: true, has_second_chance: false },
    Policy {
        name: "modulo, flow table",
        spread: Spread::Modulo,
        has_flow_table: true,
        has_second_chance: false,
    },
    Policy {
        name: "modulo, no flow table",
        spread: Spread::Modulo,
        has_flow_table: false,
        has_second_chance: false,
    },
];
