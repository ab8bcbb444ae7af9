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
            self.resolved.push(Resolved { cluster, endpoints: Vec::new() });
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
                self.resolved.push(Resolved { cluster, endpoints });
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

    /// What each cluster has of each of its names.
    pub(super) fn state(&self, now: Instant) -> Vec<NameState> {
        let targets = self.clusters.iter().flat_map(|(cluster, state)| state.targets.iter().map(move |t| (cluster, t)));
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
