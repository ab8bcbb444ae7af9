//! The weight of every endpoint now: configured weight × slow start, and the shares of priority levels and zones.
//!
//! Called by [`crate::cluster::ClusterState::refresh`] when something has changed, never per request.

use std::time::Duration;

use crate::cluster::{ClusterState, Event, Known};
use crate::endpoint::{Availability, Slot};
use crate::levels::{LevelCount, LevelShare, WHOLE, level_shares, local_share};
use crate::plan::ClusterPlan;
use crate::rng::wide_product;
use crate::time::narrow;

/// Writes the weights of all slots, the levels, and events for panic that begins or ends.
pub(crate) fn apply(state: &mut ClusterState, plan: &ClusterPlan, now: Duration, events: &mut Vec<Event>) {
    let counts = count(state, plan);
    let shares = level_shares(&counts, plan.rules.panic_percent);
    for (level, (count, share)) in counts.iter().zip(&shares).enumerate() {
        let was_on = state.levels.get(level).is_some_and(|level| level.panic);
        if share.panic != was_on {
            events.push(Event::Panic {
                level,
                is_on: share.panic,
                available: count.available,
                of: count.total,
            });
        }
    }
    state.levels = shares;
    let weight = |known: &Known| plain(state, plan, known, now);
    let weights: Vec<u64> = state.slots.iter().map(|known| known.as_ref().map_or(0, weight)).collect();
    let is_simple =
        plan.rules.zones.is_none() && state.levels.iter().filter(|level| level.share > 0).count() <= 1;
    if is_simple {
        state.loads.iter_mut().zip(weights).for_each(|(load, weight)| load.weight = narrow(weight));
    } else {
        share_out(state, plan, &weights);
    }
    state.weight = state.loads.iter().map(|load| u64::from(load.weight)).sum();
}

/// Weight × slow start of an endpoint that takes requests, whatever the zones; 0 for others.
fn plain(state: &ClusterState, plan: &ClusterPlan, known: &Known, now: Duration) -> u64 {
    let level = state.levels.get(usize::from(known.spec.priority)).copied().unwrap_or_default();
    if takes_requests(known, level) {
        // An endpoint in slow start keeps something whatever its weight: a factor of 1 in 1000 of 1 is 1.
        u64::from(known.spec.weight) * u64::from(known.slow_factor(plan, now))
    } else {
        0
    }
}

/// An available endpoint of any zone but not `failed`, whose zone has no other: a level by its share, in it by weight
/// and slow start. O(endpoints × levels), for retries of one lone endpoint.
pub(crate) fn pick_beyond_zone(
    state: &ClusterState,
    plan: &ClusterPlan,
    failed: Slot,
    (now, random): (Duration, u64),
) -> Option<Slot> {
    let of_level = |level: usize| {
        state.by_position.iter().copied().filter(move |slot| *slot != failed).filter_map(move |slot| {
            let known = state.slots.get(slot.index())?.as_ref()?;
            let fits =
                usize::from(known.spec.priority) == level && known.availability() == Availability::Available;
            fits.then(|| (slot, plain(state, plan, known, now))).filter(|(_, weight)| *weight > 0)
        })
    };
    let levels = || {
        let in_use = state.levels.iter().enumerate().filter(|(_, level)| level.share > 0);
        in_use
            .filter(|(level, _)| of_level(*level).next().is_some())
            .map(|(level, share)| (level, u64::from(share.share)))
    };
    let (level, rest) = draw(levels, random)?;
    draw(|| of_level(level), rest).map(|(slot, _)| slot)
}

/// One item by weight, and what is left of the randomness.
fn draw<T, I: Iterator<Item = (T, u64)>>(items: impl Fn() -> I, random: u64) -> Option<(T, u64)> {
    let sum = items().map(|(_, weight)| weight).sum();
    let (mut point, rest) = wide_product(random, sum);
    for (item, weight) in items() {
        match point.checked_sub(weight) {
            Some(behind) => point = behind,
            None => return Some((item, rest)),
        }
    }
    None
}

fn takes_requests(known: &Known, level: LevelShare) -> bool {
    known.is_planned
        && level.share > 0
        && match known.availability() {
            Availability::Available => true,
            Availability::Unhealthy | Availability::Ejected { .. } => level.panic,
            Availability::Draining(_) => false,
        }
}

fn count(state: &ClusterState, plan: &ClusterPlan) -> Vec<LevelCount> {
    let mut counts = vec![LevelCount::default(); plan.levels];
    for known in state.slots.iter().flatten().filter(|known| known.is_planned && known.drain.is_none()) {
        if let Some(level) = counts.get_mut(usize::from(known.spec.priority)) {
            level.total += 1;
            level.available += u32::from(known.availability() == Availability::Available);
        }
    }
    counts
}

/// Weight of one level, in the proxy's own zone and in all.
#[derive(Clone, Copy, Default)]
struct LevelWeight {
    local: u64,
    all: u64,
}

/// Scales the weights so that each level, and each level's part in the own zone, has its share of the sum.
fn share_out(state: &mut ClusterState, plan: &ClusterPlan, weights: &[u64]) {
    let local_zone = plan.rules.zones.map(|zones| zones.local);
    let is_local = |known: &Known| Some(known.spec.zone) == local_zone;
    let mut sums = vec![LevelWeight::default(); plan.levels];
    for (known, weight) in state.slots.iter().zip(weights) {
        let Some(known) = known else { continue };
        if let Some(sum) = sums.get_mut(usize::from(known.spec.priority)) {
            sum.all += weight;
            sum.local += if is_local(known) { *weight } else { 0 };
        }
    }
    let local_part =
        |sum: &LevelWeight| plan.rules.zones.map_or(0, |zones| local_share(zones, sum.local, sum.all));
    for ((load, known), weight) in state.loads.iter_mut().zip(&state.slots).zip(weights) {
        load.weight = 0;
        let Some(known) = known else { continue };
        let level = usize::from(known.spec.priority);
        let (Some(sum), Some(share)) = (sums.get(level), state.levels.get(level)) else { continue };
        let local = local_part(sum);
        // A level without remote endpoints keeps everything.
        let local = if sum.local == sum.all { WHOLE } else { local };
        let (part, group) =
            if is_local(known) { (local, sum.local) } else { (WHOLE - local, sum.all - sum.local) };
        if *weight > 0 && part > 0 && group > 0 {
            load.weight = scaled(*weight, group, share.share, part);
        }
    }
}

/// A weight as a part of all, in millionths.
pub(crate) fn share(weight: u32, all: u64) -> u32 {
    (u64::from(weight) * u64::from(WHOLE)).checked_div(all).map_or(0, narrow)
}

/// `weight / group` of the shares, on a scale of 2^31; at least 1.
fn scaled(weight: u64, group: u64, share: u32, part: u32) -> u32 {
    let whole = u128::from(WHOLE) * u128::from(WHOLE);
    let product = u128::from(weight) * u128::from(share) * u128::from(part) * (1 << 31);
    u32::try_from(product / (u128::from(group) * whole)).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::{EndpointId, Health};
    use crate::levels::ZoneRules;
    use crate::plan::{ClusterRules, EndpointSpec};

    const SECOND: Duration = Duration::from_secs(1);

    /// Shares in thousandths by position.
    fn shares(rules: ClusterRules, endpoints: Vec<EndpointSpec>, unhealthy: &[usize]) -> Vec<u64> {
        let plan = ClusterPlan::build(rules, endpoints, Vec::new()).unwrap();
        let (mut state, mut events) = (ClusterState::new(1), Vec::new());
        state.adopt(&plan, SECOND, &mut events);
        for position in unhealthy {
            let slot = state.slot_at(*position).unwrap();
            state.set_health(slot, Health::Unhealthy, SECOND);
        }
        state.refresh(&plan, SECOND, &mut events);
        let weight = |slot: &Slot| u64::from(state.loads[slot.index()].weight);
        let sum: u64 = state.by_position.iter().map(weight).sum();
        state.by_position.iter().map(|slot| (weight(slot) * 1000 + sum / 2) / sum).collect()
    }

    fn spec(n: u64, weight: u32, zone: u16, priority: u8) -> EndpointSpec {
        EndpointSpec { zone, priority, ..EndpointSpec::new(EndpointId(n), weight) }
    }

    #[test]
    fn the_second_priority_takes_what_the_first_cannot() {
        let endpoints = vec![spec(1, 1, 0, 0), spec(2, 1, 0, 0), spec(3, 3, 0, 1), spec(4, 1, 0, 1)];
        let with = |unhealthy: &[usize]| shares(ClusterRules::default(), endpoints.clone(), unhealthy);
        assert_eq!(with(&[]), [500, 500, 0, 0]);
        assert_eq!(with(&[0]), [0, 700, 225, 75], "140 % of a half");
        assert_eq!(with(&[0, 1]), [0, 0, 750, 250]);
        assert_eq!(with(&[0, 1, 2, 3]), [500, 500, 0, 0], "panic");
    }

    #[test]
    fn the_own_zone_comes_first_as_far_as_it_goes() {
        let zoned = |origin_share| ClusterRules {
            zones: Some(ZoneRules { local: 1, origin_share }),
            ..ClusterRules::default()
        };
        let endpoints = vec![spec(1, 1, 1, 0), spec(2, 1, 1, 0), spec(3, 1, 2, 0), spec(4, 1, 3, 0)];
        assert_eq!(shares(zoned(500_000), endpoints.clone(), &[]), [500, 500, 0, 0]);
        assert_eq!(shares(zoned(WHOLE), endpoints.clone(), &[]), [250, 250, 250, 250]);
        assert_eq!(
            shares(zoned(500_000), endpoints.clone(), &[0]),
            [0, 667, 167, 167],
            "a third is left for a half"
        );
        assert_eq!(shares(zoned(500_000), endpoints.clone(), &[0, 1]), [0, 0, 500, 500]);
        assert_eq!(shares(zoned(500_000), endpoints, &[2, 3]), [500, 500, 0, 0], "nobody else is there");
    }
}
