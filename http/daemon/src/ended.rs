//! How the process ends: its exit codes, and why it could not start.

use std::fmt;
use std::io;
use std::process::ExitCode;

use crate::listeners::BindError;

/// Why the process could not start.
#[derive(Debug)]
pub(crate) enum StartError {
    /// The config has this many errors, all logged.
    Config(usize),
    Bind(BindError),
    /// An address or a socket of the operator's choice; the text says which.
    Address(String, io::Error),
    /// The system refused something; the text says what was wanted.
    System(&'static str, io::Error),
    Tickets(tls::TicketKeyError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(errors) => write!(f, "the config has {errors} error(s); nothing was started"),
            Self::Bind(error) => error.fmt(f),
            Self::Address(what, error) => write!(f, "{what}: {error}"),
            Self::System(what, error) => write!(f, "{what}: {error}"),
            Self::Tickets(error) => write!(f, "session ticket keys: {error}"),
        }
    }
}

impl StartError {
    pub(crate) fn exit_code(&self) -> ExitCode {
        // The numbers of sysexits.h.
        ExitCode::from(match self {
            Self::Config(_) => 78,
            Self::Bind(_) | Self::Address(..) => 69,
            Self::System(..) | Self::Tickets(_) => 71,
        })
    }
}

pub(crate) const WRONG_USAGE: u8 = 64;

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Everybody was served to the end.
    Clean,
    /// Requests in progress were cut: at the end of the drain time, or at the second signal.
    Cut,
    /// All shards have ended by themselves.
    Failed,
}

impl Ended {
    pub(crate) fn exit_code(self) -> ExitCode {
        ExitCode::from(match self {
            Self::Clean => 0,
            Self::Failed => 1,
            Self::Cut => 3,
        })
    }
}
