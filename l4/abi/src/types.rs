//! Keys and values of the maps, field by field as in `l4/xdp/abi.h`, and the conversions to the standard library's
//! types. Every type is plain data without padding, so that the map layer may read and write it as bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    FLOW_OWNER_MASK, FLOW_WAYS, HASH_KEYS, OWNER_LOCAL, OWNER_USED, OWNER_V6, PAGE_ROWS, VIP_BUCKET_SHIFT,
    VIP_MIX, VIP_MIX_SECOND, VIP_MIX_THIRD, VIP_SLOTS,
};

/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;

/// Key of an IPv4 VIP in `vips4`. Port 0 answers for all ports without a VIP of their own.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vip4Key {
    pub address: [u8; 4],
    /// Network order.
    pub port: [u8; 2],
    pub protocol: u8,
    pub zero: u8,
}

/// Key of an IPv6 VIP in `vips6`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vip6Key {
    pub address: [u8; 16],
    /// Network order.
    pub port: [u8; 2],
    pub protocol: u8,
    pub zero: [u8; 5],
}

/// A VIP's value: its index and `VIP_*` flags.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vip {
    /// 1 .. [`crate::VIPS_MAX`] − 1: index into `tables`, `vip_counts`, `rescue_counts`. Several keys may share it.
    pub id: u32,
    pub flags: u32,
}

/// A VIP in its bucket.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VipSlot<K> {
    pub key: K,
    /// Id 0 = the slot is empty.
    pub vip: Vip,
}

/// Slots of one bucket, filled from the first on; `l4/xdp/abi.h` says how a key is searched.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VipBucket<K> {
    pub slots: [VipSlot<K>; VIP_SLOTS],
}

/// A proxy that owns flows, at its index in `owners`. An index that was in use must not be given to another proxy
/// before the flow table has forgotten it (its idle time).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// `OWNER_*`.
    pub flags: u32,
    pub zero: u32,
    /// Where encapsulated packets go; IPv4 as v4-mapped.
    pub address: [u8; 16],
}

impl Owner {
    /// A proxy reached by a tunnel to `address`.
    #[must_use]
    pub fn remote(address: IpAddr) -> Self {
        let flags = OWNER_USED | if address.is_ipv6() { OWNER_V6 } else { 0 };
        Self { flags, zero: 0, address: mapped(address) }
    }

    /// This host, whose tunnel address is `address`.
    #[must_use]
    pub fn local(address: IpAddr) -> Self {
        let remote = Self::remote(address);
        Self { flags: remote.flags | OWNER_LOCAL, ..remote }
    }
}

/// One row of a table: who owns the flows that hash here, and who owned them before the last change.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Index of an owner; 0 = none.
    pub current: u16,
    /// Equals `current` while no change drains.
    pub previous: u16,
}

/// One page of a VIP's table: row i stands on page i / [`PAGE_ROWS`] of the VIP's inner map.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TablePage {
    /// Counts changes, from 1; the same on all pages.
    pub version: u32,
    pub rows: [Row; PAGE_ROWS],
}

/// One set of the flow table: eight flows, a word each. Flow h stands in set h mod the number of sets.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowSet {
    pub ways: [u64; FLOW_WAYS],
}

/// What the flow table knows of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub owner: u16,
    /// A second packet came; unconfirmed flows are replaced first.
    pub confirmed: bool,
    /// Units of 2^[`FLOW_SEEN_TICKS_SHIFT`] kernel ticks, lower 16 bits.
    pub seen: u16,
}

impl FlowSet {
    /// The flows of this set, each with the upper half of its hash.
    pub fn flows(&self) -> impl Iterator<Item = (u32, Flow)> {
        self.ways.iter().filter_map(|way| {
            let [a, b, c, d, owner_high, owner_low, seen_high, seen_low] = way.to_be_bytes();
            let flags = u16::from_be_bytes([owner_high, owner_low]);
            let flow = Flow {
                owner: flags & FLOW_OWNER_MASK,
                confirmed: flags & (1 << 15) != 0,
                seen: u16::from_be_bytes([seen_high, seen_low]),
            };
            (flow.owner != 0).then_some((u32::from_be_bytes([a, b, c, d]), flow))
        })
    }
}

/// What became of a packet. [`Self::InsertCapped`] and [`Self::RuleExpired`] are remarks beside a decision. A new one is
/// the last, because counters outlive the program.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Decision {
    NotOurs,
    ForwardFlow,
    ForwardNew,
    ForwardStateless,
    ForwardQuic,
    ForwardIcmp,
    Local,
    Decapsulated,
    Rescued,
    RescueArrived,
    Reset,
    EchoAnswered,
    TooBigSent,
    TooBigDropped,
    DropRule,
    DropBad,
    DropFragment,
    DropOptions,
    DropUntrusted,
    DropInner,
    DropNoOwner,
    DropError,
    CookieSent,
    CookieAccepted,
    InsertCapped,
    RuleExpired,
    Returned,
    CookieFailed,
    CookieDisplaced,
    QuestionCapped,
    CookieEarly,
}

impl Decision {
    /// All decisions, in the order of their numbers.
    pub const ALL: [Self; 31] = [
        Self::NotOurs,
        Self::ForwardFlow,
        Self::ForwardNew,
        Self::ForwardStateless,
        Self::ForwardQuic,
        Self::ForwardIcmp,
        Self::Local,
        Self::Decapsulated,
        Self::Rescued,
        Self::RescueArrived,
        Self::Reset,
        Self::EchoAnswered,
        Self::TooBigSent,
        Self::TooBigDropped,
        Self::DropRule,
        Self::DropBad,
        Self::DropFragment,
        Self::DropOptions,
        Self::DropUntrusted,
        Self::DropInner,
        Self::DropNoOwner,
        Self::DropError,
        Self::CookieSent,
        Self::CookieAccepted,
        Self::InsertCapped,
        Self::RuleExpired,
        Self::Returned,
        Self::CookieFailed,
        Self::CookieDisplaced,
        Self::QuestionCapped,
        Self::CookieEarly,
    ];

    /// The word in metrics, traces and documentation.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotOurs => "not_ours",
            Self::ForwardFlow => "forward_flow",
            Self::ForwardNew => "forward_new",
            Self::ForwardStateless => "forward_stateless",
            Self::ForwardQuic => "forward_quic",
            Self::ForwardIcmp => "forward_icmp",
            Self::Local => "local",
            Self::Decapsulated => "decapsulated",
            Self::Rescued => "rescued",
            Self::RescueArrived => "rescue_arrived",
            Self::Reset => "reset",
            Self::EchoAnswered => "echo_answered",
            Self::TooBigSent => "too_big_sent",
            Self::TooBigDropped => "too_big_dropped",
            Self::DropRule => "drop_rule",
            Self::DropBad => "drop_bad",
            Self::DropFragment => "drop_fragment",
            Self::DropOptions => "drop_options",
            Self::DropUntrusted => "drop_untrusted",
            Self::DropInner => "drop_inner",
            Self::DropNoOwner => "drop_no_owner",
            Self::DropError => "drop_error",
            Self::CookieSent => "cookie_sent",
            Self::CookieAccepted => "cookie_accepted",
            Self::InsertCapped => "insert_capped",
            Self::RuleExpired => "rule_expired",
            Self::Returned => "returned",
            Self::CookieFailed => "cookie_failed",
            Self::CookieDisplaced => "cookie_displaced",
            Self::QuestionCapped => "question_capped",
            Self::CookieEarly => "cookie_early",
        }
    }
}

/// Counters of one VIP (index 0: packets for no VIP).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VipCounts {
    /// By [`Decision`].
    pub packets: [u64; 32],
    /// Inner bytes of encapsulated packets.
    pub forwarded_bytes: u64,
}

impl VipCounts {
    /// Packets of one decision.
    #[must_use]
    pub const fn of(&self, decision: Decision) -> u64 {
        self.packets[decision as usize]
    }
}

/// Counters of one owner.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerCounts {
    pub packets: u64,
    pub bytes: u64,
}

/// Second chances of one VIP since table `version`; a CPU that saw no packet since shows an older version.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RescueCounts {
    pub version: u64,
    pub rescued: u64,
    pub reset: u64,
}

/// Key of `trusted`: who may send encapsulated packets.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PrefixKey {
    /// Within the 128 bits of `address`.
    pub prefix_bits: u32,
    pub address: [u8; 16],
}

/// Key of `rules`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleKey {
    /// 32 (the VIP is always matched) + bits of `address`.
    pub prefix_bits: u32,
    pub vip: u32,
    pub address: [u8; 16],
}

/// What a drop rule does. The last four fields are the program's; write zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// CLOCK_MONOTONIC, nanoseconds; 0 = never.
    pub expires_ns: u64,
    /// What passes each second, over all CPUs; 0 = nothing.
    pub packets_per_s: u32,
    pub window_s: u32,
    pub used: u32,
    pub zero: u32,
    pub dropped: u64,
}

/// [`QuicConfig::form`]: this codepoint is not in use.
pub const QUIC_UNUSED: u8 = 0;
/// [`QuicConfig::form`]: the server id stands readable in the connection id.
pub const QUIC_PLAIN: u8 = 1;
/// [`QuicConfig::form`]: server id and nonce are one AES-128-ECB block.
pub const QUIC_ENCRYPTED: u8 = 2;

/// A QUIC-LB configuration (draft-ietf-quic-load-balancers), at index `vip * QUIC_CONFIGS + codepoint`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuicConfig {
    /// `QUIC_*`.
    pub form: u8,
    /// 1 .. 15.
    pub server_id_bytes: u8,
    pub nonce_bytes: u8,
    pub zero: u8,
    /// AES-128 key schedule of the encrypted form.
    pub round_keys: [u32; 44],
}

impl QuicConfig {
    /// A codepoint that is not in use: such connection ids are hashed.
    #[must_use]
    pub const fn unused() -> Self {
        Self { form: QUIC_UNUSED, server_id_bytes: 0, nonce_bytes: 0, zero: 0, round_keys: [0; 44] }
    }

    /// The plaintext form: 1 – 15 bytes of server id, at least 4 of nonce, together at most 19.
    #[must_use]
    pub const fn plain(server_id_bytes: u8, nonce_bytes: u8) -> Self {
        Self { form: QUIC_PLAIN, server_id_bytes, nonce_bytes, ..Self::unused() }
    }

    /// The encrypted form of a single pass: server id and nonce are together one block of 16 bytes.
    #[must_use]
    pub fn encrypted(key: &[u8; 16], server_id_bytes: u8) -> Self {
        let nonce_bytes = 16_u8.saturating_sub(server_id_bytes);
        let round_keys = crate::aes::decryption_schedule(key);
        Self { form: QUIC_ENCRYPTED, server_id_bytes, nonce_bytes, zero: 0, round_keys }
    }
}

/// Key of `server_ids`, whose value is an owner's index.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerIdKey {
    pub vip: u32,
    /// Config rotation codepoint.
    pub config: u8,
    /// Length of the id.
    pub bytes: u8,
    pub zero: [u8; 2],
    /// Zero-padded.
    pub id: [u8; 16],
}

/// The one element of `settings`: what may change while the program runs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Sample one decision in N; 0 = off.
    pub trace_one_in: u32,
    /// Nonzero while a VIP with port 0 exists: a second lookup pays.
    pub any_port: u32,
}

/// One sampled decision from the ring buffer `trace`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Hash of the flow.
    pub flow: u64,
    pub vip: u32,
    /// A [`Decision`].
    pub decision: u16,
    pub owner: u16,
    pub source: [u8; 16],
    pub destination: [u8; 16],
    /// Network order.
    pub source_port: [u8; 2],
    /// Network order.
    pub destination_port: [u8; 2],
    pub protocol: u8,
    pub zero: u8,
    pub packet_bytes: u16,
}

/// Constants of one load of the program.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    pub hash_a: [u64; HASH_KEYS],
    pub hash_b: [u64; HASH_KEYS],
    /// Of the SYN cookies' MAC; see [`crate::hash::cookie_key`].
    pub cookie_key: [u64; 2],
    /// This host's IPv4 tunnel address; zero = none.
    pub own4: [u8; 4],
    /// The largest outer packet on the link towards the owners.
    pub mtu_bytes: u32,
    /// This host's IPv6 tunnel address; zero = none.
    pub own6: [u8; 16],
    /// Number of flow sets, a power of two, less one.
    pub flow_set_mask: u32,
    /// As [`Flow::seen`] counts.
    pub flow_idle_units: u32,
    /// Ticks in one second: the window of the two budgets below, each of one CPU.
    pub window_ticks: u32,
    pub inserts_per_window: u32,
    pub icmp_per_window: u32,
    /// Nonzero: SYN cookies are sent and accepted.
    pub cookies: u32,
    /// SYNs of one VIP that one CPU passes on in a window; the others are answered with cookies.
    pub syns_per_window: u32,
    /// Datagrams of unknown flows for which one CPU asks the previous owner in a window.
    pub questions_per_window: u32,
}

/// An address in the 16 bytes that the maps use; IPv4 as v4-mapped (RFC 4291, section 2.5.5.2).
#[must_use]
pub const fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The inverse of [`mapped`].
#[must_use]
pub const fn unmapped(address: [u8; 16]) -> IpAddr {
    Ipv6Addr::from_octets(address).to_canonical()
}

/// Bits of a prefix within the 128 of [`mapped`].
#[must_use]
pub const fn mapped_bits(address: IpAddr, bits: u8) -> u32 {
    match address {
        IpAddr::V4(_) => 96 + bits as u32,
        IpAddr::V6(_) => bits as u32,
    }
}

impl Vip4Key {
    /// The key of `address:port`.
    #[must_use]
    pub const fn new(address: Ipv4Addr, port: u16, protocol: u8) -> Self {
        Self { address: address.octets(), port: port.to_be_bytes(), protocol, zero: 0 }
    }

    /// The bucket where the search for this key begins.
    #[must_use]
    pub const fn bucket(&self) -> u32 {
        bucket_of(word64(self.address, self.port, [self.protocol, self.zero]).wrapping_mul(VIP_MIX))
    }
}

impl Vip6Key {
    /// The key of `[address]:port`.
    #[must_use]
    pub const fn new(address: Ipv6Addr, port: u16, protocol: u8) -> Self {
        Self { address: address.octets(), port: port.to_be_bytes(), protocol, zero: [0; 5] }
    }

    /// The bucket where the search for this key begins.
    #[must_use]
    pub const fn bucket(&self) -> u32 {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = self.address;
        let first = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
        let second = u64::from_ne_bytes([i, j, k, l, m, n, o, p]);
        let third = word64([self.port[0], self.port[1], self.protocol, 0], [0; 2], [0; 2]);
        bucket_of(
            first.wrapping_mul(VIP_MIX)
                ^ second.wrapping_mul(VIP_MIX_SECOND)
                ^ third.wrapping_mul(VIP_MIX_THIRD),
        )
    }
}

const fn word64([a, b, c, d]: [u8; 4], [e, f]: [u8; 2], [g, h]: [u8; 2]) -> u64 {
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

const fn bucket_of(product: u64) -> u32 {
    let [.., high, low] = (product >> VIP_BUCKET_SHIFT).to_be_bytes();
    u16::from_be_bytes([high, low]) as u32
}
