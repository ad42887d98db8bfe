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
    counting::Counting,
    plan::{Plan, plan},
    sys::Live,
    tables::{Root, Tables, cache::Folder},
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{Interval, MissedTickBehavior, interval_at, sleep_until},
};

use super::{
    args::CountArguments,
    exit::Exit,
    program_log::ProgramLog,
    render::{AttachReport, CountsReport, Render, SummaryReport, renderer},
    select, warn,
};

/// Runs the command; `started` is when the process did.
pub fn run(arguments: &CountArguments, started: Instant) -> Result<Exit> {
    let root = Root::machine();
    let patterns = select::patterns(&arguments.select, &root)?;
    let cache = Folder::of_this_user();
    let (mut tables, tables_took) = select::tables(&root, Some(&cache), &arguments.select, &patterns)?;
    let planning = Instant::now();
    let matches = select::matches(&root, &arguments.select, &patterns, &mut tables)?;
    let plan = plan(&matches, select::policy(&arguments.select));
    let chosen = select::Chosen { source: tables.source(), tables: tables_took, plan: planning.elapsed() };
    let mut render = renderer(arguments);
    if let Some(exit) = refuse(arguments, &plan) {
        let nothing = AttachReport::new(&plan, 0, chosen, fastprobe::counting::Timings::default(), started);
        render.attached(&nothing)?;
        say_why_not(exit, &plan);
        return Ok(exit);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("can't start the event loop")?;
    let (attached, wait) = mpsc::channel();
    thread::scope(|scope| {
        // The next run is to be faster, and this one not slower: nothing is kept before all is attached, and
        // nothing at all where that fails.
        scope.spawn(|| {
            if wait.into_iter().next().is_some() {
                keep(&tables, &root, &cache, arguments.select.verbose);
            }
        });
        runtime.block_on(session(arguments, &plan, chosen, &mut *render, started, attached))
    })?;
    Ok(Exit::Success)
}

/// Writes the cache. That it can't be written is no fault of this run.
fn keep(tables: &Tables, root: &Root, cache: &Folder, verbose: u8) {
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
fn refuse(arguments: &CountArguments, plan: &Plan<'_>) -> Option<Exit> {
    if arguments.select.strict && !plan.skipped.is_empty() {
        Some(Exit::Strict)
    } else if plan.targets.is_empty() {
        Some(Exit::NoMatch)
    } else {
        None
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

/// From the attach to the detach.
async fn session(
    arguments: &CountArguments,
    plan: &Plan<'_>,
    chosen: select::Chosen,
    render: &mut dyn Render,
    started: Instant,
    announce: mpsc::Sender<()>,
) -> Result<()> {
    // Before the attach, so that Ctrl-C during a long one still ends in a report. Before this point, and until
    // the kernel is done, the default holds: the process dies, and with it whatever was attached.
    let mut stop = Stop::new(arguments.duration)?;
    let cpus = aya::util::nr_cpus().map_err(|(file, e)| {
        Error::new(ErrorKind::Io, format!("can't read the number of CPUs in {file}")).with_source(e)
    })?;
    let verbose = arguments.select.verbose > 0;
    let counting = Counting::start(&Live, &plan.targets, cpus, verbose)?;
    let attached = Instant::now();
    let mut log = if verbose { ProgramLog::of(counting.program_info()?.id) } else { ProgramLog::none() };
    render.attached(&AttachReport::new(plan, plan.targets.len(), chosen, counting.timings(), started))?;

    // Nobody waits for it where there is nothing to keep.
    let _heard = announce.send(());
    stop.start(attached);
    let mut window = Window::new(attached, plan.targets.len());
    let mut ticks = arguments.interval.map(|period| ticker(attached, period));
    loop {
        tokio::select! {
            biased;
            () = stop.wait() => break,
            () = next_tick(&mut ticks) => render.counts(&window.next(plan, &counting))?,
            () = log.print_next() => {}
        }
    }
    render.counts(&window.next(plan, &counting))?;
    finish(counting, &window, &mut log, render)
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
    if misses.lost > 0 {
        warn(
            format_args!("{} hits were of functions that have no counter", misses.lost),
            Some("this is a fault in fastprobe: please report it with the output of -v"),
        );
    }
    Ok(())
}

/// What ends a session: time, SIGINT, SIGTERM.
struct Stop {
    interrupt: Signal,
    terminate: Signal,
    duration: Option<Duration>,
    deadline: Option<tokio::time::Instant>,
}

impl Stop {
    fn new(duration: Option<Duration>) -> Result<Self> {
        let listen = |kind| signal(kind).context("can't listen for signals");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            duration,
            deadline: None,
        })
    }

    /// The time runs from here. A time beyond what the clock can tell never comes.
    fn start(&mut self, from: Instant) {
        self.deadline = self.duration.and_then(|d| from.checked_add(d)).map(Into::into);
    }

    async fn wait(&mut self) {
        let deadline = self.deadline;
        let time_is_up = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = time_is_up => {}
        }
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

/// The stretch of time that the next report covers.
struct Window {
    attached: Instant,
    since: Instant,
    before: Vec<u64>,
}

impl Window {
    fn new(attached: Instant, targets: usize) -> Self {
        Self { attached, since: attached, before: vec![0; targets] }
    }

    /// What was counted since the last call, and the start of the next stretch.
    fn next<'p, 't>(&mut self, plan: &'p Plan<'t>, counting: &Counting<'_>) -> CountsReport<'p, 't> {
        let now = Instant::now();
        let counts = counting.counts();
        let hits = counts.iter().zip(&self.before).map(|(now, before)| now - before).collect();
        let report = CountsReport {
            targets: &plan.targets,
            hits,
            elapsed: now - self.attached,
            window: now - self.since,
        };
        self.before = counts;
        self.since = now;
        report
    }
}

/// Where reports go.
pub fn standard_output() -> io::BufWriter<io::StdoutLock<'static>> {
    io::BufWriter::new(io::stdout().lock())
}
