//! The dynamic index for batches of look-ups, as patches propose for the loader of modules: where the name of each
//! symbol is, found in one pass at the start of a batch, so that binary search needs no markers.

use std::cmp::Ordering;

use super::Strategy;
use crate::compressed::Compressed;

pub struct BatchIndex<'t> {
    table: &'t Compressed,
    places: Vec<u32>,
}

impl<'t> BatchIndex<'t> {
    /// The pass over all lengths.
    pub fn new(table: &'t Compressed) -> Self {
        let mut at = 0;
        let place = |_| {
            let place = at;
            at = table.codes(at).1;
            place as u32
        };
        Self { table, places: (0..table.count()).map(place).collect() }
    }
}

impl Strategy for BatchIndex<'_> {
    fn find(&self, name: &[u8]) -> Option<u64> {
        let (mut low, mut high) = (0, self.table.count());
        while low < high {
            let middle = low.midpoint(high);
            let number = self.table.number(middle);
            let (codes, _) = self.table.codes(self.places[number] as usize);
            match self.table.compare(codes, name) {
                Ordering::Equal => return Some(self.table.address(number)),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        None
    }

    fn held_bytes(&self) -> usize {
        4 * self.places.len() + 3 * self.table.count()
    }
}
