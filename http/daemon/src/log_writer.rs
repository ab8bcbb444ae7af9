//! The thread that writes access log lines: to standard output, to files that are opened again on a signal, or to
//! syslog as datagrams (RFC 5424).
//!
//! Invariants: lines of one core and sink keep their order, and a batch is never split by another; the main thread
//! never waits for a slow target; what a target does not take is counted, here or, when the queue is full, by the
//! core; a line that was torn by an error is ended before the next one. At the end everything that cores have
//! handed over is written first.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use core_runtime::mailbox::{Mailbox, SendError, Sender, mailbox};
use http_proxy::log::LogBatch;
use http_proxy::snapshot::{LogSink, LogTarget, SyslogAddress};

use crate::oplog;

/// Batches that may wait: beyond it cores drop and count.
const BATCHES_MAX: usize = 1024;
/// Sink numbers of batches without rows: look at the orders, or end.
const WAKE: usize = 0;
const END: usize = usize::MAX;
/// How long one datagram may wait for a full receiver.
const DATAGRAM_TIMEOUT: Duration = Duration::from_secs(1);

/// The main thread's end.
#[derive(Debug)]
pub(crate) struct LogWriter {
    wake: Sender<LogBatch>,
    shared: Arc<Shared>,
    /// Closed by the end of the thread.
    alive: Receiver<()>,
}

#[derive(Debug, Default)]
struct Shared {
    orders: Mutex<Orders>,
    /// Rows that no target took.
    lost: AtomicU64,
}

/// What the writer looks at before each batch.
#[derive(Clone, Debug, Default)]
struct Orders {
    /// By number; new ones are added at the end.
    sinks: Vec<LogSink>,
    /// Rises with each order to open files again.
    reopened: u64,
}

/// Starts the writer; cores send batches to the first value.
///
/// # Errors
/// When the thread or its queue cannot be made.
pub(crate) fn start() -> io::Result<(Sender<LogBatch>, LogWriter)> {
    let (batches, inbox) = mailbox::<LogBatch>(BATCHES_MAX)?;
    let shared = Arc::new(Shared::default());
    let (living, alive) = sync_channel(1);
    let theirs = Arc::clone(&shared);
    std::thread::Builder::new()
        .name("log-writer".to_owned())
        .spawn(move || write_all(&inbox, &theirs, living))?;
    let writer = LogWriter { wake: batches.clone(), shared, alive };
    Ok((batches, writer))
}

impl LogWriter {
    /// Sinks by number, before any core hears of them.
    pub(crate) fn set_sinks(&self, sinks: &[LogSink]) {
        self.order(|orders| sinks.clone_into(&mut orders.sinks));
    }

    /// Opens files anew: they have been moved away.
    pub(crate) fn reopen(&self) {
        self.order(|orders| orders.reopened += 1);
    }

    /// Rows that were handed over and that no target took.
    pub(crate) fn rows_lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.shared.orders.lock().unwrap_or_else(PoisonError::into_inner));
        // A full queue needs no wake-up: the orders are seen before the next batch.
        self.wake(WAKE);
    }

    /// Whether the queue took it, or nobody reads it any more.
    fn wake(&self, sink: usize) -> bool {
        let nothing = LogBatch { sink, lines: Vec::new(), rows: 0 };
        matches!(self.wake.send(nothing), Ok(()) | Err(SendError::Closed(_)))
    }

    /// Waits until all that the cores handed over is written. False when a target keeps the writer busy for longer
    /// than `patience`.
    pub(crate) fn finish(self, patience: Duration) -> bool {
        const LOOK_AGAIN: Duration = Duration::from_millis(20);
        let until = Instant::now() + patience;
        loop {
            let is_told = self.wake(END);
            let wait = if is_told { until.saturating_duration_since(Instant::now()) } else { LOOK_AGAIN };
            match self.alive.recv_timeout(wait) {
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return true,
                Err(RecvTimeoutError::Timeout) if Instant::now() >= until => return false,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

fn write_all(inbox: &Mailbox<LogBatch>, shared: &Shared, _living: SyncSender<()>) {
    let mut targets: Vec<Target> = Vec::new();
    let mut reopened = 0;
    while let Ok(batch) = inbox.receive_or_closed() {
        let orders = shared.orders.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let known = targets.len();
        targets.extend(orders.sinks.into_iter().skip(known).map(Target::new));
        if orders.reopened != reopened {
            reopened = orders.reopened;
            targets.iter_mut().for_each(Target::reopen);
        }
        if batch.rows > 0 {
            let is_written = targets.get_mut(batch.sink).is_some_and(|target| target.write(&batch));
            if !is_written {
                shared.lost.fetch_add(batch.rows, Ordering::Relaxed);
            }
        } else if batch.sink == END {
            // Every core has ended, so their batches stood before this one in the queue.
            return;
        }
    }
}

struct Target {
    sink: LogSink,
    open: Option<Open>,
    is_failing: bool,
    /// The last bytes that were written are no whole line.
    is_torn: bool,
}

enum Open {
    File(File),
    Unix(UnixDatagram),
    Udp(UdpSocket),
}

impl Target {
    fn new(sink: LogSink) -> Self {
        Self { sink, open: None, is_failing: false, is_torn: false }
    }

    /// A file appears at once, so that whoever moved the old one sees that the signal was heard.
    fn reopen(&mut self) {
        let result = open(&self.sink.target).map(|open| self.open = Some(open));
        self.is_torn &= result.is_err();
        self.note(&result);
    }

    /// Whether the batch was taken. A target is opened when it is first written to, and once more when it fails.
    fn write(&mut self, batch: &LogBatch) -> bool {
        let mut rest = batch.lines.as_slice();
        let mut result = self.end_torn_line().and_then(|()| self.try_write(&mut rest));
        if result.is_err() && !self.is_failing {
            self.open = None;
            // Goes on where the first try ended, in the middle of a line or not.
            result = self.try_write(&mut rest);
        }
        if result.is_err() {
            let written = batch.lines.len() - rest.len();
            let last = written.checked_sub(1).and_then(|at| batch.lines.get(at));
            self.is_torn = last.map_or(self.is_torn, |byte| *byte != b'\n');
        }
        self.note(&result);
        result.is_ok()
    }

    fn end_torn_line(&mut self) -> io::Result<()> {
        if self.is_torn {
            self.try_write(&mut &b"\n"[..])?;
            self.is_torn = false;
        }
        Ok(())
    }

    fn note(&mut self, result: &io::Result<()>) {
        let target = &self.sink.target;
        match (result, self.is_failing) {
            (Err(error), false) => oplog::error(&format!("access log {target:?}: {error}; lines are lost")),
            (Ok(()), true) => oplog::info(&format!("access log {target:?}: works again")),
            _ => {}
        }
        self.is_failing = result.is_err();
        if result.is_err() {
            self.open = None;
        }
    }

    /// Writes `rest` and shortens it by what was written.
    fn try_write(&mut self, rest: &mut &[u8]) -> io::Result<()> {
        let open = match &mut self.open {
            Some(open) => open,
            None => self.open.insert(open(&self.sink.target)?),
        };
        match open {
            Open::File(file) => write_bytes(file, rest),
            Open::Unix(socket) => each_line(rest, &self.sink.target, |packet| socket.send(packet)),
            Open::Udp(socket) => each_line(rest, &self.sink.target, |packet| socket.send(packet)),
        }
    }
}

/// As `write_all`, but `rest` tells how far it came.
fn write_bytes(file: &mut impl Write, rest: &mut &[u8]) -> io::Result<()> {
    while !rest.is_empty() {
        match file.write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => *rest = rest.get(count..).unwrap_or(&[]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn open(target: &LogTarget) -> io::Result<Open> {
    match target {
        // Not `io::Stdout`: its buffer would keep a part of the last line, and it hides a closed descriptor.
        LogTarget::Stdout => Ok(Open::File(File::from(io::stdout().as_fd().try_clone_to_owned()?))),
        LogTarget::File(path) => OpenOptions::new().create(true).append(true).open(path).map(Open::File),
        LogTarget::Syslog { address: SyslogAddress::Unix(path), .. } => {
            let socket = UnixDatagram::unbound()?;
            socket.connect(path)?;
            socket.set_write_timeout(Some(DATAGRAM_TIMEOUT))?;
            Ok(Open::Unix(socket))
        }
        LogTarget::Syslog { address: SyslogAddress::Udp(address), .. } => {
            let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let any: SocketAddr = any.parse().map_err(io::Error::other)?;
            let socket = UdpSocket::bind(any)?;
            socket.connect(address)?;
            Ok(Open::Udp(socket))
        }
    }
}

/// One RFC 5424 message per line: facility local0, severity informational.
fn each_line(
    rest: &mut &[u8],
    target: &LogTarget,
    mut send: impl FnMut(&[u8]) -> io::Result<usize>,
) -> io::Result<()> {
    let LogTarget::Syslog { tag, .. } = target else { return Ok(()) };
    let header = format!("<134>1 - - {tag} {} - - ", std::process::id());
    let mut packet = Vec::new();
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let (line, after) = rest.split_at(end + 1);
        packet.clear();
        packet.extend_from_slice(header.as_bytes());
        packet.extend_from_slice(line.strip_suffix(b"\n").unwrap_or(line));
        send(&packet)?;
        *rest = after;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn file_sink(path: &Path) -> LogSink {
        LogSink { target: LogTarget::File(path.display().to_string()), template: None }
    }

    fn batch(sink: usize, lines: &str) -> LogBatch {
        let rows = u64::try_from(lines.lines().count()).expect("a few");
        LogBatch { sink, lines: lines.as_bytes().to_vec(), rows }
    }

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("shard-log-{}-{name}", std::process::id()))
    }

    #[test]
    fn the_end_waits_for_everything_that_was_handed_over() {
        let path = path("end");
        let (batches, writer) = start().expect("a thread");
        writer.set_sinks(&[file_sink(&path)]);
        let expected: String = (0..500).map(|n| format!("line {n}\n")).collect();
        for n in 0..500 {
            batches.send(batch(0, &format!("line {n}\n"))).expect("room for all");
        }
        // A core that never ends (its queue's end is still there) must not keep the process.
        assert!(writer.finish(PATIENCE));
        assert_eq!(std::fs::read_to_string(&path).expect("a log"), expected);
        std::fs::remove_file(&path).expect("removable");
    }

    #[test]
    fn rows_that_no_target_takes_are_counted() {
        let (batches, writer) = start().expect("a thread");
        writer.set_sinks(&[file_sink(Path::new("/nonexistent/access.log"))]);
        batches.send(batch(0, "a\nb\n")).expect("room");
        batches.send(batch(7, "no such sink\n")).expect("room");
        let shared = Arc::clone(&writer.shared);
        assert!(writer.finish(PATIENCE));
        assert_eq!(shared.lost.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_writer_that_is_kept_busy_does_not_keep_the_process() {
        let (batches, writer) = start().expect("a thread");
        // Opening a FIFO for writing waits for a reader, and there is none.
        let path = path("fifo");
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("coreutils");
        assert!(made.success());
        writer.set_sinks(&[file_sink(&path)]);
        batches.send(batch(0, "a\n")).expect("room");
        assert!(!writer.finish(Duration::from_millis(50)));
        let reader = File::open(&path).expect("lets the writer go on");
        drop((reader, batches));
        std::fs::remove_file(&path).expect("removable");
    }

    /// Takes `room` bytes, then fails.
    struct Short {
        taken: Vec<u8>,
        room: usize,
    }

    impl Write for Short {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room).min(3);
            if count == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= count;
            self.taken.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_write_that_fails_half_way_says_how_far_it_came() {
        for room in 0..10 {
            let mut file = Short { taken: Vec::new(), room };
            let mut rest = &b"one\ntwo\n"[..];
            let result = write_bytes(&mut file, &mut rest);
            assert_eq!(result.is_ok(), room >= 8, "{room}");
            assert_eq!(file.taken.len() + rest.len(), 8);
            assert_eq!([file.taken.as_slice(), rest].concat(), b"one\ntwo\n");
        }
    }

    #[test]
    fn a_torn_line_is_ended_before_the_next_one() {
        let path = path("torn");
        let mut target = Target::new(file_sink(&path));
        assert!(target.write(&batch(0, "whole\n")));
        target.is_torn = true;
        assert!(target.write(&batch(0, "next\n")));
        assert!(target.write(&batch(0, "last\n")));
        assert_eq!(std::fs::read_to_string(&path).expect("a log"), "whole\n\nnext\nlast\n");
        std::fs::remove_file(&path).expect("removable");
    }

    #[test]
    fn syslog_sends_a_message_a_line_and_survives_a_restart_of_the_receiver() {
        let path = path("syslog");
        let address = SyslogAddress::Unix(path.display().to_string());
        let sink = LogSink { target: LogTarget::Syslog { address, tag: "shard".to_owned() }, template: None };
        let mut target = Target::new(sink);
        assert!(!target.write(&batch(0, "nobody hears it\n")));
        for round in 0..2 {
            let receiver = UnixDatagram::bind(&path).expect("a socket");
            receiver.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            assert!(target.write(&batch(0, "one\ntwo\n")), "round {round}");
            for expected in ["one", "two"] {
                let mut packet = [0; 256];
                let length = receiver.recv(&mut packet).expect("a message");
                let text = String::from_utf8_lossy(&packet[..length]).into_owned();
                let head = format!("<134>1 - - shard {} - - ", std::process::id());
                assert_eq!(text, format!("{head}{expected}"));
            }
            drop(receiver);
            std::fs::remove_file(&path).expect("removable");
        }
    }
}
