//! The kprobe blacklist: code in which a probe could bring the machine down.
//!
//! kprobe-multi links do not consult it in any version, so fastprobe does.

use std::collections::HashSet;

use super::symbols::Function;

/// The ranges, and where addresses are hidden the names instead.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Blacklist {
    /// Ascending and without overlap; ends exclusive.
    ranges: Vec<(u64, u64)>,
    names: HashSet<HiddenName>,
}

/// A function whose address is hidden: its name and its module.
pub(super) type HiddenName = (Box<[u8]>, Option<Box<[u8]>>);

impl Blacklist {
    /// A blacklist of these ranges, in any order; ends are exclusive.
    pub fn of_ranges(ranges: Vec<(u64, u64)>) -> Self {
        Self::new(ranges, HashSet::new())
    }

    pub(super) fn new(ranges: Vec<(u64, u64)>, names: HashSet<HiddenName>) -> Self {
        let mut blacklist = Self { ranges, names };
        blacklist.merge();
        blacklist
    }

    /// The stretches of code, ascending and without overlap; ends are exclusive.
    pub fn ranges(&self) -> &[(u64, u64)] {
        &self.ranges
    }

    /// Puts the ranges in order and joins those that touch, so that a look-up is one binary search.
    fn merge(&mut self) {
        self.ranges.sort_unstable();
        self.ranges.dedup_by(|next, kept| {
            let joined = next.0 <= kept.1;
            if joined {
                kept.1 = kept.1.max(next.1);
            }
            joined
        });
    }

    /// Whether a probe at the start of `function` is forbidden.
    pub fn forbids(&self, function: Function<'_>) -> bool {
        let after = self.ranges.partition_point(|&(start, _)| start <= function.address);
        let in_range = after > 0 && function.address < self.ranges[after - 1].1;
        in_range
            || (!self.names.is_empty() && self.names.contains(&hidden_name(function.name, function.module)))
    }

    /// How many separate stretches of code it covers, or names where addresses are hidden.
    pub fn len(&self) -> usize {
        self.ranges.len() + self.names.len()
    }

    /// Whether it forbids nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

pub(super) fn hidden_name(name: &[u8], module: Option<&[u8]>) -> HiddenName {
    (name.into(), module.map(Into::into))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: u64) -> Function<'static> {
        Function { address, name: b"a", module: None }
    }

    #[test]
    fn ranges_in_any_order_that_overlap_or_lie_within_each_other() {
        let ranges = vec![(0x300, 0x310), (0x100, 0x200), (0x120, 0x130), (0x1f0, 0x210)];
        let list = Blacklist::of_ranges(ranges);
        assert_eq!(list.ranges(), [(0x100, 0x210), (0x300, 0x310)]);
        for address in [0x100, 0x131, 0x1ff, 0x20f, 0x300] {
            assert!(list.forbids(at(address)), "{address:#x}");
        }
        for address in [0xff, 0x210, 0x2ff, 0x310] {
            assert!(!list.forbids(at(address)), "{address:#x}");
        }
    }
}
