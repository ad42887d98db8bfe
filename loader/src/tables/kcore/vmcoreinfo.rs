//! VMCOREINFO: what a kernel tells crash tools about itself, lines of `KEY=VALUE`
//! (`kernel/vmcore_info.c`; the symbols of kallsyms since 6.0).

use std::collections::HashMap;

use crate::{error::Result, tables::odd};

/// The note's name.
pub const NOTE: &[u8] = b"VMCOREINFO";

/// The note, parsed. Lines that are not understood are let be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VmCoreInfo {
    text: Box<[u8]>,
    symbols: HashMap<String, u64>,
    values: HashMap<String, String>,
}

impl VmCoreInfo {
    /// Reads the note's text.
    pub fn parse(text: &[u8]) -> Self {
        let mut info = Self { text: text.into(), ..Self::default() };
        for line in String::from_utf8_lossy(text).lines() {
            let Some((key, value)) = line.split_once('=') else { continue };
            match key.strip_prefix("SYMBOL(").and_then(|key| key.strip_suffix(')')) {
                Some(symbol) => {
                    if let Ok(address) = u64::from_str_radix(value, 16) {
                        info.symbols.insert(symbol.into(), address);
                    }
                }
                None => {
                    info.values.insert(key.into(), value.into());
                }
            }
        }
        info
    }

    /// The note's text.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// The address of a symbol, if the kernel tells it.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        self.symbols.get(name).copied()
    }

    /// The address of a symbol.
    ///
    /// # Errors
    ///
    /// `Malformed` where the kernel doesn't tell it.
    pub fn require(&self, name: &str) -> Result<u64> {
        self.symbol(name).ok_or_else(|| odd(format!("VMCOREINFO has no {name}")))
    }

    /// The lowest address above `address` of any symbol that the kernel tells.
    pub fn next_above(&self, address: u64) -> Option<u64> {
        self.symbols.values().copied().filter(|&other| other > address).min()
    }

    /// A value that is no symbol: `BUILD-ID`, `OSRELEASE`.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_and_values_are_found_and_the_rest_is_let_be() {
        let info = VmCoreInfo::parse(
            b"OSRELEASE=6.12\nBUILD-ID=ab\nSYMBOL(_stext)=ffffffff81000000\nSYMBOL(x)=zz\nPAGESIZE\n\xff=\nSYMBOL(y=1\n\0",
        );
        assert_eq!(info.require("_stext").unwrap(), 0xffff_ffff_8100_0000);
        assert_eq!(info.symbol("x"), None);
        assert_eq!(info.value("OSRELEASE"), Some("6.12"));
        assert_eq!(info.next_above(1), Some(0xffff_ffff_8100_0000));
        assert_eq!(info.next_above(u64::MAX), None);
        assert!(info.require("modules").unwrap_err().to_string().contains("no modules"));
    }
}
