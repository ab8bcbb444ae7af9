//! Capacity-weighted least connections: the endpoint with the smallest `(connections + 1) / capacity` of all.
//!
//! For TCP clusters, whose connections are long and few: a scan of all endpoints per connection. Ties
//! are broken by a rank that is fixed for an endpoint on a core: the same connections in the same order give the same
//! answer, and cores do not all begin with the same endpoint.

use crate::p2c::Load;

/// The slot with the least load, never `exclude`. `ranks` are by slot; a lower one wins a tie. The weight of a load is
/// its capacity.
#[must_use]
pub fn pick(loads: &[Load], ranks: &[u64], exclude: Option<u32>) -> Option<u32> {
    let mut best: Option<(Load, u64, u32)> = None;
    for ((load, rank), slot) in loads.iter().zip(ranks).zip(0u32..) {
        if load.weight == 0 || Some(slot) == exclude {
            continue;
        }
        let is_better = best.is_none_or(|(least, least_rank, _)| {
            let load_here = (u64::from(load.in_flight) + 1) * u64::from(least.weight);
            let load_there = (u64::from(least.in_flight) + 1) * u64::from(load.weight);
            load_here < load_there || load_here == load_there && *rank < least_rank
        });
        if is_better {
            best = Some((*load, *rank, slot));
        }
    }
    best.map(|(_, _, slot)| slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(pairs: &[(u32, u32)]) -> Vec<Load> {
        pairs.iter().map(|(in_flight, weight)| Load { in_flight: *in_flight, weight: *weight }).collect()
    }

    #[test]
    fn connections_follow_capacity() {
        let (mut loads, ranks) = (loads(&[(0, 100), (0, 200), (0, 50)]), [2, 1, 0]);
        for _ in 0..350 {
            let slot = pick(&loads, &ranks, None).unwrap();
            loads[slot as usize].in_flight += 1;
        }
        assert_eq!(loads.iter().map(|load| load.in_flight).collect::<Vec<_>>(), [100, 200, 50]);
    }

    #[test]
    fn ties_are_broken_by_rank_and_the_same_each_time() {
        assert_eq!(pick(&loads(&[(1, 10), (1, 10), (3, 20)]), &[7, 3, 5], None), Some(1));
        assert_eq!(pick(&loads(&[(1, 10), (1, 10), (3, 20)]), &[7, 3, 1], None), Some(2), "4/20 is 2/10");
        assert_eq!(pick(&loads(&[(0, 1), (0, 1)]), &[1, 2], Some(0)), Some(1));
    }

    #[test]
    fn nothing_goes_where_nothing_may() {
        assert_eq!(pick(&loads(&[(0, 0), (9, 1)]), &[0, 1], None), Some(1));
        assert_eq!(pick(&loads(&[(0, 0), (9, 1)]), &[0, 1], Some(1)), None);
        assert_eq!(pick(&[], &[], None), None);
        let full = loads(&[(u32::MAX, u32::MAX), (u32::MAX, 1)]);
        assert_eq!(pick(&full, &[1, 0], None), Some(0), "no overflow");
    }
}
