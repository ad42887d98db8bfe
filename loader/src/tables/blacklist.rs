//! The kprobe blacklist: code in which a probe could bring the machine down.
//!
//! `/sys/kernel/debug/kprobes/blacklist` has a line `0xSTART-0xEND<tab>NAME` for each range, its end exclusive
//! (`kprobe_blacklist_seq_show` in `kernel/kprobes.c`, 6.1 to 7.3); zeros for readers who may not see
//! addresses. kprobe-multi links do not consult it in any version, so fastprobe does.

use std::{collections::HashSet, io::Read, path::Path};

use super::{
    lines::{for_each_line, hexadecimal, malformed, word},
    symbols::Function,
};
use crate::error::Result;

/// The ranges, and where addresses are hidden the names instead.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Blacklist {
    /// Ascending and without overlap; ends exclusive.
    ranges: Vec<(u64, u64)>,
    names: HashSet<Box<[u8]>>,
}

impl Blacklist {
    /// Reads the kernel's file.
    ///
    /// # Errors
    ///
    /// `Malformed` with file, line and text for a line of another form or a range that ends before it
    /// starts; fields after the name are let be.
    pub fn parse(path: &Path, reader: impl Read) -> Result<Self> {
        let mut blacklist = Self::default();
        for_each_line(path, reader, |number, line| {
            let (start, end, name) =
                parse_line(line).map_err(|expected| malformed(path, number, line, expected))?;
            if (start, end) == (0, 0) {
                blacklist.names.insert(name.into());
            } else {
                blacklist.ranges.push((start, end));
            }
            Ok(())
        })?;
        blacklist.merge();
        Ok(blacklist)
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
        in_range || (!self.names.is_empty() && self.names.contains(function.name))
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

fn parse_line(line: &[u8]) -> Result<(u64, u64, &[u8]), &'static str> {
    const EXPECTED: &str = "expected 0xSTART-0xEND, a tab and a name";
    let (start, rest) = line.strip_prefix(b"0x").and_then(hexadecimal).ok_or(EXPECTED)?;
    let (end, rest) = rest.strip_prefix(b"-0x").and_then(hexadecimal).ok_or(EXPECTED)?;
    let rest = rest.strip_prefix(b"\t").or_else(|| rest.strip_prefix(b" ")).ok_or(EXPECTED)?;
    if end < start {
        return Err("a range that ends before it starts");
    }
    Ok((start, end, word(rest).0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &[u8]) -> Result<Blacklist> {
        Blacklist::parse(Path::new("blacklist"), text)
    }

    fn at(address: u64, name: &'static str) -> Function<'static> {
        Function { address, name: name.as_bytes(), module: None }
    }

    #[test]
    fn the_end_is_exclusive() {
        let list = parse(b"0x0000000000000100-0x0000000000000110\tdo_trap\n").unwrap();
        assert!(!list.forbids(at(0xff, "a")));
        assert!(list.forbids(at(0x100, "a")));
        assert!(list.forbids(at(0x10f, "a")));
        assert!(!list.forbids(at(0x110, "a")));
    }

    #[test]
    fn ranges_in_any_order_that_overlap_or_lie_within_each_other() {
        let list = parse(b"0x300-0x310\tc\n0x100-0x200\ta\n0x120-0x130\tb\n0x1f0-0x210\td\n").unwrap();
        assert_eq!(list.len(), 2);
        for address in [0x100, 0x131, 0x1ff, 0x20f, 0x300] {
            assert!(list.forbids(at(address, "x")), "{address:#x}");
        }
        for address in [0xff, 0x210, 0x2ff, 0x310] {
            assert!(!list.forbids(at(address, "x")), "{address:#x}");
        }
    }

    #[test]
    fn where_addresses_are_hidden_names_decide() {
        let list = parse(b"0x0000000000000000-0x0000000000000000\tdo_trap [m]\n").unwrap();
        assert!(list.forbids(at(0, "do_trap")));
        assert!(!list.forbids(at(0, "do_trap2")));
    }

    #[test]
    fn malformed_lines_are_named() {
        for text in ["do_trap\n", "0x1-0x2\n", "0x1-2\ta\n", "0xzz-0x2\ta\n", "0x3-0x2\ta\n"] {
            let error = parse(text.as_bytes()).unwrap_err();
            assert!(error.to_string().starts_with("blacklist:1: "), "{error}");
        }
        assert_eq!(parse(b"").unwrap(), Blacklist::default());
    }
}
