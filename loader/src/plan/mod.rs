//! What to attach to, and for every other function that matches the reason why not. Pure: no I/O.

mod denylist;
mod known_good;
mod reason;

pub use known_good::known_good;
pub use reason::{Reason, Rejection};

use crate::tables::{Function, Match, Matches};

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

    /// Moves targets, by their places, ascending, to the skipped ones.
    pub fn skip(&mut self, places: impl IntoIterator<Item = (usize, Reason)>) {
        let mut places = places.into_iter().peekable();
        let mut place = 0..;
        let Self { targets, skipped } = self;
        targets.retain(|target| {
            let place = place.next();
            let Some((_, reason)) = places.next_if(|(skip, _)| Some(*skip) == place) else { return true };
            skipped.push(Skipped { function: target.function, reason });
            false
        });
        skipped.sort_by_key(|skipped| skipped.function.address);
    }
}

/// Sorts the functions that match into targets and skipped ones.
///
/// Several symbols at one address are one function: it appears once, under the first of its names that
/// matches. Functions of one name at several addresses are several.
pub fn plan(matches: &Matches, policy: Policy) -> Plan<'_> {
    let mut plan = Plan::default();
    for Match { function, facts } in matches.iter() {
        let verdict = match facts.site {
            None => Err(Reason::NotTraceable),
            Some(_) if policy.blacklist && facts.forbidden => Err(Reason::Blacklisted),
            Some(_) if !policy.force && denylist::denies(function.name) => Err(Reason::Denylisted),
            Some(_) if policy.on_return && denylist::denies_return(function.name) => Err(Reason::NoReturn),
            Some(_) if plan.targets.len() >= policy.max_functions => Err(Reason::OverLimit),
            Some(site) => Ok(site),
        };
        match verdict {
            Ok(site) => plan.targets.push(Target { function, site }),
            Err(reason) => plan.skipped.push(Skipped { function, reason }),
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::Facts;

    const SITE: Facts = Facts { site: Some(4), forbidden: false };

    fn reasons(matches: &[(&'static str, Facts)], policy: Policy) -> Vec<(String, Option<Reason>)> {
        let functions = matches.iter().zip(1..).map(|((name, facts), address)| {
            (Function { address, name: name.as_bytes(), module: None }, *facts)
        });
        let matches = Matches::of(functions);
        let plan = plan(&matches, policy);
        assert_eq!(plan.matched(), matches.iter().count());
        let name = |function: Function<'_>| String::from_utf8_lossy(function.name).into_owned();
        let targets = plan.targets.iter().map(|target| (name(target.function), None));
        let skipped = plan.skipped.iter().map(|skip| (name(skip.function), Some(skip.reason)));
        targets.chain(skipped).collect()
    }

    fn reason(name: &'static str, facts: Facts, policy: Policy) -> Option<Reason> {
        reasons(&[(name, facts)], policy)[0].1
    }

    #[test]
    fn every_match_is_a_target_or_has_a_reason() {
        let policy = Policy::default();
        let forbidden = Facts { forbidden: true, ..SITE };
        assert_eq!(reason("vfs_read", SITE, policy), None);
        assert_eq!(reason("vfs_read", Facts::default(), policy), Some(Reason::NotTraceable));
        assert_eq!(reason("do_trap", forbidden, policy), Some(Reason::Blacklisted));
        assert_eq!(reason("do_trap", forbidden, Policy { blacklist: false, ..policy }), None);
        assert_eq!(reason("migrate_disable", SITE, policy), Some(Reason::Denylisted));
        assert_eq!(reason("migrate_disable", SITE, Policy { force: true, ..policy }), None);
        assert_eq!(reason("do_exit", SITE, policy), None);
        assert_eq!(reason("do_exit", SITE, Policy { on_return: true, ..policy }), Some(Reason::NoReturn));
        // Where there is nothing to hook, nothing else matters.
        assert_eq!(
            reason("do_trap", Facts { site: None, forbidden: true }, policy),
            Some(Reason::NotTraceable)
        );
    }

    #[test]
    fn targets_that_turn_out_wrong_are_skipped_in_the_order_of_addresses() {
        let functions = ["a", "b", "c", "d"].iter().zip(1..).map(|(name, address)| {
            let facts = if *name == "c" { Facts::default() } else { SITE };
            (Function { address, name: name.as_bytes(), module: None }, facts)
        });
        let matches = Matches::of(functions);
        let mut plan = plan(&matches, Policy::default());
        let rejection = Rejection { errno: libc::EINVAL, meaning: "no ftrace record there" };
        plan.skip([(0, Reason::RejectedByKernel(rejection)), (2, Reason::OverBudget)]);
        assert_eq!(plan.targets.iter().map(|t| t.function.name).collect::<Vec<_>>(), [b"b"]);
        let skipped: Vec<_> = plan.skipped.iter().map(|s| (s.function.address, s.reason.code())).collect();
        assert_eq!(skipped, [(1, "rejected-by-kernel"), (3, "not-traceable"), (4, "over-budget")]);
        let words = plan.skipped[0].reason.to_string();
        assert_eq!(words, "rejected by the kernel (EINVAL: no ftrace record there)");
    }

    #[test]
    fn what_is_over_the_limit_is_said() {
        let all = [("a", SITE), ("b", Facts::default()), ("c", SITE), ("d", SITE)];
        let found = reasons(&all, Policy { max_functions: 2, ..Policy::default() });
        let expected =
            [("a", None), ("c", None), ("b", Some(Reason::NotTraceable)), ("d", Some(Reason::OverLimit))];
        assert_eq!(found, expected.map(|(name, reason)| (name.to_owned(), reason)));
    }
}
