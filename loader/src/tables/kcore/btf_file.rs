//! `/sys/kernel/btf/vmlinux`, no more of it than is looked at.

use std::{fs::File, os::unix::fs::FileExt, path::Path};

use memmap2::Mmap;

use super::{btf::Bytes, memory::cant_open};
use crate::{
    error::{Error, ErrorKind, Result},
    tables::files::open_regular,
};

/// What is read at once. sysfs gives a page at each call, whatever is asked for.
const BLOCK_BYTES: usize = 32 << 10;

/// More than any kernel's BTF.
const MAX_BYTES: u64 = 256 << 20;

/// The file, mapped where the kernel allows it (6.16 and later), else read block by block.
#[derive(Debug)]
pub enum BtfFile {
    /// The kernel's own memory.
    Mapped(Mmap),
    /// A copy of the blocks that were needed so far.
    Read(Blocks),
}

/// A file that is read in blocks.
#[derive(Debug)]
pub struct Blocks {
    file: File,
    bytes: Vec<u8>,
    read: Vec<bool>,
}

impl BtfFile {
    /// Opens it.
    ///
    /// # Errors
    ///
    /// `Unsupported` where it isn't there (`CONFIG_DEBUG_INFO_BTF`, 5.4 and later), `Permission` where it may not
    /// be opened, `Io` where it can't be read.
    pub fn open(path: &Path) -> Result<Self> {
        let fault = |e| Error::new(ErrorKind::Io, format!("can't read {}", path.display())).with_source(e);
        let file = open_regular(path).map_err(|e| cant_open(path, e))?;
        let length = file.metadata().map_err(fault)?.len().min(MAX_BYTES) as usize;
        // A saved copy on disk that is cut short meanwhile would end us with SIGBUS, so those are read.
        if path.starts_with("/sys") {
            // SAFETY: the mapping is private and read-only, and what it shows is the kernel's own read-only
            // data.
            let mapped = unsafe { Mmap::map(&file) };
            if let Ok(mapped) = mapped {
                return Ok(Self::Mapped(mapped));
            }
        }
        Ok(Self::Read(Blocks {
            file,
            bytes: vec![0; length],
            read: vec![false; length.div_ceil(BLOCK_BYTES)],
        }))
    }
}

impl Bytes for BtfFile {
    fn get(&mut self, at: usize, length: usize) -> Option<&[u8]> {
        let end = at.checked_add(length)?;
        match self {
            Self::Mapped(bytes) => bytes.get(at..end),
            Self::Read(blocks) => blocks.get(at, end),
        }
    }
}

impl Blocks {
    fn get(&mut self, at: usize, end: usize) -> Option<&[u8]> {
        let wanted = self.bytes.get(at..end)?.len();
        for block in at / BLOCK_BYTES..(at + wanted.max(1)).div_ceil(BLOCK_BYTES) {
            if !*self.read.get(block)? {
                let start = block * BLOCK_BYTES;
                let end = (start + BLOCK_BYTES).min(self.bytes.len());
                self.file.read_exact_at(&mut self.bytes[start..end], start as u64).ok()?;
                self.read[block] = true;
            }
        }
        self.bytes.get(at..end)
    }
}
