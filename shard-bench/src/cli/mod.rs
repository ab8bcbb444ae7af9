//! The command line: words to a plan, an outcome to text, files and an exit code.

mod ab;
mod options;
mod plan;
mod report;
mod run;
mod serve;
pub(crate) mod values;

use std::ffi::OsString;

/// Exit codes; docs/shard-bench.md lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    Success = 0,
    /// An SLO does not hold, or B is slower than A.
    Verdict = 1,
    /// The run was not what was asked for: rate not reached, starts missed or late, stopped.
    Unhealthy = 2,
    Usage = 64,
    /// The target cannot be reached or trusted, or not one request succeeded.
    Unreachable = 69,
    /// Something in the generator's surroundings failed.
    System = 71,
    /// A report could not be written.
    Output = 74,
}

/// What a command came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) code: Code,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    pub(crate) fn text(out: &str) -> Self {
        Self { code: Code::Success, out: out.to_owned(), err: String::new() }
    }

    pub(crate) fn complaint(code: Code, why: &str) -> Self {
        Self { code, out: String::new(), err: format!("shard-bench: {why}\n") }
    }
}

const HELP: &str = "\
Usage: shard-bench run URL [OPTIONS]      One run: latency, rate, errors
       shard-bench ab URL_A URL_B [OPTIONS]
                                          Two targets in turns: which one is faster
       shard-bench serve [OPTIONS]        A light target that answers at once
       shard-bench report FILE... --html OUT
                                          Saved runs (--json) side by side, as one page

`shard-bench COMMAND --help` tells the options of a command. `shard-bench --version` prints the version.

Exit codes: 0 success; 1 an SLO does not hold, or B is slower than A; 2 the run was not what was asked for
(rate not reached, starts missed or late, stopped); 64 wrong usage; 69 the target cannot be reached or
trusted, or not one request succeeded; 71 the generator itself failed; 74 a report could not be written.
";

/// Runs the command that the first word names.
pub(crate) fn dispatch(words: impl Iterator<Item = OsString>) -> Ended {
    let mut words = words.peekable();
    let command = words.next().map(|word| word.to_string_lossy().into_owned());
    match command.as_deref() {
        None => Ended { code: Code::Usage, out: String::new(), err: HELP.to_owned() },
        Some("run") => run::run(words),
        Some("ab") => ab::run(words),
        Some("report") => report::run(words),
        Some("serve") => serve::run(words),
        Some("help" | "--help" | "-h") => Ended::text(HELP),
        Some("--version" | "-V") => Ended::text(&format!("shard-bench {}\n", env!("CARGO_PKG_VERSION"))),
        Some(other) => Ended::complaint(
            Code::Usage,
            &format!("unknown command {other}; `shard-bench --help` lists the commands"),
        ),
    }
}
