//! The kernel's memory: read through `/proc/kcore`, an ELF core file of the running kernel.
//!
//! Every read costs the kernel a call, a look-up and a copy by pages, so callers read in few, large pieces.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

use object::{
    Endianness, elf,
    read::elf::{FileHeader, ProgramHeader},
};

use super::vmcoreinfo::{NOTE, VmCoreInfo};
use crate::{
    error::{Error, ErrorKind, Result},
    tables::{files::open_regular, odd},
};

/// The headers and notes of real kernels take 14 to 20 KiB: the notes hold a whole `task_struct`.
const FIRST_READ_BYTES: usize = 32 << 10;

/// More than any kernel's headers and notes.
const MAX_HEADER_BYTES: u64 = 4 << 20;

/// More stretches of memory than any machine has; each read looks through them.
pub const MAX_SEGMENTS: usize = 4096;

/// More than any table that is read from memory in one piece.
const MAX_READ_BYTES: usize = 256 << 20;

/// The kernel's memory.
pub trait Memory {
    /// Fills `buffer` with what is at `address`.
    ///
    /// # Errors
    ///
    /// Where there is no memory, or less.
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<()>;

    /// How many reads there were so far.
    fn reads(&self) -> usize;

    /// `length` bytes at `address`.
    ///
    /// # Errors
    ///
    /// Where there is no memory, or less, or the length can't be right.
    fn bytes(&self, address: u64, length: usize) -> Result<Vec<u8>> {
        if length > MAX_READ_BYTES {
            return Err(odd(format!("a table of {length} bytes")));
        }
        let mut buffer = vec![0; length];
        self.read(address, &mut buffer)?;
        Ok(buffer)
    }

    /// The pointer or `unsigned long` at `address`.
    ///
    /// # Errors
    ///
    /// Where there is no memory.
    fn word(&self, address: u64) -> Result<u64> {
        let mut buffer = [0; 8];
        self.read(address, &mut buffer)?;
        Ok(u64::from_ne_bytes(buffer))
    }
}

/// An opened `/proc/kcore`, its headers parsed.
#[derive(Debug)]
pub struct Kcore {
    path: PathBuf,
    file: File,
    segments: Vec<Segment>,
    info: VmCoreInfo,
    reads: AtomicUsize,
}

/// A stretch of memory and where it is in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    address: u64,
    bytes: u64,
    offset: u64,
}

impl Kcore {
    /// Opens it and reads its headers and notes.
    ///
    /// # Errors
    ///
    /// `Unsupported` and `Permission` where it can't be opened (it wants CAP_SYS_RAWIO and no lockdown), `Io`
    /// where it can't be read, `Malformed` where it is no ELF core file of a kernel that tells its symbols
    /// (`CONFIG_VMCORE_INFO`).
    pub fn open(path: &Path) -> Result<Self> {
        let file = open_regular(path).map_err(|e| cant_open(path, e))?;
        let reads = AtomicUsize::new(0);
        let headers = read_headers(path, &file, &reads)?;
        let (segments, info) =
            parse_headers(&headers).ok_or_else(|| odd(format!("{} is no ELF core file", path.display())))?;
        if segments.len() > MAX_SEGMENTS {
            return Err(odd(format!("{} has {} segments", path.display(), segments.len())));
        }
        let info = info.ok_or_else(|| odd(format!("{} has no VMCOREINFO", path.display())))?;
        Ok(Self { path: path.into(), file, segments, info, reads })
    }

    /// What the kernel says about itself.
    pub fn info(&self) -> &VmCoreInfo {
        &self.info
    }
}

impl Memory for Kcore {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<()> {
        let length = buffer.len() as u64;
        let holds = |s: &&Segment| {
            address.checked_sub(s.address).is_some_and(|at| at <= s.bytes && length <= s.bytes - at)
        };
        let place = self.segments.iter().find(holds).and_then(|s| s.offset.checked_add(address - s.address));
        let offset = place.ok_or_else(|| odd(format!("no memory of {length} bytes at {address:#x}")))?;
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.file.read_exact_at(buffer, offset).map_err(|e| cant_read(&self.path, e))
    }

    /// Those of the headers included.
    fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }
}

/// A file of the kernel's that isn't there or may not be opened.
pub fn cant_open(path: &Path, e: std::io::Error) -> Error {
    let kind = match e.kind() {
        std::io::ErrorKind::NotFound => ErrorKind::Unsupported,
        std::io::ErrorKind::PermissionDenied => ErrorKind::Permission,
        _ => ErrorKind::Io,
    };
    let error = Error::new(kind, format!("can't open {}", path.display())).with_source(e);
    match kind {
        ErrorKind::Permission => error.with_hint("root, and a kernel without lockdown; or --source text"),
        _ => error.with_hint("--source text reads the kernel's text files instead"),
    }
}

fn cant_read(path: &Path, e: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("can't read {}", path.display())).with_source(e)
}

/// The part of the file before its memory: one read, or three where it is larger than usual.
fn read_headers(path: &Path, file: &File, reads: &AtomicUsize) -> Result<Vec<u8>> {
    let mut headers = Vec::new();
    let mut wanted = FIRST_READ_BYTES;
    loop {
        headers.resize(wanted, 0);
        reads.fetch_add(1, Ordering::Relaxed);
        let read = file.read_at(&mut headers, 0).map_err(|e| cant_read(path, e))?;
        headers.truncate(read);
        let end =
            end_of_headers(&headers).ok_or_else(|| odd(format!("{} is no ELF file", path.display())))?;
        if end <= read as u64 {
            return Ok(headers);
        }
        if end > MAX_HEADER_BYTES || end <= wanted as u64 {
            return Err(odd(format!("{} is cut short", path.display())));
        }
        wanted = end as usize;
    }
}

/// Where the program headers end, or as far as those can be read where the notes end.
fn end_of_headers(bytes: &[u8]) -> Option<u64> {
    let header = elf::FileHeader64::<Endianness>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let size = u64::from(header.e_phnum(endian)) * size_of::<elf::ProgramHeader64<Endianness>>() as u64;
    let table_end = header.e_phoff(endian).checked_add(size)?;
    let notes_end = header.program_headers(endian, bytes).ok().into_iter().flatten();
    let notes_end = notes_end
        .filter(|p| p.p_type(endian) == elf::PT_NOTE)
        .filter_map(|p| p.p_offset(endian).checked_add(p.p_filesz(endian)));
    Some(notes_end.max().unwrap_or(0).max(table_end))
}

/// The segments, and the note with the kernel's symbols; nothing where the bytes are no ELF core file.
fn parse_headers(bytes: &[u8]) -> Option<(Vec<Segment>, Option<VmCoreInfo>)> {
    let header = elf::FileHeader64::<Endianness>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let mut segments = Vec::new();
    let mut info = None;
    for program_header in header.program_headers(endian, bytes).ok()? {
        match program_header.p_type(endian) {
            elf::PT_LOAD => segments.push(Segment {
                address: program_header.p_vaddr(endian),
                bytes: program_header.p_filesz(endian),
                offset: program_header.p_offset(endian),
            }),
            elf::PT_NOTE => {
                let mut notes = program_header.notes(endian, bytes).ok()??;
                while let Ok(Some(note)) = notes.next() {
                    if note.name() == NOTE {
                        info = Some(VmCoreInfo::parse(note.desc()));
                    }
                }
            }
            _ => {}
        }
    }
    Some((segments, info))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A core file with a note and a segment of 8 bytes at 0x1000, as the kernel lays it out.
    fn core_file() -> Vec<u8> {
        let note = |name: &[u8], text: &[u8]| {
            let padded =
                |bytes: &[u8]| [bytes, &vec![0; bytes.len().next_multiple_of(4) - bytes.len()]].concat();
            let sizes = [name.len() as u32, text.len() as u32, 0].map(u32::to_ne_bytes).concat();
            [sizes, padded(name), padded(text)].concat()
        };
        let notes = [note(b"CORE\0", b"x"), note(b"VMCOREINFO\0", b"SYMBOL(_stext)=1000\n")].concat();
        let program_header = |kind: u32, offset: u64, address: u64, size: u64| {
            let words = [offset, address, 0, size, size, 0].map(u64::to_ne_bytes).concat();
            [kind.to_ne_bytes().to_vec(), 7_u32.to_ne_bytes().to_vec(), words].concat()
        };
        let (headers, notes_at) = (64, 64 + 2 * 56);
        let data_at = notes_at + notes.len() as u64;
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(16, 0);
        file.extend([4_u16, 62].map(u16::to_ne_bytes).concat());
        file.extend(1_u32.to_ne_bytes());
        file.extend([0, headers as u64, 0].map(u64::to_ne_bytes).concat());
        file.extend(0_u32.to_ne_bytes());
        file.extend([64_u16, 56, 2, 0, 0, 0].map(u16::to_ne_bytes).concat());
        file.extend(program_header(elf::PT_NOTE, notes_at, 0, notes.len() as u64));
        file.extend(program_header(elf::PT_LOAD, data_at, 0x1000, 8));
        [file, notes, 0x1234_5678_u64.to_ne_bytes().to_vec()].concat()
    }

    fn open(bytes: &[u8]) -> Result<Kcore> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        Kcore::open(file.path())
    }

    #[test]
    fn memory_and_notes_are_found() {
        let kcore = open(&core_file()).unwrap();
        assert_eq!(kcore.info().symbol("_stext"), Some(0x1000));
        assert_eq!(kcore.word(0x1000).unwrap(), 0x1234_5678);
        assert_eq!(kcore.bytes(0x1004, 4).unwrap(), [0; 4]);
        assert_eq!(kcore.reads(), 3);
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        let kcore = open(&core_file()).unwrap();
        for (address, length) in [(0xfff, 1), (0x1001, 8), (0x1008, 1), (u64::MAX, 8), (0x1000, usize::MAX)] {
            assert!(kcore.bytes(address, length).is_err(), "{length} at {address:#x}");
        }
    }

    #[test]
    fn a_damaged_file_is_an_error_and_never_a_panic() {
        let good = core_file();
        for length in 0..good.len() - 8 {
            assert!(open(&good[..length]).is_err(), "{length} bytes");
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            for flip in [0x01, 0x80, 0xff] {
                bad[at] ^= flip;
                if let Ok(kcore) = open(&bad) {
                    let _whatever = kcore.word(0x1000);
                }
            }
        }
        let error = Kcore::open(Path::new("/nowhere/kcore")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}
