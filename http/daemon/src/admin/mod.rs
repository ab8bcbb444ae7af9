//! The admin listener: metrics, readiness and what the process is doing, on a unix socket or a loopback address.
//!
//! It runs on threads of its own. Metrics come from what the aggregator holds, so scraping never touches a reactor;
//! lists of what is open are asked of the cores, which answer between two turns, bounded (`http_proxy::survey`).
//! HTTP/1.1, one request per connection, nothing secret. What changes something is a POST, and answered on the unix
//! socket only, whose file is its user's alone: a loopback address is open to everybody on the host. On a hot restart
//! the socket itself goes to the successor, and the old process stops answering once that one serves.

mod change;
mod facts;
mod pages;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use core_runtime::mailbox::Sender;
use http_proxy::core::Command;
use http_proxy::record::{Aggregate, Names};
use rustix::event::{PollFd, PollFlags, poll};

pub(crate) use self::facts::Facts;
use crate::describe::Titles;
use crate::dns;
use crate::events::Event;
use crate::oplog;
use crate::unix_socket::{self, Live};

const CLIENTS_MAX: usize = 16;
const REQUEST_BYTES_MAX: usize = 8 * 1024;
/// For the whole request, and for each part of the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// After an accept that failed for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// What the admin listener shows; written by the aggregator and by the main thread.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) aggregate: Aggregate,
    pub(crate) names: Names,
    pub(crate) titles: Titles,
    pub(crate) phase: Phase,
    /// The configuration in force.
    pub(crate) config: serde_json::Value,
    pub(crate) facts: Facts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Starting,
    /// Every shard serves.
    Ready,
    Draining,
}

pub(crate) type Shared = Arc<Mutex<State>>;

/// The resolver, when there are names to resolve.
pub(crate) type Resolver = Arc<Mutex<Option<dns::Handle>>>;

/// A panic while the lock was held leaves counters that are still counters.
pub(crate) fn lock<T>(state: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whom the pages ask.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    pub(crate) state: Shared,
    pub(crate) shards: Vec<Sender<Command>>,
    pub(crate) resolver: Resolver,
    pub(crate) events: SyncSender<Event>,
}

/// What the clients of a socket may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Everything,
    QuestionsOnly,
}

/// The running listener.
#[derive(Debug)]
pub(crate) struct Admin {
    /// As the command line has it.
    address: String,
    /// For the successor.
    socket: OwnedFd,
    /// The file of a unix socket.
    path: Option<PathBuf>,
    /// Closing it ends the thread.
    stop: io::PipeWriter,
    thread: JoinHandle<()>,
}

/// A bound socket.
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Starts the listener: `unix:PATH` or a loopback `ADDRESS:PORT`, or what a predecessor left of the same address.
///
/// # Errors
/// An address that is not loopback, one that somebody else has, or what bind says.
pub(crate) fn start(
    address: &str,
    inherited: Option<(String, OwnedFd)>,
    sources: Sources,
) -> io::Result<Admin> {
    let path = address.strip_prefix("unix:").map(PathBuf::from);
    let inherited = inherited.filter(|(theirs, _)| theirs == address).map(|(_, socket)| socket);
    let socket = match (&path, inherited) {
        (Some(_), Some(fd)) => Socket::Unix(fd.into()),
        (None, Some(fd)) => Socket::Tcp(fd.into()),
        (Some(path), None) => Socket::Unix(unix_socket::listen(path, Live::Refuse)?),
        (None, None) => Socket::Tcp(listen_tcp(address)?),
    };
    let (woken, stop) = io::pipe()?;
    let (twin, thread) = match socket {
        Socket::Unix(listener) => {
            oplog::info(&format!("admin listener on {address}"));
            listener.set_nonblocking(true)?;
            let twin = listener.as_fd().try_clone_to_owned()?;
            let limit = |stream: &std::os::unix::net::UnixStream| {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
                stream.set_write_timeout(Some(CLIENT_TIMEOUT))
            };
            let serve = move || {
                serve_each(
                    (&listener, Reach::Everything),
                    &woken,
                    &sources,
                    |l| l.accept().map(|(s, _)| s),
                    limit,
                )
            };
            (twin, spawn(serve)?)
        }
        Socket::Tcp(listener) => {
            oplog::info(&format!("admin listener on {}", listener.local_addr()?));
            listener.set_nonblocking(true)?;
            let twin = listener.as_fd().try_clone_to_owned()?;
            let limit = |stream: &std::net::TcpStream| {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
                stream.set_write_timeout(Some(CLIENT_TIMEOUT))
            };
            let serve = move || {
                serve_each(
                    (&listener, Reach::QuestionsOnly),
                    &woken,
                    &sources,
                    |l| l.accept().map(|(s, _)| s),
                    limit,
                )
            };
            (twin, spawn(serve)?)
        }
    };
    Ok(Admin { address: address.to_owned(), socket: twin, path, stop, thread })
}

fn listen_tcp(address: &str) -> io::Result<TcpListener> {
    let wanted: SocketAddr =
        address.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    if !wanted.ip().is_loopback() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it must be a loopback address, or unix:PATH",
        ));
    }
    TcpListener::bind(wanted)
}

fn spawn(serve: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("admin".to_owned()).spawn(serve)
}

impl Admin {
    /// What a successor needs to go on at the same address.
    ///
    /// # Errors
    /// When descriptors have run out.
    pub(crate) fn bequest(&self) -> io::Result<(String, OwnedFd)> {
        Ok((self.address.clone(), self.socket.try_clone()?))
    }

    /// Stops accepting: a successor answers at the address.
    pub(crate) fn hand_on(self) {
        drop((self.stop, self.socket));
        // A panic there leaves nothing that is still of use.
        match self.thread.join() {
            Ok(()) | Err(_) => {}
        }
    }

    /// Stops accepting and removes the socket's file.
    pub(crate) fn end(self) {
        let path = self.path.clone();
        self.hand_on();
        remove(path.as_deref());
    }
}

fn remove(path: Option<&Path>) {
    if let Some(path) = path
        && let Err(error) = unix_socket::remove(path)
    {
        oplog::warn(&format!("{}: {error}", path.display()));
    }
}

/// Accepts until the other end of `woken` is closed.
fn serve_each<L: AsFd, S: Read + Write + Send + 'static>(
    (listener, reach): (&L, Reach),
    woken: &io::PipeReader,
    sources: &Sources,
    accept: impl Fn(&L) -> io::Result<S>,
    limit: impl Fn(&S) -> io::Result<()>,
) {
    let clients = Arc::new(AtomicUsize::new(0));
    loop {
        let mut waits = [PollFd::new(listener, PollFlags::IN), PollFd::new(woken, PollFlags::IN)];
        // An interrupted wait is tried again; nothing else can fail here.
        let ready = poll(&mut waits, None);
        let [_, stopped] = &waits;
        if ready.is_ok() && !stopped.revents().is_empty() {
            return;
        }
        match accept(listener) {
            Ok(stream) => serve_one((stream, reach), sources, &clients, &limit),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            // Out of descriptors: the client waits in the queue meanwhile.
            Err(_) => std::thread::park_timeout(PAUSE),
        }
    }
}

fn serve_one<S: Read + Write + Send + 'static>(
    (stream, reach): (S, Reach),
    sources: &Sources,
    clients: &Arc<AtomicUsize>,
    limit: impl Fn(&S) -> io::Result<()>,
) {
    if clients.fetch_add(1, Ordering::Relaxed) >= CLIENTS_MAX || limit(&stream).is_err() {
        clients.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let (sources, count) = (sources.clone(), Arc::clone(clients));
    let spawned = std::thread::Builder::new().name("admin-client".to_owned()).spawn(move || {
        // The client's side of a failure is the client's to see.
        match answer(stream, reach, &sources) {
            Ok(()) | Err(_) => {}
        }
        count.fetch_sub(1, Ordering::Relaxed);
    });
    if spawned.is_err() {
        clients.fetch_sub(1, Ordering::Relaxed);
    }
}

fn answer(mut stream: impl Read + Write, reach: Reach, sources: &Sources) -> io::Result<()> {
    let head = read_head(&mut stream)?;
    let line = head.split(|byte| *byte == b'\r' || *byte == b'\n').next().unwrap_or(&[]);
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_ascii_whitespace();
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let page = match (method, change::action_of(path)) {
        ("GET", None) => pages::page(path, sources),
        ("POST", Some(action)) => match reach {
            Reach::Everything => change::endpoint(action, query, sources),
            Reach::QuestionsOnly => {
                pages::Page::text("403 Forbidden", "ask on the unix socket: --admin unix:PATH\n")
            }
        },
        (_, Some(_)) => pages::Page::text("405 Method Not Allowed", "POST only\n"),
        (_, None) => pages::Page::text("405 Method Not Allowed", "GET only\n"),
    };
    let head = format!(
        "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        page.status,
        page.content_type,
        page.body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(&page.body)
}

/// Reads up to the blank line. The time is for the whole of it: one byte now and then does not keep a thread.
fn read_head(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let until = Instant::now() + CLIENT_TIMEOUT;
    let mut head = Vec::new();
    let mut part = [0; 1024];
    loop {
        let got = stream.read(&mut part)?;
        let Some(bytes) = part.get(..got).filter(|bytes| !bytes.is_empty()) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        head.extend_from_slice(bytes);
        if head.windows(4).any(|end| end == b"\r\n\r\n") || head.windows(2).any(|end| end == b"\n\n") {
            return Ok(head);
        }
        if head.len() > REQUEST_BYTES_MAX || Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}
