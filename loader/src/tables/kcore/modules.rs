//! The loaded modules and their symbols: the list that `/proc/modules` shows, walked in memory
//! (`include/linux/module.h`, `kernel/module/kallsyms.c`, 6.1 to 7.3).

use std::{collections::HashSet, ops::Range};

use super::{heads::MAX_COMPARED, layout::Structures, memory::Memory};
use crate::{
    error::Result,
    pattern::{Matcher, Reach, Search},
    tables::{Function, is_function_type, matches::MatchSink, odd},
};

/// `MODULE_STATE_UNFORMED`: on the list, and nothing in it is set up.
const UNFORMED: u32 = 3;

/// More modules than any machine loads: a list that is longer runs in a circle.
const MAX_MODULES: usize = 1 << 14;

/// More than the symbols of all modules that there are take.
const MAX_TOTAL_BYTES: u64 = 256 << 20;

/// `sizeof(Elf64_Sym)`; in it a name of 4 bytes at 0, a section of 2 at 6, a value of 8 at 8.
const SYMBOL_BYTES: usize = 24;

/// More than the symbols of any module take.
const MAX_SYMBOL_BYTES: u64 = 64 << 20;

/// More than `MODULE_NAME_LEN`, which is 56.
const NAME_BYTES: usize = 64;

/// A loaded module and its symbols.
#[derive(Debug)]
pub struct Module {
    /// Its name.
    pub name: Box<[u8]>,
    /// Symbol table, names and types, as they lie in memory one after the other.
    memory: Vec<u8>,
    symbols: usize,
    names: Range<usize>,
}

impl Module {
    /// A module's tables: the number of symbols, and where in `memory` their names are; the symbols lie before
    /// the names and the types behind them.
    ///
    /// # Errors
    ///
    /// `Malformed` where that can't be.
    pub fn from_parts(name: &[u8], memory: Vec<u8>, symbols: usize, names: Range<usize>) -> Result<Self> {
        let table = symbols.checked_mul(SYMBOL_BYTES).is_some_and(|bytes| bytes <= names.start);
        let types = names.end.checked_add(symbols) == Some(memory.len());
        if !table || !types || names.start > names.end {
            let name = name.escape_ascii();
            return Err(odd(format!("the symbols of module {name} are not as they are known")));
        }
        Ok(Self { name: name.into(), memory, symbols, names })
    }

    /// What [`Self::from_parts`] takes.
    pub fn parts(&self) -> (&[u8], usize, &Range<usize>) {
        (&self.memory, self.symbols, &self.names)
    }

    /// Calls `each` with type letter, address and name of every symbol that has a name.
    ///
    /// # Errors
    ///
    /// `Malformed` where a name reaches beyond its table; what `each` fails with.
    pub fn for_each(&self, mut each: impl FnMut(u8, u64, &[u8]) -> Result<()>) -> Result<()> {
        let (table, rest) = self.memory.split_at(self.symbols * SYMBOL_BYTES);
        let (symbols, _) = table.as_chunks::<SYMBOL_BYTES>();
        let at = self.symbols * SYMBOL_BYTES;
        let names = &rest[self.names.start - at..self.names.end - at];
        let types = &self.memory[self.names.end..];
        for (symbol, &kind) in symbols.iter().zip(types) {
            let [n0, n1, n2, n3, ..] = *symbol;
            let start = u32::from_ne_bytes([n0, n1, n2, n3]) as usize;
            let name = names.get(start..).and_then(|text| Some(&text[..memchr::memchr(0, text)?]));
            let name = name.ok_or_else(|| {
                odd(format!("a symbol of {} whose name has no end", self.name.escape_ascii()))
            })?;
            if !name.is_empty() {
                let value = symbol[8..16].try_into().map_or(0, u64::from_ne_bytes);
                each(kind, value, name)?;
            }
        }
        Ok(())
    }

    /// Gives its functions that match to `sink`.
    ///
    /// # Errors
    ///
    /// Those of [`Self::for_each`]; what `sink` fails with.
    pub fn matching(
        &self,
        search: Search,
        reach: &Reach<'_>,
        matcher: &mut Matcher<'_>,
        sink: &mut MatchSink<'_>,
    ) -> Result<()> {
        if search == Search::Nowhere {
            return Ok(());
        }
        // Comparing more than a few starts takes longer than asking the matcher.
        let compared = search == Search::AtStarts && reach.starts.len() <= MAX_COMPARED;
        self.for_each(|kind, address, name| {
            let admitted = is_function_type(kind) && (!compared || starts_so(name, reach));
            if admitted && matcher.selects(&self.name, name) {
                sink.push(Function { address, name, module: Some(&self.name) })?;
            }
            Ok(())
        })
    }
}

/// Whether `name` starts in one of these ways.
fn starts_so(name: &[u8], reach: &Reach<'_>) -> bool {
    reach.starts.iter().any(|start| name.starts_with(start.head()))
}

/// Reads all modules on the list at `head` but the `known` ones: two reads for each, or three where it is just being
/// loaded, and one for those that are known.
///
/// # Errors
///
/// `Malformed` where the list runs in a circle or a module's tables are not where they are known to be; `Io`
/// where memory can't be read.
pub fn read(
    memory: &dyn Memory,
    structures: &Structures,
    head: u64,
    known: &HashSet<&[u8]>,
) -> Result<Vec<Module>> {
    let mut modules = Vec::new();
    let (mut rounds, mut total) = (0, 0);
    let mut next = memory.word(head)?;
    while next != head {
        rounds += 1;
        if rounds > MAX_MODULES || total > MAX_TOTAL_BYTES {
            return Err(odd("a list of modules without an end"));
        }
        let (module, following) = read_module(memory, structures, next, known)?;
        total += module.as_ref().map_or(0, |module| module.memory.len() as u64);
        modules.extend(module);
        next = following;
    }
    Ok(modules)
}

/// The module whose list entry is at `entry`, if it is set up and not known, and the entry after it.
fn read_module(
    memory: &dyn Memory,
    at: &Structures,
    entry: u64,
    known: &HashSet<&[u8]>,
) -> Result<(Option<Module>, u64)> {
    let module = &at.module;
    let start = entry.checked_sub(module.list as u64).ok_or_else(|| odd("a module below all memory"))?;
    let bytes = memory.bytes(start, module.size)?;
    let next = word_at(&bytes, module.list)?;
    let tables = word_at(&bytes, module.kallsyms)?;
    if word_at(&bytes, module.state)? as u32 == UNFORMED || tables == 0 {
        return Ok((None, next));
    }
    let name = bytes.get(module.name..).unwrap_or_default();
    let name = &name[..memchr::memchr(0, name).filter(|&end| end < NAME_BYTES).unwrap_or(0)];
    if known.contains(name) {
        return Ok((None, next));
    }
    // Once a module runs, its tables are described within its own structure.
    let within = tables.checked_sub(start).and_then(|at| bytes.get(usize::try_from(at).ok()?..));
    let tables = match within.and_then(|bytes| bytes.get(..at.mod_kallsyms.size)) {
        Some(bytes) => bytes.to_vec(),
        None => memory.bytes(tables, at.mod_kallsyms.size)?,
    };
    Ok((Some(read_symbols(memory, at, name, &tables)?), next))
}

/// Reads the tables of one module. They lie one behind the other (`layout_symtab`), so the end of the names is
/// where the types start.
fn read_symbols(memory: &dyn Memory, at: &Structures, name: &[u8], tables: &[u8]) -> Result<Module> {
    let odd = || odd(format!("the symbols of module {} are not as they are known", name.escape_ascii()));
    let start = word_at(tables, at.mod_kallsyms.symtab)?;
    let count = word_at(tables, at.mod_kallsyms.num_symtab)? & u64::from(u32::MAX);
    let names = word_at(tables, at.mod_kallsyms.strtab)?;
    let types = word_at(tables, at.mod_kallsyms.typetab)?;
    let names_at = names.checked_sub(start).ok_or_else(odd)?;
    let types_at = types.checked_sub(start).ok_or_else(odd)?;
    let total = types_at.checked_add(count).ok_or_else(odd)?;
    if total > MAX_SYMBOL_BYTES {
        return Err(odd());
    }
    let memory = memory.bytes(start, total as usize)?;
    Module::from_parts(name, memory, count as usize, names_at as usize..types_at as usize)
}

fn word_at(bytes: &[u8], at: usize) -> Result<u64> {
    let word = bytes.get(at..).and_then(|bytes| bytes.first_chunk::<8>());
    word.map(|word| u64::from_ne_bytes(*word)).ok_or_else(|| odd("a structure smaller than its members"))
}
