//! What the XDP program and its user side share: map keys, values, bounds (`l4/xdp/abi.h` in Rust) and the flow
//! hash (`l4/xdp/hash.h` in Rust).
//!
//! Addresses and ports are in network order, all else in the host's. `tests/layout.rs` compiles the C header and
//! compares every size, offset and constant; the hash is compared by l4/tests on the running program.
//! Pure: no I/O. Imported by l4-steer (tables), l4-load (maps) and the daemon.

mod aes;
pub mod hash;
mod types;

pub use types::*;

/// Counts changes of the layout; pinned maps of another version are not reused.
pub const ABI_VERSION: u32 = 1;

/// VIPs, the unused index 0 included.
pub const VIPS_MAX: u32 = 512;
/// Owners (proxies that have or had flows), the unused index 0 included.
pub const OWNERS_MAX: u32 = 4096;
/// Rows of a VIP's table: a prime, more than 100 times the proxies of a fleet (Maglev, NSDI 2016, section 3.4).
pub const TABLE_ROWS: usize = 65_537;
/// Rows on one page of a table.
pub const PAGE_ROWS: usize = 1024;
/// Pages of a table.
pub const TABLE_PAGES: u32 = 65;
/// Drop rules.
pub const RULES_MAX: u32 = 16_384;
/// Prefixes that may send encapsulated packets.
pub const TRUSTED_MAX: u32 = 1024;
/// QUIC server ids.
pub const SERVER_IDS_MAX: u32 = 16_384;
/// QUIC-LB config rotation codepoints (three bits of the connection id).
pub const QUIC_CONFIGS: u32 = 8;

/// [`Vip::flags`]: encapsulate in GUE (UDP) instead of IPIP.
pub const VIP_GUE: u32 = 1;
/// [`Vip::flags`]: hash by addresses and protocol alone. Only such VIPs, with port 0, take fragments.
pub const VIP_HASH_ADDRESSES: u32 = 2;
/// [`Vip::flags`]: drop rules exist for this VIP.
pub const VIP_RULES: u32 = 4;
/// [`Vip::flags`]: UDP is routed by connection id.
pub const VIP_QUIC: u32 = 8;
/// [`Vip::flags`]: ICMP echo requests are answered by the program; stands on the address's ICMP entry, port 0.
pub const VIP_ECHO: u32 = 16;

/// [`Owner::flags`]: the index means something.
pub const OWNER_USED: u32 = 1;
/// [`Owner::flags`]: this host; packets are passed up.
pub const OWNER_LOCAL: u32 = 2;
/// [`Owner::flags`]: the tunnel's address is IPv6.
pub const OWNER_V6: u32 = 4;

/// Buckets of a family's VIPs.
pub const VIP_BUCKETS: u32 = 4096;
/// Shift that leaves a bucket's index of a 64-bit product.
pub const VIP_BUCKET_SHIFT: u32 = 52;
/// VIPs in one bucket.
pub const VIP_SLOTS: usize = 4;
/// Buckets that are searched for a key.
pub const VIP_PROBES: u32 = 4;
/// Multiplier of a VIP's key, and of the first eight bytes of an IPv6 one.
pub const VIP_MIX: u64 = 0x9e37_79b9_7f4a_7c15;
/// Multiplier of the second eight bytes.
pub const VIP_MIX_SECOND: u64 = 0xc2b2_ae3d_27d4_eb4f;
/// Multiplier of port and protocol.
pub const VIP_MIX_THIRD: u64 = 0x1656_67b1_9e37_79f9;

/// Flows in one set of the flow table.
pub const FLOW_WAYS: usize = 8;
/// Bits of an owner in a flow.
pub const FLOW_OWNER_MASK: u16 = 0xfff;
/// `seen` counts units of two to this many kernel ticks.
pub const FLOW_SEEN_TICKS_SHIFT: u32 = 8;

/// Keys of one lane of the flow hash.
pub const HASH_KEYS: usize = 12;

/// IPv4 identification of the outer header of a rescued packet.
pub const RESCUE_MARK4: u16 = 0x5ec0;
/// IPv6 flow label of the outer header of a rescued packet.
pub const RESCUE_MARK6: u32 = 0x5_ec0d;
/// IPv4 identification of a datagram that comes back from the owner that was asked.
pub const RETURN_MARK4: u16 = 0x5ec1;
/// The same in the IPv6 flow label.
pub const RETURN_MARK6: u32 = 0x5_ec1d;
/// UDP port of GUE (draft-ietf-intarea-gue, section 3).
pub const GUE_PORT: u16 = 6080;
