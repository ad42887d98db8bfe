//! The cache's file: the kernel's tables as they lay in its memory, to be used where they are.
//!
//! ```text
//! header      magic, version, number of sections, length of the file, checksum of header and directory,
//!             boot id, build id, fingerprint of the modules
//! directory   for each section: kind, place, length, checksum, four numbers, a module's name
//! sections    each at a multiple of 64 bytes
//! ```
//!
//! All numbers are in the machine's own byte order: the file never leaves it. Whatever is in the file, reading
//! it gives the tables or an error: places, lengths and checksums first, then the same checks as for what comes
//! from the kernel's memory.

use std::{io, ops::Range, sync::Arc};

use memmap2::Mmap;
use twox_hash::XxHash3_64;

use super::{key::Key, odd};
use crate::{
    error::Result,
    tables::{
        Blacklist,
        bytes::Bytes,
        kcore::{AddressRule, CompressedSymbols, KcoreTables, Module, Parts},
    },
};

const MAGIC: [u8; 8] = *b"fastprob";

/// Counts up with every change of the format or of what the sections mean.
const VERSION: u32 = 1;

const HEADER_BYTES: usize = 128;
const ENTRY_BYTES: usize = 128;
const NAME_BYTES: usize = 64;
const ALIGNMENT: usize = 64;

/// Where in the header the checksum is.
const CHECKSUM_AT: Range<usize> = 24..32;

const CORE: u32 = 1;
const CORE_PARTS: u32 = 2;
const MODULE: u32 = 3;
const SITES: u32 = 4;
const BLACKLIST: u32 = 5;

/// A section that is to be written.
struct Section<'t> {
    kind: u32,
    name: &'t [u8],
    numbers: [u64; 4],
    content: Content<'t>,
}

enum Content<'t> {
    Borrowed(&'t [u8]),
    Owned(Vec<u8>),
}

impl Content<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// Writes the tables of the kernel that `key` stands for.
///
/// # Errors
///
/// What `out` fails with.
pub fn write(key: &Key, tables: &KcoreTables, out: &mut dyn io::Write) -> io::Result<()> {
    let sections = sections(key, tables);
    let mut at = HEADER_BYTES + sections.len() * ENTRY_BYTES;
    let mut places = Vec::with_capacity(sections.len());
    for section in &sections {
        at = at.next_multiple_of(ALIGNMENT);
        places.push(at);
        at += section.content.bytes().len();
    }
    let mut head = header(key, sections.len(), at);
    for (section, place) in sections.iter().zip(&places) {
        push_entry(&mut head, section, *place);
    }
    let checksum = XxHash3_64::oneshot(&head);
    head[CHECKSUM_AT].copy_from_slice(&checksum.to_ne_bytes());
    out.write_all(&head)?;
    let mut written = head.len();
    for (section, place) in sections.iter().zip(places) {
        out.write_all(&[0; ALIGNMENT][..place - written])?;
        out.write_all(section.content.bytes())?;
        written = place + section.content.bytes().len();
    }
    out.flush()
}

fn sections<'t>(key: &Key, tables: &'t KcoreTables) -> Vec<Section<'t>> {
    let words =
        |words: &mut dyn Iterator<Item = u64>| Content::Owned(words.flat_map(u64::to_ne_bytes).collect());
    let plain = |kind, content| Section { kind, name: b"", numbers: [0; 4], content };
    let (memory, parts) = tables.core.parts();
    let ranges = tables.blacklist.ranges().iter();
    let mut sections = vec![
        plain(CORE_PARTS, words(&mut parts_to_words(parts).into_iter())),
        plain(CORE, Content::Borrowed(memory)),
        plain(SITES, words(&mut tables.sites.iter().copied())),
        plain(BLACKLIST, words(&mut ranges.flat_map(|&(start, end)| [start, end]))),
    ];
    sections.extend(tables.modules.iter().map(|module| {
        let (memory, symbols, names) = module.parts();
        let identity = key.modules.get(&module.name).copied().unwrap_or(0);
        let numbers = [symbols as u64, names.start as u64, names.end as u64, identity];
        Section { kind: MODULE, name: &module.name, numbers, content: Content::Borrowed(memory) }
    }));
    sections
}

fn header(key: &Key, sections: usize, length: usize) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER_BYTES + sections * ENTRY_BYTES);
    header.extend(MAGIC);
    header.extend(VERSION.to_ne_bytes());
    header.extend((sections as u32).to_ne_bytes());
    header.extend((length as u64).to_ne_bytes());
    header.extend([0; 8]);
    header.extend(key.boot_id);
    header.extend([0; 4]);
    header.extend(key.build_id);
    header.extend(key.fingerprint().to_ne_bytes());
    header.resize(HEADER_BYTES, 0);
    header
}

fn push_entry(head: &mut Vec<u8>, section: &Section<'_>, place: usize) {
    let bytes = section.content.bytes();
    head.extend(section.kind.to_ne_bytes());
    head.extend([0; 4]);
    head.extend(
        [place as u64, bytes.len() as u64, XxHash3_64::oneshot(bytes)].map(u64::to_ne_bytes).concat(),
    );
    head.extend(section.numbers.map(u64::to_ne_bytes).concat());
    let mut name = [0; NAME_BYTES];
    let length = section.name.len().min(NAME_BYTES);
    name[..length].copy_from_slice(&section.name[..length]);
    head.extend(name);
}

/// A section of a file.
struct Entry<'f> {
    kind: u32,
    range: Range<usize>,
    checksum: u64,
    numbers: [u64; 4],
    name: &'f [u8],
}

/// What a file has.
#[derive(Debug)]
pub struct Kept {
    /// Its tables; of the modules those that are loaded still.
    pub tables: KcoreTables,
    /// No module came or went since.
    pub complete: bool,
}

/// Reads the tables in `file` if they are of the boot and the kernel that `key` stands for.
///
/// # Errors
///
/// `Malformed` where they are of another boot or kernel, where the file is of another version, damaged or cut
/// short, and where its tables are not what they should be.
pub fn read(key: &Key, file: Mmap) -> Result<Kept> {
    let file = Arc::new(file);
    let mut core = (None, None);
    let mut modules = Vec::new();
    let (mut sites, mut blacklist) = (None, None);
    let (entries, complete) = entries(key, &file)?;
    for entry in entries {
        let bytes = Bytes::mapped(&file, entry.range.clone());
        let bytes = bytes.ok_or_else(|| odd("a section beyond the end of the file"))?;
        if XxHash3_64::oneshot(&bytes) != entry.checksum {
            return Err(odd(format!("section {} is damaged", entry.kind)));
        }
        match entry.kind {
            CORE => core.0 = Some(bytes),
            CORE_PARTS => core.1 = Some(parts_from_words(&words(&bytes)?)?),
            MODULE if key.modules.get(entry.name) == Some(&entry.numbers[3]) => {
                modules.push(module(&entry, bytes)?);
            }
            MODULE => {}
            SITES => sites = Some(words(&bytes)?).filter(|sites| sites.is_sorted()),
            BLACKLIST => {
                let words = words(&bytes)?;
                blacklist =
                    Some(Blacklist::of_ranges(words.as_chunks().0.iter().map(|&[a, b]| (a, b)).collect()));
            }
            kind => return Err(odd(format!("a section of kind {kind}"))),
        }
    }
    let ((Some(memory), Some(parts)), Some(sites), Some(blacklist)) = (core, sites, blacklist) else {
        return Err(odd("a section is missing"));
    };
    let core = CompressedSymbols::from_parts(memory, parts)?;
    Ok(Kept { tables: KcoreTables { core, modules, sites, blacklist, steps: Vec::new() }, complete })
}

/// Checks the header; gives the directory, and whether the modules are the same.
fn entries<'f>(key: &Key, file: &'f [u8]) -> Result<(Vec<Entry<'f>>, bool)> {
    let header: &[u8; HEADER_BYTES] = file.first_chunk().ok_or_else(|| odd("it has no header"))?;
    let number = |at: usize| header[at..at + 4].try_into().map_or(0, u32::from_ne_bytes);
    if header[..8] != MAGIC || number(8) != VERSION {
        return Err(odd("it is of another version of fastprobe"));
    }
    let end =
        (number(12) as usize).checked_mul(ENTRY_BYTES).and_then(|bytes| bytes.checked_add(HEADER_BYTES));
    let head = end.and_then(|end| file.get(..end)).ok_or_else(|| odd("it is cut short"))?;
    let mut unsigned = head.to_vec();
    unsigned[CHECKSUM_AT].fill(0);
    if XxHash3_64::oneshot(&unsigned).to_ne_bytes() != header[CHECKSUM_AT] {
        return Err(odd("its header is damaged"));
    }
    if header[16..24] != (file.len() as u64).to_ne_bytes() {
        return Err(odd("it is cut short"));
    }
    let expected = self::header(key, number(12) as usize, file.len());
    if expected[32..104] != header[32..104] {
        return Err(odd("it is of another boot or another kernel"));
    }
    let entries: Result<_> = head[HEADER_BYTES..].as_chunks().0.iter().map(entry).collect();
    Ok((entries?, expected[104..] == header[104..]))
}

fn entry(bytes: &[u8; ENTRY_BYTES]) -> Result<Entry<'_>> {
    let (kind, rest) = bytes.split_at(8);
    let (numbers, name) = rest.split_at(56);
    let [place, length, checksum, n0, n1, n2, n3] = words(numbers)?[..] else {
        return Err(odd("no numbers"));
    };
    let end = place.checked_add(length).ok_or_else(|| odd("a section beyond the end of the file"))?;
    Ok(Entry {
        kind: kind[..4].try_into().map_or(0, u32::from_ne_bytes),
        range: place as usize..end as usize,
        checksum,
        numbers: [n0, n1, n2, n3],
        name: &name[..memchr::memchr(0, name).unwrap_or(name.len())],
    })
}

fn module(entry: &Entry<'_>, bytes: Bytes) -> Result<Module> {
    let [symbols, start, end, _] = entry.numbers.map(|number| number as usize);
    Module::from_parts(entry.name, bytes, symbols, start..end)
}

fn words(bytes: &[u8]) -> Result<Vec<u64>> {
    match bytes.as_chunks::<8>() {
        (words, []) => Ok(words.iter().map(|word| u64::from_ne_bytes(*word)).collect()),
        _ => Err(odd("a section of no whole number of words")),
    }
}

fn parts_to_words(parts: &Parts) -> Vec<u64> {
    let ranges = [&parts.names, &parts.token_table, &parts.token_index, &parts.offsets];
    let mut words: Vec<u64> =
        ranges.iter().flat_map(|range| [range.start as u64, range.end as u64]).collect();
    words.push(parts.count as u64);
    words.extend(match parts.rule {
        AddressRule::Relative { base } => [0, base],
        AddressRule::AbsolutePercpu { base } => [1, base],
        AddressRule::SelfRelative { table } => [2, table],
    });
    words
}

fn parts_from_words(words: &[u64]) -> Result<Parts> {
    let &[n0, n1, t0, t1, i0, i1, o0, o1, count, rule, base] = words else {
        return Err(odd("the parts of the core's tables are missing"));
    };
    let rule = match rule {
        0 => AddressRule::Relative { base },
        1 => AddressRule::AbsolutePercpu { base },
        2 => AddressRule::SelfRelative { table: base },
        rule => return Err(odd(format!("an address rule {rule}"))),
    };
    let range = |start: u64, end: u64| start as usize..end as usize;
    Ok(Parts {
        names: range(n0, n1),
        token_table: range(t0, t1),
        token_index: range(i0, i1),
        offsets: range(o0, o1),
        count: count as usize,
        rule,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use memmap2::MmapMut;

    use super::*;
    use crate::tables::kcore::FakeKernel;

    fn key() -> Key {
        Key { boot_id: [b'b'; 36], build_id: [1; 32], modules: [((*b"kvm").into(), 7)].into() }
    }

    fn map(bytes: &[u8]) -> Mmap {
        let mut memory = MmapMut::map_anon(bytes.len()).unwrap();
        memory.copy_from_slice(bytes);
        memory.make_read_only().unwrap()
    }

    fn example() -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&key(), &FakeKernel::percpu().tables(), &mut bytes).unwrap();
        bytes
    }

    fn symbols(tables: &KcoreTables) -> Vec<(u64, Vec<u8>)> {
        let mut all = Vec::new();
        tables
            .for_each_symbol(|_, f| {
                all.push((f.address, f.name.to_vec()));
                Ok(())
            })
            .unwrap();
        all
    }

    #[test]
    fn tables_come_back_as_they_went_in() {
        for kernel in [FakeKernel::percpu(), FakeKernel::relative(), FakeKernel::self_relative()] {
            let tables = kernel.tables();
            let mut bytes = Vec::new();
            write(&key(), &tables, &mut bytes).unwrap();
            let Kept { tables: again, complete } = read(&key(), map(&bytes)).unwrap();
            assert!(complete);
            assert_eq!(symbols(&again), symbols(&tables));
            assert_eq!(again.sites, tables.sites);
            assert_eq!(again.blacklist, tables.blacklist);
            assert_eq!(again.modules.len(), 1);
        }
    }

    #[test]
    fn another_boot_kernel_or_set_of_modules_is_told() {
        let fault = |key: Key| read(&key, map(&example())).unwrap_err().to_string();
        assert!(fault(Key { boot_id: [b'c'; 36], ..key() }).contains("another boot"));
        assert!(fault(Key { build_id: [2; 32], ..key() }).contains("another kernel"));
        for modules in [BTreeMap::new(), [((*b"kvm").into(), 8)].into()] {
            let kept = read(&Key { modules, ..key() }, map(&example())).unwrap();
            assert!(!kept.complete && kept.tables.modules.is_empty());
        }
        let more = [((*b"kvm").into(), 7), ((*b"xfs").into(), 8)].into();
        let kept = read(&Key { modules: more, ..key() }, map(&example())).unwrap();
        assert!(!kept.complete && kept.tables.modules.len() == 1);
    }

    #[test]
    fn any_damage_is_found() {
        let good = example();
        for length in 1..good.len() {
            assert!(read(&key(), map(&good[..length])).is_err(), "{length} bytes");
        }
        let in_sections = HEADER_BYTES + 5 * ENTRY_BYTES;
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x80;
            // Between the sections nothing counts.
            if read(&key(), map(&bad)).is_ok() {
                assert!(at >= in_sections && good[at] == 0, "byte {at}");
            }
        }
    }

    #[test]
    fn hostile_content_with_right_checksums_never_panics() {
        let good = example();
        let signed = |mut file: Vec<u8>| {
            let head = HEADER_BYTES + 5 * ENTRY_BYTES;
            for entry in 0..5 {
                let at = HEADER_BYTES + entry * ENTRY_BYTES;
                let number = |at: usize| u64::from_ne_bytes(file[at..at + 8].try_into().unwrap()) as usize;
                let (place, length) = (number(at + 8), number(at + 16));
                if let Some(bytes) = place.checked_add(length).and_then(|end| file.get(place..end)) {
                    let checksum = XxHash3_64::oneshot(bytes).to_ne_bytes();
                    file[at + 24..at + 32].copy_from_slice(&checksum);
                }
            }
            file[CHECKSUM_AT].fill(0);
            let checksum = XxHash3_64::oneshot(&file[..head]).to_ne_bytes();
            file[CHECKSUM_AT].copy_from_slice(&checksum);
            file
        };
        assert!(read(&key(), map(&signed(good.clone()))).is_ok());
        for at in 0..good.len() {
            for flip in [0x01, 0xff] {
                let mut bad = good.clone();
                bad[at] ^= flip;
                if let Ok(kept) = read(&key(), map(&signed(bad))) {
                    let _whatever = kept.tables.for_each_symbol(|_, _| Ok(()));
                }
            }
        }
    }
}
