//! The admin listener: metrics, readiness and what is configured, on a unix socket or a loopback address.
//!
//! It runs on threads of its own and reads only what the aggregator holds, so scraping never touches a reactor.
//! HTTP/1.1, GET only, one request per connection.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_proxy::record::{Aggregate, Names};

const CLIENTS_MAX: usize = 16;
const REQUEST_BYTES_MAX: u64 = 8 * 1024;
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// What the admin listener shows; written by the aggregator and by reloads.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) aggregate: Aggregate,
    pub(crate) names: Names,
    /// 200 once every shard serves, 503 before and while draining.
    pub(crate) phase: Phase,
    /// JSON of the configuration in force.
    pub(crate) config: serde_json::Value,
    /// Metrics of the process as a whole, ready-made.
    pub(crate) process_metrics: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Starting,
    Ready,
    Draining,
}

pub(crate) type Shared = Arc<Mutex<State>>;

/// A panic while the lock was held leaves counters that are still counters.
pub(crate) fn lock(state: &Shared) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the listener: `unix:PATH` or a loopback `ADDRESS:PORT`. Returns where it listens.
///
/// # Errors
/// An address that is not loopback, or what bind says.
pub(crate) fn start(address: &str, state: Shared) -> io::Result<String> {
    if let Some(path) = address.strip_prefix("unix:") {
        let listener = bind_unix(Path::new(path))?;
        serve_each(state, move || listener.accept().map(|(stream, _)| stream), |stream| {
            stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
            stream.set_write_timeout(Some(CLIENT_TIMEOUT))
        })?;
        return Ok(address.to_owned());
    }
    let wanted: SocketAddr = address.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    if !wanted.ip().is_loopback() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the admin listener must be on a loopback address"));
    }
    let listener = TcpListener::bind(wanted)?;
    let bound = listener.local_addr()?;
    serve_each(state, move || listener.accept().map(|(stream, _)| stream), |stream| {
        stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
        stream.set_write_timeout(Some(CLIENT_TIMEOUT))
    })?;
    Ok(bound.to_string())
}

fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    UnixListener::bind(path)
}

fn serve_each<S: Read + Write + Send + 'static>(
    state: Shared,
    mut accept: impl FnMut() -> io::Result<S> + Send + 'static,
    limit: impl Fn(&S) -> io::Result<()> + Send + 'static,
) -> io::Result<()> {
    let clients = Arc::new(AtomicUsize::new(0));
    let serve = move || {
        while let Ok(stream) = accept() {
            if clients.fetch_add(1, Ordering::Relaxed) >= CLIENTS_MAX || limit(&stream).is_err() {
                clients.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (state, count) = (Arc::clone(&state), Arc::clone(&clients));
            let spawned = std::thread::Builder::new().name("admin-client".to_owned()).spawn(move || {
                // The client's side of a failure is the client's to see.
                match answer(stream, &state) {
                    Ok(()) | Err(_) => {}
                }
                count.fetch_sub(1, Ordering::Relaxed);
            });
            if spawned.is_err() {
                clients.fetch_sub(1, Ordering::Relaxed);
            }
        }
    };
    std::thread::Builder::new().name("admin".to_owned()).spawn(serve).map(drop)
}

fn answer(mut stream: impl Read + Write, state: &Shared) -> io::Result<()> {
    let mut line = String::new();
    {
        let mut reader = BufReader::new((&mut stream).take(REQUEST_BYTES_MAX));
        reader.read_line(&mut line)?;
        let mut field = String::new();
        while reader.read_line(&mut field)? > 2 {
            field.clear();
        }
    }
    let mut words = line.split_ascii_whitespace();
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let path = target.split('?').next().unwrap_or("");
    let (status, content_type, body) = match (method, path) {
        ("GET", "/metrics") => ("200 OK", "text/plain; version=0.0.4", metrics(state)),
        ("GET", "/ready") => ready(state),
        ("GET", "/config") => ("200 OK", "application/json", lock(state).config.to_string().into_bytes()),
        ("GET", "/connections") => ("200 OK", "application/json", connections(state)),
        ("GET", _) => ("404 Not Found", "text/plain", b"/metrics /ready /config /connections\n".to_vec()),
        _ => ("405 Method Not Allowed", "text/plain", b"GET only\n".to_vec()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(&body)
}

fn metrics(state: &Shared) -> Vec<u8> {
    let mut state = lock(state);
    let state = &mut *state;
    let mut out = Vec::with_capacity(64 * 1024);
    state.aggregate.render(&state.names, &mut out);
    out.extend_from_slice(state.process_metrics.as_bytes());
    out
}

fn ready(state: &Shared) -> (&'static str, &'static str, Vec<u8>) {
    match lock(state).phase {
        Phase::Ready => ("200 OK", "text/plain", b"ready\n".to_vec()),
        Phase::Starting => ("503 Service Unavailable", "text/plain", b"starting\n".to_vec()),
        Phase::Draining => ("503 Service Unavailable", "text/plain", b"draining\n".to_vec()),
    }
}

fn connections(state: &Shared) -> Vec<u8> {
    let mut state = lock(state);
    let totals = state.aggregate.totals();
    serde_json::json!({
        "downstream": totals.gauges.connections,
        "requests": totals.gauges.requests,
        "upstream": totals.gauges.upstream_connections,
    })
    .to_string()
    .into_bytes()
}
