//! What to attach to, and for every other function that matches the reason why not. Pure: no I/O.

mod denylist;
mod reason;

pub use reason::Reason;

use crate::{
    pattern::{CORE, Matcher},
    tables::{Function, Tables},
};

/// What the user allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Attach to functions of the [denylist](Reason::Denylisted) too.
    pub force: bool,
    /// Leave out what the kernel's kprobe blacklist covers.
    pub blacklist: bool,
    /// Attach to no more functions than this.
    pub max_functions: usize,
    /// The probes fire on return: functions that never return, and some that lock, are left out.
    pub on_return: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self { force: false, blacklist: true, max_functions: 100_000, on_return: false }
    }
}

/// A function to attach to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target<'t> {
    /// The function, under the name that matched.
    pub function: Function<'t>,
    /// The address of its ftrace record: what the link is made of.
    pub site: u64,
}

/// A function that matches and is not attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skipped<'t> {
    /// The function, under the name that matched.
    pub function: Function<'t>,
    /// Why.
    pub reason: Reason,
}

/// Every matched function, once: to attach or to skip.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan<'t> {
    /// In the order of their addresses.
    pub targets: Vec<Target<'t>>,
    /// In the order of their addresses.
    pub skipped: Vec<Skipped<'t>>,
}

impl Plan<'_> {
    /// How many functions match.
    pub fn matched(&self) -> usize {
        self.targets.len() + self.skipped.len()
    }
}

/// Sorts the functions that `matcher` takes into targets and skipped ones.
///
/// Several symbols at one address are one function: it appears once, under the first of its names that
/// matches. Functions of one name at several addresses are several.
pub fn plan<'t>(tables: &'t Tables, matcher: &mut Matcher<'_>, policy: Policy) -> Plan<'t> {
    let mut plan = Plan::default();
    for function in matching(tables, matcher) {
        match verdict(tables, function, policy) {
            Ok(_) if plan.targets.len() >= policy.max_functions => {
                plan.skipped.push(Skipped { function, reason: Reason::OverLimit });
            }
            Ok(site) => plan.targets.push(Target { function, site }),
            Err(reason) => plan.skipped.push(Skipped { function, reason }),
        }
    }
    plan
}

/// The functions that match, by address and each once. The sort is stable, so the first of several names at
/// one address stays; where addresses are hidden (0), different names are different functions.
fn matching<'t>(tables: &'t Tables, matcher: &mut Matcher<'_>) -> Vec<Function<'t>> {
    let mut functions: Vec<_> =
        tables.functions().filter(|f| matcher.matches(f.module.unwrap_or(CORE), f.name)).collect();
    functions.sort_by_key(|function| function.address);
    functions.dedup_by(|next, kept| next.address == kept.address && (kept.address != 0 || next == kept));
    functions
}

/// Where to attach to `function`, or why not.
fn verdict(tables: &Tables, function: Function<'_>, policy: Policy) -> Result<u64, Reason> {
    let site = tables.site_of(function.address).ok_or(Reason::NotTraceable)?;
    if policy.blacklist && tables.blacklist().forbids(function) {
        return Err(Reason::Blacklisted);
    }
    if !policy.force && denylist::denies(function.name) {
        return Err(Reason::Denylisted);
    }
    if policy.on_return && denylist::denies_return(function.name) {
        return Err(Reason::NoReturn);
    }
    Ok(site)
}
