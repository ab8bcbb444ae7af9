//! The running daemon: starts, feeds, reloads, answers, ends. One thread, which waits for signals, clients and the
//! next moment at which something changes by itself.
//!
//! ```text
//!   load file ─► load program ─► write every map ─► attach ─► announce ─► ready ◄─┐
//!        any fault up to here ends the process; packets go on as before           │ SIGHUP, windows, rules
//!                                                   ready ─► drained (shardctl) ──┘
//!                                  SIGTERM ─► withdraw (if the file says so) ─► end; the program stays
//! ```

//!
//! `start` goes as far as "ready", `reload` takes another file, `answer` is what clients get.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use l4_load::Program;
use l4_steer::config::{Config, OnStop};
use l4_steer::owner::OwnerId;
use l4_steer::rollout::Rollout;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::announce::{self, Wish};
use crate::desired::{self, Desired, Now};
use crate::ended::{StartError, chain};
use crate::{control, feed, ids, oplog};

mod answer;
mod doors;
mod reload;
mod start;

use doors::Doors;
pub(crate) use start::{check, detach, run};

/// After a write that failed, the next attempt.
const RETRY: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Ready,
    /// The operator has withdrawn the announcement.
    Drained,
}

impl Phase {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Drained => "drained",
        }
    }
}

/// What metrics and pages show of the service itself.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Since the start.
    pub(crate) now: Duration,
    pub(crate) config_version: String,
    pub(crate) phase: Phase,
    pub(crate) is_ready: bool,
    pub(crate) is_announced: bool,
    pub(crate) reloads_applied: u64,
    pub(crate) reloads_refused: u64,
    pub(crate) feed_errors: u64,
    pub(crate) announce_errors: u64,
    pub(crate) rows_moved: u64,
    pub(crate) rows_lost: u64,
    pub(crate) rows_forgotten: u64,
}

/// Everything that the daemon holds.
pub(crate) struct Service {
    pub(crate) config: Config,
    pub(crate) rollout: Rollout,
    /// Of every proxy that was in force since the start.
    pub(crate) addresses: BTreeMap<OwnerId, IpAddr>,
    pub(crate) ids: BTreeMap<String, u32>,
    pub(crate) desired: Desired,
    pub(crate) program: Program,
    /// Name and mode of each interface that the program is attached to.
    pub(crate) interfaces: Vec<(String, &'static str)>,
    pub(crate) facts: Facts,
    tables: feed::Tables,
    start: Instant,
    /// The rollout's count of changes when its rows were last written.
    fed_rows: u64,
    /// When a write or an announcement that failed is tried again.
    retry: Option<Duration>,
}

impl Service {
    /// Waits for whatever comes first, until a signal says to end. `file` is loaded again at SIGHUP.
    fn wait_for(&mut self, doors: &Doors, file: &Path) -> Result<(), StartError> {
        let failed = |error| StartError::System("waiting failed", error);
        loop {
            let timeout = self
                .next_change()
                .map(|left| Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 }));
            let mut waits = vec![
                PollFd::new(&doors.ends, PollFlags::IN),
                PollFd::new(&doors.hangups, PollFlags::IN),
                PollFd::new(&doors.control, PollFlags::IN),
            ];
            waits.extend(doors.metrics.as_ref().map(|listener| PollFd::new(listener, PollFlags::IN)));
            match poll(&mut waits, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
            let is_ready: Vec<bool> = waits.iter().map(|wait| !wait.revents().is_empty()).collect();
            self.facts.now = self.start.elapsed();
            if is_ready.first() == Some(&true) {
                return Ok(());
            }
            if is_ready.get(1) == Some(&true) {
                doors::take(&doors.hangups).map_err(failed)?;
                self.reload(file);
            }
            self.tick();
            if is_ready.get(2) == Some(&true) {
                control::serve_control(&doors.control, |question| self.answer(question)).map_err(failed)?;
            }
            if let (Some(listener), Some(true)) = (&doors.metrics, is_ready.get(3)) {
                control::serve_metrics(listener, |question| self.answer(question)).map_err(failed)?;
            }
        }
    }

    /// How long until something changes by itself.
    fn next_change(&self) -> Option<Duration> {
        let now = self.start.elapsed();
        let ends = [self.rollout.drain_ends(), self.rollout.rescue_ends(), self.retry];
        let left = ends.into_iter().flatten().map(|at| at.saturating_sub(now));
        let rules = desired::next_end(&self.config.drop_rules, clocks()).map(Duration::from_secs);
        left.chain(rules).min()
    }

    /// Does what the time has come for.
    fn tick(&mut self) {
        if let Some(change) = self.rollout.tick(self.facts.now) {
            self.count(change);
            oplog::info(&format!("a window ended; {} rows moved", change.moved));
        }
        let is_retry = self.retry.is_some_and(|at| at <= self.facts.now);
        if is_retry {
            self.retry = None;
        }
        let is_due = self.fed_rows != self.rollout.changes() || self.wanted().differs(&self.desired);
        // What failed waits for its next attempt.
        if is_retry || is_due && self.retry.is_none() {
            self.feed_or_retry();
        }
        if is_retry {
            self.announce();
        }
    }

    /// What the maps must hold now.
    fn wanted(&self) -> Desired {
        desired::desired(&self.config, &self.rollout, &self.addresses, &self.ids, clocks())
    }

    /// Brings the maps to what is wanted.
    fn feed(&mut self) -> l4_load::Result<()> {
        let present = feed::present_ids(self.program.maps())?;
        self.ids = ids::assign(&self.config.vips, &present);
        let wanted = self.wanted();
        let changes = self.rollout.changes();
        let (tables, rows) = (&mut self.tables, self.rollout.rows());
        let written = feed::write(self.program.maps(), &wanted, &self.desired, tables, rows)?;
        if written != feed::Written::default() {
            oplog::info(&format!(
                "written: {} VIP entries, {} proxies, {} tables, {} drop rules",
                written.vips, written.owners, written.tables, written.rules
            ));
        }
        self.desired = wanted;
        self.fed_rows = changes;
        Ok(())
    }

    fn feed_or_retry(&mut self) {
        if let Err(error) = self.feed() {
            self.facts.feed_errors += 1;
            self.retry = Some(self.facts.now + RETRY);
            oplog::error(&format!("the kernel's maps are not up to date, trying again: {}", chain(&error)));
        }
    }

    /// Brings the announcement to what the phase wants.
    fn announce(&mut self) {
        let wish = match self.facts.phase {
            Phase::Ready => Wish::Announced,
            Phase::Drained => Wish::Withdrawn,
        };
        match announce::bring(&self.config, wish) {
            Ok(is_changed) => {
                self.facts.is_announced = wish == Wish::Announced && self.config.announce.is_some();
                if is_changed {
                    oplog::info(if self.facts.is_announced { "announced" } else { "withdrawn" });
                }
            }
            Err(error) => {
                self.facts.announce_errors += 1;
                self.retry = Some(self.facts.now + RETRY);
                oplog::error(&format!("the announcement is not as it should be, trying again: {error}"));
            }
        }
    }

    /// What remains to be done before the process ends.
    fn stop(&self) {
        let is_kept = self.config.announce.as_ref().is_none_or(|announce| announce.on_stop == OnStop::Keep);
        if !is_kept {
            match announce::bring(&self.config, Wish::Withdrawn) {
                Ok(_) => oplog::info("withdrawn"),
                Err(error) => oplog::error(&format!("the announcement could not be withdrawn: {error}")),
            }
        }
        oplog::info("ended; the program goes on forwarding");
    }
}

/// The two clocks that drop rules need.
fn clocks() -> Now {
    let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Now { unix_s: i64::try_from(unix_s).unwrap_or(i64::MAX), monotonic_ns: l4_load::monotonic_ns() }
}
