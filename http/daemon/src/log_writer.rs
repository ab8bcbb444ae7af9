//! The thread that writes access log lines: to standard output, to files that are opened again on a signal, or to
//! syslog as datagrams (RFC 5424). A target that fails is retried with the next batch; what was lost is counted.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::sync::mpsc::{SyncSender, sync_channel};

use core_runtime::mailbox::{Mailbox, Sender, mailbox};
use http_proxy::log::LogBatch;
use http_proxy::snapshot::{LogSink, LogTarget, SyslogAddress};

use crate::oplog;

/// What the writer is told beside lines.
#[derive(Debug)]
pub(crate) enum Order {
    Lines(LogBatch),
    /// Sinks by number; new ones are added at the end.
    Sinks(Vec<LogSink>),
    Reopen,
}

/// Batches that may wait: beyond it cores drop and count.
const BATCHES_MAX: usize = 1024;
/// Orders between the feed and the writer; the feed waits when it is full.
const ORDERS_MAX: usize = 16;

/// Starts the writer; the handles feed it.
pub(crate) fn start() -> io::Result<(Sender<LogBatch>, SyncSender<Order>)> {
    let (batches, inbox) = mailbox::<LogBatch>(BATCHES_MAX)?;
    let (orders, receiver) = sync_channel(ORDERS_MAX);
    let forward = orders.clone();
    std::thread::Builder::new().name("log-feed".to_owned()).spawn(move || feed(&inbox, &forward))?;
    std::thread::Builder::new().name("log-writer".to_owned()).spawn(move || {
        let mut targets: Vec<Target> = Vec::new();
        while let Ok(order) = receiver.recv() {
            obey(order, &mut targets);
        }
    })?;
    Ok((batches, orders))
}

/// One queue in front of the writer keeps batches and orders in their sequence.
fn feed(inbox: &Mailbox<LogBatch>, orders: &SyncSender<Order>) {
    while let Ok(batch) = inbox.receive_or_closed() {
        if orders.send(Order::Lines(batch)).is_err() {
            return;
        }
    }
}

fn obey(order: Order, targets: &mut Vec<Target>) {
    match order {
        Order::Lines(batch) => {
            if let Some(target) = targets.get_mut(batch.sink) {
                target.write(&batch);
            }
        }
        Order::Sinks(sinks) => {
            let known = targets.len();
            targets.extend(sinks.into_iter().skip(known).map(Target::new));
        }
        Order::Reopen => targets.iter_mut().for_each(|target| target.open = None),
    }
}

struct Target {
    sink: LogSink,
    open: Option<Open>,
    failing: bool,
}

enum Open {
    Stdout,
    File(File),
    Unix(UnixDatagram),
    Udp(UdpSocket),
}

impl Target {
    fn new(sink: LogSink) -> Self {
        Self { sink, open: None, failing: false }
    }

    fn write(&mut self, batch: &LogBatch) {
        let result = self.try_write(&batch.lines);
        match (&result, self.failing) {
            (Err(error), false) => oplog::error(&format!("access log {:?}: {error}; lines are lost", self.sink.target)),
            (Ok(()), true) => oplog::info(&format!("access log {:?}: works again", self.sink.target)),
            _ => {}
        }
        self.failing = result.is_err();
        if result.is_err() {
            self.open = None;
        }
    }

    fn try_write(&mut self, lines: &[u8]) -> io::Result<()> {
        let open = match &mut self.open {
            Some(open) => open,
            None => self.open.insert(open(&self.sink.target)?),
        };
        match open {
            Open::Stdout => io::stdout().write_all(lines),
            Open::File(file) => file.write_all(lines),
            Open::Unix(socket) => each_line(lines, &self.sink.target, |packet| socket.send(packet)),
            Open::Udp(socket) => each_line(lines, &self.sink.target, |packet| socket.send(packet)),
        }
    }
}

fn open(target: &LogTarget) -> io::Result<Open> {
    match target {
        LogTarget::Stdout => Ok(Open::Stdout),
        LogTarget::File(path) => OpenOptions::new().create(true).append(true).open(path).map(Open::File),
        LogTarget::Syslog { address: SyslogAddress::Unix(path), .. } => {
            let socket = UnixDatagram::unbound()?;
            socket.connect(path)?;
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
fn each_line(lines: &[u8], target: &LogTarget, mut send: impl FnMut(&[u8]) -> io::Result<usize>) -> io::Result<()> {
    let LogTarget::Syslog { tag, .. } = target else { return Ok(()) };
    let header = format!("<134>1 - - {tag} {} - - ", std::process::id());
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let mut packet = header.clone().into_bytes();
        packet.extend_from_slice(line);
        send(&packet)?;
    }
    Ok(())
}

/// Gives the writer an order; it outlives everybody who gives orders.
pub(crate) fn order(orders: &SyncSender<Order>, order: Order) {
    if orders.send(order).is_err() {
        oplog::error("the log writer has ended; access log lines are lost");
    }
}

