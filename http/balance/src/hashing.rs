//! Picks by a request's key, with bounded load, and the endpoints of sticky sessions.
//!
//! When the owner of a key takes no request (ejected, draining, full, or just failed at), the key is hashed again and
//! its next owner asked, so that the keys of one endpoint spread over all others and always over the same ones.

use std::time::Duration;

use crate::cluster::{ClusterState, Event, NoEndpoint};
use crate::endpoint::{Availability, Slot};
use crate::hash::mix;
use crate::levels::WHOLE;
use crate::plan::{ClusterPlan, LoadBound};
use crate::ring::RingVersion;
use crate::rng::below;
use crate::sticky::Session;
use crate::tables::Table;

/// Owners that are asked by hashing before all endpoints are gone through.
const REHASHES: u64 = 16;

/// The slot for a key; over the bound only when every endpoint is.
#[inline]
pub(crate) fn pick(
    state: &ClusterState,
    plan: &ClusterPlan,
    key: u64,
    bound: Option<LoadBound>,
    exclude: Option<u32>,
) -> Option<u32> {
    let table = plan.tables.get(level(state, key))?;
    let takes = |slot: u32| Some(slot) != exclude && state.takes_requests(Slot(slot));
    let has_room = |slot: u32| takes(slot) && bound.is_none_or(|bound| is_within(state, bound, slot));
    first(state, table, key, has_room).or_else(|| first(state, table, key, takes))
}

#[inline]
fn first(state: &ClusterState, table: &Table, key: u64, fits: impl Fn(u32) -> bool) -> Option<u32> {
    let slot_of = |position: u32| state.by_position.get(position as usize).map(|slot| slot.0);
    for attempt in 0..REHASHES {
        let key = if attempt == 0 { key } else { mix(key, attempt) };
        let slot = slot_of(table.owner(key)?)?;
        if fits(slot) {
            return Some(slot);
        }
    }
    table.walk(key).filter_map(slot_of).find(|slot| fits(*slot))
}

/// The priority level that a key goes to: a key stays on its level as long as the shares stay.
#[inline]
fn level(state: &ClusterState, key: u64) -> usize {
    let point = below(mix(key, 0x6c_6576_656c), u64::from(WHOLE));
    let mut end = 0;
    let found = state.levels.iter().position(|level| {
        end += u64::from(level.share);
        point < end
    });
    // Shares are rounded down: the last millionths belong to the last level that has any.
    found.or_else(|| state.levels.iter().rposition(|level| level.share > 0)).unwrap_or(0)
}

/// Whether one more request leaves the slot within the bound: `in_flight < bound × (all + 1) × weight / weights`.
#[inline]
fn is_within(state: &ClusterState, LoadBound(percent): LoadBound, slot: u32) -> bool {
    state.loads.get(slot as usize).is_some_and(|load| {
        let held = u128::from(load.in_flight) * u128::from(state.weight) * 100;
        held < u128::from(percent) * (u128::from(state.in_flight) + 1) * u128::from(load.weight)
    })
}

/// How a session came to its endpoint; the word for metric labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionFate {
    New,
    /// Where its cookie says.
    Kept,
    /// There too, and the cookie is written for the present ring, where that is the same.
    Renewed,
    /// Its ring is too old: to its place on the present ring.
    RingExpired,
    /// Its endpoint is gone, unhealthy, or done with draining.
    EndpointGone,
}

impl SessionFate {
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Kept => "kept",
            Self::Renewed => "renewed",
            Self::RingExpired => "ring_expired",
            Self::EndpointGone => "endpoint_gone",
        }
    }
}

/// Where a session goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    pub slot: Slot,
    pub fate: SessionFate,
    /// What the cookie is to be written with; None: it stays.
    pub rewrite: Option<Session>,
}

/// Session ids that are tried for one whose endpoint takes requests.
const NEW_IDS: u64 = 64;

impl ClusterState {
    /// The endpoint of a session, or of a new one when there is none. A session that moves gets a new id, which is
    /// drawn until its endpoint takes requests: it will not move back when the old endpoint returns. A retry of a
    /// request goes by [`ClusterState::pick`] and leaves the cookie alone.
    ///
    /// # Errors
    /// No endpoint of the present ring takes requests.
    pub fn place(
        &mut self,
        plan: &ClusterPlan,
        session: Option<Session>,
        random: (u64, u64),
        now: Duration,
        events: &mut Vec<Event>,
    ) -> Result<Placed, NoEndpoint> {
        self.refresh_if_due(plan, now, events);
        let current = plan.generations.first().ok_or(NoEndpoint::Empty)?;
        let version = current.version();
        let fate = match session {
            None => SessionFate::New,
            Some(session) => match self.recorded(plan, &session, now) {
                Ok(slot) => {
                    let here = session.ring == version;
                    let same = !here && self.owner_slot(plan, 0, &session) == Some(slot);
                    let rewrite = same.then_some(Session { ring: version, ..session });
                    let fate = if same { SessionFate::Renewed } else { SessionFate::Kept };
                    return Ok(Placed { slot, fate, rewrite });
                }
                Err(SessionFate::RingExpired) => {
                    let slot = self.owner_slot(plan, 0, &session).filter(|slot| self.takes_requests(*slot));
                    if let Some(slot) = slot {
                        let rewrite = Some(Session { ring: version, ..session });
                        return Ok(Placed { slot, fate: SessionFate::RingExpired, rewrite });
                    }
                    SessionFate::EndpointGone
                }
                Err(fate) => fate,
            },
        };
        let (session, slot) = self.new_session(plan, version, random).ok_or(NoEndpoint::NoneAvailable)?;
        Ok(Placed { slot, fate, rewrite: Some(session) })
    }

    /// The slot that a session's cookie stands for, if it may still use it.
    fn recorded(&self, plan: &ClusterPlan, session: &Session, now: Duration) -> Result<Slot, SessionFate> {
        let is_valid = |until: Option<Duration>| until.is_none_or(|until| now < until);
        let generation = plan
            .generations
            .iter()
            .position(|generation| generation.version() == session.ring && is_valid(generation.valid_until))
            .ok_or(SessionFate::RingExpired)?;
        let slot = self.owner_slot(plan, generation, session).ok_or(SessionFate::EndpointGone)?;
        let may_use = self.takes_requests(slot) || self.serves_sessions(slot, now);
        may_use.then_some(slot).ok_or(SessionFate::EndpointGone)
    }

    fn owner_slot(&self, plan: &ClusterPlan, generation: usize, session: &Session) -> Option<Slot> {
        self.slot_of(plan.generations.get(generation)?.owner(session)?)
    }

    /// It drains, its sessions' time is not over, and nothing else is wrong with it.
    fn serves_sessions(&self, slot: Slot, now: Duration) -> bool {
        let Some(Some(known)) = self.slots.get(slot.index()) else { return false };
        let is_fit = known.health != crate::endpoint::Health::Unhealthy && known.outlier.ejected().is_none();
        let is_draining =
            matches!(known.availability(), Availability::Draining(drain) if now < drain.sessions_until);
        is_fit && is_draining
    }

    fn new_session(
        &self,
        plan: &ClusterPlan,
        ring: RingVersion,
        random: (u64, u64),
    ) -> Option<(Session, Slot)> {
        (0..NEW_IDS).find_map(|attempt| {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&mix(random.0, attempt).to_be_bytes());
            id[8..].copy_from_slice(&random.1.to_be_bytes());
            let session = Session { id, ring };
            let slot = self.owner_slot(plan, 0, &session).filter(|slot| self.takes_requests(*slot))?;
            Some((session, slot))
        })
    }
}
