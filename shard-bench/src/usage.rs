//! CPU and memory of the target's process tree, read from /proc.

use std::collections::HashMap;
use std::fs;

use crate::number::{float, whole};

/// What a process tree has used so far, and holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// User and system time of all threads, those that have ended included.
    pub(crate) cpu_ns: u64,
    /// Resident memory; pages that processes share count for each.
    pub(crate) resident_bytes: u64,
    pub(crate) processes: u64,
}

/// One process as /proc/PID/stat tells it (proc(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    parent: u32,
    /// User and system ticks, children that were waited for included.
    ticks: u64,
    resident_pages: u64,
}

/// Reads a stat line. The command may hold spaces and brackets; what follows its last bracket does not.
fn parse(line: &str) -> Option<Stat> {
    let (_, rest) = line.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // Numbers are proc(5)'s minus 3: the state is field 3.
    let number = |index: usize| fields.get(index - 3)?.parse::<u64>().ok();
    let ticks = number(14)? + number(15)? + number(16)? + number(17)?;
    Some(Stat { parent: u32::try_from(number(4)?).ok()?, ticks, resident_pages: number(24)? })
}

/// The tree below `root`, itself included.
///
/// # Errors
/// When there is no such process.
pub(crate) fn tree(root: u32) -> Result<Usage, String> {
    let read = |pid: u32| fs::read_to_string(format!("/proc/{pid}/stat")).ok().and_then(|line| parse(&line));
    let first = read(root).ok_or_else(|| format!("process {root} is not there"))?;
    let mut all: HashMap<u32, Stat> = HashMap::from([(root, first)]);
    let entries = fs::read_dir("/proc").map_err(|error| format!("/proc: {error}"))?;
    for pid in entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        // A process may end between the listing and the look.
        if let Some(stat) = read(pid) {
            all.insert(pid, stat);
        }
    }
    let is_below = |mut pid: u32| {
        // Parents are a forest; the bound holds against pids that are used again meanwhile.
        for _ in 0..64 {
            if pid == root {
                return true;
            }
            let Some(stat) = all.get(&pid) else { return false };
            pid = stat.parent;
        }
        false
    };
    let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    let page_bytes = crate::number::count(rustix::param::page_size());
    let mut usage = Usage::default();
    for (_, stat) in all.iter().filter(|(pid, _)| is_below(**pid)) {
        usage.cpu_ns += stat.ticks * tick_ns;
        usage.resident_bytes += stat.resident_pages * page_bytes;
        usage.processes += 1;
    }
    // Ticks are 10 ms; the scheduler's own account of live threads is exact.
    usage.cpu_ns = usage.cpu_ns.max(exact(root, &all, &is_below).unwrap_or(0));
    Ok(usage)
}

/// Nanoseconds on a CPU by /proc/PID/task/TID/schedstat; None where the kernel keeps none.
fn exact(root: u32, all: &HashMap<u32, Stat>, is_below: &dyn Fn(u32) -> bool) -> Option<u64> {
    let mut sum = 0u64;
    let mut seen = false;
    for pid in all.keys().copied().filter(|pid| *pid == root || is_below(*pid)) {
        for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
            if let Ok(text) = fs::read_to_string(task.path().join("schedstat")) {
                sum += text.split_ascii_whitespace().next()?.parse::<u64>().ok()?;
                seen = true;
            }
        }
    }
    (seen && sum > 0).then_some(sum)
}

/// CPU microseconds for each of `requests`.
pub(crate) fn cpu_us_per_request(cpu_ns: u64, requests: u64) -> f64 {
    if requests == 0 { 0.0 } else { float(whole(float(cpu_ns) / float(requests))) / 1000.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_with_a_wicked_name() {
        let line =
            "42 (a) b (c) S 7 42 42 0 -1 4194560 1 2 3 4 100 20 3 4 20 0 5 0 1 1000 250 18446744073709551615";
        assert_eq!(parse(line), Some(Stat { parent: 7, ticks: 127, resident_pages: 250 }));
        assert_eq!(parse("42 (short) S 7"), None);
    }

    #[test]
    fn this_process_uses_cpu_and_memory() {
        let before = tree(std::process::id()).expect("alive");
        let mut sum = 0u64;
        for n in 0..30_000_000u64 {
            sum = std::hint::black_box(sum ^ n.wrapping_mul(31));
        }
        let after = tree(std::process::id()).expect("alive");
        assert!(after.cpu_ns > before.cpu_ns, "{before:?} {after:?}");
        assert!(after.resident_bytes > 1 << 20 && after.processes >= 1);
        assert!(tree(u32::MAX / 2).expect_err("no such process").contains("not there"));
    }
}
