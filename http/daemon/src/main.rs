//! shard-proxy: N pinned reactors, one aggregator, one admin listener. The composition root of the data plane.

mod admin;
mod args;
mod listeners;
mod log_writer;
mod oplog;
mod process;
mod restart;

use std::process::ExitCode;

fn main() -> ExitCode {
    match args::parse() {
        Ok(args::Request::Serve(options)) => match process::run(*options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                oplog::error(&error.to_string());
                ExitCode::from(1)
            }
        },
        Ok(args::Request::Print(text)) => {
            oplog::print(&text);
            ExitCode::SUCCESS
        }
        Err(error) => {
            oplog::error(&error.to_string());
            oplog::print(args::HINT);
            ExitCode::from(64)
        }
    }
}
