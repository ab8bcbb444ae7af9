//! shardctl: the operator's command line. Chooses the command, then writes what it returned; the only place that
//! touches the process's streams and exit code.
//!
//! Invariants: a reader that goes away (`shardctl … | head`) ends the program quietly with the code that the
//! command earned; every wrong command line says what is wrong and where help is, with code 64.

mod admin;
mod args;
mod check;
mod config;
mod doctor;
mod endpoint;
mod explain;
mod l4;
mod outcome;
mod schema;

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use args::{Args, UsageError};
use outcome::{Code, Outcome};

const HELP: &str = "\
Usage: shardctl COMMAND [ARGUMENTS]

Commands:
  check DIR                  Check a configuration directory
  explain CODE               What a reason code means and what to do
  explain METHOD URL --config DIR
                             Which listener, host, route and cluster a request meets
  schema                     Print the JSON Schema of the configuration files
  doctor                     Check this host's kernel, limits, network, CPUs and memory
  admin WHAT                 Ask a running shard-proxy: metrics, ready, config, connections
  endpoint drain|resume CLUSTER ADDRESS
                             Take an endpoint of a running shard-proxy out of service, or back
  l4 WHAT                    Ask a running shard-l4: show, flows, lookup, counters, trace; drain

`shardctl COMMAND --help` tells the options of a command. `shardctl --version` prints the version.

Exit codes: 0 success, 1 errors or warnings were found, 2 doctor found a failure, 64 wrong usage,
69 the daemon is not reachable, 74 output could not be written.
";

fn main() -> ExitCode {
    let words = std::env::args_os().skip(1).map(OsString::into_string).collect::<Result<Vec<_>, _>>();
    let outcome = match words {
        Ok(words) => dispatch(words),
        Err(word) => Outcome::complaint(Code::Usage, &format!("{}: not UTF-8", word.display())),
    };
    ExitCode::from(deliver(&outcome).number())
}

/// Runs the command that the first word names.
fn dispatch(words: Vec<String>) -> Outcome {
    let mut words = words.into_iter();
    let Some(command) = words.next() else {
        return Outcome { code: Code::Usage, out: Vec::new(), err: HELP.to_owned() };
    };
    type Run = fn(Args) -> Result<Outcome, UsageError>;
    let (run, help): (Run, &str) = match command.as_str() {
        "check" => (check::run, check::HELP),
        "explain" => (explain::run, explain::HELP),
        "schema" => (schema::run, schema::HELP),
        "doctor" => (doctor::run, doctor::HELP),
        "admin" => (admin::run, admin::HELP),
        "endpoint" => (endpoint::run, endpoint::HELP),
        "l4" => (l4::run, l4::HELP),
        "help" | "--help" | "-h" => return Outcome::text(HELP),
        "--version" | "-V" => {
            return Outcome::text(format!("shardctl {}\n", env!("CARGO_PKG_VERSION")));
        }
        other => {
            let message = format!("unknown command {other}; `shardctl --help` lists the commands");
            return Outcome::complaint(Code::Usage, &message);
        }
    };
    let mut args = Args::new(words.collect());
    if args.flag("--help") || args.flag("-h") {
        return Outcome::text(help);
    }
    run(args).unwrap_or_else(|error| {
        Outcome::complaint(
            Code::Usage,
            &format!("{command}: {error}; `shardctl {command} --help` tells the options"),
        )
    })
}

/// Writes both streams; the exit code is the command's unless its output was lost.
fn deliver(outcome: &Outcome) -> Code {
    let written = write(&mut io::stdout().lock(), &outcome.out);
    // A message that cannot be shown changes nothing: the exit code still tells.
    let complained = write(&mut io::stderr().lock(), outcome.err.as_bytes());
    match written.and(complained) {
        Ok(()) => outcome.code,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => outcome.code,
        Err(_) => Code::Output,
    }
}

fn write(stream: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes)?;
    stream.flush()
}

#[cfg(test)]
mod tests {
    use super::{Code, dispatch};

    fn run(line: &str) -> (Code, String, String) {
        let outcome = dispatch(line.split_whitespace().map(str::to_owned).collect());
        (outcome.code, String::from_utf8(outcome.out).expect("text"), outcome.err)
    }

    #[test]
    fn every_command_has_help_that_begins_with_its_usage() {
        for command in ["check", "explain", "schema", "doctor", "admin", "endpoint", "l4"] {
            for flag in ["--help", "-h"] {
                let (code, out, err) = run(&format!("{command} {flag}"));
                assert_eq!((code, err.as_str()), (Code::Success, ""), "{command}");
                assert!(out.starts_with(&format!("Usage: shardctl {command}")), "{out}");
                assert!(out.contains("Exit code"), "{command} tells its exit codes");
                assert!(out.lines().all(|l| l.len() <= 100), "{command} fits the page");
            }
        }
        assert_eq!(run("--help").1, super::HELP);
    }

    #[test]
    fn a_wrong_line_names_the_fault_and_the_way_out() {
        for (line, fault) in [
            ("frobnicate", "unknown command frobnicate"),
            ("doctor --jsn", "unknown option --jsn"),
            ("doctor --reactors many", "--reactors many"),
            ("doctor --reactors 0", "--reactors"),
            ("doctor --root /nonexistent", "--root /nonexistent"),
            ("doctor --interface ../etc", "--interface"),
            ("doctor extra", "unexpected argument extra"),
            ("admin", "missing"),
            ("endpoint", "drain or resume is missing"),
            ("endpoint drain shop/u", "ADDRESS is missing"),
            ("endpoint stop shop/u 10.0.0.1:80", "unknown action stop"),
            ("endpoint drain shop/u backend:80", "IP:PORT is wanted"),
            ("endpoint drain a&b 10.0.0.1:80", "no name of a cluster"),
            ("endpoint drain shop/u 10.0.0.1:80 more", "unexpected argument more"),
            ("admin everything", "unknown question everything"),
            ("admin --address 192.0.2.1:80 ready", "loopback only"),
            ("admin --address 127.0.0.1:1 --socket x ready", "exclude each other"),
            ("admin --timeout 0 ready", "--timeout 0"),
            ("l4", "missing"),
            ("l4 everything", "unknown question everything"),
            ("l4 flows --max 0", "--max 0"),
            ("l4 lookup tcp 192.0.2.1:1", "DESTINATION"),
            ("l4 lookup sctp 192.0.2.1:1 192.0.2.2:2", "sctp"),
            ("l4 lookup tcp 192.0.2.1 192.0.2.2:2", "192.0.2.1"),
            ("l4 trace --seconds 0", "--seconds 0"),
            ("l4 show --undo", "--undo"),
            ("check", "missing"),
            ("check a b", "unexpected argument b"),
            ("explain", "missing"),
            ("explain GET --config d", "URL"),
            ("explain GET http://a/", "--config"),
            ("schema extra", "unknown document extra"),
        ] {
            let (code, out, err) = run(line);
            assert_eq!((code, out.as_str()), (Code::Usage, ""), "{line}");
            assert!(
                err.starts_with("shardctl: ") && err.contains(fault) && err.contains("--help"),
                "{line}: {err}"
            );
        }
    }
}
