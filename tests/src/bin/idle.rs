//! Measures idle TLS connections against the binary beside it: `idle COUNT`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(count) = std::env::args().nth(1).and_then(|word| word.parse().ok()) else {
        tests::note("usage: idle COUNT");
        return ExitCode::FAILURE;
    };
    tests::note(&tests::idle::measure(count).to_string());
    ExitCode::SUCCESS
}
