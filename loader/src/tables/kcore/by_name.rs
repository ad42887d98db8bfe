//! The kernel's own order of its names (`kallsyms_seqs_of_names` in `kernel/kallsyms.c`, since 6.2): for each place in
//! the order of the names the number of a symbol, in three bytes, the highest first. With it a name is looked up,
//! where there are too many to look for them all in passing.

use std::{cmp::Ordering, ops::Range};

use super::kallsyms::{CompressedSymbols, name_at};
use crate::{
    error::Result,
    tables::{
        odd,
        tokens::{Expander, Seen, Wanted},
    },
};

/// Bytes of a number in the order.
pub const NUMBER_BYTES: usize = 3;

/// Symbols from one whose place is noted to the next: the names between them are stepped over.
const STEP: usize = 16;

/// Pairs of neighbours that are compared before the order is trusted.
const SAMPLES: usize = 256;

/// The names of some symbols in their order.
#[derive(Debug)]
pub struct ByName<'k> {
    symbols: &'k CompressedSymbols,
    order: &'k [[u8; NUMBER_BYTES]],
    /// Where among the names every sixteenth symbol's is.
    places: Vec<u32>,
}

impl<'k> ByName<'k> {
    /// Notes where the names are: one pass over their lengths.
    ///
    /// # Errors
    ///
    /// `Malformed` where a name has no end, or the order is none.
    pub fn new(symbols: &'k CompressedSymbols, order: &'k [u8]) -> Result<Self> {
        let (order, rest) = order.as_chunks::<NUMBER_BYTES>();
        if order.len() != symbols.count() || !rest.is_empty() {
            return Err(odd("an order of more or fewer names than there are"));
        }
        let names = symbols.names();
        let mut places = Vec::with_capacity(symbols.count().div_ceil(STEP));
        let mut at = 0;
        for number in 0..symbols.count() {
            if number.is_multiple_of(STEP) {
                places.push(at as u32);
            }
            at =
                name_at(names, at).ok_or_else(|| odd(format!("the name of symbol {number} has no end")))?.end;
        }
        let by_name = Self { symbols, order, places };
        by_name.check()?;
        Ok(by_name)
    }

    /// Other memory in this place has no such order, not even in parts.
    fn check(&self) -> Result<()> {
        let mut expander = Expander::new();
        for place in (1..self.order.len()).step_by((self.order.len() / SAMPLES).max(1)) {
            let (before, number) = (self.number(place - 1)?, self.number(place)?);
            let (_, name) = self.symbols.expand(&mut expander, before, self.codes(before)?)?;
            let wanted = Wanted::new(name);
            if before == number || self.see(place, &wanted)?.order(&wanted) == Ordering::Less {
                return Err(odd("the kernel's order of names is not where it is known to be"));
            }
        }
        Ok(())
    }

    /// The places of `name` and of its variants, and perhaps of some more.
    ///
    /// # Errors
    ///
    /// `Malformed` where the order names a symbol that isn't there, as everywhere here.
    pub fn family(&self, name: &[u8]) -> Result<Range<usize>> {
        let wanted = Wanted::new(name);
        let start = self.first_from(&wanted, |seen| seen.order(&wanted) == Ordering::Less)?;
        let mut end = start;
        while end < self.order.len() && self.see(end, &wanted)?.may_be_variant_of(&wanted) {
            end += 1;
        }
        Ok(start..end)
    }

    /// The places of the names that begin with `head`.
    ///
    /// # Errors
    ///
    /// As [`Self::family`].
    pub fn beginning_with(&self, head: &[u8]) -> Result<Range<usize>> {
        let head = Wanted::new(head);
        let is_before = |seen: Seen| seen.order(&head) == Ordering::Less;
        let start = self.first_from(&head, is_before)?;
        let end = self.first_from(&head, |seen| seen.begins_with(&head) || is_before(seen))?;
        Ok(start..end.max(start))
    }

    /// The number of the symbol at `place`.
    ///
    /// # Errors
    ///
    /// As [`Self::family`].
    pub fn number(&self, place: usize) -> Result<usize> {
        let [high, middle, low] = self.order[place];
        let number = u32::from_be_bytes([0, high, middle, low]) as usize;
        if number < self.symbols.count() { Ok(number) } else { Err(odd(format!("no symbol {number}"))) }
    }

    /// The codes of symbol `number`.
    ///
    /// # Errors
    ///
    /// As [`Self::family`].
    pub fn codes(&self, number: usize) -> Result<&'k [u8]> {
        let names = self.symbols.names();
        let mut at = self.places[number / STEP] as usize;
        for _ in 0..number % STEP {
            at = name_at(names, at).map_or(names.len(), |codes| codes.end);
        }
        let codes = name_at(names, at).and_then(|codes| names.get(codes));
        codes.ok_or_else(|| odd(format!("the name of symbol {number} has no end")))
    }

    /// The first place whose name is not before what is looked for.
    fn first_from(&self, wanted: &Wanted<'_>, is_before: impl Fn(Seen) -> bool) -> Result<usize> {
        let (mut low, mut high) = (0, self.order.len());
        while low < high {
            let middle = low.midpoint(high);
            if is_before(self.see(middle, wanted)?) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// How the name at `place` compares with `wanted`.
    fn see(&self, place: usize, wanted: &Wanted<'_>) -> Result<Seen> {
        let codes = self.codes(self.number(place)?)?;
        let tokens = self.symbols.tokens();
        let Some((&first, rest)) = codes.split_first() else { return Ok(Seen::NOTHING) };
        // The type letter is no part of the name.
        let seen = Seen::NOTHING.and_text(tokens.text(first).get(1..).unwrap_or_default(), wanted);
        Ok(if seen.next.is_some() { seen } else { tokens.see(seen, rest, wanted) })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::FakeKernel, *};

    fn names(order: &ByName<'_>, symbols: &CompressedSymbols, places: Range<usize>) -> Vec<String> {
        let mut expander = Expander::new();
        let mut name = |place| {
            let number = order.number(place).unwrap();
            let (_, name) = symbols.expand(&mut expander, number, order.codes(number).unwrap()).unwrap();
            String::from_utf8_lossy(name).into_owned()
        };
        places.map(&mut name).collect()
    }

    #[test]
    fn names_and_heads_are_found() {
        for kernel in [FakeKernel::percpu(), FakeKernel::self_relative()] {
            let symbols = kernel.core_with_order().unwrap();
            let order = symbols.order().unwrap();
            let all = ["_stext", "ftrace_pages_start", "kprobe_blacklist", "kvm_core", "modules", "vfs_read"];
            assert_eq!(names(&order, &symbols, 0..6), all);
            for name in all {
                assert_eq!(names(&order, &symbols, order.family(name.as_bytes()).unwrap()), [name]);
                assert!(order.family(format!("{name}x").as_bytes()).unwrap().is_empty());
                assert!(order.family(&name.as_bytes()[1..]).unwrap().is_empty());
            }
            assert_eq!(names(&order, &symbols, order.beginning_with(b"k").unwrap()), all[2..4]);
            assert_eq!(names(&order, &symbols, order.beginning_with(b"").unwrap()), all);
            assert!(order.beginning_with(b"zz").unwrap().is_empty());
        }
    }

    #[test]
    fn other_bytes_are_no_order_or_one_that_stays_within_the_names() {
        let symbols = FakeKernel::percpu().core_with_order().unwrap();
        assert!(ByName::new(&symbols, &[0; 18]).is_err());
        assert!(ByName::new(&symbols, &[0; 17]).is_err());
        let backwards: Vec<u8> = [1, 3, 2, 4, 5, 0].iter().flat_map(|&number| [0, 0, number]).collect();
        assert!(ByName::new(&symbols, &backwards).is_err());
        let beyond: Vec<u8> = [0, 5, 4, 2, 3, 6].iter().flat_map(|&number| [0, 0, number]).collect();
        assert!(ByName::new(&symbols, &beyond).is_err());
    }
}
