//! What the kernel's maps must hold, as plain values: from the config, the rows in force and the clock.
//!
//! Invariants: pure; two calls with equal arguments give equal values, so that the feed can write differences only.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use l4_abi::{Owner, QuicConfig, Rule, ServerIdKey, Vip};
use l4_load::VipKey;
use l4_steer::config::Vip as VipConfig;
use l4_steer::config::{Config, DropRule, Echo, Encapsulation, Fragments, Host, Protocol};
use l4_steer::owner::{OwnerId, OwnerState};
use l4_steer::rollout::Rollout;

use crate::ids;

/// IP protocol numbers of the two ICMPs.
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// The wall clock and the clock of the kernel's rules, read together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub(crate) unix_s: i64,
    pub(crate) monotonic_ns: u64,
}

/// The content of all maps but the tables, whose rows are the rollout's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Desired {
    pub(crate) vips: BTreeMap<VipKey, Vip>,
    pub(crate) owners: BTreeMap<u16, Owner>,
    pub(crate) trusted: BTreeSet<(IpAddr, u8)>,
    pub(crate) rules: BTreeMap<(u32, IpAddr, u8), Limit>,
    pub(crate) server_ids: BTreeMap<ServerIdKey, u16>,
    /// By index of the VIP and codepoint; what is not here is not in use.
    pub(crate) quic: BTreeMap<(u32, u8), QuicConfig>,
    /// Some VIP answers for every port.
    pub(crate) any_port: bool,
}

impl Desired {
    /// Whether the maps have to be written again. Ends of rules are read off two clocks, so that only their being
    /// there counts.
    pub(crate) fn differs(&self, written: &Self) -> bool {
        self.owners != written.owners
            || self.vips != written.vips
            || self.trusted != written.trusted
            || !self.rules.keys().eq(written.rules.keys())
            || self.server_ids != written.server_ids
            || self.quic != written.quic
    }

    /// The drop rule that holds for a source at a VIP, as the kernel finds it: the one of the longest prefix, unless
    /// that has ended.
    pub(crate) fn rule_for(&self, vip: u32, source: IpAddr, now_ns: u64) -> Option<((IpAddr, u8), Limit)> {
        let of_vip = self.rules.iter().filter(|((id, ..), _)| *id == vip);
        let covering = of_vip.filter(|((_, prefix, bits), _)| covers(*prefix, *bits, source));
        let ((_, prefix, bits), limit) = covering.max_by_key(|((.., bits), _)| *bits)?;
        (limit.expires_ns == 0 || limit.expires_ns > now_ns).then_some(((*prefix, *bits), *limit))
    }
}

fn covers(prefix: IpAddr, bits: u8, address: IpAddr) -> bool {
    let differing = match (prefix, address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => u128::from(a.to_bits() ^ b.to_bits()) << 96,
        (IpAddr::V6(a), IpAddr::V6(b)) => a.to_bits() ^ b.to_bits(),
        _ => return false,
    };
    differing.leading_zeros() >= u32::from(bits)
}

/// What a drop rule allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) packets_per_s: u32,
    /// 0 = never.
    pub(crate) expires_ns: u64,
}

impl Limit {
    /// Whether a rule in the map says the same; its end may differ by what two readings of two clocks do.
    pub(crate) fn is_in(self, rule: &Rule) -> bool {
        const APART_NS: u64 = 2_000_000_000;
        let is_same_end = (self.expires_ns == 0) == (rule.expires_ns == 0)
            && self.expires_ns.abs_diff(rule.expires_ns) < APART_NS;
        self.packets_per_s == rule.packets_per_s && is_same_end
    }

    pub(crate) fn rule(self) -> Rule {
        Rule { expires_ns: self.expires_ns, packets_per_s: self.packets_per_s, ..Rule::default() }
    }
}

/// Everything that the maps must hold now. `addresses` are those of every proxy that may still have flows.
pub(crate) fn desired(
    config: &Config,
    rollout: &Rollout,
    addresses: &BTreeMap<OwnerId, IpAddr>,
    ids: &BTreeMap<String, u32>,
    now: Now,
) -> Desired {
    let mut desired = Desired::default();
    for owner in rollout.reachable() {
        if let Some(address) = addresses.get(&owner.id) {
            desired.owners.insert(owner.id.get(), owner_of(&config.host, *address));
            desired.trusted.insert((*address, if address.is_ipv4() { 32 } else { 128 }));
        }
    }
    desired.trusted.extend(config.trusted.iter().map(|prefix| (prefix.address, prefix.bits)));
    for vip in &config.vips {
        let Some(id) = ids.get(&vip.name).copied() else { continue };
        for rule in
            config.drop_rules.iter().filter(|rule| rule.vip.as_ref().is_none_or(|name| *name == vip.name))
        {
            let key = (id, rule.source.address, rule.source.bits);
            // A rule for this VIP wins over one for every VIP.
            match limit(rule, now) {
                Some(limit) if rule.vip.is_some() => drop(desired.rules.insert(key, limit)),
                Some(limit) => drop(desired.rules.entry(key).or_insert(limit)),
                None => {}
            }
        }
        let has_rules = desired.rules.keys().any(|(vip, ..)| *vip == id);
        insert_vip(&mut desired, vip, id, has_rules);
        insert_quic(&mut desired, rollout, vip, id);
    }
    desired
}

fn owner_of(host: &Host, address: IpAddr) -> Owner {
    if host.owns(address) { Owner::local(address) } else { Owner::remote(address) }
}

fn insert_vip(desired: &mut Desired, vip: &VipConfig, id: u32, has_rules: bool) {
    let on = |flag: u32, is_on: bool| if is_on { flag } else { 0 };
    let common = on(l4_abi::VIP_GUE, vip.encapsulation == Encapsulation::Gue)
        | on(l4_abi::VIP_HASH_ADDRESSES, vip.fragments == Fragments::Forward)
        | on(l4_abi::VIP_RULES, has_rules);
    for key in ids::keys(vip) {
        let is_quic = key.protocol == Protocol::Udp.number() && !vip.quic.is_empty();
        desired.vips.insert(key, Vip { id, flags: common | on(l4_abi::VIP_QUIC, is_quic) });
        desired.any_port |= key.port == 0;
    }
    if vip.echo == Echo::Answer {
        for address in &vip.addresses {
            let protocol = if address.is_ipv4() { ICMP } else { ICMPV6 };
            let key = VipKey { address: *address, port: 0, protocol };
            desired.vips.insert(key, Vip { id, flags: l4_abi::VIP_ECHO | on(l4_abi::VIP_RULES, has_rules) });
        }
    }
}

fn insert_quic(desired: &mut Desired, rollout: &Rollout, vip: &VipConfig, id: u32) {
    for layout in &vip.quic {
        let quic = match layout.key {
            Some(key) => QuicConfig::encrypted(&key.0, layout.server_id_bytes),
            None => QuicConfig::plain(layout.server_id_bytes, layout.nonce_bytes),
        };
        desired.quic.insert((id, layout.codepoint), quic);
        for owner in rollout.reachable() {
            let Some(server_id) = layout.server_id(owner.id) else { continue };
            let mut key = ServerIdKey {
                vip: id,
                config: layout.codepoint,
                bytes: layout.server_id_bytes,
                zero: [0; 2],
                id: [0; 16],
            };
            for (to, from) in key.id.iter_mut().zip(server_id.as_slice()) {
                *to = *from;
            }
            desired.server_ids.insert(key, owner.id.get());
        }
    }
}

/// `None` when the rule has ended.
fn limit(rule: &DropRule, now: Now) -> Option<Limit> {
    let expires_ns = match rule.until_unix_s {
        None => 0,
        Some(until) => {
            let left_s = u64::try_from(until - now.unix_s).ok().filter(|left| *left > 0)?;
            now.monotonic_ns.saturating_add(left_s.saturating_mul(1_000_000_000))
        }
    };
    Some(Limit { packets_per_s: rule.packets_per_second, expires_ns })
}

/// Seconds until the next rule ends.
pub(crate) fn next_end(rules: &[DropRule], now: Now) -> Option<u64> {
    rules
        .iter()
        .filter_map(|rule| u64::try_from(rule.until_unix_s? - now.unix_s).ok())
        .filter(|left| *left > 0)
        .min()
}

/// How many of a proxy's rows are current and previous.
pub(crate) fn shares(rollout: &Rollout, id: OwnerId) -> (usize, usize) {
    rollout.rows().iter().fold((0, 0), |(current, previous), row| {
        let is_other = row.previous != row.current;
        (
            current + usize::from(row.current == id.get()),
            previous + usize::from(is_other && row.previous == id.get()),
        )
    })
}

/// The state of a proxy that is asked for flows, with `leaving` for one that is not listed any more.
pub(crate) fn state_word(rollout: &Rollout, id: OwnerId) -> &'static str {
    match rollout.list().get(id).map(|owner| owner.state) {
        Some(state @ (OwnerState::Active | OwnerState::Draining | OwnerState::Down)) => state.word(),
        None => "leaving",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::time::Duration;

    use control_config::load_l4_files;
    use l4_steer::rollout::Conflict;

    const NOW: Now = Now { unix_s: 1_800_000_000, monotonic_ns: 5_000_000_000 };

    pub(crate) const FILE: &str = "\
hash_key: k
proxies:
  a: { id: 1, address: 10.0.0.1 }
  b: { id: 2, address: 10.0.0.2 }
  c: { id: 3, address: \"2001:db8:1::3\" }
vips:
  quic:
    addresses: [192.0.2.1]
    ports: [443]
    protocols: [udp]
    encapsulation: gue
    quic: [{ codepoint: 2, server_id_bytes: 3, nonce_bytes: 5 }]
  web:
    addresses: [192.0.2.1, \"2001:db8::1\"]
    ports: [80]
  whole: { addresses: [192.0.2.9], fragments: forward, protocols: [tcp, udp], echo: answer }
trusted: [10.9.0.0/16]
drop_rules:
  - { source: 198.51.100.0/24, packets_per_second: 5 }
  - { source: 198.51.100.0/24, vip: web }
  - { source: 203.0.113.0/24, vip: web, until: 2027-01-15T08:00:07Z }
  - { source: 203.0.114.0/24, vip: web, until: 2020-01-01 }
host: { interfaces: [eth0], addresses: [10.0.0.1] }
";

    pub(crate) fn config(text: &str) -> Config {
        let files = [("l4.yaml".to_owned(), text.as_bytes().to_vec()), ("k".to_owned(), vec![1; 16])];
        load_l4_files(files.into(), "l4.yaml").expect("a good file").config
    }

    fn made(config: &Config, rollout: &Rollout) -> Desired {
        let ids = ids::assign(&config.vips, &BTreeMap::new());
        desired(config, rollout, &config.addresses, &ids, NOW)
    }

    #[test]
    fn a_file_becomes_map_entries() {
        let config = config(FILE);
        let rollout = Rollout::new(config.owners.clone(), config.windows).expect("active proxies");
        let desired = made(&config, &rollout);
        let key = |address: &str, port, protocol| VipKey {
            address: address.parse().expect("an address"),
            port,
            protocol,
        };
        let flags = |key: VipKey| desired.vips.get(&key).map(|vip| (vip.id, vip.flags));
        let rules = l4_abi::VIP_RULES;
        assert_eq!(flags(key("192.0.2.1", 443, 17)), Some((1, l4_abi::VIP_GUE | l4_abi::VIP_QUIC | rules)));
        assert_eq!(flags(key("192.0.2.1", 80, 6)), Some((2, rules)));
        assert_eq!(flags(key("2001:db8::1", 80, 6)), Some((2, rules)));
        assert_eq!(flags(key("192.0.2.9", 0, 17)), Some((3, l4_abi::VIP_HASH_ADDRESSES | rules)));
        assert_eq!(flags(key("192.0.2.9", 0, ICMP)), Some((3, l4_abi::VIP_ECHO | rules)));
        assert_eq!(desired.vips.len(), 6);
        assert!(desired.any_port);
        assert_eq!(desired.owners.get(&1), Some(&Owner::local(IpAddr::from([10, 0, 0, 1]))));
        assert_eq!(desired.owners.get(&2), Some(&Owner::remote(IpAddr::from([10, 0, 0, 2]))));
        assert_eq!(desired.owners.len(), 3);
        assert_eq!(desired.trusted.len(), 4);
        assert_eq!(desired.server_ids.len(), 3);
        let id = desired.server_ids.iter().find(|(_, owner)| **owner == 2).map(|(key, _)| *key);
        assert_eq!(id.map(|key| (key.vip, key.config, key.bytes, key.id[2])), Some((1, 2, 3, 2)));
        assert_eq!(
            desired.quic.get(&(1, 2)).map(|quic| (quic.form, quic.nonce_bytes)),
            Some((l4_abi::QUIC_PLAIN, 5))
        );
    }

    #[test]
    fn the_longest_prefix_holds_unless_it_has_ended() {
        let address = |text: &str| -> IpAddr { text.parse().expect("an address") };
        let mut desired = Desired::default();
        for (vip, source, bits, packets_per_s, expires_ns) in [
            (1, "198.51.100.0", 24, 0, 0),
            (1, "198.51.100.7", 32, 5, 100),
            (1, "2001:db8::", 32, 0, 0),
            (2, "0.0.0.0", 0, 9, 0),
        ] {
            desired.rules.insert((vip, address(source), bits), Limit { packets_per_s, expires_ns });
        }
        for (vip, source, now, found) in [
            (1, "198.51.100.9", 0, Some((24, 0))),
            (1, "198.51.100.7", 99, Some((32, 5))),
            (1, "198.51.100.7", 100, None),
            (1, "198.51.101.7", 0, None),
            (1, "2001:db8:ffff::1", 0, Some((32, 0))),
            (1, "2001:db9::1", 0, None),
            (2, "198.51.100.7", 0, Some((0, 9))),
            (2, "::1", 0, None),
            (3, "198.51.100.7", 0, None),
        ] {
            let rule = desired.rule_for(vip, address(source), now);
            assert_eq!(
                rule.map(|((_, bits), limit)| (bits, limit.packets_per_s)),
                found,
                "{vip} {source} {now}"
            );
        }
    }

    #[test]
    fn rules_of_a_vip_win_and_ended_ones_are_gone() {
        let config = config(FILE);
        let rollout = Rollout::new(config.owners.clone(), config.windows).expect("active proxies");
        let rules = made(&config, &rollout).rules;
        let at = |vip, address: [u8; 4]| rules.get(&(vip, IpAddr::from(address), 24)).copied();
        let never = |packets_per_s| Some(Limit { packets_per_s, expires_ns: 0 });
        assert_eq!(at(1, [198, 51, 100, 0]), never(5));
        assert_eq!(at(2, [198, 51, 100, 0]), never(0));
        assert_eq!(at(2, [203, 0, 113, 0]), Some(Limit { packets_per_s: 0, expires_ns: 12_000_000_000 }));
        assert_eq!(at(2, [203, 0, 114, 0]), None);
        assert_eq!(next_end(&config.drop_rules, NOW), Some(7));
        let later = Limit { packets_per_s: 0, expires_ns: 12_900_000_000 };
        assert!(later.is_in(&at(2, [203, 0, 113, 0]).expect("it is there").rule()));
        assert!(!Limit { expires_ns: 0, ..later }.is_in(&later.rule()), "for ever is not soon");
    }

    #[test]
    fn a_proxy_that_left_stays_an_owner_until_its_window_ends() {
        let whole = config(FILE);
        let shorter = config(&FILE.replace("  b: { id: 2, address: 10.0.0.2 }\n", ""));
        let mut rollout = Rollout::new(whole.owners.clone(), whole.windows).expect("active proxies");
        rollout.propose(shorter.owners.clone(), Conflict::Wait, Duration::ZERO).expect("taken");
        let ids = ids::assign(&shorter.vips, &BTreeMap::new());
        let of = |rollout: &Rollout| desired(&shorter, rollout, &whole.addresses, &ids, NOW).owners;
        assert!(of(&rollout).contains_key(&2));
        let b = OwnerId::new(2).expect("an id");
        assert_eq!(state_word(&rollout, b), "leaving");
        assert!(shares(&rollout, b).0 == 0 && shares(&rollout, b).1 > 0);
        rollout.tick(whole.windows.drain).expect("the window ended");
        assert!(!of(&rollout).contains_key(&2));
    }
}
