//! The program attached to all targets, in one of two ways: [`multi`], one kprobe-multi link over all of them, and
//! [`single`], a kprobe for each, where the kernel has no such links.

pub mod multi;
pub mod single;

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use crate::{
    error::{Error, ErrorKind, Result},
    plan::Rejection,
    sys::{Kernel, Moment},
};

/// A program, and when it is to run.
#[derive(Debug, Clone, Copy)]
pub struct Hook<'p> {
    /// The program, loaded for this moment.
    pub program: BorrowedFd<'p>,
    /// When it runs.
    pub moment: Moment,
}

/// A way to attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// kprobe-multi links: milliseconds for thousands of functions. Minimum kernel: 5.18 with `CONFIG_FPROBE`.
    Multi,
    /// A kprobe for each function. Minimum kernel: 5.6, for probes of one event that differ in a constant.
    Single,
}

/// As on the command line and in the JSON.
impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Multi => "multi",
            Self::Single => "single",
        })
    }
}

impl Backend {
    /// Whether a fault of [`Backend::Multi`], in loading the program or attaching it, says that this kernel does not
    /// have it: the attach type is unknown (before 5.18), or there is no `CONFIG_FPROBE`.
    pub fn is_missing(error: &Error) -> bool {
        let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
        matches!(cause.and_then(io::Error::raw_os_error), Some(libc::EOPNOTSUPP | libc::EINVAL))
    }
}

/// An attached program. Dropped, it is detached: the kernel waits until no CPU runs it any more.
#[derive(Debug)]
pub struct Attached {
    hooks: Hooks,
    /// The targets that the kernel would not attach to, by their places, ascending.
    pub rejected: Vec<(usize, Rejection)>,
    /// How often the kernel was asked for a link or a probe.
    pub attempts: usize,
}

/// What holds the program.
#[derive(Debug)]
enum Hooks {
    /// One wherever one will do.
    Links(Vec<OwnedFd>),
    /// The kprobes, one event for each program; none where every function was refused.
    Events(Vec<single::Event>),
}

impl Attached {
    /// The way it was attached.
    pub fn backend(&self) -> Backend {
        match self.hooks {
            Hooks::Links(_) => Backend::Multi,
            Hooks::Events(_) => Backend::Single,
        }
    }

    /// Hits that the kernel dropped before they reached the program; none where it does not count them (links before
    /// 6.7).
    ///
    /// # Errors
    ///
    /// `Kernel` with the errno of `BPF_OBJ_GET_INFO_BY_FD`, `Io` where tracefs can't be read.
    pub fn missed(&self, kernel: &dyn Kernel) -> Result<Option<u64>> {
        let links = match &self.hooks {
            Hooks::Links(links) => links,
            Hooks::Events(events) => return missed_by_probes(events),
        };
        let mut sum = None;
        for link in links {
            let missed = kernel.link_missed(link.as_fd()).map_err(|e| {
                Error::new(ErrorKind::Kernel, "can't ask the kernel about the link").with_source(e)
            })?;
            sum = missed.map(|missed| missed + sum.unwrap_or(0));
        }
        Ok(sum)
    }
}

fn missed_by_probes(events: &[single::Event]) -> Result<Option<u64>> {
    let missed: Vec<u64> = events.iter().map(single::Event::missed).collect::<Result<_>>()?;
    Ok(missed.into_iter().reduce(u64::saturating_add))
}
