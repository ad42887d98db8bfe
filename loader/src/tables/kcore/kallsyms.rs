//! The core kernel's symbols as the kernel itself keeps them: names compressed to tokens, in the order of their
//! addresses (`kernel/kallsyms.c`, `scripts/kallsyms.c`; where the tables are is exported since 6.0).

use std::ops::Range;

use super::{
    by_name::{ByName, NUMBER_BYTES},
    heads::{HeadFilter, MAX_COMPARED},
    memory::Memory,
    vmcoreinfo::VmCoreInfo,
};
use crate::{
    error::Result,
    pattern::{CORE, Matcher, Reach, Search, Start},
    tables::{
        Function, is_function_type,
        matches::MatchSink,
        odd,
        tokens::{Expander, Tokens},
    },
};

/// More symbols than any kernel has.
const MAX_SYMBOLS: usize = 8 << 20;

/// More than all of a kernel's tables take: they lie side by side in its read-only data.
const MAX_SPAN_BYTES: u64 = 128 << 20;

/// While one name is looked up by the kernel's own order, so many can be looked at one after the other.
const LOOKS_PER_LOOKUP: usize = 64;

/// The order of the names lies this near behind what comes before it.
const MAX_GAP: u64 = 64;

/// From 6.1 on, a first byte with this bit means a length of two bytes (commit 73bbb94466fd).
const LONG_NAME: u8 = 0x80;

/// The symbols, compressed.
#[derive(Debug)]
pub struct CompressedSymbols {
    /// All tables, as they lie in memory, from one read.
    memory: Vec<u8>,
    parts: Parts,
    tokens: Tokens,
    /// Where the kernel's own order of the names may be; nothing where it wasn't read.
    orders: Vec<Range<usize>>,
}

/// Where the tables are within the memory that was read, and how they are to be understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    /// `kallsyms_names`
    pub names: Range<usize>,
    /// `kallsyms_token_table`
    pub token_table: Range<usize>,
    /// `kallsyms_token_index`
    pub token_index: Range<usize>,
    /// `kallsyms_offsets`
    pub offsets: Range<usize>,
    /// `kallsyms_num_syms`
    pub count: usize,
    /// What the offsets mean.
    pub rule: AddressRule,
}

/// How an entry of `kallsyms_offsets` becomes an address: it depends on version and configuration, and the
/// kernel does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressRule {
    /// `CONFIG_KALLSYMS_BASE_RELATIVE`, 4.6 to 6.x: an offset from a base.
    Relative {
        /// `kallsyms_relative_base`
        base: u64,
    },
    /// `CONFIG_KALLSYMS_ABSOLUTE_PERCPU`, 4.6 to 6.14: positive offsets are absolute addresses.
    AbsolutePercpu {
        /// `kallsyms_relative_base`
        base: u64,
    },
    /// 7.0 and later: an offset from the entry itself.
    SelfRelative {
        /// Where `kallsyms_offsets` is.
        table: u64,
    },
}

impl AddressRule {
    fn address(self, index: usize, offset: u32) -> u64 {
        let signed = i64::from(offset.cast_signed());
        match self {
            Self::Relative { base } => base.wrapping_add(u64::from(offset)),
            Self::AbsolutePercpu { .. } if signed >= 0 => u64::from(offset),
            Self::AbsolutePercpu { base } => base.wrapping_sub(1).wrapping_add_signed(-signed),
            Self::SelfRelative { table } => table.wrapping_add(4 * index as u64).wrapping_add_signed(signed),
        }
    }
}

impl CompressedSymbols {
    /// Reads the tables: one read for their size, one for all of them, and one for the base where there is one.
    /// With the kernel's own order of the names, where it has one, many names are found without looking at all.
    ///
    /// # Errors
    ///
    /// `Malformed` where the tables are not as in the kernels that are known: bounds, sizes, no rule that gives
    /// `_stext` the address that VMCOREINFO tells. `Io` where memory can't be read.
    pub fn read(memory: &dyn Memory, info: &VmCoreInfo, with_order: bool) -> Result<Self> {
        let mut count = [0; 4];
        memory.read(info.require("kallsyms_num_syms")?, &mut count)?;
        let count = u32::from_ne_bytes(count) as usize;
        if count == 0 || count > MAX_SYMBOLS {
            return Err(odd(format!("{count} symbols")));
        }
        // Names and tokens have no size of their own: they end where the next table begins, or before.
        let until_next = |name| -> Result<Range<u64>> {
            let start = info.require(name)?;
            let end = info.next_above(start).ok_or_else(|| odd(format!("{name} has no end")))?;
            Ok(start..end)
        };
        let sized = |name, bytes: usize| -> Result<Range<u64>> {
            let start = info.require(name)?;
            let end = start.checked_add(bytes as u64).ok_or_else(|| odd(format!("{name} has no end")))?;
            Ok(start..end)
        };
        let tables = [
            until_next("kallsyms_names")?,
            until_next("kallsyms_token_table")?,
            sized("kallsyms_token_index", 512)?,
            sized("kallsyms_offsets", 4 * count)?,
        ];
        let start = tables.iter().map(|table| table.start).min().unwrap_or(0);
        let end = tables.iter().map(|table| table.end).max().unwrap_or(0);
        if end - start > MAX_SPAN_BYTES {
            return Err(odd(format!("the tables of symbols lie {} MiB apart", (end - start) >> 20)));
        }
        let orders = if with_order { places_of_order(info, count, tables[3].end) } else { Vec::new() };
        let behind = orders.iter().map(|order| order.end).max().unwrap_or(end).max(end);
        let bytes = memory.bytes(start, (behind - start) as usize)?;
        let [names, token_table, token_index, offsets] =
            tables.map(|table| (table.start - start) as usize..(table.end - start) as usize);
        let rule = AddressRule::Relative { base: 0 };
        let parts = Parts { names, token_table, token_index, offsets, count, rule };
        let mut symbols = Self::from_parts(bytes, parts)?;
        symbols.orders =
            orders.iter().map(|o| (o.start - start) as usize..(o.end - start) as usize).collect();
        symbols.parts.rule = symbols.find_rule(memory, info)?;
        Ok(symbols)
    }

    /// Tables that were read before.
    ///
    /// # Errors
    ///
    /// `Malformed` where a part is not within `memory`, or not as large as the number of symbols asks for.
    pub fn from_parts(memory: Vec<u8>, parts: Parts) -> Result<Self> {
        let part = |range: &Range<usize>| {
            memory.get(range.clone()).ok_or_else(|| odd("a table of symbols beyond the memory that was read"))
        };
        if parts.count > MAX_SYMBOLS || part(&parts.offsets)?.len() != 4 * parts.count {
            return Err(odd(format!("the addresses of {} symbols are missing", parts.count)));
        }
        part(&parts.names)?;
        let tokens = Tokens::parse(part(&parts.token_table)?, part(&parts.token_index)?)?;
        Ok(Self { memory, parts, tokens, orders: Vec::new() })
    }

    /// What [`Self::from_parts`] takes.
    pub fn parts(&self) -> (&[u8], &Parts) {
        (&self.memory, &self.parts)
    }

    /// The rule that gives `_stext` its address.
    fn find_rule(&self, memory: &dyn Memory, info: &VmCoreInfo) -> Result<AddressRule> {
        let rules = match info.symbol("kallsyms_relative_base") {
            Some(place) => {
                let base = memory.word(place)?;
                vec![AddressRule::AbsolutePercpu { base }, AddressRule::Relative { base }]
            }
            None => vec![AddressRule::SelfRelative { table: info.require("kallsyms_offsets")? }],
        };
        let [index] = self.find([b"_stext"])?;
        let index = index.ok_or_else(|| odd("no symbol _stext"))?;
        let expected = info.require("_stext")?;
        rules
            .into_iter()
            .find(|rule| rule.address(index, self.offset(index)) == expected)
            .ok_or_else(|| odd("no known rule gives _stext its address"))
    }

    /// How many symbols there are, data included.
    pub fn count(&self) -> usize {
        self.parts.count
    }

    /// The tokens that the names are made of.
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// The tokens alone; everything else goes.
    pub fn into_tokens(self) -> Tokens {
        self.tokens
    }

    /// The address of symbol number `index`.
    pub fn address(&self, index: usize) -> u64 {
        self.parts.rule.address(index, self.offset(index))
    }

    fn offset(&self, index: usize) -> u32 {
        let at = self.parts.offsets.start + 4 * index;
        self.memory[at..at + 4].try_into().map_or(0, u32::from_ne_bytes)
    }

    /// Calls `each` with the number and the codes of every symbol.
    ///
    /// # Errors
    ///
    /// `Malformed` where a name reaches beyond its table; what `each` fails with.
    #[inline(always)]
    pub fn for_each(&self, mut each: impl FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        let (names, mut at) = (self.names(), 0);
        for index in 0..self.parts.count {
            let codes = name_at(names, at).and_then(|range| Some((range.end, names.get(range)?)));
            let (end, codes) = codes.ok_or_else(|| odd(format!("the name of symbol {index} has no end")))?;
            each(index, codes)?;
            at = end;
        }
        Ok(())
    }

    /// Gives the core's functions that match to `sink`: the first module of `reach` is the core.
    ///
    /// # Errors
    ///
    /// `Malformed` for a name that does not expand; what `sink` fails with.
    pub fn matching(
        &self,
        reach: &Reach<'_>,
        matcher: &mut Matcher<'_>,
        sink: &mut MatchSink<'_>,
    ) -> Result<()> {
        if let Some(by_name) = self.by_name(reach) {
            return self.matching_by_name(&by_name, reach, matcher, sink);
        }
        let heads = match reach.modules.first() {
            None | Some(Search::Nowhere) => return Ok(()),
            Some(Search::AtStarts) => Some(reach.starts.iter().map(|start| start.head()).collect::<Vec<_>>()),
            Some(Search::Everywhere) => None,
        };
        let filter = HeadFilter::new(&self.tokens, heads.as_deref(), is_function_type);
        let mut expander = Expander::new();
        self.for_each(|index, codes| {
            if !filter.admits(&self.tokens, codes) {
                return Ok(());
            }
            let (_, name) = self.expand(&mut expander, index, codes)?;
            if matcher.selects(CORE, name) {
                sink.push(Function { address: self.address(index), name, module: None })?;
            }
            Ok(())
        })
    }

    /// The names in their order, if what is looked for is more than can be compared in passing, and less than what
    /// makes it cheaper to look at all.
    fn by_name(&self, reach: &Reach<'_>) -> Option<ByName<'_>> {
        let some = MAX_COMPARED + 1..=self.count() / LOOKS_PER_LOOKUP;
        if reach.modules.first() != Some(&Search::AtStarts) || !some.contains(&reach.starts.len()) {
            return None;
        }
        self.order().ok()
    }

    /// The names in their order.
    ///
    /// # Errors
    ///
    /// `Malformed` where it wasn't read or is none.
    pub fn order(&self) -> Result<ByName<'_>> {
        let order = |range: &Range<usize>| ByName::new(self, self.memory.get(range.clone())?).ok();
        self.orders.iter().find_map(order).ok_or_else(|| odd("no order of the names is known"))
    }

    fn matching_by_name(
        &self,
        by_name: &ByName<'_>,
        reach: &Reach<'_>,
        matcher: &mut Matcher<'_>,
        sink: &mut MatchSink<'_>,
    ) -> Result<()> {
        let mut numbers = Vec::new();
        for start in &reach.starts {
            let places = match start {
                Start::Name(name) => by_name.family(name)?,
                Start::Head(head) => by_name.beginning_with(head)?,
            };
            for place in places {
                numbers.push(by_name.number(place)?);
            }
        }
        numbers.sort_unstable();
        numbers.dedup();
        let mut expander = Expander::new();
        for number in numbers {
            let (kind, name) = self.expand(&mut expander, number, by_name.codes(number)?)?;
            if is_function_type(kind) && matcher.selects(CORE, name) {
                sink.push(Function { address: self.address(number), name, module: None })?;
            }
        }
        Ok(())
    }

    /// The compressed names, one after the other.
    pub fn names(&self) -> &[u8] {
        &self.memory[self.parts.names.clone()]
    }

    /// Calls `each` with number, type letter and function of every symbol, data included.
    ///
    /// # Errors
    ///
    /// `Malformed` for a name that does not expand; what `each` fails with.
    pub fn for_each_symbol(&self, mut each: impl FnMut(usize, u8, Function<'_>) -> Result<()>) -> Result<()> {
        let mut expander = Expander::new();
        self.for_each(|index, codes| {
            let (kind, name) = self.expand(&mut expander, index, codes)?;
            each(index, kind, Function { address: self.address(index), name, module: None })
        })
    }

    /// The type letter and the name of symbol number `index`, which has these codes.
    ///
    /// # Errors
    ///
    /// `Malformed` where they stand for no name.
    pub fn expand<'e>(
        &self,
        expander: &'e mut Expander,
        index: usize,
        codes: &[u8],
    ) -> Result<(u8, &'e [u8])> {
        expander
            .expand(&self.tokens, codes)
            .ok_or_else(|| odd(format!("symbol {index} has no name of its own")))
    }

    /// The numbers of the symbols with these names, in one pass; none where no symbol has the name.
    ///
    /// # Errors
    ///
    /// `Malformed` where several have one of the names, and those of [`Self::for_each`].
    pub fn find<const N: usize>(&self, names: [&[u8]; N]) -> Result<[Option<usize>; N]> {
        let filter = HeadFilter::new(&self.tokens, Some(&names), |_| true);
        let mut found = [None; N];
        let mut expander = Expander::new();
        self.for_each(|index, codes| {
            if filter.admits(&self.tokens, codes)
                && let Some((_, name)) = expander.expand(&self.tokens, codes)
                && let Some(which) = names.iter().position(|wanted| *wanted == name)
                && found[which].replace(index).is_some()
            {
                return Err(odd(format!("two symbols called {}", name.escape_ascii())));
            }
            Ok(())
        })?;
        Ok(found)
    }
}

/// Where the kernel's order of `count` names may be: behind the offsets, which end at `end`, or behind the base that
/// follows them.
fn places_of_order(info: &VmCoreInfo, count: usize, end: u64) -> Vec<Range<u64>> {
    let behind_base = info.symbol("kallsyms_relative_base").map(|base| base.saturating_add(8));
    let near = |place: &u64| place.checked_sub(end).is_some_and(|gap| gap <= MAX_GAP);
    let places = [Some(end), Some(end.next_multiple_of(8)), behind_base].into_iter().flatten().filter(near);
    places.map(|place| place..place + (NUMBER_BYTES * count) as u64).collect()
}

/// The codes of the name that starts at `at` in `names`: where they begin, and where the next name does. Nothing
/// where the length itself is cut off.
#[inline(always)]
pub fn name_at(names: &[u8], at: usize) -> Option<Range<usize>> {
    let first = *names.get(at)?;
    if first & LONG_NAME == 0 {
        return Some(at + 1..at + 1 + first as usize);
    }
    let length = usize::from(first & !LONG_NAME) | usize::from(*names.get(at + 1)?) << 7;
    Some(at + 2..at + 2 + length)
}
