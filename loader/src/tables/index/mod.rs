//! All symbols in the order of their names, compressed, with a hash table: what the cache keeps, used where it
//! lies. A name is found with one or two looks, those that begin alike lie side by side.

mod build;
mod bytes;
mod names;
mod pages;
mod record;
mod slots;

use std::{cmp::Ordering, ops::Range};

pub use build::{Builder, Stored};
pub use bytes::Bytes;
use names::{ALIGNMENT, BLOCK, Head, Name};
pub use pages::{PAGE_BYTES, Pages, checksum};
pub use record::Record;
use record::{Packed, RECORD_BYTES};
use serde::{Deserialize, Serialize};
use slots::Layout;

use super::{
    Function, ModuleId, odd,
    tokens::{Expander, Seen, Tokens, Wanted},
};
use crate::error::{Error, Result};

/// Who goes through more blocks than this, a megabyte, is not to hold all of them at once.
const FORGET_AFTER: usize = 4096;

/// An index within a file.
#[derive(Debug)]
pub struct Index {
    pages: Pages,
    places: Places,
    tokens: Tokens,
    modules: Vec<Module>,
    count: usize,
    slots: Layout,
}

/// Where the parts of an index are among the pages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// How many symbols there are.
    pub count: usize,
    /// The symbols in the order of their names, in blocks: first the records, then the names (see `names.rs`). Who
    /// finds a name wants its record, and memory that lies elsewhere takes longer to reach than all else together.
    pub symbols: Range<usize>,
    /// Where the blocks begin.
    pub blocks: Range<usize>,
    /// The hash table; see `slots.rs`.
    pub slots: Range<usize>,
    /// The positions of the modules' symbols, module by module.
    pub of_modules: Range<usize>,
}

/// Where a symbol lies, as a slot has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    /// Where its block begins.
    start: usize,
    /// Which one of its block it is.
    index: usize,
}

impl Place {
    /// How many there are in blocks of so many bytes.
    fn count(bytes: usize) -> usize {
        bytes / ALIGNMENT * BLOCK
    }

    fn pack(self) -> usize {
        self.start / ALIGNMENT * BLOCK + self.index
    }

    #[inline]
    fn unpack(place: usize) -> Self {
        Self { start: place / BLOCK * ALIGNMENT, index: place % BLOCK }
    }
}

/// Some symbols that lie side by side.
#[derive(Debug, Clone, Copy)]
struct Block<'i> {
    number: usize,
    records: &'i [[u8; RECORD_BYTES]],
    names: &'i [u8],
}

/// A module that an index has symbols of.
#[derive(Debug)]
pub struct Module {
    /// Its name.
    pub name: Box<[u8]>,
    /// Which of the positions in `of_modules` are its symbols.
    symbols: Range<usize>,
}

impl Index {
    /// The index whose parts lie at `places`, its names in `tokens`.
    ///
    /// # Errors
    ///
    /// `Malformed` where the sizes of the parts don't belong together.
    pub fn open(
        pages: Pages,
        places: Places,
        tokens: Tokens,
        modules: Vec<(Box<[u8]>, u32)>,
    ) -> Result<Self> {
        let count = places.count;
        let (slots, symbols) = (places.slots.len() / 4, places.symbols.len());
        let mut end = 0_usize;
        let modules: Vec<_> = modules
            .into_iter()
            .map(|(name, symbols)| {
                let start = end;
                end = end.saturating_add(symbols as usize);
                Module { name, symbols: start..end }
            })
            .collect();
        if count > build::MAX_SYMBOLS
            || places.blocks.len() != 4 * count.div_ceil(BLOCK)
            || Some(places.of_modules.len()) != end.checked_mul(4)
        {
            return Err(odd("parts of an index that don't belong together"));
        }
        Ok(Self { pages, places, tokens, modules, count, slots: Layout::new(Place::count(symbols), slots) })
    }

    /// How many symbols there are, data included.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The modules that it has symbols of; the first has number 1.
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// Looks at every page.
    ///
    /// # Errors
    ///
    /// `Malformed` for a damaged file.
    pub fn check(&self) -> Result<()> {
        self.pages.check_all()
    }

    /// The tokens that its names are stored in.
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// How many bytes the names take, the way to them included.
    pub fn name_bytes(&self) -> usize {
        (self.places.symbols.len() + self.places.blocks.len()).saturating_sub(self.count * RECORD_BYTES)
    }

    /// The position and the record of the first symbol called `name`, or of the first variant where no symbol has the
    /// plain name. Others of that name, and its variants, follow.
    ///
    /// # Errors
    ///
    /// `Malformed` for a damaged file, as everywhere here.
    pub fn find(&self, name: &[u8]) -> Result<Option<(usize, Record)>> {
        let (wanted, mut way) = (Wanted::new(name), self.slots.way(name));
        while let Some(slot) = way.step() {
            let slot = self.word(&self.places.slots, slot)?;
            if slot == 0 {
                break;
            }
            let Some(Place { start, index }) = way.place(slot).map(Place::unpack) else { continue };
            let block = self.block_at(start)?;
            // Memory takes its time, and this lies elsewhere than the names: it is on its way while they are read.
            let record = self.record_of(&block, index)?;
            if self.is_variant(&block, index, &wanted)? {
                return Ok(Some((block.number * BLOCK + index, record)));
            }
        }
        Ok(None)
    }

    /// The positions of the symbols called `name` and of its variants. More than those may be among them.
    ///
    /// # Errors
    ///
    /// `Malformed` for a damaged file.
    pub fn family(&self, name: &[u8]) -> Result<Range<usize>> {
        let Some((start, _)) = self.find(name)? else { return Ok(0..0) };
        let (wanted, mut end) = (Wanted::new(name), start + 1);
        while end < self.count && self.see(end, &wanted)?.may_be_variant_of(&wanted) {
            end += 1;
        }
        Ok(start..end)
    }

    /// The positions of the names that begin with `head`.
    ///
    /// # Errors
    ///
    /// `Malformed` for a damaged file.
    pub fn beginning_with(&self, head: &[u8]) -> Result<Range<usize>> {
        let head = Wanted::new(head);
        let is_before = |seen: Seen| seen.order(&head) == Ordering::Less;
        let start = self.first_from(&head, is_before)?;
        let end = self.first_from(&head, |seen| seen.begins_with(&head) || is_before(seen))?;
        Ok(start..end.max(start))
    }

    /// The positions of the symbols of module `id`.
    ///
    /// # Errors
    ///
    /// `Malformed` for a damaged file.
    pub fn of_module(&self, id: ModuleId) -> Result<impl Iterator<Item = usize>> {
        let module = (id as usize).checked_sub(1).and_then(|index| self.modules.get(index));
        let range = module.map_or(0..0, |module| 4 * module.symbols.start..4 * module.symbols.end);
        let positions = self.part(&self.places.of_modules, range)?.as_chunks().0;
        Ok(positions.iter().map(|position| u32::from_ne_bytes(*position) as usize))
    }

    /// Calls `each` with the record and the name of every symbol at `positions`.
    ///
    /// # Errors
    ///
    /// `Malformed` for a damaged file; what `each` fails with.
    #[inline]
    pub fn for_each(
        &self,
        positions: Range<usize>,
        mut each: impl FnMut(&Record, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut expander = Expander::new();
        let first = positions.start / BLOCK;
        for number in first..positions.end.min(self.count).div_ceil(BLOCK) {
            if number.is_multiple_of(FORGET_AFTER) && number - first >= FORGET_AFTER {
                self.forget(number - FORGET_AFTER, number)?;
            }
            let block = self.block(number)?;
            let (start, mut rest) = (number * BLOCK, block.names);
            for index in 0..BLOCK.min(positions.end - start) {
                let position = start + index;
                let (stored, behind) = Name::split(rest).ok_or_else(|| no_name(position))?;
                let name = stored.expand(&self.tokens, &mut expander).ok_or_else(|| no_name(position))?;
                if position >= positions.start {
                    each(&self.record_of(&block, index)?, name)?;
                }
                rest = behind;
            }
        }
        Ok(())
    }

    /// The blocks from one to another will not be needed soon.
    fn forget(&self, first: usize, end: usize) -> Result<()> {
        let start = self.places.symbols.start;
        let [first, end] = [self.word(&self.places.blocks, first)?, self.word(&self.places.blocks, end)?];
        self.pages.forget(start + first as usize..start + end as usize);
        Ok(())
    }

    /// What there is about the symbol at `position` but its name.
    ///
    /// # Errors
    ///
    /// `Malformed` for a damaged file, and a position beyond the last.
    #[inline]
    pub fn record(&self, position: usize) -> Result<Record> {
        self.record_of(&self.block(position / BLOCK)?, position % BLOCK)
    }

    #[inline]
    fn record_of(&self, block: &Block<'_>, index: usize) -> Result<Record> {
        let bytes = block.records.get(index).ok_or_else(|| no_name(block.number * BLOCK + index))?;
        let record = Packed(*bytes).unpack();
        if record.module as usize > self.modules.len() {
            return Err(odd("a symbol of no module"));
        }
        Ok(record)
    }

    /// A symbol with this name and record.
    pub fn function<'a>(&'a self, name: &'a [u8], record: &Record) -> Function<'a> {
        let module = self.module_name(record.module);
        Function { address: record.address, name, module }
    }

    /// The name of module `id`; none for the core kernel.
    pub fn module_name(&self, id: ModuleId) -> Option<&[u8]> {
        let module = self.modules.get((id as usize).checked_sub(1)?)?;
        Some(&module.name)
    }

    /// The first position whose name is not before what is looked for: those before lie before all others.
    fn first_from(&self, wanted: &Wanted<'_>, is_before: impl Fn(Seen) -> bool) -> Result<usize> {
        let (mut low, mut high) = (0, self.count.div_ceil(BLOCK));
        while low < high {
            let middle = low.midpoint(high);
            if is_before(self.see(middle * BLOCK, wanted)?) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        // What is looked for is in the block before, or the first of this one.
        let Some(block) = low.checked_sub(1) else { return Ok(0) };
        let mut seen = Seen::NOTHING;
        let mut rest = self.block(block)?.names;
        for position in block * BLOCK..(low * BLOCK).min(self.count) {
            let (stored, behind) = Name::split(rest).ok_or_else(|| no_name(position))?;
            seen = stored.see(&self.tokens, wanted, seen);
            if !is_before(seen) {
                return Ok(position);
            }
            rest = behind;
        }
        Ok((low * BLOCK).min(self.count))
    }

    /// How the name at `position` compares with `wanted`.
    #[inline]
    fn see(&self, position: usize, wanted: &Wanted<'_>) -> Result<Seen> {
        self.see_in(&self.block(position / BLOCK)?, position % BLOCK, wanted)
    }

    /// How the name that is number `index` of `block` compares with `wanted`.
    #[inline]
    fn see_in(&self, block: &Block<'_>, index: usize, wanted: &Wanted<'_>) -> Result<Seen> {
        let (mut rest, mut seen) = (block.names, Seen::NOTHING);
        for _ in 0..=index {
            let (stored, behind) = Name::split(rest).ok_or_else(|| no_name(block.number * BLOCK + index))?;
            seen = stored.see(&self.tokens, wanted, seen);
            rest = behind;
        }
        Ok(seen)
    }

    /// Whether the name that is number `index` of `block` is `wanted` or a variant of it. From the last part of the name
    /// back to the first, past all names that the next part is not taken from, that takes fewer comparisons than
    /// [`Self::see_in`].
    #[inline]
    fn is_variant(&self, block: &Block<'_>, index: usize, wanted: &Wanted<'_>) -> Result<bool> {
        let (mut rest, mut names) = (block.names, [Name::EMPTY; BLOCK]);
        for name in &mut names[..=index] {
            (*name, rest) = Name::split(rest).ok_or_else(|| no_name(block.number * BLOCK + index))?;
        }
        let (before, last) = names.split_at(index);
        if !last[0].see_rest(&self.tokens, wanted).is_variant_of(wanted) {
            return Ok(false);
        }
        let mut taken = last[0].shared;
        for name in before.iter().rev() {
            if name.shared < taken {
                if name.see_rest(&self.tokens, wanted).shared < taken {
                    return Ok(false);
                }
                taken = name.shared;
            }
        }
        Ok(taken == 0)
    }

    /// A block by its number.
    #[inline]
    fn block(&self, number: usize) -> Result<Block<'_>> {
        let block = self.block_at(self.word(&self.places.blocks, number)? as usize)?;
        if block.number == number { Ok(block) } else { Err(no_name(number * BLOCK)) }
    }

    /// The block that begins at `start`.
    #[inline(always)]
    fn block_at(&self, start: usize) -> Result<Block<'_>> {
        let head = self.part(&self.places.symbols, start..start + Head::BYTES)?;
        let Head { number, length } = Head::unpack(*head.first_chunk().unwrap_or(&[0; Head::BYTES]));
        let bytes = self.part(&self.places.symbols, start + Head::BYTES..start + length)?;
        let symbols = self.count.saturating_sub(number * BLOCK).min(BLOCK);
        let (records, names) =
            bytes.split_at_checked(symbols * RECORD_BYTES).ok_or_else(|| no_name(number * BLOCK))?;
        Ok(Block { number, records: records.as_chunks().0, names })
    }

    #[inline]
    fn word(&self, part: &Range<usize>, index: usize) -> Result<u32> {
        let bytes = self.part(part, 4 * index..4 * index + 4)?;
        Ok(bytes.first_chunk().map_or(0, |word| u32::from_ne_bytes(*word)))
    }

    /// A range of one of the parts.
    // Left to itself the compiler makes it a call, several in each look-up; so with the others marked like this.
    #[inline(always)]
    fn part(&self, part: &Range<usize>, range: Range<usize>) -> Result<&[u8]> {
        if range.start > range.end || range.end > part.len() {
            return Err(odd("a place beyond the end of its part"));
        }
        self.pages.get(part.start + range.start..part.start + range.end)
    }
}

fn no_name(position: usize) -> Error {
    odd(format!("symbol {position} has no name of its own"))
}

#[cfg(test)]
mod tests {
    use memmap2::MmapMut;
    use proptest::prelude::*;

    use super::*;
    use crate::{
        pattern::variant::base_name,
        tables::{CORE_MODULE, Facts, tokens::tests::table},
    };

    fn tokens() -> Tokens {
        let (table, index) = table(&[(1, "kvm_"), (2, "vm_x"), (3, "__pfx_")]);
        Tokens::parse(&table, &index).unwrap()
    }

    /// Address, name and module.
    type Symbol = (u64, Vec<u8>, Option<Vec<u8>>);

    /// An index in memory.
    fn index(symbols: &[Symbol]) -> Index {
        let mut builder = Builder::default();
        for (rank, (address, name, module)) in (0..).zip(symbols) {
            let function = Function { address: *address, name, module: module.as_deref() };
            let facts = Facts { site: Some(address + 4), forbidden: false };
            builder.push(b't', function, facts, rank).unwrap();
        }
        let Stored { content, places, modules } = builder.finish(&tokens()).unwrap();
        let sums: Vec<u8> = content.chunks(PAGE_BYTES).flat_map(|p| checksum(p).to_ne_bytes()).collect();
        let file = [&sums[..], &content].concat();
        let mut memory = MmapMut::map_anon(file.len().max(1)).unwrap();
        memory[..file.len()].copy_from_slice(&file);
        let pages =
            Pages::new(Bytes::Copied(memory.make_read_only().unwrap()), sums.len(), 0..sums.len()).unwrap();
        Index::open(pages, places, tokens(), modules).unwrap()
    }

    fn names(index: &Index, positions: Range<usize>) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        index
            .for_each(positions, |_, name| {
                found.push(name.to_vec());
                Ok(())
            })
            .unwrap();
        found
    }

    #[test]
    fn symbols_are_found_by_name_head_and_module() {
        let symbol = |(address, name, module): &(u64, &str, &str)| {
            let module = (!module.is_empty()).then(|| module.as_bytes().to_vec());
            (*address, name.as_bytes().to_vec(), module)
        };
        let index = index(
            &[
                (5, "foo.cold", ""),
                (4, "foo", ""),
                (3, "kvm_x", "kvm"),
                (2, "kvm_x", ""),
                (1, "bar.isra.0", "kvm"),
                (7, "foo2", "xfs"),
                (8, "bar.constprop.0.isra.1", ""),
            ]
            .each_ref()
            .map(symbol),
        );
        let addresses = |positions: Range<usize>| -> Vec<u64> {
            positions.map(|position| index.record(position).unwrap().address).collect()
        };
        assert_eq!(addresses(0..7), [8, 1, 4, 5, 7, 3, 2]);
        assert_eq!(addresses(index.family(b"foo").unwrap()), [4, 5]);
        assert_eq!(addresses(index.family(b"bar").unwrap()), [8, 1]);
        assert_eq!(addresses(index.family(b"bar.isra.0").unwrap()), [1]);
        assert_eq!(addresses(index.family(b"kvm_x").unwrap()), [3, 2]);
        assert_eq!(index.family(b"fo").unwrap(), 0..0);
        assert_eq!(addresses(index.beginning_with(b"foo").unwrap()), [4, 5, 7]);
        assert_eq!(addresses(index.beginning_with(b"").unwrap()).len(), 7);
        assert_eq!(index.beginning_with(b"zz").unwrap(), 7..7);
        let of_module = |id| -> Vec<u64> {
            index.of_module(id).unwrap().map(|position| index.record(position).unwrap().address).collect()
        };
        assert_eq!(
            (of_module(1), of_module(2), of_module(3), of_module(CORE_MODULE)),
            (vec![1, 3], vec![7], vec![], vec![])
        );
        let record = index.record(5).unwrap();
        let function = index.function(b"kvm_x", &record);
        assert_eq!((function.module, record.rank, record.facts.site), (Some(&b"kvm"[..]), 2, Some(7)));
    }

    proptest! {
        #[test]
        fn it_says_what_a_list_says(
            list in prop::collection::vec("(kvm_|__pfx_)?[abx]{0,3}(\\.isra\\.[01])?", 0..60),
            wanted in "(kvm_|__pfx_)?[abx]{0,3}",
        ) {
            let symbols: Vec<_> = (0..).zip(&list).map(|(i, name)| (i, name.as_bytes().to_vec(), None)).collect();
            let index = index(&symbols);
            let mut sorted: Vec<_> = list.iter().map(|name| name.as_bytes().to_vec()).collect();
            sorted.sort();
            prop_assert_eq!(&names(&index, 0..list.len()), &sorted);
            let of = |matches: &dyn Fn(&[u8]) -> bool| -> Vec<Vec<u8>> {
                sorted.iter().filter(|name| matches(name)).cloned().collect()
            };
            let wanted = wanted.as_bytes();
            let found = names(&index, index.beginning_with(wanted).unwrap());
            prop_assert_eq!(found, of(&|name| name.starts_with(wanted)));
            let family = of(&|name| name == wanted || base_name(name) == wanted);
            let found = names(&index, index.family(wanted).unwrap());
            prop_assert!(family.iter().all(|name| found.contains(name)), "{:?}", found);
            prop_assert!(found.iter().all(|name| name.starts_with(wanted)), "{:?}", found);
            prop_assert_eq!(found.is_empty(), family.is_empty());
        }
    }
}
