//! `/sys/kernel/debug/kprobes/blacklist`: a line `0xSTART-0xEND<tab>NAME` for each range, its end exclusive,
//! with ` [MODULE]` behind a module's (`kprobe_blacklist_seq_show` in `kernel/kprobes.c`, 6.1 to 7.3); zeros for readers who may not see
//! addresses.

use std::{collections::HashSet, io::Read, path::Path};

use super::lines::{bracketed, for_each_line, hexadecimal, is_name, malformed, word};
use crate::{
    error::Result,
    tables::blacklist::{Blacklist, HiddenName, hidden_name},
};

/// Reads the kernel's file.
///
/// # Errors
///
/// `Malformed` with file, line and text for a line of another form or a range that ends before it
/// starts; fields after the name are let be.
pub fn parse(path: &Path, reader: impl Read) -> Result<Blacklist> {
    let (mut ranges, mut names) = (Vec::new(), HashSet::new());
    for_each_line(path, reader, |number, line| {
        let (start, end, name) =
            parse_line(line).map_err(|expected| malformed(path, number, line, expected))?;
        if (start, end) == (0, 0) {
            names.insert(name);
        } else {
            ranges.push((start, end));
        }
        Ok(())
    })?;
    Ok(Blacklist::new(ranges, names))
}

fn parse_line(line: &[u8]) -> Result<(u64, u64, HiddenName), &'static str> {
    const EXPECTED: &str = "expected 0xSTART-0xEND, a tab and a name";
    let (start, rest) = line.strip_prefix(b"0x").and_then(hexadecimal).ok_or(EXPECTED)?;
    let (end, rest) = rest.strip_prefix(b"-0x").and_then(hexadecimal).ok_or(EXPECTED)?;
    let rest = rest.strip_prefix(b"\t").or_else(|| rest.strip_prefix(b" ")).ok_or(EXPECTED)?;
    if end < start {
        return Err("a range that ends before it starts");
    }
    let (name, rest) = word(rest);
    if is_name(name) { Ok((start, end, hidden_name(name, bracketed(rest)))) } else { Err(EXPECTED) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::Function;

    fn read(text: &[u8]) -> Result<Blacklist> {
        parse(Path::new("blacklist"), text)
    }

    #[test]
    fn ranges_are_read_and_ends_are_exclusive() {
        let list = read(b"0x0000000000000100-0x0000000000000110\tdo_trap\n0x200-0x201 b more\n").unwrap();
        assert_eq!(list.ranges(), [(0x100, 0x110), (0x200, 0x201)]);
    }

    #[test]
    fn where_addresses_are_hidden_names_decide() {
        let zeros = "0x0000000000000000-0x0000000000000000";
        let list = read(format!("{zeros}\tdo_trap\n{zeros}\tin_module [m]\n").as_bytes()).unwrap();
        let hidden = |name: &'static [u8], module| Function { address: 0, name, module };
        assert!(list.forbids(hidden(b"do_trap", None)));
        assert!(list.forbids(hidden(b"in_module", Some(b"m"))));
        for (name, module) in [(&b"do_trap2"[..], None), (b"do_trap", Some(&b"m"[..])), (b"in_module", None)]
        {
            assert!(!list.forbids(hidden(name, module)));
        }
    }

    #[test]
    fn malformed_lines_are_named() {
        for text in
            ["do_trap\n", "0x1-0x2\n", "0x1-2\ta\n", "0xzz-0x2\ta\n", "0x3-0x2\ta\n", "0x0-0x0\ta\r\n"]
        {
            let error = read(text.as_bytes()).unwrap_err();
            assert!(error.to_string().starts_with("blacklist:1: "), "{error}");
        }
        assert_eq!(read(b"").unwrap(), Blacklist::default());
    }
}
