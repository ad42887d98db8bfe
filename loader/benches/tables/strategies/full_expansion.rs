//! Binary search in the order of the names, each expanded whole, its place found by a marker for every 256 symbols:
//! `kallsyms_lookup_names` since 6.2.

use std::cmp::Ordering;

use super::Strategy;
use crate::compressed::{Compressed, buffer};

pub struct FullExpansion<'t>(pub &'t Compressed);

impl Strategy for FullExpansion<'_> {
    fn find(&self, name: &[u8]) -> Option<u64> {
        let (mut low, mut high, mut buffer) = (0, self.0.count(), buffer());
        while low < high {
            let middle = low.midpoint(high);
            let number = self.0.number(middle);
            let (codes, _) = self.0.codes(self.0.place_of(number));
            match self.0.expand(codes, &mut buffer).cmp(name) {
                Ordering::Equal => return Some(self.0.address(number)),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        None
    }

    fn held_bytes(&self) -> usize {
        4 * self.0.markers.len() + 3 * self.0.count()
    }
}
