//! `shard-bench run`: one plan, its report, its files.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use core_runtime::clock::Epoch;

use super::options::{self, Options};
use super::{Code, Ended, plan};
use crate::health;
use crate::progress::Progress;
use crate::report::document::Document;
use crate::report::{csv, files, hdr_log, html, text};
use crate::run::{self, Failed, Keep, Outcome};
use crate::tally::Fault;

pub(crate) fn run(words: impl Iterator<Item = OsString>) -> Ended {
    let usage = |why: String| {
        Ended::complaint(Code::Usage, &format!("run: {why}; `shard-bench run --help` tells the options"))
    };
    let options = match Options::parse(words) {
        Ok(options) => options,
        Err(why) => return usage(why),
    };
    if options.wants_help {
        return Ended::text(&format!("Usage: shard-bench run URL [OPTIONS]\n\n{}", options::HELP));
    }
    let [url] = options.words.as_slice() else {
        return usage(format!("want one URL, got {}", options.words.len()));
    };
    if !options.start.is_empty() || !options.judge.is_empty() {
        return usage("--start and --judge are options of ab".to_owned());
    }
    let plan = match plan::plan(&options, url) {
        Ok(plan) => Arc::new(plan),
        Err(why) => return usage(why),
    };
    if let Err(why) = outputs(&options).try_for_each(|path| files::check_writable(path)) {
        return Ended::complaint(Code::Output, &why);
    }
    sharpen();
    stop_on_signal(&plan);
    let begun = SystemTime::now();
    let mut progress = Progress::new(options.is_quiet);
    let keep = Keep { intervals: options.hdr.is_some() };
    let outcome = match run::run(&plan, &Epoch::start(), keep, &mut progress) {
        Ok(outcome) => outcome,
        Err(failed) => return unreachable(&plan, &failed),
    };
    progress.clear();
    conclude(&options, &outcome, begun)
}

/// The complaint about a target that gave no connection.
pub(crate) fn unreachable(plan: &crate::plan::Plan, failed: &Failed) -> Ended {
    match failed {
        Failed::Target(fault, why) => {
            let hint = if *fault == Fault::Tls { plan::hint(plan, why) } else { "" };
            Ended::complaint(Code::Unreachable, &format!("{}: {why}{hint}", plan.target.label))
        }
        Failed::Generator(why) => Ended::complaint(Code::System, &format!("the generator failed: {why}")),
    }
}

fn outputs(options: &Options) -> impl Iterator<Item = &PathBuf> {
    [&options.json, &options.csv, &options.hdr, &options.html].into_iter().flatten()
}

/// The report, the files and the exit code of a run.
fn conclude(options: &Options, outcome: &Outcome, begun: SystemTime) -> Ended {
    let warnings = health::examine(outcome, options.rate_tolerance);
    let is_unhealthy = warnings.iter().any(|warning| warning.is_failure);
    let document = Document::new(outcome, warnings);
    let (slo, is_met) = options.slo.judge(outcome);
    let mut ended = Ended::text(&format!("{}{slo}", text::render(&document)));
    ended.code = match (outcome.tally.counts.ok, is_unhealthy, is_met) {
        (0, ..) if outcome.tally.counts.ended() > 0 => Code::Unreachable,
        (_, true, _) => Code::Unhealthy,
        (_, false, false) => Code::Verdict,
        (_, false, true) => Code::Success,
    };
    if let Err(why) = write_files(options, outcome, &document, begun) {
        ended.err = format!("shard-bench: {why}\n");
        ended.code = Code::Output;
    }
    ended
}

fn write_files(
    options: &Options,
    outcome: &Outcome,
    document: &Document,
    begun: SystemTime,
) -> Result<(), String> {
    if let Some(path) = &options.json {
        let mut json = serde_json::to_vec_pretty(document).map_err(|error| format!("JSON: {error}"))?;
        json.push(b'\n');
        files::write_whole(path, &json)?;
    }
    if let Some(path) = &options.csv {
        files::write_whole(path, csv::render(document).as_bytes())?;
    }
    if let Some(path) = &options.hdr {
        files::write_whole(path, &hdr_log::render(&outcome.intervals, begun, &document.plan.target)?)?;
    }
    if let Some(path) = &options.html {
        files::write_whole(path, html::render(std::slice::from_ref(document), None)?.as_bytes())?;
    }
    Ok(())
}

/// Lets timers of this process and its threads fire at their time; the kernel's default is 50 µs late at will.
pub(crate) fn sharpen() {
    // Where the file is not there, starts are a little late, and the report says by how much.
    drop(std::fs::write("/proc/self/timerslack_ns", "1"));
}

/// SIGINT and SIGTERM end the run; what was measured until then is reported.
pub(crate) fn stop_on_signal(plan: &crate::plan::Plan) {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let stop = Arc::clone(&plan.stop);
    if let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]) {
        std::thread::spawn(move || {
            for _signal in signals.forever() {
                // The second one means it.
                if stop.swap(true, Ordering::Relaxed) {
                    std::process::exit(130);
                }
            }
        });
    }
}
