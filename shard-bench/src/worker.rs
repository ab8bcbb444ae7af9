//! One thread of the generator: its reactor, slots, pacer, and the frames that it sends once a second.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use core_runtime::clock::Epoch;
use core_runtime::mailbox::Sender;
use core_runtime::shard::{self, ShardConfig};
use core_runtime::{affinity, spawn, timer};

use crate::core::Core;
use crate::link::{Start, dial, tls_context};
use crate::load::{Arrivals, Desk};
use crate::number::{count, length};
use crate::pace::pacer;
use crate::plan::{EarlyRequests, Load, Plan};
use crate::request::{Scheme, Values};
use crate::run::Failed;
use crate::slot;
use crate::tally::{Fault, Tally};

/// What a core counted in one second.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Seconds since the measuring began; None for the warm-up.
    pub(crate) second: Option<u64>,
    pub(crate) tally: Tally,
    /// CPU time of the thread in this second.
    pub(crate) cpu_ns: u64,
    /// First errors by class; with the last frame.
    pub(crate) texts: Vec<(Fault, String)>,
    /// The core has ended.
    pub(crate) is_last: bool,
}

/// TLS configurations of one core, each with the trusted CAs in it.
const CONTEXTS_MAX: usize = 64;

/// Between two sweeps for time-outs.
const SWEEP: Duration = Duration::from_millis(100);

/// Starts the thread of core `number`; the run begins at `start`.
///
/// # Errors
/// When the thread cannot be started.
pub(crate) fn start(
    plan: &Arc<Plan>,
    number: usize,
    epoch: &Epoch,
    start: Duration,
    frames: Sender<Frame>,
) -> std::io::Result<std::thread::JoinHandle<std::io::Result<()>>> {
    let cpu = plan.cores.get(number).copied().flatten();
    let config = ShardConfig { index: number, cpu, driver: plan.driver, epoch: epoch.clone() };
    let (plan, epoch) = (Arc::clone(plan), epoch.clone());
    shard::start(config, move |_kind| run(plan, number, epoch, start, frames))
}

/// The share of core `number` of `total` things.
fn share(total: usize, number: usize, cores: usize) -> usize {
    total / cores + usize::from(number < total % cores)
}

fn core(plan: &Arc<Plan>, number: usize, epoch: Epoch, start: Duration) -> Result<Core, String> {
    let cores = plan.cores.len();
    let slots = share(plan.connections, number, cores);
    let end = start + plan.span();
    let requests = match plan.requests_max {
        u64::MAX => u64::MAX,
        all => count(share(length(all), number, cores)),
    };
    let desk = match plan.load {
        Load::Closed => Desk::closed(start + plan.warmup, end, requests),
        Load::Open(_) => Desk::open(start + plan.warmup, end, requests, slots),
    };
    let values = Values::new(plan.seed, count(number), count(cores));
    let contexts = match plan.target.scheme {
        Scheme::Http => 0,
        Scheme::Https if plan.opens_for_requests() && plan.tls.resume => slots.clamp(1, CONTEXTS_MAX),
        Scheme::Https => 1,
    };
    let context = |_| tls_context(&plan.tls, plan.protocol.alpn());
    let tls = (0..contexts).map(context).collect::<Result<Vec<_>, _>>()?;
    Ok(Core::new(Arc::clone(plan), epoch, tls, desk, values, slots, (start + plan.warmup, end)))
}

async fn run(plan: Arc<Plan>, number: usize, epoch: Epoch, start: Duration, frames: Sender<Frame>) {
    let core = match core(&plan, number, epoch, start) {
        Ok(core) => Rc::new(core),
        // The preflight has built the same context from the same bytes.
        Err(text) => {
            let frame = Frame {
                second: None,
                tally: Tally::new(),
                cpu_ns: 0,
                texts: vec![(Fault::Tls, text)],
                is_last: true,
            };
            drop(frames.send(frame));
            return;
        }
    };
    slot::start(&core);
    if let Load::Open(schedule) = &plan.load {
        let schedule = schedule.clone().warmed_up(plan.warmup);
        let arrivals = Arrivals::new(&schedule, count(number), count(plan.cores.len()), plan.seed);
        spawn(pacer(Rc::clone(&core), arrivals, start));
    }
    watch(&core, start, &frames).await;
}

/// Sends frames and sweeps until every slot has ended.
async fn watch(core: &Core, start: Duration, frames: &Sender<Frame>) {
    let plan = &core.plan;
    let measured_from = start + plan.warmup;
    let end = start + plan.span();
    let mut boundary = measured_from;
    let mut second = None;
    let mut cpu = affinity::thread_cpu_ns();
    loop {
        let now = core.now();
        timer::sleep(SWEEP.min(boundary.saturating_sub(now).max(Duration::from_millis(1)))).await;
        let now = core.now();
        let is_done = core.alive.get() == 0;
        if now >= boundary || is_done {
            let cpu_now = affinity::thread_cpu_ns();
            let mut frame = frame(core, second, cpu_now.saturating_sub(cpu));
            cpu = cpu_now;
            if is_done {
                miss(core, &mut frame.tally);
                frame.is_last = true;
                frame.texts = core.texts.take();
            }
            // A full queue means that nobody reads any more.
            drop(frames.send(frame));
            second = Some(second.map_or(0, |second| second + 1));
            boundary += Duration::from_secs(1);
        }
        if is_done {
            return;
        }
        if plan.stop.load(Ordering::Relaxed) {
            core.desk.borrow_mut().close(now);
        }
        core.sweep();
        let end = end.min(core.desk.borrow().end());
        if now >= end + plan.drain {
            core.give_up();
        }
    }
}

fn frame(core: &Core, second: Option<u64>, cpu_ns: u64) -> Frame {
    let tally = std::mem::replace(&mut *core.tally.borrow_mut(), Tally::new());
    Frame { second, tally, cpu_ns, texts: Vec::new(), is_last: false }
}

/// Counts what was due and never started, at the time that it had waited until the end of the run.
fn miss(core: &Core, tally: &mut Tally) {
    let desk = core.desk.borrow();
    let end = desk.end().min(core.now());
    for intended in desk.missed() {
        tally.fault(Fault::Missed);
        tally.record(crate::tally::Phase::Latency, end.saturating_sub(intended));
    }
}

/// What the first connection to a target told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Preflight {
    /// Version, cipher, group and protocol of TLS.
    pub(crate) tls: Option<[String; 4]>,
}

/// Opens one connection before the run, so that a target that cannot be reached or trusted is a clear error.
///
/// # Errors
/// The class of the fault and its text.
pub(crate) fn preflight(plan: &Arc<Plan>, epoch: &Epoch) -> Result<Preflight, Failed> {
    let result = Rc::new(RefCell::new(Err((Fault::Connect, "no reactor".to_owned()))));
    let (seen, plan, clock) = (Rc::clone(&result), Arc::clone(plan), epoch.clone());
    let ran = shard::run(plan.driver, epoch, |_kind| async move {
        let outcome = probe(&plan, &clock).await;
        *seen.borrow_mut() = outcome;
    });
    ran.map_err(|error| Failed::Generator(format!("the reactor does not start: {error}")))?;
    let outcome = result.replace(Err((Fault::Connect, String::new())));
    outcome.map_err(|(fault, why)| Failed::Target(fault, why))
}

async fn probe(plan: &Plan, epoch: &Epoch) -> Result<Preflight, (Fault, String)> {
    let context = match plan.target.scheme {
        Scheme::Http => None,
        Scheme::Https => {
            Some(tls_context(&plan.tls, plan.protocol.alpn()).map_err(|text| (Fault::Tls, text))?)
        }
    };
    let buffer = RefCell::new(vec![0; crate::core::READ_BYTES].into_boxed_slice());
    let mut last = (Fault::Connect, format!("{}: no address", plan.target.label));
    for addr in &plan.target.addrs {
        let tls = context.as_ref().map(|context| (context, plan.target.server_name.as_str()));
        match dial(*addr, tls, plan.timeout, epoch, &buffer, Start::Handshake).await {
            Ok(dialed) => return describe(plan, &dialed),
            Err(error) => last = (error.fault, error.text),
        }
    }
    Err(last)
}

fn describe(plan: &Plan, dialed: &crate::link::Dialed) -> Result<Preflight, (Fault, String)> {
    let Some(session) = dialed.link.session() else { return Ok(Preflight::default()) };
    let text = |part: Option<&str>| part.unwrap_or("?").to_owned();
    let alpn = session.alpn().map(|name| String::from_utf8_lossy(name).into_owned()).unwrap_or_default();
    if plan.protocol.alpn() == ["h2"] && alpn != "h2" {
        return Err((
            Fault::Protocol,
            format!("{} does not speak h2: ALPN agreed on {alpn:?}; use --protocol h1", plan.target.label),
        ));
    }
    if plan.tls.early_data != EarlyRequests::None && session.version() != Some("TLSv1.3") {
        let why = format!(
            "{} agreed on {}, which has no early data (RFC 8446 §2.3); leave --early-data out",
            plan.target.label,
            text(session.version())
        );
        return Err((Fault::Protocol, why));
    }
    let tls = [text(session.version()), text(session.cipher()), text(session.group()), alpn];
    Ok(Preflight { tls: Some(tls) })
}
