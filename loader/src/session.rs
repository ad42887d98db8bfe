//! A session: the programs of an instrument, loaded for a set of targets and attached to them.

use std::{
    io,
    path::Path,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use probe_ebpf::{LAYOUT_SYMBOL, Layout, SITES_MAP, Site};

use crate::{
    attach::{
        Attached, Backend, Hook,
        multi::{self, Answer},
        single::{self, Places},
    },
    error::Result,
    filter::Filter,
    instrument::{Extent, Instrument, Step, map_memory},
    plan::{Rejection, Target},
    program::{Programs, Settings, Wanted},
    site_table::SiteTable,
    sys::{Kernel, ProgramInfo},
};

/// The global that sets how much the programs log, and the level of errors: see `aya_log_common::Level`.
const LOG_LEVEL_SYMBOL: &str = "AYA_LOG_LEVEL";
const LOG_NOTHING: u8 = 0;
const LOG_ERRORS: u8 = 1;

/// What a program for a perf event is loaded with.
const NO_ATTACH_TYPE: u32 = 0;

/// What holds for every instrument.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// CPUs that this machine may have: `aya::util::nr_cpus`.
    pub cpus: usize,
    /// The hits that count.
    pub filter: Filter,
    /// The programs report their own faults through aya-log.
    pub log_errors: bool,
}

impl Options {
    /// Every hit counts, and nothing is logged.
    pub fn new(cpus: usize) -> Self {
        Self { cpus, ..Self::default() }
    }
}

/// How long the kernel's parts took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timings {
    /// Maps created and filled, programs verified.
    pub load: Duration,
    /// The links made: the kernel finds each record and rewrites the functions' first instructions. Where some were
    /// refused, the search for them, too. Or a kprobe made for each function, and all of them armed.
    pub link: Duration,
}

/// Hits that happened and were not counted. Each is a lower bound: the kernel does not see them all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Misses {
    /// Dropped by the links, since an eBPF program was running on that CPU, none before 6.7; or by the kprobes, since
    /// one was under way there.
    pub missed: Option<u64>,
    /// Dropped by the programs for the same reason.
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

/// The programs of an instrument, loaded for a set of targets and attached to none.
pub struct Loaded<'k, I: Instrument> {
    programs: Programs,
    steps: Vec<Step>,
    data: I::Data,
    /// The places of the targets' ftrace records.
    sites: Vec<u64>,
    took: Duration,
    kernel: &'k dyn Kernel,
}

/// What came of a link over all targets.
pub enum Attempt<'k, I: Instrument> {
    /// It is there.
    Attached(Session<'k, I>),
    /// The kernel refused a target or more, and does not say which.
    Refused(Loaded<'k, I>, io::Error),
}

/// The programs of an instrument, attached. Dropped, they are detached and gone.
pub struct Session<'k, I: Instrument> {
    // The order of the fields is that of the drop: first the links.
    attached: Attached,
    programs: Programs,
    data: I::Data,
    /// The places of the targets that are attached to, ascending.
    places: Vec<usize>,
    timings: Timings,
    kernel: &'k dyn Kernel,
}

impl<'k, I: Instrument> Loaded<'k, I> {
    /// Loads the programs for `targets`.
    ///
    /// # Errors
    ///
    /// Those of [`Programs::load`].
    pub fn new(
        kernel: &'k dyn Kernel,
        instrument: &I,
        targets: &[Target<'_>],
        options: &Options,
    ) -> Result<Self> {
        let addresses: Vec<_> = targets.iter().map(|target| target.function.address).enumerate().collect();
        let sites = targets.iter().map(|target| target.site).collect();
        Self::with(kernel, instrument, Backend::Multi, sites, &addresses, options)
    }

    /// Loads the programs of `backend` for functions at `sites`, which find themselves by `addresses`: the number of a
    /// function, and an address that its hits come with.
    fn with(
        kernel: &'k dyn Kernel,
        instrument: &I,
        backend: Backend,
        sites: Vec<u64>,
        addresses: &[(usize, u64)],
        options: &Options,
    ) -> Result<Self> {
        let started = Instant::now();
        let table = SiteTable::new(sites.len(), addresses)?;
        let extent = Extent { slots: table.layout.slots_per_cpu as usize, cpus: options.cpus };
        let steps = instrument.steps(backend);
        let programs = load(kernel, instrument, backend, &steps, &table, extent, options)?;
        fill(kernel, &programs, &table.places)?;
        let data = instrument.data(kernel, &programs, extent)?;
        Ok(Self { programs, steps, data, sites, took: started.elapsed(), kernel })
    }

    /// Attaches to all targets, or to none.
    ///
    /// # Errors
    ///
    /// Those of [`multi::to_all`].
    pub fn attach(self) -> Result<Attempt<'k, I>> {
        let started = Instant::now();
        Ok(match multi::to_all(self.kernel, &self.hooks(), &self.sites)? {
            Answer::Attached(attached) => Attempt::Attached(self.session(attached, started.elapsed())),
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
    ) -> Result<Session<'k, I>> {
        let started = Instant::now();
        let hooks = self.hooks();
        let attached = multi::to_all_but_refused(self.kernel, &hooks, &self.sites, known_good, interrupted)?;
        Ok(self.session(attached, started.elapsed()))
    }

    fn hooks(&self) -> Vec<Hook<'_>> {
        let both = self.programs.fds().zip(&self.steps);
        both.map(|(program, step)| Hook { program, moment: step.moment }).collect()
    }

    fn session(self, attached: Attached, link: Duration) -> Session<'k, I> {
        let mut rejected = attached.rejected.iter().map(|(place, _)| *place).peekable();
        let places = (0..self.sites.len()).filter(|place| rejected.next_if_eq(place).is_none()).collect();
        let Self { programs, data, took: load, kernel, .. } = self;
        Session { attached, programs, data, places, timings: Timings { load, link }, kernel }
    }
}

impl<'k, I: Instrument> Session<'k, I> {
    /// Loads the programs for `targets` and attaches them to all that the kernel takes: [`Loaded::new`] and what
    /// follows it, in one call.
    ///
    /// # Errors
    ///
    /// Those of [`Loaded::new`] and [`Loaded::attach_but_refused`].
    pub fn start(
        kernel: &'k dyn Kernel,
        instrument: &I,
        targets: &[Target<'_>],
        options: &Options,
    ) -> Result<Self> {
        match Loaded::new(kernel, instrument, targets, options)?.attach()? {
            Attempt::Attached(session) => Ok(session),
            Attempt::Refused(loaded, _) => loaded.attach_but_refused(None, &|| false),
        }
    }

    /// Loads the programs and attaches them to kprobes of each function, through tracefs in that folder, but those that
    /// the kernel refuses. The functions have their [`Places`] in the targets' order. Between two of them `interrupted`
    /// is asked.
    ///
    /// # Errors
    ///
    /// Those of [`Programs::load`] and [`single::attach`].
    pub fn start_single(
        kernel: &'k dyn Kernel,
        instrument: &I,
        tracefs: &Path,
        functions: &[Places],
        options: &Options,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Self> {
        let sites: Vec<u64> = functions.iter().map(|places| places.site).collect();
        let addresses = addresses_of_hits(functions);
        let loaded = Loaded::with(kernel, instrument, Backend::Single, sites, &addresses, options)?;
        let started = Instant::now();
        let attached = single::attach(kernel, tracefs, &loaded.hooks(), functions, interrupted)?;
        Ok(loaded.session(attached, started.elapsed()))
    }

    /// What the programs left behind so far.
    pub fn data(&self) -> &I::Data {
        &self.data
    }

    /// The places of the targets that are attached to, ascending.
    pub fn places(&self) -> &[usize] {
        &self.places
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

    /// The hits so far that no counter shows.
    ///
    /// # Errors
    ///
    /// `Kernel` where it can't be asked.
    pub fn misses(&self) -> Result<Misses> {
        let missed = self.attached.missed(self.kernel)?;
        let recursion = self.program_infos()?.iter().map(|program| program.recursion_misses).sum();
        Ok(Misses { missed, recursion, lost: I::lost(&self.data) })
    }

    /// What the kernel tells of each program.
    ///
    /// # Errors
    ///
    /// `Kernel` where it can't be asked.
    pub fn program_infos(&self) -> Result<Vec<ProgramInfo>> {
        self.programs.info(self.kernel)
    }

    /// Detaches, and says how long the kernel took. What was left behind can be read as long as the result lives.
    pub fn detach(self) -> (I::Data, Duration) {
        let started = Instant::now();
        drop(self.attached);
        let took = started.elapsed();
        (self.data, took)
    }
}

/// The addresses that hits come with: of the kprobes, which may be at either place, and of the function itself when it
/// returns.
fn addresses_of_hits(functions: &[Places]) -> Vec<(usize, u64)> {
    let of = |(n, places): (usize, &Places)| {
        let entry = (places.entry != places.site).then_some(places.entry);
        [Some(places.site), places.behind, entry].into_iter().flatten().map(move |address| (n, address))
    };
    functions.iter().enumerate().flat_map(of).collect()
}

fn load<I: Instrument>(
    kernel: &dyn Kernel,
    instrument: &I,
    backend: Backend,
    steps: &[Step],
    table: &SiteTable,
    extent: Extent,
    options: &Options,
) -> Result<Programs> {
    let wanted = |step: &Step| Wanted {
        name: step.program,
        attach_type: match backend {
            Backend::Multi => step.moment.attach_type(),
            Backend::Single => NO_ATTACH_TYPE,
        },
    };
    let mut needs = instrument.needs(extent)?;
    needs.max_entries.push((SITES_MAP, table.places.len() as u32));
    let log_level = if options.log_errors { LOG_ERRORS } else { LOG_NOTHING };
    needs.globals.extend(options.filter.globals());
    needs.globals.push((LAYOUT_SYMBOL, layout_bytes(&table.layout).into()));
    needs.globals.push((LOG_LEVEL_SYMBOL, vec![log_level]));
    let globals: Vec<_> = needs.globals.iter().map(|(symbol, value)| (*symbol, &value[..])).collect();
    let settings = Settings {
        max_entries: &needs.max_entries,
        globals: &globals,
        kernel_functions: &needs.kernel_functions,
    };
    Programs::load(kernel, instrument.object(), &steps.iter().map(wanted).collect::<Vec<_>>(), &settings)
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
fn fill(kernel: &dyn Kernel, programs: &Programs, places: &[Site]) -> Result<()> {
    let memory = map_memory(kernel, programs, SITES_MAP, size_of_val(places))?;
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

#[cfg(test)]
mod tests {
    use probe_ebpf::{FIRST_SLOT, HITS_MAP};

    use super::*;
    use crate::{
        ErrorKind,
        instrument::count::{Counter, Counting},
        sys::{Fake, Mapping},
        tables::Function,
    };

    fn targets(addresses: &[u64]) -> Vec<Target<'static>> {
        let function = |address| Function { address, name: b"f", module: None };
        addresses.iter().map(|&a| Target { function: function(a), site: a + 4 }).collect()
    }

    fn start<'k>(fake: &'k Fake, addresses: &[u64], cpus: usize) -> Result<Counting<'k>> {
        let options = Options { log_errors: true, ..Options::new(cpus) };
        Counting::start(fake, &Counter, &targets(addresses), &options)
    }

    #[test]
    fn counters_of_all_cpus_are_summed_and_lost_hits_kept_apart() {
        let fake = Fake { missed: Some(5), ..Fake::default() };
        let counting = start(&fake, &[0x1000, 0x2000, 0x3000], 2).unwrap();
        assert_eq!(*fake.links.borrow(), [[0x1004, 0x2004, 0x3004]]);
        let memory = Mapping::new(counting.programs.map(HITS_MAP).unwrap(), 2 * 8 * 8).unwrap();
        for cpu in memory.words().chunks_exact(8) {
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
        let memory = Mapping::new(counting.programs.map(HITS_MAP).unwrap(), 8 * 8).unwrap();
        for (word, hits) in memory.words().iter().zip([0, 1, 2, 3, 4]) {
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
        let map = counting.programs.map(SITES_MAP).unwrap();
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
