//! The cache's file: an index of all symbols, to be used where it lies.
//!
//! ```text
//! header     magic, length of the description, where the pages begin, length of the file, checksum (five u64)
//! description  what the tables are of, and where what is: Postcard
//! checksums  one for each page (u64)
//! pages      the index, from a multiple of 4096 on
//! ```
//!
//! All numbers are in the machine's own byte order: the file never leaves it. What lies before the pages is checked
//! when the file is opened, each page when it is first looked at. Whatever is in the file, reading it gives the
//! tables or an error.

use std::{io, ops::Range};

use serde::{Deserialize, Serialize};

use super::{
    key::{Identity, Key},
    tables::CachedTables,
};
use crate::{
    error::Result,
    tables::{
        Blacklist,
        index::{Bytes, Index, PAGE_BYTES, Pages, Places, Stored, checksum},
        kcore::Lists,
        odd,
        tokens::Tokens,
    },
};

/// The last byte counts up with every change of the format or of what is in it.
const MAGIC: u64 = u64::from_ne_bytes(*b"fastpro\x05");

const HEADER_BYTES: usize = 40;

/// What the file says about itself.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Description {
    /// What the tables are of.
    of: Of,
    modules: Vec<Module>,
    /// What the codes of a name stand for: the table and its index.
    tokens: (Vec<u8>, Vec<u8>),
    places: Places,
    lists: Lists,
    counts: Counts,
}

/// A boot of a kernel.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Of {
    boot_id: Box<[u8]>,
    build_id: [u8; 32],
    /// Of the modules.
    fingerprint: u64,
}

impl Of {
    fn key(key: &Key) -> Self {
        Self { boot_id: key.boot_id.into(), build_id: key.build_id, fingerprint: key.fingerprint() }
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Module {
    name: Box<[u8]>,
    identity: Identity,
    symbols: u32,
}

/// How much of everything there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Functions that ftrace can hook.
    pub traceable: usize,
    /// Stretches of code in which probes are forbidden.
    pub forbidden: usize,
}

impl Counts {
    /// Those of these tables.
    pub fn of(sites: &[u64], blacklist: &Blacklist) -> Self {
        Self { traceable: sites.len(), forbidden: blacklist.len() }
    }
}

/// What is written.
#[derive(Debug)]
pub struct Contents {
    /// The index of all symbols.
    pub index: Stored,
    /// The tokens of its names.
    pub tokens: Tokens,
    /// Where the kernel's lists begin.
    pub lists: Lists,
    /// How much of everything there is.
    pub counts: Counts,
}

/// Writes the tables of the kernel that `key` stands for.
///
/// # Errors
///
/// What `out` fails with.
pub fn write(key: &Key, contents: Contents, out: &mut dyn io::Write) -> io::Result<()> {
    let pages = contents.index.content;
    let identity = |name: &[u8]| key.modules.get(name).copied().unwrap_or(0);
    let module = |(name, symbols): (Box<[u8]>, u32)| Module { identity: identity(&name), name, symbols };
    let description = Description {
        of: Of::key(key),
        modules: contents.index.modules.into_iter().map(module).collect(),
        tokens: contents.tokens.parts(),
        places: contents.index.places,
        lists: contents.lists,
        counts: contents.counts,
    };
    let mut description = postcard::to_allocvec(&description).map_err(io::Error::other)?;
    description.resize(description.len().next_multiple_of(8), 0);
    let sums = pages.chunks(PAGE_BYTES).flat_map(|page| checksum(page).to_ne_bytes());
    let mut head = description.clone();
    head.extend(sums);
    let begin = (HEADER_BYTES + head.len()).next_multiple_of(PAGE_BYTES);
    head.resize(begin - HEADER_BYTES, 0);
    let header =
        [MAGIC, description.len() as u64, begin as u64, (begin + pages.len()) as u64, checksum(&head)];
    out.write_all(&header.map(u64::to_ne_bytes).concat())?;
    out.write_all(&head)?;
    out.write_all(&pages)?;
    out.flush()
}

/// What a file has.
#[derive(Debug)]
pub struct Kept {
    /// Its tables.
    pub tables: CachedTables,
    /// No module came or went since.
    pub complete: bool,
}

/// Reads the tables in `file` if they are of the boot and the kernel that `key` stands for.
///
/// # Errors
///
/// `Malformed` where they are of another boot or kernel, where the file is of another version, damaged or cut
/// short, and where its parts don't belong together.
pub fn read(key: &Key, file: Bytes) -> Result<Kept> {
    let (description, sums, begin) = checked_head(&file)?;
    let Description { of, modules, tokens, places, lists, counts } =
        postcard::from_bytes(description).map_err(|e| odd("its description is damaged").with_source(e))?;
    let now = Of::key(key);
    if (&of.boot_id, &of.build_id) != (&now.boot_id, &now.build_id) {
        return Err(odd("it is of another boot or another kernel"));
    }
    let gone = modules.iter().map(|module| key.modules.get(&module.name) != Some(&module.identity)).collect();
    let modules = modules.into_iter().map(|module| (module.name, module.symbols)).collect();
    let tokens = Tokens::parse(&tokens.0, &tokens.1)?;
    let index = Index::open(Pages::new(file, begin, sums)?, places, tokens, modules)?;
    let tables = CachedTables { index, gone, lists, counts, changed: None };
    Ok(Kept { tables, complete: of.fingerprint == now.fingerprint })
}

/// The description, where the checksums are, and where the pages begin.
fn checked_head(file: &[u8]) -> Result<(&[u8], Range<usize>, usize)> {
    let header = file.first_chunk::<HEADER_BYTES>().ok_or_else(|| odd("it has no header"))?;
    let words = header.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word) as usize);
    let [magic, description, begin, length, sum] = words.collect::<Vec<_>>()[..] else {
        return Err(odd("it has no header"));
    };
    if magic as u64 != MAGIC {
        return Err(odd("it is of another version of fastprobe"));
    }
    if length != file.len() {
        return Err(odd("it is cut short"));
    }
    let head = file.get(HEADER_BYTES..begin).filter(|head| checksum(head) == sum as u64);
    let head = head.ok_or_else(|| odd("its header is damaged"))?;
    let sums = HEADER_BYTES.checked_add(description).and_then(|start| {
        let bytes = (length - begin).div_ceil(PAGE_BYTES) * 8;
        (start + bytes <= begin).then_some(start..start + bytes)
    });
    match (head.get(..description), sums) {
        (Some(description), Some(sums)) => Ok((description, sums, begin)),
        _ => Err(odd("its header is damaged")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use memmap2::MmapMut;

    use super::*;
    use crate::{
        pattern::{PatternSet, PatternText, Syntax},
        tables::{
            cache::tables::contents,
            kcore::{FakeKernel, Symbol},
        },
    };

    fn key() -> Key {
        Key { boot_id: [b'b'; 36], build_id: [1; 32], modules: [((*b"kvm").into(), 7)].into() }
    }

    fn map(bytes: &[u8]) -> Bytes {
        let mut memory = MmapMut::map_anon(bytes.len()).unwrap();
        memory.copy_from_slice(bytes);
        Bytes::Copied(memory.make_read_only().unwrap())
    }

    fn written(kernel: &FakeKernel) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&key(), contents(kernel.tables()).unwrap(), &mut bytes).unwrap();
        bytes
    }

    /// Everything that reading all of it gives.
    fn symbols(tables: &CachedTables) -> Result<Vec<Symbol>> {
        let mut all = Vec::new();
        tables.for_each_symbol(|kind, f| {
            all.push((kind, f.address, f.name.to_vec(), f.module.map(<[u8]>::to_vec)));
            Ok(())
        })?;
        all.sort();
        Ok(all)
    }

    fn matched(tables: &CachedTables, pattern: &str) -> Result<Vec<String>> {
        let set = PatternSet::new(Syntax::Glob, &[PatternText::argument(pattern)], &[], &[]).unwrap();
        let matches = tables.matching(&mut set.matcher())?;
        Ok(matches.iter().map(|m| format!("{m:?}")).collect())
    }

    #[test]
    fn tables_come_back_as_they_went_in() {
        for kernel in [FakeKernel::percpu(), FakeKernel::relative(), FakeKernel::self_relative()] {
            let Kept { tables, complete } = read(&key(), map(&written(&kernel))).unwrap();
            let mut expected = kernel.symbols();
            expected.sort();
            assert!(complete);
            assert_eq!(symbols(&tables).unwrap(), expected);
            assert_eq!(tables.counts(), Counts { traceable: 3, forbidden: 2 });
            for pattern in ["kvm*", "*", "kvm:*", "vmlinux:*", "kvm_init", "*_i*", "nothing"] {
                let set = PatternSet::new(Syntax::Glob, &[PatternText::argument(pattern)], &[], &[]).unwrap();
                let memory = kernel.tables().matching(&mut set.matcher()).unwrap();
                let memory: Vec<_> = memory.iter().map(|m| format!("{m:?}")).collect();
                assert_eq!(matched(&tables, pattern).unwrap(), memory, "{pattern}");
            }
        }
    }

    #[test]
    fn another_boot_kernel_or_set_of_modules_is_told() {
        let file = written(&FakeKernel::percpu());
        let fault = |key: Key| read(&key, map(&file)).unwrap_err().to_string();
        assert!(fault(Key { boot_id: [b'c'; 36], ..key() }).contains("another boot"));
        assert!(fault(Key { build_id: [2; 32], ..key() }).contains("another kernel"));
        for modules in [BTreeMap::new(), [((*b"kvm").into(), 8)].into()] {
            let kept = read(&Key { modules, ..key() }, map(&file)).unwrap();
            assert!(!kept.complete && kept.tables.modules().next().is_none());
            assert_eq!(matched(&kept.tables, "kvm*").unwrap().len(), 1);
            assert_eq!(matched(&kept.tables, "kvm:*").unwrap().len(), 0);
        }
        let more = [((*b"kvm").into(), 7), ((*b"xfs").into(), 8)].into();
        let kept = read(&Key { modules: more, ..key() }, map(&file)).unwrap();
        assert!(!kept.complete && kept.tables.modules().eq([b"kvm"]));
    }

    /// Opens it and looks at everything in it.
    fn use_all(bytes: &[u8]) -> Result<usize> {
        let kept = read(&key(), map(bytes))?;
        let mut found = symbols(&kept.tables)?.len();
        for pattern in ["kvm*", "kvm:*", "vfs_read", "*a*"] {
            found += matched(&kept.tables, pattern)?.len();
        }
        Ok(found)
    }

    #[test]
    fn any_damage_is_found() {
        let good = written(&FakeKernel::percpu());
        let expected = use_all(&good).unwrap();
        for length in 1..good.len() {
            assert!(use_all(&good[..length]).is_err(), "{length} bytes");
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x80;
            assert!(use_all(&bad).is_err(), "byte {at}");
        }
        assert_eq!(use_all(&good).unwrap(), expected);
    }

    #[test]
    fn hostile_content_with_right_checksums_never_panics() {
        let good = written(&FakeKernel::percpu());
        let word = |file: &[u8], at: usize| u64::from_ne_bytes(file[at..at + 8].try_into().unwrap()) as usize;
        let (description, begin) = (word(&good, 8), word(&good, 16));
        let signed = |mut file: Vec<u8>| {
            let sums: Vec<u8> =
                file[begin..].chunks(PAGE_BYTES).flat_map(|page| checksum(page).to_ne_bytes()).collect();
            let at = HEADER_BYTES + description;
            file[at..at + sums.len()].copy_from_slice(&sums);
            let sum = checksum(&file[HEADER_BYTES..begin]).to_ne_bytes();
            file[HEADER_BYTES - 8..HEADER_BYTES].copy_from_slice(&sum);
            file
        };
        assert!(use_all(&signed(good.clone())).is_ok());
        let padding = |at: &usize| good[*at] == 0 && (HEADER_BYTES + description + 8..begin).contains(at);
        for at in (0..good.len()).filter(|at| !padding(at)) {
            for flip in [0x01, 0xff] {
                let mut bad = good.clone();
                bad[at] ^= flip;
                let _whatever = use_all(&signed(bad));
            }
        }
    }
}
