//! A hash table from names to where they lie: one look tells of nearly every name that there isn't, and where the
//! others are.
//!
//! A slot is a `u32`: 0 where it is free, else a place plus 1 in as many bits as places need, and above them some bits
//! of the name's hash. A place is a number that tells where in memory the name is, with nothing to look up between.

use twox_hash::XxHash3_64;

/// Slots for each name. Fewer would make the ways to a free one longer.
const SPARE: (usize, usize) = (3, 2);

/// How a table of some size is used.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    slots: usize,
    place_bits: u32,
}

impl Layout {
    /// For places below `places`, in `slots` slots.
    pub fn new(places: usize, slots: usize) -> Self {
        Self { slots, place_bits: usize::BITS - places.leading_zeros() }
    }

    /// Where to look for `name`, slot by slot from the first on, and what those of it have in their upper bits.
    #[inline(always)]
    pub fn way(self, name: &[u8]) -> Way {
        let hash = XxHash3_64::oneshot(name);
        let first = ((u128::from(hash) * self.slots as u128) >> 64) as usize;
        Way { layout: self, slot: first, steps: 0, mark: (hash as u32) >> self.place_bits }
    }
}

/// The slots at which a name can be.
#[derive(Debug)]
pub struct Way {
    layout: Layout,
    slot: usize,
    steps: usize,
    mark: u32,
}

impl Way {
    /// The next slot; none after all of them, which only damage brings about.
    #[inline]
    pub fn step(&mut self) -> Option<usize> {
        let slot = self.slot;
        self.slot = if slot + 1 < self.layout.slots { slot + 1 } else { 0 };
        self.steps += 1;
        (self.steps <= self.layout.slots).then_some(slot)
    }

    /// The place in a slot, if that may be the name's.
    #[inline]
    pub fn place(&self, slot: u32) -> Option<usize> {
        let mask = (1_u64 << self.layout.place_bits) - 1;
        let same = u64::from(slot) >> self.layout.place_bits == u64::from(self.mark);
        same.then_some((u64::from(slot) & mask) as usize).and_then(|place| place.checked_sub(1))
    }

    fn slot_of(&self, place: usize) -> u32 {
        (u64::from(self.mark) << self.layout.place_bits) as u32 | (place as u32 + 1)
    }
}

/// Puts names into slots.
#[derive(Debug)]
pub struct Slots {
    layout: Layout,
    slots: Vec<u32>,
}

impl Slots {
    /// Room for `names` names at places below `places`.
    pub fn new(places: usize, names: usize) -> Self {
        let count = names * SPARE.0 / SPARE.1 + 1;
        Self { layout: Layout::new(places, count), slots: vec![0; count] }
    }

    /// The places that may be the name's.
    pub fn places(&self, name: &[u8]) -> impl Iterator<Item = usize> {
        let mut way = self.layout.way(name);
        std::iter::from_fn(move || way.step().map(|slot| (self.slots[slot], way.place(self.slots[slot]))))
            .take_while(|(slot, _)| *slot != 0)
            .filter_map(|(_, place)| place)
    }

    /// The name is at this place.
    pub fn insert(&mut self, name: &[u8], place: usize) {
        let mut way = self.layout.way(name);
        while let Some(slot) = way.step() {
            if self.slots[slot] == 0 {
                self.slots[slot] = way.slot_of(place);
                return;
            }
        }
    }

    /// All slots.
    pub fn finish(self) -> Vec<u32> {
        self.slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_and_others_nearly_never() {
        for count in [1, 2, 3, 1000, 70_000] {
            let name = |i: usize| format!("name_{i}").into_bytes();
            let mut slots = Slots::new(count, count);
            (0..count).for_each(|i| slots.insert(&name(i), i));
            assert!((0..count).all(|i| slots.places(&name(i)).any(|found| found == i)));
            let wrong: usize = (count..2 * count).map(|i| slots.places(&name(i)).count()).sum();
            assert!(wrong <= count / 100 + 1, "{wrong} of {count}");
        }
    }

    #[test]
    fn a_table_without_a_free_slot_has_an_end() {
        let full = |layout, slots| Slots { layout, slots };
        assert!(full(Layout::new(5, 3), vec![u32::MAX; 3]).places(b"x").count() <= 3);
        assert_eq!(full(Layout::new(0, 0), vec![]).places(b"x").count(), 0);
    }
}
