//! A small core file of what the tables are read from, and of nothing else: what [`read`](super::read) looked at in
//! the kernel's memory can be read again on another machine.

use std::{cell::RefCell, ops::Bound};

use std::collections::BTreeMap;

use object::{
    Endianness, U16, U32, U64, elf,
    pod::{bytes_of, bytes_of_slice},
};

use super::{
    memory::{MAX_SEGMENTS, Memory},
    vmcoreinfo::{NOTE, VmCoreInfo},
};
use crate::{error::Result, tables::odd};

/// Core files are of the machine that they are read on.
const ENDIAN: Endianness = if cfg!(target_endian = "big") { Endianness::Big } else { Endianness::Little };

/// Memory that remembers what was read from it. What was read once is not read again, so that the recording is what
/// its reader saw, though the kernel goes on.
pub struct Recording<'m> {
    memory: &'m dyn Memory,
    /// What was read, by its address; no two of them overlap.
    pieces: RefCell<BTreeMap<u64, Vec<u8>>>,
}

impl<'m> Recording<'m> {
    /// Nothing of `memory` so far.
    pub fn of(memory: &'m dyn Memory) -> Self {
        Self { memory, pieces: RefCell::default() }
    }

    /// A core file of what was read, with the note that says what it is of (`fs/proc/kcore.c`).
    ///
    /// # Errors
    ///
    /// `Malformed` where it was more pieces than are read from a core file.
    pub fn core_file(self, info: &VmCoreInfo) -> Result<Vec<u8>> {
        let pieces = self.pieces.into_inner();
        if pieces.len() > MAX_SEGMENTS {
            return Err(odd(format!("the tables lie in {} pieces of memory", pieces.len())));
        }
        let note = note(info);
        let segments = pieces.len() + 1;
        let notes_at = size_of::<elf::FileHeader64<Endianness>>()
            + segments * size_of::<elf::ProgramHeader64<Endianness>>();
        let mut at = notes_at as u64;
        let mut headers = vec![program_header(elf::PT_NOTE, &mut at, 0, note.len())];
        headers.extend(
            pieces
                .iter()
                .map(|(&address, bytes)| program_header(elf::PT_LOAD, &mut at, address, bytes.len())),
        );
        let mut file = Vec::with_capacity(at as usize);
        file.extend_from_slice(bytes_of(&file_header(segments as u16)));
        file.extend_from_slice(bytes_of_slice(&headers));
        file.extend_from_slice(&note);
        pieces.values().for_each(|bytes| file.extend_from_slice(bytes));
        Ok(file)
    }

    /// Fills `buffer` from the piece that has all of it, if there is one.
    fn recall(&self, address: u64, buffer: &mut [u8]) -> bool {
        let pieces = self.pieces.borrow();
        let Some((&start, bytes)) = pieces.range(..=address).next_back() else { return false };
        let at = (address - start) as usize;
        let Some(bytes) = at.checked_add(buffer.len()).and_then(|end| bytes.get(at..end)) else {
            return false;
        };
        buffer.copy_from_slice(bytes);
        true
    }

    /// Keeps `bytes`, and makes one piece of all that overlap.
    fn keep(&self, address: u64, bytes: &mut [u8]) {
        let mut pieces = self.pieces.borrow_mut();
        let end = address.saturating_add(bytes.len() as u64);
        let (mut start, mut joined) = (address, bytes.to_vec());
        loop {
            // The last piece that starts before the end; what is behind it has been joined already.
            let last = pieces.range((Bound::Unbounded, Bound::Excluded(end))).next_back();
            let Some((&before, held)) = last else { break };
            if before.saturating_add(held.len() as u64) <= address {
                break;
            }
            let held = pieces.remove(&before).unwrap_or_default();
            if before < start {
                let gap = (start - before) as usize;
                joined.splice(..0, held[..gap.min(held.len())].iter().copied());
                start = before;
            }
            let (at, end) = ((before - start) as usize, (before - start) as usize + held.len());
            joined.resize(joined.len().max(end), 0);
            joined[at..end].copy_from_slice(&held);
        }
        let at = (address - start) as usize;
        bytes.copy_from_slice(&joined[at..at + bytes.len()]);
        pieces.insert(start, joined);
    }
}

impl Memory for Recording<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<()> {
        if !self.recall(address, buffer) {
            self.memory.read(address, buffer)?;
            self.keep(address, buffer);
        }
        Ok(())
    }

    fn reads(&self) -> usize {
        self.memory.reads()
    }
}

fn file_header(segments: u16) -> elf::FileHeader64<Endianness> {
    let (half, word, long) = (|n| U16::new(ENDIAN, n), |n| U32::new(ENDIAN, n), |n| U64::new(ENDIAN, n));
    let header_bytes = size_of::<elf::FileHeader64<Endianness>>() as u16;
    elf::FileHeader64 {
        e_ident: elf::Ident {
            magic: elf::ELFMAG,
            class: elf::ELFCLASS64,
            data: if ENDIAN == Endianness::Big { elf::ELFDATA2MSB } else { elf::ELFDATA2LSB },
            version: elf::EV_CURRENT,
            os_abi: elf::ELFOSABI_SYSV,
            abi_version: 0,
            padding: [0; 7],
        },
        e_type: half(elf::ET_CORE),
        e_machine: half(elf::EM_X86_64),
        e_version: word(elf::EV_CURRENT.into()),
        e_entry: long(0),
        e_phoff: long(header_bytes.into()),
        e_shoff: long(0),
        e_flags: word(0),
        e_ehsize: half(header_bytes),
        e_phentsize: half(size_of::<elf::ProgramHeader64<Endianness>>() as u16),
        e_phnum: half(segments),
        e_shentsize: half(0),
        e_shnum: half(0),
        e_shstrndx: half(0),
    }
}

/// The header of a part that lies `at` some place in the file, which moves on behind it.
fn program_header(kind: u32, at: &mut u64, address: u64, length: usize) -> elf::ProgramHeader64<Endianness> {
    let (word, long) = (|n| U32::new(ENDIAN, n), |n| U64::new(ENDIAN, n));
    let offset = *at;
    *at += length as u64;
    elf::ProgramHeader64 {
        p_type: word(kind),
        p_flags: word(elf::PF_R),
        p_offset: long(offset),
        p_vaddr: long(address),
        p_paddr: long(0),
        p_filesz: long(length as u64),
        p_memsz: long(length as u64),
        p_align: long(0),
    }
}

/// The note, name and text padded to words.
fn note(info: &VmCoreInfo) -> Vec<u8> {
    let name = [NOTE, b"\0"].concat();
    let sizes = [name.len() as u32, info.text().len() as u32, 0];
    let mut note: Vec<u8> = sizes.iter().flat_map(|size| size.to_ne_bytes()).collect();
    for part in [&name[..], info.text()] {
        note.extend_from_slice(part);
        note.resize(note.len().next_multiple_of(4), 0);
    }
    note
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{
        super::{Clock, FakeKernel, Kcore, KcoreTables, fake::FakeMemory, read_all},
        *,
    };

    fn opened(bytes: &[u8]) -> Kcore {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        Kcore::open(Path::new(file.path())).unwrap()
    }

    fn read(kernel: &FakeKernel, memory: &dyn Memory, with_order: bool) -> KcoreTables {
        let structures = &mut || Ok(kernel.structures.clone());
        read_all(memory, &kernel.info, with_order, structures, Clock::start()).unwrap()
    }

    #[test]
    fn what_was_recorded_gives_the_same_tables() {
        for kernel in [FakeKernel::self_relative(), FakeKernel::relative(), FakeKernel::percpu()] {
            let recording = Recording::of(&kernel.memory);
            read(&kernel, &recording, true);
            let core = opened(&recording.core_file(&kernel.info).unwrap());
            assert_eq!(core.info(), &kernel.info);
            for with_order in [false, true] {
                let tables = read(&kernel, &core, with_order);
                let mut symbols = Vec::new();
                tables
                    .for_each_symbol(|kind, f| {
                        symbols.push((kind, f.address, f.name.to_vec(), f.module.map(<[u8]>::to_vec)));
                        Ok(())
                    })
                    .unwrap();
                assert_eq!(symbols, kernel.symbols());
                assert_eq!(tables.rest.sites, kernel.sites());
                assert_eq!(tables.rest.blacklist.ranges(), kernel.blacklist());
                assert_eq!(tables.core.order().is_ok(), with_order);
            }
        }
    }

    #[test]
    fn pieces_that_overlap_become_one_and_keep_what_was_seen_first() {
        let mut memory = FakeMemory::default();
        memory.put(0x1000, &(0..64).collect::<Vec<u8>>());
        let mut changed = FakeMemory::default();
        changed.put(0x1000, &[0xff; 64]);
        let mut recording = Recording::of(&memory);
        for (address, length) in [(0x1010, 8), (0x1020, 8), (0x1002, 2)] {
            recording.bytes(address, length).unwrap();
        }
        recording.memory = &changed;
        // What the kernel has become shows only where nothing was seen.
        let seen = recording.bytes(0x100c, 0x20).unwrap();
        let expected = [&[0xff; 4][..], &(0x10..0x18).collect::<Vec<u8>>(), &[0xff; 8]].concat();
        assert_eq!(seen[..20], expected);
        assert_eq!(seen[20..28], (0x20..0x28).collect::<Vec<u8>>());
        assert_eq!(recording.bytes(0x1010, 8).unwrap(), (0x10..0x18).collect::<Vec<u8>>());
        let pieces = recording.pieces.borrow();
        let pieces: Vec<_> = pieces.iter().map(|(&address, bytes)| (address, bytes.len())).collect();
        assert_eq!(pieces, [(0x1002, 2), (0x100c, 0x20)]);
    }
}
