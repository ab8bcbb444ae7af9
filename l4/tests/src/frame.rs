//! Frames, byte by byte, with correct checksums unless a test spoils them. Shares no code with the product.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// MAC addresses of a frame on its way in: destination, source.
const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
/// The tag that [`Packet::vlan`] adds.
pub const VLAN: [u8; 4] = [0x81, 0x00, 0x00, 0x64];

pub const SYN: u8 = 0x02;
pub const ACK: u8 = 0x10;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
const GUE_PORT: u16 = 6080;

/// A packet to be made.
#[derive(Clone, Debug)]
pub struct Packet {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub protocol: u8,
    pub tcp_flags: u8,
    pub payload: Vec<u8>,
    pub tos: u8,
    pub ttl: u8,
    /// IPv4 flags and offset, as they stand in the header.
    pub fragment: u16,
    /// IPv4 options, a multiple of four bytes.
    pub options: Vec<u8>,
    pub vlan: bool,
}

impl Packet {
    #[must_use]
    pub fn tcp(source: &str, destination: &str, tcp_flags: u8) -> Self {
        let address = |text: &str| text.parse().expect("an address with a port");
        Self {
            source: address(source),
            destination: address(destination),
            protocol: TCP,
            tcp_flags,
            payload: Vec::new(),
            tos: 0x28,
            ttl: 57,
            fragment: 0x4000,
            options: Vec::new(),
            vlan: false,
        }
    }

    #[must_use]
    pub fn udp(source: &str, destination: &str, payload: &[u8]) -> Self {
        Self { protocol: UDP, payload: payload.to_vec(), ..Self::tcp(source, destination, 0) }
    }

    #[must_use]
    pub fn payload(mut self, bytes: usize) -> Self {
        self.payload = (0..bytes).map(|index| u8::try_from(index % 251).expect("below 251")).collect();
        self
    }

    #[must_use]
    pub const fn vlan(mut self) -> Self {
        self.vlan = true;
        self
    }

    /// The IP packet.
    #[must_use]
    pub fn ip(&self) -> Vec<u8> {
        let mut l4 = [self.source.port().to_be_bytes(), self.destination.port().to_be_bytes()].concat();
        let check_at = if self.protocol == TCP {
            l4.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, self.tcp_flags, 0xff, 0xff, 0, 0, 0, 0]);
            16
        } else {
            l4.extend(u16::try_from(8 + self.payload.len()).expect("short").to_be_bytes());
            l4.extend([0, 0]);
            6
        };
        l4.extend(&self.payload);
        let mut sum = pseudo(self.source.ip(), self.destination.ip(), self.protocol, l4.len());
        sum.extend(&l4);
        let check = checksum(&sum);
        l4[check_at..check_at + 2].copy_from_slice(&check.to_be_bytes());
        match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let header = Ip4 {
                    tos: self.tos,
                    ttl: self.ttl,
                    fragment: self.fragment,
                    options: &self.options,
                    id: 7,
                };
                header.around(source, destination, self.protocol, &l4)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                ip6(source, destination, self.protocol, self.tos, 0x1_2345, self.ttl, &l4)
            }
            _ => unreachable!("both addresses are of one family"),
        }
    }

    /// The frame as it comes in.
    #[must_use]
    pub fn frame(&self) -> Vec<u8> {
        incoming(&self.ip(), self.vlan)
    }
}

/// An IPv4 header's variable parts.
#[derive(Clone, Copy, Debug)]
pub struct Ip4<'a> {
    pub tos: u8,
    pub ttl: u8,
    pub fragment: u16,
    pub options: &'a [u8],
    pub id: u16,
}

impl Ip4<'_> {
    /// The header around a payload.
    #[must_use]
    pub fn around(&self, source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let header_bytes = 20 + self.options.len();
        let total = u16::try_from(header_bytes + payload.len()).expect("a packet fits");
        let words = u8::try_from(header_bytes / 4).expect("at most 15");
        let mut ip = vec![0x40 | words, self.tos];
        ip.extend(total.to_be_bytes());
        ip.extend(self.id.to_be_bytes());
        ip.extend(self.fragment.to_be_bytes());
        ip.extend([self.ttl, protocol, 0, 0]);
        ip.extend(source.octets());
        ip.extend(destination.octets());
        ip.extend(self.options);
        let check = checksum(&ip);
        ip[10..12].copy_from_slice(&check.to_be_bytes());
        ip.extend(payload);
        ip
    }
}

/// An IPv6 header around a payload.
#[must_use]
pub fn ip6(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    next: u8,
    tos: u8,
    label: u32,
    hops: u8,
    payload: &[u8],
) -> Vec<u8> {
    let first = 0x6000_0000 | u32::from(tos) << 20 | label;
    let mut ip = first.to_be_bytes().to_vec();
    ip.extend(u16::try_from(payload.len()).expect("a packet fits").to_be_bytes());
    ip.extend([next, hops]);
    ip.extend(source.octets());
    ip.extend(destination.octets());
    ip.extend(payload);
    ip
}

/// Whether the packet of a frame is IPv6, for a tunnel the one inside.
#[must_use]
pub fn is_v6(frame: &[u8]) -> bool {
    let ip = &frame[if frame[12..14] == VLAN[..2] { 18 } else { 14 }.min(frame.len())..];
    let v6 = ip.first().is_some_and(|first| first >> 4 == 6);
    let (protocol, header) = if v6 { (ip.get(6), 40) } else { (ip.get(9), 20) };
    let inner = match protocol {
        Some(4 | 41) => ip.get(header),
        Some(17) if ip.get(header + 2..header + 4) == Some(&GUE_PORT.to_be_bytes()) => ip.get(header + 8),
        _ => None,
    };
    inner.map_or(v6, |first| first >> 4 == 6)
}

/// The Ethernet frame of an IP packet on its way in.
#[must_use]
pub fn incoming(ip: &[u8], vlan: bool) -> Vec<u8> {
    framed(&MACS, ip, vlan)
}

/// The frame of an IP packet that the program sends back to where it came from.
#[must_use]
pub fn returned(ip: &[u8], vlan: bool) -> Vec<u8> {
    let mut macs = MACS;
    macs.rotate_left(6);
    framed(&macs, ip, vlan)
}

fn framed(macs: &[u8; 12], ip: &[u8], vlan: bool) -> Vec<u8> {
    let mut frame = macs.to_vec();
    if vlan {
        frame.extend(VLAN);
    }
    frame.extend(if ip[0] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] });
    frame.extend(ip);
    frame
}

/// The outer header that an L4 box puts around `inner`: IP in IP.
#[must_use]
pub fn outer(source: IpAddr, destination: IpAddr, tos: u8, mark: Mark, inner: &[u8]) -> Vec<u8> {
    let protocol = if inner[0] >> 4 == 4 { 4 } else { 41 };
    outer_of(source, destination, protocol, tos, mark, inner)
}

/// What the outer header says beside the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// First way; IPv6 carries this flow label.
    Plain { label: u32 },
    /// Sent on by a proxy.
    Rescued,
    /// Sent back by the proxy that was asked.
    Returned,
}

/// The outer header around any payload.
#[must_use]
pub fn outer_of(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    tos: u8,
    mark: Mark,
    payload: &[u8],
) -> Vec<u8> {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let id = match mark {
                Mark::Plain { .. } => 0,
                Mark::Rescued => 0x5ec0,
                Mark::Returned => 0x5ec1,
            };
            let header = Ip4 { tos, ttl: 64, fragment: 0x4000, options: &[], id };
            header.around(source, destination, protocol, payload)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let label = match mark {
                Mark::Plain { label } => label,
                Mark::Rescued => 0x5_ec0d,
                Mark::Returned => 0x5_ec1d,
            };
            ip6(source, destination, protocol, tos, label, 64, payload)
        }
        _ => unreachable!("both addresses are of one family"),
    }
}

/// UDP of GUE variant 1 around an inner packet.
#[must_use]
pub fn gue(source_port: u16, inner: &[u8]) -> Vec<u8> {
    let mut udp = source_port.to_be_bytes().to_vec();
    udp.extend(GUE_PORT.to_be_bytes());
    udp.extend(u16::try_from(8 + inner.len()).expect("a packet fits").to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(inner);
    udp
}

/// An ICMP or ICMPv6 packet with a correct checksum. `rest` is the second word of the header.
#[must_use]
pub fn icmp(source: IpAddr, destination: IpAddr, kind: u8, code: u8, rest: [u8; 4], body: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, code, 0, 0];
    message.extend(rest);
    message.extend(body);
    let mut sum = if source.is_ipv6() { pseudo(source, destination, 58, message.len()) } else { Vec::new() };
    sum.extend(&message);
    let check = checksum(&sum);
    message[2..4].copy_from_slice(&check.to_be_bytes());
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = Ip4 { tos: 0, ttl: 64, fragment: 0x4000, options: &[], id: 0 };
            header.around(source, destination, 1, &message)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => ip6(source, destination, 58, 0, 0, 64, &message),
        _ => unreachable!("both addresses are of one family"),
    }
}

/// The pseudo header of a checksum (RFC 793, RFC 8200 section 8.1).
fn pseudo(source: IpAddr, destination: IpAddr, protocol: u8, length: usize) -> Vec<u8> {
    let octets = |address| match address {
        IpAddr::V4(address) => Ipv4Addr::octets(&address).to_vec(),
        IpAddr::V6(address) => Ipv6Addr::octets(&address).to_vec(),
    };
    let mut bytes = [octets(source), octets(destination)].concat();
    bytes.extend(u32::try_from(length).expect("a packet fits").to_be_bytes());
    bytes.extend([0, 0, 0, protocol]);
    bytes
}

/// The Internet checksum (RFC 1071); zero over bytes that contain a right one.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u16 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let mut sum: u64 = pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum();
    sum += rest.first().map_or(0, |last| u64::from(*last) << 8);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded")
}
