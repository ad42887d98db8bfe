//! The bytes of a file, in memory.

use std::{fs::File, io, io::Read, ops::Deref, ops::Range};

use memmap2::{Mmap, MmapMut, UncheckedAdvice};

/// Memory is given back in pieces of this, which every kernel's pages are parts of.
const PIECE_BYTES: usize = 64 << 10;

/// The bytes of a file.
#[derive(Debug)]
pub enum Bytes {
    /// Where they are: in the kernel's own memory.
    Mapped(Mmap),
    /// Those that were there once.
    Copied(Mmap),
}

impl Bytes {
    /// Maps a file that is root's.
    ///
    /// # Errors
    ///
    /// What mapping fails with.
    pub fn map(file: &File) -> io::Result<Self> {
        // SAFETY: the file is root's and nobody else may write to it, and we never change one in place: the cache's
        // folder replaces it. Whoever can cut it short all the same, root, can end this process anyway.
        unsafe { Mmap::map(file) }.map(Self::Mapped)
    }

    /// Copies `len` bytes of somebody's file: they may do less than this process, if that has file capabilities, and must
    /// not change what it has checked already.
    ///
    /// # Errors
    ///
    /// What reading fails with, and `UnexpectedEof` where there are fewer.
    pub fn copy(mut file: &File, len: u64) -> io::Result<Self> {
        let mut copy = MmapMut::map_anon(len as usize)?;
        file.read_exact(&mut copy)?;
        copy.make_read_only().map(Self::Copied)
    }

    /// These bytes will not be needed soon. They are still there when they are.
    pub fn forget(&self, range: Range<usize>) {
        let start = range.start.next_multiple_of(PIECE_BYTES);
        let length = (range.end.min(self.len()) / PIECE_BYTES * PIECE_BYTES).saturating_sub(start);
        if let Self::Mapped(mapped) = self
            && length > 0
        {
            // SAFETY: what is mapped is a file, read-only: pages that are given back are the file's again when they are
            // next looked at, with the same content.
            let advised = unsafe { mapped.unchecked_advise_range(UncheckedAdvice::DontNeed, start, length) };
            // It is but advice.
            drop(advised);
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let (Self::Mapped(bytes) | Self::Copied(bytes)) = self;
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use super::*;

    #[test]
    fn a_copy_stays_as_it_was_read() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"tables").unwrap();
        file.rewind().unwrap();
        let copied = Bytes::copy(&file, 6).unwrap();
        file.rewind().unwrap();
        file.write_all(b"others").unwrap();
        assert_eq!(&*copied, b"tables");
        // It was cut short between the look at its size and the reading.
        file.set_len(0).unwrap();
        assert_eq!(Bytes::copy(&file, 6).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(Bytes::copy(&file, 0).unwrap().is_empty());
    }

    #[test]
    fn what_is_forgotten_is_still_there() {
        let content: Vec<u8> = (0..300_000_u32).map(|n| n as u8 ^ (n >> 8) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&content).unwrap();
        file.rewind().unwrap();
        let end = content.len();
        for bytes in [Bytes::map(&file).unwrap(), Bytes::copy(&file, end as u64).unwrap()] {
            for range in [0..end, 1..end - 1, 5..6, 0..0, 70_000..200_000, 0..usize::MAX, end..end + 1] {
                bytes.forget(range);
                assert!(*bytes == *content);
            }
        }
    }

    #[test]
    fn memory_that_is_forgotten_is_given_back() {
        let resident = || {
            let status = std::fs::read_to_string("/proc/self/statm").unwrap();
            status.split(' ').nth(2).unwrap().parse::<usize>().unwrap() * 4096
        };
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![1; 64 << 20]).unwrap();
        let bytes = Bytes::map(&file).unwrap();
        let sum: usize = bytes.iter().map(|&byte| byte as usize).sum();
        let before = resident();
        bytes.forget(0..sum);
        assert!(resident() + (32 << 20) < before, "{before} then {}", resident());
    }
}
