//! Upstreams that do exactly what a test says, byte by byte: [`Origin::scripted`], and [`echo`], which answers every
//! request with a JSON description of what arrived. Every byte received is kept per connection, and what a strict
//! reader would refuse is kept as a fault: nothing illegal may ever reach an upstream.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use socket2::SockRef;

use crate::message::{self, BodyEnd, FieldLines};
use crate::procfs;
use crate::wait::{PATIENCE, wait_for, wait_until};

/// What all connections of an origin leave behind.
#[derive(Debug, Default)]
struct Record {
    received: BTreeMap<usize, Vec<u8>>,
    open: BTreeMap<usize, TcpStream>,
    faults: Vec<String>,
    requests: Vec<Request>,
    accepted: usize,
}

#[derive(Debug, Default)]
struct Shared {
    record: Mutex<Record>,
    stopping: AtomicBool,
}

impl Shared {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A listening upstream. Dropping it closes all its connections.
#[derive(Debug)]
pub struct Origin {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<std::thread::JoinHandle<()>>,
}

/// A request as it reached the origin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    pub connection: usize,
    pub method: String,
    pub target: String,
    pub version: String,
    pub fields: FieldLines,
    pub body: Vec<u8>,
    pub trailers: FieldLines,
}

impl Request {
    /// First value of a field, name in any case.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        message::first(&self.fields, name)
    }

    /// What [`echo`] says about this request.
    #[must_use]
    pub fn describe(&self) -> String {
        json!({
            "connection": self.connection,
            "method": self.method,
            "target": self.target,
            "version": self.version,
            "fields": self.fields,
            "body_bytes": self.body.len(),
            "body_hash": message::hash(&self.body),
            "trailers": self.trailers,
        })
        .to_string()
    }
}

impl Origin {
    /// Listens on a free port of 127.0.0.1 and runs `script` in a thread for each connection.
    #[must_use]
    pub fn scripted(script: impl Fn(&mut OriginConn) + Send + Sync + 'static) -> Self {
        Self::scripted_at(SocketAddr::from(([127, 0, 0, 1], 0)), script)
    }

    /// As [`Self::scripted`], on a given address.
    ///
    /// # Panics
    /// When the address is taken.
    #[must_use]
    pub fn scripted_at(at: SocketAddr, script: impl Fn(&mut OriginConn) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(at).unwrap_or_else(|error| panic!("listen on {at}: {error}"));
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared::default());
        let script = Arc::new(script);
        let acceptor = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    if shared.stopping.load(Ordering::Acquire) {
                        break;
                    }
                    let script = Arc::clone(&script);
                    let mut connection = OriginConn::new(stream, Arc::clone(&shared));
                    std::thread::spawn(move || script(&mut connection));
                }
            }
        });
        Self { address, shared, acceptor: Some(acceptor) }
    }

    /// An origin that answers each request with the same bytes and keeps the connection.
    #[must_use]
    pub fn replying(reply: impl Into<Vec<u8>>) -> Self {
        let reply = reply.into();
        Self::scripted(move |connection| while connection.request().is_some() && connection.write(&reply) {})
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections accepted so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.record().accepted
    }

    /// Connections that are open now.
    #[must_use]
    pub fn connections_open(&self) -> usize {
        self.shared.record().open.len()
    }

    /// All bytes received, by connection.
    #[must_use]
    pub fn received(&self) -> Vec<Vec<u8>> {
        self.shared.record().received.values().cloned().collect()
    }

    /// All bytes received, as text, for looking whether something leaked.
    #[must_use]
    pub fn received_text(&self) -> String {
        self.received().iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect()
    }

    /// Requests that were read whole.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.shared.record().requests.clone()
    }

    /// What a strict reader refused.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        self.shared.record().faults.clone()
    }

    /// Waits for the `count`-th whole request and returns it.
    #[must_use]
    #[track_caller]
    pub fn wait_request(&self, count: usize) -> Request {
        wait_for("a request at the origin", PATIENCE, || {
            self.shared.record().requests.get(count.checked_sub(1)?).cloned()
        })
    }

    /// Waits until all connections are closed and their other ends have heard of it: a close is on its way for a moment,
    /// also on loopback.
    ///
    /// # Panics
    /// When they are not in time, and for an origin with an IPv6 address.
    #[track_caller]
    pub fn wait_closed(&self) {
        let SocketAddr::V4(address) = self.address else { panic!("{} is not of IPv4", self.address) };
        // The kernel's table is not read at one moment, so that a connection may be missed.
        let has_gone = || self.connections_open() == 0 && procfs::established_to(address) == 0;
        wait_until("the connections are closed", PATIENCE, || has_gone() && has_gone());
    }

    /// Closes every open connection with FIN and goes on listening.
    pub fn close_connections(&self) {
        for stream in self.shared.record().open.values() {
            // The peer may have closed first.
            drop(stream.shutdown(Shutdown::Both));
        }
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.close_connections();
        // Wakes the acceptor, which sees the mark and ends.
        if TcpStream::connect(self.address).is_ok()
            && let Some(acceptor) = self.acceptor.take()
            && acceptor.join().is_err()
        {
            crate::note("an origin's acceptor panicked");
        }
    }
}

/// One connection to an origin, as its script sees it.
#[derive(Debug)]
pub struct OriginConn {
    /// 0 for the first connection of the origin.
    pub index: usize,
    stream: TcpStream,
    buffer: Vec<u8>,
    shared: Arc<Shared>,
    /// Behind `stream`, which is dropped first.
    entry: Entry,
}

/// A connection among the record's open ones. The record's descriptor is the last to go, with the entry: what is not
/// open any more has been closed.
#[derive(Debug)]
struct Entry {
    index: usize,
    shared: Arc<Shared>,
}

impl OriginConn {
    fn new(stream: TcpStream, shared: Arc<Shared>) -> Self {
        stream.set_nodelay(true).expect("a TCP socket");
        let copy = stream.try_clone().expect("a descriptor is free");
        let mut record = shared.record();
        let index = record.accepted;
        record.accepted += 1;
        record.received.insert(index, Vec::new());
        record.open.insert(index, copy);
        drop(record);
        let entry = Entry { index, shared: Arc::clone(&shared) };
        Self { index, stream, buffer: Vec::new(), shared, entry }
    }

    /// Reads a whole request. None at the end of the connection and when the request is illegal, which is also
    /// kept as a fault of the origin.
    pub fn request(&mut self) -> Option<Request> {
        let mut request = self.head()?;
        let end = self.judged(message::request_body_end(&request.fields))?;
        match end {
            BodyEnd::Length(length) => request.body = self.take(length)?,
            BodyEnd::Chunked => self.chunks(&mut request)?,
            BodyEnd::Close => return None,
        }
        self.shared.record().requests.push(request.clone());
        Some(request)
    }

    /// Reads a request head and leaves the body unread.
    pub fn head(&mut self) -> Option<Request> {
        let bytes = self.take_through(b"\r\n\r\n")?;
        let head = self.judged(message::parse_head(&bytes))?;
        let words: Vec<&str> = head.start.split(' ').collect();
        let [method, target, version] = words.as_slice() else {
            self.fault(format!("request line {:?}", head.start));
            return None;
        };
        let hosts = message::all(&head.fields, "host");
        if hosts.len() != 1 || hosts.iter().any(|host| host.is_empty()) {
            self.fault(format!("not one host: {:?}", head.fields));
            return None;
        }
        Some(Request {
            connection: self.index,
            method: (*method).to_owned(),
            target: (*target).to_owned(),
            version: (*version).to_owned(),
            fields: head.fields,
            ..Request::default()
        })
    }

    fn chunks(&mut self, request: &mut Request) -> Option<()> {
        loop {
            let line = self.take_through(b"\r\n")?;
            let digits = String::from_utf8_lossy(&line[..line.len() - 2]).into_owned();
            let size = self
                .judged(usize::from_str_radix(&digits, 16).map_err(|e| format!("chunk {digits:?}: {e}")))?;
            if size == 0 {
                break;
            }
            request.body.extend(self.take(size)?);
            let end = self.take(2)?;
            self.judged(if end == b"\r\n" { Ok(()) } else { Err(format!("chunk ends with {end:?}")) })?;
        }
        let mut block = b"trailers\r\n".to_vec();
        loop {
            let line = self.take_through(b"\r\n")?;
            block.extend_from_slice(&line);
            if line == b"\r\n" {
                request.trailers = self.judged(message::parse_head(&block))?.fields;
                return Some(());
            }
        }
    }

    fn judged<T>(&self, result: Result<T, String>) -> Option<T> {
        result.map_err(|fault| self.fault(fault)).ok()
    }

    fn fault(&self, fault: String) {
        self.shared.record().faults.push(format!("connection {}: {fault}", self.index));
    }

    /// Writes bytes in one write. False when the peer is gone.
    pub fn write(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    /// A 200 with a JSON description of `request`. False when the peer is gone.
    pub fn echo(&mut self, request: &Request) -> bool {
        let body = request.describe();
        let length = body.len();
        let body = if request.method == "HEAD" { "" } else { body.as_str() };
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
        self.write(format!("{head}Content-Length: {length}\r\n\r\n{body}"))
    }

    /// Bytes up to and including `mark`; None when the connection ends before.
    pub fn take_through(&mut self, mark: &[u8]) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = message::end_of(mark, &self.buffer) {
                return Some(self.buffer.drain(..end).collect());
            }
            self.read_more()?;
        }
    }

    /// Exactly `count` bytes; None when the connection ends before.
    pub fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < count {
            self.read_more()?;
        }
        Some(self.buffer.drain(..count).collect())
    }

    /// All bytes up to the end of the connection.
    pub fn rest(&mut self) -> Vec<u8> {
        while self.read_more().is_some() {}
        std::mem::take(&mut self.buffer)
    }

    /// Waits until the peer closes or resets the connection, dropping what it sends.
    pub fn wait_close(&mut self) {
        drop(self.rest());
    }

    /// True when nothing came for `time` and the connection is still open.
    pub fn quiet_for(&mut self, time: Duration) -> bool {
        self.stream.set_read_timeout(Some(time)).expect("a positive time limit");
        let quiet = matches!(self.read_step(), Err(error)
            if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
        self.stream.set_read_timeout(None).expect("no time limit");
        quiet
    }

    fn read_more(&mut self) -> Option<()> {
        matches!(self.read_step(), Ok(count) if count > 0).then_some(())
    }

    fn read_step(&mut self) -> std::io::Result<usize> {
        let mut block = vec![0; 64 * 1024];
        let count = self.stream.read(&mut block)?;
        self.buffer.extend_from_slice(&block[..count]);
        let mut record = self.shared.record();
        if let Some(received) = record.received.get_mut(&self.index) {
            received.extend_from_slice(&block[..count]);
        }
        Ok(count)
    }

    /// FIN after what was written; reading goes on.
    pub fn finish_sending(&mut self) {
        // The peer may have reset the connection already.
        drop(self.stream.shutdown(Shutdown::Write));
    }

    /// Closes with RST. The connection is dead afterwards.
    pub fn reset(&mut self) {
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).expect("a TCP socket");
        let idle = TcpListener::bind("127.0.0.1:0").and_then(|listener| {
            let other = TcpStream::connect(listener.local_addr()?)?;
            other.shutdown(Shutdown::Both)?;
            Ok(other)
        });
        // The last descriptor's close sends the RST: ours goes first, the record's with its entry.
        self.stream = idle.expect("a free port");
        self.entry.close();
    }

    /// The socket, for other protocols.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

impl Entry {
    fn close(&self) {
        self.shared.record().open.remove(&self.index);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.close();
    }
}

/// An origin that answers each request with a JSON description of what arrived.
#[must_use]
pub fn echo() -> Origin {
    Origin::scripted(|connection| {
        while let Some(request) = connection.request() {
            if !connection.echo(&request) {
                break;
            }
        }
    })
}
