//! Which part of the endpoints carries the traffic: priorities, the panic threshold and zones, as shares.
//!
//! A priority level carries what its available endpoints can, taken as 140 % of their part of the level (Envoy's
//! over-provisioning factor): up to two in seven may be gone before the next level gets anything. When all levels
//! together cannot carry the traffic and a level's available part is under the panic threshold, the level is in panic:
//! health is ignored there and the load is spread over all that are not draining (C32).
//!
//! Within a level, endpoints of the proxy's own zone come first, as far as their capacity goes: a zone with
//! the share `p` of all proxies and the share `c` of the capacity keeps all of its traffic when `c >= p`,
//! otherwise the part `c / p`.

use crate::time::narrow;

/// Percent that an available endpoint is trusted to carry of its share.
const OVERPROVISIONING_PERCENT: u64 = 140;

/// All of the traffic, in millionths.
pub const WHOLE: u32 = 1_000_000;

/// Endpoints of one priority level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelCount {
    /// Not draining.
    pub total: u32,
    /// Neither draining nor unhealthy nor ejected.
    pub available: u32,
}

/// What one priority level gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelShare {
    /// In millionths of the traffic.
    pub share: u32,
    /// Health is ignored.
    pub panic: bool,
}

/// Shares of the levels, the first priority first; all zero only when every endpoint drains. `panic_percent` of 0 turns
/// panic off: then a level without available endpoints gets nothing.
#[must_use]
pub fn level_shares(levels: &[LevelCount], panic_percent: u32) -> Vec<LevelShare> {
    let capacity = |level: &LevelCount| {
        let percent = OVERPROVISIONING_PERCENT * u64::from(level.available);
        percent.checked_div(u64::from(level.total)).unwrap_or(0).min(100)
    };
    let sum: u64 = levels.iter().map(capacity).sum();
    let in_panic = |level: &LevelCount| {
        let below = u64::from(level.available) * 100 < u64::from(panic_percent) * u64::from(level.total);
        sum < 100 && level.total > 0 && below
    };
    if sum == 0 {
        // Nothing is available at all: the first level that has endpoints carries everything, if it may.
        let first = levels.iter().position(in_panic);
        let share = |at| if Some(at) == first { WHOLE } else { 0 };
        return (0..levels.len()).map(|at| LevelShare { share: share(at), panic: share(at) > 0 }).collect();
    }
    let whole = sum.min(100);
    let mut left = whole;
    levels
        .iter()
        .map(|level| {
            let carried = capacity(level).min(left);
            left -= carried;
            LevelShare { share: narrow(carried * u64::from(WHOLE) / whole), panic: in_panic(level) }
        })
        .collect()
}

/// Zone preference of one proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneRules {
    /// The proxy's own zone.
    pub local: u16,
    /// Share of all proxies' traffic that comes from this zone, in millionths.
    pub origin_share: u32,
}

/// The part of a level's traffic that stays in the zone, in millionths.
#[must_use]
pub fn local_share(rules: ZoneRules, local_weight: u64, all_weight: u64) -> u32 {
    let capacity = u128::from(local_weight) * u128::from(WHOLE);
    let needed = u128::from(all_weight) * u128::from(rules.origin_share);
    if local_weight == 0 {
        0
    } else if capacity >= needed {
        WHOLE
    } else {
        u32::try_from(capacity * u128::from(WHOLE) / needed).unwrap_or(WHOLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(levels: &[(u32, u32)], panic: u32) -> Vec<(u32, bool)> {
        let counts: Vec<_> = levels
            .iter()
            .map(|(total, available)| LevelCount { total: *total, available: *available })
            .collect();
        level_shares(&counts, panic).into_iter().map(|level| (level.share, level.panic)).collect()
    }

    #[test]
    fn panic_begins_below_half() {
        for (total, available, panic) in [
            (1, 1, false),
            (1, 0, true),
            (2, 1, false),
            (3, 2, false),
            (3, 1, true),
            (5, 3, false),
            (5, 2, true),
        ] {
            assert_eq!(shares(&[(total, available)], 50), [(WHOLE, panic)], "{available} of {total}");
        }
        assert_eq!(shares(&[(0, 0)], 50), [(0, false)], "all draining");
        assert_eq!(shares(&[], 50), []);
        assert_eq!(shares(&[(3, 0)], 0), [(0, false)], "panic is off");
        assert_eq!(shares(&[(3, 1)], 0), [(WHOLE, false)]);
    }

    #[test]
    fn the_next_level_fills_in() {
        assert_eq!(shares(&[(10, 10), (10, 10)], 50), [(WHOLE, false), (0, false)]);
        assert_eq!(shares(&[(10, 8), (10, 10)], 50), [(WHOLE, false), (0, false)], "112 %");
        assert_eq!(shares(&[(10, 5), (10, 10)], 50), [(700_000, false), (300_000, false)]);
        assert_eq!(
            shares(&[(10, 0), (5, 5)], 50),
            [(0, false), (WHOLE, false)],
            "no panic while another carries"
        );
        assert_eq!(shares(&[(10, 1), (10, 1)], 50), [(500_000, true), (500_000, true)]);
        assert_eq!(shares(&[(10, 0), (10, 0)], 50), [(WHOLE, true), (0, false)]);
        assert_eq!(shares(&[(0, 0), (10, 0)], 50), [(0, false), (WHOLE, true)]);
    }

    #[test]
    fn shares_are_whole() {
        for a in 0..=7 {
            for b in 0..=7 {
                let sum: u32 = shares(&[(7, a), (7, b), (7, 1)], 50).iter().map(|(share, _)| share).sum();
                assert!(WHOLE - sum < 3, "{a} {b}: {sum}");
            }
        }
    }

    #[test]
    fn a_zone_keeps_what_it_can_carry() {
        let rules = |origin_share| ZoneRules { local: 1, origin_share };
        assert_eq!(local_share(rules(333_333), 100, 300), WHOLE);
        assert_eq!(local_share(rules(500_000), 100, 400), WHOLE / 2);
        assert_eq!(local_share(rules(500_000), 0, 400), 0);
        assert_eq!(local_share(rules(0), 1, 400), WHOLE);
        assert_eq!(local_share(rules(WHOLE), u64::MAX, u64::MAX), WHOLE);
    }
}
