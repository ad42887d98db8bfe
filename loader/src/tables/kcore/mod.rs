//! The tables from the kernel's memory, as the kernel itself keeps them: milliseconds, where reading the text
//! files takes ten times what the attach takes. Needs root and a kernel that isn't locked down.

mod blacklist;
mod btf;
mod btf_file;
#[cfg(test)]
mod fake;
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
#[cfg(test)]
pub use fake::FakeKernel;
use heads::HeadFilter;
pub use kallsyms::{AddressRule, CompressedSymbols, Parts};
use layout::Structures;
pub(super) use memory::odd;
pub use memory::{Kcore, Memory};
pub use modules::Module;
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
    with_kcore(root, |kcore, structures, mut clock| {
        let core = CompressedSymbols::read(kcore, kcore.info())?;
        clock.step("symbols", kcore.reads());
        read_rest(kcore, core, Vec::new(), structures, clock)
    })
}

/// Brings tables up to date that were read earlier in this boot: the core's symbols never change, and of the
/// modules those are given that are loaded still.
///
/// # Errors
///
/// Those of [`read`].
pub fn refresh(root: &Root, core: CompressedSymbols, modules: Vec<Module>) -> Result<KcoreTables> {
    with_kcore(root, |kcore, structures, clock| read_rest(kcore, core, modules, structures, clock))
}

/// Opens the kernel's memory, while another thread looks for the layout of its structures: that is needed only
/// once the symbols are there, and takes as long.
fn with_kcore(
    root: &Root,
    work: impl FnOnce(&Kcore, &mut dyn FnMut() -> Result<Structures>, Clock) -> Result<KcoreTables>,
) -> Result<KcoreTables> {
    thread::scope(|scope| {
        let mut structures = Some(scope.spawn(|| Structures::from_btf(&mut BtfFile::open(&root.btf())?)));
        let mut clock = Clock::start();
        let kcore = Kcore::open(&root.kcore())?;
        clock.step("headers", kcore.reads());
        let mut structures = || {
            let joined = structures.take().and_then(|thread| thread.join().ok());
            joined.ok_or_else(|| Error::new(ErrorKind::Io, "the thread that read BTF died"))?
        };
        work(&kcore, &mut structures, clock)
    })
}

/// Everything but the core's symbols, which lead to it.
fn read_rest(
    memory: &dyn Memory,
    core: CompressedSymbols,
    known: Vec<Module>,
    structures: &mut dyn FnMut() -> Result<Structures>,
    mut clock: Clock,
) -> Result<KcoreTables> {
    let [modules, sites, blacklist] = core.find([b"modules", b"ftrace_pages_start", b"kprobe_blacklist"])?;
    let address = |symbol: Option<usize>, name: &str| {
        symbol.map(|index| core.address(index)).ok_or_else(|| odd(format!("no symbol {name}")))
    };
    clock.step("places of the other tables", memory.reads());
    let structures = structures()?;
    clock.step("BTF, from here on", memory.reads());
    let modules = match modules {
        Some(head) => modules::read(memory, &structures, core.address(head), known)?,
        // A kernel without modules has no list of them.
        None => Vec::new(),
    };
    clock.step("modules", memory.reads());
    let sites = ftrace::read(memory, &structures.ftrace, address(sites, "ftrace_pages_start")?)?;
    clock.step("ftrace records", memory.reads());
    let blacklist = blacklist::read(memory, &structures.blacklist, address(blacklist, "kprobe_blacklist")?)?;
    clock.step("kprobe blacklist", memory.reads());
    Ok(KcoreTables { core, modules, sites, blacklist, steps: clock.steps })
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

    fn step(&mut self, name: &'static str, reads: usize) {
        let now = Instant::now();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        pattern::{PatternSet, PatternText, Syntax},
        tables::Matches,
    };

    fn tables(kernel: &FakeKernel) -> Result<KcoreTables> {
        kernel.read()
    }

    fn matches(tables: &KcoreTables, pattern: &str) -> Matches {
        let set = PatternSet::new(Syntax::Glob, &[PatternText::argument(pattern)], &[], &[]).unwrap();
        let mut sink = MatchSink::new(&tables.sites, &tables.blacklist);
        tables.matching(&mut set.matcher(), &mut sink).unwrap();
        sink.finish()
    }

    fn named(tables: &KcoreTables, pattern: &str) -> Vec<String> {
        let name = |m: crate::tables::Match<'_>| String::from_utf8_lossy(m.function.name).into_owned();
        matches(tables, pattern).iter().map(name).collect()
    }

    #[test]
    fn a_kernel_is_read_under_each_address_rule() {
        for kernel in [FakeKernel::self_relative(), FakeKernel::relative(), FakeKernel::percpu()] {
            let tables = tables(&kernel).unwrap();
            let mut all = Vec::new();
            tables
                .for_each_symbol(|kind, f| {
                    all.push((kind, f.address, f.name.to_vec(), f.module.map(<[u8]>::to_vec)));
                    Ok(())
                })
                .unwrap();
            assert_eq!(all, kernel.symbols());
            assert_eq!(tables.sites, kernel.sites());
            assert_eq!(tables.blacklist.ranges(), kernel.blacklist());
            assert_eq!(tables.steps.len(), 6);
        }
    }

    #[test]
    fn patterns_choose_from_core_and_modules() {
        let tables = tables(&FakeKernel::self_relative()).unwrap();
        assert_eq!(named(&tables, "kvm*"), ["kvm_core", "kvm_init", "kvm_exit"]);
        assert_eq!(named(&tables, "kvm:*"), ["kvm_init", "kvm_exit"]);
        assert_eq!(named(&tables, "*_i*"), ["kvm_init"]);
        assert_eq!(named(&tables, "vmlinux:*"), ["_stext", "vfs_read", "kvm_core"]);
        let facts: Vec<_> =
            matches(&tables, "kvm*").iter().map(|m| (m.facts.site, m.facts.forbidden)).collect();
        let core = FakeKernel::CORE + 0x300;
        assert_eq!(facts, [(Some(core + 4), true), (Some(FakeKernel::MODULE + 0x104), false), (None, false)]);
    }

    #[test]
    fn reads_are_few_and_large() {
        let tables = tables(&FakeKernel::percpu()).unwrap();
        let reads = |name: &str| tables.steps.iter().find(|step| step.name == name).unwrap().reads;
        // The size, the tables, the base; the list and two for the module; a variable and two for each group.
        assert_eq!((reads("symbols"), reads("modules"), reads("ftrace records")), (3, 3, 5));
    }

    #[test]
    fn what_is_known_of_core_and_modules_is_not_read_again() {
        let kernel = FakeKernel::self_relative();
        let KcoreTables { core, modules, sites, .. } = kernel.tables();
        let again = kernel.refresh(core, modules).unwrap();
        assert_eq!(again.sites, sites);
        assert_eq!(named(&again, "kvm*"), ["kvm_core", "kvm_init", "kvm_exit"]);
        let reads = |name: &str| again.steps.iter().find(|step| step.name == name).unwrap().reads;
        assert_eq!(reads("modules"), 2);
        let KcoreTables { core, .. } = kernel.tables();
        assert_eq!(named(&kernel.refresh(core, Vec::new()).unwrap(), "kvm:*"), ["kvm_init", "kvm_exit"]);
    }

    #[test]
    fn lists_that_run_in_a_circle_are_odd() {
        let head = |kernel: &FakeKernel, name: &str| {
            kernel.symbols().iter().find(|symbol| symbol.2 == name.as_bytes()).unwrap().1
        };
        for list in ["modules", "kprobe_blacklist"] {
            let mut kernel = FakeKernel::self_relative();
            // The first entry points at itself.
            let first = kernel.memory.word(head(&kernel, list)).unwrap();
            kernel.memory.put(first, &first.to_ne_bytes());
            assert!(tables(&kernel).unwrap_err().to_string().contains("without an end"), "{list}");
        }
        let mut kernel = FakeKernel::self_relative();
        let group = kernel.memory.word(head(&kernel, "ftrace_pages_start")).unwrap();
        kernel.memory.put(group, &group.to_ne_bytes());
        assert!(tables(&kernel).unwrap_err().to_string().contains("more ftrace records"));
    }

    #[test]
    fn damaged_memory_is_an_error_or_other_tables_and_never_a_panic() {
        let whole = FakeKernel::self_relative();
        for (segment, at) in whole.memory.places() {
            for flip in [0x01, 0x80, 0xff] {
                let mut kernel = FakeKernel::self_relative();
                kernel.memory.flip(segment, at, flip);
                if let Ok(tables) = tables(&kernel) {
                    let _whatever = tables.for_each_symbol(|_, _| Ok(()));
                }
            }
        }
        for name in ["kallsyms_names", "kallsyms_num_syms", "kallsyms_offsets", "_stext"] {
            for address in [0, 1, u64::MAX, u64::MAX - 511, FakeKernel::CORE + 8] {
                let mut kernel = FakeKernel::self_relative();
                kernel.info = kernel.info_with(name, address);
                assert!(tables(&kernel).is_err(), "{name} at {address:#x}");
            }
        }
    }
}
