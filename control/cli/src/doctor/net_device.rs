//! The network device that carries the traffic: queues against reactors, steering, interrupts, coalescing.
//!
//! One device is looked at: `--interface`, else that of the default route. Devices without a driver of their own
//! (lo, veth in a container) have no queues to tune, and every check says so.

mod device;
mod interrupts;
mod steering;
mod wake;

use super::finding::{Check, Finding, Severity, Verdict};
use super::host::{Host, Unread};
use super::sysctl::{Rule, Sysctl};
use super::{Target, cpulist};
use device::{Device, feature};

const SYSCTLS: [Sysctl; 5] = [
    Sysctl {
        id: "net_device.max_backlog",
        key: "net.core.netdev_max_backlog",
        rule: Rule::AtLeast(4096),
        severity: Severity::Warn,
        why: "Packets that wait per CPU after RPS, veth or loopback; beyond it they are dropped.",
    },
    Sysctl {
        id: "net_device.budget",
        key: "net.core.netdev_budget",
        rule: Rule::AtLeast(300),
        severity: Severity::Warn,
        why: "Packets per softirq turn; when time_squeeze grows in /proc/net/softnet_stat, raise it.",
    },
    Sysctl {
        id: "net_device.budget_usecs",
        key: "net.core.netdev_budget_usecs",
        rule: Rule::AtLeast(2000),
        severity: Severity::Warn,
        why: "Microseconds per softirq turn, the other bound beside netdev_budget.",
    },
    Sysctl {
        id: "net_device.busy_poll",
        key: "net.core.busy_poll",
        rule: Rule::AtMost(100),
        severity: Severity::Info,
        why: "Microseconds that poll() spins on the device: 50 saves a wake-up at low load, more burns the core.",
    },
    Sysctl {
        id: "net_device.busy_read",
        key: "net.core.busy_read",
        rule: Rule::AtMost(100),
        severity: Severity::Info,
        why: "Microseconds that a read spins on the device: 50 saves a wake-up at low load, more burns the core.",
    },
];

/// All checks of this family.
pub(super) fn check(host: &Host, target: &Target) -> Vec<Finding> {
    let mut findings: Vec<_> = SYSCTLS.iter().map(|s| s.check(host)).collect();
    let device = Device::choose(host, target.interface.as_deref());
    findings.push(present(&device));
    let checks: [fn(&Host, &Target, &Device) -> Finding; 9] = [
        steering::queues,
        steering::receive_steering,
        steering::transmit_steering,
        steering::flow_steering,
        wake::interrupt_affinity,
        wake::coalescing,
        receive_offload,
        wake::deferred_interrupts,
        numa_node,
    ];
    findings.extend(checks.iter().map(|check| check(host, target, &device)));
    findings.push(wake::irqbalance(host));
    findings
}

fn present(device: &Device) -> Finding {
    let check = Check::new(
        "net_device.driver",
        &device.subject("driver"),
        "a device with a driver",
        "Queues, interrupts and coalescing belong to a device; in a container they are the host's business.",
    );
    match &device.hardware {
        Ok(hardware) => check.ok(hardware.driver.clone()),
        Err(why) => check.not_applicable(why),
    }
}

fn receive_offload(host: &Host, _target: &Target, device: &Device) -> Finding {
    let check = Check::new(
        "net_device.gro",
        &device.subject("GRO"),
        "on",
        "Merges segments before the TCP stack sees them; uploads cost several times more CPU without it.",
    );
    if let Err(why) = &device.hardware {
        return check.not_applicable(why);
    }
    match host.ethtool("-k", &device.name).map(|text| feature(&text, "generic-receive-offload")) {
        Ok(Some((true, _))) => check.ok("on"),
        Ok(Some((false, _))) => {
            check.differs(Severity::Warn, "off", &format!("ethtool -K {} gro on", device.name))
        }
        Ok(None) => check.unknown(&Unread::Failed("ethtool -k shows no generic-receive-offload".to_owned())),
        Err(why) => check.unknown(&why),
    }
}

fn numa_node(host: &Host, _target: &Target, device: &Device) -> Finding {
    let check = Check::new(
        "net_device.numa_node",
        &device.subject("NUMA node"),
        "the reactors' node",
        "Packets that cross the socket interconnect cost latency and memory bandwidth.",
    );
    if let Err(why) = &device.hardware {
        return check.not_applicable(why);
    }
    match host.list("/sys/devices/system/node").map(|names| names.iter().filter(|n| is_node(n)).count()) {
        Ok(0 | 1) | Err(Unread::Absent(_)) => return check.not_applicable("one memory node"),
        Ok(_) => {}
        Err(why) => return check.unknown(&why),
    }
    let node = match host.read(&format!("/sys/class/net/{}/device/numa_node", device.name)) {
        Ok(node) if node == "-1" => {
            return check.unknown(&Unread::Failed("the firmware does not say".to_owned()));
        }
        Ok(node) => node,
        Err(why) => return check.unknown(&why),
    };
    let allowed = host.status("Cpus_allowed_list").and_then(|text| cpulist::parse(&text));
    let local = host
        .read(&format!("/sys/devices/system/node/node{node}/cpulist"))
        .and_then(|text| cpulist::parse(&text));
    match (allowed, local) {
        (Ok(allowed), Ok(local)) => {
            let found = format!("node {node} (CPUs {})", cpulist::print(&local));
            let fix = format!("taskset -c {} shard-proxy", cpulist::print(&local));
            check.judge(Verdict::unless(allowed.is_subset(&local), Severity::Warn), found, &fix)
        }
        (Err(why), _) | (_, Err(why)) => check.unknown(&why),
    }
}

fn is_node(name: &str) -> bool {
    name.strip_prefix("node").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::super::Target;
    use super::super::fake::{FakeRoot, find};
    use super::super::finding::{Finding, Severity};
    use super::super::host::Unread;
    use super::super::ring::RingState;
    use super::check;

    const ROUTE: &str = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
        eth1\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
        eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n";

    fn tool(flag: &str, _interface: &str) -> Result<String, Unread> {
        Ok(match flag {
            "-c" => "Coalesce parameters for eth0:\nAdaptive RX: on  TX: off\nrx-usecs:\t8\n".to_owned(),
            _ => "Features for eth0:\ngeneric-receive-offload: off\nntuple-filters: off [fixed]\n".to_owned(),
        })
    }

    fn card(extra: &[(&str, &str)]) -> FakeRoot {
        let mut files = vec![
            ("/proc/net/route", ROUTE),
            ("/sys/class/net/eth0/queues/rx-0/rps_cpus", "0"),
            ("/sys/class/net/eth0/queues/rx-1/rps_cpus", "0"),
            ("/sys/class/net/eth0/queues/tx-0/xps_cpus", "1"),
            ("/sys/class/net/eth0/queues/tx-1/xps_cpus", "0"),
        ];
        files.extend_from_slice(extra);
        let root = FakeRoot::new(&files);
        root.link("/sys/class/net/eth0/device", "../../../bus/card0");
        root.link("/sys/bus/card0/driver", "../../drivers/ixgbe");
        root
    }

    fn run(root: &FakeRoot, reactors: usize) -> Vec<Finding> {
        let host = root.host().with(RingState::NotProbed("test".to_owned()), tool);
        check(&host, &Target { reactors, interface: None })
    }

    #[test]
    fn queues_are_compared_with_reactors_and_rps_makes_up_for_missing_ones() {
        let none = card(&[]);
        let rps = card(&[
            ("/sys/class/net/eth0/queues/rx-0/rps_cpus", "00000000,0000000f"),
            ("/sys/class/net/eth0/queues/rx-1/rps_cpus", "f"),
        ]);
        for (root, reactors, queues, steering) in [
            (&none, 2, Severity::Ok, Severity::Ok),
            (&none, 1, Severity::Info, Severity::Ok),
            (&none, 4, Severity::Warn, Severity::Warn),
            (&rps, 4, Severity::Warn, Severity::Ok),
        ] {
            let findings = run(root, reactors);
            assert_eq!(find(&findings, "net_device.queues").severity, queues, "{reactors} reactors");
            assert_eq!(
                find(&findings, "net_device.receive_steering").severity,
                steering,
                "{reactors} reactors"
            );
        }
    }

    #[test]
    fn the_default_routes_device_is_chosen_and_its_tool_output_is_judged() {
        let findings = run(&card(&[]), 2);
        assert_eq!(find(&findings, "net_device.driver").found, "ixgbe");
        assert_eq!(find(&findings, "net_device.coalescing").found, "adaptive, 8 us");
        assert_eq!(find(&findings, "net_device.gro").severity, Severity::Warn);
        assert!(
            find(&findings, "net_device.flow_steering").found.starts_with("unknown: "),
            "no rps_sock_flow_entries"
        );
        assert_eq!(find(&findings, "net_device.transmit_steering").found, "on 1 of 2 queues");
    }

    #[test]
    fn without_a_driver_nothing_of_the_device_is_judged() {
        let bare = FakeRoot::new(&[("/proc/net/route", ROUTE), ("/sys/class/net/eth0/mtu", "1500")]);
        let absent = FakeRoot::new(&[]);
        for root in [&bare, &absent] {
            let findings = run(root, 2);
            for name in [
                "driver",
                "queues",
                "receive_steering",
                "transmit_steering",
                "interrupts",
                "coalescing",
                "gro",
            ] {
                let finding = find(&findings, &format!("net_device.{name}"));
                assert!(finding.found.starts_with("not applicable: "), "{finding:?}");
                assert_eq!(finding.severity, Severity::Info, "{name}");
            }
        }
    }

    #[test]
    fn half_a_pair_of_deferral_settings_is_a_mistake() {
        for (defer, flush, severity) in [
            ("0", "0", Severity::Ok),
            ("2", "200000", Severity::Ok),
            ("2", "0", Severity::Warn),
            ("0", "9", Severity::Warn),
        ] {
            let root = card(&[
                ("/sys/class/net/eth0/napi_defer_hard_irqs", defer),
                ("/sys/class/net/eth0/gro_flush_timeout", flush),
            ]);
            let findings = run(&root, 2);
            assert_eq!(
                find(&findings, "net_device.deferred_interrupts").severity,
                severity,
                "{defer} {flush}"
            );
        }
    }

    #[test]
    fn a_distant_memory_node_is_a_warning() {
        for (allowed, severity) in [("0-1", Severity::Ok), ("0-2", Severity::Warn)] {
            let status = format!("Cpus_allowed_list:\t{allowed}\n");
            let root = card(&[
                ("/sys/devices/system/node/node0/cpulist", "0-1"),
                ("/sys/devices/system/node/node1/cpulist", "2-3"),
                ("/sys/bus/card0/numa_node", "0"),
                ("/proc/self/status", &status),
            ]);
            assert_eq!(find(&run(&root, 2), "net_device.numa_node").severity, severity, "{allowed}");
        }
    }

    #[test]
    fn irqbalance_is_found_by_name() {
        let root = card(&[("/proc/77/comm", "irqbalance\n")]);
        assert_eq!(find(&run(&root, 2), "net_device.irqbalance").severity, Severity::Warn);
    }
}
