//! `shard-bench serve`: the light target.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use core_runtime::shard::DriverChoice;
use lexopt::prelude::*;
use tls::Versions;

use super::{Code, Ended, values};
use crate::number::length;
use crate::serve::{self, ServePlan};

const HELP: &str = "\
Usage: shard-bench serve [OPTIONS]

Answers every request at once: /bytes/N with N bytes, /1k, /64k and /1m with these, everything else with
the default. HTTP/1.1; HTTP/2 with prior knowledge or by ALPN; WebSocket and gRPC messages come back.

  --listen ADDR            (127.0.0.1:0, which takes a free port; the address is printed)
  --body-bytes N           Default size (1024)
  --cert FILE, --key FILE  Serve TLS; --client-ca FILE requires client certificates; --tls 1.2 or 1.3
  -t, --threads N          (1); --cpus LIST pins one thread to each CPU
  --driver D               auto (default), ring, epoll
";

struct Words {
    plan: ServePlan,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
    wants_help: bool,
}

pub(crate) fn run(words: impl Iterator<Item = OsString>) -> Ended {
    let usage = |why: String| {
        Ended::complaint(Code::Usage, &format!("serve: {why}; `shard-bench serve --help` tells the options"))
    };
    let plan = match parse(words).and_then(with_files) {
        Ok(None) => return Ended::text(HELP),
        Ok(Some(plan)) => plan,
        Err(why) => return usage(why),
    };
    if let Err(why) = serve::check(&plan) {
        return usage(why);
    }
    // A lower limit shows when a client opens more: connections then wait in the kernel's queue.
    let _files: Option<u64> = super::plan::open_files_max();
    let sockets = match serve::bind(&plan) {
        Ok(sockets) => sockets,
        Err(error) => return Ended::complaint(Code::System, &format!("--listen {}: {error}", plan.listen)),
    };
    let addr = sockets.first().map_or(plan.listen, core_runtime::net::ListeningSocket::addr);
    // Scripts wait for this line; one that cannot be written leaves nobody to serve.
    if let Err(error) = crate::write(&mut std::io::stdout().lock(), &format!("listening on {addr}\n")) {
        return Ended::complaint(Code::Output, &error.to_string());
    }
    match serve::serve(&plan, sockets) {
        Ok(()) => Ended::text(""),
        Err(error) => Ended::complaint(Code::System, &error.to_string()),
    }
}

fn parse(words: impl Iterator<Item = OsString>) -> Result<Words, String> {
    let mut parser = lexopt::Parser::from_args(words);
    let mut parsed = Words {
        plan: ServePlan {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            body_bytes: 1024,
            identity: None,
            client_ca: None,
            versions: Versions::default(),
            cores: vec![None],
            driver: DriverChoice::Auto,
        },
        cert: None,
        key: None,
        client_ca: None,
        wants_help: false,
    };
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        let name = match argument {
            Short('h') => "help".to_owned(),
            Short('t') => "threads".to_owned(),
            Long(name) => name.to_owned(),
            Short(letter) => return Err(format!("unknown option -{letter}")),
            Value(word) => return Err(format!("unexpected argument {}", word.to_string_lossy())),
        };
        if name == "help" {
            parsed.wants_help = true;
            continue;
        }
        let known = ["listen", "body-bytes", "cert", "key", "client-ca", "tls", "threads", "cpus", "driver"];
        if !known.contains(&name.as_str()) {
            return Err(format!("unknown option --{name}"));
        }
        let value = parser.value().and_then(|value| value.string()).map_err(|error| error.to_string())?;
        take(&mut parsed, &name, &value).map_err(|why| format!("--{name}: {why}"))?;
    }
    Ok(parsed)
}

fn take(parsed: &mut Words, name: &str, value: &str) -> Result<(), String> {
    let plan = &mut parsed.plan;
    match name {
        "listen" => plan.listen = value.parse().map_err(|error| format!("{value}: {error}"))?,
        "body-bytes" => plan.body_bytes = value.parse().map_err(|error| format!("{value}: {error}"))?,
        "cert" => parsed.cert = Some(value.into()),
        "key" => parsed.key = Some(value.into()),
        "client-ca" => parsed.client_ca = Some(value.into()),
        "threads" => plan.cores = vec![None; length(values::count(value)?)],
        "cpus" => plan.cores = values::cpus(value)?.into_iter().map(Some).collect(),
        "tls" => plan.versions = values::tls_version(value)?,
        _ => plan.driver = values::driver(value)?,
    }
    Ok(())
}

/// The plan with its files read; None for help.
fn with_files(parsed: Words) -> Result<Option<ServePlan>, String> {
    if parsed.wants_help {
        return Ok(None);
    }
    let read = |path: Option<PathBuf>, name: &str| {
        let fault = |path: &PathBuf, error: std::io::Error| format!("--{name} {}: {error}", path.display());
        path.map(|path| std::fs::read(&path).map_err(|error| fault(&path, error))).transpose()
    };
    let mut plan = parsed.plan;
    plan.identity = match (read(parsed.cert, "cert")?, read(parsed.key, "key")?) {
        (Some(chain), Some(key)) => Some((chain, key)),
        (None, None) => None,
        _ => return Err("--cert and --key go together".to_owned()),
    };
    plan.client_ca = read(parsed.client_ca, "client-ca")?;
    if plan.client_ca.is_some() && plan.identity.is_none() {
        return Err("--client-ca wants --cert and --key".to_owned());
    }
    Ok(Some(plan))
}
