//! Bytes that are either our own or part of a mapped file.

use std::{
    ops::{Deref, Range},
    sync::Arc,
};

use memmap2::Mmap;

/// Bytes that can be read wherever they are.
#[derive(Debug)]
pub enum Bytes {
    /// Read from somewhere.
    Owned(Vec<u8>),
    /// Within a file that stays mapped as long as any part of it is in use.
    Mapped(Arc<Mmap>, Range<usize>),
}

impl Bytes {
    /// A part of a mapped file; nothing where the file is shorter.
    pub fn mapped(file: &Arc<Mmap>, range: Range<usize>) -> Option<Self> {
        file.get(range.clone())?;
        Some(Self::Mapped(Arc::clone(file), range))
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Owned(bytes)
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Mapped(file, range) => file.get(range.clone()).unwrap_or_default(),
        }
    }
}
