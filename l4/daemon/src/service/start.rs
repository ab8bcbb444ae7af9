//! From the command line to "ready": the file, the program, its maps, its interfaces; and the two requests that end
//! before that, `--check` and `--detach`.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZero;
use std::path::Path;
use std::time::{Duration, Instant};

use control_config::load_l4;
use l4_load::{LoadOptions, Mode, Program};
use l4_steer::config::{AttachMode, Config};
use l4_steer::rollout::Rollout;

use super::{Doors, Facts, Phase, Service};
use crate::args::Options;
use crate::desired::Desired;
use crate::ended::StartError;
use crate::{feed, oplog, privileges, unix_socket};

/// Loads a file and says what is wrong with it.
///
/// # Errors
/// The number of errors.
pub(crate) fn check(file: &Path) -> Result<(), StartError> {
    let config = load(file)?;
    oplog::print(&format!(
        "{}: good, version {}: {} proxies, {} VIPs, {} drop rules\n",
        file.display(),
        config.version,
        config.owners.owners().len(),
        config.vips.len(),
        config.drop_rules.len()
    ));
    Ok(())
}

/// Takes the program off every interface.
///
/// # Errors
/// When the file is wrong or a pin cannot be removed.
pub(crate) fn detach(file: &Path) -> Result<(), StartError> {
    let directory = load(file)?.host.pin_directory;
    let interfaces = l4_load::attached(&directory)?;
    for interface in &interfaces {
        l4_load::detach(&directory, interface)?;
        oplog::info(&format!("{interface}: detached; its packets are not forwarded any more"));
    }
    if interfaces.is_empty() {
        oplog::info(&format!("nothing is attached by way of {}", directory.display()));
    }
    Ok(())
}

/// Serves until a signal says to end.
///
/// # Errors
/// Why it could not start; nothing was announced then.
pub(crate) fn run(options: &Options) -> Result<(), StartError> {
    let config = load(&options.config)?;
    let doors = Doors::open(options)?;
    let mut service = Service::start(config)?;
    match privileges::drop_all_but_bpf() {
        Ok(kept) => oplog::info(&format!("rights kept: {kept}")),
        Err(error) => oplog::warn(&format!("no right could be given up: {error}")),
    }
    service.announce();
    service.facts.is_ready = true;
    oplog::info("ready");
    service.wait_for(&doors, &options.config)?;
    service.stop();
    unix_socket::remove(&options.control)
        .map_err(|error| StartError::Address(options.control.display().to_string(), error))
}

impl Service {
    /// Loads the program and fills its maps before it is attached: no packet meets a half-filled table.
    fn start(config: Config) -> Result<Self, StartError> {
        let mut program = Program::load(&load_options(&config))?;
        let tables = feed::Tables::present(program.maps())?;
        let resumed = tables.any().is_some();
        let list = config.owners.clone();
        let rollout = match tables.any() {
            Some(rows) => Rollout::resume(list, config.windows, rows, Duration::ZERO),
            None => Rollout::new(list, config.windows),
        };
        let rollout =
            rollout.map_err(|error| StartError::System("the list of proxies", io::Error::other(error)))?;
        let facts = Facts {
            now: Duration::ZERO,
            config_version: config.version.clone(),
            phase: Phase::Ready,
            is_ready: false,
            is_announced: false,
            reloads_applied: 0,
            reloads_refused: 0,
            feed_errors: 0,
            announce_errors: 0,
            rows_moved: 0,
            rows_lost: 0,
            rows_forgotten: 0,
        };
        let mut service = Self {
            addresses: config.addresses.clone(),
            config,
            rollout,
            ids: BTreeMap::new(),
            desired: Desired::default(),
            program,
            interfaces: Vec::new(),
            facts,
            tables,
            start: Instant::now(),
            fed_rows: 0,
            retry: None,
        };
        let from = if resumed { "the tables in the kernel" } else { "empty maps" };
        oplog::info(&format!("config {}, starting from {from}", service.config.version));
        service.feed()?;
        service.attach()?;
        Ok(service)
    }

    /// Attaches to every interface of the config; a program that is there already is replaced in one step.
    fn attach(&mut self) -> l4_load::Result<()> {
        let mode = match self.config.host.attach {
            AttachMode::Auto => Mode::Auto,
            AttachMode::Native => Mode::Native,
            AttachMode::Generic => Mode::Generic,
        };
        let mut interfaces = Vec::new();
        for interface in &self.config.host.interfaces {
            let attached = self.program.attach(interface, mode)?;
            let word = match attached.mode {
                Mode::Native => "native",
                Mode::Generic => "generic",
                Mode::Auto => "as before",
            };
            let how = if attached.replaced { "replaced the running program" } else { "attached" };
            oplog::info(&format!("{interface}: {how}, mode {word}"));
            if attached.mode == Mode::Generic && mode == Mode::Auto {
                oplog::warn(&format!(
                    "{interface}: its driver has no native XDP; every packet costs a multiple of what it could"
                ));
            }
            interfaces.push((interface.clone(), word));
        }
        self.interfaces = interfaces;
        for other in l4_load::attached(&self.config.host.pin_directory)? {
            if !self.config.host.interfaces.contains(&other) {
                oplog::warn(&format!(
                    "{other}: still attached, though the file does not name it; `shard-l4 --detach` takes it off"
                ));
            }
        }
        Ok(())
    }
}

/// Loads a file; warnings and errors are logged.
///
/// # Errors
/// The number of errors.
pub(super) fn load(file: &Path) -> Result<Config, StartError> {
    match load_l4(file) {
        Ok(loaded) => {
            loaded.warnings.iter().for_each(|warning| oplog::warn(&warning.to_string()));
            Ok(loaded.config)
        }
        Err(errors) => {
            errors.iter().for_each(|error| oplog::error(&error.to_string()));
            Err(StartError::Config(errors.len()))
        }
    }
}

/// What the program itself is told; a change of it needs a new program.
pub(super) fn load_options(config: &Config) -> LoadOptions {
    LoadOptions {
        pin_dir: Some(config.host.pin_directory.clone()),
        hash_secret: config.hash_secret.0,
        own4: config.host.address4,
        own6: config.host.address6,
        mtu_bytes: config.host.mtu_bytes,
        flows_max: config.flows.entries_max,
        flow_idle: config.flows.idle,
        inserts_per_cpu_per_s: config.flows.inserts_per_second,
        questions_per_cpu_per_s: config.flows.questions_per_second,
        icmp_per_cpu_per_s: config.flows.icmp_per_second,
        syn_cookies_above: config.flows.syn_cookies_above.map(NonZero::get),
    }
}
