//! shard-l4: the user side of the L4 tier. Loads the XDP program, feeds its maps from a file, tells a BGP speaker when
//! the box is ready. The program forwards without it: the daemon may be stopped, replaced or killed at any time.

mod announce;
mod args;
mod control;
mod desired;
mod ended;
mod feed;
mod ids;
mod metrics;
mod pages;
mod privileges;
mod question;
mod service;

use std::process::ExitCode;

use control_operator::{oplog, unix_socket};

fn main() -> ExitCode {
    let ended = match args::parse() {
        Ok(args::Request::Serve(options)) => service::run(&options),
        Ok(args::Request::Check(config)) => service::check(&config),
        Ok(args::Request::Detach(config)) => service::detach(&config),
        Ok(args::Request::Print(text)) => {
            oplog::print(&text);
            Ok(())
        }
        Err(error) => {
            oplog::error(&error.to_string());
            oplog::print(args::HINT);
            return ExitCode::from(ended::WRONG_USAGE);
        }
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            oplog::error(&ended::chain(&error));
            error.exit_code()
        }
    }
}
