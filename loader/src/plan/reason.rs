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
    /// It was called so often while a sample was taken that probing it costs more than `--budget` allows.
    OverBudget,
    /// The kernel would not attach to it.
    RejectedByKernel(Rejection),
}

/// What the kernel said about a function, and what that means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rejection {
    /// The error number.
    pub errno: i32,
    /// What it means here, as part of a sentence.
    pub meaning: &'static str,
}

impl Rejection {
    /// The error number's name, as `errno.h` has it: `EINVAL`.
    pub fn name(self) -> Option<&'static str> {
        let name = match self.errno {
            libc::EADDRNOTAVAIL => "EADDRNOTAVAIL",
            libc::EBUSY => "EBUSY",
            libc::EEXIST => "EEXIST",
            libc::EILSEQ => "EILSEQ",
            libc::EINVAL => "EINVAL",
            libc::ENOENT => "ENOENT",
            libc::EOPNOTSUPP => "EOPNOTSUPP",
            libc::ESRCH => "ESRCH",
            _ => return None,
        };
        Some(name)
    }
}

/// The error number and its meaning: `EINVAL: no ftrace record there`.
impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name}: {}", self.meaning),
            None => write!(f, "errno {}: {}", self.errno, self.meaning),
        }
    }
}

impl Reason {
    /// What the kernel said, where that is the reason.
    pub fn rejection(self) -> Option<Rejection> {
        match self {
            Self::RejectedByKernel(rejection) => Some(rejection),
            _ => None,
        }
    }

    /// The stable code, as in the JSON.
    pub fn code(self) -> &'static str {
        match self {
            Self::NotTraceable => "not-traceable",
            Self::Blacklisted => "blacklisted",
            Self::Denylisted => "denylisted",
            Self::NoReturn => "no-return",
            Self::OverLimit => "over-limit",
            Self::OverBudget => "over-budget",
            Self::RejectedByKernel(_) => "rejected-by-kernel",
        }
    }
}

/// The code as words: `not traceable`.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotTraceable => f.write_str("not traceable"),
            Self::NoReturn => f.write_str("never returning"),
            Self::OverLimit => f.write_str("over the limit"),
            Self::OverBudget => f.write_str("over the budget"),
            Self::RejectedByKernel(rejection) => write!(f, "rejected by the kernel ({rejection})"),
            Self::Blacklisted | Self::Denylisted => f.write_str(self.code()),
        }
    }
}
