//! A mapped file whose pages are checked when they are first looked at: who asks for a few names pays for a few
//! pages.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use twox_hash::XxHash3_64;

use super::Bytes;
use crate::{error::Result, tables::odd};

/// So many bytes have one checksum: what the kernel maps at a time.
pub const PAGE_BYTES: usize = 4096;

/// A file, the first part of which has been checked already.
#[derive(Debug)]
pub struct Pages {
    file: Bytes,
    /// Where the pages begin.
    content: usize,
    /// Where the checksums of the pages are, in the part that has been checked.
    checksums: Range<usize>,
    /// A bit for each page that was found to be in order.
    checked: Box<[AtomicU64]>,
}

impl Pages {
    /// The pages of `file` from `content` to its end, with their checksums at `checksums`.
    ///
    /// # Errors
    ///
    /// `Malformed` where that is not in the file, or there are more or fewer checksums than pages.
    pub fn new(file: Bytes, content: usize, checksums: Range<usize>) -> Result<Self> {
        let pages = file.len().checked_sub(content).map(|bytes| bytes.div_ceil(PAGE_BYTES));
        let sums = file.get(checksums.clone()).map(|sums| sums.len() / 8);
        if pages.is_none() || sums != pages || checksums.end > content {
            return Err(odd("it does not have the pages that it should"));
        }
        let words = pages.unwrap_or(0).div_ceil(64);
        let checked = (0..words).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { file, content, checksums, checked })
    }

    /// The bytes at `range`, counted from where the pages begin.
    ///
    /// # Errors
    ///
    /// `Malformed` where the file ends before, or one of the pages is damaged.
    #[inline(always)]
    pub fn get(&self, range: Range<usize>) -> Result<&[u8]> {
        let Some(bytes) = self.file.get(self.content..).and_then(|content| content.get(range.clone())) else {
            return Err(odd("a place beyond its end"));
        };
        for page in range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES) {
            if self.checked[page / 64].load(Ordering::Relaxed) >> (page % 64) & 1 == 0 {
                self.check(page)?;
            }
        }
        Ok(bytes)
    }

    /// The bytes at `range` will not be needed soon: their memory is given back.
    pub fn forget(&self, range: Range<usize>) {
        self.file.forget(self.content.saturating_add(range.start)..self.content.saturating_add(range.end));
    }

    /// Looks at every page.
    ///
    /// # Errors
    ///
    /// `Malformed` where one is damaged.
    pub fn check_all(&self) -> Result<()> {
        self.get(0..self.file.len() - self.content).map(drop)
    }

    #[cold]
    fn check(&self, page: usize) -> Result<()> {
        let content = &self.file[self.content..];
        let bytes = &content[page * PAGE_BYTES..content.len().min((page + 1) * PAGE_BYTES)];
        let sum = &self.file[self.checksums.clone()][8 * page..8 * page + 8];
        if checksum(bytes).to_ne_bytes() != *sum {
            return Err(odd(format!("page {page} of it is damaged")));
        }
        self.checked[page / 64].fetch_or(1 << (page % 64), Ordering::Relaxed);
        Ok(())
    }
}

/// What a page or a head must come to. It tells damage, not malice: the file is nobody else's to write.
pub fn checksum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

#[cfg(test)]
mod tests {
    use memmap2::MmapMut;

    use super::*;

    /// Two checksums, then one page and a part of another.
    fn file() -> Vec<u8> {
        let content = vec![7; PAGE_BYTES + 100];
        let sums: Vec<u8> =
            content.chunks(PAGE_BYTES).flat_map(|page| checksum(page).to_ne_bytes()).collect();
        [sums, content].concat()
    }

    fn pages(bytes: &[u8]) -> Result<Pages> {
        let mut memory = MmapMut::map_anon(bytes.len()).unwrap();
        memory.copy_from_slice(bytes);
        Pages::new(Bytes::Copied(memory.make_read_only().unwrap()), 16, 0..16)
    }

    #[test]
    fn damage_is_found_where_it_is_looked_at() {
        let mut bytes = file();
        let whole = pages(&bytes).unwrap();
        assert_eq!(whole.get(PAGE_BYTES - 1..PAGE_BYTES + 1).unwrap(), [7; 2]);
        assert_eq!(whole.get(PAGE_BYTES + 100..PAGE_BYTES + 100).unwrap(), [0; 0]);
        assert!(whole.get(0..PAGE_BYTES + 101).is_err());
        bytes[16 + PAGE_BYTES + 50] ^= 1;
        let damaged = pages(&bytes).unwrap();
        assert!(damaged.get(0..PAGE_BYTES).is_ok() && damaged.get(0..10).is_ok());
        for _ in 0..2 {
            assert!(damaged.get(PAGE_BYTES - 1..PAGE_BYTES + 1).unwrap_err().to_string().contains("page 1"));
        }
    }

    #[test]
    fn a_file_has_one_checksum_a_page() {
        let bytes = file();
        assert!(pages(&bytes[..bytes.len() - 101]).is_err());
        assert!(pages(&[&bytes[..], &[0; PAGE_BYTES]].concat()).is_err());
        assert!(pages(&bytes[..15]).is_err());
    }
}
