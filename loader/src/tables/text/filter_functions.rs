//! `available_filter_functions` and `available_filter_functions_addrs`: the functions that ftrace can trace.
//!
//! A line is `NAME` or `NAME [MODULE]`; the second file (6.5 and later) puts the address of the ftrace record
//! before it (`t_show` in `kernel/trace/ftrace.c`). The record's address is where the call instruction is:
//! the symbol's own, or 4 bytes later where the function starts with `endbr64`.

use std::{io::Read, path::Path};

use super::lines::{bracketed, for_each_line, hexadecimal, is_name, malformed, word};
use crate::{error::Result, tables::symbols::Symbols};

/// What the kernel prints for the record of a weak function that the linker removed (`kallsyms.c` has lost
/// its name, so ftrace makes one of its offset). Nothing ever calls it.
const REMOVED_WEAK_FUNCTION: &[u8] = b"__ftrace_invalid_address___";

/// Whether the lines start with the record's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Columns {
    /// `available_filter_functions`
    Name,
    /// `available_filter_functions_addrs`
    AddressAndName,
}

/// Reads the records in their order, which within the core kernel and within each module is that of their
/// addresses. The address is 0 where the file has none.
///
/// # Errors
///
/// `Malformed` with file, line and text for a line of another form; fields after the module are let be.
pub fn parse(path: &Path, reader: impl Read, columns: Columns) -> Result<Symbols> {
    let mut records = Symbols::default();
    for_each_line(path, reader, |number, line| {
        let bad = |expected| malformed(path, number, line, expected);
        let (address, rest) = match columns {
            Columns::Name => (0, line),
            Columns::AddressAndName => {
                let (address, rest) =
                    hexadecimal(line).ok_or_else(|| bad("expected a hexadecimal address first"))?;
                (address, rest.strip_prefix(b" ").ok_or_else(|| bad("expected a space after the address"))?)
            }
        };
        let (name, rest) = word(rest);
        if !is_name(name) {
            return Err(bad("expected a function name"));
        }
        if name.starts_with(REMOVED_WEAK_FUNCTION) {
            return Ok(());
        }
        let module = match rest {
            [b'[', ..] => {
                Some(bracketed(rest).ok_or_else(|| bad("expected a module as [NAME] after the name"))?)
            }
            _ => None,
        };
        records.push(address, name, module)
    })?;
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8], columns: Columns) -> Result<Vec<(u64, String, Option<String>)>> {
        let text_of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let records = parse(Path::new("aff"), text, columns)?;
        Ok(records.iter().map(|f| (f.address, text_of(f.name), f.module.map(text_of))).collect())
    }

    #[test]
    fn both_files_are_read() {
        assert_eq!(
            read(b"a\nkvm_init [kvm]\n", Columns::Name).unwrap(),
            [(0, "a".into(), None), (0, "kvm_init".into(), Some("kvm".into()))]
        );
        assert_eq!(
            read(b"ffffffff81000004 a\nffffffffc0000004 kvm_init [kvm] more\n", Columns::AddressAndName)
                .unwrap(),
            [
                (0xffff_ffff_8100_0004, "a".into(), None),
                (0xffff_ffff_c000_0004, "kvm_init".into(), Some("kvm".into()))
            ]
        );
    }

    #[test]
    fn removed_weak_functions_are_left_out() {
        let text = b"a\n__ftrace_invalid_address___128\nb\n";
        assert_eq!(read(text, Columns::Name).unwrap().len(), 2);
    }

    #[test]
    fn malformed_lines_are_named() {
        for (text, columns, expected) in [
            (&b"a\n [m]\n"[..], Columns::Name, "aff:2: expected a function name"),
            (b"a [m\n", Columns::Name, "aff:1: expected a module as [NAME] after the name"),
            (b"a b\n", Columns::AddressAndName, ""),
            (b"zz b\n", Columns::AddressAndName, "aff:1: expected a hexadecimal address first"),
            (b"ff\n", Columns::AddressAndName, "aff:1: expected a space after the address"),
        ] {
            match read(text, columns) {
                Err(error) => assert!(error.to_string().starts_with(expected), "{error}"),
                Ok(records) => assert_eq!((records.len(), expected), (1, ""), "{text:?}"),
            }
        }
    }
}
