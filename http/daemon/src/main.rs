//! shard-proxy: N pinned reactors, one aggregator, one admin listener. The composition root of the data plane.

mod admin;
mod aggregator;
mod args;
mod config;
mod describe;
mod dns;
mod ended;
mod events;
mod listeners;
mod log_writer;
mod oplog;
mod process;
mod reload;
mod restart;
mod shards;
mod start;
mod tickets;
mod unix_socket;
mod watch;

use std::process::ExitCode;

fn main() -> ExitCode {
    match args::parse() {
        Ok(args::Request::Serve(options)) => match start::run(*options) {
            Ok(ended) => ended.exit_code(),
            Err(error) => {
                oplog::error(&error.to_string());
                error.exit_code()
            }
        },
        Ok(args::Request::Print(text)) => {
            oplog::print(&text);
            ExitCode::SUCCESS
        }
        Err(error) => {
            oplog::error(&error.to_string());
            oplog::print(args::HINT);
            ExitCode::from(ended::WRONG_USAGE)
        }
    }
}
