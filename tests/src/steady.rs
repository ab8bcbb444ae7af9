//! Well-behaved clients at a fixed rate, whose latency tells what an attack does to others: requests start when they
//! are due, late ones count from when they were due (no coordinated omission).
//!
//! Plain threads with blocking sockets: a timer of theirs is late by tens of microseconds, an asynchronous runtime's
//! by a millisecond.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::wait::{PATIENCE, pause};

/// Latencies since the last look, and what went wrong.
#[derive(Debug, Default)]
struct Seen {
    latencies: Vec<Duration>,
    failures: Vec<String>,
}

/// Clients at work until dropped.
#[derive(Debug)]
pub struct Steady {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

/// What clients saw in a while.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    pub requests: usize,
    pub p50: Duration,
    pub p99: Duration,
    pub failures: Vec<String>,
}

impl Window {
    fn of(Seen { mut latencies, failures }: Seen) -> Self {
        latencies.sort_unstable();
        let share = |part: usize| latencies.get(latencies.len() * part / 100).copied().unwrap_or_default();
        Self { requests: latencies.len(), p50: share(50), p99: share(99), failures }
    }
}

impl Steady {
    /// Starts `clients` connections that ask for `/` `rate` times a second together.
    #[must_use]
    pub fn start(address: SocketAddr, clients: u32, rate: u32) -> Self {
        Self::asking("/", address, clients, rate)
    }

    /// The same for another path.
    #[must_use]
    pub fn asking(path: &'static str, address: SocketAddr, clients: u32, rate: u32) -> Self {
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let gap = Duration::from_secs(u64::from(clients)) / rate;
        let threads = (0..clients)
            .map(|number| {
                let (seen, stop) = (Arc::clone(&seen), Arc::clone(&stop));
                std::thread::spawn(move || {
                    let offset = gap * number / clients;
                    ask((path, address), offset, gap, &seen, &stop);
                })
            })
            .collect();
        Self { seen, stop, threads }
    }

    /// Lets `length` pass and says what the clients saw in it.
    #[must_use]
    pub fn window(&self, length: Duration) -> Window {
        let [window] = Self::windows([self], length);
        window
    }

    /// The same of several, of the same while.
    #[must_use]
    pub fn windows<const N: usize>(all: [&Self; N], length: Duration) -> [Window; N] {
        for steady in all {
            drop(steady.take());
        }
        pause(length);
        all.map(|steady| Window::of(steady.take()))
    }

    /// The calmest of some windows, by p99, with the requests and failures of all: other tests run on the same cores, and
    /// what a rule of the proxy's does to its clients it does in every window.
    #[must_use]
    pub fn calmest(&self, windows: usize, length: Duration) -> Window {
        let mut calmest = self.window(length);
        for _ in 1..windows {
            let Window { requests, p50, p99, failures } = self.window(length);
            calmest.requests += requests;
            calmest.failures.extend(failures);
            if p99 < calmest.p99 {
                (calmest.p50, calmest.p99) = (p50, p99);
            }
        }
        calmest
    }

    fn take(&self) -> Seen {
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Steady {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                crate::note("a steady client panicked");
            }
        }
    }
}

fn ask(
    (path, address): (&str, SocketAddr),
    offset: Duration,
    gap: Duration,
    seen: &Mutex<Seen>,
    stop: &AtomicBool,
) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let mut due = Instant::now() + offset;
    let mut kept = None;
    while !stop.load(Ordering::Acquire) {
        pause(due.saturating_duration_since(Instant::now()));
        let result = connection(kept.take(), address).and_then(|mut stream| {
            exchange(&mut stream, &request)?;
            Ok(stream)
        });
        let took = due.elapsed();
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(stream) => {
                kept = Some(stream);
                seen.latencies.push(took);
            }
            Err(error) => seen.failures.push(error.to_string()),
        }
        drop(seen);
        due += gap;
    }
}

fn connection(kept: Option<TcpStream>, address: SocketAddr) -> std::io::Result<TcpStream> {
    if let Some(stream) = kept {
        return Ok(stream);
    }
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// One request whose answer has a length and fits one buffer.
fn exchange(stream: &mut TcpStream, request: &str) -> std::io::Result<()> {
    stream.write_all(request.as_bytes())?;
    let mut answer = [0; 4096];
    let mut filled = 0;
    loop {
        let count = stream.read(&mut answer[filled..])?;
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        filled += count;
        let Some(head) = crate::message::end_of(b"\r\n\r\n", &answer[..filled]) else { continue };
        let text = String::from_utf8_lossy(&answer[..head]).to_ascii_lowercase();
        if !text.starts_with("http/1.1 200") {
            return Err(std::io::Error::other(text));
        }
        let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length: usize = length.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        if filled >= head + length {
            return Ok(());
        }
    }
}

/// The middle one of some durations.
#[must_use]
pub fn median(values: impl IntoIterator<Item = Duration>) -> Duration {
    let mut values: Vec<Duration> = values.into_iter().collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Gives the calling thread, and all that it starts from now on, a nice value of its own: an attacker on the same machine
/// must not win by the scheduler, and what is measured must not be a wait for a processor. Not a real-time class: who is
/// kept busy in one is stopped for 50 ms in each second.
pub fn set_nice(nice: i32) {
    let own = rustix::thread::gettid();
    if let Err(error) = rustix::process::setpriority_process(Some(own), nice) {
        crate::note(&format!("priority stays, figures are rougher: {error}"));
    }
}
