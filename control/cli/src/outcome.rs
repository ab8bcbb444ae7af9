//! What a command hands back: its exit code and what goes to the two output streams. Only `main` writes, so that
//! commands stay functions from arguments to bytes and the code of a cut-off pipe is still the command's.

/// Exit codes of every command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// Nothing to complain of.
    Success,
    /// A check failed, a warning was found, or the daemon answered "no".
    Failure,
    /// doctor only: the host cannot carry shard-proxy.
    Severe,
    /// The command line is wrong (EX_USAGE of sysexits.h).
    Usage,
    /// The daemon cannot be reached or answered nonsense (EX_UNAVAILABLE).
    Unavailable,
    /// Output could not be written (EX_IOERR).
    Output,
}

impl Code {
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failure => 1,
            Self::Severe => 2,
            Self::Usage => 64,
            Self::Unavailable => 69,
            Self::Output => 74,
        }
    }
}

/// The result of one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) code: Code,
    /// For standard output, byte by byte.
    pub(crate) out: Vec<u8>,
    /// For standard error; lines with their newlines.
    pub(crate) err: String,
}

impl Outcome {
    /// Success with this text.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self { code: Code::Success, out: text.into().into_bytes(), err: String::new() }
    }

    /// A message on standard error, prefixed with the program's name.
    pub(crate) fn complaint(code: Code, message: &str) -> Self {
        Self { code, out: Vec::new(), err: format!("shardctl: {message}\n") }
    }
}

/// `1 error`, `2 errors`.
pub(crate) fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}
