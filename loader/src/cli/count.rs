//! `fastprobe PATTERN…`: attach, count until told to stop, report, detach.

use std::{
    io,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use fastprobe::{
    Error, ErrorKind,
    attach::{Backend, single::Places},
    budget::Sampling,
    conditions::{check_ftrace, slow_hits},
    counting::{Attempt, Counting, Loaded},
    plan::{Plan, Reason, Skipped, known_good, plan},
    sys::Live,
    tables::{Root, Tables, cache::Folder},
};
use tokio::{
    runtime::Runtime,
    time::{Interval, MissedTickBehavior, interval_at},
};

use super::{
    args::{BackendChoice, CountArguments, Select},
    duration,
    exit::Exit,
    privileges,
    program_log::ProgramLog,
    render::{AttachReport, Render, SummaryReport, renderer},
    select,
    stop::Stop,
    warn,
    window::Window,
};

/// Runs the command; `started` is when the process did.
pub fn run(arguments: &CountArguments, started: Instant) -> Result<Exit> {
    let root = Root::machine();
    let patterns = select::patterns(&arguments.select, &root)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("can't start the event loop")?;
    let run = Run { arguments, root, patterns, cache: Folder::of_this_user(), runtime, started };
    let ended = match run.count(OnRefusal::GiveUp)? {
        Some(exit) => exit,
        // A module may have come or gone since the tables were read.
        None => run.count(OnRefusal::LeaveOut)?.context("the kernel refused what it took before")?,
    };
    Ok(ended)
}

/// What to do when the kernel refuses the targets as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnRefusal {
    /// Nothing: the tables may be old.
    GiveUp,
    /// Find those that are at fault, and attach to the rest.
    LeaveOut,
}

/// How long it is looked what hits cost.
const SAMPLE: Duration = Duration::from_secs(1);

/// From so many functions on, those that are called all the time are likely to be among them.
const MANY: usize = 10_000;

/// What stays the same when the tables have to be read again.
struct Run<'a> {
    arguments: &'a CountArguments,
    root: Root,
    patterns: select::Patterns,
    cache: Folder,
    runtime: Runtime,
    started: Instant,
}

impl Run<'_> {
    /// Reads the tables, chooses, attaches and counts until told to stop; nothing where the kernel refused and
    /// nothing is to be done about that.
    fn count(&self, on_refusal: OnRefusal) -> Result<Option<Exit>> {
        let select = &self.arguments.select;
        let (mut tables, tables_took) =
            select::tables(&self.root, Some(&self.cache), select, &self.patterns)?;
        let planning = Instant::now();
        let matches = select::matches(&self.root, select, &self.patterns, &mut tables)?;
        let mut plan = plan(&matches, select::policy(select));
        let chosen =
            select::Chosen { source: tables.source(), tables: tables_took, plan: planning.elapsed() };
        if let Some(exit) = refuse(select, &plan) {
            return self.end_without(exit, &plan, chosen).map(Some);
        }
        if plan.targets.len() >= MANY && self.arguments.budget.is_none() {
            let count = plan.targets.len();
            let hint = "--budget 5% looks first what they cost, and leaves out the hottest";
            warn(format_args!("{count} functions, some of which the kernel calls all the time"), Some(hint));
        }
        check_ftrace(&self.root)?;
        if let Some(condition) = slow_hits(&self.root, plan.targets.len()) {
            warn(&condition.message, Some(condition.hint));
        }
        // Before the attach, so that Ctrl-C during a long one still ends in a report. Before this point the default
        // holds: the process dies.
        let _within = self.runtime.enter();
        let stop = Stop::new(self.arguments.duration)?;
        let Some(mut counting) = self.attach(&mut plan, &tables, on_refusal, &stop)? else { return Ok(None) };
        if let Some(budget) = self.arguments.budget
            && !plan.targets.is_empty()
            && self.leave_out_the_hottest(budget, &counting, &mut plan, &stop)?
        {
            drop(counting);
            let Some(rest) = self.attach(&mut plan, &tables, on_refusal, &stop)? else { return Ok(None) };
            counting = rest;
        }
        if let Some(exit) = refuse_rejected(select, &plan) {
            drop(counting);
            return self.end_without(exit, &plan, chosen).map(Some);
        }
        let (attached, wait) = mpsc::channel();
        thread::scope(|scope| {
            // The next run is to be faster, and this one not slower: nothing is kept before all is attached, and
            // nothing at all where that fails.
            scope.spawn(move || {
                if wait.into_iter().next().is_some() {
                    keep(tables, &self.root, &self.cache, select.verbose);
                }
            });
            self.runtime.block_on(self.session(counting, &plan, chosen, stop, attached))
        })?;
        Ok(Some(Exit::Success))
    }

    /// Samples what the hits cost, and moves the functions that are over the budget out of the targets; whether there
    /// were any.
    fn leave_out_the_hottest(
        &self,
        budget: f64,
        counting: &Counting<'_>,
        plan: &mut Plan<'_>,
        stop: &Stop,
    ) -> Result<bool> {
        let sampling = Sampling::start(&Live, counting)?;
        let end = Instant::now() + SAMPLE;
        while Instant::now() < end {
            thread::sleep(Duration::from_millis(20));
            stop.check()?;
        }
        let sample = sampling.end(counting)?;
        let over = sample.over(budget);
        say!(
            "fastprobe: sampled {}: {} hits of {:.0} ns cost {:.2} % of a CPU; {} functions are over the budget",
            duration::show(sample.took),
            sample.total(),
            sample.ns_per_hit(),
            sample.share_of_cpu(sample.total()) * 1e2,
            over.len()
        );
        let any = !over.is_empty();
        plan.skip(over.into_iter().map(|place| (place, Reason::OverBudget)));
        Ok(any)
    }

    /// Loads the program and attaches it, moving what the kernel refuses out of the targets; nothing where that is
    /// to be no more than known.
    fn attach(
        &self,
        plan: &mut Plan<'_>,
        tables: &Tables,
        on_refusal: OnRefusal,
        stop: &Stop,
    ) -> Result<Option<Counting<'static>>> {
        let verbose = self.arguments.select.verbose > 0;
        let cpus = aya::util::nr_cpus().map_err(|(file, e)| {
            Error::new(ErrorKind::Io, format!("can't read the number of CPUs in {file}")).with_source(e)
        })?;
        let choice = self.arguments.backend;
        if choice == BackendChoice::Single {
            return self.attach_single(plan, tables, cpus, stop).map(Some);
        }
        let attempt = Loaded::new(&Live, &plan.targets, cpus, verbose).and_then(Loaded::attach);
        let (loaded, error) = match attempt {
            Ok(Attempt::Counting(counting)) => return Ok(Some(counting)),
            Ok(Attempt::Refused(loaded, error)) => (loaded, error),
            Err(error) if choice == BackendChoice::Auto && Backend::is_missing(&error) => {
                say!("fastprobe: {error:#}; going on with a kprobe for each, which takes longer");
                return self.attach_single(plan, tables, cpus, stop).map(Some);
            }
            Err(error) => return Err(error.into()),
        };
        if on_refusal == OnRefusal::GiveUp {
            if verbose {
                say!("fastprobe: the kernel refuses these functions ({error}): reading its tables again");
            }
            return Ok(None);
        }
        let counting = loaded.attach_but_refused(known_good(tables)?, &|| stop.came())?;
        if verbose {
            let (rejected, asked) = (counting.rejected().len(), counting.attempts());
            say!("fastprobe: the kernel refuses {rejected} functions, which took {asked} links to find");
        }
        leave_out_rejected(plan, &counting);
        Ok(Some(counting))
    }

    /// Attaches a kprobe for each target; those that the kernel refuses need no search.
    fn attach_single(
        &self,
        plan: &mut Plan<'_>,
        tables: &Tables,
        cpus: usize,
        stop: &Stop,
    ) -> Result<Counting<'static>> {
        let verbose = self.arguments.select.verbose > 0;
        let functions = Places::of(&plan.targets, tables, &self.root)?;
        let tracefs = self.root.tracefs("kprobe_events");
        if verbose {
            let behind = functions.iter().filter(|places| places.behind.is_some()).count();
            say!(
                "fastprobe: {behind} of {} kprobes can be breakpoints behind ftrace's call",
                functions.len()
            );
        }
        let interrupted = || stop.came();
        let counting = Counting::start_single(&Live, &tracefs, &functions, cpus, verbose, &interrupted)?;
        leave_out_rejected(plan, &counting);
        Ok(counting)
    }

    /// Reports that nothing was attached, and why.
    fn end_without(&self, exit: Exit, plan: &Plan<'_>, chosen: select::Chosen) -> Result<Exit> {
        let nothing = AttachReport::new(plan, None, chosen, self.started);
        renderer(self.arguments).attached(&nothing)?;
        say_why_not(exit, plan);
        Ok(exit)
    }

    /// From the attach to the detach.
    async fn session(
        &self,
        counting: Counting<'_>,
        plan: &Plan<'_>,
        chosen: select::Chosen,
        mut stop: Stop,
        announce: mpsc::Sender<()>,
    ) -> Result<()> {
        let attached = Instant::now();
        let verbose = self.arguments.select.verbose > 0;
        let mut log = if verbose { ProgramLog::of(counting.program_info()?.id) } else { ProgramLog::none() };
        privileges::give_up(&counting);
        let mut render = renderer(self.arguments);
        let report = AttachReport::new(plan, Some(&counting), chosen, self.started);
        render.attached(&report)?;

        // Nobody waits for it where there is nothing to keep.
        let _heard = announce.send(());
        stop.start(attached);
        let mut window = Window::new(attached, plan.targets.len());
        let mut ticks = self.arguments.interval.map(|period| ticker(attached, period));
        loop {
            tokio::select! {
                biased;
                () = stop.wait() => break,
                () = next_tick(&mut ticks) => render.counts(&window.next(plan, &counting))?,
                () = log.print_next() => {}
            }
        }
        render.counts(&window.next(plan, &counting))?;
        finish(counting, &window, &mut log, &mut *render)
    }
}

/// Moves what the kernel would not attach to out of the targets.
fn leave_out_rejected(plan: &mut Plan<'_>, counting: &Counting<'_>) {
    plan.skip(counting.rejected().iter().map(|&(place, why)| (place, Reason::RejectedByKernel(why))));
}

/// Writes the cache. That it can't be written is no fault of this run.
fn keep(tables: Tables, root: &Root, cache: &Folder, verbose: u8) {
    let started = Instant::now();
    match tables.store(root, cache) {
        Ok(true) if verbose > 0 => {
            let took = started.elapsed().as_secs_f64() * 1e3;
            say!("fastprobe: tables kept in {} in {took:.1} ms", cache.file().display());
        }
        Err(error) if verbose > 0 => say!("fastprobe: {error:#}"),
        _ => {}
    }
}

/// The exit code, where the plan is not to be carried out.
fn refuse(select: &Select, plan: &Plan<'_>) -> Option<Exit> {
    if select.strict && !plan.skipped.is_empty() {
        Some(Exit::Strict)
    } else if plan.targets.is_empty() {
        Some(Exit::NoMatch)
    } else {
        None
    }
}

/// The same after the attach. What a budget leaves out was asked for.
fn refuse_rejected(select: &Select, plan: &Plan<'_>) -> Option<Exit> {
    let rejected = |skipped: &Skipped<'_>| skipped.reason.rejection().is_some();
    if select.strict && plan.skipped.iter().any(rejected) {
        Some(Exit::Strict)
    } else {
        plan.targets.is_empty().then_some(Exit::NoMatch)
    }
}

fn say_why_not(exit: Exit, plan: &Plan<'_>) {
    if exit == Exit::Strict {
        say!(
            "fastprobe: error: --strict: {} of {} functions can't be attached, so none was",
            plan.skipped.len(),
            plan.matched()
        );
    } else {
        say!("fastprobe: error: nothing to attach to: every function that matches is skipped");
    }
}

/// Detaches and prints the summary of what the windows have shown: calls that came after the last one count no
/// more, or the sum would be another than that of its parts.
fn finish(
    counting: Counting<'_>,
    window: &Window,
    log: &mut ProgramLog,
    render: &mut dyn Render,
) -> Result<()> {
    let (elapsed, hits) = (window.since - window.attached, window.before.iter().sum());
    let misses = counting.misses()?;
    let (_, detach) = counting.detach();
    log.print_rest();
    render.summary(&SummaryReport { elapsed, hits, misses, detach })?;
    let missed = misses.at_least();
    if missed > 0 {
        let message = "hits at least were dropped by the kernel: a program was already running on that CPU";
        warn(
            format_args!("{missed} {message}"),
            Some("probes in code that eBPF programs or tracers run through miss"),
        );
    }
    if misses.lost > 0 {
        warn(
            format_args!("{} hits were of functions that have no counter", misses.lost),
            Some("this is a fault in fastprobe: please report it with the output of -v"),
        );
    }
    Ok(())
}

/// Ticks from one period after `start` on; a late tick does not bring a burst of others.
fn ticker(start: Instant, period: Duration) -> Interval {
    let mut ticks = interval_at(tokio::time::Instant::from(start) + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

async fn next_tick(ticks: &mut Option<Interval>) {
    match ticks {
        Some(ticks) => drop(ticks.tick().await),
        None => std::future::pending().await,
    }
}

/// Where reports go.
pub fn standard_output() -> io::BufWriter<io::StdoutLock<'static>> {
    io::BufWriter::new(io::stdout().lock())
}
