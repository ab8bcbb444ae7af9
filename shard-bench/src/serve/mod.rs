//! A light target on the same reactor: answers every request at once with a body of a given size. For tests, for
//! `just bench-peers` and to see what the generator itself can do.
//!
//! `/bytes/N` answers N bytes, `/1k`, `/64k` and `/1m` these sizes, everything else the default size. HTTP/1.1, HTTP/2
//! with prior knowledge or by ALPN, WebSocket and gRPC echo.

mod h1;
mod h2;
mod websocket;

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::Duration;

use core_runtime::clock::Epoch;
use core_runtime::net::{Accepted, BindOptions, ListeningSocket, TcpStream};
use core_runtime::shard::{self, DriverChoice, ShardConfig};
use core_runtime::{spawn, timer};
use rustc_hash::FxHashMap;
use tls::{
    CertifiedName, ClientAuth, ClientAuthorities, Identity, SecretBytes, ServedNames, ServerContext,
    ServerContextBuilder, Session, TicketKeys, Versions,
};

use crate::h2::frame::PREFACE;
use crate::link::{Got, Link};

/// Bytes of the largest body.
const BODY_BYTES_MAX: usize = 64 << 20;
/// Prepared answers; other sizes are made for each request.
const PREPARED_MAX: usize = 64;

/// What to serve and how.
#[derive(Clone, Debug)]
pub(crate) struct ServePlan {
    pub(crate) listen: SocketAddr,
    pub(crate) body_bytes: usize,
    /// Chain, key, and CAs of client certificates that are then required.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
    pub(crate) client_ca: Option<Vec<u8>>,
    pub(crate) versions: Versions,
    pub(crate) cores: Vec<Option<usize>>,
    pub(crate) driver: DriverChoice,
}

/// What the connections of one core share.
struct Server {
    body_bytes: usize,
    buffer: RefCell<Box<[u8]>>,
    prepared: RefCell<FxHashMap<usize, Rc<[u8]>>>,
    tls: Option<ServerContext>,
}

impl Server {
    /// The size that a path asks for.
    fn size_of(&self, path: &[u8]) -> usize {
        let path = path.split(|byte| *byte == b'?').next().unwrap_or(path);
        let size = match path {
            b"/1k" => 1 << 10,
            b"/64k" => 64 << 10,
            b"/1m" => 1 << 20,
            path => path
                .strip_prefix(b"/bytes/")
                .and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok())
                .unwrap_or(self.body_bytes),
        };
        size.min(BODY_BYTES_MAX)
    }

    /// A whole HTTP/1.1 answer with a body of `size` bytes.
    fn answer(&self, size: usize) -> Rc<[u8]> {
        if let Some(answer) = self.prepared.borrow().get(&size) {
            return Rc::clone(answer);
        }
        let mut bytes = format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n").into_bytes();
        bytes.resize(bytes.len() + size, b'x');
        let answer: Rc<[u8]> = bytes.into();
        let mut prepared = self.prepared.borrow_mut();
        if prepared.len() < PREPARED_MAX {
            prepared.insert(size, Rc::clone(&answer));
        }
        answer
    }
}

/// Binds one socket for each core. The first one's port is everybody's.
///
/// # Errors
/// What the kernel says.
pub(crate) fn bind(plan: &ServePlan) -> io::Result<Vec<ListeningSocket>> {
    let first = ListeningSocket::bind(plan.listen, BindOptions::default())?;
    let addr = first.addr();
    let mut sockets = vec![first];
    for _ in 1..plan.cores.len() {
        sockets.push(ListeningSocket::bind(addr, BindOptions::default())?);
    }
    Ok(sockets)
}

/// Checks the certificate before a thread needs it.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn check(plan: &ServePlan) -> Result<(), String> {
    tls_context(plan).map(drop)
}

fn tls_context(plan: &ServePlan) -> Result<Option<ServerContext>, String> {
    let Some((chain, key)) = &plan.identity else { return Ok(None) };
    let key = SecretBytes::from_slice(key);
    let mut builder = ServerContextBuilder::new();
    builder.versions = plan.versions;
    if let Some(roots_pem) = &plan.client_ca {
        let authorities = ClientAuthorities { roots_pem: roots_pem.clone(), ..ClientAuthorities::default() };
        builder.client_auth = ClientAuth::Required(authorities);
    }
    let identity = Identity { label: "--cert", chain_pem: chain, key_pem: &key };
    let certified = CertifiedName { identity, names: ServedNames::Given(&[]), client_auth: None };
    builder.certificate(&certified).map_err(|error| error.to_string())?;
    let keys = TicketKeys::generate().map_err(|error| error.to_string())?;
    builder.build(Some(&keys)).map(Some).map_err(|error| error.to_string())
}

/// Serves until the process ends.
///
/// # Errors
/// When a thread cannot be started or its reactor fails.
pub(crate) fn serve(plan: &ServePlan, sockets: Vec<ListeningSocket>) -> io::Result<()> {
    let epoch = Epoch::start();
    let mut threads = Vec::new();
    for (index, socket) in sockets.into_iter().enumerate() {
        let cpu = plan.cores.get(index).copied().flatten();
        let config = ShardConfig { index, cpu, driver: plan.driver, epoch: epoch.clone() };
        let plan = plan.clone();
        threads.push(shard::start(config, move |_kind| accept(plan, socket))?);
    }
    for thread in threads {
        thread.join().map_err(|_panicked| io::Error::other("a thread panicked"))??;
    }
    Ok(())
}

async fn accept(plan: ServePlan, socket: ListeningSocket) {
    // Both were checked before the threads were started.
    let (Ok(tls), Ok(listener)) = (tls_context(&plan), socket.open()) else { return };
    let server = Rc::new(Server {
        body_bytes: plan.body_bytes,
        buffer: RefCell::new(vec![0; crate::core::READ_BYTES].into_boxed_slice()),
        prepared: RefCell::default(),
        tls,
    });
    loop {
        match listener.accept().await {
            Ok(accepted) => spawn(connection(Rc::clone(&server), accepted)),
            // Out of descriptors: the connection waits in the kernel's queue.
            Err(_busy) => timer::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn connection(server: Rc<Server>, accepted: Accepted) {
    let Ok(tcp) = TcpStream::from_fd(accepted.fd) else { return };
    let mut link = match &server.tls {
        None => Link::plain(tcp),
        Some(context) => Link::tls(tcp, Session::server(context)),
    };
    if link.handshake(&server.buffer).await.is_err() {
        return;
    }
    if link.session().and_then(Session::alpn) == Some(b"h2") {
        return h2::H2::new(server, link, PREFACE.len()).run().await;
    }
    let mut first = Vec::new();
    if !read_first(&server, &mut link, &mut first).await {
        return;
    }
    if PREFACE.starts_with(first.get(..PREFACE.len().min(first.len())).unwrap_or(&[])) {
        let mut connection = h2::H2::new(server, link, PREFACE.len());
        if connection.feed(&first).is_ok() {
            connection.run().await;
        }
        return;
    }
    h1::H1::new(server, link).run(&first).await;
}

/// Reads enough to tell HTTP/2 with prior knowledge from HTTP/1.1. False when the client is gone.
async fn read_first(server: &Server, link: &mut Link, first: &mut Vec<u8>) -> bool {
    // No HTTP/1.1 method begins like this.
    const TELLING_BYTES: usize = 4;
    while first.len() < TELLING_BYTES {
        let read = poll_fn(|cx| {
            if link.take_decrypted(|bytes| first.extend_from_slice(bytes)).is_some() {
                return Poll::Ready(true);
            }
            let mut buffer = server.buffer.borrow_mut();
            let read = ready!(link.poll_read(cx, &mut buffer, |bytes| first.extend_from_slice(bytes)));
            Poll::Ready(matches!(read, Ok(Got::Bytes(()))))
        });
        if !read.await {
            return false;
        }
    }
    true
}
