//! What the kernel says of a process: memory, descriptors, CPU time; and of TCP connections.

use std::net::SocketAddrV4;
use std::time::Duration;

use rustix::param::{clock_ticks_per_second, page_size};

/// A process at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub resident_bytes: u64,
    pub descriptors: usize,
    /// User and system time so far.
    pub cpu: Duration,
}

/// Looks at a process; None when it is gone.
#[must_use]
pub fn usage(pid: u32) -> Option<Usage> {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second word is the name in brackets, which may hold blanks.
    let (_, rest) = stat.rsplit_once(") ")?;
    let ticks: Vec<u64> =
        rest.split_whitespace().skip(11).take(2).filter_map(|word| word.parse().ok()).collect();
    let ticks: u64 = ticks.iter().sum();
    let cpu_ms = ticks.saturating_mul(1000) / clock_ticks_per_second().max(1);
    Some(Usage {
        resident_bytes: pages * u64::try_from(page_size()).ok()?,
        descriptors: std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count(),
        cpu: Duration::from_millis(cpu_ms),
    })
}

/// Connections to an address whose near end has heard of no end or reset.
///
/// # Panics
/// Without procfs.
#[must_use]
pub fn established_to(peer: SocketAddrV4) -> usize {
    const ESTABLISHED: &str = "01";
    let peer = format!("{:08X}:{:04X}", u32::from_ne_bytes(peer.ip().octets()), peer.port());
    let table = std::fs::read_to_string("/proc/net/tcp").expect("procfs");
    let ends = table.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(2);
        Some((words.next()?, words.next()?))
    });
    ends.filter(|end| *end == (peer.as_str(), ESTABLISHED)).count()
}

/// Whether a process has a handler for a signal: until it has, most signals end it.
#[must_use]
pub fn minds(pid: u32, signal: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    u32::try_from(signal - 1).ok().and_then(|bit| mask.checked_shr(bit)).is_some_and(|mask| mask & 1 == 1)
}

/// The most resident memory that a process has had, in bytes.
#[must_use]
pub fn peak_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Memory that only this process holds, in bytes (`smaps_rollup`).
#[must_use]
pub fn private_bytes(pid: u32) -> Option<u64> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let kib = |name: &str| {
        let line = rollup.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    Some((kib("Private_Clean:")? + kib("Private_Dirty:")?) * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen() {
        let own = usage(std::process::id()).expect("it runs");
        assert!(own.resident_bytes > 1 << 20 && own.descriptors > 2, "{own:?}");
        assert!(peak_bytes(std::process::id()).expect("it runs") >= own.resident_bytes / 2);
        assert!(private_bytes(std::process::id()).expect("it runs") > 1 << 16);
        assert_eq!(usage(u32::MAX), None);
    }
}
