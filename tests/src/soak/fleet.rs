//! The soak's backends: processes that are killed and come back, stopped and continued, by a seeded schedule. At
//! most one of them is away at a time, so that every request has somewhere to go.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::judge::Kill;
use crate::dir::TempDir;
use crate::port::free_port;
use crate::proxy::binary;
use crate::random::Random;
use crate::tool::Process;
use crate::wait::{PATIENCE, pause, wait_until};

/// Time between two blows, in milliseconds.
const CALM_MS: (u64, u64) = (400, 2500);
/// How long a killed backend stays away, and a stopped one stands still.
const AWAY_MS: (u64, u64) = (50, 900);
/// A stutter: so often stopped and continued, each time for so long.
const STUTTER_TIMES: u32 = 12;
const STUTTER_MS: u64 = 25;

#[derive(Debug)]
struct Slot {
    port: u16,
    starts: u32,
    process: Process,
}

/// What is being done to a backend.
#[derive(Debug)]
enum Blow {
    None,
    Killed {
        slot: usize,
        until: Instant,
    },
    /// Started again, and not known to listen yet.
    Rising {
        slot: usize,
    },
    Stopped {
        slot: usize,
        until: Instant,
    },
    Stutter {
        slot: usize,
        left: u32,
        until: Instant,
    },
}

/// The processes and what happens to them.
#[derive(Debug)]
pub(super) struct Fleet {
    dir: TempDir,
    slots: Vec<Slot>,
    random: Random,
    blow: Blow,
    next: Instant,
    started: Instant,
    pub(super) kills: Vec<Kill>,
    pub(super) stops: u32,
}

fn name_of(slot: usize, starts: u32) -> String {
    format!("b{slot}-{starts}")
}

impl Fleet {
    /// Starts `count` backends and waits until they listen. Times of kills count from `started`.
    ///
    /// # Panics
    /// When one does not come up.
    #[must_use]
    pub(super) fn start(count: usize, seed: u64, started: Instant) -> Self {
        let dir = TempDir::new("fleet");
        let slots = (0..count)
            .map(|slot| {
                let port = free_port();
                Slot { port, starts: 0, process: spawn(&dir, port, &name_of(slot, 0)) }
            })
            .collect();
        let mut fleet = Self {
            dir,
            slots,
            random: Random::new(seed),
            blow: Blow::None,
            next: started,
            started,
            kills: Vec::new(),
            stops: 0,
        };
        for address in fleet.addresses() {
            wait_until("a backend listens", PATIENCE, || TcpStream::connect(address).is_ok());
        }
        fleet.next = Instant::now() + Duration::from_secs(1);
        fleet
    }

    #[must_use]
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.slots.iter().map(|slot| SocketAddr::from(([127, 0, 0, 1], slot.port))).collect()
    }

    /// Does what is due. Called again and again.
    pub(super) fn step(&mut self, now: Instant) {
        match self.blow {
            Blow::None if now >= self.next => self.strike(now),
            Blow::Killed { slot, until } if now >= until => {
                let place = &mut self.slots[slot];
                place.starts += 1;
                place.process = spawn(&self.dir, place.port, &name_of(slot, place.starts));
                self.blow = Blow::Rising { slot };
            }
            Blow::Rising { slot } if TcpStream::connect(self.addresses()[slot]).is_ok() => {
                self.blow = Blow::None;
            }
            Blow::Stopped { slot, until } if now >= until => {
                self.slots[slot].process.signal(Signal::CONT);
                self.blow = Blow::None;
            }
            Blow::Stutter { slot, left, until } if now >= until => {
                let signal = if left.is_multiple_of(2) { Signal::CONT } else { Signal::STOP };
                self.slots[slot].process.signal(signal);
                let until = now + Duration::from_millis(STUTTER_MS);
                self.blow =
                    if left == 0 { Blow::None } else { Blow::Stutter { slot, left: left - 1, until } };
            }
            _ => {}
        }
    }

    fn strike(&mut self, now: Instant) {
        let (least, most) = CALM_MS;
        self.next = now + Duration::from_millis(self.random.between(least, most));
        let slots: Vec<usize> = (0..self.slots.len()).collect();
        let slot = *self.random.choose(&slots);
        let until = now + Duration::from_millis(self.random.between(AWAY_MS.0, AWAY_MS.1));
        let kind = self.random.between(0, 3);
        let place = &self.slots[slot];
        self.blow = match kind {
            0 | 1 => {
                let at = self.started.elapsed();
                place.process.signal(Signal::KILL);
                self.kills.push(Kill { backend: name_of(slot, place.starts), at });
                Blow::Killed { slot, until }
            }
            2 => {
                place.process.signal(Signal::STOP);
                self.stops += 1;
                Blow::Stopped { slot, until }
            }
            _ => {
                place.process.signal(Signal::STOP);
                self.stops += 1;
                Blow::Stutter { slot, left: STUTTER_TIMES, until: now + Duration::from_millis(STUTTER_MS) }
            }
        };
        self.next = self.next.max(until);
    }

    /// Brings back what is away: the end of the schedule.
    pub(super) fn calm(&mut self) {
        while !matches!(self.blow, Blow::None) {
            self.step(Instant::now() + Duration::from_secs(10));
            pause(Duration::from_millis(1));
        }
        self.next = Instant::now() + Duration::from_secs(3600);
    }

    /// Who read which request's head, in the order of each journal, by id.
    ///
    /// # Panics
    /// When a journal cannot be read.
    #[must_use]
    pub(super) fn received(&self) -> BTreeMap<u64, Vec<String>> {
        let mut received: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for (slot, place) in self.slots.iter().enumerate() {
            for name in (0..=place.starts).map(|starts| name_of(slot, starts)) {
                let journal = self.dir.path().join(format!("{name}.journal"));
                let text = std::fs::read_to_string(journal).unwrap_or_default();
                // The last line of a killed process is whole: it is one write.
                let ids = text.lines().filter_map(|line| line.split_once(' ')?.0.parse::<u64>().ok());
                ids.for_each(|id| received.entry(id).or_default().push(name.clone()));
            }
        }
        received
    }
}

fn spawn(dir: &TempDir, port: u16, name: &str) -> Process {
    let journal = dir.path().join(format!("{name}.journal"));
    let mut command = Command::new(binary("soak_backend"));
    command.arg(port.to_string()).arg(name).arg(journal);
    Process::start(name, dir, &mut command)
}
