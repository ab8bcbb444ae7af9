//! One handle for each map, typed by l4-abi; a map of another key or value size is refused when it is opened.

use aya::maps::{Array, ArrayOfMaps, HashMap, LpmTrie, Map, MapData, MapError, PerCpuArray, RingBuf};
use l4_abi::{
    FlowSet, Owner, OwnerCounts, QuicConfig, RescueCounts, Rule, ServerIdKey, Settings, TablePage,
    TraceEvent, Vip4Key, Vip6Key, VipBucket, VipCounts,
};

use super::Plain;
use crate::{Error, Result};

pub(super) struct Typed {
    pub(super) vips4: Array<MapData, Plain<VipBucket<Vip4Key>>>,
    pub(super) vips6: Array<MapData, Plain<VipBucket<Vip6Key>>>,
    pub(super) flows: Array<MapData, Plain<FlowSet>>,
    pub(super) tables: ArrayOfMaps<MapData, Array<MapData, Plain<TablePage>>>,
    pub(super) owners: Array<MapData, Plain<Owner>>,
    pub(super) trusted: LpmTrie<MapData, [u8; 16], u32>,
    pub(super) rules: LpmTrie<MapData, [u8; 20], Plain<Rule>>,
    pub(super) quic_configs: Array<MapData, Plain<QuicConfig>>,
    pub(super) server_ids: HashMap<MapData, Plain<ServerIdKey>, u32>,
    pub(super) settings: Array<MapData, Plain<Settings>>,
    pub(super) vip_counts: PerCpuArray<MapData, Plain<VipCounts>>,
    pub(super) owner_counts: PerCpuArray<MapData, Plain<OwnerCounts>>,
    pub(super) rescue_counts: PerCpuArray<MapData, Plain<RescueCounts>>,
    pub(super) trace: RingBuf<MapData>,
}

impl Typed {
    /// Takes each map from `find`.
    pub(super) fn new(mut find: impl FnMut(&str) -> std::result::Result<Map, MapError>) -> Result<Self> {
        Ok(Self {
            vips4: open(&mut find, "vips4")?,
            vips6: open(&mut find, "vips6")?,
            flows: open(&mut find, "flows")?,
            tables: open(&mut find, "tables")?,
            owners: open(&mut find, "owners")?,
            trusted: open(&mut find, "trusted")?,
            rules: open(&mut find, "rules")?,
            quic_configs: open(&mut find, "quic_configs")?,
            server_ids: open(&mut find, "server_ids")?,
            settings: open(&mut find, "settings")?,
            vip_counts: open(&mut find, "vip_counts")?,
            owner_counts: open(&mut find, "owner_counts")?,
            rescue_counts: open(&mut find, "rescue_counts")?,
            trace: open(&mut find, "trace")?,
        })
    }
}

fn open<M: TryFrom<Map, Error = MapError>>(
    find: &mut impl FnMut(&str) -> std::result::Result<Map, MapError>,
    name: &'static str,
) -> Result<M> {
    find(name).and_then(M::try_from).map_err(Error::map(name))
}

/// Reads an event field by field; bytes of another length are no event.
pub(super) fn trace_event(bytes: &[u8]) -> Option<TraceEvent> {
    let mut rest = bytes;
    let event = TraceEvent {
        time_ns: u64::from_ne_bytes(take(&mut rest)?),
        flow: u64::from_ne_bytes(take(&mut rest)?),
        vip: u32::from_ne_bytes(take(&mut rest)?),
        decision: u16::from_ne_bytes(take(&mut rest)?),
        owner: u16::from_ne_bytes(take(&mut rest)?),
        source: take(&mut rest)?,
        destination: take(&mut rest)?,
        source_port: take(&mut rest)?,
        destination_port: take(&mut rest)?,
        protocol: take::<1>(&mut rest)?[0],
        zero: take::<1>(&mut rest)?[0],
        packet_bytes: u16::from_ne_bytes(take(&mut rest)?),
    };
    rest.is_empty().then_some(event)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(*head)
}
