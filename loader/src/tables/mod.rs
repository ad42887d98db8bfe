//! What a kernel has: its functions, where ftrace can hook them, and where a probe is forbidden.
//!
//! [`Tables::read`] reads each of the kernel's files once; everything after it works on memory alone.

mod blacklist;
mod files;
mod filter_functions;
mod join;
mod kallsyms;
mod lines;
mod modules;
mod symbols;

use std::thread;

pub use blacklist::Blacklist;
pub use files::Root;
use symbols::Symbols;
pub use symbols::{CORE_MODULE, Function, ModuleId};

use crate::error::{Error, ErrorKind, Result};

/// How far an ftrace record may lie behind the symbol that it belongs to, in bytes: 0, or on x86-64 with
/// indirect branch tracking the 4 bytes of `endbr64` (`FTRACE_MCOUNT_MAX_OFFSET`,
/// `arch/x86/include/asm/ftrace.h`, 6.1 to 7.3). A record further away belongs to a function that the linker
/// removed.
pub const MAX_ENTRY_OFFSET: u64 = 4;

/// A kernel's tables, in memory.
#[derive(Debug)]
pub struct Tables {
    functions: Symbols,
    /// The addresses of the ftrace records, ascending.
    sites: Vec<u64>,
    blacklist: Blacklist,
    modules: Vec<Box<[u8]>>,
    warnings: Vec<Error>,
}

impl Tables {
    /// Reads the text tables below `root`, the two large ones side by side.
    ///
    /// # Errors
    ///
    /// `Unsupported` and `Permission` where a file isn't there or may not be read, or all addresses are
    /// hidden; `Malformed` for a line of unknown form. A blacklist that can't be opened is a
    /// [warning](Self::warnings).
    pub fn read(root: &Root) -> Result<Self> {
        let (functions, records) = thread::scope(|scope| {
            let records = scope.spawn(|| {
                let ((path, file), columns) = root.filter_functions()?;
                filter_functions::parse(&path, file, columns)
            });
            let functions = root.kallsyms().and_then(|(path, file)| kallsyms::parse(&path, file));
            (functions, records.join())
        });
        // The list of traceable functions is the likelier one to be missing, and its error the more helpful.
        let records = records
            .map_err(|_| Error::new(ErrorKind::Io, "the thread that read the traceable functions died"))??;
        let mut functions = functions?;
        let sites = join::sites(&mut functions, &records)?;

        let mut warnings = Vec::new();
        let blacklist = match root.blacklist() {
            Ok((path, file)) => Blacklist::parse(&path, file)?,
            Err(error) => {
                warnings.push(error);
                Blacklist::default()
            }
        };
        let modules = match root.modules()? {
            Some((path, file)) => modules::parse(&path, file)?,
            None => Vec::new(),
        };
        Ok(Self { functions, sites, blacklist, modules, warnings })
    }

    /// All function symbols, aliases and duplicates included.
    pub fn functions(&self) -> impl Iterator<Item = Function<'_>> {
        self.functions.iter()
    }

    /// The address of the ftrace record of the function at `address`: what a kprobe-multi link wants. None
    /// where the function can't be traced: inlined, `__init`, `notrace`, or written in assembly.
    pub fn site_of(&self, address: u64) -> Option<u64> {
        let at = self.sites.partition_point(|&site| site < address);
        self.sites.get(at).copied().filter(|site| site - address <= MAX_ENTRY_OFFSET)
    }

    /// How many functions ftrace can hook.
    pub fn traceable(&self) -> usize {
        self.sites.len()
    }

    /// Where probes are forbidden.
    pub fn blacklist(&self) -> &Blacklist {
        &self.blacklist
    }

    /// Whether `module` is loaded, with `-` and `_` the same.
    pub fn has_module(&self, module: &[u8]) -> bool {
        let plain = |name: &[u8]| name.iter().map(|&b| if b == b'-' { b'_' } else { b }).collect::<Vec<_>>();
        self.modules.iter().any(|loaded| plain(loaded) == plain(module))
    }

    /// What could not be read and was done without.
    pub fn warnings(&self) -> &[Error] {
        &self.warnings
    }
}
