//! What a machine allows, and the command that mends what it doesn't.
//!
//! [`gather`] tries and reads, [`judge`] turns what it found into [`Check`]s and does no I/O.

mod facts;
mod gather;
mod judge;
mod settings;
mod trial;

pub use facts::{Capabilities, Facts, Limit, Lockdown};
pub use gather::gather;
pub use judge::judge;
pub use trial::Refusal;

/// How a precondition is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// As well as can be.
    Ok,
    /// fastprobe attaches all the same, at a cost.
    Degraded,
    /// For want of this it can't attach.
    Missing,
}

impl State {
    /// The word for it in tables and JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Missing => "missing",
        }
    }
}

/// One precondition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// Its name, which never changes.
    pub name: &'static str,
    /// How it is met. What can't be told without root is as if it were not met, and `detail` says so.
    pub state: State,
    /// What was found.
    pub detail: String,
    /// What it costs; none where it is met.
    pub cost: Option<String>,
    /// The command that mends it, or what to boot; none where it is met.
    pub fix: Option<String>,
}

/// All preconditions of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The kernel's release, as `uname -r` prints it; empty where it can't be read.
    pub kernel: String,
    /// Always the same ones in the same order.
    pub checks: Vec<Check>,
}

impl Report {
    /// Whether fastprobe can attach, perhaps at a cost: nothing is [missing](State::Missing).
    pub fn can_attach(&self) -> bool {
        self.checks.iter().all(|check| check.state != State::Missing)
    }
}
