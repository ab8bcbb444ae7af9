//! The machine as the checks see it: text of `/proc` and `/sys` below a root, the process list and what one
//! external tool says.
//!
//! Invariants: nothing here judges or writes; a value that cannot be read is an `Unread` with its reason, so no
//! check can mistake "not readable" for "zero". Every read is bounded. With a root other than `/` nothing of the
//! running machine leaks in: the ring is not probed and no tool is started.

use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::ring::{self, RingState};

/// More than any file read here; a longer one is cut, not followed.
const FILE_BYTES_MAX: u64 = 256 * 1024;

/// Why a value is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// The path does not exist: the kernel, the driver or the namespace has no such setting.
    Absent(String),
    /// It exists or should, but reading or understanding it failed.
    Failed(String),
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent(path) => write!(f, "{path} does not exist"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

/// Asks `ethtool FLAG INTERFACE`; a field of [`Host`] so that tests answer for a network card.
pub(crate) type Ethtool = fn(flag: &str, interface: &str) -> Result<String, Unread>;

/// Reads one machine, the real one or a directory that looks like one.
#[derive(Debug)]
pub(crate) struct Host {
    root: PathBuf,
    ethtool: Ethtool,
    ring: RingState,
}

impl Host {
    /// The host below `root`. Only `/` sets up a ring and starts ethtool.
    pub(crate) fn below(root: &Path) -> Self {
        if root == Path::new("/") {
            Self { root: root.to_owned(), ethtool: run_ethtool, ring: ring::probe() }
        } else {
            let ring = RingState::NotProbed("a ring belongs to the running kernel, not to --root".to_owned());
            Self { root: root.to_owned(), ethtool: no_ethtool, ring }
        }
    }

    /// The same host with a probe result and a network card of the test's choice.
    #[cfg(test)]
    pub(crate) fn with(mut self, ring: RingState, ethtool: Ethtool) -> Self {
        self.ring = ring;
        self.ethtool = ethtool;
        self
    }

    /// The trimmed text of a file; invalid UTF-8 is replaced.
    ///
    /// # Errors
    /// `Absent` when there is no such path, `Failed` for every other reason.
    pub(crate) fn read(&self, path: &str) -> Result<String, Unread> {
        let file = File::open(self.place(path)).map_err(|e| unread(path, &e))?;
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(|e| unread(path, &e))?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// A whole number that is all of a file.
    ///
    /// # Errors
    /// As [`Host::read`], and `Failed` when the text is no unsigned number.
    pub(crate) fn number(&self, path: &str) -> Result<u64, Unread> {
        let text = self.read(path)?;
        text.parse().map_err(|e| Unread::Failed(format!("{path} holds `{text}`: {e}")))
    }

    /// The sorted names in a directory.
    ///
    /// # Errors
    /// As [`Host::read`].
    pub(crate) fn list(&self, path: &str) -> Result<Vec<String>, Unread> {
        let entries = std::fs::read_dir(self.place(path)).map_err(|e| unread(path, &e))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|e| unread(path, &e))?;
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    /// Whether the path exists, links followed.
    pub(crate) fn exists(&self, path: &str) -> bool {
        self.place(path).exists()
    }

    /// The last component of what a symbolic link points to.
    ///
    /// # Errors
    /// As [`Host::read`].
    pub(crate) fn link_name(&self, path: &str) -> Result<String, Unread> {
        let target = std::fs::read_link(self.place(path)).map_err(|e| unread(path, &e))?;
        let name = target.file_name().ok_or_else(|| Unread::Failed(format!("{path} points to a root")))?;
        Ok(name.to_string_lossy().into_owned())
    }

    /// The value after `key:` in `/proc/self/status`.
    ///
    /// # Errors
    /// As [`Host::read`]; `Absent` when the kernel prints no such line.
    pub(crate) fn status(&self, key: &str) -> Result<String, Unread> {
        const PATH: &str = "/proc/self/status";
        let text = self.read(PATH)?;
        let line = text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'));
        line.map(|v| v.trim().to_owned()).ok_or_else(|| Unread::Absent(format!("line {key} of {PATH}")))
    }

    /// Whether the effective capability set of this process holds bit `capability` (linux/capability.h).
    ///
    /// # Errors
    /// As [`Host::status`].
    pub(crate) fn has_capability(&self, capability: u32) -> Result<bool, Unread> {
        let text = self.status("CapEff")?;
        let set = u64::from_str_radix(&text, 16)
            .map_err(|e| Unread::Failed(format!("CapEff of /proc/self/status holds `{text}`: {e}")))?;
        Ok(set.checked_shr(capability).is_some_and(|bits| bits & 1 == 1))
    }

    /// Whether a process with this name runs in the visible process namespace.
    ///
    /// # Errors
    /// As [`Host::list`] for `/proc`; processes that end meanwhile are skipped.
    pub(crate) fn runs(&self, name: &str) -> Result<bool, Unread> {
        let pids = self.list("/proc")?;
        let mut pids = pids.iter().filter(|n| n.bytes().all(|b| b.is_ascii_digit()));
        Ok(pids.any(|pid| self.read(&format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == name)))
    }

    /// What `ethtool FLAG INTERFACE` prints.
    ///
    /// # Errors
    /// `Failed` when the tool is not installed or refuses.
    pub(crate) fn ethtool(&self, flag: &str, interface: &str) -> Result<String, Unread> {
        (self.ethtool)(flag, interface)
    }

    /// What setting up a ring brought.
    pub(crate) fn ring(&self) -> &RingState {
        &self.ring
    }

    /// Whether network settings that only the first namespace has are hidden here.
    pub(crate) fn in_network_namespace(&self) -> bool {
        self.exists("/proc/sys/net/core") && !self.exists("/proc/sys/net/core/netdev_budget")
    }

    fn place(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

fn unread(path: &str, error: &std::io::Error) -> Unread {
    match error.kind() {
        ErrorKind::NotFound => Unread::Absent(path.to_owned()),
        _ => Unread::Failed(format!("{path}: {error}")),
    }
}

fn run_ethtool(flag: &str, interface: &str) -> Result<String, Unread> {
    let run = Command::new("ethtool").args([flag, interface]).stdin(Stdio::null()).output();
    match run {
        Ok(run) if run.status.success() => Ok(String::from_utf8_lossy(&run.stdout).into_owned()),
        Ok(run) => {
            let said = String::from_utf8_lossy(&run.stderr);
            let said = said.lines().next().unwrap_or("no message");
            Err(Unread::Failed(format!("ethtool {flag} {interface}: {said}")))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(Unread::Failed("ethtool is not installed (apt-get install ethtool)".to_owned()))
        }
        Err(error) => Err(Unread::Failed(format!("ethtool {flag} {interface}: {error}"))),
    }
}

fn no_ethtool(_flag: &str, _interface: &str) -> Result<String, Unread> {
    Err(Unread::Failed("ethtool is not asked below --root".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::super::fake::FakeRoot;
    use super::Unread;

    #[test]
    fn absent_and_unreadable_values_are_told_apart() {
        let root =
            FakeRoot::new(&[("/proc/sys/a", "12\n"), ("/proc/sys/b", "many\n"), ("/proc/sys/d/x", "1")]);
        let host = root.host();
        assert_eq!(host.number("/proc/sys/a"), Ok(12));
        assert!(matches!(host.number("/proc/sys/b"), Err(Unread::Failed(why)) if why.contains("many")));
        assert_eq!(host.number("/proc/sys/c"), Err(Unread::Absent("/proc/sys/c".to_owned())));
        assert!(matches!(host.number("/proc/sys/d"), Err(Unread::Failed(_))), "a directory is no value");
    }

    #[test]
    fn capabilities_are_bits_of_the_effective_set() {
        let root =
            FakeRoot::new(&[("/proc/self/status", "Name:\tx\nCapPrm:\tffff\nCapEff:\t0000000000004001\n")]);
        let host = root.host();
        for (capability, held) in [(0, true), (1, false), (14, true), (39, false), (64, false)] {
            assert_eq!(host.has_capability(capability), Ok(held), "bit {capability}");
        }
    }

    #[test]
    fn a_process_is_found_by_its_whole_name() {
        let root =
            FakeRoot::new(&[("/proc/12/comm", "irqbalance\n"), ("/proc/13/comm", "init\n"), ("/proc/x", "")]);
        let host = root.host();
        assert_eq!(host.runs("irqbalance"), Ok(true));
        assert_eq!(host.runs("irq"), Ok(false));
    }
}
