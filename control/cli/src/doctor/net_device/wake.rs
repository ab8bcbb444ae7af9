//! Checks of when and where a packet wakes a core: interrupt affinity, coalescing, deferral, irqbalance.

use super::super::finding::{Check, Finding, Severity, Verdict};
use super::super::host::{Host, Unread};
use super::super::{Target, cpulist};
use super::device::Device;
use super::interrupts;

pub(super) fn interrupt_affinity(host: &Host, target: &Target, device: &Device) -> Finding {
    let check = Check::new(
        "net_device.interrupts",
        &device.subject("interrupts"),
        "one CPU each, spread",
        "An interrupt that wanders, or all on one CPU, puts the receive path on another core than the reactor.",
    );
    if let Err(why) = &device.hardware {
        return check.not_applicable(why);
    }
    let interrupts = match interrupts::of_device(host, &device.name) {
        Ok(interrupts) if interrupts.is_empty() => {
            return check.not_applicable("the device has no interrupt of its own");
        }
        Ok(interrupts) => interrupts,
        Err(why) => return check.unknown(&why),
    };
    let mut cpus = cpulist::CpuSet::new();
    let mut wandering = 0;
    for interrupt in &interrupts {
        wandering += usize::from(interrupt.cpus.len() != 1);
        cpus.extend(&interrupt.cpus);
    }
    let crowded = interrupts.len() > 1 && target.reactors > 1 && cpus.len() == 1;
    let found = format!("{} on CPUs {}, {wandering} not pinned", interrupts.len(), cpulist::print(&cpus));
    let first = interrupts.first().map_or(0, |i| i.number);
    let fix = format!("echo CPU > /proc/irq/{first}/smp_affinity_list   # and so on for each");
    check.judge(Verdict::unless(wandering == 0 && !crowded, Severity::Warn), found, &fix)
}

pub(super) fn coalescing(host: &Host, _target: &Target, device: &Device) -> Finding {
    let check = Check::new(
        "net_device.coalescing",
        &device.subject("rx coalescing"),
        "adaptive off, <= 50 us",
        "The device holds packets back this long before it interrupts: added latency on every quiet connection.",
    );
    if let Err(why) = &device.hardware {
        return check.not_applicable(why);
    }
    let text = match host.ethtool("-c", &device.name) {
        Ok(text) => text,
        Err(why) => return check.unknown(&why),
    };
    let value = |name: &str| text.lines().find_map(|l| l.trim().strip_prefix(name)?.strip_prefix(':'));
    let adaptive = value("Adaptive RX").is_some_and(|v| v.split_whitespace().next() == Some("on"));
    match value("rx-usecs").map(str::trim) {
        Some("n/a") | None => check.not_applicable("the driver does not coalesce by time"),
        Some(text) => match text.parse::<u32>() {
            Ok(us) => {
                let word = if adaptive { "adaptive" } else { "fixed" };
                let fix = format!("ethtool -C {} adaptive-rx off rx-usecs 20", device.name);
                check.judge(
                    Verdict::unless(!adaptive && us <= 50, Severity::Info),
                    format!("{word}, {us} us"),
                    &fix,
                )
            }
            Err(error) => check.unknown(&Unread::Failed(format!("rx-usecs `{text}`: {error}"))),
        },
    }
}

pub(super) fn deferred_interrupts(host: &Host, _target: &Target, device: &Device) -> Finding {
    let check = Check::new(
        "net_device.deferred_interrupts",
        &device.subject("napi_defer_hard_irqs"),
        "both 0, or both set",
        "napi_defer_hard_irqs only works with gro_flush_timeout: (0, 0) is plain, (2, 200000) serves busy polling.",
    );
    if let Err(why) = &device.hardware {
        return check.not_applicable(why);
    }
    let base = format!("/sys/class/net/{}", device.name);
    let defer = host.number(&format!("{base}/napi_defer_hard_irqs"));
    match (defer, host.number(&format!("{base}/gro_flush_timeout"))) {
        (Ok(defer), Ok(flush_ns)) => {
            let fix = format!("echo 200000 > {base}/gro_flush_timeout; echo 2 > {base}/napi_defer_hard_irqs");
            let good = (defer == 0) == (flush_ns == 0);
            check.judge(Verdict::unless(good, Severity::Warn), format!("({defer}, {flush_ns} ns)"), &fix)
        }
        (Err(why), _) | (_, Err(why)) => check.unknown(&why),
    }
}

pub(super) fn irqbalance(host: &Host) -> Finding {
    let check = Check::new(
        "net_device.irqbalance",
        "irqbalance",
        "not running",
        "It moves interrupts away from where they were pinned.",
    );
    match host.runs("irqbalance") {
        Ok(false) => check.ok("not running here"),
        Ok(true) => check.differs(Severity::Warn, "running", "systemctl disable --now irqbalance"),
        Err(why) => check.unknown(&why),
    }
}
