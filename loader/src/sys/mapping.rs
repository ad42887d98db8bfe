//! Memory shared with an eBPF array map.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::{self, NonNull},
    sync::atomic::AtomicU64,
};

/// The values of an array map, seen in place. Unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<AtomicU64>,
    bytes: usize,
}

impl Mapping {
    /// Maps the first `bytes` of what `fd` refers to, shared, for reading and writing.
    ///
    /// # Errors
    ///
    /// `InvalidInput` when `bytes` is 0, else the errno of `mmap(2)`.
    pub fn new(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        if bytes == 0 {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that Rust knows of.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mmap gave address 0"))?;
        Ok(Self { start, bytes })
    }

    /// The values as 64-bit words. Others write to them at any time, hence the atomics.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the range was mapped readable and writable by `new`, is page-aligned, lives as long as
        // `self`, and is only ever looked at as atomics.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes / size_of::<AtomicU64>()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `new` mapped, and no reference to it outlives `self`. The result
        // can't be acted on; failing would only keep the pages.
        let _unmapped = unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

// SAFETY: the mapping belongs to the process, not to a thread, and is only reached through atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}
