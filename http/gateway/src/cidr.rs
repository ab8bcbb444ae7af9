//! Sets of address prefixes with a look-up of logarithmic cost.
//!
//! Invariants: ranges are sorted, do not overlap and do not touch. An IPv4-mapped IPv6 address
//! (RFC 4291 §2.5.5.2) is the IPv4 address it carries, in prefixes and in look-ups alike, so that a dual-stack
//! socket cannot be used to walk round a rule. `::/0` therefore means every IPv6 address and no IPv4 one.
//! Used by the address rules, the client address rules and the PROXY protocol's list of trusted peers.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

const MAPPED_PREFIX_BITS: u8 = 96;

/// An address without the IPv4-mapped form.
pub const fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// One prefix. Host bits are cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cidr {
    network: IpAddr,
    prefix_bits: u8,
}

/// Why a text or a pair is no prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CidrError {
    /// The part before `/` is no IP address.
    Address(String),
    /// The prefix length is no number, or longer than the address has bits.
    PrefixBits(String),
}

impl fmt::Display for CidrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(text) => {
                write!(f, "`{text}` is no IP address; write for example 10.0.0.0/8 or 2001:db8::/32")
            }
            Self::PrefixBits(text) => {
                write!(f, "`{text}` is no prefix length; IPv4 has 0 to 32, IPv6 0 to 128")
            }
        }
    }
}

impl std::error::Error for CidrError {}

impl Cidr {
    /// The prefix of `prefix_bits` bits that holds `address`.
    ///
    /// # Errors
    /// `CidrError::PrefixBits` when the prefix is longer than the address.
    pub fn new(address: IpAddr, prefix_bits: u8) -> Result<Self, CidrError> {
        let too_long = || CidrError::PrefixBits(prefix_bits.to_string());
        match address {
            IpAddr::V4(v4) if prefix_bits <= 32 => Ok(Self::masked_v4(v4, prefix_bits)),
            IpAddr::V6(v6) if prefix_bits <= 128 => match v6.to_ipv4_mapped() {
                Some(v4) if prefix_bits >= MAPPED_PREFIX_BITS => {
                    Ok(Self::masked_v4(v4, prefix_bits - MAPPED_PREFIX_BITS))
                }
                _ => Ok(Self {
                    network: IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask_v6(prefix_bits))),
                    prefix_bits,
                }),
            },
            IpAddr::V4(_) | IpAddr::V6(_) => Err(too_long()),
        }
    }

    fn masked_v4(address: Ipv4Addr, prefix_bits: u8) -> Self {
        Self {
            network: IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask_v4(prefix_bits))),
            prefix_bits,
        }
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    /// `10.0.0.0/8`, `2001:db8::/32`, or a single address.
    fn from_str(text: &str) -> Result<Self, CidrError> {
        let (address_text, bits_text) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let Ok(address) = IpAddr::from_str(address_text) else {
            return Err(CidrError::Address(address_text.to_owned()));
        };
        let whole = if address.is_ipv4() { 32 } else { 128 };
        match bits_text {
            None => Self::new(address, whole),
            // `u8::from_str` alone would also take `+8`.
            Some(text) => match text.parse() {
                Ok(bits) if text.bytes().all(|b| b.is_ascii_digit()) => Self::new(address, bits),
                Ok(_) | Err(_) => Err(CidrError::PrefixBits(text.to_owned())),
            },
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix_bits)
    }
}

const fn mask_v4(prefix_bits: u8) -> u32 {
    match u32::MAX.checked_shr(prefix_bits as u32) {
        Some(host_bits) => !host_bits,
        None => u32::MAX,
    }
}

const fn mask_v6(prefix_bits: u8) -> u128 {
    match u128::MAX.checked_shr(prefix_bits as u32) {
        Some(host_bits) => !host_bits,
        None => u128::MAX,
    }
}

/// Sorted, disjoint ranges. Starts and ends lie apart so that the search touches starts only.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ranges<T> {
    starts: Box<[T]>,
    ends: Box<[T]>,
}

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self { starts: Box::default(), ends: Box::default() }
    }
}

impl<T: Copy + Ord> Ranges<T> {
    fn from_unsorted(mut ranges: Vec<(T, T)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(T, T)> = Vec::with_capacity(ranges.len());
        for (start, end) in ranges {
            match merged.last_mut() {
                // Prefixes nest or are disjoint, so an overlap is always a whole one.
                Some((_, last_end)) if start <= *last_end => *last_end = end.max(*last_end),
                _ => merged.push((start, end)),
            }
        }
        Self { starts: merged.iter().map(|r| r.0).collect(), ends: merged.iter().map(|r| r.1).collect() }
    }

    fn contains(&self, point: T) -> bool {
        let after = self.starts.partition_point(|start| *start <= point);
        after.checked_sub(1).and_then(|at| self.ends.get(at)).is_some_and(|end| point <= *end)
    }
}

/// A set of IPv4 and IPv6 prefixes. The default is the empty set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CidrSet {
    v4: Ranges<u32>,
    v6: Ranges<u128>,
}

impl CidrSet {
    /// Whether no address at all is in the set.
    pub fn is_empty(&self) -> bool {
        self.v4.starts.is_empty() && self.v6.starts.is_empty()
    }

    /// Whether `address` lies in any of the prefixes; O(log n).
    pub fn contains(&self, address: IpAddr) -> bool {
        match canonical(address) {
            IpAddr::V4(v4) => self.v4.contains(v4.to_bits()),
            IpAddr::V6(v6) => self.v6.contains(v6.to_bits()),
        }
    }
}

impl FromIterator<Cidr> for CidrSet {
    fn from_iter<I: IntoIterator<Item = Cidr>>(prefixes: I) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for prefix in prefixes {
            match prefix.network {
                IpAddr::V4(network) => {
                    v4.push((network.to_bits(), network.to_bits() | !mask_v4(prefix.prefix_bits)))
                }
                IpAddr::V6(network) => {
                    v6.push((network.to_bits(), network.to_bits() | !mask_v6(prefix.prefix_bits)))
                }
            }
        }
        Self { v4: Ranges::from_unsorted(v4), v6: Ranges::from_unsorted(v6) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(texts: &[&str]) -> CidrSet {
        texts.iter().map(|t| t.parse::<Cidr>().unwrap()).collect()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn prefixes_hold_their_first_and_last_address_and_not_the_neighbours() {
        for bits in 1..=32u8 {
            let prefix = Cidr::new(ip("203.0.113.77"), bits).unwrap();
            let set: CidrSet = [prefix].into_iter().collect();
            let first = u32::from_be_bytes([203, 0, 113, 77]) & mask_v4(bits);
            let last = first | !mask_v4(bits);
            let at = |n: u32| IpAddr::V4(Ipv4Addr::from_bits(n));
            assert!(set.contains(at(first)) && set.contains(at(last)), "{prefix}");
            assert!(first == 0 || !set.contains(at(first - 1)), "{prefix}");
            assert!(last == u32::MAX || !set.contains(at(last + 1)), "{prefix}");
        }
        for bits in 1..=128u8 {
            let prefix = Cidr::new(ip("2001:db8:1:2:3:4:5:6"), bits).unwrap();
            let set: CidrSet = [prefix].into_iter().collect();
            let first = ip("2001:db8:1:2:3:4:5:6");
            let IpAddr::V6(first) = first else { panic!("an IPv6 literal") };
            let first = first.to_bits() & mask_v6(bits);
            let last = first | !mask_v6(bits);
            let at = |n: u128| IpAddr::V6(Ipv6Addr::from_bits(n));
            assert!(set.contains(at(first)) && set.contains(at(last)), "{prefix}");
            assert!(first == 0 || !set.contains(at(first - 1)), "{prefix}");
            assert!(last == u128::MAX || !set.contains(at(last + 1)), "{prefix}");
        }
    }

    #[test]
    fn membership_equals_that_of_a_plain_scan() {
        let texts = [
            "10.0.0.0/8",
            "10.1.0.0/16",
            "10.0.0.0/31",
            "192.168.0.0/16",
            "192.169.0.0/16",
            "0.0.0.0/32",
            "255.255.255.255",
        ];
        let prefixes: Vec<Cidr> = texts.iter().map(|t| t.parse().unwrap()).collect();
        let set = set(&texts);
        let mut x = 1u64;
        for round in 0..20_000u32 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = u32::try_from(x >> 32).unwrap();
            // Half of the probes near the prefixes, or nearly all would miss.
            let bits = if round % 2 == 0 { random } else { 0x0a00_0000 | (random & 0x01ff_ffff) };
            let scanned = prefixes.iter().any(|p| match p.network {
                IpAddr::V4(n) => bits & mask_v4(p.prefix_bits) == n.to_bits(),
                IpAddr::V6(_) => false,
            });
            assert_eq!(set.contains(IpAddr::V4(Ipv4Addr::from_bits(bits))), scanned, "{bits:08x}");
        }
    }

    #[test]
    fn mapped_addresses_are_the_ipv4_address_they_carry() {
        let v4 = set(&["10.0.0.0/8"]);
        assert!(v4.contains(ip("::ffff:10.1.2.3")) && !v4.contains(ip("::ffff:11.1.2.3")));
        let mapped = set(&["::ffff:10.0.0.0/104"]);
        assert_eq!(mapped, v4);
        let all_v6 = set(&["::/0"]);
        assert!(all_v6.contains(ip("2001:db8::1")));
        assert!(!all_v6.contains(ip("10.0.0.1")) && !all_v6.contains(ip("::ffff:10.0.0.1")));
        assert!(set(&["0.0.0.0/0"]).contains(ip("::ffff:1.2.3.4")));
    }

    #[test]
    fn texts_that_are_no_prefix_say_which_part_is_wrong() {
        let address = ["", "10.0.0/8", "10.0.0.0.0/8", "localhost", " 10.0.0.0/8", "[::1]/128", "010.0.0.1"];
        for text in address {
            assert!(matches!(text.parse::<Cidr>(), Err(CidrError::Address(_))), "{text}");
        }
        for text in [
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0.0/8/8",
            "::/129",
            "10.0.0.0/-1",
            "10.0.0.0/300",
            "::/1 ",
        ] {
            assert!(matches!(text.parse::<Cidr>(), Err(CidrError::PrefixBits(_))), "{text}");
        }
        assert_eq!("10.1.2.3/8".parse::<Cidr>().unwrap().to_string(), "10.0.0.0/8");
        assert_eq!("::1".parse::<Cidr>().unwrap().to_string(), "::1/128");
    }

    #[test]
    fn the_empty_set_holds_nothing() {
        let empty = CidrSet::default();
        assert!(empty.is_empty() && !empty.contains(ip("0.0.0.0")) && !empty.contains(ip("::")));
    }
}
