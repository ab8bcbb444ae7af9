//! Which interrupts a network device has and on which CPUs they may run. Called by the `net_device` checks.

use super::super::cpulist::{self, CpuSet};
use super::super::host::{Host, Unread};

/// One interrupt line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interrupt {
    pub(super) number: u32,
    /// Where it may run.
    pub(super) cpus: CpuSet,
}

/// The queue interrupts of a device, by its name or its bus device's in `/proc/interrupts` (`eth0-rx-0`,
/// `virtio2-input.0`, `mlx5_comp0@pci:0000:01:00.0`). Configuration and management vectors are left out.
///
/// # Errors
/// When `/proc/interrupts` or an affinity list cannot be read.
pub(super) fn of_device(host: &Host, device: &str) -> Result<Vec<Interrupt>, Unread> {
    let bus = host.link_name(&format!("/sys/class/net/{device}/device")).unwrap_or_default();
    let mut interrupts = Vec::new();
    for line in host.read("/proc/interrupts")?.lines() {
        let Some((number, rest)) = line.split_once(':') else {
            continue;
        };
        let Ok(number) = number.trim().parse::<u32>() else {
            continue;
        };
        let Some(name) = rest.split_whitespace().last() else {
            continue;
        };
        let ours = is_of(name, device) || (!bus.is_empty() && is_of(name, &bus));
        if !ours || ["config", "control", "async", "misc"].iter().any(|other| name.contains(other)) {
            continue;
        }
        let list = host.read(&format!("/proc/irq/{number}/smp_affinity_list"))?;
        interrupts.push(Interrupt { number, cpus: cpulist::parse(&list)? });
    }
    Ok(interrupts)
}

/// Whether `owner` stands in `name` as a whole word: `eth1` is not the owner of `eth10-rx-0`.
fn is_of(name: &str, owner: &str) -> bool {
    name.match_indices(owner).any(|(at, _)| {
        let before = name[..at].chars().next_back();
        let after = name[at + owner.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::fake::FakeRoot;
    use super::of_device;

    #[test]
    fn queue_interrupts_are_found_by_device_or_bus_name_and_others_are_not() {
        let root = FakeRoot::new(&[
            (
                "/proc/interrupts",
                "           CPU0       CPU1\n 24:  1  0  IO-APIC   5-edge  ACPI:Ged\n \
                 37:  0  0 PCI-MSIX-0000:00:03.0   0-edge  virtio2-config\n \
                 38:  0  9 PCI-MSIX-0000:00:03.0   1-edge  virtio2-input.0\n \
                 39:  9  0 PCI-MSIX-0000:00:03.0   2-edge  virtio2-output.0\n \
                 41:  9  0 PCI-MSIX-0000:00:13.0   2-edge  virtio20-input.0\n \
                 42:  9  0 PCI-MSI 1-edge  eth0-TxRx-1\n 43:  9  0 PCI-MSI 1-edge  eth00-TxRx-1\nNMI: 0 0 x\n",
            ),
            ("/proc/irq/38/smp_affinity_list", "1\n"),
            ("/proc/irq/39/smp_affinity_list", "0-1\n"),
            ("/proc/irq/42/smp_affinity_list", "0\n"),
        ]);
        root.link("/sys/class/net/eth0/device", "../../../virtio2");
        let found = of_device(&root.host(), "eth0").expect("readable");
        let found: Vec<_> = found.iter().map(|i| (i.number, i.cpus.len())).collect();
        assert_eq!(found, [(38, 1), (39, 2), (42, 1)]);
    }

    #[test]
    fn an_unreadable_affinity_is_an_error_not_an_empty_list() {
        let root = FakeRoot::new(&[("/proc/interrupts", " 5: 0 0 x eth0\n")]);
        assert!(of_device(&root.host(), "eth0").is_err());
    }
}
