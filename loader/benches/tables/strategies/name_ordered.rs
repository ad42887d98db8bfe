//! The compressed names themselves in their order, as the patches for a name-ordered kallsyms have them: markers for every
//! 64th (or every eighth) name are searched, then the names behind one are gone through. A bit tells that a name is that
//! of the symbol before, so that it needn't be compared again.

use std::cmp::Ordering;

use super::Strategy;
use crate::compressed::{Compressed, codes};

pub struct NameOrdered<'t, const STEP: usize> {
    table: &'t Compressed,
    names: Vec<u8>,
    markers: Vec<u32>,
    /// A bit for each place: its name is the one before.
    duplicates: Vec<u64>,
}

impl<'t, const STEP: usize> NameOrdered<'t, STEP> {
    /// What the kernel's build would make.
    pub fn new(table: &'t Compressed) -> Self {
        let count = table.count();
        let mut new =
            Self { table, names: Vec::new(), markers: Vec::new(), duplicates: vec![0; count.div_ceil(64)] };
        let mut last = Vec::new();
        for place in 0..count {
            if place.is_multiple_of(STEP) {
                new.markers.push(new.names.len() as u32);
            }
            let at = table.place_of(table.number(place));
            let (codes, _) = table.codes(at);
            let mut buffer = crate::compressed::buffer();
            let name = table.expand(codes, &mut buffer);
            if place > 0 && name == last {
                new.duplicates[place / 64] |= 1 << (place % 64);
            }
            last = name.to_vec();
            if codes.len() < 0x80 {
                new.names.push(codes.len() as u8);
            } else {
                new.names.extend([codes.len() as u8 & 0x7f | 0x80, (codes.len() >> 7) as u8]);
            }
            new.names.extend_from_slice(codes);
        }
        new
    }

    fn is_duplicate(&self, place: usize) -> bool {
        self.duplicates[place / 64] >> (place % 64) & 1 != 0
    }
}

impl<const STEP: usize> Strategy for NameOrdered<'_, STEP> {
    fn find(&self, name: &[u8]) -> Option<u64> {
        let before =
            |&at: &u32| self.table.compare(codes(&self.names, at as usize).0, name) != Ordering::Greater;
        let block = self.markers.partition_point(before).checked_sub(1)?;
        let mut at = self.markers[block] as usize;
        for place in block * STEP..((block + 1) * STEP).min(self.table.count()) {
            let (codes, next) = codes(&self.names, at);
            if place.is_multiple_of(STEP) || !self.is_duplicate(place) {
                match self.table.compare(codes, name) {
                    Ordering::Equal => return Some(self.table.address(self.table.number(place))),
                    Ordering::Greater => return None,
                    Ordering::Less => {}
                }
            }
            at = next;
        }
        None
    }

    /// The names are the kernel's own, in another order.
    fn held_bytes(&self) -> usize {
        4 * self.markers.len() + 8 * self.duplicates.len() + 3 * self.table.count()
    }
}
