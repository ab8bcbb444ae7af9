//! A run from its preflight to its outcome: starts the cores, adds up their frames, reads the target's usage.
//!
//! This is the main thread. It wakes a few times a second, never on a request, so that progress and sampling do not
//! disturb the cores.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use core_runtime::clock::Epoch;
use core_runtime::mailbox::{Mailbox, mailbox};
use hdrhistogram::Histogram;

use crate::number::{count, whole};
use crate::plan::{Load, Plan};
use crate::progress::Progress;
use crate::request::Scheme;
use crate::tally::{Counts, Fault, Phase, Tally};
use crate::usage::{self, Usage};
use crate::worker::{self, Frame, Preflight};

/// Between the start of the threads and the start of the schedule: connections are made meanwhile, at a pace that a
/// slow target keeps up with.
fn settle(plan: &Plan) -> Duration {
    const LEAST: Duration = Duration::from_millis(100);
    const MOST: Duration = Duration::from_secs(60);
    let each = match plan.target.scheme {
        Scheme::Http => Duration::from_micros(100),
        Scheme::Https => Duration::from_millis(1),
    };
    let connections =
        if plan.opens_for_requests() { 0 } else { u32::try_from(plan.connections).unwrap_or(u32::MAX) };
    LEAST + each.saturating_mul(connections).min(MOST)
}

/// One second of a run, over all cores.
#[derive(Clone, Debug, Default)]
pub(crate) struct Second {
    pub(crate) counts: Counts,
    /// 50 %, 90 %, 99 %, 99.9 % and the maximum of the latency, in nanoseconds.
    pub(crate) latency_ns: [u64; 5],
    pub(crate) target: Option<Usage>,
    pub(crate) generator_cpu_ns: u64,
}

/// What a run has shown.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) plan: Arc<Plan>,
    pub(crate) preflight: Preflight,
    pub(crate) tally: Tally,
    pub(crate) seconds: Vec<Second>,
    /// The latency of each second, for an HDR log; empty unless asked for.
    pub(crate) intervals: Vec<Histogram<u64>>,
    /// Measured time.
    pub(crate) measured: Duration,
    /// Requests that should have started in it; None in a closed loop.
    pub(crate) expected: Option<u64>,
    /// CPU time of the generator's threads in it.
    pub(crate) generator_cpu: Duration,
    /// The target's at the start and at the end of it.
    pub(crate) target: Option<(Usage, Usage)>,
    pub(crate) texts: Vec<(Fault, String)>,
    pub(crate) was_stopped: bool,
}

/// What a run keeps beside its figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keep {
    /// The latency of each second, 270 KB each.
    pub(crate) intervals: bool,
}

/// Seconds of intervals that are kept at most: 270 MB.
const INTERVALS_MAX: usize = 1000;

/// Why there is no outcome.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The target's first connection.
    Target(Fault, String),
    /// The generator itself.
    Generator(String),
}

/// Runs a plan.
///
/// # Errors
/// The first connection's fault, or a thread that failed.
pub(crate) fn run(
    plan: &Arc<Plan>,
    epoch: &Epoch,
    keep: Keep,
    progress: &mut Progress,
) -> Result<Outcome, Failed> {
    let preflight = worker::preflight(plan, epoch)?;
    let internal = |error: std::io::Error| Failed::Generator(error.to_string());
    let (sender, frames) = mailbox::<Frame>(4096).map_err(internal)?;
    let start = epoch.read() + settle(plan);
    let mut threads = Vec::new();
    for number in 0..plan.cores.len() {
        threads.push(worker::start(plan, number, epoch, start, sender.clone()).map_err(internal)?);
    }
    drop(sender);
    let mut sum = Sum::new(plan, keep, start);
    sum.collect(&frames, epoch, progress);
    for thread in threads {
        match thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(internal(error)),
            Err(_panicked) => return Err(Failed::Generator("a thread panicked".to_owned())),
        }
    }
    Ok(sum.finish(plan, preflight))
}

/// Adds up frames.
struct Sum {
    keep: Keep,
    measured_from: Duration,
    end: Duration,
    pid: Option<u32>,
    tally: Tally,
    /// Seconds that not every core has told of.
    open: BTreeMap<u64, (usize, Tally, u64)>,
    seconds: Vec<Second>,
    intervals: Vec<Histogram<u64>>,
    cores: usize,
    generator_cpu_ns: u64,
    usage: [Option<Usage>; 2],
    sampled: Duration,
    texts: Vec<(Fault, String)>,
    ended: usize,
    stopped_at: Option<Duration>,
    drained_at: Duration,
}

impl Sum {
    fn new(plan: &Plan, keep: Keep, start: Duration) -> Self {
        Self {
            keep,
            measured_from: start + plan.warmup,
            end: start + plan.span(),
            pid: plan.target.pid,
            tally: Tally::new(),
            open: BTreeMap::new(),
            seconds: Vec::new(),
            intervals: Vec::new(),
            cores: plan.cores.len(),
            generator_cpu_ns: 0,
            usage: [None, None],
            sampled: Duration::ZERO,
            texts: Vec::new(),
            ended: 0,
            stopped_at: None,
            drained_at: Duration::ZERO,
        }
    }

    /// Takes frames until every core has ended.
    fn collect(&mut self, frames: &Mailbox<Frame>, epoch: &Epoch, progress: &mut Progress) {
        const LOOK: Duration = Duration::from_millis(100);
        loop {
            let now = epoch.read();
            let next = [self.measured_from, self.end].into_iter().filter(|at| *at > now).min();
            let wait = next.map_or(LOOK, |at| at.saturating_sub(now).min(LOOK));
            let frame = frames.receive_timeout(wait.max(Duration::from_micros(100)));
            self.sample(epoch.read());
            match frame {
                Ok(Some(frame)) => self.take(frame, epoch.read(), progress),
                Ok(None) => {}
                // Every sender is gone: all threads have ended.
                Err(_closed) => break,
            }
            if self.ended == self.cores {
                break;
            }
        }
        self.drained_at = epoch.read();
        let rest: Vec<u64> = self.open.keys().copied().collect();
        for second in rest {
            self.close(second, progress);
        }
    }

    /// Reads the target's usage at the two ends of the measured time.
    fn sample(&mut self, now: Duration) {
        let Some(pid) = self.pid else { return };
        let place = match now {
            now if now < self.measured_from => return,
            now if now < self.end && self.usage[0].is_none() => 0,
            now if now >= self.end && self.usage[1].is_none() => 1,
            _ => return,
        };
        self.sampled = now;
        self.usage[place] = usage::tree(pid).ok();
    }

    fn take(&mut self, mut frame: Frame, now: Duration, progress: &mut Progress) {
        self.ended += usize::from(frame.is_last);
        for (fault, text) in std::mem::take(&mut frame.texts) {
            if !self.texts.iter().any(|(other, _)| *other == fault) {
                self.texts.push((fault, text));
            }
        }
        if frame.is_last && now < self.end {
            self.stopped_at = Some(now);
            if self.pid.is_some() && self.ended == self.cores {
                self.usage[1] = self.pid.and_then(|pid| usage::tree(pid).ok());
            }
        }
        let Some(second) = frame.second else {
            // Only bytes are counted whenever they move; the rest of the warm-up's frame is of the measured time
            // already, because frames end a little late.
            if !frame.is_last {
                frame.tally.counts.bytes_in = 0;
                frame.tally.counts.bytes_out = 0;
            }
            self.tally.add(&frame.tally);
            return;
        };
        self.tally.add(&frame.tally);
        let span = self.end.saturating_sub(self.measured_from).as_secs_f64();
        if second < whole(span.ceil()) {
            self.generator_cpu_ns += frame.cpu_ns;
        }
        match self.open.get_mut(&second) {
            Some((heard, tally, cpu_ns)) => {
                *heard += 1;
                tally.add(&frame.tally);
                *cpu_ns += frame.cpu_ns;
            }
            None => drop(self.open.insert(second, (1, frame.tally, frame.cpu_ns))),
        }
        if self.open.get(&second).is_some_and(|(heard, ..)| *heard == self.cores) {
            self.close(second, progress);
        }
    }

    /// A second is complete.
    fn close(&mut self, second: u64, progress: &mut Progress) {
        let Some((_, tally, generator_cpu_ns)) = self.open.remove(&second) else { return };
        let latency = tally.histogram(Phase::Latency);
        let at = |share: f64| if latency.is_empty() { 0 } else { latency.value_at_quantile(share) };
        let row = Second {
            counts: tally.counts.clone(),
            latency_ns: [at(0.5), at(0.9), at(0.99), at(0.999), at(1.0)],
            target: self.pid.and_then(|pid| usage::tree(pid).ok()),
            generator_cpu_ns,
        };
        progress.second(second, &row);
        self.seconds.push(row);
        if self.keep.intervals && self.intervals.len() < INTERVALS_MAX {
            self.intervals.push(latency.clone());
        }
    }

    fn finish(self, plan: &Arc<Plan>, preflight: Preflight) -> Outcome {
        let was_stopped = plan.stop.load(Ordering::Relaxed);
        let end = self.stopped_at.map_or(self.end, |at| at.min(self.end));
        let measured = end.saturating_sub(self.measured_from);
        let expected = match &plan.load {
            Load::Closed => None,
            Load::Open(schedule) => {
                Some(whole(schedule.expected(Duration::ZERO, measured)).min(plan.requests_max))
            }
        };
        let [before, after] = self.usage;
        Outcome {
            plan: Arc::clone(plan),
            preflight,
            tally: self.tally,
            seconds: self.seconds,
            intervals: self.intervals,
            measured,
            expected,
            generator_cpu: Duration::from_nanos(self.generator_cpu_ns),
            target: before.zip(after),
            texts: self.texts,
            was_stopped,
        }
    }
}

impl Outcome {
    /// Adds another run of the same plan.
    pub(crate) fn absorb(&mut self, other: Self) {
        self.tally.add(&other.tally);
        self.seconds.extend(other.seconds);
        self.measured += other.measured;
        self.expected = self.expected.zip(other.expected).map(|(a, b)| a + b);
        self.generator_cpu += other.generator_cpu;
        // One target over its runs: what it used between them does not count.
        self.target = self.target.zip(other.target).map(|((before, after), (from, to))| {
            let cpu_ns = after.cpu_ns + to.cpu_ns.saturating_sub(from.cpu_ns);
            (before, Usage { cpu_ns, ..to })
        });
        let texts = other.texts.into_iter();
        let is_new =
            |known: &[(Fault, String)], fault: Fault| !known.iter().any(|(other, _)| *other == fault);
        for (fault, text) in texts {
            if is_new(&self.texts, fault) {
                self.texts.push((fault, text));
            }
        }
        self.was_stopped |= other.was_stopped;
    }

    /// Good and bad answers a second, by what ended inside the measured time.
    pub(crate) fn rate(&self) -> f64 {
        let seconds = self.measured.as_secs_f64();
        if seconds > 0.0 { crate::number::float(self.tally.counts.in_window) / seconds } else { 0.0 }
    }

    /// The target's CPU time for each answer, in microseconds.
    pub(crate) fn target_cpu_us(&self) -> Option<f64> {
        let (before, after) = self.target?;
        let cpu_ns = after.cpu_ns.saturating_sub(before.cpu_ns);
        Some(usage::cpu_us_per_request(cpu_ns, self.tally.counts.in_window))
    }

    /// The generator's CPU time for each answer, in microseconds.
    pub(crate) fn generator_cpu_us(&self) -> f64 {
        let cpu_ns = crate::number::nanos(self.generator_cpu);
        usage::cpu_us_per_request(cpu_ns, self.tally.counts.in_window)
    }

    /// The share of its threads' time that the generator was busy, 0 to 1.
    pub(crate) fn generator_busy(&self) -> f64 {
        let available = self.measured.as_secs_f64() * crate::number::float(count(self.plan.cores.len()));
        if available > 0.0 { (self.generator_cpu.as_secs_f64() / available).min(1.0) } else { 0.0 }
    }

    /// Failed exchanges of all that ended, 0 to 1.
    pub(crate) fn error_share(&self) -> f64 {
        crate::number::ratio(self.tally.counts.failed(), self.tally.counts.ended())
    }
}
