//! From options to a plan: reads the files that they name, resolves the target, checks what does not go together.

use std::fs;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tls::Version;

use super::options::Options;
use super::values;
use crate::link::tls_context;
use crate::load::{Schedule, Stage};
use crate::number::length;
use crate::plan::{EarlyRequests, Load, Plan, Protocol, Target, TlsPlan};
use crate::request::{Request, Requests, Scheme, Text, Url, read_list};
use crate::usage;

/// Connections and requests at once that one run may have.
const CONNECTIONS_MAX: u64 = 1_000_000;
const DEPTH_MAX: u64 = 100_000;
/// Descriptors beside connections: rings, event counters, reports.
const FILES_BESIDE: u64 = 64;
/// Measured time without --duration.
const DURATION: Duration = Duration::from_secs(10);
const WARMUP: Duration = Duration::from_secs(1);
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// Trusted without --cacert.
const SYSTEM_CAS: &str = "/etc/ssl/certs/ca-certificates.crt";
/// A file that is read whole.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// The plan for the target at `url`.
///
/// # Errors
/// What is wrong, naming option and value.
pub(crate) fn plan(options: &Options, url: &str) -> Result<Plan, String> {
    let url = Url::parse(url)?;
    let protocol = protocol(options, &url)?;
    let load = load(options)?;
    check_bounds(options)?;
    let duration = match (&load, options.duration) {
        (_, Some(duration)) => duration,
        (Load::Open(schedule), None) if options.stages.is_some() || options.trace.is_some() => {
            schedule.length() + Duration::from_millis(1)
        }
        _ => DURATION,
    };
    if duration.is_zero() {
        return Err("--duration 0: want some time to measure".to_owned());
    }
    let is_bare = options.requests.is_some() || options.trace.is_some();
    let warmup = options.warmup.unwrap_or(if is_bare { Duration::ZERO } else { WARMUP });
    if options.trace.is_some() && !warmup.is_zero() {
        return Err("--warmup: a trace is replayed as it is, without one".to_owned());
    }
    let target = target(options, &url, &protocol)?;
    check_early_data(options, &target, &protocol)?;
    let tls = tls_plan(options)?;
    if target.scheme == Scheme::Https {
        if tls.roots_pem.as_ref().is_some_and(Vec::is_empty) {
            let place = options
                .cacert
                .as_ref()
                .map_or_else(|| SYSTEM_CAS.to_owned(), |f| format!("--cacert {}", f.display()));
            return Err(format!("no CAs in {place}; --cacert FILE trusts some, --insecure any certificate"));
        }
        // Every core builds the same; what is wrong with a file is to be told as what it is.
        drop(tls_context(&tls, protocol.alpn())?);
    }
    Ok(Plan {
        target,
        tls,
        connections: length(options.connections),
        depth: length(options.depth),
        is_fresh: options.is_fresh,
        warmup,
        duration,
        requests_max: options.requests.unwrap_or(u64::MAX),
        timeout: options.timeout,
        spin: options.spin,
        drain: options.drain.unwrap_or_else(|| options.timeout.min(DRAIN_MAX)),
        read_rate: options.read_rate,
        send_rate: options.send_rate,
        cores: cores(options)?,
        driver: options.driver,
        seed: options.seed,
        stop: Arc::default(),
        protocol,
        load,
    })
}

/// What this machine and this program cannot do is told before the run.
fn check_bounds(options: &Options) -> Result<(), String> {
    if options.connections > CONNECTIONS_MAX {
        return Err(format!("--connections {}: at most {CONNECTIONS_MAX}", options.connections));
    }
    if let Some(files) = open_files_max()
        && options.connections.saturating_add(FILES_BESIDE) > files
    {
        return Err(format!(
            "--connections {}: this process may open {files} files; `ulimit -Hn` tells, /etc/security/limits.conf sets it",
            options.connections
        ));
    }
    if options.depth > DEPTH_MAX {
        return Err(format!("--depth {}: at most {DEPTH_MAX}", options.depth));
    }
    if options.is_fresh && options.depth > 1 {
        return Err("--fresh opens a connection for each request: it excludes --depth".to_owned());
    }
    for pid in &options.pids {
        usage::tree(*pid).map_err(|why| format!("--pid {pid}: {why}"))?;
    }
    Ok(())
}

/// Raises the limit of open files to what this process may have; None when there is none.
pub(crate) fn open_files_max() -> Option<u64> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let soft = limit.current;
    limit.current = limit.maximum;
    // Where it cannot be raised the old one holds.
    if setrlimit(Resource::Nofile, limit).is_ok() { limit.maximum } else { soft }
}

fn cores(options: &Options) -> Result<Vec<Option<usize>>, String> {
    let all = core_runtime::affinity::allowed_cpus().map_err(|error| format!("--threads: {error}"))?;
    if let Some(cpus) = &options.cpus {
        if let Some(other) = cpus.iter().find(|cpu| !all.contains(cpu)) {
            return Err(format!("--cpus {other}: this process may not use it, but {all:?}"));
        }
        return Ok(cpus.iter().map(|cpu| Some(*cpu)).collect());
    }
    let threads = length(options.threads);
    if threads > all.len() {
        return Err(format!("--threads {threads}: this process may use {} CPU(s)", all.len()));
    }
    Ok(vec![None; threads])
}

fn protocol(options: &Options, url: &Url) -> Result<Protocol, String> {
    let name = match (options.protocol.as_deref(), url.is_websocket) {
        (None, true) => "websocket",
        (None, false) => "h1",
        (Some(name), _) => name,
    };
    match name {
        "h1" => Ok(Protocol::H1),
        "h2" => Ok(Protocol::H2),
        "grpc" => {
            let messages = u32::try_from(options.grpc_messages)
                .map_err(|error| format!("--grpc-messages {}: {error}", options.grpc_messages))?;
            Ok(Protocol::Grpc { messages })
        }
        "websocket" => {
            let message = message(options)?;
            Ok(Protocol::WebSocket {
                message: if message == Text::default() { Text::literal(b"ping") } else { message },
            })
        }
        other => Err(format!("--protocol {other}: want h1, h2, grpc or websocket")),
    }
}

fn load(options: &Options) -> Result<Load, String> {
    let schedule = |stages: Vec<Stage>, trace| Schedule {
        stages,
        spacing: options.spacing,
        burst: options.burst,
        trace,
    };
    let given = [options.rate.is_some(), options.stages.is_some(), options.trace.is_some()];
    if given.iter().filter(|given| **given).count() > 1 {
        return Err("--rate, --stages and --trace exclude each other".to_owned());
    }
    if let Some(path) = &options.trace {
        if options.burst.is_some() {
            return Err("--burst: a trace is replayed as it is, without bursts".to_owned());
        }
        let text = read_text(path, "--trace")?;
        let times = values::trace(&text).map_err(|why| format!("--trace {}: {why}", path.display()))?;
        return Ok(Load::Open(schedule(Vec::new(), Some(times.into()))));
    }
    if let Some(stages) = &options.stages {
        return Ok(Load::Open(schedule(stages.clone(), None)));
    }
    // Far beyond any duration, which ends the run.
    let endless = Duration::from_secs(365 * 24 * 3600);
    match (options.rate, options.burst) {
        (None, None) => Ok(Load::Closed),
        (Some(rate), None) if rate <= 0.0 => Err("--rate 0: want a rate above 0, or --burst".to_owned()),
        (rate, _) => {
            let rate = rate.unwrap_or(0.0);
            Ok(Load::Open(schedule(vec![Stage { length: endless, from: rate, to: rate }], None)))
        }
    }
}

fn target(options: &Options, url: &Url, protocol: &Protocol) -> Result<Target, String> {
    let addrs = addresses(options, url)?;
    if !options.allow_remote
        && let Some(remote) = addrs.iter().find(|addr| !addr.ip().is_loopback())
    {
        return Err(format!(
            "{remote} is not on loopback; load on machines of others is an attack: --allow-remote says that you may"
        ));
    }
    Ok(Target {
        label: match &options.label {
            Some(label) => label.clone(),
            None => format!("{}://{}{}", url.scheme.as_str(), url.authority, url.path),
        },
        scheme: url.scheme,
        addrs,
        server_name: options.server_name.clone().unwrap_or_else(|| url.host.clone()),
        requests: requests(options, url, protocol)?,
        pid: options.pids.first().copied(),
    })
}

fn addresses(options: &Options, url: &Url) -> Result<Vec<SocketAddr>, String> {
    let resolve = |name: &str, found: std::io::Result<std::vec::IntoIter<SocketAddr>>| match found {
        Ok(found) => Ok(found.collect::<Vec<_>>()),
        Err(error) => Err(format!("{name}: {error}")),
    };
    if options.connect_to.is_empty() {
        let found = resolve(&url.host, (url.host.as_str(), url.port).to_socket_addrs())?;
        // One address: a name with several is no load balancer.
        return Ok(found.into_iter().take(1).collect());
    }
    let mut all = Vec::new();
    for address in &options.connect_to {
        all.extend(
            resolve(&format!("--connect-to {address}"), address.to_socket_addrs())?.into_iter().take(1),
        );
    }
    Ok(all)
}

fn requests(options: &Options, url: &Url, protocol: &Protocol) -> Result<Requests, String> {
    let mut headers = headers(options)?;
    let is_grpc = matches!(protocol, Protocol::Grpc { .. });
    if is_grpc {
        for (name, value) in [("content-type", "application/grpc"), ("te", "trailers")] {
            headers.push((name.to_owned(), Text::literal(value.as_bytes())));
        }
    }
    // A server that closes after an answer to early data has no time to send a ticket for the next connection.
    if options.is_fresh && matches!(protocol, Protocol::H1) && options.early_data == EarlyRequests::None {
        headers.push(("connection".to_owned(), Text::literal(b"close")));
    }
    if let Some(path) = &options.requests_from {
        let text = read_text(path, "--requests-from")?;
        let base = path.parent().unwrap_or(Path::new("."));
        let list = read_list(&text, &url.authority, &headers, |file| read_bytes(&base.join(file), "body"))
            .map_err(|why| format!("--requests-from {}: {why}", path.display()))?;
        return Ok(Requests { list, is_shuffled: options.is_shuffled });
    }
    let body = match protocol {
        Protocol::WebSocket { .. } => Text::default(),
        _ => message(options)?,
    };
    let default = if is_grpc || body != Text::default() { "POST" } else { "GET" };
    let method = options.method.as_deref().unwrap_or(default);
    if !http_wire::token::is_token(method.as_bytes()) {
        return Err(format!("--method {method}: not a method"));
    }
    let path = Text::parse(url.path.as_bytes()).map_err(|why| format!("URL: {why}"))?;
    let request = Request::new(method, &url.authority, path, &headers, body);
    Ok(Requests { list: vec![request], is_shuffled: false })
}

fn headers(options: &Options) -> Result<Vec<(String, Text)>, String> {
    let header = |line: &String| {
        let wrong = |why: &str| format!("--header {line:?}: {why}; want 'name: value'");
        let (name, value) = line.split_once(':').ok_or_else(|| wrong("no :"))?;
        if !http_wire::token::is_token(name.as_bytes()) {
            return Err(wrong("not a field name"));
        }
        let value = value.trim();
        if value.bytes().any(|byte| byte < b' ' && byte != b'\t' || byte == 0x7f) {
            return Err(wrong("a control character in the value"));
        }
        let value = Text::parse(value.as_bytes()).map_err(|why| wrong(&why))?;
        Ok((name.to_ascii_lowercase(), value))
    };
    options.headers.iter().map(header).collect()
}

/// What --body says: a template, or a file as it is; empty without one.
fn message(options: &Options) -> Result<Text, String> {
    match options.body.as_deref() {
        None => Ok(Text::default()),
        Some(text) => match text.strip_prefix('@') {
            Some(file) => Ok(Text::literal(&read_bytes(Path::new(file), "--body")?)),
            None => Text::parse(text.as_bytes()).map_err(|why| format!("--body: {why}")),
        },
    }
}

fn tls_plan(options: &Options) -> Result<TlsPlan, String> {
    let file = |path: &Option<std::path::PathBuf>, name: &str| {
        path.as_ref().map(|path| read_bytes(path, name)).transpose()
    };
    let roots_pem = match (options.insecure, file(&options.cacert, "--cacert")?) {
        (true, Some(_)) => return Err("--insecure and --cacert exclude each other".to_owned()),
        (true, None) => None,
        (false, Some(pem)) => Some(pem),
        (false, None) => Some(fs::read(SYSTEM_CAS).unwrap_or_default()),
    };
    let identity = match (file(&options.cert, "--cert")?, file(&options.key, "--key")?) {
        (Some(chain), Some(key)) => Some((chain, key)),
        (None, None) => None,
        _ => return Err("--cert and --key go together".to_owned()),
    };
    let (versions, groups) = (options.versions, options.groups.clone());
    let early_data = options.early_data;
    Ok(TlsPlan { roots_pem, versions, resume: options.resume, early_data, groups, identity })
}

/// Early data where there can be none is a wrong option, not a run without it.
fn check_early_data(options: &Options, target: &Target, protocol: &Protocol) -> Result<(), String> {
    let list = &target.requests.list;
    let why = match options.early_data {
        EarlyRequests::None => return Ok(()),
        _ if target.scheme == Scheme::Http => "plaintext has none; want an https URL",
        _ if options.versions.max == Version::Tls12 => "TLS 1.2 has none; leave out --tls 1.2",
        _ if !options.resume => "it needs a session to resume; leave out --no-resume",
        _ if matches!(protocol, Protocol::WebSocket { .. }) => {
            "not for WebSocket, which begins with an upgrade"
        }
        _ if options.send_rate.is_some() => "it leaves at once, which --slow-send excludes",
        EarlyRequests::Safe if !list.iter().any(Request::is_safe) => {
            "no request's method is safe (GET, HEAD, OPTIONS), and early data may arrive twice; --early-data-unsafe \
             sends any"
        }
        EarlyRequests::Safe | EarlyRequests::All => return Ok(()),
    };
    Err(format!("--early-data: {why}"))
}

fn read_bytes(path: &Path, option: &str) -> Result<Vec<u8>, String> {
    let fault = |error: std::io::Error| format!("{option} {}: {error}", path.display());
    let bytes = fs::metadata(path).map_err(fault)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(format!("{option} {}: larger than {FILE_BYTES_MAX} bytes", path.display()));
    }
    fs::read(path).map_err(fault)
}

fn read_text(path: &Path, option: &str) -> Result<String, String> {
    let bytes = read_bytes(path, option)?;
    String::from_utf8(bytes).map_err(|error| format!("{option} {}: {error}", path.display()))
}

/// What may help after a handshake that failed with `why`.
pub(crate) fn hint(plan: &Plan, why: &str) -> &'static str {
    match &plan.tls.roots_pem {
        _ if why.contains("InvalidContentType") => {
            "; the target does not speak TLS on this port: an http URL?"
        }
        Some(_) if why.contains("CaUsedAsEndEntity") => {
            "; the certificate says that it is a CA (`openssl req -x509` makes such ones, with -addext \
             basicConstraints=critical,CA:FALSE it does not); --insecure trusts any certificate"
        }
        Some(_) if why.contains("certificate") => {
            "; --cacert FILE trusts another CA, --insecure any certificate"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(words: &str) -> Result<Plan, String> {
        let options = Options::parse(words.split(' ').map(std::ffi::OsString::from)).expect("options");
        plan(&options, "https://127.0.0.1:1/")
    }

    #[test]
    fn a_failed_handshake_says_the_way_out() {
        let mut careful = planned("--insecure").expect("a plan");
        careful.tls.roots_pem = Some(Vec::new());
        for (why, way) in [
            ("received corrupt message of type InvalidContentType", "http URL"),
            ("invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))", "CA:FALSE"),
            ("invalid peer certificate: UnknownIssuer", "--cacert"),
        ] {
            assert!(hint(&careful, why).contains(way), "{why}");
        }
        assert_eq!(hint(&careful, "unexpected end of file"), "");
        assert_eq!(hint(&planned("--insecure").expect("a plan"), "certificate required"), "");
    }

    #[test]
    fn what_is_not_there_is_told_before_the_run() {
        for (words, fault) in [
            ("--insecure --pid 4194305", "--pid 4194305: process 4194305 is not there"),
            ("--cacert /dev/null", "no CAs in --cacert /dev/null"),
            ("--cacert /proc/self/comm", "trusted CAs of --cacert: "),
            ("--insecure --cert /dev/null --key /dev/null", "certificate \"--cert and --key\": "),
            ("--insecure --cpus 100000", "--cpus 100000: this process may not use it"),
        ] {
            let why = planned(words).expect_err(words);
            assert!(why.starts_with(fault), "{why}");
        }
    }
}
