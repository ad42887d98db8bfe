//! `/proc/modules`: which modules are loaded.
//!
//! A line is `NAME SIZE USERS DEPENDENCIES STATE 0xADDRESS [TAINTS]` (`m_show` in `kernel/module/procfs.c`).
//! Only the name is needed here.

use std::{io::Read, path::Path};

use super::lines::{for_each_line, malformed, word};
use crate::error::Result;

/// Reads the names of the loaded modules.
///
/// # Errors
///
/// `Malformed` with file, line and text for a line that has no size after the name.
pub fn parse(path: &Path, reader: impl Read) -> Result<Vec<Box<[u8]>>> {
    let mut names = Vec::new();
    for_each_line(path, reader, |number, line| {
        let (name, rest) = word(line);
        let (size, _) = word(rest);
        if name.is_empty() || size.is_empty() || !size.iter().all(u8::is_ascii_digit) {
            return Err(malformed(path, number, line, "expected a module's name and its size"));
        }
        names.push(name.into());
        Ok(())
    })?;
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_bad_lines_named() {
        let text = b"kvm 1302528 1 kvm_amd, Live 0xffffffffc1133000\nccp 12288 0 - Live 0x0 (E)\n";
        let names = parse(Path::new("m"), &text[..]).unwrap();
        assert_eq!(names, [Box::from(&b"kvm"[..]), Box::from(&b"ccp"[..])]);
        for text in [&b"kvm\n"[..], b"kvm x 1\n", b" 12 1\n"] {
            assert!(parse(Path::new("m"), text).unwrap_err().to_string().starts_with("m:1: "));
        }
    }
}
