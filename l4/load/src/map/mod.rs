//! The maps by their meaning. All calls are system calls; nothing is cached.

mod clock;
mod pod;
mod typed;
mod vips;

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use aya::Ebpf;
use aya::maps::lpm_trie::Key;
use aya::maps::{Array, Map, MapData, MapError};
use l4_abi::{
    FLOW_SEEN_TICKS_SHIFT, Flow, Owner, OwnerCounts, PAGE_ROWS, PrefixKey, QUIC_CONFIGS, QuicConfig,
    RescueCounts, Row, Rule, RuleKey, ServerIdKey, Settings, TABLE_PAGES, TABLE_ROWS, TablePage, TraceEvent,
    Vip, Vip4Key, Vip6Key, VipCounts, mapped, mapped_bits, unmapped,
};
use rustix::time::{ClockId, clock_gettime};

use clock::Clock;
pub(crate) use pod::Plain;
use typed::Typed;

use crate::{Error, Result, options};

/// Names of the maps, which are their pins' names too.
pub(crate) const NAMES: &[&str] = &[
    "vips4",
    "vips6",
    "flows",
    "tables",
    "owners",
    "trusted",
    "rules",
    "quic_configs",
    "server_ids",
    "settings",
    "vip_counts",
    "owner_counts",
    "rescue_counts",
    "budgets",
    "syn_budgets",
    "questions",
    "connecting",
    "early",
    "trace",
];

/// What a VIP is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VipKey {
    pub address: IpAddr,
    /// 0 = all ports that have no VIP of their own.
    pub port: u16,
    /// IP protocol number.
    pub protocol: u8,
}

/// The protocol number of the entry that says "this address is a VIP's"; [`Maps::set_vip`] keeps it.
const ADDRESS_ENTRY: u8 = 0;

/// All maps of one program.
pub struct Maps {
    maps: Typed,
    clock: Clock,
}

impl Maps {
    pub(crate) fn of(ebpf: &mut Ebpf, pin_dir: Option<&Path>) -> Result<Self> {
        let clock = Clock::of(ebpf, pin_dir.map(map_folder).as_deref())?;
        Ok(Self { maps: Typed::new(|name| ebpf.take_map(name).ok_or(MapError::ElementNotFound))?, clock })
    }

    /// Opens pinned maps, such as those that a daemon made.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] when a pin is missing or of another layout, or when opening pins is not permitted.
    pub fn open(pin_dir: &Path) -> Result<Self> {
        let folder = map_folder(pin_dir);
        let maps = Typed::new(|name| Map::from_map_data(MapData::from_pin(folder.join(name))?))?;
        Ok(Self { maps, clock: Clock::open(&folder)? })
    }

    /// Adds or changes a VIP.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] when the map is full or cannot be written.
    pub fn set_vip(&mut self, key: VipKey, vip: Vip) -> Result<()> {
        self.write_vip(key, vip)?;
        // Fragments and packets with options have no port to look up, yet must not reach the kernel for a VIP.
        self.write_vip(VipKey { port: 0, protocol: ADDRESS_ENTRY, ..key }, Vip { id: vip.id, flags: 0 })
    }

    fn write_vip(&mut self, key: VipKey, vip: Vip) -> Result<()> {
        match key.address {
            IpAddr::V4(address) => {
                let key = Vip4Key::new(address, key.port, key.protocol);
                vips::insert(&mut self.maps.vips4, key, vip).map_err(Error::map("vips4"))
            }
            IpAddr::V6(address) => {
                let key = Vip6Key::new(address, key.port, key.protocol);
                vips::insert(&mut self.maps.vips6, key, vip).map_err(Error::map("vips6"))
            }
        }
    }

    /// Removes a VIP; one that is not there is no fault.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] when the map cannot be written.
    pub fn remove_vip(&mut self, key: VipKey) -> Result<()> {
        self.erase_vip(key)?;
        let last = !self.vips()?.iter().any(|(other, _)| other.address == key.address);
        if last { self.erase_vip(VipKey { port: 0, protocol: ADDRESS_ENTRY, ..key }) } else { Ok(()) }
    }

    fn erase_vip(&mut self, key: VipKey) -> Result<()> {
        match key.address {
            IpAddr::V4(address) => {
                let key = Vip4Key::new(address, key.port, key.protocol);
                vips::remove(&mut self.maps.vips4, key).map_err(Error::map("vips4"))
            }
            IpAddr::V6(address) => {
                let key = Vip6Key::new(address, key.port, key.protocol);
                vips::remove(&mut self.maps.vips6, key).map_err(Error::map("vips6"))
            }
        }
    }

    /// All VIPs, in no order.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] when a map cannot be read.
    pub fn vips(&self) -> Result<Vec<(VipKey, Vip)>> {
        let v4 = vips::all(&self.maps.vips4).map_err(Error::map("vips4"))?;
        let v6 = vips::all(&self.maps.vips6).map_err(Error::map("vips6"))?;
        let v4 = v4.into_iter().map(|(key, vip)| (vip_key(key.address.into(), key.port, key.protocol), vip));
        let v6 = v6.into_iter().map(|(key, vip)| (vip_key(key.address.into(), key.port, key.protocol), vip));
        let mut vips: Vec<_> = v4.chain(v6).collect();
        vips.retain(|(key, _)| key.protocol != ADDRESS_ENTRY);
        Ok(vips)
    }

    /// Writes the owner with this index. The default owner means "none".
    ///
    /// # Errors
    ///
    /// [`Error::Map`], also for an index of [`l4_abi::OWNERS_MAX`] or more.
    pub fn set_owner(&mut self, id: u16, owner: &Owner) -> Result<()> {
        self.maps.owners.set(u32::from(id), Plain(*owner), 0).map_err(Error::map("owners"))
    }

    /// The owner with this index.
    ///
    /// # Errors
    ///
    /// [`Error::Map`], also for an index of [`l4_abi::OWNERS_MAX`] or more.
    pub fn owner(&self, id: u16) -> Result<Owner> {
        self.maps.owners.get(&u32::from(id), 0).map(|Plain(owner)| owner).map_err(Error::map("owners"))
    }

    /// Publishes a VIP's table in one step: packets see the old one or the new one, whole.
    ///
    /// # Errors
    ///
    /// [`Error::Rows`] for another number of rows than [`TABLE_ROWS`]; [`Error::Map`] when the kernel has no memory or
    /// `vip` is not below [`l4_abi::VIPS_MAX`].
    pub fn swap_table(&mut self, vip: u32, version: u32, rows: &[Row]) -> Result<()> {
        if rows.len() != TABLE_ROWS {
            return Err(Error::Rows { given: rows.len() });
        }
        let mut inner = Array::create(TABLE_PAGES, 0).map_err(Error::map("tables"))?;
        for (index, some) in (0..TABLE_PAGES).zip(rows.chunks(PAGE_ROWS)) {
            let mut page = TablePage { version, rows: [Row::default(); PAGE_ROWS] };
            page.rows[..some.len()].copy_from_slice(some);
            inner.set(index, Plain(page), 0).map_err(Error::map("tables"))?;
        }
        self.maps.tables.set(vip, &inner, 0).map_err(Error::map("tables"))
    }

    /// A VIP's present table: its version and its rows.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] when it cannot be read.
    pub fn table(&self, vip: u32) -> Result<Option<(u32, Vec<Row>)>> {
        let inner = match self.maps.tables.get(&vip, 0) {
            Ok(inner) => inner,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(Error::map("tables")(error)),
        };
        let mut table = (0, Vec::with_capacity(TABLE_ROWS));
        for index in 0..TABLE_PAGES {
            let Plain(page) = inner.get(&index, 0).map_err(Error::map("tables"))?;
            table.0 = page.version;
            table.1.extend(page.rows);
        }
        table.1.truncate(TABLE_ROWS);
        Ok(Some(table))
    }

    /// Allows encapsulated packets from a prefix: every L4 box and every proxy of the fleet.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] when the map is full or cannot be written.
    pub fn set_trusted(&mut self, address: IpAddr, bits: u8) -> Result<()> {
        let key = Key::new(mapped_bits(address, bits), mapped(address));
        self.maps.trusted.insert(&key, 1, 0).map_err(Error::map("trusted"))
    }

    /// Takes that back; a prefix that is not there is no fault.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] when the map cannot be written.
    pub fn remove_trusted(&mut self, address: IpAddr, bits: u8) -> Result<()> {
        let key = Key::new(mapped_bits(address, bits), mapped(address));
        absent_is_fine(self.maps.trusted.remove(&key)).map_err(Error::map("trusted"))
    }

    /// All trusted prefixes.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] when the map cannot be read.
    pub fn trusted(&self) -> Result<Vec<PrefixKey>> {
        let keys = self.maps.trusted.keys();
        keys.map(|key| key.map(|key| PrefixKey { prefix_bits: key.prefix_len(), address: key.data() }))
            .collect::<std::result::Result<_, _>>()
            .map_err(Error::map("trusted"))
    }

    /// Adds or replaces a drop rule of one VIP. It is looked up only for VIPs with [`l4_abi::VIP_RULES`].
    ///
    /// # Errors
    ///
    /// [`Error::Map`] when the map is full or cannot be written.
    pub fn set_rule(&mut self, vip: u32, address: IpAddr, bits: u8, rule: Rule) -> Result<()> {
        self.maps.rules.insert(&rule_key(vip, address, bits), Plain(rule), 0).map_err(Error::map("rules"))
    }

    /// Removes a drop rule; one that is not there is no fault.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] when the map cannot be written.
    pub fn remove_rule(&mut self, vip: u32, address: IpAddr, bits: u8) -> Result<()> {
        absent_is_fine(self.maps.rules.remove(&rule_key(vip, address, bits))).map_err(Error::map("rules"))
    }

    /// All drop rules with what they dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] when the map cannot be read.
    pub fn rules(&self) -> Result<Vec<(RuleKey, Rule)>> {
        let mut rules = Vec::new();
        for entry in self.maps.rules.iter() {
            let (key, Plain(rule)) = entry.map_err(Error::map("rules"))?;
            let data = key.data();
            let vip = u32::from_ne_bytes([data[0], data[1], data[2], data[3]]);
            let mut address = [0; 16];
            address.copy_from_slice(&data[4..]);
            rules.push((RuleKey { prefix_bits: key.prefix_len(), vip, address }, rule));
        }
        Ok(rules)
    }

    /// Names the owner of a QUIC server id.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] when the map is full or cannot be written.
    pub fn set_server_id(&mut self, key: ServerIdKey, owner: u16) -> Result<()> {
        self.maps.server_ids.insert(Plain(key), u32::from(owner), 0).map_err(Error::map("server_ids"))
    }

    /// Removes a server id; one that is not there is no fault.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] when the map cannot be written.
    pub fn remove_server_id(&mut self, key: ServerIdKey) -> Result<()> {
        absent_is_fine(self.maps.server_ids.remove(&Plain(key))).map_err(Error::map("server_ids"))
    }

    /// Sets how the connection ids with this config codepoint (0 – 6) are read for a VIP.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] when the map cannot be written.
    pub fn set_quic(&mut self, vip: u32, codepoint: u8, config: &QuicConfig) -> Result<()> {
        let index = vip * QUIC_CONFIGS + u32::from(codepoint) % QUIC_CONFIGS;
        self.maps.quic_configs.set(index, Plain(*config), 0).map_err(Error::map("quic_configs"))
    }

    /// The settings that may change while the program runs.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] when the map cannot be read.
    pub fn settings(&self) -> Result<Settings> {
        self.maps.settings.get(&0, 0).map(|Plain(settings)| settings).map_err(Error::map("settings"))
    }

    /// Changes them.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] when the map cannot be written.
    pub fn set_settings(&mut self, settings: Settings) -> Result<()> {
        self.maps.settings.set(0, Plain(settings), 0).map_err(Error::map("settings"))
    }

    /// A VIP's counters, over all CPUs; index 0 counts what was for no VIP.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] when the map cannot be read.
    pub fn vip_counts(&self, vip: u32) -> Result<VipCounts> {
        let values = self.maps.vip_counts.get(&vip, 0).map_err(Error::map("vip_counts"))?;
        Ok(values.iter().fold(VipCounts::default(), |mut sum, Plain(counts)| {
            for (total, packets) in sum.packets.iter_mut().zip(counts.packets) {
                *total += packets;
            }
            sum.forwarded_bytes += counts.forwarded_bytes;
            sum
        }))
    }

    /// An owner's counters, over all CPUs.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] when the map cannot be read.
    pub fn owner_counts(&self, id: u16) -> Result<OwnerCounts> {
        let values = self.maps.owner_counts.get(&u32::from(id), 0).map_err(Error::map("owner_counts"))?;
        Ok(values.iter().fold(OwnerCounts::default(), |sum, Plain(counts)| OwnerCounts {
            packets: sum.packets + counts.packets,
            bytes: sum.bytes + counts.bytes,
        }))
    }

    /// Second chances of a VIP's latest table version that any CPU has seen.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] when the map cannot be read.
    pub fn rescue_counts(&self, vip: u32) -> Result<RescueCounts> {
        let values = self.maps.rescue_counts.get(&vip, 0).map_err(Error::map("rescue_counts"))?;
        let version = values.iter().map(|Plain(counts)| counts.version).max().unwrap_or(0);
        let latest = values.iter().filter(|Plain(counts)| counts.version == version);
        Ok(latest.fold(RescueCounts { version, ..RescueCounts::default() }, |sum, Plain(counts)| {
            RescueCounts { version, rescued: sum.rescued + counts.rescued, reset: sum.reset + counts.reset }
        }))
    }

    /// What is remembered of the flow with this hash.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] when the map cannot be read.
    pub fn flow(&self, hash: u64) -> Result<Option<Flow>> {
        let set = u32::try_from(hash & u64::from(self.maps.flows.len() - 1)).unwrap_or(0);
        let Plain(set) = self.maps.flows.get(&set, 0).map_err(Error::map("flows"))?;
        let mut found = set.flows().filter(|(tag, _)| u64::from(*tag) == hash >> 32);
        Ok(found.next().map(|(_, flow)| flow))
    }

    /// The bits of a flow's hash that the flow table keeps, and that [`Maps::flows`] tells.
    #[must_use]
    pub fn flow_bits(&self) -> u64 {
        u64::MAX << 32 | u64::from(self.maps.flows.len() - 1)
    }

    /// Up to `max` remembered flows, idle ones included, each with the bits of its hash that are known: the upper half
    /// and the number of its set.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] when the map cannot be read.
    pub fn flows(&self, max: usize) -> Result<Vec<(u64, Flow)>> {
        let mut flows = Vec::new();
        for index in 0..self.maps.flows.len() {
            let Plain(set) = self.maps.flows.get(&index, 0).map_err(Error::map("flows"))?;
            flows.extend(set.flows().map(|(tag, flow)| (u64::from(tag) << 32 | u64::from(index), flow)));
            if flows.len() >= max {
                break;
            }
        }
        flows.truncate(max);
        Ok(flows)
    }

    /// Time since a flow's last packet, to about a second.
    ///
    /// # Errors
    ///
    /// [`Error::Run`] when the kernel does not tell its ticks.
    pub fn flow_age(&self, flow: &Flow) -> Result<Duration> {
        let now = self.clock.ticks()? >> FLOW_SEEN_TICKS_SHIFT;
        let age = now.wrapping_sub(u32::from(flow.seen)) & 0xffff;
        Ok(options::tick() * (age << FLOW_SEEN_TICKS_SHIFT))
    }

    /// Hands over the sampled decisions that have come since the last call, and says how many.
    pub fn trace(&mut self, mut take: impl FnMut(&TraceEvent)) -> usize {
        let mut count = 0;
        while let Some(item) = self.maps.trace.next() {
            if let Some(event) = typed::trace_event(&item) {
                take(&event);
                count += 1;
            }
        }
        count
    }
}

/// The monotonic clock in nanoseconds: what [`Rule::expires_ns`] counts.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    seconds * 1_000_000_000 + nanos
}

/// Where the maps of this layout are pinned.
pub(crate) fn map_folder(pin_dir: &Path) -> std::path::PathBuf {
    pin_dir.join(format!("abi-{}", l4_abi::ABI_VERSION))
}

/// Makes that folder.
pub(crate) fn make_map_folder(pin_dir: &Path) -> Result<std::path::PathBuf> {
    /// BPF_FS_MAGIC of linux/magic.h.
    const BPF_FS: i64 = 0xcafe_4a11;
    let folder = map_folder(pin_dir);
    let made = fs::create_dir_all(&folder);
    made.map_err(|source| Error::Pin { path: folder.clone(), source: Box::new(source) })?;
    let kind = rustix::fs::statfs(&folder)
        .map_err(|source| Error::Pin { path: folder.clone(), source: Box::new(io::Error::from(source)) })?;
    if kind.f_type != BPF_FS {
        return Err(Error::NotBpffs { folder: pin_dir.to_owned() });
    }
    Ok(folder)
}

fn vip_key(address: IpAddr, port: [u8; 2], protocol: u8) -> VipKey {
    VipKey { address, port: u16::from_be_bytes(port), protocol }
}

fn rule_key(vip: u32, address: IpAddr, bits: u8) -> Key<[u8; 20]> {
    let mut data = [0; 20];
    data[..4].copy_from_slice(&vip.to_ne_bytes());
    data[4..].copy_from_slice(&mapped(address));
    Key::new(32 + mapped_bits(address, bits), data)
}

fn is_absent(error: &MapError) -> bool {
    match error {
        MapError::KeyNotFound | MapError::ElementNotFound => true,
        MapError::SyscallError(error) => error.io_error.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

fn absent_is_fine(result: std::result::Result<(), MapError>) -> std::result::Result<(), MapError> {
    match result {
        Err(error) if is_absent(&error) => Ok(()),
        other => other,
    }
}

impl From<SocketAddr> for VipKey {
    /// The TCP VIP of an address.
    fn from(address: SocketAddr) -> Self {
        Self { address: address.ip(), port: address.port(), protocol: l4_abi::TCP }
    }
}

/// The address of a prefix key, for display.
#[must_use]
pub fn prefix(key: &PrefixKey) -> (IpAddr, u32) {
    let address = unmapped(key.address);
    (address, if address.is_ipv4() { key.prefix_bits.saturating_sub(96) } else { key.prefix_bits })
}
