//! Tables out of the cache, brought up to date where a module came or went.

use std::{collections::HashSet, ops::Range};

use super::format::{Contents, Counts};
use crate::{
    error::Result,
    pattern::{CORE, Matcher, Reach, Search, Start},
    tables::{
        Blacklist, Facts, Function, Matches,
        files::Root,
        index::{Builder, Index},
        is_function_type, kcore,
        kcore::{KcoreTables, Lists, Module, Rest},
        matches::MatchSink,
    },
};

/// The tables.
#[derive(Debug)]
pub struct CachedTables {
    pub(super) index: Index,
    /// Modules of the index that are not loaded any more, by their numbers less 1.
    pub(super) gone: Vec<bool>,
    /// Where to read what changed since.
    pub(super) lists: Lists,
    /// How much of everything there was when they were written.
    pub(super) counts: Counts,
    /// What changed since; nothing where nothing did.
    pub(super) changed: Option<Rest>,
}

/// More than the bytes of names are on average: 29 on 7.3.
const ROOM_FOR_A_NAME: usize = 40;

/// Ranks of what was read anew: behind all that were in the index.
const NEW_RANKS: u32 = 1 << 31;

impl CachedTables {
    /// Reads what changed since they were written.
    ///
    /// # Errors
    ///
    /// Those of [`kcore::read_changed`].
    pub fn update(&mut self, root: &Root) -> Result<()> {
        let known: HashSet<&[u8]> = self.kept_modules().collect();
        let changed = kcore::read_changed(root, &self.lists, &known)?;
        self.changed = Some(changed);
        Ok(())
    }

    /// What was read since they were written.
    pub fn changed(&self) -> Option<&Rest> {
        self.changed.as_ref()
    }

    /// The index that they are kept in.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// How much of everything there is.
    pub fn counts(&self) -> Counts {
        self.changed.as_ref().map_or(self.counts, |new| Counts::of(&new.sites, &new.blacklist))
    }

    /// The loaded modules that the index has.
    fn kept_modules(&self) -> impl Iterator<Item = &[u8]> {
        self.index
            .modules()
            .iter()
            .zip(&self.gone)
            .filter(|(_, gone)| !**gone)
            .map(|(module, _)| &*module.name)
    }

    /// All loaded modules.
    pub fn modules(&self) -> impl Iterator<Item = &[u8]> {
        let new = self.changed.iter().flat_map(|changed| &changed.modules);
        self.kept_modules().chain(new.map(|module| &*module.name))
    }

    /// All functions that match.
    ///
    /// # Errors
    ///
    /// `Malformed` for a damaged file.
    pub fn matching(&self, matcher: &mut Matcher<'_>) -> Result<Matches> {
        let nothing = Blacklist::default();
        let mut sink = match &self.changed {
            Some(changed) => MatchSink::new(&changed.sites, &changed.blacklist),
            None => MatchSink::new(&[], &nothing),
        };
        let reach = self.reach(matcher);
        for positions in self.candidates(&reach)? {
            self.index.for_each(positions, |record, name| {
                if !is_function_type(record.kind) || reach.modules[record.module as usize] == Search::Nowhere
                {
                    return Ok(());
                }
                let function = self.index.function(name, record);
                if matcher.selects(function.module.unwrap_or(CORE), name) {
                    sink.push_known(function, self.facts(function, record.facts), record.rank)?;
                }
                Ok(())
            })?;
        }
        let kept = self.index.modules().len() + 1;
        for (module, search) in self.changed.iter().flat_map(|new| &new.modules).zip(&reach.modules[kept..]) {
            module.matching(*search, &reach, matcher, &mut sink)?;
        }
        Ok(sink.finish())
    }

    /// Where to look, in the core, the modules of the index, and those that came since.
    fn reach<'p>(&self, matcher: &mut Matcher<'p>) -> Reach<'p> {
        let mut names = vec![CORE];
        names.extend(self.index.modules().iter().map(|module| &*module.name));
        names.extend(self.changed.iter().flat_map(|new| &new.modules).map(|module| &*module.name));
        let mut reach = matcher.reach(&names);
        for (search, _) in reach.modules[1..].iter_mut().zip(&self.gone).filter(|(_, gone)| **gone) {
            *search = Search::Nowhere;
        }
        reach
    }

    /// The positions in the index of all that can match, ascending and each once.
    fn candidates(&self, reach: &Reach<'_>) -> Result<Vec<Range<usize>>> {
        let mut ranges = Vec::new();
        if reach.modules[0] == Search::Everywhere {
            ranges.push(0..self.index.len());
            return Ok(ranges);
        }
        for start in &reach.starts {
            ranges.push(match start {
                Start::Name(name) => self.index.family(name)?,
                Start::Head(head) => self.index.beginning_with(head)?,
            });
        }
        for (id, _) in (1..).zip(&self.gone).filter(|&(id, _)| reach.modules[id] == Search::Everywhere) {
            ranges.extend(self.index.of_module(id as u16)?.map(|position| position..position + 1));
        }
        ranges.retain(|range| !range.is_empty());
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|next, kept| {
            let joined = next.start <= kept.end;
            if joined {
                kept.end = kept.end.max(next.end);
            }
            joined
        });
        Ok(ranges)
    }

    /// What was known when the cache was written holds until a module comes or goes.
    fn facts(&self, function: Function<'_>, known: Facts) -> Facts {
        match &self.changed {
            Some(changed) => Facts::of(function, &changed.sites, &changed.blacklist),
            None => known,
        }
    }

    /// Calls `each` with type letter and function of every symbol, data included: those of the index in the order of
    /// their names.
    ///
    /// # Errors
    ///
    /// `Malformed` for a damaged file; what `each` fails with.
    pub fn for_each_symbol(&self, mut each: impl FnMut(u8, Function<'_>) -> Result<()>) -> Result<()> {
        self.for_each_kept(|kind, function, _, _| each(kind, function))?;
        self.changed.as_ref().map_or(Ok(()), |changed| changed.for_each_symbol(each))
    }

    fn for_each_kept(&self, mut each: impl FnMut(u8, Function<'_>, Facts, u32) -> Result<()>) -> Result<()> {
        self.index.for_each(0..self.index.len(), |record, name| {
            if (record.module as usize).checked_sub(1).is_some_and(|module| self.gone[module]) {
                return Ok(());
            }
            let function = self.index.function(name, record);
            each(record.kind, function, self.facts(function, record.facts), record.rank)
        })
    }

    /// All of it, for a cache that is up to date.
    ///
    /// # Errors
    ///
    /// `Malformed` for a damaged file.
    pub fn contents(&self) -> Result<Contents> {
        let mut builder = Builder::default();
        for module in self.kept_modules() {
            builder.module(module)?;
        }
        self.for_each_kept(|kind, function, facts, rank| builder.push(kind, function, facts, rank))?;
        if let Some(Rest { modules, sites, blacklist, .. }) = &self.changed {
            register(&mut builder, modules)?;
            let mut rank = NEW_RANKS;
            for module in modules {
                push_module(&mut builder, module, sites, blacklist, &mut rank)?;
            }
        }
        let tokens = self.index.tokens().clone();
        Ok(Contents { index: builder.finish(&tokens)?, tokens, lists: self.lists, counts: self.counts() })
    }
}

/// All of tables that were read from memory. What has been taken from them is gone before the next is taken: at no time
/// is everything there twice.
///
/// # Errors
///
/// `Malformed` where a name in memory is none.
pub fn contents(tables: KcoreTables) -> Result<Contents> {
    let KcoreTables { core, rest, lists } = tables;
    let Rest { modules, sites, blacklist, .. } = rest;
    let counts = Counts::of(&sites, &blacklist);
    let symbols = modules.iter().map(|module| module.parts().1).sum::<usize>() + core.count();
    let mut builder = Builder::with_room(symbols, symbols * ROOM_FOR_A_NAME);
    core.for_each_symbol(|index, kind, function| {
        builder.push(kind, function, Facts::of(function, &sites, &blacklist), index as u32)
    })?;
    let (mut rank, tokens) = (core.count() as u32, core.into_tokens());
    register(&mut builder, &modules)?;
    for module in modules {
        push_module(&mut builder, &module, &sites, &blacklist, &mut rank)?;
    }
    drop((sites, blacklist));
    Ok(Contents { index: builder.finish(&tokens)?, tokens, lists, counts })
}

/// Gives modules their numbers, in their order, those without symbols, too.
fn register(builder: &mut Builder, modules: &[Module]) -> Result<()> {
    modules.iter().try_for_each(|module| builder.module(&module.name).map(drop))
}

/// The symbols of a module, ranked from `rank` on.
fn push_module(
    builder: &mut Builder,
    module: &Module,
    sites: &[u64],
    blacklist: &Blacklist,
    rank: &mut u32,
) -> Result<()> {
    module.for_each(|kind, address, name| {
        let function = Function { address, name, module: Some(&module.name) };
        *rank += 1;
        builder.push(kind, function, Facts::of(function, sites, blacklist), *rank)
    })
}
