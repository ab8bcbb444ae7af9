//! `shard-bench ab`: two targets in turns.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::options::{self, Options};
use super::run::{sharpen, stop_on_signal, unreachable};
use super::{Code, Ended, plan};
use crate::ab::process::Process;
use crate::ab::{METRICS, compare};
use crate::plan::{Load, Plan};
use crate::progress::Progress;
use crate::report::{files, html};

const HELP: &str = "\
Usage: shard-bench ab URL_A URL_B [OPTIONS]

  --rounds N               Rounds of both targets, A B, B A, A B … (10; at least 5 show anything)
  -d, --duration SPAN      Of each run (1s), after --warmup (200ms)
  --judge LIST             Metrics that the verdict goes by: p50,p90,p99,p99.9,max,cpu,rate
                           (p50,p99 in an open loop, rate in a closed one)
  --threshold P            A difference below this does not count (3%)
  --start CMD              Start the targets: once for A, once for B, in a shell; their CPU is then read
  --pid PID                Or name processes that run: once for A, once for B

";

pub(crate) fn run(words: impl Iterator<Item = OsString>) -> Ended {
    let usage = |why: String| {
        Ended::complaint(Code::Usage, &format!("ab: {why}; `shard-bench ab --help` tells the options"))
    };
    let mut options = match Options::parse(words) {
        Ok(options) => options,
        Err(why) => return usage(why),
    };
    if options.wants_help {
        return Ended::text(&format!("{HELP}{}", options::HELP));
    }
    options.duration.get_or_insert(Duration::from_secs(1));
    options.warmup.get_or_insert(Duration::from_millis(200));
    let mut plans = match prepare(&mut options) {
        Ok(plans) => plans,
        Err(why) => return usage(why),
    };
    if let Err(why) =
        [&options.json, &options.html].into_iter().flatten().try_for_each(|p| files::check_writable(p))
    {
        return Ended::complaint(Code::Output, &why);
    }
    let mut processes = Vec::new();
    for (plan, command) in plans.iter_mut().zip(&options.start) {
        let Some(addr) = plan.target.addrs.first().copied() else { continue };
        match Process::start(command, addr) {
            Ok(process) => {
                plan.target.pid = Some(process.pid());
                processes.push(process);
            }
            Err(why) => return Ended::complaint(Code::Unreachable, &why),
        }
    }
    sharpen();
    let plans = plans.map(Arc::new);
    plans.iter().for_each(|plan| stop_on_signal(plan));
    let mut progress = Progress::new(options.is_quiet);
    let compared = compare(&plans, options.rounds, options.threshold, &options.judge, &mut progress);
    drop(processes);
    let (comparison, outcomes) = match compared {
        Ok(compared) => compared,
        Err((side, failed)) => return unreachable(&plans[side], &failed),
    };
    let mut ended = Ended::text(&comparison.render());
    if comparison.is_slower() {
        ended.code = Code::Verdict;
    }
    if outcomes.iter().any(|outcome| outcome.was_stopped) {
        ended.code = Code::Unhealthy;
    }
    if outcomes.iter().any(|outcome| outcome.tally.counts.ok == 0) {
        ended.code = Code::Unreachable;
    }
    if let Err(why) = write_files(&options, &comparison) {
        ended.err = format!("shard-bench: {why}\n");
        ended.code = Code::Output;
    }
    ended
}

fn prepare(options: &mut Options) -> Result<[Plan; 2], String> {
    let [a, b] = options.words.as_slice() else {
        return Err(format!("want two URLs, got {}", options.words.len()));
    };
    if !matches!(options.start.len(), 0 | 2) || !matches!(options.pids.len(), 0 | 2) {
        return Err("--start and --pid want one for A and one for B".to_owned());
    }
    if options.label.is_some() {
        return Err("--label is of one run; A and B have their URLs".to_owned());
    }
    if options.csv.is_some() || options.hdr.is_some() {
        return Err("--csv and --hdr are of one run; use --json or --html".to_owned());
    }
    let mut plans = [plan::plan(options, a)?, plan::plan(options, b)?];
    for (plan, pid) in plans.iter_mut().zip(&options.pids) {
        plan.target.pid = Some(*pid);
    }
    if options.judge.is_empty() {
        let judged: &[&str] =
            if matches!(plans[0].load, Load::Open(_)) { &["p50", "p99"] } else { &["rate"] };
        options.judge = judged.iter().map(|metric| (*metric).to_owned()).collect();
    }
    if let Some(unknown) = options.judge.iter().find(|metric| !METRICS.contains(&metric.as_str())) {
        return Err(format!("--judge {unknown}: want {}", METRICS.join(", ")));
    }
    Ok(plans)
}

fn write_files(options: &Options, comparison: &crate::ab::Comparison) -> Result<(), String> {
    let write = |path: &Option<PathBuf>, bytes: &[u8]| match path {
        Some(path) => files::write_whole(path, bytes),
        None => Ok(()),
    };
    let mut json = serde_json::to_vec_pretty(comparison).map_err(|error| format!("JSON: {error}"))?;
    json.push(b'\n');
    write(&options.json, &json)?;
    let runs = [comparison.a.clone(), comparison.b.clone()];
    write(&options.html, html::render(&runs, Some(comparison))?.as_bytes())
}
