//! Makes an index: takes symbols in the order of `/proc/kallsyms`, and puts them in the order of their names.

use std::{collections::HashMap, ops::Range};

use super::{
    Place, Places,
    names::{BLOCK, Encoder},
    record::{Packed, RECORD_BYTES, Record},
    slots::Slots,
};
use crate::{
    error::Result,
    pattern::variant::base_name,
    tables::{CORE_MODULE, Facts, Function, ModuleId, odd, tokens::Tokens},
};

/// More symbols than any kernel has, and few enough for what a slot holds.
pub const MAX_SYMBOLS: usize = 1 << 24;

/// Each part of an index begins at a multiple of this, as lines of a processor's cache do.
const ALIGNMENT: usize = 64;

/// An index as it is stored.
#[derive(Debug, Default)]
pub struct Stored {
    /// All parts, in the machine's own byte order.
    pub content: Vec<u8>,
    /// Where they are.
    pub places: Places,
    /// Each module's name and the number of its symbols.
    pub modules: Vec<(Box<[u8]>, u32)>,
}

impl Stored {
    /// Adds a part, made of pieces of some bytes each.
    fn push<const N: usize>(&mut self, pieces: impl ExactSizeIterator<Item = [u8; N]>) -> Range<usize> {
        let start = self.content.len().next_multiple_of(ALIGNMENT);
        self.content.reserve_exact(start - self.content.len() + pieces.len() * N);
        self.content.resize(start, 0);
        pieces.for_each(|piece| self.content.extend_from_slice(&piece));
        start..self.content.len()
    }

    fn push_words(&mut self, words: &[u32]) -> Range<usize> {
        self.push(words.iter().map(|word| word.to_ne_bytes()))
    }
}

/// Takes the symbols.
#[derive(Debug, Default)]
pub struct Builder {
    texts: Vec<u8>,
    symbols: Vec<Pending>,
    modules: Vec<(Box<[u8]>, u32)>,
    ids: HashMap<Box<[u8]>, ModuleId>,
}

/// A symbol that waits for its place: 32 bytes, for there are 300,000.
#[derive(Debug)]
struct Pending {
    /// The first bytes of the name, which nearly always decide its place.
    head: u64,
    name_start: u32,
    name_len: u16,
    record: Packed,
}

impl Builder {
    /// Room for so many symbols, and bytes of names. Memory that grows while more is taken beside it leaves holes; room
    /// that stays empty costs nothing.
    pub fn with_room(symbols: usize, text: usize) -> Self {
        Self { texts: Vec::with_capacity(text), symbols: Vec::with_capacity(symbols), ..Self::default() }
    }

    /// Takes a symbol, whose place in the order of `/proc/kallsyms` is told by `rank`.
    ///
    /// # Errors
    ///
    /// `Malformed` where there are more symbols, modules or bytes than any kernel has.
    pub fn push(&mut self, kind: u8, function: Function<'_>, facts: Facts, rank: u32) -> Result<()> {
        let name = function.name;
        let module = function.module.map_or(Ok(CORE_MODULE), |module| self.module(module))?;
        let (Ok(name_start), Ok(name_len)) = (u32::try_from(self.texts.len()), u16::try_from(name.len()))
        else {
            return Err(odd("more symbols than any kernel has"));
        };
        if self.symbols.len() >= MAX_SYMBOLS {
            return Err(odd("more symbols than any kernel has"));
        }
        if let Some(index) = (module as usize).checked_sub(1) {
            self.modules[index].1 += 1;
        }
        self.texts.extend_from_slice(name);
        let record = Record { address: function.address, rank, module, kind, facts }.pack();
        self.symbols.push(Pending { head: head_of(name), name_start, name_len, record });
        Ok(())
    }

    /// Takes a module, which may have no symbols; its number.
    ///
    /// # Errors
    ///
    /// `Malformed` where there are more than any machine loads.
    pub fn module(&mut self, name: &[u8]) -> Result<ModuleId> {
        if let Some(&id) = self.ids.get(name) {
            return Ok(id);
        }
        self.modules.push((name.into(), 0));
        let id =
            ModuleId::try_from(self.modules.len()).map_err(|_| odd("more modules than any machine loads"))?;
        self.ids.insert(name.into(), id);
        Ok(id)
    }

    /// Puts them in order and stores them, names in these tokens.
    ///
    /// # Errors
    ///
    /// `Malformed` for a name that is longer than any.
    pub fn finish(mut self, tokens: &Tokens) -> Result<Stored> {
        let texts = std::mem::take(&mut self.texts);
        let name = |symbol: &Pending| {
            let start = symbol.name_start as usize;
            &texts[start..start + symbol.name_len as usize]
        };
        self.number_by_rank();
        sort_from(&mut self.symbols, 0, &name);
        let mut encoder = Encoder::with_room(tokens, self.symbols.len() * RECORD_BYTES + texts.len());
        for block in self.symbols.chunks(BLOCK) {
            encoder.begin(block.iter().map(|symbol| symbol.record));
            if !block.iter().all(|symbol| encoder.push(name(symbol))) {
                return Err(odd("a name that is longer than any"));
            }
        }
        let (content, blocks) = encoder.finish();
        let slots =
            slots(self.symbols.len(), &blocks, content.len(), |position| name(&self.symbols[position]));
        drop(texts);
        let mut stored = Stored { content, ..Stored::default() };
        stored.places = Places {
            count: self.symbols.len(),
            symbols: 0..stored.content.len(),
            blocks: stored.push_words(&blocks),
            slots: stored.push_words(&slots),
            of_modules: stored.push_words(&self.of_modules()),
        };
        stored.modules = self.modules;
        Ok(stored)
    }

    /// Makes ranks numbers from 0 on, so that they never run out however often a cache is brought up to date.
    fn number_by_rank(&mut self) {
        self.symbols.sort_unstable_by_key(|symbol| symbol.record.rank());
        (0..).zip(&mut self.symbols).for_each(|(number, symbol)| symbol.record.set_rank(number));
    }

    /// The positions of the modules' symbols, ascending within each module.
    fn of_modules(&self) -> Vec<u32> {
        let mut positions = vec![Vec::new(); self.modules.len()];
        for (position, symbol) in (0..).zip(&self.symbols) {
            if let Some(module) = (symbol.record.module() as usize).checked_sub(1) {
                positions[module].push(position);
            }
        }
        positions.concat()
    }
}

/// Sorts symbols whose names are the same up to `depth`, eight bytes at a time: numbers are compared, and each name
/// is looked at once for every eight bytes that it shares with another.
fn sort_from<'n>(symbols: &mut [Pending], depth: usize, name: &impl Fn(&Pending) -> &'n [u8]) {
    symbols.sort_unstable_by_key(|symbol| symbol.head);
    for same in symbols.chunk_by_mut(|a, b| a.head == b.head).filter(|same| same.len() > 1) {
        let deeper = depth + 8;
        // A name's end is a zero, which no name has in it: these are one and the same.
        if same[0].head as u8 == 0 {
            same.sort_unstable_by_key(|symbol| symbol.record.rank());
            continue;
        }
        same.iter_mut()
            .for_each(|symbol| symbol.head = head_of(name(symbol).get(deeper..).unwrap_or_default()));
        sort_from(same, deeper, name);
    }
}

/// The first eight bytes of a name as a number that orders as they do.
fn head_of(name: &[u8]) -> u64 {
    let mut head = [0; 8];
    let length = name.len().min(8);
    head[..length].copy_from_slice(&name[..length]);
    u64::from_be_bytes(head)
}

/// The hash table of these names, ascending, in blocks of so many bytes: for each the place of the first symbol that has
/// it, or of the first variant where no symbol has the plain name.
fn slots<'n>(count: usize, blocks: &[u32], bytes: usize, name: impl Fn(usize) -> &'n [u8]) -> Vec<u32> {
    let variants = (0..count).filter(|&position| base_name(name(position)).len() < name(position).len());
    let mut slots = Slots::new(Place::count(bytes), count + variants.clone().count());
    let place = |position| Place { start: blocks[position / BLOCK] as usize, index: position % BLOCK }.pack();
    let position = |place| {
        let Place { start, index } = Place::unpack(place);
        blocks.partition_point(|&block| (block as usize) < start) * BLOCK + index
    };
    for position in 0..count {
        if position == 0 || name(position) != name(position - 1) {
            slots.insert(name(position), place(position));
        }
    }
    for variant in variants {
        let base = base_name(name(variant));
        let known = slots.places(base).any(|known| {
            let known = name(position(known));
            known == base || base_name(known) == base
        });
        if !known {
            slots.insert(base, place(variant));
        }
    }
    slots.finish()
}
