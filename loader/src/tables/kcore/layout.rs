//! The kernel's structures that the tables are made of.

use super::btf::{Bytes, Wanted, layouts};
use crate::error::Result;

/// Offsets in `struct module`, and its size, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the kernel's members")]
pub struct ModuleLayout {
    pub size: usize,
    pub state: usize,
    pub list: usize,
    pub name: usize,
    pub kallsyms: usize,
}

/// Offsets in `struct mod_kallsyms`, and its size, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the kernel's members")]
pub struct ModKallsymsLayout {
    pub size: usize,
    pub symtab: usize,
    pub num_symtab: usize,
    pub strtab: usize,
    pub typetab: usize,
}

/// Offsets in `struct ftrace_page` and `struct dyn_ftrace`, and their sizes, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the kernel's members")]
pub struct FtraceLayout {
    pub page_size: usize,
    pub next: usize,
    pub records: usize,
    pub index: usize,
    pub record_size: usize,
    pub ip: usize,
    pub flags: usize,
}

/// Offsets in `struct kprobe_blacklist_entry`, and its size, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the kernel's members")]
pub struct BlacklistLayout {
    pub size: usize,
    pub list: usize,
    pub start_addr: usize,
    pub end_addr: usize,
}

/// All of them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the kernel's structures")]
pub struct Structures {
    pub module: ModuleLayout,
    pub mod_kallsyms: ModKallsymsLayout,
    pub ftrace: FtraceLayout,
    pub blacklist: BlacklistLayout,
}

const WANTED: [Wanted; 5] = [
    Wanted { name: "module", members: &["state", "list", "name", "kallsyms"] },
    Wanted { name: "mod_kallsyms", members: &["symtab", "num_symtab", "strtab", "typetab"] },
    Wanted { name: "ftrace_page", members: &["next", "records", "index"] },
    Wanted { name: "dyn_ftrace", members: &["ip", "flags"] },
    Wanted { name: "kprobe_blacklist_entry", members: &["list", "start_addr", "end_addr"] },
];

impl Structures {
    /// Takes them from BTF.
    ///
    /// # Errors
    ///
    /// `Malformed` where one is missing or not as it is known.
    pub fn from_btf(btf: &mut impl Bytes) -> Result<Self> {
        let found = layouts(btf, &WANTED)?;
        let at = |structure: usize, member: usize| found[structure].offsets[member];
        Ok(Self {
            module: ModuleLayout {
                size: found[0].size,
                state: at(0, 0),
                list: at(0, 1),
                name: at(0, 2),
                kallsyms: at(0, 3),
            },
            mod_kallsyms: ModKallsymsLayout {
                size: found[1].size,
                symtab: at(1, 0),
                num_symtab: at(1, 1),
                strtab: at(1, 2),
                typetab: at(1, 3),
            },
            ftrace: FtraceLayout {
                page_size: found[2].size,
                next: at(2, 0),
                records: at(2, 1),
                index: at(2, 2),
                record_size: found[3].size,
                ip: at(3, 0),
                flags: at(3, 1),
            },
            blacklist: BlacklistLayout {
                size: found[4].size,
                list: at(4, 0),
                start_addr: at(4, 1),
                end_addr: at(4, 2),
            },
        })
    }
}
