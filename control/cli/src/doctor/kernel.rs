//! The kernel's release and what io_uring may do on it.

use super::finding::{Check, Finding, Severity, Verdict};
use super::host::{Host, Unread};
use super::ring::{OperationsMissing, RingAbilities, RingState};

/// The oldest release that has DEFER_TASKRUN together with every operation the reactor uses.
const RELEASE_MIN: (u32, u32) = (6, 1);

const RELEASE_PATH: &str = "/proc/sys/kernel/osrelease";
const DISABLED_KEY: &str = "kernel.io_uring_disabled";
const DISABLED_PATH: &str = "/proc/sys/kernel/io_uring_disabled";

/// All checks of this family.
pub(super) fn check(host: &Host) -> Vec<Finding> {
    let mut findings = vec![release(host), disabled(host), group(host), seccomp(host), setup(host)];
    findings.extend(abilities(host));
    findings
}

fn release(host: &Host) -> Finding {
    let check = Check::new(
        "kernel.release",
        "kernel release",
        ">= 6.1",
        "6.1 brought DEFER_TASKRUN; shard is built for and tested on 6.1 and newer.",
    );
    let text = match host.read(RELEASE_PATH) {
        Ok(text) => text,
        Err(why) => return check.unknown(&why),
    };
    match parse_release(&text) {
        Some(found) => check.judge(Verdict::unless(found >= RELEASE_MIN, Severity::Fail), text, ""),
        None => check.unknown(&Unread::Failed(format!("`{text}` is no release number"))),
    }
}

/// Major and minor of `6.1.0-13-amd64` and its like.
fn parse_release(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn disabled(host: &Host) -> Finding {
    let check = Check::new(
        "kernel.io_uring_disabled",
        DISABLED_KEY,
        "0",
        "2 forbids io_uring to all, 1 to processes outside kernel.io_uring_group; shard-proxy then runs on epoll.",
    );
    match host.number(DISABLED_PATH) {
        Ok(0) => check.ok("0"),
        Ok(1) => check.differs(Severity::Info, "1 (only the group)", "sysctl -w kernel.io_uring_disabled=0"),
        Ok(found) => check.differs(Severity::Warn, found.to_string(), "sysctl -w kernel.io_uring_disabled=0"),
        Err(Unread::Absent(_)) => check.not_applicable("the switch came with Linux 6.6"),
        Err(why) => check.unknown(&why),
    }
}

fn group(host: &Host) -> Finding {
    let check = Check::new(
        "kernel.io_uring_group",
        "kernel.io_uring_group",
        "a group of shard's user",
        "With io_uring_disabled = 1 only members of this group (and CAP_SYS_ADMIN) may set up a ring.",
    );
    match host.number(DISABLED_PATH) {
        Ok(1) => {}
        Ok(_) | Err(Unread::Absent(_)) => {
            return check.not_applicable("kernel.io_uring_disabled is not 1");
        }
        Err(why) => return check.unknown(&why),
    }
    let wanted = match host.read("/proc/sys/kernel/io_uring_group") {
        Ok(text) => text,
        Err(why) => return check.unknown(&why),
    };
    match (host.status("Groups"), host.status("Gid")) {
        (Ok(groups), Ok(gids)) => {
            let member = groups.split_whitespace().chain(gids.split_whitespace()).any(|g| g == wanted);
            let fix = "sysctl -w kernel.io_uring_group=$(id -g shard)";
            check.judge(Verdict::unless(member, Severity::Warn), wanted, fix)
        }
        (Err(why), _) | (_, Err(why)) => check.unknown(&why),
    }
}

fn seccomp(host: &Host) -> Finding {
    let check = Check::new(
        "kernel.seccomp",
        "seccomp filter",
        "none, or io_uring allowed",
        "Container runtimes' default filters forbid io_uring_setup, io_uring_enter and io_uring_register.",
    );
    let fix = "docker run --security-opt seccomp=PROFILE   # a profile that allows the io_uring calls";
    match (host.status("Seccomp"), host.ring()) {
        (Ok(mode), RingState::Refused { message, .. }) if mode == "2" => {
            check.differs(Severity::Warn, format!("filter, and the ring is refused: {message}"), fix)
        }
        (Ok(mode), RingState::NotProbed(why)) if mode == "2" => {
            check.unknown(&Unread::Failed(format!("a filter is set; whether it allows io_uring: {why}")))
        }
        (Ok(mode), _) => match mode.as_str() {
            "0" => check.ok("none"),
            "1" => check.differs(Severity::Fail, "strict mode", ""),
            "2" => check.ok("filter, io_uring allowed"),
            other => check.unknown(&Unread::Failed(format!("Seccomp mode `{other}`"))),
        },
        (Err(why), _) => check.unknown(&why),
    }
}

fn setup(host: &Host) -> Finding {
    let check = Check::new(
        "kernel.io_uring_setup",
        "io_uring_setup",
        "SINGLE_ISSUER, DEFER_TASKRUN",
        "The reactor completes work only when it asks for it; without DEFER_TASKRUN a request costs half as much \
         CPU again, without a ring shard-proxy runs on epoll.",
    );
    match host.ring() {
        RingState::Up(RingAbilities { defer_taskrun: true, .. }) => check.ok("SINGLE_ISSUER, DEFER_TASKRUN"),
        RingState::Up(_) => check.differs(Severity::Warn, "a plain ring only", ""),
        RingState::Refused { errno, message } => {
            let fix = match *errno {
                libc::EPERM | libc::EACCES => {
                    "sysctl -w kernel.io_uring_disabled=0   # and see kernel.seccomp"
                }
                libc::ENOMEM => "prlimit --memlock=524288 -p PID   # LimitMEMLOCK= in the unit",
                _ => "",
            };
            check.differs(Severity::Warn, format!("refused: {message}"), fix)
        }
        RingState::NotProbed(why) => check.unknown(&Unread::Failed(why.clone())),
    }
}

fn abilities(host: &Host) -> [Finding; 2] {
    let features = Check::new(
        "kernel.io_uring_features",
        "io_uring features",
        "none missing",
        "NODROP, EXT_ARG and CQE_SKIP are what the reactor counts on.",
    );
    let operations = Check::new(
        "kernel.io_uring_operations",
        "io_uring operations",
        "none missing",
        "Asked from the kernel by IORING_REGISTER_PROBE; POLL_ADD and POLL_REMOVE are those the reactor submits.",
    );
    let RingState::Up(abilities) = host.ring() else {
        let why = "there is no ring to ask";
        return [features.not_applicable(why), operations.not_applicable(why)];
    };
    let judge = |check: Check, severity: Severity, missing: &[&str]| {
        let found =
            if missing.is_empty() { "none missing".to_owned() } else { format!("no {}", missing.join(", ")) };
        check.judge(Verdict::unless(missing.is_empty(), severity), found, "")
    };
    let operations = match &abilities.operations {
        Ok(OperationsMissing { used, unused }) if used.is_empty() => {
            judge(operations, Severity::Info, unused)
        }
        Ok(OperationsMissing { used, .. }) => judge(operations, Severity::Warn, used),
        Err(why) => operations.unknown(&Unread::Failed(why.clone())),
    };
    [judge(features, Severity::Warn, &abilities.features_missing), operations]
}

#[cfg(test)]
mod tests {
    use super::super::fake::{FakeRoot, find, no_tool};
    use super::super::finding::Severity;
    use super::super::ring::{OperationsMissing, RingAbilities, RingState};
    use super::check;

    #[test]
    fn releases_compare_as_numbers() {
        for (text, severity) in [
            ("6.1.0-13-amd64", Severity::Ok),
            ("6.18.44-fc-v857", Severity::Ok),
            ("10.0.1", Severity::Ok),
            ("6.0.19", Severity::Fail),
            ("5.15.0-91-generic", Severity::Fail),
            ("rolling", Severity::Warn),
        ] {
            let root = FakeRoot::new(&[("/proc/sys/kernel/osrelease", text)]);
            assert_eq!(find(&check(&root.host()), "kernel.release").severity, severity, "{text}");
        }
    }

    #[test]
    fn the_switch_and_its_group_are_judged_together() {
        let status = "Gid:\t5\t5\t5\t5\nGroups:\t7 8\nSeccomp:\t0\n";
        for (switch, group, of_switch, of_group) in [
            (Some("0"), "-1", Severity::Ok, Severity::Info),
            (Some("1"), "8", Severity::Info, Severity::Ok),
            (Some("1"), "5", Severity::Info, Severity::Ok),
            (Some("1"), "9", Severity::Info, Severity::Warn),
            (Some("2"), "8", Severity::Warn, Severity::Info),
            (None, "8", Severity::Info, Severity::Info),
        ] {
            let mut files = vec![("/proc/sys/kernel/io_uring_group", group), ("/proc/self/status", status)];
            files.extend(switch.map(|s| ("/proc/sys/kernel/io_uring_disabled", s)));
            let findings = check(&FakeRoot::new(&files).host());
            let found = (
                find(&findings, "kernel.io_uring_disabled").severity,
                find(&findings, "kernel.io_uring_group").severity,
            );
            assert_eq!(found, (of_switch, of_group), "{switch:?} with group {group}");
        }
    }

    #[test]
    fn a_refused_or_poor_ring_is_a_warning_and_a_full_one_is_ok() {
        let full = RingAbilities {
            defer_taskrun: true,
            features_missing: vec![],
            operations: Ok(OperationsMissing::default()),
        };
        let plain = RingAbilities { defer_taskrun: false, ..full.clone() };
        let poor = RingAbilities {
            features_missing: vec!["EXT_ARG"],
            operations: Ok(OperationsMissing { used: vec!["POLL_ADD"], unused: vec![] }),
            ..full.clone()
        };
        let spare = RingAbilities {
            operations: Ok(OperationsMissing { used: vec![], unused: vec!["SEND_ZC"] }),
            ..full.clone()
        };
        let mute = RingAbilities { operations: Err("no probe".to_owned()), ..full.clone() };
        let refused =
            RingState::Refused { errno: libc::EPERM, message: "Operation not permitted".to_owned() };
        let root = FakeRoot::new(&[("/proc/self/status", "Seccomp:\t2\n")]);
        let severities = |ring: RingState| {
            let findings = check(&root.host().with(ring, no_tool));
            ["setup", "features", "operations"]
                .map(|name| find(&findings, &format!("kernel.io_uring_{name}")).severity)
        };
        assert_eq!(severities(RingState::Up(full)), [Severity::Ok; 3]);
        assert_eq!(severities(RingState::Up(plain)), [Severity::Warn, Severity::Ok, Severity::Ok]);
        assert_eq!(severities(RingState::Up(poor)), [Severity::Ok, Severity::Warn, Severity::Warn]);
        assert_eq!(severities(RingState::Up(spare)), [Severity::Ok, Severity::Ok, Severity::Info]);
        assert_eq!(severities(RingState::Up(mute)), [Severity::Ok, Severity::Ok, Severity::Warn]);
        assert_eq!(severities(refused.clone()), [Severity::Warn, Severity::Info, Severity::Info]);
        let findings = check(&root.host().with(refused, no_tool));
        assert_eq!(
            find(&findings, "kernel.seccomp").severity,
            Severity::Warn,
            "the filter explains the refusal"
        );
    }
}
