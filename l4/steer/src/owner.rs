//! Proxies as the L4 tier sees them: identity, weight and state.
//!
//! Invariants: an id is given by the operator and names the same proxy for its whole life, because rows, flow tables
//! and QUIC connection ids hold it; the name decides the rows, so that a new address moves no flow.

use std::fmt;

use sha2::{Digest, Sha256};

/// The id of a proxy in rows and flow tables, 1 to [`OwnerId::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(u16);

impl OwnerId {
    /// The largest id. Well below [`l4_abi::TABLE_ROWS`], so that every proxy can have a row.
    pub const MAX: u16 = 4_095;

    /// The id with this number; `None` outside 1 to [`OwnerId::MAX`].
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        if number >= 1 && number <= Self::MAX { Some(Self(number)) } else { None }
    }

    /// The number as it stands in maps and in the config.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a proxy may be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OwnerState {
    /// New flows and its own.
    #[default]
    Active,
    /// Its own flows only.
    Draining,
    /// Nothing: it is gone, and so are its flows.
    Down,
}

impl OwnerState {
    /// The word in the config, in metrics and in `shardctl l4 show`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Down => "down",
        }
    }
}

/// A proxy's part in the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Stable, unique in the fleet.
    pub id: OwnerId,
    /// Stable, unique in the fleet; the tables are made from it.
    pub name: String,
    /// Share of new flows relative to the other proxies, 1 to [`WEIGHT_MAX`].
    pub weight: u16,
    pub state: OwnerState,
}

/// The largest weight; the smallest is 1.
pub const WEIGHT_MAX: u16 = 1_000;

/// A versioned list of proxies, in the order of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerList {
    version: ListVersion,
    owners: Vec<Owner>,
}

/// Names a list by its content: two boxes with the same version have the same tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListVersion(pub u64);

impl fmt::Display for ListVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Why a list of proxies is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnerListError {
    /// Two proxies have this name.
    NameTwice(String),
    /// Two proxies have this id.
    IdTwice(OwnerId),
    /// The weight of this proxy is 0 or above [`WEIGHT_MAX`].
    Weight(String),
}

impl fmt::Display for OwnerListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NameTwice(name) => write!(f, "two proxies are named {name}; give each a name of its own"),
            Self::IdTwice(id) => write!(f, "two proxies have the id {id}; give each an id of its own"),
            Self::Weight(name) => {
                write!(f, "the weight of proxy {name} is outside 1 to {WEIGHT_MAX}; use `state` to drain it")
            }
        }
    }
}

impl std::error::Error for OwnerListError {}

impl OwnerList {
    /// A list from proxies in any order.
    ///
    /// # Errors
    /// `OwnerListError` for a name or id that comes twice, or a weight out of range.
    pub fn new(mut owners: Vec<Owner>) -> Result<Self, OwnerListError> {
        owners.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = owners.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(OwnerListError::NameTwice(pair[0].name.clone()));
        }
        let mut ids: Vec<OwnerId> = owners.iter().map(|owner| owner.id).collect();
        ids.sort_unstable();
        if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(OwnerListError::IdTwice(pair[0]));
        }
        if let Some(owner) = owners.iter().find(|owner| !(1..=WEIGHT_MAX).contains(&owner.weight)) {
            return Err(OwnerListError::Weight(owner.name.clone()));
        }
        Ok(Self { version: version_of(&owners), owners })
    }

    /// The version of this content.
    #[must_use]
    pub fn version(&self) -> ListVersion {
        self.version
    }

    /// All proxies, in the order of names.
    #[must_use]
    pub fn owners(&self) -> &[Owner] {
        &self.owners
    }

    /// The proxy with this id.
    #[must_use]
    pub fn get(&self, id: OwnerId) -> Option<&Owner> {
        self.owners.iter().find(|owner| owner.id == id)
    }

    /// Whether packets may still go to the proxy with this id.
    #[must_use]
    pub fn is_up(&self, id: OwnerId) -> bool {
        self.get(id).is_some_and(|owner| owner.state != OwnerState::Down)
    }
}

/// The first eight bytes of the SHA-256 over all that the list says.
fn version_of(owners: &[Owner]) -> ListVersion {
    let mut hash = Sha256::new();
    for owner in owners {
        // Names hold no NUL and no line break, so that no two lists run together.
        hash.update(owner.name.as_bytes());
        hash.update(format!("\0{} {} {}\n", owner.id, owner.weight, owner.state.word()).as_bytes());
    }
    ListVersion(hash.finalize().iter().take(8).fold(0, |version, byte| version << 8 | u64::from(*byte)))
}

const _: () = assert!(OwnerId::MAX as u32 + 1 == l4_abi::OWNERS_MAX);
