//! Why a matched function is not attached to.

use std::fmt;

/// The reason codes. Their text form is part of the JSON contract and never changes its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reason {
    /// ftrace has no record of it: inlined everywhere, `__init`, `notrace`, or written in assembly.
    NotTraceable,
    /// The kernel's kprobe blacklist covers it.
    Blacklisted,
    /// The kernel's own tests of kprobe-multi leave it out, or every eBPF program runs through it, so that a probe
    /// could only miss; `--force` attaches all the same.
    Denylisted,
    /// A return probe on it can't work: it never returns, or takes a lock on behalf of its caller.
    NoReturn,
    /// More functions matched than `--max-functions` allows.
    OverLimit,
}

impl Reason {
    /// The stable code, as in the JSON.
    pub fn code(self) -> &'static str {
        match self {
            Self::NotTraceable => "not-traceable",
            Self::Blacklisted => "blacklisted",
            Self::Denylisted => "denylisted",
            Self::NoReturn => "no-return",
            Self::OverLimit => "over-limit",
        }
    }
}

/// The code as words: `not traceable`.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotTraceable => "not traceable",
            Self::NoReturn => "never returning",
            Self::OverLimit => "over the limit",
            Self::Blacklisted | Self::Denylisted => self.code(),
        })
    }
}
