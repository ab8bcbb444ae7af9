//! BPF: what shard-l4 needs to load its XDP program. shard-proxy itself needs none of it.

use super::finding::{Check, Finding, Severity, Verdict};
use super::host::{Host, Unread};

const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_BPF: u32 = 39;

/// All checks of this family.
pub(super) fn check(host: &Host) -> Vec<Finding> {
    vec![
        jit(host),
        hardening(host),
        rights(host),
        unprivileged(host),
        file_system(host),
        type_information(host),
    ]
}

fn jit(host: &Host) -> Finding {
    let check = Check::new(
        "bpf.jit",
        "net.core.bpf_jit_enable",
        "1",
        "Interpreted programs cost several times more per packet.",
    );
    match host.number("/proc/sys/net/core/bpf_jit_enable") {
        Ok(found) => {
            let verdict = Verdict::unless(found == 1, Severity::Warn);
            check.judge(verdict, found.to_string(), "sysctl -w net.core.bpf_jit_enable=1")
        }
        Err(Unread::Absent(_)) if host.in_network_namespace() => {
            check.not_applicable("only the host's network namespace has it; look there")
        }
        Err(why) => check.unknown(&why),
    }
}

fn hardening(host: &Host) -> Finding {
    let check = Check::new(
        "bpf.jit_harden",
        "net.core.bpf_jit_harden",
        "0 or 1",
        "2 blinds constants in privileged programs as well and slows the XDP path.",
    );
    match host.number("/proc/sys/net/core/bpf_jit_harden") {
        Ok(found) => {
            let verdict = Verdict::unless(found < 2, Severity::Info);
            check.judge(verdict, found.to_string(), "sysctl -w net.core.bpf_jit_harden=1")
        }
        Err(Unread::Absent(_)) if host.in_network_namespace() => {
            check.not_applicable("only the host's network namespace has it; look there")
        }
        Err(why) => check.unknown(&why),
    }
}

fn rights(host: &Host) -> Finding {
    let check = Check::new(
        "bpf.rights",
        "rights to load XDP",
        "CAP_BPF and CAP_NET_ADMIN",
        "shard-l4 needs both; nothing else of shard does.",
    );
    let held = || -> Result<Vec<&str>, Unread> {
        if host.has_capability(CAP_SYS_ADMIN)? && host.has_capability(CAP_NET_ADMIN)? {
            return Ok(vec![]);
        }
        let mut missing = Vec::new();
        for (bit, name) in [(CAP_BPF, "CAP_BPF"), (CAP_NET_ADMIN, "CAP_NET_ADMIN")] {
            if !host.has_capability(bit)? {
                missing.push(name);
            }
        }
        Ok(missing)
    };
    match held() {
        Ok(missing) if missing.is_empty() => check.ok("held"),
        Ok(missing) => {
            let fix = "setcap cap_bpf,cap_net_admin=+ep SHARD_L4   # AmbientCapabilities= in the unit";
            check.differs(Severity::Info, format!("no {}", missing.join(", ")), fix)
        }
        Err(why) => check.unknown(&why),
    }
}

fn unprivileged(host: &Host) -> Finding {
    let check = Check::new(
        "bpf.unprivileged",
        "kernel.unprivileged_bpf_disabled",
        "1 or 2",
        "0 lets any user load programs, a known way to read kernel memory; shard never needs it.",
    );
    match host.number("/proc/sys/kernel/unprivileged_bpf_disabled") {
        Ok(found) => {
            let verdict = Verdict::unless(found != 0, Severity::Warn);
            check.judge(verdict, found.to_string(), "sysctl -w kernel.unprivileged_bpf_disabled=2")
        }
        Err(Unread::Absent(_)) => check.not_applicable("the kernel has no bpf() call"),
        Err(why) => check.unknown(&why),
    }
}

fn file_system(host: &Host) -> Finding {
    let check = Check::new(
        "bpf.file_system",
        "bpffs on /sys/fs/bpf",
        "mounted",
        "Maps pinned there outlive shard-l4, so that a restart keeps its flows.",
    );
    match host.read("/proc/self/mounts") {
        Ok(text) => {
            let mounted = text.lines().any(|line| {
                let mut words = line.split_whitespace().skip(1);
                words.next() == Some("/sys/fs/bpf") && words.next() == Some("bpf")
            });
            let found = if mounted { "mounted" } else { "not mounted" };
            check.judge(Verdict::unless(mounted, Severity::Info), found, "mount -t bpf bpf /sys/fs/bpf")
        }
        Err(why) => check.unknown(&why),
    }
}

fn type_information(host: &Host) -> Finding {
    let check = Check::new(
        "bpf.btf",
        "kernel BTF",
        "/sys/kernel/btf/vmlinux",
        "Type information by which programs find kernel functions and fields.",
    );
    if host.exists("/sys/kernel/btf/vmlinux") {
        check.ok("present")
    } else {
        check.differs(Severity::Info, "absent", "")
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{FakeRoot, find};
    use super::super::finding::Severity;
    use super::check;

    #[test]
    fn rights_are_bpf_with_net_admin_or_sys_admin_with_net_admin() {
        for (set, severity) in [
            (1u64 << 39 | 1 << 12, Severity::Ok),
            (1 << 21 | 1 << 12, Severity::Ok),
            (1 << 39, Severity::Info),
            (1 << 12, Severity::Info),
            (1 << 21, Severity::Info),
        ] {
            let status = format!("CapEff:\t{set:016x}\n");
            let root = FakeRoot::new(&[("/proc/self/status", &status)]);
            assert_eq!(find(&check(&root.host()), "bpf.rights").severity, severity, "{set:x}");
        }
    }

    #[test]
    fn switches_have_two_sides() {
        for (id, path, good, bad) in [
            ("bpf.jit", "/proc/sys/net/core/bpf_jit_enable", "1", "0"),
            ("bpf.jit_harden", "/proc/sys/net/core/bpf_jit_harden", "1", "2"),
            ("bpf.unprivileged", "/proc/sys/kernel/unprivileged_bpf_disabled", "2", "0"),
            ("bpf.file_system", "/proc/self/mounts", "bpf /sys/fs/bpf bpf rw 0 0", "sysfs /sys sysfs rw 0 0"),
        ] {
            let severity = |text: &str| find(&check(&FakeRoot::new(&[(path, text)]).host()), id).severity;
            assert_eq!(severity(good), Severity::Ok, "{id} {good}");
            assert!(severity(bad) > Severity::Ok, "{id} {bad}");
        }
    }
}
