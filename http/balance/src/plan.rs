//! The immutable plan of one cluster: what the snapshot's compile makes off the core, and what the core's
//! [`crate::cluster::ClusterState`] reads. Hash tables are built here, where time is cheap.
//!
//! Invariants (checked by [`ClusterPlan::build`]): identities are distinct, weights are not 0, table sizes are in range.

use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::admission::AdmissionRules;
use crate::budget::BudgetRules;
use crate::endpoint::{EndpointId, Health};
use crate::ewma::EwmaRules;
use crate::generations::Generation;
use crate::levels::ZoneRules;
use crate::maglev;
use crate::outlier::OutlierRules;
use crate::retry::RetryRules;
use crate::ring::VIRTUAL_NODES;
use crate::slow_start::SlowStart;
use crate::sticky::StickyRules;
use crate::tables::{Table, Tables};

/// How endpoints are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Policy {
    /// Power of two choices on requests in flight.
    #[default]
    LeastRequest,
    RoundRobin,
    Random,
    /// For TCP: connections by capacity (the weight).
    LeastConnections,
    PeakEwma(EwmaRules),
    /// By the request's key; requests without one go by least request.
    RingHash {
        virtual_nodes: u32,
        bound: Option<LoadBound>,
    },
    Maglev {
        rows: u32,
        bound: Option<LoadBound>,
    },
}

/// Bounded load (Mirrokni 2016): no endpoint gets a request by its key while it holds more than this part of its fair
/// share of the requests in flight. In percent, at least 101.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadBound(pub u32);

impl Default for LoadBound {
    fn default() -> Self {
        Self(125)
    }
}

/// Everything that is configured for one cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterRules {
    pub policy: Policy,
    pub slow_start: Option<SlowStart>,
    pub outlier: Option<OutlierRules>,
    /// Share of available endpoints below which health is ignored; 0: never.
    pub panic_percent: u32,
    pub zones: Option<ZoneRules>,
    pub admission: AdmissionRules,
    pub retry: RetryRules,
    /// Of all routes that hedge.
    pub hedges: BudgetRules,
    pub sticky: Option<StickyRules>,
}

impl Default for ClusterRules {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            slow_start: Some(SlowStart::default()),
            outlier: Some(OutlierRules::default()),
            panic_percent: 50,
            zones: None,
            admission: AdmissionRules::default(),
            retry: RetryRules::default(),
            hedges: BudgetRules::HEDGES,
            sticky: None,
        }
    }
}

/// Whether an endpoint is asked for new requests at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    #[default]
    Serving,
    Draining,
}

/// One endpoint of a plan. Its index there is its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointSpec {
    pub id: EndpointId,
    /// Share of the requests, or capacity; not 0.
    pub weight: u32,
    pub zone: u16,
    /// 0 is used first.
    pub priority: u8,
    pub standing: Standing,
    /// From the feed. `Unchecked` leaves to the core what its own checks say.
    pub health: Health,
}

impl EndpointSpec {
    /// A serving endpoint of the first priority.
    #[must_use]
    pub const fn new(id: EndpointId, weight: u32) -> Self {
        Self { id, weight, zone: 0, priority: 0, standing: Standing::Serving, health: Health::Unchecked }
    }
}

/// A plan that cannot be. Positions are those of the endpoints given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// Two endpoints have one identity.
    Duplicate {
        first: usize,
        second: usize,
    },
    WeightZero {
        position: usize,
    },
    VirtualNodes {
        given: u32,
    },
    /// Not a prime, or fewer rows than endpoints.
    Rows {
        given: u32,
    },
    /// 100 % and less leave no room for one more request.
    LoadBound {
        given: u32,
    },
    TooManyEndpoints {
        given: usize,
    },
}

impl std::fmt::Display for PlanError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Duplicate { first, second } => {
                write!(
                    f,
                    "endpoints {first} and {second} are the same; name each one once and add the weights up"
                )
            }
            Self::WeightZero { position } => {
                write!(f, "endpoint {position} has the weight 0; leave it out, or drain it")
            }
            Self::VirtualNodes { given } => {
                let (least, most) = (VIRTUAL_NODES.start(), VIRTUAL_NODES.end());
                write!(f, "{given} virtual nodes; give {least} to {most}")
            }
            Self::Rows { given } => {
                write!(f, "{given} rows; give a prime above a hundred times the endpoints, such as 65537")
            }
            Self::LoadBound { given } => {
                write!(f, "a load bound of {given} %; give 101 % or more, such as 125")
            }
            Self::TooManyEndpoints { given } => {
                write!(f, "{given} endpoints, at most {ENDPOINTS_MAX}; use subsetting or split the cluster")
            }
        }
    }
}

impl std::error::Error for PlanError {}

/// Endpoints of one plan.
pub const ENDPOINTS_MAX: usize = 100_000;

#[derive(Clone, Debug)]
pub struct ClusterPlan {
    pub rules: ClusterRules,
    pub(crate) endpoints: Vec<EndpointSpec>,
    /// By priority; empty for policies without one.
    pub(crate) tables: Vec<Table>,
    /// For sticky sessions, the current one first.
    pub(crate) generations: Vec<Generation>,
    /// Endpoints that are gone but may still have sessions, with the end of their time.
    pub(crate) departed: Vec<(EndpointId, Duration)>,
    pub(crate) levels: usize,
}

impl ClusterPlan {
    /// A plan over `endpoints`, whose order becomes the positions. `generations` are the rings of sticky sessions from a
    /// [`crate::generations::RingHistory`], empty without them.
    ///
    /// # Errors
    /// The rules or endpoints cannot be; the message names which and the way out.
    pub fn build(
        rules: ClusterRules,
        endpoints: Vec<EndpointSpec>,
        generations: Vec<Generation>,
    ) -> Result<Self, PlanError> {
        Self::build_shared(rules, endpoints, generations, &mut Tables::default())
    }

    /// The same, with the hash tables that other plans have, as far as they fit.
    ///
    /// # Errors
    /// As [`Self::build`].
    pub fn build_shared(
        rules: ClusterRules,
        endpoints: Vec<EndpointSpec>,
        generations: Vec<Generation>,
        tables: &mut Tables,
    ) -> Result<Self, PlanError> {
        check(&rules, &endpoints)?;
        let levels = levels(&endpoints);
        let tables = tables.of_all(rules.policy, &endpoints);
        Ok(Self { rules, endpoints, tables, generations, departed: Vec::new(), levels })
    }

    /// With endpoints that it does not name and that may still have sessions, with the end of their time: a state that
    /// does not know them takes them in as draining. What a state knows itself counts more.
    #[must_use]
    pub fn with_departed(mut self, departed: Vec<(EndpointId, Duration)>) -> Self {
        self.departed = departed;
        self
    }

    /// See [`Self::with_departed`].
    #[must_use]
    pub fn departed(&self) -> &[(EndpointId, Duration)] {
        &self.departed
    }

    #[must_use]
    pub fn endpoints(&self) -> &[EndpointSpec] {
        &self.endpoints
    }

    /// The rings of sticky sessions, the current one first.
    #[must_use]
    pub fn generations(&self) -> &[Generation] {
        &self.generations
    }

    /// For how long a removed or draining endpoint still serves its sessions.
    #[must_use]
    pub fn session_overlap(&self) -> Duration {
        self.rules.sticky.map_or(Duration::ZERO, |sticky| sticky.overlap)
    }
}

/// Priorities of a plan.
pub(crate) fn levels(endpoints: &[EndpointSpec]) -> usize {
    endpoints.iter().map(|endpoint| usize::from(endpoint.priority) + 1).max().unwrap_or(0)
}

fn check(rules: &ClusterRules, endpoints: &[EndpointSpec]) -> Result<(), PlanError> {
    if endpoints.len() > ENDPOINTS_MAX {
        return Err(PlanError::TooManyEndpoints { given: endpoints.len() });
    }
    let mut positions: FxHashMap<EndpointId, usize> = FxHashMap::default();
    for (position, endpoint) in endpoints.iter().enumerate() {
        if let Some(first) = positions.insert(endpoint.id, position) {
            return Err(PlanError::Duplicate { first, second: position });
        }
        if endpoint.weight == 0 {
            return Err(PlanError::WeightZero { position });
        }
    }
    if let Policy::RingHash { virtual_nodes, .. } = rules.policy
        && !VIRTUAL_NODES.contains(&virtual_nodes)
    {
        return Err(PlanError::VirtualNodes { given: virtual_nodes });
    }
    if let Policy::Maglev { rows, .. } = rules.policy
        && !(maglev::is_prime(rows) && rows as usize >= endpoints.len())
    {
        return Err(PlanError::Rows { given: rows });
    }
    match rules.policy {
        Policy::RingHash { bound: Some(LoadBound(given)), .. }
        | Policy::Maglev { bound: Some(LoadBound(given)), .. }
            if given <= 100 =>
        {
            Err(PlanError::LoadBound { given })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plan is made on one thread and read on another.
    const _: fn() = || {
        const fn is_send<T: Send>() {}
        is_send::<ClusterPlan>();
    };

    fn spec(n: u64, weight: u32) -> EndpointSpec {
        EndpointSpec::new(EndpointId(n), weight)
    }

    #[test]
    fn what_cannot_be_is_named_with_the_way_out() {
        let with = |policy| ClusterRules { policy, ..ClusterRules::default() };
        let ring = |virtual_nodes, bound| with(Policy::RingHash { virtual_nodes, bound });
        let maglev = |rows| with(Policy::Maglev { rows, bound: None });
        let cases = [
            (
                ClusterRules::default(),
                vec![spec(1, 1), spec(2, 1), spec(1, 3)],
                "endpoints 0 and 2",
                "add the weights",
            ),
            (ClusterRules::default(), vec![spec(1, 1), spec(2, 0)], "endpoint 1", "drain it"),
            (ring(99, None), vec![], "99 virtual nodes", "100 to 500"),
            (ring(501, None), vec![], "501 virtual nodes", "100 to 500"),
            (ring(100, Some(LoadBound(100))), vec![], "100 %", "125"),
            (maglev(65_536), vec![], "65536 rows", "a prime"),
            (maglev(2), vec![spec(1, 1), spec(2, 1), spec(3, 1)], "2 rows", "a prime"),
        ];
        for (rules, endpoints, what, way_out) in cases {
            let message = ClusterPlan::build(rules, endpoints, Vec::new()).unwrap_err().to_string();
            assert!(message.contains(what) && message.contains(way_out), "{message}");
        }
        let many = (0..100_001).map(|n| spec(n, 1)).collect();
        assert!(ClusterPlan::build(ClusterRules::default(), many, Vec::new()).is_err());
    }
}
