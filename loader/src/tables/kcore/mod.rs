//! The tables from the kernel's memory, as the kernel itself keeps them: milliseconds, where reading the text
//! files takes ten times what the attach takes. Needs root and a kernel that isn't locked down.

mod blacklist;
mod btf;
mod btf_file;
mod ftrace;
mod heads;
mod kallsyms;
mod layout;
mod memory;
mod modules;
mod tokens;
mod vmcoreinfo;

use std::{
    thread,
    time::{Duration, Instant},
};

use btf_file::BtfFile;
use heads::HeadFilter;
pub use kallsyms::CompressedSymbols;
use layout::Structures;
use memory::odd;
pub use memory::{Kcore, Memory};
use modules::Module;
use tokens::Expander;
pub use vmcoreinfo::VmCoreInfo;

use super::{Blacklist, files::Root, is_function_type, matches::MatchSink, symbols::Function};
use crate::{
    error::{Error, ErrorKind, Result},
    pattern::{CORE, Matcher},
};

/// What the kernel's memory says.
#[derive(Debug)]
pub struct KcoreTables {
    /// The core kernel's symbols.
    pub core: CompressedSymbols,
    /// The loaded modules and their symbols.
    pub modules: Vec<Module>,
    /// The addresses of the ftrace records, ascending.
    pub sites: Vec<u64>,
    /// Where probes are forbidden.
    pub blacklist: Blacklist,
    /// How the reading went.
    pub steps: Vec<Step>,
}

/// A step of the reading: its name, how long it took, and how many reads of `/proc/kcore` it needed.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// What was read.
    pub name: &'static str,
    /// How long it took.
    pub took: Duration,
    /// Reads of `/proc/kcore`.
    pub reads: usize,
}

/// Reads all tables through `/proc/kcore` below `root`.
///
/// # Errors
///
/// `Unsupported`, `Permission` or `Io` where it can't be read, `Malformed` where anything is not as in the kernels
/// that are known. Each is a reason to read the text files.
pub fn read(root: &Root) -> Result<KcoreTables> {
    thread::scope(|scope| {
        // Needed only once the symbols are there, and as slow.
        let structures = scope.spawn(|| Structures::from_btf(&mut BtfFile::open(&root.btf())?));
        let mut clock = Clock::start();
        let kcore = Kcore::open(&root.kcore())?;
        clock.step("headers", &kcore);
        let core = CompressedSymbols::read(&kcore, kcore.info())?;
        clock.step("symbols", &kcore);
        let [modules, sites, blacklist] =
            core.find([b"modules", b"ftrace_pages_start", b"kprobe_blacklist"])?;
        let address = |symbol: Option<usize>, name: &str| {
            symbol.map(|index| core.address(index)).ok_or_else(|| odd(format!("no symbol {name}")))
        };
        clock.step("places of the other tables", &kcore);
        let structures =
            structures.join().map_err(|_| Error::new(ErrorKind::Io, "the thread that read BTF died"))??;
        clock.step("BTF, from here on", &kcore);
        let modules = match modules {
            Some(head) => modules::read(&kcore, &structures, core.address(head))?,
            // A kernel without modules has no list of them.
            None => Vec::new(),
        };
        clock.step("modules", &kcore);
        let sites = ftrace::read(&kcore, &structures.ftrace, address(sites, "ftrace_pages_start")?)?;
        clock.step("ftrace records", &kcore);
        let blacklist =
            blacklist::read(&kcore, &structures.blacklist, address(blacklist, "kprobe_blacklist")?)?;
        clock.step("kprobe blacklist", &kcore);
        Ok(KcoreTables { core, modules, sites, blacklist, steps: clock.steps })
    })
}

/// Keeps the steps.
struct Clock {
    last: Instant,
    reads: usize,
    steps: Vec<Step>,
}

impl Clock {
    fn start() -> Self {
        Self { last: Instant::now(), reads: 0, steps: Vec::new() }
    }

    fn step(&mut self, name: &'static str, kcore: &Kcore) {
        let (now, reads) = (Instant::now(), kcore.reads());
        self.steps.push(Step { name, took: now - self.last, reads: reads - self.reads });
        (self.last, self.reads) = (now, reads);
    }
}

impl KcoreTables {
    /// Gives all functions that match to `sink`.
    ///
    /// # Errors
    ///
    /// `Malformed` for a name that does not expand; what `sink` fails with.
    pub fn matching(&self, matcher: &mut Matcher<'_>, sink: &mut MatchSink<'_>) -> Result<()> {
        if matcher.may_match_in(CORE) {
            let heads = matcher.heads(CORE);
            let filter = HeadFilter::new(self.core.tokens(), heads.as_deref(), is_function_type);
            let mut expander = Expander::new();
            self.core.for_each(|index, codes| {
                if !filter.admits(self.core.tokens(), codes) {
                    return Ok(());
                }
                let (_, name) = expand(&mut expander, &self.core, index, codes)?;
                if matcher.matches(CORE, name) {
                    sink.push(Function { address: self.core.address(index), name, module: None })?;
                }
                Ok(())
            })?;
        }
        for module in &self.modules {
            if !matcher.may_match_in(&module.name) {
                continue;
            }
            let heads = matcher.heads(&module.name);
            module.for_each_function(|address, name| {
                let admitted = heads.as_ref().is_none_or(|heads| heads.iter().any(|h| name.starts_with(h)));
                if admitted && matcher.matches(&module.name, name) {
                    sink.push(Function { address, name, module: Some(&module.name) })?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Calls `each` with type letter, function and nothing left out, data included.
    ///
    /// # Errors
    ///
    /// `Malformed` for a name that does not expand; what `each` fails with.
    pub fn for_each_symbol(&self, mut each: impl FnMut(u8, Function<'_>) -> Result<()>) -> Result<()> {
        let mut expander = Expander::new();
        self.core.for_each(|index, codes| {
            let (kind, name) = expand(&mut expander, &self.core, index, codes)?;
            each(kind, Function { address: self.core.address(index), name, module: None })
        })?;
        for module in &self.modules {
            module.for_each(|kind, address, name| {
                each(kind, Function { address, name, module: Some(&module.name) })
            })?;
        }
        Ok(())
    }
}

fn expand<'e>(
    expander: &'e mut Expander,
    core: &CompressedSymbols,
    index: usize,
    codes: &[u8],
) -> Result<(u8, &'e [u8])> {
    expander.expand(core.tokens(), codes).ok_or_else(|| odd(format!("symbol {index} has no name of its own")))
}
