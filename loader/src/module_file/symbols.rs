//! The symbol table of a module: what is undefined in it, and the labels of its exports.

use std::{collections::BTreeSet, path::Path};

use object::{
    LittleEndian, SectionIndex, SymbolIndex, elf,
    read::elf::{FileHeader, SectionHeader, SectionTable, Sym, SymbolTable},
};

use crate::error::{Error, ErrorKind, Result};

type Header = elf::FileHeader64<LittleEndian>;

/// The longest name with its NUL (`KSYM_NAME_LEN`, `include/linux/kallsyms.h`, 6.1 and later; 128 before),
/// after the longest label.
const MAX_NAME_BYTES: usize = 512 + b"__ksymtab_".len();

/// No module has as many: amdgpu imports 1,147 in 7.3. Names may overlap in the file, so without a limit a
/// file could ask for far more memory than it has bytes.
const MAX_NAMES: usize = 1 << 18;

/// The distinct names of undefined symbols in the module `image`, sorted; `path` is for messages.
pub fn imports(path: &Path, image: &[u8]) -> Result<Vec<Box<[u8]>>> {
    let module = Module::parse(path, image)?;
    module.distinct(|symbol, _| if symbol.is_undefined(LittleEndian) { Some(b"") } else { None })
}

/// The distinct names that the module `image` exports, sorted; `path` is for messages.
pub fn exports(path: &Path, image: &[u8]) -> Result<Vec<Box<[u8]>>> {
    let module = Module::parse(path, image)?;
    module.distinct(|symbol, index| label_in(module.section_name(symbol, index)?))
}

/// What the labels of exports begin with in the section of this name; none where there are none.
fn label_in(section: &[u8]) -> Option<&'static [u8]> {
    if section.starts_with(b"__ksymtab_strings") {
        Some(b"__kstrtab_")
    } else {
        section.starts_with(b"__ksymtab").then_some(b"__ksymtab_")
    }
}

/// A module's headers, checked. Names are looked up here and not by the library, which would search for the
/// NUL of each without an end.
struct Module<'a> {
    path: &'a Path,
    sections: SectionTable<'a, Header>,
    symbols: SymbolTable<'a, Header>,
    section_names: &'a [u8],
    symbol_names: &'a [u8],
}

impl<'a> Module<'a> {
    fn parse(path: &'a Path, image: &'a [u8]) -> Result<Self> {
        let fault = |e| odd(path, "is no 64-bit module, or cut short or corrupt").with_source(e);
        let header = Header::parse(image).map_err(fault)?;
        let endian = header.endian().map_err(fault)?;
        if header.e_type(endian) != elf::ET_REL {
            return Err(odd(path, "is an ELF file, but no module: it isn't relocatable"));
        }
        let sections = header.sections(endian, image).map_err(fault)?;
        let symbols = sections.symbols(endian, image, elf::SHT_SYMTAB).map_err(fault)?;
        if symbols.is_empty() {
            return Err(odd(path, "has no symbol table"));
        }
        let bytes = |index| sections.section(index)?.data(endian, image);
        let section_names = bytes(SectionIndex(header.shstrndx(endian, image).map_err(fault)? as usize));
        let symbol_names = bytes(symbols.string_section());
        let (section_names, symbol_names) = (section_names.map_err(fault)?, symbol_names.map_err(fault)?);
        Ok(Self { path, sections, symbols, section_names, symbol_names })
    }

    /// The distinct names of the symbols that `label_of` gives a label for, without the label; sorted.
    /// Symbols whose names don't begin with it, or have nothing behind it, are left out.
    fn distinct<'l>(
        &self,
        label_of: impl Fn(&elf::Sym64<LittleEndian>, SymbolIndex) -> Option<&'l [u8]>,
    ) -> Result<Vec<Box<[u8]>>> {
        let mut names = BTreeSet::new();
        for (index, symbol) in self.symbols.enumerate() {
            let Some(label) = label_of(symbol, index) else { continue };
            let name = text_at(self.symbol_names, symbol.st_name(LittleEndian))
                .ok_or_else(|| odd(self.path, &format!("has no name for symbol {}", index.0)))?;
            if let Some(rest) = name.strip_prefix(label).filter(|rest| !rest.is_empty()) {
                names.insert(rest);
                if names.len() > MAX_NAMES {
                    return Err(odd(self.path, &format!("has more than {MAX_NAMES} names")));
                }
            }
        }
        Ok(names.into_iter().map(Box::from).collect())
    }

    /// The name of the section that a symbol is in; none for one that is in none.
    fn section_name(&self, symbol: &elf::Sym64<LittleEndian>, index: SymbolIndex) -> Option<&'a [u8]> {
        let section = self.symbols.symbol_section(LittleEndian, symbol, index).ok()??;
        text_at(self.section_names, self.sections.section(section).ok()?.sh_name(LittleEndian))
    }
}

/// The text up to the NUL; none where there is none, or not soon enough.
fn text_at(texts: &[u8], at: u32) -> Option<&[u8]> {
    let rest = texts.get(at as usize..)?;
    let rest = &rest[..rest.len().min(MAX_NAME_BYTES)];
    Some(&rest[..memchr::memchr(0, rest)?])
}

fn odd(path: &Path, what: &str) -> Error {
    Error::new(ErrorKind::Malformed, format!("{} {what}", path.display()))
        .with_hint("install the package again that the module comes in")
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashMap;

    use object::{
        Architecture, BinaryFormat, Endianness, SectionKind, SymbolFlags, SymbolKind, SymbolScope,
        write::{Object, SectionId, Symbol, SymbolSection},
    };

    use super::*;

    /// A module in the making.
    pub struct Fake {
        object: Object<'static>,
        sections: HashMap<String, SectionId>,
    }

    impl Fake {
        pub fn new() -> Self {
            let object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
            Self { object, sections: HashMap::new() }
        }

        /// What a kernel's build makes of two imports and two exports, in the layout of 6.1.
        pub fn example() -> Self {
            Self::new()
                .symbol("", "printk")
                .symbol("", "kfree")
                .symbol(".text", "local_function")
                .symbol(".text", "api")
                .symbol("__ksymtab_strings", "__kstrtab_api")
                .symbol("__ksymtab_strings", "__kstrtabns_api")
                .symbol("__ksymtab", "__ksymtab_api")
                .symbol("__ksymtab_strings", "__kstrtab_api_gpl")
                .symbol("__ksymtab_strings", "__kstrtabns_api_gpl")
                .symbol("__ksymtab_gpl", "__ksymtab_api_gpl")
        }

        /// Adds a symbol in `section`, which is made if need be; in none if that is empty.
        pub fn symbol(mut self, section: &str, name: &str) -> Self {
            let Self { object, sections } = &mut self;
            let mut add = || object.add_section(Vec::new(), section.into(), SectionKind::ReadOnlyData);
            let section = match section {
                "" => SymbolSection::Undefined,
                _ => SymbolSection::Section(*sections.entry(section.to_owned()).or_insert_with(&mut add)),
            };
            object.add_symbol(Symbol {
                name: name.into(),
                value: 0,
                size: 0,
                kind: SymbolKind::Data,
                scope: SymbolScope::Linkage,
                weak: false,
                section,
                flags: SymbolFlags::None,
            });
            self
        }

        pub fn build(self) -> Vec<u8> {
            self.object.write().unwrap()
        }
    }

    fn texts(names: Result<Vec<Box<[u8]>>>) -> Vec<String> {
        names.unwrap().iter().map(|name| String::from_utf8(name.to_vec()).unwrap()).collect()
    }

    fn imported(image: &[u8]) -> Vec<String> {
        texts(imports(Path::new("x.ko"), image))
    }

    fn exported(image: &[u8]) -> Vec<String> {
        texts(exports(Path::new("x.ko"), image))
    }

    #[test]
    fn undefined_symbols_are_imports_and_labels_are_exports() {
        let image = Fake::example().build();
        assert_eq!(imported(&image), ["kfree", "printk"]);
        assert_eq!(exported(&image), ["api", "api_gpl"]);
    }

    #[test]
    fn either_label_is_enough_and_both_are_one_export() {
        let entries =
            Fake::new().symbol("__ksymtab", "__ksymtab_a").symbol("__ksymtab_unused", "__ksymtab_b");
        assert_eq!(exported(&entries.build()), ["a", "b"]);
        let strings = Fake::new()
            .symbol("__ksymtab_strings", "__kstrtabns_a")
            .symbol("__ksymtab_strings", "__kstrtab_a")
            .symbol("__ksymtab", "__ksymtab_a");
        assert_eq!(exported(&strings.build()), ["a"]);
        let stripped = Fake::new().symbol("__ksymtab_strings", "__kstrtab_a");
        assert_eq!(exported(&stripped.build()), ["a"]);
    }

    #[test]
    fn a_label_elsewhere_is_no_export() {
        let image = Fake::new()
            .symbol(".text", "__ksymtab_a")
            .symbol(".text", "__kstrtab_b")
            .symbol("__kflagstab", "__flags_c")
            .symbol("__ksymtab_strings", "__ksymtab_d")
            .symbol("__ksymtab", "__ksymtab_")
            .symbol("", "__ksymtab_e")
            .build();
        assert_eq!(exported(&image), [""; 0]);
        assert_eq!(imported(&image), ["__ksymtab_e"]);
    }

    #[test]
    fn a_module_without_either_has_empty_lists() {
        let image = Fake::new().symbol(".text", "init_module").build();
        assert_eq!(imported(&image), [""; 0]);
        assert_eq!(exported(&image), [""; 0]);
    }

    #[test]
    fn other_elf_files_are_told_apart() {
        let example = Fake::example().build();
        for (at, value) in [(4, 1), (5, 2), (16, 2)] {
            // The class, the byte order, the type.
            let mut image = example.clone();
            image[at] = value;
            let error = imports(Path::new("/m/x.ko"), &image).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Malformed);
            assert!(error.to_string().starts_with("/m/x.ko is "), "{error}");
        }
        let mut without_sections = example;
        without_sections[40..48].fill(0);
        without_sections[60..62].fill(0);
        let error = imports(Path::new("/m/x.ko"), &without_sections).unwrap_err();
        assert_eq!(error.to_string(), "/m/x.ko has no symbol table");
    }

    #[test]
    fn a_name_without_an_end_is_an_error() {
        let fits = "n".repeat(MAX_NAME_BYTES - 1);
        assert_eq!(imported(&Fake::new().symbol("", &fits).build()), [fits]);
        let image = Fake::new().symbol("", &"n".repeat(MAX_NAME_BYTES)).build();
        let error = imports(Path::new("x.ko"), &image).unwrap_err();
        assert_eq!(error.to_string(), "x.ko has no name for symbol 1");
    }

    #[test]
    fn a_file_cut_short_anywhere_is_an_error() {
        let image = Fake::example().build();
        for length in 0..image.len() {
            let error = exports(Path::new("x.ko"), &image[..length]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Malformed, "{length}");
        }
    }

    #[test]
    fn no_flipped_bit_and_no_wild_number_is_a_panic() {
        let example = Fake::example().build();
        let mut image = example.clone();
        for at in 0..image.len() {
            for bit in 0..8 {
                image[at] = example[at] ^ (1 << bit);
                let _ = (imports(Path::new("x.ko"), &image), exports(Path::new("x.ko"), &image));
            }
            image[at] = example[at];
            for wild in [u64::MAX, 1 << 63, u64::from(u32::MAX), 0] {
                let end = (at + 8).min(image.len());
                image[at..end].copy_from_slice(&wild.to_le_bytes()[..end - at]);
                let _ = (imports(Path::new("x.ko"), &image), exports(Path::new("x.ko"), &image));
                image[at..end].copy_from_slice(&example[at..end]);
            }
        }
    }
}
