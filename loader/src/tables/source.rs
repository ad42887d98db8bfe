//! Where tables come from.

use std::fmt;

/// What the user asks for, or lets fastprobe choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wish {
    /// The fastest that works.
    #[default]
    Auto,
    /// This one or none.
    Only(Source),
}

/// A way to get at the kernel's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// What an earlier run of this boot kept.
    Cache,
    /// The kernel's memory, through `/proc/kcore`.
    Kcore,
    /// `/proc/kallsyms` and the files beside it.
    Text,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cache => "cache",
            Self::Kcore => "kcore",
            Self::Text => "text",
        })
    }
}
