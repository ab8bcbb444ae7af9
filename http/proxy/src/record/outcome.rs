//! What one exchange reports when it ends: the one value that counters and the log line are made from.
//! Filled by `exchange`.

use std::time::Duration;

use http_wire::head::{Method, Version};

use crate::reason::Reason;
use crate::snapshot::StatId;

/// Where the time of an exchange went. The first three belong to the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Stage {
    /// From the kernel's accept queue to a task of ours.
    AcceptWait,
    TlsFull,
    TlsResumed,
    /// From the first byte of the head to its last.
    HeadParse,
    /// Routing and policies.
    Gateway,
    /// Waiting for a connection to the endpoint: queue and look-up.
    PoolWait,
    /// TCP and TLS towards the endpoint, when a connection was dialled.
    Connect,
    /// From the request having been sent to the first byte of the response head.
    FirstByte,
    /// From the response head to the end of the body.
    Body,
    /// From the first byte of the request head to the end of the exchange.
    Total,
}

impl Stage {
    pub const ALL: [Self; 10] = [
        Self::AcceptWait,
        Self::TlsFull,
        Self::TlsResumed,
        Self::HeadParse,
        Self::Gateway,
        Self::PoolWait,
        Self::Connect,
        Self::FirstByte,
        Self::Body,
        Self::Total,
    ];

    /// The label of metrics; with `_us` behind it the key of the log.
    pub const fn label(self) -> &'static str {
        match self {
            Self::AcceptWait => "accept_wait",
            Self::TlsFull => "tls_full",
            Self::TlsResumed => "tls_resumed",
            Self::HeadParse => "head_parse",
            Self::Gateway => "gateway",
            Self::PoolWait => "pool_wait",
            Self::Connect => "connect",
            Self::FirstByte => "first_byte",
            Self::Body => "body",
            Self::Total => "total",
        }
    }

    pub const fn index(self) -> usize {
        self as usize
    }

    /// Measured once a connection, so not counted again with each exchange.
    pub const fn is_of_connection(self) -> bool {
        matches!(self, Self::AcceptWait | Self::TlsFull | Self::TlsResumed)
    }
}

/// The stages of one exchange; one that it did not pass is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTimes {
    ns: [u64; Stage::ALL.len()],
    present: u16,
}

impl StageTimes {
    /// Sets a stage; attempts add up in the caller.
    pub fn set(&mut self, stage: Stage, time: Duration) {
        self.ns[stage.index()] = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.present |= 1 << stage.index();
    }

    pub const fn get(&self, stage: Stage) -> Option<Duration> {
        if self.present >> stage.index() & 1 == 1 {
            Some(Duration::from_nanos(self.ns[stage.index()]))
        } else {
            None
        }
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// One finished exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub listener: StatId,
    /// None: no route was found.
    pub route: Option<StatId>,
    /// None: not forwarded.
    pub cluster: Option<StatId>,
    /// Of the last attempt.
    pub endpoint: Option<StatId>,
    pub method: Method,
    /// Between client and proxy.
    pub protocol: Version,
    /// 0: no response head was sent.
    pub status: u16,
    /// `grpc-status` that the client got, where it is a gRPC call.
    pub grpc_status: Option<u8>,
    pub reason: Reason,
    /// Request body, as received.
    pub request_bytes: u64,
    /// Response body, as sent.
    pub response_bytes: u64,
    /// 0: not forwarded; 1: no retry.
    pub attempts: u32,
    /// Some attempt chose among all endpoints, because too few are available.
    pub is_in_panic: bool,
    pub stages: StageTimes,
}

impl Outcome {
    /// Neither the proxy nor the upstream failed, nor was the request refused.
    pub fn is_success(&self) -> bool {
        self.reason.is_success() && (1..400).contains(&self.status) && self.grpc_status.unwrap_or(0) == 0
    }
}

/// First digit of a status, as a label. The array's order is that of the counters.
pub(crate) const STATUS_CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// The place in [`STATUS_CLASSES`].
pub(crate) fn class_index(status: u16) -> usize {
    match status {
        100..=599 => usize::from(status / 100),
        _ => 0,
    }
}

pub(crate) const METHODS: [Method; 10] = [
    Method::Get,
    Method::Head,
    Method::Post,
    Method::Put,
    Method::Delete,
    Method::Options,
    Method::Patch,
    Method::Trace,
    Method::Connect,
    Method::Extension,
];

/// The place in [`METHODS`].
pub(crate) const fn method_index(method: Method) -> usize {
    match method {
        Method::Get => 0,
        Method::Head => 1,
        Method::Post => 2,
        Method::Put => 3,
        Method::Delete => 4,
        Method::Options => 5,
        Method::Patch => 6,
        Method::Trace => 7,
        Method::Connect => 8,
        Method::Extension => 9,
    }
}

/// The order of the counters by protocol.
pub(crate) const PROTOCOLS: [&str; 3] = ["http/1.0", "http/1.1", "http/2"];

pub(crate) const fn protocol_index(version: Version) -> usize {
    match version {
        Version::Http10 => 0,
        Version::Http11 => 1,
        Version::Http2 => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_and_tables_agree() {
        for (at, stage) in Stage::ALL.into_iter().enumerate() {
            assert_eq!(stage.index(), at);
        }
        for (at, method) in METHODS.into_iter().enumerate() {
            assert_eq!(method_index(method), at);
        }
        for (status, class) in [
            (0, "none"),
            (99, "none"),
            (100, "1xx"),
            (204, "2xx"),
            (399, "3xx"),
            (431, "4xx"),
            (599, "5xx"),
            (600, "none"),
            (999, "none"),
        ] {
            assert_eq!(STATUS_CLASSES[class_index(status)], class, "{status}");
        }
    }

    #[test]
    fn a_stage_is_absent_until_it_is_set() {
        for stage in Stage::ALL {
            let mut times = StageTimes::default();
            assert_eq!(times.get(stage), None);
            times.set(stage, Duration::ZERO);
            assert_eq!(times.get(stage), Some(Duration::ZERO));
            times.set(stage, Duration::from_micros(7));
            assert!(
                Stage::ALL.iter().all(|s| times.get(*s) == (*s == stage).then_some(Duration::from_micros(7)))
            );
        }
    }

    #[test]
    fn success_needs_reason_status_and_grpc_status() {
        let ok = Outcome { status: 200, ..Outcome::default() };
        assert!(ok.is_success());
        let failures = [
            Outcome { status: 0, ..ok },
            Outcome { status: 404, ..ok },
            Outcome { status: 503, ..ok },
            Outcome { grpc_status: Some(14), ..ok },
            Outcome { reason: Reason::UpstreamTruncated, ..ok },
        ];
        assert!(failures.iter().all(|o| !o.is_success()));
        assert!(Outcome { grpc_status: Some(0), ..ok }.is_success());
    }
}
