//! Memory settings that cause stalls: huge pages, swap, NUMA.

use super::cpulist;
use super::finding::{Check, Finding, Severity, Verdict};
use super::host::{Host, Unread};
use super::sysctl::{Rule, Sysctl};

const NODES_PATH: &str = "/sys/devices/system/node/online";
const HUGE: &str = "/sys/kernel/mm/transparent_hugepage";

/// All checks of this family.
pub(super) fn check(host: &Host) -> Vec<Finding> {
    let mut findings = vec![huge_pages(host), huge_page_defrag(host), swappiness(host)];
    findings.extend(numa(host));
    findings
}

fn huge_pages(host: &Host) -> Finding {
    let check = Check::new(
        "memory.thp",
        "transparent huge pages",
        "madvise",
        "With always, the kernel compacts memory in the middle of a page fault and small buffers grow to 2 MiB.",
    );
    choice(check, host, "enabled", &["madvise", "never"], "madvise")
}

fn huge_page_defrag(host: &Host) -> Finding {
    let check = Check::new(
        "memory.thp_defrag",
        "transparent huge page defrag",
        "madvise",
        "With always, a fault may wait for compaction even where huge pages are only advised.",
    );
    choice(check, host, "defrag", &["madvise", "defer+madvise", "defer", "never"], "madvise")
}

/// Judges a file of the form `always [madvise] never`.
fn choice(check: Check, host: &Host, file: &str, good: &[&str], advised: &str) -> Finding {
    let text = match host.read(&format!("{HUGE}/{file}")) {
        Ok(text) => text,
        Err(Unread::Absent(_)) => {
            return check.not_applicable("the kernel has no transparent huge pages");
        }
        Err(why) => return check.unknown(&why),
    };
    match text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']')) {
        Some(chosen) => {
            let verdict = Verdict::unless(good.contains(&chosen), Severity::Warn);
            check.judge(verdict, chosen, &format!("echo {advised} > {HUGE}/{file}"))
        }
        None => check.unknown(&Unread::Failed(format!("`{text}` has no choice in brackets"))),
    }
}

fn swappiness(host: &Host) -> Finding {
    let sysctl = Sysctl {
        id: "memory.swappiness",
        key: "vm.swappiness",
        rule: Rule::AtMost(10),
        severity: Severity::Warn,
        why: "A reactor that touches a page on disk stops all its connections for milliseconds.",
    };
    match host.read("/proc/swaps") {
        // The first line is the heading.
        Ok(text) if text.lines().count() < 2 => {
            let check = Check::new(sysctl.id, sysctl.key, "<= 10, or no swap", sysctl.why);
            check.ok("no swap")
        }
        Ok(_) | Err(Unread::Absent(_)) => sysctl.check(host),
        Err(why) => Check::new(sysctl.id, sysctl.key, "<= 10, or no swap", sysctl.why).unknown(&why),
    }
}

fn numa(host: &Host) -> [Finding; 2] {
    let balancing = Sysctl {
        id: "memory.numa_balancing",
        key: "kernel.numa_balancing",
        rule: Rule::Is(0),
        severity: Severity::Warn,
        why: "Unmaps pages to learn who uses them: page faults on the request path, for nothing when cores are pinned.",
    };
    let balancing_check = || Check::new(balancing.id, balancing.key, "0", balancing.why);
    let nodes = Check::new(
        "memory.nodes",
        "memory nodes",
        "the reactors' own",
        "A reactor's memory should come from its own node; bind the process to one node or run one per node.",
    );
    let online = host.read(NODES_PATH).and_then(|text| cpulist::parse(&text));
    let online = match online {
        Ok(online) if online.len() < 2 => {
            return [
                balancing_check().not_applicable("one memory node"),
                nodes.not_applicable("one memory node"),
            ];
        }
        Err(Unread::Absent(_)) => {
            let why = "the kernel has no NUMA";
            return [balancing_check().not_applicable(why), nodes.not_applicable(why)];
        }
        Ok(online) => online,
        Err(why) => return [balancing_check().unknown(&why), nodes.unknown(&why)],
    };
    let allowed = host.status("Mems_allowed_list").and_then(|text| cpulist::parse(&text));
    let nodes = match allowed {
        Ok(allowed) => {
            let found = format!("{} of {}", cpulist::print(&allowed), cpulist::print(&online));
            let fix = "numactl --cpunodebind=0 --membind=0 shard-proxy";
            nodes.judge(Verdict::unless(allowed.len() == 1, Severity::Info), found, fix)
        }
        Err(why) => nodes.unknown(&why),
    };
    [balancing.check(host), nodes]
}

#[cfg(test)]
mod tests {
    use super::super::fake::{FakeRoot, find};
    use super::super::finding::Severity;
    use super::check;

    #[test]
    fn the_bracketed_word_is_the_choice() {
        for (text, severity) in [
            ("always [madvise] never", Severity::Ok),
            ("always madvise [never]", Severity::Ok),
            ("[always] madvise never", Severity::Warn),
            ("always madvise never", Severity::Warn),
        ] {
            let root = FakeRoot::new(&[("/sys/kernel/mm/transparent_hugepage/enabled", text)]);
            assert_eq!(find(&check(&root.host()), "memory.thp").severity, severity, "{text}");
        }
    }

    #[test]
    fn swappiness_matters_only_with_swap() {
        const HEADING: &str = "Filename Type Size Used Priority\n";
        let used = format!("{HEADING}/dev/sda2 partition 8 0 -2\n");
        for (swaps, value, severity) in [
            (HEADING, "60", Severity::Ok),
            (used.as_str(), "60", Severity::Warn),
            (used.as_str(), "10", Severity::Ok),
        ] {
            let root = FakeRoot::new(&[("/proc/swaps", swaps), ("/proc/sys/vm/swappiness", value)]);
            assert_eq!(
                find(&check(&root.host()), "memory.swappiness").severity,
                severity,
                "{value} with {swaps:?}"
            );
        }
    }

    #[test]
    fn numa_is_judged_only_where_there_is_more_than_one_node() {
        for (online, allowed, of_nodes, of_balancing) in [
            ("0", "0", Severity::Info, Severity::Info),
            ("0-1", "0-1", Severity::Info, Severity::Warn),
            ("0-1", "1", Severity::Ok, Severity::Warn),
        ] {
            let status = format!("Mems_allowed_list:\t{allowed}\n");
            let root = FakeRoot::new(&[
                ("/sys/devices/system/node/online", online),
                ("/proc/self/status", &status),
                ("/proc/sys/kernel/numa_balancing", "1"),
            ]);
            let findings = check(&root.host());
            let found =
                (find(&findings, "memory.nodes").severity, find(&findings, "memory.numa_balancing").severity);
            assert_eq!(found, (of_nodes, of_balancing), "{online} {allowed}");
        }
    }
}
