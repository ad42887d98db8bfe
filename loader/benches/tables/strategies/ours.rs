//! fastprobe's own: the cache's index, and the kernel's order of its names where there is no cache.

use std::cell::RefCell;

use fastprobe::{
    Result,
    tables::{
        Root,
        cache::{self, CachedTables, Folder, Key},
        kcore::{ByName, CompressedSymbols},
        tokens::Expander,
    },
};

use super::Strategy;

/// The index in the cache's file, of the modules' symbols, too.
pub struct Cached {
    tables: CachedTables,
    file_bytes: u64,
}

impl Cached {
    /// What a run does: learns what kernel and modules there are, opens the file, maps it, checks its head.
    pub fn load(root: &Root, folder: &Folder) -> Result<Self> {
        let kept = cache::load(folder, &Key::of(root)?)?.expect("the cache was written");
        let file_bytes = std::fs::metadata(folder.file()).map_or(0, |metadata| metadata.len());
        Ok(Self { tables: kept.tables, file_bytes })
    }
}

impl Strategy for Cached {
    fn find(&self, name: &[u8]) -> Option<u64> {
        let index = self.tables.index();
        let (_, record) = index.find(name).expect("a file in order")?;
        Some(record.address)
    }

    /// The whole file: it needs nothing of the kernel's.
    fn held_bytes(&self) -> usize {
        self.file_bytes as usize
    }
}

/// The kernel's own order, as a run without a cache uses it.
pub struct Cold<'s> {
    symbols: &'s CompressedSymbols,
    by_name: ByName<'s>,
    expander: RefCell<Expander>,
}

impl<'s> Cold<'s> {
    /// Finds the order in what was read, and notes where every sixteenth name is.
    pub fn new(symbols: &'s CompressedSymbols) -> Result<Self> {
        Ok(Self { symbols, by_name: symbols.order()?, expander: RefCell::new(Expander::new()) })
    }
}

impl Strategy for Cold<'_> {
    fn find(&self, name: &[u8]) -> Option<u64> {
        let place = self.by_name.family(name).expect("an order").next()?;
        let number = self.by_name.number(place).expect("an order");
        let codes = self.by_name.codes(number).expect("an order");
        let mut expander = self.expander.borrow_mut();
        let (_, found) = self.symbols.expand(&mut expander, number, codes).expect("a name");
        (found == name).then(|| self.symbols.address(number))
    }

    fn held_bytes(&self) -> usize {
        3 * self.symbols.count() + 4 * self.symbols.count().div_ceil(16)
    }
}
