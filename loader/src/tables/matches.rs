//! The functions that patterns have chosen from the tables, and what the tables know about each.

use super::{
    Blacklist, MAX_ENTRY_OFFSET,
    symbols::{Function, Symbols},
};
use crate::error::Result;

/// Functions that match, in the order of their addresses.
#[derive(Debug, Default)]
pub struct Matches {
    functions: Symbols,
    facts: Vec<Facts>,
    order: Vec<u32>,
}

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match<'m> {
    /// The function, under the name that matched.
    pub function: Function<'m>,
    /// What is known about it.
    pub facts: Facts,
}

/// What the tables say about a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Facts {
    /// The address of its ftrace record: what a kprobe-multi link wants. None where the function can't be
    /// traced: inlined, `__init`, `notrace`, or written in assembly.
    pub site: Option<u64>,
    /// The kprobe blacklist forbids a probe at its start.
    pub forbidden: bool,
}

impl Facts {
    /// What these tables say about `function`.
    pub fn of(function: Function<'_>, sites: &[u64], blacklist: &Blacklist) -> Self {
        Self { site: site_of(sites, function.address), forbidden: blacklist.forbids(function) }
    }
}

impl Matches {
    /// Puts functions and facts together. Of several names at one address that of the lowest rank stays; where
    /// addresses are hidden (0), different names are different functions.
    fn new(functions: Symbols, facts: Vec<Facts>, ranks: &[u32]) -> Self {
        let get = |index: u32| functions.get(index as usize);
        let mut order: Vec<u32> = (0..functions.len() as u32).collect();
        let rank = |index: u32| ranks.get(index as usize);
        order
            .sort_unstable_by_key(|&index| (get(index).map(|function| function.address), rank(index), index));
        order.dedup_by(|next, kept| match (get(*next), get(*kept)) {
            (Some(next), Some(kept)) => next.address == kept.address && (kept.address != 0 || next == kept),
            _ => false,
        });
        Self { functions, facts, order }
    }

    /// Matches for tests of what comes after them.
    #[cfg(test)]
    pub fn of<'f>(functions: impl Iterator<Item = (Function<'f>, Facts)>) -> Self {
        let blacklist = Blacklist::default();
        let mut sink = MatchSink::new(&[], &blacklist);
        for (rank, (function, facts)) in (0..).zip(functions) {
            sink.push_known(function, facts, rank).unwrap();
        }
        sink.finish()
    }

    /// All of them, each function once.
    pub fn iter(&self) -> impl Iterator<Item = Match<'_>> {
        self.order.iter().filter_map(|&index| {
            let index = index as usize;
            Some(Match { function: self.functions.get(index)?, facts: *self.facts.get(index)? })
        })
    }
}

/// Takes functions that match, and looks up what is known about each.
#[derive(Debug)]
pub struct MatchSink<'t> {
    sites: &'t [u64],
    blacklist: &'t Blacklist,
    functions: Symbols,
    facts: Vec<Facts>,
    /// Their numbers in the order of `/proc/kallsyms`.
    ranks: Vec<u32>,
}

impl<'t> MatchSink<'t> {
    /// A sink for functions of tables with these sites, ascending, and this blacklist.
    pub fn new(sites: &'t [u64], blacklist: &'t Blacklist) -> Self {
        Self { sites, blacklist, functions: Symbols::default(), facts: Vec::new(), ranks: Vec::new() }
    }

    /// Takes one function, in the order of `/proc/kallsyms`.
    ///
    /// # Errors
    ///
    /// Those of [`Symbols::push`].
    pub fn push(&mut self, function: Function<'_>) -> Result<()> {
        let facts = Facts::of(function, self.sites, self.blacklist);
        self.push_known(function, facts, self.functions.len() as u32)
    }

    /// Takes a function in any order: its number in that of `/proc/kallsyms` is `rank`.
    ///
    /// # Errors
    ///
    /// Those of [`Symbols::push`].
    pub fn push_known(&mut self, function: Function<'_>, facts: Facts, rank: u32) -> Result<()> {
        self.functions.push(function.address, function.name, function.module)?;
        self.facts.push(facts);
        self.ranks.push(rank);
        Ok(())
    }

    /// All that came.
    pub fn finish(self) -> Matches {
        Matches::new(self.functions, self.facts, &self.ranks)
    }
}

/// The record of the function at `address`: the first from there on, if it is near enough.
pub fn site_of(sites: &[u64], address: u64) -> Option<u64> {
    let at = sites.partition_point(|&site| site < address);
    sites.get(at).copied().filter(|site| site - address <= MAX_ENTRY_OFFSET)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(functions: &[(u64, &'static str)]) -> Vec<(u64, String)> {
        let blacklist = Blacklist::default();
        let mut sink = MatchSink::new(&[0x104], &blacklist);
        for (address, name) in functions {
            sink.push(Function { address: *address, name: name.as_bytes(), module: None }).unwrap();
        }
        let text = |m: Match<'_>| (m.function.address, String::from_utf8_lossy(m.function.name).into_owned());
        sink.finish().iter().map(text).collect()
    }

    #[test]
    fn each_address_comes_once_under_its_first_name() {
        let found = matches(&[(0x200, "b"), (0x100, "a"), (0x200, "alias"), (0x300, "b")]);
        assert_eq!(found, [(0x100, "a".into()), (0x200, "b".into()), (0x300, "b".into())]);
    }

    #[test]
    fn hidden_addresses_do_not_make_functions_one() {
        assert_eq!(matches(&[(0, "a"), (0, "b"), (0, "b")]).len(), 2);
    }

    #[test]
    fn a_record_belongs_to_the_symbol_up_to_four_bytes_before_it() {
        let sites = [0x104, 0x200];
        assert_eq!(site_of(&sites, 0x100), Some(0x104));
        assert_eq!(site_of(&sites, 0x104), Some(0x104));
        assert_eq!(site_of(&sites, 0x200), Some(0x200));
        assert_eq!(
            (site_of(&sites, 0xff), site_of(&sites, 0x105), site_of(&sites, 0x201)),
            (None, None, None)
        );
    }
}
