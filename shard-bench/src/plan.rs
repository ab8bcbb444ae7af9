//! All that a run needs to know, made by the command line and read-only afterwards.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use core_runtime::shard::DriverChoice;
use tls::{KeyExchange, Versions};

use crate::load::Schedule;
use crate::request::{Request, Requests, Scheme, Text};

/// What is spoken on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    H1,
    /// With prior knowledge on plaintext, by ALPN on TLS.
    H2,
    /// gRPC over HTTP/2: so many messages each way on every stream; more than one is a stream of them.
    Grpc {
        messages: u32,
    },
    /// Messages on WebSockets, each answered by one.
    WebSocket {
        message: Text,
    },
}

impl Protocol {
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::H1 => "h1",
            Self::H2 => "h2",
            Self::Grpc { .. } => "grpc",
            Self::WebSocket { .. } => "websocket",
        }
    }

    /// Offered by ALPN.
    pub(crate) const fn alpn(&self) -> &'static [&'static str] {
        match self {
            Self::H1 | Self::WebSocket { .. } => &["http/1.1"],
            Self::H2 | Self::Grpc { .. } => &["h2"],
        }
    }
}

/// When requests start.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Load {
    /// Each connection (stream) sends its next request when the last one has been answered.
    Closed,
    /// At times of their own.
    Open(Schedule),
}

/// Which requests may leave with the ClientHello of a resumed connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EarlyRequests {
    None,
    /// Of methods that are safe: an attacker may have early data arrive twice (RFC 8446 §8, RFC 8470 §4).
    Safe,
    All,
}

#[derive(Clone, Debug)]
pub(crate) struct TlsPlan {
    /// None: any certificate is good.
    pub(crate) roots_pem: Option<Vec<u8>>,
    pub(crate) versions: Versions,
    pub(crate) resume: bool,
    pub(crate) early_data: EarlyRequests,
    /// Key exchange groups in order; empty: the default ones.
    pub(crate) groups: Vec<KeyExchange>,
    /// Chain and key of a client certificate.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// Where requests go.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) label: String,
    pub(crate) scheme: Scheme,
    pub(crate) addrs: Vec<SocketAddr>,
    /// The name in SNI, that certificates are verified for.
    pub(crate) server_name: String,
    pub(crate) requests: Requests,
    /// Root of the process tree whose CPU and memory are read.
    pub(crate) pid: Option<u32>,
}

/// One run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) target: Target,
    pub(crate) tls: TlsPlan,
    pub(crate) protocol: Protocol,
    pub(crate) load: Load,
    /// Over all cores.
    pub(crate) connections: usize,
    /// Requests at once on a connection: streams of HTTP/2, pipelined requests of HTTP/1.1.
    pub(crate) depth: usize,
    /// A connection for each request.
    pub(crate) is_fresh: bool,
    pub(crate) warmup: Duration,
    pub(crate) duration: Duration,
    pub(crate) requests_max: u64,
    pub(crate) timeout: Duration,
    /// How long before each start an open loop stops sleeping and watches the clock.
    pub(crate) spin: Duration,
    /// How long what is in flight at the end is waited for.
    pub(crate) drain: Duration,
    /// Bytes a second that each connection reads or sends; None: as fast as it goes.
    pub(crate) read_rate: Option<u64>,
    pub(crate) send_rate: Option<u64>,
    /// One thread each; a number is the CPU that it is pinned to.
    pub(crate) cores: Vec<Option<usize>>,
    pub(crate) driver: DriverChoice,
    pub(crate) seed: u64,
    /// Set to end the run early.
    pub(crate) stop: Arc<AtomicBool>,
}

impl Plan {
    /// From the start of the run to the end of its starts.
    pub(crate) fn span(&self) -> Duration {
        self.warmup + self.duration
    }

    /// Whether a connection is opened for a request that is due, and not before the first one.
    pub(crate) fn opens_for_requests(&self) -> bool {
        self.is_fresh || self.tls.early_data != EarlyRequests::None
    }

    /// Whether request number `place` of the list may leave as early data.
    pub(crate) fn is_early(&self, place: usize) -> bool {
        match self.tls.early_data {
            EarlyRequests::None => false,
            EarlyRequests::Safe => self.target.requests.list.get(place).is_some_and(Request::is_safe),
            EarlyRequests::All => true,
        }
    }
}
