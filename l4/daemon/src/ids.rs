//! Which index each VIP has in the kernel's maps.
//!
//! Invariants: a VIP keeps its index as long as one of its addresses, ports and protocols is the same, so that its
//! counters and table go on over restarts and changes of the file; index 0 means "no VIP" and is not given away.

use std::collections::{BTreeMap, BTreeSet};

use l4_load::VipKey;
use l4_steer::config::{Ports, Vip};

/// The keys that a VIP has in the maps, without those for ICMP echo.
pub(crate) fn keys(vip: &Vip) -> Vec<VipKey> {
    let ports = match &vip.ports {
        Ports::Every => &[0][..],
        Ports::These(ports) => ports,
    };
    let mut keys = Vec::new();
    for address in &vip.addresses {
        for protocol in &vip.protocols {
            let key = |port: &u16| VipKey { address: *address, port: *port, protocol: protocol.number() };
            keys.extend(ports.iter().map(key));
        }
    }
    keys
}

/// The index of each VIP by name, given the indices that keys have now.
pub(crate) fn assign(vips: &[Vip], present: &BTreeMap<VipKey, u32>) -> BTreeMap<String, u32> {
    let mut taken = BTreeSet::from([0]);
    let mut ids = BTreeMap::new();
    for vip in vips {
        let known =
            keys(vip).iter().filter_map(|key| present.get(key)).copied().find(|id| !taken.contains(id));
        if let Some(id) = known {
            taken.insert(id);
            ids.insert(vip.name.clone(), id);
        }
    }
    // An index that a VIP just lost is given away last, so that counters of two VIPs are not mixed for long.
    let lost: BTreeSet<u32> = present.values().copied().collect();
    for vip in vips {
        if ids.contains_key(&vip.name) {
            continue;
        }
        let mut free = (1..l4_abi::VIPS_MAX).filter(|id| !taken.contains(id));
        let fresh = free.clone().find(|id| !lost.contains(id)).or_else(|| free.next());
        if let Some(id) = fresh {
            taken.insert(id);
            ids.insert(vip.name.clone(), id);
        }
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;
    use l4_steer::config::{Echo, Encapsulation, Fragments, Protocol};

    fn vip(name: &str, address: &str, ports: &[u16]) -> Vip {
        Vip {
            name: name.to_owned(),
            addresses: vec![address.parse().expect("an address")],
            ports: if ports.is_empty() { Ports::Every } else { Ports::These(ports.to_vec()) },
            protocols: vec![Protocol::Tcp],
            encapsulation: Encapsulation::Ipip,
            echo: Echo::Pass,
            fragments: Fragments::Drop,
            quic: Vec::new(),
        }
    }

    #[test]
    fn a_vip_keeps_its_index_and_a_new_one_gets_a_fresh_one() {
        let old = [vip("a", "192.0.2.1", &[80]), vip("b", "192.0.2.2", &[])];
        let first = assign(&old, &BTreeMap::new());
        assert_eq!(first, BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 2)]));
        let present: BTreeMap<VipKey, u32> =
            old.iter().flat_map(|vip| keys(vip).into_iter().map(|key| (key, first[&vip.name]))).collect();
        // `a` is gone, `b` has another name and one more port, `0` sorts before it.
        let new = [vip("0", "192.0.2.3", &[443]), vip("c", "192.0.2.2", &[])];
        assert_eq!(assign(&new, &present), BTreeMap::from([("0".to_owned(), 3), ("c".to_owned(), 2)]));
    }

    #[test]
    fn two_parts_of_one_vip_do_not_share_its_index() {
        let old = vip("a", "192.0.2.1", &[80, 443]);
        let present: BTreeMap<VipKey, u32> = keys(&old).into_iter().map(|key| (key, 7)).collect();
        let new = [vip("a", "192.0.2.1", &[80]), vip("b", "192.0.2.1", &[443])];
        let ids = assign(&new, &present);
        assert_eq!(ids["a"], 7);
        assert_ne!(ids["b"], 7);
    }
}
