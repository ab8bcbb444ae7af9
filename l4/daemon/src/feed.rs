//! Brings the kernel's maps to what is desired, writing differences only and in an order in which every state between
//! is a good one: owners before the tables that name them, tables before the VIPs that use them, removal in reverse.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use l4_abi::{QuicConfig, Row, RuleKey, unmapped};
use l4_load::{Maps, Result, VipKey};

use crate::desired::Desired;

/// What was written, for the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) vips: usize,
    pub(crate) owners: usize,
    pub(crate) tables: usize,
    pub(crate) rules: usize,
}

/// The index that each key has now.
///
/// # Errors
/// When the map cannot be read.
pub(crate) fn present_ids(maps: &Maps) -> Result<BTreeMap<VipKey, u32>> {
    Ok(maps.vips()?.into_iter().map(|(key, vip)| (key, vip.id)).collect())
}

/// Writes everything. After an error the maps are between two good states; writing again goes on from there.
///
/// # Errors
/// The map that could not be read or written.
pub(crate) fn write(
    maps: &mut Maps,
    desired: &Desired,
    before: &Desired,
    tables: &mut Tables,
    rows: &[Row],
) -> Result<Written> {
    let owners = write_owners(maps, desired)?;
    write_quic(maps, desired, before)?;
    let ids: BTreeSet<u32> = desired.vips.values().map(|vip| vip.id).collect();
    let tables = tables.write(maps, &ids, rows)?;
    let trusted: BTreeSet<(IpAddr, u8)> = maps.trusted()?.iter().map(prefix_of).collect();
    for (address, bits) in desired.trusted.difference(&trusted) {
        maps.set_trusted(*address, *bits)?;
    }
    let rules = write_rules(maps, desired)?;
    let mut settings = maps.settings()?;
    if desired.any_port && settings.any_port == 0 {
        settings.any_port = 1;
        maps.set_settings(settings)?;
    }
    let present: BTreeMap<_, _> = maps.vips()?.into_iter().collect();
    let changed: Vec<_> = desired.vips.iter().filter(|(key, vip)| present.get(*key) != Some(*vip)).collect();
    for (key, vip) in &changed {
        maps.set_vip(**key, **vip)?;
    }
    let gone: Vec<_> = present.keys().filter(|key| !desired.vips.contains_key(*key)).collect();
    for key in &gone {
        maps.remove_vip(**key)?;
    }
    if !desired.any_port && settings.any_port != 0 {
        settings.any_port = 0;
        maps.set_settings(settings)?;
    }
    for (address, bits) in trusted.difference(&desired.trusted) {
        maps.remove_trusted(*address, *bits)?;
    }
    Ok(Written { vips: changed.len() + gone.len(), owners, tables, rules })
}

/// Owners that no row names any more are taken out at once: a flow that still names one goes to its row.
fn write_owners(maps: &mut Maps, desired: &Desired) -> Result<usize> {
    let mut written = 0;
    for id in 1..=l4_steer::owner::OwnerId::MAX {
        let wanted = desired.owners.get(&id).copied().unwrap_or_default();
        if maps.owner(id)? != wanted {
            maps.set_owner(id, &wanted)?;
            written += 1;
        }
    }
    Ok(written)
}

/// What the kernel holds as tables. It is remembered, because reading a table back needs more rights than the daemon
/// keeps.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    /// By index of the VIP: the rows that were written last.
    written: BTreeMap<u32, Vec<Row>>,
    /// The latest version of any table.
    version: u32,
}

impl Tables {
    /// Reads the tables of the VIPs that are in the kernel: what was in force before a restart.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub(crate) fn present(maps: &Maps) -> Result<Self> {
        let mut tables = Self::default();
        for id in present_ids(maps)?.into_values().collect::<BTreeSet<u32>>() {
            if let Some((version, rows)) = maps.table(id)? {
                tables.version = tables.version.max(version);
                tables.written.insert(id, rows);
            }
        }
        Ok(tables)
    }

    /// The rows of some VIP; all have the same.
    pub(crate) fn any(&self) -> Option<&[Row]> {
        self.written.values().next().map(Vec::as_slice)
    }

    fn write(&mut self, maps: &mut Maps, ids: &BTreeSet<u32>, rows: &[Row]) -> Result<usize> {
        self.written.retain(|id, _| ids.contains(id));
        let stale: Vec<u32> =
            ids.iter().copied().filter(|id| self.written.get(id).is_none_or(|w| w != rows)).collect();
        if !stale.is_empty() {
            self.version = self.version.wrapping_add(1).max(1);
        }
        for id in &stale {
            maps.swap_table(*id, self.version, rows)?;
            self.written.insert(*id, rows.to_vec());
        }
        Ok(stale.len())
    }
}

fn write_rules(maps: &mut Maps, desired: &Desired) -> Result<usize> {
    let present: BTreeMap<_, _> =
        maps.rules()?.into_iter().map(|(key, rule)| (rule_of(&key), rule)).collect();
    let mut written = 0;
    for ((vip, address, bits), limit) in &desired.rules {
        // A rule that says the same keeps its counter.
        if present.get(&(*vip, *address, *bits)).is_none_or(|rule| !limit.is_in(rule)) {
            maps.set_rule(*vip, *address, *bits, limit.rule())?;
            written += 1;
        }
    }
    for (vip, address, bits) in present.keys().filter(|key| !desired.rules.contains_key(*key)) {
        maps.remove_rule(*vip, *address, *bits)?;
        written += 1;
    }
    Ok(written)
}

/// Server ids before the configurations that look them up.
fn write_quic(maps: &mut Maps, desired: &Desired, before: &Desired) -> Result<()> {
    for (key, owner) in &desired.server_ids {
        if before.server_ids.get(key) != Some(owner) {
            maps.set_server_id(*key, *owner)?;
        }
    }
    let ids: BTreeSet<u32> = desired.vips.values().map(|vip| vip.id).collect();
    for id in ids {
        for codepoint in 0..=l4_steer::quic_lb::CODEPOINT_MAX {
            let wanted = desired.quic.get(&(id, codepoint)).copied().unwrap_or(QuicConfig::unused());
            maps.set_quic(id, codepoint, &wanted)?;
        }
    }
    for key in before.server_ids.keys().filter(|key| !desired.server_ids.contains_key(*key)) {
        maps.remove_server_id(*key)?;
    }
    Ok(())
}

fn prefix_of(key: &l4_abi::PrefixKey) -> (IpAddr, u8) {
    let (address, bits) = l4_load::prefix(key);
    (address, u8::try_from(bits).unwrap_or(u8::MAX))
}

/// VIP index, address and bits of a rule's key.
pub(crate) fn rule_of(key: &RuleKey) -> (u32, IpAddr, u8) {
    let address = unmapped(key.address);
    let before = if address.is_ipv4() { 32 + 96 } else { 32 };
    (key.vip, address, u8::try_from(key.prefix_bits.saturating_sub(before)).unwrap_or(u8::MAX))
}
