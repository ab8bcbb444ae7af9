//! PROXY protocol version 1 and 2, both ways (the HAProxy project's `proxy-protocol.txt`, cited as §).
//!
//! `parse` is given all bytes received so far and answers "more", "this header, this long" or an error. It
//! never guesses: on a listener that speaks the protocol a connection without a header is an error (§2, no
//! auto-detection), and so is everything malformed. Whether the peer may send a header at all is decided by
//! the connection (trusted CIDRs), and so is the time limit.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Longest version 1 line with its CR LF (§2.1).
pub const V1_BYTES_MAX: usize = 107;
/// Longest version 2 header that is taken, TLVs included. The format allows 65,551; certificates in TLVs
/// need about 5,000.
pub const V2_BYTES_MAX: usize = 16 * 1024;

const V1_START: &[u8] = b"PROXY ";
/// §2.2.
const V2_SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
const V2_FIXED_BYTES: usize = 16;
/// PP2_TYPE_CRC32C (§2.2.3).
const TLV_CRC32C: u8 = 0x03;

/// What a header says about the connection that carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The socket's own addresses count: a health check (LOCAL), or a family that is no IP (UNKNOWN, UNSPEC,
    /// UNIX).
    Local,
    /// IPv4-mapped IPv6 addresses are given as IPv4. Ports may be 0.
    Proxied { source: SocketAddr, destination: SocketAddr },
}

/// Why the bytes are no header; the connection is closed without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyError {
    /// Neither signature: the peer does not speak the protocol.
    Missing,
    /// No line end within 107 bytes, or over `V2_BYTES_MAX`.
    TooLong,
    /// Version 1: not as in §2.1.
    BadLine,
    /// Version 1: not an address of the announced family, or a port that is not 0 to 65535.
    BadAddress,
    /// Version 2: another version, command, family or transport than §2.2 has.
    BadKind,
    /// Version 2: the length does not hold the addresses of the announced family.
    TooShort,
    /// Version 2: a TLV runs over the end.
    BadTlv,
    /// Version 2: CRC32c does not match (§2.2.3).
    BadChecksum,
}

impl ProxyError {
    /// A short English reason for logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "no PROXY protocol header",
            Self::TooLong => "PROXY protocol header is too long",
            Self::BadLine => "PROXY protocol v1 line is malformed",
            Self::BadAddress => "PROXY protocol v1 address or port is malformed",
            Self::BadKind => "PROXY protocol v2 version, command or family is unknown",
            Self::TooShort => "PROXY protocol v2 length is shorter than its addresses",
            Self::BadTlv => "PROXY protocol v2 TLV runs over the end",
            Self::BadChecksum => "PROXY protocol v2 checksum does not match",
        }
    }
}

/// Reads a header at the start of `buf`, the bytes received so far. `Some` holds the header's length in
/// bytes, at most `V2_BYTES_MAX`; what follows is the client's. None: more bytes are needed.
///
/// # Errors
/// `ProxyError`: for version 1 when the line has ended or grown too long, for version 2 as soon as it shows.
pub fn parse(buf: &[u8]) -> Result<Option<(usize, Header)>, ProxyError> {
    let agrees_with = |start: &[u8]| buf.iter().zip(start).all(|(a, b)| a == b);
    if agrees_with(V2_SIGNATURE) {
        if buf.len() < V2_FIXED_BYTES { Ok(None) } else { parse_v2(buf) }
    } else if agrees_with(V1_START) {
        parse_v1(buf)
    } else {
        Err(ProxyError::Missing)
    }
}

fn parse_v1(buf: &[u8]) -> Result<Option<(usize, Header)>, ProxyError> {
    let window = buf.get(..V1_BYTES_MAX).unwrap_or(buf);
    let Some(end) = memchr::memchr(b'\n', window) else {
        // A CR that is not last cannot be followed by its LF any more.
        let is_broken = memchr::memchr(b'\r', window).is_some_and(|at| at + 1 < window.len());
        if is_broken {
            return Err(ProxyError::BadLine);
        }
        return if buf.len() >= V1_BYTES_MAX { Err(ProxyError::TooLong) } else { Ok(None) };
    };
    let line = window.get(..end).and_then(|line| line.strip_suffix(b"\r")).ok_or(ProxyError::BadLine)?;
    let rest = line.strip_prefix(V1_START).ok_or(ProxyError::BadLine)?;
    if memchr::memchr(b'\r', rest).is_some() {
        return Err(ProxyError::BadLine);
    }
    // §2.1: what stands behind UNKNOWN is ignored.
    if rest == b"UNKNOWN" || rest.starts_with(b"UNKNOWN ") {
        return Ok(Some((end + 1, Header::Local)));
    }
    let text = std::str::from_utf8(rest).or(Err(ProxyError::BadLine))?;
    let mut words = text.split(' ');
    let fields = [(); 6].map(|()| words.next());
    let [Some(family), Some(source), Some(destination), Some(source_port), Some(destination_port), None] =
        fields
    else {
        return Err(ProxyError::BadLine);
    };
    let (source_port, destination_port) = (v1_port(source_port)?, v1_port(destination_port)?);
    let (source, destination) = match family {
        "TCP4" => (v4(source)?, v4(destination)?),
        "TCP6" => (v6(source)?, v6(destination)?),
        _ => return Err(ProxyError::BadLine),
    };
    let header = proxied(source, source_port, destination, destination_port);
    Ok(Some((end + 1, header)))
}

/// `Ipv4Addr` refuses leading zeros, as §2.1 asks.
fn v4(text: &str) -> Result<IpAddr, ProxyError> {
    text.parse::<Ipv4Addr>().map(IpAddr::V4).or(Err(ProxyError::BadAddress))
}

fn v6(text: &str) -> Result<IpAddr, ProxyError> {
    text.parse::<Ipv6Addr>().map(IpAddr::V6).or(Err(ProxyError::BadAddress))
}

fn v1_port(text: &str) -> Result<u16, ProxyError> {
    let is_plain = text == "0" || (text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0'));
    if !is_plain {
        return Err(ProxyError::BadAddress);
    }
    text.parse().or(Err(ProxyError::BadAddress))
}

fn proxied(source: IpAddr, source_port: u16, destination: IpAddr, destination_port: u16) -> Header {
    Header::Proxied {
        source: SocketAddr::new(source.to_canonical(), source_port),
        destination: SocketAddr::new(destination.to_canonical(), destination_port),
    }
}

/// `buf` holds the fixed part at least, and its signature is right.
fn parse_v2(buf: &[u8]) -> Result<Option<(usize, Header)>, ProxyError> {
    let [version_command, family, length_high, length_low] = array_at(buf, V2_SIGNATURE.len())?;
    if version_command >> 4 != 2 || family >> 4 > 3 || family & 0x0f > 2 {
        return Err(ProxyError::BadKind);
    }
    let is_local = match version_command & 0x0f {
        0 => true,
        1 => false,
        _ => return Err(ProxyError::BadKind),
    };
    let total = V2_FIXED_BYTES + usize::from(u16::from_be_bytes([length_high, length_low]));
    if total > V2_BYTES_MAX {
        return Err(ProxyError::TooLong);
    }
    // §2.2: LOCAL: whatever the family, the block is skipped and not looked at.
    let address_bytes = match family >> 4 {
        _ if is_local => 0,
        1 => 12,
        2 => 36,
        3 => 216,
        _ => 0,
    };
    if total < V2_FIXED_BYTES + address_bytes {
        return Err(ProxyError::TooShort);
    }
    let Some(header) = buf.get(..total) else {
        return Ok(None);
    };
    if is_local {
        return Ok(Some((total, Header::Local)));
    }
    check_tlvs(header, V2_FIXED_BYTES + address_bytes)?;
    Ok(Some((total, v2_addresses(header, family)?)))
}

/// Family and transport as in §2.2; UDP's addresses mean the same. A transport that is not said makes the
/// whole pair unspecified.
fn v2_addresses(header: &[u8], family: u8) -> Result<Header, ProxyError> {
    let port = |at: usize| array_at(header, at).map(u16::from_be_bytes);
    match family {
        0x11 | 0x12 => {
            let address = |at: usize| array_at::<4>(header, at).map(|a| IpAddr::V4(a.into()));
            Ok(proxied(address(16)?, port(24)?, address(20)?, port(26)?))
        }
        0x21 | 0x22 => {
            let address = |at: usize| array_at::<16>(header, at).map(|a| IpAddr::V6(a.into()));
            Ok(proxied(address(16)?, port(48)?, address(32)?, port(50)?))
        }
        _ => Ok(Header::Local),
    }
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], ProxyError> {
    let array = bytes.get(at..).and_then(|rest| rest.first_chunk::<N>());
    array.copied().ok_or(ProxyError::TooShort)
}

/// Walks the TLVs (§2.2.1) from `at` to the end of `header`. Types that are not known are skipped; a CRC32c
/// has to match.
fn check_tlvs(header: &[u8], mut at: usize) -> Result<(), ProxyError> {
    let mut has_checksum = false;
    while at < header.len() {
        let [kind, high, low] = array_at(header, at).or(Err(ProxyError::BadTlv))?;
        let value_at = at + 3;
        let next = value_at + usize::from(u16::from_be_bytes([high, low]));
        let value = header.get(value_at..next).ok_or(ProxyError::BadTlv)?;
        if kind == TLV_CRC32C {
            let sent = <[u8; 4]>::try_from(value).or(Err(ProxyError::BadTlv))?;
            if has_checksum || u32::from_be_bytes(sent) != crc32c_without(header, value_at) {
                return Err(ProxyError::BadChecksum);
            }
            has_checksum = true;
        }
        at = next;
    }
    Ok(())
}

/// CRC32c of `header` with the four bytes at `hole` taken as zero (§2.2.3).
fn crc32c_without(header: &[u8], hole: usize) -> u32 {
    let (before, rest) = header.split_at_checked(hole).unwrap_or((header, &[]));
    let crc = crc32c(u32::MAX, before);
    let crc = crc32c(crc, &[0; 4]);
    !crc32c(crc, rest.get(4..).unwrap_or(&[]))
}

/// Castagnoli polynomial, reflected (RFC 9260 appendix A); `state` starts as all ones and is inverted last.
fn crc32c(state: u32, bytes: &[u8]) -> u32 {
    const TABLE: [u32; 16] = {
        let mut table = [0u32; 16];
        let mut nibble = 0;
        while nibble < 16 {
            let mut crc = nibble;
            let mut bit = 0;
            while bit < 4 {
                crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
                bit += 1;
            }
            table[nibble as usize] = crc;
            nibble += 1;
        }
        table
    };
    let step = |crc: u32, nibble: u32| crc >> 4 ^ TABLE[((crc ^ nibble) & 0x0f) as usize];
    bytes.iter().fold(state, |crc, &byte| step(step(crc, u32::from(byte)), u32::from(byte) >> 4))
}

/// Appends a version 1 line. `Local` is written as UNKNOWN; if only one address is IPv4, both are written as
/// IPv6.
pub fn write_v1(header: &Header, out: &mut Vec<u8>) {
    let line = match header {
        Header::Local => "PROXY UNKNOWN\r\n".to_owned(),
        Header::Proxied { source, destination } => {
            let (from, to) = (source.port(), destination.port());
            match same_family(source.ip(), destination.ip()) {
                Pair::V4(source, destination) => {
                    format!("PROXY TCP4 {source} {destination} {from} {to}\r\n")
                }
                Pair::V6(source, destination) => {
                    format!("PROXY TCP6 {source} {destination} {from} {to}\r\n")
                }
            }
        }
    };
    out.extend_from_slice(line.as_bytes());
}

/// Appends a version 2 header without TLVs. `Local` is what our own health checks send, so that the peer does
/// not count them as clients (§2.2).
pub fn write_v2(header: &Header, out: &mut Vec<u8>) {
    out.extend_from_slice(V2_SIGNATURE);
    match header {
        Header::Local => out.extend_from_slice(&[0x20, 0x00, 0, 0]),
        Header::Proxied { source, destination } => {
            match same_family(source.ip(), destination.ip()) {
                Pair::V4(source, destination) => {
                    out.extend_from_slice(&[0x21, 0x11, 0, 12]);
                    out.extend_from_slice(&source.octets());
                    out.extend_from_slice(&destination.octets());
                }
                Pair::V6(source, destination) => {
                    out.extend_from_slice(&[0x21, 0x21, 0, 36]);
                    out.extend_from_slice(&source.octets());
                    out.extend_from_slice(&destination.octets());
                }
            }
            out.extend_from_slice(&source.port().to_be_bytes());
            out.extend_from_slice(&destination.port().to_be_bytes());
        }
    }
}

enum Pair {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

fn same_family(source: IpAddr, destination: IpAddr) -> Pair {
    let as_v6 = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Pair::V4(source, destination),
        (source, destination) => Pair::V6(as_v6(source), as_v6(destination)),
    }
}

#[cfg(test)]
mod tests;
