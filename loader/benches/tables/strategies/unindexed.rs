//! Every name expanded and compared, one after the other: `kallsyms_lookup_name` up to 6.1.

use super::Strategy;
use crate::compressed::{Compressed, buffer};

pub struct Unindexed<'t>(pub &'t Compressed);

impl Strategy for Unindexed<'_> {
    fn find(&self, name: &[u8]) -> Option<u64> {
        let (mut at, mut buffer) = (0, buffer());
        for number in 0..self.0.count() {
            let (codes, next) = self.0.codes(at);
            if self.0.expand(codes, &mut buffer) == name {
                return Some(self.0.address(number));
            }
            at = next;
        }
        None
    }

    fn held_bytes(&self) -> usize {
        0
    }
}
