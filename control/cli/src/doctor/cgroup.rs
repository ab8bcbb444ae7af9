//! What the control groups above this process take away: CPU time, CPUs, memory.
//!
//! Both hierarchies are read: version 2 (`0::PATH`) from the process's group up to the root, because a parent's
//! limit binds as much as one's own, and version 1 at the process's group of each controller.

use super::Target;
use super::cpulist;
use super::finding::{Check, Finding, Severity, Verdict};
use super::host::{Host, Unread};

const MOUNT: &str = "/sys/fs/cgroup";
/// Groups above one another; a deeper tree is a loop or a joke.
const DEPTH_MAX: usize = 32;
/// Below this the buffers of a few thousand connections do not fit.
const MEMORY_BYTES_MIN: u64 = 256 * 1024 * 1024;

/// All checks of this family.
pub(super) fn check(host: &Host, target: &Target) -> Vec<Finding> {
    vec![cpu_quota(host, target), throttled(host), cpuset(host, target), memory_limit(host)]
}

fn cpu_quota(host: &Host, target: &Target) -> Finding {
    let check = Check::new(
        "cgroup.cpu_max",
        "cgroup cpu.max",
        &format!("none, or >= {} CPUs", target.reactors),
        "When the quota is used up every reactor stops until the period ends: up to 100 ms on each open request.",
    );
    match lowest(host, "cpu", |host, dir, version| match version {
        Version::Two => parse_quota(&host.read(&format!("{dir}/cpu.max"))?),
        Version::One => {
            let quota = host.read(&format!("{dir}/cpu.cfs_quota_us"))?;
            if quota == "-1" {
                return Ok(None);
            }
            parse_quota(&format!("{quota} {}", host.read(&format!("{dir}/cpu.cfs_period_us"))?))
        }
    }) {
        Ok(None) => check.ok("no quota"),
        Ok(Some(millis)) => {
            let enough = millis >= u64::try_from(target.reactors).unwrap_or(u64::MAX).saturating_mul(1000);
            let found = format!("{}.{:03} CPUs", millis / 1000, millis % 1000);
            check.judge(
                Verdict::unless(enough, Severity::Fail),
                found,
                "systemctl set-property UNIT CPUQuota=",
            )
        }
        Err(why) => check.unknown(&why),
    }
}

/// Thousandths of a CPU from `QUOTA PERIOD` in microseconds; None for `max`.
fn parse_quota(text: &str) -> Result<Option<u64>, Unread> {
    let mut words = text.split_whitespace();
    let (quota, period) = (words.next().unwrap_or_default(), words.next().unwrap_or("100000"));
    if quota == "max" {
        return Ok(None);
    }
    match (quota.parse::<u64>(), period.parse::<u64>()) {
        (Ok(quota), Ok(period)) if period > 0 => Ok(Some(quota.saturating_mul(1000) / period)),
        _ => Err(Unread::Failed(format!("`{text}` is no CPU quota"))),
    }
}

fn throttled(host: &Host) -> Finding {
    let check = Check::new(
        "cgroup.throttled",
        "cgroup cpu.stat nr_throttled",
        "0",
        "Periods in which this group ran into its quota: each of them was a stall of every reactor.",
    );
    let count = worst(host, "cpu", |host, dir, _| {
        let text = host.read(&format!("{dir}/cpu.stat"))?;
        let line = text.lines().find_map(|l| l.strip_prefix("nr_throttled "));
        let count = line.and_then(|n| n.trim().parse::<u64>().ok());
        Ok(count)
    });
    match count {
        Ok(None) => check.not_applicable("no group of this process counts it"),
        Ok(Some(count)) => {
            let verdict = Verdict::unless(count == 0, Severity::Warn);
            check.judge(verdict, count.to_string(), "systemctl set-property UNIT CPUQuota=")
        }
        Err(why) => check.unknown(&why),
    }
}

fn cpuset(host: &Host, target: &Target) -> Finding {
    let check = Check::new(
        "cgroup.cpuset",
        "cgroup cpuset",
        &format!(">= {} CPUs", target.reactors),
        "The CPUs that the group may use; reactors cannot be pinned to others.",
    );
    let count = lowest(host, "cpuset", |host, dir, version| {
        let file = match version {
            Version::Two => "cpuset.cpus.effective",
            Version::One => "cpuset.effective_cpus",
        };
        let cpus = cpulist::parse(&host.read(&format!("{dir}/{file}"))?)?;
        Ok(Some(u64::try_from(cpus.len()).unwrap_or(u64::MAX)))
    });
    match count {
        Ok(None) => check.not_applicable("no cpuset controller here; see cpu.allowed"),
        Ok(Some(count)) => {
            let enough = count >= u64::try_from(target.reactors).unwrap_or(u64::MAX);
            let fix = "systemctl set-property UNIT AllowedCPUs=";
            check.judge(Verdict::unless(enough, Severity::Fail), format!("{count} CPUs"), fix)
        }
        Err(why) => check.unknown(&why),
    }
}

fn memory_limit(host: &Host) -> Finding {
    let check = Check::new(
        "cgroup.memory_max",
        "cgroup memory.max",
        "none, or >= 256 MiB",
        "Socket buffers count too; at the limit the kernel kills the process in the middle of its requests.",
    );
    let limit = lowest(host, "memory", |host, dir, version| {
        let file = match version {
            Version::Two => "memory.max",
            Version::One => "memory.limit_in_bytes",
        };
        let text = host.read(&format!("{dir}/{file}"))?;
        if text == "max" {
            return Ok(None);
        }
        let bytes = text.parse::<u64>().map_err(|e| Unread::Failed(format!("`{text}` is no size: {e}")))?;
        // Version 1 prints the largest page-aligned i64 for "no limit".
        Ok((bytes < 1 << 60).then_some(bytes))
    });
    match limit {
        Ok(None) => check.ok("no limit"),
        Ok(Some(bytes)) => {
            let verdict = Verdict::unless(bytes >= MEMORY_BYTES_MIN, Severity::Warn);
            check.judge(
                verdict,
                format!("{} MiB", bytes / (1024 * 1024)),
                "systemctl set-property UNIT MemoryMax=",
            )
        }
        Err(why) => check.unknown(&why),
    }
}

#[derive(Clone, Copy, Debug)]
enum Version {
    One,
    Two,
}

type Probe = fn(&Host, &str, Version) -> Result<Option<u64>, Unread>;

fn lowest(host: &Host, controller: &str, probe: Probe) -> Result<Option<u64>, Unread> {
    Ok(values(host, controller, probe)?.into_iter().min())
}

fn worst(host: &Host, controller: &str, probe: Probe) -> Result<Option<u64>, Unread> {
    Ok(values(host, controller, probe)?.into_iter().max())
}

/// What `probe` finds in every group that binds this process; groups without the file are passed over, because
/// the root group has none and a controller may be off.
fn values(host: &Host, controller: &str, probe: Probe) -> Result<Vec<u64>, Unread> {
    let mut values = Vec::new();
    for line in host.read("/proc/self/cgroup")?.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(Unread::Failed(format!("/proc/self/cgroup holds `{line}`")));
        };
        let (base, version) = if controllers.is_empty() {
            // A hybrid host mounts version 2 one level below.
            let unified = format!("{MOUNT}/unified");
            (if host.exists(&unified) { unified } else { MOUNT.to_owned() }, Version::Two)
        } else if controllers.split(',').any(|c| c == controller) {
            (format!("{MOUNT}/{controller}"), Version::One)
        } else {
            continue;
        };
        let mut path = path.trim_end_matches('/');
        for _ in 0..DEPTH_MAX {
            match probe(host, &format!("{base}{path}"), version) {
                Ok(value) => values.extend(value),
                Err(Unread::Absent(_)) => {}
                Err(why) => return Err(why),
            }
            match path.rfind('/') {
                Some(at) => path = &path[..at],
                None => break,
            }
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::super::Target;
    use super::super::fake::{FakeRoot, find};
    use super::super::finding::{Finding, Severity};
    use super::check;

    fn run(files: &[(&str, &str)], reactors: usize) -> Vec<Finding> {
        check(&FakeRoot::new(files).host(), &Target { reactors, interface: None })
    }

    #[test]
    fn a_parents_quota_binds_too() {
        for (own, parent, reactors, severity) in [
            ("max 100000", "max 100000", 8, Severity::Ok),
            ("400000 100000", "max 100000", 4, Severity::Ok),
            ("400000 100000", "max 100000", 5, Severity::Fail),
            ("max 100000", "50000 100000", 1, Severity::Fail),
            ("800000 100000", "200000 100000", 3, Severity::Fail),
            ("x", "max 100000", 1, Severity::Warn),
        ] {
            let findings = run(
                &[
                    ("/proc/self/cgroup", "0::/a/b\n"),
                    ("/sys/fs/cgroup/a/b/cpu.max", own),
                    ("/sys/fs/cgroup/a/cpu.max", parent),
                ],
                reactors,
            );
            assert_eq!(
                find(&findings, "cgroup.cpu_max").severity,
                severity,
                "{own} in {parent} for {reactors}"
            );
        }
    }

    #[test]
    fn version_1_groups_are_read_by_controller() {
        let findings = run(
            &[
                ("/proc/self/cgroup", "3:cpuset:/\n2:cpu,cpuacct:/s\n1:memory:/m\n"),
                ("/sys/fs/cgroup/cpu/s/cpu.cfs_quota_us", "150000"),
                ("/sys/fs/cgroup/cpu/s/cpu.cfs_period_us", "100000"),
                ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1"),
                ("/sys/fs/cgroup/cpuset/cpuset.effective_cpus", "0"),
                ("/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "9223372036854771712"),
            ],
            2,
        );
        assert_eq!(find(&findings, "cgroup.cpu_max").found, "1.500 CPUs");
        assert_eq!(find(&findings, "cgroup.cpuset").severity, Severity::Fail);
        assert_eq!(find(&findings, "cgroup.memory_max").found, "no limit");
    }

    #[test]
    fn past_throttling_is_told() {
        for (stat, severity) in [
            ("nr_periods 9\nnr_throttled 0\n", Severity::Ok),
            ("nr_throttled 7\n", Severity::Warn),
            ("usage_usec 1\n", Severity::Info),
        ] {
            let findings = run(&[("/proc/self/cgroup", "0::/\n"), ("/sys/fs/cgroup/cpu.stat", stat)], 1);
            assert_eq!(find(&findings, "cgroup.throttled").severity, severity, "{stat:?}");
        }
    }

    #[test]
    fn a_small_memory_limit_is_a_warning() {
        for (limit, severity) in
            [("max", Severity::Ok), ("268435456", Severity::Ok), ("268435455", Severity::Warn)]
        {
            let findings =
                run(&[("/proc/self/cgroup", "0::/x\n"), ("/sys/fs/cgroup/x/memory.max", limit)], 1);
            assert_eq!(find(&findings, "cgroup.memory_max").severity, severity, "{limit}");
        }
    }
}
