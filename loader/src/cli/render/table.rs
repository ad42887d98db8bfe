//! Output for people.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table as Grid, presets};
use fastprobe::{
    doctor::{Report, State},
    plan::{Plan, Target},
    session::Misses,
};

use super::{AttachReport, CountsReport, Render, Rows, SummaryReport, namesakes, tally, text};
use crate::cli::duration::show;

/// Rows of a table when nothing else is asked for: a screen.
const DEFAULT_TOP: usize = 40;

/// Prints reports as text.
pub struct Table<W> {
    out: W,
    rows: Rows,
    verbose: bool,
}

impl<W: Write> Table<W> {
    pub fn new(out: W, rows: Rows, verbose: bool) -> Self {
        let top = if rows.with_zeros { None } else { rows.top.or(Some(DEFAULT_TOP)) };
        Self { out, rows: Rows { top, ..rows }, verbose }
    }
}

impl<W: Write> Render for Table<W> {
    fn attached(&mut self, report: &AttachReport<'_, '_>) -> io::Result<()> {
        let plan = report.plan;
        write!(
            self.out,
            "attached {} of {} functions in {} (tables {}, plan {}, load {}, link {})",
            report.attached,
            plan.matched(),
            show(report.total),
            show(report.chosen.tables),
            show(report.chosen.plan),
            show(report.kernel.load),
            show(report.kernel.link),
        )?;
        if !plan.skipped.is_empty() {
            write!(self.out, "; skipped {}", tally(&plan.skipped))?;
        }
        writeln!(self.out)?;
        if self.verbose {
            for skip in &plan.skipped {
                say!("fastprobe: skipped {}: {}", text(skip.function.name), skip.reason);
            }
        }
        self.out.flush()
    }

    fn counts(&mut self, report: &CountsReport<'_, '_>) -> io::Result<()> {
        let (rows, left_out) = self.rows.choose(report);
        writeln!(self.out)?;
        if rows.is_empty() {
            writeln!(self.out, "no calls in {}", show(report.window))?;
        } else {
            writeln!(self.out, "{}", grid(&rows, report.targets).trim_fmt())?;
        }
        if left_out > 0 {
            writeln!(self.out, "… and {left_out} more with hits (-n N or --all shows them)")?;
        }
        self.out.flush()
    }

    fn summary(&mut self, report: &SummaryReport) -> io::Result<()> {
        writeln!(
            self.out,
            "\n{} hits in {}, {}; detached in {}",
            report.hits,
            show(report.elapsed),
            missed(report.misses),
            show(report.detach)
        )?;
        self.out.flush()
    }
}

/// Prints a plan that is not carried out, in the form that `@FILE` reads: names as the kernel's own list has
/// them, everything else as comments.
pub fn plan(out: &mut impl Write, plan: &Plan<'_>) -> io::Result<()> {
    write!(out, "# {} of {} functions would be attached", plan.targets.len(), plan.matched())?;
    if plan.skipped.is_empty() {
        writeln!(out)?;
    } else {
        writeln!(out, "; skipped {}", tally(&plan.skipped))?;
    }
    let mut several = namesakes(plan.targets.iter().map(|target| target.function));
    let shared = several.clone();
    for target in &plan.targets {
        let function = target.function;
        let key = (function.module, function.name);
        // The first of several brings the line for all.
        match (shared.get(&key), several.remove(&key)) {
            (Some(_), None) => continue,
            (_, Some(count)) => writeln!(out, "# ×{count}: {count} functions have this name")?,
            (None, None) => {}
        }
        write_name(out, function.name, function.module)?;
        writeln!(out)?;
    }
    for skip in &plan.skipped {
        write!(out, "# skipped: ")?;
        write_name(out, skip.function.name, skip.function.module)?;
        writeln!(out, ": {}", skip.reason)?;
    }
    out.flush()
}

/// `name [module]`, byte for byte.
fn write_name(out: &mut impl Write, name: &[u8], module: Option<&[u8]>) -> io::Result<()> {
    out.write_all(name)?;
    if let Some(module) = module {
        out.write_all(b" [")?;
        out.write_all(module)?;
        out.write_all(b"]")?;
    }
    Ok(())
}

fn grid(rows: &[(&Target<'_>, u64)], all: &[Target<'_>]) -> Grid {
    let several = namesakes(all.iter().map(|target| target.function));
    let mut grid = Grid::new();
    grid.load_style(presets::NOTHING).set_header(["HITS", "FUNCTION", "MODULE"]);
    for (target, hits) in rows {
        let function = target.function;
        let name = match several.get(&(function.module, function.name)) {
            Some(count) => format!("{} ({:#x}, one of {count})", text(function.name), function.address),
            None => text(function.name).into_owned(),
        };
        let module = function.module.map_or("-".into(), text);
        grid.add_row([hits.to_string(), name, module.into_owned()]);
    }
    if let Some(hits) = grid.column_mut(0) {
        hits.set_cell_alignment(CellAlignment::Right);
    }
    grid
}

/// The kernel does not see all of them, so a number is a lower bound.
fn missed(misses: Misses) -> String {
    match (misses.at_least(), misses.missed) {
        (0, Some(_)) => "none missed".to_owned(),
        (0, None) => "misses unknown (this kernel does not count them)".to_owned(),
        (count, _) => format!("at least {count} missed"),
    }
}

/// Prints what a machine allows: a line for each precondition, and below it what its lack costs and what mends it.
pub fn doctor(out: &mut impl Write, report: &Report) -> io::Result<()> {
    for check in &report.checks {
        writeln!(out, "{:<8}  {:<19}  {}", check.state.word(), check.name, check.detail)?;
        let below = [("costs", &check.cost), ("mend", &check.fix)];
        for (word, text) in below.iter().filter_map(|(word, text)| Some((word, text.as_ref()?))) {
            writeln!(out, "{:31}{word:<5}  {text}", "")?;
        }
    }
    let kernel = if report.kernel.is_empty() { "this kernel" } else { &report.kernel };
    let lacks = report.checks.iter().filter(|check| check.state != State::Ok).count();
    let verdict = match (report.can_attach(), lacks) {
        (true, 0) => "fastprobe can attach, and nothing is in its way".to_owned(),
        (true, lacks) => format!("fastprobe can attach; {lacks} of {} could be better", report.checks.len()),
        (false, _) => "fastprobe can't attach: mend what is missing".to_owned(),
    };
    writeln!(out, "\n{kernel}: {verdict}")?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cli::{args::Sort, select};
    use fastprobe::{
        doctor::Check,
        plan::{Reason, Skipped},
        session::Timings,
        tables::Function,
    };

    fn target(name: &'static str, module: Option<&'static str>, address: u64) -> Target<'static> {
        let function = Function { address, name: name.as_bytes(), module: module.map(str::as_bytes) };
        Target { function, site: address }
    }

    fn printed(print: impl FnOnce(&mut Table<&mut Vec<u8>>)) -> String {
        let mut out = Vec::new();
        let rows = Rows { sort: Sort::Hits, top: None, with_zeros: false };
        print(&mut Table::new(&mut out, rows, false));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn one_line_says_what_was_attached_and_how_long_it_took() {
        let ms = Duration::from_millis;
        let skip = |name, reason| Skipped { function: target(name, None, 1).function, reason };
        let plan = Plan {
            targets: vec![target("a", None, 1), target("b", None, 2)],
            skipped: vec![skip("c", Reason::NotTraceable), skip("d", Reason::Blacklisted)],
        };
        let report = AttachReport {
            plan: &plan,
            attached: 2,
            backend: Some(fastprobe::attach::Backend::Multi),
            chosen: select::Chosen { source: fastprobe::tables::Source::Text, tables: ms(9), plan: ms(1) },
            kernel: Timings { load: ms(4), link: ms(117) },
            total: ms(131),
        };
        assert_eq!(
            printed(|table| table.attached(&report).unwrap()),
            "attached 2 of 4 functions in 131 ms (tables 9.0 ms, plan 1.0 ms, load 4.0 ms, link 117 ms); \
             skipped 2: 1 not traceable, 1 blacklisted\n"
        );
    }

    #[test]
    fn the_table_is_aligned_and_tells_namesakes_apart() {
        let targets =
            [target("show", None, 0x10), target("show", None, 0x20), target("kvm_run", Some("kvm"), 0x30)];
        let report = CountsReport {
            targets: &targets,
            hits: vec![7, 0, 1234],
            elapsed: Duration::ZERO,
            window: Duration::ZERO,
        };
        let text = printed(|table| table.counts(&report).unwrap());
        let lines: Vec<_> = text.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "",
                " HITS  FUNCTION               MODULE",
                " 1234  kvm_run                kvm",
                "    7  show (0x10, one of 2)  -",
            ]
        );
    }

    #[test]
    fn a_plan_prints_as_a_file_of_names() {
        let to_print = Plan {
            targets: vec![
                target("show", None, 1),
                target("show", None, 2),
                target("kvm_run", Some("kvm"), 3),
            ],
            skipped: vec![Skipped {
                function: target("gone", None, 4).function,
                reason: Reason::NotTraceable,
            }],
        };
        let mut out = Vec::new();
        plan(&mut out, &to_print).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "# 3 of 4 functions would be attached; skipped 1: 1 not traceable\n\
             # ×2: 2 functions have this name\nshow\nkvm_run [kvm]\n# skipped: gone: not traceable\n"
        );
    }

    #[test]
    fn misses_are_a_lower_bound_and_unknown_where_nobody_counts() {
        let of = |missed, recursion| super::missed(Misses { missed, recursion, lost: 0 });
        assert_eq!(of(Some(0), 0), "none missed");
        assert_eq!(of(None, 0), "misses unknown (this kernel does not count them)");
        assert_eq!(of(Some(3), 5), "at least 5 missed");
    }

    #[test]
    fn what_a_machine_lacks_is_told_with_its_cost_and_what_mends_it() {
        let fine = Check { name: "btf", state: State::Ok, detail: "found".into(), cost: None, fix: None };
        let lack = Check {
            name: "ftrace_enabled",
            state: State::Degraded,
            detail: "0".into(),
            cost: Some("probes may never fire".into()),
            fix: Some("sysctl kernel.ftrace_enabled=1".into()),
        };
        let print = |checks: &[&Check]| {
            let checks = checks.iter().copied().cloned().collect();
            let mut out = Vec::new();
            doctor(&mut out, &Report { kernel: "7.3.4".into(), checks }).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            print(&[&fine, &lack]),
            "ok        btf                  found\n\
             degraded  ftrace_enabled       0\n\
             \u{20}                              costs  probes may never fire\n\
             \u{20}                              mend   sysctl kernel.ftrace_enabled=1\n\
             \n7.3.4: fastprobe can attach; 1 of 2 could be better\n"
        );
        assert!(print(&[&fine]).ends_with("nothing is in its way\n"));
        let missing = Check { state: State::Missing, ..lack };
        assert!(print(&[&fine, &missing]).ends_with("can't attach: mend what is missing\n"));
    }
}
