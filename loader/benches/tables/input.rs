//! What everything is measured on: the tables of a real kernel, from a snapshot, and names sampled from them.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use fastprobe::tables::{
    Root, Tables, Wish,
    cache::{self, Folder, Key},
    is_function_type,
    kcore::{self, KcoreTables},
    snapshot,
};

use crate::{compressed::Compressed, timer::Random};

/// What makes the input, and links it to where this looks for it.
const REMEDY: &str = "cargo xtask bench makes a snapshot of a kernel in a VM, once, and then runs this";

/// Any less would not be a kernel at work.
const MIN_SYMBOLS: usize = 200_000;

/// A symbol of the core kernel or of a module.
pub struct Symbol {
    pub name: Vec<u8>,
    pub address: u64,
    pub is_function: bool,
}

/// The tables, read once.
pub struct Input {
    /// The unpacked snapshot.
    pub root: Root,
    /// The folder with it and with the cache.
    folder: tempfile::TempDir,
    /// The snapshot and the file of a large module.
    pub place: PathBuf,
    pub tables: KcoreTables,
    pub compressed: Compressed,
    /// All of them, core first.
    pub symbols: Vec<Symbol>,
    pub release: String,
}

/// Names to look up.
pub struct Names {
    /// Names of just one symbol, which is the core's, with its address.
    pub hits: Vec<(Vec<u8>, u64)>,
    /// The same with a change, so that no symbol has the name.
    pub misses: Vec<Vec<u8>>,
}

impl Input {
    pub fn open() -> Result<Self> {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-input");
        let archive = place.join("snapshot.tar.gz");
        ensure!(archive.is_file(), "there is no {}: {REMEDY}", archive.display());
        // Where memory is what keeps it, as in `/run`: other file systems' larger pages would count as memory.
        let folder = tempfile::tempdir_in("/dev/shm")?;
        let unpacked = folder.path().join("root");
        snapshot::unpack(&archive, &unpacked)?;
        let root = Root::at(unpacked);
        let tables = kcore::read(&root, true)?;
        let mut symbols = Vec::new();
        tables.for_each_symbol(|kind, f| {
            symbols.push(Symbol {
                name: f.name.to_vec(),
                address: f.address,
                is_function: is_function_type(kind),
            });
            Ok(())
        })?;
        ensure!(symbols.len() >= MIN_SYMBOLS, "{} symbols are too few: {REMEDY}", symbols.len());
        let compressed = Compressed::of(&tables.core)?;
        let release = root.release()?;
        let input = Self { root, folder, place, tables, compressed, symbols, release };
        let written = Tables::read(&input.root, Some(&input.cache()), Wish::Auto, None)?;
        let reasons: Vec<_> = written.fallbacks().iter().map(|reason| format!("{reason:#}")).collect();
        ensure!(
            written.store(&input.root, &input.cache())?,
            "the cache was not written: {}",
            reasons.join("; ")
        );
        input.write_core()?;
        Ok(input)
    }

    /// Writes a cache of the core kernel's symbols alone, as of a kernel without modules.
    fn write_core(&self) -> Result<()> {
        let (root, folder) = self.core_alone();
        for file in ["proc/sys/kernel/random/boot_id", "sys/kernel/notes"] {
            let to = root.path().join(file);
            fs::create_dir_all(to.parent().context("a file in no folder")?)?;
            fs::copy(self.root.path().join(file), to)?;
        }
        let mut tables = kcore::read(&self.root, true)?;
        tables.rest.modules.clear();
        Ok(cache::store(&folder, &root, &Key::of(&root)?, cache::contents(tables)?)?)
    }

    /// Where that is, and the kernel that it is of.
    pub fn core_alone(&self) -> (Root, Folder) {
        let place = self.folder.path().join("core");
        (Root::at(&place), Folder::at(&place))
    }

    /// The folder that the cache is in.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where the cache is.
    pub fn cache(&self) -> Folder {
        Folder::at(self.folder.path())
    }

    /// A place where no cache is yet.
    pub fn empty_folder(&self) -> Result<tempfile::TempDir> {
        tempfile::tempdir_in(self.folder.path()).context("no place for a cache")
    }

    pub fn functions(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|symbol| symbol.is_function)
    }

    /// So many names of each kind, shuffled.
    pub fn names(&self, count: usize) -> Names {
        let mut known: HashMap<&[u8], usize> = HashMap::new();
        for symbol in &self.symbols {
            *known.entry(&symbol.name).or_default() += 1;
            // What variants have in common is a name, too.
            for (at, _) in symbol.name.iter().enumerate().filter(|(_, byte)| **byte == b'.') {
                known.entry(&symbol.name[..at]).or_default();
            }
        }
        let mut random = Random::new();
        let mut core: Vec<&Symbol> = self.symbols[..self.compressed.count()].iter().collect();
        random.shuffle(&mut core);
        let unique = core.iter().filter(|symbol| known[&symbol.name[..]] == 1);
        let hits = unique.take(count).map(|symbol| (symbol.name.clone(), symbol.address)).collect();
        let mut misses = Vec::new();
        for symbol in core.iter().rev().cycle() {
            let name = changed(&symbol.name, &mut random);
            if !known.contains_key(&name[..]) {
                misses.push(name);
            }
            if misses.len() == count {
                break;
            }
        }
        Names { hits, misses }
    }
}

/// A name as another kernel might have it: another letter, a letter less, two the other way round, something behind it.
fn changed(name: &[u8], random: &mut Random) -> Vec<u8> {
    let mut name = name.to_vec();
    let at = random.below(name.len());
    match random.below(4) {
        0 => name[at] = b'a' + random.below(26) as u8,
        1 => drop(name.remove(at)),
        2 if at > 0 => name.swap(at - 1, at),
        _ => name.extend_from_slice([&b"_locked"[..], b"_rcu", b"2", b"_ex"][random.below(4)]),
    }
    if name.is_empty() { b"_".to_vec() } else { name }
}
