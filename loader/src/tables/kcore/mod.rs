//! The tables from the kernel's memory, as the kernel itself keeps them: milliseconds, where reading the text
//! files takes ten times what the attach takes. Needs root and a kernel that isn't locked down.

mod blacklist;
mod btf;
mod btf_file;
mod by_name;
#[cfg(test)]
mod fake;
mod ftrace;
mod heads;
mod kallsyms;
mod layout;
mod memory;
mod modules;
mod recording;
mod vmcoreinfo;

use std::{
    collections::HashSet,
    iter, thread,
    time::{Duration, Instant},
};

use btf_file::BtfFile;
pub use by_name::ByName;
#[cfg(test)]
pub use fake::{FakeKernel, Symbol};
pub use heads::MAX_COMPARED;
pub use kallsyms::{AddressRule, CompressedSymbols, Parts};
use layout::Structures;
pub use memory::{Kcore, Memory};
pub use modules::Module;
use recording::Recording;
use serde::{Deserialize, Serialize};
pub use vmcoreinfo::VmCoreInfo;

use super::{
    Blacklist,
    files::Root,
    matches::{MatchSink, Matches},
    odd,
    symbols::Function,
};
use crate::{
    error::{Error, ErrorKind, Result},
    pattern::{CORE, Matcher},
};

/// What the kernel's memory says.
#[derive(Debug)]
pub struct KcoreTables {
    /// The core kernel's symbols.
    pub core: CompressedSymbols,
    /// Where the lists of everything else begin.
    pub lists: Lists,
    /// Everything else.
    pub rest: Rest,
}

/// Where lists begin. That never changes while a kernel runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lists {
    /// `modules`; none in a kernel that can't load any.
    pub modules: Option<u64>,
    /// `ftrace_pages_start`
    pub ftrace: u64,
    /// `kprobe_blacklist`
    pub blacklist: u64,
}

/// What changes when a module comes or goes.
#[derive(Debug)]
pub struct Rest {
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

/// Tells of a fault in the kernel's memory which file that is.
pub fn unusable(root: &Root, error: Error) -> Error {
    if error.kind() != ErrorKind::Malformed {
        return error;
    }
    odd(format!("can't use the tables in the kernel's memory, {}", root.kcore().display()))
        .with_source(error)
        .with_hint("--source text reads the kernel's text files instead")
}

/// Reads all tables through `/proc/kcore` below `root`; with the kernel's own order of its names, if many are to be
/// looked up.
///
/// # Errors
///
/// `Unsupported`, `Permission` or `Io` where it can't be read, `Malformed` where anything is not as in the kernels
/// that are known. Each is a reason to read the text files.
pub fn read(root: &Root, with_order: bool) -> Result<KcoreTables> {
    with_kcore(root, |kcore, structures, clock| read_all(kcore, kcore.info(), with_order, structures, clock))
}

/// What changed since tables were read earlier in this boot: of the modules those that are not `known`.
///
/// # Errors
///
/// Those of [`read`].
pub fn read_changed(root: &Root, lists: &Lists, known: &HashSet<&[u8]>) -> Result<Rest> {
    with_kcore(root, |kcore, structures, clock| read_rest(kcore, lists, known, structures, clock))
}

/// A small core file of all that [`read`] looks at, its order of the names included: put where `/proc/kcore` is, it
/// gives the same tables. It holds addresses that kernels keep secret.
///
/// # Errors
///
/// Those of [`read`].
pub fn record(root: &Root) -> Result<Vec<u8>> {
    with_kcore(root, |kcore, structures, clock| {
        let recording = Recording::of(kcore);
        read_all(&recording, kcore.info(), true, structures, clock)?;
        recording.core_file(kcore.info())
    })
}

/// Opens the kernel's memory, while another thread looks for the layout of its structures: that is needed only
/// once the symbols are there, and takes as long.
fn with_kcore<T>(
    root: &Root,
    work: impl FnOnce(&Kcore, &mut dyn FnMut() -> Result<Structures>, Clock) -> Result<T>,
) -> Result<T> {
    thread::scope(|scope| {
        let mut structures = Some(scope.spawn(|| layout_of(root)));
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

/// Whether BTF says where the members are that the tables are found by.
///
/// # Errors
///
/// `Unsupported` where the kernel has no BTF, `Permission` or `Io` where it can't be read, `Malformed` where a
/// structure is not as it is known.
pub fn check_btf(root: &Root) -> Result<()> {
    layout_of(root).map(drop)
}

fn layout_of(root: &Root) -> Result<Structures> {
    let layout = Structures::from_btf(&mut BtfFile::open(&root.btf())?);
    layout.map_err(|e| match e.kind() {
        ErrorKind::Malformed => odd(format!("in {}", root.btf().display())).with_source(e),
        _ => e,
    })
}

fn read_all(
    memory: &dyn Memory,
    info: &VmCoreInfo,
    with_order: bool,
    structures: &mut dyn FnMut() -> Result<Structures>,
    mut clock: Clock,
) -> Result<KcoreTables> {
    let core = CompressedSymbols::read(memory, info, with_order)?;
    clock.step("symbols", memory.reads());
    let lists = Lists::find(&core)?;
    clock.step("places of the other tables", memory.reads());
    let rest = read_rest(memory, &lists, &HashSet::new(), structures, clock)?;
    Ok(KcoreTables { core, lists, rest })
}

impl Lists {
    fn find(core: &CompressedSymbols) -> Result<Self> {
        let [modules, ftrace, blacklist] =
            core.find([b"modules", b"ftrace_pages_start", b"kprobe_blacklist"])?;
        let address = |symbol: Option<usize>, name: &str| {
            symbol.map(|index| core.address(index)).ok_or_else(|| odd(format!("no symbol {name}")))
        };
        Ok(Self {
            modules: modules.map(|index| core.address(index)),
            ftrace: address(ftrace, "ftrace_pages_start")?,
            blacklist: address(blacklist, "kprobe_blacklist")?,
        })
    }
}

/// Everything but the core's symbols, which lead to it.
fn read_rest(
    memory: &dyn Memory,
    lists: &Lists,
    known: &HashSet<&[u8]>,
    structures: &mut dyn FnMut() -> Result<Structures>,
    mut clock: Clock,
) -> Result<Rest> {
    let structures = structures()?;
    clock.step("BTF, from here on", memory.reads());
    let modules = match lists.modules {
        Some(head) => modules::read(memory, &structures, head, known)?,
        None => Vec::new(),
    };
    clock.step("modules", memory.reads());
    let sites = ftrace::read(memory, &structures.ftrace, lists.ftrace)?;
    clock.step("ftrace records", memory.reads());
    let blacklist = blacklist::read(memory, &structures.blacklist, lists.blacklist)?;
    clock.step("kprobe blacklist", memory.reads());
    Ok(Rest { modules, sites, blacklist, steps: clock.steps })
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
    /// All functions that match.
    ///
    /// # Errors
    ///
    /// `Malformed` for a name that does not expand.
    pub fn matching(&self, matcher: &mut Matcher<'_>) -> Result<Matches> {
        let names: Vec<&[u8]> = iter::once(CORE).chain(self.rest.modules.iter().map(|m| &*m.name)).collect();
        let reach = matcher.reach(&names);
        let mut sink = MatchSink::new(&self.rest.sites, &self.rest.blacklist);
        self.core.matching(&reach, matcher, &mut sink)?;
        for (module, search) in self.rest.modules.iter().zip(&reach.modules[1..]) {
            module.matching(*search, &reach, matcher, &mut sink)?;
        }
        Ok(sink.finish())
    }

    /// Calls `each` with type letter, function and nothing left out, data included.
    ///
    /// # Errors
    ///
    /// `Malformed` for a name that does not expand; what `each` fails with.
    pub fn for_each_symbol(&self, mut each: impl FnMut(u8, Function<'_>) -> Result<()>) -> Result<()> {
        self.core.for_each_symbol(|_, kind, function| each(kind, function))?;
        self.rest.for_each_symbol(each)
    }
}

impl Rest {
    /// Calls `each` with type letter and function of every symbol of a module.
    ///
    /// # Errors
    ///
    /// Those of [`Module::for_each`].
    pub fn for_each_symbol(&self, mut each: impl FnMut(u8, Function<'_>) -> Result<()>) -> Result<()> {
        for module in &self.modules {
            module.for_each(|kind, address, name| {
                each(kind, Function { address, name, module: Some(&module.name) })
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::{PatternSet, PatternText, Syntax};

    fn tables(kernel: &FakeKernel) -> Result<KcoreTables> {
        kernel.read()
    }

    fn matches(tables: &KcoreTables, pattern: &str) -> Matches {
        let set = PatternSet::new(Syntax::Glob, &[PatternText::argument(pattern)], &[], &[]).unwrap();
        tables.matching(&mut set.matcher()).unwrap()
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
            assert_eq!(tables.rest.sites, kernel.sites());
            assert_eq!(tables.rest.blacklist.ranges(), kernel.blacklist());
            assert_eq!(tables.rest.steps.len(), 6);
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
        let reads = |name: &str| tables.rest.steps.iter().find(|step| step.name == name).unwrap().reads;
        // The size, the tables, the base; the list and two for the module; a variable and two for each group.
        assert_eq!((reads("symbols"), reads("modules"), reads("ftrace records")), (3, 3, 5));
    }

    #[test]
    fn what_is_known_is_not_read_again() {
        let kernel = FakeKernel::self_relative();
        let KcoreTables { lists, rest, .. } = kernel.tables();
        let again = kernel.read_changed(&lists, &[&b"kvm"[..]].into()).unwrap();
        assert_eq!((again.sites, again.blacklist, again.modules.len()), (rest.sites, rest.blacklist, 0));
        let reads = again.steps.iter().find(|step| step.name == "modules").unwrap().reads;
        assert_eq!(reads, 2);
        let again = kernel.read_changed(&lists, &HashSet::new()).unwrap();
        assert_eq!(*again.modules[0].name, *b"kvm");
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
