//! The reports of a run, and the two forms in which they are printed: a table for people, JSON for programs.

mod json;
mod table;

use std::{
    collections::HashMap,
    io,
    time::{Duration, Instant},
};

use fastprobe::{
    attach::Backend,
    doctor::Report,
    plan::{Plan, Skipped, Target},
    session::{Misses, Timings},
    tables::Function,
};

use super::{
    args::{CountArguments, Sort},
    select,
};

/// What was attached, and how long each step took.
pub struct AttachReport<'p, 't> {
    pub plan: &'p Plan<'t>,
    pub attached: usize,
    /// How, where anything is attached.
    pub backend: Option<Backend>,
    pub chosen: select::Chosen,
    pub kernel: Timings,
    /// From the start of the process until all was attached.
    pub total: Duration,
}

impl<'p, 't> AttachReport<'p, 't> {
    /// The report at this moment of a process that `started` then; without a `session` nothing is attached.
    pub fn new(
        plan: &'p Plan<'t>,
        session: Option<(Backend, Timings)>,
        chosen: select::Chosen,
        started: Instant,
    ) -> Self {
        Self {
            plan,
            attached: session.map_or(0, |_| plan.targets.len()),
            backend: session.map(|(backend, _)| backend),
            chosen,
            kernel: session.map(|(_, timings)| timings).unwrap_or_default(),
            total: started.elapsed(),
        }
    }
}

/// What was counted in a stretch of time.
pub struct CountsReport<'p, 't> {
    pub targets: &'p [Target<'t>],
    /// The hits of each target in that stretch.
    pub hits: Vec<u64>,
    /// Since all was attached.
    pub elapsed: Duration,
    /// How long the stretch was.
    pub window: Duration,
}

/// What a whole session came to.
pub struct SummaryReport {
    pub elapsed: Duration,
    pub hits: u64,
    pub misses: Misses,
    pub detach: Duration,
}

/// A form of output.
pub trait Render {
    fn attached(&mut self, report: &AttachReport<'_, '_>) -> io::Result<()>;
    fn counts(&mut self, report: &CountsReport<'_, '_>) -> io::Result<()>;
    fn summary(&mut self, report: &SummaryReport) -> io::Result<()>;
}

/// Which rows of a [`CountsReport`] are shown, and in what order.
#[derive(Debug, Clone, Copy)]
struct Rows {
    sort: Sort,
    top: Option<usize>,
    with_zeros: bool,
}

/// The form that the arguments ask for, on standard output.
pub fn renderer(arguments: &CountArguments) -> Box<dyn Render> {
    let rows = Rows { sort: arguments.sort, top: arguments.top, with_zeros: arguments.all };
    let select = &arguments.session.select;
    if select.json {
        Box::new(json::Json::new(standard_output(), rows))
    } else {
        Box::new(table::Table::new(standard_output(), rows, select.verbose > 0))
    }
}

/// Where reports go.
fn standard_output() -> io::BufWriter<io::StdoutLock<'static>> {
    io::BufWriter::new(io::stdout().lock())
}

/// Prints a plan that is not carried out.
pub fn plan(plan: &Plan<'_>, as_json: bool) -> io::Result<()> {
    if as_json { json::plan(&mut standard_output(), plan) } else { table::plan(&mut standard_output(), plan) }
}

/// Prints what a machine allows.
pub fn doctor(report: &Report, as_json: bool) -> io::Result<()> {
    let mut out = standard_output();
    if as_json { json::doctor(&mut out, report) } else { table::doctor(&mut out, report) }
}

impl Rows {
    /// The chosen targets with their hits, and how many more had hits.
    fn choose<'p, 't>(self, report: &CountsReport<'p, 't>) -> (Vec<(&'p Target<'t>, u64)>, usize) {
        let all = report.targets.iter().zip(report.hits.iter().copied());
        let mut rows: Vec<_> = all.filter(|&(_, hits)| hits > 0 || self.with_zeros).collect();
        // Targets come in the order of their addresses and the sorts are stable: so ties are, too.
        match self.sort {
            Sort::Hits => rows.sort_by_key(|&(_, hits)| std::cmp::Reverse(hits)),
            Sort::Name => rows.sort_by_key(|(target, _)| target.function.name),
            Sort::Module => rows.sort_by_key(|&(t, hits)| (t.function.module, std::cmp::Reverse(hits))),
            Sort::Address => {}
        }
        let left_out = self.top.map_or(0, |top| rows.len().saturating_sub(top));
        rows.truncate(self.top.unwrap_or(usize::MAX));
        (rows, left_out)
    }
}

/// How many were skipped for each reason: `12: 8 not traceable, 4 blacklisted`, most first.
fn tally(skipped: &[Skipped<'_>]) -> String {
    let mut counts = HashMap::new();
    for skip in skipped {
        *counts.entry(skip.reason).or_insert(0_usize) += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|&(reason, count)| (std::cmp::Reverse(count), reason));
    let parts: Vec<_> = counts.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    format!("{}: {}", skipped.len(), parts.join(", "))
}

/// Functions that share their name and module with others among `functions`: how many they are.
fn namesakes<'t>(
    functions: impl Iterator<Item = Function<'t>>,
) -> HashMap<(Option<&'t [u8]>, &'t [u8]), usize> {
    let mut counts = HashMap::new();
    for function in functions {
        *counts.entry((function.module, function.name)).or_insert(0) += 1;
    }
    counts.retain(|_, count| *count > 1);
    counts
}

/// A name for people and JSON, which have no bytes but text.
fn text(name: &[u8]) -> std::borrow::Cow<'_, str> {
    if name.iter().any(u8::is_ascii_control) {
        return name.escape_ascii().to_string().into();
    }
    String::from_utf8_lossy(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastprobe::plan::Reason;

    fn target(name: &'static str, module: Option<&'static str>, address: u64) -> Target<'static> {
        let function = Function { address, name: name.as_bytes(), module: module.map(str::as_bytes) };
        Target { function, site: address }
    }

    fn names(rows: Rows, report: &CountsReport<'_, '_>) -> Vec<String> {
        rows.choose(report).0.iter().map(|(t, _)| text(t.function.name).into_owned()).collect()
    }

    #[test]
    fn rows_are_sorted_and_cut() {
        let targets = [
            target("c", Some("m"), 1),
            target("a", None, 2),
            target("b", Some("m"), 3),
            target("d", None, 4),
        ];
        let report = CountsReport {
            targets: &targets,
            hits: vec![5, 0, 9, 5],
            elapsed: Duration::ZERO,
            window: Duration::ZERO,
        };
        let rows = Rows { sort: Sort::Hits, top: None, with_zeros: false };
        assert_eq!(names(rows, &report), ["b", "c", "d"]);
        assert_eq!(names(Rows { with_zeros: true, sort: Sort::Name, ..rows }, &report), ["a", "b", "c", "d"]);
        assert_eq!(names(Rows { sort: Sort::Module, ..rows }, &report), ["d", "b", "c"]);
        assert_eq!(names(Rows { sort: Sort::Address, ..rows }, &report), ["c", "b", "d"]);
        assert_eq!(Rows { top: Some(1), ..rows }.choose(&report).1, 2);
    }

    #[test]
    fn reasons_are_tallied_most_first() {
        let skip = |reason| Skipped { function: target("f", None, 1).function, reason };
        let skipped = [
            Reason::Blacklisted,
            Reason::NotTraceable,
            Reason::Blacklisted,
            Reason::NotTraceable,
            Reason::Denylisted,
        ];
        assert_eq!(tally(&skipped.map(skip)), "5: 2 not traceable, 2 blacklisted, 1 denylisted");
    }

    #[test]
    fn namesakes_are_those_of_the_same_module() {
        let all =
            [target("f", None, 1), target("f", Some("m"), 2), target("f", None, 3), target("g", None, 4)];
        let found = namesakes(all.iter().map(|t| t.function));
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [((None, &b"f"[..]), 2)]);
    }
}
