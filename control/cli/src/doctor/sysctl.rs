//! Checks of one sysctl value against a rule: the form that most kernel advice has. Used by the families that
//! hold tables of them (`limits`, `tcp`, `net_device`, `memory`).

use super::finding::{Check, Finding, Severity, Verdict};
use super::host::{Host, Unread};

/// One sysctl and what it should be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sysctl {
    pub(crate) id: &'static str,
    /// Dotted, as sysctl(8) names it.
    pub(crate) key: &'static str,
    pub(crate) rule: Rule,
    /// What breaking the rule means.
    pub(crate) severity: Severity,
    pub(crate) why: &'static str,
}

/// What a value should be. Numbers are in the sysctl's own unit, which `unit` of the rule's text names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    AtLeast(u64),
    AtMost(u64),
    Is(u64),
    /// Any of these numbers; the first is what is advised.
    OneOf(&'static [u64]),
    /// The last number of a `min default max` triple is at least this.
    MaxAtLeast(u64),
    /// The range `low high` spans at least this many numbers.
    SpanAtLeast(u64),
}

impl Sysctl {
    /// Reads the value and judges it.
    pub(crate) fn check(&self, host: &Host) -> Finding {
        let check = Check::new(self.id, self.key, &self.rule.advice(), self.why);
        let path = format!("/proc/sys/{}", self.key.replace('.', "/"));
        let text = match host.read(&path) {
            Ok(text) => text,
            Err(Unread::Absent(_)) if self.key.starts_with("net.") && host.in_network_namespace() => {
                return check.not_applicable("only the host's network namespace has it; look there");
            }
            Err(why) => return check.unknown(&why),
        };
        let found = text.split_whitespace().collect::<Vec<_>>().join(" ");
        match self.rule.holds(&found) {
            Ok(holds) => {
                let fix = format!("sysctl -w {}={}", self.key, self.rule.setting(&found));
                check.judge(Verdict::unless(holds, self.severity), found, &fix)
            }
            Err(why) => check.unknown(&Unread::Failed(why)),
        }
    }
}

impl Rule {
    fn advice(self) -> String {
        match self {
            Self::AtLeast(n) => format!(">= {n}"),
            Self::AtMost(n) => format!("<= {n}"),
            Self::Is(n) => n.to_string(),
            Self::OneOf(list) => list.iter().map(u64::to_string).collect::<Vec<_>>().join(" or "),
            Self::MaxAtLeast(n) => format!("max >= {n}"),
            Self::SpanAtLeast(n) => format!(">= {n} ports"),
        }
    }

    fn holds(self, found: &str) -> Result<bool, String> {
        let numbers = found
            .split(' ')
            .map(|n| n.parse::<u64>().map_err(|e| format!("`{found}` is no list of numbers: {e}")))
            .collect::<Result<Vec<_>, _>>()?;
        match (self, numbers.as_slice()) {
            (Self::AtLeast(n), [v]) => Ok(*v >= n),
            (Self::AtMost(n), [v]) => Ok(*v <= n),
            (Self::Is(n), [v]) => Ok(*v == n),
            (Self::OneOf(list), [v]) => Ok(list.contains(v)),
            (Self::MaxAtLeast(n), [_, _, v]) => Ok(*v >= n),
            (Self::SpanAtLeast(n), [low, high]) => Ok(high.saturating_sub(*low) >= n),
            _ => Err(format!("`{found}` has {} numbers, which this rule does not expect", numbers.len())),
        }
    }

    /// The value that a fix writes, other parts of a list left as they are.
    fn setting(self, found: &str) -> String {
        match self {
            Self::AtLeast(n) | Self::AtMost(n) | Self::Is(n) => n.to_string(),
            Self::OneOf(list) => list.first().map_or_else(String::new, u64::to_string),
            Self::MaxAtLeast(n) => {
                let mut parts = found.split(' ').map(str::to_owned).collect::<Vec<_>>();
                if let Some(last) = parts.last_mut() {
                    *last = n.to_string();
                }
                format!("\"{}\"", parts.join(" "))
            }
            // The kernel's default: a wider range would hand out ports below 32768, where listeners live.
            Self::SpanAtLeast(_) => "\"32768 60999\"".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::FakeRoot;
    use super::super::finding::Severity;
    use super::{Rule, Sysctl};

    fn check(rule: Rule, text: &str) -> (Severity, String, Option<String>) {
        let root = FakeRoot::new(&[("/proc/sys/a/b", text)]);
        let sysctl = Sysctl { id: "t.b", key: "a.b", rule, severity: Severity::Fail, why: "" };
        let finding = sysctl.check(&root.host());
        (finding.severity, finding.found, finding.fix_command)
    }

    #[test]
    fn each_rule_has_both_sides_of_its_bound() {
        let cases: [(Rule, &str, bool); 14] = [
            (Rule::AtLeast(10), "10\n", true),
            (Rule::AtLeast(10), "9\n", false),
            (Rule::AtMost(10), "10", true),
            (Rule::AtMost(10), "11", false),
            (Rule::Is(1), "1", true),
            (Rule::Is(1), "2", false),
            (Rule::OneOf(&[1, 2]), "2", true),
            (Rule::OneOf(&[1, 2]), "0", false),
            (Rule::MaxAtLeast(100), "1\t5\t100\n", true),
            (Rule::MaxAtLeast(100), "1\t500\t99\n", false),
            (Rule::SpanAtLeast(100), "100\t200\n", true),
            (Rule::SpanAtLeast(100), "101\t200\n", false),
            (Rule::SpanAtLeast(100), "300\t200\n", false),
            (Rule::AtLeast(0), "18446744073709551615", true),
        ];
        for (rule, text, good) in cases {
            let (severity, _, fix) = check(rule, text);
            assert_eq!(severity == Severity::Ok, good, "{rule:?} on {text:?}");
            assert_eq!(fix.is_none(), good, "a fix exactly where something is wrong: {rule:?} on {text:?}");
        }
    }

    #[test]
    fn a_fix_keeps_the_parts_of_a_triple_it_does_not_judge() {
        let (_, found, fix) = check(Rule::MaxAtLeast(100), "1\t5\t99\n");
        assert_eq!(found, "1 5 99");
        assert_eq!(fix.as_deref(), Some("sysctl -w a.b=\"1 5 100\""));
    }

    #[test]
    fn what_cannot_be_understood_is_unknown_and_never_ok() {
        for (rule, text) in [
            (Rule::AtLeast(1), ""),
            (Rule::AtLeast(1), "many"),
            (Rule::AtLeast(1), "1 2"),
            (Rule::MaxAtLeast(1), "7"),
            (Rule::Is(1), "-1"),
            (Rule::AtLeast(1), "18446744073709551616"),
        ] {
            let (severity, found, _) = check(rule, text);
            assert_eq!(severity, Severity::Warn, "{rule:?} on {text:?}");
            assert!(found.starts_with("unknown: "), "{found}");
        }
    }

    #[test]
    fn an_absent_key_is_unknown_on_a_host_and_not_applicable_in_a_network_namespace() {
        let sysctl =
            Sysctl { id: "t.x", key: "net.core.x", rule: Rule::Is(1), severity: Severity::Warn, why: "" };
        let host = FakeRoot::new(&[("/proc/sys/net/core/netdev_budget", "300")]);
        assert!(sysctl.check(&host.host()).found.starts_with("unknown: "));
        let namespace = FakeRoot::new(&[("/proc/sys/net/core/somaxconn", "4096")]);
        let finding = sysctl.check(&namespace.host());
        assert!(finding.found.starts_with("not applicable: "), "{}", finding.found);
        assert_eq!(finding.severity, Severity::Info);
    }
}
