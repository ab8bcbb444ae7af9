//! The start of the process, step by step. Nothing is bound and nobody is told to go before the config is good and
//! every shard runs; a successor that fails before its last step leaves the old process as it was.

use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use core_runtime::affinity;
use core_runtime::shard::DriverKind;
use http_proxy::record::{Aggregate, Names};
use http_proxy::service;
use http_proxy::snapshot::StatRegistry;
use tls::Custody;

use crate::admin::{self, Facts, Phase, State};
use crate::args::Options;
use crate::config::{self, Compiled};
use crate::describe::{self, Description, Titles};
use crate::drains::Drains;
use crate::ended::{Ended, StartError};
use crate::events::{self, EVENTS_MAX, Early};
use crate::listeners::{BindError, Plan, Sockets};
use crate::process::Process;
use crate::restart::{self, Bequest, Predecessor};
use crate::shards::Shards;
use crate::tickets::Tickets;
use crate::unix_socket::{self, Live};
use crate::{aggregator, log_writer, oplog, sessions, watch};

/// Loads, starts, serves, drains.
///
/// # Errors
/// Why it did not come to serving.
pub(crate) fn run(options: Options) -> Result<Ended, StartError> {
    // Before the config is read: a change that is told of from here on is not missed.
    let early = events::note_early().map_err(|e| StartError::System("signals", e))?;
    let loaded = config::load(&options.config).map_err(StartError::Config)?;
    let count = match options.shards {
        Some(count) => count,
        None => affinity::allowed_cpus().map_err(|e| StartError::System("asking for the CPUs", e))?.len(),
    };
    if options.check {
        let keys = tls::TicketKeys::generate().map_err(StartError::Tickets)?;
        let once = (1, Duration::ZERO);
        let compiled = config::compile(loaded, &mut StatRegistry::new(), &keys, once, &options)
            .map_err(StartError::Config)?;
        compiled.snapshots.iter().for_each(describe::log_warnings);
        oplog::info("the config is good");
        return Ok(Ended::Clean);
    }
    if let Err(error) = tls::forbid_core_dumps() {
        oplog::warn(&format!("core dumps could not be forbidden: {error}"));
    }
    let (mut bequest, predecessor) = take_over(&options)?;
    let tickets = tickets(&options, &mut bequest)?;
    let mut registry = StatRegistry::new();
    registry.inherit(sessions::inherited(&std::mem::take(&mut bequest.sessions)));
    let keys = tickets.keys().map_err(StartError::Tickets)?;
    let shards = (count, Duration::ZERO);
    let compiled =
        config::compile(loaded, &mut registry, &keys, shards, &options).map_err(StartError::Config)?;
    serve(options, registry, tickets, compiled, bequest, predecessor, &early)
}

fn take_over(options: &Options) -> Result<(Bequest, Option<Predecessor>), StartError> {
    let Some(path) = &options.restart_socket else { return Ok((Bequest::default(), None)) };
    let failed = |error| StartError::Address(format!("taking over at {}", path.display()), error);
    match restart::take_over(path).map_err(failed)? {
        Some((bequest, predecessor)) => {
            oplog::info(&format!("took over {} listening sockets", bequest.sockets.len()));
            Ok((bequest, Some(predecessor)))
        }
        None => Ok((Bequest::default(), None)),
    }
}

fn tickets(options: &Options, bequest: &mut Bequest) -> Result<Tickets, StartError> {
    let now = Instant::now();
    let inherited = bequest.tickets.take();
    let inherited = inherited.and_then(|message| Tickets::inherited(&message, options.ticket_rotation, now));
    let tickets = match inherited {
        Some(tickets) => tickets,
        None => Tickets::generate(options.ticket_rotation, now)
            .map_err(|error| StartError::System("making session ticket keys", error))?,
    };
    if let custody @ Custody::Unlocked { .. } = tickets.custody() {
        oplog::warn(&format!("keys are {custody}"));
    }
    Ok(tickets)
}

fn serve(
    options: Options,
    registry: StatRegistry,
    tickets: Tickets,
    compiled: Compiled,
    bequest: Bequest,
    predecessor: Option<Predecessor>,
    early: &Early,
) -> Result<Ended, StartError> {
    let Compiled { snapshots, sources, digest } = compiled;
    let described = snapshots.first().map(|first| {
        describe::log_warnings(first);
        Description::of(first, &digest)
    });
    let description = described.ok_or(StartError::Config(0))?;
    let (batches, log) = log_writer::start().map_err(|e| StartError::System("starting the log writer", e))?;
    log.set_sinks(registry.sinks());
    let (events_in, events) = sync_channel(EVENTS_MAX);
    let sizes = service::table_sizes(&registry);
    let (shards, sink) = Shards::start(&options, snapshots, sizes, &batches, &events_in)?;
    drop(batches);
    let drivers = shards.wait_started(&events)?;
    log_driver(&drivers);
    let state = Arc::new(Mutex::new(State {
        aggregate: Aggregate::new(shards.count()),
        names: Names::default(),
        titles: Titles::default(),
        phase: Phase::Starting,
        config: serde_json::Value::Null,
        facts: Facts::new(drivers),
    }));
    aggregator::start(sink, Arc::clone(&state))
        .map_err(|e| StartError::System("starting the aggregator", e))?;
    let sockets = Sockets::inherited(bequest.sockets);
    let plan = plan_patiently(&sockets, &description, shards.count()).map_err(|error| {
        StartError::Bind(BindError { place: place_of(&sources, &error.listener), ..error })
    })?;
    let drains = Drains::inherited(&bequest.drained);
    let (shared, events_out) = (Arc::clone(&state), events_in.clone());
    let mut process =
        Process::new(options, registry, tickets, sockets, shards, shared, log, events_out, drains);
    let endpoints = process.publish(description, digest);
    process.adopt_drains(endpoints);
    process.pass_on_drains();
    process.open(plan);
    process.start_admin(bequest.admin)?;
    events::watch_signals(events_in.clone()).map_err(|e| StartError::System("signals", e))?;
    for event in early.events() {
        events_in.send(event).map_err(|e| StartError::System("signals", std::io::Error::other(e)))?;
    }
    if process.options().watch {
        let dir = process.options().config.clone();
        watch::start(dir, events_in.clone()).map_err(|e| StartError::System("watching the config", e))?;
    }
    if let Some(path) = process.options().restart_socket.clone() {
        let live = if predecessor.is_some() { Live::Replace } else { Live::Refuse };
        let failed = |error| StartError::Address(format!("the restart socket {}", path.display()), error);
        let listener = unix_socket::listen(&path, live).map_err(failed)?;
        events::watch_successors(listener, events_in).map_err(failed)?;
    }
    admin::lock(&state).phase = Phase::Ready;
    process.say_ready();
    // The last step: from here on the old process may go.
    if let Some(predecessor) = predecessor {
        predecessor.ready();
    }
    Ok(process.obey(&events))
}

fn log_driver(drivers: &[DriverKind]) {
    if let Some((shard, DriverKind::Epoll { reason })) =
        drivers.iter().enumerate().find(|(_, kind)| **kind != DriverKind::Ring)
    {
        oplog::warn(&format!("shard {shard} runs on epoll: {reason}"));
    }
}

/// The kernel tears the ring of a killed process down some time after its end, with the listening sockets in it: an
/// address that is in use may be free in a moment.
fn plan_patiently(sockets: &Sockets, description: &Description, shards: usize) -> Result<Plan, BindError> {
    const PATIENCE: Duration = Duration::from_secs(2);
    const LOOK_AGAIN: Duration = Duration::from_millis(50);
    let until = Instant::now() + PATIENCE;
    loop {
        match sockets.plan(&description.listeners, shards) {
            Err(error) if error.error.kind() == std::io::ErrorKind::AddrInUse && Instant::now() < until => {
                std::thread::park_timeout(LOOK_AGAIN);
            }
            other => return other,
        }
    }
}

/// Where a listener is written, as file, line and key.
pub(crate) fn place_of(sources: &control_config::SourceMap, listener: &str) -> Option<String> {
    let place = sources.get(&format!("listener:{listener}"))?;
    Some(format!("{}:{}: {}", place.file, place.line, place.key))
}
