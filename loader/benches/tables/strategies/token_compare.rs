//! The same search (6.2 and later), with each name compared token by token as far as it takes to tell: the first step
//! of the patches that speed up `kallsyms_lookup_names`.

use std::cmp::Ordering;

use super::Strategy;
use crate::compressed::Compressed;

pub struct TokenCompare<'t>(pub &'t Compressed);

impl Strategy for TokenCompare<'_> {
    fn find(&self, name: &[u8]) -> Option<u64> {
        let (mut low, mut high) = (0, self.0.count());
        while low < high {
            let middle = low.midpoint(high);
            let number = self.0.number(middle);
            let (codes, _) = self.0.codes(self.0.place_of(number));
            match self.0.compare(codes, name) {
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
