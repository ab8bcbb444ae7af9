//! Runs the soak on the binaries beside it: `soak SECONDS [SEED] [RESTART_SECONDS]`. Prints the report; fails when it
//! names a fault.

use std::process::ExitCode;
use std::time::Duration;

use tests::soak::{self, Plan};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |at: usize, default: Option<u64>| arguments.get(at).map_or(default, |word| word.parse().ok());
    let (Some(length), Some(seed), Some(restart)) =
        (number(0, None), number(1, Some(1)), number(2, Some(60)))
    else {
        tests::note("usage: soak SECONDS [SEED] [RESTART_SECONDS]");
        return ExitCode::FAILURE;
    };
    let plan = Plan::new(Duration::from_secs(length), seed, Duration::from_secs(restart));
    let report = soak::run(plan);
    tests::note(&report.to_string());
    if report.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
