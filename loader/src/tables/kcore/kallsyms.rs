//! The core kernel's symbols as the kernel itself keeps them: names compressed to tokens, in the order of their
//! addresses (`kernel/kallsyms.c`, `scripts/kallsyms.c`; where the tables are is exported since 6.0).

use std::ops::Range;

use super::{
    heads::HeadFilter,
    memory::{Memory, odd},
    tokens::{Expander, Tokens},
    vmcoreinfo::VmCoreInfo,
};
use crate::{error::Result, tables::bytes::Bytes};

/// More symbols than any kernel has.
const MAX_SYMBOLS: usize = 8 << 20;

/// More than all of a kernel's tables take: they lie side by side in its read-only data.
const MAX_SPAN_BYTES: u64 = 128 << 20;

/// From 6.1 on, a first byte with this bit means a length of two bytes (commit 73bbb94466fd).
const LONG_NAME: u8 = 0x80;

/// The symbols, compressed.
#[derive(Debug)]
pub struct CompressedSymbols {
    /// All tables, as they lie in memory, from one read.
    memory: Bytes,
    parts: Parts,
    tokens: Tokens,
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
    ///
    /// # Errors
    ///
    /// `Malformed` where the tables are not as in the kernels that are known: bounds, sizes, no rule that gives
    /// `_stext` the address that VMCOREINFO tells. `Io` where memory can't be read.
    pub fn read(memory: &dyn Memory, info: &VmCoreInfo) -> Result<Self> {
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
        let bytes = memory.bytes(start, (end - start) as usize)?;
        let [names, token_table, token_index, offsets] =
            tables.map(|table| (table.start - start) as usize..(table.end - start) as usize);
        let rule = AddressRule::Relative { base: 0 };
        let parts = Parts { names, token_table, token_index, offsets, count, rule };
        let mut symbols = Self::from_parts(bytes.into(), parts)?;
        symbols.parts.rule = symbols.find_rule(memory, info)?;
        Ok(symbols)
    }

    /// Tables that were read before.
    ///
    /// # Errors
    ///
    /// `Malformed` where a part is not within `memory`, or not as large as the number of symbols asks for.
    pub fn from_parts(memory: Bytes, parts: Parts) -> Result<Self> {
        let part = |range: &Range<usize>| {
            memory.get(range.clone()).ok_or_else(|| odd("a table of symbols beyond the memory that was read"))
        };
        if parts.count > MAX_SYMBOLS || part(&parts.offsets)?.len() != 4 * parts.count {
            return Err(odd(format!("the addresses of {} symbols are missing", parts.count)));
        }
        part(&parts.names)?;
        let tokens = Tokens::parse(part(&parts.token_table)?, part(&parts.token_index)?)?;
        Ok(Self { memory, parts, tokens })
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
        let mut rest = &self.memory[self.parts.names.clone()];
        for index in 0..self.parts.count {
            let (codes, next) =
                split_name(rest).ok_or_else(|| odd(format!("the name of symbol {index} has no end")))?;
            each(index, codes)?;
            rest = next;
        }
        Ok(())
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

/// The codes of the first name in `names`, and what follows.
#[inline(always)]
fn split_name(names: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&first, rest) = names.split_first()?;
    if first & LONG_NAME == 0 {
        return rest.split_at_checked(first as usize);
    }
    let (&second, rest) = rest.split_first()?;
    rest.split_at_checked(usize::from(first & !LONG_NAME) | usize::from(second) << 7)
}
