//! The functions of a kernel: their addresses, names and modules, in little memory.

use std::collections::HashMap;

use crate::error::{Error, ErrorKind, Result};

/// A module's number within one table; 0 is the core kernel.
pub type ModuleId = u16;

/// The core kernel, which patterns call `vmlinux`.
pub const CORE_MODULE: ModuleId = 0;

/// One function symbol, borrowed from its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function<'t> {
    /// The symbol's address; 0 where the kernel hides it.
    pub address: u64,
    /// Its name as the kernel has it: any bytes but NUL and white space.
    pub name: &'t [u8],
    /// The module that defines it; none for the core kernel.
    pub module: Option<&'t [u8]>,
}

/// All function symbols in the order of the source, names in one buffer: 16 bytes and the name for each.
#[derive(Debug, Default)]
pub struct Symbols {
    names: Vec<u8>,
    entries: Vec<Entry>,
    modules: Vec<Box<[u8]>>,
    module_ids: HashMap<Box<[u8]>, ModuleId>,
    last_module: ModuleId,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    address: u64,
    name_start: u32,
    name_len: u16,
    module: ModuleId,
}

impl Symbols {
    /// Adds a symbol.
    ///
    /// # Errors
    ///
    /// `Malformed` beyond 65,535 modules, 4 GiB of names or 65,535 bytes in one: no kernel comes near.
    pub fn push(&mut self, address: u64, name: &[u8], module: Option<&[u8]>) -> Result<()> {
        let module = module.map_or(Some(CORE_MODULE), |module| self.module_id(module));
        let (Some(module), Ok(name_start), Ok(name_len)) =
            (module, u32::try_from(self.names.len()), u16::try_from(name.len()))
        else {
            return Err(Error::new(ErrorKind::Malformed, "more symbols than any kernel has"));
        };
        self.names.extend_from_slice(name);
        self.entries.push(Entry { address, name_start, name_len, module });
        Ok(())
    }

    /// The number of `module`, a new one if need be. Symbols of a module come in one run, so the last number
    /// is nearly always right.
    fn module_id(&mut self, module: &[u8]) -> Option<ModuleId> {
        if self.last_module != CORE_MODULE && *self.modules[self.last_module as usize - 1] == *module {
            return Some(self.last_module);
        }
        if let Some(&id) = self.module_ids.get(module) {
            self.last_module = id;
            return Some(id);
        }
        self.modules.push(module.into());
        let id = ModuleId::try_from(self.modules.len()).ok()?;
        self.module_ids.insert(module.into(), id);
        self.last_module = id;
        Some(id)
    }

    /// How many symbols there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Symbol number `index`, if there is one.
    pub fn get(&self, index: usize) -> Option<Function<'_>> {
        self.entries.get(index).map(|entry| self.function(entry))
    }

    /// All symbols, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = Function<'_>> {
        self.entries.iter().map(|entry| self.function(entry))
    }

    /// Replaces the address of every symbol by what `f` makes of it and its number.
    pub(super) fn set_addresses(&mut self, mut f: impl FnMut(usize) -> u64) {
        for (index, entry) in self.entries.iter_mut().enumerate() {
            entry.address = f(index);
        }
    }

    fn function(&self, entry: &Entry) -> Function<'_> {
        let start = entry.name_start as usize;
        Function {
            address: entry.address,
            name: &self.names[start..start + entry.name_len as usize],
            module: (entry.module != CORE_MODULE).then(|| &*self.modules[entry.module as usize - 1]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_come_back_as_they_went_in() {
        let mut symbols = Symbols::default();
        let function = |address, name: &'static [u8], module: Option<&'static str>| Function {
            address,
            name,
            module: module.map(str::as_bytes),
        };
        let input = [
            function(1, b"a", None),
            function(2, b"b\xff", Some("kvm")),
            function(3, b"c", Some("xfs")),
            function(4, b"b\xff", Some("kvm")),
            function(5, b"", None),
        ];
        for f in input {
            symbols.push(f.address, f.name, f.module).unwrap();
        }
        assert_eq!(symbols.iter().collect::<Vec<_>>(), input);
        assert_eq!(symbols.get(1).unwrap().module, Some(&b"kvm"[..]));
        assert_eq!(symbols.get(5), None);
    }

    #[test]
    fn a_name_too_long_for_its_length_field_is_refused() {
        let name = vec![b'x'; 1 << 16];
        assert_eq!(Symbols::default().push(1, &name, None).unwrap_err().kind(), ErrorKind::Malformed);
    }
}
