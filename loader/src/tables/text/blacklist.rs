//! `/sys/kernel/debug/kprobes/blacklist`: a line `0xSTART-0xEND<tab>NAME` for each range, its end exclusive
//! (`kprobe_blacklist_seq_show` in `kernel/kprobes.c`, 6.1 to 7.3); zeros for readers who may not see
//! addresses.

use std::{collections::HashSet, io::Read, path::Path};

use super::lines::{for_each_line, hexadecimal, is_name, malformed, word};
use crate::{error::Result, tables::Blacklist};

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
            names.insert(name.into());
        } else {
            ranges.push((start, end));
        }
        Ok(())
    })?;
    Ok(Blacklist::new(ranges, names))
}

fn parse_line(line: &[u8]) -> Result<(u64, u64, &[u8]), &'static str> {
    const EXPECTED: &str = "expected 0xSTART-0xEND, a tab and a name";
    let (start, rest) = line.strip_prefix(b"0x").and_then(hexadecimal).ok_or(EXPECTED)?;
    let (end, rest) = rest.strip_prefix(b"-0x").and_then(hexadecimal).ok_or(EXPECTED)?;
    let rest = rest.strip_prefix(b"\t").or_else(|| rest.strip_prefix(b" ")).ok_or(EXPECTED)?;
    if end < start {
        return Err("a range that ends before it starts");
    }
    let (name, _) = word(rest);
    if is_name(name) { Ok((start, end, name)) } else { Err(EXPECTED) }
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
        let list = read(b"0x0000000000000000-0x0000000000000000\tdo_trap [m]\n").unwrap();
        let hidden = |name: &'static [u8]| Function { address: 0, name, module: None };
        assert!(list.forbids(hidden(b"do_trap")));
        assert!(!list.forbids(hidden(b"do_trap2")));
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
