//! The cores that reactors are pinned to: are there enough, are they quiet, are they awake.

use super::cpulist::{self, CpuSet};
use super::finding::{Check, Finding, Severity, Verdict};
use super::host::{Host, Unread};
use super::sysctl::{Rule, Sysctl};
use super::{Target, cpulist::parse};

const BASE: &str = "/sys/devices/system/cpu";
/// A wake-up slower than this shows in the tail of a lightly loaded proxy.
const EXIT_LATENCY_US_MAX: u64 = 20;

const WATCHDOGS: [Sysctl; 2] = [
    Sysctl {
        id: "cpu.watchdog",
        key: "kernel.watchdog",
        rule: Rule::Is(0),
        severity: Severity::Info,
        why: "The lock-up detector interrupts every core, isolated ones too, every few seconds.",
    },
    Sysctl {
        id: "cpu.nmi_watchdog",
        key: "kernel.nmi_watchdog",
        rule: Rule::Is(0),
        severity: Severity::Info,
        why: "Holds one performance counter of every core and interrupts it.",
    },
];

/// All checks of this family.
pub(super) fn check(host: &Host, target: &Target) -> Vec<Finding> {
    let mut findings = vec![
        allowed(host, target),
        isolated(host, target),
        tickless(host, target),
        rcu_callbacks(host, target),
        governor(host),
        idle_states(host),
        siblings(host, target),
    ];
    findings.extend(WATCHDOGS.iter().map(|s| match s.check(host) {
        // The key only exists where the detector is compiled in.
        finding if finding.found.starts_with("unknown: ") && finding.found.ends_with("does not exist") => {
            let check = Check::new(s.id, s.key, "0", s.why);
            check.not_applicable("this kernel has no such watchdog")
        }
        finding => finding,
    }));
    findings
}

fn allowed(host: &Host, target: &Target) -> Finding {
    let check = Check::new(
        "cpu.allowed",
        "CPUs of this process",
        &format!(">= {} (one per reactor)", target.reactors),
        "Each reactor is pinned to a core of its own; two on one core wait for each other.",
    );
    match host.status("Cpus_allowed_list").and_then(|text| parse(&text)) {
        Ok(cpus) => {
            let found = format!("{} ({})", cpus.len(), cpulist::print(&cpus));
            let fix = format!("taskset -c 0-{} shard-proxy", target.reactors.saturating_sub(1));
            check.judge(Verdict::unless(cpus.len() >= target.reactors, Severity::Fail), found, &fix)
        }
        Err(why) => check.unknown(&why),
    }
}

fn isolated(host: &Host, target: &Target) -> Finding {
    let check = Check::new(
        "cpu.isolated",
        "isolcpus",
        "the reactors' cores",
        "The scheduler puts no other task on isolated cores, so a reactor's turn is never cut short.",
    );
    boot_list(check, host, target, host.read(&format!("{BASE}/isolated")), "isolcpus=managed_irq,domain,")
}

fn tickless(host: &Host, target: &Target) -> Finding {
    let check = Check::new(
        "cpu.nohz_full",
        "nohz_full",
        "the reactors' cores",
        "Stops the scheduler tick on a core that runs one task: hundreds of interrupts a second less.",
    );
    match host.read(&format!("{BASE}/nohz_full")) {
        Err(Unread::Absent(_)) => check.not_applicable("the kernel is built without NO_HZ_FULL"),
        list => boot_list(check, host, target, list, "nohz_full="),
    }
}

fn rcu_callbacks(host: &Host, target: &Target) -> Finding {
    let check = Check::new(
        "cpu.rcu_nocbs",
        "rcu_nocbs",
        "the reactors' cores",
        "Moves the kernel's deferred frees off the reactors' cores; nohz_full implies it.",
    );
    let list = host.read("/proc/cmdline").map(|line| {
        let value =
            |key: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key).map(str::to_owned));
        value("rcu_nocbs=").or_else(|| value("nohz_full=")).unwrap_or_default()
    });
    boot_list(check, host, target, list, "rcu_nocbs=")
}

/// Judges a CPU list that only a boot parameter sets: empty is worth a note, as it is on every untuned host.
fn boot_list(
    check: Check,
    host: &Host,
    target: &Target,
    list: Result<String, Unread>,
    parameter: &str,
) -> Finding {
    match list {
        Ok(list) if !list.is_empty() && list != "(null)" => return check.ok(list),
        Ok(_) => {}
        Err(why) => return check.unknown(&why),
    }
    match host.read(&format!("{BASE}/online")).and_then(|text| parse(&text)) {
        Ok(online) if online.len() <= target.reactors => {
            check.not_applicable("every CPU has a reactor, none is left for the rest of the system")
        }
        Ok(online) => {
            let cores: CpuSet = online.iter().rev().take(target.reactors).copied().collect();
            let fix = format!(
                "echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {parameter}{}\"' >> \
                 /etc/default/grub.d/shard.cfg && update-grub   # then reboot",
                cpulist::print(&cores)
            );
            check.differs(Severity::Info, "none", &fix)
        }
        Err(why) => check.unknown(&why),
    }
}

fn governor(host: &Host) -> Finding {
    let check = Check::new(
        "cpu.governor",
        "frequency governor",
        "performance",
        "Others let the clock drop between bursts and need milliseconds to raise it again.",
    );
    let cpus = match numbered_cpus(host) {
        Ok(cpus) => cpus,
        Err(why) => return check.unknown(&why),
    };
    let mut names = std::collections::BTreeMap::<String, usize>::new();
    for cpu in cpus {
        match host.read(&format!("{BASE}/cpu{cpu}/cpufreq/scaling_governor")) {
            Ok(name) => *names.entry(name).or_default() += 1,
            Err(Unread::Absent(_)) => {}
            Err(why) => return check.unknown(&why),
        }
    }
    if names.is_empty() {
        return check.not_applicable("no frequency driver: a virtual machine, or fixed by firmware");
    }
    let good = names.keys().all(|n| n == "performance");
    let found = names.iter().map(|(name, count)| format!("{name} on {count}")).collect::<Vec<_>>().join(", ");
    check.judge(Verdict::unless(good, Severity::Warn), found, "cpupower frequency-set -g performance")
}

fn idle_states(host: &Host) -> Finding {
    let check = Check::new(
        "cpu.idle_states",
        "C-states (exit latency)",
        &format!("<= {EXIT_LATENCY_US_MAX} us"),
        "The deepest state enabled is what a request that arrives at an idle core waits for first.",
    );
    let states = match host.list(&format!("{BASE}/cpu0/cpuidle")) {
        Ok(states) => states,
        Err(Unread::Absent(_)) => {
            return check.not_applicable("no idle driver: the hypervisor decides");
        }
        Err(why) => return check.unknown(&why),
    };
    let mut deepest: Option<(u64, String)> = None;
    for state in states.iter().filter(|s| s.starts_with("state")) {
        let path = format!("{BASE}/cpu0/cpuidle/{state}");
        let read = || {
            Ok((
                host.number(&format!("{path}/disable"))?,
                host.number(&format!("{path}/latency"))?,
                host.read(&format!("{path}/name"))?,
            ))
        };
        match read() {
            Ok((0, latency_us, name)) if deepest.as_ref().is_none_or(|(most, _)| latency_us > *most) => {
                deepest = Some((latency_us, name));
            }
            Ok(_) => {}
            Err(why) => return check.unknown(&why),
        }
    }
    match deepest {
        Some((latency_us, name)) => {
            let fix = format!("cpupower idle-set -D {EXIT_LATENCY_US_MAX}");
            let verdict = Verdict::unless(latency_us <= EXIT_LATENCY_US_MAX, Severity::Warn);
            check.judge(verdict, format!("{latency_us} us ({name})"), &fix)
        }
        None => check.not_applicable("no idle state is enabled"),
    }
}

fn siblings(host: &Host, target: &Target) -> Finding {
    let check = Check::new(
        "cpu.smt",
        "SMT siblings",
        "one reactor per physical core",
        "Two reactors on the threads of one core share its caches and slow each other down.",
    );
    let cpus = match host.status("Cpus_allowed_list").and_then(|text| parse(&text)) {
        Ok(cpus) => cpus,
        Err(why) => return check.unknown(&why),
    };
    let mut cores = std::collections::BTreeSet::<CpuSet>::new();
    for cpu in &cpus {
        let siblings = host.read(&format!("{BASE}/cpu{cpu}/topology/thread_siblings_list"));
        match siblings.and_then(|text| parse(&text)) {
            Ok(siblings) => cores.insert(siblings),
            Err(why) => return check.unknown(&why),
        };
    }
    let found = format!("{} CPUs on {} cores", cpus.len(), cores.len());
    let fix = "echo off > /sys/devices/system/cpu/smt/control";
    check.judge(Verdict::unless(target.reactors <= cores.len(), Severity::Warn), found, fix)
}

fn numbered_cpus(host: &Host) -> Result<Vec<u32>, Unread> {
    let names = host.list(BASE)?;
    Ok(names.iter().filter_map(|n| n.strip_prefix("cpu")?.parse().ok()).collect())
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
    fn more_reactors_than_cpus_cannot_work() {
        for (list, reactors, severity) in [
            ("0-3", 4, Severity::Ok),
            ("0-3", 5, Severity::Fail),
            ("7", 1, Severity::Ok),
            ("nonsense", 1, Severity::Warn),
        ] {
            let status = format!("Cpus_allowed_list:\t{list}\n");
            let findings = run(&[("/proc/self/status", &status)], reactors);
            assert_eq!(find(&findings, "cpu.allowed").severity, severity, "{reactors} on {list}");
        }
    }

    #[test]
    fn sibling_threads_count_once() {
        let files = [
            ("/proc/self/status", "Cpus_allowed_list:\t0-3\n"),
            ("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0,2"),
            ("/sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "1,3"),
            ("/sys/devices/system/cpu/cpu2/topology/thread_siblings_list", "0,2"),
            ("/sys/devices/system/cpu/cpu3/topology/thread_siblings_list", "1,3"),
        ];
        assert_eq!(find(&run(&files, 2), "cpu.smt").severity, Severity::Ok);
        assert_eq!(find(&run(&files, 3), "cpu.smt").severity, Severity::Warn);
        assert_eq!(find(&run(&files, 3), "cpu.smt").found, "4 CPUs on 2 cores");
    }

    #[test]
    fn one_slow_governor_is_enough() {
        let path = [
            "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
            "/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor",
        ];
        let governor = |a: &str, b: &str| {
            let findings = run(&[(path[0], a), (path[1], b)], 1);
            find(&findings, "cpu.governor").clone()
        };
        assert_eq!(governor("performance", "performance").severity, Severity::Ok);
        assert_eq!(governor("performance", "powersave").severity, Severity::Warn);
        let none = run(&[("/sys/devices/system/cpu/cpu0/online", "1")], 1);
        assert!(find(&none, "cpu.governor").found.starts_with("not applicable: "));
    }

    #[test]
    fn only_enabled_idle_states_count() {
        let base = "/sys/devices/system/cpu/cpu0/cpuidle";
        for (disabled, severity) in [("0", Severity::Warn), ("1", Severity::Ok)] {
            let names: Vec<_> = ["state0", "state3"]
                .iter()
                .flat_map(|s| ["name", "latency", "disable"].map(|f| format!("{base}/{s}/{f}")))
                .collect();
            let values = ["POLL", "0", "0", "C6", "133", disabled];
            let files: Vec<_> = names.iter().map(String::as_str).zip(values).collect();
            assert_eq!(find(&run(&files, 1), "cpu.idle_states").severity, severity, "C6 disable={disabled}");
        }
    }

    #[test]
    fn boot_parameters_are_notes_when_absent_and_a_core_is_left_for_the_system() {
        for (line, isolated, reactors, of_rcu, of_isolated) in [
            ("quiet", "", 3, "none", "none"),
            ("quiet rcu_nocbs=1-3", "1-3", 3, "1-3", "1-3"),
            ("nohz_full=2", "", 1, "2", "none"),
            ("quiet", "", 4, "not applicable", "not applicable"),
        ] {
            let files = [
                ("/proc/cmdline", line),
                ("/sys/devices/system/cpu/isolated", isolated),
                ("/sys/devices/system/cpu/online", "0-3"),
            ];
            let findings = run(&files, reactors);
            for (id, expected) in [("cpu.rcu_nocbs", of_rcu), ("cpu.isolated", of_isolated)] {
                let finding = find(&findings, id);
                assert!(finding.found.starts_with(expected), "{id} with {line:?}: {finding:?}");
                assert_eq!(
                    finding.severity == Severity::Ok,
                    expected.starts_with(|c: char| c.is_ascii_digit())
                );
            }
        }
        let findings = run(&[("/proc/cmdline", ""), ("/sys/devices/system/cpu/online", "0-7")], 3);
        let fix = find(&findings, "cpu.rcu_nocbs").fix_command.clone().unwrap_or_default();
        assert!(fix.contains("rcu_nocbs=5-7"), "{fix}");
    }

    #[test]
    fn watchdogs_may_be_absent_but_not_on() {
        let off = run(&[("/proc/sys/kernel/watchdog", "0")], 1);
        assert_eq!(find(&off, "cpu.watchdog").severity, Severity::Ok);
        let findings = run(&[("/proc/sys/kernel/watchdog", "1")], 1);
        assert_eq!(find(&findings, "cpu.watchdog").found, "1");
        assert!(find(&findings, "cpu.nmi_watchdog").found.starts_with("not applicable: "));
    }
}
