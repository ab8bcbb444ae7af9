//! What an idle TLS connection costs the proxy: opens many, lets each serve one request, and looks at the process.
//! The client's side keeps only the sockets. Called by the `idle` binary and, small, by the tests.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

use crate::client::{RawClient, Stream};
use crate::config::Config;
use crate::procfs;
use crate::proxy::Proxy;
use crate::tls::{Authority, ClientTls};
use crate::wait::PATIENCE;

/// Connections from one source address; its ephemeral ports are fewer than 30,000.
const PER_ADDRESS: usize = 10_000;
const THREADS: usize = 4;
/// Descriptors beside the connections.
const SPARE_DESCRIPTORS: u64 = 500;

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    pub connections: usize,
    /// Growth of resident memory for each.
    pub resident_bytes_each: u64,
    /// Growth of memory that only the process holds for each.
    pub private_bytes_each: u64,
    /// After all of them have gone.
    pub resident_bytes_left: u64,
}

/// Opens `count` idle TLS connections to one core and measures.
///
/// # Panics
/// When the system allows too few descriptors, or a connection fails.
#[must_use]
pub fn measure(count: usize) -> Idle {
    let wide = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    allow_descriptors(wide(count) + SPARE_DESCRIPTORS);
    let authority = Authority::default();
    let leaf = authority.leaf(&["a.example"]);
    let mut config = Config::with(crate::Cluster::new("none", &[])).tls(&[leaf]).listener(|listener| {
        listener.idle_timeout = Some(Duration::from_secs(1800));
        listener.connections_max = Some(u32::try_from(count + 100).unwrap_or(u32::MAX));
    });
    config.routes = vec![crate::Route::prefix("all", "/").direct(200, "ok")];
    config.clusters.clear();
    let mut proxy = Proxy::start(config);
    let (pid, address) = (proxy.process().pid(), proxy.address());
    let tls = authority.client("a.example", &["http/1.1"]);
    // The first ones warm up what is made once: tables, buffers, the allocator.
    let mut held = open(address, &tls, 0, 50);
    settle(&proxy, 50);
    let look = || (procfs::usage(pid).map_or(0, |usage| usage.resident_bytes), procfs::private_bytes(pid));
    let before = look();
    held.extend(open(address, &tls, 50, count));
    settle(&proxy, 50 + count);
    let after = look();
    let each = |after: u64, before: u64| after.saturating_sub(before) / wide(count).max(1);
    let alive = held.iter().filter(|stream| is_open(stream)).count();
    assert_eq!(alive, 50 + count, "idle connections stay open");
    drop(held);
    settle(&proxy, 0);
    Idle {
        connections: count,
        resident_bytes_each: each(after.0, before.0),
        private_bytes_each: each(after.1.unwrap_or(0), before.1.unwrap_or(0)),
        resident_bytes_left: look().0,
    }
}

fn is_open(stream: &TcpStream) -> bool {
    let mut byte = [0];
    stream.set_nonblocking(true).is_ok()
        && stream.peek(&mut byte).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

/// Waits until the proxy counts so many connections, and a window longer for what they give back.
fn settle(proxy: &Proxy, connections: usize) {
    let wanted = f64::from(u32::try_from(connections).unwrap_or(u32::MAX));
    let is_there = |metrics: &crate::metrics::Metrics| {
        (metrics.sum("shard_core_connections", &[]) - wanted).abs() < 0.5
            && metrics.sum("shard_core_buffers", &[]) < 0.5
    };
    proxy.wait_metrics("the connections are counted and hold no buffer", is_there);
}

fn open(address: SocketAddr, tls: &ClientTls, first: usize, count: usize) -> Vec<TcpStream> {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    let mut held = Vec::new();
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= count {
                            return held;
                        }
                        held.push(open_one(address, tls, first + number));
                    }
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a client thread ends")).collect()
    })
}

/// Shakes hands, is served once, and keeps the socket alone.
fn open_one(address: SocketAddr, tls: &ClientTls, number: usize) -> TcpStream {
    let last = u8::try_from(2 + number / PER_ADDRESS).expect("at most 250 source addresses");
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a descriptor is free");
    let source = SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 0));
    socket.bind(&source.into()).expect("a loopback address");
    socket.connect(&address.into()).expect("the proxy listens");
    let mut tcp = TcpStream::from(socket);
    tcp.set_read_timeout(Some(PATIENCE)).expect("a positive time limit");
    let mut session = tls.connection();
    while session.is_handshaking() {
        session.complete_io(&mut tcp).expect("the handshake succeeds");
    }
    let kept = tcp.try_clone().expect("a descriptor is free");
    let mut client = RawClient::over(Stream::Tls(Box::new(rustls::StreamOwned::new(session, tcp))));
    client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(client.response("GET").status, 200);
    kept
}

/// Raises this process's limit of descriptors, which the proxy inherits.
fn allow_descriptors(count: u64) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= count) {
        return;
    }
    let maximum = limit.maximum.map(|maximum| maximum.max(count));
    let wanted = Rlimit { current: Some(count), maximum };
    let raised = setrlimit(Resource::Nofile, wanted);
    let raised = raised.or_else(|_| setrlimit(Resource::Nofile, Rlimit { current: Some(count), ..limit }));
    assert!(
        raised.is_ok(),
        "{count} descriptors are not allowed: {raised:?}; try `ulimit -n {count}` as root"
    );
}

impl std::fmt::Display for Idle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { connections, resident_bytes_each, private_bytes_each, resident_bytes_left } = self;
        write!(
            f,
            "{connections} idle TLS connections on one core: {resident_bytes_each} bytes resident each, \
             {private_bytes_each} private; {} KiB resident when they have gone",
            resident_bytes_left / 1024
        )
    }
}
