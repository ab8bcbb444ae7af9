//! Why the kernel or the file system refused, with the way out.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::PathBuf;

use aya::EbpfError;
use aya::maps::MapError;
use aya::programs::ProgramError;
use rustix::thread::{CapabilitySet, capabilities};

use crate::features;

/// Any failure of this crate.
#[derive(Debug)]
pub enum Error {
    /// The kernel does not allow it. `lacks` names the capabilities that this process does not have.
    Rights { step: &'static str, lacks: String, source: Box<dyn StdError + Send + Sync> },
    /// The pin folder is not on a BPF file system.
    NotBpffs { folder: PathBuf },
    /// A pin or the pin folder cannot be used.
    Pin { path: PathBuf, source: Box<dyn StdError + Send + Sync> },
    /// The object or its maps are not taken by the kernel; `reason` names the features that it lacks, if `is_too_old`.
    Load { is_too_old: bool, reason: String, source: Box<EbpfError> },
    /// The verifier refuses the program, or the kernel lacks a feature that it needs: then `reason` names it.
    Verifier { is_too_old: bool, reason: String, source: Box<ProgramError> },
    /// The program cannot be attached to the interface.
    Attach { interface: String, source: Box<dyn StdError + Send + Sync> },
    /// A map cannot be read or written.
    Map { map: &'static str, source: Box<MapError> },
    /// A table has another number of rows than the program expects.
    Rows { given: usize },
    /// A value of the options is out of range.
    Option { name: &'static str, value: String, allowed: &'static str },
    /// The kernel cannot take a connection whose handshake it did not do.
    NoCookies { source: Box<dyn StdError + Send + Sync> },
    /// The program cannot be run on a packet.
    Run { source: Box<ProgramError> },
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rights { step, lacks, .. } if lacks.is_empty() => write!(
                out,
                "{step}: the kernel does not permit it, though no capability is missing; a seccomp profile, a user \
                 namespace or kernel lockdown may forbid it"
            ),
            Self::Rights { step, lacks, .. } => write!(
                out,
                "{step}: the kernel does not permit it; what is missing is {lacks} (run as root, or with these in the \
                 service's AmbientCapabilities)"
            ),
            Self::NotBpffs { folder } => write!(
                out,
                "{}: not on a BPF file system; mount one with: mount -t bpf bpf /sys/fs/bpf",
                folder.display()
            ),
            Self::Pin { path, .. } => write!(out, "{}: cannot be used as a pin", path.display()),
            Self::Load { reason, .. } => {
                write!(out, "the kernel does not take the program's maps or types: {reason}")
            }
            Self::Verifier { reason, .. } => write!(out, "the kernel refuses the XDP program: {reason}"),
            Self::Attach { interface, .. } => write!(out, "{interface}: the program cannot be attached"),
            Self::Map { map, .. } => write!(out, "map {map}: cannot be read or written"),
            Self::Rows { given } => {
                write!(out, "a table has {given} rows; the program expects {}", l4_abi::TABLE_ROWS)
            }
            Self::Option { name, value, allowed } => {
                write!(out, "option {name} is {value}; allowed is {allowed}")
            }
            Self::NoCookies { .. } => out.write_str(
                "SYN cookies need Linux 6.9 or newer with its types in /sys/kernel/btf/vmlinux, for the kernel \
                 function bpf_sk_assign_tcp_reqsk; set `flows.syn_cookies_above` to 0 to do without",
            ),
            Self::Run { .. } => out.write_str("the program cannot be run on a packet"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Rights { source, .. }
            | Self::Pin { source, .. }
            | Self::Attach { source, .. }
            | Self::NoCookies { source } => Some(source.as_ref()),
            Self::Load { source, .. } => Some(source),
            Self::Verifier { source, .. } | Self::Run { source } => Some(source),
            Self::Map { source, .. } => Some(source),
            Self::NotBpffs { .. } | Self::Rows { .. } | Self::Option { .. } => None,
        }
    }
}

impl Error {
    /// Whether the machine cannot do it, whatever this program is: rights or features are missing.
    #[must_use]
    pub const fn is_of_the_machine(&self) -> bool {
        match self {
            Self::Rights { .. } => true,
            Self::Load { is_too_old, .. } | Self::Verifier { is_too_old, .. } => *is_too_old,
            _ => false,
        }
    }

    /// A failure of `step`, told apart by whether the kernel lacks a right or a feature.
    pub(crate) fn load(step: &'static str, source: EbpfError) -> Self {
        if is_permission(&source) {
            return Self::rights(step, source);
        }
        let (is_too_old, reason) = reason();
        Self::Load { is_too_old, reason, source: Box::new(source) }
    }

    pub(crate) fn verifier(source: ProgramError) -> Self {
        if is_permission(&source) {
            return Self::rights("loading the program", source);
        }
        match source {
            // Without this right the verifier forbids what any program with packets does, and tells at length what.
            ProgramError::LoadError { io_error, .. }
                if io_error.kind() == io::ErrorKind::PermissionDenied
                    && lacking().contains("CAP_PERFMON") =>
            {
                Self::rights("loading the program", io_error)
            }
            source => {
                let (is_too_old, reason) = reason();
                Self::Verifier { is_too_old, reason, source: Box::new(source) }
            }
        }
    }

    pub(crate) fn attach(interface: &str, source: impl StdError + Send + Sync + 'static) -> Self {
        if is_permission(&source) {
            return Self::rights("attaching the program", source);
        }
        Self::Attach { interface: interface.to_owned(), source: Box::new(source) }
    }

    fn rights(step: &'static str, source: impl StdError + Send + Sync + 'static) -> Self {
        Self::Rights { step, lacks: lacking(), source: Box::new(source) }
    }

    pub(crate) fn map(map: &'static str) -> impl FnOnce(MapError) -> Self {
        move |source| Self::Map { map, source: Box::new(source) }
    }
}

/// Whether this kernel lacks something, and what, in words.
fn reason() -> (bool, String) {
    let missing = features::missing();
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    (!missing.is_empty(), features::reason(&release, &missing))
}

/// The capabilities that a start needs and this process does not have. `CAP_SYS_ADMIN` stands for the others to the
/// kernel, and is alone in permitting to find programs and maps by their number.
fn lacking() -> String {
    let Ok(sets) = capabilities(None) else { return String::new() };
    let needed = [
        (CapabilitySet::BPF, "CAP_BPF"),
        (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
        (CapabilitySet::PERFMON, "CAP_PERFMON"),
        (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN"),
    ];
    let lacking = needed.into_iter().filter(|(one, _)| !sets.effective.contains(*one)).map(|(_, name)| name);
    lacking.collect::<Vec<_>>().join(", ")
}

/// Whether an EPERM or EACCES is at the bottom of the chain. The verifier says EACCES too, for a program that it does
/// not like, but then it leaves a log; the caller asks for maps first, where EPERM is what a missing right looks like.
fn is_permission(error: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return io.raw_os_error() == Some(rustix::io::Errno::PERM.raw_os_error());
        }
        next = error.source();
    }
    false
}
