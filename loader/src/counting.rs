//! A session that counts calls: the counting program, loaded for a set of targets and attached to them.

use std::{
    io,
    os::fd::AsFd,
    path::Path,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use probe_ebpf::{
    COUNT_PROGRAM, COUNT_SINGLE_PROGRAM, FIRST_SLOT, HITS_MAP, LAYOUT_SYMBOL, LOST_SLOT, Layout, SITES_MAP,
    Site,
};

use crate::{
    attach::{
        Attached, Backend,
        multi::{self, Answer},
        single::{self, Places},
    },
    error::{Error, ErrorKind, Result},
    plan::{Rejection, Target},
    program::{Program, Settings},
    site_table::SiteTable,
    sys::{BPF_TRACE_KPROBE_MULTI, Kernel, Mapping, ProgramInfo},
};

/// The object that `cargo xtask ebpf` builds from `probe-ebpf`.
pub const COUNTING_OBJECT: &[u8] = {
    // The ELF parser wants the headers aligned, which a plain `include_bytes!` does not promise.
    #[repr(C, align(8))]
    struct Aligned<T: ?Sized>(T);
    const OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!("../../probe-ebpf/fastprobe.bpf.o"));
    &OBJECT.0
};

/// The global that sets how much the program logs, and the level of errors: see `aya_log_common::Level`.
const LOG_LEVEL_SYMBOL: &str = "AYA_LOG_LEVEL";
const LOG_NOTHING: u8 = 0;
const LOG_ERRORS: u8 = 1;

/// What a program for a perf event is loaded with.
const NO_ATTACH_TYPE: u32 = 0;

/// How long the kernel's parts took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timings {
    /// Maps created and filled, program verified.
    pub load: Duration,
    /// The link made: the kernel finds each record and rewrites the functions' first instructions. Where some were
    /// refused, the search for them, too. Or a kprobe made for each function, and all of them armed.
    pub link: Duration,
}

/// Hits that happened and were not counted. Each is a lower bound: the kernel does not see them all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Misses {
    /// Dropped by the link, since an eBPF program was running on that CPU, none before 6.7; or by the kprobes, since
    /// one was under way there.
    pub missed: Option<u64>,
    /// Dropped by the program for the same reason.
    pub recursion: u64,
    /// Counted, but for no function: the program found no slot. A fault of fastprobe's if it isn't 0.
    pub lost: u64,
}

impl Misses {
    /// How many hits were dropped, at least: before the program and by it; a link's may be the
    /// same ones as the program's.
    pub fn at_least(self) -> u64 {
        self.missed.unwrap_or(0).max(self.recursion)
    }
}

/// The counting program, loaded for a set of targets and attached to none.
pub struct Loaded<'k> {
    program: Program,
    hits: Mapping,
    slots_per_cpu: usize,
    /// The places of the targets' ftrace records.
    sites: Vec<u64>,
    took: Duration,
    kernel: &'k dyn Kernel,
}

/// What came of a link over all targets.
pub enum Attempt<'k> {
    /// It counts.
    Counting(Counting<'k>),
    /// The kernel refused a target or more, and does not say which.
    Refused(Loaded<'k>, io::Error),
}

/// The counting program, attached. Dropped, it is detached and gone.
pub struct Counting<'k> {
    // The order of the fields is that of the drop: first the links.
    attached: Attached,
    program: Program,
    hits: Mapping,
    slots_per_cpu: usize,
    /// The places of the targets that are attached to, ascending.
    places: Vec<usize>,
    timings: Timings,
    kernel: &'k dyn Kernel,
}

impl<'k> Loaded<'k> {
    /// Loads the program for `targets` on a machine with `cpus` possible CPUs. With `log_errors` the program
    /// reports its own faults through aya-log.
    ///
    /// # Errors
    ///
    /// Those of [`Program::load`].
    pub fn new(
        kernel: &'k dyn Kernel,
        targets: &[Target<'_>],
        cpus: usize,
        log_errors: bool,
    ) -> Result<Self> {
        let addresses: Vec<_> = targets.iter().map(|target| target.function.address).enumerate().collect();
        let sites = targets.iter().map(|target| target.site).collect();
        Self::with(kernel, Backend::Multi, sites, &addresses, cpus, log_errors)
    }

    /// Loads the program of `backend` for functions at `sites`, which find themselves by `addresses`: the number of a
    /// function, and an address that its hits come with.
    fn with(
        kernel: &'k dyn Kernel,
        backend: Backend,
        sites: Vec<u64>,
        addresses: &[(usize, u64)],
        cpus: usize,
        log_errors: bool,
    ) -> Result<Self> {
        let started = Instant::now();
        let table = SiteTable::new(sites.len(), addresses)?;
        let slots_per_cpu = table.layout.slots_per_cpu as usize;
        let counters = u32::try_from(slots_per_cpu * cpus).map_err(|_| {
            let message = format!("too many counters: {} functions on {cpus} CPUs", sites.len());
            Error::new(ErrorKind::Kernel, message).with_hint("set --max-functions lower")
        })?;
        let program = load(kernel, backend, &table, counters, log_errors)?;
        fill(kernel, &program, &table.places)?;
        let hits = map_memory(kernel, &program, HITS_MAP, counters as usize * size_of::<u64>())?;
        Ok(Self { program, hits, slots_per_cpu, sites, took: started.elapsed(), kernel })
    }

    /// Attaches to all targets, or to none.
    ///
    /// # Errors
    ///
    /// Those of [`multi::to_all`].
    pub fn attach(self) -> Result<Attempt<'k>> {
        let started = Instant::now();
        Ok(match multi::to_all(self.kernel, self.program.as_fd(), &self.sites)? {
            Answer::Attached(attached) => Attempt::Counting(self.counting(attached, started.elapsed())),
            Answer::Refused(error) => Attempt::Refused(self, error),
        })
    }

    /// Attaches to all targets but those that the kernel refuses; see [`multi::to_all_but_refused`].
    ///
    /// # Errors
    ///
    /// Those of [`multi::to_all_but_refused`].
    pub fn attach_but_refused(
        self,
        known_good: Option<u64>,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Counting<'k>> {
        let started = Instant::now();
        let program = self.program.as_fd();
        let attached = multi::to_all_but_refused(self.kernel, program, &self.sites, known_good, interrupted)?;
        Ok(self.counting(attached, started.elapsed()))
    }

    fn counting(self, attached: Attached, link: Duration) -> Counting<'k> {
        let mut rejected = attached.rejected.iter().map(|(place, _)| *place).peekable();
        let places = (0..self.sites.len()).filter(|place| rejected.next_if_eq(place).is_none()).collect();
        let Self { program, hits, slots_per_cpu, took: load, kernel, .. } = self;
        Counting { attached, program, hits, slots_per_cpu, places, timings: Timings { load, link }, kernel }
    }
}

impl<'k> Counting<'k> {
    /// Loads the program for `targets` and attaches it to all that the kernel takes: [`Loaded::new`] and what
    /// follows it, in one call.
    ///
    /// # Errors
    ///
    /// Those of [`Loaded::new`] and [`Loaded::attach_but_refused`].
    pub fn start(
        kernel: &'k dyn Kernel,
        targets: &[Target<'_>],
        cpus: usize,
        log_errors: bool,
    ) -> Result<Self> {
        match Loaded::new(kernel, targets, cpus, log_errors)?.attach()? {
            Attempt::Counting(counting) => Ok(counting),
            Attempt::Refused(loaded, _) => loaded.attach_but_refused(None, &|| false),
        }
    }

    /// Loads the program and attaches it to a kprobe for each function, through tracefs in that folder, but those that
    /// the kernel refuses. The functions have their [`Places`] in the targets' order. Between two of them `interrupted`
    /// is asked.
    ///
    /// # Errors
    ///
    /// Those of [`Program::load`] and [`single::attach`].
    pub fn start_single(
        kernel: &'k dyn Kernel,
        tracefs: &Path,
        functions: &[Places],
        cpus: usize,
        log_errors: bool,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Self> {
        let sites: Vec<u64> = functions.iter().map(|places| places.site).collect();
        let behind = functions.iter().enumerate().filter_map(|(n, places)| Some((n, places.behind?)));
        let addresses: Vec<_> = sites.iter().copied().enumerate().chain(behind).collect();
        let loaded = Loaded::with(kernel, Backend::Single, sites, &addresses, cpus, log_errors)?;
        let started = Instant::now();
        let attached = single::attach(kernel, tracefs, loaded.program.as_fd(), functions, interrupted)?;
        Ok(loaded.counting(attached, started.elapsed()))
    }

    /// The targets that the kernel would not attach to, by their places.
    pub fn rejected(&self) -> &[(usize, Rejection)] {
        &self.attached.rejected
    }

    /// How often the kernel was asked for a link or a probe.
    pub fn attempts(&self) -> usize {
        self.attached.attempts
    }

    /// The way it is attached.
    pub fn backend(&self) -> Backend {
        self.attached.backend()
    }

    /// How long it took to get here.
    pub fn timings(&self) -> Timings {
        self.timings
    }

    /// The hits so far of each target that is attached to, in the targets' order.
    pub fn counts(&self) -> Vec<u64> {
        let mut counts = vec![0; self.places.len()];
        for cpu in self.hits.words().chunks_exact(self.slots_per_cpu) {
            let slots = &cpu[FIRST_SLOT as usize..];
            for (count, place) in counts.iter_mut().zip(&self.places) {
                *count += slots[*place].load(Ordering::Relaxed);
            }
        }
        counts
    }

    /// The hits so far that no counter shows.
    ///
    /// # Errors
    ///
    /// `Kernel` where it can't be asked.
    pub fn misses(&self) -> Result<Misses> {
        let missed = self.attached.missed(self.kernel)?;
        let recursion = self.program.info(self.kernel)?.recursion_misses;
        let per_cpu = self.hits.words().chunks_exact(self.slots_per_cpu);
        let lost = per_cpu.map(|cpu| cpu[LOST_SLOT as usize].load(Ordering::Relaxed)).sum();
        Ok(Misses { missed, recursion, lost })
    }

    /// What the kernel tells of the program.
    ///
    /// # Errors
    ///
    /// `Kernel` where it can't be asked.
    pub fn program_info(&self) -> Result<ProgramInfo> {
        self.program.info(self.kernel)
    }

    /// Detaches, and says how long the kernel took. The counters can be read as long as the result lives.
    pub fn detach(self) -> (Detached, Duration) {
        let started = Instant::now();
        drop(self.attached);
        let took = started.elapsed();
        (Detached { hits: self.hits }, took)
    }
}

/// The counters of a session that has ended.
#[derive(Debug)]
pub struct Detached {
    hits: Mapping,
}

impl Detached {
    /// All hits of all functions, those without a slot included.
    pub fn total(&self) -> u64 {
        self.hits.words().iter().map(|hits| hits.load(Ordering::Relaxed)).sum()
    }
}

fn load(
    kernel: &dyn Kernel,
    backend: Backend,
    table: &SiteTable,
    counters: u32,
    log_errors: bool,
) -> Result<Program> {
    let (name, attach_type) = match backend {
        Backend::Multi => (COUNT_PROGRAM, BPF_TRACE_KPROBE_MULTI),
        Backend::Single => (COUNT_SINGLE_PROGRAM, NO_ATTACH_TYPE),
    };
    let log_level = [if log_errors { LOG_ERRORS } else { LOG_NOTHING }];
    let settings = Settings {
        attach_type,
        max_entries: &[(SITES_MAP, table.places.len() as u32), (HITS_MAP, counters)],
        globals: &[(LAYOUT_SYMBOL, &layout_bytes(&table.layout)), (LOG_LEVEL_SYMBOL, &log_level)],
    };
    Program::load(kernel, COUNTING_OBJECT, name, &settings)
}

/// The layout as the program reads it: `#[repr(C)]`, native byte order, no padding.
fn layout_bytes(layout: &Layout) -> [u8; size_of::<Layout>()] {
    let mut bytes = [0; size_of::<Layout>()];
    bytes[..8].copy_from_slice(&layout.multiplier.to_ne_bytes());
    bytes[8..12].copy_from_slice(&layout.shift.to_ne_bytes());
    bytes[12..].copy_from_slice(&layout.slots_per_cpu.to_ne_bytes());
    bytes
}

/// Writes the hash table into its map through shared memory: a system call for each place would take longer
/// than the attach.
fn fill(kernel: &dyn Kernel, program: &Program, places: &[Site]) -> Result<()> {
    let memory = map_memory(kernel, program, SITES_MAP, size_of_val(places))?;
    for (words, site) in memory.words().chunks_exact(2).zip(places).filter(|(_, site)| site.address != 0) {
        words[0].store(site.address, Ordering::Relaxed);
        words[1].store(second_word(site), Ordering::Relaxed);
    }
    Ok(())
}

/// The slot and the padding behind it, as they lie in memory.
fn second_word(site: &Site) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&site.slot.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

fn map_memory(kernel: &dyn Kernel, program: &Program, name: &str, bytes: usize) -> Result<Mapping> {
    let map = program
        .map(name)
        .ok_or_else(|| Error::new(ErrorKind::Usage, format!("the eBPF object has no map called {name}")))?;
    kernel
        .map_memory(map, bytes)
        .map_err(|e| Error::new(ErrorKind::Kernel, format!("can't map the memory of {name}")).with_source(e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{sys::Fake, tables::Function};

    fn targets(addresses: &[u64]) -> Vec<Target<'static>> {
        let function = |address| Function { address, name: b"f", module: None };
        addresses.iter().map(|&a| Target { function: function(a), site: a + 4 }).collect()
    }

    fn start<'k>(fake: &'k Fake, addresses: &[u64], cpus: usize) -> Result<Counting<'k>> {
        Counting::start(fake, &targets(addresses), cpus, true)
    }

    #[test]
    fn counters_of_all_cpus_are_summed_and_lost_hits_kept_apart() {
        let fake = Fake { missed: Some(5), ..Fake::default() };
        let counting = start(&fake, &[0x1000, 0x2000, 0x3000], 2).unwrap();
        assert_eq!(*fake.links.borrow(), [[0x1004, 0x2004, 0x3004]]);
        for cpu in counting.hits.words().chunks_exact(counting.slots_per_cpu) {
            for (word, hits) in cpu.iter().zip([1, 10, 0, 30]) {
                word.store(hits, Ordering::Relaxed);
            }
        }
        assert_eq!(counting.counts(), [20, 0, 60]);
        assert_eq!(counting.misses().unwrap(), Misses { missed: Some(5), recursion: 5, lost: 2 });
        assert_eq!(counting.detach().0.total(), 82);
    }

    #[test]
    fn what_is_refused_is_named_and_the_others_keep_their_counters() {
        let fake = Fake { bad_sites: vec![0x1004, 0x3004], ..Fake::default() };
        let counting = start(&fake, &[0x1000, 0x2000, 0x3000, 0x4000], 1).unwrap();
        assert_eq!(*fake.links.borrow().last().unwrap(), [0x2004, 0x4004]);
        for (word, hits) in counting.hits.words().iter().zip([0, 1, 2, 3, 4]) {
            word.store(hits, Ordering::Relaxed);
        }
        assert_eq!(counting.counts(), [2, 4]);
        let rejected: Vec<_> = counting.rejected().iter().map(|(place, why)| (*place, why.errno)).collect();
        assert_eq!(rejected, [(0, libc::EINVAL), (2, libc::EINVAL)]);
    }

    #[test]
    fn the_map_holds_the_table_as_the_program_reads_it() {
        let fake = Fake::default();
        let counting = start(&fake, &[0x1000], 1).unwrap();
        let map = counting.program.map(SITES_MAP).unwrap();
        let memory = Mapping::new(map, 64 * 16).unwrap();
        let words: Vec<u64> = memory.words().iter().map(|w| w.load(Ordering::Relaxed)).collect();
        let place = words.chunks(2).find(|place| place[0] == 0x1000).unwrap();
        assert_eq!(u32::from_ne_bytes(place[1].to_ne_bytes()[..4].try_into().unwrap()), FIRST_SLOT);
    }

    #[test]
    fn a_failed_link_leaves_nothing_behind_and_says_why() {
        let fake = Fake { link_errno: Some(libc::EOPNOTSUPP), ..Fake::default() };
        let Err(error) = start(&fake, &[0x1000], 1) else { panic!("it attached") };
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}
