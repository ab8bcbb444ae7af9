//! What an operator may say about the L4 tier, as checked values. The text is read by control-config; shard-l4 puts
//! the values into the kernel.
//!
//! Invariants: control-config makes a [`Config`] only of consistent values: names and ids are unique, no two VIPs
//! share an address with port and protocol, at least one proxy is active, and everything fits the maps of l4-abi.
//! Secrets are not printed.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZero;
use std::path::PathBuf;
use std::time::Duration;

use crate::owner::{OwnerId, OwnerList};
use crate::quic_lb::Layout;
use crate::rollout::Windows;

/// A whole configuration of shard-l4.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The start of the digest of all files, in hexadecimal: equal on boxes with equal files.
    pub version: String,
    pub hash_secret: HashSecret,
    pub owners: OwnerList,
    /// Where each proxy's encapsulated packets go.
    pub addresses: BTreeMap<OwnerId, IpAddr>,
    /// In the order of names.
    pub vips: Vec<Vip>,
    /// Who may send encapsulated packets besides the proxies.
    pub trusted: Vec<Prefix>,
    pub drop_rules: Vec<DropRule>,
    pub windows: Windows,
    pub flows: Flows,
    pub host: Host,
    pub announce: Option<Announce>,
}

/// The secret of the flow hash: 16 random bytes, the same on every box of a fleet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashSecret(pub [u8; 16]);

impl fmt::Debug for HashSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashSecret(..)")
    }
}

/// Addresses that stand for the proxies together. All share one table, one set of counters and one set of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vip {
    pub name: String,
    pub addresses: Vec<IpAddr>,
    pub ports: Ports,
    pub protocols: Vec<Protocol>,
    pub encapsulation: Encapsulation,
    pub echo: Echo,
    pub fragments: Fragments,
    /// How QUIC connection ids name proxies, by codepoint.
    pub quic: Vec<Layout>,
}

/// The ports of a VIP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Those that no other VIP of the address has.
    Every,
    These(Vec<u16>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    Tcp,
    Udp,
}

impl Protocol {
    /// The IP protocol number.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => l4_abi::TCP,
            Self::Udp => l4_abi::UDP,
        }
    }

    /// The word in the config and in `shardctl l4`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// How packets travel to a proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encapsulation {
    /// IP in IP, 20 or 40 bytes more.
    #[default]
    Ipip,
    /// IP in UDP in IP, 28 or 48 bytes more: the flow is in the outer source port, so that receive queues spread.
    Gue,
}

/// ICMP echo requests to a VIP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Echo {
    /// The host's own stack answers, if it has the address.
    #[default]
    Pass,
    /// The box answers.
    Answer,
}

/// Fragments to a VIP. Only the first one of a packet has ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fragments {
    #[default]
    Drop,
    /// Flows are told apart by addresses alone, so that all fragments of a packet meet the same proxy.
    Forward,
}

/// An address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    pub address: IpAddr,
    pub bits: u8,
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Packets of a source to a VIP that are dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropRule {
    /// Name of the VIP; `None` = every VIP.
    pub vip: Option<String>,
    pub source: Prefix,
    /// What still passes on this box each second; 0 = nothing.
    pub packets_per_second: u32,
    /// When the rule ends, in seconds of Unix time; `None` = never.
    pub until_unix_s: Option<i64>,
}

/// The flow table and the budgets of one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flows {
    /// Flows in the table; beyond, the least recently used one is forgotten.
    pub entries_max: u32,
    /// A flow is forgotten after this time without a packet.
    pub idle: Duration,
    /// New flows that one CPU remembers each second; others are steered by their row alone.
    pub inserts_per_second: u32,
    /// Datagrams of unknown flows for which one CPU asks the row's previous owner each second.
    pub questions_per_second: u32,
    /// ICMP errors that one CPU makes each second.
    pub icmp_per_second: u32,
    /// SYNs of one VIP that one CPU passes on each second, before it answers them with cookies; `None` = no cookies.
    pub syn_cookies_above: Option<NonZero<u32>>,
}

/// What is particular to one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Where packets come in.
    pub interfaces: Vec<String>,
    pub attach: AttachMode,
    /// This machine's tunnel addresses; the proxy with one of them is this machine.
    pub address4: Option<Ipv4Addr>,
    pub address6: Option<Ipv6Addr>,
    /// The largest packet on the links to the proxies, outer headers included.
    pub mtu_bytes: u32,
    /// Where the kernel keeps program and maps while the daemon is away; on a BPF file system.
    pub pin_directory: PathBuf,
}

impl Host {
    /// Whether an address is one of this machine's tunnel addresses.
    #[must_use]
    pub fn owns(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => self.address4 == Some(v4),
            IpAddr::V6(v6) => self.address6 == Some(v6),
        }
    }
}

/// Where in the receive path the program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttachMode {
    /// In the driver, or else in the stack.
    #[default]
    Auto,
    /// In the driver, or not at all.
    Native,
    /// In the stack.
    Generic,
}

/// How a BGP speaker learns which VIPs this box serves: a file that it includes, and a command that tells it so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announce {
    /// The file of IPv4 VIPs.
    pub file4: Option<PathBuf>,
    /// The file of IPv6 VIPs.
    pub file6: Option<PathBuf>,
    /// One line a VIP; `{prefix}` stands for its address as a host route.
    pub line: String,
    /// Run after a file has changed: a program and its arguments, no shell.
    pub command: Vec<String>,
    pub on_stop: OnStop,
}

/// What happens to the announcement when the daemon ends. The program in the kernel goes on in either case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStop {
    /// The box stops attracting packets.
    #[default]
    Withdraw,
    /// The box goes on, for the time of an upgrade.
    Keep,
}

impl Config {
    /// The VIP with this name.
    #[must_use]
    pub fn vip(&self, name: &str) -> Option<&Vip> {
        self.vips.iter().find(|vip| vip.name == name)
    }
}
