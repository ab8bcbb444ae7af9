//! Default and range of every value in docs/resources.md, one constant each, so that the loader, the snapshot
//! compiler and the reference page cannot differ.

use std::time::Duration;

/// A value's range, ends included, and what holds when nobody sets it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound<T> {
    pub min: T,
    pub default: T,
    pub max: T,
}

impl<T: PartialOrd> Bound<T> {
    /// Whether `value` lies in the range.
    pub fn holds(&self, value: &T) -> bool {
        *value >= self.min && *value <= self.max
    }
}

/// A value's range, ends included, where unset means "none" or "no limit".
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range<T> {
    pub min: T,
    pub max: T,
}

impl<T: PartialOrd> Range<T> {
    /// Whether `value` lies in the range.
    pub fn holds(&self, value: &T) -> bool {
        *value >= self.min && *value <= self.max
    }
}

const fn bound<T>(min: T, default: T, max: T) -> Bound<T>
where
    T: Copy,
{
    Bound { min, default, max }
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

const HOUR: u64 = 3_600;
const DAY: u64 = 24 * HOUR;

/// Listener: one connection.
pub mod listener {
    use super::{Bound, DAY, Duration, HOUR, Range, bound, ms, s};

    pub const CONNECTIONS: Bound<u32> = bound(1, 65_536, 1 << 20);
    pub const PROXY_HEADER_TIMEOUT: Bound<Duration> = bound(ms(100), s(5), s(60));
    pub const HANDSHAKE_TIMEOUT: Bound<Duration> = bound(ms(100), s(10), s(60));
    pub const HEADER_TIMEOUT: Bound<Duration> = bound(ms(100), s(10), s(60));
    pub const IDLE_TIMEOUT: Bound<Duration> = bound(s(1), s(60), s(HOUR));
    pub const BODY_IDLE_TIMEOUT: Bound<Duration> = bound(s(1), s(60), s(DAY));
    /// Unset: connections do not age.
    pub const CONNECTION_AGE: Range<Duration> = Range { min: s(1), max: s(7 * DAY) };
    pub const AGE_JITTER: Bound<f64> = bound(0.0, 0.1, 0.9);
    /// Unset: no limit.
    pub const REQUESTS_PER_CONNECTION: Range<u32> = Range { min: 1, max: 10_000_000 };
    pub const HEADER_COUNT: Bound<u32> = bound(8, 100, 1_000);
    /// In KiB, as Envoy counts.
    pub const HEADER_KIB: Bound<u32> = bound(1, 32, 256);
    pub const REQUEST_LINE_BYTES: Bound<u32> = bound(256, 8_192, 65_536);
    pub const ACCESS_LOG_SUCCESS_SAMPLE: Bound<f64> = bound(0.0, 1.0, 1.0);
    pub const XFF_HOPS: Bound<u32> = bound(0, 0, 32);
    pub const UPGRADES_MAX: usize = 8;
    /// Tickets sealed by the process's own keys; the keys live this long as the current one.
    pub const TICKET_KEY_ROTATION: Duration = s(12 * HOUR);
    /// Bytes of one TLS ticket key.
    pub const TICKET_KEY_BYTES: usize = 80;
    pub const TICKET_KEYS_MAX: usize = 3;
}

/// TCP listeners.
pub mod tcp {
    use super::{Bound, DAY, Duration, HOUR, Range, bound, s};

    /// Without a byte either way.
    pub const IDLE_TIMEOUT: Bound<Duration> = bound(s(1), s(HOUR), s(7 * DAY));
    /// Unset: connections do not age.
    pub const CONNECTION_AGE: Range<Duration> = Range { min: s(1), max: s(30 * DAY) };
    /// Of one listener.
    pub const SERVER_NAMES_MAX: usize = 10_000;
}

/// HTTP/2 towards clients.
pub mod h2 {
    use super::{Bound, bound};

    pub const STREAMS: Bound<u32> = bound(1, 128, 10_000);
    pub const STREAM_WINDOW_BYTES: Bound<u32> = bound(65_535, 262_144, 16 << 20);
    pub const CONNECTION_WINDOW_BYTES: Bound<u32> = bound(65_535, 1 << 20, 64 << 20);
    /// RFC 9113 §4.2 starts at 16,384.
    pub const FRAME_BYTES: Bound<u32> = bound(16_384, 16_384, 1 << 20);
    /// Resets in any ten seconds (CVE-2023-44487, CVE-2025-8671).
    pub const RESETS: Bound<u32> = bound(1, 500, 1_000_000);
    /// PING, SETTINGS, PRIORITY and empty frames in any ten seconds (CVE-2019-9512, 9515, 9518).
    pub const CONTROL_FRAMES: Bound<u32> = bound(1, 2_000, 1_000_000);
    /// DATA frames under 64 bytes in any ten seconds (CVE-2019-9511).
    pub const SMALL_DATA_FRAMES: Bound<u32> = bound(1, 20_000, 1_000_000);
}

/// Routes.
pub mod token {
    use super::{Bound, Duration, bound, s};

    /// Providers of one listener, and so of a config.
    pub const PROVIDERS_MAX: usize = 32;
    pub const ISSUER_BYTES_MAX: usize = 512;
    pub const AUDIENCES_MAX: usize = 32;
    pub const AUDIENCE_BYTES_MAX: usize = 512;
    pub const SCOPES_MAX: usize = 32;
    pub const SCOPE_BYTES_MAX: usize = 128;
    /// Of a token and of this host.
    pub const CLOCK_SKEW: Bound<Duration> = bound(s(1), s(60), s(600));
    /// Verified tokens that one core remembers. The table doubles as it fills; with more than the most, one growth would
    /// be a turn of more than a millisecond.
    pub const CACHE: Bound<u32> = bound(1, 10_000, 100_000);
    /// Bytes of a key set.
    pub const KEY_SET_BYTES_MAX: usize = 256 * 1024;
    /// Keys of a set that verify.
    pub const KEYS_MAX: usize = 16;
}

pub mod route {
    use super::{Bound, DAY, Duration, Range, bound, ms, s};

    /// The platform's maximum is 30 s; zero on the wire turns the limit off (streaming routes).
    pub const TIMEOUT: Bound<Duration> = bound(ms(1), s(15), s(30));
    /// Unset: the listener's body idle timeout.
    pub const IDLE_TIMEOUT: Range<Duration> = Range { min: s(1), max: s(DAY) };
    /// What the loader gives a streaming route as idle timeout when the author sets none.
    pub const STREAMING_IDLE_TIMEOUT: Duration = s(super::HOUR);
    /// What the loader writes when the author says nothing; unset on the wire is "no limit".
    pub const BODY_BYTES: Bound<u64> = bound(1, 16 << 20, 1 << 40);
    /// Of a request body, bytes a second on average over the window; zero on the wire turns the limit off.
    pub const BODY_RATE: Bound<u32> = bound(1, 500, 1 << 30);
    pub const BODY_RATE_WINDOW: Bound<Duration> = bound(s(1), s(10), s(super::HOUR));
    pub const REGEX_BYTES_MAX: usize = 1_024;
    /// Bytes of a compiled pattern, for `regex::RegexBuilder::size_limit`.
    pub const REGEX_COMPILED_BYTES_MAX: usize = 1 << 20;
    pub const MATCHERS_MAX: usize = 16;
    pub const FIELD_OPS_MAX: usize = 64;
    pub const WEIGHT: Range<u32> = Range { min: 0, max: 1_000_000 };
    /// Bytes of an error page or direct response.
    pub const BODY_INLINE_BYTES_MAX: usize = 65_536;
    pub const REQUESTS_PER_SECOND: Range<u32> = Range { min: 1, max: 10_000_000 };
    pub const CLIENT_CONNECTIONS: Range<u32> = Range { min: 1, max: 1 << 20 };
}

/// Mirrors of a route.
pub mod mirror {
    use super::{Bound, Duration, bound, ms, s};

    pub const PERCENT: Bound<f64> = bound(0.0, 100.0, 100.0);
    /// Held of a request body for a slower mirror; 0: only requests without one are mirrored. A core reads 128 KiB of a body
    /// before another task has its turn, and a mirror on the same machine may wait for a processor meanwhile.
    pub const BUFFER_BYTES: Bound<u32> = bound(0, 1 << 20, 16 << 20);
    pub const TIMEOUT: Bound<Duration> = bound(ms(10), s(5), s(60));
    /// Of one core, like the next.
    pub const IN_FLIGHT: Bound<u32> = bound(1, 128, 10_000);
    pub const BYTES_PER_SECOND: Bound<u32> = bound(1 << 10, 64 << 20, 1 << 30);
}

/// Clusters and pools; pool bounds are per core and endpoint.
pub mod cluster {
    use super::{Bound, DAY, Duration, HOUR, Range, bound, ms, s};

    pub const CONNECT_TIMEOUT: Bound<Duration> = bound(ms(10), s(5), s(30));
    pub const IDLE_TIMEOUT: Bound<Duration> = bound(s(1), s(30), s(HOUR));
    /// As many as may be open: what a burst has opened serves the next one, and the idle timeout takes what does not. With
    /// 128, every ninth of 512 requests at once dialled.
    pub const IDLE_CONNECTIONS: Bound<u32> = bound(0, 1_024, 100_000);
    pub const CONNECTIONS: Bound<u32> = bound(1, 1_024, 100_000);
    /// Unset: no limit.
    pub const REQUESTS_PER_CONNECTION: Range<u32> = Range { min: 1, max: 10_000_000 };
    pub const H2_CONNECTIONS: Bound<u32> = bound(1, 4, 64);
    pub const H2_STREAMS: Bound<u32> = bound(1, 100, 10_000);
    /// Unset: no pings, because servers count eager ones as abuse.
    pub const H2_PING_INTERVAL: Range<Duration> = Range { min: s(1), max: s(HOUR) };
    pub const H2_PING_TIMEOUT: Bound<Duration> = bound(s(1), s(10), s(HOUR));
    pub const DNS_REFRESH_MIN: Bound<Duration> = bound(s(1), s(5), s(HOUR));
    pub const DNS_STALE_MAX: Bound<Duration> = bound(s(0), s(HOUR), s(7 * DAY));
    pub const ENDPOINT_WEIGHT: Bound<u32> = bound(1, 1, 1_000_000);
    pub const ENDPOINTS_MAX: usize = 10_000;
}

/// Balancing and resilience; the defaults are those of the crate http-balance, which a test of the proxy compares.
pub mod balance {
    use super::{Bound, DAY, Duration, HOUR, Range, bound, ms, s};

    /// Points of the heaviest endpoint on a ring.
    pub const RING_VIRTUAL_NODES: Bound<u32> = bound(100, 256, 500);
    /// Bytes of a key of session cookies.
    pub const STICKY_KEY_BYTES: Range<usize> = Range { min: 32, max: 64 };
    /// Current and previous.
    pub const STICKY_KEYS_MAX: usize = 2;
    /// Unset: the cookie goes when the browser ends. Browsers keep none for longer than 400 days.
    pub const STICKY_MAX_AGE: Range<Duration> = Range { min: s(1), max: s(400 * DAY) };
    pub const STICKY_OVERLAP: Bound<Duration> = bound(s(1), s(1_800), s(DAY));
    /// Bytes of the name of a session cookie.
    pub const STICKY_COOKIE_BYTES_MAX: usize = 128;
    /// Bytes of its path.
    pub const STICKY_PATH_BYTES_MAX: usize = 1_024;
    /// Primes only.
    pub const MAGLEV_ROWS: Bound<u32> = bound(101, 65_537, 1_000_003);
    /// Unset: no bound on the load of a key's endpoint.
    pub const LOAD_BOUND_PERCENT: Range<u32> = Range { min: 101, max: 1_000 };
    pub const EWMA_TAU: Bound<Duration> = bound(ms(100), s(10), s(600));
    pub const EWMA_FAILURE_PENALTY: Bound<Duration> = bound(ms(1), s(1), s(60));
    /// Zero turns slow start off.
    pub const SLOW_START_WINDOW: Bound<Duration> = bound(s(1), s(60), s(HOUR));
    pub const SLOW_START_AGGRESSION: Bound<f64> = bound(0.1, 1.0, 10.0);
    pub const SLOW_START_FLOOR_PERCENT: Bound<u32> = bound(1, 10, 100);
    pub const PANIC_PERCENT: Bound<u32> = bound(0, 50, 100);
    /// 0 is used first.
    pub const PRIORITY: Bound<u32> = bound(0, 0, 7);

    /// Per cent of all proxies' requests that come from one zone.
    pub const ZONE_TRAFFIC_PERCENT: Range<u32> = Range { min: 1, max: 100 };

    /// Least endpoints that a core keeps, where a cluster has subsets.
    pub const SUBSET_ENDPOINTS: Bound<u32> = bound(2, 100, 10_000);

    /// Failures in a row.
    pub const CONSECUTIVE: Bound<u32> = bound(1, 5, 1_000);
    pub const EJECTION: Bound<Duration> = bound(s(1), s(30), s(HOUR));
    pub const EJECTION_MAX: Bound<Duration> = bound(s(1), s(300), s(DAY));
    pub const EJECTED_PERCENT: Bound<u32> = bound(0, 20, 100);
    /// Endpoints of a cluster that may lose one whatever the share.
    pub const EJECT_ONE_ENDPOINTS: Bound<u32> = bound(1, 2, 1_000);
    pub const OUTLIER_INTERVAL: Bound<Duration> = bound(s(1), s(10), s(600));
    pub const OUTLIER_ENDPOINTS: Bound<u32> = bound(2, 5, 10_000);
    /// Thousandths of a standard deviation.
    pub const SUCCESS_RATE_DEVIATIONS: Bound<u32> = bound(100, 1_900, 10_000);
    pub const SUCCESS_RATE_REQUESTS: Bound<u32> = bound(1, 100, 1_000_000);
    pub const LATENCY_MEDIAN_PERCENT: Bound<u32> = bound(110, 300, 10_000);
    pub const LATENCY_REQUESTS: Bound<u32> = bound(1, 50, 1_000_000);

    /// Attempts after the first.
    pub const RETRIES: Bound<u32> = bound(0, 1, 5);
    /// Unset: what the deadline leaves.
    pub const PER_TRY_TIMEOUT: Range<Duration> = Range { min: ms(1), max: s(30) };
    pub const RETRY_BUDGET_PERCENT: Bound<u32> = bound(0, 10, 100);
    pub const RETRY_FLOOR_PER_SECOND: Bound<u32> = bound(0, 10, 1_000);

    /// Silence after which a second attempt starts, on routes that hedge.
    pub const HEDGE_AFTER: Bound<Duration> = bound(ms(1), ms(100), s(10));
    pub const HEDGE_PERCENT: Bound<u32> = bound(1, 2, 50);

    /// Requests in flight from the whole process. Unset: no cap.
    pub const IN_FLIGHT: Range<u32> = Range { min: 1, max: 10_000_000 };
    pub const ADAPTIVE_MIN: Bound<u32> = bound(1, 10, 1_000_000);
    pub const ADAPTIVE_MAX: Bound<u32> = bound(1, 1_000, 1_000_000);
    pub const ADAPTIVE_TOLERANCE_PERCENT: Bound<u32> = bound(100, 150, 1_000);

    pub const BREAKER_FAILURE_PERCENT: Bound<u32> = bound(1, 50, 99);
    pub const BREAKER_REQUESTS: Bound<u32> = bound(1, 100, 1_000_000);
    pub const BREAKER_WINDOW: Bound<Duration> = bound(s(1), s(10), s(600));
    pub const BREAKER_OPEN: Bound<Duration> = bound(ms(100), s(10), s(HOUR));
    pub const BREAKER_PROBE_PERCENT: Bound<u32> = bound(1, 5, 100);
    pub const BREAKER_PROBES: Bound<u32> = bound(1, 5, 1_000);

    /// Strain in thousandths.
    pub const SHED_SHEDDABLE_FROM: Bound<u32> = bound(1, 750, 999);
    pub const SHED_FREE_FROM: Bound<u32> = bound(1, 800, 999);
    pub const SHED_STANDARD_FROM: Bound<u32> = bound(1, 860, 999);
    pub const SHED_CRITICAL_FROM: Bound<u32> = bound(1, 940, 999);

    pub const CHECK_INTERVAL: Bound<Duration> = bound(ms(100), s(5), s(HOUR));
    pub const CHECK_TIMEOUT: Bound<Duration> = bound(ms(10), s(2), s(60));
    pub const CHECK_JITTER_PERCENT: Bound<u32> = bound(0, 10, 100);
    pub const CHECK_UNHEALTHY: Bound<u32> = bound(1, 3, 100);
    pub const CHECK_HEALTHY: Bound<u32> = bound(1, 2, 100);
    pub const CHECK_STATUSES_MAX: usize = 16;
    /// Of what a TCP check sends and expects.
    pub const CHECK_PAYLOAD_BYTES_MAX: usize = 1_024;
}

/// Fields of the access log: the keys of its JSON, and the `%field%` of a template. Stages end in `_us`.
pub const ACCESS_LOG_FIELDS: [&str; 37] = [
    "time",
    "request_id",
    "trace_id",
    "client",
    "listener",
    "protocol",
    "method",
    "host",
    "path",
    "query",
    "status",
    "grpc_status",
    "reason",
    "detail",
    "route",
    "cluster",
    "endpoint",
    "attempts",
    "panic",
    "request_bytes",
    "response_bytes",
    "user_agent",
    "referer",
    "tls_version",
    "tls_cipher",
    "server_name",
    "core",
    "accept_wait_us",
    "tls_full_us",
    "tls_resumed_us",
    "head_parse_us",
    "gateway_us",
    "pool_wait_us",
    "connect_us",
    "first_byte_us",
    "body_us",
    "total_us",
];

/// Bytes of a resource's name.
pub const NAME_BYTES_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_includes_both_ends_and_nothing_beyond() {
        let bound = listener::HEADER_TIMEOUT;
        let step = Duration::from_nanos(1);
        for (value, held) in [
            (bound.min, true),
            (bound.default, true),
            (bound.max, true),
            (bound.min - step, false),
            (bound.max + step, false),
        ] {
            assert_eq!(bound.holds(&value), held, "{value:?}");
        }
        assert!(route::WEIGHT.holds(&0) && !route::WEIGHT.holds(&1_000_001));
        assert!(!listener::AGE_JITTER.holds(&f64::NAN), "no number is in no range");
    }
}
