//! How the process ends: its exit codes, and why it could not go on.

use std::error::Error;
use std::fmt;
use std::io;
use std::process::ExitCode;

pub(crate) const WRONG_USAGE: u8 = 64;

/// Why the process could not start.
#[derive(Debug)]
pub(crate) enum StartError {
    /// The file has this many errors, all logged.
    Config(usize),
    /// A socket of the operator's choice; the text says which.
    Address(String, io::Error),
    /// The system refused something; the text says what was wanted.
    System(&'static str, io::Error),
    /// The kernel refused the program or its maps.
    Load(l4_load::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(errors) => write!(f, "the file has {errors} error(s); nothing was changed"),
            Self::Address(what, _) => f.write_str(what),
            Self::System(what, _) => f.write_str(what),
            Self::Load(error) => error.fmt(f),
        }
    }
}

impl Error for StartError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Config(_) => None,
            Self::Address(_, error) | Self::System(_, error) => Some(error),
            Self::Load(error) => error.source(),
        }
    }
}

impl From<l4_load::Error> for StartError {
    fn from(error: l4_load::Error) -> Self {
        Self::Load(error)
    }
}

impl StartError {
    pub(crate) fn exit_code(&self) -> ExitCode {
        // The numbers of sysexits.h.
        ExitCode::from(match self {
            Self::Config(_) => 78,
            Self::Address(..) => 69,
            Self::System(..) | Self::Load(_) => 71,
        })
    }
}

/// An error with all its causes, in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        // Some causes repeat what their effect says.
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}
