//! What is known of each name and each cluster, and when to ask again. Pure: time and jitter are arguments.
//!
//! ```text
//! new ──► asked ──► good ──(before the TTL ends)──► asked
//!           │                                         │ failure: addresses stay, alarm once, back-off
//!           └──► failing ◄────────────────────────────┘
//!                  └──(TTL end + stale_max)──► out: the cluster loses them, alarm
//! ```
//! Invariants: a name is looked up once for all clusters that use it; a cluster is reported when its list of
//! endpoints differs from the one reported before. Called by `resolver`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use http_proxy::pool::Resolved;
use http_proxy::snapshot::{DnsTarget, EndpointConfig};

use super::client::Lookup;
use super::message::{Answer, LookupError};
use super::{Event, NameState, Pace};

/// Different names; one more is refused with an event. A turn of the resolver walks over all of them.
pub(super) const NAMES_MAX: usize = 1024;

/// Addresses of one name; the rest is left out with an event.
pub(super) const ADDRESSES_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Table {
    pace: Pace,
    clusters: BTreeMap<String, Cluster>,
    names: BTreeMap<String, Name>,
    /// Clusters whose list has to be made again.
    changed: BTreeSet<String>,
    resolved: Vec<Resolved>,
    events: Vec<Event>,
}

#[derive(Debug)]
struct Cluster {
    targets: Vec<Target>,
    /// What was reported last.
    reported: Option<Vec<EndpointConfig>>,
    /// To be reported again, whether it differs or not.
    due: bool,
}

#[derive(Debug)]
struct Target {
    config: DnsTarget,
    /// Into [`Table::names`].
    name: String,
    /// Addresses that the cluster had of it when last looked at.
    in_use: usize,
}

#[derive(Debug)]
struct Name {
    /// The smallest of its targets.
    refresh_min: Duration,
    /// None: it is being looked up.
    due: Option<Instant>,
    v4: Held,
    v6: Held,
    /// Look-ups without an address since the last good one.
    failures: u32,
    /// A look-up has ended, either way.
    seen: bool,
    /// The event about more than [`ADDRESSES_MAX`] is out.
    too_many: bool,
    last_error: Option<String>,
}

/// Addresses of one family.
#[derive(Debug, Default)]
struct Held {
    addresses: Vec<IpAddr>,
    expires: Option<Instant>,
    /// The last look-up did not tell.
    failing: bool,
}

impl Held {
    /// What may still be used of it.
    fn usable(&self, stale_max: Duration, now: Instant) -> &[IpAddr] {
        match self.out_at(stale_max) {
            Some(out_at) if out_at <= now => &[],
            _ => &self.addresses,
        }
    }

    /// When the addresses stop to be usable, unless a look-up succeeds. RFC 8767 §4: counted from the TTL's end.
    fn out_at(&self, stale_max: Duration) -> Option<Instant> {
        self.expires.filter(|_| self.failing).and_then(|expires| expires.checked_add(stale_max))
    }

    fn is_stale(&self, now: Instant) -> bool {
        self.failing && !self.addresses.is_empty() && self.expires.is_some_and(|expires| expires <= now)
    }

    fn take(&mut self, answer: Result<Answer, LookupError>, expires: Instant) -> Option<LookupError> {
        self.failing = answer.is_err();
        match answer {
            Ok(Answer::Addresses { addresses, .. }) => {
                self.addresses = addresses;
                self.expires = Some(expires);
            }
            Ok(Answer::NoAddress | Answer::NoName) => {
                self.addresses.clear();
                self.expires = None;
            }
            Err(error) => return Some(error),
        }
        None
    }
}

impl Name {
    fn new(refresh_min: Duration, now: Instant) -> Self {
        Self {
            refresh_min,
            due: Some(now),
            v4: Held::default(),
            v6: Held::default(),
            failures: 0,
            seen: false,
            too_many: false,
            last_error: None,
        }
    }

    /// IPv4 first.
    fn addresses(&self, stale_max: Duration, now: Instant) -> impl Iterator<Item = IpAddr> {
        let v4 = self.v4.usable(stale_max, now);
        v4.iter().chain(self.v6.usable(stale_max, now)).copied().take(ADDRESSES_MAX)
    }
}

impl Table {
    pub(super) fn new(pace: Pace) -> Self {
        Self {
            pace,
            clusters: BTreeMap::new(),
            names: BTreeMap::new(),
            changed: BTreeSet::new(),
            resolved: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Replaces all targets. Names that stay keep what is known of them; clusters with a known name are reported
    /// again, since ports and weights may be new. A cluster whose names are all new keeps the list that it had until
    /// the first of them is known.
    pub(super) fn set_targets(&mut self, targets: Vec<(String, Vec<DnsTarget>)>, now: Instant) {
        let mut before = std::mem::take(&mut self.clusters);
        let mut names = std::mem::take(&mut self.names);
        for (cluster, targets) in targets {
            for config in targets {
                let name = key(&config.name);
                if self.names.len() >= NAMES_MAX && !self.names.contains_key(&name) {
                    self.events.push(Event::TooManyNames { cluster: cluster.clone(), name });
                    continue;
                }
                let known = self.names.entry(name.clone()).or_insert_with(|| {
                    let kept = names.remove(&name);
                    kept.map_or_else(
                        || Name::new(config.refresh_min, now),
                        |kept| Name { refresh_min: config.refresh_min, ..kept },
                    )
                });
                known.refresh_min = known.refresh_min.min(config.refresh_min);
                let in_use = known.addresses(config.stale_max, now).count();
                let state = self.clusters.entry(cluster.clone()).or_insert_with(|| {
                    let reported = before.remove(&cluster).and_then(|before| before.reported);
                    Cluster { targets: Vec::new(), reported, due: true }
                });
                state.targets.push(Target { config, name, in_use });
            }
            self.changed.insert(cluster);
        }
        // The rest has no names any more: what was found must not stay.
        for (cluster, _) in before.into_iter().filter(|(_, cluster)| cluster.reported.is_some()) {
            self.resolved.push(Resolved {
                cluster,
                endpoints: Vec::new(),
                generations: Vec::new(),
                tables: Vec::new(),
            });
        }
    }

    /// The name that is due for the longest time; it counts as being looked up from here on. Without `failing`
    /// names whose last look-up failed are passed over.
    pub(super) fn take_due(&mut self, now: Instant, failing: bool) -> Option<Due> {
        let candidates = self.names.iter_mut().filter(|(_, name)| failing || name.failures == 0);
        let due = candidates.filter_map(|(key, name)| Some((name.due.filter(|due| *due <= now)?, key, name)));
        let (_, key, name) = due.min_by_key(|(due, ..)| *due)?;
        name.due = None;
        Some(Due { name: key.clone(), failing: name.failures > 0 })
    }

    /// Takes the end of a look-up. `jitter` is any random number.
    pub(super) fn apply(&mut self, key: &str, lookup: Lookup, now: Instant, jitter: u64) {
        // It may have left the config meanwhile.
        let Some(name) = self.names.get_mut(key) else { return };
        name.seen = true;
        for (cluster, state) in &self.clusters {
            if state.targets.iter().any(|target| target.name == key) {
                self.changed.insert(cluster.clone());
            }
        }
        let Lookup { v4, v6, .. } = lookup;
        let found = [&v4, &v6].into_iter().filter_map(|answer| match answer {
            Ok(Answer::Addresses { addresses, ttl }) => Some((addresses.len(), *ttl)),
            Ok(Answer::NoAddress | Answer::NoName) | Err(_) => None,
        });
        let count: usize = found.clone().map(|(count, _)| count).sum();
        let Some(ttl) = found.map(|(_, ttl)| ttl).min() else {
            name.fail(key, reason(v4, v6), now, jitter, &self.pace, &mut self.events);
            return;
        };
        let ttl = ttl.clamp(self.pace.ttl_min, self.pace.ttl_max);
        let interval = self.pace.refresh_after(ttl, name.refresh_min, jitter);
        let expires = now + ttl.max(interval);
        let [v4, v6] = [name.v4.take(v4, expires), name.v6.take(v6, expires)];
        name.last_error = v4.map(|e| format!("A: {e}")).or(v6.map(|e| format!("AAAA: {e}")));
        name.due = Some(now + interval);
        if std::mem::take(&mut name.failures) > 0 {
            self.events.push(Event::Recovered { name: key.to_owned(), found: count });
        }
        if count > ADDRESSES_MAX && !name.too_many {
            self.events.push(Event::TooManyAddresses { name: key.to_owned(), found: count });
        }
        name.too_many = count > ADDRESSES_MAX;
    }

    /// Lets go of what is too old at `now`, and returns what there is to report since the last call.
    pub(super) fn settle(&mut self, now: Instant) -> (Vec<Resolved>, Vec<Event>) {
        for (cluster, state) in &mut self.clusters {
            for target in &mut state.targets {
                let Some(name) = self.names.get(&target.name) else { continue };
                let stale_max = target.config.stale_max;
                let in_use = name.addresses(stale_max, now).count();
                let before = std::mem::replace(&mut target.in_use, in_use);
                if in_use < before {
                    self.changed.insert(cluster.clone());
                }
                if in_use == 0 && before > 0 {
                    let (cluster, name) = (cluster.clone(), target.name.clone());
                    self.events.push(Event::Dropped { cluster, name, stale_max });
                }
            }
        }
        for cluster in std::mem::take(&mut self.changed) {
            let Some(state) = self.clusters.get_mut(&cluster) else { continue };
            let Some(endpoints) = endpoints(state, &self.names, now) else { continue };
            let known = state.reported.as_deref().is_some_and(|before| same(before, &endpoints));
            if std::mem::take(&mut state.due) || !known {
                state.reported = Some(endpoints.clone());
                self.resolved.push(Resolved {
                    cluster,
                    endpoints,
                    generations: Vec::new(),
                    tables: Vec::new(),
                });
            }
        }
        (std::mem::take(&mut self.resolved), std::mem::take(&mut self.events))
    }

    /// When there is something to do next: a name becomes due, or addresses become too old. Names that are due
    /// already wait for a worker, not for the clock.
    pub(super) fn next_wake(&self, now: Instant) -> Option<Instant> {
        let due = self.names.values().filter_map(|name| name.due);
        let targets = self.clusters.values().flat_map(|cluster| &cluster.targets);
        let out = targets.filter_map(|target| Some((target.config.stale_max, self.names.get(&target.name)?)));
        let out = out.flat_map(|(stale_max, name)| [name.v4.out_at(stale_max), name.v6.out_at(stale_max)]);
        due.chain(out.flatten()).filter(|at| *at > now).min()
    }

    /// Whether every name has been looked up at least once, with whatever outcome.
    pub(super) fn is_known(&self) -> bool {
        self.names
            .values()
            .all(|name| name.last_error.is_some() || name.v4.expires.is_some() || name.v6.expires.is_some())
    }

    /// What each cluster has of each of its names.
    pub(super) fn state(&self, now: Instant) -> Vec<NameState> {
        let targets =
            self.clusters.iter().flat_map(|(cluster, state)| state.targets.iter().map(move |t| (cluster, t)));
        targets
            .filter_map(|(cluster, target)| {
                let name = self.names.get(&target.name)?;
                let expires = name.v4.expires.into_iter().chain(name.v6.expires).min();
                let addresses: Vec<IpAddr> = name.addresses(target.config.stale_max, now).collect();
                Some(NameState {
                    cluster: cluster.clone(),
                    name: target.config.name.clone(),
                    expires_in: expires.map(|at| at.saturating_duration_since(now)),
                    last_error: name.last_error.clone(),
                    stale: !addresses.is_empty() && (name.v4.is_stale(now) || name.v6.is_stale(now)),
                    addresses,
                })
            })
            .collect()
    }
}

impl Name {
    fn fail(
        &mut self,
        key: &str,
        error: LookupError,
        now: Instant,
        jitter: u64,
        pace: &Pace,
        events: &mut Vec<Event>,
    ) {
        self.v4.failing = true;
        self.v6.failing = true;
        self.last_error = Some(error.to_string());
        self.failures = self.failures.saturating_add(1);
        self.due = Some(now + pace.retry_after(self.failures, self.refresh_min, jitter));
        if self.failures == 1 {
            let kept = self.v4.addresses.len() + self.v6.addresses.len();
            events.push(Event::Failing { name: key.to_owned(), error, kept });
        }
    }
}

/// A name that a worker should look up.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) name: String,
    /// The last look-up failed; it may well take its time again.
    pub(super) failing: bool,
}

/// How names are compared: without case and without the last dot.
fn key(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Why there is no address: what went wrong tells more than what is not there.
fn reason(v4: Result<Answer, LookupError>, v6: Result<Answer, LookupError>) -> LookupError {
    match (v4, v6) {
        (Err(error), _) | (Ok(_), Err(error)) => error,
        (Ok(Answer::NoName), _) | (_, Ok(Answer::NoName)) => LookupError::NoName,
        (Ok(_), Ok(_)) => LookupError::NoAddress,
    }
}

/// The union of the addresses of a cluster's names; the first target that has an address gives its weight. None
/// while nothing is known of any.
fn endpoints(cluster: &Cluster, names: &BTreeMap<String, Name>, now: Instant) -> Option<Vec<EndpointConfig>> {
    let known = cluster.targets.iter().filter_map(|target| Some((target, names.get(&target.name)?)));
    let mut known = known.filter(|(_, name)| name.seen).peekable();
    known.peek()?;
    let mut taken = BTreeSet::new();
    let mut endpoints = Vec::new();
    for (Target { config, .. }, name) in known {
        for address in name.addresses(config.stale_max, now) {
            let address = SocketAddr::from((address, config.port));
            if taken.insert(address) {
                endpoints.push(EndpointConfig {
                    address,
                    weight: config.weight,
                    stat: config.stat,
                    hostname: Some(config.hostname.clone()),
                    role: config.role,
                });
            }
        }
    }
    Some(endpoints)
}

fn same(one: &[EndpointConfig], other: &[EndpointConfig]) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).all(|(a, b)| {
            (a.address, a.weight, a.stat, &a.hostname) == (b.address, b.weight, b.stat, &b.hostname)
        })
}

#[cfg(test)]
mod tests {
    use http_proxy::snapshot::{EndpointRole, StatId};

    use super::*;

    const CLUSTER: &str = "orders";
    const NAME: &str = "db.test";

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn target(name: &str, port: u16) -> DnsTarget {
        DnsTarget {
            name: name.to_owned(),
            port,
            weight: 1,
            stat: StatId(0),
            hostname: name.to_owned(),
            role: EndpointRole::default(),
            refresh_min: s(1),
            stale_max: s(100),
        }
    }

    fn one(target: DnsTarget) -> Vec<(String, Vec<DnsTarget>)> {
        vec![(CLUSTER.to_owned(), vec![target])]
    }

    fn answer(addresses: &[&str], ttl: u64) -> Result<Answer, LookupError> {
        if addresses.is_empty() {
            return Ok(Answer::NoAddress);
        }
        let addresses = addresses.iter().map(|a| a.parse().expect("an address")).collect();
        Ok(Answer::Addresses { addresses, ttl: s(ttl) })
    }

    fn timeout() -> Result<Answer, LookupError> {
        Err(LookupError::Timeout { server: SocketAddr::from(([127, 0, 0, 1], 53)), ignored: 0 })
    }

    fn lookup(v4: Result<Answer, LookupError>, v6: Result<Answer, LookupError>) -> Lookup {
        Lookup { v4, v6, server: None }
    }

    /// A table under a clock of its own.
    struct Bench {
        table: Table,
        start: Instant,
        at: Duration,
    }

    impl Bench {
        fn new(targets: Vec<(String, Vec<DnsTarget>)>) -> Self {
            let start = Instant::now();
            let mut table = Table::new(Pace::default());
            table.set_targets(targets, start);
            Self { table, start, at: Duration::ZERO }
        }

        fn now(&self) -> Instant {
            self.start + self.at
        }

        /// Waits until the next name is due, looks it up, and returns when that was.
        fn round(&mut self, lookup: Lookup) -> Duration {
            let due = loop {
                if let Some(due) = self.table.take_due(self.now(), true) {
                    break due;
                }
                self.at = self.table.next_wake(self.now()).expect("something to do") - self.start;
            };
            self.table.apply(&due.name, lookup, self.now(), 0);
            self.at
        }

        /// Addresses and ports reported since the last call, and the names of the events.
        fn reported(&mut self) -> (Option<Vec<String>>, Vec<&'static str>) {
            let (resolved, events) = self.table.settle(self.now());
            let mut lists =
                resolved.into_iter().map(|r| r.endpoints.iter().map(|e| e.address.to_string()).collect());
            let events = events.iter().map(|event| match event {
                Event::Failing { .. } => "failing",
                Event::Recovered { .. } => "recovered",
                Event::Dropped { .. } => "dropped",
                Event::TooManyNames { .. } => "too many names",
                Event::TooManyAddresses { .. } => "too many addresses",
            });
            (lists.next_back(), events.collect())
        }
    }

    fn list(addresses: &[&str]) -> Option<Vec<String>> {
        Some(addresses.iter().map(|&a| a.to_owned()).collect())
    }

    #[test]
    fn names_are_refreshed_before_the_ttl_ends_within_bounds() {
        for (ttl, refresh_min, interval_ms) in [
            (60, 1, 51_000),
            (2, 1, 1_700),
            (1, 1, 1_000),
            (0, 1, 1_000),
            (2, 5, 5_000),
            (100_000, 1, 3_060_000),
            (60, 3600, 3_600_000),
        ] {
            let mut bench = Bench::new(one(DnsTarget { refresh_min: s(refresh_min), ..target(NAME, 80) }));
            assert_eq!(bench.round(lookup(answer(&["10.0.0.1"], ttl), answer(&[], 0))), Duration::ZERO);
            let next = bench.round(lookup(answer(&["10.0.0.1"], ttl), answer(&[], 0)));
            assert_eq!(next, Duration::from_millis(interval_ms), "ttl {ttl}, refresh_min {refresh_min}");
        }
    }

    #[test]
    fn jitter_stays_inside_the_bounds() {
        let pace = Pace::default();
        for jitter in 0..1000 {
            let refresh = pace.refresh_after(s(100), s(1), jitter);
            assert!((s(85)..=s(95)).contains(&refresh), "{refresh:?}");
            let floor = pace.refresh_after(s(1), s(1), jitter);
            assert!((s(1)..=Duration::from_millis(1050)).contains(&floor), "{floor:?}");
            let retry = pace.retry_after(u32::MAX, s(3600), jitter);
            assert!((s(15)..=Duration::from_millis(16_500)).contains(&retry), "{retry:?}");
        }
    }

    #[test]
    fn failures_back_off_and_keep_the_addresses_until_they_are_too_old() {
        for failure in [timeout as fn() -> _, || Ok(Answer::NoName), || Ok(Answer::NoAddress)] {
            let mut bench = Bench::new(one(target(NAME, 80)));
            bench.round(lookup(answer(&["10.0.0.1"], 10), answer(&[], 0)));
            assert_eq!(bench.reported(), (list(&["10.0.0.1:80"]), vec![]));
            let times: Vec<Duration> = (0..7).map(|_| bench.round(lookup(failure(), failure()))).collect();
            let gaps: Vec<u64> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
            assert_eq!(gaps, [1, 2, 4, 8, 15, 15]);
            // One alarm for all of it, and nothing changes for the cluster.
            assert_eq!(bench.reported(), (None, vec!["failing"]));
            let state = bench.table.state(bench.now());
            assert!(
                state[0].stale && state[0].addresses.len() == 1 && state[0].last_error.is_some(),
                "{state:?}"
            );
            assert_eq!(state[0].expires_in, Some(Duration::ZERO));
            // The TTL ended at 10 s, stale_max is 100 s.
            while bench.table.next_wake(bench.now()).is_some_and(|at| at < bench.start + s(110)) {
                bench.round(lookup(failure(), failure()));
                if bench.at < s(110) {
                    assert_eq!(bench.reported(), (None, vec![]), "{:?}", bench.at);
                }
            }
            bench.at = s(110);
            assert_eq!(bench.reported(), (list(&[]), vec!["dropped"]));
            let state = bench.table.state(bench.now());
            assert!(!state[0].stale && state[0].addresses.is_empty(), "{state:?}");
            bench.round(lookup(answer(&["10.0.0.2"], 10), answer(&[], 0)));
            assert_eq!(bench.reported(), (list(&["10.0.0.2:80"]), vec!["recovered"]));
        }
    }

    #[test]
    fn the_clock_wakes_at_the_stale_limit() {
        let mut bench = Bench::new(one(DnsTarget { stale_max: s(3), ..target(NAME, 80) }));
        bench.round(lookup(answer(&["10.0.0.1"], 10), answer(&[], 0)));
        let mut wakes = Vec::new();
        while bench.at < s(13) {
            bench.at = bench.table.next_wake(bench.now()).expect("something to do") - bench.start;
            wakes.push(bench.at);
            if let Some(due) = bench.table.take_due(bench.now(), true) {
                bench.table.apply(&due.name, lookup(timeout(), timeout()), bench.now(), 0);
            }
        }
        assert_eq!(wakes.last(), Some(&s(13)), "{wakes:?}");
    }

    #[test]
    fn one_family_may_fail_while_the_other_works() {
        let mut bench = Bench::new(one(DnsTarget { stale_max: s(5), ..target(NAME, 80) }));
        bench.round(lookup(answer(&["10.0.0.1"], 10), answer(&["fd00::1"], 10)));
        assert_eq!(bench.reported(), (list(&["10.0.0.1:80", "[fd00::1]:80"]), vec![]));
        // A family that cannot be asked keeps its addresses, for a while; one that has none any more does not.
        bench.round(lookup(answer(&["10.0.0.1"], 10), timeout()));
        assert_eq!(bench.reported(), (None, vec![]));
        assert!(
            bench.table.state(bench.now())[0].last_error.as_deref().is_some_and(|e| e.starts_with("AAAA: "))
        );
        bench.at = s(15);
        assert_eq!(bench.reported(), (list(&["10.0.0.1:80"]), vec![]));
        bench.round(lookup(answer(&[], 0), answer(&["fd00::1"], 10)));
        assert_eq!(bench.reported(), (list(&["[fd00::1]:80"]), vec![]));
    }

    #[test]
    fn a_cluster_has_the_union_of_its_names_and_a_name_serves_many_clusters() {
        let targets = vec![
            ("a".to_owned(), vec![target("one.test", 80), target("TWO.test.", 80), target("one.test", 81)]),
            ("b".to_owned(), vec![DnsTarget { weight: 7, ..target("two.test", 90) }]),
        ];
        let mut bench = Bench::new(targets);
        bench.round(lookup(answer(&["10.0.0.1", "10.0.0.2"], 10), answer(&[], 0)));
        bench.round(lookup(answer(&["10.0.0.2", "10.0.0.3"], 10), answer(&[], 0)));
        assert_eq!(bench.table.take_due(bench.now(), true), None, "two names, two look-ups");
        let (resolved, _) = bench.table.settle(bench.now());
        let lists: Vec<(String, Vec<(String, u32)>)> = resolved
            .into_iter()
            .map(|r| (r.cluster, r.endpoints.iter().map(|e| (e.address.to_string(), e.weight)).collect()))
            .collect();
        let endpoint = |address: &str, weight| (address.to_owned(), weight);
        let a = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.1:81", "10.0.0.2:81"];
        let a = a.map(|address| endpoint(address, 1)).to_vec();
        let b = vec![endpoint("10.0.0.2:90", 7), endpoint("10.0.0.3:90", 7)];
        assert_eq!(lists, [("a".to_owned(), a), ("b".to_owned(), b)]);
    }

    #[test]
    fn a_new_config_keeps_what_is_known() {
        let mut bench = Bench::new(one(target(NAME, 80)));
        let good = || lookup(answer(&["10.0.0.1"], 60), answer(&[], 0));
        bench.round(good());
        bench.reported();
        // The same name with another port: reported at once, no new look-up.
        bench.table.set_targets(one(target("DB.test", 81)), bench.now());
        assert_eq!(bench.reported(), (list(&["10.0.0.1:81"]), vec![]));
        assert_eq!(bench.table.take_due(bench.now(), true), None);
        // The same config again: cores may be new, so it is reported again.
        bench.table.set_targets(one(target("DB.test", 81)), bench.now());
        assert_eq!(bench.reported(), (list(&["10.0.0.1:81"]), vec![]));
        assert_eq!(bench.reported(), (None, vec![]));
        // Another name: the cluster keeps its list until something is known.
        bench.table.set_targets(one(target("new.test", 81)), bench.now());
        assert_eq!(bench.reported(), (None, vec![]));
        // The old name's look-up may still come in.
        bench.table.apply(NAME, good(), bench.now(), 0);
        assert_eq!(bench.reported(), (None, vec![]));
        // No names at all, even before the first was known: nothing that was found may stay.
        bench.table.set_targets(vec![(CLUSTER.to_owned(), Vec::new())], bench.now());
        assert_eq!(bench.reported(), (list(&[]), vec![]));
        assert_eq!((bench.table.next_wake(bench.now()), bench.table.state(bench.now())), (None, vec![]));
        bench.table.set_targets(Vec::new(), bench.now());
        assert_eq!(bench.reported(), (None, vec![]));
    }

    #[test]
    fn names_and_addresses_are_bounded() {
        let many = (0..=NAMES_MAX).map(|number| target(&format!("n{number}.test"), 80)).collect();
        let mut bench = Bench::new(vec![(CLUSTER.to_owned(), many)]);
        assert_eq!(bench.reported(), (None, vec!["too many names"]));
        assert_eq!(bench.table.state(bench.now()).len(), NAMES_MAX);

        let mut bench = Bench::new(one(target(NAME, 80)));
        let v4: Vec<String> = (0..=ADDRESSES_MAX).map(|number| format!("10.0.0.{number}")).collect();
        let v4: Vec<&str> = v4.iter().map(String::as_str).collect();
        for events in [vec!["too many addresses"], vec![]] {
            bench.round(lookup(answer(&v4, 10), answer(&["fd00::1"], 10)));
            let (endpoints, found) = bench.reported();
            assert_eq!(found, events);
            assert!(endpoints.is_none_or(|endpoints| endpoints.len() == ADDRESSES_MAX));
        }
    }

    #[test]
    fn failing_names_can_be_passed_over() {
        let mut bench =
            Bench::new(vec![(CLUSTER.to_owned(), vec![target("bad.test", 80), target("good.test", 80)])]);
        for answers in [lookup(timeout(), timeout()), lookup(answer(&["10.0.0.1"], 60), answer(&[], 0))] {
            bench.round(answers);
        }
        bench.at = s(100);
        let next = |failing| Due { name: if failing { "bad.test" } else { "good.test" }.to_owned(), failing };
        assert_eq!(bench.table.take_due(bench.now(), false), Some(next(false)));
        assert_eq!(bench.table.take_due(bench.now(), false), None);
        assert_eq!(bench.table.take_due(bench.now(), true), Some(next(true)));
    }
}
