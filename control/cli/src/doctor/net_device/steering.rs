//! Checks of how packets find their core: queues against reactors, RSS or RPS, XPS, aRFS.

use super::super::Target;
use super::super::finding::{Check, Finding, Severity, Verdict};
use super::super::host::{Host, Unread};
use super::device::{Device, feature};

pub(super) fn queues(_host: &Host, target: &Target, device: &Device) -> Finding {
    let check = Check::new(
        "net_device.queues",
        &device.subject("receive queues"),
        &format!("{} (one per reactor)", target.reactors),
        "With a queue per reactor the core that takes the packet also serves the connection.",
    );
    let hardware = match &device.hardware {
        Ok(hardware) => hardware,
        Err(why) => return check.not_applicable(why),
    };
    let found = hardware.receive_queues.len();
    let severity = if found < target.reactors { Severity::Warn } else { Severity::Info };
    let fix = format!("ethtool -L {} combined {}", device.name, target.reactors);
    check.judge(Verdict::unless(found == target.reactors, severity), found.to_string(), &fix)
}

pub(super) fn receive_steering(host: &Host, target: &Target, device: &Device) -> Finding {
    let check = Check::new(
        "net_device.receive_steering",
        &device.subject("RSS or RPS"),
        "RSS queues, else RPS",
        "When the device has fewer queues than reactors, RPS is what spreads packets over the cores.",
    );
    let hardware = match &device.hardware {
        Ok(hardware) => hardware,
        Err(why) => return check.not_applicable(why),
    };
    let queues = hardware.receive_queues.len();
    if queues >= target.reactors {
        return check.ok(format!("RSS over {queues} queues"));
    }
    let mut steered = 0;
    for queue in &hardware.receive_queues {
        match host.read(&format!("/sys/class/net/{}/queues/{queue}/rps_cpus", device.name)) {
            Ok(mask) => steered += usize::from(is_set(&mask)),
            Err(why) => return check.unknown(&why),
        }
    }
    let fix = format!(
        "for q in /sys/class/net/{}/queues/rx-*; do echo {} > $q/rps_cpus; done",
        device.name,
        target.mask()
    );
    let found = format!("{queues} of {} queues, RPS on {steered}", target.reactors);
    check.judge(Verdict::unless(steered == queues && queues > 0, Severity::Warn), found, &fix)
}

/// Whether a CPU mask such as `00000000,00000003` has a bit set.
fn is_set(mask: &str) -> bool {
    mask.bytes().any(|b| b != b'0' && b.is_ascii_hexdigit())
}

pub(super) fn transmit_steering(host: &Host, _target: &Target, device: &Device) -> Finding {
    let check = Check::new(
        "net_device.transmit_steering",
        &device.subject("XPS"),
        "a CPU mask on each queue",
        "Without XPS two cores may share a transmit queue and its lock.",
    );
    let queues = match &device.hardware {
        Ok(hardware) if hardware.transmit_queues.len() < 2 => {
            return check.not_applicable("one transmit queue");
        }
        Ok(hardware) => &hardware.transmit_queues,
        Err(why) => return check.not_applicable(why),
    };
    let mut steered = 0;
    for queue in queues {
        match host.read(&format!("/sys/class/net/{}/queues/{queue}/xps_cpus", device.name)) {
            Ok(mask) => steered += usize::from(is_set(&mask)),
            Err(why) => return check.unknown(&why),
        }
    }
    let fix = format!(
        "i=0; for q in /sys/class/net/{}/queues/tx-*; do printf %x $((1<<i)) > $q/xps_cpus; i=$((i+1)); done",
        device.name
    );
    let found = format!("on {steered} of {} queues", queues.len());
    check.judge(Verdict::unless(steered == queues.len(), Severity::Warn), found, &fix)
}

pub(super) fn flow_steering(host: &Host, _target: &Target, device: &Device) -> Finding {
    let check = Check::new(
        "net_device.flow_steering",
        &device.subject("aRFS"),
        "ntuple-filters on, or steering by CPU",
        "Brings later packets to the core that reads the socket; listeners with steering incoming_cpu need none.",
    );
    if let Err(why) = &device.hardware {
        return check.not_applicable(why);
    }
    let flows = host.number("/proc/sys/net/core/rps_sock_flow_entries");
    match (host.ethtool("-k", &device.name), flows) {
        (Ok(text), Ok(flows)) => match feature(&text, "ntuple-filters") {
            Some((true, _)) if flows > 0 => check.ok(format!("on, {flows} flows")),
            Some((false, true)) => check.not_applicable("the device cannot filter flows"),
            Some((filters, _)) => {
                let fix = format!(
                    "ethtool -K {} ntuple on && sysctl -w net.core.rps_sock_flow_entries=32768",
                    device.name
                );
                let word = if filters { "on" } else { "off" };
                check.differs(Severity::Info, format!("ntuple {word}, {flows} flows"), &fix)
            }
            None => check.unknown(&Unread::Failed("ethtool -k shows no ntuple-filters".to_owned())),
        },
        (Err(why), _) | (_, Err(why)) => check.unknown(&why),
    }
}
