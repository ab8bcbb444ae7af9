//! shard-bench: load generator and A/B judge. Chooses the command, then writes what it returned; the only place
//! that touches the process's standard output and exit code.

mod ab;
mod cli;
mod core;
mod h1;
mod h2;
mod health;
mod link;
mod load;
mod number;
mod pace;
mod plan;
mod progress;
mod report;
mod request;
mod rng;
mod run;
mod serve;
mod slo;
mod slot;
mod tally;
mod usage;
mod websocket;
mod worker;

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::Arc;

use cli::{Code, Ended};

fn main() -> ExitCode {
    // With a handler a write above RLIMIT_FSIZE is an error like a full disk; without, it kills the process half-way.
    // Where none can be set, that is how it ends.
    drop(signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default()));
    let ended = cli::dispatch(std::env::args_os().skip(1));
    ExitCode::from(deliver(&ended) as u8)
}

/// Writes both streams; the exit code is the command's unless its output was lost.
fn deliver(ended: &Ended) -> Code {
    let written = write(&mut io::stdout().lock(), &ended.out);
    // A message that cannot be shown changes nothing: the exit code still tells.
    let complained = write(&mut io::stderr().lock(), &ended.err);
    match written.and(complained) {
        Ok(()) => ended.code,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ended.code,
        Err(_) if ended.code == Code::Success => Code::Output,
        Err(_) => ended.code,
    }
}

fn write(stream: &mut impl Write, text: &str) -> io::Result<()> {
    stream.write_all(text.as_bytes())?;
    stream.flush()
}
