//! The choice among the clusters of a route, by chance or by a stable key.
//!
//! The same key picks the same cluster on every core and host: the hash has no seed. When weight moves from
//! one entry to the next, only the keys that the moved share covers change sides.

use http_wire::cookie;
use http_wire::fields::FieldId;
use http_wire::head::RequestHead;

use crate::snapshot::{ClusterIndex, ClusterSplit, SplitKey};

impl ClusterSplit {
    /// The cluster for one request. `random` decides unless there is a key (see [`ClusterSplit::key_hash`]);
    /// both are taken as uniform over all 64 bits.
    pub fn pick(&self, random: u64, key_hash: Option<u64>) -> ClusterIndex {
        let mut entries = self.entries.iter();
        let Some((first, weight)) = entries.next() else { return ClusterIndex(0) };
        if self.entries.len() == 1 {
            return *first;
        }
        let point = scale(key_hash.unwrap_or(random), self.weight_total);
        let mut end = u64::from(*weight);
        let mut chosen = first;
        for (cluster, weight) in entries {
            if point < end {
                break;
            }
            chosen = cluster;
            end += u64::from(*weight);
        }
        *chosen
    }

    /// Hash of what this split is keyed by; None when the split is by chance or the request has no such field
    /// or cookie.
    pub fn key_hash(&self, head: &RequestHead) -> Option<u64> {
        let value = match self.hash_by.as_ref()? {
            SplitKey::Field(name) => head.fields.get_name(name.as_bytes())?,
            SplitKey::Cookie(name) => cookie::find(head.fields.all(FieldId::Cookie), name.as_bytes())?,
        };
        Some(stable_hash(value))
    }
}

/// Maps 64 uniform bits to 0..total without division or bias worth noting (Lemire 2019, "Fast random integer
/// generation in an interval").
fn scale(bits: u64, total: u32) -> u64 {
    let wide = (u128::from(bits) * u128::from(total)) >> 64;
    u64::try_from(wide).unwrap_or(0)
}

/// FNV-1a over the bytes, then the finaliser of SplitMix64, because FNV leaves the high bits poor and those decide.
fn stable_hash(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for &byte in bytes {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(weights: &[u32]) -> ClusterSplit {
        let entries: Vec<_> = weights.iter().enumerate().map(|(at, w)| (ClusterIndex(at), *w)).collect();
        ClusterSplit {
            entries,
            weight_total: weights.iter().sum(),
            hash_by: Some(SplitKey::Field("x-user".into())),
        }
    }

    fn key(n: u32) -> Option<u64> {
        Some(stable_hash(format!("user-{n}").as_bytes()))
    }

    #[test]
    fn shares_follow_the_weights_by_chance_and_by_key() {
        const KEYS: u32 = 100_000;
        for weights in [vec![1], vec![1, 1], vec![99, 1], vec![1, 2, 3, 4], vec![1, 1_000_000]] {
            let split = split(&weights);
            let total: u32 = weights.iter().sum();
            for by_key in [false, true] {
                let mut counts = vec![0_u32; weights.len()];
                for n in 0..KEYS {
                    let random = key(n + KEYS).expect("a hash");
                    let ClusterIndex(at) = split.pick(random, if by_key { key(n) } else { None });
                    counts[at] += 1;
                }
                for (count, weight) in counts.iter().zip(&weights) {
                    let expected = f64::from(KEYS) * f64::from(*weight) / f64::from(total);
                    let spread = 5.0 * expected.sqrt() + 1.0;
                    assert!(
                        (f64::from(*count) - expected).abs() <= spread,
                        "{weights:?} by key {by_key}: {counts:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_ends_of_the_range_stay_inside() {
        let split = split(&[3, 1, u32::MAX - 4]);
        assert_eq!(split.pick(0, None), ClusterIndex(0));
        assert_eq!(split.pick(u64::MAX, None), ClusterIndex(2));
        assert_eq!(split.pick(0, Some(u64::MAX)), ClusterIndex(2), "the key decides when there is one");
    }

    #[test]
    fn moving_weight_moves_only_its_share_of_the_keys() {
        let (before, after) = (split(&[90, 10]), split(&[80, 20]));
        let mut moved = 0_u32;
        for n in 0..10_000 {
            let (old, new) = (before.pick(0, key(n)), after.pick(0, key(n)));
            assert!(old != ClusterIndex(1) || new == ClusterIndex(1), "a canary user went back");
            moved += u32::from(old != new);
        }
        assert!((800..=1200).contains(&moved), "moved {moved} of 10000");
    }

    #[test]
    fn the_key_comes_from_the_field_and_is_the_same_everywhere() {
        let mut head = RequestHead::default();
        assert_eq!(split(&[1, 1]).key_hash(&head), None);
        head.fields.push_name(b"X-User", b"user-1").expect("valid");
        assert_eq!(split(&[1, 1]).key_hash(&head), key(1));
        // A fixed vector: another value here would move every user at an upgrade.
        assert_eq!(stable_hash(b""), 0xf52a_15e9_a9b5_e89b);
    }
}
