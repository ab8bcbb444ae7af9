//! The kernel's TCP settings. Values are advice for a proxy with many short and some idle connections on a data
//! centre network; the kernel's defaults are taken as good where they are.

use super::finding::{Check, Finding, Severity, Verdict};
use super::host::{Host, Unread};
use super::sysctl::{Rule, Sysctl};

const MIB: u64 = 1024 * 1024;

const SYSCTLS: [Sysctl; 17] = [
    Sysctl {
        id: "tcp.somaxconn",
        key: "net.core.somaxconn",
        rule: Rule::AtLeast(4096),
        severity: Severity::Warn,
        why: "Caps the accept queue of each listening socket (shard-proxy asks for 4096); beyond it clients retry after 1 s.",
    },
    Sysctl {
        id: "tcp.max_syn_backlog",
        key: "net.ipv4.tcp_max_syn_backlog",
        rule: Rule::AtLeast(4096),
        severity: Severity::Warn,
        why: "Half-open connections per listener before SYN cookies or drops begin.",
    },
    Sysctl {
        id: "tcp.rmem_max",
        key: "net.core.rmem_max",
        rule: Rule::AtLeast(4 * MIB),
        severity: Severity::Info,
        why: "Caps receive buffers that a program asks for; autotuned TCP sockets obey tcp_rmem instead.",
    },
    Sysctl {
        id: "tcp.wmem_max",
        key: "net.core.wmem_max",
        rule: Rule::AtLeast(4 * MIB),
        severity: Severity::Info,
        why: "Caps send buffers that a program asks for; autotuned TCP sockets obey tcp_wmem instead.",
    },
    Sysctl {
        id: "tcp.rmem",
        key: "net.ipv4.tcp_rmem",
        rule: Rule::MaxAtLeast(6 * MIB),
        severity: Severity::Warn,
        why: "The largest receive window that autotuning may reach: 6 MiB feed 5 Gbit/s over 10 ms.",
    },
    Sysctl {
        id: "tcp.wmem",
        key: "net.ipv4.tcp_wmem",
        rule: Rule::MaxAtLeast(4 * MIB),
        severity: Severity::Warn,
        why: "The most that one socket may hold unacknowledged; too little caps the speed to distant clients.",
    },
    Sysctl {
        id: "tcp.local_port_range",
        key: "net.ipv4.ip_local_port_range",
        rule: Rule::SpanAtLeast(28_000),
        severity: Severity::Warn,
        why: "Each upstream connection to one endpoint needs a port of its own, TIME-WAIT included.",
    },
    Sysctl {
        id: "tcp.tw_reuse",
        key: "net.ipv4.tcp_tw_reuse",
        rule: Rule::Is(1),
        severity: Severity::Info,
        why: "Lets a new upstream connection take a port from TIME-WAIT after a second; the default 2 is loopback only.",
    },
    Sysctl {
        id: "tcp.fin_timeout",
        key: "net.ipv4.tcp_fin_timeout",
        rule: Rule::AtMost(30),
        severity: Severity::Info,
        why: "Seconds that a closed socket waits for the peer's FIN; vanished clients hold memory that long.",
    },
    Sysctl {
        id: "tcp.slow_start_after_idle",
        key: "net.ipv4.tcp_slow_start_after_idle",
        rule: Rule::Is(0),
        severity: Severity::Warn,
        why: "Otherwise a pooled or kept-alive connection falls back to its first window after one idle timeout.",
    },
    Sysctl {
        id: "tcp.migrate_req",
        key: "net.ipv4.tcp_migrate_req",
        rule: Rule::Is(1),
        severity: Severity::Warn,
        why: "When a SO_REUSEPORT listener closes, its unaccepted connections move to another core's instead of being reset.",
    },
    Sysctl {
        id: "tcp.notsent_lowat",
        key: "net.ipv4.tcp_notsent_lowat",
        rule: Rule::AtMost(131_072),
        severity: Severity::Info,
        why: "Bytes not yet sent that a socket accepts before it stops being writable: bounds the memory of slow readers.",
    },
    Sysctl {
        id: "tcp.autocorking",
        key: "net.ipv4.tcp_autocorking",
        rule: Rule::Is(0),
        severity: Severity::Info,
        why: "Corking holds small writes back while earlier ones wait in the device; the proxy already writes whole messages.",
    },
    Sysctl {
        id: "tcp.abort_on_overflow",
        key: "net.ipv4.tcp_abort_on_overflow",
        rule: Rule::Is(0),
        severity: Severity::Warn,
        why: "1 resets clients whenever the accept queue is full for a moment; 0 lets them retry.",
    },
    Sysctl {
        id: "tcp.syncookies",
        key: "net.ipv4.tcp_syncookies",
        rule: Rule::Is(1),
        severity: Severity::Warn,
        why: "0 lets a SYN flood shut clients out; 2 uses cookies always and loses TCP options.",
    },
    Sysctl {
        id: "tcp.max_tw_buckets",
        key: "net.ipv4.tcp_max_tw_buckets",
        rule: Rule::AtLeast(65_536),
        severity: Severity::Warn,
        why: "Beyond it TIME-WAIT ends early and late segments of an old connection may hit a new one.",
    },
    Sysctl {
        id: "tcp.timestamps",
        key: "net.ipv4.tcp_timestamps",
        rule: Rule::OneOf(&[1, 2]),
        severity: Severity::Info,
        why: "tcp_tw_reuse and exact round-trip times need them.",
    },
];

/// All checks of this family.
pub(super) fn check(host: &Host) -> Vec<Finding> {
    let mut findings: Vec<_> = SYSCTLS.iter().map(|s| s.check(host)).collect();
    findings.extend([memory(host), congestion_control(host), queueing(host), kernel_tls(host)]);
    findings
}

fn memory(host: &Host) -> Finding {
    let check = Check::new(
        "tcp.mem",
        "net.ipv4.tcp_mem",
        "max >= 5 % of memory",
        "Pages that all TCP buffers together may take; at the limit the kernel drops packets of healthy connections.",
    );
    let read = || -> Result<(u64, u64, u64), Unread> {
        let text = host.read("/proc/sys/net/ipv4/tcp_mem")?;
        let pages = text.split_whitespace().nth(2).and_then(|n| n.parse::<u64>().ok());
        let pages =
            pages.ok_or_else(|| Unread::Failed(format!("tcp_mem holds `{text}`, not three numbers")))?;
        Ok((
            pages,
            kib_line(host, "/proc/self/smaps", "KernelPageSize")?,
            kib_line(host, "/proc/meminfo", "MemTotal")?,
        ))
    };
    match read() {
        Ok((pages, page_kib, total_kib)) => {
            let limit_kib = pages.saturating_mul(page_kib);
            let good = limit_kib.saturating_mul(20) >= total_kib;
            let found = format!("max {} MiB of {} MiB", limit_kib / 1024, total_kib / 1024);
            // The kernel's own proportions: 3/4 of the pressure mark, the mark, twice the low one.
            let mark = total_kib / 16 / page_kib.max(1);
            let fix = format!("sysctl -w net.ipv4.tcp_mem=\"{} {} {}\"", mark / 4 * 3, mark, mark / 2 * 3);
            check.judge(Verdict::unless(good, Severity::Warn), found, &fix)
        }
        Err(why) => check.unknown(&why),
    }
}

/// The number of the first `key:  N kB` line.
fn kib_line(host: &Host, path: &str, key: &str) -> Result<u64, Unread> {
    let text = host.read(path)?;
    let line = text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'));
    let number = line.and_then(|l| l.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| Unread::Absent(format!("line {key} of {path}")))
}

fn congestion_control(host: &Host) -> Finding {
    let check = Check::new(
        "tcp.congestion_control",
        "net.ipv4.tcp_congestion_control",
        "cubic or bbr",
        "The default of new sockets; reno and its like recover too slowly from a loss on a fast path.",
    );
    match host.read("/proc/sys/net/ipv4/tcp_congestion_control") {
        Ok(name) => {
            let good = matches!(name.as_str(), "cubic" | "bbr" | "bbr2" | "bbr3" | "dctcp");
            let fix = "sysctl -w net.ipv4.tcp_congestion_control=cubic";
            check.judge(Verdict::unless(good, Severity::Warn), name, fix)
        }
        Err(why) => check.unknown(&why),
    }
}

fn queueing(host: &Host) -> Finding {
    let check = Check::new(
        "tcp.qdisc",
        "net.core.default_qdisc",
        "fq (bbr), any (cubic)",
        "bbr paces every packet; without fq the pacing runs on one timer per socket and costs CPU.",
    );
    let queueing = host.read("/proc/sys/net/core/default_qdisc");
    match (host.read("/proc/sys/net/ipv4/tcp_congestion_control"), queueing) {
        (Ok(control), Ok(name)) => {
            let good = !control.starts_with("bbr") || name == "fq";
            let fix = "sysctl -w net.core.default_qdisc=fq && tc qdisc replace dev IF root fq";
            check.judge(Verdict::unless(good, Severity::Warn), format!("{name} with {control}"), fix)
        }
        (Ok(_), Err(Unread::Absent(_))) if host.in_network_namespace() => {
            check.not_applicable("only the host's network namespace has it; look there")
        }
        (Err(why), _) | (_, Err(why)) => check.unknown(&why),
    }
}

fn kernel_tls(host: &Host) -> Finding {
    let check = Check::new(
        "tcp.ulp_tls",
        "TCP_ULP tls",
        "listed in tcp_available_ulp",
        "Kernel TLS; off by default in shard-proxy, so nothing is lost without it.",
    );
    match host.read("/proc/sys/net/ipv4/tcp_available_ulp") {
        Ok(list) if list.split_whitespace().any(|u| u == "tls") => check.ok("available"),
        Ok(_) => check.differs(Severity::Info, "not available", "modprobe tls"),
        Err(why) => check.unknown(&why),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{FakeRoot, find};
    use super::super::finding::Severity;
    use super::{SYSCTLS, check};

    #[test]
    fn every_sysctl_has_a_file_that_makes_it_ok_and_one_that_does_not() {
        let good = [
            ("tcp.somaxconn", "65535", "128"),
            ("tcp.max_syn_backlog", "4096", "1024"),
            ("tcp.rmem_max", "4194304", "212992"),
            ("tcp.wmem_max", "4194304", "212992"),
            ("tcp.rmem", "4096 131072 6291456", "4096 131072 1048576"),
            ("tcp.wmem", "4096 16384 4194304", "4096 16384 65536"),
            ("tcp.local_port_range", "32768 60999", "50000 60000"),
            ("tcp.tw_reuse", "1", "2"),
            ("tcp.fin_timeout", "15", "60"),
            ("tcp.slow_start_after_idle", "0", "1"),
            ("tcp.migrate_req", "1", "0"),
            ("tcp.notsent_lowat", "131072", "4294967295"),
            ("tcp.autocorking", "0", "1"),
            ("tcp.abort_on_overflow", "0", "1"),
            ("tcp.syncookies", "1", "2"),
            ("tcp.max_tw_buckets", "262144", "4096"),
            ("tcp.timestamps", "1", "0"),
        ];
        assert_eq!(good.map(|(id, _, _)| id), SYSCTLS.map(|s| s.id), "a case for each");
        for ((id, well, ill), sysctl) in good.iter().zip(&SYSCTLS) {
            let path = format!("/proc/sys/{}", sysctl.key.replace('.', "/"));
            let severity = |text: &str| find(&check(&FakeRoot::new(&[(&path, text)]).host()), id).severity;
            assert_eq!(severity(well), Severity::Ok, "{id} = {well}");
            assert_eq!(severity(ill), sysctl.severity, "{id} = {ill}");
        }
    }

    #[test]
    fn bbr_wants_fq_and_others_do_not() {
        for (control, queueing, severity) in [
            ("bbr", "fq", Severity::Ok),
            ("bbr", "fq_codel", Severity::Warn),
            ("cubic", "fq_codel", Severity::Ok),
            ("cubic", "pfifo_fast", Severity::Ok),
        ] {
            let root = FakeRoot::new(&[
                ("/proc/sys/net/ipv4/tcp_congestion_control", control),
                ("/proc/sys/net/core/default_qdisc", queueing),
            ]);
            assert_eq!(find(&check(&root.host()), "tcp.qdisc").severity, severity, "{control} {queueing}");
        }
    }

    #[test]
    fn tcp_memory_is_judged_against_the_machine_and_its_page_size() {
        for (pages, page_kib, severity) in
            [("1 2 12800", 4, Severity::Ok), ("1 2 12799", 4, Severity::Warn), ("1 2 800", 64, Severity::Ok)]
        {
            let smaps = format!("KernelPageSize:     {page_kib} kB\n");
            let root = FakeRoot::new(&[
                ("/proc/sys/net/ipv4/tcp_mem", pages),
                ("/proc/meminfo", "MemTotal:       1024000 kB\nMemFree: 1 kB\n"),
                ("/proc/self/smaps", &smaps),
            ]);
            assert_eq!(find(&check(&root.host()), "tcp.mem").severity, severity, "{pages} of {page_kib} KiB");
        }
    }

    #[test]
    fn kernel_tls_is_only_worth_a_note() {
        for (list, severity) in [("espintcp tls mptcp", Severity::Ok), ("mptcp", Severity::Info)] {
            let root = FakeRoot::new(&[("/proc/sys/net/ipv4/tcp_available_ulp", list)]);
            assert_eq!(find(&check(&root.host()), "tcp.ulp_tls").severity, severity);
        }
    }
}
