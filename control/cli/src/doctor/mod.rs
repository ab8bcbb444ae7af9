//! `shardctl doctor`: what of a tuned host is set, what is missing, and why it matters.
//!
//! ```text
//! Host (reads below a root) ──► one file per family: pure checks ──► Vec<Finding> ──► table | json
//! ```
//! Invariants: checks read through [`host::Host`] only and change nothing; a value that cannot be read is
//! reported as unknown, never as ok; the exit code is that of the worst finding.
//! To add a check: one function (or one table row) in its family's file, with a test for both sides.

mod bpf;
mod cgroup;
mod clock;
mod cpu;
mod cpulist;
#[cfg(test)]
mod fake;
mod finding;
mod host;
mod json;
mod kernel;
mod limits;
mod memory;
mod net_device;
mod ring;
mod sysctl;
mod table;
mod tcp;

use std::io::IsTerminal;
use std::path::PathBuf;

use crate::args::{Args, UsageError};
use crate::outcome::{Code, Outcome};

use finding::{Finding, Severity};
use host::Host;

pub(crate) const HELP: &str = "\
Usage: shardctl doctor [--json] [--reactors N] [--interface NAME] [--root PATH]

Prints what of a tuned host is set, what is missing and why it matters. Run it as shard-proxy runs:
same user, same unit or container.

Options:
  --json            Print the findings as JSON: {\"version\":1,\"findings\":[...]}
  --reactors N      Reactors that shard-proxy will run (default: the CPUs of this process)
  --interface NAME  The network device to look at (default: the one of the default route)
  --root PATH       Read /proc and /sys below PATH instead of /; no ring is set up

Exit code: 0 all ok or only notes, 1 a warning (or a value that could not be read), 2 a failure,
64 wrong usage.
";

/// What the host is to carry.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) reactors: usize,
    pub(crate) interface: Option<String>,
}

impl Target {
    /// The CPU mask of the first `reactors` CPUs in the form of `rps_cpus`: groups of 32 bits, highest first.
    pub(crate) fn mask(&self) -> String {
        let groups = self.reactors.div_ceil(32).max(1);
        let bits = |group: usize| match self.reactors.saturating_sub(group * 32) {
            32.. => u32::MAX,
            some => (1u32 << some) - 1,
        };
        (0..groups).rev().map(|g| format!("{:x}", bits(g))).collect::<Vec<_>>().join(",")
    }
}

/// Runs the command.
///
/// # Errors
/// `UsageError` for a wrong argument.
pub(crate) fn run(mut args: Args) -> Result<Outcome, UsageError> {
    let as_json = args.flag("--json");
    let reactors = args.value_parsed::<usize>("--reactors", "a number of reactors from 1 to 1024")?;
    let interface = args.value("--interface")?;
    let root = args.value("--root")?.map_or_else(|| PathBuf::from("/"), PathBuf::from);
    args.finish()?;
    if !root.is_dir() {
        return Err(UsageError::new(format!("--root {}: not a directory", root.display())));
    }
    if reactors.is_some_and(|n| !(1..=1024).contains(&n)) {
        return Err(UsageError::new("--reactors: a number from 1 to 1024 is wanted"));
    }
    if interface
        .as_ref()
        .is_some_and(|name| name.is_empty() || name.contains('/') || name.starts_with(['.', '-']))
    {
        return Err(UsageError::new("--interface: the name of a network device is wanted"));
    }
    let host = Host::below(&root);
    let target = Target { reactors: reactors.unwrap_or_else(|| allowed_cpus(&host)), interface };
    let findings = examine(&host, &target);
    let text = if as_json { json::print(&findings) } else { table::print(&findings, colour()) };
    Ok(Outcome { code: code(&findings), out: text.into_bytes(), err: String::new() })
}

/// All findings, family by family.
fn examine(host: &Host, target: &Target) -> Vec<Finding> {
    [
        kernel::check(host),
        limits::check(host),
        tcp::check(host),
        net_device::check(host, target),
        cpu::check(host, target),
        memory::check(host),
        clock::check(host),
        cgroup::check(host, target),
        bpf::check(host),
    ]
    .concat()
}

/// The exit code of the worst finding.
fn code(findings: &[Finding]) -> Code {
    match findings.iter().map(|f| f.severity).max() {
        None | Some(Severity::Ok | Severity::Info) => Code::Success,
        Some(Severity::Warn) => Code::Failure,
        Some(Severity::Fail) => Code::Severe,
    }
}

/// shard-proxy runs a reactor on every CPU it may use unless told otherwise; 1 where that is not known.
fn allowed_cpus(host: &Host) -> usize {
    let cpus = host.status("Cpus_allowed_list").and_then(|text| cpulist::parse(&text));
    cpus.map_or(1, |cpus| cpus.len()).max(1)
}

/// Colour only for a terminal, and not where NO_COLOR asks for none.
fn colour() -> table::Colour {
    let wanted = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    if wanted { table::Colour::Ansi } else { table::Colour::None }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::fake::FakeRoot;
    use super::finding::Severity;
    use super::{Code, Target, code, examine};

    #[test]
    fn an_empty_root_yields_every_check_once_and_nothing_ok_by_silence() {
        let root = FakeRoot::new(&[]);
        let findings = examine(&root.host(), &Target { reactors: 2, interface: None });
        let ids: BTreeSet<_> = findings.iter().map(|f| f.id).collect();
        assert_eq!(ids.len(), findings.len(), "ids are unique");
        for finding in &findings {
            assert_ne!(finding.severity, Severity::Ok, "{finding:?}");
            assert!(
                !finding.found.is_empty() && !finding.why.is_empty() && !finding.advised.is_empty(),
                "{finding:?}"
            );
        }
        let families: BTreeSet<_> =
            ids.iter().filter_map(|id| id.split_once('.')).map(|(family, _)| family).collect();
        let expected = ["kernel", "limits", "tcp", "net_device", "cpu", "memory", "clock", "cgroup", "bpf"];
        assert_eq!(families, BTreeSet::from(expected));
    }

    #[test]
    fn the_worst_finding_decides_the_exit_code() {
        let root = FakeRoot::new(&[]);
        let mut findings = examine(&root.host(), &Target { reactors: 1, interface: None });
        findings.truncate(1);
        for (severity, expected) in [
            (Severity::Ok, Code::Success),
            (Severity::Info, Code::Success),
            (Severity::Warn, Code::Failure),
            (Severity::Fail, Code::Severe),
        ] {
            findings[0].severity = severity;
            assert_eq!(code(&findings), expected);
        }
        assert_eq!(code(&[]), Code::Success);
    }

    #[test]
    fn masks_are_in_groups_of_32_bits() {
        for (reactors, mask) in
            [(1, "1"), (2, "3"), (32, "ffffffff"), (33, "1,ffffffff"), (64, "ffffffff,ffffffff")]
        {
            assert_eq!(Target { reactors, interface: None }.mask(), mask);
        }
    }
}
