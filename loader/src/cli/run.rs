//! What every command that attaches has in common: tables, plan, attach, until it can be read; then the end.

use std::{
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
    instrument::{Instrument, count::Counter},
    plan::{Plan, Policy, Reason, Skipped, known_good, plan},
    session::{Attempt, Loaded, Misses, Options, Session},
    sys::Live,
    tables::{Root, Tables, cache::Folder},
};
use tokio::{
    runtime::Runtime,
    time::{Interval, MissedTickBehavior, interval_at},
};

use super::{
    args::{BackendChoice, Select, SessionArguments},
    duration,
    exit::Exit,
    privileges,
    program_log::ProgramLog,
    render::AttachReport,
    select,
    stop::Stop,
    warn,
};

/// A command that attaches an instrument and shows what it measures.
pub trait Command {
    /// What it attaches.
    type Instrument: Instrument;

    /// What to attach to, and for how long.
    fn arguments(&self) -> &SessionArguments;

    /// How often something is shown.
    fn interval(&self) -> Option<Duration>;

    /// What it attaches.
    fn instrument(&self) -> Self::Instrument;

    /// The plan's policy, where it is another one than that of the arguments.
    fn policy(&self, policy: Policy) -> Policy {
        policy
    }

    /// Shows what was attached, or that nothing was.
    fn attached(&mut self, report: &AttachReport<'_, '_>) -> Result<()>;

    /// Shows what is measured, until the end.
    async fn show(&mut self, running: Running<'_, Self::Instrument>) -> Result<()>;
}

/// Runs a command; `started` is when the process was.
pub fn run(command: &mut impl Command, started: Instant) -> Result<Exit> {
    let root = Root::machine();
    let patterns = select::patterns(&command.arguments().select, &root)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("can't start the event loop")?;
    let run = Run { root, patterns, cache: Folder::of_this_user(), runtime, started };
    let ended = match run.attempt(command, OnRefusal::GiveUp)? {
        Some(exit) => exit,
        // A module may have come or gone since the tables were read.
        None => {
            run.attempt(command, OnRefusal::LeaveOut)?.context("the kernel refused what it took before")?
        }
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
struct Run {
    root: Root,
    patterns: select::Patterns,
    cache: Folder,
    runtime: Runtime,
    started: Instant,
}

impl Run {
    /// Reads the tables, chooses, attaches and shows until told to stop; nothing where the kernel refused and
    /// nothing is to be done about that.
    fn attempt<C: Command>(&self, command: &mut C, on_refusal: OnRefusal) -> Result<Option<Exit>> {
        let select = &command.arguments().select;
        let (strict, verbose) = (select.strict, select.verbose);
        let (mut tables, tables_took) =
            select::tables(&self.root, Some(&self.cache), select, &self.patterns)?;
        let planning = Instant::now();
        let matches = select::matches(&self.root, select, &self.patterns, &mut tables)?;
        let mut plan = plan(&matches, command.policy(select::policy(select)));
        let chosen =
            select::Chosen { source: tables.source(), tables: tables_took, plan: planning.elapsed() };
        if let Some(exit) = refuse(select, &plan) {
            return self.end_without(command, exit, &plan, chosen).map(Some);
        }
        self.warn_before(command.arguments(), &plan)?;
        // Before the attach, so that Ctrl-C during a long one still ends in a report. Before this point the default
        // holds: the process dies.
        let _within = self.runtime.enter();
        let stop = Stop::new(command.arguments().duration)?;
        let attacher = Attacher::new(self, command.arguments(), &tables, on_refusal, &stop)?;
        if let Some(budget) = command.arguments().budget
            && attacher.leave_out_the_hottest(budget, &mut plan)?.is_none()
        {
            return Ok(None);
        }
        let Some(session) = attacher.attach(&command.instrument(), &mut plan)? else { return Ok(None) };
        if let Some(exit) = refuse_rejected(strict, &plan) {
            drop(session);
            return self.end_without(command, exit, &plan, chosen).map(Some);
        }
        let report =
            AttachReport::new(&plan, Some((session.backend(), session.timings())), chosen, self.started);
        let (attached, wait) = mpsc::channel();
        thread::scope(|scope| {
            // The next run is to be faster, and this one not slower: nothing is kept before all is attached, and
            // nothing at all where that fails.
            scope.spawn(move || {
                if wait.into_iter().next().is_some() {
                    keep(tables, &self.root, &self.cache, verbose);
                }
            });
            self.runtime.block_on(async {
                let running = Running::start(session, &plan, stop, command.interval(), verbose > 0)?;
                command.attached(&report)?;
                // Nobody waits for it where there is nothing to keep.
                let _heard = attached.send(());
                command.show(running).await
            })
        })?;
        Ok(Some(Exit::Success))
    }

    /// Says what about this kernel or these functions makes a run slow, or silent.
    fn warn_before(&self, arguments: &SessionArguments, plan: &Plan<'_>) -> Result<()> {
        let count = plan.targets.len();
        if count >= MANY && arguments.budget.is_none() {
            let hint = "--budget 5% looks first what they cost, and leaves out the hottest";
            warn(format_args!("{count} functions, some of which the kernel calls all the time"), Some(hint));
        }
        check_ftrace(&self.root)?;
        if let Some(condition) = slow_hits(&self.root, count) {
            warn(&condition.message, Some(condition.hint));
        }
        Ok(())
    }

    /// Reports that nothing was attached, and why.
    fn end_without(
        &self,
        command: &mut impl Command,
        exit: Exit,
        plan: &Plan<'_>,
        chosen: select::Chosen,
    ) -> Result<Exit> {
        command.attached(&AttachReport::new(plan, None, chosen, self.started))?;
        say_why_not(exit, plan);
        Ok(exit)
    }
}

/// Attaches instruments to a plan.
struct Attacher<'a> {
    root: &'a Root,
    tables: &'a Tables,
    backend: BackendChoice,
    options: Options,
    on_refusal: OnRefusal,
    stop: &'a Stop,
}

impl<'a> Attacher<'a> {
    fn new(
        run: &'a Run,
        arguments: &SessionArguments,
        tables: &'a Tables,
        on_refusal: OnRefusal,
        stop: &'a Stop,
    ) -> Result<Self> {
        let cpus = aya::util::nr_cpus().map_err(|(file, e)| {
            Error::new(ErrorKind::Io, format!("can't read the number of CPUs in {file}")).with_source(e)
        })?;
        let options = Options { log_errors: arguments.select.verbose > 0, ..Options::new(cpus) };
        Ok(Self { root: &run.root, tables, backend: arguments.backend, options, on_refusal, stop })
    }

    /// Samples what hits cost, and moves the functions that are over the budget out of the targets; nothing where the
    /// kernel refuses them and nothing is to be done about that.
    fn leave_out_the_hottest(&self, budget: f64, plan: &mut Plan<'_>) -> Result<Option<()>> {
        let Some(counting) = self.attach(&Counter, plan)? else { return Ok(None) };
        if plan.targets.is_empty() {
            return Ok(Some(()));
        }
        let sampling = Sampling::start(&Live, &counting)?;
        let end = Instant::now() + SAMPLE;
        while Instant::now() < end {
            thread::sleep(Duration::from_millis(20));
            self.stop.check()?;
        }
        let sample = sampling.end(&counting)?;
        let over = sample.over(budget);
        say!(
            "fastprobe: sampled {}: {} hits of {:.0} ns cost {:.2} % of a CPU; {} functions are over the budget",
            duration::show(sample.took),
            sample.total(),
            sample.ns_per_hit(),
            sample.share_of_cpu(sample.total()) * 1e2,
            over.len()
        );
        plan.skip(over.into_iter().map(|place| (place, Reason::OverBudget)));
        Ok(Some(()))
    }

    /// Loads the programs and attaches them, moving what the kernel refuses out of the targets; nothing where that is
    /// to be no more than known.
    fn attach<I: Instrument>(
        &self,
        instrument: &I,
        plan: &mut Plan<'_>,
    ) -> Result<Option<Session<'static, I>>> {
        if self.backend == BackendChoice::Single {
            return self.attach_single(instrument, plan).map(Some);
        }
        let attempt = Loaded::new(&Live, instrument, &plan.targets, &self.options).and_then(Loaded::attach);
        let (loaded, error) = match attempt {
            Ok(Attempt::Attached(session)) => return Ok(Some(session)),
            Ok(Attempt::Refused(loaded, error)) => (loaded, error),
            Err(error) if self.backend == BackendChoice::Auto && Backend::is_missing(&error) => {
                say!("fastprobe: {error:#}; going on with a kprobe for each, which takes longer");
                return self.attach_single(instrument, plan).map(Some);
            }
            Err(error) => return Err(error.into()),
        };
        let verbose = self.options.log_errors;
        if self.on_refusal == OnRefusal::GiveUp {
            if verbose {
                say!("fastprobe: the kernel refuses these functions ({error}): reading its tables again");
            }
            return Ok(None);
        }
        let session = loaded.attach_but_refused(known_good(self.tables)?, &|| self.stop.came())?;
        if verbose {
            let (rejected, asked) = (session.rejected().len(), session.attempts());
            say!("fastprobe: the kernel refuses {rejected} functions, which took {asked} links to find");
        }
        leave_out_rejected(plan, &session);
        Ok(Some(session))
    }

    /// Attaches a kprobe for each target; those that the kernel refuses need no search.
    fn attach_single<I: Instrument>(
        &self,
        instrument: &I,
        plan: &mut Plan<'_>,
    ) -> Result<Session<'static, I>> {
        let functions = Places::of(&plan.targets, self.tables, self.root)?;
        let tracefs = self.root.tracefs("kprobe_events");
        if self.options.log_errors {
            let behind = functions.iter().filter(|places| places.behind.is_some()).count();
            say!(
                "fastprobe: {behind} of {} kprobes can be breakpoints behind ftrace's call",
                functions.len()
            );
        }
        let interrupted = || self.stop.came();
        let session =
            Session::start_single(&Live, instrument, &tracefs, &functions, &self.options, &interrupted)?;
        leave_out_rejected(plan, &session);
        Ok(session)
    }
}

/// Moves what the kernel would not attach to out of the targets.
fn leave_out_rejected<I: Instrument>(plan: &mut Plan<'_>, session: &Session<'_, I>) {
    plan.skip(session.rejected().iter().map(|&(place, why)| (place, Reason::RejectedByKernel(why))));
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
fn refuse_rejected(strict: bool, plan: &Plan<'_>) -> Option<Exit> {
    let rejected = |skipped: &Skipped<'_>| skipped.reason.rejection().is_some();
    if strict && plan.skipped.iter().any(rejected) {
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

/// What is attached and can be read.
pub struct Running<'r, I: Instrument> {
    /// The session.
    pub session: Session<'r, I>,
    /// What it is attached to.
    pub plan: &'r Plan<'r>,
    /// Since when.
    pub since: Instant,
    stop: Stop,
    ticks: Option<Interval>,
    log: ProgramLog,
}

/// How a session ended.
pub struct Ended {
    /// Hits that were not counted.
    pub misses: Misses,
    /// How long the kernel took to detach.
    pub detach: Duration,
}

impl<'r, I: Instrument> Running<'r, I> {
    fn start(
        session: Session<'r, I>,
        plan: &'r Plan<'r>,
        mut stop: Stop,
        interval: Option<Duration>,
        verbose: bool,
    ) -> Result<Self> {
        let since = Instant::now();
        let program = session.program_infos()?.first().map(|program| program.id);
        let log = program.filter(|_| verbose).map_or_else(ProgramLog::none, ProgramLog::of);
        privileges::give_up(&session);
        stop.start(since);
        let ticks = interval.map(|period| ticker(since, period));
        Ok(Self { session, plan, since, stop, ticks, log })
    }

    /// Waits for the next interval; false at the end.
    pub async fn next(&mut self) -> bool {
        loop {
            tokio::select! {
                biased;
                () = self.stop.wait() => return false,
                () = next_tick(&mut self.ticks) => return true,
                () = self.log.print_next() => {}
            }
        }
    }

    /// Detaches.
    pub fn end(mut self) -> Result<Ended> {
        let misses = self.session.misses()?;
        let (_, detach) = self.session.detach();
        self.log.print_rest();
        Ok(Ended { misses, detach })
    }
}

/// Says what the counts lack.
pub fn warn_of(misses: Misses) {
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
