//! What a process remembers of clusters with sticky sessions from config to config: the rings that cookies may still
//! be written for, and the endpoints that may still serve them, whose statistics names must not be given away.
//!
//! Owned by the thread that compiles snapshots, as a part of `StatRegistry`. A process that takes over from another
//! one begins anew.

use std::net::SocketAddr;
use std::time::Duration;

use http_balance::ring::Member;
use http_balance::sticky::{Generation, RingHistory, StickyRules};
use rustc_hash::FxHashMap;

#[derive(Debug, Default)]
pub(super) struct Rings {
    pub(super) now: Duration,
    clusters: FxHashMap<String, Remembered>,
}

#[derive(Debug, Default)]
struct Remembered {
    history: RingHistory,
    /// With the time since when the config no longer names it; None: it does.
    endpoints: Vec<(SocketAddr, Option<Duration>)>,
    /// Asked for since the last [`Rings::retire_unused`].
    used: bool,
}

impl Rings {
    /// The rings of a cluster, the current one first, and the endpoints that have gone but may still have sessions.
    /// Asking again for the same members at the same time changes nothing.
    pub(super) fn of(
        &mut self,
        cluster: &str,
        rules: &StickyRules,
        members: Vec<Member>,
        addresses: &[SocketAddr],
    ) -> (Vec<Generation>, Vec<SocketAddr>) {
        let now = self.now;
        let known = self.clusters.entry(cluster.to_owned()).or_default();
        known.used = true;
        known.history.push(rules, members, now);
        known.endpoints.retain(|(address, _)| !addresses.contains(address));
        for (_, gone_at) in &mut known.endpoints {
            gone_at.get_or_insert(now);
        }
        known.endpoints.retain(|(_, gone)| gone.is_none_or(|at| now < at.saturating_add(rules.overlap)));
        let gone = known.endpoints.iter().map(|(address, _)| *address).collect();
        known.endpoints.extend(addresses.iter().map(|address| (*address, None)));
        (known.history.rings(rules), gone)
    }

    /// Forgets the clusters that nobody asked for since the last call.
    pub(super) fn retire_unused(&mut self) {
        self.clusters.retain(|_, known| std::mem::take(&mut known.used));
    }
}
