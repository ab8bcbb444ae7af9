//! THE list of metrics, and how it is written as Prometheus text (exposition format 0.0.4).
//!
//! A metric is a line in one of the lists below: name, help and where its value is found. docs/metrics.md is made
//! from the same lists; a test keeps the two equal. Labels come from the config or from closed sets, never from
//! what a client sends, so the number of series is bounded by the tables. Of a metric split by a label only the
//! parts that ever counted are shown.

use std::fmt::Write as _;
use std::io::Write as _;

use http_balance::hashing::SessionFate;
use http_balance::sticky::CookieFault;

use super::histogram::{CoarseHistogram, Histogram, ROW_BOUNDS_NS, STAGE_BOUNDS_NS};
use super::mirror::MirrorEnd;
use super::outcome::{METHODS, PROTOCOLS, STATUS_CLASSES, Stage};
use super::rows::{ClusterRow, EndpointRow, ListenerRow, RouteRow};
use super::stats::CoreStats;
use crate::reason::Reason;

/// Where the value of a metric is found in `R`.
pub(crate) enum Value<R: 'static> {
    Counter(fn(&R) -> u64),
    Gauge(fn(&R) -> u64),
    /// A counter for each value of a label.
    Counters(&'static str, Each<R, u64>),
    Coarse(fn(&R) -> &CoarseHistogram),
    Fine(fn(&R) -> &Histogram),
    /// A histogram for each value of a label.
    Fines(&'static str, EachHistogram<R>),
}

type Each<R, V> = fn(&R, &mut dyn FnMut(&str, V));

type EachHistogram<R> = for<'a> fn(&'a R, &mut dyn FnMut(&str, &'a Histogram));

pub(crate) struct Metric<R: 'static> {
    name: &'static str,
    help: &'static str,
    value: Value<R>,
}

const fn metric<R>(name: &'static str, value: Value<R>, help: &'static str) -> Metric<R> {
    Metric { name, help, value }
}

/// Sums over all cores.
pub(crate) const PROCESS: &[Metric<CoreStats>] = &[
    metric(
        "shard_requests_total",
        Value::Counters("method", |s, each| {
            METHODS.iter().zip(&s.methods).for_each(|(method, n)| each(method.label(), *n));
        }),
        "Finished exchanges by request method; extension methods are `other`.",
    ),
    metric(
        "shard_requests_by_protocol_total",
        Value::Counters("protocol", |s, each| {
            PROTOCOLS.iter().zip(&s.protocols).for_each(|(protocol, n)| each(protocol, *n));
        }),
        "Finished exchanges by the protocol between client and proxy.",
    ),
    metric(
        "shard_responses_total",
        Value::Counters("code", |s, each| {
            s.statuses().for_each(|(status, n)| each(&status.to_string(), n));
        }),
        "Finished exchanges by status sent to the client; 0: no response head was sent.",
    ),
    metric(
        "shard_reasons_total",
        Value::Counters("reason", |s, each| {
            Reason::ALL.iter().for_each(|reason| each(reason.code(), s.reason_count(*reason)));
        }),
        "Ends of exchanges and connections by reason code (docs/reason-codes.md).",
    ),
    metric(
        "shard_stage_seconds",
        Value::Fines("stage", |s, each| {
            Stage::ALL.iter().zip(&s.stages).for_each(|(stage, histogram)| each(stage.label(), histogram));
        }),
        "Where the time goes: accept_wait, tls_full and tls_resumed by connection, the others by exchange.",
    ),
    metric(
        "shard_reactor_turn_seconds",
        Value::Fine(|s| &s.turns),
        "Length of reactor turns; a turn over 1 ms delays every connection of its core.",
    ),
    metric(
        "shard_log_rows_written_total",
        Value::Counter(|s| s.counters.log_rows_written),
        "Access log rows handed to the log queue.",
    ),
    metric(
        "shard_log_rows_dropped_total",
        Value::Counter(|s| s.counters.log_rows_dropped),
        "Access log rows lost because the log queue was full.",
    ),
    metric(
        "shard_client_limit_evicted_early_total",
        Value::Counter(|s| s.counters.clients_evicted_early),
        "Clients whose rate limit started anew because the limiter's table was full.",
    ),
    metric(
        "shard_client_limit_untracked_total",
        Value::Counter(|s| s.counters.clients_untracked),
        "Connections and requests let through uncounted because the limiter's table was full.",
    ),
    metric(
        "shard_tokens_verified_total",
        Value::Counter(|s| s.counters.tokens_verified),
        "Bearer tokens that were not seen before, so that their signature was looked at.",
    ),
    metric(
        "shard_tokens_from_cache_total",
        Value::Counter(|s| s.counters.tokens_from_cache),
        "Bearer tokens that had been verified before.",
    ),
    metric(
        "shard_pool_reused_total",
        Value::Counter(|s| s.counters.pool_reused),
        "Requests sent on a pooled upstream connection.",
    ),
    metric(
        "shard_pool_stale_total",
        Value::Counter(|s| s.counters.pool_stale),
        "Pooled upstream connections found closed.",
    ),
    metric(
        "shard_snapshots_applied_total",
        Value::Counter(|s| s.counters.snapshots_applied),
        "Config snapshots applied, summed over cores.",
    ),
];

/// By core, with the label `core`.
pub(crate) const CORE: &[Metric<CoreStats>] = &[
    metric("shard_core_connections", Value::Gauge(|s| s.gauges.connections), "Open client connections."),
    metric("shard_core_requests", Value::Gauge(|s| s.gauges.requests), "Exchanges in progress."),
    metric(
        "shard_core_upstream_connections",
        Value::Gauge(|s| s.gauges.upstream_connections),
        "Open upstream connections.",
    ),
    metric(
        "shard_core_upstream_connections_idle",
        Value::Gauge(|s| s.gauges.upstream_connections_idle),
        "Upstream connections that wait in a pool.",
    ),
    metric(
        "shard_core_buffers",
        Value::Gauge(|s| s.gauges.buffers_in_use),
        "Buffers taken from the core's pool.",
    ),
    metric(
        "shard_core_pipes",
        Value::Gauge(|s| s.gauges.pipes),
        "Pipes for long bodies, in use and free; two descriptors each, at most 64 pipes.",
    ),
    metric(
        "shard_core_clients",
        Value::Gauge(|s| s.gauges.clients),
        "Clients in the table of the client limiter.",
    ),
    metric(
        "shard_core_tokens",
        Value::Gauge(|s| s.gauges.tokens),
        "Verified tokens that the core remembers.",
    ),
    metric(
        "shard_core_snapshots",
        Value::Gauge(|s| s.gauges.snapshots),
        "Config generations that still serve connections.",
    ),
];

/// By listener, with the label `listener`.
pub(crate) const LISTENER: &[Metric<ListenerRow>] = &[
    metric(
        "shard_listener_connections",
        Value::Gauge(|r| r.connections_accepted.saturating_sub(r.connections_closed)),
        "Open client connections.",
    ),
    metric(
        "shard_listener_connections_accepted_total",
        Value::Counter(|r| r.connections_accepted),
        "Accepted client connections.",
    ),
    metric(
        "shard_listener_connections_refused_total",
        Value::Counter(|r| r.connections_refused),
        "Client connections closed at accept by a limit or an address rule.",
    ),
    metric(
        "shard_listener_connections_by_protocol_total",
        Value::Counters("protocol", |r, each| {
            each("h1", r.connections_h1);
            each("h2", r.connections_h2);
            each("tcp", r.connections_tcp);
        }),
        "Client connections by the protocol they turned out to speak.",
    ),
    metric(
        "shard_listener_handshakes_total",
        Value::Counters("result", |r, each| {
            each("full", r.handshakes_full);
            each("resumed", r.handshakes_resumed);
            each("failed", r.handshakes_failed);
        }),
        "TLS handshakes.",
    ),
    metric(
        "shard_listener_requests_total",
        Value::Counters("class", |r, each| by_class(&r.requests, each)),
        "Finished exchanges by class of the status sent.",
    ),
    metric(
        "shard_listener_request_bytes_total",
        Value::Counter(|r| r.request_bytes),
        "Request body bytes received; of TCP listeners all bytes from clients.",
    ),
    metric(
        "shard_listener_response_bytes_total",
        Value::Counter(|r| r.response_bytes),
        "Response body bytes sent; of TCP listeners all bytes to clients.",
    ),
];

/// By route, with the label `route`.
pub(crate) const ROUTE: &[Metric<RouteRow>] = &[
    metric(
        "shard_route_requests_total",
        Value::Counters("class", |r, each| by_class(&r.requests, each)),
        "Finished exchanges by class of the status sent.",
    ),
    metric(
        "shard_route_failures_total",
        Value::Counter(|r| r.failures),
        "Exchanges that ended with a reason other than success.",
    ),
    metric(
        "shard_route_request_bytes_total",
        Value::Counter(|r| r.request_bytes),
        "Request body bytes received.",
    ),
    metric(
        "shard_route_response_bytes_total",
        Value::Counter(|r| r.response_bytes),
        "Response body bytes sent.",
    ),
    metric(
        "shard_route_duration_seconds",
        Value::Coarse(|r| &r.duration),
        "Whole exchanges, from the first byte of the request to the end.",
    ),
];

/// By cluster, with the label `cluster`.
pub(crate) const CLUSTER: &[Metric<ClusterRow>] = &[
    metric(
        "shard_cluster_requests_total",
        Value::Counters("class", |r, each| by_class(&r.requests, each)),
        "Finished exchanges by class of the status sent.",
    ),
    metric(
        "shard_cluster_failures_total",
        Value::Counter(|r| r.failures),
        "Exchanges that ended with a reason other than success; connections of TCP listeners that ended with one that the config or a drain did not bring about.",
    ),
    metric(
        "shard_cluster_attempts_total",
        Value::Counter(|r| r.attempts),
        "Requests sent to endpoints, and connections passed on by TCP listeners, retries included.",
    ),
    metric(
        "shard_cluster_retries_total",
        Value::Counter(|r| r.retries),
        "Attempts after the first one of an exchange.",
    ),
    metric("shard_cluster_connects_total", Value::Counter(|r| r.connects), "Connections dialled."),
    metric(
        "shard_cluster_connect_failures_total",
        Value::Counter(|r| r.connect_failures),
        "Connections dialled that did not come about, TLS included.",
    ),
    metric(
        "shard_cluster_request_bytes_total",
        Value::Counter(|r| r.request_bytes),
        "Request body bytes received for the cluster.",
    ),
    metric(
        "shard_cluster_response_bytes_total",
        Value::Counter(|r| r.response_bytes),
        "Response body bytes sent from the cluster.",
    ),
    metric(
        "shard_cluster_first_byte_seconds",
        Value::Coarse(|r| &r.first_byte),
        "From the request having been sent to the first byte of the response.",
    ),
    metric(
        "shard_cluster_refused_total",
        Value::Counters("cause", |r, each| {
            each("in_flight_limit", r.refused_in_flight);
            each("circuit_open", r.refused_circuit);
            each("shed", r.refused_shed);
        }),
        "Requests refused at once to protect the cluster, by reason code.",
    ),
    metric(
        "shard_cluster_retries_over_budget_total",
        Value::Counter(|r| r.retries_over_budget),
        "Attempts that were not made again because the retry budget was spent.",
    ),
    metric(
        "shard_cluster_hedges_total",
        Value::Counters("end", |r, each| {
            each("won", r.hedges_won);
            each("lost", r.hedges_lost);
            each("failed", r.hedges_failed);
        }),
        "Second attempts while the first was silent: its answer was passed on; the first one's was; it came to nothing.",
    ),
    metric(
        "shard_cluster_hedges_over_budget_total",
        Value::Counter(|r| r.hedges_over_budget),
        "Second attempts that were due and not made because the hedge budget was spent.",
    ),
    metric(
        "shard_cluster_attempts_beyond_zone_total",
        Value::Counter(|r| r.beyond_zone),
        "Attempts at endpoints outside the proxy's zone, in clusters with `zones` on proxies with `--zone`.",
    ),
    metric(
        "shard_cluster_attempts_in_panic_total",
        Value::Counter(|r| r.attempts_in_panic),
        "Attempts for which the health of endpoints was ignored, because too few were available.",
    ),
    metric(
        "shard_cluster_ejections_total",
        Value::Counter(|r| r.ejections),
        "Endpoints taken out for their failures, each core by itself.",
    ),
    metric(
        "shard_cluster_ejections_withheld_total",
        Value::Counter(|r| r.ejections_withheld),
        "Ejections that were called for and not made: too many endpoints were out, or the rule only logs.",
    ),
    metric(
        "shard_cluster_panics_total",
        Value::Counter(|r| r.panics),
        "Times that a core began to ignore the health of endpoints because too few were available.",
    ),
    metric(
        "shard_cluster_breaker_opens_total",
        Value::Counter(|r| r.breaker_opens),
        "Times that a core's circuit breaker opened, or stayed open after probes.",
    ),
    metric(
        "shard_cluster_mirrors_sent_total",
        Value::Counter(|r| r.mirrors[MirrorEnd::Sent.index()]),
        "Requests mirrored to the cluster and answered by it; not among its requests.",
    ),
    metric(
        "shard_cluster_mirrors_skipped_total",
        Value::Counters("cause", |r, each| {
            MirrorEnd::skipped(&r.mirrors).for_each(|(cause, n)| each(cause, n));
        }),
        "Requests in the sample that were not mirrored to the cluster (docs/resilience.md).",
    ),
    metric(
        "shard_cluster_mirrors_failed_total",
        Value::Counters("cause", |r, each| {
            MirrorEnd::failed(&r.mirrors).for_each(|(cause, n)| each(cause, n));
        }),
        "Requests mirrored to the cluster that it did not answer, or that were cut (docs/resilience.md).",
    ),
    metric(
        "shard_cluster_mirror_bytes_total",
        Value::Counter(|r| r.mirror_bytes),
        "Request body bytes mirrored to the cluster.",
    ),
    metric(
        "shard_cluster_mirrors_in_flight",
        Value::Gauge(|r| r.mirrors_in_flight),
        "Mirrored requests that the cluster has now, and those whose body is being copied.",
    ),
    metric(
        "shard_cluster_mirror_bytes_held",
        Value::Gauge(|r| r.mirror_bytes_held),
        "Request body bytes that wait for mirrors in the cluster.",
    ),
    metric(
        "shard_cluster_sessions_total",
        Value::Counters("fate", |r, each| {
            each(SessionFate::New.code(), r.sessions_new);
            each(SessionFate::Kept.code(), r.sessions_kept);
            each(SessionFate::Renewed.code(), r.sessions_renewed);
            each(SessionFate::RingExpired.code(), r.sessions_ring_expired);
            each(SessionFate::EndpointGone.code(), r.sessions_endpoint_gone);
        }),
        "Requests to a cluster with sticky sessions, by what became of the session: `new`; `kept` at its endpoint; `renewed`, the same with a new cookie; moved because its ring is too old or its endpoint gone.",
    ),
    metric(
        "shard_cluster_session_cookies_refused_total",
        Value::Counters("code", |r, each| {
            each(CookieFault::Length.code(), r.cookies_length);
            each(CookieFault::Encoding.code(), r.cookies_encoding);
            each(CookieFault::Format.code(), r.cookies_format);
            each(CookieFault::Tag.code(), r.cookies_tag);
        }),
        "Session cookies that were not believed, each the beginning of a new session: cut short, tampered with, of another cluster, or by a key that is gone.",
    ),
    metric("shard_cluster_in_flight", Value::Gauge(|r| r.in_flight), "Requests that the cluster has now."),
    metric(
        "shard_cluster_endpoints",
        Value::Gauge(|r| r.endpoints),
        "Endpoints that cores balance over, summed over the cores that have used the cluster; with `subset` each core's own.",
    ),
    metric(
        "shard_cluster_endpoints_ejected",
        Value::Gauge(|r| r.ejected),
        "Endpoints that are ejected now, summed over cores.",
    ),
    metric(
        "shard_cluster_panic_cores",
        Value::Gauge(|r| r.in_panic),
        "Cores that ignore the health of the cluster's endpoints now.",
    ),
    metric(
        "shard_cluster_breaker_open_cores",
        Value::Gauge(|r| r.breaker_open),
        "Cores whose circuit breaker for the cluster is not closed now.",
    ),
];

/// By endpoint, with the labels `cluster` and `endpoint`.
pub(crate) const ENDPOINT: &[Metric<EndpointRow>] = &[
    metric(
        "shard_endpoint_requests_total",
        Value::Counters("class", |r, each| by_class(&r.requests, each)),
        "Finished exchanges whose last attempt went to the endpoint, by class of the status sent.",
    ),
    metric(
        "shard_endpoint_failures_total",
        Value::Counter(|r| r.failures),
        "Of these, the ones with a reason other than success.",
    ),
    metric("shard_endpoint_connects_total", Value::Counter(|r| r.connects), "Connections dialled."),
    metric(
        "shard_endpoint_connect_failures_total",
        Value::Counter(|r| r.connect_failures),
        "Connections dialled that did not come about, TLS included.",
    ),
    metric(
        "shard_endpoint_first_byte_seconds",
        Value::Coarse(|r| &r.first_byte),
        "From the request having been sent to the first byte of the response.",
    ),
];

fn by_class(counts: &[u64; STATUS_CLASSES.len()], each: &mut dyn FnMut(&str, u64)) {
    STATUS_CLASSES.iter().zip(counts).for_each(|(class, n)| each(class, *n));
}

impl<R> Value<R> {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Counter(_) | Self::Counters(..) => "counter",
            Self::Gauge(_) => "gauge",
            Self::Coarse(_) | Self::Fine(_) | Self::Fines(..) => "histogram",
        }
    }
}

/// Writes each metric of a list for each row; `rows` yields label sets without braces, or empty ones.
pub(crate) fn write_list<'a, R: 'a, I>(out: &mut Vec<u8>, list: &[Metric<R>], rows: impl Fn() -> I)
where
    I: Iterator<Item = (&'a str, &'a R)>,
{
    for metric in list {
        let name = metric.name;
        print(out, format_args!("# HELP {name} {}\n# TYPE {name} {}\n", metric.help, metric.value.kind()));
        for (labels, row) in rows() {
            write_metric(out, metric, labels, row);
        }
    }
}

fn write_metric<R>(out: &mut Vec<u8>, metric: &Metric<R>, labels: &str, row: &R) {
    let name = metric.name;
    match &metric.value {
        Value::Counter(get) | Value::Gauge(get) => sample(out, name, "", labels, None, get(row)),
        Value::Counters(label, each) => each(row, &mut |value, count| {
            if count > 0 {
                sample(out, name, "", labels, Some((label, value)), count);
            }
        }),
        Value::Coarse(get) => {
            let histogram = get(row);
            buckets(out, name, labels, None, ROW_BOUNDS_NS.iter().copied().zip(histogram.cumulative()));
            sum_and_count(out, name, labels, None, histogram.sum_ns(), histogram.count());
        }
        Value::Fine(get) => write_fine(out, name, labels, None, get(row)),
        Value::Fines(label, each) => each(row, &mut |value, histogram| {
            write_fine(out, name, labels, Some((label, value)), histogram);
        }),
    }
}

fn write_fine(
    out: &mut Vec<u8>,
    name: &str,
    labels: &str,
    extra: Option<(&str, &str)>,
    histogram: &Histogram,
) {
    buckets(
        out,
        name,
        labels,
        extra,
        STAGE_BOUNDS_NS.iter().copied().zip(histogram.cumulative(&STAGE_BOUNDS_NS)),
    );
    sum_and_count(out, name, labels, extra, histogram.sum_ns(), histogram.count());
}

fn buckets(
    out: &mut Vec<u8>,
    name: &str,
    labels: &str,
    extra: Option<(&str, &str)>,
    buckets: impl Iterator<Item = (u64, u64)>,
) {
    for (bound_ns, count) in buckets {
        open_labels(out, name, "_bucket", labels, extra);
        print(out, format_args!("{}le=\"{}\"}} {count}\n", comma(labels, extra), Seconds(bound_ns)));
    }
}

fn sum_and_count(
    out: &mut Vec<u8>,
    name: &str,
    labels: &str,
    extra: Option<(&str, &str)>,
    sum_ns: u64,
    count: u64,
) {
    open_labels(out, name, "_bucket", labels, extra);
    print(out, format_args!("{}le=\"+Inf\"}} {count}\n", comma(labels, extra)));
    write_head(out, name, "_sum", labels, extra);
    print(out, format_args!(" {}\n", Seconds(sum_ns)));
    sample(out, name, "_count", labels, extra, count);
}

fn sample(
    out: &mut Vec<u8>,
    name: &str,
    suffix: &str,
    labels: &str,
    extra: Option<(&str, &str)>,
    value: u64,
) {
    write_head(out, name, suffix, labels, extra);
    print(out, format_args!(" {value}\n"));
}

/// Name and label set, whole.
fn write_head(out: &mut Vec<u8>, name: &str, suffix: &str, labels: &str, extra: Option<(&str, &str)>) {
    if labels.is_empty() && extra.is_none() {
        print(out, format_args!("{name}{suffix}"));
    } else {
        open_labels(out, name, suffix, labels, extra);
        out.push(b'}');
    }
}

fn open_labels(out: &mut Vec<u8>, name: &str, suffix: &str, labels: &str, extra: Option<(&str, &str)>) {
    print(out, format_args!("{name}{suffix}{{{labels}"));
    if let Some((label, value)) = extra {
        print(out, format_args!("{}{label}=\"{value}\"", comma(labels, None)));
    }
}

const fn comma(labels: &str, extra: Option<(&str, &str)>) -> &'static str {
    if labels.is_empty() && extra.is_none() { "" } else { "," }
}

/// Nanoseconds, printed as seconds without rounding.
struct Seconds(u64);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (whole, mut fraction) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000);
        if fraction == 0 {
            return write!(f, "{whole}");
        }
        let mut digits = 9;
        while fraction % 10 == 0 {
            fraction /= 10;
            digits -= 1;
        }
        write!(f, "{whole}.{fraction:0digits$}")
    }
}

fn print(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a Vec takes every byte");
}

/// docs/metrics.md.
pub fn reference() -> String {
    let mut out = String::from(REFERENCE_HEAD);
    reference_of(&mut out, "Process", "summed over the cores", "", PROCESS);
    reference_of(&mut out, "Cores", "by core", "core", CORE);
    reference_of(&mut out, "Listeners", "by listener", "listener", LISTENER);
    reference_of(&mut out, "Routes", "by route", "route", ROUTE);
    reference_of(&mut out, "Clusters", "by cluster", "cluster", CLUSTER);
    reference_of(&mut out, "Endpoints", "by endpoint", "cluster, endpoint", ENDPOINT);
    out
}

const REFERENCE_HEAD: &str = "# Metrics

Prometheus text on the admin listener's `/metrics`. Scraping never touches a reactor: each core copies its counters
twice a second to the aggregator, which adds them up when somebody asks. Labels are names of the config or closed
sets, never what a client sends. Tables are bounded (docs/limits.md); what has no row of its own counts under the
name `_overflow`. Of a metric split by a label only the parts that ever counted are shown. Histograms are kept in
buckets of 1.6 % width; the bounds shown here go from 1 µs to 30 s for stages and from 500 µs to 30 s for rows.
This page is generated from `http/proxy/src/record/metrics.rs`; run its test with `SHARD_REGENERATE_DOCS=1` after
a change.
";

fn reference_of<R>(out: &mut String, title: &str, what: &str, labels: &str, list: &[Metric<R>]) {
    let mut line = |text: std::fmt::Arguments<'_>| out.write_fmt(text).expect("a String takes every text");
    line(format_args!("\n## {title}: {what}\n\n| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n"));
    for Metric { name, help, value } in list {
        let own = match value {
            Value::Counters(label, _) | Value::Fines(label, _) => *label,
            Value::Counter(_) | Value::Gauge(_) | Value::Coarse(_) | Value::Fine(_) => "",
        };
        let comma = if labels.is_empty() || own.is_empty() { "" } else { ", " };
        line(format_args!("| `{name}` | {} | {labels}{comma}{own} | {help} |\n", value.kind()));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn seconds_are_exact() {
        let table = [
            (0, "0"),
            (1, "0.000000001"),
            (1_000, "0.000001"),
            (2_500_000, "0.0025"),
            (1_000_000_000, "1"),
            (30_500_000_000, "30.5"),
            (u64::MAX, "18446744073.709551615"),
        ];
        for (ns, text) in table {
            assert_eq!(Seconds(ns).to_string(), text);
        }
    }

    #[test]
    fn names_follow_the_conventions() {
        fn check<R>(list: &[Metric<R>]) -> Vec<&'static str> {
            for metric in list {
                let (name, kind) = (metric.name, metric.value.kind());
                assert!(
                    name.starts_with("shard_") && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
                    "{name}"
                );
                assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
                assert_eq!(name.ends_with("_seconds"), kind == "histogram", "{name}");
                assert!(metric.help.ends_with('.') && !metric.help.contains(['\n', '|', '\\']), "{name}");
            }
            list.iter().map(|m| m.name).collect()
        }
        let mut names =
            [check(PROCESS), check(CORE), check(LISTENER), check(ROUTE), check(CLUSTER), check(ENDPOINT)]
                .concat();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "a name stands twice");
    }

    #[test]
    fn the_page_in_docs_is_this_list() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
        if std::env::var_os("SHARD_REGENERATE_DOCS").is_some() {
            std::fs::write(&page, reference()).expect("docs/ is writable");
        }
        let found = std::fs::read_to_string(&page).unwrap_or_default();
        assert!(found == reference(), "docs/metrics.md is stale: run this test with SHARD_REGENERATE_DOCS=1");
    }
}
