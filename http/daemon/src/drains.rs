//! Endpoints that an operator drains while the process runs (`shardctl endpoint`), whatever the config says of them.
//!
//! A drain holds until it is taken back: over reloads for as long as the config names the endpoint (for one found by
//! name, its cluster), and over a hot restart. A process that starts alone knows of none.
//!
//! Invariants: every drained endpoint is one that the config in force names, or of a cluster with names to resolve;
//! there are at most [`DRAINED_MAX`]. Owned by the main thread, which tells the cores.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;

use http_proxy::pool::DRAINED_MAX;

/// Names that an error lists.
const LISTED_MAX: usize = 20;
/// First line of each message to a successor.
const BEQUEST_HEAD: &str = "drained";
/// Endpoints in one message, which has room for 64 KiB.
const PER_MESSAGE_MAX: usize = 128;

/// By cluster.
pub(crate) type Drained = BTreeMap<String, BTreeSet<SocketAddr>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Drain,
    Resume,
}

/// What an operator asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) action: Action,
    pub(crate) cluster: String,
    pub(crate) address: SocketAddr,
}

/// What has been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    Changed,
    /// It was so already.
    Nothing,
}

/// Why an order is not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    NoCluster {
        wanted: String,
        known: Vec<String>,
    },
    NoEndpoint {
        wanted: SocketAddr,
        known: Vec<SocketAddr>,
    },
    TooMany,
    /// The process is about to end.
    Ending,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCluster { wanted, known } => {
                write!(f, "there is no cluster {wanted:?}; the config has {}", Listed(known))
            }
            Self::NoEndpoint { wanted, known } => {
                write!(f, "the cluster has no endpoint {wanted}; it has {}", Listed(known))
            }
            Self::TooMany => write!(
                f,
                "{DRAINED_MAX} endpoints are drained already; resume some, or write `drain: true` into the config"
            ),
            Self::Ending => f.write_str("this process drains and is about to end; ask its successor"),
        }
    }
}

/// The first of a list.
struct Listed<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for Listed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (at, item) in self.0.iter().take(LISTED_MAX).enumerate() {
            write!(f, "{}{item}", if at == 0 { "" } else { ", " })?;
        }
        match self.0.len().checked_sub(LISTED_MAX) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, " and {more} more"),
        }
    }
}

/// A cluster of the config in force.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    pub(crate) addresses: BTreeSet<SocketAddr>,
    pub(crate) has_names: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Drains {
    config: BTreeMap<String, Known>,
    /// What the names of clusters stand for now.
    found: BTreeMap<String, BTreeSet<SocketAddr>>,
    drained: Drained,
}

impl Drains {
    /// Goes over to another config, and forgets the drains of endpoints that it does not have: those are returned.
    pub(crate) fn adopt(&mut self, config: BTreeMap<String, Known>) -> Vec<(String, SocketAddr)> {
        self.config = config;
        let config = &self.config;
        self.found.retain(|cluster, _| config.get(cluster).is_some_and(|known| known.has_names));
        let mut gone = Vec::new();
        for (cluster, addresses) in &mut self.drained {
            let known = config.get(cluster);
            addresses.retain(|address| {
                let stays = known.is_some_and(|known| known.has_names || known.addresses.contains(address));
                if !stays {
                    gone.push((cluster.clone(), *address));
                }
                stays
            });
        }
        self.drained.retain(|_, addresses| !addresses.is_empty());
        gone
    }

    /// Takes note of what the names of a cluster stand for.
    pub(crate) fn found(&mut self, cluster: &str, addresses: BTreeSet<SocketAddr>) {
        self.found.insert(cluster.to_owned(), addresses);
    }

    /// Carries out an order; the caller tells the cores.
    ///
    /// # Errors
    /// The config has no such endpoint, or too many are drained.
    pub(crate) fn obey(&mut self, order: &Order) -> Result<Done, Refusal> {
        let Order { action, cluster, address } = order;
        let Some(known) = self.config.get(cluster) else {
            let known = self.config.keys().cloned().collect();
            return Err(Refusal::NoCluster { wanted: cluster.clone(), known });
        };
        let is_drained = self.drained.get(cluster).is_some_and(|drained| drained.contains(address));
        let found = self.found.get(cluster);
        let is_known =
            known.addresses.contains(address) || found.is_some_and(|found| found.contains(address));
        // What a name no longer stands for can still be taken back.
        if !is_known && !is_drained {
            let known = known.addresses.iter().chain(found.into_iter().flatten()).copied().collect();
            return Err(Refusal::NoEndpoint { wanted: *address, known });
        }
        match (action, is_drained) {
            (Action::Drain, true) | (Action::Resume, false) => return Ok(Done::Nothing),
            (Action::Drain, false) => {
                if self.count() >= DRAINED_MAX {
                    return Err(Refusal::TooMany);
                }
                self.drained.entry(cluster.clone()).or_default().insert(*address);
            }
            (Action::Resume, true) => {
                let left = self.drained.get_mut(cluster).map_or(0, |drained| {
                    drained.remove(address);
                    drained.len()
                });
                if left == 0 {
                    self.drained.remove(cluster);
                }
            }
        }
        Ok(Done::Changed)
    }

    pub(crate) const fn drained(&self) -> &Drained {
        &self.drained
    }

    /// What is drained of one cluster.
    pub(crate) fn of(&self, cluster: &str) -> Vec<SocketAddr> {
        self.drained.get(cluster).into_iter().flatten().copied().collect()
    }

    /// Endpoints of a cluster that no operator drains.
    pub(crate) fn left(&self, cluster: &str) -> usize {
        let own = self.config.get(cluster).map(|known| &known.addresses);
        let all: BTreeSet<_> = own.into_iter().chain(self.found.get(cluster)).flatten().collect();
        let drained = self.drained.get(cluster);
        all.into_iter().filter(|address| !drained.is_some_and(|drained| drained.contains(*address))).count()
    }

    fn count(&self) -> usize {
        self.drained.values().map(BTreeSet::len).sum()
    }

    /// Messages for a successor, with a line for each endpoint.
    pub(crate) fn bequest(&self) -> Vec<String> {
        let lines = self.drained.iter().flat_map(|(cluster, addresses)| {
            addresses.iter().map(move |address| format!("\n{address} {cluster}"))
        });
        let lines: Vec<_> = lines.collect();
        lines.chunks(PER_MESSAGE_MAX).map(|lines| format!("{BEQUEST_HEAD}{}", lines.concat())).collect()
    }

    /// Whether a message is such a bequest.
    pub(crate) fn is_bequest(text: &str) -> bool {
        text.lines().next() == Some(BEQUEST_HEAD)
    }

    /// What a predecessor left; lines that cannot be read are passed over, and what the config lacks goes with
    /// [`Self::adopt`].
    pub(crate) fn inherited(messages: &[String]) -> Self {
        let mut drains = Self::default();
        for line in messages.iter().flat_map(|text| text.lines().skip(1)).take(DRAINED_MAX) {
            let Some((address, cluster)) = line.split_once(' ') else { continue };
            let Ok(address) = address.parse() else { continue };
            drains.drained.entry(cluster.to_owned()).or_default().insert(address);
        }
        drains
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    fn config(clusters: &[(&str, &[u16])]) -> BTreeMap<String, Known> {
        let known = |ports: &[u16]| Known {
            addresses: ports.iter().map(|port| address(*port)).collect(),
            has_names: ports.is_empty(),
        };
        clusters.iter().map(|(name, ports)| ((*name).to_owned(), known(ports))).collect()
    }

    fn order(action: Action, cluster: &str, port: u16) -> Order {
        Order { action, cluster: cluster.to_owned(), address: address(port) }
    }

    #[test]
    fn orders_are_obeyed_once_and_refused_with_what_there_is() {
        let mut drains = Drains::default();
        drains.adopt(config(&[("a/u", &[1, 2]), ("a/v", &[3])]));
        assert_eq!(drains.obey(&order(Action::Drain, "a/u", 1)), Ok(Done::Changed));
        assert_eq!(drains.obey(&order(Action::Drain, "a/u", 1)), Ok(Done::Nothing));
        assert_eq!((drains.of("a/u"), drains.left("a/u")), (vec![address(1)], 1));
        assert_eq!(drains.obey(&order(Action::Resume, "a/u", 2)), Ok(Done::Nothing));
        assert_eq!(drains.obey(&order(Action::Resume, "a/u", 1)), Ok(Done::Changed));
        assert!(drains.drained().is_empty());
        let refused = |drains: &mut Drains, cluster, port| {
            drains.obey(&order(Action::Drain, cluster, port)).expect_err("refused").to_string()
        };
        let message = refused(&mut drains, "u", 1);
        assert_eq!(message, "there is no cluster \"u\"; the config has a/u, a/v");
        let message = refused(&mut drains, "a/u", 3);
        assert_eq!(message, "the cluster has no endpoint 10.0.0.1:3; it has 10.0.0.1:1, 10.0.0.1:2");
    }

    #[test]
    fn a_reload_forgets_what_the_config_no_longer_has() {
        let mut drains = Drains::default();
        drains.adopt(config(&[("u", &[1, 2]), ("named", &[])]));
        drains.found("named", [address(7)].into());
        for (cluster, port) in [("u", 1), ("u", 2), ("named", 7)] {
            assert_eq!(drains.obey(&order(Action::Drain, cluster, port)), Ok(Done::Changed));
        }
        assert_eq!(drains.adopt(config(&[("u", &[1, 2]), ("named", &[])])), []);
        assert_eq!(drains.adopt(config(&[("u", &[2, 3]), ("named", &[])])), [("u".to_owned(), address(1))]);
        assert_eq!(drains.adopt(config(&[("u", &[1, 2, 3]), ("named", &[])])), []);
        assert_eq!(drains.of("u"), [address(2)], "what came back is not drained");
        // The name stands for something else for a while.
        drains.found("named", BTreeSet::new());
        assert_eq!(drains.of("named"), [address(7)]);
        assert_eq!(drains.obey(&order(Action::Resume, "named", 7)), Ok(Done::Changed));
        assert_eq!(drains.adopt(config(&[])), [("u".to_owned(), address(2))]);
    }

    #[test]
    fn there_is_a_most() {
        let ports: Vec<u16> = (1..=1025).collect();
        let mut drains = Drains::default();
        drains.adopt(config(&[("u", &ports)]));
        for port in &ports[..DRAINED_MAX] {
            assert_eq!(drains.obey(&order(Action::Drain, "u", *port)), Ok(Done::Changed));
        }
        assert_eq!(drains.obey(&order(Action::Drain, "u", 1025)), Err(Refusal::TooMany));
        assert_eq!(drains.obey(&order(Action::Resume, "u", 5)), Ok(Done::Changed));
        assert_eq!(drains.obey(&order(Action::Drain, "u", 1025)), Ok(Done::Changed));
    }

    #[test]
    fn a_successor_inherits() {
        let mut drains = Drains::default();
        assert_eq!(drains.bequest(), Vec::<String>::new());
        let ports: Vec<u16> = (1..=300).collect();
        drains.adopt(config(&[("a b", &ports), ("u", &[3])]));
        for port in &ports {
            assert_eq!(drains.obey(&order(Action::Drain, "a b", *port)), Ok(Done::Changed));
        }
        assert_eq!(drains.obey(&order(Action::Drain, "u", 3)), Ok(Done::Changed));
        let mut messages = drains.bequest();
        assert_eq!(messages.len(), 3);
        assert!(messages.iter().all(|text| Drains::is_bequest(text)));
        assert!(!Drains::is_bequest("drain") && !Drains::is_bequest("0 drained"));
        messages.push("drained\nnonsense\nx y".to_owned());
        let mut heir = Drains::inherited(&messages);
        assert_eq!(heir.drained(), drains.drained());
        assert_eq!(heir.adopt(config(&[("u", &[3])])).len(), 300);
    }
}
