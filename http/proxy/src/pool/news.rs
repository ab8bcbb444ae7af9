//! What happens to clusters on this core, for the operator: counters by cluster, and lines for the operations log.
//!
//! Lines wait here for the next statistics frame, which carries them off the core; beyond [`LINES_MAX`] they are
//! counted instead. A refused ejection can repeat with every burst of failures, so it is told once in
//! [`REPEAT_AFTER`] for each cluster.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Duration;

use core_runtime::clock;
use http_balance::breaker::BreakerEvent;
use http_balance::outlier::Mode;
use http_balance::{Event, Slot};
use rustc_hash::FxHashMap;

use crate::record::{ClusterEvents, NewsLine};
use crate::snapshot::{ClusterConfig, StatId};

/// Lines between two frames of a core (docs/limits.md).
pub const LINES_MAX: usize = 256;

/// Time between two lines about the same thing that goes on.
const REPEAT_AFTER: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(crate) struct News {
    gathered: RefCell<Gathered>,
}

#[derive(Debug, Default)]
struct Gathered {
    counts: FxHashMap<StatId, ClusterEvents>,
    lines: Vec<NewsLine>,
    lines_lost: u64,
    told: FxHashMap<StatId, Duration>,
}

impl News {
    pub(super) fn of_endpoints(
        &self,
        config: &ClusterConfig,
        event: Event,
        address: impl Fn(Slot) -> Option<SocketAddr>,
    ) {
        let now = clock::now();
        let gathered = &mut *self.gathered.borrow_mut();
        let counts = gathered.counts.entry(config.stat).or_default();
        let name = |slot| address(slot).map_or_else(|| "unknown".to_owned(), |address| address.to_string());
        let line = match event {
            Event::Ejected { slot, cause, until, ejected, of, percent_max, mode } => {
                let (verb, out) = match mode {
                    Mode::Enforce => {
                        counts.ejections += 1;
                        ("is ejected", until.saturating_sub(now).as_secs_f32())
                    }
                    Mode::LogOnly => {
                        counts.ejections_withheld += 1;
                        ("would be ejected (log only)", until.saturating_sub(now).as_secs_f32())
                    }
                };
                let why = cause.code();
                NewsLine::warn(format!(
                    "{} {verb} for {out:.1} s: {why}; {ejected} of {of} are out, up to {percent_max} % may be",
                    name(slot)
                ))
            }
            Event::NotEjected { slot, cause, ejected, of, percent_max } => {
                counts.ejections_withheld += 1;
                let told = gathered.told.get(&config.stat);
                if told.is_some_and(|at| now.saturating_sub(*at) < REPEAT_AFTER) {
                    return;
                }
                gathered.told.insert(config.stat, now);
                let why = cause.code();
                NewsLine::warn(format!(
                    "{} stays in: {why}, but {ejected} of {of} are out already and up to {percent_max} % may be",
                    name(slot)
                ))
            }
            Event::Returned { slot } => NewsLine::info(format!("{} is back and starts slowly", name(slot))),
            Event::Panic { level, is_on: true, available, of } => {
                counts.panics += 1;
                let what =
                    format!("panic at priority {level}: {available} of {of} endpoints are available, ");
                NewsLine::error(what + "so health is ignored")
            }
            Event::Panic { level, is_on: false, available, of } => NewsLine::info(format!(
                "panic at priority {level} is over: {available} of {of} endpoints are available"
            )),
            Event::Released { .. } => return,
        };
        gathered.push(config, line);
    }

    pub(super) fn of_breaker(&self, config: &ClusterConfig, event: BreakerEvent) {
        let gathered = &mut *self.gathered.borrow_mut();
        let counts = gathered.counts.entry(config.stat).or_default();
        let line = match event {
            BreakerEvent::Opened { failed, of } => {
                counts.breaker_opens += 1;
                NewsLine::error(format!("circuit breaker opens: {failed} of {of} requests failed"))
            }
            BreakerEvent::StaysOpen => {
                counts.breaker_opens += 1;
                NewsLine::warn("circuit breaker stays open: most probes failed".to_owned())
            }
            BreakerEvent::Closed => NewsLine::info("circuit breaker closes".to_owned()),
        };
        gathered.push(config, line);
    }

    /// Adds what has been counted since the last call, by cluster.
    pub(crate) fn take_counts(&self, mut add: impl FnMut(StatId, ClusterEvents)) {
        self.gathered.borrow_mut().counts.drain().for_each(|(cluster, counts)| add(cluster, counts));
    }

    /// Moves the lines out, and how many were lost for want of room.
    pub(crate) fn take_lines(&self, into: &mut Vec<NewsLine>) {
        let mut gathered = self.gathered.borrow_mut();
        into.append(&mut gathered.lines);
        match std::mem::take(&mut gathered.lines_lost) {
            0 => {}
            lost => into.push(NewsLine::warn(format!("{lost} more events of clusters were not told"))),
        }
    }

    pub(super) fn forget(&self, is_named: impl Fn(StatId) -> bool) {
        self.gathered.borrow_mut().told.retain(|cluster, _| is_named(*cluster));
    }
}

impl Gathered {
    fn push(&mut self, config: &ClusterConfig, line: NewsLine) {
        if self.lines.len() >= LINES_MAX {
            self.lines_lost += 1;
            return;
        }
        self.lines.push(NewsLine { text: format!("cluster {}: {}", config.name, line.text), ..line });
    }
}
