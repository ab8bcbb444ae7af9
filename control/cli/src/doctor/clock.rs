//! The clock that every reactor turn reads.

use super::finding::{Check, Finding, Severity};
use super::host::Host;

const BASE: &str = "/sys/devices/system/clocksource/clocksource0";

/// All checks of this family.
pub(super) fn check(host: &Host) -> Vec<Finding> {
    vec![source(host), steady_counter(host)]
}

fn source(host: &Host) -> Finding {
    let check = Check::new(
        "clock.source",
        "clocksource",
        "tsc (arch_sys_counter on ARM)",
        "Reading tsc takes tens of nanoseconds and no system call; hpet and acpi_pm take a microsecond and a trap.",
    );
    let current = match host.read(&format!("{BASE}/current_clocksource")) {
        Ok(current) => current,
        Err(why) => return check.unknown(&why),
    };
    let fix = match host.read(&format!("{BASE}/available_clocksource")) {
        Ok(list) if list.split_whitespace().any(|s| s == "tsc") => {
            format!("echo tsc > {BASE}/current_clocksource")
        }
        _ => String::new(),
    };
    match current.as_str() {
        "tsc" | "arch_sys_counter" => check.ok(current),
        // Paravirtual clocks are read without a system call, only a little slower.
        "kvm-clock" | "hyperv_clocksource_tsc_page" => check.differs(Severity::Info, current, &fix),
        _ => check.differs(Severity::Warn, current, &fix),
    }
}

fn steady_counter(host: &Host) -> Finding {
    let check = Check::new(
        "clock.tsc_flags",
        "time-stamp counter",
        "constant_tsc and nonstop_tsc",
        "With both, a counter read is a time; without, the clock falls back to a call into the kernel's page.",
    );
    let text = match host.read("/proc/cpuinfo") {
        Ok(text) => text,
        Err(why) => return check.unknown(&why),
    };
    let Some(flags) = text.lines().find_map(|l| l.strip_prefix("flags")) else {
        return check.not_applicable("not an x86 CPU");
    };
    let missing: Vec<_> = ["constant_tsc", "nonstop_tsc"]
        .into_iter()
        .filter(|flag| !flags.split_whitespace().any(|f| f == *flag))
        .collect();
    if missing.is_empty() {
        check.ok("constant_tsc and nonstop_tsc")
    } else {
        check.differs(Severity::Info, format!("no {}", missing.join(", ")), "")
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{FakeRoot, find};
    use super::super::finding::Severity;
    use super::check;

    const BASE: &str = "/sys/devices/system/clocksource/clocksource0";

    #[test]
    fn slow_clocks_are_warned_of_and_tsc_is_offered_where_there_is_one() {
        for (current, available, severity, fixed) in [
            ("tsc", "tsc hpet", Severity::Ok, false),
            ("kvm-clock", "kvm-clock tsc", Severity::Info, true),
            ("hpet", "hpet acpi_pm", Severity::Warn, false),
            ("acpi_pm", "tsc acpi_pm", Severity::Warn, true),
            ("arch_sys_counter", "arch_sys_counter", Severity::Ok, false),
        ] {
            let paths = [format!("{BASE}/current_clocksource"), format!("{BASE}/available_clocksource")];
            let root = FakeRoot::new(&[(&paths[0], current), (&paths[1], available)]);
            let findings = check(&root.host());
            let finding = find(&findings, "clock.source");
            assert_eq!((finding.severity, finding.fix_command.is_some()), (severity, fixed), "{current}");
        }
    }

    #[test]
    fn counter_flags_are_whole_words() {
        for (flags, severity) in [
            ("flags\t\t: fpu constant_tsc nonstop_tsc", Severity::Ok),
            ("flags\t\t: fpu constant_tsc", Severity::Info),
            ("flags\t\t: not_constant_tsc nonstop_tsc", Severity::Info),
            ("Features\t: fp asimd", Severity::Info),
        ] {
            let root = FakeRoot::new(&[("/proc/cpuinfo", flags)]);
            assert_eq!(find(&check(&root.host()), "clock.tsc_flags").severity, severity, "{flags}");
        }
    }
}
