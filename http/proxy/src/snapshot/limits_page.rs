//! docs/limits.md, made from the constants that the compiler checks, so that the page cannot differ from the code.

use std::fmt::{Debug, Write as _};
use std::path::Path;
use std::time::Duration;

use control_api::defaults::{Bound, Range, cluster, h2, listener, mirror, route, tcp, token};
use http_balance::generations::{GENERATIONS_MAX, RETIRED_POINTS_MAX};
use http_balance::mirror::HELD_BYTES_MAX;
use http_gateway::jwt::TOKEN_BYTES_MAX;

use super::{LOG_SINKS_MAX, StatFamily};
use crate::pool::{DRAINED_MAX, LINES_MAX};
use crate::reason::Reason;

const HEAD: &str = "# Limits

Every limit of shard-proxy that a config can set, as a careful operator would set it, and what happens at it. The
keys are those of the resources (docs/resources.md); docs/config.md has the names that service files use. A value
outside its range is refused when the config is loaded. Counts of connections are per core. *Reason* is the code in
the problem document, the log line and the metrics (docs/reason-codes.md). This page is generated from
`control/api/src/defaults.rs` and `http/proxy/src/snapshot/limits_page.rs`; run the test with
`SHARD_REGENERATE_DOCS=1` after a change.

";

const TABLE_HEAD: &str = "| Limit | Default | Range | At the limit | Reason |\n|---|---|---|---|---|\n";

/// One line of the page.
struct Row {
    name: &'static str,
    default: String,
    range: String,
    effect: &'static str,
    reason: Option<Reason>,
}

/// Values in the form in which a reader thinks of them.
trait Shown {
    fn shown(&self) -> String;
}

impl Shown for Duration {
    fn shown(&self) -> String {
        let seconds = self.as_secs();
        match seconds {
            _ if self.subsec_nanos() > 0 => format!("{} ms", self.as_millis()),
            0 => "0".to_owned(),
            _ if seconds.is_multiple_of(86_400) => format!("{} d", seconds / 86_400),
            _ if seconds.is_multiple_of(3_600) => format!("{} h", seconds / 3_600),
            _ => format!("{seconds} s"),
        }
    }
}

macro_rules! shown_as_number {
    ($($number:ty),*) => {
        $(impl Shown for $number {
            fn shown(&self) -> String {
                let plain = self.to_string();
                if plain.contains('.') {
                    return plain;
                }
                let groups: Vec<&[u8]> = plain.as_bytes().rchunks(3).rev().collect();
                String::from_utf8_lossy(&groups.join(&b","[..])).into_owned()
            }
        })*
    };
}

shown_as_number!(u32, u64, usize, f64);

fn bound<T: Shown>(
    name: &'static str,
    bound: &Bound<T>,
    effect: &'static str,
    reason: Option<Reason>,
) -> Row {
    let range = format!("{} – {}", bound.min.shown(), bound.max.shown());
    Row { name, default: bound.default.shown(), range, effect, reason }
}

fn range<T: Shown>(
    name: &'static str,
    range: &Range<T>,
    effect: &'static str,
    reason: Option<Reason>,
) -> Row {
    let shown = format!("{} – {}", range.min.shown(), range.max.shown());
    Row { name, default: "none".to_owned(), range: shown, effect, reason }
}

fn fixed<T: Shown>(name: &'static str, value: T, effect: &'static str, reason: Option<Reason>) -> Row {
    Row { name, default: value.shown(), range: "fixed".to_owned(), effect, reason }
}

fn listener_rows() -> Vec<Row> {
    use Reason as R;
    vec![
        bound(
            "`connections_max`",
            &listener::CONNECTIONS,
            "The connection is closed at once and counted.",
            Some(R::ConnectionLimit),
        ),
        bound(
            "`listener_filters_timeout` (PROXY header)",
            &listener::PROXY_HEADER_TIMEOUT,
            "Close.",
            Some(R::ProxyProtocolTimeout),
        ),
        bound(
            "`transport_socket_connect_timeout` (TLS handshake)",
            &listener::HANDSHAKE_TIMEOUT,
            "Close.",
            Some(R::TlsHandshakeTimeout),
        ),
        bound(
            "`request_headers_timeout`",
            &listener::HEADER_TIMEOUT,
            "408 and close; HTTP/2: the connection is closed.",
            Some(R::HeaderTimeout),
        ),
        bound(
            "`request_line_bytes_max`",
            &listener::REQUEST_LINE_BYTES,
            "414, and over HTTP/1.1 close; over HTTP/2 the `:path` as the line of a GET.",
            Some(R::RequestLineTooLong),
        ),
        bound(
            "`max_request_headers_kb` (KiB, on the wire in HTTP/1, decoded in HTTP/2)",
            &listener::HEADER_KIB,
            "431; HTTP/1 closes, HTTP/2 ends the stream.",
            Some(R::HeadTooLarge),
        ),
        bound(
            "`max_headers_count`",
            &listener::HEADER_COUNT,
            "431; HTTP/1 closes, HTTP/2 ends the stream.",
            Some(R::TooManyFields),
        ),
    ]
}

fn tcp_rows() -> Vec<Row> {
    use Reason as R;
    vec![
        bound(
            "`listener_filters_timeout` (ClientHello, where chains have server names)",
            &listener::PROXY_HEADER_TIMEOUT,
            "The client is reset.",
            Some(R::ClientHelloTimeout),
        ),
        fixed(
            "bytes of a ClientHello",
            core_runtime::buf::BUF_BYTES,
            "The connection goes to the default chain; without one the client is reset.",
            Some(R::ClientHelloBad),
        ),
        fixed("server names of a listener", tcp::SERVER_NAMES_MAX, "The config is refused.", None),
        bound(
            "`idle_timeout` (no byte either way)",
            &tcp::IDLE_TIMEOUT,
            "Both sides are reset.",
            Some(R::IdleTimeout),
        ),
        range(
            "`max_downstream_connection_duration`",
            &tcp::CONNECTION_AGE,
            "Both sides are reset.",
            Some(R::ConnectionAgeMax),
        ),
        fixed(
            "bytes held for one direction (in a pipe of the kernel: 256 KiB)",
            core_runtime::buf::BUF_BYTES,
            "Its writer waits.",
            None,
        ),
    ]
}

fn connection_rows() -> Vec<Row> {
    use Reason as R;
    vec![
        bound(
            "`idle_timeout` (between requests)",
            &listener::IDLE_TIMEOUT,
            "Close, or GOAWAY. Control frames do not refresh it.",
            Some(R::IdleTimeout),
        ),
        bound(
            "`stream_idle_timeout` (a body without progress)",
            &listener::BODY_IDLE_TIMEOUT,
            "The exchange ends: 408 while the request is awaited.",
            Some(R::BodyTimeout),
        ),
        range(
            "`max_connection_duration`",
            &listener::CONNECTION_AGE,
            "Close at the next safe moment, or GOAWAY.",
            Some(R::ConnectionAgeMax),
        ),
        bound(
            "`connection_age_jitter` (share of the age and request limits)",
            &listener::AGE_JITTER,
            "Spreads the two limits over connections.",
            None,
        ),
        range(
            "`max_requests_per_connection`",
            &listener::REQUESTS_PER_CONNECTION,
            "The last answer says `Connection: close`, or GOAWAY.",
            None,
        ),
        bound("`xff_num_trusted_hops`", &listener::XFF_HOPS, "Hops further away are not believed.", None),
        bound(
            "`access_log_success_sample`",
            &listener::ACCESS_LOG_SUCCESS_SAMPLE,
            "Other successes are not logged; errors always are.",
            None,
        ),
        fixed("`upgrade_configs` entries", listener::UPGRADES_MAX, "The config is refused.", None),
        fixed(
            "Pipelined requests that a core answers in one turn of its reactor, beyond the first two of each connection",
            crate::core::PIPELINED_PER_TURN_MAX,
            "The rest waits its turn, first come first served.",
            None,
        ),
        fixed(
            "Bytes of a message that is left to the reactor when its peer does not take it at once",
            core_runtime::net::POST_BYTES_MAX,
            "Longer ones stay with their exchange. The next message of the connection waits, for `stream_idle_timeout`.",
            None,
        ),
    ]
}

fn h2_rows() -> Vec<Row> {
    use Reason as R;
    vec![
        bound("`max_concurrent_streams`", &h2::STREAMS, "REFUSED_STREAM: the client may try again.", None),
        bound(
            "`initial_stream_window_size` (bytes)",
            &h2::STREAM_WINDOW_BYTES,
            "The client waits for credit.",
            None,
        ),
        bound(
            "`initial_connection_window_size` (bytes)",
            &h2::CONNECTION_WINDOW_BYTES,
            "The client waits for credit.",
            None,
        ),
        bound("`h2_frame_bytes_max`", &h2::FRAME_BYTES, "FRAME_SIZE_ERROR.", Some(R::H2ProtocolError)),
        bound(
            "`h2_resets_max` (in 10 s, ours and theirs)",
            &h2::RESETS,
            "GOAWAY ENHANCE_YOUR_CALM.",
            Some(R::H2FloodResets),
        ),
        bound(
            "`h2_control_frames_max` (in 10 s)",
            &h2::CONTROL_FRAMES,
            "GOAWAY ENHANCE_YOUR_CALM.",
            Some(R::H2FloodControl),
        ),
        bound(
            "`h2_small_data_frames_max` (in 10 s)",
            &h2::SMALL_DATA_FRAMES,
            "GOAWAY ENHANCE_YOUR_CALM.",
            Some(R::H2FloodSmallData),
        ),
        fixed(
            "Streams that a connection opens in one turn of its reactor",
            crate::link::STREAMS_PER_TURN,
            "What is behind them is looked at in the next turn.",
            None,
        ),
        fixed(
            "Streams that all connections of a core open in one turn",
            crate::core::STREAMS_PER_TURN_MAX,
            "The other connections read in the next turn, first come first served.",
            None,
        ),
    ]
}

fn route_rows() -> Vec<Row> {
    use Reason as R;
    vec![
        bound(
            "`timeout` (request to response head; 0: off)",
            &route::TIMEOUT,
            "504.",
            Some(R::UpstreamTimeoutFirstByte),
        ),
        range(
            "`idle_timeout`",
            &route::IDLE_TIMEOUT,
            "The exchange ends: 504 before the response head.",
            Some(R::UpstreamTimeoutIdle),
        ),
        bound(
            "`body_bytes_max` (0 or unset in the resource: no limit; the loader writes the default)",
            &route::BODY_BYTES,
            "413, by Content-Length and by counting.",
            Some(R::BodyTooLarge),
        ),
        bound(
            "`body_rate.min` of a request body, bytes a second (off unless asked for)",
            &route::BODY_RATE,
            "408 where no response has begun, else the exchange is cut.",
            Some(R::BodyTooSlow),
        ),
        bound(
            "`body_rate.window`",
            &route::BODY_RATE_WINDOW,
            "Time for as many bytes as make the rate.",
            None,
        ),
        range(
            "`client_limit.requests_per_second`",
            &route::REQUESTS_PER_SECOND,
            "429 with Retry-After.",
            Some(R::RateLimited),
        ),
        range(
            "`client_limit.connections_max` (listener)",
            &route::CLIENT_CONNECTIONS,
            "Close.",
            Some(R::ClientConnectionsExceeded),
        ),
        range("`weight` of a cluster in a split", &route::WEIGHT, "The config is refused.", None),
        fixed(
            "Matchers on headers, and on query parameters, of a route",
            route::MATCHERS_MAX,
            "The config is refused.",
            None,
        ),
        fixed("Header operations of a level", route::FIELD_OPS_MAX, "The config is refused.", None),
        fixed("Bytes of a pattern", route::REGEX_BYTES_MAX, "The config is refused.", None),
        fixed("Bytes of a compiled pattern", route::REGEX_COMPILED_BYTES_MAX, "The config is refused.", None),
        fixed(
            "Bytes of a direct response or error page",
            route::BODY_INLINE_BYTES_MAX,
            "The config is refused.",
            None,
        ),
    ]
}

fn token_rows() -> Vec<Row> {
    use Reason as R;
    vec![
        fixed("Bytes of a token", TOKEN_BYTES_MAX, "401.", Some(R::TokenMalformed)),
        bound(
            "`clock_skew_seconds` (issuer's clock against this host's; 0 is unset)",
            &token::CLOCK_SKEW,
            "401: the token has expired, or is not valid yet.",
            Some(R::TokenExpired),
        ),
        bound(
            "`jwt_cache_config.jwt_cache_size` (verified tokens of a provider, per core; 0 is unset)",
            &token::CACHE,
            "The one that was used longest ago goes, and is verified again when it comes.",
            None,
        ),
        fixed(
            "Signatures of unseen tokens that a core looks at in one turn of its reactor",
            crate::core::VERIFICATIONS_PER_TURN_MAX,
            "The other requests wait their turn, first come first served.",
            None,
        ),
        fixed("Token providers of a listener", token::PROVIDERS_MAX, "The config is refused.", None),
        fixed("Bytes of a key set", token::KEY_SET_BYTES_MAX, "The config is refused.", None),
        fixed(
            "Keys of a set that verify; as many signatures a token without `kid` may cost",
            token::KEYS_MAX,
            "The config is refused.",
            None,
        ),
        fixed("Audiences of a provider", token::AUDIENCES_MAX, "The config is refused.", None),
        fixed("Scopes of a route", token::SCOPES_MAX, "The config is refused.", None),
    ]
}

fn mirror_rows() -> Vec<Row> {
    vec![
        bound(
            "`mirror.buffer_bytes_max` (of one body, for a mirror slower than the primary)",
            &mirror::BUFFER_BYTES,
            "The copy is cut, counted as `behind`, or as `buffer_full` before it began; the primary has all of it.",
            None,
        ),
        fixed(
            "Bytes of bodies held for all mirrors of a cluster, per core",
            HELD_BYTES_MAX,
            "The same, counted as `memory_limit`.",
            None,
        ),
        bound(
            "`mirror.timeout` (end of the copied request to the end of its response)",
            &mirror::TIMEOUT,
            "The copy is cut, counted as `timed_out`.",
            None,
        ),
        bound(
            "`mirror.in_flight_max`",
            &mirror::IN_FLIGHT,
            "Not mirrored, counted as `in_flight_limit`.",
            None,
        ),
        bound(
            "`mirror.bytes_per_second_max`",
            &mirror::BYTES_PER_SECOND,
            "Not mirrored or cut, counted as `bandwidth_limit`.",
            None,
        ),
    ]
}

fn cluster_rows() -> Vec<Row> {
    use Reason as R;
    vec![
        bound(
            "`connect_timeout` (TCP and TLS)",
            &cluster::CONNECT_TIMEOUT,
            "504, after a try elsewhere.",
            Some(R::UpstreamConnectTimeout),
        ),
        bound("`connections_max` (per endpoint)", &cluster::CONNECTIONS, "503.", Some(R::UpstreamPoolFull)),
        bound(
            "`idle_max` (per endpoint)",
            &cluster::IDLE_CONNECTIONS,
            "The connection is closed instead of kept.",
            None,
        ),
        bound("`idle_timeout`", &cluster::IDLE_TIMEOUT, "The idle connection is closed.", None),
        range(
            "`max_requests_per_connection`",
            &cluster::REQUESTS_PER_CONNECTION,
            "The connection is closed after its last request.",
            None,
        ),
        bound(
            "`h2_connections_max` (per endpoint)",
            &cluster::H2_CONNECTIONS,
            "503 when all their streams are taken.",
            Some(R::UpstreamPoolFull),
        ),
        bound("`max_concurrent_streams`", &cluster::H2_STREAMS, "Another connection is opened.", None),
        range("`connection_keepalive.interval`", &cluster::H2_PING_INTERVAL, "A PING is sent.", None),
        bound(
            "`connection_keepalive.timeout`",
            &cluster::H2_PING_TIMEOUT,
            "The connection is given up.",
            None,
        ),
        bound(
            "`dns_refresh_rate` (shortest time between look-ups)",
            &cluster::DNS_REFRESH_MIN,
            "A shorter TTL waits.",
            None,
        ),
        bound(
            "`dns_stale_max` (last good answer)",
            &cluster::DNS_STALE_MAX,
            "The addresses go; 503 when none is left.",
            Some(R::NoEndpoint),
        ),
        bound("`load_balancing_weight`", &cluster::ENDPOINT_WEIGHT, "The config is refused.", None),
        fixed(
            "Interim (1xx) responses to one request",
            crate::exchange::INTERIM_RESPONSES_MAX,
            "502 and the endpoint's connection closes.",
            Some(R::UpstreamBadInterim),
        ),
        fixed("Endpoints of a cluster", cluster::ENDPOINTS_MAX, "The config is refused.", None),
    ]
}

fn process_rows() -> Vec<Row> {
    let shared = "Further names share the series `other`.";
    vec![
        fixed("Listener series in the metrics", StatFamily::Listener.series_max(), shared, None),
        fixed("Route series", StatFamily::Route.series_max(), shared, None),
        fixed("Cluster series", StatFamily::Cluster.series_max(), shared, None),
        fixed("Endpoint series", StatFamily::Endpoint.series_max(), shared, None),
        fixed("Access log targets in the life of a process", LOG_SINKS_MAX, "The config is refused.", None),
        fixed(
            "Endpoints that an operator drains (`shardctl endpoint drain`)",
            DRAINED_MAX,
            "409 on the admin socket: one more is not drained.",
            None,
        ),
        fixed(
            "Rings of the past of a cluster with sticky sessions",
            GENERATIONS_MAX,
            "The oldest goes, with a warning, and is counted; its sessions go by the present ring.",
            None,
        ),
        fixed(
            "Points of the rings of the past of all clusters, 12 bytes each",
            RETIRED_POINTS_MAX,
            "The oldest of the cluster that changes go, with a warning, and are counted.",
            None,
        ),
        fixed(
            "Log lines about clusters of one core in half a second",
            LINES_MAX,
            "Further ones are counted in one line.",
            None,
        ),
        fixed(
            "Bytes of a resource's or route's name",
            control_api::defaults::NAME_BYTES_MAX,
            "The config is refused.",
            None,
        ),
    ]
}

fn page() -> String {
    let mut out = HEAD.to_owned();
    let sections = [
        ("Listeners", listener_rows()),
        ("Connections and exchanges", connection_rows()),
        ("TCP listeners", tcp_rows()),
        ("HTTP/2 towards clients", h2_rows()),
        ("Routes", route_rows()),
        ("Bearer tokens", token_rows()),
        ("Mirrors (per core and mirror cluster)", mirror_rows()),
        ("Clusters (per core)", cluster_rows()),
        ("The process", process_rows()),
    ];
    for (at, (title, rows)) in sections.into_iter().enumerate() {
        let gap = if at == 0 { "" } else { "\n" };
        write!(out, "{gap}## {title}\n\n{TABLE_HEAD}").expect("a String takes every text");
        for Row { name, default, range, effect, reason } in rows {
            let reason = reason.map_or_else(|| "–".to_owned(), |reason| format!("`{}`", reason.code()));
            writeln!(out, "| {name} | {default} | {range} | {effect} | {reason} |")
                .expect("a String takes every text");
        }
    }
    out
}

/// The section that follows on the page and whose limits this crate does not know; it stays as it is.
const L4_SECTION: &str = "\n## The L4 tier\n";

#[test]
fn the_page_in_docs_is_this_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/limits.md");
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let l4 = found.find(L4_SECTION).and_then(|at| found.get(at..)).unwrap_or("");
    let wanted = format!("{}{l4}", page());
    if std::env::var_os("SHARD_REGENERATE_DOCS").is_some() {
        std::fs::write(&path, &wanted).expect("docs/ is writable");
        return;
    }
    assert!(found == wanted, "docs/limits.md is stale: run this test with SHARD_REGENERATE_DOCS=1");
}

#[test]
fn values_read_as_people_write_them() {
    fn check(value: &(impl Shown + Debug), shown: &str) {
        assert_eq!(value.shown(), shown, "{value:?}");
    }
    check(&1_048_576_u32, "1,048,576");
    check(&100_u32, "100");
    check(&0.1_f64, "0.1");
    check(&Duration::from_millis(100), "100 ms");
    check(&Duration::from_secs(60), "60 s");
    check(&Duration::from_secs(3_600), "1 h");
    check(&Duration::from_secs(7 * 86_400), "7 d");
    check(&Duration::ZERO, "0");
}
