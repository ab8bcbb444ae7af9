//! The keyed flow hash, equal on every box that has the same secret; `l4/xdp/hash.h` is the same in C.
//!
//! Two lanes of pair-multiply-shift (Thorup, "High Speed Hashing for Integers and Strings", section 3.2 and 4): the
//! upper 32 bits of each lane are strongly universal, so that two flows share all 64 bits with probability 2⁻⁶⁴
//! for a client that does not know the secret, and 2⁻³² in the half that picks the row. A bijective finish mixes the
//! lanes, so that the row a client sees is not a linear function of what it sends. Cost: 4 multiplications for IPv4,
//! 10 for IPv6.

use std::net::{IpAddr, SocketAddr};

use sha2::{Digest, Sha256};

use crate::{HASH_KEYS, TABLE_ROWS};

/// Both lanes' keys, made from the fleet's secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashKeys {
    pub a: [u64; HASH_KEYS],
    pub b: [u64; HASH_KEYS],
}

/// Index of the additive key of IPv4 flows.
const BIAS4: usize = 10;
/// Index of the additive key of IPv6 flows.
const BIAS6: usize = 11;

impl HashKeys {
    /// Expands the secret that all boxes of a fleet share.
    #[must_use]
    pub fn new(secret: &[u8; 16]) -> Self {
        Self { a: expand(secret, b'a'), b: expand(secret, b'b') }
    }

    /// The hash of a flow from `source` to the VIP `destination`. Both are of one family.
    #[must_use]
    pub fn flow(&self, source: SocketAddr, destination: SocketAddr, protocol: u8) -> u64 {
        let ports = ports_word(source.port(), destination.port());
        match (source.ip(), destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let words = [word(source.octets()), word(destination.octets()), ports, u32::from(protocol)];
                self.mix(&words, BIAS4)
            }
            (source, destination) => {
                let mut words = [0; 10];
                let bytes = [crate::mapped(source), crate::mapped(destination)].concat();
                for (word_at, chunk) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *word_at = word(*chunk);
                }
                words[8] = ports;
                words[9] = u32::from(protocol);
                self.mix(&words, BIAS6)
            }
        }
    }

    fn mix(&self, words: &[u32], bias: usize) -> u64 {
        let lane = |keys: &[u64; HASH_KEYS]| {
            words.as_chunks::<2>().0.iter().zip(keys.as_chunks::<2>().0).fold(
                keys[bias],
                |sum, ([first, second], [key_first, key_second])| {
                    let left = key_first.wrapping_add(u64::from(*second));
                    let right = key_second.wrapping_add(u64::from(*first));
                    sum.wrapping_add(left.wrapping_mul(right))
                },
            )
        };
        let mut hash = lane(&self.a) & 0xffff_ffff_0000_0000 | lane(&self.b) >> 32;
        hash ^= hash >> 29;
        hash = hash.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash ^ hash >> 32
    }
}

/// Key of the MAC in SYN cookies, from the fleet's secret. Who learned the flow hash's keys would not know it.
#[must_use]
pub fn cookie_key(secret: &[u8; 16]) -> [u64; 2] {
    expand(secret, b'c')
}

/// Keys for one purpose, each by SHA-256 of the secret, the purpose and the key's number.
fn expand<const N: usize>(secret: &[u8; 16], purpose: u8) -> [u64; N] {
    std::array::from_fn(|index| {
        let index = u8::try_from(index).expect("at most 12 keys");
        let digest: [u8; 32] = Sha256::digest([secret.as_slice(), &[purpose, index]].concat()).into();
        u64::from_le_bytes(digest.first_chunk().copied().expect("32 bytes hold 8"))
    })
}

/// The row of a flow.
#[must_use]
pub fn row(hash: u64) -> usize {
    let scaled = ((hash & 0xffff_ffff) * TABLE_ROWS as u64) >> 32;
    usize::try_from(scaled).expect("below 65,537")
}

/// Four bytes of a packet as the program loads them.
const fn word(bytes: [u8; 4]) -> u32 {
    u32::from_ne_bytes(bytes)
}

/// Both ports as they stand at the start of a TCP or UDP header.
const fn ports_word(source: u16, destination: u16) -> u32 {
    let ([a, b], [c, d]) = (source.to_be_bytes(), destination.to_be_bytes());
    word([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> HashKeys {
        HashKeys::new(&[7; 16])
    }

    fn flow(keys: &HashKeys, client: u32) -> u64 {
        let source = SocketAddr::from((std::net::Ipv4Addr::from(0x0a00_0000 + client), 40_000));
        keys.flow(source, "192.0.2.1:443".parse().expect("an address"), crate::TCP)
    }

    #[test]
    fn rows_are_evenly_used() {
        let keys = keys();
        let mut counts = vec![0_u32; 64];
        for client in 0..640_000 {
            counts[row(flow(&keys, client)) * 64 / TABLE_ROWS] += 1;
        }
        // 10,000 expected in each; the standard deviation is 100.
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }

    #[test]
    fn hashes_differ_by_key_and_by_each_part() {
        let keys = keys();
        let base = flow(&keys, 1);
        assert_ne!(base, flow(&HashKeys::new(&[8; 16]), 1));
        let parts = [
            ("10.0.0.1:40001", "192.0.2.1:443", crate::TCP),
            ("10.0.0.1:40000", "192.0.2.2:443", crate::TCP),
            ("10.0.0.1:40000", "192.0.2.1:444", crate::TCP),
            ("10.0.0.1:40000", "192.0.2.1:443", crate::UDP),
            ("[::ffff:10.0.0.1]:40000", "[::ffff:192.0.2.1]:443", crate::TCP),
        ];
        for (source, destination, protocol) in parts {
            let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
            assert_ne!(base, keys.flow(address(source), address(destination), protocol), "{source}");
        }
    }

    /// The program and the other boxes of a fleet have these values too; a change breaks flows across versions.
    #[test]
    fn hash_is_frozen() {
        let v4 = flow(&keys(), 1);
        let v6 = keys().flow(
            "[2001:db8::1]:40000".parse().expect("an address"),
            "[2001:db8::2]:443".parse().expect("an address"),
            crate::UDP,
        );
        assert_eq!((v4, row(v4)), (9_219_750_613_819_535_673, 48_743));
        assert_eq!((v6, row(v6)), (10_124_066_988_388_841_096, 19_757));
    }
}
