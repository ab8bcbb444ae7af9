//! Names of statistics series and their places in the cores' frames.
//!
//! A name keeps its id while it is in use, over all snapshots and the same on every core, so that a frame needs no
//! names. Names come from config only and every family has a cap (C44 in the project's case list is the reason: labels
//! without a bound kill a scrape); beyond it a name shares the family's overflow series and is counted.
//! Owned by the thread that compiles snapshots; ids are per family, dense, and 0 is the overflow series.

use std::collections::BTreeMap;
use std::time::Duration;

use http_balance::generations::{Dropped, Generation};
use http_balance::plan::Standing;
use http_balance::ring::RingVersion;
use http_balance::sticky::StickyRules;
use http_balance::tables::{Kept, Tables};
use rustc_hash::FxHashMap;

use super::model::{EndpointConfig, EndpointRole, LogSink, Named, StatId};
use super::rings::{By, Heritage, Home, Present, Rings};
use crate::record::TABLE_SIZES_MAX;

/// What a series is about; ids of different families are unrelated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StatFamily {
    Listener,
    Route,
    Cluster,
    /// Named `cluster/address`.
    Endpoint,
}

impl StatFamily {
    pub const ALL: [Self; 4] = [Self::Listener, Self::Route, Self::Cluster, Self::Endpoint];

    /// The label's name in metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Listener => "listener",
            Self::Route => "route",
            Self::Cluster => "cluster",
            Self::Endpoint => "endpoint",
        }
    }

    /// Series of a family, the overflow series not counted; with it, what a core's tables hold.
    pub const fn series_max(self) -> usize {
        match self {
            Self::Listener => TABLE_SIZES_MAX.listeners - 1,
            Self::Route => TABLE_SIZES_MAX.routes - 1,
            Self::Cluster => TABLE_SIZES_MAX.clusters - 1,
            Self::Endpoint => TABLE_SIZES_MAX.endpoints - 1,
        }
    }

    const fn at(self) -> usize {
        match self {
            Self::Listener => 0,
            Self::Route => 1,
            Self::Cluster => 2,
            Self::Endpoint => 3,
        }
    }
}

/// The shared series of names beyond a family's cap.
pub const OVERFLOW: StatId = StatId(0);

/// The name of the overflow series in every family.
pub const OVERFLOW_NAME: &str = "other";

/// Access log sinks that a process may have; as many files are open.
pub const LOG_SINKS_MAX: usize = 64;

/// All series of the process, its access log sinks, which are numbered in the same way, and what else must outlive a
/// config: the rings of sticky sessions, and the hash tables that its cores share.
#[derive(Debug)]
pub struct StatRegistry {
    families: [Family; 4],
    sinks: Vec<LogSink>,
    rings: Rings,
    pub(super) tables: Tables,
    /// By cluster, as the config that is in force has them.
    named: FxHashMap<String, Named>,
}

/// See [`StatRegistry::keep_rings`]. Tables are shared, not copied.
#[derive(Debug)]
pub struct KeptRings(Rings);

#[derive(Debug)]
struct Family {
    ids: FxHashMap<String, StatId>,
    series: Vec<Series>,
    free: Vec<StatId>,
    series_max: usize,
    overflowed: u64,
}

#[derive(Debug)]
struct Series {
    name: String,
    /// Asked for since the last [`StatRegistry::retire_unused`].
    used: bool,
}

impl Default for StatRegistry {
    fn default() -> Self {
        Self::new()
    }
}

impl StatRegistry {
    pub fn new() -> Self {
        Self::with_series_max(StatFamily::series_max)
    }

    /// With caps of one's own; each is cut to what an id can number.
    pub fn with_series_max(series_max: impl Fn(StatFamily) -> usize) -> Self {
        Self {
            families: StatFamily::ALL.map(|family| Family::new(series_max(family))),
            sinks: Vec::new(),
            rings: Rings::default(),
            tables: Tables::default(),
            named: FxHashMap::default(),
        }
    }

    /// The id of a name, made on first use; [`OVERFLOW`] when the family is full.
    pub fn id(&mut self, family: StatFamily, name: &str) -> StatId {
        self.family_mut(family).id(name)
    }

    pub fn name(&self, family: StatFamily, id: StatId) -> Option<&str> {
        self.family(family).series.get(usize::try_from(id.0).ok()?).map(|series| series.name.as_str())
    }

    /// All series of a family in use, the overflow series included.
    pub fn names(&self, family: StatFamily) -> impl Iterator<Item = (StatId, &str)> {
        let series = self.family(family).series.iter().zip(0_u32..);
        series.map(|(series, id)| (StatId(id), series.name.as_str())).filter(|(_, name)| !name.is_empty())
    }

    /// One more than the highest id: the length of a frame's array for this family.
    pub fn len(&self, family: StatFamily) -> usize {
        self.family(family).series.len()
    }

    /// How often a name found its family full.
    pub fn overflowed(&self, family: StatFamily) -> u64 {
        self.family(family).overflowed
    }

    /// Frees the names that nobody asked for since the last call and returns their ids, whose counters the caller
    /// zeroes before the ids are given out again. To be called when no core holds a snapshot that was compiled
    /// before the last call, since such a snapshot still counts under them.
    pub fn retire_unused(&mut self) -> Vec<(StatFamily, StatId)> {
        self.rings.retire_unused();
        let mut retired = Vec::new();
        for family in StatFamily::ALL {
            retired.extend(self.family_mut(family).retire_unused().into_iter().map(|id| (family, id)));
        }
        retired
    }

    /// The name of an endpoint's series.
    pub(super) fn endpoint_name(cluster: &str, address: &dyn std::fmt::Display) -> String {
        format!("{cluster}/{address}")
    }

    /// Tells the time, since the epoch of the cores' clocks.
    pub(super) fn at(&mut self, now: Duration) {
        self.rings.now = now;
    }

    /// The rings of a cluster with sessions, the current one first, and the endpoints that have gone but may still have
    /// sessions, with the end of their time. These keep their series.
    pub(super) fn rings(
        &mut self,
        cluster: &str,
        rules: &StickyRules,
        (by, own): (By, &[EndpointConfig]),
    ) -> (Vec<Generation>, Vec<(EndpointConfig, Duration)>) {
        let own = own.iter().map(|endpoint| present(endpoint, None)).collect();
        let (rings, gone) = self.rings.of(cluster, rules, (by, own));
        let departed = gone.into_iter().map(|(Home { address, hostname, series }, until)| {
            let series = series.unwrap_or_else(|| address.to_string());
            let stat = self.id(StatFamily::Endpoint, &Self::endpoint_name(cluster, &series));
            let role = EndpointRole { standing: Standing::Draining, ..EndpointRole::default() };
            (EndpointConfig { address, weight: 1, stat, hostname, role }, until)
        });
        (rings, departed.collect())
    }

    /// Takes note of the endpoints that the names of a cluster stand for, and returns the rings of its sessions with
    /// them; none without sessions. `now` is by the cores' clocks.
    pub fn resolved(&mut self, cluster: &str, found: &[EndpointConfig], now: Duration) -> Vec<Generation> {
        self.at(now);
        let prefix = Self::endpoint_name(cluster, &"");
        let series = |stat| self.name(StatFamily::Endpoint, stat)?.strip_prefix(&prefix).map(str::to_owned);
        let found = found.iter().map(|endpoint| present(endpoint, series(endpoint.stat))).collect();
        self.rings.found(cluster, found)
    }

    /// Takes note of the clusters whose hash tables are made anew with each answer to their names.
    pub fn set_named(&mut self, named: impl IntoIterator<Item = (String, Named)>) {
        self.named = named.into_iter().collect();
    }

    /// The hash tables of such a cluster with the endpoints that its names stand for, made once for all cores; none for
    /// other clusters. A core whose config is not the one in force yet makes its own.
    pub fn tables_with(&mut self, cluster: &str, found: &[EndpointConfig]) -> Vec<Kept> {
        let named = self.named.get(cluster);
        named.map(|named| named.tables_with(found, &mut self.tables)).unwrap_or_default()
    }

    /// What a process that takes over goes on with, by cluster. `now` is by the cores' clocks.
    pub fn heritage(&mut self, now: Duration) -> BTreeMap<String, Heritage> {
        self.at(now);
        self.rings.heritage()
    }

    /// Takes over from a predecessor, before the first config is compiled.
    pub fn inherit(&mut self, heritage: impl IntoIterator<Item = (String, Heritage)>) {
        self.rings.inherit(heritage.into_iter());
    }

    /// The rings of sticky sessions as they are, for [`Self::restore_rings`].
    pub fn keep_rings(&self) -> KeptRings {
        KeptRings(self.rings.clone())
    }

    /// Undoes what a config that is not used has done to the rings of sticky sessions: cookies are not written for its
    /// rings, and those in force have not retired.
    pub fn restore_rings(&mut self, kept: KeptRings) {
        self.rings = kept.0;
    }

    /// Rings of sticky sessions that were let go before their time since the last call, by cluster.
    pub fn take_dropped_rings(&mut self) -> BTreeMap<String, Dropped> {
        self.rings.take_dropped()
    }

    /// The present rings of sticky sessions, by cluster.
    pub fn ring_versions(&self) -> BTreeMap<String, RingVersion> {
        self.rings.versions()
    }

    /// Points of all rings of sticky sessions.
    pub fn ring_points(&self) -> usize {
        self.rings.points()
    }

    /// The number of a log sink, equal for equal sinks; None when the process has its fill of them.
    pub fn sink(&mut self, sink: &LogSink) -> Option<usize> {
        if let Some(at) = self.sinks.iter().position(|known| known == sink) {
            return Some(at);
        }
        if self.sinks.len() >= LOG_SINKS_MAX {
            return None;
        }
        self.sinks.push(sink.clone());
        Some(self.sinks.len() - 1)
    }

    /// All sinks by number.
    pub fn sinks(&self) -> &[LogSink] {
        &self.sinks
    }

    fn family(&self, family: StatFamily) -> &Family {
        &self.families[family.at()]
    }

    fn family_mut(&mut self, family: StatFamily) -> &mut Family {
        &mut self.families[family.at()]
    }
}

/// An endpoint as the rings see it; without a series of its own name it is counted by its address.
fn present(endpoint: &EndpointConfig, series: Option<String>) -> Present {
    let home = Home { address: endpoint.address, hostname: endpoint.hostname.clone(), series };
    let serves = endpoint.role.standing == Standing::Serving;
    Present { home, id: endpoint.id(), weight: serves.then_some(endpoint.weight) }
}

impl Family {
    fn new(series_max: usize) -> Self {
        let overflow = Series { name: OVERFLOW_NAME.to_owned(), used: true };
        Self {
            ids: FxHashMap::default(),
            series: vec![overflow],
            free: Vec::new(),
            series_max,
            overflowed: 0,
        }
    }

    fn id(&mut self, name: &str) -> StatId {
        if let Some(id) = self.ids.get(name) {
            let id = *id;
            if let Some(series) = self.at_mut(id) {
                series.used = true;
            }
            return id;
        }
        // The empty name marks a free place, and the overflow name would be two series of one label.
        if name.is_empty() || name == OVERFLOW_NAME {
            return OVERFLOW;
        }
        let series = Series { name: name.to_owned(), used: true };
        let id = match self.free.pop() {
            Some(id) => {
                if let Some(place) = self.at_mut(id) {
                    *place = series;
                }
                id
            }
            None => match u32::try_from(self.series.len()) {
                Ok(next) if self.series.len() <= self.series_max => {
                    self.series.push(series);
                    StatId(next)
                }
                _ => {
                    self.overflowed += 1;
                    return OVERFLOW;
                }
            },
        };
        self.ids.insert(name.to_owned(), id);
        id
    }

    fn retire_unused(&mut self) -> Vec<StatId> {
        let mut retired = Vec::new();
        for (series, id) in self.series.iter_mut().zip(0_u32..).skip(1) {
            if !series.used && !series.name.is_empty() {
                self.ids.remove(&series.name);
                series.name.clear();
                retired.push(StatId(id));
            }
            series.used = false;
        }
        self.free.extend(&retired);
        retired
    }

    fn at_mut(&mut self, id: StatId) -> Option<&mut Series> {
        self.series.get_mut(usize::try_from(id.0).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_id_and_families_are_apart() {
        let mut stats = StatRegistry::new();
        let orders = stats.id(StatFamily::Route, "orders");
        assert_ne!(stats.id(StatFamily::Route, "carts"), orders);
        assert_eq!(stats.id(StatFamily::Route, "orders"), orders);
        assert_eq!(stats.name(StatFamily::Route, orders), Some("orders"));
        assert_eq!(stats.name(StatFamily::Cluster, orders), None);
        assert_eq!(stats.len(StatFamily::Route), 3);
        assert_eq!(stats.id(StatFamily::Route, "other"), OVERFLOW);
        assert_eq!(stats.id(StatFamily::Route, ""), OVERFLOW);
    }

    #[test]
    fn beyond_the_cap_names_share_one_series_and_are_counted() {
        let mut stats = StatRegistry::with_series_max(|_| 2);
        let ids: Vec<_> = ["a", "b", "c", "d", "a"].map(|name| stats.id(StatFamily::Endpoint, name)).into();
        assert_eq!(ids, [StatId(1), StatId(2), OVERFLOW, OVERFLOW, StatId(1)]);
        assert_eq!(stats.overflowed(StatFamily::Endpoint), 2);
        assert_eq!(stats.overflowed(StatFamily::Route), 0);
        let names: Vec<_> = stats.names(StatFamily::Endpoint).map(|(_, name)| name).collect();
        assert_eq!(names, ["other", "a", "b"]);
    }

    #[test]
    fn names_out_of_use_make_room() {
        let mut stats = StatRegistry::with_series_max(|_| 2);
        let [a, b] = ["a", "b"].map(|name| stats.id(StatFamily::Cluster, name));
        assert_eq!(stats.retire_unused(), []);
        stats.id(StatFamily::Cluster, "b");
        assert_eq!(stats.retire_unused(), [(StatFamily::Cluster, a)]);
        assert_eq!(stats.name(StatFamily::Cluster, a), Some(""));
        assert_eq!(stats.names(StatFamily::Cluster).count(), 2);
        assert_eq!(stats.id(StatFamily::Cluster, "c"), a);
        assert_eq!(stats.id(StatFamily::Cluster, "b"), b);
        assert_eq!(stats.retire_unused(), []);
        assert_eq!(stats.retire_unused().len(), 2, "nobody asked for either");
    }

    #[test]
    fn churn_does_not_wear_the_registry_out() {
        let mut stats = StatRegistry::with_series_max(|_| 8);
        for n in 0..10_000 {
            let name = format!("endpoint-{n}");
            assert_ne!(stats.id(StatFamily::Endpoint, &name), OVERFLOW, "{name}");
            if n % 4 == 3 {
                stats.retire_unused();
            }
        }
        assert_eq!(stats.len(StatFamily::Endpoint), 9);
    }

    #[test]
    fn equal_sinks_have_one_number_and_there_is_a_cap() {
        use super::super::model::LogTarget;
        let sink = |n: usize| LogSink { target: LogTarget::File(format!("/log/{n}")), template: None };
        let mut stats = StatRegistry::new();
        for n in 0..LOG_SINKS_MAX {
            assert_eq!(stats.sink(&sink(n)), Some(n));
        }
        assert_eq!(stats.sink(&sink(LOG_SINKS_MAX)), None);
        assert_eq!(stats.sink(&sink(3)), Some(3));
        assert_eq!(stats.sinks().len(), LOG_SINKS_MAX);
    }
}
