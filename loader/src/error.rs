//! What can go wrong, in coarse classes, with the way out beside the fault.

use std::{error, fmt};

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The class of an [`Error`]: what a caller can do about it, not where it happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller's words are off: a glob, a regular expression, a file of names.
    Usage,
    /// Nothing in the kernel's tables matches.
    NoMatch,
    /// This kernel or this environment can't: a feature not built in, a file system not mounted.
    Unsupported,
    /// It could, but not for this process: a capability is missing or an address is hidden.
    Permission,
    /// A table of the kernel (or of a snapshot) has a line that can't be read.
    Malformed,
    /// Reading or writing failed.
    Io,
    /// The kernel refused a system call for a reason that isn't one of the above.
    Kernel,
    /// The caller wanted it to end.
    Interrupted,
}

/// One fault: its class, what happened, and where known what to do about it.
///
/// `{}` prints the fault alone; `{:#}` adds the causes below it, outermost first.
// One pointer wide: a `Result` of it is returned for each of 200,000 symbols.
pub struct Error(Box<Fault>);

#[derive(Debug)]
struct Fault {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn error::Error + Send + Sync>>,
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error {
    /// A fault of class `kind`, told by `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Fault { kind, message: message.into(), hint: None, source: None }))
    }

    /// Adds what the reader can do about it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn error::Error + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The class of the fault.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What the reader can do about it, where that is known.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if f.alternate() {
            let mut cause = error::Error::source(self);
            while let Some(e) = cause {
                write!(f, ": {e}")?;
                cause = e.source();
            }
        }
        Ok(())
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.0.source.as_ref().map(|e| e.as_ref() as &(dyn error::Error + 'static))
    }
}

/// A text from outside in quotes, as much of it as fits into a line of a message.
pub(crate) fn quoted(text: &[u8]) -> String {
    const SHOWN_BYTES: usize = 120;
    let shown = &text[..text.len().min(SHOWN_BYTES)];
    let dots = if text.len() > SHOWN_BYTES { "…" } else { "" };
    format!("“{}{dots}”", shown.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alternate_form_prints_the_chain() {
        let inner = std::io::Error::other("disk on fire");
        let error = Error::new(ErrorKind::Io, "reading /proc/kallsyms").with_source(inner);
        assert_eq!(error.to_string(), "reading /proc/kallsyms");
        assert_eq!(format!("{error:#}"), "reading /proc/kallsyms: disk on fire");
    }
}
