//! The exit codes, which scripts rely on.

use std::process::ExitCode;

use fastprobe::ErrorKind;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Attached, also when some functions were skipped.
    Success = 0,
    /// A fault while running.
    Failure = 1,
    /// The command line is wrong. Clap uses the same code.
    Usage = 2,
    /// Nothing to attach to.
    NoMatch = 3,
    /// This kernel or this environment can't.
    Unsupported = 4,
    /// Some functions had to be skipped, and `--strict` forbids it.
    Strict = 5,
}

impl Exit {
    /// The exit code of a fault.
    pub fn of(error: &anyhow::Error) -> Self {
        match error.downcast_ref::<fastprobe::Error>().map(fastprobe::Error::kind) {
            Some(ErrorKind::Usage) => Self::Usage,
            Some(ErrorKind::NoMatch) => Self::NoMatch,
            Some(ErrorKind::Unsupported | ErrorKind::Permission) => Self::Unsupported,
            _ => Self::Failure,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
