//! What one check says, and how checks say it. The field names of [`Finding`] are the JSON schema: changing one
//! raises [`super::json::SCHEMA_VERSION`].

use super::host::Unread;

/// How much a finding matters; ordered, so that the worst of a list is its maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Severity {
    /// As advised.
    Ok,
    /// Worth knowing; nothing need be done.
    Info,
    /// Costs latency, throughput or safety, or could not be found out.
    Warn,
    /// shard-proxy cannot keep its promises on this host.
    Fail,
}

impl Severity {
    /// The word in tables and JSON.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// How `found` begins where the value could not be found out.
pub(crate) const UNKNOWN: &str = "unknown: ";
/// How `found` begins where the question does not arise.
pub(crate) const NOT_APPLICABLE: &str = "not applicable: ";

/// The outcome of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Stable name, `family.check`.
    pub(crate) id: &'static str,
    /// The setting by its own name: a sysctl key, a limit, a device.
    pub(crate) subject: String,
    /// The value found; begins with [`UNKNOWN`] or [`NOT_APPLICABLE`] where there is none.
    pub(crate) found: String,
    pub(crate) advised: String,
    pub(crate) severity: Severity,
    /// One or two sentences.
    pub(crate) why: &'static str,
    /// What sets the advised value until the next boot; None when no command can, or none is needed.
    pub(crate) fix_command: Option<String>,
}

/// The part of a finding that is known before looking: one check's name and purpose.
#[derive(Clone, Debug)]
pub(crate) struct Check {
    pub(crate) id: &'static str,
    pub(crate) subject: String,
    pub(crate) advised: String,
    pub(crate) why: &'static str,
}

impl Check {
    pub(crate) fn new(id: &'static str, subject: &str, advised: &str, why: &'static str) -> Self {
        Self { id, subject: subject.to_owned(), advised: advised.to_owned(), why }
    }

    /// The value is as advised.
    pub(crate) fn ok(self, found: impl Into<String>) -> Finding {
        self.finding(Severity::Ok, found.into(), None)
    }

    /// The value differs; `fix` is a shell command, empty when none can help.
    pub(crate) fn differs(self, severity: Severity, found: impl Into<String>, fix: &str) -> Finding {
        let fix = if fix.is_empty() { None } else { Some(fix.to_owned()) };
        self.finding(severity, found.into(), fix)
    }

    /// Ok when `good`, else as [`Check::differs`].
    pub(crate) fn judge(self, verdict: Verdict, found: impl Into<String>, fix: &str) -> Finding {
        match verdict {
            Verdict::Good => self.ok(found),
            Verdict::Bad(severity) => self.differs(severity, found, fix),
        }
    }

    /// The value could not be found out: a warning, because it may hide anything.
    pub(crate) fn unknown(self, why: &Unread) -> Finding {
        self.finding(Severity::Warn, format!("{UNKNOWN}{why}"), None)
    }

    /// The question does not arise on this host.
    pub(crate) fn not_applicable(self, why: &str) -> Finding {
        self.finding(Severity::Info, format!("{NOT_APPLICABLE}{why}"), None)
    }

    fn finding(self, severity: Severity, found: String, fix_command: Option<String>) -> Finding {
        let Self { id, subject, advised, why } = self;
        Finding { id, subject, found, advised, severity, why, fix_command }
    }
}

/// What a comparison of a value with the advice came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Good,
    Bad(Severity),
}

impl Verdict {
    /// Good when `holds`, else bad by `severity`.
    pub(crate) const fn unless(holds: bool, severity: Severity) -> Self {
        if holds { Self::Good } else { Self::Bad(severity) }
    }
}
