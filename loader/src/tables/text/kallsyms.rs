//! `/proc/kallsyms`: every symbol of the kernel and its modules.
//!
//! A line is `ADDRESS TYPE NAME`, for a module followed by a tab and `[MODULE]` (`s_show` in
//! `kernel/kallsyms.c`, 6.1 to 7.3). Addresses are zeros for readers who may not see them
//! (`kernel.kptr_restrict`).

use std::{io::Read, path::Path};

use super::lines::{bracketed, for_each_line, hexadecimal, is_name, malformed, word};
use crate::{error::Result, tables::symbols::Symbols};

/// Reads all function symbols: those of type `t`, `T`, `w` and `W`.
///
/// # Errors
///
/// `Malformed` with file, line and text for a line of another form; fields after the module are let be.
pub fn parse(path: &Path, reader: impl Read) -> Result<Symbols> {
    let mut symbols = Symbols::default();
    for_each_line(path, reader, |number, line| {
        let symbol = parse_line(line).map_err(|expected| malformed(path, number, line, expected))?;
        match symbol {
            Some((address, name, module)) => symbols.push(address, name, module),
            None => Ok(()),
        }
    })?;
    Ok(symbols)
}

/// A function's address, name and module; none for data.
type FunctionLine<'l> = Option<(u64, &'l [u8], Option<&'l [u8]>)>;

fn parse_line(line: &[u8]) -> Result<FunctionLine<'_>, &'static str> {
    let (address, rest) = hexadecimal(line).ok_or("expected a hexadecimal address first")?;
    let rest = rest.strip_prefix(b" ").ok_or("expected a space after the address")?;
    let (kind, rest) = match rest {
        [kind, b' ', rest @ ..] => (kind, rest),
        _ => return Err("expected a symbol type of one letter after the address"),
    };
    if !matches!(kind, b't' | b'T' | b'w' | b'W') {
        return Ok(None);
    }
    let (name, rest) = word(rest);
    if !is_name(name) {
        return Err("expected a name after the symbol type");
    }
    let module = match rest {
        [] => None,
        [b'[', ..] => Some(bracketed(rest).ok_or("expected a module as [NAME] after the name")?),
        _ => None,
    };
    Ok(Some((address, name, module)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    type Line = (u64, Vec<u8>, Option<Vec<u8>>);

    fn read(text: &[u8]) -> Result<Vec<Line>> {
        let symbols = parse(Path::new("/proc/kallsyms"), text)?;
        Ok(symbols.iter().map(|f| (f.address, f.name.to_vec(), f.module.map(<[u8]>::to_vec))).collect())
    }

    #[test]
    fn functions_are_kept_and_data_is_not() {
        let text = b"ffffffff81000000 T _stext\n0000000000000000 A fixed\n\
                     ffffffff81000010 t do_one\nffffffffc0000000 t kvm_init\t[kvm]\n\
                     ffffffff81000020 W weak\nffffffffc0000100 d data\t[kvm]\n";
        let names: Vec<_> = read(text).unwrap().into_iter().map(|(_, n, m)| (n, m)).collect();
        let name = |n: &str, m: Option<&str>| (n.as_bytes().to_vec(), m.map(|m| m.as_bytes().to_vec()));
        assert_eq!(
            names,
            [name("_stext", None), name("do_one", None), name("kvm_init", Some("kvm")), name("weak", None)]
        );
    }

    #[test]
    fn any_byte_but_white_space_may_stand_in_a_name() {
        let text = b"1 t a.llvm.123$x\xff[b]\n2 t [c]\t[m]\n";
        let symbols = read(text).unwrap();
        assert_eq!(symbols[0], (1, b"a.llvm.123$x\xff[b]".to_vec(), None));
        assert_eq!(symbols[1], (2, b"[c]".to_vec(), Some(b"m".to_vec())));
    }

    #[test]
    fn later_fields_are_let_be() {
        assert_eq!(read(b"1 t a\t[m] build-id\n").unwrap()[0].2, Some(b"m".to_vec()));
        assert_eq!(read(b"1 t a size=12\n").unwrap()[0], (1, b"a".to_vec(), None));
    }

    #[test]
    fn a_name_of_511_bytes_is_a_name() {
        let name = vec![b'n'; 511];
        let line = [b"1 t ", &name[..], b"\n"].concat();
        assert_eq!(read(&line).unwrap()[0].1, name);
    }

    #[test]
    fn a_malformed_line_is_named() {
        for (text, expected) in [
            (&b"1 t ok\nxyz t a\n"[..], "/proc/kallsyms:2: expected a hexadecimal address first: “xyz t a”"),
            (b"12\n", "/proc/kallsyms:1: expected a space after the address: “12”"),
            (
                b"12 tt a\n",
                "/proc/kallsyms:1: expected a symbol type of one letter after the address: “12 tt a”",
            ),
            (b"12 t \n", "/proc/kallsyms:1: expected a name after the symbol type: “12 t ”"),
            (b"12 t a\r\n", "/proc/kallsyms:1: expected a name after the symbol type: “12 t a\\r”"),
            (b"12 t a\0b\n", "/proc/kallsyms:1: expected a name after the symbol type: “12 t a\\x00b”"),
            (b"12 t a\t[m\n", "/proc/kallsyms:1: expected a module as [NAME] after the name: “12 t a\\t[m”"),
            (b"11112222333344445 t a\n", "/proc/kallsyms:1: expected a hexadecimal address first"),
        ] {
            let error = read(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Malformed);
            assert!(error.to_string().starts_with(expected), "{error}");
            assert!(error.hint().is_some());
        }
    }
}
