//! The counters of one core: plain integers, added by the core alone.
//!
//! Tables have one row for each listener, route, cluster and endpoint, by [`StatId`]. They grow when a snapshot is
//! applied and never on the request path. Every 500 ms the core copies all of it into a [`super::Frame`] for the aggregator.

use std::time::Duration;

use super::histogram::Histogram;
use super::mirror::MirrorEnd;
use super::outcome::{METHODS, Outcome, PROTOCOLS, Stage, class_index, method_index, protocol_index};
use super::rows::{ClusterEvents, ClusterRow, EndpointRow, ListenerRow, RouteRow, Table, add_each};
use crate::pool::Condition;
use crate::reason::Reason;
use crate::snapshot::StatId;
use http_balance::hashing::SessionFate;
use http_balance::sticky::CookieFault;
use http_wire::head::Version;

/// Rows that the tables must have, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableSizes {
    pub listeners: usize,
    pub routes: usize,
    pub clusters: usize,
    pub endpoints: usize,
}

/// Rows that a table may have (docs/limits.md); ids from there on share the overflow row.
pub const TABLE_SIZES_MAX: TableSizes =
    TableSizes { listeners: 256, routes: 20_000, clusters: 10_000, endpoints: 50_000 };

/// Which table a [`StatId`] belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatTable {
    Listener,
    Route,
    Cluster,
    Endpoint,
}

/// States of the moment, set by the core before it copies its frame; kept apart by core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreGauges {
    pub connections: u64,
    pub requests: u64,
    pub upstream_connections: u64,
    pub upstream_connections_idle: u64,
    pub buffers_in_use: u64,
    /// For long bodies; two descriptors each.
    pub pipes: u64,
    /// Entries of the client limiter.
    pub clients: u64,
    /// Verified tokens that are remembered.
    pub tokens: u64,
    /// Running config generations: more than one while old connections drain.
    pub snapshots: u64,
}

/// Counters of a core that belong to no row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreCounters {
    pub log_rows_written: u64,
    /// The log queue was full.
    pub log_rows_dropped: u64,
    /// See `http_gateway::client_limit::ClientLimiterCounts`.
    pub clients_evicted_early: u64,
    pub clients_untracked: u64,
    /// Tokens whose signature was looked at, and those that were seen before.
    pub tokens_verified: u64,
    pub tokens_from_cache: u64,
    /// A pooled connection was found closed when it was taken or first used.
    pub pool_stale: u64,
    pub pool_reused: u64,
    pub snapshots_applied: u64,
}

/// 100 to 599, and one place for everything else.
const STATUS_CODES: usize = 501;

/// How a TLS handshake ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    Full(Duration),
    Resumed(Duration),
    /// `TlsHandshakeFailed` or `TlsHandshakeTimeout`.
    Failed(Reason),
}

/// All counters of one core, or the sums of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreStats {
    pub gauges: CoreGauges,
    pub counters: CoreCounters,
    pub(crate) methods: [u64; METHODS.len()],
    pub(crate) protocols: [u64; PROTOCOLS.len()],
    pub(crate) statuses: Box<[u64]>,
    pub(crate) reasons: Box<[u64]>,
    pub(crate) stages: Vec<Histogram>,
    pub(crate) turns: Histogram,
    pub(crate) listeners: Table<ListenerRow>,
    pub(crate) routes: Table<RouteRow>,
    pub(crate) clusters: Table<ClusterRow>,
    pub(crate) endpoints: Table<EndpointRow>,
}

impl Default for CoreStats {
    fn default() -> Self {
        Self {
            gauges: CoreGauges::default(),
            counters: CoreCounters::default(),
            methods: [0; METHODS.len()],
            protocols: [0; PROTOCOLS.len()],
            statuses: vec![0; STATUS_CODES].into_boxed_slice(),
            reasons: vec![0; Reason::ALL.len()].into_boxed_slice(),
            stages: vec![Histogram::default(); Stage::ALL.len()],
            turns: Histogram::default(),
            listeners: Table::default(),
            routes: Table::default(),
            clusters: Table::default(),
            endpoints: Table::default(),
        }
    }
}

/// What became of a hedge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HedgeEnd {
    /// Its answer was passed on.
    Won,
    /// The first attempt answered before it, or the client left.
    Lost,
    /// No connection, no answer, or a 5xx; the first attempt went on.
    Failed,
    /// It was due, but the budget was spent.
    OverBudget,
}

fn status_index(status: u16) -> usize {
    match status {
        100..=599 => usize::from(status) - 99,
        _ => 0,
    }
}

impl ClusterRow {
    /// What the end of an exchange and of a connection passed on have in common.
    #[inline]
    fn ended(&mut self, outcome: &Outcome, failed: u64) {
        self.failures += failed;
        self.attempts += u64::from(outcome.attempts);
        self.retries += u64::from(outcome.attempts.saturating_sub(1));
        self.request_bytes += outcome.request_bytes;
        self.response_bytes += outcome.response_bytes;
        match outcome.reason {
            Reason::InFlightLimit => self.refused_in_flight += 1,
            Reason::CircuitOpen => self.refused_circuit += 1,
            Reason::Shed => self.refused_shed += 1,
            _ => {}
        }
    }
}

impl CoreStats {
    /// Makes rows for a snapshot that is about to be applied. Tables do not shrink and stop at [`TABLE_SIZES_MAX`].
    pub fn grow(&mut self, sizes: TableSizes) {
        let max = TABLE_SIZES_MAX;
        self.listeners.grow(sizes.listeners.min(max.listeners));
        self.routes.grow(sizes.routes.min(max.routes));
        self.clusters.grow(sizes.clusters.min(max.clusters));
        self.endpoints.grow(sizes.endpoints.min(max.endpoints));
    }

    /// Zeroes a row whose id will get a new owner.
    pub fn forget(&mut self, table: StatTable, id: StatId) {
        match table {
            StatTable::Listener => self.listeners.forget(id),
            StatTable::Route => self.routes.forget(id),
            StatTable::Cluster => self.clusters.forget(id),
            StatTable::Endpoint => self.endpoints.forget(id),
        }
    }

    /// Counts a finished exchange.
    pub fn record(&mut self, outcome: &Outcome) {
        let class = class_index(outcome.status);
        let failed = u64::from(!outcome.reason.is_success());
        self.methods[method_index(outcome.method)] += 1;
        self.protocols[protocol_index(outcome.protocol)] += 1;
        self.statuses[status_index(outcome.status)] += 1;
        self.reasons[outcome.reason.index()] += 1;
        for (stage, histogram) in Stage::ALL.into_iter().zip(&mut self.stages) {
            if !stage.is_of_connection()
                && let Some(time) = outcome.stages.get(stage)
            {
                histogram.record(time);
            }
        }

        let listener = self.listeners.row_mut(outcome.listener);
        listener.requests[class] += 1;
        listener.request_bytes += outcome.request_bytes;
        listener.response_bytes += outcome.response_bytes;

        if let Some(id) = outcome.route {
            let route = self.routes.row_mut(id);
            route.requests[class] += 1;
            route.failures += failed;
            route.request_bytes += outcome.request_bytes;
            route.response_bytes += outcome.response_bytes;
            if let Some(total) = outcome.stages.get(Stage::Total) {
                route.duration.record(total);
            }
        }
        let first_byte = outcome.stages.get(Stage::FirstByte);
        if let Some(id) = outcome.cluster {
            let cluster = self.clusters.row_mut(id);
            cluster.requests[class] += 1;
            cluster.ended(outcome, failed);
            if let Some(time) = first_byte {
                cluster.first_byte.record(time);
            }
        }
        if let Some(id) = outcome.endpoint {
            let endpoint = self.endpoints.row_mut(id);
            endpoint.requests[class] += 1;
            endpoint.failures += failed;
            if let Some(time) = first_byte {
                endpoint.first_byte.record(time);
            }
        }
    }

    /// Counts an accepted connection and the time it waited for accept.
    pub fn connection_accepted(&mut self, listener: StatId, accept_wait: Duration) {
        self.listeners.row_mut(listener).connections_accepted += 1;
        self.stages[Stage::AcceptWait.index()].record(accept_wait);
    }

    /// Counts a connection that was closed at once: the listener's or the client's limit, or an address rule.
    pub fn connection_refused(&mut self, listener: StatId, reason: Reason) {
        self.listeners.row_mut(listener).connections_refused += 1;
        self.reasons[reason.index()] += 1;
    }

    /// Counts the end of an accepted connection. `reason` is why, when it did not end by an exchange (idle, PROXY
    /// protocol, flood).
    pub fn connection_closed(&mut self, listener: StatId, reason: Option<Reason>) {
        self.listeners.row_mut(listener).connections_closed += 1;
        if let Some(reason) = reason {
            self.reasons[reason.index()] += 1;
        }
    }

    /// Counts a finished handshake. A failed one counts its reason here, so its connection closes without one.
    pub fn handshake(&mut self, listener: StatId, handshake: Handshake) {
        let row = self.listeners.row_mut(listener);
        match handshake {
            Handshake::Full(time) => {
                row.handshakes_full += 1;
                self.stages[Stage::TlsFull.index()].record(time);
            }
            Handshake::Resumed(time) => {
                row.handshakes_resumed += 1;
                self.stages[Stage::TlsResumed.index()].record(time);
            }
            Handshake::Failed(reason) => {
                row.handshakes_failed += 1;
                self.reasons[reason.index()] += 1;
            }
        }
    }

    /// Counts a connection by the protocol that it turned out to speak.
    pub fn protocol_known(&mut self, listener: StatId, version: Version) {
        let row = self.listeners.row_mut(listener);
        match version {
            Version::Http10 | Version::Http11 => row.connections_h1 += 1,
            Version::Http2 => row.connections_h2 += 1,
        }
    }

    /// Counts a connection that is passed on byte by byte.
    pub fn tcp_opened(&mut self, listener: StatId) {
        self.listeners.row_mut(listener).connections_tcp += 1;
    }

    /// Counts the end of a connection that was passed on byte by byte: no request, but attempts, bytes and failures, of
    /// which ends that were configured are none. The reason is counted with the connection.
    pub fn tcp_closed(&mut self, outcome: &Outcome) {
        let is_configured =
            matches!(outcome.reason, Reason::IdleTimeout | Reason::ConnectionAgeMax | Reason::Draining);
        let failed = u64::from(!outcome.reason.is_success() && !is_configured);
        if let Some(time) = outcome.stages.get(Stage::Connect) {
            self.stages[Stage::Connect.index()].record(time);
        }
        let listener = self.listeners.row_mut(outcome.listener);
        listener.request_bytes += outcome.request_bytes;
        listener.response_bytes += outcome.response_bytes;
        if let Some(id) = outcome.cluster {
            self.clusters.row_mut(id).ended(outcome, failed);
        }
        if let Some(id) = outcome.endpoint {
            self.endpoints.row_mut(id).failures += failed;
        }
    }

    /// Counts an attempt to connect to an endpoint.
    pub fn upstream_connect(&mut self, cluster: StatId, endpoint: StatId, result: Result<(), Reason>) {
        let failed = u64::from(result.is_err());
        let row = self.clusters.row_mut(cluster);
        row.connects += 1;
        row.connect_failures += failed;
        let row = self.endpoints.row_mut(endpoint);
        row.connects += 1;
        row.connect_failures += failed;
    }

    /// Counts an attempt that was not made again because the cluster's budget was spent.
    pub fn retry_over_budget(&mut self, cluster: StatId) {
        self.clusters.row_mut(cluster).retries_over_budget += 1;
    }

    /// Counts the end of a hedge, or one that the cluster's budget did not allow.
    pub(crate) fn hedge_ended(&mut self, cluster: StatId, end: HedgeEnd) {
        let row = self.clusters.row_mut(cluster);
        match end {
            HedgeEnd::Won => row.hedges_won += 1,
            HedgeEnd::Lost => row.hedges_lost += 1,
            HedgeEnd::Failed => row.hedges_failed += 1,
            HedgeEnd::OverBudget => row.hedges_over_budget += 1,
        }
    }

    /// Counts an attempt for which the health of endpoints was ignored.
    pub(crate) fn chose_in_panic(&mut self, cluster: StatId) {
        self.clusters.row_mut(cluster).attempts_in_panic += 1;
    }

    /// Counts an attempt at an endpoint outside the proxy's zone, where that counts.
    pub(crate) fn left_zone(&mut self, cluster: StatId) {
        self.clusters.row_mut(cluster).beyond_zone += 1;
    }

    /// Counts a request that was to be mirrored to a cluster.
    pub(crate) fn mirror_ended(&mut self, cluster: StatId, end: MirrorEnd) {
        self.clusters.row_mut(cluster).mirrors[end.index()] += 1;
    }

    /// Counts body bytes that a mirror took.
    pub(crate) fn mirror_took(&mut self, cluster: StatId, bytes: u64) {
        self.clusters.row_mut(cluster).mirror_bytes += bytes;
    }

    /// Counts a request with a session.
    pub fn session(&mut self, cluster: StatId, fate: SessionFate) {
        let row = self.clusters.row_mut(cluster);
        *match fate {
            SessionFate::New => &mut row.sessions_new,
            SessionFate::Kept => &mut row.sessions_kept,
            SessionFate::Renewed => &mut row.sessions_renewed,
            SessionFate::RingExpired => &mut row.sessions_ring_expired,
            SessionFate::EndpointGone => &mut row.sessions_endpoint_gone,
        } += 1;
    }

    /// Counts a session cookie that is not believed.
    pub fn session_cookie_refused(&mut self, cluster: StatId, fault: CookieFault) {
        let row = self.clusters.row_mut(cluster);
        *match fault {
            CookieFault::Length => &mut row.cookies_length,
            CookieFault::Encoding => &mut row.cookies_encoding,
            CookieFault::Format => &mut row.cookies_format,
            CookieFault::Tag => &mut row.cookies_tag,
        } += 1;
    }

    /// Counts what happened to a cluster's endpoints.
    pub fn cluster_events(&mut self, cluster: StatId, events: ClusterEvents) {
        let row = self.clusters.row_mut(cluster);
        row.ejections += events.ejections;
        row.ejections_withheld += events.ejections_withheld;
        row.panics += events.panics;
        row.breaker_opens += events.breaker_opens;
    }

    /// Sets a cluster's gauges.
    pub(crate) fn cluster_condition(&mut self, cluster: StatId, condition: Condition) {
        let row = self.clusters.row_mut(cluster);
        row.in_flight = condition.in_flight;
        row.mirrors_in_flight = condition.mirrors;
        row.mirror_bytes_held = condition.mirror_bytes_held;
        row.ejected = condition.ejected;
        row.in_panic = u64::from(condition.is_in_panic);
        row.endpoints = condition.endpoints;
        row.breaker_open = u64::from(condition.breaker_is_open);
    }

    /// Counts `times` turns of the reactor that took `time` each.
    pub fn turns_of(&mut self, time: Duration, times: u64) {
        self.turns.record_many(time, times);
    }

    pub fn stage(&self, stage: Stage) -> &Histogram {
        &self.stages[stage.index()]
    }

    pub fn reason_count(&self, reason: Reason) -> u64 {
        self.reasons[reason.index()]
    }

    pub const fn turns(&self) -> &Histogram {
        &self.turns
    }

    /// None when the id has no row.
    pub fn listener(&self, id: StatId) -> Option<&ListenerRow> {
        self.listeners.row(id)
    }

    /// None when the id has no row.
    pub fn route(&self, id: StatId) -> Option<&RouteRow> {
        self.routes.row(id)
    }

    /// None when the id has no row.
    pub fn cluster(&self, id: StatId) -> Option<&ClusterRow> {
        self.clusters.row(id)
    }

    /// None when the id has no row.
    pub fn endpoint(&self, id: StatId) -> Option<&EndpointRow> {
        self.endpoints.row(id)
    }

    /// Statuses 100 to 599 with their counts; 0 stands for everything else.
    pub(crate) fn statuses(&self) -> impl Iterator<Item = (usize, u64)> {
        self.statuses.iter().enumerate().map(|(at, count)| (if at == 0 { 0 } else { at + 99 }, *count))
    }

    /// Adds the counters of another core. Gauges are not added: they belong to one core.
    pub(crate) fn add(&mut self, other: &Self) {
        let (sum, more) = (&mut self.counters, &other.counters);
        sum.log_rows_written += more.log_rows_written;
        sum.log_rows_dropped += more.log_rows_dropped;
        sum.clients_evicted_early += more.clients_evicted_early;
        sum.clients_untracked += more.clients_untracked;
        sum.tokens_verified += more.tokens_verified;
        sum.tokens_from_cache += more.tokens_from_cache;
        sum.pool_stale += more.pool_stale;
        sum.pool_reused += more.pool_reused;
        sum.snapshots_applied += more.snapshots_applied;
        add_each(&mut self.methods, &other.methods);
        add_each(&mut self.protocols, &other.protocols);
        add_each(&mut self.statuses, &other.statuses);
        add_each(&mut self.reasons, &other.reasons);
        for (sum, more) in self.stages.iter_mut().zip(&other.stages) {
            sum.add(more);
        }
        self.turns.add(&other.turns);
        self.listeners.add(&other.listeners);
        self.routes.add(&other.routes);
        self.clusters.add(&other.clusters);
        self.endpoints.add(&other.endpoints);
    }

    /// Takes over everything; allocates only where `other` has more rows than ever before.
    pub(crate) fn copy_from(&mut self, other: &Self) {
        self.gauges = other.gauges;
        self.counters = other.counters;
        self.methods = other.methods;
        self.protocols = other.protocols;
        self.statuses.copy_from_slice(&other.statuses);
        self.reasons.copy_from_slice(&other.reasons);
        for (stage, more) in self.stages.iter_mut().zip(&other.stages) {
            stage.copy_from(more);
        }
        self.turns.copy_from(&other.turns);
        self.listeners.copy_from(&other.listeners);
        self.routes.copy_from(&other.routes);
        self.clusters.copy_from(&other.clusters);
        self.endpoints.copy_from(&other.endpoints);
    }

    /// Zeroes everything, keeps the rows.
    pub(crate) fn clear(&mut self) {
        self.gauges = CoreGauges::default();
        self.counters = CoreCounters::default();
        self.methods = [0; METHODS.len()];
        self.protocols = [0; PROTOCOLS.len()];
        self.statuses.fill(0);
        self.reasons.fill(0);
        self.stages.iter_mut().for_each(Histogram::clear);
        self.turns.clear();
        self.listeners.clear();
        self.routes.clear();
        self.clusters.clear();
        self.endpoints.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_wire::head::Method;

    pub(crate) fn outcome(status: u16) -> Outcome {
        let mut outcome = Outcome {
            listener: StatId(0),
            route: Some(StatId(1)),
            cluster: Some(StatId(2)),
            endpoint: Some(StatId(3)),
            method: Method::Put,
            protocol: Version::Http2,
            status,
            grpc_status: None,
            reason: Reason::Ok,
            request_bytes: 10,
            response_bytes: 100,
            attempts: 3,
            ..Outcome::default()
        };
        for (stage, us) in [(Stage::TlsFull, 900), (Stage::FirstByte, 70), (Stage::Total, 80)] {
            outcome.stages.set(stage, Duration::from_micros(us));
        }
        outcome
    }

    fn sized() -> CoreStats {
        let mut stats = CoreStats::default();
        stats.grow(TableSizes { listeners: 1, routes: 2, clusters: 3, endpoints: 4 });
        stats
    }

    #[test]
    fn an_exchange_counts_once_in_each_of_its_rows() {
        let mut stats = sized();
        for status in [200, 204, 404, 503, 0] {
            stats.record(&outcome(status));
        }
        stats.record(&Outcome { reason: Reason::UpstreamTruncated, ..outcome(200) });
        stats.record(&Outcome {
            route: None,
            cluster: None,
            endpoint: None,
            reason: Reason::NoRoute,
            attempts: 0,
            ..outcome(404)
        });
        let classes = [1, 0, 3, 0, 1, 1];
        assert_eq!(stats.listener(StatId(0)).unwrap().requests, [1, 0, 3, 0, 2, 1]);
        let route = stats.route(StatId(1)).unwrap();
        assert_eq!(
            (route.requests, route.failures, route.request_bytes, route.response_bytes),
            (classes, 1, 60, 600)
        );
        assert_eq!(route.duration.count(), 6);
        let cluster = stats.cluster(StatId(2)).unwrap();
        assert_eq!((cluster.requests, cluster.attempts, cluster.retries), (classes, 18, 12));
        assert_eq!(stats.endpoint(StatId(3)).unwrap().requests, classes);
        assert_eq!(stats.route(StatId(0)), Some(&RouteRow::default()), "other rows are untouched");
        assert_eq!((stats.methods[3], stats.protocols[2]), (7, 7));
        assert_eq!(
            stats.statuses().filter(|(_, n)| *n > 0).collect::<Vec<_>>(),
            [(0, 1), (200, 2), (204, 1), (404, 2), (503, 1)]
        );
        assert_eq!(stats.stage(Stage::Total).count(), 7);
        assert_eq!(
            stats.stage(Stage::TlsFull).count(),
            0,
            "stages of the connection count with the connection"
        );
    }

    #[test]
    fn ids_without_a_row_count_in_the_overflow() {
        let mut stats = CoreStats::default();
        stats.record(&outcome(200));
        stats.record(&Outcome { route: Some(StatId(u32::MAX)), ..outcome(200) });
        assert_eq!(stats.route(StatId(1)), None);
        assert_eq!(stats.routes.overflow().requests[2], 2);
        assert_eq!(stats.endpoints.overflow().requests[2], 2);
        stats.grow(TableSizes { routes: usize::MAX / 2, ..TableSizes::default() });
        assert!(
            stats.route(StatId(19_999)).is_some() && stats.route(StatId(20_000)).is_none(),
            "tables are bounded"
        );
    }

    #[test]
    fn growing_keeps_counts_and_forgetting_drops_them() {
        let mut stats = sized();
        stats.record(&outcome(200));
        stats.grow(TableSizes { listeners: 5, routes: 50, clusters: 50, endpoints: 50 });
        assert_eq!(stats.endpoint(StatId(3)).unwrap().requests[2], 1);
        stats.grow(TableSizes::default());
        assert!(stats.endpoint(StatId(49)).is_some(), "tables do not shrink");
        stats.forget(StatTable::Endpoint, StatId(3));
        stats.forget(StatTable::Route, StatId(1_000));
        assert_eq!(stats.endpoint(StatId(3)), Some(&EndpointRow::default()));
        assert_eq!(stats.route(StatId(1)).unwrap().requests[2], 1);
    }

    #[test]
    fn connections_are_counted_by_what_happened() {
        let mut stats = sized();
        let (listener, time) = (StatId(0), Duration::from_micros(5));
        stats.connection_accepted(listener, time);
        stats.connection_refused(listener, Reason::ConnectionLimit);
        stats.handshake(listener, Handshake::Full(time));
        stats.handshake(listener, Handshake::Resumed(time));
        stats.handshake(listener, Handshake::Failed(Reason::TlsHandshakeTimeout));
        stats.protocol_known(listener, Version::Http11);
        stats.protocol_known(listener, Version::Http2);
        stats.connection_closed(listener, Some(Reason::IdleTimeout));
        stats.connection_closed(listener, None);
        let row = stats.listener(listener).unwrap();
        assert_eq!((row.connections_accepted, row.connections_refused, row.connections_closed), (1, 1, 2));
        assert_eq!((row.handshakes_full, row.handshakes_resumed, row.handshakes_failed), (1, 1, 1));
        assert_eq!((row.connections_h1, row.connections_h2), (1, 1));
        for reason in [Reason::ConnectionLimit, Reason::TlsHandshakeTimeout, Reason::IdleTimeout] {
            assert_eq!(stats.reason_count(reason), 1, "{reason}");
        }
        for stage in [Stage::AcceptWait, Stage::TlsFull, Stage::TlsResumed] {
            assert_eq!(stats.stage(stage).count(), 1, "{stage:?}");
        }
    }

    #[test]
    fn copies_and_sums_are_complete() {
        let mut stats = sized();
        stats.record(&outcome(200));
        stats.turns_of(Duration::from_micros(30), 1);
        stats.connection_accepted(StatId(0), Duration::ZERO);
        stats.upstream_connect(StatId(2), StatId(3), Err(Reason::UpstreamConnectRefused));
        stats.counters = CoreCounters {
            log_rows_written: 1,
            log_rows_dropped: 2,
            clients_evicted_early: 3,
            clients_untracked: 4,
            tokens_verified: 8,
            tokens_from_cache: 9,
            pool_stale: 5,
            pool_reused: 6,
            snapshots_applied: 7,
        };
        stats.gauges.connections = 1;
        let mut copy = CoreStats::default();
        copy.copy_from(&stats);
        assert_eq!(copy, stats);

        let mut sum = CoreStats::default();
        sum.add(&stats);
        assert_eq!(sum.gauges, CoreGauges::default());
        sum.gauges = stats.gauges;
        assert_eq!(sum, stats, "added to nothing");
        sum.add(&stats);
        assert_eq!(sum.endpoint(StatId(3)).unwrap().requests[2], 2);
        assert_eq!(sum.counters.snapshots_applied, 14);
        sum.clear();
        assert_eq!(sum, sized());
    }
}
