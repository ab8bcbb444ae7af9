//! Rows of counters by listener, route, cluster and endpoint, and the tables that hold them.
//!
//! A table has its overflow row first: ids without a row of their own count there, so no count is lost and no
//! look-up fails.

use super::histogram::CoarseHistogram;
use super::mirror::MirrorEnd;
use super::outcome::STATUS_CLASSES;
use crate::snapshot::StatId;

/// Adds counters of the same shape.
pub(crate) trait Row: Copy + Default {
    fn add(&mut self, other: &Self);
}

pub(super) fn add_each(sums: &mut [u64], more: &[u64]) {
    for (sum, more) in sums.iter_mut().zip(more) {
        *sum += more;
    }
}

macro_rules! row {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:tt,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$field_doc])* pub $field: row!(@type $kind),)+ }

        impl Row for $name {
            fn add(&mut self, other: &Self) {
                $(row!(@add $kind, self.$field, other.$field);)+
            }
        }
    };
    (@type count) => { u64 };
    (@type by_class) => { [u64; STATUS_CLASSES.len()] };
    (@type by_mirror) => { [u64; MirrorEnd::ALL.len()] };
    (@type histogram) => { CoarseHistogram };
    (@add count, $sum:expr, $more:expr) => { $sum += $more };
    (@add by_class, $sum:expr, $more:expr) => { add_each(&mut $sum, &$more) };
    (@add by_mirror, $sum:expr, $more:expr) => { add_each(&mut $sum, &$more) };
    (@add histogram, $sum:expr, $more:expr) => { $sum.add(&$more) };
}

row! {
    /// Counters of one listener.
    ListenerRow {
        connections_accepted: count,
        /// At accept: the listener, or the client, was at its limit.
        connections_refused: count,
        connections_closed: count,
        handshakes_full: count,
        handshakes_resumed: count,
        handshakes_failed: count,
        connections_h1: count,
        connections_h2: count,
        connections_tcp: count,
        requests: by_class,
        request_bytes: count,
        response_bytes: count,
    }
}

row! {
    /// Counters of one route.
    RouteRow {
        requests: by_class,
        /// Exchanges with a reason other than success.
        failures: count,
        request_bytes: count,
        response_bytes: count,
        duration: histogram,
    }
}

row! {
    /// Counters of one cluster.
    ClusterRow {
        requests: by_class,
        failures: count,
        attempts: count,
        retries: count,
        connects: count,
        connect_failures: count,
        request_bytes: count,
        response_bytes: count,
        first_byte: histogram,
        refused_in_flight: count,
        refused_circuit: count,
        refused_shed: count,
        retries_over_budget: count,
        /// Second attempts while the first was silent, by their end: these three, and those that were not paid for.
        hedges_won: count,
        hedges_lost: count,
        hedges_failed: count,
        hedges_over_budget: count,
        /// Attempts outside the proxy's zone.
        beyond_zone: count,
        /// Attempts for which the health of endpoints was ignored.
        attempts_in_panic: count,
        ejections: count,
        /// Called for, but too many were out or the rule only logs.
        ejections_withheld: count,
        panics: count,
        breaker_opens: count,
        /// Of requests that were to be mirrored to this cluster.
        mirrors: by_mirror,
        mirror_bytes: count,
        /// Requests with a session by its fate: these five.
        sessions_new: count,
        sessions_kept: count,
        sessions_renewed: count,
        sessions_ring_expired: count,
        sessions_endpoint_gone: count,
        /// Session cookies that were not believed: these four.
        cookies_length: count,
        cookies_encoding: count,
        cookies_format: count,
        cookies_tag: count,
        /// As of this moment, like all below.
        mirrors_in_flight: count,
        mirror_bytes_held: count,
        in_flight: count,
        endpoints: count,
        ejected: count,
        in_panic: count,
        breaker_open: count,
    }
}

row! {
    /// What happened to the endpoints of one cluster since it was last asked.
    ClusterEvents {
        ejections: count,
        ejections_withheld: count,
        panics: count,
        breaker_opens: count,
    }
}

row! {
    /// Counters of one endpoint.
    EndpointRow {
        requests: by_class,
        failures: count,
        connects: count,
        connect_failures: count,
        first_byte: histogram,
    }
}

/// Rows by [`StatId`], the overflow row first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table<R> {
    rows: Vec<R>,
}

impl<R: Row> Default for Table<R> {
    fn default() -> Self {
        Self { rows: vec![R::default()] }
    }
}

impl<R: Row> Table<R> {
    pub(super) fn row_mut(&mut self, StatId(id): StatId) -> &mut R {
        let at = id as usize + 1;
        let at = if at < self.rows.len() { at } else { 0 };
        &mut self.rows[at]
    }

    pub(crate) fn row(&self, StatId(id): StatId) -> Option<&R> {
        self.rows.get(id as usize + 1)
    }

    pub(crate) fn overflow(&self) -> &R {
        &self.rows[0]
    }

    pub(super) fn grow(&mut self, rows: usize) {
        if rows + 1 > self.rows.len() {
            self.rows.resize(rows + 1, R::default());
        }
    }

    pub(super) fn forget(&mut self, id: StatId) {
        if self.row(id).is_some() {
            *self.row_mut(id) = R::default();
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.grow(other.rows.len() - 1);
        for (sum, more) in self.rows.iter_mut().zip(&other.rows) {
            sum.add(more);
        }
    }

    pub(super) fn copy_from(&mut self, other: &Self) {
        self.rows.clear();
        self.rows.extend_from_slice(&other.rows);
    }

    pub(super) fn clear(&mut self) {
        self.rows.fill(R::default());
    }
}
