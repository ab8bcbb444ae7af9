//! Hashes that are the same on every proxy, core, processor and version: ring and Maglev tables, subsets and mirror
//! samples are built from them, so a change here moves every key of every user (C34).
//!
//! FNV-1a over the bytes, then the finaliser of MurmurHash3 (both public domain). Not keyed: who can choose keys can
//! aim at one endpoint, which bounded load answers.

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// Hash of a key: a header's value, a cookie, a client address, the text of an endpoint.
#[must_use]
pub fn stable_hash(bytes: &[u8]) -> u64 {
    let fnv = bytes.iter().fold(FNV_OFFSET, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME));
    mix(fnv, 0)
}

/// Another hash for each `salt`, from a value that need not be a hash itself.
#[inline]
#[must_use]
pub const fn mix(value: u64, salt: u64) -> u64 {
    let mut x = value ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_fixed_for_ever() {
        assert_eq!(stable_hash(b""), 0xefd0_1f60_ba99_2926);
        assert_eq!(stable_hash(b"10.0.0.1:8080"), 0xe8c7_2115_6ed5_2b14);
        assert_eq!(mix(1, 1), 0x25b7_75fa_eca8_f520);
    }

    #[test]
    fn near_keys_and_salts_are_spread() {
        let mut buckets = [0u32; 16];
        for n in 0..16_000u64 {
            buckets[usize::try_from(stable_hash(&n.to_le_bytes()) >> 60).unwrap()] += 1;
            buckets[usize::try_from(mix(7, n) & 15).unwrap()] += 1;
        }
        assert!(buckets.iter().all(|n| (1_800..2_200).contains(n)), "{buckets:?}");
    }
}
