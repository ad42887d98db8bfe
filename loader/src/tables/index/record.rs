//! What an index keeps of each symbol but its name: 16 bytes.

use crate::tables::{Facts, MAX_ENTRY_OFFSET, ModuleId};

/// The bytes of a record.
pub const RECORD_BYTES: usize = 16;

/// Set in the last byte where a probe at the symbol is forbidden.
const FORBIDDEN: u8 = 0x80;

/// A symbol without its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Its address.
    pub address: u64,
    /// Its number in the order of `/proc/kallsyms`, which decides between several names of one address.
    pub rank: u32,
    /// Its module.
    pub module: ModuleId,
    /// Its type letter.
    pub kind: u8,
    /// What is known about it.
    pub facts: Facts,
}

/// A record as it is stored: address, rank, module, type, and in the last byte the facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed(pub [u8; RECORD_BYTES]);

impl Packed {
    /// See [`Record::rank`].
    pub fn rank(&self) -> u32 {
        self.unpack().rank
    }

    /// Changes it.
    pub fn set_rank(&mut self, rank: u32) {
        self.0[8..12].copy_from_slice(&rank.to_ne_bytes());
    }

    /// See [`Record::module`].
    pub fn module(&self) -> ModuleId {
        self.unpack().module
    }

    /// The record, whatever the bytes are.
    #[inline]
    pub fn unpack(&self) -> Record {
        let [a0, a1, a2, a3, a4, a5, a6, a7, r0, r1, r2, r3, m0, m1, kind, facts] = self.0;
        let address = u64::from_ne_bytes([a0, a1, a2, a3, a4, a5, a6, a7]);
        let offset =
            u64::from(facts & !FORBIDDEN).checked_sub(1).filter(|&offset| offset <= MAX_ENTRY_OFFSET);
        let site = offset.and_then(|offset| address.checked_add(offset));
        Record {
            address,
            rank: u32::from_ne_bytes([r0, r1, r2, r3]),
            module: ModuleId::from_ne_bytes([m0, m1]),
            kind,
            facts: Facts { site, forbidden: facts & FORBIDDEN != 0 },
        }
    }
}

impl Record {
    /// As it is stored.
    pub fn pack(self) -> Packed {
        let offset = self.facts.site.map_or(0, |site| (site - self.address) as u8 + 1);
        let facts = offset | if self.facts.forbidden { FORBIDDEN } else { 0 };
        let mut bytes = [0; RECORD_BYTES];
        bytes[..8].copy_from_slice(&self.address.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.rank.to_ne_bytes());
        bytes[12..14].copy_from_slice(&self.module.to_ne_bytes());
        bytes[14..].copy_from_slice(&[self.kind, facts]);
        Packed(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_were() {
        for (site, forbidden) in [(None, false), (Some(0x1000), true), (Some(0x1004), false)] {
            let facts = Facts { site, forbidden };
            let record = Record { address: 0x1000, rank: 7, module: 3, kind: b't', facts };
            assert_eq!(record.pack().unpack(), record);
        }
        let odd = Packed([0xff; RECORD_BYTES]).unpack();
        assert_eq!(odd.facts, Facts { site: None, forbidden: true });
    }
}
