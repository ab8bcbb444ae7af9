//! Resource limits of the process and of the system that bound connections and locked memory.
//!
//! The limits of `shardctl` itself are read: run it as shard-proxy is run (same user, same unit or container).

use super::finding::{Check, Finding, Severity, Verdict};
use super::host::{Host, Unread};
use super::sysctl::{Rule, Sysctl};

/// What one ring needs for a process without CAP_IPC_LOCK.
const MEMLOCK_BYTES_MIN: u64 = 512 * 1024;
/// Two descriptors per proxied connection: half a million of them.
const NOFILE_ADVISED: u64 = 1_048_576;
/// Below this a busy proxy refuses clients.
const NOFILE_WARN: u64 = 65_536;
/// Below this it cannot be put into production at all.
const NOFILE_FAIL: u64 = 4_096;

const CAP_NET_BIND_SERVICE: u32 = 10;
const CAP_IPC_LOCK: u32 = 14;

const SYSCTLS: [Sysctl; 2] = [
    Sysctl {
        id: "limits.nr_open",
        key: "fs.nr_open",
        rule: Rule::AtLeast(NOFILE_ADVISED),
        severity: Severity::Warn,
        why: "The ceiling of every process's open-file limit.",
    },
    Sysctl {
        id: "limits.file_max",
        key: "fs.file-max",
        rule: Rule::AtLeast(2 * NOFILE_ADVISED),
        severity: Severity::Warn,
        why: "The system-wide ceiling of open files: shard-proxy and its neighbours together.",
    },
];

/// All checks of this family.
pub(super) fn check(host: &Host) -> Vec<Finding> {
    let mut findings = vec![memlock(host), nofile(host)];
    findings.extend(SYSCTLS.iter().map(|s| s.check(host)));
    findings.push(low_ports(host));
    findings
}

fn memlock(host: &Host) -> Finding {
    let check = Check::new(
        "limits.memlock",
        "locked memory (ulimit -l)",
        ">= 524288 bytes or CAP_IPC_LOCK",
        "Rings and registered buffers are charged to it, and keys live in locked pages.",
    );
    match (host.has_capability(CAP_IPC_LOCK), limit(host, "Max locked memory")) {
        (Ok(true), _) => check.ok("CAP_IPC_LOCK"),
        (_, Ok(limit)) => {
            let verdict = Verdict::unless(limit.soft >= MEMLOCK_BYTES_MIN, Severity::Warn);
            check.judge(verdict, print(limit.soft), "ulimit -l 8192   # LimitMEMLOCK=8M in the unit")
        }
        (_, Err(why)) => check.unknown(&why),
    }
}

fn nofile(host: &Host) -> Finding {
    let check = Check::new(
        "limits.nofile",
        "open files (ulimit -n)",
        ">= 1048576",
        "A proxied connection holds two descriptors; at the limit new clients are refused.",
    );
    match limit(host, "Max open files") {
        Ok(Limit { soft, hard }) => {
            let verdict = match soft {
                NOFILE_ADVISED.. => Verdict::Good,
                NOFILE_WARN.. => Verdict::Bad(Severity::Info),
                NOFILE_FAIL.. => Verdict::Bad(Severity::Warn),
                _ => Verdict::Bad(Severity::Fail),
            };
            let found = format!("{} soft, {} hard", print(soft), print(hard));
            check.judge(verdict, found, "ulimit -n 1048576   # LimitNOFILE=1048576 in the unit")
        }
        Err(why) => check.unknown(&why),
    }
}

fn low_ports(host: &Host) -> Finding {
    let check = Check::new(
        "limits.low_ports",
        "ports below 1024",
        "CAP_NET_BIND_SERVICE",
        "Needed to bind ports 80 and 443; shard-proxy drops the capability after it has bound.",
    );
    let first_free = host.number("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    match (host.has_capability(CAP_NET_BIND_SERVICE), first_free) {
        (Ok(true), _) => check.ok("CAP_NET_BIND_SERVICE"),
        (_, Ok(first)) if first <= 80 => check.ok(format!("free from port {first} on")),
        (Ok(false), _) => {
            let fix = "setcap cap_net_bind_service=+ep SHARD_PROXY   # AmbientCapabilities= in the unit";
            check.differs(Severity::Info, "not allowed", fix)
        }
        (Err(why), _) => check.unknown(&why),
    }
}

/// Soft and hard limit; `u64::MAX` stands for unlimited.
#[derive(Clone, Copy, Debug)]
struct Limit {
    soft: u64,
    hard: u64,
}

fn limit(host: &Host, name: &str) -> Result<Limit, Unread> {
    const PATH: &str = "/proc/self/limits";
    let text = host.read(PATH)?;
    let line = text.lines().find_map(|l| l.strip_prefix(name));
    let line = line.ok_or_else(|| Unread::Absent(format!("line `{name}` of {PATH}")))?;
    let mut words = line.split_whitespace();
    match (words.next().and_then(parse), words.next().and_then(parse)) {
        (Some(soft), Some(hard)) => Ok(Limit { soft, hard }),
        _ => Err(Unread::Failed(format!("line `{name}{line}` of {PATH} is not understood"))),
    }
}

fn parse(word: &str) -> Option<u64> {
    if word == "unlimited" { Some(u64::MAX) } else { word.parse().ok() }
}

fn print(limit: u64) -> String {
    if limit == u64::MAX { "unlimited".to_owned() } else { limit.to_string() }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{FakeRoot, find};
    use super::super::finding::Severity;
    use super::check;

    fn limits(files: &str, memlock: &str, capabilities: &str) -> FakeRoot {
        let text = format!(
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max open files            {files}                files     \n\
             Max locked memory         {memlock}              bytes     \n"
        );
        let status = format!("Name:\tshardctl\nCapEff:\t{capabilities}\n");
        FakeRoot::new(&[("/proc/self/limits", &text), ("/proc/self/status", &status)])
    }

    #[test]
    fn the_soft_open_file_limit_decides() {
        for (files, severity) in [
            ("1048576 1048576", Severity::Ok),
            ("unlimited unlimited", Severity::Ok),
            ("1048575 unlimited", Severity::Info),
            ("65535 65535", Severity::Warn),
            ("4096 1048576", Severity::Warn),
            ("1024 1048576", Severity::Fail),
            ("x y", Severity::Warn),
        ] {
            let root = limits(files, "1 1", "0");
            assert_eq!(find(&check(&root.host()), "limits.nofile").severity, severity, "{files}");
        }
    }

    #[test]
    fn memlock_may_be_small_with_the_capability() {
        for (memlock, capabilities, severity) in [
            ("524288 524288", "0", Severity::Ok),
            ("524287 unlimited", "0", Severity::Warn),
            ("0 0", "4000", Severity::Ok),
            ("unlimited unlimited", "0", Severity::Ok),
        ] {
            let root = limits("1 1", memlock, capabilities);
            assert_eq!(
                find(&check(&root.host()), "limits.memlock").severity,
                severity,
                "{memlock} {capabilities}"
            );
        }
    }

    #[test]
    fn low_ports_need_the_capability_or_the_sysctl() {
        for (first, capabilities, severity) in
            [("1024", "400", Severity::Ok), ("80", "0", Severity::Ok), ("81", "0", Severity::Info)]
        {
            let status = format!("CapEff:\t{capabilities}\n");
            let files = [
                ("/proc/self/status", status.as_str()),
                ("/proc/sys/net/ipv4/ip_unprivileged_port_start", first),
            ];
            let root = FakeRoot::new(&files);
            assert_eq!(
                find(&check(&root.host()), "limits.low_ports").severity,
                severity,
                "{first} {capabilities}"
            );
        }
    }

    #[test]
    fn nothing_readable_means_nothing_is_ok() {
        let root = FakeRoot::new(&[]);
        for finding in check(&root.host()) {
            assert!(finding.severity > Severity::Ok, "{finding:?}");
        }
    }
}
